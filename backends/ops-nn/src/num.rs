//! Element types as numbers: what ops that are generic over them need.

use half::{bf16, f16};

use zbmd_op::kernel::Element;

/// An element that can be computed with. Integers wrap.
pub(crate) trait Num: Element + PartialOrd + Default + std::fmt::Debug {
    const ZERO: Self;
    const ONE: Self;
    /// Least value: −∞ for floats.
    const LEAST: Self;
    /// Greatest value: +∞ for floats.
    const GREATEST: Self;
    const FLOAT: bool;
    /// Whether loops over it are worth compiling for wide vectors: for the type that models compute in only, since
    /// each type and function more is another loop to compile.
    const WIDE: bool = matches!(Self::DTYPE, zbmd_ir::DType::F32);
    fn add(self, o: Self) -> Self;
    fn sub(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    /// Quotient; of integers truncated, 0 where the divisor is 0.
    fn div(self, o: Self) -> Self;
    fn f64(self) -> f64;
    /// From a float: truncated and saturated for integers.
    fn of(v: f64) -> Self;
    fn i64(self) -> i64;
    fn of_i64(v: i64) -> Self;
    fn is_nan(self) -> bool;
    /// max with NaN winning, as ONNX and NumPy have it.
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        if self > o || self.is_nan() { self } else { o }
    }
    #[inline(always)]
    fn min(self, o: Self) -> Self {
        if self < o || self.is_nan() { self } else { o }
    }
}

macro_rules! int {
    ($($ty:ty),*) => { $(impl Num for $ty {
        const ZERO: Self = 0;
        const ONE: Self = 1;
        const LEAST: Self = <$ty>::MIN;
        const GREATEST: Self = <$ty>::MAX;
        const FLOAT: bool = false;
        #[inline(always)]
        fn add(self, o: Self) -> Self { self.wrapping_add(o) }
        #[inline(always)]
        fn sub(self, o: Self) -> Self { self.wrapping_sub(o) }
        #[inline(always)]
        fn mul(self, o: Self) -> Self { self.wrapping_mul(o) }
        #[inline(always)]
        fn div(self, o: Self) -> Self { if o == 0 { 0 } else { self.wrapping_div(o) } }
        #[inline(always)]
        fn f64(self) -> f64 { self as f64 }
        #[inline(always)]
        fn of(v: f64) -> Self { v as $ty }
        #[inline(always)]
        fn i64(self) -> i64 { self as i64 }
        #[inline(always)]
        fn of_i64(v: i64) -> Self { v as $ty }
        #[inline(always)]
        fn is_nan(self) -> bool { false }
    })* };
}
int!(i8, u8, i16, i32, i64);

macro_rules! float {
    ($($ty:ty, $zero:expr, $one:expr, $least:expr, $greatest:expr, $to:expr, $of:expr;)*) => {
        $(impl Num for $ty {
            const ZERO: Self = $zero;
            const ONE: Self = $one;
            const LEAST: Self = $least;
            const GREATEST: Self = $greatest;
            const FLOAT: bool = true;
            #[inline(always)]
            fn add(self, o: Self) -> Self { self + o }
            #[inline(always)]
            fn sub(self, o: Self) -> Self { self - o }
            #[inline(always)]
            fn mul(self, o: Self) -> Self { self * o }
            #[inline(always)]
            fn div(self, o: Self) -> Self { self / o }
            #[inline(always)]
            fn f64(self) -> f64 { $to(self) }
            #[inline(always)]
            fn of(v: f64) -> Self { $of(v) }
            #[inline(always)]
            fn i64(self) -> i64 { self.f64() as i64 }
            #[inline(always)]
            fn of_i64(v: i64) -> Self { $of(v as f64) }
            #[inline(always)]
            #[allow(clippy::eq_op, reason = "a NaN is what differs from itself")]
            fn is_nan(self) -> bool { self != self }
        })*
    };
}
float! {
    f32, 0.0, 1.0, f32::NEG_INFINITY, f32::INFINITY, f64::from, |v: f64| v as f32;
    f64, 0.0, 1.0, f64::NEG_INFINITY, f64::INFINITY, |v| v, |v| v;
    f16, f16::ZERO, f16::ONE, f16::NEG_INFINITY, f16::INFINITY, f16::to_f64, f16::from_f64;
    bf16, bf16::ZERO, bf16::ONE, bf16::NEG_INFINITY, bf16::INFINITY, bf16::to_f64, bf16::from_f64;
}

/// f32 or f64, with the functions that ops need.
pub(crate) trait Float:
    Num
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
{
    /// Exponents from here on have powers of e that are normal numbers.
    const LEAST_EXPONENT: Self;

    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn tanh(self) -> Self;
    fn sqrt(self) -> Self;
    fn abs(self) -> Self;
    fn floor(self) -> Self;
    fn powf(self, o: Self) -> Self;
    fn exp_fast<const FMA: bool>(self) -> Self;
    /// The same from [`Self::LEAST_EXPONENT`] to 88.
    fn exp_in_range<const FMA: bool>(self) -> Self;
    fn tanh_fast<const FMA: bool>(self) -> Self;
    fn erf_fast<const FMA: bool>(self) -> Self;

    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }
}

