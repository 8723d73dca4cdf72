//! What a worker measured, and where it failed, with the names that people know. Pure functions, after the run.

use zbmd_ir::{Action, ActorId, DeviceId, Graph, Plan, Program, Slot, TiVec};

use super::cpu::CpuWorker;
use super::prepared::{DeviceWorker, PreparedWorker};
use super::streams::SinkEnd;
use crate::fault::{CorruptTransfer, FaultReport, WorkerFault};
use crate::observe::measure::{LatencyPath, SlotSample};
use crate::observe::report::{LatencyReport, SlotReport, WaitReport, WorkerReport};
use crate::program::LoadedProgram;
use crate::transport::epoch_state::WorkerStatus;
use crate::transport::primitive::Ordering;

/// The actors that tokens of `from` reach, itself included. O(actors + channels).
pub(super) fn reached_from(graph: &Graph, from: ActorId) -> TiVec<ActorId, bool> {
    let mut readers: TiVec<ActorId, Vec<ActorId>> = vec![Vec::new(); graph.actors.len()].into();
    for channel in &graph.channels {
        let targets = channel.readers.iter().map(|reader| reader.to.actor);
        readers[channel.from.actor].extend(targets);
    }

    let mut reached: TiVec<ActorId, bool> = vec![false; graph.actors.len()].into();
    let mut open_actors = vec![from];
    while let Some(actor) = open_actors.pop() {
        if !std::mem::replace(&mut reached[actor], true) {
            open_actors.extend(&readers[actor]);
        }
    }
    reached
}

/// A device's name, as its machine file has it.
fn device_name(program: &Program, device: DeviceId) -> &str {
    &program.machine.devices[device].name
}

/// What people call a slot: `fir[0..1024]`.
fn slot_label(program: &Program, plan: &Plan, slot: &Slot) -> String {
    match slot.action {
        Action::Fire {
            actor,
            first,
            count,
        } => {
            let actor_name = &program.graph.actors[actor].name;
            format!("{actor_name}[{first}..{}]", first + count)
        }
        Action::Send { ring, first, count } => {
            let ring = &plan.rings[ring];
            let receiver_name = device_name(program, ring.to);
            let end_token = first + count;
            format!(
                "send {} -> {receiver_name} [{first}..{end_token}]",
                ring.channel
            )
        }
        Action::Recv { ring, first, count } => {
            let ring = &plan.rings[ring];
            let sender_name = device_name(program, ring.from);
            let end_token = first + count;
            format!(
                "recv {} <- {sender_name} [{first}..{end_token}]",
                ring.channel
            )
        }
        Action::Release { ring } => format!("release {}", plan.rings[ring].channel),
        Action::Carry { buffer } => format!("carry {}", plan.buffers[buffer].channel),
        Action::Fetch { actor, .. } => {
            format!("fetch weights of {}", program.graph.actors[actor].name)
        }
        Action::Await { actor } => {
            format!("await weights of {}", program.graph.actors[actor].name)
        }
    }
}

/// What was measured of a worker.
pub(super) fn worker_report(loaded: &LoadedProgram, worker: &PreparedWorker) -> WorkerReport {
    let plan = &loaded.program.plans[worker.plan];
    let mut report = match &worker.device {
        DeviceWorker::Cpu(cpu) => cpu_report(&loaded.program, plan, cpu),
        DeviceWorker::Gpu(gpu) => {
            gpu.report(&loaded.program, plan, &plan.calendars[worker.calendar])
        }
    };
    report.notes.extend(worker.share_note.clone());
    report
}

