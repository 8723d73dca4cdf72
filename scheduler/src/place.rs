//! Placement: which device each cluster runs on.
//!
//! Up to some thousand clusters [`crate::assign`] decides; beyond, two greedy heuristics do. Ties go to fewer devices.
//! Time is bounded whatever the number of devices: [`crate::candidates`] says which of them a search sees.

use std::collections::BTreeSet;

use zbmd_ir::{ActorId, DeviceId, TiVec};

use crate::assign::{
    self, Assignment, Fanout, Objective, PlacementChannel, PlacementDevice, PlacementLink,
    PlacementNode, PlacementProblem,
};
use crate::candidates::{
    CountBounds, FEW_DEVICES, candidate_devices, device_counts, equally_quick,
};
use crate::cluster::{Cluster, is_tight};
use crate::cost::{self, MAX_PERIOD_LOSS_PERCENT, MIN_GAIN_PERCENT, PS_PER_S, RECV_PS, SEND_PS};
use crate::error::ScheduleError;
use crate::options::Estimate;
use crate::problem::BlockProblem;
use crate::search::{Control, Level, LinkTime};

/// Picoseconds of work per block of one cluster on each device; `None` where a member has no kernel or is pinned
/// elsewhere.
pub(crate) type DeviceLoads = TiVec<DeviceId, Option<u64>>;

/// [`DeviceLoads`] of each cluster, by index of the cluster.
pub(crate) type ClusterLoads = Vec<DeviceLoads>;

/// Work of every cluster on every device.
///
/// # Errors
/// [`ScheduleError::NoDevice`] for an actor that no device can run, [`ScheduleError::PinnedApart`] where the members
/// of one cluster are pinned to different devices.
pub(crate) fn cluster_loads(
    problem: &BlockProblem<'_>,
    allowed: &[DeviceId],
) -> Result<ClusterLoads, ScheduleError> {
    let mut loads = Vec::with_capacity(problem.clusters.all.len());

    for cluster in &problem.clusters.all {
        let mut row: DeviceLoads = vec![None; problem.machine.devices.len()].into();
        let members = cluster.members.iter();
        let pins: BTreeSet<DeviceId> = members
            .filter_map(|actor| problem.options.pins.get(actor).copied())
            .collect();
        for &device in allowed {
            // One pinned member decides for all.
            if pins.iter().all(|&pin| pin == device) {
                row[device] = cluster_load(problem, cluster, device);
            }
        }
        if row.iter().all(Option::is_none) {
            return Err(explain_no_device(problem, &cluster.members, allowed));
        }
        loads.push(row);
    }
    Ok(loads)
}

fn cluster_load(problem: &BlockProblem<'_>, cluster: &Cluster, device: DeviceId) -> Option<u64> {
    let calls_of_each = match cluster.members.len() as u64 {
        0 | 1 => cluster.executions,
        members => cluster.executions / members,
    };
    let mut load_ps = 0u64;

    for &actor in &cluster.members {
        let cost = problem.costs.table[actor][device]?;
        let firings = problem.repetition[actor].saturating_mul(problem.block);
        load_ps = load_ps.saturating_add(cost::work_ps(cost, calls_of_each, firings));
    }
    Some(load_ps)
}

/// Why no allowed device can run all members of a cluster.
fn explain_no_device(
    problem: &BlockProblem<'_>,
    members: &[ActorId],
    allowed: &[DeviceId],
) -> ScheduleError {
    let pin_of = |actor: ActorId| problem.options.pins.get(&actor).copied();

    // A member that is impossible by itself is the better explanation, so members are looked at one by one first.
    for &actor in members {
        let runs_on = |device: DeviceId| problem.costs.table[actor][device].is_some();
        match pin_of(actor) {
            Some(device) if !allowed.contains(&device) || !runs_on(device) => {
                return ScheduleError::PinImpossible { actor, device };
            }
            None if !allowed.iter().any(|&device| runs_on(device)) => {
                return ScheduleError::NoDevice { actor };
            }
            _ => {}
        }
    }

    let mut pins = members
        .iter()
        .filter_map(|&actor| Some((actor, pin_of(actor)?)));
    if let Some((first, first_device)) = pins.next()
        && let Some((second, second_device)) = pins.find(|&(_, device)| device != first_device)
    {
        return ScheduleError::PinnedApart {
            first,
            first_device,
            second,
            second_device,
        };
    }
    // Each member alone has a device, but no device has all of them.
    ScheduleError::NoDevice { actor: members[0] }
}

