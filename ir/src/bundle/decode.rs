//! Reads a bundle that may be damaged or hostile. What it gives is well formed but not verified.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::differences::{Base, Difference, check_sizes};
use super::hosts::HostsRecord;
use super::measured::{MemoryBudget, take_from_bytes};
use super::{ALIGN, BundleError, ENTRY_BYTES, HEADER_BYTES, MAGIC, Meta, Section, VERSION};
use crate::{BlobId, Contingencies, DeviceId, Machine, Plan, PlanId, Program, TiVec, Tier, limits};

/// Reads a program; its blobs share the memory of `bytes`. Not verified yet.
///
/// # Errors
/// The first thing that is not as a bundle must be; [`BundleError::Memory`] if its structure, which is everything but
/// the blobs, takes more than [`limits::MAX_STRUCTURE_BYTES`] of memory.
pub fn decode(bytes: Bytes) -> Result<Program, BundleError> {
    decode_within(bytes, limits::MAX_STRUCTURE_BYTES)
}

/// [`decode`] with another limit on the memory that the structure takes, in bytes.
///
/// # Errors
/// As [`decode`].
pub fn decode_within(bytes: Bytes, max_structure_bytes: u64) -> Result<Program, BundleError> {
    let sections = SectionList::read(&bytes, max_structure_bytes)?;
    if sections.modes().is_some() {
        return Err(BundleError::Modes);
    }
    let mut program = read_program(&sections, bytes.len() as u64)?;
    let hosts: Option<HostsRecord> = sections.read_optional(Section::Hosts)?;
    let mut alike_hosts = HostsRecord::alike_of_modes(hosts, 1)?;
    program.contingencies.alike_hosts = alike_hosts.pop().unwrap_or_default();
    Ok(program)
}

/// The program that the first sections hold, with all blobs of the bundle, and without what the section of hosts says of
/// its contingencies.
pub(super) fn read_program(
    sections: &SectionList,
    bundle_bytes: u64,
) -> Result<Program, BundleError> {
    // Meta is read for its errors alone: a bundle is refused as a whole.
    sections.read_section::<Meta>(Section::Meta)?;
    let blob_lengths: Vec<u64> = sections.read_section(Section::BlobLengths)?;

    let plans = sections.read_section(Section::Plans)?;
    let table = sections.read_section(Section::Contingencies)?;
    let (plans, contingencies) = join(plans, table, bundle_bytes, &sections.budget)?;
    let mut machine: Machine = sections.read_section(Section::Machine)?;
    let hosts: Option<HostsRecord> = sections.read_optional(Section::Hosts)?;
    machine.hosts = hosts.map(|record| record.hosts).unwrap_or_default();
    let tiers: Option<BTreeMap<DeviceId, Tier>> = sections.read_optional(Section::Tiers)?;
    if tiers.as_ref().is_some_and(BTreeMap::is_empty) {
        // Nothing is stored by leaving the section out, so that a program has one file.
        return Err(BundleError::Content {
            section: Section::Tiers,
            message: "no tiers".to_owned(),
        });
    }
    machine.tiers = tiers.unwrap_or_default();
    Ok(Program {
        graph: sections.read_section(Section::Graph)?,
        machine,
        plans,
        contingencies,
        blobs: split_blobs(&blob_lengths, sections.bytes(Section::Blobs))?,
        kernels: sections.read_section(Section::Kernels)?,
    })
}

/// The sections of a bundle, and the memory that reading them may take.
pub(super) struct SectionList {
    /// In the order of the file.
    list: Vec<(Section, Bytes)>,
    budget: MemoryBudget,
}

impl SectionList {
    pub(super) fn read(file: &Bytes, max_structure_bytes: u64) -> Result<Self, BundleError> {
        Ok(Self {
            list: read_sections(file)?,
            budget: MemoryBudget::new(max_structure_bytes),
        })
    }

    pub(super) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    fn modes(&self) -> Option<&Bytes> {
        self.find(Section::Modes)
    }

    fn find(&self, section: Section) -> Option<&Bytes> {
        let mut list = self.list.iter();
        list.find(|(kind, _)| *kind == section)
            .map(|(_, bytes)| bytes)
    }

    /// What the section of modes holds, if there is one.
    pub(super) fn read_modes<T: DeserializeOwned>(&self) -> Result<Option<T>, BundleError> {
        self.read_optional(Section::Modes)
    }

    /// What a section holds that not every bundle has.
    pub(super) fn read_optional<T: DeserializeOwned>(
        &self,
        section: Section,
    ) -> Result<Option<T>, BundleError> {
        let bytes = self.find(section);
        bytes
            .map(|bytes| read_section(section, bytes, &self.budget))
            .transpose()
    }

    /// One of the sections that every bundle has.
    fn bytes(&self, section: Section) -> &Bytes {
        &self.list[section as usize - 1].1
    }

    fn read_section<T: DeserializeOwned>(&self, section: Section) -> Result<T, BundleError> {
        read_section(section, self.bytes(section), &self.budget)
    }
}

