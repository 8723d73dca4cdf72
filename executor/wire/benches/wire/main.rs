//! A wire beside raw blocking TCP with the same header, and a wire in TLS beside rustls on blocking TCP, in one run: round
//! trips of 64 bytes, throughput of 64 KiB, and 4 KiB every millisecond with the time one way and the processor time of
//! each side.
//!
//! Over loopback, and between two network namespaces over veth where the system lets us make them. Each pair of figures is
//! measured in turns, so that both see the same machine. `-- rustls` measures only beside that, `-- tcp` beside TCP, and `-- wire` a wire
//! over UCX beside one over TCP, where UCX is installed: how it takes its way is up to the environment (`UCX_TLS=tcp`).

mod carrier;
#[path = "../../../../tests/src/figures.rs"]
mod figures;

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use carrier::{Carrier, Stream};
use figures::{load, median};
use rustix::event::{EventfdFlags, eventfd};
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
const BLOCKS: u64 = 4;

/// Places of one ring.
struct Places {
    bytes: Vec<u8>,
    block_bytes: usize,
}

impl Places {
    fn new(block_bytes: usize) -> Self {
        Self {
            bytes: vec![0; block_bytes * BLOCKS as usize],
            block_bytes,
        }
    }

    fn block(&self, block: u64) -> &[u8] {
        let start = (block % BLOCKS) as usize * self.block_bytes;
        &self.bytes[start..start + self.block_bytes]
    }
}

impl RingMemory for Places {
    fn place(&mut self, _: usize, first: u64, bytes: usize) -> &mut [u8] {
        let start = (first % BLOCKS) as usize * self.block_bytes;
        &mut self.bytes[start..start + bytes]
    }
}

fn ring(number: u32, bytes: usize) -> Vec<RingSpec> {
    vec![RingSpec {
        ring: number,
        token_bytes: bytes as u64,
        block_tokens: 1,
        blocks: BLOCKS,
        sends: [1].into(),
    }]
}

fn wires() -> Wires {
    let stop: OwnedFd = eventfd(0, EventfdFlags::empty()).expect("an eventfd");
    Wires::new(1, stop, false)
}

