//! Live parameters of a run: who sets them, and the ledger of what was set.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbmd_ir::{
    ActorId, ChangePosition, EffectPoints, LiveParameter, ParameterChange, State, fold_changes,
    has_live, insert_change, live_parameters,
};

use super::control::{CurrentEpoch, RunControl};
use crate::error::{EngineError, SetError};
use crate::program::LoadedProgram;
use crate::transport::change_queue::{CAPACITY, Decision, Values, WantedPosition};
use crate::transport::primitive::Ordering;

/// When a change is to take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When<'a> {
    /// With the next block that no worker can have begun.
    NextBlock,
    /// With the first firing of each actor that needs this token of a source, or a later one. Tokens are counted from the
    /// start of the run.
    Token {
        /// The source.
        source: &'a str,
        /// The token.
        index: u64,
    },
}

/// A live parameter and the value that it was given last, which may not be in effect yet.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterValue {
    /// What it is.
    pub parameter: LiveParameter,
    /// One number, or those of a list.
    pub numbers: Vec<f64>,
}

/// Sets the live parameters of a run, from any thread.
#[derive(Clone)]
pub struct ParameterHandle {
    pub(super) control: Arc<RunControl>,
}

impl std::fmt::Debug for ParameterHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParameterHandle").finish_non_exhaustive()
    }
}

impl ParameterHandle {
    /// Sets parameters by name, all from the same position on, or none. Returns when it is decided where that is: what was
    /// set is an input of the run from then on, and whatever is lost, it takes effect at the same firings. While a loss is
    /// being handled it waits for the end of that.
    ///
    /// # Errors
    /// See [`SetError`].
    pub fn set(
        &self,
        values: &[(&str, &[f64])],
        when: When<'_>,
    ) -> Result<ChangePosition, SetError> {
        loop {
            let (loaded, numbers_before) = {
                let ledger = self.control.ledger();
                let current = self.control.current();
                let current = current.as_ref().ok_or(SetError::Ended)?;
                (Arc::clone(&current.loaded), ledger.newest_numbers())
            };
            let parameters = live_parameters(&loaded.program.graph);
            let values = numbered_values(&parameters, values)?;
            // Not under the locks: kernels may take a while to make.
            check_kernels(&loaded, &parameters, numbers_before, &values)?;
            if let Some(position) = self.publish(&loaded, values, when)? {
                return Ok(position);
            }
        }
    }

    /// Publishes values that were checked for a program; `None` if the run has gone over to another one meanwhile, in which
    /// parameters have other numbers.
    fn publish(
        &self,
        loaded: &Arc<LoadedProgram>,
        values: Values,
        when: When<'_>,
    ) -> Result<Option<ChangePosition>, SetError> {
        let mut ledger = self.control.ledger();
        let is_over = self.control.is_over() || self.control.is_finishing();
        let current = self.control.current();
        let current = current.as_ref().filter(|_| !is_over);
        let current = current.ok_or(SetError::Ended)?;
        if !Arc::ptr_eq(&current.loaded, loaded) {
            return Ok(None);
        }
        let position = current.publish(&values, when, ledger.decided_iterations)?;
        let change = ParameterChange { position, values };
        if let Some(listener) = &self.control.inputs {
            listener.change(ledger.made, &change);
        }
        ledger.add(&current.loaded, change);
        Ok(Some(position))
    }

    /// Up to which iteration of the run all changes are known: whatever is set from now on takes effect there or later.
    /// It never decreases. `None` for a program without live parameters.
    pub fn decided_iterations(&self) -> Option<u64> {
        let ledger = self.control.ledger();
        let current = self.control.current();
        let granted = current.as_ref()?.granted_iterations()?;
        Some(granted.max(ledger.decided_iterations))
    }

    /// The live parameters, by name, with the values that were set last.
    pub fn values(&self) -> Vec<ParameterValue> {
        let numbers = self.control.ledger().newest_numbers();
        let current = self.control.current();
        let graph = current.as_ref().map(|epoch| &epoch.loaded.program.graph);
        let parameters = graph.map_or_else(Vec::new, live_parameters);
        let with_numbers = (0u32..).zip(parameters).map(|(index, parameter)| {
            let numbers = numbers.get(&index).unwrap_or(&parameter.initial).clone();
            ParameterValue { parameter, numbers }
        });
        with_numbers.collect()
    }
}

