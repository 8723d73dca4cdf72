//! Which file each stream has, and the threads that read and write them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;

use zbmd_ir::{Actor, MODEL, Program, State, Value};

use super::args::Args;
use super::deadlines::Deadlines;
use super::live::{LiveBindings, LiveStreams, is_live};
use super::recordings::RecordingNames;
use super::replay::Replayed;
use super::{CliError, file_roles, startup};
use crate::checkpoint::{Checkpoint, Origin};
use crate::io::pump::{self, PumpEnd, SharedFile, WatchedSink};
use crate::io::relay;
use crate::io::{FileError, FileKind, Port, PreparedSink, is_standard, is_url, open_source};
use zbmd_executor::Engine;
use zbmd_executor::EngineError;
use zbmd_executor::Session;
use zbmd_live::{SinkUrl, SourceUrl};

/// Which file each stream has.
pub(super) struct Files {
    pub(super) inputs: BTreeMap<String, PathBuf>,
    pub(super) outputs: BTreeMap<String, PathBuf>,
    /// Those of them that are not files.
    pub(super) live: LiveBindings,
    /// Those of the sinks that are recordings.
    pub(super) recordings: RecordingNames,
}

pub(super) type Opened<T> = Vec<(String, PathBuf, T)>;

impl Files {
    /// What the command line says. The sources of a recording have none.
    pub(super) fn of(
        args: &Args,
        program: &Program,
        replayed: Option<&Replayed>,
    ) -> Result<Self, CliError> {
        let sources: Vec<&Actor> = program.graph.sources().map(|(_, actor)| actor).collect();
        let sinks: Vec<&Actor> = program.graph.sinks().map(|(_, actor)| actor).collect();
        let allowed = NamesFromBundle {
            files: args.allow_files,
            urls: args.allow_urls,
        };
        let inputs = match replayed {
            None => bind("source", "--input", &sources, &args.inputs, allowed)?,
            Some(_) => BTreeMap::new(),
        };
        let mut outputs = bind("sink", "--output", &sinks, &args.outputs, allowed)?;

        for (kind, files, was_closed) in [
            ("source", &inputs, startup::STANDARD_INPUT.was_closed()),
            ("sink", &outputs, startup::STANDARD_OUTPUT.was_closed()),
        ] {
            let standard_stream = files.iter().find(|(_, path)| is_standard(path));
            if let (Some((name, path)), true) = (standard_stream, was_closed) {
                return Err(CliError::File(FileError::Content {
                    path: path.clone(),
                    message: format!(
                        "{kind} `{name}` has this standard stream, and it was closed when the program was started: give it a file"
                    ),
                }));
            }
        }
        let recordings = RecordingNames::take(&mut outputs);
        let live = LiveBindings::of(&inputs, &outputs, program)?;
        Ok(Self {
            inputs,
            outputs,
            live,
            recordings,
        })
    }

    pub(super) fn open_sources(
        &self,
        program: &Program,
        origin: &Origin,
        resumed: Option<&State>,
    ) -> Result<Opened<Box<dyn io::Read + Send>>, FileError> {
        let mut opened_sources = Vec::new();
        for (index, (_, actor)) in program.graph.sources().enumerate() {
            let path = &self.inputs[&actor.name];
            if is_live(path) {
                continue;
            }
            let token = &actor.outputs[0].token;
            let port = Port {
                stream: &actor.name,
                token,
                params: &actor.params,
            };

            let mut source_file = open_source(path, port)?;
            if let Some(state) = resumed {
                let failed = |error| FileError::Io {
                    path: path.clone(),
                    source: error,
                };
                let consumed_tokens = state.consumed[index].1 - origin.consumed[index];
                match actor.params.contains_key(MODEL) {
                    // A model that had ended went on with zeros.
                    true => {
                        crate::io::skip_up_to(&mut *source_file, token, consumed_tokens).map(drop)
                    }
                    false => crate::io::skip(&mut *source_file, token, consumed_tokens),
                }
                .map_err(failed)?;
            }
            opened_sources.push((actor.name.clone(), path.clone(), source_file));
        }
        Ok(opened_sources)
    }

