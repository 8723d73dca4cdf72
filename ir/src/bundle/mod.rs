//! The bundle: one file with everything the executor needs, and nothing that depends on where or when it was made.
//!
//! All integers are little-endian. Sections stand in the order of the table, each at the first multiple of 64 after
//! the one before; bytes between them are 0; the file ends with the last one. So there is no byte without a
//! meaning, and one file that the compiler writes for a program.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `ZBMD` |
//! | 4..8 | format version |
//! | 8..12 | number of sections |
//! | 12..16 | 0 |
//! | 16..24 | length of the file |
//! | 24..32 | checksum of bytes 0..24 and the section table |
//! | 32.. | section table, 32 bytes each: kind (u32), 0 (u32), offset, length, checksum of its bytes |
//!
//! | kind | section |
//! |---|---|
//! | 1 | meta: names and values for people, postcard |
//! | 2 | graph, postcard |
//! | 3 | machine, postcard |
//! | 4 | plans, postcard; only plan 0 where there are contingencies |
//! | 5 | contingencies, postcard: the table, and the other plans as differences from plan 0 |
//! | 6 | kernels of GPUs, postcard: format, key and blob of each |
//! | 7 | lengths of the blobs, postcard |
//! | 8 | the blobs, each at the next multiple of 64 |
//! | 9 | modes, postcard; only where there are several: names, changes, and all but machine and blobs of each further one |
//! | 10 | hosts, postcard; only where the machine has some: the hosts, and those that are alike of each mode |
//! | 11 | tiers of devices, postcard; only where the machine has some |
//!
//! Checksums are XXH3 of 64 bits (xxhash-rust: kept, no dependencies, tens of GB/s, so that gigabytes of weights can
//! be checked at every load; a CRC of 32 bits is too short to name a graph by). They find accidents; an attacker can
//! make them fit, which is why nothing here is believed: every number is checked before use, and [`open`] verifies.
//! Kernels are code, and no more than their form is checked: who runs a bundle on a GPU trusts whoever made it.

mod decode;
mod differences;
mod encode;
mod file;
mod hosts;
mod image;
mod measured;
mod modes;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing {
    //! What a mutator needs to know of differences.

    pub(crate) use super::differences::{difference, relative_form as relative};
}
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use self::decode::{decode, decode_meta, decode_within};
pub use self::encode::{encode, encode_with};
pub use self::file::{
    OpenError, image_of, open, open_meta, open_with_meta, open_within, write, write_to, write_with,
};
pub use self::image::Image;
pub use self::modes::{
    decode_modes, encode_modes, image_of_modes, modes_of_bytes, open_modes, open_modes_within,
    with_image, write_modes,
};

/// First bytes of every bundle.
pub const MAGIC: [u8; 4] = *b"ZBMD";
/// The format version that this crate writes, and the only one it reads.
pub const VERSION: u32 = 10;

/// Facts for people: the compiler's version, where the model came from. Nothing depends on them.
pub type Meta = BTreeMap<String, String>;

const HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 32;
/// Alignment of sections and blobs in the file: [`crate::limits::ALIGN_BYTES`], also once mapped.
const ALIGN: u64 = crate::limits::ALIGN_BYTES;

/// A part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Section {
    /// [`Meta`].
    Meta = 1,
    /// The graph.
    Graph = 2,
    /// The machine.
    Machine = 3,
    /// All plans, or plan 0 alone.
    Plans = 4,
    /// [`crate::Contingencies`], and the plans that are no plan 0.
    Contingencies = 5,
    /// [`crate::KernelCode`].
    Kernels = 6,
    /// Length of each blob.
    BlobLengths = 7,
    /// The blobs.
    Blobs = 8,
    /// [`crate::Modes`] beyond the first; only where there are several.
    Modes = 9,
    /// [`crate::Host`], and which are alike; only where there are some.
    Hosts = 10,
    /// [`crate::Tier`]s by device; only where there are some.
    Tiers = 11,
}

