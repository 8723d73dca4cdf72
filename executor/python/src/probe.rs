//! `Probe`: copies of what a channel of a run carries, block by block.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use zbmd_executor::embed::StreamInfo;
use zbmd_executor::{Probe as RunProbe, ProbeChannel, ProbeError, ProbedBlock};

use crate::array::{Filled, array_dtype};
use crate::errors::{self, usage_error};
use crate::session::{in_parts, lock};

/// Looks at a channel of a run.
#[pyclass(frozen, module = "zbmd")]
pub(crate) struct Probe {
    channel: String,
    /// None once it is closed.
    probe: Mutex<Option<RunProbe>>,
}

/// What a part of waiting for a block has come to.
enum Found {
    Nothing,
    Block(ProbedBlock, zbmd_ir::TokenType),
    Ended,
}

impl Probe {
    pub(crate) fn new(channel: &str, probe: RunProbe) -> Self {
        Self {
            channel: channel.to_owned(),
            probe: Mutex::new(Some(probe)),
        }
    }
}

#[pymethods]
impl Probe {
    #[pyo3(signature = (timeout = None))]
    fn next<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<(u64, Bound<'py, PyAny>)>> {
        let mut found = Found::Nothing;
        in_parts(py, timeout, |limit| {
            let mut locked_probe = lock(&self.probe);
            let closed = || usage_error(format!("the probe of `{}` was closed", self.channel));
            let probe = locked_probe.as_mut().ok_or_else(closed)?;
            found = match probe.next(limit) {
                Ok(None) => Found::Nothing,
                Ok(Some(block)) => Found::Block(block, probe.token()),
                Err(ProbeError::Ended) => Found::Ended,
                Err(error) => return Err(errors::probe_error(error)),
            };
            Ok(!matches!(found, Found::Nothing))
        })?;

        let (block, token) = match found {
            Found::Nothing | Found::Ended => return Ok(None),
            Found::Block(block, token) => (block, token),
        };
        let tokens = block.bytes.len() / token.bytes() as usize;
        let info = StreamInfo {
            name: self.channel.clone(),
            is_source: false,
            token,
            tokens_per_iteration: tokens as u64 / block.iterations.max(1),
            sample_rate: None,
        };
        let mut array = Filled::new(py, &info, tokens)?;
        array.bytes_mut().copy_from_slice(&block.bytes);
        Ok(Some((block.iteration, array.into_array(py, tokens)?)))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.probe).take()));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

/// What is known of each channel, by its name.
pub(crate) fn channels_by_name(
    py: Python<'_>,
    channels: Vec<ProbeChannel>,
) -> PyResult<Bound<'_, PyDict>> {
    let by_name = PyDict::new(py);
    for channel in channels {
        let described = PyDict::new(py);
        described.set_item("dtype", array_dtype(py, &channel.token)?)?;
        described.set_item("shape", PyTuple::new(py, &channel.token.shape)?)?;
        described.set_item("block_tokens", channel.block_tokens)?;
        described.set_item("block_iterations", channel.block_iterations)?;
        described.set_item("device", channel.device)?;
        described.set_item("sample_rate", channel.sample_rate)?;
        by_name.set_item(channel.name, described)?;
    }
    Ok(by_name)
}
