//! A plan as text that fits a terminal: what limits it, a Gantt chart of its lanes, its actors and its memory.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::DeviceKind;
use zbmd_ir::text::{Table, bytes, count, duration, left, right};

use super::labels::{part_of, step};
use super::measured::LaneRow;
use super::{Act, PlanView, StageBoundary, View};

/// Actors and buffers that are listed; the others are counted.
const ROWS: usize = 20;
/// Hosts that are listed; the others are counted.
const HOST_ROWS: usize = 16;
/// Boundaries of stages that are listed; the others are counted.
const STAGE_ROWS: usize = 8;
/// Marks of actors in the chart, by busy time.
const MARKS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Marks of what is not a firing, after those of actors.
const OTHERS: [(Act, char); 7] = [
    (Act::Send, '>'),
    (Act::Recv, '<'),
    (Act::Release, '-'),
    (Act::Carry, '='),
    (Act::Fetch, '^'),
    (Act::Await, '~'),
    (Act::Loop, '@'),
];
/// A measured slot that was late.
const LATE: char = '!';
/// An actor without a mark of its own.
const ANY: char = '#';
/// Min width of the chart itself.
const MIN_CHART_WIDTH: usize = 20;

/// The plan in `width` columns, at least 40. Deterministic. O(slots + lanes · width).
pub fn plan(view: &View, plan: &PlanView, width: usize) -> String {
    let mut out = match &view.modes {
        Some(modes) => modes.describe(width) + "\n",
        None => String::new(),
    };
    out += &clip_line(&format!("{}   {}", view.model, plan.headline()), width);
    out += &clip_line(&plan.bottleneck(), width);
    out += &stage_section(view, plan, width);
    out += &header_lines(view, width);
    out += &run_section(view, plan, width);
    out.push('\n');
    let marks = Marks::of(plan);
    out += &draw_lanes(view, plan, &marks, width.max(40));
    out.push('\n');
    out += &actor_section(view, plan, &marks, width);
    out += &measured(view, plan, &marks, width);
    out += &gate_section(view, plan, width);
    out.push('\n');
    out += &memory_section(view, plan, width);
    if !view.contingencies.is_empty() {
        out.push('\n');
        out += &contingency_section(view, width);
    }
    out
}

/// Why there are so many stages: the period without each, the one that costs most first.
fn stage_section(view: &View, plan: &PlanView, width: usize) -> String {
    let mut boundaries: Vec<&StageBoundary> = plan.boundaries.iter().collect();
    boundaries.sort_by_key(|boundary| (std::cmp::Reverse(boundary.joined_ns), boundary.stage));
    let (paying, others): (Vec<&StageBoundary>, Vec<&StageBoundary>) = boundaries
        .into_iter()
        .partition(|boundary| boundary.joined_ns > plan.period_ns);

    let mut lines = String::new();
    for boundary in paying.iter().take(STAGE_ROWS) {
        let first = &view.actors[boundary.first_actor as usize];
        let last = &view.actors[boundary.last_actor as usize];
        let device = plan.actors[boundary.last_actor as usize].device;
        let line = format!(
            "stages {} and {} in one: period at least {}, from {} back to {} on {}",
            boundary.stage - 1,
            boundary.stage,
            duration(boundary.joined_ns),
            first.shown_name(),
            last.shown_name(),
            view.device_name(device),
        );
        lines += &clip_line(&line, width);
    }

    if paying.len() > STAGE_ROWS {
        let more = paying.len() - STAGE_ROWS;
        lines += &clip_line(&format!("and {more} more that would lengthen it"), width);
    }
    if !others.is_empty() {
        let mut stages: Vec<u32> = others.iter().map(|boundary| boundary.stage).collect();
        stages.sort_unstable();
        let stages: Vec<String> = stages.iter().map(u32::to_string).collect();
        let line = format!(
            "stages that begin a period later so that no device has to wait: {}",
            stages.join(", ")
        );
        lines += &clip_line(&line, width);
    }
    lines + &device_changes_line(view, plan, width)
}

/// Why the latency is longer than a row of as many devices would need; nothing where it is not.
fn device_changes_line(view: &View, plan: &PlanView, width: usize) -> String {
    let changes = plan.device_changes.len().saturating_sub(1);
    if changes == 0 {
        return String::new();
    }
    let arrivals: Vec<String> = (plan.device_changes.iter())
        .map(|&actor| {
            let device = plan.actors[actor as usize].device;
            let name = view.actors[actor as usize].shown_name();
            format!("{} {name}", view.device_name(device))
        })
        .collect();
    let line = format!(
        "latency of {:.1} periods, as work changes its device {}: {}",
        plan.latency_ns as f64 / plan.period_ns.max(1) as f64,
        count(changes as u64, "time"),
        arrivals.join(", "),
    );
    clip_line(&line, width)
}

