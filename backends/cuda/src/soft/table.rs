//! What single instructions do with the bits of their operands, by the PTX manual; what it leaves open is as the
//! hardware has it.

use super::matrix::{Factor, pack, to_tf32};

// A register holds 64 bits of any type. The rows of the tables below would be several times as long with whole words:
// `f`, `d`, `i`, `u` read a register as f32, f64, i32, u32, and `fb`, `ib`, `t` give the bits of an f32, i32, bool.

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn fb(value: f32) -> u64 {
    value.to_bits().into()
}

fn i(bits: u64) -> i32 {
    bits as u32 as i32
}

fn ib(value: i32) -> u64 {
    (value as u32).into()
}

fn u(bits: u64) -> u32 {
    bits as u32
}

fn t(value: bool) -> u64 {
    value.into()
}

/// All bits are set where the divisor is 0, as the hardware has it.
fn divided(a: i64, b: i64) -> i64 {
    if b == 0 { -1 } else { a.wrapping_div(b) }
}

/// Instructions of one operand.
pub(super) fn one(name: &str) -> Option<fn(u64) -> u64> {
    Some(match name {
        "mov.b32" | "mov.u32" | "mov.f32" => |a| u(a).into(),
        "mov.b64" | "mov.f64" | "mov.pred" | "cvta.to.global.u64" => |a| a,
        "not.pred" => |a| a ^ 1,
        "not.b32" => |a| (!u(a)).into(),
        "not.b64" => |a| !a,
        "neg.s32" => |a| ib(i(a).wrapping_neg()),
        "neg.s64" => |a| a.wrapping_neg(),
        "neg.f32" => |a| fb(-f(a)),
        "neg.f64" => |a| (-d(a)).to_bits(),
        "abs.f32" => |a| fb(f(a).abs()),
        "abs.f64" => |a| d(a).abs().to_bits(),
        "sqrt.rn.f32" => |a| fb(f(a).sqrt()),
        "sqrt.rn.f64" => |a| d(a).sqrt().to_bits(),
        "cvt.rmi.f32.f32" => |a| fb(f(a).floor()),
        "cvt.rmi.f64.f64" => |a| d(a).floor().to_bits(),
        "cvt.rni.f32.f32" => |a| fb(f(a).round_ties_even()),
        "cvt.rni.f64.f64" => |a| d(a).round_ties_even().to_bits(),
        "cvt.f64.f32" => |a| f64::from(f(a)).to_bits(),
        "cvt.rn.f32.f64" => |a| fb(d(a) as f32),
        "cvt.rzi.s32.f32" => |a| ib(f(a) as i32),
        "cvt.rzi.u32.f32" => |a| (f(a) as u32).into(),
        "cvt.rzi.s64.f32" => |a| f(a) as i64 as u64,
        "cvt.rzi.u64.f32" => |a| f(a) as u64,
        "cvt.rzi.s32.f64" => |a| ib(d(a) as i32),
        "cvt.rzi.u32.f64" => |a| (d(a) as u32).into(),
        "cvt.rzi.s64.f64" => |a| d(a) as i64 as u64,
        "cvt.rzi.u64.f64" => |a| d(a) as u64,
        "cvt.rn.f32.s32" => |a| fb(i(a) as f32),
        "cvt.rn.f32.u32" => |a| fb(u(a) as f32),
        "cvt.rn.f32.s64" => |a| fb(a as i64 as f32),
        "cvt.rn.f32.u64" => |a| fb(a as f32),
        "cvt.rn.f64.s32" => |a| f64::from(i(a)).to_bits(),
        "cvt.rn.f64.u32" => |a| f64::from(u(a)).to_bits(),
        "cvt.rn.f64.s64" => |a| (a as i64 as f64).to_bits(),
        "cvt.rn.f64.u64" => |a| (a as f64).to_bits(),
        "cvt.rna.tf32.f32" => |a| to_tf32(u(a)).into(),
        "cvt.s64.s32" => |a| i64::from(i(a)) as u64,
        "cvt.u64.u32" | "cvt.u32.u64" => |a| u(a).into(),
        _ => return None,
    })
}

