//! Quantised models beside ONNX Runtime, OpenVINO and our own floats: one table, processor time of one call.
//!
//! `ZBMD_ORT=PYTHON cargo bench -p zbmd-tests --bench quantised [FILTER]`, where the Python has the packages `onnx`,
//! `onnxruntime` and `openvino` (without that its columns stay empty). `benches/quantise.py` quantises each model
//! statically, with random weights where the file's are constant; those that `benches/more_models.py` makes are read from the folder
//! that `ZBMD_MODELS` names. Everybody has loaded the model, is called on one thread, and takes turns in the same run; ours are the
//! variants of kernels that calibration chose. Times are medians of the turns, ratios medians of the turns' ratios.
//!
//! `agrees` is the difference of our outputs from those of ONNX Runtime, relative to the largest; `floats` is that of
//! ONNX Runtime's outputs from our floats, which is what quantising costs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use zbmd_backends::interpret::Interpreter;
use zbmd_compiler::{CompileOptions, read_npy};
use zbmd_executor::{Caller, Engine};
use zbmd_ir::Program;
use zbmd_ir::verify::Verified;
use zbmd_tests::figures::{load, median, median_ratio};
use zbmd_tests::onnx::{
    calibrated, model_inputs, network_files, one_device, relative_error, to_f64,
};
use zbmd_tests::rival_process::RivalProcess;

const MODELS: [&str; 7] = [
    "mobilenet_v2",
    "light_squeezenet",
    "light_resnet50",
    "light_shufflenet",
    "bert_tiny",
    "encoder",
    "lstm",
];
/// Seconds of one turn, and turns of everybody.
const BUDGET: f64 = 0.5;
const TURNS: usize = 7;

/// For one device of one core.
fn options() -> CompileOptions {
    CompileOptions {
        machine: one_device(1),
        block: Some(1),
        ..CompileOptions::default()
    }
}

/// Processor time of this process so far, in seconds.
fn processor_seconds() -> f64 {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    usage.tv_sec as f64 + usage.tv_nsec as f64 * 1e-9
}

/// Our model, ready to be called.
struct Ours {
    program: Verified<Program>,
    inputs: BTreeMap<String, Vec<u8>>,
    caller: Caller,
    outputs: Vec<Vec<u8>>,
}

impl Ours {
    fn new(dir: &Path, name: &str) -> Option<Self> {
        let path = dir.join(format!("{name}.onnx"));
        let program = match calibrated(&path, options()) {
            Ok(program) => program,
            Err(message) => {
                println!("{name}: {message}");
                return None;
            }
        };
        let registry = zbmd_backends::standard_registry();
        let engine = Engine::new(program.clone(), &registry).expect("known ops");
        let caller = engine.caller().expect("one CPU device");
        Some(Self {
            inputs: model_inputs(dir, name, &program.graph),
            program,
            outputs: caller.outputs().map(|(_, bytes)| vec![0; bytes]).collect(),
            caller,
        })
    }

    /// Processor seconds of one of so many calls.
    fn seconds(&mut self, calls: u64) -> f64 {
        let sources = self.program.graph.sources();
        let inputs: Vec<&[u8]> = sources
            .map(|(_, source)| self.inputs[&source.name].as_slice())
            .collect();
        let mut outputs: Vec<&mut [u8]> = self.outputs.iter_mut().map(Vec::as_mut_slice).collect();
        let start = processor_seconds();
        for _ in 0..calls {
            self.caller.call(&inputs, &mut outputs).expect("a call");
        }
        (processor_seconds() - start) / calls as f64
    }

    /// The first output of one call.
    fn output(&self) -> Vec<f64> {
        let registry = zbmd_backends::standard_registry();
        let program = &self.program;
        let made = Interpreter::new(&program.graph, &program.blobs, &registry);
        let outcome = made
            .expect("kernels")
            .run(&self.inputs, Some(1))
            .expect("a run");
        let (_, sink) = program.graph.sinks().next().expect("an output");
        to_f64(&outcome.outputs[&sink.name], sink.inputs[0].token.dtype)
    }
}

