//! Elementary functions of f32 in the kernel language: those of `crate::math`, so that devices agree to a few units in
//! the last place whatever their own functions are worth.
//!
//! The reduction of sine and cosine for large arguments is that of Payne & Hanek 1983 in 32-bit words.

use std::f32::consts::{FRAC_PI_2, FRAC_PI_4, LOG2_E, PI};

use super::lang::{Ty, Val};
use super::wide::Cx;

const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

pub(super) fn horner<'k>(z: Val<'k>, coefficients: &[f32]) -> Val<'k> {
    let k = z.builder();
    let first = k.f32(coefficients[0]);
    coefficients[1..]
        .iter()
        .fold(first, |sum, &c| k.fma(sum, z, k.f32(c)))
}

/// 2^n for n in the exponents of normal numbers.
fn power_of_two<'k>(n: Val<'k>) -> Val<'k> {
    ((n + 127).cast(Ty::U32) << 23).as_bits(Ty::F32)
}

/// The nearest integer of a float within ±2^30.
pub fn nearest<'k>(x: Val<'k>) -> Val<'k> {
    x.round().cast(Ty::I32)
}

/// e^x.
pub fn exp<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let x = k.select(x.gt(k.f32(89.0)), k.f32(89.0), x);
    let x = k.select(x.lt(k.f32(-104.0)), k.f32(-104.0), x);
    let power_index = (x * k.f32(LOG2_E)).round();
    // Cody and Waite's reduction: ln 2 in two parts.
    let reduced = k.fma(
        power_index,
        k.f32(-LN2_LOW),
        k.fma(power_index, k.f32(-LN2_HIGH), x),
    );

    let rest_terms = horner(
        reduced,
        &[
            1.987_569_1e-4,
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            0.166_666_65,
            0.5,
        ],
    );

    let reduced_exp = k.fma(rest_terms, reduced * reduced, reduced) + k.f32(1.0);
    // A NaN has no integer: where x is one, y is.
    let power_index = k
        .select(power_index.eq(power_index), power_index, k.f32(0.0))
        .cast(Ty::I32);
    // Two factors, because the power itself may not be a normal number.
    let half_power = power_index >> 1;
    reduced_exp * power_of_two(half_power) * power_of_two(power_index - half_power)
}

/// Exponent and mantissa − 1 of a positive x: x = 2^e (1 + m), m within [1/√2 − 1, √2 − 1].
fn split_float<'k>(x: Val<'k>) -> [Val<'k>; 2] {
    let k = x.builder();
    // Subnormal numbers are scaled into the normal range first.
    let is_tiny = x.lt(k.f32(f32::MIN_POSITIVE));
    let scaled_value = k.select(is_tiny, x * k.f32(8_388_608.0), x);
    let bits = scaled_value.as_bits(Ty::U32);
    let exponent_value =
        ((bits >> 23) & 0xff).cast(Ty::I32) - k.select(is_tiny, k.i32(149), k.i32(126));
    let mantissa_value = ((bits & 0x007f_ffff) | 0x3f00_0000).as_bits(Ty::F32);
    let is_low = mantissa_value.lt(k.f32(std::f32::consts::FRAC_1_SQRT_2));
    let float_exponent = (exponent_value - is_low.cast(Ty::I32)).cast(Ty::F32);
    [
        float_exponent,
        k.select(is_low, mantissa_value + mantissa_value, mantissa_value) - k.f32(1.0),
    ]
}

/// ln(1 + m) − m + m²/2.
fn log_rest<'k>(m: Val<'k>) -> Val<'k> {
    let rest_terms = horner(
        m,
        &[
            7.037_683_6e-2,
            -0.115_146_1,
            0.116_769_98,
            -0.124_201_41,
            0.142_493_23,
            -0.166_680_58,
            0.200_007_15,
            -0.249_999_94,
            0.333_333_3,
        ],
    );
    rest_terms * m * (m * m)
}

