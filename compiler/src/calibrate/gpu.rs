//! Measures the kernels of one actor on a GPU: what a call adds to a calendar, which submits all of its calls at once.

use zbmd_backends::gpu::{Calls, Device, Fault};
use zbmd_backends::op::Registry;
use zbmd_ir::{Actor, BlobId, TiSlice};

use super::measure::{Limits, Measurement, Refusal, fit, median, port_bytes};
use bytes::Bytes;

/// Calls of the longer of two submissions, whose difference is what is measured.
const CALLS: usize = 17;
const MIN_SAMPLES: usize = 5;
const MAX_SAMPLES: usize = 101;
/// Ports of the longest call.
const CALL_BYTES: u64 = 1 << 20;
/// Longer submissions need no more firings: what a call costs besides is lost in them.
const LONG_NS: u64 = 20_000_000;
const MAX_FIRINGS: u64 = 1 << 18;

/// Submissions of one and of several calls of a number of firings.
struct Size {
    firings: u64,
    one: Calls,
    many: Calls,
    /// Picoseconds of one call.
    samples: Vec<f64>,
}

impl Size {
    /// Picoseconds that one call more takes; and nanoseconds of the longer submission.
    fn sample(&mut self, clock: &dyn Fn() -> u64) -> Result<(f64, u64), Fault> {
        let time = |call: &mut Calls| {
            let start = clock();
            call().map(|()| clock().saturating_sub(start))
        };
        let (one, many) = (time(&mut self.one)?, time(&mut self.many)?);
        let ps = many.saturating_sub(one).max(1) as f64 * 1e3 / (CALLS - 1) as f64;
        Ok((ps, many))
    }
}

/// Measures an actor's kernels on a device.
///
/// # Errors
/// A device without kernels for the actor, or its fault, in words.
pub(crate) fn measure(
    (registry, blobs): (&Registry, &TiSlice<BlobId, Bytes>),
    actor: &Actor,
    device: &Device,
    limits: &Limits,
    clock: &dyn Fn() -> u64,
) -> Result<Measurement, Refusal> {
    let refuse = |fault: Fault| Refusal::Device(fault.to_string());
    let plan = registry.lower(actor, blobs, device.caps());
    let plan = plan.ok_or_else(|| Refusal::Device("the device has no kernel for it".to_owned()))?;
    let start = clock();
    let mut probed = Vec::new();
    let mut firings = 1;
    loop {
        let call = |calls| device.calls(actor, &plan, firings as usize, calls);
        let (one, many) = (call(1).map_err(refuse)?, call(CALLS).map_err(refuse)?);
        let mut size = Size { firings, one, many, samples: Vec::new() };
        let (_, ns) = size.sample(clock).map_err(refuse)?;
        probed.push(size);
        firings *= 8;
        let bytes = port_bytes(actor, firings);
        let fits = firings <= MAX_FIRINGS && bytes <= CALL_BYTES.min(limits.memory_bytes);
        let spent = clock().saturating_sub(start) >= limits.budget_ns;
        if ns >= LONG_NS || !fits || spent {
            break;
        }
    }
    let (middle, last) = (probed.len() / 2, probed.len() - 1);
    let chosen = probed.into_iter().enumerate();
    let mut sizes: Vec<Size> =
        chosen.filter(|(i, _)| [0, middle, last].contains(i)).map(|(_, size)| size).collect();
    loop {
        for size in &mut sizes {
            let (ps, _) = size.sample(clock).map_err(refuse)?;
            size.samples.push(ps);
        }
        let taken = sizes[0].samples.len();
        let spent = clock().saturating_sub(start) >= limits.budget_ns;
        if taken >= MAX_SAMPLES || (taken >= MIN_SAMPLES && spent) {
            break;
        }
    }
    let samples = sizes[0].samples.len() as u32;
    let (mut points, mut spread) = (Vec::with_capacity(sizes.len()), 0.0f64);
    for size in &mut sizes {
        let middle = median(&mut size.samples);
        let mut off: Vec<f64> = size.samples.iter().map(|s| (s - middle).abs()).collect();
        points.push((size.firings as f64, middle));
        spread = spread.max(100.0 * median(&mut off) / middle);
    }
    let (call_ps, firing_ps) = fit(&points);
    let spread_percent = (spread * 10.0).round() / 10.0;
    Ok(Measurement { call_ps, firing_ps, spread_percent, samples })
}
