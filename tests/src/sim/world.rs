//! The clock, the queue of what is to happen, the faults, and what one history comes to.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use zbmd_executor::supervise::{
    Action, Cause, Epoch, Input, Request, Settings, Supervisor, Verdict,
};
use zbmd_ir::DeviceId;

use super::bugs::Bug;
use super::disk::Disk;
use super::epoch::EpochMem;
use super::model::{Oracle, State, Values};
use super::scenario::{Fault, MS, SECOND, Scenario, SimPlans, US};
use super::worker::Proc;

/// What must not happen, and did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum Violation {
    #[error("output token {token} is wrong, lost, doubled or out of order")]
    WrongOutput { token: u64 },
    #[error("more outputs than there are: {outputs}")]
    TooMany { outputs: u64 },
    #[error("outputs lie at {file}, the run believes in {released}")]
    Doubled { file: u64, released: u64 },
    #[error("the state taken at block {blocks} is not the one that the run has there")]
    WrongState { blocks: u64 },
    #[error("border {border} was restored and never saved as a whole")]
    NotWhole { border: u64 },
    #[error("a complete epoch ends at token {border}, {released} were given out")]
    NotExact { released: u64, border: u64 },
    #[error("input token {token} is read after all before {tail} were freed")]
    FreedInput { token: u64, tail: u64 },
    #[error("{kept} input tokens are kept, the queue holds {most}")]
    Memory { kept: u64, most: u64 },
    #[error("a second worker for {device}, the first was not told to die")]
    Twins { device: DeviceId },
    #[error("an epoch begins without {lost:?}, and there is no plan for that")]
    NoPlan { lost: Vec<DeviceId> },
    #[error("epoch {epoch} is not at work")]
    WrongEpoch { epoch: u64 },
    #[error("{device} was taken for hung and is not")]
    FalseAlarm { device: DeviceId },
    #[error("{device} hangs, and nobody noticed within {after_us} us")]
    Unnoticed { device: DeviceId, after_us: u64 },
    #[error("the last word is not true: {verdict}")]
    FalseVerdict { verdict: String },
    #[error("the run does not end: {outputs} of {all} tokens are out after {seconds} s")]
    Endless {
        outputs: u64,
        all: u64,
        seconds: u64,
    },
    #[error("the supervisor goes round in circles at {at_ns} ns")]
    Spinning { at_ns: u64 },
}

/// What a history without violation came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "counts of what the names say")]
pub struct Summary {
    pub events: u64,
    pub steps: u64,
    pub outputs: u64,
    pub epochs: u64,
    pub losses: u64,
    /// Losses of all workers of a host at once.
    pub host_losses: u64,
    pub overdue: u64,
    pub crashes: u64,
    pub swaps: u64,
    /// Changes of mode, and values that were set.
    pub modes: u64,
    pub sets: u64,
    /// Slow devices whose work was given to others.
    pub asides: u64,
    pub refused: u32,
    /// Simulated time.
    pub simulated_ns: u64,
    /// The last word, up to its first colon.
    pub ending: String,
}

impl Summary {
    /// Adds another history's counts.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.steps += other.steps;
        self.outputs += other.outputs;
        self.epochs += other.epochs;
        self.losses += other.losses;
        self.host_losses += other.host_losses;
        self.overdue += other.overdue;
        self.crashes += other.crashes;
        self.swaps += other.swaps;
        self.modes += other.modes;
        self.sets += other.sets;
        self.asides += other.asides;
        self.refused += other.refused;
        self.simulated_ns += other.simulated_ns;
    }
}

/// What is to happen.
#[derive(Clone, Debug)]
pub(crate) enum Ev {
    /// To the supervisor of this life.
    Tell(u32, Input),
    Ready(usize),
    Order(usize, usize),
    Step(usize),
    Done(usize, u32),
    Die(usize, Cause),
    Continue(usize),
    Fed(DeviceId),
    Pace(DeviceId),
    Restore(u32, usize, u64),
    BeginAgain(Epoch, Vec<DeviceId>),
    Fault(Fault),
    Produce,
    Look,
    Tick,
    Checkpoint(u32),
    Written(u32),
    DiskFree,
    Resume,
    /// By now the stop of this worker, or else its hang, must have been noticed.
    Noticed(Suspect),
}

