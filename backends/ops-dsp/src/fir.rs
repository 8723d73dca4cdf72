//! Finite impulse response filters: decimating, interpolating, rational; and correlation with a template.

use num_complex::Complex32;
use zbmd_ir::{DType, TokenType};

use super::branches::BranchesKernel;
use super::design::{Design, MAX_TAPS};
use zbmd_gpu_ir::{self as kernels, FirPhase};
use zbmd_op::args::{Args, Numbers};
use zbmd_op::entry::{Entry, in_port, out_port};
use zbmd_op::kernel::{Io, Kernel, KernelFault};
use zbmd_op::simd::{self, Isa, Loop, Taps, dot};
use zbmd_op::{OpDoc, OpError, ResolvedOp};

/// Largest decimation and interpolation.
const MAX_FACTOR: u64 = 1 << 16;

pub(super) const OPS: [Entry; 2] = [
    Entry {
        name: "Fir",
        types: "x:f32|c32 -> y:f32|c32",
        positional: &["taps"],
        doc: OpDoc {
            summary: "y[m] = Σ h[k]·u[m·decimate − k], u being x with interpolate − 1 zeros after each sample",
            params: &[
                (
                    "taps",
                    "h: numbers or a tensor; complex taps as [re, im] pairs or a c32 tensor",
                ),
                (
                    "design",
                    "instead of taps, a windowed sinc: {\"kind\": \"lowpass\" | \"highpass\" | \"bandpass\", \
                     \"cutoff\": Hz or [low, high], \"rate\": Hz, \"taps\": n, \"window\": \"hamming\" (default), \
                     \"hann\", \"blackman\", \"rectangular\" or {\"kaiser\": beta}, \"gain\": 1.0}; with \
                     interpolation, `rate` is that of u, and a gain of `interpolate` keeps the level",
                ),
                ("decimate", "samples consumed in a firing (default 1)"),
                ("interpolate", "samples produced in a firing (default 1)"),
            ],
            ports: "`x`: f32 or c32, rate decimate, window decimate + ceil(taps / interpolate) − 1 -> `y`, \
                    rate interpolate; c32 if x or the taps are",
            example: "Fir(design: {\"kind\": \"lowpass\", \"cutoff\": 100e3, \"rate\": 2e6, \"taps\": 64}, decimate: 8)",
        },
        make: fir,
    },
    Entry {
        name: "Correlate",
        types: "x:f32|c32 -> y:f32|c32",
        positional: &["template"],
        doc: OpDoc {
            summary: "y[k] = Σ conj(t[i])·x[k − (len − 1) + i]: how much the last samples look like the template",
            params: &[(
                "template",
                "t: numbers or a tensor; complex as [re, im] pairs or a c32 tensor",
            )],
            ports: "`x`: f32 or c32, rate 1, window len -> `y`; c32 if x or the template are",
            example: "Correlate([1.0, -1.0, 1.0])",
        },
        make: correlate,
    },
];

/// Coefficients, real and, where there are any, imaginary.
#[derive(Clone)]
struct Coefficients {
    re: Vec<f64>,
    im: Option<Vec<f64>>,
}

fn coefficients(args: &Args<'_>, name: &str) -> Result<Coefficients, OpError> {
    let Numbers { shape, data } = args.numbers(name)?;
    let coefficients = match shape[..] {
        [_] => Coefficients { re: data, im: None },
        [_, 2] => {
            let (re, im) = data.chunks_exact(2).map(|p| (p[0], p[1])).unzip();
            Coefficients { re, im: Some(im) }
        }
        _ => {
            let message = format!("has the shape {shape:?}");
            return Err(args.error(name, message, "give a list of numbers or of [re, im] pairs"));
        }
    };
    if coefficients.re.len() as u64 > MAX_TAPS {
        let message = format!("has {} elements", coefficients.re.len());
        return Err(args.error(name, message, format!("the limit is {MAX_TAPS}")));
    }
    Ok(coefficients)
}

