//! Magnitudes of complex numbers in vectors of 512 bits, with the bits of the processor's square root in less than its time: the
//! processor takes sixteen roots in 12 cycles (Ice Lake and later), and its estimate of a reciprocal root, made exact by fused
//! multiplications and additions, is there in half of that.
//!
//! Source: Markstein 1990, Computation of elementary functions on the IBM RISC System/6000 processor, IBM J. Research and
//! Development 34(1): a last step with the exact remainder rounds correctly. Here it is tested for all mantissas.
#![expect(
    unsafe_code,
    reason = "calls a function compiled for AVX-512 once the processor is known to have it, which reads and writes vectors by pointers"
)]

use std::arch::x86_64::*;

use num_complex::Complex32;

/// Numbers of a vector.
const LANES: usize = 16;

/// `y[k] = |x[k]|` for as many whole vectors as there are, where the processor has them; how many numbers these are.
pub(super) fn run(x: &[Complex32], y: &mut [f32]) -> usize {
    if !std::arch::is_x86_feature_detected!("avx512f") {
        return 0;
    }
    let (x, _) = x.as_chunks::<LANES>();
    let (y, _) = y.as_chunks_mut::<LANES>();
    // SAFETY: the processor has these instructions.
    unsafe { magnitudes(x, y) }
    LANES * x.len().min(y.len())
}

#[target_feature(enable = "avx512f")]
fn magnitudes(x: &[[Complex32; LANES]], y: &mut [[f32; LANES]]) {
    let re = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let im = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    for (x, y) in x.iter().zip(y) {
        let pairs = x.as_ptr().cast::<f32>();
        // SAFETY: sixteen complex numbers are 32 floats.
        let (low, high) = unsafe { (_mm512_loadu_ps(pairs), _mm512_loadu_ps(pairs.add(LANES))) };
        let re = _mm512_permutex2var_ps(low, re, high);
        let im = _mm512_permutex2var_ps(low, im, high);
        // Not fused: as without these vectors.
        let power = _mm512_add_ps(_mm512_mul_ps(re, re), _mm512_mul_ps(im, im));
        let root = square_root(power);
        // SAFETY: there is space for sixteen floats.
        unsafe { _mm512_storeu_ps(y.as_mut_ptr(), root) };
    }
}

/// Correctly rounded square roots.
#[inline]
#[target_feature(enable = "avx512f")]
fn square_root(x: __m512) -> __m512 {
    // Bits of the numbers for which nothing below leaves the range of normal numbers, 2^-90 to 2^126: not 0, infinite, or NaN.
    const FIRST: i32 = (127 - 90) << 23;
    const COUNT: i32 = (126 + 90) << 23;
    let above_first = _mm512_sub_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(FIRST));
    if _mm512_cmpge_epu32_mask(above_first, _mm512_set1_epi32(COUNT)) != 0 {
        return _mm512_sqrt_ps(x);
    }

    // An estimate to 14 bits, and with one step of Newton's method for the root and for half of its reciprocal to 27.
    let estimate = _mm512_rsqrt14_ps(x);
    let half = _mm512_set1_ps(0.5);
    let root = _mm512_mul_ps(x, estimate);
    let half_reciprocal = _mm512_mul_ps(half, estimate);
    let error = _mm512_fnmadd_ps(half_reciprocal, root, half);
    let root = _mm512_fmadd_ps(root, error, root);
    let half_reciprocal = _mm512_fmadd_ps(half_reciprocal, error, half_reciprocal);
    // What is missing from the square is exact, and so is the root's last bit.
    let remainder = _mm512_fnmadd_ps(root, root, x);
    _mm512_fmadd_ps(remainder, half_reciprocal, root)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Roots of sixteen numbers. Whoever calls it knows that there are such vectors.
    #[target_feature(enable = "avx512f")]
    fn roots(x: &[f32; LANES], y: &mut [f32; LANES]) {
        // SAFETY: both have sixteen floats.
        unsafe { _mm512_storeu_ps(y.as_mut_ptr(), square_root(_mm512_loadu_ps(x.as_ptr()))) }
    }

    /// Compares the roots of sixteen numbers whose bits follow one another with the standard library's.
    fn check(first_bits: u32) {
        let x: [f32; LANES] = std::array::from_fn(|i| f32::from_bits(first_bits + i as u32));
        let mut y = [0.0; LANES];
        // SAFETY: checked by the tests.
        unsafe { roots(&x, &mut y) };
        for (x, y) in x.into_iter().zip(y) {
            let expected = x.sqrt();
            let is_same = y.to_bits() == expected.to_bits() || (y.is_nan() && expected.is_nan());
            assert!(is_same, "√{x:e} is {expected:e}, not {y:e}");
        }
    }

    #[test]
    fn roots_are_correctly_rounded() {
        if !std::arch::is_x86_feature_detected!("avx512f") {
            return;
        }
        // All mantissas with an even and an odd exponent: others differ by powers of two.
        let mantissas = 1u32 << 24;
        let one = 1f32.to_bits();
        for bits in (one..one + mantissas).step_by(LANES) {
            check(bits);
        }
        // The ends of all exponents, among them 0, subnormal and infinite numbers, and NaN.
        for exponent in 0..256 {
            check(exponent << 23);
            check((exponent << 23) + (1 << 23) - LANES as u32);
        }
    }
}