/// A rival, loaded with one model.
fn start_rival(engine: &str, dir: &Path, name: &str) -> Option<RivalProcess> {
    let folder = dir.join(engine);
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut command = Command::new(std::env::var_os("ZBMD_ORT")?);
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/quantised_rival.py"))
        .arg(engine)
        .arg(dir.join(format!("{name}.onnx")))
        .arg(&folder)
        .stderr(Stdio::null());
    let mut rival = RivalProcess::start(&mut command).expect("ZBMD_ORT can be run");
    (rival.answer() == "ready").then_some(rival)
}

fn main() {
    let mut words = std::env::args().skip(1);
    let filter = words
        .find(|word| !word.starts_with('-'))
        .unwrap_or_default();
    let Some(python) = std::env::var_os("ZBMD_ORT") else {
        println!("without ZBMD_ORT there is nothing to quantise");
        return;
    };
    println!("load {}", load());
    println!(
        "{:<24} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>8} {:>8}",
        "model", "int8 us", "f32 us", "ort us", "ov us", "/f32", "/ort", "/ov", "agrees", "floats"
    );

    let dir = std::env::temp_dir().join(format!("zbmd-quantised-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let is_asked =
        |(_, name): &(PathBuf, String)| MODELS.contains(&name.as_str()) && name.contains(&filter);
    for (path, name) in network_files(&[]).into_iter().filter(is_asked) {
        let made = Command::new(&python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/quantise.py"))
            .arg(path)
            .arg(&dir)
            .output()
            .expect("ZBMD_ORT can be run");
        if !made.status.success() {
            println!("{name}: {}", String::from_utf8_lossy(&made.stderr));
            continue;
        }
        let Some(mut floats) = Ours::new(&dir, &format!("{name}.f32")) else {
            continue;
        };
        for form in ["qdq", "qop", "dynamic"] {
            let quantised = format!("{name}.{form}");
            if dir.join(format!("{quantised}.onnx")).exists() {
                row(&dir, &quantised, &mut floats);
            }
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
}

/// Measures one quantised model, and prints its row.
fn row(dir: &Path, name: &str, floats: &mut Ours) {
    let Some(mut bytes) = Ours::new(dir, name) else {
        return;
    };
    let mut ort = start_rival("ort", dir, name);
    let mut openvino = start_rival("openvino", dir, name);
    let calls = ((BUDGET / floats.seconds(3)) as u64).clamp(3, 20_000);

    let mut times = [const { Vec::<f64>::new() }; 4];
    for _ in 0..TURNS {
        let now = [
            bytes.seconds(calls),
            floats.seconds(calls),
            ort.as_mut()
                .and_then(|r| r.seconds(calls))
                .unwrap_or(f64::NAN),
            openvino
                .as_mut()
                .and_then(|r| r.seconds(calls))
                .unwrap_or(f64::NAN),
        ];
        for (all, time) in times.iter_mut().zip(now) {
            all.push(time);
        }
    }

    let theirs = std::fs::read(dir.join("ort/0.npy"))
        .ok()
        .and_then(|bytes| read_npy(&bytes.into()).ok())
        .map(|array| to_f64(&array.data, array.token.dtype));
    let difference = |ours: &Ours| match &theirs {
        Some(theirs) => relative_error(&ours.output(), theirs),
        None => f64::NAN,
    };
    let [int8, f32, ort, openvino] = &times;
    println!(
        "{name:<24} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>7.2} {:>7.2} {:>7.2} {:>8.0e} {:>8.0e}",
        median(int8.clone()) * 1e6,
        median(f32.clone()) * 1e6,
        median(ort.clone()) * 1e6,
        median(openvino.clone()) * 1e6,
        median_ratio(int8, f32),
        median_ratio(int8, ort),
        median_ratio(int8, openvino),
        difference(&bytes),
        difference(floats),
    );
}
