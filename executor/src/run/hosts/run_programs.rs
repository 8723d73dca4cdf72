//! The programs that a host has of a run which another host conducts: the present one, and another one that the run may go over to.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zbmd_op::Registry;
use zbmd_wire::connection::Credentials;

use super::bundle_offer::check_devices;
use super::bundle_parts::{self, BundleParts, BundleShelf, HeldBundle};
use crate::program::{Engine, LoadedModes};
use crate::run::session::{SwapError, check_streams};

/// Why a program is not loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    /// It has not come, or is not wanted any more.
    #[error("{0}")]
    Missing(String),
    /// It cannot be run here, or not in the place of the present one.
    #[error("{0}")]
    Unfit(String),
}

/// A bundle that is loaded.
#[derive(Clone)]
pub(super) struct RunProgram {
    pub parts: BundleParts,
    pub engine: Engine,
}

/// The programs of a run on this host, an agent or one that stands by.
pub(super) struct RunPrograms {
    registry: Registry,
    credentials: Credentials,
    /// Where other hosts get what is loaded here.
    shelf: Arc<BundleShelf>,
    bundle_folder: Option<PathBuf>,
    programs: Mutex<Programs>,
}

struct Programs {
    present: RunProgram,
    /// The number of the bundle that is to be loaded, or is loaded, beside it.
    wanted: u64,
    /// That one, once it is loaded, until the run goes over to it.
    next: Option<RunProgram>,
}

impl RunPrograms {
    pub(super) fn new(
        present: RunProgram,
        registry: Registry,
        credentials: Credentials,
        shelf: Arc<BundleShelf>,
        bundle_folder: Option<PathBuf>,
    ) -> Self {
        Self {
            registry,
            credentials,
            shelf,
            bundle_folder,
            programs: Mutex::new(Programs {
                wanted: present.parts.number(),
                present,
                next: None,
            }),
        }
    }

    fn programs(&self) -> MutexGuard<'_, Programs> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn present(&self) -> RunProgram {
        self.programs().present.clone()
    }

    /// The program with this number, if it is here.
    pub(super) fn find(&self, number: u64) -> Option<Engine> {
        let programs = self.programs();
        let mut here = std::iter::once(&programs.present).chain(&programs.next);
        let found = here.find(|program| program.parts.number() == number);
        found.map(|program| program.engine.clone())
    }

    pub(super) fn modes(&self) -> Arc<LoadedModes> {
        Arc::clone(&self.programs().present.engine.modes)
    }

    /// The bundle with this number is to be loaded, and no other one.
    pub(super) fn want(&self, number: u64) {
        self.programs().wanted = number;
    }

    /// Gets a bundle from the first of these places that has it, and loads it. What is loaded already is not touched.
    ///
    /// # Errors
    /// Nobody gives it, it cannot be run here, it has other streams or devices than the present one, or another one is to be loaded
    /// by now.
    pub(super) fn load(&self, parts: &BundleParts, from: &[SocketAddr]) -> Result<(), LoadError> {
        let held = HeldBundle::of(parts.clone(), None, self.bundle_folder.as_deref());
        let held = held.map_err(LoadError::Missing)?;
        self.shelf.put(&held);
        let mut failures = Vec::new();
        for place in from {
            match bundle_parts::fetch(&held, *place, &self.credentials, |_| ()) {
                Ok(()) => break,
                Err(why) => failures.push(why),
            }
        }
        if held.first_missing() < held.count() {
            held.give_up();
            return Err(LoadError::Missing(failures.join("; ")));
        }

        let engine = open_bundle(&held, &self.registry).map_err(LoadError::Unfit)?;
        let present = self.present().engine;
        check_streams(&present.loaded, &engine.loaded)
            .map_err(|error| LoadError::Unfit(stream_text(error)))?;
        check_devices(&present.loaded, &engine.loaded).map_err(LoadError::Unfit)?;

        let mut programs = self.programs();
        if programs.wanted != parts.number() {
            let why = "another program was asked for meanwhile";
            return Err(LoadError::Missing(why.to_owned()));
        }
        let parts = parts.clone();
        programs.next = Some(RunProgram { parts, engine });
        Ok(())
    }

    /// Goes over to the program with this number, if it is not the present one; whether it was not.
    ///
    /// # Errors
    /// It is not here.
    pub(super) fn enter(&self, number: u64) -> Result<bool, String> {
        let mut programs = self.programs();
        if programs.present.parts.number() == number {
            return Ok(false);
        }
        let next = programs.next.take_if(|next| next.parts.number() == number);
        programs.present = next.ok_or("an epoch of a bundle that was not loaded here")?;
        Ok(true)
    }
}

/// Why a program cannot take the place of the one that is here.
fn stream_text(error: SwapError) -> String {
    match error {
        SwapError::Ports { here, there } => format!("it has {there}, the program here has {here}"),
        SwapError::Parameters { here, there } => {
            format!("it has live parameters {there:?}, the program here has {here:?}")
        }
        other => other.to_string(),
    }
}

/// The engine for a bundle, which is verified like any other.
pub(super) fn open_bundle(bundle: &HeldBundle, registry: &Registry) -> Result<Engine, String> {
    let modes = zbmd_ir::bundle::open_modes(&bundle.path()).map_err(|error| error.to_string())?;
    Engine::with_modes(modes, registry).map_err(|error| error.to_string())
}