fn header_lines(view: &View, width: usize) -> String {
    let replicated_names = view
        .replicated
        .iter()
        .map(|(n, k)| format!("{n} x{k}"))
        .collect();
    let rounded_counts = view
        .rounded
        .iter()
        .map(|(math, n)| format!("to {math} in {}", count(*n, "actor")));
    let line = |what: &str, all: Vec<String>| match all.is_empty() {
        true => String::new(),
        false => clip_line(&format!("{what}: {}", all.join(", ")), width),
    };
    line("replicated", replicated_names)
        + &line("factors of products rounded", rounded_counts.collect())
        + &host_lines(view, width)
}

/// The devices of each host, a line each; nothing where the machine has no hosts.
fn host_lines(view: &View, width: usize) -> String {
    let mut devices_of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for device in &view.devices {
        if let Some(host) = &device.host {
            devices_of.entry(host).or_default().push(&device.name);
        }
    }

    let shown_hosts = devices_of.iter().take(HOST_ROWS);
    let mut lines = String::new();
    for (host, devices) in shown_hosts {
        lines += &clip_line(&format!("host {host}: {}", devices.join(", ")), width);
    }
    let hidden_hosts = devices_of.len().saturating_sub(HOST_ROWS);
    if hidden_hosts > 0 {
        lines += &format!("and {hidden_hosts} more hosts; `--emit calendar` names them all\n");
    }
    lines
}

/// A line of at most `width` characters.
pub(crate) fn clip_line(line: &str, width: usize) -> String {
    let line = line.trim_end();
    if line.chars().count() <= width {
        return format!("{line}\n");
    }
    let kept_text: String = line.chars().take(width.saturating_sub(3)).collect();
    format!("{kept_text}...\n")
}

pub(crate) fn fit_table(table: &Table, width: usize) -> String {
    let mut text = String::new();
    table.write(&mut text);
    text.lines().map(|line| clip_line(line, width)).collect()
}

/// Which mark stands for which actor.
struct Marks {
    of: Vec<Option<usize>>,
    busiest: Vec<usize>,
}

impl Marks {
    fn of(plan: &PlanView) -> Self {
        // The busiest actors get the first letters; of equally busy ones the first in the graph.
        let mut busiest: Vec<usize> = (0..plan.actors.len()).collect();
        busiest.sort_by_key(|&a| (std::cmp::Reverse(plan.actors[a].busy_ns), a));
        let mut of = vec![None; plan.actors.len()];
        for (mark, &actor) in busiest.iter().take(MARKS.len()).enumerate() {
            of[actor] = Some(mark);
        }
        Self { of, busiest }
    }

    fn mark(&self, actor: usize) -> char {
        self.of
            .get(actor)
            .copied()
            .flatten()
            .map_or(ANY, |m| char::from(MARKS[m]))
    }

    /// Position of a mark among all.
    fn index(&self, act: Act, id: u32) -> usize {
        if act == Act::Fire {
            return self.of[id as usize].unwrap_or(MARKS.len());
        }
        MARKS.len() + 1 + OTHERS.iter().position(|o| o.0 == act).unwrap_or(0)
    }

    fn char(index: usize) -> char {
        match index.checked_sub(MARKS.len()) {
            None => char::from(MARKS[index]),
            Some(0) => ANY,
            Some(n) => OTHERS.get(n - 1).map_or(LATE, |o| o.1),
        }
    }
}

const ALL_MARKS: usize = MARKS.len() + 2 + OTHERS.len();

fn draw_lanes(view: &View, plan: &PlanView, marks: &Marks, width: usize) -> String {
    let end_ns = plan.end_ns();
    let lane_rows = plan.rows();
    let name = |r: &LaneRow| view.lane_name(r.lane.device, r.lane.kind);
    let lane_names: Vec<String> = lane_rows.iter().map(name).collect();
    let longest_name = lane_names
        .iter()
        .map(|n| n.chars().count())
        .max()
        .unwrap_or(0)
        .min(width / 3);
    // Name, share of the period, and a border on each side.
    let cell_count = width.saturating_sub(longest_name + 11).max(MIN_CHART_WIDTH);
    let mut drawing = String::new();
    for (lane, name) in lane_rows.iter().zip(&lane_names) {
        let name: String = name.chars().take(longest_name).collect();
        let share = 100.0 * lane.lane.busy_ns as f64 / plan.period_ns.max(1) as f64;
        let row = draw_row(lane, marks, end_ns, cell_count);
        drawing += &format!("{name:<longest_name$}  {share:>5.1}% |{row}|\n");
    }

    drawing + &draw_axis(end_ns, longest_name + 10, cell_count)
}

