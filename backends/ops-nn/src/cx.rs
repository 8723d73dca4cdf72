//! How tensor ops are written: operands that are ports or constants, outputs by name, a body that is run once a
//! firing. Knows no op.

mod halves;
mod tensors;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{DType, InPlace, InPort, OutPort, TokenType, Value};

pub(crate) use self::halves::Halves;
use self::tensors::Inputs;
pub(crate) use self::tensors::{STRETCH, Tensors, copy_bytes};
use super::gpu::{Gpu, GpuKernels, Lowered, Moves};
use super::num::Float;
use zbmd_op::args::{Args, encode, input_error};
use zbmd_op::entry::{in_port, out_port};
use zbmd_op::kernel::{Io, Kernel, KernelFault};
pub(crate) use zbmd_op::types::computed;
use zbmd_op::{OpError, ResolvedOp};

/// An operand: its type as the op sees it, and its value where it is a constant.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) name: String,
    pub(crate) ty: TokenType,
    /// Type of the port's tokens, of which `ty` is a view.
    pub(crate) port: TokenType,
    /// Its bytes, if it is a constant: none where it is packed.
    pub(crate) data: Option<Bytes>,
    /// What [`Plan::packs`] made of a constant when the model was compiled.
    pub(crate) packed: Option<Bytes>,
}

impl Operand {
    /// Dimensions as indices.
    pub(crate) fn dims(&self) -> Vec<usize> {
        dims(&self.ty)
    }

    /// The constant as floats; a scalar of an integer type too.
    pub(crate) fn floats(&self) -> Option<Vec<f64>> {
        self.data.as_ref().map(|b| to_f64(b, self.ty.dtype))
    }
}

/// Dimensions as indices.
pub(crate) fn dims(ty: &TokenType) -> Vec<usize> {
    ty.shape.iter().map(|&d| d as usize).collect()
}

/// Elements of a shape.
pub(crate) fn volume(dims: &[usize]) -> usize {
    dims.iter().fold(1, |n, &d| n.saturating_mul(d))
}

/// A type from dimensions as indices.
pub(crate) fn token(dtype: DType, dims: &[usize]) -> TokenType {
    TokenType::new(
        dtype,
        dims.iter()
            .map(|&d| u32::try_from(d).unwrap_or(u32::MAX))
            .collect::<Vec<_>>(),
    )
}

/// Little-endian elements as f64.
pub(crate) fn to_f64(bytes: &[u8], dtype: DType) -> Vec<f64> {
    zbmd_op::args::bytes_to_f64(bytes, dtype)
}

/// Little-endian integers of any integer type.
fn to_i64(bytes: &[u8], dtype: DType) -> Vec<i64> {
    match dtype {
        DType::I64 => bytes
            .chunks_exact(8)
            .map(|c| i64::from_le_bytes(c.try_into().unwrap_or_default()))
            .collect(),
        other => to_f64(bytes, other).into_iter().map(|v| v as i64).collect(),
    }
}

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

    /// An axis in [−rank, rank), made positive.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Result<usize, OpError> {
        let place = if axis < 0 { axis + rank as i64 } else { axis };
        if (0..rank as i64).contains(&place) {
            return Ok(place as usize);
        }
        Err(self.args.error(
            "axis",
            format!("is {axis}"),
            format!("there are {rank} dimensions"),
        ))
    }

    /// An integer parameter that is a truth value.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, OpError> {
        match self.args.get(name) {
            Some(Value::Bool(b)) => Ok(*b),
            _ => Ok(self.args.int_or(name, i64::from(default))? != 0),
        }
    }

    /// The parameter `axis`, made positive.
    pub(crate) fn axis_param(&self, default: i64, rank: usize) -> Result<usize, OpError> {
        self.axis(self.args.int_or("axis", default)?, rank)
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
        let list: Option<Vec<usize>> = list
            .into_iter()
            .map(|v| usize::try_from(v).ok().filter(|v| *v <= u32::MAX as usize))
            .collect();
        match list {
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
    /// Operands and outputs of which one is a part of the other, and the byte where it begins: see [`Plan::part`].
    parts: Vec<(usize, usize, usize)>,
    /// A constant operand that its body reads in another order only, and that order.
    pub(crate) packs: Option<(usize, MakeWeights)>,
}

/// Puts a constant operand into the order of a body.
pub(crate) type MakeWeights = Arc<dyn Fn() -> Vec<f32> + Send + Sync>;

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

    /// Not generic: there are hundreds of bodies.
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
        self.parts.push((i, o, at));
        self
    }

    /// Says in which order the body reads constant operand `i` of f32, and no other.
    pub(crate) fn packs(
        mut self,
        i: usize,
        make: impl FnOnce() -> Vec<f32> + Clone + Send + Sync + 'static,
    ) -> Self {
        self.packs = Some((i, Arc::new(move || make.clone()())));
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

    /// The op for these operands and output names, without kernels for GPUs.
    pub(crate) fn resolved(self, ins: &[Option<Operand>], names: &[String]) -> ResolvedOp {
        let mut ports: Vec<InPort> = Vec::new();
        let mut sources = Vec::new();
        let mut over = Vec::new();
        for (i, operand) in ins.iter().enumerate() {
            let source = match operand {
                None => Source::Missing,
                Some(Operand {
                    data: Some(data),
                    ty,
                    ..
                }) => Source::Const(data.clone(), ty.dtype),
                Some(Operand { name, port, ty, .. }) => {
                    let alike = self.outs.first().is_some_and(|out| is_alike(ty, out));
                    let input = ports.len() as u32;
                    over.extend(
                        (alike && self.over.contains(&i)).then(|| InPlace::whole(input, 0)),
                    );
                    let parts = self.parts.iter().filter(|part| part.0 == i);
                    over.extend(parts.map(|&(_, o, at)| InPlace {
                        input,
                        output: o as u32,
                        at_bytes: at as u64,
                    }));
                    ports.push(in_port(name, port.clone(), 1, 1));
                    Source::Port(ports.len() - 1, port.bytes() as usize)
                }
            };
            sources.push(source);
        }
        let outs: Vec<OutPort> = names
            .iter()
            .zip(&self.outs)
            .map(|(n, t)| out_port(n, t.clone(), 1))
            .collect();
        let types: Vec<(usize, DType)> = self
            .outs
            .iter()
            .map(|t| (t.bytes() as usize, t.dtype))
            .collect();
        let make = self.make;
        let flops = self.flops;
        let fire = move |variant| Fire::new(make.body(variant)?, sources, types);
        let resolved = ResolvedOp::in_variants(ports, outs, self.variants, fire);
        resolved.flops(flops).with_in_place_pairs(over)
    }
}

