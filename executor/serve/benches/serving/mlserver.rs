//! The same requests to MLServer with ONNX Runtime, by turns: `ZBMD_MLSERVER=PYTHON cargo bench -p zbmd-serve --bench serving -- mlserver
//! [MODEL.onnx]`, where PYTHON has the packages `mlserver`, `onnxruntime` and `uvloop` below 0.22, as MLServer 1.7's processes for models end
//! at once with a later one. Without it there is nothing to compare with.
//!
//! Tensors are lists of numbers, as MLServer takes no bytes behind JSON; ours with bytes is printed besides. MLServer runs twice,
//! once with its model in the server's process and once with two processes for it: the better of both counts. ONNX Runtime has one
//! thread there, which is quickest for small models. Rows are medians of five turns of a second.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};

use super::client::{Client, ask_until};
use super::common::{Models, wait_until};
use super::figures::load;
use super::shared::{Model, list_request, options, request};
use super::turn::{TURNS, Turn};

const CLIENTS: [usize; 2] = [1, 8];
/// Answers of two engines to zeros are not further apart.
const TOLERANCE: f64 = 1e-3;

/// What MLServer runs: the same graph by ONNX Runtime.
const RUNTIME: &str = include_str!("mlserver_runtime.py");

pub(crate) fn run() {
    let Ok(python) = std::env::var("ZBMD_MLSERVER") else {
        println!("skipped: ZBMD_MLSERVER does not name a Python with mlserver and onnxruntime");
        return;
    };
    let chosen = Model::chosen();
    let Some(onnx) = chosen.path() else {
        println!("skipped: no ONNX model is given, and none of the shared data is here");
        return;
    };
    let compiled = chosen.compile(&options());
    let lists = list_request(&compiled).into_bytes();
    let bytes = request(&compiled, None);
    let server = Models::new().with("model", &compiled).serve(&[]);
    let rivals = [0, 2].map(|workers| MlServer::start(&python, onnx, workers));
    for rival in &rivals {
        check_same(server.address, rival.address, &lists);
    }

    println!(
        "{}: load {}\nclients   MLServer p50 us     /s   with 2 processes p50 us     /s   zbmd p50 us     /s   with bytes p50 us     /s   \
         zbmd's p50 / the best  rate / the best",
        chosen.name,
        load()
    );
    for clients in CLIENTS {
        print_row(clients, &rivals, server.address, [&lists, &bytes]);
    }
    println!("load {}", load());
}

fn print_row(
    clients: usize,
    rivals: &[MlServer; 2],
    address: SocketAddr,
    [lists, bytes]: [&[u8]; 2],
) {
    let subjects = [
        (rivals[0].address, lists),
        (rivals[1].address, lists),
        (address, lists),
        (address, bytes),
    ];

    let mut turns = subjects.map(|_| Vec::new());
    for _ in 0..TURNS {
        for ((address, request), turns) in subjects.iter().zip(&mut turns) {
            turns.push(Turn::run(clients, |end| ask_until(end, *address, request)));
        }
    }

    let [alone, two, ours, ours_bytes] = turns.map(Turn::median);
    let best_p50_us = alone.p50_us.min(two.p50_us);
    let best_rate = alone.rate.max(two.rate);
    println!(
        "{clients:7} {:17.0} {:6.0} {:25.0} {:6.0} {:13.0} {:6.0} {:19.0} {:6.0} {:22.2} {:15.1}",
        alone.p50_us,
        alone.rate,
        two.p50_us,
        two.rate,
        ours.p50_us,
        ours.rate,
        ours_bytes.p50_us,
        ours_bytes.rate,
        ours.p50_us / best_p50_us,
        ours.rate / best_rate,
    );
}

/// MLServer in processes of its own.
struct MlServer {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl MlServer {
    fn start(python: &str, onnx: &Path, workers: u32) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [http, grpc, metrics] = free_ports();
        let onnx = onnx.canonicalize().expect("there");
        let settings = serde_json::json!({
            "host": "127.0.0.1", "http_port": http, "grpc_port": grpc, "metrics_port": metrics,
            "parallel_workers": workers, "debug": false,
        });
        let model = serde_json::json!({
            "name": "model", "implementation": "runtime.Onnx", "parameters": {"uri": onnx},
        });
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("written");
        };
        write("settings.json", &settings.to_string());
        write("model-settings.json", &model.to_string());
        write("runtime.py", RUNTIME);

        let log = folder.path().join("log");
        let writer = File::create(&log).expect("created");
        let child = Command::new(python)
            .args(["-m", "mlserver.cli.main", "start", "."])
            .current_dir(folder.path())
            .env("PYTHONPATH", folder.path())
            .stdout(writer.try_clone().expect("a second end"))
            .stderr(writer)
            .spawn();
        let mut server = Self {
            child: child.expect("started"),
            address: SocketAddr::from(([127, 0, 0, 1], http)),
            _folder: folder,
        };
        wait_until("MLServer", || {
            let status = server.child.try_wait().expect("a child");
            assert!(
                status.is_none(),
                "MLServer with {workers} processes: {status:?}\n{}",
                std::fs::read_to_string(&log).unwrap_or_default()
            );
            server.is_ready()
        });
        server
    }

    /// While it starts, it takes connections and resets them.
    fn is_ready(&self) -> bool {
        const ASK: &[u8] =
            b"GET /v2/models/model/ready HTTP/1.1\r\nHost: zbmd\r\nConnection: close\r\n\r\n";

        let answer = TcpStream::connect(self.address).and_then(|mut stream| {
            stream.write_all(ASK)?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok(answer)
        });
        answer.is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200"))
    }
}

impl Drop for MlServer {
    fn drop(&mut self) {
        // Told to end, it ends its processes too.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Ports that nobody listens at.
fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("bound").port())
}

/// Both give the same numbers.
fn check_same(ours: SocketAddr, other: SocketAddr, request: &[u8]) {
    let [ours, other] = [ours, other].map(|address| {
        let mut client = Client::new(address);
        assert_eq!(
            client.ask(request),
            200,
            "{}",
            String::from_utf8_lossy(client.body())
        );
        let answer: serde_json::Value = serde_json::from_slice(client.body()).expect("JSON");
        let data = answer["outputs"][0]["data"].as_array().expect("a list");
        data.iter()
            .map(|value| value.as_f64().expect("a number"))
            .collect::<Vec<f64>>()
    });
    assert_eq!(ours.len(), other.len());
    for (ours, other) in ours.iter().zip(&other) {
        let error = (ours - other).abs() / other.abs().max(1.0);
        assert!(error < TOLERANCE, "{ours} and {other}");
    }
}
