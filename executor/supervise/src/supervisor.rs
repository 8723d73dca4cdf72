//! The supervisor: a state machine that is told what happened and says what to do. It has no clock, threads, memory or
//! randomness of its own, and must not know what a plan computes.

#[path = "workers.rs"]
mod workers;

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::{DeviceId, TiVec};

use super::backoff::BackoffPolicy;
use super::breaker::BreakerPolicy;
use super::declare::OnLoss;
use super::detect::{DetectPolicy, Finding, Sample};
use super::event::{Advice, Event, What};
use super::member::{Member, Next, Phase};
use super::message::{Action, Cause, End, Epoch, Incarnation, Input, Quiet, Request, Verdict};
use super::tree::{Tree, TreeSpec};

/// What the supervisor asks about plans; the driver answers for the present bundle.
pub trait Plans {
    /// Whether the run can go on without exactly these devices (ascending; none: the full machine).
    fn can_run(&self, lost: &[DeviceId]) -> bool;

    /// The devices that have a role without these, ascending. Asked only if that can run.
    fn uses(&self, lost: &[DeviceId]) -> Vec<DeviceId>;

    /// Whether going over from one loss to a lesser one is worth the interruption: the plan is a better one.
    fn gains(&self, from: &[DeviceId], to: &[DeviceId]) -> bool {
        let _ = (from, to);
        true
    }

    /// Whether a plan without a device that is so many times slower than planned is faster than going on with it.
    fn helps(&self, from: &[DeviceId], to: &[DeviceId], slow: DeviceId, times: f64) -> bool {
        let _ = (from, to, slow, times);
        false
    }
}

/// How to supervise, besides the tree. Times in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What to do first when a worker with a role is lost.
    pub on_loss: OnLoss,
    /// Waits before restarts.
    pub backoff: BackoffPolicy,
    /// When a device is kept out.
    pub breaker: BreakerPolicy,
    /// How hung and slow workers are found.
    pub detect: DetectPolicy,
    /// How long a worker may take to get ready.
    pub start_ns: u64,
    /// How long a killed worker may take to be gone before it is left behind.
    pub kill_ns: u64,
    /// How long a worker may take to take up its role in an epoch, which it does after the slot that it is in: longer
    /// than any slot's bound. `None` if workers are not looked at.
    pub join_ns: Option<u64>,
    /// So many starts in a row may fail before a device counts as broken.
    pub starts: u32,
    /// So many faults are retried with the same worker before it counts as lost; and so many refused epochs.
    pub retries: u32,
    /// So many epochs in a row may end without a border committed.
    pub futile: u32,
    /// For jitter.
    pub seed: u64,
    /// One more than the last epoch of a run that is resumed.
    pub first_epoch: Epoch,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            on_loss: OnLoss::Swap,
            backoff: BackoffPolicy::default(),
            breaker: BreakerPolicy::default(),
            detect: DetectPolicy::default(),
            start_ns: 10_000_000_000,
            kill_ns: 2_000_000_000,
            join_ns: Some(1_000_000_000),
            starts: 5,
            retries: 3,
            futile: 20,
            seed: 0,
            first_epoch: Epoch(0),
        }
    }
}

/// The supervisor of one run. See the module for what it does, [`Input`] and [`Action`] for how to drive it.
#[derive(Clone, Debug)]
pub struct Supervisor<P> {
    plans: P,
    settings: Settings,
    tree: Tree,
    members: TiVec<DeviceId, Member>,
    reign: Reign,
    next_epoch: Epoch,
    begun_any: bool,
    /// Asked for and not yet done.
    wishes: Wishes,
    /// A verdict that waits for the fence.
    stopping: Option<Verdict>,
    last_cause: String,
    /// Epochs in a row without a committed border.
    futile: u32,
    /// Epochs in a row that the driver could not begin.
    refused: u32,
    /// No epoch before then.
    hold_ns: u64,
    /// The loss that was last told to be waited for.
    told_waiting: Option<Vec<DeviceId>>,
}

#[derive(Clone, Debug, Default)]
struct Wishes {
    stop: bool,
    swap: bool,
    restart: BTreeSet<DeviceId>,
}

