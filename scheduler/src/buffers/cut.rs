//! What a critical cycle says about all capacities, not only those it was found with.

use crate::throughput::{CriticalCycle, CycleHop, DependencyNet, Period, TokenSupply};

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
            (Goal::Below(bound), Some(period)) => period < bound,
            (Goal::AtMost(bound), Some(period)) => period <= bound,
        }
    }
}

/// Tokens that a cycle of that time needs for the goal.
fn needed_tokens(goal: Goal, time: i128) -> i128 {
    // What does not fit asks for more tokens than there can be.
    const NEVER: i128 = i128::MAX / 4;
    let (Goal::Below(period) | Goal::AtMost(period)) = goal else {
        return 1;
    };
    let period_num = period.num() as i128;
    let Some(scaled_time) = time.checked_mul(period.den() as i128) else {
        return NEVER;
    };

    match (goal, period_num) {
        (Goal::AtMost(_), 0) if scaled_time == 0 => 1,
        (_, 0) => NEVER,
        (Goal::AtMost(_), _) => ((scaled_time + period_num - 1) / period_num).max(1),
        _ => scaled_time / period_num + 1,
    }
}

/// Places of a channel's buffer that are taken at the start.
#[derive(Clone, Copy)]
struct TakenSpace {
    channel: usize,
    taken: i64,
}

/// The space that a dependency waits for, if it waits for any.
fn awaited_space(net: &DependencyNet, hop: &CycleHop) -> Option<TakenSpace> {
    match net.links[hop.link?].supply {
        TokenSupply::Space { channel, taken } => Some(TakenSpace { channel, taken }),
        TokenSupply::Fixed(_) => None,
    }
}

/// A dependency of a cycle that goes back along a buffer: `step * scale * ceil((capacity - base) / step)` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CutTerm {
    channel: usize,
    base: i64,
    step: i64,
    /// Scaled tokens per place, times how often the cycle comes by.
    scale: i128,
}

impl CutTerm {
    /// What terms have in common that give tokens at the same capacities.
    fn key(&self) -> (usize, i64, i64) {
        (self.channel, self.base, self.step)
    }

    fn tokens(&self, capacity: i64) -> i128 {
        let steps = -(self.base - capacity).div_euclid(self.step);
        i128::from(steps) * i128::from(self.step) * self.scale
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
    terms: Vec<CutTerm>,
    /// Distinct channels of `terms`, ascending.
    pub(super) channels: Vec<usize>,
    time: i128,
    fixed: i128,
    /// Tokens that the goal asks for.
    needed: i128,
}

impl Cut {
    /// The cut of a cycle.
    fn of(net: &DependencyNet, hops: &[CycleHop], time: i128, goal: Goal) -> Self {
        let mut cut = Cut {
            terms: Vec::new(),
            channels: Vec::new(),
            time,
            fixed: 0,
            needed: needed_tokens(goal, time),
        };
        for hop in hops {
            match awaited_space(net, hop) {
                Some(space) => cut.terms.push(CutTerm {
                    channel: space.channel,
                    base: hop.base + space.taken,
                    step: hop.step,
                    scale: hop.scale.into(),
                }),
                None => cut.fixed += i128::from(hop.tokens),
            }
        }

        // Equal terms are one that counts as often.
        cut.terms.sort_unstable_by_key(CutTerm::key);
        cut.terms.dedup_by(|next, term| {
            let is_same = next.key() == term.key();
            if is_same {
                term.scale += next.scale;
            }
            is_same
        });
        cut.channels = cut.terms.iter().map(|term| term.channel).collect();
        cut.channels.dedup();
        cut
    }

    /// Asks for the tokens of another goal from now on.
    pub(super) fn set_goal(&mut self, goal: Goal) {
        self.needed = needed_tokens(goal, self.time);
    }

    /// Tokens that the cycle lacks for the goal; not positive if the capacities suffice.
    pub(super) fn missing_tokens(&self, room: &[i64]) -> i128 {
        let given_tokens = self
            .terms
            .iter()
            .map(|term| term.tokens(room[term.channel]));
        self.needed - self.fixed - given_tokens.sum::<i128>()
    }

    fn terms_of(&self, channel: usize) -> impl Iterator<Item = &CutTerm> {
        self.terms
            .iter()
            .filter(move |term| term.channel == channel)
    }

