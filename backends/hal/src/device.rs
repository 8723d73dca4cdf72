//! A GPU, whichever driver it has, to those who run calendars: what each backend implements for its device.
//!
//! This is the only place where the choice of a driver is dispatched: everything below is generic over one [`Queue`],
//! everything above holds trait objects.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use zbmd_ir::{Actor, BufferId, Calendar, Plan, Program, State};

use super::fault::Fault;
use super::queue::{Backend, Queue};
use super::{Call, Exchange, GateCalls, Halt, Kept, Peers, Replay, Summary};
use zbmd_gpu_ir::{Caps, KernelPlan, LowerKernels};

/// What a replay is prepared from: a calendar of a plan of a verified program, and what the device shares with others.
#[derive(Clone, Copy)]
pub struct ReplayRequest<'a> {
    /// The kernels of the program's actors.
    pub kernels: &'a dyn LowerKernels,
    /// The program, which the verifier has accepted.
    pub program: &'a Program,
    /// One of its plans.
    pub plan: &'a Plan,
    /// The device's calendar in that plan.
    pub calendar: &'a Calendar,
    /// Where tokens are exchanged with other devices.
    pub exchange: &'a Exchange,
}

impl fmt::Debug for ReplayRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayRequest")
            .field("device", &self.calendar.device)
            .finish_non_exhaustive()
    }
}

/// An open GPU. One thread drives it at a time.
pub trait GpuDevice: PrepareWork + Any + fmt::Debug + Send + Sync {
    /// The backend, as machines name it.
    fn backend_name(&self) -> &'static str;

    /// What kernels can do there.
    fn caps(&self) -> &Caps;

    /// What it is, with its driver and the vendor's library: results of measurements are valid for just this.
    fn describe(&self) -> String;

    /// Whether no fault was seen after which the driver must be left alone.
    fn is_alive(&self) -> bool;

    /// Whether kernels wait for others themselves: it was asked for, and the device and its driver support it.
    fn has_dependent_launch(&self) -> bool {
        false
    }

    /// Why the vendor's library cannot compute the products of these kernels here, as a clause; `None` where it can, or
    /// where they have none.
    ///
    /// # Errors
    /// A driver's fault.
    fn unsupported_reason(&self, plan: &KernelPlan) -> Result<Option<String>, Fault>;

    /// Makes kernels ready, so that calendars find them later.
    ///
    /// # Errors
    /// A driver's fault.
    fn warm_kernels(&self, plans: &[KernelPlan], program: &Program) -> Result<(), Fault>;

    /// Stores what the driver compiled for later runs, where the driver has no cache of its own.
    fn save_kernel_cache(&self) {}

