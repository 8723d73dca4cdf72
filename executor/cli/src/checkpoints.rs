//! Checkpoints: where a run that was killed goes on, and what must be the same then.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use zbmd_ir::{Program, State, state};

use super::args::Args;
use super::files::{Files, Opened, sink_port};
use super::{CliError, say};
use crate::checkpoint::{
    Checkpoint, Folder, Found, InputIdentity, Origin, RunIdentity, SinkIdentity, SourceIdentity,
    hash_of_file,
};
use crate::io::pump::SharedFile;
use crate::io::{FileError, FileKind, is_standard, tokens_in};
use zbmd_executor::Engine;
use zbmd_executor::supervise::{Event, What};
use zbmd_executor::{StateListener, Supervised};

/// A checkpoint is given up if the files of sinks do not get as far as it within so long.
const MAX_FLUSH: Duration = Duration::from_secs(2);

/// A locked folder for checkpoints, and the one to go on from.
pub(super) struct CheckpointFolder {
    folder: Folder,
    identity: RunIdentity,
    /// The folder is of this run already.
    is_ours: bool,
    pub(super) resumed: Option<Checkpoint>,
}

/// The folder of the command line, if it has one: locked, and compared with the run. Nothing in it is changed yet.
pub(super) fn open(
    args: &Args,
    bundle: &Path,
    files: &Files,
    engine: &Engine,
    loaded: Option<&State>,
) -> Result<Option<CheckpointFolder>, CliError> {
    let Some(path) = &args.checkpoint else {
        return Ok(None);
    };
    check_outputs(files)?;
    let program = engine.program();
    let initial = State::initial(&program.graph);
    let began_at = Origin::of(loaded.unwrap_or(&initial));
    let folder = Folder::open(path, args.checkpoint_keep)?;
    let found = match (folder.found(), args.checkpoint_replace) {
        // What is replaced need not be readable.
        (Err(_), true) => Found::Empty,
        (found, _) => found?,
    };
    let identity = identity_of(bundle, files, program, began_at)?;
    let Some(stored) = run_to_resume(args, path, &folder, found)? else {
        return Ok(Some(CheckpointFolder {
            folder,
            identity,
            is_ours: false,
            resumed: None,
        }));
    };

    let difference = match stored.difference(&identity, args.other_bundle) {
        Some(text) => Some(text),
        None => compare_inputs(args, &stored, files)?,
    };
    if let Some(text) = difference {
        let text = format!("{text}; --checkpoint-replace begins anew");
        return Err(refused(path, text));
    }
    let resumed = newest_that_fits(args, &folder, &stored, files, engine)?;
    if resumed.is_none() && stored.began_at != Origin::of(&initial) {
        let text = "the run began at a state from --load-state, and left no checkpoint that can be used: begin it again with --load-state and --checkpoint-replace";
        return Err(refused(path, text.to_owned()));
    }

    Ok(Some(CheckpointFolder {
        folder,
        identity: stored,
        is_ours: true,
        resumed,
    }))
}

/// The run in a folder that this one goes on with, if it does.
fn run_to_resume(
    args: &Args,
    path: &Path,
    folder: &Folder,
    found: Found,
) -> Result<Option<RunIdentity>, CliError> {
    let stored = match found {
        Found::Empty if args.resume => {
            note_beginning(args, "no checkpoint to resume");
            return Ok(None);
        }
        Found::Empty => return Ok(None),
        Found::Run(_) if args.checkpoint_replace => return Ok(None),
        Found::Run(stored) => *stored,
    };
    if args.resume {
        return Ok(Some(stored));
    }

    let files = folder.files().map_err(|source| FileError::Io {
        path: path.to_owned(),
        source,
    })?;
    if files.is_empty() {
        // A run that was ended before its first checkpoint left nothing that could be lost.
        return Ok(None);
    }
    let text = format!(
        "holds checkpoints of a run of bundle {} ({}): --resume goes on with it, --checkpoint-replace removes them, and another folder keeps them",
        stored.bundle_hash,
        describe_outputs(&stored)
    );
    Err(refused(path, text))
}

fn refused(path: &Path, text: String) -> CliError {
    CliError::Refused {
        path: path.to_owned(),
        text,
    }
}

/// Refuses outputs that cannot be cut off where a checkpoint is.
fn check_outputs(files: &Files) -> Result<(), CliError> {
    for (name, file) in &files.outputs {
        if FileKind::of_path(file) == FileKind::Stream {
            let what = match is_standard(file) {
                true => "standard output".to_owned(),
                false => format!("{}, which is not a regular file", file.display()),
            };
            return Err(CliError::Usage(format!(
                "sink `{name}` goes to {what}: it cannot be taken back to a checkpoint; give it a file"
            )));
        }
    }
    Ok(())
}

