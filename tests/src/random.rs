//! Seeded random graphs that are consistent by construction, and machines to run them on.

use std::sync::LazyLock;

use zbmd_backends::op::Registry;
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::*;
use zbmd_scheduler::{AnalysisError, Block, ScheduleOptions, check_deadlock, repetition, schedule};

/// What a random graph may look like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Fewest actors, at least 2.
    pub min_actors: usize,
    /// Most actors, sources and sinks included.
    pub actors: usize,
    /// Largest rate of a port.
    pub max_rate: u64,
    /// Largest look-back of a window beyond its rate.
    pub max_overlap: u64,
    /// Whether cycles, self-loops and states occur.
    pub cycles: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            min_actors: 2,
            actors: 40,
            max_rate: 12,
            max_overlap: 6,
            cycles: true,
        }
    }
}

struct Builder {
    rng: fastrand::Rng,
    shape: Shape,
    graph: Graph,
    /// Wanted firings per iteration: the rates are made to fit.
    q: Vec<u64>,
    /// Channel of each actor's first output.
    first_channel: Vec<Option<ChannelId>>,
}

/// A random graph of the shape: connected, consistent and free of deadlock.
pub fn graph(seed: u64, shape: Shape) -> Graph {
    let mut rng = fastrand::Rng::with_seed(seed);
    let actors = rng.usize(shape.min_actors.max(2)..=shape.actors.max(shape.min_actors).max(2));
    let mut b = Builder {
        rng,
        shape,
        graph: Graph {
            name: format!("random-{seed}"),
            ..Graph::default()
        },
        q: vec![],
        first_channel: vec![None; actors],
    };
    let numbers: Vec<u64> = (1..=shape.max_rate).collect();
    for i in 0..actors {
        let role = match i {
            0 => Role::Source,
            _ if i == actors - 1 => Role::Sink,
            // Somebody whom everyone later can read from, whatever the rates.
            1 => Role::Compute,
            _ if b.rng.u8(..) < 16 => Role::Source,
            _ if b.rng.u8(..) < 16 => Role::Sink,
            _ => Role::Compute,
        };
        let op = match role {
            Role::Compute => "Mix",
            Role::Source => "Source",
            Role::Sink => "Sink",
        };
        b.graph.actors.push(Actor {
            name: format!("n{i}"),
            role,
            op: op.into(),
            params: Params::new(),
            inputs: vec![],
            outputs: vec![],
            state: vec![],
            in_place: vec![],
        });
        let firings = numbers[b.rng.usize(..numbers.len())];
        b.q.push(firings);
    }
    b.forward_edges();
    b.unread_sources();
    if shape.cycles {
        b.loops_and_states();
    }
    allow_in_place(&mut b.graph);
    b.graph
}

/// Lets every output be written over every input, or over a part, or have it as a part.
pub fn allow_in_place(graph: &mut Graph) {
    let registry = crate::mix::registry();
    for actor in graph.actors.iter_mut().filter(|a| a.role == Role::Compute) {
        actor.in_place = registry.in_place(actor, TiSlice::from_ref(&[]));
    }
}

/// Adds channels at rate 1 between random actors, forward only, until the graph has `readers` readers.
/// For graphs whose actors all fire once an iteration.
pub fn densify(graph: &mut Graph, readers: usize, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let token = TokenType::scalar(DType::I64);
    let compute: Vec<ActorId> = graph
        .actors
        .iter_enumerated()
        .filter(|(_, a)| a.role == Role::Compute)
        .map(|(id, _)| id)
        .collect();
    while graph
        .channels
        .iter()
        .map(|ch| ch.readers.len())
        .sum::<usize>()
        < readers
    {
        let (a, b) = (rng.usize(..compute.len()), rng.usize(..compute.len()));
        if a == b {
            continue;
        }
        let (from, to) = (compute[a.min(b)], compute[a.max(b)]);
        let outputs = &mut graph.actors[from].outputs;
        outputs.push(OutPort {
            name: format!("y{}", outputs.len()),
            token: token.clone(),
            rate: 1,
        });
        let from = Endpoint {
            actor: from,
            port: outputs.len() as u32 - 1,
        };
        let inputs = &mut graph.actors[to].inputs;
        inputs.push(InPort {
            name: format!("x{}", inputs.len()),
            token: token.clone(),
            rate: 1,
            window: 1,
        });
        let to = Endpoint {
            actor: to,
            port: inputs.len() as u32 - 1,
        };
        let readers = vec![Reader { to, delay: 0 }];
        graph.channels.push(Channel {
            from,
            readers,
            token: token.clone(),
            initial: vec![],
        });
    }
}

