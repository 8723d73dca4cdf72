//! Placement of a pipeline on devices: which device runs which node, for the shortest period, latency or least
//! memory, or a weighted mix.
//!
//! [`solve`] tries all placements of tiny problems (`exhaust`). Of others it takes contiguous splits by dynamic programming (`split`), improves them by simulated annealing
//! (`anneal`), and states a lower bound (`bound`, `pack`). On small problems a mixed-integer linear programme (`milp`)
//! goes on from there: it finds what is left or proves that nothing is; larger ones it sees coarsened, as an improver
//! only. It states the period alone.
//! [`Problem::evaluate`] is the definition of a placement's figures and checks what the solvers return.

mod anneal;
mod bound;
mod exhaust;
mod merged;
mod milp;
mod pack;
mod problem;
mod split;
mod state;

use anneal::{Best, Energy, anneal};
use exhaust::exhaust;
use merged::Merged;
pub use problem::{
    AssignError, Channel, Device, Evaluation, Fanout, Link, Node, Objective, Problem,
};
use state::State;

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

struct Limits {
    /// Moves of one annealing for each unit.
    moves: u64,
    /// Annealings with different seeds.
    rounds: u64,
    /// Placements of a problem that is enumerated.
    enumerated: u64,
    /// Nodes of each question of the packing bound.
    packing: u64,
    /// Work of the programme, in nodes times squared variables: about what it takes. 0 leaves it out.
    nodes: u64,
    /// Variables of the largest programme.
    variables: usize,
}

fn limits(level: Level) -> Limits {
    match level {
        Level::Fast => Limits {
            moves: 300,
            rounds: 1,
            enumerated: 200,
            packing: 1_000,
            nodes: 0,
            variables: 0,
        },
        Level::Balanced => Limits {
            moves: 6_000,
            rounds: 4,
            enumerated: 20_000,
            packing: 20_000,
            nodes: 50_000_000,
            variables: 300,
        },
        Level::Exact => Limits {
            moves: 40_000,
            rounds: 6,
            enumerated: 500_000,
            packing: 1_000_000,
            nodes: 4_000_000_000,
            variables: milp::MAX_VARIABLES,
        },
    }
}

const SEED: u64 = 0x70_6c61_6365;

/// Finds a placement of small cost that keeps all limits.
///
/// Deterministic unless `control.stop` cuts it short.
///
/// # Errors
/// [`AssignError`] for an invalid problem; [`AssignError::NotFound`] if nothing found keeps the limits.
pub fn solve(
    problem: &Problem,
    level: Level,
    control: &mut Control<'_>,
) -> Result<Assignment, AssignError> {
    problem.validate()?;
    let merged = Merged::of(problem)?;
    let limits = limits(level);
    let latency = problem.objective.latency > 0 || problem.max_latency.is_some();
    let energy = Energy {
        problem,
        merged: &merged,
        latency,
    };
    let mut bound = cost_bound(problem, &merged, u64::MAX);
    let starts = starts(&merged);
    let mut best: Option<Best> = None;
    let mut contiguous = None;
    for start in &starts.contiguous {
        contiguous = contiguous
            .into_iter()
            .chain(cost_of(problem, &merged, start))
            .min();
    }
    let mut firsts: Vec<Vec<u32>> = starts
        .contiguous
        .into_iter()
        .chain([starts.greedy])
        .collect();
    let tried = exhaust(problem, &merged, limits.enumerated, control);
    let mut work = tried.work;
    if let Some((cost, placement)) = tried.cheapest {
        bound = if tried.complete { cost } else { bound };
        firsts.insert(0, placement);
    }
    // The latency of each move is computed anew: fewer moves then.
    let moves = limits.moves * merged.units() as u64 / if latency { 20 } else { 1 };
    for round in 0..limits.rounds.max(firsts.len() as u64) {
        let from = best
            .as_ref()
            .filter(|b| b.feasible && round as usize >= firsts.len());
        let first = match from {
            Some(best) => best.placement.clone(),
            None => firsts[round as usize % firsts.len()].clone(),
        };
        let heat = [0.01, 0.02, 0.005][round as usize % 3];
        let (seed, steps) = (SEED + round, if round < limits.rounds { moves } else { 0 });
        let found = anneal(&energy, first, bound, (steps, seed, heat), control);
        work += steps;
        if best.as_ref().is_none_or(|b| found.better_than(b)) {
            best = Some(found);
        }
        if best.as_ref().is_some_and(|b| b.feasible && b.cost <= bound) {
            break;
        }
    }
    let Some(mut best) = best else {
        return Err(AssignError::NoDevice);
    };
    if best.feasible && best.cost > bound {
        bound = bound
            .max(cost_bound(problem, &merged, best.cost))
            .min(best.cost);
        let weights = problem.objective;
        if weights.period > 0 && weights.latency == 0 && weights.memory == 0 && best.cost > bound {
            let period = best.cost / weights.period;
            let packed = pack::bound(
                &merged,
                bound / weights.period,
                period,
                limits.packing,
                control,
            );
            bound = bound
                .max(packed.saturating_mul(weights.period))
                .min(best.cost);
        }
        let only_period = problem.objective == Objective::PERIOD && problem.max_latency.is_none();
        if only_period && best.cost > bound && limits.nodes > 0 {
            work += programme(problem, &merged, &mut best, &mut bound, &limits, control);
        }
    }
    let placement = merged.expand(&best.placement);
    let evaluation = problem
        .evaluate(&placement)
        .map_err(|nearest| AssignError::NotFound {
            nearest: Box::new(nearest),
        })?;
    let bound = bound.min(evaluation.cost);
    control.report("placement", evaluation.cost, bound, work);
    Ok(Assignment {
        placement,
        evaluation,
        bound,
        contiguous,
        work,
    })
}

