//! Names: short enough, and of characters that can be seen. Strings in parameters are values, not names, and may hold
//! anything; whoever prints them escapes them.

use super::error::{Errors, VerifyError};
use crate::limits::{MAX_NAME_BYTES, MAX_NAMES_BYTES, MAX_NESTING};
use crate::text::is_hidden;
use crate::{ActorId, Graph, Params, Value};

/// Characters of a refused name that its error shows.
const SHOWN: usize = 64;

/// Checks one name; `place` says whose it is.
pub(super) fn check_name(place: impl FnOnce() -> String, name: &str, errors: &mut Errors) {
    let hidden = name.chars().find(|&c| is_hidden(c));
    let why = match hidden {
        Some(character) => format!(
            "has the character U+{:04X}, which cannot be seen",
            u32::from(character)
        ),
        None if name.len() > MAX_NAME_BYTES => {
            format!("has {} bytes, at most {MAX_NAME_BYTES}", name.len())
        }
        None => return,
    };

    errors.push(VerifyError::Name {
        place: place(),
        name: name.chars().take(SHOWN).collect(),
        why,
    });
}

/// Checks every name in a graph: its own, those of actors, ops, ports and parameters. O(bytes of names).
pub(super) fn check_graph(graph: &Graph, errors: &mut Errors) {
    check_name(|| "the graph".to_owned(), &graph.name, errors);

    // Each name has a limit; all together have one too, as every view holds them all.
    let mut total = 0;
    for (id, actor) in graph.actors.iter_enumerated() {
        total += actor.name.len();
        check_name(|| id.to_string(), &actor.name, errors);
        check_name(|| format!("the op of {id}"), &actor.op, errors);
        for (index, port) in actor.inputs.iter().enumerate() {
            check_name(|| format!("input {index} of {id}"), &port.name, errors);
        }
        for (index, port) in actor.outputs.iter().enumerate() {
            check_name(|| format!("output {index} of {id}"), &port.name, errors);
        }
        check_params(id, &actor.params, errors);
    }

    errors.limit(
        || "bytes of all names of actors".to_owned(),
        total as u128,
        MAX_NAMES_BYTES as u128,
    );
}

/// Names of parameters, and keys of maps in them. Nesting beyond the limit is refused elsewhere.
fn check_params(id: ActorId, params: &Params, errors: &mut Errors) {
    let place = || format!("a parameter of {id}");

    // A stack instead of recursion: values that are not verified may be nested deeply.
    let mut open: Vec<(&Value, usize)> = Vec::new();
    for (name, value) in params {
        check_name(place, name, errors);
        open.push((value, 0));
    }

    while let Some((value, depth)) = open.pop() {
        if depth >= MAX_NESTING {
            continue;
        }
        match value {
            Value::List(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Map(items) => {
                for (name, item) in items {
                    check_name(place, name, errors);
                    open.push((item, depth + 1));
                }
            }
            Value::Live(parameter) => check_name(place, &parameter.name, errors),
            Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Str(_)
            | Value::Tensor(..)
            | Value::Gate(_) => {}
        }
    }
}
