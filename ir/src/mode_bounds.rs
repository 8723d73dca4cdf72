//! What modes cost: planned times of each, and the worst over all sequences of changes and all losses.

use std::fmt;

use serde::Serialize;

use crate::text;
use crate::verify::VerifiedModes;

/// What modes cost, over all sequences of changes that are allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModeBounds {
    /// For each mode its name, and period and latency of its main plan.
    pub modes: Vec<ModeBound>,
    /// The change after which an output may come latest.
    pub worst: Option<ChangeBound>,
    /// The loss of devices after which periods are longest; `None` without contingencies.
    pub worst_loss: Option<LossBound>,
}

/// Planned times of one mode on the whole machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModeBound {
    /// Its name.
    pub name: String,
    /// Iterations of a block.
    pub block: u64,
    /// Time from block to block.
    pub period_ns: u64,
    /// Time from a block's input to its output.
    pub latency_ns: u64,
}

/// Planned latency over a change: the block that is first in the new mode waits until the last one of the old mode is out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangeBound {
    /// The old mode.
    pub from: String,
    /// The new one.
    pub to: String,
    /// Both latencies, besides what the run needs to go over.
    pub latency_ns: u64,
}

/// Planned period of a mode without some devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LossBound {
    /// The mode.
    pub mode: String,
    /// The devices that are lost, in words.
    pub lost: String,
    /// Time from block to block.
    pub period_ns: u64,
}

impl ModeBounds {
    /// The bounds of verified modes. Every block comes out within the latency of its mode, and behind the last block of the
    /// mode before; so no sequence of changes is worse than its worst change.
    pub fn of(modes: &VerifiedModes) -> Self {
        let programs = modes.names().iter().zip(modes.programs());
        let bounds = programs.map(|(name, program)| {
            let main = program.plans.first();
            ModeBound {
                name: name.clone(),
                block: main.map_or(1, |plan| plan.block),
                period_ns: main.map_or(0, |plan| plan.period_ns),
                latency_ns: main.map_or(0, |plan| plan.latency_ns),
            }
        });
        let bounds: Vec<ModeBound> = bounds.collect();
        let changes = modes.changes().iter().map(|&(from, to)| {
            let (from, to) = (&bounds[from as usize], &bounds[to as usize]);
            ChangeBound {
                from: from.name.clone(),
                to: to.name.clone(),
                latency_ns: from.latency_ns.saturating_add(to.latency_ns),
            }
        });
        let worst = changes.max_by_key(|change| change.latency_ns);
        Self {
            worst,
            worst_loss: worst_loss(modes),
            modes: bounds,
        }
    }

    /// The longest period of all modes on the whole machine.
    pub fn period_ns(&self) -> u64 {
        let periods = self.modes.iter().map(|mode| mode.period_ns);
        periods.max().unwrap_or(0)
    }

    /// The worst of all, in a line, and one more for losses if there are contingencies.
    pub fn describe_worst(&self) -> String {
        let mut lines = format!(
            "over all modes: period at most {}",
            text::duration(self.period_ns())
        );
        if let Some(worst) = &self.worst {
            lines += &format!(
                ", latency at most {} (first block after {} -> {})",
                text::duration(worst.latency_ns),
                worst.from,
                worst.to
            );
        }
        if let Some(loss) = &self.worst_loss {
            lines += &format!(
                "\nover all modes and losses: period at most {} ({} without {})",
                text::duration(loss.period_ns),
                loss.mode,
                loss.lost
            );
        }
        lines
    }
}

fn worst_loss(modes: &VerifiedModes) -> Option<LossBound> {
    let mut worst: Option<LossBound> = None;
    for (name, program) in modes.names().iter().zip(modes.programs()) {
        let table = &program.contingencies;
        for entry in &table.list {
            let period_ns = program.plans[entry.main].period_ns;
            if worst
                .as_ref()
                .is_some_and(|known| known.period_ns >= period_ns)
            {
                continue;
            }
            worst = Some(LossBound {
                mode: name.clone(),
                lost: text::loss(&program.machine, &table.kinds, &entry.lost),
                period_ns,
            });
        }
    }
    worst
}

impl fmt::Display for ModeBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mode in &self.modes {
            let ModeBound {
                name,
                block,
                period_ns,
                latency_ns,
            } = mode;
            writeln!(
                f,
                "mode {name}: {block} iterations a block, period {}, latency {}",
                text::duration(*period_ns),
                text::duration(*latency_ns)
            )?;
        }
        f.write_str(&self.describe_worst())
    }
}
