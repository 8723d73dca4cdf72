//! Checkpoints on disk: the state of a run at a committed border, from which another process can go on after this one
//! was killed. A folder holds the last few of one run, which is named in it; each file is whole or not there, and says
//! if it is damaged.
//!
//! Little-endian: `ZBCP`, version (u32), length of the rest (u64), checksum (u64) of all bytes but itself, then in
//! postcard the run's id, where its files began, the tokens that each sink's file has, and the state with its mode as
//! [`zbmd_ir::state`] writes it.

mod folder;
mod identity;

use std::io;

use serde::{Deserialize, Serialize};
use zbmd_ir::file_header::{FileHeader, HeaderError};
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{ActorId, Graph, PresentMode, State, state};

pub use self::folder::{Folder, FolderError, Found};
pub use self::identity::{
    IdentityError, InputIdentity, RunIdentity, SinkIdentity, SourceIdentity, hash_of_file,
};

/// First bytes of every checkpoint.
pub const MAGIC: [u8; 4] = *b"ZBCP";
/// The format version that this crate writes, and the only one it reads.
pub const VERSION: u32 = 3;
const HEADER: FileHeader = FileHeader {
    magic: MAGIC,
    version: VERSION,
    field_count: 0,
};

/// Where a run's files began: their first tokens belong to this border.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Iterations that had been done.
    pub iterations: u64,
    /// Tokens that each source had consumed, in actor order.
    pub consumed: Vec<u64>,
    /// The mode that the run was in: its place among those of the bundle, 0 where there are none.
    #[serde(default)]
    pub mode: u32,
}

impl Origin {
    /// The border that a state of this mode is at.
    pub fn of(state: &State, present_mode: &PresentMode) -> Self {
        let consumed = state.consumed.iter().map(|(_, tokens)| *tokens).collect();
        Self {
            iterations: state.iterations,
            consumed,
            mode: present_mode.mode,
        }
    }
}

/// A state, and the files that belong to it: where they began, and what they hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The run that it is of: [`RunIdentity::run_id`].
    pub run_id: String,
    /// Where the files began.
    pub origin: Origin,
    /// Tokens that each sink's file has of what came before the state, in actor order.
    pub sink_tokens: Vec<u64>,
    /// Where to go on.
    pub state: State,
    /// In which mode.
    pub present_mode: PresentMode,
}

/// Why a file is not a checkpoint of this graph.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum CheckpointError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("starts with {found:02x?}, a checkpoint with {MAGIC:02x?} (`ZBCP`)")]
    Magic { found: [u8; 4] },
    #[error("format version {found}, this program reads {VERSION}")]
    Version { found: u32 },
    #[error("should have {expected} bytes, has {found}")]
    Length { expected: u64, found: u64 },
    #[error("checksum {found:016x}, it says {expected:016x}: it is damaged")]
    Checksum { found: u64, expected: u64 },
    #[error("{0}")]
    Content(String),
    #[error("is of run {found}, this folder is of run {expected}")]
    Run { found: String, expected: String },
    #[error(transparent)]
    State(#[from] state::StateError),
}

impl From<HeaderError> for CheckpointError {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::Magic { found } => Self::Magic { found },
            HeaderError::Version { found } => Self::Version { found },
            HeaderError::Length { expected, found } => Self::Length { expected, found },
            HeaderError::Checksum { found, expected } => Self::Checksum { found, expected },
        }
    }
}

impl Checkpoint {
    /// As the bytes of a file. The graphs are those of the run's modes, or the one that it has.
    pub fn encode(&self, graphs: &[&Graph]) -> Vec<u8> {
        let state_bytes = match graphs {
            [graph] => state::encode(&self.state, graph, None),
            graphs => state::encode_with_mode(&self.state, &self.present_mode, graphs, None),
        };
        let body = (&self.run_id, &self.origin, &self.sink_tokens, &state_bytes);
        let body_bytes = postcard::to_stdvec(&body).expect("sequences have lengths");
        HEADER.seal(&[], &body_bytes)
    }

    /// Reads a checkpoint of a run of these modes, or of the one graph that it has; all have been verified.
    ///
    /// # Errors
    /// See [`CheckpointError`].
    pub fn decode(bytes: &[u8], graphs: &[&Graph]) -> Result<Self, CheckpointError> {
        let body = HEADER.open(bytes)?.body;

        let (run_id, origin, sink_tokens, state_bytes): (String, Origin, Vec<u64>, Vec<u8>) =
            postcard::from_bytes(body)
                .map_err(|error| CheckpointError::Content(error.to_string()))?;
        let (saved, present_mode) = state::decode_with_mode(&state_bytes, graphs)?;
        let checkpoint = Self {
            run_id,
            origin,
            sink_tokens,
            state: saved.state,
            present_mode,
        };
        checkpoint.check_counts(graphs)?;
        Ok(checkpoint)
    }