/// Predicted period in picoseconds of a placement: the largest sum of work and sends of any device.
fn period_ps(problem: &BlockProblem<'_>, loads: &ClusterLoads, placement: &[DeviceId]) -> u64 {
    let mut busy_ps: TiVec<DeviceId, u64> = vec![0; problem.machine.devices.len()].into();
    for (cluster, &device) in placement.iter().enumerate() {
        // A device without a kernel is worse than any other, and sums of several do not overflow.
        let load_ps = loads[cluster][device].unwrap_or(u64::MAX / 4);
        busy_ps[device] = busy_ps[device].saturating_add(load_ps);
    }

    let mut receiver_devices: Vec<DeviceId> = Vec::new();
    for (id, channel) in problem.graph.channels.iter_enumerated() {
        let from = placement[problem.cluster_of(channel.from.actor)];
        receiver_devices.clear();
        for reader in &channel.readers {
            let to = placement[problem.cluster_of(reader.to.actor)];
            // Several readers on one device share one ring.
            if to != from && !receiver_devices.contains(&to) {
                receiver_devices.push(to);
                busy_ps[from] = busy_ps[from].saturating_add(problem.send_ps(id, from, to));
                busy_ps[to] = busy_ps[to].saturating_add(RECV_PS);
            }
        }
    }
    busy_ps.into_iter().max().unwrap_or(0)
}

/// Clusters beyond which placements are not searched for: splitting a line of them takes quadratic time.
pub(crate) const MAX_SEARCHED_CLUSTERS: usize = 2_000;

/// Numbers of clusters for which a placement with few stages is looked for thoroughly: fewer leave few placements
/// anyway, and with more it would take most of the time of a compilation.
const THOROUGH_CLUSTERS: std::ops::Range<usize> = 20..100;

/// Thousandths of the shortest period that a search may miss. A placement as close to its bound is not searched for any
/// longer; fewer stages than those of one that is farther from it may cost so much less.
const MISSED_PERMILLE: u64 = 5;

/// A placement, and how good it is.
pub(crate) struct PlacedClusters {
    /// Device of each cluster, by index of the cluster.
    pub(crate) devices: Vec<DeviceId>,
    /// Unknown where no search was made.
    pub(crate) estimate: Option<Estimate>,
}

impl PlacedClusters {
    /// What a search found on some devices; the bound is that of a search on all.
    fn found(assignment: &Assignment, devices: &[DeviceId], bound: u64) -> Self {
        let placement = assignment.placement.iter();
        PlacedClusters {
            devices: placement.map(|&index| devices[index as usize]).collect(),
            estimate: Some(Estimate {
                cost: assignment.evaluation.cost,
                bound,
            }),
        }
    }
}

/// What a placement is to be good for.
#[derive(Clone, Copy)]
pub(crate) struct PlacementGoal {
    pub(crate) objective: Objective,
    /// Work that depends on another device runs a period later.
    pub(crate) pipelined: bool,
    /// Bound on the stages of the pipeline.
    pub(crate) max_stages: Option<u32>,
    /// Only where all buffers of a device fit at the same time.
    pub(crate) within_memory: bool,
    /// Clusters that depend on each other across blocks stay on one device: apart they share a stage and wait for each
    /// other within the period, which the loads of the devices leave out.
    pub(crate) keep_loops_together: bool,
}

