//! Sub-models out of the way: puts parameters in, joins channels through the ports of sub-models, names actors by
//! their path. The result is a [`Net`].

mod ends;
mod gate;
mod instance;
mod join;
mod onnx;
mod streams;

use std::collections::{BTreeMap, BTreeSet};

use zbmd_backends::op::Registry;
use zbmd_ir::{Params, Role, limits};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, suggest};
use crate::live;
use crate::model::{ActorDecl, ChannelDecl, Model, ModelDef, PortDecl, ReaderDecl, StreamDecl};
use crate::net::{Net, NetActor, Pin};
use crate::parse::{Arg, Node, NodeKind};
use crate::read;
use crate::source::{Span, Spanned};
use crate::values::{Files, TypeFact};
use gate::GatedDecl;
use join::{Edge, Junction};

/// Sub-models inside each other.
const MAX_INSTANCE_DEPTH: usize = 64;
/// Bytes of an actor's name with those of the instances around it; the compiler adds numbers of replicas and forks.
const MAX_PATH_BYTES: usize = limits::MAX_NAME_BYTES / 4 * 3;
/// Values written by putting parameters in, over the whole model: `[$a, $a]` through many levels doubles each time.
const MAX_SUBSTITUTED: usize = 1 << 22;

/// Makes a model flat.
pub(crate) fn expand(
    model: &Model,
    given: &[(Spanned<String>, Node)],
    registry: &Registry,
    files: &mut Files,
    sink: &mut Sink,
) -> Net {
    let model_name = model
        .name
        .as_ref()
        .map_or("model", |n| n.value.as_str())
        .to_owned();
    let mut expander = Expander {
        registry,
        files,
        sink,
        net: Net {
            name: model_name,
            ..Net::default()
        },
        edges: Vec::new(),
        junctions: Vec::new(),
        used: BTreeSet::new(),
        substituted: 0,
        instances: 0,
        name_bytes: 0,
        pins: Vec::new(),
    };

    // The outermost model has no outside that ports could lead to.
    for port in model.inputs.iter().chain(&model.outputs) {
        expander.sink.push(
            Diagnostic::new(
                Code::E0215,
                format!("the model has a port `{}`", port.name.value),
            )
            .primary(port.name.span, "ports belong to sub-models")
            .help("a model that is compiled talks to the outside through `sources` and `sinks`"),
        );
    }

    let mut param_values = expander.default_params(model);
    expander.enter_given(model, given, &mut param_values);
    live::give_names(&mut param_values, "");
    let scope = Scope { model, outer: None };
    expander.expand_body(&scope, "", &param_values, &mut Vec::new());
    expander.report_unused(model);
    expander.into_net(model)
}

/// A model and the models around it, whose sub-models it may use.
struct Scope<'a> {
    model: &'a Model,
    outer: Option<&'a Scope<'a>>,
}

type Env = BTreeMap<String, Node>;

/// What a name means in one model.
enum Thing {
    Source(usize),
    Sink(usize),
    Actor(usize),
    /// Ports of an instance with their junctions.
    Instance {
        inputs: Vec<(String, usize)>,
        outputs: Vec<(String, usize)>,
        what: String,
    },
    Input(usize),
    Output(usize),
    /// Something that could not be read; already reported.
    Bad,
}

type Names = BTreeMap<String, (Thing, Span)>;

/// Parameters as read, with where each was written (as in [`NetActor::param_spans`]).
#[derive(Default)]
struct ReadParams {
    values: Params,
    spans: BTreeMap<String, Span>,
}

struct Expander<'a> {
    registry: &'a Registry,
    files: &'a mut Files,
    sink: &'a mut Sink,
    net: Net,
    edges: Vec<Edge>,
    junctions: Vec<Junction>,
    /// Sub-models that have instances, by their place.
    used: BTreeSet<Span>,
    substituted: usize,
    instances: usize,
    /// Bytes of the names of actors and instances so far.
    name_bytes: usize,
    pins: Vec<(Spanned<String>, Spanned<String>)>,
}

