//! An op for given parameters and input types: everything that can be asked about it, parsed once.

use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{Actor, DType, InPlace, InPort, OutPort, Params, StatePort, TokenType, Value};

use super::{OpError, Signature, StateSpec, Work, default_work};
use crate::kernel::Kernel;
use zbmd_gpu_ir::KernelPlan;

type MakeKernel = Box<dyn Fn(usize) -> Result<Arc<dyn Kernel>, OpError> + Send + Sync>;
type LowerToGpu = Box<dyn Fn(GpuRequest) -> Result<KernelPlan, String> + Send + Sync>;
type MakePacking = Box<dyn Fn() -> Packing + Send + Sync>;
type ScratchBytes = Box<dyn Fn() -> usize + Send + Sync>;

/// Which of an op's kernels for GPUs are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuRequest {
    /// The place in [`KernelPlan::variants`]; 0 is the default one.
    pub variant: usize,
    /// Whether factors of products are rounded as the op's parameters allow. Where not, they stay exact.
    pub may_round: bool,
}

/// Weights in the order of a CPU kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Packing {
    /// The parameter that they were.
    pub operand: String,
    /// Its shape, as the model has it.
    pub shape: Vec<u32>,
    /// Its element type, which the packed weights keep.
    pub dtype: DType,
    /// The weights, and zeros that fill them up.
    pub weights: Bytes,
}

impl Packing {
    /// Puts the weights, which have become a blob, in the place of the parameter.
    pub fn put(&self, params: &mut Params, blob: zbmd_ir::BlobId) {
        let elements = self.weights.len() as u64 / self.dtype.size_bytes();
        let len = u32::try_from(elements).unwrap_or(u32::MAX);
        let tensor = Value::Tensor(blob, TokenType::new(self.dtype, [len]));
        let shape = self.shape.iter().map(|d| Value::Int((*d).into())).collect();
        let kept = Value::List(vec![tensor, Value::List(shape)]);

        params.remove(&self.operand);
        params.insert(
            "packed".to_owned(),
            Value::Map([(self.operand.clone(), kept)].into()),
        );
    }
}

/// The tokens of an op's ports in each phase of a firing, where a firing is a cycle of them: cyclo-static rates (Bilsen et
/// al. 1996, "Cyclo-Static Dataflow", IEEE Trans. Signal Processing 44(2)).
///
/// All ports have as many phases, and their tokens of all phases are the port's rate. A kernel sees none of it: it is called
/// for whole cycles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortPhases {
    /// Of each input, the tokens that each phase consumes.
    pub inputs: Vec<Vec<u64>>,
    /// Of each output, the tokens that each phase writes.
    pub outputs: Vec<Vec<u64>>,
}

/// An op whose parameters and input types were parsed and found valid. Its ports, its cost and its kernels follow from
/// what was parsed then: no question reads a parameter again.
pub struct ResolvedOp {
    signature: Signature,
    in_place: Vec<InPlace>,
    variants: Vec<&'static str>,
    work: Option<Work>,
    phases: Option<PortPhases>,
    make_kernel: MakeKernel,
    lower_to_gpu: LowerToGpu,
    make_packing: Option<MakePacking>,
    scratch_bytes: Option<ScratchBytes>,
}

impl std::fmt::Debug for ResolvedOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResolvedOp")
            .field("signature", &self.signature)
            .field("in_place", &self.in_place)
            .field("variants", &self.variants)
            .field("work", &self.work)
            .finish_non_exhaustive()
    }
}

