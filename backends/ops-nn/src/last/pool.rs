//! Pools: the greatest or the mean of each window, or of each channel.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use std::ops::Range;

use zbmd_ir::DType;

use super::super::attributes;
use super::super::cx::{Body, Cx, Plan, Planned, Tensors, token, volume};
use super::super::gemm::PANEL;
use super::super::integer::{BYTES, byte_max_pool};
use super::super::num::Num;
use super::super::vector::{Vector, Wide, run_wide};
use super::super::window::Window;
use super::{Image, Near, OutputPixel, each_pixel, image_dims};
use zbmd_op::team::{self, Cut};

/// The greatest or the mean of each window.
pub(in super::super) fn pool(cx: &Cx<'_>, is_mean: bool) -> Planned {
    if !is_mean && BYTES.contains(&cx.dtype(0)?) {
        return byte_max_pool(cx);
    }
    let [batch, height, width, channels] = image_dims(cx)?;
    let kernel = attributes::kernel_shape(cx, 2)?;
    let window = Window::new(cx, &[height, width], &kernel)?;
    let counts_padding = attributes::counts_padding(cx)?;

    let out_dims = [batch, window.output[1], window.output[2], channels];
    let flops = 3.0 * (volume(&out_dims) * kernel[0] * kernel[1]) as f64;
    let body = Pool {
        image: Image {
            batch,
            channels,
            window,
        },
        is_mean,
        counts_padding,
    };
    Ok(Plan::new(vec![token(DType::F32, &out_dims)], body).flops(flops))
}

/// The mean of each channel.
pub(in super::super) fn global(cx: &Cx<'_>) -> Planned {
    let [batch, height, width, channels] = image_dims(cx)?;
    let pixels = height * width;
    if pixels == 0 {
        return Err(cx.refuse(0, "is empty", "give it elements"));
    }
    let outs = vec![token(DType::F32, &[batch, 1, 1, channels])];
    let flops = (batch * pixels * channels) as f64;
    Ok(Plan::new(outs, GlobalMean { pixels, channels }).flops(flops))
}

struct GlobalMean {
    pixels: usize,
    channels: usize,
}

impl Body for GlobalMean {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let images = tensors.get::<f32>(0);
        let output = tensors.out::<f32>(0);
        let image_length = self.pixels * self.channels;

        let means = output.chunks_exact_mut(self.channels);
        for (image, sums) in images.chunks_exact(image_length).zip(means) {
            // Lanes run along channels: one sum for each, over all pixels.
            sums.fill(0.0);
            for pixel in image.chunks_exact(self.channels) {
                sums.iter_mut().zip(pixel).for_each(|(sum, x)| *sum += x);
            }
            sums.iter_mut().for_each(|sum| *sum /= self.pixels as f32);
        }
    }
}

struct Pool {
    image: Image,
    /// The mean of each window, or else the greatest.
    is_mean: bool,
    /// Whether padding counts as elements of a mean.
    counts_padding: bool,
}

/// The pool of some lines of one image.
#[derive(Clone)]
struct PoolJob<'a> {
    pool: &'a Pool,
    input: &'a [f32],
    /// First element of the result, and its elements.
    output: *mut f32,
    output_length: usize,
    /// Those of the result that are made.
    lines: Range<usize>,
}

// SAFETY: all is read only but for the result, of which each core has lines of its own.
unsafe impl Sync for PoolJob<'_> {}

impl PoolJob<'_> {
    fn window(&self) -> &Window {
        &self.pool.image.window
    }

    /// Panics unless the image and the result have the sizes that the code relies on.
    fn check(&self) {
        let channels = self.pool.image.channels;
        let input_length = self.window().input_plane() * channels;
        let output_length = self.window().output_plane() * channels;
        assert!(
            self.input.len() == input_length && self.output_length == output_length,
            "an image has another size"
        );
    }

    /// What a window's sum or maximum begins with.
    fn start(&self) -> f32 {
        if self.pool.is_mean {
            0.0
        } else {
            f32::NEG_INFINITY
        }
    }

    /// Elements of a mean.
    fn element_count(&self, pixel: OutputPixel, near: Near<'_>) -> usize {
        if self.pool.counts_padding {
            let window = self.window();
            window.reached(1, pixel.row) * window.reached(2, pixel.column)
        } else {
            near.rows.len() * near.columns.len()
        }
    }

    /// One channel of a pixel; `scale` is what a sum is multiplied by for the mean.
    fn one_channel(&self, pixel: OutputPixel, near: Near<'_>, scale: f32, channel: usize) -> f32 {
        let channels = self.pool.image.channels;
        let mut joined = self.start();
        for kernel_row in near.rows.clone() {
            for kernel_column in near.columns.clone() {
                let input_pixel = pixel.input_under(self.window(), kernel_row, kernel_column);
                let element = self.input[input_pixel * channels + channel];
                joined = if self.pool.is_mean {
                    joined + element
                } else {
                    Num::max(joined, element)
                };
            }
        }
        if self.pool.is_mean {
            joined * scale
        } else {
            joined
        }
    }
}

