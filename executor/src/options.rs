//! How to run: what the embedding program chooses. Knows no run.

use std::path::PathBuf;
use std::sync::Arc;

use zbmd_ir::{ParameterChange, PresentMode, State};

use crate::inject::Injector;
use crate::program::Engine;
use crate::supervise::declare::{DeclareError, Supervision};
use crate::supervise::{Event, Settings, TreeSpec};

/// How to run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Where to go on; from the initial tokens if `None`.
    pub state: Option<State>,
    /// The mode that the run begins in, which `state` is of; the model's first by default.
    pub present_mode: PresentMode,
    /// Changes of mode that are known ahead, in order: those of a recording, which is run again. The run goes over at exactly
    /// these iterations, through single iterations where they are no borders of blocks.
    pub scheduled_modes: Vec<ScheduledMode>,
    /// Iterations at most; as many as the sources have tokens for if `None`.
    pub iterations: Option<u64>,
    /// At the end, fill up what is less than an iteration with zero tokens and run it too.
    pub pad: bool,
    /// Sample slot timings every N periods; 0 disables sampling.
    pub sample_every: u64,
    /// Tie each worker to its device's cores.
    pub pin: bool,
    /// Ask the system to keep the arenas in memory.
    pub lock_memory: bool,
    /// Real-time priorities for the run's threads, and all memory locked: see [`crate::realtime`]. A run that the system
    /// does not give them does not start. Linux only.
    pub realtime: bool,
    /// Hold each worker of a CPU device to the time of a core that its plan needs, and have the system promise it that:
    /// [`Engine::shares`](crate::Engine::shares). Where it does not, the run goes on without, and the worker's report
    /// says so. Linux only; not together with [`Self::realtime`], and nothing is tied to cores.
    pub hold_share: bool,
    /// Bytes that each stream's queue holds at least; blocks that are large against it get more. A queue that holds
    /// many blocks costs few wake-ups, one that holds few keeps the embedding program close to the calendar.
    pub queue_bytes: u64,
    /// Where workers run.
    pub isolation: Isolation,
    /// Of each worker that is a process, keep a second one ready to take its place: it has loaded the program, and
    /// opened its GPU and made the kernels there. A restart then does not wait for that; it costs the memory of an idle
    /// process, on GPUs that of a context too.
    pub standby: bool,
    /// Check that what arrives over rings is what was sent.
    pub checksums: bool,
    /// Record what every worker really does, and write it to this file.
    pub trace: Option<PathBuf>,
    /// Count how long the calls of each actor take.
    pub profile: bool,
    /// Go on when workers are lost; without it, any loss ends the run.
    pub supervised: Option<Supervised>,
    /// Run over several hosts.
    #[cfg(hosts)]
    pub hosts: Option<Hosts>,
    /// Is told of everything that enters the run.
    pub inputs: Option<Arc<dyn InputListener>>,
}

/// A change of mode that is known ahead.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduledMode {
    /// The first iteration in it, counted as [`State::iterations`] is.
    pub iteration: u64,
    /// Its place among the engine's modes.
    pub mode: u32,
    /// Changes of live parameters that are made while the run is in it, as its graph numbers parameters and sources.
    pub changes: Vec<ParameterChange>,
}

/// Is told of everything that enters a run: whoever keeps it can run the same again, bit for bit. Called by the threads
/// that push tokens and set parameters, which wait for it; never by a worker.
pub trait InputListener: Send + Sync + std::fmt::Debug {
    /// The queue of a source, by its index among the graph's sources, has taken these tokens, in the machine's byte order.
    /// A source's tokens come in order, from the first one that the run has not consumed by the state that it began with.
    fn tokens(&self, source: usize, bytes: &[u8]);

    /// A change of live parameters has been decided, the one with this number of those of the session, from 0. Called in
    /// the order of numbers, before any change that follows is decided.
    fn change(&self, number: u64, change: &ParameterChange);

    /// The run goes over to the mode of this number at this iteration. Changes of modes and of parameters are numbered
    /// together; those of parameters that follow are numbered as the graph of the new mode does. Called by the supervising
    /// thread, before anything is computed in the mode.
    fn mode(&self, number: u64, iteration: u64, mode: u32);
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            state: None,
            present_mode: PresentMode::default(),
            scheduled_modes: Vec::new(),
            iterations: None,
            pad: false,
            sample_every: 64,
            pin: true,
            lock_memory: true,
            realtime: false,
            hold_share: false,
            queue_bytes: 1 << 20,
            isolation: Isolation::Threads,
            standby: false,
            checksums: false,
            trace: None,
            profile: false,
            supervised: None,
            #[cfg(hosts)]
            hosts: None,
            inputs: None,
        }
    }
}

/// The other hosts of a run, on each of which an agent waits: [`crate::serve_as_agent`].
#[cfg(hosts)]
#[derive(Clone, Debug)]
pub struct Hosts {
    /// For each host of the bundle's machine but this one, its name and where its agent listens.
    pub agents: Vec<(String, std::net::SocketAddr)>,
    /// Wait for agents that join, instead of `agents`: this host is then the first of the machine.
    pub gather: Option<Gather>,
    /// The secret that all agents have, and how connections to and between them are protected.
    pub credentials: zbmd_wire::connection::Credentials,
    /// A host that is silent for so long is lost. Five heartbeats are sent in that time, over UDP.
    pub lease: std::time::Duration,
    /// Conduct only as the leader of this council.
    pub council: Option<CouncilSeat>,
    /// Which host of the bundle's machine this one is; the only one without an agent if `None`. Others without an agent are lost
    /// from the beginning.
    pub own: Option<String>,
}

