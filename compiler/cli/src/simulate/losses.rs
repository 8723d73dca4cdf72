//! Losses of nodes and links in a simulated run: the plans for them, and what is said about both.

use std::fmt::Write as _;

use zbmd_compiler::{Code, Diagnostics};
use zbmd_ir::Graph;
use zbmd_tick_scheduler::contingencies;
use zbmd_tick_sim::machine::{FrameHarm, Injection, Recovery};
use zbmd_ticks::{
    LinkEnds, LinkId, Network, NodeId, TickContingencies, TickLoss, TickMachine, VerifiedPlan,
};

use crate::args::{LossAt, LostPart};
use crate::output::single_error;

/// The plans for losses, and the losses without one.
pub(super) struct LossPlans {
    pub(super) table: TickContingencies,
    refused: Vec<Refusal>,
}

/// A loss that there is no plan for.
struct Refusal {
    lost: TickLoss,
    reason: String,
}

/// Makes and verifies a plan for the loss of each node and link that a plan uses.
pub(super) fn plan_losses(
    graph: &Graph,
    machine: &TickMachine,
    main: &VerifiedPlan,
) -> Result<LossPlans, Diagnostics> {
    let schedules = contingencies(graph, machine, main)
        .map_err(|e| single_error(Code::E0507, e.to_string(), super::MACHINE_HELP))?;
    let mut plans = Vec::new();
    let mut refused = Vec::new();
    for schedule in schedules {
        let lost = schedule.lost;
        match schedule.result {
            Ok(scheduled) => plans.push((lost, scheduled.plan)),
            Err(error) => refused.push(Refusal {
                lost,
                reason: error.to_string(),
            }),
        }
    }

    let table = TickContingencies::verify(graph, machine, main.clone(), plans);
    // A refused plan of our own scheduler is our bug.
    let table = table.unwrap_or_else(|error| panic!("plans for losses are refused: {error}"));
    Ok(LossPlans { table, refused })
}

/// What `--lose` asks for, on a network that has it.
pub(super) fn injections(
    network: &Network,
    losses: &[LossAt],
) -> Result<Vec<Injection>, Diagnostics> {
    let mut injections = Vec::new();
    for &LossAt { part, tick } in losses {
        match part {
            LostPart::Node(node) => {
                check_exists('n', node, network.node_count())?;
                let node = NodeId(node);
                injections.push(Injection::Stop { node, tick });
            }
            LostPart::Link(link) => {
                check_exists('l', link, network.links().len())?;
                let reverse = network.reverse(LinkId(link));
                let both = std::iter::once(LinkId(link)).chain(reverse);
                injections.extend(both.map(|link| Injection::Cut { link, tick }));
            }
            LostPart::Frame(link) => {
                check_exists('l', link, network.links().len())?;
                injections.push(Injection::Frame {
                    link: LinkId(link),
                    tick,
                    harm: FrameHarm::Lose,
                });
            }
        }
    }
    Ok(injections)
}

fn check_exists(letter: char, index: u32, count: usize) -> Result<(), Diagnostics> {
    if (index as usize) < count {
        return Ok(());
    }
    let message = format!("there is no {letter}{index} to lose");
    let help = format!("the machine has {letter}0 to {letter}{}", count.max(1) - 1);
    Err(single_error(Code::E0701, message, &help))
}

/// A loss in words.
pub(super) fn name(network: &Network, lost: TickLoss) -> String {
    match lost {
        TickLoss::Node(node) => node.to_string(),
        TickLoss::Link(link) => {
            let LinkEnds { from, to } = network.links()[link];
            format!("{link} ({from} - {to})")
        }
    }
}

/// A line for each loss that changes the plan, and one for all others.
pub(super) fn write_plans(text: &mut String, network: &Network, plans: &LossPlans) {
    let borders = plans.table.main().copies.len();
    if borders > 0 {
        let verb = if borders == 1 {
            "border is"
        } else {
            "borders are"
        };
        let _ = writeln!(text, "copies       {borders} {verb} kept on a second node");
    }
    let main = plans.table.main().period;
    for entry in plans.table.list() {
        let period = entry.plan.period;
        let longer = 100.0 * (period as f64 / main as f64 - 1.0);
        let _ = writeln!(
            text,
            "loss         without {}: period {period} ticks ({longer:+.1} %)",
            name(network, entry.lost)
        );
    }
    for Refusal { lost, reason } in &plans.refused {
        let _ = writeln!(
            text,
            "loss         without {}: no plan, because {reason}",
            name(network, *lost)
        );
    }
    let total = TickLoss::singles(network).len();
    let unused = total - plans.table.list().len() - plans.refused.len();
    let _ = writeln!(
        text,
        "loss         without any one of {unused} other nodes and links: the same plan"
    );
}

/// What was noticed, and how the run went on.
pub(super) fn write_recoveries(text: &mut String, network: &Network, recoveries: &[Recovery]) {
    for recovery in recoveries {
        let _ = write!(text, "fault        {}", recovery.fault);
        let lost: Vec<String> = recovery
            .lost
            .iter()
            .map(|&lost| name(network, lost))
            .collect();
        let verb = if lost.len() == 1 { "is" } else { "are" };
        if !lost.is_empty() {
            let _ = write!(text, ": {} {verb} lost", lost.join(", "));
        }
        let _ = match recovery.resumption {
            Some(resumed) => writeln!(
                text,
                "\nresumed      in tick {} with iteration {}, period {} ticks; bringing borders took {} ticks",
                resumed.tick, resumed.iteration, resumed.period, resumed.restoring_ticks
            ),
            None => writeln!(text, "; no token was lost, and the plan stays"),
        };
    }
}
