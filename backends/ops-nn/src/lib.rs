//! Tensor ops with the meaning of the ONNX operators of the same names, at their newest versions.
//!
//! A token is a whole tensor, every rate is 1. Each operand is an input port or, where it is a constant, a parameter
//! of the same name; shapes are known when an actor is resolved, so kernels are made with strides and tables ready
//! and allocate nothing. Operands whose values decide shapes must be constants.

mod aligned;
mod attention;
mod attributes;
mod conv;
mod cx;
mod elementwise;
mod fetch_ahead;
mod gemm;
mod gpu;
mod image;
mod index;
mod integer;
mod last;
mod matmul;
mod movement;
mod norm;
mod num;
mod operands;
mod places;
mod pool;
mod quant;
mod recurrent;
mod reduce;
mod signal;
mod table;
mod turn;
mod unary;
mod vector;
mod window;

use std::sync::LazyLock;

use bytes::Bytes;
use zbmd_ir::{DType, Params, TokenType, Value};

use cx::{Cx, Halves, Operand, Plan, operand_of};
#[cfg(any(test, feature = "testing"))]
pub use vector::narrow;
use zbmd_gpu_ir::{Math, UnknownMath};
use zbmd_op::args::{Args, input_error};
use zbmd_op::entry::{check_connected, check_limits};
use zbmd_op::types::{Bindings, PortSchema, TypeSchema};
use zbmd_op::{Op, OpDoc, OpError, Packing, ResolveCx, ResolvedOp};

/// An operand of a tensor op.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInput {
    /// Name of the port and of the parameter; the first of many has the number 0 behind it.
    pub name: &'static str,
    /// Whether it may be missing.
    pub optional: bool,
    /// Whether it must be a constant.
    pub constant: bool,
    /// Whether any number of operands may follow, named by number.
    pub many: bool,
}

/// What is known of a tensor op without making one.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorOp {
    /// The ONNX operator.
    pub operator: &'static str,
    /// Name in the catalogue: `Nn` and the operator.
    pub name: &'static str,
    /// Operands, in the operator's order.
    pub inputs: Vec<TensorInput>,
    /// Outputs, in the operator's order.
    pub outputs: Vec<&'static str>,
    /// Whether there are as many outputs as are asked for, named by number.
    pub many_outputs: bool,
    /// Parameters beside operands.
    pub params: Vec<&'static str>,
    /// Element types of operands and outputs.
    pub types: TypeSchema,
}

impl TensorOp {
    /// The tensor op for an ONNX operator.
    pub fn find(operator: &str) -> Option<&'static TensorOp> {
        TABLE
            .iter()
            .map(|e| &e.spec)
            .find(|s| s.operator == operator)
    }

    /// Every tensor op.
    pub fn all() -> impl Iterator<Item = &'static TensorOp> {
        TABLE.iter().map(|e| &e.spec)
    }

    /// The operand at a position, and the name of its port.
    pub fn input(&self, position: usize) -> Option<(&TensorInput, String)> {
        let last = self.inputs.last()?;
        match self.inputs.get(position) {
            Some(input) if !input.many => Some((input, input.name.to_owned())),
            _ if last.many => Some((
                last,
                format!("{}{}", last.name, position + 1 - self.inputs.len()),
            )),
            _ => None,
        }
    }

    /// The name of the output at a position.
    pub fn output(&self, position: usize) -> Option<String> {
        match self.outputs.get(position) {
            Some(name) if !self.many_outputs => Some((*name).to_owned()),
            _ if self.many_outputs => Some(format!("{}{position}", self.outputs.first()?)),
            _ => None,
        }
    }
}

/// Parameters that every tensor op has.
const COMMON: [&str; 3] = [OUTPUTS, VIEW, PACKED];
/// Numbers of the outputs that are wanted.
const OUTPUTS: &str = "outputs";
/// Shapes under which inputs are read, by name.
const VIEW: &str = "view";
/// For operands that are packed, `[tensor, shape]` by name: what the compiler puts in the place of weights.
const PACKED: &str = "packed";

