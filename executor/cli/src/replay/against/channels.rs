//! Which actor is the first to differ: both models are interpreted from one state, token by token, and what actors of the
//! same name write is compared. The interpreter knows no plan, and sees what lies on channels inside of a model.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use zbmd_backends::interpret::{InterpretError, Interpreter, Written};
use zbmd_backends::op::Registry;
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{ActorId, ChannelId, Graph, Program, State, TiVec, TokenType};

use crate::CliError;
use crate::flight::Recording;
use crate::replay::carry::{same_channel, tokens_per_iteration};
use crate::replay::sources_from;

/// Iterations of one model that are compared with those of the other, at most: their tokens are in memory.
const MAX_STEP_ITERATIONS: u64 = 1 << 12;

/// How what an actor writes differs first.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PortDifference {
    /// The tokens that its channel begins with.
    Initial,
    /// A token.
    Token { recorded: Vec<u8>, other: Vec<u8> },
    /// There are more tokens than in the other model, or fewer.
    Count { recorded: u64, other: u64 },
}

/// The first port of an actor that differs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct UnlikePort {
    pub(super) actor: String,
    pub(super) port: String,
    pub(super) token: TokenType,
    /// The token, counted from where the comparison began, as the recorded model does.
    pub(super) index: u64,
    pub(super) iteration: u64,
    pub(super) difference: PortDifference,
    /// All that the actor reads is the same in both models.
    pub(super) is_cause: bool,
}

/// A model that is interpreted on recorded tokens.
struct Walk<'a> {
    graph: &'a Graph,
    interpreter: Interpreter,
    sources: Vec<WalkedSource>,
    path: &'a Path,
}

struct WalkedSource {
    name: String,
    bytes_per_iteration: u64,
    reader: Box<dyn Read + Send>,
}

/// A model and where it begins.
#[derive(Clone, Copy)]
pub(super) struct Start<'a> {
    pub(super) program: &'a Program,
    pub(super) state: &'a State,
    pub(super) path: &'a Path,
}

/// What was written in a step.
#[derive(Default)]
struct StepTokens {
    /// By channel.
    bytes: TiVec<ChannelId, Vec<u8>>,
    /// In the order of firings: the channel, and how many bytes it has then.
    writes: Vec<(ChannelId, usize)>,
}

/// Two models, and which of their channels are compared.
pub(super) struct Comparison<'a> {
    recorded: Walk<'a>,
    other: Walk<'a>,
    /// For each channel of the recorded model, that of the other one.
    pairs: TiVec<ChannelId, Option<ChannelId>>,
    /// Iterations of each that take the same tokens.
    step: (u64, u64),
    first_iteration: u64,
}

impl<'a> Comparison<'a> {
    /// Makes ready to compare.
    ///
    /// # Errors
    /// A model that cannot be interpreted, or two that take the tokens of their sources in other proportions: the text says
    /// which.
    pub(super) fn new(
        recording: &Recording,
        recorded: Start<'a>,
        other: Start<'a>,
        registry: &Registry,
    ) -> Result<Self, CliError> {
        let (graph, other_graph) = (&recorded.program.graph, &other.program.graph);
        let step = common_step(graph, other_graph).map_err(|text| CliError::Refused {
            path: other.path.to_owned(),
            text,
        })?;
        let channels = graph.channels.iter();
        let pairs = channels.map(|channel| same_channel(graph, channel, other_graph));
        Ok(Self {
            pairs: pairs.collect(),
            step,
            first_iteration: recorded.state.iterations,
            recorded: Walk::new(recording, recorded, registry)?,
            other: Walk::new(recording, other, registry)?,
        })
    }

    /// The first channel that begins with other tokens, as far as both models have as many.
    pub(super) fn unlike_start(&self, recorded: &State, other: &State) -> Option<UnlikePort> {
        let mut pairs = self.pairs.iter_enumerated();
        let (channel, _) = pairs.find(|(channel, pair)| {
            let Some(pair) = pair else { return false };
            let (own, others) = (&recorded.channels[*channel], &other.channels[*pair]);
            // The youngest tokens of both lie at the end.
            let common = own.len().min(others.len());
            own[own.len() - common..] != others[others.len() - common..]
        })?;
        Some(UnlikePort {
            is_cause: true,
            ..self.port(channel, self.first_iteration, 0, PortDifference::Initial)
        })
    }

