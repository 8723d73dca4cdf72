//! Data-parallel replication: actors without state run on several devices at once where that shortens the period.
//!
//! The scheduler proposes numbers of replicas that may be worth it. The graph is rewritten for each proposal, and both
//! graphs are scheduled: the quicker one is kept. Everything that comes after sees an ordinary graph.

mod rewrite;
#[cfg(test)]
mod tests;

use std::fmt;

use zbmd_ir::{Costs, Graph, Machine, Plan};
use zbmd_scheduler::assign::Objective;
use zbmd_scheduler::buffers::Mode;
use zbmd_scheduler::replicate::{Bounds, Factors, candidates, is_worth};
use zbmd_scheduler::{
    Block, Control, Inputs, Level, ScheduleError, ScheduleOptions, Scheduled, schedule_with,
};

use crate::cost_table::CostSources;
use crate::options::Replicate;

pub use self::rewrite::{ReplicateError, Replicated, replicate};

/// Max replicas of one actor that are tried: a kernel cannot have more outputs.
const MAX_REPLICAS: u32 = zbmd_backends::kernel::Io::MAX_MUT_PORTS as u32;
/// Times of which one is at most so many percent of the other are about equal: a placement may give up two percent for
/// fewer stages, and further two are less than what a prediction is worth.
const ABOUT_EQUAL_PERCENT: u128 = 104;
/// Candidates without a gain after which further ones are not tried.
const MAX_FAILED_CANDIDATES: usize = 3;
/// Replicated actors that are tested one by one for whether their replicas are needed.
const MAX_PRUNED: usize = 6;

/// What became of actors that bound the period and could be replicated.
#[derive(Clone, Debug, PartialEq)]
pub enum Replication {
    /// They run on several devices.
    Done {
        /// Names in the model, and how many replicas each has.
        actors: Vec<(String, u32)>,
        /// Predicted nanoseconds of an iteration of the model.
        period_ns: f64,
        /// The same without replicas.
        without_ns: f64,
        /// How many iterations of the model one of the program is.
        iterations: u64,
    },
    /// They could, but an iteration would be several of the model's.
    Possible {
        /// Name in the model of the first of them.
        actor: String,
        /// How many replicas would balance the work.
        replicas: u32,
    },
}

impl fmt::Display for Replication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Replication::Done {
                actors,
                period_ns,
                without_ns,
                iterations,
            } => {
                let replicas: Vec<String> = actors
                    .iter()
                    .map(|(name, replicas)| format!("{name} x{replicas}"))
                    .collect();
                write!(
                    f,
                    "replicated: {}; an iteration in {}, {} without",
                    replicas.join(", "),
                    format_ns(*period_ns),
                    format_ns(*without_ns)
                )?;
                if *iterations > 1 {
                    write!(
                        f,
                        "; one of the program is {iterations} of the model's, and input that does not fill it is left"
                    )?;
                }
                Ok(())
            }
            Replication::Possible { actor, replicas } => write!(
                f,
                "`{actor}` bounds the period and could be replicated, but not within an iteration: \
                 `--replicate {replicas}` makes iterations longer"
            ),
        }
    }
}

/// Nanoseconds for people, also below one.
fn format_ns(ns: f64) -> String {
    if ns < 100.0 {
        format!("{ns:.2} ns")
    } else {
        zbmd_ir::text::duration(ns.round() as u64)
    }
}

/// What graphs are scheduled for, with and without replicas.
#[derive(Clone, Copy)]
pub(crate) struct ScheduleRequest<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) options: &'a ScheduleOptions,
    pub(crate) costs: &'a CostSources<'a>,
}

/// A graph with its schedule.
pub(crate) struct ScheduledGraph {
    pub(crate) graph: Graph,
    pub(crate) costs: Costs,
    pub(crate) options: ScheduleOptions,
    pub(crate) scheduled: Scheduled,
    /// How many iterations of the model one of the graph is.
    iterations: u64,
    /// Replicas of the model's actors.
    factors: Factors,
}

/// The better of the graphs with and without replicas.
pub(crate) struct ReplicationOutcome {
    pub(crate) best: ScheduledGraph,
    pub(crate) replication: Option<Replication>,
}

impl ScheduledGraph {
    /// Predicted femtoseconds of an iteration of the model.
    fn iteration_fs(&self) -> u128 {
        // Blocks and replicas make periods of several iterations; femtoseconds, so that the division loses nothing.
        let main_plan = self.main_plan();
        let iterations = u128::from(main_plan.block) * u128::from(self.iterations);
        u128::from(main_plan.period_ns) * 1_000_000 / iterations.max(1)
    }

    fn main_plan(&self) -> &Plan {
        &self.scheduled.plans[0]
    }

