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
use crate::read::{self, Fields};
use crate::source::Span;
use crate::values::{TokenKind, Tokens, TypeFact};

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
        let taken = ["state", "dims", "set", "without"].map(|name| fields.take(name));
        fields.done(self.sink);
        let file = self.substitute(file?, env);
        let file = read::string(&file, "a path in quotes", self.sink)?;
        let mut options = self.onnx_options(model, taken, env)?;
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

    fn onnx_options(
        &mut self,
        model: &Model,
        [state, dims, set, without]: [Option<&crate::parse::Node>; 4],
        env: &Env,
    ) -> Option<ImportOptions> {
        let mut options = ImportOptions::default();
        if let Some(node) = state {
            let node = self.substitute(node, env);
            for (input, output) in read::map(&node, "a map from inputs to outputs", self.sink) {
                let output = read::string(output, "an output's name in quotes", self.sink)?;
                options.state.insert(input.value, output.value);
            }
        }

        if let Some(node) = dims {
            let node = self.substitute(node, env);
            for (name, size) in read::map(&node, "a map from dimensions to sizes", self.sink) {
                let size = read::count(size, "a size", 0, u64::from(u32::MAX), self.sink)?;
                options.dims.insert(name.value, size.value as u32);
            }
        }

        if let Some(node) = set {
            let node = self.substitute(node, env);
            for (name, value) in read::map(&node, "a map from inputs to values", self.sink) {
                let span = value.span;
                let value = self.files.value(value, &model.dir, self.sink)?;
                match set_value(&value, self.files) {
                    Some(value) => options.set.insert(name.value, value),
                    None => {
                        self.sink.push(
                            Diagnostic::new(
                                Code::E0203,
                                format!("`{}` is set to something else than numbers", name.value),
                            )
                            .primary(span, "should be a number, a list of numbers or an array"),
                        );

                        return None;
                    }
                };
            }
        }

        if let Some(node) = without {
            let node = self.substitute(node, env);
            for name in read::list(&node, "a list of passes", self.sink)? {
                options
                    .without
                    .push(read::string(name, "a pass's name in quotes", self.sink)?.value);
            }
        }

        Some(options)
    }

    /// Junctions for the ports, edges from and to the actors behind them.
    fn onnx_ports(&mut self, emitted: onnx::Emitted, inside: &str, decl: &ActorDecl) -> Thing {
        let (mut inputs, mut outputs, mut places) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (place, name, token) in &emitted.inputs {
            let id = self.typed_junction(format!("{inside}{name}"), decl.span, token);
            places.insert(*place, id);
            inputs.push((name.clone(), id));
        }

        let span = decl.op.span;
        let half = |from: &Writer| match from {
            Writer::Actor(end) => Some(Half::Actor(end.clone())),
            Writer::Input(place) => places.get(place).map(|&id| Half::Junction(id, span)),
        };
        for wire in &emitted.wires {
            let initial = wire.state.then_some(Tokens {
                span,
                kind: TokenKind::Fill(1, None),
            });
            let fact = TypeFact::of(&wire.token, span);
            self.edges.extend(half(&wire.from).map(|from| Edge {
                fact,
                ..edge(from, Half::Actor(wire.to.clone()), initial)
            }));
        }

        // An input that nothing reads would be refused as unconnected outside: it is warned of here, by its own name.
        for (place, name, _) in &emitted.inputs {
            let read = emitted
                .wires
                .iter()
                .map(|w| &w.from)
                .chain(emitted.outputs.iter().map(|o| &o.2));
            if !read
                .into_iter()
                .any(|w| matches!(w, Writer::Input(p) if p == place))
            {
                self.sink.push(
                    Diagnostic::new(
                        Code::W0201,
                        format!("the model does not use its input `{name}`"),
                    )
                    .primary(decl.span, "imported here")
                    .help(format!("give it a value: `set: {{\"{name}\": 0}}`")),
                );
            }
        }

        for (name, token, from) in &emitted.outputs {
            let id = self.typed_junction(format!("{inside}{name}"), decl.span, token);
            outputs.push((name.clone(), id));
            self.edges
                .extend(half(from).map(|from| edge(from, Half::Junction(id, span), None)));
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

fn edge(from: Half, to: Half, initial: Option<Tokens>) -> Edge {
    Edge {
        to: Some(to),
        initial,
        ..Edge::dropped(from)
    }
}

/// A value of a map `set`.
fn set_value(value: &Value, files: &crate::values::Files) -> Option<SetValue> {
    let number = |v: &Value| match v {
        Value::Bool(b) => Some(f64::from(u8::from(*b))),
        other => other.as_float(),
    };
    match value {
        Value::Tensor(blob, ty) => Some(SetValue::Tensor(
            ty.clone(),
            files.blobs.get(*blob)?.clone(),
        )),
        Value::List(list) => list
            .iter()
            .map(number)
            .collect::<Option<_>>()
            .map(SetValue::Numbers),
        other => number(other).map(|n| SetValue::Numbers(vec![n])),
    }
}
