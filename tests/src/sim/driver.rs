//! What the executor's driver does, simulated: carries out actions, keeps the session's streams and state. Must not
//! decide anything.

use zbmd_executor::supervise::{Action, Cause, Epoch, Input, Plans, Verdict, What};
use zbmd_ir::DeviceId;

use super::bugs::Bug;
use super::disk::Checkpoint;
use super::epoch::{EpochMem, Seat};
use super::model::{State, Values};
use super::scenario::{MS, SECOND, US};
use super::worker::Proc;
use super::world::{Ev, Violation, World};

impl World {
    pub(crate) fn act(&mut self, action: Action) -> Result<(), Violation> {
        match action {
            Action::Spawn { device, generation } => {
                let is_at_large = |at: &usize| {
                    let p = &self.procs[*at];
                    p.alive && !p.told_to_die
                };
                if self.devices[device.index()].workers.iter().any(is_at_large) {
                    return Err(Violation::Twins { device });
                }
                let at = self.procs.len();
                self.procs.push(Proc::new(device, generation));
                self.devices[device.index()].latest = Some(at);
                self.devices[device.index()].workers.push(at);
                self.spawned(at);
            }
            Action::Kill { device, generation } => {
                let is_meant = |at: &usize| {
                    let p = &self.procs[*at];
                    p.generation == generation && p.alive
                };
                let workers = self.devices[device.index()].workers.iter().copied();
                if let Some(at) = workers.rev().find(is_meant) {
                    self.procs[at].told_to_die = true;
                    let long = std::mem::take(&mut self.devices[device.index()].undying);
                    let most = if long {
                        2 * self.scenario.settings.kill_ns
                    } else {
                        MS / 2
                    };
                    let ns = self.rng.u64(20 * US..most);
                    self.after(ns, Ev::Die(at, Cause::Killed { signal: 9 }));
                }
            }
            Action::Begin { epoch, lost } => {
                self.begin(epoch, &lost)?;
                if self.bug == Some(Bug::DoubleBegin) {
                    let ns = self.rng.u64(100..5000) * US;
                    self.after(ns, Ev::BeginAgain(epoch, lost));
                }
            }
            Action::Fence { epoch } | Action::Quiesce { epoch }
                if self.refused.contains(&epoch.0) => {}
            Action::Fence { epoch } => self.fence(epoch)?,
            Action::Quiesce { epoch } => self.quiesce(epoch)?,
            Action::Complete {
                epoch,
                blocks,
                swap,
            } => self.complete(epoch, blocks, swap)?,
            Action::Stop(verdict) => self.over = Some(verdict),
            Action::Event(event) => {
                self.summary.events += 1;
                if self.trace {
                    println!(
                        "{:>12.3} us      {}",
                        event.at_ns as f64 / 1e3,
                        event.line()
                    );
                }
                self.hear(&event.what)?;
            }
        }
        Ok(())
    }

    /// A false alarm is a violation.
    fn hear(&mut self, what: &What) -> Result<(), Violation> {
        match what {
            What::Overdue { device, .. } => {
                self.summary.overdue += 1;
                let d = &self.devices[device.index()];
                let Some(at) = d.latest else { return Ok(()) };
                let p = &self.procs[at];
                if p.is_slow() {
                    self.incident();
                } else if !p.stopped && p.hung.is_none() {
                    return Err(Violation::FalseAlarm { device: *device });
                }
            }
            What::Lost {
                device,
                cause: Cause::NotJoined { .. },
                ..
            } => {
                let d = &self.devices[device.index()];
                let Some(at) = d.latest else { return Ok(()) };
                let p = &self.procs[at];
                if p.alive && !p.stopped && p.hung.is_none() {
                    return Err(Violation::FalseAlarm { device: *device });
                }
            }
            What::Lost { .. } => self.summary.losses += 1,
            What::Begin { .. } => self.summary.epochs += 1,
            What::SetAside { .. } => self.summary.asides += 1,
            _ => {}
        }
        Ok(())
    }

