//! Tokens from a pipe through a sink, Zenoh and a source into a pipe, beside a bare publisher and subscriber of Zenoh: two
//! processes each, in turns, over TCP on this computer. Prints medians of messages and bytes a second, and their ratio.
//!
//! `cargo bench --manifest-path executor/zenoh-bridge/Cargo.toml -- TURNS`

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use zenoh::qos::CongestionControl;
use zenoh::{Config, Session, Wait};

const KEY: &str = "bench/key";
/// Message bytes, and messages in a turn: a second or so each.
const CASES: [(usize, usize); 4] = [
    (64, 200_000),
    (1024, 200_000),
    (16 << 10, 40_000),
    (64 << 10, 10_000),
];

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    if let [first, endpoint, bytes, messages] = &words[..]
        && first == "publish"
    {
        let number = |text: &String| text.parse().expect("a number of ours");
        return publish(endpoint, number(bytes), number(messages));
    }
    let turns = words
        .first()
        .and_then(|word| word.parse().ok())
        .unwrap_or(5);
    println!("| bytes | bare messages/s | bare MB/s | bridges messages/s | bridges MB/s | ratio |");
    println!("|---|---|---|---|---|---|");
    for (bytes, messages) in CASES {
        let mut bare = Vec::new();
        let mut bridged = Vec::new();
        for _ in 0..turns {
            bare.push(bare_seconds(bytes, messages));
            bridged.push(bridge_seconds(bytes, messages));
        }
        let mut ratios: Vec<f64> = bare
            .iter()
            .zip(&bridged)
            .map(|(bare, bridged)| bare / bridged)
            .collect();
        let rate = |seconds: &mut Vec<f64>| messages as f64 / median(seconds);
        let [bare_rate, bridge_rate] = [rate(&mut bare), rate(&mut bridged)];
        let mb = bytes as f64 / 1e6;
        println!(
            "| {bytes} | {bare_rate:.0} | {:.1} | {bridge_rate:.0} | {:.1} | {:.2} |",
            bare_rate * mb,
            bridge_rate * mb,
            median(&mut ratios),
        );
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load {}", load.split(' ').next().unwrap_or("unknown"));
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn free_endpoint() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    format!("tcp/127.0.0.1:{port}")
}

fn open(settings: &[(&str, String)]) -> Session {
    let mut config = Config::default();
    for (key, value) in settings {
        config.insert_json5(key, value).expect("a known setting");
    }
    let no_scouting = config.insert_json5("scouting/multicast/enabled", "false");
    no_scouting.expect("a known setting");
    zenoh::open(config).wait().expect("a session")
}

/// The publisher's process of the bare pair.
fn publish(endpoint: &str, bytes: usize, messages: usize) {
    let session = open(&[
        ("mode", "\"client\"".to_owned()),
        ("connect/endpoints", format!("[{endpoint:?}]")),
        ("connect/timeout_ms", "10000".to_owned()),
    ]);
    let publisher = session
        .declare_publisher(KEY)
        .congestion_control(CongestionControl::Block)
        .wait()
        .expect("a publisher");
    while !publisher.matching_status().wait().expect("open").matching() {
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..messages {
        publisher.put(vec![7_u8; bytes]).wait().expect("published");
    }
    session.close().wait().expect("closed");
}

/// From the first message to the last one.
fn bare_seconds(bytes: usize, messages: usize) -> f64 {
    let endpoint = free_endpoint();
    let session = open(&[("listen/endpoints", format!("[{endpoint:?}]"))]);
    let (sender, times) = channel();
    let mut received = 0;
    let subscriber = session
        .declare_subscriber(KEY)
        .callback_mut(move |sample| {
            assert_eq!(sample.payload().len(), bytes);
            received += 1;
            if received == 1 || received == messages {
                sender.send(Instant::now()).expect("it waits");
            }
        })
        .wait()
        .expect("a subscriber");
    let this_program = std::env::current_exe().expect("it runs");
    let words = [
        "publish",
        &endpoint,
        &bytes.to_string(),
        &messages.to_string(),
    ];
    let publisher = Command::new(this_program)
        .args(words)
        .spawn()
        .expect("it starts");
    let [first, last] = [(); 2].map(|()| {
        let limit = Duration::from_secs(120);
        times.recv_timeout(limit).expect("all messages come")
    });
    ended(publisher);
    drop(subscriber);
    session.close().wait().expect("closed");
    last.duration_since(first).as_secs_f64()
}

fn ended(mut child: Child) {
    assert!(child.wait().expect("ours").success());
}

fn bridge(words: &[&str], input: Stdio, output: Stdio) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zbmd-zenoh"));
    command.args(words).arg("-q").stdin(input).stdout(output);
    command.spawn().expect("it starts")
}

/// From the first byte that comes out to the last one.
fn bridge_seconds(bytes: usize, messages: usize) -> f64 {
    let endpoint = free_endpoint();
    let token_bytes = bytes.to_string();
    let words = [
        "source",
        KEY,
        "--token-bytes",
        &token_bytes,
        "--listen",
        &endpoint,
    ];
    let mut source = bridge(&words, Stdio::null(), Stdio::piped());
    let words = [
        "sink",
        KEY,
        "--token-bytes",
        &token_bytes,
        "--readers",
        "1",
        "--connect",
        &endpoint,
    ];
    let mut sink = bridge(&words, Stdio::piped(), Stdio::null());
    let mut input = sink.stdin.take().expect("a pipe");
    let feeder = std::thread::spawn(move || {
        let piece = vec![7_u8; 1 << 20];
        let mut left_bytes = bytes * messages;
        while left_bytes > 0 {
            let length = left_bytes.min(piece.len());
            input.write_all(&piece[..length]).expect("it takes all");
            left_bytes -= length;
        }
    });
    let mut output = source.stdout.take().expect("a pipe");
    let mut buffer = vec![0; 1 << 20];
    let mut received_bytes = output.read(&mut buffer).expect("a pipe");
    let first = Instant::now();
    let mut last = first;
    while received_bytes < bytes * messages {
        match output.read(&mut buffer).expect("a pipe") {
            0 => panic!("it ended after {received_bytes} bytes"),
            length => received_bytes += length,
        }
        last = Instant::now();
    }
    feeder.join().expect("no panic");
    ended(sink);
    ended(source);
    last.duration_since(first).as_secs_f64()
}
