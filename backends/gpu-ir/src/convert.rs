//! Conversions between element types, rounding to the nearest with ties to even, saturating, NaN to 0.

use zbmd_ir::DType;

use super::lang::{Builder, Mem, Ty, Val};
use super::math;
use super::plan::{Amount, Grid, KernelPlan, Operand};

/// How a dtype is stored in memory; complex numbers as floats.
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
fn elementwise_kernel(
    name: &'static str,
    from: Mem,
    to: Mem,
    elements: u64,
    f: impl for<'k> Fn(Val<'k>) -> Val<'k>,
) -> Option<KernelPlan> {
    let k = Builder::new(name, 64);
    let input_binding = k.reads(from);
    let output_binding = k.writes(to);
    let elements_per_firing = k.spec(u32::try_from(elements).ok()?);
    k.each(k.firings() * elements_per_firing, |i| {
        k.store(output_binding, i, f(k.load(input_binding, i)))
    });
    let port_operands = [Operand::Input(0), Operand::Output(0)];
    Some(KernelPlan::one(
        k.finish(),
        &port_operands,
        Grid::Threads(Amount::each(elements)),
    ))
}

/// From integers to floats in [−1, 1]: (x − bias) / scale.
pub fn decode(raw: DType, elements: u64, bias: f32, scale: f32) -> Option<KernelPlan> {
    elementwise_kernel("decode", mem(raw), Mem::F32, elements, |v| {
        let k = v.builder();
        (v.cast(Ty::F32) - k.f32(bias)) / k.f32(scale)
    })
}

/// The other way round.
pub fn encode(raw: DType, elements: u64, bias: f32, scale: f32) -> Option<KernelPlan> {
    elementwise_kernel("encode", Mem::F32, mem(raw), elements, |value| {
        let k = value.builder();
        let scaled_value = value * k.f32(scale) + k.f32(bias);
        let (low, high) = integer_bounds(raw);
        let integer_level = match raw {
            DType::I32 => to_i32(scaled_value),
            _ => math::nearest(clamp_number(scaled_value, low, high)),
        };
        integer_level.cast(mem(raw).ty())
    })
}

fn integer_bounds(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-128.0, 127.0),
        DType::I16 => (-32_768.0, 32_767.0),
        _ => (-2_147_483_648.0, 2_147_483_647.0),
    }
}

/// Within bounds; 0 for a NaN.
fn clamp_number<'k>(value: Val<'k>, low: f64, high: f64) -> Val<'k> {
    let k = value.builder();
    let number = k.select(value.eq(value), value, value.like(0.0));
    let lower_bounded = k.select(number.lt(number.like(low)), number.like(low), number);
    let is_above = lower_bounded.gt(lower_bounded.like(high));
    k.select(is_above, lower_bounded.like(high), lower_bounded)
}

/// A float as the nearest `i32`: the largest has no `f32` of its own.
fn to_i32<'k>(v: Val<'k>) -> Val<'k> {
    let k = v.builder();
    let rounded = v.round();
    let is_over = v.like(2_147_483_648.0).le(rounded);
    let inside_value = clamp_number(rounded, -2_147_483_648.0, 2_147_483_520.0);

    // Between the two bounds f64 has integers that f32 has not.
    let inside_value = match v.ty {
        Ty::F64 => clamp_number(rounded, -2_147_483_648.0, 2_147_483_647.0),
        _ => inside_value,
    };
    k.select(is_over, k.i32(i32::MAX), inside_value.cast(Ty::I32))
}

/// A float as the nearest `i64`.
fn to_i64<'k>(v: Val<'k>) -> Val<'k> {
    let k = v.builder();
    let rounded = v.round();
    let upper_limit = 9_223_372_036_854_775_808.0;
    // The largest integers have no float of their own: what is beyond is selected at the end.
    let is_over = v.like(upper_limit).le(rounded);
    let largest_below = if v.ty == Ty::F64 {
        upper_limit - 1024.0
    } else {
        upper_limit - 549_755_813_888.0
    };
    let inside_value = clamp_number(rounded, -upper_limit, largest_below).cast(Ty::I64);
    k.select(is_over, k.bits(Ty::I64, i64::MAX as u64), inside_value)
}

/// An `f32` as the bits of the nearest `f16`.
pub(super) fn to_half<'k>(v: Val<'k>) -> Val<'k> {
    let k = v.builder();
    let bits = v.as_bits(Ty::U32);
    let sign_bit = (bits >> 16) & 0x8000;
    let abs_bits = bits & 0x7fff_ffff;

    // Normal results: the exponent moves by 112, and half of what is cut off, and one if the rest is odd, rounds.
    let moved_bits = abs_bits - (112 << 23);
    let normal_bits = (moved_bits + 0xfff + ((moved_bits >> 13) & 1)) >> 13;
    // Below them the sum with 0.5 leaves the bits of the nearest multiple of 2^−24.
    let subnormal_bits =
        (abs_bits.as_bits(Ty::F32) + k.f32(0.5)).as_bits(Ty::U32) - 0.5f32.to_bits();
    let is_tiny = abs_bits.lt(k.u32(113 << 23));
    let finite_bits = k.select(is_tiny, subnormal_bits, normal_bits);
    let is_large = k.u32(0x477f_f000).le(abs_bits);
    let number_bits = k.select(is_large, k.u32(0x7c00), finite_bits);
    let is_nan = abs_bits.gt(k.u32(0x7f80_0000));
    let result_bits = k.select(
        is_nan,
        k.u32(0x7e00) | ((abs_bits >> 13) & 0x3ff),
        number_bits,
    );
    sign_bit | result_bits
}

