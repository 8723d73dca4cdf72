//! Convolutions and pools of images whose channels come last: `[n, height, width, channels]`.
//!
//! Not ONNX operators: a pass of the compiler puts them in the place of those. Lanes run along channels, so that a
//! window's row is one run of memory: a convolution multiplies rows of pixels, as they lie, with packed weights
//! (Dukhan 2019, The Indirect Convolution Algorithm, arXiv 1907.02129, with offsets in place of pointers), no
//! columns are gathered, and sums leave the registers once, with bias, added tensor and bounds applied.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use std::borrow::Cow;
use std::ops::Range;

use zbmd_ir::DType;

use super::conv::padded_dims;
use super::cx::{Body, Cx, Plan, Tensors, constant_f32, token};
use super::gemm::{Act, PANEL, Vector, Weights, Wide, run_wide};
use super::matmul::act;
use super::num::Num;
use super::window::Window;
use crate::op::OpError;
use crate::simd::{self, Isa, Loop, fma};
use crate::team;

type Made = Result<Plan, OpError>;

/// Packed weights that stay in the second cache while blocks of pixels go by.
const RESIDENT: usize = 384 << 10;
/// Pixels of such a block.
const PIXELS: usize = 192;

/// A batch of images.
#[derive(Clone)]
struct Image {
    batch: usize,
    channels: usize,
    window: Window,
}

fn image(cx: &Cx<'_>) -> Result<[usize; 4], OpError> {
    cx.expect(0, &[DType::F32])?;
    match cx.dims(0)?[..] {
        [n, h, w, c] if n > 0 && c > 0 => Ok([n, h, w, c]),
        _ => Err(cx.refuse(0, format!("is {}", cx.operand(0)?.ty), "[n, height, width, channels]")),
    }
}

/// Convolution with constant weights as ONNX has them: [filters, channels / groups, height, width].
pub(super) fn conv(cx: &Cx<'_>) -> Made {
    let [batch, h, w, channels] = image(cx)?;
    let weights = cx.operand(1)?.clone();
    let groups = cx.args.uint_or("group", 1, 1, 1 << 30)? as usize;
    let (filters, per, kernel) = match weights.dims()[..] {
        [f, per, kh, kw]
            if per.checked_mul(groups) == Some(channels) && f > 0 && f.is_multiple_of(groups) =>
        {
            (f, per, [kh, kw])
        }
        _ => {
            let message = format!("is {}, the input {}", weights.ty, cx.operand(0)?.ty);
            return Err(cx.refuse(1, message, format!("[filters, channels / {groups}, kernel…]")));
        }
    };
    let window = Window::new(cx, &[h, w], &kernel)?;
    let out = [batch, window.output[1], window.output[2], filters];
    let bias = cx.opt(2).cloned();
    if let Some(bias) = &bias
        && bias.dims() != [filters]
    {
        return Err(cx.refuse(2, format!("is {}", bias.ty), format!("it is [{filters}]")));
    }
    if let Some(added) = cx.opt(3)
        && added.ty != token(DType::F32, &out)
    {
        return Err(cx.refuse(3, format!("is {}", added.ty), format!("the result is {out:?}")));
    }
    let act = act(cx)?;
    let image = Image { batch, channels, window };
    let flops = 2.0 * out.iter().product::<usize>() as f64 * (per * kernel[0] * kernel[1]) as f64;
    let depthwise = per == 1 && filters == groups;
    let (groups_of, own) = ((groups, per, filters / groups), weights.clone());
    let plan = Plan::lazy(vec![token(DType::F32, &out)], move || {
        let bias = bias.as_ref().and_then(constant_f32).map(Cow::into_owned);
        let data = constant_f32(&weights).unwrap_or_default();
        if depthwise {
            return Ok(Box::new(Depthwise::new(image, &data, bias, act)) as Box<dyn Body>);
        }
        let make = || packed_filters(&data, groups_of, kernel);
        let len = packed_filters_len(groups_of, kernel);
        let packed = Weights::new(weights.packed.clone(), len, make)?;
        Ok(Box::new(Rows::new(image, groups_of, packed, bias, act)?))
    });
    let plan = plan.flops(if depthwise { 3.0 * flops } else { flops });
    if depthwise {
        return Ok(plan);
    }
    Ok(plan.packs(1, move || {
        packed_filters(&constant_f32(&own).unwrap_or_default(), groups_of, kernel)
    }))
}

