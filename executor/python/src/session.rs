//! `Session`: a run that tokens are pushed into and pulled from while it goes on.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use zbmd_executor::embed::StreamInfo;
use zbmd_executor::{
    ModeHandle, ParameterHandle, ParameterValue, ProbeHandle, Session as Run, SetError, SinkHandle,
    SourceHandle, Stopper, When,
};
use zbmd_ir::ChangePosition;
use zbmd_live::session::LiveStreams;

use crate::array::{self, Filled};
use crate::errors::{self, usage_error};
use crate::probe::{self, Probe};
use crate::run::SIGNALS;
use crate::worker::Launcher;

/// A run of a bundle.
#[pyclass(frozen, module = "zbmd")]
pub(crate) struct Session {
    streams: Arc<[StreamInfo]>,
    run: Mutex<Option<Run>>,
    stopper: Stopper,
    parameters: ParameterHandle,
    modes: ModeHandle,
    probes: ProbeHandle,
    sources: Handles<SourceHandle>,
    sinks: Handles<SinkHandle>,
    /// Dropped after the run, which gives sinks their last tokens.
    live: Mutex<LiveStreams>,
    /// What starts workers, while there may be any to start.
    _launcher: Option<Launcher>,
}

/// Handles of streams, taken when they are first used. None once one is closed.
struct Handles<H>(Mutex<BTreeMap<String, Arc<Mutex<Option<H>>>>>);

impl<H> Handles<H> {
    fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The handle of that name, or what `take` gives.
    fn get_or_take(
        &self,
        name: &str,
        take: impl FnOnce() -> PyResult<H>,
    ) -> PyResult<Arc<Mutex<Option<H>>>> {
        let mut handles = lock(&self.0);
        if let Some(known_handle) = handles.get(name) {
            return Ok(Arc::clone(known_handle));
        }
        let stream_handle = Arc::new(Mutex::new(Some(take()?)));
        handles.insert(name.to_owned(), Arc::clone(&stream_handle));
        Ok(stream_handle)
    }
}

/// A panic elsewhere is reported there.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Pause until it is tried again to set parameters whose changes come faster than blocks.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// The value of a parameter.
#[derive(FromPyObject)]
pub(crate) enum Numbers {
    One(f64),
    List(Vec<f64>),
}

impl Numbers {
    pub(crate) fn as_slice(&self) -> &[f64] {
        match self {
            Self::One(number) => std::slice::from_ref(number),
            Self::List(numbers) => numbers,
        }
    }
}

impl Session {
    pub(crate) fn new(
        session: Run,
        live: LiveStreams,
        streams: Arc<[StreamInfo]>,
        launcher: Option<Launcher>,
    ) -> Self {
        Self {
            streams,
            stopper: session.stopper(),
            parameters: session.parameters(),
            modes: session.modes(),
            probes: session.probes(),
            run: Mutex::new(Some(session)),
            sources: Handles::new(),
            sinks: Handles::new(),
            live: Mutex::new(live),
            _launcher: launcher,
        }
    }

    fn stream_info(&self, name: &str, is_source: bool) -> PyResult<&StreamInfo> {
        let kind = if is_source { "source" } else { "sink" };
        let mut candidates = self
            .streams
            .iter()
            .filter(|info| info.is_source == is_source);
        candidates
            .find(|info| info.name == name)
            .ok_or_else(|| usage_error(format!("there is no {kind} `{name}`")))
    }

    fn source_handle(&self, name: &str) -> PyResult<Arc<Mutex<Option<SourceHandle>>>> {
        self.sources
            .get_or_take(name, || self.with_run(|run| run.source(name)))
    }

    fn sink_handle(&self, name: &str) -> PyResult<Arc<Mutex<Option<SinkHandle>>>> {
        self.sinks
            .get_or_take(name, || self.with_run(|run| run.sink(name)))
    }

    fn with_run<H>(
        &self,
        take: impl FnOnce(&mut Run) -> Result<H, zbmd_executor::StreamError>,
    ) -> PyResult<H> {
        let mut locked_run = lock(&self.run);
        let running = locked_run
            .as_mut()
            .ok_or_else(|| usage_error("the session was joined or closed"))?;
        take(running).map_err(errors::stream_error)
    }
}

