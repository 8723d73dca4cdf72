//! Streams that are URLs: which they are, their threads, and what they report. The sockets are `zbmd-live`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use zbmd_ir::{Actor, DType, Program, State, TokenType};
use zbmd_live::{
    Endpoint, Feeder, FeederEnd, FeederParts, Gap, LiveEvent, LiveReport, LiveSink, LiveSource,
    PacedSource, ReleaseClock, SharedReport, SinkContext, SinkUrl, SourceUrl, TokenConsumer,
    session::HandleConsumer, sigmf,
};

use super::CliError;
use super::deadlines::times_progress;
use super::supervision::EventLines;
use crate::flight::ReadyRecorder;
use crate::io::pump::{self, PumpEnd};
use crate::io::{FileError, Port, is_url, open_source, skip_up_to};
use zbmd_executor::inject::LateWake;
use zbmd_executor::live::ReleaseProgress;
use zbmd_executor::{EngineError, PumpRole, Session};

/// What a source's flags are called: `--input gaps=flags:iq`.
const FLAGS_PREFIX: &str = "flags:";

/// What a source that is not a file is fed by.
#[derive(Clone, Debug)]
pub(super) enum LiveInput {
    /// A URL.
    Url(SourceUrl),
    /// A flag for each token of the source of this name.
    FlagsOf(String),
}

/// The streams of the command line that are not files.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveBindings {
    pub(super) inputs: BTreeMap<String, LiveInput>,
    pub(super) outputs: BTreeMap<String, SinkUrl>,
}

/// Whether a name on the command line is not that of a file.
pub(super) fn is_live(path: &Path) -> bool {
    is_url(path) || flags_of(path).is_some() || sigmf::is_recording(path)
}

/// The source whose flags a name stands for.
fn flags_of(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(FLAGS_PREFIX)
}

fn usage(text: String) -> CliError {
    CliError::Usage(text)
}

impl LiveBindings {
    /// Reads the URLs among the names that streams have.
    pub(super) fn of(
        inputs: &BTreeMap<String, PathBuf>,
        outputs: &BTreeMap<String, PathBuf>,
        program: &Program,
    ) -> Result<Self, CliError> {
        let mut bindings = Self::default();
        for (stream, path) in inputs {
            if let Some(flagged) = flags_of(path) {
                let input = LiveInput::FlagsOf(flagged.to_owned());
                bindings.inputs.insert(stream.clone(), input);
            } else if let Some(text) = path.to_str().filter(|_| is_url(path)) {
                let url = SourceUrl::parse(text)
                    .map_err(|error| usage(format!("--input {stream}={text}: {error}")))?;
                bindings.inputs.insert(stream.clone(), LiveInput::Url(url));
            } else if sigmf::is_recording(path) {
                let url = SourceUrl::recording(path);
                bindings.inputs.insert(stream.clone(), LiveInput::Url(url));
            }
        }
        for (stream, path) in outputs {
            if let Some(text) = path.to_str().filter(|_| is_url(path)) {
                let url = SinkUrl::parse(text)
                    .map_err(|error| usage(format!("--output {stream}={text}: {error}")))?;
                bindings.outputs.insert(stream.clone(), url);
            }
        }
        bindings.check_flags(program)?;
        Ok(bindings)
    }

    /// Refuses flags of what is not a live source, or on a source of other tokens than bytes.
    fn check_flags(&self, program: &Program) -> Result<(), CliError> {
        let mut flagged_before: BTreeMap<&str, &str> = BTreeMap::new();
        for (stream, input) in &self.inputs {
            let LiveInput::FlagsOf(flagged) = input else {
                continue;
            };
            if !matches!(self.inputs.get(flagged), Some(LiveInput::Url(_))) {
                return Err(usage(format!(
                    "--input {stream}=flags:{flagged}: `{flagged}` is not a source that has a URL: only live sources have gaps"
                )));
            }
            if let Some(other) = flagged_before.insert(flagged, stream) {
                return Err(usage(format!(
                    "--input {stream}=flags:{flagged}: source `{other}` has these flags already; one can"
                )));
            }
            let mut sources = program.graph.sources();
            let actor = sources.find(|(_, actor)| actor.name == *stream);
            let token = actor.map(|(_, actor)| &actor.outputs[0].token);
            if let Some(token) = token.filter(|token| **token != TokenType::scalar(DType::U8)) {
                return Err(usage(format!(
                    "--input {stream}=flags:{flagged}: source `{stream}` carries {token}; flags are u8"
                )));
            }
        }
        Ok(())
    }

