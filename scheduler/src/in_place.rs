//! Which outputs are written over inputs. Decides no offset.
//!
//! An actor that may do so does, where the input is read for the last time: then its memory would be free after the
//! firing, and the output's be taken before it. So what lies in memory at any moment only shrinks.

use std::collections::BTreeMap;

use zbmd_ir::{
    Action, ActorId, BufferId, ChannelId, DeviceId, Entry, InPlace, Plan, RingId, TiVec,
};

use crate::layout::{Touch, is_transient};
use crate::problem::Problem;

/// The buffer under each that is written over another.
pub(crate) type Below = BTreeMap<BufferId, BufferId>;

/// When actors fire and rings are sent: positions in the lane of the first and of the last slot.
struct Uses {
    fired: TiVec<ActorId, Option<(u32, u32)>>,
    sent: TiVec<RingId, u32>,
    /// Rings that leave a channel's home.
    rings_of: BTreeMap<ChannelId, Vec<RingId>>,
}

/// Finds what can be written over what on the CPUs of a plan, whose kernels alone keep to
/// [`zbmd_ir::Actor::in_place`]. The first input that will do is taken, in the order in which the actor names them.
pub(crate) fn find(
    problem: &Problem<'_>,
    plan: &Plan,
    at: &BTreeMap<(ChannelId, DeviceId), BufferId>,
    touches: &TiVec<BufferId, Option<Touch>>,
) -> Below {
    let uses = uses(plan);
    let transient = |id: BufferId| touches[id].is_some_and(|t| is_transient(&plan.buffers[id], t));
    let mut below = Below::new();
    for (id, actor) in problem.graph.actors.iter_enumerated() {
        let device = plan.placement[id];
        if problem.machine.devices[device].backend != "cpu" {
            continue;
        }
        let over = actor.in_place.iter().find_map(|&InPlace { input, output }| {
            let (read, _) = problem.ports.inputs[id][input as usize]?;
            let written = problem.ports.outputs[id][output as usize]?;
            let under = *at.get(&(read, device))?;
            let above = *at.get(&(written, device))?;
            let fits = under != above
                && transient(under)
                && transient(above)
                && is_last(problem, plan, &uses, (id, input), read);
            fits.then_some((above, under))
        });
        below.extend(over);
    }
    below
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
    let Some((begin, _)) = uses.fired[actor] else { return false };
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
