//! What every worker really does, recorded while it does it: `RunOptions::trace` and `RunOptions::profile`.
//!
//! Each worker writes words into a ring of its own in the epoch's memory ([`recorder`]), so that it works for threads
//! and processes alike. One thread of the supervising process ([`writer`]) takes them out, into a file and into
//! histograms. A worker never waits for it: where its ring has no room for a period, that period is not recorded, and
//! counted. What words and files mean is told by [`zbmd_ir::trace`].

mod profile;
mod recorder;
mod writer;

use zbmd_ir::Plan;
use zbmd_ir::trace::{MAX_WORDS, executions};

pub(crate) use self::recorder::{Recorder, Ring, Ticks};
pub(crate) use self::writer::Tracer;

/// Words of a ring at least: a megabyte, which a worker with slots of a microsecond fills in an eighth of a second.
const LEAST_WORDS: u64 = 1 << 17;
/// Periods that a ring has room for at least.
const ROOM: u64 = 4;

/// Words that a period of each calendar takes at most; `None` where it is recorded as a whole.
pub(crate) fn words_of(plan: &Plan, calendar: usize) -> Option<u64> {
    let lanes = plan.calendars[calendar].lanes.iter();
    let slots = lanes.fold(0, |sum: u64, lane| {
        sum.saturating_add(executions(&lane.entries))
    });
    // The mark and its time; and besides its slots a worker saves channels at borders, and winds its watchdog up.
    let words = slots.saturating_mul(2).saturating_add(64);
    (words <= MAX_WORDS).then_some(words)
}

/// Words in the ring of a calendar: a power of two.
pub(crate) fn ring_words(plan: &Plan, calendar: usize) -> u64 {
    let period = words_of(plan, calendar).unwrap_or(3);
    (ROOM * period).next_power_of_two().max(LEAST_WORDS)
}
