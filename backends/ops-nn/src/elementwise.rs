//! Ops on elements one by one, with NumPy's broadcasting.

mod binary;
mod cast;

use half::{bf16, f16};
use zbmd_ir::{DType, TokenType};

use super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, by_num, dims, index_at, token};
use super::index::{Walk, broadcast};
use super::num::{Float, Num};
use zbmd_op::OpError;
use zbmd_op::simd;

pub(super) use binary::{BinarySpec, binary, bits, compare, modulo, pow, prelu, shift};
pub(super) use cast::{bitcast, cast};

/// Runs `$f::<T>($args)` for the type that an integer dtype is computed in.
macro_rules! by_integer {
    ($dtype:expr, $f:ident ( $($arg:expr),* $(,)? )) => {
        match $dtype {
            DType::U8 | DType::Bool => $f::<u8>($($arg),*),
            DType::I64 => $f::<i64>($($arg),*),
            _ => $f::<i32>($($arg),*),
        }
    };
}
use by_integer;

/// Types of whole numbers.
const INTS: [DType; 5] = [DType::I8, DType::U8, DType::I16, DType::I32, DType::I64];

/// Elementwise of one type into another.
fn map_plan<A: Num, B: bytemuck::Pod + Send>(
    out: TokenType,
    f: impl Fn(A) -> B + Send + Sync + Copy + 'static,
) -> Plan {
    let body = move |tensors: &mut Tensors<'_>| {
        tensors.map(0, |input: &[A], output: &mut [B]| {
            if A::WIDE {
                simd::map(input, output, f);
            } else {
                output.iter_mut().zip(input).for_each(|(y, &x)| *y = f(x));
            }
        });
    };
    Plan::new(vec![out], body).over([0])
}

/// Abs, Neg, Relu, Sign of any numbers.
pub(super) fn arithmetic(cx: &Cx<'_>, name: &str) -> Planned {
    let out = cx.operand(0)?.ty.clone();
    by_num!(out.dtype, arithmetic_plan(out, name))
}

fn arithmetic_plan<T: Num>(out: TokenType, name: &str) -> Planned {
    Ok(match name {
        "Abs" => map_plan(out, absolute::<T>),
        "Neg" => map_plan(out, negated::<T>),
        "Relu" => map_plan(out, |v: T| v.max(T::ZERO)),
        _ => map_plan(out, sign::<T>),
    })
}

#[inline(always)]
fn absolute<T: Num>(v: T) -> T {
    if v < T::ZERO {
        T::ZERO.sub(v)
    } else {
        // A sum turns −0 into 0.
        T::ZERO.add(v)
    }
}

#[inline(always)]
fn negated<T: Num>(v: T) -> T {
    if T::FLOAT {
        // A difference would turn 0 into 0, and not into −0.
        v.mul(T::of(-1.0))
    } else {
        T::ZERO.sub(v)
    }
}

/// A NaN stays one.
#[inline(always)]
fn sign<T: Num>(v: T) -> T {
    if v > T::ZERO {
        T::ONE
    } else if v < T::ZERO {
        T::ZERO.sub(T::ONE)
    } else {
        v
    }
}

/// Not, IsNaN, BitwiseNot.
pub(super) fn test(cx: &Cx<'_>, name: &str) -> Planned {
    let ty = &cx.operand(0)?.ty;
    let truth = token(DType::Bool, &dims(ty));
    match name {
        "Not" => {
            cx.expect(0, &[DType::Bool])?;
            Ok(map_plan(truth, |v: u8| u8::from(v == 0)))
        }
        "BitwiseNot" => {
            cx.expect(0, &INTS)?;
            by_integer!(ty.dtype, bitwise_not(ty.clone()))
        }
        _ => Ok(match cx.expect(0, &FLOATS)? {
            DType::F64 => map_plan(truth, |v: f64| u8::from(v.is_nan())),
            _ => map_plan(truth, |v: f32| u8::from(v.is_nan())),
        }),
    }
}

fn bitwise_not<T: Num>(out: TokenType) -> Planned {
    Ok(map_plan(out, |v: T| T::of_i64(!v.i64())))
}

