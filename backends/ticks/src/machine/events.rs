//! Runs that visit only ticks with calendar entries.

use std::collections::{BTreeMap, VecDeque};

use zbmd_ir::TiVec;
use zbmd_ticks::{LinkId, Network, NodeId};

use super::application::Application;
use super::calendar::{Entry, Work};
use super::recovery::PlanSpan;
use super::{RunError, RunInput, RunOutcome, WaitingFrame};

/// An entry of some node's calendar, in the order in which a tick's work is done on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NodeEntry {
    entry: Entry,
    node: NodeId,
}

struct EventRun<'a> {
    input: &'a RunInput<'a>,
    application: Application<'a>,
    /// Frames with tokens that are on each link.
    flight: TiVec<LinkId, VecDeque<Vec<u8>>>,
    waiting: BTreeMap<WaitingFrame, Vec<u8>>,
    frames: u64,
}

pub(super) fn run<'a>(
    input: &'a RunInput<'a>,
    network: &Network,
    application: Application<'a>,
    entries: TiVec<NodeId, Vec<Entry>>,
) -> Result<RunOutcome, RunError> {
    let ticks = PlanSpan::new(input, input.plan, &entries, application.iterations).end_tick;
    let all = entries.into_iter_enumerated().flat_map(|(node, entries)| {
        let entries = entries.into_iter();
        entries.map(move |entry| NodeEntry { entry, node })
    });
    let mut all: Vec<NodeEntry> = all.collect();
    all.sort_unstable();

    let mut run = EventRun {
        input,
        application,
        flight: vec![VecDeque::new(); network.links().len()].into(),
        waiting: BTreeMap::new(),
        frames: 0,
    };
    run.run(&all, ticks)?;
    Ok(RunOutcome {
        iterations: run.application.iterations,
        outputs: run.application.into_outputs(),
        ticks,
        frames: run.frames,
        fills: None,
        recoveries: Vec::new(),
        stops: Vec::new(),
        fault: None,
    })
}

impl EventRun<'_> {
    fn run(&mut self, entries: &[NodeEntry], ticks: u64) -> Result<(), RunError> {
        let period = self.input.plan.period;
        let iterations = self.application.iterations;
        let mut period_start = 0;
        while period_start < ticks {
            for NodeEntry { entry, node } in entries {
                let tick = period_start + entry.residue;
                if tick >= ticks {
                    break;
                }
                if let Some(iteration) = entry.iteration(tick, period, iterations) {
                    self.perform(*node, entry.work, iteration)?;
                }
            }
            period_start += period;
        }
        Ok(())
    }

    fn perform(&mut self, node: NodeId, work: Work, iteration: u64) -> Result<(), RunError> {
        match work {
            Work::Complete { actor, firing } => self.application.end(actor, firing, iteration),
            Work::Compute { actor, firing } => {
                self.application.start(actor, firing, iteration)?;
            }
            Work::Gather {
                carried,
                hop,
                frame,
            } => {
                let sent = WaitingFrame {
                    node,
                    carried,
                    hop,
                    frame,
                    iteration,
                };
                let payload = take_payload(&mut self.application, &mut self.waiting, sent);
                self.frames += 1;
                let link = self.application.hops(carried)[hop].link;
                self.flight[link].push_back(payload);
            }
            Work::Scatter {
                carried,
                hop,
                frame,
            } => {
                let link = self.application.hops(carried)[hop].link;
                let payload = self.flight[link].pop_front().unwrap_or_default();
                let taken = WaitingFrame {
                    node,
                    carried,
                    hop: hop + 1,
                    frame,
                    iteration,
                };
                self.keep(taken, payload);
            }
        }
        Ok(())
    }

    fn keep(&mut self, taken: WaitingFrame, payload: Vec<u8>) {
        if taken.hop == self.application.hops(taken.carried).len() {
            self.application.write_frame(taken, &payload);
        } else {
            self.waiting.insert(taken, payload);
        }
    }
}

/// The payload that a node sends: from its memory, or one that it sends on.
pub(super) fn take_payload(
    application: &mut Application<'_>,
    waiting: &mut BTreeMap<WaitingFrame, Vec<u8>>,
    sent: WaitingFrame,
) -> Vec<u8> {
    if sent.hop == 0 {
        application.read_frame(sent)
    } else {
        waiting.remove(&sent).unwrap_or_default()
    }
}
