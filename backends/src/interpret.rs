//! The reference interpreter: token-driven, one thread, one firing at a time, in queues that grow. The oracle for
//! every calendar, and the rival that calendars are measured against.
//!
//! Must not know plans, devices or calendars: the only things it shares with the executor are the kernels.
#![expect(
    unsafe_code,
    reason = "hands queue memory to kernels as raw ports, which is what kernels take"
)]

mod changes;
mod gate;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{
    Actor, ActorId, BlobId, Channel, ChannelId, DType, Graph, ParameterChange, Role, State,
    TiSlice, TiVec,
};

use zbmd_ir::verify::VerifyError;
use zbmd_ir::verify::graph::repetition;

use crate::kernel::{CallShape, Io, Kernel, KernelFault, RawPort, Scratch};
use crate::op::{OpError, Registry};
use changes::LiveActors;
use gate::NodeGate;

/// Why a graph cannot be interpreted, or why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum InterpretError {
    /// The graph has no repetition vector.
    #[error("the graph cannot run in bounded memory: {0}")]
    Inconsistent(#[from] VerifyError),
    /// A port is not joined to any channel.
    #[error("actor `{actor}`: {side} port {port} is not joined to a channel")]
    OpenPort {
        /// The actor.
        actor: String,
        /// `input` or `output`.
        side: &'static str,
        /// Index of the port.
        port: usize,
    },
    /// No kernel could be made.
    #[error("actor `{actor}`: {source}")]
    Kernel {
        /// The actor.
        actor: String,
        /// Why.
        source: OpError,
    },
    /// A source got no bytes to read.
    #[error("source `{source_name}` has no input: give its bytes, or an empty vector")]
    NoInput {
        /// The source.
        source_name: String,
    },
    /// No source limits the run and no iterations were given.
    #[error("a graph without sources runs for ever: say how many iterations")]
    Endless,
    /// No actor could fire although the iteration is not complete.
    #[error(
        "deadlock in iteration {iteration}: {waiting} of the actors wait for tokens, `{first}` first"
    )]
    Deadlock {
        /// The iteration, counted from the start of the run.
        iteration: u64,
        /// Actors that have firings left.
        waiting: usize,
        /// The first of them.
        first: String,
    },
    /// A kernel reported a fault.
    #[error("actor `{actor}`: {fault}")]
    Fault {
        /// The actor.
        actor: String,
        /// What it said.
        fault: KernelFault,
    },
    /// A state does not belong to this graph.
    #[error(
        "the state does not fit: channel {channel} has {found} bytes of tokens, the graph needs {needed}"
    )]
    StateMismatch {
        /// The channel.
        channel: ChannelId,
        /// Bytes in the state.
        found: usize,
        /// Bytes in the graph.
        needed: usize,
    },
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The tokens of each sink, by name, as bytes.
    pub outputs: BTreeMap<String, Vec<u8>>,
    /// Iterations done in this run.
    pub iterations: u64,
    /// Whole tokens of each source's input that were not taken, by name.
    pub leftover: BTreeMap<String, u64>,
    /// The tokens lying on the channels at the end.
    pub state: State,
}

/// Tokens that a firing has written on a channel. An actor's state is such a token too.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// The channel.
    pub channel: ChannelId,
    /// The tokens.
    pub bytes: &'a [u8],
}

/// One cache line: kernels are promised scratch memory aligned to 64 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Elements of this size and alignment carry every queue, so that every dtype is aligned in it.
type Word = u64;
const WORD_BYTES: usize = size_of::<Word>();

/// A queue of bytes: pushed at the end, dropped from the front, contiguous in between.
#[derive(Debug, Default)]
struct Queue {
    words: Vec<Word>,
    /// First live byte; a multiple of the token size, and so of the element size.
    start: usize,
    end: usize,
}

