//! States as streams: what a model keeps between iterations comes from sources and goes to sinks.
//!
//! A channel with initial tokens is cut where its readers read them. They read a source instead, and a sink reads what the
//! channel's writer gives. That is the same computation where an iteration reads the initial tokens and no others, and
//! leaves as many behind: a reader that sees tokens of its own iteration as well would need a cut in the middle of one.
//!
//! A new source fires once an iteration, and so does a new sink: all that was one part of the graph keeps its repetitions,
//! even if it falls apart.

use std::collections::BTreeSet;

use bytes::Bytes;
use zbmd_ir::text::count;
use zbmd_ir::{
    Actor, ActorId, BlobId, CARRIED, Channel, ChannelId, Endpoint, Graph, InPort, OutPort, Params,
    Reader, Role, TiVec, TokenType, carried_param,
};

use crate::build::BuiltGraph;
use crate::codes::Code;
use crate::diag::{Diagnostic, Sink};
use crate::source::Span;

/// Makes a source and a sink of every channel that keeps tokens between iterations; reports those where that cannot be.
pub(crate) fn carry_states(
    model: &mut BuiltGraph,
    repetitions: &TiVec<ActorId, u64>,
    blobs: &mut TiVec<BlobId, Bytes>,
    sink: &mut Sink,
) {
    let mut carrier = Carrier {
        taken_names: model.graph.actors.iter().map(|a| a.name.clone()).collect(),
        model,
        repetitions,
        blobs,
    };
    let kept: Vec<ChannelId> = carrier.kept_channels();
    for channel in kept {
        match carrier.obstacle(channel) {
            Some(obstacle) => sink.push(carrier.draw(channel, &obstacle)),
            None => carrier.carry(channel),
        }
    }
}

/// Why the tokens of a channel cannot be carried.
struct Obstacle {
    /// The reader in the way, by its place among the channel's.
    reader: usize,
    message: String,
    help: &'static str,
}

struct Carrier<'a> {
    model: &'a mut BuiltGraph,
    /// Of the actors that the model has itself.
    repetitions: &'a TiVec<ActorId, u64>,
    blobs: &'a mut TiVec<BlobId, Bytes>,
    taken_names: BTreeSet<String>,
}

