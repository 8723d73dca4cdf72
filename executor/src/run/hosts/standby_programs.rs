//! The programs of one that stands by: its own, and what the conductor has it load.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zbmd_op::Registry;
use zbmd_wire::connection::Credentials;

use super::border_copy::ProgramAnswer;
use super::bundle_parts::{BundleParts, BundleShelf, RunBundle};
use super::run_programs::{LoadError, RunProgram, RunPrograms};
use crate::program::Engine;

/// The programs that a run can be gone on with here.
pub(super) struct StandbyPrograms {
    programs: RunPrograms,
    load: Mutex<Load>,
}

#[derive(Default)]
struct Load {
    /// The number of the bundle that was asked for last and is not here, and why not, once that is known.
    asked: Option<(u64, Option<String>)>,
    /// Why the program at work cannot be gone on with here, however often it is sent.
    failure: Option<String>,
}

impl StandbyPrograms {
    /// With the program that stands by.
    ///
    /// # Errors
    /// There is no memory for its bundle.
    pub(super) fn new(
        own: &Engine,
        registry: &Registry,
        credentials: &Credentials,
    ) -> io::Result<Self> {
        let own_program = RunProgram {
            parts: RunBundle::of(&own.modes)?.parts().clone(),
            engine: own.clone(),
        };
        // Nobody gets a bundle from one that stands by.
        let shelf = Arc::<BundleShelf>::default();
        Ok(Self {
            programs: RunPrograms::new(
                own_program,
                registry.clone(),
                credentials.clone(),
                shelf,
                None,
            ),
            load: Mutex::default(),
        })
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program with this number, if it is here.
    pub(super) fn find(&self, number: u64) -> Option<Engine> {
        self.programs.find(number)
    }

    /// The run has gone over to the program with this number; one that is not here will be sent.
    pub(super) fn enter(&self, number: u64) {
        let _ = self.programs.enter(number);
    }

    /// Why the program at work cannot be gone on with here.
    pub(super) fn failure(&self) -> Option<String> {
        self.load().failure.clone()
    }

    /// Whether a program is here. If not, it begins to load it, or to load it once more after a failure.
    pub(super) fn answer(
        self: &Arc<Self>,
        parts: BundleParts,
        from: SocketAddr,
        is_at_work: bool,
    ) -> ProgramAnswer {
        let number = parts.number();
        if self.programs.find(number).is_some() {
            return ProgramAnswer::Loaded;
        }
        let mut load = self.load();
        match &load.asked {
            Some((asked, None)) if *asked == number => return ProgramAnswer::Loading,
            Some((asked, Some(why))) if *asked == number => {
                let failed = ProgramAnswer::Failed(why.clone());
                load.asked = None;
                return failed;
            }
            _ => {}
        }

        self.programs.want(number);
        let standby = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("zbmd loads".to_owned())
            .spawn(move || {
                let outcome = standby.programs.load(&parts, &[from]);
                standby.note(number, outcome, is_at_work);
            });
        match started {
            Ok(_) => {
                load.asked = Some((number, None));
                ProgramAnswer::Loading
            }
            Err(error) => ProgramAnswer::Failed(error.to_string()),
        }
    }

    /// Takes in what has come of a load.
    fn note(&self, number: u64, outcome: Result<(), LoadError>, is_at_work: bool) {
        let mut load = self.load();
        if load
            .asked
            .as_ref()
            .is_none_or(|(asked, _)| *asked != number)
        {
            return;
        }
        load.asked = match &outcome {
            Ok(()) => None,
            Err(error) => Some((number, Some(error.to_string()))),
        };
        if let (Err(LoadError::Unfit(why)), true) = (outcome, is_at_work) {
            load.failure = Some(format!(
                "the run's program cannot be gone on with here: {why}; stand by with the bundle of the run"
            ));
        }
    }
}
