//! Where slots find their tokens in buffers that hold less than a block. Must not run anything.
//!
//! Outside of loops that is known when a calendar is lowered. In a loop that moves on by whole chunks in each execution,
//! a slot has the same place in all of them. In a loop that stays in a chunk the place moves on with the firings; if such a
//! loop stands in one of the other kind, it begins each time where it began the first time, for which the firings are
//! noted at its begin: a *mark*.

use std::collections::BTreeMap;

use zbmd_ir::walk::CarryCount;
use zbmd_ir::{Action, ActorId, Buffer, BufferId, Entry};

use super::{CounterKey, Lowering};
use crate::worker::instructions::{Instr, NO_COUNTER, PortSpec};

/// How a port moves on in the loops around its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Motion {
    /// Not at all.
    Fixed,
    /// With the firings of the block.
    WithFirings,
    /// With the firings since a mark.
    SinceMark(Mark),
}

/// The firings of an actor when a loop begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The counter that holds them.
    pub counter: u32,
    /// How many they are the first time.
    pub first: u64,
}

/// What an actor does in one execution of a loop's body.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyFirings {
    /// Its first firing in the first execution.
    pub first: u64,
    pub count: u64,
    pub stage: u32,
}

/// A loop that is repeated, at work.
#[derive(Default)]
pub(super) struct RepeatedLoop {
    pub firings: BTreeMap<ActorId, BodyFirings>,
    carries: BTreeMap<BufferId, u64>,
    pub marks: BTreeMap<ActorId, Mark>,
}

impl RepeatedLoop {
    /// What one execution of a loop's body does. O(slots in it).
    pub(super) fn of(body: &[Entry]) -> Self {
        let mut found = Self::default();
        found.add(body, 1);
        found
    }

    fn add(&mut self, entries: &[Entry], times: u64) {
        for entry in entries {
            match entry {
                Entry::Loop { count, body } => self.add(body, times * count),
                Entry::Slot(slot) => match slot.action {
                    Action::Fire {
                        actor,
                        first,
                        count,
                    } => {
                        let firings = self.firings.entry(actor).or_insert(BodyFirings {
                            first,
                            count: 0,
                            stage: slot.stage,
                        });
                        firings.count += times * count;
                    }
                    Action::Carry { buffer } => *self.carries.entry(buffer).or_insert(0) += times,
                    Action::Send { .. }
                    | Action::Recv { .. }
                    | Action::Release { .. }
                    | Action::Fetch { .. }
                    | Action::Await { .. } => {}
                },
            }
        }
    }

    /// Whether each execution of the body moves a buffer on by whole chunks. Of a verified plan the readers follow.
    fn has_whole_chunks(&self, id: BufferId, user: &ChunkUser<'_>) -> bool {
        if user.buffer.head_tokens > 0 {
            return self.carries.contains_key(&id);
        }
        let writes = self.firings.get(&user.writer).map_or(0, |f| f.count);
        let tokens = writes * user.write_rate;
        tokens > 0 && tokens.is_multiple_of(user.buffer.chunk_tokens)
    }
}

/// A buffer of chunks and its writer.
pub(super) struct ChunkUser<'a> {
    pub buffer: &'a Buffer,
    pub writer: ActorId,
    pub write_rate: u64,
}

/// What is known of chunks at a slot that is lowered.
#[derive(Default)]
pub(super) struct ChunkPositions {
    carries: CarryCount,
    /// The loops around it that are repeated, outermost first.
    loops: Vec<RepeatedLoop>,
}

impl ChunkPositions {
    /// A buffer is carried.
    pub(super) fn carry(&mut self, buffer: BufferId) {
        self.carries.carry(buffer);
    }

    /// Where a token of the block lies in a place, the first time.
    pub(super) fn position(&self, id: BufferId, buffer: &Buffer, token: i64) -> u64 {
        // A verified plan's slots stay inside of places.
        buffer.position(token, self.carries.carried(id)) as u64
    }

    /// A loop begins; what [`Self::end_loop`] needs to know of that.
    pub(super) fn begin_loop(&mut self, repeated: Option<RepeatedLoop>) -> usize {
        self.loops.extend(repeated);
        self.carries.begin_loop()
    }

    /// The loop ends that began with this.
    pub(super) fn end_loop(&mut self, begin: usize, count: u64, is_repeated: bool) {
        self.carries.end_loop(begin, count);
        if is_repeated {
            self.loops.pop();
        }
    }

