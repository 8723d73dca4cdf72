//! The queue of what is to happen, and what one history comes to.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use fastrand::Rng;
use zbmd_council::VoterId;
use zbmd_council::decision::{Decision, Effect};
use zbmd_council::message::{Message, MessageKind};
use zbmd_council::node::{Applied, LEASE_TICKS, Node, Record, Settings};

use super::bugs::CouncilBug;
use super::network::Network;
use super::scenario::{CouncilFault, CouncilScenario};
use super::voter::{BorderCopy, SimVoter};
use super::watch::{CouncilViolation, Watch};

/// Ticks after the last fault within which the run must go on.
const PEACE_TICKS: u64 = 400;
/// Borders that are decided then, at least.
const PEACE_BORDERS: u64 = 3;

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
pub(super) enum Happening {
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

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) bug: Option<CouncilBug>,
    pub(super) scenario: CouncilScenario,
    pub(super) now_ns: u64,
    pub(super) sequence: u64,
    pub(super) queue: BTreeMap<(u64, u64), Happening>,
    pub(super) voters: Vec<SimVoter>,
    pub(super) network: Network,
    pub(super) watch: Watch,
    pub(super) summary: CouncilSummary,
    /// The highest (term, epoch) that each agent obeys.
    pub(super) agents: Vec<(u64, u64)>,
    /// The next voter to vote is killed, and is not there for so long.
    pub(super) kill_at_vote: Option<u64>,
    /// Blocks that were decided when the faults were over.
    pub(super) border_at_peace: Option<u64>,
    pub(super) is_verbose: bool,
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
    pub(super) fn new(seed: u64, bug: Option<CouncilBug>, is_verbose: bool) -> Self {
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

    pub(super) fn run(mut self) -> Result<CouncilSummary, CouncilViolation> {
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

    pub(super) fn after(&mut self, ns: u64, happening: Happening) {
        self.sequence += 1;
        self.queue
            .insert((self.now_ns + ns, self.sequence), happening);
    }

    pub(super) fn schedule_at(&mut self, at: usize, ns: u64, event: CouncilEvent) {
        let life = self.voters[at].life;
        self.after(ns, Happening::Voter(at, Some(life), event));
    }

    pub(super) fn say(&self, text: impl FnOnce() -> String) {
        if self.is_verbose {
            println!("{:>12.3} ms  {}", self.now_ns as f64 / 1e6, text());
        }
    }

    pub(super) fn happen(&mut self, happening: Happening) -> Result<(), CouncilViolation> {
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
                    self.schedule_at(at, 0, event);
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

    pub(super) fn event(&mut self, at: usize, event: CouncilEvent) -> Result<(), CouncilViolation> {
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
                let received = node.receive(clock_ns, *message);
                if let (Err(error), None) = (received, self.bug) {
                    let why = error.to_string();
                    return Err(CouncilViolation::Refused { why });
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
                self.schedule_at(at, ns, CouncilEvent::Step);
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

    // What a voter's node asks for.

    pub(super) fn poll(&mut self, at: usize) -> Result<(), CouncilViolation> {
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
            self.schedule_at(at, ns + behind * write_ns, CouncilEvent::Synced);
            if let Some(down_ns) = self.kill_at_vote.take_if(|_| is_killed) {
                self.kill(at, down_ns);
                return Ok(());
            }
        }
        self.note_lease(at);
        Ok(())
    }

    /// For the bug that lets a lease begin with the answers.
    pub(super) fn note_lease(&mut self, at: usize) {
        let voter = &mut self.voters[at];
        let clock_ns = voter.clock(self.now_ns);
        let until_ns = voter.node.as_ref().and_then(Node::acts_until_ns);
        let until_ns = until_ns.unwrap_or(0);
        if until_ns > voter.last_lease_ns {
            voter.late_lease_ns = clock_ns + LEASE_TICKS * self.scenario.tick_ns;
        }
        voter.last_lease_ns = until_ns;
    }

    pub(super) fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            let to = message.to;
            let from = message.from.0 as usize - 1;
            self.pass(from, to, |_| {
                CouncilEvent::Message(Box::new(message.clone()))
            });
        }
    }

    /// Sends something to a voter, if the network lets it.
    pub(super) fn pass(&mut self, from: usize, to: VoterId, make: impl Fn(u64) -> CouncilEvent) {
        let at = to.0 as usize - 1;
        for ns in self.network.delays(from, at, self.now_ns, &mut self.rng) {
            // Whoever is there when it comes gets it.
            self.after(ns, Happening::Voter(at, None, make(ns)));
        }
    }

    pub(super) fn applied(&mut self, at: usize, applied: &Applied) -> Result<(), CouncilViolation> {
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

    pub(super) fn first_decided(&mut self, index: u64, term: u64) -> Result<(), CouncilViolation> {
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
    pub(super) fn first_taken(&mut self, data: &[u8]) -> Result<(), CouncilViolation> {
        match Decision::decode(data) {
            Ok(Decision::Join { holder, .. }) => {
                self.watch.holders.insert(holder);
            }
            Ok(Decision::Leave { holder }) => {
                self.watch.holders.remove(&holder);
            }
            Ok(Decision::Border {
                epoch,
                border,
                held_by,
            }) => {
                self.watch.holders.retain(|holder| held_by.contains(holder));
                self.watch.border = border.iterations;
                self.summary.borders += 1;
                return self.check_copies(epoch, border.iterations);
            }
            Ok(
                Decision::Epoch { .. }
                | Decision::Change { .. }
                | Decision::End { .. }
                | Decision::Swap { .. },
            )
            | Err(_) => {}
        }
        Ok(())
    }

    /// All who may take over have the state, unless they have been killed since it was sent.
    pub(super) fn check_copies(&self, epoch: u64, blocks: u64) -> Result<(), CouncilViolation> {
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

    // The end.

    pub(super) fn check_progress(&mut self) -> Result<(), CouncilViolation> {
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
        let key = decided.map_or((0, 0), |d| (d.border_epoch, d.border.iterations));
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