/// Waits in parts, so that signals are seen: `work` does one part, and says whether it is the last.
pub(crate) fn in_parts(
    py: Python<'_>,
    timeout: Option<f64>,
    mut work: impl FnMut(Duration) -> PyResult<bool> + Send,
) -> PyResult<()> {
    let limit_result = timeout
        .map(|seconds| Duration::try_from_secs_f64(if seconds < 0.0 { 0.0 } else { seconds }));
    let limit = limit_result
        .transpose()
        .map_err(|error| usage_error(format!("the timeout: {error}")))?;
    let end_time = limit.and_then(|limit| Instant::now().checked_add(limit));

    loop {
        let time_left =
            end_time.map_or(SIGNALS, |end| end.saturating_duration_since(Instant::now()));
        let is_last = py.detach(|| work(time_left.min(SIGNALS)))?;
        if is_last || (end_time.is_some() && time_left <= SIGNALS) {
            return Ok(());
        }
        py.check_signals()?;
    }
}

/// What Python's `json` makes of it.
fn json_object<'py>(py: Python<'py>, value: &impl serde::Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text =
        serde_json::to_string(value).map_err(|error| errors::Error::new_err(error.to_string()))?;
    py.import(intern!(py, "json"))?
        .call_method1(intern!(py, "loads"), (text,))
}

fn closed_error(name: &str) -> PyErr {
    usage_error(format!("`{name}` was closed"))
}

#[pymethods]
impl Session {
    #[pyo3(signature = (name, tokens, timeout = None))]
    fn push(
        &self,
        py: Python<'_>,
        name: &str,
        tokens: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let stream_info = self.stream_info(name, true)?;
        let borrowed = array::borrow_tokens(tokens, stream_info)?;
        let bytes = borrowed.bytes();
        let token_bytes = stream_info.token.bytes();
        let shared_source = self.source_handle(name)?;

        let mut done_tokens = 0;
        in_parts(py, timeout, |limit| {
            let mut locked_source = lock(&shared_source);
            let source = locked_source.as_mut().ok_or_else(|| closed_error(name))?;
            let rest = &bytes[(done_tokens * token_bytes) as usize..];
            done_tokens += source
                .push_bytes_within(rest, limit)
                .map_err(errors::stream_error)?;
            Ok(done_tokens * token_bytes == bytes.len() as u64)
        })?;
        Ok(done_tokens)
    }

    #[pyo3(signature = (name, tokens, timeout = None))]
    fn pull<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        tokens: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let stream_info = self.stream_info(name, false)?;
        let token_bytes = stream_info.token.bytes() as usize;
        let shared_sink = self.sink_handle(name)?;
        let mut token_array = Filled::new(py, stream_info, tokens)?;
        let token_room = token_array.bytes_mut();

