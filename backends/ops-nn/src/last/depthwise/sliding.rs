//! Windows that slide over pixels which registers hold: narrow ones, a pixel or two apart.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use std::ops::Range;

use super::super::super::gemm::PANEL;
use super::super::super::vector::Vector;
use super::super::super::window::Window;
use super::super::{Image, OutputPixel, kernel_within};
use super::{DepthwiseJob, bias_sums, finish};

/// Windows side by side that are made together.
const MANY: usize = 7;
const FEW: usize = 4;
/// Pixels of a row under them, at most: seven windows of 5, 2 apart.
const COLUMNS: usize = 17;

/// Whether windows can slide over an image: registers hold a row of pixels under them, and vectors and rows are filled.
pub(super) fn is_possible(image: &Image) -> bool {
    let window = &image.window;
    let is_narrow = matches!((window.kernel[2], window.stride[2]), (3 | 5, 1 | 2));
    is_narrow && window.dilation[2] == 1 && window.output[2] >= FEW && image.channels >= PANEL
}

/// Windows side by side, and the part of the image under them.
struct Windows {
    /// The result of the first one.
    pixel: OutputPixel,
    /// Those of the windows' rows that are inside the image.
    kernel_rows: Range<usize>,
    /// Those of the pixels in a row under the windows that are inside the image.
    inside: Range<usize>,
}

impl Windows {
    /// `count` windows of a line, from a column of the result on.
    fn new(window: &Window, count: usize, row: usize, column: usize) -> Self {
        let pixels = (count - 1) * window.stride[2] + window.kernel[2];
        // The first of the pixels is so far behind the left end of the padding.
        let first = column * window.stride[2];
        let image_start = window.before[2];
        let image_end = image_start + window.input[2];
        Self {
            pixel: OutputPixel::new(window, row, column),
            kernel_rows: kernel_within(window, 1, row),
            inside: image_start.saturating_sub(first)..image_end.saturating_sub(first).min(pixels),
        }
    }
}

/// Some channels of a line of the result.
///
/// # Safety
/// The sizes are as [`DepthwiseJob::check`] wants them, [`is_possible`] is true of the image, the line and the channels
/// exist, and the processor has the vector's instructions.
#[inline(always)]
pub(super) unsafe fn line<V: Vector>(job: &DepthwiseJob<'_>, row: usize, strip: Range<usize>) {
    let window = &job.conv.image.window;
    // SAFETY: the caller's promise.
    unsafe {
        match (window.kernel[2], window.stride[2]) {
            (3, 1) => line_of::<V, 3, 1>(job, row, strip),
            (3, _) => line_of::<V, 3, 2>(job, row, strip),
            (_, 1) => line_of::<V, 5, 1>(job, row, strip),
            _ => line_of::<V, 5, 2>(job, row, strip),
        }
    }
}

/// A line of windows of K taps, S pixels apart.
///
/// # Safety
/// As for [`line`]; K and S are the window's.
#[inline(always)]
unsafe fn line_of<V: Vector, const K: usize, const S: usize>(
    job: &DepthwiseJob<'_>,
    row: usize,
    strip: Range<usize>,
) {
    let window = &job.conv.image.window;
    let width = window.output[2];
    let mut column = 0;
    while column < width {
        // Windows at the end of a line overlap those before, and give the same sums there.
        let many = width >= MANY && width - column > FEW;
        let count = if many { MANY } else { FEW };
        let windows = Windows::new(window, count, row, column.min(width - count));
        // SAFETY: the caller's promise; these windows end with the line.
        unsafe {
            if many {
                channels::<V, MANY, K, S>(job, &windows, strip.clone());
            } else {
                channels::<V, FEW, K, S>(job, &windows, strip.clone());
            }
        }
        column += count;
    }
}

/// Some channels of X windows.
///
/// # Safety
/// As for [`line_of`]; the windows are X.
#[inline(always)]
unsafe fn channels<V: Vector, const X: usize, const K: usize, const S: usize>(
    job: &DepthwiseJob<'_>,
    windows: &Windows,
    strip: Range<usize>,
) {
    let is_whole = windows.inside.len() == (X - 1) * S + K;
    for first in strip.clone().step_by(PANEL) {
        // The last vector may overlap the one before, and gives the same sums there.
        let first = first.min(strip.end - PANEL);
        // SAFETY: the caller's promise; there are sixteen channels from the first on.
        unsafe {
            if is_whole {
                vector::<V, X, K, S, false>(job, windows, first);
            } else {
                vector::<V, X, K, S, true>(job, windows, first);
            }
        }
    }
}

/// Sixteen channels of X windows, `CUT` if some of their pixels are outside the image.
///
/// # Safety
/// As for [`channels`]; there are so many channels.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn vector<V: Vector, const X: usize, const K: usize, const S: usize, const CUT: bool>(
    job: &DepthwiseJob<'_>,
    windows: &Windows,
    first: usize,
) {
    let window = &job.conv.image.window;
    let channels = job.conv.image.channels;
    let pixel = windows.pixel;
    // SAFETY: the caller's promise; pixels outside the image are not read.
    unsafe {
        let mut sums = bias_sums::<V, X, 1>(job, first);

        // Each sum is one chain, its taps in the order of `one_channel`.
        for kernel_row in windows.kernel_rows.start..windows.kernel_rows.end {
            let input_row =
                pixel.row * window.stride[1] + kernel_row * window.dilation[1] - window.before[1];
            let row_start = input_row * window.input[2] + pixel.column * S;
            let row_place =
                (row_start * channels + first).wrapping_sub(window.before[2] * channels);
            let elements = job.input.as_ptr().wrapping_add(row_place);
            let taps = job
                .conv
                .taps
                .as_ptr()
                .add(kernel_row * K * channels + first);

            // X windows of K taps, S apart, cover (X − 1) · S + K pixels, where separate reads would take X · K.
            let mut columns = [V::zero(); COLUMNS];
            for i in 0..(X - 1) * S + K {
                let is_inside = !CUT || windows.inside.start <= i && i < windows.inside.end;
                columns[i] = V::load_if(elements.wrapping_add(i * channels), is_inside);
            }
            for k in 0..K {
                let tap = V::load(taps.add(k * channels));
                for p in 0..X {
                    sums[p][0] = sums[p][0].add_products(columns[p * S + k], tap);
                }
            }
        }
        finish(job, pixel.number * channels + first, &mut sums);
    }
}
