//! The supervisor's dealings with single workers: starts, losses, restarts, and what the clock does to them.

use zbmd_ir::DeviceId;

use super::{EpochPhase, Plans, Supervisor};
use crate::breaker::BreakerState;
use crate::event::What;
use crate::member::{Member, Next, Phase};
use crate::message::{Action, Cause, Epoch, Generation, Verdict};
use crate::tree::Restart;

/// Workers: how they come, go and are lost.
impl<P: Plans> Supervisor<P> {
    fn spawn(&mut self, now_ns: u64, device: DeviceId, out: &mut Vec<Action>) {
        let member = &mut self.members[device];
        member.generation.0 += 1;
        member.phase = Phase::Starting { since_ns: now_ns };
        let generation = member.generation;
        out.push(Action::Spawn { device, generation });
        self.emit(now_ns, What::Spawning { device, generation }, out);
    }

    pub(super) fn kill(
        &mut self,
        now_ns: u64,
        device: DeviceId,
        next: Next,
        why: String,
        out: &mut Vec<Action>,
    ) {
        let member = &mut self.members[device];
        member.phase = Phase::Dying {
            since_ns: now_ns,
            next,
        };
        let generation = member.generation;
        out.push(Action::Kill { device, generation });
        self.emit(
            now_ns,
            What::Killing {
                device,
                generation,
                why,
            },
            out,
        );
    }

    pub(super) fn ready(
        &mut self,
        now_ns: u64,
        device: DeviceId,
        of: Generation,
        out: &mut Vec<Action>,
    ) {
        let member = &mut self.members[device];
        let Phase::Starting { since_ns } = member.phase else {
            return self.stale(now_ns, device, of, &"ready", out);
        };
        if member.generation != of {
            return self.stale(now_ns, device, of, &"ready", out);
        }

        let probe_ns = (!member.breaker.is_closed()).then_some(now_ns);
        member.aside_until_ns = None;
        member.phase = Phase::Ready {
            since_ns: now_ns,
            probe_ns,
        };
        let after_ns = now_ns - since_ns;
        self.emit(
            now_ns,
            What::Ready {
                device,
                generation: of,
                after_ns,
            },
            out,
        );
    }

    pub(super) fn gone(
        &mut self,
        now_ns: u64,
        device: DeviceId,
        of: Generation,
        cause: Cause,
        out: &mut Vec<Action>,
    ) {
        let member = &mut self.members[device];
        match member.phase {
            _ if member.generation != of => self.stale(now_ns, device, of, &cause, out),
            Phase::Dying { next, .. } => {
                member.phase = next.into();
                self.emit(
                    now_ns,
                    What::Gone {
                        device,
                        generation: of,
                    },
                    out,
                );
            }
            Phase::Starting { .. } | Phase::Ready { .. } => {
                self.lose(now_ns, device, cause, true, out);
            }
            Phase::Waiting { .. } | Phase::Out { .. } => {
                self.stale(now_ns, device, of, &cause, out);
            }
        }
    }

