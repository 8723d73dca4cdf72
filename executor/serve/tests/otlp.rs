//! Traces, as a collector receives them: a small one of ours over a real socket, and the messages once more as the Python package
//! `opentelemetry-proto` reads them.

#![cfg(target_os = "linux")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use common::{Models, PATIENCE, SIMPLE, Server, compiled, signal, simple_request, wait_until};
use prost::Message;
use zbmd_serve::testing::traces::{ExportTraceServiceRequest, KeyValue, Span, Value};

/// A collector that answers with this status.
struct Collector {
    address: SocketAddr,
    bodies: Receiver<Vec<u8>>,
}

impl Collector {
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let (sender, bodies) = channel();
        // It ends with the process.
        std::thread::spawn(move || collect(&listener, status, &sender));
        Self { address, bodies }
    }

    fn option(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next message, as it came.
    fn body(&self) -> Vec<u8> {
        self.bodies.recv_timeout(PATIENCE).expect("traces")
    }
}

fn collect(listener: &TcpListener, status: &str, bodies: &Sender<Vec<u8>>) {
    for stream in listener.incoming() {
        let mut stream = BufReader::new(stream.expect("a connection"));
        let mut length = 0;
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).expect("text");
            let line = line.trim_end().to_lowercase();
            if let Some(text) = line.strip_prefix("content-length: ") {
                length = text.parse().expect("a length");
            }
            if line.is_empty() {
                break;
            }
            head.push(line);
        }
        assert_eq!(head[0], "post /v1/traces http/1.1");
        assert!(head.contains(&"content-type: application/x-protobuf".to_owned()));
        let mut body = vec![0; length];
        stream.read_exact(&mut body).expect("all of it");
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        stream.get_mut().write_all(answer.as_bytes()).expect("sent");
        // Nobody may look at them any more.
        let _ = bodies.send(body);
    }
}

fn spans_of(body: &[u8]) -> Vec<Span> {
    let message = ExportTraceServiceRequest::decode(body).expect("a message");
    let resources = message.resource_spans.into_iter();
    let scopes = resources.flat_map(|resource| {
        let attributes = resource.resource.expect("the server").attributes;
        assert_eq!(text(&attributes, "service.name"), Some("zbmd"));
        resource.scope_spans
    });
    scopes.flat_map(|scope| scope.spans).collect()
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::String(text) => Some(text),
        Value::Int(_) => None,
    }
}

fn ask(server: &Server, headers: &[(&str, String)]) -> u16 {
    let mut request = simple_request(&[1; 16], &[2; 16]);
    request["id"] = "seven".into();
    let body = request.to_string();
    let path = "/v2/models/simple/infer";
    let mut connection = server.connect();
    let reply = connection.request("POST", path, headers, body.as_bytes());
    reply.status
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn a_request_is_a_span_of_its_clients_trace_with_its_parts_below() {
    let collector = Collector::start("200 OK");
    let server = Models::simple().serve(&["--otlp", &collector.option()]);
    // Not recorded by its client, so not here either.
    let unsampled = PARENT.replace("-01", "-00");
    assert_eq!(ask(&server, &[("traceparent", unsampled)]), 200);
    assert_eq!(ask(&server, &[("traceparent", PARENT.to_owned())]), 200);
    let body = collector.body();
    let spans = spans_of(&body);
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["infer", "queue", "compute"]);

    let [infer, queue, compute] = spans.as_slice() else {
        panic!("{spans:?}");
    };
    assert_eq!(infer.trace_id[..4], [0x4b, 0xf9, 0x2f, 0x35]);
    assert_eq!(infer.parent_span_id[5..], [0xa9, 0x02, 0xb7]);
    assert_eq!(text(&infer.attributes, "zbmd.model"), Some("simple"));
    assert_eq!(text(&infer.attributes, "zbmd.request.id"), Some("seven"));
    assert!(infer.status.is_none());
    for part in [queue, compute] {
        assert_eq!(part.trace_id, infer.trace_id);
        assert_eq!(part.parent_span_id, infer.span_id);
        assert!(part.start_time_unix_nano >= infer.start_time_unix_nano);
        assert!(part.end_time_unix_nano <= infer.end_time_unix_nano);
    }
    assert!(queue.end_time_unix_nano <= compute.start_time_unix_nano);
    wait_until("the count", || {
        server.metric("zbmd_spans_sent_total ") == 3.0
    });
    check_with_python(&body);
}

