//! What the benches of the server ask, and of which model.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every bench uses its part of this module"
)]

pub mod client;
pub mod turn;

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use zbmd_compiler::calibrate::{CalibrateOptions, Progress};
use zbmd_compiler::{
    CompileOptions, Compiled, MachineChoice, calibrate_file, calibrate_str, compile_file,
    compile_str,
};
use zbmd_executor::embed::streams;

use crate::common::WIDE;

/// A model that is served.
pub struct Model {
    pub name: String,
    /// Nothing for the model that is a text.
    path: Option<PathBuf>,
}

impl Model {
    /// That of the command line, or `mnist` of the shared data (`ZBMD_DATA`), or where that is not there, four functions of
    /// 4,096 floats.
    pub fn chosen() -> Self {
        let given = std::env::args()
            .skip(1)
            .find(|argument| !argument.starts_with('-'));
        let shared = std::env::var("ZBMD_DATA").map(|data| format!("{data}/models/mnist.onnx"));
        let path = given.or(shared.ok()).map(PathBuf::from);
        let path = path.filter(|path| path.exists());
        let stem = path.as_ref().and_then(|path| path.file_stem());
        let name = stem.map_or("wide".into(), |stem| stem.to_string_lossy());
        Self {
            name: name.into_owned(),
            path,
        }
    }

    /// Its file, if it has one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub fn compile(&self, options: &CompileOptions) -> Compiled {
        let compiled = match &self.path {
            Some(path) => compile_file(path, options),
            None => compile_str("model.ron", WIDE, "", options),
        };
        compiled.expect("a good model")
    }

    /// The same options, for the devices that they name with costs that are measured now.
    pub fn calibrated(&self, options: CompileOptions) -> CompileOptions {
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
pub fn options() -> CompileOptions {
    CompileOptions {
        machine: MachineChoice::Uniform(1),
        block: Some(1),
        ..CompileOptions::default()
    }
}

/// The load of the system, as all share its cores.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// A request of zeros, as bytes both ways. It is refused if its answer would take longer than a timeout.
pub fn request(model: &Compiled, timeout_us: Option<u64>) -> Vec<u8> {
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
pub fn list_request(model: &Compiled) -> String {
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

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("set");
    stream
}
