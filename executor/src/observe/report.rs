//! What a run did, measured against what was planned: data that serialises to JSON, and prints as text.

use std::fmt::{self, Write as _};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use zbmd_ir::text::count;
use zbmd_ir::{PresentMode, State};

/// What a finished run leaves.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was done and measured.
    pub report: Report,
    /// Where another run can go on.
    pub state: State,
    /// In which mode that is.
    pub present_mode: PresentMode,
    /// For each sink, in actor order, the tokens that the session gave out up to there.
    pub emitted: Vec<u64>,
}

/// A run from its first to its last block.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Name of the model.
    pub model: String,
    /// Iterations done in this run.
    pub iterations: u64,
    /// Iterations since the beginning, over all runs that handed on their state.
    pub iterations_total: u64,
    /// From the first period's start to the last one's end.
    pub elapsed_ns: u64,
    /// Epochs: 1 for each plan that ran, and 1 more for each loss, return of a device, or other change.
    pub epochs: u64,
    /// Epochs that ended at once, because something was lost, and were made good by the next.
    pub recoveries: u64,
    /// Events that whoever listens did not get, because it took them too slowly.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub events_dropped: u64,
    /// Sources, in actor order.
    pub sources: Vec<SourceReport>,
    /// Sinks, in actor order.
    pub sinks: Vec<SinkReport>,
    /// Plans in the order in which they ran.
    pub plans: Vec<PlanReport>,
    /// How long actors' calls took, by name; empty unless asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profile: Vec<ProfileReport>,
    /// The trace that was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceReport>,
    /// Things worth knowing that are not errors.
    pub notes: Vec<String>,
}

/// How long the calls of one actor took, over all plans and devices of a run; waits of sources and sinks included.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProfileReport {
    /// The actor; the whole calendar of a device that cannot be looked into.
    pub actor: String,
    /// Calls, each of one or more firings.
    pub calls: u64,
    /// Planned duration of a call, in the mean.
    pub planned_ns: f64,
    /// Measured mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 99 of 100 are not longer.
    pub p99_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

/// What was written of a trace.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TraceReport {
    /// The file.
    pub file: String,
    /// Records in it.
    pub records: u64,
    /// Its size.
    pub bytes: u64,
    /// Periods that were run but not recorded, because the file was not written fast enough.
    pub dropped_periods: u64,
    /// Events and epochs that it does not tell of, for the same reason.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_events: u64,
    /// Why it is cut off, if it is.
    pub error: Option<String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What one source gave.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SourceReport {
    /// The source.
    pub name: String,
    /// Tokens taken, padding not counted.
    pub tokens: u64,
    /// Tokens that were pushed but not taken: less than an iteration needs, or another source or a limit ended the
    /// run.
    pub leftover: u64,
    /// Zero tokens added at the end on request.
    pub padded: u64,
    /// Tokens of one iteration.
    pub tokens_per_iteration: u64,
    /// Tokens taken per second.
    pub tokens_per_s: f64,
}

/// What one sink was given.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SinkReport {
    /// The sink.
    pub name: String,
    /// Tokens given.
    pub tokens: u64,
    /// Tokens that were dropped because nobody pulled them any more.
    pub discarded: u64,
    /// Tokens that are in the sink's file or were taken by its reader, where that is fewer than were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered: Option<u64>,
    /// Tokens per second.
    pub tokens_per_s: f64,
}

impl SinkReport {
    pub(crate) fn set_tokens(&mut self, tokens: u64, elapsed_ns: u64) {
        self.tokens = tokens;
        self.tokens_per_s = if elapsed_ns > 0 {
            tokens as f64 * 1e9 / elapsed_ns as f64
        } else {
            0.0
        };
    }
}

/// One plan's part of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PlanReport {
    /// The plan.
    pub name: String,
    /// Iterations in a block.
    pub block: u64,
    /// Blocks done.
    pub blocks: u64,
    /// Stages.
    pub stages: u32,
    /// Planned period.
    pub period_planned_ns: u64,
    /// Mean time from one block to the next.
    pub period_measured_ns: f64,
    /// Planned latency of a block.
    pub latency_planned_ns: u64,
    /// What limits the period according to the plan.
    pub bound_by: String,
    /// Memory of all devices.
    pub arena_bytes: u64,
    /// How much of it the system promised to keep in memory.
    pub locked_bytes: u64,
    /// Devices.
    pub workers: Vec<WorkerReport>,
    /// Latencies from the admission of a block to its last token in a sink.
    pub latencies: Vec<LatencyReport>,
}

