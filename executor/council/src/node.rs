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

use raft::{Config, RawNode, ReadOnlyOption, StateRole};
use serde::{Deserialize, Serialize};
use slog::{Discard, Logger, o};

use crate::decision::{Decided, Decision, Effect};
use crate::error::{CouncilError, MessageError, ProposeError};
use crate::message::{MAX_ENTRY_BYTES, Message, MessageKind, entry_from_raft, snapshot_from_raft};
use crate::storage::LogStore;
use crate::{LogEntry, Snapshot, VoterId};

/// A voter that has heard of no leader for so many ticks wants a new one, and until then elects none.
pub const ELECTION_TICKS: u64 = 10;
/// A leader's lease, from when it sent the heartbeats that were answered.
pub const LEASE_TICKS: u64 = 8;
/// From one heartbeat to the next.
const HEARTBEAT_TICKS: u64 = 2;
/// By so many ticks each voter waits longer than the one before it. So two seldom stand at once, and nothing is left to chance:
/// the same inputs always give the same outputs.
const RANK_TICKS: u64 = 3;
/// Ticks that are made up for after the voter could not run; more are forgotten. Others are not to blame for that time.
const MAX_LATE_TICKS: u64 = 3;
const MAX_INFLIGHT_MESSAGES: usize = 256;
/// Shortest and longest tick.
const TICK_RANGE_NS: std::ops::RangeInclusive<u64> = 100_000..=10_000_000_000;

/// What a voter must know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which one it is.
    pub own: VoterId,
    /// All voters, in the same order everywhere.
    pub voters: Vec<VoterId>,
    /// The unit of [`ELECTION_TICKS`] and [`LEASE_TICKS`]; the same everywhere.
    pub tick_ns: u64,
    /// A snapshot takes the place of so many decided entries.
    pub compact_after: u64,
    /// Voters that could not conduct. They vote and keep the log. One leads only to bring a conductor's log up to date that is
    /// behind its own, and never acts.
    pub witnesses: Vec<VoterId>,
}

impl Settings {
    /// Whether these can be a council.
    ///
    /// # Errors
    /// Another number of voters than 3 or 5, a number twice, or a voter that is not among them.
    pub fn check(&self) -> Result<(), CouncilError> {
        let found = self.voters.len();
        if !matches!(found, 3 | 5) {
            return Err(CouncilError::Size { found });
        }
        for (position, voter) in self.voters.iter().enumerate() {
            if voter.0 == 0 || self.voters[..position].contains(voter) {
                return Err(CouncilError::Number { voter: *voter });
            }
        }
        let mut named = self.witnesses.iter().chain([&self.own]);
        if let Some(stranger) = named.find(|voter| !self.voters.contains(voter)) {
            return Err(CouncilError::Stranger { voter: *stranger });
        }
        if self.voters.iter().all(|voter| self.is_witness(*voter)) {
            return Err(CouncilError::Witnesses { found });
        }
        match TICK_RANGE_NS.contains(&self.tick_ns) {
            true => Ok(()),
            false => Err(CouncilError::Tick {
                found_ns: self.tick_ns,
            }),
        }
    }

    /// It stands itself when it has heard of no leader for so long. Witnesses leave that to the others for some time.
    fn patience_ticks(&self) -> usize {
        let mut voters = self.voters.iter();
        let rank = voters.position(|voter| *voter == self.own).unwrap_or(0) as u64;
        let begin_ticks = match self.is_witness(self.own) {
            true => 2 * ELECTION_TICKS,
            false => ELECTION_TICKS,
        };
        (begin_ticks + rank * RANK_TICKS) as usize
    }

    fn is_witness(&self, voter: VoterId) -> bool {
        self.witnesses.contains(&voter)
    }
}

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

    fn check(&self) -> Result<(), String> {
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

/// Records, and the messages that may be sent once they are on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// For [`Node::written`].
    pub number: u64,
    /// In this order.
    pub records: Vec<Record>,
    /// Sent when the records are synced.
    pub messages: Vec<Message>,
}

/// Something that has been decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The next entry, and whether it changed anything.
    Entry(LogEntry, Effect),
    /// All up to this entry, in one: this voter was far behind.
    Snapshot(u64),
}

