//! Peers of live streams, and runs with them: senders that lose packets by seed, receivers' servers that can be killed.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "each test binary uses a part"
)]

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zbmd_ir::testing::programs;
use zbmd_ir::{
    Actor, ActorId, Channel, Endpoint, Graph, InPort, OutPort, Program, Reader, Role, TokenType,
};

use super::common::case::{Case, code};
use super::common::{replanned, text, with_tail};

#[path = "../../../../tests/src/free_port.rs"]
mod free_port;

pub(crate) use free_port::free_port;

/// Much longer than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A number from the environment, for long runs of a test.
pub(crate) fn scale(variable: &str, otherwise: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(otherwise)
}

/// Waits until something is so, or fails with `what` after it has not been so at many looks.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut waited = Duration::ZERO;
    while !is_so() {
        assert!(waited < LIMIT, "{what}");
        let slept_at = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        // A machine that was suspended meanwhile, as virtual ones are, has not waited all that time.
        waited += slept_at.elapsed().min(Duration::from_millis(100));
    }
}

/// Waits until something is found.
#[track_caller]
fn wait_for<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    wait_until(what, || {
        found = find();
        found.is_some()
    });
    found.expect("it was waited for")
}

/// What the system says of a port of this host; `None` if nobody has bound it.
fn udp_socket(port: u16) -> Option<Vec<String>> {
    let sockets = std::fs::read_to_string("/proc/net/udp").expect("on Linux");
    let wanted = format!(":{port:04X}");
    let of_port = |line: &&str| {
        let local = line.split_whitespace().nth(1);
        local.is_some_and(|local| local.ends_with(&wanted))
    };
    let line = sockets.lines().find(of_port)?;
    Some(line.split_whitespace().map(str::to_owned).collect())
}

/// Datagrams that the system dropped there.
pub(crate) fn udp_drops(port: u16) -> Option<u64> {
    udp_socket(port)?.last()?.parse().ok()
}

/// Whether all datagrams have been read there.
pub(crate) fn is_udp_drained(port: u16) -> bool {
    udp_socket(port).is_some_and(|socket| socket[4].ends_with(":00000000"))
}

/// Whether a process has bound a port of UDP on this host.
pub(crate) fn is_udp_bound(port: u16) -> bool {
    udp_drops(port).is_some()
}

/// A program that passes streams on: the source `a` to the sink `a_out`, in blocks of so many tokens.
pub(crate) fn copies(streams: &[(&str, TokenType)], block: u64) -> Program {
    let mut actors = Vec::new();
    let mut channels = Vec::new();
    for (name, token) in streams {
        let source_id = ActorId(actors.len() as u32);
        let mut source = bare_actor(name, "Source", Role::Source);
        source.outputs.push(OutPort {
            name: "y".to_owned(),
            token: token.clone(),
            rate: 1,
        });
        let mut sink = bare_actor(&format!("{name}_out"), "Sink", Role::Sink);
        sink.inputs.push(InPort {
            name: "x".to_owned(),
            token: token.clone(),
            rate: 1,
            window: 1,
        });
        actors.extend([source, sink]);
        let end = |actor| Endpoint { actor, port: 0 };
        channels.push(Channel {
            from: end(source_id),
            readers: vec![Reader {
                to: end(ActorId(source_id.0 + 1)),
                delay: 0,
            }],
            token: token.clone(),
            initial: Vec::new(),
        });
    }
    let mut program = programs::chain();
    program.graph = Graph {
        name: "copies".to_owned(),
        actors: actors.into(),
        channels: channels.into(),
    };
    program.blobs = Vec::new().into();
    with_tail(replanned(program, block))
}

