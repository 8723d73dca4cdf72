//! How tensor ops are written: operands that are ports or constants, outputs by name, a body that is run once a
//! firing. Knows no op.

mod fire;
mod halves;
mod tensors;

use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{DType, InPlace, InPort, OutPort, TokenType, Value};

use self::fire::{Fire, Source};
pub(crate) use self::halves::Halves;
use self::tensors::Inputs;
pub(crate) use self::tensors::{STRETCH, Tensors, copy_bytes};
use super::aligned::AlignedFloats;
use super::gpu::{Gpu, GpuKernels, Lowered, Moves};
use super::num::Float;
use super::operands::to_i64;
pub(crate) use super::operands::{
    Operand, constant_f32, dims, index_at, operand_of, token, volume,
};
use zbmd_op::args::{Args, input_error};
use zbmd_op::entry::{in_port, out_port};
pub(crate) use zbmd_op::types::computed;
use zbmd_op::{OpError, PRODUCT_SHARE, ResolvedOp};

/// What a tensor op sees when it is resolved.
pub(crate) struct Cx<'a> {
    pub(crate) args: Args<'a>,
    pub(crate) ins: Vec<Option<Operand>>,
    /// Indices of the outputs that are wanted.
    pub(crate) wanted: Vec<usize>,
}

impl<'a> Cx<'a> {
    /// A refusal of operand `i`.
    pub(crate) fn refuse(
        &self,
        i: usize,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> OpError {
        let name = self
            .ins
            .get(i)
            .and_then(|o| o.as_ref())
            .map_or("x", |o| o.name.as_str());
        input_error(name, message, help)
    }

    /// A refusal of operand `i` for its type.
    pub(crate) fn refuse_type(&self, i: usize, help: impl Into<String>) -> OpError {
        match self.operand(i) {
            Ok(operand) => self.refuse(i, format!("is {}", operand.ty), help),
            Err(missing) => missing,
        }
    }

    /// Operand `i`, which the table of ops says must be there.
    pub(crate) fn operand(&self, i: usize) -> Result<&Operand, OpError> {
        self.ins.get(i).and_then(|o| o.as_ref()).ok_or_else(|| {
            input_error(
                "x",
                format!("input {i} is missing"),
                "connect it, or give it as a parameter",
            )
        })
    }

    /// Operand `i`, if it is there.
    pub(crate) fn opt(&self, i: usize) -> Option<&Operand> {
        self.ins.get(i).and_then(|o| o.as_ref())
    }

    pub(crate) fn dtype(&self, i: usize) -> Result<DType, OpError> {
        Ok(self.operand(i)?.ty.dtype)
    }

    pub(crate) fn dims(&self, i: usize) -> Result<Vec<usize>, OpError> {
        Ok(self.operand(i)?.dims())
    }

    /// The integers of a constant operand, if it is there.
    pub(crate) fn ints(&self, i: usize) -> Result<Option<Vec<i64>>, OpError> {
        let Some(operand) = self.opt(i) else {
            return Ok(None);
        };
        match &operand.data {
            Some(bytes) => Ok(Some(to_i64(bytes, operand.ty.dtype))),
            None => Err(self.not_constant(i)),
        }
    }

    /// The integers of a constant operand as sizes, none of them below 0; empty where it is missing.
    pub(crate) fn operand_sizes(&self, i: usize) -> Result<Vec<usize>, OpError> {
        let ints = self.ints(i)?.unwrap_or_default();
        Ok(ints.into_iter().map(|v| v.max(0) as usize).collect())
    }

    /// The integers of a constant operand as axes of a tensor of this rank, if it is there.
    pub(crate) fn operand_axes(
        &self,
        i: usize,
        rank: usize,
    ) -> Result<Option<Vec<usize>>, OpError> {
        let Some(axes) = self.ints(i)? else {
            return Ok(None);
        };
        let positive = axes.into_iter().map(|axis| self.axis(axis, rank));
        positive.collect::<Result<_, _>>().map(Some)
    }

    /// The floats of a constant operand, if it is there.
    pub(crate) fn floats(&self, i: usize) -> Result<Option<Vec<f64>>, OpError> {
        let Some(operand) = self.opt(i) else {
            return Ok(None);
        };
        operand
            .floats()
            .map(Some)
            .ok_or_else(|| self.not_constant(i))
    }

    pub(crate) fn not_constant(&self, i: usize) -> OpError {
        self.refuse(
            i,
            "decides the shape or the kernel, so it must be a constant",
            "shapes are fixed when a model is compiled: give it as a parameter",
        )
    }

    /// An integer parameter that is a truth value.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, OpError> {
        match self.args.get(name) {
            Some(Value::Bool(b)) => Ok(*b),
            _ => Ok(self.args.int_or(name, i64::from(default))? != 0),
        }
    }

