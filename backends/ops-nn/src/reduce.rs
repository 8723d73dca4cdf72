//! Reductions along axes, running sums, softmax, the k greatest.

use std::marker::PhantomData;

use zbmd_ir::{DType, TokenType};

use super::cx::{Body, Cx, FLOATS, FloatBody, Plan, Planned, Tensors, by_num, token, volume};
use super::index::{AxisView, Walk, strides};
use super::num::{Float, Num};
use zbmd_gpu_ir::tensor::row::{Fold, Soft};
use zbmd_op::simd::{self, CHAINS, Isa, Loop, fold_chains};
use zbmd_op::{OpError, team};

/// Axes of a reduction: those of operand 1, or all; none where an empty list is a no-op.
fn reduced_axes(cx: &Cx<'_>, rank: usize) -> Result<Vec<usize>, OpError> {
    let given_axes = cx.ints(1)?.unwrap_or_default();
    if given_axes.is_empty() {
        let reduces_nothing = cx.flag("noop_with_empty_axes", false)?;
        return Ok(match reduces_nothing {
            true => Vec::new(),
            false => (0..rank).collect(),
        });
    }
    let positive_axes = given_axes.iter().map(|&axis| cx.axis(axis, rank));
    let mut axes: Vec<usize> = positive_axes.collect::<Result<_, _>>()?;
    // An axis may be given twice, or once from each end.
    axes.sort_unstable();
    axes.dedup();
    Ok(axes)
}

/// How a tensor is walked: kept dimensions outside, reduced ones inside.
struct Walks {
    kept: Walk<1>,
    reduced: Walk<1>,
    /// Elements that meet in one.
    count: usize,
    /// Dimensions of the result.
    out: Vec<usize>,
}

impl Walks {
    fn new(dims: &[usize], axes: &[usize], keeps_dims: bool) -> Result<Self, OpError> {
        let mut kept_dims = Vec::new();
        let mut kept_strides = Vec::new();
        let mut reduced_dims = Vec::new();
        let mut reduced_strides = Vec::new();
        let mut out = Vec::new();
        for (d, stride) in strides(dims).into_iter().enumerate() {
            if axes.contains(&d) {
                reduced_dims.push(dims[d]);
                reduced_strides.push(stride as isize);
                out.extend(keeps_dims.then_some(1));
            } else {
                kept_dims.push(dims[d]);
                kept_strides.push(stride as isize);
                out.push(dims[d]);
            }
        }
        Ok(Self {
            count: volume(&reduced_dims),
            kept: Walk::new(&kept_dims, [kept_strides], [0])?,
            reduced: Walk::new(&reduced_dims, [reduced_strides], [0])?,
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
            axes: reduced_axes(cx, cx.dims(0)?.len())?,
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
    let dims = cx.dims(0)?;
    let dtype = cx.dtype(0)?;
    let walks = Walks::new(&dims, &spec.axes, spec.keeps_dims)?;
    let out = token(dtype, &walks.out);
    let reduction = Reduction {
        walks,
        kind: spec.kind,
        is_truth: dtype == DType::Bool,
    };
    let plan = by_num!(dtype, reduction_plan(out, reduction))?;
    Ok(plan.flops(volume(&dims) as f64 * 6.0))
}

fn reduction_plan<T: Num>(out: TokenType, reduction: Reduction) -> Planned {
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        reduction.run::<T>(tensors);
    }))
}

struct Reduction {
    walks: Walks,
    kind: Fold,
    /// Whether the elements are truth values, which are 0 or 1 only.
    is_truth: bool,
}

