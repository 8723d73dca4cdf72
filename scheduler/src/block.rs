//! How many iterations one block has, and whether the plan is pipelined: the trade of throughput against latency and
//! memory.

use zbmd_ir::{ActorId, Buffer, Calendar, DeviceId, Plan, limits};

use crate::analysis::EdgeList;
use crate::assign::Objective;
use crate::buffers::{Mode, Unit};
use crate::candidates::{candidate_devices, unlike_alone};
use crate::chunks;
use crate::cluster::components;
use crate::cost::{
    BLOCK_BYTES, BLOCK_WORK_PS, MAX_PERIOD_LOSS_PERCENT, PS_PER_NS, WAITING_GAP, WORK_PER_CALL,
    percent_more,
};
use crate::error::ScheduleError;
use crate::inputs::{Analysis, Inputs, RepetitionVector, allowed_devices};
use crate::options::{Block, Estimate, ScheduleOptions};
use crate::place::{
    ClusterLoads, PlacedClusters, PlacementGoal, cluster_loads, place, quick_starts,
};
use crate::problem::BlockProblem;
use crate::refine::{PlanSearch, RefineGoal};
use crate::search::Control;
use crate::stages::assemble_stages;

/// Largest block that is chosen without being asked for.
const MAX_AUTO_BLOCK: u64 = 1 << 20;

/// A plan, and how good its placement is.
pub(crate) struct RatedPlan {
    pub(crate) plan: Plan,
    pub(crate) estimate: Option<Estimate>,
}

/// The best plan within the options' bounds.
///
/// # Errors
/// See [`ScheduleError`].
pub(crate) fn best_plan(
    inputs: Inputs<'_>,
    analysis: &Analysis,
    control: &mut Control<'_>,
) -> Result<RatedPlan, ScheduleError> {
    let options = inputs.options;
    let largest_block = match (options.block, options.buffers) {
        (Block::Fixed(block), _) => {
            check_block_range(analysis, block)?;
            return plan_within_bounds(inputs, analysis, block, control)
                .or_else(|refusal| refusal.shrunk(inputs, analysis));
        }
        (Block::Auto, Mode::Min(_)) => return smallest_plan(inputs, analysis, control),
        (Block::Auto, _) => choose_block(inputs, analysis),
    };

    // Larger blocks are quicker per iteration, so the first that keeps the bounds is the best; unless it gave up
    // devices for a short latency, which a smaller block may not have to.
    let mut best: Option<RatedPlan> = None;
    let mut best_of_chunks: Option<RatedPlan> = None;
    let mut refusal = ScheduleError::NoDevices;
    let halves = |block: &u64| (*block > 1).then_some(block / 2);
    for block in std::iter::successors(Some(largest_block), halves) {
        match plan_within_bounds(inputs, analysis, block, control) {
            // A smaller block as a whole may be quicker than a larger one in chunks, and the other way round.
            Ok(found) if found.plan.buffers.iter().any(Buffer::is_chunked) => {
                best_of_chunks = Some(quicker(best_of_chunks, found));
            }
            Ok(found) if options.max_latency_ns.is_none() => {
                return Ok(quicker(best_of_chunks, found));
            }
            Ok(found) => match best {
                Some(best) if !is_quicker(&found.plan, &best.plan) => return Ok(best),
                _ => best = Some(found),
            },
            Err(BlockRefusal { error, over_size }) => {
                if let Some(over_size) = over_size
                    && let Some(found) = shrink(inputs, analysis, *over_size)
                {
                    best_of_chunks = Some(quicker(best_of_chunks, found));
                }
                refusal = error;
            }
        }
    }
    if let Some(best) = best.or(best_of_chunks) {
        return Ok(best);
    }

    match refusal {
        ScheduleError::Buffers { .. } | ScheduleError::Memory { .. } => {
            let found = smallest_plan(inputs, analysis, control)?;
            check_bounds(&found.plan, options).map(|()| found)
        }
        _ => Err(refusal),
    }
}

