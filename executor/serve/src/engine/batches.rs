//! Sizes of batches that a model was compiled for, of which each is a mode, and which of them is best for the requests that wait.
//!
//! All requests that wait at a border are candidates; none waits for company. Rows of a batch that no request takes are computed with
//! zeros. Changes between modes cost time, as it was measured: [`LostTime`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zbmd_executor::embed::{StreamInfo, streams};
use zbmd_ir::batch_mode_samples;
use zbmd_ir::verify::VerifiedModes;

use super::pace::PlannedPace;
use crate::stats::ns_of;

/// How a model computes requests together.
#[derive(Debug)]
pub(crate) struct Batches {
    /// In the order of the modes; a run begins with the first. There is at least one.
    sizes: Vec<BatchSize>,
    /// From asking for another mode until the run is in it, smoothed; 0 before the first time.
    change_ns: AtomicU64,
}

/// By how much sooner requests would have been answered in another mode than they were since the last change, less what was
/// gained, in nanoseconds: as who rents skis buys them when the rent has come to their price, a run changes its mode when this has come to what a change
/// takes, and has lost at most as much again to whoever knows what will be asked (Karlin et al., Algorithmica 3, 1988).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostTime(i64);

#[derive(Debug)]
struct BatchSize {
    mode: String,
    planned: PlannedPace,
    /// From one full iteration to the next, at the shortest; 0 before the first.
    measured_ns: AtomicU64,
}

impl Batches {
    /// Of a program without modes: each iteration is a request.
    pub(crate) fn none(planned: PlannedPace) -> Self {
        Self::of(vec![(String::new(), planned)])
    }

    fn of(sizes: Vec<(String, PlannedPace)>) -> Self {
        let sizes = sizes.into_iter().map(|(mode, planned)| BatchSize {
            mode,
            planned,
            measured_ns: AtomicU64::new(0),
        });
        Self {
            sizes: sizes.collect(),
            change_ns: AtomicU64::new(0),
        }
    }

    /// Of modes with these calendars.
    #[cfg(test)]
    pub(crate) fn of_paces(paces: impl IntoIterator<Item = PlannedPace>) -> Self {
        let named = paces
            .into_iter()
            .map(|pace| (zbmd_ir::batch_mode_name(pace.rows as u32), pace));
        Self::of(named.collect())
    }

    /// The batches of a bundle, and its streams with the tokens of one request.
    ///
    /// # Errors
    /// Why its modes are no sizes of batches.
    pub(crate) fn of_modes(modes: &VerifiedModes) -> Result<(Self, Vec<StreamInfo>), String> {
        let programs = modes.programs();
        let is_batch = batch_mode_samples(&modes.names()[0]).is_some();
        if programs.len() == 1 && !is_batch {
            let planned = PlannedPace::of(&programs[0], 1);
            return Ok((Self::none(planned), streams(&programs[0].graph)));
        }
        check_changes(modes)?;

        let mut sizes = Vec::with_capacity(programs.len());
        let mut request_streams = None;
        for (name, program) in modes.names().iter().zip(programs) {
            let samples = batch_mode_samples(name).ok_or_else(|| unfit(modes))?;
            let of_sample = streams_of_sample(name, samples, streams(&program.graph))?;
            if *request_streams.get_or_insert_with(|| of_sample.clone()) != of_sample {
                let first = &modes.names()[0];
                return Err(format!(
                    "a sample has other tokens in mode `{name}` than in mode `{first}`: compile it again with `zbmdc compile --buckets`"
                ));
            }
            sizes.push((name.clone(), PlannedPace::of(program, samples.into())));
        }
        let request_streams = request_streams.expect("a bundle has a mode");
        Ok((Self::of(sizes), request_streams))
    }

    /// The sizes, in the order of the modes: one, of 1, if requests are computed one by one.
    pub(crate) fn rows(&self) -> impl Iterator<Item = u64> {
        self.sizes.iter().map(|size| size.planned.rows)
    }

    /// Modes.
    pub(crate) fn count(&self) -> usize {
        self.sizes.len()
    }

    /// Requests are computed together.
    pub(crate) fn is_used(&self) -> bool {
        self.sizes.iter().any(|size| size.planned.rows > 1)
    }

