//! A model as written: names and places checked for form, nothing looked up, parameters not yet put in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink};
use crate::files::{self, ReadError};
use crate::format;
use crate::modes;
use crate::parse::{self, Arg, Node, NodeKind};
use crate::read::{self, Fields};
use crate::source::{SourceMap, Span, Spanned};

/// `Model(…)`.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) span: Span,
    /// Directory that file names are relative to.
    pub(crate) dir: PathBuf,
    pub(crate) name: Option<Spanned<String>>,
    /// Parameters with their defaults; the word `required` stands for none.
    pub(crate) params: Vec<(Spanned<String>, Node)>,
    pub(crate) inputs: Vec<PortDecl>,
    pub(crate) outputs: Vec<PortDecl>,
    pub(crate) sources: Vec<StreamDecl>,
    pub(crate) sinks: Vec<StreamDecl>,
    pub(crate) models: Vec<(Spanned<String>, ModelDef)>,
    pub(crate) actors: Vec<ActorDecl>,
    pub(crate) channels: Vec<ChannelDecl>,
    pub(crate) pins: Vec<(Spanned<String>, Spanned<String>)>,
    pub(crate) modes: Vec<ModeDecl>,
    pub(crate) initial_mode: Option<Spanned<String>>,
    /// None where every change is allowed.
    pub(crate) changes: Option<Vec<(Spanned<String>, Spanned<String>)>>,
    pub(crate) mode_from: Option<ModeFrom>,
    /// Names whose declarations could not be read.
    pub(crate) broken: Vec<Spanned<String>>,
    /// Whether channels could not be read.
    pub(crate) lost_channels: bool,
}

/// What decides about the mode.
#[derive(Clone, Debug)]
pub(crate) struct ModeFrom {
    /// `actor`, or `actor.port`.
    pub(crate) from: Spanned<String>,
    pub(crate) every: u64,
}

/// A mode: what it adds to the model.
#[derive(Debug)]
pub(crate) struct ModeDecl {
    pub(crate) name: Spanned<String>,
    actors: Vec<ActorDecl>,
    channels: Vec<ChannelDecl>,
    pins: Vec<(Spanned<String>, Spanned<String>)>,
    broken: Vec<Spanned<String>>,
    lost_channels: bool,
}

/// A sub-model's definition.
#[derive(Debug)]
pub(crate) enum ModelDef {
    /// Written in place: sees the models around it.
    Inline(Box<Model>),
    /// Another file: sees its own models only.
    File(Rc<Model>),
    /// Unreadable, and reported.
    Bad,
}

/// A port of a sub-model.
#[derive(Debug)]
pub(crate) struct PortDecl {
    pub(crate) name: Spanned<String>,
    pub(crate) dtype: Option<Node>,
    pub(crate) shape: Option<Node>,
}

/// A source or a sink.
#[derive(Debug)]
pub(crate) struct StreamDecl {
    pub(crate) name: Spanned<String>,
    pub(crate) dtype: Option<Node>,
    pub(crate) shape: Option<Node>,
    pub(crate) rate: Option<Node>,
    pub(crate) sample_rate: Option<Node>,
    pub(crate) deadline: Option<Node>,
    pub(crate) on_miss: Option<Node>,
    pub(crate) file: Option<Node>,
}

/// An actor or an instance of a sub-model.
#[derive(Clone, Debug)]
pub(crate) struct ActorDecl {
    pub(crate) name: Spanned<String>,
    pub(crate) op: Spanned<String>,
    pub(crate) span: Span,
    pub(crate) args: Vec<Arg>,
}

/// A channel.
#[derive(Debug)]
pub(crate) struct ChannelDecl {
    pub(crate) from: Spanned<String>,
    pub(crate) to: Vec<ToDecl>,
    /// Readers in the text, readable or not.
    readers_written: usize,
    pub(crate) dtype: Option<Node>,
    pub(crate) shape: Option<Node>,
    pub(crate) rate: Option<Node>,
    pub(crate) initial: Option<Node>,
    pub(crate) reader: ReaderDecl,
}

/// A reader of a channel.
#[derive(Debug)]
pub(crate) struct ToDecl {
    pub(crate) end: Spanned<String>,
    pub(crate) reader: ReaderDecl,
}

