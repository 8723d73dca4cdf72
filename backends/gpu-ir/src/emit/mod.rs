//! Printers of kernels: what drivers are given, and how a bundle stores it. None knows a driver.

pub mod cubins;
#[cfg(feature = "spirv")]
pub mod modules;
pub mod ptx;
#[cfg(feature = "spirv")]
pub mod spirv;
