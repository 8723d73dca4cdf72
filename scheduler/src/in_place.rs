//! Which outputs are written over inputs, and which are parts of each other. Decides no offset.
//!
//! An actor that may write over an input does, where the input is read for the last time: then its memory would be free
//! after the firing, and the output's be taken before it. So what lies in memory at any moment only shrinks.
//!
//! With parts it can grow: all of a concatenation is there as soon as its first part is, and all of what was split
//! until its last part goes. So parts are tied ([`crate::parts`]) only where the most bytes that are live at one moment
//! stay what they are without parts.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::{
    Action, ActorId, BufferId, ChannelId, DeviceId, InPlace, Plan, RingId, Slot, TiVec, TokenType,
    limits, walk,
};

use crate::live::{BufferIndex, LiveRanges};
use crate::parts::{BufferBlocks, BufferLife, Overlap, PartPlace, TiedBuffers};
use crate::problem::BlockProblem;

/// What is tied to what.
pub(crate) struct Ties {
    /// All ties that were found to be allowed.
    pub(crate) all: TiedBuffers,
    /// Only those of outputs as large as their inputs.
    pub(crate) without_parts: TiedBuffers,
    /// Largest sum of bytes that are live at one moment without parts, for the devices that have any.
    pub(crate) peak_bytes: BTreeMap<DeviceId, u64>,
}

/// An output that may be written over an input.
#[derive(Clone, Copy)]
struct InPlacePair {
    actor: ActorId,
    /// The input's buffer.
    below: BufferId,
    /// The output's buffer.
    above: BufferId,
    /// Where the output begins, from the input's first byte.
    shift: i64,
    /// The input's bytes compared with the output's.
    fit: Ordering,
}

/// Finds what can be written over what on the CPUs of a plan, whose kernels alone keep to
/// [`zbmd_ir::Actor::in_place`]. Of outputs as large as their inputs, the first that is possible is taken, in the order in
/// which the actor names them.
pub(crate) fn find(
    problem: &BlockProblem<'_>,
    plan: &Plan,
    buffer_at: &BufferIndex,
    live_ranges: &LiveRanges,
) -> Ties {
    let pair_finder = PairFinder {
        problem,
        plan,
        buffer_at,
        live_ranges,
        uses: LaneUses::of(plan),
    };
    let pairs = pair_finder.find_pairs();
    let lives = live_ranges
        .iter_enumerated()
        .map(|(id, _)| buffer_life(plan, live_ranges, id));
    let mut blocks = BufferBlocks::new(lives.collect());

    // Each buffer has at most one other of its size below it and one above it.
    let mut has_above = BTreeSet::new();
    let mut has_below = BTreeSet::new();
    for pair in pairs.iter().filter(|pair| pair.fit.is_eq()) {
        if !has_above.contains(&pair.below) && !has_below.contains(&pair.above) {
            blocks.lay_over(pair.below, pair.above);
            has_above.insert(pair.below);
            has_below.insert(pair.above);
        }
    }

    let without_parts = blocks.tied_buffers();
    let peak_bytes = tie_parts(plan, &pairs, &mut blocks);
    let all = match peak_bytes.is_empty() {
        true => without_parts.clone(),
        false => blocks.tied_buffers(),
    };
    Ties {
        all,
        without_parts,
        peak_bytes,
    }
}

fn buffer_life(plan: &Plan, live_ranges: &LiveRanges, id: BufferId) -> Option<BufferLife> {
    let buffer = &plan.buffers[id];
    let range = live_ranges[id].filter(|range| range.is_transient(buffer))?;
    Some(BufferLife {
        first: range.first,
        last: range.last,
        bytes: buffer.size_bytes(),
    })
}

/// Ties parts to wholes, the whole of one actor after the other; returns the peak of each device that has any.
fn tie_parts(
    plan: &Plan,
    pairs: &[InPlacePair],
    blocks: &mut BufferBlocks,
) -> BTreeMap<DeviceId, u64> {
    let intended: BTreeSet<Overlap> = pairs
        .iter()
        .map(|pair| Overlap {
            below: pair.below,
            above: pair.above,
            shift: pair.shift,
        })
        .collect();

    let mut parts_of: BTreeMap<(ActorId, BufferId), Vec<PartPlace>> = BTreeMap::new();
    for pair in pairs.iter().filter(|pair| pair.fit.is_ne()) {
        // A larger input is split into outputs; a larger output is put together from inputs.
        let (whole, part, offset) = match pair.fit {
            Ordering::Greater => (pair.below, pair.above, pair.shift),
            _ => (pair.above, pair.below, -pair.shift),
        };
        let parts = parts_of.entry((pair.actor, whole)).or_default();
        parts.push(PartPlace { part, offset });
    }

    let mut loads = BTreeMap::new();
    let mut peak_bytes = BTreeMap::new();
    for ((_, whole), mut parts) in parts_of {
        // Those first that make the whole live for the fewest positions more.
        parts.sort_by_key(|place| blocks.added_positions(whole, place.part));
        let device = plan.buffers[whole].device;
        let load = loads
            .entry(device)
            .or_insert_with(|| blocks.load(|id| plan.buffers[id].device == device));

        // All of them if possible: some may take more memory than all. Else one more as long as there is room.
        let mut any_tied = blocks.tie(whole, &parts, &intended, load);
        if !any_tied {
            for part in &parts {
                any_tied |= blocks.tie(whole, std::slice::from_ref(part), &intended, load);
            }
        }
        if any_tied {
            peak_bytes.insert(device, load.peak);
        }
    }
    peak_bytes
}

