//! Images: resizing, sampling at given places, grids of places.

use std::sync::Arc;

use super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token, volume};
use super::num::Float;
use super::reduce::around;
use zbmd_op::OpError;

/// What a resized element is made of: places along the axis and their weights.
#[derive(Clone)]
pub(super) struct Axis {
    pub(super) axis: usize,
    /// For each output element, `taps` pairs.
    pub(super) places: Vec<u32>,
    pub(super) weights: Vec<f64>,
    pub(super) taps: usize,
    /// Outputs that lie outside and take the extrapolation value.
    pub(super) outside: Vec<bool>,
}

/// How a tensor is resized: axis after axis.
#[derive(Clone)]
pub(super) struct Resized {
    pub(super) passes: Vec<Axis>,
    pub(super) out: Vec<usize>,
    pub(super) extrapolation: f64,
    nearest: bool,
}

/// How one axis is resized.
struct Rule<'a> {
    mode: &'a str,
    coordinates: &'a str,
    nearest: &'a str,
    cubic: f64,
    antialias: bool,
    exclude: bool,
}

impl Rule<'_> {
    /// Where output element `i` lies in the input.
    fn source(&self, i: f64, scale: f64, n: usize, out: usize, roi: (f64, f64)) -> Option<f64> {
        let (width, wide) = (n as f64, scale * n as f64);
        Some(match self.coordinates {
            "align_corners" => {
                if wide == 1.0 {
                    0.0
                } else {
                    i * (width - 1.0) / (wide - 1.0)
                }
            }
            "asymmetric" => i / scale,
            "tf_crop_and_resize" => {
                let span = roi.1 - roi.0;
                let at = if wide == 1.0 {
                    span * (width - 1.0) / 2.0
                } else {
                    i * span * (width - 1.0) / (wide - 1.0)
                };
                let at = at + roi.0 * (width - 1.0);
                return (0.0..=width - 1.0).contains(&at).then_some(at);
            }
            "pytorch_half_pixel" if wide == 1.0 => -0.5,
            "half_pixel_symmetric" => {
                width / 2.0 * (1.0 - out as f64 / wide) + (i + 0.5) / scale - 0.5
            }
            _ => (i + 0.5) / scale - 0.5,
        })
    }

    /// Weights of the elements around a place that lies `ratio` in (0, 1] behind the middle one.
    fn weights(&self, ratio: f64, scale: f64) -> Vec<f64> {
        let a = self.cubic;
        let near = |x: f64| ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
        let far = |x: f64| ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
        let small = scale.min(1.0);
        let normal = |w: Vec<f64>| {
            let sum: f64 = w.iter().sum();
            w.into_iter().map(|v| v / sum).collect()
        };
        match self.mode {
            "nearest" => {
                let up = match self.nearest {
                    _ if ratio == 1.0 => true,
                    "round_prefer_floor" => ratio > 0.5,
                    "round_prefer_ceil" => ratio >= 0.5,
                    other => other == "ceil",
                };
                if up { vec![0.0, 1.0] } else { vec![1.0, 0.0] }
            }
            "linear" if self.antialias => {
                let start = (-1.0 / small).floor() as i64 + 1;
                let taps = 2 - 2 * start;
                normal(
                    (start..start + taps)
                        .map(|k| (1.0 - ((k as f64 - ratio) * small).abs()).clamp(0.0, 1.0))
                        .collect(),
                )
            }
            "cubic" if self.antialias => {
                let start = (-2.0 / small).floor() as i64 + 1;
                let weight = |k: i64| match (small * (k as f64 - ratio)).abs() {
                    x if x <= 1.0 => near(x),
                    x if x < 2.0 => far(x),
                    _ => 0.0,
                };
                normal((start..2 - start).map(weight).collect())
            }
            "linear" => vec![1.0 - ratio, ratio],
            _ => vec![
                far(ratio + 1.0),
                near(ratio),
                near(1.0 - ratio),
                far(2.0 - ratio),
            ],
        }
    }

    fn axis(&self, axis: usize, n: usize, out: usize, scale: f64, roi: (f64, f64)) -> Axis {
        let mut built = Axis {
            axis,
            places: Vec::new(),
            weights: Vec::new(),
            taps: 0,
            outside: Vec::new(),
        };
        for i in 0..out {
            let at = self.source(i as f64, scale, n, out, roi);
            built.outside.push(at.is_none());
            let at = at.unwrap_or(0.0);
            let ratio = if at.fract() == 0.0 {
                1.0
            } else {
                at - at.floor()
            };
            let mut weights = self.weights(ratio, scale);
            built.taps = weights.len();
            let first = at.ceil() as i64 - weights.len() as i64 / 2;
            if self.exclude {
                for (k, w) in weights.iter_mut().enumerate() {
                    if !(0..n as i64).contains(&(first + k as i64)) {
                        *w = 0.0;
                    }
                }
                let sum: f64 = weights.iter().sum();
                weights.iter_mut().for_each(|w| *w /= sum);
            }
            let place = |k: usize| (first + k as i64).clamp(0, n as i64 - 1) as u32;
            built.places.extend((0..weights.len()).map(place));
            built.weights.extend(weights);
        }
        built
    }
}

