//! The command `zbmd-run` as a function, so that a program with actors of its own is a runner in a few lines:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     let mut registry = zbmd_backends::standard_registry();
//!     // registry.register("my_actor", |params| MyActor::new(params));
//!     zbmd_run::main_with(registry)
//! }
//! ```
//!
//! Standard output carries data only; everything said goes to standard error. Exit codes are [`exit`]'s.

mod args;
#[doc(hidden)]
pub mod checkpoint;
mod checkpoints;
mod console;
#[cfg(target_os = "linux")]
mod control;
mod deadlines;
mod ending;
mod file_roles;
mod files;
#[doc(hidden)]
pub mod flight;
mod io;
mod live;
mod live_report;
mod metrics;
mod record;
mod recordings;
mod replay;
mod saved_state;
mod startup;
mod supervision;
#[doc(hidden)]
pub mod testing;
mod top;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clap::Parser;
use zbmd_backends::op::Registry;
use zbmd_ir::bundle::{self, OpenError};
use zbmd_ir::text::{is_hidden, printable_lines};
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{PresentMode, Program, State, state};

pub use zbmd_executor::exit;

use self::args::duration;
use self::args::{Args, Other, ReportFormat, Where};
use self::checkpoints::{Border, CheckpointFolder, Keeper};
use self::console::CONSOLE;
#[cfg(target_os = "linux")]
use self::control::{Commanded, ControlServer};
use self::deadlines::Deadlines;
use self::ending::{Ending, WrittenFiles};
use self::files::{Files, Opened, start_pumps};
use self::live::LiveStreams;
use self::live_report::{EdgeReports, FullReport};
use self::metrics::{MetricsError, MetricsListener, MetricsServer};
use self::replay::{Replayed, replay};
use self::saved_state::LoadedState;
use self::top::top;
use self::watch::{EdgeMeters, Watch, Watched};
use crate::checkpoint::{Checkpoint, FolderError, Origin};
use crate::flight::{ReadyRecorder, RecordingError, ReplayStart};
use crate::io::pump::SharedFile;
use crate::io::{FileError, FileKind, is_standard};
use zbmd_executor::Engine;
use zbmd_executor::Isolation;
use zbmd_executor::RunOptions;
use zbmd_executor::Session;
use zbmd_executor::StateSubscription;
use zbmd_executor::Stopper;
use zbmd_executor::Supervised;
use zbmd_executor::embed;
use zbmd_executor::inject::{Injector, LateWake};
use zbmd_executor::report::Outcome;
use zbmd_executor::report::TraceReport;
use zbmd_executor::{EngineError, RunError};

/// Why the command ends without having run to its end.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {source}", path.display())]
    Bundle {
        path: PathBuf,
        source: Box<OpenError>,
    },
    #[error("{}: {source}", path.display())]
    State {
        path: PathBuf,
        source: state::StateError,
    },
    #[error("{}: {text}", path.display())]
    Declaration { path: PathBuf, text: String },
    #[error("{}: {text}", path.display())]
    Refused { path: PathBuf, text: String },
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Run(#[from] RunError),
}

impl CliError {
    fn code(&self) -> u8 {
        match self {
            CliError::Usage(_) | CliError::Metrics(MetricsError::Remote(_)) => exit::USAGE,
            CliError::File(_)
            | CliError::Metrics(MetricsError::Listen { .. })
            | CliError::Declaration { .. }
            | CliError::Folder(FolderError::Io { .. })
            | CliError::Recording(RecordingError::Io { .. } | RecordingError::Missing { .. }) => {
                exit::FILE
            }
            CliError::State { .. }
            | CliError::Refused { .. }
            | CliError::Folder(_)
            | CliError::Recording(_) => exit::REFUSED,
            CliError::Bundle { source, .. } => embed::open_error_class(source),
            CliError::Engine(error) => error.class(),
            CliError::Run(error) => error.class(),
        }
    }
}

/// Runs the command line with the ops of `registry`; the process's exit code.
pub fn main_with(registry: Registry) -> ExitCode {
    #[cfg(target_os = "linux")]
    zbmd_executor::serve_if_worker(&registry);
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help goes to standard output, mistakes to standard error; whether it is closed does not matter.
            if std::env::args_os().all(|argument| !argument.to_string_lossy().contains(is_hidden)) {
                drop(error.print());
            } else {
                say(format_args!("{}", error.render()));
                CONSOLE.flush(|quiet| quiet < CONSOLE_LIMIT);
            }
            return ExitCode::from(if error.use_stderr() {
                exit::USAGE
            } else {
                exit::OK
            });
        }
    };

    let command_result =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| command(&args, &registry)));
    let exit_code = match command_result {
        Ok(Ok(exit_code)) => exit_code,
        Ok(Err(error)) => {
            say(format_args!("zbmd-run: error: {error}"));
            error.code()
        }
        Err(_) => {
            say(format_args!(
                "zbmd-run: this is a bug of zbmd; please report it with the lines above"
            ));
            exit::BUG
        }
    };

    flush_console(&args);
    ExitCode::from(exit_code)
}

