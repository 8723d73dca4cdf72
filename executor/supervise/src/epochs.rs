//! The supervisor's dealings with epochs: how they begin and end.

use zbmd_ir::DeviceId;

use super::parts::WorkerParts;
use super::{EpochPhase, Plans, Running, Supervisor};
use crate::event::What;
use crate::member::{Member, Next, Phase};
use crate::message::{Action, Epoch, Quiet, Request, Verdict};
use crate::settings::OnLoss;

/// Epochs: how they begin and end.
impl<P: Plans> Supervisor<P> {
    pub(super) fn fence_epoch(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        let EpochPhase::Running(running) = &self.epoch_phase else {
            return;
        };
        let epoch = running.epoch;
        out.push(Action::Fence { epoch });
        self.emit_event(now_ns, What::Fence { epoch }, out);
        self.epoch_phase = EpochPhase::Fencing {
            epoch,
            since_ns: now_ns,
        };
    }

    pub(super) fn epoch_fenced(
        &mut self,
        now_ns: u64,
        of: Epoch,
        committed_blocks: u64,
        out: &mut Vec<Action>,
    ) {
        let EpochPhase::Fencing { epoch, since_ns } = self.epoch_phase else {
            return;
        };
        if epoch != of {
            return;
        }

        let took_ns = now_ns - since_ns;
        self.emit_event(
            now_ns,
            What::Fenced {
                epoch,
                committed_blocks,
                took_ns,
            },
            out,
        );

        // That epochs begin and end is progress of a kind, but only committed blocks end a row of futile ones.
        self.refused = 0;
        self.note_progress(committed_blocks > 0);
        self.epoch_phase = EpochPhase::Between;

        if self.futile >= self.settings.futile {
            self.stopping.get_or_insert(Verdict::NoProgress {
                epochs: self.futile,
                cause: self.last_cause.clone(),
            });
        }
        self.stop_when_quiet(now_ns, out);
    }

    fn note_progress(&mut self, any: bool) {
        if any {
            self.futile = 0;
            self.members.forget_faults();
        } else {
            self.futile += 1;
        }
    }

    pub(super) fn epoch_completed(
        &mut self,
        now_ns: u64,
        of: Epoch,
        more: bool,
        out: &mut Vec<Action>,
    ) {
        let EpochPhase::Completing { epoch, blocks } = self.epoch_phase else {
            return;
        };
        if epoch != of {
            return;
        }
        self.refused = 0;
        if blocks > 0 {
            self.note_progress(true);
        }

        self.requests.swap = false;
        self.epoch_phase = EpochPhase::Between;
        if !more {
            return self.stop_run(now_ns, Verdict::Finished, out);
        }
        if self.requests.stop {
            return self.stop_run(now_ns, Verdict::Requested, out);
        }

        for device in std::mem::take(&mut self.requests.restart) {
            if self.members[device].is_ready() {
                let next = Next::Wait { until_ns: now_ns };
                self.kill_worker(now_ns, device, next, "restart on request".to_owned(), out);
            }
        }
        self.stop_when_quiet(now_ns, out);
    }

    pub(super) fn epoch_refused(
        &mut self,
        now_ns: u64,
        of: Epoch,
        why: String,
        out: &mut Vec<Action>,
    ) {
        match &self.epoch_phase {
            EpochPhase::Running(running) if running.epoch == of => {}
            EpochPhase::Fencing { epoch, .. } if *epoch == of => {}
            _ => return,
        }

        self.refused += 1;
        self.epoch_phase = EpochPhase::Between;
        if self.stopping.is_some() {
            return self.stop_when_quiet(now_ns, out);
        }
        if self.refused > self.settings.retries {
            return self.stop_run(
                now_ns,
                Verdict::Refused {
                    attempts: self.refused,
                    why,
                },
                out,
            );
        }

        let wait_ns = self.settings.backoff.base_ns << self.refused.min(16);
        self.hold_ns = now_ns + wait_ns;
        self.emit_event(
            now_ns,
            What::Refused {
                epoch: of,
                why,
                wait_ns,
            },
            out,
        );
    }

