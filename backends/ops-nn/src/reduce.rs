//! Reductions along axes, running sums, softmax, the k greatest.

use zbmd_ir::DType;

use super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, by_num, token, volume};
use super::index::Walk;
use super::num::{Float, Num};
use zbmd_gpu_ir::tensor::row::{Fold, Soft};
use zbmd_op::OpError;
use zbmd_op::simd::{self, Isa, Loop};

/// Axes of a reduction: those of operand 1, or all; none where an empty list is a no-op.
fn axes(cx: &Cx<'_>, rank: usize) -> Result<Vec<usize>, OpError> {
    let given = cx.ints(1)?.unwrap_or_default();
    if given.is_empty() {
        let none = cx.flag("noop_with_empty_axes", false)?;
        return Ok(if none {
            Vec::new()
        } else {
            (0..rank).collect()
        });
    }
    let mut axes: Vec<usize> = given
        .iter()
        .map(|&a| cx.axis(a, rank))
        .collect::<Result<_, _>>()?;
    axes.sort_unstable();
    axes.dedup();
    Ok(axes)
}

/// How x is walked: kept dimensions outside, reduced ones inside.
struct Walks {
    kept: Walk<1>,
    over: Walk<1>,
    count: usize,
    out: Vec<usize>,
}

impl Walks {
    fn new(dims: &[usize], axes: &[usize], keep: bool) -> Result<Self, OpError> {
        let own: Vec<isize> = super::index::strides(dims)
            .into_iter()
            .map(|s| s as isize)
            .collect();
        let pick = |inside: bool| -> (Vec<usize>, Vec<isize>) {
            (0..dims.len())
                .filter(|d| axes.contains(d) == inside)
                .map(|d| (dims[d], own[d]))
                .unzip()
        };
        let ((kept, ks), (over, os)) = (pick(false), pick(true));
        let out = (0..dims.len())
            .filter(|d| keep || !axes.contains(d))
            .map(|d| if axes.contains(&d) { 1 } else { dims[d] })
            .collect();
        Ok(Self {
            count: volume(&over),
            kept: Walk::new(&kept, [ks], [0])?,
            over: Walk::new(&over, [os], [0])?,
            out,
        })
    }
}

/// A reduction over axes.
pub(super) struct ReduceSpec {
    /// What becomes of the elements that meet in one.
    pub(super) kind: Fold,
    pub(super) axes: Vec<usize>,
    keeps_dims: bool,
}

impl ReduceSpec {
    pub(super) fn of(cx: &Cx<'_>, kind: Fold) -> Result<Self, OpError> {
        Ok(Self {
            kind,
            axes: axes(cx, cx.dims(0)?.len())?,
            keeps_dims: keeps_dims(cx)?,
        })
    }
}

/// Whether reduced dimensions stay, 1 long.
fn keeps_dims(cx: &Cx<'_>) -> Result<bool, OpError> {
    cx.flag("keepdims", true)
}

/// The reductions of ONNX.
pub(super) fn reduce(cx: &Cx<'_>, spec: &ReduceSpec) -> Planned {
    let kind = spec.kind;
    let dims = cx.dims(0)?;
    let dtype = cx.dtype(0)?;
    let walks = Walks::new(&dims, &spec.axes, spec.keeps_dims)?;
    let out = token(dtype, &walks.out);
    let flops = volume(&dims) as f64 * 2.0;
    fn make<T: Num>(out: zbmd_ir::TokenType, walks: Walks, kind: Fold, truth: bool) -> Planned {
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            run::<T>(t, &walks, kind, truth)
        }))
    }
    Ok(by_num!(dtype, make(out, walks, kind, dtype == DType::Bool))?.flops(flops))
}

fn run<T: Num>(t: &mut Tensors<'_>, walks: &Walks, kind: Fold, truth: bool) {
    let (x, y) = (t.get::<T>(0), t.out::<T>(0));
    walks.kept.each(|to, [from]| {
        for i in 0..walks.kept.inner {
            let at = from + i * walks.kept.step[0] as usize;
            y[to + i] = fold_one(&x[at.min(x.len())..], walks, kind, truth);
        }
    });
}

