//! `zbmd-run agent`: the workers of this host, for runs that are started on another one.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use zbmd_backends::op::Registry;
use zbmd_executor::{AgentEvent, AgentSeat, Engine, Hosts, Join, Takeover, serve_as_agent};
use zbmd_wire::args::ProtectionArgs;

use super::args::Args;
use super::council::CouncilArgs;
use super::gathering::JoinArgs;
use super::live::LiveBindings;
use super::{CliError, INTERRUPTED, exit, is_end_forced, say, startup};

/// What an agent says first, before its address: whoever has started it waits for that.
pub(super) const LISTENING: &str = "zbmd-run: agent: listening at ";

/// Options of `zbmd-run agent`.
#[derive(Debug, clap::Args)]
pub(super) struct Agent {
    /// Wait for runs at this address. Port 0 is one that is free. With --join a free one of this computer, if it is left out.
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "join")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    join: JoinArgs,
    /// End as soon as standard input does: then whoever has started this process is gone, on this computer or, by ssh, on
    /// another one.
    #[arg(long)]
    end_with_input: bool,
    /// Keep the bundle that was sent last in this folder, so that an agent which is started anew is sent only what it lacks of it;
    /// in memory, if it is left out.
    #[arg(long, value_name = "FOLDER")]
    bundle_folder: Option<PathBuf>,
    /// The secret that all hosts of a run share: a file that only its owner can read.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    #[command(flatten)]
    protection: ProtectionArgs,
    #[command(flatten)]
    council: CouncilArgs,
}

/// The other hosts of a run, if the command line has some.
pub(super) fn hosts(args: &Args) -> Result<Option<Hosts>, CliError> {
    let council = args.council.seat()?;
    let Some(token_file) = args.token_file.as_ref().filter(|_| args.has_hosts()) else {
        return match council {
            Some(_) => Err(CliError::Usage(
                "--council is for runs over several hosts: give each other host by --host, or let them join by --gather"
                    .to_owned(),
            )),
            None => Ok(None),
        };
    };

    let gather = args.gathering.gather()?;
    if let Some(gather) = gather.as_ref().filter(|_| !args.quiet) {
        say(format_args!(
            "zbmd-run: waiting for agents at {}",
            gather.address
        ));
    }
    let named = args.hosts.iter().map(|(_, address)| *address);
    let mut addresses = named.chain(args.gathering.gather);
    Ok(Some(Hosts {
        agents: args.hosts.clone(),
        gather,
        credentials: args.protection.credentials(token_file, &mut addresses)?,
        lease: args.host_lease(),
        council,
        own: args.take_over_as.clone(),
    }))
}

/// The same for a run with these live streams: in the name of a council, sources that cannot be read again are mirrored.
pub(super) fn hosts_of_run(args: &Args, live: &LiveBindings) -> Result<Option<Hosts>, CliError> {
    let mirrored = args.council.mirrored(&live.unrepeatable())?;
    let mut hosts = hosts(args)?;
    let council = hosts.as_mut().and_then(|hosts| hosts.council.as_mut());
    if let Some(council) = council {
        council.mirrored = mirrored;
    }
    Ok(hosts)
}