/// Operands: x, roi, scales, sizes.
pub(super) fn resized(cx: &Cx<'_>) -> Result<Resized, OpError> {
    let dtype = cx.dtype(0)?;
    let from = cx.dims(0)?;
    let rank = from.len();
    let axes: Vec<usize> = match cx.args.ints_opt("axes")? {
        Some(axes) => axes
            .iter()
            .map(|&a| cx.axis(a, rank))
            .collect::<Result<_, _>>()?,
        None => (0..rank).collect(),
    };
    let (mut scale, mut out) = (vec![1.0; rank], from.clone());
    let sizes = cx.ints(3)?.filter(|s| !s.is_empty());
    let scales = cx.floats(2)?.filter(|s| !s.is_empty());
    let roi = cx.floats(1)?.unwrap_or_default();
    let given = sizes
        .as_ref()
        .map(Vec::len)
        .or(scales.as_ref().map(Vec::len))
        .unwrap_or(0);
    if given != axes.len() || from.contains(&0) || (!roi.is_empty() && roi.len() < 2 * axes.len()) {
        return Err(cx.refuse(
            0,
            format!(
                "has {} axes to resize, {given} sizes or scales are given",
                axes.len()
            ),
            "one for each axis",
        ));
    }
    if let Some(sizes) = &sizes {
        let each: Vec<f64> = axes
            .iter()
            .zip(sizes)
            .map(|(&a, &s)| s.max(1) as f64 / from[a] as f64)
            .collect();
        let one = match cx.args.word_opt("keep_aspect_ratio_policy")? {
            Some("not_larger") => Some(each.iter().copied().fold(f64::INFINITY, f64::min)),
            Some("not_smaller") => Some(each.iter().copied().fold(0.0, f64::max)),
            _ => None,
        };
        for (i, &a) in axes.iter().enumerate() {
            scale[a] = one.unwrap_or(each[i]);
            out[a] = if one.is_some() {
                (scale[a] * from[a] as f64 + 0.5).floor() as usize
            } else {
                sizes[i].max(1) as usize
            };
        }
    } else if let Some(scales) = &scales {
        for (i, &a) in axes.iter().enumerate() {
            // Scales are stored as f32; sizes follow from the number that was meant.
            scale[a] = scales[i];
            out[a] = (from[a] as f64 * scales[i])
                .floor()
                .clamp(0.0, f64::from(u32::MAX)) as usize;
        }
    }
    if scale.iter().any(|s| *s <= 0.0 || !s.is_finite()) || out.contains(&0) {
        return Err(cx.refuse(
            2,
            format!("makes {out:?} of {from:?}"),
            "scales above 0 that leave at least one element",
        ));
    }
    if token(dtype, &out).bytes() > zbmd_ir::limits::MAX_TOKEN_BYTES {
        return Err(cx.refuse(2, format!("makes {out:?}"), "it would be too large"));
    }
    let large = |v: &[usize]| axes.iter().any(|&a| v[a] > 1 << 22 && scale[a] != 1.0);
    if large(&from) || large(&out) {
        return Err(cx.refuse(
            0,
            format!("is {}, to be {out:?}", cx.operand(0)?.ty),
            "sides of at most 4194304",
        ));
    }
    let rule = Rule {
        mode: cx.args.word_opt("mode")?.unwrap_or("nearest"),
        coordinates: cx
            .args
            .word_opt("coordinate_transformation_mode")?
            .unwrap_or("half_pixel"),
        nearest: cx
            .args
            .word_opt("nearest_mode")?
            .unwrap_or("round_prefer_floor"),
        cubic: cx.args.float_or("cubic_coeff_a", -0.75)?,
        antialias: cx.flag("antialias", false)?,
        exclude: cx.flag("exclude_outside", false)?,
    };
    let mut passes = Vec::new();
    for (i, &a) in axes.iter().enumerate() {
        let crop = if roi.is_empty() {
            (0.0, 1.0)
        } else {
            (roi[i], roi[i + axes.len()])
        };
        if out[a] != from[a] || scale[a] != 1.0 || rule.coordinates == "tf_crop_and_resize" {
            passes.push(rule.axis(a, from[a], out[a], scale[a], crop));
        }
    }
    let nearest = rule.mode == "nearest";
    Ok(Resized {
        passes,
        out,
        nearest,
        extrapolation: cx.args.float_or("extrapolation_value", 0.0)?,
    })
}