impl Expander<'_> {
    /// Defaults of a model's parameters; `required` ones are left out.
    fn default_params(&mut self, model: &Model) -> Env {
        let mut param_values = Env::new();
        for (name, node) in &model.params {
            if !matches!(&node.kind, NodeKind::Word(w) if w == "required") {
                let default_value = self.substitute(node, &Env::new());
                param_values.insert(name.value.clone(), default_value);
            }
        }
        param_values
    }

    /// Parameters that are given from outside.
    fn enter_given(&mut self, model: &Model, given: &[(Spanned<String>, Node)], env: &mut Env) {
        for (name, node) in given {
            let is_known = model
                .params
                .iter()
                .any(|(known, _)| known.value == name.value);
            if is_known {
                // A number that is given to a live parameter is where it begins.
                let given_value = match env.get(&name.value) {
                    Some(default) => live::with_first_value(default, node),
                    None => node.clone(),
                };
                env.insert(name.value.clone(), given_value);
            } else {
                let known_names = model.params.iter().map(|(n, _)| n.value.as_str());
                self.sink.push(
                    Diagnostic::new(
                        Code::E0213,
                        format!("the model has no parameter `{}`", name.value),
                    )
                    .primary(name.span, "given here")
                    .help(suggest(&name.value, known_names)),
                );
            }
        }
    }

    /// The node with its parameters put in.
    fn substitute(&mut self, node: &Node, env: &Env) -> Node {
        self.substituted += 1;
        if self.substituted > MAX_SUBSTITUTED {
            self.sink.push(
                Diagnostic::new(
                    Code::E0505,
                    format!("sub-models write out more than the limit of {MAX_SUBSTITUTED} values"),
                )
                .primary(node.span, "here the limit was reached")
                .help("put large constants into .npy files"),
            );

            return Node {
                span: node.span,
                kind: NodeKind::Bad,
            };
        }

        let kind = match &node.kind {
            NodeKind::Param(name) => match env.get(name) {
                // Errors should point at the value that was given, so its own span stays. It is complete already:
                // parameters in it were those of the model around, so it gets no environment.
                Some(param_value) => {
                    let param_value = param_value.clone();
                    return self.substitute(&param_value, &Env::new());
                }
                None => {
                    let known_names = env.keys().map(String::as_str);
                    let help = self.sink.suggest(name, known_names);
                    self.sink.push(
                        Diagnostic::new(Code::E0213, format!("there is no parameter `{name}`"))
                            .primary(node.span, "used here")
                            .help(help),
                    );
                    NodeKind::Bad
                }
            },
            NodeKind::List(items) => {
                NodeKind::List(items.iter().map(|n| self.substitute(n, env)).collect())
            }
            NodeKind::Map(pairs) => NodeKind::Map(
                pairs
                    .iter()
                    .map(|(k, v)| (k.clone(), self.substitute(v, env)))
                    .collect(),
            ),
            NodeKind::Call(name, args) => {
                let arg = |a: &Arg| Arg {
                    name: a.name.clone(),
                    value: self.substitute(&a.value, env),
                };
                NodeKind::Call(name.clone(), args.iter().map(arg).collect())
            }
            other => other.clone(),
        };

        Node {
            span: node.span,
            kind,
        }
    }

    fn substitute_some(&mut self, node: &Option<Node>, env: &Env) -> Option<Node> {
        node.as_ref()
            .map(|n| self.substitute(n, env))
            .filter(|n| n.kind != NodeKind::Bad)
    }

    fn type_fact(&mut self, dtype: &Option<Node>, shape: &Option<Node>, env: &Env) -> TypeFact {
        // Both parameters are put in before either is read: errors come in the order of the steps.
        let dtype_node = self.substitute_some(dtype, env);
        let shape_node = self.substitute_some(shape, env);
        let read_dtype = dtype_node.and_then(|n| read::dtype(&n, self.sink));
        let read_shape = shape_node.and_then(|n| read::shape(&n, self.sink));

        // Stated and not read means reported: inference must not complain once more that the type is unknown.
        let is_bad =
            dtype.is_some() != read_dtype.is_some() || shape.is_some() != read_shape.is_some();
        TypeFact {
            dtype: read_dtype,
            shape: read_shape,
            bad: is_bad,
        }
    }

    fn count(&mut self, node: &Option<Node>, what: &str, env: &Env) -> Option<Spanned<u64>> {
        let node = self.substitute_some(node, env)?;
        read::count(&node, what, 1, limits::MAX_RATE, self.sink)
    }

    /// One model's actors and channels; names get `prefix`.
    fn expand_body(
        &mut self,
        scope: &Scope<'_>,
        prefix: &str,
        env: &Env,
        chain: &mut Vec<(Span, String)>,
    ) -> Names {
        let model = scope.model;
        // Everything that has a name comes before the channels, which may name what is declared after them.
        let mut known_things = Names::new();
        for (decl, role) in (model.sources.iter().map(|s| (s, Role::Source)))
            .chain(model.sinks.iter().map(|s| (s, Role::Sink)))
        {
            let stream_thing = self.stream(decl, role, prefix, env);
            self.name(&mut known_things, &decl.name, stream_thing);
        }

        for (ports, is_input) in [(&model.inputs, true), (&model.outputs, false)] {
            // A model that is compiled has no outside for its ports; that was reported.
            for port in ports.iter() {
                let id = self.add_junction(port, prefix, env);
                let port_thing = if is_input {
                    Thing::Input(id)
                } else {
                    Thing::Output(id)
                };
                self.name(&mut known_things, &port.name, port_thing);
            }
        }

        // Checked before each actor, not once at the end: instances within instances multiply their actors.
        let mut gated = Vec::new();
        for decl in &model.actors {
            if self.net.actors.len() >= limits::MAX_ACTORS {
                self.too_many(decl.span);
                break;
            }

            if !self.count_name(prefix, &decl.name) {
                break;
            }
            let first_actor = self.net.actors.len();
            let gate_node = self.gate_node(scope, decl);
            let ungated_decl = gate_node.map(|_| gate::without_gate(decl));
            let op_decl = ungated_decl.as_ref().unwrap_or(decl);
            let actor_thing = if decl.op.value == onnx::NAME {
                self.onnx(model, op_decl, prefix, env).unwrap_or(Thing::Bad)
            } else if self.is_instance(decl) {
                self.instance(scope, op_decl, prefix, env, chain)
                    .unwrap_or(Thing::Bad)
            } else {
                self.actor(model, op_decl, prefix, env)
            };
            self.name(&mut known_things, &decl.name, actor_thing);
            if let Some(node) = gate_node {
                gated.push(GatedDecl {
                    decl,
                    node,
                    actors: first_actor..self.net.actors.len(),
                });
            }
        }

        // Names of declarations that could not be read exist: a channel that uses one is not reported as well.
        for name in &model.broken {
            known_things
                .entry(name.value.clone())
                .or_insert((Thing::Bad, name.span));
        }

        for gated_decl in gated {
            self.gate(gated_decl, prefix, &known_things, env);
        }
        self.net.lost |= model.lost_channels;
        for channel in &model.channels {
            self.channel(model, channel, &known_things, env);
        }
        self.read_pins(model, prefix);
        known_things
    }

    /// Counts the name of an actor or instance towards the limits; false where one is passed. Each level of instances
    /// puts its own name in front, so that a short text can write out long names, and many of them.
    fn count_name(&mut self, prefix: &str, name: &Spanned<String>) -> bool {
        let path_bytes = prefix.len() + name.value.len();
        // Reported once: every level of instances stops here too.
        if self.name_bytes > limits::MAX_NAMES_BYTES {
            return false;
        }
        self.name_bytes += path_bytes;
        let message = if path_bytes > MAX_PATH_BYTES {
            format!(
                "the name of an actor with its instances has {path_bytes} bytes, more than the limit of {MAX_PATH_BYTES}"
            )
        } else if self.name_bytes > limits::MAX_NAMES_BYTES {
            format!(
                "the names of all actors together have more bytes than the limit of {}",
                limits::MAX_NAMES_BYTES
            )
        } else {
            return true;
        };
        self.sink.push(
            Diagnostic::new(Code::E0505, message)
                .primary(name.span, "here the limit was reached")
                .help("choose shorter names, or nest sub-models less"),
        );
        false
    }

    fn too_many(&mut self, span: Span) {
        let max = limits::MAX_ACTORS;
        self.sink.push(
            Diagnostic::new(
                Code::E0505,
                format!("the model has more actors than the limit of {max}"),
            )
            .primary(span, "here the limit was reached"),
        );
    }

    fn read_pins(&mut self, model: &Model, prefix: &str) {
        for (name, device) in &model.pins {
            let full_name = Spanned::new(format!("{prefix}{}", name.value), name.span);
            self.pins.push((full_name, device.clone()));
        }
    }

    fn name(&mut self, names: &mut Names, name: &Spanned<String>, thing: Thing) {
        if let Some((_, first)) = names.get(&name.value) {
            // Whichever of the two a channel means, the other seems unconnected.
            self.net.lost = true;
            self.sink.push(
                Diagnostic::new(Code::E0205, format!("the name `{}` is used twice", name.value))
                    .primary(name.span, "used again here")
                    .context(*first, "first used here")
                    .help("sources, sinks, actors and ports of one model share their names: choose another"),
            );
            return;
        }
        names.insert(name.value.clone(), (thing, name.span));
    }

    fn stream(&mut self, decl: &StreamDecl, role: Role, prefix: &str, env: &Env) -> Thing {
        if !prefix.is_empty() {
            let stream_kind = if role == Role::Source {
                "source"
            } else {
                "sink"
            };
            self.sink.push(
                Diagnostic::new(
                    Code::E0215,
                    format!("the sub-model has a {stream_kind} `{}`", decl.name.value),
                )
                .primary(decl.name.span, "streams belong to the outermost model")
                .help(
                    "give the sub-model `inputs` and `outputs`, and join them to streams outside",
                ),
            );

            return Thing::Bad;
        }

        let stream_fact = self.type_fact(&decl.dtype, &decl.shape, env);
        let stream_rate = self.count(&decl.rate, "a rate", env);
        let stream_params = self.stream_params(decl, role, env);

        // Streams have no op: the word is what messages call them.
        let stream_op = if role == Role::Source {
            "Source"
        } else {
            "Sink"
        };
        self.net.actors.push(NetActor {
            name: decl.name.value.clone(),
            span: decl.name.span,
            role,
            op: Spanned::new(stream_op.to_owned(), decl.name.span),
            params: stream_params.values,
            param_spans: stream_params.spans,
            stream: stream_fact,
            rate: stream_rate,
        });
        let id = self.net.actors.len() - 1;
        if role == Role::Source {
            Thing::Source(id)
        } else {
            Thing::Sink(id)
        }
    }

    fn add_junction(&mut self, port: &PortDecl, prefix: &str, env: &Env) -> usize {
        let type_fact = self.type_fact(&port.dtype, &port.shape, env);
        let full_name = format!("{prefix}{}", port.name.value);
        self.junctions.push(Junction {
            name: full_name,
            span: port.name.span,
            fact: type_fact,
        });
        self.junctions.len() - 1
    }

    fn actor(&mut self, model: &Model, decl: &ActorDecl, prefix: &str, env: &Env) -> Thing {
        let actor_name = format!("{prefix}{}", decl.name.value);
        let op = self.registry.op(&decl.op.value);
        if op.is_none() && decl.op.value != "Custom" {
            let known_ops = self.registry.names().chain(["Sub", "Custom", onnx::NAME]);
            self.sink.push(
                Diagnostic::new(Code::E0210, format!("there is no op `{}`", decl.op.value))
                    .primary(decl.op.span, "unknown op")
                    .help(format!(
                        "{}; `zbmdc ops` lists them all",
                        op_help(&decl.op.value, known_ops)
                    )),
            );

            return Thing::Bad;
        }

        // Custom actors have one parameter that may stand without its name.
        let positional = op.map_or(&["name"][..], |op| op.positional());
        let Some(params) = self.actor_params(model, decl, positional, env) else {
            return Thing::Bad;
        };

        self.net.actors.push(NetActor {
            name: actor_name,
            span: decl.name.span,
            role: Role::Compute,
            op: decl.op.clone(),
            params: params.values,
            param_spans: params.spans,
            stream: TypeFact::default(),
            rate: None,
        });
        Thing::Actor(self.net.actors.len() - 1)
    }

    /// An actor's arguments by name, those without one named by their position. `None` if one cannot be read; all
    /// are tried, so that all their mistakes are reported at once.
    fn actor_params(
        &mut self,
        model: &Model,
        decl: &ActorDecl,
        positional: &[&str],
        env: &Env,
    ) -> Option<ReadParams> {
        let mut params = ReadParams::default();
        let mut next_positional = positional.iter();
        let mut is_bad = false;
        for arg in &decl.args {
            let Some(key) = arg
                .name
                .as_ref()
                .map(|n| n.value.as_str())
                .or_else(|| next_positional.next().copied())
            else {
                self.unnamed_argument(decl, arg.value.span, positional.len());
                is_bad = true;
                continue;
            };

            let span = arg
                .name
                .as_ref()
                .map_or(arg.value.span, |n| n.span.to(arg.value.span));
            // The first value stays, and no second error follows from the other one.
            if let Some(first) = params.spans.get(key) {
                self.sink.push(read::twice("parameter", key, span, *first));
                continue;
            }

            // A value may be a parameter of the model: the place where it was written stays the argument's.
            let node = self.substitute(&arg.value, env);
            remember(&mut params.spans, key, span, &node);
            match self.files.value(&node, &model.dir, self.sink) {
                Some(value) => {
                    params.values.insert(key.to_owned(), value);
                }
                None => is_bad = true,
            }
        }

        (!is_bad).then_some(params)
    }

    fn unnamed_argument(&mut self, decl: &ActorDecl, span: Span, max: usize) {
        let op = &decl.op.value;
        self.sink.push(
            Diagnostic::new(
                Code::E0302,
                format!("`{op}` takes {max} arguments without a name, this is one more"),
            )
            .primary(span, "which parameter is this?")
            .help(format!(
                "write `name: value`; `zbmdc ops {op}` lists its parameters"
            )),
        );
    }

    fn channel(&mut self, model: &Model, decl: &ChannelDecl, names: &Names, env: &Env) {
        let type_fact = self.type_fact(&decl.dtype, &decl.shape, env);
        let write_rate = self.count(&decl.rate, "a rate", env);
        let initial_node = self.substitute_some(&decl.initial, env);
        let initial_tokens =
            initial_node.and_then(|n| self.files.tokens(&n, &model.dir, self.sink));
        let from = self.half(&decl.from, names, true);

        // A channel without readers says that the output is left unread on purpose.
        if decl.to.is_empty()
            && let Some(from) = from.clone()
        {
            self.edges.push(Edge::dropped(from));
        }
        for to in &decl.to {
            let reader_end = self.half(&to.end, names, false);
            // What a reader states itself goes before what its channel states for all.
            let reader = ReaderDecl {
                rate: to.reader.rate.clone(),
                window: to
                    .reader
                    .window
                    .as_ref()
                    .or(decl.reader.window.as_ref())
                    .cloned(),
                history: to
                    .reader
                    .history
                    .as_ref()
                    .or(decl.reader.history.as_ref())
                    .cloned(),
            };

            let read_rate = self.count(&reader.rate, "a rate", env);
            let read_window = self.count(&reader.window, "a window", env);
            let history_node = self.substitute_some(&reader.history, env);
            let history_tokens =
                history_node.and_then(|n| self.files.tokens(&n, &model.dir, self.sink));

            // An end that names nothing has been reported; its actor's inputs may now seem unconnected.
            let (Some(from), Some(reader_end)) = (from.clone(), reader_end) else {
                self.net.lost = true;
                continue;
            };
            self.edges.push(Edge {
                from,
                to: Some(reader_end),
                fact: type_fact.clone(),
                write_rate: write_rate.clone(),
                rate: read_rate,
                window: read_window,
                history: history_tokens,
                initial: initial_tokens.clone(),
            });
        }
    }

    /// Warns of sub-models without an instance.
    fn report_unused(&mut self, model: &Model) {
        for (name, def) in &model.models {
            let inner = match def {
                ModelDef::Inline(m) => m,
                ModelDef::File(m) => &**m,
                ModelDef::Bad => continue,
            };

            // Only what is used is looked into: within an unused model everything is unused.
            if self.used.contains(&inner.span) {
                self.report_unused(inner);
            } else {
                self.sink.push(
                    Diagnostic::new(
                        Code::W0202,
                        format!("sub-model `{}` is never used", name.value),
                    )
                    .primary(name.span, "defined here")
                    .help(format!(
                        "make an instance with `Sub(\"{}\")`, or remove it",
                        name.value
                    )),
                );
            }
        }
    }

    fn into_net(mut self, model: &Model) -> Net {
        let edges = std::mem::take(&mut self.edges);
        join::join(&mut self.net, edges, &self.junctions, self.sink);
        if self.net.actors.is_empty() && self.sink.errors() == 0 {
            self.sink.push(
                Diagnostic::new(Code::E0218, "the model has no actors")
                    .primary(model.span, "nothing to run")
                    .help("add `sources`, `actors`, `sinks` and `channels` between them"),
            );
        }
        self.pin_actors();
        self.net
    }

    /// Gives the actors that pins name their devices: an actor, or all within an instance. O(names * log names).
    fn pin_actors(&mut self) {
        // In the order of names, what is within an instance stands together.
        let mut by_name: Vec<(&str, usize)> = Vec::new();
        for (id, actor) in self.net.actors.iter().enumerate() {
            by_name.push((&actor.name, id));
        }
        by_name.sort_unstable();

        let mut found_pins = Vec::new();
        for (name, device) in &self.pins {
            // The actor of this name, and those whose names begin with it and a slash: two ranges, as other names may
            // sort between them.
            let inside = format!("{}/", name.value);
            let first_named = by_name.partition_point(|(other, _)| *other < name.value.as_str());
            let first_contained = by_name.partition_point(|(other, _)| *other < inside.as_str());
            let exactly_named = by_name[first_named..].iter();
            let exactly_named = exactly_named.take_while(|(other, _)| *other == name.value);
            let contained_actors = by_name[first_contained..].iter();
            let contained_actors =
                contained_actors.take_while(|(other, _)| other.starts_with(&inside));

            // The order of the model again, not that of the names.
            let mut pinned_actors: Vec<usize> = exactly_named
                .chain(contained_actors)
                .map(|&(_, id)| id)
                .collect();
            pinned_actors.sort_unstable();

            // After other errors the actor may only be missing because it could not be read.
            if pinned_actors.is_empty() && self.sink.errors() == 0 {
                let known_names = self.net.actors.iter().map(|a| a.name.as_str());
                let help = self.sink.suggest(&name.value, known_names);
                self.sink.push(
                    Diagnostic::new(
                        Code::E0502,
                        format!("a pin names `{}`, which does not exist", name.value),
                    )
                    .primary(name.span, "no actor or instance of this name")
                    .help(help),
                );
            }

            found_pins.extend(pinned_actors.into_iter().map(|actor| Pin {
                actor,
                device: device.clone(),
            }));
        }

        self.net.pins.extend(found_pins);
    }
}

/// Notes where a parameter, and every key of a map in it, was written.
fn remember(spans: &mut BTreeMap<String, Span>, name: &str, span: Span, node: &Node) {
    spans.insert(name.to_owned(), span);
    if let NodeKind::Map(pairs) = &node.kind {
        for (key, value) in pairs {
            if let NodeKind::Str(key) = &key.kind {
                remember(spans, &format!("{name}.{key}"), value.span, value);
            }
        }
    }
}

fn op_help<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> String {
    crate::diag::did_you_mean(written, known).unwrap_or_else(|| "check the spelling".to_owned())
}