struct Entry {
    spec: TensorOp,
    doc: OpDoc,
    row: &'static table::Row,
}

static TABLE: LazyLock<Vec<Entry>> = LazyLock::new(|| table::ROWS.iter().map(entry).collect());

/// A row of the table, read. The texts are kept for the life of the program, as those of all ops are.
fn entry(row: &'static table::Row) -> Entry {
    let types = TypeSchema::new(row.types);
    let inputs: Vec<TensorInput> = types.inputs.iter().map(TensorInput::of).collect();
    let outputs: Vec<&str> = types.outputs.iter().map(|port| port.name).collect();
    let params: Vec<&str> = row.params.split_whitespace().collect();
    let name: &'static str = format!("Nn{}", row.operator).leak();
    let example = format!("{name}({})", row.example);
    let doc = OpDoc {
        summary: row.summary,
        params: param_docs(&inputs, &params).leak(),
        ports: ports_doc(&inputs, &outputs).leak(),
        example: example.leak(),
    };
    Entry {
        spec: TensorOp {
            operator: row.operator,
            name,
            inputs,
            outputs,
            many_outputs: types.outputs.iter().any(|port| port.many),
            params,
            types,
        },
        doc,
        row,
    }
}

impl TensorInput {
    fn of(port: &PortSchema) -> Self {
        Self {
            name: port.name,
            optional: port.optional,
            constant: port.constant,
            many: port.many,
        }
    }

    /// How the documentation of ports shows it.
    fn written(&self) -> String {
        let number = if self.many { "0, …" } else { "" };
        let note = match (self.optional, self.constant) {
            (true, true) => " (constant, may be missing)",
            (true, false) => " (may be missing)",
            (false, true) => " (constant)",
            (false, false) => "",
        };
        format!("`{}{number}`{note}", self.name)
    }
}

/// The parameters of an op with what they mean: operands, its own, and those of all tensor ops.
fn param_docs(
    inputs: &[TensorInput],
    params: &[&'static str],
) -> Vec<(&'static str, &'static str)> {
    let mut docs = Vec::new();
    for input in inputs {
        let meaning = match input.constant {
            true => "the operand, which must be a constant",
            false => "the operand, where it is a constant",
        };
        docs.push((input.name, meaning));
    }
    docs.extend(params.iter().map(|param| (*param, table::meaning(param))));
    docs.push((
        OUTPUTS,
        "numbers of the outputs that are wanted (default [0])",
    ));
    docs.push((
        PACKED,
        "weights in the order of the CPU's kernels; the compiler writes it",
    ));
    docs.push((
        VIEW,
        "shapes under which inputs are read, by name: {\"x\": [2, 8]}",
    ));
    docs
}

/// The ports of an op in one line.
fn ports_doc(inputs: &[TensorInput], outputs: &[&str]) -> String {
    let input_names: Vec<String> = inputs.iter().map(TensorInput::written).collect();
    let output_names: Vec<String> = outputs.iter().map(|name| format!("`{name}`")).collect();
    format!(
        "{} -> {}; whole tensors, one a firing; any input may be a parameter instead",
        input_names.join(", "),
        output_names.join(", ")
    )
}

/// All tensor ops.
pub fn ops() -> impl Iterator<Item = impl Op + 'static> {
    TABLE.iter().map(Nn)
}

