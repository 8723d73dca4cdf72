//! Which calls of a calendar are behind gates, and where the host sees the gates' tokens.

use zbmd_ir::{Action, Actor, ActorId, Gate, GateWindow, Graph};

use super::super::ReplayError;
use super::super::expand::{SlotExecution, SlotSegment};
use super::super::gates::{GateChannel, GatedCall};
use super::super::queue::{MemoryKind, Queue};
use super::Preparation;

/// Whether a calendar fires gated actors.
pub(super) fn has_gates(graph: &Graph, segments: &[SlotSegment]) -> bool {
    let mut executions = segments.iter().flat_map(|segment| &segment.executions);
    executions.any(|execution| match execution.action {
        Action::Fire { actor, .. } => graph.actors[actor].gate().is_some(),
        _ => false,
    })
}

/// A gated actor of the device.
struct GatedActor<'a> {
    id: ActorId,
    actor: &'a Actor,
    gate: &'a Gate,
}

impl<Q: Queue> Preparation<'_, Q> {
    /// Numbers the calls of gated actors, and allocates their tables.
    pub(super) fn collect_gates(
        &mut self,
        segments: &[SlotSegment],
    ) -> Result<(), ReplayError<Q::Fault>> {
        for execution in segments.iter().flat_map(|segment| &segment.executions) {
            self.collect_call(execution)?;
        }
        if self.gates.is_empty() {
            return Ok(());
        }
        let bank = self.push_bank(self.gates.table_bytes(), MemoryKind::Host)?;
        self.gates.finish(bank);
        Ok(())
    }

    fn collect_call(&mut self, execution: &SlotExecution) -> Result<(), ReplayError<Q::Fault>> {
        let Action::Fire {
            actor: id,
            first,
            count,
        } = execution.action
        else {
            return Ok(());
        };
        let graph = self.graph;
        let actor = &graph.actors[id];
        let Some(gate) = actor.gate() else {
            return Ok(());
        };

        let gated = GatedActor { id, actor, gate };
        let (channel, delay) = self.gate_channel(&gated, execution.stage)?;
        let port = &actor.inputs[gate.input as usize];
        let bytes = |tokens: u64| (tokens * port.token.bytes()) as usize;
        let call = self.gates.call(GatedCall {
            channel,
            stage: execution.stage,
            first_token: (first * port.rate) as i64 - delay as i64,
            window: GateWindow {
                dtype: port.token.dtype,
                step: bytes(port.rate),
                window: bytes(port.window),
            },
            firings: count as usize,
        });
        self.gated_calls.insert((id, first), call);
        Ok(())
    }

    /// The channel that an actor's gate reads, by its number among the gates', and how far the gate looks back.
    fn gate_channel(
        &mut self,
        gated: &GatedActor<'_>,
        stage: u32,
    ) -> Result<(usize, u64), ReplayError<Q::Fault>> {
        let joined = self.port_channels.inputs[gated.id][gated.gate.input as usize];
        let own_ring = joined.and_then(|(channel, reader)| {
            let mut rings = self.rings.iter();
            let ring = rings.position(|own| {
                let ring = &self.plan.rings[own.id];
                ring.channel == channel && ring.to == self.calendar.device
            })?;
            Some((channel, reader, ring as u32))
        });
        let Some((channel_id, reader, ring)) = own_ring else {
            return Err(ReplayError::OwnGate {
                actor: gated.actor.name.clone(),
                device: self.queue.device_name(),
            });
        };

        let channel = &self.graph.channels[channel_id];
        let index = self.gates.channel(GateChannel {
            channel: channel_id,
            ring,
            token_bytes: channel.token.bytes(),
            block_tokens: self.rings[ring as usize].block_tokens,
            history: channel.history(),
            last_stage: stage,
            first: 0,
            tokens: Vec::new(),
        });
        Ok((index, channel.readers[reader as usize].delay))
    }
}
