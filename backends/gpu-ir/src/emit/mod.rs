//! Printers of kernels: what drivers are given. None knows a driver.

pub mod ptx;
#[cfg(feature = "spirv")]
pub mod spirv;