    /// A list of non-negative integers, or so many of `default`.
    pub(crate) fn sizes(
        &self,
        name: &str,
        n: usize,
        default: usize,
    ) -> Result<Vec<usize>, OpError> {
        let Some(list) = self.args.ints_opt(name)? else {
            return Ok(vec![default; n]);
        };
        let sizes: Option<Vec<usize>> = list
            .into_iter()
            .map(|v| usize::try_from(v).ok().filter(|v| *v <= u32::MAX as usize))
            .collect();
        match sizes {
            Some(list) if list.len() == n => Ok(list),
            Some(list) => {
                let message = format!("has {} elements, {n} are needed", list.len());
                Err(self.args.error(name, message, "one for each dimension"))
            }
            None => {
                Err(self
                    .args
                    .error(name, "has an impossible element", "give sizes of 0 or more"))
            }
        }
    }

    /// Whether output `i` is wanted.
    pub(crate) fn wants(&self, i: usize) -> bool {
        self.wanted.contains(&i)
    }

    /// Refuses operand `i` unless it has one of these types.
    pub(crate) fn expect(&self, i: usize, dtypes: &[DType]) -> Result<DType, OpError> {
        let ty = &self.operand(i)?.ty;
        if dtypes.contains(&ty.dtype) {
            return Ok(ty.dtype);
        }
        let names: Vec<&str> = dtypes.iter().map(|d| d.name()).collect();
        Err(self.refuse(
            i,
            format!("is {ty}"),
            format!("it takes {}", names.join(" or ")),
        ))
    }

    /// A refusal of the whole op.
    pub(crate) fn other(message: impl Into<String>, help: impl Into<String>) -> OpError {
        OpError::Other {
            message: message.into(),
            help: help.into(),
        }
    }
}

/// Refuses operand `i` unless it is missing or has one of these numbers of elements and this type.
pub(crate) fn expect_count(
    cx: &Cx<'_>,
    i: usize,
    counts: &[usize],
    dtype: DType,
) -> Result<(), OpError> {
    match cx.opt(i) {
        Some(o) if o.ty.dtype != dtype || !counts.contains(&(o.ty.elements() as usize)) => Err(cx
            .refuse(
                i,
                format!("is {}", o.ty),
                format!("{dtype} of {counts:?} elements"),
            )),
        _ => Ok(()),
    }
}

/// The axis that an op works along.
pub(crate) struct AxisSpec {
    pub(crate) axis: usize,
}

impl AxisSpec {
    /// The parameter `axis` among so many dimensions.
    pub(crate) fn of(cx: &Cx<'_>, default: i64, rank: usize) -> Result<Self, OpError> {
        let axis = cx.axis_param(default, rank)?;
        Ok(Self { axis })
    }
}

/// Types with a fraction.
pub(crate) const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

