//! A wire beside raw blocking TCP with the same header, and a wire in TLS beside rustls on blocking TCP, in one run: round
//! trips of 64 bytes, throughput of 64 KiB, and 4 KiB every millisecond with the time one way and the processor time of
//! each side.
//!
//! Over loopback, and between two network namespaces over veth where the system lets us make them. Each pair of figures is
//! measured in turns, so that both see the same machine. In round trips and throughput each side has a core of its own, as workers have that are tied to theirs: else
//! the system puts both on one core or on two as it happens, which changes throughput by half. With `ZBMD_WIRE_SLEEPS` workers sleep as soon as nothing comes, as those do that are more than
//! cores. `-- rustls` measures only beside that, `-- tcp` beside TCP, and `-- wire` a wire
//! over UCX beside one over TCP, where UCX is installed: how it takes its way is up to the environment (`UCX_TLS=tcp`).

mod carrier;
#[path = "../../../../tests/src/figures.rs"]
mod figures;

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use carrier::{Carrier, Stream};
use figures::{load, median};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use zbmd_wire::connection::Connection;
use zbmd_wire::frame::{FrameHeader, FrameKind, HEADER_BYTES};
use zbmd_wire::testing::Namespace;
use zbmd_wire::wires::{RingMemory, RingSpec, Side, Wires};
use zbmd_wire::{Deadline, monotonic_ns};

const ROUNDS: usize = 5;
const ROUND_TRIPS: usize = 20_000;
const BULK_FRAMES: usize = 10_000;
const PACED_FRAMES: usize = 2_000;
const PACE: Duration = Duration::from_millis(1);

/// Rings of round trips and of transfers every millisecond.
const SMALL: Shape = Shape::new(64, 4);
const PACED: Shape = Shape::new(4 << 10, 4);
/// A sender is ahead of its receiver by the places of the ring. With few of them it waits for credits, which raw TCP does not: it is
/// ahead by what sockets hold. Many do not stay in the second cache.
const BULK: [Shape; 3] = [
    Shape::new(64 << 10, 4),
    Shape::new(64 << 10, 8),
    Shape::new(64 << 10, 32),
];

/// A ring, as its plan has it.
#[derive(Clone, Copy)]
struct Shape {
    /// Of a block.
    bytes: usize,
    /// Blocks that the receiver has places for.
    blocks: u64,
}

impl Shape {
    const fn new(bytes: usize, blocks: u64) -> Self {
        Self { bytes, blocks }
    }

    fn ring(self, number: u32) -> Vec<RingSpec> {
        vec![RingSpec {
            ring: number,
            token_bytes: self.bytes as u64,
            block_tokens: 1,
            blocks: self.blocks,
            sends: [1].into(),
        }]
    }

    /// Where a block lies among the places.
    fn range(self, block: u64) -> Range<usize> {
        let start = (block % self.blocks) as usize * self.bytes;
        start..start + self.bytes
    }
}

/// Places of one ring.
struct Places {
    bytes: Vec<u8>,
    shape: Shape,
}

impl Places {
    fn new(shape: Shape) -> Self {
        Self {
            bytes: vec![0; shape.bytes * shape.blocks as usize],
            shape,
        }
    }

    fn block(&self, block: u64) -> &[u8] {
        &self.bytes[self.shape.range(block)]
    }
}

impl RingMemory for Places {
    fn place(&mut self, _: usize, first: u64, bytes: usize) -> &mut [u8] {
        &mut self.bytes[self.shape.range(first)][..bytes]
    }
}

fn wires() -> Wires {
    let stop: OwnedFd = eventfd(0, EventfdFlags::empty()).expect("an eventfd");
    let wires = Wires::new(1, stop, false);
    match std::env::var_os(SLEEPS_VARIABLE) {
        Some(_) => wires,
        None => wires.with_own_core(),
    }
}

