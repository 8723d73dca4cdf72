//! Agents that this process has started, by `ssh` or on this computer. One that ends is started again, where it was, until all are
//! stopped.
//!
//! An agent's standard input is that of the process that stands for it here, which this process holds open. So agents end with
//! this process, however that ends.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::agent::LISTENING;
use super::say;

/// An agent that is to end has so long, then its process is killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);
const STOP_LOOK: Duration = Duration::from_millis(5);
/// An agent that has ended is started again after so long; after twice as long each time that it ends before it listens.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
const MAX_RESTART_PAUSE: Duration = Duration::from_secs(5);
/// The last words of a process that are kept.
const KEPT_LINES: usize = 8;
const MAX_LINE_BYTES: u64 = 4096;

/// Why an agent is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("host {host}: `{what}` cannot be started: {source}")]
    NotStarted {
        host: String,
        what: String,
        source: io::Error,
    },
    #[error("host {host}: `{what}` has ended with {status} before its agent was there: {words}")]
    Ended {
        host: String,
        what: String,
        status: ExitStatus,
        words: String,
    },
    #[error("host {host}: no agent listens there within {limit:?} of `{what}`: {words}")]
    Late {
        host: String,
        what: String,
        limit: Duration,
        words: String,
    },
}

/// How the agent of a host is started.
pub(super) struct AgentStart {
    /// The host's name in the bundle's machine.
    pub(super) host: String,
    /// What is started, as people know it: `ssh radio@two`.
    pub(super) what: String,
    /// By which address others reach it. Port 0 is one that is free, which it has from then on.
    pub(super) address: SocketAddr,
    /// A command that starts an agent which listens at an address.
    pub(super) command: Box<dyn Fn(SocketAddr) -> io::Result<Command> + Send>,
}

/// The agents of a run. They are stopped when this is dropped.
pub(super) struct StartedAgents(Vec<StartedAgent>);

struct StartedAgent {
    /// Where the agent listens; it ends with the agent's process.
    listening: Receiver<SocketAddr>,
    address: SocketAddr,
    process: Arc<AgentProcess>,
    keeper: Option<JoinHandle<()>>,
}

/// The process that stands for an agent here, or the one that was started in its place.
struct AgentProcess {
    host: String,
    what: String,
    is_quiet: bool,
    state: Mutex<ProcessState>,
    /// Its end is wanted.
    stopped: Condvar,
}

#[derive(Default)]
struct ProcessState {
    child: Option<Child>,
    is_stopping: bool,
    last_lines: VecDeque<String>,
}

impl StartedAgents {
    /// Starts all agents at once, and waits until they listen.
    ///
    /// # Errors
    /// One does not within the limit, with what its process has said; the others are stopped.
    pub(super) fn start(
        starts: Vec<AgentStart>,
        limit: Duration,
        is_quiet: bool,
    ) -> Result<Self, StartError> {
        let mut agents = Self(Vec::with_capacity(starts.len()));
        for start in starts {
            agents.0.push(StartedAgent::start(start, is_quiet)?);
        }
        let begun = Instant::now();
        for agent in &mut agents.0 {
            agent.wait_until_listening(limit.saturating_sub(begun.elapsed()), limit)?;
        }
        Ok(agents)
    }

    /// Where each listens.
    pub(super) fn addresses(&self) -> Vec<(String, SocketAddr)> {
        let agents = self.0.iter();
        agents
            .map(|agent| (agent.process.host.clone(), agent.address))
            .collect()
    }

    /// Stops all of them.
    pub(super) fn stop(self) {
        drop(self);
    }
}

impl Drop for StartedAgents {
    fn drop(&mut self) {
        // All at once: each needs a while to end.
        for agent in &self.0 {
            agent.process.ask_to_end();
        }
        self.0.iter_mut().for_each(StartedAgent::wait_for_end);
    }
}

impl StartedAgent {
    fn start(start: AgentStart, is_quiet: bool) -> Result<Self, StartError> {
        let process = Arc::new(AgentProcess {
            host: start.host.clone(),
            what: start.what.clone(),
            is_quiet,
            state: Mutex::default(),
            stopped: Condvar::new(),
        });
        let not_started = |source| process.not_started(source);
        let stderr = process.launch(&start, start.address).map_err(not_started)?;

        let address = start.address;
        let (send_address, listening) = channel();
        let kept = Arc::clone(&process);
        let keeper = std::thread::Builder::new()
            .name(format!("zbmd agent of {}", start.host))
            .spawn(move || kept.keep(&start, stderr, send_address));
        let keeper = keeper.map_err(|source| {
            process.ask_to_end();
            process.not_started(source)
        })?;
        Ok(Self {
            listening,
            address,
            process,
            keeper: Some(keeper),
        })
    }

