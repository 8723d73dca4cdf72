//! Weights that do not fit a device: which of them it fetches from its tier in every period, where to and when.
//!
//! A CPU device reads a file by a thread beside its lane; a GPU copies from memory of its host, beside its kernels.
//!
//! Works on finished plans, and leaves all buffers and the order of what was there alone. The weights that are fetched
//! share one region behind the arena's buffers, in the order of their use: one after the other, and from the start again
//! where the region ends. So a fetch begins as soon as its place is free, as far ahead as the region is long, also over
//! the border of a period. The others stay in memory; as many as leave room for two fetched ones in a row, unless the
//! period is longer for it.

mod times;

use std::collections::BTreeMap;

use zbmd_ir::{
    Action, ActorId, Calendar, DeviceId, Entry, Machine, Plan, Slot, TiVec, limits, walk,
};

use crate::assemble::latency_ns;

/// Actors beyond which not every choice of what stays in memory is timed.
const MAX_TIMED_CHOICES: usize = 128;

/// Bytes of the constants of each actor, on the device where a plan has placed it.
#[derive(Clone, Debug, Default)]
pub struct WeightSizes {
    /// Those that may be fetched.
    pub fetchable: TiVec<ActorId, u64>,
    /// Those that are in memory all the time.
    pub other: TiVec<ActorId, u64>,
}

/// What a device fetches in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierUse {
    /// The device.
    pub device: DeviceId,
    /// Bytes that it fetches in each period.
    pub fetched_bytes: u64,
    /// Bytes of all weights of its actors.
    pub weight_bytes: u64,
    /// Time that the tier takes for a period's fetches.
    pub transfer_ns: u64,
    /// The plan's period if all weights were in memory.
    pub period_without_ns: u64,
    /// The plan's period.
    pub period_ns: u64,
}

/// Weights that a device can neither hold nor fetch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// Too little memory beside the tier.
    #[error(
        "{device} needs {needed_bytes} bytes of memory to fetch its weights in turn, {limit_bytes} are allowed"
    )]
    Memory {
        /// The device.
        device: DeviceId,
        /// For all that is not fetched, and for two of the largest weights.
        needed_bytes: u64,
        /// What the device has.
        limit_bytes: u64,
    },
    /// The tier itself is too small.
    #[error("the tier of {device} needs {needed_bytes} bytes, has {limit_bytes}")]
    Tier {
        /// The device.
        device: DeviceId,
        /// Bytes that the device would fetch.
        needed_bytes: u64,
        /// What the tier has.
        limit_bytes: u64,
    },
}

/// The weights of one actor, and where its lane uses them.
#[derive(Clone, Copy, Debug)]
struct WeightUse {
    actor: ActorId,
    stage: u32,
    /// Entries of the lane, first and last.
    first: usize,
    last: usize,
    bytes: u64,
}

impl WeightUse {
    fn aligned_bytes(&self) -> u64 {
        self.bytes.next_multiple_of(limits::ALIGN_BYTES)
    }
}

/// A fetch that has a place.
#[derive(Clone, Copy, Debug)]
struct PlacedFetch {
    used: WeightUse,
    /// Offset in the region.
    offset_bytes: u64,
    /// The entry after which its place is free.
    after: usize,
    /// Whether it serves the next period.
    is_for_next: bool,
}

/// Lets devices with tiers fetch the weights that do not fit their memory, in every plan; what each of them fetches.
/// Plans that fit stay as they are.
///
/// # Errors
/// See [`TierError`].
pub fn fetch_weights(
    machine: &Machine,
    sizes: &WeightSizes,
    plan: &mut Plan,
) -> Result<Vec<TierUse>, TierError> {
    let period_without_ns = plan.period_ns;
    let mut tier_uses = Vec::new();
    for index in 0..plan.calendars.len() {
        let device = plan.calendars[index].device;
        if machine.tiers.contains_key(&device) {
            tier_uses.extend(fetch_on_device(machine, sizes, plan, index)?);
        }
    }

    for tier_use in &mut tier_uses {
        tier_use.period_without_ns = period_without_ns;
        tier_use.period_ns = plan.period_ns;
    }
    Ok(tier_uses)
}

