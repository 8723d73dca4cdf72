//! What an instruction at which a worker is was planned to do.

/// One instruction of a calendar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedStep {
    pub planned_ns: u64,
    /// It may wait for other workers.
    pub may_wait: bool,
}
