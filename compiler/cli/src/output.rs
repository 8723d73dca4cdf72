//! Stdout, stderr and how the process ends.

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use zbmd_compiler::render::{self, Style};
use zbmd_compiler::{Code, Diagnostics};
use zbmd_ir::text::printable_lines;

use crate::args::{Colour, MessageFormat};
use crate::commands::lone;

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok = 0,
    Differ = 1,
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
        let stderr = std::io::stderr();
        let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        let colour = match self.colour {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => {
                let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
                stderr.is_terminal() && !set("NO_COLOR") && !dumb
            }
        };
        Style {
            colour,
            width: width(),
        }
    }
}

fn width() -> usize {
    #[cfg(unix)]
    if let Ok(size) = rustix::termios::tcgetwinsize(std::io::stderr())
        && size.ws_col >= 40
    {
        return usize::from(size.ws_col);
    }
    Style::plain().width
}

fn summary(diagnostics: &Diagnostics) -> String {
    let count = |n: usize, what: &str| match n {
        0 => None,
        1 => Some(format!("1 {what}")),
        n => Some(format!("{n} {what}s")),
    };
    let counts = [
        count(diagnostics.errors(), "error"),
        count(diagnostics.warnings(), "warning"),
    ];
    let counts: Vec<String> = counts.into_iter().flatten().collect();
    match diagnostics.list.first() {
        None => String::new(),
        Some(first) => {
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
    }
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
            voice.report(&lone(
                Code::E0704,
                message,
                "check the folder and its permissions",
            ))
        }
    }
}

/// Columns of the terminal that stdout is, or 100.
pub(crate) fn columns() -> usize {
    #[cfg(unix)]
    if let Ok(size) = rustix::termios::tcgetwinsize(std::io::stdout())
        && size.ws_col >= 40
    {
        return usize::from(size.ws_col);
    }
    100
}

/// Writes lines to stdout, with control characters of names and paths as escapes.
pub(crate) fn print(text: &str) -> Exit {
    print_bytes(printable_lines(text).as_bytes())
}

/// Writes data to stdout. A reader that has seen enough, such as `head`, is no error.
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