/// Two connections: tokens go one way on each.
fn both_ways(there: Connection, back: Connection, is_server: bool, shape: Shape) -> Wires {
    let mut wires = wires();
    let (first, second) = match is_server {
        true => (Side::Receives, Side::Sends),
        false => (Side::Sends, Side::Receives),
    };
    let peer = || "the other side".to_owned();
    wires
        .add(there, peer(), first, shape.ring(0))
        .expect("added");
    wires
        .add(back, peer(), second, shape.ring(1))
        .expect("added");
    wires
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn header(count: u64, bytes: usize) -> [u8; HEADER_BYTES] {
    let header = FrameHeader {
        epoch: 1,
        ring: 0,
        kind: FrameKind::Tokens,
        count,
        bytes: bytes as u32,
    };
    header.encode(0)
}

/// A frame, as a program without wires would send it.
fn raw_send(socket: &mut dyn Stream, count: u64, payload: &[u8]) {
    let header = header(count, payload.len());
    let sent = socket.write_vectored(&[IoSlice::new(&header), IoSlice::new(payload)]);
    let sent = sent.expect("sent");
    if sent < HEADER_BYTES {
        socket.write_all(&header[sent..]).expect("sent");
        socket.write_all(payload).expect("sent");
    } else {
        socket
            .write_all(&payload[sent - HEADER_BYTES..])
            .expect("sent");
    }
    socket.flush().expect("sent");
}

fn raw_receive(socket: &mut dyn Stream, payload: &mut [u8]) {
    let mut header = [0; HEADER_BYTES];
    let mut places = [IoSliceMut::new(&mut header), IoSliceMut::new(payload)];
    let read = socket.read_vectored(&mut places).expect("read");
    if read < HEADER_BYTES {
        socket.read_exact(&mut header[read..]).expect("read");
        socket.read_exact(payload).expect("read");
    } else {
        socket
            .read_exact(&mut payload[read - HEADER_BYTES..])
            .expect("read");
    }
    FrameHeader::decode(&header).expect("a header");
}

fn wire_receive(wires: &mut Wires, ring: usize, block: u64, places: &mut Places) {
    let waited = wires.wait_published(ring, block + 1, Deadline::NEVER, places);
    waited.expect("it comes");
}

fn wire_send(wires: &mut Wires, block: u64, payload: &[u8], places: &mut Places) {
    let needed = (block + 1).saturating_sub(places.shape.blocks);
    let waited = wires.wait_released(0, needed, Deadline::NEVER, places);
    waited.expect("it is released");
    wires.send(0, block + 1, payload, places).expect("sent");
}

/// The time one way and the processor time of one side.
fn summary(mut latencies_ns: Vec<u64>, cpu_ns: u64, frames: usize) -> String {
    latencies_ns.sort_unstable();
    let at = |part: f64| latencies_ns[((latencies_ns.len() - 1) as f64 * part) as usize];
    format!("{} {} {}", at(0.5), at(0.99), cpu_ns / frames as u64)
}

/// What a peer does that is sent a block every millisecond. Nobody keeps such a side busy, so that it has no core of its own.
const PACED_PEER: &str = "paced";
/// Wires sleep as soon as nothing comes.
const SLEEPS_VARIABLE: &str = "ZBMD_WIRE_SLEEPS";
/// The core of the peer, for its process.
const PEER_CORE_VARIABLE: &str = "ZBMD_WIRE_PEER_CORE";

/// The cores that both sides have.
#[derive(Clone, Copy)]
struct Cores {
    all: CpuSet,
    own: usize,
    peer: usize,
}

impl Cores {
    /// The first of those that this process may use for itself, the last one for its peers.
    fn new() -> Self {
        let all = sched_getaffinity(None).expect("this thread's");
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
        let own = cores.next().expect("this thread runs");
        let peer = cores.next_back().unwrap_or(own);
        Self { all, own, peer }
    }
}

fn tie_to(core: usize) {
    let mut one = CpuSet::new();
    one.set(core);
    sched_setaffinity(None, &one).expect("a core of ours");
}

// The other side: a process of its own.

fn serve(what: &str, carrier: Carrier, shape: Shape, address: &str) {
    let listener = TcpListener::bind(address).expect("bound");
    println!("{}", listener.local_addr().expect("an address"));
    let accept = || {
        let socket = listener.accept().expect("accepted").0;
        socket.set_nodelay(true).expect("set");
        socket
    };
    match (what, carrier.is_wire()) {
        ("echo", false) => {
            let mut stream = carrier.accept_stream(accept());
            let mut payload = vec![0; shape.bytes];
            for count in 0..ROUND_TRIPS {
                raw_receive(&mut *stream, &mut payload);
                raw_send(&mut *stream, count as u64, &payload);
            }
        }
        ("echo", true) => {
            let there = carrier.accept_connection(accept());
            echo(there, carrier.accept_connection(accept()), shape);
        }
        ("sink", false) => {
            let mut stream = carrier.accept_stream(accept());
            // Into as many places: a program that keeps what comes does not find its memory in the cache either.
            let mut places = Places::new(shape);
            for count in 0..BULK_FRAMES as u64 {
                raw_receive(&mut *stream, places.place(0, count, shape.bytes));
            }
            stream.write_all(&[1]).expect("sent");
            stream.flush().expect("sent");
        }
        ("sink", true) => {
            let mut wires = one_way(carrier.accept_connection(accept()), Side::Receives, shape);
            let mut places = Places::new(shape);
            for block in 0..BULK_FRAMES as u64 {
                wire_receive(&mut wires, 0, block, &mut places);
                wires.release(0, block + 1).expect("released");
            }
            wires.finish(&mut places).expect("finished");
        }
        (PACED_PEER, false) => {
            let mut stream = carrier.accept_stream(accept());
            let mut payload = vec![0; shape.bytes];
            paced_sink(|_| {
                raw_receive(&mut *stream, &mut payload);
                u64::from_le_bytes(payload[..8].try_into().expect("8 bytes"))
            });
        }
        (PACED_PEER, true) => {
            let mut wires = one_way(carrier.accept_connection(accept()), Side::Receives, shape);
            let mut places = Places::new(shape);
            paced_sink(|block| {
                wire_receive(&mut wires, 0, block, &mut places);
                let stamp = &places.block(block)[..8];
                let stamp = u64::from_le_bytes(stamp.try_into().expect("8 bytes"));
                wires.release(0, block + 1).expect("released");
                stamp
            });
            wires.finish(&mut places).expect("finished");
        }
        (other, _) => panic!("no such peer: {other}"),
    }
}

fn echo(there: Connection, back: Connection, shape: Shape) {
    let mut wires = both_ways(there, back, true, shape);
    let mut places = Places::new(shape);
    let payload = vec![0; shape.bytes];
    for block in 0..ROUND_TRIPS as u64 {
        wire_receive(&mut wires, 0, block, &mut places);
        wires.release(0, block + 1).expect("released");
        let needed = (block + 1).saturating_sub(shape.blocks);
        let waited = wires.wait_released(1, needed, Deadline::NEVER, &mut places);
        waited.expect("released");
        wires
            .send(1, block + 1, &payload, &mut places)
            .expect("sent");
    }
    wires.finish(&mut places).expect("finished");
}

fn one_way(connection: Connection, side: Side, shape: Shape) -> Wires {
    let mut wires = wires();
    let added = wires.add(connection, "the other side".to_owned(), side, shape.ring(0));
    added.expect("added");
    wires
}

fn paced_sink(mut receive: impl FnMut(u64) -> u64) {
    let mut latencies_ns = Vec::with_capacity(PACED_FRAMES);
    let before_ns = thread_cpu_ns();
    for block in 0..PACED_FRAMES as u64 {
        let sent_ns = receive(block);
        latencies_ns.push(monotonic_ns() - sent_ns);
    }
    let cpu_ns = thread_cpu_ns() - before_ns;
    println!("{}", summary(latencies_ns, cpu_ns, PACED_FRAMES));
}

/// The peer's process, and where it listens.
struct Peer {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    address: SocketAddr,
}

impl Peer {
    fn start(place: &Place, what: &str, carrier: Carrier, shape: Shape) -> Self {
        let exe = std::env::current_exe().expect("this program");
        let mut command = match place.namespace {
            Some(namespace) => namespace.command(&exe),
            None => Command::new(exe),
        };
        command.env(carrier::FOLDER_VARIABLE, carrier::certificate_folder());
        if what != PACED_PEER {
            command.env(PEER_CORE_VARIABLE, place.cores.peer.to_string());
        }
        command.args([
            "peer",
            what,
            carrier.word(),
            &shape.bytes.to_string(),
            &shape.blocks.to_string(),
            &place.address,
        ]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("an address");
        let address = line.trim().parse().expect("an address");
        Self {
            child,
            lines,
            address,
        }
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).expect("connected");
        socket.set_nodelay(true).expect("set");
        socket
    }

    fn finish(mut self) -> String {
        let mut text = String::new();
        self.lines.read_to_string(&mut text).expect("read");
        assert!(self.child.wait().expect("waited for").success());
        text
    }
}

/// Where the peer runs.
struct Place<'a> {
    name: &'static str,
    namespace: Option<&'a Namespace>,
    address: String,
    cores: Cores,
}

