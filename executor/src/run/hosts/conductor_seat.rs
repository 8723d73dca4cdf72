//! The conductor's seat in the council: it opens epochs, has borders decided, and lets the sinks give out what lies before a
//! decided border. It acts within its lease only.
//!
//! What is decided is read from the voter's own state, not from the answers to proposals: a proposal may be lost with its leader,
//! and is made again until what it says is decided, or another has conducted since.

mod successors;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zbmd_council::VoterId;
use zbmd_council::decision::{Decided, Decision, RunBorder};
use zbmd_wire::connection::Credentials;

use super::border_copy::checksum;
use super::change_journal::ChangeJournal;
use super::holders::Holders;
use super::input_log::InputLog;
use super::seat::{Candidate, LAST_STATE_LIMIT, Mandate, SeatTimes};
use super::standby::Takeover;
use crate::error::EngineError;
use crate::options::{BorderState, CouncilSeat, Hosts};
use crate::program::LoadedModes;
use crate::run::event::WorkerEvent;
use crate::run::inbox::EventSender;
use crate::transport::release_gate::ReleaseGate;

/// A council has so long to elect the conductor of a run that begins.
const ELECTION_LIMIT: Duration = Duration::from_secs(10);
/// A proposal of which nothing is known after so many ticks is made again.
const REPEAT_TICKS: u32 = 8;
/// At the end of a run, or of one of its programs, whoever pulls from its sinks has so long to come back for more, which is looked
/// for so often.
const TAKE_LIMIT: Duration = Duration::from_secs(2);
const TAKE_LOOK: Duration = Duration::from_millis(1);

/// Borders that are kept for whoever takes over, at most, while somebody does not pull from a sink.
const MAX_UNTAKEN: usize = 32;

/// The seat of a conductor.
pub(crate) struct ConductorSeat {
    candidate: Candidate,
    gate: Arc<ReleaseGate>,
    modes: Arc<LoadedModes>,
    /// The number of their bundle.
    bundle: u64,
    run: u128,
    /// For each sink, the tokens that were given out before this process took over.
    outputs_before: Vec<u64>,
    /// Changes of live parameters that the run had made then.
    changes_before: u64,
    mandate: Mandate,
    /// Where the voters are that could take over, and how connections to them are protected.
    others: BTreeMap<VoterId, SocketAddr>,
    credentials: Credentials,
    /// Those voters, if there are some.
    holders: Option<Holders>,
    holders_told: Instant,
    /// Those of them that hold the last border, as was decided.
    standing_by: BTreeSet<VoterId>,
    /// Tokens of sources that are mirrored, if there are some and somebody could take over.
    inputs: Option<Arc<InputLog>>,
    /// The border that everything is given out up to.
    released: BorderState,
    /// Borders that were released, from the last one whose tokens have been taken on.
    released_before: VecDeque<ReleasedBorder>,
    /// Of a program with live parameters.
    changes: Option<SeatChanges>,
    /// A later one that waits to be decided, and to be released.
    pending: Option<Pending>,
    patience: Patience,
    /// Another has conducted the run before, and this one has opened no epoch yet.
    takes_over: bool,
}

struct ReleasedBorder {
    iterations: u64,
    /// Tokens that each sink was given up to there.
    emitted: Vec<u64>,
    /// Changes of live parameters that its state has, of those that were made in this process.
    changes_made: u64,
}

impl ReleasedBorder {
    fn of(border: &BorderState) -> Self {
        Self {
            iterations: border.state.iterations,
            emitted: border.emitted.clone(),
            changes_made: border.changes_made,
        }
    }
}

/// Changes of live parameters that are to be decided.
struct SeatChanges {
    journal: Arc<ChangeJournal>,
    /// Those before this one have been proposed in this epoch, some at this time for the first time.
    proposed: u64,
    proposed_at: Instant,
}

struct Pending {
    border: RunBorder,
    state: BorderState,
    is_decided: bool,
    /// Since when it waits for those that are to hold it.
    made: Instant,
    proposed: Option<Instant>,
}

/// How long this voter could not act. A time in which the whole process stood still does not count: nobody could answer it.
struct Patience {
    silent: Duration,
    looked: Instant,
}

impl Patience {
    fn new() -> Self {
        Self {
            silent: Duration::ZERO,
            looked: Instant::now(),
        }
    }

    fn look(&mut self, may_act: bool, times: SeatTimes) {
        let now = Instant::now();
        let passed = now.duration_since(self.looked).min(times.lease);
        self.looked = now;
        self.silent = match may_act {
            true => Duration::ZERO,
            false => self.silent + passed,
        };
    }
}