    fn replica_count(&self) -> u64 {
        self.factors
            .values()
            .map(|&replicas| u64::from(replicas))
            .sum()
    }

    /// Whether this one is quicker, or about as quick with fewer replicas ([`ABOUT_EQUAL_PERCENT`]).
    fn is_better_than(&self, other: &Self) -> bool {
        let own_time = self.iteration_fs();
        let other_time = other.iteration_fs();
        if self.replica_count() < other.replica_count() {
            own_time.saturating_mul(100) <= other_time.saturating_mul(ABOUT_EQUAL_PERCENT)
        } else {
            own_time.saturating_mul(ABOUT_EQUAL_PERCENT) < other_time.saturating_mul(100)
        }
    }
}

/// Schedules the graph, with replicas where they are allowed and worth it.
///
/// # Errors
/// Why the graph itself has no schedule.
pub(crate) fn schedule(
    graph: &Graph,
    request: ScheduleRequest<'_>,
    replicate: Replicate,
    control: &mut Control<'_>,
) -> Result<ReplicationOutcome, ScheduleError> {
    let plain = schedule_plain(graph, request, control)?;

    // Replicas serve the period, and cost latency and buffers.
    let serves_objective = request.options.objective == Objective::PERIOD
        && !matches!(request.options.buffers, Mode::Min(_));
    if !serves_objective {
        return Ok(ReplicationOutcome {
            best: plain,
            replication: None,
        });
    }

    // The plain schedule stays: it is the result where no replicas are worth it.
    let search = ReplicaSearch {
        request,
        plain: &plain,
    };
    let mut best: Option<ScheduledGraph> = None;

    // Longer iterations must gain once more over replicas within one: they cost latency, and input that is left over.
    for bounds in attempted_bounds(replicate) {
        let Some(found) = search.find_best(bounds, control) else {
            continue;
        };
        let current = best.as_ref().unwrap_or(&plain);
        if is_worth(found.iteration_fs(), current.iteration_fs()) {
            best = Some(found);
        }
    }

    let Some(best) = best else {
        let replication = match replicate {
            Replicate::Auto => search.find_possible(control),
            Replicate::Off | Replicate::UpTo(_) => None,
        };
        return Ok(ReplicationOutcome {
            best: plain,
            replication,
        });
    };
    let best = search.refine(best, control);
    let replication = Some(search.describe(&best));
    Ok(ReplicationOutcome { best, replication })
}

/// The schedule of the model's own graph.
fn schedule_plain(
    graph: &Graph,
    request: ScheduleRequest<'_>,
    control: &mut Control<'_>,
) -> Result<ScheduledGraph, ScheduleError> {
    let costs = request.costs.cost_table(graph);
    let options = request.options.clone();
    let scheduled = schedule_with(graph, request.machine, &costs, &options, control)?;
    Ok(ScheduledGraph {
        graph: graph.clone(),
        costs,
        options,
        scheduled,
        iterations: 1,
        factors: Factors::new(),
    })
}

/// The bounds within which replicas are searched for, the tightest first.
fn attempted_bounds(replicate: Replicate) -> Vec<Bounds> {
    let within_iteration = |max_replicas| Bounds {
        max_replicas,
        same_iteration: true,
    };
    match replicate {
        Replicate::Off => Vec::new(),
        Replicate::Auto => vec![within_iteration(MAX_REPLICAS)],
        Replicate::UpTo(limit) => {
            let max_replicas = limit.min(MAX_REPLICAS);
            let longer_iterations = Bounds {
                max_replicas,
                same_iteration: false,
            };
            vec![within_iteration(max_replicas), longer_iterations]
        }
    }
}

/// Tries graphs with replicas.
struct ReplicaSearch<'a> {
    request: ScheduleRequest<'a>,
    /// The model's own graph.
    plain: &'a ScheduledGraph,
}

