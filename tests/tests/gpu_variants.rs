//! Kernels of GPUs in variants: found by calibration, named by plans and bundles, run by sessions; and what becomes of
//! those that need a library that is not there. With CUDA on a device in software, or on a GPU where `ZBMD_REQUIRE`
//! names `cuda`; with Vulkan on the driver at hand.
//!
//! No test harness: what the driver is must be said in the environment before anything else is at work.

use bytes::Bytes;
use zbmd_backends::gpu::Device;
use zbmd_backends::vulkan;
use zbmd_compiler::calibrate::{CalibrateOptions, CostSource};
use zbmd_compiler::costs::{CostKey, MeasuredCost, MeasuredCosts, ports_text};
use zbmd_compiler::{
    CompileOptions, Compiled, Losses, MachineChoice, calibrate_str, compile_str, graph_of_file,
};
use zbmd_executor::{Engine, EngineError, Isolation};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::{BlobId, DeviceId, Graph, Machine, PlanId, Program, Role, TiVec, bundle};
use zbmd_tests::gpu::{distance, gpu_calendar, open, required, tame_inputs, with};
use zbmd_tests::harness::{self, Test};
use zbmd_tests::losses::options;
use zbmd_tests::run::{Streams, drive, interpret_program};

const GPU: DeviceId = DeviceId(1);
const LIBRARY: &str = "cublaslt";
/// Bytes that the library is given.
const WORKSPACE: u64 = 4 << 20;

/// Says what CUDA's driver is from now on.
fn set_driver(to: &str) {
    // SAFETY: no other thread of this program is at work: sessions have ended.
    #[expect(unsafe_code, reason = "the environment says what the driver is")]
    unsafe {
        std::env::set_var("ZBMD_CUDA_DRIVER", to);
    }
}

fn tensor(dims: &[usize], seed: usize) -> String {
    let Some((&first, rest)) = dims.split_first() else {
        return format!("{:.2}", (seed * 37 % 101) as f64 / 50.0 - 1.0);
    };
    let each: usize = rest.iter().product();
    let items: Vec<String> = (0..first).map(|i| tensor(rest, seed + i * each)).collect();
    format!("[{}]", items.join(", "))
}

/// Two products, whose variants are tiles of all sizes but the largest, and the library.
fn model() -> String {
    model_of([40, 24, 40, 17])
}

/// Of matrices of so many rows and columns, one after the other.
fn model_of([rows, columns, inner, last]: [usize; 4]) -> String {
    let [first, bias, second] =
        [&[columns, inner][..], &[inner], &[last, inner]].map(|dims| tensor(dims, dims.len()));
    format!(
        r#"Model(
    name: "products",
    sources: {{ "x": Stream(dtype: f32, shape: [{rows}, {columns}]) }},
    actors: {{
        "first": NnMatMul(y: {first}, bias: {bias}, act: relu),
        "second": NnGemm(b: {second}, transB: 1),
    }},
    channels: [
        (from: "x", to: ["first"]), (from: "first", to: ["second"]), (from: "second", to: ["out"]),
    ],
    sinks: {{ "out": Stream() }},
)"#
    )
}

fn graph() -> (Graph, TiVec<BlobId, Bytes>) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.ron");
    std::fs::write(&path, model()).expect("a file");
    graph_of_file(&path, &CompileOptions::default()).unwrap_or_else(|d| panic!("{d}"))
}

/// A CPU so slow that nobody wants it, and GPUs.
fn machine(backends: &[&str]) -> Machine {
    let mut machine = with(backends);
    let cpu = &mut machine.devices[DeviceId(0)];
    (cpu.flops_per_s, cpu.bytes_per_s) = (1_000_000, 1_000_000);
    machine
}

