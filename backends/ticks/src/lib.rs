//! Simulation of tick machines: [`clock`] has oscillators, elastic buffers and the control that keeps them together, [`machine`]
//! applications that run on them tick by tick.
//!
//! Knows no scheduler. Everything is decided by the machine and its seed: the same input gives the same numbers, on every
//! computer, because only the basic operations of IEEE 754 are used.

pub mod clock;
pub mod machine;
mod sequence;
