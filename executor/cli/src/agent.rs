//! `zbmd-run agent`: the workers of this host, for runs that are started on another one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use zbmd_backends::op::Registry;
use zbmd_executor::{
    AgentEvent, Credentials, Engine, Hosts, Protection, Takeover, Tls, TlsFiles, Token,
    serve_as_agent,
};

use super::args::Args;
use super::council::CouncilArgs;
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
    #[command(flatten)]
    protection: ProtectionArgs,
    #[command(flatten)]
    council: CouncilArgs,
}

/// How connections between hosts are protected.
#[derive(Debug, clap::Args)]
pub(super) struct ProtectionArgs {
    /// Protect connections between hosts by TLS: the certificate of this host, as PEM, which names the address by which the
    /// others reach it.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_certificate: Option<PathBuf>,
    /// The key of the certificate: a file that only its owner can read.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_key: Option<PathBuf>,
    /// The authority that has signed the certificates of all hosts.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_ca: Option<PathBuf>,
    /// Let connections to other computers be neither encrypted nor signed: the network must be trusted, and all hosts must be
    /// started with this.
    #[arg(long, conflicts_with = "tls_certificate")]
    plain_wires: bool,
}

impl ProtectionArgs {
    fn protection(&self) -> Result<Protection, CliError> {
        let files = match (&self.tls_certificate, &self.tls_key, &self.tls_ca) {
            (Some(certificate), Some(key), Some(ca)) => TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                ca: ca.clone(),
            },
            (None, None, None) if self.plain_wires => return Ok(Protection::Plain),
            (None, None, None) => return Ok(Protection::Loopback),
            _ => {
                let text =
                    "TLS between hosts needs all of --tls-certificate, --tls-key and --tls-ca";
                return Err(CliError::Usage(text.to_owned()));
            }
        };
        let tls = Tls::read(&files).map_err(|error| CliError::Credentials(error.to_string()))?;
        Ok(Protection::Tls(tls))
    }

    /// What this host shows to others at these addresses.
    fn credentials(
        &self,
        token_file: &Path,
        addresses: &mut dyn Iterator<Item = SocketAddr>,
    ) -> Result<Credentials, CliError> {
        let protection = self.protection()?;
        for address in addresses {
            let checked = protection.check(address);
            checked.map_err(|error| CliError::Usage(error.to_string()))?;
        }
        let token = Token::read(token_file);
        Ok(Credentials {
            token: token.map_err(|error| CliError::Credentials(error.to_string()))?,
            protection,
        })
    }
}

/// The other hosts of a run, if the command line has some.
pub(super) fn hosts(args: &Args) -> Result<Option<Hosts>, CliError> {
    let council = args.council.seat()?;
    let has_hosts = !args.hosts.is_empty() || args.take_over_as.is_some();
    let Some(token_file) = args.token_file.as_ref().filter(|_| has_hosts) else {
        return match council {
            Some(_) => Err(CliError::Usage(
                "--council is for runs over several hosts: give each other host by --host"
                    .to_owned(),
            )),
            None => Ok(None),
        };
    };
    let mut addresses = args.hosts.iter().map(|(_, address)| *address);
    Ok(Some(Hosts {
        agents: args.hosts.clone(),
        credentials: args.protection.credentials(token_file, &mut addresses)?,
        lease: args.host_lease,
        council,
        own: args.take_over_as.clone(),
    }))
}

/// Stands by for a run that another host conducts, if that is asked for, until this one is to go on with it.
///
/// # Errors
/// It cannot stand by, or what it holds is of no use. [`StandBy::Over`] is none.
pub(super) fn stand_by(args: &Args, engine: &Engine) -> Result<StandBy, CliError> {
    let (Some(host), Some(hosts)) = (&args.take_over_as, hosts(args)?) else {
        return Ok(StandBy::NotAskedFor);
    };
    say(format_args!("zbmd-run: standing by as host {host}"));
    let Some(takeover) = engine.stand_by(&hosts)? else {
        say(format_args!("zbmd-run: the run has come to its end"));
        return Ok(StandBy::Over);
    };
    let sinks = engine.program().graph.sinks().zip(&takeover.outputs);
    for ((_, actor), token) in sinks {
        say(format_args!(
            "zbmd-run: taking over at iteration {}: `{}` goes on with token {token}",
            takeover.state.iterations, actor.name
        ));
    }
    Ok(StandBy::TakeOver(Box::new(takeover)))
}

/// What came of standing by.
pub(super) enum StandBy {
    /// It was not asked for.
    NotAskedFor,
    /// The run has ended without it.
    Over,
    /// The run is to be gone on with.
    TakeOver(Box<Takeover>),
}

/// Serves runs until the process is ended.
pub(super) fn serve(args: &Agent, registry: &Registry) -> Result<u8, CliError> {
    let mut address = std::iter::once(args.listen);
    let credentials = args
        .protection
        .credentials(&args.token_file, &mut address)?;
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
    let seat = args.council.seat()?;
    let served = serve_as_agent(registry, args.listen, &credentials, seat.as_ref(), listener);
    served.map_err(|source| FileError::Io {
        path: PathBuf::from(args.listen.to_string()),
        source,
    })?;
    Ok(exit::OK)
}