/// Microseconds of a round trip.
fn round_trip_us(place: &Place, carrier: Carrier, shape: Shape) -> f64 {
    let peer = Peer::start(place, "echo", carrier, shape);
    let mut payload = vec![0; shape.bytes];
    let elapsed_ns = if carrier.is_wire() {
        let there = carrier.dial_connection(peer.connect());
        let back = carrier.dial_connection(peer.connect());
        let mut wires = both_ways(there, back, false, shape);
        let mut places = Places::new(shape);
        let start_ns = monotonic_ns();
        for block in 0..ROUND_TRIPS as u64 {
            wire_send(&mut wires, block, &payload, &mut places);
            wire_receive(&mut wires, 1, block, &mut places);
            wires.release(1, block + 1).expect("released");
        }
        let elapsed_ns = monotonic_ns() - start_ns;
        wires.finish(&mut places).expect("finished");
        elapsed_ns
    } else {
        let mut stream = carrier.dial_stream(peer.connect());
        let start_ns = monotonic_ns();
        for count in 0..ROUND_TRIPS {
            raw_send(&mut *stream, count as u64, &payload);
            raw_receive(&mut *stream, &mut payload);
        }
        monotonic_ns() - start_ns
    };
    peer.finish();
    elapsed_ns as f64 / ROUND_TRIPS as f64 / 1e3
}

