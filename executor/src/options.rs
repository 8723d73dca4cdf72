//! What a run is supervised with.

use std::sync::Arc;

use zbmd_ir::State;

use crate::inject::Injector;
use crate::run::session::Engine;
use crate::supervise::declare::{DeclareError, Supervision};
use crate::supervise::{Event, Settings, TreeSpec};

/// Is told every decision, in order, on a thread of its own. Whoever is slower than the decisions come misses some: the
/// event [`EventsDropped`](crate::supervise::What::EventsDropped) says how many. One that never comes back keeps its thread, and the run goes on.
pub type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// Is given the state at a committed border now and then, on the thread of [`Listener`]. While it is busy with one,
/// those that would follow are passed over.
pub type StateListener = Arc<dyn Fn(State) + Send + Sync>;

/// What to supervise with. See [`crate::supervise::declare`] for how people say it.
#[derive(Clone)]
pub struct Supervised {
    /// How to detect and when to give up.
    pub settings: Settings,
    /// Who supervises whom.
    pub tree: TreeSpec,
    /// Who is told of every decision.
    pub listener: Option<Listener>,
    /// Who is given states at committed borders, and how often (ns): to write checkpoints of.
    pub states: Option<(u64, StateListener)>,
    /// Faults to bring about.
    pub inject: Option<Injector>,
    /// Blocks between borders at which the tokens on channels are saved; chosen from the calendar if `None`.
    pub save_every: Option<u64>,
}

impl Supervised {
    /// What a declaration says of an engine's devices; [`Supervision::default`] is sensible. Nobody is told of
    /// decisions, and no fault is brought about.
    ///
    /// # Errors
    /// Devices that the engine's program does not have; numbers that make no sense.
    pub fn declared(declaration: &Supervision, engine: &Engine) -> Result<Self, DeclareError> {
        let devices = &engine.program().machine.devices;
        let resolved = declaration.resolve(devices.iter().map(|d| d.name.as_str()))?;
        Ok(Self {
            settings: resolved.settings,
            tree: resolved.tree,
            listener: None,
            states: None,
            inject: None,
            save_every: None,
        })
    }
}

impl std::fmt::Debug for Supervised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervised")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
