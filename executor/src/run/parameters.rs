//! Live parameters of a run: who sets them, and the ledger of what was set.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbmd_ir::{
    ActorId, ChangePosition, LiveParameter, ParameterChange, State, fold_changes, insert_change,
    state,
};

use super::control::{CurrentEpoch, RunControl};
use crate::error::{EngineError, SetError};
use crate::live_program::NumbersByParameter;
use crate::options::RunOptions;
use crate::program::{LoadedModes, LoadedProgram};
use crate::transport::change_queue::{CAPACITY, Decision, Values, WantedPosition};
use crate::transport::primitive::Ordering;

/// Changes that are not settled, at most: each may need kernels of its own.
const MAX_PENDING: usize = 1024;
/// Settled changes are looked for when there are so many.
const FOLDED_FROM: usize = 64;

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

/// A change that the workers have been told of.
struct Published {
    position: ChangePosition,
    /// Its number in the journal of a run under a council.
    #[cfg(hosts)]
    number: Option<u64>,
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
    /// being handled it waits for the end of that. In a run under a council it waits for the council too: whoever takes the
    /// run over makes the same change.
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
            let values = numbered_values(&loaded.live.parameters, values)?;
            // Not under the locks: kernels, and which tokens firings need, may take a while to make.
            prepare_kernels(&loaded, numbers_before, &values)?;
            if let When::Token { source, .. } = when {
                loaded.dependence(source_named(&loaded, source)?);
            }
            if let Some(published) = self.publish(&loaded, values, when)? {
                return self.wait_for_council(published);
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
    ) -> Result<Option<Published>, SetError> {
        let mut ledger = self.control.ledger();
        let is_over = self.control.is_over() || self.control.is_finishing();
        let current = self.control.current();
        let current = current.as_ref().filter(|_| !is_over);
        let current = current.ok_or(SetError::Ended)?;
        if !Arc::ptr_eq(&current.loaded, loaded) {
            return Ok(None);
        }
        ledger.forget_settled(current);
        if ledger.changes.len() >= MAX_PENDING {
            return Err(SetError::Pending { limit: MAX_PENDING });
        }
        #[cfg(hosts)]
        let journal = self.control.journal.get();
        #[cfg(hosts)]
        if let Some(journal) = journal {
            journal.check_room(&values)?;
        }
        let position = current.publish(&values, when, ledger.decided_iterations)?;
        let change = ParameterChange { position, values };
        if let Some(listener) = &self.control.inputs {
            listener.change(ledger.made, &change);
        }
        #[cfg(hosts)]
        let number = journal.map(|journal| journal.enter(&change));
        ledger.add(current, change);
        Ok(Some(Published {
            position,
            #[cfg(hosts)]
            number,
        }))
    }

    /// Waits until a change is decided, where a council decides: then whoever takes the run over makes it too.
    fn wait_for_council(&self, published: Published) -> Result<ChangePosition, SetError> {
        #[cfg(hosts)]
        if let (Some(number), Some(journal)) = (published.number, self.control.journal.get())
            && !journal.wait_for(number)
        {
            return Err(SetError::Ended);
        }
        Ok(published.position)
    }

    /// Up to which iteration of the run all changes are known, of modes too if [`crate::RunOptions::inputs`] is told of
    /// them: whatever is changed from now on takes effect there or later. It never decreases. `None` where nothing can
    /// change.
    pub fn decided_iterations(&self) -> Option<u64> {
        let ledger = self.control.ledger();
        let current = self.control.current();
        let current = current.as_ref()?;
        let has_changes = current.spec.live.is_some() || self.control.has_modes;
        has_changes.then(|| current.granted_iterations().max(ledger.decided_iterations))
    }

    /// The live parameters, by name, with the values that were set last.
    pub fn values(&self) -> Vec<ParameterValue> {
        let numbers = self.control.ledger().newest_numbers();
        let current = self.control.current();
        let live = current.as_ref().map(|epoch| &epoch.loaded.live);
        let parameters = live.map_or_else(Vec::new, |live| live.parameters.clone());
        let with_numbers = (0u32..).zip(parameters).map(|(index, parameter)| {
            let numbers = numbers.get(&index).unwrap_or(&parameter.initial).clone();
            ParameterValue { parameter, numbers }
        });
        with_numbers.collect()
    }
}

