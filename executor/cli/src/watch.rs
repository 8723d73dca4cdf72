//! The threads that look on while a run is on: one sees to its end, another shows how far it is.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::args::Args;
use super::deadlines::Deadlines;
use super::files::OpenSink;
use super::live::Releases;
use crate::io::pump::PumpEnd;
use crate::io::{FileError, FileKind};
use zbmd_executor::live::{ModeProgress, Page, ParameterProgress, Progress};
use zbmd_executor::{ModeHandle, ParameterHandle, Session, Stopper};

/// How often the end of the run is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The page for those who watch is written at every so-manieth look.
const LOOKS: u64 = 4;
/// When a run is to end, readers that take nothing for so long are waited for no longer.
const READER_LIMIT: Duration = Duration::from_millis(400);
/// A terminal that takes nothing for so long is waited for no longer.
const DISPLAY_LIMIT: Duration = Duration::from_millis(500);

/// What the watching thread saw.
#[derive(Default)]
pub(super) struct Watched {
    pub(super) failure: Option<FileError>,
    pub(super) notes: Vec<String>,
    /// Sinks whose readers did not take all of it: which, and how many tokens they took.
    pub(super) cut_off: Vec<(String, u64)>,
}

/// What enters and leaves a run, and when, for those who watch it.
pub(super) struct EdgeMeters {
    pub(super) releases: Releases,
    pub(super) deadlines: Deadlines,
    pub(super) parameters: ParameterHandle,
    pub(super) modes: ModeHandle,
}

impl EdgeMeters {
    /// The run as it is now.
    pub(super) fn add_to(&self, mut progress: Progress) -> Progress {
        progress.releases = self.releases.progress();
        progress.deadlines = self.deadlines.progress();
        let values = self.parameters.values().into_iter();
        let values = values.map(|value| ParameterProgress {
            parameter: value.parameter.name,
            numbers: value.numbers,
        });
        progress.parameters = values.collect();
        if self.modes.names().len() > 1 {
            let present = self.modes.present();
            progress.mode = Some(ModeProgress {
                mode: present.mode,
                since: present.iteration,
            });
        }
        progress
    }
}

/// Watches the files, the clock and the progress while the run is on.
pub(super) struct Watch {
    thread: JoinHandle<Watched>,
    over: Sender<()>,
    display: Display,
}

impl Watch {
    pub(super) fn start(
        args: &Args,
        stopper: Stopper,
        ended: Receiver<PumpEnd>,
        open_sinks: Vec<OpenSink>,
        edge_meters: Arc<EdgeMeters>,
    ) -> Self {
        let (over, is_over) = mpsc::channel();
        let display = Display::start(args, stopper.clone(), edge_meters);
        let start_time = Instant::now();
        let watcher = Watcher {
            until: args
                .duration
                .and_then(|duration| start_time.checked_add(duration)),
            stopper,
            ended,
            is_over,
            open_sinks,
            taken: 0,
            last_taken: start_time,
            watched: Watched::default(),
        };
        let watch_thread = std::thread::spawn(move || watcher.watch());
        Self {
            thread: watch_thread,
            over,
            display,
        }
    }