impl ReplicaSearch<'_> {
    fn candidates(&self, bounds: Bounds) -> Vec<Factors> {
        let plain = self.plain;
        let inputs = Inputs {
            graph: &plain.graph,
            machine: self.request.machine,
            costs: &plain.costs,
            options: &plain.options,
        };
        candidates(inputs, plain.main_plan(), bounds).unwrap_or_default()
    }

    /// The quickest of the candidates; of about equal ones that with the fewest replicas.
    fn find_best(&self, bounds: Bounds, control: &mut Control<'_>) -> Option<ScheduledGraph> {
        // A gain is measured against the plain schedule, an improvement against the best attempt.
        let plain_time = self.plain.iteration_fs();
        let mut best: Option<ScheduledGraph> = None;
        for (tried, factors) in self.candidates(bounds).into_iter().enumerate() {
            let has_gain = best
                .as_ref()
                .is_some_and(|best| is_worth(best.iteration_fs(), plain_time));

            // Candidates come in the order of their promise: after some without a gain, none is expected.
            if tried >= MAX_FAILED_CANDIDATES && !has_gain {
                return None;
            }

            let Some(attempt) = self.attempt(&factors, Level::Fast, control) else {
                continue;
            };
            let is_allowed = !bounds.same_iteration || attempt.iterations == 1;
            let is_improvement = best
                .as_ref()
                .is_none_or(|best| attempt.is_better_than(best));
            if is_allowed && is_improvement {
                best = Some(attempt);
            }
        }
        Some(self.prune(best?, control))
    }

    /// Takes the replicas of single actors away where the period hardly depends on them.
    fn prune(&self, mut best: ScheduledGraph, control: &mut Control<'_>) -> ScheduledGraph {
        // Each attempt is a whole schedule, so their number is bounded.
        let replicated_actors: Vec<_> = best.factors.keys().copied().take(MAX_PRUNED).collect();
        for actor in replicated_actors {
            let mut fewer_replicas = best.factors.clone();
            fewer_replicas.remove(&actor);
            if let Some(attempt) = self.attempt(&fewer_replicas, Level::Fast, control)
                && attempt.is_better_than(&best)
            {
                best = attempt;
            }
        }
        best
    }

    /// The same replicas with a placement as good as was asked for.
    fn refine(&self, best: ScheduledGraph, control: &mut Control<'_>) -> ScheduledGraph {
        let asked_level = self.plain.options.level;
        if asked_level == Level::Fast {
            return best;
        }

        // A thorough search may still end worse, within its time: the better one of the two stays.
        match self.attempt(&best.factors, asked_level, control) {
            Some(refined) if refined.iteration_fs() <= best.iteration_fs() => refined,
            _ => best,
        }
    }

    /// The schedule of the graph with these replicas, if it has one.
    fn attempt(
        &self,
        factors: &Factors,
        level: Level,
        control: &mut Control<'_>,
    ) -> Option<ScheduledGraph> {
        if factors.is_empty() || (control.stop)() {
            return None;
        }

        // What cannot be rewritten or has no schedule is not an error: the model runs without replicas.
        let plain = self.plain;
        let cost_sources = self.request.costs;
        let rewritten_graph = replicate(
            &plain.graph,
            factors,
            cost_sources.registry,
            cost_sources.blobs,
        )
        .ok()?;
        let Replicated { graph, iterations } = rewritten_graph;

        // A block asked for counts iterations of the model.
        let block = match plain.options.block {
            Block::Fixed(block) if !block.is_multiple_of(iterations) => return None,
            Block::Fixed(block) => Block::Fixed(block / iterations),
            Block::Auto => Block::Auto,
        };

        // Attempts are compared at the fast level; only the best one is searched for thoroughly.
        let attempt_options = ScheduleOptions {
            block,
            level,
            ..plain.options.clone()
        };
        let costs = cost_sources.cost_table(&graph);
        let machine = self.request.machine;
        let scheduled = schedule_with(&graph, machine, &costs, &attempt_options, control).ok()?;

        Some(ScheduledGraph {
            graph,
            costs,
            options: ScheduleOptions {
                level: plain.options.level,
                ..attempt_options
            },
            scheduled,
            iterations,
            factors: factors.clone(),
        })
    }

    /// What longer iterations would make possible, by one attempt.
    fn find_possible(&self, control: &mut Control<'_>) -> Option<Replication> {
        let candidates = self.candidates(Bounds {
            max_replicas: MAX_REPLICAS,
            same_iteration: false,
        });
        let factors = candidates.first()?;

        // The first candidate is the most promising: it decides whether the hint is given.
        let attempt = self.attempt(factors, Level::Fast, control)?;
        let is_gain = is_worth(attempt.iteration_fs(), self.plain.iteration_fs());
        if attempt.iterations == 1 || !is_gain {
            return None;
        }

        // The actor with the most replicas is the one that bounds the period.
        let max_replicas = factors.values().copied().max()?;
        let mut actors = factors.iter();
        let (&actor, &replicas) = actors.find(|&(_, &replicas)| replicas == max_replicas)?;
        let actor = self.plain.graph.actors[actor].name.clone();
        Some(Replication::Possible { actor, replicas })
    }

    fn describe(&self, best: &ScheduledGraph) -> Replication {
        let model_actors = &self.plain.graph.actors;
        let factors = best.factors.iter();
        Replication::Done {
            actors: factors
                .map(|(&actor, &replicas)| (model_actors[actor].name.clone(), replicas))
                .collect(),
            period_ns: best.iteration_fs() as f64 / 1e6,
            without_ns: self.plain.iteration_fs() as f64 / 1e6,
            iterations: best.iterations,
        }
    }
}