/// Looks for outputs that may be written over inputs as the plan has its slots.
struct PairFinder<'a> {
    problem: &'a BlockProblem<'a>,
    plan: &'a Plan,
    buffer_at: &'a BufferIndex,
    live_ranges: &'a LiveRanges,
    uses: LaneUses,
}

impl PairFinder<'_> {
    fn find_pairs(&self) -> Vec<InPlacePair> {
        let mut pairs = Vec::new();
        for (id, actor) in self.problem.graph.actors.iter_enumerated() {
            let device = &self.problem.machine.devices[self.plan.placement[id]];
            if device.backend.may_write_in_place() {
                pairs.extend(
                    actor
                        .in_place
                        .iter()
                        .filter_map(|&ports| self.pair(id, ports)),
                );
            }
        }
        pairs
    }

    fn pair(&self, id: ActorId, ports: InPlace) -> Option<InPlacePair> {
        let device = self.plan.placement[id];
        let (read_channel, _) = self.problem.ports.inputs[id][ports.input as usize]?;
        let written_channel = self.problem.ports.outputs[id][ports.output as usize]?;
        let below = *self.buffer_at.get(&(read_channel, device))?;
        let above = *self.buffer_at.get(&(written_channel, device))?;

        let actor = &self.problem.graph.actors[id];
        let input = &actor.inputs[ports.input as usize];
        let output = &actor.outputs[ports.output as usize];
        let read_bytes = firing_bytes(input.rate, &input.token);
        let fit = read_bytes.cmp(&firing_bytes(output.rate, &output.token));

        // Tokens of several firings lie in a row, and not where parts of each other would.
        let firings = self.problem.repetition[id].saturating_mul(self.problem.block);
        let is_aligned_part = firings == 1 && ports.at_bytes.is_multiple_of(limits::ALIGN_BYTES);
        let is_possible = below != above
            && (fit.is_eq() || is_aligned_part)
            && !self.plan.buffers[below].is_chunked()
            && !self.plan.buffers[above].is_chunked()
            && self.is_transient(below)
            && self.is_transient(above)
            && self.is_last_read(id, ports.input, read_channel);

        let place = i64::try_from(ports.at_bytes).ok()?;
        is_possible.then_some(InPlacePair {
            actor: id,
            below,
            above,
            shift: if fit.is_lt() { -place } else { place },
            fit,
        })
    }

    fn is_transient(&self, id: BufferId) -> bool {
        self.live_ranges[id].is_some_and(|range| range.is_transient(&self.plan.buffers[id]))
    }

    /// Whether everything but this input of the actor has read the channel on its device when the actor first fires.
    fn is_last_read(&self, actor: ActorId, input: u32, channel: ChannelId) -> bool {
        let device = self.plan.placement[actor];
        let Some(firing) = self.uses.fired[actor] else {
            return false;
        };

        for reader in &self.problem.graph.channels[channel].readers {
            let other = reader.to;
            if self.plan.placement[other.actor] != device {
                continue;
            }
            let is_before = match self.uses.fired[other.actor] {
                _ if other.actor == actor => other.port == input,
                Some(positions) => positions.last < firing.first,
                None => true,
            };
            if !is_before {
                return false;
            }
        }
        // A send reads the channel too.
        let rings = self.uses.rings_of.get(&channel).into_iter().flatten();
        rings
            .into_iter()
            .all(|&ring| self.uses.sent[ring] < firing.first)
    }
}

/// Bytes that one firing moves through a port.
fn firing_bytes(rate: u64, token: &TokenType) -> u64 {
    rate.saturating_mul(token.bytes())
}

/// Positions in the lane of the first and of the last slot.
#[derive(Clone, Copy)]
struct LanePositions {
    first: u32,
    last: u32,
}

/// When actors fire and rings are sent.
struct LaneUses {
    fired: TiVec<ActorId, Option<LanePositions>>,
    sent: TiVec<RingId, u32>,
    /// Rings that leave a channel's home.
    rings_of: BTreeMap<ChannelId, Vec<RingId>>,
}

impl LaneUses {
    fn of(plan: &Plan) -> Self {
        let mut uses = LaneUses {
            fired: vec![None; plan.placement.len()].into(),
            sent: vec![0; plan.rings.len()].into(),
            rings_of: BTreeMap::new(),
        };
        for (id, ring) in plan.rings.iter_enumerated() {
            uses.rings_of.entry(ring.channel).or_default().push(id);
        }

        for lane in plan.calendars.iter().flat_map(|calendar| &calendar.lanes) {
            for (position, entry) in (0u32..).zip(&lane.entries) {
                walk::visit_slots(std::slice::from_ref(entry), |visit| {
                    uses.add_slot(visit.slot, position);
                });
            }
        }
        uses
    }

    /// Notes where a slot is; a loop is one position, whatever its body does.
    fn add_slot(&mut self, slot: &Slot, position: u32) {
        match slot.action {
            Action::Fire { actor, .. } => {
                let positions = self.fired[actor].get_or_insert(LanePositions {
                    first: position,
                    last: position,
                });
                positions.last = position;
            }
            Action::Send { ring, .. } => self.sent[ring] = position,
            Action::Recv { .. }
            | Action::Release { .. }
            | Action::Carry { .. }
            | Action::Fetch { .. }
            | Action::Await { .. } => {}
        }
    }
}
