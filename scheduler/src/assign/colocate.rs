//! A lower bound on the period by units that must share a device.
//!
//! Asked "is there a period below t?", a pair of units that exchange data must share a device if apart one of the two
//! devices would take t or more. The least that a device takes with one of them and without the other, whatever else it
//! runs, is a minimum cut: each unit on the device costs its ticks, each net that leaves or enters it a transfer. Units
//! that must share a device are merged, which forces others, until nothing is left to merge. The merged problem has the
//! same placements with a period below t, and fewer and larger units: other arguments bound it better.

use super::bound::period_bound;
use super::cover;
use super::flow::FlowGraph;
use super::merged::{MergedProblem, UnitNet};
use super::pack;
use super::problem::PlacementProblem;
use super::transfer_share::LeastTransfers;
use super::{UnitGroups, merge_groups};
use crate::search::Control;

/// Periods that are asked about at most.
const QUESTIONS: u32 = 16;

/// Kinds of devices beyond which nothing is asked: each pair of units costs a minimum cut for each kind.
const MAX_KINDS: usize = 10;

/// Part of the range between the bound and the known period below which no more is asked: a 500th of the period.
const RESOLUTION: u64 = 500;

/// Part of the steps that goes into the least transfers of each unit.
const SHARE_PART: u64 = 2;

/// How much a bound may cost.
#[derive(Clone, Copy)]
pub(crate) struct ColocationLimits {
    /// Arcs looked at by all minimum cuts.
    pub(crate) steps: u64,
    /// Nodes of each question of the packing bound.
    pub(crate) packing: u64,
    /// Labels of the knapsacks of all questions of the covering bound.
    pub(crate) labels: u64,
}

/// "Is there a period below this?", and what the answer may cost.
#[derive(Clone, Copy)]
struct Question {
    below: u64,
    /// As in [`ColocationLimits`].
    steps: u64,
    packing: u64,
}

/// The largest bound on the period between `low` and `high`, the period of a known placement, that is proved within the
/// limits.
pub(crate) fn bound(
    problem: &PlacementProblem,
    merged: &MergedProblem,
    low: u64,
    high: u64,
    limits: ColocationLimits,
    control: &mut Control<'_>,
) -> u64 {
    if merged.devices_by_kind().len() > MAX_KINDS {
        return low;
    }
    let share_steps = limits.steps / SHARE_PART;
    let least_transfers = LeastTransfers::find(merged, high, share_steps);
    let mut labels = limits.labels;
    let mut proved = low;
    let mut unproved = high.saturating_add(1);
    let mut target = high;
    let steps_each = (limits.steps - share_steps) / u64::from(QUESTIONS);

    for _ in 0..QUESTIONS {
        let is_close = unproved - proved <= high / RESOLUTION;
        if target <= proved || is_close || control.stopped() {
            break;
        }
        // What bounds the placements below the target bounds the others too, as they are at the target or above.
        let question = Question {
            below: target,
            steps: steps_each,
            packing: limits.packing,
        };
        let found = bound_below(
            problem,
            merged,
            &least_transfers,
            question,
            &mut labels,
            control,
        );
        proved = proved.max(found.min(target));
        if found < target {
            unproved = target;
        }
        target = proved + (unproved - proved) / 2;
    }
    proved
}

/// Lower bound, at most `below`, on the period of every placement with a period less than `below`.
fn bound_below(
    problem: &PlacementProblem,
    merged: &MergedProblem,
    least_transfers: &LeastTransfers,
    question: Question,
    labels: &mut u64,
    control: &mut Control<'_>,
) -> u64 {
    let below = question.below;
    let mut current = merged.clone();
    let mut steps_left = question.steps;

    // Pairs that need no minimum cut first: most merges are of this kind, and they make the graph of the cuts small.
    for uses_cuts in [false, true] {
        while let Some(groups) = forced_groups(&current, below, uses_cuts, &mut steps_left) {
            match merge_groups(problem, &current, groups) {
                Some(merged) => current = merged,
                // No device can run all that must be together.
                None => return below,
            }
            if current.units() < 2 || control.stopped() {
                break;
            }
        }
    }

    forbid_what_does_not_fit(&mut current);
    let mut bound = period_bound(&current, below);
    if bound < below && pack::is_impossible(&current, below, question.packing, control) {
        return below;
    }

    // Another view of the same: units that bear their share of the transfers.
    let mut shared = current.clone();
    least_transfers.move_into_ticks(&mut shared, below);
    bound = bound.max(period_bound(&shared, below));
    if bound < below && pack::is_impossible(&shared, below, question.packing, control) {
        return below;
    }

    match bound < below && cover::is_impossible(&current, below, labels, control) {
        true => below,
        false => bound,
    }
}

/// A unit that alone exceeds the memory of a device is not on it.
fn forbid_what_does_not_fit(merged: &mut MergedProblem) {
    for (row, &bytes) in merged.ticks.iter_mut().zip(&merged.bytes) {
        for (ticks, &capacity) in row.iter_mut().zip(&merged.capacity) {
            if bytes > capacity {
                *ticks = None;
            }
        }
    }
}

