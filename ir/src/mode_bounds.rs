//! What modes cost: planned times of each, and the worst over all sequences of changes and all losses.

use std::fmt;

use serde::Serialize;

use crate::self_timed::LegTimes;
use crate::text;
use crate::verify::VerifiedModes;

/// What modes cost, over all sequences of changes that are allowed, if slots take no longer than planned. What it takes the
/// run to go over comes on top.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModeBounds {
    /// For each mode its name, and period and latency of its main plan.
    pub modes: Vec<ModeBound>,
    /// The longest time that a block takes on average, over any sequence of changes that comes back to its first mode: the
    /// longest cycle of modes in relation to its blocks, each of as many blocks as is worst, or the longest period.
    pub mean_ns: u64,
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
    /// From the input of the last block in the old mode to the output of the first in the new one.
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
    /// The bounds of verified modes. A run goes over with an empty pipeline, so what it takes in a mode depends on no other.
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
        let legs = modes.programs().iter().filter_map(|program| {
            let plan = program.plans.first()?;
            Some(LegTimes::of(&program.graph, &program.machine, plan))
        });
        let legs: Vec<LegTimes> = legs.collect();
        let known = legs.len() as u32;
        let changes = modes.changes().iter();
        let changes: Vec<(usize, usize)> = changes
            .filter(|(from, to)| *from < known && *to < known)
            .map(|&(from, to)| (from as usize, to as usize))
            .collect();

        let worst = changes.iter().map(|&(from, to)| ChangeBound {
            from: bounds[from].name.clone(),
            to: bounds[to].name.clone(),
            latency_ns: legs[from].drain_ns.saturating_add(legs[to].first_output_ns),
        });
        Self {
            mean_ns: longest_mean(&legs, &changes, &bounds),
            worst: worst.max_by_key(|change| change.latency_ns),
            worst_loss: worst_loss(modes),
            modes: bounds,
        }
    }

    /// The worst of all: a line for blocks, one for changes if there are any, and one for losses if there are contingencies.
    pub fn describe_worst(&self) -> String {
        let mut lines = format!(
            "over all changes: a block takes at most {} on average",
            text::duration(self.mean_ns)
        );
        if let Some(worst) = &self.worst {
            lines += &format!(
                "\nover all changes: latency at most {} (first block after {} -> {})",
                text::duration(worst.latency_ns),
                worst.from,
                worst.to
            );
        }
        if let Some(loss) = &self.worst_loss {
            lines += &format!(
                "\nover all losses: period at most {} ({} without {})",
                text::duration(loss.period_ns),
                loss.mode,
                loss.lost
            );
        }
        lines
    }
}

/// The longest mean time of a block over cycles of changes, in whole nanoseconds, rounded up: the least r such that no cycle
/// of legs takes longer than r times its blocks.
fn longest_mean(legs: &[LegTimes], changes: &[(usize, usize)], bounds: &[ModeBound]) -> u64 {
    let period = bounds.iter().map(|mode| mode.period_ns).max().unwrap_or(0);
    let longest = legs.iter().flat_map(|leg| &leg.durations_ns).max();
    let (mut low, mut high) = (period, period.max(longest.copied().unwrap_or(0)));
    while low < high {
        let middle = low + (high - low) / 2;
        match has_longer_cycle(legs, changes, middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

/// Whether some cycle of legs takes longer than so much a block (Bellman-Ford).
fn has_longer_cycle(legs: &[LegTimes], changes: &[(usize, usize)], mean_ns: u64) -> bool {
    let excess = |leg: &LegTimes| {
        let durations = (1i128..).zip(&leg.durations_ns);
        let excess = durations
            .map(|(blocks, duration_ns)| i128::from(*duration_ns) - blocks * i128::from(mean_ns));
        excess.max().unwrap_or(0)
    };
    let excesses: Vec<i128> = legs.iter().map(excess).collect();
    let mut most = vec![0i128; legs.len()];
    for _ in 0..=legs.len() {
        let mut has_grown = false;
        for &(from, to) in changes {
            let reached = most[from] + excesses[from];
            if reached > most[to] {
                most[to] = reached;
                has_grown = true;
            }
        }
        if !has_grown {
            return false;
        }
    }
    true
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
                lost: text::loss(&program.machine, table, &entry.lost),
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
