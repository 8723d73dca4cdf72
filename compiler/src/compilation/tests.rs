//! What holds the steps together: pass selection, the check between levels, and the report about GPUs.

use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{Op, OpDoc, OpError, Packing, ResolveCx, ResolvedOp};
use zbmd_ir::{DType, InPort, OutPort, TokenType};

use crate::tests::said;
use crate::{CompileOptions, Compiled, MachineChoice, check_file, check_str, compile_str};
use bytes::Bytes;

fn compile(text: &str, options: &CompileOptions) -> Compiled {
    compile_str("model.ron", text, "", options).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Options for a machine with a GPU, which no driver is asked about.
fn options_with_gpu() -> CompileOptions {
    let mut machine = crate::machine::uniform(2);
    machine.devices.raw[1].name = "gpu:0".to_owned();
    machine.devices.raw[1].backend = "vulkan".into();
    machine.devices.raw[1].cores.clear();
    CompileOptions {
        machine: MachineChoice::Given(machine),
        ..CompileOptions::default()
    }
}

/// A product that is pinned to the CPU although GPUs have kernels for it, and a function that they have none for.
const CPU_MODEL: &str = r#"Model(
    sources: { "in": Stream(dtype: f32, shape: [1, 2]), "in64": Stream(dtype: f64, shape: [2]) },
    actors: { "product": NnMatMul(y: [[1.0, 2.0], [3.0, 4.0]]), "sine": NnSin() },
    pins: { "product": "cpu:0" },
    sinks: { "out": Stream(), "out64": Stream() },
    channels: [
        (from: "in", to: ["product"]), (from: "product", to: ["out"]),
        (from: "in64", to: ["sine"]), (from: "sine", to: ["out64"]),
    ],
)"#;

#[test]
fn actors_without_gpu_kernels_are_reported_and_packed_ones_are_not() {
    let compiled = compile(CPU_MODEL, &options_with_gpu());

    // There are no GPU kernels for packed weights: the report is about the actor before it was packed.
    let product = compiled.program.graph.find("product").expect("the actor");
    let params = &compiled.program.graph.actors[product].params;
    assert!(params.contains_key("packed"), "{params:?}");

    let report = compiled.cpu_only.expect("an actor without a GPU kernel");
    assert_eq!(
        report.to_string(),
        "no kernel on gpu:0: sine (NnSin) stay on CPU devices"
    );

    let on_cpus = CompileOptions {
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    };
    assert_eq!(compile(CPU_MODEL, &on_cpus).cpu_only, None);
}

#[test]
fn skipped_passes_leave_the_graph_alone() {
    let compiled = |skipped: &[&str]| {
        let mut options = options_with_gpu();
        options.skipped_passes = skipped.iter().map(|&name| name.to_owned()).collect();
        compile(CPU_MODEL, &options)
    };
    let is_packed = |compiled: &Compiled| {
        let graph = &compiled.program.graph;
        let mut actors = graph.actors.iter();
        actors.any(|actor| actor.params.contains_key("packed"))
    };
    let may_write_in_place = |compiled: &Compiled| {
        let graph = &compiled.program.graph;
        graph.actors.iter().any(|actor| !actor.in_place.is_empty())
    };

    let all = compiled(&[]);
    assert!(is_packed(&all) && may_write_in_place(&all));
    let unpacked = compiled(&["pack-weights"]);
    assert!(!is_packed(&unpacked) && may_write_in_place(&unpacked));
    let plain = compiled(&["pack-weights", "in-place"]);
    assert!(!is_packed(&plain) && !may_write_in_place(&plain));
}

#[test]
fn unknown_passes_are_refused_for_every_model() {
    let options = CompileOptions {
        skipped_passes: vec!["pack-wieghts".to_owned()],
        ..CompileOptions::default()
    };
    let refused = check_str("model.ron", CPU_MODEL, "", &options).expect_err("no such pass");
    let errors = said(&refused);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].starts_with("E0807 there is no pass `pack-wieghts`, only ")
            && errors[0].ends_with("winograd, in-place, collectives, pack-weights"),
        "{errors:?}"
    );

    let onnx = concat!(env!("CARGO_MANIFEST_DIR"), "/src/explain/onnx/relu.onnx");
    let refused = check_file(onnx, &options).expect_err("no such pass");
    assert_eq!(said(&refused), errors);
}

#[test]
fn machines_are_read_and_not_searched_for_words() {
    use super::PassSelection;
    use crate::reports::Reports;
    use crate::target::Target;

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("machine.ron");
    let skips_layout = |machine: &str| {
        std::fs::write(&path, machine).expect("a file");
        let options = CompileOptions {
            machine: MachineChoice::File(path.clone()),
            ..CompileOptions::default()
        };
        let mut reports = Reports::default();
        let target = Target::read(&options.machine, &mut reports).expect("a machine");
        !PassSelection::new(&options, Some(&target), &mut reports).runs("channels-last")
    };
    let gpu = r#"Machine(devices: [Device(name: "one", backend: vulkan)])"#;
    assert!(skips_layout(gpu), "GPUs expect ONNX's order of channels");
    let named = r#"Machine(devices: [Device(name: "not-cuda", backend: cpu)]) // nor vulkan"#;
    assert!(
        !skips_layout(named),
        "a word in a name or comment is not a device"
    );
}

/// An op that packs its weights into fewer bytes than it declares.
struct WrongPacking;

impl Op for WrongPacking {
    fn name(&self) -> &str {
        "WrongPacking"
    }

    fn doc(&self) -> OpDoc {
        OpDoc {
            summary: "",
            params: &[],
            ports: "",
            example: "",
        }
    }

    fn resolve(&self, _: &ResolveCx<'_>) -> Result<ResolvedOp, OpError> {
        let token = TokenType::scalar(DType::F32);
        let input = InPort {
            name: "x".to_owned(),
            token: token.clone(),
            rate: 1,
            window: 1,
        };
        let output = OutPort {
            name: "y".to_owned(),
            token,
            rate: 1,
        };
        let resolved = ResolvedOp::new(vec![input], vec![output], || Ok(WrongPacking));
        Ok(resolved.with_packing(|| Packing {
            operand: "w".to_owned(),
            shape: vec![1],
            dtype: DType::F32,
            weights: Bytes::from_static(b"five!"),
        }))
    }
}

impl Kernel for WrongPacking {
    fn fire(&self, _: &mut Io<'_>) -> Result<(), KernelFault> {
        Ok(())
    }
}

#[test]
#[should_panic(expected = "the verifier refuses the graph after packing weights")]
fn a_step_that_breaks_the_graph_is_named() {
    let mut options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    };
    options.registry.add(WrongPacking);
    let text = r#"Model(
        sources: { "in": Stream(dtype: f32) },
        actors: { "a": WrongPacking() },
        sinks: { "out": Stream() },
        channels: [(from: "in", to: ["a"]), (from: "a", to: ["out"])],
    )"#;
    compile(text, &options);
}