/// The values by the index of their parameter.
pub(super) fn numbered_values(
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

/// Whether all actors take the values, with what the other parameters are. The kernels are ready for the workers then.
pub(super) fn prepare_kernels(
    loaded: &LoadedProgram,
    numbers_before: NumbersByParameter,
    values: &Values,
) -> Result<(), SetError> {
    let mut numbers = numbers_before;
    numbers.extend(values.iter().cloned());
    let graph = &loaded.program.graph;
    for id in loaded.live.read_by.keys().copied() {
        let actor = &graph.actors[id];
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
            let kernel = loaded.prepare_kernel(id, variant, &numbers);
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

/// The source of that name.
fn source_named(loaded: &LoadedProgram, name: &str) -> Result<ActorId, SetError> {
    let graph = &loaded.program.graph;
    let mut sources = graph.sources();
    let found = sources.find(|(_, actor)| actor.name == name);
    let (id, _) = found.ok_or_else(|| SetError::Source {
        name: name.to_owned(),
        known: graph.sources().map(|(_, a)| a.name.clone()).collect(),
    })?;
    Ok(id)
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
    /// Iterations of the run up to the last block that was granted.
    pub(super) fn granted_iterations(&self) -> u64 {
        let plan = &self.loaded.program.plans[self.spec.plan];
        let granted = self.memory.common.grants.granted().min(self.spec.limit);
        self.first_iteration + granted * plan.block
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
                let in_epoch = self.source_in_epoch(source, &start.consumed)?;
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

    fn source_in_epoch(
        &self,
        name: &str,
        consumed: &[(ActorId, u64)],
    ) -> Result<EpochSource, SetError> {
        let id = source_named(&self.loaded, name)?;
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

    /// Blocks of the epoch that no run goes back to: those before its last committed border or, where borders are not
    /// saved, those that all workers have done.
    fn settled_blocks(&self) -> u64 {
        if self.spec.saves.is_some() {
            return self.memory.common.committed.border();
        }
        let plan = &self.loaded.program.plans[self.spec.plan];
        let periods = self.memory.statuses.iter();
        let periods = periods.map(|status| status.periods.load(Ordering::Acquire));
        let done = periods.min().unwrap_or(0);
        (done + 1).saturating_sub(plan.stages.into())
    }

    /// How many changes all workers have taken that have anything to change.
    fn least_taken(&self, published: u64) -> u64 {
        let plan = &self.loaded.program.plans[self.spec.plan];
        let live_actors = self.loaded.live.read_by.keys();
        let devices: BTreeSet<_> = live_actors.map(|id| plan.placement[*id]).collect();
        let calendars = plan.calendars.iter().zip(self.memory.statuses.iter());
        let taken = calendars
            .filter(|(calendar, _)| devices.contains(&calendar.device))
            .map(|(_, status)| status.changes_taken.load(Ordering::Acquire));
        taken.min().unwrap_or(published)
    }
}

/// A step of a run from one program to the next, which the ledger has yet to follow.
#[derive(Clone)]
pub(super) struct ProgramStep {
    pub(super) from: Arc<LoadedProgram>,
    pub(super) to: Arc<LoadedProgram>,
    /// The mode that the run goes over to; `None` where another program takes the place of the old one.
    pub(super) mode: Option<u32>,
    /// Changes that are known to be made after it.
    pub(super) changes: Vec<ParameterChange>,
}

impl ProgramStep {
    /// How many changes it is, by the numbers of [`crate::InputListener`].
    fn change_count(&self) -> u64 {
        self.mode.map_or(0, |_| 1 + self.changes.len() as u64)
    }
}

/// What was set in a run, as far as it still matters.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParameterLedger {
    /// In the order in which they hold.
    changes: Vec<ParameterChange>,
    /// How many were made in this session, changes of modes included.
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

    /// Values wait for a mode that has their parameters.
    pub(super) fn keep_waiting(&mut self, waiting: &BTreeMap<String, Vec<f64>>) {
        self.absent = waiting.clone();
    }

    /// What was set of parameters that the present mode does not have, by name.
    pub(super) fn waiting(&self) -> &BTreeMap<String, Vec<f64>> {
        &self.absent
    }

    /// Up to which iteration of the run earlier epochs have decided all changes.
    pub(super) fn decided_iterations(&self) -> u64 {
        self.decided_iterations
    }

    /// How many changes were made in this session, of modes too.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }

    /// What was set, in the order in which it holds.
    pub(super) fn changes(&self) -> &[ParameterChange] {
        &self.changes
    }

    /// The epoch at work ends, and was granted so many iterations of the run.
    pub(super) fn leave_epoch(&mut self, granted_iterations: u64) {
        self.decided_iterations = self.decided_iterations.max(granted_iterations);
    }

    /// Makes one change of those that every run that goes on from here has in effect, once there are many.
    fn forget_settled(&mut self, current: &CurrentEpoch) {
        let Some(start) = current.spec.live.as_ref() else {
            return;
        };
        if self.changes.len() < FOLDED_FROM {
            return;
        }
        let plan = &current.loaded.program.plans[current.spec.plan];
        let iterations = current.settled_blocks() * plan.block;
        let consumed: Vec<(ActorId, u64)> = start
            .consumed
            .iter()
            .map(|(id, tokens)| {
                let since_start = iterations * current.loaded.tokens_per_iteration(*id);
                (*id, tokens + since_start)
            })
            .collect();
        let iterations = start.iterations + iterations;
        fold_settled(&mut self.changes, &current.loaded, iterations, &consumed);
    }

    fn add(&mut self, current: &CurrentEpoch, change: ParameterChange) {
        self.made += 1;
        let Some(start) = &current.spec.live else {
            return;
        };
        let order = current
            .loaded
            .position_order(start.iterations, &start.consumed);
        insert_change(&mut self.changes, change, &order);
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
        fold_settled(&mut changes, loaded, iterations, consumed);
        changes
    }

    /// The run goes over from one program to another at the border of this state. Values belong to names: they go along, or
    /// wait for a mode that has their parameter.
    pub(super) fn enter_program(&mut self, step: &ProgramStep, state: &State) {
        let (from, to) = (&*step.from, &*step.to);
        self.made += step.change_count();
        let begin_with = self.change_waiting_values(from, to);
        let renumbered = self
            .changes
            .iter()
            .filter_map(|change| renumbered_change(change, from, to));
        let known = step.changes.iter().cloned();
        let changes = begin_with.into_iter().chain(renumbered).chain(known);
        let changes: Vec<ParameterChange> = changes.collect();

        // Of changes ahead another may be the first: iterations are others now.
        let consumed = consumed_in(to, state);
        let order = to.position_order(state.iterations, &consumed);
        self.changes.clear();
        for change in changes {
            insert_change(&mut self.changes, change, &order);
        }
        fold_settled(&mut self.changes, to, state.iterations, &consumed);
    }

    /// Values of parameters that only the old mode has wait from here on; those that waited for the new one are its first
    /// change.
    fn change_waiting_values(
        &mut self,
        from: &LoadedProgram,
        to: &LoadedProgram,
    ) -> Option<ParameterChange> {
        let mut waiting = std::mem::take(&mut self.absent);
        let mut begin_with = BTreeMap::new();
        for (number, parameter) in (0..).zip(&to.live.parameters) {
            if let Some(numbers) = waiting.remove(&parameter.name) {
                begin_with.insert(number, numbers);
            }
        }
        for (number, numbers) in self.newest_numbers() {
            let parameter = from.live.parameters.get(number as usize);
            let left = parameter.filter(|left| to.live.number_of(&left.name).is_none());
            if let Some(left) = left {
                waiting.insert(left.name.clone(), numbers);
            }
        }
        self.absent = waiting;
        (!begin_with.is_empty()).then(|| ParameterChange {
            position: ChangePosition::Iteration(0),
            values: begin_with.into_iter().collect(),
        })
    }

    /// The value that each parameter was given last, if any.
    fn newest_numbers(&self) -> BTreeMap<u32, Vec<f64>> {
        let values = self.changes.iter().flat_map(|change| &change.values);
        values.cloned().collect()
    }
}

/// A change as another mode numbers its parameters and sources; `None` if that has none of the parameters.
fn renumbered_change(
    change: &ParameterChange,
    from: &LoadedProgram,
    to: &LoadedProgram,
) -> Option<ParameterChange> {
    let values = change.values.iter().filter_map(|(number, numbers)| {
        let parameter = from.live.parameters.get(*number as usize)?;
        Some((to.live.number_of(&parameter.name)?, numbers.clone()))
    });
    let values: Values = values.collect();
    let position = match change.position {
        ChangePosition::Iteration(_) => change.position,
        ChangePosition::Token { source, index } => {
            let mut old_sources = from.program.graph.sources();
            let place = old_sources.position(|(id, _)| id == source)?;
            let (source, _) = to.program.graph.sources().nth(place)?;
            ChangePosition::Token { source, index }
        }
    };
    (!values.is_empty()).then_some(ParameterChange { position, values })
}

/// What a state has consumed, by the sources of a mode: all modes have the same ones, in the same order.
pub(super) fn consumed_in(loaded: &LoadedProgram, state: &State) -> Vec<(ActorId, u64)> {
    let sources = loaded.program.graph.sources();
    let counts = sources.zip(&state.consumed);
    counts.map(|((id, _), (_, tokens))| (id, *tokens)).collect()
}

/// Makes one change of those that are in effect at all firings after a border.
fn fold_settled(
    changes: &mut Vec<ParameterChange>,
    loaded: &LoadedProgram,
    iterations: u64,
    consumed: &[(ActorId, u64)],
) {
    let points = loaded.effect_points(iterations, consumed);
    let order = loaded.position_order(iterations, consumed);
    fold_changes(changes, iterations, &order, |change| {
        let mut actors = loaded.live.read_by.keys();
        actors.all(|actor| points.first_firing(*actor, change.position) == 0)
    });
}

/// Whether a run that begins in a mode, at a state of it, can make the changes of mode that are known ahead: modes that
/// the model has and allows, one after the other, and values of live parameters that their ops take.
///
/// # Errors
/// [`EngineError::ScheduledMode`] for the first that it cannot.
pub(super) fn check_scheduled_modes(
    modes: &LoadedModes,
    options: &RunOptions,
    state: &State,
) -> Result<(), EngineError> {
    check_waiting_values(modes, &options.present_mode.waiting)?;
    let mut present = options.present_mode.mode as usize;
    let mut iteration = state.iterations;
    let mut values = options.present_mode.waiting.clone();
    values.extend(named_values(modes.program(present), &state.changes));

    for (index, next) in options.scheduled_modes.iter().enumerate() {
        let refused = |why: String| EngineError::ScheduledMode { index, why };
        let to = modes.get(next.mode).ok_or_else(|| {
            let count = modes.names().len();
            refused(format!("mode {}, counted from 0, of {count}", next.mode))
        })?;
        let target = next.mode as usize;
        if next.iteration < iteration {
            let why = format!("at iteration {}, after {iteration}", next.iteration);
            return Err(refused(why));
        }
        if !modes.allows(present, target) {
            let (from, to) = (&modes.names()[present], &modes.names()[target]);
            let why = format!("the model allows no change from mode `{from}` to `{to}`");
            return Err(refused(why));
        }

        state::check_changes(&next.changes, &to.program.graph)
            .map_err(|error| refused(error.to_string()))?;
        for change in &next.changes {
            let before = numbers_in(to, &values);
            prepare_kernels(to, before, &change.values)
                .map_err(|error| refused(error.to_string()))?;
            values.extend(named_values(to, std::slice::from_ref(change)));
        }
        (present, iteration) = (target, next.iteration);
    }
    Ok(())
}

/// Whether all modes that have the parameters take the values that wait for them.
fn check_waiting_values(
    modes: &LoadedModes,
    waiting: &BTreeMap<String, Vec<f64>>,
) -> Result<(), EngineError> {
    for loaded in modes.iter() {
        let values: Values = numbers_in(loaded, waiting).into_iter().collect();
        for (number, numbers) in &values {
            let parameter = &loaded.live.parameters[*number as usize];
            let checked = parameter.check(numbers);
            checked.map_err(|error| EngineError::Parameters(error.into()))?;
        }
        prepare_kernels(loaded, NumbersByParameter::new(), &values)
            .map_err(EngineError::Parameters)?;
    }
    Ok(())
}

/// The values that changes give to parameters last, by name.
fn named_values<'a>(
    loaded: &'a LoadedProgram,
    changes: &'a [ParameterChange],
) -> impl Iterator<Item = (String, Vec<f64>)> + 'a {
    let values = changes.iter().flat_map(|change| &change.values);
    values.filter_map(|(number, numbers)| {
        let parameter = loaded.live.parameters.get(*number as usize)?;
        Some((parameter.name.clone(), numbers.clone()))
    })
}

/// Values by name as a program numbers its parameters.
fn numbers_in(loaded: &LoadedProgram, values: &BTreeMap<String, Vec<f64>>) -> NumbersByParameter {
    let known = values.iter().filter_map(|(name, numbers)| {
        let number = loaded.live.number_of(name)?;
        Some((number, numbers.clone()))
    });
    known.collect()
}

/// Whether the ops of a program take the values of a state.
///
/// # Errors
/// [`EngineError::Parameters`] if not.
pub(super) fn check_state(loaded: &LoadedProgram, state: &State) -> Result<(), EngineError> {
    let mut numbers = NumbersByParameter::new();
    for change in &state.changes {
        prepare_kernels(loaded, numbers.clone(), &change.values)
            .map_err(EngineError::Parameters)?;
        numbers.extend(change.values.iter().cloned());
    }
    Ok(())
}