    /// The least number of places more on the channel that gives the cycle more tokens.
    pub(super) fn first_step(&self, channel: usize, room: &[i64]) -> i64 {
        let first_steps = self.terms_of(channel);
        first_steps
            .map(|term| term.first_step(room[channel]))
            .min()
            .unwrap_or(i64::MAX)
    }

    /// Gives the channel the fewest places more with which the cycle lacks nothing; `None` if `max_places` are too few.
    pub(super) fn fill_up(&self, channel: usize, room: &mut [i64], max_places: i64) -> Option<i64> {
        let places_before = room[channel];
        // Capacities beyond this are beyond any memory.
        let max_places = max_places.min(1 << 60);

        // Doubles the step until enough lies within it, then bisects.
        let mut too_few = places_before;
        let mut places_step = 1i64;
        room[channel] = too_few.saturating_add(places_step).min(max_places);
        // The tokens grow in steps, so that a search is quicker than a formula for all terms.
        while self.missing_tokens(room) > 0 {
            too_few = room[channel];
            if too_few >= max_places {
                return None;
            }
            places_step = places_step.saturating_mul(2);
            room[channel] = too_few.saturating_add(places_step).min(max_places);
        }

        let mut enough_places = room[channel];
        while enough_places - too_few > 1 {
            let middle_places = too_few + (enough_places - too_few) / 2;
            room[channel] = middle_places;
            match self.missing_tokens(room) > 0 {
                true => too_few = middle_places,
                false => enough_places = middle_places,
            }
        }
        room[channel] = enough_places;
        Some(enough_places - places_before)
    }

    /// Adds the first step of the channel that gives the most tokens for its weight; whether any can.
    pub(super) fn grow(&self, room: &mut [i64], weights: &[u64]) -> bool {
        let mut best_growth: Option<ChannelGrowth> = None;

        for &channel in &self.channels {
            let current_places = room[channel];
            let first_step = self.first_step(channel, room);
            let grown_places = current_places.saturating_add(first_step);
            let tokens_before: i128 = self
                .terms_of(channel)
                .map(|term| term.tokens(current_places))
                .sum();
            let tokens_after: i128 = self
                .terms_of(channel)
                .map(|term| term.tokens(grown_places))
                .sum();
            let channel_growth = ChannelGrowth {
                channel,
                step: first_step,
                tokens: tokens_after - tokens_before,
                price: i128::from(first_step) * i128::from(weights[channel].max(1)),
            };
            if best_growth.is_none_or(|best_growth| channel_growth.is_better_than(best_growth)) {
                best_growth = Some(channel_growth);
            }
        }

        let Some(best_growth) = best_growth else {
            return false;
        };
        room[best_growth.channel] = room[best_growth.channel].saturating_add(best_growth.step);
        true
    }

