//! Buffers that are written over others: which those are. Must not know whether they may be.
//!
//! A plan does not say so: an output whose buffer begins where that of an input of the same firing does, and that the
//! actor may write over it, is taken to be meant. Whatever else overlaps does so by mistake.

use super::Cx;
use super::buffers::BufferOf;
use crate::{ActorId, BufferId, Region, TiVec};

/// An output written over an input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Over {
    pub(super) actor: ActorId,
    /// Index among the actor's inputs.
    pub(super) input: u32,
    /// Buffer of the input.
    pub(super) below: BufferId,
    /// Buffer of the output.
    pub(super) above: BufferId,
}

/// All of them, by both buffers; each lies over one at most, and under one at most, and an actor does one at most.
#[derive(Debug)]
pub(super) struct InPlace {
    pub(super) list: Vec<Over>,
    /// What is written over a buffer: index into `list`.
    pub(super) onto: TiVec<BufferId, Option<usize>>,
    /// What an actor writes over its input.
    pub(super) by: TiVec<ActorId, Option<usize>>,
}

/// Finds them on CPUs, the only devices whose kernels keep to [`crate::Actor::in_place`].
pub(super) fn find(cx: &Cx<'_>, buffer_of: &BufferOf) -> InPlace {
    let mut found = InPlace {
        list: Vec::new(),
        onto: vec![None; cx.plan.buffers.len()].into(),
        by: vec![None; cx.graph.actors.len()].into(),
    };
    for (id, actor) in cx.graph.actors.iter_enumerated() {
        let device = cx.plan.placement[id];
        if cx.machine.devices[device].backend != "cpu" {
            continue;
        }
        let over = actor.in_place.iter().find_map(|pair| {
            let (read, _) = cx.ports.inputs[id][pair.input as usize]?;
            let written = cx.ports.outputs[id][pair.output as usize]?;
            let below = *buffer_of.get(&(read, device))?;
            let above = *buffer_of.get(&(written, device))?;
            let (b, a) = (&cx.plan.buffers[below], &cx.plan.buffers[above]);
            let meant = below != above
                && (b.region, a.region) == (Region::Arena, Region::Arena)
                && b.offset_bytes == a.offset_bytes
                && found.onto[below].is_none();
            meant.then_some(Over { actor: id, input: pair.input, below, above })
        });
        if let Some(over) = over {
            found.onto[over.below] = Some(found.list.len());
            found.by[id] = Some(found.list.len());
            found.list.push(over);
        }
    }
    found
}
