//! Simulated annealing over placements.

use super::makespan::MakespanGraph;
use super::merged::MergedProblem;
use super::problem::PlacementProblem;
use super::stages::StageGraph;
use super::state::PlacementState;
use crate::search::rng::Rng;
use crate::search::{Control, exp_approx};

/// Steps between questions to the caller.
const ASK_EVERY: u64 = 1024;

/// What the annealing minimises: figures as fractions of typical ones.
pub(crate) struct AnnealingEnergy<'a> {
    pub(crate) problem: &'a PlacementProblem,
    pub(crate) merged: &'a MergedProblem,
    /// Where the makespan of one period's work matters: it is expensive to compute.
    pub(crate) makespan_graph: Option<MakespanGraph<'a>>,
    /// Where the stages of the pipeline matter, and moves may add some; of the merged units.
    pub(crate) stage_graph: Option<&'a StageGraph>,
}

/// Figures of one placement.
struct PlacementFigures {
    cost: u64,
    /// Whether all limits hold.
    feasible: bool,
    /// The cost with a slope on its plateaus and beyond the limits.
    energy: f64,
}

impl AnnealingEnergy<'_> {
    fn figures(&self, state: &PlacementState<'_>) -> PlacementFigures {
        let problem = self.problem;
        let period = state.period();
        let stages = match self.stage_graph {
            Some(graph) => graph.count(&state.placement),
            None => 0,
        };
        let latency = match &self.makespan_graph {
            Some(graph) => graph.makespan(&self.merged.expand(&state.placement)),
            None => period.saturating_mul(stages.into()),
        };
        let max_bytes = state.max_bytes();
        let cost = problem.cost(period, latency, max_bytes);

        // Loads and bytes below the largest count a little too, so that plateaus have a slope.
        let smooth = slope(problem.objective.period, &state.load, period)
            + slope(problem.objective.memory, &state.bytes, max_bytes);

        // Each excess is relative to its limit, so that unlike ones can be added.
        let excess_bytes = state.excess_bytes();
        let excess_stages = stages.saturating_sub(problem.max_stages.unwrap_or(u32::MAX));
        let excess_latency = latency.saturating_sub(problem.max_latency.unwrap_or(u64::MAX));
        let excess = excess_bytes as f64 / self.merged.total_capacity as f64
            + excess_latency as f64 / problem.max_latency.unwrap_or(1).max(1) as f64
            + f64::from(excess_stages) / f64::from(problem.max_stages.unwrap_or(1).max(1));

        PlacementFigures {
            cost,
            feasible: excess_bytes == 0 && excess_latency == 0 && excess_stages == 0,
            // One per cent of excess costs a fifth: placements beyond a limit can be passed through, not stayed at.
            energy: (cost as f64 + smooth) * (1.0 + 20.0 * excess),
        }
    }
}

/// By how much the norm of a figure exceeds its largest value, weighted.
fn slope(weight: u64, values: &[u64], max: u64) -> f64 {
    match weight {
        0 => 0.0,
        _ => weight as f64 * (norm(values) - max as f64),
    }
}

/// The 16-norm: near the largest, with a slope for the others. Square roots are exact on every platform.
fn norm(values: &[u64]) -> f64 {
    let max = values.iter().copied().max().unwrap_or(0).max(1) as f64;
    let mut sum = 0.0;

    // What is zero adds nothing.
    for &value in values.iter().filter(|&&value| value > 0) {
        let fraction = value as f64 / max;
        let fourth_power = fraction * fraction * fraction * fraction;
        sum += fourth_power * fourth_power * fourth_power * fourth_power;
    }
    max * f64::sqrt(sum).sqrt().sqrt().sqrt()
}

/// The best placement that keeps all limits, or if there is none so far the nearest.
pub(crate) struct BestPlacement {
    pub(crate) placement: Vec<u32>,
    pub(crate) cost: u64,
    pub(crate) feasible: bool,
    /// How far from keeping all limits, for comparison.
    energy: f64,
}

