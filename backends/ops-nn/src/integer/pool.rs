//! Pools of bytes.

use zbmd_ir::DType;

use super::super::attributes;
use super::super::cx::{Body, Cx, Plan, Planned, Tensors, token, volume};
use super::super::window::Window;
use super::lanes::{Bounds, LANES};
use super::{BYTES, ByteRange, scale, zero_point};
use zbmd_op::simd::{self, Isa, Loop};

/// The position of the result's scale and zero point among the operands of a quantised mean.
const RESULT_SCALE: usize = 3;
const RESULT_ZERO: usize = 4;

/// The greatest byte of each window of [n, height, width, channels].
pub(in super::super) fn byte_max_pool(cx: &Cx<'_>) -> Planned {
    let dtype = cx.expect(0, &BYTES)?;
    let [batch, height, width, channels] = match cx.dims(0)?[..] {
        [batch, height, width, channels] if batch > 0 && channels > 0 => {
            [batch, height, width, channels]
        }
        _ => return Err(cx.refuse_type(0, "[n, height, width, channels]")),
    };
    let kernel = attributes::kernel_shape(cx, 2)?;
    let window = Window::new(cx, &[height, width], &kernel)?;

    let out_dims = [batch, window.output[1], window.output[2], channels];
    let elements = (volume(&out_dims) * kernel[0] * kernel[1]) as f64;
    let body = MaxPool {
        channels,
        window,
        is_signed: dtype == DType::I8,
    };
    // A step takes the greater ones of many bytes.
    Ok(Plan::new(vec![token(dtype, &out_dims)], body).flops(elements / 4.0))
}

struct MaxPool {
    channels: usize,
    window: Window,
    is_signed: bool,
}

impl MaxPool {
    /// Bytes of a row of the image.
    fn row_bytes(&self) -> usize {
        self.window.input[2] * self.channels
    }
}

impl Body for MaxPool {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.bytes(0);
        let output = tensors.out_bytes(0);
        let row = tensors.scratch::<u8>();
        let images = input.chunks_exact(self.window.input_plane() * self.channels);
        let results = output.chunks_exact_mut(self.window.output_plane() * self.channels);
        for (image, result) in images.zip(results) {
            simd::dispatch(MaxJob {
                pool: self,
                image,
                row: &mut row[..self.row_bytes()],
                result,
            });
        }
    }

    fn scratch_bytes(&self) -> usize {
        self.row_bytes()
    }
}

/// One image.
struct MaxJob<'a> {
    pool: &'a MaxPool,
    image: &'a [u8],
    /// Room for the greatest bytes of each column of a row of windows.
    row: &'a mut [u8],
    result: &'a mut [u8],
}

impl Loop for MaxJob<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        match self.pool.is_signed {
            true => self.find::<true>(),
            false => self.find::<false>(),
        }
    }
}

impl MaxJob<'_> {
    /// The greatest bytes of all windows: first of their columns, then of these.
    #[inline(always)]
    fn find<const SIGNED: bool>(self) {
        let MaxPool {
            channels, window, ..
        } = self.pool;
        let row_bytes = self.pool.row_bytes();
        let [_, kernel_height, kernel_width] = window.kernel;
        let result_rows = self.result.chunks_exact_mut(window.output[2] * channels);

        for (result_row, results) in result_rows.enumerate() {
            let image_rows = (0..kernel_height)
                .filter_map(|k| window.place(1, result_row, k))
                .map(|y| &self.image[y * row_bytes..][..row_bytes]);
            greatest_of::<SIGNED>(image_rows, self.row);

            for (column, result) in results.chunks_exact_mut(*channels).enumerate() {
                let pixels = (0..kernel_width)
                    .filter_map(|k| window.place(2, column, k))
                    .map(|x| &self.row[x * channels..][..*channels]);
                greatest_of::<SIGNED>(pixels, result);
            }
        }
    }
}

/// Stretches whose greatest bytes are found together, at most.
const GROUP: usize = 8;
/// Bytes that are compared together, where there are as many.
const WIDE: usize = 64;

/// The greatest bytes of some stretches, which are as long as `greatest`; the least byte where there are none.
#[inline(always)]
fn greatest_of<'a, const SIGNED: bool>(
    stretches: impl Iterator<Item = &'a [u8]>,
    greatest: &mut [u8],
) {
    let mut group = [&[][..]; GROUP];
    let mut count = 0;
    let mut is_begun = false;
    for stretch in stretches {
        if count == GROUP {
            greatest_bytes::<SIGNED>(&group, is_begun, greatest);
            is_begun = true;
            count = 0;
        }
        group[count] = stretch;
        count += 1;
    }
    greatest_bytes::<SIGNED>(&group[..count], is_begun, greatest);
}