/// How an op says what it is.
impl ResolvedOp {
    /// An op with these ports; `make_kernel` makes its CPU kernel, each time one is asked for.
    pub fn new<K: Kernel + 'static>(
        inputs: Vec<InPort>,
        outputs: Vec<OutPort>,
        make_kernel: impl FnOnce() -> Result<K, OpError> + Clone + Send + Sync + 'static,
    ) -> Self {
        let make_kernel = move |_| {
            let kernel = make_kernel.clone()()?;
            Ok(Arc::new(kernel) as Arc<dyn Kernel>)
        };
        let signature = Signature::stateless(inputs, outputs);
        Self::from_parts(signature, Vec::new(), Box::new(make_kernel))
    }

    /// An op whose CPU kernel can be had in several variants; `make_kernel` gets the place of one in `variants`, of
    /// which the first is the default. Variants differ in what they cost, and in nothing else: not a bit of what they
    /// write, and none needs more scratch memory than the default. A name means the same in every version, or goes.
    pub fn in_variants<K: Kernel + 'static>(
        inputs: Vec<InPort>,
        outputs: Vec<OutPort>,
        variants: Vec<&'static str>,
        make_kernel: impl FnOnce(usize) -> Result<K, OpError> + Clone + Send + Sync + 'static,
    ) -> Self {
        let make_kernel = move |variant| {
            let kernel = make_kernel.clone()(variant)?;
            Ok(Arc::new(kernel) as Arc<dyn Kernel>)
        };
        let signature = Signature::stateless(inputs, outputs);
        Self::from_parts(signature, variants, Box::new(make_kernel))
    }

    /// One token `x` in, one token `y` out.
    pub fn map<K: Kernel + 'static>(
        x: &TokenType,
        y: TokenType,
        make_kernel: impl FnOnce() -> Result<K, OpError> + Clone + Send + Sync + 'static,
    ) -> Self {
        let input = InPort {
            name: "x".to_owned(),
            token: x.clone(),
            rate: 1,
            window: 1,
        };
        let output = OutPort {
            name: "y".to_owned(),
            token: y,
            rate: 1,
        };
        Self::new(vec![input], vec![output], make_kernel)
    }

    /// An op of one actor: whoever asks for its CPU kernel gets this one.
    pub fn of_shared_kernel(signature: Signature, kernel: Arc<dyn Kernel>) -> Self {
        Self::with_signature(signature, move || Ok(Arc::clone(&kernel)))
    }

    /// An op with a signature whose kernel is shared, or cannot be had.
    pub fn with_signature(
        signature: Signature,
        make_kernel: impl Fn() -> Result<Arc<dyn Kernel>, OpError> + Send + Sync + 'static,
    ) -> Self {
        Self::from_parts(signature, Vec::new(), Box::new(move |_| make_kernel()))
    }

    /// Not generic: there are hundreds of kernels.
    fn from_parts(
        signature: Signature,
        variants: Vec<&'static str>,
        make_kernel: MakeKernel,
    ) -> Self {
        Self {
            signature,
            in_place: Vec::new(),
            variants,
            work: None,
            phases: None,
            make_kernel,
            lower_to_gpu: Box::new(|_| Err("this op has no GPU kernel".to_owned())),
            make_packing: None,
            scratch_bytes: None,
        }
    }

    /// Adds kernels for GPUs. What `lower` refuses, as a clause such as "no GPU kernel for f64 functions", runs on CPUs.
    #[must_use]
    pub fn with_gpu_kernels(
        mut self,
        lower: impl Fn(GpuRequest) -> Result<KernelPlan, String> + Send + Sync + 'static,
    ) -> Self {
        self.lower_to_gpu = Box::new(lower);
        self
    }

    /// Adds a kernel for GPUs that does without variants; none is for types or sizes that it does not have.
    #[must_use]
    pub fn gpu(
        self,
        lower: impl FnOnce() -> Option<KernelPlan> + Clone + Send + Sync + 'static,
    ) -> Self {
        self.with_gpu_kernels(move |_| {
            let plan = lower.clone()();
            plan.ok_or_else(|| "it has none for these types or sizes".to_owned())
        })
    }

    /// Allows the CPU kernel to write output 0 over any of these inputs that has as many bytes.
    #[must_use]
    pub fn over(self, inputs: impl IntoIterator<Item = usize>) -> Self {
        let first_output = self.signature.outputs.first();
        let output_bytes = first_output.map(|port| port.rate.saturating_mul(port.token.bytes()));
        let has_equal_size = |index: &usize| {
            let input = self.signature.inputs.get(*index);
            input.map(|port| port.rate.saturating_mul(port.token.bytes())) == output_bytes
        };

        let equal_inputs = inputs.into_iter().filter(has_equal_size);
        let pairs: Vec<InPlace> = equal_inputs
            .map(|index| InPlace::whole(index as u32, 0))
            .collect();
        self.with_in_place_pairs(pairs)
    }

    /// Adds outputs that the CPU kernel may write over inputs: see [`crate::kernel::Io::over`].
    #[must_use]
    pub fn with_in_place_pairs(mut self, pairs: impl IntoIterator<Item = InPlace>) -> Self {
        self.in_place.extend(pairs);
        self
    }

    /// Adds a state.
    #[must_use]
    pub fn state(mut self, name: &str, token: TokenType, initial: Vec<u8>) -> Self {
        self.signature.states.push(StateSpec {
            name: name.to_owned(),
            token,
            initial,
        });
        self
    }

    /// Sets the work of one firing. Without, it is [`default_work`].
    #[must_use]
    pub fn with_work(mut self, work: Work) -> Self {
        self.work = Some(work);
        self
    }

    /// Sets the arithmetic operations of a firing: see [`Work::flops`].
    #[must_use]
    pub fn flops(self, flops: f64) -> Self {
        let bytes = self.port_bytes();
        self.with_work(Work { flops, bytes })
    }

    /// Says that a firing is a cycle of phases, which analyses know of.
    #[must_use]
    pub fn with_phases(mut self, phases: PortPhases) -> Self {
        self.phases = Some(phases);
        self
    }

    /// Adds what puts the weights into the order in which the CPU kernel reads them. What [`Packing::put`] makes of an
    /// actor has the same ports and the same CPU kernel, and no kernel for GPUs.
    #[must_use]
    pub fn with_packing(mut self, pack: impl Fn() -> Packing + Send + Sync + 'static) -> Self {
        self.make_packing = Some(Box::new(pack));
        self
    }

    /// Says how much scratch memory the CPU kernel needs, for kernels that are dear to make because they put weights into
    /// their order. Without, one is made to be asked.
    #[must_use]
    pub fn with_scratch_bytes(mut self, bytes: impl Fn() -> usize + Send + Sync + 'static) -> Self {
        self.scratch_bytes = Some(Box::new(bytes));
        self
    }

    fn port_bytes(&self) -> f64 {
        let inputs = self.signature.inputs.iter();
        let read_bytes = inputs.map(|port| port.rate as f64 * port.token.bytes() as f64);

        let outputs = self.signature.outputs.iter();
        let written_bytes = outputs.map(|port| port.rate as f64 * port.token.bytes() as f64);

        read_bytes.sum::<f64>() + written_bytes.sum::<f64>()
    }
}

