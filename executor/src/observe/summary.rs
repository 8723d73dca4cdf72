//! From what workers measured to reports and errors with names. Pure functions, after a run.

use zbmd_ir::{Action, ActorId, Calendar, DeviceId, Graph, Plan, Program, Slot, State, TiVec};

use serde::{Deserialize, Serialize};

use crate::error::RunError;
use crate::observe::report::{
    LatencyReport, PlanReport, Report, SinkReport, SlotReport, SourceReport, WaitReport,
    WorkerReport,
};
use crate::run::epochs::Segment;
use crate::run::session::Inner;
use crate::transport::epoch::{Post, SessionMemory};
use crate::transport::primitive::Ordering;
use crate::worker::lower::Slots;
use crate::worker::period_loop::{Body, Failure, SinkEnd, Worker};

/// The actors that tokens of `from` reach, itself included. O(actors + channels).
pub(crate) fn reached_from(graph: &Graph, from: ActorId) -> TiVec<ActorId, bool> {
    let mut next: TiVec<ActorId, Vec<ActorId>> = vec![Vec::new(); graph.actors.len()].into();
    for channel in &graph.channels {
        next[channel.from.actor].extend(channel.readers.iter().map(|r| r.to.actor));
    }
    let mut reached: TiVec<ActorId, bool> = vec![false; graph.actors.len()].into();
    let mut open = vec![from];
    while let Some(actor) = open.pop() {
        if !std::mem::replace(&mut reached[actor], true) {
            open.extend(&next[actor]);
        }
    }
    reached
}

pub(crate) fn plan_report(plan: &Plan) -> PlanReport {
    PlanReport {
        name: plan.name.clone(),
        block: plan.block,
        stages: plan.stages,
        period_planned_ns: plan.period_ns,
        latency_planned_ns: plan.latency_ns,
        bound_by: plan.bound_by.clone(),
        ..PlanReport::default()
    }
}

/// What people call a slot: `fir[0..1024]`.
pub(crate) fn label(program: &Program, plan: &Plan, slot: &Slot) -> String {
    let device = |id: DeviceId| program.machine.devices[id].name.as_str();
    match slot.action {
        Action::Fire {
            actor,
            first,
            count,
        } => {
            format!(
                "{}[{first}..{}]",
                program.graph.actors[actor].name,
                first + count
            )
        }
        Action::Send { ring, first, count } => {
            let r = &plan.rings[ring];
            format!(
                "send {} -> {} [{first}..{}]",
                r.channel,
                device(r.to),
                first + count
            )
        }
        Action::Recv { ring, first, count } => {
            let r = &plan.rings[ring];
            format!(
                "recv {} <- {} [{first}..{}]",
                r.channel,
                device(r.from),
                first + count
            )
        }
        Action::Release { ring } => format!("release {}", plan.rings[ring].channel),
        Action::Carry { buffer } => format!("carry {}", plan.buffers[buffer].channel),
    }
}

pub(crate) fn worker_report(
    program: &Program,
    plan: &Plan,
    calendar: &Calendar,
    lowered: &Slots,
    worker: &Worker,
) -> WorkerReport {
    let live = match &worker.body {
        Body::Cpu(replay) => &replay.live,
        Body::Gpu(gpu) => return gpu.report(program, plan, calendar),
    };
    let slots = lowered
        .slots
        .iter()
        .zip(&live.samples)
        .filter_map(|(slot, sample)| {
            let slot = slot.as_ref()?;
            let mean = |sum: u64| {
                if sample.count > 0 {
                    sum as f64 / sample.count as f64
                } else {
                    0.0
                }
            };
            Some(SlotReport {
                slot: label(program, plan, slot),
                stage: slot.stage,
                start_planned_ns: slot.start_ns,
                start_measured_ns: mean(sample.start_sum_ns),
                planned_ns: slot.duration_ns,
                mean_ns: mean(sample.sum_ns),
                min_ns: sample.min_ns,
                max_ns: sample.max_ns,
                samples: sample.count,
            })
        });
    let device = |id: DeviceId| program.machine.devices[id].name.as_str();
    let waits = lowered.rings.iter().zip(&live.peers).map(|(ring, peer)| {
        let r = &plan.rings[*ring];
        let ring = format!("{} {} -> {}", r.channel, device(r.from), device(r.to));
        WaitReport {
            ring,
            waits: peer.waits,
        }
    });
    WorkerReport {
        device: device(calendar.device).to_owned(),
        pinned: worker.periods.pinned,
        slots: slots.collect(),
        waits: waits.collect(),
        notes: Vec::new(),
    }
}

pub(crate) fn latencies(program: &Program, sink: &SinkEnd) -> Vec<LatencyReport> {
    let name = program
        .graph
        .sinks()
        .nth(sink.index as usize)
        .map(|(_, a)| a.name.clone());
    let name = name.unwrap_or_default();
    let report = |path: &crate::observe::measure::Path| {
        let source = program.graph.actors[ActorId(path.source)].name.clone();
        LatencyReport::new(source, name.clone(), &path.histogram)
    };
    sink.paths.iter().map(report).collect()
}