/// A worker that stands still since a time, in an epoch, after so many stops.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspect {
    at: usize,
    mem: usize,
    stops: u32,
    stopped: bool,
    since_ns: u64,
}

/// What faults have in store for a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceFaults {
    pub latest: Option<usize>,
    /// All workers that it has had.
    pub workers: Vec<usize>,
    pub starved: bool,
    /// When it was starved last.
    pub fed_ns: u64,
    pub slow: u32,
    pub hang: Option<bool>,
    pub corrupt: bool,
    pub slot_faults: u32,
    pub no_start: u32,
    pub no_memory: u32,
    pub stuck_start: bool,
    pub undying: bool,
    pub flaps: u32,
    /// Starts that came to nothing, in all.
    pub bad_starts: u32,
}

pub(crate) struct World {
    pub rng: Rng,
    pub scenario: Scenario,
    pub bug: Option<Bug>,
    pub trace: bool,
    pub now_ns: u64,
    seq: u64,
    queue: BTreeMap<(u64, u64), Ev>,
    pub sup: Supervisor<SimPlans>,
    pub life: u32,
    pub is_down: bool,
    pub procs: Vec<Proc>,
    woken: Vec<bool>,
    pub devices: Vec<DeviceFaults>,
    pub epochs: Vec<EpochMem>,
    pub current: Option<usize>,
    pub oracle: Oracle,
    /// The last state that the driver took over.
    pub state: State,
    /// Somebody wants the next mode.
    pub is_mode_requested: bool,
    /// The first block in the present mode.
    pub mode_since: u64,
    pub values: Values,
    /// Blocks that earlier epochs were granted: nothing may be set there any more.
    pub decided: u64,
    /// Input tokens that came, and that were freed.
    pub produced: u64,
    pub tail: u64,
    /// Output tokens given out as the run believes, and as they lie in the file.
    pub released: u64,
    pub file: u64,
    pub disk: Disk,
    pub refuse: u32,
    /// One more than the last epoch that was begun, or was to be.
    pub next_epoch: u64,
    pub refused: BTreeSet<u64>,
    pub futile: u32,
    pub asked_stop: bool,
    pub at_fence: Vec<DeviceId>,
    pub at_quiesce: Vec<DeviceId>,
    pub incidents: Vec<u64>,
    pub over: Option<Verdict>,
    is_looking: bool,
    tick_ns: Option<u64>,
    pub summary: Summary,
}

/// Runs the history of a seed.
///
/// # Errors
/// The first thing that must not happen.
pub fn history(seed: u64, bug: Option<Bug>, trace: bool) -> Result<Summary, Violation> {
    let mut rng = Rng::with_seed(seed);
    let scenario = Scenario::new(&mut rng);
    World::new(rng, scenario, bug, trace).run()
}

/// Runs the history of a seed on several hosts, some of which are lost as a whole.
///
/// # Errors
/// The first thing that must not happen.
pub fn history_of_hosts(seed: u64, bug: Option<Bug>, trace: bool) -> Result<Summary, Violation> {
    let mut rng = Rng::with_seed(seed);
    let scenario = Scenario::with_hosts(&mut rng);
    World::new(rng, scenario, bug, trace).run()
}

/// Runs a history with so many devices in one pipeline, of which so many are killed; if they are on `hosts` hosts (0 for
/// none), so many hosts.
///
/// # Errors
/// The first thing that must not happen.
pub fn large(seed: u64, devices: u32, losses: u32, hosts: u32) -> Result<Summary, Violation> {
    let mut rng = Rng::with_seed(seed);
    let scenario = Scenario::large(&mut rng, devices, losses, hosts);
    World::new(rng, scenario, None, false).run()
}

