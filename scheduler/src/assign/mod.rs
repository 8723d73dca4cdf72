//! Placement of a pipeline on devices: which device runs which node, for the shortest period, latency or least
//! memory, or a weighted mix.
//!
//! [`solve`] tries all placements of tiny problems (`exhaust`). Of others it takes contiguous splits by dynamic
//! programming (`split`), improves them by simulated annealing (`anneal`), and states a lower bound (`bound`, `pack`;
//! with transfers `colocate`, `transfer_share` and `cover`). On small problems a mixed-integer linear program (`milp`) goes on from
//! there: it finds what is left or proves that nothing is; larger ones it sees coarsened, as an improver only. It states
//! the period alone.
//! [`PlacementProblem::evaluate`] is the definition of a placement's figures and checks what the solvers return.

mod anneal;
mod bound;
mod colocate;
mod cover;
mod exhaust;
mod flow;
mod knapsack;
mod makespan;
mod merged;
mod milp;
mod pack;
mod problem;
mod split;
mod staged;
mod stages;
mod state;
mod transfer_share;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use anneal::{AnnealingEnergy, AnnealingPlan, BestPlacement, Mover, anneal};
use colocate::ColocationLimits;
use exhaust::exhaust;
use makespan::MakespanGraph;
use merged::MergedProblem;
pub use problem::{
    AssignError, Evaluation, Fanout, Objective, PlacementChannel, PlacementDevice, PlacementLink,
    PlacementNode, PlacementProblem,
};
use staged::{StagedGraph, StagedMoves};
use stages::StageGraph;
use state::PlacementState;

use crate::search::{Control, Level, gap};

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Device of each node.
    pub placement: Vec<u32>,
    /// Its figures; all limits hold.
    pub evaluation: Evaluation,
    /// Proved lower bound on the cost of any placement.
    pub bound: u64,
    /// Cost of the best contiguous split, if one fits.
    pub contiguous: Option<u64>,
    /// Moves and nodes.
    pub work: u64,
}

impl Assignment {
    /// Whether no placement can cost less.
    pub fn is_optimal(&self) -> bool {
        self.evaluation.cost <= self.bound
    }

    /// How far the cost may be from the optimum, as a fraction of the bound.
    pub fn gap(&self) -> f64 {
        gap(self.evaluation.cost, self.bound)
    }
}

struct PlacementLimits {
    /// Moves of one annealing for each unit.
    moves: u64,
    /// Annealings with different seeds.
    rounds: u64,
    /// Placements of a problem that is enumerated.
    enumerated: u64,
    /// Nodes of each question of the packing bound.
    packing: u64,
    /// Labels of the knapsacks of the covering bound.
    labels: u64,
    /// Work of the linear program, in nodes times squared variables: about what it takes. 0 leaves it out.
    nodes: u64,
    /// Variables of the largest linear program.
    variables: usize,
}

fn placement_limits(level: Level) -> PlacementLimits {
    match level {
        Level::Fast => PlacementLimits {
            moves: 300,
            rounds: 1,
            enumerated: 200,
            packing: 1_000,
            labels: 0,
            nodes: 0,
            variables: 0,
        },
        Level::Balanced => PlacementLimits {
            moves: 6_000,
            rounds: 4,
            enumerated: 20_000,
            packing: 20_000,
            labels: 8_000_000,
            nodes: 50_000_000,
            variables: 300,
        },
        Level::Exact => PlacementLimits {
            moves: 40_000,
            rounds: 6,
            enumerated: 500_000,
            packing: 1_000_000,
            labels: 100_000_000,
            nodes: 4_000_000_000,
            variables: milp::MAX_VARIABLES,
        },
    }
}

/// Steps of minimum cuts for each move or node of the search: so many take a small part of its time.
const CUT_STEPS: u64 = 16;

const SEED: u64 = 0x70_6c61_6365;

/// Temperature at the start of an annealing as a fraction of the energy, in turns.
const HEATS: [f64; 3] = [0.01, 0.02, 0.005];

/// The same where moves keep to a number of stages: they change more at a time, and what lies between two good placements
/// is worse.
const STAGED_HEATS: [f64; 3] = [0.04, 0.08, 0.02];

