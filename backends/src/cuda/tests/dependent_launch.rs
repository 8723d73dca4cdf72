//! Kernels that wait for others themselves, on a device in software, which notices where one does not.

use std::sync::Arc;

use zbmd_ir::TiVec;

use super::launch_and_wait;
use crate::cuda::device::LoadedKernel;
use crate::cuda::driver::Image;
use crate::cuda::graph::GraphDraft;
use crate::cuda::memory::{Bank, BankTable};
use crate::cuda::ptx::print;
use crate::cuda::{Device, GpuCall, Instance, Options};
use crate::kernels::Caps;
use crate::kernels::lang::{Builder, Kernel, Mem};
use crate::op::Registry;
use crate::ops::conformance::{Random, subject};
use crate::ops::gpus::in_calls;
use crate::replay::{BankRange, BoundOperand, BoundRun, MemoryKind};

/// A device in software that says it has this compute capability.
fn soft(arch: (u32, u32), dependent_launch: bool) -> Arc<Device> {
    let instance = Instance::software();
    let mut listed = instance.find("cuda:0").expect("the only one");
    listed.arch = arch;
    Device::open(
        &instance,
        &listed,
        &Options {
            dependent_launch,
            ..Options::default()
        },
    )
    .expect("nothing is injected")
}

#[test]
fn chains_of_kernels_wait_themselves_where_that_is_asked_for_and_can_be() {
    const CALLS: usize = 5;
    let mut random = Random(31);
    let subject = subject("Fir", "taps: [0.5, -0.25, 0.125]", "f32");
    let plan = Registry::standard().lower(&subject.actor, &TiVec::new(), &Caps::CUDA);
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

/// y = x + 1, of four numbers.
fn increment() -> Kernel {
    let k = Builder::new("increment", 4);
    let (x, y) = (k.reads(Mem::U32), k.writes(Mem::U32));
    k.each(k.u32(4), |i| k.store(y, i, k.load(x, i) + 1));
    k.finish()
}

/// Runs two kernels, the second behind a programmatic edge: conflicts of what they touch, or what went wrong.
fn twice(change: impl Fn(String) -> String) -> Result<usize, String> {
    let device = soft((9, 0), true);
    let machine = Arc::clone(device.instance().machine().expect("software"));
    machine.check_edges();
    let (text, entry) = print(&increment(), true);
    let loaded = device.call(|driver| driver.load_function(Image::Ptx(&change(text)), &entry));
    let kernel = LoadedKernel {
        function: loaded.expect("it loads"),
        local: 4,
        bindings: 2,
    };
    let mut banks = BankTable::default();
    for _ in 0..3 {
        let bank = Bank::allocate(&device, 16, MemoryKind::Device);
        banks.push(Arc::new(bank.expect("memory")));
    }
    let operand = |bank, writes| BoundOperand {
        range: BankRange::new(bank, 0, 16),
        mem: Mem::U32,
        writes,
    };
    let run = |from, to| BoundRun {
        number: 0,
        kernel: 0,
        operands: [operand(from, false), operand(to, true)].into(),
        firings: 1,
        groups: 1,
    };
    let mut draft = GraphDraft::new(&device, &banks).expect("a graph");
    let first = draft.add_kernel(&[], &kernel, &run(0, 1));
    let second = draft.add_dependent_kernel(first.expect("a node"), &kernel, &run(1, 2));
    second.expect("a node");
    let ready = draft.finish().expect("a graph");
    // Nodes run in another order each time.
    for _ in 0..16 {
        let launched = launch_and_wait(&device, &ready);
        launched.map_err(|fault| fault.to_string())?;
    }
    Ok(machine.conflicts().len())
}

#[test]
fn a_kernel_that_does_not_wait_is_noticed() {
    const WAIT: &str = "\tgriddepcontrol.wait;\n";
    assert_eq!(twice(|text| text), Ok(0));
    let late = format!("{WAIT}\tret;");
    let one = "\tmov.u32 %tr0, %tid.x;\n\tsetp.lt.u32 %tp, %tr0, 1;\n\t@%tp griddepcontrol.wait;\n";
    let all: [&dyn Fn(String) -> String; 3] = [
        &|text| text.replace(WAIT, ""),
        &|text| text.replace(WAIT, "").replace("\tret;", &late),
        &|text| text.replace(WAIT, one),
    ];
    for change in all {
        let said = twice(change).expect_err("it does not wait");
        assert!(said.contains("719"), "{said}");
    }
}

#[test]
#[should_panic(expected = "not for sm_90")]
fn older_devices_do_not_know_the_instructions() {
    let _ = twice(|text| text.replace("sm_90", "sm_80"));
}
