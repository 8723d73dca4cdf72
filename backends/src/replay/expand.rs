//! A calendar's slots in execution order, loops counted out, cut into segments. Knows no device.

use std::collections::BTreeMap;

use zbmd_ir::{Action, ActorId, BufferId, Calendar, Entry, RingId};

/// One execution of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exec {
    pub(super) stage: u32,
    pub(super) what: What,
}

/// What an execution does: [`Action`] with its place in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Fire {
        actor: ActorId,
        first: u64,
        count: u64,
    },
    Send {
        ring: RingId,
        first: u64,
        count: u64,
    },
    Recv {
        ring: RingId,
        first: u64,
        count: u64,
    },
    Release {
        ring: RingId,
    },
    Carry {
        buffer: BufferId,
    },
}

/// Slots between two points at which the device waits for others: it receives, computes, then sends and releases.
///
/// Tokens may be received earlier than in the calendar, and given out later, but never across the end of a segment,
/// which lies before each receipt that follows a sending or a release: another device may need the one to do the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) execs: Vec<Exec>,
}

/// More executions than a calendar of command buffers is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// The segments of a calendar of at most `limit` executions.
pub(super) fn segments(calendar: &Calendar, limit: usize) -> Result<Vec<Segment>, TooMany> {
    let mut expand = Expand {
        limit,
        cursors: BTreeMap::new(),
        execs: Vec::new(),
    };
    for lane in &calendar.lanes {
        expand.entries(&lane.entries)?;
    }
    let mut segments = vec![Segment::default()];
    let mut gave = false;
    for exec in expand.execs {
        let receives = matches!(exec.what, What::Recv { .. });
        if receives && gave {
            segments.push(Segment::default());
            gave = false;
        }
        gave |= matches!(exec.what, What::Send { .. } | What::Release { .. });
        if let Some(segment) = segments.last_mut() {
            segment.push(exec);
        }
    }
    Ok(segments)
}

impl Segment {
    /// Adds an execution; transfers that go on where the last one ended are one.
    fn push(&mut self, exec: Exec) {
        if let (Some(last), What::Recv { ring, first, count }) = (self.execs.last_mut(), exec.what)
            && let What::Recv {
                ring: same,
                first: start,
                count: so_far,
            } = &mut last.what
            && (*same, *start + *so_far, last.stage) == (ring, first, exec.stage)
        {
            *so_far += count;
            return;
        }
        self.execs.push(exec);
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Counted {
    Actor(ActorId),
    Send(RingId),
    Recv(RingId),
}

struct Expand {
    limit: usize,
    /// Where the next execution goes on.
    cursors: BTreeMap<Counted, u64>,
    execs: Vec<Exec>,
}

impl Expand {
    fn entries(&mut self, entries: &[Entry]) -> Result<(), TooMany> {
        for entry in entries {
            match entry {
                Entry::Slot(slot) => self.slot(slot.stage, slot.action)?,
                Entry::Loop { count, body } => {
                    for _ in 0..*count {
                        self.entries(body)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn slot(&mut self, stage: u32, action: Action) -> Result<(), TooMany> {
        if self.execs.len() >= self.limit {
            return Err(TooMany);
        }
        // A verified calendar does an actor's firings, and a ring's tokens, one after the other.
        let mut next = |counted, by: u64| {
            let cursor = self.cursors.entry(counted).or_insert(0);
            *cursor += by;
            *cursor - by
        };
        let what = match action {
            Action::Fire { actor, count, .. } => What::Fire {
                actor,
                first: next(Counted::Actor(actor), count),
                count,
            },
            Action::Send { ring, count, .. } => What::Send {
                ring,
                first: next(Counted::Send(ring), count),
                count,
            },
            Action::Recv { ring, count, .. } => What::Recv {
                ring,
                first: next(Counted::Recv(ring), count),
                count,
            },
            Action::Release { ring } => What::Release { ring },
            Action::Carry { buffer } => What::Carry { buffer },
        };
        self.execs.push(Exec { stage, what });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::{DeviceId, Lane, LaneKind, Slot};

    fn slot(action: Action) -> Entry {
        Entry::Slot(Slot {
            stage: 0,
            start_ns: 0,
            duration_ns: 1,
            action,
        })
    }

    fn calendar(entries: Vec<Entry>) -> Calendar {
        Calendar {
            device: DeviceId(0),
            arena_bytes: 0,
            exchange_bytes: 0,
            scratch_offset_bytes: 0,
            scratch_bytes: 0,
            lanes: vec![Lane {
                kind: LaneKind::Compute,
                entries,
            }],
        }
    }

    #[test]
    fn loops_go_on_where_they_were_and_segments_end_before_receipts() {
        let (a, r, s) = (ActorId(1), RingId(0), RingId(1));
        let fire = |first, count| {
            slot(Action::Fire {
                actor: a,
                first,
                count,
            })
        };
        let recv = |first, count| {
            slot(Action::Recv {
                ring: r,
                first,
                count,
            })
        };
        let send = |first, count| {
            slot(Action::Send {
                ring: s,
                first,
                count,
            })
        };
        let entries = vec![
            recv(0, 1),
            recv(1, 2),
            fire(0, 1),
            Entry::Loop {
                count: 2,
                body: vec![fire(1, 1), send(0, 3)],
            },
            recv(3, 1),
            fire(3, 2),
            slot(Action::Release { ring: r }),
        ];
        let segments = segments(&calendar(entries), 100).expect("few");
        let texts: Vec<Vec<String>> = segments
            .iter()
            .map(|s| s.execs.iter().map(|e| format!("{:?}", e.what)).collect())
            .collect();
        assert_eq!(
            texts,
            [
                vec![
                    "Recv { ring: r0, first: 0, count: 3 }",
                    "Fire { actor: a1, first: 0, count: 1 }",
                    "Fire { actor: a1, first: 1, count: 1 }",
                    "Send { ring: r1, first: 0, count: 3 }",
                    "Fire { actor: a1, first: 2, count: 1 }",
                    "Send { ring: r1, first: 3, count: 3 }",
                ],
                vec![
                    "Recv { ring: r0, first: 3, count: 1 }",
                    "Fire { actor: a1, first: 3, count: 2 }",
                    "Release { ring: r0 }",
                ],
            ]
        );
    }

    #[test]
    fn long_calendars_are_refused() {
        let body = vec![slot(Action::Release { ring: RingId(0) })];
        let entries = vec![Entry::Loop {
            count: 1 << 40,
            body,
        }];
        assert_eq!(segments(&calendar(entries), 1000), Err(TooMany));
    }
}
