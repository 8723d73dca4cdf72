//! Deadlock-freedom of one iteration: an abstract run that moves token counts, as many firings at a time as there
//! are tokens for. Only cycles are run: an actor outside cycles can fire as soon as all before it are done, since
//! every reader's delay is at least its window less its rate.

use std::collections::VecDeque;

use super::error::{Errors, VerifyError};
use super::repetition::Edge;
use crate::limits::MAX_LIVENESS_STEPS;
use crate::{ActorId, TiVec};

/// Checks that `q` firings of each actor can be done in some order. `edges` and `q` belong to a consistent graph.
pub(super) fn check(edges: &[Edge], q: &TiVec<ActorId, u64>, errors: &mut Errors) {
    for e in edges
        .iter()
        .filter(|e| e.from == e.to && e.delay < e.window)
    {
        errors.push(VerifyError::GraphDeadlock {
            actor: e.from,
            fired: 0,
            needed: q[e.from],
            cycle: vec![e.from],
        });
    }

    // An actor that reads its own tokens fires alone: nobody else can help it.
    let links = Links::new(edges, q.len());
    let component = find_components(&links);
    let mut sorted_actors: Vec<ActorId> = q.keys().collect();
    sorted_actors.sort_by_key(|&a| (component[a], a));

    // Steps are counted over all cycles: together they must end in reasonable time.
    let mut run = TokenRun {
        links: &links,
        q,
        fired: vec![0; q.len()].into(),
        queued: vec![false; q.len()].into(),
        steps: 0,
    };

    for cycle in sorted_actors.chunk_by(|&a, &b| component[a] == component[b]) {
        if errors.full() {
            return;
        }
        if cycle.len() > 1 {
            run.run_cycle(cycle, &component, errors);
        }
        if run.steps > MAX_LIVENESS_STEPS {
            errors.push(VerifyError::LivenessSteps {
                limit: MAX_LIVENESS_STEPS,
            });
            return;
        }
    }
}

/// Edges between different actors, by both ends.
struct Links<'e> {
    edges: Vec<&'e Edge>,
    incoming: TiVec<ActorId, Vec<u32>>,
    outgoing: TiVec<ActorId, Vec<u32>>,
}

impl<'e> Links<'e> {
    fn new(edges: &'e [Edge], actors: usize) -> Self {
        let edges: Vec<&Edge> = edges.iter().filter(|e| e.from != e.to).collect();
        let mut incoming: TiVec<ActorId, Vec<u32>> = vec![Vec::new(); actors].into();
        let mut outgoing = incoming.clone();
        for (i, e) in edges.iter().enumerate() {
            incoming[e.to].push(i as u32);
            outgoing[e.from].push(i as u32);
        }
        Self {
            edges,
            incoming,
            outgoing,
        }
    }
}

/// Strongly connected component of each actor, by Tarjan's algorithm (1972) with its own stack.
fn find_components(links: &Links<'_>) -> TiVec<ActorId, u32> {
    const NEW: u32 = u32::MAX;
    let actor_count = links.incoming.len();
    let mut visit_order: TiVec<ActorId, u32> = vec![NEW; actor_count].into();
    let mut low_link: TiVec<ActorId, u32> = vec![0; actor_count].into();
    let mut component: TiVec<ActorId, u32> = vec![NEW; actor_count].into();
    let mut visit_clock = 0;
    let mut found_components = 0;
    let mut open_actors: Vec<ActorId> = Vec::new();
    let mut dfs_path: Vec<(ActorId, usize)> = Vec::new();
    for root in links.incoming.keys() {
        if visit_order[root] == NEW {
            dfs_path.push((root, 0));
        }
        while let Some(top) = dfs_path.last_mut() {
            let actor = top.0;
            if top.1 == 0 {
                visit_order[actor] = visit_clock;
                low_link[actor] = visit_clock;
                visit_clock += 1;
                open_actors.push(actor);
            }

            let next_actor = links.outgoing[actor]
                .get(top.1)
                .map(|&i| links.edges[i as usize].to);
            top.1 += 1;
            match next_actor {
                Some(to) if visit_order[to] == NEW => dfs_path.push((to, 0)),
                Some(to) if component[to] == NEW => {
                    low_link[actor] = low_link[actor].min(visit_order[to])
                }
                Some(_) => {}
                None => {
                    // Nothing reaches further back: what is open above the actor is its component.
                    if low_link[actor] == visit_order[actor] {
                        while let Some(member) = open_actors.pop() {
                            component[member] = found_components;
                            if member == actor {
                                break;
                            }
                        }

                        found_components += 1;
                    }

                    dfs_path.pop();
                    if let Some(&(parent, _)) = dfs_path.last() {
                        low_link[parent] = low_link[parent].min(low_link[actor]);
                    }
                }
            }
        }
    }

    component
}

