//! What an op is: [`Op`], and what it becomes for given parameters and input types, [`ResolvedOp`]. A [`Registry`] finds
//! ops by name, and [`Registry::resolving_once`] remembers what it resolved. What all ops share:
//! the parameters' readers ([`args`]), types of ports ([`types`]), and what CPU kernels are made of ([`kernel`],
//! [`simd`], [`math`], [`team`], [`aligned`]). Knows no op but [`custom`].
//!
//! [`Op::resolve`] parses the parameters of an actor, once; ports, cost and kernels are questions to the [`ResolvedOp`]
//! that it returns.

pub mod aligned;
pub mod args;
pub mod burst;
pub mod call;
mod capabilities;
pub mod custom;
pub mod entry;
mod examples;
mod gated;
mod gated_gpu;
pub mod kernel;
pub mod math;
mod memo;
mod registry;
mod resolved;
pub mod simd;
mod sources;
pub mod team;
mod token_type;
pub mod types;

use std::collections::BTreeMap;

use bytes::Bytes;
use zbmd_ir::{Actor, BlobId, DType, InPlace, InPort, OutPort, Params, TiSlice, TokenType};

use self::kernel::Kernel;

pub use self::capabilities::GpuCapabilities;
pub use self::examples::example_inputs;
pub use self::registry::Registry;
pub use self::resolved::{GpuRequest, Packing, PortPhases, ResolvedOp};
pub use self::resolved::{check_ports, port_text};
pub use self::sources::{SOURCES, source};
pub use self::token_type::token_type;
pub use self::types::{CLASSES, PortSchema, TypeSchema};

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
        /// How to fix it.
        help: String,
    },
    /// An input has a type that the op does not take, or does not exist.
    #[error("input `{port}`: {message}")]
    Input {
        /// The port.
        port: String,
        /// What is wrong, with the two facts that disagree.
        message: String,
        /// How to fix it.
        help: String,
    },
    /// Anything else: an unknown op, a custom actor that is not registered.
    #[error("{message}")]
    Other {
        /// What is wrong.
        message: String,
        /// How to fix it.
        help: String,
    },
}

/// What an op sees of the actor it is resolved for.
#[derive(Clone, Copy)]
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

impl Signature {
    /// Ports without states.
    pub fn stateless(inputs: Vec<InPort>, outputs: Vec<OutPort>) -> Self {
        Self {
            inputs,
            outputs,
            states: Vec::new(),
        }
    }
}

/// What an operation of a product of matrices costs beside one of an ordinary kernel: its operands are packed and used
/// many times, so that it comes close to the peak of a core. Measured with the convolutions and products of ten networks:
/// 0.4 on an Intel core with AVX-512, 0.2 on one of AMD's Zen 5, which has the multipliers of twice as many.
pub const PRODUCT_SHARE: f64 = 0.28;

/// Work of one firing, for the roofline.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Arithmetic operations, in units of what an ordinary kernel does: a multiplication and an addition on wide vectors
    /// are two. Kernels that do worse count more.
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

    /// Parses the parameters for these inputs. Must refuse unknown parameters. A function of `cx` and of nothing else:
    /// actors that agree in it share what it returns. Neither the order of `connected` nor a first input without its
    /// name changes the answer.
    ///
    /// # Errors
    /// See [`OpError`].
    fn resolve(&self, cx: &ResolveCx<'_>) -> Result<ResolvedOp, OpError>;

    /// For ops that are more than a function of parameters and inputs, as some of tests are: the op of this very actor,
    /// whose ports it has checked. `None` for all others, which are resolved by [`Self::resolve`].
    ///
    /// # Errors
    /// See [`OpError`]; an actor from an untrusted bundle may be refused here.
    fn resolve_actor(
        &self,
        _actor: &Actor,
        _blobs: &TiSlice<BlobId, Bytes>,
    ) -> Option<Result<ResolvedOp, OpError>> {
        None
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
