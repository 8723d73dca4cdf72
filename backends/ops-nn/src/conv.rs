//! Convolutions: by products of matrices over gathered windows, depthwise ones directly.
//!
//! The input is padded once in scratch memory, so that every window lies inside; tables of offsets then tell where
//! its elements are, whatever strides and dilations. Columns of windows are gathered for a block of outputs and
//! multiplied with the weights as they lie.

use zbmd_ir::{DType, TokenType};

use super::cx::{
    Body, Cx, FLOATS, FloatBody, Plan, Planned, Tensors, constant_f32, expect_count, index_at,
    token, volume,
};
use super::gemm::{Act, Extra, Left, PANEL, Tile, gemm};
use super::matmul::act;
use super::num::Float;
use super::window::Window;
use zbmd_op::OpError;
use zbmd_op::simd::{self, Isa, Loop, fma};

/// Sizes of a convolution.
#[derive(Clone)]
pub(super) struct ConvShape {
    pub(super) batch: usize,
    pub(super) channels: usize,
    pub(super) filters: usize,
    pub(super) groups: usize,
    pub(super) window: Window,
}

impl ConvShape {
    fn of(cx: &Cx<'_>, x: usize, w: usize) -> Result<Self, OpError> {
        let (input, weights) = (cx.dims(x)?, cx.dims(w)?);
        let groups = cx.args.uint_or("group", 1, 1, 1 << 30)? as usize;
        let fits = input.len() >= 3
            && weights.len() == input.len()
            && weights[1].checked_mul(groups) == Some(input[1])
            && weights[0].is_multiple_of(groups)
            && weights[0] > 0
            && input[0] > 0;
        if !fits {
            let message = format!("is {}, the input {}", cx.operand(w)?.ty, cx.operand(x)?.ty);
            return Err(cx.refuse(
                w,
                message,
                format!("[filters, channels / {groups}, kernel…]"),
            ));
        }
        let window = Window::new(cx, &input[2..], &weights[2..])?;
        Ok(Self {
            batch: input[0],
            channels: input[1],
            filters: weights[0],
            groups,
            window,
        })
    }

    fn out(&self, dtype: DType) -> TokenType {
        token(
            dtype,
            &[&[self.batch, self.filters], self.window.out_dims()].concat(),
        )
    }

    fn flops(&self) -> f64 {
        let (_, out, kernel) = self.window.sizes();
        let each = kernel as f64 * (self.channels / self.groups) as f64;
        2.0 * self.batch as f64 * self.filters as f64 * out as f64 * each
    }
}

/// A convolution of floats, and an activation.
pub(super) struct ConvSpec {
    pub(super) shape: ConvShape,
    pub(super) act: Act,
}

impl ConvSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        cx.expect(0, &FLOATS)?;
        Ok(Self {
            shape: ConvShape::of(cx, 0, 1)?,
            act: act(cx)?,
        })
    }
}

pub(super) fn conv(cx: &Cx<'_>, spec: &ConvSpec) -> Planned {
    let dtype = cx.dtype(0)?;
    let s = spec.shape.clone();
    check_bias(cx, 2, s.filters)?;
    let channels = s.channels / s.groups;
    check_tables(
        &s.window,
        volume(&s.window.kernel).saturating_mul(channels),
        channels,
    )?;
    let (out, flops) = (vec![s.out(dtype)], s.flops());
    let act = spec.act;
    if let Some(added) = cx.opt(3)
        && added.ty != out[0]
    {
        return Err(cx.refuse(
            3,
            format!("is {}", added.ty),
            format!("the result is {}", out[0]),
        ));
    }
    if dtype == DType::F64 {
        return Ok(Plan::float(dtype, out, Direct(s)).flops(8.0 * flops));
    }
    if s.channels == s.groups
        && s.filters == s.groups
        && s.window.input[0] == 1
        && s.window.kernel[0] == 1
    {
        return Ok(
            Plan::lazy(out, move || Ok(Box::new(Depthwise::new(s, act)))).flops(3.0 * flops),
        );
    }
    let make = move |tile| Ok(Box::new(Gathered::new(s, (act, tile))) as Box<dyn Body>);
    Ok(Plan::in_variants(out, &Tile::ALL, make).flops(flops))
}

