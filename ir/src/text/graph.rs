//! A graph as text.

use std::collections::BTreeMap;

use super::table::{Table, left, right};
use super::{in_port, out_port, printable};
use crate::{
    Actor, ActorId, Channel, Gate, Graph, LiveParameter, OutPort, Reader, Role, TiSlice, Value,
};

/// Items of a list that are shown before it is cut.
const SHOWN_ITEMS: usize = 8;

/// Actors with their ops, repetitions (if they are given) and ports, then channels. A port shows its type, its rate,
/// and its window where that is larger. What is replicated stands in a line above.
pub fn graph(graph: &Graph, repetitions: Option<&TiSlice<ActorId, u64>>) -> String {
    // One line for each actor, as snapshots and comparisons need it.
    graph_in_columns(graph, repetitions, usize::MAX)
}

/// [`graph()`], with long ops and lists of ports wrapped so that lines have at most `width` columns.
pub fn graph_in_columns(
    graph: &Graph,
    repetitions: Option<&TiSlice<ActorId, u64>>,
    width: usize,
) -> String {
    let actor_count = graph.actors.len();
    let channel_count = graph.channels.len();
    let name = printable(&graph.name);
    let mut out = format!("graph {name}   {actor_count} actors   {channel_count} channels\n");

    let groups: Vec<String> = replicas(graph)
        .iter()
        .map(|(name, count)| format!("{name} x{count}"))
        .collect();
    if !groups.is_empty() {
        let groups = groups.join(", ");
        out.push_str(&format!("replicated: {}\n", printable(&groups)));
    }

    // Two tables: channels have other columns than actors.
    actor_table(graph, repetitions).write_wrapped(width, &mut out);
    channel_table(graph).write_wrapped(width, &mut out);
    out
}

fn actor_table(graph: &Graph, repetitions: Option<&TiSlice<ActorId, u64>>) -> Table {
    let mut table = Table::default();
    for (id, actor) in graph.actors.iter_enumerated() {
        let mut cells = vec![
            left(id.to_string()),
            left(actor.name.clone()),
            left(op(actor)),
        ];
        if let Some(repetitions) = repetitions {
            // A graph that is not verified may have more actors than repetitions.
            let repetition = match repetitions.get(id) {
                Some(count) => format!("q {count}"),
                None => "q ?".to_owned(),
            };
            cells.push(right(repetition));
        }

        cells.push(left(port_list(actor)));
        table.row(1, cells);
    }

    table
}

fn channel_table(graph: &Graph) -> Table {
    let mut table = Table::default();
    for (id, channel) in graph.channels.iter_enumerated() {
        let writer = out_port(graph, channel.from);
        let readers = reader_list(graph, channel);
        let kind = if graph.is_state(id) { "state" } else { "" };
        table.row(
            1,
            vec![
                left(id.to_string()),
                left(format!("{writer} -> {readers}")),
                left(channel.token.to_string()),
                left(kind),
            ],
        );
    }

    table
}

/// Actors that the compiler has replicated, by their names in the model, with the number of their replicas: `a#0`,
/// `a#1`, … have one op and one set of parameters. O(actors * log actors).
pub fn replicas(graph: &Graph) -> Vec<(&str, u32)> {
    let named_actors = graph.actors.iter().map(|a| (a.name.as_str(), a));
    let actor_by_name: BTreeMap<&str, &Actor> = named_actors.collect();

    let mut replicated = Vec::new();
    for first in &graph.actors {
        let Some(name) = first.name.strip_suffix("#0") else {
            continue;
        };
        let mut count = 1;
        while let Some(next) = actor_by_name.get(format!("{name}#{count}").as_str()) {
            // A model may have actors of such names itself.
            if next.op != first.op || next.params != first.params {
                break;
            }
            count += 1;
        }

        if count > 1 {
            replicated.push((name, count));
        }
    }

    replicated
}

/// The op of an actor with its parameters, or `source` or `sink`. Long lists are cut.
pub fn op(actor: &Actor) -> String {
    let name = match actor.role {
        Role::Compute => printable(&actor.op),
        Role::Source => "source".into(),
        Role::Sink => "sink".into(),
    };
    if actor.params.is_empty() {
        return name.into_owned();
    }
    format!("{name}({})", map_text(&actor.params, 0))
}

/// An actor's name as people are shown it. A node of an imported model that has no name of its own is called after a
/// number, such as `n12`: its operator stands in front, as in `Conv n12`. Bundles and calendars hold the name alone.
pub fn actor_label(actor: &Actor) -> String {
    let operator = imported_operator(&actor.op);
    match operator.filter(|_| is_numbered(&actor.name)) {
        Some(operator) => format!("{operator} {}", actor.name),
        None => actor.name.clone(),
    }
}

