//! Voters of a council as processes, each with a small conductor: it opens an epoch, has one border decided after the other, and
//! writes what belongs to it to a file of its own, numbered. What a run does with the council, without a run.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use zbmd_council::VoterId;
use zbmd_council::decision::{Decision, Effect, RunBorder};
use zbmd_council::member::{Member, MemberEvent, MemberOptions, effect_of, lease_clock_ns};
use zbmd_council::node::{Applied, Settings};
use zbmd_wire::connection::{Credentials, Protection};
use zbmd_wire::token::Token;

use crate::free_port::free_port;

/// Set in the environment of a voter's process: its number, tick, folder and the ports of all.
const VOTER: &str = "ZBMD_TEST_VOTER";
const TOKEN: &[u8] = b"a token of the council's test";
/// From one border to the next, at least.
const PAUSE: Duration = Duration::from_millis(1);
/// A decision that takes longer is given up.
const DECISION_LIMIT: Duration = Duration::from_millis(500);

/// A council of three, each voter a process.
pub struct VoterProcesses {
    folder: PathBuf,
    ports: Vec<u16>,
    tick: Duration,
    children: Vec<Option<Child>>,
}

/// A line of a voter's file: output that it has given out, or an epoch that it has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoterLine {
    /// By the clock that leases are measured by.
    pub at_ns: u64,
    /// From 0.
    pub voter: usize,
    /// Of the one who has written it.
    pub epoch: u64,
    /// Of the output; 0 where an epoch begins.
    pub number: u64,
}

/// Whether what was given out is without a gap, and none of it by a conductor after another had followed it.
///
/// # Panics
/// It is not so.
pub fn check_lines(lines: &[VoterLine]) {
    let (mut epoch, mut released) = (0, 0);
    for line in lines {
        assert!(line.epoch >= epoch, "{line:?} after epoch {epoch}");
        let is_next = line.number <= released + 1;
        assert!(is_next, "{line:?} after output {released}");
        epoch = line.epoch;
        released = released.max(line.number);
    }
}

impl VoterProcesses {
    /// Starts all of them, in a folder of their own.
    pub fn start(folder: &Path, tick: Duration) -> Self {
        let mut voters = Self {
            folder: folder.to_owned(),
            ports: (0..3).map(|_| free_port()).collect(),
            tick,
            children: Vec::new(),
        };
        voters.children = (0..3).map(|voter| Some(voters.spawn(voter))).collect();
        voters
    }

    fn spawn(&self, voter: usize) -> Child {
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        let settings = format!(
            "{};{};{};{}",
            voter + 1,
            self.tick.as_nanos(),
            self.folder.display(),
            ports.join(",")
        );
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.env(VOTER, settings).spawn().expect("started")
    }

    /// Sends a signal to a voter.
    pub fn signal(&self, voter: usize, signal: Signal) {
        let child = self.children[voter].as_ref().expect("it is there");
        kill_process(Pid::from_child(child), signal).expect("it is there");
    }

    /// Kills a voter.
    pub fn kill(&mut self, voter: usize) {
        let mut child = self.children[voter].take().expect("it is there");
        child.kill().expect("it is there");
        child.wait().expect("it was there");
    }

    /// Starts a voter that was killed.
    pub fn restart(&mut self, voter: usize) {
        self.children[voter] = Some(self.spawn(voter));
    }

    /// All lines of all voters, in the order of their times.
    pub fn lines(&self) -> Vec<VoterLine> {
        let mut lines = Vec::new();
        for voter in 0..3 {
            let text = std::fs::read_to_string(self.folder.join(format!("out.{}", voter + 1)));
            // A line that is being written is not looked at yet.
            let text = text.unwrap_or_default();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            lines.extend(whole.lines().filter_map(|line| {
                let mut words = line.split(' ').map(|word| word.parse().ok());
                let mut next = || words.next().flatten();
                Some(VoterLine {
                    at_ns: next()?,
                    voter,
                    epoch: next()?,
                    number: next()?,
                })
            }));
        }
        lines.sort_by_key(|line| line.at_ns);
        lines
    }

