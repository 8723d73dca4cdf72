//! The application's side of a machine: kernels, and the tokens in the memories of nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{ActorId, BlobId, ChannelId, DType, Graph, Role, TiSlice, TiVec};
use zbmd_op::Registry;
use zbmd_op::kernel::Kernel;
use zbmd_ticks::{NodeId, TickMachine, VerifiedPlan};

use super::call::{Call, PortMemory};
use super::error::RunError;
use super::history::History;
use super::ring::Ring;

/// A port on a channel.
#[derive(Clone, Copy, Debug)]
struct JoinedPort {
    channel: ChannelId,
    /// Of inputs.
    delay: u64,
    rate: u64,
    /// Tokens that a firing sees; of outputs the rate.
    window: u64,
    token_bytes: u64,
    dtype: DType,
}

impl JoinedPort {
    fn bytes(&self) -> usize {
        (self.window * self.token_bytes) as usize
    }

    /// Stream position of the first byte of a firing's window.
    fn position(&self, firing: u64) -> i128 {
        let token = i128::from(firing) * i128::from(self.rate) - i128::from(self.delay);
        token * i128::from(self.token_bytes)
    }
}

/// A state: what is read and what is written in its stead.
#[derive(Clone, Copy, Debug)]
struct JoinedState {
    input: JoinedPort,
    output: JoinedPort,
}

/// Who writes a channel.
#[derive(Clone, Copy, Debug)]
struct ChannelWriter {
    actor: ActorId,
    port: JoinedPort,
}

struct JoinedActor {
    name: String,
    role: Role,
    kernel: Option<Arc<dyn Kernel>>,
    inputs: Vec<JoinedPort>,
    outputs: Vec<JoinedPort>,
    states: Vec<JoinedState>,
    firings: u64,
    /// The call of the present firing, whose outputs become visible when it ends.
    call: Call,
}

/// An application on a machine, with all its tokens.
pub(crate) struct Application<'a> {
    graph: &'a Graph,
    plan: &'a VerifiedPlan,
    actors: TiVec<ActorId, JoinedActor>,
    writers: TiVec<ChannelId, ChannelWriter>,
    rings: BTreeMap<(ChannelId, NodeId), Ring>,
    feeds: TiVec<ActorId, &'a [u8]>,
    outputs: TiVec<ActorId, Vec<u8>>,
    frame_bytes: u64,
    /// What iterations leave to later ones, of each channel with initial tokens; empty if a run ends with its first fault.
    histories: BTreeMap<ChannelId, History>,
    pub(crate) iterations: u64,
}

/// What an application is made of.
pub(crate) struct Parts<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) blobs: &'a TiSlice<BlobId, Bytes>,
    pub(crate) registry: &'a Registry,
    pub(crate) machine: &'a TickMachine,
    pub(crate) plan: &'a VerifiedPlan,
    /// Whether iterations may have to run again.
    pub(crate) is_recoverable: bool,
}

