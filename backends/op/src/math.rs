//! Elementary functions of f32 without branches or tables, so that loops over them become vector code.
//!
//! Polynomials from the Cephes library (S. Moshier, single precision); errors below 3 units in the last place,
//! checked against f64 in the tests. The same code runs for one element and for many: equal bits.

use std::f32::consts::{FRAC_PI_2, FRAC_PI_4, LOG2_E, PI};

use num_complex::Complex32;

use crate::simd::{fma, round_i32, round_i32_wide};

const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

#[inline(always)]
fn horner<const FMA: bool, const N: usize>(z: f32, coefficients: [f32; N]) -> f32 {
    coefficients
        .into_iter()
        .skip(1)
        .fold(coefficients[0], |sum, c| fma::<FMA>(sum, z, c))
}

/// e^x.
#[inline(always)]
pub fn exp<const FMA: bool>(x: f32) -> f32 {
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let n = (x * LOG2_E).round_ties_even();
    let y = exp_of_rest::<FMA>(x, n);
    // 2^n in two factors: n reaches beyond the exponents of normal numbers.
    let n = round_i32(n);
    let half = n >> 1;
    let scale = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    y * scale(half) * scale(n - half)
}

/// e^x for x in [-87.33, 88], where neither x nor the result leaves the normal numbers; a NaN stays one. Two thirds of the work of
/// [`exp`].
#[inline(always)]
pub fn exp_in_range<const FMA: bool>(x: f32) -> f32 {
    // Numbers of this size have no fraction, and the integer that is added is in their last bits.
    const ROUNDING: f32 = 12_582_912.0;
    let shifted = fma::<FMA>(x, LOG2_E, ROUNDING);
    let n = shifted - ROUNDING;
    let y = exp_of_rest::<FMA>(x, n);
    // The bits of 2^n: all but the last ones of n are shifted out.
    let one = 127 << 23;
    y * f32::from_bits((shifted.to_bits() << 23).wrapping_add(one))
}

/// e^(x - n·ln 2), for the n that makes it the least.
#[inline(always)]
fn exp_of_rest<const FMA: bool>(x: f32, n: f32) -> f32 {
    let r = fma::<FMA>(n, -LN2_LOW, fma::<FMA>(n, -LN2_HIGH, x));
    let p = horner::<FMA, 6>(
        r,
        [
            1.987_569_1e-4,
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            0.166_666_65,
            0.5,
        ],
    );
    fma::<FMA>(p, r * r, r) + 1.0
}

