//! Clusters: actors whose firings must interleave within a block, with the order in which they do.
//!
//! An edge is *tight* when its reader needs tokens that its writer makes in the same block. The strongly connected
//! components of the tight edges stay on one device; everything between clusters is acyclic within a period.

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use zbmd_ir::{ActorId, BufferId, TiVec};

use crate::analysis::{EdgeList, ReaderEdge, TokenRun};
use crate::inputs::RepetitionVector;

/// Firings of an actor in a row, a repetition of calls, or what makes room between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClusterCall {
    Fire {
        actor: ActorId,
        count: u64,
    },
    Repeat {
        count: u64,
        body: Vec<ClusterCall>,
    },
    /// The next chunk of a buffer; never in the calls of a cluster itself ([`crate::chunks`]).
    Carry {
        buffer: BufferId,
        duration_ns: u64,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) members: Vec<ActorId>,
    /// What one block does, in order.
    pub(crate) calls: Vec<ClusterCall>,
    /// Calls of one block, repetitions counted out.
    pub(crate) executions: u64,
}

#[derive(Debug)]
pub(crate) struct Clusters {
    pub(crate) all: Vec<Cluster>,
    /// Index into `all` of each actor's cluster.
    pub(crate) of: TiVec<ActorId, u32>,
}

/// Whether the reader needs tokens of the same block.
pub(crate) fn is_tight(edge: &ReaderEdge, repetition: &RepetitionVector, block: u64) -> bool {
    let block_firings = u128::from(repetition[edge.reader]) * u128::from(block);
    let block_tokens = block_firings * u128::from(edge.consumed);
    !edge.state && u128::from(edge.free) < block_tokens
}

/// Strongly connected components over the edges that `keep` wants, each sorted by id.
pub(crate) fn components(
    edges: &EdgeList,
    actors: usize,
    keep: impl Fn(&ReaderEdge) -> bool,
) -> Vec<Vec<ActorId>> {
    let mut graph = DiGraph::<(), (), u32>::with_capacity(actors, edges.all.len());
    for _ in 0..actors {
        graph.add_node(());
    }
    for edge in edges.all.iter().filter(|edge| keep(edge)) {
        let writer = NodeIndex::new(edge.writer.index());
        let reader = NodeIndex::new(edge.reader.index());
        graph.add_edge(writer, reader, ());
    }

    // Kosaraju's algorithm in petgraph is iterative; `tarjan_scc` recurses and overflows the stack on long chains.
    let mut components = Vec::new();
    for nodes in kosaraju_scc(&graph) {
        let ids = nodes.into_iter().map(|node| ActorId::from(node.index()));
        let mut members: Vec<ActorId> = ids.collect();
        members.sort_unstable();
        components.push(members);
    }
    components.sort_unstable_by_key(|members| members[0]);
    components
}

impl Clusters {
    /// Clusters of one block of `block` iterations. `None` when an order would be longer than `max_executions`.
    pub(crate) fn of(
        edges: &EdgeList,
        repetition: &RepetitionVector,
        block: u64,
        max_executions: u64,
    ) -> Option<Clusters> {
        let keep_tight = |edge: &ReaderEdge| is_tight(edge, repetition, block);
        let mut cluster_of: TiVec<ActorId, u32> = vec![0; repetition.len()].into();
        let mut all = Vec::new();
        let mut interleaving = Interleaving {
            run: TokenRun::idle(edges, repetition.len()),
            repetition,
            block,
            max_executions,
        };

        for members in components(edges, repetition.len(), keep_tight) {
            let index = all.len() as u32;
            for &actor in &members {
                cluster_of[actor] = index;
            }

            let first = members[0];
            // An actor that reads what it writes in the same block must fire in turns with itself.
            let reads_itself = edges
                .edges_into(first)
                .any(|edge| edge.writer == first && keep_tight(edge));
            all.push(if members.len() > 1 || reads_itself {
                interleaving.order(members)?
            } else {
                Cluster {
                    calls: vec![ClusterCall::Fire {
                        actor: first,
                        count: repetition[first] * block,
                    }],
                    executions: 1,
                    members,
                }
            });
        }
        Some(Clusters {
            all,
            of: cluster_of,
        })
    }
}