/// Costs of both products on devices by name, on each of which a variant was the best.
fn costs(best: &[(&str, &str)]) -> MeasuredCosts {
    let (graph, blobs) = graph();
    let mut costs = MeasuredCosts::default();
    for actor in graph.actors.iter().filter(|a| a.role == Role::Compute) {
        for (device, variant) in best {
            let cost = MeasuredCost {
                op: actor.op.clone(),
                ports: ports_text(actor),
                call_ps: 1_000_000,
                firing_ps: 500,
                spread_percent: 1.0,
                samples: 9,
                variant: Some((*variant).to_owned()),
            };
            costs.insert(device, CostKey::of(actor, &blobs), cost);
        }
    }
    costs
}

/// The model with what was measured, by way of a bundle.
fn compiled(machine: &Machine, best: &[(&str, &str)]) -> Compiled {
    let options = CompileOptions {
        machine: MachineChoice::Measured(machine.clone(), costs(best)),
        contingencies: Losses::Single,
        block: Some(2),
        ..CompileOptions::default()
    };
    compile_str("m.ron", &model(), "", &options).unwrap_or_else(|d| panic!("{d}"))
}

fn through_a_file(compiled: &Compiled) -> Verified<Program> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.zbmd");
    compiled.write(&path).expect("it is written");
    bundle::open(&path).expect("a bundle")
}

/// What comes out of some blocks and what is left of one, and the notes of the report.
fn run(program: Verified<Program>) -> (Vec<u8>, Vec<String>) {
    let inputs: Streams = tame_inputs(&program, 7);
    let engine = Engine::new(program, &zbmd_backends::standard_registry()).expect("an engine");
    let session = engine
        .start(options(Isolation::Threads))
        .expect("a session");
    let (mut out, outcome) = drive(session, &inputs, vec!["out".to_owned()]);
    let notes = outcome
        .report
        .notes
        .into_iter()
        .filter(|n| !n.contains("locked in memory"));
    (out.remove("out").expect("a sink"), notes.collect())
}

/// How far it is from what the interpreter says, as a share of the largest.
fn off(program: &Program, out: &[u8]) -> f64 {
    let inputs = tame_inputs(program, 7);
    let (want, _) = interpret_program(program, &zbmd_backends::standard_registry(), &inputs, None);
    let token = &program.graph.sinks().next().expect("a sink").1.inputs[0].token;
    assert_eq!(out.len(), want["out"].len());
    distance(token.dtype, out, &want["out"])
}

fn names(program: &Program, plan: PlanId) -> Vec<&str> {
    program.plans[plan]
        .variants
        .values()
        .map(String::as_str)
        .collect()
}

/// Tiles of another size have the same bits, and are in the bundle where its kernels are.
fn tiles(backend: &str) {
    let (machine, device) = (machine(&[backend]), format!("{backend}:0"));
    let plain = compiled(&machine, &[]);
    assert!(
        plain.program.plans.iter().all(|p| p.variants.is_empty()),
        "nothing was measured"
    );
    let other = compiled(&machine, &[(&device, "tiles-16")]);
    assert!(other.warnings.to_string().is_empty(), "{}", other.warnings);
    // They are the default of the second one.
    assert_eq!(names(&other.program, PlanId(0)), ["tiles-16"]);
    let keys = |c: &Compiled| c.program.kernels.iter().map(|k| k.key).collect::<Vec<_>>();
    assert_eq!(
        keys(&plain) != keys(&other),
        backend == "vulkan",
        "the printed kernels"
    );
    let text = zbmd_ir::text::program(&other.program, None, Default::default());
    assert!(text.contains(" by tiles-16"), "{text}");
    let (want, got) = (run(through_a_file(&plain)), run(through_a_file(&other)));
    assert_eq!(got.1, Vec::<String>::new());
    assert!(want.0 == got.0, "the bits of tiles differ");
    assert!(off(&plain.program, &got.0) < 2e-6);
}

/// Whether the CUDA device at hand has the library; else it says so.
fn has_library() -> bool {
    let opened =
        zbmd_backends::gpu::Drivers::default().open(&"cuda".into(), "cuda:0", &Default::default());
    let opened: Device = opened.expect("asked before");
    let Some(device) = opened.downcast::<zbmd_backends::cuda::CudaDevice>() else {
        return false;
    };
    let library = device.library();
    if let Err(why) = &library {
        println!("not installed: {why}");
    }
    library.is_ok()
}

