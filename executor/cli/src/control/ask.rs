//! The client's end of the control socket.

use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use zbmd_executor::live::control_path_of;
use zbmd_ir::text::printable_lines;

use super::message::{MessageError, RefusalKind, Reply, Request, line_of, read_message};
use crate::exit;

/// How long a run that has many changes to make is asked again.
const BUSY_LIMIT: Duration = Duration::from_secs(2);
/// Pause before it is.
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// A run whose supervisor handles a loss answers after that.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// A refusal with its exit code.
pub(super) struct Failure {
    pub(super) code: u8,
    pub(super) text: String,
}

impl Failure {
    pub(super) fn new(code: u8, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    /// The run is of another version, or no run at all.
    pub(super) fn unasked() -> Self {
        Self::new(exit::FILE, "the run answers what was not asked")
    }
}

/// Prints what came of a command; the exit code.
pub(super) fn show(shown: Result<String, Failure>) -> u8 {
    match shown {
        Ok(text) => {
            // A reader that went away has seen enough.
            let _ = write!(io::stdout(), "{}", printable_lines(&text));
            exit::OK
        }
        Err(Failure { code, text }) => {
            let _ = writeln!(io::stderr(), "zbmd-run: {}", printable_lines(&text));
            code
        }
    }
}

pub(super) fn code_of(kind: RefusalKind) -> u8 {
    match kind {
        RefusalKind::Request => exit::USAGE,
        RefusalKind::Value | RefusalKind::Busy => exit::REFUSED,
        RefusalKind::Ended => exit::NO_RUN,
    }
}

/// Asks a run, again where it is busy.
pub(super) fn ask(pid: u32, request: &Request) -> Result<Reply, Failure> {
    let busy_until = Instant::now() + BUSY_LIMIT;
    loop {
        match ask_once(pid, request)? {
            Reply::Refused {
                kind: RefusalKind::Busy,
                ..
            } if Instant::now() < busy_until => std::thread::sleep(BUSY_PAUSE),
            reply => return Ok(reply),
        }
    }
}

fn ask_once(pid: u32, request: &Request) -> Result<Reply, Failure> {
    let failed = |error: io::Error| {
        let text = format!("the run of process {pid} cannot be asked: {error}");
        Failure::new(exit::FILE, text)
    };
    let path = control_path_of(pid).map_err(failed)?;
    let stream = UnixStream::connect(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => no_socket(pid),
        _ => failed(error),
    })?;
    stream
        .set_read_timeout(Some(ANSWER_LIMIT))
        .map_err(failed)?;
    stream
        .set_write_timeout(Some(ANSWER_LIMIT))
        .map_err(failed)?;
    // A run that refuses its client does not read what it says.
    let written = (&stream).write_all(line_of(request).as_bytes());
    match read_message(&mut BufReader::new(&stream)) {
        Ok(Some(reply)) => Ok(reply),
        Ok(None) => Err(written.map_or_else(failed, |()| {
            Failure::new(exit::NO_RUN, format!("the run of process {pid} has ended"))
        })),
        Err(MessageError::Io(error)) => Err(failed(error)),
        Err(error) => Err(failed(io::Error::other(error.to_string()))),
    }
}

/// Why a run takes no commands.
fn no_socket(pid: u32) -> Failure {
    match zbmd_executor::live::read(pid) {
        Ok(live) if !live.progress.parameters.is_empty() || live.progress.mode.is_some() => {
            let text = format!(
                "the run of process {pid} takes no commands: it is a replay, or it has said why"
            );
            Failure::new(exit::FILE, text)
        }
        Ok(live) => {
            let model = &live.progress.model;
            let text = format!(
                "the run of process {pid}, `{model}`, has no live parameters and no modes: declare one in the model, such as `params: {{ \"gain\": Live(1.0, min: 0.0, max: 10.0) }}`"
            );
            Failure::new(exit::USAGE, text)
        }
        Err(error) => Failure::new(exit::NO_RUN, error.to_string()),
    }
}