impl Model {
    /// Adds what a mode has to what the model has.
    pub(crate) fn enter_mode(&mut self, name: &str) {
        let modes = std::mem::take(&mut self.modes);
        let Some(mode) = modes.into_iter().find(|mode| mode.name.value == name) else {
            return;
        };
        self.actors.extend(mode.actors);
        self.channels.extend(mode.channels);
        self.pins.extend(mode.pins);
        self.broken.extend(mode.broken);
        self.lost_channels |= mode.lost_channels;
    }
}

/// What can be said of a reader.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReaderDecl {
    pub(crate) rate: Option<Node>,
    pub(crate) window: Option<Node>,
    pub(crate) history: Option<Node>,
}

/// Files that include each other in a row.
const MAX_FILE_CHAIN: usize = 32;
/// Iterations between decisions about the mode, at most.
const MAX_ITERATIONS: u64 = 1 << 40;

/// Reads models and the files they include.
pub(crate) struct Loader<'a> {
    pub(crate) sources: &'a mut SourceMap,
    pub(crate) sink: &'a mut Sink,
    /// Files being read, outermost first, by canonical path.
    chain: Vec<PathBuf>,
    done: BTreeMap<PathBuf, Option<Rc<Model>>>,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(sources: &'a mut SourceMap, sink: &'a mut Sink) -> Self {
        Self {
            sources,
            sink,
            chain: Vec::new(),
            done: BTreeMap::new(),
        }
    }

    /// Reads a model from a file named on the command line or in `File("…")` at `span`.
    pub(crate) fn file(&mut self, path: &Path, span: Span) -> Option<Rc<Model>> {
        let canonical_path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if let Some(known) = self.done.get(&canonical_path) {
            return known.clone();
        }

        // The chain of open files finds a file that includes itself, however the path is written.
        if self.chain.contains(&canonical_path) || self.chain.len() >= MAX_FILE_CHAIN {
            let mut open_names: Vec<String> =
                self.chain.iter().map(|p| p.display().to_string()).collect();
            open_names.push(canonical_path.display().to_string());
            self.sink.push(
                Diagnostic::new(
                    Code::E0212,
                    format!("a model file contains itself: {}", open_names.join(" -> ")),
                )
                .primary(span, "included here")
                .help("a model cannot contain itself: feedback is a channel with initial tokens"),
            );
            return None;
        }

        let file_text = read_text(path, span, self.sink)?;
        self.chain.push(canonical_path.clone());
        let model_dir = path.parent().map(Path::to_owned).unwrap_or_default();
        let parsed_model = self
            .text(&path.display().to_string(), &file_text, &model_dir)
            .map(Rc::new);
        self.chain.pop();

        // A file that cannot be read is kept as well: its errors have been reported once.
        self.done.insert(canonical_path, parsed_model.clone());
        parsed_model
    }

    /// Reads a model from a text. Meaning is not looked at where the syntax is broken: half a model would be
    /// reported to lack the other half.
    pub(crate) fn text(&mut self, name: &str, text: &str, dir: &Path) -> Option<Model> {
        if text.len() > SourceMap::MAX_FILE_BYTES {
            self.sink
                .push(too_large(name, text.len() as u64, Span::NONE));
            return None;
        }

        let total_bytes = self.sources.bytes() + text.len();
        if total_bytes > SourceMap::MAX_TOTAL_BYTES {
            let message = format!(
                "all model files together have {total_bytes} bytes with `{name}`, more than the limit of {}",
                SourceMap::MAX_TOTAL_BYTES
            );
            let help = "put constants into .npy files: `Npy(\"taps.npy\")`";
            self.sink
                .push(Diagnostic::new(Code::E0505, message).help(help));
            return None;
        }

        let file_id = self.sources.add(name, text);
        let errors_before = self.sink.errors();
        let root_node = parse::parse(file_id, text, self.sink)?;
        if self.sink.errors() > errors_before {
            return None;
        }
        self.model(&root_node, dir)
    }

    fn model(&mut self, node: &Node, dir: &Path) -> Option<Model> {
        let (head, args) = match &node.kind {
            NodeKind::Call(Some(name), args) if name.value == "Model" => (name.span, args),
            // RON lets the name of a struct be left out.
            NodeKind::Call(None, args) => (node.span, args),
            _ => {
                let expected = "a model: `Model(…)`";
                self.sink.push(read::wrong_kind(node, expected));
                return None;
            }
        };
        let mut fields = Fields::of(&format::MODEL, "Model", head, args, self.sink);

        let name_node = fields.take("name");
        let name = name_node
            .and_then(|node| read::string(node, "the model's name in quotes", self.sink))
            .filter(|name| read::check_text(name, "a model", self.sink));
        let params = read_map(&mut fields, "params", "a parameter", self.sink);
        let inputs = read_ports(&mut fields, "inputs", self.sink);
        let outputs = read_ports(&mut fields, "outputs", self.sink);

        // Names of what cannot be read: channels may still mention them without being refused for it.
        let mut broken = Vec::new();
        let source_map = read_map(&mut fields, "sources", "a source", self.sink);
        let sources = keep_readable(source_map, &mut broken, |name, node| {
            stream(name, &node, self.sink)
        });
        let sink_map = read_map(&mut fields, "sinks", "a sink", self.sink);
        let sinks = keep_readable(sink_map, &mut broken, |name, node| {
            stream(name, &node, self.sink)
        });
        let actor_map = read_map(&mut fields, "actors", "an actor", self.sink);
        let actors = keep_readable(actor_map, &mut broken, |name, node| {
            actor(name, node, self.sink)
        });

        let model_map = read_map(&mut fields, "models", "a sub-model", self.sink);
        let models = model_map
            .into_iter()
            .map(|(name, node)| (name, self.definition(&node, dir)))
            .collect();
        let ReadChannels {
            channels,
            lost_channels,
        } = read_channels(&mut fields, self.sink);
        let pins = read_pins(&mut fields, self.sink);
        let mode_map = read_map(&mut fields, "modes", "a mode", self.sink);
        let mode_decls = mode_map
            .into_iter()
            .filter_map(|(name, node)| mode(name, &node, self.sink));
        let modes: Vec<ModeDecl> = mode_decls.collect();
        let initial_node = fields.take("initial_mode");
        let initial_mode =
            initial_node.and_then(|node| read::string(node, "a mode in quotes", self.sink));
        let changes = read_changes(&mut fields, self.sink);
        let mode_from = read_mode_from(&mut fields, self.sink);
        fields.done(self.sink);

        Some(Model {
            span: head,
            dir: dir.to_owned(),
            name,
            params,
            inputs,
            outputs,
            sources,
            sinks,
            models,
            actors,
            channels,
            pins,
            modes,
            initial_mode,
            changes,
            mode_from,
            broken,
            lost_channels,
        })
    }

    fn definition(&mut self, node: &Node, dir: &Path) -> ModelDef {
        let definition = self.read_definition(node, dir);
        let model = match &definition {
            ModelDef::Inline(model) => Some(&**model),
            ModelDef::File(model) => Some(&**model),
            ModelDef::Bad => None,
        };
        if let Some(mode) = model.and_then(|model| model.modes.first()) {
            let message = format!("the sub-model has a mode `{}`", mode.name.value);
            let refusal = modes::refuse(message, mode.name.span)
                .help("modes belong to the outermost model: put what differs there");
            self.sink.push(refusal);
        }
        definition
    }

    fn read_definition(&mut self, node: &Node, dir: &Path) -> ModelDef {
        let NodeKind::Call(Some(name), args) = &node.kind else {
            return self
                .model(node, dir)
                .map_or(ModelDef::Bad, |m| ModelDef::Inline(Box::new(m)));
        };

        if name.value != "File" {
            return self
                .model(node, dir)
                .map_or(ModelDef::Bad, |m| ModelDef::Inline(Box::new(m)));
        }

        let [Arg { name: None, value }] = args.as_slice() else {
            self.sink.push(
                Diagnostic::new(Code::E0203, "`File` takes one path")
                    .primary(node.span, "should be `File(\"other.ron\")`"),
            );
            return ModelDef::Bad;
        };

        let Some(path) = read::string(value, "a path in quotes", self.sink) else {
            return ModelDef::Bad;
        };
        self.file(&dir.join(&path.value), path.span)
            .map_or(ModelDef::Bad, ModelDef::File)
    }
}