impl World {
    fn new(rng: Rng, scenario: Scenario, bug: Option<Bug>, trace: bool) -> Self {
        if trace {
            println!("{scenario:#?}");
        }
        let state = scenario.model.initial();
        let sup = supervisor(&scenario, 0);
        Self {
            rng,
            bug,
            trace,
            now_ns: 0,
            seq: 0,
            queue: BTreeMap::new(),
            sup,
            life: 0,
            is_down: false,
            procs: Vec::new(),
            woken: Vec::new(),
            devices: vec![DeviceFaults::default(); scenario.plans.devices as usize],
            epochs: Vec::new(),
            current: None,
            oracle: Oracle::new(scenario.model.clone()),
            state,
            is_mode_requested: false,
            mode_since: 0,
            values: Values::default(),
            decided: 0,
            produced: 0,
            tail: 0,
            released: 0,
            file: 0,
            disk: Disk::default(),
            refuse: 0,
            next_epoch: 0,
            refused: BTreeSet::new(),
            futile: 0,
            asked_stop: false,
            at_fence: Vec::new(),
            at_quiesce: Vec::new(),
            incidents: Vec::new(),
            over: None,
            is_looking: false,
            tick_ns: None,
            summary: Summary::default(),
            scenario,
        }
    }

    fn run(mut self) -> Result<Summary, Violation> {
        let mut last_ns = 0;
        for (at, fault) in self.scenario.faults.clone() {
            last_ns = last_ns.max(at);
            self.after(at, Ev::Fault(fault));
        }
        if let Some(every) = self.scenario.checkpoints {
            self.after(every, Ev::Checkpoint(0));
        }
        self.after(0, Ev::Produce);
        self.supervise(None)?;
        let end_ns = last_ns + self.scenario.patience_ns();
        while self.over.is_none() {
            let Some(((at_ns, _), event)) = self.queue.pop_first() else {
                break;
            };
            self.now_ns = at_ns;
            self.summary.steps += 1;
            if at_ns > end_ns {
                break;
            }
            self.happen(event)?;
        }
        let all = self.scenario.model.blocks * self.scenario.model.tokens;
        let Some(verdict) = self.over.take() else {
            let seconds = self.now_ns / SECOND;
            return Err(Violation::Endless {
                outputs: self.file,
                all,
                seconds,
            });
        };
        self.check_verdict(&verdict)?;
        let ending = verdict.to_string();
        Ok(Summary {
            outputs: self.file,
            simulated_ns: self.now_ns,
            ending: ending
                .split([':', ' '])
                .next()
                .unwrap_or_default()
                .to_owned(),
            ..self.summary
        })
    }

    pub(crate) fn after(&mut self, ns: u64, event: Ev) {
        self.seq += 1;
        self.queue.insert((self.now_ns + ns, self.seq), event);
    }

    /// How long a message takes.
    pub(crate) fn delay(&mut self) -> u64 {
        let long = if self.rng.u32(0..50) == 0 { 20 } else { 1 };
        self.rng.u64(0..self.scenario.delay_ns) * long
    }

    pub(crate) fn send(&mut self, input: Input) {
        let ns = self.delay();
        self.after(ns, Ev::Tell(self.life, input));
    }

    pub(crate) fn incident(&mut self) {
        self.incidents.push(self.now_ns);
    }

    /// Something changed that a seat may have waited for.
    pub(crate) fn wake(&mut self, mem: usize, seat: usize) {
        let Some(seat) = self.epochs[mem].seats.get(seat) else {
            return;
        };
        let Some(at) = self.devices[seat.device.index()].latest else {
            return;
        };
        self.woken.resize(self.procs.len(), false);
        if !std::mem::replace(&mut self.woken[at], true) {
            self.after(0, Ev::Step(at));
        }
    }