/// Whether tensors have as many elements of the same size.
fn is_alike(a: &TokenType, b: &TokenType) -> bool {
    a.elements() == b.elements() && a.dtype.size_bytes() == b.dtype.size_bytes()
}

/// Where an operand's bytes are.
#[derive(Clone)]
enum Source {
    Missing,
    /// Port, bytes of a token.
    Port(usize, usize),
    Const(Bytes, DType),
}

/// Bytes aligned for their elements: as they came, or copied once.
struct Aligned(Arc<[u64]>, Option<Bytes>, usize);

impl Aligned {
    fn new(bytes: Bytes, dtype: DType) -> Self {
        if (bytes.as_ptr() as usize).is_multiple_of(dtype.align_bytes() as usize) {
            let len = bytes.len();
            return Self(Arc::new([]), Some(bytes), len);
        }
        let mut words = vec![0_u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(&bytes);
        Self(words.into(), None, bytes.len())
    }

    fn bytes(&self) -> &[u8] {
        match &self.1 {
            Some(bytes) => bytes,
            None => &bytemuck::cast_slice(&self.0)[..self.2],
        }
    }
}

/// The elements of a constant as f32: where they lie if they are that, for a model's weights are large.
pub(crate) fn constant_f32(operand: &Operand) -> Option<Cow<'_, [f32]>> {
    let data = operand.data.as_ref()?;
    if operand.ty.dtype != DType::F32 {
        return Some(
            to_f64(data, operand.ty.dtype)
                .into_iter()
                .map(|v| v as f32)
                .collect(),
        );
    }
    Some(match bytemuck::try_cast_slice(data) {
        Ok(floats) => Cow::Borrowed(floats),
        Err(_) => floats_of(data).into(),
    })
}

/// Copies little-endian floats from wherever they lie.
pub(crate) fn floats_of(bytes: &[u8]) -> Vec<f32> {
    let floats = bytes.chunks_exact(4);
    floats
        .map(|c| f32::from_le_bytes(c.try_into().unwrap_or_default()))
        .collect()
}

enum Place {
    Missing,
    Port(usize, usize),
    Const(Aligned),
}

/// The kernel around a body: walks over the firings of a call, and over half-precision ports through f32.
struct Fire {
    body: Arc<dyn Body>,
    places: Vec<Place>,
    /// Bytes of a token of each output.
    outs: Vec<usize>,
    batches: bool,
}

impl Fire {
    fn new(
        body: Arc<dyn Body>,
        sources: Vec<Source>,
        outs: Vec<(usize, DType)>,
    ) -> Result<Self, OpError> {
        // A constant does not grow with the firings, so a body that lives from its first operand cannot batch then.
        let batches = body.batches() && matches!(sources.first(), Some(Source::Port(..)));
        let place = |s: Source| match s {
            Source::Missing => Place::Missing,
            Source::Port(port, bytes) => Place::Port(port, bytes),
            Source::Const(bytes, dtype) => Place::Const(Aligned::new(bytes, dtype)),
        };
        Ok(Self {
            body,
            places: sources.into_iter().map(place).collect(),
            outs: outs.iter().map(|o| o.0).collect(),
            batches,
        })
    }
}

