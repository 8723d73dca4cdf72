//! A plan as text that fits a terminal: what limits it, a Gantt chart of its lanes, its actors and its memory.

use zbmd_ir::text::{Table, bytes, count, duration, left, right};

use super::labels::{part_of, step};
use super::measured::Row;
use super::{Act, PlanView, View};

/// Actors and buffers that are listed; the others are counted.
const ROWS: usize = 20;
/// Marks of actors in the chart, by busy time.
const MARKS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Marks of what is no firing, after those of actors.
const OTHERS: [(Act, char); 5] = [
    (Act::Send, '>'),
    (Act::Recv, '<'),
    (Act::Release, '-'),
    (Act::Carry, '='),
    (Act::Loop, '@'),
];
/// A measured slot that was late.
const LATE: char = '!';
/// An actor without a mark of its own.
const ANY: char = '#';
/// Least width of the chart itself.
const LEAST: usize = 20;

/// The plan in `width` columns, at least 40. Deterministic. O(slots + lanes · width).
pub fn plan(view: &View, plan: &PlanView, width: usize) -> String {
    let mut out = clipped(&format!("{}   {}", view.model, plan.headline()), width);
    out += &clipped(&plan.bottleneck(), width);
    out += &lines(view, width);
    out += &run(view, plan, width);
    out.push('\n');
    let marks = Marks::of(plan);
    out += &gantt(view, plan, &marks, width.max(40));
    out.push('\n');
    out += &actors(view, plan, &marks, width);
    out += &measured(view, plan, &marks, width);
    out.push('\n');
    out += &memory(view, plan, width);
    if !view.contingencies.is_empty() {
        out.push('\n');
        out += &contingencies(view, width);
    }
    out
}

fn lines(view: &View, width: usize) -> String {
    let replicated = view
        .replicated
        .iter()
        .map(|(n, k)| format!("{n} x{k}"))
        .collect();
    let rounded = view
        .rounded
        .iter()
        .map(|(math, n)| format!("to {math} in {}", count(*n, "actor")));
    let line = |what: &str, all: Vec<String>| match all.is_empty() {
        true => String::new(),
        false => clipped(&format!("{what}: {}", all.join(", ")), width),
    };
    line("replicated", replicated) + &line("factors of products rounded", rounded.collect())
}

/// A line of at most `width` characters.
fn clipped(line: &str, width: usize) -> String {
    let line = line.trim_end();
    if line.chars().count() <= width {
        return format!("{line}\n");
    }
    let kept: String = line.chars().take(width.saturating_sub(3)).collect();
    format!("{kept}...\n")
}

fn fitted(table: &Table, width: usize) -> String {
    let mut text = String::new();
    table.write(&mut text);
    text.lines().map(|line| clipped(line, width)).collect()
}

/// Which mark stands for which actor.
struct Marks {
    of: Vec<Option<usize>>,
    busiest: Vec<usize>,
}