impl ConductorSeat {
    /// Takes the seat for a run that begins with this state, or is taken over there, and waits until it has been elected.
    ///
    /// # Errors
    /// A seat that makes no sense, or nobody who elects this one.
    pub(crate) fn take(
        (hosts, seat): (&Hosts, &CouncilSeat),
        modes: &Arc<LoadedModes>,
        events: EventSender<WorkerEvent>,
        gate: Arc<ReleaseGate>,
        begin: BorderState,
        takeover: Option<Takeover>,
    ) -> Result<Self, EngineError> {
        let error = |why| EngineError::Council { why };
        let takes_over = takeover.is_some();
        let (candidate, run, outputs_before, changes_before) = match takeover {
            Some(takeover) => (
                takeover.candidate,
                takeover.run,
                takeover.outputs,
                takeover.changes_made,
            ),
            None => (
                Candidate::start(seat, &hosts.credentials, None).map_err(error)?,
                zbmd_wire::handshake::new_run().map_err(EngineError::Thread)?,
                vec![0; begin.emitted.len()],
                0,
            ),
        };
        let has_live = !modes.first().live.parameters.is_empty();
        let changes = has_live.then(|| SeatChanges {
            journal: Arc::new(ChangeJournal::new(candidate.waker())),
            proposed: 0,
            proposed_at: Instant::now(),
        });

        candidate.tell(events);
        gate.hold_to(candidate.member.lease());
        let mandate = Mandate {
            term: 0,
            epoch: 0,
            conductor: candidate.own,
        };
        let voters = (1..).zip(&seat.voters);
        let others =
            voters.filter(|(voter, _)| *voter != seat.own && !seat.witnesses.contains(voter));
        let mut taken = Self {
            others: others
                .map(|(voter, address)| (VoterId(voter), *address))
                .collect(),
            credentials: hosts.credentials.clone(),
            holders: None,
            inputs: None,
            holders_told: Instant::now(),
            standing_by: BTreeSet::new(),
            released_before: [ReleasedBorder::of(&begin)].into(),
            released: begin,
            changes,
            takes_over,
            candidate,
            gate,
            modes: Arc::clone(modes),
            bundle: 0,
            run,
            outputs_before,
            changes_before,
            mandate,
            pending: None,
            patience: Patience::new(),
        };

        if !taken.others.is_empty() {
            taken.check_beginning()?;
            taken.inputs = taken.mirror(seat)?;
        }
        taken.wait_for_election().map_err(error)?;
        Ok(taken)
    }

    /// Tokens that each sink is given from the beginning of the run up to a border.
    fn outputs_until(&self, border: &BorderState) -> Vec<u64> {
        let before = self.outputs_before.iter();
        let sums = before.zip(&border.emitted);
        sums.map(|(before, emitted)| before + emitted).collect()
    }

    /// Waits until everything that was released has been taken from the sinks, for a while, where somebody could take over.
    fn wait_until_taken(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while self.holders.is_some()
            && !self.gate.has_taken(&self.released.emitted)
            && !self.gate.is_closed()
            && begun.elapsed() < TAKE_LIMIT
        {
            self.step()?;
            std::thread::sleep(TAKE_LOOK);
        }
        Ok(())
    }

    fn wait_for_election(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while !self.candidate.may_act() {
            if begun.elapsed() > ELECTION_LIMIT {
                return Err(format!(
                    "{} has not been elected within {} s: {} of its {} voters must run, with the same --council and --council-lease, and no other conductor",
                    self.candidate.own,
                    ELECTION_LIMIT.as_secs(),
                    self.majority(),
                    self.candidate.voter_count
                ));
            }
            self.candidate.wait();
        }
        Ok(())
    }

    fn majority(&self) -> usize {
        self.candidate.voter_count / 2 + 1
    }

    /// The epoch at work, in whose name agents are given orders.
    pub(super) fn mandate(&self) -> Mandate {
        self.mandate
    }

    /// The border up to which everything is given out.
    pub(crate) fn released(&self) -> &BorderState {
        &self.released
    }

    /// How soon it must be asked to [`Self::step`] again.
    pub(crate) fn tick(&self) -> Duration {
        self.candidate.times.tick
    }

    /// Whether a border waits to be decided.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether a border waits to be decided, or the outputs of too many have not been taken.
    pub(crate) fn is_waiting(&mut self) -> bool {
        self.given_out();
        let is_behind = self.holders.is_some() && self.released_before.len() > MAX_UNTAKEN;
        self.pending.is_some() || is_behind
    }