fn fold_one<T: Num>(x: &[T], walks: &Walks, kind: Fold, truth: bool) -> T {
    match kind {
        Fold::Max if truth => each(x, walks, T::ZERO, T::max),
        Fold::Min if truth => each(x, walks, T::ONE, T::min),
        Fold::Max => each(x, walks, T::LEAST, T::max),
        Fold::Min => each(x, walks, T::GREATEST, T::min),
        Fold::Prod => each(x, walks, T::ONE, T::mul),
        Fold::Sum if !T::FLOAT => each(x, walks, T::ZERO, T::add),
        Fold::SumSquare if !T::FLOAT => each(x, walks, T::ZERO, |s, v| s.add(v.mul(v))),
        Fold::Sum => T::of(sum(x, walks, |v| v)),
        Fold::Mean => {
            let mean = sum(x, walks, |v| v) / walks.count as f64;
            T::of(if T::FLOAT { mean } else { mean.trunc() })
        }
        Fold::SumSquare => T::of(sum(x, walks, |v| v * v)),
        Fold::L1 => T::of(sum(x, walks, f64::abs)),
        Fold::L2 => T::of(sum(x, walks, |v| v * v).sqrt()),
        Fold::LogSum => T::of(sum(x, walks, |v| v).ln()),
        Fold::LogSumExp => {
            let top = each(x, walks, T::LEAST, T::max).f64();
            let top = if top.is_finite() { top } else { 0.0 };
            T::of(sum(x, walks, |v| (v - top).exp()).ln() + top)
        }
    }
}

/// One chain over all elements, in their order.
fn each<T: Num>(x: &[T], walks: &Walks, start: T, join: impl Fn(T, T) -> T) -> T {
    let mut sum = start;
    walks.over.each(|_, [from]| {
        for i in 0..walks.over.inner {
            sum = join(sum, x[from + i * walks.over.step[0] as usize]);
        }
    });
    sum
}

/// The sum in f64; runs that lie side by side in eight chains.
fn sum<T: Num>(x: &[T], walks: &Walks, f: impl Fn(f64) -> f64) -> f64 {
    let mut total = 0.0;
    walks.over.each(|_, [from]| {
        if walks.over.step[0] == 1 {
            let mut sums = [0.0; 8];
            let (whole, rest) = x[from..from + walks.over.inner].as_chunks::<8>();
            for chunk in whole {
                for (s, v) in sums.iter_mut().zip(chunk) {
                    *s += f(v.f64());
                }
            }
            sums.iter_mut()
                .zip(rest)
                .for_each(|(s, v)| *s += f(v.f64()));
            total += sums.iter().sum::<f64>();
        } else {
            for i in 0..walks.over.inner {
                total += f(x[from + i * walks.over.step[0] as usize].f64());
            }
        }
    });
    total
}

/// The place of the greatest or least element along an axis.
pub(super) struct ArgSpec {
    pub(super) is_max: bool,
    pub(super) axis: usize,
    /// Whether the last of equal elements counts, and not the first.
    pub(super) takes_last: bool,
    keeps_dims: bool,
}

impl ArgSpec {
    pub(super) fn of(cx: &Cx<'_>, is_max: bool) -> Result<Self, OpError> {
        Ok(Self {
            is_max,
            axis: cx.axis_param(0, cx.dims(0)?.len())?,
            takes_last: cx.flag("select_last_index", false)?,
            keeps_dims: keeps_dims(cx)?,
        })
    }
}

pub(super) fn arg(cx: &Cx<'_>, spec: &ArgSpec) -> Planned {
    let dims = cx.dims(0)?;
    let axis = spec.axis;
    let greatest = spec.is_max;
    let last = spec.takes_last;
    let keep = spec.keeps_dims;
    let (outer, n, inner) = around(&dims, axis);
    let mut out = dims.clone();
    if keep {
        out[axis] = 1;
    } else {
        out.remove(axis);
    }
    fn make<T: Num>(
        out: zbmd_ir::TokenType,
        greatest: bool,
        last: bool,
        s: (usize, usize, usize),
    ) -> Planned {
        let (outer, n, inner) = s;
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            let (x, y) = (t.get::<T>(0), t.out::<i64>(0));
            for o in 0..outer {
                for i in 0..inner {
                    let at = |k: usize| x[(o * n + k) * inner + i];
                    let better = |a: T, b: T| if greatest { a > b } else { a < b };
                    let best = (1..n).fold(0, |best, k| {
                        if better(at(k), at(best)) || (last && at(k) == at(best)) {
                            k
                        } else {
                            best
                        }
                    });
                    y[o * inner + i] = best as i64;
                }
            }
        }))
    }
    by_num!(
        cx.dtype(0)?,
        make(token(DType::I64, &out), greatest, last, (outer, n, inner))
    )
}

