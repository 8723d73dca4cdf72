//! Gates in the interpreter: firing by firing, where tokens lie. Shares with the executor what an open gate is, and the
//! order of ports; not the kernel that splits calls.

use zbmd_ir::{Actor, ChannelId, ClosedAnswer, Gate, TiVec, is_open};

use super::{ResolvedActor, Stream};

/// The gate of an actor: what becomes of its outputs and states in a firing.
pub(super) struct NodeGate {
    /// Of each output: zeros, or what the state of this index holds.
    holders: Vec<Option<usize>>,
    /// States of the op, which are the first ones.
    op_states: usize,
    clears_states: bool,
}

impl NodeGate {
    /// Of a graph that need not be verified: `ResolvedActor` has the ports.
    pub(super) fn of(actor: &Actor, gate: &Gate) -> Self {
        let op_states = actor.state.len().saturating_sub(gate.held());
        let mut next_state = op_states;
        let holders = gate.outputs.iter().map(|answer| match answer {
            ClosedAnswer::Zero => None,
            ClosedAnswer::Hold => {
                next_state += 1;
                Some(next_state - 1)
            }
        });
        Self {
            holders: holders.collect(),
            op_states,
            clears_states: gate.states == ClosedAnswer::Zero,
        }
    }

    /// States that hold outputs.
    pub(super) fn held(&self) -> usize {
        self.holders.iter().flatten().count()
    }

    /// Whether the next firing is open.
    pub(super) fn is_open(&self, node: &ResolvedActor, streams: &TiVec<ChannelId, Stream>) -> bool {
        let port = &node.inputs[node.inputs.len() - 1];
        let stream = &streams[port.channel];
        let first = (stream.next[port.reader] - stream.first) as usize * stream.token_bytes;
        let bytes = port.window as usize * stream.token_bytes;
        is_open(stream.dtype, &stream.queue.live()[first..first + bytes])
    }

    /// After an open firing, keeps what is held of its outputs; gives a closed one its outputs, for which there is room at
    /// the ends of their queues, and its states.
    pub(super) fn settle(
        &self,
        node: &ResolvedActor,
        was_open: bool,
        streams: &mut TiVec<ChannelId, Stream>,
    ) {
        for (port, holder) in node.outputs.iter().zip(&self.holders) {
            let bytes = port.rate as usize * streams[port.channel].token_bytes;
            let holder = holder.map(|index| node.states[index]);
            match (holder, was_open) {
                (None, true) => {}
                (None, false) => streams[port.channel].set_last(&vec![0; bytes]),
                (Some(state), true) => {
                    let written = streams[port.channel].last(bytes);
                    streams[state].set_last(&written);
                }
                (Some(state), false) => {
                    let held = streams[state].last(bytes);
                    streams[port.channel].set_last(&held);
                }
            }
        }
        if !was_open && self.clears_states {
            for &state in &node.states[..self.op_states] {
                let zeros = vec![0; streams[state].token_bytes];
                streams[state].set_last(&zeros);
            }
        }
    }
}
