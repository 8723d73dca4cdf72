//! A graph on a machine as the rivals see it.

use std::collections::{BTreeMap, VecDeque};

use zbmd_ir::{ActorId, ChannelId, Graph, Role, TiVec};
use zbmd_scheduler::repetition;
use zbmd_ticks::{LinkId, Network, NodeId, TickMachine, TickPlan};

/// A port that waits for tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputPort {
    pub(super) channel: ChannelId,
    /// Index of the actor's node among the places of the channel.
    pub(super) place: usize,
    pub(super) delay: u64,
    pub(super) rate: u64,
    pub(super) window: u64,
}

#[derive(Clone, Debug)]
pub(super) struct ActorModel {
    pub(super) node: NodeId,
    pub(super) ticks: u64,
    /// In an iteration.
    pub(super) firings: u64,
    pub(super) role: Role,
    pub(super) inputs: Vec<InputPort>,
    pub(super) outputs: Vec<ChannelId>,
}

/// An actor that reads a channel on one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceReader {
    pub(super) actor: ActorId,
    pub(super) delay: u64,
    pub(super) rate: u64,
}

/// A node with readers of a channel, or with its writer.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Tokens that fit there.
    pub(super) capacity: u64,
    pub(super) readers: Vec<PlaceReader>,
    /// Links of a shortest way from the writer's node.
    pub(super) shortest_way: Vec<LinkId>,
    /// Links of the plan's way, by firing of an iteration.
    pub(super) planned_ways: Vec<Vec<LinkId>>,
}

#[derive(Clone, Debug)]
pub(super) struct ChannelModel {
    pub(super) writer: ActorId,
    pub(super) rate: u64,
    pub(super) frames: u64,
    /// That of the writer first.
    pub(super) places: Vec<Place>,
}

/// Something that happens once in an iteration, in the order of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn<T> {
    /// The tick, modulo the period.
    residue: u64,
    /// Iterations by which it comes later in the cycle.
    pub(super) iterations_later: u64,
    pub(super) what: T,
}

impl<T> Turn<T> {
    fn at(tick: u64, period: u64, what: T) -> Self {
        Self {
            residue: tick % period,
            iterations_later: tick / period,
            what,
        }
    }
}

/// A message on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HopTurn {
    pub(super) channel: ChannelId,
    pub(super) place: usize,
    /// Of an iteration.
    pub(super) firing: u64,
    pub(super) hop: usize,
}

/// A graph, its places on a machine, and the orders of a plan.
#[derive(Clone, Debug)]
pub struct RivalModel {
    pub(super) actors: TiVec<ActorId, ActorModel>,
    pub(super) channels: TiVec<ChannelId, ChannelModel>,
    pub(super) node_actors: TiVec<NodeId, Vec<ActorId>>,
    pub(super) firing_turns: TiVec<NodeId, Vec<Turn<ActorId>>>,
    pub(super) hop_turns: TiVec<LinkId, Vec<Turn<HopTurn>>>,
    pub(super) latency: u64,
    /// Bytes of all rings of the plan, and of the rivals.
    pub(super) plan_bytes: u64,
    pub(super) rival_bytes: u64,
}

impl RivalModel {
    /// The actors where a verified plan has them. Rings are larger than the plan's: by what is written while tokens are
    /// under way and their acknowledgements come back, so that waiting for these slows nobody down.
    ///
    /// # Panics
    /// If the plan is not one of the graph and the machine.
    pub fn new(graph: &Graph, machine: &TickMachine, plan: &TickPlan) -> Self {
        let network = machine.network().expect("a machine");
        let firings = repetition(graph).expect("consistent rates");
        let mut model = Self {
            actors: TiVec::new(),
            channels: TiVec::new(),
            node_actors: vec![Vec::new(); network.node_count()].into(),
            firing_turns: vec![Vec::new(); network.node_count()].into(),
            hop_turns: vec![Vec::new(); network.links().len()].into(),
            latency: machine.latency_ticks,
            plan_bytes: 0,
            rival_bytes: 0,
        };
        for (id, actor) in graph.actors.iter_enumerated() {
            model.node_actors[plan.placement[id]].push(id);
            model.actors.push(ActorModel {
                node: plan.placement[id],
                ticks: machine.ticks_of(actor),
                firings: firings[id],
                role: actor.role,
                inputs: Vec::new(),
                outputs: Vec::new(),
            });
        }
        let mut place_of = BTreeMap::new();
        for channel in graph.channels.keys() {
            model.add_channel(graph, machine, &network, plan, channel, &mut place_of);
        }
        model.add_firing_turns(plan);
        model.add_hop_turns(plan, &place_of);
        model
    }

