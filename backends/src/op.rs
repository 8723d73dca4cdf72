//! The op catalogue: what ops exist, what ports they have for given parameters and input types, what they cost, and
//! how their kernels are made.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{
    Actor, ActorCost, BlobId, DType, Device, InPlace, InPort, OutPort, Params, TiSlice, TokenType,
    Value,
};

use crate::kernel::Kernel;
use crate::kernels::{Caps, KernelPlan, Math};
use crate::ops::custom;

pub use crate::ops::examples::example_inputs;
pub use crate::ops::sources::source;
pub use crate::ops::types::{CLASSES, PortSchema, TypeSchema};

/// Why an op refuses its parameters or inputs. The compiler draws it on the model's text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpError {
    /// The type of an input must be known first; the compiler asks again when it is.
    #[error("the token type of input `{port}` is not known")]
    NeedInput {
        /// The input port.
        port: String,
    },
    /// A parameter is missing, of the wrong kind or out of range.
    #[error("parameter `{name}`: {message}")]
    Param {
        /// The parameter.
        name: String,
        /// What is wrong, with the two facts that disagree.
        message: String,
        /// How to mend it.
        help: String,
    },
    /// An input has a type that the op does not take, or does not exist.
    #[error("input `{port}`: {message}")]
    Input {
        /// The port.
        port: String,
        /// What is wrong, with the two facts that disagree.
        message: String,
        /// How to mend it.
        help: String,
    },
    /// Anything else: an unknown op, a custom actor that is not registered.
    #[error("{message}")]
    Other {
        /// What is wrong.
        message: String,
        /// How to mend it.
        help: String,
    },
}

/// What an op sees of the actor it is resolved for.
pub struct ResolveCx<'a> {
    /// The actor's parameters.
    pub params: &'a Params,
    /// Input ports that channels name (`to: ["fir.x"]`); a channel that names none counts as the first input.
    pub connected: &'a [String],
    /// Types of inputs known so far, by port name; the key `""` stands for the first input.
    pub types: &'a BTreeMap<String, TokenType>,
    /// Constant tensors that parameters refer to.
    pub blobs: &'a TiSlice<BlobId, Bytes>,
}

impl ResolveCx<'_> {
    /// The type of an input. `first` says that the port is the op's first one.
    ///
    /// # Errors
    /// [`OpError::NeedInput`] while it is unknown.
    pub fn input(&self, port: &str, first: bool) -> Result<&TokenType, OpError> {
        self.types
            .get(port)
            .or_else(|| if first { self.types.get("") } else { None })
            .ok_or_else(|| OpError::NeedInput {
                port: port.to_owned(),
            })
    }
}

/// A state of an op: the compiler adds the two ports and the self-loop channel with this one initial token.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpec {
    /// Name of both ports.
    pub name: String,
    /// Type of the token.
    pub token: TokenType,
    /// Value of the initial token: `token.bytes()` bytes.
    pub initial: Vec<u8>,
}

/// Ports of an actor, without its state ports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signature {
    /// Inputs.
    pub inputs: Vec<InPort>,
    /// Outputs.
    pub outputs: Vec<OutPort>,
    /// States, appended to both port lists in this order.
    pub states: Vec<StateSpec>,
}

/// Work of one firing, for the roofline.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Arithmetic operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

/// For people: what an op does.
#[derive(Clone, Debug, PartialEq)]
pub struct OpDoc {
    /// One line.
    pub summary: &'static str,
    /// Parameters: name, meaning with default.
    pub params: &'static [(&'static str, &'static str)],
    /// Ports with types and rates, in words.
    pub ports: &'static str,
    /// Example as it stands in a model: `Fir(taps: [0.5, 0.5])`.
    pub example: &'static str,
}

/// Weights in the order of a CPU kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Packing {
    /// The parameter that they were.
    pub operand: String,
    /// Its shape, as the model has it.
    pub shape: Vec<u32>,
    /// The weights, and zeros that fill them up: `f32`.
    pub weights: Bytes,
}

impl Packing {
    /// Puts the weights, which have become a blob, in the place of the parameter.
    pub fn put(&self, params: &mut Params, blob: BlobId) {
        let len = u32::try_from(self.weights.len() / 4).unwrap_or(u32::MAX);
        let tensor = Value::Tensor(blob, TokenType::new(zbmd_ir::DType::F32, [len]));
        let shape = self.shape.iter().map(|d| Value::Int((*d).into())).collect();
        let kept = Value::List(vec![tensor, Value::List(shape)]);
        params.remove(&self.operand);
        params.insert(
            "packed".to_owned(),
            Value::Map([(self.operand.clone(), kept)].into()),
        );
    }
}

