//! The supervisor's dealings with single workers: starts, losses, restarts, and what the clock does to them.

use std::collections::BTreeSet;

use zbmd_ir::DeviceId;

use super::{EpochPhase, Plans, Supervisor};
use crate::breaker::BreakerState;
use crate::event::What;
use crate::member::{Member, Next, Phase};
use crate::message::{Action, Cause, Epoch, Generation, GoneWorker, Verdict};
use crate::tree::Restart;

/// Workers: how they come, go and are lost.
impl<P: Plans> Supervisor<P> {
    fn spawn_worker(&mut self, now_ns: u64, device: DeviceId, out: &mut Vec<Action>) {
        let member = &mut self.members[device];
        member.generation.0 += 1;
        member.started_ns = now_ns;
        let generation = member.generation;
        let phase = Phase::Starting { since_ns: now_ns };
        self.members.set_phase(device, phase);
        out.push(Action::Spawn { device, generation });
        self.emit_event(now_ns, What::Spawning { device, generation }, out);
    }

    pub(super) fn kill_worker(
        &mut self,
        now_ns: u64,
        device: DeviceId,
        next: Next,
        why: String,
        out: &mut Vec<Action>,
    ) {
        let phase = Phase::Dying {
            since_ns: now_ns,
            next,
        };
        self.members.set_phase(device, phase);
        let generation = self.members[device].generation;
        out.push(Action::Kill { device, generation });
        self.emit_event(
            now_ns,
            What::Killing {
                device,
                generation,
                why,
            },
            out,
        );
    }

    pub(super) fn worker_ready(
        &mut self,
        now_ns: u64,
        device: DeviceId,
        of: Generation,
        out: &mut Vec<Action>,
    ) {
        let member = &self.members[device];
        let Phase::Starting { since_ns } = member.phase() else {
            return self.ignore_stale(now_ns, device, of, &"ready", out);
        };
        if member.generation != of {
            return self.ignore_stale(now_ns, device, of, &"ready", out);
        }

        let probe_ns = (!member.breaker().is_closed()).then_some(now_ns);
        let phase = Phase::Ready {
            since_ns: now_ns,
            probe_ns,
        };
        self.members.set_aside_until(device, None);
        self.members.set_phase(device, phase);
        let after_ns = now_ns - since_ns;
        self.emit_event(
            now_ns,
            What::Ready {
                device,
                generation: of,
                after_ns,
            },
            out,
        );
    }

    pub(super) fn worker_gone(
        &mut self,
        now_ns: u64,
        device: DeviceId,
        of: Generation,
        cause: Cause,
        out: &mut Vec<Action>,
    ) {
        let member = &self.members[device];
        match member.phase() {
            _ if member.generation != of => self.ignore_stale(now_ns, device, of, &cause, out),
            Phase::Dying { next, .. } => {
                self.members.set_phase(device, next.into());
                self.emit_event(
                    now_ns,
                    What::Gone {
                        device,
                        generation: of,
                    },
                    out,
                );
            }
            Phase::Starting { .. } | Phase::Ready { .. } => {
                self.lose_worker(now_ns, device, cause, true, out);
            }
            Phase::Waiting { .. } | Phase::Absent { .. } | Phase::Out { .. } => {
                self.ignore_stale(now_ns, device, of, &cause, out);
            }
        }
    }

    /// All workers of a host are gone at once, which is one loss, or one of each group that they are in.
    pub(super) fn host_gone(
        &mut self,
        now_ns: u64,
        workers: Vec<GoneWorker>,
        cause: &Cause,
        out: &mut Vec<Action>,
    ) {
        let mut counted_groups = BTreeSet::new();
        for GoneWorker { device, generation } in workers {
            if self.is_over() {
                return;
            }
            let member = &self.members[device];
            if member.generation != generation
                || matches!(member.phase(), Phase::Absent { .. } | Phase::Out { .. })
            {
                self.ignore_stale(now_ns, device, generation, cause, out);
                continue;
            }
            let had_worker = matches!(member.phase(), Phase::Starting { .. } | Phase::Ready { .. });
            if had_worker {
                self.note_loss(now_ns, device, cause, out);
            }

            self.members.mark_lost(device);
            let phase = match self.tree.device(device).restart {
                Restart::Temporary => Phase::Out { until_ns: None },
                _ => Phase::Absent {
                    until_ns: now_ns + self.settings.host_ns,
                },
            };
            self.members.set_phase(device, phase);
            if had_worker && counted_groups.insert(self.tree.declared_group(device)) {
                self.count_loss(now_ns, device, out);
            }
        }
        if self.stopping.is_some() {
            self.stop_when_quiet(now_ns, out);
        }
    }

