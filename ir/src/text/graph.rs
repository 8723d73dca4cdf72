//! A graph as text.

use std::collections::BTreeMap;

use super::table::{Table, left, right};
use super::{in_port, out_port, printable};
use crate::{Actor, ActorId, Channel, Graph, Role, TiSlice, Value};

/// Items of a list that are shown before it is cut.
const SHOWN_ITEMS: usize = 8;

/// Actors with their ops, repetitions (if `q` is given) and ports, then channels. A port shows its type, its rate,
/// and its window where that is larger. What is replicated stands in a line above.
pub fn graph(graph: &Graph, q: Option<&TiSlice<ActorId, u64>>) -> String {
    let (actors, channels) = (graph.actors.len(), graph.channels.len());
    let mut out = format!(
        "graph {}   {actors} actors   {channels} channels\n",
        printable(&graph.name)
    );
    let groups = replicas(graph);
    if !groups.is_empty() {
        let groups: Vec<String> = groups
            .iter()
            .map(|(name, n)| format!("{name} x{n}"))
            .collect();
        let groups = groups.join(", ");
        out.push_str(&format!("replicated: {}\n", printable(&groups)));
    }
    let mut table = Table::default();
    for (id, actor) in graph.actors.iter_enumerated() {
        let mut cells = vec![
            left(id.to_string()),
            left(actor.name.clone()),
            left(op(actor)),
        ];
        if let Some(q) = q {
            cells.push(right(
                q.get(id).map_or("q ?".to_owned(), |q| format!("q {q}")),
            ));
        }
        cells.push(left(ports(actor)));
        table.row(1, cells);
    }
    table.write(&mut out);
    let mut table = Table::default();
    for (id, channel) in graph.channels.iter_enumerated() {
        let state = graph.is_state(id);
        table.row(
            1,
            vec![
                left(id.to_string()),
                left(format!(
                    "{} -> {}",
                    out_port(graph, channel.from),
                    readers(graph, channel)
                )),
                left(channel.token.to_string()),
                left(if state { "state" } else { "" }),
            ],
        );
    }
    table.write(&mut out);
    out
}

/// Actors that the compiler has replicated, by their names in the model, with the number of their replicas: `a#0`,
/// `a#1`, … have one op and one set of parameters. O(actors * log actors).
pub fn replicas(graph: &Graph) -> Vec<(&str, u32)> {
    let by_name: BTreeMap<&str, &Actor> = graph
        .actors
        .iter()
        .map(|actor| (actor.name.as_str(), actor))
        .collect();
    let firsts = graph
        .actors
        .iter()
        .filter_map(|a| Some((a.name.strip_suffix("#0")?, a)));
    let count = |(name, first): (_, &Actor)| {
        let alike = (1..).take_while(|i| {
            let other = by_name.get(format!("{name}#{i}").as_str());
            other.is_some_and(|o| (&o.op, &o.params) == (&first.op, &first.params))
        });
        (name, 1 + alike.count() as u32)
    };
    firsts.map(count).filter(|&(_, n)| n > 1).collect()
}

/// The op of an actor with its parameters, or `source` or `sink`. Long lists are cut.
pub fn op(actor: &Actor) -> String {
    let name = match actor.role {
        Role::Compute => actor.op.as_str(),
        Role::Source => "source",
        Role::Sink => "sink",
    };
    let name = printable(name);
    if actor.params.is_empty() {
        return name.into_owned();
    }
    let params: Vec<String> = actor
        .params
        .iter()
        .map(|(k, v)| format!("{}: {}", printable(k), value(v, 0)))
        .collect();
    format!("{name}({})", params.join(", "))
}

fn ports(actor: &Actor) -> String {
    let inputs = actor.inputs.iter().map(|p| {
        let window = if p.window == p.rate {
            String::new()
        } else {
            format!(" of {}", p.window)
        };
        format!("{} {} {}{window}", p.name, p.token, p.rate)
    });
    let outputs = actor
        .outputs
        .iter()
        .map(|p| format!("{} {} {}", p.name, p.token, p.rate));
    let (inputs, outputs): (Vec<_>, Vec<_>) = (inputs.collect(), outputs.collect());
    format!("{} -> {}", inputs.join(", "), outputs.join(", "))
        .trim()
        .to_owned()
}

fn readers(graph: &Graph, channel: &Channel) -> String {
    if channel.readers.is_empty() {
        return "nobody".to_owned();
    }
    let one = |r: &crate::Reader| {
        let delay = if r.delay == 0 {
            String::new()
        } else {
            format!(" delay {}", r.delay)
        };
        format!("{}{delay}", in_port(graph, r.to))
    };
    channel
        .readers
        .iter()
        .map(one)
        .collect::<Vec<_>>()
        .join(", ")
}

/// A parameter; long lists are cut, deep ones too.
fn value(v: &Value, depth: usize) -> String {
    if depth > crate::limits::MAX_NESTING {
        return "...".to_owned();
    }
    match v {
        Value::Bool(b) => b.to_string(),
        Value::Int(i) => i.to_string(),
        Value::Float(f) => format!("{f:?}"),
        Value::Str(s) => format!("{s:?}"),
        Value::List(items) => {
            let shown: Vec<String> = items
                .iter()
                .take(SHOWN_ITEMS)
                .map(|v| value(v, depth + 1))
                .collect();
            let rest = items.len().saturating_sub(SHOWN_ITEMS);
            let rest = if rest > 0 {
                format!(", {rest} more")
            } else {
                String::new()
            };
            format!("[{}{rest}]", shown.join(", "))
        }
        Value::Map(items) => {
            let shown: Vec<String> = items
                .iter()
                .map(|(k, v)| format!("{}: {}", printable(k), value(v, depth + 1)))
                .collect();
            format!("{{{}}}", shown.join(", "))
        }
        Value::Tensor(blob, token) => format!("{blob} {token}"),
    }
}
