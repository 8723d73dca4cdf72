//! Functions of elements in the kernel language: those of ONNX, on f32 where nothing else is said.

use std::f32::consts::{FRAC_1_SQRT_2, LN_2};

use super::Why;
use crate::kernels::lang::{Builder, Ty, Val};
use crate::kernels::math::{atan2, copysign, exp, horner, ln, pow, sin_cos, tanh};

/// Error function: the quotient of polynomials that the CPU has.
pub(crate) fn erf<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let c = k.select(x.gt(k.f32(4.0)), k.f32(4.0), x);
    let c = k.select(c.lt(k.f32(-4.0)), k.f32(-4.0), c);
    let z = c * c;
    let p = horner(
        z,
        &[
            -2.726_142_3e-10,
            2.770_681_4e-8,
            -2.101_024e-6,
            -5.692_506_4e-5,
            -7.349_906_3e-4,
            -2.954_6e-3,
            -1.609_603_3e-2,
        ],
    );
    let q = horner(
        z,
        &[
            -1.456_607_2e-5,
            -2.133_740_6e-4,
            -1.682_827e-3,
            -7.373_329e-3,
            -1.426_474e-2,
        ],
    );
    c * p / q
}

pub(crate) fn sigmoid<'k>(x: Val<'k>) -> Val<'k> {
    let one = x.like(1.0);
    one / (one + exp(-x))
}

/// ln(1 + x), of which near 0 the rounding of 1 + x is taken back (Kahan).
fn ln_1p<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let one = k.f32(1.0);
    let u = one + x;
    let moved = u - one;
    let near = ln(u) * (x / moved);
    let far = u.eq(k.f32(f32::INFINITY));
    k.select(moved.eq(k.f32(0.0)), x, k.select(far, u, near))
}

/// x · x − 1 and the like lose nothing where they are written as products.
fn root_of_rest<'k>(x: Val<'k>) -> Val<'k> {
    let one = x.like(1.0);
    ((one - x) * (one + x)).sqrt()
}

fn trunc<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    k.select(x.lt(x.like(0.0)), -((-x).floor()), x.floor())
}

fn sinh<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let a = x.abs();
    let z = x * x;
    let near = k.fma(
        horner(
            z,
            &[2.755_731_9e-6, 1.984_127e-4, 8.333_333e-3, 0.166_666_67],
        ) * z,
        x,
        x,
    );
    // e^(a/2) twice: e^a alone would be infinite too soon.
    let e = exp(a * k.f32(0.5));
    let far = (k.f32(0.5) * e) * e - k.f32(0.5) / (e * e);
    k.select(a.lt(k.f32(1.0)), near, copysign(far, x))
}

fn cosh<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let e = exp(x.abs() * k.f32(0.5));
    (k.f32(0.5) * e) * e + k.f32(0.5) / (e * e)
}

fn asinh<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let (a, one) = (x.abs(), k.f32(1.0));
    let z = a * a;
    let near = ln_1p(a + z / (one + (z + one).sqrt()));
    let far = ln(a) + k.f32(LN_2);
    copysign(k.select(a.gt(k.f32(1e9)), far, near), x)
}

fn acosh<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let t = x - k.f32(1.0);
    let near = ln_1p(t + (t + t + t * t).sqrt());
    let far = ln(x) + k.f32(LN_2);
    k.select(x.gt(k.f32(1e9)), far, near)
}

fn atanh<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let a = x.abs();
    let y = k.f32(0.5) * ln_1p((a + a) / (k.f32(1.0) - a));
    copysign(y, x)
}

fn softplus<'k>(x: Val<'k>) -> Val<'k> {
    let zero = x.like(0.0);
    greatest(x, zero) + ln_1p(exp(-x.abs()))
}

/// The greater one, or that which is no number.
pub(crate) fn greatest<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let k = a.builder();
    if !a.ty.is_float() {
        return a.max(b);
    }
    k.select(b.lt(a) | a.ne(a), a, b)
}

/// The lesser one, or that which is no number.
pub(crate) fn least<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let k = a.builder();
    if !a.ty.is_float() {
        return a.min(b);
    }
    k.select(a.lt(b) | a.ne(a), a, b)
}

/// A quotient; of integers truncated, 0 where the divisor is 0.
pub(crate) fn quotient<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    if a.ty.is_float() {
        return a / b;
    }
    let k = a.builder();
    let none = b.eq(b.like(0.0));
    let by = k.select(none, b.like(1.0), b);
    // The least number by −1 has no quotient: negated it wraps to itself.
    let value = match a.ty.is_signed() {
        true => {
            let minus = by.eq(by.like(-1.0));
            k.select(minus, -a, a / k.select(minus, by.like(1.0), by))
        }
        false => a / by,
    };
    k.select(none, a.like(0.0), value)
}

/// The remainder of integers, with the sign of the divisor or (`fmod`) of the dividend; 0 by 0.
pub(crate) fn remainder<'k>(a: Val<'k>, b: Val<'k>, fmod: bool) -> Val<'k> {
    let k = a.builder();
    let rest = a - quotient(a, b) * b;
    let rest = k.select(b.eq(b.like(0.0)), b.like(0.0), rest);
    if fmod || !a.ty.is_signed() {
        return rest;
    }
    let zero = a.like(0.0);
    let apart = rest.ne(zero) & rest.lt(zero).ne(b.lt(zero));
    k.select(apart, rest + b, rest)
}

