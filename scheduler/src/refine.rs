//! Search on assembled plans: clusters move one at a time, and what counts is the period and the latency of the plan
//! that the placement gives.
//!
//! The searches of [`crate::assign`] see a latency of stages times the period. Where a bound on the latency or a weight
//! of it decides, that is too coarse: stages that share a period wait for each other for a part of it only. Assembling
//! a placement gives the times themselves.

use zbmd_ir::{DeviceId, Plan};

use crate::assemble::{assemble, assemble_times};
use crate::assign::Objective;
use crate::cost::PS_PER_NS;
use crate::error::ScheduleError;
use crate::place::ClusterLoads;
use crate::problem::BlockProblem;
use crate::search::Control;
use crate::search::rng::Rng;
use crate::stages::{find_stages, without_boundary};

/// Clusters that one search assembles at most, over all placements that it tries: about a second.
const MAX_CLUSTERS_ASSEMBLED: usize = 2_000_000;

/// Passes over all clusters without improvement after which a start is left, each in another order.
const MAX_IDLE_PASSES: u32 = 2;

/// Kicks without improvement after which a search ends.
const MAX_IDLE_KICKS: u32 = 10;

/// Clusters that a kick moves at most.
const KICKED_CLUSTERS: usize = 3;

/// Boundaries between stages of which every combination is tried; of more, they are joined one after the other.
const MAX_BOUNDARIES_COMBINED: u32 = 4;

const SEED: u64 = 0x72_6566_696e;

/// What the plan is to be good for.
#[derive(Clone, Copy)]
pub(crate) struct RefineGoal {
    pub(crate) objective: Objective,
    /// Bound on the period.
    pub(crate) max_period_ns: u64,
    /// Bound on the latency of a block.
    pub(crate) max_latency_ns: u64,
}

/// How good a plan is; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlanCost {
    /// Period and latency above their bounds.
    excess_ns: u64,
    /// Weighted sum of the objective.
    weighted: u128,
    /// Tells plans apart that are equally good by the objective.
    period_and_latency_ns: u64,
}

impl PlanCost {
    fn of(plan: &Plan, goal: RefineGoal) -> Self {
        let weighted = |weight: u64, value: u64| u128::from(weight) * u128::from(value);
        let late_ns = plan.latency_ns.saturating_sub(goal.max_latency_ns);
        let slow_ns = plan.period_ns.saturating_sub(goal.max_period_ns);
        PlanCost {
            excess_ns: late_ns.saturating_add(slow_ns),
            weighted: weighted(goal.objective.period, plan.period_ns)
                + weighted(goal.objective.latency, plan.latency_ns),
            period_and_latency_ns: plan.period_ns.saturating_add(plan.latency_ns),
        }
    }
}

/// A placement, the stages of its clusters, and how good its plan is.
#[derive(Clone)]
struct StagedPlacement {
    devices: Vec<DeviceId>,
    stage_of: Vec<u32>,
    cost: PlanCost,
}

/// A search for the best plan of one block size.
pub(crate) struct PlanSearch<'p, 'a> {
    problem: &'p BlockProblem<'a>,
    loads: &'p ClusterLoads,
    allowed: &'p [DeviceId],
    goal: RefineGoal,
    pipelined: bool,
    /// What is left of [`MAX_CLUSTERS_ASSEMBLED`].
    clusters_left: usize,
}

impl<'p, 'a> PlanSearch<'p, 'a> {
    /// With `pipelined`, work that depends on another device may run a stage later.
    pub(crate) fn new(
        problem: &'p BlockProblem<'a>,
        loads: &'p ClusterLoads,
        allowed: &'p [DeviceId],
        goal: RefineGoal,
        pipelined: bool,
    ) -> Self {
        PlanSearch {
            problem,
            loads,
            allowed,
            goal,
            pipelined,
            clusters_left: MAX_CLUSTERS_ASSEMBLED,
        }
    }

