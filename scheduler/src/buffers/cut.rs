//! What a critical cycle says about all capacities, not only those it was found with.

use crate::throughput::{Hop, Net, Period, Supply, Verdict};

/// What is asked of the period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// No deadlock.
    Live,
    /// Strictly shorter.
    Below(Period),
    /// At most that.
    AtMost(Period),
}

impl Goal {
    /// Whether a graph with that period (`None`: deadlocked) is good enough.
    pub(super) fn met(self, period: Option<Period>) -> bool {
        match (self, period) {
            (_, None) => false,
            (Goal::Live, Some(_)) => true,
            (Goal::Below(bound), Some(p)) => p < bound,
            (Goal::AtMost(bound), Some(p)) => p <= bound,
        }
    }
}

/// Tokens that a cycle of that time needs for the goal.
fn needed(goal: Goal, time: i128) -> i128 {
    // What does not fit asks for more tokens than there can be.
    const NEVER: i128 = i128::MAX / 4;
    let (Goal::Below(period) | Goal::AtMost(period)) = goal else {
        return 1;
    };
    let (num, den) = (period.num() as i128, period.den() as i128);
    let Some(work) = time.checked_mul(den) else {
        return NEVER;
    };
    match (goal, num) {
        (Goal::AtMost(_), 0) if work == 0 => 1,
        (_, 0) => NEVER,
        (Goal::AtMost(_), _) => ((work + num - 1) / num).max(1),
        _ => work / num + 1,
    }
}

/// The channel and its places taken at the start, if the dependency waits for space.
fn space(net: &Net, hop: &Hop) -> Option<(usize, i64)> {
    match net.links[hop.link?].supply {
        Supply::Space { channel, taken } => Some((channel, taken)),
        Supply::Fixed(_) => None,
    }
}

/// A dependency of a cycle that goes back along a buffer: `step * scale * ceil((capacity - base) / step)` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    channel: usize,
    base: i64,
    step: i64,
    /// Scaled tokens per place, times how often the cycle comes by.
    scale: i128,
}

impl Use {
    fn tokens(&self, capacity: i64) -> i128 {
        let blocks = -(self.base - capacity).div_euclid(self.step);
        i128::from(blocks) * i128::from(self.step) * self.scale
    }

    /// The least number of places more that makes a difference.
    fn first_step(&self, capacity: i64) -> i64 {
        (self.base - capacity).rem_euclid(self.step) + 1
    }

    /// Places that the rounding gives away at most: those just below the next step.
    fn slack(&self, capacity: i64) -> i64 {
        self.step - self.first_step(capacity)
    }
}

/// A cycle of dependencies between firings, with its tokens as a function of the capacities.
///
/// It exists at any capacities: whichever do not give it the tokens that a period asks for, do not have that
/// period. So one analysis rules out many capacities.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    uses: Vec<Use>,
    /// Distinct channels of `uses`, ascending.
    pub(super) channels: Vec<usize>,
    time: i128,
    fixed: i128,
    /// Tokens that the goal asks for.
    needed: i128,
}

impl Cut {
    /// The cut of a cycle.
    fn of(net: &Net, hops: &[Hop], time: i128, goal: Goal) -> Self {
        let mut cut = Cut {
            uses: Vec::new(),
            channels: Vec::new(),
            time,
            fixed: 0,
            needed: needed(goal, time),
        };
        for hop in hops {
            match space(net, hop) {
                Some((channel, taken)) => {
                    let (base, step, scale) = (hop.base + taken, hop.step, hop.scale.into());
                    cut.uses.push(Use {
                        channel,
                        base,
                        step,
                        scale,
                    });
                }
                None => cut.fixed += i128::from(hop.tokens),
            }
        }
        cut.uses
            .sort_unstable_by_key(|u| (u.channel, u.base, u.step));
        cut.uses.dedup_by(|next, u| {
            let same = (next.channel, next.base, next.step) == (u.channel, u.base, u.step);
            u.scale += i128::from(same) * next.scale;
            same
        });
        cut.channels = cut.uses.iter().map(|u| u.channel).collect();
        cut.channels.dedup();
        cut
    }

    /// Asks for the tokens of another goal from now on.
    pub(super) fn aim(&mut self, goal: Goal) {
        self.needed = needed(goal, self.time);
    }

    /// Tokens that the cycle lacks for the goal; not positive if the capacities suffice.
    pub(super) fn lacks(&self, room: &[i64]) -> i128 {
        let given: i128 = self.uses.iter().map(|u| u.tokens(room[u.channel])).sum();
        self.needed - self.fixed - given
    }

    /// The least number of places more on the channel that gives the cycle more tokens.
    pub(super) fn first_step(&self, channel: usize, room: &[i64]) -> i64 {
        let of = self.uses.iter().filter(|u| u.channel == channel);
        of.map(|u| u.first_step(room[channel]))
            .min()
            .unwrap_or(i64::MAX)
    }