        let mut done_tokens = 0;
        in_parts(py, timeout, |limit| {
            let mut locked_sink = lock(&shared_sink);
            let sink = locked_sink.as_mut().ok_or_else(|| closed_error(name))?;
            let rest = &mut token_room[done_tokens * token_bytes..];
            done_tokens += sink
                .pull_bytes_within(rest, limit)
                .map_err(errors::stream_error)? as usize;
            Ok(done_tokens == tokens || sink.is_finished())
        })?;
        token_array.into_array(py, done_tokens)
    }

    fn is_finished(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.stream_info(name, false)?;
        let shared_sink = self.sink_handle(name)?;
        py.detach(|| {
            Ok(lock(&shared_sink)
                .as_mut()
                .is_none_or(SinkHandle::is_finished))
        })
    }

    fn close(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let known_stream = self.streams.iter().find(|info| info.name == name);
        let stream_info =
            known_stream.ok_or_else(|| usage_error(format!("there is no stream `{name}`")))?;
        if stream_info.is_source {
            let shared_source = self.source_handle(name)?;
            py.detach(|| drop(lock(&shared_source).take()));
        } else {
            let shared_sink = self.sink_handle(name)?;
            py.detach(|| drop(lock(&shared_sink).take()));
        }
        Ok(())
    }

    #[pyo3(signature = (name, url = None))]
    fn connect(&self, py: Python<'_>, name: &str, url: Option<&str>) -> PyResult<()> {
        let known_stream = self.streams.iter().find(|info| info.name == name);
        let stream_info =
            known_stream.ok_or_else(|| usage_error(format!("there is no stream `{name}`")))?;
        let is_source = stream_info.is_source;

        let connect_result = py.detach(|| {
            let mut locked_run = lock(&self.run);
            let run = locked_run.as_mut()?;
            let mut live = lock(&self.live);
            Some(match is_source {
                true => live.connect_source(run, name, url),
                false => live.connect_sink(run, name, url),
            })
        });
        connect_result
            .ok_or_else(|| usage_error("the session was joined or closed"))?
            .map_err(errors::connect_error)
    }

    fn live_report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let reports = py.detach(|| lock(&self.live).reports());
        json_object(py, &reports)
    }

    #[pyo3(signature = (values, at = None))]
    fn set(
        &self,
        py: Python<'_>,
        values: BTreeMap<String, Numbers>,
        at: Option<(String, u64)>,
    ) -> PyResult<u64> {
        let named: Vec<(&str, &[f64])> = values
            .iter()
            .map(|(name, numbers)| (name.as_str(), numbers.as_slice()))
            .collect();
        let when = match &at {
            None => When::NextBlock,
            Some((source, index)) => When::Token {
                source,
                index: *index,
            },
        };

        // Where changes come faster than blocks, it waits for the workers to take some.
        loop {
            match py.detach(|| self.parameters.set(&named, when)) {
                Ok(ChangePosition::Iteration(position)) => return Ok(position),
                Ok(ChangePosition::Token { index, .. }) => return Ok(index),
                Err(SetError::Full | SetError::Council { .. }) => {
                    py.detach(|| std::thread::sleep(FULL_PAUSE))
                }
                Err(SetError::Ended) => return Err(usage_error(SetError::Ended.to_string())),
                Err(error) => return Err(errors::error_of_class(error.class(), error)),
            }
            py.check_signals()?;
        }
    }

    #[getter]
    fn parameters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let values = py.detach(|| self.parameters.values());
        let by_name = PyDict::new(py);
        for ParameterValue { parameter, numbers } in values {
            match numbers.as_slice() {
                [number] if !parameter.is_list => by_name.set_item(parameter.name, number)?,
                list => by_name.set_item(parameter.name, list)?,
            }
        }
        Ok(by_name)
    }

    #[pyo3(signature = (mode, timeout = None))]
    fn change_mode(
        &self,
        py: Python<'_>,
        mode: &str,
        timeout: Option<f64>,
    ) -> PyResult<Option<u64>> {
        let change = self.modes.change(mode).map_err(errors::mode_error)?;
        let mut outcome = None;
        in_parts(py, timeout, |limit| {
            outcome = change.wait_within(limit);
            Ok(outcome.is_some())
        })?;
        let entry = outcome.transpose().map_err(errors::mode_error)?;
        Ok(entry.map(|entry| entry.iteration))
    }

    #[getter]
    fn mode(&self) -> Option<String> {
        let has_modes = self.modes.names().iter().any(|name| !name.is_empty());
        has_modes.then(|| self.modes.present().mode)
    }

    #[getter]
    fn modes(&self) -> Vec<String> {
        let names = self.modes.names().iter();
        names.filter(|name| !name.is_empty()).cloned().collect()
    }

    #[getter]
    fn channels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let channels = py.detach(|| self.probes.channels());
        probe::channels_by_name(py, channels)
    }

    fn probe(&self, py: Python<'_>, channel: &str) -> PyResult<Probe> {
        let attached = py.detach(|| self.probes.attach(channel));
        Ok(Probe::new(channel, attached.map_err(errors::probe_error)?))
    }

    fn stop(&self) {
        self.stopper.stop();
    }

    #[getter]
    fn iterations(&self) -> u64 {
        self.stopper.iterations()
    }

    fn join<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let taken_run = lock(&self.run).take();
        let run = taken_run.ok_or_else(|| usage_error("the session was joined or closed"))?;
        let source_handles: Vec<_> = lock(&self.sources.0).values().cloned().collect();
        let (end_sender, mut end_receiver) = channel::<()>();
        let join_thread = std::thread::spawn(move || {
            for source in source_handles {
                drop(lock(&source).take());
            }
            let run_result = run.join();
            drop(end_sender);
            run_result
        });

        let mut signal_result = Ok(());
        let wait = |ended: &mut Receiver<()>| py.detach(move || ended.recv_timeout(SIGNALS));
        while wait(&mut end_receiver) == Err(RecvTimeoutError::Timeout) {
            if signal_result.is_ok() {
                signal_result = py.check_signals();
                if signal_result.is_err() {
                    self.stopper.stop();
                    // Or a sink that nobody pulls from would keep the run from its end.
                    py.detach(|| {
                        lock(&self.sinks.0)
                            .values()
                            .for_each(|sink| drop(lock(sink).take()))
                    });
                }
            }
        }

        let run_result = join_thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // What the run gave is sent, and the counts are final.
        py.detach(|| lock(&self.live).close());
        signal_result?;

        let report = run_result.map_err(errors::run_error)?.report;
        json_object(py, &report)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        py.detach(|| {
            drop(lock(&self.run).take());
            lock(&self.live).close();
        });
    }
}
