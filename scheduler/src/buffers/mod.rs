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
    Bound, Net, Period, Throughput, ThroughputError, TimedChannel, TimedSdf, analyse,
    analyse_bounded,
};
use cut::Goal;
use search::{Found, Outcome, Search};

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
        let bad = || BufferError::Mode { text: text.into() };
        let trimmed = text.trim();
        match trimmed {
            "min" => return Ok(Mode::Min(Unit::Tokens)),
            "throughput" => return Ok(Mode::Throughput(Unit::Tokens)),
            _ => {}
        }
        let digits = trimmed
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(trimmed.len());
        let number: u64 = trimmed[..digits].parse().map_err(|_| bad())?;
        let shift = match trimmed[digits..].trim_start() {
            "" => return Ok(Mode::Within(number, Unit::Tokens)),
            "B" => 0,
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            _ => return Err(bad()),
        };
        let bytes = number.checked_mul(1 << shift).ok_or_else(bad)?;
        Ok(Mode::Within(bytes, Unit::Bytes))
    }
}

/// Bounds on the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Steps before the rest is estimated, each of a few microseconds: to look at one set of capacities, or at 64
    /// dependencies between firings to analyse it.
    pub steps: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { steps: 1 << 17 }
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
pub struct Point {
    /// Total of the capacities, in the front's unit.
    pub total: u64,
    /// Places of each channel, in tokens; one of possibly several choices.
    pub capacities: TiVec<ChannelId, u64>,
    /// Period.
    pub period: Period,
}

/// The Pareto front of total buffer size against period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Front {
    /// From the least total that runs at all on; periods decrease.
    pub points: Vec<Point>,
    /// Whether it goes on to the throughput of unbounded buffers; otherwise the points are exact, but
    /// larger ones are missing.
    pub complete: bool,
}

/// All Pareto points of total buffer size against period, exactly.
///
/// # Errors
/// See [`ThroughputError`].
pub fn front(sdf: &TimedSdf, unit: Unit, limits: Limits) -> Result<Front, ThroughputError> {
    let explored = Sizer::new(sdf, unit, limits)?.explore(u64::MAX)?;
    let bound = match explored.end {
        End::Stopped(bound) => bound,
        End::Shortest | End::Heaviest => u64::MAX,
    };
    let mut points = explored.points;
    // The last point may have a better one of the same total.
    points.retain(|p| p.total < bound);
    Ok(Front {
        points,
        complete: matches!(explored.end, End::Shortest),
    })
}

/// Sizes the buffers as asked, exactly if the limits allow.
///
/// # Errors
/// [`BufferError::TooSmall`] if nothing runs within the given size, [`BufferError::Unbounded`] if the throughput
/// grows for ever with the buffers; otherwise see [`ThroughputError`].
pub fn size(sdf: &TimedSdf, mode: Mode, limits: Limits) -> Result<Sizing, BufferError> {
    match mode {
        Mode::Min(unit) => Ok(Sizer::new(sdf, unit, limits)?.smallest()?),
        Mode::Throughput(unit) => {
            let mut sizer = Sizer::new(sdf, unit, limits)?;
            if sizer.is_unbounded() {
                return Err(BufferError::Unbounded);
            }
            let goal = Goal::AtMost(sizer.unbounded.period);
            sizer.lightest(goal).map_err(BufferError::from)
        }
        Mode::Within(limit, unit) => Sizer::new(sdf, unit, limits)?.within(limit),
    }
}

/// Capacities of the least total that run at all.
pub(crate) struct Live {
    pub(crate) room: Vec<i64>,
    /// No total below this runs.
    pub(crate) bound: u64,
    pub(crate) exact: bool,
}

pub(crate) fn least_live(sdf: &TimedSdf, limits: Limits) -> Result<Live, ThroughputError> {
    Sizer::new(sdf, Unit::Tokens, limits)?.lightest_room(Goal::Live)
}

/// Why an exploration ended.
enum End {
    /// With the period of unbounded buffers.
    Shortest,
    /// All that weighs no more than allowed was seen.
    Heaviest,
    /// Out of budget: all lighter than this was seen.
    Stopped(u64),
}

struct Explored {
    points: Vec<Point>,
    end: End,
}

/// Dependencies of an unfolding that is looked at while buffers of a large graph are shrunk.
const MOST_DEPS: u64 = 1 << 17;

/// How often all buffers of a large graph are doubled.
const MAX_DOUBLINGS: u32 = 30;

/// What all modes share.
struct Sizer<'a> {
    sdf: &'a TimedSdf,
    unit: Unit,
    limits: Limits,
    weights: Vec<u64>,
    least: Vec<i64>,
    unbounded: Throughput,
    net: Net,
}

