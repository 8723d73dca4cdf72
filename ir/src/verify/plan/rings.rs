//! The table of rings: exactly those that channels and placement need, with the right ends and buffers.

use std::collections::{BTreeMap, BTreeSet};

use super::Cx;
use super::buffers::BufferOf;
use crate::verify::error::{Errors, VerifyError};
use crate::{ChannelId, DeviceId, RingId};

/// Ring of each channel towards each other device that reads it.
pub(super) type RingOf = BTreeMap<(ChannelId, DeviceId), RingId>;

/// Checks ids, ends, buffers and links; the table holds every ring whose ids exist.
pub(super) fn check_table(cx: &Cx<'_>, buffer_of: &BufferOf, errors: &mut Errors) -> RingOf {
    let plan = cx.id;
    let links: BTreeSet<(DeviceId, DeviceId)> =
        cx.machine.links.iter().map(|l| (l.from, l.to)).collect();
    let channels = cx.graph.channels.len();
    let devices = cx.machine.devices.len();
    let mut ring_table = RingOf::new();
    for (id, ring) in cx.plan.rings.iter_enumerated() {
        if errors.full() {
            break;
        }
        let channel = ring.channel;
        let from = ring.from;
        let to = ring.to;
        let named_ids = [
            ("channel", channel.0, channels),
            ("device", from.0, devices),
            ("device", to.0, devices),
        ];
        if let Some(&(what, n, count)) =
            named_ids.iter().find(|&&(_, n, count)| n as usize >= count)
        {
            errors.push(VerifyError::RingId {
                plan,
                ring: id,
                what,
                id: n,
                count,
            });
            continue;
        }

        if let Some(&first) = ring_table.get(&(channel, to)) {
            errors.push(VerifyError::RingTwice {
                plan,
                first,
                second: id,
            });
            continue;
        }

        ring_table.insert((channel, to), id);
        let writer = cx.writer_device(channel);
        if from != writer {
            errors.push(VerifyError::RingFrom {
                plan,
                ring: id,
                from,
                writer,
            });
        }

        if to == writer || !cx.heads.contains_key(&(channel, to)) {
            errors.push(VerifyError::RingUnneeded {
                plan,
                ring: id,
                channel,
                to,
            });
            continue;
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

        if from != to && !links.contains(&(from, to)) {
            errors.push(VerifyError::NoLink {
                plan,
                ring: id,
                from,
                to,
            });
        }
    }

    for &(channel, to) in cx.heads.keys() {
        if to != cx.writer_device(channel) && !ring_table.contains_key(&(channel, to)) {
            errors.push(VerifyError::RingMissing { plan, channel, to });
        }
    }

    ring_table
}