    /// Says that a worker is lost, and fences the epoch that it has a role in.
    fn note_loss(&mut self, now_ns: u64, device: DeviceId, cause: &Cause, out: &mut Vec<Action>) {
        let epoch = self.epoch_of(device);
        let generation = self.members[device].generation;
        let lost = What::Lost {
            device,
            generation,
            epoch,
            cause: cause.clone(),
        };
        self.emit_event(now_ns, lost, out);

        self.last_cause = format!("{} {cause}", self.tree.device(device).name);
        if epoch.is_some() {
            self.fence_epoch(now_ns, out);
        }
    }

    /// A worker is lost: it is gone, or must go.
    pub(super) fn lose_worker(
        &mut self,
        now_ns: u64,
        device: DeviceId,
        cause: Cause,
        is_gone: bool,
        out: &mut Vec<Action>,
    ) {
        self.note_loss(now_ns, device, &cause, out);
        let is_needed = self.is_needed(device);
        let was_probe = !self.members[device].breaker().is_closed();
        let next = self.next_of(now_ns, device, &cause, is_needed, out);
        if is_gone {
            self.members.set_phase(device, next.into());
        } else {
            self.kill_worker(now_ns, device, next, cause.to_string(), out);
        }

        // A probe that fails was expected to: it costs nothing but time.
        if is_needed || !was_probe {
            self.count_loss(now_ns, device, out);
        }
        if self.stopping.is_some() {
            self.stop_when_quiet(now_ns, out);
        }
    }

    /// The epoch in which a device has a role that it has not finished.
    pub(super) fn epoch_of(&self, device: DeviceId) -> Option<Epoch> {
        let EpochPhase::Running(running) = &self.epoch_phase else {
            return None;
        };
        let part = running.parts.get(device)?;
        part.finished.is_none().then_some(running.epoch)
    }

    /// Whether nothing runs without a device, given those that are out already.
    fn is_needed(&self, device: DeviceId) -> bool {
        let mut lost_devices = self.members.devices_that(|member| {
            matches!(member.phase(), Phase::Absent { .. } | Phase::Out { .. })
                || !member.breaker().is_closed()
        });
        if let Err(index) = lost_devices.binary_search(&device) {
            lost_devices.insert(index, device);
        }
        !self.plans.can_run(&lost_devices)
    }

    /// What becomes of a device whose worker is lost.
    fn next_of(
        &mut self,
        now_ns: u64,
        device: DeviceId,
        cause: &Cause,
        needed: bool,
        out: &mut Vec<Action>,
    ) -> Next {
        self.members.mark_lost(device);
        let member = &mut self.members[device];
        member.faults = 0;
        let lived_ns = member.lived_ns(now_ns);
        note_start(member, cause);

        // What the declaration says of this device comes first.
        let device_spec = self.tree.device(device);
        if let Some(why) = reason_against_restart(device_spec.restart, cause, needed) {
            self.emit_event(
                now_ns,
                What::NotRestarted {
                    device,
                    why: why.to_owned(),
                },
                out,
            );
            return Next::Out { until_ns: None };
        }

        // A breaker may open only for a device that others can do without.
        let mut has_opened = self
            .members
            .with_breaker(device, |breaker| breaker.fail(now_ns, !needed));
        let failed_starts = self.members[device].failed_starts;
        if failed_starts >= self.settings.starts && !has_opened {
            if needed {
                self.stopping.get_or_insert(Verdict::NeverStarted {
                    device: device_spec.name.clone(),
                    attempts: failed_starts,
                    cause: cause.to_string(),
                });
            } else if self.members[device].breaker().is_closed() {
                self.members
                    .with_breaker(device, |breaker| breaker.trip(now_ns));
                has_opened = true;
            }
        }

        let breaker_state = self.members[device].breaker().state();
        if let (true, BreakerState::Open { until_ns }) = (has_opened, breaker_state) {
            self.emit_event(now_ns, What::BreakerOpened { device, until_ns }, out);
            return Next::Out {
                until_ns: Some(until_ns),
            };
        }

        // Else it is started again, later each time.
        let member = &mut self.members[device];
        let until_ns = member.restart_ns(now_ns, lived_ns);
        let restarts = member.backoff.restarts();
        self.emit_event(
            now_ns,
            What::RestartIn {
                device,
                wait_ns: until_ns - now_ns,
                restarts,
            },
            out,
        );
        Next::Wait { until_ns }
    }

