//! Bundles of several modes: those of the first mode with one section more. Machine and blobs are shared, and each further
//! mode's plans are differences from its own plan 0, as contingencies are.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::decode::{SectionList, join, read_blobs, read_program};
use super::differences::Difference;
use super::encode::{Layout, split};
use super::file::replace;
use super::hosts::HostsRecord;
use super::image::{self, Image};
use super::{BundleError, Meta, OpenError, Section};
use crate::limits::{MAX_MODES, MAX_STRUCTURE_BYTES};
use crate::verify::{Verified, VerifiedModes, verify_modes};
use crate::{
    BlobId, Contingencies, Graph, KernelCode, Mode, ModeDecision, Modes, Plan, PlanId, Program,
    TiVec,
};

/// What the section of modes holds.
#[derive(Serialize, Deserialize)]
pub(super) struct ModesRecord {
    /// Of the first mode, whose program the other sections hold: its name, and how many of the blobs are its.
    first_name: String,
    first_blobs: u64,
    others: Vec<ModeRecord>,
    changes: Vec<(u32, u32)>,
    decision: Option<ModeDecision>,
}

#[derive(Serialize, Deserialize)]
struct ModeRecord {
    name: String,
    graph: Graph,
    plans: TiVec<PlanId, Plan>,
    contingencies: Contingencies,
    differences: Vec<Difference>,
    kernels: Vec<KernelCode>,
    /// For each of its blobs, its place among all of the bundle.
    blobs: Vec<u64>,
}

/// What is written: the section, and the blobs of all modes, each once.
pub(super) struct PackedModes<'p> {
    pub record: ModesRecord,
    pub blobs: Vec<&'p Bytes>,
    /// Those of all modes, in order.
    pub contingencies: Vec<&'p Contingencies>,
}

impl<'p> PackedModes<'p> {
    /// `modes` has at least one.
    fn new(modes: &'p VerifiedModes) -> Self {
        let mut blobs: Vec<&'p Bytes> = modes.programs()[0].blobs.iter().collect();
        let first_blobs = blobs.len() as u64;
        let mut places: BTreeMap<&'p [u8], u64> = BTreeMap::new();
        for (place, blob) in (0..).zip(blobs.iter().copied()) {
            places.entry(blob.as_ref()).or_insert(place);
        }

        let further = modes.names().iter().zip(modes.programs()).skip(1);
        let mut others = Vec::new();
        for (name, program) in further {
            let mut own_blobs = Vec::with_capacity(program.blobs.len());
            for blob in &program.blobs {
                let place = places.entry(blob.as_ref()).or_insert_with(|| {
                    blobs.push(blob);
                    blobs.len() as u64 - 1
                });
                own_blobs.push(*place);
            }
            let (plans, differences) = split(program);
            others.push(ModeRecord {
                name: name.clone(),
                graph: program.graph.clone(),
                plans: plans.to_vec().into(),
                contingencies: program.contingencies.clone(),
                differences,
                kernels: program.kernels.clone(),
                blobs: own_blobs,
            });
        }
        Self {
            record: ModesRecord {
                first_name: modes.names()[0].clone(),
                first_blobs,
                others,
                changes: modes.changes().to_vec(),
                decision: modes.decision().cloned(),
            },
            blobs,
            contingencies: modes
                .programs()
                .iter()
                .map(|program| &program.contingencies)
                .collect(),
        }
    }
}

/// The bytes of a bundle of modes. One mode without a name is an ordinary bundle.
pub fn encode_modes(modes: &VerifiedModes, meta: &Meta) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_layout(modes, meta, &mut bytes).expect("writing to a vector does not fail");
    bytes
}

/// Writes a bundle of modes, as [`super::write_with`] does.
///
/// # Errors
/// What the file system says; then the old file is still there.
pub fn write_modes(path: &Path, modes: &VerifiedModes, meta: &Meta) -> io::Result<()> {
    replace(path, |out| write_layout(modes, meta, out))
}

fn write_layout(modes: &VerifiedModes, meta: &Meta, out: &mut dyn Write) -> io::Result<()> {
    let first = &modes.programs()[0];
    if is_plain(modes) {
        return Layout::new(first, meta).write(out);
    }
    let packed = PackedModes::new(modes);
    Layout::of_modes(first, &packed, meta).write(out)
}

/// Whether it is a program that was compiled without modes.
fn is_plain(modes: &VerifiedModes) -> bool {
    modes.names().len() == 1 && modes.names()[0].is_empty()
}

