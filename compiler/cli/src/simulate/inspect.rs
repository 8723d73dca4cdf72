//! `zbmdc inspect MODEL --machine FILE`: the plan of a model for a machine that keeps time.

use std::fmt::Write as _;
use std::path::Path;

use zbmd_compiler::Diagnostics;
use zbmd_ticks::{BorderCopy, tick_drawing, tick_lanes};

use super::draw::page;
use super::losses::write_plans;
use super::{PlanInput, Simulated, plan_model, write_loads};
use crate::args::{Format, Given, Inspect};
use crate::output::{Exit, Voice, columns, deliver, say};

/// Plans a model for a machine that keeps time, and shows the plan.
pub(crate) fn inspect_ticks(args: &Inspect, machine: &Path, voice: Voice) -> Exit {
    if matches!(
        args.format,
        Format::Dot | Format::Mermaid | Format::Perfetto
    ) {
        say("zbmdc: calendars to the tick are shown as text, html, svg, json or ron\n");
        return Exit::Usage;
    }
    match show_plan(args, machine) {
        Ok(text) => deliver(text.as_bytes(), args.output.as_deref(), voice),
        Err(diagnostics) => voice.report(&diagnostics),
    }
}

fn show_plan(args: &Inspect, machine: &Path) -> Result<String, Diagnostics> {
    let simulated = plan_model(&PlanInput {
        model: &args.bundle,
        machine,
        costs: None,
        contingencies: args.contingencies,
        given: &Given {
            params: args.params.clone(),
            ..Given::default()
        },
    })?;
    let Simulated {
        graph,
        machine,
        plan,
        ..
    } = &simulated;
    Ok(match args.format {
        Format::Json => {
            let text = serde_json::to_string_pretty(&**plan);
            text.expect("a plan has only what JSON has") + "\n"
        }
        Format::Ron => {
            let style = ron::ser::PrettyConfig::default();
            let text = ron::ser::to_string_pretty(&**plan, style);
            text.expect("a plan has only what RON has") + "\n"
        }
        Format::Svg => tick_drawing(graph, machine, plan),
        Format::Html => page(&simulated),
        _ => overview(&simulated, args.width.map_or_else(columns, usize::from)),
    })
}

/// What limits the plan, its lanes over one period, its actors, and the memory of its nodes.
fn overview(simulated: &Simulated, width: usize) -> String {
    let Simulated {
        graph,
        machine,
        network,
        scheduled,
        plan,
        losses,
        ..
    } = simulated;
    let mut text = format!(
        "{}   period {} ticks (bound {}, gap {:.1} %)   latency {} ticks\n{} of {} nodes   links of {} ticks   frames of {} bits\n\n",
        graph.name,
        plan.period,
        scheduled.bound,
        100.0 * scheduled.gap(),
        scheduled.latency,
        machine.topology.name(),
        network.node_count(),
        machine.latency_ticks,
        machine.frame_bits
    );

    text += &tick_lanes(graph, machine, plan, width);
    text.push('\n');
    write_loads(&mut text, simulated);

    for node in network.nodes() {
        let bytes = plan.memory_bytes(graph, machine, node);
        if bytes > 0 {
            let _ = writeln!(
                text,
                "memory       {node} {bytes} of {} bytes",
                machine.memory_bytes
            );
        }
    }
    for BorderCopy { channel, node } in &plan.copies {
        let writer = &graph.actors[graph.channels[*channel].from.actor].name;
        let _ = writeln!(
            text,
            "copy         of the border of {channel}, from `{writer}`, on {node}"
        );
    }
    if let Some(losses) = losses {
        write_plans(&mut text, network, losses);
    }
    text
}
