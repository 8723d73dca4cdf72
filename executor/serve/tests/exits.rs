//! Exit codes of a server that does not end in good order.

#![cfg(target_os = "linux")]

mod common;

use std::process::{Command, Stdio};

use common::{Models, Server, WIDE, compiled, signal, wait_until, wide_inputs, wide_request};
use rustix::process::Signal;

/// A server with a request that takes long, as it is followed by the empty iterations of a large block.
fn busy_server(options: &[&str]) -> (Server, common::Connection) {
    let server = Models::new()
        .with("wide", &compiled(WIDE, 1, 2000))
        .serve(&[&["--isolation", "threads"], options].concat());
    let (body, headers) = wide_request(&wide_inputs(1)[0]);
    let mut admitted = server.connect();
    admitted.begin("POST", "/v2/models/wide/infer", &headers, &body);
    wait_until("admission", || {
        server.metric("zbmd_pending_requests{model=\"wide\"}") > 0.0
    });
    (server, admitted)
}

#[test]
fn a_second_signal_ends_at_once() {
    let (server, _admitted) = busy_server(&[]);
    server.terminate();
    wait_until("the drain", || !server.is_ready());
    server.terminate();
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(130), "{said}");
}

#[test]
fn requests_that_are_left_when_the_time_is_over_are_given_up() {
    let (server, _admitted) = busy_server(&["--drain", "1ms"]);
    server.terminate();
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("are not answered after 1ms"), "{said}");
}

#[test]
fn a_server_whose_models_have_all_failed_ends() {
    let server = Models::new()
        .with("wide", &compiled(WIDE, 1, 1))
        .serve(&["--no-standby"]);
    // No run lives long enough for an answer.
    wait_until("a model that is given up", || {
        for worker in server.children() {
            signal(worker, Signal::KILL);
        }
        server.said().contains("failed, and is given up")
    });
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("every model has failed"), "{said}");
}

#[test]
fn too_little_memory_for_threads_is_an_error_and_no_bug() {
    // Room for the server, and not for the stacks of 256 threads, of 2 MiB each.
    let models = Models::simple();
    let output = Command::new("sh")
        .args(["-c", "ulimit -v 400000 && exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_zbmd-serve"))
        .arg(models.path())
        .args(["--listen", "127.0.0.1:0", "--isolation", "threads"])
        .args(["--http-threads", "256"])
        .stdin(Stdio::null())
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("no thread for"), "{said}");
}
