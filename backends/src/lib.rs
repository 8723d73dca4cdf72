//! Kernels and devices. Never plans; validates nothing that a verifier has checked.

pub mod interpret;
pub mod kernel;
pub mod op;