    /// What the validation layers have found since the last call, if they are on.
    fn validation_messages(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What is prepared on a GPU. Every [`QueueDevice`] can do so.
pub trait PrepareWork {
    /// See [`Call::new`].
    ///
    /// # Errors
    /// A driver's fault; a call that is too long for the device.
    fn prepare_calls(
        self: Arc<Self>,
        actor: &Actor,
        plan: &KernelPlan,
        firings: usize,
        calls: usize,
    ) -> Result<Box<dyn GpuCalls>, Fault>;

    /// See [`Replay::prepare`].
    ///
    /// # Errors
    /// See [`ReplayError`](super::ReplayError).
    fn prepare_replay(
        self: Arc<Self>,
        request: &ReplayRequest<'_>,
        kept: &mut KeptConstants,
    ) -> Result<Box<dyn GpuReplay>, Fault>;
}

/// A backend's device, whose calendars run in queues of one type.
pub trait QueueDevice: Sized {
    /// The queue of a calendar.
    type Queue: Queue<Device = Self, Fault: Into<Fault>, Bank: Send + Sync> + Send + 'static;
}

impl<D: QueueDevice> PrepareWork for D {
    fn prepare_calls(
        self: Arc<Self>,
        actor: &Actor,
        plan: &KernelPlan,
        firings: usize,
        calls: usize,
    ) -> Result<Box<dyn GpuCalls>, Fault> {
        let call = Call::<D::Queue>::new(&self, actor, plan, firings, calls)?;
        Ok(Box::new(call))
    }

    fn prepare_replay(
        self: Arc<Self>,
        request: &ReplayRequest<'_>,
        kept: &mut KeptConstants,
    ) -> Result<Box<dyn GpuReplay>, Fault> {
        let kept_constants = kept.of_backend::<D::Queue>();
        let replay = Replay::<D::Queue>::prepare(&self, request, kept_constants)?;
        Ok(Box::new(replay))
    }
}

/// The calendar of one device, ready to run: see the module above.
pub trait GpuReplay: Send {
    /// What it consists of.
    fn summary(&self) -> Summary;

    /// See [`Replay::notes`].
    fn notes(&self) -> &[String];

    /// See [`Replay::gate_calls`].
    fn gate_calls(&self) -> GateCalls;

    /// See [`Replay::step`].
    ///
    /// # Errors
    /// A driver's fault, or a stop while waiting.
    fn step(
        &mut self,
        period: u64,
        blocks: Option<u64>,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt<Fault>>;

    /// See [`Replay::drain`].
    ///
    /// # Errors
    /// As [`Self::step`].
    fn drain(&mut self, peers: &mut dyn Peers) -> Result<(), Halt<Fault>>;

    /// See [`Replay::end_next`].
    ///
    /// # Errors
    /// As [`Self::step`].
    fn end_next(&mut self, peers: &mut dyn Peers) -> Result<bool, Halt<Fault>>;

    /// See [`Replay::release_waits`].
    ///
    /// # Errors
    /// A driver's fault.
    fn release_waits(&mut self) -> Result<(), Fault>;

    /// See [`Replay::load_state`].
    ///
    /// # Errors
    /// A driver's fault.
    fn load_state(&mut self, state: &State) -> Result<(), Fault>;

    /// See [`Replay::save_state`].
    ///
    /// # Errors
    /// A driver's fault.
    fn save_state(&mut self, blocks: u64, state: &mut State) -> Result<(), Fault>;

    /// See [`Replay::save_borders`].
    ///
    /// # Errors
    /// A driver's fault.
    fn save_borders(&mut self, every: u64, keepers: &[BufferId]) -> Result<(), Fault>;
}

impl<Q> GpuReplay for Replay<Q>
where
    Q: Queue<Fault: Into<Fault>> + Send,
{
    fn summary(&self) -> Summary {
        self.summary()
    }

    fn notes(&self) -> &[String] {
        self.notes()
    }

    fn gate_calls(&self) -> GateCalls {
        self.gate_calls()
    }

    fn step(
        &mut self,
        period: u64,
        blocks: Option<u64>,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt<Fault>> {
        self.step(period, blocks, peers).map_err(Halt::into_common)
    }

    fn drain(&mut self, peers: &mut dyn Peers) -> Result<(), Halt<Fault>> {
        self.drain(peers).map_err(Halt::into_common)
    }

    fn end_next(&mut self, peers: &mut dyn Peers) -> Result<bool, Halt<Fault>> {
        self.end_next(peers).map_err(Halt::into_common)
    }

    fn release_waits(&mut self) -> Result<(), Fault> {
        self.release_waits().map_err(Into::into)
    }

    fn load_state(&mut self, state: &State) -> Result<(), Fault> {
        self.load_state(state).map_err(Into::into)
    }

    fn save_state(&mut self, blocks: u64, state: &mut State) -> Result<(), Fault> {
        self.save_state(blocks, state).map_err(Into::into)
    }

    fn save_borders(&mut self, every: u64, keepers: &[BufferId]) -> Result<(), Fault> {
        self.save_borders(every, keepers).map_err(Into::into)
    }
}

/// Calls of an actor's kernels: see [`Call::new`].
pub trait GpuCalls {
    /// Puts them into the device's queue.
    ///
    /// # Errors
    /// A driver's fault.
    fn submit(&mut self) -> Result<(), Fault>;

    /// Waits for the end of all that was submitted.
    ///
    /// # Errors
    /// A driver's fault.
    fn wait(&mut self) -> Result<(), Fault>;
}

impl<Q> GpuCalls for Call<Q>
where
    Q: Queue<Fault: Into<Fault>>,
{
    fn submit(&mut self) -> Result<(), Fault> {
        self.submit().map_err(Into::into)
    }

    fn wait(&mut self) -> Result<(), Fault> {
        self.wait().map_err(Into::into)
    }
}

/// Constants that an open GPU keeps from one calendar to the next: of one device only, and dropped before it.
#[derive(Default)]
pub struct KeptConstants(Option<Box<dyn Any + Send>>);

impl KeptConstants {
    /// Those of a backend; nothing at first, and nothing where they are of a device of another backend.
    pub fn of_backend<B>(&mut self) -> &mut Kept<B>
    where
        B: Backend + 'static,
        B::Bank: Send + Sync,
    {
        if !self.0.as_ref().is_some_and(|kept| kept.is::<Kept<B>>()) {
            self.0 = Some(Box::new(Kept::<B>::default()));
        }
        let kept = self.0.as_mut().and_then(|kept| kept.downcast_mut());
        kept.expect("made above")
    }
}

impl fmt::Debug for KeptConstants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptConstants").finish_non_exhaustive()
    }
}