pub(super) fn resize(cx: &Cx<'_>, spec: &Resized) -> Planned {
    let Resized {
        passes,
        out,
        extrapolation,
        nearest: is_nearest,
    } = spec.clone();
    let (dtype, from) = (cx.dtype(0)?, cx.dims(0)?);
    let ty = token(dtype, &out);
    let flops = 8.0 * volume(&out) as f64 * passes.iter().map(|p| p.taps).sum::<usize>() as f64;
    if is_nearest || !FLOATS.contains(&dtype) {
        if !passes.iter().all(|p| p.outside.iter().all(|o| !o)) || !is_nearest {
            return Err(cx.refuse(
                0,
                format!("is {}", cx.operand(0)?.ty),
                "cast to f32 to interpolate",
            ));
        }
        return nearest(cx, &from, &out, &passes);
    }
    // Intermediate results: each pass resizes one axis.
    let mut shapes = vec![from.clone()];
    for p in &passes {
        let mut next = shapes[shapes.len() - 1].clone();
        next[p.axis] = out[p.axis];
        shapes.push(next);
    }
    let largest = shapes.iter().map(|s| volume(s)).max().unwrap_or(0);
    let body = Resize {
        passes,
        shapes,
        largest,
        extrapolation,
    };
    Ok(Plan::float(dtype, vec![ty], body).flops(flops))
}

/// Nearest elements: every output element is a copy.
fn nearest(cx: &Cx<'_>, from: &[usize], out: &[usize], passes: &[Axis]) -> Planned {
    let dtype = cx.dtype(0)?;
    // Narrow types come to the body widened: the op is one of those that `Halves` wraps.
    let size = super::cx::computed(dtype).size_bytes() as usize;
    let own = super::index::strides(from);
    let lines: Vec<Vec<usize>> = (0..from.len())
        .map(|a| match passes.iter().find(|p| p.axis == a) {
            None => (0..out[a]).map(|i| i * own[a]).collect(),
            Some(p) => p
                .places
                .chunks_exact(2)
                .zip(p.weights.chunks_exact(2))
                .map(|(at, w)| at[usize::from(w[1] == 1.0)] as usize * own[a])
                .collect(),
        })
        .collect();
    let steps = super::index::strides(out);
    let place = move |n: usize| {
        let mut rest = n;
        let mut at = 0;
        for (line, step) in lines.iter().zip(&steps) {
            at += line[rest / step];
            rest %= step;
        }
        at
    };
    let (place, count) = (Arc::new(place), volume(out));
    let chosen = Arc::clone(&place);
    let table = Arc::new(move || (0..count).map(|n| chosen(n) as u32).collect::<Vec<u32>>());
    // No operand has the number of the fill value, which no element takes.
    let moves = super::gpu::Moves::Chosen {
        table,
        fill: usize::MAX,
    };
    Ok(
        Plan::new(vec![token(dtype, out)], move |t: &mut Tensors<'_>| {
            let (x, y) = (t.bytes(0), t.out_bytes(0));
            for (n, y) in y.chunks_exact_mut(size).enumerate() {
                y.copy_from_slice(&x[place(n) * size..][..size]);
            }
        })
        .moves(moves),
    )
}