/// An op of the catalogue.
pub trait Op: Send + Sync {
    /// Name as models write it.
    fn name(&self) -> &str;

    /// Description for the op catalogue.
    fn doc(&self) -> OpDoc;

    /// Element types of the op's ports. Every op of the standard catalogue has them.
    fn types(&self) -> Option<&TypeSchema> {
        None
    }

    /// Names of parameters that may be written without a name, in order: `Expr("x * g")` has `["expr"]`.
    fn positional(&self) -> &'static [&'static str] {
        &[]
    }

    /// Checks the parameters and says which ports the actor has. Must refuse unknown parameters.
    ///
    /// # Errors
    /// See [`OpError`].
    fn resolve(&self, cx: &ResolveCx<'_>) -> Result<Signature, OpError>;

    /// Makes the CPU kernel. The actor's ports are those that [`Self::resolve`] gave (and were verified).
    ///
    /// # Errors
    /// See [`OpError`]; an actor from an untrusted bundle may be refused here.
    fn kernel(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Result<Arc<dyn Kernel>, OpError>;

    /// Names of the variants that the actor's CPU kernel can be had in, the default first; none where there is but one
    /// way to do it. Variants differ in what they cost, and in nothing else: not a bit of what they write, and none
    /// needs more scratch memory than the default. A name means the same in every version, or goes. Ports are as for
    /// [`Self::kernel`].
    fn variants(&self, _actor: &Actor, _blobs: &TiSlice<BlobId, Bytes>) -> Vec<&'static str> {
        Vec::new()
    }

    /// Like [`Self::kernel`], in the variant of that place in [`Self::variants`].
    ///
    /// # Errors
    /// See [`Self::kernel`].
    fn kernel_in(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        _variant: usize,
    ) -> Result<Arc<dyn Kernel>, OpError> {
        self.kernel(actor, blobs)
    }

    /// Makes the kernels for GPUs. Ports are as for [`Self::kernel`].
    ///
    /// # Errors
    /// Why there are none and the actor runs on a CPU, as a clause: "functions of f64 are the CPU's".
    fn lower(&self, _actor: &Actor, _blobs: &TiSlice<BlobId, Bytes>) -> Result<KernelPlan, String> {
        Err("the op has none".to_owned())
    }

    /// Like [`Self::lower`], in the variant of that place in [`KernelPlan::variants`].
    ///
    /// # Errors
    /// See [`Self::lower`].
    fn lower_in(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        _variant: usize,
    ) -> Result<KernelPlan, String> {
        self.lower(actor, blobs)
    }

    /// The weights of an actor in the order in which its CPU kernel reads them, where that is another and the actor
    /// has them as a model does. What [`Packing::put`] makes of the actor has the same ports and the same kernel, and
    /// no kernel for GPUs.
    fn pack(&self, _actor: &Actor, _blobs: &TiSlice<BlobId, Bytes>) -> Option<Packing> {
        None
    }

    /// Outputs that its CPU kernel may write over inputs: see [`crate::kernel::Io::over`]. Ports are as for
    /// [`Self::kernel`].
    fn in_place(&self, _actor: &Actor, _blobs: &TiSlice<BlobId, Bytes>) -> Vec<InPlace> {
        Vec::new()
    }

    /// Work of one firing. By default the bytes of the ports and one operation an output element.
    fn work(&self, actor: &Actor, _blobs: &TiSlice<BlobId, Bytes>) -> Work {
        default_work(actor)
    }
}

/// Bytes of all windows and outputs, and one operation for each output element.
pub fn default_work(actor: &Actor) -> Work {
    let read: f64 = actor
        .inputs
        .iter()
        .map(|p| p.rate as f64 * p.token.bytes() as f64)
        .sum();
    let written: f64 = actor
        .outputs
        .iter()
        .map(|p| p.rate as f64 * p.token.bytes() as f64)
        .sum();
    let flops = actor
        .outputs
        .iter()
        .map(|p| p.rate as f64 * p.token.elements() as f64)
        .sum();
    Work {
        flops,
        bytes: read + written,
    }
}

/// A custom actor: Rust code of the embedding program, used in models as
/// `Custom("name", inputs: {...}, outputs: {...})`. Pure by contract, like every [`Kernel`].
pub trait CustomActor: Kernel {
    /// The ports, compared with those that the model declares, at compile time and at load.
    ///
    /// A model's declaration has no order. Ports sorted by name let a program be compiled without the actor, which
    /// then takes the declaration's ports in that order.
    fn ports(&self) -> Signature;

    /// Work of one firing, if known.
    fn work(&self) -> Option<Work> {
        None
    }

