//! Convolutions with one filter for each channel.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use std::ops::Range;

use super::super::cx::{Body, Tensors};
use super::super::gemm::{Act, PANEL};
use super::super::vector::{Vector, Wide, run_wide};
use super::super::window::Window;
use super::{Finish, Image, Near, bounds, under, within};
use zbmd_op::simd::{self, fma};
use zbmd_op::team;

/// How pixels meet the taps of a row: the variants. Each output is the same chain in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reuse {
    /// They are read again for each tap.
    Read,
    /// Those of seven windows side by side are read once, where windows are so narrow that they fit into registers.
    Slide,
}

impl Reuse {
    /// Those that there are for a window.
    pub(super) fn of(w: &Window) -> &'static [(&'static str, Self)] {
        let narrow = matches!((w.kernel[2], w.stride[2]), (3 | 5, 1 | 2)) && w.dilation[2] == 1;
        if narrow {
            &[("read", Self::Read), ("slide", Self::Slide)]
        } else {
            &[]
        }
    }
}

/// One filter for each channel.
pub(super) struct Depthwise {
    image: Image,
    /// Weights by tap, then channel.
    taps: Vec<f32>,
    bias: Vec<f32>,
    act: Act,
    reuse: Reuse,
}

impl Depthwise {
    pub(super) fn new(
        image: Image,
        weights: &[f32],
        bias: Option<Vec<f32>>,
        (act, reuse): (Act, Reuse),
    ) -> Self {
        let c = image.channels;
        let kernel = image.window.kernel[1] * image.window.kernel[2];
        let mut taps = vec![0.0; weights.len()];
        for (i, v) in weights.iter().enumerate() {
            taps[i % kernel * c + i / kernel] = *v;
        }
        Self {
            bias: bias.unwrap_or_else(|| vec![0.0; c]),
            taps,
            act,
            reuse,
            image,
        }
    }
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
                let whole = |pixels: usize| {
                    xs.len() == w.kernel[2]
                        && ox + pixels <= ow
                        && within(w, 2, ox + pixels - 1).len() == w.kernel[2]
                };
                let (n, near) = (oy * ow + ox, (&ys, &xs));
                // SAFETY: `check` has seen that images and weights have these sizes; these pixels exist.
                unsafe {
                    ox += match (V::MANY, self.d.reuse) {
                        (true, Reuse::Slide) if whole(7) => {
                            self.slide::<V, FMA, 7>(n, [oy, ox], near)
                        }
                        (true, Reuse::Slide) if whole(4) => {
                            self.slide::<V, FMA, 4>(n, [oy, ox], near)
                        }
                        (true, Reuse::Read) if whole(4) => {
                            self.pixels::<V, FMA, 4, 2, 0, 0>(n, [oy, ox], near)
                        }
                        _ => self.pixels::<V, FMA, 1, 4, 0, 0>(n, [oy, ox], near),
                    };
                }
            }
        }
    }
}

impl Channels<'_> {
    /// X pixels side by side whose windows lie within the image, of a size that [`Reuse::of`] knows.
    ///
    /// # Safety
    /// See [`Self::pixels`].
    #[inline(always)]
    unsafe fn slide<V: Vector, const FMA: bool, const X: usize>(
        &self,
        n: usize,
        o: [usize; 2],
        near: Near<'_>,
    ) -> usize {
        let w = &self.d.image.window;
        // SAFETY: the caller's promise.
        unsafe {
            match (w.kernel[2], w.stride[2]) {
                (3, 1) => self.pixels::<V, FMA, X, 1, 3, 1>(n, o, near),
                (3, 2) => self.pixels::<V, FMA, X, 1, 3, 2>(n, o, near),
                (5, 1) => self.pixels::<V, FMA, X, 1, 5, 1>(n, o, near),
                (5, 2) => self.pixels::<V, FMA, X, 1, 5, 2>(n, o, near),
                _ => self.pixels::<V, FMA, X, 1, 0, 0>(n, o, near),
            }
        }
    }

    /// X pixels side by side from number n on, P vectors of channels at a time; returns X. Where K is not 0, windows
    /// are K wide and S apart, and none is cut.
    ///
    /// # Safety
    /// The sizes are as [`Self::check`] wants them, the pixels exist and have the same window, and the processor has
    /// the vector's instructions.
    #[inline(always)]
    unsafe fn pixels<
        V: Vector,
        const FMA: bool,
        const X: usize,
        const P: usize,
        const K: usize,
        const S: usize,
    >(
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
                channels::<V, X, P, K, S>(self, n, o, near, first);
                first += P * PANEL;
            }
            while first + PANEL <= c {
                channels::<V, X, 1, K, S>(self, n, o, near, first);
                first += PANEL;
            }
            if first < c && c >= PANEL {
                // The last vector overlaps the one before, and gives the same sums there.
                channels::<V, X, 1, K, S>(self, n, o, near, c - PANEL);
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

/// Most pixels of a row under windows that slide.
const COLUMNS: usize = 17;

/// P vectors of channels of X pixels side by side; for K and S see [`Channels::pixels`].
///
/// # Safety
/// As for [`Channels::pixels`], and there are so many channels.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn channels<V: Vector, const X: usize, const P: usize, const K: usize, const S: usize>(
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
            let mut h =
                at.d.taps
                    .as_ptr()
                    .add((ky * w.kernel[2] + xs.start) * c + first);
            if K > 0 {
                for v in 0..P {
                    let mut columns = [V::zero(); COLUMNS];
                    for i in 0..(X - 1) * S + K {
                        columns[i] = V::load(x.add(i * c + v * PANEL));
                    }
                    for kx in 0..K {
                        let h = V::load(h.add(kx * c + v * PANEL));
                        for p in 0..X {
                            sums[p][v] = sums[p][v].add_products(columns[p * S + kx], h);
                        }
                    }
                }
                continue;
            }
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
            let job = Channels {
                d: self,
                x,
                added,
                y: y0,
                out: end,
                clamp,
                lines,
            };
            job.check();
            let taps = self.taps.len() / c.max(1);
            team::share(end * taps, job.lines.end, 1, &|lines| {
                // SAFETY: `check` has seen that the images have the sizes that the code relies on; lines are others.
                unsafe {
                    run_wide(Channels {
                        lines,
                        ..job.clone()
                    })
                }
            });
            if clamp.is_none() && self.act != Act::None {
                simd::dispatch(Finish(y, self.act));
            }
        }
    }
}
