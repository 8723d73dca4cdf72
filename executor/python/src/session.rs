//! `Session`: a run that tokens are pushed into and pulled from while it goes on.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use zbmd_executor::embed::StreamInfo;
use zbmd_executor::{Session as Run, SinkHandle, SourceHandle, Stopper};

use crate::array::{self, Filled};
use crate::errors::{self, usage};
use crate::run::SIGNALS;
use crate::worker::Launcher;

/// A run of a bundle.
#[pyclass(frozen, module = "zbmd")]
pub(crate) struct Session {
    streams: Arc<[StreamInfo]>,
    run: Mutex<Option<Run>>,
    stopper: Stopper,
    sources: Handles<SourceHandle>,
    sinks: Handles<SinkHandle>,
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
    fn get(
        &self,
        name: &str,
        take: impl FnOnce() -> PyResult<H>,
    ) -> PyResult<Arc<Mutex<Option<H>>>> {
        let mut handles = lock(&self.0);
        if let Some(handle) = handles.get(name) {
            return Ok(Arc::clone(handle));
        }
        let handle = Arc::new(Mutex::new(Some(take()?)));
        handles.insert(name.to_owned(), Arc::clone(&handle));
        Ok(handle)
    }
}

/// A panic elsewhere is told there.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Session {
    pub(crate) fn new(
        session: Run,
        streams: Arc<[StreamInfo]>,
        launcher: Option<Launcher>,
    ) -> Self {
        Self {
            streams,
            stopper: session.stopper(),
            run: Mutex::new(Some(session)),
            sources: Handles::new(),
            sinks: Handles::new(),
            _launcher: launcher,
        }
    }

    fn info(&self, name: &str, is_source: bool) -> PyResult<&StreamInfo> {
        let kind = if is_source { "source" } else { "sink" };
        let mut all = self.streams.iter().filter(|s| s.is_source == is_source);
        all.find(|s| s.name == name)
            .ok_or_else(|| usage(format!("there is no {kind} `{name}`")))
    }

    fn source(&self, name: &str) -> PyResult<Arc<Mutex<Option<SourceHandle>>>> {
        self.sources
            .get(name, || self.with_run(|run| run.source(name)))
    }

    fn sink(&self, name: &str) -> PyResult<Arc<Mutex<Option<SinkHandle>>>> {
        self.sinks.get(name, || self.with_run(|run| run.sink(name)))
    }

    fn with_run<H>(
        &self,
        take: impl FnOnce(&mut Run) -> Result<H, zbmd_executor::StreamError>,
    ) -> PyResult<H> {
        let mut run = lock(&self.run);
        let run = run
            .as_mut()
            .ok_or_else(|| usage("the session was joined or closed"))?;
        take(run).map_err(errors::stream)
    }
}

/// Waits in parts, so that signals are seen: `work` does one part, and says whether it is the last.
fn in_parts(
    py: Python<'_>,
    timeout: Option<f64>,
    mut work: impl FnMut(Duration) -> PyResult<bool> + Send,
) -> PyResult<()> {
    let limit = timeout.map(|s| Duration::try_from_secs_f64(if s < 0.0 { 0.0 } else { s }));
    let limit = limit
        .transpose()
        .map_err(|e| usage(format!("the timeout: {e}")))?;
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = end.map_or(SIGNALS, |end| end.saturating_duration_since(Instant::now()));
        let is_last = py.detach(|| work(left.min(SIGNALS)))?;
        if is_last || (end.is_some() && left <= SIGNALS) {
            return Ok(());
        }
        py.check_signals()?;
    }
}

fn closed(name: &str) -> PyErr {
    usage(format!("`{name}` was closed"))
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
        let info = self.info(name, true)?;
        let borrowed = array::tokens(tokens, info)?;
        let (bytes, token_bytes) = (borrowed.bytes(), info.token.bytes());
        let source = self.source(name)?;
        let mut done = 0;
        in_parts(py, timeout, |limit| {
            let mut source = lock(&source);
            let source = source.as_mut().ok_or_else(|| closed(name))?;
            let rest = &bytes[(done * token_bytes) as usize..];
            done += source
                .push_bytes_within(rest, limit)
                .map_err(errors::stream)?;
            Ok(done * token_bytes == bytes.len() as u64)
        })?;
        Ok(done)
    }

    #[pyo3(signature = (name, tokens, timeout = None))]
    fn pull<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        tokens: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let info = self.info(name, false)?;
        let token_bytes = info.token.bytes() as usize;
        let sink = self.sink(name)?;
        let mut filled = Filled::new(py, info, tokens)?;
        let to = filled.bytes_mut();
        let mut done = 0;
        in_parts(py, timeout, |limit| {
            let mut sink = lock(&sink);
            let sink = sink.as_mut().ok_or_else(|| closed(name))?;
            let rest = &mut to[done * token_bytes..];
            done += sink
                .pull_bytes_within(rest, limit)
                .map_err(errors::stream)? as usize;
            Ok(done == tokens || sink.is_finished())
        })?;
        filled.finish(py, done)
    }

    fn is_finished(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.info(name, false)?;
        let sink = self.sink(name)?;
        py.detach(|| Ok(lock(&sink).as_mut().is_none_or(SinkHandle::is_finished)))
    }

    fn close(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let known = self.streams.iter().find(|s| s.name == name);
        let info = known.ok_or_else(|| usage(format!("there is no stream `{name}`")))?;
        if info.is_source {
            let source = self.source(name)?;
            py.detach(|| drop(lock(&source).take()));
        } else {
            let sink = self.sink(name)?;
            py.detach(|| drop(lock(&sink).take()));
        }
        Ok(())
    }

    fn stop(&self) {
        self.stopper.stop();
    }

    #[getter]
    fn iterations(&self) -> u64 {
        self.stopper.iterations()
    }

    fn join<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let run = lock(&self.run).take();
        let run = run.ok_or_else(|| usage("the session was joined or closed"))?;
        let handles: Vec<_> = lock(&self.sources.0).values().cloned().collect();
        let (tell, mut told) = channel::<()>();
        let ended = std::thread::spawn(move || {
            for source in handles {
                drop(lock(&source).take());
            }
            let outcome = run.join();
            drop(tell);
            outcome
        });
        let mut signal = Ok(());
        let wait = |told: &mut Receiver<()>| py.detach(move || told.recv_timeout(SIGNALS));
        while wait(&mut told) == Err(RecvTimeoutError::Timeout) {
            if signal.is_ok() {
                signal = py.check_signals();
                if signal.is_err() {
                    self.stopper.stop();
                    // Or a sink that nobody pulls from would keep the run from its end.
                    py.detach(|| {
                        lock(&self.sinks.0)
                            .values()
                            .for_each(|s| drop(lock(s).take()))
                    });
                }
            }
        }
        let outcome = ended
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        signal?;
        let report = outcome.map_err(errors::run)?.report;
        let text =
            serde_json::to_string(&report).map_err(|e| errors::Error::new_err(e.to_string()))?;
        py.import(intern!(py, "json"))?
            .call_method1(intern!(py, "loads"), (text,))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        py.detach(|| drop(lock(&self.run).take()));
    }
}
