//! What single instructions do with the bits of their operands, by the PTX manual; what it leaves open is as the
//! hardware has it.

use super::matrix::{Factor, pack, to_tf32};

fn as_f32(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn as_f64(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn f32_bits(value: f32) -> u64 {
    value.to_bits().into()
}

fn as_i32(bits: u64) -> i32 {
    bits as u32 as i32
}

fn i32_bits(value: i32) -> u64 {
    (value as u32).into()
}

fn as_u32(bits: u64) -> u32 {
    bits as u32
}

fn bool_bits(value: bool) -> u64 {
    value.into()
}

/// The hardware's quotient of a division by zero has all bits set.
fn quotient(dividend: i64, divisor: i64) -> i64 {
    if divisor == 0 {
        -1
    } else {
        dividend.wrapping_div(divisor)
    }
}

/// Instructions of one operand.
pub(super) fn one(name: &str) -> Option<fn(u64) -> u64> {
    Some(match name {
        "mov.b32" | "mov.u32" | "mov.f32" => |a| as_u32(a).into(),
        "mov.b64" | "mov.f64" | "mov.pred" | "cvta.to.global.u64" => |a| a,
        "not.pred" => |a| a ^ 1,
        "not.b32" => |a| (!as_u32(a)).into(),
        "not.b64" => |a| !a,
        "neg.s32" => |a| i32_bits(as_i32(a).wrapping_neg()),
        "neg.s64" => |a| a.wrapping_neg(),
        "neg.f32" => |a| f32_bits(-as_f32(a)),
        "neg.f64" => |a| (-as_f64(a)).to_bits(),
        "abs.f32" => |a| f32_bits(as_f32(a).abs()),
        "abs.f64" => |a| as_f64(a).abs().to_bits(),
        "sqrt.rn.f32" => |a| f32_bits(as_f32(a).sqrt()),
        "sqrt.rn.f64" => |a| as_f64(a).sqrt().to_bits(),
        _ => return conversion(name),
    })
}

/// Conversions from one type, the last one of the name, to another.
fn conversion(name: &str) -> Option<fn(u64) -> u64> {
    Some(match name {
        "cvt.rmi.f32.f32" => |a| f32_bits(as_f32(a).floor()),
        "cvt.rmi.f64.f64" => |a| as_f64(a).floor().to_bits(),
        "cvt.rni.f32.f32" => |a| f32_bits(as_f32(a).round_ties_even()),
        "cvt.rni.f64.f64" => |a| as_f64(a).round_ties_even().to_bits(),
        "cvt.f64.f32" => |a| f64::from(as_f32(a)).to_bits(),
        "cvt.rn.f32.f64" => |a| f32_bits(as_f64(a) as f32),
        "cvt.rzi.s32.f32" => |a| i32_bits(as_f32(a) as i32),
        "cvt.rzi.u32.f32" => |a| (as_f32(a) as u32).into(),
        "cvt.rzi.s64.f32" => |a| as_f32(a) as i64 as u64,
        "cvt.rzi.u64.f32" => |a| as_f32(a) as u64,
        "cvt.rzi.s32.f64" => |a| i32_bits(as_f64(a) as i32),
        "cvt.rzi.u32.f64" => |a| (as_f64(a) as u32).into(),
        "cvt.rzi.s64.f64" => |a| as_f64(a) as i64 as u64,
        "cvt.rzi.u64.f64" => |a| as_f64(a) as u64,
        "cvt.rn.f32.s32" => |a| f32_bits(as_i32(a) as f32),
        "cvt.rn.f32.u32" => |a| f32_bits(as_u32(a) as f32),
        "cvt.rn.f32.s64" => |a| f32_bits(a as i64 as f32),
        "cvt.rn.f32.u64" => |a| f32_bits(a as f32),
        "cvt.rn.f64.s32" => |a| f64::from(as_i32(a)).to_bits(),
        "cvt.rn.f64.u32" => |a| f64::from(as_u32(a)).to_bits(),
        "cvt.rn.f64.s64" => |a| (a as i64 as f64).to_bits(),
        "cvt.rn.f64.u64" => |a| (a as f64).to_bits(),
        "cvt.rna.tf32.f32" => |a| to_tf32(as_u32(a)).into(),
        "cvt.s64.s32" => |a| i64::from(as_i32(a)) as u64,
        "cvt.u64.u32" | "cvt.u32.u64" => |a| as_u32(a).into(),
        _ => return None,
    })
}

/// Instructions of two operands.
pub(super) fn two(name: &str) -> Option<fn(u64, u64) -> u64> {
    Some(match name {
        "cvt.rn.f16x2.f32" => |a, b| pack(Factor::F16, as_u32(a), as_u32(b)).into(),
        "cvt.rn.bf16x2.f32" => |a, b| pack(Factor::Bf16, as_u32(a), as_u32(b)).into(),
        "add.rn.f32" => |a, b| f32_bits(as_f32(a) + as_f32(b)),
        "sub.rn.f32" => |a, b| f32_bits(as_f32(a) - as_f32(b)),
        "mul.rn.f32" => |a, b| f32_bits(as_f32(a) * as_f32(b)),
        "div.rn.f32" => |a, b| f32_bits(as_f32(a) / as_f32(b)),
        "add.rn.f64" => |a, b| (as_f64(a) + as_f64(b)).to_bits(),
        "sub.rn.f64" => |a, b| (as_f64(a) - as_f64(b)).to_bits(),
        "mul.rn.f64" => |a, b| (as_f64(a) * as_f64(b)).to_bits(),
        "div.rn.f64" => |a, b| (as_f64(a) / as_f64(b)).to_bits(),
        "add.s32" | "add.u32" => |a, b| as_u32(a).wrapping_add(as_u32(b)).into(),
        "sub.s32" | "sub.u32" => |a, b| as_u32(a).wrapping_sub(as_u32(b)).into(),
        "mul.lo.s32" | "mul.lo.u32" => |a, b| as_u32(a).wrapping_mul(as_u32(b)).into(),
        "add.s64" | "add.u64" => u64::wrapping_add,
        "sub.s64" | "sub.u64" => u64::wrapping_sub,
        "mul.lo.s64" | "mul.lo.u64" => u64::wrapping_mul,
        "mul.hi.u32" => |a, b| (u64::from(as_u32(a)) * u64::from(as_u32(b))) >> 32,
        "mul.wide.u32" => |a, b| u64::from(as_u32(a)) * u64::from(as_u32(b)),
        "div.s32" => |a, b| i32_bits(quotient(as_i32(a).into(), as_i32(b).into()) as i32),
        "div.u32" => |a, b| as_u32(a).checked_div(as_u32(b)).unwrap_or(u32::MAX).into(),
        "div.s64" => |a, b| quotient(a as i64, b as i64) as u64,
        "div.u64" => |a, b| a.checked_div(b).unwrap_or(u64::MAX),
        "rem.s32" => |a, b| {
            if as_i32(b) == 0 {
                a
            } else {
                i32_bits(as_i32(a).wrapping_rem(as_i32(b)))
            }
        },
        "rem.u32" => |a, b| as_u32(a).checked_rem(as_u32(b)).unwrap_or(as_u32(a)).into(),
        "rem.s64" => |a, b| {
            if b == 0 {
                a
            } else {
                (a as i64).wrapping_rem(b as i64) as u64
            }
        },
        "rem.u64" => |a, b| a.checked_rem(b).unwrap_or(a),
        "and.pred" | "and.b64" => |a, b| a & b,
        "or.pred" | "or.b64" => |a, b| a | b,
        "xor.pred" | "xor.b64" => |a, b| a ^ b,
        "and.b32" => |a, b| (as_u32(a) & as_u32(b)).into(),
        "or.b32" => |a, b| (as_u32(a) | as_u32(b)).into(),
        "xor.b32" => |a, b| (as_u32(a) ^ as_u32(b)).into(),
        // Distances beyond the width count as the width.
        "shl.b32" => |a, b| as_u32(a).checked_shl(as_u32(b)).unwrap_or(0).into(),
        "shr.u32" => |a, b| as_u32(a).checked_shr(as_u32(b)).unwrap_or(0).into(),
        "shr.s32" => |a, b| i32_bits(as_i32(a) >> as_u32(b).min(31)),
        "shl.b64" => |a, b| a.checked_shl(as_u32(b)).unwrap_or(0),
        "shr.u64" => |a, b| a.checked_shr(as_u32(b)).unwrap_or(0),
        "shr.s64" => |a, b| ((a as i64) >> as_u32(b).min(63)) as u64,
        _ => return comparison(name),
    })
}

/// Comparisons of two operands, whose result is a predicate.
fn comparison(name: &str) -> Option<fn(u64, u64) -> u64> {
    Some(match name {
        "setp.lt.s32" => |a, b| bool_bits(as_i32(a) < as_i32(b)),
        "setp.le.s32" => |a, b| bool_bits(as_i32(a) <= as_i32(b)),
        "setp.lt.u32" => |a, b| bool_bits(as_u32(a) < as_u32(b)),
        "setp.le.u32" => |a, b| bool_bits(as_u32(a) <= as_u32(b)),
        "setp.ge.u32" => |a, b| bool_bits(as_u32(a) >= as_u32(b)),
        "setp.eq.s32" | "setp.eq.u32" => |a, b| bool_bits(as_u32(a) == as_u32(b)),
        "setp.ne.s32" | "setp.ne.u32" => |a, b| bool_bits(as_u32(a) != as_u32(b)),
        "setp.lt.s64" => |a, b| bool_bits((a as i64) < b as i64),
        "setp.le.s64" => |a, b| bool_bits(a as i64 <= b as i64),
        "setp.lt.u64" => |a, b| bool_bits(a < b),
        "setp.le.u64" => |a, b| bool_bits(a <= b),
        "setp.eq.s64" | "setp.eq.u64" => |a, b| bool_bits(a == b),
        "setp.ne.s64" | "setp.ne.u64" => |a, b| bool_bits(a != b),
        "setp.lt.f32" => |a, b| bool_bits(as_f32(a) < as_f32(b)),
        "setp.le.f32" => |a, b| bool_bits(as_f32(a) <= as_f32(b)),
        "setp.eq.f32" => |a, b| bool_bits(as_f32(a) == as_f32(b)),
        "setp.neu.f32" => |a, b| bool_bits(as_f32(a) != as_f32(b)),
        "setp.lt.f64" => |a, b| bool_bits(as_f64(a) < as_f64(b)),
        "setp.le.f64" => |a, b| bool_bits(as_f64(a) <= as_f64(b)),
        "setp.eq.f64" => |a, b| bool_bits(as_f64(a) == as_f64(b)),
        "setp.neu.f64" => |a, b| bool_bits(as_f64(a) != as_f64(b)),
        _ => return None,
    })
}

/// Instructions of three operands.
pub(super) fn three(name: &str) -> Option<fn(u64, u64, u64) -> u64> {
    Some(match name {
        "fma.rn.f32" => |a, b, c| f32_bits(as_f32(a).mul_add(as_f32(b), as_f32(c))),
        "fma.rn.f64" => |a, b, c| as_f64(a).mul_add(as_f64(b), as_f64(c)).to_bits(),
        "mad.lo.u32" => |a, b, c| {
            as_u32(a)
                .wrapping_mul(as_u32(b))
                .wrapping_add(as_u32(c))
                .into()
        },
        "selp.b32" | "selp.b64" | "selp.f32" | "selp.f64" => |a, b, c| if c == 1 { a } else { b },
        _ => return None,
    })
}