/// Stages for each device beyond which a limit on them is wide.
const WIDE_LIMIT: usize = 2;

/// Finds a placement of small cost that keeps all limits.
///
/// Deterministic unless `control.stop` cuts it short.
///
/// # Errors
/// [`AssignError`] for an invalid problem; [`AssignError::NotFound`] if nothing found keeps the limits.
pub fn solve(
    problem: &PlacementProblem,
    level: Level,
    control: &mut Control<'_>,
) -> Result<Assignment, AssignError> {
    search(problem, &placement_limits(level), true, control)
}

/// As [`solve`], and the same placement, with less time spent on the bound.
///
/// # Errors
/// As [`solve`].
pub(crate) fn solve_unproved(
    problem: &PlacementProblem,
    level: Level,
    control: &mut Control<'_>,
) -> Result<Assignment, AssignError> {
    search(problem, &placement_limits(level), false, control)
}

/// As [`solve_unproved`] at [`Level::Balanced`], without the linear program: what a placement gains for a fraction of
/// the time.
///
/// # Errors
/// As [`solve`].
pub(crate) fn solve_by_annealing(
    problem: &PlacementProblem,
    control: &mut Control<'_>,
) -> Result<Assignment, AssignError> {
    let limits = PlacementLimits {
        nodes: 0,
        variables: 0,
        ..placement_limits(Level::Balanced)
    };
    search(problem, &limits, false, control)
}

fn search(
    problem: &PlacementProblem,
    limits: &PlacementLimits,
    wants_bound: bool,
    control: &mut Control<'_>,
) -> Result<Assignment, AssignError> {
    problem.validate()?;
    let merged = MergedProblem::of(problem)?;
    let mut placement_search = PlacementSearch {
        problem,
        merged: &merged,
        limits,
        bound: cost_bound(problem, &merged, u64::MAX),
        work: 0,
    };

    // Contiguous splits are what one would write by hand: what is found is never worse than they are.
    let mut start_placements = split::splits(&merged);
    let contiguous = start_placements
        .iter()
        .filter_map(|start| placement_cost(problem, &merged, start))
        .min();
    start_placements.push(place_largest_first(&merged));

    let enumeration = exhaust(problem, &merged, limits.enumerated, control);
    // An exhaustive search is a proof; otherwise its best is one more start.
    placement_search.work += enumeration.work;
    if let Some((cost, placement)) = enumeration.cheapest {
        if enumeration.complete {
            placement_search.bound = cost;
        }
        start_placements.insert(0, placement);
    }

    let mut best = placement_search.anneal_from(&start_placements, control);
    if best.feasible {
        placement_search.prove_or_improve(&mut best, wants_bound, control);
    }

    // The figures are computed anew by their definition: what the searches kept up to date is not relied on.
    let placement = merged.expand(&best.placement);
    let evaluation = problem.evaluate(&placement);
    let evaluation = evaluation.map_err(|nearest| AssignError::NotFound {
        nearest: Box::new(nearest),
    })?;
    let bound = placement_search.bound.min(evaluation.cost);
    control.report("placement", evaluation.cost, bound, placement_search.work);
    Ok(Assignment {
        placement,
        evaluation,
        bound,
        contiguous,
        work: placement_search.work,
    })
}

/// What annealing within a number of stages needs.
struct StagedSearch<'a> {
    graph: StagedGraph,
    stage_graph: &'a StageGraph,
    /// Without the stages, which the moves keep.
    energy: AnnealingEnergy<'a>,
}

impl<'a> StagedSearch<'a> {
    /// `None` where the stages have no limit or a wide one, which moves of single units seldom meet, and where the latency
    /// counts, too, which they make.
    fn of(energy: &AnnealingEnergy<'a>, with_latency: bool) -> Option<Self> {
        let stage_graph = energy.stage_graph.filter(|_| !with_latency)?;
        let max_stages = energy.problem.max_stages?;
        if max_stages as usize > WIDE_LIMIT * energy.merged.devices {
            return None;
        }
        Some(Self {
            graph: StagedGraph::of(stage_graph, energy.merged, max_stages)?,
            stage_graph,
            energy: AnnealingEnergy {
                problem: energy.problem,
                merged: energy.merged,
                makespan_graph: None,
                stage_graph: None,
            },
        })
    }

