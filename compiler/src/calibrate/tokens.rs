//! The tokens that reach actors of the embedding program when the model's sources give what the caller says. What such an
//! actor does may depend on them: a decoder does little where it hears noise, and tries every place where its inputs
//! contradict each other. Kernels of the catalogue take about the same time whatever they read.

use std::collections::BTreeMap;

use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::custom;
use zbmd_ir::{Actor, ActorId, ChannelId, Graph};

use super::KernelSources;
use super::measure::fill;
use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, suggest};
use crate::reports::Reported;

/// Iterations that are run, at most.
const MAX_ITERATIONS: u64 = 1024;
/// Bytes of a channel after which no more are kept.
const KEPT_BYTES: usize = 1 << 20;

/// Tokens on the channels that actors of the embedding program read.
#[derive(Default)]
pub(super) struct SeenTokens {
    /// The channel of each input of these actors.
    inputs: BTreeMap<ActorId, Vec<Option<ChannelId>>>,
    by_channel: BTreeMap<ChannelId, Vec<u8>>,
}

impl SeenTokens {
    /// Runs the graph with tokens of its sources, by name, if it has such actors and there are any. Of sources without
    /// tokens, any are taken. Nothing is seen of a graph that cannot run: the compiler says why, and measuring its
    /// kernels says which fault they report.
    pub(super) fn of(
        graph: &Graph,
        sources: &KernelSources<'_>,
        inputs: &BTreeMap<String, Vec<u8>>,
    ) -> Self {
        if inputs.is_empty() {
            return Self::default();
        }
        let ports = graph.port_channels();
        let actors = graph.actors.iter_enumerated();
        let custom_actors = actors.filter(|(_, actor)| actor.op == custom::NAME);
        let read_by: BTreeMap<_, _> = custom_actors
            .map(|(id, _)| {
                let channels = ports.inputs[id].iter();
                (id, channels.map(|port| port.map(|(id, _)| id)).collect())
            })
            .collect();

        let read_channels = read_by.values().flat_map(|channels: &Vec<_>| channels);
        let mut by_channel: BTreeMap<ChannelId, Vec<u8>> = read_channels
            .flatten()
            .map(|&channel| (channel, Vec::new()))
            .collect();
        if !by_channel.is_empty() {
            observe(graph, sources, inputs, &mut by_channel);
        }
        Self {
            inputs: read_by,
            by_channel,
        }
    }

    /// What was seen on the channel of each input of an actor, without its states; empty where nothing was.
    pub(super) fn of_inputs(&self, id: ActorId, actor: &Actor) -> Vec<&[u8]> {
        let channels = self.inputs.get(&id);
        let inputs = 0..actor.inputs.len();
        inputs
            .filter(|&index| actor.state_of_input(index as u32).is_none())
            .map(|index| {
                let channel = channels.and_then(|channels| channels[index]);
                let seen = channel.and_then(|channel| self.by_channel.get(&channel));
                seen.map_or(&[][..], Vec::as_slice)
            })
            .collect()
    }
}

/// Refuses tokens of sources that the graph does not have, and fewer than one iteration takes.
pub(crate) fn check_inputs(
    graph: &Graph,
    inputs: &BTreeMap<String, Vec<u8>>,
    sink: &mut Sink,
) -> Result<(), Reported> {
    let known_errors = sink.errors();
    let iteration_bytes = iteration_bytes(graph);
    for (name, tokens) in inputs {
        let Some((id, _)) = graph.sources().find(|(_, source)| source.name == *name) else {
            let message = format!("kernels are to be measured with tokens of a source `{name}`");
            let names = graph.sources().map(|(_, source)| source.name.as_str());
            let help = suggest(name, names.collect::<Vec<_>>());
            sink.push(Diagnostic::new(Code::E0201, message).help(help));
            continue;
        };
        let needed = iteration_bytes.get(&id).copied().unwrap_or(0);
        if (tokens.len() as u64) < needed {
            let given = tokens.len();
            let message =
                format!("source `{name}` is given {given} bytes, an iteration takes {needed}");
            let help = "give tokens of one iteration at least";
            sink.push(Diagnostic::new(Code::E0203, message).help(help));
        }
    }
    match sink.errors() == known_errors {
        true => Ok(()),
        false => Err(Reported),
    }
}

/// Bytes that each source gives in an iteration; none of a graph without a repetition vector.
fn iteration_bytes(graph: &Graph) -> BTreeMap<ActorId, u64> {
    let Ok(repetition) = zbmd_scheduler::repetition(graph) else {
        return BTreeMap::new();
    };
    let of_source = |(id, source): (ActorId, &Actor)| {
        let port = &source.outputs[0];
        let tokens = repetition[id].saturating_mul(port.rate);
        (id, tokens.saturating_mul(port.token.bytes()).max(1))
    };
    graph.sources().map(of_source).collect()
}

/// Keeps what is written on these channels while the graph runs.
fn observe(
    graph: &Graph,
    sources: &KernelSources<'_>,
    inputs: &BTreeMap<String, Vec<u8>>,
    by_channel: &mut BTreeMap<ChannelId, Vec<u8>>,
) {
    let iteration_bytes = iteration_bytes(graph);
    let given = graph.sources().filter_map(|(id, source)| {
        let tokens = inputs.get(&source.name)?;
        Some(tokens.len() as u64 / iteration_bytes.get(&id)?)
    });
    let iterations = given.min().unwrap_or(0).min(MAX_ITERATIONS);

    let mut streams = inputs.clone();
    for (seed, (id, source)) in graph.sources().enumerate() {
        streams.entry(source.name.clone()).or_insert_with(|| {
            let bytes = iteration_bytes.get(&id).copied().unwrap_or(0);
            let mut tokens = vec![0; iterations.saturating_mul(bytes) as usize];
            fill(&mut tokens, source.outputs[0].token.dtype, seed as u64 + 1);
            tokens
        });
    }
    let Ok(mut interpreter) = Interpreter::new(graph, sources.blobs, sources.registry) else {
        return;
    };
    // What was written before a fault is as good.
    let _ = interpreter.run_observed(&streams, Some(iterations), &mut |written| {
        if let Some(kept) = by_channel.get_mut(&written.channel)
            && kept.len() < KEPT_BYTES
        {
            kept.extend_from_slice(written.bytes);
        }
    });
}
