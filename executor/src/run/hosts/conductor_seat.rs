//! The conductor's seat in the council: it opens epochs, has borders decided, and lets the sinks give out what lies before a
//! decided border. It acts within its lease only.
//!
//! What is decided is read from the voter's own state, not from the answers to proposals: a proposal may be lost with its leader,
//! and is made again until what it says is decided, or another has conducted since.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;
use zbmd_council::VoterId;
use zbmd_council::decision::{Decided, Decision, RunBorder};
use zbmd_council::member::{Member, MemberEvent};
use zbmd_ir::State;
use zbmd_wire::connection::Credentials;

use super::seat::{Mandate, SeatTimes, start_member};
use crate::error::EngineError;
use crate::options::{BorderState, CouncilSeat};
use crate::run::event::WorkerEvent;
use crate::run::inbox::EventSender;
use crate::transport::release_gate::ReleaseGate;

/// A council has so long to elect the conductor of a run that begins.
const ELECTION_LIMIT: Duration = Duration::from_secs(10);
/// A proposal of which nothing is known after so many ticks is made again.
const REPEAT_TICKS: u32 = 8;

/// The seat of a conductor.
pub(crate) struct ConductorSeat {
    member: Member,
    own: VoterId,
    voter_count: usize,
    times: SeatTimes,
    /// Told whenever something may have been decided, or the lease has begun.
    news: Receiver<()>,
    gate: Arc<ReleaseGate>,
    run: u128,
    mandate: Mandate,
    /// The border that everything is given out up to.
    released: BorderState,
    /// A later one that waits to be decided, and to be released.
    pending: Option<Pending>,
    patience: Patience,
}

struct Pending {
    border: RunBorder,
    state: BorderState,
    is_decided: bool,
    proposed: Instant,
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
    /// Takes the seat for a run that begins with this state, and waits until it has been elected.
    ///
    /// # Errors
    /// A seat that makes no sense, or nobody who elects this one.
    pub(crate) fn take(
        seat: &CouncilSeat,
        credentials: &Credentials,
        events: EventSender<WorkerEvent>,
        gate: Arc<ReleaseGate>,
        begin: BorderState,
    ) -> Result<Self, EngineError> {
        let error = |why| EngineError::Council { why };
        if seat.witnesses.contains(&seat.own) {
            return Err(error(format!(
                "voter {} is a witness, which never conducts: take one that is none for the run",
                seat.own
            )));
        }
        let (send_news, news) = sync_channel(1);
        let listener = move |event| {
            // Whoever has not taken the last news yet will see these too.
            let _ = send_news.try_send(());
            if matches!(event, MemberEvent::Leads { .. } | MemberEvent::Applied(_)) {
                events.send(WorkerEvent::Council);
            }
        };
        let (member, times) = start_member(seat, credentials, listener).map_err(error)?;
        let own = VoterId(seat.own);
        let mut seat = Self {
            member,
            own,
            voter_count: seat.voters.len(),
            times,
            news,
            gate,
            run: zbmd_wire::handshake::new_run().map_err(EngineError::Thread)?,
            mandate: Mandate {
                term: 0,
                epoch: 0,
                conductor: own,
            },
            released: begin,
            pending: None,
            patience: Patience::new(),
        };
        seat.wait_for_election().map_err(error)?;
        Ok(seat)
    }

    fn wait_for_election(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while !self.may_act() {
            if begun.elapsed() > ELECTION_LIMIT {
                return Err(format!(
                    "{} has not been elected within {} s: {} of its {} voters must run, and no other conductor",
                    self.own,
                    ELECTION_LIMIT.as_secs(),
                    self.voter_count / 2 + 1,
                    self.voter_count
                ));
            }
            self.wait();
        }
        Ok(())
    }

    /// Whether it may act now, as the conductor within its lease.
    fn may_act(&self) -> bool {
        self.member.acts_until_ns().is_some()
    }

    /// Waits until there may be news, a tick at most.
    fn wait(&self) {
        let _ = self.news.recv_timeout(self.times.tick);
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
        self.times.tick
    }

    /// Whether a border waits to be decided.
    pub(crate) fn is_waiting(&self) -> bool {
        self.pending.is_some()
    }

