//! The modes of a bundle as people look at them: which change into which, what each costs, and the worst of all.

use serde::Serialize;
use zbmd_ir::text::{self, Table, duration, left, right};
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{ModeBounds, Plan, Program};

use super::text::{clip_line, fit_table};

/// All modes of a bundle. Those called `mode` are positions in `list`, counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModesView {
    /// The modes; a run begins with the first.
    pub list: Vec<ModeView>,
    /// From which mode to which other a run may go.
    pub changes: Vec<(u32, u32)>,
    /// The mode that everything else in the view is about.
    pub shown: u32,
    /// Planned times of each mode, and the worst of all.
    pub bounds: ModeBounds,
}

/// One mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModeView {
    /// Its name.
    pub name: String,
    /// Actors of its graph.
    pub actors: u32,
    /// Its plans on the whole machine and without some devices, the whole machine's first. Tails are left out.
    pub plans: Vec<ModePlan>,
}

/// What a plan of a mode costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModePlan {
    /// The loss that it is for, in words; empty for the whole machine.
    pub lost: String,
    /// Its number among the plans of its mode.
    pub plan: u32,
    /// Iterations in a block.
    pub block: u64,
    /// Predicted time from block to block.
    pub period_ns: u64,
    /// Predicted time from a block's input to its output.
    pub latency_ns: u64,
    /// What limits the period.
    pub bound_by: String,
    /// Memory of all devices for it.
    pub memory_bytes: u64,
}

impl ModesView {
    /// Looks at verified modes; `None` for a program that has none. O(plans + changes).
    pub fn of(modes: &VerifiedModes, shown: usize) -> Option<Self> {
        if !modes.has_modes() {
            return None;
        }

        let programs = modes.names().iter().zip(modes.programs());
        let list: Vec<ModeView> = programs
            .map(|(name, program)| ModeView {
                name: name.clone(),
                actors: program.graph.actors.len() as u32,
                plans: mode_plans(program),
            })
            .collect();
        Some(Self {
            bounds: ModeBounds::of(modes),
            changes: modes.changes().to_vec(),
            shown: shown as u32,
            list,
        })
    }

    /// The automaton, what every plan costs, and the worst of all, in `width` columns.
    pub fn describe(&self, width: usize) -> String {
        let mut table = Table::default();
        for (index, mode) in self.list.iter().enumerate() {
            for (position, plan) in mode.plans.iter().enumerate() {
                let name = match (position, index) {
                    (0, 0) => format!("mode {} (initial)", mode.name),
                    (0, _) => format!("mode {}", mode.name),
                    _ => format!("  without {}", plan.lost),
                };
                let row = vec![
                    left(name),
                    left(format!("plan {}", plan.plan)),
                    right(format!("blocks of {}", plan.block)),
                    right(format!("period {}", duration(plan.period_ns))),
                    right(format!("latency {}", duration(plan.latency_ns))),
                    right(format!("memory {}", text::bytes(plan.memory_bytes))),
                    left(format!("bound by {}", plan.bound_by)),
                ];
                table.row(0, row);
            }
        }
        let mut lines = fit_table(&table, width);
        for index in 0..self.list.len() {
            let targets = self.targets(index as u32).join(", ");
            let shown_targets = if targets.is_empty() {
                "no other".to_owned()
            } else {
                targets
            };
            lines += &clip_line(
                &format!("{} -> {shown_targets}", self.list[index].name),
                width,
            );
        }
        for line in self.bounds.describe_worst().lines() {
            lines += &clip_line(line, width);
        }
        lines
            + &clip_line(
                &format!("shown below: mode {}", self.name(self.shown)),
                width,
            )
    }

    /// Names of the modes that may follow one.
    fn targets(&self, mode: u32) -> Vec<&str> {
        let changes = self.changes.iter().filter(|(from, _)| *from == mode);
        changes.map(|(_, to)| self.name(*to)).collect()
    }

    fn name(&self, mode: u32) -> &str {
        &self.list[mode as usize].name
    }
}

fn mode_plans(program: &Program) -> Vec<ModePlan> {
    let table = &program.contingencies;
    let main = program.plans.iter_enumerated().take(1);
    let main = main.map(|(id, plan)| mode_plan(String::new(), id.0, plan));
    let lost = table.list.iter().map(|entry| {
        let lost = text::loss(&program.machine, table, &entry.lost);
        mode_plan(lost, entry.main.0, &program.plans[entry.main])
    });
    main.chain(lost).collect()
}

fn mode_plan(lost: String, number: u32, plan: &Plan) -> ModePlan {
    let calendars = plan.calendars.iter();
    let memory = calendars.map(|c| c.arena_bytes.saturating_add(c.exchange_bytes));
    ModePlan {
        lost,
        plan: number,
        block: plan.block,
        period_ns: plan.period_ns,
        latency_ns: plan.latency_ns,
        bound_by: plan.bound_by.clone(),
        memory_bytes: memory.fold(0, u64::saturating_add),
    }
}
