//! From the net and its signatures to the graph: ports get numbers, channels their initial tokens, states their loops.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_backends::op::{Registry, ResolveCx, Signature, StateSpec};
use zbmd_ir::{
    Actor, ActorId, Channel, ChannelId, Endpoint, Graph, InPort, OutPort, Params, Reader, Role,
    StatePort, TiVec, Value, limits,
};

use crate::codes::Code;
use crate::deadlines;
use crate::diag::{Diagnostic, Sink};
use crate::infer::{check_link, input_port, output_port, unconnected, unknown_port};
use crate::net::{End, Link, Net};
use crate::source::{Span, Spanned};
use crate::values::{Files, initial_limit};

/// A graph, and where everything in it was written.
#[derive(Debug)]
pub(crate) struct BuiltGraph {
    pub(crate) graph: Graph,
    pub(crate) origins: Origins,
}

/// Where everything in the graph was written, and the devices that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    /// Names of actors in the text.
    pub(crate) actors: TiVec<ActorId, Span>,
    /// Ops of actors in the text.
    pub(crate) ops: TiVec<ActorId, Span>,
    /// Both ends of each reader of each channel: `(from, to)`.
    pub(crate) channels: TiVec<ChannelId, Vec<(Span, Span)>>,
    /// Stated sample rates.
    pub(crate) sample_rates: BTreeMap<ActorId, Span>,
    /// Deadlines of sinks.
    pub(crate) deadlines: BTreeMap<ActorId, Span>,
    /// Devices asked for.
    pub(crate) pins: BTreeMap<ActorId, Spanned<String>>,
}

impl Origins {
    /// The origins of a graph that was not written as text.
    pub(crate) fn nowhere(graph: &Graph) -> Self {
        let no_ends = |channel: &Channel| vec![(Span::NONE, Span::NONE); channel.readers.len()];
        Self {
            actors: graph.actors.iter().map(|_| Span::NONE).collect(),
            ops: graph.actors.iter().map(|_| Span::NONE).collect(),
            channels: graph.channels.iter().map(no_ends).collect(),
            ..Self::default()
        }
    }
}

/// The op that copies its input to its outputs.
const FORK: &str = "Fork";

/// An output port, by actor and index.
type WritingPort = (usize, u32);

/// A reader with its place among the ports and the tokens that it sees first.
struct PlacedReader<'a> {
    link: &'a Link,
    port: u32,
    /// History, then initial tokens.
    first_tokens: Vec<u8>,
    delay: u64,
}

impl PlacedReader<'_> {
    fn endpoint(&self) -> Endpoint {
        Endpoint {
            actor: ActorId::from(self.link.to.actor),
            port: self.port,
        }
    }

    /// Where both ends were written.
    fn spans(&self) -> (Span, Span) {
        (self.link.from.span, self.link.to.span)
    }
}

/// A port that an end of a link names.
struct FoundPort<'a, P> {
    index: u32,
    port: &'a P,
}

type ReadersByPort<'a> = BTreeMap<WritingPort, Vec<PlacedReader<'a>>>;

/// Readers of one output whose first tokens agree, so that they can share a channel.
struct ReaderGroup<'a> {
    readers: Vec<&'a PlacedReader<'a>>,
    /// The longest of their first tokens: all others are its end.
    longest: &'a [u8],
}

/// Makes the graph; after errors, which go to `sink`, it has gaps.
pub(crate) fn build(
    net: &Net,
    signatures: &[Option<Signature>],
    registry: &Registry,
    files: &Files,
    sink: &mut Sink,
) -> BuiltGraph {
    let mut builder = Builder {
        net,
        signatures,
        registry,
        files,
        sink,
        graph: Graph {
            name: net.name.clone(),
            ..Graph::default()
        },
        origins: Origins::default(),
        initial_bytes: 0,
    };

    // Actors first: channels name their ports by number. The order of channels is the order of their ids, and with that
    // of the bytes of a bundle: those that are read, those that are not, states.
    builder.add_actors();
    let readers_by_port = builder.place_readers();
    builder.check_inputs(&readers_by_port);
    builder.add_read_channels(&readers_by_port);
    builder.add_unread_channels(&readers_by_port);
    builder.add_state_channels();
    builder.record_pins();
    BuiltGraph {
        graph: builder.graph,
        origins: builder.origins,
    }
}

