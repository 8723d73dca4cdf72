//! The input of the analyses: rates, initial tokens and times, and nothing else of a graph.

use zbmd_ir::math::{gcd, gcd_u64, lcm};
use zbmd_ir::{ActorId, ChannelId, Graph, TiVec, limits};

use super::ThroughputError;
use super::phases::PhaseTable;
use crate::analysis::AnalysisError;

/// An actor with a constant execution time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedActor {
    /// Name, for reports.
    pub name: String,
    /// Time of one firing, in any unit; periods come out in the same.
    pub time: u64,
    /// Firings that may run at the same time at most; `None`: any number.
    pub at_once: Option<u64>,
}

/// A reader of a [`TimedChannel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedReader {
    /// The actor.
    pub to: ActorId,
    /// Tokens consumed per firing, at least 1.
    pub consume: u64,
    /// Initial tokens that lie there for the taking.
    pub free: u64,
    /// Older tokens that it still looks at: window less rate. They take up space, but are never waited for.
    pub overlap: u64,
}

/// A stream from one writer to its readers, with one buffer for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedChannel {
    /// The writer.
    pub from: ActorId,
    /// Tokens produced per firing, at least 1.
    pub produce: u64,
    /// Bytes of one token, for sizes in bytes.
    pub token_bytes: u64,
    /// The readers.
    pub readers: Vec<TimedReader>,
}

impl TimedChannel {
    /// The fewest tokens with which one of its readers and the writer can fire for ever.
    fn min_room(&self, reader: &TimedReader) -> u64 {
        if reader.to == self.from {
            let initial = reader.free.saturating_add(reader.overlap);
            return initial.saturating_add(self.produce);
        }
        let common = gcd_u64(self.produce, reader.consume);
        // Tokens come and go in steps of the common divisor.
        let live = (self.produce - common)
            .saturating_add(reader.consume)
            .saturating_add(reader.free % common);
        live.max(reader.free).saturating_add(reader.overlap)
    }
}

/// A synchronous dataflow graph with execution times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimedSdf {
    /// Actors.
    pub actors: TiVec<ActorId, TimedActor>,
    /// Channels. Those from an actor to itself alone are state: they have no buffer and are not counted.
    pub channels: TiVec<ChannelId, TimedChannel>,
    /// Phases of actors whose firings are cycles of them.
    pub(crate) phases: PhaseTable,
}

impl TimedSdf {
    /// The graph with a time for each actor, which fires `at_once` times at most at the same time: 1 for actors that
    /// are bound to one lane of a device.
    ///
    /// Ids stay the same. `times` must have an entry for each actor; those missing count as 0.
    pub fn of(graph: &Graph, times: &TiVec<ActorId, u64>, at_once: Option<u64>) -> Self {
        let mut sdf = TimedSdf::default();
        for (id, actor) in graph.actors.iter_enumerated() {
            sdf.actors.push(TimedActor {
                name: actor.name.clone(),
                time: times.get(id).copied().unwrap_or(0),
                at_once,
            });
        }

        for channel in &graph.channels {
            let writer = &graph.actors[channel.from.actor];
            let mut readers = Vec::with_capacity(channel.readers.len());
            for reader in &channel.readers {
                let port = &graph.actors[reader.to.actor].inputs[reader.to.port as usize];
                let overlap = port.window.saturating_sub(port.rate);
                readers.push(TimedReader {
                    to: reader.to.actor,
                    consume: port.rate,
                    free: reader.delay.saturating_sub(overlap),
                    overlap,
                });
            }
            sdf.channels.push(TimedChannel {
                from: channel.from.actor,
                produce: writer.outputs[channel.from.port as usize].rate,
                token_bytes: channel.token.bytes(),
                readers,
            });
        }
        sdf
    }

    /// Adds an actor that may fire any number of times at once.
    pub fn add_actor(&mut self, name: &str, time: u64) -> ActorId {
        self.actors.push_and_get_key(TimedActor {
            name: name.into(),
            time,
            at_once: None,
        })
    }

