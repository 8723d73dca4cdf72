//! ZeroMQ with another program at the other end, in all four roles: to the token, through its death, and hostile.
#![cfg(all(target_os = "linux", feature = "zmq"))]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;
mod python_peers;

use std::ffi::OsStr;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use common::case::{Case, code};
use common::text;
use live_peers::{LiveRun, connect, copies, free_port, live, wait_until};
use python_peers::{PythonPeer, python_with};
use zbmd_ir::{DType, TokenType};

const PEER: &str = include_str!("python_peers/zmq_peer.py");
const TOKENS: u64 = 200_000;

/// A Python with `zmq`, which may bring a library of its own: ours is the system's.
fn python() -> Option<String> {
    let import = "import ctypes, zmq; ctypes.CDLL('libzmq.so.5')";
    python_with(import, "apt-get install libzmq5 python3-zmq")
}

fn f32s() -> TokenType {
    TokenType::scalar(DType::F32)
}

/// A folder with a model that copies, and so many tokens in `a.f32`, none of them zero.
fn case_with_file(tokens: u64) -> (Case, Vec<u8>) {
    let case = Case::new(copies(&[("a", f32s())], 100));
    let given: Vec<u8> = (0..tokens)
        .flat_map(|i| (i as f32 + 1.0).to_le_bytes())
        .collect();
    case.write("a.f32", &given);
    (case, given)
}

/// Starts a peer in a case's folder.
fn peer(python: &str, case: &Case, args: &[&str]) -> PythonPeer {
    PythonPeer::start(python, PEER, case.folder(), args)
}

#[test]
fn senders_of_both_patterns_are_read_to_the_token() {
    let Some(python) = python() else { return };
    let (case, given) = case_with_file(TOKENS);
    let count = TOKENS.to_string();
    for (scheme, kind, how) in [
        ("zmq-sub", "XPUB", "bind"),
        ("zmq-sub-listen", "XPUB", "connect"),
        ("zmq-pull", "PUSH", "bind"),
        ("zmq-pull-listen", "PUSH", "connect"),
    ] {
        let port = free_port();
        let url = format!("a={scheme}://127.0.0.1:{port}?silence=stall&full=wait");
        let run = LiveRun::start(&case, &["-i", &url, "-o", "a_out=a.bin", "-n", &count]);
        let endpoint = format!("tcp://127.0.0.1:{port}");
        let sender = peer(&python, &case, &["send", kind, how, &endpoint, "a.f32"]);
        sender.end();
        let report = run.end(&case, 0);
        assert!(case.read("a.bin") == given, "{scheme}");
        let source = live(&report, "a");
        assert_eq!(
            (&source["refused"], &source["gap_count"], &source["packets"]),
            (&0.into(), &0.into(), &given.len().div_ceil(4096).into()),
            "{scheme}: {source}"
        );
    }
}

#[test]
fn receivers_of_both_patterns_get_every_token() {
    let Some(python) = python() else { return };
    let (case, given) = case_with_file(TOKENS);
    let length = given.len().to_string();
    for (scheme, kind, how) in [
        ("zmq-pub", "SUB", "bind"),
        ("zmq-pub-listen", "SUB", "connect"),
        ("zmq-push", "PULL", "bind"),
        ("zmq-push-listen", "PULL", "connect"),
    ] {
        let port = free_port();
        let url = format!("a_out={scheme}://127.0.0.1:{port}?full=wait&queue=1000&packet=1002");
        let run = LiveRun::start(&case, &["-i", "a=a.f32", "-o", &url]);
        let endpoint = format!("tcp://127.0.0.1:{port}");
        let args = ["receive", kind, how, &endpoint, "a.bin", &length];
        let receiver = peer(&python, &case, &args);
        receiver.end();
        let report = run.end(&case, 0);
        assert!(case.read("a.bin") == given, "{scheme}");
        let sink = live(&report, "a_out");
        assert_eq!(
            (&sink["sent"], &sink["dropped"]),
            (&TOKENS.into(), &0.into()),
            "{scheme}: {sink}"
        );
        // Messages of 250 tokens, but for those at the end of what was read at once.
        assert!(sink["packets"].as_u64() >= Some(TOKENS / 250), "{sink}");
    }
}