/// The entries of a field that is a map; those whose keys cannot be names are left out. Without a word for `what`, keys
/// may be anything.
fn read_map(
    fields: &mut Fields<'_>,
    field: &'static str,
    what: &str,
    sink: &mut Sink,
) -> Vec<(Spanned<String>, Node)> {
    let Some(node) = fields.take(field) else {
        return Vec::new();
    };
    let mut entries = Vec::new();
    for (name, value) in read::map(node, &format!("a map of {field}"), sink) {
        if what.is_empty() || read::check_name(&name, what, sink) {
            entries.push((name, value.clone()));
        }
    }
    entries
}

fn read_ports(fields: &mut Fields<'_>, field: &'static str, sink: &mut Sink) -> Vec<PortDecl> {
    let entries = read_map(fields, field, "a port", sink);
    entries
        .into_iter()
        .map(|(name, node)| port(name, &node, sink))
        .collect()
}

/// Devices by actor.
fn read_pins(fields: &mut Fields<'_>, sink: &mut Sink) -> Vec<(Spanned<String>, Spanned<String>)> {
    read_map(fields, "pins", "", sink)
        .into_iter()
        .filter_map(|(actor, node)| {
            let device = read::string(&node, "a device in quotes", sink)?;
            Some((actor, device))
        })
        .collect()
}

