//! What the slots of a segment are on a device: receipts, gifts, and commands for each phase.

use zbmd_ir::{ActorId, Buffer, BufferId, ChannelId, Region, RingId};

use super::super::expand::{self, Exec, What};
use super::super::queue::{Command, Queue, Range, bind};
use super::super::segment::{Gift, Receipt, Segment, Tokens};
use super::super::{DEPTH, ReplayError, actor_name};
use super::Preparing;
use crate::kernels::Operand;

impl<Q: Queue> Preparing<'_, Q> {
    /// Tokens `[first, first + count)` of the buffer's place for a stage in a phase, `shift` places on.
    pub(super) fn tokens(
        &self,
        id: BufferId,
        stage: u32,
        phase: u64,
        shift: u64,
        tokens: (u64, u64),
    ) -> Range {
        let buffer: &Buffer = &self.plan.buffers[id];
        let blocks = i128::from(buffer.blocks);
        let block = i128::from(phase + shift) - i128::from(stage);
        let place = block.rem_euclid(blocks) as u64;
        let token_bytes = self.graph.channels[buffer.channel].token.bytes();
        let offset = buffer.offset_bytes + place * buffer.stride_bytes + tokens.0 * token_bytes;
        let layout = if buffer.region == Region::Arena {
            &self.arena
        } else {
            &self.exchange
        };
        layout.range(offset, tokens.1 * token_bytes)
    }

    pub(super) fn segment(
        &mut self,
        segment: &expand::Segment,
        phases: u64,
    ) -> Result<Segment, ReplayError<Q::Fault>> {
        let mut ready = Segment::default();
        for exec in &segment.execs {
            self.host_part(exec, &mut ready);
        }
        for phase in 0..phases {
            let mut commands = Vec::new();
            for exec in &segment.execs {
                self.device_part(exec, phase, &mut commands)?;
            }
            ready.commands.push(commands);
        }
        Ok(ready)
    }

    fn host_part(&self, exec: &Exec, ready: &mut Segment) {
        let stage = exec.stage;
        match exec.what {
            What::Recv { ring, first, count } => {
                let ring = self.ring_numbers[&ring];
                ready.receipts.push(Receipt {
                    stage,
                    ring,
                    first,
                    count,
                });
            }
            What::Send { ring, first, count } => {
                let outbox = self.outbox_place(ring, first);
                let ring = self.ring_numbers[&ring];
                let sends = Some(Tokens {
                    first,
                    count,
                    outbox,
                });
                ready.gifts.push(Gift { stage, ring, sends });
            }
            What::Release { ring } => {
                ready.gifts.push(Gift {
                    stage,
                    ring: self.ring_numbers[&ring],
                    sends: None,
                });
            }
            What::Fire { .. } | What::Carry { .. } => {}
        }
    }

    /// Where in the outbox a ring's token lies in periods of parity 0.
    fn outbox_place(&self, ring: RingId, first: u64) -> u64 {
        let number = self.ring_numbers[&ring] as usize;
        let before = self.rings[..number].iter().filter(|r| r.region.is_some());
        let start: u64 = before.map(|r| DEPTH * r.outbox_stride).sum();
        start + first * self.rings[number].token_bytes
    }

    fn device_part(
        &mut self,
        exec: &Exec,
        phase: u64,
        out: &mut Vec<(u32, Command)>,
    ) -> Result<(), ReplayError<Q::Fault>> {
        let stage = exec.stage;
        match exec.what {
            What::Fire {
                actor,
                first,
                count,
            } => {
                let mut commands = Vec::new();
                self.fire((actor, first, count), stage, phase, &mut commands)?;
                out.extend(commands.into_iter().map(|c| (stage, c)));
            }
            What::Recv { ring, first, count } => {
                let buffer = self.plan.rings[ring].buffer;
                let ring = self.rings[self.ring_numbers[&ring] as usize];
                let to = self.tokens(buffer, stage, phase, 0, (ring.head_tokens + first, count));
                // The inbox has the region's own offsets.
                let block = (i128::from(phase) - i128::from(stage)).rem_euclid(ring.blocks.into());
                let (at, len) = ring.place(block as u64, first, count);
                let from = Range::new(self.inbox.bank, self.inbox.start + at, len);
                out.push((stage, Command::Copy { from, to }));
            }
            What::Send { ring, first, count } => {
                let channel = self.plan.rings[ring].channel;
                let own = self.places[&channel];
                let head = self.plan.buffers[own].head_tokens;
                let from = self.tokens(own, stage, phase, 0, (head + first, count));
                let stride = self.rings[self.ring_numbers[&ring] as usize].outbox_stride;
                let at = self.outbox_place(ring, first) + (phase % DEPTH) * stride;
                let to = Range::new(self.outbox, at, from.len());
                out.push((stage, Command::Copy { from, to }));
            }
            What::Carry { buffer } => self.carry(buffer, stage, phase, out),
            What::Release { .. } => {}
        }
        Ok(())
    }

    fn carry(&self, id: BufferId, stage: u32, phase: u64, out: &mut Vec<(u32, Command)>) {
        let (h, t) = (
            self.plan.buffers[id].head_tokens,
            self.plan.buffers[id].block_tokens,
        );
        let from = self.tokens(id, stage, phase, 0, (t, h));
        let to = self.tokens(id, stage, phase, 1, (0, h));
        if !from.overlaps(to) {
            return out.push((stage, Command::Copy { from, to }));
        }
        let between = Range::new(self.bounce, 0, from.len());
        out.push((stage, Command::Copy { from, to: between }));
        out.push((stage, Command::Copy { from: between, to }));
    }

    fn fire(
        &mut self,
        (id, first, count): (ActorId, u64, u64),
        stage: u32,
        phase: u64,
        out: &mut Vec<Command>,
    ) -> Result<(), ReplayError<Q::Fault>> {
        let actor = &self.graph.actors[id];
        let buffer = |channel: ChannelId| self.places[&channel];
        let (mut inputs, mut outputs, mut states) = (Vec::new(), Vec::new(), Vec::new());
        for (i, port) in actor.inputs.iter().enumerate() {
            let joined = self.joined.inputs[id][i];
            let (Some((channel, reader)), None) = (joined, actor.state_of_input(i as u32)) else {
                continue;
            };
            let own = buffer(channel);
            let delay = self.graph.channels[channel].readers[reader as usize].delay;
            let start = self.plan.buffers[own].head_tokens - delay + first * port.rate;
            let tokens = (count - 1) * port.rate + port.window;
            inputs.push(self.tokens(own, stage, phase, 0, (start, tokens)));
        }
        for (i, port) in actor.outputs.iter().enumerate() {
            let joined = self.joined.outputs[id][i];
            let (Some(channel), None) = (joined, actor.state_of_output(i as u32)) else {
                continue;
            };
            let own = buffer(channel);
            let start = self.plan.buffers[own].head_tokens + first * port.rate;
            outputs.push(self.tokens(own, stage, phase, 0, (start, count * port.rate)));
        }
        for state in &actor.state {
            let Some(channel) = self.joined.outputs[id][state.output as usize] else {
                continue;
            };
            states.push(self.tokens(buffer(channel), stage, phase, 0, (0, 1)));
        }
        let ready = &self.actors[&id];
        let scratch = match ready.plan.scratch_bytes() {
            0 => Range::new(0, 0, 0),
            bytes => self.arena.range(self.calendar.scratch_offset_bytes, bytes),
        };
        let place = |operand: Operand| match operand {
            Operand::Input(i) => inputs[i as usize],
            Operand::Output(i) => outputs[i as usize],
            Operand::State(i) => states[i as usize],
            Operand::Const(i) => ready.consts[i as usize],
            Operand::Scratch => scratch,
        };
        let limits = self.queue.limits();
        let bound = bind(
            limits,
            &ready.plan,
            &ready.kernels,
            count,
            &place,
            &mut self.runs,
            out,
        );
        bound.map_err(|e| ReplayError::TooLarge {
            what: format!(
                "a call of {count} firings of `{}`",
                actor_name(self.graph, id)
            ),
            bytes: e.bytes,
            limit: e.limit,
            device: self.name(),
        })
    }
}
