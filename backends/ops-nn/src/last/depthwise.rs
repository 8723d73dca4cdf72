//! Convolutions with one filter for each channel.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

mod sliding;

use std::ops::Range;

use super::super::aligned::AlignedFloats;
use super::super::cx::{Body, Tensors};
use super::super::gemm::{Act, PANEL};
use super::super::vector::{Vector, Wide, run_wide};
use super::{Finish, Image, Near, OutputPixel, SumActivation, kernel_within};
use zbmd_op::simd::{self, fma};
use zbmd_op::team::{self, Cut};

/// Bytes of rows under a window, and of taps, that stay in the first cache beside results.
const STRIP_BYTES: usize = 24 << 10;

/// Channels of a strip, at least: shorter runs of memory are fetched slowly.
const LEAST_STRIP: usize = 4 * PANEL;

/// One filter for each channel.
pub(super) struct Depthwise {
    image: Image,
    /// Weights by tap, then channel.
    taps: AlignedFloats,
    bias: Vec<f32>,
    act: Act,
    /// Channels that are made together, line by line.
    strip: usize,
    /// Whether pixels of a row are read once for all windows that they are under, where registers hold them.
    slides: bool,
}

impl Depthwise {
    pub(super) fn new(image: Image, weights: &[f32], bias: Option<Vec<f32>>, act: Act) -> Self {
        let window = &image.window;
        let channels = image.channels;
        let kernel_elements = window.kernel[1] * window.kernel[2];
        // ONNX has them by channel, then tap: turned over, so that lanes run along channels.
        let mut taps = AlignedFloats::zeroed(weights.len());
        for (i, weight) in weights.iter().enumerate() {
            let channel = i / kernel_elements;
            taps[i % kernel_elements * channels + channel] = *weight;
        }

        // Images of many channels have wide rows: those under a window would leave the first cache before the next
        // window needs them.
        let channel_bytes = 4 * (window.kernel[1] * window.input[2] + kernel_elements);
        let strip = STRIP_BYTES / channel_bytes / PANEL * PANEL;
        // Sliding windows multiply taps with zeros around the image, which must not make a NaN.
        let is_finite = taps.iter().all(|tap| tap.is_finite());
        Self {
            bias: bias.unwrap_or_else(|| vec![0.0; channels]),
            taps,
            act,
            strip: strip.max(LEAST_STRIP),
            slides: is_finite && sliding::is_possible(&image),
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
    activation: Option<SumActivation>,
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
        let channels = self.conv.image.channels;
        for first in (0..channels).step_by(self.conv.strip) {
            let strip = first..(first + self.conv.strip).min(channels);
            for row in self.lines.clone() {
                // SAFETY: `check` has seen that images and weights have these sizes; the row exists.
                unsafe {
                    if V::MANY && self.conv.slides {
                        sliding::line::<V>(&self, row, strip.clone());
                    } else {
                        self.row::<V, FMA>(row, strip.clone());
                    }
                }
            }
        }
    }
}

impl DepthwiseJob<'_> {
    /// Some channels of a line, by windows that are cut at the edges of the image.
    ///
    /// # Safety
    /// The sizes are as [`Self::check`] wants them, the line and the channels exist, and the processor has the vector's
    /// instructions.
    #[inline(always)]
    unsafe fn row<V: Vector, const FMA: bool>(&self, row: usize, strip: Range<usize>) {
        let window = &self.conv.image.window;
        let [_, _, output_width] = window.output;
        let kernel_width = window.kernel[2];
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
            let pixel = OutputPixel::new(window, row, column);
            let near = Near {
                rows: &kernel_rows,
                columns: &kernel_columns,
            };
            // SAFETY: the caller's promise; these pixels exist.
            unsafe {
                column += if V::MANY && are_whole(4) {
                    self.pixels::<V, FMA, 4, 2>(pixel, near, strip.clone())
                } else {
                    self.pixels::<V, FMA, 1, 4>(pixel, near, strip.clone())
                };
            }
        }
    }

    /// X pixels side by side from this one on, some of their channels, P vectors at a time; returns X.
    ///
    /// # Safety
    /// As for [`Self::row`]; the pixels exist and have the same window.
    #[inline(always)]
    unsafe fn pixels<V: Vector, const FMA: bool, const X: usize, const P: usize>(
        &self,
        pixel: OutputPixel,
        near: Near<'_>,
        strip: Range<usize>,
    ) -> usize {
        let mut first = strip.start;
        // SAFETY: the caller's promise; the vectors end with the channels.
        unsafe {
            // Wide steps first, then single vectors; channels one by one only where they fill no vector.
            while first + P * PANEL <= strip.end {
                channel_vectors::<V, X, P>(self, pixel, near, first);
                first += P * PANEL;
            }
            while first + PANEL <= strip.end {
                channel_vectors::<V, X, 1>(self, pixel, near, first);
                first += PANEL;
            }
            if first < strip.end && strip.end >= PANEL {
                // The last vector overlaps the one before, and gives the same sums there.
                channel_vectors::<V, X, 1>(self, pixel, near, strip.end - PANEL);
                first = strip.end;
            }
            for p in 0..X {
                self.single_channels::<FMA>(pixel.right_by(p), near, first..strip.end);
            }
        }
        X
    }

    /// Channels of a pixel that fill no vector.
    ///
    /// # Safety
    /// As for [`Self::row`].
    #[inline(always)]
    unsafe fn single_channels<const FMA: bool>(
        &self,
        pixel: OutputPixel,
        near: Near<'_>,
        channels: Range<usize>,
    ) {
        for channel in channels {
            let sum = self.one_channel::<FMA>(pixel, near, channel);
            let place = pixel.number * self.conv.image.channels + channel;
            // SAFETY: the caller's promise.
            unsafe { *self.output.add(place) = sum };
        }
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

        // See `finish`.
        sum += 0.0;
        let place = pixel.number * channels + channel;
        sum += self.added.map_or(0.0, |added| added[place]);
        match self.activation {
            Some(activation) => activation.of_sum(sum),
            None => sum,
        }
    }
}

