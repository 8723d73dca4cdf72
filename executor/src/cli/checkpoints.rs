//! Checkpoints: where a run that was killed goes on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use zbmd_ir::{Program, State};

use super::args::Args;
use super::files::{Files, Opened};
use super::{CliError, say};
use crate::checkpoint::{Checkpoint, Folder, Origin};
use crate::io::pump::SharedFile;
use crate::io::{FileError, is_standard};
use crate::session::Engine;
use crate::supervise::{Event, What};
use crate::supervised::{StateListener, Supervised};

/// A folder for checkpoints, and the one to go on from.
pub(super) struct Safe {
    folder: Folder,
    pub(super) resumed: Option<Checkpoint>,
}

pub(super) fn of(args: &Args, files: &Files, program: &Program) -> Result<Option<Safe>, CliError> {
    let Some(path) = &args.checkpoint else {
        return Ok(None);
    };
    if let Some((name, _)) = files.outputs.iter().find(|(_, path)| is_standard(path)) {
        return Err(CliError::Usage(format!(
            "sink `{name}` goes to standard output, which cannot be taken back to a checkpoint: give it a file"
        )));
    }
    let failed = |source| FileError::Io {
        path: path.clone(),
        source,
    };
    let folder = Folder::open(path, args.checkpoint_keep).map_err(failed)?;
    let mut resumed = None;
    if args.resume {
        let (newest, damaged) = folder.newest(&program.graph).map_err(failed)?;
        for text in damaged {
            say(format_args!("zbmd-run: note: passed over: {text}"));
        }
        if newest.is_none() && !args.quiet {
            say(format_args!(
                "zbmd-run: note: no checkpoint to resume: from the beginning"
            ));
        }
        resumed = newest;
    }
    Ok(Some(Safe { folder, resumed }))
}

impl Safe {
    /// A thread that writes checkpoints of the states that its listener is given.
    pub(super) fn keep(
        self,
        engine: &Engine,
        sinks: &Opened<SharedFile>,
        origin: Origin,
        supervised: &mut Supervised,
    ) -> (JoinHandle<()>, StateListener) {
        let full = Arc::new(AtomicBool::new(false));
        hear_of_full_disks(supervised, &full);
        // While one is being written, younger ones are passed over: the next will come.
        let (give, take) = sync_channel::<State>(1);
        let graph = &engine.program().graph;
        let rates: Vec<u64> = graph
            .sinks()
            .map(|(id, _)| engine.inner.tokens_per_iteration(id))
            .collect();
        let files: Vec<(SharedFile, u64)> = sinks
            .iter()
            .map(|(_, _, file)| file.clone())
            .zip(rates)
            .collect();
        let engine = engine.clone();
        let write = move || keep(&take, &self.folder, &engine, &files, &origin, &full);
        let listener = Arc::new(move |state: State| drop(give.try_send(state)));
        (std::thread::spawn(write), listener)
    }
}

/// Passes events on, and notes when one is a full disk brought about on purpose.
fn hear_of_full_disks(supervised: &mut Supervised, full: &Arc<AtomicBool>) {
    let (full, next) = (Arc::clone(full), supervised.listener.take());
    supervised.listener = Some(Arc::new(move |event: &Event| {
        if matches!(&event.what, What::Injected { kind, .. } if kind == "full_disk") {
            full.store(true, Ordering::Relaxed);
        }
        if let Some(next) = &next {
            next(event);
        }
    }));
}

fn keep(
    states: &Receiver<State>,
    folder: &Folder,
    engine: &Engine,
    files: &[(SharedFile, u64)],
    origin: &Origin,
    full: &AtomicBool,
) {
    while let Ok(state) = states.recv() {
        let done = state.iterations - origin.iterations;
        let checkpoint = Checkpoint {
            origin: origin.clone(),
            state,
        };
        let written = files.iter().try_for_each(|(file, rate)| {
            // The tokens are on their way; a file that cannot be written ends the run.
            for _ in 0..400 {
                if file.sync_at(done * rate)? {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(io::Error::other("the file is not written any more"))
        });
        let written = written.and_then(|()| match full.swap(false, Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => folder.write(&checkpoint, &engine.program().graph),
        });
        if let Err(error) = written {
            say(format_args!(
                "zbmd-run: note: no checkpoint at iteration {}: {error}; the older ones stand",
                checkpoint.state.iterations
            ));
        }
    }
}
