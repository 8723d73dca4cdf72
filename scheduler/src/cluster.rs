//! Clusters: actors whose firings must interleave within a block, with the order in which they do.
//!
//! An edge is *tight* when its reader needs tokens that its writer makes in the same block. The strongly connected
//! components of the tight edges stay on one device; everything between clusters is acyclic within a period.

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use zbmd_ir::{ActorId, TiVec};

use crate::analysis::{Edge, Edges, TokenRun};

/// Calls of an actor in a row, or a repetition of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Fire { actor: ActorId, count: u64 },
    Repeat { count: u64, body: Vec<Call> },
}

#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) members: Vec<ActorId>,
    /// What one block does, in order.
    pub(crate) calls: Vec<Call>,
    /// Calls of one block, repetitions counted out.
    pub(crate) executions: u64,
}

#[derive(Debug)]
pub(crate) struct Clusters {
    pub(crate) all: Vec<Cluster>,
    pub(crate) of: TiVec<ActorId, u32>,
}

/// Whether the reader needs tokens of the same block.
pub(crate) fn is_tight(edge: &Edge, q: &TiVec<ActorId, u64>, block: u64) -> bool {
    let tokens = u128::from(q[edge.reader]) * u128::from(block) * u128::from(edge.consumed);
    !edge.state && u128::from(edge.free) < tokens
}

/// Strongly connected components over the edges that `keep` wants, each sorted by id.
pub(crate) fn components(
    edges: &Edges,
    actors: usize,
    keep: impl Fn(&Edge) -> bool,
) -> Vec<Vec<ActorId>> {
    let mut graph = DiGraph::<(), (), u32>::with_capacity(actors, edges.all.len());
    for _ in 0..actors {
        graph.add_node(());
    }
    for edge in edges.all.iter().filter(|e| keep(e)) {
        graph.add_edge(
            NodeIndex::new(edge.writer.index()),
            NodeIndex::new(edge.reader.index()),
            (),
        );
    }
    // Kosaraju's algorithm in petgraph is iterative; `tarjan_scc` recurses and overflows the stack on long chains.
    let mut components: Vec<Vec<ActorId>> = kosaraju_scc(&graph)
        .into_iter()
        .map(|c| {
            let mut members: Vec<ActorId> =
                c.into_iter().map(|n| ActorId::from(n.index())).collect();
            members.sort_unstable();
            members
        })
        .collect();
    components.sort_unstable_by_key(|c| c[0]);
    components
}

impl Clusters {
    /// Clusters of one block of `block` iterations. `None` when an order would be longer than `max_executions`.
    pub(crate) fn of(
        edges: &Edges,
        q: &TiVec<ActorId, u64>,
        block: u64,
        max_executions: u64,
    ) -> Option<Clusters> {
        let tight = |e: &Edge| is_tight(e, q, block);
        let mut of: TiVec<ActorId, u32> = q.iter().map(|_| 0).collect();
        let mut all = Vec::new();
        let mut run = TokenRun::idle(edges, q.len());
        for members in components(edges, q.len(), tight) {
            let id = all.len() as u32;
            for &actor in &members {
                of[actor] = id;
            }
            let looped = members.len() > 1
                || edges.into[members[0]].iter().any(|&e| {
                    let edge = &edges.all[e as usize];
                    edge.writer == members[0] && tight(edge)
                });
            let (calls, executions) = if looped {
                interleave(&mut run, &members, q, block, max_executions)?
            } else {
                (
                    vec![Call::Fire {
                        actor: members[0],
                        count: q[members[0]] * block,
                    }],
                    1,
                )
            };
            all.push(Cluster {
                members,
                calls,
                executions,
            });
        }
        Some(Clusters { all, of })
    }
}