#[test]
fn a_topic_is_a_frame_of_its_own() {
    let Some(python) = python() else { return };
    let (case, given) = case_with_file(TOKENS);
    let count = TOKENS.to_string();
    let length = given.len().to_string();
    let port = free_port();
    let endpoint = format!("tcp://127.0.0.1:{port}");
    // The library gives us the topic `iq2` too, whose beginning ours is; not `other`.
    let url = format!("a=zmq-sub://127.0.0.1:{port}?silence=stall&full=wait&topic=iq");
    let run = LiveRun::start(&case, &["-i", &url, "-o", "a_out=a.bin", "-n", &count]);
    let args = [
        "send", "XPUB", "bind", &endpoint, "a.f32", "iq2", "other", "iq",
    ];
    let sender = peer(&python, &case, &args);
    sender.end();
    let report = run.end(&case, 0);
    assert!(case.read("a.bin") == given);
    let source = live(&report, "a");
    assert_eq!(source["refused"], given.len().div_ceil(4096), "{source}");

    let port = free_port();
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let url = format!("a_out=zmq-pub-listen://127.0.0.1:{port}?full=wait&topic=iq");
    let run = LiveRun::start(&case, &["-i", "a=a.f32", "-o", &url]);
    let args = [
        "receive", "SUB", "connect", &endpoint, "a.bin", &length, "iq",
    ];
    peer(&python, &case, &args).end();
    let report = run.end(&case, 0);
    assert!(case.read("a.bin") == given);
    assert_eq!(live(&report, "a_out")["dropped"], 0);
}

/// Seconds of the clock that all processes have in common.
fn monotonic_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Of tokens that are numbers of samples, with zeros between them: by how far each is from its place in the first one's
/// line, the smallest and the largest.
fn offsets(tokens: &[f32]) -> (i64, i64) {
    let real = tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| **token != 0.0);
    let offsets: Vec<i64> = real
        .map(|(index, token)| *token as i64 - index as i64)
        .collect();
    let first = offsets[0];
    let smallest = offsets.iter().min().expect("tokens") - first;
    let largest = offsets.iter().max().expect("tokens") - first;
    (smallest, largest)
}

#[test]
fn a_peer_that_dies_and_comes_back_has_its_place_by_time() {
    const RATE: u64 = 10_000;
    let Some(python) = python() else { return };
    for (scheme, kind, how) in [
        ("zmq-sub", "PUB", "bind"),
        ("zmq-pull-listen", "PUSH", "connect"),
    ] {
        let case = Case::new(copies(&[("a", f32s())], 100));
        let port = free_port();
        let endpoint = format!("tcp://127.0.0.1:{port}");
        let rate = RATE.to_string();
        let epoch = format!("{:.9}", monotonic_s() - 1.0);
        let url = format!("a={scheme}://127.0.0.1:{port}?rate={RATE}&limit=300ms");
        let mut run = LiveRun::start(&case, &["-i", &url, "-o", "a_out=a.bin"]);
        let written = || std::fs::metadata(case.path("a.bin")).map_or(0, |file| file.len() / 4);
        let last = || {
            let bytes = std::fs::read(case.path("a.bin")).unwrap_or_default();
            let last = bytes.as_chunks::<4>().0.last().copied();
            f32::from_le_bytes(last.unwrap_or_default())
        };

        for _ in 0..3 {
            let args = ["clock", kind, how, &endpoint, &rate, &epoch];
            let sender = peer(&python, &case, &args);
            wait_until("its tokens come", || last() != 0.0);
            let real = written();
            wait_until("more of them come", || written() > real + RATE / 5);
            sender.kill();
            wait_until("silence is filled", || written() > 0 && last() == 0.0);
            run.assert_runs();
        }
        run.interrupt();
        let report = run.end(&case, 130);

        let bytes = case.read("a.bin");
        let tokens: Vec<f32> = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|token| f32::from_le_bytes(*token))
            .collect();
        // Delays of this machine, and not what three outages add up to: each is at least the limit.
        let (smallest, largest) = offsets(&tokens);
        let bound = (RATE / 2) as i64;
        assert!(-bound < smallest && largest < bound, "{smallest} {largest}");
        let source = live(&report, "a");
        let silent = source["filled"]["silence"].as_u64().expect("a number");
        assert!(silent > 3 * RATE / 10, "{source}");
        assert!(source["gap_count"].as_u64() >= Some(3), "{source}");
    }
}

