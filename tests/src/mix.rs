//! `Mix`: an op with any ports whose outputs are a hash of everything its firing may look at.
//!
//! One wrong, late, lost or repeated token anywhere changes all that comes after, so equal sinks mean equal runs.

use std::sync::Arc;

use bytes::Bytes;
use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{Op, OpDoc, OpError, Registry, ResolveCx, Signature};
use zbmd_ir::{Actor, BlobId, InPlace, TiSlice};

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
}

/// A registry with `Mix` beside the standard ops.
pub fn registry() -> Registry {
    let mut registry = Registry::standard();
    registry.add(Mix);
    registry
}

fn absorb(mut hash: u64, bytes: &[u8]) -> u64 {
    for &byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5);
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
        let mut outputs: Vec<&mut [u8]> =
            (0..self.outputs.len()).map(|i| io.output_bytes(i)).collect();
        let mut states: Vec<&mut [u8]> = (0..self.states).map(|i| io.state_bytes(i)).collect();
        for firing in 0..firings {
            let mut hash = self.seed;
            for (i, &(step, window)) in self.inputs.iter().enumerate() {
                let under = outputs.iter().enumerate().find(|(o, _)| io.over(*o) == Some(i));
                let input = under.map_or_else(|| io.input_bytes(i), |(_, output)| output);
                hash = absorb(hash ^ i as u64, &input[firing * step..firing * step + window]);
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
        OpDoc { summary: "hash of all windows", params: &[], ports: "any", example: "Mix()" }
    }

    fn resolve(&self, _: &ResolveCx<'_>) -> Result<Signature, OpError> {
        Err(OpError::Other { message: "Mix is for built graphs".into(), help: String::new() })
    }

    /// All windows of a firing are read before anything is written: any output may lie over any input.
    fn in_place(&self, actor: &Actor, _: &TiSlice<BlobId, Bytes>) -> Vec<InPlace> {
        let inputs = 0..actor.inputs.len() as u32;
        let outputs = 0..actor.outputs.len() as u32;
        let over = |input| outputs.clone().map(move |output| InPlace { input, output });
        inputs.flat_map(over).collect()
    }

    fn kernel(
        &self,
        actor: &Actor,
        _: &TiSlice<BlobId, Bytes>,
    ) -> Result<Arc<dyn Kernel>, OpError> {
        let bytes = |tokens: u64, port: &zbmd_ir::TokenType| (tokens * port.bytes()) as usize;
        let name = actor.name.split('#').next().unwrap_or_default();
        let seed = name.bytes().fold(1u64, |h, b| absorb(h, &[b]));
        let inputs = actor
            .inputs
            .iter()
            .enumerate()
            .filter(|(i, _)| actor.state_of_input(*i as u32).is_none())
            .map(|(_, p)| (bytes(p.rate, &p.token), bytes(p.window, &p.token)))
            .collect();
        let outputs = actor
            .outputs
            .iter()
            .enumerate()
            .filter(|(i, _)| actor.state_of_output(*i as u32).is_none())
            .map(|(_, p)| bytes(p.rate, &p.token))
            .collect();
        Ok(Arc::new(MixKernel { seed, inputs, outputs, states: actor.state.len() }))
    }
}
