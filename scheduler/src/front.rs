//! What the plans of a graph trade for one another: the period against the latency and the memory.

use crate::block::{best_plan, plan_bytes};
use crate::error::ScheduleError;
use crate::inputs::{Analysis, Inputs};
use crate::options::{Block, ScheduleOptions};
use crate::search::Control;
use zbmd_ir::Plan;

/// The figures of a plan that no other one here beats in all three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanPoint {
    /// Stages of the pipeline; 1 for a plan that is none.
    pub stages: u32,
    /// Devices that it uses.
    pub devices: usize,
    /// Iterations in a block.
    pub block: u64,
    /// Predicted time from one block to the next.
    pub period_ns: u64,
    /// Predicted latency of a block.
    pub latency_ns: u64,
    /// Bytes of all arenas and exchange regions.
    pub bytes: u64,
}

impl PlanPoint {
    fn of(plan: &Plan) -> Self {
        PlanPoint {
            stages: plan.stages,
            devices: plan.calendars.len(),
            block: plan.block,
            period_ns: plan.period_ns,
            latency_ns: plan.latency_ns,
            bytes: plan_bytes(plan),
        }
    }

    fn is_beaten_by(&self, other: &PlanPoint) -> bool {
        other.period_ns <= self.period_ns
            && other.latency_ns <= self.latency_ns
            && other.bytes <= self.bytes
            && other != self
    }
}

/// Plans that a front has at most.
const MAX_POINTS: usize = 12;

/// Latency that the next plan of a front saves at least, in percent of the one before.
const MIN_SAVING_PERCENT: u64 = 5;

/// The plans between the shortest period and the shortest latency, shortest period first: each is the quickest that was
/// found with a latency below that of the one before. All have the block of the plan that [`crate::schedule`] makes.
///
/// # Errors
/// As [`crate::schedule`].
pub fn plan_front(
    inputs: Inputs<'_>,
    control: &mut Control<'_>,
) -> Result<Vec<PlanPoint>, ScheduleError> {
    let analysis = Analysis::of(inputs.graph)?;
    let best = best_plan(inputs, &analysis, control)?.plan;
    let mut points = vec![PlanPoint::of(&best)];
    let mut latency_ns = best.latency_ns;

    while points.len() < MAX_POINTS {
        let saving_ns = (latency_ns / 100 * MIN_SAVING_PERCENT).max(1);
        let options = ScheduleOptions {
            block: Block::Fixed(best.block),
            max_latency_ns: Some(latency_ns.saturating_sub(saving_ns)),
            ..inputs.options.clone()
        };
        let inputs = Inputs {
            options: &options,
            ..inputs
        };
        match best_plan(inputs, &analysis, control) {
            Ok(found) => {
                latency_ns = found.plan.latency_ns;
                points.push(PlanPoint::of(&found.plan));
            }
            // Shorter is not possible, or not within the bounds asked for.
            Err(_) => break,
        }
    }

    points.sort_by_key(|point| (point.period_ns, point.latency_ns, point.bytes));
    points.dedup();
    let all_points = points.clone();
    points.retain(|point| !all_points.iter().any(|other| point.is_beaten_by(other)));
    Ok(points)
}

#[cfg(test)]
mod tests;
