//! Frames of consecutive tokens: cutting with overlap, weighting, adding up again.

use num_complex::Complex32;
use zbmd_ir::{DType, TokenType, limits};

use super::design::WindowKind;
use zbmd_gpu_ir::{self as kernels, Dim};
use zbmd_op::args::{Args, input_error};
use zbmd_op::entry::{Entry, in_port, out_port};
use zbmd_op::kernel::{Io, Kernel, KernelFault};
use zbmd_op::simd::{self, Isa, Loop};
use zbmd_op::{OpDoc, OpError, ResolvedOp};

const FLOATS: [DType; 2] = [DType::F32, DType::C32];

pub(super) const OPS: [Entry; 3] = [
    Entry {
        name: "Frame",
        types: "x:T -> y:T; T: any",
        positional: &["size", "hop"],
        doc: OpDoc {
            summary: "the last `size` tokens as one, every `hop` tokens",
            params: &[
                ("size", "tokens in a frame"),
                ("hop", "tokens from frame to frame (default size)"),
            ],
            ports: "`x`: any, rate hop, window size -> `y`: [size, …], one a firing; the first frame \
                    begins with size − hop initial tokens",
            example: "Frame(size: 512, hop: 256)",
        },
        make: frame,
    },
    Entry {
        name: "OverlapAdd",
        types: "x:T -> y:T; T: f32|c32",
        positional: &["hop"],
        doc: OpDoc {
            summary: "adds up frames that begin `hop` tokens apart",
            params: &[(
                "hop",
                "tokens from frame to frame, at most the frame's length",
            )],
            ports: "`x`: f32 or c32 [n, …] -> `y`: […], rate hop; state `tail`: [n − hop, …]",
            example: "OverlapAdd(256)",
        },
        make: overlap_add,
    },
    Entry {
        name: "Window",
        types: "x:T -> y:T; T: f32|c32",
        positional: &["kind"],
        doc: OpDoc {
            summary: "multiplies a frame by a window function along its first dimension",
            params: &[
                (
                    "kind",
                    "\"hann\", \"hamming\", \"blackman\", \"rectangular\" or {\"kaiser\": beta}",
                ),
                (
                    "periodic",
                    "true (default) for spectra and overlap-add, false for filter design",
                ),
            ],
            ports: "`x`: f32 or c32 [n, …] -> `y`, one token a firing",
            example: "Window(hann)",
        },
        make: window,
    },
];

fn frame(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let x = args.x()?;
    let size = args.count("size")?;
    let hop = if args.get("hop").is_some() {
        args.count("hop")?
    } else {
        size
    };
    if hop > size {
        let message = format!("is {hop}, more than the size {size}");
        return Err(args.error("hop", message, "drop tokens with `Decimate` before"));
    }
    let mut shape = vec![size];
    shape.extend(&x.shape);
    let token_bytes = x.bytes() as usize;
    let frame = size as usize * token_bytes;
    let step = hop as usize * token_bytes;

    let input = in_port("x", x.clone(), u64::from(hop), u64::from(size));
    let output = out_port("y", TokenType::new(x.dtype, shape), 1);
    let made = ResolvedOp::new(vec![input], vec![output], move || {
        Ok(FrameKernel { frame, step })
    });
    Ok(made.gpu(move || {
        let frame = frame as u64;
        let step = step as u64;
        kernels::strided(
            Dim {
                size: 1,
                from: step,
                to: frame,
            },
            &[],
            frame,
        )
    }))
}

/// Copies `frame` bytes from every `step` bytes.
struct FrameKernel {
    frame: usize,
    step: usize,
}

impl Kernel for FrameKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let x = io.input_bytes(0);
        for (k, y) in io.output_bytes(0).chunks_exact_mut(self.frame).enumerate() {
            y.copy_from_slice(&x[k * self.step..][..self.frame]);
        }
        Ok(())
    }
}

