//! How ops of the standard catalogue are written: one function from arguments to ports, work and kernel, so that
//! the compiler, the loader and the cost model cannot disagree.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{Actor, BlobId, InPlace, InPort, OutPort, StatePort, TiSlice, TokenType, limits};

use super::args::{Args, input_error};
use super::types::{Bindings, TypeSchema, no_elements};
use crate::kernel::{Io, Kernel};
use crate::kernels::KernelPlan;
use crate::op::{Op, OpDoc, OpError, ResolveCx, Signature, StateSpec, Work, default_work};

/// Makes the kernel in the variant of a number.
type MakeKernel = Box<dyn FnOnce(usize) -> Result<Arc<dyn Kernel>, OpError>>;
type Lower = Box<dyn FnOnce() -> Option<KernelPlan>>;

/// An op for given arguments and input types.
pub(crate) struct Made {
    pub(crate) signature: Signature,
    /// Outputs that the kernel may write over inputs.
    pub(crate) in_place: Vec<InPlace>,
    /// Names of the kernel's variants, the default first; none where there is but one.
    pub(crate) variants: Vec<&'static str>,
    work: Option<Work>,
    kernel: MakeKernel,
    lower: Lower,
}

impl Made {
    /// Ports, and how to make the kernel.
    pub(crate) fn new<K: Kernel + 'static>(
        inputs: Vec<InPort>,
        outputs: Vec<OutPort>,
        kernel: impl FnOnce() -> Result<K, OpError> + 'static,
    ) -> Self {
        Self::in_variants(inputs, outputs, Vec::new(), move |_| kernel())
    }

    /// Ports, and how to make the kernel in the variant of a number.
    pub(crate) fn in_variants<K: Kernel + 'static>(
        inputs: Vec<InPort>,
        outputs: Vec<OutPort>,
        variants: Vec<&'static str>,
        kernel: impl FnOnce(usize) -> Result<K, OpError> + 'static,
    ) -> Self {
        let signature = Signature {
            inputs,
            outputs,
            states: Vec::new(),
        };
        let kernel = move |variant| Ok(Arc::new(kernel(variant)?) as Arc<dyn Kernel>);
        Self {
            signature,
            in_place: Vec::new(),
            variants,
            work: None,
            kernel: Box::new(kernel),
            lower: Box::new(|| None),
        }
    }

    /// One token `x` in, one token `y` out.
    pub(crate) fn map<K: Kernel + 'static>(
        x: &TokenType,
        y: TokenType,
        kernel: impl FnOnce() -> Result<K, OpError> + 'static,
    ) -> Self {
        Self::new(
            vec![in_port("x", x.clone(), 1, 1)],
            vec![out_port("y", y, 1)],
            kernel,
        )
    }

    /// How to make the kernels for GPUs, if there are any.
    pub(crate) fn gpu(mut self, lower: impl FnOnce() -> Option<KernelPlan> + 'static) -> Self {
        self.lower = Box::new(lower);
        self
    }

    /// Says that the kernel may write output 0 over any of these inputs that is as large.
    pub(crate) fn over(self, inputs: impl IntoIterator<Item = usize>) -> Self {
        let Signature {
            inputs: xs,
            outputs: ys,
            ..
        } = &self.signature;
        let bytes = |rate: u64, token: &TokenType| rate.saturating_mul(token.bytes());
        let size = ys.first().map(|y| bytes(y.rate, &y.token));
        let alike = |&i: &usize| xs.get(i).map(|x| bytes(x.rate, &x.token)) == size;
        let pairs: Vec<InPlace> = inputs
            .into_iter()
            .filter(alike)
            .map(|i| InPlace::whole(i as u32, 0))
            .collect();
        self.in_place(pairs)
    }

    /// Says what the kernel may write over what.
    pub(crate) fn in_place(mut self, pairs: impl IntoIterator<Item = InPlace>) -> Self {
        self.in_place.extend(pairs);
        self
    }

    /// Adds a state.
    pub(crate) fn state(mut self, name: &str, token: TokenType, initial: Vec<u8>) -> Self {
        self.signature.states.push(StateSpec {
            name: name.to_owned(),
            token,
            initial,
        });
        self
    }

    /// Arithmetic operations of a firing, as equivalents of a fused multiply-add's half on wide vectors.
    pub(crate) fn flops(mut self, flops: f64) -> Self {
        let bytes = self.bytes();
        self.work = Some(Work { flops, bytes });
        self
    }

    /// Makes the kernel in the variant of a number.
    pub(crate) fn kernel(self, variant: usize) -> Result<Arc<dyn Kernel>, OpError> {
        (self.kernel)(variant)
    }

    /// Work of one firing.
    pub(crate) fn work(&self, actor: &Actor) -> Work {
        self.work.unwrap_or_else(|| default_work(actor))
    }

    fn bytes(&self) -> f64 {
        let read = self
            .signature
            .inputs
            .iter()
            .map(|p| p.rate as f64 * p.token.bytes() as f64);
        let written = self
            .signature
            .outputs
            .iter()
            .map(|p| p.rate as f64 * p.token.bytes() as f64);
        read.sum::<f64>() + written.sum::<f64>()
    }
}

