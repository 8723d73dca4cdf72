//! ONNX models: read, checked, folded and brought to tensor ops; then actors like any others.
//!
//! A node becomes an actor of the op `Nn` + its operator, with its constants as parameters; the newest meaning of
//! each operator holds, older opsets are brought to it. Nothing may depend on data: what cannot be static is refused
//! by name, with the way round.

mod catalogue;
mod contrib;
mod emit;
mod error;
mod factors;
mod graph;
mod import;
mod layout;
mod normalise;
mod passes;
mod products;
mod proto;
mod quantised;
mod ron;
mod scales;
mod scan;
mod winograd;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;
use rten_onnx::onnx::ModelProto;
use zbmd_backends::op::Registry;
use zbmd_ir::text::is_hidden;
use zbmd_ir::{Params, Role, TokenType, Value, limits};

pub(crate) use emit::{Emitted, Writer, emit};
pub use error::OnnxError;
pub(crate) use graph::Graph;
pub(crate) use passes::CPU_PASSES;
pub use ron::Text;

pub use crate::pass_report::PassReport;

use crate::net::{End, Link, Net, NetActor};
use crate::source::{Span, Spanned};
use crate::values::{Files, TokenKind, Tokens, TypeFact};

/// A value for an input of a model that becomes a constant.
#[derive(Clone, Debug, PartialEq)]
pub enum SetValue {
    /// Numbers in the input's dtype and shape; one number fills it.
    Numbers(Vec<f64>),
    /// A tensor: its elements, little-endian.
    Tensor(TokenType, Bytes),
}

/// How an ONNX model is imported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportOptions {
    /// Sizes of open dimensions, by their name or as `input.index`.
    pub dims: BTreeMap<String, u32>,
    /// Inputs that become constants.
    pub set: BTreeMap<String, SetValue>,
    /// Inputs that are closed as state, each with the output that gives its next token; the first one is zero.
    pub state: BTreeMap<String, String>,
    /// Samples that the model computes together. A token of its streams then is one of them, with 1 as its first
    /// dimension; that of the model itself, where it is open or 1, is this. `None` leaves tokens as the file has them.
    pub batch: Option<u32>,
    /// Passes over the imported graph to leave out, by name: see [`passes`].
    pub without: Vec<String>,
}

/// Names of the passes over an imported graph, in their order, with what each does.
pub fn passes() -> impl Iterator<Item = (&'static str, &'static str)> {
    passes::PASSES.iter().map(|p| (p.name, p.summary))
}

/// Names a new graph, checks it, removes what nothing reads and runs the passes.
fn finish(
    mut graph: Graph,
    name: String,
    registry: &Registry,
    options: &ImportOptions,
) -> Result<Graph, OnnxError> {
    let known_passes: Vec<&str> = passes().map(|pass| pass.0).collect();
    let mut skipped_passes = options.without.iter();
    if let Some(unknown) = skipped_passes.find(|name| !known_passes.contains(&name.as_str())) {
        return Err(OnnxError::Option(format!(
            "there is no pass `{unknown}`, only {}",
            known_passes.join(", ")
        )));
    }

    // Names are checked before passes make longer ones of them, and all of them: a node that is removed may still be
    // named by an error.
    graph.name = name;
    check_names(&graph)?;
    graph.sweep();
    graph.reports = passes::run(&mut graph, &options.without, registry);
    Ok(graph)
}

/// Refuses names that cannot be seen or are too long for a program. Names of ONNX files are odd, but whoever made one
/// with a control character in it did so to deceive, or has a damaged file.
fn check_names(graph: &Graph) -> Result<(), OnnxError> {
    let file_name = std::iter::once(("file", &graph.name));
    let value_names = graph.values.iter().map(|value| ("value", &value.name));
    let node_names = graph.nodes.iter().map(|node| ("node", &node.name));
    let output_names = graph.outputs.iter().map(|(name, _)| ("output", name));
    let all_names = file_name
        .chain(value_names)
        .chain(node_names)
        .chain(output_names);

    for (what, name) in all_names {
        let hidden_character = name.chars().find(|&character| is_hidden(character));
        let why = match hidden_character {
            Some(character) => format!(
                "has the character U+{:04X}, which cannot be seen",
                u32::from(character)
            ),
            None if name.len() > MAX_NAME_BYTES => format!(
                "has {} bytes, more than the limit of {MAX_NAME_BYTES}",
                name.len()
            ),
            None => continue,
        };

        // A name may be as long as the file: a message shows its beginning.
        let name_start: String = name.chars().take(200).collect();
        return Err(OnnxError::Malformed(format!(
            "the name `{name_start}` of a {what} {why}"
        )));
    }
    Ok(())
}