    /// Gives the channel the fewest places more with which the cycle lacks nothing; `None` if `most` are too few.
    pub(super) fn enough(&self, channel: usize, room: &mut [i64], most: i64) -> Option<i64> {
        let before = room[channel];
        let mut lacks_with = |places: i64| {
            room[channel] = places;
            self.lacks(room) > 0
        };
        // Capacities beyond this are beyond any memory.
        let most = most.min(1 << 60);
        let (mut low, mut step) = (before, 1i64);
        while lacks_with(low.saturating_add(step).min(most)) {
            low = low.saturating_add(step).min(most);
            if low >= most {
                return None;
            }
            step = step.saturating_mul(2);
        }
        let mut high = low.saturating_add(step).min(most);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match lacks_with(middle) {
                true => low = middle,
                false => high = middle,
            }
        }
        room[channel] = high;
        Some(high - before)
    }

    /// Adds the first step of the channel that gives the most tokens for its weight; whether any can.
    pub(super) fn grow(&self, room: &mut [i64], weights: &[u64]) -> bool {
        let mut best: Option<(i128, i128, usize, i64)> = None;
        for &channel in &self.channels {
            let step = self.first_step(channel, room);
            let own = || self.uses.iter().filter(|u| u.channel == channel);
            let after: i128 = own()
                .map(|u| u.tokens(room[channel].saturating_add(step)))
                .sum();
            let gain = after - own().map(|u| u.tokens(room[channel])).sum::<i128>();
            let price = i128::from(step) * i128::from(weights[channel].max(1));
            if best.is_none_or(|(g, p, ..)| gain.saturating_mul(p) > g.saturating_mul(price)) {
                best = Some((gain, price, channel, step));
            }
        }
        let Some((_, _, channel, step)) = best else {
            return false;
        };
        room[channel] = room[channel].saturating_add(step);
        true
    }

    /// A lower bound on the weight of the places that give it what it lacks, if only channels that are `free` to
    /// grow by a first step may.
    pub(super) fn least_weight(
        &self,
        lacks: i128,
        room: &[i64],
        weights: &[u64],
        free: impl Fn(usize) -> bool,
    ) -> u64 {
        let mut first = u64::MAX;
        let mut slack = 0i128;
        // The channel that gives the most tokens for its weight, as a fraction.
        let mut best = (0i128, 1i128);
        for &channel in self.channels.iter().filter(|&&c| free(c)) {
            let weight = weights[channel];
            let step = self.first_step(channel, room) as u64;
            first = first.min(step.saturating_mul(weight));
            let mut scale = 0i128;
            for u in self.uses.iter().filter(|u| u.channel == channel) {
                scale += u.scale;
                slack += u.scale * i128::from(u.slack(room[channel]));
            }
            if scale * best.1 > best.0 * i128::from(weight.max(1)) {
                best = (scale, i128::from(weight.max(1)));
            }
        }
        if best.0 == 0 {
            return first;
        }
        let rest = (lacks - slack).max(0).saturating_mul(best.1);
        let even = u64::try_from((rest + best.0 - 1) / best.0).unwrap_or(u64::MAX);
        even.max(first)
    }
}

/// Cuts of one cycle beyond this many are not worth their while.
const MAX_LIFTS: usize = 32;
/// Dependencies that may be looked at in all to make them.
const LIFT_WORK: usize = 1 << 24;
/// Firings by which a path is shifted at most, and dependencies that are shifted with it.
const MAX_SHIFT: i64 = 8;
const MAX_SHIFTED: usize = 32;

/// Cuts of a cycle that misses the goal, made as strong as its own firings allow.
///
/// Where the cycle waits once for space, more places let the firing that waits go ahead, or let it wait for an
/// earlier one. If that firing is on the cycle too, or leads back to it by the same steps a little later, what lies
/// between can be left out: another cycle, which exists up to that many places more. As long as it still misses the
/// goal, it says more than the one it was made of.
pub(super) fn cuts(net: &Net, verdict: &Verdict, goal: Goal) -> Vec<Cut> {
    let mut work = LIFT_WORK;
    let mut cycle = Cycle {
        net,
        goal,
        time_scale: verdict.time_scale,
        work: &mut work,
    };
    let hops = &verdict.hops[..];
    let plain = Cut::of(net, hops, verdict.time, goal);
    let mut waits: Vec<usize> = hops.iter().filter_map(|h| Some(space(net, h)?.0)).collect();
    waits.sort_unstable();
    let runs = waits.chunk_by(|a, b| a == b);
    let once: Vec<usize> = runs
        .filter(|run| run.len() == 1)
        .map(|run| run[0])
        .collect();
    if verdict.tokens <= 0 || once.is_empty() || plain.needed <= verdict.tokens {
        return vec![plain];
    }
    let mut cuts = Vec::new();
    for &first in once.iter().take(3) {
        let others = || once.iter().filter(|&&c| c != first).take(3);
        let mut lifted = hops.to_vec();
        for _ in 0..MAX_LIFTS {
            // With nothing to choose from, only the strongest one says something.
            if others().next().is_some() {
                let mut full = lifted.clone();
                others().for_each(|&channel| while cycle.lift(&mut full, channel) {});
                cuts.push(Cut::of(net, &full, cycle.time(&full), goal));
            }
            if !cycle.lift(&mut lifted, first) {
                break;
            }
        }
        cuts.push(Cut::of(net, &lifted, cycle.time(&lifted), goal));
    }
    cuts.sort_by(|a, b| a.uses.cmp(&b.uses));
    cuts.dedup_by(|a, b| a.uses == b.uses);
    cuts
}

