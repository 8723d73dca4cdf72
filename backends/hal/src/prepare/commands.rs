//! What the slots of a segment are on a device: receipts, handovers, and commands for each phase.

use std::ops::Range;

use zbmd_ir::{Action, ActorId, BufferId, ChannelId, Region, RingId};

use super::super::expand::{SlotExecution, SlotSegment};
use super::super::gates::PartGate;
use super::super::queue::{BankRange, Command, Queue};
use super::super::segment::{Handover, ReadySegment, Receipt, SegmentPart, SentTokens};
use super::super::{DEPTH, ReplayError, actor_name};
use super::{Preparation, ReadyActor};
use zbmd_gpu_ir::Operand;

/// Lists of a period at most that gates divide. What is beyond them is one list, which is submitted whole unless all of
/// its calls are closed.
const MAX_PARTS: usize = 16;

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
    /// The table of a gated actor.
    gate: BankRange,
}

impl PortRanges {
    fn place(&self, operand: Operand, ready: &ReadyActor) -> BankRange {
        match operand {
            Operand::Input(index) => self.inputs[index as usize],
            Operand::Output(index) => self.outputs[index as usize],
            Operand::State(index) => self.states[index as usize],
            Operand::Const(index) => ready.consts[index as usize],
            Operand::Scratch => self.scratch,
            Operand::Gate => self.gate,
        }
    }
}

/// What a device does for an execution.
struct DeviceWork {
    commands: Vec<Command>,
    /// Of a gated call, the indices of those that are left where all firings are closed; `None`: all of them.
    closed: Option<Vec<usize>>,
}

impl DeviceWork {
    /// Adds the commands to the last phase of a part.
    fn push_to(self, part: &mut SegmentPart, stage: Option<u32>) {
        if let (false, Some(closed)) = (part.gates.is_empty(), part.closed.last_mut()) {
            let left = (0..self.commands.len())
                .filter(|index| self.closed.as_ref().is_none_or(|left| left.contains(index)));
            closed.extend(left.map(|index| (stage, self.commands[index].clone())));
        }
        if let Some(open) = part.open.last_mut() {
            open.extend(self.commands.into_iter().map(|command| (stage, command)));
        }
    }
}

/// A segment's parts, and the part of each of its executions.
struct DividedSegment {
    parts: Vec<SegmentPart>,
    part_of: Vec<usize>,
}

impl SegmentPart {
    /// A call of one more actor.
    fn add_gate(&mut self, call: u32) {
        match self.gates.iter_mut().find(|gate| gate.call == call) {
            Some(known) => known.actors += 1,
            None => self.gates.push(PartGate { call, actors: 1 }),
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
        let mut ready = ReadySegment {
            first_part: self.part_count,
            ..ReadySegment::default()
        };
        for execution in &segment.executions {
            self.push_host_part(execution, &mut ready);
        }

        let divided = self.divide(segment);
        ready.parts = divided.parts;
        for phase in 0..phases {
            for part in &mut ready.parts {
                part.open.push(Vec::new());
                part.closed.push(Vec::new());
            }
            for (execution, &part) in segment.executions.iter().zip(&divided.part_of) {
                let work = self.device_work(execution, phase)?;
                let is_fetch = matches!(execution.action, Action::Fetch { .. });
                let stage = (!is_fetch).then_some(execution.stage);
                work.push_to(&mut ready.parts[part], stage);
            }
        }
        Ok(ready)
    }

    /// Divides a segment into lists: as few as there are gates that may differ, because each list is submitted as a whole.
    fn divide(&mut self, segment: &SlotSegment) -> DividedSegment {
        self.part_count += 1;
        let mut parts = vec![SegmentPart::default()];
        let mut part_of = Vec::with_capacity(segment.executions.len());
        for execution in &segment.executions {
            if let Some(call) = self.gated_call(execution) {
                let last = parts.last().map_or(&[][..], |part| &part.gates);
                let is_new = !last.is_empty() && last.iter().all(|gate| gate.call != call);
                if is_new && self.part_count < MAX_PARTS {
                    self.part_count += 1;
                    parts.push(SegmentPart::default());
                }
                if let Some(part) = parts.last_mut() {
                    part.add_gate(call);
                }
            }
            part_of.push(parts.len() - 1);
        }
        DividedSegment { parts, part_of }
    }

    /// The number of a gated actor's call.
    fn gated_call(&self, execution: &SlotExecution) -> Option<u32> {
        match execution.action {
            Action::Fire { actor, first, .. } => self.gated_calls.get(&(actor, first)).copied(),
            _ => None,
        }
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
            Action::Fire { .. }
            | Action::Carry { .. }
            | Action::Fetch { .. }
            | Action::Await { .. } => {}
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
    fn device_work(
        &mut self,
        execution: &SlotExecution,
        phase: u64,
    ) -> Result<DeviceWork, ReplayError<Q::Fault>> {
        let stage = execution.stage;
        let commands = match execution.action {
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
                return self.fire_work(firings, stage, phase);
            }
            Action::Recv { ring, first, count } => {
                vec![self.receive_command(ring, stage, phase, first..first + count)]
            }
            Action::Send { ring, first, count } => {
                vec![self.send_command(ring, stage, phase, first..first + count)]
            }
            Action::Carry { buffer } => self.carry_commands(buffer, stage, phase),
            Action::Fetch { actor, .. } => self.fetched.copy_command(actor).into_iter().collect(),
            // Commands wait for the copies that they read the bytes of.
            Action::Release { .. } | Action::Await { .. } => Vec::new(),
        };
        Ok(DeviceWork {
            commands,
            closed: None,
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
            gate: match self.gated_calls.get(&(id, first)) {
                Some(call) => self.gates.table(*call, phase),
                None => BankRange::new(0, 0, 0),
            },
        }
    }

    fn fire_work(
        &mut self,
        firings: FiringRange,
        stage: u32,
        phase: u64,
    ) -> Result<DeviceWork, ReplayError<Q::Fault>> {
        let ports = self.port_ranges(firings, stage, phase);
        let ready = &self.actors[&firings.actor];
        let bound = self
            .binder
            .bind_call(&ready.plan, &ready.kernels, firings.count, &|operand| {
                ports.place(operand, ready)
            });
        let is_gated = ready.plan.closed_steps.is_some();
        let bound = bound.map_err(|too_long| ReplayError::TooLarge {
            what: format!(
                "a call of {} firings of `{}`",
                firings.count,
                actor_name(self.graph, firings.actor)
            ),
            bytes: too_long.bytes,
            limit: too_long.limit,
            device: self.queue.device_name(),
        })?;
        Ok(DeviceWork {
            closed: is_gated.then_some(bound.closed),
            commands: bound.commands,
        })
    }
}
