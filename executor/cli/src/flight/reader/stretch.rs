//! Which parts of a recording can be replayed, and what a replay begins with.

use std::collections::BTreeMap;

use zbmd_executor::ScheduledMode;
use zbmd_ir::limits::MAX_CHANGES;
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{ActorId, Graph, PositionOrder, PresentMode, State, insert_change, state};

use super::Recording;
use super::tokens::contiguous_from;
use crate::flight::folder::RecordingError;
use crate::flight::record::{self, NumberedInput, StatePlace};

/// Changes that a replay begins with, at most, beside those that are in its state: the two together are no more than a state
/// may have.
pub(super) const MAX_REPLAYED_CHANGES: u64 = MAX_CHANGES as u64 / 2;
/// Ranges of iterations that people are told.
const MAX_TOLD_RANGES: usize = 8;

/// A part of a recording that can be replayed: from a state to where something is missing, or the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Which state.
    state: usize,
    /// Iterations of the run when it began.
    pub begin: u64,
    /// And when it ends.
    pub end: u64,
    /// It ends where the run ended, in good order.
    pub is_whole: bool,
}

/// What a replay begins with.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayStart {
    /// Where it begins, with the changes of live parameters that were made before the first change of mode.
    pub state: State,
    /// In which mode.
    pub present_mode: PresentMode,
    /// The changes of mode that follow, each with the changes of live parameters before the next.
    pub scheduled_modes: Vec<ScheduledMode>,
}

impl From<State> for ReplayStart {
    /// In the first mode, and no other follows.
    fn from(state: State) -> Self {
        Self {
            state,
            present_mode: PresentMode::default(),
            scheduled_modes: Vec::new(),
        }
    }
}

/// The iterations of a stretch that are in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leg {
    mode: usize,
    begin: u64,
}

impl Recording {
    /// The parts that can be replayed: for each state, how far.
    pub fn stretches(&self) -> Vec<Stretch> {
        let states = 0..self.states.len();
        states.map(|state| self.stretch_of(state)).collect()
    }

    /// The stretch to replay from an iteration on: the one that gets furthest, from its latest state. Without an iteration,
    /// the first that has anything.
    ///
    /// # Errors
    /// Why there is none.
    pub fn stretch(&self, from: Option<u64>) -> Result<Stretch, String> {
        let stretches = self.stretches();
        let Some(from) = from else {
            let mut with_tokens = stretches
                .iter()
                .filter(|stretch| stretch.begin < stretch.end);
            let first = with_tokens.next().or(stretches.first());
            return first
                .copied()
                .ok_or_else(|| "holds no state that a replay can begin at".to_owned());
        };
        let holding = stretches
            .iter()
            .filter(|stretch| (stretch.begin..=stretch.end).contains(&from));
        let best = holding.max_by_key(|stretch| (stretch.end, stretch.begin));
        best.copied().ok_or_else(|| {
            let ranges = self.ranges_text();
            format!("iteration {from} cannot be replayed: the recording has {ranges}")
        })
    }

    /// The ranges of iterations that can be replayed, as people read them.
    pub fn ranges_text(&self) -> String {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for stretch in self.stretches() {
            match ranges.last_mut() {
                Some((_, end)) if stretch.begin <= *end => *end = stretch.end.max(*end),
                _ => ranges.push((stretch.begin, stretch.end)),
            }
        }
        let told = ranges.iter().take(MAX_TOLD_RANGES);
        let mut texts: Vec<String> = told
            .map(|(begin, end)| format!("iterations {begin} to {end}"))
            .collect();
        if ranges.len() > MAX_TOLD_RANGES {
            texts.push(format!(
                "and {} ranges more",
                ranges.len() - MAX_TOLD_RANGES
            ));
        }
        match texts.is_empty() {
            true => "no state".to_owned(),
            false => texts.join(", "),
        }
    }

    fn stretch_of(&self, index: usize) -> Stretch {
        let place = &self.states[index].place;
        let by_tokens = self.end_of_tokens(place);

        let undecided = self.first_undecided(place.changes_made);
        let decided = undecided.unwrap_or(self.decided_iterations);
        let by_end = self.end.filter(|_| undecided.is_none());
        // A padded iteration has fewer tokens than it takes.
        let missing = by_end.map_or(0, |end| end.iterations.saturating_sub(by_tokens));
        let reaches_end = by_end.is_some_and(|end| missing <= u64::from(end.pads));
        let end = match by_end {
            Some(end) if reaches_end => end.iterations,
            Some(end) => by_tokens.min(end.iterations),
            None => by_tokens.min(decided),
        };
        Stretch {
            state: index,
            begin: place.iterations,
            end: end.max(place.iterations),
            is_whole: reaches_end,
        }
    }

    /// The iteration before which a run from a state has all tokens.
    fn end_of_tokens(&self, place: &StatePlace) -> u64 {
        let with_ranges = self.ranges.iter().zip(&place.consumed);
        let mut left: Vec<u64> = with_ranges
            .map(|(ranges, consumed)| contiguous_from(ranges, *consumed))
            .collect();
        let legs = self.legs(place);
        for (index, leg) in legs.iter().enumerate() {
            let per_iteration = &self.head.modes[leg.mode].tokens_per_iteration;
            let by_source = left.iter().zip(per_iteration);
            let by_source = by_source.map(|(tokens, per_iteration)| tokens / per_iteration);
            let iterations = by_source.min().unwrap_or(u64::MAX);
            let next = legs.get(index + 1).map(|next| next.begin - leg.begin);
            match next.filter(|next| *next <= iterations) {
                None => return leg.begin.saturating_add(iterations),
                Some(next) => {
                    for (tokens, per_iteration) in left.iter_mut().zip(per_iteration) {
                        *tokens -= next * per_iteration;
                    }
                }
            }
        }
        place.iterations
    }

