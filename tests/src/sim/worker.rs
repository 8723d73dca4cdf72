//! Simulated worker processes: what they do slot by slot, and what the system does to them. Must not know the
//! supervisor.

use std::collections::VecDeque;

use zbmd_executor::supervise::{
    Cause, End, Epoch, Generation, GoneWorker, Input, Os, Sample, Thread,
};
use zbmd_ir::DeviceId;

use super::bugs::Bug;
use super::epoch::Saved;
use super::model::{Model, Setting, mix};
use super::world::{Ev, Violation, World};

/// A process, from its start to its end.
#[derive(Clone, Debug)]
pub(crate) struct Proc {
    pub device: DeviceId,
    pub generation: Generation,
    pub alive: bool,
    pub ready: bool,
    pub told_to_die: bool,
    /// It had a role.
    pub worked: bool,
    /// Stopped by a signal; how many times so far.
    pub stopped: bool,
    pub stops: u32,
    /// Its slot never ends; whether it computes.
    pub hung: Option<bool>,
    pub role: Option<Role>,
    /// An epoch that it was told to join.
    pub order: Option<usize>,
    busy: Option<Busy>,
    ticket: u32,
    cpu_ns: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Role {
    pub mem: usize,
    pub seat: usize,
    actors: Vec<u64>,
    feedback: VecDeque<u64>,
    value: u64,
    block: u64,
    saved: u64,
    published: u64,
}

/// A slot at work: its effect comes when it ends.
#[derive(Clone, Copy, Debug)]
struct Busy {
    y: u64,
    left_ns: u64,
    /// On a core since then.
    since_ns: Option<u64>,
    slow: bool,
}

impl Proc {
    pub(crate) fn new(device: DeviceId, generation: Generation) -> Self {
        Self {
            device,
            generation,
            alive: true,
            ready: false,
            told_to_die: false,
            worked: false,
            stopped: false,
            stops: 0,
            hung: None,
            role: None,
            order: None,
            busy: None,
            ticket: 0,
            cpu_ns: 0,
        }
    }

    /// It is in a slot that takes longer than it should.
    pub(crate) fn is_slow(&self) -> bool {
        self.busy.is_some_and(|busy| busy.slow)
    }

    fn cpu_ns(&self, now_ns: u64) -> u64 {
        let since = self.busy.and_then(|busy| busy.since_ns);
        self.cpu_ns + since.map_or(0, |since| now_ns - since)
    }
}

impl World {
    /// What a look at a worker's shared memory, and at its thread, gives.
    pub(crate) fn sample(&self, at: usize) -> Option<(usize, Sample)> {
        let p = &self.procs[at];
        let role = p.role.as_ref()?;
        let waiting = p.busy.is_none();
        let step = role.block * 2 + u64::from(!waiting);
        let starved = self.devices[p.device.index()].starved;
        let asked = self.sup.wants_os(self.now_ns, p.device, step, waiting);
        let os = match p.hung {
            _ if p.stopped => Os::Stopped,
            Some(false) => Os::Blocked,
            _ if waiting => Os::Blocked,
            _ if starved => Os::Starved,
            _ => Os::Running,
        };
        let thread = asked.then(|| Thread {
            os,
            cpu_ns: p.cpu_ns(self.now_ns),
        });
        let periods = role.block + role.seat as u64;
        Some((
            role.mem,
            Sample {
                step,
                periods,
                planned_ns: self.scenario.slot_ns,
                waiting,
                thread,
            },
        ))
    }

    /// Puts a worker on a core, or takes it off, as its state says.
    pub(crate) fn schedule(&mut self, at: usize) {
        let now_ns = self.now_ns;
        let p = &mut self.procs[at];
        let runs = p.alive && !p.stopped && !self.devices[p.device.index()].starved;
        let (hung, Some(busy)) = (p.hung, &mut p.busy) else {
            return;
        };
        if let Some(since) = busy.since_ns.take() {
            p.cpu_ns += now_ns - since;
            busy.left_ns = busy.left_ns.saturating_sub(now_ns - since);
        }
        p.ticket += 1;
        if !runs || hung == Some(false) {
            return;
        }
        busy.since_ns = Some(now_ns);
        if hung.is_none() {
            let (left_ns, ticket) = (busy.left_ns, p.ticket);
            self.after(left_ns, Ev::Done(at, ticket));
        }
    }