    /// Opens an epoch on these hosts, by their number in the machine; waits until it is decided.
    ///
    /// # Errors
    /// This run may conduct no more, and why.
    pub(crate) fn open_epoch(&mut self, hosts: &BTreeSet<u32>) -> Result<(), String> {
        let last_epoch = self.candidate.member.decided().epoch;
        let proposal = Decision::Epoch {
            run: self.run,
            conductor: self.candidate.own,
            hosts: hosts.clone(),
            bundle: self.bundle,
            taken_over: self.takes_over.then_some(self.changes_before),
        };
        let decided = self.decide(&proposal, |seat, decided| {
            decided.epoch > last_epoch && seat.is_own(decided)
        })?;

        self.mandate = Mandate {
            term: decided.term,
            epoch: decided.epoch,
            conductor: self.candidate.own,
        };
        self.takes_over = false;
        if let Some(changes) = &mut self.changes {
            // What was proposed in an earlier epoch may not hold.
            changes.proposed = 0;
        }
        Ok(())
    }

    /// Proposes something within the lease, again and again until it holds, and takes in what else is decided meanwhile; what is
    /// decided then.
    fn decide(
        &mut self,
        proposal: &Decision,
        holds: impl Fn(&Self, &Decided) -> bool,
    ) -> Result<Decided, String> {
        let mut proposed: Option<Instant> = None;
        loop {
            self.step()?;
            let decided = self.candidate.member.decided();
            if holds(self, &decided) {
                return Ok(decided);
            }

            let is_due = proposed.is_none_or(|at| at.elapsed() > self.repeat_after());
            if is_due && self.candidate.may_act() {
                self.candidate.member.submit(proposal.clone());
                proposed = Some(Instant::now());
            }
            self.candidate.wait();
        }
    }

    /// Proposes a border of the run, in the place of an earlier one that has not been decided.
    pub(crate) fn propose(&mut self, state: BorderState) {
        let latest = self.pending.as_ref().map_or(&self.released, |p| &p.state);
        if state.state.iterations <= latest.state.iterations {
            return;
        }
        if let Some(holders) = &self.holders {
            holders.give(self.copy_of(&state, &self.modes, self.bundle));
        }
        let border = RunBorder {
            iterations: state.state.iterations,
            given_out: 0,
            changes_in_state: 0,
            checksum: checksum(&state.state),
            outputs: self.outputs_until(&state),
        };
        self.pending = Some(Pending {
            border,
            state,
            is_decided: false,
            made: Instant::now(),
            proposed: None,
        });
        self.submit_pending();
    }

    /// Proposes the pending border once all that are connected hold it, or have not answered for a lease.
    fn submit_pending(&mut self) {
        let (given_out, changes_in_state) = self.given_out();
        let Some(pending) = &mut self.pending else {
            return;
        };
        // Changes that its state does not have take effect behind it.
        if let Some(changes) = &self.changes
            && !changes.journal.are_decided(pending.state.changes_made)
        {
            return;
        }
        if let Some(holders) = &self.holders
            && !holders.hold(pending.border.iterations)
        {
            if pending.made.elapsed() < self.candidate.times.lease {
                return;
            }
            holders.leave_behind(pending.border.iterations);
        }
        if !self.candidate.may_act() {
            return;
        }
        pending.proposed = Some(Instant::now());
        pending.border.given_out = given_out;
        pending.border.changes_in_state = changes_in_state;
        let iterations = pending.border.iterations;
        let holders = self.holders.as_ref();
        self.candidate.member.submit(Decision::Border {
            epoch: self.mandate.epoch,
            border: pending.border.clone(),
            held_by: holders.map_or_else(BTreeSet::new, |holders| holders.holding(iterations)),
        });
    }

    /// Iterations up to the last border whose outputs have all been taken, and the changes of the run that its state has.
    fn given_out(&mut self) -> (u64, u64) {
        while let Some(next) = self.released_before.get(1)
            && self.gate.has_taken(&next.emitted)
        {
            self.released_before.pop_front();
        }
        self.released_before.front().map_or((0, 0), |border| {
            let changes_in_state = self.changes_before + border.changes_made;
            (border.iterations, changes_in_state)
        })
    }

    /// Takes in what has been decided, and releases it.
    ///
    /// # Errors
    /// This run may conduct no more, and why.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        let decided = self.candidate.member.decided();
        if decided.epoch > self.mandate.epoch && self.mandate.epoch > 0 && !self.is_own(&decided) {
            return Err(self.deposed_text(&decided));
        }
        let may_act = self.candidate.may_act();
        self.patience.look(may_act, self.candidate.times);
        let limit = self.silence_limit(&decided);
        if self.patience.silent > limit {
            return Err(self.silence_text(limit));
        }
        self.note_holders(&decided);
        self.standing_by.clone_from(&decided.holders);
        self.follow_changes(&decided, may_act);

