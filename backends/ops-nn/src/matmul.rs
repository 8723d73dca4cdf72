//! Matrix products: MatMul, Gemm, Einsum and their integer kin.

use std::borrow::Cow;

use std::collections::BTreeMap;

use zbmd_ir::{DType, TokenType};

use super::cx::{
    Body, Cx, FLOATS, Operand, Plan, Planned, Tensors, by_num, constant_f32, expect_count, token,
    volume,
};
use super::gemm::{Act, Extra, Left, Tile, Weights, gemm, pack, packed_len};
use super::index::{Walk, broadcast, strides};
use super::num::Num;
use zbmd_op::OpError;
use zbmd_op::simd::{self, Isa, Loop, fma};

/// The activation that a pass has put into an op.
pub(super) fn act(cx: &Cx<'_>) -> Result<Act, OpError> {
    let bound = |name: &str, default: f64| -> Result<f32, OpError> {
        Ok(cx.args.float_or(name, default)? as f32)
    };
    Ok(match cx.args.word_opt("act")?.unwrap_or("none") {
        "none" => Act::None,
        "relu" => Act::Relu,
        "clip" => Act::Clip(
            bound("act_min", f64::from(f32::MIN))?,
            bound("act_max", f64::from(f32::MAX))?,
        ),
        "sigmoid" => Act::Sigmoid,
        "tanh" => Act::Tanh,
        "silu" => Act::Silu,
        "gelu" => Act::Gelu,
        "hardswish" => Act::HardSwish,
        other => {
            let known = [
                "none",
                "relu",
                "clip",
                "sigmoid",
                "tanh",
                "silu",
                "gelu",
                "hardswish",
            ];
            return Err(cx.args.unknown_word("act", other, &known));
        }
    })
}

/// Sizes of a batched product.
#[derive(Clone)]
struct Shape {
    m: usize,
    k: usize,
    n: usize,
    /// Walk over pairs of matrices.
    walk: Walk<2>,
    batches: usize,
    out: Vec<usize>,
}

impl Shape {
    fn flops(&self) -> f64 {
        2.0 * self.batches as f64 * self.m as f64 * self.k as f64 * self.n as f64
    }
}

fn shape(cx: &Cx<'_>, x: usize, y: usize) -> Result<Shape, OpError> {
    let (mut a, mut b) = (cx.dims(x)?, cx.dims(y)?);
    let (row, column) = (a.len() == 1, b.len() == 1);
    if a.is_empty() || b.is_empty() {
        return Err(cx.refuse(y, "is a scalar, or the other one is", "multiply with NnMul"));
    }
    if row {
        a.insert(0, 1);
    }
    if column {
        b.push(1);
    }
    let (m, k, n) = (a[a.len() - 2], a[a.len() - 1], b[b.len() - 1]);
    if b[b.len() - 2] != k {
        let message = format!(
            "is {}, the left matrix {}",
            cx.operand(y)?.ty,
            cx.operand(x)?.ty
        );
        return Err(cx.refuse(y, message, format!("its rows are {k}")));
    }
    let (ba, bb) = (&a[..a.len() - 2], &b[..b.len() - 2]);
    let batch = broadcast(&[ba, bb])?;
    let steps = |own: &[usize], size: usize| -> Vec<isize> {
        let lead = batch.len() - own.len();
        let s = strides(own);
        (0..batch.len())
            .map(|i| match i.checked_sub(lead) {
                Some(j) if own[j] != 1 => (s[j] * size) as isize,
                _ => 0,
            })
            .collect()
    };
    let walk = Walk::new(&batch, [steps(ba, m * k), steps(bb, k * n)], [0, 0])?;
    let mut out = batch.clone();
    if !row {
        out.push(m);
    }
    if !column {
        out.push(n);
    }
    Ok(Shape {
        m,
        k,
        n,
        walk,
        batches: volume(&batch),
        out,
    })
}

/// What a product of matrices is asked to do beside the product.
pub(super) struct MatMulSpec {
    pub(super) act: Act,
}

impl MatMulSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self { act: act(cx)? })
    }
}