    /// Adds a channel with one reader and tokens of one byte.
    pub fn add_channel(
        &mut self,
        from: ActorId,
        produce: u64,
        to: ActorId,
        consume: u64,
        initial: u64,
    ) -> ChannelId {
        let reader = TimedReader {
            to,
            consume,
            free: initial,
            overlap: 0,
        };
        self.channels.push_and_get_key(TimedChannel {
            from,
            produce,
            token_bytes: 1,
            readers: vec![reader],
        })
    }

    /// Whether the channel has a buffer to be sized: some reader is not the writer itself.
    pub fn is_buffered(&self, channel: ChannelId) -> bool {
        let channel = &self.channels[channel];
        let mut readers = channel.readers.iter();
        readers.any(|reader| reader.to != channel.from)
    }

    /// The fewest tokens with which the channel alone lets writer and readers fire for ever; 0 if it has no buffer.
    ///
    /// With rates p and c, g their greatest common divisor and d initial tokens, a reader needs the larger of d and
    /// p + c − g + (d mod g). Source: Bhattacharyya, Murthy & Lee 1996, "Software Synthesis from Dataflow Graphs". Where
    /// an end has phases it is only a bound: what lies there at the start, and the most that one phase writes or reads.
    pub fn min_capacity(&self, channel: ChannelId) -> u64 {
        if !self.is_buffered(channel) {
            return 0;
        }
        let (id, channel) = (channel, &self.channels[channel]);
        let readers = channel.readers.iter().enumerate();
        let needs = readers.map(|(index, reader)| {
            match self.phases.has_phases(channel.from) || self.phases.has_phases(reader.to) {
                true => self.min_room_of_phases(id, index),
                false => channel.min_room(reader),
            }
        });
        needs.max().unwrap_or(0)
    }

    /// Firings of each actor per iteration: the smallest positive solution of the balance equations of each
    /// connected component. O(actors + readers).
    ///
    /// # Errors
    /// [`ThroughputError::Id`] or [`ThroughputError::Rate`] for a malformed channel, [`AnalysisError::Inconsistent`]
    /// and [`AnalysisError::Overflow`] as in [`crate::repetition`].
    pub fn repetition(&self) -> Result<TiVec<ActorId, u64>, ThroughputError> {
        self.check_ids_and_rates()?;
        let mut neighbours: TiVec<ActorId, Vec<RateNeighbour>> =
            self.actors.iter().map(|_| Vec::new()).collect();
        for channel in &self.channels {
            for reader in &channel.readers {
                neighbours[channel.from].push(RateNeighbour {
                    actor: reader.to,
                    factor: channel.produce,
                    divisor: reader.consume,
                });
                neighbours[reader.to].push(RateNeighbour {
                    actor: channel.from,
                    factor: reader.consume,
                    divisor: channel.produce,
                });
            }
        }

        let mut repetition: TiVec<ActorId, u64> = self.actors.iter().map(|_| 0).collect();
        let mut fractions: FiringFractions = self.actors.iter().map(|_| None).collect();
        for root in self.actors.keys() {
            if fractions[root].is_none() {
                let component = spread_fractions(root, &neighbours, &mut fractions)?;
                scale_component(&component, &mut repetition)?;
            }
        }
        self.check_balance(&repetition)?;
        Ok(repetition)
    }

    fn check_ids_and_rates(&self) -> Result<(), ThroughputError> {
        let actors = self.actors.len();
        let limit = limits::MAX_RATE;

        for (id, channel) in self.channels.iter_enumerated() {
            let readers = channel.readers.iter();
            let ends = readers.map(|reader| (reader.to, reader.consume));
            for (actor, rate) in std::iter::once((channel.from, channel.produce)).chain(ends) {
                if actor.index() >= actors {
                    return Err(ThroughputError::Id {
                        channel: id,
                        actor,
                        actors,
                    });
                }
                if !(1..=limit).contains(&rate) {
                    return Err(ThroughputError::Rate {
                        channel: id,
                        rate,
                        limit,
                    });
                }
            }
        }
        Ok(())
    }

