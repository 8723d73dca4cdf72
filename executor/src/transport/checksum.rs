//! Checksums on transfers: the sender of a ring notes one for each `Send`, the receiver checks them before it reads.
//! Off unless asked for. Must not know what to do about a wrong one.

use xxhash_rust::xxh3::xxh3_64;
use zbmd_ir::{Action, Entry, Plan, RingId, Slot, TiVec};

/// The checksum of a transfer's bytes: xxh3, against faults, not against malice.
pub(crate) fn of(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Token ranges `[first, end)` of a block that each `Send` copies, in order, loops counted out.
pub(crate) type Sends = Vec<(u64, u64)>;

/// The ranges of every ring. Linear in the plan's slots and the sends.
fn sends(plan: &Plan) -> TiVec<RingId, Sends> {
    let mut sends: TiVec<RingId, Sends> = vec![Vec::new(); plan.rings.len()].into();
    for lane in plan.calendars.iter().flat_map(|c| &c.lanes) {
        walk(&lane.entries, &mut sends);
    }
    sends
}

/// Whether there was any.
fn walk(entries: &[Entry], sends: &mut TiVec<RingId, Sends>) -> bool {
    let mut has_sends = false;
    for entry in entries {
        match entry {
            Entry::Slot(Slot {
                action: Action::Send { ring, count, .. },
                ..
            }) => {
                let sent = sends[*ring].last().map_or(0, |(_, end)| *end);
                sends[*ring].push((sent, sent + count));
                has_sends = true;
            }
            Entry::Slot(_) => {}
            Entry::Loop { count, body } => {
                for _ in 0..*count {
                    if !walk(body, sends) {
                        break;
                    }
                    has_sends = true;
                }
            }
        }
    }
    has_sends
}

/// Where each ring's checksums lie: a row for each block that the ring holds, a word for each `Send` of a block.
pub(crate) struct Sums {
    /// First word of each ring.
    pub firsts: Vec<usize>,
    /// What each of its sends copies.
    pub sends: TiVec<RingId, Sends>,
    pub total: usize,
}

/// Counts the `Send`s of each ring.
pub(crate) fn sums_of(plan: &Plan) -> Sums {
    let sends = sends(plan);
    let mut firsts = Vec::with_capacity(plan.rings.len());
    let mut total = 0;
    for (id, ring) in plan.rings.iter_enumerated() {
        firsts.push(total);
        total += sends[id].len() * plan.buffers[ring.buffer].blocks as usize;
    }
    Sums {
        firsts,
        sends,
        total,
    }
}
