//! What tests of the bridge share: processes of `zbmd-zenoh`, and sessions of Zenoh in the test's own process as the other side.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test program uses a part"
)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zbmd_zenoh::{Kind, Position};
use zenoh::{Config, Session, Wait};

/// Nothing here takes so long.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A port of this computer that was free just now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("bound").port()
}

/// An endpoint at a port of this computer.
pub fn endpoint(port: u16) -> String {
    format!("tcp/127.0.0.1:{port}")
}

/// Opens a session that listens at a port: as a `peer`, or as a `router`, which passes on what others send each other.
pub fn listen(mode: &str, port: u16) -> Session {
    let mut config = Config::default();
    for (key, value) in [
        ("mode", format!("{mode:?}")),
        ("scouting/multicast/enabled", "false".to_owned()),
        ("listen/endpoints", format!("[{:?}]", endpoint(port))),
    ] {
        config.insert_json5(key, &value).expect("a known setting");
    }
    // A port of a session that was closed just now may be taken for a moment.
    let until = Instant::now() + LIMIT;
    loop {
        match zenoh::open(config.clone()).wait() {
            Ok(session) => return session,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The same bytes for the same seed: a linear congruential generator.
pub fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let next_byte = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next_byte).take(length).collect()
}

/// An attachment.
pub fn position(kind: Kind, offset: u64, run: &str) -> Vec<u8> {
    Position {
        kind,
        offset,
        run: run.parse().ok(),
    }
    .encode()
}

/// Waits until something is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < until, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process of `zbmd-zenoh`, which is killed when it is dropped.
pub struct Bridge {
    child: Child,
    stderr: Option<JoinHandle<String>>,
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stderr: String,
}

impl Bridge {
    /// Starts one with these words; `input` and `output` are its standard streams.
    pub fn start(words: &[&str], input: Stdio, output: Stdio) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zbmd-zenoh"));
        command
            .args(words)
            .stdin(input)
            .stdout(output)
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut stderr = child.stderr.take().expect("a pipe");
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).expect("text");
            text
        });
        Self {
            child,
            stderr: Some(reader),
        }
    }

    /// Reads all of its standard output, in a thread.
    pub fn read_output(&mut self) -> JoinHandle<Vec<u8>> {
        let mut stdout = self.child.stdout.take().expect("a pipe");
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).expect("a pipe");
            bytes
        })
    }

    /// Its standard output.
    pub fn output(&mut self) -> std::process::ChildStdout {
        self.child.stdout.take().expect("a pipe")
    }

    /// Its standard input.
    pub fn input(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("a pipe")
    }

    /// Writes these bytes to its standard input and closes it, in a thread.
    pub fn feed(&mut self, bytes: Vec<u8>) -> JoinHandle<()> {
        let mut stdin = self.input();
        std::thread::spawn(move || {
            // One that was killed takes no more.
            let _ = stdin.write_all(&bytes);
        })
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("ours").is_none()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.expect("kill is there").success());
    }

    /// Kills it.
    pub fn kill(mut self) -> Ended {
        self.child.kill().expect("ours");
        self.wait()
    }

    /// Waits until it has ended.
    pub fn wait(mut self) -> Ended {
        let until = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("ours") {
                break status;
            }
            if Instant::now() >= until {
                self.child.kill().expect("ours");
                let stderr = self.stderr.take().expect("once").join();
                panic!("it does not end: {}", stderr.expect("read"));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let stderr = self.stderr.take().expect("once").join().expect("read");
        Ended { status, stderr }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// Checks the exit code and a part of what was said.
    #[track_caller]
    pub fn expect(&self, code: i32, text: &str) {
        assert_eq!(self.status.code(), Some(code), "{}", self.stderr);
        assert!(
            self.stderr.contains(text),
            "no `{text}` in: {}",
            self.stderr
        );
    }
}