/// Gigabytes in a second.
fn throughput(place: &Place, carrier: Carrier, shape: Shape) -> f64 {
    let peer = Peer::start(place, "sink", carrier, shape);
    let payload = vec![1; shape.bytes];
    let elapsed_ns = if carrier.is_wire() {
        let connection = carrier.dial_connection(peer.connect());
        let mut wires = one_way(connection, Side::Sends, shape);
        let mut places = Places::new(shape);
        let start_ns = monotonic_ns();
        for block in 0..BULK_FRAMES as u64 {
            wire_send(&mut wires, block, &payload, &mut places);
        }
        wires.finish(&mut places).expect("finished");
        monotonic_ns() - start_ns
    } else {
        let mut stream = carrier.dial_stream(peer.connect());
        let start_ns = monotonic_ns();
        for count in 0..BULK_FRAMES {
            raw_send(&mut *stream, count as u64, &payload);
        }
        stream.read_exact(&mut [0]).expect("read");
        monotonic_ns() - start_ns
    };
    peer.finish();
    (shape.bytes * BULK_FRAMES) as f64 / elapsed_ns as f64
}

/// One way p50 and p99, processor time of the sender and of the receiver for each frame, all in microseconds.
fn paced(place: &Place, carrier: Carrier, shape: Shape) -> [f64; 4] {
    let peer = Peer::start(place, PACED_PEER, carrier, shape);
    let mut payload = vec![0; shape.bytes];
    let cpu_ns = if carrier.is_wire() {
        let connection = carrier.dial_connection(peer.connect());
        let mut wires = one_way(connection, Side::Sends, shape);
        let mut places = Places::new(shape);
        let cpu_ns = paced_source(&mut payload, |block, payload| {
            wire_send(&mut wires, block, payload, &mut places);
        });
        wires.finish(&mut places).expect("finished");
        cpu_ns
    } else {
        let mut stream = carrier.dial_stream(peer.connect());
        paced_source(&mut payload, |block, payload| {
            raw_send(&mut *stream, block, payload);
        })
    };
    let text = peer.finish();
    let mut numbers = text
        .split_whitespace()
        .map(|n| n.parse::<f64>().expect("a number"));
    let [p50, p99, receive] = std::array::from_fn(|_| numbers.next().expect("three") / 1e3);
    [p50, p99, cpu_ns as f64 / PACED_FRAMES as f64 / 1e3, receive]
}

/// Sends a block now and then; the processor time that this takes.
fn paced_source(payload: &mut [u8], mut send: impl FnMut(u64, &[u8])) -> u64 {
    let mut cpu_ns = 0;
    for block in 0..PACED_FRAMES as u64 {
        std::thread::sleep(PACE);
        let before_ns = thread_cpu_ns();
        payload[..8].copy_from_slice(&monotonic_ns().to_le_bytes());
        send(block, payload);
        cpu_ns += thread_cpu_ns() - before_ns;
    }
    cpu_ns
}