/// Which infinities count.
#[derive(Clone, Copy)]
pub(super) struct InfinitySpec {
    pub(super) negative: bool,
    pub(super) positive: bool,
}

impl InfinitySpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            negative: cx.flag("detect_negative", true)?,
            positive: cx.flag("detect_positive", true)?,
        })
    }
}

/// IsInf.
pub(super) fn is_infinite(cx: &Cx<'_>, spec: &InfinitySpec) -> Planned {
    let out = token(DType::Bool, &cx.dims(0)?);
    Ok(match cx.expect(0, &FLOATS)? {
        DType::F64 => infinity_plan::<f64>(out, *spec),
        _ => infinity_plan::<f32>(out, *spec),
    })
}

fn infinity_plan<T: Num>(out: TokenType, spec: InfinitySpec) -> Plan {
    map_plan(out, move |v: T| {
        u8::from((v == T::LEAST && spec.negative) || (v == T::GREATEST && spec.positive))
    })
}

/// The type of the first `count` operands, which is one for all of those that are there.
fn same_dtypes(cx: &Cx<'_>, count: usize) -> Result<DType, OpError> {
    let dtype = cx.dtype(0)?;
    for i in 1..count {
        if let Some(other) = cx.opt(i)
            && other.ty.dtype != dtype
        {
            let message = format!("is {}, the first input {dtype}", other.ty);
            return Err(cx.refuse(i, message, "cast one of them"));
        }
    }
    Ok(dtype)
}

/// Element i of a tensor of any type.
pub(super) fn number_at(bytes: &[u8], dtype: DType, i: usize) -> f64 {
    match dtype {
        DType::F32 => f64::from(bytemuck::cast_slice::<u8, f32>(bytes)[i]),
        DType::F64 => bytemuck::cast_slice::<u8, f64>(bytes)[i],
        DType::F16 => bytemuck::cast_slice::<u8, f16>(bytes)[i].to_f64(),
        DType::Bf16 => bytemuck::cast_slice::<u8, bf16>(bytes)[i].to_f64(),
        other => index_at(bytes, other, i) as f64,
    }
}

/// Sum, Mean, Max, Min of any number of operands.
pub(super) fn variadic(cx: &Cx<'_>, name: &str) -> Planned {
    let count = cx.ins.len();
    let dtype = same_dtypes(cx, count)?;
    let mut shapes = Vec::new();
    for i in 0..count {
        shapes.push(cx.dims(i)?);
    }
    let views: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
    let out_dims = broadcast(&views)?;
    // The sum of two is an addition, which has vector code and may write over an operand.
    if count == 2 && name == "Sum" {
        return binary(cx, "Add");
    }

    let mut walks = Vec::new();
    for view in views {
        walks.push(Walk::broadcasting(&out_dims, [view])?);
    }
    by_num!(dtype, variadic_plan(token(dtype, &out_dims), walks, name))
}

fn variadic_plan<T: Num>(out: TokenType, walks: Vec<Walk<1>>, name: &str) -> Planned {
    let join: fn(T, T) -> T = match name {
        "Max" => T::max,
        "Min" => T::min,
        _ => T::add,
    };
    // A mean is the sum of all operands and one scaling at the end.
    let scale = (name == "Mean").then_some(1.0 / walks.len() as f64);
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        let output = tensors.out::<T>(0);
        for (i, walk) in walks.iter().enumerate() {
            // An operand at a time over the whole result, so that each walk is a plain one.
            let input = tensors.get::<T>(i);
            let is_dense = walk.step[0] == 1;
            walk.each(|to, [from]| {
                let joined = &mut output[to..to + walk.inner];
                // The first operand is copied, the others join what is there; a step of 0 repeats one element.
                match (i, is_dense) {
                    (0, true) => joined.copy_from_slice(&input[from..from + joined.len()]),
                    (0, false) => joined.fill(input[from]),
                    (_, true) => joined
                        .iter_mut()
                        .zip(&input[from..])
                        .for_each(|(y, &x)| *y = join(*y, x)),
                    _ => joined.iter_mut().for_each(|y| *y = join(*y, input[from])),
                }
            });
        }
        if let Some(scale) = scale {
            output.iter_mut().for_each(|y| *y = T::of(y.f64() * scale));
        }
    }))
}

