//! ONNX models as sub-models: `Onnx(file: "detector.onnx", state: {"state": "stateN"})`.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::{TokenType, Value, limits};

use super::join::{Edge, Half, Junction};
use super::{Env, Expander, Thing};
use crate::codes::Code;
use crate::diag::Diagnostic;
use crate::format;
use crate::model::{ActorDecl, Model};
use crate::onnx::{self, ImportOptions, SetValue, Writer};
use crate::parse::Node;
use crate::read::{self, Fields};
use crate::source::Span;
use crate::values::{Files, TokenKind, Tokens, TypeFact};

/// Name under which models import.
pub(super) const NAME: &str = "Onnx";

impl Expander<'_> {
    /// The ports of an imported model; its nodes become actors named behind the instance.
    pub(super) fn onnx(
        &mut self,
        model: &Model,
        decl: &ActorDecl,
        prefix: &str,
        env: &Env,
    ) -> Option<Thing> {
        let mut fields = Fields::of(
            &format::ONNX,
            format!("instance `{}`", decl.name.value),
            decl.span,
            &decl.args,
            self.sink,
        );

        let file = fields.take_or_positional("file");
        if file.is_none() {
            fields.missing("file", "\"model.onnx\"", self.sink);
        }
        let option_nodes = OptionNodes {
            state: fields.take("state"),
            dims: fields.take("dims"),
            set: fields.take("set"),
            without: fields.take("without"),
        };
        fields.done(self.sink);

        let file = self.substitute(file?, env);
        let file = read::string(&file, "a path in quotes", self.sink)?;
        let mut options = self.onnx_options(model, option_nodes, env)?;
        let path = model.dir.join(&file.value);

        // Passes that the machine does not gain from are left out as well.
        options.without.extend_from_slice(&self.files.without);
        let graph = match onnx::import_file(&path, self.registry, &options) {
            Ok(graph) => graph,
            Err(error) => {
                self.sink
                    .push(error.diagnostic(&path.display().to_string(), file.span));
                return None;
            }
        };

        self.files
            .passes
            .push((file.value.clone(), graph.reports.clone()));
        if self.net.actors.len() + graph.nodes.len() > limits::MAX_ACTORS {
            self.too_many(decl.span);
            return None;
        }

        // The nodes become actors below the instance, as those of a sub-model do.
        let inside = format!("{prefix}{}/", decl.name.value);
        let emitted = onnx::emit(
            &graph,
            &mut self.net,
            self.files,
            &inside,
            decl.op.span,
            &BTreeSet::new(),
        );

        Some(self.onnx_ports(emitted, &inside, decl))
    }

    /// The options as values; the first one that cannot be read ends it, because importing would go wrong without it.
    fn onnx_options(
        &mut self,
        model: &Model,
        nodes: OptionNodes<'_>,
        env: &Env,
    ) -> Option<ImportOptions> {
        let mut options = ImportOptions::default();
        if let Some(node) = nodes.state {
            let node = self.substitute(node, env);
            for (input, output) in read::map(&node, "a map from inputs to outputs", self.sink) {
                let output = read::string(output, "an output's name in quotes", self.sink)?;
                options.state.insert(input.value, output.value);
            }
        }

        if let Some(node) = nodes.dims {
            let node = self.substitute(node, env);
            for (name, size) in read::map(&node, "a map from dimensions to sizes", self.sink) {
                let size = read::count(size, "a size", 0, u64::from(u32::MAX), self.sink)?;
                options.dims.insert(name.value, size.value as u32);
            }
        }

        if let Some(node) = nodes.set {
            let node = self.substitute(node, env);
            for (name, value) in read::map(&node, "a map from inputs to values", self.sink) {
                let set_value = self.onnx_set_value(model, &name.value, value)?;
                options.set.insert(name.value, set_value);
            }
        }

        if let Some(node) = nodes.without {
            let node = self.substitute(node, env);
            for name in read::list(&node, "a list of passes", self.sink)? {
                let name = read::string(name, "a pass's name in quotes", self.sink)?;
                options.without.push(name.value);
            }
        }

        Some(options)
    }

    fn onnx_set_value(&mut self, model: &Model, input: &str, node: &Node) -> Option<SetValue> {
        let value = self.files.value(node, &model.dir, self.sink)?;
        let set_value = set_value(&value, self.files);
        if set_value.is_none() {
            self.sink.push(
                Diagnostic::new(
                    Code::E0203,
                    format!("`{input}` is set to something else than numbers"),
                )
                .primary(
                    node.span,
                    "should be a number, a list of numbers or an array",
                ),
            );
        }
        set_value
    }

    /// Junctions for the ports, edges from and to the actors behind them.
    fn onnx_ports(&mut self, emitted: onnx::Emitted, inside: &str, decl: &ActorDecl) -> Thing {
        let span = decl.op.span;
        let mut inputs = Vec::new();
        let mut input_junctions = BTreeMap::new();
        for (position, name, token) in &emitted.inputs {
            let junction = self.typed_junction(format!("{inside}{name}"), decl.span, token);
            input_junctions.insert(*position, junction);
            inputs.push((name.clone(), junction));
        }

        for wire in &emitted.wires {
            let Some(from) = writer_half(&wire.from, &input_junctions, span) else {
                continue;
            };
            let initial_token = Tokens {
                span,
                kind: TokenKind::Fill(1, None),
            };
            self.edges.push(Edge {
                fact: TypeFact::of(&wire.token, span),
                initial: wire.state.then_some(initial_token),
                ..plain_edge(from, Half::Actor(wire.to.clone()))
            });
        }

        // An input that nothing reads would be refused as unconnected outside: it is warned of here, by its own name.
        for (_, name) in emitted.unread_inputs() {
            self.sink.push(
                Diagnostic::new(
                    Code::W0201,
                    format!("the model does not use its input `{name}`"),
                )
                .primary(decl.span, "imported here")
                .help(format!("give it a value: `set: {{\"{name}\": 0}}`")),
            );
        }

        let mut outputs = Vec::new();
        for (name, token, from) in &emitted.outputs {
            let junction = self.typed_junction(format!("{inside}{name}"), decl.span, token);
            outputs.push((name.clone(), junction));
            if let Some(from) = writer_half(from, &input_junctions, span) {
                let edge = plain_edge(from, Half::Junction(junction, span));
                self.edges.push(edge);
            }
        }

        Thing::Instance {
            inputs,
            outputs,
            what: "an ONNX model".to_owned(),
        }
    }

    fn typed_junction(&mut self, name: String, span: Span, token: &TokenType) -> usize {
        let fact = TypeFact::of(token, span);
        self.junctions.push(Junction { name, span, fact });
        self.junctions.len() - 1
    }
}

