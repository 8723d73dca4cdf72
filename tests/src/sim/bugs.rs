//! Bugs that can be switched on, to see that the oracle finds them.

/// One thing done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A fence neither stops the old epoch nor closes its sinks.
    FenceLeftOut,
    /// A fence leaves the sinks open, so a worker that wakes up late still gives tokens out.
    SinkStaysOpen,
    /// A border counts as committed when the fastest worker has passed it.
    CommitTooEarly,
    /// Workers save a border without waiting for the one that it overwrites to be done with.
    AreaReusedTooEarly,
    /// Tokens that were given out before are given out again.
    SkipForgotten,
    /// A message of a worker that was left behind counts as one of its successor.
    StaleIncarnationAccepted,
    /// Input tokens are freed when they are read.
    RetentionFreedEarly,
    /// Input tokens are never freed.
    RetentionNeverFreed,
    /// The area after the committed one is restored.
    WrongBorderRestored,
    /// An epoch is begun twice.
    DoubleBegin,
    /// The death of a worker is not told.
    LostGoneIgnored,
    /// A quiesce ends before what was given out.
    QuiesceTooShort,
    /// A new bundle is taken where the request comes, not at a border.
    SwapAtOnce,
    /// Checkpoints overwrite the last one in place.
    CheckpointInPlace,
    /// After a crash of the supervisor the output is not cut back to the checkpoint.
    OutputNotCutBack,
    /// State of feedback is left out of what is saved.
    FeedbackNotSaved,
    /// What gated actors hold is left out of what is saved.
    HeldNotSaved,
    /// What is behind a closed gate is computed all the same, and given out and held.
    ClosedLaunched,
    /// A run goes over to another mode where the request comes, not at a border.
    ModeAtOnce,
    /// One worker of several goes over to another mode a block later than the others.
    ModeLateOnOneWorker,
    /// A mode begins anew with what it should go on with.
    ModeStateLost,
    /// A mode goes on with what it should begin anew with.
    ModeStateKept,
    /// What was set is forgotten where the mode changes.
    ValuesLostWithMode,
    /// An old value holds on one worker of several for a block more.
    ValueLateOnOneWorker,
    /// Of the workers that are gone with a host, only the first is reported.
    HostHalfLost,
    /// The loss of a host is told again later, and counts for whichever workers its devices have then.
    HostLossToldAgain,
}

impl Bug {
    /// Those that losses of whole hosts bring out.
    pub const OF_HOSTS: [Self; 2] = [Self::HostHalfLost, Self::HostLossToldAgain];

    /// All others.
    pub const ALL: [Self; 24] = [
        Self::FenceLeftOut,
        Self::SinkStaysOpen,
        Self::CommitTooEarly,
        Self::AreaReusedTooEarly,
        Self::SkipForgotten,
        Self::StaleIncarnationAccepted,
        Self::RetentionFreedEarly,
        Self::RetentionNeverFreed,
        Self::WrongBorderRestored,
        Self::DoubleBegin,
        Self::LostGoneIgnored,
        Self::QuiesceTooShort,
        Self::SwapAtOnce,
        Self::CheckpointInPlace,
        Self::OutputNotCutBack,
        Self::FeedbackNotSaved,
        Self::HeldNotSaved,
        Self::ClosedLaunched,
        Self::ModeAtOnce,
        Self::ModeLateOnOneWorker,
        Self::ModeStateLost,
        Self::ModeStateKept,
        Self::ValuesLostWithMode,
        Self::ValueLateOnOneWorker,
    ];
}