/// Refuses a convolution whose tables of places would be too large, one entry for each output and each of `weights`
/// weights of a filter, and one whose padded input, of so many channels at a time, has places beyond 32 bits.
pub(super) fn check_tables(
    window: &Window,
    weights: usize,
    channels: usize,
) -> Result<(), OpError> {
    let (_, outputs, _) = window.sizes();
    let entries = outputs.saturating_add(weights) as u64;
    if entries > zbmd_ir::limits::MAX_TABLE_ELEMENTS {
        return Err(Cx::other(
            format!(
                "{outputs} outputs and {weights} weights of a filter make tables of {entries} places"
            ),
            format!("the limit is {}", zbmd_ir::limits::MAX_TABLE_ELEMENTS),
        ));
    }

    let (padded, _) = padded_dims(window);
    let elements = volume(&padded).saturating_mul(channels);
    if elements > u32::MAX as usize {
        return Err(Cx::other(
            format!("the padded input has {elements} elements"),
            format!("the limit is {}: pad less, or split the input", u32::MAX),
        ));
    }
    Ok(())
}

/// Refuses a bias, operand `i`, that is not one number for each filter.
fn check_bias(cx: &Cx<'_>, i: usize, filters: usize) -> Result<(), OpError> {
    match cx.opt(i) {
        Some(bias) if bias.dims() != [filters] => {
            Err(cx.refuse(i, format!("is {}", bias.ty), format!("it is [{filters}]")))
        }
        _ => Ok(()),
    }
}

/// Plain loops: f64.
struct Direct(ConvShape);

impl FloatBody for Direct {
    fn run<F: Float>(&self, t: &mut Tensors<'_>) {
        let (x, w, bias, y) = (t.get::<F>(0), t.get::<F>(1), t.opt::<F>(2), t.out::<F>(0));
        let s = &self.0;
        let (plane, out, kernel) = s.window.sizes();
        let (per, filters) = (s.channels / s.groups, s.filters / s.groups);
        for (b, f) in (0..s.batch).flat_map(|b| (0..s.filters).map(move |f| (b, f))) {
            let first = (b * s.channels + f / filters * per) * plane;
            s.window.each(|n, o| {
                let mut sum = bias.map_or(F::ZERO, |b| b[f]);
                for c in 0..per {
                    s.window.cover(o, |k, i| {
                        sum += w[(f * per + c) * kernel + k] * x[first + c * plane + i]
                    });
                }
                y[(b * s.filters + f) * out + n] = sum;
            });
        }
    }
}

/// A plane of the input with its padding: dimensions, and whether there is any.
#[derive(Clone)]
struct Padded {
    dims: [usize; 3],
    plane: usize,
    any: bool,
}

/// Dimensions of an input with its padding, and whether there is any.
pub(super) fn padded_dims(w: &Window) -> ([usize; 3], bool) {
    // As far as the last window reaches, and at least the input itself.
    let need = |d: usize| (w.output[d] - 1) * w.stride[d] + (w.kernel[d] - 1) * w.dilation[d] + 1;
    let dims: [usize; 3] = std::array::from_fn(|d| need(d).max(w.input[d] + w.before[d]));
    (dims, dims != w.input)
}

impl Padded {
    fn new(w: &Window) -> Self {
        let (dims, any) = padded_dims(w);
        Self {
            dims,
            plane: volume(&dims),
            any,
        }
    }

    /// Copies planes of the input, zeros around them.
    fn fill(&self, w: &Window, x: &[f32], to: &mut [f32]) {
        let [depth, height, width] = w.input;
        let plane = volume(&w.input);
        to.fill(0.0);
        for (x, to) in x.chunks_exact(plane).zip(to.chunks_exact_mut(self.plane)) {
            for (z, y) in (0..depth).flat_map(|z| (0..height).map(move |y| (z, y))) {
                let at = ((z + w.before[0]) * self.dims[1] + y + w.before[1]) * self.dims[2]
                    + w.before[2];
                to[at..at + width].copy_from_slice(&x[(z * height + y) * width..][..width]);
            }
        }
    }

