//! Data-parallel replication: actors without a memory run on several devices at once where that shortens the period.
//!
//! The scheduler names numbers of replicas that may be worth it, the graph is rewritten for each, and both graphs are
//! scheduled: the quicker one is kept. All that comes after sees an ordinary graph.

mod rewrite;
#[cfg(test)]
mod tests;

use std::fmt;

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_ir::{BlobId, Costs, Graph, Machine, Plan, TiSlice};
use zbmd_scheduler::assign::Objective;
use zbmd_scheduler::buffers::Mode;
use zbmd_scheduler::replicate::{Bounds, Factors, candidates, is_worth};
use zbmd_scheduler::{
    Block, Control, Inputs, Level, Options, ScheduleError, Scheduled, schedule_with,
};

pub use self::rewrite::{ReplicateError, Replicated, replicate};

/// Whether actors may run on several devices at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicate {
    /// Where it shortens the period by enough and iterations stay those of the model.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Where it shortens the period by enough, so many replicas of an actor at most. An iteration of the program may
    /// then be several of the model's.
    UpTo(u32),
}

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
        /// How many replicas would even the work out.
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
                let names: Vec<String> = actors
                    .iter()
                    .map(|(name, replicas)| format!("{name} x{replicas}"))
                    .collect();
                let (period, without) = (time(*period_ns), time(*without_ns));
                let names = names.join(", ");
                write!(
                    f,
                    "replicated: {names}; an iteration in {period}, {without} without"
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

/// Nanoseconds as people read them, also below one.
fn time(ns: f64) -> String {
    if ns < 100.0 {
        format!("{ns:.2} ns")
    } else {
        zbmd_ir::text::duration(ns.round() as u64)
    }
}

/// What scheduling starts from.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) options: &'a Options,
    pub(crate) registry: &'a Registry,
    pub(crate) blobs: &'a TiSlice<BlobId, Bytes>,
    pub(crate) costs: &'a dyn Fn(&Graph) -> Costs,
}

/// A graph with its schedule.
pub(crate) struct Made {
    pub(crate) graph: Graph,
    pub(crate) costs: Costs,
    pub(crate) options: Options,
    pub(crate) scheduled: Scheduled,
    /// How many iterations of the model one of the graph is.
    iterations: u64,
    factors: Factors,
}

impl Made {
    /// Predicted femtoseconds of an iteration of the model.
    fn iteration_fs(&self) -> u128 {
        let plan = self.main();
        let iterations = u128::from(plan.block) * u128::from(self.iterations);
        u128::from(plan.period_ns) * 1_000_000 / iterations.max(1)
    }

    fn main(&self) -> &Plan {
        &self.scheduled.plans[0]
    }
}

/// Schedules the graph, with replicas where `how` allows them and they are worth it.
///
/// # Errors
/// Why the graph itself has no schedule.
pub(crate) fn schedule(
    graph: Graph,
    given: Given<'_>,
    how: Replicate,
    control: &mut Control<'_>,
) -> Result<(Made, Option<Replication>), ScheduleError> {
    let costs = (given.costs)(&graph);
    let options = given.options.clone();
    let scheduled = schedule_with(&graph, given.machine, &costs, &options, control)?;
    let plain = Made {
        graph,
        costs,
        options,
        scheduled,
        iterations: 1,
        factors: Factors::new(),
    };
    let wanted = given.options.objective == Objective::PERIOD
        && !matches!(given.options.buffers, Mode::Min(_));
    let attempts: &[Bounds] = match how {
        _ if !wanted => &[],
        Replicate::Off => &[],
        Replicate::Auto => &[Bounds {
            max_replicas: MOST,
            same_iteration: true,
        }],
        Replicate::UpTo(n) => &[
            Bounds {
                max_replicas: n.min(MOST),
                same_iteration: true,
            },
            Bounds {
                max_replicas: n.min(MOST),
                same_iteration: false,
            },
        ],
    };
    let search = Search {
        given,
        plain: &plain,
    };
    let mut best: Option<Made> = None;
    for &bounds in attempts {
        if let Some(found) = search.best(bounds, control)
            && is_worth(
                found.iteration_fs(),
                best.as_ref().unwrap_or(&plain).iteration_fs(),
            )
        {
            best = Some(found);
        }
    }
    let Some(best) = best else {
        let hint = how == Replicate::Auto && wanted;
        let possible = if hint { search.possible(control) } else { None };
        return Ok((plain, possible));
    };
    let best = search.refined(best, control);
    let replication = Replication::Done {
        actors: best
            .factors
            .iter()
            .map(|(&a, &k)| (plain.graph.actors[a].name.clone(), k))
            .collect(),
        period_ns: best.iteration_fs() as f64 / 1e6,
        without_ns: plain.iteration_fs() as f64 / 1e6,
        iterations: best.iterations,
    };
    Ok((best, Some(replication)))
}