/// Whether a plan takes less time for an iteration than another.
fn is_quicker(plan: &Plan, other: &Plan) -> bool {
    let plan_time = u128::from(plan.period_ns) * u128::from(other.block);
    plan_time < u128::from(other.period_ns) * u128::from(plan.block)
}

/// The quicker one of two plans; the second where they are alike.
fn quicker(one: Option<RatedPlan>, other: RatedPlan) -> RatedPlan {
    match one {
        Some(one) if is_quicker(&one.plan, &other.plan) => one,
        _ => other,
    }
}

/// Why there is no plan of a block.
struct BlockRefusal {
    error: ScheduleError,
    /// The plan whose buffers are larger than allowed, if that is why.
    over_size: Option<Box<RatedPlan>>,
}

impl BlockRefusal {
    /// The plan with smaller buffers, or the refusal.
    fn shrunk(self, inputs: Inputs<'_>, analysis: &Analysis) -> Result<RatedPlan, ScheduleError> {
        let shrunk = self
            .over_size
            .and_then(|over_size| shrink(inputs, analysis, *over_size));
        shrunk.ok_or(self.error)
    }
}

impl From<ScheduleError> for BlockRefusal {
    fn from(error: ScheduleError) -> Self {
        BlockRefusal {
            error,
            over_size: None,
        }
    }
}

/// The plan with its runs in the first order whose buffers keep the options' bounds.
fn shrink(inputs: Inputs<'_>, analysis: &Analysis, over_size: RatedPlan) -> Option<RatedPlan> {
    let RatedPlan { plan, estimate } = over_size;
    let problem = BlockProblem::new(inputs, analysis, plan.block).ok()?;
    let fits = |plan: &Plan| check_bounds(plan, inputs.options).is_ok();
    let plan = chunks::first_that_fits(&problem, &plan, fits)?;
    Some(RatedPlan { plan, estimate })
}

/// Single iterations without pipelining, on all devices or on one, in whatever order takes the fewest tokens or bytes.
fn smallest_plan(
    inputs: Inputs<'_>,
    analysis: &Analysis,
    control: &mut Control<'_>,
) -> Result<RatedPlan, ScheduleError> {
    let allowed = allowed_devices(inputs.machine, inputs.options.devices.as_deref());
    let mut device_sets: Vec<Vec<DeviceId>> = vec![allowed.clone()];
    // On one device no channel needs a second buffer.
    if allowed.len() > 1 {
        let unlike = unlike_alone(inputs, &allowed);
        device_sets.extend(unlike.into_iter().map(|device| vec![device]));
    }

    let mut best: Result<RatedPlan, ScheduleError> = Err(ScheduleError::NoDevices);
    for devices in device_sets {
        let options = ScheduleOptions {
            devices: Some(devices),
            ..inputs.options.clone()
        };
        let inputs = Inputs {
            options: &options,
            ..inputs
        };
        let found = make_plan(inputs, analysis, PlanKind::SEQUENTIAL, control)
            .and_then(|found| smallest_order(inputs, analysis, found))
            .and_then(|found| check_latency(&found.plan, &options).map(|()| found));

        let size = |found: &RatedPlan| plan_size(&found.plan, options.buffers);
        let is_improvement = match (&found, &best) {
            (Ok(new), Ok(old)) => size(new) < size(old),
            (Ok(_), Err(_)) => true,
            // The first refusal is that of all devices together, and says the most.
            (Err(_), old) => matches!(old, Err(ScheduleError::NoDevices)),
        };
        if is_improvement {
            best = found;
        }
    }
    best
}

