//! The constants of the scheduler's cost model: what it assumes where neither the machine nor its costs say anything.
//!
//! Times of work are in picoseconds, as in [`zbmd_ir::Costs`]; times of slots in nanoseconds, as in calendars.

use zbmd_ir::ActorCost;

/// Synchronisation of one send: publishing a ring's tokens.
pub(crate) const SEND_PS: u64 = 100_000;

/// Synchronisation of one receive.
pub(crate) const RECV_PS: u64 = 100_000;

/// Slot that releases a place of a ring.
pub(crate) const RELEASE_NS: u64 = 20;

/// Fixed part of a slot that carries history to the next block.
pub(crate) const CARRY_NS: u64 = 10;

/// Slot that begins a fetch from a tier: a count that another thread sees, which may have to be woken.
pub(crate) const FETCH_NS: u64 = 1_000;

/// Slot that waits for weights that are there already.
pub(crate) const AWAIT_NS: u64 = 20;

/// Predicted gain that a further device must bring, in percent of the period: hand-over and jitter eat less.
pub(crate) const MIN_GAIN_PERCENT: u64 = 8;

/// Period that may be given up for fewer stages, in percent of the best one known.
pub(crate) const MAX_PERIOD_LOSS_PERCENT: u64 = 2;

/// Work that a block should hold, in picoseconds: a hundred times what a hand-over between devices costs.
pub(crate) const BLOCK_WORK_PS: u64 = 50_000_000;

/// Work that a block should hold for each picosecond of its calls, so that these are a small part of it.
pub(crate) const WORK_PER_CALL: u64 = 20;

/// Bytes of one block on all channels beyond which larger blocks fall out of the cache.
pub(crate) const BLOCK_BYTES: u64 = 256 << 10;

/// Arena of a device beyond which the tokens of a block leave its core's own cache.
pub(crate) const CACHE_BYTES: u64 = 1 << 20;

/// How many times as fast as memory the bytes are that leave a core's own cache for the one that cores share: what they
/// take more than those that stay. One is taken to be six times as fast as memory and the other twice (1/2 - 1/6).
pub(crate) const CACHE_MISS_SPEED: u64 = 3;

/// Gap from which on a plan whose devices wait for each other within the period is tried with loops kept together.
pub(crate) const WAITING_GAP: f64 = 0.05;

pub(crate) const PS_PER_NS: u64 = 1_000;

pub(crate) const PS_PER_S: u64 = 1_000_000_000_000;

/// A value and so many percent of it, rounded down (saturating).
pub(crate) fn percent_more(value: u64, percent: u64) -> u64 {
    permille_more(value, 10 * percent)
}

/// A value and so many thousandths of it, rounded down (saturating).
pub(crate) fn permille_more(value: u64, permille: u64) -> u64 {
    let more = u128::from(value) * u128::from(permille) / 1000;
    value.saturating_add(more as u64)
}

/// Picoseconds of `calls` calls that fire an actor `firings` times in all (saturating).
pub(crate) fn work_ps(cost: ActorCost, calls: u64, firings: u64) -> u64 {
    cost.call_ps
        .saturating_mul(calls)
        .saturating_add(cost.firing_ps.saturating_mul(firings))
}