/// The plans that are written out, then those that are differences from the first.
pub(super) fn join(
    mut plans: TiVec<PlanId, Plan>,
    (contingencies, differences): (Contingencies, Vec<Difference>),
    bundle_bytes: u64,
    budget: &MemoryBudget,
) -> Result<(TiVec<PlanId, Plan>, Contingencies), BundleError> {
    if differences.is_empty() {
        return Ok((plans, contingencies));
    }
    let Some(main) = plans.first() else {
        let message = format!(
            "{} plans are differences from plan 0, of 0 plans",
            differences.len()
        );
        return Err(BundleError::Content {
            section: Section::Contingencies,
            message,
        });
    };

    let plan_count = plans.len() + differences.len();
    if plan_count > limits::MAX_PLANS {
        let message = format!("{plan_count} plans, at most {}", limits::MAX_PLANS);
        return Err(BundleError::Content {
            section: Section::Contingencies,
            message,
        });
    }

    // All are bounded before the first is unpacked: a small file may stand for a lot of memory.
    check_sizes(&differences, bundle_bytes)?;
    let main_base = Base::new(main);
    for difference in &differences {
        plans.push(main_base.unpack(difference, budget)?);
    }
    Ok((plans, contingencies))
}

/// Reads the meta strings alone.
///
/// # Errors
/// See [`decode`].
pub fn decode_meta(bytes: &Bytes) -> Result<Meta, BundleError> {
    let sections = SectionList::read(bytes, limits::MAX_STRUCTURE_BYTES)?;
    sections.read_section(Section::Meta)
}

/// Whether the first bytes of a file of so many bytes can be those of a bundle. Says nothing of what is too short to
/// tell: [`decode`] does.
pub(super) fn check_start(start: &[u8], file_bytes: u64) -> Result<(), BundleError> {
    if start.len() < HEADER_BYTES {
        return Ok(());
    }
    if !start.starts_with(&MAGIC) {
        return Err(BundleError::Magic {
            found: [start[0], start[1], start[2], start[3]],
        });
    }

    let version = u32_at(start, 4);
    if version != VERSION {
        return Err(BundleError::Version { found: version });
    }

    // A file that is still being written is shorter than it says.
    let length = u64_at(start, 16);
    if length != file_bytes {
        return Err(BundleError::Length {
            expected: length,
            found: file_bytes,
        });
    }
    Ok(())
}

