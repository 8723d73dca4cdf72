//! Channels through the ports of sub-models become links from actor to actor.

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink};
use crate::net::{End, Link, Net};
use crate::source::{Span, Spanned};
use crate::values::{Tokens, TypeFact};

/// A port of an instance: channels outside and inside meet here.
pub(super) struct Junction {
    /// Path and name of the port.
    pub(super) name: String,
    pub(super) span: Span,
    pub(super) fact: TypeFact,
}

/// An end of an edge.
#[derive(Clone, Debug)]
pub(super) enum Half {
    Actor(End),
    /// A junction, and where it was named.
    Junction(usize, Span),
    /// The gate of this number, which reads what an edge leads to.
    Gate(usize),
}

/// A channel as written, one reader of it.
pub(super) struct Edge {
    pub(super) from: Half,
    /// `None` where the channel states that nobody reads.
    pub(super) to: Option<Half>,
    pub(super) fact: TypeFact,
    pub(super) write_rate: Option<Spanned<u64>>,
    pub(super) rate: Option<Spanned<u64>>,
    pub(super) window: Option<Spanned<u64>>,
    pub(super) history: Option<Tokens>,
    pub(super) initial: Option<Tokens>,
}

impl Edge {
    /// A channel without readers.
    pub(super) fn dropped(from: Half) -> Self {
        Edge {
            from,
            to: None,
            fact: TypeFact::default(),
            write_rate: None,
            rate: None,
            window: None,
            history: None,
            initial: None,
        }
    }
}

/// Adds a link to `net` for each edge that ends at an actor. O(edges × nesting).
pub(super) fn join(net: &mut Net, edges: Vec<Edge>, junctions: &[Junction], sink: &mut Sink) {
    let drivers = drivers(&edges, junctions, sink);
    let mut is_read = vec![false; junctions.len()];
    for edge in &edges {
        if let Half::Junction(id, _) = edge.from {
            is_read[id] = true;
        }
    }

    // Each link begins with the edge that ends at its reader: walking back from there, a path has no branches.
    for (index, edge) in edges.iter().enumerate() {
        match &edge.to {
            Some(Half::Actor(to)) => {
                match link(&edges, junctions, &drivers, index, to.clone(), sink) {
                    Some(link) => net.links.push(link),
                    None => net.lost = true,
                }
            }
            Some(Half::Junction(..)) => {}
            Some(Half::Gate(gate)) => {
                let from = writer(&edges, &drivers, index);
                // A gate is a reader like others: what it reads is not unread.
                net.dropped.extend(from.clone());
                net.gates[*gate].from = from;
            }
            None => net.dropped.extend(writer(&edges, &drivers, index)),
        }
    }

    for (id, junction) in junctions.iter().enumerate() {
        if is_read[id] {
            continue;
        }

        // Whatever drives a port that nobody reads needs no warning of its own.
        net.dropped
            .extend(drivers[id].and_then(|e| writer(&edges, &drivers, e)));

        // After errors the channel that reads it may be one that could not be read.
        if sink.errors() > 0 {
            continue;
        }
        sink.push(
            Diagnostic::new(
                Code::W0201,
                format!("nothing reads port `{}`", junction.name),
            )
            .primary(junction.span, "its tokens are dropped")
            .help("join it with a channel, or state `to: []`"),
        );
    }
}

/// The edge that drives each junction; reports those with none or two.
fn drivers(edges: &[Edge], junctions: &[Junction], sink: &mut Sink) -> Vec<Option<usize>> {
    let mut drivers: Vec<Option<usize>> = vec![None; junctions.len()];
    let mut driven_at: Vec<Span> = vec![Span::NONE; junctions.len()];
    for (index, edge) in edges.iter().enumerate() {
        let Some(Half::Junction(id, span)) = edge.to else {
            continue;
        };
        if drivers[id].is_some() {
            sink.push(
                Diagnostic::new(
                    Code::E0209,
                    format!("port `{}` is connected twice", junctions[id].name),
                )
                .primary(span, "connected again here")
                .context(driven_at[id], "first connected here")
                .help("an input reads one channel: add or interleave the streams with an op first"),
            );
        } else {
            drivers[id] = Some(index);
            driven_at[id] = span;
        }
    }
    // A broken channel may be what would have driven it.
    if sink.errors() == 0 {
        for (junction, _) in junctions.iter().zip(&drivers).filter(|(_, d)| d.is_none()) {
            sink.push(
                Diagnostic::new(
                    Code::E0208,
                    format!("port `{}` is not connected", junction.name),
                )
                .primary(junction.span, "declared here, and no channel leads to it")
                .help(format!(
                    "add a channel with `{}` in `to`",
                    short(&junction.name)
                )),
            );
        }
    }

    drivers
}

/// The last two parts of a path, as an endpoint outside the instance writes them.
fn short(name: &str) -> String {
    let parts: Vec<&str> = name.rsplitn(3, '/').collect();
    match parts.as_slice() {
        [port, instance, ..] => format!("{instance}.{port}"),
        _ => name.to_owned(),
    }
}

/// Edges from the reader back to the writer, that of the reader first; `None` if the writer is missing.
///
/// # Errors
/// Where ports drive each other in a circle: the place of one of them.
fn path(
    edges: &[Edge],
    drivers: &[Option<usize>],
    last: usize,
) -> Result<Option<Vec<usize>>, Span> {
    let mut path = vec![last];
    let mut current = last;
    while let Half::Junction(id, span) = edges[current].from {
        match drivers[id] {
            Some(next) => current = next,
            None => return Ok(None),
        }

        // Each junction has one driver, so a path that is longer than all junctions has met one of them twice.
        path.push(current);
        if path.len() > drivers.len() + 1 {
            return Err(span);
        }
    }

    Ok(Some(path))
}

fn writer(edges: &[Edge], drivers: &[Option<usize>], last: usize) -> Option<End> {
    let path = path(edges, drivers, last).ok().flatten()?;
    match &edges[*path.last()?].from {
        Half::Actor(end) => Some(end.clone()),
        Half::Junction(..) | Half::Gate(_) => None,
    }
}

fn link(
    edges: &[Edge],
    junctions: &[Junction],
    drivers: &[Option<usize>],
    last: usize,
    to: End,
    sink: &mut Sink,
) -> Option<Link> {
    let path = match path(edges, drivers, last) {
        Ok(path) => path?,
        Err(span) => {
            sink.push(
                Diagnostic::new(
                    Code::E0217,
                    "the channels between ports of sub-models run in a circle",
                )
                .primary(span, "this port is driven by itself, no actor writes it")
                .help("put an actor into the loop"),
            );

            return None;
        }
    };

    let Half::Actor(from) = edges[*path.last()?].from.clone() else {
        return None;
    };
    let mut link = Link {
        from,
        to,
        facts: Vec::new(),
        write_rates: Vec::new(),
        rates: Vec::new(),
        windows: Vec::new(),
        history: None,
        initial: Vec::new(),
    };

    // What the channels on the way state holds for the link: all of it is checked against the ops, and of histories
    // the one nearest to the reader is taken.
    for &index in &path {
        let edge = &edges[index];
        link.facts.push(edge.fact.clone());
        if let Half::Junction(id, _) = edge.from {
            link.facts.push(junctions[id].fact.clone());
        }
        link.write_rates.extend(edge.write_rate.clone());
        link.rates.extend(edge.rate.clone());
        link.windows.extend(edge.window.clone());
        link.history = link.history.or_else(|| edge.history.clone());
        // The reader meets the tokens nearest to it first, so those further out follow them.
        link.initial.extend(edge.initial.clone());
    }

    Some(link)
}
