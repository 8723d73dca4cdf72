//! Kernels printed beforehand and stored in a bundle, so that loading prints none. Knows no driver.
//!
//! A kernel is looked up by a key of what it is and of the float modes that the device supports ([`Floats`]). What is not
//! found, or does not have the form of a module, is printed as if there were no bundle.

use std::collections::BTreeMap;

use bytes::Bytes;
use zbmd_ir::Program;

use super::spirv::{self, Floats};
use crate::KernelPlan;
use crate::lang::Kernel;

/// What bundles call the language of these modules.
pub const FORMAT: &str = "spirv";
/// Counts the printer's changes: modules of another printer are ignored.
const PRINTER: &str = concat!("zbmd ", env!("CARGO_PKG_VERSION"), " printer 1");

/// First word of a module, its version, and the words of its header.
const MAGIC: u32 = 0x0723_0203;
const VERSION: u32 = 0x0001_0300;
const HEADER_WORDS: usize = 5;
/// The largest bound of ids that every driver accepts.
const MAX_BOUND: u32 = 0x003f_ffff;

/// The modules of a program's kernels, by key.
#[derive(Clone, Debug, Default)]
pub struct Codes(BTreeMap<u128, Bytes>);

impl Codes {
    /// Those of a program.
    pub fn of_program(program: &Program) -> Self {
        let modules = program.kernels.iter().filter(|code| code.format == FORMAT);
        Self(
            modules
                .map(|code| (code.key, program.blobs[code.blob].clone()))
                .collect(),
        )
    }

    /// The module of a kernel whose key is given.
    pub fn module_words(&self, key: u128, kernel: &Kernel, floats: Floats) -> Vec<u32> {
        let stored = self.0.get(&key).and_then(|bytes| read_module(bytes));
        stored.unwrap_or_else(|| spirv::print(kernel, floats))
    }
}

/// The key of a kernel's module.
pub fn module_key(kernel: &Kernel, floats: Floats) -> u128 {
    kernel.digest(&format!("{PRINTER} {floats:?}"))
}

/// Adds the modules of an actor's kernels for every device, by key: to be stored in a bundle.
pub fn print_all(plan: &KernelPlan, into: &mut BTreeMap<u128, Vec<u8>>) {
    for kernel in plan.kernels() {
        // Modes of f64 make no difference to kernels without it.
        let f64_modes: &[bool] = match kernel.needs().f64 {
            true => &[false, true],
            false => &[false],
        };
        for keep32 in [false, true] {
            for &keep64 in f64_modes {
                let floats = Floats { keep32, keep64 }.of_kernel(kernel);
                into.entry(module_key(kernel, floats)).or_insert_with(|| {
                    let words = spirv::print(kernel, floats);
                    words.into_iter().flat_map(u32::to_le_bytes).collect()
                });
            }
        }
    }
}

/// The words of a module that has the form of one. The instructions are not checked, only their lengths.
fn read_module(bytes: &[u8]) -> Option<Vec<u32>> {
    let (chunks, rest) = bytes.as_chunks::<4>();
    let words: Vec<u32> = chunks
        .iter()
        .map(|chunk| u32::from_le_bytes(*chunk))
        .collect();
    let (header, mut instructions) = words.split_at_checked(HEADER_WORDS)?;
    let [magic, version, _generator, bound, schema] = *header else {
        return None;
    };
    let is_known = magic == MAGIC && version == VERSION && bound <= MAX_BOUND && schema == 0;
    if !rest.is_empty() || !is_known {
        return None;
    }

    while let Some(first_word) = instructions.first() {
        let word_count = (first_word >> 16) as usize;
        instructions = instructions.get(word_count..).filter(|_| word_count > 0)?;
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lang::{Builder, Mem};

    fn twice() -> Kernel {
        let k = Builder::new("twice", 64);
        let (x, y) = (k.reads(Mem::F32), k.writes(Mem::F32));
        let each = k.spec(1);
        k.each(k.firings() * each, |i| {
            k.store(y, i, k.load(x, i) + k.load(x, i))
        });
        k.finish()
    }

    #[test]
    fn only_whole_modules_are_taken() {
        let words = spirv::print(&twice(), Floats::default());
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(read_module(&bytes), Some(words));
        assert!((0..bytes.len()).any(|len| read_module(&bytes[..len]).is_none()));
        for len in (0..bytes.len()).filter(|len| len % 4 != 0 || *len < 4 * HEADER_WORDS) {
            assert_eq!(read_module(&bytes[..len]), None, "cut to {len}");
        }
        for at in [0, 4, 8 + 7, 16, 20 + 3] {
            let mut spoiled = bytes.clone();
            spoiled[at] ^= 0x7f;
            assert_eq!(read_module(&spoiled), None, "byte {at}");
        }
    }

    #[test]
    fn keys_tell_kernels_apart_but_not_their_shapes() {
        let (kernel, floats) = (twice(), Floats::default());
        let same = Kernel {
            specs: kernel.specs.iter().map(|s| s + 1).collect(),
            ..kernel.clone()
        };
        assert_eq!(module_key(&kernel, floats), module_key(&same, floats));
        let others = [
            Kernel {
                local: 128,
                ..kernel.clone()
            },
            Kernel {
                vars: vec![crate::lang::Ty::F32],
                ..kernel.clone()
            },
            Kernel {
                body: kernel.body[1..].to_vec(),
                ..kernel.clone()
            },
        ];
        for other in &others {
            assert_ne!(
                module_key(&kernel, floats),
                module_key(other, floats),
                "{other}"
            );
        }
        assert_ne!(
            module_key(&kernel, floats),
            module_key(
                &kernel,
                Floats {
                    keep32: true,
                    ..floats
                }
            )
        );
    }
}
