//! How often ops are resolved: once for each actor of a compilation, and once for each actor of a worker, whatever is
//! asked about them.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use zbmd_backends::op::{Op, OpDoc, OpError, Registry, ResolveCx, ResolvedOp, TypeSchema};
use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_str};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::Machine;
use zbmd_tests::gpu::with;
use zbmd_tests::run::{Streams, drive, streams};

/// Which driver CUDA's devices have.
const DRIVER: &str = "ZBMD_CUDA_DRIVER";

/// Tensor ops of most families, two actors of one kind but different sizes among them.
const MODEL: &str = r#"Model(
    sources: { "in": Stream(dtype: f32, shape: [1, 2, 8, 8]) },
    actors: {
        "conv": NnConv(w: [[[[1.0]], [[0.5]]], [[[0.25]], [[2.0]]]], strides: [1, 1]),
        "relu": NnRelu(),
        "norm": NnInstanceNormalization(scale: [1.0, 2.0], bias: [0.0, 1.0]),
        "pool": NnMaxPool(kernel_shape: [2, 2], strides: [2, 2]),
        "flat": NnFlatten(axis: 2),
        "product": NnMatMul(y: [
            [1.0, 2.0], [0.5, 0.5], [1.0, 1.0], [0.0, 1.0], [1.0, 2.0], [0.5, 0.5], [1.0, 1.0], [0.0, 1.0],
            [1.0, 2.0], [0.5, 0.5], [1.0, 1.0], [0.0, 1.0], [1.0, 2.0], [0.5, 0.5], [1.0, 1.0], [0.0, 1.0],
        ]),
        "relu2": NnRelu(),
        "soft": NnSoftmax(axis: -1),
    },
    sinks: { "out": Stream() },
    channels: [
        (from: "in", to: ["conv"]),
        (from: "conv", to: ["relu"]),
        (from: "relu", to: ["norm"]),
        (from: "norm", to: ["pool"]),
        (from: "pool", to: ["flat"]),
        (from: "flat", to: ["product.x"]),
        (from: "product", to: ["relu2"]),
        (from: "relu2", to: ["soft"]),
        (from: "soft", to: ["out"]),
    ],
)"#;

/// Actors of the model.
const TENSOR_OPS: usize = 8;

/// How often each op was resolved, by all that it was resolved from.
#[derive(Clone, Default)]
struct Resolutions(Arc<Mutex<BTreeMap<String, usize>>>);

impl Resolutions {
    fn counts(&self) -> BTreeMap<String, usize> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.clone()
    }

    /// The standard catalogue, whose ops count here.
    fn registry(&self) -> Registry {
        let standard = zbmd_backends::standard_registry();
        let mut counting = standard.clone();
        for name in standard.names() {
            // The registry finds custom actors by itself.
            if name != "Custom" {
                counting.add(CountingOp {
                    op: Arc::clone(standard.op(name).expect("an op of that name")),
                    resolutions: self.clone(),
                });
            }
        }
        counting
    }
}

/// An op that counts how often it was resolved.
struct CountingOp {
    op: Arc<dyn Op>,
    resolutions: Resolutions,
}

impl Op for CountingOp {
    fn name(&self) -> &str {
        self.op.name()
    }

    fn doc(&self) -> OpDoc {
        self.op.doc()
    }

    fn types(&self) -> Option<&TypeSchema> {
        self.op.types()
    }

    fn positional(&self) -> &'static [&'static str] {
        self.op.positional()
    }

    fn resolve(&self, cx: &ResolveCx<'_>) -> Result<ResolvedOp, OpError> {
        // An op that still waits for the type of an input has resolved nothing.
        let resolved = self.op.resolve(cx)?;
        let inputs: Vec<_> = cx.types.values().collect();
        let key = format!("{} {:?} {inputs:?}", self.op.name(), cx.params);
        let mut counts = self
            .resolutions
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *counts.entry(key).or_default() += 1;
        Ok(resolved)
    }
}

/// The model, by a registry that counts.
fn compile(machine: Machine, resolutions: &Resolutions) -> Compiled {
    let options = CompileOptions {
        machine: MachineChoice::Given(machine),
        registry: resolutions.registry(),
        ..CompileOptions::default()
    };
    compile_str("model.ron", MODEL, ".", &options).expect("a model that compiles")
}

/// Every tensor op of the model was resolved, and nothing twice. Replicas of an actor are one op.
fn assert_once_each(counts: &BTreeMap<String, usize>) {
    let tensor_ops = counts.keys().filter(|key| key.starts_with("Nn")).count();
    assert_eq!(tensor_ops, TENSOR_OPS, "{counts:#?}");
    assert!(counts.values().all(|count| *count == 1), "{counts:#?}");
}

#[test]
fn ops_are_resolved_once_in_a_compilation_for_cpus() {
    let resolutions = Resolutions::default();
    compile(with(&[]), &resolutions);
    assert_once_each(&resolutions.counts());
}

#[test]
fn ops_are_resolved_once_in_a_compilation_for_gpus() {
    let resolutions = Resolutions::default();
    compile(with(&["cuda", "vulkan"]), &resolutions);
    assert_once_each(&resolutions.counts());
}

/// Runs the model on a CPU and a GPU, in workers that are threads: they share what the engine has resolved.
#[test]
fn ops_are_resolved_once_in_a_worker() {
    // The device in software is chosen by the environment, which only a process of its own can set.
    if std::env::var_os(DRIVER).is_none() {
        let program = std::env::current_exe().expect("this test's program");
        let status = Command::new(program)
            .args(["--exact", "resolutions::ops_are_resolved_once_in_a_worker"])
            .env(DRIVER, "software")
            .status();
        assert!(status.expect("a process").success());
        return;
    }

    let compiled = compile(gpu_machine(), &Resolutions::default());
    let uses_gpu = compiled.program.plans[zbmd_ir::PlanId(0)]
        .placement
        .iter()
        .any(|device| compiled.program.machine.devices[*device].backend == "cuda");
    assert!(uses_gpu, "the GPU is much faster than the CPU");

    let resolutions = Resolutions::default();
    let program = compiled.program.clone();
    let engine = Engine::new(program, &resolutions.registry()).expect("an engine");
    let session = engine.start(RunOptions::default()).expect("a session");
    let inputs: Streams = streams([("in", vec![0; 4 * 128 * 8])]);
    let (outputs, _) = drive(session, &inputs, vec!["out".to_owned()]);
    assert_eq!(outputs["out"].len(), 2 * 2 * 4 * 8);
    assert_once_each(&resolutions.counts());
}

/// A CPU that is so slow that all actors are placed on the GPU.
fn gpu_machine() -> Machine {
    let mut machine = with(&["cuda"]);
    let cpu = machine.devices.first_mut().expect("the CPU");
    cpu.flops_per_s = 100_000;
    cpu.bytes_per_s = 100_000;
    machine
}