/// The plan with its runs in the order that takes the least, the quickest of those.
fn smallest_order(
    inputs: Inputs<'_>,
    analysis: &Analysis,
    found: RatedPlan,
) -> Result<RatedPlan, ScheduleError> {
    let problem = BlockProblem::new(inputs, analysis, found.plan.block)?;
    let rank = |plan: &Plan| (plan_size(plan, inputs.options.buffers), plan.period_ns);
    let smallest = chunks::all_orders(&problem, &found.plan).min_by_key(rank);
    Ok(match smallest {
        Some(plan) if rank(&plan) < rank(&found.plan) => RatedPlan {
            plan,
            estimate: found.estimate,
        },
        _ => found,
    })
}

/// What is to be small about a plan, and what else is where that is alike.
fn plan_size(plan: &Plan, buffers: Mode) -> (u64, u64) {
    let tokens = plan_tokens(plan);
    let bytes = plan_bytes(plan);
    match buffers {
        Mode::Min(Unit::Tokens) | Mode::Within(_, Unit::Tokens) => (tokens, bytes),
        _ => (bytes, tokens),
    }
}

/// Bytes of all regions of a plan.
pub(crate) fn plan_bytes(plan: &Plan) -> u64 {
    plan.calendars
        .iter()
        .map(calendar_bytes)
        .fold(0, u64::saturating_add)
}

fn calendar_bytes(calendar: &Calendar) -> u64 {
    calendar.arena_bytes.saturating_add(calendar.exchange_bytes)
}

/// Tokens that the buffers of a plan can hold.
fn plan_tokens(plan: &Plan) -> u64 {
    plan.buffers
        .iter()
        .map(buffer_tokens)
        .fold(0, u64::saturating_add)
}

fn buffer_tokens(buffer: &Buffer) -> u64 {
    buffer
        .head_tokens
        .saturating_add(buffer.chunk_tokens)
        .saturating_mul(buffer.blocks.into())
}

/// The plan that runs single iterations on the same devices as `main`.
///
/// # Errors
/// See [`ScheduleError`].
pub(crate) fn tail_plan(
    inputs: Inputs<'_>,
    analysis: &Analysis,
    main: &Plan,
    control: &mut Control<'_>,
) -> Result<Plan, ScheduleError> {
    // The tail continues where the main plan stops, on the same devices.
    let pins = main.placement.iter_enumerated();
    let pinned_options = ScheduleOptions {
        pins: pins.map(|(actor, &device)| (actor, device)).collect(),
        ..inputs.options.clone()
    };
    let pinned_inputs = Inputs {
        options: &pinned_options,
        ..inputs
    };

    let rated = match make_plan(pinned_inputs, analysis, PlanKind::TAIL, control) {
        // With single iterations a delay may cover less of a cycle, or more: let the actors move together again.
        Err(ScheduleError::PinnedApart { .. }) => {
            make_plan(inputs, analysis, PlanKind::TAIL, control)
        }
        other => other,
    };
    rated.map(|rated| rated.plan)
}

/// Firings of the actor that fires most often in one iteration, at least 1.
fn max_firings(repetition: &RepetitionVector) -> u64 {
    repetition.iter().copied().max().unwrap_or(1).max(1)
}

fn check_block_range(analysis: &Analysis, block: u64) -> Result<(), ScheduleError> {
    let limit = limits::MAX_FIRINGS / max_firings(&analysis.repetition);
    if block == 0 || block > limit {
        return Err(ScheduleError::BlockRange { block, limit });
    }
    Ok(())
}

