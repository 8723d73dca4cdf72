//! The command `zbmd-run` as a function, so that a program with actors of its own is a runner in a few lines:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     let mut registry = zbmd_backends::op::Registry::standard();
//!     // registry.register("my_actor", |params| MyActor::new(params));
//!     zbmd_executor::cli::main_with(registry)
//! }
//! ```
//!
//! Standard output carries data only; everything said goes to standard error. Exit codes are [`exit`]'s.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use zbmd_backends::op::Registry;
use zbmd_ir::bundle::{self, OpenError};
use zbmd_ir::{Actor, Program, State, Value, state};

use crate::checkpoint::{Checkpoint, Origin};
use crate::crew::Isolation;
use crate::embed;
use crate::error::{EngineError, RunError};
use crate::io::pump::{self, PumpEnd, SharedFile};
use crate::io::{FileError, Port, create_sink, is_standard, open_source, resume_sink};
use crate::live::Page;
use crate::live::top::{Top, top};
use crate::report::TraceReport;
use crate::session::{Engine, RunOptions, Session, Stopper};

/// Exit codes of the command.
pub mod exit {
    /// All went well; also when the reader of standard output went away.
    pub const OK: u8 = 0;
    /// The command line makes no sense.
    pub const USAGE: u8 = 2;
    /// A file cannot be read or written, or its content does not fit its stream.
    pub const FILE: u8 = 4;
    /// The bundle is refused: it is damaged, or made for a device that is not here.
    pub const REFUSED: u8 = 5;
    /// A fault at run time: a kernel's, a device's, or too little memory.
    pub const FAULT: u8 = 6;
    /// The supervisor gave up, in good order: everything committed was written.
    pub const GAVE_UP: u8 = 7;
    /// A bug of ours.
    pub const BUG: u8 = 70;
    /// There is no such run to watch, or it is dead.
    pub const NO_RUN: u8 = 8;
    /// Interrupted; everything up to the last whole block was written.
    pub const INTERRUPTED: u8 = 130;
}

/// Runs a bundle: tokens from files through its calendars into files.
#[derive(Debug, Parser)]
#[command(
    name = "zbmd-run",
    version,
    after_help = AFTER_HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Args {
    #[command(subcommand)]
    command: Option<Other>,
    /// The bundle, made by `zbmdc compile`.
    #[arg(required = true)]
    bundle: Option<PathBuf>,
    /// Read a source from a file; `-` is standard input. Without it, the source's parameter `file` says.
    #[arg(short, long = "input", value_name = "NAME=FILE", value_parser = binding)]
    inputs: Vec<(String, PathBuf)>,
    /// Write a sink to a file; `-` is standard output. Without it, the sink's parameter `file` says.
    #[arg(short, long = "output", value_name = "NAME=FILE", value_parser = binding)]
    outputs: Vec<(String, PathBuf)>,
    /// Stop after so many iterations of the graph.
    #[arg(short = 'n', long)]
    iterations: Option<u64>,
    /// Stop after so long: `500ms`, `5s`, `2m`, `1h`.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Report what was measured, on standard error.
    #[arg(long, value_name = "FORMAT")]
    report: Option<ReportFormat>,
    /// Write the report to a file instead; JSON unless --report says otherwise.
    #[arg(long, value_name = "FILE")]
    report_file: Option<PathBuf>,
    /// Go on where a run that saved its state ended.
    #[arg(long, value_name = "FILE")]
    load_state: Option<PathBuf>,
    /// Save the state at the end, for a run that goes on.
    #[arg(long, value_name = "FILE")]
    save_state: Option<PathBuf>,
    /// Fill up an incomplete last iteration with zero tokens.
    #[arg(long)]
    pad: bool,
    /// Record what every worker really does to a file, for `zbmdc inspect BUNDLE --measured FILE`.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Report how long the calls of each actor took, beside what was planned.
    #[arg(long)]
    profile: bool,
    /// Where workers run: in threads of this process, or in a process of its own each GPU, or each device.
    #[arg(long, value_name = "WHERE", default_value = "gpus")]
    isolation: Where,
    /// Check that what arrives over rings is what was sent.
    #[arg(long)]
    checksums: bool,
    /// Go on when workers are lost: restart them, go over to the bundle's calendars for the devices that are left. With
    /// a file, as it declares in RON. Implied by the options that need it.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    supervise: Option<Option<PathBuf>>,
    /// Write every decision of the supervisor to a file, one JSON object a line; `-` is standard error.
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Write checkpoints to this folder, from which a run that was killed can go on.
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// How often: `500ms`, `5s`, `2m`.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s", requires = "checkpoint")]
    checkpoint_every: Duration,
    /// How many checkpoints to keep.
    #[arg(long, value_name = "N", default_value_t = 3, requires = "checkpoint")]
    checkpoint_keep: usize,
    /// Go on at the newest checkpoint, or begin if there is none. Sources are read from where they were, files of sinks
    /// are cut off where they were.
    #[arg(long, requires = "checkpoint", conflicts_with = "load_state")]
    resume: bool,
    /// Bring faults about, to see what becomes of them: a seed (kills a worker every 50 to 500 ms), or a file in RON.
    #[arg(long, value_name = "SEED|FILE")]
    inject: Option<String>,
    /// Say nothing but errors.
    #[arg(short, long)]
    quiet: bool,
}

