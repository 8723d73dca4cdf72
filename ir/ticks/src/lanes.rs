//! Plans as text that fits a terminal: what every node and link does over one period.

use std::cmp::Reverse;
use std::fmt::Write as _;

use zbmd_ir::text::{Table, left, right};
use zbmd_ir::{ActorId, Graph, TiVec};

use crate::drawing::{Row, RowKey, Span, rows};
use crate::{TickMachine, VerifiedPlan};

/// Marks of actors, by the ticks that they take; all others have [`OTHER`].
const MARKS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
const OTHER: char = '#';
/// A column in which something happens for less than half of the time.
const MOSTLY_IDLE: char = '.';
/// Lanes and actors that are listed; the others are counted.
const MAX_ROWS: usize = 64;
const MIN_COLUMNS: u64 = 20;

/// The lanes of all nodes and links that do something, over one period, and the actors with their marks, in `width`
/// columns. Frames have the mark of the actor that wrote them. O(spans + lanes * width).
pub fn tick_lanes(
    graph: &Graph,
    machine: &TickMachine,
    plan: &VerifiedPlan,
    width: usize,
) -> String {
    let mut actors: Vec<ActorId> = graph.actors.keys().collect();
    let work = |actor: ActorId| {
        let firings = plan.starts[actor].len() as u64;
        firings * machine.ticks_of(&graph.actors[actor])
    };
    actors.sort_by_key(|&actor| (Reverse(work(actor)), actor));
    let mut marks: TiVec<ActorId, char> = vec![OTHER; graph.actors.len()].into();
    for (&mark, &actor) in MARKS.iter().zip(&actors) {
        marks[actor] = char::from(mark);
    }

    let mut text = lanes(machine, plan, &rows(graph, machine, plan), &marks, width);
    text.push('\n');
    let mut table = Table::default();
    for &actor in actors.iter().take(MAX_ROWS) {
        let firings = plan.starts[actor].len();
        let ticks = machine.ticks_of(&graph.actors[actor]);
        table.row(
            1,
            vec![
                left(marks[actor].to_string()),
                left(&graph.actors[actor].name),
                left(plan.placement[actor].to_string()),
                right(format!("{firings} x {ticks}")),
                right(share(work(actor), plan.period)),
            ],
        );
    }
    table.write(&mut text);
    write_rest(&mut text, actors.len(), "actors");
    let _ = writeln!(
        text,
        "  frames have the mark of the actor that wrote them   {MOSTLY_IDLE} mostly idle"
    );
    text
}

/// Says how many there are that are not listed.
fn write_rest(text: &mut String, count: usize, what: &str) {
    let rest = count.saturating_sub(MAX_ROWS);
    if rest > 0 {
        let _ = writeln!(
            text,
            "  and {rest} more {what}; `--format html` has them all"
        );
    }
}

fn share(ticks: u64, period: u64) -> String {
    format!("{:.1} %", 100.0 * ticks as f64 / period as f64)
}

fn lanes(
    machine: &TickMachine,
    plan: &VerifiedPlan,
    rows: &[Row],
    marks: &TiVec<ActorId, char>,
    width: usize,
) -> String {
    let shown = &rows[..rows.len().min(MAX_ROWS)];
    let labels: Vec<String> = shown.iter().map(|row| label(machine, row)).collect();
    let label_width = labels.iter().map(String::len).max().unwrap_or(0);
    // The label, the share, and a border on each side.
    let room = width.saturating_sub(label_width + 12) as u64;
    let columns = column_count(plan.period, room.max(MIN_COLUMNS));

    let mut text = String::new();
    for (row, label) in shown.iter().zip(&labels) {
        let ticks = row.spans.iter().map(|span| span.ticks).sum();
        let share = share(ticks, plan.period);
        let lane = lane(&row.spans, plan.period, columns, marks);
        let _ = writeln!(text, "{label:label_width$}  {share:>7} |{lane}|");
    }
    let last = plan.period.to_string();
    let gap = (columns as usize).saturating_sub(1).max(1);
    let indent = label_width + 11;
    let _ = writeln!(text, "{:indent$}0{last:>gap$}", "");
    write_rest(&mut text, rows.len(), "lanes");
    text
}

