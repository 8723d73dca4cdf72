//! Ops that make samples: constants, counters, oscillators, noise; and the mixer, which holds an oscillator.

use std::array::from_fn;

use num_complex::Complex32;
use zbmd_ir::{DType, TokenType};

use zbmd_gpu_ir as kernels;
use zbmd_op::args::{Args, Numbers, encode};
use zbmd_op::entry::{Entry, out_port};
use zbmd_op::kernel::{Io, Kernel, KernelFault};
use zbmd_op::math;
use zbmd_op::simd::{self, Isa, Loop};
use zbmd_op::{OpDoc, OpError, ResolvedOp};

pub(super) const OPS: [Entry; 5] = [
    Entry {
        name: "Const",
        types: "-> y:any",
        positional: &["value"],
        doc: OpDoc {
            summary: "the same token in every firing",
            params: &[
                (
                    "value",
                    "a number, nested lists or a tensor; complex numbers as [re, im] or real",
                ),
                ("dtype", "element type (default f32, or the tensor's)"),
                (
                    "shape",
                    "shape (default: that of the value); a single number fills it",
                ),
            ],
            ports: "-> `y`, one token a firing",
            example: "Const([0.0, 1.0], dtype: f32)",
        },
        make: constant,
    },
    Entry {
        name: "Counter",
        types: "-> y:i8|u8|i16|i32|i64|f32|f64",
        positional: &["start", "step"],
        doc: OpDoc {
            summary: "start, start + step, start + 2 step, …; wraps at 64 bits",
            params: &[
                ("start", "first value (default 0)"),
                ("step", "difference (default 1)"),
                (
                    "dtype",
                    "i8, u8, i16, i32, i64 (default), f32 or f64; narrower integers wrap",
                ),
            ],
            ports: "-> `y`, one scalar a firing; state `n`: i64",
            example: "Counter(start: 10, step: 2)",
        },
        make: counter,
    },
    Entry {
        name: "Tone",
        types: "-> y:f32|c32",
        positional: &["freq", "rate"],
        doc: OpDoc {
            summary: "an oscillator: amplitude · e^{j2π·freq·k/rate}, or its real part",
            params: &[
                ("freq", "frequency in Hz; may be negative"),
                ("rate", "samples per second"),
                ("amplitude", "peak value (default 1)"),
                ("dtype", "f32 or c32 (default)"),
            ],
            ports: "-> `y`, one scalar a firing; state `phase`: i64, turns times 2^64, so it never drifts",
            example: "Tone(freq: 1000.0, rate: 48000.0, dtype: f32)",
        },
        make: tone,
    },
    Entry {
        name: "Noise",
        types: "-> y:f32|c32",
        positional: &["seed"],
        doc: OpDoc {
            summary: "white noise, uniform in [−amplitude, amplitude); complex: both parts",
            params: &[
                ("seed", "where the sequence starts (default 1)"),
                ("amplitude", "bound (default 1)"),
                ("dtype", "f32 (default) or c32"),
            ],
            ports: "-> `y`, one scalar a firing; state `n`: i64 (SplitMix64: Steele, Lea & Flood 2014)",
            example: "Noise(seed: 7)",
        },
        make: noise,
    },
    Entry {
        name: "Mix",
        types: "x:f32|c32 -> y:c32",
        positional: &["freq", "rate"],
        doc: OpDoc {
            summary: "shifts by freq: multiplies with a numerically controlled oscillator e^{j2π·freq·k/rate}",
            params: &[
                ("freq", "frequency in Hz; may be negative"),
                ("rate", "samples per second"),
            ],
            ports: "`x`: c32 or f32 -> `y`: c32, one token a firing, elements of a token being \
                    consecutive samples; state `phase`: i64, turns times 2^64",
            example: "Mix(freq: -250000.0, rate: 2000000.0)",
        },
        make: mix,
    },
];

