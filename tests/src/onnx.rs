//! ONNX models and cases: reading tensors, running a graph once through the interpreter, comparing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bytes::Bytes;
use rten_onnx::onnx::{DataType, TensorProto};
use rten_onnx::protobuf::{DecodeMessage, ValueReader};
use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::Registry;
use zbmd_compiler::calibrate::CalibrateOptions;
use zbmd_compiler::onnx::{OnnxError, SetValue, check_onnx_bytes};
use zbmd_compiler::{
    CompileOptions, Diagnostics, MachineChoice, calibrate_file, compile_file, graph_of_onnx,
    read_npy,
};
use zbmd_ir::verify::Verified;
use zbmd_ir::{Actor, BlobId, DType, Graph, Program, TiVec, TokenType};

use crate::data;
use crate::rival_process::RivalProcess;
use crate::run::Streams;

/// Networks of the shared data folder that benchmarks run, by name.
pub const NETWORKS: [&str; 10] = [
    "mnist",
    "silero_vad",
    "llama_block_decode",
    "bert_tiny",
    "light_shufflenet",
    "light_squeezenet",
    "mobilenet_v2",
    "light_inception_v1",
    "light_zfnet512",
    "light_resnet50",
];

/// Files and names of the networks that benchmarks run whose names contain one of these words, or of all: those of the
/// shared data folder, and those of the folder that `ZBMD_MODELS` names. None without the data folder.
///
/// # Panics
/// If `ZBMD_MODELS` names no folder.
pub fn network_files(words: &[String]) -> Vec<(PathBuf, String)> {
    let Some(shared) = data::file("models") else {
        return Vec::new();
    };
    let shared = NETWORKS.map(|name| (shared.clone(), name.to_owned()));

    let more_folder = std::env::var_os("ZBMD_MODELS").map(PathBuf::from);
    let more = more_folder.into_iter().flat_map(|folder| {
        let entries = std::fs::read_dir(&folder).expect("ZBMD_MODELS is a folder");
        let files = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let stems = files.filter_map(|file| Some(file.strip_suffix(".onnx")?.to_owned()));
        let unknown = stems.filter(|name| !NETWORKS.contains(&name.as_str()));
        let mut names: Vec<String> = unknown.collect();
        names.sort();
        names.into_iter().map(move |name| (folder.clone(), name))
    });

    shared
        .into_iter()
        .chain(more)
        .filter(|(_, name)| words.is_empty() || words.iter().any(|word| name.contains(word)))
        .map(|(folder, name)| (folder.join(format!("{name}.onnx")), name))
        .collect()
}

/// This computer as one CPU device of so many cores.
pub fn one_device(cores: usize) -> MachineChoice {
    let mut machine = zbmd_compiler::machine::detect_in_teams(cores);
    machine.devices.truncate(1);
    machine.links.clear();
    MachineChoice::Given(machine)
}

/// An engine of `benches/calls_rival.py` with a network, if `ZBMD_RIVALS` names a Python that has it and it takes the
/// network. The first output of a call goes into the file `result`.
///
/// # Panics
/// If what `ZBMD_RIVALS` names cannot be run.
pub fn start_engine(
    engine: &str,
    path: &Path,
    threads: usize,
    result: &Path,
) -> Option<RivalProcess> {
    let mut command = Command::new(std::env::var_os("ZBMD_RIVALS")?);
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/calls_rival.py"))
        .arg(engine)
        .arg(path)
        .arg(threads.to_string())
        .arg(result)
        .stderr(Stdio::null());
    let mut rival = RivalProcess::start(&mut command).expect("ZBMD_RIVALS can be run");
    (rival.answer() == "ready").then_some(rival)
}

/// How a shared model is compiled for a machine in blocks of one call; those with open dimensions have them bound.
pub fn call_options(name: &str, machine: MachineChoice) -> CompileOptions {
    let mut options = CompileOptions {
        machine,
        block: Some(1),
        ..CompileOptions::default()
    };
    if name == "silero_vad" {
        options.onnx.dims = [("batch".to_owned(), 1), ("sequence".to_owned(), 576)].into();
        options.onnx.set = [("sr".to_owned(), SetValue::Numbers(vec![16_000.0]))].into();
    }
    options
}

