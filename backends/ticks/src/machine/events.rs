//! Runs that visit only ticks with calendar entries.

use std::collections::{BTreeMap, VecDeque};

use zbmd_ir::TiVec;
use zbmd_ticks::{LinkId, Network, NodeId};

use super::application::Application;
use super::calendar::{Entry, Work};
use super::{RunError, RunInput, RunOutcome, WaitingFrame};

/// An entry of some node's calendar, in the order in which a tick's work is done on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NodeEntry {
    entry: Entry,
    node: NodeId,
}

pub(super) fn run(
    input: &RunInput<'_>,
    network: &Network,
    mut application: Application<'_>,
    entries: TiVec<NodeId, Vec<Entry>>,
    ticks: u64,
) -> Result<RunOutcome, RunError> {
    let all = entries.into_iter_enumerated().flat_map(|(node, entries)| {
        let entries = entries.into_iter();
        entries.map(move |entry| NodeEntry { entry, node })
    });
    let mut all: Vec<NodeEntry> = all.collect();
    all.sort_unstable();

    let period = input.plan.period;
    let mut flight: TiVec<LinkId, VecDeque<Vec<u8>>> =
        vec![VecDeque::new(); network.links().len()].into();
    let mut waiting: BTreeMap<WaitingFrame, Vec<u8>> = BTreeMap::new();
    let mut frames = 0;
    let mut base = 0;
    while base < ticks {
        for NodeEntry { entry, node } in &all {
            let tick = base + entry.residue;
            let Some(iteration) = entry.iteration(tick, period, application.iterations) else {
                continue;
            };
            if tick >= ticks {
                break;
            }
            match entry.work {
                Work::Complete { actor, firing } => application.end(actor, firing, iteration),
                Work::Compute { actor, firing } => application.start(actor, firing, iteration)?,
                Work::Gather {
                    message,
                    hop,
                    frame,
                } => {
                    let payload = take_payload(
                        &mut application,
                        &mut waiting,
                        WaitingFrame {
                            node: *node,
                            message,
                            hop,
                            frame,
                            iteration,
                        },
                    );
                    frames += 1;
                    let link = input.plan.messages[message].hops[hop].link;
                    flight[link].push_back(payload);
                }
                Work::Scatter {
                    message,
                    hop,
                    frame,
                } => {
                    let hops = &input.plan.messages[message].hops;
                    let payload = flight[hops[hop].link].pop_front().unwrap_or_default();
                    let waiting_frame = WaitingFrame {
                        node: *node,
                        message,
                        hop: hop + 1,
                        frame,
                        iteration,
                    };
                    if hop + 1 == hops.len() {
                        application.write_frame(message, frame, iteration, &payload);
                    } else {
                        waiting.insert(waiting_frame, payload);
                    }
                }
            }
        }
        base += period;
    }
    Ok(RunOutcome {
        iterations: application.iterations,
        outputs: application.into_outputs(),
        ticks,
        frames,
        fills: None,
        fault: None,
    })
}

/// The payload that a node sends: from its memory, or one that it sends on.
pub(super) fn take_payload(
    application: &mut Application<'_>,
    waiting: &mut BTreeMap<WaitingFrame, Vec<u8>>,
    sent: WaitingFrame,
) -> Vec<u8> {
    if sent.hop == 0 {
        application.read_frame(sent.message, sent.frame, sent.iteration)
    } else {
        waiting.remove(&sent).unwrap_or_default()
    }
}
