//! Stdout, stderr and how the process ends.

use std::io::{ErrorKind, IsTerminal, Write};
#[cfg(unix)]
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use zbmd_compiler::render::{self, Style};
use zbmd_compiler::{Code, Diagnostic, Diagnostics, SourceMap};
use zbmd_ir::text::printable_lines;

use crate::args::{Colour, MessageFormat};

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok = 0,
    /// The answer is no: bundles differ, or do not fit.
    Negative = 1,
    Usage = 2,
    Wrong = 3,
    File = 4,
    Refused = 5,
    OurBug = 70,
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// How to talk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voice {
    pub(crate) colour: Colour,
    pub(crate) format: MessageFormat,
}

impl Voice {
    /// Says what is wrong, on stderr; the exit code that follows from it.
    pub(crate) fn report(self, diagnostics: &Diagnostics) -> Exit {
        let text = match self.format {
            MessageFormat::Json => render::json(diagnostics),
            MessageFormat::Text => {
                let text = render::text(diagnostics, &self.style());
                text + &summary(diagnostics)
            }
        };
        // Drawn with everything from files escaped already; colours are escape sequences of our own.
        let _ = std::io::stderr().write_all(text.as_bytes());
        exit_of(diagnostics)
    }

    fn style(self) -> Style {
        let has_colour = match self.colour {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => {
                let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
                let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                std::io::stderr().is_terminal() && !no_colour && !is_dumb
            }
        };

        Style {
            colour: has_colour,
            width: terminal_columns(std::io::stderr()).unwrap_or(Style::plain().width),
        }
    }
}

/// Columns of a terminal; `None` for what is not one, or is too narrow to draw on.
#[cfg(unix)]
fn terminal_columns(stream: impl AsFd) -> Option<usize> {
    const MIN_COLUMNS: u16 = 40;
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col >= MIN_COLUMNS).then_some(usize::from(size.ws_col))
}

#[cfg(not(unix))]
fn terminal_columns<S>(_stream: S) -> Option<usize> {
    None
}

/// How many errors and warnings there are, and where to read more.
fn summary(diagnostics: &Diagnostics) -> String {
    let Some(first) = diagnostics.list.first() else {
        return String::new();
    };

    let mut counts = Vec::new();
    for (count, noun) in [
        (diagnostics.errors(), "error"),
        (diagnostics.warnings(), "warning"),
    ] {
        if count > 0 {
            counts.push(zbmd_ir::text::count(count as u64, noun));
        }
    }

    let more = if diagnostics.more {
        ", more are not shown"
    } else {
        ""
    };
    format!(
        "{}{more}; `zbmdc explain {}` says more\n",
        counts.join(" and "),
        first.code
    )
}

fn exit_of(diagnostics: &Diagnostics) -> Exit {
    if diagnostics.errors() == 0 {
        Exit::Ok
    } else if diagnostics.only_files() {
        Exit::File
    } else if diagnostics.list.iter().any(|d| d.code == Code::E0601) {
        Exit::Refused
    } else {
        Exit::Wrong
    }
}

/// What to do about a file that cannot be written.
pub(crate) const CHECK_FOLDER: &str = "check the folder and its permissions";

/// One error without a place in a text.
pub(crate) fn single_error(code: Code, message: String, help: &str) -> Diagnostics {
    let diagnostic = Diagnostic::new(code, message).help(help);
    Diagnostics {
        sources: SourceMap::default(),
        list: vec![diagnostic],
        more: false,
    }
}

/// Writes lines to stderr, with control characters of names and paths as escapes. Nobody is left to be told where that
/// fails.
pub(crate) fn say(text: &str) {
    let _ = std::io::stderr().write_all(printable_lines(text).as_bytes());
}

/// Writes data to a file, or to stdout if there is none.
pub(crate) fn deliver(bytes: &[u8], path: Option<&Path>, voice: Voice) -> Exit {
    let Some(path) = path else {
        return print_bytes(bytes);
    };
    match std::fs::write(path, bytes) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            let message = format!("cannot write `{}`: {error}", path.display());
            voice.report(&single_error(Code::E0704, message, CHECK_FOLDER))
        }
    }
}

/// Columns of text where stdout is not a terminal: the same for a file and for a pipe.
const DEFAULT_COLUMNS: usize = 100;

/// Columns of the terminal that stdout is, or 100.
pub(crate) fn columns() -> usize {
    terminal_columns(std::io::stdout()).unwrap_or(DEFAULT_COLUMNS)
}

/// Writes lines to stdout, with control characters of names and paths as escapes.
pub(crate) fn print(text: &str) -> Exit {
    print_bytes(printable_lines(text).as_bytes())
}

/// Writes data to stdout. A reader that has seen enough, such as `head`, is not an error.
fn print_bytes(bytes: &[u8]) -> Exit {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Exit::Ok,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Exit::Ok,
        Err(error) => {
            say(&format!("zbmdc: cannot write to stdout: {error}\n"));
            Exit::File
        }
    }
}
