//! `Bundle`: a program that is ready to run, its streams, and runs of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMapping, PyTuple};
use zbmd_executor::Engine;
use zbmd_executor::embed::{self, StreamInfo};
use zbmd_ir::bundle::{self, Meta, OpenError};
use zbmd_ir::limits::MAX_STRUCTURE_BYTES;
use zbmd_ir::verify::VerifiedModes;
use zbmd_live::session::LiveStreams;

use crate::array::numpy_name;
use crate::caller::Caller;
use crate::errors::{self, error_of_class};
use crate::options::{Options, mapping_entries};
use crate::run;
use crate::session::Session;

/// A program that is ready to run, any number of times.
#[pyclass(frozen, module = "zbmd")]
pub(crate) struct Bundle {
    engine: Engine,
    streams: Arc<[StreamInfo]>,
    #[pyo3(get)]
    warnings: String,
}

/// A source or a sink of a bundle.
#[pyclass(frozen, module = "zbmd")]
pub(crate) struct Stream {
    info: StreamInfo,
}

impl Bundle {
    pub(crate) fn new(modes: VerifiedModes, warnings: String) -> PyResult<Self> {
        let engine = Engine::with_modes(modes, &zbmd_backends::standard_registry())
            .map_err(errors::engine_error)?;
        let streams = embed::streams(&engine.program().graph).into();
        Ok(Self {
            engine,
            streams,
            warnings,
        })
    }

    fn stream_list(&self, is_source: bool) -> String {
        let of_kind = self
            .streams
            .iter()
            .filter(|info| info.is_source == is_source);
        let stream_texts: Vec<String> = of_kind
            .map(|info| format!("{}: {}", info.name, info.token))
            .collect();
        stream_texts.join(", ")
    }
}

#[pymethods]
impl Bundle {
    #[getter]
    fn name(&self) -> &str {
        &self.engine.program().graph.name
    }

    #[getter]
    fn streams(&self) -> BTreeMap<String, Stream> {
        let stream_infos = self.streams.iter();
        stream_infos
            .map(|info| (info.name.clone(), Stream { info: info.clone() }))
            .collect()
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let modes = self.engine.verified_modes();
        py.detach(|| bundle::write_modes(&path, modes, &Meta::new()))
            .map_err(|error| {
                errors::FileError::new_err(format!("cannot write `{}`: {error}", path.display()))
            })
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let modes = self.engine.verified_modes();
        let bundle_bytes = py.detach(|| bundle::encode_modes(modes, &Meta::new()));
        PyBytes::new(py, &bundle_bytes)
    }

    #[pyo3(signature = (inputs = None, **options))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: Option<Bound<'py, PyMapping>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let run_options = Options::of(py, &self.engine, options)?;
        run::run_arrays(
            py,
            &self.engine,
            &self.streams,
            &mapping_entries(inputs)?,
            run_options,
        )
    }

    #[pyo3(signature = (**options))]
    fn start(&self, py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Session> {
        let Options { run, launcher } = Options::of(py, &self.engine, options)?;
        let session = py
            .detach(|| self.engine.start(run))
            .map_err(errors::engine_error)?;
        let live = LiveStreams::new(&self.engine);
        let streams = Arc::clone(&self.streams);
        Ok(Session::new(session, live, streams, launcher))
    }

    fn caller(&self, py: Python<'_>) -> PyResult<Caller> {
        let caller = py
            .detach(|| self.engine.caller())
            .map_err(errors::engine_error)?;
        Ok(Caller::new(caller, &self.streams))
    }

    fn __repr__(&self) -> String {
        format!(
            "<zbmd.Bundle {}({}) -> ({})>",
            self.name(),
            self.stream_list(true),
            self.stream_list(false)
        )
    }
}

#[pymethods]
impl Stream {
    #[getter]
    fn name(&self) -> &str {
        &self.info.name
    }

    #[getter]
    fn is_source(&self) -> bool {
        self.info.is_source
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        numpy_name(self.info.token.dtype)
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.info.token.shape)
    }

    #[getter]
    fn is_burst(&self) -> bool {
        self.info.token.burst
    }

    #[getter]
    fn tokens_per_iteration(&self) -> u64 {
        self.info.tokens_per_iteration
    }

    #[getter]
    fn sample_rate(&self) -> Option<f64> {
        self.info.sample_rate
    }

    fn __repr__(&self) -> String {
        let kind = if self.info.is_source {
            "source"
        } else {
            "sink"
        };
        let StreamInfo {
            name,
            token,
            tokens_per_iteration,
            ..
        } = &self.info;
        format!("<zbmd.Stream {kind} {name}: {token}, {tokens_per_iteration} an iteration>")
    }
}

/// Opens a bundle: a path, or its bytes.
#[pyfunction]
pub(crate) fn load(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<Bundle> {
    let refused = |place: &str, error: OpenError| {
        error_of_class(embed::open_error_class(&error), format!("{place}{error}"))
    };
    let open_result = if let Ok(bytes) = source.cast::<PyBytes>() {
        let owned_bytes = Bytes::copy_from_slice(bytes.as_bytes());
        py.detach(|| bundle::modes_of_bytes(owned_bytes, MAX_STRUCTURE_BYTES))
            .map_err(|error| refused("", error))
    } else {
        let bundle_path: PathBuf = source.extract()?;
        py.detach(|| bundle::open_modes(&bundle_path))
            .map_err(|error| refused(&format!("{}: ", bundle_path.display()), error))
    };
    Bundle::new(open_result?, String::new())
}