/// c ? x : y.
pub(super) fn select(cx: &Cx<'_>) -> Planned {
    cx.expect(0, &[DType::Bool])?;
    let dtype = cx.dtype(1)?;
    if dtype != cx.dtype(2)? {
        let first = cx.operand(1)?;
        return Err(cx.refuse_type(2, format!("`{}` is {}", first.name, first.ty)));
    }

    let shapes = [cx.dims(0)?, cx.dims(1)?, cx.dims(2)?];
    let views: [&[usize]; 3] = std::array::from_fn(|i| shapes[i].as_slice());
    let out_dims = broadcast(&views)?;
    let walk = Walk::broadcasting(&out_dims, views)?;
    let out = token(dtype, &out_dims);
    // What elements are does not matter here, only how large they are.
    match (dtype, dtype.size_bytes()) {
        (DType::C32, _) => {
            Err(cx.refuse(1, "is complex", "split it into real and imaginary parts"))
        }
        (_, 1) => Ok(select_plan::<u8>(out, walk)),
        (_, 2) => Ok(select_plan::<u16>(out, walk)),
        (_, 4) => Ok(select_plan::<u32>(out, walk)),
        _ => Ok(select_plan::<u64>(out, walk)),
    }
}

fn select_plan<T: bytemuck::Pod>(out: TokenType, walk: Walk<3>) -> Plan {
    Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        let conditions = tensors.get::<u8>(0);
        let if_true = tensors.get::<T>(1);
        let if_false = tensors.get::<T>(2);
        let output = tensors.out::<T>(0);
        let [condition_step, true_step, false_step] = walk.step.map(|step| step as usize);
        walk.each(|to, [condition_start, true_start, false_start]| {
            for (i, result) in output[to..to + walk.inner].iter_mut().enumerate() {
                *result = if conditions[condition_start + i * condition_step] != 0 {
                    if_true[true_start + i * true_step]
                } else {
                    if_false[false_start + i * false_step]
                };
            }
        });
    })
}

/// Elements bounded by scalars, either of which may be missing.
pub(super) fn clip(cx: &Cx<'_>) -> Planned {
    let dtype = same_dtypes(cx, 3)?;
    by_num!(dtype, clip_plan(cx.operand(0)?.ty.clone()))
}

fn clip_plan<T: Num>(out: TokenType) -> Planned {
    let body = |tensors: &mut Tensors<'_>| {
        let low = first_or(tensors, 1, T::LEAST);
        let high = first_or(tensors, 2, T::GREATEST);
        tensors.map(0, |input, output| {
            simd::map(input, output, |v: T| {
                let raised = if v < low { low } else { v };
                if raised > high { high } else { raised }
            });
        });
    };
    Ok(Plan::new(vec![out], body).over([0]))
}

/// The first element of an operand, if it is there.
fn first_or<T: Num>(tensors: &Tensors<'_>, i: usize, default: T) -> T {
    let elements = tensors.opt::<T>(i).unwrap_or_default();
    elements.first().copied().unwrap_or(default)
}

/// a · sigmoid(alpha · a) · b.
pub(super) fn swiglu(cx: &Cx<'_>, spec: &BinarySpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let ty = &cx.operand(0)?.ty;
    if *ty != cx.operand(1)?.ty {
        return Err(cx.refuse_type(1, format!("the first input is {ty}")));
    }
    let body = SwiGlu { alpha: spec.alpha };
    Ok(Plan::float(dtype, vec![ty.clone()], body))
}

struct SwiGlu {
    alpha: f64,
}

impl FloatBody for SwiGlu {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let gates = tensors.get::<F>(0);
        let values = tensors.get::<F>(1);
        let output = tensors.out::<F>(0);
        for ((y, &gate), &value) in output.iter_mut().zip(gates).zip(values) {
            *y = gate * (F::of(self.alpha) * gate).sigmoid() * value;
        }
    }
}
