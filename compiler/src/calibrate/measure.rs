//! Measures one kernel: calls of several numbers of firings, and the line through their medians.

use half::{bf16, f16};
use zbmd_backends::call::Call;
use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_ir::{Actor, DType};

use super::memory::{OtherWeights, touch};

/// Samples of each number of firings that are taken however little time there is.
const MIN_SAMPLES: usize = 5;
/// Samples after which more would not change the median: what is left of the budget is given back.
const MAX_SAMPLES: usize = 1001;
/// Length of a sample: long beside the clock's resolution, short beside the system's time slices.
const SAMPLE_NS: u64 = 20_000;
/// Calls longer than this need no more firings: the fixed cost of a call does not matter in them.
const LONG_CALL_NS: u64 = 1_000_000;
/// Ports of the longest call: blocks of a calendar stay in a core's own cache, and so should these.
const CALL_BYTES: u64 = 256 << 10;
/// Memory of one firing beyond which nothing is measured.
const MAX_FIRING_BYTES: u64 = 1 << 30;
/// Calls in one sample, for clocks that do not advance.
const MAX_CALLS: u64 = 1 << 22;
const MAX_FIRINGS: u64 = 1 << 20;

/// A kernel to measure.
pub(crate) struct Task<'a> {
    pub(crate) actor: &'a Actor,
    pub(crate) kernel: &'a dyn Kernel,
    /// Tokens for the inputs without the states, over and over: any values where an input has none.
    pub(crate) tokens: &'a [&'a [u8]],
    /// Tokens that the states start from.
    pub(crate) states: &'a [&'a [u8]],
    /// What a run reads between two calls; `None` where it leaves the caches as they are.
    pub(crate) between: Option<&'a OtherWeights>,
}

/// What measuring a kernel may take.
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
    #[error("{ports} outputs or states, a kernel call carries {max}")]
    Ports { ports: usize, max: usize },
    #[error("the kernel reports a fault: {0}")]
    Fault(#[from] KernelFault),
    #[error("{0}")]
    Device(String),
}

/// A call that was tried out, ready to be measured.
pub(crate) struct Probe<C> {
    pub(crate) firings: u64,
    pub(crate) call: C,
}

/// Calls of one number of firings on a CPU.
struct CpuCalls {
    call: Call,
    inputs: usize,
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
    let Some(default) = tasks.first() else {
        return Ok(Vec::new());
    };
    check_ports(default.actor)?;
    let memory_bytes = check_memory(default, limits)?;

    let start_ns = clock();
    let mut probed = vec![probe(default, memory_bytes, clock)?];
    for task in &tasks[1..] {
        // The same numbers of firings, so that they compare.
        let mut probes = Vec::with_capacity(probed[0].len());
        for &Probe { firings, .. } in &probed[0] {
            let mut call = CpuCalls::new(task, firings);
            call.warm_up(task, clock)?;
            probes.push(Probe { firings, call });
        }

        probed.push(probes);
    }

    let budget_ns = limits.budget_ns.saturating_mul(tasks.len() as u64);
    let is_spent = || clock().saturating_sub(start_ns) >= budget_ns;
    measure_in_turns(probed, MAX_SAMPLES, is_spent, |index, call| {
        call.sample(&tasks[index], clock)
    })
}

/// Refuses actors with more outputs or states than a call carries.
fn check_ports(actor: &Actor) -> Result<(), Refusal> {
    let states = actor.state.len();
    let outputs = actor.outputs.len() - states;
    let ports = outputs.max(states);
    let max = Io::MAX_MUT_PORTS;
    if ports > max {
        return Err(Refusal::Ports { ports, max });
    }
    Ok(())
}

/// The bytes that calls may take; refuses kernels of which one firing needs more.
fn check_memory(task: &Task<'_>, limits: &Limits) -> Result<u64, Refusal> {
    let needed = call_bytes(task, 1);
    let limit = limits.memory_bytes.min(MAX_FIRING_BYTES);
    if needed > limit {
        return Err(Refusal::Memory { needed, limit });
    }
    Ok(limit)
}

/// A call with the picoseconds that its samples took.
struct Series<C> {
    probe: Probe<C>,
    samples_ps: Vec<f64>,
}

/// Takes samples of calls of the first, the middle and the last number of firings of each kernel, in picoseconds, until
/// the time is spent or there are `max_samples`; the lines through their medians. `sample` is given the kernel's index.
pub(crate) fn measure_in_turns<C>(
    probed: Vec<Vec<Probe<C>>>,
    max_samples: usize,
    is_spent: impl Fn() -> bool,
    sample: impl Fn(usize, &mut C) -> Result<f64, Refusal>,
) -> Result<Vec<Measurement>, Refusal> {
    let mut kernel_series: Vec<Vec<Series<C>>> = probed.into_iter().map(select_probes).collect();
    let mut samples_taken = 0;
    while samples_taken < max_samples && (samples_taken < MIN_SAMPLES || !is_spent()) {
        // Taking turns spreads what disturbs the computer for a while over all kernels and numbers of firings.
        for (index, kernel) in kernel_series.iter_mut().enumerate() {
            for series in kernel {
                let sample_ps = sample(index, &mut series.probe.call)?;
                series.samples_ps.push(sample_ps);
            }
        }

        samples_taken += 1;
    }

    Ok(kernel_series
        .iter_mut()
        .map(|kernel| summarise(kernel))
        .collect())
}

