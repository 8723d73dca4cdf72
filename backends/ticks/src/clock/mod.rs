//! Clock control of bittide, simulated from event to event.
//!
//! The model is the *abstract frame model* of Lall, Cascaval, Izzard & Spalink ("Modeling and Control of bittide
//! Synchronization", ACC 2022). Node i has a phase, the number of ticks since its start with its fraction. Between two
//! corrections its frequency is constant, so that a phase is a piecewise linear function of time. The elastic buffer of
//! a link from j to i, with propagation p, holds at time t
//!
//! ```text
//! fill(t) = latency + floor(phase_j(t - p)) - floor(phase_i(t))
//! ```
//!
//! frames. `latency` is set when the link comes up, so that the buffer has its initial fill, and is constant from then
//! on: it is the *logical latency*, the tick of i in which a frame of j's tick m is taken being m + latency.
//!
//! A node is visited once in a control period, whatever happens in between: the work is the number of nodes times the
//! number of periods. Fills are extreme where one of the two frequencies changes, and are looked at there, so that
//! overflow and underflow are found exactly although no frame is simulated. Memory is a few pieces of phase for each
//! node, whatever the length of the run.

mod control;
mod event;
mod fault;
mod link;
mod oscillator;
mod phase;
mod plot;
mod record;
mod simulation;
#[cfg(test)]
mod tests;
pub mod theory;

pub use event::{ClockEvent, TimedEvent};
pub use fault::{ClockError, Notice, NoticeKind};
pub use plot::{Curve, Plot};
pub use record::{Recorder, Sample};
pub use simulation::{ClockSimulation, ControlStep, FillRange};
