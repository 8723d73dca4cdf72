//! Checkpoints on disk: the state of a run at a committed border, from which another process can go on after this one
//! was killed. A folder holds the last few of one run, which is named in it; each file is whole or not there, and says
//! if it is damaged.
//!
//! Little-endian: `ZBCP`, version (u32), length of the rest (u64), checksum (u64) of all bytes but itself, then in
//! postcard the run's id, where its files began, and the state as [`zbmd_ir::state`] writes it.

mod folder;
mod identity;

use std::io;

use serde::{Deserialize, Serialize};
use zbmd_ir::file_header::{FileHeader, HeaderError};
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{Graph, State, state};

pub use self::folder::{Folder, FolderError, Found};
pub use self::identity::{
    IdentityError, InputIdentity, RunIdentity, SinkIdentity, SourceIdentity, hash_of_file,
};

/// First bytes of every checkpoint.
pub const MAGIC: [u8; 4] = *b"ZBCP";
/// The format version that this crate writes, and the only one it reads.
pub const VERSION: u32 = 2;
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
}

impl Origin {
    /// The border that a state is at.
    pub fn of(state: &State) -> Self {
        let consumed = state.consumed.iter().map(|(_, tokens)| *tokens).collect();
        Self {
            iterations: state.iterations,
            consumed,
        }
    }
}

/// A state, and where the files that belong to it began.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The run that it is of: [`RunIdentity::run_id`].
    pub run_id: String,
    /// Where the files began.
    pub origin: Origin,
    /// Where to go on.
    pub state: State,
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
    /// As the bytes of a file.
    pub fn encode(&self, graph: &Graph) -> Vec<u8> {
        let state_bytes = state::encode(&self.state, graph, None);
        let body = postcard::to_stdvec(&(&self.run_id, &self.origin, &state_bytes))
            .expect("sequences have lengths");
        HEADER.seal(&[], &body)
    }

    /// Reads a checkpoint of a run of `graph`, which has been verified.
    ///
    /// # Errors
    /// See [`CheckpointError`].
    pub fn decode(bytes: &[u8], graph: &Graph) -> Result<Self, CheckpointError> {
        let body = HEADER.open(bytes)?.body;

        let (run_id, origin, state_bytes): (String, Origin, Vec<u8>) =
            postcard::from_bytes(body)
                .map_err(|error| CheckpointError::Content(error.to_string()))?;
        let state = state::decode(&state_bytes, graph)?.state;
        let checkpoint = Self {
            run_id,
            origin,
            state,
        };
        checkpoint.check_counts(graph)?;
        Ok(checkpoint)
    }

    /// A length that no file of a checkpoint of this graph exceeds.
    pub fn max_file_bytes(graph: &Graph) -> u64 {
        /// Of the run's id and the numbers of the origin, with some to spare.
        const MAX_ID_BYTES: u64 = 256;
        const MAX_VARINT_BYTES: u64 = 10;
        let origin_bytes = (graph.sources().count() as u64 + 4) * MAX_VARINT_BYTES;
        HEADER.bytes() as u64 + MAX_ID_BYTES + origin_bytes + state::max_file_bytes(graph)
    }

    /// Iterations that the run's files hold.
    pub fn iterations_in_files(&self) -> u64 {
        self.state.iterations - self.origin.iterations
    }

    /// Between the origin and the state each source has consumed what so many iterations take, and nothing else: from
    /// other numbers a run would read its sources and cut its sinks at the wrong places.
    fn check_counts(&self, graph: &Graph) -> Result<(), CheckpointError> {
        let iterations = count_since("iterations", self.origin.iterations, self.state.iterations)?;

        if self.origin.consumed.len() != self.state.consumed.len() {
            return Err(CheckpointError::Content(format!(
                "begins with {} sources, the model has {}",
                self.origin.consumed.len(),
                self.state.consumed.len()
            )));
        }

        let firings = repetition(graph).expect("a verified graph is consistent");
        let consumed_counts = self.state.consumed.iter().zip(&self.origin.consumed);
        for (&(source, now), &began) in consumed_counts {
            let actor = &graph.actors[source];
            let consumed_tokens = count_since("tokens", began, now)?;
            let tokens_per_iteration =
                u128::from(firings[source]) * u128::from(actor.outputs[0].rate);
            let expected_tokens = u128::from(iterations) * tokens_per_iteration;
            if u128::from(consumed_tokens) != expected_tokens {
                return Err(CheckpointError::Content(format!(
                    "source `{}` gave {consumed_tokens} tokens in {iterations} iterations, which take {expected_tokens}",
                    actor.name
                )));
            }
        }
        Ok(())
    }
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
        let origin = Origin::of(&state);
        let repetition = repetition(&graph).expect("consistent");
        state.iterations = iterations;
        for (source, tokens) in &mut state.consumed {
            *tokens = iterations * repetition[*source] * graph.actors[*source].outputs[0].rate;
        }
        let run_id = "a run".to_owned();
        (
            graph,
            Checkpoint {
                run_id,
                origin,
                state,
            },
        )
    }

    #[test]
    fn every_damage_is_noticed() {
        let (graph, checkpoint) = checkpoint(7);
        let bytes = checkpoint.encode(&graph);
        assert!(bytes.len() as u64 <= Checkpoint::max_file_bytes(&graph));
        assert_eq!(
            Checkpoint::decode(&bytes, &graph).expect("whole"),
            checkpoint
        );
        for length in 0..bytes.len() {
            Checkpoint::decode(&bytes[..length], &graph).expect_err("cut off");
        }
        for bit in 0..8 * bytes.len() {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            Checkpoint::decode(&bytes, &graph).expect_err("a bit turned");
        }
    }

    /// With fitting checksums: a number alone at an extreme contradicts the others, and all of them together are either
    /// refused or bounded as a state's are.
    #[test]
    fn counts_at_their_extremes_are_refused_or_consistent() {
        let (graph, whole) = checkpoint(7);
        let places: [fn(&mut Checkpoint) -> &mut u64; 4] = [
            |c| &mut c.origin.iterations,
            |c| &mut c.origin.consumed[0],
            |c| &mut c.state.iterations,
            |c| &mut c.state.consumed[0].1,
        ];
        for extreme in EXTREME_COUNTS {
            for subset in 1u32..1 << places.len() {
                let mut changed = whole.clone();
                for (index, place) in places.iter().enumerate() {
                    if subset & 1 << index != 0 {
                        *place(&mut changed) = extreme;
                    }
                }
                let Ok(accepted) = Checkpoint::decode(&changed.encode(&graph), &graph) else {
                    continue;
                };
                assert_eq!(accepted, changed);
                assert!(accepted.state.iterations <= zbmd_ir::limits::MAX_STREAM_BYTES);
                assert!(
                    accepted.iterations_in_files() <= accepted.state.iterations,
                    "{accepted:?}"
                );
            }
        }
        let mut more_sources = whole;
        more_sources.origin.consumed.push(0);
        Checkpoint::decode(&more_sources.encode(&graph), &graph).expect_err("one too many");
    }
}
