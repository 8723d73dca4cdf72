//! The repetition vector, computed from the balance equations alone. Must not know plans.

use super::error::VerifyError;
use crate::limits::MAX_FIRINGS;
use crate::{ActorId, ChannelId, Graph, TiVec};

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
    use super::error::Port;
    let mut edges = Vec::new();
    for (channel, ch) in graph.channels.iter_enumerated() {
        let actor = |actor: ActorId| {
            let actors = graph.actors.len();
            graph.actors.get(actor).ok_or(VerifyError::UnknownActor {
                channel,
                actor,
                actors,
            })
        };
        let from = ch.from.actor;
        let port = Port::Out(ch.from.port);
        let outputs = &actor(from)?.outputs;
        let ports = outputs.len();
        let out = outputs.get(ch.from.port as usize);
        let out = out.ok_or(VerifyError::UnknownPort {
            channel,
            actor: from,
            port,
            ports,
        })?;
        if out.rate == 0 {
            return Err(VerifyError::ZeroRate { actor: from, port });
        }
        for reader in &ch.readers {
            let to = reader.to.actor;
            let port = Port::In(reader.to.port);
            let inputs = &actor(to)?.inputs;
            let ports = inputs.len();
            let input = inputs.get(reader.to.port as usize);
            let input = input.ok_or(VerifyError::UnknownPort {
                channel,
                actor: to,
                port,
                ports,
            })?;
            if input.rate == 0 {
                return Err(VerifyError::ZeroRate { actor: to, port });
            }
            let (produced, consumed, window) = (out.rate, input.rate, input.window);
            edges.push(Edge {
                channel,
                from,
                to,
                produced,
                consumed,
                window,
                delay: reader.delay,
            });
        }
    }
    Ok(edges)
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A positive fraction in lowest terms: firings of an actor for one firing of its component's first actor.
#[derive(Clone, Copy)]
struct Ratio {
    num: u128,
    den: u128,
}

impl Ratio {
    /// `self * num / den`, refused where no repetition vector within the limits can have that ratio.
    fn scaled(self, actor: ActorId, num: u64, den: u64) -> Result<Ratio, VerifyError> {
        // Both factors are below 2^40 and both rates below 2^64, so that the products stay below 2^104.
        let (num, den) = (self.num * u128::from(num), self.den * u128::from(den));
        let common = gcd(num, den);
        let ratio = Ratio {
            num: num / common,
            den: den / common,
        };
        let firings = ratio.num.max(ratio.den);
        if firings > u128::from(MAX_FIRINGS) {
            return Err(too_many(actor, firings));
        }
        Ok(ratio)
    }
}

fn too_many(actor: ActorId, firings: u128) -> VerifyError {
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
    let mut touching: TiVec<ActorId, Vec<u32>> = vec![Vec::new(); graph.actors.len()].into();
    for (i, edge) in edges.iter().enumerate() {
        touching[edge.from].push(i as u32);
        touching[edge.to].push(i as u32);
    }
    let mut ratios: TiVec<ActorId, Option<Ratio>> = vec![None; graph.actors.len()].into();
    let mut q: TiVec<ActorId, u64> = vec![0; graph.actors.len()].into();
    let mut total: u128 = 0;
    for root in graph.actors.keys() {
        if ratios[root].is_some() {
            continue;
        }
        let component = spread(root, &edges, &touching, &mut ratios)?;
        let scale = common_denominator(&component)?;
        for (actor, ratio) in component {
            // Both at most 2^40: `scale` is a multiple of the denominator.
            let firings = ratio.num * (scale / ratio.den);
            total += firings;
            if total > u128::from(MAX_FIRINGS) {
                return Err(too_many(actor, total));
            }
            q[actor] = firings as u64;
        }
    }
    Ok(q)
}

/// Ratios of every actor connected with `root`, whose own is 1.
fn spread(
    root: ActorId,
    edges: &[Edge],
    touching: &TiVec<ActorId, Vec<u32>>,
    ratios: &mut TiVec<ActorId, Option<Ratio>>,
) -> Result<Vec<(ActorId, Ratio)>, VerifyError> {
    let one = Ratio { num: 1, den: 1 };
    ratios[root] = Some(one);
    let mut component = vec![(root, one)];
    let mut next = 0;
    while let Some(&(actor, ratio)) = component.get(next) {
        next += 1;
        for &i in &touching[actor] {
            let e = &edges[i as usize];
            let (other, num, den) = if e.from == actor {
                (e.to, e.produced, e.consumed)
            } else {
                (e.from, e.consumed, e.produced)
            };
            match (ratios[e.from], ratios[e.to]) {
                (Some(from), Some(to)) => balanced(e, from, to)?,
                _ => {
                    let ratio = ratio.scaled(other, num, den)?;
                    ratios[other] = Some(ratio);
                    component.push((other, ratio));
                }
            }
        }
    }
    Ok(component)
}

fn balanced(edge: &Edge, from: Ratio, to: Ratio) -> Result<(), VerifyError> {
    // A rate that fits a repetition vector within the limits can be as large as 2^64 here: compare in lowest terms.
    let (p, c) = (u128::from(edge.produced), u128::from(edge.consumed));
    let common = gcd(p, c);
    let left = Ratio {
        num: p / common,
        den: c / common,
    };
    let (num, den) = (to.num * from.den, to.den * from.num);
    let common = gcd(num, den);
    if (left.num, left.den) == (num / common, den / common) {
        return Ok(());
    }
    let produced = p.saturating_mul(den / common);
    let consumed = c.saturating_mul(num / common);
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
        scale *= ratio.den / gcd(scale, ratio.den);
        if scale > u128::from(MAX_FIRINGS) {
            return Err(too_many(actor, scale));
        }
    }
    Ok(scale)
}
