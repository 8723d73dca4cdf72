//! Ops by name, and the questions that a compiler and an executor ask about actors.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{
    Actor, ActorCost, BlobId, Device, InPlace, LiveParameter, Params, Role, TiSlice, Value,
    has_live, plain_params, visit_live,
};

use zbmd_gpu_ir::{Caps, KernelPlan, LowerKernels};

use crate::args;
use crate::custom;
use crate::entry::stateless_inputs;
use crate::gated::GatedKernel;
use crate::gated_gpu::{gate_reason, gated_plan};
use crate::kernel::Kernel;
use crate::memo::ResolvedOps;
use crate::{
    CustomActor, GpuCapabilities, GpuRequest, Op, OpDoc, OpError, PRODUCT_SHARE, Packing,
    PortPhases, ResolveCx, ResolvedOp, Work, default_work,
};

type CustomFactory = dyn Fn(&Params) -> Result<Arc<dyn CustomActor>, OpError> + Send + Sync;

/// The ops that a program knows, those of a catalogue and registered custom actors.
#[derive(Clone)]
pub struct Registry {
    pub(crate) ops: BTreeMap<String, Arc<dyn Op>>,
    pub(crate) custom: BTreeMap<String, Arc<CustomFactory>>,
    /// What was resolved so far, where that is remembered.
    resolved: Option<Arc<ResolvedOps>>,
    kernel_code: &'static str,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("ops", &self.ops.keys().collect::<Vec<_>>())
            .field("custom", &self.custom.keys().collect::<Vec<_>>())
            .finish()
    }
}

impl Registry {
    /// A catalogue without any op.
    pub fn empty() -> Self {
        Self {
            ops: BTreeMap::new(),
            custom: BTreeMap::new(),
            resolved: None,
            kernel_code: "",
        }
    }

    /// Says which code its kernels are: any text that is another one when that is changed.
    pub fn set_kernel_code(&mut self, kernel_code: &'static str) {
        self.kernel_code = kernel_code;
    }

