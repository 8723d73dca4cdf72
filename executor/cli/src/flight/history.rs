//! Which mode a recorded run was in, and how many tokens it had taken where, as far as the recording tells. For whoever gives
//! changes a time and names: a replay asks nothing of it.

use super::record::{NumberedMode, StatePlace};

/// The modes of a run, from one change or state to the next.
#[derive(Clone, Debug, Default)]
pub struct ModeHistory {
    /// From which number of a change on the run was in which mode, in order.
    by_number: Vec<NumberedEntry>,
    /// In order of their iterations.
    legs: Vec<HistoryLeg>,
    /// For each mode, the tokens that an iteration takes of each source.
    tokens_per_iteration: Vec<Vec<u64>>,
}

/// Changes of this number and later ones are of this mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NumberedEntry {
    number: u64,
    mode: u32,
}

/// Iterations in one mode.
#[derive(Clone, Debug)]
struct HistoryLeg {
    begin: u64,
    mode: usize,
    /// Of each source, before them.
    consumed: Vec<u64>,
}

/// Something that tells the mode.
enum Told<'a> {
    Change(&'a NumberedMode),
    State(&'a StatePlace),
}

impl Told<'_> {
    /// What it is sorted by: its iteration, and the changes that are made then.
    fn place(&self) -> (u64, u64) {
        match self {
            Told::Change(change) => (change.iteration, change.number + 1),
            Told::State(place) => (place.iterations, place.changes_made),
        }
    }
}

impl ModeHistory {
    /// From the changes and the states of a recording. All modes are among those of the rates.
    pub(super) fn new<'a>(
        changes: impl Iterator<Item = &'a NumberedMode>,
        states: impl Iterator<Item = &'a StatePlace>,
        tokens_per_iteration: Vec<Vec<u64>>,
    ) -> Self {
        let mut told: Vec<Told<'a>> = changes
            .map(Told::Change)
            .chain(states.map(Told::State))
            .collect();
        told.sort_by_key(Told::place);

        let mut history = Self {
            tokens_per_iteration,
            ..Self::default()
        };
        for item in &told {
            let (iteration, number) = item.place();
            let mode = match item {
                Told::Change(change) => change.mode,
                Told::State(place) => place.mode,
            };
            history.by_number.push(NumberedEntry { number, mode });
            let consumed = match item {
                Told::State(place) => place.consumed.clone(),
                Told::Change(_) => history.consumed_before(iteration),
            };
            history.legs.push(HistoryLeg {
                begin: iteration,
                mode: mode as usize,
                consumed,
            });
        }
        history.by_number.sort_unstable();
        history
    }

    /// The mode that the run was in when the change with this number was made; the first where nothing tells.
    pub fn mode_of_change(&self, number: u64) -> usize {
        let place = self
            .by_number
            .partition_point(|entry| entry.number <= number);
        let last = place.checked_sub(1).map(|index| self.by_number[index].mode);
        last.unwrap_or(0) as usize
    }

    /// Tokens that the run had taken of a source before an iteration.
    pub fn tokens_before(&self, iteration: u64, source: usize) -> u64 {
        let place = self.legs.partition_point(|leg| leg.begin <= iteration);
        let leg = match place.checked_sub(1) {
            Some(index) => &self.legs[index],
            // Before all that is known it was as it was then.
            None => match self.legs.first() {
                Some(first) => first,
                None => return iteration.saturating_mul(self.rate(0, source)),
            },
        };
        let rate = self.rate(leg.mode, source);
        let consumed = leg.consumed.get(source).copied().unwrap_or(0);
        let after = iteration.saturating_sub(leg.begin).saturating_mul(rate);
        let before = leg.begin.saturating_sub(iteration).saturating_mul(rate);
        consumed.saturating_add(after).saturating_sub(before)
    }

    /// For each mode, the iterations that the run was in it before an iteration.
    pub fn iterations_by_mode(&self, until: u64) -> Vec<u64> {
        let mut counts = vec![0; self.tokens_per_iteration.len()];
        // Before all that is known it was in the mode that it was in then.
        let mut mode = self.legs.first().map_or(0, |leg| leg.mode);
        let mut counted = 0;
        for leg in &self.legs {
            let end = leg.begin.clamp(counted, until.max(counted));
            counts[mode] += end - counted;
            (counted, mode) = (end, leg.mode);
        }
        counts[mode] += until.saturating_sub(counted);
        counts
    }

    fn consumed_before(&self, iteration: u64) -> Vec<u64> {
        let sources = self.tokens_per_iteration.first().map_or(0, Vec::len);
        (0..sources)
            .map(|source| self.tokens_before(iteration, source))
            .collect()
    }

    fn rate(&self, mode: usize, source: usize) -> u64 {
        let rates = self.tokens_per_iteration.get(mode);
        rates
            .and_then(|rates| rates.get(source))
            .copied()
            .unwrap_or(0)
    }
}
