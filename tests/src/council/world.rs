//! The queue of what is to happen, and what one history comes to.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use fastrand::Rng;
use zbmd_council::VoterId;
use zbmd_council::decision::{Decision, Effect, RunBorder};
use zbmd_council::message::{Message, MessageKind};
use zbmd_council::node::{Applied, LEASE_TICKS, Node, Record, Settings};

use super::bugs::CouncilBug;
use super::network::Network;
use super::scenario::{CouncilFault, CouncilScenario, US};
use super::voter::{BorderCopy, Conducting, SimVoter, Stage};
use super::watch::{CouncilViolation, Watch, checksum};

/// Ticks after the last fault within which the run must go on.
const PEACE_TICKS: u64 = 400;
/// Borders that are decided then, at least.
const PEACE_BORDERS: u64 = 3;
/// Ticks that a conductor waits for a copy before it goes on without that voter.
const COPY_TICKS: u64 = 12;
/// Steps between two tries to let somebody join.
const JOIN_STEPS: u64 = 20;

/// What a history without violation came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "counts of what the names say")]
pub struct CouncilSummary {
    pub events: u64,
    pub messages: u64,
    pub decided: u64,
    pub borders: u64,
    pub epochs: u64,
    pub kills: u64,
    pub stops: u64,
    pub cuts: u64,
    /// The state of the last border was in no memory any more.
    pub lost_runs: u64,
    pub simulated_ns: u64,
}

impl CouncilSummary {
    /// Adds another history's counts.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.messages += other.messages;
        self.decided += other.decided;
        self.borders += other.borders;
        self.epochs += other.epochs;
        self.kills += other.kills;
        self.stops += other.stops;
        self.cuts += other.cuts;
        self.lost_runs += other.lost_runs;
        self.simulated_ns += other.simulated_ns;
    }
}

/// What is to happen to a voter.
#[derive(Clone, Debug)]
pub(crate) enum CouncilEvent {
    Tick,
    Message(Box<Message>),
    Synced,
    /// The conductor looks what is to be done.
    Step,
    /// The conductor gives out what it has decided to.
    Release {
        epoch: u64,
        copy: BorderCopy,
        until_ns: u64,
    },
    /// Another voter's state of a border, to be kept; the answer goes there.
    Copy(BorderCopy, VoterId),
    CopyKept(BorderCopy, VoterId),
}

#[derive(Clone, Debug)]
enum Happening {
    /// To a process of this life; `None`: to whichever is there.
    Voter(usize, Option<u32>, CouncilEvent),
    Start(usize),
    Kill(usize, u64),
    Continue(usize),
    Fault(CouncilFault),
    /// An order to an agent: to take part in an epoch of a term.
    Order {
        agent: usize,
        term: u64,
        epoch: u64,
    },
    Peace,
}

struct World {
    rng: Rng,
    bug: Option<CouncilBug>,
    scenario: CouncilScenario,
    now_ns: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    voters: Vec<SimVoter>,
    network: Network,
    watch: Watch,
    summary: CouncilSummary,
    /// The highest (term, epoch) that each agent obeys.
    agents: Vec<(u64, u64)>,
    /// The next voter to vote is killed, and is not there for so long.
    kill_at_vote: Option<u64>,
    /// Blocks that were decided when the faults were over.
    border_at_peace: Option<u64>,
    is_verbose: bool,
}

/// Runs the history of a seed, perhaps with a bug.
///
/// # Errors
/// The first thing that happened and must not.
pub fn council_history(
    seed: u64,
    bug: Option<CouncilBug>,
    is_verbose: bool,
) -> Result<CouncilSummary, CouncilViolation> {
    let run = || World::new(seed, bug, is_verbose).run();
    if bug.is_none() {
        return run();
    }
    // Raft-rs asserts what it counts on: a voter that forgets makes others fall over.
    std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let why = text.unwrap_or_else(|| "for a reason without a text".to_owned());
        Err(CouncilViolation::Panicked { why })
    })
}