/// What a tensor op does in one firing.
pub(crate) trait Body: Send + Sync {
    /// Reads operands, writes every element of every output.
    fn run(&self, t: &mut Tensors<'_>);

    /// Bytes of scratch memory.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Whether one run may be given the tokens of many firings, one after the other in each operand that is a port.
    fn batches(&self) -> bool {
        false
    }
}

impl<F: Fn(&mut Tensors<'_>) + Send + Sync> Body for F {
    fn run(&self, t: &mut Tensors<'_>) {
        self(t);
    }
}

/// A body whose float type follows from its operands.
pub(crate) trait FloatBody: Send + Sync + 'static {
    fn run<F: Float>(&self, t: &mut Tensors<'_>);

    /// Scratch memory, in elements of the float type.
    fn scratch_elements(&self) -> usize {
        0
    }
}

struct Typed<B, F>(B, std::marker::PhantomData<F>);

impl<B: FloatBody, F: Float> Body for Typed<B, F> {
    fn run(&self, t: &mut Tensors<'_>) {
        self.0.run::<F>(t);
    }

    fn scratch_bytes(&self) -> usize {
        self.0.scratch_elements() * size_of::<F>()
    }
}

/// Makes the body in the variant of a number.
type MakeBody = Arc<dyn Fn(usize) -> Result<Box<dyn Body>, OpError> + Send + Sync>;

#[derive(Clone)]
enum Make {
    Ready(Arc<dyn Body>),
    Lazy(MakeBody),
}

impl Make {
    fn body(&self, variant: usize) -> Result<Arc<dyn Body>, OpError> {
        match self {
            Make::Ready(body) => Ok(Arc::clone(body)),
            Make::Lazy(make) => make(variant).map(Arc::from),
        }
    }
}

/// A tensor op for given operands: its outputs and how its body is made.
pub(crate) struct Plan {
    pub(crate) outs: Vec<TokenType>,
    make: Make,
    /// Names of the body's variants, the default first; none where there is but one.
    variants: Vec<&'static str>,
    flops: f64,
    /// How its kernels for GPUs are made, if it has any.
    pub(crate) gpu: Option<GpuKernels>,
    /// Operands that output 0 may be written over: see [`Plan::over`].
    over: Vec<usize>,
    /// Operands and outputs of which one is a part of the other: see [`Plan::part`].
    parts: Vec<SharedPart>,
    /// A constant operand that its body reads in another order only, and that order.
    pub(crate) packs: Option<(usize, MakeWeights)>,
    /// Bytes of scratch memory that its body needs, where that is known before the body is made.
    scratch_bytes: Option<ScratchBytes>,
}

/// Puts a constant operand into the order of a body.
pub(crate) type MakeWeights = Arc<dyn Fn() -> Bytes + Send + Sync>;

type ScratchBytes = Box<dyn Fn() -> usize + Send + Sync>;

/// What an operator's function in the table returns.
pub(crate) type Planned = Result<Plan, OpError>;

impl Plan {
    /// Outputs (those wanted, in order) and a body that is cheap to make.
    pub(crate) fn new(outs: Vec<TokenType>, body: impl Body + 'static) -> Self {
        Self::with(outs, Make::Ready(Arc::new(body)))
    }

    /// Outputs, and a body that is made only where it will run.
    pub(crate) fn lazy(
        outs: Vec<TokenType>,
        make: impl FnOnce() -> Result<Box<dyn Body>, OpError> + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::with(outs, Make::Lazy(Arc::new(move |_| make.clone()())))
    }