    /// The name of a mode.
    pub(crate) fn mode(&self, mode: usize) -> &str {
        &self.sizes[mode].mode
    }

    /// What the calendars of a mode say.
    pub(crate) fn planned(&self, mode: usize) -> PlannedPace {
        self.sizes[mode].planned
    }

    /// What the calendars of the mode with the smallest batches say.
    pub(crate) fn smallest(&self) -> PlannedPace {
        let planned = self.sizes.iter().map(|size| size.planned);
        planned
            .min_by_key(|planned| planned.rows)
            .expect("there is a mode")
    }

    /// From admission to the answer, with so many requests before it: the wait for a border, the blocks up to its own, and the stages
    /// that follow. Where there are several modes, those that take longest for each of these, and two changes: one that was begun
    /// before it came and one after that, with a block that is not full at the end of the first. There are no more, as the mode stays until all
    /// that waited for it is computed. The time of HTTP and of threads that are woken is not in it.
    pub(crate) fn response_ns(&self, ahead: u64) -> u64 {
        let planned = || self.sizes.iter().map(|size| size.planned);
        let border_ns = planned()
            .map(|planned| planned.period_ns)
            .max()
            .unwrap_or(0);
        let computed_ns = planned()
            .map(|planned| planned.computed_ns(ahead))
            .max()
            .unwrap_or(0);
        let changes_ns = match self.count() {
            1 => 0,
            _ => (2 * self.change_ns()).saturating_add(border_ns),
        };
        border_ns
            .saturating_add(changes_ns)
            .saturating_add(computed_ns)
    }

    /// By how much sooner so many requests would be answered in the best of the other modes than in the present one, as iterations
    /// were measured and without the change, in nanoseconds, and which that is; `None` if there is no other.
    fn advantage(&self, present: usize, waiting: u64) -> Option<(i64, usize)> {
        let needed_ns = |mode: usize| {
            let size = &self.sizes[mode];
            let iterations = waiting.div_ceil(size.planned.rows);
            let needed_ns = size.iteration_ns().saturating_mul(iterations);
            i64::try_from(needed_ns).unwrap_or(i64::MAX)
        };
        let others = (0..self.count()).filter(|mode| *mode != present);
        // Among equals the one with the smallest batches.
        let best = others.min_by_key(|mode| (needed_ns(*mode), self.sizes[*mode].planned.rows))?;
        Some((needed_ns(present) - needed_ns(best), best))
    }

    /// The mode for so many requests that wait: another than the present one when what was lost in the present one so far, and would be
    /// with these requests, is as much as a change takes.
    pub(crate) fn best(&self, present: usize, waiting: u64, lost: LostTime) -> usize {
        let change_ns = i64::try_from(self.change_ns()).unwrap_or(i64::MAX);
        match self.advantage(present, waiting) {
            Some((gain_ns, best)) if gain_ns > 0 && lost.0.saturating_add(gain_ns) >= change_ns => {
                best
            }
            _ => present,
        }
    }

    /// What is lost when an iteration takes as many of so many requests as it can in the present mode.
    pub(crate) fn stay(&self, present: usize, waiting: u64, lost: LostTime) -> LostTime {
        let Some((gain_ns, _)) = self.advantage(present, waiting) else {
            return lost;
        };
        let taken = waiting.min(self.sizes[present].planned.rows);
        let share_ns = i128::from(gain_ns) * i128::from(taken) / i128::from(waiting.max(1));
        let share_ns = i64::try_from(share_ns).unwrap_or(i64::MAX);
        LostTime(lost.0.saturating_add(share_ns).max(0))
    }

    /// What a change between modes takes; 0 before the first.
    pub(crate) fn change_ns(&self) -> u64 {
        self.change_ns.load(Ordering::Relaxed)
    }

    /// Full iterations of a mode were answered so long one after the other.
    pub(crate) fn answered(&self, mode: usize, spacing: Duration) {
        let measured_ns = &self.sizes[mode].measured_ns;
        let spacing_ns = ns_of(spacing).max(1);
        let shorter = |ns| (ns == 0 || spacing_ns < ns).then_some(spacing_ns);
        let _ = measured_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, shorter);
    }

    /// The run went over to another mode in this time.
    pub(crate) fn changed(&self, time: Duration) {
        super::pace::smooth(&self.change_ns, time);
    }
}