fn constant(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let Numbers {
        shape: written,
        mut data,
    } = args.numbers("value")?;
    let own = match args.get("value") {
        Some(zbmd_ir::Value::Tensor(_, token)) => token.dtype,
        _ => DType::F32,
    };
    let dtype = args.dtype_or("dtype", own)?;
    let mut natural = written.clone();
    let complex = dtype == DType::C32;
    let pairs = complex && written.last() == Some(&2);
    if pairs {
        natural.pop();
    } else if own == DType::C32 {
        return Err(args.error(
            "dtype",
            format!("is {dtype}, the tensor c32"),
            "write `dtype: c32`",
        ));
    } else if complex {
        data = data.into_iter().flat_map(|re| [re, 0.0]).collect();
    }
    let shape = args.shape_opt("shape")?.unwrap_or_else(|| natural.clone());
    let token = TokenType::new(dtype, shape);
    let given = TokenType::new(dtype, natural);
    if given.elements() != 1 && given.elements() != token.elements() {
        let message = format!(
            "has {} elements, the value {}",
            token.elements(),
            given.elements()
        );
        return Err(args.error(
            "shape",
            message,
            "give as many, or a single number to repeat",
        ));
    }

    let pattern = encode(dtype, &data);
    let bytes = token.bytes();
    let lowered = pattern.clone();
    let make = move || Ok(ConstKernel { pattern });
    let made = ResolvedOp::new(vec![], vec![out_port("y", token, 1)], make);
    Ok(made.gpu(move || kernels::pattern(lowered, bytes)))
}

/// Repeats a token, or the one element of all.
struct ConstKernel {
    pattern: Vec<u8>,
}

impl Kernel for ConstKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let out = io.output_bytes(0);
        let mut filled = self.pattern.len().min(out.len());
        out[..filled].copy_from_slice(&self.pattern[..filled]);
        // Doubling what is there keeps copies long however short the pattern is.
        while filled < out.len() {
            let more = filled.min(out.len() - filled);
            out.copy_within(..more, filled);
            filled += more;
        }
        Ok(())
    }
}

fn counter(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    use DType::*;
    let dtype = args.dtype_or("dtype", I64)?;
    if !matches!(dtype, I8 | U8 | I16 | I32 | I64 | F32 | F64) {
        let help = "one of i8, u8, i16, i32, i64, f32, f64";
        return Err(args.error("dtype", format!("is {dtype}"), help));
    }
    let start = args.int_or("start", 0)?;
    let step = args.int_or("step", 1)?;

    let output = out_port("y", TokenType::scalar(dtype), 1);
    let made = ResolvedOp::new(vec![], vec![output], move || {
        Ok(CounterKernel { step, dtype })
    });
    let made = made.gpu(move || kernels::counter(step, dtype));
    Ok(made.state("n", TokenType::scalar(I64), start.to_le_bytes().to_vec()))
}

struct CounterKernel {
    step: i64,
    dtype: DType,
}

impl Kernel for CounterKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let n = &mut io.state::<i64>(0)[0];
        macro_rules! count {
            ($ty:ty) => {
                for y in io.output::<$ty>(0) {
                    *y = *n as $ty;
                    *n = n.wrapping_add(self.step);
                }
            };
        }
        match self.dtype {
            DType::I8 => count!(i8),
            DType::U8 => count!(u8),
            DType::I16 => count!(i16),
            DType::I32 => count!(i32),
            DType::F32 => count!(f32),
            DType::F64 => count!(f64),
            _ => count!(i64),
        }
        Ok(())
    }
}

/// freq/rate in turns times 2^64, wrapped.
fn phase_step(args: &Args<'_>) -> Result<u64, OpError> {
    let turns = args.float("freq")? / args.positive("rate")?;
    let fraction = turns - turns.floor();
    Ok((fraction * 18_446_744_073_709_551_616.0) as u64)
}

fn float_or_complex(args: &Args<'_>, default: DType) -> Result<DType, OpError> {
    let dtype = args.dtype_or("dtype", default)?;
    if matches!(dtype, DType::F32 | DType::C32) {
        return Ok(dtype);
    }
    Err(args.error("dtype", format!("is {dtype}"), "f32 or c32"))
}

fn tone(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let dtype = float_or_complex(args, DType::C32)?;
    let step = phase_step(args)?;
    let amplitude = args.float_or("amplitude", 1.0)? as f32;

    let output = out_port("y", TokenType::scalar(dtype), 1);
    let made = ResolvedOp::new(vec![], vec![output], move || {
        Ok(ToneKernel {
            step,
            amplitude,
            dtype,
        })
    });
    let made = made.gpu(move || Some(kernels::tone(step, amplitude, dtype == DType::C32)));
    Ok(made
        .state("phase", TokenType::scalar(DType::I64), vec![0; 8])
        .flops(50.0))
}

