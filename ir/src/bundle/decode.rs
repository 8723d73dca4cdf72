//! Reads a bundle that may be damaged or hostile. What it gives is well formed but not verified.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::differences::{Base, Difference, check_sizes};
use super::measured::{MemoryBudget, take_from_bytes};
use super::{ALIGN, BundleError, ENTRY_BYTES, HEADER_BYTES, MAGIC, Meta, Section, VERSION};
use crate::{BlobId, Contingencies, Plan, PlanId, Program, TiVec, limits};

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
    let sections = sections(&bytes)?;
    let find = |section: Section| sections[section as usize - 1].clone();
    let budget = MemoryBudget::new(max_structure_bytes);
    read::<Meta>(Section::Meta, &find(Section::Meta), &budget)?;

    let lengths: Vec<u64> = read(Section::BlobLengths, &find(Section::BlobLengths), &budget)?;
    let plans = read(Section::Plans, &find(Section::Plans), &budget)?;
    let table = read(
        Section::Contingencies,
        &find(Section::Contingencies),
        &budget,
    )?;
    let (plans, contingencies) = join(plans, table, bytes.len() as u64, &budget)?;

    Ok(Program {
        graph: read(Section::Graph, &find(Section::Graph), &budget)?,
        machine: read(Section::Machine, &find(Section::Machine), &budget)?,
        plans,
        contingencies,
        blobs: blobs(&lengths, &find(Section::Blobs))?,
        kernels: read(Section::Kernels, &find(Section::Kernels), &budget)?,
    })
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
    let count = plans.len() + differences.len();
    if count > limits::MAX_PLANS {
        let message = format!("{count} plans, at most {}", limits::MAX_PLANS);
        return Err(BundleError::Content {
            section: Section::Contingencies,
            message,
        });
    }
    check_sizes(&differences, bundle_bytes)?;
    let base = Base::new(main);
    for difference in &differences {
        plans.push(base.unpack(difference, budget)?);
    }
    Ok((plans, contingencies))
}

/// Reads the meta strings alone.
///
/// # Errors
/// See [`decode`].
pub fn decode_meta(bytes: &Bytes) -> Result<Meta, BundleError> {
    let budget = MemoryBudget::new(limits::MAX_STRUCTURE_BYTES);
    let sections = sections(bytes)?;
    read(
        Section::Meta,
        &sections[Section::Meta as usize - 1],
        &budget,
    )
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

    let length = u64_at(start, 16);
    if length != file_bytes {
        return Err(BundleError::Length {
            expected: length,
            found: file_bytes,
        });
    }
    Ok(())
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

fn zero(bytes: &[u8], from: u64, to: u64) -> Result<(), BundleError> {
    let range = bytes.get(from as usize..to as usize).unwrap_or_default();
    match (from..).zip(range).find(|(_, byte)| **byte != 0) {
        Some((offset, &found)) => Err(BundleError::Padding { offset, found }),
        None => Ok(()),
    }
}

fn checksum(what: impl Into<String>, found: u64, expected: u64) -> Result<(), BundleError> {
    if found == expected {
        return Ok(());
    }
    Err(BundleError::Checksum {
        what: what.into(),
        found,
        expected,
    })
}

/// Checks header, table, padding and checksums; the sections in the order of [`Section::ALL`].
pub(super) fn sections(file: &Bytes) -> Result<Vec<Bytes>, BundleError> {
    let found = file.len() as u64;
    let enough = |what, needed: usize| {
        let needed = needed as u64;
        if found < needed {
            Err(BundleError::Truncated {
                what,
                needed,
                found,
            })
        } else {
            Ok(())
        }
    };
    enough("the magic and version", 8)?;
    if !file.starts_with(&MAGIC) {
        return Err(BundleError::Magic {
            found: [file[0], file[1], file[2], file[3]],
        });
    }
    let version = u32_at(file, 4);
    if version != VERSION {
        return Err(BundleError::Version { found: version });
    }
    enough("the header", HEADER_BYTES)?;
    let (count, expected) = (u32_at(file, 8), Section::ALL.len() as u32);
    if count != expected {
        return Err(BundleError::Sections {
            found: count,
            expected,
        });
    }
    let body = HEADER_BYTES + ENTRY_BYTES * Section::ALL.len();
    enough("the section table", body)?;
    let mut hasher = Xxh3Default::new();
    hasher.update(&file[..24]);
    hasher.update(&file[HEADER_BYTES..body]);
    checksum(
        "header and section table",
        hasher.digest(),
        u64_at(file, 24),
    )?;
    zero(file, 12, 16)?;
    let length = u64_at(file, 16);
    if length != found {
        return Err(BundleError::Length {
            expected: length,
            found,
        });
    }
    let mut end = body as u64;
    let mut list = Vec::with_capacity(Section::ALL.len());
    for (index, section) in Section::ALL.into_iter().enumerate() {
        let (bytes, next) = entry(file, index, section, end)?;
        list.push(bytes);
        end = next;
    }
    if end != found {
        return Err(BundleError::Length {
            expected: end,
            found,
        });
    }
    Ok(list)
}

/// The section at `index` of the table, which must follow byte `end`; and its own end.
fn entry(
    file: &Bytes,
    index: usize,
    section: Section,
    end: u64,
) -> Result<(Bytes, u64), BundleError> {
    let found = file.len() as u64;
    let at = HEADER_BYTES + ENTRY_BYTES * index;
    let kind = u32_at(file, at);
    if kind != section as u32 {
        return Err(BundleError::Kind {
            index,
            found: kind,
            expected: section as u32,
        });
    }
    zero(file, at as u64 + 4, at as u64 + 8)?;
    let (offset, length, sum) = (
        u64_at(file, at + 8),
        u64_at(file, at + 16),
        u64_at(file, at + 24),
    );
    // `end` is at most the file's length, which is a usize and in practice far below 2^63.
    let expected = end.next_multiple_of(ALIGN);
    if offset != expected {
        return Err(BundleError::Offset {
            section,
            found: offset,
            expected,
        });
    }
    let needed = offset.saturating_add(length);
    if needed > found {
        return Err(BundleError::Truncated {
            what: "a section",
            needed,
            found,
        });
    }
    zero(file, end, offset)?;
    let bytes = file.slice(offset as usize..needed as usize);
    checksum(format!("section {section}"), xxh3_64(&bytes), sum)?;
    Ok((bytes, needed))
}

/// Postcard makes room for at most 1 MiB before it has read the elements of a sequence, and nesting is bounded where
/// types hold themselves: a hostile count ends as an error, not as an allocation.
fn read<T: DeserializeOwned>(
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

fn blobs(lengths: &[u64], section: &Bytes) -> Result<TiVec<BlobId, Bytes>, BundleError> {
    let found = section.len() as u64;
    let mut end: u128 = 0;
    for &length in lengths {
        end = end.next_multiple_of(ALIGN.into()) + u128::from(length);
    }
    if end != u128::from(found) {
        return Err(BundleError::BlobBytes {
            blobs: lengths.len(),
            needed: end,
            found,
        });
    }
    // All sums are at most `found` from here on.
    let mut blobs = TiVec::with_capacity(lengths.len());
    let mut end: u64 = 0;
    for &length in lengths {
        let start = end.next_multiple_of(ALIGN);
        zero(section, end, start)?;
        end = start + length;
        blobs.push(section.slice(start as usize..end as usize));
    }
    Ok(blobs)
}
