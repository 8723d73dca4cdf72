//! The graph with replicas: actor `a` becomes `a#split -> a#0 … a#k-1 -> a#merge`, which deal its firings out in runs.
//!
//! All other actors and all channels of the model keep their ids; `a#0` takes the id of `a`. The new channels carry
//! no initial tokens.

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_ir::math::gcd_u64;
use zbmd_ir::verify::VerifyError;
use zbmd_ir::{Actor, ActorId, BlobId, Graph, Params, TiSlice, TiVec, TokenType, Value, verify};
use zbmd_scheduler::AnalysisError;
use zbmd_scheduler::replicate::{Factors, Obstacle, obstacles};

use crate::graph_edit::{GraphEdit, endpoint, repeated_name};

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
    /// The actor cannot be replicated.
    #[error("`{name}` cannot be replicated: {obstacle}")]
    Obstacle {
        /// Name of the actor.
        name: String,
        /// What prevents it.
        obstacle: Obstacle,
    },
    /// An actor of the graph has the name that a new one would get.
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
    /// The new graph breaks a rule of graphs or exceeds a limit.
    #[error("the graph with replicas is refused: {0}")]
    Refused(VerifyError),
    /// Unconnected parts of the graph would no longer make the same number of iterations.
    #[error("unconnected parts of the graph would fall out of step")]
    Step,
}

/// Replaces each actor of `factors` by that many replicas, which take turns in runs of firings. Outputs stay the same to
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
    let repetitions = zbmd_scheduler::repetition(graph)?;
    let obstacles = obstacles(graph);

    // Channels of the model are re-routed and new ones appended: ids of the model stay valid.
    let mut rewrite = Rewrite {
        edit: GraphEdit {
            graph: graph.clone(),
            registry,
            blobs,
        },
    };

    for (&actor, &replicas) in factors {
        let obstacle = obstacles
            .get(actor)
            .ok_or(ReplicateError::Unknown { actor })?;
        if let Some(obstacle) = obstacle {
            return Err(ReplicateError::Obstacle {
                name: graph.actors[actor].name.clone(),
                obstacle: obstacle.clone(),
            });
        }

        if replicas > 1 {
            rewrite.replicate_actor(actor, u64::from(replicas), repetitions[actor])?;
        }
    }

    let graph = rewrite.edit.graph;
    check_names(&graph)?;

    // The verifier checks the rewritten graph here, in every build: attempts may exceed limits.
    let new_repetitions = verify::check_graph(&graph, blobs).map_err(first_refusal)?;
    let iterations = model_iterations(&repetitions, &new_repetitions, factors)?;
    Ok(Replicated { graph, iterations })
}

/// Refuses replicas that are called what an actor of the model is called.
fn check_names(graph: &Graph) -> Result<(), ReplicateError> {
    match repeated_name(graph) {
        Some(taken) => Err(ReplicateError::Name {
            name: taken.to_owned(),
        }),
        None => Ok(()),
    }
}

fn first_refusal(errors: Vec<VerifyError>) -> ReplicateError {
    match errors.into_iter().next() {
        Some(error) => ReplicateError::Refused(error),
        None => ReplicateError::Step,
    }
}

/// How many of the model's iterations one of the new graph's is.
///
/// # Errors
/// Unconnected parts for which the numbers differ.
fn model_iterations(
    repetitions: &TiVec<ActorId, u64>,
    new_repetitions: &TiVec<ActorId, u64>,
    factors: &Factors,
) -> Result<u64, ReplicateError> {
    // Firings of all replicas of an actor of the model.
    let replica_firings = |actor: ActorId| {
        let replicas = factors
            .get(&actor)
            .map_or(1, |&count| u64::from(count.max(1)));
        new_repetitions[actor].saturating_mul(replicas)
    };

    // Any actor gives the number; all must give the same, or parts of the graph would run at different speeds.
    let first_actor = repetitions.keys().next();
    let iterations = first_actor.map_or(1, |first| replica_firings(first) / repetitions[first]);

    for (actor, &before) in repetitions.iter_enumerated() {
        if before.checked_mul(iterations) != Some(replica_firings(actor)) {
            return Err(ReplicateError::Step);
        }
    }

    Ok(iterations)
}

/// A graph while actors are replaced by replicas.
struct Rewrite<'a> {
    edit: GraphEdit<'a>,
}

/// The actors that deal tokens out to replicas and merge them again: where their ops differ.
#[derive(Clone, Copy)]
struct DealOp {
    op: &'static str,
    /// The parameter with the number of replicas.
    count_param: &'static str,
    /// What its actors are called after.
    suffix: &'static str,
    /// Whether the replicas are at its inputs, `x0`, `x1`, and so on, and not at its outputs.
    merges: bool,
}