    /// Tells the supervisor something, and does what it says.
    fn supervise(&mut self, input: Option<Input>) -> Result<(), Violation> {
        let mut out: Vec<Action> = Vec::new();
        let is_look = matches!(input, Some(Input::Seen { .. }));
        match input {
            Some(input) => self.sup.handle(self.now_ns, self.meddle(input), &mut out),
            None => self.sup.start(self.now_ns, &mut out),
        }
        if is_look && out.is_empty() {
            return Ok(());
        }
        for action in out {
            if self.trace && !matches!(action, Action::Event(_)) {
                println!("{:>12.3} us   => {action:?}", self.now_ns as f64 / 1e3);
            }
            self.act(action)?;
        }
        self.look_later();
        let Some(due) = self.sup.deadline() else {
            return Ok(());
        };
        if self.tick_ns.is_none_or(|at| due < at) {
            self.tick_ns = Some(due);
            self.after(due.saturating_sub(self.now_ns), Ev::Tick);
        }
        Ok(())
    }

    fn meddle(&self, input: Input) -> Input {
        match input {
            Input::Gone { device, cause, .. }
                if self.bug == Some(Bug::StaleIncarnationAccepted) =>
            {
                let latest = self.devices[device.index()]
                    .latest
                    .map(|at| &self.procs[at]);
                let generation = latest.map(|p| p.generation).expect("it was spawned once");
                Input::Gone {
                    device,
                    generation,
                    cause,
                }
            }
            Input::HostGone { mut workers, cause } if self.bug == Some(Bug::HostLossToldAgain) => {
                for worker in &mut workers {
                    let latest = self.devices[worker.device.index()]
                        .latest
                        .map(|at| &self.procs[at]);
                    worker.generation = latest.map(|p| p.generation).expect("it was spawned once");
                }
                Input::HostGone { workers, cause }
            }
            other => other,
        }
    }

    fn look_later(&mut self) {
        if self.current.is_some() && !self.is_looking {
            self.is_looking = true;
            self.after(self.sup.settings().detect.look_ns, Ev::Look);
        }
    }

    fn happen(&mut self, event: Ev) -> Result<(), Violation> {
        if self.trace && !matches!(event, Ev::Look | Ev::Step(_) | Ev::Done(..) | Ev::Produce) {
            println!("{:>12.3} us   {event:?}", self.now_ns as f64 / 1e3);
        }
        match event {
            Ev::Tell(life, input) if life == self.life && !self.is_down => {
                self.supervise(Some(input))?;
            }
            Ev::Ready(at) if self.procs[at].alive => self.ready(at),
            Ev::Order(at, mem) => self.order(at, mem)?,
            Ev::Step(at) => {
                self.woken[at] = false;
                self.step(at)?;
            }
            Ev::Done(at, ticket) => self.done(at, ticket)?,
            Ev::Die(at, cause) => self.die(at, cause)?,
            Ev::Continue(at) => self.continue_signal(at)?,
            Ev::Fed(device) => {
                self.devices[device.index()].starved = false;
                self.devices[device.index()].fed_ns = self.now_ns;
                if let Some(at) = self.devices[device.index()].latest {
                    self.schedule(at);
                    self.step(at)?;
                }
            }
            Ev::Pace(device) => self.devices[device.index()].slow = 1,
            Ev::Restore(life, at, committed) if life == self.life => self.restore(at, committed)?,
            Ev::BeginAgain(epoch, lost) if self.is_at_work(epoch) => self.begin(epoch, &lost)?,
            Ev::Fault(fault) => self.fault(fault)?,
            Ev::Produce => self.produce()?,
            Ev::Look => self.look()?,
            Ev::Tick if !self.is_down => self.tick()?,
            Ev::Checkpoint(life) if life == self.life && !self.is_down => self.begin_checkpoint(),
            Ev::Written(life) if life == self.life => self.disk.end(),
            Ev::DiskFree => self.disk.full = false,
            Ev::Resume => self.resume()?,
            Ev::Noticed(suspect) => self.noticed(suspect)?,
            _ => {}
        }
        let (kept, most) = (
            self.produced.saturating_sub(self.tail),
            self.scenario.retained,
        );
        if kept > most {
            return Err(Violation::Memory { kept, most });
        }
        Ok(())
    }

    fn is_at_work(&self, epoch: Epoch) -> bool {
        self.current
            .is_some_and(|at| self.epochs[at].number == epoch.0 && !self.epochs[at].stop)
    }

