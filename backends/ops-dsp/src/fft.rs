//! Fourier transforms along the last dimension, by `zbmd-fft`: rustfft, realfft and our own.
//!
//! Each row is transformed by a call of its own: the library may treat several rows of one call differently from
//! single ones, and then bits would depend on how firings are grouped.

use std::sync::Arc;

use num_complex::Complex32;
use zbmd_ir::{DType, TokenType};

use super::frame::last_dimension;
use zbmd_fft::{self as transforms, ComplexToReal, FftDirection, RealToComplex, RowTransform};
use zbmd_gpu_ir::{self as kernels, Transform};
use zbmd_op::args::{Args, input_error};
use zbmd_op::entry::Entry;
use zbmd_op::kernel::{Io, Kernel, KernelFault};
use zbmd_op::{OpDoc, OpError, ResolvedOp};

/// Longest transform: tables of 256 MiB.
const MAX_LEN: usize = 1 << 24;

pub(super) const OPS: [Entry; 3] = [
    Entry {
        name: "Fft",
        types: "x:c32 -> y:c32",
        positional: &[],
        doc: OpDoc {
            summary: "discrete Fourier transform y[k] = Σ x[i]·e^{−j2πik/n}, any n",
            params: &[(
                "inverse",
                "the inverse: e^{+j…}, divided by n (default false)",
            )],
            ports: "`x`: c32[…, n] -> `y`: c32[…, n], one token a firing",
            example: "Fft(inverse: true)",
        },
        make: fft,
    },
    Entry {
        name: "Rfft",
        types: "x:f32 -> y:c32",
        positional: &[],
        doc: OpDoc {
            summary: "discrete Fourier transform of real numbers: the n/2 + 1 non-negative frequencies",
            params: &[],
            ports: "`x`: f32[…, n] -> `y`: c32[…, n/2 + 1], one token a firing",
            example: "Rfft()",
        },
        make: rfft,
    },
    Entry {
        name: "Irfft",
        types: "x:c32 -> y:f32",
        positional: &["size"],
        doc: OpDoc {
            summary: "inverse of Rfft, divided by n; imaginary parts of the first (and, n even, last) bin count as 0",
            params: &[("size", "n; default 2·(bins − 1)")],
            ports: "`x`: c32[…, n/2 + 1] -> `y`: f32[…, n], one token a firing",
            example: "Irfft(size: 512)",
        },
        make: irfft,
    },
];

/// Operations of a transform, weighted with the share of the peak that the library reaches.
fn fft_flops(n: usize, rows: f64) -> f64 {
    let smooth = [2, 3, 5, 7, 11, 13].iter().fold(n, |mut rest, p| {
        while rest > 1 && rest.is_multiple_of(*p) {
            rest /= p;
        }
        rest
    });
    let factor = match smooth {
        1 if n.is_power_of_two() => 2.5,
        1 => 3.5,
        // Lengths with a large prime factor go by way of a convolution.
        _ => 17.0,
    };
    let n = n as f64;
    rows * (factor * n * n.log2().max(1.0) + 100.0)
}

fn check_len(n: usize) -> Result<(), OpError> {
    if n <= MAX_LEN {
        return Ok(());
    }
    let message = format!("has rows of {n} elements");
    Err(input_error("x", message, format!("the limit is {MAX_LEN}")))
}

fn fft(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let x = args.x_of(&[DType::C32])?;
    let n = last_dimension(x)?;
    check_len(n)?;
    let inverse = args.bool_or("inverse", false)?;
    let rows = x.elements() as f64 / n as f64;
    let make = move || {
        let (direction, scale) = if inverse {
            (FftDirection::Inverse, 1.0 / n as f32)
        } else {
            (FftDirection::Forward, 1.0)
        };
        Ok(FftKernel {
            transform: RowTransform::new(n, direction),
            scale,
        })
    };
    let transform = if inverse {
        Transform::Inverse
    } else {
        Transform::Forward
    };
    let made = ResolvedOp::map(x, x.clone(), make).flops(fft_flops(n, rows));
    Ok(made.gpu(move || kernels::fft(transform, n, rows as u64)))
}

struct FftKernel {
    transform: RowTransform,
    scale: f32,
}

