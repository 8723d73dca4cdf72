//! Workers die again and again under load, for as long as `ZBMD_SERVE_SOAK_S` says, in seconds:
//!
//! ```sh
//! ZBMD_SERVE_SOAK_S=300 cargo test -p zbmd-serve --test loss_soak -- --nocapture --test-threads 1
//! ```
//!
//! Four clients ask all the time. Every `ZBMD_SERVE_LOSS_EVERY_MS` (2000) a process of the server, whichever, is killed: a worker or
//! one that stands by. No request may fail, and all bits must be right. How long answers took is printed, beside the same
//! for a tenth of the time without losses; it is no test, as others may use this machine.

#![cfg(target_os = "linux")]

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::soak::{Soak, kill_now_and_then, print_times};
use common::{Connection, Models, Server, WIDE, binary_part, compiled, wide_inputs, wide_request};

const INFER: &str = "/v2/models/wide/infer";
const CLIENTS: usize = 4;

/// A request and the bytes of its answer.
struct Asked {
    x: Vec<u8>,
    expected: Vec<u8>,
}

fn asked(server: &Server) -> Vec<Asked> {
    let asked = wide_inputs(8).into_iter().map(|x| {
        let (body, headers) = wide_request(&x);
        let reply = server.connect().request("POST", INFER, &headers, &body);
        let expected = binary_part(&reply).to_vec();
        Asked { x, expected }
    });
    asked.collect()
}

/// Asks until it is over; how long each answer took.
fn ask(mut connection: Connection, asked: &[Asked], is_over: &AtomicBool) -> Vec<Duration> {
    let mut times = Vec::new();
    for Asked { x, expected } in asked.iter().cycle() {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let (body, headers) = wide_request(x);
        let begun = Instant::now();
        let reply = connection.request("POST", INFER, &headers, &body);
        times.push(begun.elapsed());
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(binary_part(&reply) == expected, "other bits after a loss");
    }
    times
}

/// Lets the clients ask while something else goes on; how long their answers took, ascending.
fn under_load(server: &Server, asked: &[Asked], meanwhile: impl FnOnce()) -> Vec<Duration> {
    let is_over = AtomicBool::new(false);
    let begin = Barrier::new(CLIENTS + 1);
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let ask_all = || {
            let connection = server.connect();
            begin.wait();
            ask(connection, asked, &is_over)
        };
        let clients: [_; CLIENTS] = std::array::from_fn(|_| scope.spawn(ask_all));
        begin.wait();
        meanwhile();
        is_over.store(true, Ordering::Relaxed);
        let times = clients
            .into_iter()
            .flat_map(|client| client.join().expect("no panic"));
        times.collect()
    });
    times.sort_unstable();
    times
}

fn soak(devices: usize) {
    let Some(Soak { time, every }) = Soak::wanted() else {
        return;
    };
    let models = Models::new().with("wide", &compiled(WIDE, devices, 1));
    let server = models.serve(&[]);
    let asked = asked(&server);

    let before = under_load(&server, &asked, || std::thread::sleep(time / 10));
    let mut losses = 0;
    let times = under_load(&server, &asked, || {
        losses = kill_now_and_then(&server, every, time);
    });

    println!("{devices} devices, {losses} processes killed, one each {every:?}");
    print_times("without losses", &before);
    print_times("with losses", &times);
    for metric in [
        "zbmd_recoveries_total",
        "zbmd_recovery_seconds_total",
        "zbmd_run_restarts_total",
    ] {
        println!(
            "{metric} {}",
            server.metric(&format!("{metric}{{model=\"wide\"}}"))
        );
    }
    assert!(losses > 0, "the soak is too short for a loss");
    assert_eq!(
        server.metric("nv_inference_request_failure{model=\"wide\",version=\"1\"}"),
        0.0
    );
}

#[test]
fn a_single_worker_dies_again_and_again() {
    soak(1);
}

#[test]
fn workers_of_a_pipeline_die_again_and_again() {
    soak(2);
}