pub(super) fn matmul(cx: &Cx<'_>, spec: &MatMulSpec) -> Planned {
    let dtype = cx.dtype(0)?;
    if cx.dtype(1)? != dtype {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            format!("the left matrix is {dtype}"),
        ));
    }
    let s = shape(cx, 0, 1)?;
    let flops = s.flops();
    let out = vec![token(dtype, &s.out)];
    if !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) {
        fn make<T: Num>(out: Vec<TokenType>, s: Shape) -> Planned {
            Ok(Plan::new(out, move |t: &mut Tensors<'_>| {
                let (x, y) = (t.get::<T>(0), t.get::<T>(1));
                plain(&s, x, y, t.out::<T>(0));
            }))
        }
        return Ok(by_num!(dtype, make(out, s))?.flops(8.0 * flops));
    }
    let act = spec.act;
    let bias = cx.opt(2).cloned();
    if let Some(bias) = &bias
        && (bias.dims() != [s.n] || bias.data.is_none())
    {
        return Err(cx.refuse(
            2,
            format!("is {}", bias.ty),
            format!("it is a constant of [{}]", s.n),
        ));
    }
    let right = cx.operand(1)?.clone();
    let fixed = right.data.is_some() && right.ty.elements() as usize == s.k * s.n;
    // Constant operands of half precision are widened when the kernel is made.
    let stacked = fixed && cx.operand(0)?.data.is_none() && dtype == DType::F32;
    let (k, n) = (s.k, s.n);
    let weights = right.clone();
    let plan = Plan::in_variants(out, &Tile::ALL, move |tile| {
        let make = || packed_right(&right, (k, n), (n, 1), 1.0);
        let kept = right.packed.clone();
        let packed = fixed
            .then(|| Weights::new(kept, packed_len(k, n), make))
            .transpose()?;
        let bias = bias.as_ref().and_then(constant_f32).map(Cow::into_owned);
        Ok(Box::new(MatMul {
            s,
            packed,
            stacked,
            bias,
            act,
            tile,
        }))
    })
    .flops(flops);
    if !fixed {
        return Ok(plan);
    }
    Ok(plan.packs(1, move || packed_right(&weights, (k, n), (n, 1), 1.0)))
}

/// A constant right matrix of k rows and n columns, whose rows and columns lie `row` and `column` apart, in panels.
fn packed_right(
    right: &Operand,
    (k, n): (usize, usize),
    (row, column): (usize, usize),
    scale: f32,
) -> Vec<f32> {
    let data = constant_f32(right).unwrap_or_default();
    let mut packed = vec![0.0; packed_len(k, n)];
    pack(&data, k, n, row, column, &mut packed);
    if scale != 1.0 {
        packed.iter_mut().for_each(|v| *v *= scale);
    }
    packed
}

struct MatMul {
    s: Shape,
    packed: Option<Weights>,
    /// All firings' rows meet the same matrix.
    stacked: bool,
    bias: Option<Vec<f32>>,
    act: Act,
    tile: Tile,
}

impl Body for MatMul {
    fn run(&self, t: &mut Tensors<'_>) {
        let Shape { m, k, n, .. } = self.s;
        let (x, y) = (t.get::<f32>(0), t.out::<f32>(0));
        let (act, tile) = (self.act, self.tile);
        let extra = Extra {
            column_bias: self.bias.as_deref(),
            act,
            tile,
            ..Extra::default()
        };
        if let Some(packed) = &self.packed {
            let rows = y.len() / n.max(1);
            return gemm(
                (rows, k, n),
                Left {
                    data: x,
                    row: k,
                    column: 1,
                },
                packed,
                y,
                n,
                extra,
            );
        }
        let b = t.get::<f32>(1);
        let packed = t.scratch::<f32>();
        let mut before = usize::MAX;
        self.s.walk.each(|to, [from, right]| {
            for i in 0..self.s.walk.inner {
                let (from, right) = (
                    from + i * self.s.walk.step[0] as usize,
                    right + i * self.s.walk.step[1] as usize,
                );
                if m == 1 {
                    let (x, b) = (&x[from..from + k], &b[right..right + k * n]);
                    simd::dispatch(OneRow {
                        x,
                        b,
                        y: &mut y[(to + i) * n..][..n],
                        extra,
                    });
                    continue;
                }
                if right != before {
                    pack(&b[right..], k, n, n, 1, packed);
                    before = right;
                }
                let y = &mut y[(to + i) * m * n..][..m * n];
                gemm(
                    (m, k, n),
                    Left {
                        data: &x[from..],
                        row: k,
                        column: 1,
                    },
                    packed,
                    y,
                    n,
                    extra,
                );
            }
        });
    }

