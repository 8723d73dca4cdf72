//! The state of a run as bytes: a checkpoint that only a run of the same graph accepts.
//!
//! Little-endian: `ZBST`, version (u32), fingerprint of the graph (u64), hash of the bundle that the run was of (u64, 0
//! where there was none), length of the rest (u64), checksum (u64) of all bytes but itself, then the [`State`] in
//! postcard.

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::file_header::{FileHeader, HeaderError};
use crate::limits::{MAX_CHANGES, MAX_STREAM_BYTES};
use crate::verify::graph::repetition;
use crate::{
    ActorId, ChangePosition, Graph, ParameterChange, PresentMode, Role, State, TokenType,
    live_parameters,
};

/// First bytes of every state.
pub const MAGIC: [u8; 4] = *b"ZBST";
/// The format version that this crate writes, and the only one it reads.
pub const VERSION: u32 = 3;
/// First bytes of a state of a run of several modes, which says in which one it is: the same header without fields, then in
/// postcard the [`PresentMode`] and the state as it is without modes.
const MODES_HEADER: FileHeader = FileHeader {
    magic: *b"ZBSM",
    version: 2,
    field_count: 0,
};
/// The fields are the graph's fingerprint and the bundle's hash.
const HEADER: FileHeader = FileHeader {
    magic: MAGIC,
    version: VERSION,
    field_count: 2,
};

/// Why bytes are not a state of this graph.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum StateError {
    /// It is something else.
    #[error("starts with {found:02x?}, a state with {MAGIC:02x?} (`ZBST`)")]
    Magic { found: [u8; 4] },
    /// Made by another version.
    #[error("format version {found}, this program reads {VERSION}")]
    Version { found: u32 },
    /// Too short or too long.
    #[error("the state should have {expected} bytes, has {found}")]
    Length { expected: u64, found: u64 },
    /// Bytes were changed.
    #[error("checksum {found:016x}, the state says {expected:016x}: it is damaged")]
    Checksum { found: u64, expected: u64 },
    /// A state of another kind of model.
    #[error("is a state of a model {found} modes, this one is {expected}")]
    Modes {
        found: &'static str,
        expected: &'static str,
    },
    /// A state of another graph.
    #[error("made by graph {found:016x}, this one is {expected:016x}")]
    Graph { found: u64, expected: u64 },
    /// The data is not what it should be.
    #[error("{message}")]
    Content { message: String },
    /// A channel's tokens have the wrong size, or there are too few or many channels.
    #[error("channel {channel} has {found} bytes, must have {expected}")]
    Tokens {
        channel: usize,
        found: u64,
        expected: u64,
    },
    /// The sources are not those of the graph.
    #[error("tokens are counted for sources {found:?}, the graph has {expected:?}")]
    Sources {
        found: Vec<ActorId>,
        expected: Vec<ActorId>,
    },
    /// A change of live parameters that the graph does not have, or that it would refuse.
    #[error("change {index} of live parameters: {why}")]
    Change { index: usize, why: String },
    /// A count beyond what any run reaches, from which arithmetic would wrap.
    #[error(
        "{what} is {found}: stream `{stream}` would be past {MAX_STREAM_BYTES} bytes, which no run reaches"
    )]
    Count {
        what: &'static str,
        stream: String,
        found: u64,
    },
}

/// A state as it was read, with what its file says of where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedState {
    /// Where the run was.
    pub state: State,
    /// Hash of the bundle that the run was of, where its writer knew.
    pub bundle_hash: Option<u64>,
}

