//! One attempt to find ticks for all firings and frames, with a given placement and period.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::{ActorId, ChannelId, TiVec};
use zbmd_ticks::{BorderCopy, FrameRun, Hop, LinkId, Message, NodeId, writes_border};

use crate::copies::copies;
use crate::order::Firing;
use crate::problem::{Dependency, Problem};
use crate::reservation::Reservation;
use crate::route;

/// How much longer a way may be to avoid a link without a free tick, in hops: the ways that are compared.
const DETOURS: [u64; 3] = [0, 2, 8];

/// Rounds in which starts are moved behind what they wait for in an earlier iteration.
const MAX_ROUNDS: usize = 24;

/// Ticks of all firings and frames.
#[derive(Clone, Debug)]
pub(crate) struct Timetable {
    pub(crate) starts: TiVec<ActorId, Vec<u64>>,
    pub(crate) messages: Vec<Message>,
    pub(crate) copies: Vec<BorderCopy>,
    /// The first tick after everything of iteration 0 has ended and arrived.
    pub(crate) end: u64,
}

/// Where and when tokens of a channel are there.
#[derive(Clone, Debug)]
struct Presence {
    node: NodeId,
    /// Whether the node needs all firings, or only those that write tokens of a border.
    has_readers: bool,
    /// For each firing of the writer, the tick from which on its tokens and all before them are there.
    from_tick: Vec<u64>,
}

/// Starts that a firing must not be before, found in earlier rounds.
type Floors = TiVec<ActorId, Vec<u64>>;

struct Attempt<'a> {
    problem: &'a Problem<'a>,
    placement: &'a TiVec<ActorId, NodeId>,
    period: u64,
    nodes: BTreeMap<NodeId, Reservation>,
    links: TiVec<LinkId, Reservation>,
    starts: TiVec<ActorId, Vec<u64>>,
    presences: TiVec<ChannelId, Vec<Presence>>,
    messages: Vec<Message>,
    end: u64,
}

/// Finds ticks, or `None` where nodes or links have no room, or cycles of the graph no time.
pub(crate) fn timetable(
    problem: &Problem<'_>,
    placement: &TiVec<ActorId, NodeId>,
    order: &[Firing],
    period: u64,
) -> Option<Timetable> {
    let firings = problem.firings.iter();
    let mut floors: Floors = firings.map(|&firings| vec![0; firings as usize]).collect();
    let copies = copies(problem, placement);
    for _ in 0..MAX_ROUNDS {
        let mut attempt = Attempt::new(problem, placement, &copies, period);
        for &firing in order {
            attempt.place(firing, &floors)?;
        }
        if !attempt.raise_floors(&mut floors) {
            return Some(Timetable {
                starts: attempt.starts,
                messages: attempt.messages,
                copies,
                end: attempt.end,
            });
        }
    }
    None
}

impl<'a> Attempt<'a> {
    fn new(
        problem: &'a Problem<'a>,
        placement: &'a TiVec<ActorId, NodeId>,
        copies: &[BorderCopy],
        period: u64,
    ) -> Self {
        let presences = problem.streams.iter().map(|stream| {
            let home = placement[stream.writer];
            let readers = stream.readers.iter().map(|&reader| placement[reader]);
            let others: BTreeSet<NodeId> = readers.filter(|&node| node != home).collect();
            let nodes = std::iter::once(home).chain(others);
            let presences = nodes.map(|node| Presence {
                node,
                has_readers: true,
                from_tick: Vec::new(),
            });
            presences.collect()
        });
        let mut presences: TiVec<ChannelId, Vec<Presence>> = presences.collect();

        for &BorderCopy { channel, node } in copies {
            let present = &mut presences[channel];
            if present.iter().all(|presence| presence.node != node) {
                present.push(Presence {
                    node,
                    has_readers: false,
                    from_tick: Vec::new(),
                });
            }
        }

        Self {
            problem,
            placement,
            period,
            nodes: BTreeMap::new(),
            links: vec![Reservation::default(); problem.network.links().len()].into(),
            starts: vec![Vec::new(); problem.firings.len()].into(),
            presences,
            messages: Vec::new(),
            end: 0,
        }
    }

    /// When what a dependency asks for is there on a node, in ticks of the present iteration; `None` if it has no tick
    /// yet.
    fn tick_of(&self, dependency: &Dependency, node: NodeId) -> Option<u64> {
        let presences = &self.presences[dependency.channel];
        let presence = presences.iter().find(|presence| presence.node == node)?;
        let tick = presence.from_tick.get(dependency.firing as usize)?;
        Some(tick.saturating_sub(dependency.iterations.saturating_mul(self.period)))
    }

    /// The first tick in which a firing's tokens are there, as far as that is known.
    fn earliest(&self, firing: Firing) -> u64 {
        let node = self.placement[firing.actor];
        let inputs = self.problem.inputs[firing.actor].iter();
        let dependencies = inputs.flat_map(|input| self.problem.dependencies(input, firing.index));
        let ticks = dependencies.filter_map(|dependency| self.tick_of(&dependency, node));
        ticks.max().unwrap_or(0)
    }

