//! Normalisations.

use super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token, volume};
use super::num::Float;
use super::reduce::around;
use zbmd_op::OpError;
use zbmd_op::simd::{self, Isa, Loop};

/// Normalisation of batches.
pub(super) struct BatchNormSpec {
    /// Whether mean and variance are those of the input, and running ones are wanted.
    pub(super) is_training: bool,
    pub(super) epsilon: f64,
    momentum: f64,
}

impl BatchNormSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            is_training: cx.flag("training_mode", false)?,
            epsilon: epsilon(cx)?,
            momentum: cx.args.float_or("momentum", 0.9)?,
        })
    }
}

/// What is added to a variance.
fn epsilon(cx: &Cx<'_>) -> Result<f64, OpError> {
    cx.args.float_or("epsilon", 1e-5)
}

/// Refuses an operand that is not one number for each of `n` channels.
fn per_channel(cx: &Cx<'_>, i: usize, n: usize) -> Result<(), OpError> {
    match cx.opt(i) {
        Some(o) if o.ty.elements() != n as u64 => Err(cx.refuse(
            i,
            format!("is {}", o.ty),
            format!("one number for each of {n} channels"),
        )),
        _ => Ok(()),
    }
}

pub(super) fn batch(cx: &Cx<'_>, spec: &BatchNormSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let channels = dims.get(1).copied().unwrap_or(1);
    for i in 1..5 {
        cx.operand(i)?;
        per_channel(cx, i, channels)?;
    }
    struct Batch {
        channels: usize,
        plane: usize,
        batch: usize,
        epsilon: f64,
        momentum: f64,
        training: bool,
        outs: [bool; 3],
    }
    impl FloatBody for Batch {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (x, scale, bias) = (t.get::<F>(0), t.get::<F>(1), t.get::<F>(2));
            let (mean, var) = (t.get::<F>(3), t.get::<F>(4));
            let mut outs: [&mut [F]; 3] = Default::default();
            let wanted = outs.iter_mut().zip(self.outs).filter(|(_, want)| *want);
            for (next, (slot, _)) in wanted.enumerate() {
                *slot = t.out::<F>(next);
            }
            let [y, m, v] = outs;
            for c in 0..self.channels {
                let planes = || (0..self.batch).map(|b| (b * self.channels + c) * self.plane);
                let (mut mu, mut sigma) = (mean[c].f64(), var[c].f64());
                if self.training {
                    let n = (self.batch * self.plane) as f64;
                    let all = || {
                        planes()
                            .flat_map(|p| &x[p..p + self.plane])
                            .map(|v| v.f64())
                    };
                    mu = all().sum::<f64>() / n;
                    sigma = all().map(|v| (v - mu) * (v - mu)).sum::<f64>() / n;
                    let running = |old: F, new: f64| {
                        F::of(old.f64() * self.momentum + new * (1.0 - self.momentum))
                    };
                    if let Some(m) = m.get_mut(c) {
                        *m = running(mean[c], mu)
                    }
                    if let Some(v) = v.get_mut(c) {
                        *v = running(var[c], sigma)
                    }
                }
                let a = scale[c] / F::of((sigma + self.epsilon).sqrt());
                let b = bias[c] - a * F::of(mu);
                if y.is_empty() {
                    continue;
                }
                for p in planes() {
                    for (y, &x) in y[p..p + self.plane].iter_mut().zip(&x[p..]) {
                        *y = x * a + b;
                    }
                }
            }
        }
    }
    let outs = cx.wanted.iter().map(|&o| {
        if o == 0 {
            cx.operand(0).map(|x| x.ty.clone())
        } else {
            Ok(token(dtype, &[channels]))
        }
    });
    let training = spec.is_training;
    if !training && cx.wanted.iter().any(|&o| o > 0) {
        return Err(Cx::other(
            "only the first output exists outside of training",
            "leave the others out",
        ));
    }
    let body = Batch {
        channels,
        plane: volume(dims.get(2..).unwrap_or_default()),
        batch: dims.first().copied().unwrap_or(1),
        epsilon: spec.epsilon,
        momentum: spec.momentum,
        training,
        outs: [cx.wants(0), cx.wants(1), cx.wants(2)],
    };
    Ok(Plan::float(dtype, outs.collect::<Result<_, _>>()?, body).flops(2.0 * volume(&dims) as f64))
}

