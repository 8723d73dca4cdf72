//! `zbmd-run up`: a run over hosts from one file. An agent is started on each host by the system's `ssh`, the bundle is run, and
//! the agents are stopped.

mod launch_file;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Parser;
use zbmd_backends::op::Registry;

pub(super) use self::launch_file::LaunchFile;

use self::launch_file::LaunchHost;
use super::CliError;
use super::args::{Args, duration};
use super::bundle_run::run;
use super::started_agents::{AgentStart, StartedAgents};

/// What `ssh` is asked for: no password, and an end when the other computer has not answered for a while.
const SSH_OPTIONS: [&str; 7] = [
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
];

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

/// Starts the agents of a file, runs its bundle over them, and stops them. An `ssh` that ends before is started again.
pub(super) fn up(args: &Up, registry: &Registry) -> Result<u8, CliError> {
    let launch = LaunchFile::read(&args.file)?;
    let words = launch.run_words().into_iter().map(OsString::from);
    let parsed = Args::try_parse_from(words.chain(args.options.iter().cloned()));
    // Before anything is started.
    let mut run_args = parsed.map_err(|error| CliError::Usage(error.render().to_string()))?;

    let hosts = launch.hosts.iter();
    let starts = hosts.map(|(name, host)| agent_start(name, host, &launch));
    let agents = StartedAgents::start(starts.collect(), args.start_limit, run_args.quiet)?;
    run_args.hosts = agents.addresses();
    let exit_code = run(&run_args, &launch.bundle, registry, None);
    agents.stop();
    exit_code
}

/// An agent behind an `ssh`.
fn agent_start(name: &str, host: &LaunchHost, launch: &LaunchFile) -> AgentStart {
    let destination = host.ssh_destination();
    let (launch, agent_host) = (launch.clone(), host.clone());
    AgentStart {
        host: name.to_owned(),
        what: format!("ssh {destination}"),
        address: host.address,
        command: Box::new(move |address| {
            let words = launch.agent_words(&agent_host, address);
            let command_line = shlex::try_join(words.iter().map(String::as_str));
            let command_line = command_line.map_err(io::Error::other)?;
            let mut ssh = Command::new("ssh");
            ssh.args(SSH_OPTIONS).args(&launch.ssh_options).args([
                "--",
                &destination,
                &command_line,
            ]);
            Ok(ssh)
        }),
    }
}