/// A line on standard error.
fn say(line: std::fmt::Arguments<'_>) {
    let line_text = line.to_string();
    CONSOLE.say(printable_lines(&line_text).to_string());
}

/// What was said is waited for no longer when nobody has read it for so long; a report that was asked for is waited for
/// until an interrupt comes.
const CONSOLE_LIMIT: Duration = Duration::from_secs(1);
/// The same after an interrupt.
const CONSOLE_LIMIT_INTERRUPTED: Duration = Duration::from_millis(200);

/// Waits until what was said is written.
fn flush_console(args: &Args) {
    let reports_there = args.report.is_some() && args.report_file.is_none();
    let is_patient = reports_there && !args.events.as_deref().is_some_and(is_standard);
    CONSOLE.flush(|quiet| match INTERRUPTED.load(Ordering::Relaxed) {
        true => quiet < CONSOLE_LIMIT_INTERRUPTED,
        false => is_patient || quiet < CONSOLE_LIMIT,
    });
}

/// A signal has come that ends the run.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn command(args: &Args, registry: &Registry) -> Result<u8, CliError> {
    match (&args.command, &args.bundle) {
        (Some(Other::Top(args)), _) => Ok(top(args)),
        #[cfg(target_os = "linux")]
        (Some(Other::Set(args)), _) => Ok(control::set(args)),
        #[cfg(target_os = "linux")]
        (Some(Other::Mode(args)), _) => Ok(control::mode(args)),
        (Some(Other::Replay(args)), _) => replay(args, registry),
        (None, Some(bundle_path)) => run(args, bundle_path, registry, None),
        (None, None) => Err(CliError::Usage("there is no bundle to run".to_owned())),
    }
}

