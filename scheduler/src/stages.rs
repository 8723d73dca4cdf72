//! Which stage of the pipeline each cluster runs in, and how few stages will do.

use zbmd_ir::{DeviceId, Plan};

use crate::assemble::{assemble, assemble_times};
use crate::error::ScheduleError;
use crate::problem::BlockProblem;

/// Boundaries between stages that are tried without: each takes an assembly.
const MAX_MERGES_TRIED: u32 = 32;

/// Clusters that are assembled at most, of all stages that are tried, where components begin sooner one by one.
const MAX_CLUSTERS_ASSEMBLED: usize = 20_000;

/// Assembles a placement, with as short a latency as its period allows.
///
/// With `pipelined`, work that depends on another device runs one stage later, so that no device waits for another
/// within a period. Where order and slack allow it, two stages become one, or a part of a stage runs in the one before:
/// then a device waits, but the period does not grow. Without `pipelined` all slots are of stage 0, and the latency is one
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
    let components = ComponentGraph::of(problem, placement);
    let mut stage_of = components.first_stages(pipelined);
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

    let mut clusters_left = MAX_CLUSTERS_ASSEMBLED;
    while let Some(sooner) = components.sooner(&stage_of, best_plan.latency_ns, |stage_of| {
        clusters_left = clusters_left.checked_sub(placement.len())?;
        let plan = assemble_times(problem, placement, stage_of.to_vec(), name).ok()?;
        (plan.period_ns <= max_period_ns).then_some(plan.latency_ns)
    }) {
        match assemble(problem, placement, sooner.clone(), name) {
            Ok(plan) if plan.latency_ns < best_plan.latency_ns => {
                stage_of = sooner;
                best_plan = plan;
            }
            // It needs more memory than there is.
            _ => break,
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

/// A component that another depends on, and how many stages earlier it must run at least where nobody waits.
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
    ComponentGraph::of(problem, placement).first_stages(pipelined)
}

/// The strongly connected components of the clusters, and what they read from each other.
struct ComponentGraph<'p> {
    /// Component of each cluster.
    component_of: &'p [usize],
    inputs: Vec<Vec<StageInput>>,
    /// All components, each after its inputs.
    order: Vec<usize>,
}

impl<'p> ComponentGraph<'p> {
    fn of(problem: &'p BlockProblem<'_>, placement: &[DeviceId]) -> Self {
        let components = problem.component_of.iter().max().map_or(0, |max| max + 1);
        let mut inputs: Vec<Vec<StageInput>> = vec![Vec::new(); components];
        let mut outgoing: Vec<Vec<usize>> = vec![Vec::new(); components];

        for edge in &problem.edges.all {
            let writer_cluster = problem.cluster_of(edge.writer);
            let reader_cluster = problem.cluster_of(edge.reader);
            let from_component = problem.component_of[writer_cluster];
            let to_component = problem.component_of[reader_cluster];
            if from_component != to_component {
                // Another device's block is read one period later when pipelined.
                inputs[to_component].push(StageInput {
                    component: from_component,
                    stages: u32::from(placement[writer_cluster] != placement[reader_cluster]),
                });
                outgoing[from_component].push(to_component);
            }
        }

        // Kahn's algorithm: a component is next once all its inputs are in the order.
        let mut waiting_for: Vec<usize> = inputs.iter().map(Vec::len).collect();
        let mut order: Vec<usize> = (0..components)
            .filter(|&component| waiting_for[component] == 0)
            .collect();
        let mut next = 0;
        while let Some(&component) = order.get(next) {
            next += 1;
            for &reader in &outgoing[component] {
                waiting_for[reader] -= 1;
                if waiting_for[reader] == 0 {
                    order.push(reader);
                }
            }
        }
        Self {
            component_of: &problem.component_of,
            inputs,
            order,
        }
    }