    /// Waits until somebody has written a line that is as wanted; the first such.
    ///
    /// # Panics
    /// That takes longer than 20 s.
    pub fn wait_for(&self, what: &str, is_wanted: impl Fn(&VoterLine) -> bool) -> VoterLine {
        let begun = Instant::now();
        loop {
            if let Some(line) = self.lines().into_iter().find(&is_wanted) {
                return line;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "not {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for VoterProcesses {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The `main` of a test whose voters are itself: the voter in a voter's process, else the test.
pub fn vote_or_test(test: impl FnOnce()) {
    match std::env::var(VOTER) {
        Ok(settings) => vote(&settings),
        Err(_) => test(),
    }
}

fn vote(settings: &str) {
    let parts: Vec<&str> = settings.split(';').collect();
    let own = VoterId(parts[0].parse().expect("a number"));
    let tick_ns = parts[1].parse().expect("a number");
    let folder = Path::new(parts[2]);
    let ports = parts[3]
        .split(',')
        .map(|port| port.parse().expect("a port"));

    let voters: Vec<VoterId> = (1..=3).map(VoterId).collect();
    let addresses = voters
        .iter()
        .copied()
        .zip(ports.map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
    let options = MemberOptions {
        addresses: addresses.collect(),
        folder: folder.join(format!("voter.{}", own.0)),
        credentials: Credentials {
            token: Token::of(TOKEN),
            protection: Protection::Loopback,
        },
        borders: None,
        settings: Settings {
            own,
            voters,
            tick_ns,
            compact_after: 500,
            witnesses: Vec::new(),
        },
    };

    let (sender, applied) = mpsc::channel();
    let member = Member::start(options, move |event| match event {
        MemberEvent::Applied(applied) => drop(sender.send(applied)),
        MemberEvent::Refused(error) => eprintln!("{own}: {error}"),
        MemberEvent::Ended(error) => panic!("{own}: {error}"),
        MemberEvent::Leads { .. } | MemberEvent::Follows { .. } => {}
    });
    let member = member.unwrap_or_else(|error| panic!("{own}: {error}"));

    let path = folder.join(format!("out.{}", own.0));
    let file = File::options().create(true).append(true).open(path);
    let mut conductor = SmallConductor {
        own,
        member,
        applied,
        file: file.expect("opened"),
    };
    loop {
        conductor.conduct();
        std::thread::sleep(PAUSE / 4);
    }
}

struct SmallConductor {
    own: VoterId,
    member: Member,
    applied: Receiver<Applied>,
    file: File,
}

impl SmallConductor {
    /// Conducts for as long as it may; `None` when it may not, or no more.
    fn conduct(&mut self) -> Option<()> {
        self.member.acts_until_ns()?;
        let (epoch, _) = self.decide(Decision::Epoch {
            run: 1,
            conductor: self.own,
            hosts: [0].into(),
            bundle: 1,
            taken_over: None,
        })?;
        self.release(epoch, 0)?;
        // Whoever conducted before may not have come to it.
        let last = self.member.decided().border.iterations;
        if last > 0 {
            self.release(epoch, last)?;
        }

        for blocks in last + 1.. {
            let border = RunBorder {
                iterations: blocks,
                given_out: blocks,
                changes_in_state: 0,
                checksum: blocks,
                outputs: vec![blocks],
            };
            let (_, effect) = self.decide(Decision::Border {
                epoch,
                border,
                held_by: [].into(),
            })?;
            if effect == Effect::Void {
                return None;
            }
            self.release(epoch, blocks)?;
            std::thread::sleep(PAUSE);
        }
        None
    }

    /// Has something decided; its place in the log, and whether it holds.
    fn decide(&mut self, decision: Decision) -> Option<(u64, Effect)> {
        self.member.acts_until_ns()?;
        self.applied.try_iter().for_each(drop);
        let index = self.member.propose(decision).ok()?;
        loop {
            let applied = self.applied.recv_timeout(DECISION_LIMIT).ok()?;
            if let Some(effect) = effect_of(&applied, index) {
                // Another one may have got that place.
                return self.member.acts_until_ns().map(|_| (index, effect));
            }
        }
    }

    /// Gives out a number, within the lease.
    fn release(&mut self, epoch: u64, number: u64) -> Option<()> {
        let until_ns = self.member.acts_until_ns()?;
        let at_ns = lease_clock_ns();
        if at_ns >= until_ns {
            return None;
        }
        let line = format!("{at_ns} {epoch} {number}\n");
        self.file.write_all(line.as_bytes()).ok()
    }
}
