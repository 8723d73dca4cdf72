//! `--record`: what the command line says of a flight recorder, and where a run meets it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zbmd_executor::{BorderState, Engine, StateListener, StateSubscription, Supervised};
use zbmd_ir::{PresentMode, State};

use super::CliError;
use super::args::Args;
use super::files::Files;
use super::saved_state::LoadedState;
use crate::checkpoint::hash_of_file;
use crate::flight::{ReadyRecorder, Recorder, RecorderSettings, sources_of};
use crate::io::FileError;

/// Makes the folder of `--record` ready, if there is one.
pub(super) fn prepare(
    args: &Args,
    bundle: &Path,
    files: &Files,
    engine: &Engine,
    first: Option<LoadedState>,
) -> Result<Option<ReadyRecorder>, CliError> {
    let Some(folder) = &args.record else {
        return Ok(None);
    };
    let program = engine.program();
    let rate_of = |source: &str| {
        let url = files.live.url(source)?;
        let mut sources = program.graph.sources();
        let (_, actor) = sources.find(|(_, actor)| actor.name == source)?;
        let token = &actor.outputs[0].token;
        zbmd_live::token_rate(url, token, actor.sample_rate()).ok()?
    };
    let bundle_hash = hash_of_file(bundle).map_err(|source| FileError::Io {
        path: bundle.to_owned(),
        source,
    })?;
    let settings = RecorderSettings {
        folder,
        replaces: args.record_replace,
        keep: args.keep,
        bundle,
        bundle_hash,
        run_id: new_run_id(),
        sources: sources_of(program, rate_of),
        pads: args.pad,
    };
    let first = first.unwrap_or_else(|| LoadedState {
        state: State::initial(&program.graph),
        present_mode: PresentMode::default(),
    });
    let first = BorderState {
        state: first.state,
        present_mode: first.present_mode,
        emitted: vec![0; program.graph.sinks().count()],
        changes_made: 0,
    };
    Ok(Some(ReadyRecorder::new(settings, engine, first)?))
}

/// A number that no other run of this machine has.
fn new_run_id() -> u64 {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let unix_ns = since_1970.map_or(0, |time| time.as_nanos() as u64);
    let numbers = [unix_ns, u64::from(std::process::id()), run];
    xxhash_rust::xxh3::xxh3_64(bytemuck::cast_slice(&numbers))
}

/// Has states given to the recorder too, beside whoever writes checkpoints of them.
pub(super) fn give_states(recorder: &ReadyRecorder, supervised: &mut Supervised) {
    let recorded = recorder.states();
    supervised.states = Some(match supervised.states.take() {
        None => recorded,
        Some(other) => both(recorded, other),
    });
}

/// One subscription for two: the second one wants a state each time its own distance has passed.
fn both(first: StateSubscription, second: StateSubscription) -> StateSubscription {
    let next_ns = Arc::new(AtomicU64::new(zbmd_live::now_ns() + second.every_ns));
    let due_ns = Arc::clone(&next_ns);
    let is_due = move || zbmd_live::now_ns() >= due_ns.load(Ordering::Relaxed);
    let is_first_wanted = first.is_wanted;
    let is_second_due = is_due.clone();
    let listener: StateListener = Arc::new(move |border: BorderState| {
        if is_due() {
            let due_ns = zbmd_live::now_ns().saturating_add(second.every_ns);
            next_ns.store(due_ns, Ordering::Relaxed);
            (second.listener)(border.clone());
        }
        (first.listener)(border);
    });
    StateSubscription {
        every_ns: first.every_ns.min(second.every_ns),
        is_wanted: Arc::new(move || is_second_due() || is_first_wanted()),
        listener,
    }
}

/// Writes what is left of a recording; what the user is told of it.
pub(super) fn finish(
    args: &Args,
    recorder: Option<Recorder>,
    end_iterations: Option<u64>,
) -> Vec<String> {
    let (Some(recorder), Some(folder)) = (recorder, &args.record) else {
        return Vec::new();
    };
    let (report, sources) = recorder.finish(end_iterations);
    report.notes(folder, &sources)
}