impl Queue {
    /// Makes room for `bytes` at the end, counted as live from now on.
    fn grow(&mut self, bytes: usize) {
        let needed = self.end + bytes;
        // Live bytes move to the front only over at least as many dead ones: the moves are O(1) a byte, amortised.
        if needed > self.words.len() * WORD_BYTES && self.start >= self.end - self.start {
            let live = self.start..self.end;
            let live_bytes = live.len();
            bytemuck::cast_slice_mut::<Word, u8>(&mut self.words).copy_within(live, 0);
            self.start = 0;
            self.end = live_bytes;
        }

        let needed = self.end + bytes;
        if needed > self.words.len() * WORD_BYTES {
            self.words.resize((2 * needed).div_ceil(WORD_BYTES), 0);
        }
        self.end = needed;
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.grow(bytes.len());
        let end = self.end;
        bytemuck::cast_slice_mut::<Word, u8>(&mut self.words)[end - bytes.len()..end]
            .copy_from_slice(bytes);
    }

    fn live(&self) -> &[u8] {
        &bytemuck::cast_slice::<Word, u8>(&self.words)[self.start..self.end]
    }

    fn base(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }
}

/// One channel at run time. Positions count from the oldest token of the run's first state.
#[derive(Debug)]
struct Stream {
    queue: Queue,
    token_bytes: usize,
    dtype: DType,
    /// Position of the first token kept in the queue.
    first: u64,
    /// Tokens written, history included: position of the next token.
    written: u64,
    /// Position of each reader's next window.
    next: Vec<u64>,
    readers: Vec<ActorId>,
    history: u64,
}

impl Stream {
    fn new(channel: &Channel, tokens: &[u8]) -> Self {
        let history = channel.history();
        let mut queue = Queue::default();
        queue.extend(tokens);
        Self {
            queue,
            token_bytes: channel.token.bytes() as usize,
            dtype: channel.token.dtype,
            first: 0,
            written: history,
            next: channel.readers.iter().map(|r| history - r.delay).collect(),
            readers: channel.readers.iter().map(|r| r.to.actor).collect(),
            history,
        }
    }

    fn byte_at(&self, position: u64) -> usize {
        self.queue.start + (position - self.first) as usize * self.token_bytes
    }

    /// The last bytes of the queue: a state's one token, or room that was made for tokens.
    fn last(&self, bytes: usize) -> Vec<u8> {
        let live = self.queue.live();
        live[live.len() - bytes..].to_vec()
    }

    /// Replaces [`Self::last`] bytes.
    fn set_last(&mut self, tokens: &[u8]) {
        let end = self.queue.end;
        bytemuck::cast_slice_mut::<Word, u8>(&mut self.queue.words)[end - tokens.len()..end]
            .copy_from_slice(tokens);
    }

    /// Drops what no reader will look at again; how many tokens.
    fn drop_read(&mut self) -> u64 {
        let keep = self.next.iter().copied().min().unwrap_or(self.written);
        let dropped = keep - self.first;
        self.queue.start += (keep - self.first) as usize * self.token_bytes;
        self.first = keep;
        dropped
    }

    /// The last `history` tokens. Only at an iteration border.
    fn border(&self) -> Vec<u8> {
        let bytes = self.history as usize * self.token_bytes;
        let live = self.queue.live();
        live[live.len() - bytes..].to_vec()
    }
}

struct InputPort {
    channel: ChannelId,
    reader: usize,
    rate: u64,
    window: u64,
}

struct OutputPort {
    channel: ChannelId,
    rate: u64,
}

/// An actor, resolved: ports without the state pairs', as kernels see them.
struct ResolvedActor {
    name: String,
    role: Role,
    kernel: Option<Arc<dyn Kernel>>,
    inputs: Vec<InputPort>,
    outputs: Vec<OutputPort>,
    states: Vec<ChannelId>,
    firings: u64,
    /// If it is gated: then the kernel is that of the actor without its gate.
    gate: Option<NodeGate>,
}

