//! A bundle's run, from the command line to the exit code, in four steps: everything that decides it is read, its streams
//! are opened, it runs, and what it left is written.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use zbmd_backends::op::Registry;
#[cfg(hosts)]
use zbmd_executor::Takeover;
use zbmd_executor::inject::{Injector, LateWake};
use zbmd_executor::{
    Engine, EngineError, Isolation, RunError, RunOptions, Session, StateSubscription, Stopper,
    Supervised,
};
use zbmd_ir::bundle;
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{PresentMode, Program, State};

#[cfg(hosts)]
use super::agent::{self, StandBy};
use super::args::{Args, Where};
use super::checkpoints::{self, Border, CheckpointFolder, Keeper};
#[cfg(target_os = "linux")]
use super::control::{Commanded, ControlServer};
use super::deadlines::Deadlines;
use super::ending::{Ending, WrittenFiles};
use super::files::{Files, Opened, start_pumps};
use super::live::LiveStreams;
use super::live_report::EdgeReports;
use super::record;
use super::recordings::Recordings;
use super::replay::Replayed;
use super::saved_state::{self, LoadedState};
#[cfg(target_os = "linux")]
use super::share;
use super::supervision::{self, EventLines};
#[cfg(hosts)]
use super::virtual_cluster::VirtualCluster;
use super::watch::{EdgeMeters, Watch};
use super::web::{PageRun, RunPage, WebContent, WebError, WebListener, WebServer};
use super::{CliError, exit, file_roles, is_end_forced, say, startup};
use crate::checkpoint::{Checkpoint, Origin};
use crate::flight::{ReadyRecorder, Recorder, ReplayStart};
use crate::io::pump::{PumpEnd, SharedFile};
use crate::io::{FileError, FileKind, is_standard};

/// Files of sources, of which none is read yet.
type SourceFiles = Opened<Box<dyn Read + Send>>;

/// Runs a bundle: on the streams of the command line, or with what a recording has for its sources.
pub(super) fn run(
    args: &Args,
    bundle_path: &Path,
    registry: &Registry,
    replayed: Option<Replayed>,
) -> Result<u8, CliError> {
    startup::ignore_file_size_signal();
    // What enters a replay is recorded already.
    let takes_commands = replayed.is_none();

    let plan = RunPlan::read(args, bundle_path, registry, replayed)?;
    let Some(plan) = plan.stand_by(registry)? else {
        return Ok(exit::OK);
    };
    let opened = OpenedRun::open(plan)?;
    let running = Running::start(opened, takes_commands)?;
    running.finish(takes_commands)
}

/// What is run, and by which options.
struct Subject<'a> {
    args: &'a Args,
    bundle_path: &'a Path,
    files: Files,
    engine: Engine,
}

/// All that decides a run. No file has been opened to be written.
struct RunPlan<'a> {
    subject: Subject<'a>,
    listeners: Listeners,
    supervised: Option<Supervised>,
    checkpoint_folder: Option<CheckpointFolder>,
    /// Where it begins, unless it goes on from a checkpoint or has nothing before it.
    start: Option<ReplayStart>,
    /// What a recording has for the sources; they have files if there is none.
    recorded_sources: Option<SourceFiles>,
    /// A run of another host that is gone on with: `start` is where.
    #[cfg(hosts)]
    takeover: Option<Takeover>,
}

impl<'a> RunPlan<'a> {
    /// Reads everything, and compares every file with the others.
    fn read(
        args: &'a Args,
        bundle_path: &'a Path,
        registry: &Registry,
        replayed: Option<Replayed>,
    ) -> Result<Self, CliError> {
        let modes = open_modes(args, bundle_path)?;
        // Streams are the same in all modes.
        let program = Arc::clone(&modes.programs()[0]);
        let files = Files::of(args, &program, replayed.as_ref())?;
        if args.trace.as_deref().is_some_and(is_standard) {
            let refusal_text = "a trace is not text: give --trace a file of its own".to_owned();
            return Err(CliError::Usage(refusal_text));
        }
        file_roles::check(args, &files)?;

        let listeners = Listeners::bind(args)?;
        let supervised = supervision::read(args, &program_names(&program))?;
        let loaded = args
            .load_state
            .as_deref()
            .map(|file| saved_state::load(args, file, bundle_path, &modes))
            .transpose()?;

        let engine = Engine::with_modes(modes, registry)?;
        let checkpoint_folder =
            checkpoints::open(args, bundle_path, &files, &engine, loaded.as_ref())?;
        let (start, recorded_sources) = match replayed {
            Some(Replayed { start, sources }) => (Some(start), Some(sources)),
            None => (loaded.map(ReplayStart::from), None),
        };
        Ok(Self {
            subject: Subject {
                args,
                bundle_path,
                files,
                engine,
            },
            listeners,
            supervised,
            checkpoint_folder,
            start,
            recorded_sources,
            #[cfg(hosts)]
            takeover: None,
        })
    }

