//! `zbmd-run replay`: a recorded run again, from a border that the recording has a state of or that is reached from one.

mod against;
mod carry;
pub(crate) mod export;

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Parser;
use zbmd_backends::op::Registry;
use zbmd_executor::{Engine, RunOptions, ScheduledMode};
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{Graph, Program, State};

use self::against::{Against, Side};
use self::export::{Export, export};
use super::args::{Args, ReportFormat, Where, binding};
use super::bundle_run::{open_modes, run};
use super::files::Opened;
use super::{CliError, exit, say};
use crate::checkpoint::hash_of_file;
use crate::flight::{Recording, RecordingError, ReplayStart, Stretch, bundle_of};
use crate::io::FileError;
use crate::io::pump;

/// What to replay, and how.
#[derive(Debug, clap::Args)]
pub(super) struct Replay {
    /// The folder that --record was given.
    #[arg(value_name = "DIR")]
    recording: PathBuf,
    /// Run this bundle, of the same graph: compiled for other devices, say. Without it, the copy in the recording.
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// Run this bundle too, of a model that was changed, and say where the two differ first: which token of each sink, and
    /// which actor, port and token inside. Exit code 1 if they do.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["outputs", "report", "report_file", "save_state", "trace",
          "supervise", "events", "inject", "isolation"])]
    against: Option<PathBuf>,
    /// Write what the recording holds to files of other programs, and run nothing: `sigmf:PREFIX` (a SigMF recording of
    /// each source, with its gaps) or `mcap:FILE` (an MCAP file, with changes of live parameters too). May be given for
    /// both.
    #[arg(long = "export", value_name = "FORMAT:FILE", value_parser = export, conflicts_with_all = ["against", "from",
          "iterations", "outputs", "report", "report_file", "save_state", "trace", "supervise", "events", "inject",
          "isolation"])]
    exports: Vec<Export>,
    /// Begin at this iteration of the run. Without it, at the oldest state that is kept.
    #[arg(long, value_name = "ITERATION")]
    from: Option<u64>,
    /// Write a sink to a file, or to a URL; `-` is standard output. A sink without one is dropped.
    #[arg(short, long = "output", value_name = "NAME=FILE", value_parser = binding)]
    outputs: Vec<(String, PathBuf)>,
    /// Stop after so many iterations of the graph.
    #[arg(short = 'n', long)]
    iterations: Option<u64>,
    /// Report what was measured, on standard error.
    #[arg(long, value_name = "FORMAT")]
    report: Option<ReportFormat>,
    /// Write the report to a file instead; JSON unless --report says otherwise.
    #[arg(long, value_name = "FILE")]
    report_file: Option<PathBuf>,
    /// Save the state at the end.
    #[arg(long, value_name = "FILE")]
    save_state: Option<PathBuf>,
    /// Record what every worker really does to a file, for `zbmdc inspect BUNDLE --measured FILE`.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Where workers run.
    #[arg(long, value_name = "WHERE", default_value = "gpus")]
    isolation: Where,
    /// Go on when workers are lost.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    supervise: Option<Option<PathBuf>>,
    /// Write every decision of the supervisor to a file.
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Bring faults about: a seed, or a file in RON.
    #[arg(long, value_name = "SEED|FILE")]
    inject: Option<String>,
    /// Say nothing but errors.
    #[arg(short, long)]
    quiet: bool,
}

/// What a run is given in the place of its sources.
pub(super) struct Replayed {
    /// Where it begins, with all changes of live parameters and modes that come later.
    pub(super) start: ReplayStart,
    /// The tokens from there on.
    pub(super) sources: Opened<Box<dyn Read + Send>>,
}

/// Runs what a recording holds.
pub(super) fn replay(replay: &Replay, registry: &Registry) -> Result<u8, CliError> {
    let recording = Recording::open(&replay.recording)?;
    for note in recording.notes.iter().filter(|_| !replay.quiet) {
        say(format_args!("zbmd-run: note: {note}"));
    }
    let bundle_path = match &replay.bundle {
        Some(path) => path.clone(),
        None => checked_bundle(&replay.recording, &recording)?,
    };
    let mut args = replay.run_args(&bundle_path)?;
    let modes = open_modes(&args, &bundle_path)?;
    if let Some(difference) = recording.head.difference(&modes) {
        return Err(CliError::Refused {
            path: bundle_path,
            text: difference,
        });
    }

    if !replay.exports.is_empty() {
        return replay.export(&recording, &modes);
    }

    let stretch = recording.stretch(replay.from).map_err(|why| {
        let path = replay.recording.clone();
        CliError::Recording(RecordingError::Unusable { path, why })
    })?;
    let mut start = recording.start(stretch, &modes)?;
    replay.say_what(&recording, stretch);
    replay.drop_sinks(&mut args, &modes.programs()[0]);
    let mut engine = None;
    let skips = replay.from.filter(|from| *from > start.state.iterations);
    if replay.against.is_some() || skips.is_some() {
        engine = Some(Engine::with_modes(modes.clone(), registry)?);
    }
    if let (Some(engine), Some(from)) = (&engine, skips) {
        start = start_at(engine, &recording, start, from)?;
    }

    let iterations = stretch.end - start.state.iterations;
    let iterations = args.iterations.unwrap_or(iterations).min(iterations);
    if let (Some(other), Some(engine)) = (&replay.against, engine) {
        let recorded = Side {
            engine,
            path: bundle_path,
            start,
            iterations,
        };
        let other_engine = Engine::with_modes(open_modes(&args, other)?, registry)?;
        let against = Against {
            recording: &recording,
            recorded,
            other: other_engine,
            other_path: other,
            registry,
            is_quiet: replay.quiet,
        };
        return against.run();
    }
    args.iterations = Some(iterations);
    args.pad = stretch.is_whole && recording.end.is_some_and(|end| end.pads);
    let mode = start.present_mode.mode as usize;
    let graph = &modes.programs()[mode].graph;
    let sources = sources_from(&recording, &replay.recording, graph, &start.state)?;
    let replayed = Replayed { start, sources };
    run(&args, &bundle_path, registry, Some(replayed))
}

