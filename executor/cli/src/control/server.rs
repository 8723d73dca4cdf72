//! The run's end of the control socket.
//!
//! Each client has a thread, of which there are few: a client that says nothing, or takes no answer, loses its connection
//! after a time. Nothing here is waited for by the run.

use std::io::{self, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt::socket_peercred};
use zbmd_executor::live::control_path_of;
use zbmd_executor::{
    ModeChange, ModeError, ModeHandle, ParameterHandle, Probe, ProbeError, ProbeHandle, SetError,
    When,
};
use zbmd_ir::ChangePosition;

use crate::exit;

use super::message::{MessageError, Position, RefusalKind, Reply, Request, line_of, read_message};

/// Clients that are served at once.
const MAX_CLIENTS: usize = 16;
/// A client that is silent for so long is gone, and so is one that takes no answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted, for want of a descriptor or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A client that waits for a block is told in the meantime that there is none, so that it can go away.
const BLOCK_LIMIT: Duration = Duration::from_secs(1);

/// What can be changed and seen of a run.
#[derive(Clone)]
pub(crate) struct Commanded {
    pub(crate) parameters: ParameterHandle,
    pub(crate) modes: ModeHandle,
    pub(crate) probes: ProbeHandle,
    /// The model's name.
    pub(crate) model: String,
}

impl Commanded {
    /// Whether there is anything to be set, in some mode.
    fn is_settable(&self) -> bool {
        self.modes.names().len() > 1 || !self.parameters.values().is_empty()
    }
}

/// Takes commands as long as it lives.
pub(crate) struct ControlServer {
    path: PathBuf,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Opens this process's control socket and serves it.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn start(run: Commanded) -> io::Result<Self> {
        let path = control_path_of(std::process::id())?;
        // Left behind by a process of the same number, which is gone.
        let _ = std::fs::remove_file(&path);
        let listener = Arc::new(UnixListener::bind(&path)?);
        let accepting = Arc::clone(&listener);
        let thread = std::thread::Builder::new()
            .name("zbmd control".to_owned())
            .spawn(move || accept_clients(&accepting, &run))?;
        Ok(Self {
            path,
            listener,
            thread: Some(thread),
        })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        // Ends the wait for clients.
        let is_woken = shutdown(&self.listener, Shutdown::Both).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| is_woken) {
            let _ = thread.join();
        }
    }
}

fn accept_clients(listener: &UnixListener, run: &Commanded) {
    let client_count = Arc::new(AtomicUsize::new(0));
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let served = serve(stream, run, &client_count);
                // A client that cannot be served sees its connection closed.
                drop(served);
            }
            // The socket is shut down.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

/// Serves a client on a thread of its own.
fn serve(stream: UnixStream, run: &Commanded, client_count: &Arc<AtomicUsize>) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_LIMIT))?;
    stream.set_write_timeout(Some(CLIENT_LIMIT))?;
    let peer = socket_peercred(&stream)?;
    let refusal = if peer.uid != rustix::process::geteuid() {
        Some((RefusalKind::Request, "the run is another user's".to_owned()))
    } else if client_count.load(Ordering::Relaxed) >= MAX_CLIENTS {
        let text = format!("{MAX_CLIENTS} clients are connected: try again");
        Some((RefusalKind::Busy, text))
    } else {
        None
    };
    if let Some((kind, text)) = refusal {
        return (&stream).write_all(line_of(&Reply::Refused { kind, text }).as_bytes());
    }

    client_count.fetch_add(1, Ordering::Relaxed);
    let client = Client {
        stream,
        run: run.clone(),
        counted: CountedClient(Arc::clone(client_count)),
    };
    std::thread::Builder::new()
        .name("zbmd client".to_owned())
        .spawn(move || drop(client.answer_all()))?;
    Ok(())
}

/// A client that counts as long as this is kept.
struct CountedClient(Arc<AtomicUsize>);