/// Names and roles of actors; ends, types and history of channels: what the tokens of a state depend on.
#[derive(Serialize)]
struct GraphShape<'g> {
    actors: Vec<(&'g str, Role)>,
    channels: Vec<(crate::Endpoint, &'g TokenType, u64)>,
}

impl<'g> GraphShape<'g> {
    fn of(graph: &'g Graph) -> Self {
        let actors = graph.actors.iter().map(|a| (a.name.as_str(), a.role));
        let channels = graph
            .channels
            .iter()
            .map(|c| (c.from, &c.token, c.history()));
        Self {
            actors: actors.collect(),
            channels: channels.collect(),
        }
    }
}

/// Rates and windows of an actor's inputs, and rates of its outputs.
#[derive(Serialize)]
struct ActorRates {
    inputs: Vec<(u64, u64)>,
    outputs: Vec<u64>,
}

/// Postcard refuses only sequences of unknown length.
fn hash_of(value: &impl Serialize) -> u64 {
    xxh3_64(&postcard::to_stdvec(value).expect("every sequence has a length"))
}

/// A hash of all that a state depends on: names, roles and rates of actors; ends, types and history of channels. The
/// same in every release and on every machine. Graphs that differ only in parameters have the same one.
///
/// Rates belong to it because a state counts iterations: the same count stands for other tokens at another rate.
pub fn fingerprint(graph: &Graph) -> u64 {
    let rates = graph.actors.iter().map(|actor| ActorRates {
        inputs: actor.inputs.iter().map(|p| (p.rate, p.window)).collect(),
        outputs: actor.outputs.iter().map(|p| p.rate).collect(),
    });
    hash_of(&(GraphShape::of(graph), rates.collect::<Vec<_>>()))
}

/// A hash of what the tokens on channels depend on: [`fingerprint`] without rates. Enough where the tokens alone are
/// taken over, as when a run goes over to another program and counts its streams anew.
pub fn channel_fingerprint(graph: &Graph) -> u64 {
    hash_of(&GraphShape::of(graph))
}

/// A length that no file of a state of this graph exceeds: what is longer need not be read.
pub fn max_file_bytes(graph: &Graph) -> u64 {
    /// Of a length or a count in postcard.
    const MAX_VARINT_BYTES: u64 = 10;
    let token_bytes: u64 = graph.channels.iter().map(|c| c.initial.len() as u64).sum();
    let number_count = 4 + graph.channels.len() as u64 + 2 * graph.actors.len() as u64;
    HEADER.bytes() as u64 + token_bytes + number_count * MAX_VARINT_BYTES + max_change_bytes(graph)
}

/// Most bytes of all changes of live parameters.
fn max_change_bytes(graph: &Graph) -> u64 {
    /// Of a position with its kind and source, the number of parameters, and of each its index and length.
    const MAX_ENTRY_BYTES: u64 = 40;
    let parameters = live_parameters(graph);
    if parameters.is_empty() {
        return 0;
    }
    let numbers: usize = parameters.iter().map(|p| p.initial.len()).sum();
    let change_bytes = MAX_ENTRY_BYTES * (1 + parameters.len() as u64) + 8 * numbers as u64;
    change_bytes.saturating_mul(MAX_CHANGES as u64)
}

impl From<HeaderError> for StateError {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::Magic { found } => Self::Magic { found },
            HeaderError::Version { found } => Self::Version { found },
            HeaderError::Length { expected, found } => Self::Length { expected, found },
            HeaderError::Checksum { found, expected } => Self::Checksum { found, expected },
        }
    }
}

/// The bytes of a state of a run of `graph`, from a bundle with that hash.
pub fn encode(state: &State, graph: &Graph, bundle_hash: Option<u64>) -> Vec<u8> {
    let state_bytes = postcard::to_stdvec(state).expect("every sequence has a length");
    let fields = [fingerprint(graph), bundle_hash.unwrap_or(0)];
    HEADER.seal(&fields, &state_bytes)
}