    /// Refuses checkpoints, which need sources that can be read again.
    pub(super) fn check_checkpoint(&self) -> Result<(), CliError> {
        match self.inputs.keys().next() {
            None => Ok(()),
            Some(stream) => Err(usage(format!(
                "--checkpoint: source `{stream}` is live, and its tokens are not read again: record it to a file, and run on that"
            ))),
        }
    }

    /// The sources that cannot be read again, with those that carry their flags.
    #[cfg(hosts)]
    pub(super) fn unrepeatable(&self) -> BTreeSet<String> {
        let is_file = |name: &str| {
            let url = self.url(name);
            let endpoint = url.map(|url| &url.endpoint);
            matches!(endpoint, Some(Endpoint::Paced(_) | Endpoint::Recording(_)))
        };
        let unrepeatable = self.inputs.iter().filter(|(name, input)| match input {
            LiveInput::Url(_) => !is_file(name),
            LiveInput::FlagsOf(flagged) => !is_file(flagged),
        });
        unrepeatable.map(|(name, _)| name.clone()).collect()
    }

    /// Refuses to go on in the middle of a recording.
    #[cfg(hosts)]
    pub(super) fn check_takeover(&self) -> Result<(), CliError> {
        let recording = self.inputs.keys().find(|name| {
            let url = self.url(name);
            url.is_some_and(|url| matches!(url.endpoint, Endpoint::Recording(_)))
        });
        match recording {
            None => Ok(()),
            Some(stream) => Err(usage(format!(
                "--take-over-as: source `{stream}` plays a recording, which cannot be gone on with in its middle: play its file of tokens, as {stream}=paced:FILE?rate=..."
            ))),
        }
    }

    /// The URL of a source, if it has one.
    pub(super) fn url(&self, source: &str) -> Option<&SourceUrl> {
        match self.inputs.get(source) {
            Some(LiveInput::Url(url)) => Some(url),
            Some(LiveInput::FlagsOf(_)) | None => None,
        }
    }

    /// The source that has the flags of `flagged`.
    fn flag_source(&self, flagged: &str) -> Option<&String> {
        let is_wanted =
            |input: &LiveInput| matches!(input, LiveInput::FlagsOf(name) if name == flagged);
        let mut inputs = self.inputs.iter();
        inputs
            .find(|(_, input)| is_wanted(input))
            .map(|(name, _)| name)
    }
}

/// A source whose socket is open.
struct OpenSource {
    stream: String,
    url: SourceUrl,
    source: Box<dyn LiveSource>,
    token: TokenType,
    model_rate: Option<f64>,
    flag_source: Option<String>,
}

/// A source that only needs a thread.
struct ReadySource {
    stream: String,
    feeder: Feeder,
}

/// A sink whose socket is open; the run's end of its pipe is in the list of files.
struct OpenSink {
    stream: String,
    sink: Box<dyn LiveSink>,
    tokens: File,
    report: SharedReport,
}

/// Everything live of a run.
#[derive(Default)]
pub(super) struct LiveStreams {
    sources: Vec<OpenSource>,
    ready_sources: Vec<ReadySource>,
    sinks: Vec<OpenSink>,
    sinks_are_over: Arc<AtomicBool>,
    reports: Vec<SharedReport>,
    /// Sources whose gaps are recorded.
    recorded_sources: BTreeSet<String>,
    /// Of the sources that are played by the clock.
    release_clocks: BTreeMap<String, Arc<ReleaseClock>>,
    threads: Threads,
}

