//! Quantisation: floats to bytes and back.

use zbmd_ir::{DType, TokenType};

use super::cx::{Cx, FLOATS, Plan, Planned, Tensors, dims, expect_count, index_at, token};
use super::elementwise::number_at;
use super::num::Num;
use super::reduce::around;
use zbmd_op::OpError;

/// A value rounded, ties to even, into the range of a byte type. The zero point is added before rounding by callers
/// that work in wide types, which gives the same result as it is an integer.
pub(super) fn saturate(v: f64, dtype: DType, _zero: f64) -> u8 {
    let r = v.round_ties_even();
    if dtype == DType::I8 {
        r.clamp(-128.0, 127.0) as i8 as u8
    } else {
        r.clamp(0.0, 255.0) as u8
    }
}

/// Which scale belongs to which element.
#[derive(Clone)]
enum Scales {
    One,
    /// One for each place of an axis: elements behind the axis, places.
    Axis(usize, usize),
    /// One for each block along an axis: elements behind, places, block, blocks.
    Block(usize, usize, usize, usize),
}

/// How scales belong to elements.
pub(super) struct ScaleSpec {
    /// Elements along the axis that share a scale; 0 where all of a place do.
    pub(super) block: usize,
    /// None where there is one scale for all.
    pub(super) axis: Option<usize>,
}

impl ScaleSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let block = cx.args.uint_or("block_size", 0, 0, 1 << 30)? as usize;
        let axis = match cx.operand(1)?.ty.elements() {
            1 => None,
            _ => Some(cx.axis_param(1, cx.dims(0)?.len())?),
        };
        Ok(Self { block, axis })
    }
}

impl Scales {
    fn of(cx: &Cx<'_>, spec: &ScaleSpec) -> Result<Self, OpError> {
        let (x, scale) = (cx.dims(0)?, cx.operand(1)?);
        let count = scale.ty.elements() as usize;
        let block = spec.block;
        let Some(axis) = spec.axis else {
            return Ok(Scales::One);
        };
        let (_, n, inner) = around(&x, axis);
        if block == 0 {
            if count != n {
                return Err(cx.refuse(
                    1,
                    format!("is {}", scale.ty),
                    format!("one scale for each of {n} places"),
                ));
            }
            return Ok(Scales::Axis(inner, n));
        }
        let mut want = x.clone();
        want[axis] = n.div_ceil(block);
        if scale.dims() != want {
            return Err(cx.refuse(
                1,
                format!("is {}", scale.ty),
                format!("{want:?} for blocks of {block}"),
            ));
        }
        Ok(Scales::Block(inner, n, block, want[axis]))
    }

    fn at(&self, i: usize) -> usize {
        match *self {
            Scales::One => 0,
            Scales::Axis(inner, n) => i / inner % n,
            Scales::Block(inner, n, block, blocks) => {
                let (outer, place, rest) = (i / (inner * n), i / inner % n, i % inner);
                (outer * blocks + place / block) * inner + rest
            }
        }
    }
}

const WHOLE: [DType; 4] = [DType::I8, DType::U8, DType::I16, DType::I32];

pub(super) fn quantize(cx: &Cx<'_>, spec: &ScaleSpec) -> Planned {
    let dx = cx.expect(0, &[DType::F32, DType::F16, DType::Bf16, DType::I32])?;
    let ds = cx.expect(1, &FLOATS)?;
    let asked = cx.args.word_opt("output_dtype")?;
    let to = match cx.opt(2) {
        Some(zero) if asked.is_some_and(|word| word != zero.ty.dtype.name()) => {
            return Err(cx.refuse(
                2,
                format!(
                    "is {}, `output_dtype` {}",
                    zero.ty,
                    asked.unwrap_or_default()
                ),
                "both are the type of the result: leave one of them out",
            ));
        }
        Some(zero) => zero.ty.dtype,
        None => cx.args.dtype_or("output_dtype", DType::U8)?,
    };
    if !WHOLE.contains(&to) {
        return Err(Cx::other(
            format!("cannot quantise to {to}"),
            "to i8, u8 or i16",
        ));
    }
    expect_count(cx, 2, &[cx.operand(1)?.ty.elements() as usize], to)?;
    let scales = Scales::of(cx, spec)?;
    fn make<T: Num>(out: TokenType, dx: DType, ds: DType, to: DType, scales: Scales) -> Planned {
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            let (x, s, z, y) = (t.bytes(0), t.bytes(1), t.bytes(2), t.out::<T>(0));
            for (i, y) in y.iter_mut().enumerate() {
                let at = scales.at(i);
                let zero = if z.is_empty() { 0 } else { index_at(z, to, at) };
                // In f32, as the operator is defined: a wider quotient would round some ties elsewhere.
                let v =
                    (number_at(x, dx, i) as f32 / number_at(s, ds, at) as f32).round_ties_even();
                let v = f64::from(v) + zero as f64;
                *y = T::of(v.clamp(T::LEAST.f64(), T::GREATEST.f64()));
            }
        }))
    }
    let out = token(to, &cx.dims(0)?);
    super::cx::by_element!(to, make(out, dx, ds, to, scales))
}

pub(super) fn dequantize(cx: &Cx<'_>, spec: &ScaleSpec) -> Planned {
    let dx = cx.expect(0, &WHOLE)?;
    let ds = cx.expect(1, &FLOATS)?;
    expect_count(cx, 2, &[cx.operand(1)?.ty.elements() as usize], dx)?;
    let scales = Scales::of(cx, spec)?;
    fn make<T: Num>(out: TokenType, dx: DType, ds: DType, scales: Scales) -> Planned {
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            let (x, s, z, y) = (t.bytes(0), t.bytes(1), t.bytes(2), t.out::<T>(0));
            for (i, y) in y.iter_mut().enumerate() {
                let at = scales.at(i);
                let zero = if z.is_empty() { 0 } else { index_at(z, dx, at) };
                *y = T::of((index_at(x, dx, i) - zero) as f64 * number_at(s, ds, at));
            }
        }))
    }
    let to = cx.args.dtype_or("output_dtype", ds)?;
    let out = token(to, &dims(&cx.operand(0)?.ty));
    super::cx::by_element!(to, make(out, dx, ds, scales))
}

/// Bytes with the scale and zero point that the range of the floats asks for.
pub(super) fn dynamic(cx: &Cx<'_>) -> Planned {
    cx.expect(0, &[DType::F32])?;
    let types = [
        (DType::U8, cx.dims(0)?),
        (DType::F32, vec![]),
        (DType::U8, vec![]),
    ];
    let outs = cx
        .wanted
        .iter()
        .map(|&o| token(types[o].0, &types[o].1))
        .collect();
    let wanted = cx.wanted.clone();
    Ok(Plan::new(outs, move |t: &mut Tensors<'_>| {
        let x = t.get::<f32>(0);
        let (low, high) = x
            .iter()
            .fold((0.0_f32, 0.0_f32), |(l, h), &v| (l.min(v), h.max(v)));
        let scale = if high == low {
            1.0
        } else {
            (high - low) / 255.0
        };
        let zero = (-low / scale).clamp(0.0, 255.0).round_ties_even();
        for (i, &o) in wanted.iter().enumerate() {
            match o {
                0 => t.out::<u8>(i).iter_mut().zip(x).for_each(|(y, &x)| {
                    *y = ((x / scale).round_ties_even() + zero).clamp(0.0, 255.0) as u8;
                }),
                1 => t.out::<f32>(i).fill(scale),
                _ => t.out::<u8>(i).fill(zero as u8),
            }
        }
    }))
}