impl Drop for CountedClient {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Client {
    stream: UnixStream,
    run: Commanded,
    #[expect(dead_code, reason = "kept for its drop")]
    counted: CountedClient,
}

impl Client {
    /// Answers requests until the client goes, or sends what cannot be followed by another.
    fn answer_all(&self) -> io::Result<()> {
        let mut reader = BufReader::new(&self.stream);
        let mut probe = None;
        loop {
            let mut tokens = Vec::new();
            let (reply, is_last) = match read_message(&mut reader) {
                Ok(None) | Err(MessageError::Io(_)) => return Ok(()),
                Ok(Some(request)) => {
                    let reply = answer_probe(&self.run, &mut probe, &mut tokens, &request);
                    (reply.unwrap_or_else(|| answer(&self.run, request)), false)
                }
                Err(error) => {
                    let is_last = matches!(error, MessageError::TooLong);
                    let text = error.to_string();
                    let kind = RefusalKind::Request;
                    (Reply::Refused { kind, text }, is_last)
                }
            };
            (&self.stream).write_all(line_of(&reply).as_bytes())?;
            (&self.stream).write_all(&tokens)?;
            if is_last {
                return Ok(());
            }
        }
    }
}

/// Answers what is asked of channels; `tokens` follow the answer. `None` for what is asked of something else.
fn answer_probe(
    run: &Commanded,
    probe: &mut Option<Probe>,
    tokens: &mut Vec<u8>,
    request: &Request,
) -> Option<Reply> {
    let answered = match request {
        Request::Channels => {
            let channels = run.probes.channels().into_iter().map(Into::into);
            Ok(Reply::Channels(channels.collect()))
        }
        Request::Probe(name) => {
            // The one before ends first: it would be in the way.
            *probe = None;
            attach(run, probe, name)
        }
        Request::NextBlock => match probe {
            Some(probe) => next_block(probe, tokens),
            None => Ok(nothing_looked_at()),
        },
        _ => return None,
    };
    Some(answered.unwrap_or_else(|error| probe_refusal(&error)))
}

fn attach(run: &Commanded, probe: &mut Option<Probe>, name: &str) -> Result<Reply, ProbeError> {
    *probe = Some(run.probes.attach(name)?);
    let channels = run.probes.channels().into_iter();
    let mut named = channels.filter(|channel| {
        // Of an actor with one output the port may be named too.
        name == channel.name || name.starts_with(&format!("{}.", channel.name))
    });
    let channel = named.next().ok_or(ProbeError::Ended)?;
    Ok(Reply::Probing(channel.into()))
}

fn next_block(probe: &mut Probe, tokens: &mut Vec<u8>) -> Result<Reply, ProbeError> {
    let Some(block) = probe.next(BLOCK_LIMIT)? else {
        return Ok(Reply::NoBlock);
    };
    *tokens = block.bytes;
    Ok(Reply::Block {
        iteration: block.iteration,
        iterations: block.iterations,
        bytes: tokens.len() as u64,
    })
}

fn probe_refusal(error: &ProbeError) -> Reply {
    let kind = match error {
        ProbeError::Unknown { .. } | ProbeError::Device { .. } => RefusalKind::Request,
        ProbeError::Busy { .. } => RefusalKind::Busy,
        ProbeError::Ended => RefusalKind::Ended,
        _ => RefusalKind::Value,
    };
    Reply::Refused {
        kind,
        text: error.to_string(),
    }
}

fn nothing_looked_at() -> Reply {
    Reply::Refused {
        kind: RefusalKind::Request,
        text: "say first at which channel to look".to_owned(),
    }
}

/// The refusal to change a run of which nothing can be changed.
fn nothing_to_set(model: &str) -> Reply {
    let text = format!(
        "the run of process {}, `{model}`, has no live parameters and no modes: declare one in the model, such as `params: {{ \"gain\": Live(1.0, min: 0.0, max: 10.0) }}`",
        std::process::id()
    );
    let kind = RefusalKind::Request;
    Reply::Refused { kind, text }
}

/// Answers what is asked of modes and parameters.
fn answer(run: &Commanded, request: Request) -> Reply {
    if !run.is_settable() {
        return nothing_to_set(&run.model);
    }

    match request {
        Request::Modes => {
            let present = run.modes.present();
            Reply::Modes {
                names: run.modes.names().to_vec(),
                present: present.mode,
                since: present.iteration,
            }
        }
        Request::Mode(name) => change_mode(run, &name),
        Request::Values => {
            let values = run.parameters.values();
            Reply::Values(values.into_iter().map(Into::into).collect())
        }
        Request::Set { values, at } => set_values(run, &values, at),
        Request::Channels | Request::Probe(_) | Request::NextBlock => nothing_looked_at(),
    }
}

/// Goes over to a mode, and waits until the run is in it.
fn change_mode(run: &Commanded, name: &str) -> Reply {
    match run.modes.change(name).and_then(ModeChange::wait) {
        Ok(entry) => Reply::Mode {
            name: entry.mode,
            since: entry.iteration,
        },
        Err(error) => mode_refusal(&error),
    }
}

/// Sets live parameters together, with the next block or at a token of a source.
fn set_values(run: &Commanded, values: &[(String, Vec<f64>)], at: Option<(String, u64)>) -> Reply {
    let named: Vec<(&str, &[f64])> = values
        .iter()
        .map(|(name, numbers)| (name.as_str(), numbers.as_slice()))
        .collect();
    let when = match &at {
        None => When::NextBlock,
        Some((source, index)) => When::Token {
            source,
            index: *index,
        },
    };

    let position = match run.parameters.set(&named, when) {
        Err(error) => return refusal_of(&error),
        Ok(ChangePosition::Iteration(iteration)) => Position::Iteration(iteration),
        Ok(ChangePosition::Token { index, .. }) => Position::Token {
            source: at.map(|(source, _)| source).unwrap_or_default(),
            index,
        },
    };
    Reply::Set(position)
}

fn mode_refusal(error: &ModeError) -> Reply {
    let kind = match error {
        ModeError::Unknown { .. } => RefusalKind::Request,
        ModeError::Busy { .. } => RefusalKind::Busy,
        ModeError::Ended => RefusalKind::Ended,
        _ => RefusalKind::Value,
    };
    Reply::Refused {
        kind,
        text: error.to_string(),
    }
}

fn refusal_of(error: &SetError) -> Reply {
    let kind = match error {
        SetError::Full | SetError::Council { .. } => RefusalKind::Busy,
        SetError::Ended => RefusalKind::Ended,
        other if other.class() == exit::USAGE => RefusalKind::Request,
        _ => RefusalKind::Value,
    };
    Reply::Refused {
        kind,
        text: error.to_string(),
    }
}