struct Resize {
    passes: Vec<Axis>,
    shapes: Vec<Vec<usize>>,
    largest: usize,
    extrapolation: f64,
}

impl FloatBody for Resize {
    fn run<F: Float>(&self, t: &mut Tensors<'_>) {
        let (x, y) = (t.get::<F>(0), t.out::<F>(0));
        let (a, b) = t.scratch::<F>().split_at_mut(self.largest);
        a[..x.len()].copy_from_slice(x);
        let (mut from, mut to) = (a, &mut b[..self.largest]);
        for (p, shape) in self.passes.iter().zip(&self.shapes) {
            let (outer, n, inner) = around(shape, p.axis);
            let count = p.outside.len();
            for (o, k) in (0..outer).flat_map(|o| (0..count).map(move |k| (o, k))) {
                for i in 0..inner {
                    let pairs = p.places[k * p.taps..]
                        .iter()
                        .zip(&p.weights[k * p.taps..])
                        .take(p.taps);
                    let sum = pairs.fold(F::ZERO, |s, (&at, &w)| {
                        s + F::of(w) * from[(o * n + at as usize) * inner + i]
                    });
                    to[(o * count + k) * inner + i] = sum;
                }
            }
            std::mem::swap(&mut from, &mut to);
        }
        y.copy_from_slice(&from[..y.len()]);
        // What lies outside along any axis is not an image any more.
        let Some(out) = self.shapes.last() else {
            return;
        };
        for p in &self.passes {
            let (outer, count, inner) = around(out, p.axis);
            for (o, k) in (0..outer).flat_map(|o| (0..count).map(move |k| (o, k))) {
                if p.outside[k] {
                    y[(o * count + k) * inner..][..inner].fill(F::of(self.extrapolation));
                }
            }
        }
    }

    fn scratch_elements(&self) -> usize {
        2 * self.largest
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Border {
    Zeros,
    Clamp,
    Reflect,
}

struct Sample {
    batch: usize,
    channels: usize,
    /// Input and output dimensions, two or three.
    dims: Vec<usize>,
    out: usize,
    taps: usize,
    border: Border,
    corners: bool,
}

/// Elements of an image at given places.
pub(super) struct GridSampleSpec {
    /// Elements along each dimension that a result is made from: 1, 2 or 4.
    pub(super) taps: usize,
    pub(super) border: Border,
    /// Whether −1 and 1 are the centres of the outermost elements.
    pub(super) aligns_corners: bool,
}

impl GridSampleSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let taps = match cx.args.word_opt("mode")?.unwrap_or("linear") {
            "nearest" => 1,
            "linear" | "bilinear" => 2,
            "cubic" | "bicubic" => 4,
            other => {
                return Err(cx
                    .args
                    .unknown_word("mode", other, &["linear", "nearest", "cubic"]));
            }
        };
        let border = match cx.args.word_opt("padding_mode")?.unwrap_or("zeros") {
            "zeros" => Border::Zeros,
            "border" => Border::Clamp,
            "reflection" => Border::Reflect,
            other => {
                return Err(cx.args.unknown_word(
                    "padding_mode",
                    other,
                    &["zeros", "border", "reflection"],
                ));
            }
        };
        Ok(Self {
            taps,
            border,
            aligns_corners: aligns_corners(cx)?,
        })
    }
}