/// So many hosts of so many alike devices each; links between hosts are slower.
pub fn cluster(hosts: usize, devices_each: usize) -> Machine {
    let mut machine = machine(hosts * devices_each);
    let devices: Vec<DeviceId> = machine.devices.keys().collect();
    for (index, devices) in devices.chunks(devices_each).enumerate() {
        machine.hosts.push(Host {
            name: format!("host:{index}"),
            devices: devices.to_vec(),
        });
    }
    machine.links.change(|link| {
        if link.from.index() / devices_each != link.to.index() / devices_each {
            link.bytes_per_s /= 10;
            link.latency_ns *= 10;
        }
    });
    machine
}

/// A random machine of `devices` alike CPU devices.
pub fn machine(devices: usize) -> Machine {
    let mut machine = Machine::default();
    for i in 0..devices {
        machine.devices.push(Device {
            name: format!("cpu:{i}"),
            backend: "cpu".into(),
            cores: vec![],
            memory_bytes: 1 << 30,
            flops_per_s: 10_000_000_000,
            bytes_per_s: 10_000_000_000,
            programmatic: false,
        });
    }
    machine.links = Links::between_all(devices, |_, _| (10_000_000_000, 200));
    machine
}

/// What an actor's kernel needs: `Mix` nothing, unless it is gated.
fn scratch_bytes(actor: &Actor) -> u64 {
    if actor.role != Role::Compute || (actor.op == "Mix" && actor.gate().is_none()) {
        return 0;
    }
    static REGISTRY: LazyLock<Registry> = LazyLock::new(crate::mix::registry);
    let kernel = REGISTRY.kernel(actor, TiSlice::from_ref(&[]));
    kernel.map_or(0, |kernel| kernel.scratch_bytes() as u64)
}

/// Costs drawn at random, so that placements differ: up to 20 us a firing.
pub fn costs(graph: &Graph, machine: &Machine, seed: u64) -> Costs {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let table = graph.actors.iter().map(|actor| {
        let cost = ActorCost {
            call_ps: 20_000,
            firing_ps: rng.u64(1_000..20_000_000),
            scratch_bytes: scratch_bytes(actor),
        };
        machine.devices.iter().map(|_| Some(cost)).collect()
    });
    Costs {
        table: table.collect(),
    }
}

impl Builder {
    fn token(&mut self) -> TokenType {
        match self.rng.u8(0..5) {
            0 => TokenType::new(DType::I32, [3]),
            1 => TokenType::scalar(DType::U8),
            2 => TokenType::new(DType::F32, [2, 2]),
            _ => TokenType::scalar(DType::I64),
        }
    }

    fn add_output(&mut self, actor: ActorId, token: &TokenType, rate: u64) -> Endpoint {
        let outputs = &mut self.graph.actors[actor].outputs;
        outputs.push(OutPort {
            name: format!("y{}", outputs.len()),
            token: token.clone(),
            rate,
        });
        Endpoint {
            actor,
            port: outputs.len() as u32 - 1,
        }
    }

    fn add_reader(&mut self, actor: ActorId, token: &TokenType, rate: u64, tokens: u64) -> Reader {
        let overlap = if self.rng.u8(..) < 64 {
            self.rng.u64(0..=self.shape.max_overlap)
        } else {
            0
        };
        let inputs = &mut self.graph.actors[actor].inputs;
        inputs.push(InPort {
            name: format!("x{}", inputs.len()),
            token: token.clone(),
            rate,
            window: rate + overlap,
        });
        Reader {
            to: Endpoint {
                actor,
                port: inputs.len() as u32 - 1,
            },
            delay: overlap + tokens,
        }
    }

