//! Calibration with rounded factors, on a device in software: what is measured, what it is kept under, what is planned
//! with it.
//!
//! No test harness: the driver is chosen in the environment, before there are threads.

use zbmd_compiler::calibrate::{CalibrateOptions, Calibration, CostSource};
use zbmd_compiler::costs::CostKey;
use zbmd_compiler::{CompileOptions, MachineChoice, Math, calibrate_str, compile_str};
use zbmd_ir::{DeviceId, Machine, PlanId, Value};
use zbmd_tests::gpu::with;
use zbmd_tests::harness::{self, Test};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);

/// A product that tensor cores have a kernel for, and one that is too small.
const MODEL: &str = r#"Model(
    sources: { "in": Stream(dtype: f32, shape: [16, 16]), "row": Stream(dtype: f32, shape: [1, 16]) },
    actors: { "large": NnMatMul(), "small": NnMatMul() },
    sinks: { "out": Stream(), "sum": Stream() },
    channels: [
        (from: "in", to: ["large.x", "large.y", "small.y"]), (from: "row", to: ["small.x"]),
        (from: "large", to: ["out"]), (from: "small", to: ["sum"]),
    ],
)
"#;

fn options(machine: MachineChoice, math: Math) -> CompileOptions {
    CompileOptions {
        machine,
        math,
        ..CompileOptions::default()
    }
}

fn calibrate(cache: &std::path::Path, math: Math) -> Calibration {
    let how = CalibrateOptions {
        cache: Some(cache.to_owned()),
        budget_ns: 0,
        ..CalibrateOptions::default()
    };
    let options = options(MachineChoice::Given(with(&["cuda"])), math);
    calibrate_str("m.ron", MODEL, "", &options, &how, &mut |_| {}).unwrap_or_else(|d| panic!("{d}"))
}

/// Actor, device, and where its cost is from.
fn sources(found: &Calibration) -> Vec<String> {
    found
        .rows
        .iter()
        .map(|r| format!("{} {} {}", r.actor, r.devices[0], r.source))
        .collect()
}

fn rounded_kernels_are_measured_under_keys_of_their_own() {
    let dir = tempfile::tempdir().expect("a folder");
    let exact = calibrate(dir.path(), Math::F32);
    assert!(
        exact.rows.iter().all(|r| r.source == CostSource::Measured),
        "{:?}",
        exact.rows
    );
    // What does not round is what was measured already.
    let rounded = calibrate(dir.path(), Math::Tf32);
    let told = [
        "large cpu:0 cache",
        "small cpu:0 cache",
        "large cuda:0 measured",
    ];
    assert_eq!(
        sources(&rounded),
        [&told[..], &["small cuda:0 cache"]].concat()
    );
    let again = calibrate(dir.path(), Math::Tf32);
    assert!(
        again.rows.iter().all(|r| r.source == CostSource::Cache),
        "{:?}",
        again.rows
    );
    assert_eq!(again.to_ron().expect("RON"), rounded.to_ron().expect("RON"));
    let halves = calibrate(dir.path(), Math::Bf16);
    assert_eq!(
        sources(&halves)[2],
        "large cuda:0 measured",
        "another type, another kernel"
    );
    let before = calibrate(dir.path(), Math::F32);
    assert!(
        before.rows.iter().all(|r| r.source == CostSource::Cache),
        "{:?}",
        before.rows
    );
}

fn placement_uses_the_cost_of_the_kernel_that_runs() {
    let dir = tempfile::tempdir().expect("a folder");
    let found = calibrate(dir.path(), Math::Tf32);
    let compiled = |choice: MachineChoice, math: Math| {
        let options = CompileOptions {
            block: Some(1),
            ..options(choice, math)
        };
        compile_str("m.ron", MODEL, "", &options)
            .unwrap_or_else(|d| panic!("{d}"))
            .program
    };
    let graph = compiled(MachineChoice::Given(with(&["cuda"])), Math::F32);
    let mut large = graph
        .graph
        .actors
        .iter()
        .find(|a| a.name == "large")
        .expect("it")
        .clone();
    let exact = CostKey::of(&large, &graph.blobs);
    large.params.insert(
        Math::PARAM.to_owned(),
        Value::Str(Math::Tf32.name().to_owned()),
    );
    let rounded = CostKey::of(&large, &graph.blobs);
    assert!(
        found.costs.get("cuda:0", rounded).is_some() && found.costs.get("cpu:0", exact).is_some()
    );
    assert!(
        found.costs.get("cuda:0", exact).is_none() && found.costs.get("cpu:0", rounded).is_none()
    );
    let machine: &Machine = &found.machine;
    // The quick one of both kernels is worth the way, the other is not.
    let place = |quick: CostKey, slow: CostKey, math: Math| {
        let mut costs = found.costs.clone();
        for (device, key, ps) in [
            ("cpu:0", exact, 10_000_000_000),
            ("cuda:0", quick, 1_000_000),
            ("cuda:0", slow, 1_000_000_000_000),
        ] {
            let mut cost = found.rows[0].cost.clone();
            (cost.call_ps, cost.firing_ps) = (0, ps);
            costs.insert(device, key, cost);
        }
        let program = compiled(MachineChoice::Measured(machine.clone(), costs), math);
        program.plans[PlanId(0)].placement[program.graph.find("large").expect("it")]
    };
    assert_eq!(place(rounded, exact, Math::Tf32), GPU);
    assert_eq!(place(rounded, exact, Math::F32), CPU);
    assert_eq!(place(exact, rounded, Math::Tf32), CPU);
    assert_eq!(place(exact, rounded, Math::F32), GPU);
}

/// A device that cannot is not asked; of one that can, the measurement decides, and runs keep to it.
fn early_launches_are_chosen_where_they_pay() {
    let dir = tempfile::tempdir().expect("a folder");
    assert_eq!(calibrate(dir.path(), Math::F32).early, []);
    driver("software,sm_90");
    let found = calibrate(dir.path(), Math::F32);
    driver("software");
    let [early] = &found.early[..] else {
        panic!("one device can: {:?}", found.early)
    };
    assert!(
        early.device == "cuda:0" && early.relative > 0.0,
        "{early:?}"
    );
    assert_eq!(early.pays(), early.relative <= 0.97);
    assert_eq!(found.machine.devices[GPU].programmatic, early.pays());
    let text = found.to_ron().expect("RON");
    assert_eq!(text.contains("programmatic: true"), early.pays());
}

fn a_machine_without_a_cuda_device_is_refused() {
    let options = options(MachineChoice::Uniform(1), Math::F16);
    let how = CalibrateOptions::default();
    let refused = calibrate_str("m.ron", MODEL, "", &options, &how, &mut |_| {});
    let said = refused.map(drop).expect_err("nothing rounds").to_string();
    let told = "products in f16 are asked for, and the machine has no CUDA device";
    assert!(said.contains("E0507") && said.contains(told), "{said}");
}

#[expect(unsafe_code, reason = "chooses the driver")]
fn driver(to: &str) {
    // SAFETY: between two tests, when no other thread is there.
    unsafe { std::env::set_var("ZBMD_CUDA_DRIVER", to) };
}

fn main() {
    driver("software");
    let tests: [Test; 4] = [
        (
            "measured",
            rounded_kernels_are_measured_under_keys_of_their_own,
        ),
        ("placement", placement_uses_the_cost_of_the_kernel_that_runs),
        ("early launches", early_launches_are_chosen_where_they_pay),
        ("refused", a_machine_without_a_cuda_device_is_refused),
    ];
    harness::run(&tests, || true);
}
