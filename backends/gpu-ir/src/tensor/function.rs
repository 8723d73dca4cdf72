//! Functions of elements in the kernel language: those of ONNX, on f32 where nothing else is said.

use std::f32::consts::{FRAC_1_SQRT_2, LN_2};

use super::Why;
use crate::lang::{Builder, Ty, Val};
use crate::math::{atan2, copysign, exp, horner, ln, pow, sin_cos, tanh};

/// Error function: the quotient of polynomials that the CPU has.
pub fn erf<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let clamped_x = k.select(x.gt(k.f32(4.0)), k.f32(4.0), x);
    let clamped_x = k.select(clamped_x.lt(k.f32(-4.0)), k.f32(-4.0), clamped_x);
    let z = clamped_x * clamped_x;

    let numerator = horner(
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

    let denominator = horner(
        z,
        &[
            -1.456_607_2e-5,
            -2.133_740_6e-4,
            -1.682_827e-3,
            -7.373_329e-3,
            -1.426_474e-2,
        ],
    );
    clamped_x * numerator / denominator
}

/// `1 / (1 + exp(-x))`.
pub fn sigmoid<'k>(x: Val<'k>) -> Val<'k> {
    let one = x.like(1.0);
    one / (one + exp(-x))
}

/// ln(1 + x), of which near 0 the rounding of 1 + x is taken back (Kahan).
fn ln_1p<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let one = k.f32(1.0);
    let u = one + x;
    let rounded_x = u - one;
    let near_value = ln(u) * (x / rounded_x);
    let is_far = u.eq(k.f32(f32::INFINITY));
    k.select(rounded_x.eq(k.f32(0.0)), x, k.select(is_far, u, near_value))
}

/// x · x − 1 and the like lose nothing where they are written as products.
fn root_of_rest<'k>(x: Val<'k>) -> Val<'k> {
    let one = x.like(1.0);
    ((one - x) * (one + x)).sqrt()
}

fn truncated<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    k.select(x.lt(x.like(0.0)), -((-x).floor()), x.floor())
}

fn sinh<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let abs_x = x.abs();
    let z = x * x;

    let near_value = k.fma(
        horner(
            z,
            &[2.755_731_9e-6, 1.984_127e-4, 8.333_333e-3, 0.166_666_67],
        ) * z,
        x,
        x,
    );

    // e^(a/2) twice: e^a alone would be infinite too soon.
    let half_exp = exp(abs_x * k.f32(0.5));
    let far_value = (k.f32(0.5) * half_exp) * half_exp - k.f32(0.5) / (half_exp * half_exp);
    k.select(abs_x.lt(k.f32(1.0)), near_value, copysign(far_value, x))
}

fn cosh<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let half_exp = exp(x.abs() * k.f32(0.5));
    (k.f32(0.5) * half_exp) * half_exp + k.f32(0.5) / (half_exp * half_exp)
}

fn asinh<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let abs_x = x.abs();
    let one = k.f32(1.0);
    let square_x = abs_x * abs_x;
    let near_value = ln_1p(abs_x + square_x / (one + (square_x + one).sqrt()));
    let far_value = ln(abs_x) + k.f32(LN_2);
    copysign(k.select(abs_x.gt(k.f32(1e9)), far_value, near_value), x)
}

fn acosh<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let above_one = x - k.f32(1.0);
    let near_value = ln_1p(above_one + (above_one + above_one + above_one * above_one).sqrt());
    let far_value = ln(x) + k.f32(LN_2);
    k.select(x.gt(k.f32(1e9)), far_value, near_value)
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

/// The greater one, or the one that is not a number.
pub fn greatest<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let k = a.builder();
    if !a.ty.is_float() {
        return a.max(b);
    }
    k.select(b.lt(a) | a.ne(a), a, b)
}

/// The lesser one, or the one that is not a number.
pub fn least<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let k = a.builder();
    if !a.ty.is_float() {
        return a.min(b);
    }
    k.select(a.lt(b) | a.ne(a), a, b)
}

/// A quotient; of integers truncated, 0 where the divisor is 0.
pub fn quotient<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    if a.ty.is_float() {
        return a / b;
    }
    let k = a.builder();
    let is_undefined = b.eq(b.like(0.0));
    let safe_divisor = k.select(is_undefined, b.like(1.0), b);

    // The least number by −1 has no quotient: negated it wraps to itself.
    let quotient_value = match a.ty.is_signed() {
        true => {
            // The smallest number has no quotient by -1: negation wraps it to itself, division may trap.
            let is_minus_one = safe_divisor.eq(safe_divisor.like(-1.0));
            k.select(
                is_minus_one,
                -a,
                a / k.select(is_minus_one, safe_divisor.like(1.0), safe_divisor),
            )
        }
        false => a / safe_divisor,
    };
    k.select(is_undefined, a.like(0.0), quotient_value)
}

/// The remainder of integers, with the sign of the divisor or (`fmod`) of the dividend; 0 by 0.
pub fn remainder<'k>(a: Val<'k>, b: Val<'k>, fmod: bool) -> Val<'k> {
    let k = a.builder();
    let raw_remainder = a - quotient(a, b) * b;
    let raw_remainder = k.select(b.eq(b.like(0.0)), b.like(0.0), raw_remainder);
    if fmod || !a.ty.is_signed() {
        return raw_remainder;
    }
    let zero = a.like(0.0);
    let has_other_sign = raw_remainder.ne(zero) & raw_remainder.lt(zero).ne(b.lt(zero));
    k.select(has_other_sign, raw_remainder + b, raw_remainder)
}