impl Kernel for FftKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let n = self.transform.len();
        let scratch = &mut io.scratch::<Complex32>()[..self.transform.scratch_len()];
        let x = io.input::<Complex32>(0);
        let y = io.output::<Complex32>(0);

        for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
            self.transform.run(x, y, scratch);
            if self.scale != 1.0 {
                y.iter_mut().for_each(|v| *v *= self.scale);
            }
        }
        Ok(())
    }

    fn scratch_bytes(&self) -> usize {
        self.transform.scratch_len() * size_of::<Complex32>()
    }
}

fn rfft(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let x = args.x_of(&[DType::F32])?;
    let n = last_dimension(x)?;
    check_len(n)?;
    let y = with_last(x, DType::C32, n as u32 / 2 + 1);
    let rows = x.elements() as f64 / n as f64;
    let make = move || {
        Ok(RfftKernel {
            plan: transforms::real_to_complex(n),
        })
    };
    let made = ResolvedOp::map(x, y, make).flops(fft_flops(n, rows));
    Ok(made.gpu(move || kernels::fft(Transform::Real, n, rows as u64)))
}

fn with_last(x: &TokenType, dtype: DType, last: u32) -> TokenType {
    let mut shape = x.shape.clone();
    if let Some(dim) = shape.last_mut() {
        *dim = last;
    }
    TokenType::new(dtype, shape)
}

struct RfftKernel {
    plan: Arc<dyn RealToComplex<f32>>,
}

impl Kernel for RfftKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let n = self.plan.len();
        let bins = self.plan.complex_len();
        // The library overwrites its input, so each row is copied.
        let (scratch, rest) = io
            .scratch::<Complex32>()
            .split_at_mut(self.plan.get_scratch_len());
        let row = &mut bytemuck::cast_slice_mut::<Complex32, f32>(rest)[..n];

        let x = io.input::<f32>(0);
        let y = io.output::<Complex32>(0);
        for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(bins)) {
            row.copy_from_slice(x);
            let done = self.plan.process_with_scratch(row, y, scratch);
            done.map_err(|_| KernelFault("lengths of a real transform do not fit"))?;
        }
        Ok(())
    }

    fn scratch_bytes(&self) -> usize {
        (self.plan.get_scratch_len() + self.plan.complex_len()) * size_of::<Complex32>()
    }
}

fn irfft(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let x = args.x_of(&[DType::C32])?;
    let bins = last_dimension(x)?;
    check_len(bins)?;
    let n = if args.get("size").is_some() {
        args.count("size")? as usize
    } else {
        (2 * (bins - 1)).max(1)
    };
    if n / 2 + 1 != bins {
        let message = format!(
            "is {n}, the {bins} bins belong to {} or {}",
            2 * bins - 2,
            2 * bins - 1
        );
        return Err(args.error("size", message, "give one of the two"));
    }
    let y = with_last(x, DType::F32, n as u32);
    let rows = x.elements() as f64 / bins as f64;
    let make = move || {
        Ok(IrfftKernel {
            plan: transforms::complex_to_real(n),
        })
    };
    let made = ResolvedOp::map(x, y, make).flops(fft_flops(n, rows));
    Ok(made.gpu(move || kernels::fft(Transform::RealInverse, n, rows as u64)))
}

struct IrfftKernel {
    plan: Arc<dyn ComplexToReal<f32>>,
}

impl Kernel for IrfftKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let n = self.plan.len();
        let bins = self.plan.complex_len();
        let (scratch, rest) = io
            .scratch::<Complex32>()
            .split_at_mut(self.plan.get_scratch_len());
        let row = &mut rest[..bins];

        let x = io.input::<Complex32>(0);
        let y = io.output::<f32>(0);
        let scale = 1.0 / n as f32;
        for (x, y) in x.chunks_exact(bins).zip(y.chunks_exact_mut(n)) {
            row.copy_from_slice(x);

            // The library refuses rows that no real signal has: the first bin is real, and so is the last of an even length.
            row[0].im = 0.0;
            if n.is_multiple_of(2) {
                row[bins - 1].im = 0.0;
            }

            let done = self.plan.process_with_scratch(row, y, scratch);
            done.map_err(|_| KernelFault("lengths of a real transform do not fit"))?;
            y.iter_mut().for_each(|v| *v *= scale);
        }
        Ok(())
    }

    fn scratch_bytes(&self) -> usize {
        (self.plan.get_scratch_len() + self.plan.complex_len()) * size_of::<Complex32>()
    }
}