/// Bytes of a name in an ONNX file; sub-models and passes put more in front and behind.
const MAX_NAME_BYTES: usize = limits::MAX_NAME_BYTES / 2;

/// Whether a path names an ONNX model.
pub(crate) fn is_onnx(path: &Path) -> bool {
    path.extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("onnx"))
}

/// Imports a file. The model has the name of the file: names within ONNX files are mostly those of the exporter.
pub(crate) fn import_file(
    path: &Path,
    registry: &Registry,
    options: &ImportOptions,
) -> Result<Graph, OnnxError> {
    let file_stem = path.file_stem().unwrap_or_default();
    let name = file_stem.to_string_lossy().into_owned();
    let data_dir = path.parent().unwrap_or(Path::new(""));
    let read = || proto::read_file(path);
    let graph = import_batch(read, Some(data_dir), registry, options)?;
    finish(graph, name, registry, options)
}

/// Imports a model from memory; external data has no folder then.
pub(crate) fn import_bytes(
    bytes: &[u8],
    registry: &Registry,
    options: &ImportOptions,
) -> Result<Graph, OnnxError> {
    let graph = import_batch(|| proto::read_bytes(bytes), None, registry, options)?;
    finish(graph, "model".to_owned(), registry, options)
}

/// Imports what is read. A batch of several samples is imported for one sample before, which shows where in the graph the batch is.
fn import_batch(
    read: impl Fn() -> Result<ModelProto, OnnxError>,
    data_dir: Option<&Path>,
    registry: &Registry,
    options: &ImportOptions,
) -> Result<Graph, OnnxError> {
    let mut reshaped = import::ReshapedShapes::new();
    if options.batch.is_some_and(|batch| batch > 1) {
        let of_one = ImportOptions {
            batch: Some(1),
            ..options.clone()
        };
        let single = import::import(read()?, data_dir, registry, &of_one, reshaped)?;
        reshaped = single.reshaped;
    }
    let imported = import::import(read()?, data_dir, registry, options, reshaped)?;
    Ok(imported.graph)
}

/// Reads and checks a model from memory as a compilation does, without making actors of it: for fuzzing.
///
/// # Errors
/// Why it is refused.
pub fn check_onnx_bytes(
    bytes: &[u8],
    registry: &Registry,
    options: &ImportOptions,
) -> Result<(), OnnxError> {
    import_bytes(bytes, registry, options).map(drop)
}

/// An ONNX file as a model file and the tensors for the `.safetensors` file `store` beside it.
///
/// # Errors
/// Why it is refused.
pub fn to_text(
    path: &Path,
    store: &str,
    registry: &Registry,
    options: &ImportOptions,
) -> Result<Text, OnnxError> {
    let graph = import_file(path, registry, options)?;
    let mut files = Files::default();
    let net = net_of(&graph, &mut files);
    Ok(ron::text(&net, &files.blobs, store))
}

/// The bytes of a `.safetensors` file.
///
/// # Errors
/// [`OnnxError::Data`] for a tensor that it cannot hold.
pub fn store(text: &Text) -> Result<Vec<u8>, OnnxError> {
    crate::safetensor::write(&text.tensors).map_err(|e| OnnxError::Data {
        tensor: "weights".to_owned(),
        why: format!("cannot be stored: {e}"),
    })
}

