//! Transforms and what belongs to them: DFT, STFT, windows, mel weights.

use std::sync::Arc;

use num_complex::Complex;
use zbmd_fft::{self as transforms, Fft, FftDirection};
use zbmd_ir::DType;

use super::cx::{Body, Cx, Plan, Planned, Tensors, token, volume};
use super::num::{Float, Num};
use super::reduce::around;
use zbmd_op::OpError;

/// Longest transform or window, as of the op `Fft`: planning one takes a hundred bytes a point and more.
const MAX_POINTS: usize = 1 << 24;

fn points(cx: &Cx<'_>, i: usize, given: Option<i64>, default: usize) -> Result<usize, OpError> {
    let n = given.map_or(Some(default), |n| usize::try_from(n).ok());
    n.filter(|n| (1..=MAX_POINTS).contains(n)).ok_or_else(|| {
        cx.refuse(
            i,
            format!("asks for {given:?} points"),
            format!("1 to {MAX_POINTS}"),
        )
    })
}

fn first(v: Option<Vec<i64>>) -> Option<i64> {
    v.and_then(|v| v.first().copied())
}

/// A transform of lines of a tensor, in f64.
struct Dft {
    fft: Arc<dyn Fft<f64>>,
    points: usize,
    shape: (usize, usize, usize),
    /// Parts of an element: 1 for real, 2 for complex numbers.
    parts: (usize, usize),
    /// Elements kept along the axis.
    kept: usize,
    inverse: bool,
    /// Whether half a spectrum comes in.
    half: bool,
}

/// A transform along an axis.
pub(super) struct DftSpec {
    pub(super) axis: usize,
    pub(super) inverse: bool,
    /// Whether half a spectrum comes out, or, if it is inverse, in.
    pub(super) onesided: bool,
    /// How many points are asked for.
    pub(super) points: Option<i64>,
}

impl DftSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let axis = first(cx.ints(2)?).unwrap_or(-2);
        Ok(Self {
            axis: cx.axis(axis, cx.dims(0)?.len())?,
            inverse: cx.flag("inverse", false)?,
            onesided: cx.flag("onesided", false)?,
            points: first(cx.ints(1)?),
        })
    }
}

pub(super) fn dft(cx: &Cx<'_>, spec: &DftSpec) -> Planned {
    let dtype = cx.expect(0, &[DType::F32, DType::F16, DType::Bf16])?;
    let from = cx.dims(0)?;
    let Some((&parts, lead)) = from
        .split_last()
        .filter(|(p, l)| (1..=2).contains(*p) && !l.is_empty())
    else {
        return Err(cx.refuse(
            0,
            format!("is {}", cx.operand(0)?.ty),
            "a last dimension of 1 or 2: real or complex",
        ));
    };
    let axis = spec.axis;
    if axis + 1 >= from.len() {
        return Err(cx.refuse(
            2,
            "is the dimension of real and imaginary parts",
            "choose another",
        ));
    }
    let inverse = spec.inverse;
    let onesided = spec.onesided;
    let half = inverse && onesided;
    let natural = if half {
        2 * from[axis].saturating_sub(1)
    } else {
        from[axis]
    };
    let n = points(cx, 1, spec.points, natural)?;
    let kept = if onesided && !inverse { n / 2 + 1 } else { n };
    let out_parts = if half { 1 } else { 2 };
    let mut out = lead.to_vec();
    out[axis] = kept;
    out.push(out_parts);
    let shape = around(lead, axis);
    let flops = 10.0 * volume(&out) as f64 * (n as f64).log2().max(1.0);
    Ok(Plan::lazy(vec![token(dtype, &out)], move || {
        let direction = if inverse {
            FftDirection::Inverse
        } else {
            FftDirection::Forward
        };
        Ok(Box::new(Dft {
            fft: transforms::complex_f64(n, direction),
            points: n,
            shape,
            parts: (parts, out_parts),
            kept,
            inverse,
            half,
        }))
    })
    .flops(flops))
}

