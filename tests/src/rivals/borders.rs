//! What it costs to keep borders on a second node.

use std::fmt::Write as _;

use zbmd_ir::Graph;
use zbmd_tick_scheduler::{TickSchedule, TickScheduleError, schedule, schedule_with_copies};
use zbmd_ticks::{Hop, TickMachine, verify};

/// What a plan takes of a machine.
#[derive(Clone, Copy, Debug)]
struct PlanCost {
    period: u64,
    latency: u64,
    /// Frames of an iteration, on all links.
    frames: u64,
    /// Memory of all nodes.
    bytes: u64,
}

impl PlanCost {
    fn of(
        made: Result<TickSchedule, TickScheduleError>,
        graph: &Graph,
        machine: &TickMachine,
    ) -> Self {
        let TickSchedule { plan, latency, .. } = made.unwrap_or_else(|e| panic!("{e}"));
        let plan = verify(graph, machine, plan).unwrap_or_else(|errors| panic!("{errors:#?}"));
        let hops = plan.messages.iter().flat_map(|message| &message.hops);
        let nodes = plan.waiting_frames.keys();
        Self {
            period: plan.period,
            latency,
            frames: hops.map(Hop::frames).sum(),
            bytes: nodes.map(|n| plan.memory_bytes(graph, machine, n)).sum(),
        }
    }
}

/// A line of a table of the book: what the plan of a model takes without copies of borders, and with them.
///
/// # Panics
/// If there is no plan, or it is refused.
pub fn copies_line(model: &str, graph: &Graph, machine: &TickMachine) -> String {
    let without = PlanCost::of(schedule(graph, machine), graph, machine);
    let with = PlanCost::of(schedule_with_copies(graph, machine), graph, machine);
    let pairs = [
        (without.period, with.period),
        (without.latency, with.latency),
        (without.frames, with.frames),
        (without.bytes, with.bytes),
    ];
    let mut line = format!("| {model} |");
    for (without, with) in pairs {
        let _ = write!(line, " {without} | {with} |");
    }
    line
}
