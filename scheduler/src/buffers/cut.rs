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
    let (Goal::Below(period) | Goal::AtMost(period)) = goal else { return 1 };
    let (num, den) = (period.num() as i128, period.den() as i128);
    let Some(work) = time.checked_mul(den) else { return NEVER };
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
#[derive(Clone, Copy, Debug)]
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
                    cut.uses.push(Use { channel, base, step, scale });
                }
                None => cut.fixed += i128::from(hop.tokens),
            }
        }
        cut.uses.sort_unstable_by_key(|u| (u.channel, u.base, u.step));
        cut.uses.dedup_by(|next, u| {
            let same = (next.channel, next.base, next.step) == (u.channel, u.base, u.step);
            u.scale += i128::from(same) * next.scale;
            same
        });
        cut.channels = cut.uses.iter().map(|u| u.channel).collect();
        cut.channels.dedup();
        cut
    }

    pub(super) fn show(&self) -> String {
        format!(
            "time {} needs {} fixed {} uses {:?}",
            self.time,
            self.needed,
            self.fixed,
            self.uses.iter().map(|u| (u.channel, u.base, u.step, u.scale)).collect::<Vec<_>>()
        )
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
        of.map(|u| u.first_step(room[channel])).min().unwrap_or(i64::MAX)
    }

    /// Adds the first step of the channel that gives the most tokens for its weight; whether any can.
    pub(super) fn grow(&self, room: &mut [i64], weights: &[u64]) -> bool {
        let mut best: Option<(i128, i128, usize, i64)> = None;
        for &channel in &self.channels {
            let step = self.first_step(channel, room);
            let own = || self.uses.iter().filter(|u| u.channel == channel);
            let after: i128 = own().map(|u| u.tokens(room[channel].saturating_add(step))).sum();
            let gain = after - own().map(|u| u.tokens(room[channel])).sum::<i128>();
            let price = i128::from(step) * i128::from(weights[channel].max(1));
            if best.is_none_or(|(g, p, ..)| gain.saturating_mul(p) > g.saturating_mul(price)) {
                best = Some((gain, price, channel, step));
            }
        }
        let Some((_, _, channel, step)) = best else { return false };
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

/// Cuts beyond this many are not worth their while.
const MAX_LIFTS: usize = 24;

/// Cuts of a cycle that misses the goal, made as strong as its own firings allow.
///
/// Where the cycle waits once for space that firing a of an actor frees, more places let it wait for an earlier
/// firing. If one is on the cycle too, what lies between can be left out: another cycle, which exists up to that many
/// places more. As long as it still misses the goal, it says more than the one it was made of.
pub(super) fn cuts(net: &Net, verdict: &Verdict, goal: Goal) -> Vec<Cut> {
    let cycle = Cycle { net, goal, time_scale: verdict.time_scale };
    let hops = &verdict.hops[..];
    let single = |channel: usize| {
        hops.iter().filter(|h| space(net, h).is_some_and(|(c, _)| c == channel)).count() == 1
    };
    let plain = Cut::of(net, hops, verdict.time, goal);
    let singles: Vec<usize> = plain.channels.iter().copied().filter(|&c| single(c)).collect();
    if verdict.tokens <= 0 || singles.is_empty() {
        return vec![plain];
    }
    let mut cuts = Vec::new();
    for &first in singles.iter().take(4) {
        let mut lifted = hops.to_vec();
        let others = || singles.iter().filter(|&&c| c != first).take(3);
        for _ in 0..MAX_LIFTS {
            let mut full = lifted.clone();
            for &channel in others() {
                while cycle.lift(&mut full, channel) {}
            }
            cuts.push(Cut::of(net, &full, cycle.time(&full), goal));
            if !cycle.lift(&mut lifted, first) {
                break;
            }
        }
    }
    cuts
}

/// A cycle to be shortened.
struct Cycle<'a> {
    net: &'a Net,
    goal: Goal,
    time_scale: i128,
}

impl Cycle<'_> {
    fn time(&self, hops: &[Hop]) -> i128 {
        let real = hops.iter().filter(|h| h.link.is_some());
        real.map(|h| i128::from(self.net.times[h.from])).sum::<i128>() * self.time_scale
    }

    /// Waits for the next earlier firing on the cycle where it waits for the channel's space; `false`, and the cycle
    /// stays, if there is none or the cycle would meet the goal.
    fn lift(&self, hops: &mut Vec<Hop>, channel: usize) -> bool {
        let waits = |h: &Hop| space(self.net, h).is_some_and(|(c, _)| c == channel);
        let Some(at) = hops.iter().position(waits) else { return false };
        hops.rotate_left(at);
        let (actor, phase) = (hops[0].from, hops[0].phase);
        let mut between = 0i128;
        let earlier = (1..hops.len()).rev().find(|&i| {
            between += i128::from(hops[i].tokens);
            hops[i].from == actor
        });
        let Some(i) = earlier.filter(|&i| between == 0 && hops[i].phase < phase) else {
            return false;
        };
        let tokens: i128 = hops.iter().map(|h| i128::from(h.tokens)).sum();
        if needed(self.goal, self.time(&hops[..i])) <= tokens {
            return false;
        }
        let Some(link) = hops[0].link else { return false };
        let earlier = hops[i].phase;
        hops.truncate(i);
        hops[0].base += self.net.links[link].produce * (phase - earlier);
        hops[0].phase = earlier;
        true
    }
}
