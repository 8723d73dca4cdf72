//! Ops that move tokens and elements without looking at them.

use zbmd_ir::math::gcd_u64;
use zbmd_ir::{InPlace, InPort, OutPort, TokenType, Value, limits};

use zbmd_gpu_ir::{self as kernels, Dim, KernelPlan, Part};
use zbmd_op::args::{Args, input_error};
use zbmd_op::entry::{Entry, in_port, out_port};
use zbmd_op::kernel::{Io, Kernel, KernelFault};
use zbmd_op::{OpDoc, OpError, PortPhases, ResolvedOp};

pub(super) const OPS: [Entry; 8] = [
    Entry {
        name: "Delay",
        types: "x:T -> y:T; T: any",
        positional: &["tokens"],
        doc: OpDoc {
            summary: "y[k] = x[k − tokens]; what comes before the first token are the channel's initial tokens",
            params: &[("tokens", "how many")],
            ports: "`x`: any type, window tokens + 1 -> `y`, one token a firing",
            example: "Delay(16)",
        },
        make: delay,
    },
    Entry {
        name: "Fork",
        types: "x:T -> y*:T; T: any",
        positional: &["outputs"],
        doc: OpDoc {
            summary: "the token on every output (a channel with several readers needs none)",
            params: &[("outputs", "how many (default 2, at most 31)")],
            ports: "`x`: any type -> `y0`, `y1`, …, one token a firing",
            example: "Fork(3)",
        },
        make: fork,
    },
    Entry {
        name: "Split",
        types: "x:T -> y*:T; T: any",
        positional: &["outputs"],
        doc: OpDoc {
            summary: "deinterleaves: run i of every n to output i",
            params: &[
                ("outputs", "n (default 2, at most 31)"),
                (
                    "run",
                    "tokens in a row to one output (default 1), or a list of how many to each",
                ),
            ],
            ports: "`x`: any type, rate the sum of all runs -> `y0`, `y1`, …, run tokens a firing",
            example: "Split(2)",
        },
        make: split,
    },
    Entry {
        name: "Merge",
        types: "x*:T -> y:T; T: any",
        positional: &["inputs"],
        doc: OpDoc {
            summary: "interleaves: a run of tokens from each input in turn",
            params: &[
                ("inputs", "how many (default: as many as channels name)"),
                (
                    "run",
                    "tokens in a row from one input (default 1), or a list of how many from each",
                ),
            ],
            ports: "`x0`, `x1`, …: one type, run tokens a firing -> `y`, rate the sum of all runs",
            example: "Merge()",
        },
        make: merge,
    },
    Entry {
        name: "Reshape",
        types: "x:T -> y:T; T: any",
        positional: &["shape"],
        doc: OpDoc {
            summary: "the same elements in tokens of another shape; rates make up for the sizes",
            params: &[("shape", "dimensions, [] for scalars")],
            ports: "`x`: any type, rate a -> `y`, rate b, a and b being the smallest that fit",
            example: "Reshape([4, 128])",
        },
        make: reshape,
    },
    Entry {
        name: "Transpose",
        types: "x:T -> y:T; T: any",
        positional: &["axes"],
        doc: OpDoc {
            summary: "permutes dimensions: dimension i of y is dimension axes[i] of x",
            params: &[("axes", "the permutation (default: reversed)")],
            ports: "`x`: any type -> `y`, one token a firing",
            example: "Transpose([1, 0])",
        },
        make: transpose,
    },
    Entry {
        name: "Decimate",
        types: "x:T -> y:T; T: any",
        positional: &["factor"],
        doc: OpDoc {
            summary: "keeps the first of every `factor` tokens",
            params: &[("factor", "tokens consumed in a firing")],
            ports: "`x`: any type, rate factor -> `y`, rate 1",
            example: "Decimate(4)",
        },
        make: decimate,
    },
    Entry {
        name: "Hold",
        types: "x:T -> y:T; T: any",
        positional: &["factor"],
        doc: OpDoc {
            summary: "repeats every token",
            params: &[("factor", "tokens produced in a firing")],
            ports: "`x`: any type -> `y`, rate factor",
            example: "Hold(4)",
        },
        make: hold,
    },
];

/// Operations that moving one small piece is worth.
const PIECE: f64 = 18.0;

fn x_in(token: &TokenType, rate: u64, window: u64) -> Vec<InPort> {
    vec![in_port("x", token.clone(), rate, window)]
}

fn y_out(token: &TokenType, rate: u64) -> Vec<OutPort> {
    vec![out_port("y", token.clone(), rate)]
}

