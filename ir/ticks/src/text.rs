//! Plans as people read and snapshot them.

use std::fmt::Write as _;

use zbmd_ir::Graph;

use crate::{Hop, LinkEnds, Message, NodeId, TickMachine, TickPlan, VerifiedPlan};

/// Something that a node does, in the order in which lines are printed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TickLine {
    unit: Unit,
    tick: u64,
    what: String,
}

/// The three calendars of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    /// Frames that are taken from links.
    Scatter,
    Compute,
    /// Frames that are put on links.
    Gather,
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Unit::Scatter => "scatter",
            Unit::Compute => "compute",
            Unit::Gather => "gather",
        }
    }
}

/// The calendars of all nodes that do something, one line an entry: for each the unit, the tick within iteration 0, how
/// many ticks it lasts, and what happens. Every entry happens again after each period.
pub fn tick_calendar(graph: &Graph, machine: &TickMachine, plan: &VerifiedPlan) -> String {
    let durations = machine.durations(graph);
    let mut text = format!(
        "tick calendar   period {}   latency {}   frames of {} bits   links of {} ticks\n",
        plan.period,
        plan.latency(&durations),
        machine.frame_bits,
        machine.latency_ticks
    );
    let Ok(network) = machine.network() else {
        return text;
    };
    let mut lines = vec![Vec::new(); network.node_count()];
    for (actor, starts) in plan.starts.iter_enumerated() {
        for (firing, &tick) in starts.iter().enumerate() {
            lines[plan.placement[actor].index()].push(TickLine {
                unit: Unit::Compute,
                tick,
                what: format!(
                    "+{}  {}[{firing}]",
                    durations[actor], graph.actors[actor].name
                ),
            });
        }
    }
    for message in &plan.messages {
        for (index, hop) in message.hops.iter().enumerate() {
            let ends = network.links()[hop.link];
            add_hop(&mut lines, machine, message, hop, ends, index > 0);
        }
    }

    for (node, mut lines) in lines.into_iter().enumerate() {
        if lines.is_empty() {
            continue;
        }
        lines.sort();
        write_node(&mut text, graph, machine, plan, NodeId::from(node));
        for copy in plan.copies.iter().filter(|copy| copy.node.index() == node) {
            let _ = writeln!(text, "  keeps             border of {}", copy.channel);
        }
        let mut unit = None;
        for line in lines {
            let name = if unit.replace(line.unit) == Some(line.unit) {
                ""
            } else {
                line.unit.name()
            };
            let _ = writeln!(text, "  {name:8} {:>6}  {}", line.tick, line.what);
        }
    }
    text
}

fn write_node(
    text: &mut String,
    graph: &Graph,
    machine: &TickMachine,
    plan: &TickPlan,
    node: NodeId,
) {
    let bytes = plan.memory_bytes(graph, machine, node);
    let placed = plan.placement.iter_enumerated();
    let work: u64 = placed
        .filter(|&(_, &place)| place == node)
        .map(|(actor, _)| plan.starts[actor].len() as u64 * machine.ticks_of(&graph.actors[actor]))
        .sum();
    let _ = writeln!(
        text,
        "{node}   busy {work} of {} ticks   memory {bytes} of {} bytes",
        plan.period, machine.memory_bytes
    );
}

/// Adds the lines of both ends of a hop.
fn add_hop(
    lines: &mut [Vec<TickLine>],
    machine: &TickMachine,
    message: &Message,
    hop: &Hop,
    ends: LinkEnds,
    is_forwarded: bool,
) {
    let name = format!("{}[{}]", message.channel, message.firing);
    let mut first = 0;
    for run in &hop.runs {
        let frames = if run.frames == 1 {
            format!("frame {first}")
        } else {
            format!("frames {first}..{}", first + run.frames)
        };
        let forwarded = if is_forwarded { " sent on" } else { "" };
        lines[ends.from.index()].push(TickLine {
            unit: Unit::Gather,
            tick: run.start,
            what: format!("+{}  {name} {frames}{forwarded} -> {}", run.frames, ends.to),
        });
        lines[ends.to.index()].push(TickLine {
            unit: Unit::Scatter,
            tick: run.start + machine.latency_ticks,
            what: format!("+{}  {name} {frames} <- {}", run.frames, ends.from),
        });
        first += run.frames;
    }
}
