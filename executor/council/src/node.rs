//! A voter as a state machine: inputs with their time go in, what to write, to send and to act upon comes out. Must not know
//! a clock, a socket or a file.
//!
//! After each input the caller takes an [`Output`] by [`Node::poll`] and, in this order:
//!
//! 1. sends its `messages`;
//! 2. writes the records of its `write`, syncs them if there are any, and only then sends the messages of the `write` and calls
//!    [`Node::written`]. Those messages promise what is in the records: a vote, or that entries are kept;
//! 3. polls again.
//!
//! Writes are done one after the other. Other inputs may come between.

use std::collections::BTreeSet;

use raft::{Config, RawNode, ReadOnlyOption, StateRole};
use slog::{Discard, Logger, o};

use crate::check::{LogPosition, check_message, decided_of};
use crate::decision::{Decided, Decision};
use crate::error::{CouncilError, MessageError, ProposeError};
use crate::message::{MAX_ENTRY_BYTES, Message, MessageKind, entry_from_raft, snapshot_from_raft};
pub use crate::output::{Applied, Output, Write};
pub use crate::record::{Record, Recovered};
pub use crate::settings::Settings;
use crate::storage::LogStore;
use crate::{LogEntry, Snapshot, VoterId};

/// A voter that has heard of no leader for so many ticks wants a new one, and until then elects none.
pub const ELECTION_TICKS: u64 = 10;
/// A leader's lease, from when it sent the heartbeats that were answered.
pub const LEASE_TICKS: u64 = 8;
/// From one heartbeat to the next.
const HEARTBEAT_TICKS: u64 = 2;
/// Ticks that are made up for after the voter could not run; more are forgotten. Others are not to blame for that time.
const MAX_LATE_TICKS: u64 = 3;
const MAX_INFLIGHT_MESSAGES: usize = 256;

/// How long this voter conducts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    term: u64,
    until_ns: u64,
    /// What was decided when it began: it is no lease before all of that has been applied here.
    from_index: u64,
}

/// A voter.
pub struct Node {
    settings: Settings,
    raw: RawNode<LogStore>,
    decided: Decided,
    now_ns: u64,
    last_tick_ns: u64,
    ticks: u64,
    /// Until then it votes for nobody: it may have answered a leader before it was started again.
    quiet_until_ns: u64,
    lease: Lease,
    /// When the leader was last heard.
    heard_ns: Option<u64>,
    /// The last term in which a first lease was asked for.
    asked_in_term: u64,
    /// Whether its process could conduct.
    can_conduct: bool,
    /// The others that could, as each has said last.
    able: BTreeSet<VoterId>,
    /// As they are, or will be, on disk.
    voted: (u64, Option<VoterId>),
    last_write: u64,
    written: u64,
    /// A snapshot of another voter is not on disk yet. Until then nothing reaches raft-rs, which counts on it.
    is_restoring: bool,
}

impl Node {
    /// A voter that goes on from what it has on disk.
    ///
    /// # Errors
    /// Settings that are no council's, or a disk that contradicts itself.
    pub fn new(
        settings: Settings,
        recovered: Recovered,
        now_ns: u64,
    ) -> Result<Self, CouncilError> {
        settings.check()?;
        let journal_error = |why| CouncilError::Journal { why };
        recovered.check().map_err(journal_error)?;
        let decided = match recovered.snapshot.index {
            0 => Decided::default(),
            index => decided_of(&recovered.snapshot)
                .map_err(|why| journal_error(format!("snapshot {index}: {why}")))?,
        };
        let voted = (recovered.term, recovered.vote);

        let can_conduct = !settings.is_witness(settings.own);
        let config = Config {
            id: settings.own.0,
            election_tick: ELECTION_TICKS as usize,
            heartbeat_tick: 2 * HEARTBEAT_TICKS as usize,
            // Within these it is set before each tick.
            min_election_tick: settings.patience_ticks(true),
            max_election_tick: settings.patience_ticks(false) + 1,
            applied: recovered.snapshot.index,
            max_size_per_msg: MAX_ENTRY_BYTES as u64,
            max_inflight_msgs: MAX_INFLIGHT_MESSAGES,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            ..Config::default()
        };
        let store = LogStore::new(settings.voters.clone(), recovered);
        let raw = RawNode::new(&config, store, &Logger::root(Discard, o!()));
        Ok(Self {
            raw: raw.map_err(|error| journal_error(error.to_string()))?,
            decided,
            now_ns,
            last_tick_ns: now_ns,
            ticks: 0,
            quiet_until_ns: now_ns + ELECTION_TICKS * settings.tick_ns,
            lease: Lease {
                term: 0,
                until_ns: 0,
                from_index: 0,
            },
            heard_ns: None,
            asked_in_term: 0,
            can_conduct,
            able: BTreeSet::new(),
            voted,
            last_write: 0,
            written: 0,
            is_restoring: false,
            settings,
        })
    }

