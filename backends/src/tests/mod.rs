//! The whole catalogue: each op beside plain loops, in every grouping of firings, with wrong inputs; which actors have
//! kernels for GPUs, and what each driver makes of them beside the CPU kernels.

#[cfg(feature = "cuda")]
mod cuda;
mod kernels;
pub(crate) mod ops;
mod reference;
#[cfg(feature = "vulkan")]
mod vulkan;
