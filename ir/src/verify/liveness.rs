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
    let links = Links::new(edges, q.len());
    let component = components(&links);
    let mut members: Vec<ActorId> = q.keys().collect();
    members.sort_by_key(|&a| (component[a], a));
    let (fired, queued) = (vec![0; q.len()].into(), vec![false; q.len()].into());
    let mut run = Run {
        links: &links,
        q,
        fired,
        queued,
        steps: 0,
    };
    for cycle in members.chunk_by(|&a, &b| component[a] == component[b]) {
        if errors.full() {
            return;
        }
        if cycle.len() > 1 {
            run.cycle(cycle, &component, errors);
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
fn components(links: &Links<'_>) -> TiVec<ActorId, u32> {
    const NEW: u32 = u32::MAX;
    let actors = links.incoming.len();
    let mut order: TiVec<ActorId, u32> = vec![NEW; actors].into();
    let mut low: TiVec<ActorId, u32> = vec![0; actors].into();
    let mut component: TiVec<ActorId, u32> = vec![NEW; actors].into();
    let (mut clock, mut found) = (0, 0);
    let mut open: Vec<ActorId> = Vec::new();
    let mut path: Vec<(ActorId, usize)> = Vec::new();
    for root in links.incoming.keys() {
        if order[root] == NEW {
            path.push((root, 0));
        }
        while let Some(top) = path.last_mut() {
            let actor = top.0;
            if top.1 == 0 {
                order[actor] = clock;
                low[actor] = clock;
                clock += 1;
                open.push(actor);
            }
            let next = links.outgoing[actor]
                .get(top.1)
                .map(|&i| links.edges[i as usize].to);
            top.1 += 1;
            match next {
                Some(to) if order[to] == NEW => path.push((to, 0)),
                Some(to) if component[to] == NEW => low[actor] = low[actor].min(order[to]),
                Some(_) => {}
                None => {
                    if low[actor] == order[actor] {
                        while let Some(member) = open.pop() {
                            component[member] = found;
                            if member == actor {
                                break;
                            }
                        }
                        found += 1;
                    }
                    path.pop();
                    if let Some(&(parent, _)) = path.last() {
                        low[parent] = low[parent].min(low[actor]);
                    }
                }
            }
        }
    }
    component
}

struct Run<'a> {
    links: &'a Links<'a>,
    q: &'a TiVec<ActorId, u64>,
    fired: TiVec<ActorId, u64>,
    /// In the queue; all false between two cycles.
    queued: TiVec<ActorId, bool>,
    steps: u64,
}

impl Run<'_> {
    fn cycle(&mut self, members: &[ActorId], component: &TiVec<ActorId, u32>, errors: &mut Errors) {
        let links = self.links;
        let mut queue: VecDeque<ActorId> = members.iter().copied().collect();
        members.iter().for_each(|&a| self.queued[a] = true);
        while let Some(actor) = queue.pop_front() {
            self.queued[actor] = false;
            self.steps +=
                1 + links.incoming[actor].len() as u64 + links.outgoing[actor].len() as u64;
            if self.steps > MAX_LIVENESS_STEPS {
                return;
            }
            let ready = self.ready(actor, component);
            if ready <= self.fired[actor] {
                continue;
            }
            self.fired[actor] = ready;
            for &i in &links.outgoing[actor] {
                let to = links.edges[i as usize].to;
                if component[to] == component[actor] && !self.queued[to] {
                    self.queued[to] = true;
                    queue.push_back(to);
                }
            }
        }
        if let Some(&stuck) = members.iter().find(|&&a| self.fired[a] < self.q[a]) {
            errors.push(self.explain(stuck, component));
        }
    }

    /// Firings of the actor that its inputs within the component allow.
    fn ready(&self, actor: ActorId, component: &TiVec<ActorId, u32>) -> u64 {
        let inner = self.links.incoming[actor]
            .iter()
            .map(|&i| self.links.edges[i as usize]);
        let inner = inner.filter(|e| component[e.from] == component[actor]);
        inner.map(|e| self.allowed(e)).fold(self.q[actor], u64::min)
    }

    /// Firings of the reader that the tokens written so far allow.
    fn allowed(&self, e: &Edge) -> u64 {
        let there = u128::from(self.fired[e.from]) * u128::from(e.produced) + u128::from(e.delay);
        match there.checked_sub(u128::from(e.window)) {
            None => 0,
            Some(spare) => {
                let firings = spare / u128::from(e.consumed) + 1;
                u64::try_from(firings).unwrap_or(u64::MAX)
            }
        }
    }

    fn explain(&self, stuck: ActorId, component: &TiVec<ActorId, u32>) -> VerifyError {
        let mut chain = vec![stuck];
        let mut place: TiVec<ActorId, Option<usize>> = vec![None; self.q.len()].into();
        place[stuck] = Some(0);
        let mut at = stuck;
        let blocking = |at: ActorId| {
            let mut inner = self.links.incoming[at]
                .iter()
                .map(|&i| self.links.edges[i as usize]);
            inner.find(|e| component[e.from] == component[at] && self.allowed(e) <= self.fired[at])
        };
        while let Some(edge) = blocking(at) {
            at = edge.from;
            if let Some(start) = place[at] {
                chain.drain(..start);
                break;
            }
            place[at] = Some(chain.len());
            chain.push(at);
        }
        let actor = chain[0];
        let (fired, needed) = (self.fired[actor], self.q[actor]);
        VerifyError::GraphDeadlock {
            actor,
            fired,
            needed,
            cycle: chain,
        }
    }
}