/// The kernel of an actor that computes; sources and sinks have none.
fn compute_kernel(
    actor: &Actor,
    blobs: &TiSlice<BlobId, Bytes>,
    registry: &Registry,
) -> Result<Option<Arc<dyn Kernel>>, InterpretError> {
    match actor.role {
        Role::Source | Role::Sink => Ok(None),
        Role::Compute => {
            let fault = actor.gate().and_then(|gate| gate.fault(actor));
            let kernel = match fault {
                None => registry.kernel(&actor.ungated(), blobs),
                Some(why) => Err(OpError::Other {
                    message: format!("its gate {why}"),
                    help: "verify the graph first".to_owned(),
                }),
            };
            kernel.map(Some).map_err(|source| InterpretError::Kernel {
                actor: actor.name.clone(),
                source,
            })
        }
    }
}

fn open_port(actor: &Actor, side: &'static str, port: usize) -> InterpretError {
    InterpretError::OpenPort {
        actor: actor.name.clone(),
        side,
        port,
    }
}

impl ResolvedActor {
    /// The actor before its ports are joined to channels.
    fn unconnected(actor: &Actor, kernel: Option<Arc<dyn Kernel>>, firings: u64) -> Self {
        Self {
            name: actor.name.clone(),
            role: actor.role,
            kernel,
            inputs: Vec::new(),
            outputs: Vec::new(),
            states: Vec::new(),
            firings,
            gate: actor.gate().map(|gate| NodeGate::of(actor, gate)),
        }
    }

    /// `channels`: the channel and the number of the reader on it, for each input port.
    fn connect_inputs(
        &mut self,
        actor: &Actor,
        channels: &[Option<(ChannelId, u32)>],
    ) -> Result<(), InterpretError> {
        for (index, port) in actor.inputs.iter().enumerate() {
            // A state pair is one port to the kernel: `connect_outputs` adds it.
            if actor.state_of_input(index as u32).is_some() {
                continue;
            }

            let (channel, reader) =
                channels[index].ok_or_else(|| open_port(actor, "input", index))?;
            self.inputs.push(InputPort {
                channel,
                reader: reader as usize,
                rate: port.rate,
                window: port.window,
            });
        }
        Ok(())
    }

    /// Outputs, then the state pairs. `channels`: the channel of each output port.
    fn connect_outputs(
        &mut self,
        actor: &Actor,
        channels: &[Option<ChannelId>],
    ) -> Result<(), InterpretError> {
        for (index, port) in actor.outputs.iter().enumerate() {
            if actor.state_of_output(index as u32).is_some() {
                continue;
            }
            let channel = channels[index].ok_or_else(|| open_port(actor, "output", index))?;
            self.outputs.push(OutputPort {
                channel,
                rate: port.rate,
            });
        }

        for state in &actor.state {
            let index = state.output as usize;
            let channel = channels[index].ok_or_else(|| open_port(actor, "output", index))?;
            self.states.push(channel);
        }
        Ok(())
    }

    /// One firing, of the op: a gate and what it holds are not the op's.
    fn shape(&self) -> CallShape {
        CallShape {
            firings: 1,
            inputs: self.op_inputs().len() as u16,
            outputs: self.outputs.len() as u16,
            states: self.op_states().len() as u16,
            over: false,
        }
    }

    /// The gate comes after the op's own inputs.
    fn op_inputs(&self) -> &[InputPort] {
        let gates = usize::from(self.gate.is_some());
        &self.inputs[..self.inputs.len() - gates]
    }

    /// States that hold outputs come after the op's own.
    fn op_states(&self) -> &[ChannelId] {
        let held = self.gate.as_ref().map_or(0, NodeGate::held);
        &self.states[..self.states.len() - held]
    }
}

/// A graph ready to be interpreted, with the tokens that lie on its channels.
pub struct Interpreter {
    nodes: TiVec<ActorId, ResolvedActor>,
    streams: TiVec<ChannelId, Stream>,
    scratch: Vec<Line>,
    iterations: u64,
    consumed: BTreeMap<ActorId, u64>,
    history_bytes: TiVec<ChannelId, usize>,
    /// Of a graph that has live parameters.
    live: Option<LiveActors>,
}