/// Places the clusters: at least one placement.
///
/// Of placements that are about as good, the one on fewer devices is taken. Where the objective is the period alone, there
/// may be several on those, with fewer and fewer stages: the period of none is more than [`MAX_PERIOD_LOSS_PERCENT`] above
/// that of another, and what latency they have is known when they are assembled.
pub(crate) fn place(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    allowed: &[DeviceId],
    goal: PlacementGoal,
    control: &mut Control<'_>,
) -> Vec<PlacedClusters> {
    let placed = place_on_few_devices(problem, loads, allowed, goal, control);
    let asks_for_period_alone = goal.pipelined && goal.objective == Objective::PERIOD;
    if !asks_for_period_alone {
        return vec![placed];
    }

    let quicker = search_harder(problem, loads, &placed, goal, control);
    let best = quicker.unwrap_or(placed);
    let mut placements = place_in_few_stages(problem, loads, best, goal, control);

    let estimates = placements.iter().filter_map(|placed| placed.estimate);
    if let Some(best) = estimates.min_by_key(|estimate| estimate.cost) {
        let max_cost = max_cost_in_few_stages(best);
        placements.retain(|placed| placed.estimate.is_none_or(|known| known.cost <= max_cost));
    }
    placements
}

/// A better placement on the same devices that a longer search finds. Searched is only where the bound leaves room for
/// more than [`MISSED_PERMILLE`], and where it takes a fraction of a second.
fn search_harder(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    known: &PlacedClusters,
    goal: PlacementGoal,
    control: &mut Control<'_>,
) -> Option<PlacedClusters> {
    let estimate = known.estimate?;
    let devices = used_devices(&known.devices);
    let is_small = loads.len() < THOROUGH_CLUSTERS.end && devices.len() <= FEW_DEVICES;
    if problem.options.level != Level::Fast || !is_small || is_about_least(estimate) {
        return None;
    }

    let placement_problem = placement_problem(problem, loads, &devices, goal);
    let found = assign::solve_by_annealing(&placement_problem, control).ok()?;
    (found.evaluation.cost < estimate.cost)
        .then(|| PlacedClusters::found(&found, &devices, estimate.bound))
}

/// Whether no search could gain much.
fn is_about_least(estimate: Estimate) -> bool {
    estimate.cost <= cost::permille_more(estimate.bound, MISSED_PERMILLE)
}

/// What a placement in fewer stages than the best one known may cost: [`MAX_PERIOD_LOSS_PERCENT`] more than the best there
/// is.
fn max_cost_in_few_stages(best: Estimate) -> u64 {
    let missed_permille = match is_about_least(best) {
        true => 0,
        false => MISSED_PERMILLE,
    };
    cost::permille_more(best.cost, 10 * MAX_PERIOD_LOSS_PERCENT - missed_permille)
}

/// The devices of a placement, in their order.
fn used_devices(placement: &[DeviceId]) -> Vec<DeviceId> {
    let used: BTreeSet<DeviceId> = placement.iter().copied().collect();
    used.into_iter().collect()
}

