//! What a hand-over from one core to another takes: the time until the other sees it, and that of the bytes on both
//! sides. Links between CPU devices, sources and sinks are made of hand-overs; kernels are measured without them.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use zbmd_backends::devices::detect;
use zbmd_backends::team::Team;
use zbmd_ir::{Actor, Role};

use super::cache::Cache;
use crate::costs::{CostKey, MeasuredCost};

/// Bytes of a long hand-over: those of a block's channel, in a core's own cache on either side.
const LONG_BYTES: usize = 64 << 10;
/// Bytes of a short one: a cache line.
const SHORT_BYTES: usize = 64;
/// Cache lines that go from core to core for each call of a source or a sink: the count of tokens written, that of tokens
/// taken, and the first line of tokens.
pub(super) const STREAM_LINES: u64 = 3;
/// Hand-overs of each length that are made however little time there is.
const MIN_SAMPLES: usize = 20;
/// Hand-overs of each length after which more would not change the median.
const MAX_SAMPLES: usize = 501;
/// Looks at a flag after which a thread lets others run: its partner may be waiting for this core.
const MAX_SPINS: u32 = 10_000;

/// What a hand-over between two cores of a kind takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// Picoseconds until the reader has seen a cache line that was written for it.
    pub latency_ps: u64,
    /// Picoseconds for the writer to write a KiB where the reader last read.
    pub write_kib_ps: u64,
    /// Picoseconds for the reader to read a KiB that the writer has just written.
    pub read_kib_ps: u64,
    /// Hand-overs of each length that were measured.
    pub samples: u32,
}

impl HandOver {
    /// Bytes per second of a transfer, the work on both sides together.
    pub fn bytes_per_s(&self) -> u64 {
        let kib_ps = self.write_kib_ps.saturating_add(self.read_kib_ps).max(1);
        1024 * 1_000_000_000_000 / kib_ps
    }

    /// Whole nanoseconds of the latency, at least 1.
    pub fn latency_ns(&self) -> u64 {
        self.latency_ps.div_ceil(1000).max(1)
    }

    /// What a source or a sink costs by it: tokens come from a thread of the host on another core, or go to one.
    pub(super) fn stream_cost(&self, actor: &Actor) -> MeasuredCost {
        let port_bytes = |rate: u64, token_bytes: u64| rate.saturating_mul(token_bytes);
        let read_bytes = actor
            .inputs
            .iter()
            .map(|p| port_bytes(p.rate, p.token.bytes()));
        let written_bytes = actor
            .outputs
            .iter()
            .map(|p| port_bytes(p.rate, p.token.bytes()));
        let bytes: u64 = read_bytes.chain(written_bytes).fold(0, u64::saturating_add);
        let kib_ps = match actor.role {
            Role::Source => self.read_kib_ps,
            _ => self.write_kib_ps,
        };
        let firing_ps = u128::from(bytes) * u128::from(kib_ps) / 1024;
        MeasuredCost {
            op: actor.op.clone(),
            ports: crate::costs::ports_text(actor),
            call_ps: self.latency_ps.saturating_mul(STREAM_LINES),
            firing_ps: u64::try_from(firing_ps)
                .unwrap_or(u64::MAX)
                .min(crate::costs::MAX_PS),
            spread_percent: 0.0,
            samples: self.samples,
            variant: None,
        }
    }

    /// What the cache has of it.
    pub(super) fn cached(cache: &Cache) -> Option<Self> {
        let written = cache.get(Side::Write.key(), None)?;
        let read = cache.get(Side::Read.key(), None)?;
        Some(Self {
            latency_ps: written.call_ps,
            write_kib_ps: written.firing_ps,
            read_kib_ps: read.firing_ps,
            samples: written.samples,
        })
    }

    /// Keeps it in the cache.
    pub(super) fn store(&self, cache: &mut Cache) {
        for (side, kib_ps) in [
            (Side::Write, self.write_kib_ps),
            (Side::Read, self.read_kib_ps),
        ] {
            let cost = MeasuredCost {
                op: Side::OP.to_owned(),
                ports: side.ports().to_owned(),
                call_ps: self.latency_ps,
                firing_ps: kib_ps,
                spread_percent: 0.0,
                samples: self.samples,
                variant: None,
            };
            cache.insert(side.key(), cost);
        }
    }
}

