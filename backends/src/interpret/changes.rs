//! Changes of live parameters in the interpreter: by what each token was made from, not by the tables that executors use.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{
    Actor, ActorId, BlobId, ChangePosition, ChannelId, Graph, LiveParameter, ParameterChange,
    PositionOrder, State, TiSlice, TiVec, has_live, insert_change, live_parameters,
};

use crate::kernel::Kernel;
use crate::op::{OpError, Registry};

/// The newest token of each source that a token was made from, in the order of sources.
type Origin = Vec<Option<u64>>;

/// What a graph with live parameters needs besides its kernels.
pub(super) struct LiveActors {
    parameters: Vec<LiveParameter>,
    actors: BTreeMap<ActorId, LiveActor>,
    registry: Registry,
    blobs: TiVec<BlobId, Bytes>,
    changes: Vec<ParameterChange>,
    /// Of the state that the run began with.
    iterations_before: u64,
    sources: Vec<SourceReach>,
    /// Of the tokens that are kept on each channel.
    origins: TiVec<ChannelId, VecDeque<Origin>>,
}

struct LiveActor {
    actor: Actor,
    /// Whether each change is in effect.
    in_effect: Vec<bool>,
}

struct SourceReach {
    id: ActorId,
    tokens_per_iteration: u64,
    /// Tokens of the state that the run began with.
    tokens_before: u64,
    /// Actors that get tokens that were made from its own.
    reached: TiVec<ActorId, bool>,
}

impl LiveActors {
    /// `None` for a graph without live parameters. `tokens_per_iteration` is asked of sources.
    pub(super) fn of(
        graph: &Graph,
        blobs: &TiSlice<BlobId, Bytes>,
        registry: &Registry,
        tokens_per_iteration: impl Fn(ActorId) -> u64,
    ) -> Option<Self> {
        let parameters = live_parameters(graph);
        if parameters.is_empty() {
            return None;
        }
        let live_actors = graph.actors.iter_enumerated();
        let live_actors = live_actors.filter(|(_, actor)| has_live(actor));
        let actors = live_actors.map(|(id, actor)| {
            let live_actor = LiveActor {
                actor: actor.ungated().into_owned(),
                in_effect: Vec::new(),
            };
            (id, live_actor)
        });
        let sources: Vec<SourceReach> = graph
            .sources()
            .map(|(id, _)| SourceReach {
                id,
                tokens_per_iteration: tokens_per_iteration(id),
                tokens_before: 0,
                reached: reached_from(graph, id),
            })
            .collect();
        let unknown: Origin = vec![None; sources.len()];
        let origins = graph.channels.iter();
        let origins =
            origins.map(|channel| vec![unknown.clone(); channel.history() as usize].into());
        Some(Self {
            parameters,
            actors: actors.collect(),
            registry: registry.clone(),
            blobs: blobs.to_owned(),
            changes: Vec::new(),
            iterations_before: 0,
            origins: origins.collect(),
            sources,
        })
    }

    pub(super) fn add(&mut self, change: ParameterChange) {
        let sources = self.sources.iter();
        let consumed: Vec<(ActorId, u64)> = sources.map(|s| (s.id, s.tokens_before)).collect();
        let order = PositionOrder {
            iterations: self.iterations_before,
            consumed: &consumed,
            tokens_per_iteration: |id| {
                let known = self.sources.iter().find(|source| source.id == id);
                known.map_or(1, |source| source.tokens_per_iteration)
            },
        };
        insert_change(&mut self.changes, change, &order);
        // What is in effect already is found anew, in the new order.
        for live_actor in self.actors.values_mut() {
            live_actor.in_effect = vec![false; self.changes.len()];
        }
    }

    /// The run goes on from a state: what its tokens were made from lies before all changes, and iterations before it may
    /// have taken other numbers of tokens.
    pub(super) fn restore(&mut self, state: &State) {
        self.iterations_before = state.iterations;
        for source in &mut self.sources {
            let mut counts = state.consumed.iter();
            let count = counts.find(|(id, _)| *id == source.id);
            source.tokens_before = count.map_or(0, |(_, tokens)| *tokens);
        }

        let unknown: Origin = vec![None; self.sources.len()];
        for origins in &mut self.origins {
            origins
                .iter_mut()
                .for_each(|origin| origin.clone_from(&unknown));
        }
    }