/// Which epoch reigns, if any.
#[derive(Clone, Debug)]
enum Reign {
    /// None: one begins as soon as there is a plan for the devices that are ready.
    Between,
    /// Workers are at work; `quiet` if they are to finish.
    Running(Running),
    /// Waiting for the fence.
    Fencing { epoch: Epoch, since_ns: u64 },
    /// All finished; waiting for the driver to take the state over.
    Completing { epoch: Epoch, blocks: u64 },
    /// The run is over.
    Over,
}

#[derive(Clone, Debug)]
struct Running {
    epoch: Epoch,
    begun_ns: u64,
    lost: Vec<DeviceId>,
    seats: BTreeMap<DeviceId, Seat>,
    quiet: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seat {
    joined: bool,
    finished: Option<u64>,
}

impl<P: Plans> Supervisor<P> {
    /// A supervisor that has done nothing yet.
    pub fn new(settings: Settings, tree: TreeSpec, plans: P) -> Self {
        let tree = Tree::new(tree);
        let ids = tree.devices().keys();
        let members = ids.map(|device| Member::new(&settings, device)).collect();
        Self {
            plans,
            tree,
            members,
            reign: Reign::Between,
            next_epoch: settings.first_epoch,
            begun_any: false,
            wishes: Wishes::default(),
            stopping: None,
            last_cause: "none".to_owned(),
            futile: 0,
            refused: 0,
            hold_ns: 0,
            told_waiting: None,
            settings,
        }
    }

    /// The answers about plans, to be exchanged between [`Action::Complete`] and [`Input::Completed`].
    pub fn plans_mut(&mut self) -> &mut P {
        &mut self.plans
    }

    /// How it supervises.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The run is over.
    pub fn is_over(&self) -> bool {
        matches!(self.reign, Reign::Over)
    }

    /// Whether a look at a worker needs what the system says of its thread: [`super::Detector::wants_os`].
    pub fn wants_os(&self, now_ns: u64, device: DeviceId, step: u64, waiting: bool) -> bool {
        self.members[device]
            .detector
            .wants_os(now_ns, step, waiting)
    }

    /// The bound of a slot of this device that is planned to take so long: [`super::Detector::bound_ns`].
    pub fn bound_ns(&self, device: DeviceId, planned_ns: u64) -> u64 {
        self.members[device].detector.bound_ns(planned_ns)
    }

    /// Begins: starts all workers.
    pub fn start(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        let devices = self.tree.devices().iter().map(|d| d.name.clone()).collect();
        let first_epoch = self.settings.first_epoch;
        self.tell(
            now_ns,
            What::Opened {
                devices,
                first_epoch,
            },
            out,
        );
        self.pass_time(now_ns, out);
        self.settle(now_ns, out);
    }

    /// When [`Input::Tick`] is wanted at the latest. O(devices).
    pub fn deadline(&self) -> Option<u64> {
        if self.is_over() || self.stopping.is_some() {
            return None;
        }
        let members = self
            .members
            .iter()
            .filter_map(|m| m.deadline_ns(&self.settings));
        let hold = matches!(self.reign, Reign::Between).then_some(self.hold_ns);
        members
            .chain(self.join_deadline())
            .chain(hold.filter(|ns| *ns > 0))
            .min()
    }

    /// Takes one input into account; what follows is added to `out`. O(devices), O(1) for a look that finds nothing.
    pub fn handle(&mut self, now_ns: u64, input: Input, out: &mut Vec<Action>) {
        if self.is_over() {
            return;
        }
        match input {
            Input::Seen {
                epoch,
                device,
                incarnation,
                sample,
            } => {
                if !self.seen(now_ns, epoch, device, incarnation, sample, out) {
                    return;
                }
            }
            Input::Ready {
                device,
                incarnation,
            } => self.ready(now_ns, device, incarnation, out),
            Input::Gone {
                device,
                incarnation,
                cause,
            } => {
                self.gone(now_ns, device, incarnation, cause, out);
            }
            Input::Ended {
                epoch,
                device,
                incarnation,
                end,
            } => {
                self.ended(now_ns, epoch, device, incarnation, end, out);
            }
            Input::Fenced {
                epoch,
                committed_blocks,
            } => {
                self.fenced(now_ns, epoch, committed_blocks, out);
            }
            Input::Completed { epoch, more } => self.completed(now_ns, epoch, more, out),
            Input::Refused { epoch, why } => self.refuse(now_ns, epoch, why, out),
            Input::Request(request) => self.request(now_ns, request, out),
            Input::Tick => {}
        }
        self.pass_time(now_ns, out);
        self.settle(now_ns, out);
    }

