//! Convolutions with one filter for each channel.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use std::ops::Range;

use super::super::cx::{Body, Tensors};
use super::super::gemm::{Act, PANEL};
use super::super::vector::{Vector, Wide, run_wide};
use super::super::window::Window;
use super::{Clamp, Finish, Image, Near, OutputPixel, kernel_within};
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
    pub(super) fn of(window: &Window) -> &'static [(&'static str, Self)] {
        let is_narrow = matches!((window.kernel[2], window.stride[2]), (3 | 5, 1 | 2));
        if is_narrow && window.dilation[2] == 1 {
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
        act: Act,
        reuse: Reuse,
    ) -> Self {
        let channels = image.channels;
        let kernel_elements = image.window.kernel[1] * image.window.kernel[2];
        // ONNX has them by channel, then tap: turned over, so that lanes run along channels.
        let mut taps = vec![0.0; weights.len()];
        for (i, weight) in weights.iter().enumerate() {
            let channel = i / kernel_elements;
            taps[i % kernel_elements * channels + channel] = *weight;
        }
        Self {
            bias: bias.unwrap_or_else(|| vec![0.0; channels]),
            taps,
            act,
            reuse,
            image,
        }
    }
}

/// The convolution of some lines of one image.
#[derive(Clone)]
struct DepthwiseJob<'a> {
    conv: &'a Depthwise,
    input: &'a [f32],
    added: Option<&'a [f32]>,
    /// First element of the result, and its elements.
    output: *mut f32,
    output_length: usize,
    clamp: Option<Clamp>,
    /// Those of the result that are made.
    lines: Range<usize>,
}

// SAFETY: all is read only but for the result, of which each core has lines of its own.
unsafe impl Sync for DepthwiseJob<'_> {}

impl DepthwiseJob<'_> {
    /// Panics unless images and weights have the sizes that the code relies on.
    fn check(&self) {
        let window = &self.conv.image.window;
        let channels = self.conv.image.channels;
        let output_length = window.output_plane() * channels;
        assert!(
            self.input.len() == window.input_plane() * channels
                && self.output_length == output_length
                && self.added.is_none_or(|added| added.len() == output_length)
                && self.conv.taps.len() == window.kernel_elements() * channels
                && self.conv.bias.len() == channels,
            "an image has another size"
        );
    }
}

impl Wide for DepthwiseJob<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const FMA: bool>(self) {
        let window = &self.conv.image.window;
        let [_, _, output_width] = window.output;
        let kernel_width = window.kernel[2];
        for row in self.lines.clone() {
            // The same for all pixels of a row: taps over the padding are left out, as they would add 0.
            let kernel_rows = kernel_within(window, 1, row);
            let mut column = 0;
            while column < output_width {
                let kernel_columns = kernel_within(window, 2, column);
                // Pixels whose whole windows are inside the image meet the same weights.
                let are_whole = |pixels: usize| {
                    kernel_columns.len() == kernel_width
                        && column + pixels <= output_width
                        && kernel_within(window, 2, column + pixels - 1).len() == kernel_width
                };
                let pixel = OutputPixel {
                    number: row * output_width + column,
                    row,
                    column,
                };
                let near = Near {
                    rows: &kernel_rows,
                    columns: &kernel_columns,
                };
                // SAFETY: `check` has seen that images and weights have these sizes; these pixels exist.
                unsafe {
                    column += match (V::MANY, self.conv.reuse) {
                        (true, Reuse::Slide) if are_whole(7) => {
                            self.sliding_pixels::<V, FMA, 7>(pixel, near)
                        }
                        (true, Reuse::Slide) if are_whole(4) => {
                            self.sliding_pixels::<V, FMA, 4>(pixel, near)
                        }
                        (true, Reuse::Read) if are_whole(4) => {
                            self.pixels::<V, FMA, 4, 2, 0, 0>(pixel, near)
                        }
                        _ => self.pixels::<V, FMA, 1, 4, 0, 0>(pixel, near),
                    };
                }
            }
        }
    }
}

