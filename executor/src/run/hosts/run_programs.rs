//! The programs that an agent has of a run: the present one, and another one that the run may go over to.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zbmd_op::Registry;
use zbmd_wire::connection::Credentials;

use super::bundle_parts::{self, BundleParts, BundleShelf, HeldBundle};
use crate::program::{Engine, LoadedModes};

/// A bundle that is loaded.
#[derive(Clone)]
pub(super) struct AgentProgram {
    pub parts: BundleParts,
    pub engine: Engine,
}

/// The programs of a run on this host.
pub(super) struct AgentPrograms {
    registry: Registry,
    credentials: Credentials,
    /// Where other agents get what is loaded here.
    shelf: Arc<BundleShelf>,
    bundle_folder: Option<PathBuf>,
    programs: Mutex<Programs>,
}

struct Programs {
    present: AgentProgram,
    /// The number of the bundle that is to be loaded, or is loaded, beside it.
    wanted: u64,
    /// That one, once it is loaded, until the run goes over to it.
    next: Option<AgentProgram>,
}

impl AgentPrograms {
    pub(super) fn new(
        present: AgentProgram,
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

    pub(super) fn present(&self) -> AgentProgram {
        self.programs().present.clone()
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
    /// Nobody gives it, it cannot be run here, or another one is to be loaded by now.
    pub(super) fn load(&self, parts: &BundleParts, from: &[SocketAddr]) -> Result<(), String> {
        let held = HeldBundle::of(parts.clone(), None, self.bundle_folder.as_deref())?;
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
            return Err(failures.join("; "));
        }

        let engine = open_bundle(&held, &self.registry)?;
        let mut programs = self.programs();
        if programs.wanted != parts.number() {
            return Err("another program was asked for meanwhile".to_owned());
        }
        let parts = parts.clone();
        programs.next = Some(AgentProgram { parts, engine });
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

/// The engine for a bundle, which is verified like any other.
pub(super) fn open_bundle(bundle: &HeldBundle, registry: &Registry) -> Result<Engine, String> {
    let modes = zbmd_ir::bundle::open_modes(&bundle.path()).map_err(|error| error.to_string())?;
    Engine::with_modes(modes, registry).map_err(|error| error.to_string())
}
