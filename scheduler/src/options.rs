//! What is asked of a schedule, and how good the answer is.

use std::collections::BTreeMap;

use zbmd_ir::{ActorId, DeviceId};

use crate::search::{self, Level};
use crate::{assign, buffers};

/// Iterations per block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Block {
    /// As many as keep the cost of slots small against the work, within the bounds asked for.
    #[default]
    Auto,
    /// Exactly this many.
    Fixed(u64),
}

/// How good a placement is, by the cost model: its cost (the period in picoseconds, if nothing else is asked for), and
/// what no placement can go below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Weighted sum of the objective.
    pub cost: u64,
    /// Proved lower bound of it.
    pub bound: u64,
}

impl Estimate {
    /// How far the cost may be from the minimum, as a fraction of the bound.
    pub fn gap(self) -> f64 {
        search::gap(self.cost, self.bound)
    }
}

/// What is asked of a schedule. The default asks for throughput.
#[derive(Clone, Debug)]
pub struct ScheduleOptions {
    /// Iterations per block.
    pub block: Block,
    /// How large all buffers together may be: `Throughput` lets blocks grow, `Min` runs single iterations where they
    /// need the fewest bytes, a bound in bytes counts arenas and exchanges. A fixed block is only checked against the bound.
    pub buffers: buffers::Mode,
    /// How hard to look for a placement.
    pub level: Level,
    /// What makes a placement good. If the period has no weight, plans are not pipelined.
    pub objective: assign::Objective,
    /// Bound on the predicted latency of a block.
    pub max_latency_ns: Option<u64>,
    /// Bound on the arena and exchange bytes of each device.
    pub max_memory_bytes: Option<u64>,
    /// Actors that must run on a given device.
    pub pins: BTreeMap<ActorId, DeviceId>,
    /// Devices that may be used; all if `None`.
    pub devices: Option<Vec<DeviceId>>,
    /// Calls that one block of one cluster of actors in a cycle may have.
    pub max_executions: u64,
}

impl Default for ScheduleOptions {
    fn default() -> Self {
        ScheduleOptions {
            block: Block::Auto,
            buffers: buffers::Mode::Throughput(buffers::Unit::Bytes),
            level: Level::Fast,
            objective: assign::Objective::PERIOD,
            max_latency_ns: None,
            max_memory_bytes: None,
            pins: BTreeMap::new(),
            devices: None,
            max_executions: 1 << 20,
        }
    }
}
