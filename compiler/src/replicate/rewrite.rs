//! The graph with replicas: actor `a` becomes `a#split -> a#0 … a#k-1 -> a#merge`, which deal its firings out in runs.
//!
//! Ids of all other actors and of all channels that were there stay; `a#0` takes the id of `a`. The new channels carry
//! no initial tokens.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use zbmd_backends::op::{Registry, ResolveCx};
use zbmd_ir::{
    Actor, ActorId, BlobId, Channel, ChannelId, Endpoint, Graph, Params, Reader, Role, TiSlice,
    TiVec, TokenType, Value, verify,
};
use zbmd_scheduler::replicate::Factors;

/// A graph with replicas.
pub(super) struct Rewritten {
    pub(super) graph: Graph,
    /// How many of the old graph's iterations one of the new graph's is.
    pub(super) growth: u64,
}

/// Replaces each actor of `factors` by so many replicas. `q` is the graph's repetition vector, and
/// `zbmd_scheduler::replicate` has nothing against these actors.
///
/// `None` where that cannot be: the names are taken, the catalogue has no ops to deal with, the graph would grow beyond a
/// limit, or its parts would no longer keep step.
pub(super) fn rewrite(
    graph: &Graph,
    factors: &Factors,
    q: &TiVec<ActorId, u64>,
    registry: &Registry,
    blobs: &TiSlice<BlobId, Bytes>,
) -> Option<Rewritten> {
    let mut pass = Pass { graph: graph.clone(), registry, blobs };
    for (&actor, &replicas) in factors {
        pass.replicate(actor, u64::from(replicas), q[actor])?;
    }
    let graph = pass.graph;
    let mut names = BTreeSet::new();
    if !graph.actors.iter().all(|actor| names.insert(actor.name.as_str())) {
        return None;
    }
    let now = verify::check_graph(&graph, blobs).ok()?;
    let firings = |id: ActorId| now[id] * factors.get(&id).map_or(1, |&k| u64::from(k));
    let growth = q.keys().next().map_or(1, |first| firings(first) / q[first]);
    let uniform = q.iter_enumerated().all(|(id, &before)| firings(id) == before * growth);
    uniform.then_some(Rewritten { graph, growth })
}

struct Pass<'a> {
    graph: Graph,
    registry: &'a Registry,
    blobs: &'a TiSlice<BlobId, Bytes>,
}

impl Pass<'_> {
    fn replicate(&mut self, id: ActorId, replicas: u64, firings: u64) -> Option<()> {
        let ports = self.graph.port_channels();
        let actor = self.graph.actors[id].clone();
        // The longest run deals an iteration out at once: fewest and largest copies.
        let run = firings / gcd(firings, replicas);
        let mut ids = vec![id];
        for i in 0..replicas {
            let replica = Actor { name: format!("{}#{i}", actor.name), ..actor.clone() };
            match i {
                0 => self.graph.actors[id] = replica,
                _ => ids.push(self.graph.actors.push_and_get_key(replica)),
            }
        }
        for (port, (input, from)) in actor.inputs.iter().zip(&ports.inputs[id]).enumerate() {
            let name = part(&actor, "split", &input.name, actor.inputs.len());
            let tokens = run.checked_mul(input.rate)?;
            let split = self.deal(name, "Split", ("outputs", replicas), tokens, &input.token)?;
            let (channel, reader) = (*from)?;
            let readers = &mut self.graph.channels[channel].readers;
            readers.get_mut(reader as usize)?.to = Endpoint { actor: split, port: 0 };
            for (i, &replica) in ids.iter().enumerate() {
                let (from, to) = (end(split, i), end(replica, port));
                self.join(from, to, &input.token);
            }
        }
        for (port, (output, to)) in actor.outputs.iter().zip(&ports.outputs[id]).enumerate() {
            let name = part(&actor, "merge", &output.name, actor.outputs.len());
            let tokens = run.checked_mul(output.rate)?;
            let merge = self.deal(name, "Merge", ("inputs", replicas), tokens, &output.token)?;
            let channel: ChannelId = (*to)?;
            self.graph.channels[channel].from = Endpoint { actor: merge, port: 0 };
            for (i, &replica) in ids.iter().enumerate() {
                let (from, to) = (end(replica, port), end(merge, i));
                self.join(from, to, &output.token);
            }
        }
        Some(())
    }

    /// Adds an actor that deals tokens out or takes them together again.
    fn deal(
        &mut self,
        name: String,
        op: &str,
        (count_name, count): (&str, u64),
        run: u64,
        token: &TokenType,
    ) -> Option<ActorId> {
        let int = |n: u64| i64::try_from(n).ok().map(Value::Int);
        let params: Params =
            [(count_name.to_owned(), int(count)?), ("run".to_owned(), int(run)?)].into();
        let named = (0..count).map(|i| (format!("x{i}"), token.clone()));
        let types: BTreeMap<String, TokenType> =
            named.chain([("x".to_owned(), token.clone())]).collect();
        let cx = ResolveCx { params: &params, connected: &[], types: &types, blobs: self.blobs };
        let signature = self.registry.op(op)?.resolve(&cx).ok()?;
        Some(self.graph.actors.push_and_get_key(Actor {
            name,
            role: Role::Compute,
            op: op.to_owned(),
            params,
            inputs: signature.inputs,
            outputs: signature.outputs,
            state: Vec::new(),
        }))
    }

    fn join(&mut self, from: Endpoint, to: Endpoint, token: &TokenType) {
        let readers = vec![Reader { to, delay: 0 }];
        let channel = Channel { from, readers, token: token.clone(), initial: Vec::new() };
        self.graph.channels.push(channel);
    }
}

fn end(actor: ActorId, port: usize) -> Endpoint {
    Endpoint { actor, port: port as u32 }
}

/// `actor#split`, with the port where there are several.
fn part(actor: &Actor, what: &str, port: &str, ports: usize) -> String {
    match ports {
        1 => format!("{}#{what}", actor.name),
        _ => format!("{}#{what}:{port}", actor.name),
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