/// `Mode(…)`.
fn mode(name: Spanned<String>, node: &Node, sink: &mut Sink) -> Option<ModeDecl> {
    let args = match &node.kind {
        NodeKind::Call(head, args) if head.as_ref().is_none_or(|h| h.value == "Mode") => args,
        _ => {
            let expected = "a mode: `Mode(actors: {…}, channels: […])`";
            sink.push(read::wrong_kind(node, expected));
            return None;
        }
    };
    let owner_name = format!("mode `{}`", name.value);
    let mut fields = Fields::of(&format::MODE, owner_name, node.span, args, sink);
    let mut broken = Vec::new();
    let actor_map = read_map(&mut fields, "actors", "an actor", sink);
    let actors = keep_readable(actor_map, &mut broken, |name, node| actor(name, node, sink));
    let ReadChannels {
        channels,
        lost_channels,
    } = read_channels(&mut fields, sink);
    let pins = read_pins(&mut fields, sink);
    fields.done(sink);
    Some(ModeDecl {
        name,
        actors,
        channels,
        pins,
        broken,
        lost_channels,
    })
}

/// Pairs of modes; none where the field is left out.
fn read_mode_from(fields: &mut Fields<'_>, sink: &mut Sink) -> Option<ModeFrom> {
    let node = fields.take("mode_from")?;
    let NodeKind::Call(None, args) = &node.kind else {
        let expected = "what decides: `(from: \"actor\", every: 480)`";
        sink.push(read::wrong_kind(node, expected));
        return None;
    };
    let mut fields = Fields::of(&format::MODE_FROM, "`mode_from`", node.span, args, sink);
    let from = fields.need("from", "\"pick\"", sink);
    let from = from.and_then(|node| read::string(node, "an actor in quotes", sink));
    let every = fields.need("every", "480", sink);
    let every =
        every.and_then(|node| read::count(node, "a number of iterations", 1, MAX_ITERATIONS, sink));
    fields.done(sink);
    Some(ModeFrom {
        from: from?,
        every: every?.value,
    })
}

fn read_changes(
    fields: &mut Fields<'_>,
    sink: &mut Sink,
) -> Option<Vec<(Spanned<String>, Spanned<String>)>> {
    let node = fields.take("changes")?;
    let written = read::list(node, "a list of pairs: `(\"from\", \"to\")`", sink)?;
    let pairs = written.iter().filter_map(|node| {
        let NodeKind::Call(None, args) = &node.kind else {
            sink.push(read::wrong_kind(node, "a pair: `(\"from\", \"to\")`"));
            return None;
        };
        let [
            Arg {
                name: None,
                value: from,
            },
            Arg {
                name: None,
                value: to,
            },
        ] = args.as_slice()
        else {
            sink.push(read::wrong_kind(node, "a pair: `(\"from\", \"to\")`"));
            return None;
        };
        let from = read::string(from, "a mode in quotes", sink)?;
        let to = read::string(to, "a mode in quotes", sink)?;
        Some((from, to))
    });
    Some(pairs.collect())
}

/// The channels of a model that can be read.
struct ReadChannels {
    channels: Vec<ChannelDecl>,
    /// Whether there are others, or readers that cannot be read: what seems unconnected may not be.
    lost_channels: bool,
}