impl Interpreter {
    /// Resolves ports, makes the kernels and puts the initial tokens on the channels.
    ///
    /// # Errors
    /// See [`InterpretError`]; the graph need not be verified, but its ids must be in range.
    pub fn new(
        graph: &Graph,
        blobs: &TiSlice<BlobId, Bytes>,
        registry: &Registry,
    ) -> Result<Self, InterpretError> {
        let repetitions = repetition(graph)?;
        let port_channels = graph.port_channels();

        let mut nodes = TiVec::with_capacity(graph.actors.len());
        for (id, actor) in graph.actors.iter_enumerated() {
            let kernel = compute_kernel(actor, blobs, registry)?;
            let mut node = ResolvedActor::unconnected(actor, kernel, repetitions[id]);
            node.connect_inputs(actor, &port_channels.inputs[id])?;
            node.connect_outputs(actor, &port_channels.outputs[id])?;
            nodes.push(node);
        }

        // One scratch area serves all kernels, because one firing ends before the next begins.
        let scratch_bytes = nodes
            .iter()
            .filter_map(|node| node.kernel.as_ref())
            .map(|kernel| kernel.scratch_bytes())
            .max()
            .unwrap_or(0);

        let initial = State::initial(graph);
        let streams = graph
            .channels
            .iter()
            .zip(&initial.channels)
            .map(|(channel, tokens)| Stream::new(channel, tokens))
            .collect();

        Ok(Self {
            nodes,
            streams,
            scratch: vec![Line([0; 64]); scratch_bytes.div_ceil(64)],
            iterations: 0,
            consumed: initial.consumed.into_iter().collect(),
            history_bytes: initial.channels.iter().map(Vec::len).collect(),
            live: LiveActors::of(graph, blobs, registry, |source| {
                repetitions[source] * graph.actors[source].outputs[0].rate
            }),
        })
    }

    /// Changes live parameters at a position of the run that it has not come to yet. The graph has them, and allows the
    /// values.
    pub fn change(&mut self, change: ParameterChange) {
        if let Some(live) = &mut self.live {
            live.add(change);
        }
    }

    /// Replaces the tokens on the channels by those of a state, taken from any run of the same graph.
    ///
    /// # Errors
    /// [`InterpretError::StateMismatch`] if a channel of the state has another size.
    pub fn restore(&mut self, state: &State) -> Result<(), InterpretError> {
        for (channel, &needed) in self.history_bytes.iter_enumerated() {
            let found = state.channels.get(channel).map_or(0, Vec::len);
            if found != needed {
                return Err(InterpretError::StateMismatch {
                    channel,
                    found,
                    needed,
                });
            }
        }
        for (stream, tokens) in self.streams.iter_mut().zip(&state.channels) {
            let ahead: Vec<u64> = stream.next.iter().map(|&n| stream.written - n).collect();
            stream.queue = Queue::default();
            stream.queue.extend(tokens);
            stream.first = 0;
            stream.written = stream.history;
            stream.next = ahead.iter().map(|a| stream.history - a).collect();
        }
        if let Some(live) = &mut self.live {
            live.restore(state);
            state
                .changes
                .iter()
                .cloned()
                .for_each(|change| live.add(change));
        }
        self.iterations = state.iterations;
        for (actor, tokens) in &state.consumed {
            self.consumed.insert(*actor, *tokens);
        }
        Ok(())
    }

    /// Runs whole iterations while every source has tokens for one, at most `iterations`. A further call goes on
    /// where this one stopped, with new input.
    ///
    /// # Errors
    /// A missing input, no end in sight, or a kernel's fault.
    pub fn run(
        &mut self,
        inputs: &BTreeMap<String, Vec<u8>>,
        iterations: Option<u64>,
    ) -> Result<Outcome, InterpretError> {
        self.run_observed(inputs, iterations, &mut |_| ())
    }

