//! Opening models: all of the folder when the server starts, and single ones anew when a client asks for it. A request names a model and
//! never a file: its name is looked for among those that the folder has.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::readiness::Phase;
use crate::engine::{LoadedModel, RunChoices, RunningModel};
use crate::repository::{self, LoadChoices, RepositoryError};
use crate::say;

/// A model that is loaded runs within this time, or is given up.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How often it is looked whether it runs.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Why a model is not loaded or unloaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("failed to load or unload `{name}`: start the server with --model-control to allow it")]
    NotAllowed { name: String },
    #[error(
        "failed to load `{name}`: the parameter `{parameter}` is not supported: a model is loaded as its file is"
    )]
    Override { name: String, parameter: String },
    #[error("failed to load `{name}`: the folder of the server has no such model")]
    Unknown { name: String },
    #[error("failed to unload `{name}`: it is not loaded")]
    NotLoaded { name: String },
    #[error("failed to load `{name}`: {source}")]
    Repository {
        name: String,
        source: RepositoryError,
    },
    #[error("failed to load `{name}`: no plan of it runs; the one that was loaded before is kept")]
    NotReady { name: String },
    #[error("failed to load `{name}`: no thread: {source}")]
    Thread { name: String, source: io::Error },
    #[error(
        "failed to load `{name}`: this is a bug of zbmd; the server's standard error says more"
    )]
    Bug { name: String },
}

/// How models of the folder are opened and run.
#[derive(Debug)]
pub(crate) struct ModelControl {
    pub(crate) folder: PathBuf,
    pub(crate) load: LoadChoices,
    pub(crate) run: RunChoices,
    /// Clients may load and unload models.
    pub(crate) is_allowed: bool,
}

impl ModelControl {
    /// Loads all models of the folder.
    ///
    /// # Errors
    /// See [`repository::load`].
    pub(crate) fn load_all(&self) -> Result<Vec<LoadedModel>, RepositoryError> {
        repository::load(&self.folder, &self.load)
    }

    /// Begins to run a model, which is warmed up and then introduced.
    ///
    /// # Errors
    /// No thread.
    pub(crate) fn start(&self, model: LoadedModel) -> io::Result<Arc<RunningModel>> {
        let running = RunningModel::start(model, self.run.clone())?;
        let (warmed, is_quiet) = (Arc::clone(&running), self.load.is_quiet);
        let warm_up = move || warm(&warmed, is_quiet);
        let warmer = std::thread::Builder::new().name("zbmd warm-up".to_owned());
        warmer.spawn(warm_up)?;
        Ok(running)
    }

    /// Opens a model anew, runs it and waits until it is warm. This may take long.
    ///
    /// # Errors
    /// What is wrong with the model, or with asking for it.
    pub(crate) fn open(&self, name: &str) -> Result<Arc<RunningModel>, ControlError> {
        let named = || name.to_owned();
        let loaded = repository::load_one(&self.folder, name, &self.load);
        let loaded = loaded.map_err(|source| ControlError::Repository {
            name: named(),
            source,
        })?;
        let model = loaded.ok_or_else(|| ControlError::Unknown { name: named() })?;
        let running = RunningModel::start(model, self.run.clone());
        let running = running.map_err(|source| ControlError::Thread {
            name: named(),
            source,
        })?;
        if !wait_until_ready(&running) {
            running.retire();
            return Err(ControlError::NotReady { name: named() });
        }
        warm(&running, self.load.is_quiet);
        Ok(running)
    }
}

/// Waits until a plan of a model runs; whether one does.
fn wait_until_ready(running: &RunningModel) -> bool {
    let end = Instant::now() + START_LIMIT;
    loop {
        match running.readiness().phase() {
            Phase::Running => return true,
            Phase::Failed { .. } => return false,
            Phase::Starting | Phase::Waiting | Phase::Restarting if Instant::now() > end => {
                return false;
            }
            Phase::Starting | Phase::Waiting | Phase::Restarting => std::thread::sleep(LOOK_EVERY),
        }
    }
}

fn warm(running: &RunningModel, is_quiet: bool) {
    running.warm_up();
    if !is_quiet {
        introduce(running);
    }
}

/// Says what a model takes and how long it takes for it.
fn introduce(running: &RunningModel) {
    let model = &running.model;
    let planned = model.planned;
    let micros = |ns: u64| ns as f64 / 1000.0;
    let name = &model.name;
    say(format_args!(
        "zbmd-serve: {name}: response {:.1} us at best as measured, {:.1} us as planned; planned with a full queue of {} requests {:.1} us",
        micros(running.admission().measured().shortest_ns()),
        micros(planned.response_ns(0)),
        running.admission().limit(),
        micros(running.full_queue_ns()),
    ));
    if planned.fillers() > 0 {
        say(format_args!(
            "zbmd-serve: note: {name}: blocks of {} and {} stages: a request that comes alone is followed by {} empty \
             iterations; compile it with --block 1, and for one device, for shorter responses",
            planned.block,
            planned.stages,
            planned.fillers(),
        ));
    }
}