/// Floats of packed filters.
fn packed_filters_len(
    (groups, per, filters): (usize, usize, usize),
    [kh, kw]: [usize; 2],
) -> usize {
    groups * filters.div_ceil(PANEL) * kh * kw * per * PANEL
}

/// For each group, panels of sixteen filters; in a panel by tap, then channel.
fn packed_filters(
    weights: &[f32],
    (groups, per, filters): (usize, usize, usize),
    [kh, kw]: [usize; 2],
) -> Vec<f32> {
    let (k, panels) = (kh * kw * per, filters.div_ceil(PANEL));
    let mut packed = vec![0.0; groups * panels * k * PANEL];
    for (f, filter) in weights.chunks_exact(k.max(1)).enumerate() {
        let (g, f) = (f / filters, f % filters);
        let panel = g * panels + f / PANEL;
        for (i, v) in filter.iter().enumerate() {
            let (channel, tap) = (i / (kh * kw), i % (kh * kw));
            packed[(panel * k + tap * per + channel) * PANEL + f % PANEL] = *v;
        }
    }
    packed
}

/// Copies an image into one with a border of zeros.
fn pad(w: &Window, channels: usize, width: usize, x: &[f32], to: &mut [f32]) {
    let (row, wide) = (w.input[2] * channels, width * channels);
    let left = w.before[2] * channels;
    let mut lines = to.chunks_exact_mut(wide);
    lines.by_ref().take(w.before[1]).for_each(|line| line.fill(0.0));
    for (x, line) in x.chunks_exact(row).zip(lines.by_ref()) {
        line[..left].fill(0.0);
        line[left..left + row].copy_from_slice(x);
        line[left + row..].fill(0.0);
    }
    lines.for_each(|line| line.fill(0.0));
}

/// Rows of pixels times packed weights.
struct Rows {
    image: Image,
    groups: usize,
    /// Channels and filters of a group.
    per: usize,
    filters: usize,
    act: Act,
    /// Height and width of the image with its border, where it needs one.
    padded: Option<(usize, usize)>,
    /// Where each output's window begins.
    spots: Vec<u32>,
    /// Where the runs of a window begin, and their length.
    runs: Vec<u32>,
    run: usize,
    /// For each group, panels of sixteen filters, and their biases.
    packed: Weights,
    bias: Vec<f32>,
}

impl Rows {
    fn new(
        image: Image,
        (groups, per, filters): (usize, usize, usize),
        packed: Weights,
        bias: Option<Vec<f32>>,
        act: Act,
    ) -> Result<Self, OpError> {
        let w = &image.window;
        let [_, kh, kw] = w.kernel;
        let (dims, bordered) = padded_dims(w);
        let (height, width) = (dims[1], dims[2]);
        if (height * width).saturating_mul(image.channels) > u32::MAX as usize {
            return Err(Cx::other("the padded input is too large", "make it smaller"));
        }
        let c = image.channels;
        let place = |y: usize, x: usize| ((y * width + x) * c) as u32;
        let [_, oh, ow] = w.output;
        let spots = (0..oh)
            .flat_map(|y| (0..ow).map(move |x| (y, x)))
            .map(|(y, x)| place(y * w.stride[1], x * w.stride[2]))
            .collect();
        let row = |y: usize| place(y * w.dilation[1], 0);
        let (runs, run): (Vec<u32>, usize) = if groups == 1 && w.dilation[2] == 1 {
            ((0..kh).map(row).collect(), kw * c)
        } else {
            let taps = (0..kh).flat_map(|y| (0..kw).map(move |x| (y, x)));
            (taps.map(|(y, x)| place(y * w.dilation[1], x * w.dilation[2])).collect(), per)
        };
        let panels = filters.div_ceil(PANEL);
        let mut biases = vec![0.0; groups * panels * PANEL];
        for (f, bias) in bias.iter().flatten().enumerate() {
            biases[f / filters * panels * PANEL + f % filters] = *bias;
        }
        let padded = bordered.then_some((height, width));
        Ok(Self {
            groups,
            per,
            filters,
            act,
            padded,
            spots,
            runs,
            run,
            packed,
            bias: biases,
            image,
        })
    }
}