    fn tell(&self, at_ns: u64, what: What, out: &mut Vec<Action>) {
        out.push(Action::Event(Event { at_ns, what }));
    }

    fn stale(
        &self,
        now_ns: u64,
        device: DeviceId,
        incarnation: Incarnation,
        message: &dyn std::fmt::Debug,
        out: &mut Vec<Action>,
    ) {
        let message = format!("{message:?}");
        self.tell(
            now_ns,
            What::Stale {
                device,
                incarnation,
                message,
            },
            out,
        );
    }
}

/// What workers report.
impl<P: Plans> Supervisor<P> {
    /// Whether anything came of it.
    fn seen(
        &mut self,
        now_ns: u64,
        epoch: Epoch,
        device: DeviceId,
        of: Incarnation,
        sample: Sample,
        out: &mut Vec<Action>,
    ) -> bool {
        let Reign::Running(running) = &mut self.reign else {
            return false;
        };
        let member = &mut self.members[device];
        if running.epoch != epoch || member.incarnation != of || !member.is_ready() {
            return false;
        }
        let Some(seat) = running
            .seats
            .get_mut(&device)
            .filter(|s| s.finished.is_none())
        else {
            return false;
        };
        if !std::mem::replace(&mut seat.joined, true) {
            member.failed_starts = 0;
        }
        match member.detector.look(now_ns, sample) {
            Finding::Fine => return false,
            Finding::Overdue {
                why,
                after_ns,
                bound_ns,
            } => {
                let why = why.to_owned();
                let what = What::Overdue {
                    device,
                    epoch,
                    why: why.clone(),
                    after_ns,
                    bound_ns,
                };
                self.tell(now_ns, what, out);
                self.lose(now_ns, device, Cause::Hung { why }, false, out);
            }
            Finding::Slow {
                times,
                phi,
                again: false,
            } => {
                member.detector.retime(times);
                let advice = Advice::Retime;
                self.tell(
                    now_ns,
                    What::Slow {
                        device,
                        times,
                        phi,
                        advice,
                    },
                    out,
                );
            }
            Finding::Slow {
                times,
                phi,
                again: true,
            } => {
                let advice = Advice::Replace;
                self.tell(
                    now_ns,
                    What::Slow {
                        device,
                        times,
                        phi,
                        advice,
                    },
                    out,
                );
                self.set_aside(now_ns, device, times, out);
            }
            Finding::Pace => self.tell(now_ns, What::Pace { device }, out),
        }
        true
    }

    fn ended(
        &mut self,
        now_ns: u64,
        epoch: Epoch,
        device: DeviceId,
        of: Incarnation,
        end: End,
        out: &mut Vec<Action>,
    ) {
        let current = self.members[device].incarnation == of && self.members[device].is_ready();
        if !current || self.epoch_of(device) != Some(epoch) {
            // Those that a fence stopped say so, and nobody waits for it.
            if end != End::Stopped {
                self.stale(now_ns, device, of, &end, out);
            }
            return;
        }
        match end {
            End::Finished { blocks } => self.finished(now_ns, device, blocks, out),
            End::OutOfMemory => self.lose(now_ns, device, Cause::OutOfMemory, false, out),
            End::Corrupt { from, .. } => self.retry(now_ns, from, end, out),
            End::Fault { .. } | End::Stopped => self.retry(now_ns, device, end, out),
        }
    }

