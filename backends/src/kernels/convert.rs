//! Conversions between element types, rounding to the nearest with ties to even, saturating, NaN to 0.

use zbmd_ir::DType;

use super::lang::{Builder, Mem, Ty, Val};
use super::math;
use super::plan::{Amount, Grid, KernelPlan, Operand};

/// How a dtype lies in memory; complex numbers as floats.
pub(crate) fn mem(dtype: DType) -> Mem {
    match dtype {
        DType::F32 | DType::C32 => Mem::F32,
        DType::F64 => Mem::F64,
        DType::F16 | DType::Bf16 => Mem::U16,
        DType::I8 => Mem::I8,
        DType::U8 | DType::Bool => Mem::U8,
        DType::I16 => Mem::I16,
        DType::I32 => Mem::I32,
        DType::I64 => Mem::I64,
    }
}

/// One thread for each of the `elements` elements of a token; `f` from what is loaded to what is stored.
fn each(
    name: &'static str,
    from: Mem,
    to: Mem,
    elements: u64,
    f: impl for<'k> Fn(Val<'k>) -> Val<'k>,
) -> Option<KernelPlan> {
    let k = Builder::new(name, 64);
    let (x, y) = (k.reads(from), k.writes(to));
    let each = k.spec(u32::try_from(elements).ok()?);
    k.each(k.firings() * each, |i| k.store(y, i, f(k.load(x, i))));
    let operands = [Operand::Input(0), Operand::Output(0)];
    Some(KernelPlan::one(
        k.finish(),
        &operands,
        Grid::Threads(Amount::each(elements)),
    ))
}

/// From integers to floats in [−1, 1]: (x − bias) / scale.
pub(crate) fn decode(raw: DType, elements: u64, bias: f32, scale: f32) -> Option<KernelPlan> {
    each("decode", mem(raw), Mem::F32, elements, |v| {
        let k = v.builder();
        (v.cast(Ty::F32) - k.f32(bias)) / k.f32(scale)
    })
}

/// The other way round.
pub(crate) fn encode(raw: DType, elements: u64, bias: f32, scale: f32) -> Option<KernelPlan> {
    each("encode", Mem::F32, mem(raw), elements, |v| {
        let k = v.builder();
        let v = v * k.f32(scale) + k.f32(bias);
        let (low, high) = bounds(raw);
        let level = match raw {
            DType::I32 => to_i32(v),
            _ => math::nearest(clamp(v, low, high)),
        };
        level.cast(mem(raw).ty())
    })
}

fn bounds(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-128.0, 127.0),
        DType::I16 => (-32_768.0, 32_767.0),
        _ => (-2_147_483_648.0, 2_147_483_647.0),
    }
}

/// Within bounds; 0 for a NaN.
fn clamp<'k>(v: Val<'k>, low: f64, high: f64) -> Val<'k> {
    let k = v.builder();
    let v = k.select(v.eq(v), v, v.like(0.0));
    let v = k.select(v.lt(v.like(low)), v.like(low), v);
    k.select(v.gt(v.like(high)), v.like(high), v)
}

/// A float as the nearest `i32`: the largest has no `f32` of its own.
fn to_i32<'k>(v: Val<'k>) -> Val<'k> {
    let k = v.builder();
    let rounded = v.round();
    let over = v.like(2_147_483_648.0).le(rounded);
    let inside = clamp(rounded, -2_147_483_648.0, 2_147_483_520.0);
    // Between the two bounds f64 has integers that f32 has not.
    let inside = match v.ty {
        Ty::F64 => clamp(rounded, -2_147_483_648.0, 2_147_483_647.0),
        _ => inside,
    };
    k.select(over, k.i32(i32::MAX), inside.cast(Ty::I32))
}

/// A float as the nearest `i64`.
fn to_i64<'k>(v: Val<'k>) -> Val<'k> {
    let k = v.builder();
    let rounded = v.round();
    let limit = 9_223_372_036_854_775_808.0;
    let over = v.like(limit).le(rounded);
    let below = if v.ty == Ty::F64 {
        limit - 1024.0
    } else {
        limit - 549_755_813_888.0
    };
    let inside = clamp(rounded, -limit, below).cast(Ty::I64);
    k.select(over, k.bits(Ty::I64, i64::MAX as u64), inside)
}

