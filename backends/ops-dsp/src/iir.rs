//! Recursive filters: biquad cascades, de-emphasis; and the FM discriminator.

use num_complex::Complex32;
use zbmd_ir::{DType, TokenType};

use zbmd_gpu_ir as kernels;
use zbmd_op::args::{Args, Numbers};
use zbmd_op::entry::{Entry, in_port, out_port};
use zbmd_op::kernel::{Io, Kernel, KernelFault};
use zbmd_op::math;
use zbmd_op::simd::{self, Isa, Loop};
use zbmd_op::{OpDoc, OpError, ResolvedOp};

const PORTS: &str = "`x`: f32 or c32 -> `y`, one scalar a firing; state `s`: f64, two numbers a section \
                     (and part)";

pub(super) const OPS: [Entry; 3] = [
    Entry {
        name: "Biquad",
        types: "x:T -> y:T; T: f32|c32",
        positional: &["sections"],
        doc: OpDoc {
            summary: "second-order sections in a row, each (b0 + b1 z⁻¹ + b2 z⁻²) / (1 + a1 z⁻¹ + a2 z⁻²)",
            params: &[("sections", "[[b0, b1, b2, a1, a2], …]")],
            ports: PORTS,
            example: "Biquad([[0.2, 0.4, 0.2, -0.5, 0.3]])",
        },
        make: |a| build(a, sections(a)?),
    },
    Entry {
        name: "Deemphasis",
        types: "x:T -> y:T; T: f32|c32",
        positional: &["tau", "rate"],
        doc: OpDoc {
            summary: "one-pole low pass with time constant tau: y += (1 − e^{−1/(tau·rate)})·(x − y)",
            params: &[
                ("tau", "seconds: 50e-6 in Europe, 75e-6 in America"),
                ("rate", "samples per second"),
            ],
            ports: PORTS,
            example: "Deemphasis(tau: 50e-6, rate: 48000.0)",
        },
        make: |a| {
            let pole = (-1.0 / (a.positive("tau")? * a.positive("rate")?)).exp();
            build(a, vec![[1.0 - pole, 0.0, 0.0, -pole, 0.0]])
        },
    },
    Entry {
        name: "Discriminate",
        types: "x:c32 -> y:f32",
        positional: &["gain"],
        doc: OpDoc {
            summary: "frequency demodulation: gain · angle of x[k]·conj(x[k−1])",
            params: &[(
                "gain",
                "factor (default 1): rate / (2π·deviation) gives ±1 at full deviation",
            )],
            ports: "`x`: c32, window 2 -> `y`: f32, one scalar a firing",
            example: "Discriminate(gain: 0.5)",
        },
        make: discriminate,
    },
];

type Section = [f64; 5];

fn sections(args: &Args<'_>) -> Result<Vec<Section>, OpError> {
    let Numbers { shape, data } = args.numbers("sections")?;
    if !matches!(shape[..], [1..=64, 5]) {
        let message = format!("has the shape {shape:?}");
        return Err(args.error("sections", message, "1 to 64 lists [b0, b1, b2, a1, a2]"));
    }
    Ok(data
        .chunks_exact(5)
        .map(|c| [c[0], c[1], c[2], c[3], c[4]])
        .collect())
}

fn build(args: &Args<'_>, sections: Vec<Section>) -> Result<ResolvedOp, OpError> {
    let dtype = args.scalar_x(&[DType::F32, DType::C32])?;
    let complex = dtype == DType::C32;
    let parts = 1 + u32::from(complex);
    let state = TokenType::new(DType::F64, [sections.len() as u32, 2 * parts]);
    let zeros = vec![0; state.bytes() as usize];
    // The recursion waits for itself: some eight cycles a sample, and a little more for each section.
    let flops = 200.0 + 60.0 * sections.len() as f64 * f64::from(parts);
    let token = TokenType::scalar(dtype);
    let lowered = sections.clone();
    let made = ResolvedOp::map(&token.clone(), token, move || {
        Ok(BiquadKernel { sections, complex })
    });
    let made = made.gpu(move || Some(kernels::biquad(&lowered, parts)));
    Ok(made.state("s", state, zeros).flops(flops))
}

/// Transposed direct form II: y = b0 x + s0, s0 = b1 x − a1 y + s1, s1 = b2 x − a2 y.
struct BiquadKernel {
    sections: Vec<Section>,
    complex: bool,
}

impl Kernel for BiquadKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let state = io.state::<f64>(0);
        if self.complex {
            let x = io.input::<Complex32>(0);
            let y = io.output::<Complex32>(0);
            // A section's state: real and imaginary part of s0, then of s1.
            let section_states = state.as_chunks_mut::<4>().0;

            // Sample by sample and not section by section, which would need a buffer between the sections.
            for (y, x) in y.iter_mut().zip(x) {
                let mut v = [f64::from(x.re), f64::from(x.im)];
                for (c, s) in self.sections.iter().zip(section_states.iter_mut()) {
                    v = std::array::from_fn(|part| {
                        let [mut low, mut high] = [s[part], s[2 + part]];
                        let out = section(c, v[part], &mut low, &mut high);
                        [s[part], s[2 + part]] = [low, high];
                        out
                    });
                }
                *y = Complex32::new(v[0] as f32, v[1] as f32);
            }
        } else {
            let x = io.input::<f32>(0);
            let y = io.output::<f32>(0);
            let section_states = state.as_chunks_mut::<2>().0;

            for (y, x) in y.iter_mut().zip(x) {
                let mut v = f64::from(*x);
                for (c, [low, high]) in self.sections.iter().zip(section_states.iter_mut()) {
                    v = section(c, v, low, high);
                }
                *y = v as f32;
            }
        }
        Ok(())
    }
}

#[inline(always)]
fn section([b0, b1, b2, a1, a2]: &Section, x: f64, low: &mut f64, high: &mut f64) -> f64 {
    let y = b0 * x + *low;
    *low = b1 * x - a1 * y + *high;
    *high = b2 * x - a2 * y;
    y
}

fn discriminate(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    args.scalar_x(&[DType::C32])?;
    let gain = args.float_or("gain", 1.0)? as f32;
    let input = in_port("x", TokenType::scalar(DType::C32), 1, 2);
    let output = out_port("y", TokenType::scalar(DType::F32), 1);
    let made =
        ResolvedOp::new(vec![input], vec![output], move || Ok(Discriminate { gain })).flops(60.0);
    Ok(made.gpu(move || Some(kernels::discriminate(gain))))
}

struct Discriminate {
    gain: f32,
}

impl Kernel for Discriminate {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let x = io.input::<Complex32>(0);
        let y = io.output::<f32>(0);
        // The window is one sample longer than the output: each output compares a sample with the one before it.
        simd::dispatch(Turns {
            gain: self.gain,
            old: &x[..y.len()],
            new: &x[1..],
            y,
        });
        Ok(())
    }
}

struct Turns<'a> {
    gain: f32,
    old: &'a [Complex32],
    new: &'a [Complex32],
    y: &'a mut [f32],
}

impl Loop for Turns<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        for ((y, old), new) in self.y.iter_mut().zip(self.old).zip(self.new) {
            let turn = new * old.conj();
            *y = math::atan2::<FMA>(turn.im, turn.re) * self.gain;
        }
    }
}
