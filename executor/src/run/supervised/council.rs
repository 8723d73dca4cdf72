//! What a supervised run does about the council that it conducts in the name of, if there is one: it opens epochs there, has
//! committed borders decided, and ends when it may conduct no more.

use std::collections::BTreeSet;

use zbmd_ir::DeviceId;

use super::SupervisedRun;
use crate::error::RunError;
use crate::run::control::RequestedSwap;
use crate::run::hosts::conductor_seat::ConductorSeat;

/// Committed borders are looked for so often; workers are not disturbed by it.
const BORDER_LOOK_NS: u64 = 1_000_000;

impl SupervisedRun<'_> {
    /// When the council must be looked after again.
    pub(super) fn next_council_ns(&self) -> Option<u64> {
        let seat = self.seat.as_ref()?;
        // A border that waits to be decided makes itself heard.
        let pause_ns = match self.active.is_some() && !seat.has_pending() {
            true => BORDER_LOOK_NS,
            false => seat.tick().as_nanos() as u64,
        };
        Some(self.clock.now_ns() + pause_ns)
    }

    /// Opens an epoch without these devices in the council; whether it may begin.
    pub(super) fn open_council_epoch(&mut self, lost: &[DeviceId]) -> bool {
        let Some(seat) = &mut self.seat else {
            return true;
        };
        let hosts = self.manager.loaded.program.machine.hosts.iter().enumerate();
        let has_device = |devices: &[DeviceId]| devices.iter().any(|id| !lost.contains(id));
        let left = hosts.filter(|(_, host)| has_device(&host.devices));
        let left: BTreeSet<u32> = left.map(|(host, _)| host as u32).collect();
        match seat.open_epoch(&left) {
            Ok(()) => {
                self.manager.pool.set_mandate(seat);
                true
            }
            Err(why) => {
                self.council_end = Some(why);
                false
            }
        }
    }

    /// Has the last committed border decided, and takes in what has been.
    pub(super) fn follow_council(&mut self) {
        let Some(seat) = &mut self.seat else { return };
        if let Err(why) = seat.step() {
            self.council_end.get_or_insert(why);
            return;
        }
        seat.show(&mut self.manager.control.council());
        let Some(active) = &self.active else { return };
        if seat.is_waiting() {
            return;
        }
        let blocks = active.memory.common.committed.border();
        let iterations = self.manager.state.iterations + blocks * active.block;
        if iterations > seat.released().state.iterations {
            seat.propose(self.manager.committed_state(active));
        }
    }

    /// Has the border decided that an epoch has ended at.
    pub(super) fn propose_end(&mut self) {
        if let Some(seat) = &mut self.seat {
            seat.propose(self.manager.present_border());
        }
    }

    /// Has those that could take over load the program that was requested. What has come of it, once all that are there have said it.
    pub(super) fn load_in_council(&self, requested: &RequestedSwap) -> Option<Result<(), String>> {
        match (&self.seat, &requested.offer) {
            (Some(seat), Some(offer)) => seat.load(offer),
            _ => Some(Ok(())),
        }
    }

    /// Has it decided that the run has gone over to another program.
    pub(super) fn swap_in_council(&mut self, requested: &RequestedSwap) {
        let (Some(seat), Some(offer)) = (&mut self.seat, &requested.offer) else {
            return;
        };
        let program = (&requested.modes, &**offer);
        if let Err(why) = seat.swap_program(program, self.manager.present_border()) {
            self.council_end.get_or_insert(why);
        }
    }

    /// Waits until everything that the run has computed is decided. After that nothing is conducted any more, by nobody if
    /// it is the end of the run.
    ///
    /// # Errors
    /// This run may conduct no more: its state is that of the last border that was given out.
    pub(super) fn settle_council(&mut self, is_end: bool) -> Result<(), RunError> {
        self.propose_end();
        let Some(seat) = &mut self.seat else {
            return Ok(());
        };
        let settled = seat.settle().and_then(|()| match is_end {
            true => seat.end(),
            false => {
                seat.leave();
                Ok(())
            }
        });
        match settled {
            Ok(()) => Ok(()),
            Err(why) => Err(self.end_by_council(why)),
        }
    }

    /// Ends the run at the last border that was given out.
    pub(super) fn end_by_council(&mut self, why: String) -> RunError {
        if let Some(active) = self.active.take() {
            self.manager.fence(&active);
        }
        if let Some(seat) = self.seat.as_ref().map(ConductorSeat::released) {
            self.manager.go_back(seat);
        }
        RunError::GaveUp {
            verdict: why,
            iterations: self.manager.state.iterations,
            left: None,
        }
    }
}