/// The library's products: in the plan with the memory that they need, and near the interpreter's.
fn library() {
    if !has_library() {
        return;
    }
    let made = compiled(&machine(&["cuda"]), &[("cuda:0", LIBRARY)]);
    assert!(made.warnings.to_string().is_empty(), "{}", made.warnings);
    let program = through_a_file(&made);
    assert_eq!(names(&program, PlanId(0)), [LIBRARY; 2]);
    for plan in program.plans.iter().filter(|p| !p.variants.is_empty()) {
        let own = gpu_calendar(plan);
        assert!(
            own.scratch_bytes >= WORKSPACE,
            "{}: {}",
            plan.name,
            own.scratch_bytes
        );
    }
    let (out, notes) = run(program);
    assert_eq!(notes, Vec::<String>::new());
    let off = off(&made.program, &out);
    assert!(off < 2e-6, "off by {off:e}");
}

/// Without the library the same bundle runs by the default kernels, to the bit, and the report says so once for each.
fn without() {
    if required("cuda") {
        return println!("not on a GPU: its library cannot be taken away");
    }
    let machine = machine(&["cuda"]);
    let plain = run(through_a_file(&compiled(&machine, &[])));
    let program = through_a_file(&compiled(&machine, &[("cuda:0", LIBRARY)]));
    let with = run(program.clone());
    assert!(with.0 != plain.0, "nothing shows who did it");
    set_driver("software,library");
    let (out, notes) = run(program);
    set_driver("software");
    assert!(out == plain.0, "not the bits of the default kernels");
    assert_eq!(notes.len(), 2, "{notes:?}");
    for (note, actor) in notes.iter().zip(["first", "second"]) {
        let said = format!(
            "`{actor}` was to run by cublaslt on cuda:0, but cuBLASLt is not installed: the default kernel runs instead"
        );
        assert!(note.starts_with(&said), "{note}");
    }
}

/// All devices of a backend run the variant of the first one that was measured, in all plans: so bits stay what they
/// are when one is lost.
fn one_for_all() {
    let mut machine = machine(&["cuda", "cuda"]);
    let other = &mut machine.devices[DeviceId(2)];
    // Not like the first one, which would have its plans.
    (other.name, other.memory_bytes) = ("cuda:1".to_owned(), other.memory_bytes / 2);
    let best = [("cuda:0", LIBRARY), ("cuda:1", "tiles-16")];
    let program = compiled(&machine, &best).program;
    let mut seen = std::collections::BTreeSet::new();
    for plan in &program.plans {
        for (id, _) in program
            .graph
            .actors
            .iter_enumerated()
            .filter(|(_, a)| a.role == Role::Compute)
        {
            let device = &machine.devices[plan.placement[id]];
            let wanted = (device.backend.has_dependent_launch()).then_some(LIBRARY);
            assert_eq!(plan.variant(id), wanted, "{} on {}", plan.name, device.name);
            seen.insert(device.name.clone());
        }
    }
    assert!(
        seen.contains("cuda:0") && seen.contains("cuda:1"),
        "{seen:?}"
    );
}

/// A variant that a kernel does not have is left out with a warning, and refused in a bundle.
fn unknown() {
    let machine = machine(&["cuda"]);
    let made = compiled(&machine, &[("cuda:0", "tiles-7")]);
    let codes: Vec<&str> = made.warnings.list.iter().map(|d| d.code.name()).collect();
    assert_eq!(codes, ["W0501"; 2], "{}", made.warnings);
    assert!(made.program.plans.iter().all(|p| p.variants.is_empty()));
    let mut program = made.program.into_inner();
    let first = program.graph.find("first").expect("an actor");
    for plan in program
        .plans
        .iter_mut()
        .filter(|p| p.placement[first] == GPU)
    {
        plan.variants.insert(first, "tiles-7".to_owned());
    }
    let program = verify(program).expect("a fine name");
    let engine = Engine::new(program, &zbmd_backends::standard_registry()).expect("an engine");
    let started = engine.start(options(Isolation::Threads)).map(drop);
    let Err(EngineError::Device { why, .. }) = started else {
        panic!("{started:?}")
    };
    let said = "there is no variant `tiles-7` of it, but tiles-32, tiles-16, tiles-64, cublaslt";
    assert!(why.contains(said), "{why}");
    // On Vulkan the library is as unknown.
    let vulkan = compiled(&self::machine(&["vulkan"]), &[("vulkan:0", LIBRARY)]);
    let codes: Vec<&str> = vulkan.warnings.list.iter().map(|d| d.code.name()).collect();
    assert_eq!(codes, ["W0501"; 2], "{}", vulkan.warnings);
}