/// A lane in so many cells, each with the mark of what takes most of its time.
fn draw_row(row: &LaneRow, marks: &Marks, end: u64, cells: usize) -> String {
    // In 128 bits: nanoseconds of a long period times cells exceed 64.
    let edge = |cell: usize| (u128::from(end) * cell as u128 / cells as u128) as u64;
    let mut cell_weights = vec![[0u64; ALL_MARKS]; cells];
    for (s, slot) in row.lane.slots.iter().enumerate() {
        let mark = if row.is_late(s) {
            ALL_MARKS - 1
        } else {
            marks.index(slot.act, slot.id)
        };
        let first_cell = (u128::from(slot.start_ns) * cells as u128 / u128::from(end)) as usize;
        for (cell, cell_weights) in cell_weights.iter_mut().enumerate().skip(first_cell) {
            let from_ns = edge(cell);
            let to_ns = edge(cell + 1);
            if from_ns >= slot.end_ns() && cell > first_cell {
                break;
            }

            // The part of the slot that is in this cell.
            let inside_ns = slot
                .end_ns()
                .min(to_ns)
                .saturating_sub(slot.start_ns.max(from_ns));
            cell_weights[mark] = cell_weights[mark].saturating_add(inside_ns);
        }
    }

    let mut drawn_cells = String::new();
    for (cell, weights) in cell_weights.iter().enumerate() {
        drawn_cells.push(draw_cell(weights, edge(cell + 1) - edge(cell)));
    }
    drawn_cells
}

/// The heaviest mark of a cell that is busy for half of its time or more, and else a dot.
fn draw_cell(weights: &[u64; ALL_MARKS], cell_ns: u64) -> char {
    let busy_ns = weights
        .iter()
        .fold(0, |sum: u64, weight| sum.saturating_add(*weight));
    if busy_ns == 0 {
        return ' ';
    }
    if busy_ns.saturating_mul(2) < cell_ns {
        return '.';
    }

    // Of marks with the same weight the first one, which is that of the busier actor.
    let heaviest = (0..ALL_MARKS).max_by_key(|&mark| (weights[mark], std::cmp::Reverse(mark)));
    heaviest.map_or('.', Marks::char)
}

/// Times below the chart, at round steps.
fn draw_axis(end: u64, indent: usize, cells: usize) -> String {
    let mut axis_line = " ".repeat(indent);
    let step_ns = step(end, (cells / 14).max(2) as u64);
    let mut at_ns = 0;
    while at_ns <= end {
        let label_column = indent + (u128::from(at_ns) * cells as u128 / u128::from(end)) as usize;
        let label = if at_ns == 0 {
            "0".to_owned()
        } else {
            duration(at_ns)
        };

        // A label that would run into the one before, or out of the chart, is left out.
        let used_columns = axis_line.chars().count();
        if (used_columns <= label_column || at_ns == 0)
            && label_column + label.len() <= indent + cells + 1
        {
            axis_line += &" ".repeat(label_column.saturating_sub(used_columns));
            axis_line += &label;
            axis_line.push(' ');
        }

        at_ns = at_ns.saturating_add(step_ns);
    }

    axis_line.trim_end().to_owned() + "\n"
}