    pub(crate) fn order(&mut self, at: usize, mem: usize) -> Result<(), Violation> {
        let p = &mut self.procs[at];
        if !p.alive {
            return Ok(());
        }
        // A connection keeps the order of what is said on it.
        p.order = p.order.max(Some(mem));
        self.step(at)
    }

    fn join(&mut self, at: usize) -> bool {
        let p = &mut self.procs[at];
        let Some(mem) = p.order.take() else {
            return false;
        };
        let epoch = &self.epochs[mem];
        // Seats are in the order of devices.
        let found = epoch.seats.binary_search_by_key(&p.device, |s| s.device);
        let Ok(seat) = found else {
            return false;
        };
        if epoch.stop {
            self.end(at, mem, End::Stopped);
            return false;
        }
        let device = &mut self.devices[p.device.index()];
        if device.no_memory > 0 {
            device.no_memory -= 1;
            device.bad_starts += 1;
            self.incident();
            self.end(at, mem, End::OutOfMemory);
            return false;
        }
        let actors = epoch.start.actors[epoch.seats[seat].actors.clone()].to_vec();
        let feedback = epoch.start.feedback.clone();
        p.worked = true;
        p.role = Some(Role {
            mem,
            seat,
            actors,
            feedback,
            value: epoch.start.value,
            block: 0,
            saved: 0,
            published: 0,
        });
        self.epochs[mem].watch.wake(seat);
        true
    }

    /// A worker's part in an epoch is over.
    fn end(&mut self, at: usize, mem: usize, end: End) {
        let p = &mut self.procs[at];
        p.role = None;
        let (device, generation) = (p.device, p.generation);
        let epoch = Epoch(self.epochs[mem].number);
        self.send(Input::Ended {
            epoch,
            device,
            generation,
            end,
        });
    }

    /// A worker between two slots looks whether it can go on.
    pub(crate) fn step(&mut self, at: usize) -> Result<(), Violation> {
        let p = &self.procs[at];
        if !p.alive || p.stopped || p.busy.is_some() || self.devices[p.device.index()].starved {
            return Ok(());
        }
        let Some(role) = &p.role else {
            return if self.join(at) { self.step(at) } else { Ok(()) };
        };
        let (mem, seat, block) = (role.mem, role.seat, role.block);
        if self.epochs[mem].stop {
            self.end(at, mem, End::Stopped);
            return self.step(at);
        }
        if !self.save(at, mem, seat, block) {
            return Ok(());
        }
        self.publish(at, mem, seat, block);
        if self.limit(mem).is_some_and(|limit| block >= limit) {
            return self.finish(at, mem, seat, block);
        }
        if !self.has_tokens(mem, seat, block) {
            return Ok(());
        }
        let device = self.procs[at].device.index();
        if self.devices[device].slot_faults > 0 {
            self.devices[device].slot_faults -= 1;
            self.end(
                at,
                mem,
                End::Fault {
                    text: "a slot failed".to_owned(),
                },
            );
            return self.step(at);
        }
        if seat > 0 && self.devices[device].corrupt {
            self.devices[device].corrupt = false;
            let from = self.epochs[mem].seats[seat - 1].device;
            self.end(
                at,
                mem,
                End::Corrupt {
                    from,
                    text: "checksums differ".to_owned(),
                },
            );
            return self.step(at);
        }
        self.fire(at, mem, seat, block)
    }

    /// Saves the border that the next block begins at, if there is one; false if that must wait.
    fn save(&mut self, at: usize, mem: usize, seat: usize, block: u64) -> bool {
        let bug = self.bug;
        let epoch = &mut self.epochs[mem];
        let Some(role) = &mut self.procs[at].role else {
            return false;
        };
        if !epoch.borders.is_saved(block) || role.saved == block {
            return true;
        }
        if epoch.committed < epoch.borders.needs(block) && bug != Some(Bug::AreaReusedTooEarly) {
            return false;
        }
        role.saved = block;
        let feedback = match bug {
            Some(Bug::FeedbackNotSaved) => epoch.start.feedback.clone(),
            _ => role.feedback.clone(),
        };
        let mut actors = role.actors.clone();
        if bug == Some(Bug::HeldNotSaved) {
            let numbers = epoch.seats[seat].actors.clone();
            for (state, actor) in actors.iter_mut().zip(numbers) {
                if Model::is_gated(actor) {
                    *state = epoch.start.actors[actor];
                }
            }
        }
        epoch.save(
            seat,
            Saved {
                border: block,
                actors,
                feedback,
                value: role.value,
            },
        );
        true
    }

