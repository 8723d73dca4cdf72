//! `zbmd-run up`: a run over hosts from one file. An agent is started on each host by the system's `ssh`, the bundle is run, and
//! the agents are stopped.
//!
//! An agent's standard input is that of its `ssh`, which this process holds open. So agents end with this process, however
//! that ends.

mod agents;
mod launch_file;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use zbmd_backends::op::Registry;

pub(super) use self::agents::StartError;
pub(super) use self::launch_file::LaunchFile;

use self::agents::StartedAgents;
use super::CliError;
use super::args::{Args, duration};
use super::bundle_run::run;

/// Options of `zbmd-run up`.
#[derive(Debug, clap::Args)]
pub(super) struct Up {
    /// Wait for so long until an agent listens on each host.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "20s")]
    start_limit: Duration,
    /// Says which hosts there are and what is run on them, in RON.
    file: PathBuf,
    /// More options of the run, as `zbmd-run BUNDLE` takes them.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "OPTION"
    )]
    options: Vec<OsString>,
}

/// Starts the agents of a file, runs its bundle over them, and stops them.
pub(super) fn up(args: &Up, registry: &Registry) -> Result<u8, CliError> {
    let launch = LaunchFile::read(&args.file)?;
    let words = launch.run_words().into_iter().map(OsString::from);
    let parsed = Args::try_parse_from(words.chain(args.options.iter().cloned()));
    // Before anything is started.
    let mut run_args = parsed.map_err(|error| CliError::Usage(error.render().to_string()))?;

    let agents = StartedAgents::start(&launch, args.start_limit, run_args.quiet)?;
    run_args.hosts = agents.addresses();
    let exit_code = run(&run_args, &launch.bundle, registry, None);
    agents.stop();
    exit_code
}
