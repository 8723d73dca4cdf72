//! Live sinks of the command as a process: datagrams, connections, and a receiver's server for programs that expect one.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Instant;

use common::case::Case;
use common::text;
use live_peers::{LIMIT, LiveRun, connect, copies, free_port, live, sample_file, sample_offsets};
use zbmd_ir::{DType, TokenType};

fn f32s() -> TokenType {
    TokenType::scalar(DType::F32)
}

fn iq_bytes() -> TokenType {
    TokenType::new(DType::U8, [2])
}

/// A folder with so many tokens of f32 in `a.f32`, each its own index.
fn case_with_file(tokens: u64) -> (Case, Vec<u8>) {
    let case = Case::new(copies(&[("a", f32s())], 100));
    let given: Vec<u8> = (0..tokens).flat_map(|i| (i as f32).to_le_bytes()).collect();
    case.write("a.f32", &given);
    (case, given)
}

#[test]
fn a_peer_that_is_absent_stops_nothing() {
    let (case, given) = case_with_file(100_000);
    let tokens = given.len() as u64 / 4;
    for scheme in ["tcp", "tcp-listen"] {
        let url = format!("a_out={scheme}://127.0.0.1:{}", free_port());
        let run = LiveRun::start(&case, &["-i", "a=a.f32", "-o", &url]);
        let report = run.end(&case, 0);
        let out = live(&report, "a_out");
        assert_eq!(
            (&out["sent"], &out["dropped"]),
            (&0.into(), &tokens.into()),
            "{out}"
        );
        assert_eq!(report["sinks"][0]["tokens"], tokens);
    }
}

#[test]
fn a_sink_that_waits_gives_its_client_everything() {
    let (case, given) = case_with_file(300_000);
    let port = free_port();
    let url = format!("a_out=tcp-listen://127.0.0.1:{port}?full=wait&queue=1000");
    let run = LiveRun::start(&case, &["-i", "a=a.f32", "-o", &url]);
    let mut received = Vec::new();
    connect(port).read_to_end(&mut received).expect("all of it");
    let report = run.end(&case, 0);
    assert!(received == given);
    assert_eq!(live(&report, "a_out")["dropped"], 0);
}

#[test]
fn a_client_that_is_slow_or_goes_costs_whole_tokens() {
    let (case, given) = case_with_file(3_000_000);
    let tokens = given.len() as u64 / 4;
    let peer = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = peer.local_addr().expect("bound").port();
    for full in ["drop-oldest", "drop-newest"] {
        // Two thirds of a second of tokens, many more than the system keeps for a peer that does not read.
        let url = format!("a_out=tcp://127.0.0.1:{port}?full={full}&queue=5000");
        let paced = "a=paced:a.f32?rate=4.5e6&full=wait";
        let run = LiveRun::start(&case, &["-i", paced, "-o", &url]);
        let (mut first, _) = peer.accept().expect("it connects");
        let mut beginning = [0; 4_002];
        first.read_exact(&mut beginning).expect("tokens");
        // It goes in the middle of a token; the next one begins with a whole one, and sleeps until the run has ended.
        drop(first);
        let (mut second, _) = peer.accept().expect("it connects again");
        let report = run.end(&case, 0);
        let mut received = Vec::new();
        // What it had sent may be cut off by its end.
        let _ = second.read_to_end(&mut received);

        let indexes = received
            .as_chunks::<4>()
            .0
            .iter()
            .map(|x| f32::from_le_bytes(*x) as u64);
        let indexes: Vec<u64> = indexes.collect();
        assert!(indexes.iter().all(|index| *index < tokens), "{full}");
        assert!(
            indexes.windows(2).all(|pair| pair[0] < pair[1]),
            "{full}: in order"
        );
        let out = live(&report, "a_out");
        let count = |key: &str| out[key].as_u64().expect("a number");
        assert_eq!(count("sent") + count("dropped"), tokens, "{out}");
        assert!(
            count("dropped") > 0 && count("sent") >= indexes.len() as u64,
            "{out}"
        );
        assert_eq!(count("connections"), 2, "{out}");
    }
}

#[test]
fn tokens_that_a_receivers_server_cannot_send_are_refused() {
    let (case, _) = case_with_file(10);
    let args = ["-i", "a=a.f32", "-o", "a_out=rtl_tcp-listen://127.0.0.1:0"];
    let said = case.expect(4, &args);
    assert!(
        said.contains("the tokens are f32: use u8 or u8[2]"),
        "{said}"
    );
    let args = [
        "-i",
        "a=a.f32",
        "-o",
        "a_out=udp://127.0.0.1:9?header=vita49",
    ];
    let said = case.expect(2, &args);
    assert!(
        said.contains("`header=vita49` is wrong; allowed: none, seq"),
        "{said}"
    );
}

#[test]
fn a_sink_sends_numbered_datagrams() {
    const TOKENS: u64 = 5_000;
    let case = Case::new(copies(&[("a", f32s())], 100));
    let given: Vec<u8> = (0..TOKENS).flat_map(|i| (i as f32).to_le_bytes()).collect();
    case.write("a.f32", &given);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    socket.set_read_timeout(Some(LIMIT)).expect("a limit");
    let port = socket.local_addr().expect("bound").port();
    let url = format!("a_out=udp://127.0.0.1:{port}?header=seq&packet=1208");
    let run = LiveRun::start(&case, &["-i", "a=a.f32", "-o", &url]);

    let mut received = Vec::new();
    let mut number = 0u64;
    while received.len() < given.len() {
        let mut datagram = [0; 2000];
        let length = socket.recv(&mut datagram).expect("a datagram");
        number += 1;
        assert_eq!(datagram[..8], number.to_le_bytes());
        assert!(length == 1208 || received.len() + length - 8 == given.len());
        received.extend_from_slice(&datagram[8..length]);
    }
    let report = run.end(&case, 0);
    assert!(received == given);
    assert_eq!(live(&report, "a_out")["sent"], TOKENS);
}