impl Best {
    fn better_than(&self, other: &Best) -> bool {
        match (self.feasible, other.feasible) {
            (true, true) => self.cost < other.cost,
            (new, old) => !old && (new || self.distance() < other.distance()),
        }
    }
}

fn cost_of(problem: &Problem, merged: &Merged, placement: &[u32]) -> Option<u64> {
    problem
        .evaluate(&merged.expand(placement))
        .ok()
        .map(|e| e.cost)
}

/// Lower bound on the cost of any placement cheaper than `below`.
fn cost_bound(problem: &Problem, merged: &Merged, below: u64) -> u64 {
    let weights = problem.objective;
    // A cost below c means a period below c / weight.
    let period = below.div_ceil(weights.period.max(1)).max(1);
    let period = if weights.period > 0 {
        bound::period_bound(merged, period)
    } else {
        0
    };
    problem.cost(
        period,
        bound::latency_bound(problem),
        bound::memory_bound(merged),
    )
}

struct Starts {
    contiguous: Vec<Vec<u32>>,
    greedy: Vec<u32>,
}

fn starts(merged: &Merged) -> Starts {
    Starts {
        contiguous: split::splits(merged),
        greedy: greedy(merged),
    }
}

/// Largest unit first, each to where the largest load and the bytes allow.
fn greedy(merged: &Merged) -> Vec<u32> {
    let first = |u: usize| merged.choices(u).next().unwrap_or(0);
    let mut state = State::new(merged, (0..merged.units()).map(first).collect());
    let least = |u: usize| merged.ticks[u].iter().flatten().min().copied().unwrap_or(0);
    let mut by_size: Vec<usize> = (0..merged.units()).collect();
    by_size.sort_by_key(|&u| {
        (
            std::cmp::Reverse(least(u)),
            std::cmp::Reverse(merged.bytes[u]),
            u,
        )
    });
    for &unit in &by_size {
        let mut best: Option<((u64, u64, u64), u32)> = None;
        for device in merged.choices(unit) {
            state.relocate(unit, device);
            let key = (state.excess(), state.period(), state.load.iter().sum());
            if best.is_none_or(|b| key < b.0) {
                best = Some((key, device));
            }
        }
        if let Some((_, device)) = best {
            state.relocate(unit, device);
        }
    }
    state.placement
}

/// Lets the programme improve the best placement or prove it, whole if it is small enough, else coarsened.
fn programme(
    problem: &Problem,
    merged: &Merged,
    best: &mut Best,
    bound: &mut u64,
    limits: &Limits,
    control: &mut Control<'_>,
) -> u64 {
    let whole = milp::size(merged) <= limits.variables;
    if !whole && limits.variables < milp::MAX_VARIABLES {
        return 0;
    }
    let coarse;
    let seen = if whole {
        merged
    } else {
        match coarsen(problem, merged, &best.placement, limits.variables) {
            Some(c) => {
                coarse = c;
                &coarse
            }
            None => return 0,
        }
    };
    let incumbent = seen.contract(&merged.expand(&best.placement));
    let nodes = limits.nodes / (milp::size(seen) as u64).pow(2);
    let outcome = milp::improve(seen, &incumbent, *bound, nodes, control);
    if let Some(better) = &outcome.better {
        let placement = seen.expand(better);
        if let Ok(found) = problem.evaluate(&placement)
            && found.cost < best.cost
        {
            best.cost = found.cost;
            best.placement = merged.contract(&placement);
        }
    }
    if whole {
        *bound = outcome.bound.max(*bound).min(best.cost);
    }
    outcome.nodes
}

/// Merges units that the placement has on one device, those with the dearest nets between them first, until the
/// programme is small enough.
fn coarsen(
    problem: &Problem,
    merged: &Merged,
    placement: &[u32],
    variables: usize,
) -> Option<Merged> {
    let mut leader: Vec<usize> = (0..merged.units()).collect();
    fn find(leader: &mut [usize], mut u: usize) -> usize {
        while leader[u] != u {
            leader[u] = leader[leader[u]];
            u = leader[u];
        }
        u
    }
    let mut pairs: Vec<(std::cmp::Reverse<u64>, usize, usize)> = Vec::new();
    for net in &merged.nets {
        let dearest = net
            .send
            .iter()
            .zip(&net.receive)
            .map(|(s, r)| s + r)
            .max()
            .unwrap_or(0);
        for &to in net
            .to
            .iter()
            .filter(|&&t| placement[t] == placement[net.from])
        {
            pairs.push((std::cmp::Reverse(dearest), net.from, to));
        }
    }
    pairs.sort_unstable();
    let wanted = variables / (4 * merged.devices).max(1);
    let mut left = merged.units();
    for (_, a, b) in pairs {
        if left <= wanted {
            break;
        }
        let (a, b) = (find(&mut leader, a), find(&mut leader, b));
        if a != b {
            leader[a.max(b)] = a.min(b);
            left -= 1;
        }
    }
    let mut index = std::collections::BTreeMap::new();
    let mut unit = Vec::with_capacity(problem.nodes.len());
    for &u in &merged.unit {
        let root = find(&mut leader, u);
        let next = index.len();
        unit.push(*index.entry(root).or_insert(next));
    }
    let coarse = Merged::by(problem, unit, index.len()).ok()?;
    (milp::size(&coarse) <= variables).then_some(coarse)
}

#[cfg(test)]
mod tests;