/// Whether the first bytes of a bundle, its section table among them, name tiers. Nothing of them is checked.
pub(super) fn names_tiers(start: &[u8]) -> bool {
    let count = u32_at(start, 8) as usize;
    let table = (0..count.min(Section::ALL.len() + Section::OPTIONAL.len()))
        .map(|index| u32_at(start, HEADER_BYTES + ENTRY_BYTES * index));
    table.into_iter().any(|kind| kind == Section::Tiers as u32)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

fn check_zeros(bytes: &[u8], from: u64, to: u64) -> Result<(), BundleError> {
    let range = bytes.get(from as usize..to as usize).unwrap_or_default();
    match (from..).zip(range).find(|(_, byte)| **byte != 0) {
        Some((offset, &found)) => Err(BundleError::Padding { offset, found }),
        None => Ok(()),
    }
}

fn check_sum(what: impl Into<String>, found: u64, expected: u64) -> Result<(), BundleError> {
    if found == expected {
        return Ok(());
    }
    Err(BundleError::Checksum {
        what: what.into(),
        found,
        expected,
    })
}

/// Checks header, table, padding and checksums; the sections in the order of the file.
pub(super) fn read_sections(file: &Bytes) -> Result<Vec<(Section, Bytes)>, BundleError> {
    let found = file.len() as u64;
    check_length(file, "the magic and version", 8)?;
    if !file.starts_with(&MAGIC) {
        return Err(BundleError::Magic {
            found: [file[0], file[1], file[2], file[3]],
        });
    }

    let version = u32_at(file, 4);
    if version != VERSION {
        return Err(BundleError::Version { found: version });
    }
    check_length(file, "the header", HEADER_BYTES)?;
    let count = u32_at(file, 8);
    let expected = Section::ALL.len() as u32;
    let optional = (count as usize).checked_sub(Section::ALL.len());
    let Some(optional) = optional.filter(|optional| *optional <= Section::OPTIONAL.len()) else {
        return Err(BundleError::Sections {
            found: count,
            expected,
        });
    };

    let body_offset = HEADER_BYTES + ENTRY_BYTES * count as usize;
    check_length(file, "the section table", body_offset)?;
    // Which of the optional sections are there, their own kinds say; others are refused where they are read.
    let optional_entries = (Section::ALL.len()..).take(optional);
    let mut kinds: Vec<u32> = optional_entries
        .map(|index| u32_at(file, HEADER_BYTES + ENTRY_BYTES * index))
        .collect();
    let is_known = |kind: &u32| Section::OPTIONAL.iter().any(|known| *known as u32 == *kind);
    kinds.retain(is_known);
    kinds.dedup();
    let mut sections = Section::list(|section| kinds.contains(&(section as u32)));
    let mut missing = Section::OPTIONAL.into_iter();
    while sections.len() < count as usize {
        // One that is unknown or there twice: the first that could stand in its place is expected.
        sections.extend(missing.next());
    }

    // The checksum covers the header around itself, and the table.
    let mut hasher = Xxh3Default::new();
    hasher.update(&file[..24]);
    hasher.update(&file[HEADER_BYTES..body_offset]);
    check_sum(
        "header and section table",
        hasher.digest(),
        u64_at(file, 24),
    )?;
    check_zeros(file, 12, 16)?;
    let stated_bytes = u64_at(file, 16);
    if stated_bytes != found {
        return Err(BundleError::Length {
            expected: stated_bytes,
            found,
        });
    }

    // Sections follow each other without gaps but those of the alignment.
    let mut section_end = body_offset as u64;
    let mut found_sections = Vec::with_capacity(sections.len());
    for (index, section) in sections.iter().enumerate() {
        let (bytes, next) = read_entry(file, index, *section, section_end)?;
        found_sections.push((*section, bytes));
        section_end = next;
    }

    if section_end != found {
        return Err(BundleError::Length {
            expected: section_end,
            found,
        });
    }

    Ok(found_sections)
}

fn check_length(file: &Bytes, what: &'static str, needed: usize) -> Result<(), BundleError> {
    let found = file.len() as u64;
    let needed = needed as u64;
    if found < needed {
        return Err(BundleError::Truncated {
            what,
            needed,
            found,
        });
    }
    Ok(())
}

/// The section at `index` of the table, which must follow byte `end`; and its own end.
fn read_entry(
    file: &Bytes,
    index: usize,
    section: Section,
    end: u64,
) -> Result<(Bytes, u64), BundleError> {
    let found = file.len() as u64;
    let entry_offset = HEADER_BYTES + ENTRY_BYTES * index;
    let section_kind = u32_at(file, entry_offset);
    if section_kind != section as u32 {
        return Err(BundleError::Kind {
            index,
            found: section_kind,
            expected: section,
        });
    }

    check_zeros(file, entry_offset as u64 + 4, entry_offset as u64 + 8)?;
    let offset = u64_at(file, entry_offset + 8);
    let length = u64_at(file, entry_offset + 16);
    let sum = u64_at(file, entry_offset + 24);

    // `end` is at most the file's length, which is a usize and in practice far below 2^63.
    let expected = end.next_multiple_of(ALIGN);
    if offset != expected {
        return Err(BundleError::Offset {
            section,
            found: offset,
            expected,
        });
    }

    let end_offset = offset.saturating_add(length);
    if end_offset > found {
        return Err(BundleError::Truncated {
            what: "a section",
            needed: end_offset,
            found,
        });
    }

    check_zeros(file, end, offset)?;
    let bytes = file.slice(offset as usize..end_offset as usize);
    check_sum(format!("section {section}"), xxh3_64(&bytes), sum)?;
    Ok((bytes, end_offset))
}

/// Postcard makes room for at most 1 MiB before it has read the elements of a sequence, and nesting is bounded where
/// types hold themselves: a hostile count ends as an error, not as an allocation.
fn read_section<T: DeserializeOwned>(
    section: Section,
    bytes: &[u8],
    budget: &MemoryBudget,
) -> Result<T, BundleError> {
    match take_from_bytes::<T>(bytes, budget) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(BundleError::Trailing {
            section,
            extra: rest.len() as u64,
        }),
        Err(_) if budget.is_overrun() => Err(BundleError::Memory {
            section,
            limit: budget.limit(),
        }),
        Err(error) => Err(BundleError::Content {
            section,
            message: error.to_string(),
        }),
    }
}

/// All blobs of a bundle.
pub(super) fn read_blobs(sections: &SectionList) -> Result<TiVec<BlobId, Bytes>, BundleError> {
    let blob_lengths: Vec<u64> = sections.read_section(Section::BlobLengths)?;
    split_blobs(&blob_lengths, sections.bytes(Section::Blobs))
}

fn split_blobs(lengths: &[u64], section: &Bytes) -> Result<TiVec<BlobId, Bytes>, BundleError> {
    let found = section.len() as u64;
    let mut blob_end: u128 = 0;
    for &length in lengths {
        blob_end = blob_end.next_multiple_of(ALIGN.into()) + u128::from(length);
    }
    if blob_end != u128::from(found) {
        return Err(BundleError::BlobBytes {
            blobs: lengths.len(),
            needed: blob_end,
            found,
        });
    }
    // All sums are at most `found` from here on.
    let mut blobs = TiVec::with_capacity(lengths.len());
    let mut blob_end: u64 = 0;
    for &length in lengths {
        let blob_start = blob_end.next_multiple_of(ALIGN);
        check_zeros(section, blob_end, blob_start)?;
        blob_end = blob_start + length;
        blobs.push(section.slice(blob_start as usize..blob_end as usize));
    }

    Ok(blobs)
}