/// Runs a bundle: on the streams of the command line, or with what a recording has for its sources.
fn run(
    args: &Args,
    bundle_path: &Path,
    registry: &Registry,
    replayed: Option<Replayed>,
) -> Result<u8, CliError> {
    startup::ignore_file_size_signal();
    let is_replay = replayed.is_some();

    // Everything is read, and every file compared with the others, before one is opened to be written.
    let modes = open_modes(args, bundle_path)?;
    // Streams are the same in all modes.
    let program = Arc::clone(&modes.programs()[0]);

    let files = Files::of(args, &program, replayed.as_ref())?;
    if args.trace.as_deref().is_some_and(is_standard) {
        let refusal_text = "a trace is not text: give --trace a file of its own".to_owned();
        return Err(CliError::Usage(refusal_text));
    }
    file_roles::check(args, &files)?;
    let metrics = args.metrics.map(MetricsListener::bind).transpose()?;
    let mut supervised = supervision::read(args, &program_names(&program))?;
    let loaded = args
        .load_state
        .as_deref()
        .map(|file| saved_state::load(args, file, bundle_path, &modes))
        .transpose()?;

    let engine = Engine::with_modes(modes, registry)?;
    let checkpoint_folder = checkpoints::open(args, bundle_path, &files, &engine, loaded.as_ref())?;
    let resumed = checkpoint_folder
        .as_ref()
        .and_then(|folder| folder.resumed.clone());
    let (start, recorded_sources) = match replayed {
        Some(Replayed { start, sources }) => (Some(start), Some(sources)),
        None => (loaded.map(ReplayStart::from), None),
    };
    let origin = run_origin(&engine, resumed.as_ref(), start.as_ref());

    let sources = match recorded_sources {
        Some(sources) => sources,
        None => files.open_sources(engine.program(), &origin, resumed.as_ref())?,
    };
    let mut live = LiveStreams::default();
    live.open_sources(&files.live, engine.program(), late_wakes(&supervised))?;
    live.record_gaps(
        files
            .recordings
            .recorded_sources(engine.program(), &files.live),
    );
    let deadlines = Deadlines::of(args, &engine, &live)?;
    let dropping_sinks = deadlines.dropping_sinks();
    files.recordings.check_dropping_sinks(&dropping_sinks)?;
    let sinks = files.prepare_sinks(&engine, bundle_path, resumed.as_ref(), &mut live)?;
    let mut event_lines = None;
    if let Some(supervised) = &mut supervised {
        let events = supervision::open_events(args)?;
        supervised.listener = Some(events.listener);
        event_lines = events.lines;
    }
    let keeper = keep_checkpoints(
        args,
        checkpoint_folder,
        &engine,
        &sinks,
        &origin,
        &mut supervised,
    )?;
    let held_tokens = checkpoints::held_tokens(resumed.as_ref(), sinks.len());
    let resumed_start = resumed.map(|checkpoint| {
        ReplayStart::from(LoadedState {
            state: checkpoint.state,
            present_mode: checkpoint.present_mode,
        })
    });
    let start = resumed_start.or(start);
    let first = start.as_ref().map(|start| LoadedState {
        state: start.state.clone(),
        present_mode: start.present_mode.clone(),
    });
    let recorder = record::prepare(args, bundle_path, &files, &engine, first)?;
    if let (Some(recorder), Some(supervised)) = (&recorder, &mut supervised) {
        record::give_states(recorder, supervised);
    }

    if args.realtime && !args.quiet {
        note_throttling();
    }
    let mut session = engine.start(RunOptions {
        inputs: recorder.as_ref().map(ReadyRecorder::listener),
        ..run_options(args, supervised, start)
    })?;
    stop_on_signal(session.stopper());
    let (pump_ends, ended_pumps) = mpsc::channel();
    live.start(
        &mut session,
        &pump_ends,
        event_lines.as_ref(),
        recorder.as_ref(),
    )?;
    let recorder = recorder
        .map(|recorder| recorder.start(session.parameters()))
        .transpose()
        .map_err(EngineError::Thread)?;
    let recordings = files
        .recordings
        .start(engine.program(), &files.live, &live, &sinks)?;
    deadlines.write_events(event_lines.as_ref(), &live.running());
    deadlines.follow(&session.modes());
    let open_sinks = start_pumps(&mut session, sources, &sinks, &deadlines, &pump_ends)?;
    let edge_meters = Arc::new(EdgeMeters {
        releases: live.releases(),
        deadlines: deadlines.clone(),
        parameters: session.parameters(),
        modes: session.modes(),
    });
    let metrics = metrics
        .map(|listener| start_metrics(args, listener, &session, &edge_meters))
        .transpose()
        .map_err(EngineError::Thread)?;
    let watch = Watch::start(
        args,
        session.stopper(),
        ended_pumps,
        open_sinks,
        edge_meters,
    );
    // After the run's page, whose folder has the socket. What enters a replay is recorded already.
    #[cfg(target_os = "linux")]
    let control_server = (!is_replay).then(|| start_control(&session)).flatten();
    let run_outcome = session.join();
    #[cfg(target_os = "linux")]
    drop(control_server);
    drop(pump_ends);
    let mut watched = watch.finish();
    drop(metrics);
    let edges = EdgeReports {
        deadlines: deadlines.finish(),
        live: live.finish(),
    };

    if matches!(run_outcome, Ok(_) | Err(RunError::GaveUp { .. })) {
        begin_outputs(&sinks)?;
    }
    recordings.finish()?;

    let written = WrittenFiles {
        sinks: &sinks,
        held_tokens: &held_tokens,
        origin: &origin,
    };
    let ending = Ending::of(run_outcome, &engine, &written, &dropping_sinks);
    let end_iterations = ending.left.as_ref().map(|left| left.state.iterations);
    watched
        .notes
        .extend(record::finish(args, recorder, end_iterations));
    if let Some(keeper) = keeper {
        // A padded end is not the border of an iteration: a checkpoint there would count tokens that no file has.
        let may_go_on = watched.failure.is_none() && !args.pad;
        let final_outcome = ending.left.as_ref().filter(|_| may_go_on);
        keeper.finish(final_outcome.map(Border::from));
    }
    end(args, bundle_path, &engine, ending, watched, &edges)
}

/// Answers whoever asks how the run is.
fn start_metrics(
    args: &Args,
    listener: MetricsListener,
    session: &Session,
    edge_meters: &Arc<EdgeMeters>,
) -> std::io::Result<MetricsServer> {
    if !args.quiet {
        let address = listener.address();
        say(format_args!(
            "zbmd-run: metrics at http://{address}/metrics"
        ));
    }
    let (stopper, edge_meters) = (session.stopper(), Arc::clone(edge_meters));
    listener.start(args.realtime, move || {
        edge_meters.add_to(stopper.progress())
    })
}

