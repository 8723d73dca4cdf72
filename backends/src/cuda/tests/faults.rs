//! Every call made to fail with every kind of error, and a queue that hangs: always a fault of the right kind, never a
//! crash, everything given back while the device lives, and nothing asked of the driver after a loss.

use std::sync::Arc;

use zbmd_ir::{Actor, TiVec};

use super::{launch_and_wait, real, soft};
use crate::cuda::graph::GraphDraft;
use crate::cuda::memory::{Bank, BankTable};
use crate::cuda::{
    Code, Device, Fault, GpuCall, Injection, Machine, Misdeed, ReplayError, Site, Verdict,
};
use crate::kernels::KernelPlan;
use crate::op::Registry;
use crate::ops::conformance::subject;
use crate::replay::{BankRange, MemoryKind, PATIENCE_NS};

/// Has the vendor's library multiply, if it is there.
fn product(device: &Arc<Device>) -> Result<(), Fault> {
    let subject = subject("NnMatMul", "", "x: f32[2,3], y: f32[3,2]");
    let (registry, blobs) = (Registry::standard(), TiVec::new());
    let plan = registry.lower_in(&subject.actor, &blobs, device.caps(), Some("cublaslt"));
    let plan = plan.expect("it is known");
    assert_eq!(
        plan.products()
            .find_map(|p| device.unsupported_shape(p).transpose())
            .transpose()?,
        None
    );
    call(device, &subject.actor, &plan)?.run()
}

fn call(device: &Arc<Device>, actor: &Actor, plan: &KernelPlan) -> Result<GpuCall, Fault> {
    GpuCall::new(device, actor, plan, 4, 1).map_err(|error| match error {
        ReplayError::Fault(fault) => fault,
        error => panic!("{error}"),
    })
}

/// Makes an actor's kernels ready and runs them, as calibration does.
fn work(device: &Arc<Device>) -> Result<(), Fault> {
    product(device)?;
    let subject = subject("Tone", "freq: 1, rate: 8", "");
    let plan = Registry::standard().lower(&subject.actor, &TiVec::new(), device.caps());
    let mut call = call(device, &subject.actor, &plan.expect("a kernel"))?;
    call.set_state(0, &[0; 8])?;
    call.run()?;
    assert_eq!(call.output(0)?.len(), 32);
    Ok(())
}

fn machine(device: &Device) -> Arc<Machine> {
    Arc::clone(device.instance().machine().expect("software"))
}

#[test]
fn every_error_at_every_call_is_a_fault_of_its_kind() {
    let whole = soft();
    work(&whole).expect("nothing is injected");
    // Not part of a call, or of opening a device.
    let nodes = [Site::CopyNode, Site::ZeroNode];
    let exchange = [Site::Register, Site::Pointer, Site::Give, Site::Signal];
    let elsewhere = [&[Site::Context, Site::Stream][..], &nodes, &exchange].concat();
    for &site in Site::ALL.iter().filter(|s| !elsewhere.contains(s)) {
        for (code, lost, verdict) in [
            (700, true, Verdict::RestartWorker),
            (719, true, Verdict::RestartWorker),
            (214, true, Verdict::DropDevice),
            (2, false, Verdict::Refuse),
            (1, false, Verdict::RestartWorker),
        ] {
            for after in [0, 1] {
                let device = soft();
                let machine = machine(&device);
                machine.inject(Some(Injection {
                    site,
                    after,
                    code: Some(Code(code)),
                }));
                let Err(fault) = work(&device) else {
                    assert_eq!(after, 1, "{site}: {code} went unnoticed");
                    continue;
                };
                assert!(fault.to_string().contains(site.name()), "{fault}");
                assert_eq!(matches!(fault, Fault::Lost { .. }), lost, "{fault}");
                assert_eq!(fault.verdict(), verdict, "{fault}");
                assert_eq!(device.is_alive(), !fault.is_fatal(), "{fault}");
                machine.inject(None);
                if device.is_alive() {
                    // The fault was one of a call: nothing was kept, and the device still works.
                    let counts = machine.counts();
                    let kept = [
                        counts.allocations,
                        counts.events,
                        counts.graphs,
                        counts.ready,
                    ];
                    // A thread that is not bound cannot give anything back.
                    let bound = site != Site::Bind;
                    assert!(
                        !bound || kept == [0; 4],
                        "{site} after {after}: {fault}: {kept:?}"
                    );
                    work(&device).unwrap_or_else(|e| panic!("after {fault}: {e}"));
                }
            }
        }
    }
}

#[test]
fn a_queue_that_does_not_end_is_told_from_a_slow_one() {
    let device = soft();
    machine(&device).inject(Some(Injection {
        site: Site::Query,
        after: 0,
        code: None,
    }));
    let waited = device.run_and_wait(1_000_000, |_| Ok(()));
    assert_eq!(
        waited,
        Err(Fault::Hung {
            value: 0,
            waited_ms: 1
        })
    );
    assert!(!device.is_alive());
}

