//! From the net and its signatures to the graph: ports get numbers, channels their initial tokens, states their loops.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_backends::op::{Registry, ResolveCx, Signature};
use zbmd_ir::{
    Actor, ActorId, Channel, ChannelId, Endpoint, Graph, InPort, OutPort, Params, Reader, Role,
    StatePort, TiVec, limits,
};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink};
use crate::infer::{check_link, input_port, output_port, unconnected, unknown_port};
use crate::net::{Link, Net};
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

/// A reader with its place among the ports and the tokens that it sees first.
struct Placed<'a> {
    link: &'a Link,
    port: u32,
    /// History, then initial tokens.
    first: Vec<u8>,
    delay: u64,
}

/// Makes the graph; errors go to `sink`, and then the graph is not to be used.
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
    builder.actors();
    let by_writer = builder.place();
    builder.check_inputs(&by_writer);
    for (&(actor, port), readers) in &by_writer {
        builder.channel(actor, port, readers);
    }
    builder.unread(&by_writer);
    builder.states();
    for pin in &net.pins {
        builder
            .origins
            .pins
            .insert(ActorId::from(pin.actor), pin.device.clone());
    }
    BuiltGraph {
        graph: builder.graph,
        origins: builder.origins,
    }
}

type ByWriter<'a> = BTreeMap<(usize, u32), Vec<Placed<'a>>>;

struct Builder<'a> {
    net: &'a Net,
    signatures: &'a [Option<Signature>],
    registry: &'a Registry,
    files: &'a Files,
    sink: &'a mut Sink,
    graph: Graph,
    origins: Origins,
    initial_bytes: u64,
}

impl<'a> Builder<'a> {
    /// All actors, with the state ports behind the op's own ports.
    fn actors(&mut self) {
        for (actor, signature) in self.net.actors.iter().zip(self.signatures) {
            let empty = Signature::default();
            let signature = signature.as_ref().unwrap_or(&empty);
            let mut ports = (signature.inputs.clone(), signature.outputs.clone());
            let mut state = Vec::new();
            for spec in &signature.states {
                state.push(StatePort {
                    input: ports.0.len() as u32,
                    output: ports.1.len() as u32,
                });
                let (name, token) = (spec.name.clone(), spec.token.clone());
                ports.0.push(InPort {
                    name: name.clone(),
                    token: token.clone(),
                    rate: 1,
                    window: 1,
                });
                ports.1.push(OutPort {
                    name,
                    token,
                    rate: 1,
                });
            }
            let id = ActorId::from(self.graph.actors.len());
            self.graph.actors.push(Actor {
                name: actor.name.clone(),
                role: actor.role,
                op: actor.op.value.clone(),
                params: actor.params.clone(),
                inputs: ports.0,
                outputs: ports.1,
                state,
                in_place: Vec::new(),
            });
            self.origins.actors.push(actor.span);
            self.origins.ops.push(actor.op.span);
            if let Some(span) = actor
                .param_spans
                .get("sample_rate")
                .filter(|_| actor.role != Role::Compute)
            {
                self.origins.sample_rates.insert(id, *span);
            }
        }
    }