struct Builder<'a> {
    net: &'a Net,
    signatures: &'a [Option<Signature>],
    registry: &'a Registry,
    files: &'a Files,
    sink: &'a mut Sink,
    graph: Graph,
    origins: Origins,
    /// Bytes of all first tokens so far.
    initial_bytes: u64,
}

impl<'a> Builder<'a> {
    /// All actors, with the state ports after the op's own ports.
    fn add_actors(&mut self) {
        let no_ports = Signature::default();
        for (net_actor, signature) in self.net.actors.iter().zip(self.signatures) {
            let signature = signature.as_ref().unwrap_or(&no_ports);
            let mut actor = Actor {
                name: net_actor.name.clone(),
                role: net_actor.role,
                op: net_actor.op.value.clone(),
                params: net_actor.params.clone(),
                inputs: signature.inputs.clone(),
                outputs: signature.outputs.clone(),
                state: Vec::new(),
                in_place: Vec::new(),
            };

            // The ports of states follow the op's own, as kernels expect them.
            for state in &signature.states {
                add_state_ports(&mut actor, state);
            }

            let actor_id = self.graph.actors.push_and_get_key(actor);
            self.origins.actors.push(net_actor.span);
            self.origins.ops.push(net_actor.op.span);
            let stated_rate = net_actor.param_spans.get("sample_rate");
            if let Some(span) = stated_rate.filter(|_| net_actor.role != Role::Compute) {
                self.origins.sample_rates.insert(actor_id, *span);
            }
            if let Some(span) = net_actor.param_spans.get(deadlines::PARAM)
                && net_actor.role == Role::Sink
            {
                self.origins.deadlines.insert(actor_id, *span);
            }
        }
    }

    /// Gives every link its ports and its first tokens, and groups the links by writing port.
    fn place_readers(&mut self) -> ReadersByPort<'a> {
        let mut readers_by_port: ReadersByPort<'a> = BTreeMap::new();
        for link in &self.net.links {
            // Both ends are looked up first, so that mistakes in both are reported.
            let output = self.find_output(&link.from);
            let input = self.find_input(&link.to);
            let (Some(output), Some(input)) = (output, input) else {
                continue;
            };

            let writing_port = (link.from.actor, output.index);
            let placed_reader = self.place_reader(link, output.port, input);
            let port_readers = readers_by_port.entry(writing_port).or_default();
            port_readers.push(placed_reader);
        }

