//! Gates: `gate: "active"` as it is written, and gated actors in the graph.
//!
//! Gates come after types and ports are known and the graph is built: an op never sees its gate. Each gated actor gets one
//! more input, which reads the gate's channel at the actor's own pace; what its closed firings give follows from who reads
//! its outputs (see [`Answers`]).

use std::collections::BTreeSet;

use bytes::Bytes;
use zbmd_backends::kernel::Io;
use zbmd_backends::op::{Registry, ResolveCx};
use zbmd_ir::math::gcd_u64;
use zbmd_ir::{
    Actor, ActorId, BlobId, Channel, ChannelId, ClosedAnswer, Endpoint, Gate, Graph, InPort,
    Params, PortChannels, Reader, Role, TiSlice, TiVec, Value, gate_type_fault, limits,
};

use crate::build::BuiltGraph;
use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, one_of};
use crate::format;
use crate::net::{End, Net, NetGate};
use crate::parse::{Node, NodeKind};
use crate::read::{self, Fields};
use crate::source::{Span, Spanned};

/// The word before the brackets.
const NAME: &str = "Gate";
/// The op that repeats every token.
const REPEAT: &str = "Hold";
/// What `closed` and `state` can be.
const ANSWERS: [ClosedAnswer; 2] = [ClosedAnswer::Hold, ClosedAnswer::Zero];

/// A gate as it is written.
pub(crate) struct GateDecl {
    /// The output that says whether it is open.
    pub(crate) from: Spanned<String>,
    /// `None`: hold, but of bursts nothing.
    pub(crate) closed: Option<ClosedAnswer>,
    pub(crate) states: ClosedAnswer,
    /// Firings that it stays open after the last token that opens it.
    pub(crate) after: u64,
}

/// Reads `"active"` or `Gate("active", closed: zero)`.
pub(crate) fn read(node: &Node, sink: &mut Sink) -> Option<GateDecl> {
    let (span, args) = match &node.kind {
        NodeKind::Str(name) => {
            return Some(GateDecl {
                from: Spanned::new(name.clone(), node.span),
                closed: None,
                states: ClosedAnswer::Hold,
                after: 0,
            });
        }
        NodeKind::Call(Some(word), args) if word.value == NAME => (node.span, args),
        _ => {
            let expected = "an output in quotes, or `Gate(\"active\", closed: zero)`";
            sink.push(read::wrong_kind(node, expected));
            return None;
        }
    };

    let mut fields = Fields::of(&format::GATE, "a gate", span, args, sink);
    let from = fields.take_or_positional("from");
    if from.is_none() {
        fields.missing("from", "\"active\"", sink);
    }
    let closed = fields.take("closed").map(|node| answer(node, sink));
    let states = fields.take("state").map(|node| answer(node, sink));
    let after = fields.take("after");
    fields.done(sink);

    let from = read::string(from?, "an output in quotes", sink)?;
    // Half of the limit on windows: it may be counted in tokens of which a firing has several.
    let after = match after {
        Some(node) => {
            read::count(node, "a number of firings", 0, limits::MAX_RATE / 2, sink)?.value
        }
        None => 0,
    };
    // An answer that was written and could not be read has been reported.
    let closed = match closed {
        Some(answer) => Some(answer?),
        None => None,
    };
    let states = match states {
        Some(answer) => answer?,
        None => ClosedAnswer::Hold,
    };
    Some(GateDecl {
        from,
        closed,
        states,
        after,
    })
}

fn answer(node: &Node, sink: &mut Sink) -> Option<ClosedAnswer> {
    let word = read::word(node, "`hold` or `zero`", sink)?;
    let found = ANSWERS.iter().find(|answer| answer.name() == word.value);
    if found.is_none() {
        let known = ANSWERS.iter().map(|answer| answer.name());
        sink.push(
            Diagnostic::new(
                Code::E0203,
                format!("a closed gate cannot give `{}`", word.value),
            )
            .primary(word.span, "should be `hold` or `zero`")
            .help(one_of(known)),
        );
    }
    found.copied()
}

