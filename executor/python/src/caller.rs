//! `Caller`: a bundle for one CPU device that runs on the thread that calls it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use zbmd_executor::embed::StreamInfo;
use zbmd_executor::{CallError, Caller as EngineCaller};

use crate::array::{self, Filled};
use crate::errors::{self, usage_error};
use crate::options::mapping_entries;
use crate::run::borrow_inputs;

/// A bundle that is called.
#[pyclass(frozen, module = "zbmd")]
pub(crate) struct Caller {
    caller: Mutex<EngineCaller>,
    streams: Arc<[StreamInfo]>,
    /// Tokens of a call, by the names of streams.
    tokens: BTreeMap<String, usize>,
}

impl Caller {
    pub(crate) fn new(caller: EngineCaller, streams: Arc<[StreamInfo]>) -> Self {
        let ports: BTreeMap<String, usize> = caller
            .inputs()
            .chain(caller.outputs())
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .collect();
        let tokens = streams.iter().filter_map(|info| {
            let bytes = *ports.get(&info.name)?;
            Some((info.name.clone(), bytes / info.token.bytes() as usize))
        });
        Self {
            tokens: tokens.collect(),
            caller: Mutex::new(caller),
            streams,
        }
    }

    /// The stream of that name on one side.
    fn stream(&self, name: &str, is_source: bool) -> PyResult<&StreamInfo> {
        let mut streams = self.streams.iter();
        streams
            .find(|info| info.is_source == is_source && info.name == name)
            .ok_or_else(|| usage_error(format!("there is no stream `{name}`")))
    }
}

#[pymethods]
impl Caller {
    #[getter]
    fn tokens(&self) -> BTreeMap<String, usize> {
        self.tokens.clone()
    }

    #[pyo3(signature = (inputs = None))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: Option<Bound<'py, PyMapping>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let locked = self.caller.lock();
        let mut caller = locked.unwrap_or_else(PoisonError::into_inner);

        // In the order of the call, which is that of the streams.
        let sources = caller.inputs().map(|(name, _)| self.stream(name, true));
        let sources: Vec<&StreamInfo> = sources.collect::<PyResult<_>>()?;
        let borrowed = borrow_inputs(&sources, &mapping_entries(inputs)?)?;
        let sinks = caller.outputs().map(|(name, _)| self.stream(name, false));
        let sinks: Vec<&StreamInfo> = sinks.collect::<PyResult<_>>()?;
        let mut results = Vec::with_capacity(sinks.len());
        for info in &sinks {
            results.push(Filled::new(py, info, self.tokens[&info.name])?);
        }

        let input_bytes: Vec<&[u8]> = borrowed.iter().map(array::Borrowed::bytes).collect();
        let mut result_bytes: Vec<&mut [u8]> = results.iter_mut().map(Filled::bytes_mut).collect();
        let call_result = py.detach(|| caller.call(&input_bytes, &mut result_bytes));
        call_result.map_err(call_error)?;

        let arrays = PyDict::new(py);
        for (info, result) in sinks.iter().zip(results) {
            let tokens = self.tokens[&info.name];
            arrays.set_item(&info.name, result.into_array(py, tokens)?)?;
        }
        Ok(arrays)
    }
}

fn call_error(error: CallError) -> PyErr {
    match error {
        CallError::Failed(error) => errors::run_error(error),
        other => usage_error(other.to_string()),
    }
}