/// Layer and RMS normalisation: over all dimensions from an axis on.
pub(super) struct LayerNormSpec {
    /// Whether the mean stays.
    pub(super) is_rms: bool,
    pub(super) axis: usize,
    pub(super) epsilon: f64,
}

impl LayerNormSpec {
    pub(super) fn of(cx: &Cx<'_>, is_rms: bool) -> Result<Self, OpError> {
        Ok(Self {
            is_rms,
            axis: cx.axis_param(-1, cx.dims(0)?.len())?,
            epsilon: epsilon(cx)?,
        })
    }
}

pub(super) fn layer(cx: &Cx<'_>, spec: &LayerNormSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let axis = spec.axis;
    let (rows, n) = (volume(&dims[..axis]), volume(&dims[axis..]));
    for i in 1..3 {
        if let Some(o) = cx.opt(i)
            && super::index::broadcast(&[&o.dims(), &dims[axis..]])? != dims[axis..]
        {
            return Err(cx.refuse(
                i,
                format!("is {}", o.ty),
                format!("it must fit {:?}", &dims[axis..]),
            ));
        }
    }
    let walk = |i: usize| -> Result<_, OpError> {
        cx.opt(i)
            .map(|o| super::index::Walk::broadcasting(&dims[axis..], [&o.dims()]))
            .transpose()
    };
    let stats: Vec<usize> = dims
        .iter()
        .enumerate()
        .map(|(i, &d)| if i < axis { d } else { 1 })
        .collect();
    let outs = cx
        .wanted
        .iter()
        .map(|&o| {
            if o == 0 {
                token(dtype, &dims)
            } else {
                token(zbmd_ir::DType::F32, &stats)
            }
        })
        .collect();
    let body = Layer {
        rows,
        n,
        epsilon: spec.epsilon,
        rms: spec.is_rms,
        scale: walk(1)?,
        bias: walk(2)?,
        wants: [cx.wants(0), cx.wants(1), cx.wants(2)],
    };
    Ok(Plan::float(dtype, outs, body).flops(8.0 * volume(&dims) as f64))
}

struct Layer {
    rows: usize,
    n: usize,
    epsilon: f64,
    rms: bool,
    scale: Option<super::index::Walk<1>>,
    bias: Option<super::index::Walk<1>>,
    wants: [bool; 3],
}

/// Mean and inverse deviation of a row, in sixteen chains.
struct Moments<'a, F> {
    x: &'a [F],
    rms: bool,
    epsilon: f64,
}

impl<F: Float> Loop for Moments<'_, F> {
    type Out = (f64, f64);
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) -> (f64, f64) {
        const LANES: usize = 16;
        let n = self.x.len() as f64;
        let (whole, rest) = self.x.as_chunks::<LANES>();
        let mut mean = 0.0;
        if !self.rms {
            let mut sums = [0.0_f64; LANES];
            for chunk in whole {
                for l in 0..LANES {
                    sums[l] += chunk[l].f64();
                }
            }
            sums.iter_mut().zip(rest).for_each(|(s, v)| *s += v.f64());
            mean = sums.iter().sum::<f64>() / n;
        }
        let mut sums = [0.0_f64; LANES];
        for chunk in whole {
            for l in 0..LANES {
                let d = chunk[l].f64() - mean;
                sums[l] += d * d;
            }
        }
        sums.iter_mut()
            .zip(rest)
            .for_each(|(s, v)| *s += (v.f64() - mean) * (v.f64() - mean));
        (
            mean,
            1.0 / (sums.iter().sum::<f64>() / n + self.epsilon).sqrt(),
        )
    }
}

struct Scaled<'a, F> {
    x: &'a [F],
    y: &'a mut [F],
    mean: F,
    by: F,
    scale: Option<&'a [F]>,
    bias: Option<&'a [F]>,
}

impl<F: Float> Loop for Scaled<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let Self {
            x,
            y,
            mean,
            by,
            scale,
            bias,
        } = self;
        for (y, &x) in y.iter_mut().zip(x) {
            *y = (x - mean) * by;
        }
        if let Some(scale) = scale {
            y.iter_mut().zip(scale).for_each(|(y, &s)| *y = *y * s);
        }
        if let Some(bias) = bias {
            y.iter_mut().zip(bias).for_each(|(y, &b)| *y += b);
        }
    }
}