fn delay(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let tokens = args.uint("tokens", 0, limits::MAX_RATE - 1)?;
    let x = args.x()?;
    // The window's oldest token is the one wanted: outputs are the beginning of the input.
    let bytes = x.bytes();
    let made = ResolvedOp::new(x_in(x, 1, tokens + 1), y_out(x, 1), || Ok(Straight));
    Ok(made.gpu(move || Some(kernels::straight(bytes, 1))))
}

fn reshape(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let x = args.x()?;
    let Some(shape) = args.shape_opt("shape")? else {
        return Err(args.error("shape", "is missing", "give a list of dimensions"));
    };
    let y = TokenType::new(x.dtype, shape);

    // The smallest rates at which both sides carry equally many elements.
    let common_factor = gcd_u64(x.elements(), y.elements());
    let consumed = y.elements() / common_factor;
    let produced = x.elements() / common_factor;
    Ok(renamed(
        in_port("x", x.clone(), consumed, consumed),
        out_port("y", y, produced),
    ))
}

/// Outputs are the first bytes of the input.
struct Straight;

impl Kernel for Straight {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let y = io.output_bytes(0);
        if !io.shares(0, 0) {
            y.copy_from_slice(&io.input_bytes(0)[..y.len()]);
        }
        Ok(())
    }
}

fn numbered(prefix: &str, count: u64) -> impl Iterator<Item = String> {
    (0..count).map(move |i| format!("{prefix}{i}"))
}

/// Outputs `y0`, `y1`, …, by their rates.
fn outputs(token: &TokenType, rates: &[u64]) -> Vec<OutPort> {
    let names = numbered("y", rates.len() as u64);
    names
        .zip(rates)
        .map(|(name, &rate)| out_port(&name, token.clone(), rate))
        .collect()
}

/// Tokens in a row to or from each of so many ports.
fn runs(args: &Args<'_>, count: u64, ports: &str) -> Result<Vec<u64>, OpError> {
    if !matches!(args.get("run"), Some(Value::List(_))) {
        let run = args.uint_or("run", 1, 1, limits::MAX_RATE)?;
        return Ok(vec![run; count as usize]);
    }
    let listed = args.ints_opt("run")?.unwrap_or_default();
    if listed.len() as u64 != count {
        let message = format!("has {} counts for {count} {ports}", listed.len());
        return Err(args.error("run", message, "give one count for each, or one for all"));
    }
    let counts = listed.iter().map(|&run| {
        let count = u64::try_from(run).ok();
        let count = count.filter(|count| (1..=limits::MAX_RATE).contains(count));
        count.ok_or_else(|| {
            let help = format!("counts are 1 to {}", limits::MAX_RATE);
            args.error("run", format!("has the count {run}"), help)
        })
    });
    counts.collect()
}

/// The runs that a firing of `Split` or `Merge` moves one after another, by bytes.
#[derive(Clone)]
struct Runs {
    /// What each moves.
    pieces: Vec<usize>,
    /// What those before it move.
    before: Vec<usize>,
    /// What all move.
    all: usize,
}

impl Runs {
    fn of(runs: &[u64], token: &TokenType) -> Self {
        let mut all = 0usize;
        let mut made = Self {
            pieces: Vec::new(),
            before: Vec::new(),
            all: 0,
        };
        for &run in runs {
            let piece = run.saturating_mul(token.bytes()) as usize;
            made.pieces.push(piece);
            made.before.push(all);
            all = all.saturating_add(piece);
        }
        made.all = all;
        made
    }

    /// The kernels for GPUs, one for each run: `part` makes them of a port, its bytes and those before it.
    fn gpu_parts(&self, part: impl Fn(u32, u64, u64) -> Part) -> Option<KernelPlan> {
        let ports = (0u32..).zip(self.pieces.iter().zip(&self.before));
        let parts = ports.map(|(port, (&piece, &before))| part(port, piece as u64, before as u64));
        kernels::strided_parts(parts)
    }
}

/// Each run is a phase: one port moves its tokens, and the port of all runs as many.
fn phases_of_runs(runs: &[u64]) -> (Vec<Vec<u64>>, Vec<u64>) {
    let one_port = runs.iter().enumerate().map(|(port, &run)| {
        let mut rates = vec![0; runs.len()];
        rates[port] = run;
        rates
    });
    (one_port.collect(), runs.to_vec())
}