    /// [`Self::run`] that tells of all tokens on all channels, firing by firing: no token is told of before those that it
    /// was made from.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_observed(
        &mut self,
        inputs: &BTreeMap<String, Vec<u8>>,
        iterations: Option<u64>,
        observer: &mut impl FnMut(Written<'_>),
    ) -> Result<Outcome, InterpretError> {
        let mut feeds: TiVec<ActorId, &[u8]> = TiVec::new();
        let mut sinks: TiVec<ActorId, Vec<u8>> = TiVec::new();
        let mut limit = iterations;
        for node in &self.nodes {
            sinks.push(Vec::new());
            if node.role != Role::Source {
                feeds.push(&[]);
                continue;
            }
            let bytes = inputs
                .get(&node.name)
                .ok_or_else(|| InterpretError::NoInput {
                    source_name: node.name.clone(),
                })?;

            let port = &node.outputs[0];
            let iteration_bytes =
                node.firings * port.rate * self.streams[port.channel].token_bytes as u64;
            let whole_iterations = bytes.len() as u64 / iteration_bytes.max(1);
            limit = Some(limit.map_or(whole_iterations, |known| known.min(whole_iterations)));
            feeds.push(bytes);
        }
        let limit = limit.ok_or(InterpretError::Endless)?;

        let mut ports = Vec::new();
        for iteration in 0..limit {
            self.iterate(iteration, &mut feeds, &mut sinks, &mut ports, observer)?;
        }
        Ok(self.outcome(limit, &feeds, sinks))
    }

