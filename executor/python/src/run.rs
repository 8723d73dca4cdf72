//! `Bundle.run`: whole arrays in, whole arrays out.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use zbmd_executor::embed::StreamInfo;
use zbmd_executor::{Engine, SinkHandle, SourceHandle, StreamError};

use crate::array::{self, Borrowed, Filled};
use crate::errors::{self, usage};
use crate::options::Options;

/// How often signals are looked for while Python waits.
pub(crate) const SIGNALS: Duration = Duration::from_millis(50);

pub(crate) fn run<'py>(
    py: Python<'py>,
    engine: &Engine,
    streams: &[StreamInfo],
    inputs: &BTreeMap<String, Bound<'py, PyAny>>,
    options: Options,
) -> PyResult<Bound<'py, PyDict>> {
    let (sources, sinks): (Vec<_>, Vec<_>) = streams.iter().partition(|s| s.is_source);
    let inputs = borrow(&sources, inputs)?;
    let iterations = iterations(&sources, &inputs, &options)?;
    let mut outputs = Vec::with_capacity(sinks.len());
    for info in &sinks {
        let tokens = iterations.checked_mul(info.tokens_per_iteration);
        let tokens = tokens
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| {
                usage(format!(
                    "{iterations} iterations are more than an array of `{}` holds",
                    info.name
                ))
            })?;
        outputs.push(Filled::new(py, info, tokens)?);
    }
    let slices: Vec<(&str, &[u8])> = sources
        .iter()
        .zip(&inputs)
        .map(|(info, i)| (info.name.as_str(), i.bytes()))
        .collect();
    let places: Vec<(&str, &mut [u8])> = sinks
        .iter()
        .zip(&mut outputs)
        .map(|(info, output)| (info.name.as_str(), output.bytes_mut()))
        .collect();
    let filled = py.detach(|| drive(engine, slices, places, options))?;
    let arrays = PyDict::new(py);
    for ((info, output), tokens) in sinks.iter().zip(outputs).zip(filled) {
        arrays.set_item(&info.name, output.finish(py, tokens)?)?;
    }
    Ok(arrays)
}

/// The input of each source, in order.
fn borrow(
    sources: &[&StreamInfo],
    inputs: &BTreeMap<String, Bound<'_, PyAny>>,
) -> PyResult<Vec<Borrowed>> {
    let names = || {
        sources
            .iter()
            .map(|s| format!("`{}`", s.name))
            .collect::<Vec<_>>()
            .join(", ")
    };
    if let Some(unknown) = inputs
        .keys()
        .find(|name| sources.iter().all(|s| s.name != **name))
    {
        return Err(usage(format!(
            "there is no source `{unknown}`, only {}",
            names()
        )));
    }
    let borrow = |source: &&StreamInfo| match inputs.get(&source.name) {
        Some(value) => array::tokens(value, source),
        None => Err(usage(format!(
            "source `{}` has no input: give one for {}",
            source.name,
            names()
        ))),
    };
    sources.iter().map(borrow).collect()
}

/// Iterations at most: what the shortest input has tokens for.
fn iterations(sources: &[&StreamInfo], inputs: &[Borrowed], options: &Options) -> PyResult<u64> {
    let whole = sources.iter().zip(inputs).map(|(info, input)| {
        input.bytes().len() as u64 / info.token.bytes() / info.tokens_per_iteration
    });
    let whole = whole.min().map(|n| n + u64::from(options.run.pad));
    match (whole, options.run.iterations) {
        (None, None) => Err(usage(
            "a model without sources never ends: say how many `iterations`",
        )),
        (whole, asked) => Ok(whole.unwrap_or(u64::MAX).min(asked.unwrap_or(u64::MAX))),
    }
}

/// Runs to the end, each stream served by a thread; how many tokens each sink gave.
fn drive(
    engine: &Engine,
    inputs: Vec<(&str, &[u8])>,
    outputs: Vec<(&str, &mut [u8])>,
    options: Options,
) -> PyResult<Vec<usize>> {
    let Options { run, launcher } = options;
    let mut session = engine.start(run).map_err(errors::engine)?;
    let stopper = session.stopper();
    let pushes = inputs
        .into_iter()
        .map(|(name, bytes)| Ok((session.source(name)?, bytes)));
    let pushes: Vec<_> = pushes.collect::<Result<_, _>>().map_err(errors::stream)?;
    let pulls = outputs
        .into_iter()
        .map(|(name, bytes)| Ok((session.sink(name)?, bytes)));
    let pulls: Vec<_> = pulls.collect::<Result<_, _>>().map_err(errors::stream)?;
    let mut signal = Ok(());
    let (outcome, pulled) = std::thread::scope(|scope| {
        let (tell, told) = channel::<()>();
        for (source, bytes) in pushes {
            scope.spawn(move || push(source, bytes));
        }
        let pulls: Vec<_> = pulls
            .into_iter()
            .map(|(sink, bytes)| scope.spawn(move || pull(sink, bytes)))
            .collect();
        let join = scope.spawn(move || {
            let outcome = session.join();
            drop(tell);
            outcome
        });
        while told.recv_timeout(SIGNALS) == Err(RecvTimeoutError::Timeout) {
            if signal.is_ok() {
                signal = Python::attach(|py| py.check_signals());
                if signal.is_err() {
                    stopper.stop();
                }
            }
        }
        let pulled: Vec<_> = pulls.into_iter().map(joined).collect();
        (joined(join), pulled)
    });
    drop(launcher);
    signal?;
    outcome.map_err(errors::run)?;
    pulled
        .into_iter()
        .map(|tokens| tokens.map_err(errors::stream))
        .collect()
}

/// What a thread gave; its panic goes on here.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What keeps a source from taking it all is no error of the call: the run has reached its number of iterations, or its
/// end says what went wrong.
fn push(mut source: SourceHandle, bytes: &[u8]) {
    let _ = source.push_bytes(bytes);
}

fn pull(mut sink: SinkHandle, bytes: &mut [u8]) -> Result<usize, StreamError> {
    sink.pull_bytes(bytes).map(|tokens| tokens as usize)
}
