//! Two receivers of which one dies and comes back: a demonstration of the book's page on live streams.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::case::Case;
use live_peers::{
    LiveRun, ReceiverServer, copies, free_port, is_udp_bound, live, sample_of, send_slowly,
    wait_until,
};
use zbmd_ir::{DType, TokenType};

const RATE: u64 = 100_000;
/// Samples of the first receiver in the whole run: about two seconds.
const SAMPLES: u64 = 200_000;
/// Of one of its datagrams.
const PACKET_SAMPLES: u64 = 250;
/// How long the second one is gone.
const OUTAGE: Duration = Duration::from_millis(400);
/// Tokens of the second one that are filled.
const FILLED: [u8; 2] = [127, 127];
/// Samples tell which one they are modulo this.
const TURN: u64 = 251 * 256;

/// What the first receiver gives.
fn given() -> Vec<u8> {
    (0..SAMPLES)
        .flat_map(|index| (index as f32 + 1.0).to_le_bytes())
        .collect()
}

/// Runs with both receivers; the second one dies after a while and comes back, or does not.
fn run_both(case: &Case, dies: bool) -> serde_json::Value {
    let first_port = free_port();
    let second_port = free_port();
    let first_url = format!("a=udp://127.0.0.1:{first_port}?header=seq&rate={RATE}&limit=30s");
    let second_url = format!("b=rtl_tcp://127.0.0.1:{second_port}?rate={RATE}&limit=100ms");
    let iterations = SAMPLES.to_string();
    let run = LiveRun::start(
        case,
        &[
            "-i",
            &first_url,
            "-i",
            &second_url,
            "-o",
            "a_out=a.bin",
            "-o",
            "b_out=b.bin",
            "-n",
            &iterations,
        ],
    );

    let epoch = Instant::now();
    let mut server = ReceiverServer::start(second_port, RATE as f64, epoch);
    wait_until("both are there", || {
        is_udp_bound(first_port) && server.sent.load(Ordering::Relaxed) > 0
    });
    let sender = std::thread::spawn(move || send_all(first_port));
    if dies {
        wait_until("samples flow", || {
            server.sent.load(Ordering::Relaxed) > RATE / 4
        });
        server.kill();
        std::thread::sleep(OUTAGE);
        server = ReceiverServer::start(second_port, RATE as f64, epoch);
    }
    sender.join().expect("no panic");
    let report = run.end(case, 0);
    drop(server);
    report
}

/// Sends what the first receiver gives, about as fast as it takes it.
fn send_all(port: u16) {
    let given = given();
    let datagrams = given
        .chunks((PACKET_SAMPLES * 4) as usize)
        .zip(1u64..)
        .map(|(tokens, number)| [&number.to_le_bytes()[..], tokens].concat());
    send_slowly(port, datagrams);
}

/// Runs of consecutive samples: the place of the first one, which sample it is, and how many there are.
fn stretches(bytes: &[u8]) -> Vec<(u64, u64, u64)> {
    let mut found: Vec<(u64, u64, u64)> = Vec::new();
    for (place, bytes) in (0u64..).zip(bytes.as_chunks::<2>().0) {
        let Some(sample) = sample_of(*bytes).filter(|_| *bytes != FILLED) else {
            continue;
        };
        match found.last_mut() {
            // One of the samples looks like one that is filled: it does not end a stretch.
            Some((first_place, first, length))
                if (*first + place - *first_place) % TURN == sample
                    && place - *first_place <= *length + 1 =>
            {
                *length = place - *first_place + 1;
            }
            _ => found.push((place, sample, 1)),
        }
    }
    found
}

#[test]
fn a_receiver_that_dies_and_comes_back_costs_the_other_one_nothing() {
    let streams = [
        ("a", TokenType::scalar(DType::F32)),
        ("b", TokenType::new(DType::U8, [2])),
    ];
    let case = Case::new(copies(&streams, 100));
    let undisturbed = run_both(&case, false);
    let expected = case.read("a.bin");
    assert!(expected == given(), "{undisturbed}");

    let report = run_both(&case, true);
    assert!(case.read("a.bin") == expected, "{report}");
    assert_eq!(live(&report, "a")["gap_count"], 0, "{report}");

    let second = live(&report, "b");
    assert_eq!(second["connections"], 2, "{second}");
    let gaps = second["gaps"].as_array().expect("gaps");
    let outage = gaps.iter().find(|gap| gap["cause"] == "disconnected");
    let outage = outage.unwrap_or_else(|| panic!("no outage in {second}"));
    let first_filled = outage["first"].as_u64().expect("a number");
    let filled = outage["length"].as_u64().expect("a number");

    // The gap is exactly what is filled in the output: the samples before it and after it are all there, in order.
    let stretches = stretches(&case.read("b.bin"));
    let before = stretches.iter().rfind(|(place, ..)| *place < first_filled);
    let after = stretches.iter().find(|(place, ..)| *place >= first_filled);
    let (before_place, before_sample, before_length) = *before.expect("samples before it");
    let (after_place, after_sample, _) = *after.expect("samples after it");
    assert!(
        before_place + before_length <= first_filled,
        "{stretches:?}"
    );
    assert!(
        first_filled - (before_place + before_length) <= 1,
        "{stretches:?}"
    );
    assert!(
        after_place - (first_filled + filled) <= 1,
        "{second} {stretches:?}"
    );

    // As many are filled as the receiver would have given meanwhile: the samples after the gap are in their places, as far
    // as a busy machine delivers in time.
    let shift = (after_sample + 2 * TURN - before_sample) % TURN;
    let distance = (after_place - before_place) % TURN;
    let misplaced = (shift as i64 - distance as i64 + TURN as i64 / 2).rem_euclid(TURN as i64)
        - TURN as i64 / 2;
    eprintln!("{filled} samples filled, misplaced by {misplaced}");
    assert!(
        filled >= RATE * OUTAGE.as_millis() as u64 / 1000,
        "{second}"
    );
    assert!(misplaced.unsigned_abs() < RATE / 10, "{stretches:?}");
}
