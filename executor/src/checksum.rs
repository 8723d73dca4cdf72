//! Checksums on transfers: the sender of a ring notes one for each `Send`, the receiver checks them before it reads.
//! Off unless asked for. Must not know what to do about a wrong one.

use xxhash_rust::xxh3::xxh3_64;
use zbmd_ir::{Action, Entry, Plan, RingId, Slot};

/// The checksum of a transfer's bytes: xxh3, against faults, not against malice.
pub(crate) fn of(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Token ranges `[first, end)` of a block that each `Send` of a ring copies, in order, loops counted out.
pub(crate) fn sends(plan: &Plan, ring: RingId) -> Vec<(u64, u64)> {
    let mut ends = Vec::new();
    let mut sent = 0;
    for lane in plan.calendars.iter().flat_map(|c| &c.lanes) {
        walk(&lane.entries, ring, &mut sent, &mut ends);
    }
    ends
}

fn walk(entries: &[Entry], ring: RingId, sent: &mut u64, ends: &mut Vec<(u64, u64)>) {
    for entry in entries {
        match entry {
            Entry::Slot(Slot {
                action: Action::Send { ring: r, count, .. },
                ..
            }) if *r == ring => {
                ends.push((*sent, *sent + count));
                *sent += count;
            }
            Entry::Slot(_) => {}
            Entry::Loop { count, body } => {
                for _ in 0..*count {
                    let before = ends.len();
                    walk(body, ring, sent, ends);
                    if ends.len() == before {
                        break;
                    }
                }
            }
        }
    }
}
