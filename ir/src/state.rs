//! The state of a run as bytes: a checkpoint that only a run of the same graph accepts.
//!
//! Little-endian: `ZBST`, version (u32), fingerprint of the graph (u64), length of the rest (u64), checksum (u64) of
//! all bytes but itself, then the [`State`] in postcard.

use serde::Serialize;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::{ActorId, Graph, State, TokenType};

/// First bytes of every state.
pub const MAGIC: [u8; 4] = *b"ZBST";
/// The format version that this crate writes, and the only one it reads.
pub const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;

/// Why bytes are no state of this graph.
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
}

/// A hash of all that a state depends on: names and roles of actors; ends, types and history of channels. The same in
/// every release and on every machine. Graphs that differ only in parameters have the same one.
pub fn fingerprint(graph: &Graph) -> u64 {
    #[derive(Serialize)]
    struct Shape<'g> {
        actors: Vec<(&'g str, crate::Role)>,
        channels: Vec<(crate::Endpoint, &'g TokenType, u64)>,
    }
    let shape = Shape {
        actors: graph
            .actors
            .iter()
            .map(|a| (a.name.as_str(), a.role))
            .collect(),
        channels: graph
            .channels
            .iter()
            .map(|c| (c.from, &c.token, c.history()))
            .collect(),
    };
    // Postcard refuses only sequences of unknown length.
    xxh3_64(&postcard::to_stdvec(&shape).expect("every sequence has a length"))
}

fn sum(head: &[u8], body: &[u8]) -> u64 {
    let mut hasher = Xxh3Default::new();
    hasher.update(head);
    hasher.update(body);
    hasher.digest()
}

/// The bytes of a state of a run of `graph`.
pub fn encode(state: &State, graph: &Graph) -> Vec<u8> {
    let body = postcard::to_stdvec(state).expect("every sequence has a length");
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&fingerprint(graph).to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    let checksum = sum(&bytes, &body);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// Reads a state of a run of `graph`, which has been verified.
///
/// # Errors
/// See [`StateError`].
pub fn decode(bytes: &[u8], graph: &Graph) -> Result<State, StateError> {
    let found = bytes.len() as u64;
    let (head, body) = bytes
        .split_at_checked(HEADER_BYTES)
        .ok_or(StateError::Length {
            expected: HEADER_BYTES as u64,
            found,
        })?;
    let word = |at: usize| {
        head[at..at + 8]
            .iter()
            .rev()
            .fold(0u64, |n, &b| (n << 8) | u64::from(b))
    };
    if !head.starts_with(&MAGIC) {
        return Err(StateError::Magic {
            found: [head[0], head[1], head[2], head[3]],
        });
    }
    let version = (word(0) >> 32) as u32;
    if version != VERSION {
        return Err(StateError::Version { found: version });
    }
    let length = word(16);
    if length != body.len() as u64 {
        return Err(StateError::Length {
            expected: length.saturating_add(HEADER_BYTES as u64),
            found,
        });
    }
    let (checksum, expected) = (sum(&head[..24], body), word(24));
    if checksum != expected {
        return Err(StateError::Checksum {
            found: checksum,
            expected,
        });
    }
    let (found, expected) = (word(8), fingerprint(graph));
    if found != expected {
        return Err(StateError::Graph { found, expected });
    }
    match postcard::take_from_bytes::<State>(body) {
        Ok((state, [])) => fits(state, graph),
        Ok((_, rest)) => Err(StateError::Content {
            message: format!("{} bytes after the data", rest.len()),
        }),
        Err(error) => Err(StateError::Content {
            message: error.to_string(),
        }),
    }
}

/// Whether the state has exactly the tokens that lie on the graph's channels, and counts exactly its sources.
fn fits(state: State, graph: &Graph) -> Result<State, StateError> {
    for channel in 0..state.channels.len().max(graph.channels.len()) {
        let expected = graph
            .channels
            .raw
            .get(channel)
            .map_or(0, |c| c.initial.len() as u64);
        let found = state.channels.raw.get(channel).map(|c| c.len() as u64);
        if found != Some(expected) || channel >= graph.channels.len() {
            return Err(StateError::Tokens {
                channel,
                found: found.unwrap_or(0),
                expected,
            });
        }
    }
    let found: Vec<ActorId> = state.consumed.iter().map(|&(actor, _)| actor).collect();
    let expected: Vec<ActorId> = graph.sources().map(|(actor, _)| actor).collect();
    if found != expected {
        return Err(StateError::Sources { found, expected });
    }
    Ok(state)
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
            let bytes = encode(&state, &program.graph);
            assert_eq!(decode(&bytes, &program.graph), Ok(state));
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
        let bytes = encode(&State::initial(&graph), &graph);
        let mut renamed = graph.clone();
        renamed.actors[ActorId(1)].name = "other".into();
        let mut retyped = graph.clone();
        retyped.channels[ChannelId(0)].token = TokenType::scalar(DType::I32);
        let mut delayed = graph.clone();
        delayed.channels[ChannelId(0)].readers[0].delay = 3;
        for other in [renamed, retyped, delayed] {
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
        assert_eq!(decode(&encode(&short, &graph), &graph), Err(expected));
        let mut more = State::initial(&graph);
        more.channels.push(vec![]);
        assert!(matches!(
            decode(&encode(&more, &graph), &graph),
            Err(StateError::Tokens { channel: 2, .. })
        ));
        let mut unknown = State::initial(&graph);
        unknown.consumed[0].0 = ActorId(2);
        assert!(matches!(
            decode(&encode(&unknown, &graph), &graph),
            Err(StateError::Sources { .. })
        ));
    }
}