/// The placement that was found, and others on the same devices, each with fewer stages than the one before: their
/// periods are at most [`MAX_PERIOD_LOSS_PERCENT`] above its own.
fn place_in_few_stages(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    found: PlacedClusters,
    goal: PlacementGoal,
    control: &mut Control<'_>,
) -> Vec<PlacedClusters> {
    let Some(estimate) = found.estimate else {
        return vec![found];
    };
    // The devices stay: what a stage less is worth is not weighed against a device more.
    let devices = used_devices(&found.devices);
    let mut placement_problem = placement_problem(problem, loads, &devices, goal);
    let index_of = |device| devices.binary_search(device).unwrap_or(0) as u32;
    let placement: Vec<u32> = found.devices.iter().map(index_of).collect();
    let max_cost = max_cost_in_few_stages(estimate);

    // Few stages leave few placements: they are looked for harder.
    let is_thorough = THOROUGH_CLUSTERS.contains(&loads.len()) && devices.len() <= FEW_DEVICES;
    let level = match is_thorough {
        true => problem.options.level.max(Level::Balanced),
        false => problem.options.level,
    };
    let mut bounds = StageBounds {
        too_few: 0,
        enough: placement_problem.stages(&placement),
        of_a_row: devices.len() as u32 + 1,
        // Each search of a large graph takes as long as the one that found its period: it has one.
        bisects: loads.len() < THOROUGH_CLUSTERS.end,
    };

    let mut placements = vec![found];
    while let Some(max_stages) = bounds.next() {
        placement_problem.max_stages = Some(max_stages);
        // The bound is that of the placement found.
        let assignment = assign::solve_unproved(&placement_problem, level, control);
        match assignment
            .ok()
            .filter(|assignment| assignment.evaluation.cost <= max_cost)
        {
            Some(assignment) => {
                bounds.enough = placement_problem.stages(&assignment.placement);
                placements.push(PlacedClusters::found(&assignment, &devices, estimate.bound));
            }
            None => bounds.too_few = max_stages,
        }
    }
    placements
}

/// Which numbers of stages have been tried: the shortest period does not grow with the stages that are allowed, so the
/// fewest that do are found by bisection.
struct StageBounds {
    too_few: u32,
    enough: u32,
    /// Stages of a row of the devices, and one more: what a user would choose, and what is tried first.
    of_a_row: u32,
    bisects: bool,
}

impl StageBounds {
    /// The bound to try next: that of a row, then halfway between what is too few and what is enough.
    fn next(&self) -> Option<u32> {
        let is_open = |stages: u32| self.too_few < stages && stages < self.enough;
        let halfway = self.too_few.midpoint(self.enough);
        match is_open(self.of_a_row) {
            true => Some(self.of_a_row),
            false => Some(halfway).filter(|&stages| self.bisects && is_open(stages)),
        }
    }
}

/// Places the clusters for the objective alone, and of placements that are about as good on the fewest devices.
fn place_on_few_devices(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    allowed: &[DeviceId],
    goal: PlacementGoal,
    control: &mut Control<'_>,
) -> PlacedClusters {
    // First on all devices: that tells how good a placement on fewer has to be.
    let search_level = problem.options.level;
    let for_period = goal.pipelined && goal.objective == Objective::PERIOD && !goal.within_memory;
    let devices = candidate_devices(problem, loads, allowed, for_period);

    let Some(best_assignment) =
        search_placement(problem, loads, &devices, goal, search_level, control)
    else {
        return PlacedClusters {
            devices: place_greedily(problem, loads, allowed),
            estimate: None,
        };
    };
    let best_cost = best_assignment.evaluation.cost;
    let good_enough = best_cost.saturating_add(best_cost / 100 * MIN_GAIN_PERCENT);

    // One device at a time; alike ones are as good as each other.
    let groups = equally_quick(problem, loads, &devices);
    let alone = groups.iter().filter_map(|group| {
        let device = group[0];
        let cost = cost_alone(problem, loads, device, goal, good_enough)?;
        Some((cost, device))
    });
    if let Some((cost, device)) = alone.min() {
        return PlacedClusters {
            devices: vec![device; loads.len()],
            estimate: Some(Estimate {
                cost,
                bound: best_assignment.bound,
            }),
        };
    }

    // Then more and more devices: a quick search says whether so few may do, and a thorough one places them.
    let mut bounds = CountBounds::new(loads, &devices, goal.objective);
    for count in device_counts(devices.len()).filter(|&count| count > 1 && count < devices.len()) {
        let least_cost = bounds.least_cost(count);
        if least_cost.is_none_or(|cost| cost > good_enough) {
            continue;
        }
        let few = &devices[..count];
        let few_problem = placement_problem(problem, loads, few, goal);
        // The bound is that of the search on all devices.
        let quick = assign::solve_unproved(&few_problem, Level::Fast, control);
        let Some(quick) = quick
            .ok()
            .filter(|found| found.evaluation.cost <= good_enough)
        else {
            continue;
        };
        let thorough = match search_level {
            Level::Fast => Ok(quick),
            level => assign::solve_unproved(&few_problem, level, control),
        };
        if let Ok(found) = thorough {
            return PlacedClusters::found(&found, few, best_assignment.bound);
        }
    }
    PlacedClusters::found(&best_assignment, &devices, best_assignment.bound)
}

