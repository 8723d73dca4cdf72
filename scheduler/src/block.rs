//! How many iterations one block has, and whether the plan is pipelined: the trade of throughput against latency and
//! memory.

use zbmd_ir::{ActorId, Costs, DeviceId, Graph, Machine, Plan, PortChannels, TiVec, limits};

use crate::analysis::Edges;
use crate::assemble::assemble;
use crate::assign::Objective;
use crate::buffers::{Mode, Unit};
use crate::place::{Aim, allowed_devices, loads, place};
use crate::problem::Problem;
use crate::search::Control;
use crate::{Block, Estimate, Options, ScheduleError};

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

/// A plan, and how good its placement is.
pub(crate) type Found = (Plan, Option<Estimate>);

/// The best plan within the options' bounds.
pub(crate) fn best_plan(
    input: &Input<'_>,
    control: &mut Control<'_>,
) -> Result<Found, ScheduleError> {
    let options = input.given.3;
    let largest = match (options.block, options.buffers) {
        (Block::Fixed(block), _) => {
            check_range(input, block)?;
            return bounded_plan(input, block, control);
        }
        (Block::Auto, Mode::Min(_)) => return smallest_plan(input, control),
        (Block::Auto, _) => auto_block(input),
    };
    // Larger blocks are quicker per iteration, so the first that keeps the bounds is the best.
    let mut refusal = ScheduleError::NoDevices;
    for block in std::iter::successors(Some(largest), |b| (*b > 1).then_some(b / 2)) {
        match bounded_plan(input, block, control) {
            Ok(found) => return Ok(found),
            Err(error) => refusal = error,
        }
    }
    if matches!(
        refusal,
        ScheduleError::Buffers { .. } | ScheduleError::Memory { .. }
    ) {
        return smallest_plan(input, control).and_then(|found| within_bounds(found, options));
    }
    Err(refusal)
}

/// Single iterations without pipelining, on all devices or on one, whatever takes the fewest bytes.
fn smallest_plan(input: &Input<'_>, control: &mut Control<'_>) -> Result<Found, ScheduleError> {
    let (graph, machine, costs, options) = input.given;
    let allowed = allowed_devices(machine, options.devices.as_deref());
    let mut best: Result<Found, ScheduleError> = Err(ScheduleError::NoDevices);
    let mut consider = |devices: Vec<DeviceId>, control: &mut Control<'_>| {
        let options = Options {
            devices: Some(devices),
            ..options.clone()
        };
        let input = Input {
            given: (graph, machine, costs, &options),
            derived: input.derived,
        };
        let found = plan_of(&input, 1, false, "main", control)
            .and_then(|found| within_latency(found, &options));
        let better = match (&found, &best) {
            (Ok(new), Ok(old)) => bytes(&new.0) < bytes(&old.0),
            (Ok(_), Err(_)) => true,
            (Err(_), old) => matches!(old, Err(ScheduleError::NoDevices)),
        };
        if better {
            best = found;
        }
    };
    consider(allowed.clone(), control);
    for &device in allowed.iter().filter(|_| allowed.len() > 1) {
        consider(vec![device], control);
    }
    best
}

/// Bytes of all regions of a plan.
fn bytes(plan: &Plan) -> u64 {
    let sum = |c: &zbmd_ir::Calendar| c.arena_bytes.saturating_add(c.exchange_bytes);
    plan.calendars.iter().map(sum).fold(0, u64::saturating_add)
}

/// Tokens that the buffers of a plan hold at most.
fn tokens(plan: &Plan) -> u64 {
    let places = |b: &zbmd_ir::Buffer| {
        b.head_tokens
            .saturating_add(b.block_tokens)
            .saturating_mul(b.blocks.into())
    };
    plan.buffers.iter().map(places).fold(0, u64::saturating_add)
}

/// The plan that runs single iterations on the same devices as `main`.
pub(crate) fn tail_plan(
    input: &Input<'_>,
    main: &Plan,
    control: &mut Control<'_>,
) -> Result<Plan, ScheduleError> {
    let (graph, machine, costs, options) = input.given;
    let mut options = options.clone();
    options.pins = main
        .placement
        .iter_enumerated()
        .map(|(actor, &device)| (actor, device))
        .collect();
    let input = Input {
        given: (graph, machine, costs, &options),
        derived: input.derived,
    };
    let plan = match plan_of(&input, 1, true, "tail", control) {
        // With single iterations a delay may cover less of a cycle, or more: let the actors move together again.
        Err(ScheduleError::PinnedApart { .. }) => plan_of(
            &Input {
                given: (graph, machine, costs, input.given.3),
                ..input
            },
            1,
            true,
            "tail",
            control,
        ),
        other => other,
    };
    plan.map(|(plan, _)| plan)
}

