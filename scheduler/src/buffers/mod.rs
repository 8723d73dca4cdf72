//! Exact buffer sizes: the least total of all capacities for a period, and all trade-offs between the two.
//!
//! The model is that of [`crate::throughput::analyse_bounded`]: a firing claims space for its output when it starts
//! and frees that of its input when it ends. A channel has one buffer for all its readers; channels from an actor
//! to itself are state and not counted. Sizes are counted in tokens, or in bytes where token sizes differ.

mod cut;
mod search;

use std::str::FromStr;

use zbmd_ir::{ChannelId, TiVec};

use crate::throughput::{
    Bound, DependencyNet, Period, Throughput, ThroughputError, TimedChannel, TimedSdf, analyse,
    analyse_bounded,
};
use cut::Goal;
use search::{CapacitySearch, FoundCapacities, SearchOutcome};

/// What sizes are added up in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Tokens, whatever their size.
    #[default]
    Tokens,
    /// Bytes: tokens times their size.
    Bytes,
}

/// What is wanted of the buffers: `--buffers min | throughput | TOKENS | BYTES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The least total that can run at all, and of those the quickest.
    Min(Unit),
    /// The least total with which buffers do not bound the throughput.
    Throughput(Unit),
    /// The best throughput of at most so much in all.
    Within(u64, Unit),
}

impl FromStr for Mode {
    type Err = BufferError;

    /// `min`, `throughput`, a number of tokens (`1200`) or of bytes with its unit (`4096 B`, `64 KiB`, `3 MiB`,
    /// `1 GiB`). `min` and `throughput` count tokens.
    fn from_str(text: &str) -> Result<Self, BufferError> {
        let not_a_mode = || BufferError::Mode { text: text.into() };

        let trimmed = text.trim();
        match trimmed {
            "min" => return Ok(Mode::Min(Unit::Tokens)),
            "throughput" => return Ok(Mode::Throughput(Unit::Tokens)),
            _ => {}
        }

        let digits = trimmed
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(trimmed.len());
        let number: u64 = trimmed[..digits].parse().map_err(|_| not_a_mode())?;
        let shift = match trimmed[digits..].trim_start() {
            "" => return Ok(Mode::Within(number, Unit::Tokens)),
            "B" => 0,
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            _ => return Err(not_a_mode()),
        };

        let bytes = number.checked_mul(1 << shift).ok_or_else(not_a_mode)?;
        Ok(Mode::Within(bytes, Unit::Bytes))
    }
}

/// Bounds on the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizingLimits {
    /// Steps before the rest is estimated, each of a few microseconds: to look at one set of capacities, or at 64
    /// dependencies between firings to analyse it.
    pub steps: u64,
}

impl Default for SizingLimits {
    fn default() -> Self {
        SizingLimits { steps: 1 << 17 }
    }
}

/// Why there are no buffer sizes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// The graph cannot be analysed, or deadlocks with any buffers.
    #[error(transparent)]
    Throughput(#[from] ThroughputError),
    /// Nothing runs within the size asked for.
    #[error("the buffers need at least {least} {unit}, {limit} are allowed")]
    TooSmall {
        /// A lower bound on what any buffers need.
        least: u64,
        /// What is allowed.
        limit: u64,
        /// What both are counted in.
        unit: Unit,
    },
    /// Larger buffers always give a shorter period: no cycle and no actor bounds it.
    #[error(
        "no buffers of finite size reach the throughput of unbounded ones: actors may fire any number of times at \
         once"
    )]
    Unbounded,
    /// Not a mode.
    #[error(
        "`{text}` is none of `min`, `throughput`, a number of tokens, or of B, KiB, MiB or GiB"
    )]
    Mode {
        /// What was given.
        text: String,
    },
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unit::Tokens => "tokens",
            Unit::Bytes => "bytes",
        })
    }
}

/// Capacities and what they give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Places of each channel, in tokens; 0 for channels without a buffer.
    pub capacities: TiVec<ChannelId, u64>,
    /// Sum of the capacities.
    pub tokens: u64,
    /// Sum of the capacities times token sizes.
    pub bytes: u64,
    /// Exact period with these capacities.
    pub period: Period,
    /// The cycle that bounds it: one without buffers, if that bounds it as much.
    pub bound: Option<Bound>,
    /// No capacities that do as asked have a smaller total, in the unit asked for.
    pub least: u64,
    /// Whether the sizing is proven to be the best.
    pub exact: bool,
}

/// One trade-off: no less total gives that period, no shorter period has that total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParetoPoint {
    /// Total of the capacities, in the front's unit.
    pub total: u64,
    /// Places of each channel, in tokens; one of possibly several choices.
    pub capacities: TiVec<ChannelId, u64>,
    /// Period.
    pub period: Period,
}

