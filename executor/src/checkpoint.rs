//! Checkpoints on disk: the state of a run at a committed border, from which another process can go on after this one
//! was killed. A folder holds the last few; each file is whole or not there, and says if it is damaged.
//!
//! Little-endian: `ZBCP`, version (u32), length of the rest (u64), checksum (u64) of all bytes but itself, then in
//! postcard where the run's files began, and the state as [`zbmd_ir::state`] writes it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3Default;
use zbmd_ir::{Graph, State, state};

/// First bytes of every checkpoint.
pub const MAGIC: [u8; 4] = *b"ZBCP";
/// The format version that this crate writes, and the only one it reads.
pub const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
const EXTENSION: &str = "zbcp";

/// Where a run's files began: their first tokens belong to this border.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Iterations that had been done.
    pub iterations: u64,
    /// Tokens that each source had consumed, in actor order.
    pub consumed: Vec<u64>,
}

impl Origin {
    /// The border that a state lies at.
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
    /// Where the files began.
    pub origin: Origin,
    /// Where to go on.
    pub state: State,
}

/// Why a file is no checkpoint of this graph.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum CheckpointError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("starts with {found:02x?}, a checkpoint with {MAGIC:02x?} (`ZBCP`)")]
    Magic { found: Vec<u8> },
    #[error("format version {found}, this program reads {VERSION}")]
    Version { found: u32 },
    #[error("should have {expected} bytes, has {found}")]
    Length { expected: u64, found: u64 },
    #[error("checksum {found:016x}, it says {expected:016x}: it is damaged")]
    Checksum { found: u64, expected: u64 },
    #[error("{0}")]
    Content(String),
    #[error(transparent)]
    State(#[from] state::StateError),
}

fn sum(head: &[u8], body: &[u8]) -> u64 {
    let mut hasher = Xxh3Default::new();
    hasher.update(head);
    hasher.update(body);
    hasher.digest()
}

impl Checkpoint {
    /// As the bytes of a file.
    pub fn encode(&self, graph: &Graph) -> Vec<u8> {
        let state = state::encode(&self.state, graph);
        let body = postcard::to_stdvec(&(&self.origin, &state)).expect("sequences have lengths");
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
        let sum = sum(&bytes, &body);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Reads a checkpoint of a run of `graph`, which has been verified.
    ///
    /// # Errors
    /// See [`CheckpointError`].
    pub fn decode(bytes: &[u8], graph: &Graph) -> Result<Self, CheckpointError> {
        let found = bytes.len() as u64;
        let (head, body) = bytes
            .split_at_checked(HEADER_BYTES)
            .ok_or(CheckpointError::Length {
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
            return Err(CheckpointError::Magic {
                found: head[..4].to_vec(),
            });
        }
        let version = (word(0) >> 32) as u32;
        if version != VERSION {
            return Err(CheckpointError::Version { found: version });
        }
        if word(8) != body.len() as u64 {
            let expected = word(8).saturating_add(HEADER_BYTES as u64);
            return Err(CheckpointError::Length { expected, found });
        }
        let (found, expected) = (sum(&head[..16], body), word(16));
        if found != expected {
            return Err(CheckpointError::Checksum { found, expected });
        }
        let (origin, state): (Origin, Vec<u8>) =
            postcard::from_bytes(body).map_err(|e| CheckpointError::Content(e.to_string()))?;
        let state = state::decode(&state, graph)?;
        let sources = state.consumed.iter().zip(&origin.consumed);
        let fits = origin.consumed.len() == state.consumed.len()
            && origin.iterations <= state.iterations
            && sources.clone().all(|((_, now), then)| then <= now);
        if !fits {
            let text = "it begins after the border that it is of".to_owned();
            return Err(CheckpointError::Content(text));
        }
        Ok(Self { origin, state })
    }
}

/// The checkpoints in a folder.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    keep: usize,
}

impl Folder {
    /// Makes the folder if it is not there; `keep` (at least 1) checkpoints are kept.
    ///
    /// # Errors
    /// What the file system says.
    pub fn open(path: &Path, keep: usize) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        Ok(Self {
            path: path.to_owned(),
            keep: keep.max(1),
        })
    }