struct ToneKernel {
    step: u64,
    amplitude: f32,
    dtype: DType,
}

impl Kernel for ToneKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let phase = &mut io.state::<i64>(0)[0];
        let start = *phase as u64;
        let step = self.step;
        let amplitude = self.amplitude;
        // Phases are turns times 2^64: what wraps is a whole turn, so the sum is exact for ever.
        *phase = start.wrapping_add(step.wrapping_mul(io.firings() as u64)) as i64;
        // A tone reads nothing, and this takes no memory.
        let silent = &vec![(); io.firings()];
        if self.dtype == DType::C32 {
            let y = io.output::<Complex32>(0);
            simd::dispatch_widest(Oscillate {
                start,
                step,
                x: silent,
                y,
                f: |(), z: Complex32| z * amplitude,
            });
        } else {
            let y = io.output::<f32>(0);
            simd::dispatch_widest(Oscillate {
                start,
                step,
                x: silent,
                y,
                f: |(), z: Complex32| z.re * amplitude,
            });
        }
        Ok(())
    }
}

/// `y[k] = f(x[k], e^{j(start + k step)})`. The phase of a sample is exact, however many samples a call has.
struct Oscillate<'a, X, Y, F> {
    start: u64,
    step: u64,
    x: &'a [X],
    y: &'a mut [Y],
    f: F,
}

/// Samples whose phases [`Oscillate`] makes together.
const BLOCK: usize = 64;

impl<X: Copy, Y, F: Fn(X, Complex32) -> Y> Loop for Oscillate<'_, X, Y, F> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let Self {
            start,
            step,
            x,
            y,
            f,
        } = self;
        let phase = |k: usize| start.wrapping_add(step.wrapping_mul(k as u64));
        let first_of_rest = y.len() / BLOCK * BLOCK;
        let (x_blocks, x_rest) = x.as_chunks::<BLOCK>();
        let (y_blocks, y_rest) = y.as_chunks_mut::<BLOCK>();
        if !y_blocks.is_empty() {
            // Vectors have no product of 64 bits, or a slow one: products are made once, and a block's phases are sums.
            let offsets: [u64; BLOCK] = from_fn(|k| step.wrapping_mul(k as u64));
            for (block, (x, y)) in x_blocks.iter().zip(y_blocks).enumerate() {
                let first = phase(block * BLOCK);
                let phases = offsets.map(|offset| upper_half(first.wrapping_add(offset)));
                oscillate::<FMA, _, _>(&phases, x, y, &f);
            }
        }

        for (k, (x, y)) in x_rest.iter().zip(y_rest).enumerate() {
            let phase = phase(first_of_rest + k);
            *y = f(*x, math::cis_turns::<FMA>(upper_half(phase)));
        }
    }
}

fn upper_half(phase: u64) -> u32 {
    (phase >> 32) as u32
}

/// A block of [`Oscillate`]. As parameters, unlike as fields, slices are known not to overlap.
#[inline(always)]
fn oscillate<const FMA: bool, X: Copy, Y>(
    phases: &[u32; BLOCK],
    x: &[X; BLOCK],
    y: &mut [Y; BLOCK],
    f: impl Fn(X, Complex32) -> Y,
) {
    for ((y, &x), &phase) in y.iter_mut().zip(x).zip(phases) {
        *y = f(x, math::cis_turns::<FMA>(phase));
    }
}

fn mix(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let step = phase_step(args)?;
    let x = args.x_of(&[DType::C32, DType::F32])?;
    let dtype = x.dtype;
    let elements = x.elements();
    let y = TokenType::new(DType::C32, x.shape.clone());
    let made = ResolvedOp::map(x, y, move || Ok(MixKernel { step, dtype }));
    let made = made.gpu(move || kernels::mix(step, dtype == DType::C32, elements));
    let made = made.state("phase", TokenType::scalar(DType::I64), vec![0; 8]);
    Ok(made.flops(20.0 * elements as f64))
}

struct MixKernel {
    step: u64,
    dtype: DType,
}

