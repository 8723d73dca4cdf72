//! The input of the analyses: rates, initial tokens and times, and nothing else of a graph.

use std::collections::VecDeque;

use zbmd_ir::{ActorId, ChannelId, Graph, TiVec, limits};

use super::ThroughputError;
use super::period::gcd;
use crate::analysis::AnalysisError;

/// An actor with a constant execution time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedActor {
    /// Name, for reports.
    pub name: String,
    /// Time of one firing, in any unit; periods come out in the same.
    pub time: u64,
    /// Most firings that may run at the same time; `None`: any number.
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

/// A synchronous dataflow graph with execution times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimedSdf {
    /// Actors.
    pub actors: TiVec<ActorId, TimedActor>,
    /// Channels. Those from an actor to itself alone are state: they have no buffer and are not counted.
    pub channels: TiVec<ChannelId, TimedChannel>,
}

impl TimedSdf {
    /// The graph with a time for each actor, which fires `at_once` times at most at the same time: 1 for actors that
    /// are bound to one lane of a device.
    ///
    /// Ids stay the same. `times` must have an entry for each actor; those missing count as 0.
    pub fn of(graph: &Graph, times: &TiVec<ActorId, u64>, at_once: Option<u64>) -> Self {
        let actors = graph
            .actors
            .iter_enumerated()
            .map(|(id, actor)| TimedActor {
                name: actor.name.clone(),
                time: times.get(id).copied().unwrap_or(0),
                at_once,
            });
        let channels = graph.channels.iter().map(|ch| {
            let readers = ch.readers.iter().map(|reader| {
                let port = &graph.actors[reader.to.actor].inputs[reader.to.port as usize];
                let overlap = port.window.saturating_sub(port.rate);
                TimedReader {
                    to: reader.to.actor,
                    consume: port.rate,
                    free: reader.delay.saturating_sub(overlap),
                    overlap,
                }
            });
            TimedChannel {
                from: ch.from.actor,
                produce: graph.actors[ch.from.actor].outputs[ch.from.port as usize].rate,
                token_bytes: ch.token.bytes(),
                readers: readers.collect(),
            }
        });
        TimedSdf {
            actors: actors.collect(),
            channels: channels.collect(),
        }
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
        let ch = &self.channels[channel];
        ch.readers.iter().any(|r| r.to != ch.from)
    }

    /// The fewest tokens with which the channel alone lets writer and readers fire for ever; 0 if it has no buffer.
    ///
    /// With rates p and c, g their greatest common divisor and d initial tokens, a reader needs the larger of d and
    /// p + c − g + (d mod g). Source: Bhattacharyya, Murthy & Lee 1996, "Software Synthesis from Dataflow Graphs".
    pub fn least_capacity(&self, channel: ChannelId) -> u64 {
        let ch = &self.channels[channel];
        if !self.is_buffered(channel) {
            return 0;
        }
        let needs = |r: &TimedReader| {
            if r.to == ch.from {
                return r.free.saturating_add(r.overlap).saturating_add(ch.produce);
            }
            let g = gcd(ch.produce.into(), r.consume.into()) as u64;
            let live = (ch.produce - g)
                .saturating_add(r.consume)
                .saturating_add(r.free % g);
            live.max(r.free).saturating_add(r.overlap)
        };
        ch.readers.iter().map(needs).max().unwrap_or(0)
    }

    /// Firings of each actor per iteration: the smallest positive solution of the balance equations of each
    /// connected component. O(actors + readers).
    ///
    /// # Errors
    /// [`ThroughputError::Id`] or [`ThroughputError::Rate`] for a malformed channel, [`AnalysisError::Inconsistent`]
    /// and [`AnalysisError::Overflow`] as in [`crate::repetition`].
    pub fn repetition(&self) -> Result<TiVec<ActorId, u64>, ThroughputError> {
        self.check()?;
        let mut neighbours: TiVec<ActorId, Vec<(ActorId, u64, u64)>> =
            self.actors.iter().map(|_| Vec::new()).collect();
        for ch in &self.channels {
            for r in &ch.readers {
                neighbours[ch.from].push((r.to, ch.produce, r.consume));
                neighbours[r.to].push((ch.from, r.consume, ch.produce));
            }
        }
        let mut q: TiVec<ActorId, u64> = self.actors.iter().map(|_| 0).collect();
        let mut fraction: TiVec<ActorId, (u128, u128)> =
            self.actors.iter().map(|_| (0, 0)).collect();
        for root in self.actors.keys() {
            if fraction[root].1 > 0 {
                continue;
            }
            fraction[root] = (1, 1);
            let mut queue = VecDeque::from([root]);
            let mut component = vec![root];
            while let Some(at) = queue.pop_front() {
                for &(other, mul, div) in &neighbours[at] {
                    if fraction[other].1 > 0 {
                        continue;
                    }
                    let (n, d) = (
                        fraction[at].0 * u128::from(mul),
                        fraction[at].1 * u128::from(div),
                    );
                    let g = gcd(n, d);
                    fraction[other] = (n / g, d / g);
                    if n / g > limits::MAX_FIRINGS.into() || d / g > limits::MAX_FIRINGS.into() {
                        return Err(too_many(other).into());
                    }
                    queue.push_back(other);
                    component.push(other);
                }
            }
            scale(&component, &fraction, &mut q)?;
        }
        self.balanced(&q)?;
        Ok(q)
    }