    /// Stands by for the run of another host, if that is asked for. `None` if that has ended without this one.
    #[cfg(hosts)]
    fn stand_by(mut self, registry: &Registry) -> Result<Option<Self>, CliError> {
        let Subject {
            args,
            engine,
            files,
            ..
        } = &mut self.subject;
        if args.take_over_as.is_some() {
            files.live.check_takeover()?;
        }
        match agent::stand_by(args, engine, registry)? {
            StandBy::NotAskedFor => {}
            StandBy::Over => return Ok(None),
            StandBy::TakeOver(takeover) => {
                self.start = Some(ReplayStart::from(LoadedState {
                    state: takeover.state.clone(),
                    present_mode: PresentMode::default(),
                }));
                // Another program, perhaps, with the same streams.
                *engine = takeover.engine.clone();
                self.takeover = Some(*takeover);
            }
        }
        Ok(Some(self))
    }

    #[cfg(not(hosts))]
    fn stand_by(self, _: &Registry) -> Result<Option<Self>, CliError> {
        Ok(Some(self))
    }

    /// The state up to which sources have been read by the run that is gone on with, from their beginnings on.
    fn consumed_before(&self) -> Option<State> {
        #[cfg(hosts)]
        return self
            .takeover
            .as_ref()
            .map(|takeover| takeover.state.clone());
        #[cfg(not(hosts))]
        None
    }
}

/// A run whose streams are open. No file has been changed.
struct OpenedRun<'a> {
    subject: Subject<'a>,
    listeners: Listeners,
    supervised: Option<Supervised>,
    start: Option<ReplayStart>,
    sources: SourceFiles,
    live: LiveStreams,
    deadlines: Deadlines,
    event_lines: Option<EventLines>,
    recorder: Option<ReadyRecorder>,
    outputs: Outputs,
    #[cfg(hosts)]
    takeover: Option<Takeover>,
}

/// The files that a run writes its tokens and its checkpoints to.
struct Outputs {
    sinks: Opened<SharedFile>,
    /// For each, the tokens that it has when the session begins.
    held_tokens: Vec<u64>,
    /// Where they begin.
    origin: Origin,
    keeper: Option<Keeper>,
}

impl<'a> OpenedRun<'a> {
    fn open(plan: RunPlan<'a>) -> Result<Self, CliError> {
        let consumed_before = plan.consumed_before();
        let RunPlan {
            subject,
            listeners,
            mut supervised,
            checkpoint_folder,
            start,
            recorded_sources,
            #[cfg(hosts)]
            takeover,
        } = plan;
        let Subject {
            args,
            bundle_path,
            files,
            engine,
        } = &subject;
        let resumed = checkpoint_folder
            .as_ref()
            .and_then(|folder| folder.resumed.clone());
        let origin = run_origin(engine, resumed.as_ref(), start.as_ref());

        let sources = match recorded_sources {
            Some(sources) => sources,
            None => match &consumed_before {
                Some(state) => {
                    let beginning = run_origin(engine, None, None);
                    files.open_sources(engine.program(), &beginning, Some(state))?
                }
                None => {
                    let state = resumed.as_ref().map(|checkpoint| &checkpoint.state);
                    files.open_sources(engine.program(), &origin, state)?
                }
            },
        };
        let mut live = open_live_sources(&subject, &supervised, consumed_before.as_ref())?;
        let deadlines = Deadlines::of(args, engine, &live)?;
        let recordings = &files.recordings;
        recordings.check_dropping_sinks(&deadlines.dropping_sinks())?;
        let sinks = files.prepare_sinks(engine, bundle_path, resumed.as_ref(), &mut live)?;

        let event_lines = supervised
            .as_mut()
            .map(|supervised| open_events(args, supervised))
            .transpose()?
            .flatten();
        let keeper = keep_checkpoints(
            args,
            checkpoint_folder,
            engine,
            &sinks,
            &origin,
            &mut supervised,
        )?;
        let held_tokens = checkpoints::held_tokens(resumed.as_ref(), sinks.len());
        let start = resumed.map(resumed_start).or(start);
        let recorder = prepare_recorder(&subject, start.as_ref(), &mut supervised)?;
        Ok(Self {
            listeners,
            supervised,
            start,
            sources,
            live,
            deadlines,
            event_lines,
            recorder,
            outputs: Outputs {
                sinks,
                held_tokens,
                origin,
                keeper,
            },
            subject,
            #[cfg(hosts)]
            takeover,
        })
    }
}