/// Puts the gates of a net on the actors of its graph. What is wrong goes to `sink`; after errors nothing is done, because
/// the graph has gaps.
pub(crate) fn connect(
    net: &Net,
    built: &mut BuiltGraph,
    registry: &Registry,
    blobs: &TiSlice<BlobId, Bytes>,
    sink: &mut Sink,
) {
    if net.gates.is_empty() || sink.errors() > 0 {
        return;
    }
    // Without a repetition vector nobody knows how many tokens a gate has: the analysis says why.
    let Ok(repetition) = zbmd_scheduler::repetition(&built.graph) else {
        return;
    };
    let mut connector = Connector {
        net,
        port_channels: built.graph.port_channels(),
        components: components(&built.graph),
        gate_channels: BTreeSet::new(),
        repetition,
        built,
        registry,
        blobs,
        sink,
    };
    // All of them first: an output that opens a gate is read, whichever of the gates comes first.
    let ends = net.gates.iter().filter_map(|gate| gate.from.as_ref());
    let channels = ends.filter_map(|from| connector.gate_channel(from));
    connector.gate_channels = channels.map(|channel| channel.id).collect();
    for index in 0..net.gates.len() {
        connector.connect_gate(index);
    }
}

struct Connector<'a> {
    net: &'a Net,
    /// Of the graph without gates, as are those that follow.
    port_channels: PortChannels,
    /// Parts of the graph that no channel joins, by any of their actors.
    components: TiVec<ActorId, ActorId>,
    /// Channels that open gates.
    gate_channels: BTreeSet<ChannelId>,
    repetition: TiVec<ActorId, u64>,
    built: &'a mut BuiltGraph,
    registry: &'a Registry,
    blobs: &'a TiSlice<BlobId, Bytes>,
    sink: &'a mut Sink,
}

/// A channel that gates read.
struct GateChannel {
    id: ChannelId,
    writer: ActorId,
    /// Tokens of an iteration of the writer's part of the graph.
    tokens: u64,
}

/// How the gate of one actor reads its channel.
struct GatePace {
    /// How often each token is repeated first.
    repeats: u64,
    /// Tokens of a firing.
    rate: u64,
}