impl Kernel for Fire {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let firings = io.firings();
        let (calls, each) = if self.batches {
            (1, firings)
        } else {
            (firings, 1)
        };
        let mut whole: [&mut [u8]; Io::MAX_MUT_PORTS] = std::array::from_fn(|_| Default::default());
        for (o, slot) in whole.iter_mut().enumerate().take(self.outs.len()) {
            *slot = io.output_bytes(o);
        }
        let under = |port| {
            self.places
                .iter()
                .position(|p| matches!(p, Place::Port(at, _) if *at == port))
        };
        let over = io.over(0).and_then(under);
        let scratch: &mut [u8] = match self.scratch_bytes() {
            0 => &mut [],
            n => &mut io.scratch::<u8>()[..n],
        };
        for call in 0..calls {
            let mut outs: [&mut [u8]; Io::MAX_MUT_PORTS] =
                std::array::from_fn(|_| Default::default());
            for (o, bytes) in self.outs.iter().enumerate() {
                let rest = std::mem::take(&mut whole[o]);
                let (now, later) = rest.split_at_mut(bytes * each);
                (outs[o], whole[o]) = (now, later);
            }
            let source = Inputs::Io {
                io,
                places: &self.places,
                call,
                each,
            };
            let mut tensors = Tensors {
                ins: source,
                outs,
                over,
                scratch: &mut scratch[..],
            };
            self.body.run(&mut tensors);
        }
        Ok(())
    }

    fn scratch_bytes(&self) -> usize {
        self.body.scratch_bytes()
    }
}

/// The bytes of a parameter that stands for an operand: a tensor, a number or lists of numbers in `dtype`.
pub(crate) fn operand_of(
    args: &Args<'_>,
    name: &str,
    value: &Value,
    dtype: DType,
) -> Result<(TokenType, Bytes), OpError> {
    if let Value::Tensor(blob, token) = value {
        let bytes = args.cx.blobs.get(*blob).ok_or_else(|| {
            args.error(
                name,
                format!("refers to {blob}"),
                "the program holds no such tensor",
            )
        })?;
        if bytes.len() as u64 != token.bytes() {
            let message = format!(
                "{blob} has {} bytes, {token} {}",
                bytes.len(),
                token.bytes()
            );
            return Err(args.error(name, message, "the program's tensor is damaged"));
        }
        return Ok((token.clone(), bytes.clone()));
    }
    let mut shape = Vec::new();
    let mut probe = value;
    while let Value::List(list) = probe {
        shape.push(u32::try_from(list.len()).unwrap_or(u32::MAX));
        match list.first() {
            Some(first) => probe = first,
            None => return Ok((TokenType::new(dtype, shape), Bytes::new())),
        }
    }
    let numbers = args.numbers(name)?;
    if let Some(number) = numbers.data.iter().find(|v| !fits(dtype, **v)) {
        return Err(args.error(
            name,
            format!("holds {number}, and is read as {dtype}"),
            format!("give numbers that {dtype} has, or a tensor of another type"),
        ));
    }
    Ok((
        TokenType::new(dtype, numbers.shape),
        Bytes::from(encode(dtype, &numbers.data)),
    ))
}

/// Whether a number that is written out has an exact value in an integer type; float types round.
fn fits(dtype: DType, number: f64) -> bool {
    let whole = |low: f64, high: f64| number.fract() == 0.0 && (low..=high).contains(&number);
    match dtype {
        DType::Bool => whole(0.0, 1.0),
        DType::I8 => whole(f64::from(i8::MIN), f64::from(i8::MAX)),
        DType::U8 => whole(0.0, f64::from(u8::MAX)),
        DType::I16 => whole(f64::from(i16::MIN), f64::from(i16::MAX)),
        DType::I32 => whole(f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::I64 => whole(i64::MIN as f64, i64::MAX as f64),
        DType::F32 | DType::F64 | DType::F16 | DType::Bf16 | DType::C32 => true,
    }
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

/// An index tensor's element, whatever integer type it has.
pub(crate) fn index_at(bytes: &[u8], dtype: DType, i: usize) -> i64 {
    match dtype {
        DType::I32 => i64::from(bytemuck::cast_slice::<u8, i32>(bytes)[i]),
        DType::I64 => bytemuck::cast_slice::<u8, i64>(bytes)[i],
        DType::I8 => i64::from(bytes[i] as i8),
        DType::U8 | DType::Bool => i64::from(bytes[i]),
        DType::I16 => i64::from(bytemuck::cast_slice::<u8, i16>(bytes)[i]),
        DType::F32 => bytemuck::cast_slice::<u8, f32>(bytes)[i] as i64,
        DType::F64 => bytemuck::cast_slice::<u8, f64>(bytes)[i] as i64,
        _ => 0,
    }
}
