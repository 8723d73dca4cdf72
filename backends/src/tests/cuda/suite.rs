//! Every op beside its CPU kernel, with the tolerance that it keeps on Vulkan devices too.

use std::sync::Arc;

use crate::cuda::testing::{real, soft};
use crate::cuda::{CudaDevice, GpuCall};
use crate::tests::ops::gpus::{check_all, in_calls};

/// Every op on the device.
fn all(device: &Arc<CudaDevice>) {
    check_all(device.caps(), 61, &|subject, plan, inputs, calls| {
        in_calls(subject, inputs, calls, |count| {
            GpuCall::new(device, &subject.actor, plan, count, 1).expect("a call")
        })
    });
}

#[test]
fn every_op_agrees_with_its_cpu_kernel_in_software() {
    let device = soft();
    all(&device);
    let modules = device
        .instance()
        .machine()
        .expect("software")
        .counts()
        .modules;
    assert!(modules > 60, "only {modules} kernels");
}

#[test]
fn every_op_agrees_with_its_cpu_kernel_on_a_gpu() {
    if let Some(device) = real() {
        all(&device);
    }
}