impl Body for Rows {
    fn run(&self, t: &mut Tensors<'_>) {
        let (x, added, y) = (t.get::<f32>(0), t.opt::<f32>(3), t.out::<f32>(0));
        let border = t.scratch::<f32>();
        let w = &self.image.window;
        let channels = self.image.channels;
        let (each, stride) = (w.input[1] * w.input[2] * channels, self.groups * self.filters);
        let size = self.spots.len() * stride;
        for (b, y) in y.chunks_exact_mut(size).enumerate().take(self.image.batch) {
            let x = &x[b * each..][..each];
            let x = match self.padded {
                Some((height, width)) => {
                    let border = &mut border[..height * width * channels];
                    pad(w, channels, width, x, border);
                    &*border
                }
                None => x,
            };
            let added = added.map(|a| &a[b * size..][..size]);
            let clamp = bounds(self.act);
            let (pixels, panels) = (0..self.spots.len(), 0..self.filters.div_ceil(PANEL));
            let (out, first) = (y.len(), y.as_mut_ptr());
            Job { rows: self, x, added, y: first, out, clamp, pixels, panels }.share();
            if clamp.is_none() && self.act != Act::None {
                simd::dispatch(Finish(y, self.act));
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        4 * self.padded.map_or(0, |(h, w)| h * w * self.image.channels)
    }
}

/// Activations that are bounds are applied in registers.
fn bounds(act: Act) -> Option<(f32, f32)> {
    match act {
        Act::Relu => Some((0.0, f32::INFINITY)),
        Act::Clip(low, high) => Some((low, high)),
        _ => None,
    }
}

struct Finish<'a>(&'a mut [f32], Act);

impl Loop for Finish<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        self.1.apply::<FMA>(self.0);
    }
}

/// The convolution of one image: some pixels, and some panels of each group's filters.
#[derive(Clone)]
struct Job<'a> {
    rows: &'a Rows,
    x: &'a [f32],
    added: Option<&'a [f32]>,
    /// First element of the result, and its elements.
    y: *mut f32,
    out: usize,
    clamp: Option<(f32, f32)>,
    pixels: Range<usize>,
    panels: Range<usize>,
}

// SAFETY: all is read only but for the result, of which each core has pixels or panels of its own.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    /// Weights that stay in the second cache go by once for each block of pixels.
    fn resident(&self) -> bool {
        4 * self.rows.packed.len() / self.rows.groups.max(1) <= RESIDENT
    }

    /// Does all of it, on all cores of the device: each has pixels of its own, or, where weights are many or pixels few,
    /// weights.
    fn share(&self) {
        self.check();
        let r = self.rows;
        let work = self.pixels.len() * r.runs.len() * r.run * r.filters * r.groups;
        let few = self.pixels.len() < 48 * team::cores();
        let by_panels = (few || !self.resident()) && self.panels.len() >= 4 * team::cores();
        // Tiles are twelve pixels by two panels.
        let (all, tile) = if by_panels { (self.panels.len(), 2) } else { (self.pixels.len(), 12) };
        team::share(work, all, tile, &|part| {
            let mut job = self.clone();
            *if by_panels { &mut job.panels } else { &mut job.pixels } = part;
            // SAFETY: `check` has seen that all places lie within the slices; parts have no place in common.
            unsafe { run_wide(job) }
        });
    }

    fn check(&self) {
        let r = self.rows;
        let (spot, run) = (r.spots.last(), r.runs.last());
        let reach = spot.zip(run).map_or(0, |(s, t)| *s as usize + *t as usize);
        let last = r.groups.saturating_sub(1) * r.per;
        assert!(reach + last + r.run <= self.x.len(), "a window leaves the image");
        let size = r.spots.len() * r.groups * r.filters;
        let panels = r.filters.div_ceil(PANEL);
        assert!(
            self.out == size && self.added.is_none_or(|a| a.len() == size),
            "the result has another size"
        );
        assert!(
            r.packed.len() == r.groups * panels * r.runs.len() * r.run * PANEL
                && r.bias.len() == r.groups * panels * PANEL,
            "the weights have another size"
        );
    }
}

/// What a tile works on.
struct At {
    /// First element of the image's group.
    x: *const f32,
    /// Weights and bias of the first panel.
    weights: *const f32,
    bias: *const f32,
    /// Elements of a panel.
    panel: usize,
    added: *const f32,
    y: *mut f32,
    /// Columns to write of the tile.
    width: usize,
}

impl Wide for Job<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const FMA: bool>(self) {
        for g in 0..self.rows.groups {
            // SAFETY: the caller's promise.
            unsafe { self.group::<V>(g) };
        }
    }
}