/// Natural logarithm: NaN below 0, −∞ at 0.
pub fn ln<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let [e, m] = split_float(x);
    let log_value = k.fma(e, k.f32(LN2_LOW), log_rest(m));
    let log_value = k.fma(k.f32(-0.5), m * m, log_value);
    let log_value = k.fma(e, k.f32(LN2_HIGH), m + log_value);
    let log_value = k.select(x.eq(k.f32(f32::INFINITY)), x, log_value);
    let log_value = k.select(x.eq(k.f32(0.0)), k.f32(f32::NEG_INFINITY), log_value);
    k.select(k.f32(0.0).le(x), log_value, k.f32(f32::NAN))
}

/// The sum and what its rounding left (Knuth).
pub fn two_sum<'k>(a: Val<'k>, b: Val<'k>) -> [Val<'k>; 2] {
    let sum = a + b;
    let rounded_b = sum - a;
    let rounded_a = sum - rounded_b;
    [sum, (a - rounded_a) + (b - rounded_b)]
}

/// The product and what its rounding left (Dekker), for factors below 10^34.
fn two_product<'k>(a: Val<'k>, b: Val<'k>) -> [Val<'k>; 2] {
    let k = a.builder();
    let split_halves = |v: Val<'k>| {
        let scaled_value = v * k.f32(4097.0);
        let high_half = scaled_value - (scaled_value - v);
        [high_half, v - high_half]
    };
    let [ah, al] = split_halves(a);
    let [bh, bl] = split_halves(b);
    let rounded_product = a * b;
    [
        rounded_product,
        ((ah * bh - rounded_product) + ah * bl + al * bh) + al * bl,
    ]
}

/// x to the y, with the special values of C's `powf`.
pub fn pow<'k>(x: Val<'k>, y: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let abs_base = x.abs();
    let zero_value = k.f32(0.0);
    let one_value = k.f32(1.0);
    let infinity = k.f32(f32::INFINITY);
    let [e, m] = split_float(abs_base);

    // The logarithm in two parts: its error counts y·ln x times over.
    let mantissa_square = two_product(m, m);
    let [high, low_sum] = two_sum(e * k.f32(LN2_HIGH), m);
    let [high, square_low] = two_sum(high, k.f32(-0.5) * mantissa_square[0]);
    let small_terms = k.fma(e, k.f32(LN2_LOW), log_rest(m)) + k.f32(-0.5) * mantissa_square[1];
    let [high, low] = two_sum(high, low_sum + square_low + small_terms);
    let [log_product, product_low] = two_product(high, y);
    let raw_power = exp(log_product);

    // Beyond the floats there is nothing to correct, and what is left may be no number.
    let is_beyond = k.f32(1e30).lt(log_product.abs()) | raw_power.eq(infinity);
    let raw_power = k.select(
        is_beyond,
        raw_power,
        raw_power + raw_power * (product_low + low * y),
    );
    // Of infinite and of zero bases and exponents.
    let has_positive_exponent = y.gt(zero_value);
    let zero_result = k.select(has_positive_exponent, zero_value, infinity);
    let infinite_result = k.select(has_positive_exponent, infinity, zero_value);
    let is_above_one = abs_base.gt(one_value);
    let infinite_power = k.select(
        abs_base.eq(one_value),
        one_value,
        k.select(is_above_one.eq(has_positive_exponent), infinity, zero_value),
    );
    let raw_power = k.select(y.abs().eq(infinity), infinite_power, raw_power);
    let raw_power = k.select(abs_base.eq(zero_value), zero_result, raw_power);
    let raw_power = k.select(abs_base.eq(infinity), infinite_result, raw_power);
    // Negative bases have real powers for integer exponents only.
    let is_whole = y.floor().eq(y);
    let is_odd = is_whole & (y * k.f32(0.5)).floor().ne(y * k.f32(0.5));
    let is_negative = (x.as_bits(Ty::U32) >> 31).ne(k.u32(0));
    let negative_power = k.select(is_odd, -raw_power, raw_power);
    let negative_power = k.select(
        is_whole | abs_base.eq(zero_value) | abs_base.eq(infinity),
        negative_power,
        k.f32(f32::NAN),
    );
    let raw_power = k.select(is_negative, negative_power, raw_power);
    let raw_power = k.select(x.ne(x) | y.ne(y), k.f32(f32::NAN), raw_power);
    k.select(y.eq(zero_value) | x.eq(one_value), one_value, raw_power)
}

