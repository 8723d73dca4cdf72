//! What Prometheus reads, by its own checker: `promtool` of the package `prometheus`.

#![cfg(target_os = "linux")]

mod common;

use std::io::Write;
use std::process::{Command, Stdio};

use common::{Models, simple_request};

#[test]
fn promtool_finds_only_tritons_names_wrong() {
    let server = Models::simple().serve(&[]);
    let request = simple_request(&[1; 16], &[2; 16]).to_string();
    assert_eq!(
        server
            .post("/v2/models/simple/infer", request.as_bytes())
            .status,
        200
    );
    let metrics = server.get("/metrics");
    let text = metrics.text();
    assert_eq!(
        metrics.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    assert!(
        text.contains("zbmd_response_seconds_bucket{model=\"simple\",le=\"+Inf\"} 1\n"),
        "{text}"
    );
    assert!(
        text.contains("zbmd_iterations_total{model=\"simple\"} 1\n"),
        "{text}"
    );

    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("SKIPPED: promtool is not here to check the metrics: install prometheus");
        return;
    };
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(&metrics.body).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("ends");
    // 3 is for names, 1 for what cannot be read.
    assert_ne!(output.status.code(), Some(1));
    let complaints = [output.stdout, output.stderr].concat();
    let complaints = String::from_utf8_lossy(&complaints);
    let ours = complaints
        .lines()
        .filter(|line| !line.starts_with("nv_inference_"));
    assert_eq!(ours.collect::<Vec<_>>(), Vec::<&str>::new());
}
