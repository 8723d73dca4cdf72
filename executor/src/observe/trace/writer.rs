//! The thread that takes workers' words out of their rings: into a file, into histograms. Must not make anybody wait.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use zbmd_ir::trace::{
    Begin, Chunk, Clocks, EpochBegin, EpochEnd, TraceEvent, WORDS_HEAD_BYTES, fingerprint, head,
    words_head,
};

use super::profile::{Cursor, Profile};
use crate::error::EngineError;
use crate::named_pipe::is_named_pipe;
use crate::observe::report::{ProfileReport, TraceReport};
use crate::program::LoadedProgram;
use crate::supervise::Event;
use crate::transport::clock::Clock;
use crate::transport::epoch::EpochMemory;
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::primitive::{AtomicU64, Ordering};
use crate::transport::trace_ring::{Ticks, TraceRing};

/// Rings are first looked at after so long; then less often as long as all of them are emptier than a quarter, for a
/// thread that wakes up costs the workers some microseconds on a machine with few cores; at last so often that a ring
/// holds what comes between two looks, with slots of a microsecond.
const PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(100);
const MIN_PAUSE: Duration = Duration::from_millis(1);
const FULL: f64 = 0.25;
/// Readings of both clocks, of which the shortest is taken.
const CLOCK_READINGS: usize = 4;

/// What the writer is to do.
enum TraceRequest {
    Begin {
        loaded: Arc<LoadedProgram>,
        spec: Arc<EpochSpec>,
        memory: Arc<EpochMemory>,
        at_ns: u64,
    },
    End {
        epoch: u64,
        at_ns: u64,
    },
    Event(TraceEvent),
}

/// What came of recording a run.
#[derive(Default)]
pub(crate) struct Traced {
    pub trace: Option<TraceReport>,
    pub profile: Vec<ProfileReport>,
}

/// Requests that wait for the writer, at most.
const QUEUE_LENGTH: usize = 1024;
/// A file that takes nothing for so long at the end of the run is left as it is.
const FINISH_LIMIT: Duration = Duration::from_secs(2);

/// The supervising thread's end. Nothing that it does waits for the file, until [`Self::finish`].
pub(crate) struct Tracer {
    requests: SyncSender<TraceRequest>,
    thread: JoinHandle<()>,
    traced: Receiver<Traced>,
    /// Counts up as the writer makes progress.
    progress: Arc<AtomicU64>,
    path: Option<PathBuf>,
    /// Events and epochs that the queue had no room for.
    dropped: u64,
    /// What all workers of the run count time by.
    pub ticks: Ticks,
}

impl Tracer {
    /// Begins a file, if one is wanted, and histograms, if they are; all workers count time by `ticks`.
    ///
    /// # Errors
    /// A file that cannot be made, or no thread.
    pub(crate) fn start(
        loaded: &LoadedProgram,
        path: Option<&Path>,
        profile: bool,
        ticks: Ticks,
    ) -> Result<Self, EngineError> {
        let (requests, received_requests) = mpsc::sync_channel(QUEUE_LENGTH);
        let (send_traced, traced) = mpsc::channel();
        let progress = Arc::<AtomicU64>::default();
        let trace_file = path.map(|path| Out::create(path, loaded)).transpose();
        let out = trace_file.map_err(|source| EngineError::Trace {
            path: path.unwrap_or(Path::new("")).to_owned(),
            source,
        })?;

        let writer = Writer {
            out,
            profile: profile.then(Profile::default),
            sources: Vec::new(),
            bytes: Vec::new(),
            ticks,
            began: clocks(ticks),
            dropped: 0,
            requests: received_requests,
            progress: Arc::clone(&progress),
        };

        let writer_thread = std::thread::Builder::new()
            .name("zbmd trace".to_owned())
            .spawn(move || drop(send_traced.send(writer.run())))
            .map_err(EngineError::Thread)?;
        Ok(Self {
            requests,
            thread: writer_thread,
            traced,
            progress,
            path: path.map(Path::to_owned),
            dropped: 0,
            ticks,
        })
    }

