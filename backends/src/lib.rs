//! Kernels and devices. Never plans; validates nothing that a verifier has checked.

pub mod call;
pub mod devices;
mod expr;
mod expr_kernels;
pub mod gpu;
pub mod interpret;
pub mod kernel;
mod math;
pub mod op;
mod ops;
#[cfg(test)]
mod reference;
mod simd;
pub mod team;
#[cfg(test)]
mod tests;

pub use ops::nn::{TensorInput, TensorOp};
#[cfg(feature = "cuda")]
pub use zbmd_cuda as cuda;
pub use zbmd_gpu_ir as kernels;
pub use zbmd_hal as replay;
#[cfg(feature = "vulkan")]
pub use zbmd_vulkan as vulkan;
