//! Kernels assembled beforehand by NVIDIA's `ptxas` and stored in a bundle, so that a run need not wait until the driver
//! has compiled what was printed. Knows no driver.
//!
//! A kernel is looked up by a key of its text. What is not found for the device's architecture, does not have the form
//! of an object file, or is rejected by the driver, is compiled by the driver as if there were no bundle.

use std::collections::BTreeMap;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;
use zbmd_ir::Program;

use super::ptx;
use crate::KernelPlan;

/// What `ptxas` calls an architecture.
const PREFIX: &str = "sm_";
/// What bundles call the language of these objects, before the architecture.
const FORMAT: &str = "cubin ";
/// `EM_CUDA` of an object's header.
const MACHINE: u16 = 190;

/// The oldest compute capability whose kernels can wait for others themselves.
pub const MIN_DEPENDENT_LAUNCH: (u32, u32) = (9, 0);

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
pub fn supports_dependent_launch(arch: &str) -> bool {
    capability(arch) >= Some(MIN_DEPENDENT_LAUNCH)
}

/// Adds the texts of an actor's kernels, by key: to be assembled and stored in a bundle. With `dependent_launch` for
/// devices that launch kernels before those that they wait for have ended.
pub fn texts(plan: &KernelPlan, dependent_launch: bool, into: &mut BTreeMap<u128, String>) {
    for kernel in plan.kernels() {
        let (text, _) = ptx::print(kernel, dependent_launch);
        into.insert(text_key(&text), text);
    }
}

fn text_key(text: &str) -> u128 {
    xxh3_128(text.as_bytes())
}

/// The objects of a program's kernels for one device, by key.
#[derive(Clone, Debug, Default)]
pub struct Cubins(BTreeMap<u128, Bytes>);

impl Cubins {
    /// Those that a device of that capability runs: of its own, or of an older one of the same major version.
    pub fn of_program(program: &Program, (major, minor): (u32, u32)) -> Self {
        let mut newest: BTreeMap<u128, (u32, Bytes)> = BTreeMap::new();
        for code in &program.kernels {
            let arch = code.format.strip_prefix(FORMAT).and_then(capability);
            let Some((code_major, code_minor)) = arch else {
                continue;
            };
            if code_major != major || code_minor > minor {
                continue;
            }
            let known = newest.get(&code.key);
            if known.is_none_or(|(known_minor, _)| *known_minor < code_minor) {
                let object = program.blobs[code.blob].clone();
                newest.insert(code.key, (code_minor, object));
            }
        }
        let objects = newest.into_iter().map(|(key, (_, object))| (key, object));
        Self(objects.collect())
    }

    /// The object of a kernel, if it has the form of one.
    pub fn find(&self, text: &str) -> Option<WholeCubin<'_>> {
        // Most programs have none, and hashing takes time.
        if self.0.is_empty() {
            return None;
        }
        self.0
            .get(&text_key(text))
            .and_then(|object| WholeCubin::check(object))
    }
}

/// An object file all of whose parts are inside of it. Drivers are not told a length: they read what the headers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeCubin<'a>(&'a [u8]);

impl<'a> WholeCubin<'a> {
    /// The bytes as an object, if all parts that its headers name are inside of them. The instructions are not checked.
    pub fn check(bytes: &'a [u8]) -> Option<Self> {
        /// 64 bits, the lower byte first.
        const IDENT: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];

        let has_head =
            bytes.starts_with(&IDENT) && read_number(bytes, 18, 2) == Some(u64::from(MACHINE));
        let is_whole = has_head
            && PROGRAM_HEADERS.is_inside(bytes) == Some(true)
            && SECTION_HEADERS.is_inside(bytes) == Some(true);
        is_whole.then_some(Self(bytes))
    }

    /// The bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// A table of headers in an object: where the object says how it is laid out, and what its entries say.
struct HeaderTable {
    /// Where the file offset of the table is, the size of an entry, and their number.
    offset_at: usize,
    entry_size_at: usize,
    count_at: usize,
    min_entry_size: u64,
    /// Of an entry: where its part's file offset and size are.
    part_offset_at: usize,
    part_size_at: usize,
    /// Of an entry: where its type is, if parts of one type take no room in the file.
    type_at: Option<usize>,
}

