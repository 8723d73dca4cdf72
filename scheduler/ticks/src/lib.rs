//! From an SDF graph and a machine that keeps time to a plan to the tick: pure functions without I/O, clock or threads.
//!
//! [`schedule`] reads as the pipeline: what bounds the period -> placements -> for each, the shortest period at which
//! firings and frames find their ticks -> buffers. Plans are checked by `zbmd_ticks::verify`, which shares no code with
//! this crate.

mod attempt;
mod bound;
mod buffers;
mod contingency;
mod copies;
mod error;
mod order;
mod place;
mod problem;
mod reservation;
mod route;
mod search;
#[cfg(test)]
mod tests;

use zbmd_ir::Graph;
use zbmd_ticks::{Network, NodeId, TickMachine, TickPlan};

use self::copies::CopyRule;

pub use contingency::{LossSchedule, contingencies};
pub use error::TickScheduleError;

/// A plan, and how good it is.
#[derive(Clone, Debug, PartialEq)]
pub struct TickSchedule {
    /// The plan.
    pub plan: TickPlan,
    /// A period below which no plan can go on this machine, in ticks.
    pub bound: u64,
    /// Ticks from the start of an iteration's first firing to the end of its last.
    pub latency: u64,
}

impl TickSchedule {
    /// How far the period is above the bound, as a part of it.
    pub fn gap(&self) -> f64 {
        self.plan.period as f64 / self.bound.max(1) as f64 - 1.0
    }
}

/// Makes a plan for a graph, for runs that the first loss ends.
///
/// The graph must have passed `zbmd_ir::verify::graph::check_graph` (ids in range, every port connected once).
/// Deterministic: ties go to the lower id.
///
/// # Errors
/// See [`TickScheduleError`].
pub fn schedule(graph: &Graph, machine: &TickMachine) -> Result<TickSchedule, TickScheduleError> {
    let network = machine.network()?;
    let nodes = connected_nodes(&network)?;
    schedule_on(graph, machine, &network, nodes, CopyRule::None)
}

/// Like [`schedule`], with a copy of each border on a second node, so that after the loss of any one node or link the part
/// of the network that [`contingencies`] has a plan for has all of them. The copies take frames and memory, so the period
/// may be longer.
///
/// # Errors
/// See [`TickScheduleError`].
pub fn schedule_with_copies(
    graph: &Graph,
    machine: &TickMachine,
) -> Result<TickSchedule, TickScheduleError> {
    let network = machine.network()?;
    let nodes = connected_nodes(&network)?;
    let rule = CopyRule::for_losses(&network, &nodes);
    schedule_on(graph, machine, &network, nodes, rule)
}

/// The most nodes of a whole network that can reach each other.
fn connected_nodes(network: &Network) -> Result<Vec<NodeId>, TickScheduleError> {
    contingency::largest_part(contingency::parts(network, None), |_| true)
}

/// Makes a plan that uses some nodes of a machine's network, or of what is left of it after a loss.
fn schedule_on(
    graph: &Graph,
    machine: &TickMachine,
    network: &Network,
    nodes: Vec<NodeId>,
    copy_rule: CopyRule,
) -> Result<TickSchedule, TickScheduleError> {
    let problem = problem::Problem::new(graph, machine, network, nodes, copy_rule)?;
    let bound = bound::period_bound(&problem)?;
    let placements = place::placements(&problem);
    let plan = search::best_plan(&problem, bound, &placements)?;
    Ok(TickSchedule {
        latency: plan.latency(&problem.durations),
        plan,
        bound,
    })
}