    /// Waits until every sink's file is complete, or as complete as it gets.
    pub(super) fn finish(self) -> Watched {
        // If the watch has ended already, there is nobody to tell.
        let _ = self.over.send(());
        let watch_result = self.thread.join();
        self.display.finish();
        match watch_result {
            Ok(watched) => watched,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// The thread that sees to the end of the run. It waits for nobody else.
struct Watcher {
    /// When the run is to end.
    until: Option<Instant>,
    stopper: Stopper,
    ended: Receiver<PumpEnd>,
    is_over: Receiver<()>,
    open_sinks: Vec<OpenSink>,
    /// Tokens that all readers together have taken, and when that was last more than before.
    taken: u64,
    last_taken: Instant,
    watched: Watched,
}

impl Watcher {
    fn watch(mut self) -> Watched {
        let mut run_is_over = false;
        while !(run_is_over && self.open_sinks.is_empty()) {
            let pause = self.until.map(|until| until - Instant::now().min(until));
            match self
                .ended
                .recv_timeout(pause.unwrap_or(LOOK_EVERY).min(LOOK_EVERY))
            {
                Ok(end) => self.see(end),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }

            run_is_over = run_is_over || self.is_over.try_recv().is_ok();

            if self.until.is_some_and(|until| Instant::now() >= until) {
                self.until = None;
                self.stopper.stop();
            }
            if self.readers_have_stalled() && run_is_over {
                self.cut_off();
                break;
            }
        }
        // Sources that had ended before the sinks did.
        while let Ok(end) = self.ended.try_recv() {
            self.see(end);
        }
        self.watched
    }

    /// Whether the run is to end and the readers of all files that are still open take nothing.
    fn readers_have_stalled(&mut self) -> bool {
        let mut open_sinks = self.open_sinks.iter();
        // A file on a disk is always waited for.
        if open_sinks.any(|sink| sink.file.kind() == FileKind::Regular) {
            return false;
        }

        let taken_tokens = self.open_sinks.iter().map(|sink| sink.file.tokens()).sum();
        if taken_tokens != self.taken || !self.stopper.is_stopping() {
            self.taken = taken_tokens;
            self.last_taken = Instant::now();
        }
        self.last_taken.elapsed() >= READER_LIMIT
    }

    fn cut_off(&mut self) {
        for sink in &self.open_sinks {
            let tokens = sink.file.tokens();
            self.watched.cut_off.push((sink.stream.clone(), tokens));
        }
    }

    fn close_sink(&mut self, stream: &str) {
        self.open_sinks.retain(|sink| sink.stream != stream);
        // What it had taken does not count any more.
        self.last_taken = Instant::now();
    }

    fn see(&mut self, end: PumpEnd) {
        match end {
            PumpEnd::SourceEnded {
                stream,
                partial_bytes,
            } if partial_bytes > 0 => {
                self.watched.notes.push(format!(
                    "the file of `{stream}` ends with {partial_bytes} bytes that are not a whole token"
                ));
            }
            PumpEnd::SourceEnded { .. } | PumpEnd::SourceRefused => {}
            PumpEnd::SinkEnded { stream } => self.close_sink(&stream),
            PumpEnd::PipeClosed { stream } => {
                self.close_sink(&stream);
                self.watched
                    .notes
                    .push(format!("the reader of `{stream}` went away"));
                self.stopper.stop();
            }
            PumpEnd::SourceFailed { error, source } => {
                self.watched.failure.get_or_insert(error);
                self.stopper.stop();
                drop(source);
            }
            PumpEnd::SinkFailed { stream, error } => {
                self.close_sink(&stream);
                self.watched.failure.get_or_insert(error);
                self.stopper.stop();
            }
        }
    }
}

/// The thread that shows how far the run is, on the terminal and on the page for `zbmd-run top`. A terminal that was
/// stopped keeps only this thread waiting.
struct Display {
    over: Sender<()>,
    ended: Receiver<()>,
}

impl Display {
    fn start(args: &Args, stopper: Stopper, edge_meters: Arc<EdgeMeters>) -> Self {
        let (over, is_over) = mpsc::channel();
        let (tell_end, ended) = mpsc::channel::<()>();
        let bar = progress_bar(args);
        let has_priorities = args.has_priorities();
        // A run that nobody can watch is as good as any.
        let mut page = Page::create().ok();
        let show = move || {
            let _tell_end = tell_end;
            // Without it the run is watched all the same.
            let _ = Session::enter_observer_role(has_priorities);
            let mut looks = 0u64;
            loop {
                if looks.is_multiple_of(LOOKS)
                    && let Some(open_page) = &mut page
                {
                    let progress = edge_meters.add_to(stopper.progress());
                    if open_page.write(progress).is_err() {
                        page = None;
                    }
                }
                looks += 1;
                bar.set_position(stopper.iterations());
                if is_over.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            // Removed first: the terminal may not take what follows.
            drop(page);
            bar.finish_and_clear();
        };
        // Without a thread nothing is shown.
        let _ = std::thread::Builder::new()
            .name("zbmd display".to_owned())
            .spawn(show);
        Self { over, ended }
    }

    fn finish(self) {
        // If it has ended already, there is nobody to tell.
        let _ = self.over.send(());
        let _ = self.ended.recv_timeout(DISPLAY_LIMIT);
    }
}

fn progress_bar(args: &Args) -> indicatif::ProgressBar {
    if args.quiet || !io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let bar = match args.iterations {
        Some(all) => indicatif::ProgressBar::new(all),
        None => indicatif::ProgressBar::new_spinner(),
    };
    let template = match args.iterations {
        Some(_) => "{elapsed} {wide_bar} {pos}/{len} iterations, {per_sec}",
        None => "{elapsed} {spinner} {pos} iterations, {per_sec}",
    };
    match indicatif::ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
