//! The kernel language by itself, and which actors have kernels: no device is needed.

use zbmd_ir::{Device, DeviceId, TiVec};

use super::lang::{Builder, Mem, Ty};
use super::{Caps, Needs};
use crate::op::Registry;
use crate::ops::conformance::{CASES, subject};

#[test]
fn kernels_read_like_kernels() {
    let k = Builder::new("row sums", 64);
    let x = k.reads(Mem::F32);
    let y = k.writes(Mem::F32);
    let len = k.spec(12);
    k.each(k.firings(), |row| {
        let sum = k.var(k.f32(0.0));
        k.times(len, |i| sum.set(sum.get() + k.load(x, row * len + i)));
        k.if_(sum.get().gt(k.f32(0.0)), || {
            k.store(y, row, sum.get().sqrt())
        });
    });
    insta::assert_snapshot!(k.finish());
}

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
        let plan = Registry::standard().lower(&actor, &TiVec::new(), &Caps::COMMON);
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
    let mut registry = Registry::standard();
    let gain = subject("Gain", "gain: 0.5", "f32").actor;
    let filter = subject("Biquad", "sections: [[1, 0, 0, 0, 0]]", "f32").actor;
    let expression = subject("Expr", "expr: \"exp(x)\"", "f64").actor;
    let mut source = gain.clone();
    source.role = zbmd_ir::Role::Source;
    let has = |registry: &Registry, a| registry.cost(a, &gpu, &TiVec::new()).is_some();
    let vulkan = cfg!(feature = "vulkan");
    assert_eq!(
        (has(&registry, &gain), has(&registry, &filter)),
        (vulkan, vulkan)
    );
    assert!(!has(&registry, &expression), "f64 has no functions there");
    assert!(!has(&registry, &source), "streams belong to the host");
    let weak = Caps {
        has: Needs::default(),
        ..Caps::COMMON
    };
    registry.set_caps("vulkan:0", weak);
    assert_eq!(
        (has(&registry, &gain), has(&registry, &filter)),
        (vulkan, false)
    );
}

#[test]
fn most_of_the_catalogue_has_kernels() {
    let registry = Registry::standard();
    let lowers = |case: &&(&str, &str, &str)| {
        let actor = subject(case.0, case.1, case.2).actor;
        registry
            .lower(&actor, &TiVec::new(), &Caps::COMMON)
            .is_some()
    };
    let without: Vec<_> = CASES.iter().filter(|c| !lowers(c)).map(|c| c.0).collect();
    assert_eq!(
        without,
        ["Expr", "Convert"],
        "see `CPU_ONLY` of the op suite"
    );
}

#[test]
fn types_that_do_not_fit_are_our_mistakes() {
    type Mistake = fn(&Builder);
    let mistakes: [(&str, Mistake); 5] = [
        ("sum of two types", |k| _ = (k.u32(1) + k.f32(1.0)).reg),
        ("condition that is none", |k| k.if_(k.u32(1), || {})),
        ("store of another type", |k| {
            k.store(k.writes(Mem::F32), k.u32(0), k.u32(0))
        }),
        ("pair loaded as one", |k| {
            _ = k.load(k.reads(Mem::Pair), k.u32(0)).reg
        }),
        ("variable of another type", |k| {
            k.var(k.u32(0)).set(k.number(Ty::F64, 0.0))
        }),
    ];
    for (what, mistake) in mistakes {
        let caught = std::panic::catch_unwind(|| mistake(&Builder::new("wrong", 1)));
        assert!(caught.is_err(), "{what} was allowed");
    }
}