/// A whole model as a net: its inputs are sources, its outputs sinks.
pub(crate) fn net_of(graph: &Graph, files: &mut Files) -> Net {
    let mut net = Net {
        name: graph.name.clone(),
        ..Net::default()
    };

    // Streams keep the names of the model's inputs and outputs, which are its interface: nodes make way.
    let input_names = graph.inputs.iter().map(|&i| graph.values[i].name.clone());
    let output_names = graph.outputs.iter().map(|(name, _)| name.clone());
    let streams: Vec<String> = input_names.chain(output_names).collect();
    let batch_names = streams.iter().map(|name| batch_name(name));
    let taken_names: BTreeSet<String> = batch_names.chain(streams.iter().cloned()).collect();
    let emitted = emit(graph, &mut net, files, "", Span::NONE, &taken_names);

    let mut sources = BTreeMap::new();
    let mut links = Vec::new();
    for (position, name, token) in &emitted.inputs {
        let sample = sample_of(token, graph.batch);
        let source = add_stream(&mut net, name, Role::Source, &sample);
        let mut writer = source;
        if sample != *token {
            writer = add_batch(&mut net, name, token);
            links.push(plain_link(actor_end(source), actor_end(writer)));
        }
        sources.insert(*position, writer);
    }

    for wire in &emitted.wires {
        let Some(from) = writer_end(&wire.from, &sources) else {
            continue;
        };
        let initial_token = Tokens {
            span: Span::NONE,
            kind: TokenKind::Fill(1, None),
        };
        links.push(Link {
            facts: vec![TypeFact::of(&wire.token, Span::NONE)],
            initial: wire.state.then_some(initial_token).into_iter().collect(),
            ..plain_link(from, wire.to.clone())
        });
    }

    let input_names: BTreeSet<&str> = emitted.inputs.iter().map(|i| i.1.as_str()).collect();
    for (name, token, from) in &emitted.outputs {
        // A model may give out an input unchanged under the same name: the streams need two.
        let sink_name = if input_names.contains(name.as_str()) {
            format!("{name}.out")
        } else {
            name.clone()
        };
        let sample = sample_of(token, graph.batch);
        let sink = add_stream(&mut net, &sink_name, Role::Sink, &sample);
        let mut reader = sink;
        if sample != *token {
            reader = add_batch(&mut net, &sink_name, &sample);
            links.push(plain_link(actor_end(reader), actor_end(sink)));
        }
        if let Some(from) = writer_end(from, &sources) {
            links.push(plain_link(from, actor_end(reader)));
        }
    }

    // The file declares its inputs, so one that nothing reads is not a mistake in wiring: it is dropped as if a channel
    // without readers said so.
    for (position, _) in emitted.unread_inputs() {
        net.dropped.push(actor_end(sources[&position]));
    }

    net.links = links;
    net
}

/// What a stream of one sample has of the tokens of a batch: 1 as its first dimension.
fn sample_of(token: &TokenType, batch: Option<u32>) -> TokenType {
    let mut sample = token.clone();
    if let (Some(first), Some(_)) = (sample.shape.first_mut(), batch) {
        *first = 1;
    }
    sample
}

/// Name of the actor that makes a batch of a stream's samples, or samples of a batch.
fn batch_name(stream: &str) -> String {
    format!("{stream}/batch")
}

/// Adds the actor between a stream of samples and the model: tokens of the given shape, as many as have the same elements.
fn add_batch(net: &mut Net, stream: &str, token: &TokenType) -> usize {
    let dims = token.shape.iter().map(|&dim| Value::Int(dim.into()));
    let shape = Value::List(dims.collect());
    net.actors.push(NetActor {
        name: batch_name(stream),
        span: Span::NONE,
        role: Role::Compute,
        op: Spanned::new("Reshape".to_owned(), Span::NONE),
        params: Params::from([("shape".to_owned(), shape)]),
        param_spans: BTreeMap::new(),
        stream: TypeFact::default(),
        rate: None,
    });
    net.actors.len() - 1
}

/// The end of a link at a writer, where `sources` are the actors of inputs by position.
fn writer_end(writer: &Writer, sources: &BTreeMap<usize, usize>) -> Option<End> {
    match writer {
        Writer::Actor(end) => Some(end.clone()),
        Writer::Input(position) => sources.get(position).map(|&source| actor_end(source)),
    }
}

/// The only port of an actor on that side.
fn actor_end(actor: usize) -> End {
    End {
        actor,
        port: None,
        span: Span::NONE,
    }
}

fn add_stream(net: &mut Net, name: &str, role: Role, token: &TokenType) -> usize {
    let op = if role == Role::Source {
        "Source"
    } else {
        "Sink"
    };
    net.actors.push(NetActor {
        name: name.to_owned(),
        span: Span::NONE,
        role,
        op: Spanned::new(op.to_owned(), Span::NONE),
        params: Params::new(),
        param_spans: BTreeMap::new(),
        stream: TypeFact::of(token, Span::NONE),
        rate: None,
    });
    net.actors.len() - 1
}

/// A link about which nothing is stated: the ops at its ends fix its rates.
fn plain_link(from: End, to: End) -> Link {
    Link {
        from,
        to,
        facts: Vec::new(),
        write_rates: Vec::new(),
        rates: Vec::new(),
        windows: Vec::new(),
        history: None,
        initial: Vec::new(),
    }
}