/// Elements before, along and behind an axis.
pub(super) fn around(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    let axis = axis.min(dims.len().saturating_sub(1));
    match dims.get(axis) {
        Some(&n) => (volume(&dims[..axis]), n, volume(&dims[axis + 1..])),
        None => (1, 1, 1),
    }
}

/// Running sums or products along an axis.
pub(super) struct CumulativeSpec {
    pub(super) is_product: bool,
    pub(super) axis: usize,
    /// Whether an element itself is left out of its sum.
    pub(super) exclusive: bool,
    pub(super) reverse: bool,
}

impl CumulativeSpec {
    pub(super) fn of(cx: &Cx<'_>, is_product: bool) -> Result<Self, OpError> {
        let axis = cx.ints(1)?.and_then(|axes| axes.first().copied());
        Ok(Self {
            is_product,
            axis: cx.axis(axis.unwrap_or(0), cx.dims(0)?.len())?,
            exclusive: cx.flag("exclusive", false)?,
            reverse: cx.flag("reverse", false)?,
        })
    }
}

pub(super) fn cumulative(cx: &Cx<'_>, spec: &CumulativeSpec) -> Planned {
    let dims = cx.dims(0)?;
    let (outer, n, inner) = around(&dims, spec.axis);
    fn make<T: Num>(
        out: zbmd_ir::TokenType,
        (outer, n, inner): (usize, usize, usize),
        [product, exclusive, reverse]: [bool; 3],
    ) -> Planned {
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            let (x, y) = (t.get::<T>(0), t.out::<T>(0));
            for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
                let mut sum = if product { T::ONE } else { T::ZERO };
                for k in 0..n {
                    let k = if reverse { n - 1 - k } else { k };
                    let at = (o * n + k) * inner + i;
                    let before = sum;
                    sum = if product {
                        sum.mul(x[at])
                    } else {
                        sum.add(x[at])
                    };
                    y[at] = if exclusive { before } else { sum };
                }
            }
        }))
    }
    let flags = [spec.is_product, spec.exclusive, spec.reverse];
    by_num!(
        cx.dtype(0)?,
        make(cx.operand(0)?.ty.clone(), (outer, n, inner), flags)
    )
}

/// Softmax, LogSoftmax, Hardmax along an axis.
pub(super) struct SoftmaxSpec {
    pub(super) kind: Soft,
    pub(super) axis: usize,
}

impl SoftmaxSpec {
    pub(super) fn of(cx: &Cx<'_>, kind: Soft) -> Result<Self, OpError> {
        let axis = cx.axis_param(-1, cx.dims(0)?.len())?;
        Ok(Self { kind, axis })
    }
}

pub(super) fn softmax(cx: &Cx<'_>, spec: &SoftmaxSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let shape = around(&dims, spec.axis);
    let kind = spec.kind;
    let flops = 20.0 * volume(&dims) as f64;
    let out = cx.operand(0)?.ty.clone();
    Ok(Plan::float(dtype, vec![out], Softmax { shape, kind }).flops(flops))
}

struct Softmax {
    shape: (usize, usize, usize),
    kind: Soft,
}

impl FloatBody for Softmax {
    fn run<F: Float>(&self, t: &mut Tensors<'_>) {
        let (x, y) = (t.get::<F>(0), t.out::<F>(0));
        let (outer, n, inner) = self.shape;
        if inner == 1 && self.kind == Soft::Plain {
            for (x, y) in x.chunks_exact(n.max(1)).zip(y.chunks_exact_mut(n.max(1))) {
                simd::dispatch(SoftRow { x, y });
            }
            return;
        }
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let at = |k: usize| (o * n + k) * inner + i;
            let top = (0..n).fold(F::LEAST, |m, k| m.max(x[at(k)]));
            if self.kind == Soft::Hard {
                let first = (0..n).find(|&k| x[at(k)] == top);
                (0..n).for_each(|k| y[at(k)] = if Some(k) == first { F::ONE } else { F::ZERO });
                continue;
            }
            let mut sum = 0.0;
            for k in 0..n {
                y[at(k)] = (x[at(k)] - top).exp();
                sum += y[at(k)].f64();
            }
            for k in 0..n {
                y[at(k)] = match self.kind {
                    Soft::Log => x[at(k)] - top - F::of(sum.ln()),
                    _ => y[at(k)] / F::of(sum),
                };
            }
        }
    }
}

/// One row of a softmax.
pub(super) struct SoftRow<'a, F> {
    pub(super) x: &'a [F],
    pub(super) y: &'a mut [F],
}