impl FloatBody for Layer {
    fn run<F: Float>(&self, t: &mut Tensors<'_>) {
        let (x, scale, bias) = (t.get::<F>(0), t.opt::<F>(1), t.opt::<F>(2));
        let y = if self.wants[0] {
            t.out::<F>(0)
        } else {
            &mut []
        };
        let mut next = usize::from(self.wants[0]);
        let means = if self.wants[1] {
            next += 1;
            t.out::<f32>(next - 1)
        } else {
            &mut []
        };
        let deviations = if self.wants[2] {
            t.out::<f32>(next)
        } else {
            &mut []
        };
        // Parameters of the rows' own shape need no walk.
        let whole = |p: Option<&'_ [F]>| p.is_some_and(|p| p.len() == self.n);
        for r in 0..self.rows {
            let x = &x[r * self.n..][..self.n];
            let (mean, by) = simd::dispatch(Moments {
                x,
                rms: self.rms,
                epsilon: self.epsilon,
            });
            if let Some(m) = means.get_mut(r) {
                *m = mean as f32
            }
            if let Some(d) = deviations.get_mut(r) {
                *d = by as f32
            }
            let Some(y) = y.get_mut(r * self.n..(r + 1) * self.n) else {
                continue;
            };
            simd::dispatch(Scaled {
                x,
                y,
                mean: F::of(mean),
                by: F::of(by),
                scale: scale.filter(|p| whole(Some(p))),
                bias: bias.filter(|p| whole(Some(p))),
            });
            let mut spread =
                |walk: &Option<super::index::Walk<1>>, p: Option<&[F]>, f: fn(F, F) -> F| {
                    let (Some(walk), Some(p)) = (walk, p.filter(|p| !whole(Some(p)))) else {
                        return;
                    };
                    walk.each(|to, [from]| {
                        for i in 0..walk.inner {
                            y[to + i] = f(y[to + i], p[from + i * walk.step[0] as usize]);
                        }
                    });
                };
            spread(&self.scale, scale, |y, s| y * s);
            spread(&self.bias, bias, |y, b| y + b);
        }
    }
}

/// Instance and group normalisation; also over the first dimensions alone.
pub(super) struct GroupNormSpec {
    pub(super) groups: usize,
    pub(super) epsilon: f64,
}

impl GroupNormSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            groups: cx.args.uint("num_groups", 1, 1 << 30)? as usize,
            epsilon: epsilon(cx)?,
        })
    }

    /// Each channel is a group.
    pub(super) fn of_instance(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            groups: cx.dims(0)?.get(1).copied().unwrap_or(0),
            epsilon: epsilon(cx)?,
        })
    }
}

pub(super) fn group(cx: &Cx<'_>, spec: &GroupNormSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let channels = dims.get(1).copied().unwrap_or(0);
    let groups = spec.groups;
    if channels == 0 || groups == 0 || !channels.is_multiple_of(groups) {
        return Err(cx.refuse(
            0,
            format!("has {channels} channels"),
            format!("a multiple of {groups} groups"),
        ));
    }
    // Up to opset 20 there is one scale for each group.
    let each = if cx
        .opt(1)
        .is_some_and(|s| s.ty.elements() as usize == groups)
    {
        groups
    } else {
        channels
    };
    per_channel(cx, 1, each)?;
    per_channel(cx, 2, each)?;
    struct Group {
        channels: usize,
        groups: usize,
        plane: usize,
        each: usize,
        epsilon: f64,
    }
    impl FloatBody for Group {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (x, scale, bias, y) = (t.get::<F>(0), t.get::<F>(1), t.get::<F>(2), t.out::<F>(0));
            let per = self.channels / self.groups;
            let size = per * self.plane;
            for (i, (x, y)) in x
                .chunks_exact(size)
                .zip(y.chunks_exact_mut(size))
                .enumerate()
            {
                let (mean, by) = simd::dispatch(Moments {
                    x,
                    rms: false,
                    epsilon: self.epsilon,
                });
                for (c, (x, y)) in x
                    .chunks_exact(self.plane)
                    .zip(y.chunks_exact_mut(self.plane))
                    .enumerate()
                {
                    let c = (i % self.groups * per + c) * self.each / self.channels;
                    let a = F::of(by) * scale[c];
                    for (y, &x) in y.iter_mut().zip(x) {
                        *y = (x - F::of(mean)) * a + bias[c];
                    }
                }
            }
        }
    }
    let body = Group {
        channels,
        groups,
        plane: volume(&dims[2..]).max(1),
        each,
        epsilon: spec.epsilon,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &dims)], body).flops(8.0 * volume(&dims) as f64))
}

