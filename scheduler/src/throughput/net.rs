//! The graph as links between actors, unfolded K-periodically until its critical cycle is exact.
//!
//! Actor t has K\[t\] nodes, which stand for its firings modulo K\[t\]. A schedule of that shape repeats every K\[t\]
//! firings of t; the shortest such period is the maximum cycle ratio of this small graph, and it is exact as soon
//! as K of every actor on the critical cycle is a multiple of its firings in one iteration of that cycle alone.
//! Otherwise K grows by just these factors: never beyond q, mostly far below.
//!
//! Source: Bodin, Munier-Kordon & de Dinechin 2016, "Optimal and Fast Throughput Evaluation of CSDF", DAC. Unlike
//! there, firings of an actor are kept in order, so that of all dependencies of a firing on the phases of another
//! actor only the latest of each step count.

use petgraph::algo::kosaraju_scc;
use petgraph::graph::DiGraph;
use zbmd_ir::ChannelId;

use super::howard::{Dep, DepGraph, Policy, critical};
use super::period::gcd;
use super::{Period, ThroughputError, TimedSdf, Wait};

/// Dependencies after which an unfolding is refused: some hundred megabytes.
const MAX_DEPS: u64 = 1 << 23;

/// Phases of all actors together beyond which an analysis takes more than a moment.
const LARGE: i64 = 1 << 14;

/// Where the initial tokens of a link come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Supply {
    /// They are what the graph says.
    Fixed(i64),
    /// The free places of a channel's buffer: capacity less `taken`.
    Space {
        /// Index of the channel.
        channel: usize,
        /// Places taken at the start.
        taken: i64,
    },
}

/// A dependency between actors: firings of `to` need `consume` tokens that ends of firings of `from` give.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) produce: i64,
    pub(crate) consume: i64,
    pub(crate) supply: Supply,
    pub(crate) wait: Wait,
}

/// Actors that depend on one another, and the links among them.
#[derive(Debug)]
struct Component {
    actors: Vec<usize>,
    /// Links into each of `actors`.
    into: Vec<Vec<usize>>,
    /// Divides the firings of all actors.
    divisor: i64,
    /// A token of link l counts `unit / (produce * q[from] / divisor)`: all in whole numbers.
    unit: i64,
}

/// One dependency of a critical cycle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Firing of `from`, modulo its phases.
    pub(crate) phase: i64,
    /// `None`: firings of one actor start in order.
    pub(crate) link: Option<usize>,
    /// With n initial tokens on the link, the dependency has `step * ceil((n - base) / step) * scale` tokens.
    pub(crate) base: i64,
    /// Only every so many tokens more make a difference.
    pub(crate) step: i64,
    /// Scaled tokens per token of the link.
    pub(crate) scale: i64,
    /// Scaled tokens now.
    pub(crate) tokens: i64,
}

/// The critical cycle of one component.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) hops: Vec<Hop>,
    /// Execution times along the cycle, scaled so that `time / tokens` is the period.
    pub(crate) time: i128,
    /// Scaled time per unit of execution time.
    pub(crate) time_scale: i128,
    /// Scaled tokens; not positive for a deadlock.
    pub(crate) tokens: i128,
}

impl Verdict {
    /// The period that the cycle asks for; `None` for a deadlock.
    pub(crate) fn period(&self) -> Option<Period> {
        let tokens = u128::try_from(self.tokens).ok().filter(|&t| t > 0)?;
        Period::new(self.time.max(0).unsigned_abs(), tokens)
    }
}

/// Links of a graph, with buffers of given sizes or without bounds.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) q: Vec<u64>,
    pub(crate) times: Vec<u64>,
    pub(crate) links: Vec<Link>,
    components: Vec<Component>,
    /// Phases of each actor. Kept from call to call: what one critical cycle needed, the next is likely to need.
    phases: Vec<i64>,
    /// First node of each actor in the unfolding of its component.
    node: Vec<u32>,
    unfolding: DepGraph,
    /// Where the search for the critical cycle of each component ended last.
    policies: Vec<Policy>,
    /// Dependencies looked at so far: what the analyses cost.
    pub(crate) work: u64,
}

/// What is asked of an analysis.
#[derive(Clone, Copy)]
struct Question<'a> {
    room: &'a [i64],
    /// Periods that are short enough: then their cycle need not be the critical one. A period is known to be
    /// reached as soon as any unfolding has it, since that has a schedule of that shape.
    enough: &'a dyn Fn(Option<Period>) -> bool,
    /// Unfoldings of more dependencies are left aside.
    most: u64,
    count_firings: bool,
}

