//! Kernels of actors that wait for others themselves, on a device in software, which notices where one does not.

use std::sync::Arc;

use zbmd_ir::TiVec;

use crate::cuda::{CudaDevice, CudaOptions, GpuCall, Instance};
use crate::kernels::Caps;
use crate::tests::ops::conformance::{Random, subject};
use crate::tests::ops::gpus::in_calls;

/// A device in software that says it has this compute capability.
fn soft(arch: (u32, u32), dependent_launch: bool) -> Arc<CudaDevice> {
    let instance = Instance::software();
    let mut listed = instance.find("cuda:0").expect("the only one");
    listed.arch = arch;
    CudaDevice::open(
        &instance,
        &listed,
        &CudaOptions {
            dependent_launch,
            ..CudaOptions::default()
        },
    )
    .expect("nothing is injected")
}

#[test]
fn chains_of_kernels_wait_themselves_where_that_is_asked_for_and_can_be() {
    const CALLS: usize = 5;
    let mut random = Random(31);
    let subject = subject("Fir", "taps: [0.5, -0.25, 0.125]", "f32");
    let plan = crate::standard_registry().lower(&subject.actor, &TiVec::new(), &Caps::CUDA);
    let plan = plan.expect("kernels");
    let data = subject.inputs(7, |dtype, count| random.elements(dtype, count));
    let mut all = Vec::new();
    for (arch, asked, edges) in [
        ((8, 0), true, 0),
        ((9, 0), false, 0),
        ((9, 0), true, CALLS - 1),
        ((10, 0), true, CALLS - 1),
    ] {
        let device = soft(arch, asked);
        let machine = device.instance().machine().expect("software");
        machine.check_edges();
        let call = GpuCall::new(&device, &subject.actor, &plan, 7, CALLS).expect("a call");
        assert_eq!(
            machine.counts().dependent_launches,
            edges,
            "{arch:?} {asked}"
        );
        drop(call);
        let call = |n| GpuCall::new(&device, &subject.actor, &plan, n, CALLS).expect("a call");
        all.push(in_calls(&subject, &data, (7, 7), call));
        assert_eq!(machine.conflicts(), Vec::<String>::new());
    }
    assert!(all.iter().all(|one| *one == all[0]), "the same bits");
}