    /// Whether a block's input is there, and space for its output.
    fn has_tokens(&mut self, mem: usize, seat: usize, block: u64) -> bool {
        let tokens = self.scenario.model.tokens;
        let epoch = &mut self.epochs[mem];
        let last = seat + 1 == epoch.seats.len();
        if !last && epoch.rings[seat].len() >= epoch.ring_blocks {
            return false;
        }
        if seat > 0 {
            return !epoch.rings[seat - 1].is_empty();
        }
        let needed = (epoch.start.blocks + block + 1) * tokens;
        if self.produced < needed || (self.scenario.model.delay > 0 && epoch.feedback.is_empty()) {
            return false;
        }
        epoch.granted = epoch.granted.max(block + 1);
        true
    }

    /// Takes a block's tokens and works on them.
    fn fire(&mut self, at: usize, mem: usize, seat: usize, block: u64) -> Result<(), Violation> {
        let model = &self.scenario.model;
        let epoch = &mut self.epochs[mem];
        let absolute = epoch.start.blocks + block;
        let mut x = if seat > 0 {
            epoch.rings[seat - 1].pop_front().unwrap_or(0)
        } else {
            if absolute * model.tokens < self.tail {
                return Err(Violation::FreedInput {
                    token: absolute * model.tokens,
                    tail: self.tail,
                });
            }
            let late = epoch.feedback.pop_front();
            late.map_or(model.input(absolute), |late| {
                mix(model.input(absolute), late)
            })
        };
        if seat == 0 && self.bug == Some(Bug::RetentionFreedEarly) {
            self.tail = (absolute + 1) * model.tokens;
        }
        let actors = epoch.seats[seat].actors.clone();
        let setting = self.setting(mem, seat, absolute);
        let model = &self.scenario.model;
        let p = &mut self.procs[at];
        let Some(role) = &mut p.role else {
            return Ok(());
        };
        role.value = setting.value;
        let mut open = 0;
        let count = actors.len() as u64;
        for (state, actor) in role.actors.iter_mut().zip(actors) {
            open += u64::from(model.is_open(actor, x));
            x = match self.bug {
                Some(Bug::ClosedLaunched) => model.fire_open(setting, actor, state, x),
                _ => model.fire(setting, actor, state, x),
            };
        }
        // The work of closed firings is skipped.
        let percent = if self.rng.u32(0..100) == 0 {
            300
        } else {
            self.rng.u64(80..130) * open.max(1) / count.max(1)
        };
        let slow = u64::from(self.devices[p.device.index()].slow.max(1));
        let left_ns = self.scenario.slot_ns * percent / 100 * slow;
        p.busy = Some(Busy {
            y: x,
            left_ns,
            since_ns: None,
            slow: slow > 1,
        });
        self.epochs[mem].watch.wake(seat);
        if let Some(computes) = self.devices[p.device.index()].hang.take() {
            p.hung = Some(computes);
            self.incident();
            self.expect_detection(at);
        }
        self.schedule(at);
        if seat > 0 {
            self.wake(mem, seat - 1);
        }
        Ok(())
    }

    /// What a seat computes a block with, counted from the start of the run.
    fn setting(&self, mem: usize, seat: usize, block: u64) -> Setting {
        let epoch = &self.epochs[mem];
        let is_one_of_several = seat == 0 && epoch.seats.len() > 1;
        let is_bad = |bug| is_one_of_several && self.bug == Some(bug);
        let is_late = is_bad(Bug::ModeLateOnOneWorker) && block == self.mode_since;
        let value_block = block.saturating_sub(u64::from(is_bad(Bug::ValueLateOnOneWorker)));
        Setting {
            bundle: epoch.start.bundle,
            mode: epoch.start.mode.saturating_sub(u64::from(is_late)),
            value: self.values.at(value_block),
        }
    }

