//! What each node does in which tick of the period.

use zbmd_ir::{ActorId, TiVec};
use zbmd_ticks::{Network, NodeId, TickMachine, VerifiedPlan};

/// What a frame is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Carried {
    /// A message of the plan.
    Message(usize),
    /// Tokens of a border that are brought to another node after a loss.
    Border(usize),
}

/// What a node does, in the order in which it does the work of one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// A firing ends: its outputs are in memory.
    Complete { actor: ActorId, firing: u64 },
    /// A frame is put on a link.
    Gather {
        carried: Carried,
        hop: usize,
        frame: u64,
    },
    /// A firing starts: it reads its windows.
    Compute { actor: ActorId, firing: u64 },
    /// A frame is taken from a link.
    Scatter {
        carried: Carried,
        hop: usize,
        frame: u64,
    },
}

/// Work that is done in tick `start` of iteration 0, and every period after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    /// The tick, modulo the period.
    pub(crate) residue: u64,
    pub(crate) work: Work,
    pub(crate) start: u64,
}

impl Entry {
    /// The iteration whose work this is in a tick, if there is one.
    pub(crate) fn iteration(&self, tick: u64, period: u64, iterations: u64) -> Option<u64> {
        let iteration = tick.checked_sub(self.start)? / period;
        (iteration < iterations).then_some(iteration)
    }
}

/// The entries of all nodes, each in the order of [`Entry`].
pub(crate) fn calendars(
    plan: &VerifiedPlan,
    machine: &TickMachine,
    network: &Network,
    durations: &TiVec<ActorId, u64>,
) -> TiVec<NodeId, Vec<Entry>> {
    let mut entries: TiVec<NodeId, Vec<Entry>> = vec![Vec::new(); network.node_count()].into();
    let mut add = |node: NodeId, start: u64, work: Work| {
        entries[node].push(Entry {
            residue: start % plan.period,
            work,
            start,
        });
    };

    for (actor, starts) in plan.starts.iter_enumerated() {
        let node = plan.placement[actor];
        for (firing, &start) in (0..).zip(starts) {
            add(node, start, Work::Compute { actor, firing });
            add(
                node,
                start + durations[actor],
                Work::Complete { actor, firing },
            );
        }
    }

    for (message, sent) in plan.messages.iter().enumerate() {
        let carried = Carried::Message(message);
        for (hop, frames) in sent.hops.iter().enumerate() {
            let ends = network.links()[frames.link];
            for (frame, tick) in (0..).zip(frames.ticks()) {
                add(
                    ends.from,
                    tick,
                    Work::Gather {
                        carried,
                        hop,
                        frame,
                    },
                );
                let taken = tick + machine.latency_ticks;
                add(
                    ends.to,
                    taken,
                    Work::Scatter {
                        carried,
                        hop,
                        frame,
                    },
                );
            }
        }
    }

    for entries in &mut entries {
        entries.sort_unstable();
    }
    entries
}
