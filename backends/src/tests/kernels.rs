//! Which actors have kernels for GPUs, and what those need of a device: none is needed here.

use zbmd_ir::{Device, DeviceId, TiVec};

use crate::kernels::{Caps, Needs};
use crate::op::GpuCapabilities;
use crate::tests::ops::conformance::{CASES, subject};

#[test]
fn needs_follow_from_types_and_memory() {
    let plain = Needs::default();
    for (op, parameters, inputs, needs) in [
        ("Gain", "gain: 0.5", "f32", plain),
        (
            "Expr",
            "expr: \"x * 2\"",
            "i64",
            Needs { i64: true, ..plain },
        ),
        (
            "Biquad",
            "sections: [[1, 0, 0, 0, 0]]",
            "f32",
            Needs { f64: true, ..plain },
        ),
        (
            "Decimate",
            "factor: 3",
            "u8[3]",
            Needs {
                bytes: true,
                ..plain
            },
        ),
        ("Decimate", "factor: 3", "u8[4]", plain),
        (
            "Convert",
            "to: f16",
            "f32",
            Needs {
                halves: true,
                ..plain
            },
        ),
        // 64-bit phases are two words: every device can mix.
        ("Mix", "freq: 1, rate: 4", "c32", plain),
    ] {
        let actor = subject(op, parameters, inputs).actor;
        let plan = crate::standard_registry().lower(&actor, &TiVec::new(), &Caps::COMMON);
        assert_eq!(
            plan.expect(op).needs(),
            needs,
            "{op}({parameters}) of {inputs}"
        );
    }
}

#[test]
fn costs_on_a_gpu_are_those_of_kernels_that_it_can_run() {
    let machine = crate::devices::detect();
    let cpu = &machine.devices[DeviceId(0)];
    let gpu = Device {
        name: "vulkan:0".into(),
        backend: "vulkan".into(),
        ..cpu.clone()
    };
    let registry = crate::standard_registry();
    let gain = subject("Gain", "gain: 0.5", "f32").actor;
    let filter = subject("Biquad", "sections: [[1, 0, 0, 0, 0]]", "f32").actor;
    let expression = subject("Expr", "expr: \"exp(x)\"", "f64").actor;
    let mut source = gain.clone();
    source.role = zbmd_ir::Role::Source;
    let mut capabilities = GpuCapabilities::default();
    let has = |capabilities: &GpuCapabilities, a| {
        let cost = registry.cost(a, &gpu, capabilities, &TiVec::new());
        cost.is_some()
    };
    assert!(has(&capabilities, &gain) && has(&capabilities, &filter));
    assert!(
        !has(&capabilities, &expression),
        "f64 has no functions there"
    );
    assert!(!has(&capabilities, &source), "streams belong to the host");
    let weak = Caps {
        has: Needs::default(),
        ..Caps::COMMON
    };
    capabilities.set("vulkan:0", weak);
    assert!(has(&capabilities, &gain) && !has(&capabilities, &filter));
}

#[test]
fn most_of_the_catalogue_has_kernels() {
    let registry = crate::standard_registry();
    let lowers = |case: &&(&str, &str, &str)| {
        let actor = subject(case.0, case.1, case.2).actor;
        registry
            .lower(&actor, &TiVec::new(), &Caps::COMMON)
            .is_some()
    };
    let without: Vec<_> = CASES.iter().filter(|c| !lowers(c)).map(|c| c.0).collect();
    assert_eq!(
        without,
        ["BurstIndex", "BurstIndex", "Expr", "Convert"],
        "see `CPU_ONLY` of the op suite"
    );
}