impl World {
    fn new(seed: u64, bug: Option<CouncilBug>, is_verbose: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let scenario = CouncilScenario::new(&mut rng);
        let voters = scenario
            .voters
            .iter()
            .zip(&scenario.paces)
            .map(|(own, pace)| {
                let settings = Settings {
                    own: *own,
                    voters: scenario.voters.clone(),
                    tick_ns: scenario.tick_ns,
                    compact_after: scenario.compact_after,
                    witnesses: scenario.witnesses.clone(),
                };
                SimVoter::new(settings, *pace)
            });
        Self {
            voters: voters.collect(),
            network: Network::new(scenario.voters.len(), scenario.delay_ns),
            rng,
            bug,
            now_ns: 0,
            sequence: 0,
            queue: BTreeMap::new(),
            watch: Watch::default(),
            summary: CouncilSummary::default(),
            agents: vec![(0, 0); scenario.agents],
            kill_at_vote: None,
            border_at_peace: None,
            is_verbose,
            scenario,
        }
    }

    fn run(mut self) -> Result<CouncilSummary, CouncilViolation> {
        for at in 0..self.voters.len() {
            let after_ns = self.rng.u64(0..5 * self.scenario.tick_ns);
            self.after(after_ns, Happening::Start(at));
        }
        for (at_ns, fault) in self.scenario.faults.clone() {
            self.after(at_ns, Happening::Fault(fault));
        }
        let peace_ns = self.scenario.peace_ns;
        self.after(peace_ns, Happening::Peace);

        let end_ns = peace_ns + PEACE_TICKS * self.scenario.tick_ns;
        while let Some(((now_ns, _), happening)) = self.queue.pop_first() {
            if now_ns > end_ns {
                break;
            }
            self.now_ns = now_ns;
            self.summary.events += 1;
            self.happen(happening)?;
            self.check_conductors()?;
        }
        self.check_progress()?;
        self.summary.simulated_ns = end_ns;
        Ok(self.summary)
    }

    fn after(&mut self, ns: u64, happening: Happening) {
        self.sequence += 1;
        self.queue
            .insert((self.now_ns + ns, self.sequence), happening);
    }

    fn to_voter(&mut self, at: usize, ns: u64, event: CouncilEvent) {
        let life = self.voters[at].life;
        self.after(ns, Happening::Voter(at, Some(life), event));
    }

    fn say(&self, text: impl FnOnce() -> String) {
        if self.is_verbose {
            println!("{:>12.3} ms  {}", self.now_ns as f64 / 1e6, text());
        }
    }

    fn happen(&mut self, happening: Happening) -> Result<(), CouncilViolation> {
        match happening {
            Happening::Start(at) => self.start(at),
            Happening::Kill(at, down_ns) => {
                self.kill(at, down_ns);
                Ok(())
            }
            Happening::Continue(at) => {
                let voter = &mut self.voters[at];
                voter.is_stopped = false;
                for event in std::mem::take(&mut voter.held) {
                    self.to_voter(at, 0, event);
                }
                Ok(())
            }
            Happening::Fault(fault) => {
                self.say(|| format!("{fault:?}"));
                self.fault(fault);
                Ok(())
            }
            Happening::Order { agent, term, epoch } => self.order(agent, term, epoch),
            Happening::Peace => {
                self.make_peace();
                Ok(())
            }
            Happening::Voter(at, life, event) => {
                let voter = &mut self.voters[at];
                if voter.node.is_none() || life.is_some_and(|life| life != voter.life) {
                    return Ok(());
                }
                if voter.is_stopped {
                    voter.held.push(event);
                    return Ok(());
                }
                self.event(at, event)
            }
        }
    }