    /// The first difference before an iteration of the run.
    ///
    /// # Errors
    /// A fault of a kernel, or tokens that cannot be read.
    pub(super) fn first_difference(&mut self, end: u64) -> Result<Option<UnlikePort>, CliError> {
        let mut iteration = self.first_iteration;
        while iteration < end {
            let mut written = StepTokens::of(self.recorded.graph);
            let mut other_written = StepTokens::of(self.other.graph);
            let goes_on = self.recorded.step(self.step.0, &mut written)?
                && self.other.step(self.step.1, &mut other_written)?;
            if !goes_on {
                return Ok(None);
            }
            if let Some(found) = self.unlike_port(iteration, &written, &other_written) {
                return Ok(Some(found));
            }
            iteration += self.step.0;
        }
        Ok(None)
    }

    /// The first write of a step that differs. An actor fires after those that it reads from.
    fn unlike_port(
        &self,
        iteration: u64,
        written: &StepTokens,
        other: &StepTokens,
    ) -> Option<UnlikePort> {
        let mut compared: TiVec<ChannelId, usize> = vec![0; written.bytes.len()].into();
        for &(channel, end) in &written.writes {
            let begin = std::mem::replace(&mut compared[channel], end);
            let Some(pair) = self.pairs[channel] else {
                continue;
            };

            let bytes = &written.bytes[channel];
            let other_bytes = &other.bytes[pair];
            let token_bytes = self.recorded.graph.channels[channel].token.bytes() as usize;
            let is_last = end == bytes.len();
            let other_end = match is_last {
                true => other_bytes.len().max(begin),
                false => end,
            };
            let own = &bytes[begin..end];
            let others = other_bytes.get(begin..other_end.min(other_bytes.len()));
            let others = others.unwrap_or(&[]);
            if own == others {
                continue;
            }

            let in_both = own.len().min(others.len()) / token_bytes;
            let unlike = first_unlike(own, others, token_bytes);
            let difference = match &unlike {
                Some(at) => PortDifference::Token {
                    recorded: own[at.clone()].to_vec(),
                    other: others[at.clone()].to_vec(),
                },
                None => PortDifference::Count {
                    recorded: (bytes.len() / token_bytes) as u64,
                    other: (other_bytes.len() / token_bytes) as u64,
                },
            };
            let place = unlike.map_or(in_both, |at| at.start / token_bytes);
            let token = (begin / token_bytes + place) as u64;
            return Some(self.port(channel, iteration, token, difference));
        }
        None
    }

    /// `token` is counted from the start of an iteration.
    fn port(
        &self,
        id: ChannelId,
        iteration: u64,
        token: u64,
        difference: PortDifference,
    ) -> UnlikePort {
        let graph = self.recorded.graph;
        let channel = &graph.channels[id];
        let writer = &graph.actors[channel.from.actor];
        let port = &writer.outputs[channel.from.port as usize];
        let repetition = repetition(graph).expect("a verified graph is consistent");
        let per_iteration = repetition[channel.from.actor] * port.rate;
        UnlikePort {
            actor: writer.name.clone(),
            port: port.name.clone(),
            token: channel.token.clone(),
            index: (iteration - self.first_iteration) * per_iteration + token,
            iteration: iteration + token / per_iteration,
            difference,
            is_cause: self.reads_same(channel.from.actor),
        }
    }

    /// Whether an actor reads, at ports of the same names and with the same delays, what is compared.
    fn reads_same(&self, actor: ActorId) -> bool {
        let (graph, other) = (self.recorded.graph, self.other.graph);
        let Some(other_actor) = other.find(&graph.actors[actor].name) else {
            return false;
        };
        let inputs = inputs_of(graph, actor);
        let other_inputs = inputs_of(other, other_actor);
        let paired: Option<BTreeMap<&str, (ChannelId, u64)>> = inputs
            .into_iter()
            .map(|(port, (channel, delay))| Some((port, (self.pairs[channel]?, delay))))
            .collect();
        paired == Some(other_inputs)
    }
}