/// The threads of live streams: each has a sender, and the receiver sees when the last one is gone.
struct Threads {
    running: Sender<()>,
    all_ended: Receiver<()>,
}

impl Default for Threads {
    fn default() -> Self {
        let (running, all_ended) = mpsc::channel();
        Self { running, all_ended }
    }
}

impl Threads {
    /// Waits until all have ended, for so long at most.
    fn wait(self, limit: Duration) {
        drop(self.running);
        // Nobody sends anything: an error says that all are gone, or that the time is over.
        let _ = self.all_ended.recv_timeout(limit);
    }
}

/// What went wrong with a URL, as with a file.
fn failed(url: &str) -> impl Fn(io::Error) -> FileError {
    let path = PathBuf::from(url);
    move |source| FileError::Io {
        path: path.clone(),
        source,
    }
}

fn no_thread(error: io::Error) -> CliError {
    CliError::Engine(EngineError::Thread(error))
}

impl LiveStreams {
    /// Opens the sockets of sources: from here on the system keeps what arrives.
    pub(super) fn open_sources(
        &mut self,
        bindings: &LiveBindings,
        program: &Program,
        late_wakes: &[LateWake],
        consumed_before: Option<&State>,
    ) -> Result<(), CliError> {
        check_late_wakes(bindings, late_wakes)?;
        for (index, (_, actor)) in program.graph.sources().enumerate() {
            let Some(LiveInput::Url(url)) = bindings.inputs.get(&actor.name) else {
                continue;
            };
            let token = &actor.outputs[0].token;
            let refused = |error| usage(format!("--input {}={}: {error}", actor.name, url.text));
            let rate = zbmd_live::token_rate(url, token, actor.sample_rate()).map_err(refused)?;

            let source = match &url.endpoint {
                Endpoint::Paced(path) => {
                    let consumed = consumed_before.map_or(0, |state| state.consumed[index].1);
                    let mut paced = paced_source(actor, path, url, (rate, consumed))?;
                    for late in late_wakes.iter().filter(|late| late.source == actor.name) {
                        paced.wake_late(late.piece, Duration::from_nanos(late.by.0));
                    }
                    let stream = actor.name.clone();
                    self.release_clocks.insert(stream, paced.clock());
                    Box::new(paced)
                }
                _ => zbmd_live::open_source(url, token, rate).map_err(failed(&url.text))?,
            };

            self.sources.push(OpenSource {
                stream: actor.name.clone(),
                url: url.clone(),
                source,
                token: token.clone(),
                model_rate: actor.sample_rate(),
                flag_source: bindings.flag_source(&actor.name).cloned(),
            });
        }
        Ok(())
    }

    /// Keeps all gaps of these sources.
    pub(super) fn record_gaps(&mut self, sources: BTreeSet<String>) {
        self.recorded_sources = sources;
    }

    /// What a source that has started does.
    pub(super) fn report_of(&self, source: &str) -> Option<SharedReport> {
        let mut reports = self.reports.iter();
        let found = reports.find(|report| report.is_of_source(source));
        found.cloned()
    }

    /// What a thread keeps that the end of the command waits for.
    pub(super) fn running(&self) -> Sender<()> {
        self.threads.running.clone()
    }

    /// When the tokens of a source are released, if it is played by the clock.
    pub(super) fn release_clock(&self, source: &str) -> Option<Arc<ReleaseClock>> {
        self.release_clocks.get(source).map(Arc::clone)
    }

    /// How late the sources are that are played by the clock.
    pub(super) fn releases(&self) -> Releases {
        Releases {
            clocks: self.release_clocks.clone(),
        }
    }

