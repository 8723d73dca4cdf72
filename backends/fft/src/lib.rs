//! Fourier transforms of rustfft and realfft, compiled once.
//!
//! Both libraries are generic over the number type: a crate that plans a transform itself compiles all of their
//! kernels again, which was a third of the build time of `zbmd-ops-nn`. The functions here have no type parameters, so
//! the kernels are compiled with this crate, and what plans a transform only links to them.

use std::sync::Arc;

use realfft::RealFftPlanner;
use rustfft::FftPlanner;

pub use realfft::{ComplexToReal, RealToComplex};
pub use rustfft::{Fft, FftDirection};

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