impl<F: Float> Loop for SoftRow<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        const LANES: usize = 16;
        let Self { x, y } = self;
        let mut tops = [F::LEAST; LANES];
        let (whole, rest) = x.as_chunks::<LANES>();
        for chunk in whole {
            for (m, v) in tops.iter_mut().zip(chunk) {
                *m = if *v > *m { *v } else { *m };
            }
        }
        let top = tops
            .iter()
            .chain(rest)
            .fold(F::LEAST, |m, &v| if v > m { v } else { m });
        for (y, &x) in y.iter_mut().zip(x) {
            *y = (x - top).exp_fast::<FMA>();
        }
        let mut sums = [F::ZERO; LANES];
        let (whole, rest) = y.as_chunks::<LANES>();
        for chunk in whole {
            for (s, v) in sums.iter_mut().zip(chunk) {
                *s += *v;
            }
        }
        sums.iter_mut().zip(rest).for_each(|(s, v)| *s += *v);
        let scale = F::ONE / sums.into_iter().fold(F::ZERO, |a, b| a + b);
        y.iter_mut().for_each(|y| *y = *y * scale);
    }
}

/// The k greatest or least elements along an axis.
pub(super) struct TopKSpec {
    pub(super) axis: usize,
    /// Whether the greatest are taken, and not the least.
    pub(super) takes_largest: bool,
}

impl TopKSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            axis: cx.axis_param(-1, cx.dims(0)?.len())?,
            takes_largest: cx.flag("largest", true)?,
        })
    }
}

/// The k greatest or least elements along an axis, and where they are.
pub(super) fn top_k(cx: &Cx<'_>, spec: &TopKSpec) -> Planned {
    let dims = cx.dims(0)?;
    let axis = spec.axis;
    let k = cx.ints(1)?.and_then(|k| k.first().copied()).unwrap_or(1);
    let (outer, n, inner) = around(&dims, axis);
    let k = usize::try_from(k).ok().filter(|k| *k <= n).ok_or_else(|| {
        cx.refuse(
            1,
            format!("asks for {k} of {n} elements"),
            "ask for at most as many as there are",
        )
    })?;
    let largest = spec.takes_largest;
    let mut out = dims.clone();
    out[axis] = k;
    let dtype = cx.dtype(0)?;
    let mut outs = Vec::new();
    for &o in &cx.wanted {
        outs.push(token(if o == 0 { dtype } else { DType::I64 }, &out));
    }
    let wants = [cx.wants(0), cx.wants(1)];
    struct TopK<T> {
        shape: (usize, usize, usize),
        k: usize,
        largest: bool,
        wants: [bool; 2],
        of: std::marker::PhantomData<T>,
    }
    impl<T: Num> super::cx::Body for TopK<T> {
        fn run(&self, t: &mut Tensors<'_>) {
            let (outer, n, inner) = self.shape;
            let x = t.get::<T>(0);
            let order = t.scratch::<u32>();
            let mut outs = 0;
            let values = if self.wants[0] {
                outs += 1;
                t.out::<T>(0)
            } else {
                &mut []
            };
            let places = if self.wants[1] {
                t.out::<i64>(outs)
            } else {
                &mut []
            };
            for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
                let at = |j: u32| x[(o * n + j as usize) * inner + i];
                let order = &mut order[..n];
                order
                    .iter_mut()
                    .enumerate()
                    .for_each(|(j, p)| *p = j as u32);
                // In place and without memory of its own; equal elements by their place.
                order.sort_unstable_by(|&a, &b| {
                    let by = at(a)
                        .partial_cmp(&at(b))
                        .unwrap_or(std::cmp::Ordering::Equal);
                    let by = if self.largest { by.reverse() } else { by };
                    by.then(a.cmp(&b))
                });
                for (j, &p) in order[..self.k].iter().enumerate() {
                    let to = (o * self.k + j) * inner + i;
                    if let Some(v) = values.get_mut(to) {
                        *v = at(p)
                    }
                    if let Some(v) = places.get_mut(to) {
                        *v = i64::from(p)
                    }
                }
            }
        }
        fn scratch_bytes(&self) -> usize {
            4 * self.shape.1
        }
    }
    fn make<T: Num>(
        outs: Vec<zbmd_ir::TokenType>,
        shape: (usize, usize, usize),
        k: usize,
        largest: bool,
        wants: [bool; 2],
    ) -> Planned {
        Ok(Plan::new(
            outs,
            TopK::<T> {
                shape,
                k,
                largest,
                wants,
                of: std::marker::PhantomData,
            },
        ))
    }
    by_num!(dtype, make(outs, (outer, n, inner), k, largest, wants))
}
