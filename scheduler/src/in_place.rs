//! Which outputs are written over inputs, and which are parts of each other. Decides no offset.
//!
//! An actor that may write over an input does, where the input is read for the last time: then its memory would be free
//! after the firing, and the output's be taken before it. So what lies in memory at any moment only shrinks.
//!
//! With parts it can grow: all of a concatenation is there as soon as its first part is, and all of what was split
//! until its last part goes. So parts are tied ([`crate::parts`]) only where the most that lies in memory at one moment
//! stays what it is without them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::{
    Action, ActorId, BufferId, ChannelId, DeviceId, Entry, InPlace, Plan, RingId, TiVec, TokenType,
    limits,
};

use crate::layout::{Touch, is_transient};
use crate::parts::{Blocks, Life};
use crate::problem::Problem;

/// Buffers that lie in blocks with others: the one at the block's start, and how many bytes after it they begin.
pub(crate) type Tied = BTreeMap<BufferId, (BufferId, u64)>;

/// What is tied to what.
pub(crate) struct Ties {
    /// All that may be.
    pub(crate) tied: Tied,
    /// Without parts.
    pub(crate) whole: Tied,
    /// Most bytes that lie in memory at one moment without parts, for the devices that have any.
    pub(crate) peaks: BTreeMap<DeviceId, u64>,
}

/// An output that may be written over an input.
#[derive(Clone, Copy)]
struct Pair {
    actor: ActorId,
    below: BufferId,
    above: BufferId,
    /// Where the output begins, from the input's first byte.
    shift: i64,
    /// The input's bytes compared with the output's.
    fit: Ordering,
}

/// When actors fire and rings are sent: positions in the lane of the first and of the last slot.
struct Uses {
    fired: TiVec<ActorId, Option<(u32, u32)>>,
    sent: TiVec<RingId, u32>,
    /// Rings that leave a channel's home.
    rings_of: BTreeMap<ChannelId, Vec<RingId>>,
}

/// Finds what can be written over what on the CPUs of a plan, whose kernels alone keep to
/// [`zbmd_ir::Actor::in_place`]. Of outputs as large as their inputs, the first that will do is taken, in the order in which
/// the actor names them.
pub(crate) fn find(
    problem: &Problem<'_>,
    plan: &Plan,
    at: &BTreeMap<(ChannelId, DeviceId), BufferId>,
    touches: &TiVec<BufferId, Option<Touch>>,
) -> Ties {
    let pairs = pairs(problem, plan, at, touches);
    let life = |(id, touch): (BufferId, &Option<Touch>)| {
        let touch = touch.filter(|&t| is_transient(&plan.buffers[id], t))?;
        Some(Life {
            first: touch.first,
            last: touch.last,
            bytes: plan.buffers[id].size_bytes(),
        })
    };
    let mut blocks = Blocks::new(touches.iter_enumerated().map(life).collect());
    let (mut under, mut over) = (BTreeSet::new(), BTreeSet::new());
    for pair in pairs.iter().filter(|p| p.fit.is_eq()) {
        if !under.contains(&pair.below) && !over.contains(&pair.above) {
            blocks.lay_over(pair.below, pair.above);
            under.insert(pair.below);
            over.insert(pair.above);
        }
    }
    let whole = blocks.tied();
    let peaks = tie_parts(plan, &pairs, &mut blocks);
    let tied = if peaks.is_empty() {
        whole.clone()
    } else {
        blocks.tied()
    };
    Ties { tied, whole, peaks }
}

/// Ties parts to wholes, the whole of one actor after the other.
fn tie_parts(plan: &Plan, pairs: &[Pair], blocks: &mut Blocks) -> BTreeMap<DeviceId, u64> {
    let mut peaks = BTreeMap::new();
    let meant: BTreeSet<(BufferId, BufferId, i64)> =
        pairs.iter().map(|p| (p.below, p.above, p.shift)).collect();
    let mut wholes: BTreeMap<(ActorId, BufferId), Vec<(BufferId, i64)>> = BTreeMap::new();
    for p in pairs.iter().filter(|p| p.fit.is_ne()) {
        let (whole, part) = match p.fit {
            Ordering::Greater => (p.below, (p.above, p.shift)),
            _ => (p.above, (p.below, -p.shift)),
        };
        wholes.entry((p.actor, whole)).or_default().push(part);
    }
    let mut loads = BTreeMap::new();
    for ((_, whole), mut parts) in wholes {
        parts.sort_by_key(|&(part, _)| blocks.apart(whole, part));
        let device = plan.buffers[whole].device;
        let load = loads
            .entry(device)
            .or_insert_with(|| blocks.load(|id| plan.buffers[id].device == device));
        // All of them if possible: some may take more memory than all. Else one more as long as there is room.
        let mut tied = blocks.tie(whole, &parts, &meant, load);
        if !tied {
            for part in &parts {
                tied |= blocks.tie(whole, std::slice::from_ref(part), &meant, load);
            }
        }
        if tied {
            peaks.insert(device, load.peak);
        }
    }
    peaks
}

