//! ONNX models: read, checked, folded and brought to tensor ops; then actors like any others.
//!
//! A node becomes an actor of the op `Nn` + its operator, with its constants as parameters; the newest meaning of
//! each operator holds, older opsets are brought to it. Nothing may depend on data: what cannot be static is refused
//! by name, with the way round.

mod catalogue;
mod emit;
mod error;
mod graph;
mod import;
mod layout;
mod normalise;
mod passes;
mod proto;
mod ron;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_ir::text::is_hidden;
use zbmd_ir::{Params, Role, TokenType, limits};

pub(crate) use emit::{Emitted, Writer, emit};
pub use error::OnnxError;
pub(crate) use graph::Graph;
pub(crate) use passes::CHANNELS_LAST;
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
    /// Passes over the imported graph to leave out, by name: see [`passes`].
    pub without: Vec<String>,
}

/// Names of the passes over an imported graph, in their order, with what each does.
pub fn passes() -> impl Iterator<Item = (&'static str, &'static str)> {
    passes::PASSES.iter().map(|p| (p.name, p.summary))
}

/// Sweeps a new graph and runs the passes.
fn finish(mut graph: Graph, name: String, options: &ImportOptions) -> Result<Graph, OnnxError> {
    let known: Vec<&str> = passes().map(|p| p.0).collect();
    if let Some(wrong) = options
        .without
        .iter()
        .find(|w| !known.contains(&w.as_str()))
    {
        return Err(OnnxError::Option(format!(
            "there is no pass `{wrong}`, only {}",
            known.join(", ")
        )));
    }

    graph.name = name;
    check_names(&graph)?;
    graph.sweep();
    graph.reports = passes::run(&mut graph, &options.without);
    Ok(graph)
}

/// Refuses names that cannot be seen or are too long for a program. Names of ONNX files are odd, but whoever made one
/// with a control character in it did so to deceive, or has a damaged file.
fn check_names(graph: &Graph) -> Result<(), OnnxError> {
    let values = graph.values.iter().map(|value| ("value", &value.name));
    let nodes = graph.nodes.iter().map(|node| ("node", &node.name));
    let outputs = graph.outputs.iter().map(|(name, _)| ("output", name));
    let names = [("file", &graph.name)].into_iter();
    for (what, name) in names.chain(values).chain(nodes).chain(outputs) {
        let why = match name.chars().find(|&c| is_hidden(c)) {
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
        let shown: String = name.chars().take(200).collect();
        return Err(OnnxError::Malformed(format!(
            "the name `{shown}` of a {what} {why}"
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

/// Imports a file.
pub(crate) fn import_file(
    path: &Path,
    registry: &Registry,
    options: &ImportOptions,
) -> Result<Graph, OnnxError> {
    let model = proto::read_file(path)?;
    let name = path
        .file_stem()
        .map(|s| s.to_string_lossy().into_owned())
        .unwrap_or_default();
    let dir = path.parent().unwrap_or(Path::new(""));
    finish(
        import::import(model, Some(dir), registry, options)?,
        name,
        options,
    )
}

/// Imports a model from memory; external data has no folder then.
pub(crate) fn import_bytes(
    bytes: &[u8],
    registry: &Registry,
    options: &ImportOptions,
) -> Result<Graph, OnnxError> {
    finish(
        import::import(proto::read_bytes(bytes)?, None, registry, options)?,
        "model".to_owned(),
        options,
    )
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
    let inputs = graph.inputs.iter().map(|&i| graph.values[i].name.clone());
    let taken: BTreeSet<String> = inputs
        .chain(graph.outputs.iter().map(|o| o.0.clone()))
        .collect();
    let emitted = emit(graph, &mut net, files, "", Span::NONE, &taken);
    let mut sources = BTreeMap::new();
    for (place, name, token) in &emitted.inputs {
        sources.insert(*place, stream(&mut net, name, Role::Source, token));
    }
    let end = |actor: usize| End {
        actor,
        port: None,
        span: Span::NONE,
    };

    let writer = |from: &Writer| match from {
        Writer::Actor(end) => Some(end.clone()),
        Writer::Input(place) => sources.get(place).map(|&s| end(s)),
    };
    let mut links = Vec::new();
    for wire in &emitted.wires {
        let initial = wire.state.then_some(Tokens {
            span: Span::NONE,
            kind: TokenKind::Fill(1, None),
        });
        links.extend(writer(&wire.from).map(|from| Link {
            facts: vec![TypeFact::of(&wire.token, Span::NONE)],
            ..link(from, wire.to.clone(), initial.into_iter().collect())
        }));
    }

    let names: BTreeSet<String> = emitted.inputs.iter().map(|i| i.1.clone()).collect();
    for (name, token, from) in &emitted.outputs {
        // An output may be an input as it came: streams still need names of their own.
        let name = if names.contains(name) {
            format!("{name}.out")
        } else {
            name.clone()
        };
        let sink = stream(&mut net, &name, Role::Sink, token);
        links.extend(writer(from).map(|from| link(from, end(sink), Vec::new())));
    }
    // What nobody reads of an input is dropped knowingly: the file says that it is one.
    for (place, _, _) in &emitted.inputs {
        let read = emitted
            .wires
            .iter()
            .map(|w| &w.from)
            .chain(emitted.outputs.iter().map(|o| &o.2));
        if !read
            .into_iter()
            .any(|w| matches!(w, Writer::Input(p) if p == place))
        {
            net.dropped.push(end(sources[place]));
        }
    }

    net.links = links;
    net
}

fn stream(net: &mut Net, name: &str, role: Role, token: &TokenType) -> usize {
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

fn link(from: End, to: End, initial: Vec<Tokens>) -> Link {
    Link {
        from,
        to,
        facts: Vec::new(),
        write_rates: Vec::new(),
        rates: Vec::new(),
        windows: Vec::new(),
        history: None,
        initial,
    }
}
