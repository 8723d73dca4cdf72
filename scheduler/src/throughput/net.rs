//! The graph as links between actors, unfolded K-periodically until its critical cycle is exact.
//!
//! Actor t has K\[t\] nodes, which stand for its firings modulo K\[t\]. A schedule of that shape repeats every K\[t\]
//! firings of t; the shortest such period is the maximum cycle ratio of this small graph, and it is exact as soon
//! as K of every actor on the critical cycle is a multiple of its firings in one iteration of that cycle alone.
//! Otherwise K grows by just these factors: never beyond the repetition vector, mostly far below.
//!
//! Source: Bodin, Munier-Kordon & de Dinechin 2016, "Optimal and Fast Throughput Evaluation of CSDF", DAC. Unlike
//! there, firings of an actor are kept in order, so that of all dependencies of a firing on the phases of another
//! actor only the latest of each step count.

use petgraph::algo::kosaraju_scc;
use petgraph::graph::DiGraph;
use zbmd_ir::math::gcd;
use zbmd_ir::{ActorId, ChannelId, limits};

use super::howard::{Dependency, DependencyGraph, Policy, critical_cycle};
use super::phases::TokenSums;
use super::{Period, ThroughputError, TimedSdf, Wait};

/// Dependencies after which an unfolding is refused: some hundred megabytes.
const MAX_DEPS: u64 = 1 << 23;

/// Phases of all actors together beyond which an analysis takes more than a moment.
const LARGE_PHASES: i64 = 1 << 14;

/// Where the initial tokens of a link come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TokenSupply {
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
pub(crate) struct DependencyLink {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) produce: TokenSums,
    pub(crate) consume: TokenSums,
    pub(crate) supply: TokenSupply,
    pub(crate) wait: Wait,
}

impl DependencyLink {
    /// Whether each firing of an actor gives back what it takes.
    pub(crate) fn is_given_back(&self) -> bool {
        self.from == self.to && self.produce == self.consume
    }
}

/// Actors that depend on one another, and the links among them.
#[derive(Debug)]
struct CyclicComponent {
    actors: Vec<usize>,
    /// Links into each of `actors`.
    into: Vec<Vec<usize>>,
    /// Divides the cycles of all actors.
    divisor: i64,
    /// A token of link l counts `unit / (produce * repetition[from] / divisor)`: all in whole numbers.
    unit: i64,
}

/// One dependency of a critical cycle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CycleHop {
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
pub(crate) struct CriticalCycle {
    pub(crate) hops: Vec<CycleHop>,
    /// Execution times along the cycle, scaled so that `time / tokens` is the period.
    pub(crate) time: i128,
    /// Scaled time per unit of execution time.
    pub(crate) time_scale: i128,
    /// Scaled tokens; not positive for a deadlock.
    pub(crate) tokens: i128,
}

impl CriticalCycle {
    /// The period that the cycle asks for; `None` for a deadlock.
    pub(crate) fn period(&self) -> Option<Period> {
        let tokens = u128::try_from(self.tokens)
            .ok()
            .filter(|&tokens| tokens > 0)?;
        Period::new(self.time.max(0).unsigned_abs(), tokens)
    }
}

/// Links of a graph, with buffers of given sizes or without bounds.
#[derive(Debug)]
pub(crate) struct DependencyNet {
    /// Cycles of each actor in an iteration, and its firings: as many phases as a cycle has for each.
    pub(crate) cycles: Vec<u64>,
    pub(crate) repetition: Vec<u64>,
    /// The time of each phase of each actor.
    times: Vec<Vec<u64>>,
    /// Whether some actor has phases.
    pub(crate) has_phases: bool,
    pub(crate) links: Vec<DependencyLink>,
    components: Vec<CyclicComponent>,
    /// Phases of each actor. Kept from call to call: what one critical cycle needed, the next is likely to need.
    phases: Vec<i64>,
    /// First node of each actor in the unfolding of its component.
    first_node: Vec<u32>,
    unfolding: DependencyGraph,
    /// Where the search for the critical cycle of each component ended last.
    policies: Vec<Policy>,
    /// Dependencies looked at so far: what the analyses cost.
    pub(crate) work: u64,
}

