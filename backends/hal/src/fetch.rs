//! Weights that a calendar fetches: they are in memory of the host, and each period's commands copy them to the arena.
//!
//! The commands of a list run as if one after the other, so a copy waits for the kernels that read what its place had
//! before, and the kernels of its actor wait for it. What is fetched at the end of a period for the next one is copied
//! once more before the first period.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::{Action, ActorId, BlobId, Calendar, Graph, Machine, walk};

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
        let mut by_actor = BTreeMap::new();
        let mut awaited = BTreeSet::new();
        let kind = &machine.devices[calendar.device].backend;
        let lanes = calendar.lanes.iter();
        for slot in lanes.flat_map(|lane| walk::top_slots(&lane.entries)) {
            match slot.action {
                Action::Await { actor } => {
                    awaited.insert(actor);
                }
                Action::Fetch {
                    actor,
                    offset_bytes,
                } => {
                    let weights = graph.actors[actor].fetchable_weights(kind);
                    let (blob, token) = weights.expect("the verifier lets only such actors fetch");
                    let weight = FetchedWeight {
                        blob,
                        offset_bytes,
                        bytes: token.bytes(),
                        is_for_next: awaited.contains(&actor),
                        copy: None,
                    };
                    by_actor.insert(actor, weight);
                }
                _ => {}
            }
        }
        Self { by_actor }
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