impl<'a> Application<'a> {
    /// Makes kernels and memories, with the initial tokens in them.
    pub(crate) fn new(
        parts: &Parts<'a>,
        inputs: &'a BTreeMap<String, Vec<u8>>,
        iterations: Option<u64>,
    ) -> Result<Self, RunError> {
        let graph = parts.graph;
        let firings = repetition(graph)?;
        let ports = graph.port_channels();
        let mut actors = TiVec::with_capacity(graph.actors.len());
        for actor in graph.actors.keys() {
            let inputs = &ports.inputs[actor];
            let outputs = &ports.outputs[actor];
            actors.push(join_actor(parts, actor, firings[actor], inputs, outputs)?);
        }
        let writers = graph.channels.iter_enumerated().map(|(id, channel)| {
            let port = output_port(graph, id);
            let actor = channel.from.actor;
            ChannelWriter { actor, port }
        });
        let writers: TiVec<ChannelId, ChannelWriter> = writers.collect();

        let mut limit = iterations;
        let mut feeds = TiVec::with_capacity(actors.len());
        for actor in &actors {
            if actor.role != Role::Source {
                feeds.push(&[][..]);
                continue;
            }
            let bytes = inputs.get(&actor.name).ok_or_else(|| RunError::NoInput {
                source_name: actor.name.clone(),
            })?;
            let iteration_bytes: u64 = actor.outputs.iter().map(|port| port.bytes() as u64).sum();
            let whole = bytes.len() as u64 / (iteration_bytes * actor.firings).max(1);
            limit = Some(limit.map_or(whole, |known| known.min(whole)));
            feeds.push(bytes.as_slice());
        }

        let histories = match parts.is_recoverable {
            true => histories(graph, &writers),
            false => BTreeMap::new(),
        };
        let mut application = Self {
            graph,
            plan: parts.plan,
            outputs: vec![Vec::new(); actors.len()].into(),
            writers,
            actors,
            rings: BTreeMap::new(),
            feeds,
            frame_bytes: parts.machine.frame_bytes(),
            histories,
            iterations: limit.ok_or(RunError::Endless)?,
        };
        application.fill_rings(0);
        Ok(application)
    }

    /// Makes the memories of all nodes as they are before an iteration.
    fn fill_rings(&mut self, iteration: u64) {
        self.rings.clear();
        for buffer in &self.plan.buffers {
            let channel = &self.graph.channels[buffer.channel];
            let token_bytes = channel.token.bytes();
            let mut ring = Ring::new(buffer.tokens * token_bytes);
            let local = channel
                .readers
                .iter()
                .filter(|reader| self.plan.placement[reader.to.actor] == buffer.node);
            let history = local.map(|reader| reader.delay).max().unwrap_or(0);
            let bytes = (history * token_bytes) as usize;
            let ChannelWriter { actor, port } = self.writers[buffer.channel];
            let border = port.position(iteration * self.actors[actor].firings);
            let tokens = match self.histories.get(&buffer.channel) {
                Some(history) => history.before(border, bytes),
                None => channel.initial[channel.initial.len() - bytes..].to_vec(),
            };
            ring.write(border - bytes as i128, &tokens);
            self.rings.insert((buffer.channel, buffer.node), ring);
        }
    }

    fn ring(&mut self, channel: ChannelId, node: NodeId) -> &mut Ring {
        // The verifier has found a buffer on each node that reads or writes a channel.
        self.rings
            .entry((channel, node))
            .or_insert_with(|| Ring::new(1))
    }

    fn load(&mut self, port: JoinedPort, node: NodeId, firing: u64) -> PortMemory {
        let mut memory = PortMemory::new(port.bytes(), port.dtype);
        let position = port.position(firing);
        self.ring(port.channel, node)
            .read(position, memory.bytes_mut());
        memory
    }

    /// A firing starts: it reads its windows, and what it will write is known, but to nobody yet.
    pub(crate) fn start(
        &mut self,
        actor: ActorId,
        firing: u64,
        iteration: u64,
    ) -> Result<(), RunError> {
        let node = self.plan.placement[actor];
        let joined = &self.actors[actor];
        let firing = iteration * joined.firings + firing;
        let inputs = joined.inputs.clone();
        let states = joined.states.clone();
        let outputs = joined.outputs.iter();
        let outputs = outputs
            .map(|port| PortMemory::new(port.bytes(), port.dtype))
            .collect();

        let mut call = Call {
            inputs: inputs
                .iter()
                .map(|&port| self.load(port, node, firing))
                .collect(),
            outputs,
            states: states
                .iter()
                .map(|state| self.load(state.input, node, firing))
                .collect(),
        };
        let joined = &self.actors[actor];
        match (&joined.kernel, joined.role) {
            (Some(kernel), _) => {
                let fired = call.fire(kernel.as_ref());
                fired.map_err(|fault| RunError::Fault {
                    actor: joined.name.clone(),
                    fault,
                })?;
            }
            (None, Role::Source) => {
                if let Some(output) = call.outputs.first_mut() {
                    let bytes = output.bytes_mut();
                    let first = firing as usize * bytes.len();
                    bytes.copy_from_slice(&self.feeds[actor][first..first + bytes.len()]);
                }
            }
            (None, _) => {
                for (input, port) in call.inputs.iter().zip(&joined.inputs) {
                    let bytes = (port.rate * port.token_bytes) as usize;
                    self.outputs[actor].extend_from_slice(&input.bytes()[..bytes]);
                }
            }
        }
        self.actors[actor].call = call;
        Ok(())
    }