    /// Gives the work of a slow worker to others at the next border, for a while, if that is faster.
    pub(super) fn set_aside(
        &mut self,
        now_ns: u64,
        device: DeviceId,
        times: f64,
        out: &mut Vec<Action>,
    ) {
        let EpochPhase::Running(running) = &self.epoch_phase else {
            return;
        };
        let mut remaining_losses = self.members.unavailable();
        if let Err(index) = remaining_losses.binary_search(&device) {
            remaining_losses.insert(index, device);
        }
        let current_losses = running.lost.clone();
        if !self.plans.can_run(&remaining_losses)
            || !self
                .plans
                .is_faster_without(&current_losses, &remaining_losses, device, times)
        {
            return;
        }

        let breaker_policy = self.settings.breaker;
        let member = &mut self.members[device];

        // Each time longer than the last, as a breaker is.
        let open_ns = breaker_policy
            .open_ns
            .saturating_mul(1 << member.asides.min(16));
        let until_ns = now_ns + open_ns.min(breaker_policy.longest_ns);
        member.asides += 1;
        self.members.set_aside_until(device, Some(until_ns));
        self.emit_event(
            now_ns,
            What::SetAside {
                device,
                times,
                until_ns,
            },
            out,
        );
    }

    /// Counts a loss in the tree, restarts who is to be restarted with it, and stops if that is the last straw.
    fn count_loss(&mut self, now_ns: u64, device: DeviceId, out: &mut Vec<Action>) {
        let consequence = self.tree.lose(now_ns, device);
        // From the innermost supervisor outwards: each one that gives up is a loss of the one above it.
        for gave_up in &consequence.gave_up {
            let intensity = gave_up.intensity;
            let what = What::GaveUp {
                supervisor: gave_up.supervisor.clone(),
                losses: gave_up.losses,
                intensity: intensity.losses,
                period_ns: intensity.period_ns,
            };
            self.emit_event(now_ns, what, out);
        }

        // The outermost one gave up: the run ends. The first verdict stays, as what follows from it is lost too.
        if let (true, Some(last)) = (consequence.stop, consequence.gave_up.last()) {
            self.stopping.get_or_insert(Verdict::GaveUp {
                supervisor: last.supervisor.clone(),
                losses: last.losses,
                intensity: last.intensity.losses,
                period_ns: last.intensity.period_ns,
                cause: self.last_cause.clone(),
            });
            return;
        }

        let Some(supervisor) = consequence.by else {
            return;
        };
        // Those that wait, die or are out get a new worker anyway, or none.
        let is_alive = |id: &DeviceId| {
            matches!(
                self.members[*id].phase(),
                Phase::Starting { .. } | Phase::Ready { .. }
            )
        };
        let devices: Vec<DeviceId> = consequence.with.into_iter().filter(is_alive).collect();
        if devices.is_empty() {
            return;
        }

        let kill_reason = format!("{supervisor} restarts its workers together");
        self.emit_event(
            now_ns,
            What::RestartTogether {
                supervisor,
                devices: devices.clone(),
            },
            out,
        );

        // An epoch is fenced before one of its workers is killed, so that nothing that the others still write counts.
        for device in devices {
            if self.epoch_of(device).is_some() {
                self.fence_epoch(now_ns, out);
            }
            let next = match self.tree.device(device).restart {
                Restart::Temporary => Next::Out { until_ns: None },
                _ => Next::Wait { until_ns: now_ns },
            };
            self.kill_worker(now_ns, device, next, kill_reason.clone(), out);
        }
    }
}

/// Counts failed starts in a row. A worker without memory has not started either, however far it came.
fn note_start(member: &mut Member, cause: &Cause) {
    let has_failed =
        matches!(member.phase(), Phase::Starting { .. }) || *cause == Cause::OutOfMemory;
    member.failed_starts = if has_failed {
        member.failed_starts + 1
    } else {
        0
    };
}

/// Why a lost worker is not started again, if it is not.
fn reason_against_restart(
    restart: Restart,
    cause: &Cause,
    is_needed: bool,
) -> Option<&'static str> {
    let has_ended_itself = *cause == Cause::Exited { code: 0 };
    match restart {
        Restart::Temporary => Some("temporary"),
        Restart::Transient if has_ended_itself => Some("transient, and it ended by itself"),
        // Where nothing runs without it there is nothing to lose by trying again.
        _ if matches!(cause, Cause::Broken { .. }) && !is_needed => {
            Some("its device is broken, and others do its work")
        }
        _ => None,
    }
}

