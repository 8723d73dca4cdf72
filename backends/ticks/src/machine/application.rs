//! The application's side of a machine: kernels, and the tokens in the memories of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{ActorId, BlobId, ChannelId, DType, Graph, Role, TiSlice, TiVec};
use zbmd_op::Registry;
use zbmd_op::kernel::Kernel;
use zbmd_ticks::{Hop, NodeId, TickBuffer, TickMachine, VerifiedPlan};

use super::WaitingFrame;
use super::border::{KeptBorder, MissingTokens, Restoration};
use super::calendar::Carried;
use super::call::{Call, PortMemory};
use super::error::RunError;
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

/// Bytes of a channel's stream that are in one frame, and the node that they are sent to.
struct FramePlace {
    channel: ChannelId,
    to: NodeId,
    position: i128,
    bytes: usize,
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
    /// The border that the run went back to last, which nodes have put aside.
    aside: KeptBorder,
    /// How it came to the nodes of the present plan.
    restoration: Restoration,
    pub(crate) iterations: u64,
}

/// What an application is made of.
pub(crate) struct Parts<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) blobs: &'a TiSlice<BlobId, Bytes>,
    pub(crate) registry: &'a Registry,
    pub(crate) machine: &'a TickMachine,
    pub(crate) plan: &'a VerifiedPlan,
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

        let mut application = Self {
            graph,
            plan: parts.plan,
            outputs: vec![Vec::new(); actors.len()].into(),
            writers,
            actors,
            rings: BTreeMap::new(),
            feeds,
            frame_bytes: parts.machine.frame_bytes(),
            aside: KeptBorder::default(),
            restoration: Restoration::default(),
            iterations: limit.ok_or(RunError::Endless)?,
        };
        application.fill_initial_rings();
        Ok(application)
    }

    /// Makes the memories of all nodes as they are before the first iteration.
    fn fill_initial_rings(&mut self) {
        for buffer in &self.plan.buffers {
            let (channel, node) = (buffer.channel, buffer.node);
            let initial = &self.graph.channels[channel].initial;
            let bytes = self.border_bytes(channel, node) as usize;
            let tokens = &initial[initial.len() - bytes..];
            let mut ring = self.empty_ring(buffer);
            ring.write(-(bytes as i128), tokens);
            self.rings.insert((channel, node), ring);
        }
    }

    fn empty_ring(&self, buffer: &TickBuffer) -> Ring {
        Ring::new(buffer.tokens * self.writers[buffer.channel].port.token_bytes)
    }

    /// Bytes of a channel that an iteration finds on a node: what readers there go back to, or all of the border on those
    /// nodes that keep it.
    fn border_bytes(&self, channel: ChannelId, node: NodeId) -> u64 {
        let ch = &self.graph.channels[channel];
        let readers = ch.readers.iter();
        let local = readers.filter(|reader| self.plan.placement[reader.to.actor] == node);
        let delay = local.map(|reader| reader.delay).max().unwrap_or(0);
        let is_kept_here = self.keepers(channel).contains(&node);
        let tokens = if is_kept_here { ch.history() } else { delay };
        tokens * self.writers[channel].port.token_bytes
    }

    /// The nodes that keep a channel's border: that of its writer and that of the copy, if there is one.
    fn keepers(&self, channel: ChannelId) -> Vec<NodeId> {
        let home = self.plan.placement[self.writers[channel].actor];
        let copies = self.plan.copies.iter();
        let copies = copies.filter(|copy| copy.channel == channel);
        copies.flat_map(|copy| [home, copy.node]).collect()
    }

    /// The channels on which iterations leave something to later ones.
    fn border_channels(&self) -> impl Iterator<Item = ChannelId> + use<'_, 'a> {
        let channels = self.graph.channels.iter_enumerated();
        channels.filter_map(|(id, channel)| (channel.history() > 0).then_some(id))
    }

    /// Stream position of the first byte that an iteration writes on a channel: the end of its border.
    fn border_end(&self, channel: ChannelId, iteration: u64) -> i128 {
        let ChannelWriter { actor, port } = self.writers[channel];
        port.position(iteration * self.actors[actor].firings)
    }

    /// Whether some nodes have kept all borders, those that they put aside among them.
    pub(crate) fn has_borders(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let aside = self.aside.on(nodes);
        self.border_channels().all(|channel| {
            let mut keepers = self.keepers(channel).into_iter();
            keepers.any(|node| nodes.contains(&node)) || aside.tokens.contains_key(&channel)
        })
    }

    /// What some nodes have kept of the border of an iteration: what they put aside when the run went back to it before,
    /// and what is in their memories, if it was brought there and they had to keep it until now.
    pub(crate) fn kept_border(
        &self,
        iteration: u64,
        nodes: &BTreeSet<NodeId>,
        is_in_memory: bool,
    ) -> KeptBorder {
        let mut kept = KeptBorder {
            iteration,
            ..KeptBorder::default()
        };
        if self.aside.iteration == iteration {
            kept = self.aside.on(nodes);
        }
        if !is_in_memory {
            return kept;
        }
        for channel in self.border_channels() {
            let token_bytes = self.writers[channel].port.token_bytes;
            let bytes = self.graph.channels[channel].history() * token_bytes;
            let position = self.border_end(channel, iteration) - i128::from(bytes);
            for node in self.keepers(channel) {
                let ring = self.rings.get(&(channel, node));
                let Some(ring) = ring.filter(|_| nodes.contains(&node)) else {
                    continue;
                };
                assert!(ring.holds(position), "a border was written over too early");
                let mut tokens = vec![0; bytes as usize];
                ring.read(position, &mut tokens);
                kept.add(channel, node, tokens);
            }
        }
        kept
    }

    /// Goes back to before an iteration, and on with a plan: nodes have of the border what they have put aside. What is
    /// missing where the plan needs it.
    ///
    /// # Errors
    /// If nobody has some channel's border.
    pub(crate) fn restart(
        &mut self,
        plan: &'a VerifiedPlan,
        border: KeptBorder,
    ) -> Result<Vec<MissingTokens>, RunError> {
        let iteration = border.iteration;
        self.plan = plan;
        self.aside = border;
        self.rings.clear();
        let mut missing = Vec::new();
        for buffer in &plan.buffers {
            let (channel, node) = (buffer.channel, buffer.node);
            let mut ring = self.empty_ring(buffer);
            let bytes = self.border_bytes(channel, node);
            if bytes > 0 {
                match self.border_of(channel)?.get(&node) {
                    Some(tokens) => {
                        let position = self.border_end(channel, iteration) - i128::from(bytes);
                        ring.write(position, &tokens[tokens.len() - bytes as usize..]);
                    }
                    None => missing.push(MissingTokens {
                        channel,
                        to: node,
                        bytes,
                    }),
                }
            }
            self.rings.insert((channel, node), ring);
        }

        for (actor, joined) in self.actors.iter_mut_enumerated() {
            joined.call = Call::default();
            let ports = joined.inputs.iter();
            let bytes: u64 = ports.map(|port| port.rate * port.token_bytes).sum();
            let complete = bytes * joined.firings * iteration;
            self.outputs[actor].truncate(complete as usize);
        }
        Ok(missing)
    }

    /// What nodes have put aside of a channel's border.
    fn border_of(&self, channel: ChannelId) -> Result<&BTreeMap<NodeId, Vec<u8>>, RunError> {
        let kept = self.aside.tokens.get(&channel);
        kept.ok_or_else(|| self.lost_border(channel))
    }

    /// That nobody has a channel's border.
    pub(crate) fn lost_border(&self, channel: ChannelId) -> RunError {
        let writer = self.writers[channel].actor;
        RunError::BorderLost {
            writer: self.actors[writer].name.clone(),
            iteration: self.aside.iteration,
        }
    }

    /// The border that nodes have put aside.
    pub(crate) fn aside(&self) -> &KeptBorder {
        &self.aside
    }

    /// Says how what is missing of the border comes to its nodes.
    pub(crate) fn set_restoration(&mut self, restoration: Restoration) {
        self.restoration = restoration;
    }

    pub(crate) fn restoration(&self) -> &Restoration {
        &self.restoration
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
        }
    }

    /// The links of the way of a frame.
    pub(crate) fn hops(&self, carried: Carried) -> &[Hop] {
        match carried {
            Carried::Message(message) => &self.plan.messages[message].hops,
            Carried::Border(transfer) => &self.restoration.transfers[transfer].hops,
        }
    }

    /// Where a frame's bytes lie in a channel's stream.
    fn frame_place(&self, carried: Carried, frame: u64, iteration: u64) -> FramePlace {
        let offset = frame * self.frame_bytes;
        let (channel, to, position, bytes) = match carried {
            Carried::Message(message) => {
                let sent = &self.plan.messages[message];
                let ChannelWriter { actor, port } = self.writers[sent.channel];
                let firing = iteration * self.actors[actor].firings + sent.firing;
                let position = port.position(firing);
                (sent.channel, sent.to, position, port.bytes() as u64)
            }
            Carried::Border(transfer) => {
                let missing = &self.restoration.transfers[transfer].missing;
                let end = self.border_end(missing.channel, iteration);
                let position = end - i128::from(missing.bytes);
                (missing.channel, missing.to, position, missing.bytes)
            }
        };
        FramePlace {
            channel,
            to,
            position: position + i128::from(offset),
            bytes: self.frame_bytes.min(bytes - offset) as usize,
        }
    }

    /// The bytes of a frame, from the memory of the node where its way begins.
    pub(crate) fn read_frame(&mut self, sent: WaitingFrame) -> Vec<u8> {
        let place = self.frame_place(sent.carried, sent.frame, sent.iteration);
        let mut payload = vec![0; self.frame_bytes as usize];
        let bytes = &mut payload[..place.bytes];
        match sent.carried {
            Carried::Message(_) => {
                let ring = self.ring(place.channel, sent.node);
                ring.read(place.position, bytes);
            }
            Carried::Border(_) => {
                let end = self.border_end(place.channel, sent.iteration);
                let kept = &self.aside.tokens[&place.channel][&sent.node];
                let first = kept.len() - (end - place.position) as usize;
                bytes.copy_from_slice(&kept[first..first + place.bytes]);
            }
        }
        payload
    }

    /// Writes a frame's bytes to the memory of the node where its way ends.
    pub(crate) fn write_frame(&mut self, taken: WaitingFrame, payload: &[u8]) {
        let place = self.frame_place(taken.carried, taken.frame, taken.iteration);
        self.ring(place.channel, place.to)
            .write(place.position, &payload[..place.bytes]);
    }

    /// Tokens of each sink, by name.
    pub(crate) fn into_outputs(self) -> BTreeMap<String, Vec<u8>> {
        let sinks = self.actors.into_iter().zip(self.outputs);
        let sinks = sinks.filter(|(actor, _)| actor.role == Role::Sink);
        sinks.map(|(actor, bytes)| (actor.name, bytes)).collect()
    }
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
