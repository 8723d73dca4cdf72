//! What supervisor and driver say to each other. Must not know what either does with it.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbmd_ir::DeviceId;

use super::detect::Sample;
use super::event::Event;

/// The time in which one set of workers runs one plan; epochs are numbered without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// Generation of a device's worker, starting at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u32);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}", self.0)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Why a worker is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(missing_docs, reason = "fields say what their names say")]
pub enum Cause {
    /// It ended; by itself and without a fault if the code is 0.
    Exited { code: i32 },
    /// A signal ended it.
    Killed { signal: i32 },
    /// Its connection broke.
    Disconnected,
    /// It could not be started.
    NotStarted { why: String },
    /// It was started and did not get ready in time.
    NotReady { after_ns: u64 },
    /// It did not take up its role in an epoch in time.
    NotJoined { after_ns: u64 },
    /// It makes no progress.
    Hung { why: String },
    /// Its faults went on after retries.
    Fault { text: String },
    /// Its device is damaged or gone: a person is to see to it.
    Broken { text: String },
    /// What it sends goes on being wrong after retries.
    Corrupt { text: String },
    /// It gets no memory.
    OutOfMemory,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: &u64| *ns as f64 / 1e6;
        match self {
            Self::Exited { code } => write!(f, "exited with code {code}"),
            Self::Killed { signal } => write!(f, "killed by signal {signal}"),
            Self::Disconnected => f.write_str("its connection broke"),
            Self::NotStarted { why } => write!(f, "could not be started: {why}"),
            Self::NotReady { after_ns } => write!(f, "not ready after {} ms", ms(after_ns)),
            Self::NotJoined { after_ns } => {
                write!(f, "did not take up its role within {} ms", ms(after_ns))
            }
            Self::Hung { why } => write!(f, "hung: {why}"),
            Self::Fault { text } => write!(f, "fault: {text}"),
            Self::Broken { text } => write!(f, "its device is broken: {text}"),
            Self::Corrupt { text } => write!(f, "sends wrong tokens: {text}"),
            Self::OutOfMemory => f.write_str("out of memory"),
        }
    }
}

/// How a worker's part in an epoch ended; the worker itself is well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(missing_docs, reason = "fields say what their names say")]
pub enum End {
    /// All blocks that were admitted are done, and what is on its channels is saved.
    Finished { blocks: u64 },
    /// It saw the stop flag.
    Stopped,
    /// A slot failed, also after retries in place.
    Fault { text: String },
    /// Tokens that it received are not those that were sent.
    Corrupt { from: DeviceId, text: String },
    /// It gets no memory for this plan.
    OutOfMemory,
}

/// What a person or program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// End the run at the next border.
    Stop,
    /// Exchange the bundle at the next border.
    Swap,
    /// Restart the worker of a device at the next border, or take a device in again that was given up.
    Restart(DeviceId),
}

/// A worker that is gone with its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoneWorker {
    /// Its device.
    pub device: DeviceId,
    /// Which worker.
    pub generation: Generation,
}

