//! Matrix products and reductions.

use num_complex::{Complex32, Complex64};
use zbmd_ir::{DType, TokenType};

use zbmd_gpu_ir::{self as kernels, MatMul, Reduction};
use zbmd_op::args::{Args, Numbers, input_error};
use zbmd_op::entry::{Entry, in_port, out_port};
use zbmd_op::kernel::{Element, Io, Kernel, KernelFault};
use zbmd_op::simd::{self, Isa, Loop, fma};
use zbmd_op::{OpDoc, OpError, ResolvedOp};

const REDUCED: [DType; 5] = [DType::F32, DType::F64, DType::I32, DType::I64, DType::C32];

pub(super) const OPS: [Entry; 3] = [
    Entry {
        name: "MatMul",
        types: "x:f32|c32 y?:f32|c32 -> y:f32|c32",
        positional: &["b"],
        doc: OpDoc {
            summary: "matrix product x·b, summed in order of the inner dimension",
            params: &[(
                "b",
                "the right matrix [k, n], or vector [k]; left out: input `y`",
            )],
            ports: "`x`: f32 or c32 [m, k] or [k] (and `y`: [k, n] or [k]) -> `y`: without the inner \
                    dimension, one token a firing",
            example: "MatMul([[0.0, 1.0], [1.0, 0.0]])",
        },
        make: matmul,
    },
    Entry {
        name: "Sum",
        types: "x:T -> y:T; T: f32|f64|i32|i64|c32",
        positional: &["axis"],
        doc: OpDoc {
            summary: "sum over one dimension or all elements; floats are added up in f64",
            params: &[(
                "axis",
                "the dimension, counted from 0, or from −1 backwards (default: all)",
            )],
            ports: "`x`: f32, f64, i32, i64 or c32 -> `y` without the dimension, one token a firing",
            example: "Sum(axis: 0)",
        },
        make: |a| reduce(a, false),
    },
    Entry {
        name: "Mean",
        types: "x:T -> y:T; T: f32|f64|c32",
        positional: &["axis"],
        doc: OpDoc {
            summary: "mean over one dimension or all elements; added up in f64",
            params: &[(
                "axis",
                "the dimension, counted from 0, or from −1 backwards (default: all)",
            )],
            ports: "`x`: f32, f64 or c32 -> `y` without the dimension, one token a firing",
            example: "Mean()",
        },
        make: |a| reduce(a, true),
    },
];

fn matmul(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let x = args.x_of(&[DType::F32, DType::C32])?;
    let given = if args.get("b").is_some() {
        Some(args.numbers("b")?)
    } else {
        None
    };
    let (b, constant) = match given {
        None => {
            let b = args.cx.input("y", false)?.clone();
            if b.dtype != x.dtype {
                let message = format!("is {b}, but `x` is {x}");
                return Err(input_error("y", message, "give both one dtype"));
            }
            (b, None)
        }
        Some(Numbers {
            mut shape,
            mut data,
        }) => {
            // Complex constants come as pairs, real ones may meet complex x.
            let stored = match args.get("b") {
                Some(zbmd_ir::Value::Tensor(_, token)) => Some(token.dtype),
                _ => None,
            };
            match (x.dtype, stored) {
                (DType::C32, Some(DType::C32)) => {
                    shape.pop();
                }
                (DType::F32, Some(DType::C32)) => {
                    return Err(args.error("b", "is c32, `x` is f32", "convert `x` to c32"));
                }
                (DType::C32, _) => data = data.into_iter().flat_map(|re| [re, 0.0]).collect(),
                _ => {}
            }
            let data: Vec<f32> = data.into_iter().map(|v| v as f32).collect();
            (TokenType::new(x.dtype, shape), Some(data))
        }
    };
    let (m, k, n, shape) = product_shape(args, x, &b, constant.is_some())?;
    let y = TokenType::new(x.dtype, shape);
    let mut inputs = vec![in_port("x", x.clone(), 1, 1)];
    if constant.is_none() {
        inputs.push(in_port("y", b, 1, 1));
    }
    let complex = x.dtype == DType::C32;
    let lowered = MatMul {
        m,
        k,
        n,
        complex,
        constant: constant.clone(),
    };
    let make = move || {
        Ok(MatMulKernel {
            m,
            k,
            n,
            complex,
            constant,
        })
    };
    let flops = 1.5 * (m * k * n) as f64 * if complex { 8.0 } else { 1.0 } + 20.0;
    let made = ResolvedOp::new(inputs, vec![out_port("y", y, 1)], make).flops(flops);
    Ok(made.gpu(move || kernels::matmul(&lowered)))
}