    // What goes in.

    /// Time has passed. To be called at [`Node::deadline_ns`], or later.
    pub fn advance(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        let tick_ns = self.settings.tick_ns;
        let late_ticks = (self.now_ns - self.last_tick_ns) / tick_ns;
        if late_ticks > MAX_LATE_TICKS {
            self.last_tick_ns = self.now_ns - MAX_LATE_TICKS * tick_ns;
        }
        if self.is_restoring {
            self.last_tick_ns = self.now_ns;
            return;
        }
        for _ in 0..late_ticks.min(MAX_LATE_TICKS) {
            self.last_tick_ns += tick_ns;
            self.ticks += 1;
            // Nothing is left to chance: the same inputs always give the same outputs.
            let patience = self.settings.patience_ticks(self.can_conduct);
            self.raw.raft.set_randomized_election_timeout(patience);
            self.raw.tick();
            if self.is_leader() && self.ticks.is_multiple_of(HEARTBEAT_TICKS) {
                // Heartbeats whose answers say when they were sent; raft-rs takes them for a read.
                self.raw.read_index(self.now_ns.to_le_bytes().to_vec());
            }
        }
        if self.is_leader() && !self.can_conduct {
            self.step_aside();
        }
    }

    /// Whether the process of this voter could conduct from now on: it has what a run is gone on with. One that could not leaves it to
    /// the others to be elected; if it is, because they lack entries that it has, it steps aside for one that could as soon as that
    /// one has them too. True at first; a witness never could.
    pub fn set_can_conduct(&mut self, can_conduct: bool) {
        self.can_conduct = can_conduct && !self.settings.is_witness(self.settings.own);
    }

    /// Ends its leadership once a voter that could conduct has all entries.
    fn step_aside(&mut self) {
        let is_witness = self.settings.is_witness(self.settings.own);
        // A witness cannot stay: it leaves it to the others to find that none of them could.
        let could_lead = |voter: &VoterId| match is_witness {
            true => !self.settings.is_witness(*voter),
            false => self.able.contains(voter),
        };

        let raft = &mut self.raw.raft;
        let last = raft.raft_log.last_index();
        let has_all = |voter: &VoterId| {
            let progress = raft.prs().get(voter.0);
            progress.is_some_and(|progress| progress.matched == last)
        };
        let mut voters = self.settings.voters.iter();
        let has_successor = voters.any(|voter| could_lead(voter) && has_all(voter));
        if raft.commit_to_current_term() && has_successor {
            raft.become_follower(raft.term, 0);
        }
    }

    /// A message has come.
    ///
    /// # Errors
    /// No voter of this council sends it; it changes nothing.
    pub fn receive(&mut self, now_ns: u64, message: Message) -> Result<(), MessageError> {
        // First: time that has passed before the message came must not count as time after it.
        self.advance(now_ns);
        let position = LogPosition {
            term: self.term(),
            last: self.raw.raft.raft_log.last_index(),
            is_leader: self.is_leader(),
        };
        check_message(&message, &self.settings, position)?;
        if self.is_restoring {
            // As if it had been lost on the way.
            return Ok(());
        }
        let is_request = matches!(
            message.kind,
            MessageKind::PreVoteRequest | MessageKind::VoteRequest
        );
        if is_request && self.now_ns < self.quiet_until_ns {
            return Ok(());
        }
        let (from, term) = (message.from, message.term);
        match message.can_conduct {
            true => self.able.insert(from),
            false => self.able.remove(&from),
        };
        let message = message.into_raft(&self.settings.voters);
        let stepped = self.raw.step(message);
        stepped.map_err(|error| MessageError::Nonsense {
            from,
            what: error.to_string(),
        })?;
        if term == self.term() && self.leader() == Some(from) {
            self.heard_ns = Some(self.now_ns);
        }
        Ok(())
    }

