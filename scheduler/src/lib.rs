//! From a consistent SDF graph, a machine and costs to plans: pure functions without I/O, clock or threads.
//!
//! [`schedule`] reads as the pipeline: analyse -> choose a block -> cluster -> place -> assemble (stages, buffers,
//! order, times) -> lay out. [`schedule_contingencies`] does the same for what is left of the machine when devices are
//! lost. What they return is checked by `zbmd_ir::verify`, which shares no code with them.

mod analysis;
mod assemble;
pub mod assign;
mod block;
pub mod buffers;
mod cluster;
mod contingency;
mod in_place;
mod layout;
pub mod offsets;
pub mod order;
mod parts;
mod place;
mod problem;
pub mod replicate;
pub mod search;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod throughput;

use std::collections::BTreeMap;

pub use analysis::{AnalysisError, check_deadlock, repetition};
pub use contingency::{Contingent, Losses, kinds, losses, schedule_contingencies, schedule_loss};
pub use search::{Control, Level};
use zbmd_ir::{ActorId, ChannelId, Costs, DeviceId, Graph, Machine, Plan};

/// Iterations per block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Block {
    /// As many as keep the cost of slots small against the work, within the bounds asked for.
    #[default]
    Auto,
    /// Just so many.
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
    /// How far the cost may be from the least possible, as a fraction of the bound.
    pub fn gap(self) -> f64 {
        search::gap(self.cost, self.bound)
    }
}

/// Plans, and how good the main one's placement is.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// `main`, and `tail` if there is one.
    pub plans: Vec<Plan>,
    /// Unknown for graphs too large to search.
    pub estimate: Option<Estimate>,
}

/// What is asked of a schedule. The default asks for throughput.
#[derive(Clone, Debug)]
pub struct Options {
    /// Iterations per block.
    pub block: Block,
    /// How large all buffers together may be: `Throughput` lets blocks grow, `Min` runs single iterations where they
    /// take least, a bound in bytes counts arenas and exchanges. A fixed block is only checked against the bound.
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
    /// Most calls in one block of one cluster of actors in a cycle.
    pub max_executions: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
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

/// Why there is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The graph itself has none.
    #[error(transparent)]
    Analysis(#[from] AnalysisError),
    /// No device is there or allowed.
    #[error("the machine has no device that may be used")]
    NoDevices,
    /// No device has a kernel for the actor.
    #[error("no device that may be used has a kernel for {actor}")]
    NoDevice {
        /// The actor.
        actor: ActorId,
    },
    /// A pin names a device that cannot run the actor or may not be used.
    #[error("{actor} is pinned to {device}, which cannot run it")]
    PinImpossible {
        /// The actor.
        actor: ActorId,
        /// The device.
        device: DeviceId,
    },
    /// Actors whose firings interleave within a block are pinned to different devices.
    #[error(
        "{first} is pinned to {first_device} and {second} to {second_device}, but they lie on one cycle whose \
         initial tokens do not cover a block"
    )]
    PinnedApart {
        /// One actor.
        first: ActorId,
        /// Its device.
        first_device: DeviceId,
        /// The other actor.
        second: ActorId,
        /// Its device.
        second_device: DeviceId,
    },
    /// Writer and reader sit on devices without a link.
    #[error("{channel} needs a link from {from} to {to}, which the machine does not have")]
    NoLink {
        /// The channel.
        channel: ChannelId,
        /// Device of the writer.
        from: DeviceId,
        /// Device of the reader.
        to: DeviceId,
    },
    /// The tokens of one block of a channel do not fit any memory.
    #[error("one block of {block} iterations on {channel} is larger than any arena")]
    TooBig {
        /// The channel.
        channel: ChannelId,
        /// Iterations in the block.
        block: u64,
    },
    /// The order inside a cycle is longer than allowed.
    #[error("a block of {block} iterations interleaves more than {limit} calls inside a cycle")]
    TooManySlots {
        /// Iterations in the block.
        block: u64,
        /// The limit.
        limit: u64,
    },
    /// A device has too little memory, or the bound asked for is too low.
    #[error(
        "{device} needs {needed_bytes} bytes for blocks of {block} iterations, {limit_bytes} are allowed"
    )]
    Memory {
        /// The device.
        device: DeviceId,
        /// Arena and exchange bytes of the plan.
        needed_bytes: u64,
        /// What the device has or the options allow.
        limit_bytes: u64,
        /// Iterations in the block.
        block: u64,
        /// Channels whose buffers cannot lie there together; empty if that is not settled.
        conflict: Vec<ChannelId>,
    },
    /// No plan has buffers as small as asked.
    #[error(
        "the buffers need {needed} {unit} for blocks of {block} iterations, {limit} are allowed"
    )]
    Buffers {
        /// What the smallest plan found needs.
        needed: u64,
        /// The bound.
        limit: u64,
        /// What both are counted in.
        unit: buffers::Unit,
        /// Iterations in the block.
        block: u64,
    },
    /// No plan is as quick as asked.
    #[error("the quickest plan has a latency of {best_ns} ns, {limit_ns} ns are allowed")]
    Latency {
        /// The lowest latency found.
        best_ns: u64,
        /// The bound.
        limit_ns: u64,
    },
    /// The block size is zero or beyond all counts.
    #[error("a block of {block} iterations is out of range 1 to {limit}")]
    BlockRange {
        /// What was asked for.
        block: u64,
        /// The largest block for this graph.
        limit: u64,
    },
    /// More losses than a program can have plans for.
    #[error("{count} losses of devices need plans of their own, at most {limit}")]
    TooManyContingencies {
        /// Losses asked for.
        count: usize,
        /// The limit.
        limit: usize,
    },
}

/// Makes the plans of a graph: `main`, and where its block has more than one iteration `tail`, which runs what is
/// left of the input one iteration at a time.
///
/// The graph must have passed `zbmd_ir::verify::graph` (ids in range, every port connected once). Deterministic:
/// ties go to the lower id.
///
/// # Errors
/// See [`ScheduleError`].
pub fn schedule(
    graph: &Graph,
    machine: &Machine,
    costs: &Costs,
    options: &Options,
) -> Result<Vec<Plan>, ScheduleError> {
    search::unattended(|control| schedule_with(graph, machine, costs, options, control))
        .map(|scheduled| scheduled.plans)
}

/// Like [`schedule`], watched: a search that is stopped gives the best plans so far.
///
/// # Errors
/// See [`ScheduleError`].
pub fn schedule_with(
    graph: &Graph,
    machine: &Machine,
    costs: &Costs,
    options: &Options,
    control: &mut Control<'_>,
) -> Result<Scheduled, ScheduleError> {
    let edges = analysis::Edges::of(graph);
    let q = analysis::repetition_over(graph, &edges)?;
    analysis::check_deadlock_over(&edges, &q)?;
    let ports = graph.port_channels();
    let input = block::Input {
        given: (graph, machine, costs, options),
        derived: (&ports, &edges, &q),
    };
    let (main, estimate) = block::best_plan(&input, control)?;
    let mut plans = vec![main];
    if plans[0].block > 1 {
        plans.push(block::tail_plan(&input, &plans[0], control)?);
    }
    Ok(Scheduled { plans, estimate })
}