/// What went wrong in a worker, with the names of the slot at work: what one process can tell another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Wrong {
    pub actor: String,
    pub device: String,
    pub block: u64,
    pub kind: WrongKind,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WrongKind {
    Fault,
    Panic,
    /// Sent by this device.
    Corrupt(DeviceId),
}

impl From<Wrong> for RunError {
    fn from(wrong: Wrong) -> Self {
        let Wrong {
            actor,
            device,
            block,
            kind,
            message,
        } = wrong;
        match kind {
            WrongKind::Fault => RunError::Fault {
                actor,
                device,
                block,
                fault: message,
            },
            WrongKind::Panic => RunError::Panic {
                actor,
                device,
                block,
                message,
            },
            WrongKind::Corrupt(_) => RunError::Corrupt {
                device,
                block,
                message,
            },
        }
    }
}

pub(crate) fn wrong(
    program: &Program,
    plan: &Plan,
    lowered: &Slots,
    worker: &Worker,
    why: Failure,
) -> Wrong {
    let role = plan.calendars[worker.calendar].device;
    let device = program.machine.devices[role].name.clone();
    let pc = worker.epoch.posts[worker.calendar]
        .pc
        .load(Ordering::Relaxed);
    let slot = match pc {
        Post::OUTSIDE => None,
        pc => lowered.slots.get(pc as usize).and_then(Option::as_ref),
    };
    let actor = match slot {
        Some(Slot {
            action: Action::Fire { actor, .. },
            ..
        }) => program.graph.actors[*actor].name.clone(),
        Some(slot) => label(program, plan, slot),
        None => "the worker itself".to_owned(),
    };
    let block = worker
        .period
        .saturating_sub(slot.map_or(0, |s| u64::from(s.stage)));
    let (kind, message) = match why {
        Failure::Stopped => (WrongKind::Fault, "stopped".to_owned()),
        Failure::Fault(fault) => (WrongKind::Fault, fault.to_string()),
        Failure::Device(fault) => (WrongKind::Fault, fault.fault.text),
        Failure::Panic(message) => (WrongKind::Panic, message),
        Failure::Corrupt { ring, sent, found } => {
            let ring = &plan.rings[lowered.rings[ring as usize]];
            let from = &program.machine.devices[ring.from].name;
            let message = format!(
                "{} from {from} has checksum {found:016x}, it was sent with {sent:016x}",
                ring.channel
            );
            (WrongKind::Corrupt(ring.from), message)
        }
    };
    Wrong {
        actor,
        device,
        block,
        kind,
        message,
    }
}

pub(crate) fn report(
    engine: &Inner,
    session: &SessionMemory,
    (before, after): (&State, &State),
    segments: Vec<Segment>,
    padded: &[u64],
    discarded: &[u64],
    elapsed_ns: u64,
) -> Report {
    let graph = &engine.program.graph;
    let iterations: u64 = after.iterations - before.iterations;
    let per_s = |tokens: u64| {
        if elapsed_ns > 0 {
            tokens as f64 * 1e9 / elapsed_ns as f64
        } else {
            0.0
        }
    };
    let sources = graph.sources().zip(session.sources.iter().zip(padded)).map(
        |((id, actor), (conduit, &padded))| {
            let tokens = conduit.taken();
            SourceReport {
                name: actor.name.clone(),
                tokens,
                leftover: conduit.written().0 - tokens,
                padded,
                tokens_per_iteration: engine.tokens_per_iteration(id),
                tokens_per_s: per_s(tokens),
            }
        },
    );
    let sinks = graph
        .sinks()
        .zip(discarded)
        .map(|((id, actor), &discarded)| {
            let tokens = iterations * engine.tokens_per_iteration(id);
            SinkReport {
                name: actor.name.clone(),
                tokens,
                discarded,
                delivered: None,
                tokens_per_s: per_s(tokens),
            }
        });
    let mut report = Report {
        model: graph.name.clone(),
        iterations,
        iterations_total: after.iterations,
        elapsed_ns,
        epochs: 0,
        recoveries: 0,
        events_dropped: 0,
        sources: sources.collect(),
        sinks: sinks.collect(),
        plans: Vec::new(),
        profile: Vec::new(),
        trace: None,
        notes: Vec::new(),
    };
    report.notes = notes(engine, &report, &segments);
    report.plans = segments.into_iter().map(|s| s.report).collect();
    report
}

fn notes(engine: &Inner, report: &Report, segments: &[Segment]) -> Vec<String> {
    let mut notes = Vec::new();
    for segment in segments {
        let plan = &segment.report;
        if plan.locked_bytes < plan.arena_bytes {
            notes.push(format!(
                "{} of {} bytes of plan `{}` are locked in memory; raise `ulimit -l` to lock all",
                plan.locked_bytes, plan.arena_bytes, plan.name
            ));
        }
        for note in plan.workers.iter().flat_map(|w| &w.notes) {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
    }
    let whole = report
        .sources
        .iter()
        .map(|s| s.leftover / s.tokens_per_iteration.max(1))
        .min();
    let main = &engine.program.plans[engine.main];
    if let Some(whole @ 1..) = whole
        && engine.tail.is_none()
    {
        notes.push(format!(
            "{whole} whole iterations of input were not run: a block takes {} and the bundle has no plan `tail`",
            main.block
        ));
    }
    notes
}