impl Kernel for MixKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let phase = &mut io.state::<i64>(0)[0];
        let start = *phase as u64;
        let step = self.step;
        let y = io.output::<Complex32>(0);
        *phase = start.wrapping_add(step.wrapping_mul(y.len() as u64)) as i64;
        if self.dtype == DType::C32 {
            let x = &io.input::<Complex32>(0)[..y.len()];
            simd::dispatch_widest(Oscillate {
                start,
                step,
                x,
                y,
                f: |x, z: Complex32| x * z,
            });
        } else {
            let x = &io.input::<f32>(0)[..y.len()];
            simd::dispatch_widest(Oscillate {
                start,
                step,
                x,
                y,
                f: |x, z: Complex32| z * x,
            });
        }
        Ok(())
    }
}

/// Increment of SplitMix64: 2^64 by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn noise(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let dtype = float_or_complex(args, DType::F32)?;
    let seed = args.int_or("seed", 1)?;
    let amplitude = args.float_or("amplitude", 1.0)? as f32;

    let output = out_port("y", TokenType::scalar(dtype), 1);
    let draws = dtype.size_bytes() / 4;
    let made = ResolvedOp::new(vec![], vec![output], move || {
        Ok(NoiseKernel { amplitude, dtype })
    });
    let made = made.gpu(move || Some(kernels::noise(GOLDEN, amplitude, draws as u32)));
    let made = made.state(
        "n",
        TokenType::scalar(DType::I64),
        seed.to_le_bytes().to_vec(),
    );
    Ok(made.flops(35.0 * draws as f64))
}

struct NoiseKernel {
    amplitude: f32,
    dtype: DType,
}

impl Kernel for NoiseKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let n = &mut io.state::<i64>(0)[0];
        let y: &mut [f32] = match self.dtype {
            DType::C32 => bytemuck::cast_slice_mut(io.output::<Complex32>(0)),
            _ => io.output::<f32>(0),
        };
        let start = *n as u64;
        *n = start.wrapping_add(GOLDEN.wrapping_mul(y.len() as u64)) as i64;
        simd::dispatch(Draw {
            start,
            amplitude: self.amplitude,
            y,
        });
        Ok(())
    }
}

struct Draw<'a> {
    start: u64,
    amplitude: f32,
    y: &'a mut [f32],
}

impl Loop for Draw<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        for (k, y) in self.y.iter_mut().enumerate() {
            let z = self.start.wrapping_add(GOLDEN.wrapping_mul(k as u64 + 1));
            *y = (uniform(z) - 1.0) * self.amplitude;
        }
    }
}

/// SplitMix64's output for one state, as a float in [0, 2).
#[inline(always)]
fn uniform(state: u64) -> f32 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let z = z ^ (z >> 31);
    (z >> 40) as i32 as f32 * (1.0 / 8_388_608.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many samples of an oscillator from sample `first` on, computed in vectors of 256 or of 512 bits, where there are any.
    fn oscillator(first: usize, len: usize, is_widest: bool) -> Vec<Complex32> {
        const STEP: u64 = 0x0123_4567_89ab_cdef;
        let x: Vec<f32> = (first..first + len).map(|k| 1.0 + k as f32).collect();
        let mut y = vec![Complex32::ZERO; len];
        let oscillate = Oscillate {
            start: STEP.wrapping_mul(first as u64),
            step: STEP,
            x: &x,
            y: &mut y,
            f: |x: f32, z: Complex32| z * x,
        };
        if is_widest {
            simd::dispatch_widest(oscillate);
        } else {
            simd::dispatch(oscillate);
        }
        y
    }

    #[test]
    fn samples_have_the_same_bits_in_every_call_and_vector() {
        let bits = |y: &[Complex32]| -> Vec<[u32; 2]> {
            let parts = y.iter().map(|z| [z.re, z.im].map(f32::to_bits));
            parts.collect()
        };
        let all = oscillator(0, 300, true);
        assert_eq!(bits(&oscillator(0, 300, false)), bits(&all));
        for first in [0, 1, 63, 64, 100] {
            for len in [1, 63, 64, 65, 200] {
                let part = oscillator(first, len, true);
                assert_eq!(bits(&part), bits(&all[first..first + len]), "{first} {len}");
            }
        }
    }
}
