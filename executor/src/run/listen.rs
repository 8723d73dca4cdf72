//! The thread that listens to one worker's process: it launches it, hands on what it says as news, and waits for its end.
//! It is the only one that ever waits for the process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use zbmd_ir::DeviceId;

use crate::run::process::{Answer, Listener, ending};
use crate::run::watchdog::Teller;
use crate::run::worker_pool::{Farewell, News};

/// What a worker's process is, as its listener sees it.
#[derive(Default)]
pub(crate) struct Role {
    /// Which of its device's workers it is; none as long as it stands by.
    pub incarnation: Option<u32>,
    pub is_ready: bool,
    pub is_gone: bool,
}

/// Listens to a worker's process until it is gone, and tells what it says.
pub(crate) fn listen(
    device: DeviceId,
    listener: Listener,
    role: &Mutex<Role>,
    told: &Teller<News>,
) {
    let mut last_word = None;
    let exit = listener.listen(|answer| match news_of(device, role, answer) {
        Ok(Some(news)) => told.tell(news),
        Ok(None) => {}
        Err(farewell) => last_word = Some(farewell),
    });
    let ended_because = exit.ended_because.map(Farewell::Unfit);
    let farewell = last_word
        .or(ended_because)
        .unwrap_or_else(|| match exit.status.map(ending) {
            Ok(Ok(code)) => Farewell::Exited(code),
            Ok(Err(signal)) => Farewell::Killed(signal),
            Err(error) => Farewell::Unfit(error.to_string()),
        });
    let mut role = lock(role);
    role.is_gone = true;
    if let Some(incarnation) = role.incarnation {
        told.tell(News::Gone {
            device,
            incarnation,
            farewell,
        });
    }
}

/// What an answer of a worker's process is to the supervising thread: news, nothing while it stands by, or the reason
/// why it will be gone soon.
fn news_of(device: DeviceId, role: &Mutex<Role>, answer: Answer) -> Result<Option<News>, Farewell> {
    match answer {
        Answer::Ready => {
            let mut role = lock(role);
            role.is_ready = true;
            Ok(role.incarnation.map(|incarnation| News::Ready {
                device,
                incarnation,
            }))
        }
        Answer::Ended {
            epoch,
            calendar,
            end,
        } => {
            let incarnation = lock(role).incarnation;
            Ok(incarnation.map(|incarnation| News::Ended {
                device,
                incarnation,
                epoch,
                calendar,
                end,
            }))
        }
        Answer::Unfit { why } => Err(Farewell::Unfit(why)),
        Answer::NoDevice { fault } => Err(Farewell::NoDevice(fault)),
        Answer::Failed { fault } => Err(Farewell::Failed(fault)),
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
