//! Machines that keep time, and calendars to the tick.
//!
//! A *tick machine* is a [`Network`] of nodes that share a logical clock (bittide: Lall, Cascaval, Izzard & Spalink,
//! "Modeling and Control of bittide Synchronization", ACC 2022). In every tick a node sends one frame on each of its
//! outgoing links and takes one frame from each of its incoming links. A frame that is sent on a link in tick t of its
//! sender is taken in tick t + L of its receiver, where L is the link's *logical latency*: it never changes while the
//! link is up, however the oscillators drift, because the link is a queue into which one frame goes and from which one
//! frame comes in every tick.
//!
//! Knows no scheduler and no simulation.

mod border;
mod clocks;
mod contingency;
mod drawing;
mod lanes;
mod machine;
mod network;
mod plan;
mod text;
mod topology;
pub mod verify;

pub use border::{BorderCopy, WATCHED_FRAMES, writes_border};
pub use clocks::{Clocks, ClocksError, Control, ControlLaw, ElasticBuffers, Oscillators, Ramp};
pub use contingency::{ContingencyError, TickContingencies, TickContingency, TickLoss};
pub use drawing::tick_drawing;
pub use lanes::tick_lanes;
pub use machine::{MachineError, TickMachine};
pub use network::{LinkEnds, LinkId, Network, NetworkError, NodeId};
pub use plan::{FrameRun, Hop, Message, TickBuffer, TickPlan};
pub use text::tick_calendar;
pub use topology::{Topology, TopologyError};
pub use verify::{TickError, VerifiedPlan, verify, verify_without};
