//! A model in all three ways, side by side.

use std::fmt::Write as _;

use zbmd_ir::Graph;
use zbmd_tick_scheduler::schedule;
use zbmd_ticks::{TickMachine, verify};

use super::{Discipline, Load, Measured, RivalModel, simulate};

/// Largest offset of clocks that nobody controls.
const TOLERANCE_PPM: f64 = 100.0;
/// How much more than the longest period lies between iterations where latencies are measured.
const HEADROOM: f64 = 1.25;

/// What a way of running a model reaches.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Ticks between iterations where nothing but the machine limits them.
    pub period: f64,
    /// Mean, max and spread of the time that an iteration takes, where iterations start at one interval in all ways.
    pub latency: Measured,
    /// Memory of all rings.
    pub ring_bytes: u64,
}

/// A model in all ways.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Name of the model.
    pub model: String,
    /// Largest part by which firings are done sooner than a calendar has it.
    pub variation: f64,
    /// Ticks between the starts of iterations where latencies are measured.
    pub interval: f64,
    /// Tick calendars, self-timed rings, and dynamic queues.
    pub rows: [Row; 3],
}

/// Runs a model in all ways.
///
/// # Panics
/// If there is no plan, or it is refused.
pub fn compare(
    model: &str,
    graph: &Graph,
    machine: &TickMachine,
    variation: f64,
    iterations: u64,
) -> Comparison {
    let scheduled = schedule(graph, machine).unwrap_or_else(|e| panic!("{model}: {e}"));
    let latency = scheduled.latency as f64;
    let plan = verify(graph, machine, scheduled.plan);
    let plan = plan.unwrap_or_else(|errors| panic!("{model}: {errors:#?}"));
    let rival = RivalModel::new(graph, machine, &plan);

    let load = Load {
        iterations,
        interval: None,
        variation,
        tolerance_ppm: TOLERANCE_PPM,
        seed: 25,
    };
    let disciplines = [Discipline::SelfTimed, Discipline::Dynamic];
    let periods = disciplines.map(|discipline| simulate(&rival, discipline, &load).period);
    let longest = periods.iter().copied().fold(plan.period as f64, f64::max);
    let paced = Load {
        interval: Some(HEADROOM * longest),
        ..load
    };
    let [self_timed, dynamic] = disciplines.map(|discipline| simulate(&rival, discipline, &paced));
    let row = |name: &'static str, period: f64, latency: Measured| Row {
        name,
        period,
        latency,
        ring_bytes: rival.rival_bytes,
    };
    // The verifier has proved all times of the plan: there is nothing to measure.
    let proved = Measured {
        period: plan.period as f64,
        mean_latency: latency,
        max_latency: latency,
        jitter: 0.0,
    };
    let calendars = Row {
        ring_bytes: rival.plan_bytes,
        ..row("tick calendars", plan.period as f64, proved)
    };
    Comparison {
        model: model.to_owned(),
        variation,
        interval: HEADROOM * longest,
        rows: [
            calendars,
            row("self-timed rings", periods[0], self_timed),
            row("dynamic queues", periods[1], dynamic),
        ],
    }
}

/// All comparisons as a table of the book.
pub fn table(comparisons: &[Comparison]) -> String {
    let mut text = String::from(
        "| model | firings take | way | period | latency, mean | max | jitter | rings, bytes |\n\
         |---|---|---|--:|--:|--:|--:|--:|\n",
    );
    for comparison in comparisons {
        let share = 100.0 * (1.0 - comparison.variation);
        let taken = match comparison.variation {
            0.0 => "100 %".to_owned(),
            _ => format!("{share:.0} to 100 %"),
        };
        for (index, row) in comparison.rows.iter().enumerate() {
            let (model, taken) = match index {
                0 => (comparison.model.as_str(), taken.as_str()),
                _ => ("", ""),
            };
            let _ = writeln!(
                text,
                "| {model} | {taken} | {} | {:.1} | {:.0} | {:.0} | {:.1} | {} |",
                row.name,
                row.period,
                row.latency.mean_latency,
                row.latency.max_latency,
                row.latency.jitter,
                row.ring_bytes
            );
        }
    }
    text
}