const SPLIT: DealOp = DealOp {
    op: "Split",
    count_param: "outputs",
    suffix: "split",
    merges: false,
};
const MERGE: DealOp = DealOp {
    op: "Merge",
    count_param: "inputs",
    suffix: "merge",
    merges: true,
};

/// How tokens of one port are dealt out: in turns, runs of tokens.
struct Deal<'a> {
    replicas: u64,
    run_tokens: u64,
    token: &'a TokenType,
}

impl Rewrite<'_> {
    fn replicate_actor(
        &mut self,
        id: ActorId,
        replicas: u64,
        firings: u64,
    ) -> Result<(), ReplicateError> {
        let port_channels = self.edit.graph.port_channels();
        let actor = self.edit.graph.actors[id].clone();
        let replica_ids = self.add_replicas(id, &actor, replicas);

        // The longest run deals an iteration out at once: fewest and largest copies. The least common multiple of
        // firings and replicas is what a period of the new graph fires; each replica fires its share of that in a row.
        let run_firings = firings / gcd_u64(firings, replicas);

        for (port, (input, channel_end)) in actor
            .inputs
            .iter()
            .zip(&port_channels.inputs[id])
            .enumerate()
        {
            let name = deal_name(&actor, SPLIT, &input.name, actor.inputs.len());
            let deal = Deal {
                replicas,
                run_tokens: run_firings.saturating_mul(input.rate),
                token: &input.token,
            };

            let split_actor = self.add_deal(name, SPLIT, &deal)?;

            // A port without a channel stays without, and the graph is refused.
            if let Some((channel, reader)) = *channel_end {
                self.edit.graph.channels[channel].readers[reader as usize].to =
                    endpoint(split_actor, 0);
            }
            for (index, &replica) in replica_ids.iter().enumerate() {
                let from = endpoint(split_actor, index);
                self.edit
                    .connect(from, [endpoint(replica, port)], &input.token);
            }
        }

        for (port, (output, channel)) in actor
            .outputs
            .iter()
            .zip(&port_channels.outputs[id])
            .enumerate()
        {
            let name = deal_name(&actor, MERGE, &output.name, actor.outputs.len());
            let deal = Deal {
                replicas,
                run_tokens: run_firings.saturating_mul(output.rate),
                token: &output.token,
            };

            let merge_actor = self.add_deal(name, MERGE, &deal)?;

            if let Some(channel) = *channel {
                self.edit.graph.channels[channel].from = endpoint(merge_actor, 0);
            }
            for (index, &replica) in replica_ids.iter().enumerate() {
                let to = endpoint(merge_actor, index);
                self.edit
                    .connect(endpoint(replica, port), [to], &output.token);
            }
        }
        Ok(())
    }

    /// Puts the first replica in the place of the actor, and adds the others.
    fn add_replicas(&mut self, id: ActorId, actor: &Actor, replicas: u64) -> Vec<ActorId> {
        let mut replica_ids = vec![id];
        self.edit.graph.actors[id].name = format!("{}#0", actor.name);
        for index in 1..replicas {
            let replica = Actor {
                name: format!("{}#{index}", actor.name),
                ..actor.clone()
            };
            replica_ids.push(self.edit.graph.actors.push_and_get_key(replica));
        }
        replica_ids
    }

    /// Adds an actor that deals tokens out or merges them again.
    fn add_deal(
        &mut self,
        name: String,
        deal_op: DealOp,
        deal: &Deal<'_>,
    ) -> Result<ActorId, ReplicateError> {
        // The op may be missing in a registry of the embedding program, or refuse the numbers.
        let refusal = ReplicateError::Op {
            op: deal_op.op,
            runs: deal.replicas,
            tokens: deal.run_tokens,
        };

        let Ok(runs) = i64::try_from(deal.replicas) else {
            return Err(refusal);
        };
        let Ok(run_tokens) = i64::try_from(deal.run_tokens) else {
            return Err(refusal);
        };
        let params: Params = [
            (deal_op.count_param.to_owned(), Value::Int(runs)),
            ("run".to_owned(), Value::Int(run_tokens)),
        ]
        .into();

        let input_names: Vec<String> = match deal_op.merges {
            true => (0..deal.replicas)
                .map(|index| format!("x{index}"))
                .collect(),
            false => vec!["x".to_owned()],
        };
        let inputs: Vec<(String, &TokenType)> = input_names
            .into_iter()
            .map(|port| (port, deal.token))
            .collect();

        let actor = self.edit.make_actor(name, deal_op.op, params, &inputs);
        let actor = actor.ok_or(refusal)?;
        Ok(self.edit.graph.actors.push_and_get_key(actor))
    }
}

/// `actor#split`, with the port where there are several.
fn deal_name(actor: &Actor, deal_op: DealOp, port: &str, ports: usize) -> String {
    let suffix = deal_op.suffix;
    match ports {
        1 => format!("{}#{suffix}", actor.name),
        _ => format!("{}#{suffix}:{port}", actor.name),
    }
}
