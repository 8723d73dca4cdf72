//! Live parameters: `Live(1.0, min: 0.0, max: 10.0)` as it is written, and whether an op can have one.

use std::collections::BTreeMap;

use zbmd_backends::op::{OpError, Registry, ResolveCx, Signature};
use zbmd_ir::{LiveParameter, Params, plain_params, visit_live};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink};
use crate::format;
use crate::net::NetActor;
use crate::parse::{Arg, Node, NodeKind};
use crate::read::{self, Fields};
use crate::source::{Span, Spanned};
use crate::values::Files;

/// The word before the brackets.
pub(crate) const NAME: &str = "Live";
/// The argument that [`give_names`] adds: models cannot write it, since fields begin with a letter.
const NAME_FIELD: &str = "=name";

/// Gives the live parameters of a model their names, which are those of the model's parameters behind `prefix`, the path
/// of the model's instance. Those that came from the model around have theirs.
pub(crate) fn give_names(params: &mut BTreeMap<String, Node>, prefix: &str) {
    for (name, node) in params {
        let NodeKind::Call(Some(word), args) = &mut node.kind else {
            continue;
        };
        let is_named = args.iter().any(is_name_field);
        if word.value == NAME && !is_named {
            let span = node.span;
            args.push(Arg {
                name: Some(Spanned::new(NAME_FIELD.to_owned(), span)),
                value: Node {
                    span,
                    kind: NodeKind::Str(format!("{prefix}{name}")),
                },
            });
        }
    }
}

fn is_name_field(arg: &Arg) -> bool {
    arg.name
        .as_ref()
        .is_some_and(|name| name.value == NAME_FIELD)
}

/// What a parameter is when `given` is given to it from outside: a live one begins with it.
pub(crate) fn with_first_value(default: &Node, given: &Node) -> Node {
    let mut node = default.clone();
    if let NodeKind::Call(Some(word), args) = &mut node.kind
        && word.value == NAME
        && !matches!(given.kind, NodeKind::Call(..))
    {
        let is_value = |arg: &&mut Arg| arg.name.as_ref().is_none_or(|n| n.value == "value");
        if let Some(value) = args.iter_mut().find(is_value) {
            value.value = given.clone();
            return node;
        }
    }
    given.clone()
}

/// Reads `Live(…)`, with the name that [`give_names`] has put in.
pub(crate) fn read(args: &[Arg], span: Span, sink: &mut Sink) -> Option<LiveParameter> {
    let (named, written): (Vec<&Arg>, Vec<&Arg>) = args.iter().partition(|arg| is_name_field(arg));
    let written: Vec<Arg> = written.into_iter().cloned().collect();
    let mut fields = Fields::of(&format::LIVE, "a live parameter", span, &written, sink);
    let value = fields.take_or_positional("value");
    if value.is_none() {
        fields.missing("value", "1.0", sink);
    }
    let min = fields.need("min", "0.0", sink);
    let max = fields.need("max", "1.0", sink);
    fields.done(sink);

    let (value, min, max) = (value?, min?, max?);
    let min_value = read::float(min, "a number", sink);
    let max_value = read::float(max, "a number", sink);
    let initial = numbers(value, sink);
    let (min_value, max_value, initial) = (min_value?, max_value?, initial?);
    let Some(Arg {
        value: Node {
            kind: NodeKind::Str(name),
            ..
        },
        ..
    }) = named.first()
    else {
        let diagnostic = Diagnostic::new(Code::E0312, "a live parameter has no name")
            .primary(span, "nobody could change it")
            .help("declare it in `params: { \"gain\": Live(…) }` and write `$gain` here");
        sink.push(diagnostic);
        return None;
    };

    let parameter = LiveParameter {
        name: name.clone(),
        is_list: matches!(value.kind, NodeKind::List(_)),
        initial,
        min: min_value.value,
        max: max_value.value,
    };
    let is_range = parameter.min.is_finite() && parameter.max.is_finite();
    let refusal = if !is_range || parameter.min > parameter.max {
        Some(format!(
            "`{name}` has the range {} to {}",
            parameter.min, parameter.max
        ))
    } else if parameter.initial.is_empty() {
        Some(format!("`{name}` is a list without numbers"))
    } else {
        let checked = parameter.check(&parameter.initial).err();
        checked.map(|error| error.to_string())
    };
    if let Some(refusal) = refusal {
        let diagnostic = Diagnostic::new(Code::E0312, refusal)
            .primary(span, "declared here")
            .help("give a first value between `min` and `max`");
        sink.push(diagnostic);
        return None;
    }
    Some(parameter)
}

/// A number, or those of a list.
fn numbers(node: &Node, sink: &mut Sink) -> Option<Vec<f64>> {
    let number =
        |node: &Node, sink: &mut Sink| read::float(node, "a number", sink).map(|n| n.value);
    match &node.kind {
        NodeKind::List(items) => items.iter().map(|item| number(item, sink)).collect(),
        NodeKind::Int(_) | NodeKind::Float(_) => number(node, sink).map(|number| vec![number]),
        _ => {
            sink.push(read::wrong_kind(node, "a number, or a list of numbers"));
            None
        }
    }
}

/// Refuses live parameters that fix what a calendar is made for: at the ends of its range the op must have the ports and
/// states that it has at the first value.
pub(crate) fn check_range(
    actor: &NetActor,
    signature: &Signature,
    registry: &Registry,
    files: &Files,
    sink: &mut Sink,
) {
    let mut live = Vec::new();
    visit_live(&actor.params, &mut |parameter| live.push(parameter));
    for parameter in live {
        for number in [parameter.min, parameter.max] {
            let numbers = vec![number; parameter.initial.len()];
            let params = plain_params(&actor.params, &|other| {
                (other.name == parameter.name).then(|| numbers.clone())
            });
            let found = signature_with(actor, signature, &params, registry, files);
            let refusal = match found {
                Ok(found) if found == *signature => continue,
                Ok(_) => format!(
                    "`{}` decides a rate, a type or a state of `{}` ({}): with {number} they are others",
                    parameter.name, actor.name, actor.op.value
                ),
                Err(error) => format!(
                    "`{}` ({}) refuses {number} for `{}`, which its range allows: {error}",
                    actor.name, actor.op.value, parameter.name
                ),
            };
            let diagnostic = Diagnostic::new(Code::E0312, refusal)
                .primary(actor.op.span, "this op reads it")
                .help("give the parameter a fixed value, or a narrower range");
            sink.push(diagnostic);
            break;
        }
    }
}

/// The ports of an actor with other parameters, for the inputs that it has.
fn signature_with(
    actor: &NetActor,
    signature: &Signature,
    params: &Params,
    registry: &Registry,
    files: &Files,
) -> Result<Signature, OpError> {
    let inputs = signature.inputs.iter();
    let types = inputs
        .clone()
        .map(|port| (port.name.clone(), port.token.clone()));
    let connected: Vec<String> = inputs.map(|port| port.name.clone()).collect();
    let resolve_cx = ResolveCx {
        params,
        connected: &connected,
        types: &types.collect(),
        blobs: &files.blobs,
    };
    registry.resolve(&actor.op.value, &resolve_cx)
}
