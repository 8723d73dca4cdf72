//! Predicted times: slots of a lane in order without overlap, loops as repetitions of their body's span, all within
//! the period. Fills in the spans of loops. That receipts follow their sending is checked with the deadlocks.

use super::cursor::{Begin, Flat, Node};
use super::{Cx, Lanes};
use crate::DeviceId;
use crate::verify::error::{Errors, VerifyError};

/// Checks each lane's times and fills in [`Begin::span_ns`].
pub(super) fn check(cx: &Cx<'_>, lanes: &mut Lanes<'_>, errors: &mut Errors) {
    for (device, flat) in &mut lanes.list {
        check_lane(cx, *device, flat, errors);
    }
}

fn check_lane(cx: &Cx<'_>, device: DeviceId, flat: &mut Flat<'_>, errors: &mut Errors) {
    let plan = cx.id;
    let period_ns = cx.plan.period_ns;
    let mut end_ns = 0u64;
    // Start of the first slot of each open loop, once it is known.
    let mut loop_starts: Vec<Option<u64>> = Vec::new();
    for i in 0..flat.nodes.len() {
        match flat.nodes[i] {
            Node::Slot { slot, index, .. } => {
                if slot.start_ns < end_ns {
                    errors.push(VerifyError::SlotStart {
                        plan,
                        device,
                        slot: index,
                        start_ns: slot.start_ns,
                        previous_end_ns: end_ns,
                    });
                }

                // The slot is the first of every loop that has opened since the one before it.
                for loop_start in loop_starts.iter_mut().rev().take_while(|s| s.is_none()) {
                    *loop_start = Some(slot.start_ns);
                }
                end_ns = slot.start_ns.saturating_add(slot.duration_ns);
            }
            Node::Begin(_) => loop_starts.push(None),
            Node::End { begin } => {
                let loop_start = loop_starts.pop().flatten().unwrap_or(end_ns);
                if let Node::Begin(Begin { count, span_ns, .. }) = &mut flat.nodes[begin] {
                    *span_ns = end_ns.saturating_sub(loop_start);
                    end_ns = loop_start.saturating_add(count.saturating_mul(*span_ns));
                }
            }
        }
    }

    if end_ns > period_ns {
        errors.push(VerifyError::LaneEnd {
            plan,
            device,
            end_ns,
            period_ns,
        });
    }
}