    /// Opens the files of all sinks, and changes none of them yet.
    pub(super) fn prepare_sinks(
        &self,
        engine: &Engine,
        bundle: &Path,
        resumed: Option<&Checkpoint>,
        live: &mut LiveStreams,
    ) -> Result<Opened<SharedFile>, CliError> {
        let mut prepared_sinks = Vec::new();
        for (_, actor) in engine.program().graph.sinks() {
            let sink_path = &self.outputs[&actor.name];
            let port = sink_port(actor);
            let description =
                self.recordings
                    .first_description(actor, engine.program(), &self.live)?;
            let mut prepared_sink = match self.live.outputs.get(&actor.name) {
                Some(url) => PreparedSink::of_pipe(sink_path, live.open_sink(actor, url)?, port),
                None => PreparedSink::open(sink_path, port)?,
            };
            if let Some((path, text)) = description {
                prepared_sink.begin_with(path, text);
            }
            prepared_sinks.push((&actor.name, sink_path, prepared_sink));
        }
        let open_files: Vec<_> = prepared_sinks
            .iter()
            .filter(|(_, path, _)| !is_standard(path) && !is_url(path))
            .map(|(name, _, sink)| (name.as_str(), sink.file()))
            .collect();
        file_roles::check_open(&open_files, bundle)?;

        let shared_sinks =
            prepared_sinks
                .into_iter()
                .enumerate()
                .map(|(index, (name, path, sink))| {
                    let resume_at = resumed.map(|checkpoint| checkpoint.sink_tokens[index]);
                    (name.clone(), path.clone(), SharedFile::new(sink, resume_at))
                });
        Ok(shared_sinks.collect())
    }
}

/// What a sink's file is to hold.
pub(super) fn sink_port(actor: &Actor) -> Port<'_> {
    Port {
        stream: &actor.name,
        token: &actor.inputs[0].token,
        params: &actor.params,
    }
}

/// Which of the names that a bundle has for its streams are taken.
#[derive(Clone, Copy)]
struct NamesFromBundle {
    files: bool,
    urls: bool,
}

impl NamesFromBundle {
    /// The name that a bundle has for a stream, if it is one of those that are taken.
    fn take(self, kind: &str, option: &str, stream: &str, name: &str) -> Result<PathBuf, CliError> {
        let path = PathBuf::from(name);
        // A recording's own name is that of a file; with `sigmf:` before it, only the parsed URL says which.
        let is_url = is_url(&path) || (is_live(&path) && !zbmd_live::sigmf::is_recording(&path));
        let missing = |allow, noun| {
            Err(CliError::Usage(format!(
                "{kind} `{stream}` has no file: say {option} {stream}=FILE, or {allow} to take {name:?}, the {noun} in the bundle"
            )))
        };
        let refused = |allow, noun, why| {
            CliError::Usage(format!(
                "{kind} `{stream}`: the bundle names the {noun} {name:?}, which {allow} does not allow: {why}; say {option} {stream}=FILE"
            ))
        };

        match is_url {
            true if !self.urls => missing("--allow-urls", "URL"),
            true => url_from_bundle(kind, name).map_err(|why| refused("--allow-urls", "URL", why)),
            false if !self.files => missing("--allow-files", "name"),
            false => name_from_bundle(name).map_err(|why| refused("--allow-files", "file", why)),
        }
    }
}

/// A URL that a bundle decides: files that it names lead nowhere but into the working folder.
fn url_from_bundle(kind: &str, text: &str) -> Result<PathBuf, String> {
    let parsed = match kind {
        "source" => SourceUrl::parse(text).map(|url| url.endpoint),
        _ => SinkUrl::parse(text).map(|url| url.endpoint),
    };
    let endpoint = parsed.map_err(|error| error.to_string())?;
    for file in endpoint.files() {
        name_from_bundle(&file.to_string_lossy())
            .map_err(|why| format!("its file {file:?}: {why}"))?;
    }
    Ok(PathBuf::from(text))
}

/// A name of a file that a bundle decides: it leads nowhere but into the working folder. `Err` says why not.
fn name_from_bundle(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    if is_standard(&path) {
        return Ok(path);
    }
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !path.components().all(is_plain) {
        return Err("it must be relative, without `..`".to_owned());
    }

    // What exists of it may be a link that leads out; what does not exist yet is made in a folder that does.
    let working_folder =
        fs::canonicalize(".").map_err(|error| format!("the working folder: {error}"))?;
    let mut existing_part = path.as_path();
    while fs::symlink_metadata(existing_part).is_err() {
        existing_part = match existing_part.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => return Ok(path),
        };
    }
    let link_target = fs::canonicalize(existing_part)
        .map_err(|error| format!("`{}`: {error}", existing_part.display()))?;
    if !link_target.starts_with(&working_folder) {
        return Err(format!("it leads to {}", link_target.display()));
    }
    Ok(path)
}