    fn spawned(&mut self, at: usize) {
        let (device, generation) = (self.procs[at].device, self.procs[at].generation);
        let ns = self.scenario.start_ns * self.rng.u64(50..150) / 100;
        let d = &mut self.devices[device.index()];
        if std::mem::take(&mut d.stuck_start) {
            d.bad_starts += 1;
            self.incident();
        } else if d.no_start > 0 {
            d.no_start -= 1;
            d.bad_starts += 1;
            self.incident();
            self.procs[at].alive = false;
            let cause = Cause::NotStarted {
                why: "cannot allocate memory".to_owned(),
            };
            self.send(Input::Gone {
                device,
                generation,
                cause,
            });
        } else {
            self.after(ns, Ev::Ready(at));
        }
    }

    pub(crate) fn begin(&mut self, epoch: Epoch, lost: &[DeviceId]) -> Result<(), Violation> {
        if !self.scenario.plans.can_run(lost) {
            return Err(Violation::NoPlan {
                lost: lost.to_vec(),
            });
        }
        self.next_epoch = epoch.0 + 1;
        if self.refuse > 0 {
            self.refuse -= 1;
            self.summary.refused += 1;
            self.refused.insert(epoch.0);
            self.send(Input::Refused {
                epoch,
                why: "no memory".to_owned(),
            });
            return Ok(());
        }
        let devices = self.scenario.plans.devices_used(lost);
        let (n, actors) = (devices.len(), self.scenario.model.actors);
        let seats: Vec<Seat> = devices
            .iter()
            .enumerate()
            .map(|(i, device)| Seat {
                device: *device,
                actors: i * actors / n..(i + 1) * actors / n,
            })
            .collect();
        let shape = (self.scenario.every, self.scenario.areas);
        let mut mem = EpochMem::new(
            epoch.0,
            self.state.clone(),
            seats,
            shape,
            self.released,
            &self.scenario.model,
        );
        if self.bug == Some(Bug::SkipForgotten) {
            mem.drop = 0;
        }
        let at = self.epochs.len();
        self.epochs.push(mem);
        self.current = Some(at);
        if self.is_mode_requested {
            self.close_grants(at);
        }
        for device in devices {
            let Some(proc) = self.devices[device.index()].latest else {
                continue;
            };
            if self.procs[proc].alive {
                let ns = self.delay();
                self.after(ns, Ev::Order(proc, at));
            }
        }
        Ok(())
    }

    fn at_work(&self, epoch: Epoch) -> Result<usize, Violation> {
        self.current
            .filter(|at| self.epochs[*at].number == epoch.0)
            .ok_or(Violation::WrongEpoch { epoch: epoch.0 })
    }

    fn fence(&mut self, epoch: Epoch) -> Result<(), Violation> {
        let at = self.at_work(epoch)?;
        self.decided = self.first_undecided();
        let bug = self.bug;
        let mem = &mut self.epochs[at];
        mem.stop = bug != Some(Bug::FenceLeftOut);
        mem.sink_closed = !matches!(bug, Some(Bug::FenceLeftOut | Bug::SinkStaysOpen));
        let committed = mem.committed;
        for seat in 0..mem.seats.len() {
            self.wake(at, seat);
        }
        for device in std::mem::take(&mut self.at_fence) {
            self.kill_soon(device);
        }
        // Restoring takes its time, and late workers have as long to spoil it.
        let ns = self.rng.u64(5..200) * US;
        self.after(ns, Ev::Restore(self.life, at, committed));
        Ok(())
    }

    pub(crate) fn restore(&mut self, at: usize, committed: u64) -> Result<(), Violation> {
        let mem = &self.epochs[at];
        let epoch = Epoch(mem.number);
        let state = mem
            .restore(committed, self.bug)
            .ok_or(Violation::NotWhole { border: committed })?;
        self.check_state(&state)?;
        self.futile = if committed > 0 { 0 } else { self.futile + 1 };
        self.state = state;
        self.current = None;
        self.send(Input::Fenced {
            epoch,
            committed_blocks: committed,
        });
        Ok(())
    }

    pub(crate) fn check_state(&mut self, state: &State) -> Result<(), Violation> {
        let expected = self.oracle.state(state.blocks);
        if expected == state {
            Ok(())
        } else {
            Err(Violation::WrongState {
                blocks: state.blocks,
            })
        }
    }