/// Where a run waits for its agents: [`Join`] has them come there.
#[cfg(hosts)]
#[derive(Clone, Debug)]
pub struct Gather {
    /// The run listens here.
    pub address: std::net::SocketAddr,
    /// For so long, until there is one of each host.
    pub limit: std::time::Duration,
    /// How many processes were started, this one included, if that is known: one for each host.
    pub processes: Option<u32>,
}

/// The run that an agent joins.
#[cfg(hosts)]
#[derive(Clone, Debug)]
pub struct Join {
    /// Where the run gathers its agents: `HOST:PORT`. The name is looked up at each try.
    pub address: String,
    /// Which host the agent is: its name, or its number in the bundle's machine, from 0.
    pub host: String,
    /// The run is waited for so long; for ever if `None`.
    pub limit: Option<std::time::Duration>,
    /// The agent ends with the run, and does not wait for the next one.
    pub is_once: bool,
}

/// The seat of a process in a council: three or five voters that agree on who conducts a run, and on what is decided in it. The
/// run is one of them, agents are the others.
#[cfg(hosts)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CouncilSeat {
    /// Where the voters listen for each other, the same everywhere; voter 1 first.
    pub voters: Vec<std::net::SocketAddr>,
    /// Which of them this process is, from 1.
    pub own: u64,
    /// Those that could not conduct, from 1: agents. The same everywhere.
    pub witnesses: Vec<u64>,
    /// The voter's own folder, with its journal. It must be kept as long as the council is used: a voter that forgets its votes
    /// can let two conductors be elected.
    pub folder: PathBuf,
    /// A conductor acts for so long after a majority has answered it. The same everywhere.
    pub lease: std::time::Duration,
    /// Names of sources whose tokens are given, as they come, to the voters that could take over: those that cannot be read again.
    /// All others are to be fed once more by whoever takes over ([`crate::Takeover`]), or lose what was given since the last
    /// border.
    pub mirrored: std::collections::BTreeSet<String>,
}

/// Where workers run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// In threads of the embedding program.
    #[default]
    Threads,
    /// Each in a process of its own: the given program, or if `None` this very one, which must call
    /// [`crate::serve_if_worker`] first of all.
    Processes {
        /// The program to start.
        program: Option<PathBuf>,
    },
    /// GPUs in processes, as above, and CPU devices in threads: a driver that fails takes its process along.
    GpuProcesses {
        /// The program to start.
        program: Option<PathBuf>,
    },
}

/// Receives every decision, in order, on a thread of its own. Whoever is slower than the decisions come misses some: the
/// event [`EventsDropped`](crate::supervise::What::EventsDropped) says how many. One that never comes back keeps its thread, and the run goes on.
pub type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// Is given the state at a committed border now and then, on the thread of [`Listener`]. While it is busy with one,
/// those that would follow are passed over.
pub type StateListener = Arc<dyn Fn(BorderState) + Send + Sync>;

/// Who is given states at committed borders, and when.
#[derive(Clone)]
pub struct StateSubscription {
    /// How often it is asked whether one is wanted.
    pub every_ns: u64,
    /// Whether one is wanted now. Asked by the supervising thread, which it must not keep waiting.
    pub is_wanted: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Is given it.
    pub listener: StateListener,
}

/// The state at a committed border.
#[derive(Clone, Debug, PartialEq)]
pub struct BorderState {
    /// Where the run was.
    pub state: State,
    /// In which mode.
    pub present_mode: PresentMode,
    /// For each sink, in actor order, the tokens that the session has given out up to there.
    pub emitted: Vec<u64>,
    /// How many changes of live parameters and of modes had been made in the session when the state was taken: it has them
    /// all, those that are still to take effect included, and none that were made later.
    pub changes_made: u64,
}

/// What to supervise with. See [`crate::supervise::declare`] for how people say it.
#[derive(Clone)]
pub struct Supervised {
    /// How to detect and when to give up.
    pub settings: Settings,
    /// Who supervises whom.
    pub tree: TreeSpec,
    /// Who receives every decision.
    pub listener: Option<Listener>,
    /// Who is given states at committed borders: to write checkpoints of.
    pub states: Option<StateSubscription>,
    /// Faults to bring about.
    pub inject: Option<Injector>,
    /// Blocks between borders at which the tokens on channels are saved; chosen from the calendar if `None`.
    pub save_every: Option<u64>,
}

impl Supervised {
    /// What a declaration says of an engine's devices; [`Supervision::default`] is sensible. Nobody receives
    /// decisions, and no fault is injected.
    ///
    /// # Errors
    /// Devices that the engine's program does not have; numbers that make no sense.
    pub fn declared(declaration: &Supervision, engine: &Engine) -> Result<Self, DeclareError> {
        let devices = &engine.program().machine.devices;
        let resolved = declaration.resolve(devices.iter().map(|d| d.name.as_str()))?;
        Ok(Self {
            settings: resolved.settings,
            tree: resolved.tree,
            listener: None,
            states: None,
            inject: None,
            save_every: None,
        })
    }
}

impl std::fmt::Debug for Supervised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervised")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