impl DepthwiseJob<'_> {
    /// X pixels side by side whose windows are inside the image, of a size that [`Reuse::of`] knows.
    ///
    /// # Safety
    /// See [`Self::pixels`].
    #[inline(always)]
    unsafe fn sliding_pixels<V: Vector, const FMA: bool, const X: usize>(
        &self,
        pixel: OutputPixel,
        near: Near<'_>,
    ) -> usize {
        let window = &self.conv.image.window;
        // SAFETY: the caller's promise.
        unsafe {
            match (window.kernel[2], window.stride[2]) {
                (3, 1) => self.pixels::<V, FMA, X, 1, 3, 1>(pixel, near),
                (3, 2) => self.pixels::<V, FMA, X, 1, 3, 2>(pixel, near),
                (5, 1) => self.pixels::<V, FMA, X, 1, 5, 1>(pixel, near),
                (5, 2) => self.pixels::<V, FMA, X, 1, 5, 2>(pixel, near),
                _ => self.pixels::<V, FMA, X, 1, 0, 0>(pixel, near),
            }
        }
    }

    /// X pixels side by side from this one on, P vectors of channels at a time; returns X. Where K is not 0, windows
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
        pixel: OutputPixel,
        near: Near<'_>,
    ) -> usize {
        let channels = self.conv.image.channels;
        let mut first = 0;
        // SAFETY: the caller's promise; the vectors end with the channels.
        unsafe {
            // Wide steps first, then single vectors; channels one by one only where they fill no vector.
            while first + P * PANEL <= channels {
                channel_vectors::<V, X, P, K, S>(self, pixel, near, first);
                first += P * PANEL;
            }
            while first + PANEL <= channels {
                channel_vectors::<V, X, 1, K, S>(self, pixel, near, first);
                first += PANEL;
            }
            if first < channels && channels >= PANEL {
                // The last vector overlaps the one before, and gives the same sums there.
                channel_vectors::<V, X, 1, K, S>(self, pixel, near, channels - PANEL);
                first = channels;
            }
            for channel in first..channels {
                for p in 0..X {
                    let own_pixel = pixel.right_by(p);
                    let sum = self.one_channel::<FMA>(own_pixel, near, channel);
                    *self.output.add(own_pixel.number * channels + channel) = sum;
                }
            }
        }
        X
    }

    /// One channel of a pixel.
    #[inline(always)]
    fn one_channel<const FMA: bool>(
        &self,
        pixel: OutputPixel,
        near: Near<'_>,
        channel: usize,
    ) -> f32 {
        let window = &self.conv.image.window;
        let channels = self.conv.image.channels;
        let mut sum = self.conv.bias[channel];
        for kernel_row in near.rows.clone() {
            for kernel_column in near.columns.clone() {
                let tap_number = kernel_row * window.kernel[2] + kernel_column;
                let tap = self.conv.taps[tap_number * channels + channel];
                let input_pixel = pixel.input_under(window, kernel_row, kernel_column);
                sum = fma::<FMA>(self.input[input_pixel * channels + channel], tap, sum);
            }
        }

        let place = pixel.number * channels + channel;
        sum += self.added.map_or(0.0, |added| added[place]);
        // As the vectors clamp: a NaN becomes the lower bound.
        match self.clamp {
            Some(clamp) if sum <= clamp.low || sum.is_nan() => clamp.low,
            Some(clamp) if sum >= clamp.high => clamp.high,
            _ => sum,
        }
    }
}

/// Pixels of a row under windows that slide, at most: seven windows of 5, 2 apart.
const COLUMNS: usize = 17;

/// P vectors of channels of X pixels side by side; for K and S see [`DepthwiseJob::pixels`].
///
/// # Safety
/// As for [`DepthwiseJob::pixels`], and there are so many channels.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn channel_vectors<
    V: Vector,
    const X: usize,
    const P: usize,
    const K: usize,
    const S: usize,