impl Body for Dft {
    fn run(&self, t: &mut Tensors<'_>) {
        let (x, y) = (t.get::<f32>(0), t.out::<f32>(0));
        let (line, work) = t.scratch::<Complex<f64>>().split_at_mut(self.points);
        let (outer, n, inner) = self.shape;
        let (from, to) = self.parts;
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            for (k, v) in line.iter_mut().enumerate() {
                let source = |k: usize| {
                    let at = ((o * n + k) * inner + i) * from;
                    Complex::new(
                        f64::from(x[at]),
                        if from == 2 { f64::from(x[at + 1]) } else { 0.0 },
                    )
                };
                // The other half of a spectrum mirrors the given one.
                *v = match () {
                    () if self.half && k > self.points / 2 && self.points - k < n => {
                        source(self.points - k).conj()
                    }
                    () if k < n && !(self.half && k > self.points / 2) => source(k),
                    () => Complex::new(0.0, 0.0),
                };
            }
            self.fft
                .process_with_scratch(line, &mut work[..self.fft.get_inplace_scratch_len()]);
            let scale = if self.inverse {
                1.0 / self.points as f64
            } else {
                1.0
            };
            for (k, v) in line[..self.kept].iter().enumerate() {
                let at = ((o * self.kept + k) * inner + i) * to;
                y[at] = (v.re * scale) as f32;
                if to == 2 {
                    y[at + 1] = (v.im * scale) as f32;
                }
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        16 * (self.points + self.fft.get_inplace_scratch_len())
    }
}

/// Transforms of overlapping frames under a window.
pub(super) struct StftSpec {
    /// Elements from a frame to the next, if they are asked for.
    pub(super) step: Option<i64>,
    /// Points of a frame, if they are asked for.
    pub(super) points: Option<i64>,
    onesided: bool,
}

impl StftSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            step: first(cx.ints(1)?),
            points: first(cx.ints(3)?),
            onesided: cx.flag("onesided", true)?,
        })
    }
}

pub(super) fn stft(cx: &Cx<'_>, spec: &StftSpec) -> Planned {
    let dtype = cx.expect(0, &[DType::F32, DType::F16, DType::Bf16])?;
    let from = cx.dims(0)?;
    let (batch, len, parts) = match from[..] {
        [b, n] => (b, n, 1),
        [b, n, p @ 1..=2] => (b, n, p),
        _ => {
            return Err(cx.refuse(
                0,
                format!("is {}", cx.operand(0)?.ty),
                "[n, length, 1 or 2]",
            ));
        }
    };
    let window = cx.opt(2).map(|w| w.ty.elements() as usize);
    let n = points(cx, 3, spec.points, window.unwrap_or(len))?;
    let step = points(cx, 1, spec.step, 1)?;
    if n > len || window.is_some_and(|w| w != n) {
        return Err(cx.refuse(
            0,
            format!("has {len} elements, frames {n}, the window {window:?}"),
            "frames as long as the window, within the signal",
        ));
    }
    let onesided = spec.onesided && parts == 1;
    let (frames, kept) = (1 + (len - n) / step, if onesided { n / 2 + 1 } else { n });
    struct Stft {
        fft: Arc<dyn Fft<f32>>,
        size: (usize, usize, usize),
        step: usize,
        n: usize,
        shape: (usize, usize),
    }
    impl Body for Stft {
        fn run(&self, t: &mut Tensors<'_>) {
            let (x, window, y) = (t.get::<f32>(0), t.opt::<f32>(2), t.out::<f32>(0));
            let (line, work) = t.scratch::<Complex<f32>>().split_at_mut(self.n);
            let ((batch, len, parts), (frames, kept)) = (self.size, self.shape);
            for (b, f) in (0..batch).flat_map(|b| (0..frames).map(move |f| (b, f))) {
                for (k, v) in line.iter_mut().enumerate() {
                    let at = (b * len + f * self.step + k) * parts;
                    let w = window.map_or(1.0, |w| w[k]);
                    *v = Complex::new(x[at] * w, if parts == 2 { x[at + 1] * w } else { 0.0 });
                }
                self.fft
                    .process_with_scratch(line, &mut work[..self.fft.get_inplace_scratch_len()]);
                let y = &mut y[(b * frames + f) * kept * 2..][..kept * 2];
                for (y, v) in y.chunks_exact_mut(2).zip(line.iter()) {
                    (y[0], y[1]) = (v.re, v.im);
                }
            }
        }
        fn scratch_bytes(&self) -> usize {
            8 * (self.n + self.fft.get_inplace_scratch_len())
        }
    }
    let out = token(dtype, &[batch, frames, kept, 2]);
    let flops = 10.0 * out.elements() as f64 * (n as f64).log2().max(1.0);
    Ok(Plan::lazy(vec![out], move || {
        Ok(Box::new(Stft {
            fft: transforms::complex_f32(n, FftDirection::Forward),
            size: (batch, len, parts),
            step,
            n,
            shape: (frames, kept),
        }))
    })
    .flops(flops))
}