/// The values by the index of their parameter.
fn numbered_values(
    parameters: &[LiveParameter],
    values: &[(&str, &[f64])],
) -> Result<Values, SetError> {
    let mut numbered = BTreeMap::new();
    for (name, numbers) in values {
        let index = parameters.iter().position(|known| known.name == *name);
        let index = index.ok_or_else(|| SetError::Unknown {
            name: (*name).to_owned(),
            known: parameters.iter().map(|known| known.name.clone()).collect(),
        })?;
        parameters[index].check(numbers)?;
        if numbered.insert(index as u32, numbers.to_vec()).is_some() {
            return Err(SetError::Twice {
                name: (*name).to_owned(),
            });
        }
    }
    Ok(numbered.into_iter().collect())
}

/// Whether all actors take the values, with what the other parameters are.
fn check_kernels(
    loaded: &LoadedProgram,
    parameters: &[LiveParameter],
    numbers_before: BTreeMap<u32, Vec<f64>>,
    values: &Values,
) -> Result<(), SetError> {
    let mut numbers = numbers_before;
    numbers.extend(values.iter().cloned());
    let graph = &loaded.program.graph;
    for (id, actor) in graph.actors.iter_enumerated() {
        if !has_live(actor) {
            continue;
        }
        // Plans may run it by other variants, with other scratch memory.
        let mut planned_by_variant: BTreeMap<Option<&str>, u64> = BTreeMap::new();
        for plan in &loaded.program.plans {
            let device = plan.placement[id];
            let mut calendars = plan.calendars.iter();
            let calendar = calendars.find(|calendar| calendar.device == device);
            let planned = calendar.map_or(0, |calendar| calendar.scratch_bytes);
            let least = planned_by_variant
                .entry(plan.variant(id))
                .or_insert(planned);
            *least = planned.min(*least);
        }
        for (variant, planned) in planned_by_variant {
            let kernel = loaded.kernel_with(id, variant, parameters, &numbers);
            let kernel = kernel.map_err(|why| SetError::Op {
                actor: actor.name.clone(),
                why,
            })?;
            let needed = kernel.scratch_bytes() as u64;
            if needed > planned {
                return Err(SetError::Scratch {
                    actor: actor.name.clone(),
                    needed,
                    planned,
                });
            }
        }
    }
    Ok(())
}

/// A source in the epoch at work.
#[derive(Clone, Copy)]
struct EpochSource {
    id: ActorId,
    /// Tokens before the epoch, and of one block.
    before: u64,
    block_tokens: u64,
}

impl CurrentEpoch {
    /// Iterations of the run up to the last block that was granted; `None` without live parameters.
    pub(super) fn granted_iterations(&self) -> Option<u64> {
        let start = self.spec.live.as_ref()?;
        let plan = &self.loaded.program.plans[self.spec.plan];
        let granted = self.memory.common.grants.granted().min(self.spec.limit);
        Some(start.iterations + granted * plan.block)
    }

    /// Publishes a change to the workers, not before so many iterations of the run; where it takes effect.
    fn publish(
        &self,
        values: &Values,
        when: When<'_>,
        decided_iterations: u64,
    ) -> Result<ChangePosition, SetError> {
        let (Some(queue), Some(start)) = (&self.memory.changes, &self.spec.live) else {
            return Err(SetError::Ended);
        };
        let plan = &self.loaded.program.plans[self.spec.plan];
        let grants = &self.memory.common.grants;
        let undecided = decided_iterations.saturating_sub(start.iterations);
        let first_block = undecided.div_ceil(plan.block);
        let (wanted, too_late) = match when {
            When::NextBlock => (WantedPosition::Border { first_block }, None),
            When::Token { source, index } => {
                let in_epoch = self.source_named(source, &start.consumed)?;
                let next_block = grants.granted().max(first_block);
                let next = in_epoch.before + next_block * in_epoch.block_tokens;
                let too_late = SetError::TooLate {
                    source_name: source.to_owned(),
                    index,
                    next,
                };
                let since_start = index.checked_sub(in_epoch.before);
                let block = since_start.map(|tokens| tokens / in_epoch.block_tokens);
                let Some(block) = block.filter(|block| *block >= first_block) else {
                    return Err(too_late);
                };
                let wanted = WantedPosition::Token {
                    source: in_epoch.id,
                    index,
                    block,
                };
                (wanted, Some(too_late))
            }
        };

        let published = queue.published();
        if published - self.least_taken(published) >= CAPACITY {
            return Err(SetError::Full);
        }
        match queue.publish(wanted, values, grants) {
            Decision::Block(block) => {
                let iteration = start.iterations + block * plan.block;
                Ok(ChangePosition::Iteration(iteration))
            }
            Decision::Token { source, index } => Ok(ChangePosition::Token { source, index }),
            Decision::TooLate => Err(too_late.unwrap_or(SetError::Ended)),
        }
    }

