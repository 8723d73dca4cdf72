//! Runs in the name of a council, in processes: the run is voter 1, and agents are the others. What voters have on disk is read
//! beside them.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use zbmd_compiler::{CompileOptions, Losses};
use zbmd_council::decision::{Decided, Decision, RunBorder};
use zbmd_council::journal::Journal;
use zbmd_council::node::{Recovered, Settings};
use zbmd_council::{LogEntry, VoterId};

use crate::agents::{AgentProcess, TWO_HOSTS};
use crate::child_run;
use crate::free_port::free_port;
use crate::run_process::{Preparation, RunProcess, tokens_in};

/// The middle takes as long as both ends together, so sources and sinks come to one host without being pinned there: hosts stand
/// in for each other only where nothing is pinned.
const MODEL: &str = r#"Model(
    name: "hosts",
    sources: { "in": Stream(dtype: f32) },
    actors: {
        "a": Fir(design: { "kind": "lowpass", "cutoff": 0.2, "rate": 1, "taps": 300, "window": { "kaiser": 7.9 } }),
        "b": Fir(design: { "kind": "lowpass", "cutoff": 0.3, "rate": 1, "taps": 600, "window": { "kaiser": 7.9 } }),
        "c": Fir(design: { "kind": "lowpass", "cutoff": 0.1, "rate": 1, "taps": 300, "window": { "kaiser": 7.9 } }),
    },
    channels: [(from: "in", to: ["a"]), (from: "a", to: ["b"]), (from: "b", to: ["c"]), (from: "c", to: ["out"])],
    sinks: { "out": Stream() },
)"#;