fn actor_section(view: &View, plan: &PlanView, marks: &Marks, width: usize) -> String {
    let mut actor_table = Table::default();
    for &a in marks.busiest.iter().take(ROWS) {
        let actor = &view.actors[a];
        let fired = &plan.actors[a];
        let share_percent = 100.0 * fired.busy_ns as f64 / plan.period_ns.max(1) as f64;
        actor_table.row(
            1,
            vec![
                left(marks.mark(a).to_string()),
                left(actor.shown_name()),
                left(view.device_name(fired.device)),
                left(format!("s{}", fired.stage)),
                right(count(fired.firings, "firing")),
                right(count(fired.calls, "call")),
                right(format!("+{}", duration(fired.busy_ns))),
                right(format!("{share_percent:.1} %")),
                left(
                    fired
                        .variant
                        .as_ref()
                        .map_or(String::new(), |v| format!("by {v}")),
                ),
            ],
        );
    }

    let mut table_text = fit_table(&actor_table, width);
    let hidden_rows = marks.busiest.len().saturating_sub(ROWS);
    if hidden_rows > 0 {
        table_text +=
            &format!("  {ANY} and {hidden_rows} more actors; `--emit schedule` lists all\n");
    }
    let mut mark_kinds = vec!["> send", "< receive", "- release", "= carry history"];
    let mut slots = plan.lanes.iter().flat_map(|lane| &lane.slots);
    if slots.any(|slot| slot.act == Act::Fetch) {
        mark_kinds.extend(["^ fetch weights", "~ await them"]);
    }
    mark_kinds.push(". mostly idle");
    table_text + &clip_line(&format!("  {}", mark_kinds.join("   ")), width)
}

/// What of the run is shown, and what is missing.
fn run_section(view: &View, plan: &PlanView, width: usize) -> String {
    let Some(run) = &view.measured else {
        return String::new();
    };
    let pace_text = plan
        .pace()
        .unwrap_or_else(|| "measured   this plan was not run".to_owned());
    let mut run_parts = vec![pace_text, format!("{} epochs", run.epochs)];
    if run.dropped > 0 {
        run_parts.push(format!(
            "{} of {} periods not recorded",
            run.dropped,
            run.dropped + run.periods
        ));
    }

    if run.other_epochs > 0 {
        let others = match &view.modes {
            Some(_) => "modes or programs",
            None => "programs",
        };
        run_parts.push(format!("{} epochs of other {others}", run.other_epochs));
    }
    if !run.complete {
        run_parts.push("cut off: the run was killed".to_owned());
    }
    clip_line(&run_parts.join("   "), width)
}

/// Calls of actors beside what was planned.
fn measured(view: &View, plan: &PlanView, marks: &Marks, width: usize) -> String {
    let Some(measured) = &plan.measured else {
        return String::new();
    };
    let mut actor_table = Table::default();
    let column_heads = [
        "",
        "actor",
        "calls",
        "planned",
        "p50",
        "p99",
        "max",
        "p50/planned",
    ];
    actor_table.row(
        1,
        column_heads
            .iter()
            .enumerate()
            .map(|(i, h)| if i < 2 { left(*h) } else { right(*h) })
            .collect(),
    );

    // By the time that they really took together, which may be another order than the planned one.
    let mut heaviest_first: Vec<_> = measured.actors.iter().collect();
    heaviest_first.sort_by_key(|a| (std::cmp::Reverse(a.calls.saturating_mul(a.p50_ns)), a.actor));
    for a in heaviest_first.iter().take(ROWS) {
        let slowdown = match a.planned_ns {
            0 => String::new(),
            planned => format!("{:.2}", a.p50_ns as f64 / planned as f64),
        };
        actor_table.row(
            1,
            vec![
                left(marks.mark(a.actor as usize).to_string()),
                left(view.actor_label(a.actor)),
                right(a.calls.to_string()),
                right(duration(a.planned_ns)),
                right(duration(a.p50_ns)),
                right(duration(a.p99_ns)),
                right(duration(a.max_ns)),
                right(slowdown),
            ],
        );
    }

    let mut table_text = "\n".to_owned() + &fit_table(&actor_table, width);
    let late_slots = measured
        .lanes
        .iter()
        .flat_map(|l| &l.slots)
        .filter(|s| s.late)
        .count();
    let hidden_rows = heaviest_first.len().saturating_sub(ROWS);
    if hidden_rows > 0 {
        table_text += &format!("  and {hidden_rows} more actors; `--format json` has all\n");
    }
    table_text
        + &clip_line(
            &format!(
                "  {LATE} late: {late_slots} slots end more than a twentieth of the period behind the plan"
            ),
            width,
        )
}

/// Actors behind one gate.
struct Gated<'v> {
    /// What closed firings give and what becomes of states, as models write it.
    answers: BTreeSet<String>,
    names: Vec<&'v str>,
    busy_ns: u64,
    /// GPUs that have some of them.
    gpus: BTreeSet<&'v str>,
}