/// The first, the middle and the last of the probes: a line needs no more.
fn select_probes<C>(probes: Vec<Probe<C>>) -> Vec<Series<C>> {
    let chosen_indices = [0, probes.len() / 2, probes.len() - 1];
    let mut series = Vec::with_capacity(chosen_indices.len());
    for (index, probe) in probes.into_iter().enumerate() {
        if chosen_indices.contains(&index) {
            let samples_ps = Vec::new();
            series.push(Series { probe, samples_ps });
        }
    }
    series
}

/// The line through the medians of a kernel's samples.
fn summarise<C>(kernel: &mut [Series<C>]) -> Measurement {
    let mut line_points = Vec::with_capacity(kernel.len());
    let mut max_spread_percent = 0.0f64;
    let mut samples = 0;
    for Series { probe, samples_ps } in kernel {
        let median_ps = median(samples_ps);
        let mut deviations: Vec<f64> = samples_ps.iter().map(|ps| (ps - median_ps).abs()).collect();
        let spread_percent = 100.0 * median(&mut deviations) / median_ps;
        max_spread_percent = max_spread_percent.max(spread_percent);
        line_points.push((probe.firings as f64, median_ps));
        samples = samples_ps.len();
    }

    let (call_ps, firing_ps) = fit(&line_points);
    Measurement {
        call_ps,
        firing_ps,
        spread_percent: (max_spread_percent * 10.0).round() / 10.0,
        samples: samples as u32,
    }
}

/// Calls of one firing, of as many as fit the bounds on the longest call, and of some between.
fn probe(
    task: &Task<'_>,
    memory_bytes: u64,
    clock: &dyn Fn() -> u64,
) -> Result<Vec<Probe<CpuCalls>>, Refusal> {
    let single_bytes = call_bytes(task, 1);
    // Calls of one firing that fill the cache do not become longer in a plan either.
    let max_bytes = CALL_BYTES.max(single_bytes).min(memory_bytes);
    let mut probes = Vec::new();
    let mut firings = 1;
    loop {
        let mut call = CpuCalls::new(task, firings);
        let call_ns = call.warm_up(task, clock)?;
        probes.push(Probe { firings, call });

        // Longer calls must fit the memory, and a core's own cache where single firings do.
        firings *= 4;
        let fits = firings <= MAX_FIRINGS && call_bytes(task, firings) <= max_bytes;
        if call_ns >= LONG_CALL_NS || !fits {
            return Ok(probes);
        }
    }
}

/// Bytes that a call of `firings` firings needs.
fn call_bytes(task: &Task<'_>, firings: u64) -> u64 {
    port_bytes(task.actor, firings).saturating_add(task.kernel.scratch_bytes() as u64)
}

/// Bytes of the ports of a call.
pub(crate) fn port_bytes(actor: &Actor, firings: u64) -> u64 {
    // Windows overlap: each firing after the first one adds its rate.
    let earlier_firings = firings - 1;
    let mut total_bytes: u64 = 0;
    for port in &actor.inputs {
        let call_tokens = port.rate.saturating_mul(earlier_firings);
        let call_tokens = call_tokens.saturating_add(port.window);
        total_bytes = total_bytes.saturating_add(port.token.bytes().saturating_mul(call_tokens));
    }

    for port in &actor.outputs {
        let call_tokens = port.rate.saturating_mul(earlier_firings);
        let call_tokens = call_tokens.saturating_add(port.rate);
        total_bytes = total_bytes.saturating_add(port.token.bytes().saturating_mul(call_tokens));
    }

    total_bytes
}

impl CpuCalls {
    fn new(task: &Task<'_>, firings: u64) -> Self {
        let actor = task.actor;
        let mut call = Call::new(actor, task.kernel.scratch_bytes(), firings as usize);

        let mut streams = 0;
        for (index, port) in actor.inputs.iter().enumerate() {
            if actor.state_of_input(index as u32).is_none() {
                let input = call.input(streams);
                match task.tokens.get(streams) {
                    Some(tokens) if !tokens.is_empty() => {
                        let parts = input.chunks_mut(tokens.len());
                        parts.for_each(|part| part.copy_from_slice(&tokens[..part.len()]));
                    }
                    _ => fill(input, port.token.dtype, streams as u64 + 1),
                }
                streams += 1;
            }
        }
        Self {
            call,
            inputs: streams,
            calls: 1,
        }
    }

