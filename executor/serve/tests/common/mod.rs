//! A server in a process of its own, with models compiled here, and a client that says exactly what it is told to.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test program uses its part of this module"
)]

pub mod exchange;
#[path = "../../../../tests/src/other_processes.rs"]
pub mod other_processes;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use other_processes::children_of;
use rustix::process::Pid;
use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_str};

/// The model that the examples of Triton's clients talk to.
pub const SIMPLE: &str = include_str!("../../../../graphs/simple/model.ron");
/// Adds 1 to the first input of a sequence.
pub const SIMPLE_SEQUENCE: &str = include_str!("../../../../graphs/simple_sequence/model.ron");

/// Four functions of 4,096 floats: with two devices, a pipeline of two stages.
pub const WIDE: &str = r#"Model(
    name: "wide",
    sources: { "x": Stream(dtype: f32, shape: [1, 4096]) },
    actors: { "a": NnTanh(), "b": NnExp(), "c": NnTanh(), "d": NnSoftmax() },
    channels: [
        (from: "x", to: ["a"]),
        (from: "a", to: ["b"]),
        (from: "b", to: ["c"]),
        (from: "c", to: ["d", "t"]),
        (from: "d", to: ["y"]),
    ],
    sinks: { "y": Stream(), "t": Stream() },
)"#;

/// Nothing here takes longer, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Compiles a model for so many CPU devices, with plans for the loss of each.
pub fn compiled(model: &str, devices: usize, block: u64) -> Compiled {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(devices),
        block: Some(block),
        contingencies: match devices {
            1 => zbmd_compiler::Losses::None,
            _ => zbmd_compiler::Losses::Single,
        },
        ..CompileOptions::default()
    };
    compile_str("model.ron", model, "", &options).expect("a good model")
}

/// A file of the shared data; nothing where that is not here.
pub fn shared(name: &str) -> Option<PathBuf> {
    let path = std::env::var("ZBMD_DATA").map(|data| PathBuf::from(data).join(name));
    let found = path.ok().filter(|path| path.exists());
    if found.is_none() {
        eprintln!("SKIPPED: {name} is not here; set ZBMD_DATA to the folder of the shared data");
    }
    found
}

/// A folder of bundles.
pub struct Models {
    folder: tempfile::TempDir,
}

impl Models {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    /// With the model `simple` in it, on one device.
    pub fn simple() -> Self {
        Self::new().with("simple", &compiled(SIMPLE, 1, 1))
    }

    /// With the file of the model `simple_sequence` in it, which the server compiles.
    pub fn simple_sequence() -> Self {
        Self::new().with_simple_sequence()
    }

    pub fn with_simple_sequence(self) -> Self {
        self.with_file("simple_sequence.ron", SIMPLE_SEQUENCE.as_bytes())
    }

    pub fn with(self, name: &str, compiled: &Compiled) -> Self {
        let path = self.path().join(format!("{name}.zbmd"));
        compiled.write(&path).expect("written");
        self
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    pub fn with_file(self, name: &str, text: &[u8]) -> Self {
        std::fs::write(self.path().join(name), text).expect("written");
        self
    }

    /// A server of these models that has not said anything yet.
    pub fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zbmd-serve"));
        command
            .arg(self.path())
            .args(match options.contains(&"--listen") {
                true => &[][..],
                false => &["--listen", "127.0.0.1:0"],
            })
            .args(if cfg!(feature = "grpc") {
                &["--grpc-port", "0"][..]
            } else {
                &[]
            })
            .args(options)
            .stderr(Stdio::piped());
        command
    }

    /// A server of these models that listens.
    pub fn start(self, options: &[&str]) -> Server {
        let mut child = self.command(options).spawn().expect("started");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let mut address = None;
        while address.is_none() {
            let Some(line) = lines.next() else {
                let said = said.lock().expect("no panic").join("\n");
                panic!("it does not listen:\n{said}");
            };
            let line = line.expect("text");
            let found = line.strip_prefix("zbmd-serve: listening at http");
            let found = found.and_then(|rest| rest.split_once("://"));
            address = found.map(|(_, address)| address.parse().expect("an address"));
            said.lock().expect("no panic").push(line);
        }

        let all_said = Arc::clone(&said);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                all_said.lock().expect("no panic").push(line);
            }
        });
        Server {
            child,
            address: address.expect("found"),
            said,
            reader: Some(reader),
            models: self,
        }
    }

    /// A server of these models that is ready.
    pub fn serve(self, options: &[&str]) -> Server {
        let server = self.start(options);
        server.wait_until_ready(true);
        let index = server.post("/v2/repository/index", b"").json();
        let models = index.as_array().map_or(0, Vec::len);
        wait_until("warm models", || {
            server.said().matches(" as measured").count() == models
        });
        server
    }
}