    fn scratch_bytes(&self) -> usize {
        if self.packed.is_some() || self.s.m == 1 {
            0
        } else {
            4 * packed_len(self.s.k, self.s.n)
        }
    }

    fn batches(&self) -> bool {
        self.stacked
    }
}

/// One row times a matrix that is met once: packing it would cost more than the product. The same chains as there.
struct OneRow<'a> {
    x: &'a [f32],
    b: &'a [f32],
    y: &'a mut [f32],
    extra: Extra<'a>,
}

impl Loop for OneRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let Self { x, b, y, extra } = self;
        y.fill(0.0);
        for (&x, b) in x.iter().zip(b.chunks_exact(y.len().max(1))) {
            y.iter_mut()
                .zip(b)
                .for_each(|(y, &b)| *y = fma::<FMA>(x, b, *y));
        }
        if let Some(bias) = extra.column_bias {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        extra.act.apply::<FMA>(y);
    }
}

/// Rows times columns, one chain each.
fn plain<T: Num>(s: &Shape, x: &[T], y: &[T], out: &mut [T]) {
    let Shape { m, k, n, .. } = *s;
    s.walk.each(|to, [from, right]| {
        for b in 0..s.walk.inner {
            let x = &x[from + b * s.walk.step[0] as usize..];
            let y = &y[right + b * s.walk.step[1] as usize..];
            for (r, c) in (0..m).flat_map(|r| (0..n).map(move |c| (r, c))) {
                let sum = (0..k).fold(T::ZERO, |sum, i| sum.add(x[r * k + i].mul(y[i * n + c])));
                out[((to + b) * m + r) * n + c] = sum;
            }
        }
    });
}

/// alpha · a · b + beta · c, and an activation.
pub(super) struct GemmSpec {
    /// Whether each of the two matrices is read transposed.
    pub(super) transposes: [bool; 2],
    pub(super) alpha: f64,
    pub(super) beta: f64,
    pub(super) act: Act,
}

impl GemmSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            transposes: [cx.flag("transA", false)?, cx.flag("transB", false)?],
            alpha: cx.args.float_or("alpha", 1.0)?,
            beta: cx.args.float_or("beta", 1.0)?,
            act: act(cx)?,
        })
    }
}

pub(super) fn gemm_op(cx: &Cx<'_>, spec: &GemmSpec) -> Planned {
    let dtype = cx.dtype(0)?;
    let (a, b) = (cx.dims(0)?, cx.dims(1)?);
    let (&[a0, a1], &[b0, b1]) = (a.as_slice(), b.as_slice()) else {
        return Err(cx.refuse(1, format!("is {}", cx.operand(1)?.ty), "it takes matrices"));
    };
    let [ta, tb] = spec.transposes;
    let (m, k) = if ta { (a1, a0) } else { (a0, a1) };
    let (k2, n) = if tb { (b1, b0) } else { (b0, b1) };
    if k != k2 {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            format!("the first is {}", cx.operand(0)?.ty),
        ));
    }
    let alpha = spec.alpha;
    let beta = spec.beta;
    let added = match cx.opt(2) {
        None => None,
        Some(c) => {
            if broadcast(&[&c.dims(), &[m, n]])? != [m, n] {
                return Err(cx.refuse(
                    2,
                    format!("is {}", c.ty),
                    format!("it must fit [{m}, {n}]"),
                ));
            }
            Some(Walk::broadcasting(&[m, n], [&c.dims()])?)
        }
    };
    let (left, right) = (
        if ta { (1, m) } else { (k, 1) },
        if tb { (1, k) } else { (n, 1) },
    );
    let out = vec![token(dtype, &[m, n])];
    let flops = 2.0 * m as f64 * n as f64 * k as f64;
    if !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) {
        fn make<T: Num>(
            out: Vec<TokenType>,
            s: [(usize, usize); 2],
            mnk: [usize; 3],
            added: Option<Walk<1>>,
            scale: (f64, f64),
        ) -> Planned {
            Ok(Plan::new(out, move |t: &mut Tensors<'_>| {
                let (x, y, z, out) = (t.get::<T>(0), t.get::<T>(1), t.get::<T>(2), t.out::<T>(0));
                let [m, n, k] = mnk;
                for (r, c) in (0..m).flat_map(|r| (0..n).map(move |c| (r, c))) {
                    let at = |i: usize| x[r * s[0].0 + i * s[0].1].mul(y[i * s[1].0 + c * s[1].1]);
                    let sum = (0..k).fold(T::ZERO, |sum, i| sum.add(at(i)));
                    out[r * n + c] = if scale.0 == 1.0 {
                        sum
                    } else {
                        T::of(sum.f64() * scale.0)
                    };
                }
                if let Some(walk) = &added {
                    walk.each(|to, [from]| {
                        for i in 0..walk.inner {
                            let z = z[from + i * walk.step[0] as usize];
                            let z = if scale.1 == 1.0 {
                                z
                            } else {
                                T::of(z.f64() * scale.1)
                            };
                            out[to + i] = out[to + i].add(z);
                        }
                    });
                }
            }))
        }
        return Ok(by_num!(
            dtype,
            make(out, [left, right], [m, n, k], added, (alpha, beta))
        )?
        .flops(8.0 * flops));
    }
    let act = spec.act;
    let weights = cx.operand(1)?.clone();
    let (fixed, kept) = (weights.data.is_some(), weights.packed.clone());
    let own = weights.clone();
    let make = move || packed_right(&own, (k, n), right, alpha as f32);
    let plan = Plan::in_variants(out, &Tile::ALL, move |tile| {
        let make = || packed_right(&weights, (k, n), right, alpha as f32);
        let packed = fixed
            .then(|| Weights::new(kept, packed_len(k, n), make))
            .transpose()?;
        Ok(Box::new(Gemm {
            mkn: (m, k, n),
            left,
            right,
            packed,
            added,
            alpha: alpha as f32,
            beta: beta as f32,
            act,
            tile,
        }))
    })
    .flops(flops);
    Ok(if fixed { plan.packs(1, make) } else { plan })
}

