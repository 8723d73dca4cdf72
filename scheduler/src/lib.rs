//! From a consistent SDF graph, a machine and costs to plans: pure functions without I/O, clock or threads.
//!
//! [`schedule`] reads as the pipeline: analyse -> choose a block -> cluster -> place -> assemble (stages, buffers,
//! order, times) -> lay out. [`schedule_contingencies`] does the same for what is left of the machine when devices are
//! lost. What they return is checked by `zbmd_ir::verify`, which shares no code with them.

mod analysis;
mod assemble;
pub mod assign;
mod block;
pub mod buffers;
mod candidates;
mod chunks;
mod cluster;
mod contingency;
mod cost;
mod error;
mod front;
mod in_place;
mod inputs;
mod layout;
mod live;
pub mod offsets;
mod options;
pub mod order;
mod parts;
mod place;
mod problem;
mod refine;
pub mod replicate;
pub mod search;
mod stages;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod throughput;
pub mod tiers;
mod topological;

pub use analysis::{AnalysisError, check_deadlock, repetition};
pub use contingency::{
    Contingent, Losses, likeness, losses, schedule_contingencies, schedule_loss,
};
pub use error::ScheduleError;
pub use front::{PlanPoint, plan_front};
pub use inputs::Inputs;
pub use options::{Block, Estimate, ScheduleOptions};
pub use search::{Control, Level};
use zbmd_ir::{Costs, Graph, Machine, Plan};

/// Plans, and how good the main one's placement is.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// `main`, and `tail` if there is one.
    pub plans: Vec<Plan>,
    /// Unknown for graphs too large to search.
    pub estimate: Option<Estimate>,
}

/// Makes the plans of a graph: `main`, and where its block has more than one iteration `tail`, which runs what is
/// left of the input one iteration at a time.
///
/// The graph must have passed `zbmd_ir::verify::check_graph` (ids in range, every port connected once). Deterministic:
/// ties go to the lower id.
///
/// # Errors
/// See [`ScheduleError`].
pub fn schedule(
    graph: &Graph,
    machine: &Machine,
    costs: &Costs,
    options: &ScheduleOptions,
) -> Result<Vec<Plan>, ScheduleError> {
    search::unattended(|control| schedule_with(graph, machine, costs, options, control))
        .map(|scheduled| scheduled.plans)
}

/// Like [`schedule`], watched: a search that is stopped gives the best plans so far.
///
/// # Errors
/// See [`ScheduleError`].
pub fn schedule_with(
    graph: &Graph,
    machine: &Machine,
    costs: &Costs,
    options: &ScheduleOptions,
    control: &mut Control<'_>,
) -> Result<Scheduled, ScheduleError> {
    let inputs = Inputs {
        graph,
        machine,
        costs,
        options,
    };
    let analysis = inputs::Analysis::of(graph)?;

    let main = block::best_plan(inputs, &analysis, control)?;
    let mut plans = vec![main.plan];
    if plans[0].block > 1 {
        plans.push(block::tail_plan(inputs, &analysis, &plans[0], control)?);
    }
    Ok(Scheduled {
        plans,
        estimate: main.estimate,
    })
}