fn overlap_add(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let (x, n) = args.shaped_x(&FLOATS)?;
    let hop = args.count("hop")?;
    if hop > n {
        let message = format!("is {hop}, more than the frame's {n} tokens");
        return Err(args.error("hop", message, "frames would leave gaps"));
    }
    let token = TokenType::new(x.dtype, &x.shape[1..]);
    let floats = (token.bytes() / 4) as usize;
    let frame = n as usize * floats;
    let step = hop as usize * floats;

    let mut tail = x.clone();
    tail.shape[0] = n - hop;
    let input = in_port("x", x.clone(), 1, 1);
    let output = out_port("y", token, u64::from(hop));
    let complex = x.dtype == DType::C32;
    let kernel = move || {
        Ok(OverlapAddKernel {
            frame,
            step,
            complex,
        })
    };
    let made = ResolvedOp::new(vec![input], vec![output], kernel).flops(frame as f64);
    let made = made.gpu(move || kernels::overlap_add(frame as u64, step as u64));
    Ok(match hop == n {
        true => made,
        false => {
            if tail.bytes() > limits::MAX_INITIAL_BYTES {
                let message = format!("is {x}: a state of {} bytes", tail.bytes());
                let help = format!("the limit is {}", limits::MAX_INITIAL_BYTES);
                return Err(input_error("x", message, help));
            }
            let zeros = vec![0; tail.bytes() as usize];
            made.state("tail", tail, zeros)
        }
    })
}

/// Input and output 0 as floats, two for each element where they are complex.
fn floats<'a>(io: &mut Io<'a>, complex: bool) -> (&'a [f32], &'a mut [f32]) {
    match complex {
        true => (
            bytemuck::cast_slice(io.input::<Complex32>(0)),
            bytemuck::cast_slice_mut(io.output::<Complex32>(0)),
        ),
        false => (io.input(0), io.output(0)),
    }
}

struct OverlapAddKernel {
    /// Floats in a frame, and from frame to frame.
    frame: usize,
    step: usize,
    complex: bool,
}

impl Kernel for OverlapAddKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let (x, y) = floats(io, self.complex);
        let tail: &mut [f32] = match (self.frame == self.step, self.complex) {
            (true, _) => &mut [],
            (false, true) => bytemuck::cast_slice_mut(io.state::<Complex32>(0)),
            (false, false) => io.state(0),
        };
        let overlap = self.frame - self.step;
        let frames = x
            .chunks_exact(self.frame)
            .zip(y.chunks_exact_mut(self.step));
        for (x, y) in frames {
            let shared = overlap.min(self.step);
            for ((y, x), t) in y[..shared].iter_mut().zip(x).zip(tail.iter()) {
                *y = t + x;
            }
            y[shared..].copy_from_slice(&x[shared..self.step]);
            tail.copy_within(shared.., 0);
            let kept = overlap - shared;
            for (t, x) in tail[..kept].iter_mut().zip(&x[self.step..]) {
                *t += x;
            }
            tail[kept..].copy_from_slice(&x[self.step + kept..]);
        }
        Ok(())
    }
}

fn window(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let (x, n) = args.shaped_x(&FLOATS)?;
    args.need("kind", "a window")?;
    let kind = WindowKind::read(args, "kind")?.unwrap_or(WindowKind::Rectangular);
    let periodic = args.bool_or("periodic", true)?;
    // The kernel holds one weight for each float of a token.
    if x.bytes() / 4 > limits::MAX_TABLE_ELEMENTS {
        let message = format!("is {x}: a window of {} weights", x.bytes() / 4);
        let help = format!("the limit is {}", limits::MAX_TABLE_ELEMENTS);
        return Err(input_error("x", message, help));
    }
    let floats = (x.bytes() / 4) as usize / n as usize;
    let complex = x.dtype == DType::C32;
    let weights = move || -> Vec<f32> {
        let values = kind.values(n as usize, periodic).into_iter();
        values
            .flat_map(|v| std::iter::repeat_n(v as f32, floats))
            .collect()
    };
    let lowered = weights;
    let made = ResolvedOp::map(x, x.clone(), move || {
        Ok(WindowKernel {
            weights: weights(),
            complex,
        })
    });
    Ok(made.gpu(move || kernels::window(&lowered())))
}

struct WindowKernel {
    weights: Vec<f32>,
    complex: bool,
}

impl Kernel for WindowKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let (x, y) = floats(io, self.complex);
        simd::dispatch(Weigh {
            weights: &self.weights,
            x,
            y,
        });
        Ok(())
    }
}

struct Weigh<'a> {
    weights: &'a [f32],
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Loop for Weigh<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let n = self.weights.len();
        for (y, x) in self.y.chunks_exact_mut(n).zip(self.x.chunks_exact(n)) {
            for ((y, x), w) in y.iter_mut().zip(x).zip(self.weights) {
                *y = x * w;
            }
        }
    }
}

/// The last dimension, which transforms work along.
pub(super) fn last_dimension(x: &TokenType) -> Result<usize, OpError> {
    x.shape.last().map(|&n| n as usize).ok_or_else(|| {
        let help = "it takes tokens with a shape: put a `Frame` before it";
        input_error("x", format!("is {x}"), help)
    })
}
