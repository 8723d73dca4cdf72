//! Deterministic simulation of the council: the *same* voters that agents and conductors run ([`zbmd_council::node`], raft-rs
//! within), on one queue of events with a simulated network, clocks that drift, and disks that lose what was not synced.
//!
//! One seed is one *history*. On top of the voters runs what the council is for: the leader opens an epoch, computes borders,
//! copies each to those who may take over, has it decided, and gives out what belongs to it. Voters are killed and started
//! again, stopped and continued, messages get lost, doubled and late, links are cut in one direction or both.
//!
//! What is checked in each history:
//! - at most one voter may act as the conductor at any time, by everybody's own clock;
//! - what one voter holds for decided, all do: nothing that was decided is lost or changed;
//! - what is decided is on the synced disks of a majority, so no minority decides;
//! - no two epochs have the same number, and no agent goes back from one to an earlier one;
//! - what is given out by all conductors together has no gap and no other values, and nobody gives out anything after the
//!   conductor of a later epoch has begun to;
//! - whoever takes over has the state of the last border;
//! - once the faults are over, the run goes on within a second.

mod bugs;
mod conduct;
mod disk;
mod network;
mod processes;
mod scenario;
mod voter;
mod watch;
mod world;

pub use bugs::CouncilBug;
pub use watch::CouncilViolation;
pub use world::{CouncilSummary, council_history};