struct Gemm {
    mkn: (usize, usize, usize),
    left: (usize, usize),
    right: (usize, usize),
    packed: Option<Weights>,
    added: Option<Walk<1>>,
    alpha: f32,
    beta: f32,
    act: Act,
    tile: Tile,
}

impl Body for Gemm {
    fn run(&self, t: &mut Tensors<'_>) {
        let (_, k, n) = self.mkn;
        let (x, z, y) = (t.get::<f32>(0), t.get::<f32>(2), t.out::<f32>(0));
        if let Some(walk) = &self.added {
            walk.each(|to, [from]| {
                for (i, y) in y[to..to + walk.inner].iter_mut().enumerate() {
                    *y = self.beta * z[from + i * walk.step[0] as usize];
                }
            });
        }
        let own;
        let packed: &[f32] = match &self.packed {
            Some(packed) => packed,
            None => {
                let scratch = t.scratch::<f32>();
                pack(t.get::<f32>(1), k, n, self.right.0, self.right.1, scratch);
                scratch.iter_mut().for_each(|v| *v *= self.alpha);
                own = scratch;
                own
            }
        };
        let (accumulate, act, tile) = (self.added.is_some(), self.act, self.tile);
        let extra = Extra {
            accumulate,
            act,
            tile,
            ..Extra::default()
        };
        gemm(
            self.mkn,
            Left {
                data: x,
                row: self.left.0,
                column: self.left.1,
            },
            packed,
            y,
            n,
            extra,
        );
    }

    fn scratch_bytes(&self) -> usize {
        if self.packed.is_some() {
            0
        } else {
            4 * packed_len(self.mkn.1, self.mkn.2)
        }
    }
}

/// A sum in Einstein's notation.
pub(super) struct EinsumSpec {
    /// The labels of the dimensions of each operand; those of an ellipsis are digits.
    pub(super) terms: Vec<Vec<char>>,
    /// The labels of the dimensions of the result.
    pub(super) out: Vec<char>,
    pub(super) sizes: BTreeMap<char, usize>,
    /// Whether the labels are as the equation has them, the result's among them.
    pub(super) is_explicit: bool,
}