    fn add_channel(&mut self, from: Endpoint, token: TokenType, readers: Vec<Reader>) -> ChannelId {
        let history = readers.iter().map(|r| r.delay).max().unwrap_or(0);
        let initial = (0..history * token.bytes())
            .map(|_| self.rng.u8(..))
            .collect();
        let channel = self.graph.channels.push_and_get_key(Channel {
            from,
            readers,
            token,
            initial,
        });
        self.first_channel[from.actor.index()].get_or_insert(channel);
        channel
    }

    /// Produced and consumed rates that balance `from` and `to`, or `None` when they exceed the shape's.
    fn rates(&mut self, from: ActorId, to: ActorId) -> Option<(u64, u64)> {
        let (a, b) = (self.q[from.index()], self.q[to.index()]);
        let g = zbmd_ir::math::gcd_u64(a, b);
        let (produced, consumed) = (b / g, a / g);
        let room = self.shape.max_rate / produced.max(consumed);
        let k = self.rng.u64(1..=room.max(1));
        (room > 0).then_some((produced * k, consumed * k))
    }

    /// Every actor but sources reads from an earlier one; some outputs have several readers.
    fn forward_edges(&mut self) {
        for to in 1..self.graph.actors.len() {
            let to = ActorId::from(to);
            let wanted = match self.graph.actors[to].role {
                Role::Source => 0,
                Role::Sink => 1,
                Role::Compute => self.rng.usize(1..=2),
            };
            for _ in 0..wanted {
                let from = self.writer_for(to);
                self.join(from, to);
            }
        }
    }

    /// Sources that nobody happened to choose get an output that nobody reads.
    fn unread_sources(&mut self) {
        for actor in self.graph.actors.keys() {
            let a = &self.graph.actors[actor];
            if a.role == Role::Source && a.outputs.is_empty() {
                let token = self.token();
                let rate = self.rng.u64(1..=self.shape.max_rate);
                let from = self.add_output(actor, &token, rate);
                self.add_channel(from, token, vec![]);
            }
        }
    }

    /// One of the last actors before `to` that can still be read; failing that actor 1, which always can.
    fn writer_for(&mut self, to: ActorId) -> ActorId {
        let oldest = to.index().saturating_sub(64);
        for _ in 0..8 {
            let from = ActorId::from(self.rng.usize(oldest..to.index()));
            let actor = &self.graph.actors[from];
            let free = actor.role == Role::Compute || actor.outputs.is_empty();
            if actor.role != Role::Sink && (free || self.shared(from, to).is_some()) {
                return from;
            }
        }
        ActorId::from(to.index().min(2) - 1)
    }

    /// The channel of the actor's first output and the rate at which `to` would read it, if that is whole.
    fn shared(&self, from: ActorId, to: ActorId) -> Option<(ChannelId, u64)> {
        let channel = self.first_channel[from.index()]?;
        let tokens = self.graph.actors[from].outputs[0].rate * self.q[from.index()];
        let rate = tokens / self.q[to.index()];
        (tokens.is_multiple_of(self.q[to.index()]) && rate <= self.shape.max_rate)
            .then_some((channel, rate))
    }