    fn send(&mut self, request: TraceRequest) {
        if self.requests.try_send(request).is_err() {
            self.dropped += 1;
        }
    }

    /// The workers of an epoch are about to begin.
    pub(crate) fn begin(
        &mut self,
        loaded: &Arc<LoadedProgram>,
        spec: &Arc<EpochSpec>,
        memory: &Arc<EpochMemory>,
    ) {
        self.send(TraceRequest::Begin {
            loaded: Arc::clone(loaded),
            spec: Arc::clone(spec),
            memory: Arc::clone(memory),
            at_ns: Clock.now_ns(),
        });
    }

    /// Nothing more of an epoch counts.
    pub(crate) fn end(&mut self, epoch: u64) {
        self.send(TraceRequest::End {
            epoch,
            at_ns: Clock.now_ns(),
        });
    }

    /// The supervisor decided or saw something.
    pub(crate) fn event(&mut self, event: &Event) {
        let event_line = event.line();
        let event_name = event.what.name();
        self.send(TraceRequest::Event(TraceEvent {
            at_ns: event.at_ns,
            name: event_name,
            line: event_line,
        }));
    }

    /// The run is over: waits until all is written, or until the file has taken nothing for a while. Then the thread that
    /// waits for it is left behind.
    pub(crate) fn finish(self) -> Traced {
        drop(self.requests);
        let mut last_progress = self.progress.load(Ordering::Acquire);
        loop {
            match self.traced.recv_timeout(FINISH_LIMIT) {
                Ok(mut traced) => {
                    if let Some(trace) = &mut traced.trace {
                        trace.dropped_events = self.dropped;
                    }
                    return traced;
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let progress_now = self.progress.load(Ordering::Acquire);
                    if progress_now == last_progress {
                        return Traced::cut_off(self.path.as_deref(), self.dropped);
                    }
                    last_progress = progress_now;
                }
            }
        }

        match self.thread.join() {
            Ok(()) => Traced::default(),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Traced {
    /// What is known of a file that takes nothing.
    fn cut_off(path: Option<&Path>, dropped_events: u64) -> Self {
        let seconds = FINISH_LIMIT.as_secs();
        let cut_report = path.map(|path| TraceReport {
            file: path.display().to_string(),
            dropped_events,
            error: Some(format!("it took nothing for {seconds} s, and is cut off")),
            ..TraceReport::default()
        });
        Self {
            trace: cut_report,
            profile: Vec::new(),
        }
    }
}

/// Both clocks at one instant.
///
/// This thread may lose its core between the two readings, for milliseconds on a loaded machine, and every time of the
/// trace would be off by that. So the ticks are read before and after the time, and of a few such readings the shortest is
/// taken.
fn clocks(ticks: Ticks) -> Clocks {
    let reading = || {
        let before = ticks.now();
        let ns = Clock.now_ns();
        let duration = ticks.now().saturating_sub(before);
        let clocks = Clocks {
            ticks: before + duration / 2,
            ns,
        };
        (duration, clocks)
    };

    let first = reading();
    let shorter = |best: (u64, Clocks), _| {
        let next = reading();
        if next.0 < best.0 { next } else { best }
    };
    (1..CLOCK_READINGS).fold(first, shorter).1
}

/// The file, and what is in it.
struct Out {
    /// None until a pipe with a name has a reader.
    file: Option<File>,
    path: PathBuf,
    /// What the file begins with.
    beginning: Vec<u8>,
    words: u64,
    bytes: u64,
    error: Option<io::Error>,
}

impl Out {
    /// Makes the file. A pipe with a name can be opened only when it has a reader: that is left to the writer's thread.
    fn create(path: &Path, loaded: &LoadedProgram) -> io::Result<Self> {
        let file = match is_named_pipe(path) {
            true => None,
            false => Some(File::create(path)?),
        };
        let program = &loaded.program;
        let begin = Begin {
            model: program.graph.name.clone(),
            devices: program
                .machine
                .devices
                .iter()
                .map(|device| device.name.clone())
                .collect(),
            fingerprint: fingerprint(program),
        };
        Ok(Self {
            file,
            path: path.to_owned(),
            beginning: [&head()[..], &Chunk::Begin(begin).bytes()].concat(),
            words: 0,
            bytes: 0,
            error: None,
        })
    }

    fn begin(&mut self) {
        if self.file.is_none() {
            match File::create(&self.path) {
                Ok(file) => self.file = Some(file),
                Err(error) => self.error = Some(error),
            }
        }
        let beginning = std::mem::take(&mut self.beginning);
        self.put(&beginning);
    }

    /// After the first error nothing more is written: what follows could not be read.
    fn put(&mut self, bytes: &[u8]) {
        if self.error.is_some() {
            return;
        }
        let Some(file) = &mut self.file else { return };
        match file.write_all(bytes) {
            Ok(()) => self.bytes += bytes.len() as u64,
            Err(error) => self.error = Some(error),
        }
    }
}

/// One worker's ring.
struct Source {
    epoch: u64,
    calendar: u32,
    ring: TraceRing,
    cursor: Option<Cursor>,
    /// Keeps the ring in memory.
    _memory: Arc<EpochMemory>,
}

struct Writer {
    out: Option<Out>,
    profile: Option<Profile>,
    sources: Vec<Source>,
    /// Words on their way to the file.
    bytes: Vec<u8>,
    ticks: Ticks,
    began: Clocks,
    dropped: u64,
    requests: Receiver<TraceRequest>,
    progress: Arc<AtomicU64>,
}

impl Writer {
    fn run(mut self) -> Traced {
        let mut pause = PAUSE;
        if let Some(out) = &mut self.out {
            out.begin();
        }
        self.put(&Chunk::Clocks(self.began));

        loop {
            self.progress.fetch_add(1, Ordering::AcqRel);
            match self.requests.recv_timeout(pause) {
                Ok(request) => self.handle(request),
                Err(RecvTimeoutError::Timeout) => {
                    // Twice as often where a ring fills up, half as often where all are nearly empty: nothing is lost, and little
                    // time is spent.
                    let max_fill = self
                        .sources
                        .iter()
                        .map(|source| source.ring.fill())
                        .fold(0.0, f64::max);
                    pause = if max_fill > FULL {
                        pause / 2
                    } else {
                        pause * 2
                    };
                    pause = pause.clamp(MIN_PAUSE, MAX_PAUSE);
                    self.drain(|_| true);
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }

        // Nobody said that these ended: the run was given up.
        let open_epochs: Vec<u64> = self.sources.iter().map(|source| source.epoch).collect();
        open_epochs
            .into_iter()
            .for_each(|epoch| self.end(epoch, Clock.now_ns()));

        let end_clocks = clocks(self.ticks);
        self.put(&Chunk::Clocks(end_clocks));
        self.put(&Chunk::End);

        // Both clocks were read at the beginning and at the end, so the length of a tick needs no calibration.
        let elapsed_ticks = end_clocks.ticks.saturating_sub(self.began.ticks).max(1);
        let elapsed_ns = end_clocks.ns.saturating_sub(self.began.ns);

        let ns_per_tick = elapsed_ns as f64 / elapsed_ticks as f64;
        Traced {
            trace: self.out.map(|out| TraceReport {
                file: out.path.display().to_string(),
                records: out.words,
                bytes: out.bytes,
                dropped_periods: self.dropped,
                dropped_events: 0,
                error: out.error.map(|error| error.to_string()),
            }),
            profile: self
                .profile
                .map(|profile| profile.report(ns_per_tick))
                .unwrap_or_default(),
        }
    }

    fn put(&mut self, chunk: &Chunk) {
        if let Some(out) = &mut self.out {
            out.put(&chunk.bytes());
        }
    }

    fn handle(&mut self, request: TraceRequest) {
        match request {
            TraceRequest::Begin {
                loaded,
                spec,
                memory,
                at_ns,
            } => {
                self.begin(&loaded, &spec, &memory, at_ns);
            }
            TraceRequest::End { epoch, at_ns } => self.end(epoch, at_ns),
            TraceRequest::Event(event) => self.put(&Chunk::Event(event)),
        }
    }

    fn begin(
        &mut self,
        loaded: &LoadedProgram,
        spec: &EpochSpec,
        memory: &Arc<EpochMemory>,
        at_ns: u64,
    ) {
        let program = &loaded.program;
        if self.out.is_some() {
            self.put(&Chunk::Epoch(EpochBegin {
                epoch: spec.epoch,
                fingerprint: fingerprint(program),
                plan: spec.plan,
                devices: spec.devices.clone(),
                at_ns,
            }));
        }

        let calendars = program.plans[spec.plan].calendars.iter().zip(&spec.devices);
        for ((index, (calendar, device)), ring) in
            calendars.enumerate().zip(memory.rings_of_trace())
        {
            let device_name = &program.machine.devices[*device].name;
            let cursor = self
                .profile
                .as_mut()
                .map(|profile| profile.cursor(program, calendar, device_name));
            let max_bytes = 8 * ring.words() + WORDS_HEAD_BYTES;
            if self.out.is_some() && self.bytes.capacity() < max_bytes {
                self.bytes.reserve(max_bytes);
            }

            self.sources.push(Source {
                epoch: spec.epoch,
                calendar: index as u32,
                ring,
                cursor,
                _memory: Arc::clone(memory),
            });
        }
    }

    fn end(&mut self, epoch: u64, at_ns: u64) {
        if !self.sources.iter().any(|source| source.epoch == epoch) {
            return;
        }
        self.drain(|source| source.epoch == epoch);

        let ended_sources = self.sources.extract_if(.., |source| source.epoch == epoch);
        let dropped: Vec<u64> = ended_sources.map(|source| source.ring.dropped()).collect();
        self.dropped += dropped.iter().sum::<u64>();
        self.put(&Chunk::EpochEnd(EpochEnd {
            epoch,
            at_ns,
            dropped,
        }));
    }

    /// Takes out all that is in the rings of some sources.
    fn drain(&mut self, wanted: impl Fn(&Source) -> bool) {
        if self
            .sources
            .iter()
            .any(|source| wanted(source) && source.ring.fill() > 0.0)
        {
            // A run that is killed leaves a file whose words can be converted to nanoseconds all the same.
            self.put(&Chunk::Clocks(clocks(self.ticks)));
        }

        let Self {
            out,
            profile,
            sources,
            bytes,
            ..
        } = self;
        for source in sources.iter_mut().filter(|source| wanted(source)) {
            let Source {
                epoch,
                calendar,
                ring,
                cursor,
                ..
            } = source;

            bytes.clear();
            bytes.extend([0; WORDS_HEAD_BYTES]);
            let word_count = ring.take(|words| {
                let loaded_words = words.iter().map(|word| word.load(Ordering::Relaxed));
                if out.is_some() {
                    bytes.extend(loaded_words.clone().flat_map(u64::to_le_bytes));
                }
                if let (Some(profile), Some(cursor)) = (profile.as_mut(), cursor.as_mut()) {
                    loaded_words.for_each(|word| profile.take(cursor, word));
                }
            });

            if let (Some(out), 1..) = (out.as_mut(), word_count) {
                bytes[..WORDS_HEAD_BYTES].copy_from_slice(&words_head(
                    *epoch,
                    *calendar,
                    word_count as usize,
                ));
                out.put(bytes);
                out.words += word_count;
            }
        }
    }
}
