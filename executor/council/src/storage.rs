//! A voter's log as raft-rs reads it: in memory. What is on disk is the journal's.

use raft::eraftpb::Entry;
use raft::{Error, GetEntriesContext, RaftState, StorageError};

use crate::message::{conf_state, entry_from_raft, entry_to_raft, snapshot_to_raft};
use crate::node::Recovered;
use crate::{LogEntry, Snapshot, VoterId};

/// The entries after a snapshot.
pub(crate) struct LogStore {
    voters: Vec<VoterId>,
    term: u64,
    vote: u64,
    snapshot: Snapshot,
    /// The first one follows the snapshot.
    entries: Vec<Entry>,
}

impl LogStore {
    pub(crate) fn new(voters: Vec<VoterId>, recovered: Recovered) -> Self {
        Self {
            voters,
            term: recovered.term,
            vote: recovered.vote.map_or(0, |voter| voter.0),
            snapshot: recovered.snapshot,
            entries: recovered.entries.into_iter().map(entry_to_raft).collect(),
        }
    }

    pub(crate) fn last(&self) -> u64 {
        self.snapshot.index + self.entries.len() as u64
    }

    pub(crate) fn snapshot_index(&self) -> u64 {
        self.snapshot.index
    }

    /// The term of an entry that is there, or that the snapshot ends with.
    pub(crate) fn term_of(&self, index: u64) -> Option<u64> {
        if index == self.snapshot.index {
            return Some(self.snapshot.term);
        }
        let offset = index.checked_sub(self.snapshot.index + 1)?;
        let entry = self.entries.get(offset as usize);
        entry.map(|entry| entry.term)
    }

    /// Appends entries; those that were there from the first one on are replaced.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let kept = first.index.saturating_sub(self.snapshot.index + 1);
        self.entries.truncate(kept as usize);
        self.entries.extend_from_slice(entries);
    }

    /// Drops the entries that are in a snapshot.
    pub(crate) fn compact(&mut self, snapshot: Snapshot) {
        let dropped = snapshot.index.saturating_sub(self.snapshot.index) as usize;
        self.entries.drain(..dropped.min(self.entries.len()));
        self.snapshot = snapshot;
    }

    /// Begins again with a snapshot of another voter.
    pub(crate) fn restore(&mut self, snapshot: Snapshot) {
        self.entries.clear();
        self.snapshot = snapshot;
    }

    /// The entries that are not in the snapshot.
    pub(crate) fn log_entries(&self) -> Vec<LogEntry> {
        self.entries.iter().map(entry_from_raft).collect()
    }
}

impl raft::Storage for LogStore {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let hard_state = raft::eraftpb::HardState {
            term: self.term,
            vote: self.vote,
            commit: self.snapshot.index,
            ..raft::eraftpb::HardState::default()
        };
        Ok(RaftState::new(hard_state, conf_state(&self.voters)))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let first = self.snapshot.index + 1;
        if low < first {
            return Err(Error::Store(StorageError::Compacted));
        }
        let range = (low - first) as usize..(high.max(low) - first) as usize;
        let entries = self.entries.get(range);
        let mut entries = entries
            .ok_or(Error::Store(StorageError::Unavailable))?
            .to_vec();

        let max_bytes = max_size.into().unwrap_or(u64::MAX);
        let mut bytes = 0;
        let fitting = entries.iter().take_while(|entry| {
            bytes += entry.data.len() as u64;
            bytes <= max_bytes
        });
        let fitting = fitting.count().max(1);
        entries.truncate(fitting);
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let is_compacted = index < self.snapshot.index;
        self.term_of(index).ok_or(Error::Store(match is_compacted {
            true => StorageError::Compacted,
            false => StorageError::Unavailable,
        }))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.snapshot.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, _: u64) -> raft::Result<raft::eraftpb::Snapshot> {
        match self.snapshot.index >= request_index {
            true => Ok(snapshot_to_raft(self.snapshot.clone(), &self.voters)),
            false => Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable)),
        }
    }
}
