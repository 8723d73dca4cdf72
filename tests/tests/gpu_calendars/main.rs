//! Calendars of GPUs without an executor: the other devices are played by hand.

mod cuda_math;
mod gpu_gates;
mod vulkan;
mod vulkan_onnx;