impl Net {
    /// Links of the graph; with `bounded`, each buffered channel has one back that carries its free places.
    pub(crate) fn new(sdf: &TimedSdf, bounded: bool) -> Result<Self, ThroughputError> {
        let q = sdf.repetition()?.raw;
        let mut net = Net {
            times: sdf.actors.iter().map(|a| a.time).collect(),
            links: links(sdf, bounded)?,
            components: Vec::new(),
            phases: vec![1; q.len()],
            node: vec![0; q.len()],
            unfolding: DepGraph::default(),
            policies: Vec::new(),
            work: 0,
            q,
        };
        net.components = net.components()?;
        net.policies = vec![Policy::new(); net.components.len()];
        Ok(net)
    }

    fn components(&self) -> Result<Vec<Component>, ThroughputError> {
        let mut graph = DiGraph::<(), ()>::with_capacity(self.q.len(), self.links.len());
        let nodes: Vec<_> = self.q.iter().map(|_| graph.add_node(())).collect();
        for link in &self.links {
            graph.add_edge(nodes[link.from], nodes[link.to], ());
        }
        let mut home = vec![0usize; self.q.len()];
        let mut slot = vec![0usize; self.q.len()];
        let mut components: Vec<Component> = Vec::new();
        for members in kosaraju_scc(&graph) {
            let mut actors: Vec<usize> = members.iter().map(|n| n.index()).collect();
            actors.sort_unstable();
            for (i, &a) in actors.iter().enumerate() {
                (home[a], slot[a]) = (components.len(), i);
            }
            let divisor = actors.iter().fold(0, |g, &a| gcd(g, self.q[a].into()));
            let into = vec![Vec::new(); actors.len()];
            components.push(Component {
                actors,
                into,
                divisor: divisor as i64,
                unit: 1,
            });
        }
        for (i, link) in self.links.iter().enumerate() {
            if home[link.from] != home[link.to] {
                continue;
            }
            let c = &mut components[home[link.to]];
            c.into[slot[link.to]].push(i);
            let whole =
                i128::from(link.produce) * i128::from(self.q[link.from]) / i128::from(c.divisor);
            let unit = i128::from(c.unit) / gcd(c.unit as u128, whole as u128) as i128;
            c.unit = unit
                .checked_mul(whole)
                .and_then(|u| i64::try_from(u).ok())
                .ok_or(ThroughputError::Overflow {
                    actor: link.to.into(),
                })?;
        }
        components.retain(|c| c.into.iter().any(|l| !l.is_empty()));
        components.sort_unstable_by_key(|c| c.actors[0]);
        Ok(components)
    }

    /// Firings of the actor after which the last unfolding repeated itself.
    pub(crate) fn phases(&self, actor: usize) -> i64 {
        self.phases[actor]
    }

    /// Initial tokens of a link when the buffers have `room` places.
    pub(crate) fn initial(&self, link: usize, room: &[i64]) -> i64 {
        match self.links[link].supply {
            Supply::Fixed(tokens) => tokens,
            Supply::Space { channel, taken } => room[channel] - taken,
        }
    }

    /// The exact critical cycle of each component that has cycles, in order of its first actor.
    ///
    /// A deadlocked component answers with a cycle without tokens.
    pub(crate) fn verdicts(&mut self, room: &[i64]) -> Result<Vec<Verdict>, ThroughputError> {
        let question = Question {
            room,
            enough: &|_| false,
            most: u64::MAX,
            count_firings: false,
        };
        Ok(self.answers(question)?.unwrap_or_default())
    }

    /// As [`Net::verdicts`], but what is short `enough` is known by a period that it may still fall below and by a
    /// cycle that need not exist. `None` if that takes an unfolding of more than `most` dependencies.
    pub(crate) fn verdicts_until(
        &mut self,
        room: &[i64],
        enough: &dyn Fn(Option<Period>) -> bool,
        most: u64,
    ) -> Result<Option<Vec<Verdict>>, ThroughputError> {
        if self.is_large() {
            // Most of what is short enough is known to be so by far fewer phases.
            self.phases.fill(1);
        }
        self.answers(Question {
            room,
            enough,
            most,
            count_firings: false,
        })
    }

    /// Whether critical cycles had to be unfolded so far that one analysis takes more than a moment.
    pub(crate) fn is_large(&self) -> bool {
        self.phases.iter().sum::<i64>() > LARGE
    }

    fn answers(&mut self, question: Question<'_>) -> Result<Option<Vec<Verdict>>, ThroughputError> {
        let components = std::mem::take(&mut self.components);
        let mut policies = std::mem::take(&mut self.policies);
        let each = components.iter().zip(&mut policies);
        let verdicts = each
            .map(|(c, policy)| self.verdict(c, policy, question))
            .collect();
        (self.components, self.policies) = (components, policies);
        verdicts
    }

