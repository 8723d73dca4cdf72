//! A difference as text, JSON and a page.

use zbmd_ir::text::{Table, left, printable_json, right};

use super::{Change, ChangeKind, Diff};
use crate::View;
use crate::html::fill;
use crate::svg::{self, escaped};

/// Changes of one kind in one plan that the text shows.
const SHOWN: usize = 20;

impl ChangeKind {
    /// What the text calls it.
    const fn title(self) -> &'static str {
        match self {
            ChangeKind::Plan => "plan",
            ChangeKind::Bottleneck => "bottleneck",
            ChangeKind::Machine => "machine",
            ChangeKind::Actor => "actor",
            ChangeKind::Channel => "channel",
            ChangeKind::Constants => "constants",
            ChangeKind::Moved => "moved",
            ChangeKind::Variant => "variant",
            ChangeKind::Stage => "stage",
            ChangeKind::Time => "time",
            ChangeKind::Calls => "calls",
            ChangeKind::Load => "load",
            ChangeKind::Transfer => "transfer",
            ChangeKind::Memory => "memory",
            ChangeKind::Buffer => "buffer",
            ChangeKind::Order => "order",
            ChangeKind::Times => "times",
            ChangeKind::Contingency => "loss",
            ChangeKind::Other => "other",
        }
    }
}

/// What happened to it, in words.
fn words(change: &Change) -> String {
    match (change.before.as_str(), change.after.as_str()) {
        ("", after) => format!("+ {after}"),
        (before, "") => format!("- {before}"),
        (before, after) => format!("{before} -> {after}"),
    }
}

fn growth(change: &Change) -> String {
    change
        .growth
        .map_or_else(String::new, |g| format!("{:+.1} %", 100.0 * g))
}

/// A line for each change, at most 20 of a kind in a plan. Empty if there are none.
pub fn text(diff: &Diff) -> String {
    let mut out = String::new();
    let mut rest = diff.changes.as_slice();
    let mut plan = None;
    let mut table = Table::default();
    while let Some(first) = rest.first() {
        if plan != Some(&first.plan) {
            table.write(&mut out);
            table = Table::default();
            out += &match &first.plan {
                Some(name) => format!("plan {name}\n"),
                None if out.is_empty() => String::new(),
                None => "all plans\n".to_owned(),
            };

            plan = Some(&first.plan);
        }

        let alike = |c: &&Change| (c.kind, &c.plan) == (first.kind, &first.plan);
        let n = rest.iter().take_while(alike).count();
        for change in &rest[..n.min(SHOWN)] {
            table.row(
                1,
                vec![
                    left(change.kind.title()),
                    left(change.subject.clone()),
                    left(words(change)),
                    right(growth(change)),
                ],
            );
        }

        if n > SHOWN {
            let more = format!("{} more", n - SHOWN);
            table.row(1, vec![left(first.kind.title()), left(more)]);
        }

        rest = &rest[n..];
    }

    table.write(&mut out);
    out
}

/// The difference as JSON: its fields under their names, with a line end.
///
/// # Panics
/// Never: it has only what JSON has.
pub fn json(diff: &Diff) -> String {
    let text = serde_json::to_string(diff).expect("a difference has only what JSON has");
    let mut text = printable_json(&text).into_owned();
    text.push('\n');
    text
}

const PAGE: &str = include_str!("page.html");
/// Rows of the page; more are counted.
const ROWS: usize = 5000;

/// One page that needs no network: the changes as a table to search, and the main calendars below one another.
pub fn html(diff: &Diff, before: (&str, &View), after: (&str, &View)) -> String {
    let mut rows = String::new();
    for change in diff.changes.iter().take(ROWS) {
        let cells = [
            change.plan.as_deref().unwrap_or(""),
            change.kind.title(),
            &change.subject,
            &change.before,
            &change.after,
            &growth(change),
        ];
        rows += "<tr>";
        for cell in cells {
            rows += &format!("<td>{}</td>", escaped(cell));
        }
        rows += "</tr>\n";
    }

    let count = match diff.changes.len() {
        0 => "equal".to_owned(),
        1 => "1 change".to_owned(),
        n if n > ROWS => format!("{n} changes, of which {ROWS} are listed"),
        n => format!("{n} changes"),
    };

    let drawing = |view: &View| {
        view.plans
            .first()
            .map_or_else(String::new, |p| svg::plan(view, p))
    };

    fill(
        PAGE,
        &[
            ("count", &count),
            ("a", &escaped(before.0)),
            ("b", &escaped(after.0)),
            ("rows", &rows),
            ("before", &drawing(before.1)),
            ("after", &drawing(after.1)),
        ],
    )
}