    pub(super) fn handle_request(&mut self, now_ns: u64, request: Request, out: &mut Vec<Action>) {
        match request {
            Request::Stop if !self.has_begun => self.stop_run(now_ns, Verdict::Requested, out),
            Request::Stop => self.requests.stop = true,
            Request::Swap => self.requests.swap = true,
            Request::Restart(device) => self.restart_worker(now_ns, device, out),
        }
    }

    fn restart_worker(&mut self, now_ns: u64, device: DeviceId, out: &mut Vec<Action>) {
        let has_role = self.epoch_of(device).is_some();
        match self.members[device].phase() {
            Phase::Ready { .. } if has_role => {
                self.requests.restart.insert(device);
            }
            Phase::Ready { .. } => {
                let next = Next::Wait { until_ns: now_ns };
                self.kill_worker(now_ns, device, next, "restart on request".to_owned(), out);
            }
            Phase::Waiting { .. } | Phase::Absent { .. } | Phase::Out { .. } => {
                self.members.with_breaker(device, |breaker| breaker.close());
                self.members[device].failed_starts = 0;
                let phase = Phase::Waiting { until_ns: now_ns };
                self.members.set_phase(device, phase);
            }
            Phase::Dying { .. } | Phase::Starting { .. } => {}
        }
    }

    /// Stops if that is due and nothing is at work that a fence must end first.
    pub(super) fn stop_when_quiet(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        if self.stopping.is_some() {
            self.fence_epoch(now_ns, out);
        }
        if matches!(self.epoch_phase, EpochPhase::Between)
            && let Some(verdict) = self.stopping.take()
        {
            self.stop_run(now_ns, verdict, out);
        }
    }

    fn stop_run(&mut self, now_ns: u64, verdict: Verdict, out: &mut Vec<Action>) {
        self.epoch_phase = EpochPhase::Over;
        let last_word = verdict.to_string();
        self.emit_event(
            now_ns,
            What::Stopped {
                verdict: verdict.clone(),
                last_word,
            },
            out,
        );
        out.push(Action::Stop(verdict));
    }

    /// Begins or ends an epoch if what happened makes that possible.
    pub(super) fn settle_epoch(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        match &self.epoch_phase {
            EpochPhase::Between => self.try_begin(now_ns, out),
            EpochPhase::Running(running) if !running.quiet => self.try_quiesce(now_ns, out),
            _ => {}
        }
    }

    fn try_begin(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        if now_ns < self.hold_ns {
            return;
        }
        self.hold_ns = 0;

        // At first every device gets its chance; later only where the declaration prefers waiting to running without.
        let waited_for = match (self.has_begun, self.settings.on_loss) {
            (false, _) => self.members.expected_first(),
            (true, OnLoss::Restart) => self.members.expected(),
            (true, OnLoss::Swap) => 0,
        };
        if waited_for > 0 {
            return;
        }

        let lost = self.members.unavailable();
        if self.plans.can_run(&lost) {
            return self.begin_epoch(now_ns, lost, out);
        }

        // A breaker keeps out only what can be missed.
        let absent = self.members.unready();
        if absent != lost && self.plans.can_run(&absent) {
            return self.begin_epoch(now_ns, absent, out);
        }

        if self.members.expected() > 0 {
            if self.reported_waiting.as_ref() != Some(&lost) {
                self.reported_waiting = Some(lost.clone());
                self.emit_event(now_ns, What::Waiting { lost }, out);
            }
            return;
        }
        self.last_resort(now_ns, absent, out);
    }

    /// Nobody is expected, and those that are there do not suffice: devices that were kept out are tried, or that
    /// is the end.
    fn last_resort(&mut self, now_ns: u64, lost: Vec<DeviceId>, out: &mut Vec<Action>) {
        let kept_out_devices = self.members.devices_that(is_kept_out);
        if kept_out_devices.is_empty() {
            let lost_names = lost.iter().map(|id| self.tree.device(*id).name.clone());
            let verdict = Verdict::NothingRuns {
                lost: lost_names.collect(),
                cause: self.last_cause.clone(),
            };
            return self.stop_run(now_ns, verdict, out);
        }

        for device in kept_out_devices {
            let member = &mut self.members[device];
            let next = Next::Wait {
                until_ns: member.restart_ns(now_ns, 0),
            };
            let phase = match member.phase() {
                Phase::Dying { since_ns, .. } => Phase::Dying { since_ns, next },
                _ => next.into(),
            };
            self.members
                .with_breaker(device, |breaker| breaker.half_open());
            self.members.set_phase(device, phase);
            self.emit_event(
                now_ns,
                What::BreakerHalfOpen {
                    device,
                    needed: true,
                },
                out,
            );
        }
        self.pass_time(now_ns, out);
    }