    /// Proposes a decision; the index that its entry has if it is decided at all.
    ///
    /// # Errors
    /// This voter does not lead, or the decision is too long.
    pub fn propose(&mut self, now_ns: u64, decision: &Decision) -> Result<u64, ProposeError> {
        self.advance(now_ns);
        let data = decision.encode()?;
        let not_leader = |leader| ProposeError::NotLeader { leader };
        if !self.is_leader() {
            return Err(not_leader(self.leader()));
        }
        let proposed = self.raw.propose(Vec::new(), data);
        proposed.map_err(|_| not_leader(None))?;
        Ok(self.raw.raft.raft_log.last_index())
    }

    /// A write is on disk.
    pub fn written(&mut self, number: u64) {
        self.raw.on_persist_ready(number);
        self.written = self.written.max(number);
        if self.written >= self.last_write {
            self.is_restoring = false;
            self.raw.advance_apply_to(self.decided.index);
        }
    }

    // What comes out.

    /// What follows from the inputs since the last call.
    pub fn poll(&mut self) -> Output {
        let mut output = Output::default();
        let mut write = Write::default();
        loop {
            while self.raw.has_ready() {
                self.take_ready(&mut output, &mut write);
            }
            if !self.ask_for_first_lease() {
                break;
            }
        }
        if self.is_due_for_compaction() {
            self.compact(&mut write);
        }

        let is_empty = write.records.is_empty() && write.messages.is_empty() && write.number == 0;
        output.write = (!is_empty).then_some(write);
        output
    }

    /// Sends heartbeats for the first lease of a term as soon as that is possible, not with the next tick; whether it has.
    fn ask_for_first_lease(&mut self) -> bool {
        let term = self.term();
        let is_possible = self.is_leader() && self.raw.raft.commit_to_current_term();
        if !is_possible || self.asked_in_term == term {
            return false;
        }
        self.asked_in_term = term;
        self.raw.read_index(self.now_ns.to_le_bytes().to_vec());
        true
    }

    fn take_ready(&mut self, output: &mut Output, write: &mut Write) {
        let mut ready = self.raw.ready();
        let number = ready.number();
        output
            .messages
            .extend(self.messages_of(ready.take_messages()));
        let promises = self.messages_of(ready.take_persisted_messages());

        let mut records = Vec::new();
        if let Some(state) = ready.hs() {
            let voted = (state.term, (state.vote != 0).then_some(VoterId(state.vote)));
            // What is decided is not written: the leader says it again.
            if voted != self.voted {
                self.voted = voted;
                let (term, vote) = voted;
                records.push(Record::Vote { term, vote });
            }
        }
        if !ready.snapshot().is_empty() {
            let snapshot = snapshot_from_raft(ready.snapshot());
            records.push(self.restore(snapshot, output));
        }
        if !ready.entries().is_empty() {
            self.raw.mut_store().append(ready.entries());
            let entries = ready.entries().iter().map(entry_from_raft);
            records.push(Record::Entries(entries.collect()));
        }
        for entry in ready.take_committed_entries() {
            let entry = entry_from_raft(&entry);
            let effect = self.decided.apply(&entry);
            output.applied.push(Applied::Entry(entry, effect));
        }
        for read in ready.take_read_states() {
            self.extend_lease(&read.request_ctx, read.index);
        }

        self.raw.advance_append_async(ready);
        if !self.is_restoring {
            self.raw.advance_apply_to(self.decided.index);
        }
        let is_behind_writes = self.last_write > self.written;
        if records.is_empty() && !is_behind_writes {
            self.raw.on_persist_ready(number);
            output.messages.extend(promises);
        } else {
            self.last_write = number;
            write.number = number;
            write.records.extend(records);
            write.messages.extend(promises);
        }
        self.report_snapshots(&output.messages);
    }