    /// Outputs, and a body that can be had in several variants, which are named, and of which the first is the default.
    /// All write the same bits and need the same scratch memory.
    pub(crate) fn in_variants<V: Copy + Send + Sync + 'static>(
        outs: Vec<TokenType>,
        variants: &[(&'static str, V)],
        make: impl FnOnce(V) -> Result<Box<dyn Body>, OpError> + Clone + Send + Sync + 'static,
    ) -> Self {
        let (names, values): (Vec<_>, Vec<V>) = variants.iter().copied().unzip();
        let make_variant = move |variant: usize| make.clone()(values[variant]);
        let plan = Self::with(outs, Make::Lazy(Arc::new(make_variant)));
        Self {
            variants: names,
            ..plan
        }
    }

    /// Not generic, and a function of its own: there are hundreds of bodies.
    #[inline(never)]
    fn with(outs: Vec<TokenType>, make: Make) -> Self {
        let flops = outs.iter().map(|t| t.elements() as f64).sum::<f64>() * 2.0;
        Self {
            outs,
            make,
            variants: Vec::new(),
            flops,
            gpu: None,
            over: Vec::new(),
            parts: Vec::new(),
            packs: None,
            scratch_bytes: None,
        }
    }

    /// Adds the kernels for GPUs.
    pub(crate) fn gpu(
        mut self,
        lower: impl Fn(&Gpu<'_>) -> Lowered + Send + Sync + 'static,
    ) -> Self {
        self.gpu = Some(Box::new(lower));
        self
    }

    /// Says that it moves elements of operand 0 and nothing else, on GPUs too.
    pub(crate) fn moves(self, moves: Moves) -> Self {
        self.gpu(move |gpu| gpu.moves(&moves))
    }

    /// Says that the body may write output 0 over any of these operands that has as many elements of the same size:
    /// then it asks [`Tensors::over`] or reads them by [`Tensors::map`].
    pub(crate) fn over(mut self, operands: impl IntoIterator<Item = usize>) -> Self {
        self.over.extend(operands);
        self
    }

    /// Says that operand `i` and wanted output `o` may be one memory, the smaller `at` bytes into the larger: then the
    /// body asks [`Tensors::shares`].
    pub(crate) fn part(mut self, i: usize, o: usize, at: usize) -> Self {
        self.parts.push(SharedPart {
            operand: i,
            output: o,
            start: at,
        });
        self
    }

    /// Says in which order the body reads constant operand `i` of f32, and no other.
    pub(crate) fn packs(
        mut self,
        i: usize,
        make: impl FnOnce() -> AlignedFloats + Clone + Send + Sync + 'static,
    ) -> Self {
        let make_bytes = move || Bytes::from_owner(make.clone()());
        self.packs = Some((i, Arc::new(make_bytes)));
        self
    }

    /// The same for an operand of bytes.
    pub(crate) fn packs_bytes(
        mut self,
        i: usize,
        make: impl FnOnce() -> Bytes + Clone + Send + Sync + 'static,
    ) -> Self {
        self.packs = Some((i, Arc::new(move || make.clone()())));
        self
    }

    /// Says how much scratch memory the body needs, for bodies that put weights into their order when they are made.
    pub(crate) fn needs_scratch(
        mut self,
        bytes: impl Fn() -> usize + Send + Sync + 'static,
    ) -> Self {
        self.scratch_bytes = Some(Box::new(bytes));
        self
    }

    /// A body for floats: computes in f64 where operand 0 is f64, in f32 otherwise.
    pub(crate) fn float(dtype: DType, outs: Vec<TokenType>, body: impl FloatBody) -> Self {
        let body: Arc<dyn Body> = match dtype {
            DType::F64 => Arc::new(Typed::<_, f64>(body, std::marker::PhantomData)),
            _ => Arc::new(Typed::<_, f32>(body, std::marker::PhantomData)),
        };
        Self::with(outs, Make::Ready(body))
    }

    /// Arithmetic operations of a firing.
    pub(crate) fn flops(mut self, flops: f64) -> Self {
        self.flops = flops;
        self
    }

    /// Arithmetic operations of a firing that is a product of packed matrices, each multiplication and addition counted.
    pub(crate) fn products(self, operations: f64) -> Self {
        self.flops(PRODUCT_SHARE * operations)
    }

    /// The op for these operands and output names, without kernels for GPUs.
    pub(crate) fn resolved(self, ins: &[Option<Operand>], names: &[String]) -> ResolvedOp {
        let mut ports: Vec<InPort> = Vec::new();
        let mut sources = Vec::new();
        let mut in_place_pairs = Vec::new();
        for (i, operand) in ins.iter().enumerate() {
            sources.push(match operand {
                None => Source::Missing,
                Some(Operand {
                    data: Some(data),
                    ty,
                    ..
                }) => Source::Const(data.clone(), ty.dtype),
                Some(Operand { name, port, ty, .. }) => {
                    // Constants have no port, so that ports are counted apart from operands.
                    let number = ports.len();
                    in_place_pairs.extend(self.in_place_pairs(i, ty, number as u32));
                    ports.push(in_port(name, port.clone(), 1, 1));
                    Source::Port {
                        port: number,
                        token_bytes: port.bytes() as usize,
                    }
                }
            });
        }

        let named_outs = names.iter().zip(&self.outs);
        let outs: Vec<OutPort> = named_outs
            .map(|(name, token)| out_port(name, token.clone(), 1))
            .collect();
        let token_bytes: Vec<usize> = self.outs.iter().map(|t| t.bytes() as usize).collect();
        let make = self.make;
        let fire = move |variant| Ok(Fire::new(make.body(variant)?, sources, token_bytes));
        let resolved = ResolvedOp::in_variants(ports, outs, self.variants, fire)
            .flops(self.flops)
            .with_in_place_pairs(in_place_pairs);
        match self.scratch_bytes {
            Some(bytes) => resolved.with_scratch_bytes(bytes),
            None => resolved,
        }
    }

    /// Which outputs may be one memory with operand `i` of this type, which is input port `input`.
    fn in_place_pairs(&self, i: usize, ty: &TokenType, input: u32) -> Vec<InPlace> {
        let mut pairs = Vec::new();
        let is_alike = self.outs.first().is_some_and(|out| is_alike(ty, out));
        if is_alike && self.over.contains(&i) {
            pairs.push(InPlace::whole(input, 0));
        }
        for part in self.parts.iter().filter(|part| part.operand == i) {
            pairs.push(InPlace {
                input,
                output: part.output as u32,
                at_bytes: part.start as u64,
            });
        }
        pairs
    }
}

/// An operand and a wanted output of which one is a part of the other, and the byte where it begins.
struct SharedPart {
    operand: usize,
    output: usize,
    start: usize,
}

/// Whether tensors have as many elements of the same size.
fn is_alike(a: &TokenType, b: &TokenType) -> bool {
    a.elements() == b.elements() && a.dtype.size_bytes() == b.dtype.size_bytes()
}

/// Runs `$f::<T>($args)` for the type that a dtype is computed in: narrow ones in wider ones, see [`Halves`].
macro_rules! by_num {
    ($dtype:expr, $f:ident ( $($arg:expr),* $(,)? )) => {
        match $dtype {
            zbmd_ir::DType::F32 | zbmd_ir::DType::F16 | zbmd_ir::DType::Bf16 => $f::<f32>($($arg),*),
            zbmd_ir::DType::F64 => $f::<f64>($($arg),*),
            zbmd_ir::DType::U8 | zbmd_ir::DType::Bool => $f::<u8>($($arg),*),
            zbmd_ir::DType::I32 | zbmd_ir::DType::I8 | zbmd_ir::DType::I16 => $f::<i32>($($arg),*),
            zbmd_ir::DType::I64 => $f::<i64>($($arg),*),
            zbmd_ir::DType::C32 => {
                return Err($crate::cx::Cx::other(
                    "complex tensors are not taken",
                    "split them into real and imaginary parts",
                ));
            }
        }
    };
}
pub(crate) use by_num;

/// Runs `$f::<T>($args)` for the very element type of a dtype.
macro_rules! by_element {
    ($dtype:expr, $f:ident ( $($arg:expr),* $(,)? )) => {
        match $dtype {
            zbmd_ir::DType::F16 => $f::<half::f16>($($arg),*),
            zbmd_ir::DType::Bf16 => $f::<half::bf16>($($arg),*),
            zbmd_ir::DType::I8 => $f::<i8>($($arg),*),
            zbmd_ir::DType::I16 => $f::<i16>($($arg),*),
            other => $crate::cx::by_num!(other, $f($($arg),*)),
        }
    };
}
pub(crate) use by_element;