fn fetch_on_device(
    machine: &Machine,
    sizes: &WeightSizes,
    plan: &mut Plan,
    index: usize,
) -> Result<Option<TierUse>, TierError> {
    let calendar = &plan.calendars[index];
    let device = calendar.device;
    let uses = find_uses(calendar, &sizes.fetchable);
    let weight_bytes: u64 = uses.iter().map(|used| used.aligned_bytes()).sum();

    let placed = plan.placement.iter_enumerated();
    let other_bytes: u64 = placed
        .filter(|(_, placed)| **placed == device)
        .map(|(actor, _)| sizes.other[actor])
        .sum();
    // The region begins where the arena ended.
    let arena_bytes = calendar.arena_bytes.next_multiple_of(limits::ALIGN_BYTES);
    let fixed_bytes = arena_bytes
        .saturating_add(calendar.exchange_bytes)
        .saturating_add(other_bytes);
    let limit_bytes = machine.devices[device]
        .memory_bytes
        .min(limits::MAX_ARENA_BYTES);
    if fixed_bytes.saturating_add(weight_bytes) <= limit_bytes {
        return Ok(None);
    }

    let choice = Choice {
        machine,
        plan,
        index,
        uses: &uses,
        fetchable_bytes: &sizes.fetchable,
        free_bytes: limit_bytes.saturating_sub(fixed_bytes),
    };
    let Some(best) = choice.best() else {
        return Err(TierError::Memory {
            device,
            needed_bytes: fixed_bytes.saturating_add(two_largest(&uses)),
            limit_bytes,
        });
    };

    let tier = machine.tiers[&device];
    if best.fetched_bytes > tier.memory_bytes {
        return Err(TierError::Tier {
            device,
            needed_bytes: best.fetched_bytes,
            limit_bytes: tier.memory_bytes,
        });
    }
    *plan = best.plan;
    Ok(Some(TierUse {
        device,
        fetched_bytes: best.fetched_bytes,
        weight_bytes: uses.iter().map(|used| used.bytes).sum(),
        transfer_ns: best.transfer_ns,
        period_without_ns: 0,
        period_ns: 0,
    }))
}

/// The weights that a lane uses, in the order of their first use.
fn find_uses(calendar: &Calendar, fetchable_bytes: &TiVec<ActorId, u64>) -> Vec<WeightUse> {
    let mut uses: Vec<WeightUse> = Vec::new();
    let mut number_of: BTreeMap<ActorId, usize> = BTreeMap::new();
    let entries = calendar.lanes.iter().flat_map(|lane| &lane.entries);
    for (position, entry) in entries.enumerate() {
        walk::visit_slots(std::slice::from_ref(entry), |visit| {
            let Action::Fire { actor, .. } = visit.slot.action else {
                return;
            };
            if fetchable_bytes[actor] == 0 {
                return;
            }
            let number = *number_of.entry(actor).or_insert(uses.len());
            match uses.get_mut(number) {
                Some(used) => used.last = position,
                None => uses.push(WeightUse {
                    actor,
                    stage: visit.slot.stage,
                    first: position,
                    last: position,
                    bytes: fetchable_bytes[actor],
                }),
            }
        });
    }
    uses
}

/// What two weights in a row take, at most.
fn two_largest(uses: &[WeightUse]) -> u64 {
    let mut sizes: Vec<u64> = uses.iter().map(WeightUse::aligned_bytes).collect();
    sizes.sort_unstable();
    sizes.iter().rev().take(2).sum()
}

/// A plan with fetches.
struct FetchingPlan {
    plan: Plan,
    fetched_bytes: u64,
    transfer_ns: u64,
}