impl Job<'_> {
    /// # Safety
    /// [`Self::check`] has found nothing, and the processor has the vector's instructions.
    #[inline(always)]
    unsafe fn group<V: Vector>(&self, g: usize) {
        let r = self.rows;
        let (panels, k) = (r.filters.div_ceil(PANEL), r.runs.len() * r.run);
        let pixels = if self.resident() { PIXELS } else { r.spots.len() };
        // SAFETY: `check` has seen that pixels, panels and windows lie within the slices.
        unsafe {
            for first in self.pixels.clone().step_by(pixels.max(1)) {
                let end = (first + pixels).min(self.pixels.end);
                let mut p = self.panels.start;
                while p < self.panels.end {
                    let wide = V::MANY && p + 2 <= self.panels.end;
                    let take = if wide { 2 } else { 1 };
                    let column = g * r.filters + p * PANEL;
                    let at = At {
                        x: self.x.as_ptr().add(g * r.per),
                        weights: r.packed.as_ptr().add((g * panels + p) * k * PANEL),
                        bias: r.bias.as_ptr().add((g * panels + p) * PANEL),
                        panel: k * PANEL,
                        added: self
                            .added
                            .map_or(std::ptr::null(), |a| a.as_ptr().wrapping_add(column)),
                        y: self.y.add(column),
                        width: (take * PANEL).min(r.filters - p * PANEL),
                    };
                    let mut s = first;
                    while s < end {
                        s += match (V::MANY, wide, end - s) {
                            (true, true, 12..) => tile::<V, 12, 2>(self, &at, s),
                            (true, true, 4..) => tile::<V, 4, 2>(self, &at, s),
                            (true, true, _) => tile::<V, 1, 2>(self, &at, s),
                            (true, false, 12..) => tile::<V, 12, 1>(self, &at, s),
                            (false, _, 6..) => tile::<V, 6, 1>(self, &at, s),
                            (_, _, 4..) => tile::<V, 4, 1>(self, &at, s),
                            _ => tile::<V, 1, 1>(self, &at, s),
                        };
                    }
                    p += take;
                }
            }
        }
    }
}

/// R pixels from `first` on, P panels of filters; returns R.
///
/// # Safety
/// The pixels and panels exist, and the processor has the vector's instructions.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "the indices name registers, and are unrolled")]
unsafe fn tile<V: Vector, const R: usize, const P: usize>(
    job: &Job<'_>,
    at: &At,
    first: usize,
) -> usize {
    let rows = job.rows;
    let stride = rows.groups * rows.filters;
    // SAFETY: the caller's promise; `Job::check` holds for all pixels and runs, the last being the farthest.
    unsafe {
        let mut sums = [[V::zero(); P]; R];
        for v in 0..P {
            let bias = V::load(at.bias.add(v * PANEL));
            for r in 0..R {
                sums[r][v] = bias;
            }
        }
        let mut spots = [at.x; R];
        for r in 0..R {
            spots[r] = at.x.add(*rows.spots.get_unchecked(first + r) as usize);
        }
        let mut w = at.weights;
        for &run in &rows.runs {
            let mut x = spots;
            for r in 0..R {
                x[r] = spots[r].add(run as usize);
            }
            for j in 0..rows.run {
                let mut right = [V::zero(); P];
                for v in 0..P {
                    right[v] = V::load(w.add(v * at.panel));
                }
                for r in 0..R {
                    let left = *x[r].add(j);
                    for v in 0..P {
                        sums[r][v] = sums[r][v].add_product(left, right[v]);
                    }
                }
                w = w.wrapping_add(PANEL);
            }
        }
        let y = at.y.add(first * stride);
        if at.width < P * PANEL {
            let mut edge = [[[0.0_f32; PANEL]; P]; R];
            for r in 0..R {
                for v in 0..P {
                    sums[r][v].store(edge[r][v].as_mut_ptr());
                }
            }
            let added = if at.added.is_null() { None } else { Some(at.added.add(first * stride)) };
            finish(edge.as_flattened_mut(), P, (y, added, stride, at.width), job.clamp);
            return R;
        }
        if !at.added.is_null() {
            let added = at.added.add(first * stride);
            for r in 0..R {
                for v in 0..P {
                    sums[r][v] = sums[r][v].add(V::load(added.add(r * stride + v * PANEL)));
                }
            }
        }
        if let Some((low, high)) = job.clamp {
            for r in 0..R {
                for v in 0..P {
                    sums[r][v].clamp(low, high).store(y.add(r * stride + v * PANEL));
                }
            }
        } else {
            for r in 0..R {
                for v in 0..P {
                    sums[r][v].store(y.add(r * stride + v * PANEL));
                }
            }
        }
    }
    R
}