/// What the supervisor is informed of.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A worker can be given a role.
    Ready {
        /// Its device.
        device: DeviceId,
        /// Which worker.
        generation: Generation,
    },
    /// A worker is gone, or never started. Reported exactly once for each [`Action::Spawn`], sooner or later.
    Gone {
        /// Its device.
        device: DeviceId,
        /// Which worker.
        generation: Generation,
        /// Why, as the system says.
        cause: Cause,
    },
    /// A host that is gone with all its workers at once: they are one loss, and one fence, and one epoch without all of them,
    /// follows. None of its devices is given a worker before [`Request::Restart`] says that it is back. For each of them it is
    /// what [`Input::Gone`] is, which must not come as well.
    HostGone {
        /// The last worker of each of its devices, if one was started.
        workers: Vec<GoneWorker>,
        /// Why, as whoever watches hosts says.
        cause: Cause,
    },
    /// A worker's part in an epoch ended.
    Ended {
        /// The epoch.
        epoch: Epoch,
        /// Its device.
        device: DeviceId,
        /// Which worker.
        generation: Generation,
        /// How.
        end: End,
    },
    /// A look at a worker that has begun this epoch: [`super::DetectPolicy`] says how often. The first look tells the
    /// supervisor that the worker took up its role, so it must not be given before.
    Seen {
        /// The epoch.
        epoch: Epoch,
        /// Its device.
        device: DeviceId,
        /// Which worker.
        generation: Generation,
        /// What was seen.
        sample: Sample,
    },
    /// An epoch can write nothing that counts any more; so many of its blocks are committed.
    Fenced {
        /// The epoch.
        epoch: Epoch,
        /// Counted from its start.
        committed_blocks: u64,
    },
    /// The driver has taken over the state of a complete epoch, and exchanged the bundle if that was asked for.
    Completed {
        /// The epoch.
        epoch: Epoch,
        /// Whether there is more to run: input may still come, or a tail is left.
        more: bool,
    },
    /// The driver could not begin an epoch: no memory, say. Nothing of it is left, and what the supervisor says of it
    /// later is to be passed over.
    Refused {
        /// The epoch.
        epoch: Epoch,
        /// For people.
        why: String,
    },
    /// Somebody asks for something.
    Request(Request),
    /// Time passes: wanted at [`super::Supervisor::deadline`] at the latest, and allowed always.
    Tick,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Start the worker of a device. Answer: [`Input::Ready`] or [`Input::Gone`].
    Spawn {
        /// Its device.
        device: DeviceId,
        /// Which worker.
        generation: Generation,
    },
    /// Kill a worker. Answer: [`Input::Gone`].
    Kill {
        /// Its device.
        device: DeviceId,
        /// Which worker.
        generation: Generation,
    },
    /// Begin an epoch at the last committed border, with memory of its own and the plan for the loss of these devices,
    /// of the present phase of the run. Sinks drop what was given out already. All that get a role in it are ready.
    /// Answer: [`Input::Ended`] of each, or [`Input::Refused`].
    Begin {
        /// The epoch.
        epoch: Epoch,
        /// Ascending.
        lost: Vec<DeviceId>,
    },
    /// End an epoch at once: set its stop flag, close its sinks' queues, read its committed border. Answer:
    /// [`Input::Fenced`].
    Fence {
        /// The epoch.
        epoch: Epoch,
    },
    /// Admit no more blocks than were admitted, nor fewer than tokens were given out of. Answer: [`Input::Ended`] of
    /// each worker, or what else may befall it.
    Quiesce {
        /// The epoch.
        epoch: Epoch,
    },
    /// All workers of an epoch finished: take its state over, and exchange the bundle if `swap`. Answer:
    /// [`Input::Completed`].
    Complete {
        /// The epoch.
        epoch: Epoch,
        /// What all of them did.
        blocks: u64,
        /// Whether a new bundle is to be taken.
        swap: bool,
    },
    /// The run is over; everything committed stays. Kill all workers. No more actions come.
    Stop(Verdict),
    /// For whoever listens.
    Event(Event),
}

/// Why an epoch is ended at a border.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(missing_docs, reason = "fields say what their names say")]
pub enum Quiet {
    /// Somebody asked for the end of the run.
    Stop,
    /// Somebody asked for another bundle.
    Swap,
    /// Somebody asked for restarts.
    Restart { devices: Vec<DeviceId> },
    /// Devices are back.
    Return { devices: Vec<DeviceId> },
    /// Devices are slow, and the others do their work faster.
    Replace { devices: Vec<DeviceId> },
}

/// How a run ended. Its text is the run's last word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(missing_docs, reason = "fields say what their names say")]
pub enum Verdict {
    /// The input ended and all of it was run.
    #[error("finished")]
    Finished,
    /// As somebody asked, at a border, with everything done that was begun.
    #[error("stopped as requested")]
    Requested,
    /// Too many losses.
    #[error(
        "{supervisor} gave up: {losses} losses within {} s, it tolerates {intensity}; the last: {cause}",
        seconds(*period_ns)
    )]
    GaveUp {
        supervisor: String,
        losses: u32,
        intensity: u32,
        period_ns: u64,
        cause: String,
    },
    /// A device that cannot be missed does not start.
    #[error(
        "{device} cannot be missed and did not start {attempts} times in a row; the last: {cause}"
    )]
    NeverStarted {
        device: String,
        attempts: u32,
        cause: String,
    },
    /// No plan for the devices that are left, and none that may come back.
    #[error("there is no plan without {}; the last loss: {cause}", lost.join(", "))]
    NothingRuns { lost: Vec<String>, cause: String },
    /// Epoch after epoch ended without a border committed.
    #[error(
        "no progress: {epochs} epochs in a row ended before their first border; the last loss: {cause}"
    )]
    NoProgress { epochs: u32, cause: String },
    /// The driver cannot begin an epoch.
    #[error("no epoch can be begun, after {attempts} attempts: {why}")]
    Refused { attempts: u32, why: String },
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