impl Connector<'_> {
    fn connect_gate(&mut self, index: usize) {
        let gate = &self.net.gates[index];
        // What could not be read, and ports that are not there, have been reported.
        let Some(channel) = gate.from.as_ref().and_then(|from| self.gate_channel(from)) else {
            return;
        };
        if !self.check(gate, &channel) {
            return;
        }

        let gated: BTreeSet<ActorId> = gate.actors.iter().map(|&id| ActorId::from(id)).collect();
        // Channels of repeated tokens, by how often they are.
        let mut repeated: Vec<(u64, ChannelId)> = vec![(1, channel.id)];
        for &actor in &gated {
            let Some(pace) = self.pace(gate, &channel, &gated, actor) else {
                return;
            };
            let known = repeated
                .iter()
                .find(|(repeats, _)| *repeats == pace.repeats);
            let read_channel = match known {
                Some((_, known)) => *known,
                None => {
                    let Some(added) = self.add_repeat(gate, channel.id, pace.repeats) else {
                        return;
                    };
                    repeated.push((pace.repeats, added));
                    added
                }
            };
            self.gate_actor(gate, &gated, actor, read_channel, pace.rate);
        }
    }

    /// The channel of the output that opens a gate.
    fn gate_channel(&self, from: &End) -> Option<GateChannel> {
        let writer = ActorId::from(from.actor);
        let actor = &self.built.graph.actors[writer];
        let mut outputs = actor.outputs.iter();
        let port = match &from.port {
            Some(name) => outputs.position(|port| port.name == *name)?,
            None => 0,
        };
        let id = (*self.port_channels.outputs[writer].get(port)?)?;
        Some(GateChannel {
            id,
            writer,
            tokens: self.repetition[writer].saturating_mul(actor.outputs[port].rate),
        })
    }

    /// Refuses a gate of the wrong type, and actors that it cannot gate.
    fn check(&mut self, gate: &NetGate, channel: &GateChannel) -> bool {
        let writer_name = &self.net.actors[channel.writer.index()].name;
        let token = &self.built.graph.channels[channel.id].token;
        if let Some(why) = gate_type_fault(token) {
            let message = format!("the gate of `{}` {why}", gate.name);
            self.sink.push(
                Diagnostic::new(Code::E0313, message)
                    .primary(gate.span, format!("`{writer_name}` writes {token}"))
                    .help("decide first: `Threshold(0.5)`, or `Expr(\"x > 0.5\")` of one number"),
            );
            return false;
        }

        for &id in &gate.actors {
            let actor = &self.built.graph.actors[ActorId::from(id)];
            let name = &actor.name;
            let (message, help) = if actor.role != Role::Compute {
                (
                    format!(
                        "`{name}` is a stream: its tokens come and go whether a gate is open or not"
                    ),
                    "gate the actor behind the source, or in front of the sink",
                )
            } else if actor.gate().is_some() {
                (
                    format!("`{name}` is gated twice"),
                    "gate it once, by both: `Expr(\"a && b\")`",
                )
            } else if id == channel.writer.index() {
                (
                    format!(
                        "`{name}` opens the gate that it is behind: once closed, it never opens again"
                    ),
                    "put the actor that decides outside of what it gates",
                )
            } else {
                continue;
            };
            let diagnostic = Diagnostic::new(Code::E0313, message)
                .primary(gate.span, "gated here")
                .help(help);
            self.sink.push(diagnostic);
            return false;
        }
        true
    }

    /// How an actor reads its gate: each firing at least one token, repeated if there are fewer.
    fn pace(
        &mut self,
        gate: &NetGate,
        channel: &GateChannel,
        gated: &BTreeSet<ActorId>,
        actor: ActorId,
    ) -> Option<GatePace> {
        let firings = self.repetition[actor];
        let component = self.components[actor];
        let tokens = if component == self.components[channel.writer] {
            channel.tokens
        } else {
            // Nothing says how the two parts of the graph keep in step but the gate: a token for each round of what it
            // gates.
            let others = gated.iter().filter(|&&id| self.components[id] == component);
            others.fold(0, |common, &id| gcd_u64(common, self.repetition[id]))
        };

        if tokens.is_multiple_of(firings) {
            return Some(GatePace {
                repeats: 1,
                rate: tokens / firings,
            });
        }
        if firings.is_multiple_of(tokens) {
            return Some(GatePace {
                repeats: firings / tokens,
                rate: 1,
            });
        }
        let name = &self.built.graph.actors[actor].name;
        let message = format!(
            "`{name}` fires {firings} times in an iteration, its gate has {tokens} tokens: neither is a multiple of the other"
        );
        self.sink.push(
            Diagnostic::new(Code::E0313, message)
                .primary(gate.span, "gated here")
                .help("give the gate a token a firing: `Decimate` keeps some, `Hold` repeats them"),
        );
        None
    }

    /// An actor that repeats the tokens of a channel; its own channel.
    fn add_repeat(
        &mut self,
        gate: &NetGate,
        channel: ChannelId,
        repeats: u64,
    ) -> Option<ChannelId> {
        let token = self.built.graph.channels[channel].token.clone();
        let factor = i64::try_from(repeats).unwrap_or(i64::MAX);
        let params = Params::from([("factor".to_owned(), Value::Int(factor))]);
        let port_types = [(String::new(), token.clone())].into();
        let cx = ResolveCx {
            params: &params,
            connected: &[String::new()],
            types: &port_types,
            blobs: self.blobs,
        };
        let signature = match self.registry.resolve(REPEAT, &cx) {
            Ok(signature) => signature,
            Err(error) => {
                let message = format!("cannot repeat the tokens of a gate: {error}");
                let diagnostic = Diagnostic::new(Code::E0313, message)
                    .primary(gate.span, "gated here")
                    .help("give the gate a token for each firing");
                self.sink.push(diagnostic);
                return None;
            }
        };

        let graph = &mut self.built.graph;
        let origins = &mut self.built.origins;
        let actor = graph.actors.push_and_get_key(Actor {
            name: format!("{}.gate{repeats}", gate.name),
            role: Role::Compute,
            op: REPEAT.to_owned(),
            params,
            inputs: signature.inputs,
            outputs: signature.outputs,
            state: Vec::new(),
            in_place: Vec::new(),
        });
        origins.actors.push(gate.span);
        origins.ops.push(gate.span);
        let port = Endpoint { actor, port: 0 };
        graph.channels[channel]
            .readers
            .push(Reader { to: port, delay: 0 });
        origins.channels[channel].push((gate.span, gate.span));
        origins.channels.push(Vec::new());
        Some(graph.channels.push_and_get_key(Channel {
            from: port,
            readers: Vec::new(),
            token,
            initial: Vec::new(),
        }))
    }

    /// Puts the gate on one actor.
    fn gate_actor(
        &mut self,
        gate: &NetGate,
        gated: &BTreeSet<ActorId>,
        id: ActorId,
        channel: ChannelId,
        rate: u64,
    ) {
        let graph = &self.built.graph;
        let answers = Answers {
            gate,
            gated,
            graph,
            port_channels: &self.port_channels,
            gate_channels: &self.gate_channels,
            written_actors: self.net.actors.len(),
        };
        let mut output_answers = Vec::new();
        for port in 0..graph.actors[id].outputs.len() as u32 {
            match answers.of_output(id, port) {
                Ok(answer) => output_answers.push(answer),
                Err(refusal) => return self.sink.push(refusal),
            }
        }

        // Firings of an iteration may be many: what does not fit is refused by the limit on windows.
        let extra = rate.saturating_mul(gate.after);
        let port = InPort {
            name: free_name(&graph.actors[id]),
            token: graph.channels[channel].token.clone(),
            rate,
            window: rate.saturating_add(extra),
        };
        let before = &graph.actors[id];
        let op_inputs = before.inputs.len() as u32;
        let op_outputs = before.outputs.len();
        let after = before.with_gate(port, gate.states, |index| output_answers[index as usize]);
        let held_outputs = (0..op_outputs as u32).filter(|&index| {
            before.state_of_output(index).is_none()
                && output_answers[index as usize] == ClosedAnswer::Hold
        });
        let held_outputs: Vec<u32> = held_outputs.collect();
        if !self.check_limits(gate, &after, extra) {
            return;
        }

        let to = Endpoint {
            actor: id,
            port: op_inputs,
        };
        self.add_gate_reader(gate.span, channel, to, extra);
        self.built.graph.actors[id] = after;
        for (index, output) in held_outputs.into_iter().enumerate() {
            self.add_held_channel(gate.span, id, op_inputs, op_outputs, index, output);
        }
    }

    /// Refuses more states than a kernel's call has, and windows beyond the limit.
    fn check_limits(&mut self, gate: &NetGate, actor: &Actor, extra: u64) -> bool {
        let states = actor.state.len();
        let message = if states > Io::MAX_MUT_PORTS {
            format!(
                "`{}` has {states} states and held outputs, more than the limit of {}",
                actor.name,
                Io::MAX_MUT_PORTS
            )
        } else if extra > limits::MAX_INITIAL_BYTES / 8 {
            format!(
                "`{}` looks {extra} tokens of its gate back, more than the limit of {}",
                actor.name,
                limits::MAX_INITIAL_BYTES / 8
            )
        } else {
            return true;
        };
        self.sink.push(
            Diagnostic::new(Code::E0505, message)
                .primary(gate.span, "gated here")
                .help("write `closed: zero`, or a smaller `after`"),
        );
        false
    }

    /// A reader that looks `delay` tokens back: zeros at first.
    fn add_gate_reader(&mut self, span: Span, id: ChannelId, to: Endpoint, delay: u64) {
        let channel = &mut self.built.graph.channels[id];
        let missing = delay.saturating_sub(channel.history());
        let mut initial = vec![0; (missing * channel.token.bytes()) as usize];
        initial.append(&mut channel.initial);
        channel.initial = initial;
        channel.readers.push(Reader { to, delay });
        self.built.origins.channels[id].push((span, span));
    }

    /// The state that holds an output. Before the first open firing it has what came before the first token.
    fn add_held_channel(
        &mut self,
        span: Span,
        actor: ActorId,
        gate_input: u32,
        op_outputs: usize,
        index: usize,
        output: u32,
    ) {
        let graph = &mut self.built.graph;
        let held_output = (op_outputs + index) as u32;
        let token = graph.actors[actor].outputs[held_output as usize]
            .token
            .clone();
        let needed = token.bytes() as usize;
        let channel = self.port_channels.outputs[actor][output as usize];
        let before = channel.map_or(&[][..], |channel| {
            graph.channels[channel].initial.as_slice()
        });
        let known = before.len().min(needed);
        let mut initial = vec![0; needed - known];
        initial.extend_from_slice(&before[before.len() - known..]);

        let from = Endpoint {
            actor,
            port: held_output,
        };
        let to = Endpoint {
            actor,
            port: gate_input + 1 + index as u32,
        };
        graph.channels.push(Channel {
            from,
            readers: vec![Reader { to, delay: 1 }],
            token,
            initial,
        });
        self.built.origins.channels.push(vec![(span, span)]);
    }
}

