//! A run as it is now, from the counters that its workers keep.

use std::collections::BTreeMap;
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
    let worker_statuses = current.memory.statuses.iter();
    let worker_periods = worker_statuses.map(|status| status.periods.load(Ordering::Relaxed));

    Progress {
        model: program.graph.name.clone(),
        iterations: current.iterations(),
        epoch: current.spec.epoch,
        recoveries: current.recoveries,
        plan: plan.name.clone(),
        block: plan.block,
        period_planned_ns: plan.period_ns,
        periods: worker_periods.min().unwrap_or(0),
        hosts: current.hosts.clone(),
        council: None,
        devices: device_list(current),
        rings: ring_fills(current),
        queues: queue_fills(current),
        // Whoever feeds sources, measures responses, sets parameters and changes modes adds these.
        releases: Vec::new(),
        deadlines: Vec::new(),
        parameters: Vec::new(),
        mode: None,
    }
}

fn device_list(current: &CurrentEpoch) -> Vec<DeviceProgress> {
    let mut all_devices = current.loaded.devices();
    all_devices.extend(&current.spec.devices);
    let calendars = current.spec.devices.iter().zip(&*current.memory.statuses);
    let statuses: BTreeMap<DeviceId, &WorkerStatus> = calendars
        .map(|(device, status)| (*device, &**status))
        .collect();
    let machine_hosts = current.loaded.program.machine.hosts.iter();
    let hosts: BTreeMap<DeviceId, &str> = machine_hosts
        .filter(|_| !current.hosts.is_empty())
        .flat_map(|host| host.devices.iter().map(|device| (*device, &*host.name)))
        .collect();

    all_devices
        .into_iter()
        .map(|device| DeviceProgress {
            host: hosts.get(&device).map(|host| (*host).to_owned()),
            ..device_progress(current, device, statuses.get(&device).copied())
        })
        .collect()
}

fn device_progress(
    current: &CurrentEpoch,
    device: DeviceId,
    status: Option<&WorkerStatus>,
) -> DeviceProgress {
    DeviceProgress {
        device: current.loaded.program.machine.devices[device].name.clone(),
        host: None,
        // Lost devices may have a part in the epoch at work, which is about to end.
        state: match status {
            _ if current.lost.contains(&device) => DeviceState::Lost,
            Some(status) => device_state(status),
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

fn ring_fills(current: &CurrentEpoch) -> Vec<Fill> {
    let program = &current.loaded.program;
    let plan = &program.plans[current.spec.plan];
    let plan_rings = plan.rings.iter().zip(&*current.memory.rings);

    plan_rings
        .map(|(ring, sync)| {
            let buffer = &plan.buffers[ring.buffer];
            let sender_name = &program.machine.devices[ring.from].name;
            let receiver_name = &program.machine.devices[ring.to].name;
            let (tokens, blocks) = sync.counts();
            Fill {
                name: format!("{} {sender_name} -> {receiver_name}", ring.channel),
                tokens,
                // The two were not read at the same time.
                filled: tokens.saturating_sub(blocks.saturating_mul(buffer.block_tokens)),
                capacity: u64::from(buffer.blocks) * buffer.block_tokens,
            }
        })
        .collect()
}

fn queue_fills(current: &CurrentEpoch) -> Vec<Fill> {
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
    let taken_tokens = queue.taken();
    let written_tokens = queue.written().0;
    Fill {
        name: actor.name.clone(),
        tokens: written_tokens,
        filled: written_tokens.saturating_sub(taken_tokens),
        capacity: queue.capacity(),
    }
}