/// What the command does besides running bundles.
#[derive(Debug, Subcommand)]
enum Other {
    /// Watch a run that is on: throughput, lateness, how full rings and queues are, what devices do.
    #[command(after_help = TOP_HELP)]
    Top(Top),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// GPUs in processes, which a failing driver may take along, and CPU devices in threads.
    Gpus,
    /// In threads.
    Threads,
    /// In processes.
    Processes,
}

const AFTER_HELP: &str = "\
Examples:
  zbmd-run model.zbmd -i in=in.f32 -o out=out.f32 --report text
  zbmd-run model.zbmd -i in=in.f32 -o out=out.npy --iterations 10   stops after ten iterations
  zbmd-run model.zbmd -i in=in.f32 -o out=out.f32 --trace run.trace --profile
  zbmd-run model.zbmd -i in=in.f32 -o out=out.f32 --supervise --events events.jsonl
  zbmd-run top                                            watches a run from another terminal

Files by extension: npy, wav, u8, s16, f32, cu8, cs16, cf32; bin and no extension are raw tokens.

Exit codes: 0 done, 2 usage, 4 file error, 5 bundle refused, 6 fault at run time,
7 gave up after too many losses, 70 our bug, 130 interrupted.";

const TOP_HELP: &str = "\
Examples:
  zbmd-run top                                            the only run that is on
  zbmd-run top 4711                                       the run of that process
  zbmd-run top 4711 --once --format json                  for programs

Exit codes: 0 shown, or the run is over, 2 usage, 4 its page cannot be read, 8 no such run, or a dead one.";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReportFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

fn binding(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => {
            Ok((name.to_owned(), file.into()))
        }
        _ => Err("write it as NAME=FILE, such as iq=capture.cf32".to_owned()),
    }
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let found = units.iter().find_map(|(unit, s)| Some((text.strip_suffix(unit)?, s)));
    let seconds = found.and_then(|(number, s)| Some(number.trim().parse::<f64>().ok()? * s));
    seconds
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| "write a number and a unit: 500ms, 5s, 2m or 1h".to_owned())
}

/// Why the command ends without having run to its end.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {source}", path.display())]
    Bundle { path: PathBuf, source: Box<OpenError> },
    #[error("{}: {source}", path.display())]
    State { path: PathBuf, source: state::StateError },
    #[error("{}: {text}", path.display())]
    Declaration { path: PathBuf, text: String },
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Run(#[from] RunError),
}

impl CliError {
    fn code(&self) -> u8 {
        match self {
            CliError::Usage(_) => exit::USAGE,
            CliError::File(_) | CliError::Declaration { .. } | CliError::State { .. } => exit::FILE,
            CliError::Bundle { source, .. } => embed::open_error_class(source),
            CliError::Engine(error) => error.class(),
            CliError::Run(error) => error.class(),
        }
    }
}

/// Runs the command line with the ops of `registry`; the process's exit code.
pub fn main_with(registry: Registry) -> ExitCode {
    #[cfg(target_os = "linux")]
    crate::serve_if_worker(&registry);
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help goes to standard output, mistakes to standard error; a closed one is no concern of ours.
            drop(error.print());
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { exit::OK });
        }
    };
    let outcome =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| command(&args, &registry)));
    ExitCode::from(match outcome {
        Ok(Ok(code)) => code,
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
    })
}

