//! Puts the calls of runs into lanes, and moves the times of what comes after them.

use zbmd_ir::{Action, ActorId, DeviceId, Entry, Plan, Slot, walk};

use super::orders::RunOrder;
use super::{CallRun, ChunkOrder, ChunkedBuffer, stride_bytes};
use crate::assemble::{CallLowering, latency_ns};
use crate::cluster::ClusterCall;
use crate::live::{BufferIndex, index_buffers};
use crate::problem::BlockProblem;

/// A plan whose runs are put into another order.
pub(super) struct PlanRewrite<'p, 'a> {
    problem: &'p BlockProblem<'a>,
    original: &'p Plan,
    buffer_at: BufferIndex,
    plan: Plan,
    is_changed: bool,
}

/// Entries of a lane that call actors in one stage, each for all of its firings.
struct RunRange {
    first: usize,
    end: usize,
    stage: u32,
    actors: Vec<ActorId>,
}

impl<'p, 'a> PlanRewrite<'p, 'a> {
    pub(super) fn new(problem: &'p BlockProblem<'a>, original: &'p Plan) -> Self {
        Self {
            problem,
            original,
            buffer_at: index_buffers(original),
            plan: original.clone(),
            is_changed: false,
        }
    }

    /// Gives the runs of a calendar another order.
    pub(super) fn rewrite_calendar(&mut self, index: usize, order: ChunkOrder) {
        let device = self.original.calendars[index].device;
        for lane in 0..self.original.calendars[index].lanes.len() {
            // From the last run on, so that the places of those before stay what they are.
            let entries = &self.original.calendars[index].lanes[lane].entries;
            for range in self.find_runs(entries).into_iter().rev() {
                let Some(ordered) = self.order_run(device, &range, order) else {
                    continue;
                };
                for buffer in &ordered.buffers {
                    self.shrink(buffer);
                }
                self.drop_carries(index, lane, &ordered.buffers);
                self.replace(index, lane, &range, &ordered.calls);
            }
        }
    }

    fn find_runs(&self, entries: &[Entry]) -> Vec<RunRange> {
        let mut runs: Vec<RunRange> = Vec::new();
        for (position, entry) in entries.iter().enumerate() {
            let Some((actor, stage)) = self.whole_block(entry) else {
                continue;
            };
            match runs.last_mut() {
                Some(run) if run.end == position && run.stage == stage => {
                    run.end += 1;
                    run.actors.push(actor);
                }
                _ => runs.push(RunRange {
                    first: position,
                    end: position + 1,
                    stage,
                    actors: vec![actor],
                }),
            }
        }
        runs
    }

    /// The actor and the stage of an entry that fires all of a block.
    fn whole_block(&self, entry: &Entry) -> Option<(ActorId, u32)> {
        let &Entry::Slot(Slot {
            stage,
            action: Action::Fire { actor, count, .. },
            ..
        }) = entry
        else {
            return None;
        };
        let block_firings = self.problem.repetition[actor].saturating_mul(self.problem.block);
        (count == block_firings).then_some((actor, stage))
    }

    /// The calls of a run in another order; `None` where no buffer gets smaller.
    fn order_run(&self, device: DeviceId, range: &RunRange, order: ChunkOrder) -> Option<RunOrder> {
        let run = CallRun {
            problem: self.problem,
            plan: self.original,
            buffer_at: &self.buffer_at,
            device,
            actors: range.actors.clone(),
        };

        let mut whole = RunOrder::default();
        for group in run.connected_actors() {
            match run.order_group(&group, order) {
                Some(ordered) => {
                    whole.calls.extend(ordered.calls);
                    whole.buffers.extend(ordered.buffers);
                }
                None => whole
                    .calls
                    .extend(group.into_iter().map(|actor| ClusterCall::Fire {
                        actor,
                        count: run.block_firings(actor),
                    })),
            }
        }
        (!whole.buffers.is_empty()).then_some(whole)
    }