/// What is asked of an analysis.
#[derive(Clone, Copy)]
struct CycleQuery<'a> {
    room: &'a [i64],
    /// Periods that are short enough: then their cycle need not be the critical one. A period is known to be
    /// reached as soon as any unfolding has it, since that has a schedule of that shape.
    enough: &'a dyn Fn(Option<Period>) -> bool,
    /// Unfoldings of more dependencies are left aside.
    max_dependencies: u64,
    /// Whether each firing counts as one unit of time.
    count_firings: bool,
}

impl DependencyNet {
    /// Links of the graph; with `bounded`, each buffered channel has one back that carries its free places.
    pub(crate) fn new(sdf: &TimedSdf, bounded: bool) -> Result<Self, ThroughputError> {
        let cycles = sdf.repetition()?.raw;
        let ids = sdf.actors.keys();
        let times: Vec<Vec<u64>> = ids.map(|id| sdf.phases.times_of(sdf, id)).collect();
        let mut repetition = Vec::with_capacity(cycles.len());
        for (actor, (&count, times)) in cycles.iter().zip(&times).enumerate() {
            let firings = count.checked_mul(times.len() as u64);
            let firings = firings.filter(|&firings| firings <= limits::MAX_FIRINGS);
            repetition.push(firings.ok_or(ThroughputError::Overflow {
                actor: actor.into(),
            })?);
        }
        let mut net = DependencyNet {
            links: make_links(sdf, bounded)?,
            components: Vec::new(),
            phases: Vec::new(),
            first_node: vec![0; repetition.len()],
            unfolding: DependencyGraph::default(),
            policies: Vec::new(),
            work: 0,
            has_phases: !sdf.phases.is_empty(),
            cycles,
            repetition,
            times,
        };
        net.begin_phases();
        net.components = net.find_components()?;
        net.policies = vec![Policy::new(); net.components.len()];
        Ok(net)
    }

    /// The coarsest unfolding: a node for each phase of each actor.
    fn begin_phases(&mut self) {
        let times = self.times.iter();
        self.phases = times.map(|times| times.len() as i64).collect();
    }

    /// The strongly connected components that have cycles, by their first actor.
    fn find_components(&self) -> Result<Vec<CyclicComponent>, ThroughputError> {
        let actor_count = self.repetition.len();
        let mut actor_graph = DiGraph::<(), ()>::with_capacity(actor_count, self.links.len());
        let nodes: Vec<_> = (0..actor_count).map(|_| actor_graph.add_node(())).collect();
        for link in &self.links {
            actor_graph.add_edge(nodes[link.from], nodes[link.to], ());
        }

        // Links between components bound no period: only cycles do, and each is within one component.
        let mut component_of = vec![0usize; actor_count];
        let mut position_of = vec![0usize; actor_count];
        let mut components: Vec<CyclicComponent> = Vec::new();
        for nodes in kosaraju_scc(&actor_graph) {
            let mut member_actors: Vec<usize> = nodes.iter().map(|node| node.index()).collect();
            member_actors.sort_unstable();
            for (position, &actor) in member_actors.iter().enumerate() {
                // Positions within the component index its lists of links.
                component_of[actor] = components.len();
                position_of[actor] = position;
            }
            let cycles = member_actors.iter().map(|&actor| self.cycles[actor].into());
            components.push(CyclicComponent {
                divisor: cycles.fold(0, gcd) as i64,
                into: vec![Vec::new(); member_actors.len()],
                actors: member_actors,
                unit: 1,
            });
        }

        for (index, link) in self.links.iter().enumerate() {
            if component_of[link.from] != component_of[link.to] {
                continue;
            }
            let component = &mut components[component_of[link.to]];
            component.into[position_of[link.to]].push(index);

            // The least common multiple of the tokens of all links in one part of an iteration, and of the firings that
            // give them.
            let part_firings = self.repetition[link.from] as i64 / component.divisor;
            for count in [self.part_tokens(component.divisor, link), part_firings] {
                let common_divisor = gcd(component.unit as u128, count as u128) as i64;
                let multiple = i128::from(component.unit / common_divisor) * i128::from(count);
                let unit = i64::try_from(multiple).ok();
                component.unit = unit.ok_or(ThroughputError::Overflow {
                    actor: link.to.into(),
                })?;
            }
        }
        components.retain(|component| component.into.iter().any(|links| !links.is_empty()));
        components.sort_unstable_by_key(|component| component.actors[0]);
        Ok(components)
    }