/// Reads a state of a run of `graph`, which has been verified.
///
/// # Errors
/// See [`StateError`].
pub fn decode(bytes: &[u8], graph: &Graph) -> Result<SavedState, StateError> {
    // A damaged state is told from one of another graph by the checksum, so the header is checked first.
    let file = HEADER.open(bytes)?;
    let made_by = file.fields[0];
    let this_graph = fingerprint(graph);
    if made_by != this_graph {
        return Err(StateError::Graph {
            found: made_by,
            expected: this_graph,
        });
    }

    let state = match postcard::take_from_bytes::<State>(file.body) {
        Ok((state, [])) => state,
        Ok((_, rest)) => {
            return Err(StateError::Content {
                message: format!("{} bytes after the data", rest.len()),
            });
        }
        Err(error) => {
            return Err(StateError::Content {
                message: error.to_string(),
            });
        }
    };

    check(&state, graph)?;
    Ok(SavedState {
        state,
        bundle_hash: Some(file.fields[1]).filter(|hash| *hash != 0),
    })
}

/// The bytes of a state of a run of several modes, whose graphs these are.
pub fn encode_with_mode(
    state: &State,
    present: &PresentMode,
    graphs: &[&Graph],
    bundle_hash: Option<u64>,
) -> Vec<u8> {
    let state_bytes = encode(state, graphs[present.mode as usize], bundle_hash);
    let body = postcard::to_stdvec(&(present, &state_bytes));
    MODES_HEADER.seal(&[], &body.expect("every sequence has a length"))
}

/// Reads a state of a run of several modes, whose graphs these are, or of one that has none.
///
/// # Errors
/// See [`StateError`].
pub fn decode_with_mode(
    bytes: &[u8],
    graphs: &[&Graph],
) -> Result<(SavedState, PresentMode), StateError> {
    let has_mode = bytes.starts_with(&MODES_HEADER.magic);
    match (graphs, has_mode) {
        ([graph], false) => return Ok((decode(bytes, graph)?, PresentMode::default())),
        ([_], true) => {
            return Err(StateError::Modes {
                found: "with several",
                expected: "without",
            });
        }
        (_, false) if bytes.starts_with(&MAGIC) => {
            return Err(StateError::Modes {
                found: "without",
                expected: "with several",
            });
        }
        _ => {}
    }

    let body = MODES_HEADER.open(bytes)?.body;
    let content = |message: String| StateError::Content { message };
    let (present, state_bytes): (PresentMode, Vec<u8>) =
        postcard::from_bytes(body).map_err(|error| content(error.to_string()))?;
    let graph = graphs.get(present.mode as usize).ok_or_else(|| {
        let count = graphs.len();
        content(format!(
            "is of mode {}, counted from 0, of {count}",
            present.mode
        ))
    })?;
    Ok((decode(&state_bytes, graph)?, present))
}

/// A length that no file of a state of these modes exceeds.
pub fn max_file_bytes_with_mode(graphs: &[&Graph]) -> u64 {
    /// Of the mode and the lengths of lists, with some to spare.
    const SPARE_BYTES: u64 = 256;
    let of_modes = graphs.iter().map(|graph| max_file_bytes(graph));
    let parameters = graphs.iter().flat_map(|graph| live_parameters(graph));
    let waiting_bytes: u64 = parameters
        .map(|parameter| 32 + parameter.name.len() as u64 + 8 * parameter.initial.len() as u64)
        .sum();
    SPARE_BYTES + waiting_bytes + of_modes.max().unwrap_or(0)
}

/// Whether a run of `graph`, which has been verified, can go on from a state.
///
/// # Errors
/// See [`StateError`].
pub fn check(state: &State, graph: &Graph) -> Result<(), StateError> {
    check_channels(state, graph)?;
    check_changes(&state.changes, graph)?;
    check_counts(state, graph)
}

/// Whether the state has exactly the tokens that lie on the graph's channels, and counts exactly its sources.
fn check_channels(state: &State, graph: &Graph) -> Result<(), StateError> {
    for channel in 0..state.channels.len().max(graph.channels.len()) {
        let expected_sources = graph
            .channels
            .raw
            .get(channel)
            .map_or(0, |c| c.initial.len() as u64);
        let found_sources = state.channels.raw.get(channel).map(|c| c.len() as u64);
        if found_sources != Some(expected_sources) || channel >= graph.channels.len() {
            return Err(StateError::Tokens {
                channel,
                found: found_sources.unwrap_or(0),
                expected: expected_sources,
            });
        }
    }

    // A count belongs to the source in the same place of the list.
    let found_sources: Vec<ActorId> = state.consumed.iter().map(|&(actor, _)| actor).collect();
    let expected_sources: Vec<ActorId> = graph.sources().map(|(actor, _)| actor).collect();
    if found_sources != expected_sources {
        return Err(StateError::Sources {
            found: found_sources,
            expected: expected_sources,
        });
    }

    Ok(())
}

