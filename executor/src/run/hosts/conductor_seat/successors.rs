//! What the seat does for those that could take over: they are given the program, the state of each border and what is mirrored, and
//! it is decided who holds that. The run goes over to another program only when they can.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use zbmd_council::decision::{Decided, Decision};
use zbmd_ir::state;

use super::ConductorSeat;
use crate::error::EngineError;
use crate::observe::live::CouncilProgress;
use crate::options::{BorderState, CouncilSeat};
use crate::program::LoadedModes;
use crate::run::epochs::consumed_tokens;
use crate::run::hosts::border_copy::BorderCopy;
use crate::run::hosts::bundle_offer::BundleOffer;
use crate::run::hosts::holders::{HolderProgram, Holders};
use crate::run::hosts::input_log::InputLog;

impl ConductorSeat {
    /// Whether others could go on with a run that begins here.
    pub(super) fn check_beginning(&self) -> Result<(), EngineError> {
        if self.takes_over || self.released.state.iterations == 0 {
            return Ok(());
        }
        let why = "a run that goes on from a saved state cannot be taken over yet: make all voters but this one witnesses, or begin anew";
        Err(EngineError::Council {
            why: why.to_owned(),
        })
    }

    /// Gives this program, which is the one at work, and the state of each border to the voters that could take over, if there are
    /// some, from the last border on.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn begin_to_copy(&mut self, program: HolderProgram) -> io::Result<()> {
        self.bundle = program.bundle.number();
        if !self.others.is_empty() {
            self.holders = Some(self.start_holders(program, &self.modes, &self.released)?);
        }
        Ok(())
    }

    /// Gives this program, and its state at a border, to the voters that could take over.
    fn start_holders(
        &self,
        program: HolderProgram,
        modes: &LoadedModes,
        begin: &BorderState,
    ) -> io::Result<Holders> {
        let copy = self.copy_of(begin, modes, program.bundle.number());
        let holders = Holders::start(
            self.candidate.own,
            &self.others,
            (self.run, program),
            &self.credentials,
            self.candidate.waker(),
            self.inputs.clone(),
        )?;
        holders.give(copy);
        Ok(holders)
    }

    /// Where tokens of sources that are mirrored are kept, if there are any.
    pub(super) fn mirror(&self, seat: &CouncilSeat) -> Result<Option<Arc<InputLog>>, EngineError> {
        let graph = &self.modes.first().program.graph;
        let is_source = |name: &&String| graph.sources().any(|(_, actor)| actor.name == **name);
        if let Some(unknown) = seat.mirrored.iter().find(|name| !is_source(name)) {
            let why = format!("`{unknown}` is to be mirrored, and is no source of the model");
            return Err(EngineError::Council { why });
        }
        if seat.mirrored.is_empty() {
            return Ok(None);
        }

        let sources = graph.sources().zip(&self.released.state.consumed);
        let logged = sources.map(|((_, actor), (_, consumed))| {
            let is_mirrored = seat.mirrored.contains(&actor.name);
            (is_mirrored, actor.outputs[0].token.bytes(), *consumed)
        });
        Ok(Some(Arc::new(InputLog::new(logged))))
    }

    /// Where the tokens are kept that sources are given, if any are.
    pub(crate) fn inputs(&self) -> Option<Arc<InputLog>> {
        self.inputs.clone()
    }

    pub(super) fn copy_of(
        &self,
        border: &BorderState,
        modes: &LoadedModes,
        bundle: u64,
    ) -> BorderCopy {
        let graph = &modes.first().program.graph;
        BorderCopy {
            bundle,
            iterations: border.state.iterations,
            outputs: self.outputs_until(border),
            consumed: consumed_tokens(&border.state),
            state: state::encode(&border.state, graph, None),
        }
    }

    /// Has those that could take over load another program. What has come of it, once all that are there have said it.
    pub(crate) fn load(&self, offer: &BundleOffer) -> Option<Result<(), String>> {
        match &self.holders {
            Some(holders) => holders.load(&offer.bundle),
            None => Some(Ok(())),
        }
    }

    /// Has it decided that the run goes on with another program, of this bundle, from the border on at which the one before has ended:
    /// `begin`, as the new one has it. Those that stand by hold that first. Until it is decided they would go on with the old program,
    /// and then with the new one from here, as nothing from before is needed any more.
    ///
    /// # Errors
    /// This run may conduct no more, and why.
    pub(crate) fn swap_program(
        &mut self,
        (modes, offer): (&Arc<LoadedModes>, &BundleOffer),
        begin: BorderState,
    ) -> Result<(), String> {
        self.settle()?;
        self.wait_until_taken()?;
        let holders = self.begin_to_copy_next((modes, offer), &begin)?;
        if self.gate.is_closed() {
            return Err(
                "this run was given up before it had gone over to another program".to_owned(),
            );
        }
        let bundle = offer.bundle_number();
        let proposal = Decision::Swap {
            epoch: self.mandate.epoch,
            bundle,
            given_out: self.given_out().0,
            held_by: holders.as_ref().map_or_else(BTreeSet::new, |holders| {
                holders.holding(begin.state.iterations)
            }),
        };
        self.decide(&proposal, |_, decided| decided.bundle == bundle)?;

        self.modes = Arc::clone(modes);
        self.bundle = bundle;
        self.released = begin;
        self.holders = holders;
        Ok(())
    }

    /// Gives the program that follows, and the state that it begins with, to those that could take over. Waits for those that hold
    /// the last border to hold that, for a lease.
    fn begin_to_copy_next(
        &mut self,
        (modes, offer): (&Arc<LoadedModes>, &BundleOffer),
        begin: &BorderState,
    ) -> Result<Option<Holders>, String> {
        let Some(before) = &self.holders else {
            return Ok(None);
        };
        let program = HolderProgram {
            bundle: Arc::clone(&offer.bundle),
            ..before.program().clone()
        };
        let started = self.start_holders(program, modes, begin);
        let next = started
            .map_err(|error| format!("no thread for those that could take over: {error}"))?;
        let begun = Instant::now();
        while !self
            .standing_by
            .is_subset(&next.holding(begin.state.iterations))
            && begun.elapsed() < self.candidate.times.lease
        {
            self.candidate.wait();
            self.step()?;
        }
        Ok(Some(next))
    }

    /// Has it decided who holds the borders, and forgets those that nobody goes on from.
    pub(super) fn note_holders(&mut self, decided: &Decided) {
        let Some(holders) = &self.holders else { return };
        if !self.is_own(decided) {
            return;
        }
        holders.forget_before(decided.border.given_out);
        let is_due = self.holders_told.elapsed() > self.repeat_after();
        let holds = decided.border.iterations;
        let holding = holders.holding(holds);
        if !is_due || holding == decided.holders {
            return;
        }
        self.holders_told = Instant::now();
        for &holder in holding.difference(&decided.holders) {
            self.candidate
                .member
                .submit(Decision::Join { holder, holds });
        }
        for &holder in decided.holders.difference(&holding) {
            self.candidate.member.submit(Decision::Leave { holder });
        }
    }

    /// Brings what is shown of the council up to date.
    pub(crate) fn show(&self, shown: &mut Option<CouncilProgress>) {
        let standing_by = self.standing_by.iter();
        let is_shown = |shown: &CouncilProgress| {
            shown
                .standing_by
                .iter()
                .eq(standing_by.clone().map(|voter| &voter.0))
        };
        if !shown.as_ref().is_some_and(is_shown) {
            *shown = Some(CouncilProgress {
                voters: self.candidate.voter_count as u64,
                conductor: self.candidate.own.0,
                standing_by: standing_by.map(|voter| voter.0).collect(),
            });
        }
    }
}