    /// Firings of the actor after which the last unfolding repeated itself.
    pub(crate) fn phases(&self, actor: usize) -> i64 {
        self.phases[actor]
    }

    /// Initial tokens of a link when the buffers have `room` places.
    pub(crate) fn initial(&self, link: usize, room: &[i64]) -> i64 {
        match self.links[link].supply {
            TokenSupply::Fixed(tokens) => tokens,
            TokenSupply::Space { channel, taken } => room[channel] - taken,
        }
    }

    /// The exact critical cycle of each component that has cycles, in order of its first actor.
    ///
    /// A deadlocked component answers with a cycle without tokens.
    pub(crate) fn critical_cycles(
        &mut self,
        room: &[i64],
    ) -> Result<Vec<CriticalCycle>, ThroughputError> {
        let query = CycleQuery {
            room,
            enough: &|_| false,
            max_dependencies: u64::MAX,
            count_firings: false,
        };
        Ok(self.find_cycles(query)?.unwrap_or_default())
    }

    /// As [`DependencyNet::critical_cycles`], but what is short `enough` is known by a period that it may still fall
    /// below and by a cycle that need not exist. `None` if that takes an unfolding of more than `max_dependencies`.
    pub(crate) fn critical_cycles_until(
        &mut self,
        room: &[i64],
        enough: &dyn Fn(Option<Period>) -> bool,
        max_dependencies: u64,
    ) -> Result<Option<Vec<CriticalCycle>>, ThroughputError> {
        if self.is_large() {
            // Most of what is short enough is known to be so by far fewer phases.
            self.begin_phases();
        }
        self.find_cycles(CycleQuery {
            room,
            enough,
            max_dependencies,
            count_firings: false,
        })
    }

    /// Whether critical cycles had to be unfolded so far that one analysis takes more than a moment.
    pub(crate) fn is_large(&self) -> bool {
        self.phases.iter().sum::<i64>() > LARGE_PHASES
    }

    fn find_cycles(
        &mut self,
        query: CycleQuery<'_>,
    ) -> Result<Option<Vec<CriticalCycle>>, ThroughputError> {
        // Taken out while the components are analysed, which changes the rest of the net.
        let components = std::mem::take(&mut self.components);
        let mut policies = std::mem::take(&mut self.policies);
        let with_policies = components.iter().zip(&mut policies);
        let found_cycles = with_policies
            .map(|(component, policy)| self.find_cycle(component, policy, query))
            .collect();
        self.components = components;
        self.policies = policies;
        found_cycles
    }

    /// The critical cycle of one component; `None` if that takes too large an unfolding.
    fn find_cycle(
        &mut self,
        component: &CyclicComponent,
        policy: &mut Policy,
        query: CycleQuery<'_>,
    ) -> Result<Option<CriticalCycle>, ThroughputError> {
        // A cycle of firings without duration weighs nothing: count firings instead of time to see it stuck.
        let mut members = component.actors.iter();
        if members.any(|&actor| self.times[actor].contains(&0)) {
            let liveness = CycleQuery {
                enough: &|period| period.is_some(),
                count_firings: true,
                ..query
            };
            match self.unfold_until_exact(component, policy, liveness)? {
                Some(counted) if counted.tokens > 0 => {}
                other => return Ok(other),
            }
        }
        self.unfold_until_exact(component, policy, query)
    }

