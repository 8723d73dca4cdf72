//! Measures the kernels of one actor on a GPU: what a call adds to a calendar, which submits all of its calls at once.

use zbmd_backends::gpu::{Calls, Device, Fault};
use zbmd_backends::op::Registry;
use zbmd_ir::{Actor, BlobId, TiSlice};

use super::measure::{Limits, Measurement, Refusal, by_turns, port_bytes};
use bytes::Bytes;

/// Calls of the longer of two submissions, whose difference is what is measured.
const CALLS: usize = 17;
/// Samples after which more would not change the median.
const MAX_SAMPLES: usize = 101;
/// Ports of the longest call.
const CALL_BYTES: u64 = 1 << 20;
/// Longer submissions need no more firings: what a call costs besides is lost in them.
const LONG_NS: u64 = 20_000_000;
const MAX_FIRINGS: u64 = 1 << 18;

/// Submissions of one and of several calls of a number of firings.
struct Size {
    one: Box<dyn Calls>,
    many: Box<dyn Calls>,
}

impl Size {
    /// Picoseconds that one call more takes; and nanoseconds of the longer submission.
    fn sample(&mut self, clock: &dyn Fn() -> u64) -> Result<(f64, u64), Fault> {
        let time = |call: &mut dyn Calls| {
            let start = clock();
            call.submit()?;
            call.wait().map(|()| clock().saturating_sub(start))
        };
        let (one, many) = (time(&mut *self.one)?, time(&mut *self.many)?);
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
) -> Result<Vec<Measurement>, Refusal> {
    let refuse = |fault: Fault| Refusal::Device(fault.to_string());
    let plan = registry.lower(actor, blobs, device.caps());
    let plan = plan.ok_or_else(|| Refusal::Device("the device has no kernel for it".to_owned()))?;
    let start = clock();
    let spent = || clock().saturating_sub(start) >= limits.budget_ns;
    let mut probed = Vec::new();
    let mut firings = 1;
    loop {
        let call = |calls| device.calls(actor, &plan, firings as usize, calls);
        let (one, many) = (call(1).map_err(refuse)?, call(CALLS).map_err(refuse)?);
        let mut size = Size { one, many };
        let (_, ns) = size.sample(clock).map_err(refuse)?;
        probed.push((firings, size));
        firings *= 8;
        let bytes = port_bytes(actor, firings);
        let fits = firings <= MAX_FIRINGS && bytes <= CALL_BYTES.min(limits.memory_bytes);
        if ns >= LONG_NS || !fits || spent() {
            break;
        }
    }
    let sample = |_, size: &mut Size| Ok(size.sample(clock).map_err(refuse)?.0);
    by_turns(vec![probed], MAX_SAMPLES, spent, sample)
}