    /// What the tokens of a source's firing are made from: themselves. `first` is the first token's index.
    pub(super) fn write_source(
        &mut self,
        actor: ActorId,
        channel: ChannelId,
        first: u64,
        count: u64,
    ) {
        let index = self.sources.iter().position(|source| source.id == actor);
        for token in first..first + count {
            let mut origin = vec![None; self.sources.len()];
            if let Some(index) = index {
                origin[index] = Some(token);
            }
            self.origins[channel].push_back(origin);
        }
    }

    /// What a firing is made from: the newest of each source among the tokens of its windows. Each is a channel, the first
    /// token counted from those that are kept, and how many.
    pub(super) fn origin_of(&self, windows: impl Iterator<Item = (ChannelId, u64, u64)>) -> Origin {
        let mut newest = vec![None; self.sources.len()];
        for (channel, first, count) in windows {
            let tokens = self.origins[channel].range(first as usize..(first + count) as usize);
            for origin in tokens {
                for (newest, of_token) in newest.iter_mut().zip(origin) {
                    *newest = (*newest).max(*of_token);
                }
            }
        }
        newest
    }

    pub(super) fn write(&mut self, channel: ChannelId, origin: &Origin, count: u64) {
        let tokens = (0..count).map(|_| origin.clone());
        self.origins[channel].extend(tokens);
    }

    /// The first `count` tokens are not kept any more.
    pub(super) fn drop_first(&mut self, channel: ChannelId, count: u64) {
        self.origins[channel].drain(..count as usize);
    }

    /// The kernel for a firing of an actor, counted from the start of the run, if it is another than that of the firing
    /// before.
    ///
    /// # Errors
    /// What the op refuses.
    pub(super) fn kernel_for(
        &mut self,
        id: ActorId,
        firing: u64,
        firings_per_iteration: u64,
        origin: &Origin,
    ) -> Option<Result<Arc<dyn Kernel>, OpError>> {
        let live_actor = self.actors.get_mut(&id)?;
        let mut has_new = false;
        for (change, was_in_effect) in self.changes.iter().zip(&mut live_actor.in_effect) {
            let is_in_effect = match change.position {
                ChangePosition::Iteration(iteration) => firing >= iteration * firings_per_iteration,
                ChangePosition::Token { source, index } => {
                    let known = self.sources.iter().position(|known| known.id == source);
                    known.is_some_and(|known| {
                        let source = &self.sources[known];
                        if source.reached[id] {
                            origin[known].is_some_and(|newest| newest >= index)
                        } else {
                            let ahead = i128::from(index) - i128::from(source.tokens_before);
                            let iterations =
                                ahead.div_euclid(i128::from(source.tokens_per_iteration));
                            let iteration = i128::from(self.iterations_before) + iterations;
                            i128::from(firing) >= iteration * i128::from(firings_per_iteration)
                        }
                    })
                }
            };
            // Once in effect it stays so.
            has_new |= is_in_effect && !std::mem::replace(was_in_effect, true);
        }
        if !has_new {
            return None;
        }

        let mut values: BTreeMap<u32, &Vec<f64>> = BTreeMap::new();
        let changes = self.changes.iter().zip(&live_actor.in_effect);
        for (change, _) in changes.filter(|(_, is_in_effect)| **is_in_effect) {
            for (parameter, numbers) in &change.values {
                values.insert(*parameter, numbers);
            }
        }
        let numbers = |parameter: &LiveParameter| {
            let index = self
                .parameters
                .iter()
                .position(|p| p.name == parameter.name)?;
            values
                .get(&(index as u32))
                .map(|numbers| (*numbers).clone())
        };
        let changed = self
            .registry
            .with_values(&live_actor.actor, &self.blobs, &numbers);
        Some(changed.and_then(|actor| self.registry.kernel(&actor, &self.blobs)))
    }
}

/// The actors that get tokens made from those of a source.
fn reached_from(graph: &Graph, source: ActorId) -> TiVec<ActorId, bool> {
    let mut reached: TiVec<ActorId, bool> = vec![false; graph.actors.len()].into();
    let mut unvisited = vec![source];
    while let Some(writer) = unvisited.pop() {
        let written = graph
            .channels
            .iter()
            .filter(|channel| channel.from.actor == writer);
        for reader in written.flat_map(|channel| &channel.readers) {
            if !std::mem::replace(&mut reached[reader.to.actor], true) {
                unvisited.push(reader.to.actor);
            }
        }
    }
    reached
}