impl Carrier<'_> {
    fn graph(&self) -> &Graph {
        &self.model.graph
    }

    fn kept_channels(&self) -> Vec<ChannelId> {
        let channels = self.graph().channels.iter_enumerated();
        let kept = channels.filter(|(_, channel)| channel.history() > 0);
        kept.map(|(id, _)| id).collect()
    }

    /// Tokens that an iteration writes.
    fn written_tokens(&self, channel: ChannelId) -> u64 {
        let from = self.graph().channels[channel].from;
        let rate = self.graph().actors[from.actor].outputs[from.port as usize].rate;
        self.repetitions[from.actor] * rate
    }

    fn obstacle(&self, id: ChannelId) -> Option<Obstacle> {
        let graph = self.graph();
        let channel = &graph.channels[id];
        let writer = &graph.actors[channel.from.actor].name;
        if graph.is_state(id) {
            let port = &graph.actors[channel.from.actor].outputs[channel.from.port as usize].name;
            return Some(Obstacle {
                reader: 0,
                message: format!(
                    "`{writer}` keeps a state of its own, `{port}`, which its kernel changes in place"
                ),
                help: "compute it with an op that keeps nothing, and a channel with initial tokens for what is fed back",
            });
        }

        let written = self.written_tokens(id);
        let readers = channel.readers.iter().enumerate();
        readers
            .filter(|(_, reader)| reader.delay > 0)
            .find_map(|(place, reader)| self.reader_obstacle(writer, written, place, *reader))
    }

    fn reader_obstacle(
        &self,
        writer: &str,
        written: u64,
        place: usize,
        reader: Reader,
    ) -> Option<Obstacle> {
        let actor = &self.graph().actors[reader.to.actor];
        let name = &actor.name;
        let input = &actor.inputs[reader.to.port as usize];
        let delay = reader.delay;
        let produced = count(written, "token");
        let obstacle = |message, help| {
            Some(Obstacle {
                reader: place,
                message,
                help,
            })
        };

        if input.window > input.rate {
            let extra = count(input.window - input.rate, "token");
            return obstacle(
                format!(
                    "`{name}` looks at {extra} of earlier iterations together with new ones of `{writer}`"
                ),
                "compute an iteration in one firing of an op without a window, with the end of the last iteration on a channel with one initial \
                 token, as graphs/vad/steps.ron does for frames; or leave this part to the client",
            );
        }

        if delay < written {
            return obstacle(
                format!(
                    "an iteration writes {produced} of `{writer}`, and `{name}` reads them {delay} later: it reads \
                     tokens of its own iteration"
                ),
                "make the iteration as short as the delay, or its tokens larger: one firing of the loop in an iteration",
            );
        }
        if delay > written {
            return obstacle(
                format!(
                    "an iteration writes {produced} of `{writer}`, and `{name}` reads them {delay} later: it reads \
                     tokens of an iteration before the last"
                ),
                "delay them by one iteration, several times in a row",
            );
        }
        None
    }

    fn draw(&self, channel: ChannelId, obstacle: &Obstacle) -> Diagnostic {
        let ends = self.model.origins.channels[channel].get(obstacle.reader);
        let (writer, reader) = ends.copied().unwrap_or((Span::NONE, Span::NONE));
        let diagnostic = Diagnostic::new(Code::E0405, obstacle.message.as_str())
            .primary(reader, "keeps tokens between iterations");
        match writer == reader {
            true => diagnostic,
            false => diagnostic.context(writer, "written here"),
        }
        .help(obstacle.help)
    }

    /// Cuts a channel: what its delayed readers read comes from a source, and a sink takes what is written.
    fn carry(&mut self, id: ChannelId) {
        let written = self.written_tokens(id);
        let name = self.name_of_output(self.graph().channels[id].from);
        let source_name = self.free_name(&name, "state");
        let sink_name = self.free_name(&name, "next");
        let channel = &mut self.model.graph.channels[id];
        let token = channel.token.clone();
        let initial = Bytes::from(std::mem::take(&mut channel.initial));
        let (delayed, undelayed) = channel
            .readers
            .drain(..)
            .partition(|r: &Reader| r.delay > 0);
        channel.readers = undelayed;
        let spans = std::mem::take(&mut self.model.origins.channels[id]);
        let first_span = spans.first().copied().unwrap_or((Span::NONE, Span::NONE));

        let blob = self.blobs.push_and_get_key(initial);
        // Initial tokens are within a limit that fits.
        let elements = (written * token.elements()) as u32;
        let initial_tokens = TokenType::new(token.dtype, [elements]);
        let state = carried_param(&sink_name, blob, initial_tokens);
        let source = self.add_stream(
            Actor {
                outputs: vec![OutPort {
                    name: String::new(),
                    token: token.clone(),
                    rate: written,
                }],
                params: Params::from([(CARRIED.to_owned(), state)]),
                ..stream(source_name, Role::Source)
            },
            first_span.1,
        );
        let sink = self.add_stream(
            Actor {
                inputs: vec![InPort {
                    name: String::new(),
                    token: token.clone(),
                    rate: written,
                    window: written,
                }],
                ..stream(sink_name, Role::Sink)
            },
            first_span.0,
        );
        self.join(id, source, sink, delayed, token);
        // Every reader has a place; which of them was delayed does not matter to errors that follow.
        let graph = &self.model.graph;
        let readers = graph.channels[id].readers.len();
        self.model.origins.channels[id] = vec![first_span; readers];
    }

    /// Gives a sink the channel's tokens, and the delayed readers those of a source.
    fn join(
        &mut self,
        id: ChannelId,
        source: ActorId,
        sink: ActorId,
        delayed: Vec<Reader>,
        token: TokenType,
    ) {
        let port = |actor| Endpoint { actor, port: 0 };
        let undelayed = |to| Reader { to, delay: 0 };
        let graph = &mut self.model.graph;
        graph.channels[id].readers.push(undelayed(port(sink)));
        let readers: Vec<Reader> = delayed.into_iter().map(|r| undelayed(r.to)).collect();
        let spans = vec![(Span::NONE, Span::NONE); readers.len()];
        graph.channels.push(Channel {
            from: port(source),
            readers,
            token,
            initial: Vec::new(),
        });
        self.model.origins.channels.push(spans);
    }

    fn add_stream(&mut self, actor: Actor, span: Span) -> ActorId {
        self.model.origins.actors.push(span);
        self.model.origins.ops.push(span);
        self.model.graph.actors.push_and_get_key(actor)
    }

    /// An output as models name it: the port only where there are several.
    fn name_of_output(&self, from: Endpoint) -> String {
        let actor = &self.graph().actors[from.actor];
        let output = &actor.outputs[from.port as usize];
        let own_outputs = actor.outputs.len() - actor.state.len();
        match own_outputs {
            0 | 1 => actor.name.clone(),
            _ => format!("{}.{}", actor.name, output.name),
        }
    }

    /// A name that no actor has.
    fn free_name(&mut self, base: &str, what: &str) -> String {
        let numbered = |number: u32| match number {
            0 => format!("{base}.{what}"),
            _ => format!("{base}.{what}{number}"),
        };
        let free = (0..).map(numbered).find(|n| !self.taken_names.contains(n));
        let free = free.unwrap_or_default();
        self.taken_names.insert(free.clone());
        free
    }
}

fn stream(name: String, role: Role) -> Actor {
    let op = match role {
        Role::Sink => "Sink",
        Role::Source | Role::Compute => "Source",
    };
    Actor {
        name,
        role,
        op: op.to_owned(),
        params: Params::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        state: Vec::new(),
        in_place: Vec::new(),
    }
}
