//! A run over three hosts in the name of their council, while hosts are cut off and conductors stand still; each host has a network
//! namespace of its own. On two of them there is a process that conducts, or stands by: it is the bundle's host `left`. Whichever ends
//! because another conducts is started anew and stands by. The third has an agent, the bundle's host `right`: it votes and works for
//! whoever conducts.
//!
//! Input comes by the clock, and is there again for whoever takes over. Whoever consumes the output reads a pipe of each process, notes
//! when each piece came, and drops what it has had before by its number.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use zbmd_compiler::{CompileOptions, Losses};
use zbmd_council::VoterId;
use zbmd_council::member::lease_clock_ns;

use crate::agents::{AgentProcess, TWO_HOSTS};
use crate::child_run;
use crate::council_runs::decided_on_disk;
use crate::host_net::{Cut, HostNet};
use crate::run_process::Preparation;

/// Both ends together take as long as the middle, so source and sink come to one host without being pinned there. The rates say how
/// far borders are from each other.
const MODEL: &str = r#"Model(
    name: "cuts",
    sources: { "in": Stream(dtype: f32, sample_rate: 50000) },
    actors: {
        "a": Fir(design: { "kind": "lowpass", "cutoff": 0.2, "rate": 1, "taps": 300, "window": { "kaiser": 7.9 } }),
        "b": Fir(design: { "kind": "lowpass", "cutoff": 0.3, "rate": 1, "taps": 600, "window": { "kaiser": 7.9 } }),
        "c": Fir(design: { "kind": "lowpass", "cutoff": 0.1, "rate": 1, "taps": 300, "window": { "kaiser": 7.9 } }),
    },
    channels: [(from: "in", to: ["a"]), (from: "a", to: ["b"]), (from: "b", to: ["c"]), (from: "c", to: ["out"])],
    sinks: { "out": Stream(sample_rate: 50000) },
)"#;
const HOSTS: [&str; 3] = ["a", "b", "c"];
/// The host that never conducts.
const WITNESS: usize = 2;
const AGENT_PORT: u16 = 7000;
const VOTER_PORT: u16 = 7001;
/// As the model says.
const TOKENS_PER_S: u64 = 50_000;
const PIECE_TOKENS: u64 = 500;
/// Of agents and whoever conducts, for each other.
const HOST_LEASE: Duration = Duration::from_millis(100);
/// A piece of output may be read so long after it was written, on a crowded computer.
const READ_MARGIN: Duration = Duration::from_millis(25);
/// Nothing takes as long.
const LIMIT: Duration = Duration::from_secs(40);
/// How a run ends that may conduct no more.
const GAVE_UP: i32 = 7;

/// What goes wrong once.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// A host is cut off from both others.
    CutOff {
        /// Which.
        host: usize,
        /// Which way.
        cut: Cut,
        /// How long.
        lasting: Duration,
    },
    /// Whoever conducts stands still.
    Stop {
        /// How long.
        lasting: Duration,
    },
}