/// What follows on the sums of a tile that is not whole: through memory, so that the sums of all others stay in
/// registers.
///
/// # Safety
/// `width` floats can be read and written in each row of the last two, whose rows are `stride` apart.
#[inline(never)]
unsafe fn finish(
    tile: &mut [[f32; PANEL]],
    panels: usize,
    (y, added, stride, width): (*mut f32, Option<*const f32>, usize, usize),
    clamp: Option<(f32, f32)>,
) {
    for (r, row) in tile.chunks_exact_mut(panels).enumerate() {
        let row = &mut row.as_flattened_mut()[..width];
        if let Some(added) = added {
            // SAFETY: the caller's promise.
            let added = unsafe { std::slice::from_raw_parts(added.add(r * stride), width) };
            row.iter_mut().zip(added).for_each(|(y, a)| *y += a);
        }
        if let Some((low, high)) = clamp {
            for v in row.iter_mut() {
                let above = if *v > low { *v } else { low };
                *v = if above < high { above } else { high };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), y.add(r * stride), width) };
    }
}

/// One filter for each channel.
struct Depthwise {
    image: Image,
    /// Weights by tap, then channel.
    taps: Vec<f32>,
    bias: Vec<f32>,
    act: Act,
}

impl Depthwise {
    fn new(image: Image, weights: &[f32], bias: Option<Vec<f32>>, act: Act) -> Self {
        let c = image.channels;
        let kernel = image.window.kernel[1] * image.window.kernel[2];
        let mut taps = vec![0.0; weights.len()];
        for (i, v) in weights.iter().enumerate() {
            taps[i % kernel * c + i / kernel] = *v;
        }
        Self { bias: bias.unwrap_or_else(|| vec![0.0; c]), taps, act, image }
    }
}

/// Kernel rows and columns that lie within the image, for an output place.
fn within(w: &Window, d: usize, o: usize) -> Range<usize> {
    let first = o * w.stride[d];
    let low = w.before[d].saturating_sub(first).div_ceil(w.dilation[d]);
    let high = (w.input[d] + w.before[d]).saturating_sub(first).div_ceil(w.dilation[d]);
    low.min(w.kernel[d])..high.min(w.kernel[d])
}

/// Calls `f` with the number of every output pixel of some lines, and the kernel rows and columns within the image.
#[inline(always)]
fn pixels(
    w: &Window,
    lines: Range<usize>,
    mut f: impl FnMut(usize, [usize; 2], [Range<usize>; 2]),
) {
    let [_, _, ow] = w.output;
    for oy in lines {
        let ys = within(w, 1, oy);
        for ox in 0..ow {
            f(oy * ow + ox, [oy, ox], [ys.clone(), within(w, 2, ox)]);
        }
    }
}

/// The pixel under a kernel element that lies within the image.
#[inline(always)]
fn under(w: &Window, o: [usize; 2], k: [usize; 2]) -> usize {
    let y = o[0] * w.stride[1] + k[0] * w.dilation[1] - w.before[1];
    let x = o[1] * w.stride[2] + k[1] * w.dilation[2] - w.before[2];
    y * w.input[2] + x
}

#[derive(Clone)]
struct Channels<'a> {
    d: &'a Depthwise,
    x: &'a [f32],
    added: Option<&'a [f32]>,
    /// First element of the result, and its elements.
    y: *mut f32,
    out: usize,
    clamp: Option<(f32, f32)>,
    /// Those of the result that are made.
    lines: Range<usize>,
}

// SAFETY: all is read only but for the result, of which each core has lines of its own.
unsafe impl Sync for Channels<'_> {}

impl Channels<'_> {
    fn check(&self) {
        let w = &self.d.image.window;
        let (plane, out, kernel) = w.sizes();
        let c = self.d.image.channels;
        assert!(
            self.x.len() == plane * c
                && self.out == out * c
                && self.added.is_none_or(|a| a.len() == out * c)
                && self.d.taps.len() == kernel * c
                && self.d.bias.len() == c,
            "an image has another size"
        );
    }
}