/// Opens the sockets of sources that are not files.
fn open_live_sources(
    subject: &Subject<'_>,
    supervised: &Option<Supervised>,
    consumed_before: Option<&State>,
) -> Result<LiveStreams, CliError> {
    let Subject { files, engine, .. } = subject;
    let program = engine.program();
    let mut live = LiveStreams::default();
    live.open_sources(
        &files.live,
        program,
        late_wakes(supervised),
        consumed_before,
    )?;
    let recordings = &files.recordings;
    live.record_gaps(recordings.recorded_sources(program, &files.live));
    Ok(live)
}

/// Opens the file of events, which the supervisor writes to.
fn open_events(args: &Args, supervised: &mut Supervised) -> Result<Option<EventLines>, CliError> {
    let events = supervision::open_events(args)?;
    supervised.listener = Some(events.listener);
    Ok(events.lines)
}

/// Where a run goes on after a checkpoint.
fn resumed_start(checkpoint: Checkpoint) -> ReplayStart {
    ReplayStart::from(LoadedState {
        state: checkpoint.state,
        present_mode: checkpoint.present_mode,
    })
}

/// Makes the recorder ready that the command line asks for, and has it given states.
fn prepare_recorder(
    subject: &Subject<'_>,
    start: Option<&ReplayStart>,
    supervised: &mut Option<Supervised>,
) -> Result<Option<ReadyRecorder>, CliError> {
    let Subject {
        args,
        bundle_path,
        files,
        engine,
    } = subject;
    let first = start.map(|start| LoadedState {
        state: start.state.clone(),
        present_mode: start.present_mode.clone(),
    });
    let recorder = record::prepare(args, bundle_path, files, engine, first)?;
    if let (Some(recorder), Some(supervised)) = (&recorder, supervised) {
        record::give_states(recorder, supervised);
    }
    Ok(recorder)
}

/// A run that is on.
struct Running<'a> {
    subject: Subject<'a>,
    session: Session,
    live: LiveStreams,
    deadlines: Deadlines,
    recorder: Option<Recorder>,
    recordings: Recordings,
    servers: Vec<WebServer>,
    watch: Watch,
    /// Kept until nothing runs any more: then whoever watches the pumps sees that no other will end.
    pump_ends: Sender<PumpEnd>,
    outputs: Outputs,
    /// What holds the run to its share.
    #[cfg(target_os = "linux")]
    held_share: Option<share::HeldShare>,
    /// Agents of this run alone. They end after it.
    #[cfg(hosts)]
    virtual_cluster: Option<VirtualCluster>,
}