    /// A firing ends: its tokens are in the memory of its node.
    pub(crate) fn end(&mut self, actor: ActorId, firing: u64, iteration: u64) {
        let node = self.plan.placement[actor];
        let joined = &mut self.actors[actor];
        let firing = iteration * joined.firings + firing;
        let call = std::mem::take(&mut joined.call);
        let state_outputs = joined.states.iter().map(|state| state.output);
        let ports: Vec<JoinedPort> = joined
            .outputs
            .iter()
            .copied()
            .chain(state_outputs)
            .collect();
        for (port, memory) in ports.iter().zip(call.outputs.iter().chain(&call.states)) {
            let position = port.position(firing);
            self.ring(port.channel, node)
                .write(position, memory.bytes());
            if let Some(history) = self.histories.get_mut(&port.channel) {
                history.append(memory.bytes());
            }
        }
    }

    /// Iterations before this one are complete: they will not run again.
    pub(crate) fn commit(&mut self, iteration: u64) {
        for (channel, history) in &mut self.histories {
            let ChannelWriter { actor, port } = self.writers[*channel];
            history.forget_before(port.position(iteration * self.actors[actor].firings));
        }
    }

    /// Goes back to before an iteration that was the last to be committed, and on with a plan.
    pub(crate) fn restart(&mut self, plan: &'a VerifiedPlan, iteration: u64) {
        self.plan = plan;
        for (channel, history) in &mut self.histories {
            let ChannelWriter { actor, port } = self.writers[*channel];
            history.truncate(port.position(iteration * self.actors[actor].firings));
        }
        self.fill_rings(iteration);
        for (actor, joined) in self.actors.iter_mut_enumerated() {
            joined.call = Call::default();
            let ports = joined.inputs.iter();
            let bytes: u64 = ports.map(|port| port.rate * port.token_bytes).sum();
            let complete = bytes * joined.firings * iteration;
            self.outputs[actor].truncate(complete as usize);
        }
    }

    /// Where a frame of a message lies in its channel's stream, in bytes, and how many of them it has.
    fn frame_place(&self, message: usize, frame: u64, iteration: u64) -> (i128, usize) {
        let sent = &self.plan.messages[message];
        let ChannelWriter { actor, port } = self.writers[sent.channel];
        let firing = iteration * self.actors[actor].firings + sent.firing;
        let message_bytes = port.bytes() as u64;
        let offset = frame * self.frame_bytes;
        let bytes = self.frame_bytes.min(message_bytes - offset);
        (port.position(firing) + i128::from(offset), bytes as usize)
    }

    /// The bytes of a frame, from the memory of the writer's node.
    pub(crate) fn read_frame(&mut self, message: usize, frame: u64, iteration: u64) -> Vec<u8> {
        let channel = self.plan.messages[message].channel;
        let (position, bytes) = self.frame_place(message, frame, iteration);
        let home = self.plan.placement[self.writers[channel].actor];
        let mut payload = vec![0; self.frame_bytes as usize];
        self.ring(channel, home)
            .read(position, &mut payload[..bytes]);
        payload
    }

    /// Writes a frame's bytes to the memory of the reader's node.
    pub(crate) fn write_frame(
        &mut self,
        message: usize,
        frame: u64,
        iteration: u64,
        payload: &[u8],
    ) {
        let (channel, to) = (
            self.plan.messages[message].channel,
            self.plan.messages[message].to,
        );
        let (position, bytes) = self.frame_place(message, frame, iteration);
        self.ring(channel, to).write(position, &payload[..bytes]);
    }