fn note_beginning(args: &Args, why: &str) {
    if !args.quiet {
        say(format_args!("zbmd-run: note: {why}: from the beginning"));
    }
}

fn describe_outputs(identity: &RunIdentity) -> String {
    let sinks = identity
        .sinks
        .iter()
        .map(|sink| format!("sink `{}` to {}", sink.name, sink.path));
    sinks.collect::<Vec<_>>().join(", ")
}

/// The newest checkpoint whose tokens are all in the files of the sinks: a disk that was full may have kept it and not
/// them.
fn newest_that_fits(
    args: &Args,
    folder: &Folder,
    stored: &RunIdentity,
    files: &Files,
    engine: &Engine,
) -> Result<Option<Checkpoint>, CliError> {
    let graph = &engine.program().graph;
    let mut present = Vec::new();
    for (id, actor) in graph.sinks() {
        let path = &files.outputs[&actor.name];
        let tokens = match FileKind::of_path(path) {
            FileKind::Device => None,
            // A file that is gone has none.
            _ => Some(tokens_in(path, sink_port(actor))?.unwrap_or(0)),
        };
        present.push((path, tokens, engine.tokens_per_iteration(id)));
    }
    let fits = |checkpoint: &Checkpoint| {
        for (path, tokens, per_iteration) in &present {
            let needed = checkpoint.iterations_in_files() * per_iteration;
            if tokens.is_some_and(|tokens| tokens < needed) {
                return Err(format!(
                    "{} has {} whole tokens, {needed} were written before this checkpoint",
                    path.display(),
                    tokens.unwrap_or(0)
                ));
            }
        }
        Ok(())
    };

    let failed = |source| FileError::Io {
        path: args.checkpoint.clone().unwrap_or_default(),
        source,
    };

    let newest = folder.newest(graph, &stored.run_id, fits);
    let (newest, passed_over) = newest.map_err(failed)?;
    for text in passed_over {
        say(format_args!("zbmd-run: note: passed over: {text}"));
    }

    if newest.is_none() {
        note_beginning(args, "no checkpoint can be used");
    }
    Ok(newest)
}

fn identity_of(
    bundle: &Path,
    files: &Files,
    program: &Program,
    began_at: Origin,
) -> Result<RunIdentity, CliError> {
    let in_file = |path: &Path| {
        let path = path.to_owned();
        move |source| FileError::Io { path, source }
    };
    let mut sources = Vec::new();
    for (_, actor) in program.graph.sources() {
        let path = &files.inputs[&actor.name];
        let input = match open_input(path).map_err(in_file(path))? {
            Some(file) => InputIdentity::of(&absolute(path), &file, None),
            None => Ok(InputIdentity::Stream {
                path: absolute(path),
            }),
        };
        sources.push(SourceIdentity {
            name: actor.name.clone(),
            token: actor.outputs[0].token.to_string(),
            input: input.map_err(in_file(path))?,
        });
    }

    let sinks = program.graph.sinks().map(|(_, actor)| SinkIdentity {
        name: actor.name.clone(),
        token: actor.inputs[0].token.to_string(),
        path: absolute(&files.outputs[&actor.name]),
    });
    let bundle_hash = hash_of_file(bundle).map_err(in_file(bundle))?;
    Ok(RunIdentity {
        run_id: RunIdentity::new_id(),
        bundle_hash: format!("{bundle_hash:016x}"),
        graph_hash: format!("{:016x}", state::fingerprint(&program.graph)),
        began_at,
        sources,
        sinks: sinks.collect(),
    })
}

/// Opens an input to look at it, if that takes nothing out of it: a pipe is for the run alone.
fn open_input(path: &Path) -> io::Result<Option<File>> {
    let file = match is_standard(path) {
        true => File::from(io::stdin().as_fd().try_clone_to_owned()?),
        false if std::fs::metadata(path)?.is_file() => File::open(path)?,
        false => return Ok(None),
    };
    Ok(Some(file).filter(|file| file.metadata().is_ok_and(|m| m.is_file())))
}

/// What contradicts that the inputs are those that the run began with, if anything does.
fn compare_inputs(
    args: &Args,
    stored: &RunIdentity,
    files: &Files,
) -> Result<Option<String>, CliError> {
    for source in &stored.sources {
        let Some(path) = files.inputs.get(&source.name) else {
            continue;
        };
        let failed = |error| FileError::Io {
            path: path.clone(),
            source: error,
        };
        let file = open_input(path).map_err(failed)?;
        let Some(file) = file.filter(|_| !source.input.is_stream()) else {
            if !args.quiet {
                say(format_args!(
                    "zbmd-run: note: source `{}` is or was a pipe: nothing shows that it gives the same tokens from its beginning on",
                    source.name
                ));
            }
            continue;
        };
        let contradiction = source.input.contradiction(&absolute(path), &file);
        if let Some(text) = contradiction.map_err(failed)? {
            return Ok(Some(format!("source `{}`: {text}", source.name)));
        }
    }
    Ok(None)
}

