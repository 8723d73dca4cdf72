//! Reads a recording, which may be a stranger's: every length and count is checked. Also one that is still being made, and
//! one whose process was killed at any byte.
//!
//! Opening reads the heads of all records; tokens and states are read, and their checksums compared, when they are wanted.
//! A segment that ends within a record, or that is damaged, ends there; what is missing then is found as any other hole
//! is, by the indexes of what follows.

mod scan;
mod segment;
mod stretch;
#[cfg(test)]
mod tests;
mod tokens;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use zbmd_ir::ParameterChange;
use zbmd_live::Gap;

use self::scan::Scan;
use self::segment::{PayloadPlace, SegmentFile, open_segment, open_segments};
pub use self::stretch::{ReplayStart, Stretch};
use self::tokens::Piece;
pub use self::tokens::{RecordedTokens, TokenRange};
use crate::flight::folder::{HEAD_FILE, RecordingError};
use crate::flight::head::{Head, MAX_HEAD_BYTES};
use crate::flight::history::ModeHistory;
use crate::flight::record::{NumberedInput, NumberedMode, RunEnd, StatePlace};
use crate::io::read_whole;

/// A change of live parameters or of the mode.
#[derive(Clone, Debug)]
struct StoredChange {
    input: NumberedInput,
    /// By the mark before it: it takes effect at this iteration or later.
    decided_iterations: u64,
}

/// A state of the recording.
#[derive(Clone, Debug)]
struct StoredState {
    place: StatePlace,
    payload: PayloadPlace,
}

/// Changes that are not in the recording.
#[derive(Clone, Copy, Debug)]
struct ChangeHole {
    /// The number after the last one.
    end_number: u64,
    /// All changes that take effect before this iteration come before the hole.
    decided_iterations: u64,
}

/// A time that the recording knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedToken {
    /// For each source, as many tokens had come.
    pub index: u64,
    /// Nanoseconds since 1970.
    pub unix_ns: u64,
}

/// A recording that was opened.
#[derive(Debug)]
pub struct Recording {
    /// What it is of.
    pub head: Head,
    /// What is to be said of it.
    pub notes: Vec<String>,
    /// For each source, the gaps that were filled.
    pub gaps: Vec<Vec<Gap>>,
    /// For each source, when tokens had come, in order.
    pub times: Vec<Vec<TimedToken>>,
    /// How the run ended.
    pub end: Option<RunEnd>,
    files: Arc<Vec<SegmentFile>>,
    pieces: Vec<Arc<Vec<Piece>>>,
    /// For each source, its tokens.
    ranges: Vec<Vec<TokenRange>>,
    states: Vec<StoredState>,
    changes: BTreeMap<u64, StoredChange>,
    change_holes: Vec<ChangeHole>,
    /// By the last mark.
    decided_iterations: u64,
}

impl Recording {
    /// Opens the recording in a folder.
    ///
    /// # Errors
    /// See [`RecordingError`]. A damaged segment is none: [`Self::notes`] has it.
    pub fn open(folder: &Path) -> Result<Self, RecordingError> {
        let head_path = folder.join(HEAD_FILE);
        let head_bytes = match read_whole(&head_path, MAX_HEAD_BYTES) {
            Ok(bytes) => bytes,
            Err(crate::io::FileError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                return Err(RecordingError::Missing {
                    path: folder.to_owned(),
                });
            }
            Err(error) => {
                return Err(RecordingError::Unusable {
                    path: head_path,
                    why: error.to_string(),
                });
            }
        };
        let head = Head::decode(&head_bytes).map_err(|source| RecordingError::Head {
            path: head_path.clone(),
            source,
        })?;

        let mut scan = Scan::new(head);
        let mut files = Vec::new();
        for (number, path) in open_segments(folder)? {
            let Some(file) = open_segment(path)? else {
                continue;
            };
            scan.segment(files.len(), number, &file)?;
            files.push(file);
        }
        Ok(scan.finish(files))
    }

    /// Changes of live parameters that were recorded, by number.
    pub fn changes(&self) -> impl Iterator<Item = (u64, &ParameterChange)> {
        let inputs = self.changes.iter();
        inputs.filter_map(|(number, stored)| match &stored.input {
            NumberedInput::Parameters(made) => Some((*number, &made.change)),
            NumberedInput::Mode(_) => None,
        })
    }

    /// Changes of the mode that were recorded, in order.
    pub fn mode_changes(&self) -> impl Iterator<Item = &NumberedMode> {
        let inputs = self.changes.values();
        inputs.filter_map(|stored| match &stored.input {
            NumberedInput::Mode(entered) => Some(entered),
            NumberedInput::Parameters(_) => None,
        })
    }

    /// The modes that the run was in, as far as the recording tells.
    pub fn mode_history(&self) -> ModeHistory {
        let modes = self.head.modes.iter();
        let states = self.states.iter().map(|stored| &stored.place);
        let rates = modes.map(|mode| mode.tokens_per_iteration.clone());
        ModeHistory::new(self.mode_changes(), states, rates.collect())
    }

    /// The tokens that are there of a source, in order.
    pub fn token_ranges(&self, source: usize) -> &[TokenRange] {
        &self.ranges[source]
    }

    /// The tokens of a source from an index on, up to the first that is missing.
    pub fn tokens(&self, source: usize, from: u64) -> RecordedTokens {
        let token_bytes = self.head.sources[source].token_bytes;
        let pieces = Arc::clone(&self.pieces[source]);
        RecordedTokens::new(Arc::clone(&self.files), pieces, token_bytes, from)
    }
}