impl BestPlacement {
    fn new(state: &PlacementState<'_>, figures: &PlacementFigures) -> Self {
        BestPlacement {
            placement: state.placement.clone(),
            cost: figures.cost,
            feasible: figures.feasible,
            energy: figures.energy,
        }
    }

    pub(crate) fn is_better_than(&self, other: &BestPlacement) -> bool {
        match (self.feasible, other.feasible) {
            (true, true) => self.cost < other.cost,
            (false, false) => self.energy < other.energy,
            (own, _) => own,
        }
    }
}

/// How long and how hot one annealing is.
#[derive(Clone, Copy)]
pub(crate) struct AnnealingPlan {
    /// Moves.
    pub(crate) steps: u64,
    /// Temperature at the start as a fraction of the energy.
    pub(crate) heat: f64,
    /// Cost at which it ends: no placement has less.
    pub(crate) bound: u64,
}

/// Random moves from placement to placement.
pub(crate) trait Moves {
    /// What takes a move back.
    type Applied;

    /// The placement at hand.
    fn state(&self) -> &PlacementState<'_>;

    /// Whether there is any other placement.
    fn can_move(&self) -> bool;

    /// Makes a random move; `None` if it would change nothing or is not allowed.
    fn apply_random_move(&mut self) -> Option<Self::Applied>;

    /// Takes the last move back.
    fn undo(&mut self, applied: Self::Applied);

    /// A random number in [0, 1).
    fn random_fraction(&mut self) -> f64;
}

/// Anneals from a placement and returns the best on the way.
pub(crate) fn anneal(
    energy: &AnnealingEnergy<'_>,
    mut mover: impl Moves,
    plan: AnnealingPlan,
    control: &mut Control<'_>,
) -> BestPlacement {
    let mut current = energy.figures(mover.state());
    let mut best = BestPlacement::new(mover.state(), &current);
    if !mover.can_move() {
        return best;
    }

    let start_temperature = best.energy * plan.heat;
    for step in 0..plan.steps {
        let is_proved = best.feasible && best.cost <= plan.bound;
        if is_proved || step % ASK_EVERY == 0 && control.stopped() {
            break;
        }
        // Cubic cooling: most moves are made cold.
        let left = 1.0 - step as f64 / plan.steps as f64;
        let temperature = start_temperature * left * left * left;
        let Some(applied) = mover.apply_random_move() else {
            continue;
        };

        let found = energy.figures(mover.state());
        // The rule of Metropolis: what is worse by d is kept with probability e^(-d / temperature).
        let increase = found.energy - current.energy;
        let is_accepted = increase <= 0.0
            || mover.random_fraction() < exp_approx(increase / temperature.max(1e-9));
        if !is_accepted {
            mover.undo(applied);
            continue;
        }

        let is_improvement = match (found.feasible, best.feasible) {
            (true, true) => found.cost < best.cost,
            (false, false) => found.energy < best.energy,
            (feasible, _) => feasible,
        };
        if is_improvement {
            if found.feasible {
                control.report("annealing", found.cost, plan.bound, step);
            }
            best = BestPlacement::new(mover.state(), &found);
        }
        current = found;
    }
    best
}

/// A move that was made: the units that it moved, with the devices that they came from.
pub(crate) struct AppliedMove {
    unit: usize,
    home: u32,
    other: Option<(usize, u32)>,
}

/// Units and devices at random.
pub(crate) struct RandomUnits<'a> {
    merged: &'a MergedProblem,
    /// Devices that can run each unit.
    choices: Vec<Vec<u32>>,
    /// Units with more than one choice.
    movable: Vec<usize>,
    pub(crate) rng: Rng,
}

impl<'a> RandomUnits<'a> {
    pub(crate) fn new(merged: &'a MergedProblem, seed: u64) -> Self {
        let units = 0..merged.units();
        let choices: Vec<Vec<u32>> = units
            .clone()
            .map(|unit| merged.choices(unit).collect())
            .collect();
        Self {
            merged,
            movable: units.filter(|&unit| choices[unit].len() > 1).collect(),
            choices,
            rng: Rng::new(seed),
        }
    }