    /// Which code its kernels are; times that were measured with another are worth nothing. Empty where nobody has said.
    pub fn kernel_code(&self) -> &'static str {
        self.kernel_code
    }

    /// A copy that remembers the ops it resolves, for one compilation or one worker: however many questions are asked
    /// about an actor, its parameters are parsed once. Copies of the copy share the memory.
    #[must_use]
    pub fn resolving_once(&self) -> Self {
        Self {
            resolved: Some(Arc::default()),
            ..self.clone()
        }
    }

    /// A copy that remembers nothing, for parameters that change again and again.
    #[must_use]
    pub fn resolving_anew(&self) -> Self {
        Self {
            resolved: None,
            ..self.clone()
        }
    }

    /// Adds an op; one of the same name is replaced.
    pub fn add(&mut self, op: impl Op + 'static) {
        // What was resolved by an op of that name is not what this one makes of it.
        if self.resolved.is_some() {
            self.resolved = Some(Arc::default());
        }
        self.ops.insert(op.name().to_owned(), Arc::new(op));
    }

    /// Registers a custom actor by name; the factory gets the actor's `params`.
    pub fn register<F, A>(&mut self, name: &str, factory: F)
    where
        F: Fn(&Params) -> Result<A, OpError> + Send + Sync + 'static,
        A: CustomActor + 'static,
    {
        let make = move |params: &Params| -> Result<Arc<dyn CustomActor>, OpError> {
            Ok(Arc::new(factory(params)?))
        };
        self.custom.insert(name.to_owned(), Arc::new(make));
    }

    /// The op of that name.
    pub fn op(&self, name: &str) -> Option<&Arc<dyn Op>> {
        self.ops.get(name)
    }

    /// Names of all ops, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.ops.keys().map(String::as_str)
    }

    /// Name and description of every op, sorted by name.
    pub fn docs(&self) -> Vec<(String, OpDoc)> {
        self.ops
            .iter()
            .map(|(name, op)| (name.clone(), op.doc()))
            .collect()
    }

    pub(crate) fn unknown_op(&self, name: &str) -> OpError {
        let help = match args::nearest(name, self.names()) {
            Some(near) => format!("did you mean `{near}`? See `zbmdc ops` for the catalogue"),
            None => "see `zbmdc ops` for the catalogue, or use `Custom`".to_owned(),
        };
        OpError::Other {
            message: format!("unknown op `{name}`"),
            help,
        }
    }

    /// Makes a registered custom actor; `None` if the name is not registered.
    ///
    /// # Errors
    /// What the factory says of the parameters.
    pub fn custom(
        &self,
        name: &str,
        params: &Params,
    ) -> Option<Result<Arc<dyn CustomActor>, OpError>> {
        self.custom.get(name).map(|factory| factory(params))
    }

    /// The op of that name for these parameters and inputs.
    pub(crate) fn resolve_with(
        &self,
        op: &dyn Op,
        cx: &ResolveCx<'_>,
    ) -> Result<Arc<ResolvedOp>, OpError> {
        match &self.resolved {
            Some(resolved) => resolved.get_or_resolve(op, cx),
            None => op.resolve(cx).map(Arc::new),
        }
    }

    /// The op of an actor, whose ports are those that the op has. For `Custom` the registered actor is made.
    ///
    /// # Errors
    /// [`OpError::Other`] for an op or a custom actor that this program does not know, and for ports that are not
    /// those that the op has; else what the op refuses.
    pub fn resolve_actor(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Result<Arc<ResolvedOp>, OpError> {
        let op = self
            .op(&actor.op)
            .ok_or_else(|| self.unknown_op(&actor.op))?;
        // Ops never see that a parameter is live, or an actor gated.
        let actor = &*actor.ungated();
        let actor = &*with_initial_values(actor);
        if op.name() == custom::NAME {
            return self.resolve_custom_actor(actor, blobs).map(Arc::new);
        }
        if let Some(resolved) = op.resolve_actor(actor, blobs) {
            return resolved.map(Arc::new);
        }

        let (connected, types) = stateless_inputs(actor);
        let cx = ResolveCx {
            params: &actor.params,
            connected: &connected,
            types: &types,
            blobs,
        };
        let resolved = self.resolve_with(&**op, &cx)?;
        resolved.check_ports(actor)?;
        Ok(resolved)
    }

    /// The CPU kernel of an actor. Sources and sinks have none.
    ///
    /// # Errors
    /// See [`Self::resolve_actor`].
    pub fn kernel(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Result<Arc<dyn Kernel>, OpError> {
        self.kernel_in(actor, blobs, None)
    }

    /// Names of the variants of the actor's CPU kernel, the default first; none where there is only one. All write the
    /// same bits, so that calibration may choose.
    pub fn variants(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Vec<&'static str> {
        self.resolve_actor(actor, blobs)
            .map(|resolved| resolved.variants().to_vec())
            .unwrap_or_default()
    }

    /// Like [`Self::kernel`], in the variant of that name; the default one without.
    ///
    /// # Errors
    /// See [`Self::kernel`]; [`OpError::Other`] for a variant that the kernel does not have.
    pub fn kernel_in(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        variant: Option<&str>,
    ) -> Result<Arc<dyn Kernel>, OpError> {
        let kernel = self.open_kernel(actor, blobs, variant)?;
        match actor.gate() {
            Some(gate) => Ok(Arc::new(GatedKernel::new(actor, gate, kernel)?)),
            None => Ok(kernel),
        }
    }

    /// The kernel of an actor's op, which knows no gate.
    fn open_kernel(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        variant: Option<&str>,
    ) -> Result<Arc<dyn Kernel>, OpError> {
        let resolved = self.resolve_actor(actor, blobs)?;
        check_in_place(actor, &resolved)?;
        let Some(name) = variant else {
            return resolved.cpu_kernel(0);
        };

        let known = resolved.variants();
        match known.iter().position(|known| *known == name) {
            Some(variant) => resolved.cpu_kernel(variant),
            None => Err(OpError::Other {
                message: format!(
                    "actor `{}` is to run variant `{name}` of op `{}`, which has {}",
                    actor.name,
                    actor.op,
                    list_or_none(known)
                ),
                help: "the program was made by another version: compile the model again".to_owned(),
            }),
        }
    }

    /// Outputs that the actor's CPU kernel may write over inputs: what a compiler puts into [`Actor::in_place`].
    pub fn in_place(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Vec<InPlace> {
        self.resolve_actor(actor, blobs)
            .map(|resolved| fitting_pairs(actor, &resolved))
            .unwrap_or_default()
    }

    /// The phases of an actor's firings: see [`ResolvedOp::phases`].
    pub fn phases(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Option<PortPhases> {
        if actor.op == custom::NAME {
            return custom::custom_phases(actor, blobs);
        }
        self.resolve_actor(actor, blobs).ok()?.phases().cloned()
    }

    /// The weights of an actor in the order in which its CPU kernel reads them: see [`ResolvedOp::packing`].
    pub fn packing(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Option<Packing> {
        self.resolve_actor(actor, blobs).ok()?.packing()
    }

    /// The actor with these values of its live parameters. Its kernel takes the place of the one before: same ports, same
    /// scratch memory, same states.
    ///
    /// # Errors
    /// What the op refuses; [`OpError::Other`] if ports, initial states or pairs that are written in place would be
    /// others, because a parameter decides them.
    pub fn with_values(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        numbers: &impl Fn(&LiveParameter) -> Option<Vec<f64>>,
    ) -> Result<Actor, OpError> {
        let changed = Actor {
            params: plain_params(&actor.params, numbers),
            ..actor.clone()
        };
        let before = self.resolve_actor(actor, blobs)?;
        // Ports that differ are refused here.
        let after = self.resolve_actor(&changed, blobs)?;
        let states = |resolved: &ResolvedOp| resolved.signature().states.clone();
        let has_same_memory = states(&before) == states(&after)
            && fitting_pairs(actor, &before) == fitting_pairs(&changed, &after);
        if has_same_memory {
            return Ok(changed);
        }
        Err(OpError::Other {
            message: "another value changes what the actor keeps in memory".to_owned(),
            help: "give the parameter a fixed value".to_owned(),
        })
    }

    /// The kernels of an actor for a GPU that has `caps`; `None` where it cannot run there.
    pub fn lower(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        caps: &Caps,
    ) -> Option<KernelPlan> {
        self.lower_in(actor, blobs, caps, None).ok()
    }

    /// Like [`Self::lower`], in one of [`KernelPlan::variants`]; `None` is the default one.
    ///
    /// # Errors
    /// Why the actor cannot run there, or not in that variant, as a clause for people: "the device lacks 64-bit
    /// floats".
    pub fn lower_in(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        caps: &Caps,
        variant: Option<&str>,
    ) -> Result<KernelPlan, String> {
        if self.op(&actor.op).is_none() {
            return Err("the op is unknown".to_owned());
        }
        if has_live(actor) {
            return Err("its live parameters change on CPUs only".to_owned());
        }
        let gate = actor.gate();
        if let Some(why) = gate.and_then(|gate| gate_reason(actor, gate)) {
            return Err(why);
        }
        let resolved = self
            .resolve_actor(actor, blobs)
            .map_err(|error| error.to_string())?;

        // Only devices of a compute capability round factors.
        let default_request = GpuRequest {
            variant: 0,
            may_round: caps.capability.is_some(),
        };
        let mut plan = resolved.gpu_plan(default_request)?;
        if let Some(name) = variant {
            let known = plan.variants();
            let position = known.iter().position(|known| *known == name);
            let index = position.ok_or_else(|| {
                format!(
                    "there is no variant `{name}` of it, but {}",
                    list_or_none(known)
                )
            })?;
            if index > 0 {
                let request = GpuRequest {
                    variant: index,
                    ..default_request
                };
                plan = resolved.gpu_plan(request)?;
            }
        }
        if let Some(gate) = gate {
            plan = gated_plan(actor, gate, plan)?;
        }
        plan.lacks(caps).map_or(Ok(plan), Err)
    }

    /// Why an actor cannot run on a GPU that has `caps`, as a clause for people: "the device lacks 64-bit floats".
    /// `None` where it can. What a device can do is its driver's answer, or [`Caps::COMMON`] without one.
    pub fn gpu_reason(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        caps: &Caps,
    ) -> Option<String> {
        if actor.role != Role::Compute {
            return Some("sources and sinks belong to the host".to_owned());
        }
        self.lower_in(actor, blobs, caps, None).err()
    }

    /// Work of one firing of an actor, its weights included; [`default_work`] where it cannot be resolved.
    pub fn work(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Work {
        // A product of one row multiplies and adds once for each weight of four bytes.
        const MAX_WEIGHT_BYTES_PER_FLOP: f64 = 4.0 / (2.0 * PRODUCT_SHARE);
        // Time is reserved for firings that are open.
        let actor = &*actor.ungated();
        let work = match self.resolve_actor(actor, blobs) {
            Ok(resolved) => resolved.work(actor),
            Err(_) => default_work(actor),
        };
        // A firing reads no more weights than it has operations: of a table of vectors, some rows only.
        let weight_bytes = parameter_bytes(actor) as f64;
        Work {
            bytes: work.bytes + weight_bytes.min(MAX_WEIGHT_BYTES_PER_FLOP * work.flops),
            ..work
        }
    }

    /// Predicted cost of an actor on a device by the roofline model: the larger of its arithmetic and its memory
    /// traffic at the device's peaks, plus a fixed call cost. `None` where the backend has no kernel for the op.
    pub fn cost(
        &self,
        actor: &Actor,
        device: &Device,
        capabilities: &GpuCapabilities,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Option<ActorCost> {
        match device.backend.as_str() {
            "cpu" => Some(self.cpu_work(actor, blobs)?.cost_on(device)),
            "cuda" | "vulkan" => self.gpu_cost(actor, device, capabilities.of(device), blobs),
            _ => None,
        }
    }

    /// What an actor's cost on every CPU device follows from: it is the same for all, and may take the actor's kernel to be
    /// made. `None` where there is none.
    pub fn cpu_work(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Option<CpuWork> {
        if actor.role != Role::Compute {
            return Some(CpuWork {
                firing: FiringWork::Stream(default_work(actor).bytes),
                scratch_bytes: 0,
            });
        }

        let op = self.op(&actor.op)?;
        let firing = match actor.params.get("cost_ns").and_then(Value::as_float) {
            Some(ns) if op.name() == custom::NAME => FiringWork::Given((ns * 1e3).max(1.0) as u64),
            _ if op.name() == custom::NAME => {
                FiringWork::Roofline(self.custom_work(&actor.ungated()))
            }
            _ => FiringWork::Roofline(self.work(actor, blobs)),
        };
        Some(CpuWork {
            firing,
            scratch_bytes: self.scratch_bytes(actor, blobs).unwrap_or(0) as u64,
        })
    }

    /// Bytes of scratch memory that the CPU kernel of an actor needs, in whichever variant.
    ///
    /// # Errors
    /// See [`Self::kernel`].
    pub fn scratch_bytes(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Result<usize, OpError> {
        match actor.gate() {
            Some(_) => Ok(self.kernel(actor, blobs)?.scratch_bytes()),
            None => self.resolve_actor(actor, blobs)?.scratch_bytes(),
        }
    }
}

/// Parameters as ops see them: live ones have their first values.
pub(crate) fn initial_params(params: &Params) -> Cow<'_, Params> {
    let mut is_live = false;
    visit_live(params, &mut |_| is_live = true);
    if is_live {
        Cow::Owned(plain_params(params, &|_| None))
    } else {
        Cow::Borrowed(params)
    }
}

/// The actor with [`initial_params`].
fn with_initial_values(actor: &Actor) -> Cow<'_, Actor> {
    match initial_params(&actor.params) {
        Cow::Borrowed(_) => Cow::Borrowed(actor),
        Cow::Owned(params) => Cow::Owned(Actor {
            params,
            ..actor.clone()
        }),
    }
}

/// What an actor does on any CPU device, as far as its cost depends on it.
#[derive(Clone, Copy, Debug)]
pub struct CpuWork {
    firing: FiringWork,
    scratch_bytes: u64,
}

/// What one firing takes.
#[derive(Clone, Copy, Debug)]
enum FiringWork {
    /// So many picoseconds on every device.
    Given(u64),
    /// As long as the device's peaks allow.
    Roofline(Work),
    /// So many bytes from or to a thread of the host: its core has them in its cache, or had.
    Stream(f64),
}

impl CpuWork {
    /// The predicted cost on a CPU device.
    pub fn cost_on(&self, device: &Device) -> ActorCost {
        const CALL_PS: u64 = 15_000;
        // What the host's thread has written is seen after a cache line's way between two cores.
        const STREAM_CALL_PS: u64 = 150_000;
        let (call_ps, firing_ps) = match self.firing {
            FiringWork::Given(ps) => (CALL_PS, ps),
            FiringWork::Roofline(work) => (CALL_PS, core_roofline(work, device)),
            FiringWork::Stream(bytes) => {
                (STREAM_CALL_PS, roofline(Work { flops: 0.0, bytes }, device))
            }
        };
        ActorCost {
            call_ps,
            firing_ps,
            scratch_bytes: self.scratch_bytes,
        }
    }
}

impl Registry {
    /// Like [`Self::cost`] on a GPU. Sources and sinks are the host's; what has no kernel is the CPU's.
    fn gpu_cost(
        &self,
        actor: &Actor,
        device: &Device,
        caps: &Caps,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Option<ActorCost> {
        // A kernel in a recorded calendar, its barrier included.
        const STEP_PS: u64 = 2_000_000;
        if actor.role != Role::Compute {
            return None;
        }
        let plan = self.lower(actor, blobs, caps)?;
        Some(ActorCost {
            call_ps: STEP_PS * plan.steps() as u64,
            firing_ps: roofline(self.work(actor, blobs), device),
            scratch_bytes: plan.scratch_bytes(),
        })
    }
}

impl LowerKernels for Registry {
    fn lower_kernels(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        caps: &Caps,
        variant: Option<&str>,
    ) -> Result<KernelPlan, String> {
        self.lower_in(actor, blobs, caps, variant)
    }
}

/// The names, or "none".
fn list_or_none(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        _ => names.join(", "),
    }
}

/// The pairs of an op that are possible in this actor.
fn fitting_pairs(actor: &Actor, resolved: &ResolvedOp) -> Vec<InPlace> {
    let pairs = resolved.in_place_pairs().iter();
    pairs.filter(|pair| fits(actor, pair)).copied().collect()
}

/// Refuses an actor that is to write over inputs as its kernel cannot.
fn check_in_place(actor: &Actor, resolved: &ResolvedOp) -> Result<(), OpError> {
    let known = fitting_pairs(actor, resolved);
    let Some(pair) = actor.in_place.iter().find(|pair| !known.contains(pair)) else {
        return Ok(());
    };
    Err(OpError::Other {
        message: format!(
            "actor `{}` is to write output {} over input {} like that, which op `{}` does not do",
            actor.name, pair.output, pair.input, actor.op
        ),
        help: "the program was made by another version: compile the model again".to_owned(),
    })
}

/// Whether of a firing's bytes at the two ports those of one lie within the other's, neither being a state.
fn fits(actor: &Actor, pair: &InPlace) -> bool {
    let input = actor.inputs.get(pair.input as usize);
    let output = actor.outputs.get(pair.output as usize);
    let stateless =
        actor.state_of_input(pair.input).is_none() && actor.state_of_output(pair.output).is_none();
    input.zip(output).is_some_and(|(input, output)| {
        let read = input.rate.saturating_mul(input.token.bytes());
        let written = output.rate.saturating_mul(output.token.bytes());
        let fits = pair
            .at_bytes
            .checked_add(read.min(written))
            .is_some_and(|e| e <= read.max(written));
        stateless && input.window == input.rate && fits
    })
}

/// Bytes of a firing that stay in the second-level cache of a core, and how much faster than memory it is.
const SECOND_LEVEL: (f64, f64) = (1048576.0, 6.0);

/// The same of the cache that cores share.
const SHARED_LEVEL: (f64, f64) = (16777216.0, 2.0);

/// Picoseconds on a CPU core: the larger of arithmetic and memory traffic, as far as that goes beyond a cache.
fn core_roofline(work: Work, device: &Device) -> u64 {
    let (second_level_bytes, second_level_speed) = SECOND_LEVEL;
    let (shared_bytes, shared_speed) = SHARED_LEVEL;
    let in_second_level = work.bytes.min(second_level_bytes);
    let in_shared = work.bytes.min(shared_bytes) - in_second_level;
    let in_memory = work.bytes - in_second_level - in_shared;

    roofline(
        Work {
            bytes: in_second_level / second_level_speed + in_shared / shared_speed + in_memory,
            ..work
        },
        device,
    )
}

/// Picoseconds: the larger of arithmetic and memory traffic at the device's peaks.
fn roofline(work: Work, device: &Device) -> u64 {
    let arithmetic = work.flops * 1e12 / device.flops_per_s.max(1) as f64;
    let memory = work.bytes * 1e12 / device.bytes_per_s.max(1) as f64;
    arithmetic.max(memory).ceil().max(1.0) as u64
}

/// Bytes of the tensors among an actor's parameters.
fn parameter_bytes(actor: &Actor) -> u64 {
    let tensors = actor.params.values().map(|value| match value {
        Value::Tensor(_, token) => token.bytes(),
        _ => 0,
    });
    tensors.fold(0, u64::saturating_add)
}