impl<'a> Running<'a> {
    fn start(opened: OpenedRun<'a>, takes_commands: bool) -> Result<Self, CliError> {
        let OpenedRun {
            subject,
            listeners,
            supervised,
            start,
            sources,
            mut live,
            deadlines,
            event_lines,
            recorder,
            outputs,
            #[cfg(hosts)]
            takeover,
        } = opened;
        let Subject {
            args,
            files,
            engine,
            ..
        } = &subject;
        if args.realtime && !args.quiet {
            note_throttling();
        }
        #[cfg(target_os = "linux")]
        let held_share = share::hold(args, engine)?;
        #[cfg(hosts)]
        let virtual_cluster = VirtualCluster::start(args, engine)?;
        let options = RunOptions {
            inputs: recorder.as_ref().map(ReadyRecorder::listener),
            #[cfg(hosts)]
            hosts: match &virtual_cluster {
                Some(cluster) => Some(cluster.hosts(args)),
                None => agent::hosts_of_run(args, &files.live)?,
            },
            ..run_options(args, supervised, start)
        };
        #[cfg(hosts)]
        let mut session = match takeover {
            Some(takeover) => takeover.start(options)?,
            None => engine.start(options)?,
        };
        #[cfg(not(hosts))]
        let mut session = engine.start(options)?;
        stop_on_signal(session.stopper(), args.is_launched());

        let (pump_ends, ended_pumps) = mpsc::channel();
        live.start(&mut session, event_lines.as_ref(), recorder.as_ref())?;
        let recorder = recorder
            .map(|recorder| recorder.start(session.parameters()))
            .transpose()
            .map_err(EngineError::Thread)?;
        let sinks = &outputs.sinks;
        let recordings = files
            .recordings
            .start(engine.program(), &files.live, &live, sinks)?;
        deadlines.write_events(event_lines.as_ref(), &live.running());
        deadlines.follow(&session.modes());
        let open_sinks = start_pumps(&mut session, sources, sinks, &deadlines, &pump_ends)?;
        live.play(&session, &pump_ends)?;

        let edge_meters = Arc::new(EdgeMeters {
            releases: live.releases(),
            deadlines: deadlines.clone(),
            parameters: session.parameters(),
            modes: session.modes(),
        });
        let servers = listeners
            .start(args, &session, &edge_meters, takes_commands)
            .map_err(EngineError::Thread)?;
        let stopper = session.stopper();
        let watch = Watch::start(args, stopper, ended_pumps, open_sinks, edge_meters);
        Ok(Self {
            subject,
            session,
            live,
            deadlines,
            recorder,
            recordings,
            servers,
            watch,
            pump_ends,
            outputs,
            #[cfg(target_os = "linux")]
            held_share,
            #[cfg(hosts)]
            virtual_cluster,
        })
    }

    /// Waits for its end, writes what is left to be written, and says how it ended.
    fn finish(self, takes_commands: bool) -> Result<u8, CliError> {
        let Self {
            subject,
            session,
            live,
            deadlines,
            recorder,
            recordings,
            servers,
            watch,
            pump_ends,
            outputs,
            #[cfg(target_os = "linux")]
            held_share,
            #[cfg(hosts)]
            virtual_cluster,
        } = self;
        // After the run's page, whose folder has the socket.
        #[cfg(target_os = "linux")]
        let control_server = takes_commands
            .then(|| start_control(&session, &subject.engine))
            .flatten();
        let run_outcome = session.join();
        #[cfg(hosts)]
        drop(virtual_cluster);
        #[cfg(target_os = "linux")]
        drop(control_server);
        drop(pump_ends);
        let mut watched = watch.finish();
        #[cfg(target_os = "linux")]
        drop(held_share);
        drop(servers);
        let edges = EdgeReports {
            deadlines: deadlines.finish(),
            live: live.finish(),
        };

        let sinks = &outputs.sinks;
        if matches!(run_outcome, Ok(_) | Err(RunError::GaveUp { .. })) {
            begin_outputs(sinks)?;
        }
        recordings.finish()?;

        let Subject {
            args,
            bundle_path,
            engine,
            ..
        } = &subject;
        let written = WrittenFiles {
            sinks,
            held_tokens: &outputs.held_tokens,
            origin: &outputs.origin,
        };
        let ending = Ending::of(run_outcome, engine, &written, &deadlines.dropping_sinks());
        let end_iterations = ending.left.as_ref().map(|left| left.state.iterations);
        watched
            .notes
            .extend(record::finish(args, recorder, end_iterations));
        if let Some(keeper) = outputs.keeper {
            // A padded end is not the border of an iteration: a checkpoint there would count tokens that no file has.
            let may_go_on = watched.failure.is_none() && !args.pad;
            let final_outcome = ending.left.as_ref().filter(|_| may_go_on);
            keeper.finish(final_outcome.map(Border::from));
        }
        ending.conclude(args, bundle_path, engine, watched, &edges)
    }
}

