//! How many iterations one block has, and whether the plan is pipelined: the trade of throughput against latency and
//! memory.

use zbmd_ir::{ActorId, Costs, Graph, Machine, Plan, PortChannels, TiVec, limits};

use crate::analysis::Edges;
use crate::assemble::assemble;
use crate::place::{allowed_devices, loads, place};
use crate::problem::Problem;
use crate::{Block, Options, ScheduleError};

/// What every attempt starts from.
pub(crate) struct Input<'a> {
    pub(crate) given: (&'a Graph, &'a Machine, &'a Costs, &'a Options),
    pub(crate) derived: (&'a PortChannels, &'a Edges, &'a TiVec<ActorId, u64>),
}

/// Work that a block should hold, in picoseconds: a hundred times what a hand-over between devices costs.
const BLOCK_WORK_PS: u64 = 50_000_000;
/// Work per call that makes the call's own cost small.
const CALLS_PER_WORK: u64 = 20;
/// Bytes of one block on all channels beyond which larger blocks fall out of the cache.
const BLOCK_BYTES: u64 = 256 << 10;
/// Largest block chosen unasked.
const MAX_AUTO_BLOCK: u64 = 1 << 20;

/// The best plan within the options' bounds.
pub(crate) fn best_plan(input: &Input<'_>) -> Result<Plan, ScheduleError> {
    let options = input.given.3;
    let largest = match options.block {
        Block::Fixed(block) => {
            check_range(input, block)?;
            return bounded_plan(input, block).and_then(|plan| within_latency(plan, options));
        }
        Block::Auto => auto_block(input),
    };
    // Larger blocks are quicker per iteration, so the first that keeps the bounds is the best.
    let mut refusal = ScheduleError::NoDevices;
    for block in std::iter::successors(Some(largest), |b| (*b > 1).then_some(b / 2)) {
        match bounded_plan(input, block).and_then(|plan| within_latency(plan, options)) {
            Ok(plan) => return Ok(plan),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

/// The plan that runs single iterations on the same devices as `main`.
pub(crate) fn tail_plan(input: &Input<'_>, main: &Plan) -> Result<Plan, ScheduleError> {
    let (graph, machine, costs, options) = input.given;
    let mut options = options.clone();
    options.pins =
        main.placement.iter_enumerated().map(|(actor, &device)| (actor, device)).collect();
    let input = Input { given: (graph, machine, costs, &options), derived: input.derived };
    match plan_of(&input, 1, true, "tail") {
        // With single iterations a delay may cover less of a cycle, or more: let the actors move together again.
        Err(ScheduleError::PinnedApart { .. }) => plan_of(
            &Input { given: (graph, machine, costs, input.given.3), ..input },
            1,
            true,
            "tail",
        ),
        other => other,
    }
}

fn check_range(input: &Input<'_>, block: u64) -> Result<(), ScheduleError> {
    let most = input.derived.2.iter().copied().max().unwrap_or(1).max(1);
    let limit = limits::MAX_FIRINGS / most;
    if block == 0 || block > limit {
        return Err(ScheduleError::BlockRange { block, limit });
    }
    Ok(())
}

/// Pipelined if that is quicker and the latency allows it.
fn bounded_plan(input: &Input<'_>, block: u64) -> Result<Plan, ScheduleError> {
    let pipelined = plan_of(input, block, true, "main")?;
    let late = input.given.3.max_latency_ns.is_some_and(|limit| pipelined.latency_ns > limit);
    if pipelined.stages > 1 && late {
        return plan_of(input, block, false, "main");
    }
    Ok(pipelined)
}

fn within_latency(plan: Plan, options: &Options) -> Result<Plan, ScheduleError> {
    match options.max_latency_ns {
        Some(limit_ns) if plan.latency_ns > limit_ns => {
            Err(ScheduleError::Latency { best_ns: plan.latency_ns, limit_ns })
        }
        _ => Ok(plan),
    }
}

fn plan_of(
    input: &Input<'_>,
    block: u64,
    pipelined: bool,
    name: &str,
) -> Result<Plan, ScheduleError> {
    let problem = Problem::new(input.given, input.derived, block)?;
    let allowed = allowed_devices(problem.machine, problem.options.devices.as_deref());
    if allowed.is_empty() {
        return Err(ScheduleError::NoDevices);
    }
    let load = loads(&problem, &allowed)?;
    let placement = place(&problem, &load, &allowed);
    assemble(&problem, &placement, pipelined, name)
}

/// Smallest power of two whose work outweighs calls and hand-overs, unless the block would outgrow the cache first.
fn auto_block(input: &Input<'_>) -> u64 {
    let (graph, _, costs, options) = input.given;
    let (_, edges, q) = input.derived;
    let (mut work, mut calls, mut bytes) = (0u64, 0u64, 0u64);
    for (actor, a) in graph.actors.iter_enumerated() {
        let cost = costs.table[actor]
            .iter()
            .flatten()
            .map(|c| (c.firing_ps, c.call_ps))
            .min()
            .unwrap_or((0, 0));
        work = work.saturating_add(cost.0.saturating_mul(q[actor]));
        calls = calls.saturating_add(cost.1);
        for out in &a.outputs {
            let tokens = q[actor].saturating_mul(out.rate);
            bytes = bytes.saturating_add(tokens.saturating_mul(out.token.bytes()));
        }
    }
    let wanted = BLOCK_WORK_PS.max(calls.saturating_mul(CALLS_PER_WORK));
    let most = limits::MAX_FIRINGS / q.iter().copied().max().unwrap_or(1).max(1);
    // In the worst case every firing inside a cycle is a call of its own.
    let cyclic: u64 = cyclic_firings(edges, q);
    let mut block = 1u64;
    while block < MAX_AUTO_BLOCK
        && block * 2 <= most
        && work.saturating_mul(block) < wanted
        && bytes.saturating_mul(block * 2) <= BLOCK_BYTES
        && cyclic.saturating_mul(block * 2) <= options.max_executions
    {
        block *= 2;
    }
    block
}

/// Firings of one iteration that may have to interleave, because their actor lies on a cycle.
fn cyclic_firings(edges: &Edges, q: &TiVec<ActorId, u64>) -> u64 {
    let components = crate::cluster::components(edges, q.len(), |e| !e.state);
    let mut sum = 0u64;
    for members in components {
        let own_loop = edges.into[members[0]].iter().any(|&e| {
            let edge = &edges.all[e as usize];
            edge.writer == members[0] && !edge.state
        });
        if members.len() > 1 || own_loop {
            sum = members.iter().fold(sum, |sum, &a| sum.saturating_add(q[a]));
        }
    }
    sum
}
