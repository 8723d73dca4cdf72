//! The graph with replicas: actor `a` becomes `a#split -> a#0 … a#k-1 -> a#merge`, which deal its firings out in runs.
//!
//! Ids of all other actors and of all channels that were there stay; `a#0` takes the id of `a`. The new channels carry
//! no initial tokens.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use zbmd_backends::op::{Registry, ResolveCx};
use zbmd_ir::verify::VerifyError;
use zbmd_ir::{
    Actor, ActorId, BlobId, Channel, Endpoint, Graph, Params, Reader, Role, TiSlice, TokenType,
    Value, verify,
};
use zbmd_scheduler::AnalysisError;
use zbmd_scheduler::replicate::{Factors, Obstacle, obstacles};

/// A graph with replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct Replicated {
    /// The graph. Actors and channels of the model keep their ids; a replicated actor's is that of its first replica.
    pub graph: Graph,
    /// How many of the model's iterations one of the graph's is.
    pub iterations: u64,
}

/// Why a graph cannot be rewritten with replicas.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplicateError {
    /// The graph has no repetition vector.
    #[error(transparent)]
    Analysis(#[from] AnalysisError),
    /// There is no such actor.
    #[error("there is no {actor}")]
    Unknown {
        /// The actor asked for.
        actor: ActorId,
    },
    /// Something about the actor is against it.
    #[error("`{name}` cannot be replicated: {obstacle}")]
    Obstacle {
        /// Name of the actor.
        name: String,
        /// What is against it.
        obstacle: Obstacle,
    },
    /// An actor of the graph is called what a new one would be called.
    #[error("the name `{name}`, which a replica needs, is taken")]
    Name {
        /// The name.
        name: String,
    },
    /// The catalogue lacks an op, or it refuses the tokens, ports or counts.
    #[error("op `{op}` cannot deal out {runs} runs of {tokens} tokens")]
    Op {
        /// The op.
        op: &'static str,
        /// Number of replicas.
        runs: u64,
        /// Tokens of a run.
        tokens: u64,
    },
    /// The new graph breaks a rule of graphs or is beyond a limit.
    #[error("the graph with replicas is refused: {0}")]
    Refused(VerifyError),
    /// Unconnected parts of the graph would no longer make the same number of iterations.
    #[error("unconnected parts of the graph would fall out of step")]
    Step,
}

/// Replaces each actor of `factors` by so many replicas that take turns in runs of firings. Outputs stay the same to
/// the bit, for whole iterations of the new graph. The graph must have passed `zbmd_ir::verify::check_graph`.
///
/// # Errors
/// See [`ReplicateError`].
pub fn replicate(
    graph: &Graph,
    factors: &Factors,
    registry: &Registry,
    blobs: &TiSlice<BlobId, Bytes>,
) -> Result<Replicated, ReplicateError> {
    let q = zbmd_scheduler::repetition(graph)?;
    let mut against = obstacles(graph);
    let mut pass = Pass {
        graph: graph.clone(),
        registry,
        blobs,
    };
    for (&actor, &replicas) in factors {
        let obstacle = against
            .get_mut(actor)
            .ok_or(ReplicateError::Unknown { actor })?
            .take();
        if let Some(obstacle) = obstacle {
            let name = graph.actors[actor].name.clone();
            return Err(ReplicateError::Obstacle { name, obstacle });
        }
        if replicas > 1 {
            pass.replicate(actor, u64::from(replicas), q[actor])?;
        }
    }
    let graph = pass.graph;
    let mut names = BTreeSet::new();
    if let Some(twice) = graph.actors.iter().find(|a| !names.insert(a.name.as_str())) {
        return Err(ReplicateError::Name {
            name: twice.name.clone(),
        });
    }
    let first = |errors: Vec<VerifyError>| errors.into_iter().next();
    let now = match verify::check_graph(&graph, blobs).map_err(first) {
        Ok(now) => now,
        Err(Some(error)) => return Err(ReplicateError::Refused(error)),
        Err(None) => return Err(ReplicateError::Step),
    };
    let firings =
        |id: ActorId| now[id].saturating_mul(factors.get(&id).map_or(1, |&k| u64::from(k.max(1))));
    let iterations = q.keys().next().map_or(1, |first| firings(first) / q[first]);
    let in_step = q
        .iter_enumerated()
        .all(|(id, &before)| Some(firings(id)) == before.checked_mul(iterations));
    if in_step {
        Ok(Replicated { graph, iterations })
    } else {
        Err(ReplicateError::Step)
    }
}