/// Firings of one actor in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FiringRun {
    actor: ActorId,
    count: u64,
}

/// Finds the order of firings in clusters of more than one actor, or with a self-loop.
struct Interleaving<'a> {
    run: TokenRun<'a>,
    repetition: &'a RepetitionVector,
    block: u64,
    max_executions: u64,
}

impl Interleaving<'_> {
    /// One iteration repeated, unless running the whole block at once needs less than half as many calls (long
    /// delays). `None` if either is longer than allowed.
    fn order(&mut self, members: Vec<ActorId>) -> Option<Cluster> {
        let block = self.block;
        let one_iteration = self.sequence(&members, 1, self.max_executions)?;
        let repeated_calls = (one_iteration.len() as u64)
            .checked_mul(block)
            .filter(|&calls| calls <= self.max_executions);

        let max_calls = match repeated_calls {
            Some(calls) => calls / 2,
            None => self.max_executions,
        };
        if block > 1
            && let Some(whole_block) = self.sequence(&members, block, max_calls)
        {
            return Some(Cluster {
                members,
                calls: compress_calls(&whole_block),
                executions: whole_block.len() as u64,
            });
        }

        let body = compress_calls(&one_iteration);
        Some(Cluster {
            members,
            calls: match block {
                1 => body,
                count => vec![ClusterCall::Repeat { count, body }],
            },
            executions: repeated_calls?,
        })
    }

    /// The calls of so many iterations, each actor firing as often as its tokens allow; `None` if there are more than
    /// `max_calls`.
    fn sequence(
        &mut self,
        members: &[ActorId],
        iterations: u64,
        max_calls: u64,
    ) -> Option<Vec<FiringRun>> {
        let repetition = self.repetition;
        for &actor in members {
            repetition[actor].checked_mul(iterations)?;
        }

        let mut calls: Vec<FiringRun> = Vec::new();
        self.run.begin(members.iter().copied(), |actor| {
            repetition[actor] * iterations
        });
        let finished = self.run.run(|actor, count| {
            // Two calls in a row come from a self-loop, and the second reads what the first wrote: never one call.
            calls.push(FiringRun { actor, count });
            calls.len() as u64 <= max_calls
        });
        self.run.end(members.iter().copied());
        finished.then_some(calls)
    }
}

/// Longest body that is looked for; feedback loops of more calls stay flat.
const MAX_BODY: usize = 64;

/// Replaces runs of equal stretches by repetitions: at each place the body that saves the most calls.
/// O(calls * `MAX_BODY`).
fn compress_calls(calls: &[FiringRun]) -> Vec<ClusterCall> {
    let mut compressed = Vec::new();
    let mut rest = calls;

    while !rest.is_empty() {
        let mut best_len = 1;
        let mut best_count = 1;
        for len in 1..=MAX_BODY.min(rest.len() / 2) {
            let (body, after) = rest.split_at(len);
            let repeats = after.chunks_exact(len).take_while(|next| *next == body);
            let count = 1 + repeats.count();
            // Of bodies that save as many calls the shortest is kept.
            if (count - 1) * len > (best_count - 1) * best_len {
                best_len = len;
                best_count = count;
            }
        }

        let body = rest[..best_len].iter().map(|run| ClusterCall::Fire {
            actor: run.actor,
            count: run.count,
        });
        if best_count > 1 {
            compressed.push(ClusterCall::Repeat {
                count: best_count as u64,
                body: body.collect(),
            });
        } else {
            compressed.extend(body);
        }
        rest = &rest[best_len * best_count..];
    }
    compressed
}

#[cfg(test)]
mod tests;