    fn source_named(
        &self,
        name: &str,
        consumed: &[(ActorId, u64)],
    ) -> Result<EpochSource, SetError> {
        let graph = &self.loaded.program.graph;
        let mut sources = graph.sources();
        let found = sources.find(|(_, actor)| actor.name == name);
        let (id, _) = found.ok_or_else(|| SetError::Source {
            name: name.to_owned(),
            known: graph
                .sources()
                .map(|(_, actor)| actor.name.clone())
                .collect(),
        })?;
        let mut counts = consumed.iter();
        let plan = &self.loaded.program.plans[self.spec.plan];
        Ok(EpochSource {
            id,
            before: counts
                .find(|(known, _)| *known == id)
                .map_or(0, |(_, n)| *n),
            block_tokens: plan.block * self.loaded.tokens_per_iteration(id),
        })
    }

    /// How many changes all workers have taken that have anything to change.
    fn least_taken(&self, published: u64) -> u64 {
        let plan = &self.loaded.program.plans[self.spec.plan];
        let actors = self.loaded.program.graph.actors.iter_enumerated();
        let live_actors = actors.filter(|(_, actor)| has_live(actor));
        let devices: BTreeSet<_> = live_actors.map(|(id, _)| plan.placement[id]).collect();
        let calendars = plan.calendars.iter().zip(self.memory.statuses.iter());
        let taken = calendars
            .filter(|(calendar, _)| devices.contains(&calendar.device))
            .map(|(_, status)| status.changes_taken.load(Ordering::Acquire));
        taken.min().unwrap_or(published)
    }
}

/// What was set in a run, as far as it still matters.
#[derive(Debug, Default)]
pub(crate) struct ParameterLedger {
    /// In the order in which they hold.
    changes: Vec<ParameterChange>,
    /// How many were made in this session.
    made: u64,
    /// Iterations that earlier epochs were granted: they may have given out tokens of them, which come again after a
    /// loss, so that nothing may change there any more.
    decided_iterations: u64,
    /// What was set of parameters that the present mode does not have, by name.
    absent: BTreeMap<String, Vec<f64>>,
}

impl ParameterLedger {
    /// Begins with the changes of a state.
    pub(crate) fn begin(&mut self, changes: &[ParameterChange]) {
        self.changes = changes.to_vec();
    }

    /// How many changes were made in this session.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }

    /// The epoch at work ends, and was granted so many iterations of the run.
    pub(super) fn leave_epoch(&mut self, granted_iterations: u64) {
        self.decided_iterations = self.decided_iterations.max(granted_iterations);
    }

    fn add(&mut self, loaded: &LoadedProgram, change: ParameterChange) {
        self.made += 1;
        insert_change(&mut self.changes, change, &|source| {
            loaded.tokens_per_iteration(source)
        });
    }