    fn offset(&self, z: usize, y: usize, x: usize) -> usize {
        (z * self.dims[1] + y) * self.dims[2] + x
    }
}

/// Windows gathered into columns, then a product.
struct Gathered {
    s: ConvShape,
    padded: Padded,
    act: Act,
    tile: Tile,
    /// Offset of each output's window in a padded plane; rounded up to whole panels with repetitions of the last.
    spots: Vec<u32>,
    /// Offset of each element of a window, over all channels of a group.
    taps: Vec<u32>,
    /// Outputs of a block and window elements multiplied at a time.
    columns: usize,
    depth: usize,
}

impl Gathered {
    fn new(s: ConvShape, (act, tile): (Act, Tile)) -> Self {
        let padded = Padded::new(&s.window);
        let per = s.channels / s.groups;
        let w = &s.window;
        let (_, out, kernel) = w.sizes();
        let mut spots = Vec::with_capacity(out.next_multiple_of(PANEL));
        w.each(|_, o| {
            spots.push(
                padded.offset(o[0] * w.stride[0], o[1] * w.stride[1], o[2] * w.stride[2]) as u32,
            );
        });
        let last = spots.last().copied().unwrap_or(0);
        spots.resize(out.next_multiple_of(PANEL), last);
        let mut taps = Vec::with_capacity(per * kernel);
        for c in 0..per {
            for (a, b) in (0..w.kernel[0]).flat_map(|a| (0..w.kernel[1]).map(move |b| (a, b))) {
                for e in 0..w.kernel[2] {
                    let at = padded.offset(a * w.dilation[0], b * w.dilation[1], e * w.dilation[2]);
                    taps.push((c * padded.plane + at) as u32);
                }
            }
        }
        let depth = taps.len().clamp(1, 512);
        let columns = (65_536 / depth / PANEL * PANEL)
            .clamp(PANEL, 4096)
            .min(spots.len());
        Self {
            s,
            padded,
            act,
            tile,
            spots,
            taps,
            columns,
            depth,
        }
    }
}

/// Gathers windows into the panels of a packed matrix.
struct Gather<'a> {
    x: &'a [f32],
    spots: &'a [u32],
    taps: &'a [u32],
    to: &'a mut [f32],
}

impl Loop for Gather<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let Self { x, spots, taps, to } = self;
        let panels = to.chunks_exact_mut(taps.len() * PANEL);
        for (spots, panel) in spots.as_chunks::<PANEL>().0.iter().zip(panels) {
            let first = spots[0] as usize;
            let (rows, _) = panel.as_chunks_mut::<PANEL>();
            let reach = spots.iter().map(|&s| s as usize).max().unwrap_or(0);
            if spots
                .iter()
                .enumerate()
                .all(|(i, &s)| s as usize == first + i)
            {
                for (row, &tap) in rows.iter_mut().zip(taps) {
                    let at = first + tap as usize;
                    row.copy_from_slice(&x[at..at + PANEL]);
                }
            } else {
                for (row, &tap) in rows.iter_mut().zip(taps) {
                    let x = &x[tap as usize..tap as usize + reach + 1];
                    for (to, &spot) in row.iter_mut().zip(spots) {
                        *to = x[spot as usize];
                    }
                }
            }
        }
    }
}