    /// The first stages of a placement that keeps the limit on them.
    fn stages_within_limit(&self, placement: &[u32]) -> Option<Vec<u32>> {
        let stage_of = self.stage_graph.first_stages(placement);
        self.graph.allows(&stage_of).then_some(stage_of)
    }
}

/// What the steps of a search share.
struct PlacementSearch<'a> {
    problem: &'a PlacementProblem,
    merged: &'a MergedProblem,
    limits: &'a PlacementLimits,
    /// Proved lower bound on the cost.
    bound: u64,
    /// Moves and nodes so far.
    work: u64,
}

impl PlacementSearch<'_> {
    /// Anneals from each start and then on from the best, as often as the limits allow. There is at least one start.
    fn anneal_from(&mut self, starts: &[Vec<u32>], control: &mut Control<'_>) -> BestPlacement {
        let problem = self.problem;
        let with_latency = problem.objective.latency > 0 || problem.max_latency.is_some();
        let with_stages = problem.max_stages.is_some() || with_latency && problem.pipelined;
        let stage_graph =
            with_stages.then(|| StageGraph::of_units(&self.merged.unit_of_node, &problem.channels));
        let energy = AnnealingEnergy {
            problem,
            merged: self.merged,
            makespan_graph: (with_latency && !problem.pipelined)
                .then(|| MakespanGraph::new(problem).ok())
                .flatten(),
            stage_graph: stage_graph.as_ref(),
        };
        let staged = StagedSearch::of(&energy, with_latency);
        let mut starts: Vec<&Vec<u32>> = starts.iter().collect();
        if let Some(staged) = &staged {
            let keeps_limit = |start: &&Vec<u32>| staged.stages_within_limit(start).is_some();
            if starts.iter().any(keeps_limit) {
                starts.retain(keeps_limit);
            }
        }

        // The latency of each move is computed anew: fewer moves then.
        let slowdown = match (energy.makespan_graph.is_some(), with_stages) {
            (true, _) => 20,
            (false, true) if staged.is_some() => 2,
            (false, true) => 4,
            (false, false) => 1,
        };
        // Effort grows with the units, as the placements that are one move away do.
        let moves = self.limits.moves * self.merged.units() as u64 / slowdown;

        let mut best = self.anneal_once(
            &energy,
            staged.as_ref(),
            starts[0].clone(),
            0,
            moves,
            control,
        );
        // Every start is tried once, then the best is annealed again with other seeds and temperatures.
        for round in 1..self.limits.rounds.max(starts.len() as u64) {
            if best.feasible && best.cost <= self.bound {
                break;
            }
            let index = round as usize;
            let start = match best.feasible && index >= starts.len() {
                true => &best.placement,
                false => starts[index % starts.len()],
            };
            let found = self.anneal_once(
                &energy,
                staged.as_ref(),
                start.clone(),
                round,
                moves,
                control,
            );
            if found.is_better_than(&best) {
                best = found;
            }
        }
        best
    }

    fn anneal_once(
        &mut self,
        energy: &AnnealingEnergy<'_>,
        staged: Option<&StagedSearch<'_>>,
        start: Vec<u32>,
        round: u64,
        moves: u64,
        control: &mut Control<'_>,
    ) -> BestPlacement {
        let seed = SEED + round;
        let mut plan = AnnealingPlan {
            // Starts beyond the rounds are only evaluated.
            steps: if round < self.limits.rounds { moves } else { 0 },
            heat: HEATS[round as usize % HEATS.len()],
            bound: self.bound,
        };
        self.work += plan.steps;

        if let Some(staged) = staged
            && let Some(stage_of) = staged.stages_within_limit(&start)
        {
            plan.heat = STAGED_HEATS[round as usize % STAGED_HEATS.len()];
            let moves = StagedMoves::new(self.merged, &staged.graph, start, stage_of, seed);
            return anneal(&staged.energy, moves, plan, control);
        }
        anneal(energy, Mover::new(self.merged, start, seed), plan, control)
    }

    /// Raises the bound by packing, and lets the linear program look for what is left between it and the best.
    fn prove_or_improve(
        &mut self,
        best: &mut BestPlacement,
        wants_bound: bool,
        control: &mut Control<'_>,
    ) {
        let weights = self.problem.objective;
        // The program states the period alone.
        let is_stated = weights == Objective::PERIOD
            && self.problem.max_latency.is_none()
            && self.problem.max_stages.is_none();
        let runs_program = is_stated && self.limits.nodes > 0;
        if best.cost <= self.bound || !(wants_bound || runs_program) {
            return;
        }
        let below_best = cost_bound(self.problem, self.merged, best.cost);
        self.bound = self.bound.max(below_best).min(best.cost);

        let weighs_period_only = weights.period > 0 && weights.latency == 0 && weights.memory == 0;
        if weighs_period_only && best.cost > self.bound {
            // In ticks of the period alone: its weight scales both bounds.
            let packed_period = pack::bound(
                self.merged,
                self.bound / weights.period,
                best.cost / weights.period,
                self.limits.packing,
                control,
            );
            let packed_cost = packed_period.saturating_mul(weights.period);
            self.bound = self.bound.max(packed_cost).min(best.cost);
        }

        if runs_program && best.cost > self.bound {
            self.solve_program(best, control);
        }

        // Last, so that no placement depends on it.
        if wants_bound && weighs_period_only && best.cost > self.bound {
            let colocation_limits = ColocationLimits {
                steps: self.work.saturating_mul(CUT_STEPS),
                packing: self.limits.packing / 4,
                labels: self.limits.labels,
            };
            let period = colocate::bound(
                self.problem,
                self.merged,
                self.bound / weights.period,
                best.cost / weights.period,
                colocation_limits,
                control,
            );
            let cost = period.saturating_mul(weights.period);
            self.bound = self.bound.max(cost).min(best.cost);
        }
    }

    /// Lets the linear program improve the best placement or prove it, whole if it is small enough, else coarsened.
    fn solve_program(&mut self, best: &mut BestPlacement, control: &mut Control<'_>) {
        let max_variables = self.limits.variables;
        let is_whole = milp::size(self.merged) <= max_variables;
        if !is_whole && max_variables < milp::MAX_VARIABLES {
            return;
        }
        let coarse;
        let stated = if is_whole {
            self.merged
        } else {
            match coarsen(self.problem, self.merged, &best.placement, max_variables) {
                Some(merged) => {
                    coarse = merged;
                    &coarse
                }
                None => return,
            }
        };

        // The program starts from the best placement and only looks for cheaper ones.
        let incumbent = stated.contract(&self.merged.expand(&best.placement));
        let max_nodes = self.limits.nodes / (milp::size(stated) as u64).pow(2);
        let outcome = milp::improve(stated, &incumbent, self.bound, max_nodes, control);
        self.work += outcome.nodes;

        if let Some(better) = &outcome.better {
            let placement = stated.expand(better);
            if let Ok(found) = self.problem.evaluate(&placement)
                && found.cost < best.cost
            {
                best.cost = found.cost;
                best.placement = self.merged.contract(&placement);
            }
        }
        // A bound of the coarsened program says nothing about placements that part what it merges.
        if is_whole {
            self.bound = outcome.bound.max(self.bound).min(best.cost);
        }
    }
}

