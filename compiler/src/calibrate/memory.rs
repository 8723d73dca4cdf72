//! What the memory behind the caches gives: the bandwidth of each core while all of a machine's CPU devices use it, and
//! what a model's other weights leave in a core's cache between two calls of a kernel.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use zbmd_backends::team::Team;
use zbmd_ir::Actor;
use zbmd_ir::Value;

use super::cache::Cache;
use crate::costs::{CostKey, MeasuredCost};

/// Bytes that each thread copies from and to, where there are few of them.
const MAX_COPY_BYTES: usize = 32 << 20;
/// Bytes of all threads together.
const ALL_BYTES: usize = 1 << 30;
/// Most that is read between two calls: more than processors have in caches that cores share.
const MAX_BETWEEN_BYTES: u64 = 64 << 20;
/// Second-level cache of a core where the system does not say.
const SECOND_LEVEL_BYTES: u64 = 1 << 20;
/// Weights of a kernel from which on it matters whether they are in a cache.
const MIN_WEIGHT_BYTES: u64 = 16 << 10;
/// Distance between bytes of different cache lines.
const LINE_BYTES: usize = 64;

/// Bytes per second that each of these cores moves to and from memory while all of them do.
pub(super) fn shared_bandwidth(cores: &[Option<u32>], budget: Duration) -> u64 {
    let thread_count = cores.len().max(1);
    let copy_bytes = (ALL_BYTES / 2 / thread_count).clamp(1 << 20, MAX_COPY_BYTES);
    let barrier = Barrier::new(cores.len());
    let mut rates: Vec<u64> = std::thread::scope(|scope| {
        let spawn = |core: &Option<u32>| {
            let core = *core;
            let barrier = &barrier;
            scope.spawn(move || copy_rate(core, copy_bytes, barrier, budget))
        };
        let threads: Vec<_> = cores.iter().map(spawn).collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(rate) => rate,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    });
    rates.sort_unstable();
    rates.get(rates.len() / 2).copied().unwrap_or(1).max(1)
}

/// Bytes per second, read and written, of one thread's copies.
fn copy_rate(core: Option<u32>, copy_bytes: usize, barrier: &Barrier, budget: Duration) -> u64 {
    if let Some(core) = core {
        Team::of_cores(&[core], true);
    }
    let from = vec![1u8; copy_bytes];
    let mut to = vec![0u8; copy_bytes];
    barrier.wait();

    let start_time = Instant::now();
    let mut copies = 0u64;
    while copies < 2 || start_time.elapsed() < budget {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        copies += 1;
    }
    let moved_bytes = u128::from(copies) * 2 * copy_bytes as u128;
    let rate = moved_bytes * 1_000_000_000 / start_time.elapsed().as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The key under which the cache keeps the bandwidth of so many cores.
fn bandwidth_key(core_count: usize) -> CostKey {
    CostKey::of_text(&format!("memory bandwidth of {core_count} cores"))
}

/// What the cache has of the bandwidth, in bytes per second.
pub(super) fn cached_bandwidth(cache: &Cache, core_count: usize) -> Option<u64> {
    let cost = cache.get(bandwidth_key(core_count), None)?;
    Some(MIB_PS / cost.firing_ps.max(1))
}

/// Bytes of a MiB, times picoseconds of a second.
const MIB_PS: u64 = (1 << 20) * 1_000_000_000_000;

/// Keeps a bandwidth in the cache, as picoseconds of a MiB; what the cache will give back.
pub(super) fn store_bandwidth(cache: &mut Cache, core_count: usize, bytes_per_s: u64) -> u64 {
    let mib_ps = (MIB_PS / bytes_per_s.max(1)).max(1);
    let cost = MeasuredCost {
        op: "memory".to_owned(),
        ports: format!("{core_count} cores"),
        call_ps: 0,
        firing_ps: mib_ps,
        spread_percent: 0.0,
        samples: 1,
        variant: None,
    };
    cache.insert(bandwidth_key(core_count), cost);
    MIB_PS / mib_ps
}

/// The weights of a model's other kernels, read between two calls of one as they are in a run: what the core's cache
/// then still has of this one's weights is what it has in a run.
pub(super) struct OtherWeights {
    bytes: Vec<u8>,
}

impl OtherWeights {
    /// `None` where all weights of a model stay in the second-level cache of this core.
    pub(super) fn new(model_bytes: u64, core: Option<u32>) -> Option<Self> {
        let cache_bytes = second_level_bytes(core.unwrap_or(0)).unwrap_or(SECOND_LEVEL_BYTES);
        if model_bytes <= cache_bytes {
            return None;
        }
        let len = usize::try_from(model_bytes.min(MAX_BETWEEN_BYTES)).ok()?;
        Some(Self {
            bytes: vec![1; len],
        })
    }

    /// Reads them all.
    pub(super) fn read(&self) {
        touch(&self.bytes);
    }
}

/// Whether an actor has so many weights that it matters where they are.
pub(super) fn has_many_weights(actor: &Actor) -> bool {
    let weights = actor.params.values().map(|value| match value {
        Value::Tensor(_, token) => token.bytes(),
        _ => 0,
    });
    weights.fold(0, u64::saturating_add) >= MIN_WEIGHT_BYTES
}

/// Reads a byte of each cache line.
pub(super) fn touch(bytes: &[u8]) {
    let lines = bytes.iter().step_by(LINE_BYTES);
    black_box(lines.fold(0u8, |sum, &byte| sum ^ byte));
}

/// The second-level cache of a core, as Linux describes it: `1024K`.
fn second_level_bytes(core: u32) -> Option<u64> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/cache/index2/size");
    parse_kib(&std::fs::read_to_string(path).ok()?)
}

fn parse_kib(text: &str) -> Option<u64> {
    let kib: u64 = text.trim().strip_suffix('K')?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_caches() {
        assert_eq!(parse_kib("1024K\n"), Some(1 << 20));
        assert_eq!(parse_kib("1024"), None);
        assert_eq!(parse_kib(""), None);
    }

    #[test]
    fn weights_that_stay_in_the_cache_are_not_read_between_calls() {
        assert!(OtherWeights::new(4 << 10, None).is_none());
        let large = OtherWeights::new(1 << 40, None).expect("no cache has a TiB");
        assert_eq!(large.bytes.len() as u64, MAX_BETWEEN_BYTES);
    }

    #[test]
    fn cores_that_copy_have_a_bandwidth() {
        assert!(shared_bandwidth(&[None, None], Duration::ZERO) > 1);
    }
}
