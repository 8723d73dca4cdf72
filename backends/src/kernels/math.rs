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
pub(crate) fn nearest<'k>(x: Val<'k>) -> Val<'k> {
    x.round().cast(Ty::I32)
}

/// e^x.
pub(crate) fn exp<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let x = k.select(x.gt(k.f32(89.0)), k.f32(89.0), x);
    let x = k.select(x.lt(k.f32(-104.0)), k.f32(-104.0), x);
    let n = (x * k.f32(LOG2_E)).round();
    let r = k.fma(n, k.f32(-LN2_LOW), k.fma(n, k.f32(-LN2_HIGH), x));
    let p = horner(
        r,
        &[
            1.987_569_1e-4,
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            0.166_666_65,
            0.5,
        ],
    );
    let y = k.fma(p, r * r, r) + k.f32(1.0);
    // A NaN has no integer: where x is one, y is.
    let n = k.select(n.eq(n), n, k.f32(0.0)).cast(Ty::I32);
    let half = n >> 1;
    y * power_of_two(half) * power_of_two(n - half)
}

/// Exponent and mantissa − 1 of a positive x: x = 2^e (1 + m), m within [1/√2 − 1, √2 − 1].
fn split<'k>(x: Val<'k>) -> [Val<'k>; 2] {
    let k = x.builder();
    let tiny = x.lt(k.f32(f32::MIN_POSITIVE));
    let scaled = k.select(tiny, x * k.f32(8_388_608.0), x);
    let bits = scaled.as_bits(Ty::U32);
    let exponent = ((bits >> 23) & 0xff).cast(Ty::I32) - k.select(tiny, k.i32(149), k.i32(126));
    let mantissa = ((bits & 0x007f_ffff) | 0x3f00_0000).as_bits(Ty::F32);
    let low = mantissa.lt(k.f32(std::f32::consts::FRAC_1_SQRT_2));
    let e = (exponent - low.cast(Ty::I32)).cast(Ty::F32);
    [e, k.select(low, mantissa + mantissa, mantissa) - k.f32(1.0)]
}

/// ln(1 + m) − m + m²/2.
fn log_rest<'k>(m: Val<'k>) -> Val<'k> {
    let p = horner(
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
    p * m * (m * m)
}

/// Natural logarithm: NaN below 0, −∞ at 0.
pub(crate) fn ln<'k>(x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let [e, m] = split(x);
    let y = k.fma(e, k.f32(LN2_LOW), log_rest(m));
    let y = k.fma(k.f32(-0.5), m * m, y);
    let y = k.fma(e, k.f32(LN2_HIGH), m + y);
    let y = k.select(x.eq(k.f32(f32::INFINITY)), x, y);
    let y = k.select(x.eq(k.f32(0.0)), k.f32(f32::NEG_INFINITY), y);
    k.select(k.f32(0.0).le(x), y, k.f32(f32::NAN))
}

/// The sum and what its rounding left (Knuth).
pub(crate) fn two_sum<'k>(a: Val<'k>, b: Val<'k>) -> [Val<'k>; 2] {
    let sum = a + b;
    let from_b = sum - a;
    let from_a = sum - from_b;
    [sum, (a - from_a) + (b - from_b)]
}

/// The product and what its rounding left (Dekker), for factors below 10^34.
fn two_product<'k>(a: Val<'k>, b: Val<'k>) -> [Val<'k>; 2] {
    let k = a.builder();
    let halves = |v: Val<'k>| {
        let big = v * k.f32(4097.0);
        let high = big - (big - v);
        [high, v - high]
    };
    let ([ah, al], [bh, bl]) = (halves(a), halves(b));
    let product = a * b;
    [product, ((ah * bh - product) + ah * bl + al * bh) + al * bl]
}

