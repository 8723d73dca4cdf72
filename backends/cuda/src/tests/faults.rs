//! A queue that hangs and kernels that do wrong: always a fault of the right kind, never a crash. And graphs: edges left
//! out, nodes beyond their memory, memory that they hold.

use std::sync::Arc;

use super::{launch_and_wait, real, soft};
use crate::graph::GraphDraft;
use crate::memory::{Bank, BankTable};
use crate::{CudaDevice, Fault, Injection, Machine, Misdeed, Site, Verdict};
use zbmd_hal::{BankRange, MemoryKind, PATIENCE_NS};

fn machine(device: &CudaDevice) -> Arc<Machine> {
    Arc::clone(device.instance().machine().expect("software"))
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
fn said(device: &Arc<CudaDevice>, misdeed: Misdeed) -> Fault {
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