    fn event(&mut self, at: usize, event: CouncilEvent) -> Result<(), CouncilViolation> {
        let clock_ns = self.voters[at].clock(self.now_ns);
        match event {
            CouncilEvent::Tick => {
                if let Some(node) = &mut self.voters[at].node {
                    node.advance(clock_ns);
                }
                self.poll(at)?;
                self.tick_later(at);
            }
            CouncilEvent::Message(message) => {
                self.summary.messages += 1;
                let Some(node) = &mut self.voters[at].node else {
                    return Ok(());
                };
                if let Err(error) = node.receive(clock_ns, *message) {
                    if self.bug.is_none() {
                        let why = error.to_string();
                        return Err(CouncilViolation::Refused { why });
                    }
                }
                self.poll(at)?;
            }
            CouncilEvent::Synced => {
                let Some(write) = self.voters[at].disk.sync(self.bug) else {
                    return Ok(());
                };
                self.send(write.messages);
                if let Some(node) = &mut self.voters[at].node {
                    node.written(write.number);
                }
                self.poll(at)?;
            }
            CouncilEvent::Step => {
                self.step(at)?;
                let step_ns = self.scenario.step_ns;
                let ns = self.rng.u64(step_ns / 2..=step_ns);
                self.to_voter(at, ns, CouncilEvent::Step);
            }
            CouncilEvent::Release {
                epoch,
                copy,
                until_ns,
            } => {
                self.release(at, epoch, copy, until_ns)?;
            }
            CouncilEvent::Copy(copy, from) => {
                self.voters[at].keep(copy);
                let own = self.voters[at].settings.own;
                self.pass(at, from, |_| CouncilEvent::CopyKept(copy, own));
            }
            CouncilEvent::CopyKept(copy, from) => self.copied(at, copy, from),
        }
        Ok(())
    }

    // Processes.

    fn start(&mut self, at: usize) -> Result<(), CouncilViolation> {
        if self.voters[at].node.is_some() {
            return Ok(());
        }
        let voter = &mut self.voters[at];
        voter.life += 1;
        voter.started_ns = self.now_ns;
        let mut clock_ns = voter.clock(self.now_ns);
        if self.bug == Some(CouncilBug::VoterNotQuiet) {
            clock_ns -= 20 * self.scenario.tick_ns;
        }
        let recovered = voter.disk.synced.clone();
        voter.applied = recovered.snapshot.index;
        let node = Node::new(voter.settings.clone(), recovered, clock_ns);
        match node {
            Ok(node) => voter.node = Some(node),
            Err(error) => {
                let why = error.to_string();
                return Err(CouncilViolation::Refused { why });
            }
        }
        self.say(|| format!("{} starts", VoterId(at as u64 + 1)));
        self.tick_later(at);
        if !self.voters[at].is_witness() {
            self.to_voter(at, 1, CouncilEvent::Step);
        }
        Ok(())
    }

    fn tick_later(&mut self, at: usize) {
        let voter = &self.voters[at];
        let Some(node) = &voter.node else { return };
        // The system wakes it a little late.
        let late_ns = self.rng.u64(0..50 * US);
        let wait_ns = voter.wait_ns(node.deadline_ns(), self.now_ns) + late_ns;
        self.to_voter(at, wait_ns, CouncilEvent::Tick);
    }

    fn kill(&mut self, at: usize, down_ns: u64) {
        let voter = &mut self.voters[at];
        if voter.node.take().is_none() {
            return;
        }
        voter.disk.crash(&mut self.rng, self.bug);
        voter.conducting = None;
        voter.copies.clear();
        voter.held.clear();
        voter.is_stopped = false;
        voter.late_lease_ns = 0;
        voter.last_lease_ns = 0;
        self.summary.kills += 1;
        self.after(down_ns, Happening::Start(at));
    }

    fn stop(&mut self, at: usize, still_ns: u64) {
        let voter = &mut self.voters[at];
        if voter.node.is_none() || voter.is_stopped {
            return;
        }
        voter.is_stopped = true;
        self.summary.stops += 1;
        self.after(still_ns, Happening::Continue(at));
    }

    fn fault(&mut self, fault: CouncilFault) {
        let now_ns = self.now_ns;
        let conductor = (0..self.voters.len()).find(|at| self.voters[*at].conducting.is_some());
        match fault {
            CouncilFault::Kill { voter, down_ns } => self.kill(voter, down_ns),
            CouncilFault::KillConductor { down_ns } => {
                if let Some(at) = conductor {
                    self.kill(at, down_ns);
                }
            }
            CouncilFault::Stop { voter, still_ns } => self.stop(voter, still_ns),
            CouncilFault::StopConductor { still_ns } => {
                if let Some(at) = conductor {
                    self.stop(at, still_ns);
                }
            }
            CouncilFault::StopAndKillAtVote { still_ns, down_ns } => {
                if let Some(at) = conductor {
                    self.stop(at, still_ns);
                    self.kill_at_vote = Some(down_ns);
                }
            }
            CouncilFault::StrandConductor {
                cut_ns,
                later_ns,
                down_ns,
            } => {
                if let Some(at) = conductor {
                    self.strand(at, cut_ns, later_ns, down_ns);
                }
            }
            CouncilFault::Cut { from, to, cut_ns } => {
                self.summary.cuts += 1;
                self.network.cut(from, to, now_ns + cut_ns);
            }
            CouncilFault::Split { side, cut_ns } => {
                self.summary.cuts += 1;
                self.network.split(side, now_ns + cut_ns);
            }
            CouncilFault::Lossy {
                per_mille,
                lossy_ns,
            } => self.network.make_lossy(per_mille, now_ns + lossy_ns),
        }
    }