    /// Unfolds a component further and further, until its critical cycle is exact or short enough.
    fn unfold_until_exact(
        &mut self,
        component: &CyclicComponent,
        policy: &mut Policy,
        query: CycleQuery<'_>,
    ) -> Result<Option<CriticalCycle>, ThroughputError> {
        let overflow = ThroughputError::Overflow {
            actor: component.actors[0].into(),
        };
        let time_scale = i128::from(component.unit) * i128::from(component.divisor);

        loop {
            self.unfold(component, query.room, query.count_firings)?;
            let dependency_count = self.unfolding.len() as u64;
            if dependency_count > query.max_dependencies {
                return Ok(None);
            }
            self.work += dependency_count;

            let found_cycle =
                critical_cycle(&self.unfolding, policy).map_err(|_| overflow.clone())?;
            let found_steps = found_cycle.deps.iter();
            let hops: Vec<CycleHop> = found_steps
                .map(|(to, dependency)| self.make_hop(component, *to, dependency))
                .collect();
            // Waiting for the firing before of the same actor takes none of its time.
            let waiting_hops = hops.iter().filter(|hop| hop.link.is_some());
            let total_time: i128 = waiting_hops
                .map(|hop| i128::from(self.time_of(hop.from, hop.phase)))
                .sum();
            let scaled_time = total_time.checked_mul(time_scale);
            let exact_cycle = CriticalCycle {
                hops,
                time: scaled_time.ok_or_else(|| overflow.clone())?,
                time_scale,
                tokens: found_cycle.tokens,
            };
            // A period that any unfolding has is reached: only one that is too long must be exact.
            if (query.enough)(exact_cycle.period()) || !self.refine_phases(&exact_cycle.hops) {
                return Ok(Some(exact_cycle));
            }
        }
    }

    /// Gives the actors of a cycle the phases that make it exact; whether any lacked some.
    fn refine_phases(&mut self, hops: &[CycleHop]) -> bool {
        let hop_cycles = hops.iter().map(|hop| self.cycles[hop.from].into());
        let common_divisor = hop_cycles.fold(0, gcd);
        let mut any_lacked = false;

        for hop in hops {
            let needed_phases = u128::from(self.repetition[hop.from]) / common_divisor;
            let current_phases = self.phases[hop.from] as u128;
            // The least common multiple keeps what other cycles needed.
            if !current_phases.is_multiple_of(needed_phases) {
                self.phases[hop.from] =
                    (current_phases / gcd(current_phases, needed_phases) * needed_phases) as i64;
                any_lacked = true;
            }
        }
        any_lacked
    }

    /// Fills `unfolding` with K nodes for each actor of the component.
    fn unfold(
        &mut self,
        component: &CyclicComponent,
        room: &[i64],
        count_firings: bool,
    ) -> Result<(), ThroughputError> {
        let mut node_count = 0u64;
        for &actor in &component.actors {
            self.first_node[actor] = node_count as u32;
            node_count += self.phases[actor] as u64;
            if node_count > MAX_DEPS {
                return Err(too_large(actor, node_count));
            }
        }

        self.unfolding.clear();
        for (&actor, links) in component.actors.iter().zip(&component.into) {
            for phase in 0..self.phases[actor] {
                if self.phases[actor] > 1 {
                    let order_dependency = self.order_dependency(component, actor, phase);
                    self.unfolding.push(order_dependency);
                }
                for &link in links {
                    let initial_tokens = self.initial(link, room);
                    self.unfold_link(component, link, phase, initial_tokens, count_firings)?;
                }
                self.unfolding.close();
            }
            if self.unfolding.len() as u64 > MAX_DEPS {
                return Err(too_large(actor, self.unfolding.len() as u64));
            }
        }
        Ok(())
    }