/// The channels that open gates: how many actors are behind each, how much of the period rests while it is closed, and the
/// GPUs on which closed calls are not launched.
fn gate_section(view: &View, plan: &PlanView, width: usize) -> String {
    let mut gates: BTreeMap<u32, Gated<'_>> = BTreeMap::new();
    for (actor, fired) in view.actors.iter().zip(&plan.actors) {
        let Some(gate) = &actor.gate else { continue };
        let channel = actor.inputs[gate.input as usize].channel;
        let gated = gates.entry(channel).or_insert_with(|| Gated {
            answers: BTreeSet::new(),
            names: Vec::new(),
            busy_ns: 0,
            gpus: BTreeSet::new(),
        });
        let device = &view.devices[fired.device as usize];
        if DeviceKind::from(device.backend.as_str()).is_gpu() {
            gated.gpus.insert(&device.name);
        }
        gated.names.push(actor.shown_name());
        gated.busy_ns = gated.busy_ns.saturating_add(fired.busy_ns);
        gated.answers.extend(gate.describe_answers());
    }

    let mut section = String::new();
    for (channel, gated) in &gates {
        let share_percent = 100.0 * gated.busy_ns as f64 / plan.period_ns.max(1) as f64;
        let answers: Vec<&str> = gated.answers.iter().map(String::as_str).collect();
        let gpus: Vec<&str> = gated.gpus.iter().copied().collect();
        let gpus = match gpus.is_empty() {
            true => String::new(),
            false => format!(", not launched on {}", gpus.join(", ")),
        };
        let line = format!(
            "gate {}: {} behind it, {} ({share_percent:.1} %) rest while it is closed, {}{gpus}: {}",
            view.channel_name(*channel),
            count(gated.names.len() as u64, "actor"),
            duration(gated.busy_ns),
            answers.join(", "),
            gated.names.join(", "),
        );
        section += &clip_line(&line, width);
    }
    match section.is_empty() {
        true => section,
        false => "\n".to_owned() + &section,
    }
}

fn memory_section(view: &View, plan: &PlanView, width: usize) -> String {
    let mut memory_text = String::new();
    let mut table = Table::default();
    for m in &plan.memories {
        let device = &view.devices[m.device as usize];
        table.row(
            0,
            vec![
                left(device.name.clone()),
                left(format!(
                    "arena {}",
                    part_of(m.arena_bytes, device.memory_bytes)
                )),
                left(match m.scratch_bytes {
                    0 => String::new(),
                    n => format!("scratch {}", bytes(n)),
                }),
                left(match m.exchange_bytes {
                    0 => String::new(),
                    n => format!("exchange {}", bytes(n)),
                }),
            ],
        );
    }

    memory_text += &fit_table(&table, width);
    let mut largest_first: Vec<usize> = (0..plan.buffers.len()).collect();
    largest_first.sort_by_key(|&b| (std::cmp::Reverse(plan.buffers[b].size_bytes()), b));
    let mut table = Table::default();
    for &b in largest_first.iter().take(ROWS / 2) {
        let buffer = &plan.buffers[b];
        let live_text = match buffer.live_ns {
            None => "always".to_owned(),
            Some((from, to)) => format!("{} to {}", duration(from), duration(to)),
        };
        table.row(
            1,
            vec![
                right(bytes(buffer.size_bytes())),
                left(view.device_name(buffer.device)),
                left(format!("{}+{}", buffer.region, buffer.offset_bytes)),
                left(format!("live {live_text}")),
                left(view.buffer_label(buffer)),
            ],
        );
    }

    memory_text += &fit_table(&table, width);
    let hidden_rows = largest_first.len().saturating_sub(ROWS / 2);
    if hidden_rows > 0 {
        memory_text += &format!("  and {hidden_rows} more buffers; `--emit layout` lists all\n");
    }
    memory_text
}

fn contingency_section(view: &View, width: usize) -> String {
    let main_period_ns = view.plans.first().map_or(1, |p| p.period_ns.max(1));
    let mut loss_table = Table::default();
    for entry in &view.contingencies {
        let Some(plan) = view.plans.get(entry.plan as usize) else {
            continue;
        };
        let extra_percent = (plan.period_ns as f64 / main_period_ns as f64 - 1.0) * 100.0;
        loss_table.row(
            0,
            vec![
                left(format!("without {}", entry.lost)),
                left(format!("plan {}", entry.plan)),
                right(format!("period {}", duration(plan.period_ns))),
                right(format!("{extra_percent:+.1} %")),
                left(format!("bound by {}", plan.bound_by)),
            ],
        );
    }

    fit_table(&loss_table, width)
}
