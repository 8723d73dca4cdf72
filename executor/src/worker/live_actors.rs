//! The actors of a CPU device whose parameters change: which kernel runs which of their firings.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbmd_ir::{ActorId, ChangePosition, ParameterChange, PlanId, fold_changes, insert_change};
use zbmd_op::OpError;
use zbmd_op::kernel::Kernel;

use super::instructions::{Instr, KernelFrom, SlotKernels};
use super::replay::CalendarReplay;
use crate::fault::WorkerFault;
use crate::live_program::NumbersByParameter;
use crate::program::LoadedProgram;
use crate::transport::change_queue::{Decision, Values};
use crate::transport::epoch::EpochMemory;
use crate::transport::epoch_spec::LiveStart;
use crate::transport::epoch_state::WorkerStatus;
use crate::transport::primitive::Ordering;

/// A slot that fires an actor with live parameters.
pub(super) struct LiveSlot {
    /// Its instruction.
    pub pc: usize,
    pub actor: ActorId,
    pub stage: u64,
    /// Its first firing in a block; in a loop, what its counter begins at counts instead.
    pub first: u64,
    /// Firings of the actor in a block.
    pub block_firings: u64,
    /// Bytes by which each port moves on with a firing.
    pub steps: Arc<[usize]>,
}

/// The kernels of one actor: which holds from which firing of the epoch on, the first from its start.
struct LiveActor {
    kernels: Vec<(u64, Arc<dyn Kernel>)>,
}

/// What a worker knows of live parameters in an epoch.
pub(super) struct LiveActors {
    loaded: Arc<LoadedProgram>,
    plan: PlanId,
    start: LiveStart,
    /// Iterations of a block.
    block: u64,
    slots: Vec<LiveSlot>,
    actors: BTreeMap<ActorId, LiveActor>,
    /// In the order in which they hold.
    changes: Vec<ParameterChange>,
    /// Changes of the epoch's queue that were taken.
    taken: u64,
    /// Blocks that were admitted when the queue was last looked at.
    admitted: u64,
    /// The next period in which a slot gets another kernel.
    next_period: u64,
}

impl LiveActors {
    /// `None` where nothing changes on the device, whose slots these are.
    ///
    /// # Errors
    /// A kernel that cannot be made with the values that the epoch begins with.
    pub(super) fn new(
        loaded: &Arc<LoadedProgram>,
        plan: PlanId,
        start: Option<&LiveStart>,
        slots: Vec<LiveSlot>,
    ) -> Result<Option<Self>, WorkerFault> {
        let Some(start) = start.filter(|_| !slots.is_empty()) else {
            return Ok(None);
        };
        let mut live = Self {
            block: loaded.program.plans[plan].block,
            loaded: Arc::clone(loaded),
            plan,
            start: start.clone(),
            slots,
            actors: BTreeMap::new(),
            changes: start.changes.clone(),
            taken: 0,
            admitted: 0,
            next_period: 0,
        };
        live.make_kernels()?;
        Ok(Some(live))
    }

    /// Takes the changes that were made since the last block was admitted.
    ///
    /// # Errors
    /// A kernel that cannot be made.
    pub(super) fn take_changes(
        &mut self,
        epoch: &EpochMemory,
        status: &WorkerStatus,
        period: u64,
        admitted: u64,
    ) -> Result<(), WorkerFault> {
        if admitted == self.admitted {
            return Ok(());
        }
        self.admitted = admitted;
        let Some(queue) = &epoch.changes else {
            return Ok(());
        };
        let taken_before = self.taken;
        let mut taken = self.taken;
        let mut found: Vec<(Decision, Values)> = Vec::new();
        queue.take(&mut taken, &epoch.common.grants, |decision, values| {
            found.push((decision, values));
        });
        self.taken = taken;
        for (decision, values) in found {
            self.add(decision, values);
        }
        if self.taken > taken_before {
            self.fold_changes(period);
            self.make_kernels()?;
            self.next_period = 0;
            status.changes_taken.store(self.taken, Ordering::Release);
        }
        Ok(())
    }

    /// Changes parameters with the block of this period, which nobody has begun.
    ///
    /// # Errors
    /// A kernel that cannot be made.
    pub(super) fn change(&mut self, period: u64, values: Values) -> Result<(), WorkerFault> {
        self.add(Decision::Block(period), values);
        self.fold_changes(period);
        self.make_kernels()?;
        self.next_period = 0;
        Ok(())
    }

    fn add(&mut self, decision: Decision, values: Values) {
        let position = match decision {
            Decision::TooLate => return,
            Decision::Token { source, index } => ChangePosition::Token { source, index },
            Decision::Block(block) => {
                ChangePosition::Iteration(self.start.iterations + block * self.block)
            }
        };
        let change = ParameterChange { position, values };
        let LiveStart {
            iterations,
            consumed,
            ..
        } = &self.start;
        let order = self.loaded.position_order(*iterations, consumed);
        insert_change(&mut self.changes, change, &order);
    }