/// Sine and cosine of r in [−π/4, π/4] plus `quadrant` quarter turns.
fn sin_cos_reduced<'k>(r: Val<'k>, quadrant: Val<'k>) -> [Val<'k>; 2] {
    let k = r.builder();
    let square = r * r;
    let sine_terms = k.fma(
        horner(square, &[-1.951_529_6e-4, 8.332_161e-3, -0.166_666_55]) * square,
        r,
        r,
    );
    let cosine_terms = k.fma(
        horner(square, &[2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]) * square,
        square,
        k.fma(k.f32(-0.5), square, k.f32(1.0)),
    );
    // Every odd quarter turn exchanges sine and cosine; signs follow from bit 1 of the quadrant.
    let swaps_parts = (quadrant & 1).ne(k.u32(0));
    let sin = k.select(swaps_parts, cosine_terms, sine_terms);
    let cos = k.select(swaps_parts, sine_terms, cosine_terms);
    let apply_sign =
        |v: Val<'k>, bit: Val<'k>| (v.as_bits(Ty::U32) ^ ((bit & 2) << 30)).as_bits(Ty::F32);
    [apply_sign(sin, quadrant), apply_sign(cos, quadrant + 1)]
}

/// Bits of 2/π, most significant first; the first word is before the point.
const TWO_OVER_PI: [u32; 8] = [
    0,
    0xa2f9_836e,
    0x4e44_1529,
    0xfc27_57d1,
    0xf534_ddc0,
    0xdb62_9599,
    0x3c43_9041,
    0xfe51_63ab,
];

/// |x| for |x| of at least 8192, as quarter turns and a rest in [−π/4, π/4].
fn reduce_large<'k>(a: Val<'k>) -> [Val<'k>; 2] {
    let k = a.builder();
    let bits = a.as_bits(Ty::U32);
    let mantissa = (bits << 8) | 0x8000_0000;

    // |x| = mantissa · 2^(e − 31): bits of 2/π above the (e − 33)th behind the point make whole turns.
    let e = (bits >> 23) - 127;
    let first = e - 1;
    let word = first >> 5;
    let shift = first & 31;

    let pick = |step: u32| {
        let at = word + step;
        let zero = k.u32(0);
        TWO_OVER_PI
            .iter()
            .enumerate()
            .fold(zero, |found, (i, &value)| {
                k.select(at.eq(k.u32(i as u32)), k.u32(value), found)
            })
    };

    let words = [pick(0), pick(1), pick(2), pick(3)];
    let none = shift.eq(k.u32(0));
    let aligned: [Val<'k>; 3] = std::array::from_fn(|i| {
        let low = k.select(none, k.u32(0), words[i + 1] >> ((k.u32(32) - shift) & 31));
        (words[i] << shift) | low
    });

    // The upper 64 bits of mantissa · aligned, turns being those above 2^62.
    let middle = aligned[1] * mantissa;
    let carry_low = k.mul_high(aligned[2], mantissa);
    let carry = k.mul_high(aligned[1], mantissa);
    let low = middle + carry_low;
    let over = low.lt(carry_low).cast(Ty::U32);
    let high = aligned[0] * mantissa + carry + over;
    let quadrant = high + 0x2000_0000;
    let rest = high - (quadrant & 0xc000_0000);
    let rest = rest.cast(Ty::I32).cast(Ty::F32) * k.f32(FRAC_PI_2 / 1_073_741_824.0)
        + low.cast(Ty::F32) * k.f32(FRAC_PI_2 / 1_073_741_824.0 / 4_294_967_296.0);
    [quadrant >> 30, rest]
}