    /// Opens the socket of a sink; the end of a pipe that its tokens are to be written to.
    pub(super) fn open_sink(&mut self, actor: &Actor, url: &SinkUrl) -> Result<File, FileError> {
        let token = &actor.inputs[0].token;
        let context = SinkContext {
            model_rate: actor.sample_rate(),
            has_live_source: !self.sources.is_empty(),
        };
        let sink = zbmd_live::open_sink(url, token, context).map_err(failed(&url.text))?;
        let (reader, writer) = io::pipe().map_err(failed(&url.text))?;
        let report = SharedReport::new(&actor.name, &url.text, true);
        self.sinks.push(OpenSink {
            stream: actor.name.clone(),
            sink,
            tokens: File::from(std::os::fd::OwnedFd::from(reader)),
            report,
        });
        Ok(File::from(std::os::fd::OwnedFd::from(writer)))
    }

    /// Starts a thread for each sink, and takes the handles of the sources.
    pub(super) fn start(
        &mut self,
        session: &mut Session,
        events: Option<&EventLines>,
        recorder: Option<&ReadyRecorder>,
    ) -> Result<(), CliError> {
        let pump_role = session.pump_role();
        for open in std::mem::take(&mut self.sinks) {
            self.start_sink(open, pump_role)?;
        }
        for open in std::mem::take(&mut self.sources) {
            self.prepare_source(open, session, events, recorder)?;
        }
        Ok(())
    }

    /// Starts a thread for each source. Last of all: the clock that releases tokens waits for nobody, and blocks would be late
    /// because the run was not there yet.
    pub(super) fn play(
        &mut self,
        session: &Session,
        ends: &Sender<PumpEnd>,
    ) -> Result<(), CliError> {
        for ready in std::mem::take(&mut self.ready_sources) {
            self.start_source(ready, session, ends)?;
        }
        Ok(())
    }

    fn start_sink(&mut self, open: OpenSink, pump_role: PumpRole) -> Result<(), CliError> {
        let is_over = Arc::clone(&self.sinks_are_over);
        self.reports.push(open.report.clone());
        let running = self.running();
        let thread_name = format!("zbmd live {}", open.stream);
        let run = move |entered: io::Result<()>| {
            // Without its role nothing is read: the run sees that its sink's pipe is closed.
            if entered.is_ok() {
                open.sink.run(open.tokens, &is_over, &open.report);
            }
            drop(running);
        };
        let thread = pump_role.spawn(thread_name, run);
        thread.map(drop).map_err(no_thread)
    }

    fn prepare_source(
        &mut self,
        open: OpenSource,
        session: &mut Session,
        events: Option<&EventLines>,
        recorder: Option<&ReadyRecorder>,
    ) -> Result<(), CliError> {
        // A handle that was taken has a feeder: the source of another one's flags.
        let Ok(handle) = session.source(&open.stream) else {
            return Ok(());
        };
        let flag_source = open.flag_source.as_ref();
        let flags = flag_source.and_then(|name| session.source(name).ok());
        let report = SharedReport::new(&open.stream, &open.url.text, false);
        if self.recorded_sources.contains(&open.stream) {
            report.record_gaps();
        }
        self.reports.push(report.clone());

        // The session sees handles only; where tokens come from, the feeder alone knows.
        let boxed = |handle| Box::new(HandleConsumer(handle)) as Box<dyn TokenConsumer>;
        let parts = FeederParts {
            token: open.token,
            model_rate: open.model_rate,
            consumer: boxed(handle),
            flags: flags.map(boxed),
            listener: both_listeners(
                events.map(|events| events.stream_listener(self.running())),
                recorder.map(|recorder| recorder.gap_listener(&open.stream)),
            ),
            report,
        };
        let option = format!("--input {}={}", open.stream, open.url.text);
        let feeder = Feeder::new(&open.url, open.source, parts)
            .map_err(|error| usage(format!("{option}: {error}")))?;
        let stream = open.stream;
        self.ready_sources.push(ReadySource { stream, feeder });
        Ok(())
    }