    /// Finds how many calls make a sample; nanoseconds of one call.
    fn warm_up(&mut self, task: &Task<'_>, clock: &dyn Fn() -> u64) -> Result<u64, Refusal> {
        // The first sample does not count: it touches the memory for the first time.
        self.sample(task, clock)?;
        loop {
            let sample_ns = (self.sample(task, clock)? * self.calls as f64 / 1e3) as u64;
            // Calls with others between them are timed one by one.
            let is_long = sample_ns >= SAMPLE_NS || self.calls >= MAX_CALLS;
            if is_long || task.between.is_some() {
                return Ok(sample_ns / self.calls);
            }
            self.calls *= (SAMPLE_NS / sample_ns.max(1)).clamp(2, 16);
        }
    }

    /// Picoseconds of one call, from several in a row that start from the initial states.
    fn sample(&mut self, task: &Task<'_>, clock: &dyn Fn() -> u64) -> Result<f64, Refusal> {
        for (index, initial) in task.states.iter().enumerate() {
            let state_bytes = self.call.state(index);
            let common_bytes = state_bytes.len().min(initial.len());
            state_bytes[..common_bytes].copy_from_slice(&initial[..common_bytes]);
        }

        if let Some(other_weights) = task.between {
            other_weights.read();
            // The actors before this one have just written what it reads.
            for index in 0..self.inputs {
                touch(self.call.input(index));
            }
        }

        let start_ns = clock();
        for _ in 0..self.calls {
            self.call.run(task.kernel)?;
        }
        let elapsed_ns = clock().saturating_sub(start_ns);
        Ok(elapsed_ns.max(1) as f64 * 1e3 / self.calls as f64)
    }
}

/// The middle value; the upper one of two. Sorts.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Sums over the points, each weighted for relative errors.
#[derive(Default)]
struct WeightedSums {
    /// Of 1 / t^2.
    ones: f64,
    /// Of n / t^2.
    firings: f64,
    /// Of n^2 / t^2.
    squares: f64,
    /// Of 1 / t.
    times: f64,
    /// Of n / t.
    products: f64,
}

impl WeightedSums {
    fn of(points: &[(f64, f64)]) -> Self {
        let mut sums = Self::default();
        for &(firings, time) in points {
            sums.ones += 1.0 / (time * time);
            sums.firings += firings / (time * time);
            sums.squares += firings * firings / (time * time);
            sums.times += 1.0 / time;
            sums.products += firings / time;
        }
        sums
    }
}

/// The line `call + n * firing` through points (n, time) with the least sum of squared relative errors, both parts
/// non-negative and not both zero, in whole units of time. A single point is all firings.
fn fit(points: &[(f64, f64)]) -> (u64, u64) {
    let sums = WeightedSums::of(points);
    let determinant = sums.ones * sums.squares - sums.firings * sums.firings;
    let firings_only = (0.0, sums.products / sums.squares);
    let calls_only = (sums.times / sums.ones, 0.0);

    let (call, firing) = if points.len() < 2 || determinant <= 0.0 {
        firings_only
    } else {
        // The normal equations of the weighted least squares, solved by Cramer's rule.
        let call = (sums.times * sums.squares - sums.products * sums.firings) / determinant;
        let firing = (sums.products * sums.ones - sums.times * sums.firings) / determinant;
        match (call < 0.0, firing < 0.0) {
            // A negative part is not possible: the best line without it is taken.
            (true, _) => firings_only,
            (_, true) => calls_only,
            _ => (call, firing),
        }
    };

    match (call.round() as u64, firing.round() as u64) {
        (0, 0) => (0, 1),
        line => line,
    }
}

/// Values that a stream could have, the same every time.
struct StreamValues {
    state: u64,
}

impl StreamValues {
    fn new(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// The next value in [-1, 1), by xorshift; never so small that arithmetic on it would be slow.
    fn next(&mut self) -> f32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Fills memory with values that a stream could have: zeros would take short cuts.
pub(super) fn fill(bytes: &mut [u8], dtype: DType, seed: u64) {
    let mut stream_values = StreamValues::new(seed);
    let element_bytes = match dtype {
        // A complex element is two values.
        DType::C32 => 4,
        _ => usize::try_from(dtype.size_bytes()).unwrap_or(1),
    };

    for element in bytes.chunks_exact_mut(element_bytes) {
        let next_value = stream_values.next();
        match dtype {
            DType::F32 | DType::C32 => element.copy_from_slice(&next_value.to_ne_bytes()),
            DType::F64 => element.copy_from_slice(&f64::from(next_value).to_ne_bytes()),
            DType::F16 => element.copy_from_slice(&f16::from_f32(next_value).to_ne_bytes()),
            DType::Bf16 => element.copy_from_slice(&bf16::from_f32(next_value).to_ne_bytes()),
            DType::Bool => element[0] = u8::from(next_value > 0.0),
            // Small integers of either sign where the type has one.
            _ => {
                let integer = (next_value * 100.0) as i64;
                element.copy_from_slice(&integer.to_le_bytes()[..element_bytes]);
            }
        }
    }
}

#[cfg(test)]
mod tests;