    /// Gives a firing its start, and its tokens their ways to other nodes.
    fn place(&mut self, firing: Firing, floors: &Floors) -> Option<()> {
        let Firing { actor, index } = firing;
        let duration = self.problem.durations[actor];
        let previous_end = self.starts[actor]
            .last()
            .map_or(0, |start| start + duration);
        let floor = floors[actor][index as usize].max(previous_end);
        let earliest = self.earliest(firing).max(floor);

        let unit = self.nodes.entry(self.placement[actor]).or_default();
        let start = unit.first_free(earliest, duration, self.period)?;
        unit.take(start, duration, self.period);
        self.starts[actor].push(start);
        let end = start + duration;
        self.end = self.end.max(end);

        for output in 0..self.problem.outputs[actor].len() {
            let channel = self.problem.outputs[actor][output];
            for target in 0..self.presences[channel].len() {
                let from_tick = if target == 0 || !self.is_needed(channel, index, target) {
                    end
                } else {
                    self.send(channel, index, target, end)?
                };
                self.end = self.end.max(from_tick);
                let ticks = &mut self.presences[channel][target].from_tick;
                let latest = ticks.last().map_or(from_tick, |&last| last.max(from_tick));
                ticks.push(latest);
            }
        }
        Some(())
    }

    /// Whether a node needs a firing's tokens.
    fn is_needed(&self, channel: ChannelId, firing: u64, target: usize) -> bool {
        let stream = &self.problem.streams[channel];
        self.presences[channel][target].has_readers
            || writes_border(stream.border, firing, stream.rate, stream.tokens)
    }

    /// Sends the tokens of a firing to one node, from a tick on, by the way on which they are there first; the tick from
    /// which on they are.
    fn send(&mut self, channel: ChannelId, firing: u64, target: usize, from: u64) -> Option<u64> {
        let stream = &self.problem.streams[channel];
        let home = self.placement[stream.writer];
        let to = self.presences[channel][target].node;

        let mut best: Option<(u64, Vec<Hop>)> = None;
        let mut tried: Vec<Vec<LinkId>> = Vec::new();
        for detour in DETOURS {
            let network = self.problem.network;
            let way = route::way(network, &self.links, (home, to), self.period, detour);
            if tried.contains(&way) {
                continue;
            }
            if let Some((arrival, hops)) = self.frames_on(&way, stream.frames, from)
                && best.as_ref().is_none_or(|(earlier, _)| arrival < *earlier)
            {
                best = Some((arrival, hops));
            }
            tried.push(way);
        }

        let (arrival, hops) = best?;
        for hop in &hops {
            for run in &hop.runs {
                self.links[hop.link].take(run.start, run.frames, self.period);
            }
        }
        self.messages.push(Message {
            channel,
            firing,
            to,
            hops,
        });
        Some(arrival)
    }

    /// The first ticks in which frames can be sent on a way, hop by hop, and when all are there.
    fn frames_on(&self, way: &[LinkId], frames: u64, from: u64) -> Option<(u64, Vec<Hop>)> {
        let latency = self.problem.machine.latency_ticks;
        let mut hops = Vec::with_capacity(way.len());
        // From when on each frame can be sent: at first all at once.
        let mut ready = vec![from; frames as usize];
        for &link in way {
            let reservation = &self.links[link];
            if reservation.count() + frames > self.period {
                return None;
            }
            let mut runs: Vec<FrameRun> = Vec::new();
            let mut next = from;
            for tick in &mut ready {
                let sent = reservation.first_free(next.max(*tick), 1, self.period)?;
                match runs.last_mut() {
                    Some(run) if run.start + run.frames == sent => run.frames += 1,
                    _ => runs.push(FrameRun {
                        start: sent,
                        frames: 1,
                    }),
                }
                next = sent + 1;
                *tick = sent + latency + 1;
            }
            // A message that takes longer than a period would meet itself.
            let first = runs.first().map_or(next, |run| run.start);
            if next - first > self.period {
                return None;
            }
            hops.push(Hop { link, runs });
        }
        Some((ready.last().copied().unwrap_or(from), hops))
    }

    /// Looks for firings that start before what they wait for in an earlier iteration, and raises their floors. Whether
    /// there were any.
    fn raise_floors(&self, floors: &mut Floors) -> bool {
        let mut is_raised = false;
        for (actor, starts) in self.starts.iter_enumerated() {
            // The next iteration's first firing comes after this one's last.
            let last_end = starts
                .last()
                .map_or(0, |start| start + self.problem.durations[actor]);
            let mut least = last_end.saturating_sub(self.period);
            for (index, &start) in starts.iter().enumerate() {
                let index = index as u64;
                let needed = self.earliest(Firing { actor, index }).max(least);
                if start < needed {
                    floors[actor][index as usize] = needed;
                    is_raised = true;
                }
                least = 0;
            }
        }
        is_raised
    }
}