/// An input port.
pub(crate) fn in_port(name: &str, token: TokenType, rate: u64, window: u64) -> InPort {
    InPort {
        name: name.to_owned(),
        token,
        rate,
        window,
    }
}

/// An output port.
pub(crate) fn out_port(name: &str, token: TokenType, rate: u64) -> OutPort {
    OutPort {
        name: name.to_owned(),
        token,
        rate,
    }
}

/// An op of the standard catalogue. Its parameters are those that its description names.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    /// Element types of its ports: a [`TypeSchema`].
    pub(crate) types: &'static str,
    pub(crate) positional: &'static [&'static str],
    pub(crate) doc: OpDoc,
    pub(crate) make: fn(&Args<'_>) -> Result<Made, OpError>,
}

/// An [`Entry`] in the catalogue.
pub(crate) struct EntryOp {
    entry: Entry,
    types: TypeSchema,
}

impl EntryOp {
    pub(crate) fn new(entry: Entry) -> Self {
        let types = TypeSchema::new(entry.types);
        Self { entry, types }
    }

    fn made(&self, cx: &ResolveCx<'_>) -> Result<Made, OpError> {
        let known: Vec<&str> = self.entry.doc.params.iter().map(|p| p.0).collect();
        let args = Args::new(cx, &known)?;
        let mut bindings = Bindings::default();
        for (name, token) in cx.types {
            let Some(port) = self.types.input(name) else {
                continue;
            };
            let shown = if name.is_empty() { port.name } else { name };
            self.types.check_input(port, shown, token, &mut bindings)?;
            if token.elements() == 0 {
                return Err(no_elements(shown, token));
            }
        }

        let made = (self.entry.make)(&args)?;
        check_limits(&made.signature)?;
        check_connected(&made.signature, cx.connected)?;
        for output in &made.signature.outputs {
            if let Some(port) = self.types.output(&output.name) {
                let token = &output.token;
                self.types
                    .check_output(port, &output.name, token, &bindings)?;
            }
        }
        Ok(made)
    }

    fn made_for(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Result<Made, OpError> {
        let (connected, types) = stateless_inputs(actor);
        let cx = ResolveCx {
            params: &actor.params,
            connected: &connected,
            types: &types,
            blobs,
        };
        self.made(&cx)
    }
}

impl Op for EntryOp {
    fn name(&self) -> &str {
        self.entry.name
    }

    fn doc(&self) -> OpDoc {
        self.entry.doc.clone()
    }

    fn types(&self) -> Option<&TypeSchema> {
        Some(&self.types)
    }

    fn positional(&self) -> &'static [&'static str] {
        self.entry.positional
    }

    fn resolve(&self, cx: &ResolveCx<'_>) -> Result<Signature, OpError> {
        self.made(cx).map(|made| made.signature)
    }