/// Placements that a search for a short latency may start from, each on all devices that a search sees: with few stages,
/// and with the shortest time for one block. Some may be equal.
pub(crate) fn quick_starts(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    allowed: &[DeviceId],
    pipelined: bool,
    control: &mut Control<'_>,
) -> Vec<Vec<DeviceId>> {
    let alone = allowed
        .iter()
        .filter_map(|&device| place_on_one(loads, device));
    let quickest_alone = alone.min_by_key(|start| period_ps(problem, loads, start));
    let mut starts: Vec<Vec<DeviceId>> = quickest_alone.into_iter().collect();
    starts.push(place_stretches(problem, loads, allowed));
    starts.push(place_in_order(problem, loads, allowed));

    let devices = candidate_devices(problem, loads, allowed, false);
    let goal = |objective, pipelined, max_stages| PlacementGoal {
        objective,
        pipelined,
        max_stages,
        within_memory: false,
        keep_loops_together: false,
    };
    let mut goals = vec![goal(Objective::LATENCY, false, None)];
    if pipelined {
        goals.extend([2, 3].map(|stages| goal(Objective::PERIOD, true, Some(stages))));
    }
    for goal in goals {
        let level = problem.options.level;
        let found = search_placement(problem, loads, &devices, goal, level, control);
        if let Some(found) = found {
            let placement = found.placement.iter();
            starts.push(placement.map(|&index| devices[index as usize]).collect());
        }
    }
    starts
}

/// Cost of all clusters on one device, if they can run there and it is at most so much.
fn cost_alone(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    device: DeviceId,
    goal: PlacementGoal,
    max_cost: u64,
) -> Option<u64> {
    let mut load_ps = 0u64;
    for row in loads {
        load_ps = load_ps.saturating_add(row[device]?);
    }
    if goal.objective.period.saturating_mul(load_ps) > max_cost {
        return None;
    }

    let alone = placement_problem(problem, loads, &[device], goal);
    alone.validate().ok()?;
    let evaluation = alone.evaluate(&vec![0; loads.len()]).ok()?;
    (evaluation.cost <= max_cost).then_some(evaluation.cost)
}

fn search_placement(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    devices: &[DeviceId],
    goal: PlacementGoal,
    level: Level,
    control: &mut Control<'_>,
) -> Option<Assignment> {
    if loads.len() > MAX_SEARCHED_CLUSTERS {
        return None;
    }
    let placement_problem = placement_problem(problem, loads, devices, goal);
    assign::solve(&placement_problem, level, control).ok()
}

/// The problem of placing the clusters on some devices, in picoseconds and bytes.
fn placement_problem(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    devices: &[DeviceId],
    goal: PlacementGoal,
) -> PlacementProblem {
    let mut nodes = Vec::with_capacity(loads.len());
    for (row, &component) in loads.iter().zip(&problem.component_of) {
        nodes.push(PlacementNode {
            ticks: devices.iter().map(|&device| row[device]).collect(),
            bytes: 0,
            group: goal.keep_loops_together.then_some(component as u32),
        });
    }

    let mut links = Vec::with_capacity(devices.len() * devices.len());
    for &from in devices {
        for &to in devices {
            links.push(placement_link(problem, from, to));
        }
    }

    PlacementProblem {
        nodes,
        channels: placement_channels(problem),
        devices: devices
            .iter()
            .map(|&device| placement_device(problem, device, goal))
            .collect(),
        links,
        fanout: Fanout::EachDevice,
        pipelined: goal.pipelined,
        max_latency: None,
        max_stages: goal.max_stages,
        objective: goal.objective,
    }
}