/// Reads modes, which are not verified yet; an ordinary bundle has one without a name.
///
/// # Errors
/// As [`super::decode_within`].
pub fn decode_modes(bytes: Bytes, max_structure_bytes: u64) -> Result<Modes, BundleError> {
    let bundle_bytes = bytes.len() as u64;
    let sections = SectionList::read(&bytes, max_structure_bytes)?;
    let mut first = read_program(&sections, bundle_bytes)?;
    let record: Option<ModesRecord> = sections.read_modes()?;
    let hosts: Option<HostsRecord> = sections.read_optional(Section::Hosts)?;
    let mode_count = 1 + record.as_ref().map_or(0, |record| record.others.len());
    let mut alike_hosts = HostsRecord::alike_of_modes(hosts, mode_count)?.into_iter();
    first.contingencies.alike_hosts = alike_hosts.next().unwrap_or_default();
    let Some(record) = record else {
        let mode = Mode {
            name: String::new(),
            program: first,
        };
        return Ok(Modes {
            list: vec![mode],
            changes: Vec::new(),
            decision: None,
        });
    };

    if record.others.len() >= MAX_MODES {
        let message = format!("{} modes, at most {MAX_MODES}", record.others.len() + 1);
        return Err(refuse(message));
    }
    let blobs = read_blobs(&sections)?;
    if record.first_blobs > blobs.len() as u64 {
        let message = format!("{} blobs of {}", record.first_blobs, blobs.len());
        return Err(refuse(message));
    }
    first.blobs.truncate(record.first_blobs as usize);

    let machine = first.machine.clone();
    let mut list = vec![Mode {
        name: record.first_name,
        program: first,
    }];
    for other in record.others {
        let own_blobs = other.blobs.iter().map(|place| {
            let blob = blobs.raw.get(*place as usize);
            let count = blobs.len();
            blob.cloned()
                .ok_or_else(|| refuse(format!("blob {place} of {count}")))
        });
        let own_blobs: TiVec<BlobId, Bytes> = own_blobs.collect::<Result<_, _>>()?;
        let table = (other.contingencies, other.differences);
        let (plans, mut contingencies) = join(other.plans, table, bundle_bytes, sections.budget())?;
        contingencies.alike_hosts = alike_hosts.next().unwrap_or_default();
        list.push(Mode {
            name: other.name,
            program: Program {
                graph: other.graph,
                machine: machine.clone(),
                plans,
                contingencies,
                blobs: own_blobs,
                kernels: other.kernels,
            },
        });
    }
    Ok(Modes {
        list,
        changes: record.changes,
        decision: record.decision,
    })
}

fn refuse(message: String) -> BundleError {
    BundleError::Content {
        section: Section::Modes,
        message,
    }
}

/// Copies, checks and verifies a bundle of any number of modes.
///
/// # Errors
/// See [`OpenError`].
pub fn open_modes(path: &Path) -> Result<VerifiedModes, OpenError> {
    open_modes_within(path, MAX_STRUCTURE_BYTES)
}

/// As [`open_modes`], with another limit on the memory that the structure takes, in bytes.
///
/// # Errors
/// See [`OpenError`].
pub fn open_modes_within(
    path: &Path,
    max_structure_bytes: u64,
) -> Result<VerifiedModes, OpenError> {
    let (bytes, image) = image::load(path)?;
    let verified = modes_of_bytes(bytes, max_structure_bytes)?;
    Ok(verified.with_image(image))
}

/// As [`open_modes_within`], for a bundle in memory.
///
/// # Errors
/// See [`OpenError`].
pub fn modes_of_bytes(bytes: Bytes, max_structure_bytes: u64) -> Result<VerifiedModes, OpenError> {
    let modes = decode_modes(bytes, max_structure_bytes)?;
    // A program without modes is refused in the words that are used for programs.
    if let [Mode { name, .. }] = modes.list.as_slice()
        && name.is_empty()
    {
        let program = modes.list.into_iter().next().unwrap_or_default().program;
        let verified: Verified<Program> =
            crate::verify::verify(program).map_err(OpenError::Verify)?;
        return Ok(VerifiedModes::from(verified));
    }
    verify_modes(modes).map_err(OpenError::Modes)
}

/// A bundle of modes, for processes that are to map it: the copy that they were opened from, or else a new one.
///
/// # Errors
/// What the system says; always where files cannot be sealed.
pub fn image_of_modes(modes: &VerifiedModes) -> io::Result<Image> {
    if let Some(image) = modes.image() {
        return Ok(image.clone());
    }
    image::seal(|out| {
        let mut out = BufWriter::new(out);
        write_layout(modes, &Meta::new(), &mut out)?;
        out.flush()
    })
}