impl Body for Gathered {
    fn run(&self, t: &mut Tensors<'_>) {
        let (x, weights, y) = (t.get::<f32>(0), t.get::<f32>(1), t.out::<f32>(0));
        let (bias, added) = (t.opt::<f32>(2), t.opt::<f32>(3));
        let s = &self.s;
        let (plane, out, _) = s.window.sizes();
        let (per, filters, taps) = (s.channels / s.groups, s.filters / s.groups, self.taps.len());
        let (padded, packed) = t.scratch::<f32>().split_at_mut(if self.padded.any {
            per * self.padded.plane
        } else {
            0
        });
        for (b, g) in (0..s.batch).flat_map(|b| (0..s.groups).map(move |g| (b, g))) {
            let x = &x[(b * s.channels + g * per) * plane..][..per * plane];
            let x = if self.padded.any {
                self.padded.fill(&s.window, x, padded);
                &*padded
            } else {
                x
            };
            let first = (b * s.filters + g * filters) * out;
            let y = &mut y[first..][..filters * out];
            if let Some(added) = added {
                y.copy_from_slice(&added[first..][..filters * out]);
            }
            let weights = &weights[g * filters * taps..][..filters * taps];
            for o0 in (0..out).step_by(self.columns) {
                let n = self.columns.min(out - o0);
                let spots = &self.spots[o0..o0 + n.next_multiple_of(PANEL)];
                for k0 in (0..taps).step_by(self.depth) {
                    let k = self.depth.min(taps - k0);
                    let to = &mut packed[..k * spots.len()];
                    simd::dispatch(Gather {
                        x,
                        spots,
                        taps: &self.taps[k0..k0 + k],
                        to,
                    });
                    let last = k0 + k == taps;
                    let extra = Extra {
                        accumulate: k0 > 0 || added.is_some(),
                        row_bias: bias.filter(|_| last).map(|b| &b[g * filters..]),
                        act: if last { self.act } else { Act::None },
                        tile: self.tile,
                        ..Extra::default()
                    };
                    let left = Left {
                        data: &weights[k0..],
                        row: taps,
                        column: 1,
                    };
                    gemm((filters, k, n), left, to, &mut y[o0..], out, extra);
                }
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        let per = self.s.channels / self.s.groups;
        let padded = if self.padded.any {
            per * self.padded.plane
        } else {
            0
        };
        4 * (padded + self.depth * self.columns.next_multiple_of(PANEL))
    }
}

/// One filter for each channel, row by row.
struct Depthwise {
    s: ConvShape,
    padded: Padded,
    act: Act,
}

impl Depthwise {
    fn new(s: ConvShape, act: Act) -> Self {
        let mut padded = Padded::new(&s.window);
        // Vectors of outputs read a little further than the last window.
        let reach = PANEL * s.window.stride[2];
        padded.dims[2] += 0;
        padded.plane = volume(&padded.dims) + reach;
        padded.any = true;
        Self { s, padded, act }
    }
}

struct Plane<'a> {
    /// The padded plane.
    x: &'a [f32],
    taps: &'a [f32],
    bias: f32,
    y: &'a mut [f32],
    w: &'a Window,
    padded: &'a Padded,
    act: Act,
}

impl Plane<'_> {
    /// Sixteen outputs of a row.
    #[inline(always)]
    fn sixteen<const FMA: bool>(&self, row: usize, column: usize) -> [f32; PANEL] {
        let w = self.w;
        let mut sums = [self.bias; PANEL];
        let mut tap = 0;
        for b in 0..w.kernel[1] {
            let line = (row * w.stride[1] + b * w.dilation[1]) * self.padded.dims[2];
            for c in 0..w.kernel[2] {
                let at = line + column * w.stride[2] + c * w.dilation[2];
                let h = self.taps[tap];
                tap += 1;
                match w.stride[2] {
                    1 => {
                        let x = &self.x[at..at + PANEL];
                        sums.iter_mut()
                            .zip(x)
                            .for_each(|(sum, &x)| *sum = fma::<FMA>(x, h, *sum));
                    }
                    2 => {
                        let (pairs, _) = self.x[at..at + 2 * PANEL].as_chunks::<2>();
                        sums.iter_mut()
                            .zip(pairs)
                            .for_each(|(sum, x)| *sum = fma::<FMA>(x[0], h, *sum));
                    }
                    step => {
                        let x = self.x[at..].iter().step_by(step);
                        sums.iter_mut()
                            .zip(x)
                            .for_each(|(sum, &x)| *sum = fma::<FMA>(x, h, *sum));
                    }
                }
            }
        }
        self.act.apply::<FMA>(&mut sums);
        sums
    }
}