    fn finished(&mut self, now_ns: u64, device: DeviceId, blocks: u64, out: &mut Vec<Action>) {
        let Reign::Running(running) = &mut self.reign else {
            return;
        };
        self.members[device].failed_starts = 0;
        if let Some(seat) = running.seats.get_mut(&device) {
            *seat = Seat {
                joined: true,
                finished: Some(blocks),
            };
        }
        let mut seats = running.seats.values();
        if seats.any(|s| s.finished.is_none()) {
            return;
        }
        let epoch = running.epoch;
        if running.seats.values().any(|s| s.finished != Some(blocks)) {
            // They cannot disagree unless memory is broken: what is committed still stands.
            self.last_cause = format!("workers of {epoch} finished different numbers of blocks");
            return self.fence(now_ns, out);
        }
        let swap = self.wishes.swap;
        self.tell(now_ns, What::Complete { epoch, blocks }, out);
        out.push(Action::Complete {
            epoch,
            blocks,
            swap,
        });
        self.reign = Reign::Completing { epoch, blocks };
    }

    /// A fault that the worker survived: the last border is tried again with it, a bounded number of times.
    fn retry(&mut self, now_ns: u64, device: DeviceId, end: End, out: &mut Vec<Action>) {
        let member = &mut self.members[device];
        member.faults += 1;
        let (attempt, of) = (member.faults, self.settings.retries);
        if attempt > of && member.is_ready() {
            let cause = match end {
                End::Corrupt { text, .. } => Cause::Corrupt { text },
                End::Fault { text } => Cause::Fault { text },
                _ => Cause::Fault {
                    text: "stopped without being told to".to_owned(),
                },
            };
            self.lose(now_ns, device, cause, false, out);
        } else {
            self.last_cause = format!("{} {end:?}", self.tree.device(device).name);
            self.tell(
                now_ns,
                What::Retry {
                    device,
                    end,
                    attempt,
                    of,
                },
                out,
            );
        }
        self.fence(now_ns, out);
    }
}

/// Epochs: how they begin and end.
impl<P: Plans> Supervisor<P> {
    fn fence(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        let Reign::Running(running) = &self.reign else {
            return;
        };
        let epoch = running.epoch;
        out.push(Action::Fence { epoch });
        self.tell(now_ns, What::Fence { epoch }, out);
        self.reign = Reign::Fencing {
            epoch,
            since_ns: now_ns,
        };
    }

    fn fenced(&mut self, now_ns: u64, of: Epoch, committed_blocks: u64, out: &mut Vec<Action>) {
        let Reign::Fencing { epoch, since_ns } = self.reign else {
            return;
        };
        if epoch != of {
            return;
        }
        let took_ns = now_ns - since_ns;
        self.tell(
            now_ns,
            What::Fenced {
                epoch,
                committed_blocks,
                took_ns,
            },
            out,
        );
        self.refused = 0;
        self.progress(committed_blocks > 0);
        self.reign = Reign::Between;
        if self.futile >= self.settings.futile {
            let (epochs, cause) = (self.futile, self.last_cause.clone());
            self.stopping
                .get_or_insert(Verdict::NoProgress { epochs, cause });
        }
        self.stop_when_quiet(now_ns, out);
    }

    fn progress(&mut self, any: bool) {
        if any {
            self.futile = 0;
            self.members.iter_mut().for_each(|m| m.faults = 0);
        } else {
            self.futile += 1;
        }
    }

    fn completed(&mut self, now_ns: u64, of: Epoch, more: bool, out: &mut Vec<Action>) {
        let Reign::Completing { epoch, blocks } = self.reign else {
            return;
        };
        if epoch != of {
            return;
        }
        self.refused = 0;
        if blocks > 0 {
            self.progress(true);
        }
        self.wishes.swap = false;
        self.reign = Reign::Between;
        if !more {
            return self.stop(now_ns, Verdict::Finished, out);
        }
        if self.wishes.stop {
            return self.stop(now_ns, Verdict::Requested, out);
        }
        for device in std::mem::take(&mut self.wishes.restart) {
            if self.members[device].is_ready() {
                let next = Next::Wait { until_ns: now_ns };
                self.kill(now_ns, device, next, "restart on request".to_owned(), out);
            }
        }
        self.stop_when_quiet(now_ns, out);
    }

