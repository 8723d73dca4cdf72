//! The tokens lying on channels at a block border: into the memory of a plan before its first period, out of it after
//! its last. Must not run while workers do.
#![expect(unsafe_code, reason = "reads and writes arenas at the offsets of a verified plan")]

use zbmd_ir::{Buffer, ChannelId, Graph, Plan, TiVec};

use crate::prepare::Memory;

/// Fills the heads of block 0, and the state buffers, from the last `history()` tokens of each channel.
///
/// `memory` belongs to no running worker.
pub(crate) fn import(
    graph: &Graph,
    plan: &Plan,
    memory: &mut Memory,
    channels: &TiVec<ChannelId, Vec<u8>>,
) {
    for buffer in &plan.buffers {
        let head = head_bytes(graph, buffer);
        let tokens = &channels[buffer.channel];
        let from = &tokens[tokens.len() - head..];
        let to = memory.of(buffer).base().wrapping_add(buffer.offset_bytes as usize);
        // SAFETY: a verified plan's place lies in its region, whose arena has at least that size; `&mut Memory` and
        // the caller's promise mean that no worker runs. The source is an ordinary vector.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), head) };
    }
}

/// The last `history()` tokens of each channel, from the heads of block `blocks`, which is the next to run.
///
/// `memory` belongs to no running worker.
pub(crate) fn export(
    graph: &Graph,
    plan: &Plan,
    memory: &mut Memory,
    blocks: u64,
) -> TiVec<ChannelId, Vec<u8>> {
    let mut channels: TiVec<ChannelId, Vec<u8>> = vec![Vec::new(); graph.channels.len()].into();
    for buffer in &plan.buffers {
        let head = head_bytes(graph, buffer);
        // The buffer of the reader with the largest delay holds the whole history.
        if buffer.head_tokens != graph.channels[buffer.channel].history() || head == 0 {
            continue;
        }
        let place = (blocks % u64::from(buffer.blocks)) * buffer.stride_bytes;
        let from = memory.of(buffer).base().wrapping_add((buffer.offset_bytes + place) as usize);
        // SAFETY: as in `import`.
        channels[buffer.channel] = unsafe { std::slice::from_raw_parts(from, head) }.to_vec();
    }
    channels
}

fn head_bytes(graph: &Graph, buffer: &Buffer) -> usize {
    (buffer.head_tokens * graph.channels[buffer.channel].token.bytes()) as usize
}