struct TokenRun<'a> {
    links: &'a Links<'a>,
    q: &'a TiVec<ActorId, u64>,
    fired: TiVec<ActorId, u64>,
    /// In the queue; all false between two cycles.
    queued: TiVec<ActorId, bool>,
    steps: u64,
}

impl TokenRun<'_> {
    fn run_cycle(
        &mut self,
        members: &[ActorId],
        component: &TiVec<ActorId, u32>,
        errors: &mut Errors,
    ) {
        let links = self.links;
        let mut ready_queue: VecDeque<ActorId> = members.iter().copied().collect();
        members.iter().for_each(|&a| self.queued[a] = true);

        // Actors fire as often as their tokens allow; whoever reads theirs is looked at again.
        while let Some(actor) = ready_queue.pop_front() {
            self.queued[actor] = false;
            self.steps +=
                1 + links.incoming[actor].len() as u64 + links.outgoing[actor].len() as u64;
            if self.steps > MAX_LIVENESS_STEPS {
                return;
            }
            let ready = self.allowed_firings(actor, component);
            if ready <= self.fired[actor] {
                continue;
            }
            self.fired[actor] = ready;
            for &i in &links.outgoing[actor] {
                let to = links.edges[i as usize].to;
                if component[to] == component[actor] && !self.queued[to] {
                    self.queued[to] = true;
                    ready_queue.push_back(to);
                }
            }
        }

        if let Some(&stuck) = members.iter().find(|&&a| self.fired[a] < self.q[a]) {
            errors.push(self.explain(stuck, component));
        }
    }

    /// Firings of the actor that its inputs within the component allow.
    fn allowed_firings(&self, actor: ActorId, component: &TiVec<ActorId, u32>) -> u64 {
        let incoming = self.links.incoming[actor].iter();
        let edges = incoming.map(|&index| self.links.edges[index as usize]);
        let inner_edges = edges.filter(|edge| component[edge.from] == component[actor]);
        inner_edges
            .map(|edge| self.allowed_by(edge))
            .fold(self.q[actor], u64::min)
    }

    /// Firings of the reader that the tokens written so far allow.
    fn allowed_by(&self, edge: &Edge) -> u64 {
        let available_tokens =
            u128::from(self.fired[edge.from]) * u128::from(edge.produced) + u128::from(edge.delay);
        match available_tokens.checked_sub(u128::from(edge.window)) {
            None => 0,
            Some(spare) => {
                // The first firing needs a whole window, each further one only what it consumes.
                let firings = spare / u128::from(edge.consumed) + 1;
                u64::try_from(firings).unwrap_or(u64::MAX)
            }
        }
    }

    fn explain(&self, stuck: ActorId, component: &TiVec<ActorId, u32>) -> VerifyError {
        let mut chain = vec![stuck];
        let mut chain_place: TiVec<ActorId, Option<usize>> = vec![None; self.q.len()].into();
        chain_place[stuck] = Some(0);
        let mut waiting = stuck;

        // Whom the stuck actor waits for waits itself, until one is met again.
        while let Some(edge) = self.blocking_edge(waiting, component) {
            waiting = edge.from;
            if let Some(start) = chain_place[waiting] {
                chain.drain(..start);
                break;
            }

            chain_place[waiting] = Some(chain.len());
            chain.push(waiting);
        }

        let actor = chain[0];
        VerifyError::GraphDeadlock {
            actor,
            fired: self.fired[actor],
            needed: self.q[actor],
            cycle: chain,
        }
    }

    /// The first edge within a component that keeps an actor from firing.
    fn blocking_edge(&self, actor: ActorId, component: &TiVec<ActorId, u32>) -> Option<&Edge> {
        let incoming = self.links.incoming[actor].iter();
        let mut edges = incoming.map(|&index| self.links.edges[index as usize]);
        edges.find(|edge| {
            let is_inner = component[edge.from] == component[actor];
            is_inner && self.allowed_by(edge) <= self.fired[actor]
        })
    }
}