    fn ready(&mut self, at: usize) {
        let p = &mut self.procs[at];
        p.ready = true;
        let (device, generation) = (p.device, p.generation);
        self.send(Input::Ready { device, generation });
        let d = &mut self.devices[device.index()];
        if d.flaps > 0 {
            d.flaps -= 1;
            let ns = self.rng.u64(0..30_000) * US;
            self.incidents.push(self.now_ns + ns);
            self.after(ns, Ev::Die(at, Cause::Exited { code: 1 }));
        }
    }

    fn produce(&mut self) -> Result<(), Violation> {
        let model = &self.scenario.model;
        let all = model.blocks * model.tokens;
        let fits = self.produced + model.tokens <= self.tail + self.scenario.retained;
        if self.produced < all && fits {
            self.produced += model.tokens;
            if let Some(mem) = self.current {
                self.wake(mem, 0);
                // The end of the input is known to all.
                let seats = if self.produced == all {
                    self.epochs[mem].seats.len()
                } else {
                    0
                };
                (0..seats).for_each(|seat| self.wake(mem, seat));
            }
        }
        let slow = if fits { self.scenario.input_ns } else { MS };
        self.after(slow, Ev::Produce);
        Ok(())
    }

    fn look(&mut self) -> Result<(), Violation> {
        self.is_looking = false;
        let Some(mem) = self.current.filter(|_| !self.is_down) else {
            return Ok(());
        };
        for seat in self.epochs[mem].watch.begin_round() {
            if self.current == Some(mem) {
                self.look_at(mem, seat)?;
            }
        }
        self.look_later();
        Ok(())
    }