        readers_by_port
    }

    /// The output that an end names; reports ports that the actor does not have, if its ports are known.
    fn find_output(&mut self, end: &End) -> Option<FoundPort<'a, OutPort>> {
        let signature = self.signatures[end.actor].as_ref()?;
        let Some(index) = output_port(signature, end.port.as_deref()) else {
            self.refuse_port(end, signature, true);
            return None;
        };
        Some(FoundPort {
            index: index as u32,
            port: &signature.outputs[index],
        })
    }

    /// Like [`Self::find_output`], for an input.
    fn find_input(&mut self, end: &End) -> Option<FoundPort<'a, InPort>> {
        let signature = self.signatures[end.actor].as_ref()?;
        let Some(index) = input_port(signature, end.port.as_deref()) else {
            self.refuse_port(end, signature, false);
            return None;
        };
        Some(FoundPort {
            index: index as u32,
            port: &signature.inputs[index],
        })
    }

    fn refuse_port(&mut self, end: &End, signature: &Signature, writes: bool) {
        let actor = &self.net.actors[end.actor];
        self.sink.push(unknown_port(actor, end, signature, writes));
    }

    fn place_reader(
        &mut self,
        link: &'a Link,
        output: &OutPort,
        input: FoundPort<'_, InPort>,
    ) -> PlacedReader<'a> {
        // Errors of this link, and not of those before it, decide.
        let errors_before = self.sink.errors();
        check_link(self.net, link, output, input.port, self.sink);
        let first_tokens = self.first_tokens(link, input.port);

        // A wrong link keeps its reader, so that its input is not called unconnected as well.
        let is_correct = self.sink.errors() == errors_before;
        let first_tokens = first_tokens.filter(|_| is_correct).unwrap_or_default();
        PlacedReader {
            link,
            port: input.index,
            delay: first_tokens.len() as u64 / input.port.token.bytes().max(1),
            first_tokens,
        }
    }

    /// The bytes of history and initial tokens of a reader.
    fn first_tokens(&mut self, link: &Link, input: &InPort) -> Option<Vec<u8>> {
        // All channels together are bounded; memory is not taken for what is refused anyway.
        if self.initial_bytes > limits::MAX_INITIAL_BYTES {
            return None;
        }
        let token = &input.token;
        let mut first_bytes = self.history(link, input)?;
        for tokens in &link.initial {
            first_bytes.extend(tokens.bytes(token, self.sink)?);
        }

        self.initial_bytes = self.initial_bytes.saturating_add(first_bytes.len() as u64);
        // Each link may be within the limit and all of them together beyond it.
        if self.initial_bytes > limits::MAX_INITIAL_BYTES {
            let token_count = first_bytes.len() as u64 / token.bytes().max(1);
            self.sink
                .push(initial_limit(link.to.span, token_count, token));
            return None;
        }

        Some(first_bytes)
    }

    /// The bytes of the tokens that a window covers beyond its rate; zeros where they are not given.
    fn history(&mut self, link: &Link, input: &InPort) -> Option<Vec<u8>> {
        let token = &input.token;
        let extra_tokens = input.window.saturating_sub(input.rate);
        let history_bytes = extra_tokens.saturating_mul(token.bytes());
        if history_bytes > limits::MAX_INITIAL_BYTES {
            let refusal = initial_limit(link.to.span, extra_tokens, token);
            self.sink.push(refusal);
            return None;
        }

        // A window starts with zeros, as if silence had come before.
        let Some(history) = &link.history else {
            return Some(vec![0; history_bytes as usize]);
        };
        let given_bytes = history.bytes(token, self.sink)?;
        if given_bytes.len() as u64 == history_bytes {
            return Some(given_bytes);
        }

        let found_tokens = given_bytes.len() as u64 / token.bytes().max(1);
        let reader_name = &self.net.actors[link.to.actor].name;
        let message = format!(
            "the history has {found_tokens} tokens, `{reader_name}` looks at {extra_tokens} beyond its rate"
        );
        let size_difference = format!(
            "window {} less rate {} is {extra_tokens}",
            input.window, input.rate
        );
        let help = if extra_tokens == 0 {
            "remove `history`; a delay is `initial`".to_owned()
        } else {
            format!("give {extra_tokens} tokens; a delay on top of them is `initial`")
        };
        self.sink.push(
            Diagnostic::new(Code::E0308, message)
                .primary(history.span, format!("{found_tokens} tokens"))
                .context(link.to.span, size_difference)
                .help(help),
        );

        None
    }

    /// Every input must be read from exactly one channel.
    fn check_inputs(&mut self, readers: &ReadersByPort<'_>) {
        // Of two connections the one further down in the text is called the second.
        let mut in_text_order: Vec<&PlacedReader<'_>> = readers.values().flatten().collect();
        in_text_order.sort_by_key(|reader| reader.link.to.span);

        let mut connections: BTreeMap<(usize, u32), &Link> = BTreeMap::new();
        for reader in in_text_order {
            let reader_port = (reader.link.to.actor, reader.port);
            match connections.get(&reader_port) {
                Some(first) => self.refuse_second_connection(reader, first),
                None => {
                    connections.insert(reader_port, reader.link);
                }
            }
        }

        // A link that could not be placed may be the one that is missing.
        let placed_count: usize = readers.values().map(Vec::len).sum();
        if self.net.lost || self.net.links.len() > placed_count {
            return;
        }
        for (actor, signature) in self.signatures.iter().enumerate() {
            let inputs = signature.iter().flat_map(|ports| &ports.inputs);
            for (port, input) in inputs.enumerate() {
                if !connections.contains_key(&(actor, port as u32)) {
                    let refusal = unconnected(&self.net.actors[actor], &input.name);
                    self.sink.push(refusal);
                }
            }
        }
    }

    fn refuse_second_connection(&mut self, reader: &PlacedReader<'_>, first: &Link) {
        let Endpoint { actor, port } = reader.endpoint();
        let actor_name = &self.net.actors[actor.index()].name;
        let input_name = &self.graph.actors[actor].inputs[port as usize].name;
        let message = format!("input `{input_name}` of `{actor_name}` is connected twice");
        self.sink.push(
            Diagnostic::new(Code::E0209, message)
                .primary(reader.link.to.span, "connected again here")
                .context(first.to.span, "first connected here")
                .help("an input reads one channel: add or interleave the streams with an op first"),
        );
    }

    /// The channels of outputs that are read. Readers whose first tokens contradict those of others get a fork of their
    /// own.
    fn add_read_channels(&mut self, readers: &ReadersByPort<'_>) {
        for (&(actor, port), port_readers) in readers {
            let from = Endpoint {
                actor: ActorId::from(actor),
                port,
            };
            let reader_groups = group_readers(port_readers);
            let Some((main_group, forked_groups)) = reader_groups.split_first() else {
                continue;
            };

            // A channel has one row of initial tokens, and each of its readers starts with the last ones of them.
            let main_channel = self.add_channel(from, main_group);
            for (index, group) in forked_groups.iter().enumerate() {
                let fork_number = match forked_groups.len() {
                    1 => String::new(),
                    _ => (index + 1).to_string(),
                };
                if self
                    .add_forked_channel(main_channel, &fork_number, group)
                    .is_none()
                {
                    break;
                }
            }
        }
    }

    /// Adds a fork that reads a channel, and the channel behind it; `None` if that was refused.
    fn add_forked_channel(
        &mut self,
        main_channel: ChannelId,
        number: &str,
        group: &ReaderGroup<'_>,
    ) -> Option<()> {
        let writing_end = self.graph.channels[main_channel].from;

        // Messages about the fork point at the first of the readers that need it.
        let (writer_span, reader_span) = group.readers[0].spans();
        let fork_actor = self.add_fork(writing_end, number, writer_span)?;

        // The fork has one input and one output.
        let fork_port = Endpoint {
            actor: fork_actor,
            port: 0,
        };
        let fork_reader = Reader {
            to: fork_port,
            delay: 0,
        };
        self.graph.channels[main_channel].readers.push(fork_reader);
        self.origins.channels[main_channel].push((writer_span, reader_span));
        self.add_channel(fork_port, group);
        Some(())
    }

    fn add_channel(&mut self, from: Endpoint, group: &ReaderGroup<'_>) -> ChannelId {
        let writing_actor = &self.graph.actors[from.actor];
        let token = writing_actor.outputs[from.port as usize].token.clone();
        let readers = group.readers.iter();
        self.graph.channels.push(Channel {
            from,
            readers: readers
                .map(|reader| Reader {
                    to: reader.endpoint(),
                    delay: reader.delay,
                })
                .collect(),
            token,
            initial: group.longest.to_vec(),
        });

        let spans = group.readers.iter().map(|reader| reader.spans());
        self.origins.channels.push_and_get_key(spans.collect())
    }

    /// An actor that copies one channel into another.
    fn add_fork(&mut self, from: Endpoint, number: &str, span: Span) -> Option<ActorId> {
        let writer = &self.graph.actors[from.actor];
        let output = &writer.outputs[from.port as usize];

        // State ports are not counted: an op with one output and states needs no port in the name.
        let own_outputs = writer.outputs.len() - writer.state.len();
        let port_suffix = match own_outputs {
            0 | 1 => String::new(),
            _ => format!(".{}", output.name),
        };
        let name = format!("{}{port_suffix}.fork{number}", writer.name);

        let params = Params::from([("outputs".to_owned(), Value::Int(1))]);
        let port_types = [(String::new(), output.token.clone())].into();
        let cx = ResolveCx {
            params: &params,
            connected: &[String::new()],
            types: &port_types,
            blobs: &self.files.blobs,
        };

        self.registry.op(FORK)?;
        match self.registry.resolve(FORK, &cx) {
            Ok(signature) => {
                self.graph.actors.push(Actor {
                    name,
                    role: Role::Compute,
                    op: FORK.to_owned(),
                    params,
                    inputs: signature.inputs,
                    outputs: signature.outputs,
                    state: Vec::new(),
                    in_place: Vec::new(),
                });
                self.origins.actors.push(span);
                Some(self.origins.ops.push_and_get_key(span))
            }
            Err(error) => {
                let message = format!("cannot copy the output for a second delay: {error}");
                self.sink.push(
                    Diagnostic::new(Code::E0309, message)
                        .primary(span, "its readers start with different tokens")
                        .help("give all readers the same initial tokens"),
                );
                None
            }
        }
    }

    /// Outputs that nobody reads: a channel without readers, and a warning unless the model states it.
    fn add_unread_channels(&mut self, readers: &ReadersByPort<'_>) {
        let dropped_ports = self.dropped_outputs();
        for (actor, signature) in self.signatures.iter().enumerate() {
            let outputs = signature.iter().flat_map(|ports| &ports.outputs);
            for (port, output) in outputs.enumerate() {
                let writing_port = (actor, port as u32);
                if readers.contains_key(&writing_port) {
                    continue;
                }

                let from = Endpoint {
                    actor: ActorId::from(actor),
                    port: port as u32,
                };
                let no_readers = ReaderGroup {
                    readers: Vec::new(),
                    longest: &[],
                };
                self.add_channel(from, &no_readers);

                // After errors, links that could not be placed would make false warnings.
                if !dropped_ports.contains(&writing_port) && self.sink.errors() == 0 {
                    let net_actor = &self.net.actors[actor];
                    let message = format!(
                        "nothing reads output `{}` of `{}`",
                        output.name, net_actor.name
                    );
                    self.sink.push(
                        Diagnostic::new(Code::W0201, message)
                            .primary(net_actor.span, "its tokens are dropped")
                            .help("join it with a channel, or state `to: []`"),
                    );
                }
            }
        }
    }

    /// The outputs that the model states to be read by nobody.
    fn dropped_outputs(&mut self) -> BTreeSet<WritingPort> {
        let mut dropped = BTreeSet::new();
        for end in &self.net.dropped {
            if let Some(output) = self.find_output(end) {
                dropped.insert((end.actor, output.index));
            }
        }
        dropped
    }

    /// The self-loop of each state, with its initial token.
    fn add_state_channels(&mut self) {
        for (index, signature) in self.signatures.iter().enumerate() {
            let Some(signature) = signature else { continue };
            let actor = ActorId::from(index);
            let state_ports = self.graph.actors[actor].state.clone();
            for (ports, state) in state_ports.iter().zip(&signature.states) {
                let from = Endpoint {
                    actor,
                    port: ports.output,
                };
                let to = Endpoint {
                    actor,
                    port: ports.input,
                };

                // One initial token, which the first firing reads.
                self.graph.channels.push(Channel {
                    from,
                    readers: vec![Reader { to, delay: 1 }],
                    token: state.token.clone(),
                    initial: state.initial.clone(),
                });
                let span = self.origins.ops[actor];
                self.origins.channels.push(vec![(span, span)]);
            }
        }
    }

    fn record_pins(&mut self) {
        for pin in &self.net.pins {
            let actor = ActorId::from(pin.actor);
            self.origins.pins.insert(actor, pin.device.clone());
        }
    }
}