    fn kernel(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Result<Arc<dyn Kernel>, OpError> {
        self.kernel_in(actor, blobs, 0)
    }

    fn variants(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Vec<&'static str> {
        self.made_for(actor, blobs)
            .map(|made| made.variants)
            .unwrap_or_default()
    }

    fn kernel_in(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        variant: usize,
    ) -> Result<Arc<dyn Kernel>, OpError> {
        let made = self.made_for(actor, blobs)?;
        check_ports(actor, &made.signature)?;
        made.kernel(variant)
    }

    fn lower(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Result<KernelPlan, String> {
        let made = self.made_for(actor, blobs).map_err(|e| e.to_string())?;
        check_ports(actor, &made.signature).map_err(|e| e.to_string())?;
        (made.lower)().ok_or_else(|| "it has none for these types or sizes".to_owned())
    }

    fn in_place(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Vec<InPlace> {
        self.made_for(actor, blobs)
            .map(|made| made.in_place)
            .unwrap_or_default()
    }

    fn work(&self, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Work {
        let made = self.made_for(actor, blobs).ok();
        made.and_then(|m| m.work)
            .unwrap_or_else(|| default_work(actor))
    }
}

/// Names and types of an actor's inputs that are in no state pair.
pub(crate) fn stateless_inputs(actor: &Actor) -> (Vec<String>, BTreeMap<String, TokenType>) {
    let ports = actor.inputs.iter().enumerate();
    let ports = ports.filter(|(i, _)| actor.state_of_input(*i as u32).is_none());
    let types: BTreeMap<_, _> = ports
        .clone()
        .map(|(_, p)| (p.name.clone(), p.token.clone()))
        .collect();
    (ports.map(|(_, p)| p.name.clone()).collect(), types)
}

/// Refuses an actor whose ports are not exactly those of `signature`, states appended in order.
pub(crate) fn check_ports(actor: &Actor, signature: &Signature) -> Result<(), OpError> {
    let (mut inputs, mut outputs) = (signature.inputs.clone(), signature.outputs.clone());
    let mut state = Vec::new();
    for spec in &signature.states {
        state.push(StatePort {
            input: inputs.len() as u32,
            output: outputs.len() as u32,
        });
        inputs.push(in_port(&spec.name, spec.token.clone(), 1, 1));
        outputs.push(out_port(&spec.name, spec.token.clone(), 1));
    }
    if actor.inputs == inputs && actor.outputs == outputs && actor.state == state {
        return Ok(());
    }
    let has = port_text(&actor.inputs, &actor.outputs, actor.state.len());
    let needs = port_text(&inputs, &outputs, state.len());
    Err(OpError::Other {
        message: format!(
            "actor `{}` has ports {has}, op `{}` has {needs}",
            actor.name, actor.op
        ),
        help: "the program was made by another version: compile the model again".to_owned(),
    })
}

/// Ports as `(x: f32 1/8) -> (y: f32 1), 0 states`; rate/window where they differ.
pub(crate) fn port_text(inputs: &[InPort], outputs: &[OutPort], states: usize) -> String {
    let input = |p: &InPort| match p.rate == p.window {
        true => format!("{}: {} {}", p.name, p.token, p.rate),
        false => format!("{}: {} {}/{}", p.name, p.token, p.rate, p.window),
    };
    let inputs: Vec<String> = inputs.iter().map(input).collect();
    let outputs: Vec<String> = outputs
        .iter()
        .map(|p| format!("{}: {} {}", p.name, p.token, p.rate))
        .collect();
    let plural = if states == 1 { "" } else { "s" };
    format!(
        "({}) -> ({}), {states} state{plural}",
        inputs.join(", "),
        outputs.join(", ")
    )
}

/// Refuses ports beyond the limits that the verifier sets.
pub(crate) fn check_limits(signature: &Signature) -> Result<(), OpError> {
    let ports = signature
        .inputs
        .iter()
        .map(|p| (&p.name, &p.token, p.window))
        .chain(
            signature
                .outputs
                .iter()
                .map(|p| (&p.name, &p.token, p.rate)),
        )
        .chain(signature.states.iter().map(|s| (&s.name, &s.token, 1)));
    for (name, token, tokens) in ports {
        let over = |what: &str, is: u64, limit: u64| {
            (is > limit).then(|| OpError::Other {
                message: format!("port `{name}` has {what} {is}, the limit is {limit}"),
                help: "make the tokens or rates smaller".to_owned(),
            })
        };
        let too_much = over("rank", token.shape.len() as u64, limits::MAX_RANK as u64)
            .or_else(|| over("token bytes", token.bytes(), limits::MAX_TOKEN_BYTES))
            .or_else(|| over("a rate or window of", tokens, limits::MAX_RATE));
        if let Some(error) = too_much {
            return Err(error);
        }
    }
    let (ins, outs, states) = (
        signature.inputs.len(),
        signature.outputs.len(),
        signature.states.len(),
    );
    if ins + states > limits::MAX_PORTS || outs.max(states) > Io::MAX_MUT_PORTS {
        return Err(OpError::Other {
            message: format!(
                "{ins} inputs, {outs} outputs and {states} states: at most {} inputs, {} outputs",
                limits::MAX_PORTS,
                Io::MAX_MUT_PORTS
            ),
            help: "use several actors one after the other".to_owned(),
        });
    }
    Ok(())
}

/// Refuses channels to ports that do not exist.
pub(crate) fn check_connected(signature: &Signature, connected: &[String]) -> Result<(), OpError> {
    let known = |name: &String| name.is_empty() || signature.inputs.iter().any(|p| p.name == *name);
    match connected.iter().find(|name| !known(name)) {
        None => Ok(()),
        Some(name) if signature.inputs.is_empty() => {
            Err(input_error(name, "does not exist", "the op has no inputs"))
        }
        Some(name) => {
            let names: Vec<&str> = signature.inputs.iter().map(|p| p.name.as_str()).collect();
            let help = match super::args::nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the inputs are {}", names.join(", ")),
            };
            Err(input_error(name, "does not exist", help))
        }
    }
}