/// Two connections: tokens go one way on each.
fn both_ways(there: Connection, back: Connection, is_server: bool, bytes: usize) -> Wires {
    let mut wires = wires();
    let (first, second) = match is_server {
        true => (Side::Receives, Side::Sends),
        false => (Side::Sends, Side::Receives),
    };
    let peer = || "the other side".to_owned();
    wires
        .add(there, peer(), first, ring(0, bytes))
        .expect("added");
    wires
        .add(back, peer(), second, ring(1, bytes))
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
    let needed = (block + 1).saturating_sub(BLOCKS);
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

// The other side: a process of its own.

fn serve(what: &str, carrier: Carrier, bytes: usize, address: &str) {
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
            let mut payload = vec![0; bytes];
            for count in 0..ROUND_TRIPS {
                raw_receive(&mut *stream, &mut payload);
                raw_send(&mut *stream, count as u64, &payload);
            }
        }
        ("echo", true) => {
            let there = carrier.accept_connection(accept());
            echo(there, carrier.accept_connection(accept()), bytes);
        }
        ("sink", false) => {
            let mut stream = carrier.accept_stream(accept());
            let mut payload = vec![0; bytes];
            (0..BULK_FRAMES).for_each(|_| raw_receive(&mut *stream, &mut payload));
            stream.write_all(&[1]).expect("sent");
            stream.flush().expect("sent");
        }
        ("sink", true) => {
            let mut wires = one_way(carrier.accept_connection(accept()), Side::Receives, bytes);
            let mut places = Places::new(bytes);
            for block in 0..BULK_FRAMES as u64 {
                wire_receive(&mut wires, 0, block, &mut places);
                wires.release(0, block + 1).expect("released");
            }
            wires.finish(&mut places).expect("finished");
        }
        ("paced", false) => {
            let mut stream = carrier.accept_stream(accept());
            let mut payload = vec![0; bytes];
            paced_sink(|_| {
                raw_receive(&mut *stream, &mut payload);
                u64::from_le_bytes(payload[..8].try_into().expect("8 bytes"))
            });
        }
        ("paced", true) => {
            let mut wires = one_way(carrier.accept_connection(accept()), Side::Receives, bytes);
            let mut places = Places::new(bytes);
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

fn echo(there: Connection, back: Connection, bytes: usize) {
    let mut wires = both_ways(there, back, true, bytes);
    let mut places = Places::new(bytes);
    let payload = vec![0; bytes];
    for block in 0..ROUND_TRIPS as u64 {
        wire_receive(&mut wires, 0, block, &mut places);
        wires.release(0, block + 1).expect("released");
        let needed = (block + 1).saturating_sub(BLOCKS);
        let waited = wires.wait_released(1, needed, Deadline::NEVER, &mut places);
        waited.expect("released");
        wires
            .send(1, block + 1, &payload, &mut places)
            .expect("sent");
    }
    wires.finish(&mut places).expect("finished");
}

fn one_way(connection: Connection, side: Side, bytes: usize) -> Wires {
    let mut wires = wires();
    let added = wires.add(
        connection,
        "the other side".to_owned(),
        side,
        ring(0, bytes),
    );
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
    fn start(place: &Place, what: &str, carrier: Carrier, bytes: usize) -> Self {
        let exe = std::env::current_exe().expect("this program");
        let mut command = match place.namespace {
            Some(namespace) => namespace.command(&exe),
            None => Command::new(exe),
        };
        command.env(carrier::FOLDER_VARIABLE, carrier::certificate_folder());
        command.args([
            "peer",
            what,
            carrier.word(),
            &bytes.to_string(),
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
}

/// Microseconds of a round trip.
fn round_trip_us(place: &Place, carrier: Carrier, bytes: usize) -> f64 {
    let peer = Peer::start(place, "echo", carrier, bytes);
    let mut payload = vec![0; bytes];
    let elapsed_ns = if carrier.is_wire() {
        let there = carrier.dial_connection(peer.connect());
        let back = carrier.dial_connection(peer.connect());
        let mut wires = both_ways(there, back, false, bytes);
        let mut places = Places::new(bytes);
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
fn throughput(place: &Place, carrier: Carrier, bytes: usize) -> f64 {
    let peer = Peer::start(place, "sink", carrier, bytes);
    let payload = vec![1; bytes];
    let elapsed_ns = if carrier.is_wire() {
        let connection = carrier.dial_connection(peer.connect());
        let mut wires = one_way(connection, Side::Sends, bytes);
        let mut places = Places::new(bytes);
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
    (bytes * BULK_FRAMES) as f64 / elapsed_ns as f64
}

/// One way p50 and p99, processor time of the sender and of the receiver for each frame, all in microseconds.
fn paced(place: &Place, carrier: Carrier, bytes: usize) -> [f64; 4] {
    let peer = Peer::start(place, "paced", carrier, bytes);
    let mut payload = vec![0; bytes];
    let cpu_ns = if carrier.is_wire() {
        let connection = carrier.dial_connection(peer.connect());
        let mut wires = one_way(connection, Side::Sends, bytes);
        let mut places = Places::new(bytes);
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
        let (rival, wire) = self.in_turns(|carrier| round_trip_us(place, carrier, 64));
        let (ratio, goal) = (wire / rival, self.max_round_trip_ratio);
        println!(
            "{name}: 64 B round trip: {rival_name} {rival:.1} us, {wire_name} {wire:.1} us, {ratio:.2} x (goal: at most {goal})"
        );
        let (rival, wire) = self.in_turns(|carrier| throughput(place, carrier, 64 << 10));
        let (ratio, goal) = (wire / rival, self.min_throughput_ratio);
        println!(
            "{name}: 64 KiB: {rival_name} {rival:.2} GB/s, {wire_name} {wire:.2} GB/s, {ratio:.2} x (goal: at least {goal})"
        );
        for carrier in [self.rival, self.wire] {
            let runs: Vec<[f64; 4]> = (0..3).map(|_| paced(place, carrier, 4 << 10)).collect();
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
    if let [_, role, what, carrier, bytes, address] = arguments.as_slice()
        && role == "peer"
    {
        let carrier = Carrier::of_word(carrier).expect("a carrier");
        return serve(what, carrier, bytes.parse().expect("a number"), address);
    }
    let folder = carrier::certificate_folder();
    std::fs::create_dir(folder).expect("a folder of our own");
    carrier::write_certificates(folder);
    println!("load {}", load());
    let namespace = Namespace::make();
    let words: Vec<&String> = arguments[1..]
        .iter()
        .filter(|word| !word.starts_with("--"))
        .collect();
    let is_wanted = |rival: Carrier| words.is_empty() || words.iter().any(|w| *w == rival.word());
    for comparison in COMPARISONS.iter().filter(|c| is_wanted(c.rival)) {
        comparison.measure(&Place {
            name: "loopback",
            namespace: None,
            address: "127.0.0.1:0".to_owned(),
        });
        if let Some(namespace) = &namespace {
            comparison.measure(&Place {
                name: "veth",
                namespace: Some(namespace),
                address: format!("{}:0", Namespace::THERE),
            });
        }
    }
    std::fs::remove_dir_all(folder).expect("it is ours");
    println!("load {}", load());
}
