//! Convolutions of many channels: rows of pixels, as they lie, times packed weights.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use std::ops::Range;

use super::super::conv::padded_dims;
use super::super::cx::{Body, Tensors};
use super::super::gemm::{Act, PANEL, Tile, Weights};
use super::super::vector::{Vector, Wide, run_wide};
use super::super::window::Window;
use super::{Finish, Image, bounds};
use zbmd_op::{simd, team};

/// Packed weights that stay in the second cache while blocks of pixels go by.
const RESIDENT: usize = 384 << 10;
/// Pixels of such a block.
const PIXELS: usize = 192;

/// Floats of packed filters.
pub(super) fn packed_filters_len(
    (groups, per, filters): (usize, usize, usize),
    [kh, kw]: [usize; 2],
) -> usize {
    groups * filters.div_ceil(PANEL) * kh * kw * per * PANEL
}

/// For each group, panels of sixteen filters; in a panel by tap, then channel.
pub(super) fn packed_filters(
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
    lines
        .by_ref()
        .take(w.before[1])
        .for_each(|line| line.fill(0.0));
    for (x, line) in x.chunks_exact(row).zip(lines.by_ref()) {
        line[..left].fill(0.0);
        line[left..left + row].copy_from_slice(x);
        line[left + row..].fill(0.0);
    }
    lines.for_each(|line| line.fill(0.0));
}

/// Rows of pixels times packed weights.
pub(super) struct Rows {
    image: Image,
    groups: usize,
    /// Channels and filters of a group.
    per: usize,
    filters: usize,
    act: Act,
    tile: Tile,
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
    pub(super) fn new(
        image: Image,
        (groups, per, filters): (usize, usize, usize),
        packed: Weights,
        bias: Option<Vec<f32>>,
        (act, tile): (Act, Tile),
    ) -> Self {
        let w = &image.window;
        let [_, kh, kw] = w.kernel;
        let (dims, bordered) = padded_dims(w);
        let (height, width) = (dims[1], dims[2]);
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
            (
                taps.map(|(y, x)| place(y * w.dilation[1], x * w.dilation[2]))
                    .collect(),
                per,
            )
        };
        let panels = filters.div_ceil(PANEL);
        let mut biases = vec![0.0; groups * panels * PANEL];
        for (f, bias) in bias.iter().flatten().enumerate() {
            biases[f / filters * panels * PANEL + f % filters] = *bias;
        }
        let padded = bordered.then_some((height, width));
        Self {
            groups,
            per,
            filters,
            act,
            tile,
            padded,
            spots,
            runs,
            run,
            packed,
            bias: biases,
            image,
        }
    }
}

impl Body for Rows {
    fn run(&self, t: &mut Tensors<'_>) {
        let over = t.over().is_some();
        let added = if over { None } else { t.opt::<f32>(3) };
        let (x, y) = (t.get::<f32>(0), t.out::<f32>(0));
        let border = t.scratch::<f32>();
        let w = &self.image.window;
        let channels = self.image.channels;
        let (each, stride) = (
            w.input[1] * w.input[2] * channels,
            self.groups * self.filters,
        );
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
            let clamp = bounds(self.act);
            let (pixels, panels) = (0..self.spots.len(), 0..self.filters.div_ceil(PANEL));
            let (out, first) = (y.len(), y.as_mut_ptr());
            let added = match added {
                Some(added) => added[b * size..][..size].as_ptr(),
                // Each tile reads what it adds before it writes there, and no other tile does either.
                None if over => first.cast_const(),
                None => std::ptr::null(),
            };
            Job {
                rows: self,
                x,
                added,
                y: first,
                out,
                clamp,
                pixels,
                panels,
            }
            .share();
            if clamp.is_none() && self.act != Act::None {
                simd::dispatch(Finish(y, self.act));
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        4 * self.padded.map_or(0, |(h, w)| h * w * self.image.channels)
    }
}

/// The convolution of one image: some pixels, and some panels of each group's filters.
#[derive(Clone)]
struct Job<'a> {
    rows: &'a Rows,
    x: &'a [f32],
    /// First of as many elements as the result has, or null. It may be the result's own.
    added: *const f32,
    /// First element of the result, and its elements.
    y: *mut f32,
    out: usize,
    clamp: Option<(f32, f32)>,
    pixels: Range<usize>,
    panels: Range<usize>,
}