fn placement_cost(
    problem: &PlacementProblem,
    merged: &MergedProblem,
    placement: &[u32],
) -> Option<u64> {
    let evaluation = problem.evaluate(&merged.expand(placement)).ok()?;
    Some(evaluation.cost)
}

/// Lower bound on the cost of any placement cheaper than `below`.
fn cost_bound(problem: &PlacementProblem, merged: &MergedProblem, below: u64) -> u64 {
    let period_bound = match problem.objective.period {
        0 => 0,
        // A cost below c means a period below c / weight.
        weight => bound::period_bound(merged, below.div_ceil(weight).max(1)),
    };
    problem.cost(
        period_bound,
        bound::latency_bound(problem),
        bound::memory_bound(merged),
    )
}

/// Largest unit first, each to where the largest load and the bytes allow.
fn place_largest_first(merged: &MergedProblem) -> Vec<u32> {
    let first_choices = (0..merged.units()).map(|unit| merged.choices(unit).next().unwrap_or(0));
    let mut state = PlacementState::new(merged, first_choices.collect());
    let mut by_size: Vec<usize> = (0..merged.units()).collect();
    by_size.sort_by_key(|&unit| {
        let size = (merged.min_ticks(unit), merged.bytes[unit]);
        (Reverse(size), unit)
    });

    let kinds = merged.kind_of.iter().max().map_or(0, |max| max + 1);
    let mut units_on = vec![0u32; merged.devices];
    for &device in &state.placement {
        units_on[device as usize] += 1;
    }
    for unit in by_size {
        units_on[state.placement[unit] as usize] -= 1;
        let mut tried_empty = vec![false; kinds];
        let mut best: Option<((u64, u64, u64), u32)> = None;
        for device in merged.choices(unit) {
            // Of alike devices without any other unit the first stands for all.
            let kind = merged.kind_of[device as usize];
            if units_on[device as usize] == 0 && std::mem::replace(&mut tried_empty[kind], true) {
                continue;
            }
            state.relocate(unit, device);
            let total_load = state.load.iter().sum();
            // First that it fits, then the period, then as little load as possible.
            let figures = (state.excess_bytes(), state.period(), total_load);
            if best.is_none_or(|(known, _)| figures < known) {
                best = Some((figures, device));
            }
        }
        if let Some((_, device)) = best {
            state.relocate(unit, device);
        }
        units_on[state.placement[unit] as usize] += 1;
    }
    state.placement
}