/// A line on standard error; if that is closed, nobody wants to know.
fn say(line: std::fmt::Arguments<'_>) {
    drop(writeln!(io::stderr(), "{line}"));
}

fn command(args: &Args, registry: &Registry) -> Result<u8, CliError> {
    let path = match (&args.command, &args.bundle) {
        (Some(Other::Top(args)), _) => return Ok(top(args)),
        (None, Some(path)) => path,
        (None, None) => return Err(CliError::Usage("there is no bundle to run".to_owned())),
    };
    let program = bundle::open(path)
        .map_err(|e| CliError::Bundle { path: path.clone(), source: Box::new(e) })?;
    let files = Files::of(args, &program)?;
    if args.trace.as_deref().is_some_and(is_standard) {
        let text = "a trace is no text: give --trace a file of its own".to_owned();
        return Err(CliError::Usage(text));
    }
    let mut state =
        args.load_state.as_deref().map(|path| load_state(path, &program)).transpose()?;
    let engine = Engine::new(program, registry)?;
    let program = engine.program();
    let safe = checkpoints::of(args, &files, program)?;
    let resumed = safe.as_ref().and_then(|safe| safe.resumed.clone());
    if let Some(checkpoint) = &resumed {
        state = Some(checkpoint.state.clone());
    }
    let origin = match (&resumed, &state) {
        (Some(checkpoint), _) => checkpoint.origin.clone(),
        (None, Some(state)) => Origin::of(state),
        (None, None) => Origin::of(&State::initial(&program.graph)),
    };
    let sources = files.open_sources(program, &origin, resumed.as_ref())?;
    let sinks = files.create_sinks(&engine, &origin, resumed.as_ref())?;
    let mut supervised = supervision::of(args, &program_names(program))?;
    let keeper = match (safe, &mut supervised) {
        (Some(safe), Some(supervised)) => {
            let (keeper, listener) = safe.keep(&engine, &sinks, origin, supervised);
            let every_ns = args.checkpoint_every.as_nanos().try_into().unwrap_or(u64::MAX);
            supervised.states = Some((every_ns, listener));
            Some(keeper)
        }
        _ => None,
    };
    let options = RunOptions {
        supervised,
        state,
        iterations: args.iterations,
        pad: args.pad,
        isolation: match args.isolation {
            Where::Gpus if !cfg!(target_os = "linux") => Isolation::Threads,
            Where::Gpus => Isolation::GpuProcesses { program: None },
            Where::Threads => Isolation::Threads,
            Where::Processes => Isolation::Processes { program: None },
        },
        checksums: args.checksums,
        trace: args.trace.clone(),
        profile: args.profile,
        ..RunOptions::default()
    };
    let mut session = engine.start(options)?;
    let interrupted = stop_on_signal(session.stopper());
    let (ends, ended) = mpsc::channel();
    let pumps = start_pumps(&mut session, sources, sinks, &ends)?;
    let watch = Watch::start(args, session.stopper(), ended, pumps);
    let outcome = session.join();
    drop(ends);
    let watched = watch.finish();
    if let Some(keeper) = keeper {
        // It ends when the session has dropped its end of the channel.
        let _ = keeper.join();
    }

    let outcome = outcome?;
    if let Some(error) = watched.failure {
        return Err(error.into());
    }
    if let Some(path) = &args.save_state {
        let bytes = state::encode(&outcome.state, &engine.program().graph);
        let failed = |source| FileError::Io { path: path.clone(), source };
        std::fs::write(path, bytes).map_err(failed)?;
    }
    let mut report = outcome.report;
    report.notes.extend(watched.notes);
    print_report(args, &report)?;
    if let Some(TraceReport { file, error: Some(error), .. }) = report.trace {
        let (path, source) = (file.into(), io::Error::other(error));
        return Err(FileError::Io { path, source }.into());
    }
    Ok(if interrupted.load(Ordering::Relaxed) { exit::INTERRUPTED } else { exit::OK })
}

/// Checkpoints: where a run that was killed goes on.
mod checkpoints {
    use std::sync::mpsc::{Receiver, sync_channel};
    use std::thread::JoinHandle;

    use super::*;
    use crate::checkpoint::Folder;
    use crate::driver::{StateListener, Supervised};
    use crate::supervise::{Event, What};

    /// A folder for checkpoints, and the one to go on from.
    pub(super) struct Safe {
        folder: Folder,
        pub(super) resumed: Option<Checkpoint>,
    }