    /// One voter does not hear the conductor any more; then all others are killed and started again, and hear nothing of it
    /// either.
    fn strand(&mut self, at: usize, cut_ns: u64, later_ns: u64, down_ns: u64) {
        let count = self.voters.len();
        let deaf = (at + self.rng.usize(1..count)) % count;
        self.network.cut(at, deaf, self.now_ns + cut_ns);
        for other in (0..count).filter(|other| *other != at && *other != deaf) {
            self.after(later_ns, Happening::Kill(other, down_ns));
        }
        let split = CouncilFault::Split {
            side: 1 << at,
            cut_ns: 12 * self.scenario.tick_ns,
        };
        self.after(later_ns, Happening::Fault(split));
    }

    fn make_peace(&mut self) {
        self.network.heal();
        self.kill_at_vote = None;
        for at in 0..self.voters.len() {
            self.after(0, Happening::Start(at));
            self.after(0, Happening::Continue(at));
        }
        self.border_at_peace = Some(self.watch.border);
        self.say(|| "the faults are over".to_owned());
    }

    // What a voter's node asks for.

    fn poll(&mut self, at: usize) -> Result<(), CouncilViolation> {
        let Some(node) = &mut self.voters[at].node else {
            return Ok(());
        };
        let output = node.poll();
        for applied in &output.applied {
            self.applied(at, applied)?;
        }
        self.send(output.messages);
        if let Some(mut write) = output.write {
            let is_early = |message: &Message| match self.bug {
                Some(CouncilBug::VoteNotSynced) => matches!(
                    message.kind,
                    MessageKind::VoteAnswer | MessageKind::VoteRequest
                ),
                Some(CouncilBug::EntriesNotSynced) => message.kind == MessageKind::AppendAnswer,
                _ => false,
            };
            let own = self.voters[at].settings.own;
            let is_vote = |record: &Record| matches!(record, Record::Vote { vote: Some(other), .. } if *other != own);
            let is_killed = write.records.iter().any(is_vote);
            let (early, late) = write.messages.into_iter().partition(is_early);
            write.messages = late;
            self.send(early);
            self.voters[at].disk.writing.push_back(write);
            let write_ns = self.scenario.write_ns;
            let ns = self.rng.u64(write_ns / 2..=write_ns);
            // One write after the other.
            let behind = self.voters[at].disk.writing.len() as u64 - 1;
            self.to_voter(at, ns + behind * write_ns, CouncilEvent::Synced);
            if let Some(down_ns) = self.kill_at_vote.take_if(|_| is_killed) {
                self.kill(at, down_ns);
                return Ok(());
            }
        }
        self.note_lease(at);
        Ok(())
    }

    /// For the bug that lets a lease begin with the answers.
    fn note_lease(&mut self, at: usize) {
        let voter = &mut self.voters[at];
        let clock_ns = voter.clock(self.now_ns);
        let until_ns = voter.node.as_ref().and_then(Node::acts_until_ns);
        let until_ns = until_ns.unwrap_or(0);
        if until_ns > voter.last_lease_ns {
            voter.late_lease_ns = clock_ns + LEASE_TICKS * self.scenario.tick_ns;
        }
        voter.last_lease_ns = until_ns;
    }

    fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            let to = message.to;
            let from = message.from.0 as usize - 1;
            self.pass(from, to, |_| {
                CouncilEvent::Message(Box::new(message.clone()))
            });
        }
    }

    /// Sends something to a voter, if the network lets it.
    fn pass(&mut self, from: usize, to: VoterId, make: impl Fn(u64) -> CouncilEvent) {
        let at = to.0 as usize - 1;
        for ns in self.network.delays(from, at, self.now_ns, &mut self.rng) {
            // Whoever is there when it comes gets it.
            self.after(ns, Happening::Voter(at, None, make(ns)));
        }
    }

    fn applied(&mut self, at: usize, applied: &Applied) -> Result<(), CouncilViolation> {
        let own = self.voters[at].settings.own;
        let before = self.voters[at].applied;
        let (entry, effect) = match applied {
            Applied::Snapshot(index) => {
                self.voters[at].applied = *index;
                return Ok(());
            }
            Applied::Entry(entry, effect) => (entry, *effect),
        };
        if entry.index != before + 1 {
            return Err(CouncilViolation::Skipped {
                voter: own,
                before,
                index: entry.index,
            });
        }
        self.voters[at].applied = entry.index;
        if self.watch.decide(entry)? {
            self.first_decided(entry.index, entry.term)?;
            if effect == Effect::Taken {
                self.first_taken(&entry.data)?;
            }
        }
        self.conductor_applied(at, entry.index, entry.term, effect)
    }

    fn first_decided(&mut self, index: u64, term: u64) -> Result<(), CouncilViolation> {
        self.summary.decided += 1;
        let voters = self.voters.len();
        let disks = self
            .voters
            .iter()
            .filter(|voter| voter.disk.has(index, term));
        let disks = disks.count();
        match 2 * disks > voters {
            true => Ok(()),
            false => Err(CouncilViolation::Minority {
                index,
                disks,
                voters,
            }),
        }
    }

    /// A decision holds, for the first time at any voter.
    fn first_taken(&mut self, data: &[u8]) -> Result<(), CouncilViolation> {
        match Decision::decode(data) {
            Ok(Decision::Join { holder }) => {
                self.watch.holders.insert(holder);
            }
            Ok(Decision::Leave { holder }) => {
                self.watch.holders.remove(&holder);
            }
            Ok(Decision::Border { epoch, border }) => {
                self.watch.border = border.blocks;
                self.summary.borders += 1;
                return self.check_copies(epoch, border.blocks);
            }
            Ok(Decision::Epoch { .. }) | Err(_) => {}
        }
        Ok(())
    }

    /// All who may take over have the state, unless they have been killed since it was sent.
    fn check_copies(&self, epoch: u64, blocks: u64) -> Result<(), CouncilViolation> {
        let copies = |voter: &SimVoter| voter.copies.get(&(epoch, blocks)).copied();
        let Some(sent) = self.voters.iter().find_map(copies) else {
            return Ok(());
        };
        for holder in &self.watch.holders {
            let voter = &self.voters[holder.0 as usize - 1];
            let was_killed = voter.node.is_none() || voter.started_ns >= sent.made_ns;
            if !was_killed && copies(voter).is_none() {
                let holder = *holder;
                return Err(CouncilViolation::NotCopied { blocks, holder });
            }
        }
        Ok(())
    }

    // What a conductor does.

    /// Until when a voter may act, by its own clock; `None` if it may not.
    fn acts_until(&self, at: usize) -> Option<u64> {
        let voter = &self.voters[at];
        let node = voter.node.as_ref()?;
        let until_ns = node.acts_until_ns();
        let until_ns = match self.bug {
            Some(CouncilBug::LeaseIgnored) if until_ns.is_some() => u64::MAX,
            Some(CouncilBug::LeaseFromAnswer) if until_ns.is_some() => voter.late_lease_ns,
            _ => until_ns?,
        };
        (voter.clock(self.now_ns) < until_ns).then_some(until_ns)
    }

    fn check_conductors(&self) -> Result<(), CouncilViolation> {
        let mut acting = (0..self.voters.len())
            .filter(|at| !self.voters[*at].is_stopped && self.acts_until(*at).is_some())
            .map(|at| self.voters[at].settings.own);
        match (acting.next(), acting.next()) {
            (Some(one), Some(other)) => Err(CouncilViolation::TwoConductors { one, other }),
            _ => Ok(()),
        }
    }

    fn propose(&mut self, at: usize, decision: &Decision) -> Result<Option<u64>, CouncilViolation> {
        let clock_ns = self.voters[at].clock(self.now_ns);
        let Some(node) = &mut self.voters[at].node else {
            return Ok(None);
        };
        let index = node.propose(clock_ns, decision).ok();
        self.poll(at)?;
        Ok(index)
    }

    fn step(&mut self, at: usize) -> Result<(), CouncilViolation> {
        let is_conductor = self.acts_until(at).is_some();
        let Some(node) = self.voters[at].node.as_ref().filter(|_| is_conductor) else {
            self.voters[at].conducting = None;
            return Ok(());
        };
        let term = node.term();
        let stage = match &mut self.voters[at].conducting {
            Some(conducting) if conducting.term == term => {
                conducting.steps += 1;
                conducting.stage.clone()
            }
            _ => return self.take_over(at, term),
        };
        match stage {
            Stage::Idle => self.begin_border(at),
            Stage::Copying {
                copy,
                waiting,
                since_ns,
                joining,
            } => {
                let is_late = self.now_ns > since_ns + COPY_TICKS * self.scenario.tick_ns;
                let is_complete = waiting.is_empty()
                    || (joining.is_none() && self.bug == Some(CouncilBug::CommitBeforeCopy));
                match (is_complete, joining) {
                    (true, Some(holder)) => self.decide_on(at, None, &Decision::Join { holder }),
                    (true, None) => self.propose_border(at, copy),
                    (false, Some(_)) if is_late => {
                        self.set_stage(at, Stage::Idle);
                        Ok(())
                    }
                    (false, None) if is_late => {
                        let Some(holder) = waiting.first().copied() else {
                            return Ok(());
                        };
                        self.decide_on(at, None, &Decision::Leave { holder })
                    }
                    (false, _) => Ok(()),
                }
            }
            Stage::Opening | Stage::Proposed { .. } | Stage::Releasing => Ok(()),
        }
    }

    fn set_stage(&mut self, at: usize, stage: Stage) {
        if let Some(conducting) = &mut self.voters[at].conducting {
            conducting.stage = stage;
        }
    }

    /// Opens an epoch, once it has the state of the last border.
    fn take_over(&mut self, at: usize, term: u64) -> Result<(), CouncilViolation> {
        let Some(node) = &self.voters[at].node else {
            return Ok(());
        };
        let decided = node.decided();
        let key = (decided.border_epoch, decided.border.blocks);
        if key.1 > 0 && !self.voters[at].copies.contains_key(&key) {
            return self.fetch(at, key);
        }
        let decision = Decision::Epoch {
            conductor: self.voters[at].settings.own,
            hosts: (0..self.agents.len() as u32).collect(),
        };
        self.voters[at].epochs_opened += 1;
        self.voters[at].conducting = Some(Conducting {
            term,
            index: u64::MAX,
            epoch: 0,
            stage: Stage::Opening,
            steps: 0,
        });
        let index = self.propose(at, &decision)?;
        if let (Some(index), Some(conducting)) = (index, &mut self.voters[at].conducting) {
            conducting.index = index;
        }
        self.say(|| format!("{} takes over in term {term}", VoterId(at as u64 + 1)));
        Ok(())
    }

    /// Gets the state of the last border from another voter.
    fn fetch(&mut self, at: usize, key: (u64, u64)) -> Result<(), CouncilViolation> {
        let holder = (0..self.voters.len()).find(|from| {
            let voter = &self.voters[*from];
            let is_there = voter.node.is_some() && !voter.is_stopped;
            is_there && voter.copies.contains_key(&key)
        });
        let Some(from) = holder else { return Ok(()) };
        let is_cut = |from, to| self.network.is_cut(from, to, self.now_ns);
        if is_cut(at, from) || is_cut(from, at) {
            return Ok(());
        }
        let copy = self.voters[from].copies[&key];
        self.voters[at].keep(copy);
        Ok(())
    }

    /// Computes some blocks, and sends their state to those who may take over.
    fn begin_border(&mut self, at: usize) -> Result<(), CouncilViolation> {
        let Some(node) = &self.voters[at].node else {
            return Ok(());
        };
        let decided = node.decided().clone();
        let own = self.voters[at].settings.own;
        let is_candidate =
            |voter: &VoterId| !self.scenario.witnesses.contains(voter) && *voter != own;
        let mut candidates = self.scenario.voters.iter().copied().filter(is_candidate);
        let newcomer = candidates.find(|voter| !decided.holders.contains(voter));
        let last_key = (decided.border_epoch, decided.border.blocks);
        let last = self.voters[at].copies.get(&last_key).copied();
        let Some(conducting) = &mut self.voters[at].conducting else {
            return Ok(());
        };
        let epoch = conducting.index;
        if let (Some(newcomer), Some(copy)) = (newcomer, last)
            && conducting.steps >= JOIN_STEPS
        {
            conducting.steps = 0;
            return self.copy_to(at, copy, &[newcomer], Some(newcomer));
        }

        let blocks = decided.border.blocks + self.rng.u64(1..4);
        let copy = BorderCopy {
            epoch,
            from: decided.border.blocks,
            blocks,
            sum: checksum(blocks),
            made_ns: self.now_ns,
        };
        let holders: Vec<VoterId> = decided.holders.into_iter().filter(|v| *v != own).collect();
        self.copy_to(at, copy, &holders, None)
    }

    fn copy_to(
        &mut self,
        at: usize,
        copy: BorderCopy,
        to: &[VoterId],
        joining: Option<VoterId>,
    ) -> Result<(), CouncilViolation> {
        self.voters[at].keep(copy);
        let own = self.voters[at].settings.own;
        for voter in to {
            self.pass(at, *voter, |_| CouncilEvent::Copy(copy, own));
        }
        let stage = Stage::Copying {
            copy,
            waiting: to.iter().copied().collect(),
            since_ns: self.now_ns,
            joining,
        };
        self.set_stage(at, stage);
        Ok(())
    }

    fn copied(&mut self, at: usize, kept: BorderCopy, from: VoterId) {
        if let Some(conducting) = &mut self.voters[at].conducting
            && let Stage::Copying { copy, waiting, .. } = &mut conducting.stage
            && *copy == kept
        {
            waiting.remove(&from);
        }
    }

    fn propose_border(&mut self, at: usize, copy: BorderCopy) -> Result<(), CouncilViolation> {
        let border = RunBorder {
            blocks: copy.blocks,
            checksum: copy.sum,
            outputs: vec![copy.blocks],
        };
        let epoch = copy.epoch;
        let decision = Decision::Border { epoch, border };
        self.decide_on(at, Some(copy), &decision)?;
        if self.bug == Some(CouncilBug::CommitTooEarly) {
            return self.release_soon(at, copy);
        }
        Ok(())
    }

    fn decide_on(
        &mut self,
        at: usize,
        copy: Option<BorderCopy>,
        decision: &Decision,
    ) -> Result<(), CouncilViolation> {
        let index = self.propose(at, decision)?;
        if let Some(index) = index {
            self.set_stage(at, Stage::Proposed { index, copy });
        }
        Ok(())
    }

    /// A voter that conducts has applied an entry.
    fn conductor_applied(
        &mut self,
        at: usize,
        index: u64,
        term: u64,
        effect: Effect,
    ) -> Result<(), CouncilViolation> {
        let own = self.voters[at].settings.own;
        let epochs_opened = self.voters[at].epochs_opened;
        let Some(conducting) = &mut self.voters[at].conducting else {
            return Ok(());
        };
        if conducting.term != term {
            return Ok(());
        }
        match conducting.stage.clone() {
            Stage::Opening if conducting.index == index => {
                conducting.epoch = match self.bug {
                    Some(CouncilBug::EpochCountedLocally) => epochs_opened,
                    _ => index,
                };
                let epoch = conducting.epoch;
                self.summary.epochs += 1;
                self.watch.open(epoch, own, term)?;
                self.order_agents(term, epoch);
                self.begin_epoch(at)
            }
            Stage::Proposed { index: own, copy } if own == index => match (copy, effect) {
                (Some(copy), Effect::Taken) => self.release_soon(at, copy),
                _ => {
                    conducting.stage = Stage::Idle;
                    Ok(())
                }
            },
            _ => Ok(()),
        }
    }

    /// Gives out again what belongs to the last border: whoever conducted before may not have come to it.
    fn begin_epoch(&mut self, at: usize) -> Result<(), CouncilViolation> {
        let Some(node) = &self.voters[at].node else {
            return Ok(());
        };
        let decided = node.decided();
        let key = (decided.border_epoch, decided.border.blocks);
        self.set_stage(at, Stage::Idle);
        match self.voters[at].copies.get(&key).copied() {
            Some(copy) if self.bug != Some(CouncilBug::ReleaseForgotten) => {
                self.release_soon(at, copy)
            }
            None if key.1 > 0 => Err(CouncilViolation::NoState { blocks: key.1 }),
            _ => Ok(()),
        }
    }

    fn release_soon(&mut self, at: usize, copy: BorderCopy) -> Result<(), CouncilViolation> {
        let Some(until_ns) = self.acts_until(at) else {
            self.voters[at].conducting = None;
            return Ok(());
        };
        let Some(conducting) = &mut self.voters[at].conducting else {
            return Ok(());
        };
        conducting.stage = Stage::Releasing;
        let release = CouncilEvent::Release {
            epoch: conducting.epoch,
            copy,
            until_ns,
        };
        let ns = self.rng.u64(1..self.scenario.step_ns);
        self.to_voter(at, ns, release);
        Ok(())
    }

    fn release(
        &mut self,
        at: usize,
        epoch: u64,
        copy: BorderCopy,
        until_ns: u64,
    ) -> Result<(), CouncilViolation> {
        let may_act = match self.bug {
            Some(CouncilBug::StaleConductorActs) => until_ns > 0,
            _ => self.acts_until(at).is_some(),
        };
        let conducting = self.voters[at].conducting.as_ref();
        let is_its_epoch = conducting.is_some_and(|conducting| conducting.epoch == epoch);
        if !may_act || !is_its_epoch {
            self.voters[at].conducting = None;
            return Ok(());
        }
        self.watch
            .release(epoch, copy.from, copy.blocks, copy.sum)?;
        self.set_stage(at, Stage::Idle);
        Ok(())
    }

    // Agents.

    fn order_agents(&mut self, term: u64, epoch: u64) {
        for agent in 0..self.agents.len() {
            // Some come very late.
            let is_late = self.rng.u32(0..6) == 0;
            let late_ns = self.rng.u64(0..40 * self.scenario.tick_ns);
            let ns = self.network.delay(&mut self.rng) + if is_late { late_ns } else { 0 };
            self.after(ns, Happening::Order { agent, term, epoch });
        }
    }

    fn order(&mut self, agent: usize, term: u64, epoch: u64) -> Result<(), CouncilViolation> {
        let is_obeyed =
            (term, epoch) >= self.agents[agent] || self.bug == Some(CouncilBug::AgentObeysAnyone);
        if !is_obeyed {
            return Ok(());
        }
        self.agents[agent] = (term, epoch);
        self.watch.begin_at_agent(agent, epoch)
    }

    // The end.

    fn check_progress(&mut self) -> Result<(), CouncilViolation> {
        let Some(blocks) = self.border_at_peace else {
            return Ok(());
        };
        let later = self.watch.border;
        if later >= blocks + PEACE_BORDERS && self.watch.released >= later.saturating_sub(4) {
            return Ok(());
        }
        // Memory of the last border may be gone with all who had it: then the run is lost, and says so.
        let highest = self.voters.iter().filter_map(|voter| voter.node.as_ref());
        let decided = highest
            .map(Node::decided)
            .max_by_key(|decided| decided.index);
        let key = decided.map_or((0, 0), |d| (d.border_epoch, d.border.blocks));
        let has_state = |voter: &SimVoter| voter.copies.contains_key(&key);
        if key.1 > 0 && !self.voters.iter().any(has_state) {
            if self.summary.kills == 0 {
                return Err(CouncilViolation::NoState { blocks: key.1 });
            }
            self.summary.lost_runs += 1;
            return Ok(());
        }
        Err(CouncilViolation::Stuck {
            blocks,
            later,
            ticks: PEACE_TICKS,
        })
    }
}