/// The same with a level behind it all that can be set while it runs: what comes out is that.
fn level_model() -> String {
    let params = r#"params: { "level": Live(0.0, min: 0.0, max: 100000.0) }, sources:"#;
    let actors = r#"actors: { "one": Expr("x * 0 + 1"), "level": Gain($level),"#;
    let channels =
        r#"(from: "c", to: ["one"]), (from: "one", to: ["level"]), (from: "level", to: ["out"])"#;
    MODEL
        .replace("sources:", params)
        .replace("actors: {", actors)
        .replace(r#"(from: "c", to: ["out"])"#, channels)
}

/// Of the council; long enough for a crowded computer.
pub const LEASE: Duration = Duration::from_millis(160);
/// Tokens of the input, and how fast they come.
pub const TOKENS: u64 = 1_000_000;
const TOKENS_PER_S: u64 = 400_000;
const PIECE_TOKENS: u64 = 2_000;

/// A folder with a bundle, its input and what a run on one host gives for it, and the addresses of a council.
pub struct CouncilRuns {
    folder: PathBuf,
    voters: Vec<SocketAddr>,
    /// Those that cannot conduct.
    witnesses: String,
    lease: Duration,
    /// The input of a run that stands by comes by the clock too.
    feeds_standby: bool,
}

impl CouncilRuns {
    /// Prepares a folder, for a council whose voter 2 could conduct too.
    pub fn prepare_with_standby(folder: &Path, lease: Duration) -> Self {
        Self {
            witnesses: "3".to_owned(),
            lease,
            ..Self::prepare(folder)
        }
    }

    /// The same for a model whose output is the live parameter `level`.
    pub fn prepare_levels_with_standby(folder: &Path, lease: Duration) -> Self {
        Self {
            witnesses: "3".to_owned(),
            lease,
            // Not as fast as it can: there must be time to set something.
            feeds_standby: true,
            ..Self::prepare_model(folder, &level_model(), Some(2_048), 3)
        }
    }

    /// Prepares a folder, for a council of three.
    pub fn prepare(folder: &Path) -> Self {
        Self::prepare_for(folder, 3)
    }

    /// Prepares a folder, for a council of so many.
    pub fn prepare_for(folder: &Path, voter_count: u64) -> Self {
        Self::prepare_model(folder, MODEL, None, voter_count)
    }

    fn prepare_model(folder: &Path, model: &str, block: Option<u64>, voter_count: u64) -> Self {
        let preparation = Preparation {
            machine: TWO_HOSTS,
            model,
            options: CompileOptions {
                contingencies: Losses::Hosts,
                block,
                ..CompileOptions::default()
            },
            seed: 11,
            tokens: TOKENS,
        };
        preparation.write(folder);
        let voters = (0..voter_count).map(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        let witnesses: Vec<String> = (2..=voter_count).map(|voter| voter.to_string()).collect();
        Self {
            folder: folder.to_owned(),
            voters: voters.collect(),
            witnesses: witnesses.join(","),
            lease: LEASE,
            feeds_standby: false,
        }
    }

    fn seat(&self, command: &mut Command, voter: u64) {
        let place = (voter, format!("voter.{voter}"));
        command
            .args(["--token-file", "token"])
            .args(seat_arguments(
                &self.voters,
                &self.witnesses,
                place,
                self.lease,
            ))
            .current_dir(&self.folder);
    }

    /// Starts an agent that is this voter.
    pub fn agent(&self, voter: u64) -> AgentProcess {
        let mut command = child_run::command();
        command.args(["agent", "--listen", "127.0.0.1:0"]);
        self.seat(&mut command, voter);
        AgentProcess::spawn(command)
    }

    /// Starts the run as voter 1, with this agent for its other host. Its input comes by the clock.
    pub fn run(&self, right: &AgentProcess) -> RunProcess {
        let mut command = child_run::command();
        command
            .args(["model.zbmd", "-i", "in=-", "-o", "out=out.f32"])
            .args(["--host", &format!("right={}", right.address)])
            .args(["--host-lease", "400ms", "--events", "events.jsonl"]);
        self.seat(&mut command, 1);
        start_fed(command, self.folder.join("in.f32"))
    }

    /// The same with an input that is sent to a port of this computer ([`connect`]), as fast as the run takes it.
    pub fn live_run(&self, right: &AgentProcess, port: u16) -> RunProcess {
        let mut command = child_run::command();
        command
            .args(["model.zbmd", "-i", &listening_at(port), "-o", "out=out.f32"])
            .args(["--host", &format!("right={}", right.address)])
            .args(["--host-lease", "400ms"]);
        self.seat(&mut command, 1);
        RunProcess::start(command)
    }

    /// A run that stands by for that one, and listens at the port when it goes on.
    pub fn live_standby(&self, port: u16) -> RunProcess {
        self.standby_with(&listening_at(port))
    }

    /// Sends tokens of the input over a connection to a run that listens.
    ///
    /// # Panics
    /// It does not read them.
    pub fn send(&self, mut connection: &TcpStream, tokens: Range<u64>) {
        let input = std::fs::read(self.folder.join("in.f32")).expect("written");
        let bytes = &input[tokens.start as usize * 4..tokens.end as usize * 4];
        connection.write_all(bytes).expect("it is read");
    }

    /// Starts a run that stands by as voter 2, on the other host. It has the whole input.
    pub fn standby(&self) -> RunProcess {
        self.standby_with(match self.feeds_standby {
            true => "in=-",
            false => "in=in.f32",
        })
    }

    /// The same with its input named.
    pub fn standby_with(&self, input: &str) -> RunProcess {
        let mut command = child_run::command();
        command
            .args(["model.zbmd", "-i", input, "-o", "out=taken.f32"])
            .args(["--take-over-as", "right"]);
        self.seat(&mut command, 2);
        match self.feeds_standby {
            true => start_fed(command, self.folder.join("in.f32")),
            false => RunProcess::start(command),
        }
    }

    /// Tokens in the run's output file.
    pub fn output_tokens(&self) -> u64 {
        tokens_in(&self.folder.join("out.f32"))
    }

    /// Tokens in the output file of the run that stood by.
    pub fn taken_tokens(&self) -> u64 {
        tokens_in(&self.folder.join("taken.f32"))
    }

    /// Whether both outputs together are that of a run on one host, the second from the token on that it has said.
    ///
    /// # Panics
    /// Something of it is missing, or is another.
    pub fn check_both_outputs(&self, said: &str) {
        let first_tokens = self.check_output();
        let token = number_after(said, "`out` goes on with token ");
        assert!(token <= first_tokens, "{token} after {first_tokens} tokens");
        let expected = std::fs::read(self.folder.join("expected.f32")).expect("written");
        let taken = std::fs::read(self.folder.join("taken.f32")).expect("written");
        let is_rest = taken == expected[token as usize * 4..];
        assert!(is_rest, "{} bytes after token {token}", taken.len());
    }

    /// The tokens of both outputs, where the second goes on from the token that its run has said; what both have is the same.
    ///
    /// # Panics
    /// It is not, or there is a gap.
    pub fn joined_outputs(&self, said: &str) -> Vec<f32> {
        let read = |name: &str| -> Vec<f32> {
            let bytes = std::fs::read(self.folder.join(name)).expect("written");
            let tokens = bytes.as_chunks::<4>().0.iter();
            tokens.map(|token| f32::from_le_bytes(*token)).collect()
        };
        let (mut all, taken) = (read("out.f32"), read("taken.f32"));
        let token = number_after(said, "`out` goes on with token ") as usize;
        assert!(token <= all.len(), "{token} after {} tokens", all.len());
        let both = (all.len() - token).min(taken.len());
        assert!(all[token..][..both] == taken[..both], "from token {token}");
        all.extend(&taken[both..]);
        all
    }

    /// Checks that tokens are the first ones of what a run on one host gives.
    ///
    /// # Panics
    /// They are not.
    pub fn check_beginning(&self, tokens: &[f32]) {
        let expected = std::fs::read(self.folder.join("expected.f32")).expect("written");
        let expected = expected.as_chunks::<4>().0.iter();
        let differs = |(found, expected): (&f32, &[u8; 4])| found.to_le_bytes() != *expected;
        let first = tokens.iter().zip(expected).position(differs);
        assert_eq!(first, None, "a token of {}", tokens.len());
    }

    /// The last border that was decided before voter 2 opened an epoch, by the journal of a voter.
    ///
    /// # Panics
    /// It has opened none.
    pub fn last_border_before_takeover(&self, voter: u64) -> RunBorder {
        let mut decided = Decided::default();
        for entry in &self.log_of(voter) {
            let before = decided.border.clone();
            decided.apply(entry);
            if decided.conductor == Some(VoterId(2)) {
                return before;
            }
        }
        panic!("voter 2 has opened no epoch: {decided:?}");
    }

    /// Whether voter 2 holds the state of each border, by the journal of a voter.
    pub fn is_held(&self, voter: u64) -> bool {
        let mut decided = Decided::default();
        for entry in &self.log_of(voter) {
            decided.apply(entry);
        }
        decided.holders.contains(&VoterId(2))
    }

    /// Whether the output is that of a run on one host; returns its tokens.
    ///
    /// # Panics
    /// It is another one, or longer.
    pub fn check_output(&self) -> u64 {
        let expected = std::fs::read(self.folder.join("expected.f32")).expect("written");
        let found = std::fs::read(self.folder.join("out.f32")).expect("written");
        let is_prefix = expected.starts_with(&found);
        assert!(is_prefix, "{} bytes that are not the same", found.len());
        found.len() as u64 / 4
    }

    /// Tokens of the undisturbed output.
    pub fn expected_tokens(&self) -> u64 {
        let file = std::fs::metadata(self.folder.join("expected.f32"));
        file.expect("written").len() / 4
    }

    /// What the run's events say.
    pub fn events(&self) -> String {
        std::fs::read_to_string(self.folder.join("events.jsonl")).unwrap_or_default()
    }

    /// The last border that is on the disk of one of these voters, decided or about to be.
    pub fn last_border_of(&self, voters: &[u64]) -> RunBorder {
        let borders = voters.iter().map(|voter| self.border_on_disk(*voter));
        let last = borders.max_by_key(|border| border.iterations);
        last.expect("a voter")
    }

    fn border_on_disk(&self, voter: u64) -> RunBorder {
        let decided = decided_on_disk(&self.folder, voter, self.voters.len() as u64);
        decided.expect("a journal").border
    }

    /// The terms of the epochs that are on the disk of a voter.
    pub fn epoch_terms_of(&self, voter: u64) -> Vec<u64> {
        let log = self.log_of(voter);
        let is_epoch =
            |entry: &&LogEntry| matches!(Decision::decode(&entry.data), Ok(Decision::Epoch { .. }));
        log.iter()
            .filter(is_epoch)
            .map(|entry| entry.term)
            .collect()
    }

    fn log_of(&self, voter: u64) -> Vec<LogEntry> {
        let recovered = journal_of(&self.folder, voter, self.voters.len() as u64);
        let recovered = recovered.expect("a journal");
        assert_eq!(recovered.snapshot.index, 0, "the whole log is there");
        recovered.entries
    }
}

/// What is on the disk of a voter, decided or about to be, in a council of so many whose folders are in this one; `None` if it cannot be
/// read now.
pub fn decided_on_disk(folder: &Path, voter: u64, voters: u64) -> Option<Decided> {
    let recovered = journal_of(folder, voter, voters)?;
    let mut decided = match recovered.snapshot.index {
        0 => Decided::default(),
        _ => Decided::decode(&recovered.snapshot.state).ok()?,
    };
    for entry in &recovered.entries {
        decided.apply(entry);
    }
    Some(decided)
}

/// A copy is read: the voter keeps its journal for itself.
fn journal_of(folder: &Path, voter: u64, voters: u64) -> Option<Recovered> {
    let copy = folder.join("copy");
    std::fs::create_dir_all(&copy).ok()?;
    let journal = folder.join(format!("voter.{voter}/council.journal"));
    std::fs::copy(&journal, copy.join("council.journal")).ok()?;
    let settings = Settings {
        own: VoterId(voter),
        voters: (1..=voters).map(VoterId).collect(),
        tick_ns: 10_000_000,
        compact_after: 1_000,
        witnesses: Vec::new(),
    };
    let (_, recovered) = Journal::open(&copy, &settings).ok()?;
    Some(recovered)
}

/// The options of a command that is this voter, with its folder, in a council of these.
pub fn seat_arguments(
    voters: &[SocketAddr],
    witnesses: &str,
    (voter, folder): (u64, String),
    lease: Duration,
) -> Vec<String> {
    let voters: Vec<String> = voters.iter().map(SocketAddr::to_string).collect();
    let options = [
        ("--council", voters.join(",")),
        ("--voter", voter.to_string()),
        ("--council-folder", folder),
        ("--witnesses", witnesses.to_owned()),
        ("--council-lease", format!("{}ms", lease.as_millis())),
    ];
    let options = options.into_iter();
    options
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
}

/// The number that follows some words of what a run has said.
///
/// # Panics
/// There is none.
pub fn number_after(said: &str, words: &str) -> u64 {
    let rest = said.split(words).nth(1).expect(said);
    let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).expect(said)
}

/// A connection to the run that listens at a port, as soon as it does.
///
/// # Panics
/// Nobody listens there.
pub fn connect(port: u16) -> TcpStream {
    let begun = Instant::now();
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(connection) => return connection,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(20), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The input of a run that listens for it.
fn listening_at(port: u16) -> String {
    format!("in=tcp-listen://127.0.0.1:{port}?rate=1e6&silence=stall&full=wait")
}

/// Starts a run that is fed from a file by the clock.
fn start_fed(command: Command, input: PathBuf) -> RunProcess {
    let (process, mut stdin) = RunProcess::start_fed(command);
    std::thread::spawn(move || {
        let input = std::fs::File::open(input).expect("written");
        let begun = Instant::now();
        let mut piece = vec![0; PIECE_TOKENS as usize * 4];
        for number in 0..TOKENS / PIECE_TOKENS {
            let due = Duration::from_micros(number * PIECE_TOKENS * 1_000_000 / TOKENS_PER_S);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
            let offset = number * piece.len() as u64;
            input
                .read_exact_at(&mut piece, offset)
                .expect("it is there");
            // A run that has ended takes nothing.
            if stdin.write_all(&piece).is_err() {
                return;
            }
        }
    });
    process
}