/// Hann, Hamming and Blackman windows of a constant length.
pub(super) fn window(cx: &Cx<'_>, name: &str) -> Planned {
    let n = points(cx, 0, first(cx.ints(0)?), 1)?;
    let terms: [f64; 3] = match name {
        "HannWindow" => [0.5, 0.5, 0.0],
        "HammingWindow" => [25.0 / 46.0, 21.0 / 46.0, 0.0],
        _ => [0.42, 0.5, 0.08],
    };
    let periodic = cx.flag("periodic", true)?;
    fn make<T: Num>(out: zbmd_ir::TokenType, n: usize, terms: [f64; 3], periodic: bool) -> Planned {
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            let round = if periodic {
                n
            } else {
                n.saturating_sub(1).max(1)
            } as f64;
            for (i, y) in t.out::<T>(0).iter_mut().enumerate() {
                let turn = std::f64::consts::TAU * i as f64 / round;
                *y = T::of(terms[0] - terms[1] * turn.cos() + terms[2] * (2.0 * turn).cos());
            }
        }))
    }
    let dtype = cx.args.dtype_or("dtype", DType::F32)?;
    super::cx::by_element!(dtype, make(token(dtype, &[n]), n, terms, periodic))
}

/// Triangles on the mel scale.
pub(super) fn mel(cx: &Cx<'_>) -> Planned {
    let bands = points(cx, 0, first(cx.ints(0)?), 1)?;
    let n = points(cx, 1, first(cx.ints(1)?), 1)?;
    let rate = Ord::max(first(cx.ints(2)?).unwrap_or(1), 1) as f64;
    let edge = |i: usize| -> Result<f64, OpError> {
        Ok(cx
            .floats(i)?
            .and_then(|v| v.first().copied())
            .unwrap_or(0.0))
    };
    let mel = |f: f64| 2595.0 * (f / 700.0).ln_1p() / std::f64::consts::LN_10;
    let (low, high) = (mel(edge(3)?), mel(edge(4)?));
    let rows = n / 2 + 1;
    let bin = |i: usize| {
        let at = low + i as f64 * (high - low) / (bands + 2) as f64;
        let hertz = 700.0 * (at / 2595.0 * std::f64::consts::LN_10).exp_m1();
        ((n + 1) as f64 * hertz / rate).floor().max(0.0) as usize
    };
    if rows.saturating_mul(bands) > 1 << 24 {
        return Err(cx.refuse(
            0,
            format!("makes {rows} by {bands} weights"),
            "fewer bands or points",
        ));
    }
    if bin(bands + 1) > rows {
        return Err(cx.refuse(
            4,
            "lies beyond half the sample rate",
            "lower the upper edge",
        ));
    }
    let mut table = vec![0.0; rows * bands];
    for i in 0..bands {
        let (l, c, h) = (bin(i), bin(i + 1), bin(i + 2));
        let mut put = |j: usize, v: f64| {
            if let Some(cell) = table.get_mut(j * bands + i) {
                *cell = v;
            }
        };
        if l == c {
            put(c, 1.0);
        } else {
            (l..=c).for_each(|j| put(j, (j - l) as f64 / (c - l) as f64));
        }
        (c..h).for_each(|j| put(j, (h - j) as f64 / (h - c) as f64));
    }
    fn make<T: Num>(out: zbmd_ir::TokenType, table: Vec<f64>) -> Planned {
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            t.out::<T>(0)
                .iter_mut()
                .zip(&table)
                .for_each(|(y, &v)| *y = T::of(v));
        }))
    }
    let dtype = cx.args.dtype_or("dtype", DType::F32)?;
    super::cx::by_element!(dtype, make(token(dtype, &[rows, bands]), table))
}

/// Numbers from a start to a limit, all constants.
pub(super) fn range(cx: &Cx<'_>) -> Planned {
    let dtype = cx.dtype(0)?;
    for i in 0..3 {
        super::cx::expect_count(cx, i, &[1], dtype)?;
    }
    let get = |i: usize| -> Result<f64, OpError> {
        Ok(cx
            .floats(i)?
            .and_then(|v| v.first().copied())
            .unwrap_or(0.0))
    };
    let (start, limit, delta) = (get(0)?, get(1)?, get(2)?);
    let count = ((limit - start) / delta).ceil().max(0.0);
    if !count.is_finite() || count > f64::from(u32::MAX) {
        return Err(cx.refuse(
            2,
            format!("is {delta}: the range never ends"),
            "a step towards the limit",
        ));
    }
    fn make<T: Num>(out: zbmd_ir::TokenType, start: f64, delta: f64) -> Planned {
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            for (i, y) in t.out::<T>(0).iter_mut().enumerate() {
                *y = T::of(start + delta * i as f64);
            }
        }))
    }
    super::cx::by_element!(dtype, make(token(dtype, &[count as usize]), start, delta))
}

