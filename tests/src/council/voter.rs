//! A process of a voter: the real node, a simulated disk and clock, and what it does as the conductor.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_council::VoterId;
use zbmd_council::decision::Decided;
use zbmd_council::node::{Node, Settings};

use super::disk::VoterDisk;
use super::world::CouncilEvent;

/// State and output of a border, as who may take over needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BorderCopy {
    pub epoch: u64,
    /// Output since this block belongs to it.
    pub from: u64,
    pub blocks: u64,
    pub sum: u64,
    /// When it was sent.
    pub made_ns: u64,
}

/// Copies that are kept: of the last borders.
const COPIES: usize = 6;

/// How far a conductor is with the next border.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// Its epoch is not decided yet.
    Opening,
    Idle,
    /// Waits for these to have the state, and then has a border decided, or who joins.
    Copying {
        copy: BorderCopy,
        waiting: BTreeSet<VoterId>,
        since_ns: u64,
        joining: Option<VoterId>,
    },
    /// Waits for this entry to be decided.
    Proposed {
        index: u64,
        copy: Option<BorderCopy>,
    },
    /// Is about to give it out.
    Releasing,
}

pub(crate) struct Conducting {
    pub term: u64,
    /// The entry with its epoch.
    pub index: u64,
    pub epoch: u64,
    pub stage: Stage,
    /// Steps since somebody was asked to join.
    pub steps: u64,
}

pub(crate) struct SimVoter {
    pub settings: Settings,
    /// None: the process is not there.
    pub node: Option<Node>,
    pub disk: VoterDisk,
    /// Of the process; events of earlier ones are void.
    pub life: u32,
    pub started_ns: u64,
    pub is_stopped: bool,
    /// What has come while it stood still.
    pub held: Vec<CouncilEvent>,
    /// Millionths of the right pace.
    pub pace: u64,
    pub conducting: Option<Conducting>,
    /// In memory.
    pub copies: BTreeMap<(u64, u64), BorderCopy>,
    /// The entry that it has applied last.
    pub applied: u64,
    /// By the bug that lets the lease begin with the answers.
    pub late_lease_ns: u64,
    pub last_lease_ns: u64,
    /// Epochs that it has opened, for the bug that counts them.
    pub epochs_opened: u64,
}

impl SimVoter {
    pub(crate) fn new(settings: Settings, pace: u64) -> Self {
        Self {
            settings,
            node: None,
            disk: VoterDisk::default(),
            life: 0,
            started_ns: 0,
            is_stopped: false,
            held: Vec::new(),
            pace,
            conducting: None,
            copies: BTreeMap::new(),
            applied: 0,
            late_lease_ns: 0,
            last_lease_ns: 0,
            epochs_opened: 0,
        }
    }

    /// What its clock shows. Each has begun at another time.
    pub(crate) fn clock(&self, now_ns: u64) -> u64 {
        self.settings.own.0 * 1_000_000_007 + now_ns * self.pace / 1_000_000
    }

    /// From now until its clock shows this.
    pub(crate) fn wait_ns(&self, clock_ns: u64, now_ns: u64) -> u64 {
        let left_ns = clock_ns.saturating_sub(self.clock(now_ns));
        left_ns * 1_000_000 / self.pace + 1
    }

    pub(crate) fn is_witness(&self) -> bool {
        self.settings.witnesses.contains(&self.settings.own)
    }

    /// Whether it could go on from the last border.
    pub(crate) fn holds_border(&self, decided: &Decided) -> bool {
        let key = (decided.border_epoch, decided.border.iterations);
        key.1 == 0 || self.copies.contains_key(&key)
    }

    /// Tells its node whether it could take over.
    pub(crate) fn note_ability(&mut self) {
        let Some(node) = &self.node else { return };
        let can_conduct = self.holds_border(node.decided());
        if let Some(node) = &mut self.node {
            node.set_can_conduct(can_conduct);
        }
    }

    pub(crate) fn keep(&mut self, copy: BorderCopy) {
        self.copies.insert((copy.epoch, copy.blocks), copy);
        while self.copies.len() > COPIES {
            self.copies.pop_first();
        }
    }
}
