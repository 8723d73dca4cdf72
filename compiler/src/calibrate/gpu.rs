//! Measures the kernels of one actor on a GPU: what a call adds to a calendar, which submits all of its calls at once.

use zbmd_backends::gpu::{Calls, Device, Fault};
use zbmd_backends::kernels::KernelPlan;
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

/// Kernels of an actor for a device, by turns those of all variants that it can run; each with its name, the default
/// one without.
pub(crate) type Plans = Vec<(Option<&'static str>, KernelPlan)>;

/// The kernels of an actor in every variant that a device can run.
///
/// # Errors
/// A device without kernels for the actor, or its fault, in words.
pub(crate) fn plans(
    (registry, blobs): (&Registry, &TiSlice<BlobId, Bytes>),
    actor: &Actor,
    device: &Device,
) -> Result<Plans, String> {
    let default = registry.lower(actor, blobs, device.caps());
    let default = default.ok_or_else(|| "the device has no kernel for it".to_owned())?;
    let names: Vec<&'static str> = default.variants().iter().skip(1).copied().collect();
    let mut plans = vec![(None, default)];
    for name in names {
        let Ok(plan) = registry.lower_in(actor, blobs, device.caps(), Some(name)) else {
            continue;
        };
        if device
            .unsupported_reason(&plan)
            .map_err(|fault| fault.to_string())?
            .is_none()
        {
            plans.push((Some(name), plan));
        }
    }
    Ok(plans)
}

/// Measures calls of one firing of an actor's kernels in a row on several devices, taking turns: one device, opened in
/// several ways.
///
/// # Errors
/// The device's fault, in words.
pub(crate) fn chains(
    actor: &Actor,
    ways: &[&Device],
    plan: &KernelPlan,
    limits: &Limits,
    clock: &dyn Fn() -> u64,
) -> Result<Vec<Measurement>, Refusal> {
    let refuse = |fault: Fault| Refusal::Device(fault.to_string());
    let made = |device: &&Device| -> Result<Vec<(u64, Size)>, Refusal> {
        let call = |calls| device.calls(actor, plan, 1, calls).map_err(refuse);
        let mut size = Size {
            one: call(1)?,
            many: call(CALLS)?,
        };
        size.sample(clock).map_err(refuse)?;
        Ok(vec![(1, size)])
    };
    let probed = ways.iter().map(made).collect::<Result<Vec<_>, Refusal>>()?;
    let start = clock();
    let budget_ns = limits.budget_ns.saturating_mul(ways.len() as u64);
    let spent = || clock().saturating_sub(start) >= budget_ns;
    let sample = |_, size: &mut Size| Ok(size.sample(clock).map_err(refuse)?.0);
    by_turns(probed, MAX_SAMPLES, spent, sample)
}

/// Measures the variants of an actor's kernels on a device, taking turns.
///
/// # Errors
/// The device's fault, in words.
pub(crate) fn measure(
    actor: &Actor,
    device: &Device,
    plans: &Plans,
    limits: &Limits,
    clock: &dyn Fn() -> u64,
) -> Result<Vec<Measurement>, Refusal> {
    let refuse = |fault: Fault| Refusal::Device(fault.to_string());
    let start = clock();
    let budget_ns = limits.budget_ns.saturating_mul(plans.len() as u64);
    let spent = || clock().saturating_sub(start) >= budget_ns;
    let size = |plan: &KernelPlan, firings: u64| -> Result<(Size, u64), Refusal> {
        let call = |calls| {
            device
                .calls(actor, plan, firings as usize, calls)
                .map_err(refuse)
        };
        let mut size = Size {
            one: call(1)?,
            many: call(CALLS)?,
        };
        let (_, ns) = size.sample(clock).map_err(refuse)?;
        Ok((size, ns))
    };
    let Some(((_, default), others)) = plans.split_first() else {
        return Ok(Vec::new());
    };
    let mut probed = vec![Vec::new()];
    let mut firings = 1;
    loop {
        let (made, ns) = size(default, firings)?;
        probed[0].push((firings, made));
        firings *= 8;
        let bytes = port_bytes(actor, firings);
        let fits = firings <= MAX_FIRINGS && bytes <= CALL_BYTES.min(limits.memory_bytes);
        if ns >= LONG_NS || !fits || spent() {
            break;
        }
    }
    for (_, plan) in others {
        // The same numbers of firings, so that they compare.
        let same = probed[0]
            .iter()
            .map(|(firings, _)| Ok((*firings, size(plan, *firings)?.0)));
        let same = same.collect::<Result<Vec<_>, Refusal>>()?;
        probed.push(same);
    }
    let sample = |_, size: &mut Size| Ok(size.sample(clock).map_err(refuse)?.0);
    by_turns(probed, MAX_SAMPLES, spent, sample)
}
