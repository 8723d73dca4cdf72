//! The tokens lying on channels at a block border: into the memory of a plan before its first period, out of it after
//! its last. Must not run while its device's worker does.
#![expect(
    unsafe_code,
    reason = "reads and writes arenas at the offsets of a verified plan"
)]

use zbmd_ir::{Buffer, BufferId, ChannelId, Graph, Plan, PlanId, TiVec};

use super::memory::WorkerMemory;
use crate::program::LoadedProgram;
use crate::transport::admission::AdmissionGate;
use crate::transport::epoch::{Area, EpochMemory};
use crate::transport::primitive::{Ordering, fence};
use crate::transport::ring::{Spin, Stop, Stopped};

/// For each channel with a history, the buffer that holds the whole of it: one of a reader with the largest delay.
pub(crate) fn keepers(graph: &Graph, plan: &Plan) -> Vec<BufferId> {
    let mut found: TiVec<ChannelId, bool> = vec![false; graph.channels.len()].into();
    let mut keepers = Vec::new();
    for (id, buffer) in plan.buffers.iter_enumerated() {
        let history = graph.channels[buffer.channel].history();
        let has_whole = buffer.is_chunked() || buffer.head_tokens == history;
        if history > 0 && has_whole && !found[buffer.channel] {
            found[buffer.channel] = true;
            keepers.push(id);
        }
    }
    keepers
}

/// Fills the heads of block 0, and the state buffers, of one device from the last `history()` tokens of each channel.
///
/// `memory` belongs to no running worker.
pub(crate) fn import(graph: &Graph, plan: &Plan, memory: &WorkerMemory) {
    for buffer in plan.buffers.iter().filter(|b| memory.owns(b)) {
        let (offset, head) = head_bytes(graph, buffer);
        let (saved, bytes) = memory.epoch.saved(Area::Start, buffer.channel);
        let from = saved.wrapping_add(bytes - head);
        let to = memory.base(buffer).wrapping_add(offset);
        // SAFETY: a verified plan's place lies in its region, whose memory has at least that size, and the caller
        // promises that nobody else uses it; the start area was filled before the epoch began, and nobody writes it.
        unsafe { to.copy_from_nonoverlapping(from, head) };
    }
}

/// Puts the last `history()` tokens of each channel that one device keeps into the end area: the heads of block
/// `blocks`, which is the next to run.
///
/// `memory` belongs to no running worker.
pub(crate) fn export(loaded: &LoadedProgram, plan: PlanId, memory: &WorkerMemory, blocks: u64) {
    let graph = &loaded.program.graph;
    let buffers = &loaded.program.plans[plan].buffers;
    for id in &loaded.facts(plan).keepers {
        let buffer = &buffers[*id];
        if !memory.owns(buffer) {
            continue;
        }
        let (offset, head) = head_bytes(graph, buffer);
        let place = (blocks % u64::from(buffer.blocks)) * buffer.stride_bytes;
        let from = memory.base(buffer).wrapping_add(place as usize + offset);
        let (to, _) = memory.epoch.saved(Area::End, buffer.channel);
        // SAFETY: as in `import`; each channel has one keeper, whose worker alone writes its part of the end area.
        unsafe { to.copy_from_nonoverlapping(from, head) };
    }
}

/// Fills an area: the start area, before the epoch begins.
pub(crate) fn write_start(epoch: &EpochMemory, channels: &TiVec<ChannelId, Vec<u8>>) {
    for (id, tokens) in channels.iter_enumerated() {
        let (to, bytes) = epoch.saved(Area::Start, id);
        assert_eq!(tokens.len(), bytes, "a state that fits its graph");
        // SAFETY: the area lies in the epoch's memory; no worker has begun.
        unsafe { to.copy_from_nonoverlapping(tokens.as_ptr(), bytes) };
    }
}

/// The tokens in an area that nobody writes now.
pub(crate) fn read_area(
    epoch: &EpochMemory,
    graph: &Graph,
    area: Area,
) -> TiVec<ChannelId, Vec<u8>> {
    let channels = graph.channels.iter_enumerated().map(|(id, _)| {
        let (from, bytes) = epoch.saved(area, id);
        let mut tokens = vec![0; bytes];
        // SAFETY: the area lies in the epoch's memory, which was zeroed at first; the caller chose one at rest.
        unsafe { tokens.as_mut_ptr().copy_from_nonoverlapping(from, bytes) };
        tokens
    });
    channels.collect()
}