/// Addresses at which the run can be seen.
struct Listeners {
    metrics: Option<WebListener>,
    page: Option<WebListener>,
}

impl Listeners {
    fn bind(args: &Args) -> Result<Self, WebError> {
        let bind = |option, address: Option<SocketAddr>| {
            address
                .map(|address| WebListener::bind(option, address))
                .transpose()
        };
        Ok(Self {
            metrics: bind("--metrics", args.metrics)?,
            page: bind("--http", args.http)?,
        })
    }

    /// Answers whoever asks how the run is.
    fn start(
        self,
        args: &Args,
        session: &Session,
        edge_meters: &Arc<EdgeMeters>,
        takes_commands: bool,
    ) -> std::io::Result<Vec<WebServer>> {
        let look = || {
            let (stopper, edge_meters) = (session.stopper(), Arc::clone(edge_meters));
            Box::new(move || edge_meters.add_to(stopper.progress()))
        };
        let mut servers = Vec::new();

        if let Some(listener) = self.metrics {
            if !args.quiet {
                let address = listener.address();
                say(format_args!(
                    "zbmd-run: metrics at http://{address}/metrics"
                ));
            }
            let content = WebContent {
                look: look(),
                page: None,
            };
            servers.push(listener.start(args.has_priorities(), content)?);
        }

        // Said also where little else is: without the key in its path nobody can open the page.
        if let Some(listener) = self.page {
            let page = RunPage::new(PageRun {
                look: look(),
                parameters: session.parameters(),
                modes: session.modes(),
                probes: session.probes(),
                is_settable: takes_commands,
            })?;

            let (address, path) = (listener.address(), page.path());
            say(format_args!(
                "zbmd-run: the run is at http://{address}{path}"
            ));
            let content = WebContent {
                look: look(),
                page: Some(page),
            };
            servers.push(listener.start(args.has_priorities(), content)?);
        }
        Ok(servers)
    }
}

/// Takes commands to the run.
#[cfg(target_os = "linux")]
fn start_control(session: &Session, engine: &Engine) -> Option<ControlServer> {
    let commanded = Commanded {
        parameters: session.parameters(),
        modes: session.modes(),
        probes: session.probes(),
        model: engine.program().graph.name.clone(),
    };
    let started = ControlServer::start(commanded);
    let note = |error| {
        say(format_args!(
            "zbmd-run: note: the run takes no commands from outside: {error}"
        ));
    };
    started.map_err(note).ok()
}

/// The wake-ups of sources that are to be late.
fn late_wakes(supervised: &Option<Supervised>) -> &[LateWake] {
    let injector = supervised.as_ref().and_then(|s| s.inject.as_ref());
    injector.map_or(&[], Injector::late_wakes)
}

/// Opens a bundle, within the memory that the command line allows its structure.
pub(super) fn open_modes(args: &Args, bundle_path: &Path) -> Result<VerifiedModes, CliError> {
    let max_structure_bytes = u64::from(args.max_structure) << 20;
    bundle::open_modes_within(bundle_path, max_structure_bytes).map_err(|error| CliError::Bundle {
        path: bundle_path.to_owned(),
        source: Box::new(error),
    })
}

/// Where the run's files began: a checkpoint remembers it, a state from another run is a beginning of its own.
fn run_origin(
    engine: &Engine,
    resumed: Option<&Checkpoint>,
    start: Option<&ReplayStart>,
) -> Origin {
    match (resumed, start) {
        (Some(checkpoint), _) => checkpoint.origin.clone(),
        (None, Some(start)) => Origin::of(&start.state, &start.present_mode),
        (None, None) => {
            let initial_state = State::initial(&engine.program().graph);
            Origin::of(&initial_state, &PresentMode::default())
        }
    }
}