/// Calibration measures all variants by turns, keeps them, and the machine file names the best.
fn calibrated() {
    let dir = tempfile::tempdir().expect("a folder");
    let how = CalibrateOptions {
        cache: Some(dir.path().join("cache")),
        budget_ns: 0,
        ..CalibrateOptions::default()
    };
    // A device in software takes its time.
    let model = model_of([9, 6, 10, 9]);
    let calibrate = || {
        let machine = MachineChoice::Given(machine(&["cuda"]));
        let options = CompileOptions {
            machine,
            ..CompileOptions::default()
        };
        let found = calibrate_str("m.ron", &model, "", &options, &how, &mut |_| {});
        found.expect("a fine model")
    };
    let variants = |found: &zbmd_compiler::calibrate::Calibration| -> Vec<Vec<String>> {
        let rows = found.rows.iter().filter(|r| r.devices == ["cuda:0"]);
        let name = |c: &MeasuredCost| c.variant.clone().unwrap_or_default();
        rows.map(|row| row.variants.iter().map(name).collect())
            .collect()
    };
    let library: &[&str] = if has_library() { &[LIBRARY] } else { &[] };
    let want: Vec<Vec<&str>> = vec![[&["", "tiles-32"], library].concat(); 2];
    let found = calibrate();
    assert_eq!(variants(&found), want);
    assert!(
        found.rows.iter().all(|r| r.source == CostSource::Measured),
        "{:?}",
        found.rows
    );
    let again = calibrate();
    assert_eq!(variants(&again), want);
    assert!(
        again.rows.iter().all(|r| r.source == CostSource::Cache),
        "{:?}",
        again.rows
    );
    if !required("cuda") {
        set_driver("software,library");
        let other = calibrate();
        set_driver("software");
        assert!(
            variants(&other)
                .iter()
                .all(|v| !v.contains(&LIBRARY.to_owned()))
        );
        let fresh = other.rows.iter().filter(|r| r.devices == ["cuda:0"]);
        assert!(fresh.clone().count() == 2);
        assert!(
            fresh.clone().all(|r| r.source == CostSource::Measured),
            "{:?}",
            other.rows
        );
    }
    let path = dir.path().join("machine.ron");
    found.write(&path).expect("it is written");
    let options = CompileOptions {
        machine: MachineChoice::File(path),
        ..CompileOptions::default()
    };
    let made = compile_str("m.ron", &model, "", &options).unwrap_or_else(|d| panic!("{d}"));
    assert!(made.warnings.to_string().is_empty(), "{}", made.warnings);
    let (out, notes) = run(through_a_file(&made));
    assert_eq!(notes, Vec::<String>::new());
    assert!(off(&made.program, &out) < 2e-6);
}

fn main() {
    if !required("cuda") {
        set_driver("software");
    }
    let tests: [Test; 6] = [
        ("cuda tiles", || tiles("cuda")),
        ("cuda library", library),
        ("cuda without", without),
        ("cuda one for all", one_for_all),
        ("cuda unknown", unknown),
        ("cuda calibrated", calibrated),
    ];
    harness::run(&tests, || true);
    let tests: [Test; 1] = [("vulkan tiles", || tiles("vulkan"))];
    harness::run(&tests, || {
        open(false, &vulkan::VulkanOptions::default()).is_some()
    });
}