/// The `f32` of the bits of an `f16`.
pub(super) fn from_half<'k>(half: Val<'k>) -> Val<'k> {
    let k = half.builder();
    let sign_bit = (half & 0x8000) << 16;
    let exponent_bits = (half >> 10) & 0x1f;
    let mantissa_bits = half & 0x3ff;
    let normal_bits = ((exponent_bits + 112) << 23) | (mantissa_bits << 13);
    let subnormal_bits = (mantissa_bits.cast(Ty::F32) * k.f32(1.0 / 16_777_216.0)).as_bits(Ty::U32);
    // Infinity and NaNs have the largest exponent in both formats.
    let special_bits = (mantissa_bits << 13) | 0x7f80_0000;
    let value_bits = k.select(exponent_bits.eq(k.u32(0)), subnormal_bits, normal_bits);
    let value_bits = k.select(exponent_bits.eq(k.u32(31)), special_bits, value_bits);
    (sign_bit | value_bits).as_bits(Ty::F32)
}

/// An `f32` as the bits of the nearest `bf16`.
pub(super) fn to_bfloat<'k>(v: Val<'k>) -> Val<'k> {
    let k = v.builder();
    let bits = v.as_bits(Ty::U32);
    let rounded_bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    k.select(v.ne(v), (bits >> 16) | 0x40, rounded_bits)
}

/// The `f32` of the bits of a `bf16`.
pub(super) fn from_bfloat<'k>(half: Val<'k>) -> Val<'k> {
    (half << 16).as_bits(Ty::F32)
}

/// What is loaded as a number of its natural type.
fn widen_element<'k>(from: DType, v: Val<'k>) -> Val<'k> {
    match from {
        DType::F16 => from_half(v),
        DType::Bf16 => from_bfloat(v),
        DType::Bool | DType::U8 => v.cast(Ty::I32),
        _ => v,
    }
}

/// Between dtypes; none for those that need two roundings here and one on the CPU.
pub fn cast(from: DType, to: DType, elements: u64) -> Option<KernelPlan> {
    let small_floats = matches!(to, DType::F16 | DType::Bf16);
    let is_wide = matches!(from, DType::F64 | DType::I32 | DType::I64);
    if small_floats && is_wide {
        return None;
    }

    match (from, to) {
        (DType::C32, _) => Some(super::straight(8 * elements, 1)),
        (_, DType::C32) => to_complex(from, elements),
        // Through f64, as the CPU has it, and back in one rounding.
        (DType::I64, DType::F32) => None,
        _ => elementwise_kernel("convert", mem(from), mem(to), elements, |v| {
            narrow_element(to, widen_element(from, v))
        }),
    }
}

fn to_complex(from: DType, elements: u64) -> Option<KernelPlan> {
    if from == DType::I64 {
        return None;
    }
    let k = Builder::new("convert", 64);
    let input_binding = k.reads(mem(from));
    let output_binding = k.writes(Mem::Pair);
    let elements_per_firing = k.spec(u32::try_from(elements).ok()?);
    k.each(k.firings() * elements_per_firing, |i| {
        let real_part = widen_element(from, k.load(input_binding, i)).cast(Ty::F32);
        k.store_pair(output_binding, i, [real_part, k.f32(0.0)]);
    });
    let port_operands = [Operand::Input(0), Operand::Output(0)];
    Some(KernelPlan::one(
        k.finish(),
        &port_operands,
        Grid::Threads(Amount::each(elements)),
    ))
}

/// A number as what is stored for `to`.
fn narrow_element<'k>(to: DType, v: Val<'k>) -> Val<'k> {
    let k = v.builder();
    let is_float = v.ty.is_float();
    match to {
        DType::F32 => v.cast(Ty::F32),
        DType::F64 => v.cast(Ty::F64),
        DType::F16 => to_half(v.cast(Ty::F32)),
        DType::Bf16 => to_bfloat(v.cast(Ty::F32)),
        DType::I64 if is_float => to_i64(v),
        DType::I64 => v.cast(Ty::I64),
        DType::I32 if is_float => to_i32(v),
        DType::Bool => v.cast(Ty::Bool).cast(Ty::U32),
        _ => {
            let (low, high) = integer_bounds(to);
            let inside_value = match is_float {
                true => math::nearest(clamp_number(v, low, high)),
                false => {
                    let v = k.select(v.lt(v.like(low)), v.like(low), v);
                    k.select(v.gt(v.like(high)), v.like(high), v).cast(Ty::I32)
                }
            };

            inside_value.cast(mem(to).ty())
        }
    }
}
