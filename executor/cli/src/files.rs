//! Which file each stream has, and the threads that read and write them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;

use zbmd_ir::{Actor, Program, Value};

use super::args::Args;
use super::{CliError, file_roles, startup};
use crate::checkpoint::{Checkpoint, Origin};
use crate::io::pump::{self, PumpEnd, SharedFile};
use crate::io::relay;
use crate::io::{FileError, FileKind, Port, PreparedSink, is_standard, open_source};
use zbmd_executor::Engine;
use zbmd_executor::EngineError;
use zbmd_executor::Session;

/// Which file each stream has.
pub(super) struct Files {
    pub(super) inputs: BTreeMap<String, PathBuf>,
    pub(super) outputs: BTreeMap<String, PathBuf>,
}

pub(super) type Opened<T> = Vec<(String, PathBuf, T)>;

impl Files {
    pub(super) fn of(args: &Args, program: &Program) -> Result<Self, CliError> {
        let sources: Vec<&Actor> = program.graph.sources().map(|(_, a)| a).collect();
        let sinks: Vec<&Actor> = program.graph.sinks().map(|(_, a)| a).collect();
        let inputs = bind(
            "source",
            "--input",
            &sources,
            &args.inputs,
            args.allow_files,
        )?;
        let outputs = bind("sink", "--output", &sinks, &args.outputs, args.allow_files)?;

        for (kind, files, was_closed) in [
            ("source", &inputs, startup::STANDARD_INPUT.was_closed()),
            ("sink", &outputs, startup::STANDARD_OUTPUT.was_closed()),
        ] {
            let standard = files.iter().find(|(_, path)| is_standard(path));
            if let (Some((name, path)), true) = (standard, was_closed) {
                return Err(CliError::File(FileError::Content {
                    path: path.clone(),
                    message: format!(
                        "{kind} `{name}` has this standard stream, and it was closed when the program was started: give it a file"
                    ),
                }));
            }
        }
        Ok(Self { inputs, outputs })
    }

    pub(super) fn open_sources(
        &self,
        program: &Program,
        origin: &Origin,
        resumed: Option<&Checkpoint>,
    ) -> Result<Opened<Box<dyn io::Read + Send>>, FileError> {
        let mut opened = Vec::new();
        for (index, (_, actor)) in program.graph.sources().enumerate() {
            let path = &self.inputs[&actor.name];
            let token = &actor.outputs[0].token;
            let port = Port {
                stream: &actor.name,
                token,
                params: &actor.params,
            };

            let mut file = open_source(path, port)?;
            if let Some(checkpoint) = resumed {
                let failed = |source| FileError::Io {
                    path: path.clone(),
                    source,
                };
                let taken = checkpoint.state.consumed[index].1 - origin.consumed[index];
                crate::io::skip(&mut *file, token, taken).map_err(failed)?;
            }
            opened.push((actor.name.clone(), path.clone(), file));
        }
        Ok(opened)
    }

    /// Opens the files of all sinks, and changes none of them yet.
    pub(super) fn prepare_sinks(
        &self,
        engine: &Engine,
        bundle: &Path,
        resumed: Option<&Checkpoint>,
    ) -> Result<Opened<SharedFile>, CliError> {
        let mut prepared = Vec::new();
        for (_, actor) in engine.program().graph.sinks() {
            let path = &self.outputs[&actor.name];
            prepared.push((
                &actor.name,
                path,
                PreparedSink::open(path, sink_port(actor))?,
            ));
        }
        let open: Vec<_> = prepared
            .iter()
            .filter(|(_, path, _)| !is_standard(path))
            .map(|(name, _, sink)| (name.as_str(), sink.file()))
            .collect();
        file_roles::check_open(&open, bundle)?;

        let ids = engine.program().graph.sinks().map(|(id, _)| id);
        let shared = prepared
            .into_iter()
            .zip(ids)
            .map(|((name, path, sink), id)| {
                let resume_at = resumed.map(|checkpoint| {
                    checkpoint.iterations_in_files() * engine.tokens_per_iteration(id)
                });
                (name.clone(), path.clone(), SharedFile::new(sink, resume_at))
            });
        Ok(shared.collect())
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
    let folder = fs::canonicalize(".").map_err(|e| format!("the working folder: {e}"))?;
    let mut existing = path.as_path();
    while fs::symlink_metadata(existing).is_err() {
        existing = match existing.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => return Ok(path),
        };
    }
    let target =
        fs::canonicalize(existing).map_err(|e| format!("`{}`: {e}", existing.display()))?;
    if !target.starts_with(&folder) {
        return Err(format!("it leads to {}", target.display()));
    }
    Ok(path)
}

