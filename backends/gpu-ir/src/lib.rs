//! Kernels for GPUs, in a language of their own that back ends print as their machine's code.
//!
//! An op provides a [`KernelPlan`] beside its CPU kernel: a few steps, each a copy or a run of one kernel over the ports'
//! memory, the same for every device. Nothing here knows a driver, an arena, a calendar or an op.

mod convert;
mod copy;
pub mod emit;
mod factors;
mod fft;
mod fir;
mod frame;
mod gate;
mod generate;
mod iir;
pub mod lang;
pub mod library;
pub mod math;
mod matrix;
mod plan;
mod reduce;
pub mod tensor;
#[cfg(test)]
mod tests;
pub mod wide;

pub use convert::{cast, decode, encode};
pub use copy::{Dim, Part, pattern, straight, strided, strided_parts};
pub use factors::{Math, UnknownMath};
pub use fft::{Transform, fft};
pub use fir::{FirPhase, fir};
pub use frame::{overlap_add, window};
pub use gate::{GatedOutput, TABLE_WORD, behind_gate};
pub use generate::{counter, mix, noise, tone};
pub use iir::{biquad, discriminate};
pub use lang::Needs;
pub use matrix::{MatMul, matmul};
pub use plan::{Amount, Grid, KernelRun, Operand, Step};
pub use plan::{Caps, KernelPlan, LowerKernels};
pub use reduce::{Reduction, reduce};