    /// The first stage that each cluster can have.
    fn first_stages(&self, pipelined: bool) -> Vec<u32> {
        let mut stage_of_component = vec![0u32; self.inputs.len()];
        for &component in &self.order {
            let inputs = self.inputs[component].iter();
            let stages = inputs.map(|input| {
                let hop = if pipelined { input.stages } else { 0 };
                stage_of_component[input.component] + hop
            });
            stage_of_component[component] = stages.max().unwrap_or(0);
        }
        self.of_clusters(&stage_of_component)
    }

    fn of_clusters(&self, stage_of_component: &[u32]) -> Vec<u32> {
        let component_of = self.component_of.iter();
        component_of
            .map(|&component| stage_of_component[component])
            .collect()
    }

    /// Stages of which some are earlier and none is later, with a shorter latency than these have; `None` if none was
    /// found. `rate` says what latency stages have, or that they are not allowed.
    ///
    /// One component after the other begins as soon as that is allowed and does not lengthen the latency: often it becomes
    /// shorter only when several have done so.
    fn sooner(
        &self,
        stage_of: &[u32],
        start_latency_ns: u64,
        mut rate: impl FnMut(&[u32]) -> Option<u64>,
    ) -> Option<Vec<u32>> {
        let mut stage_of_component = vec![0u32; self.inputs.len()];
        for (&component, &stage) in self.component_of.iter().zip(stage_of) {
            stage_of_component[component] = stage;
        }
        let mut latency_ns = start_latency_ns;

        for &component in &self.order {
            let own_stage = stage_of_component[component];
            let inputs = self.inputs[component].iter();
            let input_stages = inputs.map(|input| stage_of_component[input.component]);
            // In the stage of an input it waits for that one within the period.
            for stage in input_stages.max().unwrap_or(0)..own_stage {
                stage_of_component[component] = stage;
                let rated = rate(&self.of_clusters(&stage_of_component));
                if let Some(found_ns) = rated.filter(|&found_ns| found_ns <= latency_ns) {
                    latency_ns = found_ns;
                    break;
                }
                stage_of_component[component] = own_stage;
            }
        }
        (latency_ns < start_latency_ns).then(|| self.of_clusters(&stage_of_component))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Components of one cluster each, with a hop from each writer.
    fn graph<'a>(component_of: &'a [usize], writers: &[&[usize]]) -> ComponentGraph<'a> {
        let hop = |&component: &usize| StageInput {
            component,
            stages: 1,
        };
        ComponentGraph {
            component_of,
            inputs: writers
                .iter()
                .map(|all| all.iter().map(hop).collect())
                .collect(),
            order: component_of.to_vec(),
        }
    }

    fn stages_as_latency(stage_of: &[u32]) -> Option<u64> {
        stage_of.iter().max().map(|&last| u64::from(last))
    }

    #[test]
    fn all_of_the_last_stage_begins_sooner_or_nothing() {
        let all = [0, 1, 2];
        let graph = graph(&all, &[&[], &[0], &[0]]);
        let stage_of = graph.first_stages(true);
        assert_eq!(stage_of, [0, 1, 1]);
        let sooner = graph.sooner(&stage_of, 1, stages_as_latency);
        assert_eq!(sooner, Some(vec![0, 0, 0]));

        // The last one may not: then the other one stays, too, as nothing is won.
        let without_last = |stage_of: &[u32]| match stage_of[2] {
            0 => None,
            _ => stages_as_latency(stage_of),
        };
        assert_eq!(graph.sooner(&stage_of, 1, without_last), None);
    }

    #[test]
    fn what_may_wait_begins_sooner_behind_what_may_not() {
        let all = [0, 1, 2];
        let graph = graph(&all, &[&[], &[0], &[1]]);
        let stage_of = graph.first_stages(true);
        assert_eq!(stage_of, [0, 1, 2]);
        let without_second = |stage_of: &[u32]| match stage_of[1] {
            0 => None,
            _ => stages_as_latency(stage_of),
        };
        assert_eq!(
            graph.sooner(&stage_of, 2, without_second),
            Some(vec![0, 1, 1])
        );
    }
}