/// The clock.
impl<P: Plans> Supervisor<P> {
    pub(super) fn join_deadline(&self) -> Option<u64> {
        let EpochPhase::Running(running) = &self.epoch_phase else {
            return None;
        };
        self.settings
            .join_ns
            .filter(|_| !running.parts.have_all_joined())
            .map(|ns| running.joined_ns + ns)
    }

    pub(super) fn pass_time(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        if self.stopping.is_none() {
            self.act_on_deadlines(now_ns, out);
        }
        if self.is_over() {
            return;
        }

        if self.join_deadline().is_some_and(|due_ns| due_ns <= now_ns)
            && let EpochPhase::Running(running) = &self.epoch_phase
        {
            let after_ns = now_ns - running.begun_ns;
            for device in running.parts.missing() {
                if self.members[device].is_ready() {
                    self.lose_worker(now_ns, device, Cause::NotJoined { after_ns }, false, out);
                }
            }
        }
    }

    /// Acts on each deadline that has come, by ascending device; each device once.
    fn act_on_deadlines(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        let mut due_devices = self.members.due(now_ns);
        while let Some(device) = due_devices.pop_first() {
            if self.is_over() || self.stopping.is_some() {
                return;
            }
            if !self.members.is_due(now_ns, device) {
                continue;
            }

            self.member_due(now_ns, device, out);
        }
    }

    fn member_due(&mut self, now_ns: u64, device: DeviceId, out: &mut Vec<Action>) {
        let member = &self.members[device];
        let generation = member.generation;
        match member.phase() {
            // Its wait before the restart is over.
            Phase::Waiting { .. } => self.spawn_worker(now_ns, device, out),
            // It had the time that a start may take.
            Phase::Starting { since_ns } => {
                let after_ns = now_ns - since_ns;
                self.lose_worker(now_ns, device, Cause::NotReady { after_ns }, false, out);
            }
            // It was too slow to be used, and is tried again.
            Phase::Ready { .. } if member.aside_until_ns().is_some_and(|ns| ns <= now_ns) => {
                self.members.set_aside_until(device, None);
                self.emit_event(now_ns, What::TakenBack { device }, out);
                self.member_again(now_ns, device, out);
            }
            Phase::Ready {
                since_ns,
                probe_ns: Some(_),
            } => {
                // A probe is passed by living until it is due.
                let passed_probes = match member.breaker().state() {
                    BreakerState::HalfOpen { passed } => passed + 1,
                    _ => 0,
                };
                let has_closed = self.members.with_breaker(device, |breaker| breaker.pass());
                let probe_ns = (!has_closed).then_some(now_ns);

                let phase = Phase::Ready { since_ns, probe_ns };
                self.members.set_phase(device, phase);
                let passed = What::ProbePassed {
                    device,
                    passed: passed_probes,
                };
                self.emit_event(now_ns, passed, out);
                if has_closed {
                    self.emit_event(now_ns, What::BreakerClosed { device }, out);
                }
            }
            // Its end was not reported in time: it is left behind, and can write nothing that counts.
            Phase::Dying { since_ns, next } => {
                self.members.set_phase(device, next.into());
                let after_ns = now_ns - since_ns;
                self.emit_event(
                    now_ns,
                    What::Abandoned {
                        device,
                        generation,
                        after_ns,
                    },
                    out,
                );
                self.member_again(now_ns, device, out);
            }
            // Its host is not back in time.
            Phase::Absent { .. } => {
                self.members
                    .set_phase(device, Phase::Out { until_ns: None });
                let why = "its host is not back".to_owned();
                self.emit_event(now_ns, What::NotRestarted { device, why }, out);
            }
            // The breaker has been open long enough: one attempt decides.
            Phase::Out { until_ns: Some(_) } => {
                self.members
                    .with_breaker(device, |breaker| breaker.half_open());
                self.emit_event(
                    now_ns,
                    What::BreakerHalfOpen {
                        device,
                        needed: false,
                    },
                    out,
                );
                self.spawn_worker(now_ns, device, out);
            }
            Phase::Ready { probe_ns: None, .. } | Phase::Out { until_ns: None } => {}
        }
    }

    /// After a change of phase: what is due already must not wait for the next tick.
    fn member_again(&mut self, now_ns: u64, device: DeviceId, out: &mut Vec<Action>) {
        if self.members.is_due(now_ns, device) {
            self.member_due(now_ns, device, out);
        }
    }
}
