//! Convolutions of bytes with one filter for each channel: lanes run along channels, and four taps make a quad.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

mod columns;

use std::ops::Range;

use super::super::cx::{Body, Tensors};
use super::conv::{ByteImage, ConvRequest, SLACK, copy_unsigned};
use super::lanes::{Bounds, LANES, LINE, Laned, Lanes, QUAD, Requantising, run_lanes};
use super::packed::{FilterSizes, PackedWeights};
use columns::ColumnWeights;
use zbmd_op::OpError;
use zbmd_op::team::{self, Cut};

/// Taps of a window, at most, those that fill up quads among them.
pub(super) const MAX_TAPS: usize = 64;
/// Columns of a window whose rows are quads.
const ROW: usize = 3;

/// One filter for each channel.
pub(super) struct Depthwise {
    image: ByteImage,
    /// Rows and columns of a window: four columns where quads are rows.
    grid: [usize; 2],
    /// Elements that a window reads, those that fill up the last quad included: weights of 0 meet these.
    tap_count: usize,
    /// What taps outside the image read: its zero point, for all channels.
    border: Vec<u8>,
    /// By block of sixteen channels.
    packed: PackedWeights,
    /// The same by columns of windows, where there is a kernel for these.
    columns: Option<ColumnWeights>,
    biases: Vec<i32>,
    multipliers: Vec<f32>,
    bounds: Bounds,
    needs_copy: bool,
}

/// How the weights of a channel are packed: by rows of three, or all taps as one run.
pub(super) fn channel_sizes(channels: usize, kernel: [usize; 2]) -> FilterSizes {
    let [height, width] = kernel;
    let has_row_quads = width == ROW;
    FilterSizes {
        groups: 1,
        group_filters: channels,
        runs: if has_row_quads { height } else { 1 },
        run_length: if has_row_quads { width } else { height * width },
        has_tiles: false,
    }
}

/// Elements that a window reads, those that fill up the last quad included.
pub(super) fn tap_count(kernel: [usize; 2]) -> usize {
    let [height, width] = kernel;
    let row = if width == ROW { QUAD } else { width };
    (height * row).next_multiple_of(QUAD)
}

impl Depthwise {
    pub(super) fn new(request: ConvRequest) -> Result<Self, OpError> {
        let packed = request.packed()?;
        let ConvRequest {
            image,
            layout,
            bias,
            multipliers,
            bounds,
            ..
        } = request;
        let channels = image.channels;
        let [height, width] = layout.kernel;
        let has_row_quads = width == ROW;
        let grid = [height, if has_row_quads { QUAD } else { width }];
        Ok(Self {
            columns: ColumnWeights::new(&packed, &image.window),
            grid,
            tap_count: tap_count(layout.kernel),
            border: vec![image.input.zero as u8; channels.next_multiple_of(LANES)],
            needs_copy: image.input.is_signed || !channels.is_multiple_of(LANES),
            biases: packed.biases(bias.as_deref(), image.input.zero),
            multipliers: packed.by_lane(&multipliers),
            image,
            packed,
            bounds,
        })
    }

    /// Bytes of the weights of a block.
    fn panel_bytes(&self) -> usize {
        self.packed.sizes.panel_bytes(self.packed.passes)
    }
}

impl Body for Depthwise {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.bytes(0);
        let output = tensors.out_bytes(0);
        let scratch = tensors.scratch::<u8>();
        let window = &self.image.window;
        let results = output.chunks_exact_mut(window.output_plane() * self.image.channels);

        for (image, result) in input.chunks_exact(self.image.bytes()).zip(results) {
            let source = match self.needs_copy {
                true => {
                    let (own, slack) = scratch.split_at_mut(image.len());
                    copy_unsigned(image, own, self.image.input.is_signed);
                    slack.fill(0);
                    &*scratch
                }
                false => image,
            };
            let job = Job {
                conv: self,
                input: source,
                output: result.as_mut_ptr(),
                output_length: result.len(),
                lines: 0..window.output[1],
            };
            job.check();

            let work = job.output_length * self.tap_count;
            let rows = self.columns.as_ref().map_or(1, |columns| columns.rows);
            team::share(work, Cut::new(job.lines.end, rows), &|lines| {
                // SAFETY: `check` has seen that all places are inside the slices; lines are others.
                unsafe {
                    run_lanes(Job {
                        lines,
                        ..job.clone()
                    })
                }
            });
        }
    }

    fn scratch_bytes(&self) -> usize {
        match self.needs_copy {
            true => self.image.bytes() + SLACK,
            false => 0,
        }
    }
}

/// Some lines of one image.
#[derive(Clone)]
struct Job<'a> {
    conv: &'a Depthwise,
    input: &'a [u8],
    /// First byte of the result, and its bytes.
    output: *mut u8,
    output_length: usize,
    lines: Range<usize>,
}

