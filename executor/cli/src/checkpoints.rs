//! Checkpoints: where a run that was killed goes on, and what must be the same then.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;
use zbmd_ir::{Graph, PresentMode, Program, State, state};

use super::args::Args;
use super::files::{Files, Opened, sink_port};
use super::saved_state::LoadedState;
use super::{CliError, say};
use crate::checkpoint::{
    Checkpoint, Folder, Found, InputIdentity, Origin, RunIdentity, SinkIdentity, SourceIdentity,
    hash_of_file,
};
use crate::io::pump::SharedFile;
use crate::io::{FileError, FileKind, is_standard, tokens_in};
use zbmd_executor::Engine;
use zbmd_executor::report::Outcome;
use zbmd_executor::supervise::{Event, What};
use zbmd_executor::{BorderState, StateListener, Supervised};

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
    loaded: Option<&LoadedState>,
) -> Result<Option<CheckpointFolder>, CliError> {
    let Some(path) = &args.checkpoint else {
        return Ok(None);
    };

    files.live.check_checkpoint()?;
    check_outputs(files)?;
    let program = engine.program();
    let first_origin = Origin::of(&State::initial(&program.graph), &PresentMode::default());

    let began_at = match loaded {
        Some(loaded) => Origin::of(&loaded.state, &loaded.present_mode),
        None => first_origin.clone(),
    };
    let locked_folder = Folder::open(path, args.checkpoint_keep)?;
    let found_run = match (locked_folder.found(), args.checkpoint_replace) {
        // What is replaced need not be readable.
        (Err(_), true) => Found::Empty,
        (found, _) => found?,
    };

    let identity = identity_of(bundle, files, engine, began_at)?;
    let Some(stored) = run_to_resume(args, path, &locked_folder, found_run)? else {
        return Ok(Some(CheckpointFolder {
            folder: locked_folder,
            identity,
            is_ours: false,
            resumed: None,
        }));
    };

    let difference = match stored.difference(&identity, args.other_bundle) {
        Some(text) => Some(text),
        None => compare_inputs(args, &stored, files)?,
    };
    if let Some(difference_text) = difference {
        let refusal_text = format!("{difference_text}; --checkpoint-replace begins anew");
        return Err(refused(path, refusal_text));
    }

    let resumed_checkpoint = newest_that_fits(args, &locked_folder, &stored, files, engine)?;
    if resumed_checkpoint.is_none() && stored.began_at != first_origin {
        let refusal_text = "the run began at a state from --load-state, and left no checkpoint that can be used: begin it again with --load-state and --checkpoint-replace";
        return Err(refused(path, refusal_text.to_owned()));
    }

    Ok(Some(CheckpointFolder {
        folder: locked_folder,
        identity: stored,
        is_ours: true,
        resumed: resumed_checkpoint,
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

    let checkpoint_files = folder.files().map_err(|source| FileError::Io {
        path: path.to_owned(),
        source,
    })?;
    if checkpoint_files.is_empty() {
        // A run that was ended before its first checkpoint left nothing that could be lost.
        return Ok(None);
    }
    let refusal_text = format!(
        "holds checkpoints of a run of bundle {} ({}): --resume goes on with it, --checkpoint-replace removes them, and another folder keeps them",
        stored.bundle_hash,
        describe_outputs(&stored)
    );
    Err(refused(path, refusal_text))
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
            let place_text = match is_standard(file) {
                true => "standard output".to_owned(),
                false => format!("{}, which is not a regular file", file.display()),
            };
            return Err(CliError::Usage(format!(
                "sink `{name}` goes to {place_text}: it cannot be taken back to a checkpoint; give it a file"
            )));
        }
        if file
            .extension()
            .is_some_and(|extension| extension == "jsonl")
        {
            return Err(CliError::Usage(format!(
                "sink `{name}` goes to {}: lines do not say how many empty bursts follow the last one, which a checkpoint is compared with; name the file .bursts",
                file.display()
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
    let sink_texts = identity
        .sinks
        .iter()
        .map(|sink| format!("sink `{}` to {}", sink.name, sink.path));
    sink_texts.collect::<Vec<_>>().join(", ")
}

/// A sink's file, with the tokens that are in it.
struct SinkContent<'a> {
    path: &'a Path,
    /// Unknown for a device, which takes everything and keeps nothing.
    tokens: Option<u64>,
}

impl SinkContent<'_> {
    /// Refuses a checkpoint before which more tokens were written than the file has.
    fn check_holds(&self, needed_tokens: u64) -> Result<(), String> {
        match self.tokens {
            Some(present_tokens) if present_tokens < needed_tokens => Err(format!(
                "{} has {present_tokens} whole tokens, {needed_tokens} were written before this checkpoint",
                self.path.display()
            )),
            _ => Ok(()),
        }
    }
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
    let graphs: Vec<&Graph> = engine.verified_modes().graphs().collect();
    let mut sink_contents = Vec::new();
    for (_, actor) in engine.program().graph.sinks() {
        let path = &files.outputs[&actor.name];
        let tokens = match FileKind::of_path(path) {
            FileKind::Device => None,
            // A file that is gone has none.
            _ => Some(tokens_in(path, sink_port(actor))?.unwrap_or(0)),
        };
        sink_contents.push(SinkContent { path, tokens });
    }

    let search_result = folder.newest(&graphs, &stored.run_id, |checkpoint| {
        let mut sinks = sink_contents.iter().zip(&checkpoint.sink_tokens);
        sinks.try_for_each(|(content, needed_tokens)| content.check_holds(*needed_tokens))
    });
    let (newest, passed_over) = search_result.map_err(|source| FileError::Io {
        path: args.checkpoint.clone().unwrap_or_default(),
        source,
    })?;
    for text in passed_over {
        say(format_args!("zbmd-run: note: passed over: {text}"));
    }

    if newest.is_none() {
        note_beginning(args, "no checkpoint can be used");
    }
    Ok(newest)
}

/// What makes a failure of a file out of the system's.
fn io_failure(path: &Path) -> impl Fn(io::Error) -> FileError {
    |source| FileError::Io {
        path: path.to_owned(),
        source,
    }
}

fn identity_of(
    bundle: &Path,
    files: &Files,
    engine: &Engine,
    began_at: Origin,
) -> Result<RunIdentity, CliError> {
    let program: &Program = engine.program();
    let mut source_identities = Vec::new();
    for (_, actor) in program.graph.sources() {
        let path = &files.inputs[&actor.name];
        let input = match open_input(path).map_err(io_failure(path))? {
            Some(file) => InputIdentity::of(&absolute(path), &file, None),
            None => Ok(InputIdentity::Stream {
                path: absolute(path),
            }),
        };
        source_identities.push(SourceIdentity {
            name: actor.name.clone(),
            token: actor.outputs[0].token.to_string(),
            input: input.map_err(io_failure(path))?,
        });
    }

    let sink_identities = program.graph.sinks().map(|(_, actor)| SinkIdentity {
        name: actor.name.clone(),
        token: actor.inputs[0].token.to_string(),
        path: absolute(&files.outputs[&actor.name]),
    });
    let bundle_hash = hash_of_file(bundle).map_err(io_failure(bundle))?;
    Ok(RunIdentity {
        run_id: RunIdentity::new_id(),
        bundle_hash: format!("{bundle_hash:016x}"),
        graph_hash: format!("{:016x}", fingerprint_of_modes(engine)),
        began_at,
        sources: source_identities,
        sinks: sink_identities.collect(),
    })
}

/// The graph's fingerprint, or a hash of those of all modes.
fn fingerprint_of_modes(engine: &Engine) -> u64 {
    let fingerprints = engine.verified_modes().graphs().map(state::fingerprint);
    match fingerprints.collect::<Vec<u64>>().as_slice() {
        [fingerprint] => *fingerprint,
        several => {
            let bytes = several.iter().flat_map(|hash| hash.to_le_bytes());
            xxh3_64(&bytes.collect::<Vec<u8>>())
        }
    }
}

/// Opens an input to look at it, if that takes nothing out of it: a pipe is for the run alone.
fn open_input(path: &Path) -> io::Result<Option<File>> {
    let input_file = match is_standard(path) {
        true => File::from(io::stdin().as_fd().try_clone_to_owned()?),
        false if std::fs::metadata(path)?.is_file() => File::open(path)?,
        false => return Ok(None),
    };
    Ok(Some(input_file).filter(|file| file.metadata().is_ok_and(|metadata| metadata.is_file())))
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
        let opened_input = open_input(path).map_err(io_failure(path))?;
        let Some(file) = opened_input.filter(|_| !source.input.is_stream()) else {
            if !args.quiet {
                say(format_args!(
                    "zbmd-run: note: source `{}` is or was a pipe: nothing shows that it gives the same tokens from its beginning on",
                    source.name
                ));
            }
            continue;
        };
        let contradiction = source.input.contradiction(&absolute(path), &file);
        if let Some(text) = contradiction.map_err(io_failure(path))? {
            return Ok(Some(format!("source `{}`: {text}", source.name)));
        }
    }
    Ok(None)
}

fn absolute_in_folder(path: &Path) -> Option<PathBuf> {
    let parent_folder = path.parent().filter(|folder| *folder != Path::new(""));
    let real_folder = std::fs::canonicalize(parent_folder.unwrap_or(Path::new("."))).ok()?;
    Some(real_folder.join(path.file_name()?))
}

/// A path from the root, links of its folder followed: what two runs from different folders have in common.
fn absolute(path: &Path) -> String {
    let absolute_path = match is_standard(path) {
        true => path.to_owned(),
        false => absolute_in_folder(path).unwrap_or_else(|| path.to_owned()),
    };
    absolute_path
        .to_str()
        .map_or_else(|| format!("{absolute_path:?}"), str::to_owned)
}

/// What a checkpoint is made of: a state, and what the session had given to its sinks by then.
pub(super) struct Border {
    state: State,
    present_mode: PresentMode,
    emitted: Vec<u64>,
}

impl From<BorderState> for Border {
    fn from(border: BorderState) -> Self {
        Self {
            state: border.state,
            present_mode: border.present_mode,
            emitted: border.emitted,
        }
    }
}

impl From<&Outcome> for Border {
    fn from(outcome: &Outcome) -> Self {
        Self {
            state: outcome.state.clone(),
            present_mode: outcome.present_mode.clone(),
            emitted: outcome.emitted.clone(),
        }
    }
}

/// Tokens that the file of each of so many sinks has when a run begins, or goes on after a checkpoint.
pub(super) fn held_tokens(resumed: Option<&Checkpoint>, sinks: usize) -> Vec<u64> {
    resumed.map_or_else(
        || vec![0; sinks],
        |checkpoint| checkpoint.sink_tokens.clone(),
    )
}

/// Writes checkpoints.
struct Writer {
    folder: Folder,
    engine: Engine,
    run_id: String,
    origin: Origin,
    /// Files of the sinks, and the tokens that each had when the session began.
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
        watch_for_full_disks(supervised, &is_full);

        let held_tokens = held_tokens(self.resumed.as_ref(), sinks.len());
        let writer = Writer {
            folder: self.folder,
            engine: engine.clone(),
            run_id: self.identity.run_id,
            origin,
            files: sinks
                .iter()
                .map(|(_, _, file)| file.clone())
                .zip(held_tokens)
                .collect(),
            is_full,
        };

        // While one is being written, younger ones are passed over: the next will come.
        let (state_sender, state_receiver) = sync_channel::<Border>(1);
        let listener =
            Arc::new(move |border: BorderState| drop(state_sender.try_send(border.into())));
        let writer_thread = std::thread::Builder::new()
            .name("zbmd checkpoints".to_owned())
            .spawn(move || writer.run(&state_receiver))?;
        Ok((
            Keeper {
                thread: writer_thread,
            },
            listener,
        ))
    }
}

impl Keeper {
    /// Waits until the last checkpoint is written; then, if the run was ended early, writes one of where it ended. The
    /// session has dropped its end of the channel.
    pub(super) fn finish(self, ended_at: Option<Border>) {
        let writer = match self.thread.join() {
            Ok(writer) => writer,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        if let Some(border) = ended_at {
            writer.write_or_say(border);
        }
    }
}

/// Passes events on, and notes when one is a full disk brought about on purpose.
fn watch_for_full_disks(supervised: &mut Supervised, is_full: &Arc<AtomicBool>) {
    let is_full = Arc::clone(is_full);
    let next_listener = supervised.listener.take();
    supervised.listener = Some(Arc::new(move |event: &Event| {
        if matches!(&event.what, What::Injected { kind, .. } if kind == "full_disk") {
            is_full.store(true, Ordering::Relaxed);
        }
        if let Some(listener) = &next_listener {
            listener(event);
        }
    }));
}

impl Writer {
    fn run(self, borders: &Receiver<Border>) -> Self {
        while let Ok(border) = borders.recv() {
            self.write_or_say(border);
        }
        self
    }

    fn write_or_say(&self, border: Border) {
        let iterations = border.state.iterations;
        if let Err(error) = self.write(border) {
            say(format_args!(
                "zbmd-run: note: no checkpoint at iteration {iterations}: {error}; the older ones stand"
            ));
        }
    }

    fn write(&self, border: Border) -> io::Result<()> {
        let given_by_session = self.files.iter().zip(&border.emitted);
        let sink_tokens = given_by_session.map(|((_, held_tokens), tokens)| held_tokens + tokens);
        let checkpoint = Checkpoint {
            run_id: self.run_id.clone(),
            origin: self.origin.clone(),
            sink_tokens: sink_tokens.collect(),
            state: border.state,
            present_mode: border.present_mode,
        };
        for ((file, _), &given_tokens) in self.files.iter().zip(&checkpoint.sink_tokens) {
            // The tokens are on their way; a file that cannot be written ends the run.
            if !file.sync_when(given_tokens, MAX_FLUSH)? {
                return Err(io::Error::other(format!(
                    "a sink's file has {} tokens, {given_tokens} were given to it",
                    file.tokens()
                )));
            }
        }
        if self.is_full.swap(false, Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let graphs: Vec<&Graph> = self.engine.verified_modes().graphs().collect();
        self.folder.write(&checkpoint, &graphs)
    }
}