fn label(machine: &TickMachine, row: &Row) -> String {
    match row.key {
        RowKey::Compute(node) => node.to_string(),
        RowKey::Link { link, .. } => {
            let network = machine.network();
            let to = network.map_or_else(|_| String::new(), |n| n.links()[link].to.to_string());
            format!("  {link} to {to}")
        }
    }
}

/// As many columns for each tick as there is room for, or one for several ticks.
fn column_count(period: u64, room: u64) -> u64 {
    match room / period {
        0 => room,
        each => each * period,
    }
}

/// What takes most of the time of each column.
fn lane(spans: &[Span], period: u64, columns: u64, marks: &TiVec<ActorId, char>) -> String {
    // In units of a tick's part, so that columns and ticks both begin at whole numbers.
    let mut busy: Vec<Vec<(ActorId, u128)>> = vec![Vec::new(); columns as usize];
    for span in spans {
        let start = span.start % period;
        let first = span.ticks.min(period - start);
        for (from, ticks) in [(start, first), (0, span.ticks - first)] {
            add_busy(
                &mut busy,
                span.actor,
                (from, from + ticks),
                (period, columns),
            );
        }
    }
    let cells = busy.iter().map(|cell| {
        let total: u128 = cell.iter().map(|(_, part)| part).sum();
        let longest = cell
            .iter()
            .max_by_key(|(actor, part)| (*part, Reverse(*actor)));
        match longest {
            None => ' ',
            Some(_) if 2 * total < u128::from(period) => MOSTLY_IDLE,
            Some((actor, _)) => marks[*actor],
        }
    });
    cells.collect()
}

/// Adds a stretch of ticks to the columns that it goes over. A column is as long as `period` units, a tick as `columns`.
fn add_busy(
    busy: &mut [Vec<(ActorId, u128)>],
    actor: ActorId,
    (from, until): (u64, u64),
    (period, columns): (u64, u64),
) {
    let (period, columns) = (u128::from(period), u128::from(columns));
    let (from, until) = (u128::from(from) * columns, u128::from(until) * columns);
    for (column, cell) in
        (from / period..until.div_ceil(period)).zip(&mut busy[(from / period) as usize..])
    {
        let part = until.min((column + 1) * period) - from.max(column * period);
        match cell.iter_mut().find(|(known, _)| *known == actor) {
            Some((_, sum)) => *sum += part,
            None => cell.push((actor, part)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(spans: &[(u64, u64, u32)], period: u64, room: u64) -> String {
        let spans: Vec<Span> = spans
            .iter()
            .map(|&(start, ticks, actor)| Span::new(start, ticks, ActorId(actor)))
            .collect();
        let marks: TiVec<ActorId, char> = vec!['a', 'b', 'c'].into();
        lane(&spans, period, column_count(period, room), &marks)
    }

    #[test]
    fn a_lane_shows_what_takes_most_of_each_column() {
        // Ticks are as wide as there is room for, and what goes over the end goes on at the beginning.
        assert_eq!(drawn(&[(3, 2, 0)], 4, 9), "aa    aa");
        // 40 ticks in 10 columns: one of four ticks is less than half of a column, and two are half of it.
        assert_eq!(
            drawn(&[(0, 1, 0), (4, 2, 1), (38, 2, 2)], 40, 10),
            ".b       c"
        );
        // Of two in one column the longer is shown, of equally long ones the first.
        assert_eq!(
            drawn(&[(0, 1, 0), (1, 3, 1), (4, 2, 2), (6, 2, 1)], 40, 10),
            "bb        "
        );
        assert_eq!(drawn(&[], 3, 3), "   ");
    }
}
