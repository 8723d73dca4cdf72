//! Weights that a calendar fetches: they are in memory of the host, and each period's commands copy them to the arena.
//!
//! The commands of a list run as if one after the other, so a copy waits for the kernels that read what its place had
//! before, and the kernels of its actor wait for it. What is fetched at the end of a period for the next one is copied
//! once more before the first period.

use std::collections::BTreeMap;

use zbmd_ir::{ActorId, BlobId, Calendar, Graph, Machine};

use super::layout::{OffsetRange, RegionLayout};
use super::queue::{BankRange, Command};

/// The weights that a calendar fetches.
#[derive(Default)]
pub(super) struct FetchedWeights {
    by_actor: BTreeMap<ActorId, FetchedWeight>,
}

/// The weights of one actor.
pub(super) struct FetchedWeight {
    /// Where the program has them.
    pub(super) blob: BlobId,
    pub(super) bytes: u64,
    /// Where they go in the arena.
    offset_bytes: u64,
    /// Whether the actor waits for what the period before has fetched.
    is_for_next: bool,
    /// The copy, once both of its ends are known.
    copy: Option<(BankRange, BankRange)>,
}

impl FetchedWeights {
    /// What a verified calendar fetches.
    pub(super) fn of_calendar(graph: &Graph, machine: &Machine, calendar: &Calendar) -> Self {
        let kind = &machine.devices[calendar.device].backend;
        let weights = calendar.weight_fetches().into_iter().map(|fetch| {
            let weights = graph.actors[fetch.actor].fetchable_weights(kind);
            let (blob, token) = weights.expect("the verifier lets only such actors fetch");
            let weight = FetchedWeight {
                blob,
                bytes: token.bytes(),
                offset_bytes: fetch.offset_bytes,
                is_for_next: fetch.is_for_next,
                copy: None,
            };
            (fetch.actor, weight)
        });
        Self {
            by_actor: weights.collect(),
        }
    }

    /// The places in the arena.
    pub(super) fn places(&self) -> impl Iterator<Item = OffsetRange> {
        let weights = self.by_actor.values();
        weights.map(|weight| (weight.offset_bytes, weight.offset_bytes + weight.bytes))
    }

    /// The weights of an actor, if it fetches them.
    pub(super) fn of_actor(&self, actor: ActorId) -> Option<&FetchedWeight> {
        self.by_actor.get(&actor)
    }

    /// Lets the weights of an actor be copied from where they are on the host; where its kernels find them in the arena.
    pub(super) fn copy_from(
        &mut self,
        actor: ActorId,
        from: BankRange,
        arena: &RegionLayout,
    ) -> BankRange {
        let Some(weight) = self.by_actor.get_mut(&actor) else {
            return from;
        };
        let to = arena.range(weight.offset_bytes, weight.bytes);
        weight.copy = Some((from, to));
        to
    }

    /// What fetches the weights of an actor; nothing if its kernels do not read them.
    pub(super) fn copy_command(&self, actor: ActorId) -> Option<Command> {
        self.by_actor.get(&actor)?.command()
    }

    /// What is fetched before the first period, for it.
    pub(super) fn commands_before_first(&self) -> Vec<Command> {
        let weights = self.by_actor.values();
        let for_first = weights.filter(|weight| weight.is_for_next);
        for_first.filter_map(FetchedWeight::command).collect()
    }
}

impl FetchedWeight {
    fn command(&self) -> Option<Command> {
        self.copy.map(|(from, to)| Command::Copy { from, to })
    }
}