impl EinsumSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let equation: String = cx
            .args
            .word("equation")?
            .chars()
            .filter(|c| !c.is_whitespace())
            .collect();
        let (left, right) = match equation.split_once("->") {
            Some((l, r)) => (l.to_owned(), Some(r.to_owned())),
            None => (equation.clone(), None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        let bad = |message: String| cx.args.error("equation", message, "such as `bij,bjk->bik`");
        if terms.len() != cx.ins.len() {
            return Err(bad(format!(
                "has {} terms for {} inputs",
                terms.len(),
                cx.ins.len()
            )));
        }
        let mut sizes: BTreeMap<char, usize> = BTreeMap::new();
        let mut labels: Vec<Vec<char>> = Vec::new();
        let mut extra = 0_usize;
        for (i, term) in terms.iter().enumerate() {
            let rank = cx.dims(i)?.len();
            let named = term.replace("...", "").chars().count();
            let dots = if term.contains("...") {
                rank.checked_sub(named)
            } else {
                (rank == named).then_some(0)
            };
            let dots = dots.ok_or_else(|| {
                bad(format!(
                    "`{term}` does not name the {rank} dimensions of input {i}"
                ))
            })?;
            extra = extra.max(dots);
            // Dimensions of an ellipsis are digits, counted from the last.
            let ellipsis: String = (0..dots)
                .rev()
                .filter_map(|d| char::from_digit(d as u32, 10))
                .collect();
            labels.push(term.replace("...", &ellipsis).chars().collect());
        }
        for (i, label) in labels.iter().enumerate() {
            for (&c, d) in label.iter().zip(cx.dims(i)?) {
                let known = sizes.entry(c).or_insert(d);
                if *known == 1 {
                    *known = d;
                } else if d != *known && d != 1 {
                    return Err(bad(format!("`{c}` is {known} and {d} long")));
                }
            }
        }
        let ellipsis: String = (0..extra)
            .rev()
            .filter_map(|d| char::from_digit(d as u32, 10))
            .collect();
        let out: Vec<char> = match right {
            Some(right) => right.replace("...", &ellipsis).chars().collect(),
            None => {
                let all: String = labels.iter().flatten().collect();
                let once = |c: &char| c.is_alphabetic() && all.matches(*c).count() == 1;
                ellipsis
                    .chars()
                    .chain(sizes.keys().copied().filter(once))
                    .collect()
            }
        };
        if let Some(c) = out.iter().find(|c| !sizes.contains_key(c)) {
            return Err(bad(format!("`{c}` is in no term")));
        }
        let is_explicit = equation.contains("->") && !equation.contains('.');
        Ok(Self {
            terms: labels,
            out,
            sizes,
            is_explicit,
        })
    }
}

/// Einstein's sum of one or more operands, by its definition; products of two matrices are better as MatMul.
pub(super) fn einsum(cx: &Cx<'_>, spec: &EinsumSpec) -> Planned {
    let dtype = cx.dtype(0)?;
    let sizes = &spec.sizes;
    let out = &spec.out;
    let labels = &spec.terms;
    let summed = sizes.keys().copied().filter(|c| !out.contains(c));
    let order: Vec<char> = out.iter().copied().chain(summed).collect();
    let outer: Vec<usize> = out.iter().map(|c| sizes[c]).collect();
    let dims: Vec<usize> = order.iter().map(|c| sizes[c]).collect();
    let mut steps = Vec::new();
    for (i, label) in labels.iter().enumerate() {
        let (own, shape) = (strides(&cx.dims(i)?), cx.dims(i)?);
        let step = |c: &char| {
            label
                .iter()
                .enumerate()
                .filter(|(_, l)| *l == c)
                .map(|(j, _)| if shape[j] == 1 { 0 } else { own[j] })
                .sum()
        };
        steps.push(order.iter().map(step).collect::<Vec<usize>>());
    }
    fn make<T: Num>(
        out: Vec<TokenType>,
        outer: usize,
        dims: Vec<usize>,
        steps: Vec<Vec<usize>>,
    ) -> Planned {
        let each = volume(&dims) / outer.max(1);
        let own = strides(&dims);
        Ok(Plan::new(out, move |t: &mut Tensors<'_>| {
            let y = t.out::<T>(0);
            for (o, y) in y.iter_mut().enumerate() {
                *y = T::ZERO;
                for e in 0..each {
                    let mut product = T::ONE;
                    for (i, steps) in steps.iter().enumerate() {
                        let mut rest = o * each + e;
                        let mut at = 0;
                        for (s, step) in own.iter().zip(steps) {
                            at += rest / s * step;
                            rest %= s;
                        }
                        product = product.mul(t.get::<T>(i)[at]);
                    }
                    *y = y.add(product);
                }
            }
        }))
    }
    let flops = 20.0 * volume(&dims) as f64;
    Ok(by_num!(
        dtype,
        make(vec![token(dtype, &outer)], volume(&outer), dims, steps)
    )?
    .flops(flops))
}