impl Loop for Plane<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(mut self, _: Isa<FMA>) {
        let [_, height, width] = self.w.output;
        let y = std::mem::take(&mut self.y);
        for (row, line) in (0..height).zip(y.chunks_exact_mut(width)) {
            for (i, y) in line.chunks_mut(PANEL).enumerate() {
                let sums = self.sixteen::<FMA>(row, i * PANEL);
                y.copy_from_slice(&sums[..y.len()]);
            }
        }
    }
}

impl Body for Depthwise {
    fn run(&self, t: &mut Tensors<'_>) {
        let (x, taps, y) = (t.get::<f32>(0), t.get::<f32>(1), t.out::<f32>(0));
        let (bias, added) = (t.opt::<f32>(2), t.opt::<f32>(3));
        let w = &self.s.window;
        let (plane, out, kernel) = w.sizes();
        let padded = t.scratch::<f32>();
        let act = if added.is_some() { Act::None } else { self.act };
        for (i, (x, y)) in x
            .chunks_exact(plane)
            .zip(y.chunks_exact_mut(out))
            .enumerate()
        {
            let c = i % self.s.channels;
            self.padded.fill(w, x, &mut padded[..self.padded.plane]);
            let taps = &taps[c * kernel..][..kernel];
            let bias = bias.map_or(0.0, |b| b[c]);
            simd::dispatch(Plane {
                x: padded,
                taps,
                bias,
                y,
                w,
                padded: &self.padded,
                act,
            });
            if let Some(added) = added {
                y.iter_mut()
                    .zip(&added[i * out..])
                    .for_each(|(y, a)| *y += a);
                self.act.apply::<false>(y);
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        4 * self.padded.plane
    }
}

/// A transposed convolution. Missing spatial dimensions in front are 1 wide.
#[derive(Clone)]
pub(super) struct TransposedConvSpec {
    /// Spatial dimensions that the tensor really has.
    pub(super) rank: usize,
    pub(super) batch: usize,
    pub(super) channels: usize,
    /// Filters of a group.
    pub(super) per: usize,
    pub(super) groups: usize,
    pub(super) input: [usize; 3],
    pub(super) kernel: [usize; 3],
    pub(super) output: [usize; 3],
    pub(super) stride: [usize; 3],
    pub(super) dilation: [usize; 3],
    /// Padding before each dimension.
    pub(super) pads: [usize; 3],
}

impl TransposedConvSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        cx.expect(0, &FLOATS)?;
        let (input, weights) = (cx.dims(0)?, cx.dims(1)?);
        let groups = cx.args.uint_or("group", 1, 1, 1 << 30)? as usize;
        let rank = input.len().saturating_sub(2);
        let fits = (1..=3).contains(&rank)
            && weights.len() == input.len()
            && weights[0] == input[1]
            && input[1].is_multiple_of(groups)
            && !weights.contains(&0)
            && !input.contains(&0);
        if !fits {
            let message = format!("is {}, the input {}", cx.operand(1)?.ty, cx.operand(0)?.ty);
            return Err(cx.refuse(1, message, "[channels, filters / group, kernel…]"));
        }
        let (stride, dilation) = (
            cx.sizes("strides", rank, 1)?,
            cx.sizes("dilations", rank, 1)?,
        );
        let extra = cx.sizes("output_padding", rank, 0)?;
        let mut pads = cx.sizes("pads", 2 * rank, 0)?;
        let auto = cx.args.word_opt("auto_pad")?.unwrap_or("NOTSET");
        let wish = cx.args.ints_opt("output_shape")?;
        let mut out = Vec::new();
        for d in 0..rank {
            let full = stride[d]
                .saturating_mul(input[2 + d] - 1)
                .saturating_add(extra[d])
                .saturating_add(dilation[d].saturating_mul(weights[2 + d] - 1))
                .saturating_add(1);
            let size = match (&wish, auto) {
                (Some(wish), _) => Some(wish.get(d).copied().unwrap_or(0).max(0) as usize),
                (None, "SAME_UPPER" | "SAME_LOWER") => Some(input[2 + d].saturating_mul(stride[d])),
                _ => None,
            };
            if let Some(size) = size {
                let total = full.saturating_sub(size);
                let (half, rest) = (total / 2, total - total / 2);
                (pads[d], pads[rank + d]) = if auto == "SAME_UPPER" {
                    (half, rest)
                } else {
                    (rest, half)
                };
            }
            let size = size
                .or(full.checked_sub(pads[d] + pads[rank + d]))
                .filter(|s| (1..1 << 31).contains(s));
            out.push(size.ok_or_else(|| {
                cx.args.error(
                    "pads",
                    "leaves nothing, or the result is absurdly large",
                    "pad less",
                )
            })?);
        }
        let three = |v: &[usize], fill: usize| {
            let mut all = [fill; 3];
            all[3 - v.len()..].copy_from_slice(v);
            all
        };
        Ok(Self {
            batch: input[0],
            channels: input[1],
            per: weights[1],
            groups,
            input: three(&input[2..], 1),
            kernel: three(&weights[2..], 1),
            output: three(&out, 1),
            stride: three(&stride, 1),
            dilation: three(&dilation, 1),
            pads: three(&pads[..rank], 0),
            rank,
        })
    }
}

