//! Which file each stream has, and the threads that read and write them.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc;

use zbmd_ir::{Actor, Program, Value};

use super::CliError;
use super::args::Args;
use crate::checkpoint::{Checkpoint, Origin};
use crate::error::EngineError;
use crate::io::pipe::{Taken, has_reader};
use crate::io::pump::{self, PumpEnd, SharedFile};
use crate::io::relay;
use crate::io::{FileError, Port, create_sink, is_standard, open_source, resume_sink};
use crate::session::{Engine, Session};

/// Which file each stream has.
pub(super) struct Files {
    inputs: BTreeMap<String, PathBuf>,
    pub(super) outputs: BTreeMap<String, PathBuf>,
}

pub(super) type Opened<T> = Vec<(String, PathBuf, T)>;

impl Files {
    pub(super) fn of(args: &Args, program: &Program) -> Result<Self, CliError> {
        let sources: Vec<&Actor> = program.graph.sources().map(|(_, a)| a).collect();
        let sinks: Vec<&Actor> = program.graph.sinks().map(|(_, a)| a).collect();
        let inputs = bind("source", "--input", &sources, &args.inputs)?;
        let outputs = bind("sink", "--output", &sinks, &args.outputs)?;
        Ok(Self { inputs, outputs })
    }

    pub(super) fn open_sources(
        &self,
        program: &Program,
        origin: &Origin,
        resumed: Option<&Checkpoint>,
    ) -> Result<Opened<Box<dyn io::Read + Send>>, FileError> {
        let mut opened = Vec::new();
        for (at, (_, actor)) in program.graph.sources().enumerate() {
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
                let taken = checkpoint.state.consumed[at].1 - origin.consumed[at];
                crate::io::skip(&mut *file, token, taken).map_err(failed)?;
            }
            opened.push((actor.name.clone(), path.clone(), file));
        }
        Ok(opened)
    }

    pub(super) fn create_sinks(
        &self,
        engine: &Engine,
        origin: &Origin,
        resumed: Option<&Checkpoint>,
    ) -> Result<Opened<SharedFile>, FileError> {
        let mut created = Vec::new();
        for (id, actor) in engine.program().graph.sinks() {
            let path = &self.outputs[&actor.name];
            let port = Port {
                stream: &actor.name,
                token: &actor.inputs[0].token,
                params: &actor.params,
            };
            let file = match resumed {
                None => SharedFile::new(create_sink(path, port)?, 0),
                Some(checkpoint) => {
                    let done = checkpoint.state.iterations - origin.iterations;
                    let tokens = done * engine.inner.tokens_per_iteration(id);
                    SharedFile::new(resume_sink(path, port, tokens)?, tokens)
                }
            };
            created.push((actor.name.clone(), path.clone(), file));
        }
        Ok(created)
    }
}

/// A file for each actor: from the command line, else from its parameter `file`.
fn bind(
    kind: &str,
    option: &str,
    actors: &[&Actor],
    given: &[(String, PathBuf)],
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
        let default = actor.params.get("file").and_then(Value::as_str);
        if let (Some(default), false) = (default, files.contains_key(&actor.name)) {
            files.insert(actor.name.clone(), default.into());
        }
        if !files.contains_key(&actor.name) {
            let name = &actor.name;
            return Err(CliError::Usage(format!(
                "{kind} `{name}` has no file: say {option} {name}=FILE, or {option} {name}=- for a standard stream"
            )));
        }
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
    pub(super) token_bytes: u64,
    /// What its reader has taken, if it is not a file on a disk.
    pub(super) taken: Option<Taken>,
}

/// Starts a thread for each file; the sinks, whose ends the command waits for.
pub(super) fn start_pumps(
    session: &mut Session,
    sources: Opened<Box<dyn io::Read + Send>>,
    sinks: Opened<SharedFile>,
    ends: &mpsc::Sender<PumpEnd>,
) -> Result<Vec<OpenSink>, CliError> {
    let no_thread = |e| CliError::Engine(EngineError::Thread(e));
    let stopper = session.stopper();
    let mut open_sinks = Vec::with_capacity(sinks.len());
    for (name, path, file) in sinks {
        let Ok(sink) = session.sink(&name) else {
            continue;
        };
        open_sinks.push(OpenSink {
            stream: name.clone(),
            token_bytes: sink.token().bytes(),
            taken: file.taken(),
        });
        let stream = name.clone();
        let stopper = stopper.clone();
        pump::spawn(&name, ends.clone(), move || match has_reader(&path) {
            true => relay::drain(&stream, &path, sink, &file, &stopper),
            false => pump::drain(&stream, &path, sink, &file),
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