impl Trouble {
    /// A cut by a seed and its number in the row: each direction and each host comes in turn, so that few cuts have all.
    pub fn cut(seed: u64, number: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let turn = number + seed;
        Self::CutOff {
            host: (turn / 3 % 3) as usize,
            cut: Cut::ALL[(turn % 3) as usize],
            // Shorter than a lease, or until another conducts, or until whoever is alone gives up.
            lasting: Duration::from_millis(match rng.u32(0..8) {
                0 => rng.u64(20..120),
                1..=5 => rng.u64(150..600),
                _ => rng.u64(600..1500),
            }),
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aftermath {
    /// The conductor was in the minority.
    pub was_conductor: bool,
    /// Another one conducts now.
    pub is_replaced: bool,
    /// From the trouble to the first output of the next conductor.
    pub next_output: Option<Duration>,
    /// From the trouble to the last output of the one that was alone, or stood still.
    pub last_output: Option<Duration>,
    /// Tokens that were read just after its lease.
    pub late_tokens: u64,
    /// Tokens that it had in hand when it stood still, and gave out when another conducted.
    pub stale_tokens: u64,
    /// How often it has reached the agent again, which has begun no epoch for it.
    pub refused_runs: u64,
}

/// A run and its hosts.
pub struct CutRuns {
    net: HostNet,
    folder: PathBuf,
    expected: std::fs::File,
    lease: Duration,
    feeding: Arc<Feeding>,
    agent: Option<AgentProcess>,
    /// In the order in which they were started; each conducts after those before it.
    seats: Vec<Seat>,
    /// Tokens that the consumer has.
    tokens: u64,
    /// Tokens that it was given again, and dropped by their number.
    repeated: u64,
    /// Pieces of output that came after another had begun to give out some, and their tokens.
    stale_pieces: Vec<u64>,
}

/// Input by the clock.
struct Feeding {
    begun: Instant,
    end: AtomicU64,
    path: PathBuf,
}

/// A process that conducts or could.
struct Seat {
    host: usize,
    child: Child,
    said: Arc<Mutex<String>>,
    pieces: Arc<Mutex<Vec<Piece>>>,
    /// The number of its next token, once it conducts.
    position: Option<u64>,
    /// When each piece came that was looked at, and its tokens.
    given: Vec<(u64, u64)>,
}

struct Piece {
    at_ns: u64,
    bytes: Vec<u8>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feeding {
    /// Feeds a process: what was due before it could take it at once.
    fn feed(&self, mut to: ChildStdin) {
        let input = std::fs::File::open(&self.path).expect("written");
        let mut piece = vec![0; PIECE_TOKENS as usize * 4];
        let mut number = 0;
        while number * PIECE_TOKENS < self.end.load(Ordering::Acquire) {
            let due = Duration::from_micros(number * PIECE_TOKENS * 1_000_000 / TOKENS_PER_S);
            let left = due.saturating_sub(self.begun.elapsed());
            if !left.is_zero() {
                std::thread::sleep(left.min(Duration::from_millis(20)));
                continue;
            }
            let offset = number * piece.len() as u64;
            let read = input.read_exact_at(&mut piece, offset);
            // A process that has ended takes nothing.
            if read.is_err() || to.write_all(&piece).is_err() {
                return;
            }
            number += 1;
        }
    }

    /// Lets the input end soon; after how many tokens.
    fn end_soon(&self) -> u64 {
        let tokens = self.begun.elapsed().as_micros() as u64 * TOKENS_PER_S / 1_000_000;
        let end = (tokens / PIECE_TOKENS + 50) * PIECE_TOKENS;
        self.end.store(end, Ordering::Release);
        end
    }
}

impl Seat {
    fn said(&self) -> String {
        locked(&self.said).clone()
    }

    /// The number of the first token that it gives out, as it has said.
    fn first_token(&self) -> Option<u64> {
        let said = self.said();
        let token = said.split("`out` goes on with token ").nth(1)?;
        token.split_whitespace().next()?.parse().ok()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl CutRuns {
    /// Starts all hosts and the run, and waits until another stands by. Input is there for so long. `None` where the system gives no
    /// network namespaces.
    ///
    /// # Panics
    /// Something cannot be started.
    pub fn start(folder: &Path, lease: Duration, lasting: Duration) -> Option<Self> {
        let net = HostNet::make(HOSTS.len())?;
        if !folder.join("expected.f32").exists() {
            Preparation {
                machine: TWO_HOSTS,
                model: MODEL,
                options: CompileOptions {
                    contingencies: Losses::Hosts,
                    ..CompileOptions::default()
                },
                seed: 13,
                tokens: lasting.as_secs() * TOKENS_PER_S,
            }
            .write(folder);
        }
        for voter in 1..=HOSTS.len() {
            // An earlier run's council is over.
            let _ = std::fs::remove_dir_all(folder.join(format!("voter.{voter}")));
        }
        let expected = std::fs::File::open(folder.join("expected.f32")).expect("written");
        let mut runs = Self {
            net,
            folder: folder.to_owned(),
            expected,
            lease,
            feeding: Arc::new(Feeding {
                begun: Instant::now(),
                end: AtomicU64::new(u64::MAX),
                path: folder.join("in.f32"),
            }),
            agent: None,
            seats: Vec::new(),
            tokens: 0,
            repeated: 0,
            stale_pieces: Vec::new(),
        };
        runs.agent = Some(runs.start_agent());
        runs.add_seat(0);
        runs.wait_until("output", |runs| runs.tokens > 0);
        runs.add_seat(1);
        runs.wait_until_standby();
        Some(runs)
    }

    fn command(&self, host: usize) -> std::process::Command {
        let mut command = child_run::command_by(|program| self.net.command(host, program));
        command.current_dir(&self.folder);
        command
    }

    fn start_agent(&self) -> AgentProcess {
        let mut command = self.command(WITNESS);
        command
            .args(["agent", "--token-file", "token", "--plain-wires"])
            .args(["--listen", &agent_address().to_string()]);
        self.seat_options(&mut command, WITNESS);
        AgentProcess::spawn(command)
    }

    fn seat_options(&self, command: &mut std::process::Command, host: usize) {
        let voters = (0..HOSTS.len())
            .map(|host| SocketAddr::from((HostNet::address(host), VOTER_PORT)).to_string());
        let voters: Vec<String> = voters.collect();
        let voter = host + 1;
        command
            .args(["--council", &voters.join(",")])
            .args(["--voter", &voter.to_string()])
            .args(["--council-folder", &format!("voter.{voter}")])
            .args(["--witnesses", &(WITNESS + 1).to_string()])
            .args(["--council-lease", &format!("{}ms", self.lease.as_millis())]);
    }

    /// Starts a process that conducts, if it is the first, or stands by.
    fn add_seat(&mut self, host: usize) {
        let number = self.seats.len();
        let mut command = self.command(host);
        command
            .args(["model.zbmd", "-i", "in=-", "-o", "out=-"])
            .args(["--token-file", "token", "--plain-wires"])
            .args(["--host-lease", &format!("{}ms", HOST_LEASE.as_millis())])
            .args(["--events", &format!("events.{number}.jsonl")]);
        command.args(["--host", &format!("right={}", agent_address())]);
        if number > 0 {
            command.args(["--take-over-as", "left"]);
        }
        self.seat_options(&mut command, host);

        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.expect("started");
        let input = child.stdin.take().expect("piped");
        let feeding = Arc::clone(&self.feeding);
        std::thread::spawn(move || feeding.feed(input));
        let pieces = Arc::<Mutex<Vec<Piece>>>::default();
        let output = child.stdout.take().expect("piped");
        read_on(output, &pieces, |pieces, bytes| {
            pieces.push(Piece {
                at_ns: lease_clock_ns(),
                bytes: bytes.to_vec(),
            });
        });
        let said = Arc::<Mutex<String>>::default();
        let errors = child.stderr.take().expect("piped");
        read_on(errors, &said, |said, bytes| {
            said.push_str(&String::from_utf8_lossy(bytes));
        });
        self.seats.push(Seat {
            host,
            child,
            said,
            pieces,
            position: (number == 0).then_some(0),
            given: Vec::new(),
        });
    }

    /// The host whose process conducts.
    pub fn conductor_host(&self) -> usize {
        self.seats[self.conductor()].host
    }

    /// The one that has begun to conduct last.
    fn conductor(&self) -> usize {
        let conducts = |seat: &Seat| seat.position.is_some() || seat.first_token().is_some();
        self.seats.iter().rposition(conducts).unwrap_or(0)
    }

    /// Looks at all output that has come.
    ///
    /// # Panics
    /// It is not that of a run on one host, or has a gap.
    fn look(&mut self) {
        for number in 0..self.seats.len() {
            let pieces = std::mem::take(&mut *locked(&self.seats[number].pieces));
            for piece in pieces {
                self.look_at(number, &piece);
            }
        }
    }

    fn look_at(&mut self, number: usize, piece: &Piece) {
        let begun = Instant::now();
        let position = loop {
            let seat = &self.seats[number];
            if let Some(position) = seat.position.or_else(|| seat.first_token()) {
                break position;
            }
            // What it has said comes by another pipe.
            assert!(begun.elapsed() < LIMIT, "output of one that only stands by");
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(piece.bytes.len() % 4, 0, "a token that is cut");
        let tokens = piece.bytes.len() as u64 / 4;
        let end = position + tokens;
        let who = HOSTS[self.seats[number].host];
        assert!(
            position <= self.tokens,
            "host {who} goes on with token {position}, and {} is the next",
            self.tokens
        );
        let mut expected = vec![0; piece.bytes.len()];
        let read = self.expected.read_exact_at(&mut expected, position * 4);
        assert!(
            read.is_ok() && expected == piece.bytes,
            "tokens {position} to {end} of host {who} are not those of a run on one host"
        );
        let mut later = self.seats[number + 1..].iter();
        if later.any(|later| {
            later
                .given
                .first()
                .is_some_and(|(at, _)| *at <= piece.at_ns)
        }) {
            self.stale_pieces.push(tokens);
        }
        let known_tokens = end.min(self.tokens);
        self.repeated += known_tokens.saturating_sub(position);
        self.tokens = self.tokens.max(end);
        let seat = &mut self.seats[number];
        seat.position = Some(end);
        seat.given.push((piece.at_ns, tokens));
    }

    /// Looks at output until something is so, and starts anew whoever has ended because another conducts.
    ///
    /// # Panics
    /// It takes too long, or a process ends otherwise.
    fn wait_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        loop {
            self.look();
            if is_so(self) {
                return;
            }
            self.restart_deposed();
            assert!(
                begun.elapsed() < LIMIT,
                "not {what} after {} tokens; {}",
                self.tokens,
                self.said()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn restart_deposed(&mut self) {
        for number in 0..self.seats.len() {
            let is_last = !self.seats[number + 1..]
                .iter()
                .any(|seat| seat.host == self.seats[number].host);
            if !is_last {
                continue;
            }
            let seat = &mut self.seats[number];
            let Some(status) = seat.child.try_wait().expect("a child") else {
                continue;
            };
            let said = seat.said();
            let is_expected =
                status.code() == Some(GAVE_UP) && said.contains("may conduct no more");
            assert!(
                is_expected,
                "{status} of host {}: {}",
                HOSTS[seat.host],
                self.said()
            );
            let host = seat.host;
            self.add_seat(host);
        }
    }

    fn said(&self) -> String {
        let last = self.seats.iter().enumerate().rev().take(3);
        let seats = last.map(|(number, seat)| {
            format!(
                "process {number} on host {}: {}",
                HOSTS[seat.host],
                seat.said()
            )
        });
        let agent = self.agent.iter().map(|agent| {
            let said = agent.said();
            let lines: Vec<&str> = said.lines().rev().take(3).collect();
            format!("agent: {}", lines.join(" / "))
        });
        seats.chain(agent).collect::<Vec<_>>().join("\n")
    }

    /// Waits until the run could be taken over by another.
    fn wait_until_standby(&mut self) {
        self.wait_until("a standby", |runs| {
            let conductor = VoterId(runs.seats[runs.conductor()].host as u64 + 1);
            let standby = VoterId(3 - conductor.0);
            // A majority knows, and that may be any two.
            let voters = HOSTS.len() as u64;
            let known =
                (1..=voters).filter_map(|voter| decided_on_disk(&runs.folder, voter, voters));
            let decided = known.max_by_key(|decided| decided.index);
            decided.is_some_and(|decided| {
                decided.conductor == Some(conductor) && decided.holders.contains(&standby)
            })
        });
    }

    /// Brings about trouble while the run goes on, and waits until all is well again.
    ///
    /// # Panics
    /// Something was given out that must not be, or the run does not go on.
    pub fn suffer(&mut self, trouble: Trouble) -> Aftermath {
        let conductor = self.conductor();
        let begin_ns = lease_clock_ns();
        let (was_conductor, lasting) = match trouble {
            Trouble::CutOff { host, cut, lasting } => {
                self.net.cut(host, cut);
                (self.seats[conductor].host == host, lasting)
            }
            Trouble::Stop { lasting } => {
                self.seats[conductor].signal(Signal::STOP);
                (true, lasting)
            }
        };
        let certain_ns = lease_clock_ns();
        std::thread::sleep(lasting);
        let over_ns = lease_clock_ns();
        let stopped_host = self.seats[conductor].host;
        let begun_runs = self.begun_runs_of(stopped_host);
        match trouble {
            Trouble::CutOff { host, .. } => self.net.heal(host),
            Trouble::Stop { .. } => self.seats[conductor].signal(Signal::CONT),
        }

        self.look();
        let tokens = self.tokens;
        self.wait_until("new output", |runs| runs.tokens > tokens);
        let is_replaced = self.conductor() > conductor;
        if is_replaced {
            self.wait_until("the end of the one before", |runs| {
                runs.seats[runs.conductor() + 1..]
                    .iter()
                    .any(|seat| seat.host != runs.seats[runs.conductor()].host)
            });
        }
        self.wait_until_standby();
        self.look();
        let next = self.seats.get(conductor + 1);
        let next = next.and_then(|seat| seat.given.first()).copied();
        // Else it may have conducted again before it was followed.
        let was_replaced = next.is_some_and(|(at_ns, _)| at_ns < over_ns);
        let refused_runs = match was_replaced {
            true => self.check_since(stopped_host, begun_runs),
            false => 0,
        };

        let lease_end_ns = certain_ns + self.lease.as_nanos() as u64;
        let given = &self.seats[conductor].given;
        // It may have its lease again once it is heard, or goes on.
        let is_late = |at_ns: u64| at_ns > lease_end_ns && at_ns < over_ns;
        let late = given
            .iter()
            .filter(|(at_ns, _)| was_conductor && is_late(*at_ns));
        let mut late_tokens = 0;
        for (at_ns, tokens) in late {
            let late_ns = at_ns - lease_end_ns;
            assert!(
                late_ns <= READ_MARGIN.as_nanos() as u64,
                "{tokens} tokens are given out {:.1} ms after the lease",
                late_ns as f64 / 1e6
            );
            late_tokens += tokens;
        }
        let stale = std::mem::take(&mut self.stale_pieces);
        let most_stale = match trouble {
            Trouble::CutOff { .. } => 0,
            // Where it stood still just when it wrote a piece, it writes that when it goes on.
            Trouble::Stop { .. } => 1,
        };
        assert!(
            stale.len() <= most_stale,
            "pieces of {stale:?} tokens are given out after another has begun to"
        );
        let since = |at_ns: u64| Duration::from_nanos(at_ns.saturating_sub(begin_ns));
        let before_end = given
            .iter()
            .rev()
            .find(|(at_ns, _)| *at_ns < over_ns || is_replaced);
        Aftermath {
            was_conductor,
            is_replaced,
            next_output: next.filter(|_| is_replaced).map(|(at_ns, _)| since(at_ns)),
            last_output: before_end
                .filter(|_| was_conductor)
                .map(|(at_ns, _)| since(*at_ns)),
            late_tokens,
            stale_tokens: stale.iter().sum(),
            refused_runs,
        }
    }

    /// Lets the run come to its end: the tokens that the consumer has, and those that it was given twice and dropped.
    ///
    /// # Panics
    /// Something is missing.
    pub fn end(mut self) -> (u64, u64) {
        let end = self.feeding.end_soon();
        let conductor = self.conductor();
        self.wait_until("all output", |runs| runs.tokens >= end);
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.seats[conductor].child.try_wait().expect("a child") {
                break status;
            }
            assert!(begun.elapsed() < LIMIT, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{status}: {}", self.said());
        self.look();
        assert_eq!(self.tokens, end, "all tokens");
        (self.tokens, self.repeated)
    }

    /// How often the agent has begun to serve the process of a host.
    fn begun_runs_of(&self, host: usize) -> usize {
        let said = self.agent.as_ref().map(AgentProcess::said);
        let begin = format!("a run of {}:", HostNet::address(host));
        let is_begin = |line: &&str| line.contains(&begin) && line.ends_with(" begins");
        said.unwrap_or_default().lines().filter(is_begin).count()
    }

    /// How many epochs the agent had begun for the process of a host each time that it ceased to serve it.
    fn epochs_of_runs_of(&self, host: usize) -> Vec<u64> {
        let said = self.agent.as_ref().map(AgentProcess::said);
        let said = said.unwrap_or_default();
        let end = format!("the run of {}:", HostNet::address(host));
        let lines = said.lines().filter(|line| line.contains(&end));
        let epochs = lines.filter_map(|line| {
            let rest = line.split("; epochs begun for it: ").nth(1)?;
            rest.split(';').next()?.parse().ok()
        });
        epochs.collect()
    }

    /// How often the agent has begun to serve a conductor that was followed, after so many times before: no epoch has begun then.
    ///
    /// # Panics
    /// One has.
    fn check_since(&self, host: usize, begun_before: usize) -> u64 {
        // It serves one after the other.
        let epochs = self.epochs_of_runs_of(host);
        let since = epochs.get(begun_before..).unwrap_or_default();
        assert!(
            since.iter().all(|epochs| *epochs == 0),
            "epochs that were begun for a conductor that was followed: {since:?}"
        );
        since.len() as u64
    }

    /// Connections of epochs and runs that were over which the agent has refused, as it has said last.
    pub fn refused_connections(&self) -> u64 {
        let said = self.agent.as_ref().map(AgentProcess::said);
        let said = said.unwrap_or_default();
        let mut lines = said.lines().rev();
        let line = lines.find(|line| line.contains(" connections of runs"));
        let number = line.and_then(|line| line.split("; ").last()?.split(' ').next());
        number.map_or(0, |number| number.parse().expect("a number"))
    }
}

fn agent_address() -> SocketAddr {
    SocketAddr::from((HostNet::address(WITNESS), AGENT_PORT))
}

/// Reads until the end, on a thread that is let run before others.
fn read_on<T: Send + 'static>(
    mut from: impl Read + Send + 'static,
    to: &Arc<Mutex<T>>,
    mut take: impl FnMut(&mut T, &[u8]) + Send + 'static,
) {
    let to = Arc::clone(to);
    std::thread::spawn(move || {
        // Where the system allows it: when something came is noted soon.
        let _ = rustix::process::setpriority_process(None, -15);
        let mut piece = vec![0; 1 << 16];
        while let Ok(bytes @ 1..) = from.read(&mut piece) {
            take(&mut *locked(&to), &piece[..bytes]);
        }
    });
}
