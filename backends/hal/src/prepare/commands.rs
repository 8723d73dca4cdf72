//! What the slots of a segment are on a device: receipts, handovers, and commands for each phase.

use std::ops::Range;

use zbmd_ir::{Action, ActorId, BufferId, ChannelId, Region, RingId};

use super::super::expand::{SlotExecution, SlotSegment};
use super::super::queue::{BankRange, Command, Queue};
use super::super::segment::{Handover, ReadySegment, Receipt, SentTokens};
use super::super::{DEPTH, ReplayError, actor_name};
use super::{Preparation, ReadyActor};
use zbmd_gpu_ir::Operand;

/// Firings of an actor in one slot.
#[derive(Clone, Copy)]
struct FiringRange {
    actor: ActorId,
    first: u64,
    count: u64,
}

/// The memory of an actor's ports in one slot.
struct PortRanges {
    inputs: Vec<BankRange>,
    outputs: Vec<BankRange>,
    states: Vec<BankRange>,
    scratch: BankRange,
}

impl PortRanges {
    fn place(&self, operand: Operand, ready: &ReadyActor) -> BankRange {
        match operand {
            Operand::Input(index) => self.inputs[index as usize],
            Operand::Output(index) => self.outputs[index as usize],
            Operand::State(index) => self.states[index as usize],
            Operand::Const(index) => ready.consts[index as usize],
            Operand::Scratch => self.scratch,
        }
    }
}