/// The transposed convolution: every input element adds its weighted kernel to the output.
pub(super) fn conv_transpose(cx: &Cx<'_>, spec: &TransposedConvSpec) -> Planned {
    let dtype = cx.dtype(0)?;
    let filters = spec.per * spec.groups;
    check_bias(cx, 2, filters)?;
    let out = &spec.output[3 - spec.rank..];
    let shape = [&[spec.batch, filters], out].concat();

    let inputs = spec.batch * spec.channels * volume(&spec.input);
    let flops = 8.0 * (inputs * spec.per * volume(&spec.kernel)) as f64;
    let body = spec.clone();
    Ok(Plan::float(dtype, vec![token(dtype, &shape)], body).flops(flops))
}

impl FloatBody for TransposedConvSpec {
    fn run<F: Float>(&self, t: &mut Tensors<'_>) {
        let (x, w, bias, y) = (t.get::<F>(0), t.get::<F>(1), t.opt::<F>(2), t.out::<F>(0));
        let (plane, out, kernel) = (
            volume(&self.input),
            volume(&self.output),
            volume(&self.kernel),
        );
        let filters = self.per * self.groups;
        for (i, y) in y.chunks_exact_mut(out).enumerate() {
            y.fill(bias.map_or(F::ZERO, |b| b[i % filters]));
        }
        let each = self.channels / self.groups;
        for (b, c) in (0..self.batch).flat_map(|b| (0..self.channels).map(move |c| (b, c))) {
            let x = &x[(b * self.channels + c) * plane..][..plane];
            for f in 0..self.per {
                let w = &w[(c * self.per + f) * kernel..][..kernel];
                let y = &mut y[(b * filters + c / each * self.per + f) * out..][..out];
                self.spread(x, w, y);
            }
        }
    }
}

impl TransposedConvSpec {
    fn spread<F: Float>(&self, x: &[F], w: &[F], y: &mut [F]) {
        let place = |d: usize, i: usize, k: usize| -> Option<usize> {
            (i * self.stride[d] + k * self.dilation[d])
                .checked_sub(self.pads[d])
                .filter(|p| *p < self.output[d])
        };
        let [_, ih, iw] = self.input;
        let [kd, kh, kw] = self.kernel;
        for (i, &v) in x.iter().enumerate() {
            let (z, r, c) = (i / (ih * iw), i / iw % ih, i % iw);
            for a in 0..kd {
                let Some(z) = place(0, z, a) else { continue };
                for b in 0..kh {
                    let Some(r) = place(1, r, b) else { continue };
                    for e in 0..kw {
                        let Some(c) = place(2, c, e) else { continue };
                        y[(z * self.output[1] + r) * self.output[2] + c] +=
                            v * w[(a * kh + b) * kw + e];
                    }
                }
            }
        }
    }
}