/// The two sides of a hand-over, as the cache names them: as an op of its own whose firing is a KiB.
#[derive(Clone, Copy)]
enum Side {
    Write,
    Read,
}

impl Side {
    /// No actor has this op, so no kernel has the keys.
    const OP: &'static str = "hand-over";

    fn ports(self) -> &'static str {
        match self {
            Side::Write => "write",
            Side::Read => "read",
        }
    }

    fn key(self) -> CostKey {
        CostKey::of_text(&format!("{} {}", Self::OP, self.ports()))
    }
}

/// Measures hand-overs from one core to another; any two cores of this process where they are not named.
///
/// # Errors
/// Why there is nothing to measure.
pub(super) fn measure(
    writer_core: Option<u32>,
    reader_core: Option<u32>,
    budget: Duration,
) -> Result<HandOver, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        return Err("this process may use one core only".to_owned());
    }
    if let (Some(writer), Some(reader)) = (writer_core, reader_core)
        && writer == reader
    {
        return Err(format!("both devices are on core {writer}"));
    }

    let (writer_core, reader_core) = two_cores(writer_core, reader_core);
    let exchange = Exchange::new();
    let samples = std::thread::scope(|scope| {
        scope.spawn(|| exchange.answer(reader_core));
        let writer = scope.spawn(|| exchange.ask(writer_core, budget));
        match writer.join() {
            Ok(samples) => samples,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    Ok(samples.summarise())
}

/// Names the cores that are not named, so that they are two: threads that are tied to none may share one on a busy machine, and
/// wait for each other then in place of handing over.
fn two_cores(writer: Option<u32>, reader: Option<u32>) -> (Option<u32>, Option<u32>) {
    let own_machine = detect();
    let own_cores = own_machine.devices.iter().flat_map(|device| &device.cores);
    let mut others = own_cores
        .copied()
        .filter(|core| ![writer, reader].contains(&Some(*core)));
    let writer = writer.or_else(|| others.next());
    (writer, reader.or_else(|| others.next()))
}

/// Ties this thread to a core, if one is named.
fn pin(core: Option<u32>) {
    if let Some(core) = core {
        Team::of_cores(&[core], true);
    }
}

/// Whose turn it is.
mod turn {
    pub(super) const WRITER: u32 = 0;
    pub(super) const READER: u32 = 1;
    pub(super) const ENDED: u32 = 2;
}

/// A buffer that two threads use by turns.
struct Exchange {
    turn: AtomicU32,
    /// Bytes handed over this time.
    bytes: AtomicU64,
    /// Nanoseconds that reading them took.
    read_ns: AtomicU64,
    /// Never contended: the turn decides who may lock it.
    buffer: Mutex<Vec<u8>>,
}

/// What was measured, in nanoseconds.
#[derive(Default)]
struct Samples {
    short_rounds: Vec<u64>,
    long_writes: Vec<u64>,
    long_reads: Vec<u64>,
}

impl Exchange {
    fn new() -> Self {
        Self {
            turn: AtomicU32::new(turn::WRITER),
            bytes: AtomicU64::new(0),
            read_ns: AtomicU64::new(0),
            buffer: Mutex::new(vec![0; LONG_BYTES]),
        }
    }

    /// The writer's side: short and long hand-overs by turns.
    fn ask(&self, core: Option<u32>, budget: Duration) -> Samples {
        pin(core);
        let own_bytes = vec![1u8; LONG_BYTES];
        let mut samples = Samples::default();
        let start_time = Instant::now();
        // The first few touch the memory for the first time.
        for _ in 0..2 {
            self.hand_over(&own_bytes);
        }

        while samples.long_writes.len() < MIN_SAMPLES
            || (samples.long_writes.len() < MAX_SAMPLES && start_time.elapsed() < budget)
        {
            let long = self.hand_over(&own_bytes);
            samples.long_writes.push(long.write_ns);
            samples
                .long_reads
                .push(self.read_ns.load(Ordering::Relaxed));
            let short = self.hand_over(&own_bytes[..SHORT_BYTES]);
            samples.short_rounds.push(short.round_ns);
        }

        self.turn.store(turn::ENDED, Ordering::Release);
        samples
    }

    /// One hand-over, and the reader's answer to it.
    fn hand_over(&self, own_bytes: &[u8]) -> Round {
        let start_time = Instant::now();
        self.buffer()[..own_bytes.len()].copy_from_slice(own_bytes);
        let write_ns = elapsed_ns(start_time);

        self.bytes.store(own_bytes.len() as u64, Ordering::Relaxed);
        self.turn.store(turn::READER, Ordering::Release);
        self.wait_while(turn::READER);
        Round {
            write_ns,
            round_ns: elapsed_ns(start_time),
        }
    }

    /// The reader's side, until the writer ends.
    fn answer(&self, core: Option<u32>) {
        pin(core);
        let mut own_bytes = vec![0u8; LONG_BYTES];
        while self.wait_while(turn::WRITER) != turn::ENDED {
            let bytes = self.bytes.load(Ordering::Relaxed) as usize;
            let start_time = Instant::now();
            own_bytes[..bytes].copy_from_slice(&self.buffer()[..bytes]);
            // Nobody uses what was read, which is no reason to leave it out.
            black_box(&mut own_bytes);
            self.read_ns
                .store(elapsed_ns(start_time), Ordering::Relaxed);
            self.turn.store(turn::WRITER, Ordering::Release);
        }
    }

    fn buffer(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is another's turn; whose.
    fn wait_while(&self, own_wait: u32) -> u32 {
        let mut spins = 0u32;
        loop {
            let now = self.turn.load(Ordering::Acquire);
            if now != own_wait {
                return now;
            }
            spins += 1;
            if spins.is_multiple_of(MAX_SPINS) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// Times of one hand-over.
struct Round {
    write_ns: u64,
    /// From before the writing to the reader's answer.
    round_ns: u64,
}

impl Samples {
    fn summarise(mut self) -> HandOver {
        let kib = (LONG_BYTES / 1024) as u64;
        HandOver {
            latency_ps: undisturbed(&mut self.short_rounds) * 1000 / 2,
            write_kib_ps: (median(&mut self.long_writes) * 1000 / kib).max(1),
            read_kib_ps: (median(&mut self.long_reads) * 1000 / kib).max(1),
            samples: self.long_writes.len() as u32,
        }
    }
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// What the quickest tenth of hand-overs took at most. On a busy machine most of them wait until the other thread is given
/// a core, which is no property of the cores.
fn undisturbed(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 10).copied().unwrap_or(0)
}

fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_handed_bytes_by_another() {
        match measure(None, None, Duration::ZERO) {
            Ok(found) => {
                assert!(
                    found.latency_ps > 0 && found.samples >= MIN_SAMPLES as u32,
                    "{found:?}"
                );
                assert!(found.bytes_per_s() > 0, "{found:?}");
            }
            Err(reason) => assert_eq!(reason, "this process may use one core only"),
        }
    }

    #[test]
    fn cores_that_are_not_named_are_two() {
        let named = (Some(7), Some(9));
        assert_eq!(two_cores(named.0, named.1), named);
        let (writer, reader) = two_cores(None, None);
        assert!(writer.is_none() || writer != reader, "{writer:?}");
        // A named core is not taken twice.
        assert_ne!(two_cores(writer, None).1, writer.or(Some(u32::MAX)));
    }

    #[test]
    fn one_core_hands_nothing_over() {
        let refusal = measure(Some(0), Some(0), Duration::ZERO).expect_err("the same core");
        let is_known = [
            "both devices are on core 0",
            "this process may use one core only",
        ];
        assert!(is_known.contains(&refusal.as_str()), "{refusal}");
    }

    #[test]
    fn medians_become_costs_and_waits_for_a_core_do_not() {
        let mut short_rounds = vec![4_000_000; 15];
        short_rounds.extend([200; 5]);
        let samples = Samples {
            short_rounds,
            long_writes: vec![6_400, 64_000, 6_400],
            long_reads: vec![12_800; 3],
        };
        let found = samples.summarise();
        let expected = HandOver {
            latency_ps: 100_000,
            write_kib_ps: 100_000,
            read_kib_ps: 200_000,
            samples: 3,
        };
        assert_eq!(found, expected);
        assert_eq!(found.latency_ns(), 100);
        // 1 KiB in 300 ns.
        assert_eq!(found.bytes_per_s(), 3_413_333_333);
    }
}