    /// A lower bound on the weight of the places that give it the missing tokens, if only channels that are `free` to
    /// grow by a first step may.
    pub(super) fn min_weight(
        &self,
        missing: i128,
        room: &[i64],
        weights: &[u64],
        free: &[usize],
    ) -> u64 {
        let mut min_first_weight = u64::MAX;
        let mut slack_tokens = 0i128;
        // The channel that gives the most tokens for its weight, as a fraction.
        let mut best_tokens = 0i128;
        let mut best_weight = 1i128;

        for &channel in self
            .channels
            .iter()
            .filter(|channel| free.contains(channel))
        {
            let channel_weight = weights[channel];
            let first_step = self.first_step(channel, room) as u64;
            min_first_weight = min_first_weight.min(first_step.saturating_mul(channel_weight));

            let mut channel_tokens = 0i128;
            for term in self.terms_of(channel) {
                channel_tokens += term.scale;
                slack_tokens += term.scale * i128::from(term.slack(room[channel]));
            }
            let channel_weight = i128::from(channel_weight.max(1));
            if channel_tokens * best_weight > best_tokens * channel_weight {
                best_tokens = channel_tokens;
                best_weight = channel_weight;
            }
        }

        if best_tokens == 0 {
            return min_first_weight;
        }
        let missing_rest = (missing - slack_tokens).max(0).saturating_mul(best_weight);
        let even_weight = (missing_rest + best_tokens - 1) / best_tokens;
        u64::try_from(even_weight)
            .unwrap_or(u64::MAX)
            .max(min_first_weight)
    }
}

/// What the first step of a channel gives a cut.
#[derive(Clone, Copy)]
struct ChannelGrowth {
    channel: usize,
    /// Places more.
    step: i64,
    tokens: i128,
    price: i128,
}

impl ChannelGrowth {
    /// Whether it gives more tokens for its price.
    fn is_better_than(self, other: ChannelGrowth) -> bool {
        self.tokens.saturating_mul(other.price) > other.tokens.saturating_mul(self.price)
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
pub(super) fn make_cuts(net: &DependencyNet, cycle: &CriticalCycle, goal: Goal) -> Vec<Cut> {
    let hops = &cycle.hops[..];
    let plain_cut = Cut::of(net, hops, cycle.time, goal);
    let single_waits = channels_waited_for_once(net, hops);
    if cycle.tokens <= 0 || single_waits.is_empty() || plain_cut.needed <= cycle.tokens {
        return vec![plain_cut];
    }

    let mut shortening = CycleShortening {
        net,
        goal,
        time_scale: cycle.time_scale,
        work_left: LIFT_WORK,
    };
    let mut all_cuts = Vec::new();
    for &first in single_waits.iter().take(3) {
        let other_channels: Vec<usize> = single_waits
            .iter()
            .copied()
            .filter(|&channel| channel != first)
            .take(3)
            .collect();
        let mut lifted = hops.to_vec();
        for _ in 0..MAX_LIFTS {
            // With nothing to choose from, only the strongest one says something.
            if !other_channels.is_empty() {
                let mut fully_lifted = lifted.clone();
                for &channel in &other_channels {
                    while shortening.lift(&mut fully_lifted, channel) {}
                }
                let lifted_time = shortening.time(&fully_lifted);
                all_cuts.push(Cut::of(net, &fully_lifted, lifted_time, goal));
            }
            if !shortening.lift(&mut lifted, first) {
                break;
            }
        }
        all_cuts.push(Cut::of(net, &lifted, shortening.time(&lifted), goal));
    }

    all_cuts.sort_by(|a, b| a.terms.cmp(&b.terms));
    all_cuts.dedup_by(|a, b| a.terms == b.terms);
    all_cuts
}

/// Channels for whose space a cycle waits exactly once, ascending.
fn channels_waited_for_once(net: &DependencyNet, hops: &[CycleHop]) -> Vec<usize> {
    let awaited_spaces = hops.iter().filter_map(|hop| awaited_space(net, hop));
    let mut all_channels: Vec<usize> = awaited_spaces.map(|space| space.channel).collect();
    all_channels.sort_unstable();
    let channel_runs = all_channels.chunk_by(|a, b| a == b);
    channel_runs
        .filter(|run| run.len() == 1)
        .map(|run| run[0])
        .collect()
}

/// A cycle to be shortened.
struct CycleShortening<'a> {
    net: &'a DependencyNet,
    goal: Goal,
    time_scale: i128,
    /// Dependencies that may still be looked at.
    work_left: usize,
}

/// How a cycle gets shorter at the wait that it begins with.
enum Shortcut {
    /// The wait is for an earlier firing, at which the dependency at `end` begins.
    WaitForEarlier { end: usize },
    /// The firing that waits goes ahead, and those after it by these shifts, until they meet the cycle at `end`.
    GoAhead { shifts: Vec<i64>, end: usize },
}

impl Shortcut {
    /// The dependencies that it leaves out.
    fn skipped<'h>(&self, hops: &'h [CycleHop]) -> &'h [CycleHop] {
        match self {
            Shortcut::WaitForEarlier { end } => &hops[*end..],
            Shortcut::GoAhead { shifts, end } => &hops[shifts.len()..*end],
        }
    }
}