    /// Outputs that the kernel may write over inputs, if a plan puts them there: of a firing's tokens at both, those of
    /// one lie within the other's, and the input has no window beyond its rate. A plan may do with several pairs at
    /// once, but never puts an input into two outputs, or an output over two inputs, of equal sizes. Such a kernel asks
    /// [`crate::kernel::Io::over`] or [`crate::kernel::Io::shares`] in every call.
    fn in_place(&self) -> Vec<InPlace> {
        Vec::new()
    }
}

type CustomFactory = dyn Fn(&Params) -> Result<Arc<dyn CustomActor>, OpError> + Send + Sync;

/// The ops that a program knows: the standard catalogue and registered custom actors.
#[derive(Clone)]
pub struct Registry {
    pub(crate) ops: BTreeMap<String, Arc<dyn Op>>,
    pub(crate) custom: BTreeMap<String, Arc<CustomFactory>>,
    /// What GPUs can do, by name, where it is known.
    gpus: BTreeMap<String, Caps>,
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
            gpus: BTreeMap::new(),
        }
    }

    /// Adds an op; one of the same name is replaced.
    pub fn add(&mut self, op: impl Op + 'static) {
        self.ops.insert(op.name().to_owned(), Arc::new(op));
    }

    /// Says what a GPU can do: actors that it cannot run have no cost there. What is not said is what is common
    /// ([`Caps::COMMON`]); a device that lacks some of it refuses calendars that need it.
    pub fn set_caps(&mut self, device: &str, caps: Caps) {
        self.gpus.insert(device.to_owned(), caps);
    }

    /// What a GPU can do, as far as it is known.
    pub fn caps(&self, device: &Device) -> &Caps {
        let common = if device.backend == "cuda" {
            &Caps::CUDA
        } else {
            &Caps::COMMON
        };
        self.gpus.get(&device.name).unwrap_or(common)
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

    /// The CPU kernel of an actor. Sources and sinks have none. For `Custom` the registered actor is made and its
    /// ports are compared with the actor's.
    ///
    /// # Errors
    /// [`OpError::Other`] for an op or a custom actor that this program does not know, and for ports that are not
    /// those that the op has.
    pub fn kernel(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Result<Arc<dyn Kernel>, OpError> {
        let op = self
            .op(&actor.op)
            .ok_or_else(|| self.unknown_op(&actor.op))?;
        self.check_in_place(actor, blobs)?;
        if op.name() == custom::NAME {
            return self
                .custom_for(actor, blobs)
                .map(|made| made as Arc<dyn Kernel>);
        }
        op.kernel(actor, blobs)
    }

    /// Names of the variants of the actor's CPU kernel, the default first; none where there is but one. All give the
    /// same bits, so that calibration may choose.
    pub fn variants(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Vec<&'static str> {
        self.op(&actor.op)
            .map(|op| op.variants(actor, blobs))
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
        let Some(name) = variant else {
            return self.kernel(actor, blobs);
        };
        let op = self
            .op(&actor.op)
            .ok_or_else(|| self.unknown_op(&actor.op))?;
        self.check_in_place(actor, blobs)?;
        let known = op.variants(actor, blobs);
        match known.iter().position(|known| *known == name) {
            Some(variant) => op.kernel_in(actor, blobs, variant),
            None => Err(OpError::Other {
                message: format!(
                    "actor `{}` is to run variant `{name}` of op `{}`, which has {}",
                    actor.name,
                    actor.op,
                    if known.is_empty() {
                        "none".to_owned()
                    } else {
                        known.join(", ")
                    }
                ),
                help: "the program was made by another version: compile the model again".to_owned(),
            }),
        }
    }

    /// Outputs that the actor's CPU kernel may write over inputs: what a compiler puts into [`Actor::in_place`].
    pub fn in_place(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Vec<InPlace> {
        let Some(op) = self.op(&actor.op) else {
            return Vec::new();
        };
        let mut pairs = match op.name() == custom::NAME {
            true => self
                .custom_for(actor, blobs)
                .map(|made| made.in_place())
                .unwrap_or_default(),
            false => op.in_place(actor, blobs),
        };
        pairs.retain(|pair| fits(actor, pair));
        pairs
    }

    /// Refuses an actor of whom more is expected than its kernel can do.
    fn check_in_place(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Result<(), OpError> {
        if actor.in_place.is_empty() {
            return Ok(());
        }
        let known = self.in_place(actor, blobs);
        let Some(pair) = actor.in_place.iter().find(|p| !known.contains(p)) else {
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
        let op = self
            .op(&actor.op)
            .ok_or_else(|| "the op is unknown".to_owned())?;
        let mut plain = None;
        if caps.capability.is_none() && actor.params.contains_key(Math::PARAM) {
            plain.insert(actor.clone()).params.remove(Math::PARAM);
        }
        let actor = plain.as_ref().unwrap_or(actor);
        let mut plan = op.lower(actor, blobs)?;
        if let Some(name) = variant {
            let known = plan.variants();
            let index = known
                .iter()
                .position(|known| *known == name)
                .ok_or_else(|| {
                    let known = if known.is_empty() {
                        "none".to_owned()
                    } else {
                        known.join(", ")
                    };
                    format!("there is no variant `{name}` of it, but {known}")
                })?;
            if index > 0 {
                plan = op.lower_in(actor, blobs, index)?;
            }
        }
        plan.lacks(caps).map_or(Ok(plan), Err)
    }

    /// Why an actor cannot run on a GPU that has `caps`, as a clause for people: "the device lacks 64-bit floats".
    /// `None` where it can. What a device can do is [`crate::vulkan::Device::caps`], or [`Caps::COMMON`] without one.
    pub fn gpu_reason(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        caps: &Caps,
    ) -> Option<String> {
        if actor.role != zbmd_ir::Role::Compute {
            return Some("sources and sinks belong to the host".to_owned());
        }
        self.lower_in(actor, blobs, caps, None).err()
    }

    /// Predicted cost of an actor on a device by the roofline model: the larger of its arithmetic and its memory
    /// traffic at the device's peaks, plus a fixed call cost. `None` where the backend has no kernel for the op.
    pub fn cost(
        &self,
        actor: &Actor,
        device: &Device,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Option<ActorCost> {
        const CALL_PS: u64 = 15_000;
        match device.backend.as_str() {
            "cpu" => {}
            "cuda" if cfg!(feature = "cuda") => return self.gpu_cost(actor, device, blobs),
            "vulkan" if cfg!(feature = "vulkan") => return self.gpu_cost(actor, device, blobs),
            _ => return None,
        }
        let roofline = |work: Work| roofline(work, device);
        if actor.role != zbmd_ir::Role::Compute {
            let work = Work {
                flops: 0.0,
                ..default_work(actor)
            };
            return Some(ActorCost {
                call_ps: CALL_PS,
                firing_ps: roofline(work),
                scratch_bytes: 0,
            });
        }
        let op = self.op(&actor.op)?;
        let firing_ps = match actor
            .params
            .get("cost_ns")
            .and_then(zbmd_ir::Value::as_float)
        {
            Some(ns) if op.name() == custom::NAME => (ns * 1e3).max(1.0) as u64,
            _ if op.name() == custom::NAME => roofline(self.custom_work(actor)),
            _ => roofline(op.work(actor, blobs)),
        };
        let kernel = self.kernel(actor, blobs);
        let scratch_bytes = kernel.map(|k| k.scratch_bytes() as u64).unwrap_or(0);
        Some(ActorCost {
            call_ps: CALL_PS,
            firing_ps,
            scratch_bytes,
        })
    }
}

impl Registry {
    /// Like [`Self::cost`] on a GPU. Sources and sinks are the host's; what has no kernel is the CPU's.
    fn gpu_cost(
        &self,
        actor: &Actor,
        device: &Device,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Option<ActorCost> {
        // A kernel in a recorded calendar, its barrier included.
        const STEP_PS: u64 = 2_000_000;
        if actor.role != zbmd_ir::Role::Compute {
            return None;
        }
        let caps = self.caps(device);
        let plan = self.lower(actor, blobs, caps)?;
        Some(ActorCost {
            call_ps: STEP_PS * plan.steps() as u64,
            firing_ps: roofline(self.op(&actor.op)?.work(actor, blobs), device),
            scratch_bytes: plan.scratch_bytes(),
        })
    }
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

/// Picoseconds: the larger of arithmetic and memory traffic at the device's peaks.
fn roofline(work: Work, device: &Device) -> u64 {
    let arithmetic = work.flops * 1e12 / device.flops_per_s.max(1) as f64;
    let memory = work.bytes * 1e12 / device.bytes_per_s.max(1) as f64;
    arithmetic.max(memory).ceil().max(1.0) as u64
}

/// Dtype of a parameter written as a word, such as `dtype: f32`.
///
/// # Errors
/// [`OpError::Param`] naming the known dtypes.
pub fn dtype_param(name: &str, word: &str) -> Result<DType, OpError> {
    DType::from_name(word).ok_or_else(|| OpError::Param {
        name: name.to_owned(),
        message: format!("`{word}` is no dtype"),
        help: format!("one of {}", DType::ALL.map(DType::name).join(", ")),
    })
}