/// Adds the two ports of a state.
fn add_state_ports(actor: &mut Actor, state: &StateSpec) {
    actor.state.push(StatePort {
        input: actor.inputs.len() as u32,
        output: actor.outputs.len() as u32,
    });
    actor.inputs.push(InPort {
        name: state.name.clone(),
        token: state.token.clone(),
        rate: 1,
        window: 1,
    });
    actor.outputs.push(OutPort {
        name: state.name.clone(),
        token: state.token.clone(),
        rate: 1,
    });
}

/// Groups the readers of an output that can share a channel. What agrees with the longest first tokens of a group
/// agrees with all of them.
fn group_readers<'a>(readers: &'a [PlacedReader<'a>]) -> Vec<ReaderGroup<'a>> {
    // A reader with fewer first tokens starts further back in the same ones: they are the end of the longest.
    let mut groups: Vec<ReaderGroup<'a>> = Vec::new();
    for reader in readers {
        let first_tokens = reader.first_tokens.as_slice();
        let agrees = |group: &&mut ReaderGroup<'_>| {
            group.longest.ends_with(first_tokens) || first_tokens.ends_with(group.longest)
        };
        match groups.iter_mut().find(agrees) {
            Some(group) => {
                if first_tokens.len() > group.longest.len() {
                    group.longest = first_tokens;
                }
                group.readers.push(reader);
            }
            None => groups.push(ReaderGroup {
                readers: vec![reader],
                longest: first_tokens,
            }),
        }
    }

    groups
}
