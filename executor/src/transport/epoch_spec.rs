//! What an epoch is: the numbers from which everybody works out the same memory.

use serde::{Deserialize, Serialize};
use zbmd_ir::{ActorId, DeviceId, ParameterChange, Plan, PlanId};

use super::ledger::Borders;
use super::trace_ring::Ticks;

/// What an epoch is: one plan, on certain devices, from a certain border on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EpochSpec {
    pub epoch: u64,
    /// The mode whose plan it is.
    pub mode: u32,
    pub plan: PlanId,
    /// The device that runs each calendar of the plan.
    pub devices: Vec<DeviceId>,
    /// Blocks at most.
    pub limit: u64,
    /// Start blocks of closed sources whatever they hold.
    pub pad: bool,
    /// Where models of a merged program end, an incomplete iteration counts, filled up with zeros.
    pub pads_models: bool,
    /// Borders at which tokens are saved; none without supervision.
    pub saves: Option<Saves>,
    /// For each source, the tokens of its queue that were taken before this epoch.
    pub bases: Vec<u64>,
    pub sinks: Vec<SinkSpec>,
    /// Spin long: there is a core for each worker.
    pub spin_long: bool,
    /// Check what comes over rings.
    pub checksums: bool,
    /// The worker of the first calendar finds no memory: an injected fault.
    pub deny_memory: bool,
    /// Where the epoch begins and what changes there, if the program has live parameters.
    pub live: Option<LiveStart>,
    /// What workers record is timed by this; `None` if nothing is recorded.
    pub trace: Option<Ticks>,
}

/// What is known of live parameters when an epoch begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LiveStart {
    /// Iterations of the run before the epoch, and tokens of each source.
    pub iterations: u64,
    pub consumed: Vec<(ActorId, u64)>,
    /// Those of the state that it begins with.
    pub changes: Vec<ParameterChange>,
}

/// How often tokens are saved at borders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saves {
    pub every: u64,
    pub areas: u64,
}

/// One sink's queue in an epoch.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SinkSpec {
    pub capacity: u64,
    pub token_bytes: u64,
    /// Tokens that were given out before and come again: to be dropped.
    pub given_out: u64,
}

impl EpochSpec {
    pub(crate) fn borders(&self, plan: &Plan) -> Option<Borders> {
        let Saves { every, areas } = self.saves?;
        Some(Borders::new(every, u64::from(plan.stages), areas))
    }
}