/// One device's part of a plan.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The device.
    pub device: String,
    /// Whether the thread was tied to the device's cores.
    pub pinned: bool,
    /// Slots in calendar order.
    pub slots: Vec<SlotReport>,
    /// Rings that the device waited for.
    pub waits: Vec<WaitReport>,
    /// Calls behind gates, of a GPU that has any. Never left out: workers in processes send reports without names of fields.
    #[serde(default)]
    pub gates: Option<GateReport>,
    /// What is not as the plan has it: kernels that run otherwise.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Planned and measured times of one slot, over the sampled periods.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SlotReport {
    /// What it does: `fir[0..1024]`.
    pub slot: String,
    /// Its stage.
    pub stage: u32,
    /// Planned start after the period's.
    pub start_planned_ns: u64,
    /// Measured mean start.
    pub start_measured_ns: f64,
    /// Planned duration of one execution.
    pub planned_ns: u64,
    /// Measured mean duration, waits included.
    pub mean_ns: f64,
    /// Shortest.
    pub min_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Executions measured.
    pub samples: u64,
}

/// How often a device had to wait at one ring.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WaitReport {
    /// The ring: `ch3 cpu:0 -> cpu:1`.
    pub ring: String,
    /// Waits in the whole run.
    pub waits: u64,
}

/// Calls of gated actors on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateReport {
    /// Calls that were launched: one of their firings was open at least.
    pub launched: u64,
    /// Calls that were not: their gate was closed.
    pub skipped: u64,
}

/// Latencies from one source to one sink.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Where the tokens came in.
    pub source: String,
    /// Where they left.
    pub sink: String,
    /// Blocks measured.
    pub blocks: u64,
    /// Shortest.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99 of 100 are not longer.
    pub p99_ns: u64,
    /// 9,999 of 10,000 are not longer.
    pub p9999_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

impl LatencyReport {
    pub(crate) fn new(source: String, sink: String, histogram: &Histogram<u64>) -> Self {
        Self {
            source,
            sink,
            blocks: histogram.len(),
            min_ns: histogram.min(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            p9999_ns: histogram.value_at_quantile(0.9999),
            max_ns: histogram.max(),
        }
    }
}

/// Slots that the text shows for each device; JSON has all.
const SLOTS_SHOWN: usize = 30;

impl Report {
    /// The report as JSON, indented.
    pub fn to_json(&self) -> String {
        // Plain data with string keys: serialising cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl Report {
    /// What came in, what went out and what is left: the text without the measurements.
    pub fn summary(&self) -> String {
        let short = Report {
            plans: Vec::new(),
            ..self.clone()
        };
        short.to_string()
    }
}

impl Report {
    /// Notes how many tokens the readers of these sinks took, who did not take all of them.
    pub fn cut_off(&mut self, sinks: &[(String, u64)]) {
        for (stream, delivered) in sinks {
            let Some(sink) = self.sinks.iter_mut().find(|sink| sink.name == *stream) else {
                continue;
            };
            sink.delivered = Some(*delivered);
            self.notes.push(format!(
                "the reader of `{stream}` took {delivered} of {} tokens, and then no more",
                sink.tokens
            ));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = Nanos(self.elapsed_ns as f64);
        write!(
            f,
            "{}: {} in {time}",
            self.model,
            count(self.iterations, "iteration")
        )?;
        if self.iterations_total != self.iterations {
            write!(f, ", {} since the beginning", self.iterations_total)?;
        }
        if self.recoveries > 0 {
            write!(
                f,
                ", {} recoveries in {} epochs",
                self.recoveries, self.epochs
            )?;
        }
        writeln!(f)?;

        for source in &self.sources {
            write!(
                f,
                "  source {:<20} {:>12} tokens  {}",
                source.name,
                source.tokens,
                PerSecond(source.tokens_per_s)
            )?;
            if source.padded > 0 {
                write!(f, "  +{} zeros", source.padded)?;
            }
            if source.leftover > 0 {
                let need = source.tokens_per_iteration;
                write!(
                    f,
                    "  {} left over (an iteration takes {need})",
                    source.leftover
                )?;
            }
            writeln!(f)?;
        }

        for sink in &self.sinks {
            write!(
                f,
                "  sink   {:<20} {:>12} tokens  {}",
                sink.name,
                sink.tokens,
                PerSecond(sink.tokens_per_s)
            )?;
            if sink.discarded > 0 {
                write!(f, "  {} dropped: nobody pulled them", sink.discarded)?;
            }
            writeln!(f)?;
        }

        for plan in &self.plans {
            plan.print(f)?;
        }
        print_profile(f, &self.profile)?;

        if let Some(trace) = &self.trace {
            trace.print(f)?;
        }

        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        Ok(())
    }
}

impl TraceReport {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  trace {}: {} records, {} bytes",
            self.file, self.records, self.bytes
        )?;
        writeln!(f, ", {} periods dropped", self.dropped_periods)?;
        if let Some(error) = &self.error {
            writeln!(f, "  trace {} is cut off: {error}", self.file)?;
        }
        Ok(())
    }
}

/// The actors that take most of the time first.
fn print_profile(f: &mut fmt::Formatter<'_>, profile: &[ProfileReport]) -> fmt::Result {
    if profile.is_empty() {
        return Ok(());
    }
    let heads = ("actor", "calls", "planned", "p50", "p99", "max");
    let (a, b, c, d, e, g) = heads;
    writeln!(
        f,
        "  {a:<28} {b:>10} {c:>10} {d:>10} {e:>10} {g:>10}  measured/planned"
    )?;
    let mut lines: Vec<&ProfileReport> = profile.iter().collect();
    lines.sort_by(|a, b| (b.calls as f64 * b.mean_ns).total_cmp(&(a.calls as f64 * a.mean_ns)));
    for line in lines {
        let [p50, p99, max] =
            [line.p50_ns, line.p99_ns, line.max_ns].map(|n| Nanos(n as f64).to_string());
        let planned = Nanos(line.planned_ns).to_string();
        write!(
            f,
            "  {:<28} {:>10} {planned:>10} {p50:>10} {p99:>10} {max:>10}",
            line.actor, line.calls
        )?;
        if line.planned_ns > 0.0 {
            write!(f, "  {:.2}", line.mean_ns / line.planned_ns)?;
        }
        writeln!(f)?;
    }
    Ok(())
}

impl PlanReport {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "plan {}   {} blocks of {}   period {} (planned {})   stages {}   bound by {}",
            self.name,
            self.blocks,
            self.block,
            Nanos(self.period_measured_ns),
            Nanos(self.period_planned_ns as f64),
            self.stages,
            self.bound_by
        )?;
        for l in &self.latencies {
            let mut line = format!("  latency {} -> {}", l.source, l.sink);
            let times = [
                ("min", l.min_ns),
                ("p50", l.p50_ns),
                ("p99", l.p99_ns),
                ("p99.99", l.p9999_ns),
            ];
            for (name, ns) in times.into_iter().chain([("max", l.max_ns)]) {
                write!(line, "   {name} {}", Nanos(ns as f64))?;
            }
            writeln!(
                f,
                "{line}   (planned {})",
                Nanos(self.latency_planned_ns as f64)
            )?;
        }
        for worker in &self.workers {
            worker.print(f)?;
        }
        Ok(())
    }
}