impl<'a> Sizer<'a> {
    fn new(sdf: &'a TimedSdf, unit: Unit, limits: Limits) -> Result<Self, ThroughputError> {
        let weight = |ch: &TimedChannel| match unit {
            Unit::Tokens => 1,
            Unit::Bytes => ch.token_bytes,
        };
        let weights = sdf.channels.iter().map(weight).collect();
        let places = |c| i64::try_from(sdf.least_capacity(c)).unwrap_or(i64::MAX / 4);
        let least = sdf.channels.keys().map(places).collect();
        let unbounded = analyse(sdf)?;
        Ok(Sizer {
            sdf,
            unit,
            limits,
            weights,
            least,
            unbounded,
            net: Net::new(sdf, true)?,
        })
    }

    fn search(&mut self, goal: Goal, exact: bool) -> Search<'_> {
        let least = self.least.clone();
        Search::new(
            &mut self.net,
            &self.weights,
            least,
            goal,
            (exact, self.limits.steps),
        )
    }

    /// Whether larger buffers help for ever: a buffered actor takes time, and nothing else bounds the period.
    fn is_unbounded(&self) -> bool {
        let takes_time = |ch: &TimedChannel| {
            let mut ends = ch.readers.iter().map(|r| r.to).chain([ch.from]);
            ends.any(|a| self.sdf.actors[a].time > 0)
        };
        let mut channels = self.sdf.channels.iter_enumerated();
        self.unbounded.period == Period::ZERO
            && channels.any(|(id, ch)| self.sdf.is_buffered(id) && takes_time(ch))
    }

    /// Pareto points in order of their totals, up to the heaviest allowed.
    fn explore(&mut self, heaviest: u64) -> Result<Explored, ThroughputError> {
        let shortest = self.unbounded.period;
        let mut search = self.search(Goal::Live, true);
        search.heaviest = heaviest;
        let mut points: Vec<Point> = Vec::new();
        loop {
            match search.next()? {
                Outcome::Found(found) => {
                    if points.last().is_some_and(|last| last.total == found.weight) {
                        points.pop();
                    }
                    points.push(point(&found));
                    if found.period <= shortest {
                        return Ok(Explored {
                            points,
                            end: End::Shortest,
                        });
                    }
                    search.aim(Goal::Below(found.period));
                }
                Outcome::None => {
                    return Ok(Explored {
                        points,
                        end: End::Heaviest,
                    });
                }
                Outcome::Stopped(bound, _) => {
                    return Ok(Explored {
                        points,
                        end: End::Stopped(bound),
                    });
                }
            }
        }
    }

    /// The least total for a goal that large buffers meet.
    fn lightest(&mut self, goal: Goal) -> Result<Sizing, ThroughputError> {
        let found = self.lightest_room(goal)?;
        self.sizing(&found.room, found.bound, found.exact)
    }

    fn lightest_room(&mut self, goal: Goal) -> Result<Live, ThroughputError> {
        match self.search(goal, false).next()? {
            Outcome::Found(found) => Ok(Live {
                room: found.room,
                bound: found.weight,
                exact: true,
            }),
            Outcome::Stopped(bound, room) => Ok(Live {
                room: self.climb(room, goal)?,
                bound,
                exact: false,
            }),
            // Large enough buffers meet the goal: the graph itself was analysed before.
            Outcome::None => Ok(Live {
                room: self.least.clone(),
                bound: 0,
                exact: false,
            }),
        }
    }

    fn smallest(&mut self) -> Result<Sizing, ThroughputError> {
        let first = self.lightest(Goal::Live)?;
        let total = self.total(&first);
        if !first.exact {
            return Ok(first);
        }
        let explored = self.explore(total)?;
        match explored.points.last() {
            Some(point) => {
                // Those of the least total are all seen unless the budget ran out.
                let exact = !matches!(explored.end, End::Stopped(..));
                self.sizing(&room_of(point), total, exact)
            }
            None => Ok(first),
        }
    }

    fn within(&mut self, limit: u64) -> Result<Sizing, BufferError> {
        if !self.is_unbounded() {
            let best = self.lightest(Goal::AtMost(self.unbounded.period))?;
            if self.total(&best) <= limit {
                return Ok(best);
            }
        }
        let explored = self.explore(limit)?;
        if let (Some(point), End::Heaviest | End::Shortest) =
            (explored.points.last(), &explored.end)
        {
            return Ok(self.sizing(&room_of(point), point.total, true)?);
        }
        let start = match explored.points.last() {
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
                smallest.capacities.iter().map(|&c| c as i64).collect()
            }
        };
        let room = self.climb_within(start, limit)?;
        Ok(self.sizing(&room, search::total(&self.least, &self.weights), false)?)
    }

    /// Grows buffers until the goal is met, on critical cycles or, where those take too long, all at once; then
    /// shrinks what was not needed.
    fn climb(&mut self, mut room: Vec<i64>, goal: Goal) -> Result<Vec<i64>, ThroughputError> {
        let large = self.net.is_large();
        let most = if large { MOST_DEPS } else { u64::MAX };
        if !large || !self.double(&mut room, goal, most)? {
            self.grow(&mut room, goal)?;
        }
        for c in 0..room.len() {
            let (mut low, mut high) = (self.least[c], room[c]);
            while low < high {
                room[c] = low + (high - low) / 2;
                match search::meets(&mut self.net, &room, goal, most)? {
                    true => high = room[c],
                    false => low = room[c] + 1,
                }
            }
            room[c] = high;
        }
        Ok(room)
    }

    /// Grows buffers on critical cycles until the goal is met.
    fn grow(&mut self, room: &mut [i64], goal: Goal) -> Result<(), ThroughputError> {
        loop {
            let (_, cuts) = search::analyse(&mut self.net, room, goal)?;
            if cuts.is_empty() {
                return Ok(());
            }
            for cut in cuts {
                while cut.lacks(room) > 0 && cut.grow(room, &self.weights) {}
            }
        }
    }

    /// Doubles all buffers until they are known to meet the goal; whether they are.
    fn double(&mut self, room: &mut [i64], goal: Goal, most: u64) -> Result<bool, ThroughputError> {
        for _ in 0..MAX_DOUBLINGS {
            if search::meets(&mut self.net, room, goal, most)? {
                return Ok(true);
            }
            room.iter_mut()
                .for_each(|r| *r = r.saturating_mul(2).min(i64::MAX / 4));
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
        let mut best: Option<(Period, Vec<i64>)> = None;
        let most = self.net.work + self.limits.steps.saturating_mul(search::DEPS_PER_STEP);
        while search::total(&room, &self.weights) <= limit && self.net.work <= most {
            let (period, cuts) = search::analyse(&mut self.net, &room, goal)?;
            if period.is_some_and(|p| best.as_ref().is_none_or(|(known, _)| p < *known)) {
                best = period.map(|p| (p, room.clone()));
            }
            let Some(cut) = cuts.first() else { break };
            if !cut.grow(&mut room, &self.weights) {
                break;
            }
        }
        Ok(best.map_or(room, |(_, room)| room))
    }

    fn total(&self, sizing: &Sizing) -> u64 {
        match self.unit {
            Unit::Tokens => sizing.tokens,
            Unit::Bytes => sizing.bytes,
        }
    }

    fn sizing(&self, room: &[i64], least: u64, exact: bool) -> Result<Sizing, ThroughputError> {
        let capacities: TiVec<ChannelId, u64> = room.iter().map(|&r| r.max(0) as u64).collect();
        let sizes = |(c, &r): (&TimedChannel, &u64)| r.saturating_mul(c.token_bytes);
        let bytes = self.sdf.channels.iter().zip(&capacities).map(sizes);
        let bytes = bytes.fold(0u64, u64::saturating_add);
        let tokens = capacities
            .iter()
            .fold(0u64, |sum, &c| sum.saturating_add(c));
        let found = analyse_bounded(self.sdf, &capacities)?;
        let (period, bound) = match found.period > self.unbounded.period {
            true => (found.period, found.bound),
            false => (found.period, self.unbounded.bound.clone()),
        };
        Ok(Sizing {
            capacities,
            tokens,
            bytes,
            period,
            bound,
            least,
            exact,
        })
    }
}