/// Whether the graph has the parameters that change, and allows their values.
///
/// # Errors
/// [`StateError::Change`] for the first change that it does not.
pub fn check_changes(changes: &[ParameterChange], graph: &Graph) -> Result<(), StateError> {
    let refuse = |index: usize, why: String| StateError::Change { index, why };
    if changes.len() > MAX_CHANGES {
        let count = changes.len();
        let why = format!("there are {count}, at most {MAX_CHANGES}");
        return Err(refuse(MAX_CHANGES, why));
    }

    let parameters = live_parameters(graph);
    for (index, change) in changes.iter().enumerate() {
        for (parameter, numbers) in &change.values {
            let Some(known) = parameters.get(*parameter as usize) else {
                let count = parameters.len();
                let why = format!("it names parameter {parameter} of {count}");
                return Err(refuse(index, why));
            };
            let checked = known.check(numbers);
            checked.map_err(|refusal| refuse(index, refusal.to_string()))?;
        }
        let (what, position) = match change.position {
            ChangePosition::Iteration(iteration) => ("iteration", iteration),
            ChangePosition::Token {
                source,
                index: token,
            } => {
                if !graph.sources().any(|(id, _)| id == source) {
                    return Err(refuse(index, format!("{source} is no source")));
                }
                ("token", token)
            }
        };
        if position > MAX_STREAM_BYTES {
            let why = format!("{what} {position} is past {MAX_STREAM_BYTES}, which no run reaches");
            return Err(refuse(index, why));
        }
    }
    Ok(())
}

/// Refuses counts from which a run could not go on without wrapping: a stream holds [`MAX_STREAM_BYTES`] at most, four
/// times less than 64 bits count, so that no sum, and no multiple that a position is kept as, overflows.
fn check_counts(state: &State, graph: &Graph) -> Result<(), StateError> {
    for &(actor, consumed) in &state.consumed {
        let actor = &graph.actors[actor];
        if is_beyond_streams(consumed.into(), &actor.outputs[0].token) {
            return Err(StateError::Count {
                what: "the number of tokens taken",
                stream: actor.name.clone(),
                found: consumed,
            });
        }
    }

    let repetition = repetition(graph).expect("a verified graph is consistent");
    for (id, actor) in graph.sources().chain(graph.sinks()) {
        let (rate, token) = match actor.role {
            Role::Sink => (actor.inputs[0].rate, &actor.inputs[0].token),
            _ => (actor.outputs[0].rate, &actor.outputs[0].token),
        };
        let per_iteration = u128::from(repetition[id]) * u128::from(rate);
        let tokens = u128::from(state.iterations).saturating_mul(per_iteration);
        if is_beyond_streams(tokens, token) {
            return Err(StateError::Count {
                what: "the number of iterations",
                stream: actor.name.clone(),
                found: state.iterations,
            });
        }
    }

    // A graph without streams counts iterations all the same.
    if state.iterations > MAX_STREAM_BYTES {
        return Err(StateError::Count {
            what: "the number of iterations",
            stream: graph.name.clone(),
            found: state.iterations,
        });
    }
    Ok(())
}