impl Reduction {
    fn run<T: Num>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<T>(0);
        let output = tensors.out::<T>(0);
        let kept = &self.walks.kept;
        kept.each(|to, [from]| {
            for i in 0..kept.inner {
                let start = from + i * kept.step[0] as usize;
                output[to + i] = self.fold_one(&input[start.min(input.len())..]);
            }
        });
    }

    /// The elements that meet in one, whose first is that of the slice.
    fn fold_one<T: Num>(&self, elements: &[T]) -> T {
        match self.kind {
            Fold::Max if self.is_truth => self.chain(elements, T::ZERO, T::max),
            Fold::Min if self.is_truth => self.chain(elements, T::ONE, T::min),
            Fold::Max => self.chain(elements, T::LEAST, T::max),
            Fold::Min => self.chain(elements, T::GREATEST, T::min),
            Fold::Prod => self.chain(elements, T::ONE, T::mul),

            // Integers wrap around as they do elsewhere: they are not summed in f64, which would round.
            Fold::Sum if !T::FLOAT => self.chain(elements, T::ZERO, T::add),
            Fold::SumSquare if !T::FLOAT => {
                self.chain(elements, T::ZERO, |sum, v| sum.add(v.mul(v)))
            }

            Fold::Sum => T::of(self.sum(elements, |v| v)),
            Fold::Mean => {
                // The mean of integers is cut off towards 0, as integer division is.
                let mean = self.sum(elements, |v| v) / self.walks.count as f64;
                T::of(if T::FLOAT { mean } else { mean.trunc() })
            }
            Fold::SumSquare => T::of(self.sum(elements, |v| v * v)),
            Fold::L1 => T::of(self.sum(elements, f64::abs)),
            Fold::L2 => T::of(self.sum(elements, |v| v * v).sqrt()),
            Fold::LogSum => T::of(self.sum(elements, |v| v).ln()),
            Fold::LogSumExp => {
                // Exponents are taken relative to the greatest, so that none overflows.
                let max = self.chain(elements, T::LEAST, T::max).f64();
                // log Σ exp(v) = log Σ exp(v − m) + m. An infinite m would make ∞ − ∞.
                let shift = if max.is_finite() { max } else { 0.0 };
                let sum = self.sum(elements, |v| (v - shift).exp());
                T::of(sum.ln() + shift)
            }
        }
    }

    /// One chain over all elements, in their order.
    fn chain<T: Num>(&self, elements: &[T], start: T, join: impl Fn(T, T) -> T) -> T {
        let walk = &self.walks.reduced;
        let mut joined = start;
        walk.each(|_, [from]| {
            for i in 0..walk.inner {
                joined = join(joined, elements[from + i * walk.step[0] as usize]);
            }
        });
        joined
    }

    /// The sum in f64; runs that are side by side in eight chains.
    fn sum<T: Num>(&self, elements: &[T], term: impl Fn(f64) -> f64) -> f64 {
        let walk = &self.walks.reduced;
        let mut total = 0.0;
        walk.each(|_, [from]| {
            if walk.step[0] == 1 {
                // Eight independent chains hide the latency of the addition, and give vectors their lanes.
                let mut sums = [0.0; 8];
                let (whole, rest) = elements[from..from + walk.inner].as_chunks::<8>();
                for chunk in whole {
                    for (sum, v) in sums.iter_mut().zip(chunk) {
                        *sum += term(v.f64());
                    }
                }
                sums.iter_mut()
                    .zip(rest)
                    .for_each(|(sum, v)| *sum += term(v.f64()));
                total += sums.iter().sum::<f64>();
            } else {
                for i in 0..walk.inner {
                    total += term(elements[from + i * walk.step[0] as usize].f64());
                }
            }
        });
        total
    }
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
    let mut out_dims = dims.clone();
    if spec.keeps_dims {
        out_dims[spec.axis] = 1;
    } else {
        out_dims.remove(spec.axis);
    }
    let search = ArgSearch {
        view: AxisView::of(&dims, spec.axis),
        is_max: spec.is_max,
        takes_last: spec.takes_last,
    };
    by_num!(cx.dtype(0)?, arg_plan(token(DType::I64, &out_dims), search))
}