/// A model compiled for calls: with costs and variants of kernels as measured now. The options name a machine of this computer.
///
/// # Errors
/// What the compiler says.
pub fn calibrated(path: &Path, options: CompileOptions) -> Result<Verified<Program>, Diagnostics> {
    let how = CalibrateOptions {
        block: options.block,
        // What is remembered may be of kernels as they were before.
        fresh: true,
        ..CalibrateOptions::default()
    };
    let found = calibrate_file(path, &options, &how, &mut |_| {})?;
    let options = CompileOptions {
        machine: MachineChoice::Measured(found.machine, found.costs),
        ..options
    };
    Ok(compile_file(path, &options)?.program)
}

/// A tensor with its name.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name of the value.
    pub name: String,
    /// Dtype and shape.
    pub ty: TokenType,
    /// Elements, little-endian.
    pub data: Vec<u8>,
}

/// Reads a `.pb` file of one tensor.
///
/// # Panics
/// If it cannot be read or has a type that zbmd lacks.
pub fn read_pb(path: &Path) -> Tensor {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let proto = TensorProto::decode(ValueReader::from_buf(&bytes)).expect("a tensor");
    let dtype = match proto.data_type {
        Some(DataType::FLOAT) => DType::F32,
        Some(DataType::DOUBLE) => DType::F64,
        Some(DataType::FLOAT16) => DType::F16,
        Some(DataType::INT8) => DType::I8,
        Some(DataType::UINT8) => DType::U8,
        Some(DataType::INT16) => DType::I16,
        Some(DataType::INT32) => DType::I32,
        Some(DataType::INT64) => DType::I64,
        Some(DataType::BOOL) => DType::Bool,
        other => panic!("{}: {other:?}", path.display()),
    };
    let shape: Vec<u32> = proto.dims.iter().map(|&d| d as u32).collect();
    let data = match proto.raw_data {
        Some(raw) => raw.take(),
        None if dtype == DType::F32 => proto
            .float_data
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect(),
        None if dtype == DType::I64 => proto
            .int64_data
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect(),
        None => Vec::new(),
    };
    Tensor {
        name: proto.name.unwrap_or_default(),
        ty: TokenType::new(dtype, shape),
        data,
    }
}

/// What became of a case.
#[derive(Clone, Debug)]
pub enum Ran {
    /// Outputs by name.
    Outputs(BTreeMap<String, Vec<u8>>),
    /// Refused, with the reason.
    Refused(String),
}