fn is_beyond_streams(tokens: u128, token: &TokenType) -> bool {
    tokens.saturating_mul(token.bytes().into()) > MAX_STREAM_BYTES.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::programs;
    use crate::{ChannelId, DType};

    #[test]
    fn round_trip_and_damage() {
        for program in programs::all() {
            let mut state = State::initial(&program.graph);
            state.iterations = 7;
            let bytes = encode(&state, &program.graph, Some(11));
            assert!(bytes.len() as u64 <= max_file_bytes(&program.graph));
            let saved = SavedState {
                state,
                bundle_hash: Some(11),
            };
            assert_eq!(decode(&bytes, &program.graph), Ok(saved));
            for length in 0..bytes.len() {
                assert!(decode(&bytes[..length], &program.graph).is_err());
            }
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    decode(&flipped, &program.graph).is_err(),
                    "bit {bit} was flipped and not noticed"
                );
            }
        }
    }

    #[test]
    fn other_graphs_refuse_it() {
        let graph = programs::window().graph;
        let bytes = encode(&State::initial(&graph), &graph, None);
        let mut renamed = graph.clone();
        renamed.actors[ActorId(1)].name = "other".into();
        let mut retyped = graph.clone();
        retyped.channels[ChannelId(0)].token = TokenType::scalar(DType::I32);
        let mut delayed = graph.clone();
        delayed.channels[ChannelId(0)].readers[0].delay = 3;
        let mut other_source_rate = graph.clone();
        other_source_rate.actors[ActorId(0)].outputs[0].rate *= 2;
        let mut other_sink_rate = graph.clone();
        let sink = graph.sinks().map(|(id, _)| id).next().expect("a sink");
        other_sink_rate.actors[sink].inputs[0].rate *= 2;
        let mut other_window = graph.clone();
        other_window.actors[ActorId(1)].inputs[0].window += 1;
        for other in [
            renamed,
            retyped,
            delayed,
            other_source_rate,
            other_sink_rate,
            other_window,
        ] {
            assert!(matches!(
                decode(&bytes, &other),
                Err(StateError::Graph { .. })
            ));
        }
        let mut tuned = graph.clone();
        tuned.actors[ActorId(1)]
            .params
            .insert("gain".into(), crate::Value::Int(2));
        assert!(
            decode(&bytes, &tuned).is_ok(),
            "parameters are no part of a state"
        );
    }

    #[test]
    fn tokens_and_sources_must_fit() {
        let graph = programs::window().graph;
        let mut short = State::initial(&graph);
        short.channels[ChannelId(0)].pop();
        let expected = StateError::Tokens {
            channel: 0,
            found: 7,
            expected: 8,
        };
        assert_eq!(decode(&encode(&short, &graph, None), &graph), Err(expected));
        let mut more = State::initial(&graph);
        more.channels.push(vec![]);
        assert!(matches!(
            decode(&encode(&more, &graph, None), &graph),
            Err(StateError::Tokens { channel: 2, .. })
        ));
        let mut unknown = State::initial(&graph);
        unknown.consumed[0].0 = ActorId(2);
        assert!(matches!(
            decode(&encode(&unknown, &graph, None), &graph),
            Err(StateError::Sources { .. })
        ));
    }

    /// Every number of a state at every extreme is refused, or small enough to go on from: no test binary traps here on
    /// an overflow, and `executor/cli/tests/checkpoints.rs` runs those that are accepted.
    #[test]
    fn counts_at_their_extremes_are_refused_or_bounded() {
        for program in programs::all() {
            let graph = &program.graph;
            let whole = State::initial(graph);
            let sources = whole.consumed.len();
            for extreme in crate::testing::EXTREME_COUNTS {
                for place in 0..=sources {
                    let mut state = whole.clone();
                    match place.checked_sub(1) {
                        None => state.iterations = extreme,
                        Some(source) => state.consumed[source].1 = extreme,
                    }
                    let decoded = decode(&encode(&state, graph, None), graph);
                    if extreme > MAX_STREAM_BYTES {
                        let names_it = matches!(&decoded, Err(StateError::Count { found, .. }) if *found == extreme);
                        assert!(names_it, "{extreme} at {place}: {decoded:?}");
                    }
                    if extreme <= 1 << 32 {
                        assert!(decoded.is_ok(), "{extreme} at {place}: {decoded:?}");
                    }
                }
            }
        }
    }
}
