//! A calendar's slots in execution order, loops unrolled, divided into segments. Knows no device.

use std::collections::BTreeMap;

use zbmd_ir::{Action, ActorId, Calendar, Entry, RingId};

/// One execution of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotExecution {
    pub(super) stage: u32,
    /// With its place in the block: loops are unrolled, so `first` is where this execution begins.
    pub(super) action: Action,
}

/// Slots between two points at which the device waits for others: it receives, computes, then sends and releases.
///
/// Tokens may be received earlier than in the calendar, and sent later, but never across the end of a segment,
/// which is before each receipt that follows a send or a release: another device may need the latter for the former.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotSegment {
    pub(super) executions: Vec<SlotExecution>,
}

/// More executions than are worth recording as commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManySlots;

/// The segments of a calendar of at most `limit` executions.
pub(super) fn expand_segments(
    calendar: &Calendar,
    limit: usize,
) -> Result<Vec<SlotSegment>, TooManySlots> {
    let mut expansion = SlotExpansion {
        limit,
        cursors: BTreeMap::new(),
        executions: Vec::new(),
    };
    for lane in &calendar.lanes {
        expansion.expand_entries(&lane.entries)?;
    }

    let mut segments = vec![SlotSegment::default()];
    let mut has_handed_over = false;
    for execution in expansion.executions {
        let receives = matches!(execution.action, Action::Recv { .. });
        if receives && has_handed_over {
            segments.push(SlotSegment::default());
            has_handed_over = false;
        }
        has_handed_over |= matches!(
            execution.action,
            Action::Send { .. } | Action::Release { .. }
        );
        if let Some(segment) = segments.last_mut() {
            segment.push_execution(execution);
        }
    }
    Ok(segments)
}

impl SlotSegment {
    /// Adds an execution; a receipt that continues the one before is joined with it.
    fn push_execution(&mut self, execution: SlotExecution) {
        if let Action::Recv { ring, first, count } = execution.action
            && let Some(last) = self.executions.last_mut()
            && last.stage == execution.stage
            && let Action::Recv {
                ring: last_ring,
                first: last_first,
                count: last_count,
            } = &mut last.action
            && *last_ring == ring
            && *last_first + *last_count == first
        {
            *last_count += count;
            return;
        }
        self.executions.push(execution);
    }
}

/// What goes on from one execution to the next.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum CursorKey {
    Actor(ActorId),
    Send(RingId),
    Recv(RingId),
}

/// A calendar whose entries are being unrolled.
struct SlotExpansion {
    limit: usize,
    /// Firings or tokens of earlier executions.
    cursors: BTreeMap<CursorKey, u64>,
    executions: Vec<SlotExecution>,
}

impl SlotExpansion {
    fn expand_entries(&mut self, entries: &[Entry]) -> Result<(), TooManySlots> {
        for entry in entries {
            match entry {
                Entry::Slot(slot) => self.push_slot(slot.stage, slot.action)?,
                Entry::Loop { count, body } => {
                    for _ in 0..*count {
                        self.expand_entries(body)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A verified calendar does an actor's firings, and a ring's tokens, one after the other: the first of this
    /// execution.
    fn advance_cursor(&mut self, key: CursorKey, count: u64) -> u64 {
        let cursor = self.cursors.entry(key).or_insert(0);
        let first = *cursor;
        *cursor += count;
        first
    }

    fn push_slot(&mut self, stage: u32, mut action: Action) -> Result<(), TooManySlots> {
        if self.executions.len() >= self.limit {
            return Err(TooManySlots);
        }

        match &mut action {
            Action::Fire {
                actor,
                first,
                count,
            } => *first = self.advance_cursor(CursorKey::Actor(*actor), *count),
            Action::Send { ring, first, count } => {
                *first = self.advance_cursor(CursorKey::Send(*ring), *count);
            }
            Action::Recv { ring, first, count } => {
                *first = self.advance_cursor(CursorKey::Recv(*ring), *count);
            }
            Action::Release { .. }
            | Action::Carry { .. }
            | Action::Fetch { .. }
            | Action::Await { .. } => {}
        }
        self.executions.push(SlotExecution { stage, action });
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
        let segments = expand_segments(&calendar(entries), 100).expect("few");
        let texts: Vec<Vec<String>> = segments
            .iter()
            .map(|s| {
                s.executions
                    .iter()
                    .map(|e| format!("{:?}", e.action))
                    .collect()
            })
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
        assert_eq!(expand_segments(&calendar(entries), 1000), Err(TooManySlots));
    }
}
