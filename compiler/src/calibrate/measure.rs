//! Measures one kernel: calls of several numbers of firings, and the line through their medians.

use half::{bf16, f16};
use zbmd_backends::call::Call;
use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_ir::{Actor, DType};

/// Samples of each number of firings that are taken however little time there is.
const MIN_SAMPLES: usize = 5;
/// Samples after which more would not change the median: what is left of the budget is given back.
const MAX_SAMPLES: usize = 1001;
/// Length of a sample: long beside the clock's resolution, short beside the system's time slices.
const SAMPLE_NS: u64 = 20_000;
/// Calls longer than this need no more firings: what a call costs besides is lost in them.
const LONG_CALL_NS: u64 = 1_000_000;
/// Ports of the longest call: blocks of a calendar stay in a core's own cache, and so shall these.
const CALL_BYTES: u64 = 256 << 10;
/// Memory of one firing beyond which nothing is measured.
const MAX_FIRING_BYTES: u64 = 1 << 30;
/// Calls in one sample, for clocks that stand still.
const MAX_CALLS: u64 = 1 << 22;
const MAX_FIRINGS: u64 = 1 << 20;

/// What to measure.
pub(crate) struct Task<'a> {
    pub(crate) actor: &'a Actor,
    pub(crate) kernel: &'a dyn Kernel,
    /// Tokens that the states start from.
    pub(crate) states: &'a [&'a [u8]],
}

/// How much it may take.
pub(crate) struct Limits {
    pub(crate) budget_ns: u64,
    pub(crate) memory_bytes: u64,
}

/// A kernel's cost: `call_ps + n * firing_ps` for n firings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) call_ps: u64,
    pub(crate) firing_ps: u64,
    /// The largest median absolute deviation of the call lengths measured, in percent, to a tenth.
    pub(crate) spread_percent: f64,
    /// Samples of each number of firings.
    pub(crate) samples: u32,
}

/// Why a kernel is not measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("a firing needs {needed} bytes, {limit} are allowed")]
    Memory { needed: u64, limit: u64 },
    #[error("{ports} outputs or states, a kernel call carries {most}")]
    Ports { ports: usize, most: usize },
    #[error("the kernel reports a fault: {0}")]
    Fault(#[from] KernelFault),
    #[error("{0}")]
    Device(String),
}

/// Calls of one number of firings.
struct Size {
    call: Call,
    /// Calls in one sample.
    calls: u64,
}