impl CycleShortening<'_> {
    fn time(&self, hops: &[CycleHop]) -> i128 {
        let waiting_hops = hops.iter().filter(|hop| hop.link.is_some());
        let unscaled_time: i128 = waiting_hops
            .map(|hop| i128::from(self.net.time_of(hop.from, hop.phase)))
            .sum();
        unscaled_time * self.time_scale
    }

    /// Shortens the cycle at its only wait for space of the channel; `false`, and the cycle stays, if it cannot
    /// be or would then meet the goal.
    fn lift(&mut self, hops: &mut Vec<CycleHop>, channel: usize) -> bool {
        let lift_work = hops.len() * 4;
        // With phases, what holds for a firing need not hold for the next.
        if self.net.has_phases || self.work_left < lift_work {
            return false;
        }
        self.work_left -= lift_work;
        let wait_index = hops.iter().position(|hop| {
            awaited_space(self.net, hop).is_some_and(|space| space.channel == channel)
        });
        let Some(wait_index) = wait_index else {
            return false;
        };
        // The wait comes first, and what may be left out behind it.
        hops.rotate_left(wait_index);

        // Of both ways the one that loses less time, if what is left still misses the goal.
        let shortcuts = [self.wait_for_earlier(hops), self.let_go_ahead(hops)];
        let timed_shortcuts = shortcuts.into_iter().flatten().map(|shortcut| {
            let lost_time = self.time(shortcut.skipped(hops));
            (lost_time, shortcut)
        });
        let Some((lost_time, shortcut)) = timed_shortcuts.min_by_key(|&(lost_time, _)| lost_time)
        else {
            return false;
        };
        let cycle_tokens: i128 = hops.iter().map(|hop| i128::from(hop.tokens)).sum();
        if needed_tokens(self.goal, self.time(hops) - lost_time) <= cycle_tokens {
            return false;
        }
        self.apply(shortcut, hops)
    }

    /// Takes a shortcut; `false` where the cycle does not begin with a link.
    fn apply(&self, shortcut: Shortcut, hops: &mut Vec<CycleHop>) -> bool {
        let Some(link) = hops[0].link else {
            return false;
        };
        let link = &self.net.links[link];

        match shortcut {
            Shortcut::WaitForEarlier { end } => {
                // The same link from an earlier phase: its tokens move with the phase.
                hops[0].base += link.produce.of_first(hops[0].phase - hops[end].phase);
                hops[0].phase = hops[end].phase;
                hops.truncate(end);
            }
            Shortcut::GoAhead { shifts, end } => {
                hops[0].base += link.consume.of_first(shifts[0]);
                for (hop, shift) in hops[1..shifts.len()].iter_mut().zip(&shifts) {
                    hop.phase += shift;
                }
                hops.drain(shifts.len()..end);
            }
        }
        true
    }

    /// The last dependency that starts at an earlier firing of the actor that the first one waits for.
    fn wait_for_earlier(&self, hops: &[CycleHop]) -> Option<Shortcut> {
        let mut tokens_between = 0i128;
        let end = (1..hops.len()).rev().find(|&index| {
            tokens_between += i128::from(hops[index].tokens);
            hops[index].from == hops[0].from
        })?;
        let is_earlier = tokens_between == 0 && hops[end].phase < hops[0].phase;
        is_earlier.then_some(Shortcut::WaitForEarlier { end })
    }

    /// Shifts of the firings from the one that waits on, until they meet the cycle again, and where that is.
    fn let_go_ahead(&self, hops: &[CycleHop]) -> Option<Shortcut> {
        (1..=MAX_SHIFT).find_map(|shift| self.shift_until_met(hops, shift))
    }

    fn shift_until_met(&self, hops: &[CycleHop], first_shift: i64) -> Option<Shortcut> {
        let mut shifts = vec![first_shift];

        for index in 1..hops.len().min(MAX_SHIFTED) {
            let hop = &hops[index];
            let own_shift = shifts[index - 1];
            let shifted_phase = hop.phase + own_shift;
            if shifted_phase >= self.net.phases(hop.from) {
                return None;
            }

            // As far as the cycle goes on within one iteration.
            let mut tokens_between = 0i64;
            let mut within_iteration = hops[index..].iter().take_while(|hop| {
                let is_within = tokens_between == 0;
                tokens_between += hop.tokens;
                is_within
            });
            let met_index = within_iteration
                .position(|other| other.from == hop.from && other.phase >= shifted_phase);
            if let Some(met_index) = met_index {
                return Some(Shortcut::GoAhead {
                    shifts,
                    end: index + met_index,
                });
            }

            let next_shift = match hop.link.map(|link| &self.net.links[link]) {
                None => own_shift,
                Some(link) => {
                    let written = link.produce.of_first(own_shift);
                    let rate = link.consume.every_firing()?;
                    if written % rate != 0 {
                        return None;
                    }
                    written / rate
                }
            };
            shifts.push(next_shift);
        }
        None
    }
}