/// The ONNX operator that an op was imported from: `Conv` for `NnConv`.
fn imported_operator(op: &str) -> Option<&str> {
    let operator = op.strip_prefix("Nn")?;
    operator
        .starts_with(|c: char| c.is_ascii_uppercase())
        .then_some(operator)
}

/// Whether the last part of a name is a number with at most a letter or two in front, which says nothing to a reader.
fn is_numbered(name: &str) -> bool {
    const MAX_LETTERS: usize = 2;
    let last_part = name.rsplit(['/', '.', ':']).next().unwrap_or(name);
    let own_part = last_part.split('#').next().unwrap_or(last_part);
    let number = own_part.trim_start_matches(|c: char| c.is_ascii_alphabetic() || c == '_');
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number && own_part.len() - number.len() <= MAX_LETTERS
}

fn port_list(actor: &Actor) -> String {
    let inputs: Vec<String> = actor.inputs.iter().map(input_text).collect();
    let outputs: Vec<String> = actor.outputs.iter().map(output_text).collect();
    let ports = format!("{} -> {}", inputs.join(", "), outputs.join(", "));
    ports.trim().to_owned()
}

fn input_text(port: &crate::InPort) -> String {
    let text = format!("{} {} {}", port.name, port.token, port.rate);
    if port.window == port.rate {
        text
    } else {
        format!("{text} of {}", port.window)
    }
}

fn output_text(port: &OutPort) -> String {
    format!("{} {} {}", port.name, port.token, port.rate)
}

fn reader_list(graph: &Graph, channel: &Channel) -> String {
    if channel.readers.is_empty() {
        return "nobody".to_owned();
    }
    let readers = channel.readers.iter();
    let readers: Vec<String> = readers.map(|reader| reader_text(graph, reader)).collect();
    readers.join(", ")
}

fn reader_text(graph: &Graph, reader: &Reader) -> String {
    let port = in_port(graph, reader.to);
    if reader.delay == 0 {
        port
    } else {
        format!("{port} delay {}", reader.delay)
    }
}

/// A parameter; long lists are cut, deep ones too.
fn value_text(value: &Value, depth: usize) -> String {
    if depth > crate::limits::MAX_NESTING {
        return "...".to_owned();
    }
    match value {
        Value::Bool(flag) => flag.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Str(text) => format!("{text:?}"),
        Value::List(items) => {
            let shown_items = items.iter().take(SHOWN_ITEMS);
            let mut shown: Vec<String> = shown_items
                .map(|item| value_text(item, depth + 1))
                .collect();
            if items.len() > SHOWN_ITEMS {
                shown.push(format!("{} more", items.len() - SHOWN_ITEMS));
            }
            format!("[{}]", shown.join(", "))
        }
        Value::Map(items) => format!("{{{}}}", map_text(items, depth + 1)),
        Value::Tensor(blob, token) => format!("{blob} {token}"),
        Value::Live(parameter) => live_text(parameter, depth),
        Value::Gate(gate) => gate_text(gate),
    }
}

/// As models write it: `Live(1.0, min: 0.0, max: 10.0)`, with its name.
fn live_text(parameter: &LiveParameter, depth: usize) -> String {
    let name = printable(&parameter.name);
    let initial = value_text(&parameter.value_of(&parameter.initial), depth + 1);
    let (min, max) = (parameter.min, parameter.max);
    format!("live {name} = {initial} of {min:?} to {max:?}")
}

/// What a gate's closed firings give: `closed: [hold, zero], states: hold`.
fn gate_text(gate: &Gate) -> String {
    let outputs = gate.outputs.iter().take(SHOWN_ITEMS);
    let outputs: Vec<&str> = outputs.map(|answer| answer.name()).collect();
    format!(
        "closed [{}], states {}",
        outputs.join(", "),
        gate.states.name()
    )
}

fn map_text(items: &BTreeMap<String, Value>, depth: usize) -> String {
    let entries = items.iter();
    let entries: Vec<String> = entries
        .map(|(key, value)| format!("{}: {}", printable(key), value_text(value, depth)))
        .collect();
    entries.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_say_nothing_get_their_operator() {
        let cases = [
            ("n12", "NnConv", "Conv n12"),
            ("12", "NnRelu", "Relu 12"),
            ("net/n3#2", "NnMatMul", "MatMul net/n3#2"),
            ("/conv1/Conv", "NnConv", "/conv1/Conv"),
            ("layer3", "NnConv", "layer3"),
            ("fc", "NnGemm", "fc"),
            ("n12", "Gain", "n12"),
            ("n12", "Nn", "n12"),
        ];
        for (name, op, expected) in cases {
            let mut program = crate::testing::programs::chain();
            let actor = &mut program.graph.actors[ActorId(0)];
            actor.name = name.to_owned();
            actor.op = op.to_owned();
            assert_eq!(actor_label(actor), expected);
        }
    }
}
