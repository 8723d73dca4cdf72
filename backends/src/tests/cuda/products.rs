//! Products in every variant, those of the vendor's library among them: on a device in software, and on a GPU where
//! there is one.

use std::sync::Arc;

use zbmd_ir::TiVec;

use crate::cuda::testing::{real, soft};
use crate::cuda::{CudaDevice, GpuCall, Lacking};
use crate::kernels::{Caps, KernelPlan};
use crate::tests::ops::conformance::subject;
use crate::tests::ops::gpus::in_calls;
use crate::tests::ops::products::check_all;

fn unsupported_reason(device: &CudaDevice, plan: &KernelPlan) -> Option<String> {
    plan.products()
        .find_map(|shape| device.unsupported_shape(shape).expect("no fault"))
}

fn check(device: &Arc<CudaDevice>) {
    check_all(
        device.caps(),
        &|plan| unsupported_reason(device, plan),
        &|subject, plan, inputs, calls| {
            in_calls(subject, inputs, calls, |count| {
                GpuCall::new(device, &subject.actor, plan, count, 1).expect("a call")
            })
        },
    );
}

#[test]
fn products_agree_in_every_variant_in_software() {
    let device = soft();
    check(&device);
    let counts = device.instance().machine().expect("software").counts();
    assert!(counts.products > 10, "{counts:?}");
}

#[test]
fn products_agree_in_every_variant_on_a_gpu() {
    if let Some(device) = real() {
        match device.library() {
            Ok(library) => println!("{library}"),
            Err(why) => println!("SKIPPED, products by the library: {why}"),
        }
        check(&device);
    }
}

/// Whoever runs products by the library asks first, and is told why there is none.
#[test]
fn a_library_that_is_not_there_is_refused_in_a_clause() {
    let device = soft();
    device
        .instance()
        .machine()
        .expect("software")
        .set_lacking(Lacking::Library);
    let subject = subject("NnMatMul", "", "x: f32[8,6], y: f32[6,9]");
    let registry = crate::standard_registry();
    let lower = |name| registry.lower_in(&subject.actor, &TiVec::new(), &Caps::CUDA, Some(name));
    let why = unsupported_reason(&device, &lower("cublaslt").expect("it is known"));
    assert_eq!(why.as_deref(), Some("cuBLASLt is not installed"));
    assert_eq!(
        unsupported_reason(&device, &lower("tiles-32").expect("it is known")),
        None
    );
    assert_eq!(
        device.library(),
        Err("cuBLASLt is not installed".to_owned())
    );
}
