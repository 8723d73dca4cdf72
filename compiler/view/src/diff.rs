//! What two bundles have different: for people who changed a model, a machine or an option, and for tests.
//!
//! [`Diff::of`] compares by name: actors, devices and channels that have one name in both are the same thing. Two
//! programs are equal if nothing of them differs, constants included; then there are no changes, and otherwise at
//! least one. O(size · log size) in the sizes of both.

mod plans;
mod print;
mod structure;

use serde::Serialize;
use zbmd_ir::Program;
use zbmd_ir::verify::Verified;

pub use self::print::{html, json, text};
use crate::View;

/// Version of the JSON form: grows when a field changes its meaning or goes.
pub const VERSION: u32 = 1;

/// What kind of change; the order is that in which changes are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// Period, latency, block or stages of a plan, or the plan itself.
    Plan,
    /// What limits the period.
    Bottleneck,
    /// A device, a link, or what it can do.
    Machine,
    /// An actor that is new, gone, or another one under the same name.
    Actor,
    /// A channel that is new, gone, or joins others.
    Channel,
    /// Values of constant tensors.
    Constants,
    /// An actor that runs on another device.
    Moved,
    /// An actor whose kernel is another variant.
    Variant,
    /// An actor that runs in another stage.
    Stage,
    /// Time of an actor in a period.
    Time,
    /// Calls of an actor in a period.
    Calls,
    /// Load of a lane.
    Load,
    /// What goes over a link.
    Transfer,
    /// Arena or exchange of a device.
    Memory,
    /// Memory of a channel.
    Buffer,
    /// Order of the slots of a lane.
    Order,
    /// Slots in the same order at other times.
    Times,
    /// What runs when devices are lost.
    Contingency,
    /// Anything else.
    Other,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// What kind.
    pub kind: ChangeKind,
    /// The plan it is in; none for what all plans share.
    pub plan: Option<String>,
    /// What has changed.
    pub subject: String,
    /// How it was, in words; empty if it was not.
    pub before: String,
    /// How it is, in words; empty if it is gone.
    pub after: String,
    /// How much more it is, as a fraction of what it was, where both are numbers other than 0.
    pub growth: Option<f64>,
}

/// All changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// `zbmd-diff`.
    pub format: &'static str,
    /// [`VERSION`].
    pub version: u32,
    /// Whether nothing differs.
    pub equal: bool,
    /// The changes, by plan and kind.
    pub changes: Vec<Change>,
}

impl Diff {
    /// Compares two programs, `before` and `after`; the views are theirs.
    pub fn of(before: (&Verified<Program>, &View), after: (&Verified<Program>, &View)) -> Diff {
        let equal = **before.0 == **after.0;
        let mut changes = Changes::default();
        if !equal {
            let side_before = structure::ProgramSide {
                program: before.0,
                view: before.1,
            };
            let side_after = structure::ProgramSide {
                program: after.0,
                view: after.1,
            };
            structure::compare(side_before, side_after, &mut changes);
            plans::compare(before.1, after.1, &mut changes);
            if changes.list.is_empty() {
                changes.words(
                    ChangeKind::Other,
                    "details that no view shows",
                    "",
                    "differ",
                );
            }
        }

        Diff {
            format: "zbmd-diff",
            version: VERSION,
            equal,
            changes: changes.list,
        }
    }
}

/// Changes being gathered.
#[derive(Default)]
struct Changes {
    list: Vec<Change>,
    plan: Option<String>,
}

impl Changes {
    /// A change in words; none if they are the same.
    fn words(&mut self, kind: ChangeKind, subject: &str, before: &str, after: &str) {
        if before != after {
            self.push(kind, subject, before.to_owned(), after.to_owned(), None);
        }
    }

    /// A change of a number; none if it is the same.
    fn number(
        &mut self,
        kind: ChangeKind,
        subject: &str,
        (before, after): (u64, u64),
        words: impl Fn(u64) -> String,
    ) {
        if before != after {
            let both = before > 0 && after > 0;
            let growth = both.then(|| after as f64 / before as f64 - 1.0);
            let mut words_before = words(before);
            let mut words_after = words(after);

            // Three digits may hide the change.
            if words_before == words_after {
                words_before = format!("{words_before} ({before})");
                words_after = format!("{words_after} ({after})");
            }
            self.push(kind, subject, words_before, words_after, growth);
        }
    }

    fn push(
        &mut self,
        kind: ChangeKind,
        subject: &str,
        before: String,
        after: String,
        growth: Option<f64>,
    ) {
        self.list.push(Change {
            kind,
            plan: self.plan.clone(),
            subject: subject.to_owned(),
            before,
            after,
            growth,
        });
    }
}