    fn shrink(&mut self, chunked: &ChunkedBuffer) {
        let buffer = &mut self.plan.buffers[chunked.id];
        buffer.head_tokens = chunked.head_tokens;
        buffer.chunk_tokens = chunked.chunk_tokens;
        let token = &self.problem.graph.channels[buffer.channel].token;
        buffer.stride_bytes = stride_bytes(buffer, token.bytes());
        self.is_changed = true;
    }

    /// Takes away the carries at the end of the period: chunks are carried where they end.
    fn drop_carries(&mut self, index: usize, lane: usize, chunked: &[ChunkedBuffer]) {
        let entries = &mut self.plan.calendars[index].lanes[lane].entries;
        entries.retain(|entry| match entry {
            Entry::Slot(Slot {
                action: Action::Carry { buffer },
                ..
            }) => chunked.iter().all(|chunked| chunked.id != *buffer),
            _ => true,
        });
    }

    /// Puts calls in the place of a run. Where they take longer, whatever starts after the run on any device starts that
    /// much later: so no order between devices changes.
    fn replace(&mut self, index: usize, lane: usize, range: &RunRange, calls: &[ClusterCall]) {
        let device = self.plan.calendars[index].device;
        let old_entries = &self.plan.calendars[index].lanes[lane].entries[range.first..range.end];
        let start_ns = old_entries.first().map_or(0, walk::start_ns);
        let end_ns = old_entries.last().map_or(0, walk::end_ns);

        let mut lowering = CallLowering::new(self.problem, device, range.stage, start_ns);
        let entries: Vec<Entry> = calls.iter().map(|call| lowering.lower(call)).collect();
        let later_ns = lowering.end_ns().saturating_sub(end_ns);

        for (calendar_index, calendar) in self.plan.calendars.iter_mut().enumerate() {
            for (lane_index, other) in calendar.lanes.iter_mut().enumerate() {
                let is_own = (calendar_index, lane_index) == (index, lane);
                for (position, entry) in other.entries.iter_mut().enumerate() {
                    let is_after = match is_own {
                        true => position >= range.end,
                        false => walk::start_ns(entry) >= end_ns,
                    };
                    if is_after {
                        delay(entry, later_ns);
                    }
                }
            }
        }
        self.plan.period_ns = self.plan.period_ns.saturating_add(later_ns);
        let own_entries = &mut self.plan.calendars[index].lanes[lane].entries;
        own_entries.splice(range.first..range.end, entries);
    }

    /// The plan; `None` where no buffer got smaller.
    pub(super) fn finish(mut self) -> Option<Plan> {
        if !self.is_changed {
            return None;
        }

        // A device alone waits for nobody.
        if let [calendar] = &mut self.plan.calendars[..] {
            for lane in &mut calendar.lanes {
                let end_ns = close_up(&mut lane.entries);
                self.plan.period_ns = end_ns.max(1);
            }
        }
        self.plan.latency_ns = latency_ns(&self.plan.calendars, self.plan.period_ns);
        Some(self.plan)
    }
}

/// Starts an entry later.
fn delay(entry: &mut Entry, later_ns: u64) {
    match entry {
        Entry::Slot(slot) => slot.start_ns = slot.start_ns.saturating_add(later_ns),
        Entry::Loop { body, .. } => body.iter_mut().for_each(|entry| delay(entry, later_ns)),
    }
}

/// Starts an entry earlier.
fn advance(entry: &mut Entry, earlier_ns: u64) {
    match entry {
        Entry::Slot(slot) => slot.start_ns = slot.start_ns.saturating_sub(earlier_ns),
        Entry::Loop { body, .. } => body.iter_mut().for_each(|entry| advance(entry, earlier_ns)),
    }
}

/// Starts each entry of a lane as soon as the one before has ended; the end of the last.
fn close_up(entries: &mut [Entry]) -> u64 {
    let mut now_ns = 0;
    for entry in entries {
        let gap_ns = walk::start_ns(entry).saturating_sub(now_ns);
        advance(entry, gap_ns);
        now_ns = walk::end_ns(entry);
    }
    now_ns
}