fn cpu_report(program: &Program, plan: &Plan, cpu: &CpuWorker) -> WorkerReport {
    let state = &cpu.replay.state;
    let sampled_slots = cpu.slots.iter().zip(&state.samples);
    let slot_reports = sampled_slots.filter_map(|(slot, sample)| {
        let slot = slot.as_ref()?;
        Some(slot_report(slot_label(program, plan, slot), slot, sample))
    });

    let connected_rings = cpu.rings.iter().zip(&state.peers);
    let ring_waits = connected_rings.map(|(ring, peer)| {
        let ring = &plan.rings[*ring];
        let sender_name = device_name(program, ring.from);
        let receiver_name = device_name(program, ring.to);
        WaitReport {
            ring: format!("{} {sender_name} -> {receiver_name}", ring.channel),
            waits: peer.waits,
        }
    });

    WorkerReport {
        device: device_name(program, plan.calendars[cpu.calendar].device).to_owned(),
        pinned: cpu.is_pinned,
        slots: slot_reports.collect(),
        waits: ring_waits.collect(),
        gates: None,
        notes: Vec::new(),
    }
}

fn slot_report(label: String, slot: &Slot, sample: &SlotSample) -> SlotReport {
    SlotReport {
        slot: label,
        stage: slot.stage,
        start_planned_ns: slot.start_ns,
        start_measured_ns: sample.mean(sample.start_sum_ns),
        planned_ns: slot.duration_ns,
        mean_ns: sample.mean(sample.sum_ns),
        min_ns: sample.min_ns,
        max_ns: sample.max_ns,
        samples: sample.count,
    }
}

/// The latencies that were measured at sinks.
pub(super) fn latency_reports(program: &Program, sinks: &[SinkEnd]) -> Vec<LatencyReport> {
    let mut reports = Vec::new();
    for sink in sinks {
        let sink_actor = program.graph.sinks().nth(sink.index as usize);
        let sink_name = sink_actor
            .map(|(_, actor)| actor.name.clone())
            .unwrap_or_default();
        reports.extend(sink.paths.iter().map(|path: &LatencyPath| {
            let source_name = program.graph.actors[ActorId(path.source)].name.clone();
            LatencyReport::new(source_name, sink_name.clone(), &path.histogram)
        }));
    }
    reports
}

/// A worker's fault with the names of the slot at work.
pub(super) fn fault_report(
    loaded: &LoadedProgram,
    worker: &PreparedWorker,
    fault: WorkerFault,
) -> FaultReport {
    let program = &loaded.program;
    let plan = &program.plans[worker.plan];
    let fault_device = &program.machine.devices[plan.calendars[worker.calendar].device];
    // The slot is found by the instruction that the worker had begun, the names by the plan that it ran.
    let current_slot = slot_at_work(worker);
    let actor_name = match current_slot {
        Some(Slot {
            action: Action::Fire { actor, .. },
            ..
        }) => program.graph.actors[*actor].name.clone(),
        Some(slot) => slot_label(program, plan, slot),
        None => "the worker itself".to_owned(),
    };

    // A slot of stage s works on the block that began s periods before.
    let slot_stage = current_slot.map_or(0, |slot| u64::from(slot.stage));
    // A wrong checksum is seen by the reader, but the fault is the sender's or the link's.
    let corrupt_transfer = match fault {
        WorkerFault::Corrupt { ring, .. } => {
            let ring = &plan.rings[ring];
            Some(CorruptTransfer {
                channel: ring.channel,
                sender: ring.from,
                sender_name: program.machine.devices[ring.from].name.clone(),
            })
        }
        _ => None,
    };
    FaultReport {
        fault,
        actor: actor_name,
        device: fault_device.name.clone(),
        block: worker.periods.period.saturating_sub(slot_stage),
        transfer: corrupt_transfer,
    }
}

/// The slot at which a worker is, if it is at one.
fn slot_at_work(worker: &PreparedWorker) -> Option<&Slot> {
    let DeviceWorker::Cpu(cpu) = &worker.device else {
        return None;
    };
    let status = &worker.epoch.statuses[worker.calendar];
    match status.pc.load(Ordering::Relaxed) {
        WorkerStatus::BETWEEN_PERIODS => None,
        pc => cpu.slots.get(pc as usize)?.as_ref(),
    }
}
