//! Kernels that wait for others themselves, on a device in software, which notices where one does not.

use std::sync::Arc;

use super::launch_and_wait;
use crate::device::LoadedKernel;
use crate::driver::Image;
use crate::graph::GraphDraft;
use crate::memory::{Bank, BankTable};
use crate::{CudaDevice, CudaOptions, Instance};
use zbmd_gpu_ir::emit::ptx::print;
use zbmd_gpu_ir::lang::{Builder, Kernel, Mem};
use zbmd_hal::{BankRange, BoundOperand, BoundRun, MemoryKind};

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