/// What the device says of a misdeed, at the next wait.
fn said(device: &Arc<Device>, misdeed: Misdeed) -> Fault {
    device.misbehave(misdeed).expect("nothing was wrong before");
    let fault = device
        .run_and_wait(PATIENCE_NS, |_| Ok(()))
        .expect_err("a kernel did wrong");
    assert!(!device.is_alive(), "{fault}");
    fault
}

#[test]
fn what_a_kernel_does_wrong_is_said_by_the_next_wait() {
    for (misdeed, code) in [(Misdeed::IllegalAddress, 700), (Misdeed::Trap, 719)] {
        match said(&soft(), misdeed) {
            Fault::Lost {
                site: Site::Event | Site::Query | Site::Record,
                code: found,
            } => {
                assert_eq!(found.0, code, "{misdeed:?}");
            }
            other => panic!("{misdeed:?}: {other}"),
        }
    }
}

/// On a GPU, what takes the process's context along.
fn on_a_gpu(misdeed: Misdeed, is_right: fn(&Fault) -> bool) {
    let Some(device) = real() else { return };
    let fault = said(&device, misdeed);
    assert!(
        is_right(&fault) && fault.verdict() == Verdict::RestartWorker,
        "{fault}"
    );
    // As a worker does: the driver would wait for the kernel.
    println!("... ok");
    std::process::exit(0);
}

#[test]
#[ignore = "takes the process's context along; tests/gpu.sh runs it alone"]
fn an_illegal_address_on_a_gpu_is_a_loss_of_the_worker_only() {
    on_a_gpu(Misdeed::IllegalAddress, |fault| {
        matches!(fault, Fault::Lost { .. })
    });
}

#[test]
#[ignore = "takes the process's context along; tests/gpu.sh runs it alone"]
fn a_trap_on_a_gpu_is_a_loss_of_the_worker_only() {
    on_a_gpu(Misdeed::Trap, |fault| matches!(fault, Fault::Lost { .. }));
}

#[test]
#[ignore = "takes the process's context along; tests/gpu.sh runs it alone"]
fn a_kernel_on_a_gpu_that_does_not_end_is_a_hang() {
    on_a_gpu(Misdeed::Endless, |fault| {
        matches!(fault, Fault::Hung { .. })
    });
}

#[test]
fn edges_left_out_are_found() {
    for (keeps, conflicts) in [(true, 0), (false, 1)] {
        let device = soft();
        let machine = machine(&device);
        machine.check_edges();
        let mut banks = BankTable::default();
        for _ in 0..3 {
            let bank = Bank::allocate(&device, 64, MemoryKind::Device);
            banks.push(Arc::new(bank.expect("memory")));
        }
        let whole = |bank| BankRange::new(bank, 0, 64);
        let mut draft = GraphDraft::new(&device, &banks).expect("a graph");
        let first = draft.add_copy(&[], whole(0), whole(1)).expect("a node");
        let after = if keeps { vec![first] } else { vec![] };
        let second = draft.add_copy(&after, whole(1), whole(2));
        second.expect("a node");
        let ready = draft.finish().expect("a graph");
        let launched = launch_and_wait(&device, &ready);
        launched.expect("a launch");
        assert_eq!(machine.conflicts().len(), conflicts);
    }
}

#[test]
#[should_panic(expected = "of a bank of 256")]
fn nodes_beyond_the_end_of_a_bank_are_rejected() {
    let device = soft();
    let mut banks = BankTable::default();
    let bank = Bank::allocate(&device, 256, MemoryKind::Device);
    let number = banks.push(Arc::new(bank.expect("memory")));
    let mut draft = GraphDraft::new(&device, &banks).expect("a graph");
    let beyond = BankRange::new(number, 128, 256);
    let _ = draft.add_zero(&[], beyond);
}

#[test]
fn a_graph_holds_the_memory_that_its_nodes_name() {
    let device = soft();
    let machine = machine(&device);
    let mut banks = BankTable::default();
    let bank = Bank::allocate(&device, 256, MemoryKind::Device);
    let number = banks.push(Arc::new(bank.expect("memory")));
    let mut draft = GraphDraft::new(&device, &banks).expect("a graph");
    let node = draft.add_zero(&[], BankRange::new(number, 0, 256));
    node.expect("a node");
    let ready = draft.finish().expect("a graph");
    drop(banks);
    assert_eq!(machine.counts().allocations, 1);
    launch_and_wait(&device, &ready).expect("its memory exists");
    drop(ready);
    assert_eq!(machine.counts().allocations, 0);
}
