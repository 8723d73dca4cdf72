//! The kernels of a gated actor on a GPU: those of its op, and what a gate adds. Must not know ops: it knows ports by
//! their bytes.

use zbmd_gpu_ir::{GatedOutput, KernelPlan, behind_gate};
use zbmd_ir::{Actor, ClosedAnswer, Gate};

/// Why a GPU cannot have the actor for its gate's sake, as a clause; `None` where it can.
pub(crate) fn gate_reason(actor: &Actor, gate: &Gate) -> Option<String> {
    if let Some(why) = gate.fault(actor) {
        return Some(format!("its gate {why}"));
    }
    // All firings of a call are computed if one is open: they must not change what the next ones see.
    let has_states = actor.state.len() > gate.held();
    has_states.then(|| {
        "it has states, which closed firings of a call leave as they are on CPUs only".to_owned()
    })
}

/// Puts a gate, for which there was no [`gate_reason`], on the kernels of the actor without it.
///
/// # Errors
/// Why a GPU cannot have them, as a clause.
pub(crate) fn gated_plan(
    actor: &Actor,
    gate: &Gate,
    plan: KernelPlan,
) -> Result<KernelPlan, String> {
    let bare = gate.without(actor);
    let mut holders = 0..;
    let outputs = bare.outputs.iter().zip(&gate.outputs);
    let gated_outputs = outputs.map(|(port, answer)| GatedOutput {
        token_bytes: port.token.bytes(),
        rate: port.rate,
        holder: match answer {
            ClosedAnswer::Hold => holders.next(),
            ClosedAnswer::Zero => None,
        },
    });
    let gated_outputs: Vec<GatedOutput> = gated_outputs.collect();
    behind_gate(plan, &gated_outputs)
        .ok_or_else(|| "an output behind its gate is too large".to_owned())
}