const PROGRAM_HEADERS: HeaderTable = HeaderTable {
    offset_at: 32,
    entry_size_at: 54,
    count_at: 56,
    min_entry_size: 56,
    part_offset_at: 8,
    part_size_at: 32,
    type_at: None,
};

const SECTION_HEADERS: HeaderTable = HeaderTable {
    offset_at: 40,
    entry_size_at: 58,
    count_at: 60,
    min_entry_size: 64,
    part_offset_at: 24,
    part_size_at: 32,
    type_at: Some(4),
};

impl HeaderTable {
    /// Whether the table and all parts that it names are inside of the object; none where the object is too short to
    /// say.
    fn is_inside(&self, object: &[u8]) -> Option<bool> {
        /// The type of a section that takes no room in the file.
        const NO_BITS: u64 = 8;

        let table_offset = read_number(object, self.offset_at, 8)?;
        let entry_size = read_number(object, self.entry_size_at, 2)?;
        let count = read_number(object, self.count_at, 2)?;
        if count == 0 {
            return Some(true);
        }
        let table_size = entry_size * count;
        if entry_size < self.min_entry_size || !is_part(object, table_offset, table_size) {
            return Some(false);
        }

        for index in 0..count {
            let entry = (table_offset + index * entry_size) as usize;
            let has_no_bits = match self.type_at {
                Some(type_at) => read_number(object, entry + type_at, 4)? == NO_BITS,
                None => false,
            };
            let part_offset = read_number(object, entry + self.part_offset_at, 8)?;
            let part_size = read_number(object, entry + self.part_size_at, 8)?;
            if !has_no_bits && !is_part(object, part_offset, part_size) {
                return Some(false);
            }
        }
        Some(true)
    }
}

/// A number of `size` bytes, the lower one first.
fn read_number(object: &[u8], offset: usize, size: usize) -> Option<u64> {
    let part = object.get(offset..offset.checked_add(size)?)?;
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(part);
    Some(u64::from_le_bytes(bytes))
}

fn is_part(object: &[u8], offset: u64, len: u64) -> bool {
    offset
        .checked_add(len)
        .is_some_and(|end| end <= object.len() as u64)
}

/// Whether bytes are an object file all of whose parts are inside of it, as drivers are given.
#[cfg(any(test, feature = "testing"))]
pub fn is_whole_object(bytes: &[u8]) -> bool {
    WholeCubin::check(bytes).is_some()
}

/// An object with a text in it instead of instructions, which the device in software accepts.
#[cfg(any(test, feature = "testing"))]
pub fn software_object(text: &str) -> Vec<u8> {
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
        let object = software_object("code");
        assert!(WholeCubin::check(&object).is_some());
        assert!((0..object.len()).all(|len| WholeCubin::check(&object[..len]).is_none()));
        // Class, machine, the table's place, an entry's size, their number; the section's place and size.
        for at in [4, 18, 40 + 7, 58, 60, 64 + 24 + 7, 64 + 32 + 1] {
            let mut spoiled = object.clone();
            spoiled[at] ^= 0x7f;
            assert!(WholeCubin::check(&spoiled).is_none(), "byte {at}");
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
            let blob = program.blobs.push_and_get_key(software_object(arch).into());
            let code = |text: &str| KernelCode {
                format: format(arch),
                key: text_key(text),
                blob,
            };
            program.kernels.push(code("text"));
        }
        program.kernels.push(KernelCode {
            format: "spirv".to_owned(),
            key: text_key("text"),
            blob: BlobId(0),
        });
        for (device, arch) in [
            ((8, 0), Some("sm_80")),
            ((8, 9), Some("sm_86")),
            ((9, 0), Some("sm_90")),
            ((7, 5), None),
            ((10, 0), None),
        ] {
            let cubins = Cubins::of_program(&program, device);
            let want = arch.map(software_object);
            let found = cubins.find("text").map(WholeCubin::bytes);
            assert_eq!(found, want.as_deref(), "{device:?}");
            assert_eq!(cubins.find("another"), None);
        }
    }
}