/// A file for each actor: from the command line, else from its parameter `file`, if that is allowed.
fn bind(
    kind: &str,
    option: &str,
    actors: &[&Actor],
    given: &[(String, PathBuf)],
    allowed: NamesFromBundle,
) -> Result<BTreeMap<String, PathBuf>, CliError> {
    let mut bound_files = BTreeMap::new();
    // What the command line says comes first: it is the user's, while names in a bundle are a stranger's.
    for (name, path) in given {
        if !actors.iter().any(|actor| actor.name == *name) {
            let known_names: Vec<&str> = actors.iter().map(|actor| actor.name.as_str()).collect();
            return Err(CliError::Usage(format!(
                "{option} {name}=…: the bundle has no {kind} `{name}`; it has: {}",
                known_names.join(", ")
            )));
        }
        if bound_files.insert(name.clone(), path.clone()).is_some() {
            return Err(CliError::Usage(format!(
                "{option} {name}=…: the {kind} `{name}` is given twice; one file each"
            )));
        }
    }

    for actor in actors {
        let actor_name = &actor.name;
        if bound_files.contains_key(actor_name) {
            continue;
        }
        let bundle_name = actor.params.get("file").and_then(Value::as_str);
        let Some(bundle_name) = bundle_name else {
            return Err(CliError::Usage(format!(
                "{kind} `{actor_name}` has no file: say {option} {actor_name}=FILE, or {option} {actor_name}=- for a standard stream"
            )));
        };

        let bound_path = allowed.take(kind, option, actor_name, bundle_name)?;
        bound_files.insert(actor_name.clone(), bound_path);
    }

    // There is one standard input and one standard output.
    let standard_streams: Vec<&String> = bound_files
        .iter()
        .filter(|(_, path)| is_standard(path))
        .map(|(name, _)| name)
        .collect();
    if let [first, second, ..] = standard_streams[..] {
        return Err(CliError::Usage(format!(
            "{kind}s `{first}` and `{second}` both have the file `-`; one can"
        )));
    }
    Ok(bound_files)
}

/// A sink whose file is being written.
pub(super) struct OpenSink {
    pub(super) stream: String,
    pub(super) file: SharedFile,
}

/// Starts a thread for each file; the sinks, whose ends the command waits for.
pub(super) fn start_pumps(
    session: &mut Session,
    sources: Opened<Box<dyn io::Read + Send>>,
    sinks: &Opened<SharedFile>,
    deadlines: &Deadlines,
    ends: &mpsc::Sender<PumpEnd>,
) -> Result<Vec<OpenSink>, CliError> {
    let no_thread = |error| CliError::Engine(EngineError::Thread(error));
    let stopper = session.stopper();
    let pump_role = session.pump_role();

    let mut open_sinks = Vec::with_capacity(sinks.len());
    for (name, path, file) in sinks {
        let Ok(handle) = session.sink(name) else {
            continue;
        };
        let sink = WatchedSink {
            handle,
            listener: deadlines.listener(name),
            // What is in a file was there in time or not: nobody reads it before it is written.
            gate: deadlines.gate(name, file.kind() != FileKind::Regular, &stopper),
        };
        open_sinks.push(OpenSink {
            stream: name.clone(),
            file: file.clone(),
        });

        // Each pump has handles of its own: it may outlive this call, and the run.
        let stream_name = name.clone();
        let sink_path = path.clone();
        let shared_file = file.clone();
        let run_stopper = stopper.clone();
        // Only a disk is always waited for; a device or a pipe may have a reader that stalls.
        pump::spawn(name, ends.clone(), pump_role, move || {
            match shared_file.kind() {
                FileKind::Regular => pump::drain(&stream_name, &sink_path, sink, &shared_file),
                FileKind::Device | FileKind::Stream => relay::drain(
                    &stream_name,
                    &sink_path,
                    sink,
                    &shared_file,
                    &run_stopper,
                    pump_role,
                ),
            }
        })
        .map_err(no_thread)?;
    }

    for (name, path, file) in sources {
        let Ok(source) = session.source(&name) else {
            continue;
        };
        let stream_name = name.clone();
        pump::spawn(&name, ends.clone(), pump_role, move || {
            pump::fill(&stream_name, &path, file, source)
        })
        .map_err(no_thread)?;
    }
    Ok(open_sinks)
}
