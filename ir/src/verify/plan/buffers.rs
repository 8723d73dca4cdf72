//! Buffers: exactly those that channels and placement need, with the sizes that follow from them, inside their
//! device's regions.

use std::collections::BTreeMap;

use super::Cx;
use crate::limits::{ALIGN_BYTES, MAX_ARENA_BYTES, MAX_BLOCKS};
use crate::verify::error::{Errors, Memory, VerifyError};
use crate::{Buffer, BufferId, Calendar, ChannelId, DeviceId, Region};

/// Buffer of each channel on each device that needs one.
pub(super) type BufferOf = BTreeMap<(ChannelId, DeviceId), BufferId>;

/// Checks buffers, scratch and region sizes; the table holds every buffer whose ids exist.
pub(super) fn check(cx: &Cx<'_>, errors: &mut Errors) -> BufferOf {
    let plan = cx.id;
    let calendar_of: BTreeMap<DeviceId, &Calendar> = cx
        .plan
        .calendars
        .iter()
        .map(|calendar| (calendar.device, calendar))
        .collect();
    for calendar in calendar_of.values() {
        check_regions(cx, calendar, errors);
    }
    let mut buffer_table = BufferOf::new();
    for (id, buffer) in cx.plan.buffers.iter_enumerated() {
        if errors.full() {
            break;
        }
        let channel = buffer.channel;
        let device = buffer.device;
        if channel.index() >= cx.graph.channels.len() || device.index() >= cx.machine.devices.len()
        {
            errors.push(VerifyError::BufferId {
                plan,
                buffer: id,
                channel,
                device,
            });
            continue;
        }

        if let Some(&first) = buffer_table.get(&(channel, device)) {
            errors.push(VerifyError::BufferTwice {
                plan,
                first,
                second: id,
            });
            continue;
        }

        buffer_table.insert((channel, device), id);
        match cx.heads.get(&(channel, device)) {
            None => errors.push(VerifyError::BufferUnneeded {
                plan,
                buffer: id,
                channel,
                device,
            }),
            Some(&head) => check_sizes(cx, id, buffer, head, errors),
        }

        if let Some(calendar) = calendar_of.get(&device) {
            check_bounds(cx, id, buffer, calendar, errors);
        }
    }

    // Every device that writes or reads a channel needs its buffer there.
    for &(channel, device) in cx.heads.keys() {
        if !buffer_table.contains_key(&(channel, device)) {
            errors.push(VerifyError::BufferMissing {
                plan,
                channel,
                device,
            });
        }
    }

    buffer_table
}

fn check_regions(cx: &Cx<'_>, calendar: &Calendar, errors: &mut Errors) {
    let plan = cx.id;
    let device = calendar.device;
    let limit = u128::from(MAX_ARENA_BYTES);
    errors.limit(
        || format!("arena bytes on {device} of {plan}"),
        calendar.arena_bytes.into(),
        limit,
    );
    errors.limit(
        || format!("exchange bytes on {device} of {plan}"),
        calendar.exchange_bytes.into(),
        limit,
    );

    let needed_bytes = u128::from(calendar.arena_bytes) + u128::from(calendar.exchange_bytes);
    if let Some(what) = cx.machine.devices.get(device).map(|d| d.memory_bytes)
        && needed_bytes > u128::from(what)
    {
        errors.push(VerifyError::DeviceMemory {
            plan,
            device,
            needed: needed_bytes,
            memory: what,
        });
    }

    // Kernels use scratch as part of the arena.
    if calendar.scratch_bytes > 0 {
        let what = Memory::Scratch;
        check_alignment(cx, device, what, calendar.scratch_offset_bytes, errors);
        let end = u128::from(calendar.scratch_offset_bytes) + u128::from(calendar.scratch_bytes);
        check_inside(cx, calendar, what, Region::Arena, end, errors);
    }
}

fn check_alignment(cx: &Cx<'_>, device: DeviceId, memory: Memory, bytes: u64, errors: &mut Errors) {
    if !bytes.is_multiple_of(ALIGN_BYTES) {
        errors.push(VerifyError::Misaligned {
            plan: cx.id,
            device,
            memory,
            bytes,
            align: ALIGN_BYTES,
        });
    }
}

fn check_inside(
    cx: &Cx<'_>,
    calendar: &Calendar,
    memory: Memory,
    region: Region,
    end: u128,
    errors: &mut Errors,
) {
    let size = match region {
        Region::Arena => calendar.arena_bytes,
        Region::Exchange => calendar.exchange_bytes,
    };
    if end > u128::from(size) {
        errors.push(VerifyError::OutsideRegion {
            plan: cx.id,
            device: calendar.device,
            memory,
            region,
            end,
            size,
        });
    }
}