/// Functions of one float by the name of their operator; `a` and `b` are parameters.
pub(crate) fn unary<'k>(name: &str, x: Val<'k>, a: f64, b: f64) -> Result<Val<'k>, Why> {
    let k = x.builder();
    let (zero, one) = (x.like(0.0), x.like(1.0));
    let (pa, pb) = (x.like(a), x.like(b));
    // What needs no function of its own is there for f64 too.
    let plain = match name {
        "Ceil" => -((-x).floor()),
        "Floor" => x.floor(),
        "HardSigmoid" => greatest(least(pa * x + pb, one), zero),
        "HardSwish" => x * greatest(least(x / x.like(6.0) + x.like(0.5), one), zero),
        "LeakyRelu" => k.select(x.lt(zero), pa * x, x),
        "Reciprocal" => one / x,
        "Round" => x.round(),
        "Shrink" => k.select(x.lt(-pa), x + pb, k.select(pa.lt(x), x - pb, zero)),
        "Softsign" => x / (one + x.abs()),
        "Sqrt" => x.sqrt(),
        "ThresholdedRelu" => k.select(pa.lt(x), x, zero),
        _ if x.ty != Ty::F32 => return Err("functions of f64 are the CPU's".to_owned()),
        _ => return Ok(function(name, x, pa, pb)),
    };
    Ok(plain)
}

fn function<'k>(name: &str, x: Val<'k>, a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let (zero, one, half) = (k.f32(0.0), k.f32(1.0), k.f32(0.5));
    match name {
        "Acos" => atan2(root_of_rest(x), x),
        "Acosh" => acosh(x),
        "Asin" => atan2(x, root_of_rest(x)),
        "Asinh" => asinh(x),
        "Atan" => atan2(x, one),
        "Atanh" => atanh(x),
        "Celu" => greatest(x, zero) + least(a * (exp(x / a) - one), zero),
        "Cos" => sin_cos(x)[1],
        "Cosh" => cosh(x),
        "Elu" => k.select(x.lt(zero), a * (exp(x) - one), x),
        "Erf" => erf(x),
        "Exp" => exp(x),
        "Gelu" => half * x * (one + erf(x * k.f32(FRAC_1_SQRT_2))),
        "GeluTanh" => {
            let inner = k.f32(0.797_884_6) * (x + k.f32(0.044_715) * x * x * x);
            half * x * (one + tanh(inner))
        }
        "Log" => ln(x),
        "Mish" => x * tanh(softplus(x)),
        "Selu" => k.select(zero.lt(x), b * x, b * (a * exp(x) - a)),
        "Sigmoid" => sigmoid(x),
        "Sin" => sin_cos(x)[0],
        "Sinh" => sinh(x),
        "Softplus" => softplus(x),
        "Swish" => x / (one + exp(-(a * x))),
        "Tan" => {
            let [sin, cos] = sin_cos(x);
            sin / cos
        }
        _ => tanh(x),
    }
}

/// What a pass has put behind a product or a convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum After {
    Nothing,
    Relu,
    Clip(f32, f32),
    Sigmoid,
    Tanh,
    Silu,
    Gelu,
    HardSwish,
}

impl After {
    pub(crate) fn of<'k>(self, x: Val<'k>) -> Val<'k> {
        if x.ty != Ty::F32 {
            return x;
        }
        let k = x.builder();
        let zero = k.f32(0.0);
        match self {
            After::Nothing => x,
            After::Relu => k.select(x.lt(zero), zero, x),
            After::Clip(low, high) => {
                let v = k.select(x.lt(k.f32(low)), k.f32(low), x);
                k.select(k.f32(high).lt(v), k.f32(high), v)
            }
            After::Sigmoid => sigmoid(x),
            After::Tanh => tanh(x),
            After::Silu => function("Swish", x, k.f32(1.0), zero),
            After::Gelu => function("Gelu", x, zero, zero),
            After::HardSwish => x * greatest(least(x / k.f32(6.0) + k.f32(0.5), k.f32(1.0)), zero),
        }
    }
}

/// x to the power y, both of one type.
pub(crate) fn power<'k>(x: Val<'k>, y: Val<'k>) -> Result<Val<'k>, Why> {
    match x.ty {
        Ty::F32 => Ok(pow(x, y)),
        _ => Err("powers of this type are the CPU's".to_owned()),
    }
}

/// A number of one type as another, as NnCast has it: floats are cut off and bounded, integers wrap.
pub(crate) fn cast<'k>(v: Val<'k>, to: Ty, bounds: Option<(f64, f64)>) -> Val<'k> {
    let k = v.builder();
    if !v.ty.is_float() || to.is_float() {
        return v.cast(to);
    }
    let v = k.select(v.eq(v), trunc(v), v.like(0.0));
    let (low, high) = bounds.unwrap_or((0.0, 1.0));
    let over = v.like(high).le(v);
    let under = v.le(v.like(low));
    let inside = k.select(over | under, v.like(0.0), v);
    let whole = inside.cast(to);
    let (low, high) = (integer(k, to, low), integer(k, to, high));
    k.select(over, high, k.select(under, low, whole))
}

/// The integer nearest to a bound.
fn integer(k: &Builder, ty: Ty, bound: f64) -> Val<'_> {
    match ty {
        Ty::I64 => k.bits(ty, bound as i64 as u64),
        Ty::I32 => k.bits(ty, u64::from(bound as i32 as u32)),
        _ => k.bits(ty, bound as u64),
    }
}
