//! SIGINT and SIGTERM: the loops end at the next whole message, and a process that waits in a call of the system is ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::exit;

/// A loop that has not ended by then waits for a reader or a writer that does not move.
const PATIENCE: Duration = Duration::from_secs(2);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether a signal came.
pub fn is_interrupted() -> bool {
    // Nothing else is published by it.
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Has signals noted from now on.
///
/// # Errors
/// What the system says.
pub fn watch_signals() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            return;
        }
        let spawned = std::thread::Builder::new().spawn(|| {
            std::thread::sleep(PATIENCE);
            eprintln!("zbmd-zenoh: interrupted while the other side of a pipe or of Zenoh took or gave nothing");
            std::process::exit(i32::from(exit::INTERRUPTED));
        });
        // Without a thread there is nobody to wait.
        if spawned.is_err() {
            std::process::exit(i32::from(exit::INTERRUPTED));
        }
    })
}
