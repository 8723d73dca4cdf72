//! Pools: the greatest element, the mean or the norm of each window.

use zbmd_ir::DType;

use super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, by_num, token, volume};
use super::num::{Float, Num};
use super::window::Window;
use zbmd_op::OpError;

fn window(cx: &Cx<'_>) -> Result<(Window, Vec<usize>), OpError> {
    let dims = cx.dims(0)?;
    if dims.len() < 3 {
        return Err(cx.refuse(
            0,
            format!("is {}", cx.operand(0)?.ty),
            "[n, channels, spatial…]",
        ));
    }
    if cx.args.get("kernel_shape").is_none() {
        return Err(cx.args.error(
            "kernel_shape",
            "is missing",
            "one size for each spatial dimension",
        ));
    }
    let kernel = cx.sizes("kernel_shape", dims.len() - 2, 1)?;
    let window = Window::new(cx, &dims[2..], &kernel)?;
    let out = [&dims[..2], window.out_dims()].concat();
    Ok((window, out))
}

/// What becomes of the elements of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PoolKind {
    Max,
    Mean,
    /// The norm with that exponent.
    Norm(i64),
}

impl PoolKind {
    pub(super) fn norm(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self::Norm(cx.args.int_or("p", 2)?))
    }

    /// The exponent of a norm; 0 for others.
    pub(super) fn exponent(self) -> i64 {
        match self {
            Self::Norm(exponent) => exponent,
            Self::Max | Self::Mean => 0,
        }
    }
}

/// A pool over windows.
pub(super) struct PoolSpec {
    pub(super) kind: PoolKind,
    pub(super) window: Window,
    /// Dimensions of the result.
    pub(super) out: Vec<usize>,
    /// Whether places are counted column by column.
    pub(super) by_columns: bool,
    /// Whether padding counts as elements of a mean.
    pub(super) counts_padding: bool,
}

impl PoolSpec {
    pub(super) fn of(cx: &Cx<'_>, kind: PoolKind) -> Result<Self, OpError> {
        let (window, out) = window(cx)?;
        Ok(Self {
            kind,
            window,
            out,
            by_columns: cx.args.int_or("storage_order", 0)? != 0,
            counts_padding: cx.flag("count_include_pad", false)?,
        })
    }

    pub(super) fn of_norm(cx: &Cx<'_>) -> Result<Self, OpError> {
        Self::of(cx, PoolKind::norm(cx)?)
    }
}

pub(super) fn max_pool(cx: &Cx<'_>, spec: &PoolSpec) -> Planned {
    let w = spec.window.clone();
    let out = spec.out.clone();
    let dtype = cx.dtype(0)?;
    let columns = spec.by_columns;
    let outs: Vec<_> = cx
        .wanted
        .iter()
        .map(|&o| token(if o == 0 { dtype } else { DType::I64 }, &out))
        .collect();
    let flops = 3.0 * volume(&out) as f64 * volume(&w.kernel) as f64;
    fn make<T: Num>(
        outs: Vec<zbmd_ir::TokenType>,
        w: Window,
        columns: bool,
        wants: [bool; 2],
    ) -> Planned {
        Ok(Plan::new(outs, move |t: &mut Tensors<'_>| {
            let x = t.get::<T>(0);
            let y = if wants[0] { t.out::<T>(0) } else { &mut [] };
            let places = if wants[1] {
                t.out::<i64>(usize::from(wants[0]))
            } else {
                &mut []
            };
            if places.is_empty() {
                return max_rows(&w, x, y);
            }
            let (plane, out, _) = w.sizes();
            for (p, x) in x.chunks_exact(plane).enumerate() {
                w.each(|n, o| {
                    let mut best: Option<usize> = None;
                    w.cover(o, |_, i| {
                        if best.is_none_or(|b| x[i] > x[b] || (x[i].is_nan() && !x[b].is_nan())) {
                            best = Some(i);
                        }
                    });
                    let best = best.unwrap_or(0);
                    if let Some(y) = y.get_mut(p * out + n) {
                        *y = x[best];
                    }
                    let [_, h, width] = w.input;
                    let (z, r, c) = (best / (h * width), best / width % h, best % width);
                    let place = if columns {
                        (z * width + c) * h + r
                    } else {
                        best
                    };
                    places[p * out + n] = (p * plane + place) as i64;
                });
            }
        }))
    }
    let wants = [cx.wants(0), cx.wants(1)];
    Ok(by_num!(dtype, make(outs, w, columns, wants))?.flops(flops))
}