/// What the messages are by OpenTelemetry's own definitions.
fn check_with_python(body: &[u8]) {
    let python = std::env::var("ZBMD_OTLP_PYTHON").unwrap_or("python3".to_owned());
    let script = "\
import sys
try:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
except ImportError:
    sys.exit(77)
body = sys.stdin.buffer.read()
message = ExportTraceServiceRequest.FromString(body)
message.DiscardUnknownFields()
assert len(message.SerializeToString()) == len(body), 'fields that nobody knows'
[resource] = message.resource_spans
[scope] = resource.scope_spans
for span in scope.spans:
    assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    print(span.name, span.kind, span.trace_id.hex(), span.status.code)
";
    let child = Command::new(&python)
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("SKIPPED: {python} is not here to decode traces: set ZBMD_OTLP_PYTHON");
        return;
    };
    let mut stdin = child.stdin.take().expect("piped");
    // It may have ended already.
    let _ = stdin.write_all(body);
    drop(stdin);
    let output = child.wait_with_output().expect("ends");
    if output.status.code() == Some(77) {
        eprintln!(
            "SKIPPED: {python} has no opentelemetry.proto to decode traces: install opentelemetry-proto and set ZBMD_OTLP_PYTHON"
        );
        return;
    }
    assert!(output.status.success());
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let expected = format!("infer 2 {trace} 0\nqueue 1 {trace} 0\ncompute 1 {trace} 0\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn epochs_and_losses_are_spans_too_and_the_last_ones_come_before_the_end() {
    let collector = Collector::start("200 OK");
    let models = Models::new().with("simple", &compiled(SIMPLE, 1, 1));
    let server = models.serve(&["--otlp", &collector.option(), "--no-standby"]);
    for child in server.children() {
        signal(child, rustix::process::Signal::KILL);
    }
    let body = collector.body();
    let fenced = &spans_of(&body)[0];
    assert_eq!(fenced.name, "epoch");
    assert_eq!(text(&fenced.attributes, "zbmd.model"), Some("simple"));
    let loss = &fenced.events[0];
    assert_eq!(loss.name, "loss");
    assert_eq!(text(&loss.attributes, "zbmd.device"), Some("cpu:0"));
    assert_eq!(fenced.status.as_ref().expect("lost").code, 2);

    // An answer comes from the next epoch.
    assert_eq!(ask(&server, &[]), 200);
    server.terminate();
    let (status, said) = server.wait();
    assert!(status.success(), "{said}");
    let is_epoch = |span: &Span| span.name == "epoch";
    while !spans_of(&collector.body()).iter().any(is_epoch) {}
}

#[test]
fn a_refused_request_says_why() {
    let collector = Collector::start("200 OK");
    let server = Models::simple().serve(&["--otlp", &collector.option()]);
    let reply = server.post("/v2/models/simple/infer", b"{\"inputs\": []}");
    assert_eq!(reply.status, 400);
    let spans = spans_of(&collector.body());
    assert_eq!(spans.len(), 1);
    let status = spans[0].status.as_ref().expect("an error");
    assert_eq!(status.code, 2);
    assert!(!spans[0].trace_id.iter().all(|byte| *byte == 0));
    assert_eq!(status.message, reply.error());
}

#[test]
fn a_collector_that_takes_nothing_costs_no_request() {
    let refusing = Collector::start("503 Service Unavailable");
    let server = Models::simple().serve(&["--otlp", &refusing.option()]);
    for _ in 0..50 {
        assert_eq!(ask(&server, &[]), 200);
    }
    wait_until("the count", || {
        server.metric("zbmd_spans_failed_total ") == 150.0
    });
    assert_eq!(server.metric("zbmd_spans_sent_total "), 0.0);
    let notes = server.said().matches("traces are lost").count();
    assert_eq!(notes, 1, "{}", server.said());

    // It takes connections and says nothing: the queue fills while a batch is under way.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    let server = Models::simple().serve(&["--otlp", &url]);
    let body = simple_request(&[1; 16], &[2; 16]).to_string();
    let mut connection = server.connect();
    for _ in 0..6000 {
        let reply = connection.request("POST", "/v2/models/simple/infer", &[], body.as_bytes());
        assert_eq!(reply.status, 200);
    }
    assert!(server.metric("zbmd_trace_records_dropped_total ") >= 1.0);
}

#[test]
fn a_collector_elsewhere_is_refused() {
    let models = Models::simple();
    let output = models
        .command(&["--otlp", "http://192.0.2.1:4318"])
        .output()
        .expect("started");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--allow-remote"), "{said}");
}