/// m, k, n and the shape of the product.
fn product_shape(
    args: &Args<'_>,
    x: &TokenType,
    b: &TokenType,
    constant: bool,
) -> Result<(usize, usize, usize, Vec<u32>), OpError> {
    let (rows, inner) = match x.shape[..] {
        [k] => (None, k),
        [m, k] => (Some(m), k),
        _ => {
            return Err(input_error(
                "x",
                format!("is {x}"),
                "it takes [m, k] or [k]",
            ));
        }
    };
    let columns = match b.shape[..] {
        [k] if k == inner => None,
        [k, n] if k == inner => Some(n),
        _ => {
            let message = format!("has the shape {:?}, but `x` is {x}", b.shape);
            let help = format!("it takes [{inner}, n] or [{inner}]");
            return Err(match constant {
                true => args.error("b", message, help),
                false => input_error("y", message, help),
            });
        }
    };
    let shape = rows.into_iter().chain(columns).collect();
    let size = |d: Option<u32>| d.unwrap_or(1) as usize;
    Ok((size(rows), inner as usize, size(columns), shape))
}

struct MatMulKernel {
    m: usize,
    k: usize,
    n: usize,
    complex: bool,
    constant: Option<Vec<f32>>,
}

impl Kernel for MatMulKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let Self { m, k, n, .. } = *self;
        if self.complex {
            let x = io.input::<Complex32>(0);
            let y = io.output::<Complex32>(0);
            let firings = x.chunks_exact(m * k).zip(y.chunks_exact_mut(m * n));
            for (f, (x, y)) in firings.enumerate() {
                let b = match &self.constant {
                    Some(b) => bytemuck::cast_slice(b),
                    None => &io.input::<Complex32>(1)[f * k * n..][..k * n],
                };
                simd::dispatch(ComplexProduct { x, b, y, k, n });
            }
            return Ok(());
        }

        let x = io.input::<f32>(0);
        let y = io.output::<f32>(0);
        match &self.constant {
            // All firings' rows meet the same matrix: one product.
            Some(b) => simd::dispatch(Product { x, b, y, k, n }),
            None => {
                let b = io.input::<f32>(1).chunks_exact(k * n);
                let firings = x.chunks_exact(m * k).zip(y.chunks_exact_mut(m * n)).zip(b);
                firings.for_each(|((x, y), b)| simd::dispatch(Product { x, b, y, k, n }));
            }
        }
        Ok(())
    }
}

struct ComplexProduct<'a> {
    x: &'a [Complex32],
    b: &'a [Complex32],
    y: &'a mut [Complex32],
    k: usize,
    n: usize,
}

impl Loop for ComplexProduct<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        for (x, y) in self
            .x
            .chunks_exact(self.k)
            .zip(self.y.chunks_exact_mut(self.n))
        {
            y.fill(Complex32::ZERO);
            for (x, b) in x.iter().zip(self.b.chunks_exact(self.n)) {
                y.iter_mut().zip(b).for_each(|(y, b)| *y += x * b);
            }
        }
    }
}

/// Rows of x (each k long) times b (k rows of n). Every element of y is summed in the order of k in one chain, so
/// that rows and columns may be grouped in any way.
struct Product<'a> {
    x: &'a [f32],
    b: &'a [f32],
    y: &'a mut [f32],
    k: usize,
    n: usize,
}

