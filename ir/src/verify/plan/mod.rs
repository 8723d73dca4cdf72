//! One plan against its graph and machine. Each part may index by what the parts before it have checked.

mod buffers;
mod calendar;
mod chunks;
mod cursor;
mod deadlock;
mod firings;
mod gates;
mod memory;
mod order;
mod rings;
mod times;
mod variants;
mod weights;

use std::collections::BTreeMap;

use self::cursor::Flat;
use super::budget::graph_elements;
use super::error::{Errors, VerifyError};
use crate::limits::{MAX_ARENA_BYTES, MAX_FIRINGS};
use crate::{
    ActorId, BufferId, ChannelId, DeviceId, Graph, Machine, Plan, PlanId, PortChannels, RingId,
    TiVec,
};

/// What every part reads: the plan and numbers that follow from graph and placement.
struct Cx<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    id: PlanId,
    plan: &'a Plan,
    ports: PortChannels,
    /// Firings of each actor in a block.
    firings: TiVec<ActorId, u64>,
    /// New tokens of each channel in a block.
    tokens: TiVec<ChannelId, u64>,
    /// Largest delay of each channel's readers on each device that has the writer or a reader.
    heads: BTreeMap<(ChannelId, DeviceId), u64>,
    /// See [`Graph::is_state`].
    is_state: TiVec<ChannelId, bool>,
}

/// Stages of all slots that serve one actor, ring or buffer. Filled once the slots' ids are known to exist.
#[derive(Default)]
struct Stages {
    fire: TiVec<ActorId, Option<u32>>,
    send: TiVec<RingId, Option<u32>>,
    recv: TiVec<RingId, Option<u32>>,
    release: TiVec<RingId, Option<u32>>,
    carry: TiVec<BufferId, Option<u32>>,
}

/// What all plans of a program are checked against: a graph and a machine that have passed.
pub(super) struct Checked<'a> {
    pub(super) graph: &'a Graph,
    /// The graph's repetition vector.
    pub(super) repetition: &'a TiVec<ActorId, u64>,
    pub(super) machine: &'a Machine,
}

/// Checks a plan.
pub(super) fn check(checked: &Checked<'_>, id: PlanId, plan: &Plan, errors: &mut Errors) {
    let graph = checked.graph;
    let machine = checked.machine;

    // Every plan goes through the whole graph again.
    const STEPS_PER_GRAPH_ELEMENT: u64 = 8;
    let steps = graph_elements(graph).saturating_mul(STEPS_PER_GRAPH_ELEMENT);
    if !errors.reserve(|| format!("the tables of {id}"), steps) {
        return;
    }

    let errors_before = errors.found();
    let Some(cx) = Cx::new(checked, id, plan, errors) else {
        return;
    };
    variants::check(&cx, errors);
    gates::check(&cx, errors);
    let lanes = calendar::check(&cx, errors);
    let buffer_of = buffers::check(&cx, errors);
    let ring_of = rings::check_table(&cx, &buffer_of, errors);
    let (Some(mut lanes), true) = (lanes, errors.found() == errors_before) else {
        return;
    };
    times::check(&cx, &mut lanes, errors);
    let Some(stages) = calendar::stages(&cx, &lanes, errors) else {
        return;
    };
    // For firings, for the order, and where weights are fetched for those.
    let visits = if weights::has_fetches(&lanes) { 3 } else { 2 };
    let lane_steps = lanes.list.iter().map(|(_, flat)| {
        let steps = flat.visit_steps(|slot| order::steps(&cx, slot));
        steps.saturating_mul(visits)
    });
    let steps = lane_steps.fold(0, u64::saturating_add);
    if !errors.reserve(|| format!("the slots of {id}"), steps) {
        return;
    }

    let errors_before = errors.found();
    firings::check(&cx, &lanes, &stages, errors);
    if errors.found() > errors_before {
        return;
    }

    // Plans do not record in-place pairs. An overlap that matches an allowed `Actor::in_place` pair exactly is treated
    // as intentional; any other overlap is an error.
    let mut in_place_pairs = plan.over(graph);
    in_place_pairs.retain(|o| {
        machine.devices[plan.placement[o.actor]]
            .backend
            .may_write_in_place()
    });
    let live_ranges = order::check(&cx, &lanes, &stages, (&buffer_of, &in_place_pairs), errors);
    chunks::check(&cx, &lanes, &stages, errors);
    let live_weights = weights::check(&cx, &lanes, &stages, errors);
    memory::check(&cx, &live_ranges, &live_weights, &in_place_pairs, errors);
    deadlock::check(&cx, &lanes, &stages, &ring_of, errors);
}