/// P vectors of channels of X pixels side by side, whose windows are cut in the same way.
///
/// # Safety
/// As for [`DepthwiseJob::pixels`], and there are so many channels.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn channel_vectors<V: Vector, const X: usize, const P: usize>(
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
        let mut sums = bias_sums::<V, X, P>(job, first);

        // Each sum is one chain, its taps in the order of `one_channel`.
        for kernel_row in near.rows.start..near.rows.end {
            let kernel_column = near.columns.start;
            let input_pixel = pixel.input_under(window, kernel_row, kernel_column);
            let tap_number = kernel_row * window.kernel[2] + kernel_column;
            let mut elements = job.input.as_ptr().add(input_pixel * channels + first);
            let mut taps = job.conv.taps.as_ptr().add(tap_number * channels + first);

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
        finish(job, pixel.number * channels + first, &mut sums);
    }
}

/// The sums before the first product.
///
/// # Safety
/// P vectors of channels exist from `first` on.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn bias_sums<V: Vector, const X: usize, const P: usize>(
    job: &DepthwiseJob<'_>,
    first: usize,
) -> [[V; P]; X] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::zero(); P]; X];
        for v in 0..P {
            let bias = V::load(job.conv.bias.as_ptr().add(first + v * PANEL));
            for p in 0..X {
                sums[p][v] = bias;
            }
        }
        sums
    }
}

/// Adds what is added, applies the activation and stores the sums of pixels whose first channel is element `place` of
/// the result.
///
/// # Safety
/// The result, and what is added, have P vectors from there on for each of X pixels.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn finish<V: Vector, const X: usize, const P: usize>(
    job: &DepthwiseJob<'_>,
    place: usize,
    sums: &mut [[V; P]; X],
) {
    let channels = job.conv.image.channels;
    // SAFETY: the caller's promise.
    unsafe {
        // A sum of −0 is one of 0: so that products with zeros around the image, which sliding windows add and others
        // leave out, change no bit.
        for p in 0..X {
            for v in 0..P {
                sums[p][v] = sums[p][v].add(V::zero());
            }
        }

        if let Some(added) = job.added {
            for p in 0..X {
                for v in 0..P {
                    let term = V::load(added.as_ptr().add(place + p * channels + v * PANEL));
                    sums[p][v] = sums[p][v].add(term);
                }
            }
        }

        if let Some(activation) = job.activation {
            activation.of_tile(sums);
        }
        let results = job.output.add(place);
        for p in 0..X {
            for v in 0..P {
                sums[p][v].store(results.add(p * channels + v * PANEL));
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
        let activation = SumActivation::of(self.act);

        for (n, result) in output.chunks_exact_mut(output_length).enumerate() {
            let job = DepthwiseJob {
                conv: self,
                input: &input[n * input_length..][..input_length],
                added: added.map(|a| &a[n * output_length..][..output_length]),
                output: result.as_mut_ptr(),
                output_length: result.len(),
                activation,
                lines: 0..window.output[1],
            };
            job.check();

            // Lines of the result are shared out: cores read common input, and write apart.
            let tap_count = self.taps.len() / channels.max(1);
            let work = output_length * tap_count;
            team::share(work, Cut::new(job.lines.end, 1), &|lines| {
                // SAFETY: `check` has seen that the images have the sizes that the code relies on; lines are others.
                unsafe {
                    run_wide(DepthwiseJob {
                        lines,
                        ..job.clone()
                    })
                }
            });
            if activation.is_none() && self.act != Act::None {
                simd::dispatch(Finish(result, self.act));
            }
        }
    }
}