    /// The changes that a run needs that goes on from a border of the program.
    pub(crate) fn changes_for_border(
        &self,
        loaded: &LoadedProgram,
        iterations: u64,
        consumed: &[(ActorId, u64)],
    ) -> Vec<ParameterChange> {
        let mut changes = self.changes.clone();
        if changes.len() < 2 {
            return changes;
        }
        let graph = &loaded.program.graph;
        let actors = graph.actors.iter_enumerated();
        let live_actors = actors.filter(|(_, actor)| has_live(actor));
        let live_actors: Vec<ActorId> = live_actors.map(|(id, _)| id).collect();
        let mut points = EffectPoints::from_border(graph, iterations, consumed);
        fold_changes(&mut changes, |change| {
            let mut actors = live_actors.iter();
            actors.all(|actor| points.first_firing(*actor, change.position) == 0)
        });
        changes
    }

    /// The run goes over from one mode to another at the border of this state; the changes that it begins with there. Values
    /// belong to names: they go along, or wait for a mode that has their parameter.
    pub(super) fn enter_mode(
        &mut self,
        from: &LoadedProgram,
        to: &LoadedProgram,
        state: &State,
    ) -> Vec<ParameterChange> {
        let old_parameters = live_parameters(&from.program.graph);
        let new_parameters = live_parameters(&to.program.graph);
        let number_in_new = |name: &str| {
            let place = new_parameters.iter().position(|known| known.name == name);
            place.map(|place| place as u32)
        };
        let new_sources: BTreeMap<ActorId, ActorId> = from
            .program
            .graph
            .sources()
            .map(|(id, _)| id)
            .zip(to.program.graph.sources().map(|(id, _)| id))
            .collect();

        // What only this mode has waits; what waited and is known here comes first.
        let waited = std::mem::take(&mut self.absent);
        for (number, numbers) in self.newest_numbers() {
            if let Some(parameter) = old_parameters.get(number as usize) {
                self.absent.insert(parameter.name.clone(), numbers);
            }
        }
        let mut changes = Vec::new();
        let mut begin_with = BTreeMap::new();
        for (name, numbers) in waited {
            match number_in_new(&name) {
                Some(number) if !old_parameters.iter().any(|p| p.name == name) => {
                    begin_with.insert(number, numbers);
                }
                _ => {
                    self.absent.entry(name).or_insert(numbers);
                }
            }
        }
        self.absent.retain(|name, _| number_in_new(name).is_none());
        if !begin_with.is_empty() {
            changes.push(ParameterChange {
                position: ChangePosition::Iteration(0),
                values: begin_with.into_iter().collect(),
            });
        }

        for change in &self.changes {
            let renamed = change.values.iter().filter_map(|(number, numbers)| {
                let parameter = old_parameters.get(*number as usize)?;
                Some((number_in_new(&parameter.name)?, numbers.clone()))
            });
            let values: Values = renamed.collect();
            let position = match change.position {
                ChangePosition::Token { source, index } => ChangePosition::Token {
                    source: new_sources.get(&source).copied().unwrap_or(source),
                    index,
                },
                at_iteration => at_iteration,
            };
            if !values.is_empty() {
                changes.push(ParameterChange { position, values });
            }
        }
        self.changes = changes;
        self.changes = self.changes_for_border(to, state.iterations, &consumed_in(to, state));
        self.changes.clone()
    }

    /// The value that each parameter was given last, if any.
    fn newest_numbers(&self) -> BTreeMap<u32, Vec<f64>> {
        let values = self.changes.iter().flat_map(|change| &change.values);
        values.cloned().collect()
    }
}

/// What a state has consumed, by the sources of a mode: all modes have the same ones, in the same order.
fn consumed_in(loaded: &LoadedProgram, state: &State) -> Vec<(ActorId, u64)> {
    let sources = loaded.program.graph.sources();
    let counts = sources.zip(&state.consumed);
    counts.map(|((id, _), (_, tokens))| (id, *tokens)).collect()
}

/// Whether the ops of a program take the values of a state.
///
/// # Errors
/// [`EngineError::Parameters`] if not.
pub(super) fn check_state(loaded: &LoadedProgram, state: &State) -> Result<(), EngineError> {
    let parameters = live_parameters(&loaded.program.graph);
    let mut numbers = BTreeMap::new();
    for change in &state.changes {
        check_kernels(loaded, &parameters, numbers.clone(), &change.values)
            .map_err(EngineError::Parameters)?;
        numbers.extend(change.values.iter().cloned());
    }
    Ok(())
}
