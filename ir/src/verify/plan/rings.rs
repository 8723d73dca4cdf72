//! The table of rings: exactly those that channels and placement need, with the right ends and buffers.

use std::collections::BTreeMap;

use super::Cx;
use super::buffers::BufferOf;
use crate::verify::error::{Errors, VerifyError};
use crate::{ChannelId, DeviceId, Ring, RingId};

/// Ring of each channel towards each other device that reads it.
pub(super) type RingOf = BTreeMap<(ChannelId, DeviceId), RingId>;

/// Checks ids, ends, buffers and links; the table holds every ring whose ids exist.
pub(super) fn check_table(cx: &Cx<'_>, buffer_of: &BufferOf, errors: &mut Errors) -> RingOf {
    let plan = cx.id;
    let mut ring_table = RingOf::new();
    for (id, ring) in cx.plan.rings.iter_enumerated() {
        if errors.full() {
            break;
        }
        if !names_existing_ids(cx, id, ring, errors) {
            continue;
        }

        if let Some(&first) = ring_table.get(&(ring.channel, ring.to)) {
            errors.push(VerifyError::RingTwice {
                plan,
                first,
                second: id,
            });
            continue;
        }

        ring_table.insert((ring.channel, ring.to), id);
        check_ring(cx, (id, ring), buffer_of, errors);
    }

    for &(channel, to) in cx.heads.keys() {
        if to != cx.writer_device(channel) && !ring_table.contains_key(&(channel, to)) {
            errors.push(VerifyError::RingMissing { plan, channel, to });
        }
    }

    ring_table
}

/// Whether the channel and both devices that a ring names exist.
fn names_existing_ids(cx: &Cx<'_>, id: RingId, ring: &Ring, errors: &mut Errors) -> bool {
    let channels = cx.graph.channels.len();
    let devices = cx.machine.devices.len();
    let named_ids = [
        ("channel", ring.channel.0, channels),
        ("device", ring.from.0, devices),
        ("device", ring.to.0, devices),
    ];

    let missing = named_ids
        .into_iter()
        .find(|&(_, named, count)| named as usize >= count);
    if let Some((what, named, count)) = missing {
        errors.push(VerifyError::RingId {
            plan: cx.id,
            ring: id,
            what,
            id: named,
            count,
        });
    }
    missing.is_none()
}

/// Checks the ends, the buffer and the link of a ring whose ids exist.
fn check_ring(cx: &Cx<'_>, (id, ring): (RingId, &Ring), buffer_of: &BufferOf, errors: &mut Errors) {
    let plan = cx.id;
    let &Ring {
        channel, from, to, ..
    } = ring;

    // A channel is sent from where it is written, and from nowhere else.
    let writer = cx.writer_device(channel);
    if from != writer {
        errors.push(VerifyError::RingFrom {
            plan,
            ring: id,
            from,
            writer,
        });
    }

    // Only a reader on another device needs a ring; one without has no buffer to compare with.
    if to == writer || !cx.heads.contains_key(&(channel, to)) {
        errors.push(VerifyError::RingUnneeded {
            plan,
            ring: id,
            channel,
            to,
        });
        return;
    }

    match buffer_of.get(&(channel, to)) {
        Some(&expected) if expected != ring.buffer => {
            errors.push(VerifyError::RingBuffer {
                plan,
                ring: id,
                found: ring.buffer,
                expected,
            });
        }
        // A missing buffer is reported with the buffers.
        _ => {}
    }

    if from != to && cx.machine.link(from, to).is_none() {
        errors.push(VerifyError::NoLink {
            plan,
            ring: id,
            from,
            to,
        });
    }
}