fn read_channels(fields: &mut Fields<'_>, sink: &mut Sink) -> ReadChannels {
    let list_node = fields.take("channels");
    let list = list_node.and_then(|node| read::list(node, "a list of channels", sink));
    let written = list.unwrap_or_default();

    let readable = written.iter().filter_map(|node| channel(node, sink));
    let channels: Vec<ChannelDecl> = readable.collect();
    let has_lost_readers = channels
        .iter()
        .any(|channel| channel.to.len() < channel.readers_written);
    ReadChannels {
        lost_channels: channels.len() < written.len() || has_lost_readers,
        channels,
    }
}

/// A whole text file; E0701 where it cannot be read.
pub(crate) fn read_text(path: &Path, span: Span, sink: &mut Sink) -> Option<String> {
    let shown_path = path.display().to_string();
    let mut refuse = |what: String, help: &str| {
        sink.push(
            Diagnostic::new(Code::E0701, format!("cannot read `{shown_path}`: {what}"))
                .primary(span, if span.is_some() { "named here" } else { "" })
                .help(help),
        );
        None
    };

    let bytes = match files::read(path, SourceMap::MAX_FILE_BYTES as u64) {
        Ok(bytes) => bytes,
        Err(ReadError::Size { bytes, .. }) => {
            sink.push(too_large(&shown_path, bytes, span));
            return None;
        }
        Err(error) => return refuse(error.to_string(), error.help()),
    };

    match String::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) => {
            let valid_bytes = error.utf8_error().valid_up_to();
            refuse(
                format!("it is not UTF-8 from byte {valid_bytes} on"),
                "models are UTF-8 text",
            )
        }
    }
}

fn too_large(name: &str, bytes: u64, span: Span) -> Diagnostic {
    Diagnostic::new(
        Code::E0505,
        format!(
            "`{name}` has {bytes} bytes, more than the limit of {}",
            SourceMap::MAX_FILE_BYTES
        ),
    )
    .primary(span, "")
    .help("put constants into .npy files: `Npy(\"taps.npy\")`")
}

/// Reads declarations; the names of those that cannot be read go to `broken`.
fn keep_readable<T>(
    list: Vec<(Spanned<String>, Node)>,
    broken: &mut Vec<Spanned<String>>,
    mut read: impl FnMut(Spanned<String>, Node) -> Option<T>,
) -> Vec<T> {
    let mut kept = Vec::new();
    for (name, node) in list {
        match read(name.clone(), node) {
            Some(decl) => kept.push(decl),
            None => broken.push(name),
        }
    }
    kept
}

fn port(name: Spanned<String>, node: &Node, sink: &mut Sink) -> PortDecl {
    match &node.kind {
        // `"x": f32` says the dtype alone.
        NodeKind::Word(_) | NodeKind::Str(_) | NodeKind::Param(_) => PortDecl {
            name,
            dtype: Some(node.clone()),
            shape: None,
        },
        NodeKind::Call(head, args) if head.as_ref().is_none_or(|h| h.value == "Port") => {
            let owner_name = format!("port `{}`", name.value);
            let mut port_fields = Fields::of(&format::PORT, owner_name, node.span, args, sink);
            let (dtype, shape) = (
                port_fields.take("dtype").cloned(),
                port_fields.take("shape").cloned(),
            );
            port_fields.done(sink);
            PortDecl { name, dtype, shape }
        }
        _ => {
            sink.push(read::wrong_kind(
                node,
                "a port: `Port()` or `Port(dtype: f32, shape: [2])`",
            ));
            PortDecl {
                name,
                dtype: None,
                shape: None,
            }
        }
    }
}

fn stream(name: Spanned<String>, node: &Node, sink: &mut Sink) -> Option<StreamDecl> {
    let args = match &node.kind {
        NodeKind::Call(head, args) if head.as_ref().is_none_or(|h| h.value == "Stream") => args,
        _ => {
            sink.push(read::wrong_kind(node, "a stream: `Stream(dtype: f32)`"));
            return None;
        }
    };

    let owner_name = format!("stream `{}`", name.value);
    let mut stream_fields = Fields::of(&format::STREAM, owner_name, node.span, args, sink);
    let stream_decl = StreamDecl {
        dtype: stream_fields.take("dtype").cloned(),
        shape: stream_fields.take("shape").cloned(),
        rate: stream_fields.take("rate").cloned(),
        sample_rate: stream_fields.take("sample_rate").cloned(),
        deadline: stream_fields.take("deadline").cloned(),
        on_miss: stream_fields.take("on_miss").cloned(),
        file: stream_fields.take("file").cloned(),
        name,
    };

    stream_fields.done(sink);
    Some(stream_decl)
}

