//! The loop over the periods of one worker, the same for every kind of device: it admits blocks, steps periods and ends
//! them all alike. Must not know what a step does.

use crate::fault::StepStop;
use crate::transport::admission::AdmissionGate;
use crate::transport::clock::Clock;
use crate::transport::epoch_state::EpochCommon;
use crate::transport::ring::Spin;

/// How a device runs the periods of its calendar.
pub(super) trait DeviceRun {
    /// Runs a period, or submits it. `blocks` is the number of blocks of the run once it is known.
    ///
    /// # Errors
    /// A fault, or a stop while waiting.
    fn step(
        &mut self,
        period: u64,
        blocks: Option<u64>,
        gate: &AdmissionGate,
    ) -> Result<(), StepStop>;

    /// Ends one of the periods in flight, because the worker is about to wait for others; whether there was one. Once
    /// there is none, the worker waits.
    ///
    /// # Errors
    /// As [`Self::step`].
    fn settle(&mut self, gate: &AdmissionGate) -> Result<bool, StepStop>;

    /// Ends all periods in flight.
    ///
    /// # Errors
    /// As [`Self::step`].
    fn drain(&mut self, gate: &AdmissionGate) -> Result<(), StepStop>;
}

/// The periods of one worker in one epoch.
pub(super) struct PeriodLoop {
    pub gate: AdmissionGate,
    pub spin: Spin,
    /// Stages of the plan.
    pub stages: u64,
    /// The period at work.
    pub period: u64,
    /// When the first period began, and when the last one ended.
    pub first_ns: u64,
    pub last_ns: u64,
}

impl PeriodLoop {
    pub(super) fn new(gate: AdmissionGate, spin: Spin, stages: u64) -> Self {
        Self {
            gate,
            spin,
            stages,
            period: 0,
            first_ns: 0,
            last_ns: 0,
        }
    }

    /// Runs all periods; the number of blocks.
    ///
    /// # Errors
    /// What stopped a period.
    pub(super) fn run(
        &mut self,
        common: &EpochCommon,
        device: &mut impl DeviceRun,
    ) -> Result<u64, StepStop> {
        let clock = Clock;
        let mut blocks = None;
        loop {
            if blocks.is_none() && !self.admit(common, device)? {
                blocks = Some(self.period);
            }
            if self.period == 0 {
                self.first_ns = clock.now_ns();
            }
            if blocks.is_some_and(|blocks| self.period + 1 >= blocks + self.stages) {
                break;
            }
            if common.stop.is_set() {
                return Err(StepStop::Stopped);
            }

            device.step(self.period, blocks, &self.gate)?;
            self.period += 1;
        }

        device.drain(&self.gate)?;
        self.last_ns = clock.now_ns();
        Ok(blocks.unwrap_or(0))
    }

    /// Runs one period, if the block that begins in it is admitted.
    ///
    /// # Errors
    /// What stopped it; also without the tokens of the block.
    pub(super) fn run_one(
        &mut self,
        common: &EpochCommon,
        device: &mut impl DeviceRun,
    ) -> Result<(), StepStop> {
        if self.gate.look(self.period, &common.grants) != Some(true) {
            return Err(StepStop::Stopped);
        }
        device.step(self.period, None, &self.gate)?;
        self.period += 1;
        Ok(())
    }

    /// Waits until it is known whether the block that begins in this period starts. What is in flight is ended first:
    /// others may need that to go on.
    fn admit(
        &mut self,
        common: &EpochCommon,
        device: &mut impl DeviceRun,
    ) -> Result<bool, StepStop> {
        loop {
            if let Some(verdict) = self.gate.look(self.period, &common.grants) {
                return Ok(verdict);
            }
            if !device.settle(&self.gate)? {
                break;
            }
        }
        let admitted = self
            .gate
            .wait(self.period, &common.grants, self.spin, &common.stop)?;
        Ok(admitted)
    }
}