/// Options of an import as they are written.
struct OptionNodes<'a> {
    state: Option<&'a Node>,
    dims: Option<&'a Node>,
    set: Option<&'a Node>,
    without: Option<&'a Node>,
}

/// The end of an edge at a writer, where `inputs` are the junctions of inputs by position.
fn writer_half(writer: &Writer, inputs: &BTreeMap<usize, usize>, span: Span) -> Option<Half> {
    match writer {
        Writer::Actor(end) => Some(Half::Actor(end.clone())),
        Writer::Input(position) => inputs
            .get(position)
            .map(|&junction| Half::Junction(junction, span)),
    }
}

/// An edge about which nothing is stated.
fn plain_edge(from: Half, to: Half) -> Edge {
    Edge {
        to: Some(to),
        ..Edge::dropped(from)
    }
}

/// A value of a map `set`; `None` where it holds something else than numbers.
fn set_value(value: &Value, files: &Files) -> Option<SetValue> {
    match value {
        Value::Tensor(blob, token_type) => {
            let data = files.blobs.get(*blob)?.clone();
            Some(SetValue::Tensor(token_type.clone(), data))
        }
        Value::List(list) => {
            let numbers: Option<Vec<f64>> = list.iter().map(number).collect();
            numbers.map(SetValue::Numbers)
        }
        other => number(other).map(|number| SetValue::Numbers(vec![number])),
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        other => other.as_float(),
    }
}