    /// Tokens of each sink, by name.
    pub(crate) fn into_outputs(self) -> BTreeMap<String, Vec<u8>> {
        let sinks = self.actors.into_iter().zip(self.outputs);
        let sinks = sinks.filter(|(actor, _)| actor.role == Role::Sink);
        sinks.map(|(actor, bytes)| (actor.name, bytes)).collect()
    }
}

/// What there is of each channel before the first iteration, for those whose readers go back to earlier ones.
fn histories(
    graph: &Graph,
    writers: &TiVec<ChannelId, ChannelWriter>,
) -> BTreeMap<ChannelId, History> {
    let channels = graph.channels.iter_enumerated();
    let histories = channels.filter_map(|(id, channel)| {
        let depth = channel.readers.iter().map(|reader| reader.delay).max()?;
        let bytes = (depth * writers[id].port.token_bytes) as usize;
        let initial = &channel.initial[channel.initial.len() - bytes..];
        (depth > 0).then(|| (id, History::new(initial)))
    });
    histories.collect()
}

fn input_port(
    graph: &Graph,
    id: ActorId,
    port: usize,
    channel: ChannelId,
    reader: u32,
) -> JoinedPort {
    let token = &graph.channels[channel].token;
    let input = &graph.actors[id].inputs[port];
    JoinedPort {
        channel,
        delay: graph.channels[channel].readers[reader as usize].delay,
        rate: input.rate,
        window: input.window,
        token_bytes: token.bytes(),
        dtype: token.dtype,
    }
}

fn output_port(graph: &Graph, channel: ChannelId) -> JoinedPort {
    let ch = &graph.channels[channel];
    let rate = graph.actors[ch.from.actor].outputs[ch.from.port as usize].rate;
    JoinedPort {
        channel,
        delay: 0,
        rate,
        window: rate,
        token_bytes: ch.token.bytes(),
        dtype: ch.token.dtype,
    }
}

/// Joins an actor's ports to their channels: those of each input with the index of the reader, and of each output.
fn join_actor(
    parts: &Parts<'_>,
    id: ActorId,
    firings: u64,
    input_channels: &[Option<(ChannelId, u32)>],
    output_channels: &[Option<ChannelId>],
) -> Result<JoinedActor, RunError> {
    let actor = &parts.graph.actors[id];
    let open = |port: usize| RunError::OpenPort {
        actor: actor.name.clone(),
        port,
    };
    let input_of = |port: usize| -> Result<JoinedPort, RunError> {
        let (channel, reader) = input_channels[port].ok_or_else(|| open(port))?;
        Ok(input_port(parts.graph, id, port, channel, reader))
    };
    let output_of = |port: usize| -> Result<JoinedPort, RunError> {
        let channel = output_channels[port].ok_or_else(|| open(port))?;
        Ok(output_port(parts.graph, channel))
    };

    // A state pair is one port to the kernel.
    let inputs = (0..actor.inputs.len()).filter(|&p| actor.state_of_input(p as u32).is_none());
    let outputs = (0..actor.outputs.len()).filter(|&p| actor.state_of_output(p as u32).is_none());
    let states = actor.state.iter().map(|state| {
        Ok(JoinedState {
            input: input_of(state.input as usize)?,
            output: output_of(state.output as usize)?,
        })
    });
    let kernel = match actor.role {
        Role::Source | Role::Sink => None,
        Role::Compute => {
            let kernel = parts.registry.kernel(actor, parts.blobs);
            Some(kernel.map_err(|source| RunError::Kernel {
                actor: actor.name.clone(),
                source,
            })?)
        }
    };
    Ok(JoinedActor {
        name: actor.name.clone(),
        role: actor.role,
        kernel,
        inputs: inputs.map(input_of).collect::<Result<_, _>>()?,
        outputs: outputs.map(output_of).collect::<Result<_, _>>()?,
        states: states.collect::<Result<_, RunError>>()?,
        firings,
        call: Call::default(),
    })
}