    /// What keeps the firings of an actor in order: the first phase follows the last of the round before.
    fn order_dependency(
        &self,
        component: &CyclicComponent,
        actor: usize,
        phase: i64,
    ) -> Dependency {
        let actor_phases = self.phases[actor];
        let own_node = self.first_node[actor] + phase as u32;
        let part_firings = self.repetition[actor] as i64 / component.divisor;
        Dependency {
            from: if phase == 0 {
                own_node + actor_phases as u32 - 1
            } else {
                own_node - 1
            },
            link: Dependency::ORDER,
            tokens: if phase == 0 {
                component.unit / part_firings * actor_phases
            } else {
                0
            },
            time: 0,
        }
    }

    /// Dependencies of phase `reader_phase` of a link's reader on phases of its writer.
    ///
    /// With P(n) tokens of the writer's first n firings, C(m) of the reader's, d initial, K and L phases of writer and
    /// reader: firing m of the reader needs the tokens before C(m+1), firing n of the writer makes those from d + P(n) on.
    /// So m waits for n when P(n) − C(m+1) ≤ −d − 1. For n = a + iK and m = b + jL that is x ≤ C(b+1) − d − 1 − P(a), where
    /// x = iP(K) − jC(L) takes every multiple of s = gcd(P(K), C(L)): the greatest allowed gives the dependency of b on a.
    /// It matters only where the next phase of the writer gives less: once in s tokens.
    fn unfold_link(
        &mut self,
        component: &CyclicComponent,
        index: usize,
        reader_phase: i64,
        initial: i64,
        count_firings: bool,
    ) -> Result<(), ThroughputError> {
        let link = &self.links[index];
        let writer_phases = self.phases[link.from];
        let token_step = self.token_step(link);
        let last_needed = link.consume.of_first(reader_phase + 1) - initial - 1;
        let token_scale = self.token_scale(component, link);

        // With a step of a firing's tokens or more, only one phase in each step matters.
        let every_firing = link.produce.every_firing();
        let sparse_rate = every_firing.filter(|&rate| token_step >= rate);
        let phase_count = match sparse_rate {
            Some(rate) => rate * writer_phases / token_step,
            None => writer_phases,
        };
        for i in 0..phase_count {
            let writer_phase = match sparse_rate {
                Some(rate) => (last_needed - i * token_step)
                    .div_euclid(rate)
                    .rem_euclid(writer_phases),
                None => i,
            };
            // Nobody waits for a firing that gives nothing.
            if link.produce.of(writer_phase) == 0 {
                continue;
            }
            let firing_time = match count_firings {
                true => 1,
                false => self.time_of(link.from, writer_phase),
            };
            let link_tokens = -(last_needed - link.produce.of_first(writer_phase))
                .div_euclid(token_step)
                * token_step;
            let scaled_tokens = link_tokens.checked_mul(token_scale);
            self.unfolding.push(Dependency {
                from: self.first_node[link.from] + writer_phase as u32,
                link: index as u32,
                tokens: scaled_tokens.ok_or(ThroughputError::Overflow {
                    actor: link.to.into(),
                })?,
                time: firing_time,
            });
        }
        Ok(())
    }

    /// Tokens that dependencies along a link differ by, as its ends are unfolded.
    fn token_step(&self, link: &DependencyLink) -> i64 {
        let produced_tokens = link.produce.of_first(self.phases[link.from]);
        let consumed_tokens = link.consume.of_first(self.phases[link.to]);
        gcd(produced_tokens as u128, consumed_tokens as u128) as i64
    }

    /// Scaled tokens per token of a link.
    fn token_scale(&self, component: &CyclicComponent, link: &DependencyLink) -> i64 {
        component.unit / self.part_tokens(component.divisor, link)
    }

    /// Tokens that a link is given in one part of an iteration, of which there are `divisor`.
    fn part_tokens(&self, divisor: i64, link: &DependencyLink) -> i64 {
        link.produce
            .of_first(self.repetition[link.from] as i64 / divisor)
    }