impl WorkerReport {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measured = self.slots.iter().any(|s| s.samples > 0);
        writeln!(
            f,
            "  {}{}",
            self.device,
            if self.pinned {
                ""
            } else {
                " (not tied to its cores)"
            }
        )?;
        if measured {
            let heads = ("slot", "planned", "mean", "min", "max");
            writeln!(
                f,
                "    {:<36} {:>10} {:>10} {:>10} {:>10}",
                heads.0, heads.1, heads.2, heads.3, heads.4
            )?;
            for s in self
                .slots
                .iter()
                .filter(|s| s.samples > 0)
                .take(SLOTS_SHOWN)
            {
                let label = format!("s{} {}", s.stage, s.slot);
                let [planned, min, max] =
                    [s.planned_ns, s.min_ns, s.max_ns].map(|n| Nanos(n as f64).to_string());
                let mean = Nanos(s.mean_ns).to_string();
                writeln!(
                    f,
                    "    {label:<36} {planned:>10} {mean:>10} {min:>10} {max:>10}"
                )?;
            }
            if self.slots.len() > SLOTS_SHOWN {
                let more = self.slots.len() - SLOTS_SHOWN;
                writeln!(f, "    … and {more} slots more (see --report json)")?;
            }
        }
        if let Some(GateReport { launched, skipped }) = self.gates {
            let all = count(launched + skipped, "call");
            writeln!(
                f,
                "    launched {launched} of {all} behind gates, {skipped} were closed"
            )?;
        }
        for wait in self.waits.iter().filter(|w| w.waits > 0) {
            writeln!(f, "    waited {} times for {}", wait.waits, wait.ring)?;
        }
        Ok(())
    }
}

/// Nanoseconds for people: three digits that count.
struct Nanos(f64);

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            n if n < 1e3 => (n, "ns"),
            n if n < 1e6 => (n / 1e3, "us"),
            n if n < 1e9 => (n / 1e6, "ms"),
            n => (n / 1e9, "s"),
        };
        let digits = if value >= 100.0 {
            0
        } else if value >= 10.0 {
            1
        } else {
            2
        };
        write!(f, "{value:.digits$} {unit}")
    }
}

struct PerSecond(f64);

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            n if n < 1e3 => (n, ""),
            n if n < 1e6 => (n / 1e3, "k"),
            n if n < 1e9 => (n / 1e6, "M"),
            n => (n / 1e9, "G"),
        };
        write!(f, "{value:.2} {unit}/s")
    }
}