    /// The best plan that moves from the given placements lead to; these name the device of each cluster. Deterministic
    /// unless `control.stop` cuts it short.
    ///
    /// # Errors
    /// As [`assemble`], of the best placement; [`ScheduleError::NoDevices`] if none of the placements can be assembled.
    pub(crate) fn refine(
        mut self,
        starts: &[Vec<DeviceId>],
        name: &str,
        control: &mut Control<'_>,
    ) -> Result<Plan, ScheduleError> {
        // Each start is rated before any is improved: the most promising one gets what effort there is.
        let rated = starts.iter().filter_map(|start| self.rate(start, None));
        let mut rated: Vec<StagedPlacement> = rated.collect();
        rated.sort_by_key(|start| start.cost);

        let mut random = Rng::new(SEED);
        let mut best: Option<StagedPlacement> = None;
        for start in rated {
            let found = self.improve(start, &mut random, control);
            if best.as_ref().is_none_or(|known| found.cost < known.cost) {
                best = Some(found);
            }
        }
        let mut best = best.ok_or(ScheduleError::NoDevices)?;

        // Iterated local search: from where no move helps, some moves at random lead on.
        let mut idle_kicks = 0;
        while idle_kicks < MAX_IDLE_KICKS && self.clusters_left > 0 && !control.stopped() {
            idle_kicks += 1;
            let Some(kicked) = self.kick(&best, &mut random) else {
                continue;
            };
            let found = self.improve(kicked, &mut random, control);
            if found.cost < best.cost {
                best = found;
                idle_kicks = 0;
            }
        }
        assemble(self.problem, &best.devices, best.stage_of, name)
    }

    /// The placement with some clusters elsewhere, chosen at random.
    fn kick(&mut self, placement: &StagedPlacement, random: &mut Rng) -> Option<StagedPlacement> {
        let mut devices = placement.devices.clone();
        for _ in 0..KICKED_CLUSTERS {
            let cluster = random.below(devices.len());
            devices[cluster] = self.allowed[random.below(self.allowed.len())];
        }
        self.rate(&devices, None)
    }

    /// Moves clusters, one or two at a time, as long as that helps.
    fn improve(
        &mut self,
        start: StagedPlacement,
        random: &mut Rng,
        control: &mut Control<'_>,
    ) -> StagedPlacement {
        let clusters = start.devices.len();
        let mut order: Vec<usize> = (0..clusters).collect();
        let mut best = start;
        let mut idle_passes = 0;

        while idle_passes < MAX_IDLE_PASSES {
            shuffle(&mut order, random);
            let mut is_improved = false;
            for &cluster in &order {
                if self.clusters_left == 0 || control.stopped() {
                    return best;
                }
                is_improved |= self.move_cluster(cluster, &mut best);
                let other = random.below(clusters);
                is_improved |= self.swap_clusters(cluster, other, &mut best);
            }
            idle_passes = match is_improved {
                true => 0,
                false => idle_passes + 1,
            };
        }
        best
    }

    /// Tries a cluster on each other device, alone and with the readers that share its device.
    fn move_cluster(&mut self, cluster: usize, best: &mut StagedPlacement) -> bool {
        let mut is_improved = false;
        for &device in self.allowed {
            let from = best.devices[cluster];
            if device == from {
                continue;
            }
            let mut devices = best.devices.clone();
            devices[cluster] = device;
            is_improved |= self.take_if_better(&devices, best);

            // What feeds it alone would have to send its tokens: it moves too.
            for input in &self.problem.inputs_of[cluster] {
                if devices[input.writer] == from {
                    devices[input.writer] = device;
                }
            }
            is_improved |= self.take_if_better(&devices, best);
        }
        is_improved
    }

    fn swap_clusters(&mut self, first: usize, second: usize, best: &mut StagedPlacement) -> bool {
        if best.devices[first] == best.devices[second] {
            return false;
        }
        let mut devices = best.devices.clone();
        devices.swap(first, second);
        self.take_if_better(&devices, best)
    }

