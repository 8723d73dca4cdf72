//! What a voter does as the conductor: it opens an epoch, has borders decided that others have a copy of, gives out what belongs
//! to them, and gives agents their orders.

use zbmd_council::VoterId;
use zbmd_council::decision::{Decision, Effect, RunBorder};

use super::bugs::CouncilBug;
use super::voter::{BorderCopy, Conducting, Stage};
use super::watch::{CouncilViolation, checksum};
use super::world::{CouncilEvent, Happening, World};

/// Ticks that a conductor waits for a copy before it goes on without that voter.
const COPY_TICKS: u64 = 12;
/// Steps between two tries to let somebody join.
const JOIN_STEPS: u64 = 20;

impl World {
    /// Until when a voter may act, by its own clock; `None` if it may not.
    pub(super) fn acts_until(&self, at: usize) -> Option<u64> {
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

    pub(super) fn check_conductors(&self) -> Result<(), CouncilViolation> {
        let mut acting = (0..self.voters.len())
            .filter(|at| !self.voters[*at].is_stopped && self.acts_until(*at).is_some())
            .map(|at| self.voters[at].settings.own);
        match (acting.next(), acting.next()) {
            (Some(one), Some(other)) => Err(CouncilViolation::TwoConductors { one, other }),
            _ => Ok(()),
        }
    }

    pub(super) fn propose(
        &mut self,
        at: usize,
        decision: &Decision,
    ) -> Result<Option<u64>, CouncilViolation> {
        let clock_ns = self.voters[at].clock(self.now_ns);
        let Some(node) = &mut self.voters[at].node else {
            return Ok(None);
        };
        let index = node.propose(clock_ns, decision).ok();
        self.poll(at)?;
        Ok(index)
    }

    pub(super) fn step(&mut self, at: usize) -> Result<(), CouncilViolation> {
        if self.bug != Some(CouncilBug::NeverStepsAside) {
            self.voters[at].note_ability();
        }
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
                    (true, Some(holder)) => {
                        let holds = copy.blocks;
                        self.decide_on(at, None, &Decision::Join { holder, holds })
                    }
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

    pub(super) fn set_stage(&mut self, at: usize, stage: Stage) {
        if let Some(conducting) = &mut self.voters[at].conducting {
            conducting.stage = stage;
        }
    }

    /// Opens an epoch, once it has the state of the last border.
    pub(super) fn take_over(&mut self, at: usize, term: u64) -> Result<(), CouncilViolation> {
        let Some(node) = &self.voters[at].node else {
            return Ok(());
        };
        if !self.voters[at].holds_border(node.decided()) {
            // Its node steps aside for one that does.
            return Ok(());
        }
        let decision = Decision::Epoch {
            run: 1,
            conductor: self.voters[at].settings.own,
            hosts: (0..self.agents.len() as u32).collect(),
            bundle: 1,
            taken_over: None,
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

    /// Computes some blocks, and sends their state to those who may take over.
    pub(super) fn begin_border(&mut self, at: usize) -> Result<(), CouncilViolation> {
        let Some(node) = &self.voters[at].node else {
            return Ok(());
        };
        let decided = node.decided().clone();
        let own = self.voters[at].settings.own;
        let is_candidate =
            |voter: &VoterId| !self.scenario.witnesses.contains(voter) && *voter != own;
        let mut candidates = self.scenario.voters.iter().copied().filter(is_candidate);
        let newcomer = candidates.find(|voter| !decided.holders.contains(voter));
        let last_key = (decided.border_epoch, decided.border.iterations);
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

        let blocks = decided.border.iterations + self.rng.u64(1..4);
        let copy = BorderCopy {
            epoch,
            from: decided.border.iterations,
            blocks,
            sum: checksum(blocks),
            made_ns: self.now_ns,
        };
        let holders: Vec<VoterId> = decided.holders.into_iter().filter(|v| *v != own).collect();
        self.copy_to(at, copy, &holders, None)
    }

    pub(super) fn copy_to(
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

    pub(super) fn copied(&mut self, at: usize, kept: BorderCopy, from: VoterId) {
        if let Some(conducting) = &mut self.voters[at].conducting
            && let Stage::Copying { copy, waiting, .. } = &mut conducting.stage
            && *copy == kept
        {
            waiting.remove(&from);
        }
    }

    pub(super) fn propose_border(
        &mut self,
        at: usize,
        copy: BorderCopy,
    ) -> Result<(), CouncilViolation> {
        let border = RunBorder {
            iterations: copy.blocks,
            given_out: copy.from,
            changes_in_state: 0,
            checksum: copy.sum,
            outputs: vec![copy.blocks],
        };
        let epoch = copy.epoch;
        let node = self.voters[at].node.as_ref();
        let decision = Decision::Border {
            epoch,
            border,
            held_by: node.map_or_else(Default::default, |node| node.decided().holders.clone()),
        };
        self.decide_on(at, Some(copy), &decision)?;
        if self.bug == Some(CouncilBug::CommitTooEarly) {
            return self.release_soon(at, copy);
        }
        Ok(())
    }

    pub(super) fn decide_on(
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
    pub(super) fn conductor_applied(
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
    pub(super) fn begin_epoch(&mut self, at: usize) -> Result<(), CouncilViolation> {
        let Some(node) = &self.voters[at].node else {
            return Ok(());
        };
        let decided = node.decided();
        let key = (decided.border_epoch, decided.border.iterations);
        self.set_stage(at, Stage::Idle);
        match self.voters[at].copies.get(&key).copied() {
            Some(copy) if self.bug != Some(CouncilBug::ReleaseForgotten) => {
                self.release_soon(at, copy)
            }
            None if key.1 > 0 => Err(CouncilViolation::NoState { blocks: key.1 }),
            _ => Ok(()),
        }
    }

    pub(super) fn release_soon(
        &mut self,
        at: usize,
        copy: BorderCopy,
    ) -> Result<(), CouncilViolation> {
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
        self.schedule_at(at, ns, release);
        Ok(())
    }

    pub(super) fn release(
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

    pub(super) fn order_agents(&mut self, term: u64, epoch: u64) {
        for agent in 0..self.agents.len() {
            // Some come very late.
            let is_late = self.rng.u32(0..6) == 0;
            let late_ns = self.rng.u64(0..40 * self.scenario.tick_ns);
            let ns = self.network.delay(&mut self.rng) + if is_late { late_ns } else { 0 };
            self.after(ns, Happening::Order { agent, term, epoch });
        }
    }

    pub(super) fn order(
        &mut self,
        agent: usize,
        term: u64,
        epoch: u64,
    ) -> Result<(), CouncilViolation> {
        let is_obeyed =
            (term, epoch) >= self.agents[agent] || self.bug == Some(CouncilBug::AgentObeysAnyone);
        if !is_obeyed {
            return Ok(());
        }
        self.agents[agent] = (term, epoch);
        self.watch.begin_at_agent(agent, epoch)
    }
}