/// Firings and tokens of a block, within limits.
struct BlockCount<'e> {
    plan: PlanId,
    errors: &'e mut Errors,
}

impl BlockCount<'_> {
    /// The count; reports one that is above its limit.
    fn bounded(&mut self, actor: ActorId, count: u128, limit: u64) -> u64 {
        if count > u128::from(limit) {
            self.errors.push(VerifyError::BlockFirings {
                plan: self.plan,
                actor,
                firings: count,
                limit: u128::from(limit),
            });
        }
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

impl<'a> Cx<'a> {
    fn new(checked: &Checked<'a>, id: PlanId, plan: &'a Plan, errors: &mut Errors) -> Option<Self> {
        let graph = checked.graph;
        let machine = checked.machine;
        let repetition = checked.repetition;

        let before = errors.found();
        if plan.block == 0 {
            errors.push(VerifyError::ZeroBlock { plan: id });
        }
        if plan.period_ns == 0 {
            errors.push(VerifyError::ZeroPeriod { plan: id });
        }
        if plan.placement.len() != graph.actors.len() {
            errors.push(VerifyError::PlacementLength {
                plan: id,
                placed: plan.placement.len(),
                actors: graph.actors.len(),
            });
        }

        let devices = machine.devices.len();
        for (actor, &device) in plan.placement.iter_enumerated() {
            if device.index() >= devices {
                errors.push(VerifyError::PlacementDevice {
                    plan: id,
                    actor,
                    device,
                    devices,
                });
            }
        }

        // What the other checks add up is bounded here, so that their sums do not wrap.
        let mut block_count = BlockCount { plan: id, errors };
        let mut firings = TiVec::with_capacity(repetition.len());
        for (actor, &repetitions) in repetition.iter_enumerated() {
            let count = u128::from(repetitions) * u128::from(plan.block);
            firings.push(block_count.bounded(actor, count, MAX_FIRINGS));
        }

        let mut tokens = TiVec::with_capacity(graph.channels.len());
        for channel in &graph.channels {
            let writer = channel.from;
            let rate = graph.actors[writer.actor].outputs[writer.port as usize].rate;
            let count = u128::from(firings[writer.actor]) * u128::from(rate);
            tokens.push(block_count.bounded(writer.actor, count, MAX_ARENA_BYTES));
        }

        if errors.found() > before {
            return None;
        }
        let ports = graph.port_channels();
        let heads = max_delays(graph, plan);
        let is_state = find_states(graph, &ports);
        Some(Self {
            graph,
            machine,
            id,
            plan,
            ports,
            firings,
            tokens,
            heads,
            is_state,
        })
    }

    fn writer_device(&self, channel: ChannelId) -> DeviceId {
        self.plan.placement[self.graph.channels[channel].from.actor]
    }
}

fn max_delays(graph: &Graph, plan: &Plan) -> BTreeMap<(ChannelId, DeviceId), u64> {
    let mut head_tokens = BTreeMap::new();
    for (id, channel) in graph.channels.iter_enumerated() {
        head_tokens
            .entry((id, plan.placement[channel.from.actor]))
            .or_insert(0);

        // The head holds what the reader with the largest delay still needs.
        for reader in &channel.readers {
            let head = head_tokens
                .entry((id, plan.placement[reader.to.actor]))
                .or_insert(0);
            *head = reader.delay.max(*head);
        }
    }

    head_tokens
}

/// Which channels are states; [`Graph::is_state`] would search the writer's states for each.
fn find_states(graph: &Graph, ports: &PortChannels) -> TiVec<ChannelId, bool> {
    let mut is_state: TiVec<ChannelId, bool> = vec![false; graph.channels.len()].into();
    for (id, actor) in graph.actors.iter_enumerated() {
        for state in &actor.state {
            if let Some(&Some(channel)) = ports.outputs[id].get(state.output as usize) {
                is_state[channel] = true;
            }
        }
    }
    is_state
}

/// Device and flattened lane of each calendar.
struct Lanes<'a> {
    list: Vec<(DeviceId, Flat<'a>)>,
}