    fn take_if_better(&mut self, devices: &[DeviceId], best: &mut StagedPlacement) -> bool {
        let found = self.rate(devices, Some(best.cost));
        let is_better = found.as_ref().is_some_and(|found| found.cost < best.cost);
        if let Some(found) = found.filter(|_| is_better) {
            *best = found;
        }
        is_better
    }

    /// The best stages of a placement. `None` if it cannot be assembled, or if it is sure not to be better than `known`.
    fn rate(&mut self, devices: &[DeviceId], known: Option<PlanCost>) -> Option<StagedPlacement> {
        let min_period_ns = self.max_load_ns(devices)?;
        let min_weighted = u128::from(self.goal.objective.period) * u128::from(min_period_ns);
        let is_too_slow = min_period_ns > self.goal.max_period_ns;
        let cannot_be_better = |known: PlanCost| {
            known.excess_ns == 0 && (is_too_slow || known.weighted < min_weighted)
        };
        if known.is_some_and(cannot_be_better) {
            return None;
        }

        let finest = find_stages(self.problem, devices, self.pipelined);
        let last_stage = finest.iter().max().copied().unwrap_or(0);
        if last_stage <= MAX_BOUNDARIES_COMBINED {
            let combinations = 0..1u32 << last_stage;
            let rated = combinations
                .filter_map(|kept| self.rate_stages(devices, keep_boundaries(&finest, kept)));
            return rated.min_by_key(|rated| rated.cost);
        }

        // From the most stages on, each step joins the two neighbours that cost least.
        let mut best = self.rate_stages(devices, vec![0; devices.len()])?;
        let mut current = self.rate_stages(devices, finest)?;
        loop {
            if current.cost < best.cost {
                best = current.clone();
            }
            let last_stage = current.stage_of.iter().max().copied().unwrap_or(0);
            let joined = (1..=last_stage).filter_map(|boundary| {
                self.rate_stages(devices, without_boundary(&current.stage_of, boundary))
            });
            match joined.min_by_key(|joined| joined.cost) {
                Some(next) if current.cost.excess_ns > 0 || next.cost < current.cost => {
                    current = next;
                }
                // The bound is kept: joining more stages only lengthens the period.
                _ => return Some(best),
            }
        }
    }

    /// The largest load of a device, which no period is below; `None` where a cluster cannot run on its device.
    fn max_load_ns(&self, devices: &[DeviceId]) -> Option<u64> {
        let mut load_ps = vec![0u64; self.problem.machine.devices.len()];
        for (row, &device) in self.loads.iter().zip(devices) {
            let load = &mut load_ps[device.index()];
            *load = load.saturating_add(row[device]?);
        }
        let max_load_ps = load_ps.iter().max().copied().unwrap_or(0);
        Some(max_load_ps / PS_PER_NS)
    }

    fn rate_stages(&mut self, devices: &[DeviceId], stage_of: Vec<u32>) -> Option<StagedPlacement> {
        self.clusters_left = self.clusters_left.saturating_sub(devices.len());
        let plan = assemble_times(self.problem, devices, stage_of.clone(), "main").ok()?;
        Some(StagedPlacement {
            devices: devices.to_vec(),
            stage_of,
            cost: PlanCost::of(&plan, self.goal),
        })
    }
}

/// The stages with some of the boundaries between them only: bit `i` of `kept` keeps that between stages `i` and `i + 1`.
fn keep_boundaries(stage_of: &[u32], kept: u32) -> Vec<u32> {
    let stages = stage_of.iter();
    stages
        .map(|&stage| (kept & ((1 << stage) - 1)).count_ones())
        .collect()
}

/// Fisher-Yates.
fn shuffle(order: &mut [usize], random: &mut Rng) {
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last + 1));
    }
}