fn bare_actor(name: &str, op: &str, role: Role) -> Actor {
    Actor {
        name: name.to_owned(),
        role,
        op: op.to_owned(),
        params: Default::default(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        state: Vec::new(),
        in_place: Vec::new(),
    }
}

/// A run that goes on beside the test, and is killed if the test fails.
pub(crate) struct LiveRun {
    child: Option<Child>,
}

impl LiveRun {
    pub(crate) fn start(case: &Case, args: &[&str]) -> Self {
        Self::start_with(case, args, &[])
    }

    /// Starts it with variables of the environment.
    pub(crate) fn start_with(case: &Case, args: &[&str], variables: &[(&str, &OsStr)]) -> Self {
        let mut command = case.command(args);
        let child = command
            .envs(variables.iter().copied())
            .args(["--report-file", "report.json", "--report", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        Self { child: Some(child) }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().expect("not ended").id()
    }

    #[track_caller]
    pub(crate) fn assert_runs(&mut self) {
        let child = self.child.as_mut().expect("not ended");
        let status = child.try_wait().expect("a child");
        assert!(status.is_none(), "it has ended: {status:?}");
    }

    pub(crate) fn interrupt(&self) {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = Pid::from_raw(self.id().cast_signed()).expect("a process");
        kill_process(pid, Signal::INT).expect("it was not waited for");
    }

    /// Waits for its end, which has this exit code; its report.
    #[track_caller]
    pub(crate) fn end(mut self, case: &Case, expected_code: i32) -> serde_json::Value {
        let begun = Instant::now();
        let mut child = self.child.take().expect("not ended");
        while child.try_wait().expect("a child").is_none() {
            if begun.elapsed() > LIMIT {
                let _ = child.kill();
                let output = child.wait_with_output().expect("killed");
                panic!("it does not end: {}", text(&output.stderr));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let output = child.wait_with_output().expect("ended");
        assert_eq!(code(&output), expected_code, "{}", text(&output.stderr));
        serde_json::from_slice(&case.read("report.json")).expect("JSON")
    }
}

impl Drop for LiveRun {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let _ = child.kill();
        let output = child.wait_with_output();
        // Whoever reads of the failure sees what the run had to say.
        if let (true, Ok(output)) = (std::thread::panicking(), output) {
            eprintln!("the run, {}: {}", output.status, text(&output.stderr));
        }
    }
}

/// What a report says of a live stream.
pub(crate) fn live<'a>(report: &'a serde_json::Value, stream: &str) -> &'a serde_json::Value {
    let all = report["live"].as_array().expect("live streams");
    let found = all.iter().find(|live| live["stream"] == stream);
    found.unwrap_or_else(|| panic!("{stream} in {report}"))
}

/// First index and length of the gaps that a report lists.
pub(crate) fn gaps(live: &serde_json::Value) -> Vec<(u64, u64)> {
    let all = live["gaps"].as_array().expect("gaps");
    let number = |gap: &serde_json::Value, key: &str| gap[key].as_u64().expect("a number");
    all.iter()
        .map(|gap| (number(gap, "first"), number(gap, "length")))
        .collect()
}

/// SplitMix64 (Steele, Lea & Flood 2014).
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What a sender did to its packets.
#[derive(Debug, Default)]
pub(crate) struct SenderLog {
    /// First index and number of tokens that were not sent.
    pub(crate) dropped: Vec<(u64, u64)>,
    pub(crate) repeated_tokens: u64,
    pub(crate) swaps: u64,
    /// Tokens in packets that were sent, repeats included.
    pub(crate) sent_tokens: u64,
}

/// The order in which packets of so many tokens are sent: 1 % are not, 0.5 % twice, and 0.5 % after the next.
pub(crate) fn lossy_order(seed: u64, packets: u64, tokens: u64) -> (Vec<u64>, SenderLog) {
    let mut state = seed;
    let mut order = Vec::new();
    let mut log = SenderLog::default();
    let mut number = 0;
    while number < packets {
        // The first packets show where the stream begins, the last ones that nothing is missing.
        let is_edge = number < 2 || number + 20 > packets;
        let chance = match is_edge {
            true => 999,
            false => random(&mut state) % 1000,
        };
        match chance {
            0..10 => match log.dropped.last_mut() {
                Some((first, count)) if *first + *count == number * tokens => *count += tokens,
                _ => log.dropped.push((number * tokens, tokens)),
            },
            10..15 => {
                order.extend([number, number]);
                log.repeated_tokens += tokens;
            }
            15..20 => {
                order.extend([number + 1, number]);
                log.swaps += 1;
                number += 1;
            }
            _ => order.push(number),
        }
        number += 1;
    }
    log.sent_tokens = order.len() as u64 * tokens;
    (order, log)
}

/// The same bytes with those of the gaps as zeros.
pub(crate) fn with_zeros(mut bytes: Vec<u8>, gaps: &[(u64, u64)], token_bytes: u64) -> Vec<u8> {
    for (first, count) in gaps {
        let begin = (first * token_bytes) as usize;
        let end = ((first + count) * token_bytes) as usize;
        bytes[begin..end].fill(0);
    }
    bytes
}

/// Sends datagrams no faster than a receiver's default buffer takes them.
pub(crate) fn send_datagrams(port: u16, datagrams: impl Iterator<Item = Vec<u8>>) {
    send_in_bursts(port, datagrams, 32 << 10);
}

/// Sends at most one datagram a millisecond.
pub(crate) fn send_slowly(port: u16, datagrams: impl Iterator<Item = Vec<u8>>) {
    send_in_bursts(port, datagrams, 0);
}

fn send_in_bursts(port: u16, datagrams: impl Iterator<Item = Vec<u8>>, max_burst_bytes: usize) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let mut burst_bytes = 0;
    for datagram in datagrams {
        // Small datagrams take more of the system's buffer than their bytes.
        burst_bytes += datagram.len() + 800;
        if burst_bytes > max_burst_bytes {
            std::thread::sleep(Duration::from_millis(1));
            burst_bytes = 0;
        }
        let sent = socket.send_to(&datagram, (Ipv4Addr::LOCALHOST, port));
        assert_eq!(sent.expect("sent"), datagram.len());
    }
}

/// A server of `rtl_tcp` whose samples tell when they were taken: sample `i` of all times is `i mod 251` and
/// `i / 251 mod 256`.
pub(crate) struct ReceiverServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Samples that were sent.
    pub(crate) sent: Arc<AtomicU64>,
    /// Bytes of commands that came.
    pub(crate) commands: Arc<AtomicU64>,
}