impl Float for f32 {
    const LEAST_EXPONENT: Self = -87.33;

    fn exp(self) -> Self {
        f32::exp(self)
    }
    fn ln(self) -> Self {
        f32::ln(self)
    }
    fn tanh(self) -> Self {
        f32::tanh(self)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        f32::abs(self)
    }
    #[inline(always)]
    fn floor(self) -> Self {
        f32::floor(self)
    }
    fn powf(self, o: Self) -> Self {
        f32::powf(self, o)
    }
    #[inline(always)]
    fn exp_fast<const FMA: bool>(self) -> Self {
        zbmd_op::math::exp::<FMA>(self)
    }
    #[inline(always)]
    fn exp_in_range<const FMA: bool>(self) -> Self {
        zbmd_op::math::exp_in_range::<FMA>(self)
    }
    #[inline(always)]
    fn tanh_fast<const FMA: bool>(self) -> Self {
        zbmd_op::math::tanh::<FMA>(self)
    }
    #[inline(always)]
    fn erf_fast<const FMA: bool>(self) -> Self {
        erf_f32::<FMA>(self)
    }
}

impl Float for f64 {
    const LEAST_EXPONENT: Self = -708.0;

    fn exp(self) -> Self {
        f64::exp(self)
    }
    fn ln(self) -> Self {
        f64::ln(self)
    }
    fn tanh(self) -> Self {
        f64::tanh(self)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        f64::abs(self)
    }
    #[inline(always)]
    fn floor(self) -> Self {
        f64::floor(self)
    }
    fn powf(self, o: Self) -> Self {
        f64::powf(self, o)
    }
    fn exp_fast<const FMA: bool>(self) -> Self {
        f64::exp(self)
    }
    fn exp_in_range<const FMA: bool>(self) -> Self {
        f64::exp(self)
    }
    fn tanh_fast<const FMA: bool>(self) -> Self {
        f64::tanh(self)
    }
    fn erf_fast<const FMA: bool>(self) -> Self {
        erf_f64(self)
    }
}

/// Error function in f32 as a quotient of polynomials, without branches; relative error below 4e-7.
#[inline(always)]
fn erf_f32<const FMA: bool>(x: f32) -> f32 {
    let fma = zbmd_op::simd::fma::<FMA>;
    // Beyond 4 it is ±1 in f32.
    let at_most_4 = if x > 4.0 { 4.0 } else { x };
    let bounded = if at_most_4 < -4.0 { -4.0 } else { at_most_4 };
    let square = bounded * bounded;

    let mut numerator = -2.726_142_3e-10_f32;
    for coefficient in [
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906_3e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ] {
        numerator = fma(numerator, square, coefficient);
    }
    let mut denominator = -1.456_607_2e-5_f32;
    for coefficient in [-2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_474e-2] {
        denominator = fma(denominator, square, coefficient);
    }
    bounded * numerator / denominator
}

/// Error function: its Taylor series near 0, a continued fraction far from it.
pub(crate) fn erf_f64(x: f64) -> f64 {
    let magnitude = x.abs();
    if magnitude.is_nan() {
        return x;
    }

    // x − x³/3 + x⁵/(2!·5) − …: each term's power and factorial from the one before.
    if magnitude < 2.5 {
        let mut term = x;
        let mut sum = x;
        let mut n = 0.0;
        while term.abs() > 1e-17 * sum.abs() {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }

    // 1 − erf 6 ≈ 2e−17, below half a unit in the last place of 1.
    if magnitude > 6.0 {
        return 1f64.copysign(x);
    }
    // erfc x = e^(−x²) / √π / (x + (1/2) / (x + (2/2) / (x + …))), from the innermost quotient out.
    let fraction = (1..=60)
        .rev()
        .fold(0.0, |tail, k| f64::from(k) / 2.0 / (magnitude + tail));
    let half_density = (-magnitude * magnitude).exp() / (magnitude + fraction) * 0.5;
    let complement = half_density * std::f64::consts::FRAC_2_SQRT_PI;
    (1.0 - complement).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_keeps_its_precision() {
        // Known to 15 digits.
        for (x, want) in [
            (0.5, 0.520_499_877_813_046_5),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            assert!((erf_f64(x) - want).abs() < 1e-14 && (erf_f64(-x) + want).abs() < 1e-14);
        }
        for i in -60_000..60_000 {
            let x = i as f32 * 1e-4;
            let want = erf_f64(f64::from(x));
            assert!(
                (f64::from(erf_f32::<true>(x)) - want).abs() <= 5e-7 * want.abs() + 1e-30,
                "{x}"
            );
        }
    }
}
