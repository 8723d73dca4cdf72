//! Agents on other hosts, each behind an `ssh`.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::launch_file::{LaunchFile, LaunchHost};
use crate::agent::LISTENING;
use crate::say;

/// What `ssh` is asked for: no password, and an end when the other computer has not answered for a while.
const SSH_OPTIONS: [&str; 7] = [
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
];
/// An agent that is to end has so long, then its `ssh` is killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);
const STOP_LOOK: Duration = Duration::from_millis(5);
/// The last words of an `ssh` that are kept.
const KEPT_LINES: usize = 8;
const MAX_LINE_BYTES: u64 = 4096;

/// Why an agent is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("host {host}: `ssh` cannot be started: {source}; it is the client of OpenSSH")]
    NoSsh { host: String, source: io::Error },
    #[error(
        "host {host}: `ssh {destination}` has ended with {status} before its agent was there: {words}"
    )]
    Ended {
        host: String,
        destination: String,
        status: ExitStatus,
        words: String,
    },
    #[error("host {host}: no agent listens there within {limit:?} of `ssh {destination}`: {words}")]
    Late {
        host: String,
        destination: String,
        limit: Duration,
        words: String,
    },
}

/// The agents of a run. They are stopped when this is dropped.
pub(super) struct StartedAgents(Vec<StartedAgent>);

struct StartedAgent {
    host: String,
    destination: String,
    ssh: Child,
    /// Where the agent listens; it ends with what `ssh` says.
    listening: Receiver<SocketAddr>,
    address: SocketAddr,
    heard: Arc<Heard>,
}

/// What is known of an `ssh` by what it says.
#[derive(Default)]
struct Heard {
    last_lines: Mutex<VecDeque<String>>,
    /// Its end is wanted.
    is_stopping: AtomicBool,
}

impl StartedAgents {
    /// Starts an agent on each host, and waits until all listen.
    ///
    /// # Errors
    /// One does not within the limit, with what its `ssh` has said; the others are stopped.
    pub(super) fn start(
        launch: &LaunchFile,
        limit: Duration,
        is_quiet: bool,
    ) -> Result<Self, StartError> {
        let mut agents = Self(Vec::new());
        for (name, host) in &launch.hosts {
            let agent = StartedAgent::spawn(name, host, launch, is_quiet)?;
            agents.0.push(agent);
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
            .map(|agent| (agent.host.clone(), agent.address))
            .collect()
    }

    /// Stops all of them, one after the other.
    pub(super) fn stop(self) {
        drop(self);
    }
}

impl Drop for StartedAgents {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(StartedAgent::stop);
    }
}

impl StartedAgent {
    fn spawn(
        name: &str,
        host: &LaunchHost,
        launch: &LaunchFile,
        is_quiet: bool,
    ) -> Result<Self, StartError> {
        let failed = |source| StartError::NoSsh {
            host: name.to_owned(),
            source,
        };
        let destination = host.ssh_destination();
        let words = launch.agent_words(host);
        let command_line = shlex::try_join(words.iter().map(String::as_str));
        let command_line = command_line.map_err(|error| failed(io::Error::other(error)))?;
        let mut ssh = Command::new("ssh")
            .args(SSH_OPTIONS)
            .args(&launch.ssh_options)
            .args(["--", &destination, &command_line])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // An interrupt from the keyboard ends the run, and then its agents.
            .process_group(0)
            .spawn()
            .map_err(failed)?;

        let heard = Arc::<Heard>::default();
        let (send_address, listening) = channel();
        if let Some(stderr) = ssh.stderr.take() {
            let (host, heard) = (name.to_owned(), Arc::clone(&heard));
            std::thread::spawn(move || heard.hear(&host, stderr, send_address, is_quiet));
        }
        Ok(Self {
            host: name.to_owned(),
            destination,
            ssh,
            listening,
            address: host.address,
            heard,
        })
    }

    fn wait_until_listening(&mut self, left: Duration, limit: Duration) -> Result<(), StartError> {
        let (host, destination) = (self.host.clone(), self.destination.clone());
        match self.listening.recv_timeout(left) {
            // The address is that by which others reach it; only its port may have been left open.
            Ok(listening) => self.address.set_port(listening.port()),
            Err(RecvTimeoutError::Timeout) => {
                return Err(StartError::Late {
                    host,
                    destination,
                    limit,
                    words: self.heard.words(),
                });
            }
            Err(RecvTimeoutError::Disconnected) => {
                let source = match self.ssh.wait() {
                    Ok(status) => {
                        return Err(StartError::Ended {
                            host,
                            destination,
                            status,
                            words: self.heard.words(),
                        });
                    }
                    Err(source) => source,
                };
                return Err(StartError::NoSsh { host, source });
            }
        }
        Ok(())
    }

    /// Ends the agent by the end of its input, and its `ssh` by force if that does not help.
    fn stop(&mut self) {
        self.heard.is_stopping.store(true, Ordering::Relaxed);
        drop(self.ssh.stdin.take());
        let begun = Instant::now();
        while begun.elapsed() < STOP_LIMIT {
            if !matches!(self.ssh.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(STOP_LOOK);
        }
        say(format_args!(
            "zbmd-run: note: host {}: `ssh {}` has not ended within {} s and is killed; the agent may still be there",
            self.host,
            self.destination,
            STOP_LIMIT.as_secs()
        ));
        // It may have ended just now.
        let _ = self.ssh.kill();
        let _ = self.ssh.wait();
    }
}

impl Heard {
    /// Hears what `ssh` and the agent say, until they end. Before the agent listens it is kept for an error.
    fn hear(&self, host: &str, stderr: ChildStderr, listening: Sender<SocketAddr>, is_quiet: bool) {
        let mut listening = Some(listening);
        let mut reader = BufReader::new(stderr);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut reader)
                .take(MAX_LINE_BYTES)
                .read_until(b'\n', &mut line);
            if read.is_ok_and(|bytes| bytes > 0) {
                let text = String::from_utf8_lossy(line.trim_ascii_end());
                let address = text.strip_prefix(LISTENING).and_then(|a| a.parse().ok());
                match (address, listening.take()) {
                    // Whoever waits for it may have given it up.
                    (Some(address), Some(waiter)) => drop(waiter.send(address)),
                    (None, Some(waiter)) => {
                        self.keep(&text);
                        listening = Some(waiter);
                    }
                    (_, None) if is_quiet => {}
                    (_, None) => {
                        let text = text.strip_prefix("zbmd-run: ").unwrap_or(&text);
                        say(format_args!("zbmd-run: host {host}: {text}"));
                    }
                }
                continue;
            }
            if listening.is_none() && !self.is_stopping.load(Ordering::Relaxed) {
                say(format_args!(
                    "zbmd-run: note: host {host}: the ssh of its agent has ended"
                ));
            }
            return;
        }
    }

    fn keep(&self, line: &str) {
        let mut lines = self
            .last_lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    /// The last lines as a part of a sentence.
    fn words(&self) -> String {
        let lines = self
            .last_lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match lines.is_empty() {
            true => "it has said nothing".to_owned(),
            false => lines.iter().cloned().collect::<Vec<_>>().join("; "),
        }
    }
}