/// The graph of a model in which those inputs are set that must be constants, or why there is none.
///
/// # Errors
/// What the importer says.
pub fn graph_once(
    model: &[u8],
    inputs: &[Tensor],
    registry: &Registry,
) -> Result<(Graph, TiVec<BlobId, Bytes>), String> {
    let mut options = CompileOptions {
        registry: registry.clone(),
        ..CompileOptions::default()
    };
    loop {
        match check_onnx_bytes(model, registry, &options.onnx) {
            Ok(()) => break,
            Err(OnnxError::NotConstant {
                value, input: true, ..
            }) if !options.onnx.set.contains_key(&value) => {
                let Some(given) = inputs.iter().find(|t| t.name == value) else {
                    return Err(format!("no data for input `{value}`"));
                };
                let set = SetValue::Tensor(given.ty.clone(), Bytes::from(given.data.clone()));
                options.onnx.set.insert(value, set);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    graph_of_onnx("model", model, &options)
        .map_err(|diagnostics| diagnostics.list[0].message.clone())
}

/// Imports a model, setting those inputs that must be constants, and runs it once.
pub fn run_once(model: &[u8], inputs: &[Tensor], registry: &Registry) -> Ran {
    let (graph, blobs) = match graph_once(model, inputs, registry) {
        Ok(made) => made,
        Err(why) => return Ran::Refused(why),
    };
    let mut interpreter = match Interpreter::new(&graph, &blobs, registry) {
        Ok(interpreter) => interpreter,
        Err(error) => return Ran::Refused(error.to_string()),
    };
    let data = inputs
        .iter()
        .map(|t| (t.name.clone(), t.data.clone()))
        .collect();
    match interpreter.run(&data, Some(1)) {
        Ok(outcome) => Ran::Outputs(outcome.outputs),
        Err(error) => Ran::Refused(error.to_string()),
    }
}

/// One call's input tokens for the model of that name in `dir`, from its files `NAME.inN.npy`; without them the ramp
/// that the images are.
///
/// # Panics
/// If a file is no array.
pub fn model_inputs(dir: &Path, name: &str, graph: &Graph) -> Streams {
    let token = |(i, (_, source)): (usize, (_, &Actor))| {
        let bytes = match std::fs::read(dir.join(format!("{name}.in{i}.npy"))) {
            Ok(bytes) => read_npy(&bytes.into()).expect("an array").data.to_vec(),
            Err(_) => {
                let n = source.outputs[0].token.elements();
                (0..n)
                    .flat_map(|k| (k as f32 / n as f32).to_le_bytes())
                    .collect()
            }
        };
        (source.name.clone(), bytes)
    };
    graph.sources().enumerate().map(token).collect()
}

/// Reference outputs of the model of that name in `dir`, in the order of its sinks: from `NAME_output_0.pb` if it is
/// there, or else from `NAME.outN.npy`.
///
/// # Panics
/// If a file is no tensor.
pub fn model_outputs(dir: &Path, name: &str) -> Vec<(DType, Vec<u8>)> {
    let pb = dir.join(format!("{name}_output_0.pb"));
    if pb.exists() {
        let tensor = read_pb(&pb);
        return vec![(tensor.ty.dtype, tensor.data)];
    }
    let files = (0..).map_while(|i| std::fs::read(dir.join(format!("{name}.out{i}.npy"))).ok());
    let arrays = files.map(|bytes| read_npy(&bytes.into()).expect("an array"));
    arrays
        .map(|array| (array.token.dtype, array.data.to_vec()))
        .collect()
}

/// Elements as f64.
pub fn to_f64(bytes: &[u8], dtype: DType) -> Vec<f64> {
    macro_rules! each {
        ($ty:ty) => {
            bytes
                .chunks_exact(size_of::<$ty>())
                .map(|c| <$ty>::from_le_bytes(c.try_into().expect("whole elements")) as f64)
                .collect()
        };
    }
    match dtype {
        DType::F32 => each!(f32),
        DType::F64 => each!(f64),
        DType::F16 => bytes
            .chunks_exact(2)
            .map(|c| half::f16::from_le_bytes([c[0], c[1]]).to_f64())
            .collect(),
        DType::I8 => each!(i8),
        DType::I16 => each!(i16),
        DType::I32 => each!(i32),
        DType::I64 => each!(i64),
        _ => bytes.iter().map(|&b| f64::from(b)).collect(),
    }
}

/// Where two tensors differ beyond the tolerance; `None` where they agree.
pub fn difference(got: &[u8], want: &Tensor, rtol: f64, atol: f64) -> Option<String> {
    let (a, b) = (
        to_f64(got, want.ty.dtype),
        to_f64(&want.data, want.ty.dtype),
    );
    if a.len() != b.len() {
        return Some(format!("{} elements, {} are expected", a.len(), b.len()));
    }
    let apart = |x: f64, y: f64| {
        let equal = x == y || (x.is_nan() && y.is_nan());
        !equal
            && (x.is_nan()
                || y.is_nan()
                || (x - y).abs() > atol + rtol * y.abs()
                || y.is_infinite())
    };
    let at = a.iter().zip(&b).position(|(&x, &y)| apart(x, y))?;
    let count = a.iter().zip(&b).filter(|(x, y)| apart(**x, **y)).count();
    Some(format!(
        "{count} of {} elements differ; element {at} is {}, {} is expected",
        a.len(),
        a[at],
        b[at]
    ))
}

/// norm(got − want) / norm(want).
pub fn relative_error(got: &[f64], want: &[f64]) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let apart = norm(&mut got.iter().zip(want).map(|(a, b)| a - b));
    if got.len() == want.len() {
        apart / norm(&mut want.iter().copied()).max(1e-300)
    } else {
        f64::INFINITY
    }
}