/// A cycle to be shortened.
struct Cycle<'a> {
    net: &'a Net,
    goal: Goal,
    time_scale: i128,
    /// Dependencies that may still be looked at.
    work: &'a mut usize,
}

impl Cycle<'_> {
    fn time(&self, hops: &[Hop]) -> i128 {
        let real = hops.iter().filter(|h| h.link.is_some());
        real.map(|h| i128::from(self.net.times[h.from]))
            .sum::<i128>()
            * self.time_scale
    }

    /// Shortens the cycle at its only wait for space of the channel; `false`, and the cycle stays, if it cannot
    /// be or would then meet the goal.
    fn lift(&mut self, hops: &mut Vec<Hop>, channel: usize) -> bool {
        let work = hops.len() * 4;
        if *self.work < work {
            return false;
        }
        *self.work -= work;
        let waits = |h: &Hop| space(self.net, h).is_some_and(|(c, _)| c == channel);
        let Some(at) = hops.iter().position(waits) else {
            return false;
        };
        hops.rotate_left(at);
        let tokens: i128 = hops.iter().map(|h| i128::from(h.tokens)).sum();
        let whole = self.time(hops);
        let lost = |h: &[Hop]| self.time(h);
        let back = self
            .wait_for_earlier(hops)
            .map(|i| (lost(&hops[i..]), None, i));
        let ahead = self
            .let_go_ahead(hops)
            .map(|(shift, i)| (lost(&hops[shift.len()..i]), Some(shift), i));
        let best = [back, ahead]
            .into_iter()
            .flatten()
            .min_by_key(|(lost, ..)| *lost);
        let Some((_, shift, i)) =
            best.filter(|(lost, ..)| needed(self.goal, whole - lost) > tokens)
        else {
            return false;
        };
        let Some(link) = hops[0].link else {
            return false;
        };
        let link = &self.net.links[link];
        match shift {
            None => {
                hops[0].base += link.produce * (hops[0].phase - hops[i].phase);
                hops[0].phase = hops[i].phase;
                hops.truncate(i);
            }
            Some(shift) => {
                hops[0].base += link.consume * shift[0];
                for (hop, by) in hops[1..shift.len()].iter_mut().zip(&shift) {
                    hop.phase += by;
                }
                hops.drain(shift.len()..i);
            }
        }
        true
    }

    /// The last dependency that starts at an earlier firing of the actor that the first one waits for.
    fn wait_for_earlier(&self, hops: &[Hop]) -> Option<usize> {
        let mut between = 0i128;
        let earlier = (1..hops.len()).rev().find(|&i| {
            between += i128::from(hops[i].tokens);
            hops[i].from == hops[0].from
        })?;
        (between == 0 && hops[earlier].phase < hops[0].phase).then_some(earlier)
    }

    /// Shifts of the firings from the one that waits on, until they meet the cycle again, and where that is.
    fn let_go_ahead(&self, hops: &[Hop]) -> Option<(Vec<i64>, usize)> {
        (1..=MAX_SHIFT).find_map(|by| self.shifted(hops, by))
    }

    fn shifted(&self, hops: &[Hop], by: i64) -> Option<(Vec<i64>, usize)> {
        let mut shift = vec![by];
        for k in 1..hops.len().min(MAX_SHIFTED) {
            let (hop, by) = (&hops[k], shift[k - 1]);
            let phase = hop.phase + by;
            if phase >= self.net.phases(hop.from) {
                return None;
            }
            // As far as the cycle goes on within one iteration.
            let mut between = 0i64;
            let within = hops[k..].iter().take_while(|h| {
                let now = between == 0;
                between += h.tokens;
                now
            });
            let later = { within }.position(|h| h.from == hop.from && h.phase >= phase);
            if let Some(later) = later {
                return Some((shift, k + later));
            }
            let next = match hop.link.map(|l| &self.net.links[l]) {
                None => by,
                Some(link) if by * link.produce % link.consume == 0 => {
                    by * link.produce / link.consume
                }
                Some(_) => return None,
            };
            shift.push(next);
        }
        None
    }
}
