//! Sample rates: they follow the repetition vector from the streams that state one to all sinks.

use zbmd_ir::response::SAMPLE_RATE;
use zbmd_ir::{ActorId, Graph, TiVec, Value};

use crate::build::{BuiltGraph, Origins};
use crate::codes::Code;
use crate::diag::{Diagnostic, Sink};

/// A stated sample rate, as what it means for a whole connected part of the graph.
#[derive(Clone, Copy)]
struct PartRate {
    /// The actor that states it.
    actor: ActorId,
    iterations_per_s: f64,
}

/// Gives every sink the sample rate that follows from the stated ones; reports stated rates that disagree.
pub(crate) fn infer_sample_rates(
    built: &mut BuiltGraph,
    repetitions: &TiVec<ActorId, u64>,
    sink: &mut Sink,
) {
    let BuiltGraph { graph, origins } = built;
    let part_indices = connected_parts(graph);
    let mut part_rates: Vec<Option<PartRate>> = vec![None; graph.actors.len()];

    for &actor in origins.sample_rates.keys() {
        let params = &graph.actors[actor].params;
        let Some(stated) = params.get(SAMPLE_RATE).and_then(Value::as_float) else {
            continue;
        };

        // Rates of streams differ within a part, but all its actors make the same iterations.
        let iteration_tokens = tokens_per_iteration(graph, actor, repetitions);
        let part_rate = PartRate {
            actor,
            iterations_per_s: stated / iteration_tokens,
        };

        match part_rates[part_indices[actor]] {
            None => part_rates[part_indices[actor]] = Some(part_rate),
            Some(first) if disagrees(first, part_rate) => {
                let expected = first.iterations_per_s * iteration_tokens;
                let disagreement = Disagreement {
                    actor,
                    stated,
                    expected,
                    first: first.actor,
                };

                sink.push(disagreement.draw(graph, origins));
            }
            Some(_) => {}
        }
    }

    // Sinks learn their rate for the files that they write; a stated one stays.
    let sink_actors: Vec<ActorId> = graph.sinks().map(|(id, _)| id).collect();
    for sink_actor in sink_actors {
        if let Some(part_rate) = part_rates[part_indices[sink_actor]] {
            let iteration_tokens = tokens_per_iteration(graph, sink_actor, repetitions);
            let sample_rate = Value::Float(part_rate.iterations_per_s * iteration_tokens);
            let params = &mut graph.actors[sink_actor].params;
            params.entry(SAMPLE_RATE.to_owned()).or_insert(sample_rate);
        }
    }
}

/// Tokens of an actor's first port in an iteration.
pub(crate) fn tokens_per_iteration(
    graph: &Graph,
    id: ActorId,
    repetitions: &TiVec<ActorId, u64>,
) -> f64 {
    let actor = &graph.actors[id];
    let output_rate = actor.outputs.first().map(|port| port.rate);
    let input_rate = actor.inputs.first().map(|port| port.rate);
    let port_rate = output_rate.or(input_rate).unwrap_or(1);
    repetitions[id] as f64 * port_rate as f64
}

/// Whether two rates differ by more than rounding.
fn disagrees(first: PartRate, second: PartRate) -> bool {
    let difference = first.iterations_per_s - second.iterations_per_s;
    difference.abs() > 1e-9 * first.iterations_per_s.abs()
}

/// A stated sample rate that contradicts one stated before.
struct Disagreement {
    actor: ActorId,
    stated: f64,
    expected: f64,
    first: ActorId,
}

impl Disagreement {
    fn draw(&self, graph: &Graph, origins: &Origins) -> Diagnostic {
        let Self {
            stated, expected, ..
        } = self;
        let name = &graph.actors[self.actor].name;
        let first_name = &graph.actors[self.first].name;
        let message = format!(
            "`{name}` states a sample rate of {stated}, the rest of the graph gives {expected}"
        );

        Diagnostic::new(Code::E0404, message)
            .primary(
                origins.sample_rates[&self.actor],
                format!("should be {expected}"),
            )
            .context(
                origins.sample_rates[&self.first],
                format!("`{first_name}` states this one"),
            )
            .help("change one of them, or put a resampler between the streams")
    }
}

/// The connected part that each actor belongs to, as the index of its first actor.
pub(crate) fn connected_parts(graph: &Graph) -> TiVec<ActorId, usize> {
    let mut parents: Vec<usize> = (0..graph.actors.len()).collect();
    for channel in &graph.channels {
        for reader in &channel.readers {
            // The smaller index becomes the root, so that a part is named by its first actor.
            let writer_root = find_root(&mut parents, channel.from.actor.index());
            let reader_root = find_root(&mut parents, reader.to.actor.index());
            let joined = writer_root.min(reader_root);
            parents[writer_root.max(reader_root)] = joined;
        }
    }

    (0..graph.actors.len())
        .map(|actor| find_root(&mut parents, actor))
        .collect()
}

/// The first actor of a part, found by halving paths.
fn find_root(parents: &mut [usize], mut actor: usize) -> usize {
    while parents[actor] != actor {
        let grandparent = parents[parents[actor]];
        parents[actor] = grandparent;
        actor = grandparent;
    }
    actor
}