fn fir(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let decimate = args.uint_or("decimate", 1, 1, MAX_FACTOR)? as usize;
    let interpolate = args.uint_or("interpolate", 1, 1, MAX_FACTOR)? as usize;
    let (design, given) = match (Design::read(args)?, args.get("taps")) {
        (Some(_), Some(_)) => {
            return Err(args.error("design", "stands beside `taps`", "leave one of them out"));
        }
        (None, None) => return Err(args.error("taps", "is missing", "give `taps` or `design`")),
        (design, None) => (design, None),
        (design, Some(_)) => (design, Some(coefficients(args, "taps")?)),
    };
    let len = match (&design, &given) {
        (Some(design), _) => design.taps,
        (None, given) => given.as_ref().map_or(0, |c| c.re.len()),
    };
    let complex = given.as_ref().is_some_and(|c| c.im.is_some());
    let taps = move || {
        given.or(design.map(|d| Coefficients {
            re: d.run(),
            im: None,
        }))
    };
    build(args, len, complex, decimate, interpolate, move || {
        let taps = taps().unwrap_or(Coefficients {
            re: Vec::new(),
            im: None,
        });
        let phase = |h: &[f64], p: usize| phase_taps(h, p, interpolate);
        let phases = (0..interpolate).map(|j| {
            let p = (j * decimate) % interpolate;
            let im = taps.im.as_ref().map(|im| phase(im, p));
            (j * decimate / interpolate, phase(&taps.re, p), im)
        });
        phases.collect()
    })
}

/// `h[p], h[p + L], h[p + 2L]`, … the other way round, as the samples lie; zeros where there are no taps.
fn phase_taps(h: &[f64], p: usize, interpolate: usize) -> Vec<f32> {
    let len = h.len().div_ceil(interpolate);
    (0..len)
        .rev()
        .map(|i| h.get(p + i * interpolate).map_or(0.0, |&t| t as f32))
        .collect()
}

fn correlate(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let Coefficients { re, im } = coefficients(args, "template")?;
    let len = re.len();
    let complex = im.is_some();
    build(args, len, complex, 1, 1, move || {
        let narrow = |v: Vec<f64>| v.into_iter().map(|t| t as f32).collect::<Vec<f32>>();
        let im = im.map(|im| narrow(im.into_iter().map(|t| -t).collect()));
        vec![(0, narrow(re), im)]
    })
}

type PhaseList = Vec<(usize, Vec<f32>, Option<Vec<f32>>)>;

fn build(
    args: &Args<'_>,
    len: usize,
    complex_taps: bool,
    decimate: usize,
    interpolate: usize,
    phases: impl FnOnce() -> PhaseList + Clone + Send + Sync + 'static,
) -> Result<ResolvedOp, OpError> {
    let dtype = args.scalar_x(&[DType::F32, DType::C32])?;
    let complex_x = dtype == DType::C32;
    let per_phase = len.div_ceil(interpolate);
    let window = decimate + per_phase - 1;
    let y = if complex_taps { DType::C32 } else { dtype };
    let lowered = phases.clone();
    let many_branches = interpolate >= simd::BRANCHES && !complex_x && !complex_taps;
    let make = move |variant: usize| {
        let group = GROUPS[variant].1;
        if many_branches {
            let branches = phases().into_iter();
            let branches = branches.map(|(offset, taps, _)| (offset, taps)).collect();
            return Ok(FilterKernel::Branches(BranchesKernel::new(
                branches, decimate, group,
            )));
        }
        let lay = |taps: Vec<f32>| {
            if complex_x {
                Taps::pairs(&taps)
            } else {
                Taps::new(taps)
            }
        };
        let phases = phases().into_iter();
        let phases = phases.map(|(offset, re, im)| FilterPhase {
            offset,
            re: lay(re),
            im: im.map(lay),
        });
        let phases = phases.collect();
        Ok(FilterKernel::Dots(FirKernel {
            phases,
            decimate,
            complex_x,
            complex_taps,
            group,
        }))
    };
    let input = in_port(
        "x",
        TokenType::scalar(dtype),
        decimate as u64,
        window as u64,
    );
    let output = out_port("y", TokenType::scalar(y), interpolate as u64);
    let products = per_phase * (1 + usize::from(complex_x)) * (1 + usize::from(complex_taps));
    let flops = if many_branches {
        // No sum goes across a vector.
        interpolate as f64 * (0.55 * products as f64 + 10.0)
    } else {
        // Setting up and adding up a dot product costs as much as some tens of taps.
        interpolate as f64 * (1.4 * products as f64 + 80.0)
    };
    let variants = GROUPS.iter().map(|(name, _)| *name).collect();
    let made = ResolvedOp::in_variants(vec![input], vec![output], variants, make).flops(flops);
    Ok(made.gpu(move || {
        let phases = lowered().into_iter();
        let phases = phases.map(|(offset, re, im)| FirPhase { offset, re, im });
        kernels::fir(
            &phases.collect::<Vec<_>>(),
            decimate,
            complex_x,
            complex_taps,
        )
    }))
}

