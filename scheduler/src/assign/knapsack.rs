//! The most valuable set of units that one device can run within a period, transfers to and from all others included.
//!
//! A dynamic program goes over the units in order. Of the units before a place it remembers what the transfers of nets with
//! units on both sides of it depend on ([`NetStatus`]), and the load, the bytes and the value so far. Networks are long and
//! narrow: few nets are open at a place, and each has a handful of states.

use std::cmp::Reverse;

use super::colocate::NetPrices;
use super::merged::MergedProblem;

/// Labels of one state whose loads lie in the same of so many parts of the period, and whose bytes in the same of as many
/// parts of the memory, become one that is at least as good as each of them: the values found are upper bounds, and little
/// above the best.
const PARTS: usize = 512;

/// Labels of one place beyond which a network is too wide.
const MAX_LABELS: usize = 1_000_000;

/// Bits of a state for each net that is open.
const STATUS_BITS: u32 = 3;

/// Nets that are open at one place at most.
const MAX_OPEN_NETS: usize = (u64::BITS / STATUS_BITS) as usize;

/// What sets take of a device of one kind.
pub(crate) struct DeviceDemand {
    /// Ticks of each unit; `None` where it cannot run.
    pub(crate) ticks: Vec<Option<u64>>,
    /// Ticks of each net if its writer is in the set and some reader is not.
    send: Vec<u64>,
    /// Ticks of each net if some reader is in the set and its writer is not.
    receive: Vec<u64>,
    /// Bytes of the device's memory; as many as there may be where all units fit together.
    capacity: u64,
}

impl DeviceDemand {
    /// Of units that take less than `below` and fit the memory.
    pub(crate) fn of(
        merged: &MergedProblem,
        prices: &NetPrices,
        kind: usize,
        device: usize,
        below: u64,
    ) -> Self {
        let capacity = merged.capacity[device];
        let bytes = merged.bytes.iter();
        let total_bytes = bytes.fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let units = merged.ticks.iter().zip(&merged.bytes);
        let ticks = units.map(|(row, &bytes)| {
            let fits = bytes <= capacity;
            row[device].filter(|&ticks| fits && ticks < below)
        });
        Self {
            ticks: ticks.collect(),
            send: prices.send[kind].clone(),
            receive: prices.receive[kind].clone(),
            capacity: if total_bytes > capacity {
                capacity
            } else {
                u64::MAX
            },
        }
    }
}

/// What is known of the units of a net before a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetStatus {
    /// Nothing yet, or nothing that matters any more: its transfer is counted.
    Settled,
    WriterIn,
    WriterOut,
    ReadersIn,
    ReadersOut,
    /// Some readers are in the set and some are not; its writer comes later.
    ReadersMixed,
}

/// A transfer that has to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    None,
    Send,
    Receive,
}

impl NetStatus {
    const ALL: [Self; 6] = [
        Self::Settled,
        Self::WriterIn,
        Self::WriterOut,
        Self::ReadersIn,
        Self::ReadersOut,
        Self::ReadersMixed,
    ];

    /// What is known after the first unit of the net.
    fn first(is_writer: bool, is_in: bool) -> Self {
        match (is_writer, is_in) {
            (true, true) => Self::WriterIn,
            (true, false) => Self::WriterOut,
            (false, true) => Self::ReadersIn,
            (false, false) => Self::ReadersOut,
        }
    }

    /// What is known after one more unit, and the transfer that follows from it.
    fn next(self, is_writer: bool, is_in: bool) -> (Self, Transfer) {
        match (self, is_writer, is_in) {
            (Self::WriterIn, false, false) => (Self::Settled, Transfer::Send),
            (Self::WriterOut, false, true) => (Self::Settled, Transfer::Receive),
            (Self::ReadersIn, true, true) => (Self::WriterIn, Transfer::None),
            (Self::ReadersOut, true, false) => (Self::WriterOut, Transfer::None),
            (Self::ReadersOut | Self::ReadersMixed, true, true) => (Self::Settled, Transfer::Send),
            (Self::ReadersIn | Self::ReadersMixed, true, false) => {
                (Self::Settled, Transfer::Receive)
            }
            (Self::ReadersIn, false, false) | (Self::ReadersOut, false, true) => {
                (Self::ReadersMixed, Transfer::None)
            }
            _ => (self, Transfer::None),
        }
    }
}

/// A unit as the reader or writer of a net.
struct NetEnd {
    net: usize,
    /// Where the net's status is in the state.
    slot: u32,
    is_writer: bool,
    /// It is the net's first unit in order, or the last one.
    is_first: bool,
    is_last: bool,
}

/// A unit in order, with its nets.
struct Place {
    unit: usize,
    ends: Vec<NetEnd>,
}

/// Part of a set: its units up to a place.
#[derive(Clone, Copy)]
struct Label {
    state: u64,
    load: u64,
    bytes: u64,
    value: i64,
    /// The label of the place before that it goes on from.
    parent: u32,
    is_in: bool,
}