struct Pass<'a> {
    graph: Graph,
    registry: &'a Registry,
    blobs: &'a TiSlice<BlobId, Bytes>,
}

impl Pass<'_> {
    fn replicate(
        &mut self,
        id: ActorId,
        replicas: u64,
        firings: u64,
    ) -> Result<(), ReplicateError> {
        let ports = self.graph.port_channels();
        let actor = self.graph.actors[id].clone();
        // The longest run deals an iteration out at once: fewest and largest copies.
        let run = firings / gcd(firings, replicas);
        let mut ids = vec![id];
        for i in 0..replicas {
            let replica = Actor {
                name: format!("{}#{i}", actor.name),
                ..actor.clone()
            };
            match i {
                0 => self.graph.actors[id] = replica,
                _ => ids.push(self.graph.actors.push_and_get_key(replica)),
            }
        }
        for (port, (input, from)) in actor.inputs.iter().zip(&ports.inputs[id]).enumerate() {
            let name = part(&actor, "split", &input.name, actor.inputs.len());
            let tokens = run.saturating_mul(input.rate);
            let split = self.deal(name, "Split", ("outputs", replicas), tokens, &input.token)?;
            // A port without a channel stays without, and the graph is refused.
            if let Some((channel, reader)) = *from {
                self.graph.channels[channel].readers[reader as usize].to = end(split, 0);
            }
            for (i, &replica) in ids.iter().enumerate() {
                let (from, to) = (end(split, i), end(replica, port));
                self.join(from, to, &input.token);
            }
        }
        for (port, (output, to)) in actor.outputs.iter().zip(&ports.outputs[id]).enumerate() {
            let name = part(&actor, "merge", &output.name, actor.outputs.len());
            let tokens = run.saturating_mul(output.rate);
            let merge = self.deal(name, "Merge", ("inputs", replicas), tokens, &output.token)?;
            if let Some(channel) = *to {
                self.graph.channels[channel].from = end(merge, 0);
            }
            for (i, &replica) in ids.iter().enumerate() {
                let (from, to) = (end(replica, port), end(merge, i));
                self.join(from, to, &output.token);
            }
        }
        Ok(())
    }

    /// Adds an actor that deals tokens out or takes them together again.
    fn deal(
        &mut self,
        name: String,
        op: &'static str,
        (count_name, runs): (&str, u64),
        tokens: u64,
        token: &TokenType,
    ) -> Result<ActorId, ReplicateError> {
        let refused = || ReplicateError::Op { op, runs, tokens };
        let int = |n: u64| i64::try_from(n).map(Value::Int).map_err(|_| refused());
        let params: Params = [
            (count_name.to_owned(), int(runs)?),
            ("run".to_owned(), int(tokens)?),
        ]
        .into();
        let named = (0..runs).map(|i| (format!("x{i}"), token.clone()));
        let types: BTreeMap<String, TokenType> =
            named.chain([("x".to_owned(), token.clone())]).collect();
        let cx = ResolveCx {
            params: &params,
            connected: &[],
            types: &types,
            blobs: self.blobs,
        };
        let resolved = self.registry.op(op).map(|op| op.resolve(&cx));
        let signature = resolved.ok_or_else(refused)?.map_err(|_| refused())?;
        Ok(self.graph.actors.push_and_get_key(Actor {
            name,
            role: Role::Compute,
            op: op.to_owned(),
            params,
            inputs: signature.inputs,
            outputs: signature.outputs,
            state: Vec::new(),
            in_place: Vec::new(),
        }))
    }

    fn join(&mut self, from: Endpoint, to: Endpoint, token: &TokenType) {
        let readers = vec![Reader { to, delay: 0 }];
        let channel = Channel {
            from,
            readers,
            token: token.clone(),
            initial: Vec::new(),
        };
        self.graph.channels.push(channel);
    }
}

fn end(actor: ActorId, port: usize) -> Endpoint {
    Endpoint {
        actor,
        port: port as u32,
    }
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
