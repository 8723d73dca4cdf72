//! `Caller`: a bundle for one CPU device that runs on the thread that calls it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use zbmd_executor::embed::StreamInfo;
use zbmd_executor::{CallError, Caller as EngineCaller, SetError};

use crate::array::{self, Filled};
use crate::errors::{self, usage_error};
use crate::options::mapping_entries;
use crate::run::borrow_inputs;
use crate::session::Numbers;

/// A bundle that is called.
#[pyclass(frozen, module = "zbmd")]
pub(crate) struct Caller {
    caller: Mutex<EngineCaller>,
    sources: Vec<CallStream>,
    sinks: Vec<CallStream>,
}

/// A source or a sink, in the order of a call.
struct CallStream {
    info: StreamInfo,
    /// Tokens of a call.
    tokens: usize,
}

impl Caller {
    pub(crate) fn new(caller: EngineCaller, streams: &[StreamInfo]) -> Self {
        let find = |is_source: bool, name: &str, bytes: usize| {
            let mut candidates = streams.iter().filter(|info| info.is_source == is_source);
            let info = candidates.find(|info| info.name == name)?.clone();
            let tokens = bytes / info.token.bytes() as usize;
            Some(CallStream { info, tokens })
        };
        let sources = caller.inputs();
        let sources = sources.filter_map(|(name, bytes)| find(true, name, bytes));
        let sinks = caller.outputs();
        let sinks = sinks.filter_map(|(name, bytes)| find(false, name, bytes));
        Self {
            sources: sources.collect(),
            sinks: sinks.collect(),
            caller: Mutex::new(caller),
        }
    }
}

#[pymethods]
impl Caller {
    #[getter]
    fn tokens(&self) -> BTreeMap<&str, usize> {
        let streams = self.sources.iter().chain(&self.sinks);
        streams
            .map(|stream| (stream.info.name.as_str(), stream.tokens))
            .collect()
    }

    fn set(&self, py: Python<'_>, values: BTreeMap<String, Numbers>) -> PyResult<()> {
        let named: Vec<(&str, &[f64])> = values
            .iter()
            .map(|(name, numbers)| (name.as_str(), numbers.as_slice()))
            .collect();
        let set_result = py.detach(|| {
            let locked = self.caller.lock();
            let mut caller = locked.unwrap_or_else(PoisonError::into_inner);
            caller.set(&named)
        });
        set_result.map_err(|error| match error {
            SetError::Ended => call_error(CallError::Ended),
            error => errors::error_of_class(error.class(), error),
        })
    }

    #[pyo3(signature = (inputs = None))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: Option<Bound<'py, PyMapping>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let sources: Vec<&StreamInfo> = self.sources.iter().map(|stream| &stream.info).collect();
        let borrowed = borrow_inputs(&sources, &mapping_entries(inputs)?)?;
        let mut results = Vec::with_capacity(self.sinks.len());
        for sink in &self.sinks {
            results.push(Filled::new(py, &sink.info, sink.tokens)?);
        }

        let input_bytes: Vec<&[u8]> = borrowed.iter().map(array::Borrowed::bytes).collect();
        let mut result_bytes: Vec<&mut [u8]> = results.iter_mut().map(Filled::bytes_mut).collect();
        // Whoever waits for another call has given up the interpreter's lock, which that one needs to end.
        let call_result = py.detach(|| {
            let locked = self.caller.lock();
            let mut caller = locked.unwrap_or_else(PoisonError::into_inner);
            caller.call(&input_bytes, &mut result_bytes)
        });
        call_result.map_err(call_error)?;

        let arrays = PyDict::new(py);
        for (sink, result) in self.sinks.iter().zip(results) {
            arrays.set_item(&sink.info.name, result.into_array(py, sink.tokens)?)?;
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