/// The choice of what one device fetches.
struct Choice<'a> {
    machine: &'a Machine,
    plan: &'a Plan,
    index: usize,
    uses: &'a [WeightUse],
    fetchable_bytes: &'a TiVec<ActorId, u64>,
    /// Bytes for weights, in memory and fetched.
    free_bytes: u64,
}

impl Choice<'_> {
    /// The plan with the shortest period that was found; `None` if there is no room for any.
    fn best(&self) -> Option<FetchingPlan> {
        let mut is_kept = vec![false; self.uses.len()];
        let mut best = self.plan_keeping(&is_kept)?;
        let are_timed = self.uses.len() <= MAX_TIMED_CHOICES;

        // Those that stay are spread over the period, so that fetches have time to go on meanwhile.
        for number in spread_order(self.uses.len()) {
            is_kept[number] = true;
            if !self.has_room_for_two(&is_kept) {
                is_kept[number] = false;
                continue;
            }
            if !are_timed {
                continue;
            }
            match self.plan_keeping(&is_kept) {
                // With equal periods the one that fetches less is better.
                Some(found) if found.plan.period_ns <= best.plan.period_ns => best = found,
                _ => is_kept[number] = false,
            }
        }
        if !are_timed
            && let Some(found) = self.plan_keeping(&is_kept)
            && found.plan.period_ns <= best.plan.period_ns
        {
            best = found;
        }
        Some(best)
    }

    fn kept_bytes(&self, is_kept: &[bool]) -> u64 {
        let pairs = self.uses.iter().zip(is_kept);
        let kept = pairs.filter(|(_, is_kept)| **is_kept);
        kept.map(|(used, _)| used.aligned_bytes()).sum()
    }

    /// The weights that are fetched, in the order of their use.
    fn fetched(&self, is_kept: &[bool]) -> Vec<WeightUse> {
        let pairs = self.uses.iter().zip(is_kept);
        let fetched = pairs.filter(|(_, is_kept)| !**is_kept);
        fetched.map(|(used, _)| *used).collect()
    }

    /// Whether any two weights that follow each other fit beside those that are kept.
    fn has_room_for_two(&self, is_kept: &[bool]) -> bool {
        let fetched = self.fetched(is_kept);
        if fetched.len() < 2 {
            return false;
        }
        let region_bytes = self.free_bytes.saturating_sub(self.kept_bytes(is_kept));
        let followers = fetched.iter().cycle().skip(1);
        let pairs = fetched.iter().zip(followers);
        let pair_bytes = pairs.map(|(one, next)| one.aligned_bytes() + next.aligned_bytes());
        pair_bytes.max().unwrap_or(0) <= region_bytes
    }

    /// The plan in which these weights are kept and all others fetched; `None` if they do not fit.
    fn plan_keeping(&self, is_kept: &[bool]) -> Option<FetchingPlan> {
        let fetched = self.fetched(is_kept);
        let region_bytes = self.free_bytes.checked_sub(self.kept_bytes(is_kept))?;
        let placed = place_in_turn(&fetched, region_bytes)?;

        let mut plan = self.plan.clone();
        let calendar = &mut plan.calendars[self.index];
        let region_start = calendar.arena_bytes.next_multiple_of(limits::ALIGN_BYTES);
        let ends = placed
            .iter()
            .map(|fetch| fetch.offset_bytes + fetch.used.aligned_bytes());
        calendar.arena_bytes = region_start + ends.max().unwrap_or(0);
        insert_slots(calendar, &placed, region_start);

        let tier = self.machine.tiers[&calendar.device];
        let transfers = fetched.iter().map(|used| tier.transfer_ns(used.bytes));
        let transfer_ns: u64 = transfers.sum();
        let device_name = self.machine.devices[calendar.device].name.clone();

        times::set_times(self.machine, &mut plan, self.fetchable_bytes);
        plan.latency_ns = latency_ns(&plan.calendars, plan.period_ns);
        if transfer_ns > self.plan.period_ns {
            plan.bound_by = format!("the tier of {device_name}");
        }
        Some(FetchingPlan {
            plan,
            fetched_bytes: fetched.iter().map(|used| used.bytes).sum(),
            transfer_ns,
        })
    }
}

