//! The supervisor: a state machine that takes in what happened and says what to do. It has no clock, threads, memory or
//! randomness of its own, and must not know what a plan computes.

#[path = "epochs.rs"]
mod epochs;
#[path = "parts.rs"]
mod parts;
#[path = "workers.rs"]
mod workers;

use std::collections::BTreeSet;

use zbmd_ir::DeviceId;

use super::detect::{Finding, Sample};
use super::event::{Advice, Event, What};
use super::member::MemberTable;
use super::message::{Action, Cause, End, Epoch, Generation, Input, Verdict};
use super::settings::Settings;
use super::tree::{Tree, TreeSpec};
use parts::WorkerParts;

/// What the supervisor asks about plans; the driver answers for the present bundle.
pub trait Plans {
    /// Whether the run can go on without exactly these devices (ascending; none: the full machine).
    fn can_run(&self, lost: &[DeviceId]) -> bool;

    /// The devices that have a role without these, ascending. Asked only if that can run.
    fn devices_used(&self, lost: &[DeviceId]) -> Vec<DeviceId>;

    /// Whether going over from one loss to a lesser one is worth the interruption: the plan is a better one.
    fn is_improvement(&self, from: &[DeviceId], to: &[DeviceId]) -> bool {
        let _ = (from, to);
        true
    }

    /// Whether a plan without a device that is so many times slower than planned is faster than going on with it.
    fn is_faster_without(
        &self,
        from: &[DeviceId],
        to: &[DeviceId],
        slow: DeviceId,
        times: f64,
    ) -> bool {
        let _ = (from, to, slow, times);
        false
    }
}

/// The supervisor of one run. See the module for what it does, [`Input`] and [`Action`] for how to drive it.
#[derive(Clone, Debug)]
pub struct Supervisor<P> {
    plans: P,
    settings: Settings,
    tree: Tree,
    members: MemberTable,
    epoch_phase: EpochPhase,
    next_epoch: Epoch,
    has_begun: bool,
    /// Asked for and not yet done.
    requests: PendingRequests,
    /// A verdict that waits for the fence.
    stopping: Option<Verdict>,
    last_cause: String,
    /// Epochs in a row without a committed border.
    futile: u32,
    /// Epochs in a row that the driver could not begin.
    refused: u32,
    /// No epoch before then.
    hold_ns: u64,
    /// The loss that was last reported as waited for.
    reported_waiting: Option<Vec<DeviceId>>,
}

#[derive(Clone, Debug, Default)]
struct PendingRequests {
    stop: bool,
    swap: bool,
    restart: BTreeSet<DeviceId>,
}

/// Where the present epoch is, if there is one.
#[derive(Clone, Debug)]
enum EpochPhase {
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
    /// When a worker was seen to have taken up its role last; when the epoch began, if none was.
    joined_ns: u64,
    lost: Vec<DeviceId>,
    parts: WorkerParts,
    quiet: bool,
}

impl<P: Plans> Supervisor<P> {
    /// A supervisor that has done nothing yet.
    pub fn new(settings: Settings, tree: TreeSpec, plans: P) -> Self {
        let tree = Tree::new(tree);
        let members = MemberTable::new(&settings, tree.devices().keys());
        Self {
            plans,
            tree,
            members,
            epoch_phase: EpochPhase::Between,
            next_epoch: settings.first_epoch,
            has_begun: false,
            requests: PendingRequests::default(),
            stopping: None,
            last_cause: "none".to_owned(),
            futile: 0,
            refused: 0,
            hold_ns: 0,
            reported_waiting: None,
            settings,
        }
    }

    /// The answers about plans, to be exchanged between [`Action::Complete`] and [`Input::Completed`].
    pub fn plans_mut(&mut self) -> &mut P {
        &mut self.plans
    }

    /// The devices without which an epoch would begin now. An epoch that does not use one goes on when it is lost or
    /// comes back, so that its own list may be older.
    pub fn unavailable_devices(&self) -> Vec<DeviceId> {
        self.members.unavailable()
    }

    /// How it supervises.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The run is over.
    pub fn is_over(&self) -> bool {
        matches!(self.epoch_phase, EpochPhase::Over)
    }

    /// Whether a look at a worker needs what the system says of its thread: `Detector::wants_os`.
    pub fn wants_os(&self, now_ns: u64, device: DeviceId, step: u64, waiting: bool) -> bool {
        self.members[device]
            .detector
            .wants_os(now_ns, step, waiting)
    }