/// What the outputs of a gated part give while it is closed, by who reads them:
///
/// - an actor that is not behind this gate, or a gate: what the gate's `closed` says;
/// - gated actors only, at least one of which looks at tokens of earlier firings: what `state` says, because these are what
///   the part remembers, as feedback is;
/// - other gated actors, or nobody: zeros, which nobody looks at.
struct Answers<'a> {
    gate: &'a NetGate,
    gated: &'a BTreeSet<ActorId>,
    graph: &'a Graph,
    port_channels: &'a PortChannels,
    gate_channels: &'a BTreeSet<ChannelId>,
    /// Actors of the model; those behind them are the compiler's.
    written_actors: usize,
}

impl Answers<'_> {
    /// The readers of a channel; behind an actor that the compiler has put in for a second delay, those of its own channel.
    fn add_readers(&self, channel: &Channel, readers: &mut Vec<Reader>) {
        for reader in &channel.readers {
            let is_written = reader.to.actor.index() < self.written_actors;
            let behind = match is_written {
                true => None,
                false => self.port_channels.outputs[reader.to.actor].first().copied(),
            };
            match behind.flatten() {
                Some(behind) => self.add_readers(&self.graph.channels[behind], readers),
                None => readers.push(*reader),
            }
        }
    }

    /// States are no outputs: what is said of them means nothing.
    fn of_output(&self, actor: ActorId, port: u32) -> Result<ClosedAnswer, Diagnostic> {
        let Some(id) = self.port_channels.outputs[actor][port as usize] else {
            return Ok(ClosedAnswer::Zero);
        };
        let channel = &self.graph.channels[id];
        let mut readers = Vec::new();
        self.add_readers(channel, &mut readers);
        let (inside, outside): (Vec<_>, Vec<_>) = readers
            .into_iter()
            .partition(|reader: &Reader| self.gated.contains(&reader.to.actor));
        let is_seen = !outside.is_empty() || self.gate_channels.contains(&id);
        let is_remembered = inside.iter().any(|reader| reader.delay > 0);

        let closed = match (self.gate.closed, channel.token.burst) {
            (Some(closed), _) => closed,
            (None, true) => ClosedAnswer::Zero,
            (None, false) => ClosedAnswer::Hold,
        };
        match (is_seen, is_remembered) {
            (true, true) if closed != self.gate.states => {
                let output = &self.graph.actors[actor];
                let message = format!(
                    "output `{}` of `{}` is what the gated part remembers and what it gives: a closed gate cannot \
                     give {} inside and {} outside",
                    output.outputs[port as usize].name,
                    output.name,
                    self.gate.states.name(),
                    closed.name()
                );
                Err(Diagnostic::new(Code::E0313, message)
                    .primary(self.gate.span, "gated here")
                    .help("give `closed` and `state` the same value"))
            }
            (true, _) => Ok(closed),
            (false, true) => Ok(self.gate.states),
            (false, false) => Ok(ClosedAnswer::Zero),
        }
    }
}

/// `gate`, or what is free where the op has an input of that name.
fn free_name(actor: &Actor) -> String {
    let mut name = Gate::PARAM.to_owned();
    while actor.inputs.iter().any(|port| port.name == name) {
        name.push('\'');
    }
    name
}

/// For each actor, one that stands for all those that channels join it with. O(readers * log actors).
fn components(graph: &Graph) -> TiVec<ActorId, ActorId> {
    fn root(parents: &mut TiVec<ActorId, ActorId>, mut actor: ActorId) -> ActorId {
        while parents[actor] != actor {
            parents[actor] = parents[parents[actor]];
            actor = parents[actor];
        }
        actor
    }

    let mut parents: TiVec<ActorId, ActorId> = graph.actors.keys().collect();
    for channel in &graph.channels {
        for reader in &channel.readers {
            let writer = root(&mut parents, channel.from.actor);
            let reader = root(&mut parents, reader.to.actor);
            parents[reader.max(writer)] = reader.min(writer);
        }
    }
    for actor in graph.actors.keys() {
        let standing = root(&mut parents, actor);
        parents[actor] = standing;
    }
    parents
}
