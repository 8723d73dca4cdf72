//! What a worker does that is at a certain instruction, for whoever watches it: the tables of a plan's calendars.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbmd_ir::{Calendar, PlanId};

use super::fetched_weights::FetchedWeights;
use super::gpu;
use super::instructions::Instr;
use super::lower::lower;
use super::memory::WorkerMemory;
use super::planned_step::PlannedStep;
use crate::program::LoadedProgram;
use crate::transport::epoch::EpochMemory;

/// The instructions of a calendar.
pub(crate) struct StepTable(pub(super) Vec<PlannedStep>);

impl StepTable {
    /// What the worker does that is at this instruction. Outside of all it waits for admission.
    pub(crate) fn step_at(&self, pc: u32) -> PlannedStep {
        let admission = PlannedStep {
            planned_ns: 0,
            may_wait: true,
        };
        self.0.get(pc as usize).copied().unwrap_or(admission)
    }
}

/// The tables of a plan's calendars, as the workers of this epoch lower them.
pub(crate) fn step_tables(
    loaded: &LoadedProgram,
    plan: PlanId,
    epoch: &Arc<EpochMemory>,
) -> Vec<StepTable> {
    let calendars = loaded.program.plans[plan].calendars.iter();
    calendars
        .map(|calendar| step_table(loaded, plan, calendar, epoch))
        .collect()
}

fn step_table(
    loaded: &LoadedProgram,
    plan: PlanId,
    calendar: &Calendar,
    epoch: &Arc<EpochMemory>,
) -> StepTable {
    if loaded.is_gpu(calendar.device) {
        let plan = &loaded.program.plans[plan];
        return StepTable(gpu::planned_steps(plan, calendar));
    }
    let Ok(memory) = WorkerMemory::sketch(calendar, epoch) else {
        return StepTable(Vec::new());
    };
    let lowered = lower(
        loaded,
        plan,
        calendar,
        &memory,
        &BTreeMap::new(),
        FetchedWeights::numbered(calendar),
    );
    let steps = lowered.slots.iter().zip(&lowered.replay.code.instrs);
    StepTable(
        steps
            .map(|(slot, instr)| PlannedStep {
                planned_ns: slot.as_ref().map_or(0, |slot| slot.duration_ns),
                may_wait: may_wait(instr),
            })
            .collect(),
    )
}

/// Whether an instruction waits for others.
pub(super) fn may_wait(instr: &Instr) -> bool {
    !matches!(
        instr,
        Instr::Fire { .. }
            | Instr::LoopFire { .. }
            | Instr::ChunkFire { .. }
            | Instr::Mark { .. }
            | Instr::Carry { .. }
    )
}