    /// The checkpoints' files, the newest first.
    ///
    /// # Errors
    /// What the file system says.
    pub fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == EXTENSION) {
                files.push(path);
            }
        }
        // Names hold the number of iterations with leading zeros.
        files.sort_unstable_by(|a, b| b.cmp(a));
        Ok(files)
    }

    /// Writes a checkpoint and removes those that are too old. After a power failure too, each file in the folder is
    /// whole.
    ///
    /// # Errors
    /// What the file system says; then the older checkpoints are all still there.
    pub fn write(&self, checkpoint: &Checkpoint, graph: &Graph) -> io::Result<()> {
        let name = format!("{:020}.{EXTENSION}", checkpoint.state.iterations);
        let mut file = tempfile::Builder::new()
            .prefix(".zbmd-")
            .tempfile_in(&self.path)?;
        file.write_all(&checkpoint.encode(graph))?;
        file.as_file().sync_all()?;
        file.persist(self.path.join(name)).map_err(|e| e.error)?;
        // The new name is safe only once the folder is.
        File::open(&self.path)?.sync_all()?;
        for old in self.files()?.into_iter().skip(self.keep) {
            // One too many is no harm.
            let _ = fs::remove_file(old);
        }
        Ok(())
    }

    /// The newest sound checkpoint, and what is wrong with newer ones.
    ///
    /// # Errors
    /// What the file system says of the folder.
    pub fn newest(&self, graph: &Graph) -> io::Result<(Option<Checkpoint>, Vec<String>)> {
        let mut damaged = Vec::new();
        for path in self.files()? {
            let read = fs::read(&path).map_err(CheckpointError::from);
            match read.and_then(|bytes| Checkpoint::decode(&bytes, graph)) {
                Ok(checkpoint) => return Ok((Some(checkpoint), damaged)),
                Err(error) => damaged.push(format!("{}: {error}", path.display())),
            }
        }
        Ok((None, damaged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::testing::programs;

    fn checkpoint(iterations: u64) -> (Graph, Checkpoint) {
        let graph = programs::window().graph;
        let mut state = State::initial(&graph);
        let origin = Origin::of(&state);
        state.iterations = iterations;
        state
            .consumed
            .iter_mut()
            .for_each(|(_, tokens)| *tokens = 3 * iterations);
        (graph, Checkpoint { origin, state })
    }

    #[test]
    fn every_damage_is_noticed() {
        let (graph, checkpoint) = checkpoint(7);
        let bytes = checkpoint.encode(&graph);
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

    #[test]
    fn a_folder_keeps_the_last_few_and_passes_damaged_ones_over() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(&place.path().join("deep/er"), 3).expect("made");
        let (graph, _) = checkpoint(0);
        assert!(folder.newest(&graph).expect("empty").0.is_none());
        for iterations in [5, 40, 300, 2000] {
            folder
                .write(&checkpoint(iterations).1, &graph)
                .expect("written");
        }
        let files = folder.files().expect("there");
        assert_eq!(files.len(), 3);
        fs::write(&files[0], b"ZBCP, but not really one of them").expect("damaged");
        let (newest, damaged) = folder.newest(&graph).expect("there");
        assert_eq!(newest.expect("an older one").state.iterations, 300);
        assert_eq!(damaged.len(), 1);
        let mut other = graph.clone();
        other.actors.raw[0].name.push('x');
        let (none, damaged) = folder.newest(&other).expect("there");
        assert!(
            none.is_none() && damaged.len() == 3,
            "they are of another graph"
        );
    }

    #[test]
    fn a_full_disk_leaves_the_older_ones() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(place.path(), 2).expect("made");
        let (graph, first) = checkpoint(5);
        folder.write(&first, &graph).expect("written");
        let gone = Folder {
            path: place.path().join("not there"),
            keep: 2,
        };
        gone.write(&checkpoint(6).1, &graph)
            .expect_err("no folder to write to");
        assert_eq!(folder.newest(&graph).expect("there").0, Some(first));
    }
}
