//! Chunks for speed: where a block does not fit a core's own cache, what its actors pass on goes through a slower one, and
//! chunks that fit may be worth their calls.

use zbmd_ir::{Calendar, Device, DeviceId, Plan, Region};

use super::{ChunkOrder, with_chunks};
use crate::cost::{CACHE_BYTES, CACHE_MISS_SPEED, PS_PER_NS, PS_PER_S};
use crate::problem::BlockProblem;

/// The plan with buffers of chunks that is quicker than the plan itself by what stays in the cores' own caches; `None`
/// where there is none, or the plan stays in them as it is.
pub(crate) fn quicker_in_cache(problem: &BlockProblem<'_>, plan: &Plan) -> Option<Plan> {
    let plan_ns = cached_period_ns(problem, plan);
    if plan_ns == plan.period_ns {
        return None;
    }

    // In the order with the fewest tokens each firing is a call of its own, which is never quicker.
    let orders = ChunkOrder::all(problem.block);
    let orders = orders.filter(|order| !matches!(order, ChunkOrder::FewestTokens));
    let chunked = orders.filter_map(|order| with_chunks(problem, plan, order).ok().flatten());
    let times = chunked.map(|plan| (cached_period_ns(problem, &plan), plan));
    let (chunked_ns, chunked) = times.min_by_key(|(time_ns, _)| *time_ns)?;
    (chunked_ns < plan_ns).then_some(chunked)
}

/// Nanoseconds of a period, with what tokens take that leave the caches of their devices' cores.
fn cached_period_ns(problem: &BlockProblem<'_>, plan: &Plan) -> u64 {
    let miss_ns = |calendar: &Calendar| {
        let device = &problem.machine.devices[calendar.device];
        match device.backend.is_cpu() && calendar.arena_bytes > CACHE_BYTES {
            true => miss_ps(device, arena_traffic(problem, plan, calendar.device)) / PS_PER_NS,
            false => 0,
        }
    };
    let worst_ns = plan.calendars.iter().map(miss_ns).max().unwrap_or(0);
    plan.period_ns.saturating_add(worst_ns)
}

/// Bytes that pass through the arena of a device in a period, written once and read once.
fn arena_traffic(problem: &BlockProblem<'_>, plan: &Plan, device: DeviceId) -> u64 {
    let buffers = plan.buffers.iter();
    let in_arena = buffers.filter(|b| b.device == device && b.region == Region::Arena);
    let bytes = in_arena.map(|buffer| {
        let token_bytes = problem.graph.channels[buffer.channel].token.bytes();
        buffer
            .block_tokens
            .saturating_mul(token_bytes)
            .saturating_mul(2)
    });
    bytes.fold(0, u64::saturating_add)
}

/// Picoseconds that bytes take more in the cache that cores share than in a core's own.
fn miss_ps(device: &Device, bytes: u64) -> u64 {
    let bytes_per_s = u128::from(device.bytes_per_s.max(1)) * u128::from(CACHE_MISS_SPEED);
    let ps = u128::from(bytes) * u128::from(PS_PER_S) / bytes_per_s;
    u64::try_from(ps).unwrap_or(u64::MAX)
}