fn fork(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let x = args.x()?;
    let count = args.uint_or("outputs", 2, 1, Io::MAX_MUT_PORTS as u64)?;
    let outputs = outputs(x, &vec![1; count as usize]);
    let count = count as u32;
    let bytes = x.bytes();
    let made = ResolvedOp::new(x_in(x, 1, 1), outputs, || Ok(Fork));
    Ok(made.gpu(move || Some(kernels::straight(bytes, count))))
}

struct Fork;

impl Kernel for Fork {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        for i in 0..io.outputs() {
            io.output_bytes(i).copy_from_slice(io.input_bytes(0));
        }
        Ok(())
    }
}

fn split(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let x = args.x()?;
    let count = args.uint_or("outputs", 2, 1, Io::MAX_MUT_PORTS as u64)?;
    let counts = runs(args, count, "outputs")?;
    let rate = counts.iter().copied().fold(0, u64::saturating_add);
    let runs = Runs::of(&counts, x);
    let gpu_runs = runs.clone();

    // Output i may lie where piece i of the input lies.
    let pairs: Vec<InPlace> = (0u32..)
        .zip(&runs.before)
        .map(|(output, &before)| InPlace {
            input: 0,
            output,
            at_bytes: before as u64,
        })
        .collect();
    let (written, read) = phases_of_runs(&counts);
    let made = ResolvedOp::new(x_in(x, rate, rate), outputs(x, &counts), move || {
        Ok(Split { runs })
    });
    let made = made.with_in_place_pairs(pairs).with_phases(PortPhases {
        inputs: vec![read],
        outputs: written,
    });
    Ok(made.flops(PIECE * count as f64).gpu(move || {
        gpu_runs.gpu_parts(|output, piece, before| Part {
            input: 0,
            output,
            firing_steps: (gpu_runs.all as u64, piece),
            starts: (before, 0),
            piece,
        })
    }))
}

struct Split {
    runs: Runs,
}

impl Kernel for Split {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let Runs {
            pieces,
            before,
            all,
        } = &self.runs;
        for (i, (&piece, &before)) in pieces.iter().zip(before).enumerate() {
            if io.shares(0, i) {
                continue;
            }
            // Of one firing, the other pieces may lie under their outputs.
            let end = match io.firings() {
                1 => before + piece,
                firings => firings * all,
            };
            let x = io.part_bytes(0, before..end);
            copy_tokens(x, *all, io.output_bytes(i), piece, piece);
        }
        Ok(())
    }
}

fn merge(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let count = input_count(args)?;
    let counts = runs(args, count, "inputs")?;
    let inputs = alike_inputs(args, &counts)?;
    let rate = counts.iter().copied().fold(0, u64::saturating_add);
    let output = out_port("y", inputs[0].token.clone(), rate);
    let (read, written) = phases_of_runs(&counts);
    Ok(merged(inputs, &counts, output).with_phases(PortPhases {
        inputs: read,
        outputs: vec![written],
    }))
}

/// How many inputs `x0`, `x1`, … there are: as said, or else as many as channels name.
pub(super) fn input_count(args: &Args<'_>) -> Result<u64, OpError> {
    let named = args
        .connected()
        .filter_map(|c| c.strip_prefix('x')?.parse::<u64>().ok())
        .max();
    let natural = named
        .map_or(2, |last| last.saturating_add(1))
        .clamp(1, limits::MAX_PORTS as u64);
    args.uint_or("inputs", natural, 1, limits::MAX_PORTS as u64)
}

/// Inputs `x0`, `x1`, … of one type, by their rates.
pub(super) fn alike_inputs(args: &Args<'_>, rates: &[u64]) -> Result<Vec<InPort>, OpError> {
    let mut inputs: Vec<InPort> = Vec::new();
    let names = numbered("x", rates.len() as u64);
    for (i, (name, &rate)) in names.zip(rates).enumerate() {
        let token = args.cx.input(&name, i == 0)?;
        if let Some(first) = inputs.first()
            && first.token != *token
        {
            let message = format!("is {token}, but `x0` is {}", first.token);
            return Err(input_error(&name, message, "all inputs have one type"));
        }
        inputs.push(in_port(&name, token.clone(), rate, rate));
    }
    Ok(inputs)
}