/// The most memory that a process has had, in KiB; `None` once it has ended.
fn peak_memory_if_running(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    // One that has ended and was not waited for has no memory.
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn peak_memory_kib(process: u32) -> u64 {
    peak_memory_if_running(process).expect("it runs")
}

#[test]
fn hostile_peers_cost_no_memory_and_no_token() {
    let Some(python) = python() else { return };
    let (case, given) = case_with_file(TOKENS);
    let port = free_port();
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let url = format!("a=zmq-pull-listen://127.0.0.1:{port}?silence=stall&full=wait");
    let mut run = LiveRun::start(&case, &["-i", &url, "-o", "a_out=a.bin"]);
    let mut stranger = connect(port);
    let before_kib = peak_memory_kib(run.id());

    // Who does not speak its protocol, who says nothing, and who says too much.
    stranger.write_all(&[0xff; 4096]).expect("taken");
    let silent: Vec<TcpStream> = (0..50)
        .map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connected"))
        .collect();
    peer(&python, &case, &["hostile", "PUSH", "connect", &endpoint]).end();
    run.assert_runs();
    let after_kib = peak_memory_kib(run.id());

    let args = ["send", "PUSH", "connect", &endpoint, "a.f32"];
    peer(&python, &case, &args).end();
    let output_bytes = || std::fs::metadata(case.path("a.bin")).map_or(0, |file| file.len());
    wait_until("all of it is written", || {
        output_bytes() == given.len() as u64
    });
    drop(silent);
    run.interrupt();
    let report = run.end(&case, 130);
    assert!(case.read("a.bin") == given);
    let source = live(&report, "a");
    // Fifty of odd lengths, and one that is too long in small frames.
    assert_eq!(source["refused"], 51, "{source}");
    assert!(
        after_kib < before_kib + (32 << 10),
        "from {before_kib} KiB to {after_kib} KiB"
    );
}

#[test]
fn a_sink_without_peers_drops_and_counts() {
    if python().is_none() {
        return;
    }
    let (case, _) = case_with_file(TOKENS);
    for scheme in ["zmq-pub", "zmq-pub-listen", "zmq-push", "zmq-push-listen"] {
        let url = format!("a_out={scheme}://127.0.0.1:{}", free_port());
        let run = LiveRun::start(&case, &["-i", "a=a.f32", "-o", &url]);
        let report = run.end(&case, 0);
        let sink = live(&report, "a_out");
        assert_eq!(
            (&sink["sent"], &sink["dropped"]),
            (&0.into(), &TOKENS.into()),
            "{scheme}: {sink}"
        );
    }
}

#[test]
fn a_peer_that_reads_nothing_costs_tokens_and_not_the_run() {
    // Two seconds, and many more than the system and the library keep for a peer that does not read.
    const MANY: u64 = 15_000_000;
    let Some(python) = python() else { return };
    let case = Case::new(copies(&[("a", f32s())], 1000));
    case.write("a.f32", vec![1; 4 * MANY as usize]);
    for (scheme, kind, how) in [
        ("zmq-pub-listen", "SUB", "connect"),
        ("zmq-push", "PULL", "bind"),
    ] {
        let port = free_port();
        let endpoint = format!("tcp://127.0.0.1:{port}");
        let _ = std::fs::remove_file(case.path("is_idle"));
        let url = format!("a_out={scheme}://127.0.0.1:{port}?queue=100000");
        let paced = "a=paced:a.f32?rate=7.5e6&full=wait";
        let run = LiveRun::start(&case, &["-i", paced, "-o", &url]);
        let idle = peer(&python, &case, &["idle", kind, how, &endpoint]);
        wait_until("a message comes", || case.path("is_idle").exists());
        let before_kib = peak_memory_kib(run.id());
        let mut after_kib = before_kib;
        while let Some(kib) = peak_memory_if_running(run.id()) {
            after_kib = kib;
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let report = run.end(&case, 0);
        idle.kill();

        let sink = live(&report, "a_out");
        let count = |key: &str| sink[key].as_u64().expect("a number");
        assert_eq!(count("sent") + count("dropped"), MANY, "{scheme}: {sink}");
        assert!(count("sent") > 0 && count("dropped") > 0, "{sink}");
        assert!(
            after_kib < before_kib + (32 << 10),
            "{scheme}: from {before_kib} KiB to {after_kib} KiB"
        );
    }
}

#[test]
fn what_cannot_be_opened_is_a_sentence_and_an_exit_code() {
    let (case, _) = case_with_file(10);
    let output = |input: &str, variables: &[(&str, &OsStr)]| {
        let mut command = case.command(&["-i", input, "-o", "a_out=a.bin"]);
        let output = command.envs(variables.iter().copied()).output();
        let output = output.expect("started");
        assert_eq!(code(&output), 4, "{}", text(&output.stderr));
        text(&output.stderr)
    };
    // A library that is none stands for one that is missing.
    case.write("libzmq.so.5", "");
    let variables = [("LD_LIBRARY_PATH", case.folder().as_os_str())];
    let said = output("a=zmq-pull://127.0.0.1:9?rate=1e3", &variables);
    assert!(
        said.contains("ZeroMQ cannot be loaded") && said.contains("apt-get install libzmq5"),
        "{said}"
    );
    if python().is_none() {
        return;
    }
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let url = format!("a=zmq-pull-listen://127.0.0.1:{port}?rate=1e3");
    let said = output(&url, &[]);
    assert!(said.contains("Address already in use"), "{said}");
    let said = output("a=zmq-pull://127.0.0.1:9?rate=1e3&packet=3", &[]);
    assert!(said.contains("no room for a token of 4 bytes"), "{said}");
}
