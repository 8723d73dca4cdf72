//! `zbmdc devices --cluster`: the machine file of a cluster, from what its agents say and measure.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use zbmd_backends::devices;
use zbmd_compiler::machine::{self, ClusterHost, HostLink};
use zbmd_ir::Device;
use zbmd_wire::args::{CredentialsError, ProtectionArgs, host};
use zbmd_wire::error::{HandshakeError, LinkError, Refusal};
use zbmd_wire::link_speed::{LinkSpeed, LinkSpeedClient};

use crate::output::{Exit, print, say};

/// Which hosts, and how they are reached.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// Write the machine file of a cluster: this is one of its hosts, whose `zbmd-run agent` listens there and serves no run. The
    /// links between all hosts are measured one after the other, some 0.2 s each
    #[arg(long, value_name = "NAME=ADDRESS:PORT", value_parser = host, requires = "token_file",
          conflicts_with = "cores")]
    cluster: Vec<(String, SocketAddr)>,
    /// This computer is a host of the cluster too, with this name
    #[arg(long, value_name = "NAME", requires = "cluster")]
    own: Option<String>,
    /// The secret that all hosts of a cluster share: a file that only its owner can read
    #[arg(long, value_name = "FILE", requires = "cluster")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    protection: ProtectionArgs,
}

/// Why there is no machine file.
enum ClusterError {
    Usage(String),
    File(String),
    /// A host of this name, or the way from it.
    Host(String, LinkError),
    /// Devices that cannot be read.
    Devices(String, postcard::Error),
}

impl From<CredentialsError> for ClusterError {
    fn from(error: CredentialsError) -> Self {
        match error {
            CredentialsError::Usage(text) => Self::Usage(text),
            CredentialsError::File(text) => Self::File(text),
        }
    }
}

impl ClusterArgs {
    pub(crate) fn is_asked_for(&self) -> bool {
        !self.cluster.is_empty()
    }
}

/// Writes the machine file to standard output.
pub(crate) fn list(args: &ClusterArgs, with_gpus: bool) -> Exit {
    let (exit, text) = match measure(args, with_gpus) {
        Ok((hosts, links)) => match machine::cluster_to_ron(&hosts, &links) {
            Ok(text) => return print(&text),
            Err(error) => panic!("a measured cluster cannot be written: {error}"),
        },
        Err(ClusterError::Usage(text)) => (Exit::Usage, text),
        Err(ClusterError::File(text)) => (Exit::File, text),
        Err(ClusterError::Host(
            host,
            LinkError::Handshake(HandshakeError::Refused {
                why: Refusal::Busy, ..
            }),
        )) => {
            let text = format!(
                "host {host} serves a run, which measuring would disturb: wait until it is over"
            );
            (Exit::Refused, text)
        }
        Err(ClusterError::Host(host, error)) => (Exit::Refused, format!("host {host}: {error}")),
        Err(ClusterError::Devices(host, error)) => {
            let text = format!(
                "host {host}: its devices cannot be read ({error}): both hosts must run the same zbmd"
            );
            (Exit::Refused, text)
        }
    };
    say(&format!("zbmdc: {text}\n"));
    exit
}

/// All hosts with their devices, this computer first if it is one of them, and the ways between them.
fn measure(
    args: &ClusterArgs,
    with_gpus: bool,
) -> Result<(Vec<ClusterHost>, Vec<HostLink>), ClusterError> {
    check_names(args)?;
    let token_file = args.token_file.as_deref().unwrap_or(Path::new(""));
    let mut addresses = args.cluster.iter().map(|(_, address)| *address);
    let credentials = args.protection.credentials(token_file, &mut addresses)?;

    let own = args.own.iter().map(|name| ClusterHost {
        name: name.clone(),
        devices: own_devices(with_gpus),
    });
    let mut hosts: Vec<ClusterHost> = own.collect();
    let mut clients = Vec::new();
    for (name, address) in &args.cluster {
        let failed = |error| ClusterError::Host(name.clone(), error);
        let mut client = LinkSpeedClient::dial(*address, &credentials).map_err(failed)?;
        let description = client.description(with_gpus).map_err(failed)?;
        let devices: Vec<Device> = postcard::from_bytes(&description)
            .map_err(|error| ClusterError::Devices(name.clone(), error))?;
        hosts.push(ClusterHost {
            name: name.clone(),
            devices,
        });
        clients.push(client);
    }

    let links = measure_links(args, &mut clients)?;
    Ok((hosts, links))
}

fn own_devices(with_gpus: bool) -> Vec<Device> {
    let mut machine = machine::detect();
    if with_gpus {
        let found_gpus = devices::gpus();
        if let Err(reason) = &found_gpus {
            say(&format!("zbmdc: no GPUs on this computer: {reason}\n"));
        }
        machine = devices::with_gpus(machine, &found_gpus.unwrap_or_default());
    }
    machine.devices.raw
}

fn check_names(args: &ClusterArgs) -> Result<(), ClusterError> {
    let agents = args.cluster.iter().map(|(name, _)| name);
    let names: Vec<&String> = args.own.iter().chain(agents).collect();
    for (index, name) in names.iter().enumerate() {
        if names[..index].contains(name) {
            return Err(ClusterError::Usage(format!(
                "two hosts are called {name}: give each its own name"
            )));
        }
    }
    Ok(())
}

/// The ways between all hosts, one after the other: two at a time would share what there is. `clients` are connected to the agents in
/// the order of the command line.
fn measure_links(
    args: &ClusterArgs,
    clients: &mut [LinkSpeedClient],
) -> Result<Vec<HostLink>, ClusterError> {
    // This computer is number 0, if it is a host.
    let first_agent = usize::from(args.own.is_some());
    let mut links = Vec::new();
    let mut add = |from: usize, to: usize, speed: LinkSpeed| {
        links.push(HostLink {
            from,
            to,
            bytes_per_s: speed.bytes_per_s,
            latency_ns: speed.latency_ns,
        });
    };
    for (index, client) in clients.iter_mut().enumerate() {
        let failed = |error| ClusterError::Host(args.cluster[index].0.clone(), error);
        let host = first_agent + index;
        if args.own.is_some() {
            add(0, host, client.speed_there().map_err(failed)?);
            add(host, 0, client.speed_back().map_err(failed)?);
        }
        for (other, (_, address)) in args.cluster.iter().enumerate() {
            if other != index {
                let speed = client.speed_to(*address).map_err(failed)?;
                add(host, first_agent + other, speed);
            }
        }
    }
    Ok(links)
}
