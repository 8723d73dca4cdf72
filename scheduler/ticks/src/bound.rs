//! A period below which no plan can go.

use zbmd_scheduler::throughput::{TimedSdf, analyse};

use crate::TickScheduleError;
use crate::problem::Problem;

/// The largest of three bounds, in ticks: the cycles of the graph with all communication free, the work of all actors
/// spread evenly over all nodes, and the work of one actor, all of whose firings are on one node.
pub(crate) fn period_bound(problem: &Problem<'_>) -> Result<u64, TickScheduleError> {
    let sdf = TimedSdf::of(problem.graph, &problem.durations, Some(1));
    let cycles = analyse(&sdf)?.period;
    let by_cycles = cycles.num().div_ceil(cycles.den()) as u64;

    let works = problem.graph.actors.keys().map(|actor| problem.work(actor));
    let total = works.clone().fold(0, u64::saturating_add);
    let by_nodes = total.div_ceil(problem.network.node_count() as u64);
    let by_actor = works.max().unwrap_or(0);
    Ok(by_cycles.max(by_nodes).max(by_actor).max(1))
}