impl Section {
    /// Every section that each bundle has, in the order of the file.
    pub const ALL: [Section; 8] = [
        Section::Meta,
        Section::Graph,
        Section::Machine,
        Section::Plans,
        Section::Contingencies,
        Section::Kernels,
        Section::BlobLengths,
        Section::Blobs,
    ];

    /// Sections that a bundle has only where it needs them, in the order of the file.
    pub const OPTIONAL: [Section; 3] = [Section::Modes, Section::Hosts, Section::Tiers];

    /// The sections of a bundle with those optional ones that `has` wants, in the order of the file.
    pub fn list(has: impl Fn(Section) -> bool) -> Vec<Section> {
        let optional = Self::OPTIONAL.into_iter().filter(|section| has(*section));
        Self::ALL.into_iter().chain(optional).collect()
    }
}

/// Why bytes are no bundle, or not one for this version.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum BundleError {
    /// It is something else.
    #[error("starts with {found:02x?}, a bundle with {MAGIC:02x?} (`ZBMD`)")]
    Magic { found: [u8; 4] },
    /// Made by another version of the compiler.
    #[error("format version {found}, this program reads {VERSION}: compile the model again")]
    Version { found: u32 },
    /// Its structure takes more memory than the reader gives it.
    #[error(
        "its {section} and what comes before take more memory than the {limit} bytes that are allowed for structure: allow more \
         if you trust the bundle (`--max-structure MIB`, or `bundle::open_within`)"
    )]
    Memory { section: Section, limit: u64 },
    /// Too short for what it says it holds.
    #[error("{what} needs {needed} bytes, the file has {found}")]
    Truncated {
        what: &'static str,
        needed: u64,
        found: u64,
    },
    /// Bytes after the end.
    #[error("the file should end at byte {expected}, has {found}")]
    Length { expected: u64, found: u64 },
    /// Too few or too many sections.
    #[error("{found} sections, must be {expected}")]
    Sections { found: u32, expected: u32 },
    /// Several programs where one is wanted.
    #[error("it has several modes, and this needs a bundle without")]
    Modes,
    /// An unknown section, or one out of order.
    #[error("section {index} is of kind {found}, must be {} ({expected})", *expected as u32)]
    Kind {
        index: usize,
        found: u32,
        expected: Section,
    },
    /// A section overlaps another or leaves a gap.
    #[error("section {section} starts at byte {found}, must start at {expected}")]
    Offset {
        section: Section,
        found: u64,
        expected: u64,
    },
    /// Bytes were changed since the bundle was made.
    #[error("{what}: checksum {found:016x}, the file says {expected:016x}: it is damaged")]
    Checksum {
        what: String,
        found: u64,
        expected: u64,
    },
    /// A reserved or padding byte is not 0.
    #[error("byte {offset} must be 0, is {found}")]
    Padding { offset: u64, found: u8 },
    /// A section's bytes are not what they should be.
    #[error("section {section}: {message}")]
    Content { section: Section, message: String },
    /// A section goes on after its data.
    #[error("section {section} has {extra} bytes after its data")]
    Trailing { section: Section, extra: u64 },
    /// Lengths of blobs and the bytes that are there differ.
    #[error(
        "{blobs} blobs need {needed} bytes, section {} has {found}",
        Section::Blobs
    )]
    BlobBytes {
        blobs: usize,
        needed: u128,
        found: u64,
    },
}

impl std::fmt::Display for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Section::Meta => "meta",
            Section::Graph => "graph",
            Section::Machine => "machine",
            Section::Plans => "plans",
            Section::Contingencies => "contingencies",
            Section::Kernels => "kernels",
            Section::BlobLengths => "blob lengths",
            Section::Blobs => "blobs",
            Section::Modes => "modes",
            Section::Hosts => "hosts",
            Section::Tiers => "tiers",
        })
    }
}