/// A wire and what it is compared with, and the goals of the ratio between them.
struct Comparison {
    rival: Carrier,
    wire: Carrier,
    max_round_trip_ratio: f64,
    min_throughput_ratio: f64,
}

const COMPARISONS: [Comparison; 3] = [
    Comparison {
        rival: Carrier::Tcp,
        wire: Carrier::PlainWire,
        max_round_trip_ratio: 1.25,
        min_throughput_ratio: 0.8,
    },
    Comparison {
        rival: Carrier::Rustls,
        wire: Carrier::TlsWire,
        max_round_trip_ratio: 1.3,
        min_throughput_ratio: 0.9,
    },
    Comparison {
        rival: Carrier::PlainWire,
        wire: Carrier::UcxWire,
        max_round_trip_ratio: 1.0,
        min_throughput_ratio: 1.0,
    },
];

impl Comparison {
    /// Both in turns; the medians.
    fn in_turns(&self, mut measure: impl FnMut(Carrier) -> f64) -> (f64, f64) {
        let (mut rivals, mut wires) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            rivals.push(measure(self.rival));
            wires.push(measure(self.wire));
        }
        (median(rivals), median(wires))
    }

    fn measure(&self, place: &Place) {
        let name = place.name;
        let (rival_name, wire_name) = (self.rival.name(), self.wire.name());
        tie_to(place.cores.own);
        let (rival, wire) = self.in_turns(|carrier| round_trip_us(place, carrier, SMALL));
        let (ratio, goal) = (wire / rival, self.max_round_trip_ratio);
        println!(
            "{name}: 64 B round trip: {rival_name} {rival:.1} us, {wire_name} {wire:.1} us, {ratio:.2} x (goal: at most {goal})"
        );
        for shape in BULK {
            let (rival, wire) = self.in_turns(|carrier| throughput(place, carrier, shape));
            let (ratio, goal) = (wire / rival, self.min_throughput_ratio);
            let blocks = shape.blocks;
            println!(
                "{name}: 64 KiB, {blocks} places: {rival_name} {rival:.2} GB/s, {wire_name} {wire:.2} GB/s, {ratio:.2} x (goal: at least {goal})"
            );
        }
        sched_setaffinity(None, &place.cores.all).expect("our own cores");
        for carrier in [self.rival, self.wire] {
            let runs: Vec<[f64; 4]> = (0..3).map(|_| paced(place, carrier, PACED)).collect();
            let [p50, p99, send, receive] =
                std::array::from_fn(|i| median(runs.iter().map(|run| run[i]).collect()));
            let what = carrier.name();
            println!(
                "{name}: 4 KiB each ms, {what}: one way p50 {p50:.0} us, p99 {p99:.0} us, processor {send:.1} + {receive:.1} us (goals of the wire: 40, 150, 20 each)"
            );
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, what, carrier, bytes, blocks, address] = arguments.as_slice()
        && role == "peer"
    {
        let carrier = Carrier::of_word(carrier).expect("a carrier");
        let bytes = bytes.parse().expect("a number");
        let shape = Shape::new(bytes, blocks.parse().expect("a number"));
        if let Ok(core) = std::env::var(PEER_CORE_VARIABLE) {
            tie_to(core.parse().expect("a number"));
        }
        return serve(what, carrier, shape, address);
    }

    let cores = Cores::new();
    let folder = carrier::certificate_folder();
    std::fs::create_dir(folder).expect("a folder of our own");
    carrier::write_certificates(folder);
    println!("load {}", load());

    let words: Vec<&String> = arguments[1..]
        .iter()
        .filter(|word| !word.starts_with("--"))
        .collect();
    let is_wanted = |rival: Carrier| words.is_empty() || words.iter().any(|w| *w == rival.word());

    // Only where the system lets us make one.
    let namespace = Namespace::make();
    for comparison in COMPARISONS.iter().filter(|c| is_wanted(c.rival)) {
        comparison.measure(&Place {
            name: "loopback",
            namespace: None,
            address: "127.0.0.1:0".to_owned(),
            cores,
        });
        if let Some(namespace) = &namespace {
            comparison.measure(&Place {
                name: "veth",
                namespace: Some(namespace),
                address: format!("{}:0", Namespace::THERE),
                cores,
            });
        }
    }

    std::fs::remove_dir_all(folder).expect("it is ours");
    println!("load {}", load());
}