    /// The time of a firing.
    pub(crate) fn time_of(&self, actor: usize, firing: i64) -> u64 {
        let times = &self.times[actor];
        times[firing.rem_euclid(times.len() as i64) as usize]
    }

    /// The actor that a node of the unfolding stands for.
    fn actor_of(&self, component: &CyclicComponent, node: u32) -> usize {
        let actors = &component.actors;
        let after = actors.partition_point(|&actor| self.first_node[actor] <= node);
        actors[after - 1]
    }

    fn make_hop(
        &self,
        component: &CyclicComponent,
        to_node: u32,
        dependency: &Dependency,
    ) -> CycleHop {
        let from = self.actor_of(component, dependency.from);
        let to = self.actor_of(component, to_node);
        let phase = i64::from(dependency.from - self.first_node[from]);
        let mut hop = CycleHop {
            from,
            to,
            phase,
            link: None,
            base: 0,
            step: 1,
            scale: 0,
            tokens: dependency.tokens,
        };

        if dependency.link != Dependency::ORDER {
            let index = dependency.link as usize;
            let link = &self.links[index];
            let reader_phase = i64::from(to_node - self.first_node[to]);
            hop.link = Some(index);
            hop.base = link.consume.of_first(reader_phase + 1) - 1 - link.produce.of_first(phase);
            hop.step = self.token_step(link);
            hop.scale = self.token_scale(component, link);
        }
        hop
    }
}

fn too_large(actor: usize, needed: u64) -> ThroughputError {
    ThroughputError::TooLarge {
        actor: actor.into(),
        needed,
        limit: MAX_DEPS,
    }
}

fn make_links(sdf: &TimedSdf, bounded: bool) -> Result<Vec<DependencyLink>, ThroughputError> {
    let mut links = Vec::new();
    for (id, actor) in sdf.actors.iter_enumerated() {
        let Some(at_once) = actor.at_once else {
            continue;
        };
        if at_once == 0 {
            return Err(ThroughputError::NeverAtOnce { actor: id });
        }
        links.push(DependencyLink {
            from: id.index(),
            to: id.index(),
            produce: TokenSums::constant(1),
            consume: TokenSums::constant(1),
            supply: TokenSupply::Fixed(checked_tokens(at_once, id)?),
            wait: Wait::Turn,
        });
    }

    for (id, channel) in sdf.channels.iter_enumerated() {
        for (index, reader) in channel.readers.iter().enumerate() {
            let token_link = DependencyLink {
                from: channel.from.index(),
                to: reader.to.index(),
                produce: sdf.phases.written_sums(sdf, id),
                consume: sdf.phases.read_sums(sdf, id, index),
                supply: TokenSupply::Fixed(checked_tokens(reader.free, reader.to)?),
                wait: Wait::Tokens(id),
            };
            let has_buffer = token_link.from != token_link.to;
            let taken_places = reader.free.saturating_add(reader.overlap);
            let back_link = space_link(id, &token_link, taken_places, reader.to);
            links.push(token_link);
            if bounded && has_buffer {
                links.push(back_link?);
            }
        }
    }
    Ok(links)
}

/// The way back of a channel's link: ends of the reader free places that starts of the writer claim.
fn space_link(
    id: ChannelId,
    link: &DependencyLink,
    taken: u64,
    reader: ActorId,
) -> Result<DependencyLink, ThroughputError> {
    Ok(DependencyLink {
        from: link.to,
        to: link.from,
        produce: link.consume.clone(),
        consume: link.produce.clone(),
        supply: TokenSupply::Space {
            channel: id.index(),
            taken: checked_tokens(taken, reader)?,
        },
        wait: Wait::Space(id),
    })
}

/// A count of tokens, if it leaves room for sums.
fn checked_tokens(count: u64, actor: ActorId) -> Result<i64, ThroughputError> {
    i64::try_from(count)
        .ok()
        .filter(|&tokens| tokens < 1 << 60)
        .ok_or(ThroughputError::Overflow { actor })
}
