//! Processes of voters that start, are killed and stand still, and all other faults.

use zbmd_council::VoterId;
use zbmd_council::node::Node;

use super::bugs::CouncilBug;
use super::scenario::{CouncilFault, SplitWay, US};
use super::watch::CouncilViolation;
use super::world::{CouncilEvent, Happening, World};

impl World {
    pub(super) fn start(&mut self, at: usize) -> Result<(), CouncilViolation> {
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
            self.schedule_at(at, 1, CouncilEvent::Step);
        }
        Ok(())
    }

    pub(super) fn tick_later(&mut self, at: usize) {
        let voter = &self.voters[at];
        let Some(node) = &voter.node else { return };
        // The system wakes it a little late.
        let late_ns = self.rng.u64(0..50 * US);
        let wait_ns = voter.wait_ns(node.deadline_ns(), self.now_ns) + late_ns;
        self.schedule_at(at, wait_ns, CouncilEvent::Tick);
    }

    pub(super) fn kill(&mut self, at: usize, down_ns: u64) {
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

    pub(super) fn stop(&mut self, at: usize, still_ns: u64) {
        let voter = &mut self.voters[at];
        if voter.node.is_none() || voter.is_stopped {
            return;
        }
        voter.is_stopped = true;
        self.summary.stops += 1;
        self.after(still_ns, Happening::Continue(at));
    }

    pub(super) fn fault(&mut self, fault: CouncilFault) {
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
            CouncilFault::Split { side, way, cut_ns } => {
                self.summary.cuts += 1;
                self.network.split(side, way, now_ns + cut_ns);
            }
            CouncilFault::Lossy {
                per_mille,
                lossy_ns,
            } => self.network.make_lossy(per_mille, now_ns + lossy_ns),
        }
    }

    /// One voter does not hear the conductor any more; then all others are killed and started again, and hear nothing of it
    /// either.
    pub(super) fn strand(&mut self, at: usize, cut_ns: u64, later_ns: u64, down_ns: u64) {
        let count = self.voters.len();
        let deaf = (at + self.rng.usize(1..count)) % count;
        self.network.cut(at, deaf, self.now_ns + cut_ns);
        for other in (0..count).filter(|other| *other != at && *other != deaf) {
            self.after(later_ns, Happening::Kill(other, down_ns));
        }
        let split = CouncilFault::Split {
            side: 1 << at,
            way: SplitWay::Both,
            cut_ns: 12 * self.scenario.tick_ns,
        };
        self.after(later_ns, Happening::Fault(split));
    }

    pub(super) fn make_peace(&mut self) {
        self.network.heal();
        self.kill_at_vote = None;
        for at in 0..self.voters.len() {
            self.after(0, Happening::Start(at));
            self.after(0, Happening::Continue(at));
        }
        self.border_at_peace = Some(self.watch.border);
        self.say(|| "the faults are over".to_owned());
    }
}
