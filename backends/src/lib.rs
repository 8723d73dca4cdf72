//! Kernels and devices. Never plans; validates nothing that a verifier has checked.

mod catalogue;
pub mod interpret;
#[cfg(test)]
mod tests;

pub use self::catalogue::standard_registry;
#[cfg(feature = "cuda")]
pub use zbmd_cuda as cuda;
pub use zbmd_devices as devices;
pub use zbmd_devices::gpu;
pub use zbmd_gpu_ir as kernels;
pub use zbmd_hal as replay;
pub use zbmd_op as op;
pub use zbmd_op::{call, kernel, team};
pub use zbmd_ops_nn::{TensorInput, TensorOp};
#[cfg(feature = "vulkan")]
pub use zbmd_vulkan as vulkan;
