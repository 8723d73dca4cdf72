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

use common::{
    Connection, Models, Server, WIDE, binary_part, compiled, signal, wide_inputs, wide_request,
};
use rustix::process::Signal;

const INFER: &str = "/v2/models/wide/infer";
const CLIENTS: usize = 4;

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = text.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{name}={text} is no whole number")))
}

/// How long the soak takes; `None`, said aloud, if nobody wants one.
fn wanted_time() -> Option<Duration> {
    let seconds = number("ZBMD_SERVE_SOAK_S");
    if seconds.is_none() {
        eprintln!("SKIPPED: a soak of minutes; set ZBMD_SERVE_SOAK_S=300");
    }
    seconds.map(Duration::from_secs)
}

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

fn print_times(what: &str, times: &[Duration]) {
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{what}: {} answers, median {:?}, 99 % {:?}, 99.9 % {:?}, longest {:?}",
        times.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

/// Kills a process of the server's every so often; how many.
fn kill_now_and_then(server: &Server, every: Duration, time: Duration) -> u32 {
    let begun = Instant::now();
    let mut losses = 0;
    let mut random = 1_u64;
    while begun.elapsed() + every < time {
        std::thread::sleep(every);
        let processes = server.children();
        // Knuth's MMIX generator; its upper bits.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        if let Some(process) = processes.get((random >> 33) as usize % processes.len().max(1)) {
            signal(*process, Signal::KILL);
            losses += 1;
        }
    }
    losses
}

fn soak(devices: usize) {
    let Some(time) = wanted_time() else { return };
    let every = Duration::from_millis(number("ZBMD_SERVE_LOSS_EVERY_MS").unwrap_or(2000));
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
