//! Deterministic simulation of a run and its losses: the *same* supervisor, borders, tree and detector that the
//! executor uses, driven by a simulated clock over simulated devices, links, processes and disk, against an oracle of
//! tokens that shares no code with any of it (after FoundationDB's and TigerBeetle's simulators).
//!
//! One seed is one *history*: a model, a declaration, a list of faults, the delay of every message. A pipeline with
//! feedback runs over the devices; tokens are hash chains of state and input, so that any token that is lost, doubled,
//! out of order or computed from a wrong state, in a wrong mode or with a wrong live value changes what comes out from
//! there on.
//!
//! What is checked in each history:
//! - every output exactly once, in order, with the right value;
//! - the state taken at each border is the one that the oracle has there;
//! - no input token is read after it was freed, none is kept beyond the capacity, no more areas and epochs live than
//!   there may;
//! - never two workers on one device of which none was told to die;
//! - a worker is declared hung only if it hangs, and if it does, within 5 ms and two bounds of its slot;
//! - the run ends: finished, as requested, or given up for a reason that the simulator finds true by its own count.

mod bugs;
mod disk;
mod driver;
mod epoch;
mod model;
mod scenario;
mod watch;
mod worker;
mod world;

pub use bugs::Bug;
pub use world::{Summary, Violation, history, history_of_hosts, large};
