//! What the options say of supervision.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::args::Args;
use super::{CliError, say};
use crate::driver::Supervised;
use crate::inject::Injector;
use crate::io::{FileError, is_standard, read_whole};
use crate::supervise::Event;
use crate::supervise::declare::Supervision;

type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// No declaration is longer.
const MAX_DECLARATION_BYTES: u64 = 1 << 20;

/// What the declarations say; nothing is opened to be written yet.
pub(super) fn read(args: &Args, names: &[&str]) -> Result<Option<Supervised>, CliError> {
    let asked = args.supervise.is_some()
        || args.events.is_some()
        || args.inject.is_some()
        || args.checkpoint.is_some();
    if !asked {
        return Ok(None);
    }
    let path = args.supervise.as_ref().and_then(Option::as_deref);
    let failed = |text: String| CliError::Declaration {
        path: path.unwrap_or(Path::new("--supervise")).to_owned(),
        text,
    };
    let declaration = match path {
        Some(path) => Supervision::parse(&read_text(path)?).map_err(|e| failed(e.to_string()))?,
        None => Supervision::default(),
    };
    let resolved = declaration
        .resolve(names.iter().copied())
        .map_err(|e| failed(e.to_string()))?;
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

fn read_text(path: &Path) -> Result<String, CliError> {
    let bytes = read_whole(path, MAX_DECLARATION_BYTES)?;
    String::from_utf8(bytes).map_err(|error| CliError::Declaration {
        path: path.to_owned(),
        text: format!(
            "is not UTF-8 from byte {} on",
            error.utf8_error().valid_up_to()
        ),
    })
}

/// Opens the file of events, if one is asked for: it is emptied.
pub(super) fn open_events(args: &Args) -> Result<Option<Listener>, CliError> {
    let Some(path) = args.events.as_deref() else {
        return Ok(None);
    };
    let failed = |source| FileError::Io {
        path: path.to_owned(),
        source,
    };
    let out: Box<dyn Write + Send> = if is_standard(path) {
        Box::new(io::stderr())
    } else {
        Box::new(io::LineWriter::new(File::create(path).map_err(failed)?))
    };
    let out = Mutex::new(out);
    Ok(Some(Arc::new(move |event: &Event| {
        let mut out = out.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // A full disk must not end the run that the events are about.
        let _ = writeln!(out, "{}", event.line());
    })))
}

fn injector(text: &str) -> Result<Injector, CliError> {
    let path = PathBuf::from(text);
    let declaration = match text.parse::<u64>() {
        Ok(_) => Injector::parse(text),
        Err(_) => Injector::parse(&read_text(&path)?),
    };
    let declaration = declaration.map_err(|text| CliError::Declaration { path, text })?;
    Ok(Injector::new(declaration))
}