fn arg_plan<T: Num>(out: TokenType, search: ArgSearch) -> Planned {
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        let input = tensors.get::<T>(0);
        let output = tensors.out::<i64>(0);
        let view = search.view;
        for outer in 0..view.outer {
            for inner in 0..view.inner {
                output[outer * view.inner + inner] = search.best(input, outer, inner) as i64;
            }
        }
    }))
}

struct ArgSearch {
    view: AxisView,
    is_max: bool,
    takes_last: bool,
}

impl ArgSearch {
    /// The place along the axis of the best element of one line.
    fn best<T: Num>(&self, input: &[T], outer: usize, inner: usize) -> usize {
        let mut best = 0;
        for k in 1..self.view.length {
            let element = input[self.view.at(outer, k, inner)];
            let best_element = input[self.view.at(outer, best, inner)];
            let is_better = match self.is_max {
                true => element > best_element,
                false => element < best_element,
            };
            // Only a better element moves the place: the first of equals counts, unless the last is asked for.
            if is_better || (self.takes_last && element == best_element) {
                best = k;
            }
        }
        best
    }
}

/// Elements before, along and behind an axis: an [`AxisView`] as three numbers.
pub(super) fn around(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    let view = AxisView::of(dims, axis);
    (view.outer, view.length, view.inner)
}

/// Running sums or products along an axis.
#[derive(Clone, Copy)]
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
    let out = cx.operand(0)?.ty.clone();
    let view = AxisView::of(&dims, spec.axis);
    by_num!(cx.dtype(0)?, cumulative_plan(out, view, *spec))
}

fn cumulative_plan<T: Num>(out: TokenType, view: AxisView, spec: CumulativeSpec) -> Planned {
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        let input = tensors.get::<T>(0);
        let output = tensors.out::<T>(0);
        for outer in 0..view.outer {
            for inner in 0..view.inner {
                let mut sum = if spec.is_product { T::ONE } else { T::ZERO };
                for i in 0..view.length {
                    let along = match spec.reverse {
                        true => view.length - 1 - i,
                        false => i,
                    };
                    let place = view.at(outer, along, inner);
                    // An exclusive sum is the one before the element joins it.
                    let before = sum;
                    sum = if spec.is_product {
                        sum.mul(input[place])
                    } else {
                        sum.add(input[place])
                    };
                    output[place] = if spec.exclusive { before } else { sum };
                }
            }
        }
    }))
}

/// What an element of a softmax takes, in multiplications in vectors.
const SOFTMAX_COST: usize = 40;

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
    let out = cx.operand(0)?.ty.clone();
    let body = Softmax {
        view: AxisView::of(&dims, spec.axis),
        kind: spec.kind,
    };
    Ok(Plan::float(dtype, vec![out], body).flops(20.0 * volume(&dims) as f64))
}

struct Softmax {
    view: AxisView,
    kind: Soft,
}

impl FloatBody for Softmax {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let output = tensors.out::<F>(0);
        let view = self.view;
        // Lines of the last axis are contiguous, which the vector loop needs.
        if view.inner == 1 && self.kind == Soft::Plain {
            let row_length = view.length.max(1);
            let work = SOFTMAX_COST * output.len();
            team::share_slice(work, output, row_length, &|first, output_rows| {
                simd::dispatch_widest(SoftRows {
                    row_length,
                    input: &input[first * row_length..][..output_rows.len()],
                    output: output_rows,
                });
            });
            return;
        }
        for outer in 0..view.outer {
            for inner in 0..view.inner {
                self.run_line(input, output, outer, inner);
            }
        }
    }
}