/// Puts the tokens of one channel into an area that nobody reads now, and whose part for the channel nobody else writes.
///
/// # Errors
/// The bytes that the channel has, if there are not so many.
#[cfg(hosts)]
pub(crate) fn write_channel(
    epoch: &EpochMemory,
    area: Area,
    channel: ChannelId,
    tokens: &[u8],
) -> Result<(), usize> {
    let (to, bytes) = epoch.saved(area, channel);
    if tokens.len() != bytes {
        return Err(bytes);
    }
    // SAFETY: the area has a place of this size for the channel; the caller's promise for the rest.
    unsafe { to.copy_from_nonoverlapping(tokens.as_ptr(), bytes) };
    Ok(())
}

/// The tokens of the channels that a device keeps, in an area that nobody writes now.
#[cfg(hosts)]
pub(crate) fn read_kept(
    epoch: &EpochMemory,
    loaded: &LoadedProgram,
    plan: PlanId,
    device: zbmd_ir::DeviceId,
    area: Area,
) -> Vec<(u32, Vec<u8>)> {
    let plan_buffers = &loaded.program.plans[plan].buffers;
    let keepers = loaded.facts(plan).keepers.iter();
    let buffers = keepers.map(|id| &plan_buffers[*id]);
    let kept = buffers.filter(|buffer| buffer.device == device);
    kept.map(|buffer| {
        let (from, bytes) = epoch.saved(area, buffer.channel);
        let mut tokens = vec![0; bytes];
        // SAFETY: as in `read_area`.
        unsafe { tokens.as_mut_ptr().copy_from_nonoverlapping(from, bytes) };
        (buffer.channel.0, tokens)
    })
    .collect()
}

/// Where in a place the tokens of a border begin, and their bytes: the head, or the end of one that is longer than the
/// channel's history, as those of chunks may be.
fn head_bytes(graph: &Graph, buffer: &Buffer) -> (usize, usize) {
    let channel = &graph.channels[buffer.channel];
    let tokens = border_tokens(buffer, channel.history());
    let offset_bytes = (buffer.head_tokens - tokens) * channel.token.bytes();
    let bytes = tokens * channel.token.bytes();
    (offset_bytes as usize, bytes as usize)
}

/// Tokens of a border in a buffer's head, at its end.
pub(super) fn border_tokens(buffer: &Buffer, history: u64) -> u64 {
    buffer.head_tokens.min(history)
}

/// Called by a worker that has passed a border and published that: if this commits a border, releases the sources' tokens
/// before it.
///
/// Every worker looks after it has published: whoever is the last to pass a border sees that all have.
pub(crate) fn commit_border(epoch: &EpochMemory, gate: &AdmissionGate) {
    // Partner: itself, in the other workers: of two that pass the border at once, one sees both.
    fence(Ordering::SeqCst);
    let committed = epoch.passed();
    if epoch.common.committed.advance(committed) {
        for source in &gate.sources {
            let tokens = source.base + committed * source.tokens_per_block;
            source.conduit.release_until(tokens);
        }
        epoch.common.commits.notify();
    }
}

/// Waits until the area of `border` may be written: the border that it held is not needed any more.
///
/// # Errors
/// The epoch was stopped before that.
pub(crate) fn wait_for_area(
    epoch: &EpochMemory,
    border: u64,
    spin: Spin,
    stop: &Stop,
) -> Result<(), Stopped> {
    let common = &epoch.common;
    let Some(borders) = epoch.borders() else {
        return Ok(());
    };
    let is_free = || {
        if common.committed.border() < borders.needs(border) {
            return false;
        }
        // Partner: the fence in `EpochMemory::hold`: either this sees what is held, or that sees that a later border is
        // committed.
        fence(Ordering::SeqCst);
        !borders.collides(border, common.held.load(Ordering::Relaxed))
    };

    if is_free() {
        return Ok(());
    }
    common
        .commits
        .wait_until(spin, || is_free() || stop.is_set());
    if is_free() { Ok(()) } else { Err(Stopped) }
}
