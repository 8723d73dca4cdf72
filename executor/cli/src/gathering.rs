//! The options by which a run and its agents find each other, without being named to the run.

use std::net::SocketAddr;
use std::time::Duration;

use zbmd_executor::{Gather, Join};

use super::CliError;
use super::args::duration;
use super::launcher::{Launcher, Place};

/// Options of a run that its agents join.
#[derive(Debug, clap::Args)]
pub(super) struct GatherArgs {
    /// Wait here until an agent of every other host of the bundle's machine has joined (`zbmd-run agent --join`), instead of
    /// --host: this is the machine's first host. Implies --supervise.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "token_file", conflicts_with_all = ["hosts", "take_over_as"])]
    pub(super) gather: Option<SocketAddr>,
    /// Wait for so long.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "60s", requires = "gather")]
    gather_limit: Duration,
    /// One process of this command has been started for each host of the machine, by this launcher: number 0 is the run, and each
    /// other one the agent of the host with its number, which ends with the run.
    #[arg(long, value_name = "LAUNCHER", requires = "gather")]
    pub(super) launcher: Option<Launcher>,
    /// Where the others reach number 0. Slurm says that itself: it is the first computer of the job, at the port of --gather.
    #[arg(long, value_name = "HOST:PORT", requires = "launcher", value_parser = host_and_port)]
    join: Option<String>,
}

impl GatherArgs {
    fn place(&self) -> Result<Option<Place>, CliError> {
        self.launcher.map(place_by).transpose()
    }

    /// Where this process waits for agents, if it does.
    ///
    /// # Errors
    /// The launcher says nothing, or what cannot be.
    pub(super) fn gather(&self) -> Result<Option<Gather>, CliError> {
        let Some(address) = self.gather else {
            return Ok(None);
        };
        if address.port() == 0 {
            return Err(CliError::Usage(format!(
                "--gather {address}: agents must know the port, so it cannot be 0"
            )));
        }
        Ok(Some(Gather {
            address,
            limit: self.gather_limit,
            processes: self.place()?.and_then(|place| place.count),
        }))
    }

    /// The run that this process is an agent of, if it is one.
    ///
    /// # Errors
    /// The launcher says nothing, or what cannot be.
    pub(super) fn join(&self) -> Result<Option<Join>, CliError> {
        let (Some(place), Some(gather)) = (self.place()?, self.gather) else {
            return Ok(None);
        };
        if place.number == 0 {
            return Ok(None);
        }
        let by_launcher = place.first_host.map(|host| (host, gather.port()));
        let address = self
            .join
            .clone()
            .or_else(|| by_launcher.map(|(host, port)| format!("{host}:{port}")));
        let Some(address) = address else {
            return Err(CliError::Usage(
                "this launcher does not say where number 0 runs: give --join HOST:PORT, where the others reach it"
                    .to_owned(),
            ));
        };
        Ok(Some(Join {
            address,
            host: place.number.to_string(),
            limit: Some(self.gather_limit),
            is_once: true,
        }))
    }
}

/// Options of an agent that joins a run.
#[derive(Debug, clap::Args)]
pub(super) struct JoinArgs {
    /// Join the run that gathers its agents here, as soon as there is one, and each one after it.
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    join: Option<String>,
    /// Which host of the bundle's machine this is: its name, or its number from 0.
    #[arg(
        long = "as",
        value_name = "HOST",
        requires = "join",
        conflicts_with = "launcher"
    )]
    host: Option<String>,
    /// This is the host with the number that the launcher has given this process.
    #[arg(long, value_name = "LAUNCHER", requires = "join")]
    launcher: Option<Launcher>,
    /// Join one run, and end with it.
    #[arg(long, requires = "join")]
    once: bool,
    /// Wait for a run for so long; for ever if it is left out.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "join")]
    join_limit: Option<Duration>,
}

impl JoinArgs {
    /// The run, if there is one to be joined.
    ///
    /// # Errors
    /// Which host this is has not been said.
    pub(super) fn join(&self) -> Result<Option<Join>, CliError> {
        let Some(address) = self.join.clone() else {
            return Ok(None);
        };
        let host = match (&self.host, self.launcher) {
            (Some(host), _) => host.clone(),
            (None, Some(launcher)) => place_by(launcher)?.number.to_string(),
            (None, None) => {
                return Err(CliError::Usage(
                    "--join needs --as HOST or --launcher: which host of the machine is this one?"
                        .to_owned(),
                ));
            }
        };
        Ok(Some(Join {
            address,
            host,
            limit: self.join_limit,
            is_once: self.once,
        }))
    }
}

fn place_by(launcher: Launcher) -> Result<Place, CliError> {
    let place = launcher.place(&|name| std::env::var(name).ok());
    place.map_err(|error| CliError::Usage(error.to_string()))
}

fn host_and_port(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once(':');
    let is_address = parts.is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    match is_address {
        true => Ok(text.to_owned()),
        false => Err("write it as HOST:PORT, such as node1:7100".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_a_host_and_a_port() {
        for text in ["node1:7100", "10.0.0.1:7100", "[::1]:7100"] {
            assert_eq!(host_and_port(text), Ok(text.to_owned()));
        }
        for text in ["node1", ":7100", "node1:0", "node1:port", "node1:70000"] {
            assert!(host_and_port(text).is_err(), "{text}");
        }
    }
}
