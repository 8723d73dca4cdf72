//! The op suite: every case of the catalogue that has kernels for GPUs, beside the CPU kernel, with the tolerance that
//! its op keeps on Vulkan devices too.

use std::sync::Arc;

use zbmd_ir::TiVec;

use super::{real, soft};
use crate::cuda::{Device, GpuCall};
use crate::kernels::{Caps, KernelPlan};
use crate::op::Registry;
use crate::ops::conformance::{CASES, Random, Results, Subject, subject};
use crate::vulkan::tests::suite::{CPU_ONLY, compare, is_tame, tame, tolerance};

fn lowered(subject: &Subject, caps: &Caps) -> Option<KernelPlan> {
    Registry::standard().lower(&subject.actor, &TiVec::new(), caps)
}

/// All outputs and states of `firings` firings on the device, in calls of `group`.
fn on_device(
    device: &Arc<Device>,
    subject: &Subject,
    plan: &KernelPlan,
    inputs: &[Vec<u8>],
    (firings, group): (usize, usize),
) -> Results {
    let mut outputs = vec![Vec::new(); subject.stateless_outputs().len()];
    let mut states = subject.initial.clone();
    let mut first = 0;
    while first < firings {
        let count = group.min(firings - first);
        let mut call = GpuCall::new(device, &subject.actor, plan, count, 1).expect("a call");
        for (i, all) in inputs.iter().enumerate() {
            let port = &subject.actor.inputs[i];
            let start = first * (port.rate * port.token.bytes()) as usize;
            let tokens = (count as u64 - 1) * port.rate + port.window;
            let bytes = &all[start..][..(tokens * port.token.bytes()) as usize];
            call.set_input(i, bytes).expect("an input");
        }
        states.iter().enumerate().for_each(|(i, s)| call.set_state(i, s).expect("a state"));
        call.run().expect("a run");
        let outputs = outputs.iter_mut().enumerate();
        outputs.for_each(|(i, o)| o.extend(call.output(i).expect("an output")));
        let states = states.iter_mut().enumerate();
        states.for_each(|(i, s)| *s = call.state(i).expect("a state"));
        first += count;
    }
    (outputs, states)
}

fn check(
    device: &Arc<Device>,
    (op, parameters, inputs): (&str, &str, &str),
    random: &mut Random,
) -> Result<(), String> {
    let subject = subject(op, parameters, inputs);
    let Some(plan) = lowered(&subject, device.caps()) else {
        let known = CPU_ONLY.iter().any(|(p, _)| parameters.contains(p));
        return if known { Ok(()) } else { Err("has no kernel and is not listed".into()) };
    };
    for (firings, group) in [(1, 1), (7, 2), (61, 61)] {
        let count = subject.actor.inputs.len() - subject.actor.state.len();
        let data: Vec<Vec<u8>> = subject.actor.inputs[..count]
            .iter()
            .map(|p| {
                let tokens = (firings as u64 - 1) * p.rate + p.window;
                let elements = (tokens * p.token.elements()) as usize;
                match is_tame(op, parameters) {
                    true => tame(random, p.token.dtype, elements),
                    false => random.elements(p.token.dtype, elements),
                }
            })
            .collect();
        let want = subject.run(&data, firings, firings);
        let got = on_device(device, &subject, &plan, &data, (firings, group));
        let outputs = subject.stateless_outputs();
        let outputs = outputs.iter().map(|p| p.token.dtype);
        let states = subject.actor.state.iter();
        let states = states.map(|s| subject.actor.inputs[s.input as usize].token.dtype);
        let pairs = got.0.iter().chain(&got.1).zip(want.0.iter().chain(&want.1));
        for (i, (dtype, (got, want))) in outputs.chain(states).zip(pairs).enumerate() {
            compare(dtype, got, want, tolerance(op, parameters))
                .map_err(|e| format!("output or state {i} of {firings} by {group}: {e}"))?;
        }
    }
    Ok(())
}

fn all(device: &Arc<Device>) {
    let mut random = Random(11);
    let mut wrong = Vec::new();
    for &case in CASES {
        if let Err(error) = check(device, case, &mut random) {
            wrong.push(format!("{}({}) of ({}): {error}", case.0, case.1, case.2));
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
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