fn actor(name: Spanned<String>, node: Node, sink: &mut Sink) -> Option<ActorDecl> {
    let span = node.span;
    match node.kind {
        NodeKind::Call(Some(op), args) => Some(ActorDecl {
            name,
            op,
            span,
            args,
        }),
        NodeKind::Word(word) => {
            sink.push(
                Diagnostic::new(
                    Code::E0203,
                    format!("actor `{}` is the word `{word}`", name.value),
                )
                .primary(span, "should be an op with its parameters")
                .help(format!("write `{word}()`")),
            );

            None
        }
        _ => {
            sink.push(read::wrong_kind(
                &node,
                "an op with its parameters, such as `Fir(taps: [0.5, 0.5])`",
            ));
            None
        }
    }
}

fn channel(node: &Node, sink: &mut Sink) -> Option<ChannelDecl> {
    let NodeKind::Call(head, args) = &node.kind else {
        sink.push(read::wrong_kind(
            node,
            "a channel: `(from: \"a\", to: [\"b\"])`",
        ));
        return None;
    };

    if head.as_ref().is_some_and(|h| h.value != "Channel") {
        sink.push(read::wrong_kind(
            node,
            "a channel: `(from: \"a\", to: [\"b\"])`",
        ));
        return None;
    }

    let mut channel_fields = Fields::of(&format::CHANNEL, "a channel", node.span, args, sink);
    let from_node = channel_fields.need("from", "\"actor\"", sink);
    let from_node = from_node.and_then(|n| read::string(n, "the writer's name in quotes", sink));
    let to_node = channel_fields.need("to", "[\"actor.port\"]", sink);
    let to_decls: Option<Vec<ToDecl>> = to_node.map(|n| match &n.kind {
        NodeKind::List(items) => items.iter().filter_map(|n| reader(n, sink)).collect(),
        _ => reader(n, sink).into_iter().collect(),
    });
    let readers_written = to_node.map_or(0, |n| {
        if let NodeKind::List(items) = &n.kind {
            items.len()
        } else {
            1
        }
    });
    let channel_parts = (
        from_node,
        to_decls,
        channel_fields.take("dtype"),
        channel_fields.take("shape"),
    );
    let rate_node = channel_fields.take("rate").cloned();
    let initial_node = channel_fields.take("initial").cloned();
    let reader = ReaderDecl {
        rate: None,
        window: channel_fields.take("window").cloned(),
        history: channel_fields.take("history").cloned(),
    };

    channel_fields.done(sink);
    let (Some(from_node), Some(to_decls), dtype, shape) = channel_parts else {
        return None;
    };
    let (dtype, shape) = (dtype.cloned(), shape.cloned());
    Some(ChannelDecl {
        from: from_node,
        to: to_decls,
        readers_written,
        dtype,
        shape,
        rate: rate_node,
        initial: initial_node,
        reader,
    })
}

/// `"actor.port"` or `(to: "actor.port", window: 8)`.
fn reader(node: &Node, sink: &mut Sink) -> Option<ToDecl> {
    let NodeKind::Call(None, args) = &node.kind else {
        let end_node = read::string(node, "a reader's name in quotes", sink)?;
        return Some(ToDecl {
            end: end_node,
            reader: ReaderDecl::default(),
        });
    };

    let mut reader_fields = Fields::of(&format::READER, "a reader", node.span, args, sink);
    let end_node = reader_fields.take_or_positional("to");
    if end_node.is_none() {
        reader_fields.missing("to", "\"actor.port\"", sink);
    }
    let reader_decl = ReaderDecl {
        rate: reader_fields.take("rate").cloned(),
        window: reader_fields.take("window").cloned(),
        history: reader_fields.take("history").cloned(),
    };

    reader_fields.done(sink);
    let end_node = read::string(end_node?, "a reader's name in quotes", sink)?;
    Some(ToDecl {
        end: end_node,
        reader: reader_decl,
    })
}
