//! What conductor and agent say to each other over their connection: a length of 4 bytes and postcard. Both run the same
//! program; lengths are checked before anything is taken for them, and whatever does not decode ends the connection.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zbmd_ir::DeviceId;

use super::bundle_parts::BundleParts;
use super::seat::Mandate;
use crate::program::LoadedProgram;
use crate::run::event::WorkerExit;
use crate::supervise::Thread;
use crate::transport::change_queue::{Decision, Values};
use crate::transport::epoch_spec::EpochSpec;
use crate::worker::job::{HostOptions, WorkerEnd};
use crate::worker::wired::WorkerPlaces;

/// Longest message: a report of a calendar of some hundred thousand slots, or the tokens of a border.
const MAX_BYTES: u32 = 1 << 30;
/// What is taken for a message before it has come.
const FIRST_BYTES: usize = 1 << 20;

/// The tokens of channels at a border: each channel's number and bytes.
pub(super) type SavedTokens = Vec<(u32, Vec<u8>)>;

/// To an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Comes first; the parts of a bundle follow that the agent says it lacks.
    Open(OpenTerms),
    /// Load another program, which the run may go over to: its bundle is at these places, the nearest first.
    Load {
        bundle: BundleParts,
        from: Vec<SocketAddr>,
    },
    /// Start the process of a device's worker, or open the GPU of one that is a thread.
    Spawn(WorkerNumber),
    /// End the process of a worker.
    Kill(WorkerNumber),
    /// Begin an epoch with these calendars.
    Begin {
        spec: Box<EpochSpec>,
        /// The number of its program's bundle.
        bundle: u64,
        /// The tokens of each channel that it begins with.
        start: Vec<Vec<u8>>,
        /// Those of this host.
        calendars: Vec<u32>,
        places: Box<WorkerPlaces>,
        /// The council's word for it.
        mandate: Option<Mandate>,
    },
    /// So many blocks are admitted, and whether that is final.
    Admit {
        epoch: u64,
        blocks: u64,
        is_final: bool,
    },
    /// Live parameters change. Comes before the first block is admitted that may know of it; one that is too late takes its place
    /// among the others, and changes nothing.
    Change {
        epoch: u64,
        decision: Decision,
        values: Values,
    },
    /// What time is it there? It is this time here, in nanoseconds.
    Clock { here_ns: u64 },
    /// A border is committed.
    Commit { epoch: u64, border: u64 },
    /// The epoch is over.
    Stop { epoch: u64 },
}

/// What an agent is told of a run before it takes part.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OpenTerms {
    pub bundle: BundleParts,
    /// An agent that passes on the bundle as it comes.
    pub upstream: Option<SocketAddr>,
    pub options: HostOptions,
    /// Whoever is silent for so long is lost.
    pub lease_ns: u64,
    /// Of the heartbeats between the two.
    pub beat_session: u128,
    /// The council in whose name the run is conducted.
    pub council: Option<u64>,
    /// Workers are processes of their own, that are started and ended by further orders; threads else.
    pub processes: Option<ProcessTerms>,
}

/// From an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// So many of the bundle's parts have been passed on to it; more follow.
    Has { parts: u64 },
    /// The bundle's parts from this one on are to be sent.
    Lacks { first_part: u64 },
    /// The bundle is loaded; epochs can begin.
    Opened,
    /// This host cannot run it.
    Unfit { why: String },
    /// What has come of [`Order::Load`], for the bundle with this number.
    Loaded {
        bundle: u64,
        outcome: Result<(), String>,
    },
    /// A worker can begin its part of an epoch; its wires arrive at this port of its host, if not where those of all its threads do.
    Ready {
        worker: WorkerNumber,
        port: Option<u16>,
    },
    /// A worker is gone.
    Gone {
        worker: WorkerNumber,
        exit: WorkerExit,
    },
    /// What time it is there, as asked by [`Order::Clock`].
    Clock { asked_ns: u64, there_ns: u64 },
    /// What a worker has recorded since it was told last, with the times of this host's clock, and how many periods it had no room
    /// for.
    Recorded {
        epoch: u64,
        calendar: u32,
        words: Vec<u64>,
        dropped: u64,
    },
    /// A worker has saved its tokens of a border.
    Saved {
        epoch: u64,
        border: u64,
        tokens: SavedTokens,
    },
    /// A worker has done so many periods, and has saved what they save; where it stands, if it was seen twice at the same
    /// instruction that waits for nobody. That is said again at every look, and once more when the worker has moved on.
    Progress {
        epoch: u64,
        calendar: u32,
        periods: u64,
        /// Changes of live parameters that it has taken.
        changes_taken: u64,
        standing: Option<Standing>,
    },
    /// A worker's part is over; the tokens on its channels if it has finished.
    Ended {
        epoch: u64,
        calendar: u32,
        end: Box<WorkerEnd>,
        tokens: SavedTokens,
    },
}

