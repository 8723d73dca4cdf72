//! The thread that listens to one worker's process: it launches it, hands on what it reports, and waits for its end. It is
//! the only one that ever waits for the process.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zbmd_ir::DeviceId;

use super::event::{WorkerEvent, WorkerExit};
use super::inbox::EventSender;
use super::process::{ProcessExit, ProcessListener, WorkerReply, exit_status};

/// A process that has loaded the program, and opened its device.
#[derive(Clone, Copy)]
pub(crate) struct Readiness {
    /// Where its wires arrive, if it has any.
    pub port: Option<u16>,
}

/// What a worker's process is, as its listener sees it.
#[derive(Default)]
pub(crate) struct ProcessRole {
    /// Which of its device's workers it is; none as long as it stands by.
    pub generation: Option<u32>,
    /// What it has said when it was ready.
    pub readiness: Option<Readiness>,
    pub is_gone: bool,
}

/// Listens to a worker's process until it is gone, and sends what it reports.
pub(crate) fn listen(
    device: DeviceId,
    listener: ProcessListener,
    role: &Mutex<ProcessRole>,
    events: &EventSender<WorkerEvent>,
) {
    let announced_exit = Cell::new(None);
    let answer = |reply| match reply {
        WorkerReply::Leaving(exit) => announced_exit.set(Some(exit)),
        reply => {
            if let Some(event) = event_of(device, role, reply) {
                events.send(event);
            }
        }
    };
    listener.listen(answer, |process_exit| {
        let exit = announced_exit.take();
        let exit = exit.unwrap_or_else(|| seen_exit(process_exit));
        let mut role = lock(role);
        role.is_gone = true;
        events.send(match role.generation {
            Some(generation) => WorkerEvent::Gone {
                device,
                generation,
                exit,
            },
            None => WorkerEvent::StandbyGone,
        });
    });
}

/// Why a process that did not say so is gone.
fn seen_exit(process_exit: ProcessExit) -> WorkerExit {
    if let Some(why) = process_exit.ended_because {
        return WorkerExit::Unfit(why);
    }
    match process_exit.status {
        Ok(status) => exit_status(status),
        Err(error) => WorkerExit::Unfit(error.to_string()),
    }
}

/// The event that a reply is to the supervising thread; none while the process stands by.
fn event_of(
    device: DeviceId,
    role: &Mutex<ProcessRole>,
    reply: WorkerReply,
) -> Option<WorkerEvent> {
    let mut role = lock(role);
    match reply {
        WorkerReply::Ready { port } => {
            role.readiness = Some(Readiness { port });
            let generation = role.generation?;
            Some(WorkerEvent::Ready {
                device,
                generation,
                port,
            })
        }
        #[cfg(hosts)]
        WorkerReply::Began { epoch, waits } => Some(WorkerEvent::Began {
            device,
            generation: role.generation?,
            epoch,
            waits,
        }),
        WorkerReply::Ended {
            epoch,
            calendar,
            end,
        } => Some(WorkerEvent::Ended {
            device,
            generation: role.generation?,
            epoch,
            calendar,
            end,
        }),
        WorkerReply::Leaving(_) => None,
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
