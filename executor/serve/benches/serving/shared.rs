//! What the benches of the server ask, and of which model.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use zbmd_compiler::calibrate::{CalibrateOptions, Progress};
use zbmd_compiler::{
    CompileOptions, Compiled, MachineChoice, calibrate_file, calibrate_str, compile_file,
    compile_str,
};
use zbmd_executor::embed::streams;

use super::common::WIDE;

/// What the command line says: the bench, and what it is to look at. What `cargo bench` adds is left out.
pub(crate) fn words() -> impl Iterator<Item = String> {
    let arguments = std::env::args().skip(1);
    arguments.filter(|argument| !argument.starts_with('-'))
}

/// Seconds from the environment, or so many.
pub(crate) fn seconds(variable: &str, default: u64) -> u64 {
    let given = std::env::var(variable);
    given.map_or(default, |text| text.parse().expect("whole seconds"))
}

/// A model that is served.
pub(crate) struct Model {
    pub(crate) name: String,
    /// Nothing for the model that is a text.
    path: Option<PathBuf>,
}

impl Model {
    /// That of the command line, or `mnist` of the shared data (`ZBMD_DATA`), or where that is not there, four functions of
    /// 4,096 floats.
    pub(crate) fn chosen() -> Self {
        let given = words().nth(1);
        let shared = std::env::var("ZBMD_DATA").map(|data| format!("{data}/models/mnist.onnx"));
        let given = given.map(PathBuf::from);
        if let Some(path) = &given {
            assert!(path.exists(), "there is no file {}", path.display());
        }
        let shared = shared.ok().map(PathBuf::from);
        let path = given.or(shared.filter(|path| path.exists()));
        let stem = path.as_ref().and_then(|path| path.file_stem());
        let name = stem.map_or("wide".into(), |stem| stem.to_string_lossy());
        Self {
            name: name.into_owned(),
            path,
        }
    }

    /// Its file, if it has one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(crate) fn compile(&self, options: &CompileOptions) -> Compiled {
        let compiled = match &self.path {
            Some(path) => compile_file(path, options),
            None => compile_str("model.ron", WIDE, "", options),
        };
        compiled.expect("a good model")
    }

    /// The same options, for the devices that they name with costs that are measured now.
    pub(crate) fn calibrated(&self, options: CompileOptions) -> CompileOptions {
        let how = CalibrateOptions::default();
        let mut silent = |_: Progress<'_>| {};
        let found = match &self.path {
            Some(path) => calibrate_file(path, &options, &how, &mut silent),
            None => calibrate_str("model.ron", WIDE, "", &options, &how, &mut silent),
        };
        let found = found.expect("a good model");
        CompileOptions {
            machine: MachineChoice::Measured(found.machine, found.costs),
            ..options
        }
    }
}

/// For one device, a request at a time.
pub(crate) fn options() -> CompileOptions {
    CompileOptions {
        machine: MachineChoice::Uniform(1),
        block: Some(1),
        ..CompileOptions::default()
    }
}

/// What a process has computed so far, in milliseconds; 0 of one that is gone. The system counts in hundredths of a second.
pub(crate) fn cpu_ms(process: u32) -> f64 {
    const MS_PER_TICK: u64 = 10;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in parentheses, may have spaces. Behind it come the state, as field 3, and times, as fields 14 and 15.
    let (_, fields) = stat.rsplit_once(") ").unwrap_or_default();
    let times = fields.split(' ').skip(11).take(2);
    let ticks: u64 = times.map(|time| time.parse().unwrap_or(0)).sum();
    (ticks * MS_PER_TICK) as f64
}

/// A request of zeros, as bytes both ways. It is refused if its answer would take longer than a timeout.
pub(crate) fn request(model: &Compiled, timeout_us: Option<u64>) -> Vec<u8> {
    let all = streams(&model.program.graph);
    let sources = all.iter().filter(|stream| stream.is_source);
    let mut zeros = 0;
    let inputs = sources.map(|stream| {
        let bytes = stream.token.bytes() * stream.tokens_per_iteration;
        zeros += bytes as usize;
        serde_json::json!({
            "name": stream.name, "shape": stream.token.shape, "datatype": "FP32",
            "parameters": {"binary_data_size": bytes},
        })
    });
    let inputs: Vec<serde_json::Value> = inputs.collect();
    let mut parameters = serde_json::json!({"binary_data_output": true});
    if let Some(timeout_us) = timeout_us {
        parameters["timeout"] = timeout_us.into();
    }
    let json = serde_json::json!({"inputs": inputs, "parameters": parameters});
    let json = json.to_string();
    let head = format!(
        "POST /v2/models/model/infer HTTP/1.1\r\nHost: zbmd\r\n\
         Inference-Header-Content-Length: {}\r\nContent-Length: {}\r\n\r\n",
        json.len(),
        json.len() + zeros
    );
    [head.as_bytes(), json.as_bytes(), &vec![0; zeros]].concat()
}

/// The same request as lists of numbers, which any server of the protocol takes.
pub(crate) fn list_request(model: &Compiled) -> String {
    let all = streams(&model.program.graph);
    let sources = all.iter().filter(|stream| stream.is_source);
    let inputs = sources.map(|stream| {
        let shape = stream.token.shape.iter();
        let elements: u64 = shape.map(|size| u64::from(*size)).product();
        let zeros = vec![0.0; (elements * stream.tokens_per_iteration) as usize];
        serde_json::json!({
            "name": stream.name, "shape": stream.token.shape, "datatype": "FP32", "data": zeros,
        })
    });
    let inputs: Vec<serde_json::Value> = inputs.collect();
    let json = serde_json::json!({"inputs": inputs}).to_string();
    let head = format!(
        "POST /v2/models/model/infer HTTP/1.1\r\nHost: zbmd\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        json.len()
    );
    head + &json
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("set");
    stream
}
