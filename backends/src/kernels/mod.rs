//! Kernels for GPUs, in a language of their own that back ends print as their machine's code.
//!
//! An op provides a [`KernelPlan`] beside its CPU kernel: a few steps, each a copy or a run of one kernel over the ports'
//! memory, the same for every device. Nothing here knows a driver, an arena, a calendar or an op.
#![cfg_attr(
    not(any(feature = "cuda", feature = "vulkan")),
    allow(
        dead_code,
        unused_imports,
        unreachable_pub,
        reason = "kernels are read by the back ends that print them"
    )
)]

mod convert;
mod copy;
mod factors;
mod fft;
mod fir;
mod frame;
mod generate;
mod iir;
pub(crate) mod lang;
pub(crate) mod library;
pub(crate) mod math;
mod matrix;
mod plan;
mod reduce;
pub(crate) mod tensor;
#[cfg(test)]
mod tests;
pub(crate) mod wide;

pub(crate) use convert::{cast, decode, encode};
pub(crate) use copy::{Dim, Part, pattern, straight, strided, strided_parts};
pub use factors::{Math, UnknownMath};
pub(crate) use fft::{Transform, fft};
pub(crate) use fir::{FirPhase, fir};
pub(crate) use frame::{overlap_add, window};
pub(crate) use generate::{counter, mix, noise, tone};
pub(crate) use iir::{biquad, discriminate};
pub use lang::Needs;
pub(crate) use matrix::{MatMul, matmul};
pub(crate) use plan::{Amount, Grid, KernelRun, Operand, Step};
pub use plan::{Caps, KernelPlan, LowerKernels};
pub(crate) use reduce::{Reduction, reduce};
