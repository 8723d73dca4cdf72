//! `--metrics`: what Prometheus reads of a run that is on, and addresses that are not to be had.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use common::case::{Case, code};
use common::text;
use live_peers::{copies, wait_until};
use zbmd_ir::{DType, TokenType};

/// A run of a minute on a clock, with a deadline.
const ON: [&str; 9] = [
    "-i",
    "a=paced:a.f32?rate=2000&piece=20",
    "-o",
    "a_out=/dev/null",
    "--deadline",
    "a_out=1h",
    "--on-miss",
    "a_out=hold",
    "--metrics",
];

fn case() -> Case {
    let case = Case::new(copies(&[("a", TokenType::scalar(DType::F32))], 20));
    case.write("a.f32", vec![0; 4 * 2000 * 60]);
    case
}

/// A run that is killed in the end.
struct Run {
    child: Child,
    address: SocketAddr,
}

impl Run {
    /// Starts one, and reads where its metrics are.
    fn start(case: &Case) -> Self {
        let mut child = case
            .command(&ON)
            .arg("127.0.0.1:0")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let said = child.stderr.take().expect("piped");
        let found = BufReader::new(said)
            .lines()
            .map_while(Result::ok)
            .find_map(|line| {
                let url = line.strip_prefix("zbmd-run: metrics at http://")?;
                url.strip_suffix("/metrics").map(str::to_owned)
            });
        let address = found.expect("it says where").parse().expect("an address");
        Self { child, address }
    }

    /// The answer to these bytes, to its end.
    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.write_all(request.as_bytes()).expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }

    fn metrics(&self) -> String {
        let answer = self.ask("GET /metrics HTTP/1.1\r\nHost: zbmd\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a header");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("Content-Type: text/plain; version=0.0.4"),
            "{head}"
        );
        assert!(
            head.contains(&format!("Content-Length: {}\r\n", body.len())),
            "{head}"
        );
        body.to_owned()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of a sample, by its name and a label; 0 if it is not there.
fn value(metrics: &str, name: &str, label: &str) -> f64 {
    let mut lines = metrics.lines();
    let line = lines.find(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
    let number = line.and_then(|line| line.rsplit(' ').next());
    number.map_or(0.0, |number| number.parse().expect("a number"))
}

/// What `promtool check metrics` says of a text; nothing if it is not here.
fn complaints(metrics: &str) -> Option<String> {
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("SKIPPED: promtool is not here to check the metrics: install prometheus");
        return None;
    };
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(metrics.as_bytes()).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("ends");
    let said = [output.stdout, output.stderr].concat();
    Some(format!(
        "{}{}",
        text(&said),
        if output.status.success() {
            ""
        } else {
            "refused"
        }
    ))
}

#[test]
fn a_run_that_is_on_shows_its_counts() {
    let case = case();
    let run = Run::start(&case);
    wait_until("iterations and responses", || {
        let metrics = run.metrics();
        value(&metrics, "zbmd_iterations_total", "model=") >= 100.0
            && value(
                &metrics,
                "zbmd_sink_response_seconds_count",
                "sink=\"a_out\"",
            ) >= 5.0
            && value(
                &metrics,
                "zbmd_release_lateness_seconds_count",
                "source=\"a\"",
            ) >= 5.0
    });
    let metrics = run.metrics();
    assert!(value(&metrics, "zbmd_stream_tokens_total", "stream=\"a\"") >= 100.0);
    assert!(value(&metrics, "zbmd_queue_capacity_tokens", "stream=\"a_out\"") > 0.0);
    assert_eq!(
        value(&metrics, "zbmd_deadline_seconds", "sink=\"a_out\""),
        3600.0
    );
    assert_eq!(value(&metrics, "zbmd_epochs_total", "model="), 1.0);
    assert!(
        metrics.contains("zbmd_missed_deadlines_total{"),
        "{metrics}"
    );
    if let Some(complaints) = complaints(&metrics) {
        assert_eq!(complaints, "", "{metrics}");
    }
}

#[test]
fn whoever_asks_for_something_else_is_told_so() {
    let case = case();
    let run = Run::start(&case);
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("\u{16}\u{3}\u{1}\r\n\r\n", "400"),
    ] {
        let answer = run.ask(request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    // One that sends nothing keeps others waiting for a while, and not for ever.
    let _silent = TcpStream::connect(run.address).expect("it listens");
    assert!(run.metrics().contains("zbmd_iterations_total"));
}

#[test]
fn an_address_that_is_taken_or_open_to_others_is_refused() {
    let case = case();
    let taken = TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = taken.local_addr().expect("an address").to_string();
    for (address, expected_code, expected_text) in [
        (address.as_str(), 4, "the run cannot be seen at 127.0.0.1:"),
        ("0.0.0.0:0", 2, "take a loopback address"),
    ] {
        let output = case.command(&ON).arg(address).output().expect("started");
        let said = text(&output.stderr);
        assert_eq!(code(&output), expected_code, "{said}");
        assert!(said.contains(expected_text), "{said}");
    }
}