/// Replicas of one actor beyond which nothing is tried: outputs that a kernel can have.
const MOST: u32 = zbmd_backends::kernel::Io::MAX_MUT_PORTS as u32;
/// Candidates without a gain after which there is hardly one to come.
const PATIENCE: usize = 3;
/// Replicated actors that are looked at one by one for whether they are needed.
const MAX_PRUNED: usize = 6;

struct Search<'a> {
    given: Given<'a>,
    /// The model's own graph.
    plain: &'a Made,
}

impl Search<'_> {
    fn candidates(&self, bounds: Bounds) -> Vec<Factors> {
        let Made {
            graph,
            costs,
            options,
            ..
        } = self.plain;
        let inputs = Inputs {
            graph,
            machine: self.given.machine,
            costs,
            options,
        };
        candidates(inputs, self.plain.main(), bounds).unwrap_or_default()
    }

    /// The quickest of the candidates; of about equal ones that with the fewest replicas.
    fn best(&self, bounds: Bounds, control: &mut Control<'_>) -> Option<Made> {
        let without = self.plain.iteration_fs();
        let mut best: Option<Made> = None;
        for (tried, factors) in self.candidates(bounds).into_iter().enumerate() {
            let gained = best
                .as_ref()
                .is_some_and(|b| is_worth(b.iteration_fs(), without));
            if tried >= PATIENCE && !gained {
                return None;
            }
            let made = self.attempt(&factors, Level::Fast, control);
            if let Some(made) = made.filter(|made| !bounds.same_iteration || made.iterations == 1)
                && best.as_ref().is_none_or(|best| better(&made, best))
            {
                best = Some(made);
            }
        }
        let mut best = best?;
        for actor in best
            .factors
            .keys()
            .copied()
            .take(MAX_PRUNED)
            .collect::<Vec<_>>()
        {
            let mut fewer = best.factors.clone();
            fewer.remove(&actor);
            if let Some(made) = self.attempt(&fewer, Level::Fast, control)
                && better(&made, &best)
            {
                best = made;
            }
        }
        Some(best)
    }

    /// The same replicas with a placement as good as was asked for.
    fn refined(&self, best: Made, control: &mut Control<'_>) -> Made {
        let level = self.plain.options.level;
        if level == Level::Fast {
            return best;
        }
        match self.attempt(&best.factors, level, control) {
            Some(made) if made.iteration_fs() <= best.iteration_fs() => made,
            _ => best,
        }
    }

    fn attempt(&self, factors: &Factors, level: Level, control: &mut Control<'_>) -> Option<Made> {
        if factors.is_empty() || (control.stop)() {
            return None;
        }
        let (given, plain) = (self.given, self.plain);
        let Replicated { graph, iterations } =
            replicate(&plain.graph, factors, given.registry, given.blobs).ok()?;
        let block = match plain.options.block {
            Block::Fixed(block) if !block.is_multiple_of(iterations) => return None,
            Block::Fixed(block) => Block::Fixed(block / iterations),
            Block::Auto => Block::Auto,
        };
        let asked = Options {
            block,
            level,
            ..plain.options.clone()
        };
        let costs = (given.costs)(&graph);
        let scheduled = schedule_with(&graph, given.machine, &costs, &asked, control).ok()?;
        let options = Options {
            level: plain.options.level,
            ..asked
        };
        Some(Made {
            graph,
            costs,
            options,
            scheduled,
            iterations,
            factors: factors.clone(),
        })
    }

    /// What longer iterations would make possible, by one attempt.
    fn possible(&self, control: &mut Control<'_>) -> Option<Replication> {
        let candidates = self.candidates(Bounds {
            max_replicas: MOST,
            same_iteration: false,
        });
        let factors = candidates.first()?;
        let made = self.attempt(factors, Level::Fast, control)?;
        if made.iterations == 1 || !is_worth(made.iteration_fs(), self.plain.iteration_fs()) {
            return None;
        }
        let most = factors.values().copied().max()?;
        let (&actor, &replicas) = factors.iter().find(|&(_, &k)| k == most)?;
        let actor = self.plain.graph.actors[actor].name.clone();
        Some(Replication::Possible { actor, replicas })
    }
}

/// Whether `a` is quicker, or about as quick with fewer replicas.
fn better(a: &Made, b: &Made) -> bool {
    let replicas = |made: &Made| made.factors.values().map(|&k| u64::from(k)).sum::<u64>();
    let (quick, slow) = (a.iteration_fs(), b.iteration_fs());
    match replicas(a) < replicas(b) {
        true => quick.saturating_mul(100) <= slow.saturating_mul(102),
        false => quick.saturating_mul(102) < slow.saturating_mul(100),
    }
}