/// The greatest bytes of some stretches, and of `greatest` where that is begun.
#[inline(always)]
fn greatest_bytes<const SIGNED: bool>(stretches: &[&[u8]], is_begun: bool, greatest: &mut [u8]) {
    let length = greatest.len();
    let mut start = 0;
    while start + WIDE <= length {
        greatest_chunk::<SIGNED, WIDE>(stretches, start, is_begun, greatest);
        start += WIDE;
    }
    while start < length && length >= LANES {
        // The last chunk overlaps the one before, and gives the same there.
        let first = start.min(length - LANES);
        greatest_chunk::<SIGNED, LANES>(stretches, first, is_begun, greatest);
        start = first + LANES;
    }
    while start < length {
        greatest_chunk::<SIGNED, 1>(stretches, start, is_begun, greatest);
        start += 1;
    }
}

/// The same of N bytes from `start` on, which the compiler makes vectors of.
#[inline(always)]
fn greatest_chunk<const SIGNED: bool, const N: usize>(
    stretches: &[&[u8]],
    start: usize,
    is_begun: bool,
    greatest: &mut [u8],
) {
    let greater = |a: u8, b: u8| match SIGNED {
        true => (a as i8).max(b as i8) as u8,
        false => a.max(b),
    };
    let greatest = &mut greatest[start..start + N];
    let mut found = [if SIGNED { i8::MIN as u8 } else { u8::MIN }; N];
    if is_begun {
        found.copy_from_slice(greatest);
    }

    for stretch in stretches {
        let bytes = &stretch[start..start + N];
        for (found, &byte) in found.iter_mut().zip(bytes) {
            *found = greater(*found, byte);
        }
    }
    greatest.copy_from_slice(&found);
}

/// The mean of each channel. Operands: the images with scale and zero point, scale and zero point of the result.
pub(in super::super) fn qlinear_global_mean(cx: &Cx<'_>) -> Planned {
    let dtype = cx.expect(0, &BYTES)?;
    let is_last = cx.flag("channels_last", false)?;
    let dims = cx.dims(0)?;
    if dims.len() < 3 || dims.contains(&0) {
        return Err(cx.refuse_type(0, "a batch of images with channels"));
    }
    let rank = dims.len();
    let (channels, spatial) = match is_last {
        true => (dims[rank - 1], &dims[1..rank - 1]),
        false => (dims[1], &dims[2..]),
    };
    let pixels = volume(spatial);
    let mut out_dims = vec![1; rank];
    out_dims[0] = dims[0];
    out_dims[if is_last { rank - 1 } else { 1 }] = channels;

    let zero = zero_point(cx, RESULT_ZERO)?;
    let body = GlobalMean {
        pixels,
        channels,
        is_last,
        is_signed: dtype == DType::I8,
        zero_sum: (pixels as i32).wrapping_mul(zero_point(cx, 2)?),
        multiplier: scale(cx, 1)? / (scale(cx, RESULT_SCALE)? * pixels as f32),
        bounds: ByteRange::all(dtype).bounds(zero),
    };
    Ok(Plan::new(vec![token(dtype, &out_dims)], body).flops(volume(&dims) as f64))
}

struct GlobalMean {
    pixels: usize,
    channels: usize,
    is_last: bool,
    is_signed: bool,
    /// The zero points of all pixels together.
    zero_sum: i32,
    multiplier: f32,
    bounds: Bounds,
}

impl GlobalMean {
    /// The mean of so large a sum of bytes.
    fn byte(&self, sum: i32) -> u8 {
        let number = sum.wrapping_sub(self.zero_sum) as f32 * self.multiplier;
        self.bounds.byte(number)
    }

    fn widened(&self, byte: u8) -> i32 {
        match self.is_signed {
            true => i32::from(byte as i8),
            false => i32::from(byte),
        }
    }
}

/// Channels whose sums are made at a time.
const SUMS: usize = 64;

impl Body for GlobalMean {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let images = tensors.bytes(0);
        let output = tensors.out_bytes(0);
        let image_bytes = self.pixels * self.channels;
        let results = output.chunks_exact_mut(self.channels);

        for (image, means) in images.chunks_exact(image_bytes).zip(results) {
            if !self.is_last {
                for (plane, mean) in image.chunks_exact(self.pixels).zip(means) {
                    let sum = plane.iter().map(|&byte| self.widened(byte));
                    *mean = self.byte(sum.fold(0, i32::wrapping_add));
                }
                continue;
            }
            for (block, means) in means.chunks_mut(SUMS).enumerate() {
                let mut sums = [0_i32; SUMS];
                simd::dispatch(SumJob {
                    mean: self,
                    image: &image[block * SUMS..],
                    sums: &mut sums[..means.len()],
                });
                for (mean, &sum) in means.iter_mut().zip(&sums) {
                    *mean = self.byte(sum);
                }
            }
        }
    }
}

/// Sums of some channels over all pixels.
struct SumJob<'a> {
    mean: &'a GlobalMean,
    /// From the first of these channels on.
    image: &'a [u8],
    sums: &'a mut [i32],
}

impl Loop for SumJob<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        for pixel in self.image.chunks(self.mean.channels) {
            for (sum, &byte) in self.sums.iter_mut().zip(pixel) {
                *sum = sum.wrapping_add(self.mean.widened(byte));
            }
        }
    }
}