    fn check(&self) -> Result<(), ThroughputError> {
        let actors = self.actors.len();
        for (channel, ch) in self.channels.iter_enumerated() {
            let ends = ch.readers.iter().map(|r| (r.to, r.consume));
            for (actor, rate) in std::iter::once((ch.from, ch.produce)).chain(ends) {
                if actor.index() >= actors {
                    return Err(ThroughputError::Id {
                        channel,
                        actor,
                        actors,
                    });
                }
                if !(1..=limits::MAX_RATE).contains(&rate) {
                    let limit = limits::MAX_RATE;
                    return Err(ThroughputError::Rate {
                        channel,
                        rate,
                        limit,
                    });
                }
            }
        }
        Ok(())
    }

    fn balanced(&self, q: &TiVec<ActorId, u64>) -> Result<(), AnalysisError> {
        for (channel, ch) in self.channels.iter_enumerated() {
            for r in &ch.readers {
                let (written, read) = (
                    u128::from(q[ch.from]) * u128::from(ch.produce),
                    u128::from(q[r.to]) * u128::from(r.consume),
                );
                if written != read {
                    let g = gcd(q[ch.from].into(), q[r.to].into()) as u64;
                    return Err(AnalysisError::Inconsistent {
                        channel,
                        writer: ch.from,
                        reader: r.to,
                        produced: ch.produce,
                        consumed: r.consume,
                        writer_firings: q[ch.from] / g,
                        reader_firings: q[r.to] / g,
                    });
                }
            }
        }
        Ok(())
    }
}

fn too_many(actor: ActorId) -> AnalysisError {
    AnalysisError::Overflow {
        actor,
        limit: limits::MAX_FIRINGS,
    }
}

/// Turns the fractions of a component into its smallest whole numbers.
fn scale(
    component: &[ActorId],
    fraction: &TiVec<ActorId, (u128, u128)>,
    q: &mut TiVec<ActorId, u64>,
) -> Result<(), AnalysisError> {
    let mut lcm = 1u128;
    for &actor in component {
        let den = fraction[actor].1;
        lcm = lcm / gcd(lcm, den) * den;
        // Some actor has this denominator in lowest terms over the root, so that the root fires as often.
        if lcm > limits::MAX_FIRINGS.into() {
            return Err(too_many(actor));
        }
    }
    for &actor in component {
        let firings = fraction[actor].0 * (lcm / fraction[actor].1);
        q[actor] = u64::try_from(firings)
            .ok()
            .filter(|&f| f <= limits::MAX_FIRINGS)
            .ok_or_else(|| too_many(actor))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sdf(actors: u32, channels: &[(u32, u64, u32, u64, u64)]) -> TimedSdf {
        let mut sdf = TimedSdf::default();
        for i in 0..actors {
            sdf.add_actor(&format!("n{i}"), 1);
        }
        for &(from, produce, to, consume, initial) in channels {
            sdf.add_channel(ActorId(from), produce, ActorId(to), consume, initial);
        }
        sdf
    }

    #[test]
    fn repetition_vectors() {
        let check = |actors, channels: &[_], expect: &[u64]| {
            let q = sdf(actors, channels).repetition().expect("consistent");
            assert_eq!(q.raw, expect, "{channels:?}");
        };
        check(0, &[], &[]);
        check(2, &[(0, 2, 1, 3, 0)], &[3, 2]);
        check(3, &[(0, 2, 1, 3, 0)], &[3, 2, 1]);
        check(
            3,
            &[(1, 4, 0, 6, 0), (1, 10, 2, 15, 0), (0, 7, 0, 7, 7)],
            &[2, 3, 2],
        );
        check(
            3,
            &[
                (0, 147, 1, 160, 0),
                (1, 7, 2, 5, 0),
                (0, 147, 2, 800 / 7, 0),
            ][..2],
            &[800, 735, 1029],
        );
    }

    #[test]
    fn bad_graphs_are_refused() {
        let inconsistent = sdf(2, &[(0, 1, 1, 1, 0), (0, 2, 1, 1, 0)]).repetition();
        assert_eq!(
            inconsistent.expect_err("unbalanced").to_string(),
            "inconsistent rates on ch1: 1 firings of a0 produce 2 tokens each, 1 firings of a1 consume 1 each"
        );
        let zero = sdf(2, &[(0, 0, 1, 1, 0)]).repetition();
        assert_eq!(
            zero.expect_err("no rate").to_string(),
            "ch0 has a rate of 0, allowed are 1 to 4294967296"
        );
        let nobody = sdf(2, &[(0, 1, 2, 1, 0)]).repetition();
        assert_eq!(
            nobody.expect_err("no such actor").to_string(),
            "ch0 names a2 of 2 actors"
        );
        let chain: Vec<_> = (0..60).map(|i| (i, 3, i + 1, 2, 0)).collect();
        assert!(matches!(
            sdf(61, &chain).repetition(),
            Err(ThroughputError::Analysis(AnalysisError::Overflow { .. }))
        ));
    }

    #[test]
    fn least_capacities() {
        let cases = [
            ((1, 1, 0), 1),
            ((2, 3, 0), 4),
            ((4, 6, 0), 8),
            ((4, 6, 3), 9),
            ((4, 6, 8), 8),
            ((4, 6, 9), 9),
            ((1, 594, 0), 594),
        ];
        for ((produce, consume, initial), expect) in cases {
            let g = sdf(2, &[(0, produce, 1, consume, initial)]);
            assert_eq!(
                g.least_capacity(ChannelId(0)),
                expect,
                "{produce} {consume} {initial}"
            );
        }
        assert_eq!(
            sdf(1, &[(0, 2, 0, 2, 2)]).least_capacity(ChannelId(0)),
            0,
            "a state"
        );
    }
}