    /// Opens an epoch on these hosts, by their number in the machine; waits until it is decided.
    ///
    /// # Errors
    /// This run may conduct no more, and why.
    pub(crate) fn open_epoch(&mut self, hosts: &BTreeSet<u32>) -> Result<(), String> {
        let last_epoch = self.member.decided().epoch;
        let mut proposed: Option<Instant> = None;
        loop {
            self.step()?;
            let decided = self.member.decided();
            if decided.epoch > last_epoch && self.is_own(&decided) {
                self.mandate = Mandate {
                    term: decided.term,
                    epoch: decided.epoch,
                    conductor: self.own,
                };
                return Ok(());
            }
            let is_due = proposed.is_none_or(|at| at.elapsed() > self.repeat_after());
            if is_due && self.may_act() {
                self.member.submit(Decision::Epoch {
                    run: self.run,
                    conductor: self.own,
                    hosts: hosts.clone(),
                });
                proposed = Some(Instant::now());
            }
            self.wait();
        }
    }

    /// Proposes a border of the run, in the place of an earlier one that has not been decided.
    pub(crate) fn propose(&mut self, state: BorderState) {
        let latest = self.pending.as_ref().map_or(&self.released, |p| &p.state);
        if state.state.iterations <= latest.state.iterations {
            return;
        }
        let border = RunBorder {
            iterations: state.state.iterations,
            checksum: checksum(&state.state),
            outputs: state.emitted.clone(),
        };
        self.pending = Some(Pending {
            border,
            state,
            is_decided: false,
            proposed: Instant::now(),
        });
        self.submit_pending();
    }

    fn submit_pending(&mut self) {
        if !self.may_act() {
            return;
        }
        if let Some(pending) = &mut self.pending {
            pending.proposed = Instant::now();
            self.member.submit(Decision::Border {
                epoch: self.mandate.epoch,
                border: pending.border.clone(),
            });
        }
    }

    /// Takes in what has been decided, and releases it.
    ///
    /// # Errors
    /// This run may conduct no more, and why.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        let decided = self.member.decided();
        if decided.epoch > self.mandate.epoch && self.mandate.epoch > 0 && !self.is_own(&decided) {
            return Err(self.deposed_text(&decided));
        }
        let may_act = self.may_act();
        self.patience.look(may_act, self.times);
        if self.patience.silent > self.times.grace {
            return Err(self.silence_text());
        }

        let Some(pending) = &mut self.pending else {
            return Ok(());
        };
        let is_reached = decided.border.iterations >= pending.border.iterations;
        pending.is_decided = is_reached && decided.run == self.run;
        let is_lost = !pending.is_decided && pending.proposed.elapsed() > self.repeat_after();
        if is_lost {
            self.submit_pending();
        } else if may_act && let Some(pending) = self.pending.take_if(|pending| pending.is_decided)
        {
            self.gate.release(&pending.border.outputs);
            self.released = pending.state;
        }
        Ok(())
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
            self.wait();
        }
    }

    fn repeat_after(&self) -> Duration {
        self.times.tick * REPEAT_TICKS
    }

    /// Whether the epoch that was opened last is this conductor's.
    fn is_own(&self, decided: &Decided) -> bool {
        decided.run == self.run && decided.conductor == Some(self.own)
    }

    fn deposed_text(&self, decided: &Decided) -> String {
        let conductor = decided.conductor.unwrap_or(self.own);
        let what = match decided.run == self.run {
            true => "it",
            false => "another run",
        };
        format!(
            "this run may conduct no more: {conductor} has conducted {what} since term {}",
            decided.term
        )
    }

    fn silence_text(&self) -> String {
        format!(
            "this run may conduct no more: {} has not had the answers of {} of the council's {} voters for {} ms",
            self.own,
            self.voter_count / 2 + 1,
            self.voter_count,
            self.times.grace.as_millis()
        )
    }
}

/// Of a state at a border: alike wherever the run is computed.
fn checksum(state: &State) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(&state.iterations.to_le_bytes());
    for (_, tokens) in &state.consumed {
        sum.update(&tokens.to_le_bytes());
    }
    for tokens in &state.channels {
        sum.update(tokens);
    }
    sum.digest()
}