>(
    job: &DepthwiseJob<'_>,
    pixel: OutputPixel,
    near: Near<'_>,
    first: usize,
) {
    let window = &job.conv.image.window;
    let channels = job.conv.image.channels;
    let pixel_step = window.stride[2] * channels;
    // SAFETY: the caller's promise; `near` keeps to pixels of the image.
    unsafe {
        let mut sums = [[V::zero(); P]; X];
        for v in 0..P {
            let bias = V::load(job.conv.bias.as_ptr().add(first + v * PANEL));
            for p in 0..X {
                sums[p][v] = bias;
            }
        }

        // Each sum is one chain, its taps in the order of `one_channel`.
        for kernel_row in near.rows.start..near.rows.end {
            let kernel_column = near.columns.start;
            let input_pixel = pixel.input_under(window, kernel_row, kernel_column);
            let tap_number = kernel_row * window.kernel[2] + kernel_column;
            let mut elements = job.input.as_ptr().add(input_pixel * channels + first);
            let mut taps = job.conv.taps.as_ptr().add(tap_number * channels + first);

            if K > 0 {
                sliding_row::<V, X, P, K, S>(elements, taps, channels, &mut sums);
                continue;
            }
            for _ in near.columns.start..near.columns.end {
                for v in 0..P {
                    let tap = V::load(taps.add(v * PANEL));
                    for p in 0..X {
                        let element = V::load(elements.add(p * pixel_step + v * PANEL));
                        sums[p][v] = sums[p][v].add_products(element, tap);
                    }
                }
                elements = elements.wrapping_add(window.dilation[2] * channels);
                taps = taps.wrapping_add(channels);
            }
        }
        store_vectors(job, pixel.number * channels + first, &mut sums);
    }
}

/// A kernel row over pixels that are read once: pixel `i` of the row is under tap k of window `(i − k) / S`.
///
/// # Safety
/// The row's pixels and taps have P vectors from these places on, `channels` apart.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn sliding_row<V: Vector, const X: usize, const P: usize, const K: usize, const S: usize>(
    elements: *const f32,
    taps: *const f32,
    channels: usize,
    sums: &mut [[V; P]; X],
) {
    // SAFETY: the caller's promise.
    unsafe {
        for v in 0..P {
            // X windows of K taps, S apart, cover (X − 1) · S + K pixels, where separate reads would take X · K.
            let mut columns = [V::zero(); COLUMNS];
            for i in 0..(X - 1) * S + K {
                columns[i] = V::load(elements.add(i * channels + v * PANEL));
            }
            for k in 0..K {
                let tap = V::load(taps.add(k * channels + v * PANEL));
                for p in 0..X {
                    sums[p][v] = sums[p][v].add_products(columns[p * S + k], tap);
                }
            }
        }
    }
}

/// Adds what is added, clamps and stores the sums of pixels whose first channel is element `place` of the result.
///
/// # Safety
/// The result, and what is added, have P vectors from there on for each of X pixels.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn store_vectors<V: Vector, const X: usize, const P: usize>(
    job: &DepthwiseJob<'_>,
    place: usize,
    sums: &mut [[V; P]; X],
) {
    let channels = job.conv.image.channels;
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(added) = job.added {
            for p in 0..X {
                for v in 0..P {
                    let term = V::load(added.as_ptr().add(place + p * channels + v * PANEL));
                    sums[p][v] = sums[p][v].add(term);
                }
            }
        }

        let results = job.output.add(place);
        if let Some(clamp) = job.clamp {
            for p in 0..X {
                for v in 0..P {
                    let sum = sums[p][v].clamp(clamp.low, clamp.high);
                    sum.store(results.add(p * channels + v * PANEL));
                }
            }
        } else {
            for p in 0..X {
                for v in 0..P {
                    sums[p][v].store(results.add(p * channels + v * PANEL));
                }
            }
        }
    }
}

impl Body for Depthwise {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<f32>(0);
        let added = tensors.opt::<f32>(3);
        let output = tensors.out::<f32>(0);

        let window = &self.image.window;
        let channels = self.image.channels;
        let input_length = window.input_plane() * channels;
        let output_length = window.output_plane() * channels;
        let clamp = Clamp::of(self.act);

        for (n, result) in output.chunks_exact_mut(output_length).enumerate() {
            let job = DepthwiseJob {
                conv: self,
                input: &input[n * input_length..][..input_length],
                added: added.map(|a| &a[n * output_length..][..output_length]),
                output: result.as_mut_ptr(),
                output_length: result.len(),
                clamp,
                lines: 0..window.output[1],
            };
            job.check();

            // Lines of the result are shared out: cores read common input, and write apart.
            let tap_count = self.taps.len() / channels.max(1);
            team::share(output_length * tap_count, job.lines.end, 1, &|lines| {
                // SAFETY: `check` has seen that the images have the sizes that the code relies on; lines are others.
                unsafe {
                    run_wide(DepthwiseJob {
                        lines,
                        ..job.clone()
                    })
                }
            });
            // Other activations than bounds need a pass of their own over the image.
            if clamp.is_none() && self.act != Act::None {
                simd::dispatch(Finish(result, self.act));
            }
        }
    }
}