    pub(super) fn of(
        args: &Args,
        files: &Files,
        program: &Program,
    ) -> Result<Option<Safe>, CliError> {
        let Some(path) = &args.checkpoint else { return Ok(None) };
        if let Some((name, _)) = files.outputs.iter().find(|(_, path)| is_standard(path)) {
            return Err(CliError::Usage(format!(
                "sink `{name}` goes to standard output, which cannot be taken back to a checkpoint: give it a file"
            )));
        }
        let failed = |source| FileError::Io { path: path.clone(), source };
        let folder = Folder::open(path, args.checkpoint_keep).map_err(failed)?;
        let mut resumed = None;
        if args.resume {
            let (newest, damaged) = folder.newest(&program.graph).map_err(failed)?;
            for text in damaged {
                say(format_args!("zbmd-run: note: passed over: {text}"));
            }
            if newest.is_none() && !args.quiet {
                say(format_args!("zbmd-run: note: no checkpoint to resume: from the beginning"));
            }
            resumed = newest;
        }
        Ok(Some(Safe { folder, resumed }))
    }

    impl Safe {
        /// A thread that writes checkpoints of the states that its listener is given.
        pub(super) fn keep(
            self,
            engine: &Engine,
            sinks: &Opened<SharedFile>,
            origin: Origin,
            supervised: &mut Supervised,
        ) -> (JoinHandle<()>, StateListener) {
            let full = Arc::new(AtomicBool::new(false));
            hear_of_full_disks(supervised, &full);
            // While one is being written, younger ones are passed over: the next will come.
            let (give, take) = sync_channel::<State>(1);
            let graph = &engine.program().graph;
            let rates: Vec<u64> =
                graph.sinks().map(|(id, _)| engine.inner.tokens_per_iteration(id)).collect();
            let files: Vec<(SharedFile, u64)> =
                sinks.iter().map(|(_, _, file)| file.clone()).zip(rates).collect();
            let engine = engine.clone();
            let write = move || keep(&take, &self.folder, &engine, &files, &origin, &full);
            let listener = Arc::new(move |state: State| drop(give.try_send(state)));
            (std::thread::spawn(write), listener)
        }
    }

    /// Passes events on, and notes when one is a full disk brought about on purpose.
    fn hear_of_full_disks(supervised: &mut Supervised, full: &Arc<AtomicBool>) {
        let (full, next) = (Arc::clone(full), supervised.listener.take());
        supervised.listener = Some(Arc::new(move |event: &Event| {
            if matches!(&event.what, What::Injected { kind, .. } if kind == "full_disk") {
                full.store(true, Ordering::Relaxed);
            }
            if let Some(next) = &next {
                next(event);
            }
        }));
    }

    fn keep(
        states: &Receiver<State>,
        folder: &Folder,
        engine: &Engine,
        files: &[(SharedFile, u64)],
        origin: &Origin,
        full: &AtomicBool,
    ) {
        while let Ok(state) = states.recv() {
            let done = state.iterations - origin.iterations;
            let checkpoint = Checkpoint { origin: origin.clone(), state };
            let written = files.iter().try_for_each(|(file, rate)| {
                // The tokens are on their way; a file that cannot be written ends the run.
                for _ in 0..400 {
                    if file.sync_at(done * rate)? {
                        return Ok(());
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(io::Error::other("the file is not written any more"))
            });
            let written = written.and_then(|()| match full.swap(false, Ordering::Relaxed) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => folder.write(&checkpoint, &engine.program().graph),
            });
            if let Err(error) = written {
                say(format_args!(
                    "zbmd-run: note: no checkpoint at iteration {}: {error}; the older ones stand",
                    checkpoint.state.iterations
                ));
            }
        }
    }
}

/// Names of the machine's devices, in order.
fn program_names(program: &Program) -> Vec<&str> {
    program.machine.devices.iter().map(|d| d.name.as_str()).collect()
}

/// What the options say of supervision.
mod supervision {
    use std::fs::File;
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::driver::Supervised;
    use crate::inject::Injector;
    use crate::supervise::Event;
    use crate::supervise::declare::Supervision;

    type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