    /// A length that no file of a checkpoint of these graphs exceeds.
    pub fn max_file_bytes(graphs: &[&Graph]) -> u64 {
        /// Of the run's id and the numbers of the origin, with some to spare.
        const MAX_ID_BYTES: u64 = 256;
        const MAX_VARINT_BYTES: u64 = 10;
        let streams = graphs
            .first()
            .map_or(0, |graph| graph.sources().count() + graph.sinks().count());
        let count_bytes = (streams as u64 + 6) * MAX_VARINT_BYTES;
        HEADER.bytes() as u64 + MAX_ID_BYTES + count_bytes + state::max_file_bytes_with_mode(graphs)
    }

    /// Between the origin and the state each stream has moved as many tokens as so many iterations move, in whatever
    /// modes: from other numbers a run would read its sources and cut its sinks at the wrong places.
    fn check_counts(&self, graphs: &[&Graph]) -> Result<(), CheckpointError> {
        let iterations = count_since("iterations", self.origin.iterations, self.state.iterations)?;
        let rates = StreamRates::of(graphs);

        let consumed_counts = self.state.consumed.iter().zip(&self.origin.consumed);
        let moved_by_sources: Result<Vec<u64>, CheckpointError> = consumed_counts
            .map(|(&(_, now), &began)| count_since("tokens", began, now))
            .collect();
        let origin_sources = self.origin.consumed.len();
        check_stream_count("begins with", "sources", origin_sources, &rates.sources)?;
        check_moved(
            "source",
            "gave",
            iterations,
            &moved_by_sources?,
            &rates.sources,
        )?;

        let sinks = self.sink_tokens.len();
        check_stream_count("counts tokens of", "sinks", sinks, &rates.sinks)?;
        check_moved("sink", "took", iterations, &self.sink_tokens, &rates.sinks)
    }
}

/// How many tokens an iteration moves on a stream: the least and the most in any mode.
struct StreamRate<'g> {
    name: &'g str,
    least: u128,
    most: u128,
}

/// The rates of all sources and sinks, each in actor order.
struct StreamRates<'g> {
    sources: Vec<StreamRate<'g>>,
    sinks: Vec<StreamRate<'g>>,
}

