//! A model that can be served: its engine, its tensors, and what its calendars promise.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zbmd_backends::op::Registry;
use zbmd_executor::embed::{StreamInfo, open_error_class};
use zbmd_executor::{Engine, EngineError, exit};
use zbmd_ir::bundle::{OpenError, open_modes};
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{Graph, Program, carried_states};

use super::batches::Batches;
use crate::protocol::request::max_body_bytes;
use crate::tensor::TensorSpec;

/// Why a bundle is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{}: {source}", path.display())]
    Open {
        path: PathBuf,
        source: Box<OpenError>,
    },
    #[error("{}: {source}", path.display())]
    Engine {
        path: PathBuf,
        source: Box<EngineError>,
    },
    #[error("{}: {why}", path.display())]
    Unfit { path: PathBuf, why: String },
}

impl LoadError {
    /// Its exit code, one of [`exit`].
    pub(crate) fn class(&self) -> u8 {
        match self {
            Self::Open { source, .. } => open_error_class(source),
            Self::Engine { source, .. } => source.class(),
            Self::Unfit { .. } => exit::REFUSED,
        }
    }
}

/// A state of a sequence: what a request takes from a source, and what the one before gave to a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CarriedTensor {
    pub(crate) source: String,
    pub(crate) sink: String,
    /// What the first request of a sequence takes.
    pub(crate) initial: Vec<u8>,
}

impl CarriedTensor {
    /// Those of a program, in the order of its sources.
    fn all(program: &Program) -> Vec<Self> {
        let actors = &program.graph.actors;
        let states = carried_states(&program.graph).into_iter();
        let tensors = states.map(|state| Self {
            source: actors[state.source].name.clone(),
            sink: actors[state.sink].name.clone(),
            initial: program.blobs[state.initial].to_vec(),
        });
        tensors.collect()
    }

    fn is_end(&self, name: &str) -> bool {
        self.source == name || self.sink == name
    }
}

/// A model that is ready to run.
#[derive(Debug)]
pub(crate) struct LoadedModel {
    /// Its name in requests: that of its file.
    pub(crate) name: String,
    pub(crate) engine: Engine,
    /// In the order of the graph's sources.
    pub(crate) inputs: Vec<TensorSpec>,
    /// In the order of the graph's sinks.
    pub(crate) outputs: Vec<TensorSpec>,
    /// What it keeps for each sequence of requests; not among inputs and outputs.
    pub(crate) carried: Vec<CarriedTensor>,
    /// How many requests iterations compute together, and what its calendars promise.
    pub(crate) batches: Arc<Batches>,
    /// Rows of a request, at most, each of which is computed as a request of its own is; 0 if requests have no rows.
    pub(crate) max_batch: u32,
}

impl LoadedModel {
    /// Opens a bundle and verifies it.
    ///
    /// # Errors
    /// A file that is not a bundle, and those of [`Self::of_modes`].
    pub(crate) fn open(name: &str, path: &Path, registry: &Registry) -> Result<Self, LoadError> {
        let modes = open_modes(path).map_err(|source| LoadError::Open {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        Self::of_modes(name, path, modes, registry)
    }

    /// The model of a program that was read, or compiled, from a file. Checks that requests can be its iterations, or parts of them.
    ///
    /// # Errors
    /// Kernels that are not here, a model that keeps tokens which are not [carried](zbmd_ir::carried_states), or modes that are no
    /// sizes of batches.
    pub(crate) fn of_modes(
        name: &str,
        path: &Path,
        modes: VerifiedModes,
        registry: &Registry,
    ) -> Result<Self, LoadError> {
        let unfit = |why| LoadError::Unfit {
            path: path.to_owned(),
            why,
        };
        let (batches, mut client_streams) = Batches::of_modes(&modes).map_err(unfit)?;
        for graph in modes.graphs() {
            check_stateless(graph).map_err(unfit)?;
        }
        let carried = CarriedTensor::all(&modes.programs()[0]);
        if batches.count() > 1 && !carried.is_empty() {
            let why = "it has several modes, and keeps a state for each sequence, whose requests are computed one after the other: compile one \
                       of its modes alone, with `zbmdc compile --mode`";
            return Err(unfit(why.to_owned()));
        }
        client_streams.retain(|stream| !carried.iter().any(|state| state.is_end(&stream.name)));
        check_streams(&client_streams).map_err(unfit)?;

        let engine = Engine::with_modes(modes, registry).map_err(|source| LoadError::Engine {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let (sources, sinks): (Vec<_>, Vec<_>) = client_streams
            .into_iter()
            .partition(|stream| stream.is_source);
        let mut model = Self {
            name: name.to_owned(),
            inputs: sources.iter().map(TensorSpec::of).collect(),
            outputs: sinks.iter().map(TensorSpec::of).collect(),
            batches: Arc::new(batches),
            carried,
            engine,
            max_batch: 0,
        };
        // Who compiles a model for batches has requests with rows in mind.
        if model.batches.count() > 1 {
            let largest = model.batches.rows().max().unwrap_or(1);
            let largest = u32::try_from(largest).unwrap_or(u32::MAX);
            model.take_batches(largest).map_err(unfit)?;
        }
        Ok(model)
    }

    /// Takes requests of several rows: the first dimension of each tensor, which must be 1, becomes the number of rows.
    ///
    /// # Errors
    /// Why the model takes none.
    pub(crate) fn take_batches(&mut self, max_batch: u32) -> Result<(), String> {
        if !self.carried.is_empty() {
            return Err(
                "it keeps a state for each sequence, whose requests are single iterations"
                    .to_owned(),
            );
        }
        let mut tensors = self.inputs.iter().chain(&self.outputs);
        if let Some(spec) = tensors.find(|spec| spec.shape[0] != 1) {
            return Err(format!(
                "rows need a first dimension of 1, and `{}` has the shape {:?}",
                spec.name, spec.shape
            ));
        }
        self.max_batch = max_batch;
        Ok(())
    }

    /// Rows of a request, at most.
    pub(crate) fn max_rows(&self) -> u32 {
        self.max_batch.max(1)
    }

    /// The longest body of a sensible request.
    pub(crate) fn max_body_bytes(&self) -> usize {
        max_body_bytes(&self.inputs, self.max_rows())
    }
}

/// Tokens that stay on a channel between iterations would go from one client's request to the next one's.
fn check_stateless(graph: &Graph) -> Result<(), String> {
    let stateful = graph.channels.iter().find(|channel| channel.history() > 0);
    stateful.map_or(Ok(()), |channel| {
        let writer = &graph.actors[channel.from.actor].name;
        Err(format!(
            "it keeps tokens of `{writer}` from one iteration to the next: requests would change each other's answers; \
             compile it with `zbmdc compile --sequences`, which lets the server keep them for each sequence"
        ))
    })
}

fn check_streams(streams: &[StreamInfo]) -> Result<(), String> {
    for (is_source, kind) in [(true, "source"), (false, "sink")] {
        if !streams.iter().any(|stream| stream.is_source == is_source) {
            return Err(format!(
                "it has no {kind}: a request needs inputs and outputs"
            ));
        }
    }
    let burst = streams.iter().find(|stream| stream.token.burst);
    burst.map_or(Ok(()), |stream| {
        let StreamInfo { name, token, .. } = stream;
        Err(format!(
            "`{name}` carries {token}: the protocol's tensors have a fixed size"
        ))
    })
}
