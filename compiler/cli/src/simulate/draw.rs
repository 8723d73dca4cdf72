//! Tick calendars as drawings.

use std::fmt::Write as _;
use std::path::Path;

use zbmd_compiler::{Code, Diagnostics};
use zbmd_ticks::{VerifiedPlan, tick_drawing};

use super::{Simulated, write_file};
use crate::output::single_error;

/// Writes the tick calendar as SVG, or with those of all losses as a page of HTML, by the ending of the file.
pub(super) fn write_drawing(path: &Path, simulated: &Simulated) -> Result<(), Diagnostics> {
    let ending = path.extension().and_then(|ending| ending.to_str());
    let text = match ending {
        Some("svg") => draw(simulated, &simulated.plan),
        Some("html") => page(simulated),
        _ => {
            let message = format!("cannot draw a calendar as `{}`", path.display());
            let help = "give a file that ends in .svg or .html";
            return Err(single_error(Code::E0704, message, help));
        }
    };
    write_file(path, text.as_bytes())
}

fn draw(simulated: &Simulated, plan: &VerifiedPlan) -> String {
    tick_drawing(&simulated.graph, &simulated.machine, plan)
}

/// A page that needs no other file.
pub(super) fn page(simulated: &Simulated) -> String {
    let mut html = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
        <title>Tick calendars</title>\n\
        <style>body { font-family: sans-serif; margin: 1.5em; max-width: 72em; }</style>\n"
        .to_owned();
    let scheduled = &simulated.scheduled;
    let _ = writeln!(
        html,
        "<h1>Tick calendars</h1>\n<p>{} of {} nodes. The period is {} ticks, the bound {}, the latency {}. \
         A row for the firings of each node, and one for the frames on each of its links; point at a box.</p>\n{}",
        simulated.machine.topology.name(),
        simulated.network.node_count(),
        scheduled.plan.period,
        scheduled.bound,
        scheduled.latency,
        draw(simulated, &simulated.plan)
    );
    let losses = simulated.losses.iter();
    for entry in losses.flat_map(|losses| losses.table.list()) {
        let _ = writeln!(
            html,
            "<h2>Without {}</h2>\n{}",
            super::losses::name(&simulated.network, entry.lost),
            draw(simulated, &entry.plan)
        );
    }
    html.push_str("</html>\n");
    html
}