/// The numbers below `count`, so that each beginning of the list is spread over all of them.
fn spread_order(count: usize) -> Vec<usize> {
    let bits = usize::BITS - count.next_power_of_two().leading_zeros() - 1;
    let all = 0..count.next_power_of_two();
    let reversed = all.map(|number| match bits {
        0 => number,
        _ => number.reverse_bits() >> (usize::BITS - bits),
    });
    reversed.filter(|number| *number < count).collect()
}

/// Places weights one after the other in a region, from its start again where it ends. `None` if two that are used at the
/// same time would have to share bytes.
fn place_in_turn(fetched: &[WeightUse], region_bytes: u64) -> Option<Vec<PlacedFetch>> {
    let mut offsets = Vec::with_capacity(fetched.len());
    let mut next_offset = 0u64;
    for used in fetched {
        let bytes = used.aligned_bytes();
        if bytes > region_bytes {
            return None;
        }
        if next_offset + bytes > region_bytes {
            next_offset = 0;
        }
        offsets.push(next_offset);
        next_offset += bytes;
    }

    let shares = |one: usize, other: usize| {
        let end = |number: usize| offsets[number] + fetched[number].aligned_bytes();
        offsets[one] < end(other) && offsets[other] < end(one)
    };
    let mut placed = Vec::with_capacity(fetched.len());
    for (number, used) in fetched.iter().enumerate() {
        let before = (0..number).filter(|other| shares(number, *other));
        let last_before = before.map(|other| fetched[other].last).max();
        if last_before.is_some_and(|last| last >= used.first) {
            return None;
        }

        // Without a user of the place before it in the period, the last one of the period before counts.
        let others = (0..fetched.len()).filter(|other| shares(number, *other));
        let last_of_all = others.map(|other| fetched[other].last).max();
        placed.push(PlacedFetch {
            used: *used,
            offset_bytes: offsets[number],
            after: last_before.or(last_of_all).unwrap_or(used.last),
            is_for_next: last_before.is_none(),
        });
    }
    Some(placed)
}

/// Adds the fetches to a lane, each after the entry that frees its place, and the waits, each before its first use.
fn insert_slots(calendar: &mut Calendar, placed: &[PlacedFetch], region_start: u64) {
    let Some(lane) = calendar.lanes.first_mut() else {
        return;
    };
    let slot = |fetch: &PlacedFetch, action| {
        Entry::Slot(Slot {
            stage: fetch.used.stage,
            start_ns: 0,
            duration_ns: 0,
            action,
        })
    };
    let mut waits: BTreeMap<usize, Vec<Entry>> = BTreeMap::new();
    let mut fetches: BTreeMap<(usize, bool), Vec<Entry>> = BTreeMap::new();
    for fetch in placed {
        let actor = fetch.used.actor;
        let wait = slot(fetch, Action::Await { actor });
        waits.entry(fetch.used.first).or_default().push(wait);
        let begin = Action::Fetch {
            actor,
            offset_bytes: region_start + fetch.offset_bytes,
        };
        // What the next period needs comes after what this one does.
        let place = (fetch.after, fetch.is_for_next);
        fetches.entry(place).or_default().push(slot(fetch, begin));
    }

    let entries = std::mem::take(&mut lane.entries);
    for (position, entry) in entries.into_iter().enumerate() {
        lane.entries
            .extend(waits.remove(&position).unwrap_or_default());
        lane.entries.push(entry);
        for is_for_next in [false, true] {
            let begun = fetches.remove(&(position, is_for_next));
            lane.entries.extend(begun.unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests;