/// Order of the firings of a cluster of more than one actor, or with a self-loop.
///
/// One iteration repeated, unless running the whole block at once needs less than half as many calls (long delays).
fn interleave(
    run: &mut TokenRun<'_>,
    members: &[ActorId],
    q: &TiVec<ActorId, u64>,
    block: u64,
    max_executions: u64,
) -> Option<(Vec<Call>, u64)> {
    let once = sequence(run, members, q, 1, max_executions)?;
    let repeated = (once.len() as u64)
        .checked_mul(block)
        .filter(|&n| n <= max_executions);
    let cap = repeated.map_or(max_executions, |n| (n / 2).min(max_executions));
    if block > 1
        && let Some(whole) = sequence(run, members, q, block, cap)
    {
        let executions = whole.len() as u64;
        return Some((compress(&whole), executions));
    }
    let executions = repeated?;
    let body = compress(&once);
    Some((
        if block == 1 {
            body
        } else {
            vec![Call::Repeat { count: block, body }]
        },
        executions,
    ))
}

fn sequence(
    run: &mut TokenRun<'_>,
    members: &[ActorId],
    q: &TiVec<ActorId, u64>,
    block: u64,
    max_calls: u64,
) -> Option<Vec<(ActorId, u64)>> {
    if members.iter().any(|&a| q[a].checked_mul(block).is_none()) {
        return None;
    }
    run.begin(members.iter().copied(), |actor| q[actor] * block);
    let mut calls: Vec<(ActorId, u64)> = Vec::new();
    let finished = run.run(|actor, count| {
        // Two calls in a row come from a self-loop, and the second reads what the first wrote: never one call.
        calls.push((actor, count));
        calls.len() as u64 <= max_calls
    });
    run.end(members.iter().copied());
    finished.then_some(calls)
}

/// Longest body that is looked for; feedback loops of more calls stay flat.
const MAX_BODY: usize = 64;

/// Replaces runs of equal stretches by repetitions: at each place the body that saves most. O(calls * MAX_BODY).
fn compress(calls: &[(ActorId, u64)]) -> Vec<Call> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < calls.len() {
        let (mut best_len, mut best_count) = (1, 1);
        for len in 1..=MAX_BODY.min((calls.len() - at) / 2) {
            let body = &calls[at..at + len];
            let count = 1 + calls[at + len..]
                .chunks_exact(len)
                .take_while(|c| *c == body)
                .count();
            if (count - 1) * len > (best_count - 1) * best_len {
                (best_len, best_count) = (len, count);
            }
        }
        let body = calls[at..at + best_len]
            .iter()
            .map(|&(actor, count)| Call::Fire { actor, count });
        if best_count > 1 {
            out.push(Call::Repeat {
                count: best_count as u64,
                body: body.collect(),
            });
        } else {
            out.extend(body);
        }
        at += best_len * best_count;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fire(actor: u32, count: u64) -> Call {
        Call::Fire {
            actor: ActorId(actor),
            count,
        }
    }

    #[test]
    fn runs_become_repetitions() {
        let check = |calls: &[(u32, u64)], expect: Vec<Call>| {
            let calls: Vec<_> = calls.iter().map(|&(a, n)| (ActorId(a), n)).collect();
            assert_eq!(compress(&calls), expect, "{calls:?}");
        };
        check(&[], vec![]);
        check(&[(0, 2), (1, 1)], vec![fire(0, 2), fire(1, 1)]);
        check(
            &[(0, 1), (1, 1), (0, 1), (1, 1), (0, 1), (1, 1), (2, 5)],
            vec![
                Call::Repeat {
                    count: 3,
                    body: vec![fire(0, 1), fire(1, 1)],
                },
                fire(2, 5),
            ],
        );
        // The prologue of a loop stays in front of it.
        check(
            &[(2, 1), (0, 1), (1, 2), (0, 1), (1, 2)],
            vec![
                fire(2, 1),
                Call::Repeat {
                    count: 2,
                    body: vec![fire(0, 1), fire(1, 2)],
                },
            ],
        );
    }
}