/// What an op can be asked.
impl ResolvedOp {
    /// The ports, without those of states.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Outputs that the CPU kernel may write over inputs.
    pub fn in_place_pairs(&self) -> &[InPlace] {
        &self.in_place
    }

    /// Names of the CPU kernel's variants, the default first; none where there is only one.
    pub fn variants(&self) -> &[&'static str] {
        &self.variants
    }

    /// Work of one firing of an actor of this op.
    pub fn work(&self, actor: &Actor) -> Work {
        self.work.unwrap_or_else(|| default_work(actor))
    }

    /// The phases of a firing, if it has several.
    pub fn phases(&self) -> Option<&PortPhases> {
        self.phases.as_ref()
    }

    /// Makes the CPU kernel in the variant of that place in [`Self::variants`].
    ///
    /// # Errors
    /// Sizes that the kernel does not take.
    pub fn cpu_kernel(&self, variant: usize) -> Result<Arc<dyn Kernel>, OpError> {
        (self.make_kernel)(variant)
    }

    /// Bytes of scratch memory that the CPU kernel needs in its default variant, which needs the most.
    ///
    /// # Errors
    /// See [`Self::cpu_kernel`].
    pub fn scratch_bytes(&self) -> Result<usize, OpError> {
        match &self.scratch_bytes {
            Some(bytes) => Ok(bytes()),
            None => Ok(self.cpu_kernel(0)?.scratch_bytes()),
        }
    }

    /// Makes the kernels for GPUs.
    ///
    /// # Errors
    /// Why there are none and the actor runs on a CPU, as a clause: "no GPU kernel for f64 functions".
    pub fn gpu_plan(&self, request: GpuRequest) -> Result<KernelPlan, String> {
        (self.lower_to_gpu)(request)
    }

    /// The weights in the order in which the CPU kernel reads them, where that is another and they are as the model has
    /// them.
    pub fn packing(&self) -> Option<Packing> {
        self.make_packing.as_ref().map(|pack| pack())
    }

    /// Refuses an actor whose ports are not exactly those of the op, states appended in order.
    ///
    /// # Errors
    /// [`OpError::Other`] with both lists of ports.
    pub fn check_ports(&self, actor: &Actor) -> Result<(), OpError> {
        check_ports(actor, &self.signature)
    }
}

/// Refuses an actor whose ports are not exactly those of `signature`, states appended in order.
pub fn check_ports(actor: &Actor, signature: &Signature) -> Result<(), OpError> {
    let mut inputs = signature.inputs.clone();
    let mut outputs = signature.outputs.clone();
    let mut state_ports = Vec::new();
    for state in &signature.states {
        state_ports.push(StatePort {
            input: inputs.len() as u32,
            output: outputs.len() as u32,
        });
        inputs.push(InPort {
            name: state.name.clone(),
            token: state.token.clone(),
            rate: 1,
            window: 1,
        });
        outputs.push(OutPort {
            name: state.name.clone(),
            token: state.token.clone(),
            rate: 1,
        });
    }
    if actor.inputs == inputs && actor.outputs == outputs && actor.state == state_ports {
        return Ok(());
    }

    let actor_ports = port_text(&actor.inputs, &actor.outputs, actor.state.len());
    let op_ports = port_text(&inputs, &outputs, state_ports.len());
    Err(OpError::Other {
        message: format!(
            "actor `{}` has ports {actor_ports}, op `{}` has {op_ports}",
            actor.name, actor.op
        ),
        help: "the program was made by another version: compile the model again".to_owned(),
    })
}

/// Ports as `(x: f32 1/8) -> (y: f32 1), 0 states`; rate/window where they differ.
pub fn port_text(inputs: &[InPort], outputs: &[OutPort], states: usize) -> String {
    let input_text = |port: &InPort| match port.rate == port.window {
        true => format!("{}: {} {}", port.name, port.token, port.rate),
        false => format!(
            "{}: {} {}/{}",
            port.name, port.token, port.rate, port.window
        ),
    };
    let input_texts: Vec<String> = inputs.iter().map(input_text).collect();
    let output_texts: Vec<String> = outputs
        .iter()
        .map(|port| format!("{}: {} {}", port.name, port.token, port.rate))
        .collect();

    let plural = if states == 1 { "" } else { "s" };
    format!(
        "({}) -> ({}), {states} state{plural}",
        input_texts.join(", "),
        output_texts.join(", ")
    )
}