/// Takes commands to the run, if it has anything to be set.
#[cfg(target_os = "linux")]
fn start_control(session: &Session) -> Option<ControlServer> {
    let commanded = Commanded {
        parameters: session.parameters(),
        modes: session.modes(),
    };
    if commanded.parameters.values().is_empty() && commanded.modes.names().len() < 2 {
        return None;
    }
    let started = ControlServer::start(commanded);
    let note = |error| {
        say(format_args!(
            "zbmd-run: note: live parameters and modes cannot be changed from outside: {error}"
        ));
    };
    started.map_err(note).ok()
}

/// The wake-ups of sources that are to be late.
fn late_wakes(supervised: &Option<Supervised>) -> &[LateWake] {
    let injector = supervised.as_ref().and_then(|s| s.inject.as_ref());
    injector.map_or(&[], Injector::late_wakes)
}

fn open_modes(args: &Args, bundle_path: &Path) -> Result<VerifiedModes, CliError> {
    let max_structure_bytes = u64::from(args.max_structure) << 20;
    bundle::open_modes_within(bundle_path, max_structure_bytes).map_err(|error| CliError::Bundle {
        path: bundle_path.to_owned(),
        source: Box::new(error),
    })
}

/// Where the run's files began: a checkpoint remembers it, a state from another run is a beginning of its own.
fn run_origin(
    engine: &Engine,
    resumed: Option<&Checkpoint>,
    start: Option<&ReplayStart>,
) -> Origin {
    match (resumed, start) {
        (Some(checkpoint), _) => checkpoint.origin.clone(),
        (None, Some(start)) => Origin::of(&start.state, &start.present_mode),
        (None, None) => {
            let initial_state = State::initial(&engine.program().graph);
            Origin::of(&initial_state, &PresentMode::default())
        }
    }
}

/// Files are changed by their first tokens; one that was given none is emptied now.
fn begin_outputs(sinks: &Opened<SharedFile>) -> Result<(), FileError> {
    for (_, _, sink) in sinks {
        match sink.kind() {
            FileKind::Regular => sink.begin()?,
            // It may have no reader, or one that keeps its writer waiting with the file in hand.
            FileKind::Device | FileKind::Stream => sink.release_reader(),
        }
    }
    Ok(())
}

/// Starts to write checkpoints, if there is a folder for them.
fn keep_checkpoints(
    args: &Args,
    folder: Option<CheckpointFolder>,
    engine: &Engine,
    sinks: &Opened<SharedFile>,
    origin: &Origin,
    supervised: &mut Option<Supervised>,
) -> Result<Option<Keeper>, CliError> {
    let (Some(folder), Some(supervised)) = (folder, supervised) else {
        return Ok(None);
    };
    let keep_result = folder.keep(engine, sinks, origin.clone(), supervised);
    let (keeper, listener) = keep_result.map_err(|source| FileError::Io {
        path: args.checkpoint.clone().unwrap_or_default(),
        source,
    })?;

    let every_ns = args.checkpoint_every.as_nanos();
    supervised.states = Some(StateSubscription {
        every_ns: every_ns.try_into().unwrap_or(u64::MAX),
        is_wanted: Arc::new(|| true),
        listener,
    });
    Ok(Some(keeper))
}

/// Says how much of the time the system leaves to real-time threads: those that compute without pause are held for the
/// rest, which looks like any other lateness.
fn note_throttling() {
    let read = |name: &str| -> Option<i64> {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse().ok()
    };
    if let (Some(runtime_us @ 0..), Some(period_us)) =
        (read("sched_rt_runtime_us"), read("sched_rt_period_us"))
    {
        say(format_args!(
            "zbmd-run: note: the system gives real-time threads {runtime_us} of every {period_us} us (sched_rt_runtime_us)"
        ));
    }
}

/// What the command line says of how to run, from where it begins.
fn run_options(
    args: &Args,
    supervised: Option<Supervised>,
    start: Option<ReplayStart>,
) -> RunOptions {
    let options = RunOptions {
        supervised,
        iterations: args.iterations,
        pad: args.pad,
        isolation: match args.isolation {
            Where::Gpus if !cfg!(target_os = "linux") => Isolation::Threads,
            Where::Gpus => Isolation::GpuProcesses { program: None },
            Where::Threads => Isolation::Threads,
            Where::Processes => Isolation::Processes { program: None },
        },
        standby: args.standby,
        realtime: args.realtime,
        checksums: args.checksums,
        trace: args.trace.clone(),
        profile: args.profile,
        ..RunOptions::default()
    };
    match start {
        None => options,
        Some(start) => RunOptions {
            state: Some(start.state),
            present_mode: start.present_mode,
            scheduled_modes: start.scheduled_modes,
            ..options
        },
    }
}