/// Pipelined, unless latency is all that counts. Where the placement with the shortest period is not good enough, a search
/// on assembled plans goes on from it.
fn plan_within_bounds(
    inputs: Inputs<'_>,
    analysis: &Analysis,
    block: u64,
    control: &mut Control<'_>,
) -> Result<RatedPlan, BlockRefusal> {
    let options = inputs.options;
    let kind = PlanKind {
        name: "main",
        block,
        pipelined: options.objective.period > 0,
    };
    let found = make_plan(inputs, analysis, kind, control)?;

    let max_latency_ns = options.max_latency_ns.unwrap_or(u64::MAX);
    // The bytes of a plan are known only once its buffers have offsets: this search does not see them.
    let weighs_latency = options.objective.latency > 0 && options.objective.memory == 0;
    let goal = if weighs_latency || found.plan.latency_ns > max_latency_ns {
        RefineGoal {
            objective: options.objective,
            max_period_ns: u64::MAX,
            max_latency_ns,
        }
    } else if options.objective == Objective::PERIOD && has_long_pipeline(&found.plan) {
        // Nobody asked for a short latency, but this one is longer than the devices need.
        RefineGoal {
            objective: Objective::LATENCY,
            max_period_ns: percent_more(found.plan.period_ns, MAX_PERIOD_LOSS_PERCENT),
            max_latency_ns,
        }
    } else {
        return within_bounds(in_cache(inputs, analysis, found)?, options);
    };
    let refined = refine_plan(inputs, analysis, kind, found, goal, control)?;
    within_bounds(in_cache(inputs, analysis, refined)?, options)
}

/// The plan, or the one with buffers of chunks where those are quicker and within the options' bounds.
fn in_cache(
    inputs: Inputs<'_>,
    analysis: &Analysis,
    found: RatedPlan,
) -> Result<RatedPlan, ScheduleError> {
    let problem = BlockProblem::new(inputs, analysis, found.plan.block)?;
    let chunked = chunks::quicker_in_cache(&problem, &found.plan);
    let chunked = chunked.filter(|plan| check_bounds(plan, inputs.options).is_ok());
    Ok(RatedPlan {
        plan: chunked.unwrap_or(found.plan),
        estimate: found.estimate,
    })
}

/// Whether a block takes more periods from its first slot to its last than the devices in a row and one more.
fn has_long_pipeline(plan: &Plan) -> bool {
    let periods = plan.calendars.len() as u64 + 1;
    plan.stages > 1 && plan.latency_ns > plan.period_ns.saturating_mul(periods)
}

/// The best plan for a goal that a search on assembled plans leads to, from the one found and others.
fn refine_plan(
    inputs: Inputs<'_>,
    analysis: &Analysis,
    kind: PlanKind,
    found: RatedPlan,
    goal: RefineGoal,
    control: &mut Control<'_>,
) -> Result<RatedPlan, ScheduleError> {
    let problem = BlockProblem::new(inputs, analysis, kind.block)?;
    let allowed = allowed_devices(problem.machine, problem.options.devices.as_deref());
    let loads = cluster_loads(&problem, &allowed)?;

    let mut starts = vec![problem.devices_of_clusters(&found.plan)];
    starts.extend(quick_starts(
        &problem,
        &loads,
        &allowed,
        kind.pipelined,
        control,
    ));
    let devices = candidate_devices(&problem, &loads, &allowed, false);
    let search = PlanSearch::new(&problem, &loads, &devices, goal, kind.pipelined);
    let plan = search.refine(&starts, kind.name, control)?;

    // The bound is one of the period, or of a weighted sum that takes the latency for stages times the period.
    let estimate = found
        .estimate
        .filter(|_| problem.options.objective == Objective::PERIOD);
    let estimate = estimate.map(|estimate| Estimate {
        cost: plan.period_ns.saturating_mul(PS_PER_NS),
        ..estimate
    });
    Ok(RatedPlan { plan, estimate })
}

/// The plan, if it keeps the options' bounds.
fn within_bounds(found: RatedPlan, options: &ScheduleOptions) -> Result<RatedPlan, BlockRefusal> {
    match check_bounds(&found.plan, options) {
        Ok(()) => Ok(found),
        Err(error @ ScheduleError::Buffers { .. }) => Err(BlockRefusal {
            error,
            over_size: Some(Box::new(found)),
        }),
        Err(error) => Err(error.into()),
    }
}

fn check_bounds(plan: &Plan, options: &ScheduleOptions) -> Result<(), ScheduleError> {
    if let Mode::Within(limit, unit) = options.buffers {
        let needed = match unit {
            Unit::Tokens => plan_tokens(plan),
            Unit::Bytes => plan_bytes(plan),
        };
        if needed > limit {
            return Err(ScheduleError::Buffers {
                needed,
                limit,
                unit,
                block: plan.block,
            });
        }
    }

    check_latency(plan, options)
}