/// A file for each actor: from the command line, else from its parameter `file`, if that is allowed.
fn bind(
    kind: &str,
    option: &str,
    actors: &[&Actor],
    given: &[(String, PathBuf)],
    allow_files: bool,
) -> Result<BTreeMap<String, PathBuf>, CliError> {
    let mut files = BTreeMap::new();
    for (name, path) in given {
        if !actors.iter().any(|a| a.name == *name) {
            let known: Vec<&str> = actors.iter().map(|a| a.name.as_str()).collect();
            return Err(CliError::Usage(format!(
                "{option} {name}=…: the bundle has no {kind} `{name}`; it has: {}",
                known.join(", ")
            )));
        }
        if files.insert(name.clone(), path.clone()).is_some() {
            return Err(CliError::Usage(format!(
                "{option} {name}=…: the {kind} `{name}` is given twice; one file each"
            )));
        }
    }

    for actor in actors {
        let name = &actor.name;
        if files.contains_key(name) {
            continue;
        }
        let default = actor.params.get("file").and_then(Value::as_str);
        let Some(default) = default else {
            return Err(CliError::Usage(format!(
                "{kind} `{name}` has no file: say {option} {name}=FILE, or {option} {name}=- for a standard stream"
            )));
        };

        if !allow_files {
            return Err(CliError::Usage(format!(
                "{kind} `{name}` has no file: say {option} {name}=FILE, or --allow-files to take {default:?}, the name in the bundle"
            )));
        }

        let path = name_from_bundle(default).map_err(|why| {
            CliError::Usage(format!(
                "{kind} `{name}`: the bundle names the file {default:?}, which --allow-files does not allow: {why}; say {option} {name}=FILE"
            ))
        })?;
        files.insert(name.clone(), path);
    }

    let standard: Vec<&String> = files
        .iter()
        .filter(|(_, p)| is_standard(p))
        .map(|(n, _)| n)
        .collect();
    if let [first, second, ..] = standard[..] {
        return Err(CliError::Usage(format!(
            "{kind}s `{first}` and `{second}` both have the file `-`; one can"
        )));
    }
    Ok(files)
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
    ends: &mpsc::Sender<PumpEnd>,
) -> Result<Vec<OpenSink>, CliError> {
    let no_thread = |e| CliError::Engine(EngineError::Thread(e));
    let stopper = session.stopper();
    let mut open_sinks = Vec::with_capacity(sinks.len());
    for (name, path, file) in sinks {
        let Ok(sink) = session.sink(name) else {
            continue;
        };
        open_sinks.push(OpenSink {
            stream: name.clone(),
            file: file.clone(),
        });

        let stream = name.clone();
        let path = path.clone();
        let file = file.clone();
        let stopper = stopper.clone();
        pump::spawn(name, ends.clone(), move || match file.kind() {
            FileKind::Regular => pump::drain(&stream, &path, sink, &file),
            FileKind::Device | FileKind::Stream => {
                relay::drain(&stream, &path, sink, &file, &stopper)
            }
        })
        .map_err(no_thread)?;
    }

    for (name, path, file) in sources {
        let Ok(source) = session.source(&name) else {
            continue;
        };
        let stream = name.clone();
        pump::spawn(&name, ends.clone(), move || {
            pump::fill(&stream, &path, file, source)
        })
        .map_err(no_thread)?;
    }
    Ok(open_sinks)
}