/// Merges units that the placement has on one device, those with the most expensive nets between them first, until the
/// program is small enough.
fn coarsen(
    problem: &PlacementProblem,
    merged: &MergedProblem,
    placement: &[u32],
    max_variables: usize,
) -> Option<MergedProblem> {
    let mut pairs: Vec<(Reverse<u64>, usize, usize)> = Vec::new();
    for net in &merged.nets {
        let prices = net.send.iter().zip(&net.receive);
        let max_price = prices.map(|(send, receive)| send + receive).max();
        for &to in &net.to {
            if placement[to] == placement[net.from] {
                pairs.push((Reverse(max_price.unwrap_or(0)), net.from, to));
            }
        }
    }
    pairs.sort_unstable();

    let mut groups = UnitGroups::new(merged.units());
    // About four variables for each unit and device: its own, and those of its nets.
    let max_groups = max_variables / (4 * merged.devices).max(1);
    for (_, first, second) in pairs {
        if groups.count <= max_groups {
            break;
        }
        groups.join(first, second);
    }

    let coarse = merge_groups(problem, merged, groups)?;
    (milp::size(&coarse) <= max_variables).then_some(coarse)
}

/// Merges the units of each group, `None` if no device can run one of them.
fn merge_groups(
    problem: &PlacementProblem,
    merged: &MergedProblem,
    mut groups: UnitGroups,
) -> Option<MergedProblem> {
    let mut index_of_leader = BTreeMap::new();
    let mut unit_of_node = Vec::with_capacity(problem.nodes.len());
    for &unit in &merged.unit_of_node {
        let leader = groups.leader(unit);
        let next_index = index_of_leader.len();
        unit_of_node.push(*index_of_leader.entry(leader).or_insert(next_index));
    }
    MergedProblem::by(problem, unit_of_node, index_of_leader.len()).ok()
}

/// Disjoint groups of units (union-find with path halving); the lowest unit of a group leads it.
struct UnitGroups {
    leader_of: Vec<usize>,
    count: usize,
}

impl UnitGroups {
    fn new(units: usize) -> Self {
        UnitGroups {
            leader_of: (0..units).collect(),
            count: units,
        }
    }

    fn leader(&mut self, unit: usize) -> usize {
        let mut current = unit;
        while self.leader_of[current] != current {
            self.leader_of[current] = self.leader_of[self.leader_of[current]];
            current = self.leader_of[current];
        }
        current
    }

    fn join(&mut self, first: usize, second: usize) {
        let first_leader = self.leader(first);
        let second_leader = self.leader(second);
        if first_leader != second_leader {
            self.leader_of[first_leader.max(second_leader)] = first_leader.min(second_leader);
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