    pub(super) fn of(args: &Args, names: &[&str]) -> Result<Option<Supervised>, CliError> {
        let asked = args.supervise.is_some()
            || args.events.is_some()
            || args.inject.is_some()
            || args.checkpoint.is_some();
        if !asked {
            return Ok(None);
        }
        let path = args.supervise.as_ref().and_then(Option::as_deref);
        let failed = |text: String| CliError::Declaration {
            path: path.unwrap_or(Path::new("--supervise")).to_owned(),
            text,
        };
        let declaration = match path {
            Some(path) => Supervision::parse(&read(path)?).map_err(|e| failed(e.to_string()))?,
            None => Supervision::default(),
        };
        let resolved =
            declaration.resolve(names.iter().copied()).map_err(|e| failed(e.to_string()))?;
        for warning in resolved.warnings.iter().filter(|_| !args.quiet) {
            say(format_args!("zbmd-run: note: {warning}"));
        }
        Ok(Some(Supervised {
            settings: resolved.settings,
            tree: resolved.tree,
            listener: args.events.as_deref().map(listener).transpose()?,
            states: None,
            inject: args.inject.as_deref().map(injector).transpose()?,
            save_every: None,
        }))
    }

    fn read(path: &Path) -> Result<String, CliError> {
        let failed = |source| FileError::Io { path: path.to_owned(), source };
        Ok(std::fs::read_to_string(path).map_err(failed)?)
    }

    fn listener(path: &Path) -> Result<Listener, CliError> {
        let failed = |source| FileError::Io { path: path.to_owned(), source };
        let out: Box<dyn Write + Send> = if is_standard(path) {
            Box::new(io::stderr())
        } else {
            Box::new(io::LineWriter::new(File::create(path).map_err(failed)?))
        };
        let out = Mutex::new(out);
        Ok(Arc::new(move |event: &Event| {
            let mut out = out.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            // A full disk must not end the run that the events are about.
            let _ = writeln!(out, "{}", event.line());
        }))
    }

    fn injector(text: &str) -> Result<Injector, CliError> {
        let path = PathBuf::from(text);
        let declaration = match text.parse::<u64>() {
            Ok(_) => Injector::parse(text),
            Err(_) => Injector::parse(&read(&path)?),
        };
        let declaration = declaration.map_err(|text| CliError::Declaration { path, text })?;
        Ok(Injector::new(declaration))
    }
}

fn print_report(args: &Args, report: &crate::Report) -> Result<(), CliError> {
    if let Some(path) = &args.report_file {
        let text = match args.report {
            Some(ReportFormat::Text) => report.to_string(),
            Some(ReportFormat::Json) | None => report.to_json(),
        };
        let failed = |source| FileError::Io { path: path.clone(), source };
        return Ok(std::fs::write(path, text).map_err(failed)?);
    }
    match args.report {
        Some(ReportFormat::Text) => say(format_args!("{}", report.to_string().trim_end())),
        Some(ReportFormat::Json) => say(format_args!("{}", report.to_json())),
        None if !args.quiet => say(format_args!("{}", report.summary().trim_end())),
        None => {}
    }
    Ok(())
}

fn load_state(path: &Path, program: &Program) -> Result<State, CliError> {
    let failed = |source| FileError::Io { path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(failed)?;
    state::decode(&bytes, &program.graph)
        .map_err(|source| CliError::State { path: path.to_owned(), source })
}

/// Ends the run at a border on an interrupt or termination signal; the second one ends the process.
fn stop_on_signal(stopper: Stopper) -> Arc<AtomicBool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    let handler = move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(exit::INTERRUPTED));
        }
        stopper.stop();
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        say(format_args!(
            "zbmd-run: note: an interrupt will not end the run in good order: {error}"
        ));
    }
    interrupted
}

/// Which file each stream has.
struct Files {
    inputs: BTreeMap<String, PathBuf>,
    outputs: BTreeMap<String, PathBuf>,
}

type Opened<T> = Vec<(String, PathBuf, T)>;

impl Files {
    fn of(args: &Args, program: &Program) -> Result<Self, CliError> {
        let sources: Vec<&Actor> = program.graph.sources().map(|(_, a)| a).collect();
        let sinks: Vec<&Actor> = program.graph.sinks().map(|(_, a)| a).collect();
        let inputs = bind("source", "--input", &sources, &args.inputs)?;
        let outputs = bind("sink", "--output", &sinks, &args.outputs)?;
        Ok(Self { inputs, outputs })
    }