/// What is left to do when nothing runs any more: the state, the report, and the code that says how it ended.
fn end(
    args: &Args,
    bundle: &Path,
    engine: &Engine,
    ending: Ending,
    watched: Watched,
    edges: &EdgeReports,
) -> Result<u8, CliError> {
    let Some(Outcome {
        mut report,
        state,
        present_mode,
        emitted: _,
    }) = ending.left
    else {
        return Err(ending.error.map_or_else(
            || CliError::Usage("the run left nothing".to_owned()),
            CliError::Run,
        ));
    };
    match (watched.failure, &ending.error) {
        (Some(failure), None) => return Err(failure.into()),
        (Some(failure), Some(_)) => report.notes.push(failure.to_string()),
        (None, _) => {}
    }

    report.cut_off(&watched.cut_off);
    if let (Some(path), Some((stream, _))) = (&args.save_state, watched.cut_off.first()) {
        print_report(args, &report, edges)?;
        let refusal_text = format!(
            "the state is not saved: it is that after tokens of `{stream}` that its reader did not take"
        );
        return Err(FileError::Io {
            path: path.clone(),
            source: std::io::Error::other(refusal_text),
        }
        .into());
    }

    // The state is saved only where all tokens before it have reached their readers.
    if let Some(path) = &args.save_state {
        let left = LoadedState {
            state,
            present_mode,
        };
        saved_state::save(path, bundle, &left, engine.verified_modes())?;
    }

    report.notes.extend(watched.notes);
    report.notes.extend(ending.notes);
    print_report(args, &report, edges)?;

    if let Some(error) = ending.error {
        return Err(error.into());
    }

    if let Some(TraceReport {
        file,
        error: Some(error),
        ..
    }) = report.trace
    {
        return Err(FileError::Io {
            path: file.into(),
            source: std::io::Error::other(error),
        }
        .into());
    }
    Ok(if INTERRUPTED.load(Ordering::Relaxed) {
        exit::INTERRUPTED
    } else {
        exit::OK
    })
}

/// Names of the machine's devices, in order.
fn program_names(program: &Program) -> Vec<&str> {
    program
        .machine
        .devices
        .iter()
        .map(|device| device.name.as_str())
        .collect()
}

fn print_report(
    args: &Args,
    report: &zbmd_executor::Report,
    edges: &EdgeReports,
) -> Result<(), CliError> {
    let report = FullReport::new(report, edges);
    if let Some(path) = &args.report_file {
        let report_text = match args.report {
            Some(ReportFormat::Text) => report.to_string(),
            Some(ReportFormat::Json) | None => report.to_json(),
        };
        let failed = |error| FileError::Io {
            path: path.clone(),
            source: error,
        };
        return Ok(write_file(path, report_text).map_err(failed)?);
    }
    match args.report {
        Some(ReportFormat::Text) => say(format_args!("{}", report.to_string().trim_end())),
        Some(ReportFormat::Json) => say(format_args!("{}", report.to_json())),
        None if !args.quiet => say(format_args!("{}", report.summary().trim_end())),
        None => {}
    }
    Ok(())
}

/// Writes a whole file. A pipe with a name that nobody reads is given up.
fn write_file(path: &Path, text: String) -> std::io::Result<()> {
    if !zbmd_executor::is_named_pipe(path) {
        return std::fs::write(path, text);
    }
    let pipe_path = path.to_owned();
    let (send_result, write_result) = std::sync::mpsc::channel();
    std::thread::spawn(move || drop(send_result.send(std::fs::write(pipe_path, text))));
    let is_late = |_| std::io::Error::new(std::io::ErrorKind::TimedOut, "nobody reads this pipe");
    write_result.recv_timeout(CONSOLE_LIMIT).map_err(is_late)?
}

/// Ends the run at a border on an interrupt or termination signal; the second one ends the process.
fn stop_on_signal(stopper: Stopper) {
    let end_run = move || {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(exit::INTERRUPTED));
        }
        stopper.stop();
    };
    if let Err(error) = ctrlc::set_handler(end_run) {
        say(format_args!(
            "zbmd-run: note: an interrupt will not end the run in good order: {error}"
        ));
    }
}