fn room_of(point: &Point) -> Vec<i64> {
    point.capacities.iter().map(|&c| c as i64).collect()
}

fn point(found: &Found) -> Point {
    let capacities = found.room.iter().map(|&r| r as u64).collect();
    Point {
        total: found.weight,
        capacities,
        period: found.period,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throughput::selftimed;
    use zbmd_ir::ActorId;

    /// Calls `see` for all capacities of at least `room` whose weight grows by at most `more`.
    fn every(
        room: &mut Vec<u64>,
        sdf: &TimedSdf,
        weights: &[u64],
        from: usize,
        more: u64,
        see: &mut impl FnMut(&[u64]),
    ) {
        let Some(channel) = (from..room.len()).find(|&c| sdf.is_buffered(c.into())) else {
            return see(room);
        };
        let before = room[channel];
        for places in 0..=more / weights[channel] {
            room[channel] = before + places;
            every(
                room,
                sdf,
                weights,
                channel + 1,
                more - places * weights[channel],
                see,
            );
        }
        room[channel] = before;
    }

    /// All Pareto points up to a total, by simulating all capacities.
    fn simulated(sdf: &TimedSdf, weights: &[u64], most: u64) -> Vec<(u64, Period)> {
        let mut least: Vec<u64> = sdf.channels.keys().map(|c| sdf.least_capacity(c)).collect();
        let sum = |room: &[u64]| room.iter().zip(weights).map(|(r, w)| r * w).sum::<u64>();
        let more = most.saturating_sub(sum(&least));
        let mut best: std::collections::BTreeMap<u64, Period> = Default::default();
        every(&mut least, sdf, weights, 0, more, &mut |room| {
            let Some(period) = selftimed::period(sdf, room) else {
                return;
            };
            let known = best.entry(sum(room)).or_insert(period);
            *known = period.min(*known);
        });
        let mut shortest: Option<Period> = None;
        best.retain(|_, period| {
            let better = shortest.is_none_or(|s| *period < s);
            shortest = shortest.into_iter().chain([*period]).min();
            better
        });
        best.into_iter().collect()
    }

    fn token_sizes(sdf: &mut TimedSdf, seed: u64) {
        for (i, ch) in sdf.channels.iter_mut().enumerate() {
            ch.token_bytes = [1, 3, 2][(i + seed as usize) % 3];
        }
    }

    #[test]
    fn goals_are_met_just_when_exact_periods_meet_them() {
        let (mut met, mut missed) = (0, 0);
        for seed in 0..1000 {
            let (sdf, room) = selftimed::random(seed);
            let period = match analyse_bounded(&sdf, &room.clone().into()) {
                Ok(found) => Some(found.period),
                Err(_) => None,
            };
            let room: Vec<i64> = room.iter().map(|&r| r as i64).collect();
            let known = period.unwrap_or(Period::from(1000));
            let goals = [Goal::Live, Goal::AtMost(known), Goal::Below(known)];
            for goal in goals {
                let mut net = Net::new(&sdf, true).expect("consistent");
                let exact = search::meets(&mut net, &room, goal, u64::MAX).expect("small");
                assert_eq!(exact, goal.met(period), "seed {seed}, {goal:?}: {sdf:?}");
                let mut net = Net::new(&sdf, true).expect("consistent");
                let quick = search::meets(&mut net, &room, goal, 12).expect("small");
                assert!(exact || !quick, "seed {seed}, {goal:?}: {sdf:?}");
                met += u32::from(quick);
                missed += u32::from(exact && !quick);
            }
        }
        assert!(
            met > 100 && missed > 100,
            "{met} met, {missed} left aside: too few of either"
        );
    }

    #[test]
    fn a_stopped_search_still_sizes_buffers() {
        let (mut sizings, mut estimated) = (0, 0);
        for seed in 0..200 {
            let (sdf, _) = selftimed::random(seed);
            for mode in [Mode::Min(Unit::Tokens), Mode::Throughput(Unit::Tokens)] {
                let Ok(best) = size(&sdf, mode, Limits::default()) else {
                    continue;
                };
                let found = size(&sdf, mode, Limits { steps: 2 }).expect("it is possible");
                assert!(found.least <= best.tokens, "seed {seed}, {mode:?}: {sdf:?}");
                assert!(
                    found.tokens >= best.tokens,
                    "seed {seed}, {mode:?}: {sdf:?}"
                );
                if let Mode::Throughput(_) = mode {
                    assert_eq!(found.period, best.period, "seed {seed}: {sdf:?}");
                }
                sizings += 1;
                estimated += u32::from(!found.exact);
            }
        }
        assert!(
            sizings > 100 && estimated > 10,
            "{sizings} sizings, {estimated} estimated"
        );
    }

    #[test]
    fn fronts_equal_those_of_all_capacities() {
        let mut compared = 0;
        for seed in 0..400 {
            let (mut sdf, _) = selftimed::random(seed);
            token_sizes(&mut sdf, seed);
            if sdf.channels.keys().filter(|&c| sdf.is_buffered(c)).count() > 4
                || analyse(&sdf).is_err()
            {
                continue;
            }
            for unit in [Unit::Tokens, Unit::Bytes] {
                let found = front(&sdf, unit, Limits { steps: 2000 }).expect("live");
                let mut ours: Vec<_> = found.points.iter().map(|p| (p.total, p.period)).collect();
                let weights: Vec<u64> = match unit {
                    Unit::Tokens => sdf.channels.iter().map(|_| 1).collect(),
                    Unit::Bytes => sdf.channels.iter().map(|c| c.token_bytes).collect(),
                };
                let least = sdf
                    .channels
                    .keys()
                    .map(|c| sdf.least_capacity(c) * weights[c.index()]);
                let most = least.sum::<u64>() + 9;
                ours.retain(|p| p.0 <= most);
                assert_eq!(
                    ours,
                    simulated(&sdf, &weights, most),
                    "seed {seed}, {unit:?}: {sdf:?}"
                );
                compared += ours.len();
            }
        }
        assert!(compared > 1000, "only {compared} points compared");
    }

    fn example() -> TimedSdf {
        let mut sdf = TimedSdf::default();
        for (name, time) in [("a", 1), ("b", 2), ("c", 2)] {
            let id = sdf.add_actor(name, time);
            sdf.actors[id].at_once = Some(1);
        }
        sdf.add_channel(ActorId(0), 2, ActorId(1), 3, 0);
        sdf.add_channel(ActorId(1), 1, ActorId(2), 2, 0);
        sdf.channels[ChannelId(1)].token_bytes = 5;
        sdf
    }

    /// `tokens, bytes -> period by cycle`, with what is less than proven.
    fn text(found: Result<Sizing, BufferError>) -> String {
        match found {
            Ok(s) => {
                let bound = s.bound.map(|b| format!(" by {b}")).unwrap_or_default();
                let exact = if s.exact {
                    "".into()
                } else {
                    format!(", at least {}", s.least)
                };
                format!(
                    "{} tokens, {} B -> {}{bound}{exact}",
                    s.tokens, s.bytes, s.period
                )
            }
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn modes() {
        let check = |mode: &str, expect: &str| {
            let found = mode
                .parse()
                .and_then(|m| size(&example(), m, Limits::default()));
            assert_eq!(text(found), expect, "{mode}");
        };
        check("min", "6 tokens, 14 B -> 7 by a -> b -> a");
        check("throughput", "10 tokens, 22 B -> 4 by b -> b");
        check("1000", "10 tokens, 22 B -> 4 by b -> b");
        check("9", "9 tokens, 21 B -> 5 by a -> b -> a");
        check("8", "8 tokens, 16 B -> 6 by b -> c -> b");
        check("7", "6 tokens, 14 B -> 7 by a -> b -> a");
        check("5", "the buffers need at least 6 tokens, 5 are allowed");
        check("20 B", "8 tokens, 16 B -> 6 by b -> c -> b");
        check("1KiB", "10 tokens, 22 B -> 4 by b -> b");
        check("13B", "the buffers need at least 14 bytes, 13 are allowed");
        for bad in ["", "most", "-1", "1 KB", "99999999999 GiB"] {
            let expect = format!(
                "`{bad}` is none of `min`, `throughput`, a number of tokens, or of B, KiB, MiB or GiB"
            );
            check(bad, &expect);
        }
    }

    #[test]
    fn a_stopped_search_gives_what_it_has() {
        let few = Limits { steps: 1 };
        let check = |mode, expect: &str| assert_eq!(text(size(&example(), mode, few)), expect);
        check(
            Mode::Throughput(Unit::Tokens),
            "10 tokens, 22 B -> 4 by b -> b, at least 6",
        );
        check(
            Mode::Within(9, Unit::Tokens),
            "9 tokens, 21 B -> 5 by a -> b -> a, at least 6",
        );
        let front = front(&example(), Unit::Tokens, Limits { steps: 3 }).expect("live");
        assert!(!front.complete);
    }

    #[test]
    fn throughput_without_bounds_is_refused() {
        let mut sdf = example();
        sdf.actors.iter_mut().for_each(|a| a.at_once = None);
        assert_eq!(
            size(&sdf, Mode::Throughput(Unit::Tokens), Limits::default()),
            Err(BufferError::Unbounded)
        );
        assert!(size(&sdf, Mode::Within(30, Unit::Tokens), Limits::default()).is_ok());
    }

    #[test]
    fn readers_share_one_buffer() {
        let mut sdf = example();
        let mut reader = sdf.channels[ChannelId(1)].readers[0];
        reader.to = sdf.add_actor("d", 4);
        sdf.actors[reader.to].at_once = Some(1);
        sdf.channels[ChannelId(1)].readers.push(reader);
        assert_eq!(
            text(size(
                &sdf,
                Mode::Throughput(Unit::Tokens),
                Limits::default()
            )),
            "11 tokens, 27 B -> 4 by b -> b"
        );
    }
}