/// Whether −1 and 1 are the centres of the outermost elements.
fn aligns_corners(cx: &Cx<'_>) -> Result<bool, OpError> {
    cx.flag("align_corners", false)
}

/// Elements of an image at places that a grid names, in [−1, 1].
pub(super) fn grid_sample(cx: &Cx<'_>, spec: &GridSampleSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let (x, grid) = (cx.dims(0)?, cx.dims(1)?);
    let n = x.len().saturating_sub(2);
    if !(2..=3).contains(&n)
        || grid.len() != n + 2
        || grid[0] != x[0]
        || grid[n + 1] != n
        || cx.dtype(1)? != dtype
        || x.contains(&0)
    {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            format!("`x` is {}", cx.operand(0)?.ty),
        ));
    }
    let taps = spec.taps;
    let out = [&x[..2], &grid[1..=n]].concat();
    let body = Sample {
        batch: x[0],
        channels: x[1],
        dims: x[2..].to_vec(),
        out: volume(&grid[1..=n]),
        taps,
        border: spec.border,
        corners: spec.aligns_corners,
    };
    let flops = 10.0 * (volume(&out) * taps.pow(n as u32)) as f64;
    Ok(Plan::float(dtype, vec![token(dtype, &out)], body).flops(flops))
}

fn reflect(v: f64, low: f64, high: f64) -> f64 {
    let span = high - low;
    if span <= 0.0 {
        return low;
    }
    let over = if v < low {
        low - v
    } else if v > high {
        v - high
    } else {
        return v;
    };
    let (turns, rest) = ((over / span).trunc(), over % span);
    let from_low = (v < low) == (turns % 2.0 == 0.0);
    if from_low { low + rest } else { high - rest }
}

impl Sample {
    fn edges(&self, d: usize) -> (f64, f64) {
        let n = self.dims[d] as f64;
        if self.corners {
            (0.0, n - 1.0)
        } else {
            (-0.5, n - 0.5)
        }
    }

    /// First place and weights along dimension d of a coordinate in [−1, 1].
    fn along(&self, d: usize, v: f64) -> (i64, [f64; 4]) {
        let n = self.dims[d] as f64;
        let mut at = if self.corners {
            (v + 1.0) / 2.0 * (n - 1.0)
        } else {
            ((v + 1.0) * n - 1.0) / 2.0
        };
        // The reference rounds coordinates to f32; nearest elements depend on it.
        at = f64::from(at as f32);
        if self.taps == 1 {
            at = at.round_ties_even();
        }
        let (low, high) = self.edges(d);
        if at < low || at > high {
            match self.border {
                Border::Clamp => at = at.clamp(0.0, n - 1.0),
                Border::Reflect => at = reflect(at, low, high),
                Border::Zeros => {}
            }
        }
        // Whatever is so far away is outside of any image, and places beside it stay within i64.
        if !at.is_finite() || at.abs() > 1e15 {
            return (-10, [0.0; 4]);
        }
        let (floor, r) = (at.floor(), at - at.floor());
        let a = -0.75;
        let near = |x: f64| ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
        let far = |x: f64| ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
        match self.taps {
            1 => (at.trunc() as i64, [1.0, 0.0, 0.0, 0.0]),
            2 => (floor as i64, [1.0 - r, r, 0.0, 0.0]),
            _ => (
                floor as i64 - 1,
                [far(r + 1.0), near(r), near(1.0 - r), far(2.0 - r)],
            ),
        }
    }

    /// The element's place along d, if there is one.
    fn inside(&self, d: usize, i: i64) -> Option<usize> {
        let n = self.dims[d] as i64;
        let i = match self.border {
            Border::Zeros => i,
            Border::Clamp => i.clamp(0, n - 1),
            Border::Reflect => {
                let (low, high) = self.edges(d);
                (reflect(i as f64, low, high) as i64).clamp(0, n - 1)
            }
        };
        usize::try_from(i).ok().filter(|i| (*i as i64) < n)
    }
}

