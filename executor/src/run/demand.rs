//! The memory that a run takes, added up before any of it is taken. Knows no threads and takes nothing.

use zbmd_ir::{Plan, PlanId};

use super::queues::{saves, sink_capacities};
use crate::error::EngineError;
use crate::options::RunOptions;
use crate::program::{LoadedModes, LoadedProgram};
use crate::transport::session_memory::{Queues, SessionMemory};

/// Areas for the tokens that lie on channels at a border: where an epoch begins, where it ends, and those saved.
const FIXED_AREAS: u128 = 2;

/// Bytes of memory that one plan of a run takes, by what they are for. Sums of numbers that a bundle may choose, so wide
/// enough for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    arenas: u128,
    exchange: u128,
    sources: u128,
    sinks: u128,
    borders: u128,
}

impl Demand {
    /// What a plan takes on CPUs. What it takes on a GPU is the driver's to refuse.
    pub(crate) fn new(
        loaded: &LoadedProgram,
        plan: &Plan,
        options: &RunOptions,
        queues: &Queues,
    ) -> Self {
        let graph = &loaded.program.graph;
        let on_cpus = plan.calendars.iter().filter(|c| !loaded.is_gpu(c.device));
        let arenas = on_cpus.map(|c| u128::from(c.arena_bytes)).sum();
        let exchange = plan
            .calendars
            .iter()
            .map(|c| u128::from(c.exchange_bytes))
            .sum();

        let capacities = sink_capacities(loaded, options);
        let sinks = graph.sinks().zip(capacities).map(|((_, actor), capacity)| {
            u128::from(capacity) * u128::from(actor.inputs[0].token.bytes())
        });

        let saved = saves(loaded, plan, options, 0).map_or(0, |saves| saves.areas);
        let tokens = graph
            .channels
            .iter()
            .map(|c| u128::from(c.history()) * u128::from(c.token.bytes()));

        Self {
            arenas,
            exchange,
            sources: SessionMemory::bytes(queues).into(),
            sinks: sinks.sum(),
            borders: tokens.sum::<u128>() * (FIXED_AREAS + u128::from(saved)),
        }
    }

    fn total(&self) -> u128 {
        self.arenas + self.exchange + self.sources + self.sinks + self.borders
    }
}

impl std::fmt::Display for Demand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            arenas,
            exchange,
            sources,
            sinks,
            borders,
        } = self;
        write!(
            f,
            "arenas {arenas}, exchange regions {exchange}, queues of sources {sources}, queues of sinks {sinks}, \
             tokens at borders {borders}"
        )
    }
}

/// Compares what the plans of all modes for the whole machine take with what there is.
///
/// # Errors
/// [`EngineError::Demand`] for the first plan that takes more.
pub(crate) fn check(
    modes: &LoadedModes,
    options: &RunOptions,
    queues: &Queues,
    available: Option<u64>,
) -> Result<(), EngineError> {
    let Some(available) = available else {
        return Ok(());
    };
    let mut modes = modes.iter();
    modes.try_for_each(|loaded| check_mode(loaded, options, queues, available))
}

fn check_mode(
    loaded: &LoadedProgram,
    options: &RunOptions,
    queues: &Queues,
    available: u64,
) -> Result<(), EngineError> {
    let plans: [Option<PlanId>; 2] = [Some(loaded.main), loaded.tail];
    for plan in plans.into_iter().flatten() {
        let plan = &loaded.program.plans[plan];
        let demand = Demand::new(loaded, plan, options, queues);
        let needed = demand.total();
        if needed > u128::from(available) {
            return Err(EngineError::Demand {
                plan: plan.name.clone(),
                needed,
                parts: demand.to_string(),
                available,
            });
        }
    }
    Ok(())
}
