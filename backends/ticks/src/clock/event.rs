//! What happens to a machine from outside.

use zbmd_ticks::{LinkId, NodeId};

/// Something that happens to a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClockEvent {
    /// A node is switched on. Its links come up when the first frames have arrived. A node whose first event this is is
    /// off before.
    StartNode(NodeId),
    /// A node dies. Its neighbours notice when the frames that were under way have arrived.
    StopNode(NodeId),
    /// A one-way link is mended.
    StartLink(LinkId),
    /// A one-way link is cut at its sending end.
    StopLink(LinkId),
    /// All buffers are brought to their initial fill, and all nodes go on from the corrections that they have: the
    /// logical latencies change once more, and buffers need only hold what drift does from then on. (Lall & Spalink,
    /// "On Buffer Centering for bittide Synchronization", CoDIT 2023.)
    CentreBuffers,
}

/// When something happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedEvent {
    /// In nominal ticks.
    pub time: f64,
    /// What happens.
    pub event: ClockEvent,
}
