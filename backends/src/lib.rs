//! Kernels and devices. Never plans; validates nothing that a verifier has checked.

pub mod call;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod devices;
mod expr;
mod expr_kernels;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
pub mod gpu;
pub mod interpret;
pub mod kernel;
pub mod kernels;
mod math;
pub mod op;
mod ops;
#[cfg(test)]
mod reference;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
pub mod replay;
mod simd;
pub mod team;

pub use ops::nn::{TensorInput, TensorOp};
#[cfg(feature = "vulkan")]
pub mod vulkan;