    /// A worker is lost: it is gone, or must go.
    pub(super) fn lose(
        &mut self,
        now_ns: u64,
        device: DeviceId,
        cause: Cause,
        is_gone: bool,
        out: &mut Vec<Action>,
    ) {
        let epoch = self.epoch_of(device);
        let generation = self.members[device].generation;
        let lost = What::Lost {
            device,
            generation,
            epoch,
            cause: cause.clone(),
        };
        self.emit(now_ns, lost, out);

        self.last_cause = format!("{} {cause}", self.tree.device(device).name);
        if epoch.is_some() {
            self.fence(now_ns, out);
        }

        let needed = self.is_needed(device);
        let was_probe = !self.members[device].breaker.is_closed();
        let next = self.next_of(now_ns, device, &cause, needed, out);
        if is_gone {
            self.members[device].phase = next.into();
        } else {
            self.kill(now_ns, device, next, cause.to_string(), out);
        }

        // A probe that fails was expected to: it costs nothing but time.
        if needed || !was_probe {
            self.count(now_ns, device, out);
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
        let part = running.parts.get(&device)?;
        part.finished.is_none().then_some(running.epoch)
    }

    /// Whether nothing runs without a device, given those that are out already.
    fn is_needed(&self, device: DeviceId) -> bool {
        let out = |m: &Member| matches!(m.phase, Phase::Out { .. }) || !m.breaker.is_closed();
        let members = self.members.iter_enumerated();
        let lost: Vec<DeviceId> = members
            .filter(|(d, m)| *d == device || out(m))
            .map(|(d, _)| d)
            .collect();
        !self.plans.can_run(&lost)
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
        let member = &mut self.members[device];
        member.was_lost = true;
        member.faults = 0;
        let lived_ns = member.lived_ns(now_ns);
        let failed_start =
            matches!(member.phase, Phase::Starting { .. }) || *cause == Cause::OutOfMemory;
        member.failed_starts = if failed_start {
            member.failed_starts + 1
        } else {
            0
        };

        let spec = self.tree.device(device);
        if let Some(why) = reason_against_restart(spec.restart, cause, needed) {
            self.emit(
                now_ns,
                What::NotRestarted {
                    device,
                    why: why.to_owned(),
                },
                out,
            );
            return Next::Out { until_ns: None };
        }

        let mut opened = member.breaker.fail(now_ns, !needed);
        let attempts = member.failed_starts;
        if attempts >= self.settings.starts && !opened {
            if needed {
                self.stopping.get_or_insert(Verdict::NeverStarted {
                    device: spec.name.clone(),
                    attempts,
                    cause: cause.to_string(),
                });
            } else if member.breaker.is_closed() {
                member.breaker.trip(now_ns);
                opened = true;
            }
        }

        if let (true, BreakerState::Open { until_ns }) = (opened, member.breaker.state()) {
            self.emit(now_ns, What::BreakerOpened { device, until_ns }, out);
            return Next::Out {
                until_ns: Some(until_ns),
            };
        }

        let wait_ns = member.backoff.wait_ns(lived_ns);
        let restarts = member.backoff.restarts();
        self.emit(
            now_ns,
            What::RestartIn {
                device,
                wait_ns,
                restarts,
            },
            out,
        );
        Next::Wait {
            until_ns: now_ns + wait_ns,
        }
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
        let mut without = self.lost(Member::is_available);
        if let Err(at) = without.binary_search(&device) {
            without.insert(at, device);
        }
        let from = running.lost.clone();
        if !self.plans.can_run(&without)
            || !self.plans.is_faster_without(&from, &without, device, times)
        {
            return;
        }

        let policy = self.settings.breaker;
        let member = &mut self.members[device];
        let open_ns = policy.open_ns.saturating_mul(1 << member.asides.min(16));
        let until_ns = now_ns + open_ns.min(policy.longest_ns);
        member.asides += 1;
        member.aside_until_ns = Some(until_ns);
        self.emit(
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
    fn count(&mut self, now_ns: u64, device: DeviceId, out: &mut Vec<Action>) {
        let found = self.tree.lose(now_ns, device);
        for gave_up in &found.gave_up {
            let intensity = gave_up.intensity;
            let what = What::GaveUp {
                supervisor: gave_up.supervisor.clone(),
                losses: gave_up.losses,
                intensity: intensity.losses,
                period_ns: intensity.period_ns,
            };
            self.emit(now_ns, what, out);
        }

        if let (true, Some(last)) = (found.stop, found.gave_up.last()) {
            self.stopping.get_or_insert(Verdict::GaveUp {
                supervisor: last.supervisor.clone(),
                losses: last.losses,
                intensity: last.intensity.losses,
                period_ns: last.intensity.period_ns,
                cause: self.last_cause.clone(),
            });
            return;
        }

        let Some(supervisor) = found.by else { return };
        let alive = |d: &DeviceId| {
            matches!(
                self.members[*d].phase,
                Phase::Starting { .. } | Phase::Ready { .. }
            )
        };
        let devices: Vec<DeviceId> = found.with.into_iter().filter(alive).collect();
        if devices.is_empty() {
            return;
        }

        let why = format!("{supervisor} restarts its workers together");
        self.emit(
            now_ns,
            What::RestartTogether {
                supervisor,
                devices: devices.clone(),
            },
            out,
        );

        for device in devices {
            if self.epoch_of(device).is_some() {
                self.fence(now_ns, out);
            }
            let next = match self.tree.device(device).restart {
                Restart::Temporary => Next::Out { until_ns: None },
                _ => Next::Wait { until_ns: now_ns },
            };
            self.kill(now_ns, device, next, why.clone(), out);
        }
    }
}

/// Why a lost worker is not started again, if it is not.
fn reason_against_restart(restart: Restart, cause: &Cause, needed: bool) -> Option<&'static str> {
    let by_itself = *cause == Cause::Exited { code: 0 };
    match restart {
        Restart::Temporary => Some("temporary"),
        Restart::Transient if by_itself => Some("transient, and it ended by itself"),
        // Where nothing runs without it there is nothing to lose by trying again.
        _ if matches!(cause, Cause::Broken { .. }) && !needed => {
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
        let missing = running.parts.values().any(|part| !part.joined);
        self.settings
            .join_ns
            .filter(|_| missing)
            .map(|ns| running.begun_ns + ns)
    }

    pub(super) fn pass_time(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        for device in self.members.keys() {
            if self.is_over() {
                return;
            }
            let due = self.members[device].deadline_ns(&self.settings);
            if self.stopping.is_none() && due.is_some_and(|due| due <= now_ns) {
                self.member_due(now_ns, device, out);
            }
        }

        if self.join_deadline().is_some_and(|due| due <= now_ns)
            && let EpochPhase::Running(running) = &self.epoch_phase
        {
            let after_ns = now_ns - running.begun_ns;
            let parts = running.parts.iter().filter(|(_, part)| !part.joined);
            let missing: Vec<DeviceId> = parts.map(|(d, _)| *d).collect();
            for device in missing {
                if self.members[device].is_ready() {
                    self.lose(now_ns, device, Cause::NotJoined { after_ns }, false, out);
                }
            }
        }
    }

    fn member_due(&mut self, now_ns: u64, device: DeviceId, out: &mut Vec<Action>) {
        let member = &mut self.members[device];
        let generation = member.generation;
        match member.phase {
            Phase::Waiting { .. } => self.spawn(now_ns, device, out),
            Phase::Starting { since_ns } => {
                let after_ns = now_ns - since_ns;
                self.lose(now_ns, device, Cause::NotReady { after_ns }, false, out);
            }
            Phase::Ready { .. } if member.aside_until_ns.is_some_and(|ns| ns <= now_ns) => {
                member.aside_until_ns = None;
                self.emit(now_ns, What::TakenBack { device }, out);
                self.member_again(now_ns, device, out);
            }
            Phase::Ready {
                since_ns,
                probe_ns: Some(_),
            } => {
                let passed = match member.breaker.state() {
                    BreakerState::HalfOpen { passed } => passed + 1,
                    _ => 0,
                };
                let closed = member.breaker.pass();
                let probe_ns = (!closed).then_some(now_ns);
                member.phase = Phase::Ready { since_ns, probe_ns };
                self.emit(now_ns, What::ProbePassed { device, passed }, out);
                if closed {
                    self.emit(now_ns, What::BreakerClosed { device }, out);
                }
            }
            Phase::Dying { since_ns, next } => {
                member.phase = next.into();
                let after_ns = now_ns - since_ns;
                self.emit(
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
            Phase::Out { until_ns: Some(_) } => {
                member.breaker.half_open();
                self.emit(
                    now_ns,
                    What::BreakerHalfOpen {
                        device,
                        needed: false,
                    },
                    out,
                );
                self.spawn(now_ns, device, out);
            }
            Phase::Ready { probe_ns: None, .. } | Phase::Out { until_ns: None } => {}
        }
    }

    /// After a change of phase: what is due already must not wait for the next tick.
    fn member_again(&mut self, now_ns: u64, device: DeviceId, out: &mut Vec<Action>) {
        let due = self.members[device].deadline_ns(&self.settings);
        if due.is_some_and(|due| due <= now_ns) {
            self.member_due(now_ns, device, out);
        }
    }
}