/// Zero points as i32: one, or one for each row or column.
fn zero_point(t: &Tensors<'_>, i: usize, dtype: DType, place: usize) -> i32 {
    let bytes = t.bytes(i);
    if bytes.is_empty() {
        return 0;
    }
    let n = bytes.len() / dtype.size_bytes() as usize;
    super::cx::index_at(bytes, dtype, if n == 1 { 0 } else { place }) as i32
}

/// The product of quantised matrices as 32-bit integers.
pub(super) fn matmul_integer(cx: &Cx<'_>) -> Planned {
    let bytes = [DType::I8, DType::U8];
    let (da, db) = (cx.expect(0, &bytes)?, cx.expect(1, &bytes)?);
    let s = shape(cx, 0, 1)?;
    expect_count(cx, 2, &[1, s.m], da)?;
    expect_count(cx, 3, &[1, s.n], db)?;
    let flops = 2.0 * s.flops();
    Ok(Plan::new(
        vec![token(DType::I32, &s.out)],
        move |t: &mut Tensors<'_>| {
            let y = t.out::<i32>(0);
            integers(t, &s, [(0, da, 2), (1, db, 3)], |i, v| y[i] = v);
        },
    )
    .flops(flops))
}

/// Sums of products of operands with their zero points taken off; each as (operand, dtype, zero point).
fn integers(
    t: &Tensors<'_>,
    s: &Shape,
    ops: [(usize, DType, usize); 2],
    mut put: impl FnMut(usize, i32),
) {
    let Shape { m, k, n, .. } = *s;
    let [(a, da, za), (b, db, zb)] = ops;
    let (x, y) = (t.bytes(a), t.bytes(b));
    let wide = |v: u8, d: DType| {
        if d == DType::I8 {
            i32::from(v as i8)
        } else {
            i32::from(v)
        }
    };
    s.walk.each(|to, [from, right]| {
        for i in 0..s.walk.inner {
            let (from, right) = (
                from + i * s.walk.step[0] as usize,
                right + i * s.walk.step[1] as usize,
            );
            for (r, c) in (0..m).flat_map(|r| (0..n).map(move |c| (r, c))) {
                let (zr, zc) = (zero_point(t, za, da, r), zero_point(t, zb, db, c));
                let term = |j: usize| {
                    let (x, y) = (
                        wide(x[from + r * k + j], da),
                        wide(y[right + j * n + c], db),
                    );
                    (x - zr).wrapping_mul(y - zc)
                };
                put(
                    ((to + i) * m + r) * n + c,
                    (0..k).fold(0_i32, |sum, j| sum.wrapping_add(term(j))),
                );
            }
        }
    });
}

/// The product of quantised matrices, quantised.
pub(super) fn qlinear_matmul(cx: &Cx<'_>) -> Planned {
    let bytes = [DType::I8, DType::U8];
    let (da, db, dy) = (
        cx.expect(0, &bytes)?,
        cx.expect(3, &bytes)?,
        cx.expect(7, &bytes)?,
    );
    let s = shape(cx, 0, 3)?;
    let scales = [
        cx.expect(1, &FLOATS)?,
        cx.expect(4, &FLOATS)?,
        cx.expect(6, &FLOATS)?,
    ];
    for (i, counts, dtype) in [
        (1, [1, s.m], scales[0]),
        (2, [1, s.m], da),
        (4, [1, s.n], scales[1]),
        (5, [1, s.n], db),
        (6, [1, 1], scales[2]),
        (7, [1, 1], dy),
    ] {
        expect_count(cx, i, &counts, dtype)?;
    }
    let flops = 2.0 * s.flops();
    let (m, n) = (s.m, s.n);
    Ok(
        Plan::new(vec![token(dy, &s.out)], move |t: &mut Tensors<'_>| {
            let y = t.out_bytes(0);
            let scale = |i: usize, d: DType, place: usize| {
                let n = t.bytes(i).len() / d.size_bytes() as usize;
                super::elementwise::number_at(t.bytes(i), d, if n == 1 { 0 } else { place })
            };
            let zero = f64::from(zero_point(t, 7, dy, 0));
            integers(t, &s, [(0, da, 2), (3, db, 5)], |i, v| {
                let by = scale(1, scales[0], i / n % m) * scale(4, scales[1], i % n)
                    / scale(6, scales[2], 0);
                y[i] = super::quant::saturate(f64::from(v) * by + zero, dy, zero);
            });
        })
        .flops(flops),
    )
}