    /// Whether looks at the worker of this device find nothing as long as it waits on, not stopped, as when the system was
    /// asked last. Who knows
    /// that it does may leave them out: of many workers nearly all wait at any time, and looks are most of the work.
    pub fn is_idle(&self, device: DeviceId) -> bool {
        self.members[device].detector.is_idle()
    }

    /// So many looks at an idle worker were left out since the last one, the last of them at `last_ns`: what follows is
    /// as if they had been made.
    pub fn leave_out_looks(&mut self, device: DeviceId, looks: u32, last_ns: u64) {
        self.members[device].detector.leave_out(looks, last_ns);
    }

    /// The bound of a slot of this device that is planned to take so long: `Detector::bound_ns`.
    pub fn bound_ns(&self, device: DeviceId, planned_ns: u64) -> u64 {
        self.members[device].detector.bound_ns(planned_ns)
    }

    /// The run has begun before, elsewhere: no device is waited for that it can do without. To be said before [`Self::start`].
    pub fn go_on(&mut self) {
        self.has_begun = true;
    }

    /// Begins: starts all workers.
    pub fn start(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        let devices = self.tree.devices().iter().map(|d| d.name.clone()).collect();
        let first_epoch = self.settings.first_epoch;
        self.emit_event(
            now_ns,
            What::Opened {
                devices,
                first_epoch,
            },
            out,
        );

        self.pass_time(now_ns, out);
        self.settle_epoch(now_ns, out);
    }

    /// When [`Input::Tick`] is wanted at the latest.
    pub fn deadline(&self) -> Option<u64> {
        if self.is_over() || self.stopping.is_some() {
            return None;
        }
        let hold = matches!(self.epoch_phase, EpochPhase::Between).then_some(self.hold_ns);
        let member_deadline = self.members.first_deadline_ns();
        member_deadline
            .into_iter()
            .chain(self.join_deadline())
            .chain(hold.filter(|ns| *ns > 0))
            .min()
    }

    /// Takes one input into account; what follows is added to `out`. O(log devices) for what workers report in
    /// the normal course, O(devices) where an epoch begins or ends.
    pub fn handle(&mut self, now_ns: u64, input: Input, out: &mut Vec<Action>) {
        if self.is_over() {
            return;
        }

        match input {
            Input::Seen {
                epoch,
                device,
                generation,
                sample,
            } => {
                if !self.worker_seen(now_ns, epoch, device, generation, sample, out) {
                    return;
                }
            }
            Input::Ready { device, generation } => {
                self.worker_ready(now_ns, device, generation, out)
            }
            Input::Gone {
                device,
                generation,
                cause,
            } => {
                self.worker_gone(now_ns, device, generation, cause, out);
            }
            Input::HostGone { workers, cause } => self.host_gone(now_ns, workers, &cause, out),
            Input::Ended {
                epoch,
                device,
                generation,
                end,
            } => {
                self.part_ended(now_ns, epoch, device, generation, end, out);
            }
            Input::Fenced {
                epoch,
                committed_blocks,
            } => {
                self.epoch_fenced(now_ns, epoch, committed_blocks, out);
            }
            Input::Completed { epoch, more } => self.epoch_completed(now_ns, epoch, more, out),
            Input::Refused { epoch, why } => self.epoch_refused(now_ns, epoch, why, out),
            Input::Request(request) => self.handle_request(now_ns, request, out),
            Input::Tick => {}
        }

        // Whatever came in: time has passed, and an epoch may be able to begin or to end.
        self.pass_time(now_ns, out);
        self.settle_epoch(now_ns, out);
    }

    fn emit_event(&self, at_ns: u64, what: What, out: &mut Vec<Action>) {
        out.push(Action::Event(Event { at_ns, what }));
    }

    fn ignore_stale(
        &self,
        now_ns: u64,
        device: DeviceId,
        generation: Generation,
        message: &dyn std::fmt::Debug,
        out: &mut Vec<Action>,
    ) {
        let message = format!("{message:?}");
        self.emit_event(
            now_ns,
            What::Stale {
                device,
                generation,
                message,
            },
            out,
        );
    }
}

/// What workers report.
impl<P: Plans> Supervisor<P> {
    /// Whether anything came of it.
    fn worker_seen(
        &mut self,
        now_ns: u64,
        epoch: Epoch,
        device: DeviceId,
        of: Generation,
        sample: Sample,
        out: &mut Vec<Action>,
    ) -> bool {
        let EpochPhase::Running(running) = &mut self.epoch_phase else {
            return false;
        };

        let member = &mut self.members[device];
        // What a worker of an older epoch or generation does proves nothing of this one.
        if running.epoch != epoch || member.generation != of || !member.is_ready() {
            return false;
        }
        let part = running.parts.get(device);
        if part.is_none_or(|part| part.finished.is_some()) {
            return false;
        }

        // Who is at work has started: a later failure is not one to start.
        if running.parts.join(device) {
            running.joined_ns = now_ns;
            member.failed_starts = 0;
        }

        let finding = member.detector.look(now_ns, sample);
        if matches!(finding, Finding::Fine) {
            return false;
        }
        self.act_on_finding(now_ns, epoch, device, finding, out);
        true
    }