/// Instructions of two operands.
// Above 70 lines, because it is a table: one row an opcode.
pub(super) fn two(name: &str) -> Option<fn(u64, u64) -> u64> {
    Some(match name {
        "cvt.rn.f16x2.f32" => |a, b| pack(Factor::F16, u(a), u(b)).into(),
        "cvt.rn.bf16x2.f32" => |a, b| pack(Factor::Bf16, u(a), u(b)).into(),
        "add.rn.f32" => |a, b| fb(f(a) + f(b)),
        "sub.rn.f32" => |a, b| fb(f(a) - f(b)),
        "mul.rn.f32" => |a, b| fb(f(a) * f(b)),
        "div.rn.f32" => |a, b| fb(f(a) / f(b)),
        "add.rn.f64" => |a, b| (d(a) + d(b)).to_bits(),
        "sub.rn.f64" => |a, b| (d(a) - d(b)).to_bits(),
        "mul.rn.f64" => |a, b| (d(a) * d(b)).to_bits(),
        "div.rn.f64" => |a, b| (d(a) / d(b)).to_bits(),
        "add.s32" | "add.u32" => |a, b| u(a).wrapping_add(u(b)).into(),
        "sub.s32" | "sub.u32" => |a, b| u(a).wrapping_sub(u(b)).into(),
        "mul.lo.s32" | "mul.lo.u32" => |a, b| u(a).wrapping_mul(u(b)).into(),
        "add.s64" | "add.u64" => u64::wrapping_add,
        "sub.s64" | "sub.u64" => u64::wrapping_sub,
        "mul.lo.s64" | "mul.lo.u64" => u64::wrapping_mul,
        "mul.hi.u32" => |a, b| (u64::from(u(a)) * u64::from(u(b))) >> 32,
        "mul.wide.u32" => |a, b| u64::from(u(a)) * u64::from(u(b)),
        "div.s32" => |a, b| ib(divided(i(a).into(), i(b).into()) as i32),
        "div.u32" => |a, b| u(a).checked_div(u(b)).unwrap_or(u32::MAX).into(),
        "div.s64" => |a, b| divided(a as i64, b as i64) as u64,
        "div.u64" => |a, b| a.checked_div(b).unwrap_or(u64::MAX),
        "rem.s32" => |a, b| {
            if i(b) == 0 {
                a
            } else {
                ib(i(a).wrapping_rem(i(b)))
            }
        },
        "rem.u32" => |a, b| u(a).checked_rem(u(b)).unwrap_or(u(a)).into(),
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
        "and.b32" => |a, b| (u(a) & u(b)).into(),
        "or.b32" => |a, b| (u(a) | u(b)).into(),
        "xor.b32" => |a, b| (u(a) ^ u(b)).into(),
        // Distances beyond the width count as the width.
        "shl.b32" => |a, b| u(a).checked_shl(u(b)).unwrap_or(0).into(),
        "shr.u32" => |a, b| u(a).checked_shr(u(b)).unwrap_or(0).into(),
        "shr.s32" => |a, b| ib(i(a) >> u(b).min(31)),
        "shl.b64" => |a, b| a.checked_shl(u(b)).unwrap_or(0),
        "shr.u64" => |a, b| a.checked_shr(u(b)).unwrap_or(0),
        "shr.s64" => |a, b| ((a as i64) >> u(b).min(63)) as u64,
        "setp.lt.s32" => |a, b| t(i(a) < i(b)),
        "setp.le.s32" => |a, b| t(i(a) <= i(b)),
        "setp.lt.u32" => |a, b| t(u(a) < u(b)),
        "setp.le.u32" => |a, b| t(u(a) <= u(b)),
        "setp.ge.u32" => |a, b| t(u(a) >= u(b)),
        "setp.eq.s32" | "setp.eq.u32" => |a, b| t(u(a) == u(b)),
        "setp.ne.s32" | "setp.ne.u32" => |a, b| t(u(a) != u(b)),
        "setp.lt.s64" => |a, b| t((a as i64) < b as i64),
        "setp.le.s64" => |a, b| t(a as i64 <= b as i64),
        "setp.lt.u64" => |a, b| t(a < b),
        "setp.le.u64" => |a, b| t(a <= b),
        "setp.eq.s64" | "setp.eq.u64" => |a, b| t(a == b),
        "setp.ne.s64" | "setp.ne.u64" => |a, b| t(a != b),
        "setp.lt.f32" => |a, b| t(f(a) < f(b)),
        "setp.le.f32" => |a, b| t(f(a) <= f(b)),
        "setp.eq.f32" => |a, b| t(f(a) == f(b)),
        "setp.neu.f32" => |a, b| t(f(a) != f(b)),
        "setp.lt.f64" => |a, b| t(d(a) < d(b)),
        "setp.le.f64" => |a, b| t(d(a) <= d(b)),
        "setp.eq.f64" => |a, b| t(d(a) == d(b)),
        "setp.neu.f64" => |a, b| t(d(a) != d(b)),
        _ => return None,
    })
}

/// Instructions of three operands.
pub(super) fn three(name: &str) -> Option<fn(u64, u64, u64) -> u64> {
    Some(match name {
        "fma.rn.f32" => |a, b, c| fb(f(a).mul_add(f(b), f(c))),
        "fma.rn.f64" => |a, b, c| d(a).mul_add(d(b), d(c)).to_bits(),
        "mad.lo.u32" => |a, b, c| u(a).wrapping_mul(u(b)).wrapping_add(u(c)).into(),
        "selp.b32" | "selp.b64" | "selp.f32" | "selp.f64" => |a, b, c| if c == 1 { a } else { b },
        _ => return None,
    })
}