/// What an actor reads: the channel and the delay, by the name of the port.
fn inputs_of(graph: &Graph, actor: ActorId) -> BTreeMap<&str, (ChannelId, u64)> {
    let mut inputs = BTreeMap::new();
    for (id, channel) in graph.channels.iter_enumerated() {
        for reader in channel.readers.iter().filter(|r| r.to.actor == actor) {
            let port = &graph.actors[actor].inputs[reader.to.port as usize];
            inputs.insert(port.name.as_str(), (id, reader.delay));
        }
    }
    inputs
}

/// The fewest iterations of two models that take the same tokens.
fn common_step(graph: &Graph, other: &Graph) -> Result<(u64, u64), String> {
    let mut step = None;
    for (id, source) in graph.sources() {
        let Some(other_id) = other.find(&source.name) else {
            continue;
        };
        let tokens = tokens_per_iteration(graph, id);
        let other_tokens = tokens_per_iteration(other, other_id);
        let divisor = gcd(tokens, other_tokens);
        let own_step = (other_tokens / divisor, tokens / divisor);
        if step.is_some_and(|known| known != own_step) {
            return Err("takes the tokens of its sources in other proportions".to_owned());
        }
        step = Some(own_step);
    }
    let step = step.unwrap_or((1, 1));
    match step.0.max(step.1) <= MAX_STEP_ITERATIONS {
        true => Ok(step),
        false => Err(format!(
            "{} of its iterations take the tokens of {} that were recorded: too many to be compared actor by actor",
            step.1, step.0
        )),
    }
}

/// Where the first token lies that differs, of those that both have.
fn first_unlike(own: &[u8], others: &[u8], token_bytes: usize) -> Option<Range<usize>> {
    let own_tokens = own.chunks_exact(token_bytes);
    let mut pairs = own_tokens.zip(others.chunks_exact(token_bytes));
    let place = pairs.position(|(own, other)| own != other)?;
    Some(place * token_bytes..(place + 1) * token_bytes)
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a.max(1),
        _ => gcd(b, a % b),
    }
}

impl StepTokens {
    fn of(graph: &Graph) -> Self {
        Self {
            bytes: graph.channels.iter().map(|_| Vec::new()).collect(),
            writes: Vec::new(),
        }
    }
}

impl<'a> Walk<'a> {
    fn new(recording: &Recording, start: Start<'a>, registry: &Registry) -> Result<Self, CliError> {
        let graph = &start.program.graph;
        let failed = |error: InterpretError| refused(start.path, &error);
        let mut interpreter =
            Interpreter::new(graph, &start.program.blobs, registry).map_err(failed)?;
        interpreter.restore(start.state).map_err(failed)?;
        let opened = sources_from(recording, start.path, graph, start.state)?;
        let sources = graph.sources().zip(opened);
        let sources = sources.map(|((id, actor), (name, _, reader))| WalkedSource {
            name,
            bytes_per_iteration: tokens_per_iteration(graph, id) * actor.outputs[0].token.bytes(),
            reader,
        });
        Ok(Self {
            graph,
            interpreter,
            sources: sources.collect(),
            path: start.path,
        })
    }

    /// Runs so many iterations; false if the recording ends before.
    fn step(&mut self, iterations: u64, written: &mut StepTokens) -> Result<bool, CliError> {
        let mut inputs = BTreeMap::new();
        for source in &mut self.sources {
            let mut bytes = Vec::new();
            let wanted = iterations * source.bytes_per_iteration;
            let read = (&mut source.reader).take(wanted).read_to_end(&mut bytes);
            read.map_err(|error| refused(self.path, &error))?;
            if (bytes.len() as u64) < wanted {
                return Ok(false);
            }
            inputs.insert(source.name.clone(), bytes);
        }
        let mut note = |new: Written<'_>| {
            let bytes = &mut written.bytes[new.channel];
            bytes.extend_from_slice(new.bytes);
            written.writes.push((new.channel, bytes.len()));
        };
        self.interpreter
            .run_observed(&inputs, Some(iterations), &mut note)
            .map_err(|error| refused(self.path, &error))?;
        Ok(true)
    }
}

fn refused(path: &Path, error: &dyn std::error::Error) -> CliError {
    CliError::Refused {
        path: path.to_owned(),
        text: error.to_string(),
    }
}
