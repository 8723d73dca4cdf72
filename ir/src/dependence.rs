//! Which tokens of a source a firing needs: what decides at which firings a change takes effect.

use std::sync::Arc;

use crate::verify::graph::repetition;
use crate::{ActorId, ChangePosition, ChannelId, Graph, Reader, TiSlice, TiVec};

/// Of each actor, the newest token of one source that its firings need, directly or by way of others.
///
/// Firing k of an actor with q firings an iteration needs token `k / q * tokens + newest[k % q]`, where the source gives
/// `tokens` an iteration. Initial tokens count as if earlier iterations had written them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependence {
    tokens_per_iteration: i64,
    /// Newest tokens for the firings of iteration 0; empty for actors that need no tokens of the source.
    newest: TiVec<ActorId, Vec<i64>>,
    repetition: TiVec<ActorId, u64>,
}

impl Dependence {
    /// What the actors of a verified graph need of one of its sources. O(firings of an iteration * ports), times how
    /// often values change on their way around loops.
    ///
    /// # Panics
    /// If the graph is not consistent, or the actor not a source.
    pub fn of_source(graph: &Graph, source: ActorId) -> Self {
        let repetition = repetition(graph).expect("a verified graph is consistent");
        let rate = graph.actors[source].outputs[0].rate as i64;
        let mut dependence = Self {
            tokens_per_iteration: rate * repetition[source] as i64,
            newest: graph.actors.iter().map(|_| Vec::new()).collect(),
            repetition,
        };
        let mut unvisited = vec![source];
        let port_channels = graph.port_channels();
        while let Some(writer) = unvisited.pop() {
            for channel in port_channels.outputs[writer].iter().flatten() {
                for reader in &graph.channels[*channel].readers {
                    let actor = reader.to.actor;
                    if dependence.raise(graph, source, *channel, reader)
                        && !unvisited.contains(&actor)
                    {
                        unvisited.push(actor);
                    }
                }
            }
        }
        dependence
    }

    /// Takes into a reader's firings what they need by way of one channel; whether any of them needs more than before.
    fn raise(
        &mut self,
        graph: &Graph,
        source: ActorId,
        channel: ChannelId,
        reader: &Reader,
    ) -> bool {
        let from = graph.channels[channel].from;
        let write_rate = graph.actors[from.actor].outputs[from.port as usize].rate as i64;
        let actor = reader.to.actor;
        let input = &graph.actors[actor].inputs[reader.to.port as usize];
        let newest_in_window = input.window as i64 - 1 - reader.delay as i64;

        let mut is_raised = false;
        for firing in 0..self.repetition[actor] as i64 {
            let position = firing * input.rate as i64 + newest_in_window;
            // Before the first token lie those that earlier iterations would have written.
            let needed = if from.actor == source {
                position
            } else {
                match self.newest_at(from.actor, position.div_euclid(write_rate)) {
                    Some(needed) => needed,
                    None => continue,
                }
            };
            let of_actor = &mut self.newest[actor];
            match of_actor.get_mut(firing as usize) {
                Some(newest) if *newest >= needed => {}
                Some(newest) => {
                    *newest = needed;
                    is_raised = true;
                }
                None => {
                    of_actor.push(needed);
                    is_raised = true;
                }
            }
        }
        is_raised
    }

    /// The newest token that a firing needs; negative for those of iterations before the first.
    fn newest_at(&self, actor: ActorId, firing: i64) -> Option<i64> {
        let of_actor = &self.newest[actor];
        let firings = of_actor.len() as i64;
        (firings > 0).then(|| {
            firing.div_euclid(firings) * self.tokens_per_iteration
                + of_actor[firing.rem_euclid(firings) as usize]
        })
    }

    /// The first firing of an actor that needs a token, or a later one; where the actor needs none of the source's, the
    /// first of the token's iteration. Tokens and firings are counted from the same border; 0 for what lies before it.
    pub fn first_firing(&self, actor: ActorId, token: i64) -> u64 {
        let of_actor = &self.newest[actor];
        let (Some(&first), Some(&last)) = (of_actor.first(), of_actor.last()) else {
            let iteration = token.div_euclid(self.tokens_per_iteration);
            return iteration.max(0) as u64 * self.repetition[actor];
        };
        debug_assert!(first <= last, "later firings need later tokens");
        // The first iteration whose last firing needs the token has it.
        let missing = token - last;
        let iteration = missing.div_euclid(self.tokens_per_iteration)
            + i64::from(missing.rem_euclid(self.tokens_per_iteration) > 0);
        let in_iteration = token - iteration * self.tokens_per_iteration;
        let firing = of_actor.partition_point(|newest| *newest < in_iteration) as i64;
        (iteration * of_actor.len() as i64 + firing).max(0) as u64
    }
}

/// The firings at which changes take effect, counted from a border of a run.
#[derive(Clone, Copy, Debug)]
pub struct EffectPoints<'a, D> {
    /// Of the verified graph.
    pub repetition: &'a TiSlice<ActorId, u64>,
    /// What is needed of each of its sources.
    pub dependence: D,
    /// Iterations before the border.
    pub iterations: u64,
    /// Tokens that each source has given before it.
    pub consumed: &'a [(ActorId, u64)],
}

impl<D: Fn(ActorId) -> Arc<Dependence>> EffectPoints<'_, D> {
    /// The first firing of an actor after the border at which a change is in effect.
    pub fn first_firing(&self, actor: ActorId, position: ChangePosition) -> u64 {
        match position {
            ChangePosition::Iteration(iteration) => {
                iteration.saturating_sub(self.iterations) * self.repetition[actor]
            }
            ChangePosition::Token { source, index } => {
                let mut counts = self.consumed.iter();
                let before = counts.find(|(id, _)| *id == source).map_or(0, |(_, n)| *n);
                let dependence = (self.dependence)(source);
                dependence.first_firing(actor, index as i64 - before as i64)
            }
        }
    }
}
