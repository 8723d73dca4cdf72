//! What a voter keeps on disk. Must not know a file.

use serde::{Deserialize, Serialize};

use crate::{LogEntry, Snapshot, VoterId};

/// What a voter has on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovered {
    /// The highest term that it has seen.
    pub term: u64,
    /// Whom it has voted for in that term.
    pub vote: Option<VoterId>,
    /// What its first entries came to.
    pub snapshot: Snapshot,
    /// The entries after that.
    pub entries: Vec<LogEntry>,
}

impl Default for Recovered {
    fn default() -> Self {
        Self {
            term: 0,
            vote: None,
            snapshot: Snapshot {
                index: 0,
                term: 0,
                state: Vec::new(),
            },
            entries: Vec::new(),
        }
    }
}

impl Recovered {
    /// The last entry.
    pub fn last(&self) -> u64 {
        self.snapshot.index + self.entries.len() as u64
    }

    /// Takes in the next record.
    ///
    /// # Errors
    /// It does not follow from those before, which no voter writes.
    pub fn take(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Whole(whole) => *self = whole,
            Record::Vote { term, vote } => {
                if term < self.term {
                    return Err(format!("term {term} after term {}", self.term));
                }
                (self.term, self.vote) = (term, vote);
            }
            Record::Entries(entries) => {
                let Some(first) = entries.first() else {
                    return Ok(());
                };
                let (snapshot, last) = (self.snapshot.index, self.last());
                if first.index <= snapshot || first.index > last + 1 {
                    return Err(format!(
                        "entries from {} on after entries {snapshot} to {last}",
                        first.index
                    ));
                }
                self.entries.truncate((first.index - snapshot - 1) as usize);
                self.entries.extend(entries);
            }
        }
        self.check()
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let mut previous = (self.snapshot.index, self.snapshot.term);
        for entry in &self.entries {
            if entry.index != previous.0 + 1 || entry.term < previous.1 {
                return Err(format!(
                    "entry {} of term {} after entry {} of term {}",
                    entry.index, entry.term, previous.0, previous.1
                ));
            }
            previous = (entry.index, entry.term);
        }
        Ok(())
    }
}

/// Something to keep on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A term, and whom this voter has voted for in it.
    Vote {
        /// The term.
        term: u64,
        /// `None` if it has not voted.
        vote: Option<VoterId>,
    },
    /// Entries, which replace all from the first one's index on.
    Entries(Vec<LogEntry>),
    /// All that there is to keep: earlier records can go.
    Whole(Recovered),
}