    fn wait_until_listening(&mut self, left: Duration, limit: Duration) -> Result<(), StartError> {
        let (host, what) = (self.process.host.clone(), self.process.what.clone());
        match self.listening.recv_timeout(left) {
            Ok(address) => {
                self.address = address;
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => Err(StartError::Late {
                host,
                what,
                limit,
                words: self.process.words(),
            }),
            Err(RecvTimeoutError::Disconnected) => match self.process.wait() {
                Ok(status) => Err(StartError::Ended {
                    host,
                    what,
                    status,
                    words: self.process.words(),
                }),
                Err(source) => Err(self.process.not_started(source)),
            },
        }
    }

    /// Waits for the end of a process that was asked to end, which is forced if that does not help.
    fn wait_for_end(&mut self) {
        let begun = Instant::now();
        let has_ended = |keeper: &JoinHandle<()>| keeper.is_finished();
        while begun.elapsed() < STOP_LIMIT && !self.keeper.as_ref().is_none_or(has_ended) {
            std::thread::sleep(STOP_LOOK);
        }
        if !self.keeper.as_ref().is_none_or(has_ended) {
            say(format_args!(
                "zbmd-run: note: host {}: `{}` has not ended within {} s and is killed; the agent may still be there",
                self.process.host,
                self.process.what,
                STOP_LIMIT.as_secs()
            ));
            if let Some(child) = &mut self.process.state().child {
                // It may have ended just now.
                let _ = child.kill();
            }
        }
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

impl AgentProcess {
    fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn not_started(&self, source: io::Error) -> StartError {
        StartError::NotStarted {
            host: self.host.clone(),
            what: self.what.clone(),
            source,
        }
    }

    /// Starts the process of an agent that is to listen at an address; what it says.
    fn launch(&self, start: &AgentStart, address: SocketAddr) -> io::Result<Option<ChildStderr>> {
        let mut command = (start.command)(address)?;
        let mut state = self.state();
        if state.is_stopping {
            return Err(io::Error::other("it is not wanted any more"));
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // An interrupt from the keyboard ends the run, and then its agents.
            .process_group(0)
            .spawn()?;
        let stderr = child.stderr.take();
        state.child = Some(child);
        Ok(stderr)
    }

    /// Keeps the agent there: whenever its process ends it is started again, until it is asked to end. The first one must have
    /// listened.
    fn keep(
        &self,
        start: &AgentStart,
        mut stderr: Option<ChildStderr>,
        listening: Sender<SocketAddr>,
    ) {
        let mut address = start.address;
        let mut listening = Some(listening);
        let mut pause = RESTART_PAUSE;
        loop {
            if let Some(stderr) = stderr.take() {
                self.hear(stderr, |port| {
                    // The address is that by which others reach it; only its port may have been left open.
                    address.set_port(port);
                    pause = RESTART_PAUSE;
                    if let Some(waiter) = listening.take() {
                        // Whoever waits for it may have given it up.
                        let _ = waiter.send(address);
                    }
                });
            }
            if listening.is_some() {
                return;
            }
            let ended = match self.wait() {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
            if self.is_stopped_within(pause) {
                return;
            }
            pause = (2 * pause).min(MAX_RESTART_PAUSE);
            if !self.is_quiet {
                say(format_args!(
                    "zbmd-run: note: host {}: `{}` has ended with {ended}, and is started again",
                    self.host, self.what
                ));
            }
            // One that cannot be started is tried again like one that has ended.
            stderr = self.launch(start, address).unwrap_or_default();
        }
    }

    /// Hears what the process says, until it says nothing any more; `listens` is told the port of an agent that listens. What
    /// comes before that is kept for an error.
    fn hear(&self, stderr: ChildStderr, mut listens: impl FnMut(u16)) {
        let mut is_listening = false;
        let mut reader = BufReader::new(stderr);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut reader)
                .take(MAX_LINE_BYTES)
                .read_until(b'\n', &mut line);
            if !read.is_ok_and(|bytes| bytes > 0) {
                return;
            }
            let text = String::from_utf8_lossy(line.trim_ascii_end());
            let address = text.strip_prefix(LISTENING).and_then(|a| a.parse().ok());
            let address: Option<SocketAddr> = address.filter(|_| !is_listening);
            if let Some(address) = address {
                is_listening = true;
                listens(address.port());
            } else if !is_listening {
                self.keep_line(&text);
            } else if !self.is_quiet {
                let text = text.strip_prefix("zbmd-run: ").unwrap_or(&text);
                say(format_args!("zbmd-run: host {}: {text}", self.host));
            }
        }
    }

    /// Waits for the process, which says nothing any more.
    fn wait(&self) -> io::Result<ExitStatus> {
        loop {
            let status = match &mut self.state().child {
                Some(child) => child.try_wait()?,
                None => return Err(io::Error::other("it has not been started")),
            };
            if let Some(status) = status {
                return Ok(status);
            }
            std::thread::sleep(STOP_LOOK);
        }
    }

    /// Asks the agent to end, by the end of its input.
    fn ask_to_end(&self) {
        let mut state = self.state();
        state.is_stopping = true;
        if let Some(child) = &mut state.child {
            drop(child.stdin.take());
        }
        drop(state);
        self.stopped.notify_all();
    }

    /// Whether the agent is asked to end, now or within the time.
    fn is_stopped_within(&self, time: Duration) -> bool {
        let state = self.state();
        let waited = self
            .stopped
            .wait_timeout_while(state, time, |state| !state.is_stopping);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_stopping
    }

    fn keep_line(&self, line: &str) {
        let lines = &mut self.state().last_lines;
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    /// The last lines as a part of a sentence.
    fn words(&self) -> String {
        let lines = &self.state().last_lines;
        match lines.is_empty() {
            true => "it has said nothing".to_owned(),
            false => lines.iter().cloned().collect::<Vec<_>>().join("; "),
        }
    }
}