/// The Pareto front of total buffer size against period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParetoFront {
    /// From the least total that runs at all on; periods decrease.
    pub points: Vec<ParetoPoint>,
    /// Whether it goes on to the throughput of unbounded buffers; otherwise the points are exact, but
    /// larger ones are missing.
    pub complete: bool,
}

/// All Pareto points of total buffer size against period, exactly.
///
/// # Errors
/// See [`ThroughputError`].
pub fn front(
    sdf: &TimedSdf,
    unit: Unit,
    limits: SizingLimits,
) -> Result<ParetoFront, ThroughputError> {
    let exploration = Sizer::new(sdf, unit, limits)?.explore(u64::MAX)?;
    let end_total = match exploration.end {
        ExplorationEnd::Stopped(bound) => bound,
        ExplorationEnd::Shortest | ExplorationEnd::Heaviest => u64::MAX,
    };

    let mut pareto_points = exploration.points;
    // The last point may have a better one of the same total.
    pareto_points.retain(|point| point.total < end_total);
    Ok(ParetoFront {
        points: pareto_points,
        complete: matches!(exploration.end, ExplorationEnd::Shortest),
    })
}

/// Sizes the buffers as asked, exactly if the limits allow.
///
/// # Errors
/// [`BufferError::TooSmall`] if nothing runs within the given size, [`BufferError::Unbounded`] if the throughput
/// grows for ever with the buffers; otherwise see [`ThroughputError`].
pub fn size(sdf: &TimedSdf, mode: Mode, limits: SizingLimits) -> Result<Sizing, BufferError> {
    match mode {
        Mode::Min(unit) => Ok(Sizer::new(sdf, unit, limits)?.smallest()?),
        Mode::Throughput(unit) => {
            let mut sizer = Sizer::new(sdf, unit, limits)?;
            // Then there is no period to aim at.
            // Then there is no period to aim at.
            if sizer.is_unbounded() {
                return Err(BufferError::Unbounded);
            }
            let throughput_goal = Goal::AtMost(sizer.unbounded.period);
            sizer.lightest(throughput_goal).map_err(BufferError::from)
        }
        Mode::Within(limit, unit) => Sizer::new(sdf, unit, limits)?.within(limit),
    }
}

/// Capacities of the least total that run at all.
pub(crate) struct LiveCapacities {
    pub(crate) room: Vec<i64>,
    /// No total below this runs.
    pub(crate) bound: u64,
    pub(crate) exact: bool,
}

pub(crate) fn min_live_capacities(
    sdf: &TimedSdf,
    limits: SizingLimits,
) -> Result<LiveCapacities, ThroughputError> {
    Sizer::new(sdf, Unit::Tokens, limits)?.lightest_room(Goal::Live)
}

/// Why an exploration ended.
enum ExplorationEnd {
    /// With the period of unbounded buffers.
    Shortest,
    /// All that weighs no more than allowed was seen.
    Heaviest,
    /// Out of budget: all lighter than this was seen.
    Stopped(u64),
}

struct Exploration {
    points: Vec<ParetoPoint>,
    end: ExplorationEnd,
}

/// Dependencies of an unfolding that is looked at while buffers of a large graph are shrunk.
const MAX_SHRINK_DEPS: u64 = 1 << 17;

/// How often all buffers of a large graph are doubled.
const MAX_DOUBLINGS: u32 = 30;

/// What all modes share.
struct Sizer<'a> {
    sdf: &'a TimedSdf,
    unit: Unit,
    limits: SizingLimits,
    /// Weight of a place of each channel.
    weights: Vec<u64>,
    /// Places that each channel needs by itself.
    min_room: Vec<i64>,
    unbounded: Throughput,
    net: DependencyNet,
}

impl<'a> Sizer<'a> {
    fn new(sdf: &'a TimedSdf, unit: Unit, limits: SizingLimits) -> Result<Self, ThroughputError> {
        let channels = sdf.channels.iter_enumerated();
        let mut weights = Vec::with_capacity(sdf.channels.len());
        let mut min_room = Vec::with_capacity(sdf.channels.len());
        for (id, channel) in channels {
            weights.push(match unit {
                Unit::Tokens => 1,
                Unit::Bytes => channel.token_bytes,
            });
            min_room.push(i64::try_from(sdf.min_capacity(id)).unwrap_or(i64::MAX / 4));
        }

        Ok(Sizer {
            sdf,
            unit,
            limits,
            weights,
            min_room,
            unbounded: analyse(sdf)?,
            net: DependencyNet::new(sdf, true)?,
        })
    }