impl Softmax {
    /// One line along the axis. Exponents are taken relative to its greatest element, so that none overflows.
    fn run_line<F: Float>(&self, input: &[F], output: &mut [F], outer: usize, inner: usize) {
        let length = self.view.length;
        let at = |k: usize| self.view.at(outer, k, inner);
        let max = (0..length).fold(F::LEAST, |max, k| max.max(input[at(k)]));
        if self.kind == Soft::Hard {
            // A hardmax has a single 1: the first of equal elements gets it.
            let first_max = (0..length).find(|&k| input[at(k)] == max);
            for k in 0..length {
                let is_first = Some(k) == first_max;
                output[at(k)] = if is_first { F::ONE } else { F::ZERO };
            }
            return;
        }

        let mut sum = 0.0;
        for k in 0..length {
            // Exponents are at most 0 and one of them is 0: the sum is at least 1 and cannot overflow.
            let exponential = (input[at(k)] - max).exp();
            output[at(k)] = exponential;
            sum += exponential.f64();
        }
        for k in 0..length {
            output[at(k)] = match self.kind {
                // log(exp(x − m) / Σ) without the quotient, which could underflow to log 0.
                Soft::Log => input[at(k)] - max - F::of(sum.ln()),
                _ => output[at(k)] / F::of(sum),
            };
        }
    }
}

/// Rows of a softmax, one after the other: all of them in one loop, so that a processor begins with the next one while it waits for
/// this one's greatest element and sum.
pub(super) struct SoftRows<'a, F> {
    pub(super) row_length: usize,
    pub(super) input: &'a [F],
    pub(super) output: &'a mut [F],
}

impl<F: Float> Loop for SoftRows<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let row_length = self.row_length.max(1);
        let rows = self.input.chunks_exact(row_length);
        for (input, output) in rows.zip(self.output.chunks_exact_mut(row_length)) {
            soft_row::<F, FMA>(input, output);
        }
    }
}

/// One row of a softmax.
#[inline(always)]
fn soft_row<F: Float, const FMA: bool>(input: &[F], output: &mut [F]) {
    let greater = |a: F, b: F| if b > a { b } else { a };
    let mut chain_max = [F::LEAST; CHAINS];
    let (whole, rest) = input.as_chunks::<CHAINS>();
    for chunk in whole {
        for (max, &v) in chain_max.iter_mut().zip(chunk) {
            *max = greater(*max, v);
        }
    }
    for (max, &v) in chain_max.iter_mut().zip(rest) {
        *max = greater(*max, v);
    }
    let max = fold_chains(chain_max, greater);

    for (y, &x) in output.iter_mut().zip(input) {
        // Powers below the normal numbers count for nothing beside the greatest one, which is 1, and processors take a
        // hundred cycles for them: masked scores have no others. A NaN stays one.
        let exponent = x - max;
        let is_tiny = exponent < F::LEAST_EXPONENT;
        let bounded = if is_tiny { F::LEAST_EXPONENT } else { exponent };
        let power = bounded.exp_in_range::<FMA>();
        *y = if is_tiny { F::ZERO } else { power };
    }

    // A second pass over what is written: sums take the exponentials as they were rounded.
    let mut chain_sums = [F::ZERO; CHAINS];
    let (whole, rest) = output.as_chunks::<CHAINS>();
    for chunk in whole {
        for (sum, v) in chain_sums.iter_mut().zip(chunk) {
            *sum += *v;
        }
    }
    chain_sums
        .iter_mut()
        .zip(rest)
        .for_each(|(sum, v)| *sum += *v);
    // One division for the row; each element is then a product.
    let scale = F::ONE / fold_chains(chain_sums, |a, b| a + b);
    output.iter_mut().for_each(|y| *y = *y * scale);
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
    let dtype = cx.dtype(0)?;
    let dims = cx.dims(0)?;
    let view = AxisView::of(&dims, spec.axis);
    let asked = cx.ints(1)?.and_then(|k| k.first().copied()).unwrap_or(1);
    let taken = usize::try_from(asked).ok().filter(|k| *k <= view.length);
    let taken = taken.ok_or_else(|| {
        cx.refuse(
            1,
            format!("asks for {asked} of {} elements", view.length),
            "ask for at most as many as there are",
        )
    })?;

    let mut out_dims = dims.clone();
    out_dims[spec.axis] = taken;
    let mut outs = Vec::new();
    for &output in &cx.wanted {
        let out_dtype = if output == 0 { dtype } else { DType::I64 };
        outs.push(token(out_dtype, &out_dims));
    }
    let rule = TopKRule {
        view,
        taken,
        takes_largest: spec.takes_largest,
        wants_values: cx.wants(0),
        wants_places: cx.wants(1),
    };
    by_num!(dtype, top_k_plan(outs, rule))
}

