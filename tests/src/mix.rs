//! `Mix`: an op with any ports whose outputs are a hash of everything its firing may look at.
//!
//! One wrong, late, lost or repeated token anywhere changes all that comes after, so equal sinks mean equal runs.

use std::sync::Arc;

use bytes::Bytes;
use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{Op, OpDoc, OpError, Registry, ResolveCx, ResolvedOp, Signature};
use zbmd_ir::{Actor, BlobId, InPlace, TiSlice, limits};

/// The op. Its kernels take their ports from the actor; replicas of one actor have one hash.
pub struct Mix;

/// Sizes in bytes of the ports of one `Mix` actor.
struct MixKernel {
    seed: u64,
    /// Bytes consumed per firing and bytes of a window, of each input that is no state.
    inputs: Vec<(usize, usize)>,
    /// Bytes per firing of each output that is no state.
    outputs: Vec<usize>,
    states: usize,
    /// What may lie over what, by the numbers of the ports that are no states.
    pairs: Vec<InPlace>,
}

impl MixKernel {
    /// Input `i` of the call, gathered from where it lies: also from the outputs that it is a part of or that lie over
    /// it.
    fn input(&self, io: &Io<'_>, i: usize, outputs: &[&mut [u8]]) -> Vec<u8> {
        let (step, window) = self.inputs[i];
        let bytes = (io.firings() - 1) * step + window;
        let pairs = self.pairs.iter().filter(|p| p.input as usize == i);
        let mut shared: Vec<_> = pairs
            .map(|p| {
                (
                    p.at_bytes as usize,
                    outputs[p.output as usize].len(),
                    p.output as usize,
                )
            })
            .filter(|(.., o)| io.shares(i, *o))
            .collect();
        // An output as large as the input or larger has all of it.
        if let Some(&(at, _, o)) = shared.iter().find(|(_, size, _)| *size >= bytes) {
            return outputs[o][at..at + bytes].to_vec();
        }
        shared.sort_unstable();
        let mut input = Vec::with_capacity(bytes);
        for (at, size, o) in shared {
            input.extend_from_slice(io.part_bytes(i, input.len()..at));
            input.extend_from_slice(&outputs[o][..size]);
        }
        input.extend_from_slice(io.part_bytes(i, input.len()..bytes));
        input
    }
}

/// A registry with `Mix` beside the standard ops.
pub fn registry() -> Registry {
    let mut registry = zbmd_backends::standard_registry();
    registry.add(Mix);
    registry
}

fn absorb(mut hash: u64, bytes: &[u8]) -> u64 {
    for &byte in bytes {
        hash = (hash ^ u64::from(byte))
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(5);
    }
    hash
}

fn squeeze(mut hash: u64, out: &mut [u8]) {
    for chunk in out.chunks_mut(8) {
        hash = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bytes = (z ^ (z >> 31)).to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
}

impl Kernel for MixKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let firings = io.firings();
        let mut outputs: Vec<&mut [u8]> = (0..self.outputs.len())
            .map(|i| io.output_bytes(i))
            .collect();
        let mut states: Vec<&mut [u8]> = (0..self.states).map(|i| io.state_bytes(i)).collect();
        let inputs: Vec<Vec<u8>> = (0..self.inputs.len())
            .map(|i| self.input(io, i, &outputs))
            .collect();
        for firing in 0..firings {
            let mut hash = self.seed;
            for (i, (input, &(step, window))) in inputs.iter().zip(&self.inputs).enumerate() {
                hash = absorb(
                    hash ^ i as u64,
                    &input[firing * step..firing * step + window],
                );
            }
            for state in &mut states {
                hash = absorb(hash, state);
                squeeze(hash, state);
            }
            for (i, output) in outputs.iter_mut().enumerate() {
                let bytes = self.outputs[i];
                squeeze(
                    hash ^ ((i as u64) << 56),
                    &mut output[firing * bytes..(firing + 1) * bytes],
                );
            }
        }
        Ok(())
    }
}

impl Op for Mix {
    fn name(&self) -> &str {
        "Mix"
    }

    fn doc(&self) -> OpDoc {
        OpDoc {
            summary: "hash of all windows",
            params: &[],
            ports: "any",
            example: "Mix()",
        }
    }

    fn resolve(&self, _: &ResolveCx<'_>) -> Result<ResolvedOp, OpError> {
        Err(OpError::Other {
            message: "Mix is for built graphs".into(),
            help: String::new(),
        })
    }

    fn resolve_actor(
        &self,
        actor: &Actor,
        _: &TiSlice<BlobId, Bytes>,
    ) -> Option<Result<ResolvedOp, OpError>> {
        let kernel = Arc::new(MixKernel::of(actor));
        let resolved = ResolvedOp::of_shared_kernel(Signature::default(), kernel);
        Some(Ok(resolved.with_in_place_pairs(in_place_pairs(actor))))
    }
}

/// All windows are read before anything is written: any output may lie over any input, at any of its bytes, but at
/// one place for the two. An actor that names such places has those.
fn in_place_pairs(actor: &Actor) -> Vec<InPlace> {
    if !actor.in_place.is_empty() {
        return actor.in_place.clone();
    }
    let inputs = (0..).zip(actor.inputs.iter().map(|p| p.rate * p.token.bytes()));
    let outputs = (0..).zip(actor.outputs.iter().map(|p| p.rate * p.token.bytes()));
    let over = |(input, read): (u32, u64)| {
        outputs.clone().map(move |(output, written): (u32, u64)| {
            // Other places for other ports, as far as there are any.
            let places = read.abs_diff(written) / limits::ALIGN_BYTES + 1;
            let at_bytes = u64::from(input + output) % places * limits::ALIGN_BYTES;
            InPlace {
                input,
                output,
                at_bytes,
            }
        })
    };
    inputs.flat_map(over).collect()
}

impl MixKernel {
    fn of(actor: &Actor) -> Self {
        let bytes = |tokens: u64, port: &zbmd_ir::TokenType| (tokens * port.bytes()) as usize;
        let name = actor.name.split('#').next().unwrap_or_default();
        let named = name.bytes().fold(1u64, |h, b| absorb(h, &[b]));
        // Actors with other parameters are other functions.
        let values = actor.params.values();
        let seed = values.fold(named, |h, value| absorb(h, format!("{value:?}").as_bytes()));
        let inputs = actor
            .inputs
            .iter()
            .enumerate()
            .filter(|(i, _)| actor.state_of_input(*i as u32).is_none())
            .map(|(_, p)| (bytes(p.rate, &p.token), bytes(p.window, &p.token)))
            .collect();
        let without_states = |pair: &InPlace| {
            let (input, output) = (0..pair.input, 0..pair.output);
            InPlace {
                input: input.filter(|&i| actor.state_of_input(i).is_none()).count() as u32,
                output: output
                    .filter(|&o| actor.state_of_output(o).is_none())
                    .count() as u32,
                ..*pair
            }
        };
        let pairs = actor.in_place.iter().map(without_states).collect();
        let outputs = actor
            .outputs
            .iter()
            .enumerate()
            .filter(|(i, _)| actor.state_of_output(*i as u32).is_none())
            .map(|(_, p)| bytes(p.rate, &p.token))
            .collect();
        Self {
            seed,
            inputs,
            outputs,
            states: actor.state.len(),
            pairs,
        }
    }
}