    fn begin_epoch(&mut self, now_ns: u64, lost: Vec<DeviceId>, out: &mut Vec<Action>) {
        let epoch = self.next_epoch;
        self.next_epoch.0 += 1;
        self.has_begun = true;
        self.reported_waiting = None;

        let devices_used = self.plans.devices_used(&lost);
        for &device in &devices_used {
            assert!(
                self.members[device].is_ready(),
                "{device} has a role and no worker"
            );
            self.members[device].detector.begin(&lost);
        }
        let parts = WorkerParts::new(devices_used);

        out.push(Action::Begin {
            epoch,
            lost: lost.clone(),
        });
        self.emit_event(
            now_ns,
            What::Begin {
                epoch,
                lost: lost.clone(),
            },
            out,
        );

        self.epoch_phase = EpochPhase::Running(Running {
            epoch,
            begun_ns: now_ns,
            joined_ns: now_ns,
            lost,
            parts,
            quiet: false,
        });
        self.try_quiesce(now_ns, out);
    }

    /// Ends the epoch at its next border if somebody requests so or a device is back.
    fn try_quiesce(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        let EpochPhase::Running(running) = &self.epoch_phase else {
            return;
        };
        let epoch = running.epoch;
        let why = if self.requests.stop {
            Quiet::Stop
        } else if self.requests.swap {
            Quiet::Swap
        } else if !self.requests.restart.is_empty() {
            Quiet::Restart {
                devices: self.requests.restart.iter().copied().collect(),
            }
        } else if let Some(devices) = self.returned_devices(&running.lost) {
            Quiet::Return { devices }
        } else if let Some(devices) = self.to_replace(running) {
            Quiet::Replace { devices }
        } else {
            return;
        };

        if let EpochPhase::Running(running) = &mut self.epoch_phase {
            running.quiet = true;
        }
        out.push(Action::Quiesce { epoch });
        self.emit_event(now_ns, What::Quiesce { epoch, why }, out);
    }

    /// Slow devices with a role that the others can do.
    fn to_replace(&self, running: &Running) -> Option<Vec<DeviceId>> {
        let has_role = |device: &DeviceId| running.parts.get(*device).is_some();
        let aside_devices: Vec<DeviceId> = self.members.aside().filter(has_role).collect();
        let can_run = !aside_devices.is_empty() && self.plans.can_run(&self.members.unavailable());
        can_run.then_some(aside_devices)
    }

    /// Devices that are back and would get a role in a better plan.
    fn returned_devices(&self, from: &[DeviceId]) -> Option<Vec<DeviceId>> {
        let mut returned_devices = from
            .iter()
            .copied()
            .filter(|id| self.members[*id].is_available())
            .peekable();
        returned_devices.peek()?;

        let losses_now = self.members.unavailable();
        if !self.plans.can_run(&losses_now) {
            return None;
        }
        let devices_used = self.plans.devices_used(&losses_now);
        let with_roles: Vec<DeviceId> = returned_devices
            .filter(|id| devices_used.contains(id))
            .collect();
        (!with_roles.is_empty() && self.plans.is_improvement(from, &losses_now))
            .then_some(with_roles)
    }
}

/// Whether a device is kept out, for a while, by its breaker.
fn is_kept_out(member: &Member) -> bool {
    match member.phase() {
        Phase::Out { until_ns } => until_ns.is_some(),
        Phase::Dying {
            next: Next::Out { until_ns },
            ..
        } => until_ns.is_some(),
        _ => false,
    }
}