#[test]
fn our_receivers_server_serves_our_client_whenever_it_comes() {
    const RATE: u64 = 100_000;
    let case = Case::new(copies(&[("iq", iq_bytes())], 100));
    sample_file(&case, 60 * RATE);
    let port = free_port();
    let paced = format!("iq=paced:iq.cu8?rate={RATE}");
    let sink_url = format!("iq_out=rtl_tcp-listen://127.0.0.1:{port}");
    let mut server = LiveRun::start(&case, &["-i", &paced, "-o", &sink_url]);

    // A client that connects and says nothing but nonsense, and reads nothing, does not stop the run.
    let mut idle = connect(port);
    idle.write_all(&[0xff; 64]).expect("taken");
    drop(idle);

    let other = Case::new(copies(&[("iq", iq_bytes())], 100));
    let client_url = format!("iq=rtl_tcp://127.0.0.1:{port}?rate={RATE}&freq=1e8&limit=10s");
    for _ in 0..2 {
        let client = LiveRun::start(
            &other,
            &["-i", &client_url, "-o", "iq_out=iq.bin", "-n", "30000"],
        );
        let report = client.end(&other, 0);
        let iq = live(&report, "iq");
        assert_eq!(
            (&iq["connections"], &iq["gap_count"]),
            (&1.into(), &0.into()),
            "{iq}"
        );
        // Thirty thousand samples in a row, from whichever moment on.
        assert_eq!(sample_offsets(&other.read("iq.bin")).len(), 1);
    }
    server.assert_runs();
    server.interrupt();
    let report = server.end(&case, 130);
    let served = live(&report, "iq_out");
    assert!(served["connections"].as_u64() >= Some(3), "{served}");
    assert!(served["commands"].as_u64() >= Some(4), "{served}");
    assert!(served["sent"].as_u64() >= Some(60_000), "{served}");
}

/// The three bytes of a message in `iq.cu8`, again and again, as remote controls send them: on-off keyed at 250 kS/s,
/// 400 us and 1200 us of carrier for ones and zeros, 50 ms between messages.
fn message_file(case: &Case, message: [u8; 3], messages: usize) {
    const RATE: usize = 250_000;
    const CARRIER_SAMPLES: usize = 25;
    let samples = |us: usize| us * RATE / 1_000_000;
    let mut is_on = Vec::new();
    let mut emit = |level: bool, us: usize| is_on.extend(std::iter::repeat_n(level, samples(us)));
    for _ in 0..messages {
        emit(false, 50_000);
        for bit in message
            .iter()
            .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1))
        {
            let on_us = if bit == 1 { 400 } else { 1200 };
            emit(true, on_us);
            emit(false, 1600 - on_us);
        }
    }
    let sample = |(index, is_on): (usize, &bool)| {
        let angle =
            (index % CARRIER_SAMPLES) as f64 / CARRIER_SAMPLES as f64 * std::f64::consts::TAU;
        match is_on {
            true => [
                (128.0 + 100.0 * angle.cos()) as u8,
                (128.0 + 100.0 * angle.sin()) as u8,
            ],
            // A receiver's noise.
            false => [128 + (index % 3 == 0) as u8, 127 + (index % 5 < 2) as u8],
        }
    };
    case.write(
        "iq.cu8",
        is_on
            .iter()
            .enumerate()
            .flat_map(sample)
            .collect::<Vec<u8>>(),
    );
}

#[test]
fn rtl_433_decodes_what_we_serve() {
    let is_there = Command::new("rtl_433")
        .arg("-V")
        .stdin(Stdio::null())
        .output();
    if is_there.is_err() {
        eprintln!("SKIPPED: rtl_433 is not installed here (apt-get install rtl-433)");
        return;
    }
    let case = Case::new(copies(&[("iq", iq_bytes())], 250));
    message_file(&case, [0x2a, 0x5b, 0xc3], 600);
    let port = free_port();
    let sink_url = format!("iq_out=rtl_tcp-listen://127.0.0.1:{port}");
    let mut run = LiveRun::start(
        &case,
        &["-i", "iq=paced:iq.cu8?rate=250000", "-o", &sink_url],
    );
    let begun = Instant::now();
    let device = format!("rtl_tcp:127.0.0.1:{port}");
    let decoder = "n=message,m=OOK_PWM,s=400,l=1200,r=5000";
    // It does not wait for its server.
    let decoded = loop {
        let client = Command::new("rtl_433")
            .args(["-d", &device, "-s", "250k", "-f", "433.92M", "-n", "500000"])
            .args(["-R", "0", "-X", decoder, "-F", "json"])
            .stdin(Stdio::null())
            .output()
            .expect("started");
        if client.status.success() {
            break text(&client.stdout);
        }
        let said = text(&client.stderr);
        assert!(begun.elapsed() < LIMIT, "rtl_433: {said}");
    };
    run.assert_runs();
    run.interrupt();
    let report = run.end(&case, 130);
    let served = live(&report, "iq_out");
    assert!(served["commands"].as_u64() >= Some(2), "{served}");
    assert!(served["sent"].as_u64() >= Some(400_000), "{served}");

    // Two seconds of a message every 88.4 ms, the first of which may have begun before the client came.
    let rows = decoded.lines().filter(|line| line.contains("\"message\""));
    let rows: Vec<&str> = rows.collect();
    let is_right = |row: &&str| row.contains(r#""data" : "2a5bc3""#);
    let right = rows.iter().filter(|row| is_right(row)).count();
    assert!(right >= 15 && rows.len() - right <= 1, "{decoded}");
}