    /// Whether a loop that would begin here begins in the same place of a buffer's chunk each time, and moves on in it.
    pub(super) fn needs_mark(
        &self,
        inner: &RepeatedLoop,
        id: BufferId,
        user: &ChunkUser<'_>,
    ) -> bool {
        let outer = self.loops.last();
        outer.is_some_and(|outer| outer.has_whole_chunks(id, user))
            && !inner.has_whole_chunks(id, user)
    }

    /// How the port of an actor at a buffer of chunks moves on.
    pub(super) fn motion(&self, actor: ActorId, id: BufferId, user: &ChunkUser<'_>) -> Motion {
        let mut within = None;
        for around in self.loops.iter().rev() {
            if around.has_whole_chunks(id, user) {
                let mark = within.and_then(|inner: &RepeatedLoop| inner.marks.get(&actor));
                return mark.map_or(Motion::Fixed, |mark| Motion::SinceMark(*mark));
            }
            within = Some(around);
        }
        Motion::WithFirings
    }
}

impl<'a> Lowering<'a> {
    /// Notes the firings at the begin of a loop, of the actors that need it.
    pub(super) fn mark_loop(&mut self, mut repeated: RepeatedLoop) -> RepeatedLoop {
        let loop_index = self.instrs.len();
        for (&actor, &firings) in &repeated.firings {
            let mut buffers = self.buffers_of(actor).into_iter();
            let is_marked = buffers.any(|id| {
                let user = self.chunk_user(id);
                user.is_some_and(|user| self.chunks.needs_mark(&repeated, id, &user))
            });
            if !is_marked {
                continue;
            }

            let from = self.loop_counter(CounterKey::Actor(actor), firings.first);
            let next_counter = self.counters.len() as u32;
            let mark_key = CounterKey::Mark(actor, loop_index);
            let counter = *self.counters.entry(mark_key).or_insert(next_counter);
            repeated.marks.insert(
                actor,
                Mark {
                    counter,
                    first: firings.first,
                },
            );

            self.instrs.push(Instr::Mark { from, to: counter });
            self.stages.push(firings.stage);
            self.slots.push(None);
        }
        repeated
    }

    /// The buffers at an actor's ports.
    fn buffers_of(&self, actor: ActorId) -> Vec<BufferId> {
        let ports = &self.loaded.port_channels;
        let inputs = ports.inputs[actor]
            .iter()
            .flatten()
            .map(|(channel, _)| *channel);
        let outputs = ports.outputs[actor].iter().flatten().copied();
        let channels = inputs.chain(outputs);
        let buffers =
            channels.filter_map(|channel| self.facts.buffers.get(&(channel, self.device)));
        buffers.copied().collect()
    }

    /// A buffer that holds less than a block, with its writer.
    fn chunk_user(&self, id: BufferId) -> Option<ChunkUser<'a>> {
        let plan = self.plan;
        let buffer = &plan.buffers[id];
        let graph = &self.loaded.program.graph;
        let writer = graph.channels[buffer.channel].from;
        let output = &graph.actors[writer.actor].outputs[writer.port as usize];
        buffer.is_chunked().then_some(ChunkUser {
            buffer,
            writer: writer.actor,
            write_rate: output.rate,
        })
    }

    /// The port of an actor that is at `port` in its slot's first execution, from firing `first` on.
    pub(super) fn actor_port(
        &self,
        port: PortSpec,
        (actor, id): (ActorId, BufferId),
        first: u64,
        step_tokens: (u64, u64),
    ) -> PortSpec {
        let (rate, token_bytes) = step_tokens;
        let user = self.chunk_user(id);
        let motion = user.map_or(Motion::WithFirings, |user| {
            self.chunks.motion(actor, id, &user)
        });
        match motion {
            Motion::Fixed => port,
            Motion::WithFirings => self.looped_port(port, token_bytes, first, rate),
            Motion::SinceMark(mark) => PortSpec {
                mark: mark.counter,
                ..self.looped_port(port, token_bytes, first - mark.first, rate)
            },
        }
    }

    /// Where the token `delay` before a token of the block lies in a buffer's place, for a slot that is lowered now.
    pub(super) fn place_position(&self, id: BufferId, token: u64, delay: u64) -> u64 {
        let buffer = &self.plan.buffers[id];
        let token = token as i64 - delay as i64;
        self.chunks.position(id, buffer, token)
    }

    /// Whether a port from this one on has a mark.
    pub(super) fn has_marks(&self, first_port: u32) -> bool {
        let mut ports = self.ports[first_port as usize..].iter();
        ports.any(|port| port.mark != NO_COUNTER)
    }
}