/// An output that a firing fills with its runs of tokens of all inputs, one behind the other.
pub(super) fn merged(inputs: Vec<InPort>, counts: &[u64], output: OutPort) -> ResolvedOp {
    let count = inputs.len();
    let runs = Runs::of(counts, &inputs[0].token);
    let gpu_runs = runs.clone();

    // Input i may lie where piece i of the output lies.
    let pairs: Vec<InPlace> = (0u32..)
        .zip(&runs.before)
        .map(|(input, &before)| InPlace {
            input,
            output: 0,
            at_bytes: before as u64,
        })
        .collect();
    let made = ResolvedOp::new(inputs, vec![output], move || Ok(Merge { runs }));
    let made = made.with_in_place_pairs(pairs);
    made.flops(PIECE * count as f64).gpu(move || {
        gpu_runs.gpu_parts(|input, piece, before| Part {
            input,
            output: 0,
            firing_steps: (piece, gpu_runs.all as u64),
            starts: (0, before),
            piece,
        })
    })
}

/// The input's bytes, as they are, in tokens of another type.
pub(super) fn renamed(x: InPort, y: OutPort) -> ResolvedOp {
    let bytes = x.rate.saturating_mul(x.token.bytes());
    let made = ResolvedOp::new(vec![x], vec![y], || Ok(Straight));
    made.over([0])
        .gpu(move || Some(kernels::straight(bytes, 1)))
}

struct Merge {
    runs: Runs,
}

impl Kernel for Merge {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let y = io.output_bytes(0);
        let Runs {
            pieces,
            before,
            all,
        } = &self.runs;
        for (i, (&piece, &before)) in pieces.iter().zip(before).enumerate() {
            if !io.shares(i, 0) {
                copy_tokens(io.input_bytes(i), piece, &mut y[before..], *all, piece);
            }
        }
        Ok(())
    }
}

fn decimate(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let x = args.x()?;
    let factor = args.uint("factor", 1, limits::MAX_RATE)?;
    let token = x.bytes() as usize;
    let stride = x.bytes().saturating_mul(factor) as usize;

    let make = move || Ok(Decimate { token, stride });
    Ok(
        ResolvedOp::new(x_in(x, factor, factor), y_out(x, 1), make).gpu(move || {
            let token = token as u64;
            let stride = stride as u64;
            kernels::strided(
                Dim {
                    size: 1,
                    from: stride,
                    to: token,
                },
                &[],
                token,
            )
        }),
    )
}

struct Decimate {
    token: usize,
    stride: usize,
}

impl Kernel for Decimate {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        copy_tokens(
            io.input_bytes(0),
            self.stride,
            io.output_bytes(0),
            self.token,
            self.token,
        );
        Ok(())
    }
}

fn hold(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let x = args.x()?;
    let factor = args.uint("factor", 1, limits::MAX_RATE)?;
    let token = x.bytes() as usize;

    let make = move || {
        Ok(Hold {
            token,
            factor: factor as usize,
        })
    };
    let made = ResolvedOp::new(x_in(x, 1, 1), y_out(x, factor), make).flops(PIECE * factor as f64);
    Ok(made.gpu(move || {
        let token = token as u64;
        let firing = Dim {
            size: 1,
            from: token,
            to: token.checked_mul(factor)?,
        };
        kernels::strided(
            firing,
            &[Dim {
                size: factor,
                from: 0,
                to: token,
            }],
            token,
        )
    }))
}

struct Hold {
    token: usize,
    factor: usize,
}

impl Kernel for Hold {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let x = io.input_bytes(0);
        let y = io.output_bytes(0);
        match self.token {
            1 => repeat::<1>(x, y, self.factor),
            2 => repeat::<2>(x, y, self.factor),
            4 => repeat::<4>(x, y, self.factor),
            8 => repeat::<8>(x, y, self.factor),
            token => {
                let groups = y
                    .chunks_exact_mut(token * self.factor)
                    .zip(x.chunks_exact(token));
                for (y, x) in groups {
                    y.chunks_exact_mut(token).for_each(|y| y.copy_from_slice(x));
                }
            }
        }
        Ok(())
    }
}

fn repeat<const N: usize>(x: &[u8], y: &mut [u8], factor: usize) {
    let x = x.as_chunks::<N>().0;
    let y = y.as_chunks_mut::<N>().0;
    y.chunks_exact_mut(factor)
        .zip(x)
        .for_each(|(y, x)| y.fill(*x));
}

/// Copies a piece of `size` bytes from every `from` bytes of x to every `to` bytes of y, while both have some.
fn copy_tokens(x: &[u8], from: usize, y: &mut [u8], to: usize, size: usize) {
    // Pieces of a size known to the compiler are moves instead of calls; they lie on multiples of it.
    let is_aligned = from.is_multiple_of(size) && to.is_multiple_of(size);
    match size {
        _ if !is_aligned => copy_pieces(x, from, y, to, size),
        1 => copy_sized::<1>(x, from, y, to),
        2 => copy_sized::<2>(x, from, y, to),
        4 => copy_sized::<4>(x, from, y, to),
        8 => copy_sized::<8>(x, from, y, to),
        _ => copy_pieces(x, from, y, to, size),
    }
}

