//! Another program for a run over several hosts, while its agents load it: the run goes over to it when all of them have.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::bundle_parts::RunBundle;
use crate::program::{LoadedModes, LoadedProgram};

/// How often it is looked whether the run is over.
const LOOK: Duration = Duration::from_millis(50);

/// A bundle that the agents of a run are to load, and what has come of it.
pub(crate) struct BundleOffer {
    pub(super) bundle: Arc<RunBundle>,
    outcome: Mutex<Option<Result<(), String>>>,
    changed: Condvar,
}

impl BundleOffer {
    /// Of a program.
    ///
    /// # Errors
    /// There is no memory for its bundle.
    pub(crate) fn of(modes: &LoadedModes) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            bundle: Arc::new(RunBundle::of(modes)?),
            outcome: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// The number of its bundle.
    pub(crate) fn bundle_number(&self) -> u64 {
        self.bundle.number()
    }

    /// Says what has come of it. What is said first stays.
    pub(crate) fn settle(&self, outcome: Result<(), String>) {
        let known = self.outcome.lock();
        known
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(outcome);
        self.changed.notify_all();
    }

    /// Waits until all agents have loaded it.
    ///
    /// # Errors
    /// Why one of them has not, or that the run is over.
    pub(crate) fn wait(&self, is_over: impl Fn() -> bool) -> Result<(), String> {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            if is_over() {
                return Err("the run is over".to_owned());
            }
            let waited = self.changed.wait_timeout(outcome, LOOK);
            outcome = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Whether two programs of a run over several hosts are for the same devices.
///
/// # Errors
/// They are not.
pub(crate) fn check_devices(from: &LoadedProgram, to: &LoadedProgram) -> Result<(), String> {
    let names = |loaded: &LoadedProgram| -> Vec<String> {
        let devices = loaded.program.machine.devices.iter();
        devices.map(|device| device.name.clone()).collect()
    };
    let hosts = |loaded: &LoadedProgram| loaded.program.machine.hosts.clone();
    if names(from) != names(to) || hosts(from) != hosts(to) {
        return Err(format!(
            "the run's machine has the devices {}, that of the new program {}: they must be the same, on the same hosts",
            names(from).join(", "),
            names(to).join(", ")
        ));
    }
    Ok(())
}
