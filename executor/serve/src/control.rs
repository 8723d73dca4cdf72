//! Opening models: all of the folder when the server starts, and single ones anew when a client asks for it. A request names a model and
//! never a file: its name is looked for among those that the folder has.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::readiness::Phase;
use crate::engine::{LoadedModel, RunChoices, RunningModel};
use crate::overrides::Overrides;
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
        "failed to load `{name}`: the parameter `{parameter}` is not supported: leave it out; `config` can be given"
    )]
    Parameter { name: String, parameter: String },
    #[error("failed to load `{name}`: the parameter `config` {what}")]
    Config { name: String, what: String },
    // Triton's words, which its clients look for.
    #[error(
        "failed to load `{name}`: failed to poll from model repository: the parameter `{parameter}` is a file, and models are made \
         from the files of the server's folder: put it there"
    )]
    File { name: String, parameter: String },
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

/// A parameter of a request to load a model; its value if it is a text.
pub(crate) type LoadParameter = (String, Option<String>);

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

    /// What a client's parameters change of a model.
    ///
    /// # Errors
    /// A parameter that cannot be given, or not so.
    pub(crate) fn overrides(
        &self,
        name: &str,
        parameters: Vec<LoadParameter>,
    ) -> Result<Overrides, ControlError> {
        let mut overrides = Overrides::default();
        for (parameter, text) in parameters {
            let name: String = name.chars().take(200).collect();
            match (parameter.as_str(), text) {
                ("config", Some(config)) => {
                    let read = Overrides::parse(&config, self.run.queue);
                    overrides = read.map_err(|what| ControlError::Config { name, what })?;
                }
                ("config", None) => {
                    let what = "must be a text".to_owned();
                    return Err(ControlError::Config { name, what });
                }
                (other, _) => {
                    let is_file = other.starts_with("file:");
                    let parameter = other.chars().take(200).collect();
                    return Err(match is_file {
                        true => ControlError::File { name, parameter },
                        false => ControlError::Parameter { name, parameter },
                    });
                }
            }
        }
        Ok(overrides)
    }

    /// Opens a model anew, runs it and waits until it is warm. This may take long.
    ///
    /// # Errors
    /// What is wrong with the model, or with asking for it.
    pub(crate) fn open(
        &self,
        name: &str,
        overrides: Overrides,
    ) -> Result<Arc<RunningModel>, ControlError> {
        let named = || name.to_owned();
        let loaded = repository::load_one(&self.folder, name, &self.load);
        let loaded = loaded.map_err(|source| ControlError::Repository {
            name: named(),
            source,
        })?;
        let mut model = loaded.ok_or_else(|| ControlError::Unknown { name: named() })?;
        if overrides.max_batch > 0 {
            let taken = model.take_batches(overrides.max_batch);
            taken.map_err(|why| ControlError::Config {
                name: named(),
                what: format!("says {} for `max_batch_size`: {why}", overrides.max_batch),
            })?;
        }
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
    let batches = &model.batches;
    let micros = |ns: u64| ns as f64 / 1000.0;
    let name = &model.name;
    say(format_args!(
        "zbmd-serve: {name}: response {:.1} us at best as measured, {:.1} us as planned; planned with a full queue of {} requests {:.1} us",
        micros(running.admission().measured().shortest_ns()),
        micros(batches.response_ns(0)),
        running.admission().limit(),
        micros(running.full_queue_ns()),
    ));
    if batches.count() > 1 {
        let sizes: Vec<String> = batches.rows().map(|rows| rows.to_string()).collect();
        say(format_args!(
            "zbmd-serve: {name}: computes {} requests at once, as many as wait and as pays; a change took {:.1} us",
            sizes.join(", "),
            micros(batches.change_ns()),
        ));
    }
    let smallest = batches.smallest();
    let fillers = smallest.fillers(1);
    if fillers > 0 {
        say(format_args!(
            "zbmd-serve: note: {name}: blocks of {} and {} stages: a request that comes alone is followed by {fillers} empty \
             ones; compile it with --block 1, and for one device, for shorter responses",
            smallest.block, smallest.stages,
        ));
    }
}