    fn quiesce(&mut self, epoch: Epoch) -> Result<(), Violation> {
        let at = self.at_work(epoch)?;
        self.close_grants(at);
        for device in std::mem::take(&mut self.at_quiesce) {
            self.kill_soon(device);
        }
        Ok(())
    }

    /// No further block is granted, but for those that were given out before.
    fn close_grants(&mut self, at: usize) {
        let tokens = self.scenario.model.tokens;
        let mem = &mut self.epochs[at];
        let given_out = self
            .released
            .div_ceil(tokens)
            .saturating_sub(mem.start.blocks);
        let given_out = if self.bug == Some(Bug::QuiesceTooShort) {
            0
        } else {
            given_out
        };
        mem.limit = Some(mem.granted.max(given_out));
        for seat in 0..mem.seats.len() {
            self.wake(at, seat);
        }
    }

    /// Somebody wants the next mode: the epoch at work ends at its next border.
    pub(crate) fn ask_for_mode(&mut self) {
        if self.is_down || self.is_mode_requested {
            return;
        }
        self.is_mode_requested = true;
        if let Some(at) = self.current.filter(|at| !self.epochs[*at].stop) {
            if self.bug == Some(Bug::ModeAtOnce) {
                self.epochs[at].start.mode += 1;
            }
            self.close_grants(at);
        }
    }

    /// Goes over to the mode that somebody asked for, at the border of this state.
    fn enter_next_mode(&mut self, state: &mut State) {
        let model = &self.scenario.model;
        let declared = model.initial();
        let mut entered = model.with_next_mode(state);
        match self.bug {
            Some(Bug::ModeStateLost) => entered.actors = declared.actors,
            Some(Bug::ModeStateKept) => entered.actors = state.actors.clone(),
            Some(Bug::ValuesLostWithMode) => self.values = Values::default(),
            _ => {}
        }
        *state = entered;
        self.is_mode_requested = false;
        self.mode_since = state.blocks;
        self.summary.modes += 1;
        self.oracle.enter_next_mode(state.blocks);
    }

    /// Sets the value from the first block on that nobody has begun.
    pub(crate) fn set(&mut self) {
        if self.is_down {
            return;
        }
        self.summary.sets += 1;
        let (block, value) = (self.first_undecided(), self.summary.sets);
        self.values.set(block, value);
        self.oracle.set(block, value);
    }

    /// The first block that no epoch was granted.
    fn first_undecided(&self) -> u64 {
        let granted = self.current.map(|at| {
            let mem = &self.epochs[at];
            mem.start.blocks + mem.granted
        });
        self.decided.max(granted.unwrap_or(0))
    }

    fn complete(&mut self, epoch: Epoch, blocks: u64, swap: bool) -> Result<(), Violation> {
        let at = self.at_work(epoch)?;
        let mem = &self.epochs[at];
        let mut state = mem
            .last(blocks)
            .ok_or(Violation::NotWhole { border: blocks })?;
        self.check_state(&state)?;
        let tokens = self.scenario.model.tokens;
        if self.released != state.blocks * tokens {
            return Err(Violation::NotExact {
                released: self.released,
                border: state.blocks * tokens,
            });
        }
        if swap {
            self.summary.swaps += 1;
            state.bundle += 1;
            self.oracle.swap(state.blocks, state.bundle);
        }
        self.decided = self.first_undecided();
        if self.is_mode_requested && state.blocks < self.scenario.model.blocks {
            self.enter_next_mode(&mut state);
        }
        self.commit(state.blocks);
        if blocks > 0 {
            self.futile = 0;
        }
        let more = state.blocks < self.scenario.model.blocks;
        self.state = state;
        self.current = None;
        self.send(Input::Completed { epoch, more });
        Ok(())
    }

    /// So many blocks are done for good: their input is not needed any more.
    pub(crate) fn commit(&mut self, blocks: u64) {
        if self.bug != Some(Bug::RetentionNeverFreed) {
            self.tail = self.tail.max(blocks * self.scenario.model.tokens);
        }
    }