    fn start_source(
        &self,
        ready: ReadySource,
        session: &Session,
        ends: &Sender<PumpEnd>,
    ) -> Result<(), CliError> {
        let ReadySource { stream, feeder } = ready;
        let name = stream.clone();
        let stopper = session.stopper();
        let pump_role = session.pump_role();
        let running = self.running();
        let run = move || {
            // Whoever waits for all threads sees this one gone when it is dropped.
            let _running = running;
            if pump_role.is_held() {
                stopper.wait_for_workers();
            }
            match feeder.run(&|| stopper.is_stopping()) {
                FeederEnd::Closed => PumpEnd::SourceRefused,
                FeederEnd::SourceEnded => PumpEnd::SourceEnded {
                    stream,
                    partial_bytes: 0,
                },
            }
        };
        pump::spawn(&name, ends.clone(), pump_role, run).map_err(no_thread)
    }

    /// Waits until sinks have sent what they were given, or as much as their peers take; what all of them did.
    pub(super) fn finish(self) -> Vec<LiveReport> {
        /// A sink leaves a peer that takes nothing sooner; this is for files of events that nobody reads.
        const MAX_WAIT: Duration = Duration::from_secs(2);
        self.sinks_are_over.store(true, Ordering::Release);
        self.threads.wait(MAX_WAIT);
        self.reports.iter().map(SharedReport::get).collect()
    }
}

/// Is told of what happens to a stream.
type StreamListener = Box<dyn FnMut(LiveEvent) + Send>;

/// Tells one or both of what happens to a source: whoever writes events, and whoever records gaps.
fn both_listeners(
    events: Option<StreamListener>,
    gaps: Option<impl Fn(Gap) + Send + 'static>,
) -> Option<StreamListener> {
    let Some(record_gap) = gaps else {
        return events;
    };
    let mut events = events;
    Some(Box::new(move |event| {
        if let LiveEvent::Gap { gap, .. } = &event {
            record_gap(*gap);
        }
        if let Some(listener) = &mut events {
            listener(event);
        }
    }))
}

/// The sources that are played by the clock, for whoever watches a run.
pub(super) struct Releases {
    clocks: BTreeMap<String, Arc<ReleaseClock>>,
}

impl Releases {
    /// How late they are, so far.
    pub(super) fn progress(&self) -> Vec<ReleaseProgress> {
        let clocks = self.clocks.iter();
        clocks
            .map(|(source, clock)| ReleaseProgress {
                source: source.clone(),
                lateness: times_progress(&clock.lateness()),
            })
            .collect()
    }
}

/// Refuses late wake-ups of what does not wake by the clock.
fn check_late_wakes(bindings: &LiveBindings, late_wakes: &[LateWake]) -> Result<(), CliError> {
    let is_paced = |late: &LateWake| {
        let url = bindings.url(&late.source);
        url.is_some_and(|url| matches!(url.endpoint, Endpoint::Paced(_)))
    };
    match late_wakes.iter().find(|late| !is_paced(late)) {
        None => Ok(()),
        Some(late) => Err(usage(format!(
            "--inject: source `{source}` is not released by the clock, so that it cannot wake late: play it with `--input {source}=paced:FILE?rate=...`",
            source = late.source
        ))),
    }
}

/// A file that is played at its rate, in any format that sources have.
fn paced_source(
    actor: &Actor,
    path: &Path,
    url: &SourceUrl,
    (rate, consumed): (Option<f64>, u64),
) -> Result<PacedSource, CliError> {
    let token = &actor.outputs[0].token;
    let Some(rate) = rate else {
        return Err(usage(format!(
            "--input {}={}: the key `rate` is missing, and the model says no `sample_rate`: add ?rate=48000",
            actor.name, url.text
        )));
    };
    let port = Port {
        stream: &actor.name,
        token,
        params: &actor.params,
    };
    let mut reader = open_source(path, port)?;
    // Whoever goes on with a run plays what it has not had.
    skip_up_to(&mut *reader, token, consumed).map_err(failed(&url.text))?;
    let token_bytes = token.bytes() as usize;
    Ok(PacedSource::new(reader, token_bytes, rate, url.piece))
}
