//! What needs no GPU: the printed code on a machine of our own and in NVIDIA's assembler, graphs against a driver that
//! only takes notes, errors one by one.

mod machine;
#[cfg(feature = "vulkan")]
mod ptx;