fn check_latency(plan: &Plan, options: &ScheduleOptions) -> Result<(), ScheduleError> {
    let best_ns = plan.latency_ns;
    match options.max_latency_ns {
        Some(limit_ns) if best_ns > limit_ns => Err(ScheduleError::Latency { best_ns, limit_ns }),
        _ => Ok(()),
    }
}

/// Which plan is made.
#[derive(Clone, Copy)]
struct PlanKind {
    name: &'static str,
    block: u64,
    pipelined: bool,
}

impl PlanKind {
    /// A main plan with the smallest buffers: single iterations, one after the other.
    const SEQUENTIAL: PlanKind = PlanKind {
        name: "main",
        block: 1,
        pipelined: false,
    };

    const TAIL: PlanKind = PlanKind {
        name: "tail",
        block: 1,
        pipelined: true,
    };
}

/// Places the clusters of one block size and assembles the plan.
fn make_plan(
    inputs: Inputs<'_>,
    analysis: &Analysis,
    kind: PlanKind,
    control: &mut Control<'_>,
) -> Result<RatedPlan, ScheduleError> {
    let problem = BlockProblem::new(inputs, analysis, kind.block)?;
    let allowed = allowed_devices(problem.machine, problem.options.devices.as_deref());
    if allowed.is_empty() {
        return Err(ScheduleError::NoDevices);
    }

    let attempts = Attempts {
        problem: &problem,
        loads: cluster_loads(&problem, &allowed)?,
        allowed,
        kind,
    };
    let mut goal = PlacementGoal {
        objective: match kind.pipelined {
            true => problem.options.objective,
            false => Objective::LATENCY,
        },
        pipelined: kind.pipelined,
        max_stages: None,
        within_memory: false,
        keep_loops_together: false,
    };
    let mut first = attempts.make(goal, control);
    if matches!(first, Err(ScheduleError::Memory { .. })) && attempts.allowed.len() > 1 {
        // Placed for speed it does not fit; placed with an eye on memory it may.
        goal.within_memory = true;
        first = attempts.make(goal, control).or(first);
    }
    let found = first?;

    let may_wait = found
        .estimate
        .is_some_and(|estimate| estimate.gap() > WAITING_GAP);
    if kind.pipelined && may_wait && problem.has_loops() {
        goal.keep_loops_together = true;
        if let Ok(mut other) = attempts.make(goal, control)
            && other.plan.period_ns < found.plan.period_ns
        {
            // The bound is that of all placements, not only of those that keep loops together.
            let estimates = other.estimate.zip(found.estimate);
            other.estimate = estimates.map(|(own, of_all)| Estimate {
                bound: of_all.bound,
                ..own
            });
            return Ok(other);
        }
    }
    Ok(found)
}

/// What several attempts at one plan share.
struct Attempts<'p, 'a> {
    problem: &'p BlockProblem<'a>,
    loads: ClusterLoads,
    allowed: Vec<DeviceId>,
    kind: PlanKind,
}

