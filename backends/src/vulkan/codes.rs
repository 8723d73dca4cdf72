//! Kernels printed beforehand: what a bundle has of them, so that loading prints none. Must not know the driver.
//!
//! A kernel is looked up by a key of what it is and of what the device can be told of floats ([`Floats`]). What is not
//! found, or has not the form of a module, is printed as if there were no bundle.

use std::collections::BTreeMap;

use bytes::Bytes;
use zbmd_ir::Program;

use super::spirv::{self, Floats};
use crate::kernels::KernelPlan;
use crate::kernels::lang::Kernel;

/// What bundles call the language of these modules.
pub const FORMAT: &str = "spirv";
/// Counts the printer's changes: modules of another printer are not looked at.
const PRINTER: &str = concat!("zbmd ", env!("CARGO_PKG_VERSION"), " printer 1");

/// First word of a module, its version, and the words of its header.
const MAGIC: u32 = 0x0723_0203;
const VERSION: u32 = 0x0001_0300;
const HEADER_WORDS: usize = 5;
/// What every driver takes as the bound of numbers.
const MAX_BOUND: u32 = 0x003f_ffff;

/// The modules of a program's kernels, by key.
#[derive(Clone, Debug, Default)]
pub(super) struct Codes(BTreeMap<u128, Bytes>);

impl Codes {
    pub(super) fn of(program: &Program) -> Self {
        let own = program.kernels.iter().filter(|code| code.format == FORMAT);
        Self(
            own.map(|code| (code.key, program.blobs[code.blob].clone()))
                .collect(),
        )
    }

    /// The module of a kernel whose key is given.
    pub(super) fn words(&self, key: u128, kernel: &Kernel, floats: Floats) -> Vec<u32> {
        let kept = self.0.get(&key).and_then(|bytes| module(bytes));
        kept.unwrap_or_else(|| spirv::print(kernel, floats))
    }
}

pub(super) fn key(kernel: &Kernel, floats: Floats) -> u128 {
    kernel.digest(&format!("{PRINTER} {floats:?}"))
}

/// The modules of an actor's kernels for every device, by key: to be kept in a bundle.
pub fn print_all(plan: &KernelPlan, into: &mut BTreeMap<u128, Vec<u8>>) {
    for kernel in plan.kernels() {
        let wide = if kernel.needs().f64 {
            &[false, true][..]
        } else {
            &[false]
        };
        for keep32 in [false, true] {
            for &keep64 in wide {
                let floats = Floats { keep32, keep64 }.of(kernel);
                into.entry(key(kernel, floats)).or_insert_with(|| {
                    let words = spirv::print(kernel, floats);
                    words.into_iter().flat_map(u32::to_le_bytes).collect()
                });
            }
        }
    }
}

/// The words of a module that has the form of one. What the instructions say is between the printer and the driver.
fn module(bytes: &[u8]) -> Option<Vec<u32>> {
    let (words, rest) = bytes.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|w| u32::from_le_bytes(*w)).collect();
    let (head, mut code) = words.split_at_checked(HEADER_WORDS)?;
    let known = head[0] == MAGIC && head[1] == VERSION && head[3] <= MAX_BOUND && head[4] == 0;
    if !rest.is_empty() || !known {
        return None;
    }
    while let Some(first) = code.first() {
        let length = (first >> 16) as usize;
        code = code.get(length..).filter(|_| length > 0)?;
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::lang::{Builder, Mem};

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
        assert_eq!(module(&bytes), Some(words));
        assert!((0..bytes.len()).any(|len| module(&bytes[..len]).is_none()));
        for len in (0..bytes.len()).filter(|len| len % 4 != 0 || *len < 4 * HEADER_WORDS) {
            assert_eq!(module(&bytes[..len]), None, "cut to {len}");
        }
        for at in [0, 4, 8 + 7, 16, 20 + 3] {
            let mut spoiled = bytes.clone();
            spoiled[at] ^= 0x7f;
            assert_eq!(module(&spoiled), None, "byte {at}");
        }
    }

    #[test]
    fn keys_tell_kernels_apart_but_not_their_shapes() {
        let (kernel, floats) = (twice(), Floats::default());
        let same = Kernel {
            specs: kernel.specs.iter().map(|s| s + 1).collect(),
            ..kernel.clone()
        };
        assert_eq!(key(&kernel, floats), key(&same, floats));
        let others = [
            Kernel {
                local: 128,
                ..kernel.clone()
            },
            Kernel {
                vars: vec![crate::kernels::lang::Ty::F32],
                ..kernel.clone()
            },
            Kernel {
                body: kernel.body[1..].to_vec(),
                ..kernel.clone()
            },
        ];
        for other in &others {
            assert_ne!(key(&kernel, floats), key(other, floats), "{other}");
        }
        assert_ne!(
            key(&kernel, floats),
            key(
                &kernel,
                Floats {
                    keep32: true,
                    ..floats
                }
            )
        );
    }
}