    fn open_sources(
        &self,
        program: &Program,
        origin: &Origin,
        resumed: Option<&Checkpoint>,
    ) -> Result<Opened<Box<dyn io::Read + Send>>, FileError> {
        let mut opened = Vec::new();
        for (at, (_, actor)) in program.graph.sources().enumerate() {
            let path = &self.inputs[&actor.name];
            let token = &actor.outputs[0].token;
            let port = Port { stream: &actor.name, token, params: &actor.params };
            let mut file = open_source(path, port)?;
            if let Some(checkpoint) = resumed {
                let failed = |source| FileError::Io { path: path.clone(), source };
                let taken = checkpoint.state.consumed[at].1 - origin.consumed[at];
                crate::io::skip(&mut *file, token, taken).map_err(failed)?;
            }
            opened.push((actor.name.clone(), path.clone(), file));
        }
        Ok(opened)
    }

    fn create_sinks(
        &self,
        engine: &Engine,
        origin: &Origin,
        resumed: Option<&Checkpoint>,
    ) -> Result<Opened<SharedFile>, FileError> {
        let mut created = Vec::new();
        for (id, actor) in engine.program().graph.sinks() {
            let path = &self.outputs[&actor.name];
            let port =
                Port { stream: &actor.name, token: &actor.inputs[0].token, params: &actor.params };
            let file = match resumed {
                None => SharedFile::new(create_sink(path, port)?, 0),
                Some(checkpoint) => {
                    let done = checkpoint.state.iterations - origin.iterations;
                    let tokens = done * engine.inner.tokens_per_iteration(id);
                    SharedFile::new(resume_sink(path, port, tokens)?, tokens)
                }
            };
            created.push((actor.name.clone(), path.clone(), file));
        }
        Ok(created)
    }
}

/// A file for each actor: from the command line, else from its parameter `file`.
fn bind(
    kind: &str,
    option: &str,
    actors: &[&Actor],
    given: &[(String, PathBuf)],
) -> Result<BTreeMap<String, PathBuf>, CliError> {
    let mut files = BTreeMap::new();
    for (name, path) in given {
        if !actors.iter().any(|a| a.name == *name) {
            let known: Vec<&str> = actors.iter().map(|a| a.name.as_str()).collect();
            return Err(CliError::Usage(format!(
                "{option} {name}=…: the bundle has no {kind} `{name}`; it has: {}",
                known.join(", ")
            )));
        }
        if files.insert(name.clone(), path.clone()).is_some() {
            return Err(CliError::Usage(format!(
                "{option} {name}=…: the {kind} `{name}` is given twice; one file each"
            )));
        }
    }
    for actor in actors {
        let default = actor.params.get("file").and_then(Value::as_str);
        if let (Some(default), false) = (default, files.contains_key(&actor.name)) {
            files.insert(actor.name.clone(), default.into());
        }
        if !files.contains_key(&actor.name) {
            let name = &actor.name;
            return Err(CliError::Usage(format!(
                "{kind} `{name}` has no file: say {option} {name}=FILE, or {option} {name}=- for a standard stream"
            )));
        }
    }
    let standard: Vec<&String> =
        files.iter().filter(|(_, p)| is_standard(p)).map(|(n, _)| n).collect();
    if let [first, second, ..] = standard[..] {
        return Err(CliError::Usage(format!(
            "{kind}s `{first}` and `{second}` both have the file `-`; one can"
        )));
    }
    Ok(files)
}

/// Starts a thread for each file; the number of sinks, whose ends the command waits for.
fn start_pumps(
    session: &mut Session,
    sources: Opened<Box<dyn io::Read + Send>>,
    sinks: Opened<SharedFile>,
    ends: &mpsc::Sender<PumpEnd>,
) -> Result<usize, CliError> {
    let count = sinks.len();
    let no_thread = |e| CliError::Engine(EngineError::Thread(e));
    for (name, path, file) in sinks {
        let Ok(sink) = session.sink(&name) else { continue };
        let stream = name.clone();
        pump::spawn(&name, ends.clone(), move || pump::drain(&stream, &path, sink, &file))
            .map_err(no_thread)?;
    }
    for (name, path, file) in sources {
        let Ok(source) = session.source(&name) else { continue };
        let stream = name.clone();
        pump::spawn(&name, ends.clone(), move || pump::fill(&stream, &path, file, source))
            .map_err(no_thread)?;
    }
    Ok(count)
}