    /// Fires every actor q times, in the order in which tokens become available.
    fn iterate(
        &mut self,
        iteration: u64,
        feeds: &mut TiVec<ActorId, &[u8]>,
        sinks: &mut TiVec<ActorId, Vec<u8>>,
        ports: &mut Vec<RawPort>,
        observer: &mut impl FnMut(Written<'_>),
    ) -> Result<(), InterpretError> {
        let mut left: TiVec<ActorId, u64> = self.nodes.iter().map(|n| n.firings).collect();
        let mut ready: VecDeque<ActorId> = self.nodes.keys().collect();
        let mut queued: TiVec<ActorId, bool> = vec![true; left.len()].into();
        while let Some(actor) = ready.pop_front() {
            queued[actor] = false;
            if left[actor] == 0 || !self.is_ready(actor) {
                continue;
            }

            let firings = self.nodes[actor].firings;
            let firing = (self.iterations + 1) * firings - left[actor];
            self.follow_changes(actor, firing)?;
            self.fire(actor, &mut feeds[actor], &mut sinks[actor], ports)?;
            self.tell_written(actor, observer);
            self.drop_read(actor);
            left[actor] -= 1;

            // Only this actor and those that read from it can have become ready.
            let mut wake = |a: ActorId| {
                if left[a] > 0 && !std::mem::replace(&mut queued[a], true) {
                    ready.push_back(a);
                }
            };
            wake(actor);
            for port in &self.nodes[actor].outputs {
                self.streams[port.channel]
                    .readers
                    .iter()
                    .copied()
                    .for_each(&mut wake);
            }
        }

        let mut waiting = left
            .iter_enumerated()
            .filter(|(_, l)| **l > 0)
            .map(|(a, _)| a);
        if let Some(first) = waiting.next() {
            return Err(InterpretError::Deadlock {
                iteration,
                waiting: 1 + waiting.count(),
                first: self.nodes[first].name.clone(),
            });
        }
        self.iterations += 1;
        Ok(())
    }

    /// Gives an actor the kernel for its next firing, and notes what that firing's tokens are made from. Firings are
    /// counted from the start of the run.
    fn follow_changes(&mut self, actor: ActorId, firing: u64) -> Result<(), InterpretError> {
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        let node = &mut self.nodes[actor];
        if node.role == Role::Source {
            let port = &node.outputs[0];
            let first = self.consumed.get(&actor).copied().unwrap_or(0);
            live.write_source(actor, port.channel, first, port.rate);
            return Ok(());
        }

        let windows = node.inputs.iter().map(|port| {
            let stream = &self.streams[port.channel];
            (
                port.channel,
                stream.next[port.reader] - stream.first,
                port.window,
            )
        });
        // A state is a channel with one token, which is replaced.
        let states = node.states.iter().map(|&channel| (channel, 0, 1));
        let origin = live.origin_of(windows.chain(states));
        if let Some(made) = live.kernel_for(actor, firing, node.firings, &origin) {
            let kernel = made.map_err(|source| InterpretError::Kernel {
                actor: node.name.clone(),
                source,
            })?;
            let lines = kernel.scratch_bytes().div_ceil(64);
            if self.scratch.len() < lines {
                self.scratch.resize(lines, Line([0; 64]));
            }
            node.kernel = Some(kernel);
        }
        for port in &node.outputs {
            live.write(port.channel, &origin, port.rate);
        }
        for &channel in &node.states {
            live.drop_first(channel, 1);
            live.write(channel, &origin, 1);
        }
        Ok(())
    }

    fn is_ready(&self, actor: ActorId) -> bool {
        self.nodes[actor].inputs.iter().all(|port| {
            let stream = &self.streams[port.channel];
            stream.next[port.reader] + port.window <= stream.written
        })
    }

    /// One firing. Space for the outputs is made first, because that may move a queue that is also read.
    fn fire(
        &mut self,
        actor: ActorId,
        feed: &mut &[u8],
        sink: &mut Vec<u8>,
        ports: &mut Vec<RawPort>,
    ) -> Result<(), InterpretError> {
        let Self {
            nodes,
            streams,
            scratch,
            consumed,
            ..
        } = self;
        let node = &nodes[actor];

        for port in &node.outputs {
            let stream = &mut streams[port.channel];
            stream.queue.grow(port.rate as usize * stream.token_bytes);
        }

        match &node.kernel {
            Some(kernel) => {
                let is_open = node.gate.as_ref().is_none_or(|g| g.is_open(node, streams));
                if is_open {
                    fire_kernel(node, kernel.as_ref(), streams, scratch, ports)?;
                }
                if let Some(gate) = &node.gate {
                    gate.settle(node, is_open, streams);
                }
            }
            None => fire_stream(actor, node, streams, feed, sink, consumed),
        }

        for port in &node.outputs {
            streams[port.channel].written += port.rate;
        }
        Ok(())
    }

    /// Tells of what an actor's last firing has written.
    fn tell_written(&self, actor: ActorId, observer: &mut impl FnMut(Written<'_>)) {
        let node = &self.nodes[actor];
        let outputs = node.outputs.iter().map(|port| (port.channel, port.rate));
        let states = node.states.iter().map(|&channel| (channel, 1));
        for (channel, tokens) in outputs.chain(states) {
            let stream = &self.streams[channel];
            let live = stream.queue.live();
            let bytes = &live[live.len() - tokens as usize * stream.token_bytes..];
            observer(Written { channel, bytes });
        }
    }

    /// Drops what an actor's last firing was the last to read, and what it has written for nobody.
    fn drop_read(&mut self, actor: ActorId) {
        let Self {
            nodes,
            streams,
            live,
            ..
        } = self;
        let node = &nodes[actor];
        for port in &node.inputs {
            let stream = &mut streams[port.channel];
            stream.next[port.reader] += port.rate;
            let dropped = stream.drop_read();
            if let Some(live) = live {
                live.drop_first(port.channel, dropped);
            }
        }

        // What nobody reads would pile up.
        for port in &node.outputs {
            let stream = &mut streams[port.channel];
            if stream.next.is_empty() {
                let dropped = stream.drop_read();
                if let Some(live) = live {
                    live.drop_first(port.channel, dropped);
                }
            }
        }
    }

    fn outcome(
        &self,
        iterations: u64,
        feeds: &TiVec<ActorId, &[u8]>,
        sinks: TiVec<ActorId, Vec<u8>>,
    ) -> Outcome {
        let with_role = |role| {
            self.nodes
                .iter_enumerated()
                .filter(move |(_, n)| n.role == role)
        };
        let mut outputs = BTreeMap::new();
        for ((_, node), bytes) in self.nodes.iter_enumerated().zip(sinks) {
            if node.role == Role::Sink {
                outputs.insert(node.name.clone(), bytes);
            }
        }
        Outcome {
            outputs,
            iterations,
            leftover: with_role(Role::Source)
                .map(|(id, node)| {
                    let token = self.streams[node.outputs[0].channel].token_bytes;
                    (node.name.clone(), (feeds[id].len() / token) as u64)
                })
                .collect(),
            state: State {
                iterations: self.iterations,
                channels: self.streams.iter().map(Stream::border).collect(),
                consumed: self.consumed.iter().map(|(a, t)| (*a, *t)).collect(),
                changes: Vec::new(),
            },
        }
    }
}

fn fire_kernel(
    node: &ResolvedActor,
    kernel: &dyn Kernel,
    streams: &mut TiVec<ChannelId, Stream>,
    scratch: &mut [Line],
    ports: &mut Vec<RawPort>,
) -> Result<(), InterpretError> {
    // The order that kernels are promised: inputs, outputs, states.
    ports.clear();
    for port in node.op_inputs() {
        let stream = &mut streams[port.channel];
        let window_start = stream.byte_at(stream.next[port.reader]);
        let bytes = port.window as usize * stream.token_bytes;
        let ptr = stream.queue.base().wrapping_add(window_start);
        ports.push(RawPort {
            ptr,
            bytes,
            dtype: stream.dtype,
        });
    }
    for port in &node.outputs {
        let stream = &mut streams[port.channel];
        let bytes = port.rate as usize * stream.token_bytes;
        // `fire` has made room for the new tokens at the end.
        let output_start = stream.queue.end - bytes;
        let ptr = stream.queue.base().wrapping_add(output_start);
        ports.push(RawPort {
            ptr,
            bytes,
            dtype: stream.dtype,
        });
    }
    for &channel in node.op_states() {
        let stream = &mut streams[channel];
        let bytes = stream.token_bytes;
        // A state's queue holds its one token, read and written in place.
        let state_start = stream.queue.start;
        let ptr = stream.queue.base().wrapping_add(state_start);
        ports.push(RawPort {
            ptr,
            bytes,
            dtype: stream.dtype,
        });
    }

    let shape = node.shape();
    // `new` sized the scratch for the hungriest kernel.
    let scratch = Scratch(scratch.as_mut_ptr().cast::<u8>(), kernel.scratch_bytes());
    // SAFETY: `ports` holds the counted ports; every pointer lies in a queue's or the scratch's live allocation
    // (`grow` made room for the outputs, `is_ready` found the windows, a state's queue holds its one token); queues of
    // different channels are disjoint, and within one channel the output lies behind everything written before, so
    // no input overlaps an output. Queue starts are multiples of the token size in 8-aligned memory, so every element
    // is aligned.
    let mut io = unsafe { Io::new(&shape, ports.as_ptr(), &scratch) };
    kernel.fire(&mut io).map_err(|fault| InterpretError::Fault {
        actor: node.name.clone(),
        fault,
    })
}

fn fire_stream(
    actor: ActorId,
    node: &ResolvedActor,
    streams: &mut TiVec<ChannelId, Stream>,
    feed: &mut &[u8],
    sink: &mut Vec<u8>,
    consumed: &mut BTreeMap<ActorId, u64>,
) {
    if let Some(port) = node.outputs.first() {
        let stream = &mut streams[port.channel];
        let bytes = port.rate as usize * stream.token_bytes;
        let (now, later) = feed.split_at(bytes);
        let end = stream.queue.end;
        bytemuck::cast_slice_mut::<Word, u8>(&mut stream.queue.words)[end - bytes..end]
            .copy_from_slice(now);
        *feed = later;
        *consumed.entry(actor).or_insert(0) += port.rate;
    }
    if let Some(port) = node.inputs.first() {
        let stream = &streams[port.channel];
        let at = stream.byte_at(stream.next[port.reader]);
        let bytes = port.rate as usize * stream.token_bytes;
        sink.extend_from_slice(
            &bytemuck::cast_slice::<Word, u8>(&stream.queue.words)[at..at + bytes],
        );
    }
}

#[cfg(test)]
mod tests;
