//! Bugs that can be switched on, to see that the checks find them.

/// One thing done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CouncilBug {
    /// Votes are sent before they are on disk.
    VoteNotSynced,
    /// Entries are acknowledged before they are on disk.
    EntriesNotSynced,
    /// A voter that is started again has an empty folder.
    ForgetfulVoter,
    /// After a crash, the last record is dropped though it was written whole.
    TailDropped,
    /// Entries that are not in the snapshot are dropped with those that are.
    CompactionLosesEntries,
    /// A voter that was started again votes at once.
    VoterNotQuiet,
    /// The conductor acts for as long as it believes to lead.
    LeaseIgnored,
    /// The lease counts from when heartbeats were answered, not from when they were sent.
    LeaseFromAnswer,
    /// The lease is looked at when an action is decided upon, not when it is carried out.
    StaleConductorActs,
    /// Output is given out when its border is proposed, not when it is decided.
    CommitTooEarly,
    /// A border is proposed before those who may take over have its state.
    CommitBeforeCopy,
    /// Who takes over does not give out again what belongs to the last border.
    ReleaseForgotten,
    /// Epochs are numbered by each conductor.
    EpochCountedLocally,
    /// Agents obey whoever speaks last.
    AgentObeysAnyone,
    /// A voter without the state of the last border stays the leader where another has it.
    NeverStepsAside,
}

impl CouncilBug {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::VoteNotSynced,
        Self::EntriesNotSynced,
        Self::ForgetfulVoter,
        Self::TailDropped,
        Self::CompactionLosesEntries,
        Self::VoterNotQuiet,
        Self::LeaseIgnored,
        Self::LeaseFromAnswer,
        Self::StaleConductorActs,
        Self::CommitTooEarly,
        Self::CommitBeforeCopy,
        Self::ReleaseForgotten,
        Self::EpochCountedLocally,
        Self::AgentObeysAnyone,
        Self::NeverStepsAside,
    ];
}