    /// Looks at the worker of a seat. One that is not at work is looked at again when it joins, one that waits
    /// when it goes on: in long pipelines nearly all of them wait.
    fn look_at(&mut self, mem: usize, seat: usize) -> Result<(), Violation> {
        let device = self.epochs[mem].seats[seat].device;
        let has_role = |at: &usize| {
            let role = self.procs[*at].role.as_ref();
            role.is_some_and(|role| role.mem == mem)
        };
        let Some(at) = self.worker(device).filter(has_role) else {
            self.epochs[mem].watch.leave(seat);
            return Ok(());
        };

        // What the look itself asks depends on those before it.
        let left_out = self.epochs[mem].watch.look(seat);
        let before_ns = self.now_ns - self.sup.settings().detect.look_ns;
        self.sup.leave_out_looks(device, left_out, before_ns);
        let Some((_, sample)) = self.sample(at) else {
            return Ok(());
        };
        let generation = self.procs[at].generation;
        self.supervise(Some(Input::Seen {
            epoch: Epoch(self.epochs[mem].number),
            device,
            generation,
            sample,
        }))?;
        // A stop that came since the system was asked last is not known to the detector yet.
        if self.sup.is_idle(device) && !self.procs[at].stopped {
            self.epochs[mem].watch.sleep(seat);
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Violation> {
        if self.tick_ns.is_none_or(|at| at > self.now_ns) {
            return Ok(());
        }
        self.tick_ns = None;
        self.supervise(Some(Input::Tick))?;
        if self.sup.deadline().is_some_and(|at| at <= self.now_ns) {
            return Err(Violation::Spinning { at_ns: self.now_ns });
        }
        Ok(())
    }

    fn begin_checkpoint(&mut self) {
        let every = self.scenario.checkpoints.unwrap_or(SECOND);
        self.after(every, Ev::Checkpoint(self.life));
        if self.disk.writing.is_none()
            && let Some(checkpoint) = self.checkpoint()
        {
            self.disk.begin(checkpoint);
            let ns = self.rng.u64(100..5000) * US;
            self.after(ns, Ev::Written(self.life));
        }
    }

    fn resume(&mut self) -> Result<(), Violation> {
        self.is_down = false;
        let found = self.disk.newest();
        let (state, outputs) =
            found.map_or((self.scenario.model.initial(), 0), |c| (c.state, c.outputs));
        if self.disk.kept() > 3 {
            return Err(Violation::Memory {
                kept: self.disk.kept() as u64,
                most: 3,
            });
        }
        // A request that came after the checkpoint is forgotten with all else.
        self.oracle.go_back(&state);
        self.check_state(&state)?;
        self.is_mode_requested = false;
        self.mode_since = 0;
        self.values = Values::of(&state);
        self.decided = state.blocks;
        self.released = outputs;
        if self.bug != Some(Bug::OutputNotCutBack) {
            self.file = outputs;
        }
        if self.file != self.released {
            return Err(Violation::Doubled {
                file: self.file,
                released: self.released,
            });
        }
        // Sources are files: what was read since the checkpoint is read again.
        self.tail = state.blocks * self.scenario.model.tokens;
        self.produced = self.tail;
        self.state = state;
        self.futile = 0;
        self.sup = supervisor(&self.scenario, self.next_epoch);
        if let Some(every) = self.scenario.checkpoints {
            self.after(every, Ev::Checkpoint(self.life));
        }
        self.tick_ns = None;
        self.supervise(None)
    }

    /// The live worker of a device.
    fn worker(&self, device: DeviceId) -> Option<usize> {
        self.devices[device.index()]
            .latest
            .filter(|at| self.procs[*at].alive)
    }

    pub(crate) fn kill_soon(&mut self, device: DeviceId) {
        if let Some(at) = self.worker(device) {
            let ns = self.rng.u64(0..300) * US;
            self.incidents.push(self.now_ns + ns);
            self.after(ns, Ev::Die(at, Cause::Killed { signal: 9 }));
        }
    }

    fn kill(&mut self, device: DeviceId) -> Result<(), Violation> {
        let Some(at) = self.worker(device) else {
            return Ok(());
        };
        self.incident();
        self.die(at, Cause::Killed { signal: 9 })
    }

    /// All workers of a host are gone at once, and whoever watches hosts says so once.
    fn kill_host(&mut self, host: usize) -> Result<(), Violation> {
        let mut gone_workers = Vec::new();
        for device in self.scenario.plans.hosts[host].clone() {
            // Those that were left behind and are still dying are gone too.
            for at in self.devices[device.index()].workers.clone() {
                let gone = self.end_process(at)?;
                if gone.is_some() {
                    self.incident();
                }
                gone_workers.extend(gone);
            }
        }
        if gone_workers.is_empty() {
            return Ok(());
        }

        if self.bug == Some(Bug::HostHalfLost) {
            gone_workers.truncate(1);
        }
        self.summary.host_losses += 1;
        // It comes back, and whoever watches hosts says so.
        let back_ns = self.rng.u64(1..500) * MS;
        for device in self.scenario.plans.hosts[host].clone() {
            let restart = Input::Request(Request::Restart(device));
            self.after(back_ns, Ev::Tell(self.life, restart));
        }
        let told = Input::HostGone {
            workers: gone_workers,
            cause: Cause::Killed { signal: 9 },
        };
        if self.bug == Some(Bug::HostLossToldAgain) {
            let ns = self.rng.u64(1..30) * MS;
            self.after(ns, Ev::Tell(self.life, told.clone()));
        }
        self.send(told);
        Ok(())
    }

    fn fault(&mut self, fault: Fault) -> Result<(), Violation> {
        match fault {
            Fault::Kill(device) => self.kill(device)?,
            Fault::KillHost(host) => self.kill_host(host)?,
            Fault::KillTwo(one, two) => {
                self.kill(one)?;
                self.kill(two)?;
            }
            Fault::KillAtFence(device) => self.at_fence.push(device),
            Fault::KillAtQuiesce(device) => self.at_quiesce.push(device),
            Fault::Flap(device, times) => {
                self.devices[device.index()].flaps += times;
                self.kill(device)?;
            }
            Fault::Stop(device, long) => {
                if let Some(at) = self.worker(device) {
                    self.incident();
                    self.stop_signal(at);
                    if let Some(ns) = long {
                        self.after(ns, Ev::Continue(at));
                    }
                }
            }
            Fault::Hang(device, computes) => self.devices[device.index()].hang = Some(computes),
            Fault::Slow(device, times, long) => {
                self.devices[device.index()].slow = times;
                self.after(long, Ev::Pace(device));
            }
            Fault::Starve(device, long) => {
                self.devices[device.index()].starved = true;
                if let Some(at) = self.worker(device) {
                    self.schedule(at);
                }
                self.after(long, Ev::Fed(device));
            }
            Fault::Corrupt(device) => {
                self.incident();
                self.devices[device.index()].corrupt = true;
            }
            Fault::BadSlot(device, times) => {
                (0..times).for_each(|_| self.incident());
                self.devices[device.index()].slot_faults += times;
            }
            Fault::NoStart(device, times) => {
                self.devices[device.index()].no_start += times;
                self.kill(device)?;
            }
            Fault::StuckStart(device) => {
                self.devices[device.index()].stuck_start = true;
                self.kill(device)?;
            }
            Fault::NoMemory(device, times) => self.devices[device.index()].no_memory += times,
            Fault::Undying(device) => {
                self.devices[device.index()].undying = true;
                if let Some(at) = self.worker(device) {
                    self.incident();
                    self.stop_signal(at);
                }
            }
            Fault::Refuse(times) => self.refuse += times,
            Fault::DiskFull(long) => {
                self.disk.full = true;
                self.after(long, Ev::DiskFree);
            }
            Fault::Crash if !self.is_down => self.crash(),
            Fault::Crash => {}
            Fault::AskStop => self.ask(Request::Stop)?,
            Fault::AskSwap => self.ask(Request::Swap)?,
            Fault::AskRestart(device) => self.ask(Request::Restart(device))?,
            Fault::AskMode => self.ask_for_mode(),
            Fault::AskSet => self.set(),
        }
        Ok(())
    }

    fn ask(&mut self, request: Request) -> Result<(), Violation> {
        if self.is_down {
            return Ok(());
        }
        self.asked_stop |= request == Request::Stop;
        if let (Request::Swap, Some(Bug::SwapAtOnce), Some(mem)) = (request, self.bug, self.current)
        {
            self.epochs[mem].start.bundle += 1;
        }
        self.supervise(Some(Input::Request(request)))
    }

    /// From now on the clock of the detector runs: 5 ms and two bounds.
    pub(crate) fn expect_detection(&mut self, at: usize) {
        let p = &self.procs[at];
        let Some(role) = &p.role else { return };
        if self.current != Some(role.mem) || self.devices[p.device.index()].starved {
            return;
        }
        let bound_ns = self.sup.bound_ns(p.device, self.scenario.slot_ns);
        let (mem, stops, stopped) = (role.mem, p.stops, p.stopped);
        let suspect = Suspect {
            at,
            mem,
            stops,
            stopped,
            since_ns: self.now_ns,
        };
        self.after(5 * MS + 2 * bound_ns, Ev::Noticed(suspect));
    }

    fn noticed(&self, suspect: Suspect) -> Result<(), Violation> {
        let Suspect {
            at,
            mem,
            stops,
            stopped,
            since_ns,
        } = suspect;
        let p = &self.procs[at];
        let stands = p.stops == stops && p.stopped == stopped && (stopped || p.hung.is_some());
        let same = p.role.as_ref().is_some_and(|role| role.mem == mem);
        // A worker without a core cannot be seen to hang.
        let device = &self.devices[p.device.index()];
        let starved = device.starved || device.fed_ns > since_ns;
        let watched = self.current == Some(mem) && !self.epochs[mem].stop && !self.is_down;
        if p.alive && !p.told_to_die && stands && same && !starved && watched {
            let after_us = (self.now_ns - since_ns) / US;
            return Err(Violation::Unnoticed {
                device: p.device,
                after_us,
            });
        }
        Ok(())
    }
}

fn supervisor(scenario: &Scenario, first_epoch: u64) -> Supervisor<SimPlans> {
    let first_epoch = Epoch(first_epoch);
    let settings = Settings {
        first_epoch,
        ..scenario.settings.clone()
    };
    Supervisor::new(settings, scenario.tree.clone(), scenario.plans.clone())
}