const BYTES: [DType; 2] = [DType::I8, DType::U8];

/// Sums of products of bytes with their zero points taken off.
fn integer_sums(
    t: &Tensors<'_>,
    s: &ConvShape,
    ops: [(usize, DType, usize); 2],
    mut put: impl FnMut(usize, usize, i32),
) {
    let [(xi, dx, zx), (wi, dw, zw)] = ops;
    let (x, w) = (t.bytes(xi), t.bytes(wi));
    let wide = |v: u8, d: DType| {
        if d == DType::I8 {
            i32::from(v as i8)
        } else {
            i32::from(v)
        }
    };
    let zero = |i: usize, d: DType, f: usize| match t.bytes(i).len() {
        0 => 0,
        1 => index_at(t.bytes(i), d, 0) as i32,
        _ => index_at(t.bytes(i), d, f) as i32,
    };
    let (plane, out, kernel) = s.window.sizes();
    let (per, filters) = (s.channels / s.groups, s.filters / s.groups);
    for (b, f) in (0..s.batch).flat_map(|b| (0..s.filters).map(move |f| (b, f))) {
        let (zx, zw) = (zero(zx, dx, 0), zero(zw, dw, f));
        let first = (b * s.channels + f / filters * per) * plane;
        s.window.each(|n, o| {
            let mut sum = 0_i32;
            for c in 0..per {
                s.window.cover(o, |k, i| {
                    let (x, w) = (
                        wide(x[first + c * plane + i], dx),
                        wide(w[(f * per + c) * kernel + k], dw),
                    );
                    sum = sum.wrapping_add((x - zx).wrapping_mul(w - zw));
                });
            }
            put((b * s.filters + f) * out + n, f, sum);
        });
    }
}

impl ConvShape {
    /// The sizes of a convolution of bytes.
    pub(super) fn of_bytes(cx: &Cx<'_>) -> Result<Self, OpError> {
        cx.expect(0, &BYTES)?;
        cx.expect(1, &BYTES)?;
        Self::of(cx, 0, 1)
    }
}

pub(super) fn conv_integer(cx: &Cx<'_>, shape: &ConvShape) -> Planned {
    let (dx, dw) = (cx.dtype(0)?, cx.dtype(1)?);
    let s = shape.clone();
    expect_count(cx, 2, &[1], dx)?;
    expect_count(cx, 3, &[1, s.filters], dw)?;
    let flops = 8.0 * s.flops();
    Ok(
        Plan::new(vec![s.out(DType::I32)], move |t: &mut Tensors<'_>| {
            let y = t.out::<i32>(0);
            integer_sums(t, &s, [(0, dx, 2), (1, dw, 3)], |i, _, v| y[i] = v);
        })
        .flops(flops),
    )
}

pub(super) fn qlinear_conv(cx: &Cx<'_>) -> Planned {
    let (dx, dw, dy) = (
        cx.expect(0, &BYTES)?,
        cx.expect(3, &BYTES)?,
        cx.expect(7, &BYTES)?,
    );
    for scale in [1, 4, 6] {
        cx.expect(scale, &[DType::F32])?;
    }
    let s = ConvShape::of(cx, 0, 3)?;
    for (i, counts, dtype) in [
        (1, [1, 1], DType::F32),
        (2, [1, 1], dx),
        (4, [1, s.filters], DType::F32),
        (5, [1, s.filters], dw),
        (6, [1, 1], DType::F32),
        (7, [1, 1], dy),
        (8, [s.filters, s.filters], DType::I32),
    ] {
        expect_count(cx, i, &counts, dtype)?;
    }
    let flops = 8.0 * s.flops();
    Ok(Plan::new(vec![s.out(dy)], move |t: &mut Tensors<'_>| {
        let y = t.out_bytes(0);
        let (sx, sw, sy) = (t.get::<f32>(1)[0], t.get::<f32>(4), t.get::<f32>(6)[0]);
        let zero = index_at(t.bytes(7), dy, 0) as f64;
        let bias = t.opt::<i32>(8);
        integer_sums(t, &s, [(0, dx, 2), (3, dw, 5)], |i, f, v| {
            let v = v.wrapping_add(bias.map_or(0, |b| b[f]));
            let scale =
                f64::from(sx) * f64::from(sw[if sw.len() == 1 { 0 } else { f }]) / f64::from(sy);
            y[i] = super::quant::saturate(f64::from(v) * scale + zero, dy, zero);
        });
    })
    .flops(flops))
}