    /// A sink's queue takes tokens, unless it is closed; the consumer has them at once.
    pub(crate) fn give_out(&mut self, mem: usize, y: u64, tokens: u64) -> Result<(), Violation> {
        for token in 0..tokens {
            let epoch = &mut self.epochs[mem];
            if epoch.sink_closed {
                return Ok(());
            }
            if epoch.drop > 0 {
                epoch.drop -= 1;
                continue;
            }
            let value = self.scenario.model.output(y, token);
            if self.file >= self.scenario.model.blocks * self.scenario.model.tokens {
                return Err(Violation::TooMany { outputs: self.file });
            }
            if value != self.oracle.output(self.file) {
                return Err(Violation::WrongOutput { token: self.file });
            }
            self.file += 1;
            self.released += 1;
        }
        Ok(())
    }

    /// Blocks of an epoch that can be run, if that is known.
    pub(crate) fn limit(&self, mem: usize) -> Option<u64> {
        let epoch = &self.epochs[mem];
        let model = &self.scenario.model;
        let all = self.produced == model.blocks * model.tokens;
        let end = all.then(|| model.blocks.saturating_sub(epoch.start.blocks));
        [epoch.limit, end].into_iter().flatten().min()
    }

    /// What a checkpoint would hold now.
    pub(crate) fn checkpoint(&self) -> Option<Checkpoint> {
        let state = match self.current {
            Some(at) if !self.epochs[at].stop => {
                let mem = &self.epochs[at];
                mem.restore(mem.committed, None)?
            }
            _ => self.state.clone(),
        };
        Some(Checkpoint {
            outputs: state.blocks * self.scenario.model.tokens,
            state,
        })
    }

    /// The supervising process dies, and with it all workers; another will take over.
    pub(crate) fn crash(&mut self) {
        self.summary.crashes += 1;
        self.life += 1;
        self.current = None;
        self.procs.iter_mut().for_each(|p| p.alive = false);
        self.disk.crash(self.bug);
        self.is_down = true;
        let ns = self.rng.u64(1..50) * MS;
        self.after(ns, Ev::Resume);
    }

    /// The last word must be true.
    pub(crate) fn check_verdict(&mut self, verdict: &Verdict) -> Result<(), Violation> {
        let model = &self.scenario.model;
        let all = model.blocks * model.tokens;
        let state = self.state.clone();
        let tokens = state.blocks * model.tokens;
        let is_true = match verdict {
            Verdict::Finished => self.file == all && state.blocks == model.blocks,
            Verdict::Requested => {
                self.asked_stop && (self.file == tokens || self.summary.epochs == 0)
            }
            Verdict::GaveUp {
                losses, period_ns, ..
            } => {
                let from = self.now_ns.saturating_sub(period_ns + 2 * SECOND);
                let recent = self.incidents.iter().filter(|at| **at >= from).count();
                recent >= *losses as usize
            }
            Verdict::NeverStarted {
                device, attempts, ..
            } => {
                let at = self
                    .scenario
                    .tree
                    .devices
                    .iter()
                    .position(|d| d.name == *device);
                at.is_some_and(|at| self.devices[at].bad_starts >= *attempts)
            }
            Verdict::NothingRuns { lost, .. } => {
                let is_lost = |d: &zbmd_executor::supervise::DeviceSpec| lost.contains(&d.name);
                let specs = &self.scenario.tree.devices;
                let ids: Vec<DeviceId> = specs
                    .iter_enumerated()
                    .filter(|(_, d)| is_lost(d))
                    .map(|(d, _)| d)
                    .collect();
                let never = |d: &DeviceId| {
                    specs[*d].restart != zbmd_executor::supervise::Restart::Permanent
                };
                !self.scenario.plans.can_run(&ids) && ids.iter().all(never)
            }
            Verdict::NoProgress { epochs, .. } => self.futile >= *epochs,
            Verdict::Refused { attempts, .. } => self.summary.refused >= *attempts,
        };
        self.check_state(&state)?;
        // Everything that is committed is out.
        if is_true && self.file >= tokens {
            Ok(())
        } else {
            Err(Violation::FalseVerdict {
                verdict: verdict.to_string(),
            })
        }
    }
}