        let repeat_after = self.repeat_after();
        let Some(pending) = &mut self.pending else {
            return Ok(());
        };
        let is_reached = decided.border.iterations >= pending.border.iterations;
        pending.is_decided = is_reached && decided.run == self.run;
        let is_due = pending
            .proposed
            .is_none_or(|at| at.elapsed() > repeat_after);
        if !pending.is_decided && is_due {
            self.submit_pending();
        } else if may_act && let Some(pending) = self.pending.take_if(|pending| pending.is_decided)
        {
            self.gate.release(&pending.state.emitted);
            self.released_before
                .push_back(ReleasedBorder::of(&pending.state));
            self.released = pending.state;
        }
        Ok(())
    }

    /// How long it may be without the answers of a majority. Where another has the state, that one may go on with the run.
    fn silence_limit(&self, decided: &Decided) -> Duration {
        let is_last_holder = self.holders.is_some() && decided.holders.is_empty();
        match is_last_holder && self.is_own(decided) {
            true => LAST_STATE_LIMIT,
            false => self.candidate.times.grace,
        }
    }

    /// Has changes of live parameters decided. Nobody is told of one that another conductor may not know of.
    fn follow_changes(&mut self, decided: &Decided, may_act: bool) {
        let epoch = self.mandate.epoch;
        let is_at_work = epoch > 0 && decided.epoch == epoch && may_act;
        let repeat_after = self.repeat_after();
        let Some(changes) = self.changes.as_mut().filter(|_| is_at_work) else {
            return;
        };
        let own = decided.changes_made.saturating_sub(self.changes_before);
        changes.journal.note_decided(own, decided.change_bytes());

        // The first that are not decided may be lost, with their leader or without.
        if changes.proposed_at.elapsed() > repeat_after {
            changes.proposed = own;
        }
        let made = changes
            .journal
            .submit_from(changes.proposed, |number, change| {
                changes.proposed_at = Instant::now();
                self.candidate.member.submit(Decision::Change {
                    epoch,
                    number: self.changes_before + number,
                    change: change.to_vec(),
                });
            });
        changes.proposed = made;
    }

    /// Where changes of live parameters are entered, if there can be any.
    pub(crate) fn journal(&self) -> Option<Arc<ChangeJournal>> {
        let changes = self.changes.as_ref()?;
        Some(Arc::clone(&changes.journal))
    }

    /// Waits until nothing is pending.
    ///
    /// # Errors
    /// This run may conduct no more, and why.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        loop {
            self.step()?;
            if self.pending.is_none() {
                return Ok(());
            }
            self.candidate.wait();
        }
    }

    /// Has the end of the run decided, once everything that was released has been taken from the sinks: nobody takes it over then.
    ///
    /// # Errors
    /// This run may conduct no more, and why.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        // Whoever waits for more is told that there is none, and comes back for that.
        self.gate.end();
        self.wait_until_taken()?;
        let proposal = Decision::End { run: self.run };
        self.decide(&proposal, |_, decided| decided.is_over)?;

        // Nobody else gives out the rest, however long it takes.
        self.gate.set_free();
        Ok(())
    }

    /// The run ends before its end. Where nobody could go on with it, the rest of what was released is given out, however long it
    /// takes.
    pub(crate) fn leave(&self) {
        if self.holders.is_none() {
            self.gate.set_free();
        }
    }

    fn repeat_after(&self) -> Duration {
        self.candidate.times.tick * REPEAT_TICKS
    }

    /// Whether the epoch that was opened last is this conductor's.
    fn is_own(&self, decided: &Decided) -> bool {
        decided.run == self.run && decided.conductor == Some(self.candidate.own)
    }

    fn deposed_text(&self, decided: &Decided) -> String {
        let conductor = decided.conductor.unwrap_or(self.candidate.own);
        let what = match decided.run == self.run {
            true => "it",
            false => "another run",
        };
        format!(
            "this run may conduct no more: {conductor} has conducted {what} since term {}",
            decided.term
        )
    }

    fn silence_text(&self, limit: Duration) -> String {
        format!(
            "this run may conduct no more: {} has not had the answers of {} of the council's {} voters for {} ms",
            self.candidate.own,
            self.majority(),
            self.candidate.voter_count,
            limit.as_millis()
        )
    }
}