/// What a causal convolution is asked to do beside it.
pub(super) struct CausalConvSpec {
    /// Whether the results are multiplied by their sigmoids.
    pub(super) silu: bool,
}

impl CausalConvSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let activation = cx.args.word_opt("activation")?;
        Ok(Self {
            silu: matches!(activation, Some("silu" | "swish")),
        })
    }
}

/// A causal depthwise convolution along the last dimension, which carries its past along.
pub(super) fn causal_conv(cx: &Cx<'_>, spec: &CausalConvSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let ([b, c, n], [w, 1, k]) = (
        cx.dims(0)?[..].try_into().unwrap_or([0; 3]),
        cx.dims(1)?[..].try_into().unwrap_or([0; 3]),
    ) else {
        return Err(cx.refuse(1, format!("is {}", cx.operand(1)?.ty), "[channels, 1, k]"));
    };
    if w != c || k == 0 || n == 0 {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            format!("the input is {}", cx.operand(0)?.ty),
        ));
    }
    check_bias(cx, 2, c)?;
    if let Some(past) = cx.opt(3)
        && past.dims() != [b, c, k - 1]
    {
        return Err(cx.refuse(
            3,
            format!("is {}", past.ty),
            format!("[{b}, {c}, {}]", k - 1),
        ));
    }
    let outs = cx
        .wanted
        .iter()
        .map(|&o| token(dtype, &[b, c, if o == 0 { n } else { k - 1 }]))
        .collect();
    struct Causal {
        channels: usize,
        n: usize,
        k: usize,
        silu: bool,
        wants: [bool; 2],
    }
    impl FloatBody for Causal {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (x, w, bias, past) = (t.get::<F>(0), t.get::<F>(1), t.opt::<F>(2), t.opt::<F>(3));
            let y = if self.wants[0] {
                t.out::<F>(0)
            } else {
                &mut []
            };
            let state = if self.wants[1] {
                t.out::<F>(usize::from(self.wants[0]))
            } else {
                &mut []
            };
            let (n, k) = (self.n, self.k);
            for (i, x) in x.chunks_exact(n).enumerate() {
                let c = i % self.channels;
                // Element j of the past followed by the input.
                let at = |j: usize| match j.checked_sub(k - 1) {
                    Some(j) => x[j],
                    None => past.map_or(F::ZERO, |p| p[i * (k - 1) + j]),
                };
                if let Some(y) = y.get_mut(i * n..(i + 1) * n) {
                    for (o, y) in y.iter_mut().enumerate() {
                        let sum = (0..k).fold(bias.map_or(F::ZERO, |b| b[c]), |s, j| {
                            s + w[c * k + j] * at(o + j)
                        });
                        *y = if self.silu { sum * sum.sigmoid() } else { sum };
                    }
                }
                if let Some(s) = state.get_mut(i * (k - 1)..(i + 1) * (k - 1)) {
                    s.iter_mut().enumerate().for_each(|(j, s)| *s = at(n + j));
                }
            }
        }
    }
    let body = Causal {
        channels: c,
        n,
        k,
        silu: spec.silu,
        wants: [cx.wants(0), cx.wants(1)],
    };
    Ok(Plan::float(dtype, outs, body))
}

/// A constant weight, for passes that fold into it.
#[allow(dead_code, reason = "kept beside the kernels that it feeds")]
fn weight(cx: &Cx<'_>) -> Option<Vec<f32>> {
    cx.opt(1)
        .and_then(constant_f32)
        .map(std::borrow::Cow::into_owned)
}
