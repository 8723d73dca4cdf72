//! `AllReduce` and `Broadcast` in parts: each device of the replicas adds up, or passes on, a part of every token.
//!
//! In one piece, all tokens go to one device, which sends its result to every reader. In parts, actor `a` becomes
//! `a#part0 … a#partk-1`: every writer's token is cut up and its parts go to as many actors, and every reader puts the
//! results together again. With one replica a device, each device then sends and receives 2(k - 1)/k tokens, which is
//! what a ring's reduce-scatter and all-gather do, in two steps instead of 2(k - 1). A part adds up in the same order as
//! the whole: the bits do not depend on the choice, and so it is made by the predicted cost alone.
//!
//! Everything that comes after sees an ordinary graph.

mod divide;

use std::cmp::Reverse;

use zbmd_ir::{ActorId, Graph, Machine};
use zbmd_scheduler::replicate::is_worth;
use zbmd_scheduler::{Control, Level, ScheduleOptions, schedule_with};

use crate::in_place;
use crate::replicate::ScheduleRequest;

use self::divide::collective_bytes;

pub use self::divide::divide;

/// The pass, for [`crate::CompileOptions::skipped_passes`].
pub(crate) const NAME: &str = "collectives";
pub(crate) const SUMMARY: &str =
    "AllReduce and Broadcast in parts on several devices, where that is predicted to be quicker";

/// Graphs that are tried: all collectives in parts, the larger half of them, and so on.
const MAX_TRIED: usize = 4;

/// Divides collectives into parts where that pays; how many. Each attempt is a schedule of the whole graph.
///
/// `marks_in_place` says whether outputs may lie over inputs.
pub(crate) fn divide_collectives(
    graph: &Graph,
    request: ScheduleRequest<'_>,
    marks_in_place: bool,
    control: &mut Control<'_>,
) -> Option<(Graph, usize)> {
    let candidates = find_candidates(graph, request);
    if candidates.is_empty() {
        return None;
    }

    let mut shortest = predicted_time(graph, request, control)?;
    let mut best = None;
    let halves = std::iter::successors(Some(candidates.len()), |&count| {
        (count > 1).then_some(count / 2)
    });
    for count in halves.take(MAX_TRIED) {
        let Some(divided) = attempt(graph, &candidates[..count], request, marks_in_place) else {
            continue;
        };
        if let Some(time) = predicted_time(&divided, request, control)
            && is_worth(time, shortest)
        {
            shortest = time;
            best = Some((divided, count));
        }
    }
    best
}

/// The collectives that can be divided, those that move most bytes first.
fn find_candidates(graph: &Graph, request: ScheduleRequest<'_>) -> Vec<ActorId> {
    let is_spread = usable_devices(request.machine, request.options) > 1;
    if !is_spread {
        return Vec::new();
    }

    let mut candidates: Vec<(u64, ActorId)> = Vec::new();
    for actor in graph.actors.keys() {
        // Whoever pins a collective says where all of it runs.
        if request.options.pins.contains_key(&actor) {
            continue;
        }
        if let Some(bytes) = collective_bytes(graph, actor) {
            candidates.push((bytes, actor));
        }
    }
    candidates.sort_by_key(|&(bytes, actor)| (Reverse(bytes), actor));
    candidates.into_iter().map(|(_, actor)| actor).collect()
}

fn usable_devices(machine: &Machine, options: &ScheduleOptions) -> usize {
    let allowed = options.devices.as_ref();
    allowed.map_or(machine.devices.len(), Vec::len)
}

/// The graph with these collectives in parts, one for each device if there are as many replicas.
fn attempt(
    graph: &Graph,
    collectives: &[ActorId],
    request: ScheduleRequest<'_>,
    marks_in_place: bool,
) -> Option<Graph> {
    let sources = request.costs;
    let max_parts = usable_devices(request.machine, request.options) as u64;
    let mut graph = divide(
        graph,
        collectives,
        max_parts,
        &request.options.pins,
        sources.registry,
        sources.blobs,
    )?;
    if marks_in_place {
        // Tokens that are cut up and put together in place cost no copies.
        in_place::mark_in_place_pairs(&mut graph, sources.registry, sources.blobs);
    }
    Some(graph)
}

/// What the objective weighs: picoseconds of an iteration, of a block's latency, or of both. `None` where there is no
/// schedule, or time has no weight.
fn predicted_time(
    graph: &Graph,
    request: ScheduleRequest<'_>,
    control: &mut Control<'_>,
) -> Option<u128> {
    let objective = request.options.objective;
    if (control.stop)() || (objective.period == 0 && objective.latency == 0) {
        return None;
    }

    let options = ScheduleOptions {
        level: Level::Fast,
        ..request.options.clone()
    };
    let costs = request.costs.cost_table(graph);
    let scheduled = schedule_with(graph, request.machine, &costs, &options, control).ok()?;
    let plan = scheduled.plans.first()?;

    let iteration_ps = u128::from(plan.period_ns) * 1000 / u128::from(plan.block.max(1));
    let latency_ps = u128::from(plan.latency_ns) * 1000;
    let weighted_period = iteration_ps.saturating_mul(u128::from(objective.period));
    let weighted_latency = latency_ps.saturating_mul(u128::from(objective.latency));
    Some(weighted_period.saturating_add(weighted_latency))
}