// SAFETY: all is read only but for the result, of which each core has lines of its own.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    /// Panics unless every place that the code reads or writes is inside its slice.
    fn check(&self) {
        let conv = self.conv;
        let [_, height, width] = conv.image.window.output;
        // Blocks read whole vectors: the last one of the last pixel may end behind the image.
        let lanes = conv.packed.sizes.panels() * LANES;
        let overhang = lanes - conv.image.channels;
        assert!(
            conv.image.bytes() + overhang <= self.input.len() && conv.border.len() == lanes,
            "the image has another size"
        );
        assert!(
            self.output_length == height * width * conv.image.channels,
            "the result has another size"
        );
        assert!(
            conv.packed.bytes().len() == conv.packed.sizes.panels() * conv.panel_bytes()
                && conv.packed.sizes.runs * conv.packed.sizes.quads() * QUAD == conv.tap_count
                && conv.tap_count <= MAX_TAPS
                && conv.biases.len() == lanes
                && conv.multipliers.len() == lanes,
            "the weights have another size"
        );
    }

    /// Where the taps of an output pixel begin; those outside the image, and those that fill up the last quad, in the
    /// border.
    #[inline(always)]
    fn put_taps(&self, row: usize, column: usize, taps: &mut [*const u8; MAX_TAPS]) {
        let window = &self.conv.image.window;
        let [_, height, width] = window.input;
        let [kernel_height, kernel_width] = self.conv.grid;
        let mut tap = 0;
        for kernel_row in 0..kernel_height {
            let y = (row * window.stride[1] + kernel_row * window.dilation[1])
                .wrapping_sub(window.before[1]);
            for kernel_column in 0..kernel_width {
                let x = (column * window.stride[2] + kernel_column * window.dilation[2])
                    .wrapping_sub(window.before[2]);
                // Places before the first have wrapped, and are beyond the last.
                taps[tap] = match y < height && x < width {
                    true => {
                        let start = (y * width + x) * self.conv.image.channels;
                        self.input[start..].as_ptr()
                    }
                    false => self.conv.border.as_ptr(),
                };
                tap += 1;
            }
        }
    }
}

impl Laned for Job<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        if let Some(columns) = &self.conv.columns {
            // SAFETY: the caller's promise; `check` has seen that all places are inside the slices.
            unsafe { self.run_columns::<L>(columns) };
            return;
        }
        let width = self.conv.image.window.output[2];
        let blocks = self.conv.packed.sizes.panels();
        let mut taps = [self.conv.border.as_ptr(); MAX_TAPS];
        for row in self.lines.clone() {
            for column in 0..width {
                self.put_taps(row, column, &mut taps);
                let pixel = row * width + column;
                for block in 0..blocks {
                    // SAFETY: `check` has seen that pixels, taps and blocks are inside the slices.
                    unsafe { self.block::<L>(&taps, pixel, block) };
                }
            }
        }
    }
}

impl Job<'_> {
    /// What makes bytes of the sums of the block that begins with this channel.
    ///
    /// # Safety
    /// The block exists, and the processor has the lanes' instructions.
    #[inline(always)]
    unsafe fn requantising<L: Lanes>(&self, first_channel: usize) -> Requantising<L> {
        let conv = self.conv;
        // SAFETY: the caller's promise; biases and multipliers fill whole blocks.
        unsafe {
            Requantising::new(
                conv.biases.as_ptr().add(first_channel),
                conv.multipliers.as_ptr().add(first_channel),
                conv.bounds,
            )
        }
    }

    /// One block of channels of a pixel.
    ///
    /// # Safety
    /// The pixel and the block exist, and the processor has the lanes' instructions.
    #[inline(always)]
    unsafe fn block<L: Lanes>(&self, taps: &[*const u8; MAX_TAPS], pixel: usize, block: usize) {
        let conv = self.conv;
        let first_channel = block * LANES;
        let channels = conv.image.channels;

        // SAFETY: the caller's promise.
        unsafe {
            let mut line = (conv.packed.bytes().as_ptr()).add(block * conv.panel_bytes());
            let mut sums = L::zero();
            for _ in 0..conv.packed.passes {
                for quad in taps[..conv.tap_count].chunks_exact(QUAD) {
                    let elements = L::quads([
                        quad[0].add(first_channel),
                        quad[1].add(first_channel),
                        quad[2].add(first_channel),
                        quad[3].add(first_channel),
                    ]);
                    sums = L::add_quads(sums, elements, L::weights(line));
                    line = line.wrapping_add(LINE);
                }
            }

            let count = (channels - first_channel).min(LANES);
            let result = self.output.add(pixel * channels + first_channel);
            self.requantising::<L>(first_channel)
                .store(L::totals(sums), count, result);
        }
    }
}
