//! `--virtual-cluster`: all hosts of a bundle's machine on this computer. The run is the first host, each other one has an agent of
//! its own, the same program as on a computer of its own; they reach each other over loopback.

use std::fs::Permissions;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use zbmd_executor::{Credentials, Engine, Hosts, Protection, Token};

use super::CliError;
use super::args::Args;
use super::started_agents::{AgentStart, StartedAgents};

/// Bytes of the secret that the hosts share, each written as two characters.
const SECRET_BYTES: usize = 32;
/// All agents listen within this time, also on a crowded computer.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The agents of the other hosts, which end with this.
pub(super) struct VirtualCluster {
    agents: StartedAgents,
    token: Token,
    /// With the secret; whoever is started again reads it again.
    _folder: TempDir,
}

impl VirtualCluster {
    /// Starts an agent for each host of the bundle's machine but the first, if that is asked for.
    ///
    /// # Errors
    /// A machine without hosts, or what the system says.
    pub(super) fn start(args: &Args, engine: &Engine) -> Result<Option<Self>, CliError> {
        if !args.virtual_cluster {
            return Ok(None);
        }
        let hosts = engine.program().machine.hosts.iter();
        let names: Vec<String> = hosts.map(|host| host.name.clone()).collect();
        if names.len() < 2 {
            return Err(CliError::Usage(format!(
                "--virtual-cluster: the bundle's machine has {} hosts, at least 2 are needed: compile it with `--hosts N`, or for a machine file with `hosts`",
                names.len()
            )));
        }

        let unwritten =
            |error: io::Error| CliError::Credentials(format!("a folder for the token: {error}"));
        let folder = tempfile::tempdir().map_err(unwritten)?;
        let token_file = write_token(folder.path()).map_err(unwritten)?;
        let token = Token::read(&token_file);
        let token = token.map_err(|error| CliError::Credentials(error.to_string()))?;
        let program = std::env::current_exe().map_err(unwritten)?;
        let agents = names.into_iter().skip(1);
        let starts = agents.map(|host| agent_start(host, program.clone(), token_file.clone()));
        Ok(Some(Self {
            agents: StartedAgents::start(starts.collect(), START_LIMIT, args.quiet)?,
            token,
            _folder: folder,
        }))
    }

    /// The hosts, as the run sees them.
    pub(super) fn hosts(&self, args: &Args) -> Hosts {
        Hosts {
            agents: self.agents.addresses(),
            gather: None,
            credentials: Credentials {
                token: self.token.clone(),
                protection: Protection::Loopback,
            },
            lease: args.host_lease(),
            council: None,
            own: None,
        }
    }
}

fn agent_start(host: String, program: PathBuf, token_file: PathBuf) -> AgentStart {
    AgentStart {
        what: "zbmd-run agent".to_owned(),
        host,
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        command: Box::new(move |address| {
            let mut command = Command::new(&program);
            // A program may be several commands, by the name that it is called by.
            if let Some(name) = std::env::args_os().next() {
                command.arg0(name);
            }
            command
                .args([
                    "agent",
                    "--end-with-input",
                    "--listen",
                    &address.to_string(),
                ])
                .arg("--token-file")
                .arg(&token_file);
            Ok(command)
        }),
    }
}

/// Writes a new secret into a folder, for its owner alone.
fn write_token(folder: &Path) -> io::Result<PathBuf> {
    let mut secret = [0; SECRET_BYTES];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    let text: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = folder.join("token");
    std::fs::write(&path, "")?;
    std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    std::fs::write(&path, text)?;
    Ok(path)
}
