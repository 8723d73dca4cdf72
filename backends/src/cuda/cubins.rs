//! Kernels assembled beforehand, by NVIDIA's `ptxas`: what a bundle has of them, so that a run need not wait until the
//! driver has compiled what was printed. Must not know the driver.
//!
//! A kernel is looked up by a key of its text. What is not found for the device's architecture, has not the form of
//! an object file, or is refused by the driver, is compiled by the driver as if there were no bundle.

use std::collections::BTreeMap;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;
use zbmd_ir::Program;

use super::device::PROGRAMMATIC;
use super::ptx;
use crate::kernels::KernelPlan;

/// What `ptxas` calls an architecture.
const PREFIX: &str = "sm_";
/// What bundles call the language of these objects, before the architecture.
const FORMAT: &str = "cubin ";
/// `EM_CUDA` of an object's header.
const MACHINE: u16 = 190;

/// The compute capability of an architecture, such as 9.0 of `sm_90`.
pub fn capability(arch: &str) -> Option<(u32, u32)> {
    let digits = arch.strip_prefix(PREFIX)?;
    let (major, minor) = digits.split_at_checked(digits.len().checked_sub(1)?)?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// What bundles call objects for an architecture.
pub fn format(arch: &str) -> String {
    format!("{FORMAT}{arch}")
}

/// Whether devices of an architecture can launch kernels before those that they wait for have ended.
pub fn launches_early(arch: &str) -> bool {
    capability(arch) >= Some(PROGRAMMATIC)
}

/// The texts of an actor's kernels, by key: to be assembled and kept in a bundle. With `early` for devices that launch
/// kernels before those that they wait for have ended.
pub fn texts(plan: &KernelPlan, early: bool, into: &mut BTreeMap<u128, String>) {
    for kernel in plan.kernels() {
        let (text, _) = ptx::print(kernel, early);
        into.insert(key(&text), text);
    }
}

fn key(text: &str) -> u128 {
    xxh3_128(text.as_bytes())
}

/// The objects of a program's kernels for one device, by key.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubins(BTreeMap<u128, Bytes>);

impl Cubins {
    /// Those that a device of that capability runs: of its own, or of an older one of the same first number.
    pub(super) fn of(program: &Program, (major, minor): (u32, u32)) -> Self {
        let mut best: BTreeMap<u128, (u32, Bytes)> = BTreeMap::new();
        for code in &program.kernels {
            let arch = code.format.strip_prefix(FORMAT).and_then(capability);
            let Some((_, fits)) = arch.filter(|a| a.0 == major && a.1 <= minor) else {
                continue;
            };
            if best.get(&code.key).is_none_or(|(known, _)| *known < fits) {
                best.insert(code.key, (fits, program.blobs[code.blob].clone()));
            }
        }
        Self(
            best.into_iter()
                .map(|(key, (_, bytes))| (key, bytes))
                .collect(),
        )
    }

    /// The object of a kernel, if it has the form of one.
    pub(super) fn find(&self, text: &str) -> Option<&[u8]> {
        // Hashing is for those who have something to find.
        let bytes = if self.0.is_empty() {
            None
        } else {
            self.0.get(&key(text))
        };
        bytes.map(|b| &**b).filter(|bytes| is_whole(bytes))
    }
}

/// Whether all parts that an object's headers name lie within it: drivers are told no length. What the instructions
/// say is between the assembler and the driver.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    /// 64 bits, the lower byte first.
    const IDENT: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
    const NO_BITS: u32 = 8;
    let word = |at: usize, size: usize| {
        let part = bytes.get(at..at.checked_add(size)?)?;
        let mut all = [0; 8];
        all[..size].copy_from_slice(part);
        Some(u64::from_le_bytes(all))
    };
    let fits = |at: u64, len: u64| {
        at.checked_add(len)
            .is_some_and(|end| end <= bytes.len() as u64)
    };
    // Where the table's place, an entry's size and their number are; the least size; where an entry has its place and
    // its size.
    let table = |[place, size, count]: [usize; 3], least: u64, [at, len]: [usize; 2]| {
        let (first, each, count) = (word(place, 8)?, word(size, 2)?, word(count, 2)?);
        if count > 0 && (each < least || !fits(first, each * count)) {
            return None;
        }
        (0..count).try_for_each(|i| {
            let entry = (first + i * each) as usize;
            let is_empty = least == 64 && word(entry + 4, 4)? == u64::from(NO_BITS);
            (is_empty || fits(word(entry + at, 8)?, word(entry + len, 8)?)).then_some(())
        })
    };
    bytes.starts_with(&IDENT)
        && word(18, 2) == Some(MACHINE.into())
        && table([32, 54, 56], 56, [8, 32]).is_some()
        && table([40, 58, 60], 64, [24, 32]).is_some()
}

/// An object with a text in it instead of instructions, which a device in software takes.
#[cfg(any(test, feature = "testing"))]
pub fn in_software(text: &str) -> Vec<u8> {
    let mut object = vec![0; 64];
    object[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
    object[18..20].copy_from_slice(&MACHINE.to_le_bytes());
    let mut section = [0; 64];
    section[4] = 1;
    section[24..32].copy_from_slice(&128_u64.to_le_bytes());
    section[32..40].copy_from_slice(&(text.len() as u64).to_le_bytes());
    object[40..48].copy_from_slice(&64_u64.to_le_bytes());
    object[58..60].copy_from_slice(&64_u16.to_le_bytes());
    object[60..62].copy_from_slice(&1_u16.to_le_bytes());
    object.extend(section);
    object.extend(text.as_bytes());
    object
}

#[cfg(test)]
mod tests {
    use zbmd_ir::{BlobId, KernelCode};

    use super::*;

    #[test]
    fn only_whole_objects_are_taken() {
        let object = in_software("code");
        assert!(is_whole(&object));
        assert!((0..object.len()).all(|len| !is_whole(&object[..len])));
        // Class, machine, the table's place, an entry's size, their number; the section's place and size.
        for at in [4, 18, 40 + 7, 58, 60, 64 + 24 + 7, 64 + 32 + 1] {
            let mut spoiled = object.clone();
            spoiled[at] ^= 0x7f;
            assert!(!is_whole(&spoiled), "byte {at}");
        }
    }

    #[test]
    fn a_device_takes_the_newest_that_it_runs() {
        assert_eq!(capability("sm_90"), Some((9, 0)));
        assert_eq!(capability("sm_103"), Some((10, 3)));
        assert!(
            ["sm_", "sm_x", "90", "sm_9é"]
                .iter()
                .all(|arch| capability(arch).is_none())
        );
        let mut program = Program::default();
        for arch in ["sm_80", "sm_86", "sm_90"] {
            let blob = program.blobs.push_and_get_key(in_software(arch).into());
            let code = |text: &str| KernelCode {
                format: format(arch),
                key: key(text),
                blob,
            };
            program.kernels.push(code("text"));
        }
        program.kernels.push(KernelCode {
            format: "spirv".to_owned(),
            key: key("text"),
            blob: BlobId(0),
        });
        for (device, arch) in [
            ((8, 0), Some("sm_80")),
            ((8, 9), Some("sm_86")),
            ((9, 0), Some("sm_90")),
            ((7, 5), None),
            ((10, 0), None),
        ] {
            let cubins = Cubins::of(&program, device);
            let want = arch.map(in_software);
            assert_eq!(cubins.find("text"), want.as_deref(), "{device:?}");
            assert_eq!(cubins.find("another"), None);
        }
    }
}
