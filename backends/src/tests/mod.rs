//! Which actors have kernels for GPUs, and what each driver makes of them: all of the catalogue beside its CPU kernels.

#[cfg(feature = "cuda")]
mod cuda;
mod kernels;
#[cfg(feature = "vulkan")]
mod vulkan;