/// All outputs that may be written over inputs as the plan has its slots.
fn pairs(
    problem: &Problem<'_>,
    plan: &Plan,
    at: &BTreeMap<(ChannelId, DeviceId), BufferId>,
    touches: &TiVec<BufferId, Option<Touch>>,
) -> Vec<Pair> {
    let uses = uses(plan);
    let transient = |id: BufferId| touches[id].is_some_and(|t| is_transient(&plan.buffers[id], t));
    let pair = |id: ActorId, ports: InPlace| {
        let device = plan.placement[id];
        let actor = &problem.graph.actors[id];
        let (read, _) = problem.ports.inputs[id][ports.input as usize]?;
        let written = problem.ports.outputs[id][ports.output as usize]?;
        let below = *at.get(&(read, device))?;
        let above = *at.get(&(written, device))?;
        let (x, y) = (
            &actor.inputs[ports.input as usize],
            &actor.outputs[ports.output as usize],
        );
        let bytes = |rate: u64, token: &TokenType| rate.saturating_mul(token.bytes());
        let fit = bytes(x.rate, &x.token).cmp(&bytes(y.rate, &y.token));
        // Tokens of several firings lie in a row, and not where parts of each other would.
        let once = problem.q[id].saturating_mul(problem.block) == 1;
        let place = i64::try_from(ports.at_bytes).ok()?;
        let fits = below != above
            && (fit.is_eq() || once && ports.at_bytes.is_multiple_of(limits::ALIGN_BYTES))
            && transient(below)
            && transient(above)
            && is_last(problem, plan, &uses, (id, ports.input), read);
        let shift = if fit.is_lt() { -place } else { place };
        fits.then_some(Pair {
            actor: id,
            below,
            above,
            shift,
            fit,
        })
    };
    let actors = problem.graph.actors.iter_enumerated();
    let on_cpu = |id: &ActorId| problem.machine.devices[plan.placement[*id]].backend == "cpu";
    let all = actors
        .filter(|(id, _)| on_cpu(id))
        .flat_map(|(id, actor)| actor.in_place.iter().map(move |&ports| (id, ports)));
    all.filter_map(|(id, ports)| pair(id, ports)).collect()
}

/// Whether everything but this input of the actor has read the channel on its device when the actor first fires.
fn is_last(
    problem: &Problem<'_>,
    plan: &Plan,
    uses: &Uses,
    (actor, input): (ActorId, u32),
    channel: ChannelId,
) -> bool {
    let device = plan.placement[actor];
    let Some((begin, _)) = uses.fired[actor] else {
        return false;
    };
    let readers = problem.graph.channels[channel].readers.iter().map(|r| r.to);
    let mut others = readers.filter(|to| plan.placement[to.actor] == device);
    let rings = uses.rings_of.get(&channel).into_iter().flatten();
    others.all(|to| match uses.fired[to.actor] {
        _ if to.actor == actor => to.port == input,
        Some((_, last)) => last < begin,
        None => true,
    }) && rings.into_iter().all(|&ring| uses.sent[ring] < begin)
}

fn uses(plan: &Plan) -> Uses {
    let mut uses = Uses {
        fired: vec![None; plan.placement.len()].into(),
        sent: vec![0; plan.rings.len()].into(),
        rings_of: BTreeMap::new(),
    };
    for (id, ring) in plan.rings.iter_enumerated() {
        uses.rings_of.entry(ring.channel).or_default().push(id);
    }
    for lane in plan.calendars.iter().flat_map(|c| &c.lanes) {
        for (position, entry) in lane.entries.iter().enumerate() {
            visit(entry, position as u32, &mut uses);
        }
    }
    uses
}

fn visit(entry: &Entry, position: u32, uses: &mut Uses) {
    match entry {
        Entry::Loop { body, .. } => body.iter().for_each(|entry| visit(entry, position, uses)),
        Entry::Slot(slot) => match slot.action {
            Action::Fire { actor, .. } => {
                uses.fired[actor].get_or_insert((position, position)).1 = position;
            }
            Action::Send { ring, .. } => uses.sent[ring] = position,
            Action::Recv { .. } | Action::Release { .. } | Action::Carry { .. } => {}
        },
    }
}