/// Sine and cosine.
pub fn sin_cos<'k>(x: Val<'k>) -> [Val<'k>; 2] {
    let k = x.builder();
    let a = x.abs();
    let quadrant = k.var(k.u32(0));
    let rest = k.var(k.f32(f32::NAN));

    k.if_else(
        a.lt(k.f32(8192.0)),
        || {
            let n = (a * k.f32(std::f32::consts::FRAC_2_PI)).round();
            // π/2 in three parts, the first two with so few bits that their products are exact.
            let r = k.fma(n, k.f32(-1.570_312_5), a);
            let r = k.fma(n, k.f32(-4.837_513e-4), r);
            rest.set(k.fma(n, k.f32(-7.549_79e-8), r));
            quadrant.set(n.cast(Ty::U32));
        },
        || {
            k.if_(a.lt(k.f32(f32::INFINITY)), || {
                let [q, r] = reduce_large(a);
                quadrant.set(q);
                rest.set(r);
            });
        },
    );

    let [sin, cos] = sin_cos_reduced(rest.get(), quadrant.get());
    let sign = x.as_bits(Ty::U32) & 0x8000_0000;
    [(sin.as_bits(Ty::U32) ^ sign).as_bits(Ty::F32), cos]
}

/// e^{jφ} for the upper word of a phase in turns times 2^64.
pub fn cis_turns<'k>(phase: Val<'k>) -> Cx<'k> {
    let k = phase.builder();
    let quadrant = (phase + (1 << 29)) >> 30;
    let rest = (phase - (quadrant << 30)).cast(Ty::I32);
    let r = rest.cast(Ty::F32) * k.f32(2.0 * PI / 4_294_967_296.0);
    let [sin, cos] = sin_cos_reduced(r, quadrant);
    Cx::new(cos, sin)
}

/// |a| with the sign of b.
pub(super) fn copysign<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let magnitude = a.as_bits(Ty::U32) & 0x7fff_ffff;
    let sign = b.as_bits(Ty::U32) & 0x8000_0000;
    (magnitude | sign).as_bits(Ty::F32)
}

/// Angle of the point (x, y) in [−π, π].
pub fn atan2<'k>(y: Val<'k>, x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let zero = k.f32(0.0);
    let inf = k.f32(f32::INFINITY);
    let ax = x.abs();
    let ay = y.abs();
    let flat = ax.gt(ay);
    let small = k.select(flat, ay, ax);
    let large = k.select(flat, ax, ay);

    // Where one is not a number, neither comparison holds, and the result is not a number.
    let corner = small.eq(inf) & large.eq(inf);
    let diagonal = small.gt(k.f32(0.414_213_57) * large) | corner;
    let top = k.select(diagonal, small - large, small);
    let bottom = k.select(diagonal, small + large, large);
    let origin = large.eq(zero) & small.eq(zero);
    let t = k.select(origin | corner, zero, top / bottom);
    let z = t * t;
    let p = horner(
        z,
        &[8.053_744_5e-2, -0.138_776_86, 0.199_777_1, -0.333_329_5],
    );
    let a = k.fma(p * z, t, t) + k.select(diagonal, k.f32(FRAC_PI_4), zero);
    let a = k.select(!flat & large.ne(zero), k.f32(FRAC_PI_2) - a, a);
    let negative = (x.as_bits(Ty::U32) >> 31).ne(k.u32(0));
    let a = k.select(negative, k.f32(PI) - a, a);
    copysign(a, y)
}

/// Hyperbolic tangent.
pub fn tanh<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let a = x.abs();
    let z = x * x;

    let p = horner(
        z,
        &[
            -5.704_988_7e-3,
            2.063_908_8e-2,
            -5.373_971_6e-2,
            0.133_314_42,
            -0.333_332_8,
        ],
    );

    let near = k.fma(p * z, x, x);
    let far = k.f32(1.0) - k.f32(2.0) / (exp(a + a) + k.f32(1.0));
    let y = k.select(a.lt(k.f32(0.625)), near, copysign(far, x));
    k.select(x.ne(x), x, y)
}
