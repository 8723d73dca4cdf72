//! A run as it is now, from the counters that its workers keep.

use std::sync::Arc;

use zbmd_ir::{Actor, DeviceId};

use super::control::CurrentEpoch;
use crate::observe::live::{DeviceProgress, DeviceState, Fill, Progress};
use crate::transport::conduit::Conduit;
use crate::transport::epoch_state::WorkerStatus;
use crate::transport::primitive::Ordering;

/// What the epoch at work shows.
pub(super) fn of_epoch(current: &CurrentEpoch) -> Progress {
    let program = &current.loaded.program;
    let plan = &program.plans[current.spec.plan];
    let statuses = current.memory.statuses.iter();
    let periods = statuses.map(|status| status.periods.load(Ordering::Relaxed));

    Progress {
        model: program.graph.name.clone(),
        iterations: current.iterations(),
        epoch: current.spec.epoch,
        recoveries: current.recoveries,
        plan: plan.name.clone(),
        block: plan.block,
        period_planned_ns: plan.period_ns,
        periods: periods.min().unwrap_or(0),
        devices: devices(current),
        rings: rings(current),
        queues: queues(current),
    }
}

fn devices(current: &CurrentEpoch) -> Vec<DeviceProgress> {
    let mut all = current.loaded.devices();
    all.extend(&current.spec.devices);
    all.into_iter()
        .map(|device| device_progress(current, device))
        .collect()
}

fn device_progress(current: &CurrentEpoch, device: DeviceId) -> DeviceProgress {
    let mut devices = current.spec.devices.iter();
    let calendar = devices.position(|other| *other == device);
    let status = calendar.map(|calendar| &current.memory.statuses[calendar]);

    DeviceProgress {
        device: current.loaded.program.machine.devices[device].name.clone(),
        state: match status {
            Some(status) => device_state(status),
            None if current.lost.contains(&device) => DeviceState::Lost,
            None => DeviceState::Idle,
        },
        periods: status.map_or(0, |status| status.periods.load(Ordering::Relaxed)),
    }
}

fn device_state(status: &WorkerStatus) -> DeviceState {
    if status.thread.load(Ordering::Relaxed) == 0 {
        DeviceState::Starting
    } else if status.pc.load(Ordering::Relaxed) == WorkerStatus::BETWEEN_PERIODS {
        DeviceState::Waiting
    } else {
        DeviceState::Working
    }
}

fn rings(current: &CurrentEpoch) -> Vec<Fill> {
    let program = &current.loaded.program;
    let plan = &program.plans[current.spec.plan];
    let rings = plan.rings.iter().zip(&*current.memory.rings);

    rings
        .map(|(ring, sync)| {
            let buffer = &plan.buffers[ring.buffer];
            let sender = &program.machine.devices[ring.from].name;
            let receiver = &program.machine.devices[ring.to].name;
            let (tokens, blocks) = sync.counts();
            Fill {
                name: format!("{} {sender} -> {receiver}", ring.channel),
                tokens,
                // The two were not read at the same time.
                filled: tokens.saturating_sub(blocks.saturating_mul(buffer.block_tokens)),
                capacity: u64::from(buffer.blocks) * buffer.block_tokens,
            }
        })
        .collect()
}

fn queues(current: &CurrentEpoch) -> Vec<Fill> {
    let graph = &current.loaded.program.graph;
    let sources = graph.sources().zip(&current.session_memory.sources);
    let sinks = graph.sinks().zip(&current.memory.sinks);
    sources
        .chain(sinks)
        .map(|((_, actor), queue)| queue_fill(actor, queue))
        .collect()
}

fn queue_fill(actor: &Actor, queue: &Arc<Conduit>) -> Fill {
    // In this order, so that no more tokens have been taken than written.
    let taken = queue.taken();
    let tokens = queue.written().0;
    Fill {
        name: actor.name.clone(),
        tokens,
        filled: tokens.saturating_sub(taken),
        capacity: queue.capacity(),
    }
}