fn check_sizes(cx: &Cx<'_>, id: BufferId, buffer: &Buffer, head: u64, errors: &mut Errors) {
    let plan = cx.id;
    let is_state = cx.is_state[buffer.channel];
    let expected = if is_state {
        0
    } else {
        cx.tokens[buffer.channel]
    };
    if buffer.block_tokens != expected {
        errors.push(VerifyError::BlockTokens {
            plan,
            buffer: id,
            found: buffer.block_tokens,
            expected,
        });
    }

    check_chunks(cx, id, buffer, head, errors);

    if buffer.head_tokens != head && !buffer.is_chunked() {
        errors.push(VerifyError::HeadTokens {
            plan,
            buffer: id,
            found: buffer.head_tokens,
            expected: head,
        });
    }

    let max_blocks = if is_state { 1 } else { MAX_BLOCKS };
    if buffer.blocks == 0 || buffer.blocks > max_blocks {
        errors.push(VerifyError::Blocks {
            plan,
            buffer: id,
            found: buffer.blocks,
            limit: max_blocks,
        });
    }

    // A place holds the head and the new tokens of a block, or of a chunk of it, one behind the other.
    let (held_head, held_tokens) = if buffer.is_chunked() {
        (buffer.head_tokens, buffer.chunk_tokens)
    } else {
        (head, expected)
    };
    let token_bytes = u128::from(cx.graph.channels[buffer.channel].token.bytes());
    let needed = (u128::from(held_head) + u128::from(held_tokens)) * token_bytes;
    if u128::from(buffer.stride_bytes) < needed {
        errors.push(VerifyError::Stride {
            plan,
            buffer: id,
            stride: buffer.stride_bytes,
            needed,
        });
    }

    // Other devices write where the exchange region is; the arena is the device's own.
    let is_received = buffer.device != cx.writer_device(buffer.channel);
    let expected = if is_received {
        Region::Exchange
    } else {
        Region::Arena
    };
    if buffer.region != expected {
        errors.push(VerifyError::WrongRegion {
            plan,
            buffer: id,
            found: buffer.region,
            expected,
        });
    }
}

/// What a buffer that holds less than a block needs; `head` is the largest delay of its readers.
fn check_chunks(cx: &Cx<'_>, id: BufferId, buffer: &Buffer, head: u64, errors: &mut Errors) {
    if !buffer.is_chunked() {
        return;
    }
    let plan = cx.id;
    let found = buffer.chunk_tokens;
    let block = buffer.block_tokens;
    if found == 0 || found > block || !block.is_multiple_of(found) {
        errors.push(VerifyError::ChunkTokens {
            plan,
            buffer: id,
            found,
            block,
        });
    }
    if buffer.head_tokens < head {
        errors.push(VerifyError::ChunkHead {
            plan,
            buffer: id,
            found: buffer.head_tokens,
            least: head,
        });
    }

    // There is one chunk of one block at a time, which nobody else looks at.
    let channel = &cx.graph.channels[buffer.channel];
    let is_local = |actor| cx.plan.placement[actor] == buffer.device;
    let problem = if buffer.blocks != 1 {
        "has several places"
    } else if buffer.region != Region::Arena {
        "is not in the arena"
    } else if !channel.readers.iter().all(|r| is_local(r.to.actor)) {
        "has readers on other devices"
    } else if !cx.machine.devices[buffer.device].backend.is_cpu() {
        "is on a device that is not a CPU"
    } else {
        return;
    };
    errors.push(VerifyError::ChunkPlace {
        plan,
        buffer: id,
        problem,
    });
}

fn check_bounds(
    cx: &Cx<'_>,
    id: BufferId,
    buffer: &Buffer,
    calendar: &Calendar,
    errors: &mut Errors,
) {
    let memory = Memory::Buffer(id);
    check_alignment(cx, buffer.device, memory, buffer.offset_bytes, errors);
    check_alignment(cx, buffer.device, memory, buffer.stride_bytes, errors);

    // Products of numbers from the file may exceed 64 bits.
    let size_bytes = u128::from(buffer.stride_bytes) * u128::from(buffer.blocks);
    check_inside(
        cx,
        calendar,
        memory,
        buffer.region,
        u128::from(buffer.offset_bytes) + size_bytes,
        errors,
    );
}
