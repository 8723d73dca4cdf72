//! The repetition vector, computed from the balance equations alone. Must not know plans.

use super::error::{Port, VerifyError};
use crate::limits::MAX_FIRINGS;
use crate::{Actor, ActorId, ChannelId, Graph, TiVec};

/// One writer-reader pair of a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) channel: ChannelId,
    pub(super) from: ActorId,
    pub(super) to: ActorId,
    /// Tokens that one firing of `from` writes.
    pub(super) produced: u64,
    /// Tokens that one firing of `to` consumes.
    pub(super) consumed: u64,
    /// Tokens that one firing of `to` looks at.
    pub(super) window: u64,
    /// Initial tokens that `to` sees.
    pub(super) delay: u64,
}

/// All edges, in channel and reader order.
///
/// # Errors
/// The first endpoint that does not exist, or rate of 0.
pub(super) fn edges(graph: &Graph) -> Result<Vec<Edge>, VerifyError> {
    let mut edges = Vec::new();
    for (id, channel) in graph.channels.iter_enumerated() {
        let writer = channel.from;
        let write_port = Port::Out(writer.port);
        let outputs = &find_actor(graph, id, writer.actor)?.outputs;
        let output = outputs
            .get(writer.port as usize)
            .ok_or(VerifyError::UnknownPort {
                channel: id,
                actor: writer.actor,
                port: write_port,
                ports: outputs.len(),
            })?;
        check_rate(output.rate, writer.actor, write_port)?;

        // Each reader balances with the writer by itself.
        for reader in &channel.readers {
            let read_port = Port::In(reader.to.port);
            let inputs = &find_actor(graph, id, reader.to.actor)?.inputs;
            let input = inputs
                .get(reader.to.port as usize)
                .ok_or(VerifyError::UnknownPort {
                    channel: id,
                    actor: reader.to.actor,
                    port: read_port,
                    ports: inputs.len(),
                })?;
            check_rate(input.rate, reader.to.actor, read_port)?;

            edges.push(Edge {
                channel: id,
                from: writer.actor,
                to: reader.to.actor,
                produced: output.rate,
                consumed: input.rate,
                window: input.window,
                delay: reader.delay,
            });
        }
    }

    Ok(edges)
}

fn find_actor(graph: &Graph, channel: ChannelId, actor: ActorId) -> Result<&Actor, VerifyError> {
    graph.actors.get(actor).ok_or(VerifyError::UnknownActor {
        channel,
        actor,
        actors: graph.actors.len(),
    })
}

fn check_rate(rate: u64, actor: ActorId, port: Port) -> Result<(), VerifyError> {
    if rate == 0 {
        return Err(VerifyError::ZeroRate { actor, port });
    }
    Ok(())
}

/// Not `crate::math`: the verifier shares no code with the scheduler, which uses that.
fn greatest_divisor(left: u128, right: u128) -> u128 {
    let mut dividend = left;
    let mut divisor = right;
    while divisor != 0 {
        let remainder = dividend % divisor;
        dividend = divisor;
        divisor = remainder;
    }
    dividend
}

/// A positive fraction in lowest terms: firings of an actor for one firing of its component's first actor.
#[derive(Clone, Copy, PartialEq)]
struct Ratio {
    num: u128,
    den: u128,
}

impl Ratio {
    /// In lowest terms.
    fn reduced(self) -> Ratio {
        let divisor = greatest_divisor(self.num, self.den);
        Ratio {
            num: self.num / divisor,
            den: self.den / divisor,
        }
    }

    /// `self * num / den`, refused where no repetition vector within the limits can have that ratio.
    fn scaled(self, actor: ActorId, num: u64, den: u64) -> Result<Ratio, VerifyError> {
        // Both factors are below 2^40 and both rates below 2^64, so that the products stay below 2^104.
        let ratio = Ratio {
            num: self.num * u128::from(num),
            den: self.den * u128::from(den),
        };
        let ratio = ratio.reduced();
        let firings = ratio.num.max(ratio.den);
        if firings > u128::from(MAX_FIRINGS) {
            return Err(too_many_firings(actor, firings));
        }
        Ok(ratio)
    }
}

fn too_many_firings(actor: ActorId, firings: u128) -> VerifyError {
    VerifyError::TooManyFirings {
        actor,
        firings,
        limit: u128::from(MAX_FIRINGS),
    }
}