    fn add_channel(
        &mut self,
        graph: &Graph,
        machine: &TickMachine,
        network: &Network,
        plan: &TickPlan,
        id: ChannelId,
        place_of: &mut BTreeMap<(ChannelId, NodeId), usize>,
    ) {
        let channel = &graph.channels[id];
        let writer = channel.from.actor;
        let rate = graph.actors[writer].outputs[channel.from.port as usize].rate;
        let firings = self.actors[writer].firings;
        let home = plan.placement[writer];
        let mut buffers: Vec<_> = plan.buffers.iter().filter(|b| b.channel == id).collect();
        buffers.sort_by_key(|buffer| (buffer.node != home, buffer.node));

        let mut places = Vec::new();
        for (index, buffer) in buffers.into_iter().enumerate() {
            place_of.insert((id, buffer.node), index);
            let shortest_way = shortest_way(network, home, buffer.node);
            let round_trip = 2 * shortest_way.len() as u64 * (machine.latency_ticks + 1);
            let spare = round_trip.div_ceil(plan.period) * rate * firings;
            let capacity = buffer.tokens + spare;
            self.plan_bytes += buffer.tokens * channel.token.bytes();
            self.rival_bytes += capacity * channel.token.bytes();
            places.push(Place {
                capacity,
                readers: Vec::new(),
                shortest_way,
                planned_ways: vec![Vec::new(); firings as usize],
            });
        }
        for reader in &channel.readers {
            let actor = reader.to.actor;
            let port = &graph.actors[actor].inputs[reader.to.port as usize];
            let place = place_of[&(id, plan.placement[actor])];
            let (delay, rate, window) = (reader.delay, port.rate, port.window);
            places[place]
                .readers
                .push(PlaceReader { actor, delay, rate });
            self.actors[actor].inputs.push(InputPort {
                channel: id,
                place,
                delay,
                rate,
                window,
            });
        }
        self.actors[writer].outputs.push(id);
        self.channels.push(ChannelModel {
            writer,
            rate,
            frames: machine.frames_of(rate * channel.token.bytes()),
            places,
        });
    }

    /// The order of firings of each node, as they come one after another in a period.
    fn add_firing_turns(&mut self, plan: &TickPlan) {
        for (actor, starts) in plan.starts.iter_enumerated() {
            let turns = starts
                .iter()
                .map(|&start| Turn::at(start, plan.period, actor));
            self.firing_turns[self.actors[actor].node].extend(turns);
        }
        for turns in &mut self.firing_turns {
            turns.sort_unstable();
        }
    }

    /// The order of messages of each link, by their first frames.
    fn add_hop_turns(&mut self, plan: &TickPlan, place_of: &BTreeMap<(ChannelId, NodeId), usize>) {
        for message in &plan.messages {
            let place = place_of[&(message.channel, message.to)];
            for (hop, frames) in message.hops.iter().enumerate() {
                let first = frames.ticks().next().unwrap_or(0);
                let turn = HopTurn {
                    channel: message.channel,
                    place,
                    firing: message.firing,
                    hop,
                };
                self.hop_turns[frames.link].push(Turn::at(first, plan.period, turn));
                let places = &mut self.channels[message.channel].places;
                places[place].planned_ways[message.firing as usize].push(frames.link);
            }
        }
        for turns in &mut self.hop_turns {
            turns.sort_unstable();
        }
    }
}

/// So many applications of one graph in one.
pub fn copies(graph: &Graph, count: u32) -> Graph {
    let mut all = Graph::default();
    for copy in 0..count {
        let first = all.actors.len();
        let moved = |actor: ActorId| ActorId::from(first + actor.index());
        for actor in &graph.actors {
            let mut actor = actor.clone();
            actor.name = format!("{}.{copy}", actor.name);
            all.actors.push(actor);
        }
        for channel in &graph.channels {
            let mut channel = channel.clone();
            channel.from.actor = moved(channel.from.actor);
            for reader in &mut channel.readers {
                reader.to.actor = moved(reader.to.actor);
            }
            all.channels.push(channel);
        }
    }
    all
}

/// The links of a shortest way; of several, the one with the lowest links.
fn shortest_way(network: &Network, from: NodeId, to: NodeId) -> Vec<LinkId> {
    let mut reached_by: TiVec<NodeId, Option<LinkId>> = vec![None; network.node_count()].into();
    let mut queue = VecDeque::from([from]);
    while let Some(node) = queue.pop_front() {
        for &link in network.outgoing(node) {
            let next = network.links()[link].to;
            if next != from && reached_by[next].is_none() {
                reached_by[next] = Some(link);
                queue.push_back(next);
            }
        }
    }

    let mut way = Vec::new();
    let mut node = to;
    while let Some(link) = reached_by[node].filter(|_| node != from) {
        way.push(link);
        node = network.links()[link].from;
    }
    way.reverse();
    way
}