/// Measures the variants of a kernel, taking turns; all are of one actor and need the same memory. `clock` gives
/// nanoseconds since any moment.
///
/// # Errors
/// See [`Refusal`].
pub(crate) fn measure(
    tasks: &[Task<'_>],
    limits: &Limits,
    clock: &dyn Fn() -> u64,
) -> Result<Vec<Measurement>, Refusal> {
    let Some(task) = tasks.first() else {
        return Ok(Vec::new());
    };
    let outputs = task.actor.outputs.len() - task.actor.state.len();
    let ports = outputs.max(task.actor.state.len());
    if ports > Io::MAX_MUT_PORTS {
        return Err(Refusal::Ports {
            ports,
            most: Io::MAX_MUT_PORTS,
        });
    }
    let (needed, limit) = (
        call_bytes(task, 1),
        limits.memory_bytes.min(MAX_FIRING_BYTES),
    );
    if needed > limit {
        return Err(Refusal::Memory { needed, limit });
    }
    let start = clock();
    let mut probed = vec![probe(task, needed, limit, clock)?];
    for task in &tasks[1..] {
        // The same numbers of firings, so that they compare.
        let mut same = Vec::with_capacity(probed[0].len());
        for (firings, _) in &probed[0] {
            let mut size = Size::new(task, *firings);
            size.warm_up(task, clock)?;
            same.push((*firings, size));
        }
        probed.push(same);
    }
    let budget_ns = limits.budget_ns.saturating_mul(tasks.len() as u64);
    let spent = || clock().saturating_sub(start) >= budget_ns;
    by_turns(probed, MAX_SAMPLES, spent, |number, size| {
        size.sample(&tasks[number], clock)
    })
}

/// Takes samples of calls of the first, the middle and the last number of firings of each kernel, in picoseconds, until
/// the time is `spent` or there are `most`; the lines through their medians. `sample` is told the kernel's number.
pub(crate) fn by_turns<S>(
    probed: Vec<Vec<(u64, S)>>,
    most: usize,
    spent: impl Fn() -> bool,
    sample: impl Fn(usize, &mut S) -> Result<f64, Refusal>,
) -> Result<Vec<Measurement>, Refusal> {
    type Sizes<S> = Vec<(u64, S, Vec<f64>)>;
    let thin = |probed: Vec<(u64, S)>| -> Sizes<S> {
        let (middle, last) = (probed.len() / 2, probed.len() - 1);
        let chosen = probed
            .into_iter()
            .enumerate()
            .filter(|(i, _)| [0, middle, last].contains(i));
        chosen
            .map(|(_, (firings, size))| (firings, size, Vec::new()))
            .collect()
    };
    let mut kernels: Vec<Sizes<S>> = probed.into_iter().map(thin).collect();
    let mut taken = 0;
    while taken < most && (taken < MIN_SAMPLES || !spent()) {
        // Taking turns spreads what disturbs the computer for a while over all kernels and sizes.
        for (number, sizes) in kernels.iter_mut().enumerate() {
            for (_, size, samples) in sizes {
                samples.push(sample(number, size)?);
            }
        }
        taken += 1;
    }
    let measurement = |sizes: &mut Sizes<S>| {
        let (mut points, mut spread) = (Vec::with_capacity(sizes.len()), 0.0f64);
        for (firings, _, samples) in sizes {
            let middle = median(samples);
            let mut off: Vec<f64> = samples.iter().map(|s| (s - middle).abs()).collect();
            points.push((*firings as f64, middle));
            spread = spread.max(100.0 * median(&mut off) / middle);
        }
        let (call_ps, firing_ps) = fit(&points);
        let spread_percent = (spread * 10.0).round() / 10.0;
        Measurement {
            call_ps,
            firing_ps,
            spread_percent,
            samples: taken as u32,
        }
    };
    Ok(kernels.iter_mut().map(measurement).collect())
}

/// Calls of one firing, of as many as fit the bounds on the longest call, and of some between.
fn probe(
    task: &Task<'_>,
    firing_bytes: u64,
    memory_bytes: u64,
    clock: &dyn Fn() -> u64,
) -> Result<Vec<(u64, Size)>, Refusal> {
    let most_bytes = CALL_BYTES
        .max(firing_bytes.saturating_mul(4))
        .min(memory_bytes);
    let mut probed = Vec::new();
    let mut firings = 1;
    loop {
        let mut size = Size::new(task, firings);
        let ns = size.warm_up(task, clock)?;
        probed.push((firings, size));
        firings *= 4;
        let fits = firings <= MAX_FIRINGS && call_bytes(task, firings) <= most_bytes;
        if ns >= LONG_CALL_NS || !fits {
            break;
        }
    }
    Ok(probed)
}

/// Bytes that a call of `firings` firings needs.
fn call_bytes(task: &Task<'_>, firings: u64) -> u64 {
    port_bytes(task.actor, firings).saturating_add(task.kernel.scratch_bytes() as u64)
}

/// Bytes of the ports of a call.
pub(crate) fn port_bytes(actor: &Actor, firings: u64) -> u64 {
    let tokens = |rate: u64, window: u64| rate.saturating_mul(firings - 1).saturating_add(window);
    let inputs = actor
        .inputs
        .iter()
        .map(|p| (&p.token, tokens(p.rate, p.window)));
    let outputs = actor
        .outputs
        .iter()
        .map(|p| (&p.token, tokens(p.rate, p.rate)));
    let ports = inputs
        .chain(outputs)
        .map(|(token, n)| token.bytes().saturating_mul(n));
    ports.fold(0, u64::saturating_add)
}

impl Size {
    fn new(task: &Task<'_>, firings: u64) -> Self {
        let mut call = Call::new(task.actor, task.kernel.scratch_bytes(), firings as usize);
        let inputs = task.actor.inputs.iter().enumerate();
        let inputs = inputs.filter(|(i, _)| task.actor.state_of_input(*i as u32).is_none());
        for (index, (_, port)) in inputs.enumerate() {
            fill(call.input(index), port.token.dtype, index as u64 + 1);
        }
        Self { call, calls: 1 }
    }

    /// Finds how many calls make a sample; nanoseconds of one call.
    fn warm_up(&mut self, task: &Task<'_>, clock: &dyn Fn() -> u64) -> Result<u64, Refusal> {
        // The first call is of no use to anybody: it touches the memory for the first time.
        self.sample(task, clock)?;
        loop {
            let ns = (self.sample(task, clock)? * self.calls as f64 / 1e3) as u64;
            if ns >= SAMPLE_NS || self.calls >= MAX_CALLS {
                return Ok(ns / self.calls);
            }
            self.calls *= (SAMPLE_NS / ns.max(1)).clamp(2, 16);
        }
    }

    /// Picoseconds of one call, from several in a row that start from the initial states.
    fn sample(&mut self, task: &Task<'_>, clock: &dyn Fn() -> u64) -> Result<f64, Refusal> {
        for (index, initial) in task.states.iter().enumerate() {
            let state = self.call.state(index);
            let n = state.len().min(initial.len());
            state[..n].copy_from_slice(&initial[..n]);
        }
        let start = clock();
        for _ in 0..self.calls {
            self.call.run(task.kernel)?;
        }
        let ns = clock().saturating_sub(start);
        Ok(ns.max(1) as f64 * 1e3 / self.calls as f64)
    }
}

/// The middle value; the upper one of two. Sorts.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The line `call + n * firing` through points (n, time) with the least sum of squared relative errors, both parts
/// non-negative and not both zero, in whole units of time. A single point is all firings.
fn fit(points: &[(f64, f64)]) -> (u64, u64) {
    let sum = |term: fn(f64, f64) -> f64| points.iter().map(|&(n, t)| term(n, t)).sum::<f64>();
    let (one, slope) = (sum(|_, t| 1.0 / (t * t)), sum(|n, t| n / (t * t)));
    let (square, right_one, right_slope) = (
        sum(|n, t| n * n / (t * t)),
        sum(|_, t| 1.0 / t),
        sum(|n, t| n / t),
    );
    let determinant = one * square - slope * slope;
    let (call, firing) = if points.len() < 2 || determinant <= 0.0 {
        (0.0, right_slope / square)
    } else {
        let call = (right_one * square - right_slope * slope) / determinant;
        let firing = (right_slope * one - right_one * slope) / determinant;
        match (call < 0.0, firing < 0.0) {
            (true, _) => (0.0, right_slope / square),
            (_, true) => (right_one / one, 0.0),
            _ => (call, firing),
        }
    };
    let (call, firing) = (call.round() as u64, firing.round() as u64);
    if call == 0 && firing == 0 {
        (0, 1)
    } else {
        (call, firing)
    }
}

/// Fills a port with values that a stream could have, the same every time: zeros would take short cuts.
fn fill(bytes: &mut [u8], dtype: DType, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // In [-1, 1), and never so small that arithmetic on it would be slow.
    let mut real = || (next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    let size = usize::try_from(dtype.size_bytes()).unwrap_or(1);
    match dtype {
        DType::F32 | DType::C32 => {
            bytes
                .chunks_exact_mut(4)
                .for_each(|b| b.copy_from_slice(&real().to_ne_bytes()));
        }
        DType::F64 => bytes
            .chunks_exact_mut(size)
            .for_each(|b| b.copy_from_slice(&f64::from(real()).to_ne_bytes())),
        DType::F16 => bytes
            .chunks_exact_mut(size)
            .for_each(|b| b.copy_from_slice(&f16::from_f32(real()).to_ne_bytes())),
        DType::Bf16 => bytes
            .chunks_exact_mut(size)
            .for_each(|b| b.copy_from_slice(&bf16::from_f32(real()).to_ne_bytes())),
        DType::Bool => bytes.iter_mut().for_each(|b| *b = u8::from(real() > 0.0)),
        // Small integers of either sign where the type has one.
        _ => bytes.chunks_exact_mut(size).for_each(|b| {
            let value = (real() * 100.0) as i64;
            b.copy_from_slice(&value.to_le_bytes()[..size]);
        }),
    }
}

#[cfg(test)]
mod tests;