impl Loop for Product<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        const ROWS: usize = 4;
        let Self { x, b, y, k, n } = self;
        let rows = y.len() / n;
        let mut row = 0;
        while row < rows {
            let step = if row + ROWS <= rows { ROWS } else { 1 };
            let x = &x[row * k..(row + step) * k];
            let y = &mut y[row * n..(row + step) * n];

            // The widest tile that still fits: its sums stay in registers over the whole of k.
            let mut column = 0;
            while column < n {
                let left = n - column;
                column += match (step == ROWS, left) {
                    (true, 16..) => tile::<FMA, ROWS, 16>(x, b, y, k, n, column),
                    (false, 64..) => tile::<FMA, 1, 64>(x, b, y, k, n, column),
                    (true, 8..) => tile::<FMA, ROWS, 8>(x, b, y, k, n, column),
                    (false, 8..) => tile::<FMA, 1, 8>(x, b, y, k, n, column),
                    (true, _) => tile::<FMA, ROWS, 1>(x, b, y, k, n, column),
                    (false, _) => tile::<FMA, 1, 1>(x, b, y, k, n, column),
                };
            }
            row += step;
        }
    }
}

/// R rows of W columns from `column` on; returns W.
#[inline(always)]
fn tile<const FMA: bool, const R: usize, const W: usize>(
    x: &[f32],
    b: &[f32],
    y: &mut [f32],
    k: usize,
    n: usize,
    column: usize,
) -> usize {
    let mut sums = [[0.0_f32; W]; R];
    let rows: [&[f32]; R] = std::array::from_fn(|r| &x[r * k..(r + 1) * k]);
    for i in 0..k {
        let b = &b[i * n + column..i * n + column + W];
        for r in 0..R {
            let x = rows[r][i];
            for w in 0..W {
                sums[r][w] = fma::<FMA>(x, b[w], sums[r][w]);
            }
        }
    }
    for r in 0..R {
        y[r * n + column..r * n + column + W].copy_from_slice(&sums[r]);
    }
    W
}

fn reduce(args: &Args<'_>, mean: bool) -> Result<ResolvedOp, OpError> {
    let x = args.x_of(&REDUCED)?;
    if mean && matches!(x.dtype, DType::I32 | DType::I64) {
        return Err(input_error(
            "x",
            format!("is {x}"),
            "convert to f32 before taking a mean",
        ));
    }
    let rank = x.shape.len() as i64;
    let (outer, count, shape) = if args.get("axis").is_some() {
        let axis = args.int_or("axis", 0)?;
        let place = if axis < 0 { axis + rank } else { axis };
        if !(0..rank).contains(&place) {
            let message = format!("is {axis}, `x` is {x}");
            return Err(args.error("axis", message, format!("there are {rank} dimensions")));
        }
        let place = place as usize;
        let mut shape = x.shape.clone();
        let count = shape.remove(place);
        let outer = TokenType::new(x.dtype, &x.shape[..place]).elements();
        (outer as usize, count as usize, shape)
    } else {
        (1, x.elements() as usize, Vec::new())
    };
    let inner = x.elements() as usize / (outer * count).max(1);
    let y = TokenType::new(x.dtype, shape);
    let kernel = Reduce {
        dtype: x.dtype,
        count,
        inner,
        scale: mean.then(|| 1.0 / count as f64),
    };
    let flops = 6.0 * x.elements() as f64 + 20.0;
    let reduction = reduction(x.dtype);
    let scale = kernel.scale;
    let made = ResolvedOp::map(x, y, move || Ok(kernel)).flops(flops);
    Ok(made
        .gpu(move || kernels::reduce(reduction, outer as u64, count as u64, inner as u64, scale)))
}

fn reduction(dtype: DType) -> Reduction {
    match dtype {
        DType::F64 => Reduction::F64,
        DType::I32 => Reduction::I32,
        DType::I64 => Reduction::I64,
        DType::C32 => Reduction::F32(2),
        _ => Reduction::F32(1),
    }
}

#[derive(Clone, Copy)]
struct Reduce {
    dtype: DType,
    /// Elements that make one, `inner` apart.
    count: usize,
    inner: usize,
    scale: Option<f64>,
}

