//! The thread that looks on while a run is on.

use std::io::{self, IsTerminal};
use std::sync::mpsc;
use std::time::Duration;

use super::args::Args;
use crate::io::FileError;
use crate::io::pump::PumpEnd;
use crate::live::Page;
use crate::session::Stopper;

/// What the watching thread saw.
#[derive(Default)]
pub(super) struct Watched {
    pub(super) failure: Option<FileError>,
    pub(super) notes: Vec<String>,
}

/// The page for those who watch is written at every so-manieth look.
const LOOKS: u64 = 4;

/// Watches the files, the clock and the progress while the run is on.
pub(super) struct Watch {
    thread: std::thread::JoinHandle<Watched>,
    over: mpsc::Sender<()>,
}

impl Watch {
    pub(super) fn start(
        args: &Args,
        stopper: Stopper,
        ended: mpsc::Receiver<PumpEnd>,
        sinks: usize,
    ) -> Self {
        let (over, is_over) = mpsc::channel();
        let bar = progress_bar(args);
        // A run that nobody can watch is as good as any.
        let mut page = Page::create().ok();
        let mut looks = 0u64;
        let until = args.duration.map(|d| std::time::Instant::now() + d);
        let thread = std::thread::spawn(move || {
            let mut watched = Watched::default();
            let mut open_sinks = sinks;
            let mut timed_out = false;
            let mut run_is_over = false;
            while !(run_is_over && open_sinks == 0) {
                if looks.is_multiple_of(LOOKS)
                    && page
                        .as_mut()
                        .is_some_and(|page| page.write(stopper.progress()).is_err())
                {
                    page = None;
                }
                looks += 1;
                match ended.recv_timeout(Duration::from_millis(50)) {
                    Ok(end) => watched.see(end, &mut open_sinks, &stopper),
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                }
                run_is_over = run_is_over || is_over.try_recv().is_ok();
                bar.set_position(stopper.iterations());
                if !timed_out && until.is_some_and(|t| std::time::Instant::now() >= t) {
                    timed_out = true;
                    stopper.stop();
                }
            }
            // Sources that had ended before the sinks did.
            while let Ok(end) = ended.try_recv() {
                watched.see(end, &mut open_sinks, &stopper);
            }
            bar.finish_and_clear();
            watched
        });
        Self { thread, over }
    }

    /// Waits until every sink's file is complete.
    pub(super) fn finish(self) -> Watched {
        // If the watch has ended already, there is nobody to tell.
        let _ = self.over.send(());
        match self.thread.join() {
            Ok(watched) => watched,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Watched {
    fn see(&mut self, end: PumpEnd, open_sinks: &mut usize, stopper: &Stopper) {
        match end {
            PumpEnd::SourceEnded {
                stream,
                partial_bytes,
            } if partial_bytes > 0 => {
                self.notes.push(format!(
                    "the file of `{stream}` ends with {partial_bytes} bytes that are no whole token"
                ));
            }
            PumpEnd::SourceEnded { .. } | PumpEnd::SourceRefused { .. } => {}
            PumpEnd::SinkEnded { .. } => *open_sinks -= 1,
            PumpEnd::PipeClosed { stream } => {
                *open_sinks -= 1;
                self.notes
                    .push(format!("the reader of `{stream}` went away"));
                stopper.stop();
            }
            PumpEnd::SourceFailed(error) => {
                self.failure.get_or_insert(error);
                stopper.stop();
            }
            PumpEnd::SinkFailed(error) => {
                self.failure.get_or_insert(error);
                *open_sinks -= 1;
                stopper.stop();
            }
        }
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