/// The best set for some values of the units.
pub(crate) struct FoundSet {
    /// What it is worth, or a little more; where it is not above what was known, that.
    pub(crate) value: i64,
    /// Its units; none where no set is worth more than what was known.
    pub(crate) units: Option<Vec<usize>>,
}

/// Finds sets of one problem that take less than a period.
pub(crate) struct Knapsack<'a> {
    merged: &'a MergedProblem,
    pub(crate) below: u64,
    places: Vec<Place>,
}

impl<'a> Knapsack<'a> {
    /// `None` if too many nets are open at one place.
    pub(crate) fn new(merged: &'a MergedProblem, below: u64) -> Option<Self> {
        let places = places(merged)?;
        Some(Self {
            merged,
            below,
            places,
        })
    }

    /// Whether a device can run these units and no others.
    pub(crate) fn fits(&self, demand: &DeviceDemand, units: &[usize]) -> bool {
        let (load, bytes) = self.demand_of(demand, units);
        load < self.below && bytes <= demand.capacity
    }

    /// Ticks and bytes that a device takes for these units and no others.
    pub(crate) fn demand_of(&self, demand: &DeviceDemand, units: &[usize]) -> (u64, u64) {
        let mut is_in = vec![false; self.merged.units()];
        let mut load = 0u64;
        let mut bytes = 0u64;
        for &unit in units {
            is_in[unit] = true;
            load = load.saturating_add(demand.ticks[unit].unwrap_or(u64::MAX));
            bytes = bytes.saturating_add(self.merged.bytes[unit]);
        }
        for (index, net) in self.merged.nets.iter().enumerate() {
            let mut readers = net.to.iter();
            let transfer = match is_in[net.from] {
                true if readers.any(|&reader| !is_in[reader]) => demand.send[index],
                false if readers.any(|&reader| is_in[reader]) => demand.receive[index],
                _ => 0,
            };
            load = load.saturating_add(transfer);
        }
        (load, bytes)
    }

    /// The set of the largest value above `known`. `None` if there are too many labels; `labels` falls by those taken.
    pub(crate) fn best_set(
        &self,
        demand: &DeviceDemand,
        values: &[i64],
        known: i64,
        labels: &mut u64,
    ) -> Option<FoundSet> {
        // What the units from each place on can add.
        let mut rest: i64 = values.iter().map(|value| value.max(&0)).sum();
        let mut layer = vec![Label {
            state: 0,
            load: 0,
            bytes: 0,
            value: 0,
            parent: 0,
            is_in: false,
        }];
        let mut steps: Vec<Vec<(u32, bool)>> = Vec::with_capacity(self.places.len());

        for place in &self.places {
            let value = values[place.unit];
            rest -= value.max(0);
            let mut next = Vec::with_capacity(2 * layer.len());
            for (parent, label) in (0u32..).zip(&layer) {
                for is_in in [false, true] {
                    let Some(mut following) = self.follow(demand, place, label, is_in) else {
                        continue;
                    };
                    following.value += if is_in { value } else { 0 };
                    following.parent = parent;
                    if following.value + rest > known {
                        next.push(following);
                    }
                }
            }
            layer = self.pruned(demand, next);
            *labels = labels.saturating_sub(layer.len() as u64);
            if layer.len() > MAX_LABELS || *labels == 0 {
                return None;
            }
            let parents = layer.iter().map(|label| (label.parent, label.is_in));
            steps.push(parents.collect());
        }

        let indexed = layer.iter().enumerate();
        let Some((best, label)) = indexed.max_by_key(|(_, label)| label.value) else {
            return Some(FoundSet {
                value: known,
                units: None,
            });
        };
        Some(FoundSet {
            value: label.value,
            units: Some(self.trace(&steps, best)),
        })
    }

    /// The label with the next unit in or out; `None` if the device cannot run that.
    fn follow(
        &self,
        demand: &DeviceDemand,
        place: &Place,
        label: &Label,
        is_in: bool,
    ) -> Option<Label> {
        let mut load = label.load;
        let mut bytes = label.bytes;
        if is_in {
            load = load.saturating_add(demand.ticks[place.unit]?);
            bytes = bytes.saturating_add(self.merged.bytes[place.unit]);
        }
        let mut state = label.state;
        for end in &place.ends {
            let shift = end.slot * STATUS_BITS;
            let known = NetStatus::ALL[(state >> shift & ((1 << STATUS_BITS) - 1)) as usize];
            let (status, transfer) = match end.is_first {
                true => (NetStatus::first(end.is_writer, is_in), Transfer::None),
                false => known.next(end.is_writer, is_in),
            };
            load = load.saturating_add(match transfer {
                Transfer::None => 0,
                Transfer::Send => demand.send[end.net],
                Transfer::Receive => demand.receive[end.net],
            });
            let status = if end.is_last {
                NetStatus::Settled
            } else {
                status
            };
            state &= !(((1 << STATUS_BITS) - 1) << shift);
            state |= (status as u64) << shift;
        }
        let fits = load < self.below && bytes <= demand.capacity;
        fits.then_some(Label {
            state,
            load,
            bytes,
            is_in,
            ..*label
        })
    }