/// Which worker: the device's that was started so often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WorkerNumber {
    pub device: DeviceId,
    pub generation: u32,
}

/// How an agent runs workers that are processes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct ProcessTerms {
    /// Only GPUs have processes; workers of CPU devices are threads.
    pub only_gpus: bool,
    /// For each, another one stands by to take its place.
    pub has_standbys: bool,
}

impl ProcessTerms {
    /// Whether the worker of a device is a process.
    pub(super) fn are_for(&self, loaded: &LoadedProgram, device: DeviceId) -> bool {
        !self.only_gpus || loaded.is_gpu(device)
    }
}

/// Where a worker stands that makes no progress: its instruction, and what the system says of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Standing {
    pub pc: u32,
    pub thread: Thread,
}

/// Sends a message.
///
/// # Errors
/// What the system says, or a message that is too long.
pub(super) fn send<T: Serialize>(mut to: impl Write, message: &T) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    bytes = postcard::to_extend(message, bytes).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).ok();
    let length = length
        .filter(|length| *length <= MAX_BYTES)
        .ok_or_else(|| too_long(bytes.len() as u64 - 4, MAX_BYTES.into()))?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    to.write_all(&bytes)?;
    to.flush()
}

/// Receives a message.
///
/// # Errors
/// What the system says, or no message of ours.
pub(super) fn receive<T: DeserializeOwned>(mut from: impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_BYTES {
        return Err(too_long(length.into(), MAX_BYTES.into()));
    }
    // Memory is taken as the bytes come: a length alone costs nothing.
    let mut bytes = Vec::with_capacity((length as usize).min(FIRST_BYTES));
    from.take(length.into()).read_to_end(&mut bytes)?;
    if bytes.len() < length as usize {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("a message of {length} bytes ends after {}", bytes.len()),
        ));
    }
    postcard::from_bytes(&bytes).map_err(|error| {
        io::Error::other(format!(
            "a message of {length} bytes cannot be read ({error}): both hosts must run the same zbmd"
        ))
    })
}

fn too_long(found: u64, most: u64) -> io::Error {
    io::Error::other(format!(
        "a message of {found} bytes, {most} are the most: the other side is none of ours, or the model's state is too large for several hosts"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made of these bytes.
    fn received(bytes: &[u8]) -> io::Result<Order> {
        receive(bytes)
    }

    #[test]
    fn messages_that_are_cut_off_too_long_or_nonsense_are_refused() {
        for (bytes, text) in [
            (&[255, 255, 255, 255][..], "4294967295 bytes, 1073741824"),
            (&[8, 0, 0, 0, 1], "a message of 8 bytes ends after 1"),
            (&[1, 0, 0, 0, 200], "cannot be read"),
        ] {
            let error = received(bytes).expect_err("refused").to_string();
            assert!(error.contains(text), "{error}");
        }
        let stop = postcard::to_stdvec(&Order::Stop { epoch: 9 }).expect("small");
        let bytes = [&(stop.len() as u32).to_le_bytes()[..], &stop].concat();
        assert!(matches!(received(&bytes), Ok(Order::Stop { epoch: 9 })));
    }
}
