//! Measures the kernels of one actor on a GPU: what a call adds to a calendar, which submits all of its calls at once.

use zbmd_backends::gpu::{Calls, Device, Fault};
use zbmd_backends::kernels::KernelPlan;
use zbmd_ir::Actor;

use super::KernelSources;
use super::measure::{Limits, Measurement, Probe, Refusal, measure_in_turns, port_bytes};

/// Calls of the longer of two submissions, whose difference is what is measured.
const CALLS: usize = 17;
/// Samples after which more would not change the median.
const MAX_SAMPLES: usize = 101;
/// Ports of the longest call.
const CALL_BYTES: u64 = 1 << 20;
/// Longer submissions need no more firings: the fixed cost of a call does not matter in them.
const LONG_NS: u64 = 20_000_000;
const MAX_FIRINGS: u64 = 1 << 18;

/// Submissions of one and of several calls of a number of firings.
struct Submissions {
    one: Box<dyn Calls>,
    many: Box<dyn Calls>,
}

/// What a pair of submissions took.
struct Sample {
    /// Picoseconds that one more call takes.
    call_ps: f64,
    /// Nanoseconds of the longer submission.
    many_ns: u64,
}

impl Submissions {
    fn new(
        device: &Device,
        actor: &Actor,
        plan: &KernelPlan,
        firings: u64,
    ) -> Result<Self, Refusal> {
        let firings = firings as usize;
        Ok(Self {
            one: device.calls(actor, plan, firings, 1).map_err(refuse)?,
            many: device.calls(actor, plan, firings, CALLS).map_err(refuse)?,
        })
    }

    fn sample(&mut self, clock: &dyn Fn() -> u64) -> Result<Sample, Refusal> {
        let one_ns = submission_ns(&mut *self.one, clock)?;
        let many_ns = submission_ns(&mut *self.many, clock)?;
        let difference_ns = many_ns.saturating_sub(one_ns).max(1);
        Ok(Sample {
            call_ps: difference_ns as f64 * 1e3 / (CALLS - 1) as f64,
            many_ns,
        })
    }
}

/// Nanoseconds from a submission to its end.
fn submission_ns(calls: &mut dyn Calls, clock: &dyn Fn() -> u64) -> Result<u64, Refusal> {
    let start_ns = clock();
    calls.submit().map_err(refuse)?;
    calls.wait().map_err(refuse)?;
    Ok(clock().saturating_sub(start_ns))
}

fn refuse(fault: Fault) -> Refusal {
    Refusal::Device(fault.to_string())
}

/// Kernels of an actor in one variant.
pub(super) struct VariantPlan {
    /// None for the default one.
    pub(super) variant: Option<&'static str>,
    plan: KernelPlan,
}

/// The kernels of an actor in every variant that a device can run, the default one first.
///
/// # Errors
/// A device without kernels for the actor, or its fault, in words.
pub(super) fn variant_plans(
    sources: &KernelSources<'_>,
    actor: &Actor,
    device: &Device,
) -> Result<Vec<VariantPlan>, String> {
    let KernelSources {
        registry, blobs, ..
    } = sources;
    let default_plan = registry.lower(actor, blobs, device.caps());
    let default_plan = default_plan.ok_or("the device has no kernel for it")?;
    let other_variants: Vec<&'static str> =
        default_plan.variants().iter().skip(1).copied().collect();

    let mut plans = vec![VariantPlan {
        variant: None,
        plan: default_plan,
    }];
    for name in other_variants {
        // Not every variant exists for every shape, and not every device can run all that exist.
        let Ok(plan) = registry.lower_in(actor, blobs, device.caps(), Some(name)) else {
            continue;
        };
        let refusal_reason = device
            .unsupported_reason(&plan)
            .map_err(|fault| fault.to_string())?;
        if refusal_reason.is_none() {
            let variant = Some(name);
            plans.push(VariantPlan { variant, plan });
        }
    }

    Ok(plans)
}

/// Measures calls of one firing of an actor's kernels in a row on several devices, taking turns: one device, opened in
/// several ways.
///
/// # Errors
/// The device's fault.
pub(super) fn measure_chains(
    actor: &Actor,
    ways: &[&Device],
    plan: &KernelPlan,
    limits: &Limits,
    clock: &dyn Fn() -> u64,
) -> Result<Vec<Measurement>, Refusal> {
    let mut probed = Vec::with_capacity(ways.len());
    for device in ways {
        let mut call = Submissions::new(device, actor, plan, 1)?;
        // The first submission is slower than all others.
        call.sample(clock)?;
        probed.push(vec![Probe { firings: 1, call }]);
    }

    let start_ns = clock();
    let budget_ns = limits.budget_ns.saturating_mul(ways.len() as u64);
    let is_spent = || clock().saturating_sub(start_ns) >= budget_ns;
    measure_in_turns(probed, MAX_SAMPLES, is_spent, |_, call| {
        Ok(call.sample(clock)?.call_ps)
    })
}

/// Measures the variants of an actor's kernels on a device, taking turns.
///
/// # Errors
/// The device's fault.
pub(super) fn measure(
    actor: &Actor,
    device: &Device,
    plans: &[VariantPlan],
    limits: &Limits,
    clock: &dyn Fn() -> u64,
) -> Result<Vec<Measurement>, Refusal> {
    let Some((default, others)) = plans.split_first() else {
        return Ok(Vec::new());
    };
    let start_ns = clock();
    let budget_ns = limits.budget_ns.saturating_mul(plans.len() as u64);
    let is_spent = || clock().saturating_sub(start_ns) >= budget_ns;

    let mut default_probes = Vec::new();
    let mut firings = 1;
    loop {
        let mut call = Submissions::new(device, actor, &default.plan, firings)?;
        let sample = call.sample(clock)?;
        default_probes.push(Probe { firings, call });

        // The steps are large: only the first, the middle and the last number of firings are measured.
        firings *= 8;
        let next_bytes = port_bytes(actor, firings);
        let fits_memory =
            firings <= MAX_FIRINGS && next_bytes <= CALL_BYTES.min(limits.memory_bytes);
        if sample.many_ns >= LONG_NS || !fits_memory || is_spent() {
            break;
        }
    }

    let mut probed = vec![default_probes];
    for variant in others {
        // The same numbers of firings, so that they compare.
        let mut probes = Vec::with_capacity(probed[0].len());
        for &Probe { firings, .. } in &probed[0] {
            let mut call = Submissions::new(device, actor, &variant.plan, firings)?;
            call.sample(clock)?;
            probes.push(Probe { firings, call });
        }

        probed.push(probes);
    }

    measure_in_turns(probed, MAX_SAMPLES, is_spent, |_, call| {
        Ok(call.sample(clock)?.call_ps)
    })
}
