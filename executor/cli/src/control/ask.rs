//! The client's end of the control socket.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use zbmd_executor::live::control_path_of;
use zbmd_ir::text::printable_lines;

use super::message::{MessageError, RefusalKind, Reply, Request, line_of, read_message};
use crate::exit;

/// How long a run that has many changes to make is asked again.
pub(super) const BUSY_LIMIT: Duration = Duration::from_secs(2);
/// Pause before it is.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(5);
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
    RunConnection::open(pid)?.ask(request)
}

/// A connection to a run, over which more can be asked than once.
pub(super) struct RunConnection {
    pid: u32,
    reader: BufReader<UnixStream>,
}

impl RunConnection {
    pub(super) fn open(pid: u32) -> Result<Self, Failure> {
        let failed = |error| unreachable_run(pid, &error);
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
        let reader = BufReader::new(stream);
        Ok(Self { pid, reader })
    }

    pub(super) fn ask(&mut self, request: &Request) -> Result<Reply, Failure> {
        let failed = |error| unreachable_run(self.pid, &error);
        // A run that refuses its client does not read what it says.
        let mut stream = self.reader.get_ref();
        let written = stream.write_all(line_of(request).as_bytes());
        match read_message(&mut self.reader) {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(written.map_or_else(failed, |()| ended(self.pid))),
            Err(MessageError::Io(error)) => Err(failed(error)),
            Err(error) => Err(failed(io::Error::other(error.to_string()))),
        }
    }

    /// So many bytes that follow an answer.
    pub(super) fn read_bytes(&mut self, count: u64) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        let read = self.reader.by_ref().take(count).read_to_end(&mut bytes);
        match read {
            Ok(found) if found as u64 == count => Ok(bytes),
            Ok(_) => Err(ended(self.pid)),
            Err(error) => Err(unreachable_run(self.pid, &error)),
        }
    }
}

fn ended(pid: u32) -> Failure {
    Failure::new(exit::NO_RUN, format!("the run of process {pid} has ended"))
}

fn unreachable_run(pid: u32, error: &io::Error) -> Failure {
    let text = format!("the run of process {pid} cannot be asked: {error}");
    Failure::new(exit::FILE, text)
}

/// Why a run takes no commands.
fn no_socket(pid: u32) -> Failure {
    match zbmd_executor::live::read(pid) {
        Ok(_) => {
            let text = format!(
                "the run of process {pid} takes no commands: it is a replay, or it has said why"
            );
            Failure::new(exit::FILE, text)
        }
        Err(error) => Failure::new(exit::NO_RUN, error.to_string()),
    }
}