impl Wide for Channels<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const FMA: bool>(self) {
        let w = &self.d.image.window;
        let [_, _, ow] = w.output;
        for oy in self.lines.clone() {
            let ys = within(w, 1, oy);
            let mut ox = 0;
            while ox < ow {
                let xs = within(w, 2, ox);
                // Pixels whose whole windows lie within the image meet the same weights.
                let four = xs.len() == w.kernel[2]
                    && ox + 4 <= ow
                    && within(w, 2, ox + 3).len() == w.kernel[2];
                let (n, near) = (oy * ow + ox, (&ys, &xs));
                // SAFETY: `check` has seen that images and weights have these sizes; these pixels exist.
                unsafe {
                    ox += if four && V::MANY {
                        self.pixels::<V, FMA, 4, 2>(n, [oy, ox], near)
                    } else {
                        self.pixels::<V, FMA, 1, 4>(n, [oy, ox], near)
                    };
                }
            }
        }
    }
}

type Near<'a> = (&'a Range<usize>, &'a Range<usize>);

impl Channels<'_> {
    /// X pixels side by side from number n on, P vectors of channels at a time; returns X.
    ///
    /// # Safety
    /// The sizes are as [`Self::check`] wants them, the pixels exist and have the same window, and the processor has
    /// the vector's instructions.
    #[inline(always)]
    unsafe fn pixels<V: Vector, const FMA: bool, const X: usize, const P: usize>(
        &self,
        n: usize,
        o: [usize; 2],
        near: Near<'_>,
    ) -> usize {
        let c = self.d.image.channels;
        let mut first = 0;
        // SAFETY: the caller's promise; channels end at c.
        unsafe {
            while first + P * PANEL <= c {
                channels::<V, X, P>(self, n, o, near, first);
                first += P * PANEL;
            }
            while first + PANEL <= c {
                channels::<V, X, 1>(self, n, o, near, first);
                first += PANEL;
            }
            if first < c && c >= PANEL {
                // The last vector overlaps the one before, and gives the same sums there.
                channels::<V, X, 1>(self, n, o, near, c - PANEL);
                first = c;
            }
            for (i, p) in (first..c).flat_map(|i| (0..X).map(move |p| (i, p))) {
                *self.y.add((n + p) * c + i) = self.one::<FMA>(n + p, [o[0], o[1] + p], near, i);
            }
        }
        X
    }

    /// One channel of a pixel.
    #[inline(always)]
    fn one<const FMA: bool>(&self, n: usize, o: [usize; 2], (ys, xs): Near<'_>, i: usize) -> f32 {
        let (w, c) = (&self.d.image.window, self.d.image.channels);
        let mut sum = self.d.bias[i];
        for ky in ys.clone() {
            for kx in xs.clone() {
                let h = self.d.taps[(ky * w.kernel[2] + kx) * c + i];
                sum = fma::<FMA>(self.x[under(w, o, [ky, kx]) * c + i], h, sum);
            }
        }
        sum += self.added.map_or(0.0, |a| a[n * c + i]);
        match self.clamp {
            Some((low, _)) if sum <= low || sum.is_nan() => low,
            Some((_, high)) if sum >= high => high,
            _ => sum,
        }
    }
}

/// P vectors of channels of X pixels side by side.
///
/// # Safety
/// As for [`Channels::pixels`], and there are so many channels.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "the indices name registers, and are unrolled")]
unsafe fn channels<V: Vector, const X: usize, const P: usize>(
    at: &Channels<'_>,
    n: usize,
    o: [usize; 2],
    (ys, xs): Near<'_>,
    first: usize,
) {
    let (w, c) = (&at.d.image.window, at.d.image.channels);
    let apart = w.stride[2] * c;
    // SAFETY: the caller's promise; `ys` and `xs` keep to pixels of the image.
    unsafe {
        let mut sums = [[V::zero(); P]; X];
        for v in 0..P {
            let bias = V::load(at.d.bias.as_ptr().add(first + v * PANEL));
            for p in 0..X {
                sums[p][v] = bias;
            }
        }
        for ky in ys.start..ys.end {
            let mut x = at.x.as_ptr().add(under(w, o, [ky, xs.start]) * c + first);
            let mut h = at.d.taps.as_ptr().add((ky * w.kernel[2] + xs.start) * c + first);
            for _ in xs.start..xs.end {
                for v in 0..P {
                    let h = V::load(h.add(v * PANEL));
                    for p in 0..X {
                        let x = V::load(x.add(p * apart + v * PANEL));
                        sums[p][v] = sums[p][v].add_products(x, h);
                    }
                }
                x = x.wrapping_add(w.dilation[2] * c);
                h = h.wrapping_add(c);
            }
        }
        let to = n * c + first;
        if let Some(added) = at.added {
            for p in 0..X {
                for v in 0..P {
                    let added = V::load(added.as_ptr().add(to + p * c + v * PANEL));
                    sums[p][v] = sums[p][v].add(added);
                }
            }
        }
        let y = at.y.add(to);
        if let Some((low, high)) = at.clamp {
            for p in 0..X {
                for v in 0..P {
                    sums[p][v].clamp(low, high).store(y.add(p * c + v * PANEL));
                }
            }
        } else {
            for p in 0..X {
                for v in 0..P {
                    sums[p][v].store(y.add(p * c + v * PANEL));
                }
            }
        }
    }
}