impl Marks {
    fn of(plan: &PlanView) -> Self {
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

fn gantt(view: &View, plan: &PlanView, marks: &Marks, width: usize) -> String {
    let end = plan.end_ns();
    let rows = plan.rows();
    let name = |r: &Row| view.lane_name(r.lane.device, r.lane.kind);
    let names: Vec<String> = rows.iter().map(name).collect();
    let longest = names
        .iter()
        .map(|n| n.chars().count())
        .max()
        .unwrap_or(0)
        .min(width / 3);
    // Name, share of the period, and a border on each side.
    let cells = width.saturating_sub(longest + 11).max(LEAST);
    let mut out = String::new();
    for (lane, name) in rows.iter().zip(&names) {
        let name: String = name.chars().take(longest).collect();
        let share = 100.0 * lane.lane.busy_ns as f64 / plan.period_ns.max(1) as f64;
        let row = row(lane, marks, end, cells);
        out += &format!("{name:<longest$}  {share:>5.1}% |{row}|\n");
    }
    out + &axis(end, longest + 10, cells)
}

/// A lane in so many cells, each with the mark of what takes most of its time.
fn row(row: &Row, marks: &Marks, end: u64, cells: usize) -> String {
    let edge = |cell: usize| (u128::from(end) * cell as u128 / cells as u128) as u64;
    let mut weights = vec![[0u64; ALL_MARKS]; cells];
    for (s, slot) in row.lane.slots.iter().enumerate() {
        let mark = if row.is_late(s) {
            ALL_MARKS - 1
        } else {
            marks.index(slot.act, slot.id)
        };
        let first = (u128::from(slot.start_ns) * cells as u128 / u128::from(end)) as usize;
        for (cell, weights) in weights.iter_mut().enumerate().skip(first) {
            let (from, to) = (edge(cell), edge(cell + 1));
            if from >= slot.end_ns() && cell > first {
                break;
            }
            let inside = slot
                .end_ns()
                .min(to)
                .saturating_sub(slot.start_ns.max(from));
            weights[mark] = weights[mark].saturating_add(inside);
        }
    }
    let mark = |(cell, weights): (usize, &[u64; ALL_MARKS])| {
        let busy = weights.iter().fold(0, |sum: u64, w| sum.saturating_add(*w));
        let most = (0..ALL_MARKS).max_by_key(|&m| (weights[m], std::cmp::Reverse(m)));
        match most {
            Some(most) if busy > 0 && busy.saturating_mul(2) >= edge(cell + 1) - edge(cell) => {
                Marks::char(most)
            }
            _ if busy > 0 => '.',
            _ => ' ',
        }
    };
    weights.iter().enumerate().map(mark).collect()
}

/// Times below the chart, at round steps.
fn axis(end: u64, indent: usize, cells: usize) -> String {
    let mut line = " ".repeat(indent);
    let step = step(end, (cells / 14).max(2) as u64);
    let mut at = 0;
    while at <= end {
        let column = indent + (u128::from(at) * cells as u128 / u128::from(end)) as usize;
        let label = if at == 0 {
            "0".to_owned()
        } else {
            duration(at)
        };
        let used = line.chars().count();
        if (used <= column || at == 0) && column + label.len() <= indent + cells + 2 {
            line += &" ".repeat(column.saturating_sub(used));
            line += &label;
            line.push(' ');
        }
        at = at.saturating_add(step);
    }
    line.trim_end().to_owned() + "\n"
}

fn actors(view: &View, plan: &PlanView, marks: &Marks, width: usize) -> String {
    let mut table = Table::default();
    for &a in marks.busiest.iter().take(ROWS) {
        let (actor, fired) = (&view.actors[a], &plan.actors[a]);
        let share = 100.0 * fired.busy_ns as f64 / plan.period_ns.max(1) as f64;
        table.row(
            1,
            vec![
                left(marks.mark(a).to_string()),
                left(actor.shown_name()),
                left(view.device_name(fired.device)),
                left(format!("s{}", fired.stage)),
                right(count(fired.firings, "firing")),
                right(count(fired.calls, "call")),
                right(format!("+{}", duration(fired.busy_ns))),
                right(format!("{share:.1} %")),
                left(
                    fired
                        .variant
                        .as_ref()
                        .map_or(String::new(), |v| format!("by {v}")),
                ),
            ],
        );
    }
    let mut out = fitted(&table, width);
    let more = marks.busiest.len().saturating_sub(ROWS);
    if more > 0 {
        out += &format!("  {ANY} and {more} more actors; `--emit schedule` lists all\n");
    }
    let kinds = [
        "> send",
        "< receive",
        "- release",
        "= carry history",
        ". mostly idle",
    ];
    out + &clipped(&format!("  {}", kinds.join("   ")), width)
}

/// What of the run is shown, and what is missing.
fn run(view: &View, plan: &PlanView, width: usize) -> String {
    let Some(run) = &view.measured else {
        return String::new();
    };
    let pace = plan
        .pace()
        .unwrap_or_else(|| "measured   this plan was not run".to_owned());
    let mut parts = vec![pace, format!("{} epochs", run.epochs)];
    if run.dropped > 0 {
        parts.push(format!(
            "{} of {} periods not recorded",
            run.dropped,
            run.dropped + run.periods
        ));
    }
    if run.other_epochs > 0 {
        parts.push(format!("{} epochs of other programs", run.other_epochs));
    }
    if !run.complete {
        parts.push("cut off: the run was killed".to_owned());
    }
    clipped(&parts.join("   "), width)
}

/// Calls of actors beside what was planned.
fn measured(view: &View, plan: &PlanView, marks: &Marks, width: usize) -> String {
    let Some(measured) = &plan.measured else {
        return String::new();
    };
    let mut table = Table::default();
    let heads = [
        "",
        "actor",
        "calls",
        "planned",
        "p50",
        "p99",
        "max",
        "p50/planned",
    ];
    table.row(
        1,
        heads
            .iter()
            .enumerate()
            .map(|(i, h)| if i < 2 { left(*h) } else { right(*h) })
            .collect(),
    );
    let mut order: Vec<_> = measured.actors.iter().collect();
    order.sort_by_key(|a| (std::cmp::Reverse(a.calls.saturating_mul(a.p50_ns)), a.actor));
    for a in order.iter().take(ROWS) {
        let factor = match a.planned_ns {
            0 => String::new(),
            planned => format!("{:.2}", a.p50_ns as f64 / planned as f64),
        };
        table.row(
            1,
            vec![
                left(marks.mark(a.actor as usize).to_string()),
                left(view.actor_label(a.actor)),
                right(a.calls.to_string()),
                right(duration(a.planned_ns)),
                right(duration(a.p50_ns)),
                right(duration(a.p99_ns)),
                right(duration(a.max_ns)),
                right(factor),
            ],
        );
    }
    let mut out = "\n".to_owned() + &fitted(&table, width);
    let late = measured
        .lanes
        .iter()
        .flat_map(|l| &l.slots)
        .filter(|s| s.late)
        .count();
    let more = order.len().saturating_sub(ROWS);
    if more > 0 {
        out += &format!("  and {more} more actors; `--format json` has all\n");
    }
    out + &clipped(
        &format!(
            "  {LATE} late: {late} slots end more than a twentieth of the period behind the plan"
        ),
        width,
    )
}

fn memory(view: &View, plan: &PlanView, width: usize) -> String {
    let mut out = String::new();
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
    out += &fitted(&table, width);
    let mut order: Vec<usize> = (0..plan.buffers.len()).collect();
    order.sort_by_key(|&b| (std::cmp::Reverse(plan.buffers[b].size_bytes()), b));
    let mut table = Table::default();
    for &b in order.iter().take(ROWS / 2) {
        let buffer = &plan.buffers[b];
        let live = match buffer.live_ns {
            None => "always".to_owned(),
            Some((from, to)) => format!("{} to {}", duration(from), duration(to)),
        };
        table.row(
            1,
            vec![
                right(bytes(buffer.size_bytes())),
                left(view.device_name(buffer.device)),
                left(format!("{}+{}", buffer.region, buffer.offset_bytes)),
                left(format!("live {live}")),
                left(view.buffer_label(buffer)),
            ],
        );
    }
    out += &fitted(&table, width);
    let more = order.len().saturating_sub(ROWS / 2);
    if more > 0 {
        out += &format!("  and {more} more buffers; `--emit layout` lists all\n");
    }
    out
}

fn contingencies(view: &View, width: usize) -> String {
    let main = view.plans.first().map_or(1, |p| p.period_ns.max(1));
    let mut table = Table::default();
    for entry in &view.contingencies {
        let Some(plan) = view.plans.get(entry.plan as usize) else {
            continue;
        };
        let percent = (plan.period_ns as f64 / main as f64 - 1.0) * 100.0;
        table.row(
            0,
            vec![
                left(format!("without {}", entry.lost)),
                left(format!("plan {}", entry.plan)),
                right(format!("period {}", duration(plan.period_ns))),
                right(format!("{percent:+.1} %")),
                left(format!("bound by {}", plan.bound_by)),
            ],
        );
    }
    fitted(&table, width)
}