/// Stands by for a run that another host conducts, if that is asked for, until this one is to go on with it.
///
/// # Errors
/// It cannot stand by, or what it holds is of no use. [`StandBy::Over`] is none.
pub(super) fn stand_by(
    args: &Args,
    engine: &Engine,
    registry: &Registry,
) -> Result<StandBy, CliError> {
    let Some(host) = &args.take_over_as else {
        return Ok(StandBy::NotAskedFor);
    };
    let Some(hosts) = hosts(args)? else {
        return Ok(StandBy::NotAskedFor);
    };

    say(format_args!("zbmd-run: standing by as host {host}"));
    let Some(takeover) = engine.stand_by(&hosts, registry)? else {
        say(format_args!("zbmd-run: the run has come to its end"));
        return Ok(StandBy::Over);
    };
    let program = takeover.engine.program();
    if !std::ptr::eq(program, engine.program()) {
        say(format_args!(
            "zbmd-run: going on with another program, which the run has gone over to"
        ));
    }

    let graph = &program.graph;
    let sinks = graph.sinks().zip(&takeover.outputs);
    for ((_, actor), token) in sinks {
        say(format_args!(
            "zbmd-run: taking over at iteration {}: `{}` goes on with token {token}",
            takeover.state.iterations, actor.name
        ));
    }
    let sources = graph.sources().zip(&takeover.mirrored);
    for ((_, actor), tokens) in sources.filter(|(_, tokens)| **tokens > 0) {
        say(format_args!(
            "zbmd-run: {tokens} tokens that `{}` had been given come first",
            actor.name
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
    let join = args.join.join()?;
    let service = Service {
        listen: args.listen,
        token_file: &args.token_file,
        protection: &args.protection,
        council: &args.council,
        join: join.as_ref(),
        bundle_folder: args.bundle_folder.as_deref(),
    };
    if args.end_with_input {
        end_with_input();
    }
    service.serve(registry)
}

/// Serves the run that number 0 of the same launcher is.
pub(super) fn serve_launched(
    args: &Args,
    join: &Join,
    registry: &Registry,
) -> Result<u8, CliError> {
    let Some(token_file) = &args.token_file else {
        return Err(CliError::Usage("--gather needs --token-file".to_owned()));
    };
    let service = Service {
        listen: None,
        token_file,
        protection: &args.protection,
        council: &args.council,
        join: Some(join),
        bundle_folder: None,
    };
    service.serve(registry)
}

/// What an agent is to do.
struct Service<'a> {
    listen: Option<SocketAddr>,
    token_file: &'a Path,
    protection: &'a ProtectionArgs,
    council: &'a CouncilArgs,
    join: Option<&'a Join>,
    bundle_folder: Option<&'a Path>,
}

impl Service<'_> {
    fn serve(&self, registry: &Registry) -> Result<u8, CliError> {
        startup::ignore_file_size_signal();
        let any_ip = match self.protection.is_loopback() {
            true => Ipv4Addr::LOCALHOST,
            false => Ipv4Addr::UNSPECIFIED,
        };
        let any_port = SocketAddr::from((any_ip, 0));
        let address = self.listen.unwrap_or(any_port);
        let mut addresses = std::iter::once(address);
        let credentials = self
            .protection
            .credentials(self.token_file, &mut addresses)?;

        let council = self.council.seat()?;
        if self.join.is_some_and(|join| join.is_once) {
            end_with_run_on_signal();
        }
        let seat = AgentSeat {
            address,
            credentials: &credentials,
            council: council.as_ref(),
            join: self.join,
            bundle_folder: self.bundle_folder,
            has_sentinel: true,
        };
        serve_as_agent(registry, seat, tell)?;
        Ok(match INTERRUPTED.load(Ordering::Relaxed) {
            true => exit::INTERRUPTED,
            false => exit::OK,
        })
    }
}

/// A run is served.
static SERVES: AtomicBool = AtomicBool::new(false);

fn tell(event: AgentEvent) {
    match event {
        AgentEvent::Listening(address) => {
            say(format_args!("{LISTENING}{address}"));
        }
        AgentEvent::Waiting { why } => {
            say(format_args!("zbmd-run: agent: waiting for a run: {why}"));
        }
        AgentEvent::Joined { run } => {
            say(format_args!("zbmd-run: agent: joined the run at {run}"));
        }
        AgentEvent::PassedOver { why } => {
            say(format_args!(
                "zbmd-run: agent: note: {why}; the run sends what is missing of the bundle"
            ));
        }
        AgentEvent::Received {
            parts,
            held,
            passed_on,
        } => {
            let sent = parts - held - passed_on;
            say(format_args!(
                "zbmd-run: agent: the bundle has {parts} parts: {held} were here, {passed_on} came from another agent, {sent} from the run"
            ));
        }
        AgentEvent::Began { conductor } => {
            SERVES.store(true, Ordering::Relaxed);
            say(format_args!("zbmd-run: agent: a run of {conductor} begins"));
        }
        AgentEvent::Ended {
            conductor,
            why,
            epochs,
            fenced,
        } => {
            SERVES.store(false, Ordering::Relaxed);
            say(format_args!(
                "zbmd-run: agent: the run of {conductor} has ended: {why}; epochs begun for it: {epochs}; {fenced} connections of runs and epochs that were over have been refused"
            ));
        }
    }
}

/// Whoever stops all processes of a run at once stops the run among them: its agents work for it until it has ended in good
/// order. A second signal, or one without a run, ends the process.
fn end_with_run_on_signal() {
    let on_signal = || {
        if is_end_forced(true) || !SERVES.load(Ordering::Relaxed) {
            std::process::exit(i32::from(exit::INTERRUPTED));
        }
    };
    if let Err(error) = ctrlc::set_handler(on_signal) {
        say(format_args!(
            "zbmd-run: note: a signal ends this agent at once, before its run: {error}"
        ));
    }
}

/// Ends the process when its input does.
fn end_with_input() {
    std::thread::spawn(|| {
        let mut input = std::io::stdin().lock();
        // An input that cannot be read is one that has ended.
        while input.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
        std::process::exit(i32::from(exit::OK));
    });
}
