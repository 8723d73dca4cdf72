//! Every call made to fail with every kind of error: always a fault of the right kind, never a crash, everything given
//! back while the device lives, and nothing asked of the driver after a loss.

use std::sync::Arc;

use zbmd_ir::{Actor, TiVec};

use crate::cuda::testing::soft;
use crate::cuda::{
    Code, CudaDevice, Fault, GpuCall, Injection, Machine, ReplayError, Site, Verdict,
};
use crate::kernels::KernelPlan;
use crate::tests::ops::conformance::subject;

/// Has the vendor's library multiply, if it is there.
fn product(device: &Arc<CudaDevice>) -> Result<(), Fault> {
    let subject = subject("NnMatMul", "", "x: f32[2,3], y: f32[3,2]");
    let (registry, blobs) = (crate::standard_registry(), TiVec::new());
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

fn call(device: &Arc<CudaDevice>, actor: &Actor, plan: &KernelPlan) -> Result<GpuCall, Fault> {
    GpuCall::new(device, actor, plan, 4, 1).map_err(|error| match error {
        ReplayError::Fault(fault) => fault,
        error => panic!("{error}"),
    })
}

/// Makes an actor's kernels ready and runs them, as calibration does.
fn work(device: &Arc<CudaDevice>) -> Result<(), Fault> {
    product(device)?;
    let subject = subject("Tone", "freq: 1, rate: 8", "");
    let plan = crate::standard_registry().lower(&subject.actor, &TiVec::new(), device.caps());
    let mut call = call(device, &subject.actor, &plan.expect("a kernel"))?;
    call.set_state(0, &[0; 8])?;
    call.run()?;
    assert_eq!(call.output(0)?.len(), 32);
    Ok(())
}

fn machine(device: &CudaDevice) -> Arc<Machine> {
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