impl Replay {
    /// The options of a run, as far as a replay has them.
    fn run_args(&self, bundle: &Path) -> Result<Args, CliError> {
        let words = [Path::new("zbmd-run"), Path::new("--"), bundle];
        let parsed = Args::try_parse_from(words);
        let defaults = parsed.map_err(|error| CliError::Usage(error.to_string()))?;
        Ok(Args {
            outputs: self.outputs.clone(),
            iterations: self.iterations,
            report: self.report,
            report_file: self.report_file.clone(),
            save_state: self.save_state.clone(),
            trace: self.trace.clone(),
            isolation: self.isolation,
            supervise: self.supervise.clone(),
            events: self.events.clone(),
            inject: self.inject.clone(),
            quiet: self.quiet,
            ..defaults
        })
    }

    /// Writes what the recording holds to the files of `--export`.
    fn export(&self, recording: &Recording, modes: &VerifiedModes) -> Result<u8, CliError> {
        for export in &self.exports {
            for line in export.write(recording, &self.recording, modes)? {
                if !self.quiet {
                    say(format_args!("zbmd-run: {line}"));
                }
            }
        }
        Ok(exit::OK)
    }

    /// Gives sinks without a file one that keeps nothing.
    fn drop_sinks(&self, args: &mut Args, program: &Program) {
        for (_, sink) in program.graph.sinks() {
            if !self.outputs.iter().any(|(name, _)| *name == sink.name) {
                args.outputs.push((sink.name.clone(), "/dev/null".into()));
            }
        }
    }

    fn say_what(&self, recording: &Recording, stretch: Stretch) {
        if self.quiet {
            return;
        }
        say(format_args!(
            "zbmd-run: {} has {} and {} changes of live parameters{}; replaying iterations {} to {}",
            self.recording.display(),
            recording.ranges_text(),
            recording.changes().count(),
            match recording.head.modes.len() {
                1 => String::new(),
                _ => format!(", {} of the mode", recording.mode_changes().count()),
            },
            self.from.unwrap_or(stretch.begin),
            stretch.end
        ));
    }
}

/// The copy of the bundle in a recording, if it is the one that was run.
fn checked_bundle(folder: &Path, recording: &Recording) -> Result<PathBuf, CliError> {
    let path = bundle_of(folder);
    let found = hash_of_file(&path).map_err(|source| FileError::Io {
        path: path.clone(),
        source,
    })?;
    let expected = recording.head.bundle_hash;
    if found != expected {
        let text = format!("has hash {found:016x}, the recording is of bundle {expected:016x}");
        return Err(CliError::Refused { path, text });
    }
    Ok(path)
}

/// The recorded tokens of all sources of a graph, in its order, from those on that a state has not consumed.
fn sources_from(
    recording: &Recording,
    folder: &Path,
    graph: &Graph,
    state: &State,
) -> Result<Opened<Box<dyn Read + Send>>, CliError> {
    let mut opened = Opened::new();
    for (id, consumed) in &state.consumed {
        let name = &graph.actors[*id].name;
        let mut known = recording.head.sources.iter();
        let Some(index) = known.position(|source| source.name == *name) else {
            return Err(CliError::Refused {
                path: folder.to_owned(),
                text: format!("source `{name}` is not in the recording"),
            });
        };
        let reader: Box<dyn Read + Send> = Box::new(recording.tokens(index, *consumed));
        opened.push((name.clone(), folder.to_owned(), reader));
    }
    Ok(opened)
}

/// What a replay begins with at an iteration, by running there from an earlier one.
fn start_at(
    engine: &Engine,
    recording: &Recording,
    start: ReplayStart,
    from: u64,
) -> Result<ReplayStart, CliError> {
    let mode = start.present_mode.mode as usize;
    let graph = &engine.verified_modes().programs()[mode].graph;
    let sources = sources_from(recording, Path::new("recording"), graph, &start.state)?;

    // A change at this very iteration belongs to the run: where tokens decide about the mode, it makes it by itself.
    let (before, after): (Vec<ScheduledMode>, Vec<ScheduledMode>) = start
        .scheduled_modes
        .into_iter()
        .partition(|change| change.iteration <= from);
    let mut session = engine.start(RunOptions {
        iterations: Some(from - start.state.iterations),
        state: Some(start.state),
        present_mode: start.present_mode,
        scheduled_modes: before,
        ..RunOptions::default()
    })?;
    let mut pumps = Vec::new();
    for (name, path, reader) in sources {
        let Ok(handle) = session.source(&name) else {
            continue;
        };
        pumps.push(std::thread::spawn(move || {
            pump::fill(&name, &path, reader, handle)
        }));
    }

    let reached = session.join()?;
    for pump in pumps {
        if let Ok(pump::PumpEnd::SourceFailed { error, .. }) = pump.join() {
            return Err(error.into());
        }
    }

    let iterations = reached.state.iterations;
    match iterations == from {
        true => Ok(ReplayStart {
            state: reached.state,
            present_mode: reached.present_mode,
            scheduled_modes: after,
        }),
        false => Err(CliError::Usage(format!(
            "--from {from}: this bundle has no plan for single iterations, and gets to {iterations}: say --from {iterations}"
        ))),
    }
}