impl BatchSize {
    /// What an iteration takes as it was measured, and before that as it is planned.
    fn iteration_ns(&self) -> u64 {
        match self.measured_ns.load(Ordering::Relaxed) {
            0 => self.planned.period_ns / self.planned.block,
            measured_ns => measured_ns,
        }
    }
}

/// The streams of a mode, with the tokens of one of its samples.
fn streams_of_sample(
    mode: &str,
    samples: u32,
    mut streams: Vec<StreamInfo>,
) -> Result<Vec<StreamInfo>, String> {
    for stream in &mut streams {
        let tokens = stream.tokens_per_iteration;
        if tokens % u64::from(samples) != 0 {
            return Err(format!(
                "an iteration of mode `{mode}` has {tokens} tokens of `{}`, which are not {samples} samples: compile it again with `zbmdc \
                 compile --buckets`",
                stream.name
            ));
        }
        stream.tokens_per_iteration = tokens / u64::from(samples);
    }
    Ok(streams)
}

/// The server changes modes as it needs.
fn check_changes(modes: &VerifiedModes) -> Result<(), String> {
    let count = modes.names().len();
    match modes.decision().is_some() || modes.changes().len() < count * (count - 1) {
        true => Err(unfit(modes)),
        false => Ok(()),
    }
}

fn unfit(modes: &VerifiedModes) -> String {
    format!(
        "it has the modes {}, which are not sizes of batches as `zbmdc compile --buckets` makes them: compile one of them alone, with `zbmdc \
         compile --mode`",
        modes.names().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of 1 and 8: eight rows take as long as three.
    fn one_and_eight() -> Batches {
        let pace = |rows, period_ns| PlannedPace {
            rows,
            block: 1,
            stages: 1,
            period_ns,
        };
        Batches::of_paces([pace(1, 100), pace(8, 300)])
    }

    #[test]
    fn the_batch_is_as_large_as_what_waits_pays_for() {
        let batches = one_and_eight();
        let choices = |present| -> Vec<usize> {
            (1..=9)
                .map(|waiting| batches.best(present, waiting, LostTime::default()))
                .collect()
        };
        // Three requests are as soon done one by one: whoever is in either mode stays.
        assert_eq!(choices(0), [0, 0, 0, 1, 1, 1, 1, 1, 1]);
        assert_eq!(choices(1), [0, 0, 1, 1, 1, 1, 1, 1, 1]);

        batches.changed(Duration::from_nanos(250));
        assert_eq!(choices(0), [0, 0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(choices(1), [1; 9]);
    }

    #[test]
    fn a_change_is_made_when_staying_has_cost_as_much() {
        let batches = one_and_eight();
        batches.changed(Duration::from_nanos(550));
        // A request alone loses 200 in a batch of eight.
        let mut lost = LostTime::default();
        for _ in 0..2 {
            assert_eq!(batches.best(1, 1, lost), 1);
            lost = batches.stay(1, 1, lost);
        }
        assert_eq!(batches.best(1, 1, lost), 0);
        // Eight at once would have lost 500 one by one.
        assert_eq!(batches.best(1, 8, lost), 1);
        assert_eq!(batches.stay(1, 8, lost), LostTime::default());
        // Where eight wait, the first of them loses an eighth of that.
        assert_eq!(batches.stay(0, 8, LostTime::default()), LostTime(62));
    }

    #[test]
    fn what_was_measured_counts_more_than_the_plan() {
        let batches = one_and_eight();
        let best = |waiting| batches.best(0, waiting, LostTime::default());
        batches.answered(1, Duration::from_nanos(1000));
        batches.answered(1, Duration::from_nanos(900));
        assert_eq!((best(8), best(16)), (0, 0));
        batches.answered(0, Duration::from_nanos(200));
        assert_eq!((best(4), best(5)), (0, 1));
    }

    #[test]
    fn the_bound_holds_for_whatever_batches_are_chosen() {
        let batches = one_and_eight();
        // A batch of eight that has just begun, one that is not full, and one of its own.
        assert_eq!(batches.response_ns(0), 900);
        // Nine iterations of one row take longer than two of eight.
        assert_eq!(batches.response_ns(8), 1500);
        batches.changed(Duration::from_nanos(50));
        assert_eq!(batches.response_ns(0), 1000);
    }
}