    fn verdict(
        &mut self,
        c: &Component,
        policy: &mut Policy,
        question: Question<'_>,
    ) -> Result<Option<Verdict>, ThroughputError> {
        // A cycle of firings without duration weighs nothing: count firings instead of time to see it stuck.
        if c.actors.iter().any(|&a| self.times[a] == 0) {
            let live = Question {
                enough: &|p| p.is_some(),
                count_firings: true,
                ..question
            };
            match self.exact(c, policy, live)? {
                Some(counted) if counted.tokens > 0 => {}
                other => return Ok(other),
            }
        }
        self.exact(c, policy, question)
    }

    fn exact(
        &mut self,
        c: &Component,
        policy: &mut Policy,
        question: Question<'_>,
    ) -> Result<Option<Verdict>, ThroughputError> {
        let overflow = ThroughputError::Overflow {
            actor: c.actors[0].into(),
        };
        let weight = i128::from(c.unit) * i128::from(c.divisor);
        loop {
            self.unfold(c, question.room, question.count_firings)?;
            if self.unfolding.len() as u64 > question.most {
                return Ok(None);
            }
            self.work += self.unfolding.len() as u64;
            let cycle = critical(&self.unfolding, policy).map_err(|_| overflow.clone())?;
            let hops: Vec<Hop> = cycle
                .deps
                .iter()
                .map(|(to, dep)| self.hop(c, *to, dep))
                .collect();
            let real = hops
                .iter()
                .filter(|h| h.link.is_some())
                .map(|h| self.times[h.from]);
            let time = real.map(i128::from).sum::<i128>().checked_mul(weight);
            let time = time.ok_or_else(|| overflow.clone())?;
            let verdict = Verdict {
                hops,
                time,
                time_scale: weight,
                tokens: cycle.tokens,
            };
            if (question.enough)(verdict.period()) || !self.refine(&verdict.hops) {
                return Ok(Some(verdict));
            }
        }
    }

    /// Gives the actors of a cycle the phases that make it exact; whether any lacked some.
    fn refine(&mut self, hops: &[Hop]) -> bool {
        let common = hops.iter().fold(0, |g, h| gcd(g, self.q[h.from].into()));
        let mut lacking = false;
        for hop in hops {
            let needed = u128::from(self.q[hop.from]) / common;
            let now = self.phases[hop.from] as u128;
            if !now.is_multiple_of(needed) {
                self.phases[hop.from] = (now / gcd(now, needed) * needed) as i64;
                lacking = true;
            }
        }
        lacking
    }

    /// Fills `unfolding` with K nodes for each actor of the component.
    fn unfold(
        &mut self,
        c: &Component,
        room: &[i64],
        count_firings: bool,
    ) -> Result<(), ThroughputError> {
        let mut nodes = 0u64;
        for &a in &c.actors {
            self.node[a] = nodes as u32;
            nodes += self.phases[a] as u64;
            if nodes > MAX_DEPS {
                return Err(too_large(a, nodes));
            }
        }
        self.unfolding.clear();
        for (&actor, links) in c.actors.iter().zip(&c.into) {
            let k = self.phases[actor];
            for phase in 0..k {
                let to = self.node[actor] + phase as u32;
                if k > 1 {
                    let (from, tokens) = match phase {
                        0 => (
                            to + k as u32 - 1,
                            c.unit / (self.q[actor] as i64 / c.divisor) * k,
                        ),
                        _ => (to - 1, 0),
                    };
                    self.unfolding.push(Dep {
                        from,
                        link: Dep::ORDER,
                        tokens,
                        time: 0,
                    });
                }
                for &link in links {
                    self.unfold_link(c, link, phase, self.initial(link, room), count_firings)?;
                }
                self.unfolding.close();
            }
            if self.unfolding.len() as u64 > MAX_DEPS {
                return Err(too_large(actor, self.unfolding.len() as u64));
            }
        }
        Ok(())
    }