/// A path from the root, links of its folder followed: what two runs from different folders have in common.
fn absolute(path: &Path) -> String {
    let in_folder = || {
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        let folder = std::fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
        Some(folder.join(path.file_name()?))
    };
    let path = match is_standard(path) {
        true => path.to_owned(),
        false => in_folder().unwrap_or_else(|| path.to_owned()),
    };
    path.to_str()
        .map_or_else(|| format!("{path:?}"), str::to_owned)
}

/// Writes checkpoints.
struct Writer {
    folder: Folder,
    engine: Engine,
    run_id: String,
    origin: Origin,
    /// Files of the sinks, and the tokens that each is given in an iteration.
    files: Vec<(SharedFile, u64)>,
    /// The next checkpoint is to find the disk full: a fault brought about on purpose.
    is_full: Arc<AtomicBool>,
}

/// The thread that writes checkpoints.
pub(super) struct Keeper {
    thread: JoinHandle<Writer>,
}

impl CheckpointFolder {
    /// Makes the folder this run's, and starts a thread that writes checkpoints of the states that its listener is
    /// given.
    pub(super) fn keep(
        self,
        engine: &Engine,
        sinks: &Opened<SharedFile>,
        origin: Origin,
        supervised: &mut Supervised,
    ) -> io::Result<(Keeper, StateListener)> {
        match self.is_ours {
            true => self.folder.go_on(self.resumed.as_ref())?,
            false => self.folder.claim(&self.identity)?,
        }
        let is_full = Arc::new(AtomicBool::new(false));
        hear_of_full_disks(supervised, &is_full);
        let graph = &engine.program().graph;
        let rates = graph.sinks().map(|(id, _)| engine.tokens_per_iteration(id));
        let writer = Writer {
            folder: self.folder,
            engine: engine.clone(),
            run_id: self.identity.run_id,
            origin,
            files: sinks
                .iter()
                .map(|(_, _, file)| file.clone())
                .zip(rates)
                .collect(),
            is_full,
        };
        // While one is being written, younger ones are passed over: the next will come.
        let (give, take) = sync_channel::<State>(1);
        let listener = Arc::new(move |state: State| drop(give.try_send(state)));
        let thread = std::thread::Builder::new()
            .name("zbmd checkpoints".to_owned())
            .spawn(move || writer.run(&take))?;
        Ok((Keeper { thread }, listener))
    }
}

impl Keeper {
    /// Waits until the last checkpoint is written; then, if the run was ended early, writes one of where it ended. The
    /// session has dropped its end of the channel.
    pub(super) fn finish(self, ended_at: Option<State>) {
        let writer = match self.thread.join() {
            Ok(writer) => writer,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        if let Some(state) = ended_at {
            writer.write_or_say(state);
        }
    }
}

/// Passes events on, and notes when one is a full disk brought about on purpose.
fn hear_of_full_disks(supervised: &mut Supervised, is_full: &Arc<AtomicBool>) {
    let is_full = Arc::clone(is_full);
    let next = supervised.listener.take();
    supervised.listener = Some(Arc::new(move |event: &Event| {
        if matches!(&event.what, What::Injected { kind, .. } if kind == "full_disk") {
            is_full.store(true, Ordering::Relaxed);
        }
        if let Some(next) = &next {
            next(event);
        }
    }));
}

impl Writer {
    fn run(self, states: &Receiver<State>) -> Self {
        while let Ok(state) = states.recv() {
            self.write_or_say(state);
        }
        self
    }

    fn write_or_say(&self, state: State) {
        let iterations = state.iterations;
        if let Err(error) = self.write(state) {
            say(format_args!(
                "zbmd-run: note: no checkpoint at iteration {iterations}: {error}; the older ones stand"
            ));
        }
    }

    fn write(&self, state: State) -> io::Result<()> {
        let checkpoint = Checkpoint {
            run_id: self.run_id.clone(),
            origin: self.origin.clone(),
            state,
        };
        for (file, per_iteration) in &self.files {
            // The tokens are on their way; a file that cannot be written ends the run.
            let tokens = checkpoint.iterations_in_files() * per_iteration;
            if !file.sync_when(tokens, MAX_FLUSH)? {
                return Err(io::Error::other(format!(
                    "a sink's file has {} tokens, {tokens} were given to it",
                    file.tokens()
                )));
            }
        }
        if self.is_full.swap(false, Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.folder.write(&checkpoint, &self.engine.program().graph)
    }
}