/// Local response normalisation over neighbouring channels.
#[derive(Clone, Copy)]
pub(super) struct LrnSpec {
    /// Channels that count.
    pub(super) size: usize,
    pub(super) alpha: f64,
    pub(super) beta: f64,
    pub(super) bias: f64,
}

impl LrnSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            size: cx.args.uint("size", 1, 1 << 20)? as usize,
            alpha: cx.args.float_or("alpha", 1e-4)?,
            beta: cx.args.float_or("beta", 0.75)?,
            bias: cx.args.float_or("bias", 1.0)?,
        })
    }
}

pub(super) fn lrn(cx: &Cx<'_>, spec: &LrnSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    if dims.len() < 2 {
        return Err(cx.refuse(
            0,
            format!("is {}", cx.operand(0)?.ty),
            "[n, channels, spatial…]",
        ));
    }
    struct Lrn {
        shape: (usize, usize, usize),
        size: usize,
        alpha: f64,
        beta: f64,
        bias: f64,
    }
    struct Row<'a, F> {
        x: &'a [F],
        y: &'a mut [F],
        alpha: F,
        bias: F,
        beta: F,
    }
    impl<F: Float> Loop for Row<'_, F> {
        type Out = ();
        #[inline(always)]
        fn run<const FMA: bool>(self, _: Isa<FMA>) {
            if self.beta == F::of(0.75) {
                for (y, &x) in self.y.iter_mut().zip(self.x) {
                    let root = (self.bias + self.alpha * *y).sqrt();
                    *y = x / (root * root.sqrt());
                }
                return;
            }
            for (y, &x) in self.y.iter_mut().zip(self.x) {
                *y = x / (self.bias + self.alpha * *y).powf(self.beta);
            }
        }
    }
    impl FloatBody for Lrn {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (x, y) = (t.get::<F>(0), t.out::<F>(0));
            let (batch, channels, plane) = self.shape;
            let (below, above) = ((self.size - 1) / 2, self.size / 2);
            let alpha = F::of(self.alpha / self.size as f64);
            for (b, c) in (0..batch).flat_map(|b| (0..channels).map(move |c| (b, c))) {
                let row = |c: usize| &x[(b * channels + c) * plane..][..plane];
                let y = &mut y[(b * channels + c) * plane..][..plane];
                y.fill(F::ZERO);
                for k in c.saturating_sub(below)..=(c + above).min(channels - 1) {
                    y.iter_mut().zip(row(k)).for_each(|(y, &x)| *y += x * x);
                }
                simd::dispatch(Row {
                    x: row(c),
                    y,
                    alpha,
                    bias: F::of(self.bias),
                    beta: F::of(self.beta),
                });
            }
        }
    }
    let body = Lrn {
        shape: (dims[0], dims[1], volume(&dims[2..])),
        size: spec.size,
        alpha: spec.alpha,
        beta: spec.beta,
        bias: spec.bias,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &dims)], body).flops(20.0 * volume(&dims) as f64))
}

/// Division by the norm along an axis.
pub(super) struct LpNormSpec {
    pub(super) axis: usize,
    /// 1 or 2.
    pub(super) exponent: u64,
}

impl LpNormSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            axis: cx.axis_param(-1, cx.dims(0)?.len())?,
            exponent: cx.args.uint_or("p", 2, 1, 2)?,
        })
    }
}

pub(super) fn lp(cx: &Cx<'_>, spec: &LpNormSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let axis = spec.axis;
    struct Lp {
        shape: (usize, usize, usize),
        p: i64,
    }
    impl FloatBody for Lp {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (x, y) = (t.get::<F>(0), t.out::<F>(0));
            let (outer, n, inner) = self.shape;
            for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
                let at = |k: usize| (o * n + k) * inner + i;
                let term = |k: usize| {
                    let v = x[at(k)].f64().abs();
                    if self.p == 1 { v } else { v * v }
                };
                let sum: f64 = (0..n).map(term).sum();
                let norm = if self.p == 1 { sum } else { sum.sqrt() };
                (0..n).for_each(|k| {
                    y[at(k)] = if norm == 0.0 {
                        F::ZERO
                    } else {
                        F::of(x[at(k)].f64() / norm)
                    }
                });
            }
        }
    }
    let body = Lp {
        shape: around(&dims, axis),
        p: spec.exponent as i64,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &dims)], body))
}

