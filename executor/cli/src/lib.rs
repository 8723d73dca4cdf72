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

#[cfg(hosts)]
mod agent;
mod args;
mod block_figures;
mod bundle_run;
#[doc(hidden)]
pub mod checkpoint;
mod checkpoints;
mod console;
#[cfg(target_os = "linux")]
mod control;
#[cfg(hosts)]
mod council;
mod deadlines;
mod ending;
mod file_roles;
mod files;
#[doc(hidden)]
pub mod flight;
#[cfg(hosts)]
mod gathering;
mod io;
#[cfg(all(test, hosts))]
mod launch_files;
#[cfg(hosts)]
mod launcher;
mod live;
mod live_report;
mod record;
mod recordings;
mod replay;
mod saved_state;
#[cfg(target_os = "linux")]
mod share;
#[cfg(target_os = "linux")]
mod share_register;
#[cfg(hosts)]
mod started_agents;
mod startup;
mod supervision;
#[doc(hidden)]
pub mod testing;
mod top;
#[cfg(hosts)]
mod up;
#[cfg(hosts)]
mod virtual_cluster;
mod watch;
mod web;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use zbmd_backends::op::Registry;
#[cfg(hosts)]
use zbmd_executor::AgentError;
use zbmd_executor::embed;
use zbmd_executor::{EngineError, RunError};
use zbmd_ir::bundle::OpenError;
use zbmd_ir::state;
use zbmd_ir::text::{is_hidden, printable_lines};

pub use zbmd_executor::exit;

use self::args::{Args, Other};
use self::bundle_run::run;
use self::console::CONSOLE;
use self::replay::replay;
use self::top::top;
use self::web::WebError;
use crate::checkpoint::FolderError;
use crate::flight::RecordingError;
use crate::io::{FileError, is_standard};

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
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Share(#[from] share_register::ShareRefused),
    #[error(transparent)]
    Web(#[from] WebError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[cfg(hosts)]
    #[error("{0}")]
    Credentials(String),
    #[cfg(hosts)]
    #[error(transparent)]
    Agent(#[from] zbmd_executor::AgentError),
    #[cfg(hosts)]
    #[error(transparent)]
    Start(#[from] started_agents::StartError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Run(#[from] RunError),
}

#[cfg(hosts)]
impl From<zbmd_wire::args::CredentialsError> for CliError {
    fn from(error: zbmd_wire::args::CredentialsError) -> Self {
        use zbmd_wire::args::CredentialsError;
        match error {
            CredentialsError::Usage(text) => Self::Usage(text),
            CredentialsError::File(text) => Self::Credentials(text),
        }
    }
}

impl CliError {
    fn code(&self) -> u8 {
        match self {
            CliError::Usage(_) | CliError::Web(WebError::Remote { .. }) => exit::USAGE,
            CliError::File(_)
            | CliError::Web(WebError::Listen { .. })
            | CliError::Declaration { .. }
            | CliError::Folder(FolderError::Io { .. })
            | CliError::Recording(RecordingError::Io { .. } | RecordingError::Missing { .. }) => {
                exit::FILE
            }
            #[cfg(hosts)]
            CliError::Credentials(_) | CliError::Agent(AgentError::Listen { .. }) => exit::FILE,
            #[cfg(hosts)]
            CliError::Agent(AgentError::NotJoined { .. }) | CliError::Start(_) => exit::REFUSED,
            CliError::State { .. }
            | CliError::Refused { .. }
            | CliError::Folder(_)
            | CliError::Recording(_) => exit::REFUSED,
            #[cfg(target_os = "linux")]
            CliError::Share(_) => exit::NO_ROOM,
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

/// A launcher may tell a process to end twice, itself and by what has started it; what comes within this time is one signal.
const SAME_SIGNAL: Duration = Duration::from_secs(2);

/// Counts a signal that ends the run; whether it is another one, which ends the process at once.
fn is_end_forced(is_launched: bool) -> bool {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let first = FIRST.get_or_init(Instant::now);
    let was_interrupted = INTERRUPTED.swap(true, Ordering::Relaxed);
    was_interrupted && (!is_launched || first.elapsed() > SAME_SIGNAL)
}

fn command(args: &Args, registry: &Registry) -> Result<u8, CliError> {
    match (&args.command, &args.bundle) {
        (Some(Other::Top(args)), _) => Ok(top(args)),
        #[cfg(target_os = "linux")]
        (Some(Other::Set(args)), _) => Ok(control::set(args)),
        #[cfg(target_os = "linux")]
        (Some(Other::Mode(args)), _) => Ok(control::mode(args)),
        #[cfg(target_os = "linux")]
        (Some(Other::Probe(args)), _) => Ok(control::probe(args)),
        #[cfg(hosts)]
        (Some(Other::Agent(args)), _) => agent::serve(args, registry),
        #[cfg(hosts)]
        (Some(Other::Up(args)), _) => up::up(args, registry),
        (Some(Other::Replay(args)), _) => replay(args, registry),
        (None, Some(bundle_path)) => run_or_serve(args, bundle_path, registry),
        (None, None) => Err(CliError::Usage("there is no bundle to run".to_owned())),
    }
}

/// Runs the bundle, unless a launcher has started this process as the agent of a run.
fn run_or_serve(args: &Args, bundle_path: &Path, registry: &Registry) -> Result<u8, CliError> {
    #[cfg(hosts)]
    if let Some(join) = args.gathering.join()? {
        return agent::serve_launched(args, &join, registry);
    }
    run(args, bundle_path, registry, None)
}
