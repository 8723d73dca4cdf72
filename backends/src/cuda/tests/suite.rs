//! Every op beside its CPU kernel, with the tolerance that it keeps on Vulkan devices too.

use std::sync::Arc;

use super::{real, soft};
use crate::cuda::{Device, GpuCall};
use crate::ops::gpus::check_all;

/// Every op on the device.
fn all(device: &Arc<Device>) {
    check_all(device.caps(), 61, &|subject, plan, inputs, (firings, group)| {
        subject.in_calls(inputs, firings, group, |count, windows, states| {
            let mut call = GpuCall::new(device, &subject.actor, plan, count).expect("a call");
            let set = windows.iter().enumerate().try_for_each(|(i, w)| call.set_input(i, w));
            set.expect("inputs");
            let set = states.iter().enumerate().try_for_each(|(i, s)| call.set_state(i, s));
            set.expect("states");
            call.run().expect("a run");
            let states = states.iter_mut().enumerate();
            states.for_each(|(i, s)| *s = call.state(i).expect("a state"));
            let outputs = 0..subject.stateless_outputs().len();
            outputs.map(|i| call.output(i).expect("an output")).collect()
        })
    });
}

#[test]
fn every_op_agrees_with_its_cpu_kernel_in_software() {
    let device = soft();
    all(&device);
    let modules = device.instance().machine().expect("software").counts().modules;
    assert!(modules > 60, "only {modules} kernels");
}

#[test]
fn every_op_agrees_with_its_cpu_kernel_on_a_gpu() {
    if let Some(device) = real() {
        all(&device);
    }
}