fn top_k_plan<T: Num>(outs: Vec<TokenType>, rule: TopKRule) -> Planned {
    let element = PhantomData::<T>;
    Ok(Plan::new(outs, TopK { rule, element }))
}

struct TopKRule {
    view: AxisView,
    taken: usize,
    takes_largest: bool,
    wants_values: bool,
    wants_places: bool,
}

struct TopK<T> {
    rule: TopKRule,
    element: PhantomData<T>,
}

impl TopKRule {
    /// Sorts the places of one line, the best first, in place and without memory of its own; equal elements by place.
    fn sort_line<T: Num>(&self, input: &[T], outer: usize, inner: usize, places: &mut [u32]) {
        for (i, place) in places.iter_mut().enumerate() {
            *place = i as u32;
        }
        let element = |place: u32| input[self.view.at(outer, place as usize, inner)];
        let is_nan = |place: u32| element(place).partial_cmp(&element(place)).is_none();
        places.sort_unstable_by(|&a, &b| {
            // The sort panics without a total order: NaN counts as larger than every number, and as equal to NaN.
            let rising = element(a)
                .partial_cmp(&element(b))
                .unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)));
            let best_first = match self.takes_largest {
                true => rising.reverse(),
                false => rising,
            };
            best_first.then(a.cmp(&b))
        });
    }
}

impl<T: Num> Body for TopK<T> {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let rule = &self.rule;
        let view = rule.view;
        let input = tensors.get::<T>(0);
        let values = tensors.out_if::<T>(rule.wants_values, 0);
        let places = tensors.out_if::<i64>(rule.wants_places, usize::from(rule.wants_values));
        let line_places = &mut tensors.scratch::<u32>()[..view.length];

        for outer in 0..view.outer {
            for inner in 0..view.inner {
                rule.sort_line(input, outer, inner, line_places);
                for (i, &place) in line_places[..rule.taken].iter().enumerate() {
                    // The result has the input's layout, with `taken` places along the axis.
                    let to = (outer * rule.taken + i) * view.inner + inner;
                    if let Some(value) = values.get_mut(to) {
                        *value = input[view.at(outer, place as usize, inner)];
                    }
                    if let Some(index) = places.get_mut(to) {
                        *index = i64::from(place);
                    }
                }
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        4 * self.rule.view.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn softmax_of(input: &[f32]) -> Vec<f32> {
        let mut output = vec![0.0; input.len()];
        simd::dispatch_widest(SoftRows {
            row_length: input.len(),
            input,
            output: &mut output,
        });
        output
    }

    #[test]
    fn masked_scores_weigh_nothing_and_a_nan_stays_one() {
        // More than a vector, and a rest: every third score is masked in one of three ways.
        let masks = [-1e4_f32, -95.0, f32::NEG_INFINITY];
        let scores: Vec<f32> = (0..37)
            .map(|i| match i % 3 {
                0 => masks[i / 3 % masks.len()],
                _ => i as f32 * 0.25,
            })
            .collect();
        let weights = softmax_of(&scores);
        let sum: f32 = weights.iter().sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        for (i, &weight) in weights.iter().enumerate() {
            assert_eq!(weight == 0.0, i % 3 == 0, "{i}: {weight}");
            assert!(!weight.is_subnormal(), "{i}: {weight}");
        }

        let with_nan = softmax_of(&[0.0, f32::NAN, -1e4]);
        assert!(with_nan[1].is_nan(), "{with_nan:?}");
    }
}
