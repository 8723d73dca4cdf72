//! Fourier transforms of rustfft and realfft, compiled once; those of powers of two on processors with AVX-512 are our own.
//!
//! Both libraries are generic over the number type: a crate that plans a transform itself compiles all of their
//! kernels again, which was a third of the build time of `zbmd-ops-nn`. The functions here have no type parameters, so
//! the kernels are compiled with this crate, and what plans a transform only links to them.

#[cfg(target_arch = "x86_64")]
mod wide;

use std::sync::Arc;

use realfft::RealFftPlanner;
use rustfft::FftPlanner;
use rustfft::num_complex::{Complex32, Complex64};

pub use realfft::{ComplexToReal, RealToComplex};
pub use rustfft::{Fft, FftDirection};

/// Transform of rows of complex numbers from one place to another, not scaled: by the quickest code for the length and this
/// processor. The choice depends on nothing else, so bits are the same in every call; they differ between processors with and
/// without AVX-512.
pub struct RowTransform {
    len: usize,
    plan: RowPlan,
}

enum RowPlan {
    #[cfg(target_arch = "x86_64")]
    Wide(wide::WideFft),
    Library(Arc<dyn Fft<f32>>),
}

impl RowTransform {
    /// The plan for rows of so many numbers.
    pub fn new(len: usize, direction: FftDirection) -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(plan) = wide::WideFft::new(len, direction == FftDirection::Inverse) {
            let plan = RowPlan::Wide(plan);
            return Self { len, plan };
        }
        let plan = RowPlan::Library(complex_f32(len, direction));
        Self { len, plan }
    }

    /// Numbers of a row.
    #[expect(clippy::len_without_is_empty, reason = "no transform has length 0")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Numbers of scratch memory that [`Self::run`] needs.
    pub fn scratch_len(&self) -> usize {
        match &self.plan {
            #[cfg(target_arch = "x86_64")]
            RowPlan::Wide(_) => self.len,
            RowPlan::Library(plan) => plan.get_immutable_scratch_len(),
        }
    }

    /// Transforms the row `x` to `y`. What was in the scratch memory does not matter.
    ///
    /// # Panics
    /// If a row or the scratch memory has another length than it should.
    pub fn run(&self, x: &[Complex32], y: &mut [Complex32], scratch: &mut [Complex32]) {
        match &self.plan {
            #[cfg(target_arch = "x86_64")]
            RowPlan::Wide(plan) => plan.run(x, y, scratch),
            RowPlan::Library(plan) => plan.process_immutable_with_scratch(x, y, scratch),
        }
    }
}

/// Transform of `len` complex numbers, not scaled.
#[inline(never)]
pub fn complex_f32(len: usize, direction: FftDirection) -> Arc<dyn Fft<f32>> {
    FftPlanner::new().plan_fft(len, direction)
}

/// Transform of `len` complex numbers in double precision, not scaled.
#[inline(never)]
pub fn complex_f64(len: usize, direction: FftDirection) -> Arc<dyn Fft<f64>> {
    FftPlanner::new().plan_fft(len, direction)
}

/// Transform of `len` real numbers to `len / 2 + 1` complex ones.
#[inline(never)]
pub fn real_to_complex(len: usize) -> Arc<dyn RealToComplex<f32>> {
    RealFftPlanner::new().plan_fft_forward(len)
}

/// Inverse of [`real_to_complex`] times `len`.
#[inline(never)]
pub fn complex_to_real(len: usize) -> Arc<dyn ComplexToReal<f32>> {
    RealFftPlanner::new().plan_fft_inverse(len)
}

/// Squares of the amplitudes of the oscillations that some samples are made of, each with a real and an imaginary part: of
/// `k` oscillations over all of them, from 0 on, the second half being those below zero. A Hann window keeps strong ones
/// from the rest, and spreads each over three numbers.
pub fn power_spectrum(samples: &[(f64, f64)]) -> Vec<f64> {
    let turn = std::f64::consts::TAU / samples.len() as f64;
    let weights = (0..samples.len()).map(|index| 0.5 - 0.5 * (turn * index as f64).cos());
    let mut windowed: Vec<Complex64> = samples
        .iter()
        .zip(weights)
        .map(|(&(re, im), weight)| Complex64::new(re, im) * weight)
        .collect();
    complex_f64(samples.len(), FftDirection::Forward).process(&mut windowed);

    // The sum of the weights.
    let scale = 2.0 / samples.len() as f64;
    let bins = windowed.iter().map(|bin| bin.norm_sqr() * scale * scale);
    bins.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spectrum_has_the_squares_of_amplitudes() {
        let turn = std::f64::consts::TAU / 64.0;
        let sample = |index: usize| {
            let up = Complex64::from_polar(3.0, 5.0 * turn * index as f64);
            let down = Complex64::from_polar(0.5, -20.0 * turn * index as f64);
            ((up + down).re, (up + down).im)
        };
        let samples: Vec<_> = (0..64).map(sample).collect();
        let powers = power_spectrum(&samples);
        for (bin, expected) in [(5, 9.0), (44, 0.25), (20, 0.0), (30, 0.0)] {
            assert!(
                (powers[bin] - expected).abs() < 1e-9,
                "{bin}: {}",
                powers[bin]
            );
        }
    }

    /// Numbers without a pattern in [-0.5, 0.5).
    fn numbers(len: usize) -> Vec<Complex32> {
        let mut state = 1u32;
        let mut number = || {
            // Numerical Recipes' generator.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 - 0.5
        };
        (0..len)
            .map(|_| Complex32::new(number(), number()))
            .collect()
    }

    /// The largest lengths too: each has other passes than the one before.
    #[test]
    fn rows_are_as_exact_as_those_of_the_library_in_double_precision() {
        for bits in 4..=17 {
            let len = 1 << bits;
            for direction in [FftDirection::Forward, FftDirection::Inverse] {
                let x = numbers(len);
                let transform = RowTransform::new(len, direction);
                let mut y = vec![Complex32::ZERO; len];
                let mut scratch = vec![Complex32::new(f32::NAN, 1.0); transform.scratch_len()];
                transform.run(&x, &mut y, &mut scratch);

                let mut exact: Vec<_> = x
                    .iter()
                    .map(|z| rustfft::num_complex::Complex64::new(z.re.into(), z.im.into()))
                    .collect();
                complex_f64(len, direction).process(&mut exact);
                let error: f64 = y
                    .iter()
                    .zip(&exact)
                    .map(|(y, exact)| {
                        (f64::from(y.re) - exact.re).powi(2) + (f64::from(y.im) - exact.im).powi(2)
                    })
                    .sum();
                let power: f64 = exact.iter().map(|z| z.norm_sqr()).sum();
                // A unit in the last place of an f32 is 1.2e-7: measured 0.9e-7 to 1.7e-7, growing with the logarithm.
                let relative = (error / power).sqrt();
                assert!(relative < 2.5e-7, "{len} {direction:?}: {relative:e}");
            }
        }
    }
}