/// What follows from inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Sent without waiting for a write.
    pub messages: Vec<Message>,
    /// To be written.
    pub write: Option<Write>,
    /// What has been decided, in order.
    pub applied: Vec<Applied>,
}

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

        let patience = settings.patience_ticks();
        let config = Config {
            id: settings.own.0,
            election_tick: ELECTION_TICKS as usize,
            heartbeat_tick: 2 * HEARTBEAT_TICKS as usize,
            min_election_tick: patience,
            max_election_tick: patience + 1,
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
            self.raw.tick();
            if self.is_leader() && self.ticks.is_multiple_of(HEARTBEAT_TICKS) {
                // Heartbeats whose answers say when they were sent; raft-rs takes them for a read.
                self.raw.read_index(self.now_ns.to_le_bytes().to_vec());
            }
        }
        if self.is_leader() && self.settings.is_witness(self.settings.own) {
            self.step_aside();
        }
    }

    /// Ends a witness's leadership once a voter that can conduct has all entries.
    fn step_aside(&mut self) {
        let raft = &mut self.raw.raft;
        let last = raft.raft_log.last_index();
        let voters = self.settings.voters.iter();
        let mut candidates = voters.filter(|voter| !self.settings.is_witness(**voter));
        let has_all = |voter: &VoterId| {
            let progress = raft.prs().get(voter.0);
            progress.is_some_and(|progress| progress.matched == last)
        };
        if raft.commit_to_current_term() && candidates.any(has_all) {
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
        self.check(&message)?;
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
        let from = message.from;
        let message = message.into_raft(&self.settings.voters);
        self.raw
            .step(message)
            .map_err(|error| MessageError::Nonsense {
                from,
                what: error.to_string(),
            })
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
        while self.raw.has_ready() {
            self.take_ready(&mut output, &mut write);
        }
        if self.is_due_for_compaction() {
            self.compact(&mut write);
        }

        let is_empty = write.records.is_empty() && write.messages.is_empty() && write.number == 0;
        output.write = (!is_empty).then_some(write);
        output
    }

    fn take_ready(&mut self, output: &mut Output, write: &mut Write) {
        let mut ready = self.raw.ready();
        let number = ready.number();
        output.messages.extend(messages_of(ready.take_messages()));
        let promises = messages_of(ready.take_persisted_messages());

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

    // What is believed.

    /// Whether a voter of this council can have sent a message: raft-rs panics at some that none sends.
    fn check(&self, message: &Message) -> Result<(), MessageError> {
        let (from, to) = (message.from, message.to);
        let voters = &self.settings.voters;
        let own = self.settings.own;
        if to != own || from == own || !voters.contains(&from) {
            let voters = voters.len();
            return Err(MessageError::Address {
                from,
                to,
                own,
                voters,
            });
        }
        let nonsense = |what: String| Err(MessageError::Nonsense { from, what });
        if message.term == 0 || message.term == u64::MAX {
            return nonsense(format!("term {}", message.term));
        }

        let last = self.raw.raft.raft_log.last_index();
        let is_current = message.term >= self.term();
        match message.kind {
            MessageKind::Heartbeat if is_current && message.commit > last => {
                Err(MessageError::Forgotten {
                    from,
                    promised: message.commit,
                    found: last,
                })
            }
            MessageKind::Append => match entries_fault(message) {
                Some(what) => nonsense(what),
                None => Ok(()),
            },
            // Others raft-rs does not look into.
            MessageKind::AppendAnswer if message.term == self.term() && self.is_leader() => {
                let is_beyond = !message.is_rejected && message.index > last;
                match is_beyond || message.reject_hint == u64::MAX {
                    true => nonsense(format!(
                        "that it has entry {}, the last one is {last}",
                        message.index.max(message.reject_hint)
                    )),
                    false => Ok(()),
                }
            }
            MessageKind::Snapshot => match snapshot_fault(message) {
                Some(what) => nonsense(what),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

fn messages_of(messages: Vec<raft::eraftpb::Message>) -> Vec<Message> {
    let messages = messages.into_iter();
    messages.filter_map(Message::from_raft).collect()
}

/// The state in a snapshot.
fn decided_of(snapshot: &Snapshot) -> Result<Decided, String> {
    let decided = Decided::decode(&snapshot.state).map_err(|error| error.to_string())?;
    match decided.index == snapshot.index {
        true => Ok(decided),
        false => Err(format!(
            "a snapshot of entry {} with the state of entry {}",
            snapshot.index, decided.index
        )),
    }
}

/// What is wrong with the entries of a message, if anything is.
fn entries_fault(message: &Message) -> Option<String> {
    let mut previous = (message.index, message.log_term);
    for entry in &message.entries {
        let follows = Some(entry.index) == previous.0.checked_add(1);
        if !follows || entry.term < previous.1 || entry.term > message.term {
            return Some(format!(
                "entry {} of term {} after entry {} of term {}, in term {}",
                entry.index, entry.term, previous.0, previous.1, message.term
            ));
        }
        previous = (entry.index, entry.term);
    }
    None
}

fn snapshot_fault(message: &Message) -> Option<String> {
    let Some(snapshot) = &message.snapshot else {
        return Some("a snapshot without a state".to_owned());
    };
    if snapshot.index == 0 || snapshot.term == 0 || snapshot.term > message.term {
        return Some(format!(
            "a snapshot of entry {} of term {}, in term {}",
            snapshot.index, snapshot.term, message.term
        ));
    }
    decided_of(snapshot).err()
}