/// Natural logarithm: NaN below 0, −∞ at 0.
#[inline(always)]
pub fn ln<const FMA: bool>(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits();
    let exponent = ((bits >> 23) as i32 & 0xff) - 126 - if tiny { 23 } else { 0 };
    let mantissa = f32::from_bits((bits & 0x007f_ffff) | 0x3f00_0000);
    let low = mantissa < std::f32::consts::FRAC_1_SQRT_2;
    let e = (exponent - i32::from(low)) as f32;
    let m = if low { mantissa + mantissa } else { mantissa } - 1.0;
    let z = m * m;
    let p = horner::<FMA, 9>(
        m,
        [
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
    let y = fma::<FMA>(e, LN2_LOW, p * m * z);
    let y = fma::<FMA>(-0.5, z, y);
    let y = fma::<FMA>(e, LN2_HIGH, m + y);
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

/// Sine and cosine of r in [−π/4, π/4] plus `quadrant` quarter turns.
#[inline(always)]
fn sin_cos_reduced<const FMA: bool>(r: f32, quadrant: i32) -> (f32, f32) {
    let z = r * r;
    let s = fma::<FMA>(
        horner::<FMA, 3>(z, [-1.951_529_6e-4, 8.332_161e-3, -0.166_666_55]) * z,
        r,
        r,
    );
    let c = fma::<FMA>(
        horner::<FMA, 3>(z, [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]) * z,
        z,
        fma::<FMA>(-0.5, z, 1.0),
    );

    // An odd number of quarter turns exchanges the two; the signs follow from the second bit. Selections instead of
    // branches, so that the loop around this is vectorised.
    let swap = quadrant & 1 != 0;
    let sin = if swap { c } else { s };
    let cos = if swap { s } else { c };

    let sin_sign = ((quadrant & 2) as u32) << 30;
    let cos_sign = ((quadrant.wrapping_add(1) & 2) as u32) << 30;
    (
        f32::from_bits(sin.to_bits() ^ sin_sign),
        f32::from_bits(cos.to_bits() ^ cos_sign),
    )
}

/// Sine and cosine. Exact to the last places for |x| up to 10^6; beyond, the reduction loses bits slowly, and from
/// 10^9 on the result is meaningless, as is such a phase in an f32.
#[inline(always)]
pub fn sin_cos<const FMA: bool>(x: f32) -> (f32, f32) {
    const HIGH: f64 = 1.570_796_326_734_125_6;
    const LOW: f64 = 6.077_100_506_506_192e-11;
    let wide = f64::from(x);
    let n = (wide * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = (wide - n * HIGH) - n * LOW;
    sin_cos_reduced::<FMA>(r as f32, round_i32_wide(n))
}

/// e^{jφ} for a phase in turns times 2^32: the upper half of one times 2^64, which is more than an f32 can tell.
#[inline(always)]
pub fn cis_turns<const FMA: bool>(p: u32) -> Complex32 {
    let quadrant = p.wrapping_add(1 << 29) >> 30;
    let rest = p.wrapping_sub(quadrant << 30) as i32;
    let r = rest as f32 * (2.0 * PI / 4_294_967_296.0);
    let (sin, cos) = sin_cos_reduced::<FMA>(r, quadrant as i32);
    Complex32::new(cos, sin)
}

/// Angle of the point (x, y) in [−π, π].
#[inline(always)]
pub fn atan2<const FMA: bool>(y: f32, x: f32) -> f32 {
    let abs_x = x.abs();
    let abs_y = y.abs();
    let flat = abs_x > abs_y;
    let small = if flat { abs_y } else { abs_x };
    let large = if flat { abs_x } else { abs_y };

    // Where one is no number, neither comparison holds, and what follows is none.
    let corner = small == f32::INFINITY && large == f32::INFINITY;
    let diagonal = small > 0.414_213_57 * large || corner;
    let top = if diagonal { small - large } else { small };
    let bottom = if diagonal { small + large } else { large };
    let t = top / bottom;
    let origin = large == 0.0 && small == 0.0;
    let t = if origin || corner { 0.0 } else { t };
    let z = t * t;
    let p = horner::<FMA, 4>(
        z,
        [8.053_744_5e-2, -0.138_776_86, 0.199_777_1, -0.333_329_5],
    );
    let a = fma::<FMA>(p * z, t, t) + if diagonal { FRAC_PI_4 } else { 0.0 };
    let a = if !flat && large != 0.0 {
        FRAC_PI_2 - a
    } else {
        a
    };
    let a = if x.is_sign_negative() { PI - a } else { a };
    a.copysign(y)
}

/// Hyperbolic tangent.
#[inline(always)]
pub fn tanh<const FMA: bool>(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let p = horner::<FMA, 5>(
        z,
        [
            -5.704_988_7e-3,
            2.063_908_8e-2,
            -5.373_971_6e-2,
            0.133_314_42,
            -0.333_332_8,
        ],
    );
    let near = fma::<FMA>(p * z, x, x);
    let far = (1.0 - 2.0 / (exp::<FMA>(a + a) + 1.0)).copysign(x);
    if a < 0.625 { near } else { far }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error in units of the last place of `want`.
    fn ulps(got: f32, want: f64) -> f64 {
        let narrow = want as f32;
        if got.to_bits() == narrow.to_bits() || (got.is_nan() && narrow.is_nan()) {
            return 0.0;
        }
        let unit = f64::from(f32::from_bits(
            narrow.abs().to_bits().max(0x0080_0000) & 0x7f80_0000,
        ));
        (f64::from(got) - want).abs() / (unit * f64::from(f32::EPSILON))
    }

    fn worst(points: impl Iterator<Item = f32>, got: fn(f32) -> f32, want: fn(f64) -> f64) -> f64 {
        points
            .map(|x| ulps(got(x), want(f64::from(x))))
            .fold(0.0, f64::max)
    }

    fn grid(low: f32, high: f32) -> impl Iterator<Item = f32> {
        (0..=40_000).map(move |i| low + (high - low) * (i as f32 / 40_000.0))
    }

    #[test]
    fn errors_stay_within_three_units() {
        fn check<const FMA: bool>() {
            let cases: [(&str, f64); 6] = [
                ("exp", worst(grid(-86.0, 88.5), exp::<FMA>, f64::exp)),
                (
                    "exp in its range",
                    worst(grid(-87.33, 88.0), exp_in_range::<FMA>, f64::exp),
                ),
                (
                    "ln",
                    worst(
                        grid(1e-30, 40.0).chain(grid(1e-40, 1e-37)),
                        ln::<FMA>,
                        f64::ln,
                    ),
                ),
                ("tanh", worst(grid(-12.0, 12.0), tanh::<FMA>, f64::tanh)),
                // Near the zeros of the sine only the absolute error is bounded.
                (
                    "sin",
                    worst(grid(0.1, 3.0), |x| sin_cos::<FMA>(x).0, f64::sin),
                ),
                (
                    "cos",
                    worst(grid(-1.4, 1.4), |x| sin_cos::<FMA>(x).1, f64::cos),
                ),
            ];
            for (name, error) in cases {
                assert!(error < 3.0, "{name}: {error} ulp, fma {FMA}");
            }
            for x in grid(-1e6, 1e6) {
                let (s, c) = sin_cos::<FMA>(x);
                let (want_s, want_c) = f64::from(x).sin_cos();
                assert!(
                    (f64::from(s) - want_s).abs() < 2e-7 && (f64::from(c) - want_c).abs() < 2e-7
                );
            }
        }
        check::<true>();
        check::<false>();
    }

    #[test]
    fn atan2_matches_in_every_octant_and_on_the_axes() {
        let mut values: Vec<f32> = vec![0.0, -0.0, 1.0, -1.0, 1e-30, -3e20, 0.4142, f32::INFINITY];
        values.extend(grid(-2.0, 2.0).step_by(331));
        for &y in &values {
            for &x in &values {
                let want = f64::from(y).atan2(f64::from(x));
                assert!(
                    (f64::from(atan2::<true>(y, x)) - want).abs() < 5e-7,
                    "atan2({y}, {x})"
                );
            }
        }
        for x in [1.0, 0.0, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(atan2::<true>(f32::NAN, x).is_nan() && atan2::<true>(x, f32::NAN).is_nan());
        }
    }

    #[test]
    fn special_values() {
        let inf = f32::INFINITY;
        for (got, want) in [
            (exp::<true>(inf), inf),
            (exp::<true>(-inf), 0.0),
            (ln::<true>(0.0), -inf),
            (ln::<true>(inf), inf),
            (tanh::<true>(inf), 1.0),
            (tanh::<true>(-inf), -1.0),
        ] {
            assert_eq!(got, want);
        }
        assert!(exp::<true>(f32::NAN).is_nan() && ln::<true>(-1.0).is_nan());
        assert!(tanh::<true>(f32::NAN).is_nan() && sin_cos::<true>(inf).0.is_nan());
    }

    #[test]
    fn cis_of_turns() {
        for i in 0..4096_u64 {
            let phase = i.wrapping_mul(0x0010_0123_4567_89ab);
            let turns = phase as f64 / 18_446_744_073_709_551_616.0;
            let (s, c) = (turns * std::f64::consts::TAU).sin_cos();
            let z = cis_turns::<true>((phase >> 32) as u32);
            assert!((f64::from(z.re) - c).abs() < 1.5e-7 && (f64::from(z.im) - s).abs() < 1.5e-7);
        }
    }
}