/// The two bytes of a sample.
pub(crate) fn sample_bytes(index: u64) -> [u8; 2] {
    [(index % 251) as u8, (index / 251 % 256) as u8]
}

/// The sample that these bytes are of, modulo 251 x 256; `None` for bytes of no sample.
pub(crate) fn sample_of(bytes: [u8; 2]) -> Option<u64> {
    (bytes[0] < 251).then(|| u64::from(bytes[0]) + 251 * u64::from(bytes[1]))
}

impl ReceiverServer {
    /// Serves one client, at so many samples a second since `epoch`.
    pub(crate) fn start(port: u16, rate: f64, epoch: Instant) -> Self {
        let listener = listen(port);
        let stop = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(0));
        let commands = Arc::new(AtomicU64::new(0));
        let thread = std::thread::spawn({
            let (stop, sent, commands) = (stop.clone(), sent.clone(), commands.clone());
            move || serve(&listener, rate, epoch, &stop, &sent, &commands)
        });
        Self {
            stop,
            thread: Some(thread),
            sent,
            commands,
        }
    }

    /// Closes everything at once.
    pub(crate) fn kill(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
    }
}

impl Drop for ReceiverServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// Listens at a port, also at one that was listened at a moment ago: a process that another test starts has a copy of the
/// old socket until it executes its program.
pub(crate) fn listen(port: u16) -> TcpListener {
    let listener = wait_for("the port is free", || {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
    });
    listener.set_nonblocking(true).expect("a socket");
    listener
}

/// Connects to a server that is being started.
#[track_caller]
pub(crate) fn connect(port: u16) -> TcpStream {
    let stream = wait_for("it listens", || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
    });
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream
}

/// Waits for a client; `None` when it is told to stop.
pub(crate) fn accept(listener: &TcpListener, stop: &AtomicBool) -> Option<TcpStream> {
    while !stop.load(Ordering::Acquire) {
        if let Ok((stream, _)) = listener.accept() {
            return Some(stream);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

fn serve(
    listener: &TcpListener,
    rate: f64,
    epoch: Instant,
    stop: &AtomicBool,
    sent: &AtomicU64,
    commands: &AtomicU64,
) {
    let Some(mut client) = accept(listener, stop) else {
        return;
    };
    client
        .write_all(b"RTL0\0\0\0\x05\0\0\0\x1d")
        .expect("a hello");
    client.set_nonblocking(true).expect("a socket");
    let now = |epoch: Instant| (epoch.elapsed().as_secs_f64() * rate) as u64;
    let mut index = now(epoch);
    while !stop.load(Ordering::Acquire) {
        let mut bytes = [0; 256];
        if let Ok(length) = client.read(&mut bytes) {
            commands.fetch_add(length as u64, Ordering::Relaxed);
        }
        let until = now(epoch);
        let samples: Vec<u8> = (index..until).flat_map(sample_bytes).collect();
        if client.write_all(&samples).is_err() {
            return;
        }
        sent.fetch_add(until - index, Ordering::Relaxed);
        index = until;
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Of samples with fill bytes between them: how far samples are from their places, each time that this changes.
pub(crate) fn sample_offsets(bytes: &[u8]) -> Vec<i64> {
    const TURN: i64 = 251 * 256;
    let mut offsets = Vec::new();
    for (index, bytes) in bytes.as_chunks::<2>().0.iter().enumerate() {
        let Some(sample) = sample_of(*bytes).filter(|_| *bytes != [127, 127]) else {
            continue;
        };
        let offset = (sample as i64 - index as i64).rem_euclid(TURN);
        if offsets.last() != Some(&offset) {
            offsets.push(offset);
        }
    }
    offsets
}

/// A file of so many samples of a receiver.
pub(crate) fn sample_file(case: &Case, samples: u64) {
    case.write(
        "iq.cu8",
        (0..samples).flat_map(sample_bytes).collect::<Vec<u8>>(),
    );
}
