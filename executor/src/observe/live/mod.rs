//! A run as it is now, for people who watch it: [`Stopper::progress`](crate::Stopper::progress), and the page that
//! `zbmd-run` keeps for `zbmd-run top`.
//!
//! Whoever looks reads counters that workers keep anyway, so that watching costs them nothing but the cache lines that
//! a look fetches, a few times a second.

#[cfg(unix)]
mod folder;
#[cfg(not(unix))]
#[path = "folder_elsewhere.rs"]
mod folder;
mod page;
pub(crate) mod top;

use serde::{Deserialize, Serialize};

pub use self::page::{Page, PageError, running};
use crate::run::session::Current;
use crate::transport::epoch::Post;
use crate::transport::primitive::Ordering;

/// A run as it is now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Name of the model.
    pub model: String,
    /// Iterations finished so far; it may lag by some blocks.
    pub iterations: u64,
    /// The epoch at work, counted from 0.
    pub epoch: u64,
    /// Epochs that ended at once because something was lost.
    pub recoveries: u64,
    /// The plan at work.
    pub plan: String,
    /// Iterations of one of its blocks.
    pub block: u64,
    /// Its planned period.
    pub period_planned_ns: u64,
    /// Periods that every worker has done in this epoch.
    pub periods: u64,
    /// Devices of the bundle's plans, in order.
    pub devices: Vec<DeviceProgress>,
    /// Rings between devices.
    pub rings: Vec<Fill>,
    /// Queues of the sources, then of the sinks.
    pub queues: Vec<Fill>,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceProgress {
    /// Its name.
    pub device: String,
    /// What it does.
    pub state: DeviceState,
    /// Periods that it has done in this epoch.
    pub periods: u64,
}

/// What a device does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceState {
    /// It has no role in the plan at work.
    #[default]
    Idle,
    /// Its worker makes itself ready.
    Starting,
    /// Its worker is in the middle of a period.
    Working,
    /// Its worker waits for tokens or room to begin a period.
    Waiting,
    /// It is lost; the plan at work does without it.
    Lost,
}

impl std::fmt::Display for DeviceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Starting => "starting",
            Self::Working => "working",
            Self::Waiting => "waiting",
            Self::Lost => "lost",
        })
    }
}

/// How full something is, in tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// The source or sink, or the ring: `ch3 cpu:0 -> cpu:1`.
    pub name: String,
    /// Tokens that went in since the beginning: of the run for sources, of the epoch for others.
    pub tokens: u64,
    /// Tokens in it.
    pub filled: u64,
    /// Tokens that fit.
    pub capacity: u64,
}

impl Progress {
    pub(crate) fn of(current: &Current, iterations: u64) -> Progress {
        let Current {
            engine,
            spec,
            memory,
            lost,
            recoveries,
            ..
        } = current;
        let program = &engine.program;
        let plan = &program.plans[spec.plan];
        Progress {
            model: program.graph.name.clone(),
            iterations,
            epoch: spec.epoch,
            recoveries: *recoveries,
            plan: plan.name.clone(),
            block: plan.block,
            period_planned_ns: plan.period_ns,
            periods: memory
                .posts
                .iter()
                .map(|p| p.periods.load(Ordering::Relaxed))
                .min()
                .unwrap_or(0),
            devices: devices(current, lost),
            rings: rings(current),
            queues: queues(current),
        }
    }
}

fn devices(current: &Current, lost: &[zbmd_ir::DeviceId]) -> Vec<DeviceProgress> {
    let Current {
        engine,
        spec,
        memory,
        ..
    } = current;
    let mut all = engine.devices();
    all.extend(&spec.devices);
    let one = |device: zbmd_ir::DeviceId| {
        let post = spec
            .devices
            .iter()
            .position(|d| *d == device)
            .map(|at| &memory.posts[at]);
        let state = match post {
            None if lost.contains(&device) => DeviceState::Lost,
            None => DeviceState::Idle,
            Some(post) if post.thread.load(Ordering::Relaxed) == 0 => DeviceState::Starting,
            Some(post) if post.pc.load(Ordering::Relaxed) == Post::OUTSIDE => DeviceState::Waiting,
            Some(_) => DeviceState::Working,
        };
        DeviceProgress {
            device: engine.program.machine.devices[device].name.clone(),
            state,
            periods: post.map_or(0, |post| post.periods.load(Ordering::Relaxed)),
        }
    };
    all.into_iter().map(one).collect()
}

fn rings(current: &Current) -> Vec<Fill> {
    let Current {
        engine,
        spec,
        memory,
        ..
    } = current;
    let program = &engine.program;
    let plan = &program.plans[spec.plan];
    let device = |id: zbmd_ir::DeviceId| program.machine.devices[id].name.as_str();
    let one = |(ring, sync): (&zbmd_ir::Ring, &crate::transport::ring::RingSync)| {
        let buffer = &plan.buffers[ring.buffer];
        let (tokens, blocks) = sync.counts();
        Fill {
            name: format!(
                "{} {} -> {}",
                ring.channel,
                device(ring.from),
                device(ring.to)
            ),
            tokens,
            // The two were not read at the same time.
            filled: tokens.saturating_sub(blocks.saturating_mul(buffer.block_tokens)),
            capacity: u64::from(buffer.blocks) * buffer.block_tokens,
        }
    };
    plan.rings.iter().zip(&*memory.rings).map(one).collect()
}

fn queues(current: &Current) -> Vec<Fill> {
    let Current {
        engine,
        memory,
        session,
        ..
    } = current;
    let graph = &engine.program.graph;
    let sources = graph.sources().zip(&session.sources);
    let sinks = graph.sinks().zip(&memory.sinks);
    let one = |((_, actor), queue): (
        (_, &zbmd_ir::Actor),
        &std::sync::Arc<crate::transport::conduit::Conduit>,
    )| {
        let (taken, (tokens, _)) = (queue.taken(), queue.written());
        Fill {
            name: actor.name.clone(),
            tokens,
            filled: tokens.saturating_sub(taken),
            capacity: queue.capacity(),
        }
    };
    sources.chain(sinks).map(one).collect()
}