/// One tensor op of the catalogue.
struct Nn(&'static Entry);

impl Nn {
    /// The parameters beside operands, whose names were checked, and what factors of products may be rounded to.
    fn attributes(&self, cx: &ResolveCx<'_>) -> Result<(Params, Math), OpError> {
        let params = cx.params.iter();
        let attributes: Params = params
            .filter(|(name, _)| !self.is_operand(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();

        let inner = ResolveCx {
            params: &attributes,
            ..*cx
        };
        let own_params = self.0.spec.params.iter().copied();
        let known: Vec<&str> = own_params.chain(COMMON).collect();
        let args = Args::new(&inner, &known)?;
        let word = match self.0.spec.params.contains(&Math::PARAM) {
            true => args.word_opt(Math::PARAM)?,
            false => None,
        };
        let math = match word {
            None => Math::F32,
            Some(word) => word.parse().map_err(|_: UnknownMath| {
                let known = Math::ALL.map(Math::name).join(", ");
                let message = format!("`{word}` is unknown");
                args.error(Math::PARAM, message, format!("one of {known}"))
            })?,
        };
        Ok((attributes, math))
    }

    /// The names of the outputs that are wanted.
    fn output_names(&self, args: &Args<'_>, wanted: &[usize]) -> Result<Vec<String>, OpError> {
        let spec = &self.0.spec;
        let names: Option<Vec<String>> = wanted.iter().map(|&o| spec.output(o)).collect();
        names.ok_or_else(|| {
            let message = format!("is {wanted:?}");
            let help = format!("there are {}", spec.outputs.join(", "));
            args.error(OUTPUTS, message, help)
        })
    }

    /// Refuses a plan whose outputs are not those of the schema, or beyond the limits.
    fn check_outputs(
        &self,
        plan: &Plan,
        names: &[String],
        bindings: &Bindings,
    ) -> Result<(), OpError> {
        if plan.outs.len() != names.len() {
            return Err(Cx::other(
                "not all of these outputs exist",
                "ask for others in `outputs`",
            ));
        }
        for (name, token) in names.iter().zip(&plan.outs) {
            let types = &self.0.spec.types;
            if let Some(port) = types.output(name) {
                types.check_output(port, name, token, bindings)?;
            }
        }

        let mut outputs = plan.outs.iter();
        match outputs.find(|token| token.bytes() > zbmd_ir::limits::MAX_TOKEN_BYTES) {
            Some(token) => Err(Cx::other(
                format!("the result would be {token}"),
                "make it smaller",
            )),
            None => Ok(()),
        }
    }

    fn is_operand(&self, name: &str) -> bool {
        !name.is_empty() && self.0.spec.types.input(name).is_some()
    }

    /// The numbers of the outputs that are wanted.
    fn wanted(&self, args: &Args<'_>) -> Result<Vec<usize>, OpError> {
        let Some(list) = args.ints_opt(OUTPUTS)? else {
            return Ok(match attributes::given_outputs(args) {
                Some(count @ 1..=31) if self.0.spec.many_outputs => (0..count as usize).collect(),
                _ => vec![0],
            });
        };
        let numbers: Option<Vec<usize>> = list
            .iter()
            .map(|&output| usize::try_from(output).ok().filter(|o| *o < 31))
            .collect();
        let rising = numbers.filter(|n| !n.is_empty() && n.is_sorted_by(|a, b| a < b));
        rising.ok_or_else(|| {
            let message = format!("is {list:?}");
            args.error(OUTPUTS, message, "numbers of outputs, rising from 0")
        })
    }

    /// The operands in the operator's order, constants from parameters, the rest from ports, and what the variables of
    /// the op's types stand for. Numbers that are written out have no type of their own: they are read last, with the
    /// type that the op's schema asks for beside the other operands.
    fn operands(&self, cx: &ResolveCx<'_>) -> Result<(Vec<Option<Operand>>, Bindings), OpError> {
        let types = &self.0.spec.types;
        let args = Args::all(cx);
        let given = self.given(cx, &args)?;

        let mut bindings = Bindings::default();
        for (name, given) in &given {
            if let (Given::Typed { token, .. }, Some(port)) = (given, types.input(name)) {
                types.check_input(port, name, token, &mut bindings)?;
            }
        }

        let views = args.map_opt(VIEW)?;
        let mut operands = Vec::new();
        for (name, given) in given {
            let Some(port) = types.input(&name) else {
                continue;
            };
            let (ty, data, packed) = match given {
                Given::Missing => {
                    operands.push(None);
                    continue;
                }
                Given::Typed {
                    token,
                    data,
                    packed,
                } => (token, data, packed),
                Given::Written(value) => {
                    let dtype = types.literal_type(port, &bindings);
                    let (token, data) = operand_of(&args, &name, value, dtype)?;
                    types.check_input(port, &name, &token, &mut bindings)?;
                    (token, Some(data), None)
                }
            };

            let mut seen = ty.clone();
            if let Some(view) = views.and_then(|v| v.get(&name)) {
                seen = viewed(&args, &name, &ty, view)?;
            }
            if seen.elements() == 0 && !port.may_be_empty && !port.constant {
                let message = format!("is {seen}, which is empty");
                return Err(input_error(&name, message, "give it elements"));
            }
            operands.push(Some(Operand {
                name,
                ty: seen,
                port: ty,
                data,
                packed,
            }));
        }
        Ok((operands, bindings))
    }

    /// How each operand is given, by name, in the operator's order.
    fn given<'v>(
        &self,
        cx: &'v ResolveCx<'_>,
        args: &Args<'v>,
    ) -> Result<Vec<(String, Given<'v>)>, OpError> {
        let packs = args.map_opt(PACKED)?;
        let mut all = Vec::new();
        let mut position = 0;
        while let Some((input, name)) = self.0.spec.input(position) {
            let is_first = position == 0;
            position += 1;
            let value = cx.params.get(&name);
            let is_port = cx
                .connected
                .iter()
                .any(|c| *c == name || (is_first && c.is_empty()));

            if let (Some(packed), None, false) = (packs.and_then(|p| p.get(&name)), value, is_port)
            {
                let given = packed_operand(args, &name, packed)?;
                all.push((name, given));
                continue;
            }
            if input.many && value.is_none() && !is_port {
                if is_first {
                    return Err(missing(&name));
                }
                break;
            }
            let given = match (value, is_port) {
                (Some(_), true) => {
                    return Err(input_error(
                        &name,
                        "is a port and a parameter",
                        "give one of them",
                    ));
                }
                (Some(value @ Value::Tensor(..)), false) => {
                    let (token, data) = operand_of(args, &name, value, DType::F32)?;
                    Given::typed(token, Some(data))
                }
                (Some(value), false) => Given::Written(value),
                (None, true) if input.constant => {
                    return Err(input_error(
                        &name,
                        "must be a constant",
                        "its value decides shapes, which are fixed when a model is compiled: give it as a parameter",
                    ));
                }
                (None, true) => Given::typed(cx.input(&name, is_first)?.clone(), None),
                (None, false) if input.optional => Given::Missing,
                (None, false) => return Err(missing(&name)),
            };
            all.push((name, given));
        }
        Ok(all)
    }
}

/// How an operand is given.
enum Given<'v> {
    /// Not at all.
    Missing,
    /// By a port, or by a constant that has a type of its own.
    Typed {
        token: TokenType,
        /// The constant's bytes: none where it is packed.
        data: Option<Bytes>,
        packed: Option<Bytes>,
    },
    /// By numbers that are written out.
    Written(&'v Value),
}

impl Given<'_> {
    fn typed(token: TokenType, data: Option<Bytes>) -> Self {
        Self::Typed {
            token,
            data,
            packed: None,
        }
    }
}

fn missing(name: &str) -> OpError {
    input_error(name, "is missing", "connect it, or give it as a parameter")
}

/// An operand whose weights are in the order of a kernel.
fn packed_operand(args: &Args<'_>, name: &str, value: &Value) -> Result<Given<'static>, OpError> {
    let refuse = || {
        let message = format!("has no weights for `{name}`");
        args.error(PACKED, message, "[tensor, shape]")
    };
    let Some([tensor @ Value::Tensor(..), shape]) = value.as_list() else {
        return Err(refuse());
    };
    let (packed_type, bytes) = operand_of(args, name, tensor, DType::F32)?;
    let dims = shape_of(shape).ok_or_else(refuse)?;
    if !PACKED_TYPES.contains(&packed_type.dtype) {
        return Err(refuse());
    }
    Ok(Given::Typed {
        token: TokenType::new(packed_type.dtype, dims),
        data: Some(Bytes::new()),
        packed: Some(bytes),
    })
}

/// A list of dimensions.
fn shape_of(value: &Value) -> Option<Vec<u32>> {
    let dims = value.as_list()?.iter();
    dims.map(|dim| u32::try_from(dim.as_int()?).ok()).collect()
}

/// The type of a port that is read under another shape.
fn viewed(args: &Args<'_>, name: &str, ty: &TokenType, view: &Value) -> Result<TokenType, OpError> {
    let as_seen = shape_of(view).map(|dims| TokenType::new(ty.dtype, dims));
    let fitting = as_seen.filter(|seen| seen.elements() == ty.elements());
    fitting.ok_or_else(|| {
        let message = format!("does not fit `{name}`, which is {ty}");
        args.error(VIEW, message, "a shape of as many elements")
    })
}

impl Op for Nn {
    fn name(&self) -> &str {
        self.0.spec.name
    }

    fn doc(&self) -> OpDoc {
        self.0.doc.clone()
    }

    fn types(&self) -> Option<&TypeSchema> {
        Some(&self.0.spec.types)
    }

    fn resolve(&self, cx: &ResolveCx<'_>) -> Result<ResolvedOp, OpError> {
        let (attributes, math) = self.attributes(cx)?;
        let inner = ResolveCx {
            params: &attributes,
            ..*cx
        };
        let args = Args::all(&inner);
        let (ins, bindings) = self.operands(cx)?;
        let wanted = self.wanted(&args)?;
        let names = self.output_names(&args, &wanted)?;

        let tensor = Cx { args, ins, wanted };
        let mut plan: Plan = (self.0.row.make)(&tensor, self.0.spec.operator)?;
        if self.0.row.wide {
            Halves::check(&plan, &tensor.ins)?;
        }
        self.check_outputs(&plan, &names, &bindings)?;

        let packing = packing_of(&mut plan, &tensor.ins);
        let gpu_kernels = plan.gpu.take();
        let outs = plan.outs.clone();
        if self.0.row.wide {
            plan = Halves::wrap(plan, &tensor.ins);
        }
        let mut resolved = plan.resolved(&tensor.ins, &names);
        check_limits(resolved.signature())?;
        check_connected(resolved.signature(), cx.connected)?;

        if let Some(pack) = packing {
            resolved = resolved.with_packing(pack);
        }
        if cx.params.contains_key(PACKED) {
            let refusal = "its weights are packed for CPUs";
            resolved = resolved.with_gpu_kernels(move |_| Err(refusal.to_owned()));
        } else if let Some(lower) = gpu_kernels {
            let operands = gpu::Operands {
                operator: self.0.spec.operator,
                math,
                ins: tensor.ins.clone(),
                wanted: tensor.wanted.clone(),
                outs,
            };
            resolved =
                resolved.with_gpu_kernels(move |request| gpu::lower(&operands, &lower, request));
        }
        Ok(resolved)
    }
}

/// Element types of weights that kernels pack.
const PACKED_TYPES: [DType; 3] = [DType::F32, DType::I8, DType::U8];

/// What packs the weights of a plan, where they are a constant that is not packed yet.
fn packing_of(
    plan: &mut Plan,
    ins: &[Option<Operand>],
) -> Option<impl Fn() -> Packing + Send + Sync + 'static> {
    let (position, pack) = plan.packs.take()?;
    let weights = ins.get(position)?.as_ref()?;
    let is_unpacked = PACKED_TYPES.contains(&weights.ty.dtype) && weights.packed.is_none();
    if !is_unpacked || weights.data.is_none() {
        return None;
    }

    let operand = weights.name.clone();
    let token = weights.ty.clone();
    Some(move || Packing {
        operand: operand.clone(),
        shape: token.shape.clone(),
        dtype: token.dtype,
        weights: pack(),
    })
}
