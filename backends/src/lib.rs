//! Kernels and devices. Never plans; validates nothing that a verifier has checked.

pub mod devices;
pub mod gpu;
pub mod interpret;
pub mod op;
mod ops;
#[cfg(test)]
mod tests;

#[cfg(feature = "cuda")]
pub use zbmd_cuda as cuda;
pub use zbmd_gpu_ir as kernels;
pub use zbmd_hal as replay;
pub use zbmd_op::{call, kernel, team};
pub use zbmd_ops_nn::{TensorInput, TensorOp};
#[cfg(feature = "vulkan")]
pub use zbmd_vulkan as vulkan;