/// A server, which is killed in the end.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    said: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
    pub models: Models,
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said on standard error so far.
    pub fn said(&self) -> String {
        self.said.lock().expect("no panic").join("\n")
    }

    /// Where it listens for gRPC.
    pub fn grpc_address(&self) -> SocketAddr {
        let mut address = None;
        wait_until("the port of gRPC", || {
            let said = self.said();
            let addresses = said
                .lines()
                .filter_map(|line| line.strip_prefix("zbmd-serve: listening at grpc"));
            let mut addresses = addresses.filter_map(|rest| rest.split_once("://"));
            let found = addresses.next();
            address = found.map(|(_, address)| address.parse().expect("an address"));
            address.is_some()
        });
        address.expect("found")
    }

    pub fn connect(&self) -> Connection {
        Connection::to(self.address)
    }

    /// A request on a connection of its own.
    pub fn get(&self, path: &str) -> Reply {
        self.connect().request("GET", path, &[], &[])
    }

    pub fn post(&self, path: &str, body: &[u8]) -> Reply {
        self.connect().request("POST", path, &[], body)
    }

    pub fn is_ready(&self) -> bool {
        self.get("/v2/health/ready").status == 200
    }

    pub fn wait_until_ready(&self, is_ready: bool) {
        wait_until("the server's readiness", || self.is_ready() == is_ready);
    }

    /// A metric's value, by its name and labels as they are written.
    pub fn metric(&self, metric: &str) -> f64 {
        let text = self.get("/metrics").text();
        let value = text.lines().find_map(|line| line.strip_prefix(metric));
        let value = value.unwrap_or_else(|| panic!("no {metric} in\n{text}"));
        value.trim().parse().expect("a number")
    }

    /// Processes that it started.
    pub fn children(&self) -> Vec<u32> {
        let children = children_of(Pid::from_child(&self.child)).into_iter();
        children
            .map(|process| process.as_raw_nonzero().get().unsigned_abs())
            .collect()
    }

    pub fn terminate(&self) {
        signal(self.pid(), rustix::process::Signal::TERM);
    }

    /// Waits for the end; the exit status, and all that was said.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let mut status = None;
        wait_until("the server's end", || {
            status = self.child.try_wait().expect("a child of ours");
            status.is_some()
        });
        if let Some(reader) = self.reader.take() {
            reader.join().expect("no panic");
        }
        (status.expect("waited for"), self.said())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server said:\n{}", self.said());
        }
    }
}

pub fn signal(process: u32, signal: rustix::process::Signal) {
    let number = i32::try_from(process).expect("a process number");
    let process = rustix::process::Pid::from_raw(number).expect("not 0");
    // It may be gone.
    let _ = rustix::process::kill_process(process, signal);
}

/// Asks until something holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A connection that is kept.
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.set_nodelay(true).expect("set");
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// Writes bytes as they are. The server may have closed the connection.
    pub fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.get_mut().write_all(bytes);
    }

    /// Writes the same over and over, until it has to wait or the connection is closed.
    pub fn fill(&mut self, bytes: &[u8]) {
        let stream = self.stream.get_mut();
        stream.set_nonblocking(true).expect("set");
        let mut waited = Duration::ZERO;
        // The server may only be busy.
        while waited < Duration::from_millis(100) {
            match stream.write(bytes) {
                Ok(_) => waited = Duration::ZERO,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    waited += Duration::from_millis(10);
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(_) => break,
            }
        }
        stream.set_nonblocking(false).expect("set");
    }

    /// No more is written.
    pub fn shut_down(&mut self) {
        let _ = self.stream.get_mut().shutdown(std::net::Shutdown::Write);
    }

    /// A request with its length, and the answer.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: &[u8],
    ) -> Reply {
        self.begin(method, path, headers, body);
        self.reply().expect("an answer")
    }

    /// A request with its length.
    pub fn begin(&mut self, method: &str, path: &str, headers: &[(&str, String)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: zbmd\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", body.len());
        self.write(&[head.as_bytes(), body].concat());
    }

    /// The next answer; nothing if the connection was closed.
    pub fn reply(&mut self) -> Option<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        let status = line.split(' ').nth(1)?.parse().expect("a status");
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        let mut reply = Reply {
            status,
            headers,
            body: Vec::new(),
        };
        let length = reply
            .header("content-length")
            .map(|text| text.parse().expect("a length"));
        reply.body = vec![0; length.unwrap_or(0)];
        self.stream.read_exact(&mut reply.body).ok()?;
        Some(reply)
    }

    /// Whether the server closes the connection without another byte.
    pub fn is_closed(&mut self) -> bool {
        !matches!(self.stream.read(&mut [0]), Ok(1..))
    }
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// What went wrong, as the protocol says it.
    pub fn error(&self) -> String {
        let json = self.json();
        json["error"]
            .as_str()
            .unwrap_or_else(|| panic!("{json}"))
            .to_owned()
    }
}

/// The JSON of a request to `simple`, with lists.
pub fn simple_request(first: &[i32; 16], second: &[i32; 16]) -> serde_json::Value {
    serde_json::json!({
        "inputs": [
            {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": first},
            {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": second},
        ],
    })
}

/// A request to `wide` with the rows of its tensor as bytes, and answers as bytes; its JSON's length as the header has it.
pub fn wide_request(x: &[u8]) -> (Vec<u8>, Vec<(&'static str, String)>) {
    let json = serde_json::json!({
        "inputs": [{
            "name": "x", "datatype": "FP32", "shape": [x.len() / (4096 * 4), 4096],
            "parameters": {"binary_data_size": x.len()},
        }],
        "parameters": {"binary_data_output": true},
    })
    .to_string();
    let length = json.len().to_string();
    let body = [json.as_bytes(), x].concat();
    (body, vec![("Inference-Header-Content-Length", length)])
}

/// The tensors that follow the JSON of an answer.
pub fn binary_part(reply: &Reply) -> &[u8] {
    let json_bytes = reply.header("inference-header-content-length");
    let json_bytes: usize = json_bytes
        .expect("there are bytes")
        .parse()
        .expect("a length");
    &reply.body[json_bytes..]
}

/// Tensors for `wide`, all different.
pub fn wide_inputs(count: u32) -> Vec<Vec<u8>> {
    let input = |number: u32| {
        let values =
            (0..4096_u32).map(move |k| ((k * 37 + number * 101) % 977) as f32 / 300.0 - 1.5);
        values.flat_map(f32::to_le_bytes).collect()
    };
    (0..count).map(input).collect()
}