    fn join(&mut self, from: ActorId, to: ActorId) {
        let must_share = self.graph.actors[from].role == Role::Source
            && !self.graph.actors[from].outputs.is_empty();
        let shared = self
            .shared(from, to)
            .filter(|_| must_share || self.rng.bool());
        if let Some((channel, rate)) = shared {
            let token = self.graph.channels[channel].token.clone();
            let tokens = self.rng.u64(0..3);
            let reader = self.add_reader(to, &token, rate, tokens);
            let more = reader
                .delay
                .saturating_sub(self.graph.channels[channel].history())
                * token.bytes();
            let older: Vec<u8> = (0..more).map(|_| self.rng.u8(..)).collect();
            let ch = &mut self.graph.channels[channel];
            ch.initial.splice(0..0, older);
            ch.readers.push(reader);
            return;
        }
        let token = self.token();
        let Some((produced, consumed)) = self.rates(from, to) else {
            unreachable!("q is at most max_rate")
        };
        let from = self.add_output(from, &token, produced);
        let tokens = if self.rng.u8(..) < 32 {
            self.rng.u64(0..consumed * 3)
        } else {
            0
        };
        let reader = self.add_reader(to, &token, consumed, tokens);
        self.add_channel(from, token, vec![reader]);
    }

    /// Adds backward channels with the fewest initial tokens that a few tries find, self-loops and states.
    fn loops_and_states(&mut self) {
        let compute: Vec<ActorId> = self
            .graph
            .actors
            .iter_enumerated()
            .filter(|(_, a)| a.role == Role::Compute)
            .map(|(id, _)| id)
            .collect();
        if compute.is_empty() {
            return;
        }
        for _ in 0..self.rng.usize(0..=compute.len().div_ceil(4).min(10)) {
            let a = compute[self.rng.usize(..compute.len())];
            let b = compute[self.rng.usize(..compute.len())];
            let (to, from) = (a.min(b), a.max(b));
            let Some((produced, consumed)) = self.rates(from, to) else {
                continue;
            };
            let token = self.token();
            let enough = self.q[to.index()] * consumed;
            let tokens = self.rng.u64(0..=enough * 2);
            let from = self.add_output(from, &token, produced);
            let reader = self.add_reader(to, &token, consumed, tokens);
            let channel = self.add_channel(from, token, vec![reader]);
            self.free(channel);
        }
        for &actor in &compute {
            if self.rng.u8(..) < 48 {
                let token = self.token();
                let from = self.add_output(actor, &token, 1);
                let inputs = &mut self.graph.actors[actor].inputs;
                inputs.push(InPort {
                    name: format!("x{}", inputs.len()),
                    token: token.clone(),
                    rate: 1,
                    window: 1,
                });
                let to = Endpoint {
                    actor,
                    port: inputs.len() as u32 - 1,
                };
                self.graph.actors[actor].state.push(StatePort {
                    input: to.port,
                    output: from.port,
                });
                self.add_channel(from, token, vec![Reader { to, delay: 1 }]);
            }
        }
    }

    /// Adds initial tokens to the channel until the graph runs: just as many as the analysis asks for.
    fn free(&mut self, channel: ChannelId) {
        let Ok(q) = repetition(&self.graph) else {
            unreachable!("rates balance by construction")
        };
        while let Err(AnalysisError::Deadlock { .. }) = check_deadlock(&self.graph, &q) {
            let bytes = self.graph.channels[channel].token.bytes();
            let more: Vec<u8> = (0..bytes).map(|_| self.rng.u8(..)).collect();
            let ch = &mut self.graph.channels[channel];
            ch.readers[0].delay += 1;
            ch.initial.extend(more);
        }
    }
}

/// The plans of a graph for the machine and the costs of a seed.
pub fn program(seed: u64, graph: Graph, options: &ScheduleOptions) -> Verified<Program> {
    let machine = machine(1 + (seed % 4) as usize);
    let costs = costs(&graph, &machine, seed);
    let plans =
        schedule(&graph, &machine, &costs, options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let program = Program {
        graph,
        machine,
        plans: plans.into(),
        ..Program::default()
    };
    verify(program).unwrap_or_else(|errors| panic!("seed {seed}: {errors:?}"))
}

/// Options with the length of a block that a seed asks for.
pub fn block_options(seed: u64) -> ScheduleOptions {
    ScheduleOptions {
        block: [Block::Auto, Block::Fixed(1), Block::Fixed(7)][(seed / 4 % 3) as usize],
        ..ScheduleOptions::default()
    }
}