/// The kernel of a filter.
enum FilterKernel {
    Dots(FirKernel),
    Branches(BranchesKernel),
}

impl Kernel for FilterKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        match self {
            Self::Dots(kernel) => kernel.fire(io),
            Self::Branches(kernel) => kernel.fire(io),
        }
    }
}

/// How one of the `interpolate` outputs of a firing is made.
struct FilterPhase {
    /// First sample, counted from the window's.
    offset: usize,
    re: Taps,
    im: Option<Taps>,
}

struct FirKernel {
    phases: Vec<FilterPhase>,
    decimate: usize,
    complex_x: bool,
    complex_taps: bool,
    group: Group,
}

impl Kernel for FirKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let firings = io.firings();
        let x: &[f32] = match self.complex_x {
            true => bytemuck::cast_slice(io.input::<Complex32>(0)),
            false => io.input(0),
        };
        let y: &mut [f32] = match self.complex_x || self.complex_taps {
            true => bytemuck::cast_slice_mut(io.output::<Complex32>(0)),
            false => io.output(0),
        };
        match (self.complex_x, self.complex_taps) {
            (false, false) => simd::dispatch_widest(Run::<false, false> {
                fir: self,
                firings,
                x,
                y,
            }),
            (true, false) => simd::dispatch_widest(Run::<true, false> {
                fir: self,
                firings,
                x,
                y,
            }),
            (false, true) => simd::dispatch_widest(Run::<false, true> {
                fir: self,
                firings,
                x,
                y,
            }),
            (true, true) => simd::dispatch_widest(Run::<true, true> {
                fir: self,
                firings,
                x,
                y,
            }),
        }
        Ok(())
    }
}

/// All firings of a call, for complex (`X`) samples and complex (`H`) taps.
struct Run<'a, const X: bool, const H: bool> {
    fir: &'a FirKernel,
    firings: usize,
    x: &'a [f32],
    y: &'a mut [f32],
}

/// How many firings' dot products share the loads of taps: more of them, fewer loads, but registers are few. Each is
/// the same sum either way.
#[derive(Clone, Copy)]
pub(super) enum Group {
    Four,
    Six,
}

/// The variants.
const GROUPS: [(&str, Group); 2] = [("4-firings", Group::Four), ("6-firings", Group::Six)];

impl<const X: bool, const H: bool> Loop for Run<'_, X, H> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(mut self, isa: Isa<FMA>) {
        let first = match self.fir.group {
            Group::Four => self.groups::<FMA, 4>(isa, 0),
            Group::Six => self.groups::<FMA, 6>(isa, 0),
        };
        self.groups::<FMA, 1>(isa, first);
    }
}

impl<const X: bool, const H: bool> Run<'_, X, H> {
    /// Groups of R firings from `first` on, as long as there are so many; returns the firing after them.
    #[inline(always)]
    fn groups<const FMA: bool, const R: usize>(&mut self, isa: Isa<FMA>, first: usize) -> usize {
        let mut first = first;
        while first + R <= self.firings {
            self.group::<FMA, R>(isa, first);
            first += R;
        }
        first
    }

    /// Firings `[first, first + R)`.
    #[inline(always)]
    fn group<const FMA: bool, const R: usize>(&mut self, isa: Isa<FMA>, first: usize) {
        let (wide_x, wide_y) = (1 + usize::from(X), 1 + usize::from(X | H));
        let stride = self.fir.decimate * wide_x;
        let outputs = self.fir.phases.len();
        for (j, phase) in self.fir.phases.iter().enumerate() {
            let x = &self.x[first * stride + phase.offset * wide_x..];
            let re = dot::<FMA, R>(isa, x, stride, &phase.re);
            let im = match &phase.im {
                Some(im) if H => dot::<FMA, R>(isa, x, stride, im),
                _ => [(0.0, 0.0); R],
            };
            for r in 0..R {
                let at = ((first + r) * outputs + j) * wide_y;
                let ((re_even, re_odd), (im_even, im_odd)) = (re[r], im[r]);
                // Complex samples lie as pairs: even sums are of their real parts.
                let (a, b) = match (X, H) {
                    (false, false) => {
                        self.y[at] = re_even + re_odd;
                        continue;
                    }
                    (false, true) => (re_even + re_odd, im_even + im_odd),
                    (true, false) => (re_even, re_odd),
                    (true, true) => (re_even - im_odd, re_odd + im_even),
                };
                self.y[at..at + 2].copy_from_slice(&[a, b]);
            }
        }
    }
}