fn placement_device(
    problem: &BlockProblem<'_>,
    device: DeviceId,
    goal: PlacementGoal,
) -> PlacementDevice {
    let max_bytes = problem.options.max_memory_bytes.unwrap_or(u64::MAX);
    PlacementDevice {
        bytes: match goal.within_memory {
            true => problem.machine.devices[device].memory_bytes.min(max_bytes),
            false => u64::MAX,
        },
    }
}

fn placement_link(
    problem: &BlockProblem<'_>,
    from: DeviceId,
    to: DeviceId,
) -> Option<PlacementLink> {
    if from == to {
        return None;
    }
    let link = problem.link(from, to)?;
    Some(PlacementLink {
        send: LinkTime {
            latency: SEND_PS,
            numerator: PS_PER_S,
            denominator: link.bytes_per_s.max(1),
        },
        receive: LinkTime {
            latency: RECV_PS,
            ..LinkTime::FREE
        },
    })
}

/// What clusters hand over to one another in a block.
fn placement_channels(problem: &BlockProblem<'_>) -> Vec<PlacementChannel> {
    let mut is_loose = vec![false; problem.graph.channels.len()];
    for edge in &problem.edges.all {
        if !is_tight(edge, problem.repetition, problem.block) {
            is_loose[edge.channel.index()] = true;
        }
    }

    let mut channels = Vec::new();
    for (id, channel) in problem.graph.channels.iter_enumerated() {
        let writer_cluster = problem.cluster_of(channel.from.actor) as u32;
        let mut reader_clusters: Vec<u32> = channel
            .readers
            .iter()
            .map(|reader| problem.cluster_of(reader.to.actor) as u32)
            .collect();
        reader_clusters.sort_unstable();
        reader_clusters.dedup();
        // A channel within one cluster costs no transfer.
        if reader_clusters == [writer_cluster] {
            continue;
        }

        let reader_delays = channel.readers.iter().map(|reader| reader.delay);
        let head_tokens = reader_delays.max().unwrap_or(0);
        let block_tokens = problem.block_tokens(id).unwrap_or(u64::MAX);
        let token_bytes = channel.token.bytes();
        channels.push(PlacementChannel {
            from: writer_cluster,
            to: reader_clusters,
            amount: block_tokens.saturating_mul(token_bytes),
            bytes: block_tokens
                .saturating_add(head_tokens)
                .saturating_mul(token_bytes),
            // Tight edges alone are sure to have no cycle.
            delayed: is_loose[id.index()],
        });
    }
    channels
}

/// The best of some quick placements, on as few devices as are about as good.
fn place_greedily(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    allowed: &[DeviceId],
) -> Vec<DeviceId> {
    let mut best_placement: Option<(u64, Vec<DeviceId>)> = None;

    for count in device_counts(allowed.len()) {
        let devices = &allowed[..count];
        let mut placement_candidates: Vec<Vec<DeviceId>> = Vec::new();
        if count == 1 {
            let each_alone = allowed.iter();
            placement_candidates
                .extend(each_alone.filter_map(|&device| place_on_one(loads, device)));
        }
        placement_candidates.push(place_stretches(problem, loads, devices));
        placement_candidates.push(place_in_order(problem, loads, devices));

        for candidate in placement_candidates {
            let candidate_period = period_ps(problem, loads, &candidate);
            let is_improvement = best_placement.as_ref().is_none_or(|(known, _)| {
                let worth_a_device = known - known / 100 * MIN_GAIN_PERCENT;
                candidate_period < worth_a_device || (count == 1 && candidate_period < *known)
            });
            if is_improvement {
                best_placement = Some((candidate_period, candidate));
            }
        }
    }
    best_placement
        .map(|(_, placement)| placement)
        .unwrap_or_default()
}