/// Files are changed by their first tokens; one that was given none is emptied now.
fn begin_outputs(sinks: &Opened<SharedFile>) -> Result<(), FileError> {
    for (_, _, sink) in sinks {
        match sink.kind() {
            FileKind::Regular => sink.begin()?,
            // It may have no reader, or one that keeps its writer waiting with the file in hand.
            FileKind::Device | FileKind::Stream => sink.release_reader(),
        }
    }
    Ok(())
}

/// Starts to write checkpoints, if there is a folder for them.
fn keep_checkpoints(
    args: &Args,
    folder: Option<CheckpointFolder>,
    engine: &Engine,
    sinks: &Opened<SharedFile>,
    origin: &Origin,
    supervised: &mut Option<Supervised>,
) -> Result<Option<Keeper>, CliError> {
    let (Some(folder), Some(supervised)) = (folder, supervised) else {
        return Ok(None);
    };
    let keep_result = folder.keep(engine, sinks, origin.clone(), supervised);
    let (keeper, listener) = keep_result.map_err(|source| FileError::Io {
        path: args.checkpoint.clone().unwrap_or_default(),
        source,
    })?;

    let every_ns = args.checkpoint_every.as_nanos();
    supervised.states = Some(StateSubscription {
        every_ns: every_ns.try_into().unwrap_or(u64::MAX),
        is_wanted: Arc::new(|| true),
        listener,
    });
    Ok(Some(keeper))
}

/// Says how much of the time the system leaves to real-time threads: those that compute without pause are held for the
/// rest, which looks like any other lateness.
fn note_throttling() {
    let read = |name: &str| -> Option<i64> {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse().ok()
    };
    if let (Some(runtime_us @ 0..), Some(period_us)) =
        (read("sched_rt_runtime_us"), read("sched_rt_period_us"))
    {
        say(format_args!(
            "zbmd-run: note: the system gives real-time threads {runtime_us} of every {period_us} us (sched_rt_runtime_us)"
        ));
    }
}

/// What the command line says of how to run, from where it begins.
fn run_options(
    args: &Args,
    supervised: Option<Supervised>,
    start: Option<ReplayStart>,
) -> RunOptions {
    let options = RunOptions {
        supervised,
        iterations: iterations_left(args, start.as_ref()),
        pad: args.pad,
        isolation: match args.isolation {
            Where::Gpus if !cfg!(target_os = "linux") => Isolation::Threads,
            Where::Gpus => Isolation::GpuProcesses { program: None },
            Where::Threads => Isolation::Threads,
            Where::Processes => Isolation::Processes { program: None },
        },
        standby: args.standby,
        realtime: args.realtime,
        #[cfg(target_os = "linux")]
        hold_share: args.share.is_some(),
        checksums: args.checksums,
        trace: args.trace.clone(),
        profile: args.profile,
        ..RunOptions::default()
    };
    match start {
        None => options,
        Some(start) => RunOptions {
            state: Some(start.state),
            present_mode: start.present_mode,
            scheduled_modes: start.scheduled_modes,
            ..options
        },
    }
}

/// Iterations that are left of those that the command line asks for: a run that is gone on with has done some of them.
fn iterations_left(args: &Args, start: Option<&ReplayStart>) -> Option<u64> {
    #[cfg(hosts)]
    if let (Some(_), Some(start)) = (&args.take_over_as, start) {
        let done = start.state.iterations;
        return args.iterations.map(|all| all.saturating_sub(done));
    }
    let _ = start;
    args.iterations
}

/// Names of the machine's devices, in order.
fn program_names(program: &Program) -> Vec<&str> {
    program
        .machine
        .devices
        .iter()
        .map(|device| device.name.as_str())
        .collect()
}

/// Ends the run at a border on an interrupt or termination signal; the second one ends the process.
fn stop_on_signal(stopper: Stopper, is_launched: bool) {
    let end_run = move || {
        if is_end_forced(is_launched) {
            std::process::exit(i32::from(exit::INTERRUPTED));
        }
        stopper.stop();
    };
    if let Err(error) = ctrlc::set_handler(end_run) {
        say(format_args!(
            "zbmd-run: note: an interrupt will not end the run in good order: {error}"
        ));
    }
}
