//! GNU Radio 3.10, unmodified, at the other end: both directions of UDP with sequence numbers and of ZeroMQ, sample for
//! sample.
#![cfg(all(target_os = "linux", feature = "zmq"))]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;
mod python_peers;

use common::case::Case;
use live_peers::{LiveRun, copies, free_port, is_udp_bound, live, wait_until};
use python_peers::{PythonPeer, python_with};
use zbmd_ir::{DType, TokenType};

const PEER: &str = include_str!("python_peers/gnuradio_peer.py");
/// Whole datagrams of 1472 bytes with their number: GNU Radio does not send a shorter one.
const PACKETS: u64 = 300;
const SAMPLES: u64 = 183 * PACKETS;
/// What its UDP source reads without a loss on a machine that is busy: more than this and it misses packets.
const RATE: u64 = 40_000;

fn python() -> Option<String> {
    python_with(
        "from gnuradio import network, zeromq",
        "apt-get install gnuradio",
    )
}

/// A folder with a model that copies, and a recording of which no sample is like another.
fn case_with_recording() -> (Case, Vec<u8>) {
    let case = Case::new(copies(&[("iq", TokenType::scalar(DType::C32))], 100));
    let samples: Vec<u8> = (0..SAMPLES)
        .flat_map(|i| [i as f32 + 1.0, -0.5 * i as f32])
        .flat_map(f32::to_le_bytes)
        .collect();
    case.write("given.cf32", &samples);
    (case, samples)
}

/// A flow graph on the recording, or one that writes `taken.cf32`.
fn flow_graph(python: &str, case: &Case, kind: &str, place: &str, key: &str) -> PythonPeer {
    let file = match kind.ends_with("_sink") {
        true => "given.cf32",
        false => "taken.cf32",
    };
    let args = [
        kind,
        place,
        file,
        &SAMPLES.to_string(),
        &RATE.to_string(),
        key,
    ];
    PythonPeer::start(python, PEER, case.folder(), &args)
}

#[test]
fn its_numbered_datagrams_are_read_to_the_sample() {
    let Some(python) = python() else { return };
    let (case, given) = case_with_recording();
    let port = free_port();
    let url = format!("iq=udp://127.0.0.1:{port}?header=seq&silence=stall&limit=30s");
    let count = SAMPLES.to_string();
    let run = LiveRun::start(&case, &["-i", &url, "-o", "iq_out=iq.bin", "-n", &count]);
    wait_until("it listens", || is_udp_bound(port));
    let sender = flow_graph(&python, &case, "udp_sink", &port.to_string(), "");
    let report = run.end(&case, 0);
    sender.kill();
    let source = live(&report, "iq");
    assert!(case.read("iq.bin") == given, "{source}");
    assert_eq!(
        (&source["refused"], &source["gap_count"], &source["packets"]),
        (&0.into(), &0.into(), &PACKETS.into()),
        "{source}"
    );
}

#[test]
fn it_reads_our_numbered_datagrams_to_the_sample() {
    let Some(python) = python() else { return };
    let (case, given) = case_with_recording();
    let port = free_port();
    let receiver = flow_graph(&python, &case, "udp_source", &port.to_string(), "");
    wait_until("GNU Radio listens", || is_udp_bound(port));
    let source = format!("iq=paced:given.cf32?rate={RATE}");
    let sink = format!("iq_out=udp://127.0.0.1:{port}?header=seq");
    let report = LiveRun::start(&case, &["-i", &source, "-o", &sink]).end(&case, 0);
    receiver.end();
    assert!(case.read("taken.cf32") == given);
    assert_eq!(live(&report, "iq_out")["sent"], SAMPLES);
}

#[test]
fn what_it_publishes_is_read_from_the_first_message_on() {
    let Some(python) = python() else { return };
    for key in ["", "iq"] {
        let (case, given) = case_with_recording();
        let port = free_port();
        let topic = if key.is_empty() { "" } else { "&topic=iq" };
        let url = format!("iq=zmq-sub://127.0.0.1:{port}?silence=stall&full=wait{topic}");
        let mut run = LiveRun::start(&case, &["-i", &url, "-o", "iq_out=iq.bin"]);
        let endpoint = format!("tcp://127.0.0.1:{port}");
        // What it sends before we have subscribed goes to nobody, so its last sample tells that all was read.
        let sender = flow_graph(&python, &case, "pub_sink", &endpoint, key);
        let end = &given[given.len() - 8..];
        wait_until("the last sample comes", || {
            let written = std::fs::read(case.path("iq.bin"));
            written.is_ok_and(|bytes| bytes.ends_with(end))
        });
        sender.kill();
        run.assert_runs();
        run.interrupt();
        let report = run.end(&case, 130);
        let taken = case.read("iq.bin");
        let source = live(&report, "iq");
        assert!(given.ends_with(&taken), "{source}");
        assert!(taken.len() > given.len() / 4, "{source}");
        assert_eq!(source["refused"], 0, "{source}");
    }
}

#[test]
fn what_it_pushes_is_read_to_the_sample() {
    let Some(python) = python() else { return };
    let (case, given) = case_with_recording();
    let port = free_port();
    let url = format!("iq=zmq-pull://127.0.0.1:{port}?silence=stall&full=wait");
    let count = SAMPLES.to_string();
    let run = LiveRun::start(&case, &["-i", &url, "-o", "iq_out=iq.bin", "-n", &count]);
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let sender = flow_graph(&python, &case, "push_sink", &endpoint, "");
    let report = run.end(&case, 0);
    sender.kill();
    assert!(case.read("iq.bin") == given, "{}", live(&report, "iq"));
}

#[test]
fn it_reads_what_we_publish_and_push_to_the_sample() {
    let Some(python) = python() else { return };
    let (case, given) = case_with_recording();
    for (scheme, kind, key) in [
        ("zmq-pub-listen", "sub_source", ""),
        ("zmq-pub-listen", "sub_source", "iq"),
        ("zmq-push-listen", "pull_source", ""),
    ] {
        let port = free_port();
        let topic = if key.is_empty() { "" } else { "&topic=iq" };
        let sink = format!("iq_out={scheme}://127.0.0.1:{port}?full=wait&queue=10000{topic}");
        let run = LiveRun::start(&case, &["-i", "iq=given.cf32", "-o", &sink]);
        let endpoint = format!("tcp://127.0.0.1:{port}");
        let receiver = flow_graph(&python, &case, kind, &endpoint, key);
        receiver.end();
        let report = run.end(&case, 0);
        let sink = live(&report, "iq_out");
        assert!(case.read("taken.cf32") == given, "{scheme} {key}: {sink}");
        assert_eq!(
            (&sink["sent"], &sink["dropped"]),
            (&SAMPLES.into(), &0.into()),
            "{scheme} {key}: {sink}"
        );
    }
}