    /// The modes of a run from a state on, up to the first change that is missing. The first begins at the state.
    fn legs(&self, place: &StatePlace) -> Vec<Leg> {
        let mut legs = vec![Leg {
            mode: place.mode as usize,
            begin: place.iterations,
        }];
        for (_, input) in self.inputs_after(place) {
            if let NumberedInput::Mode(change) = input {
                legs.push(Leg {
                    mode: change.mode as usize,
                    begin: change.iteration.max(place.iterations),
                });
            }
        }
        legs
    }

    /// The changes that were made after a state, up to the first that is missing or too many.
    fn inputs_after(&self, place: &StatePlace) -> impl Iterator<Item = (u64, &NumberedInput)> {
        let first_number = place.changes_made;
        let end_number = first_number.saturating_add(MAX_REPLAYED_CHANGES);
        let later = self.changes.range(first_number..end_number);
        later
            .zip(first_number..)
            .take_while(|((number, _), next)| *number == next)
            .map(|((number, stored), _)| (*number, &stored.input))
    }

    /// The iteration from which on a replay from a state with so many changes does not have those that take effect, if there
    /// is one: some are missing, or there are too many.
    fn first_undecided(&self, changes_made: u64) -> Option<u64> {
        let holes_before = self
            .change_holes
            .partition_point(|hole| hole.end_number <= changes_made);
        let next_hole = self.change_holes.get(holes_before);
        let by_hole = next_hole.map(|hole| hole.decided_iterations);
        let first_left_out = changes_made.saturating_add(MAX_REPLAYED_CHANGES);
        let by_count = self.changes.range(first_left_out..).next();
        let by_count = by_count.map(|(_, change)| change.decided_iterations);
        by_hole.into_iter().chain(by_count).min()
    }

    /// What a stretch begins with, with all changes that were made later.
    ///
    /// # Errors
    /// A damaged state or one of another graph; changes that the graphs do not allow.
    pub fn start(
        &self,
        stretch: Stretch,
        modes: &VerifiedModes,
    ) -> Result<ReplayStart, RecordingError> {
        let stored = &self.states[stretch.state];
        let file = &self.files[stored.payload.segment];
        let refused = |why: String| RecordingError::Content {
            path: file.path.clone(),
            offset: stored.payload.offset,
            why,
        };
        let payload = stored
            .payload
            .read(file)
            .map_err(|stop| stop.error(file, stored.payload.offset))?;

        let mode = stored.place.mode;
        let Some(program) = modes.programs().get(mode as usize) else {
            return Err(refused(format!("a state of mode {mode}, counted from 0")));
        };
        let graph = &program.graph;
        let start = read_state(&payload, &stored.place, graph).map_err(&refused)?;
        let start = self.with_later_changes(start, &stored.place, graph);
        state::check(&start.state, graph).map_err(|error| refused(error.to_string()))?;
        Ok(start)
    }

    /// Adds the changes that were made after a state: those of live parameters before the first change of mode to the state
    /// itself, all others to the mode that they were made in.
    fn with_later_changes(
        &self,
        mut start: ReplayStart,
        place: &StatePlace,
        graph: &Graph,
    ) -> ReplayStart {
        let per_iteration = &self.head.modes[place.mode as usize].tokens_per_iteration;
        let sources = graph.sources().zip(per_iteration);
        let tokens_per_iteration: BTreeMap<ActorId, u64> =
            sources.map(|((id, _), tokens)| (id, *tokens)).collect();
        let state = &mut start.state;
        let order = PositionOrder {
            iterations: state.iterations,
            consumed: &state.consumed,
            tokens_per_iteration: |source| tokens_per_iteration.get(&source).copied().unwrap_or(1),
        };

        for (_, input) in self.inputs_after(place) {
            match (input, start.scheduled_modes.last_mut()) {
                (NumberedInput::Mode(entered), _) => start.scheduled_modes.push(ScheduledMode {
                    iteration: entered.iteration,
                    mode: entered.mode,
                    changes: Vec::new(),
                }),
                (NumberedInput::Parameters(made), Some(last)) => {
                    last.changes.push(made.change.clone());
                }
                (NumberedInput::Parameters(made), None) => {
                    insert_change(&mut state.changes, made.change.clone(), &order);
                }
            }
        }
        start
    }
}

/// The state in a payload, as the beginning of a replay without changes; `Err` says what is wrong with it.
fn read_state(payload: &[u8], place: &StatePlace, graph: &Graph) -> Result<ReplayStart, String> {
    let (_, rest) = record::split_part::<StatePlace>(payload)?;
    let (waiting, state_bytes) = record::split_part(rest)?;
    let saved = state::decode(state_bytes, graph).map_err(|error| error.to_string())?;
    let consumed = saved.state.consumed.iter().map(|(_, tokens)| *tokens);
    let is_same =
        saved.state.iterations == place.iterations && consumed.eq(place.consumed.iter().copied());
    if !is_same {
        return Err("is not the state that its place says".to_owned());
    }
    Ok(ReplayStart {
        state: saved.state,
        present_mode: PresentMode {
            mode: place.mode,
            waiting,
            // What tokens decided at this border is among the changes that follow.
            is_decided: true,
        },
        scheduled_modes: Vec::new(),
    })
}