fn check_range(input: &Input<'_>, block: u64) -> Result<(), ScheduleError> {
    let most = input.derived.2.iter().copied().max().unwrap_or(1).max(1);
    let limit = limits::MAX_FIRINGS / most;
    if block == 0 || block > limit {
        return Err(ScheduleError::BlockRange { block, limit });
    }
    Ok(())
}

/// Pipelined, unless latency is all that counts or the latency does not allow it.
fn bounded_plan(
    input: &Input<'_>,
    block: u64,
    control: &mut Control<'_>,
) -> Result<Found, ScheduleError> {
    let options = input.given.3;
    let pipeline = options.objective.period > 0;
    let mut found = plan_of(input, block, pipeline, "main", control)?;
    let late = options
        .max_latency_ns
        .is_some_and(|limit| found.0.latency_ns > limit);
    if found.0.stages > 1 && late {
        found = plan_of(input, block, false, "main", control)?;
    }
    within_bounds(found, options)
}

fn within_bounds(found: Found, options: &Options) -> Result<Found, ScheduleError> {
    let Mode::Within(limit, unit) = options.buffers else {
        return within_latency(found, options);
    };
    let needed = match unit {
        Unit::Tokens => tokens(&found.0),
        Unit::Bytes => bytes(&found.0),
    };
    if needed > limit {
        return Err(ScheduleError::Buffers {
            needed,
            limit,
            unit,
            block: found.0.block,
        });
    }
    within_latency(found, options)
}

fn within_latency(found: Found, options: &Options) -> Result<Found, ScheduleError> {
    match options.max_latency_ns {
        Some(limit_ns) if found.0.latency_ns > limit_ns => Err(ScheduleError::Latency {
            best_ns: found.0.latency_ns,
            limit_ns,
        }),
        _ => Ok(found),
    }
}

fn plan_of(
    input: &Input<'_>,
    block: u64,
    pipelined: bool,
    name: &str,
    control: &mut Control<'_>,
) -> Result<Found, ScheduleError> {
    let problem = Problem::new(input.given, input.derived, block)?;
    let allowed = allowed_devices(problem.machine, problem.options.devices.as_deref());
    if allowed.is_empty() {
        return Err(ScheduleError::NoDevices);
    }
    let load = loads(&problem, &allowed)?;
    let objective = if pipelined {
        problem.options.objective
    } else {
        Objective::LATENCY
    };
    let mut aim = Aim {
        objective,
        memory: false,
        together: false,
    };
    let mut attempt = |aim: Aim| -> Result<Found, ScheduleError> {
        let placed = place(&problem, &load, &allowed, aim, control);
        let plan = assemble(&problem, &placed.devices, pipelined, name)?;
        let estimate = placed.estimate.map(|mut estimate| {
            if objective == Objective::PERIOD {
                // The loads of the devices leave out what they wait for each other.
                estimate.cost = estimate.cost.max(plan.period_ns.saturating_mul(1_000));
            }
            estimate
        });
        Ok((plan, estimate))
    };
    let mut found = attempt(aim);
    if matches!(found, Err(ScheduleError::Memory { .. })) && allowed.len() > 1 {
        // Placed for speed it does not fit; placed with an eye on memory it may.
        aim.memory = true;
        found = attempt(aim).or(found);
    }
    let (plan, estimate) = found?;
    let waits = estimate.is_some_and(|e| e.gap() > WAITING);
    if pipelined && waits && problem.has_loops() {
        aim.together = true;
        if let Ok((other, quality)) = attempt(aim)
            && other.period_ns < plan.period_ns
        {
            // The bound is that of all placements, not only of those that keep loops together.
            let quality = quality.zip(estimate).map(|(q, e)| Estimate {
                bound: e.bound,
                ..q
            });
            return Ok((other, quality));
        }
    }
    Ok((plan, estimate))
}

/// Gap from which on a plan whose devices wait for each other within the period is tried with loops kept together.
const WAITING: f64 = 0.05;

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
