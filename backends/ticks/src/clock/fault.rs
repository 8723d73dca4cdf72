//! Errors, and what was noticed in a run.

use zbmd_ticks::{ClocksError, LinkId, NodeId};

/// Why a simulation cannot be made, or cannot go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClockError {
    /// The clocks make no sense.
    #[error(transparent)]
    Clocks(#[from] ClocksError),
    /// Propagation times do not fit the network.
    #[error("{found} propagation times for {links} one-way links: give one for each")]
    PropagationCount {
        /// Propagation times.
        found: usize,
        /// One-way links.
        links: usize,
    },
    /// A propagation time that makes no sense.
    #[error("the propagation time of {link} is {found} ticks, but must be between 0 and 1e12")]
    Propagation {
        /// The link.
        link: LinkId,
        /// Its propagation time.
        found: f64,
    },
    /// An event names what does not exist, or has no possible time.
    #[error("event {index} at {time} ticks is impossible: {reason}")]
    Event {
        /// Index in the list of events.
        index: usize,
        /// Its time.
        time: f64,
        /// Why.
        reason: &'static str,
    },
    /// Control drove a clock out of the range in which it makes sense.
    #[error(
        "the frequency of {node} is {frequency} of the nominal one at tick {time}, but must be between 0.5 and 2: lower the gains"
    )]
    Frequency {
        /// The node.
        node: NodeId,
        /// Time in nominal ticks.
        time: f64,
        /// The frequency.
        frequency: f64,
    },
}

/// Something that a node notices about a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Notice {
    /// The link, at whose receiving end it was noticed.
    pub link: LinkId,
    /// When, in nominal ticks.
    pub time: f64,
    /// What.
    pub kind: NoticeKind,
}

/// What was noticed about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// Frames arrive: from now on the frame of the sender's tick m is taken in the receiver's tick m + `latency`.
    Up {
        /// The logical latency in ticks. It may be negative, because each node counts its ticks from its own start.
        latency: i64,
    },
    /// Frames have ceased to arrive. The first that is missing was due in the receiver's tick `due_tick`.
    Silent {
        /// The receiver's tick.
        due_tick: i64,
    },
    /// A tick came and the buffer was empty.
    Underflow,
    /// A frame came and the buffer was full.
    Overflow,
}