    /// Gives every link its ports and its first tokens, and groups the links by writing port.
    fn place(&mut self) -> ByWriter<'a> {
        let mut by_writer: ByWriter<'a> = BTreeMap::new();
        for link in &self.net.links {
            let from = self.signatures[link.from.actor].as_ref();
            let to = self.signatures[link.to.actor].as_ref();
            let writer = from.and_then(|s| output_port(s, link.from.port.as_deref()));
            let reader = to.and_then(|s| input_port(s, link.to.port.as_deref()));
            for (found, end, signature, writes) in [
                (writer, &link.from, from, true),
                (reader, &link.to, to, false),
            ] {
                if let (None, Some(signature)) = (found, signature) {
                    let actor = &self.net.actors[end.actor];
                    self.sink.push(unknown_port(actor, end, signature, writes));
                }
            }
            let (Some(from), Some(to), Some(writer), Some(reader)) = (from, to, writer, reader)
            else {
                continue;
            };
            let (out, input) = (&from.outputs[writer], &to.inputs[reader]);
            let before = self.sink.errors();
            check_link(self.net, link, out, input, self.sink);
            let first = self.first_tokens(link, input);
            let Some(first) = first.filter(|_| self.sink.errors() == before) else {
                // Keep the reader, so that its input is not called unconnected as well.
                let placed = Placed {
                    link,
                    port: reader as u32,
                    first: Vec::new(),
                    delay: 0,
                };
                by_writer
                    .entry((link.from.actor, writer as u32))
                    .or_default()
                    .push(placed);
                continue;
            };
            let delay = first.len() as u64 / input.token.bytes().max(1);
            let placed = Placed {
                link,
                port: reader as u32,
                first,
                delay,
            };
            by_writer
                .entry((link.from.actor, writer as u32))
                .or_default()
                .push(placed);
        }
        by_writer
    }

    /// The bytes of history and initial tokens of a reader.
    fn first_tokens(&mut self, link: &Link, input: &InPort) -> Option<Vec<u8>> {
        let token = &input.token;
        let extra = input.window.saturating_sub(input.rate);
        let bytes = extra.saturating_mul(token.bytes());
        if bytes > limits::MAX_INITIAL_BYTES {
            self.sink.push(initial_limit(link.to.span, extra, token));
            return None;
        }
        let mut first = match &link.history {
            None => vec![0; bytes as usize],
            Some(history) => {
                let given = history.bytes(token, self.sink)?;
                if given.len() as u64 != bytes {
                    let found = given.len() as u64 / token.bytes().max(1);
                    let diagnostic = Diagnostic::new(
                        Code::E0308,
                        format!(
                            "the history has {found} tokens, `{}` looks at {extra} beyond its rate",
                            self.net.actors[link.to.actor].name
                        ),
                    );
                    self.sink.push(
                        diagnostic
                            .primary(history.span, format!("{found} tokens"))
                            .context(
                                link.to.span,
                                format!(
                                    "window {} less rate {} is {extra}",
                                    input.window, input.rate
                                ),
                            )
                            .help(if extra == 0 {
                                "remove `history`; a delay is `initial`".to_owned()
                            } else {
                                format!("give {extra} tokens; a delay on top of them is `initial`")
                            }),
                    );
                    return None;
                }
                given
            }
        };
        for tokens in &link.initial {
            first.extend(tokens.bytes(token, self.sink)?);
        }
        self.initial_bytes = self.initial_bytes.saturating_add(first.len() as u64);
        if self.initial_bytes > limits::MAX_INITIAL_BYTES {
            let count = first.len() as u64 / token.bytes().max(1);
            self.sink.push(initial_limit(link.to.span, count, token));
            return None;
        }
        Some(first)
    }

    /// Every input must be read from exactly one channel.
    fn check_inputs(&mut self, by_writer: &ByWriter<'_>) {
        let mut first: BTreeMap<(usize, u32), &Link> = BTreeMap::new();
        let mut placed: Vec<(&Link, u32)> = by_writer
            .values()
            .flatten()
            .map(|p| (p.link, p.port))
            .collect();
        placed.sort_by_key(|(link, _)| link.to.span);
        for (link, port) in placed {
            let name = &self.net.actors[link.to.actor].name;
            if let Some(other) = first.get(&(link.to.actor, port)) {
                let input =
                    &self.graph.actors[ActorId::from(link.to.actor)].inputs[port as usize].name;
                self.sink.push(
                    Diagnostic::new(Code::E0209, format!("input `{input}` of `{name}` is connected twice"))
                        .primary(link.to.span, "connected again here")
                        .context(other.to.span, "first connected here")
                        .help("an input reads one channel: add or interleave the streams with an op first"),
                );
                continue;
            }
            first.insert((link.to.actor, port), link);
        }
        // A link that could not be placed may be the one that is missing.
        let lost = self.net.lost || self.net.links.len() > by_writer.values().map(Vec::len).sum();
        for (id, signature) in self.signatures.iter().enumerate() {
            let Some(signature) = signature.as_ref().filter(|_| !lost) else {
                continue;
            };
            for (port, input) in signature.inputs.iter().enumerate() {
                if !first.contains_key(&(id, port as u32)) {
                    self.sink
                        .push(unconnected(&self.net.actors[id], &input.name));
                }
            }
        }
    }

    /// The channel of one output; readers whose first tokens contradict each other get a fork of their own.
    fn channel(&mut self, actor: usize, port: u32, readers: &[Placed<'_>]) {
        let mut groups: Vec<(usize, Vec<&Placed<'_>>)> = Vec::new();
        for (index, reader) in readers.iter().enumerate() {
            // What agrees with the longest start of a group agrees with all of them.
            let fits = |group: &&mut (usize, Vec<&Placed<'_>>)| {
                let longest = &readers[group.0].first;
                longest.ends_with(&reader.first) || reader.first.ends_with(longest)
            };
            match groups.iter_mut().find(fits) {
                Some((longest, group)) => {
                    if reader.first.len() > readers[*longest].first.len() {
                        *longest = index;
                    }
                    group.push(reader);
                }
                None => groups.push((index, vec![reader])),
            }
        }
        let from = Endpoint {
            actor: ActorId::from(actor),
            port,
        };
        let main = self.add_channel(from, &groups[0].1);
        let alone = groups.len() == 2;
        for (index, (_, group)) in groups[1..].iter().enumerate() {
            let number = if alone {
                String::new()
            } else {
                (index + 1).to_string()
            };
            let Some(fork) = self.fork(from, &number, group[0].link.from.span) else {
                return;
            };
            let to = Endpoint {
                actor: fork,
                port: 0,
            };
            self.graph.channels[main]
                .readers
                .push(Reader { to, delay: 0 });
            let spans = (group[0].link.from.span, group[0].link.to.span);
            self.origins.channels[main].push(spans);
            self.add_channel(
                Endpoint {
                    actor: fork,
                    port: 0,
                },
                group,
            );
        }
    }

    fn add_channel(&mut self, from: Endpoint, readers: &[&Placed<'_>]) -> ChannelId {
        let token = self.graph.actors[from.actor].outputs[from.port as usize]
            .token
            .clone();
        let longest = readers.iter().max_by_key(|p| p.first.len());
        self.graph.channels.push(Channel {
            from,
            readers: readers
                .iter()
                .map(|p| Reader {
                    to: Endpoint {
                        actor: ActorId::from(p.link.to.actor),
                        port: p.port,
                    },
                    delay: p.delay,
                })
                .collect(),
            token,
            initial: longest.map(|p| p.first.clone()).unwrap_or_default(),
        });
        let spans = readers
            .iter()
            .map(|p| (p.link.from.span, p.link.to.span))
            .collect();
        self.origins.channels.push_and_get_key(spans)
    }

    /// An actor that copies one channel into another.
    fn fork(&mut self, from: Endpoint, number: &str, span: Span) -> Option<ActorId> {
        let writer = &self.graph.actors[from.actor];
        let token = writer.outputs[from.port as usize].token.clone();
        let several = writer.outputs.len() - writer.state.len() > 1;
        let port = if several {
            format!(".{}", writer.outputs[from.port as usize].name)
        } else {
            String::new()
        };
        let name = format!("{}{port}.fork{number}", writer.name);
        let mut params = Params::new();
        let types = [(String::new(), token)].into();
        let connected = [String::new()];
        let op = self.registry.op(FORK)?;
        params.insert("outputs".to_owned(), zbmd_ir::Value::Int(1));
        let cx = ResolveCx {
            params: &params,
            connected: &connected,
            types: &types,
            blobs: &self.files.blobs,
        };
        match op.resolve(&cx) {
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
                self.sink.push(
                    Diagnostic::new(
                        Code::E0309,
                        format!("cannot copy the output for a second delay: {error}"),
                    )
                    .primary(span, "its readers start with different tokens")
                    .help("give all readers the same initial tokens"),
                );
                None
            }
        }
    }

    /// Outputs that nobody reads: a channel without readers, and a warning unless that is stated.
    fn unread(&mut self, by_writer: &ByWriter<'_>) {
        let mut dropped = BTreeSet::new();
        for end in &self.net.dropped {
            let Some(signature) = &self.signatures[end.actor] else {
                continue;
            };
            match output_port(signature, end.port.as_deref()) {
                Some(port) => {
                    dropped.insert((end.actor, port));
                }
                None => self.sink.push(unknown_port(
                    &self.net.actors[end.actor],
                    end,
                    signature,
                    true,
                )),
            }
        }
        for (id, signature) in self.signatures.iter().enumerate() {
            let Some(signature) = signature else { continue };
            for (port, output) in signature.outputs.iter().enumerate() {
                if by_writer.contains_key(&(id, port as u32)) {
                    continue;
                }
                let from = Endpoint {
                    actor: ActorId::from(id),
                    port: port as u32,
                };
                self.add_channel(from, &[]);
                let actor = &self.net.actors[id];
                if !dropped.contains(&(id, port)) && self.sink.errors() == 0 {
                    self.sink.push(
                        Diagnostic::new(
                            Code::W0201,
                            format!("nothing reads output `{}` of `{}`", output.name, actor.name),
                        )
                        .primary(actor.span, "its tokens are dropped")
                        .help("join it with a channel, or state `to: []`"),
                    );
                }
            }
        }
    }

    fn states(&mut self) {
        for (id, signature) in self.signatures.iter().enumerate() {
            let Some(signature) = signature else { continue };
            let actor = ActorId::from(id);
            let state = self.graph.actors[actor].state.clone();
            for (ports, spec) in state.iter().zip(&signature.states) {
                self.graph.channels.push(Channel {
                    from: Endpoint {
                        actor,
                        port: ports.output,
                    },
                    readers: vec![Reader {
                        to: Endpoint {
                            actor,
                            port: ports.input,
                        },
                        delay: 1,
                    }],
                    token: spec.token.clone(),
                    initial: spec.initial.clone(),
                });
                let span = self.origins.ops[actor];
                self.origins.channels.push(vec![(span, span)]);
            }
        }
    }
}

/// The op that copies its input to its outputs.
const FORK: &str = "Fork";