impl Body for Depthwise {
    fn run(&self, t: &mut Tensors<'_>) {
        let (x, added, y) = (t.get::<f32>(0), t.opt::<f32>(3), t.out::<f32>(0));
        let (plane, out, _) = self.image.window.sizes();
        let c = self.image.channels;
        for (b, y) in y.chunks_exact_mut(out * c).enumerate() {
            let x = &x[b * plane * c..][..plane * c];
            let added = added.map(|a| &a[b * out * c..][..out * c]);
            let clamp = bounds(self.act);
            let lines = 0..self.image.window.output[1];
            let (end, y0) = (y.len(), y.as_mut_ptr());
            let job = Channels { d: self, x, added, y: y0, out: end, clamp, lines };
            job.check();
            let taps = self.taps.len() / c.max(1);
            team::share(end * taps, job.lines.end, 1, &|lines| {
                // SAFETY: `check` has seen that the images have the sizes that the code relies on; lines are others.
                unsafe { run_wide(Channels { lines, ..job.clone() }) }
            });
            if clamp.is_none() && self.act != Act::None {
                simd::dispatch(Finish(y, self.act));
            }
        }
    }
}

/// The greatest or the mean of each window.
pub(super) fn pool(cx: &Cx<'_>, mean: bool) -> Made {
    let [batch, h, w, channels] = image(cx)?;
    let kernel = cx.sizes("kernel_shape", 2, 1)?;
    let window = Window::new(cx, &[h, w], &kernel)?;
    let out = [batch, window.output[1], window.output[2], channels];
    let padding = cx.flag("count_include_pad", false)?;
    let flops = 3.0 * (out.iter().product::<usize>() * kernel[0] * kernel[1]) as f64;
    let body = Pool { image: Image { batch, channels, window }, mean, padding };
    Ok(Plan::new(vec![token(DType::F32, &out)], body).flops(flops))
}

/// The mean of each channel.
pub(super) fn global(cx: &Cx<'_>) -> Made {
    let [batch, h, w, channels] = image(cx)?;
    if h * w == 0 {
        return Err(cx.refuse(0, "is empty", "give it elements"));
    }
    let out = vec![token(DType::F32, &[batch, 1, 1, channels])];
    struct Global(usize, usize);
    impl Body for Global {
        fn run(&self, t: &mut Tensors<'_>) {
            let (x, y) = (t.get::<f32>(0), t.out::<f32>(0));
            let Global(pixels, c) = *self;
            for (x, y) in x.chunks_exact(pixels * c).zip(y.chunks_exact_mut(c)) {
                y.fill(0.0);
                for x in x.chunks_exact(c) {
                    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
                }
                y.iter_mut().for_each(|y| *y /= pixels as f32);
            }
        }
    }
    let flops = (batch * h * w * channels) as f64;
    Ok(Plan::new(out, Global(h * w, channels)).flops(flops))
}

struct Pool {
    image: Image,
    mean: bool,
    /// Whether padding counts as elements of a mean.
    padding: bool,
}

#[derive(Clone)]
struct Pooled<'a> {
    p: &'a Pool,
    x: &'a [f32],
    /// First element of the result, and its elements.
    y: *mut f32,
    out: usize,
    /// Those of the result that are made.
    lines: Range<usize>,
}

// SAFETY: as of `Channels`.
unsafe impl Sync for Pooled<'_> {}