impl Kernel for Reduce {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        match self.dtype {
            DType::F32 => self.run::<f32>(io),
            DType::F64 => self.run::<f64>(io),
            DType::I32 => self.run::<i32>(io),
            DType::I64 => self.run::<i64>(io),
            _ => self.run::<Complex32>(io),
        }
        Ok(())
    }
}

impl Reduce {
    fn run<T: Summand>(&self, io: &mut Io<'_>) {
        let Self {
            count,
            inner,
            scale,
            ..
        } = *self;
        let scale = scale.unwrap_or(1.0);
        simd::dispatch(Sums {
            x: io.input::<T>(0),
            y: io.output::<T>(0),
            count,
            inner,
            scale,
        });
    }
}

/// An element and the wider type that it is added up in.
trait Summand: Element {
    type Sum: Copy;
    const ZERO: Self::Sum;
    fn add(self, sum: Self::Sum) -> Self::Sum;
    fn join(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn finish(sum: Self::Sum, scale: f64) -> Self;
}

macro_rules! summand {
    ($($ty:ty, $sum:ty: $zero:expr, $widen:expr, $join:expr, $finish:expr;)*) => { $(impl Summand for $ty {
        type Sum = $sum;
        const ZERO: $sum = $zero;
        #[inline(always)]
        fn add(self, sum: $sum) -> $sum { $join(sum, $widen(self)) }
        #[inline(always)]
        fn join(a: $sum, b: $sum) -> $sum { $join(a, b) }
        #[inline(always)]
        fn finish(sum: $sum, scale: f64) -> Self { $finish(sum, scale) }
    })* };
}
summand! {
    f32, f64: 0.0, f64::from, |a: f64, b| a + b, |s, scale| (s * scale) as f32;
    f64, f64: 0.0, |v| v, |a: f64, b| a + b, |s, scale| s * scale;
    i32, i32: 0, |v| v, i32::wrapping_add, |s, _| s;
    i64, i64: 0, |v| v, i64::wrapping_add, |s, _| s;
    Complex32, Complex64: Complex64::ZERO, |z: Complex32| Complex64::new(z.re.into(), z.im.into()),
        |a: Complex64, b| a + b,
        |s: Complex64, scale| Complex32::new((s.re * scale) as f32, (s.im * scale) as f32);
}

struct Sums<'a, T> {
    x: &'a [T],
    y: &'a mut [T],
    count: usize,
    inner: usize,
    scale: f64,
}

impl<T: Summand> Loop for Sums<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let Self {
            x,
            y,
            count,
            inner,
            scale,
        } = self;
        let blocks = x.chunks_exact(count * inner).zip(y.chunks_exact_mut(inner));
        for (x, y) in blocks {
            if let [y] = y {
                *y = T::finish(sum_all(x), scale);
                continue;
            }
            for (c, y) in y.chunks_mut(COLUMNS).enumerate() {
                let mut sums = [T::ZERO; COLUMNS];
                for row in x.chunks_exact(inner) {
                    let row = &row[c * COLUMNS..][..y.len()];
                    sums.iter_mut()
                        .zip(row)
                        .for_each(|(sum, v)| *sum = v.add(*sum));
                }
                y.iter_mut()
                    .zip(sums)
                    .for_each(|(y, sum)| *y = T::finish(sum, scale));
            }
        }
    }
}

/// Columns added up together, and partial sums of a row: element i goes to sum i modulo COLUMNS.
const COLUMNS: usize = 16;

#[inline(always)]
fn sum_all<T: Summand>(x: &[T]) -> T::Sum {
    let mut sums = [T::ZERO; COLUMNS];
    let (whole, rest) = x.as_chunks::<COLUMNS>();
    for chunk in whole {
        for (sum, v) in sums.iter_mut().zip(chunk) {
            *sum = v.add(*sum);
        }
    }
    sums.iter_mut()
        .zip(rest)
        .for_each(|(sum, v)| *sum = v.add(*sum));
    sums.into_iter().fold(T::ZERO, T::join)
}