impl<'g> StreamRates<'g> {
    /// Of graphs that have been verified, with the same streams in the same order.
    fn of(graphs: &[&'g Graph]) -> Self {
        let mut rates = Self {
            sources: Vec::new(),
            sinks: Vec::new(),
        };
        for graph in graphs {
            let firings = repetition(graph).expect("a verified graph is consistent");
            let per_iteration = |id: ActorId, rate: u64| u128::from(firings[id]) * u128::from(rate);
            let sources = graph.sources().map(|(id, actor)| {
                let tokens = per_iteration(id, actor.outputs[0].rate);
                (actor.name.as_str(), tokens)
            });
            let sinks = graph.sinks().map(|(id, actor)| {
                let tokens = per_iteration(id, actor.inputs[0].rate);
                (actor.name.as_str(), tokens)
            });
            add_rates(&mut rates.sources, sources);
            add_rates(&mut rates.sinks, sinks);
        }
        rates
    }
}

/// Takes in what one mode moves in an iteration.
fn add_rates<'g>(rates: &mut Vec<StreamRate<'g>>, of_mode: impl Iterator<Item = (&'g str, u128)>) {
    for (index, (name, tokens)) in of_mode.enumerate() {
        match rates.get_mut(index) {
            Some(rate) => {
                rate.least = rate.least.min(tokens);
                rate.most = rate.most.max(tokens);
            }
            None => rates.push(StreamRate {
                name,
                least: tokens,
                most: tokens,
            }),
        }
    }
}

fn check_stream_count(
    verb: &str,
    noun: &str,
    found: usize,
    rates: &[StreamRate<'_>],
) -> Result<(), CheckpointError> {
    match found == rates.len() {
        true => Ok(()),
        false => Err(CheckpointError::Content(format!(
            "{verb} {found} {noun}, the model has {}",
            rates.len()
        ))),
    }
}

/// Refuses tokens that no run has moved in so many iterations.
fn check_moved(
    kind: &str,
    verb: &str,
    iterations: u64,
    moved: &[u64],
    rates: &[StreamRate<'_>],
) -> Result<(), CheckpointError> {
    for (&tokens, rate) in moved.iter().zip(rates) {
        let least = u128::from(iterations) * rate.least;
        let most = u128::from(iterations) * rate.most;
        if (least..=most).contains(&u128::from(tokens)) {
            continue;
        }
        let expected_text = match least == most {
            true => format!("move {least}"),
            false => format!("move {least} to {most}"),
        };
        return Err(CheckpointError::Content(format!(
            "{kind} `{}` {verb} {tokens} tokens in {iterations} iterations, which {expected_text}",
            rate.name
        )));
    }
    Ok(())
}

/// How far a count has come since the origin; refused if it has gone back.
fn count_since(what: &str, began: u64, now: u64) -> Result<u64, CheckpointError> {
    now.checked_sub(began).ok_or_else(|| {
        CheckpointError::Content(format!(
            "begins at {began} {what}, after the {now} that it is of"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::testing::{EXTREME_COUNTS, programs};

    fn checkpoint(iterations: u64) -> (Graph, Checkpoint) {
        let graph = programs::window().graph;
        let mut state = State::initial(&graph);
        let origin = Origin::of(&state, &PresentMode::default());
        let repetition = repetition(&graph).expect("consistent");
        state.iterations = iterations;
        for (source, tokens) in &mut state.consumed {
            *tokens = iterations * repetition[*source] * graph.actors[*source].outputs[0].rate;
        }
        let per_iteration = graph
            .sinks()
            .map(|(id, sink)| repetition[id] * sink.inputs[0].rate);
        let checkpoint = Checkpoint {
            run_id: "a run".to_owned(),
            origin,
            sink_tokens: per_iteration.map(|tokens| iterations * tokens).collect(),
            state,
            present_mode: PresentMode::default(),
        };
        (graph, checkpoint)
    }

    #[test]
    fn every_damage_is_noticed() {
        let (graph, checkpoint) = checkpoint(7);
        let bytes = checkpoint.encode(&[&graph]);
        assert!(bytes.len() as u64 <= Checkpoint::max_file_bytes(&[&graph]));
        assert_eq!(
            Checkpoint::decode(&bytes, &[&graph]).expect("whole"),
            checkpoint
        );
        for length in 0..bytes.len() {
            Checkpoint::decode(&bytes[..length], &[&graph]).expect_err("cut off");
        }
        for bit in 0..8 * bytes.len() {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            Checkpoint::decode(&bytes, &[&graph]).expect_err("a bit turned");
        }
    }

    /// With fitting checksums: a number alone at an extreme contradicts the others, and all of them together are either
    /// refused or bounded as a state's are.
    #[test]
    fn counts_at_their_extremes_are_refused_or_consistent() {
        let (graph, whole) = checkpoint(7);
        let places: [fn(&mut Checkpoint) -> &mut u64; 5] = [
            |c| &mut c.origin.iterations,
            |c| &mut c.origin.consumed[0],
            |c| &mut c.state.iterations,
            |c| &mut c.state.consumed[0].1,
            |c| &mut c.sink_tokens[0],
        ];
        for extreme in EXTREME_COUNTS {
            for subset in 1u32..1 << places.len() {
                let mut changed = whole.clone();
                for (index, place) in places.iter().enumerate() {
                    if subset & 1 << index != 0 {
                        *place(&mut changed) = extreme;
                    }
                }
                let Ok(accepted) = Checkpoint::decode(&changed.encode(&[&graph]), &[&graph]) else {
                    continue;
                };
                assert_eq!(accepted, changed);
                assert!(accepted.state.iterations <= zbmd_ir::limits::MAX_STREAM_BYTES);
                assert!(
                    accepted.origin.iterations <= accepted.state.iterations,
                    "{accepted:?}"
                );
            }
        }
        let mut more_sources = whole.clone();
        more_sources.origin.consumed.push(0);
        Checkpoint::decode(&more_sources.encode(&[&graph]), &[&graph]).expect_err("one too many");
        let mut fewer_sinks = whole;
        fewer_sinks.sink_tokens.pop();
        Checkpoint::decode(&fewer_sinks.encode(&[&graph]), &[&graph]).expect_err("one too few");
    }
}