/// An `f32` as the bits of the nearest `f16`.
pub(super) fn to_half<'k>(v: Val<'k>) -> Val<'k> {
    let k = v.builder();
    let bits = v.as_bits(Ty::U32);
    let (sign, a) = ((bits >> 16) & 0x8000, bits & 0x7fff_ffff);
    // Normal results: the exponent moves by 112, and half of what is cut off, and one if the rest is odd, rounds.
    let moved = a - (112 << 23);
    let normal = (moved + 0xfff + ((moved >> 13) & 1)) >> 13;
    // Below them the sum with 0.5 leaves the bits of the nearest multiple of 2^−24.
    let tiny = (a.as_bits(Ty::F32) + k.f32(0.5)).as_bits(Ty::U32) - 0.5f32.to_bits();
    let is_tiny = a.lt(k.u32(113 << 23));
    let finite = k.select(is_tiny, tiny, normal);
    let is_large = k.u32(0x477f_f000).le(a);
    let some = k.select(is_large, k.u32(0x7c00), finite);
    let is_nan = a.gt(k.u32(0x7f80_0000));
    let all = k.select(is_nan, k.u32(0x7e00) | ((a >> 13) & 0x3ff), some);
    sign | all
}

/// The `f32` of the bits of an `f16`.
pub(super) fn from_half<'k>(half: Val<'k>) -> Val<'k> {
    let k = half.builder();
    let sign = (half & 0x8000) << 16;
    let exponent = (half >> 10) & 0x1f;
    let mantissa = half & 0x3ff;
    let normal = ((exponent + 112) << 23) | (mantissa << 13);
    let tiny = (mantissa.cast(Ty::F32) * k.f32(1.0 / 16_777_216.0)).as_bits(Ty::U32);
    let special = (mantissa << 13) | 0x7f80_0000;
    let value = k.select(exponent.eq(k.u32(0)), tiny, normal);
    let value = k.select(exponent.eq(k.u32(31)), special, value);
    (sign | value).as_bits(Ty::F32)
}

/// An `f32` as the bits of the nearest `bf16`.
pub(super) fn to_bfloat<'k>(v: Val<'k>) -> Val<'k> {
    let k = v.builder();
    let bits = v.as_bits(Ty::U32);
    let rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    k.select(v.ne(v), (bits >> 16) | 0x40, rounded)
}

/// The `f32` of the bits of a `bf16`.
pub(super) fn from_bfloat<'k>(half: Val<'k>) -> Val<'k> {
    (half << 16).as_bits(Ty::F32)
}

/// What is loaded as a number of its natural type.
fn widen<'k>(from: DType, v: Val<'k>) -> Val<'k> {
    match from {
        DType::F16 => from_half(v),
        DType::Bf16 => from_bfloat(v),
        DType::Bool | DType::U8 => v.cast(Ty::I32),
        _ => v,
    }
}

/// Between dtypes; none for those that need two roundings here and one on the CPU.
pub(crate) fn cast(from: DType, to: DType, elements: u64) -> Option<KernelPlan> {
    let small_floats = matches!(to, DType::F16 | DType::Bf16);
    let wide = matches!(from, DType::F64 | DType::I32 | DType::I64);
    if small_floats && wide {
        return None;
    }
    match (from, to) {
        (DType::C32, _) => Some(super::straight(8 * elements, 1)),
        (_, DType::C32) => complex(from, elements),
        // Through f64, as the CPU has it, and back in one rounding.
        (DType::I64, DType::F32) => None,
        _ => each("convert", mem(from), mem(to), elements, |v| {
            narrow(to, widen(from, v))
        }),
    }
}

fn complex(from: DType, elements: u64) -> Option<KernelPlan> {
    if from == DType::I64 {
        return None;
    }
    let k = Builder::new("convert", 64);
    let (x, y) = (k.reads(mem(from)), k.writes(Mem::Pair));
    let each = k.spec(u32::try_from(elements).ok()?);
    k.each(k.firings() * each, |i| {
        let re = widen(from, k.load(x, i)).cast(Ty::F32);
        k.store_pair(y, i, [re, k.f32(0.0)]);
    });
    let operands = [Operand::Input(0), Operand::Output(0)];
    Some(KernelPlan::one(
        k.finish(),
        &operands,
        Grid::Threads(Amount::each(elements)),
    ))
}

/// A number as what is stored for `to`.
fn narrow<'k>(to: DType, v: Val<'k>) -> Val<'k> {
    let k = v.builder();
    let float = v.ty.is_float();
    match to {
        DType::F32 => v.cast(Ty::F32),
        DType::F64 => v.cast(Ty::F64),
        DType::F16 => to_half(v.cast(Ty::F32)),
        DType::Bf16 => to_bfloat(v.cast(Ty::F32)),
        DType::I64 if float => to_i64(v),
        DType::I64 => v.cast(Ty::I64),
        DType::I32 if float => to_i32(v),
        DType::Bool => v.cast(Ty::Bool).cast(Ty::U32),
        _ => {
            let (low, high) = bounds(to);
            let inside = match float {
                true => math::nearest(clamp(v, low, high)),
                false => {
                    let v = k.select(v.lt(v.like(low)), v.like(low), v);
                    k.select(v.gt(v.like(high)), v.like(high), v).cast(Ty::I32)
                }
            };
            inside.cast(mem(to).ty())
        }
    }
}