impl Attempts<'_, '_> {
    fn make(
        &self,
        goal: PlacementGoal,
        control: &mut Control<'_>,
    ) -> Result<RatedPlan, ScheduleError> {
        let placements = place(self.problem, &self.loads, &self.allowed, goal, control);
        let mut assembled = Vec::with_capacity(placements.len());
        let mut refusal = None;
        for placed in placements {
            match self.assemble(placed, goal) {
                Ok(found) => assembled.push(found),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }

        // Of those that are about as quick the ones with about the shortest latency, and of these the one with the fewest
        // stages: each takes memory, and waits for others.
        let keep_about_least = |assembled: &mut Vec<RatedPlan>, figure: fn(&Plan) -> u64| {
            let least = assembled.iter().map(|found| figure(&found.plan)).min();
            let most = percent_more(least.unwrap_or(0), MAX_PERIOD_LOSS_PERCENT);
            assembled.retain(|found| figure(&found.plan) <= most);
        };
        keep_about_least(&mut assembled, |plan| plan.period_ns);
        keep_about_least(&mut assembled, |plan| plan.latency_ns);
        let best = assembled
            .into_iter()
            .min_by_key(|found| (found.plan.stages, found.plan.latency_ns));
        // Without any, all were refused: there was at least one.
        best.ok_or_else(|| refusal.unwrap_or(ScheduleError::NoDevices))
    }

    fn assemble(
        &self,
        placed: PlacedClusters,
        goal: PlacementGoal,
    ) -> Result<RatedPlan, ScheduleError> {
        let plan = assemble_stages(
            self.problem,
            &placed.devices,
            self.kind.pipelined,
            self.kind.name,
        )?;

        let mut estimate = placed.estimate;
        if let Some(estimate) = &mut estimate
            && goal.objective == Objective::PERIOD
        {
            // The loads of the devices leave out what they wait for each other.
            let period_ps = plan.period_ns.saturating_mul(PS_PER_NS);
            estimate.cost = estimate.cost.max(period_ps);
        }
        Ok(RatedPlan { plan, estimate })
    }
}

/// Smallest power of two whose work outweighs calls and hand-overs, unless the block would outgrow the cache first.
fn choose_block(inputs: Inputs<'_>, analysis: &Analysis) -> u64 {
    let repetition = &analysis.repetition;
    let mut work_ps = 0u64;
    let mut call_ps = 0u64;
    let mut iteration_bytes = 0u64;

    for (id, actor) in inputs.graph.actors.iter_enumerated() {
        // On the device that is cheapest for the actor.
        let known_costs = inputs.costs.table[id].iter().flatten();
        let (cheapest_firing_ps, cheapest_call_ps) = known_costs
            .map(|cost| (cost.firing_ps, cost.call_ps))
            .min()
            .unwrap_or((0, 0));
        work_ps = work_ps.saturating_add(cheapest_firing_ps.saturating_mul(repetition[id]));
        call_ps = call_ps.saturating_add(cheapest_call_ps);

        for output in &actor.outputs {
            let tokens = repetition[id].saturating_mul(output.rate);
            let written_bytes = tokens.saturating_mul(output.token.bytes());
            iteration_bytes = iteration_bytes.saturating_add(written_bytes);
        }
    }

    let wanted_ps = BLOCK_WORK_PS.max(call_ps.saturating_mul(WORK_PER_CALL));
    let max_block = limits::MAX_FIRINGS / max_firings(repetition);
    // In the worst case every firing inside a cycle is a call of its own.
    let cyclic_calls = cyclic_firings(&analysis.edges, repetition);

    let mut block = 1u64;
    while block < MAX_AUTO_BLOCK
        && block * 2 <= max_block
        && work_ps.saturating_mul(block) < wanted_ps
        && iteration_bytes.saturating_mul(block * 2) <= BLOCK_BYTES
        && cyclic_calls.saturating_mul(block * 2) <= inputs.options.max_executions
    {
        block *= 2;
    }
    block
}

/// Firings of one iteration that may have to interleave, because their actor lies on a cycle.
fn cyclic_firings(edges: &EdgeList, repetition: &RepetitionVector) -> u64 {
    let mut firings = 0u64;

    for members in components(edges, repetition.len(), |edge| !edge.state) {
        if members.len() > 1 || has_own_loop(edges, members[0]) {
            for actor in members {
                firings = firings.saturating_add(repetition[actor]);
            }
        }
    }
    firings
}

/// Whether an actor reads what it writes itself, other than as a state.
fn has_own_loop(edges: &EdgeList, actor: ActorId) -> bool {
    edges
        .edges_into(actor)
        .any(|edge| edge.writer == actor && !edge.state)
}
