//! A voter's disk. A crash loses a part of what was not synced, from the end.

use std::collections::VecDeque;

use fastrand::Rng;
use zbmd_council::node::{Record, Recovered, Write};

use super::bugs::CouncilBug;

#[derive(Default)]
pub(crate) struct VoterDisk {
    /// What is there whatever happens.
    pub synced: Recovered,
    /// The same without its last record.
    before_last: Recovered,
    /// Not synced yet, in order.
    pub writing: VecDeque<Write>,
}

impl VoterDisk {
    /// The first write is synced.
    pub(crate) fn sync(&mut self, bug: Option<CouncilBug>) -> Option<Write> {
        let write = self.writing.pop_front()?;
        for record in &write.records {
            self.keep(record.clone(), bug);
        }
        Some(write)
    }

    fn keep(&mut self, mut record: Record, bug: Option<CouncilBug>) {
        if let (Record::Whole(whole), Some(CouncilBug::CompactionLosesEntries)) = (&mut record, bug)
        {
            whole.entries.clear();
        }
        self.before_last = self.synced.clone();
        // A voter that has lost entries by a bug writes what does not follow: its disk keeps what it can.
        if self.synced.take(record).is_err() {
            self.synced = self.before_last.clone();
        }
    }

    /// The power fails: of the records on their way, some are there.
    pub(crate) fn crash(&mut self, rng: &mut Rng, bug: Option<CouncilBug>) {
        let records: Vec<Record> = self
            .writing
            .drain(..)
            .flat_map(|write| write.records)
            .collect();
        let kept = rng.usize(0..=records.len());
        for record in records.into_iter().take(kept) {
            self.keep(record, bug);
        }
        match bug {
            Some(CouncilBug::ForgetfulVoter) => self.synced = Recovered::default(),
            Some(CouncilBug::TailDropped) => self.synced = self.before_last.clone(),
            _ => {}
        }
    }

    /// Whether it has this entry.
    pub(crate) fn has(&self, index: u64, term: u64) -> bool {
        let snapshot = self.synced.snapshot.index;
        let Some(offset) = index.checked_sub(snapshot + 1) else {
            return true;
        };
        let entry = self.synced.entries.get(offset as usize);
        entry.is_some_and(|entry| entry.term == term)
    }
}