    fn check_balance(&self, repetition: &TiVec<ActorId, u64>) -> Result<(), AnalysisError> {
        for (id, channel) in self.channels.iter_enumerated() {
            let writer_firings = repetition[channel.from];
            for reader in &channel.readers {
                let reader_firings = repetition[reader.to];
                let written = u128::from(writer_firings) * u128::from(channel.produce);
                let read = u128::from(reader_firings) * u128::from(reader.consume);
                if written != read {
                    let common = gcd_u64(writer_firings, reader_firings).max(1);
                    return Err(AnalysisError::Inconsistent {
                        channel: id,
                        writer: channel.from,
                        reader: reader.to,
                        produced: channel.produce,
                        consumed: reader.consume,
                        writer_firings: writer_firings / common,
                        reader_firings: reader_firings / common,
                    });
                }
            }
        }
        Ok(())
    }
}

fn too_many_firings(actor: ActorId) -> AnalysisError {
    AnalysisError::Overflow {
        actor,
        limit: limits::MAX_FIRINGS,
    }
}

/// An actor at the other end of a channel, which fires `factor / divisor` times as often.
struct RateNeighbour {
    actor: ActorId,
    factor: u64,
    divisor: u64,
}

/// Firings relative to the first actor of the component, as a reduced fraction.
#[derive(Clone, Copy)]
struct FiringFraction {
    numerator: u128,
    denominator: u128,
}

/// The fractions of the actors that were reached.
type FiringFractions = TiVec<ActorId, Option<FiringFraction>>;

/// Finds the firings of all actors that are connected to the root, relative to its own.
fn spread_fractions(
    root: ActorId,
    neighbours: &TiVec<ActorId, Vec<RateNeighbour>>,
    fractions: &mut FiringFractions,
) -> Result<Vec<(ActorId, FiringFraction)>, AnalysisError> {
    let whole = FiringFraction {
        numerator: 1,
        denominator: 1,
    };
    let max = u128::from(limits::MAX_FIRINGS);
    let mut component = vec![(root, whole)];
    let mut next = 0;
    fractions[root] = Some(whole);

    while let Some(&(actor, known)) = component.get(next) {
        next += 1;
        for neighbour in &neighbours[actor] {
            let other = neighbour.actor;
            if fractions[other].is_some() {
                continue;
            }
            let numerator = known.numerator * u128::from(neighbour.factor);
            let denominator = known.denominator * u128::from(neighbour.divisor);
            let common = gcd(numerator, denominator);
            let reduced = FiringFraction {
                numerator: numerator / common,
                denominator: denominator / common,
            };
            if reduced.numerator > max || reduced.denominator > max {
                return Err(too_many_firings(other));
            }
            fractions[other] = Some(reduced);
            component.push((other, reduced));
        }
    }
    Ok(component)
}

/// Turns the fractions of a component into its smallest whole numbers.
fn scale_component(
    component: &[(ActorId, FiringFraction)],
    repetition: &mut TiVec<ActorId, u64>,
) -> Result<(), AnalysisError> {
    let mut multiple = 1u128;
    for &(actor, fraction) in component {
        // Some actor has this denominator in lowest terms over the root, so that the root fires as often.
        multiple = lcm(multiple, fraction.denominator)
            .filter(|&multiple| multiple <= limits::MAX_FIRINGS.into())
            .ok_or_else(|| too_many_firings(actor))?;
    }

    for &(actor, fraction) in component {
        let firings = fraction.numerator * (multiple / fraction.denominator);
        repetition[actor] = u64::try_from(firings)
            .ok()
            .filter(|&firings| firings <= limits::MAX_FIRINGS)
            .ok_or_else(|| too_many_firings(actor))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