// SAFETY: all is read only but for the result and what is added to it, of which each core has pixels or panels of its
// own.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    /// Weights that stay in the second cache go by once for each block of pixels.
    fn resident(&self) -> bool {
        4 * self.rows.packed.len() / self.rows.groups.max(1) <= RESIDENT
    }

    /// Does all of it, on all cores of the device: each has pixels of its own, or, where weights are many or pixels
    /// few, weights.
    fn share(&self) {
        self.check();
        let r = self.rows;
        let work = self.pixels.len() * r.runs.len() * r.run * r.filters * r.groups;
        let few = self.pixels.len() < 48 * team::cores();
        let by_panels = (few || !self.resident()) && self.panels.len() >= 4 * team::cores();
        let (all, tile) = match by_panels {
            true => (self.panels.len(), r.tile.panels()),
            false => (self.pixels.len(), r.tile.rows()),
        };
        team::share(work, all, tile, &|part| {
            let mut job = self.clone();
            *if by_panels {
                &mut job.panels
            } else {
                &mut job.pixels
            } = part;
            // SAFETY: `check` has seen that all places lie within the slices; parts have no place in common.
            unsafe { run_wide(job) }
        });
    }

    fn check(&self) {
        let r = self.rows;
        let (spot, run) = (r.spots.last(), r.runs.last());
        let reach = spot.zip(run).map_or(0, |(s, t)| *s as usize + *t as usize);
        let last = r.groups.saturating_sub(1) * r.per;
        assert!(
            reach + last + r.run <= self.x.len(),
            "a window leaves the image"
        );
        let size = r.spots.len() * r.groups * r.filters;
        let panels = r.filters.div_ceil(PANEL);
        assert!(self.out == size, "the result has another size");
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
    /// As many pixels from `first` on as a tile of so many panels takes of those that are left; returns their number.
    ///
    /// # Safety
    /// See [`tile`].
    #[inline(always)]
    unsafe fn tiles<V: Vector>(&self, panels: usize, at: &At, first: usize, left: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            match (V::MANY, panels, left) {
                (true, 4, 6..) => tile::<V, 6, 4>(self, at, first),
                (true, 4, 2..) => tile::<V, 2, 4>(self, at, first),
                (true, 4, _) => tile::<V, 1, 4>(self, at, first),
                (true, 2, 12..) => tile::<V, 12, 2>(self, at, first),
                (true, 2, 4..) => tile::<V, 4, 2>(self, at, first),
                (true, 2, _) => tile::<V, 1, 2>(self, at, first),
                (true, _, 12..) => tile::<V, 12, 1>(self, at, first),
                (false, 2, 3..) => tile::<V, 3, 2>(self, at, first),
                (false, 2, _) => tile::<V, 1, 2>(self, at, first),
                (false, _, 6..) => tile::<V, 6, 1>(self, at, first),
                (_, _, 4..) => tile::<V, 4, 1>(self, at, first),
                _ => tile::<V, 1, 1>(self, at, first),
            }
        }
    }

    /// # Safety
    /// [`Self::check`] has found nothing, and the processor has the vector's instructions.
    #[inline(always)]
    unsafe fn group<V: Vector>(&self, g: usize) {
        let r = self.rows;
        let (panels, k) = (r.filters.div_ceil(PANEL), r.runs.len() * r.run);
        let pixels = if self.resident() {
            PIXELS
        } else {
            r.spots.len()
        };
        // SAFETY: `check` has seen that pixels, panels and windows lie within the slices.
        unsafe {
            for first in self.pixels.clone().step_by(pixels.max(1)) {
                let end = (first + pixels).min(self.pixels.end);
                let mut p = self.panels.start;
                while p < self.panels.end {
                    let take = take::<V>(r.tile, self.panels.end - p);
                    let column = g * r.filters + p * PANEL;
                    let at = At {
                        x: self.x.as_ptr().add(g * r.per),
                        weights: r.packed.as_ptr().add((g * panels + p) * k * PANEL),
                        bias: r.bias.as_ptr().add((g * panels + p) * PANEL),
                        panel: k * PANEL,
                        added: match self.added.is_null() {
                            true => self.added,
                            false => self.added.wrapping_add(column),
                        },
                        y: self.y.add(column),
                        width: (take * PANEL).min(r.filters - p * PANEL),
                    };
                    let mut s = first;
                    while s < end {
                        s += self.tiles::<V>(take, &at, s, end - s);
                    }
                    p += take;
                }
            }
        }
    }
}

/// How many panels a tile takes of those that are left.
#[inline(always)]
fn take<V: Vector>(tile: Tile, left: usize) -> usize {
    match (V::MANY, tile, left) {
        (true, Tile::Square, 4..) => 4,
        (true, _, 2..) | (false, Tile::Square, 2..) => 2,
        _ => 1,
    }
}

/// R pixels from `first` on, P panels of filters; returns R.
///
/// # Safety
/// The pixels and panels exist, and the processor has the vector's instructions.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
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
            let added = if at.added.is_null() {
                None
            } else {
                Some(at.added.add(first * stride))
            };
            finish(
                edge.as_flattened_mut(),
                P,
                (y, added, stride, at.width),
                job.clamp,
            );
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
                    sums[r][v]
                        .clamp(low, high)
                        .store(y.add(r * stride + v * PANEL));
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
