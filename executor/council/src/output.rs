//! What follows from a voter's inputs, for who carries it out.

use crate::LogEntry;
use crate::decision::Effect;
use crate::message::Message;
use crate::record::Record;

/// Records, and the messages that may be sent once they are on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// For [`crate::node::Node::written`].
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