    /// A slot's end: its tokens go out, whatever became of its epoch meanwhile.
    pub(crate) fn done(&mut self, at: usize, ticket: u32) -> Result<(), Violation> {
        let p = &mut self.procs[at];
        if p.ticket != ticket || !p.alive {
            return Ok(());
        }
        let Some(busy) = p.busy.take() else {
            return Ok(());
        };
        p.cpu_ns += busy.since_ns.map_or(0, |since| self.now_ns - since);
        let Some(role) = &mut p.role else {
            return Ok(());
        };
        role.block += 1;
        let (mem, seat) = (role.mem, role.seat);
        let last = seat + 1 == self.epochs[mem].seats.len();
        if last {
            if self.scenario.model.delay > 0 {
                role.feedback.pop_front();
                role.feedback.push_back(busy.y);
                self.epochs[mem].feedback.push_back(busy.y);
            }
            self.give_out(mem, busy.y, self.scenario.model.tokens)?;
            self.wake(mem, 0);
        } else {
            self.epochs[mem].rings[seat].push_back(busy.y);
            self.wake(mem, seat + 1);
        }
        self.step(at)
    }

    /// Publishes the periods done, after the border that they end at is saved.
    fn publish(&mut self, at: usize, mem: usize, seat: usize, blocks: u64) {
        let Some(role) = &mut self.procs[at].role else {
            return;
        };
        if std::mem::replace(&mut role.published, blocks) == blocks {
            return;
        }
        self.count(mem, seat, blocks + seat as u64);
    }

    fn count(&mut self, mem: usize, seat: usize, periods: u64) {
        let epoch = &mut self.epochs[mem];
        if !epoch.publish(seat, periods, self.bug) {
            return;
        }
        if self.current == Some(mem) && !epoch.stop {
            let committed = epoch.start.blocks + epoch.committed;
            self.commit(committed);
        }
        for seat in 0..self.epochs[mem].seats.len() {
            self.wake(mem, seat);
        }
    }

    /// All blocks of a run of the epoch are done.
    fn finish(&mut self, at: usize, mem: usize, seat: usize, blocks: u64) -> Result<(), Violation> {
        let Some(role) = self.procs[at].role.take() else {
            return Ok(());
        };
        let saved = Saved {
            border: blocks,
            actors: role.actors,
            feedback: role.feedback,
            value: role.value,
        };
        self.epochs[mem].finals[seat] = Some(saved);
        // The periods of the epilogue do nothing.
        let stages = self.epochs[mem].seats.len() as u64;
        self.count(mem, seat, blocks + stages - 1);
        self.end(at, mem, End::Finished { blocks });
        self.step(at)
    }

    /// The end of a process, which the system reports.
    pub(crate) fn die(&mut self, at: usize, cause: Cause) -> Result<(), Violation> {
        let Some(GoneWorker { device, generation }) = self.end_process(at)? else {
            return Ok(());
        };
        if self.bug == Some(Bug::LostGoneIgnored) && !self.procs[at].told_to_die {
            return Ok(());
        }
        self.send(Input::Gone {
            device,
            generation,
            cause,
        });
        Ok(())
    }

    /// The end of a process, if it is alive. A sink's slot may have been half done.
    pub(crate) fn end_process(&mut self, at: usize) -> Result<Option<GoneWorker>, Violation> {
        if !self.procs[at].alive {
            return Ok(None);
        }
        let (busy, role) = (self.procs[at].busy.take(), self.procs[at].role.take());
        self.procs[at].alive = false;
        if let (Some(busy), Some(role)) = (busy, role)
            && role.seat + 1 == self.epochs[role.mem].seats.len()
            && self.procs[at].hung.is_none()
        {
            let some = self.rng.u64(0..=self.scenario.model.tokens);
            self.give_out(role.mem, busy.y, some)?;
        }
        let p = &self.procs[at];
        if !p.worked {
            self.devices[p.device.index()].bad_starts += 1;
        }
        let (device, generation) = (p.device, p.generation);
        Ok(Some(GoneWorker { device, generation }))
    }

    /// Stops a process by a signal.
    pub(crate) fn stop_signal(&mut self, at: usize) {
        let p = &mut self.procs[at];
        if !p.alive || p.stopped {
            return;
        }
        p.stopped = true;
        p.stops += 1;
        if let Some(role) = &p.role {
            self.epochs[role.mem].watch.wake(role.seat);
        }
        self.schedule(at);
        self.expect_detection(at);
    }

    pub(crate) fn continue_signal(&mut self, at: usize) -> Result<(), Violation> {
        self.procs[at].stopped = false;
        self.schedule(at);
        self.step(at)
    }
}