    /// Of each state the labels that no other one is as good as, and of those in one part of loads and bytes one.
    fn pruned(&self, demand: &DeviceDemand, mut labels: Vec<Label>) -> Vec<Label> {
        labels.sort_unstable_by_key(|label| (label.state, label.load, Reverse(label.value)));
        let mut kept: Vec<Label> = Vec::with_capacity(labels.len() / 2);
        for of_state in labels.chunk_by(|one, other| one.state == other.state) {
            let mut best_by_bytes = PrefixMaximum::default();
            // The last label that was kept of each part of the bytes.
            let mut last_of = [None; PARTS];
            for label in of_state {
                let byte_part = part_of(label.bytes, demand.capacity);
                // Others are lighter: they have been before.
                if byte_part > 0 && best_by_bytes.up_to(byte_part - 1) >= label.value {
                    continue;
                }
                let load_part = part_of(label.load, self.below);
                match last_of[byte_part].map(|index: usize| &mut kept[index]) {
                    Some(last) if last.value >= label.value => {
                        last.bytes = last.bytes.min(label.bytes);
                        continue;
                    }
                    Some(last) if part_of(last.load, self.below) == load_part => {
                        *last = Label {
                            load: last.load,
                            bytes: last.bytes.min(label.bytes),
                            ..*label
                        };
                    }
                    _ => {
                        last_of[byte_part] = Some(kept.len());
                        kept.push(*label);
                    }
                }
                best_by_bytes.raise(byte_part, label.value);
            }
        }
        kept
    }

    /// The units in the set of a label of the last place.
    fn trace(&self, steps: &[Vec<(u32, bool)>], last: usize) -> Vec<usize> {
        let mut units = Vec::new();
        let mut index = last;
        for (place, step) in self.places.iter().zip(steps).rev() {
            let (parent, is_in) = step[index];
            if is_in {
                units.push(place.unit);
            }
            index = parent as usize;
        }
        units
    }
}

/// Which of the parts of a whole a value is in.
fn part_of(value: u64, whole: u64) -> usize {
    let scaled = u128::from(value) * PARTS as u128 / (u128::from(whole) + 1);
    (scaled as usize).min(PARTS - 1)
}

/// The largest values of the parts up to each (Fenwick 1994).
struct PrefixMaximum([i64; PARTS]);

impl Default for PrefixMaximum {
    fn default() -> Self {
        Self([i64::MIN; PARTS])
    }
}

impl PrefixMaximum {
    fn up_to(&self, part: usize) -> i64 {
        let mut index = part + 1;
        let mut largest = i64::MIN;
        while index > 0 {
            largest = largest.max(self.0[index - 1]);
            index &= index - 1;
        }
        largest
    }

    fn raise(&mut self, part: usize, value: i64) {
        let mut index = part + 1;
        while index <= PARTS {
            let known = &mut self.0[index - 1];
            *known = value.max(*known);
            index += index & index.wrapping_neg();
        }
    }
}

/// The units in order, with slots for the status of each net from its first unit to its last.
fn places(merged: &MergedProblem) -> Option<Vec<Place>> {
    let mut position_of = vec![0; merged.units()];
    for (position, &unit) in merged.order.iter().enumerate() {
        position_of[unit] = position;
    }
    let spans = merged.nets.iter().map(|net| {
        let units = net.to.iter().chain([&net.from]);
        let positions = units.map(|&unit| position_of[unit]);
        positions.fold((usize::MAX, 0), |(first, last), position| {
            (first.min(position), last.max(position))
        })
    });
    let spans: Vec<(usize, usize)> = spans.collect();

    let mut places = Vec::with_capacity(merged.units());
    let mut slot_of = vec![0; merged.nets.len()];
    let mut free_slots: Vec<u32> = (0..MAX_OPEN_NETS as u32).rev().collect();
    for (position, &unit) in merged.order.iter().enumerate() {
        let mut ends = Vec::with_capacity(merged.nets_of[unit].len());
        for &net in &merged.nets_of[unit] {
            let (first, last) = spans[net];
            if first == position {
                slot_of[net] = free_slots.pop()?;
            }
            ends.push(NetEnd {
                net,
                slot: slot_of[net],
                is_writer: merged.nets[net].from == unit,
                is_first: first == position,
                is_last: last == position,
            });
        }
        let closed = ends.iter().filter(|end| end.is_last);
        free_slots.extend(closed.map(|end| end.slot));
        places.push(Place { unit, ends });
    }
    Some(places)
}