impl Wide for PoolJob<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const FMA: bool>(self) {
        let channels = self.pool.image.channels;
        each_pixel(self.window(), self.lines.clone(), |pixel, near| {
            // One division for a pixel in place of one for each channel.
            let scale = 1.0 / self.element_count(pixel, near) as f32;
            let mut first = 0;
            // SAFETY: `check` has seen that the images have these sizes; the vectors end with the channels.
            unsafe {
                while first + 4 * PANEL <= channels {
                    pooled::<V, 4>(&self, pixel, near, scale, first);
                    first += 4 * PANEL;
                }
                while first + PANEL <= channels {
                    pooled::<V, 1>(&self, pixel, near, scale, first);
                    first += PANEL;
                }
                if first < channels && channels >= PANEL {
                    // The last vector overlaps the one before, and gives the same there.
                    pooled::<V, 1>(&self, pixel, near, scale, channels - PANEL);
                    first = channels;
                }
            }
            for channel in first..channels {
                let result = self.one_channel(pixel, near, scale, channel);
                // SAFETY: it is an output pixel and a channel.
                unsafe { *self.output.add(pixel.number * channels + channel) = result };
            }
        });
    }
}

/// P vectors of channels of a pixel.
///
/// # Safety
/// The sizes are as [`PoolJob::check`] wants them, there are so many channels, and the processor has the vector's
/// instructions.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn pooled<V: Vector, const P: usize>(
    job: &PoolJob<'_>,
    pixel: OutputPixel,
    near: Near<'_>,
    scale: f32,
    first: usize,
) {
    let window = &job.pool.image.window;
    let channels = job.pool.image.channels;
    // SAFETY: the caller's promise; `near` keeps to pixels of the image.
    unsafe {
        let mut sums = [V::load([job.start(); PANEL].as_ptr()); P];
        for kernel_row in near.rows.start..near.rows.end {
            for kernel_column in near.columns.start..near.columns.end {
                let input_pixel = pixel.input_under(window, kernel_row, kernel_column);
                let elements = job.input.as_ptr().add(input_pixel * channels + first);
                for v in 0..P {
                    let element = V::load(elements.add(v * PANEL));
                    sums[v] = if job.pool.is_mean {
                        sums[v].add(element)
                    } else {
                        sums[v].greater(element)
                    };
                }
            }
        }

        let results = job.output.add(pixel.number * channels + first);
        for v in 0..P {
            let result = if job.pool.is_mean {
                V::zero().add_product(scale, sums[v])
            } else {
                sums[v]
            };
            result.store(results.add(v * PANEL));
        }
    }
}

impl Body for Pool {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<f32>(0);
        let output = tensors.out::<f32>(0);
        let window = &self.image.window;
        let channels = self.image.channels;

        let images = input.chunks_exact(window.input_plane() * channels);
        let results = output.chunks_exact_mut(window.output_plane() * channels);
        for (image, result) in images.zip(results) {
            let job = PoolJob {
                pool: self,
                input: image,
                output: result.as_mut_ptr(),
                output_length: result.len(),
                lines: 0..window.output[1],
            };
            job.check();

            let work = job.output_length * window.kernel[1] * window.kernel[2];
            team::share(work, Cut::new(job.lines.end, 1), &|lines| {
                // SAFETY: `check` has seen that the images have the sizes that the code relies on; lines are others.
                unsafe {
                    run_wide(PoolJob {
                        lines,
                        ..job.clone()
                    })
                }
            });
        }
    }
}