    /// Keeps one change of those that are in effect at all firings from this period on.
    fn fold_changes(&mut self, period: u64) {
        let LiveStart {
            iterations,
            consumed,
            ..
        } = &self.start;
        let points = self.loaded.effect_points(*iterations, consumed);
        // What is set from now on takes effect with a block that nobody has begun.
        let begun_iterations = iterations + period * self.block;
        let order = self.loaded.position_order(*iterations, consumed);
        let slots = &self.slots;
        let changes = &mut self.changes;
        fold_changes(changes, begun_iterations, &order, |change| {
            slots.iter().all(|slot| {
                let done = period.saturating_sub(slot.stage) * slot.block_firings;
                points.first_firing(slot.actor, change.position) <= done
            })
        });
    }

    /// Makes the kernels that the changes ask for.
    fn make_kernels(&mut self) -> Result<(), WorkerFault> {
        let graph = &self.loaded.program.graph;
        let points = self
            .loaded
            .effect_points(self.start.iterations, &self.start.consumed);
        let mut actors = BTreeMap::new();
        for id in self.slots.iter().map(|slot| slot.actor) {
            if actors.contains_key(&id) {
                continue;
            }
            let changes = self.changes.iter();
            let effects: Vec<(u64, &Values)> = changes
                .map(|change| (points.first_firing(id, change.position), &change.values))
                .collect();
            let mut firings: Vec<u64> = effects.iter().map(|(firing, _)| *firing).collect();
            firings.push(0);
            firings.sort_unstable();
            firings.dedup();

            let mut kernels = Vec::new();
            for firing in firings {
                let mut values = NumbersByParameter::new();
                for (_, changed) in effects.iter().filter(|(from, _)| *from <= firing) {
                    for (parameter, numbers) in *changed {
                        values.insert(*parameter, numbers.clone());
                    }
                }
                let kernel = self.kernel(id, &values).map_err(|error| {
                    let name = &graph.actors[id].name;
                    WorkerFault::Kernel(format!("`{name}` cannot have its values: {error}"))
                })?;
                kernels.push((firing, kernel));
            }
            actors.insert(id, LiveActor { kernels });
        }
        self.actors = actors;
        Ok(())
    }

    fn kernel(&self, id: ActorId, values: &NumbersByParameter) -> Result<Arc<dyn Kernel>, OpError> {
        let plan = &self.loaded.program.plans[self.plan];
        self.loaded.kernel_with(id, plan.variant(id), values)
    }

    /// Gives the slots the kernels for the blocks that they are at in this period.
    #[inline]
    pub(super) fn prepare_period(&mut self, period: u64, replay: &mut CalendarReplay) {
        if period < self.next_period {
            return;
        }
        self.change_kernels(period, replay);
    }

    #[cold]
    fn change_kernels(&mut self, period: u64, replay: &mut CalendarReplay) {
        replay.state.splits.clear();
        let mut next_period = u64::MAX;
        for slot in &self.slots {
            let kernels = &self.actors[&slot.actor].kernels;
            // Of the first block, while the slot has none yet.
            let block = period.saturating_sub(slot.stage);
            let first = block * slot.block_firings;
            let end = first + slot.block_firings;

            let held = kernels.partition_point(|(from, _)| *from <= first) - 1;
            let pointer = Arc::as_ptr(&kernels[held].1);
            match &mut replay.code.instrs[slot.pc] {
                Instr::Fire { kernel, .. }
                | Instr::LoopFire { kernel, .. }
                | Instr::ChunkFire { kernel, .. } => *kernel = pointer,
                _ => unreachable!("a live slot fires"),
            }
            let Some((from, _)) = kernels.get(held + 1) else {
                continue;
            };
            if *from >= end {
                let period_of_block = slot.stage + from / slot.block_firings;
                next_period = next_period.min(period_of_block);
                continue;
            }

            // It changes within the block: the slot is called in parts, and in the next period it is looked at again.
            let in_block = kernels[held..].iter().take_while(|(from, _)| *from < end);
            let kernels = in_block.map(|(from, kernel)| KernelFrom {
                firing: from.saturating_sub(first),
                kernel: Arc::as_ptr(kernel),
            });
            replay.state.splits.push(SlotKernels {
                pc: slot.pc,
                first: slot.first,
                kernels: kernels.collect(),
                steps: Arc::clone(&slot.steps),
            });
            next_period = next_period.min(period + 1);
        }
        self.next_period = next_period;
    }
}
