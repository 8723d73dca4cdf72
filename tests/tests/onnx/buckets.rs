//! ONNX models compiled for several sizes of batches: each mode gives what the model compiled for that size alone gives, a run
//! goes over from one to another without losing a sample, and the weights are in the bundle once.

use std::path::Path;
use std::time::Duration;

use rten_onnx::onnx::{
    DataType, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, TypeProtoTensor, ValueInfoProto,
};
use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_file, compile_onnx};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::DType;
use zbmd_ir::verify::Verified;
use zbmd_tests::data;
use zbmd_tests::onnx::{relative_error, to_f64};
use zbmd_tests::run::{Streams, drive_with, replay_program};

const SIZES: [u32; 4] = [1, 2, 4, 8];
/// A model of images, and its input.
const IMAGES: &str = "models/light_squeezenet.onnx";
const IMAGES_INPUT: &str = "data_0";

fn options(change: impl FnOnce(&mut CompileOptions)) -> CompileOptions {
    let mut options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    };
    change(&mut options);
    options
}

fn compile_images(path: &Path, change: impl FnOnce(&mut CompileOptions)) -> Compiled {
    let compiled = compile_file(path, &options(change));
    compiled.unwrap_or_else(|refused| panic!("{refused}"))
}

/// So many samples of a model's only input.
fn samples(compiled: &Compiled, count: usize) -> Streams {
    let (_, source) = compiled.program.graph.sources().next().expect("a source");
    let elements = source.outputs[0].token.elements() as usize;
    let mut rng = fastrand::Rng::with_seed(3);
    let numbers = (0..count * elements).map(|_| rng.f32() - 0.5);
    let bytes = numbers.flat_map(f32::to_le_bytes).collect();
    [(source.name.clone(), bytes)].into()
}

#[test]
fn every_bucket_gives_what_its_batch_gives_alone_and_weights_are_stored_once() {
    let Some(path) = data::file(IMAGES) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let bundle_bytes = |compiled: &Compiled| {
        let bundle = folder.path().join("model.zbmd");
        compiled.write(&bundle).expect("written");
        std::fs::metadata(&bundle).expect("a file").len()
    };

    let compiled = compile_images(&path, |options| options.buckets = SIZES.to_vec());
    let modes = compiled.modes.as_ref().expect("modes").verified.clone();
    let registry = zbmd_backends::standard_registry();
    let mut largest_bytes = 0;
    for (program, size) in modes.programs().iter().zip(SIZES) {
        let alone = compile_images(&path, |options| {
            let dim = format!("{IMAGES_INPUT}.0");
            options.onnx.dims.insert(dim, size);
        });
        largest_bytes = largest_bytes.max(bundle_bytes(&alone));
        let program = Verified::clone(program);
        let inputs = samples(&compiled, size as usize);
        let (got, _) = replay_program(program, &registry, &inputs, None, None);
        let (want, _) = replay_program(alone.program, &registry, &inputs, None, None);
        assert!(got == want, "other bits in batches of {size}");
        assert!(got.values().all(|bytes| !bytes.is_empty()));
    }

    let ratio = bundle_bytes(&compiled) as f64 / largest_bytes as f64;
    println!("{ratio:.3} times the largest bundle of one batch size");
    assert!(ratio <= 1.1, "{ratio}");
}

/// Two layers over rows of 16 numbers, any number of them.
fn layers() -> Vec<u8> {
    let value = |name: &str| {
        let open = Dimension {
            dim_param: Some("rows".into()),
            ..Default::default()
        };
        let width = Dimension {
            dim_value: Some(16),
            ..Default::default()
        };
        let tensor_type = TypeProtoTensor {
            elem_type: Some(DataType::FLOAT),
            shape: Some(TensorShapeProto {
                dim: vec![open, width],
            }),
        };
        ValueInfoProto {
            name: Some(name.into()),
            r#type: Some(TypeProto {
                tensor_type: Some(tensor_type),
                ..Default::default()
            }),
        }
    };
    let weights = TensorProto {
        name: Some("w".into()),
        dims: vec![16, 16],
        data_type: Some(DataType::FLOAT),
        float_data: (0..256u16)
            .map(|v| (f32::from(v) * 0.7).sin() / 4.0)
            .collect(),
        ..Default::default()
    };
    let node = |op: &str, inputs: &[&str], output: &str| NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|name| (*name).to_owned()).collect(),
        output: vec![output.to_owned()],
        ..Default::default()
    };
    let graph = GraphProto {
        node: vec![
            node("MatMul", &["x", "w"], "a"),
            node("Tanh", &["a"], "b"),
            node("MatMul", &["b", "w"], "y"),
        ],
        initializer: vec![weights],
        input: vec![value("x")],
        output: vec![value("y")],
        ..Default::default()
    };
    let model = ModelProto {
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto {
            version: Some(18),
            ..Default::default()
        }],
        ir_version: Some(9),
        ..Default::default()
    };
    model.write_buf().expect("memory")
}

#[test]
fn a_run_goes_over_between_batches_and_loses_no_sample() {
    const SAMPLES: usize = 8 * 4000;
    const PIECES: usize = 200;
    let file = layers();
    let compile = |buckets: &[u32]| {
        let options = options(|options| {
            options.buckets = buckets.to_vec();
            options.onnx.batch = Some(1);
        });
        let compiled = compile_onnx("layers", &file, &options);
        compiled.unwrap_or_else(|refused| panic!("{refused}"))
    };
    let (compiled, alone) = (compile(&SIZES), compile(&[]));
    let inputs = samples(&compiled, SAMPLES);
    let registry = zbmd_backends::standard_registry();
    let (want, _) = replay_program(alone.program, &registry, &inputs, None, None);

    let engine = Engine::with_modes(compiled.into_modes(), &registry).expect("an engine");
    let run_options = RunOptions {
        pin: false,
        lock_memory: false,
        ..RunOptions::default()
    };
    let session = engine.start(run_options).expect("a session");
    let handle = session.modes();
    let mut entered = Vec::new();
    let (got, _) = drive_with(session, &inputs, vec!["y".to_owned()], PIECES, || {
        for size in [8, 2, 4, 1] {
            let Ok(change) = handle.change(&format!("batch-{size}")) else {
                break;
            };
            entered.extend(change.wait());
            std::thread::sleep(Duration::from_millis(10));
        }
    });

    // The last batch may lack samples: what there is of it is not computed.
    println!("{} changes of the batch", entered.len());
    assert!(!entered.is_empty(), "no mode was entered");
    let (got, want) = (&got["y"], &want["y"]);
    let token_bytes = want.len() / SAMPLES;
    assert!(want.len() - got.len() < 8 * token_bytes);
    let expected = to_f64(&want[..got.len()], DType::F32);
    let error = relative_error(&to_f64(got, DType::F32), &expected);
    assert!(error < 1e-5, "{error}");
}