    fn messages_of(&self, messages: Vec<raft::eraftpb::Message>) -> Vec<Message> {
        let messages = messages.into_iter();
        messages
            .filter_map(|message| Message::from_raft(message, self.can_conduct))
            .collect()
    }

    /// Goes over to the snapshot of the leader.
    fn restore(&mut self, snapshot: Snapshot, output: &mut Output) -> Record {
        // It was decoded when it came.
        self.decided = decided_of(&snapshot).unwrap_or_default();
        output.applied.push(Applied::Snapshot(snapshot.index));
        self.raw.mut_store().restore(snapshot.clone());
        self.is_restoring = true;
        Record::Whole(self.whole(snapshot, Vec::new()))
    }

    fn whole(&self, snapshot: Snapshot, entries: Vec<LogEntry>) -> Recovered {
        let (term, vote) = self.voted;
        Recovered {
            term,
            vote,
            snapshot,
            entries,
        }
    }

    /// Whether a snapshot is sent on its way says nothing of whether it comes: it is probed for at once.
    fn report_snapshots(&mut self, messages: &[Message]) {
        let snapshots = messages
            .iter()
            .filter(|message| message.kind == MessageKind::Snapshot);
        for message in snapshots {
            self.raw
                .report_snapshot(message.to.0, raft::SnapshotStatus::Finish);
        }
    }

    /// A majority has answered the heartbeats that were sent at the time in `context`, when entries up to `decided` were
    /// decided.
    fn extend_lease(&mut self, context: &[u8], decided: u64) {
        let Ok(context) = context.try_into() else {
            return;
        };
        let sent_ns = u64::from_le_bytes(context);
        let until_ns = sent_ns + LEASE_TICKS * self.settings.tick_ns;
        let term = self.term();
        if !self.is_leader() {
            return;
        }
        if term > self.lease.term {
            self.lease = Lease {
                term,
                until_ns,
                from_index: decided,
            };
        }
        self.lease.until_ns = self.lease.until_ns.max(until_ns);
    }

    fn is_due_for_compaction(&self) -> bool {
        let snapshot = self.raw.store().snapshot_index();
        !self.is_restoring && self.decided.index - snapshot >= self.settings.compact_after.max(1)
    }

    /// Puts a snapshot in the place of all that has been decided.
    fn compact(&mut self, write: &mut Write) {
        let index = self.decided.index;
        let store = self.raw.mut_store();
        let (Some(term), Ok(state)) = (store.term_of(index), self.decided.encode()) else {
            return;
        };
        let snapshot = Snapshot { index, term, state };
        store.compact(snapshot.clone());
        let entries = self.raw.store().log_entries();
        write
            .records
            .push(Record::Whole(self.whole(snapshot, entries)));
        write.number = write.number.max(self.last_write);
    }

    // What it knows.

    /// When time must be told again.
    pub fn deadline_ns(&self) -> u64 {
        self.last_tick_ns + self.settings.tick_ns
    }

    /// The end of the lease within which this voter may act as the conductor; `None` if it may not.
    ///
    /// It must be compared with the clock right before each action.
    pub fn acts_until_ns(&self) -> Option<u64> {
        let is_witness = self.settings.is_witness(self.settings.own);
        let is_current =
            self.lease.term == self.term() && self.decided.index >= self.lease.from_index;
        let is_leased = self.is_leader() && !is_witness && is_current;
        is_leased.then_some(self.lease.until_ns)
    }

    /// When it last heard the leader of its term; now, while it leads itself. `None` before it has heard one.
    pub fn leader_heard_ns(&self) -> Option<u64> {
        match self.is_leader() {
            true => Some(self.now_ns),
            false => self.heard_ns,
        }
    }

    /// Whether it leads, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Who leads, as far as it knows.
    pub fn leader(&self) -> Option<VoterId> {
        let leader = self.raw.raft.leader_id;
        (leader != 0).then_some(VoterId(leader))
    }

    /// The term that it is in.
    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// What has been decided, as far as it knows.
    pub fn decided(&self) -> &Decided {
        &self.decided
    }
}
