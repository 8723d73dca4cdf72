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
use crate::errors::{self, usage_error};
use crate::options::Options;

/// How often signals are looked for while Python waits.
pub(crate) const SIGNALS: Duration = Duration::from_millis(50);

pub(crate) fn run_arrays<'py>(
    py: Python<'py>,
    engine: &Engine,
    streams: &[StreamInfo],
    inputs: &BTreeMap<String, Bound<'py, PyAny>>,
    options: Options,
) -> PyResult<Bound<'py, PyDict>> {
    let (sources, sinks): (Vec<_>, Vec<_>) = streams.iter().partition(|info| info.is_source);
    let borrowed_inputs = borrow_inputs(&sources, inputs)?;
    let max_iterations = iteration_limit(&sources, &borrowed_inputs, &options)?;

    let mut outputs = Vec::with_capacity(sinks.len());
    for info in &sinks {
        let token_count = max_iterations.checked_mul(info.tokens_per_iteration);
        let array_tokens = token_count
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| {
                usage_error(format!(
                    "{max_iterations} iterations are more than an array of `{}` holds",
                    info.name
                ))
            })?;
        outputs.push(Filled::new(py, info, array_tokens)?);
    }

    let input_bytes: Vec<(&str, &[u8])> = sources
        .iter()
        .zip(&borrowed_inputs)
        .map(|(info, input)| (info.name.as_str(), input.bytes()))
        .collect();
    let output_bytes: Vec<(&str, &mut [u8])> = sinks
        .iter()
        .zip(&mut outputs)
        .map(|(info, output)| (info.name.as_str(), output.bytes_mut()))
        .collect();

    let filled_tokens = py.detach(|| serve_streams(engine, input_bytes, output_bytes, options))?;
    let arrays = PyDict::new(py);
    for ((info, output), tokens) in sinks.iter().zip(outputs).zip(filled_tokens) {
        arrays.set_item(&info.name, output.into_array(py, tokens)?)?;
    }
    Ok(arrays)
}

fn source_names(sources: &[&StreamInfo]) -> String {
    let quoted_names: Vec<String> = sources
        .iter()
        .map(|source| format!("`{}`", source.name))
        .collect();
    quoted_names.join(", ")
}

/// The input of each source, in order.
pub(crate) fn borrow_inputs(
    sources: &[&StreamInfo],
    inputs: &BTreeMap<String, Bound<'_, PyAny>>,
) -> PyResult<Vec<Borrowed>> {
    if let Some(unknown) = inputs
        .keys()
        .find(|name| sources.iter().all(|source| source.name != **name))
    {
        return Err(usage_error(format!(
            "there is no source `{unknown}`, only {}",
            source_names(sources)
        )));
    }
    let borrow_input = |source: &&StreamInfo| match inputs.get(&source.name) {
        Some(value) => array::borrow_tokens(value, source),
        None => Err(usage_error(format!(
            "source `{}` has no input: give one for {}",
            source.name,
            source_names(sources)
        ))),
    };
    sources.iter().map(borrow_input).collect()
}

/// Iterations at most: what the shortest input has tokens for.
fn iteration_limit(
    sources: &[&StreamInfo],
    inputs: &[Borrowed],
    options: &Options,
) -> PyResult<u64> {
    let whole_iterations = sources.iter().zip(inputs).map(|(info, input)| {
        input.bytes().len() as u64 / info.token.bytes() / info.tokens_per_iteration
    });
    // Padding fills up one more iteration.
    let max_iterations = whole_iterations
        .min()
        .map(|count| count + u64::from(options.run.pad));
    match (max_iterations, options.run.iterations) {
        (None, None) => Err(usage_error(
            "a model without sources never ends: say how many `iterations`",
        )),
        (available, asked) => Ok(available.unwrap_or(u64::MAX).min(asked.unwrap_or(u64::MAX))),
    }
}

/// Runs to the end, each stream served by a thread; how many tokens each sink gave.
fn serve_streams(
    engine: &Engine,
    inputs: Vec<(&str, &[u8])>,
    outputs: Vec<(&str, &mut [u8])>,
    options: Options,
) -> PyResult<Vec<usize>> {
    let Options { run, launcher } = options;
    let mut session = engine.start(run).map_err(errors::engine_error)?;
    let stopper = session.stopper();
    let source_handles = inputs
        .into_iter()
        .map(|(name, bytes)| Ok((session.source(name)?, bytes)));
    let pushes: Vec<_> = source_handles
        .collect::<Result<_, _>>()
        .map_err(errors::stream_error)?;

    let sink_handles = outputs
        .into_iter()
        .map(|(name, bytes)| Ok((session.sink(name)?, bytes)));
    let pulls: Vec<_> = sink_handles
        .collect::<Result<_, _>>()
        .map_err(errors::stream_error)?;

    // Without the interpreter's lock: other threads of the program go on meanwhile.
    let mut signal_result = Ok(());
    let (run_result, pulled_tokens) = std::thread::scope(|scope| {
        let (end_sender, end_receiver) = channel::<()>();

        for (source, bytes) in pushes {
            scope.spawn(move || push_all(source, bytes));
        }
        let pull_threads: Vec<_> = pulls
            .into_iter()
            .map(|(sink, bytes)| scope.spawn(move || pull_all(sink, bytes)))
            .collect();

        let run_thread = scope.spawn(move || {
            let run_result = session.join();
            drop(end_sender);
            run_result
        });

        // Only this thread may ask the interpreter whether Ctrl-C was pressed.
        while end_receiver.recv_timeout(SIGNALS) == Err(RecvTimeoutError::Timeout) {
            if signal_result.is_ok() {
                signal_result = Python::attach(|py| py.check_signals());
                if signal_result.is_err() {
                    stopper.stop();
                }
            }
        }

        // After the run's end all queues are closed, so that no thread waits.
        let pulled_tokens: Vec<_> = pull_threads.into_iter().map(join_thread).collect();
        (join_thread(run_thread), pulled_tokens)
    });
    drop(launcher);
    signal_result?;
    run_result.map_err(errors::run_error)?;
    pulled_tokens
        .into_iter()
        .map(|tokens| tokens.map_err(errors::stream_error))
        .collect()
}

/// What a thread gave; its panic goes on here.
fn join_thread<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What keeps a source from taking it all is no error of the call: the run has reached its number of iterations, or its
/// end says what went wrong.
fn push_all(mut source: SourceHandle, bytes: &[u8]) {
    let _ = source.push_bytes(bytes);
}

fn pull_all(mut sink: SinkHandle, bytes: &mut [u8]) -> Result<usize, StreamError> {
    sink.pull_bytes(bytes).map(|tokens| tokens as usize)
}