    /// Acts on what a look at a worker found.
    fn act_on_finding(
        &mut self,
        now_ns: u64,
        epoch: Epoch,
        device: DeviceId,
        finding: Finding,
        out: &mut Vec<Action>,
    ) {
        match finding {
            Finding::Fine => {}
            Finding::Overdue {
                why,
                after_ns,
                bound_ns,
            } => {
                // A hung worker does not end by itself: it is lost, and will be killed.
                let why = why.to_owned();
                let what = What::Overdue {
                    device,
                    epoch,
                    why: why.clone(),
                    after_ns,
                    bound_ns,
                };
                self.emit_event(now_ns, what, out);
                self.lose_worker(now_ns, device, Cause::Hung { why }, false, out);
            }
            Finding::Slow { times, phi, again } => {
                // At first its slots only get more time; if it stays slow, its work goes to others.
                let advice = match again {
                    false => Advice::Retime,
                    true => Advice::Replace,
                };
                let what = What::Slow {
                    device,
                    times,
                    phi,
                    advice,
                };
                if again {
                    self.emit_event(now_ns, what, out);
                    self.set_aside(now_ns, device, times, out);
                } else {
                    self.members[device].detector.retime(times);
                    self.emit_event(now_ns, what, out);
                }
            }
            Finding::Pace => self.emit_event(now_ns, What::Pace { device }, out),
        }
    }

    fn part_ended(
        &mut self,
        now_ns: u64,
        epoch: Epoch,
        device: DeviceId,
        of: Generation,
        end: End,
        out: &mut Vec<Action>,
    ) {
        let current = self.members[device].generation == of && self.members[device].is_ready();
        if !current || self.epoch_of(device) != Some(epoch) {
            // Those that a fence stopped say so, and nobody waits for it.
            if end != End::Stopped {
                self.ignore_stale(now_ns, device, of, &end, out);
            }
            return;
        }

        match end {
            End::Finished { blocks } => self.part_finished(now_ns, device, blocks, out),
            End::OutOfMemory => self.lose_worker(now_ns, device, Cause::OutOfMemory, false, out),
            End::Corrupt { from, .. } => self.retry_epoch(now_ns, from, end, out),
            End::Fault { .. } | End::Stopped => self.retry_epoch(now_ns, device, end, out),
        }
    }

    fn part_finished(&mut self, now_ns: u64, device: DeviceId, blocks: u64, out: &mut Vec<Action>) {
        let EpochPhase::Running(running) = &mut self.epoch_phase else {
            return;
        };
        self.members[device].failed_starts = 0;
        running.parts.finish(device, blocks);

        // The epoch is complete when the last worker has finished its part.
        if !running.parts.have_all_finished() {
            return;
        }

        let epoch = running.epoch;
        if !running.parts.have_all_finished_at(blocks) {
            // They cannot disagree unless memory is broken: what is committed still stands.
            self.last_cause = format!("workers of {epoch} finished different numbers of blocks");
            return self.fence_epoch(now_ns, out);
        }

        let swap = self.requests.swap;
        self.emit_event(now_ns, What::Complete { epoch, blocks }, out);
        out.push(Action::Complete {
            epoch,
            blocks,
            swap,
        });
        self.epoch_phase = EpochPhase::Completing { epoch, blocks };
    }

    /// A fault that the worker survived: the last border is tried again with it, a bounded number of times.
    fn retry_epoch(&mut self, now_ns: u64, device: DeviceId, end: End, out: &mut Vec<Action>) {
        let member = &mut self.members[device];
        member.faults += 1;
        let attempt = member.faults;
        let of = self.settings.retries;

        // A worker that is not ready is lost already, and counted as such.
        if attempt > of && member.is_ready() {
            let cause = match end {
                End::Corrupt { text, .. } => Cause::Corrupt { text },
                End::Fault { text } => Cause::Fault { text },
                _ => Cause::Fault {
                    text: "stopped without a request".to_owned(),
                },
            };
            self.lose_worker(now_ns, device, cause, false, out);
        } else {
            self.last_cause = format!("{} {end:?}", self.tree.device(device).name);
            self.emit_event(
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
        self.fence_epoch(now_ns, out);
    }
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;