/// x to the y, with the special values of C's `powf`.
pub(crate) fn pow<'k>(x: Val<'k>, y: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let (a, zero, one, inf) = (x.abs(), k.f32(0.0), k.f32(1.0), k.f32(f32::INFINITY));
    let [e, m] = split(a);
    // The logarithm in two parts: its error counts y·ln x times over.
    let square = two_product(m, m);
    let [high, rest] = two_sum(e * k.f32(LN2_HIGH), m);
    let [high, more] = two_sum(high, k.f32(-0.5) * square[0]);
    let small = k.fma(e, k.f32(LN2_LOW), log_rest(m)) + k.f32(-0.5) * square[1];
    let [high, low] = two_sum(high, rest + more + small);
    let [product, left] = two_product(high, y);
    let power = exp(product);
    // Beyond the floats there is nothing to correct, and what is left may be no number.
    let beyond = k.f32(1e30).lt(product.abs()) | power.eq(inf);
    let power = k.select(beyond, power, power + power * (left + low * y));
    // Of infinite and of zero bases and exponents.
    let rises = y.gt(zero);
    let of_zero = k.select(rises, zero, inf);
    let of_inf = k.select(rises, inf, zero);
    let grows = a.gt(one);
    let to_inf = k.select(a.eq(one), one, k.select(grows.eq(rises), inf, zero));
    let power = k.select(y.abs().eq(inf), to_inf, power);
    let power = k.select(a.eq(zero), of_zero, power);
    let power = k.select(a.eq(inf), of_inf, power);
    let whole = y.floor().eq(y);
    let odd = whole & (y * k.f32(0.5)).floor().ne(y * k.f32(0.5));
    let negative = (x.as_bits(Ty::U32) >> 31).ne(k.u32(0));
    let below = k.select(odd, -power, power);
    let below = k.select(whole | a.eq(zero) | a.eq(inf), below, k.f32(f32::NAN));
    let power = k.select(negative, below, power);
    let power = k.select(x.ne(x) | y.ne(y), k.f32(f32::NAN), power);
    k.select(y.eq(zero) | x.eq(one), one, power)
}

/// Sine and cosine of r in [−π/4, π/4] plus `quadrant` quarter turns.
fn sin_cos_reduced<'k>(r: Val<'k>, quadrant: Val<'k>) -> [Val<'k>; 2] {
    let k = r.builder();
    let z = r * r;
    let s = k.fma(
        horner(z, &[-1.951_529_6e-4, 8.332_161e-3, -0.166_666_55]) * z,
        r,
        r,
    );
    let c = k.fma(
        horner(z, &[2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]) * z,
        z,
        k.fma(k.f32(-0.5), z, k.f32(1.0)),
    );
    let swap = (quadrant & 1).ne(k.u32(0));
    let (sin, cos) = (k.select(swap, c, s), k.select(swap, s, c));
    let sign = |v: Val<'k>, bit: Val<'k>| (v.as_bits(Ty::U32) ^ ((bit & 2) << 30)).as_bits(Ty::F32);
    [sign(sin, quadrant), sign(cos, quadrant + 1)]
}

/// Bits of 2/π, most significant first; the first word lies before the point.
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
    let (word, shift) = (first >> 5, first & 31);
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
    let (carry_low, carry) = (
        k.mul_high(aligned[2], mantissa),
        k.mul_high(aligned[1], mantissa),
    );
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
pub(crate) fn sin_cos<'k>(x: Val<'k>) -> [Val<'k>; 2] {
    let k = x.builder();
    let a = x.abs();
    let (quadrant, rest) = (k.var(k.u32(0)), k.var(k.f32(f32::NAN)));
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
pub(crate) fn cis_turns<'k>(phase: Val<'k>) -> Cx<'k> {
    let k = phase.builder();
    let quadrant = (phase + (1 << 29)) >> 30;
    let rest = (phase - (quadrant << 30)).cast(Ty::I32);
    let r = rest.cast(Ty::F32) * k.f32(2.0 * PI / 4_294_967_296.0);
    let [sin, cos] = sin_cos_reduced(r, quadrant);
    Cx::new(cos, sin)
}

/// |a| with the sign of b.
pub(super) fn copysign<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let (magnitude, sign) = (
        a.as_bits(Ty::U32) & 0x7fff_ffff,
        b.as_bits(Ty::U32) & 0x8000_0000,
    );
    (magnitude | sign).as_bits(Ty::F32)
}

/// Angle of the point (x, y) in [−π, π].
pub(crate) fn atan2<'k>(y: Val<'k>, x: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let (zero, inf) = (k.f32(0.0), k.f32(f32::INFINITY));
    let (ax, ay) = (x.abs(), y.abs());
    let flat = ax.gt(ay);
    let (small, large) = (k.select(flat, ay, ax), k.select(flat, ax, ay));
    // Where one is no number, neither comparison holds, and what follows is none.
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
pub(crate) fn tanh<'k>(x: Val<'k>) -> Val<'k> {
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