/// How losses are taken together.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Reduction {
    None,
    Sum,
    Mean,
}

/// The loss of scores, or of logarithms of probabilities.
pub(super) struct LossSpec {
    pub(super) of_scores: bool,
    pub(super) reduction: Reduction,
    /// The class that has no loss.
    pub(super) ignored_class: Option<i64>,
}

impl LossSpec {
    pub(super) fn of(cx: &Cx<'_>, of_scores: bool) -> Result<Self, OpError> {
        let reduction = match cx.args.word_opt("reduction")?.unwrap_or("mean") {
            "none" => Reduction::None,
            "sum" => Reduction::Sum,
            "mean" => Reduction::Mean,
            other => {
                return Err(cx
                    .args
                    .unknown_word("reduction", other, &["none", "sum", "mean"]));
            }
        };
        let ignored_class = match cx.args.get("ignore_index") {
            Some(_) => Some(cx.args.int_or("ignore_index", 0)?),
            None => None,
        };
        Ok(Self {
            of_scores,
            reduction,
            ignored_class,
        })
    }
}

/// Negative log-likelihood of targets, of logarithms of probabilities or (`softmax`) of scores.
pub(super) fn loss(cx: &Cx<'_>, spec: &LossSpec) -> Planned {
    let dtype = cx.expect(0, &super::cx::FLOATS)?;
    let from = cx.dims(0)?;
    if from.len() < 2 || cx.dims(1)? != [&from[..1], &from[2..]].concat() {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            format!("`x` is {}", cx.operand(0)?.ty),
        ));
    }
    super::cx::expect_count(cx, 2, &[from[1]], dtype)?;
    struct Loss {
        shape: (usize, usize, usize),
        target: DType,
        ignore: Option<i64>,
        reduction: Reduction,
        softmax: bool,
        wants: [bool; 2],
    }
    impl super::cx::FloatBody for Loss {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (x, target, weight) = (t.get::<F>(0), t.bytes(1), t.opt::<F>(2));
            let loss = if self.wants[0] {
                t.out::<F>(0)
            } else {
                &mut []
            };
            let logs = if self.wants[1] {
                t.out::<F>(usize::from(self.wants[0]))
            } else {
                &mut []
            };
            let (outer, n, inner) = self.shape;
            let (mut sum, mut weights) = (0.0, 0.0);
            for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
                let at = |k: usize| (o * n + k) * inner + i;
                let mut norm = 0.0;
                if self.softmax {
                    let top = (0..n)
                        .map(|k| x[at(k)].f64())
                        .fold(f64::NEG_INFINITY, f64::max);
                    norm = (0..n)
                        .map(|k| (x[at(k)].f64() - top).exp())
                        .sum::<f64>()
                        .ln()
                        + top;
                    for k in 0..n {
                        if let Some(l) = logs.get_mut(at(k)) {
                            *l = F::of(x[at(k)].f64() - norm);
                        }
                    }
                }
                let class = super::cx::index_at(target, self.target, o * inner + i);
                let place = usize::try_from(class)
                    .ok()
                    .filter(|k| *k < n && self.ignore != Some(class));
                let w = place.map_or(0.0, |k| weight.map_or(1.0, |w| w[k].f64()));
                let l = place.map_or(0.0, |k| -w * (x[at(k)].f64() - norm));
                (sum, weights) = (sum + l, weights + w);
                if let (Reduction::None, Some(cell)) =
                    (&self.reduction, loss.get_mut(o * inner + i))
                {
                    *cell = F::of(l);
                }
            }
            if self.reduction != Reduction::None {
                loss.fill(F::of(if self.reduction == Reduction::Mean {
                    sum / weights
                } else {
                    sum
                }));
            }
        }
    }
    let reduction = spec.reduction;
    let small = if reduction == Reduction::None {
        cx.dims(1)?
    } else {
        Vec::new()
    };
    let outs = cx
        .wanted
        .iter()
        .map(|&o| token(dtype, if o == 0 { &small } else { &from }))
        .collect();
    let body = Loss {
        shape: around(&from, 1),
        target: super::cx::computed(cx.dtype(1)?),
        ignore: spec.ignored_class,
        reduction,
        softmax: spec.of_scores,
        wants: [cx.wants(0), cx.wants(1)],
    };

    Ok(Plan::float(dtype, outs, body).flops(20.0 * volume(&from) as f64))
}