/// Mean taken off and deviation brought to 1 over axes, by default batch and space.
pub(super) struct MeanVarianceSpec {
    pub(super) axes: Vec<usize>,
}

/// What is added to the deviation.
pub(super) const MEAN_VARIANCE_EPSILON: f64 = 1e-9;

impl MeanVarianceSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let rank = cx.dims(0)?.len();
        let axes = cx.args.ints_opt("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
        let axes: Result<Vec<usize>, OpError> =
            axes.iter().map(|&axis| cx.axis(axis, rank)).collect();
        Ok(Self { axes: axes? })
    }
}

pub(super) fn mean_variance(cx: &Cx<'_>, spec: &MeanVarianceSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let axes = &spec.axes;
    let own = super::index::strides(&dims);
    struct Mvn {
        kept: Vec<(usize, usize)>,
        over: Vec<(usize, usize)>,
    }
    /// Place of element n of dimensions given as (size, stride).
    fn place(mut n: usize, dims: &[(usize, usize)]) -> usize {
        dims.iter()
            .rev()
            .map(|&(d, s)| {
                let at = n % d * s;
                n /= d;
                at
            })
            .sum()
    }
    impl FloatBody for Mvn {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (x, y) = (t.get::<F>(0), t.out::<F>(0));
            let count = |d: &[(usize, usize)]| d.iter().map(|d| d.0).product::<usize>();
            let n = count(&self.over);
            for k in 0..count(&self.kept) {
                let first = place(k, &self.kept);
                let all = || (0..n).map(|i| first + place(i, &self.over));
                let mean = all().map(|i| x[i].f64()).sum::<f64>() / n as f64;
                let var = all().map(|i| (x[i].f64() - mean).powi(2)).sum::<f64>() / n as f64;
                all().for_each(|i| {
                    y[i] = F::of((x[i].f64() - mean) / (var.sqrt() + MEAN_VARIANCE_EPSILON))
                });
            }
        }
    }
    let pick = |inside: bool| {
        (0..dims.len())
            .filter(|d| axes.contains(d) == inside)
            .map(|d| (dims[d], own[d]))
            .collect()
    };
    let body = Mvn {
        kept: pick(false),
        over: pick(true),
    };
    Ok(Plan::float(dtype, vec![token(dtype, &dims)], body))
}

/// The determinant of square matrices, by elimination.
pub(super) fn det(cx: &Cx<'_>) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let [batch @ .., a, b] = dims.as_slice() else {
        return Err(cx.refuse(0, format!("is {}", cx.operand(0)?.ty), "square matrices"));
    };
    if a != b || *a == 0 {
        return Err(cx.refuse(0, format!("is {}", cx.operand(0)?.ty), "square matrices"));
    }
    struct Det(usize);
    impl FloatBody for Det {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (x, y) = (t.get::<F>(0), t.out::<F>(0));
            let n = self.0;
            let m = t.scratch::<F>();
            for (x, y) in x.chunks_exact(n * n).zip(y) {
                m[..n * n].copy_from_slice(x);
                let mut det = F::ONE;
                for c in 0..n {
                    let pivot = (c..n).max_by(|&a, &b| {
                        m[a * n + c]
                            .abs()
                            .partial_cmp(&m[b * n + c].abs())
                            .unwrap_or(std::cmp::Ordering::Equal)
                    });
                    let pivot = pivot.unwrap_or(c);
                    if m[pivot * n + c] == F::ZERO {
                        det = F::ZERO;
                        break;
                    }
                    if pivot != c {
                        (0..n).for_each(|j| m.swap(pivot * n + j, c * n + j));
                        det = -det;
                    }
                    det = det * m[c * n + c];
                    for r in c + 1..n {
                        let f = m[r * n + c] / m[c * n + c];
                        (c..n).for_each(|j| m[r * n + j] = m[r * n + j] - f * m[c * n + j]);
                    }
                }
                *y = det;
            }
        }
        fn scratch_elements(&self) -> usize {
            self.0 * self.0
        }
    }
    Ok(Plan::float(dtype, vec![token(dtype, batch)], Det(*a)))
}