    /// Dependencies of phase `b` of a link's reader on phases of its writer.
    ///
    /// Firing m of the reader needs the tokens before c(m+1), firing n of the writer makes those from d + pn on. So
    /// m waits for n when pn − cm ≤ c − d − 1. For n = a + iK and m = b + jL that is x ≤ c − d − 1 + cb − pa, where
    /// x = piK − cjL takes every multiple of s = gcd(pK, cL): the greatest allowed gives the dependency of b on a.
    /// It matters only where the next phase of the writer gives less: once in s tokens.
    fn unfold_link(
        &mut self,
        c: &Component,
        index: usize,
        b: i64,
        initial: i64,
        count_firings: bool,
    ) -> Result<(), ThroughputError> {
        let link = &self.links[index];
        let (p, consume) = (link.produce, link.consume);
        let overflow = || ThroughputError::Overflow {
            actor: link.to.into(),
        };
        let (writer, reader) = (self.phases[link.from], self.phases[link.to]);
        let step = gcd((p * writer) as u128, (consume * reader) as u128) as i64;
        let last = consume - initial - 1 + consume * b;
        let scale = self.scale(c, index);
        let time = if count_firings {
            1
        } else {
            self.times[link.from]
        };
        let count = if step >= p { p * writer / step } else { writer };
        for i in 0..count {
            let a = if step >= p {
                (last - i * step).div_euclid(p).rem_euclid(writer)
            } else {
                i
            };
            let tokens = -(last - p * a).div_euclid(step) * step;
            let tokens = tokens.checked_mul(scale).ok_or_else(overflow)?;
            let from = self.node[link.from] + a as u32;
            self.unfolding.push(Dep {
                from,
                link: index as u32,
                tokens,
                time,
            });
        }
        Ok(())
    }

    fn scale(&self, c: &Component, link: usize) -> i64 {
        let link = &self.links[link];
        c.unit / (link.produce * (self.q[link.from] as i64 / c.divisor))
    }

    fn hop(&self, c: &Component, to_node: u32, dep: &Dep) -> Hop {
        let actor_of = |node: u32| {
            let at = c.actors.partition_point(|&a| self.node[a] <= node);
            c.actors[at - 1]
        };
        let (from, to) = (actor_of(dep.from), actor_of(to_node));
        if dep.link == Dep::ORDER {
            let phase = i64::from(dep.from - self.node[from]);
            let tokens = dep.tokens;
            return Hop {
                from,
                to,
                phase,
                link: None,
                base: 0,
                step: 1,
                scale: 0,
                tokens,
            };
        }
        let index = dep.link as usize;
        let link = &self.links[index];
        let (a, b) = (
            i64::from(dep.from - self.node[from]),
            i64::from(to_node - self.node[to]),
        );
        let step = gcd(
            (link.produce * self.phases[from]) as u128,
            (link.consume * self.phases[to]) as u128,
        ) as i64;
        let base = link.consume - 1 + link.consume * b - link.produce * a;
        let scale = self.scale(c, index);
        Hop {
            from,
            to,
            phase: a,
            link: Some(index),
            base,
            step,
            scale,
            tokens: dep.tokens,
        }
    }
}

fn too_large(actor: usize, needed: u64) -> ThroughputError {
    ThroughputError::TooLarge {
        actor: actor.into(),
        needed,
        limit: MAX_DEPS,
    }
}

fn links(sdf: &TimedSdf, bounded: bool) -> Result<Vec<Link>, ThroughputError> {
    let mut links = Vec::new();
    for (id, actor) in sdf.actors.iter_enumerated() {
        let Some(at_once) = actor.at_once else {
            continue;
        };
        if at_once == 0 {
            return Err(ThroughputError::NeverAtOnce { actor: id });
        }
        let supply = Supply::Fixed(tokens(at_once, id)?);
        let (from, to) = (id.index(), id.index());
        links.push(Link {
            from,
            to,
            produce: 1,
            consume: 1,
            supply,
            wait: Wait::Turn,
        });
    }
    for (id, ch) in sdf.channels.iter_enumerated() {
        for r in &ch.readers {
            let (produce, consume) = (ch.produce as i64, r.consume as i64);
            let supply = Supply::Fixed(tokens(r.free, r.to)?);
            let (from, to) = (ch.from.index(), r.to.index());
            links.push(Link {
                from,
                to,
                produce,
                consume,
                supply,
                wait: Wait::Tokens(id),
            });
            if bounded && from != to {
                let taken = tokens(r.free.saturating_add(r.overlap), r.to)?;
                links.push(space(id, (from, produce), (to, consume), taken));
            }
        }
    }
    Ok(links)
}

/// The way back of a channel: ends of the reader free places that starts of the writer claim.
fn space(
    id: ChannelId,
    (writer, produce): (usize, i64),
    (reader, consume): (usize, i64),
    taken: i64,
) -> Link {
    Link {
        from: reader,
        to: writer,
        produce: consume,
        consume: produce,
        supply: Supply::Space {
            channel: id.index(),
            taken,
        },
        wait: Wait::Space(id),
    }
}

fn tokens(count: u64, actor: zbmd_ir::ActorId) -> Result<i64, ThroughputError> {
    i64::try_from(count)
        .ok()
        .filter(|&t| t < 1 << 60)
        .ok_or(ThroughputError::Overflow { actor })
}