/// Smallest positive q with `q[writer] * produced == q[reader] * consumed` for every reader of every channel; each
/// connected component of the graph is scaled by itself. One entry per actor, in firings. O(V + E).
///
/// # Errors
/// [`VerifyError::Inconsistent`] names the first channel that breaks the equation;
/// [`VerifyError::TooManyFirings`] where the vector exceeds [`MAX_FIRINGS`]; [`VerifyError::UnknownActor`],
/// [`VerifyError::UnknownPort`] and [`VerifyError::ZeroRate`] on a graph that was not checked before.
///
/// Source: Lee & Messerschmitt 1987, IEEE Trans. Comput. C-36(1).
pub fn repetition(graph: &Graph) -> Result<TiVec<ActorId, u64>, VerifyError> {
    let edges = edges(graph)?;
    let mut edges_of: TiVec<ActorId, Vec<u32>> = vec![Vec::new(); graph.actors.len()].into();
    for (index, edge) in edges.iter().enumerate() {
        edges_of[edge.from].push(index as u32);
        edges_of[edge.to].push(index as u32);
    }

    let mut ratios: TiVec<ActorId, Option<Ratio>> = vec![None; graph.actors.len()].into();
    let mut repetitions: TiVec<ActorId, u64> = vec![0; graph.actors.len()].into();
    let mut all_firings: u128 = 0;
    for root in graph.actors.keys() {
        if ratios[root].is_some() {
            continue;
        }

        // Each component is scaled by itself: nothing relates its firings to those of the others.
        let component = spread_ratios(root, &edges, &edges_of, &mut ratios)?;
        let scale = common_denominator(&component)?;
        for (actor, ratio) in component {
            // Both at most 2^40: `scale` is a multiple of the denominator.
            let firings = ratio.num * (scale / ratio.den);
            all_firings += firings;
            if all_firings > u128::from(MAX_FIRINGS) {
                return Err(too_many_firings(actor, all_firings));
            }
            repetitions[actor] = firings as u64;
        }
    }

    Ok(repetitions)
}

/// Ratios of every actor connected with `root`, whose own is 1.
fn spread_ratios(
    root: ActorId,
    edges: &[Edge],
    edges_of: &TiVec<ActorId, Vec<u32>>,
    ratios: &mut TiVec<ActorId, Option<Ratio>>,
) -> Result<Vec<(ActorId, Ratio)>, VerifyError> {
    let one = Ratio { num: 1, den: 1 };
    ratios[root] = Some(one);
    let mut component = vec![(root, one)];
    let mut next = 0;
    while let Some(&(actor, ratio)) = component.get(next) {
        next += 1;
        for &index in &edges_of[actor] {
            let edge = &edges[index as usize];
            if let (Some(from), Some(to)) = (ratios[edge.from], ratios[edge.to]) {
                check_balance(edge, from, to)?;
                continue;
            }

            // The other end fires as often as this one, times what is produced for what is consumed.
            let (other, num, den) = if edge.from == actor {
                (edge.to, edge.produced, edge.consumed)
            } else {
                (edge.from, edge.consumed, edge.produced)
            };
            let other_ratio = ratio.scaled(other, num, den)?;
            ratios[other] = Some(other_ratio);
            component.push((other, other_ratio));
        }
    }

    Ok(component)
}

fn check_balance(edge: &Edge, from: Ratio, to: Ratio) -> Result<(), VerifyError> {
    // A rate that fits a repetition vector within the limits can be as large as 2^64 here: compare in lowest terms.
    let rates = Ratio {
        num: u128::from(edge.produced),
        den: u128::from(edge.consumed),
    };
    let firings = Ratio {
        num: to.num * from.den,
        den: to.den * from.num,
    };
    let firings = firings.reduced();
    if rates.reduced() == firings {
        return Ok(());
    }

    let produced = rates.num.saturating_mul(firings.den);
    let consumed = rates.den.saturating_mul(firings.num);
    Err(VerifyError::Inconsistent {
        channel: edge.channel,
        from: edge.from,
        to: edge.to,
        produced,
        consumed,
    })
}

fn common_denominator(component: &[(ActorId, Ratio)]) -> Result<u128, VerifyError> {
    let mut scale: u128 = 1;
    for &(actor, ratio) in component {
        // Both below 2^41.
        scale *= ratio.den / greatest_divisor(scale, ratio.den);
        if scale > u128::from(MAX_FIRINGS) {
            return Err(too_many_firings(actor, scale));
        }
    }
    Ok(scale)
}