/// Groups of units that must share a device, `None` if no two must.
fn forced_groups(
    merged: &MergedProblem,
    below: u64,
    uses_cuts: bool,
    steps_left: &mut u64,
) -> Option<UnitGroups> {
    let prices = NetPrices::of(merged);
    let kinds = merged.devices_by_kind();
    let mut groups = UnitGroups::new(merged.units());
    let mut graphs: Vec<FlowGraph> = Vec::new();
    if uses_cuts {
        graphs.extend(
            (0..kinds.len())
                .map(|kind| prices.flow_graph(merged, &kinds, kind, below, |ticks| ticks)),
        );
    }

    for (first, second) in adjacent_units(merged) {
        // Merged through others already.
        if groups.leader(first) == groups.leader(second) {
            continue;
        }
        let mut least_load = |unit: usize, other: usize, kind: usize| match graphs.get_mut(kind) {
            Some(graph) => graph.min_cut(unit, other, below, steps_left),
            None => prices.least_load(merged, unit, other, kind, kinds[kind][0]),
        };
        let all_kinds = 0..kinds.len();
        let first_kinds: Vec<usize> = all_kinds
            .clone()
            .filter(|&kind| least_load(first, second, kind) < below)
            .collect();
        let second_kinds: Vec<usize> = match first_kinds.is_empty() {
            true => Vec::new(),
            false => all_kinds
                .filter(|&kind| least_load(second, first, kind) < below)
                .collect(),
        };

        // Apart on two devices of one kind only if there are two.
        let may_part = first_kinds.iter().any(|&first_kind| {
            let mut others = second_kinds.iter();
            others.any(|&second_kind| first_kind != second_kind || kinds[first_kind].len() > 1)
        });
        if !may_part {
            groups.join(first, second);
        }
    }
    (groups.count < merged.units()).then_some(groups)
}

/// Pairs of units that a net connects, as writer and reader, each once.
fn adjacent_units(merged: &MergedProblem) -> Vec<(usize, usize)> {
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for net in &merged.nets {
        pairs.extend(
            net.to
                .iter()
                .map(|&to| (net.from.min(to), net.from.max(to))),
        );
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// Least ticks that each net costs a device of each kind, by kind and then by net.
pub(super) struct NetPrices {
    /// If the writer is on the device and some reader is not.
    pub(super) send: Vec<Vec<u64>>,
    /// If some reader is on the device and the writer is not.
    pub(super) receive: Vec<Vec<u64>>,
}

impl NetPrices {
    pub(super) fn of(merged: &MergedProblem) -> Self {
        let mut prices = NetPrices {
            send: Vec::new(),
            receive: Vec::new(),
        };
        for devices in merged.devices_by_kind() {
            let device = devices[0];
            let others: Vec<usize> = (0..merged.devices).filter(|&d| d != device).collect();
            let least_send = |net: &UnitNet| {
                let sends = others
                    .iter()
                    .map(|&other| merged.send_ticks(net, device, other));
                sends.min().unwrap_or(0)
            };
            let least_receive = |net: &UnitNet| {
                let receives = others.iter();
                let receives = receives.map(|&other| merged.receive_ticks(net, other, device));
                receives.min().unwrap_or(0)
            };
            prices
                .send
                .push(merged.nets.iter().map(least_send).collect());
            let receives = merged.nets.iter().map(least_receive);
            prices.receive.push(receives.collect());
        }
        prices
    }

    /// What a device takes at least with a unit and without another: the unit's ticks and the nets between the two.
    /// `u64::MAX` where it cannot run.
    fn least_load(
        &self,
        merged: &MergedProblem,
        unit: usize,
        other: usize,
        kind: usize,
        device: usize,
    ) -> u64 {
        let Some(mut load) = merged.ticks[unit][device] else {
            return u64::MAX;
        };
        for &index in &merged.nets_of[unit] {
            let net = &merged.nets[index];
            if net.from == unit && net.to.contains(&other) {
                load = load.saturating_add(self.send[kind][index]);
            } else if net.from == other && net.to.contains(&unit) {
                load = load.saturating_add(self.receive[kind][index]);
            }
        }
        load
    }

    /// The graph whose minimum cuts are the least loads of a device of a kind, as far as they are below `below`: the
    /// source's side runs on it, and each unit's ticks there count as `weigh` says.
    pub(super) fn flow_graph(
        &self,
        merged: &MergedProblem,
        kinds: &[Vec<usize>],
        kind: usize,
        below: u64,
        weigh: impl Fn(u64) -> u64,
    ) -> FlowGraph {
        let units = merged.units();
        let device = kinds[kind][0];
        // Elsewhere: a sink for the ticks of the units that run here.
        let ticks_sink = units;
        let mut graph = FlowGraph::new(units + 1 + 2 * merged.nets.len(), ticks_sink);
        for (unit, row) in merged.ticks.iter().enumerate() {
            graph.add_arc(
                unit,
                ticks_sink,
                row[device].map_or(below, &weigh).min(below),
            );
        }

        for (index, net) in merged.nets.iter().enumerate() {
            let sent = units + 1 + 2 * index;
            let received = sent + 1;
            let send = self.send[kind][index].min(below);
            if send > 0 {
                graph.add_arc(net.from, sent, send);
                for &reader in &net.to {
                    graph.add_arc(sent, reader, below);
                }
            }
            let receive = self.receive[kind][index].min(below);
            if receive > 0 {
                graph.add_arc(received, net.from, receive);
                for &reader in &net.to {
                    graph.add_arc(reader, received, below);
                }
            }
        }
        graph
    }
}