/// Functions of one float by the name of their operator; `a` and `b` are parameters.
pub fn unary<'k>(name: &str, x: Val<'k>, a: f64, b: f64) -> Result<Val<'k>, Why> {
    let k = x.builder();
    let zero_value = x.like(0.0);
    let one_value = x.like(1.0);
    let pa = x.like(a);
    let pb = x.like(b);

    // What needs no function of its own is there for f64 too.
    let plain_value = match name {
        "Ceil" => -((-x).floor()),
        "Floor" => x.floor(),
        "HardSigmoid" => greatest(least(pa * x + pb, one_value), zero_value),
        "HardSwish" => {
            x * greatest(
                least(x * x.like(1.0 / 6.0) + x.like(0.5), one_value),
                zero_value,
            )
        }
        "LeakyRelu" => k.select(x.lt(zero_value), pa * x, x),
        "Reciprocal" => one_value / x,
        "Round" => x.round(),
        "Shrink" => k.select(x.lt(-pa), x + pb, k.select(pa.lt(x), x - pb, zero_value)),
        "Softsign" => x / (one_value + x.abs()),
        "Sqrt" => x.sqrt(),
        "ThresholdedRelu" => k.select(pa.lt(x), x, zero_value),
        _ if x.ty != Ty::F32 => return Err("no GPU kernel for f64 functions".to_owned()),
        _ => return Ok(float_function(name, x, pa, pb)),
    };
    Ok(plain_value)
}

fn float_function<'k>(name: &str, x: Val<'k>, a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let zero_value = k.f32(0.0);
    let one_value = k.f32(1.0);
    let half_value = k.f32(0.5);

    match name {
        "Acos" => atan2(root_of_rest(x), x),
        "Acosh" => acosh(x),
        "Asin" => atan2(x, root_of_rest(x)),
        "Asinh" => asinh(x),
        "Atan" => atan2(x, one_value),
        "Atanh" => atanh(x),
        "Celu" => greatest(x, zero_value) + least(a * (exp(x / a) - one_value), zero_value),
        "Cos" => sin_cos(x)[1],
        "Cosh" => cosh(x),
        "Elu" => k.select(x.lt(zero_value), a * (exp(x) - one_value), x),
        "Erf" => erf(x),
        "Exp" => exp(x),
        "Gelu" => half_value * x * (one_value + erf(x * k.f32(FRAC_1_SQRT_2))),
        "GeluTanh" => {
            let inner_value = k.f32(0.797_884_6) * (x + k.f32(0.044_715) * x * x * x);
            half_value * x * (one_value + tanh(inner_value))
        }
        "Log" => ln(x),
        "Mish" => x * tanh(softplus(x)),
        "Selu" => k.select(zero_value.lt(x), b * x, b * (a * exp(x) - a)),
        "Sigmoid" => sigmoid(x),
        "Sin" => sin_cos(x)[0],
        "Sinh" => sinh(x),
        "Softplus" => softplus(x),
        "Swish" => x / (one_value + exp(-(a * x))),
        "Tan" => {
            let [sin, cos] = sin_cos(x);
            sin / cos
        }
        _ => tanh(x),
    }
}

/// What a pass has put behind a product or a convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum After {
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
    /// It, of a value.
    pub fn of<'k>(self, x: Val<'k>) -> Val<'k> {
        if x.ty != Ty::F32 {
            return x;
        }
        let k = x.builder();
        let zero_value = k.f32(0.0);

        match self {
            After::Nothing => x,
            After::Relu => k.select(x.lt(zero_value), zero_value, x),
            After::Clip(low, high) => {
                let lower_bounded = k.select(x.lt(k.f32(low)), k.f32(low), x);
                k.select(k.f32(high).lt(lower_bounded), k.f32(high), lower_bounded)
            }
            After::Sigmoid => sigmoid(x),
            After::Tanh => tanh(x),
            After::Silu => float_function("Swish", x, k.f32(1.0), zero_value),
            After::Gelu => float_function("Gelu", x, zero_value, zero_value),
            After::HardSwish => {
                x * greatest(least(x / k.f32(6.0) + k.f32(0.5), k.f32(1.0)), zero_value)
            }
        }
    }
}

/// x to the power y, both of one type.
pub fn power<'k>(x: Val<'k>, y: Val<'k>) -> Result<Val<'k>, Why> {
    match x.ty {
        Ty::F32 => Ok(pow(x, y)),
        _ => Err("no GPU kernel for powers of this type".to_owned()),
    }
}

/// A number of one type as another, as NnCast has it: floats are cut off and bounded, integers wrap.
pub fn cast<'k>(whole_value: Val<'k>, to: Ty, bounds: Option<(f64, f64)>) -> Val<'k> {
    let k = whole_value.builder();
    if !whole_value.ty.is_float() || to.is_float() {
        return whole_value.cast(to);
    }
    let whole_value = k.select(
        whole_value.eq(whole_value),
        truncated(whole_value),
        whole_value.like(0.0),
    );
    let (low, high) = bounds.unwrap_or((0.0, 1.0));
    let is_over = whole_value.like(high).le(whole_value);
    let is_under = whole_value.le(whole_value.like(low));
    let inside_value = k.select(is_over | is_under, whole_value.like(0.0), whole_value);
    let cast_value = inside_value.cast(to);
    let low = integer_bound(k, to, low);
    let high = integer_bound(k, to, high);
    k.select(is_over, high, k.select(is_under, low, cast_value))
}

/// The integer nearest to a bound.
fn integer_bound(k: &Builder, ty: Ty, bound: f64) -> Val<'_> {
    match ty {
        Ty::I64 => k.bits(ty, bound as i64 as u64),
        Ty::I32 => k.bits(ty, u64::from(bound as i32 as u32)),
        _ => k.bits(ty, bound as u64),
    }
}