impl Pooled<'_> {
    fn check(&self) {
        let (plane, out, _) = self.p.image.window.sizes();
        let c = self.p.image.channels;
        assert!(self.x.len() == plane * c && self.out == out * c, "an image has another size");
    }

    fn start(&self) -> f32 {
        if self.p.mean { 0.0 } else { f32::NEG_INFINITY }
    }

    /// One channel of a pixel.
    fn one(&self, o: [usize; 2], (ys, xs): Near<'_>, by: f32, i: usize) -> f32 {
        let (w, c) = (&self.p.image.window, self.p.image.channels);
        let mut sum = self.start();
        for (ky, kx) in ys.clone().flat_map(|ky| xs.clone().map(move |kx| (ky, kx))) {
            let x = self.x[under(w, o, [ky, kx]) * c + i];
            sum = if self.p.mean { sum + x } else { Num::max(sum, x) };
        }
        if self.p.mean { sum * by } else { sum }
    }
}

impl Wide for Pooled<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const FMA: bool>(self) {
        let (w, c) = (&self.p.image.window, self.p.image.channels);
        pixels(w, self.lines.clone(), |n, o, [ys, xs]| {
            let count = if self.p.padding {
                (1..3).map(|d| w.reached(d, o[d - 1])).product()
            } else {
                ys.len() * xs.len()
            };
            let by = 1.0 / count as f32;
            let mut first = 0;
            // SAFETY: `check` has seen that the images have these sizes; channels end at c.
            unsafe {
                while first + 4 * PANEL <= c {
                    pooled::<V, 4>(&self, n, o, (&ys, &xs), by, first);
                    first += 4 * PANEL;
                }
                while first + PANEL <= c {
                    pooled::<V, 1>(&self, n, o, (&ys, &xs), by, first);
                    first += PANEL;
                }
                if first < c && c >= PANEL {
                    // The last vector overlaps the one before, and gives the same there.
                    pooled::<V, 1>(&self, n, o, (&ys, &xs), by, c - PANEL);
                    first = c;
                }
            }
            for i in first..c {
                let y = self.one(o, (&ys, &xs), by, i);
                // SAFETY: n is an output pixel and i a channel.
                unsafe { *self.y.add(n * c + i) = y };
            }
        });
    }
}

/// P vectors of channels of a pixel.
///
/// # Safety
/// The sizes are as [`Pooled::check`] wants them, there are so many channels, and the processor has the vector's
/// instructions.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "the indices name registers, and are unrolled")]
unsafe fn pooled<V: Vector, const P: usize>(
    at: &Pooled<'_>,
    n: usize,
    o: [usize; 2],
    (ys, xs): Near<'_>,
    by: f32,
    first: usize,
) {
    let (w, c) = (&at.p.image.window, at.p.image.channels);
    // SAFETY: the caller's promise; `ys` and `xs` keep to pixels of the image.
    unsafe {
        let mut sums = [V::load([at.start(); PANEL].as_ptr()); P];
        for ky in ys.start..ys.end {
            for kx in xs.start..xs.end {
                let x = at.x.as_ptr().add(under(w, o, [ky, kx]) * c + first);
                for v in 0..P {
                    let x = V::load(x.add(v * PANEL));
                    sums[v] = if at.p.mean { sums[v].add(x) } else { sums[v].greater(x) };
                }
            }
        }
        for v in 0..P {
            let sum = if at.p.mean { V::zero().add_product(by, sums[v]) } else { sums[v] };
            sum.store(at.y.add(n * c + first + v * PANEL));
        }
    }
}

impl Body for Pool {
    fn run(&self, t: &mut Tensors<'_>) {
        let (x, y) = (t.get::<f32>(0), t.out::<f32>(0));
        let (plane, out, _) = self.image.window.sizes();
        let c = self.image.channels;
        for (x, y) in x.chunks_exact(plane * c).zip(y.chunks_exact_mut(out * c)) {
            let (w, lines) = (&self.image.window, 0..self.image.window.output[1]);
            let job = Pooled { p: self, x, y: y.as_mut_ptr(), out: y.len(), lines };
            job.check();
            team::share(job.out * w.kernel[1] * w.kernel[2], job.lines.end, 1, &|lines| {
                // SAFETY: `check` has seen that the images have the sizes that the code relies on; lines are others.
                unsafe { run_wide(Pooled { lines, ..job.clone() }) }
            });
        }
    }
}

#[cfg(test)]
mod tests;
