//! What the options say of supervision.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, sync_channel};
use std::sync::{Arc, Mutex};

use serde::Serialize;

use super::args::Args;
use super::console::CONSOLE;
use super::{CliError, say};
use crate::io::{FileError, is_standard, read_whole};
use zbmd_executor::Supervised;
use zbmd_executor::inject::Injector;
use zbmd_executor::supervise::declare::Supervision;
use zbmd_executor::supervise::{Event, What};

type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// No declaration is longer.
const MAX_DECLARATION_BYTES: u64 = 1 << 20;

/// What the declarations say; nothing is opened to be written yet.
pub(super) fn read(args: &Args, names: &[&str]) -> Result<Option<Supervised>, CliError> {
    let is_asked_for = args.supervise.is_some()
        || args.events.is_some()
        || args.inject.is_some()
        || args.checkpoint.is_some()
        || args.record.is_some()
        // The loss of a host is what supervision is for.
        || args.has_hosts();
    if !is_asked_for {
        return Ok(None);
    }
    let declaration_path = args.supervise.as_ref().and_then(Option::as_deref);
    let declaration = match declaration_path {
        Some(path) => Supervision::parse(&read_text(path)?)
            .map_err(|error| declaration_error(declaration_path, error.to_string()))?,
        None => Supervision::default(),
    };

    let resolved = declaration
        .resolve(names.iter().copied())
        .map_err(|error| declaration_error(declaration_path, error.to_string()))?;

    for warning in resolved.warnings.iter().filter(|_| !args.quiet) {
        say(format_args!("zbmd-run: note: {warning}"));
    }
    Ok(Some(Supervised {
        settings: resolved.settings,
        tree: resolved.tree,
        listener: None,
        states: None,
        inject: args.inject.as_deref().map(injector).transpose()?,
        save_every: None,
    }))
}

fn declaration_error(path: Option<&Path>, text: String) -> CliError {
    CliError::Declaration {
        path: path.unwrap_or(Path::new("--supervise")).to_owned(),
        text,
    }
}

fn read_text(path: &Path) -> Result<String, CliError> {
    let declaration_bytes = read_whole(path, MAX_DECLARATION_BYTES)?;
    String::from_utf8(declaration_bytes).map_err(|error| CliError::Declaration {
        path: path.to_owned(),
        text: format!(
            "is not UTF-8 from byte {} on",
            error.utf8_error().valid_up_to()
        ),
    })
}

/// Opens the file of events, if one is asked for: it is emptied. The listener also says what the person at the terminal
/// should know. It is called on a thread of its own, which may wait for whoever reads the file.
pub(super) fn open_events(args: &Args) -> Result<Events, CliError> {
    let event_file = args.events.as_deref().map(EventFile::open).transpose()?;
    let lines = event_file.map(|file| EventLines {
        file: Arc::new(Mutex::new(file)),
    });
    let supervisor_lines = lines.clone();
    let listener: Listener = Arc::new(move |event: &Event| {
        if let Some(lines) = &supervisor_lines {
            lines.write(event.line());
        }
        if let What::SupervisorLate { activity, after_ns } = &event.what {
            let seconds = after_ns / 1_000_000_000;
            say(format_args!(
                "zbmd-run: note: the supervising thread has made no progress for {seconds} s while {activity}"
            ));
        }
    });
    Ok(Events { listener, lines })
}

/// Who is told of events.
pub(super) struct Events {
    /// Of the supervisor's.
    pub(super) listener: Listener,
    /// Where all of them are written, if that is asked for.
    pub(super) lines: Option<EventLines>,
}

/// The file of events, shared by those who write to it.
#[derive(Clone)]
pub(super) struct EventLines {
    file: Arc<Mutex<EventFile>>,
}

impl EventLines {
    fn write(&self, line: String) {
        let mut file = self
            .file
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        file.write(line);
    }

    /// Takes the events of a stream without waiting for whoever reads the file: a thread writes them, and what it is too
    /// slow for is dropped. It keeps `running` until it has written all.
    pub(super) fn stream_listener<E: Serialize + Send + 'static>(
        &self,
        running: Sender<()>,
    ) -> Box<dyn FnMut(E) + Send> {
        /// Events that wait to be written.
        const QUEUE_LENGTH: usize = 4096;
        let (sender, receiver) = sync_channel::<StreamLine<E>>(QUEUE_LENGTH);
        let lines = self.clone();
        let write_all = move || {
            for line in receiver {
                lines.write(serde_json::to_string(&line).unwrap_or_default());
            }
            drop(running);
        };
        // Without a thread nothing is written.
        let _ = std::thread::Builder::new()
            .name("zbmd stream log".to_owned())
            .spawn(write_all);
        Box::new(move |event| {
            let at_ns = zbmd_live::now_ns();
            drop(sender.try_send(StreamLine { at_ns, event }));
        })
    }
}

/// An event of a stream, as it is written.
#[derive(Serialize)]
struct StreamLine<E> {
    at_ns: u64,
    #[serde(flatten)]
    event: E,
}

/// Where events go.
enum EventFile {
    StandardError,
    /// A pipe with a name can be opened only when it has a reader: that is left to the first event.
    NamedPipe(PathBuf),
    Open(io::LineWriter<File>),
    /// It could not be opened.
    None,
}

impl EventFile {
    fn open(path: &Path) -> Result<Self, CliError> {
        if is_standard(path) {
            return Ok(Self::StandardError);
        }
        if zbmd_executor::is_named_pipe(path) {
            return Ok(Self::NamedPipe(path.to_owned()));
        }
        let file = File::create(path).map_err(|source| FileError::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self::Open(io::LineWriter::new(file)))
    }

    fn write(&mut self, line: String) {
        if let Self::NamedPipe(path) = self {
            let open_result = File::options().write(true).open(path);
            *self = open_result.map_or(Self::None, |file| Self::Open(io::LineWriter::new(file)));
        }
        match self {
            Self::StandardError => CONSOLE.say_in_turn(line),
            // A full disk must not end the run that the events are about.
            Self::Open(file) => drop(writeln!(file, "{line}")),
            Self::NamedPipe(_) | Self::None => {}
        }
    }
}

fn injector(text: &str) -> Result<Injector, CliError> {
    let path = PathBuf::from(text);
    let declaration = match text.parse::<u64>() {
        Ok(_) => Injector::parse(text),
        Err(_) => Injector::parse(&read_text(&path)?),
    };
    let accepted = declaration.map_err(|text| CliError::Declaration { path, text })?;
    Ok(Injector::new(accepted))
}