fn copy_pieces(x: &[u8], from: usize, y: &mut [u8], to: usize, size: usize) {
    for (y, x) in y.chunks_mut(to).zip(x.chunks(from)) {
        y[..size].copy_from_slice(&x[..size]);
    }
}

fn copy_sized<const N: usize>(x: &[u8], from: usize, y: &mut [u8], to: usize) {
    let x = x.as_chunks::<N>().0;
    let y = y.as_chunks_mut::<N>().0;
    for (y, x) in y.iter_mut().step_by(to / N).zip(x.iter().step_by(from / N)) {
        *y = *x;
    }
}

fn transpose(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let x = args.x()?;
    let rank = x.shape.len();
    let axes: Vec<usize> = match args.ints_opt("axes")? {
        None => (0..rank).rev().collect(),
        Some(axes) => {
            let mut sorted = axes.clone();
            sorted.sort_unstable();
            if sorted != (0..rank as i64).collect::<Vec<_>>() {
                let message =
                    format!("{axes:?} is not a permutation of the {rank} dimensions of {x}");
                return Err(args.error("axes", message, "name each dimension once, from 0"));
            }
            axes.into_iter().map(|a| a as usize).collect()
        }
    };

    let shape: Vec<u32> = axes.iter().map(|&axis| x.shape[axis]).collect();
    // Elements of the input from one index of a dimension to the next.
    let mut strides = vec![1_usize; rank];
    for i in (1..rank).rev() {
        strides[i - 1] = strides[i] * x.shape[i] as usize;
    }
    let dims: Vec<(usize, usize)> = axes
        .iter()
        .map(|&a| (x.shape[a] as usize, strides[a]))
        .collect();
    let elements = x.elements() as usize;
    let size = x.dtype.size_bytes() as usize;
    let y = TokenType::new(x.dtype, shape);

    // The same for the GPU, in bytes. The output is dense: a dimension's step is what all inner ones write.
    let mut written = (elements * size) as u64;
    let steps = dims.iter().map(|&(count, step)| {
        written /= (count as u64).max(1);
        Dim {
            size: count as u64,
            from: (step * size) as u64,
            to: written,
        }
    });
    let steps: Vec<Dim> = steps.collect();
    let make = move || {
        Ok(Transpose {
            dims,
            elements,
            size,
        })
    };
    Ok(ResolvedOp::map(x, y, make)
        .flops(8.0 * elements as f64)
        .gpu(move || {
            let token = (elements * size) as u64;
            kernels::strided(
                Dim {
                    size: 1,
                    from: token,
                    to: token,
                },
                &steps,
                size as u64,
            )
        }))
}

struct Transpose {
    /// For each dimension of the output: its size, and the step of the input in elements.
    dims: Vec<(usize, usize)>,
    elements: usize,
    size: usize,
}

impl Kernel for Transpose {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let x = io.input_bytes(0);
        let y = io.output_bytes(0);
        match self.size {
            1 => self.all::<1>(x, y),
            2 => self.all::<2>(x, y),
            4 => self.all::<4>(x, y),
            _ => self.all::<8>(x, y),
        }
        Ok(())
    }
}

impl Transpose {
    fn all<const N: usize>(&self, x: &[u8], y: &mut [u8]) {
        let x = x.as_chunks::<N>().0;
        let y = y.as_chunks_mut::<N>().0;
        for (x, y) in x
            .chunks_exact(self.elements)
            .zip(y.chunks_exact_mut(self.elements))
        {
            scatter(&self.dims, x, y);
        }
    }
}

/// Fills y in order, stepping through x by the strides of `dims`. Recursion is as deep as the rank.
fn scatter<T: Copy>(dims: &[(usize, usize)], x: &[T], y: &mut [T]) {
    let [(n, stride), inner @ ..] = dims else {
        y.copy_from_slice(&x[..y.len()]);
        return;
    };
    if inner.is_empty() {
        y.iter_mut()
            .zip(x.iter().step_by(*stride))
            .for_each(|(y, x)| *y = *x);
        return;
    }
    let part = y.len() / n;
    for (i, y) in y.chunks_exact_mut(part).enumerate() {
        scatter(inner, &x[i * stride..], y);
    }
}