/// The greatest of each window, a kernel element at a time over whole rows.
fn max_rows<T: Num>(w: &Window, x: &[T], y: &mut [T]) {
    let (plane, out, _) = w.sizes();
    y.fill(T::LEAST);
    for (x, y) in x.chunks_exact(plane).zip(y.chunks_exact_mut(out)) {
        let rows = (0..w.output[0]).flat_map(|z| (0..w.output[1]).map(move |r| (z, r)));
        for ((z, r), y) in rows.zip(y.chunks_exact_mut(w.output[2])) {
            for (a, b) in (0..w.kernel[0]).flat_map(|a| (0..w.kernel[1]).map(move |b| (a, b))) {
                let (Some(z), Some(r)) = (w.place(0, z, a), w.place(1, r, b)) else {
                    continue;
                };
                let line = &x[(z * w.input[1] + r) * w.input[2]..][..w.input[2]];
                for c in 0..w.kernel[2] {
                    let shift = (c * w.dilation[2]) as isize - w.before[2] as isize;
                    row_max(line, y, w.stride[2], shift);
                }
            }
        }
    }
}

#[inline]
fn row_max<T: Num>(line: &[T], y: &mut [T], stride: usize, shift: isize) {
    // Outputs whose element lies in the line: from the first o with o·stride + shift ≥ 0.
    let first = if shift < 0 {
        shift.unsigned_abs().div_ceil(stride)
    } else {
        0
    };
    let start = (first * stride) as isize + shift;
    let Some(line) = usize::try_from(start).ok().and_then(|s| line.get(s..)) else {
        return;
    };
    let Some(y) = y.get_mut(first..) else { return };
    if stride == 1 {
        y.iter_mut().zip(line).for_each(|(y, &x)| *y = y.max(x));
    } else {
        y.iter_mut()
            .zip(line.iter().step_by(stride))
            .for_each(|(y, &x)| *y = y.max(x));
    }
}

pub(super) fn mean_pool(cx: &Cx<'_>, spec: &PoolSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let out = &spec.out;
    let body = MeanPool {
        padding: spec.counts_padding,
        p: spec.kind.exponent() as f64,
        w: spec.window.clone(),
    };
    let flops = 3.0 * volume(out) as f64 * volume(&body.w.kernel) as f64;
    Ok(Plan::float(dtype, vec![token(dtype, out)], body).flops(flops))
}

struct MeanPool {
    w: Window,
    /// Whether padding counts as elements.
    padding: bool,
    /// Exponent of a norm; 0 for the mean.
    p: f64,
}

impl MeanPool {
    /// Elements that a window covers, padding included but nothing beyond it.
    fn count(&self, o: [usize; 3]) -> usize {
        (0..3).map(|d| self.w.reached(d, o[d])).product()
    }
}

impl FloatBody for MeanPool {
    fn run<F: Float>(&self, t: &mut Tensors<'_>) {
        let (x, y) = (t.get::<F>(0), t.out::<F>(0));
        let (plane, out, _) = self.w.sizes();
        for (x, y) in x.chunks_exact(plane).zip(y.chunks_exact_mut(out)) {
            self.w.each(|n, o| {
                let (mut sum, mut count) = (F::ZERO, 0);
                self.w.cover(o, |_, i| {
                    count += 1;
                    sum += match self.p {
                        0.0 => x[i],
                        2.0 => x[i] * x[i],
                        p => x[i].abs().powf(F::of(p)),
                    };
                });
                y[n] = match self.p {
                    0.0 => sum / F::of(if self.padding { self.count(o) } else { count } as f64),
                    p => sum.powf(F::of(1.0 / p)),
                };
            });
        }
    }
}