    fn start_search(&mut self, goal: Goal, exact: bool) -> CapacitySearch<'_> {
        CapacitySearch::new(
            &mut self.net,
            &self.weights,
            self.min_room.clone(),
            goal,
            exact,
            self.limits.steps,
        )
    }

    /// Whether larger buffers help for ever: a buffered actor takes time, and nothing else bounds the period.
    fn is_unbounded(&self) -> bool {
        let mut channels = self.sdf.channels.iter_enumerated();
        self.unbounded.period == Period::ZERO
            && channels.any(|(id, channel)| self.sdf.is_buffered(id) && self.takes_time(channel))
    }

    /// Whether the writer or a reader of a channel takes time.
    fn takes_time(&self, channel: &TimedChannel) -> bool {
        let reader_actors = channel.readers.iter().map(|reader| reader.to);
        let mut end_actors = reader_actors.chain([channel.from]);
        end_actors.any(|actor| self.sdf.takes_time(actor))
    }

    /// Pareto points in order of their totals, up to the heaviest allowed.
    fn explore(&mut self, max_weight: u64) -> Result<Exploration, ThroughputError> {
        let shortest = self.unbounded.period;
        let mut search = self.start_search(Goal::Live, true);
        search.max_weight = max_weight;
        let mut points: Vec<ParetoPoint> = Vec::new();

        let end = loop {
            match search.find_next()? {
                SearchOutcome::Found(found) => {
                    // A shorter period of the same total takes the place of the one before.
                    if points.last().is_some_and(|last| last.total == found.weight) {
                        points.pop();
                    }
                    points.push(pareto_point(&found));
                    if found.period <= shortest {
                        break ExplorationEnd::Shortest;
                    }
                    search.set_goal(Goal::Below(found.period));
                }
                SearchOutcome::None => break ExplorationEnd::Heaviest,
                SearchOutcome::Stopped(bound, _) => break ExplorationEnd::Stopped(bound),
            }
        };
        Ok(Exploration { points, end })
    }

    /// The least total for a goal that large buffers meet.
    fn lightest(&mut self, goal: Goal) -> Result<Sizing, ThroughputError> {
        let found = self.lightest_room(goal)?;
        self.sizing(&found.room, found.bound, found.exact)
    }

    fn lightest_room(&mut self, goal: Goal) -> Result<LiveCapacities, ThroughputError> {
        match self.start_search(goal, false).find_next()? {
            SearchOutcome::Found(found) => Ok(LiveCapacities {
                room: found.room,
                bound: found.weight,
                exact: true,
            }),
            SearchOutcome::Stopped(bound, room) => Ok(LiveCapacities {
                room: self.climb(room, goal)?,
                bound,
                exact: false,
            }),
            // Large enough buffers meet the goal: the graph itself was analysed before.
            SearchOutcome::None => Ok(LiveCapacities {
                room: self.min_room.clone(),
                bound: 0,
                exact: false,
            }),
        }
    }

    fn smallest(&mut self) -> Result<Sizing, ThroughputError> {
        let live_sizing = self.lightest(Goal::Live)?;
        let live_total = self.total(&live_sizing);
        if !live_sizing.exact {
            return Ok(live_sizing);
        }

        let explored_points = self.explore(live_total)?;
        match explored_points.points.last() {
            Some(point) => {
                // Those of the least total are all seen unless the budget ran out.
                let exact = !matches!(explored_points.end, ExplorationEnd::Stopped(..));
                self.sizing(&room_of(point), live_total, exact)
            }
            None => Ok(live_sizing),
        }
    }

    fn within(&mut self, limit: u64) -> Result<Sizing, BufferError> {
        if !self.is_unbounded() {
            let quickest = self.lightest(Goal::AtMost(self.unbounded.period))?;
            if self.total(&quickest) <= limit {
                return Ok(quickest);
            }
        }

        let explored_points = self.explore(limit)?;
        let is_stopped = matches!(explored_points.end, ExplorationEnd::Stopped(_));
        if let (Some(point), false) = (explored_points.points.last(), is_stopped) {
            return Ok(self.sizing(&room_of(point), point.total, true)?);
        }

        // Out of budget: goes on from the best so far.
        let start_room = match explored_points.points.last() {
            Some(point) => room_of(point),
            None => {
                let smallest = self.lightest(Goal::Live)?;
                let least = self.total(&smallest);
                if least > limit {
                    return Err(BufferError::TooSmall {
                        least,
                        limit,
                        unit: self.unit,
                    });
                }
                let capacities = smallest.capacities.iter();
                capacities.map(|&capacity| capacity as i64).collect()
            }
        };
        let climbed_room = self.climb_within(start_room, limit)?;
        let least = search::total_weight(&self.min_room, &self.weights);
        Ok(self.sizing(&climbed_room, least, false)?)
    }

    /// Grows buffers until the goal is met, on critical cycles or, where those take too long, all at once; then
    /// shrinks what was not needed.
    fn climb(&mut self, mut room: Vec<i64>, goal: Goal) -> Result<Vec<i64>, ThroughputError> {
        let is_large = self.net.is_large();
        let max_dependencies = match is_large {
            true => MAX_SHRINK_DEPS,
            false => u64::MAX,
        };
        if !is_large || !self.double_all(&mut room, goal, max_dependencies)? {
            self.grow_until(&mut room, goal)?;
        }

        // Bisects each channel's places while the others stay.
        for channel in 0..room.len() {
            let mut fewest_places = self.min_room[channel];
            let mut enough_places = room[channel];
            while fewest_places < enough_places {
                let middle_places = fewest_places + (enough_places - fewest_places) / 2;
                room[channel] = middle_places;
                match search::meets(&mut self.net, &room, goal, max_dependencies)? {
                    true => enough_places = middle_places,
                    false => fewest_places = middle_places + 1,
                }
            }
            room[channel] = enough_places;
        }
        Ok(room)
    }

    /// Grows buffers on critical cycles until the goal is met.
    fn grow_until(&mut self, room: &mut [i64], goal: Goal) -> Result<(), ThroughputError> {
        loop {
            let (_, cuts) = search::analyse(&mut self.net, room, goal)?;
            if cuts.is_empty() {
                return Ok(());
            }
            // Every component that misses the goal has a cut, and all must be satisfied.
            for cut in cuts {
                while cut.missing_tokens(room) > 0 && cut.grow(room, &self.weights) {}
            }
        }
    }

    /// Doubles all buffers until they are known to meet the goal; whether they are.
    fn double_all(
        &mut self,
        room: &mut [i64],
        goal: Goal,
        max_dependencies: u64,
    ) -> Result<bool, ThroughputError> {
        for _ in 0..MAX_DOUBLINGS {
            if search::meets(&mut self.net, room, goal, max_dependencies)? {
                return Ok(true);
            }
            for places in room.iter_mut() {
                *places = places.saturating_mul(2).min(i64::MAX / 4);
            }
        }
        Ok(false)
    }

    /// Grows buffers on critical cycles while the limit allows; the best that was seen.
    fn climb_within(
        &mut self,
        mut room: Vec<i64>,
        limit: u64,
    ) -> Result<Vec<i64>, ThroughputError> {
        let goal = Goal::AtMost(self.unbounded.period);
        let more_work = self.limits.steps.saturating_mul(search::DEPS_PER_STEP);
        let max_work = self.net.work + more_work;
        let mut best: Option<(Period, Vec<i64>)> = None;

        while search::total_weight(&room, &self.weights) <= limit && self.net.work <= max_work {
            let (period, cuts) = search::analyse(&mut self.net, &room, goal)?;
            if let Some(period) = period
                && best.as_ref().is_none_or(|(known, _)| period < *known)
            {
                best = Some((period, room.clone()));
            }
            // One cut at a time: the next analysis shows what it has changed.
            let Some(cut) = cuts.first() else { break };
            if !cut.grow(&mut room, &self.weights) {
                break;
            }
        }
        Ok(best.map_or(room, |(_, best_room)| best_room))
    }

    fn total(&self, sizing: &Sizing) -> u64 {
        match self.unit {
            Unit::Tokens => sizing.tokens,
            Unit::Bytes => sizing.bytes,
        }
    }

    fn sizing(&self, room: &[i64], least: u64, exact: bool) -> Result<Sizing, ThroughputError> {
        let channel_places = room
            .iter()
            .map(|&channel_places| channel_places.max(0) as u64);
        let capacities: TiVec<ChannelId, u64> = channel_places.collect();
        let mut tokens = 0u64;
        let mut bytes = 0u64;
        for (channel, &capacity) in self.sdf.channels.iter().zip(&capacities) {
            tokens = tokens.saturating_add(capacity);
            bytes = bytes.saturating_add(capacity.saturating_mul(channel.token_bytes));
        }

        let bounded_throughput = analyse_bounded(self.sdf, &capacities)?;
        let bound = match bounded_throughput.period > self.unbounded.period {
            true => bounded_throughput.bound,
            false => self.unbounded.bound.clone(),
        };
        Ok(Sizing {
            capacities,
            tokens,
            bytes,
            period: bounded_throughput.period,
            bound,
            least,
            exact,
        })
    }
}

fn room_of(point: &ParetoPoint) -> Vec<i64> {
    let capacities = point.capacities.iter();
    capacities.map(|&capacity| capacity as i64).collect()
}

fn pareto_point(found: &FoundCapacities) -> ParetoPoint {
    ParetoPoint {
        total: found.weight,
        capacities: found.room.iter().map(|&places| places as u64).collect(),
        period: found.period,
    }
}

#[cfg(test)]
mod tests;