impl<Q: Queue> Preparation<'_, Q> {
    /// A range of tokens in the place that a buffer has for a stage in a phase.
    pub(super) fn token_range(
        &self,
        id: BufferId,
        stage: u32,
        phase: u64,
        tokens: Range<u64>,
    ) -> BankRange {
        let buffer = &self.plan.buffers[id];
        let block = i128::from(phase) - i128::from(stage);
        let place = block.rem_euclid(i128::from(buffer.blocks)) as u64;

        let token_bytes = self.graph.channels[buffer.channel].token.bytes();
        let place_offset = buffer.offset_bytes + place * buffer.stride_bytes;
        let layout = match buffer.region {
            Region::Arena => &self.arena,
            Region::Exchange => &self.exchange,
        };
        layout.range(
            place_offset + tokens.start * token_bytes,
            (tokens.end - tokens.start) * token_bytes,
        )
    }

    pub(super) fn prepare_segment(
        &mut self,
        segment: &SlotSegment,
        phases: u64,
    ) -> Result<ReadySegment, ReplayError<Q::Fault>> {
        let mut ready = ReadySegment::default();
        for execution in &segment.executions {
            self.push_host_part(execution, &mut ready);
        }
        for phase in 0..phases {
            let mut commands = Vec::new();
            for execution in &segment.executions {
                let own = self.device_commands(execution, phase)?;
                commands.extend(own.into_iter().map(|command| (execution.stage, command)));
            }
            ready.commands.push(commands);
        }
        Ok(ready)
    }

    /// What of an execution is between the device and others.
    fn push_host_part(&self, execution: &SlotExecution, ready: &mut ReadySegment) {
        let stage = execution.stage;
        match execution.action {
            Action::Recv { ring, first, count } => ready.receipts.push(Receipt {
                stage,
                ring: self.ring_numbers[&ring],
                first,
                count,
            }),
            Action::Send { ring, first, count } => ready.handovers.push(Handover {
                stage,
                ring: self.ring_numbers[&ring],
                sends: Some(SentTokens {
                    first,
                    count,
                    outbox: self.outbox_offset(ring, first),
                }),
            }),
            Action::Release { ring } => ready.handovers.push(Handover {
                stage,
                ring: self.ring_numbers[&ring],
                sends: None,
            }),
            Action::Fire { .. } | Action::Carry { .. } => {}
        }
    }

    /// Where the outbox has a ring's token in periods of parity 0.
    fn outbox_offset(&self, ring: RingId, first: u64) -> u64 {
        let number = self.ring_numbers[&ring] as usize;
        let rings_before = self.rings[..number]
            .iter()
            .filter(|ring| ring.region.is_some());
        let ring_start: u64 = rings_before.map(|ring| DEPTH * ring.outbox_stride).sum();
        ring_start + first * self.rings[number].token_bytes
    }

    /// What of an execution the device does in a phase.
    fn device_commands(
        &mut self,
        execution: &SlotExecution,
        phase: u64,
    ) -> Result<Vec<Command>, ReplayError<Q::Fault>> {
        let stage = execution.stage;
        Ok(match execution.action {
            Action::Fire {
                actor,
                first,
                count,
            } => {
                let firings = FiringRange {
                    actor,
                    first,
                    count,
                };
                self.fire_commands(firings, stage, phase)?
            }
            Action::Recv { ring, first, count } => {
                vec![self.receive_command(ring, stage, phase, first..first + count)]
            }
            Action::Send { ring, first, count } => {
                vec![self.send_command(ring, stage, phase, first..first + count)]
            }
            Action::Carry { buffer } => self.carry_commands(buffer, stage, phase),
            Action::Release { .. } => Vec::new(),
        })
    }

    /// From the inbox to the device's buffer.
    fn receive_command(&self, ring: RingId, stage: u32, phase: u64, tokens: Range<u64>) -> Command {
        let info = self.rings[self.ring_numbers[&ring] as usize];
        let head = info.head_tokens;
        let buffer = self.plan.rings[ring].buffer;
        let to = self.token_range(buffer, stage, phase, head + tokens.start..head + tokens.end);

        // The inbox has the exchange region's own offsets.
        let block = (i128::from(phase) - i128::from(stage)).rem_euclid(info.blocks.into());
        let place = info.token_place(block as u64, tokens.start, tokens.end - tokens.start);
        let from = BankRange::new(self.inbox.bank, self.inbox.start + place.offset, place.len);
        Command::Copy { from, to }
    }

    /// From the device's buffer to the outbox.
    fn send_command(&self, ring: RingId, stage: u32, phase: u64, tokens: Range<u64>) -> Command {
        let buffer = self.own_buffers[&self.plan.rings[ring].channel];
        let head = self.plan.buffers[buffer].head_tokens;
        let from = self.token_range(buffer, stage, phase, head + tokens.start..head + tokens.end);

        let outbox_stride = self.rings[self.ring_numbers[&ring] as usize].outbox_stride;
        let outbox_offset =
            self.outbox_offset(ring, tokens.start) + (phase % DEPTH) * outbox_stride;
        let to = BankRange::new(self.outbox, outbox_offset, from.len());
        Command::Copy { from, to }
    }

    /// The last tokens of a block to the head of the next one.
    fn carry_commands(&self, id: BufferId, stage: u32, phase: u64) -> Vec<Command> {
        let buffer = &self.plan.buffers[id];
        let head = buffer.head_tokens;
        let block_end = buffer.block_tokens + head;
        let from = self.token_range(id, stage, phase, buffer.block_tokens..block_end);
        let to = self.token_range(id, stage, phase + 1, 0..head);
        if !from.overlaps(to) {
            return vec![Command::Copy { from, to }];
        }

        let bounce = BankRange::new(self.bounce, 0, from.len());
        vec![
            Command::Copy { from, to: bounce },
            Command::Copy { from: bounce, to },
        ]
    }

    /// The memory of an actor's ports for some of its firings.
    fn port_ranges(&self, firings: FiringRange, stage: u32, phase: u64) -> PortRanges {
        let FiringRange {
            actor: id,
            first,
            count,
        } = firings;
        let actor = &self.graph.actors[id];
        let own_buffer = |channel: ChannelId| self.own_buffers[&channel];

        let mut inputs = Vec::new();
        for (index, port) in actor.inputs.iter().enumerate() {
            let joined = self.port_channels.inputs[id][index];
            let (Some((channel, reader)), None) = (joined, actor.state_of_input(index as u32))
            else {
                continue;
            };
            let buffer = own_buffer(channel);
            let delay = self.graph.channels[channel].readers[reader as usize].delay;
            let start = self.plan.buffers[buffer].head_tokens - delay + first * port.rate;
            let end = start + (count - 1) * port.rate + port.window;
            inputs.push(self.token_range(buffer, stage, phase, start..end));
        }

        let mut outputs = Vec::new();
        for (index, port) in actor.outputs.iter().enumerate() {
            let joined = self.port_channels.outputs[id][index];
            let (Some(channel), None) = (joined, actor.state_of_output(index as u32)) else {
                continue;
            };
            let buffer = own_buffer(channel);
            let start = self.plan.buffers[buffer].head_tokens + first * port.rate;
            let end = start + count * port.rate;
            outputs.push(self.token_range(buffer, stage, phase, start..end));
        }

        // A state is one token, which the actor updates in place.
        let mut states = Vec::new();
        for state in &actor.state {
            let joined = self.port_channels.outputs[id][state.output as usize];
            let Some(channel) = joined else { continue };
            states.push(self.token_range(own_buffer(channel), stage, phase, 0..1));
        }

        let scratch = match self.actors[&id].plan.scratch_bytes() {
            0 => BankRange::new(0, 0, 0),
            bytes => self.arena.range(self.calendar.scratch_offset_bytes, bytes),
        };
        PortRanges {
            inputs,
            outputs,
            states,
            scratch,
        }
    }

    fn fire_commands(
        &mut self,
        firings: FiringRange,
        stage: u32,
        phase: u64,
    ) -> Result<Vec<Command>, ReplayError<Q::Fault>> {
        let ports = self.port_ranges(firings, stage, phase);
        let ready = &self.actors[&firings.actor];
        let bound = self
            .binder
            .bind_call(&ready.plan, &ready.kernels, firings.count, &|operand| {
                ports.place(operand, ready)
            });
        bound.map_err(|too_long| ReplayError::TooLarge {
            what: format!(
                "a call of {} firings of `{}`",
                firings.count,
                actor_name(self.graph, firings.actor)
            ),
            bytes: too_long.bytes,
            limit: too_long.limit,
            device: self.queue.device_name(),
        })
    }
}