/// One window that covers everything.
pub(super) fn global(cx: &Cx<'_>, kind: &PoolKind) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    if dims.len() < 2 {
        return Err(cx.refuse(
            0,
            format!("is {}", cx.operand(0)?.ty),
            "[n, channels, spatial…]",
        ));
    }
    let out: Vec<usize> = dims
        .iter()
        .enumerate()
        .map(|(i, &d)| if i < 2 { d } else { 1 })
        .collect();
    struct Global {
        plane: usize,
        max: bool,
        p: f64,
    }
    impl FloatBody for Global {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (x, y) = (t.get::<F>(0), t.out::<F>(0));
            for (x, y) in x.chunks_exact(self.plane.max(1)).zip(y) {
                if self.max {
                    *y = x.iter().fold(F::LEAST, |m, &v| m.max(v));
                    continue;
                }
                let mut sums = [0.0; 8];
                for (i, v) in x.iter().enumerate() {
                    sums[i % 8] += if self.p == 0.0 {
                        v.f64()
                    } else {
                        v.f64().abs().powf(self.p)
                    };
                }
                let sum: f64 = sums.iter().sum();
                *y = F::of(if self.p == 0.0 {
                    sum / x.len() as f64
                } else {
                    sum.powf(1.0 / self.p)
                });
            }
        }
    }
    let body = Global {
        plane: volume(&dims[2..]),
        max: *kind == PoolKind::Max,
        p: kind.exponent() as f64,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &out)], body).flops(volume(&dims) as f64))
}

/// Puts the greatest elements back to where they came from.
pub(super) fn max_unpool(cx: &Cx<'_>) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let n = dims.len().saturating_sub(2);
    let kernel = cx.sizes("kernel_shape", n, 1)?;
    let (stride, pads) = (cx.sizes("strides", n, 1)?, cx.sizes("pads", 2 * n, 0)?);
    if n == 0 || cx.dims(1)? != dims || dims.contains(&0) {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            format!("`x` is {}", cx.operand(0)?.ty),
        ));
    }
    let side = |d: usize| {
        ((dims[2 + d] - 1)
            .saturating_mul(stride[d])
            .saturating_add(kernel[d]))
        .saturating_sub(pads[d] + pads[n + d])
    };
    let inferred: Vec<usize> = dims[..2].iter().copied().chain((0..n).map(side)).collect();
    let out: Vec<usize> = match cx.ints(2)? {
        Some(shape) => shape.iter().map(|&d| Ord::max(d, 0) as usize).collect(),
        None => inferred.clone(),
    };
    if out.len() != dims.len() || out.iter().zip(&inferred).any(|(o, i)| o < i) {
        return Err(cx.refuse(2, format!("is {out:?}"), format!("at least {inferred:?}")));
    }
    let itype = cx.expect(1, &[DType::I64])?;
    struct Unpool {
        inferred: Vec<usize>,
        to: Vec<usize>,
        itype: DType,
    }
    impl FloatBody for Unpool {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (x, at, y) = (t.get::<F>(0), t.bytes(1), t.out::<F>(0));
            y.fill(F::ZERO);
            for (i, &x) in x.iter().enumerate() {
                let Ok(mut place) = usize::try_from(super::cx::index_at(at, self.itype, i)) else {
                    continue;
                };
                let mut to = 0;
                for (d, s) in self.inferred.iter().zip(&self.to).rev() {
                    to += place % d * s;
                    place /= d;
                }
                if place == 0 {
                    y[to] = x;
                }
            }
        }
    }
    let body = Unpool {
        to: super::index::strides(&out),
        inferred,
        itype,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &out)], body))
}