impl FloatBody for Sample {
    fn run<F: Float>(&self, t: &mut Tensors<'_>) {
        let (x, grid, y) = (t.get::<F>(0), t.get::<F>(1), t.out::<F>(0));
        let (rank, plane) = (self.dims.len(), volume(&self.dims));
        for (b, o) in (0..self.batch).flat_map(|b| (0..self.out).map(move |o| (b, o))) {
            let place = &grid[(b * self.out + o) * rank..][..rank];
            let mut along = [(0, [1.0, 0.0, 0.0, 0.0]); 3];
            for d in 0..rank {
                // Grids name the last dimension first.
                along[3 - rank + d] = self.along(d, place[rank - 1 - d].f64());
            }
            for c in 0..self.channels {
                let x = &x[(b * self.channels + c) * plane..][..plane];
                let mut sum = 0.0;
                let depth = if rank == 3 { self.taps } else { 1 };
                for (i, j, k) in (0..depth).flat_map(|i| {
                    (0..self.taps).flat_map(move |j| (0..self.taps).map(move |k| (i, j, k)))
                }) {
                    let w = along[0].1[i] * along[1].1[j] * along[2].1[k];
                    let z = if rank == 3 {
                        self.inside(0, along[0].0 + i as i64)
                    } else {
                        Some(0)
                    };
                    let (r, e) = (
                        self.inside(rank - 2, along[1].0 + j as i64),
                        self.inside(rank - 1, along[2].0 + k as i64),
                    );
                    if let (Some(z), Some(r), Some(e)) = (z, r, e) {
                        sum += w * x[(z * self.dims[rank - 2] + r) * self.dims[rank - 1] + e].f64();
                    }
                }
                y[(b * self.channels + c) * self.out + o] = F::of(sum);
            }
        }
    }
}

/// Places of an affine transformation, for [`grid_sample`].
pub(super) fn affine_grid(cx: &Cx<'_>) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let size: Vec<usize> = cx
        .ints(1)?
        .unwrap_or_default()
        .iter()
        .map(|&s| s.max(0) as usize)
        .collect();
    let n = size.len().saturating_sub(2);
    if !(2..=3).contains(&n) || cx.dims(0)? != [size[0], n, n + 1] || size.contains(&0) {
        return Err(cx.refuse(
            0,
            format!("is {}", cx.operand(0)?.ty),
            "[n, 2, 3] for four sizes, [n, 3, 4] for five",
        ));
    }
    struct Grid {
        dims: Vec<usize>,
        corners: bool,
    }
    impl FloatBody for Grid {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (theta, y) = (t.get::<F>(0), t.out::<F>(0));
            let (n, plane) = (self.dims.len(), volume(&self.dims));
            for (o, y) in y.chunks_exact_mut(n).enumerate() {
                let (b, mut rest) = (o / plane, o % plane);
                let mut at = [1.0; 4];
                // The first coordinate belongs to the last dimension.
                for (i, &d) in self.dims.iter().rev().enumerate() {
                    let k = (rest % d) as f64;
                    rest /= d;
                    at[i] = if self.corners {
                        if d > 1 {
                            -1.0 + 2.0 * k / (d - 1) as f64
                        } else {
                            0.0
                        }
                    } else {
                        (2.0 * k + 1.0) / d as f64 - 1.0
                    };
                }
                at[n] = 1.0;
                for (r, y) in y.iter_mut().enumerate() {
                    let row = &theta[(b * n + r) * (n + 1)..][..n + 1];
                    *y = F::of(row.iter().zip(at).map(|(t, a)| t.f64() * a).sum());
                }
            }
        }
    }
    let out = [&size[..1], &size[2..], &[n]].concat();
    let body = Grid {
        dims: size[2..].to_vec(),
        corners: aligns_corners(cx)?,
    };

    Ok(Plan::float(dtype, vec![token(dtype, &out)], body))
}