/// What the watching thread saw.
#[derive(Default)]
struct Watched {
    failure: Option<FileError>,
    notes: Vec<String>,
}

/// The page for those who watch is written at every so-manieth look.
const LOOKS: u64 = 4;

/// Watches the files, the clock and the progress while the run is on.
struct Watch {
    thread: std::thread::JoinHandle<Watched>,
    over: mpsc::Sender<()>,
}

impl Watch {
    fn start(args: &Args, stopper: Stopper, ended: mpsc::Receiver<PumpEnd>, sinks: usize) -> Self {
        let (over, is_over) = mpsc::channel();
        let bar = progress_bar(args);
        // A run that nobody can watch is as good as any.
        let mut page = Page::create().ok();
        let mut looks = 0u64;
        let until = args.duration.map(|d| std::time::Instant::now() + d);
        let thread = std::thread::spawn(move || {
            let mut watched = Watched::default();
            let mut open_sinks = sinks;
            let mut timed_out = false;
            let mut run_is_over = false;
            while !(run_is_over && open_sinks == 0) {
                if looks.is_multiple_of(LOOKS)
                    && page.as_mut().is_some_and(|page| page.write(stopper.progress()).is_err())
                {
                    page = None;
                }
                looks += 1;
                match ended.recv_timeout(Duration::from_millis(50)) {
                    Ok(end) => watched.see(end, &mut open_sinks, &stopper),
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                }
                run_is_over = run_is_over || is_over.try_recv().is_ok();
                bar.set_position(stopper.iterations());
                if !timed_out && until.is_some_and(|t| std::time::Instant::now() >= t) {
                    timed_out = true;
                    stopper.stop();
                }
            }
            // Sources that had ended before the sinks did.
            while let Ok(end) = ended.try_recv() {
                watched.see(end, &mut open_sinks, &stopper);
            }
            bar.finish_and_clear();
            watched
        });
        Self { thread, over }
    }

    /// Waits until every sink's file is complete.
    fn finish(self) -> Watched {
        // If the watch has ended already, there is nobody to tell.
        let _ = self.over.send(());
        match self.thread.join() {
            Ok(watched) => watched,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Watched {
    fn see(&mut self, end: PumpEnd, open_sinks: &mut usize, stopper: &Stopper) {
        match end {
            PumpEnd::SourceEnded { stream, partial_bytes } if partial_bytes > 0 => {
                self.notes.push(format!(
                    "the file of `{stream}` ends with {partial_bytes} bytes that are no whole token"
                ));
            }
            PumpEnd::SourceEnded { .. } | PumpEnd::SourceRefused { .. } => {}
            PumpEnd::SinkEnded { .. } => *open_sinks -= 1,
            PumpEnd::PipeClosed { stream } => {
                *open_sinks -= 1;
                self.notes.push(format!("the reader of `{stream}` went away"));
                stopper.stop();
            }
            PumpEnd::SourceFailed(error) => {
                self.failure.get_or_insert(error);
                stopper.stop();
            }
            PumpEnd::SinkFailed(error) => {
                self.failure.get_or_insert(error);
                *open_sinks -= 1;
                stopper.stop();
            }
        }
    }
}

fn progress_bar(args: &Args) -> indicatif::ProgressBar {
    if args.quiet || !io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let bar = match args.iterations {
        Some(all) => indicatif::ProgressBar::new(all),
        None => indicatif::ProgressBar::new_spinner(),
    };
    let template = match args.iterations {
        Some(_) => "{elapsed} {wide_bar} {pos}/{len} iterations, {per_sec}",
        None => "{elapsed} {spinner} {pos} iterations, {per_sec}",
    };
    match indicatif::ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        for (text, expect) in [
            ("500ms", Some(500)),
            ("5s", Some(5000)),
            ("0.5s", Some(500)),
            ("2m", Some(120_000)),
            ("1h", Some(3_600_000)),
            ("5", None),
            ("s", None),
            ("-1s", None),
            ("infs", None),
            ("5d", None),
        ] {
            assert_eq!(duration(text).ok().map(|d| d.as_millis()), expect, "{text}");
        }
    }

    #[test]
    fn bindings_have_a_name_and_a_file() {
        assert_eq!(binding("iq=a=b.cf32"), Ok(("iq".into(), "a=b.cf32".into())));
        for text in ["iq", "=x", "iq=", ""] {
            assert!(binding(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