    /// Whether there is any unit that can move.
    pub(crate) fn can_move(&self) -> bool {
        !self.movable.is_empty()
    }

    fn has_choice(&self, unit: usize) -> bool {
        self.choices[unit].len() > 1
    }

    pub(crate) fn can_run(&self, unit: usize, device: u32) -> bool {
        self.choices[unit].contains(&device)
    }

    /// A unit that can move: there is one.
    pub(crate) fn unit(&mut self) -> usize {
        self.movable[self.rng.below(self.movable.len())]
    }

    /// A device that can run a unit.
    pub(crate) fn choice(&mut self, unit: usize) -> u32 {
        let index = self.rng.below(self.choices[unit].len());
        self.choices[unit][index]
    }

    /// A unit that shares a net with this one.
    pub(crate) fn neighbour(&mut self, unit: usize) -> Option<usize> {
        let nets = &self.merged.nets_of[unit];
        if nets.is_empty() {
            return None;
        }
        let net = &self.merged.nets[nets[self.rng.below(nets.len())]];
        Some(match net.from == unit {
            true => net.to[self.rng.below(net.to.len())],
            false => net.from,
        })
    }
}

/// Moves that put a unit somewhere else, there where a neighbour is, or swap two units.
pub(crate) struct Mover<'a> {
    state: PlacementState<'a>,
    random: RandomUnits<'a>,
}

impl<'a> Mover<'a> {
    pub(crate) fn new(merged: &'a MergedProblem, start: Vec<u32>, seed: u64) -> Self {
        Mover {
            state: PlacementState::new(merged, start),
            random: RandomUnits::new(merged, seed),
        }
    }

    fn move_anywhere(&mut self, unit: usize) -> AppliedMove {
        let home = self.state.placement[unit];
        let device = self.random.choice(unit);
        self.state.relocate(unit, device);
        AppliedMove {
            unit,
            home,
            other: None,
        }
    }

    fn swap(&mut self, unit: usize) -> Option<AppliedMove> {
        let home = self.state.placement[unit];
        let partner = self.random.unit();
        let partner_home = self.state.placement[partner];
        let is_possible = partner_home != home
            && self.random.can_run(unit, partner_home)
            && self.random.can_run(partner, home);
        if !is_possible {
            return None;
        }

        self.state.relocate(unit, partner_home);
        self.state.relocate(partner, home);
        Some(AppliedMove {
            unit,
            home,
            other: Some((partner, partner_home)),
        })
    }

    fn move_to_neighbour(&mut self, unit: usize, make_room: bool) -> Option<AppliedMove> {
        let home = self.state.placement[unit];
        let neighbour = self.random.neighbour(unit)?;
        let device = self.state.placement[neighbour];
        if device == home || !self.random.can_run(unit, device) {
            return None;
        }

        self.state.relocate(unit, device);
        let mut other = None;
        if make_room && self.random.has_choice(neighbour) {
            other = Some((neighbour, device));
            let elsewhere = self.random.choice(neighbour);
            self.state.relocate(neighbour, elsewhere);
        }
        Some(AppliedMove { unit, home, other })
    }
}

impl Moves for Mover<'_> {
    type Applied = AppliedMove;

    fn state(&self) -> &PlacementState<'_> {
        &self.state
    }

    fn can_move(&self) -> bool {
        self.random.can_move()
    }

    fn apply_random_move(&mut self) -> Option<AppliedMove> {
        let unit = self.random.unit();
        match self.random.rng.below(4) {
            0 => Some(self.move_anywhere(unit)),
            1 => self.swap(unit),
            2 => self.move_to_neighbour(unit, false),
            // Half the time the neighbour makes room.
            _ => self.move_to_neighbour(unit, true),
        }
    }

    fn undo(&mut self, applied: AppliedMove) {
        if let Some((other, home)) = applied.other {
            self.state.relocate(other, home);
        }
        self.state.relocate(applied.unit, applied.home);
    }

    fn random_fraction(&mut self) -> f64 {
        self.random.rng.unit()
    }
}