/// The same modes, read from the image that they have, or from a new one: so that every blob is in the image's file.
///
/// # Errors
/// What the system says; always where files cannot be sealed.
pub fn with_image(modes: VerifiedModes) -> Result<(VerifiedModes, Image), OpenError> {
    if let Some(image) = modes.image().cloned() {
        return Ok((modes, image));
    }
    let image = image_of_modes(&modes)?;
    let again = modes_of_bytes(image.bytes().clone(), u64::MAX)?;
    Ok((again.with_image(Some(image.clone())), image))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ActorId;
    use crate::testing::programs;
    use crate::verify::ModesError;

    /// A program, another with one blob more and without contingencies, and the first once more.
    fn three_modes(first: Program) -> Modes {
        let mut second = first.clone();
        second.graph.name = "another".to_owned();
        second.blobs.push(Bytes::from_static(b"of the second mode"));
        let mode = |name: &str, program| Mode {
            name: name.to_owned(),
            program,
        };
        Modes {
            list: vec![
                mode("scan", first.clone()),
                mode("track", second),
                mode("idle", first),
            ],
            changes: vec![(0, 1), (1, 0), (1, 2)],
            decision: None,
        }
    }

    #[test]
    fn modes_come_back_as_they_were_and_damage_is_noticed() {
        for program in programs::all() {
            let modes = three_modes(program);
            let verified = verify_modes(modes.clone()).expect("valid");
            let bytes = encode_modes(&verified, &Meta::new());
            let decoded = decode_modes(bytes.clone().into(), MAX_STRUCTURE_BYTES);
            assert_eq!(decoded, Ok(modes));
            assert_eq!(
                super::super::decode(bytes.clone().into()),
                Err(BundleError::Modes)
            );
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << (at % 8);
                let decoded = decode_modes(damaged.into(), MAX_STRUCTURE_BYTES);
                assert!(decoded.is_err(), "byte {at}");
                let short = Bytes::copy_from_slice(&bytes[..at]);
                assert!(
                    decode_modes(short, MAX_STRUCTURE_BYTES).is_err(),
                    "{at} bytes"
                );
            }
        }
    }

    #[test]
    fn a_program_without_modes_is_the_same_bundle() {
        let program = programs::window();
        let verified = crate::verify::verify(program.clone()).expect("valid");
        let modes = VerifiedModes::from(verified);
        let bytes = encode_modes(&modes, &Meta::new());
        assert_eq!(bytes, super::super::encode(&program));
        let decoded = decode_modes(bytes.into(), MAX_STRUCTURE_BYTES).expect("a bundle");
        assert_eq!(decoded.list.len(), 1);
        assert_eq!(decoded.list[0].program, program);
    }

    #[test]
    fn modes_that_cannot_follow_each_other_are_refused() {
        let whole = three_modes(programs::window());
        let refusal = |change: &dyn Fn(&mut Modes)| {
            let mut modes = whole.clone();
            change(&mut modes);
            verify_modes(modes).expect_err("refused")
        };
        let renamed = refusal(&|modes| modes.list[2].name = "scan".to_owned());
        assert!(matches!(
            renamed,
            ModesError::DuplicateName {
                first: 0,
                second: 2,
                ..
            }
        ));
        let hidden = refusal(&|modes| modes.list[1].name = "a\u{7f}".to_owned());
        assert_eq!(hidden, ModesError::Name { mode: 1 });
        let nameless = refusal(&|modes| modes.list[0].name.clear());
        assert_eq!(nameless, ModesError::Name { mode: 0 });
        let none = refusal(&|modes| modes.list.clear());
        assert_eq!(none, ModesError::Count { found: 0 });
        let unknown = refusal(&|modes| modes.changes.push((2, 3)));
        assert!(matches!(unknown, ModesError::UnknownChange { to: 3, .. }));
        for void in [(1, 1), (0, 1)] {
            let found = refusal(&|modes| modes.changes.push(void));
            assert!(matches!(found, ModesError::VoidChange { change: 3, .. }));
        }
        let broken = refusal(&|modes| modes.list[1].program.plans.clear());
        assert!(matches!(broken, ModesError::Program { name, .. } if name == "track"));
        let machine = refusal(&|modes| {
            for device in &mut modes.list[1].program.machine.devices {
                device.name.push('x');
            }
        });
        assert!(matches!(machine, ModesError::Machine { .. }));
        let streams = refusal(&|modes| {
            let graph = &mut modes.list[2].program.graph;
            graph.actors[ActorId(0)].name = "elsewhere".to_owned();
        });
        assert!(matches!(streams, ModesError::Streams { .. }), "{streams}");
    }
}
