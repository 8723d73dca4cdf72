//! What voters say to each other: raft-rs's messages in types of our own, encoded with postcard. Only what voters send each
//! other can be said in it: no changes of the council, no forced elections.

use raft::eraftpb;
use serde::{Deserialize, Serialize};

use crate::decision::{MAX_DECISION_BYTES, decode_all};
use crate::error::DecodeError;
use crate::{LogEntry, Snapshot, VoterId};

/// Longest message: entries are sent up to `MAX_ENTRY_BYTES` at a time, and one more.
pub const MAX_MESSAGE_BYTES: usize = MAX_ENTRY_BYTES + 2 * MAX_DECISION_BYTES;
/// Bytes of entries that go into a message if there are more.
pub(crate) const MAX_ENTRY_BYTES: usize = 1 << 18;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Raft's")]
pub enum MessageKind {
    PreVoteRequest,
    PreVoteAnswer,
    VoteRequest,
    VoteAnswer,
    Append,
    AppendAnswer,
    Heartbeat,
    HeartbeatAnswer,
    Snapshot,
}

/// A message. Which fields mean something depends on its kind, as in raft-rs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// What it is.
    pub kind: MessageKind,
    /// Who sends it.
    pub from: VoterId,
    /// To whom.
    pub to: VoterId,
    /// Whether the sender's process could conduct: see [`crate::node::Node::set_can_conduct`].
    pub can_conduct: bool,
    /// The sender's term, or the one that it would like to begin.
    pub term: u64,
    /// The entry before `entries`, the last one that the sender has, or the one that it answers to.
    pub index: u64,
    /// The term of that entry.
    pub log_term: u64,
    /// Entries up to here are decided.
    pub commit: u64,
    /// The term of that entry, in requests for a vote.
    pub commit_term: u64,
    /// For the receiver's log.
    pub entries: Vec<LogEntry>,
    /// The answer is no.
    pub is_rejected: bool,
    /// The last entry that may agree.
    pub reject_hint: u64,
    /// Comes back with the answer: when the heartbeat was sent, by the sender's clock.
    pub sent_ns: Option<u64>,
    /// In place of entries that are not there any more.
    pub snapshot: Option<Snapshot>,
}

impl Message {
    /// Its bytes.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        postcard::to_stdvec(self).map_err(|error| DecodeError::Nonsense {
            what: "a message between voters",
            why: error.to_string(),
        })
    }

    /// From bytes of whoever.
    ///
    /// # Errors
    /// They are no message, or too many.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(DecodeError::Long {
                what: "a message between voters",
                bytes: bytes.len() as u64,
                max: MAX_MESSAGE_BYTES as u64,
            });
        }
        decode_all("a message between voters", bytes)
    }

    /// From what raft-rs wants to send; `None` for what voters of a fixed council never send.
    pub(crate) fn from_raft(message: eraftpb::Message, can_conduct: bool) -> Option<Self> {
        let kind = kind_of(message.get_msg_type())?;
        let context: Option<[u8; 8]> = message.context.as_ref().try_into().ok();
        let snapshot = message.get_snapshot();
        let snapshot = (kind == MessageKind::Snapshot).then(|| snapshot_from_raft(snapshot));
        Some(Self {
            kind,
            from: VoterId(message.from),
            to: VoterId(message.to),
            can_conduct,
            term: message.term,
            index: message.index,
            log_term: message.log_term,
            commit: message.commit,
            commit_term: message.commit_term,
            entries: message.entries.iter().map(entry_from_raft).collect(),
            is_rejected: message.reject,
            reject_hint: message.reject_hint,
            sent_ns: context.map(u64::from_le_bytes),
            snapshot,
        })
    }

    /// As raft-rs has it.
    pub(crate) fn into_raft(self, voters: &[VoterId]) -> eraftpb::Message {
        let mut message = eraftpb::Message {
            to: self.to.0,
            from: self.from.0,
            term: self.term,
            index: self.index,
            log_term: self.log_term,
            commit: self.commit,
            commit_term: self.commit_term,
            reject: self.is_rejected,
            reject_hint: self.reject_hint,
            ..eraftpb::Message::default()
        };
        message.set_msg_type(raft_kind(self.kind));
        let entries: Vec<eraftpb::Entry> = self.entries.into_iter().map(entry_to_raft).collect();
        message.set_entries(entries.into());
        if let Some(sent_ns) = self.sent_ns {
            message.context = sent_ns.to_le_bytes().to_vec().into();
        }
        if let Some(snapshot) = self.snapshot {
            message.set_snapshot(snapshot_to_raft(snapshot, voters));
        }
        message
    }
}

fn kind_of(kind: eraftpb::MessageType) -> Option<MessageKind> {
    use eraftpb::MessageType::*;
    Some(match kind {
        MsgRequestPreVote => MessageKind::PreVoteRequest,
        MsgRequestPreVoteResponse => MessageKind::PreVoteAnswer,
        MsgRequestVote => MessageKind::VoteRequest,
        MsgRequestVoteResponse => MessageKind::VoteAnswer,
        MsgAppend => MessageKind::Append,
        MsgAppendResponse => MessageKind::AppendAnswer,
        MsgHeartbeat => MessageKind::Heartbeat,
        MsgHeartbeatResponse => MessageKind::HeartbeatAnswer,
        MsgSnapshot => MessageKind::Snapshot,
        _ => return None,
    })
}

fn raft_kind(kind: MessageKind) -> eraftpb::MessageType {
    use eraftpb::MessageType::*;
    match kind {
        MessageKind::PreVoteRequest => MsgRequestPreVote,
        MessageKind::PreVoteAnswer => MsgRequestPreVoteResponse,
        MessageKind::VoteRequest => MsgRequestVote,
        MessageKind::VoteAnswer => MsgRequestVoteResponse,
        MessageKind::Append => MsgAppend,
        MessageKind::AppendAnswer => MsgAppendResponse,
        MessageKind::Heartbeat => MsgHeartbeat,
        MessageKind::HeartbeatAnswer => MsgHeartbeatResponse,
        MessageKind::Snapshot => MsgSnapshot,
    }
}

pub(crate) fn entry_from_raft(entry: &eraftpb::Entry) -> LogEntry {
    LogEntry {
        index: entry.index,
        term: entry.term,
        data: entry.data.to_vec(),
    }
}

pub(crate) fn entry_to_raft(entry: LogEntry) -> eraftpb::Entry {
    eraftpb::Entry {
        index: entry.index,
        term: entry.term,
        data: entry.data.into(),
        ..eraftpb::Entry::default()
    }
}

pub(crate) fn snapshot_from_raft(snapshot: &eraftpb::Snapshot) -> Snapshot {
    Snapshot {
        index: snapshot.get_metadata().index,
        term: snapshot.get_metadata().term,
        state: snapshot.data.to_vec(),
    }
}

/// The council never changes, so all of its snapshots have the same voters.
pub(crate) fn snapshot_to_raft(snapshot: Snapshot, voters: &[VoterId]) -> eraftpb::Snapshot {
    let mut raft_snapshot = eraftpb::Snapshot {
        data: snapshot.state.into(),
        ..eraftpb::Snapshot::default()
    };
    let metadata = raft_snapshot.mut_metadata();
    metadata.index = snapshot.index;
    metadata.term = snapshot.term;
    metadata.set_conf_state(conf_state(voters));
    raft_snapshot
}

pub(crate) fn conf_state(voters: &[VoterId]) -> eraftpb::ConfState {
    eraftpb::ConfState {
        voters: voters.iter().map(|voter| voter.0).collect(),
        ..eraftpb::ConfState::default()
    }
}
