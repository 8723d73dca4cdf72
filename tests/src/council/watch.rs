//! What must not happen. Shares no code with what it watches.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_council::{LogEntry, VoterId};

/// What must not happen, and did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum CouncilViolation {
    #[error("{one} and {other} may both act as the conductor")]
    TwoConductors { one: VoterId, other: VoterId },
    #[error("entry {index} was decided in term {first}, and again differently in term {second}")]
    Changed { index: u64, first: u64, second: u64 },
    #[error("{voter} goes from entry {before} to {index}")]
    Skipped {
        voter: VoterId,
        before: u64,
        index: u64,
    },
    #[error("entry {index} is decided, and on {disks} of {voters} disks")]
    Minority {
        index: u64,
        disks: usize,
        voters: usize,
    },
    #[error("epoch {epoch} is {voter}'s in term {term}, and was another's")]
    EpochTwice {
        epoch: u64,
        voter: VoterId,
        term: u64,
    },
    #[error("an agent goes back from epoch {highest} to {epoch}")]
    AgentWentBack { highest: u64, epoch: u64 },
    #[error("output from block {from} on is given out, and only those before {released} were")]
    Gap { from: u64, released: u64 },
    #[error("output up to block {blocks} is not what it should be")]
    WrongOutput { blocks: u64 },
    #[error("epoch {epoch} gives out something after epoch {highest} has")]
    Stale { epoch: u64, highest: u64 },
    #[error("output up to block {blocks} is given out, and the border is not decided")]
    Undecided { blocks: u64 },
    #[error("block {blocks} is decided, and nobody who is there has its state")]
    NoState { blocks: u64 },
    #[error(
        "block {blocks} is decided, and {holder}, who could take over, does not have its state"
    )]
    NotCopied { blocks: u64, holder: VoterId },
    #[error("a voter refuses what another sends: {why}")]
    Refused { why: String },
    #[error(
        "block {blocks} was decided when the faults were over, and {later} after {ticks} ticks"
    )]
    Stuck { blocks: u64, later: u64, ticks: u64 },
    #[error("a voter fell over: {why}")]
    Panicked { why: String },
}

/// What has been seen in a history.
#[derive(Default)]
pub(crate) struct Watch {
    /// What was decided first at each index.
    decided: BTreeMap<u64, LogEntry>,
    epochs: BTreeMap<u64, (VoterId, u64)>,
    /// Of each agent.
    agent_epochs: BTreeMap<usize, u64>,
    /// Blocks whose output was given out.
    pub released: u64,
    highest_epoch: u64,
    /// The last decided border.
    pub border: u64,
    /// Who gets the state of each border.
    pub holders: BTreeSet<VoterId>,
    pub releases: u64,
}

/// The value that a run has after so many blocks, whoever computes it.
pub(crate) fn checksum(blocks: u64) -> u64 {
    (blocks + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(23)
}

impl Watch {
    /// A voter holds an entry for decided; whether it is the first to.
    pub(crate) fn decide(&mut self, entry: &LogEntry) -> Result<bool, CouncilViolation> {
        if let Some(first) = self.decided.get(&entry.index) {
            return match first == entry {
                true => Ok(false),
                false => Err(CouncilViolation::Changed {
                    index: entry.index,
                    first: first.term,
                    second: entry.term,
                }),
            };
        }
        self.decided.insert(entry.index, entry.clone());
        Ok(true)
    }

    pub(crate) fn open(
        &mut self,
        epoch: u64,
        voter: VoterId,
        term: u64,
    ) -> Result<(), CouncilViolation> {
        match self.epochs.insert(epoch, (voter, term)) {
            Some(before) if before != (voter, term) => {
                Err(CouncilViolation::EpochTwice { epoch, voter, term })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn begin_at_agent(
        &mut self,
        agent: usize,
        epoch: u64,
    ) -> Result<(), CouncilViolation> {
        let highest = self.agent_epochs.entry(agent).or_default();
        if epoch < *highest {
            let highest = *highest;
            return Err(CouncilViolation::AgentWentBack { highest, epoch });
        }
        *highest = epoch;
        Ok(())
    }

    /// Output of the blocks from one border to another is given out. Consumers drop what they have.
    pub(crate) fn release(
        &mut self,
        epoch: u64,
        from: u64,
        blocks: u64,
        sum: u64,
    ) -> Result<(), CouncilViolation> {
        let (released, highest) = (self.released, self.highest_epoch);
        if epoch < highest {
            return Err(CouncilViolation::Stale { epoch, highest });
        }
        if from > released {
            return Err(CouncilViolation::Gap { from, released });
        }
        if sum != checksum(blocks) {
            return Err(CouncilViolation::WrongOutput { blocks });
        }
        if blocks > self.border {
            return Err(CouncilViolation::Undecided { blocks });
        }
        self.highest_epoch = epoch;
        self.released = released.max(blocks);
        self.releases += 1;
        Ok(())
    }
}
