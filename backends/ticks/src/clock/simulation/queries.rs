//! What a simulation can be asked.

use zbmd_ticks::{LinkId, Network, NodeId};

use super::{ClockSimulation, FillRange};
use crate::clock::fault::{Notice, NoticeKind};

impl<'a> ClockSimulation<'a> {
    /// When something next happens, if anything does: up to then all frequencies stay as they are.
    pub fn next_event(&self) -> Option<f64> {
        self.queue.peek().map(|next| next.time)
    }

    /// When a tick of a node begins, in nominal ticks, with its present frequency. Ticks are counted from the node's
    /// start; the first begins within the first nominal tick.
    pub fn time_of_tick(&self, node: NodeId, tick: u64) -> f64 {
        self.nodes[node].phase.time_of(tick as f64 + 1.0)
    }

    /// Most pieces of phase that any node keeps: the memory that grows with a run, and must not.
    pub fn pieces_per_node(&self) -> usize {
        let pieces = self.nodes.iter().map(|node| node.phase.len());
        pieces.max().unwrap_or(0)
    }

    /// The time up to which the simulation has run.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// The network.
    pub fn network(&self) -> &'a Network {
        self.network
    }

    /// Control steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Present frequency of a node, where 1 is nominal; `None` if it does not run.
    pub fn frequency(&self, node: NodeId) -> Option<f64> {
        let clock = &self.nodes[node];
        clock.is_running.then(|| clock.phase.last().frequency)
    }

    /// Present frequency that a node would have without control.
    pub fn free_frequency(&self, node: NodeId) -> f64 {
        self.nodes[node].oscillator.frequency(self.now)
    }

    /// Present correction of a node.
    pub fn correction(&self, node: NodeId) -> f64 {
        self.nodes[node].controller.correction()
    }

    /// Ticks of a node since its start, with their fraction; `None` if it does not run.
    pub fn phase(&self, node: NodeId) -> Option<f64> {
        let clock = &self.nodes[node];
        clock.is_running.then(|| clock.phase.at(self.now))
    }

    /// Frames in a link's buffer; `None` if the link is down.
    pub fn fill(&self, link: LinkId) -> Option<i64> {
        self.fill_at(link, self.now)
    }

    /// The logical latency of a link in ticks; `None` if the link is down.
    pub fn logical_latency(&self, link: LinkId) -> Option<i64> {
        self.links[link].up.map(|up| up.latency)
    }

    /// Smallest and largest fill of a link's buffer while it was up, or since buffers were centred, up to the last
    /// control step of its node; `None` if it has never been up.
    pub fn fill_range(&self, link: LinkId) -> Option<FillRange> {
        let (min, max) = (self.links[link].min_fill, self.links[link].max_fill);
        (min <= max).then_some(FillRange { min, max })
    }

    /// What nodes have noticed, in the order in which it was found: an over- or underflow at the next control step of
    /// its node, with the time at which it was. The first 10,000.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// All notices, those that are not kept among them.
    pub fn notice_count(&self) -> u64 {
        self.notice_count
    }

    /// Buffers that overflowed or underflowed, among the notices that are kept.
    pub fn buffer_faults(&self) -> impl Iterator<Item = &Notice> {
        let faults = [NoticeKind::Overflow, NoticeKind::Underflow];
        self.notices
            .iter()
            .filter(move |n| faults.contains(&n.kind))
    }
}
