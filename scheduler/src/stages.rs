//! Which stage of the pipeline each cluster runs in, and how few stages will do.

use zbmd_ir::{DeviceId, Plan};

use crate::assemble::assemble;
use crate::error::ScheduleError;
use crate::problem::BlockProblem;

/// Boundaries between stages that are tried without: each takes an assembly.
const MAX_MERGES_TRIED: u32 = 32;

/// Assembles a placement, with as few stages as its period allows.
///
/// With `pipelined`, work that depends on another device runs one stage later, so that no device waits for another
/// within a period. Where order and slack allow it, two stages become one: then a device waits, but the period
/// does not grow. Without `pipelined` all slots are of stage 0, and the latency is one
/// makespan.
///
/// # Errors
/// As [`assemble`].
pub(crate) fn assemble_stages(
    problem: &BlockProblem<'_>,
    placement: &[DeviceId],
    pipelined: bool,
    name: &str,
) -> Result<Plan, ScheduleError> {
    let mut stage_of = find_stages(problem, placement, pipelined);
    let mut best_plan = assemble(problem, placement, stage_of.clone(), name)?;
    let max_period_ns = best_plan.period_ns;

    let last_stage = stage_of.iter().max().copied().unwrap_or(0);
    let first_tried = last_stage.saturating_sub(MAX_MERGES_TRIED);
    // From the last boundary on, as a merge changes the numbers of the stages after it only.
    for boundary in (first_tried + 1..=last_stage).rev() {
        let merged = without_boundary(&stage_of, boundary);
        let Ok(plan) = assemble(problem, placement, merged.clone(), name) else {
            continue;
        };
        if plan.period_ns <= max_period_ns && plan.latency_ns < best_plan.latency_ns {
            stage_of = merged;
            best_plan = plan;
        }
    }
    Ok(best_plan)
}

/// The stages with those from `boundary` on one earlier.
pub(crate) fn without_boundary(stage_of: &[u32], boundary: u32) -> Vec<u32> {
    let stages = stage_of.iter();
    stages
        .map(|&stage| stage - u32::from(stage >= boundary))
        .collect()
}

/// A component that another depends on, and how many stages earlier it must run at least.
#[derive(Clone, Copy)]
struct StageInput {
    component: usize,
    stages: u32,
}

/// Stage of each cluster. Clusters of one strongly connected component share a stage, because each depends on the
/// others' last block; along every other edge stages do not fall.
pub(crate) fn find_stages(
    problem: &BlockProblem<'_>,
    placement: &[DeviceId],
    pipelined: bool,
) -> Vec<u32> {
    let components = problem.component_of.iter().max().map_or(0, |max| max + 1);
    let mut incoming: Vec<Vec<StageInput>> = vec![Vec::new(); components];
    let mut outgoing: Vec<Vec<usize>> = vec![Vec::new(); components];

    for edge in &problem.edges.all {
        let writer_cluster = problem.cluster_of(edge.writer);
        let reader_cluster = problem.cluster_of(edge.reader);
        let from_component = problem.component_of[writer_cluster];
        let to_component = problem.component_of[reader_cluster];
        if from_component != to_component {
            // Another device's block is read one period later when pipelined.
            incoming[to_component].push(StageInput {
                component: from_component,
                stages: u32::from(
                    pipelined && placement[writer_cluster] != placement[reader_cluster],
                ),
            });
            outgoing[from_component].push(to_component);
        }
    }

    // Kahn's algorithm: a component's stage is known once those of all its inputs are.
    let mut waiting_for: Vec<usize> = incoming.iter().map(Vec::len).collect();
    let mut ready: Vec<usize> = (0..components)
        .filter(|&component| waiting_for[component] == 0)
        .collect();
    let mut stage_of_component = vec![0u32; components];

    while let Some(component) = ready.pop() {
        stage_of_component[component] = incoming[component]
            .iter()
            .map(|input| stage_of_component[input.component] + input.stages)
            .max()
            .unwrap_or(0);
        for &next in &outgoing[component] {
            waiting_for[next] -= 1;
            if waiting_for[next] == 0 {
                ready.push(next);
            }
        }
    }

    let component_of = problem.component_of.iter();
    component_of
        .map(|&component| stage_of_component[component])
        .collect()
}
