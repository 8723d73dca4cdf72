//! What a critical cycle says about all capacities, not only those it was found with.

use crate::throughput::{Net, Period, Supply, Verdict};

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

/// A dependency of a cycle that goes back along a buffer: `step * scale * ceil((capacity - base) / step)` tokens.
#[derive(Clone, Copy, Debug)]
struct Use {
    channel: usize,
    base: i64,
    step: i64,
    scale: i64,
}

impl Use {
    fn tokens(&self, capacity: i64) -> i128 {
        let blocks = -(self.base - capacity).div_euclid(self.step);
        i128::from(blocks) * i128::from(self.step) * i128::from(self.scale)
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
    pub(super) fn of(net: &Net, verdict: &Verdict, goal: Goal) -> Self {
        let mut cut = Cut {
            uses: Vec::new(),
            channels: Vec::new(),
            time: verdict.time,
            fixed: 0,
            needed: 0,
        };
        for hop in &verdict.hops {
            match hop.link.map(|link| net.links[link].supply) {
                Some(Supply::Space { channel, taken }) => {
                    let (base, step, scale) = (hop.base + taken, hop.step, hop.scale);
                    cut.uses.push(Use { channel, base, step, scale });
                    cut.channels.push(channel);
                }
                _ => cut.fixed += i128::from(hop.tokens),
            }
        }
        cut.channels.sort_unstable();
        cut.channels.dedup();
        cut.aim(goal);
        cut
    }

    /// Asks for the tokens of another goal from now on.
    pub(super) fn aim(&mut self, goal: Goal) {
        let over = |p: Period, round_up: bool| {
            let (num, den) = (p.num() as i128, p.den() as i128);
            // A product that does not fit asks for more tokens than there can be.
            let Some(work) = self.time.checked_mul(den) else { return i128::MAX / 4 };
            match num {
                0 if work == 0 => i128::from(!round_up) * (i128::MAX / 4),
                0 => i128::MAX / 4,
                _ if round_up => (work + num - 1) / num,
                _ => work / num + 1,
            }
        };
        self.needed = match goal {
            Goal::Live => 1,
            Goal::Below(p) => over(p, false).max(1),
            Goal::AtMost(p) => over(p, true).max(1),
        };
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
                scale += i128::from(u.scale);
                slack += i128::from(u.scale) * i128::from(u.slack(room[channel]));
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