    fn refuse(&mut self, now_ns: u64, of: Epoch, why: String, out: &mut Vec<Action>) {
        match &self.reign {
            Reign::Running(running) if running.epoch == of => {}
            Reign::Fencing { epoch, .. } if *epoch == of => {}
            _ => return,
        }
        self.refused += 1;
        self.reign = Reign::Between;
        if self.stopping.is_some() {
            return self.stop_when_quiet(now_ns, out);
        }
        if self.refused > self.settings.retries {
            return self.stop(
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
        self.tell(
            now_ns,
            What::Refused {
                epoch: of,
                why,
                wait_ns,
            },
            out,
        );
    }

    fn request(&mut self, now_ns: u64, request: Request, out: &mut Vec<Action>) {
        match request {
            Request::Stop if !self.begun_any => self.stop(now_ns, Verdict::Requested, out),
            Request::Stop => self.wishes.stop = true,
            Request::Swap => self.wishes.swap = true,
            Request::Restart(device) => self.restart(now_ns, device, out),
        }
    }

    fn restart(&mut self, now_ns: u64, device: DeviceId, out: &mut Vec<Action>) {
        let has_role = self.epoch_of(device).is_some();
        let member = &mut self.members[device];
        match member.phase {
            Phase::Ready { .. } if has_role => {
                self.wishes.restart.insert(device);
            }
            Phase::Ready { .. } => {
                let next = Next::Wait { until_ns: now_ns };
                self.kill(now_ns, device, next, "restart on request".to_owned(), out);
            }
            Phase::Waiting { .. } | Phase::Out { .. } => {
                member.breaker.close();
                member.failed_starts = 0;
                member.phase = Phase::Waiting { until_ns: now_ns };
            }
            Phase::Dying { .. } | Phase::Starting { .. } => {}
        }
    }

    /// Stops if that is due and nothing is at work that a fence must end first.
    fn stop_when_quiet(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        if self.stopping.is_some() {
            self.fence(now_ns, out);
        }
        if matches!(self.reign, Reign::Between)
            && let Some(verdict) = self.stopping.take()
        {
            self.stop(now_ns, verdict, out);
        }
    }

    fn stop(&mut self, now_ns: u64, verdict: Verdict, out: &mut Vec<Action>) {
        self.reign = Reign::Over;
        let last_word = verdict.to_string();
        self.tell(
            now_ns,
            What::Stopped {
                verdict: verdict.clone(),
                last_word,
            },
            out,
        );
        out.push(Action::Stop(verdict));
    }

    /// The devices without a worker that `is` fit.
    fn lost(&self, is: impl Fn(&Member) -> bool) -> Vec<DeviceId> {
        self.members
            .iter_enumerated()
            .filter(|(_, m)| !is(m))
            .map(|(d, _)| d)
            .collect()
    }

    /// Begins or ends an epoch if what happened makes that possible.
    fn settle(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        match &self.reign {
            Reign::Between => self.try_begin(now_ns, out),
            Reign::Running(running) if !running.quiet => self.try_quiesce(now_ns, out),
            _ => {}
        }
    }

    fn try_begin(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        if now_ns < self.hold_ns {
            return;
        }
        self.hold_ns = 0;
        let lost = self.lost(Member::is_available);
        let is_worth_waiting = |m: &Member| {
            let all = self.begun_any && self.settings.on_loss == OnLoss::Restart;
            m.is_expected() && (all || (!self.begun_any && !m.was_lost))
        };
        if self.members.iter().any(is_worth_waiting) {
            return;
        }
        if self.plans.can_run(&lost) {
            return self.begin(now_ns, lost, out);
        }
        // A breaker keeps out only what can be missed.
        let absent = self.lost(Member::is_ready);
        if absent != lost && self.plans.can_run(&absent) {
            return self.begin(now_ns, absent, out);
        }
        if self.members.iter().any(Member::is_expected) {
            if self.told_waiting.as_ref() != Some(&lost) {
                self.told_waiting = Some(lost.clone());
                self.tell(now_ns, What::Waiting { lost }, out);
            }
            return;
        }
        self.last_resort(now_ns, absent, out);
    }

    /// Nobody is expected, and those that are there do not suffice: devices that were kept out are tried, or that
    /// is the end.
    fn last_resort(&mut self, now_ns: u64, lost: Vec<DeviceId>, out: &mut Vec<Action>) {
        let kept_out = |m: &Member| {
            let until = |u: Option<u64>| u.is_some();
            match m.phase {
                Phase::Out { until_ns } => until(until_ns),
                Phase::Dying {
                    next: Next::Out { until_ns },
                    ..
                } => until(until_ns),
                _ => false,
            }
        };
        let devices: Vec<DeviceId> = self.lost(|m| !kept_out(m));
        if devices.is_empty() {
            let name = |d: &DeviceId| self.tree.device(*d).name.clone();
            let lost = lost.iter().map(name).collect();
            let cause = self.last_cause.clone();
            return self.stop(now_ns, Verdict::NothingRuns { lost, cause }, out);
        }
        for device in devices {
            let member = &mut self.members[device];
            let next = Next::Wait {
                until_ns: now_ns + member.backoff.wait_ns(0),
            };
            member.breaker.half_open();
            member.phase = match member.phase {
                Phase::Dying { since_ns, .. } => Phase::Dying { since_ns, next },
                _ => next.into(),
            };
            self.tell(
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

    fn begin(&mut self, now_ns: u64, lost: Vec<DeviceId>, out: &mut Vec<Action>) {
        let epoch = self.next_epoch;
        self.next_epoch.0 += 1;
        self.begun_any = true;
        self.told_waiting = None;
        let uses = self.plans.uses(&lost);
        let mut seats = BTreeMap::new();
        for device in uses {
            assert!(
                self.members[device].is_ready(),
                "{device} has a role and no worker"
            );
            self.members[device].detector.begin(&lost);
            seats.insert(device, Seat::default());
        }
        out.push(Action::Begin {
            epoch,
            lost: lost.clone(),
        });
        self.tell(
            now_ns,
            What::Begin {
                epoch,
                lost: lost.clone(),
            },
            out,
        );
        self.reign = Reign::Running(Running {
            epoch,
            begun_ns: now_ns,
            lost,
            seats,
            quiet: false,
        });
        self.try_quiesce(now_ns, out);
    }

    /// Ends the epoch at its next border if somebody wishes so or a device is back.
    fn try_quiesce(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        let Reign::Running(running) = &self.reign else {
            return;
        };
        let epoch = running.epoch;
        let why = if self.wishes.stop {
            Quiet::Stop
        } else if self.wishes.swap {
            Quiet::Swap
        } else if !self.wishes.restart.is_empty() {
            Quiet::Restart {
                devices: self.wishes.restart.iter().copied().collect(),
            }
        } else if let Some(devices) = self.returned(&running.lost) {
            Quiet::Return { devices }
        } else if let Some(devices) = self.to_replace(running) {
            Quiet::Replace { devices }
        } else {
            return;
        };
        if let Reign::Running(running) = &mut self.reign {
            running.quiet = true;
        }
        out.push(Action::Quiesce { epoch });
        self.tell(now_ns, What::Quiesce { epoch, why }, out);
    }

    /// Slow devices with a role that the others can do.
    fn to_replace(&self, running: &Running) -> Option<Vec<DeviceId>> {
        let is_aside = |d: &DeviceId| self.members[*d].aside_until_ns.is_some();
        let devices: Vec<DeviceId> = running.seats.keys().copied().filter(is_aside).collect();
        let can = !devices.is_empty() && self.plans.can_run(&self.lost(Member::is_available));
        can.then_some(devices)
    }

    /// Devices that are back and would get a role in a better plan.
    fn returned(&self, from: &[DeviceId]) -> Option<Vec<DeviceId>> {
        let mut back = from
            .iter()
            .copied()
            .filter(|d| self.members[*d].is_available())
            .peekable();
        back.peek()?;
        let to = self.lost(Member::is_available);
        if !self.plans.can_run(&to) {
            return None;
        }
        let uses = self.plans.uses(&to);
        let back: Vec<DeviceId> = back.filter(|d| uses.contains(d)).collect();
        (!back.is_empty() && self.plans.gains(from, &to)).then_some(back)
    }
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;
