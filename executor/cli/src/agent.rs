//! `zbmd-run agent`: the workers of this host, for runs that are started on another one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use zbmd_backends::op::Registry;
use zbmd_executor::{AgentEvent, Hosts, Token, serve_as_agent};

use super::args::Args;
use super::{CliError, exit, say};
use crate::io::FileError;

/// Options of `zbmd-run agent`.
#[derive(Debug, clap::Args)]
pub(super) struct Agent {
    /// Wait for runs at this address. Port 0 is one that is free.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The secret that all hosts of a run share: a file that only its owner can read.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
}

/// The secret in a file.
pub(super) fn read_token(path: &Path) -> Result<Token, CliError> {
    Token::read(path).map_err(|error| CliError::Token(error.to_string()))
}

/// The other hosts of a run, if the command line has some.
pub(super) fn hosts(args: &Args) -> Result<Option<Hosts>, CliError> {
    let Some(token_file) = args.token_file.as_ref().filter(|_| !args.hosts.is_empty()) else {
        return Ok(None);
    };
    Ok(Some(Hosts {
        agents: args.hosts.clone(),
        token: read_token(token_file)?,
        lease: args.host_lease,
    }))
}

/// Serves runs until the process is ended.
pub(super) fn serve(args: &Agent, registry: &Registry) -> Result<u8, CliError> {
    let token = read_token(&args.token_file)?;
    let listener = |event| match event {
        AgentEvent::Listening(address) => {
            say(format_args!("zbmd-run: agent: listening at {address}"));
        }
        AgentEvent::Began { conductor } => {
            say(format_args!("zbmd-run: agent: a run of {conductor} begins"));
        }
        AgentEvent::Ended {
            conductor,
            why,
            fenced,
        } => {
            say(format_args!(
                "zbmd-run: agent: the run of {conductor} has ended: {why}; {fenced} connections of runs and epochs that were over have been refused"
            ));
        }
    };
    serve_as_agent(registry, args.listen, &token, listener).map_err(|source| FileError::Io {
        path: PathBuf::from(args.listen.to_string()),
        source,
    })?;
    Ok(exit::OK)
}