fn place_on_one(loads: &ClusterLoads, device: DeviceId) -> Option<Vec<DeviceId>> {
    loads
        .iter()
        .all(|row| row[device].is_some())
        .then(|| vec![device; loads.len()])
}

/// The device on which a cluster takes the shortest time, and that time.
fn cheapest(row: &DeviceLoads) -> (u64, DeviceId) {
    row.iter_enumerated()
        .filter_map(|(device, load)| load.map(|load| (load, device)))
        .min()
        .unwrap_or((0, DeviceId(0)))
}

/// Splits the topological order into as many stretches as devices, each about as heavy as the others.
fn place_stretches(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    devices: &[DeviceId],
) -> Vec<DeviceId> {
    let best_loads: Vec<(u64, DeviceId)> = loads.iter().map(cheapest).collect();
    let total: u128 = best_loads.iter().map(|&(load, _)| u128::from(load)).sum();
    let mut placement = vec![devices[0]; loads.len()];
    let mut sum_before = 0u128;

    for &cluster in &problem.order {
        let (load, best_device) = best_loads[cluster];
        // A cluster belongs to the stretch that its middle falls into.
        let middle_load = sum_before + u128::from(load) / 2;
        let stretch_index = (middle_load * devices.len() as u128)
            .checked_div(total)
            .unwrap_or(0) as usize;

        let wanted_device = devices[stretch_index.min(devices.len() - 1)];
        placement[cluster] = match loads[cluster][wanted_device] {
            Some(_) => wanted_device,
            None => best_device,
        };
        sum_before += u128::from(load);
    }
    placement
}

/// In topological order each cluster to where the largest load, transfers included, grows least.
fn place_in_order(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    devices: &[DeviceId],
) -> Vec<DeviceId> {
    let mut busy_ps: TiVec<DeviceId, u64> = vec![0; problem.machine.devices.len()].into();
    let mut placed_on: Vec<Option<DeviceId>> = vec![None; loads.len()];

    for &cluster in &problem.order {
        let inputs = &problem.inputs_of[cluster];
        let mut best_choice: Option<(u64, DeviceId)> = None;

        for &device in devices {
            let Some(load) = loads[cluster][device] else {
                continue;
            };
            // Its own load with the receives, and the largest of the senders' with their sends.
            let mut load_here = busy_ps[device].saturating_add(load);
            let mut max_sender_load = 0;
            for input in inputs {
                if let Some(sender) = placed_on[input.writer].filter(|&sender| sender != device) {
                    let send_ps = problem.send_ps(input.channel, sender, device);
                    load_here = load_here.saturating_add(RECV_PS);
                    max_sender_load = max_sender_load.max(busy_ps[sender].saturating_add(send_ps));
                }
            }
            let device_choice = (load_here.max(max_sender_load), device);
            best_choice = Some(best_choice.map_or(device_choice, |known| known.min(device_choice)));
        }

        let (_, device) = best_choice.unwrap_or_else(|| cheapest(&loads[cluster]));
        busy_ps[device] = busy_ps[device].saturating_add(loads[cluster][device].unwrap_or(0));
        for input in inputs {
            if let Some(sender) = placed_on[input.writer].filter(|&sender| sender != device) {
                let send_ps = problem.send_ps(input.channel, sender, device);
                busy_ps[sender] = busy_ps[sender].saturating_add(send_ps);
            }
        }
        placed_on[cluster] = Some(device);
    }

    let placement = placed_on.into_iter();
    placement
        .map(|device| device.unwrap_or(DeviceId(0)))
        .collect()
}

#[cfg(test)]
mod tests;
