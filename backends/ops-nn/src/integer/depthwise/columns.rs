//! Depthwise convolutions by columns: the taps of a column of a window are read as quads once, and meet the weights of all
//! windows that the column is in, those of the next row of results among them.

use super::super::super::window::Window;
use super::super::lanes::{LANES, LINE, Lanes, QUAD};
use super::super::packed::PackedWeights;
use super::Job;

/// Quads of a column, at most.
const MAX_QUADS: usize = 2;
/// Rows of results that are computed together, at most.
const MAX_ROWS: usize = 2;

/// The weights of windows of 3 x 3 or 5 x 5 taps by columns.
pub(super) struct ColumnWeights {
    /// Columns of a window.
    width: usize,
    /// Rows of results that share columns.
    pub(super) rows: usize,
    /// By block of sixteen channels, row of results, column and quad: a quad has the weights that the taps of its rows meet.
    /// A column is one row of the image higher than a window where two rows of results share it.
    lines: Vec<i8>,
}

impl ColumnWeights {
    /// None where there is no kernel for such windows.
    pub(super) fn new(packed: &PackedWeights, window: &Window) -> Option<Self> {
        let [_, height, width] = window.kernel;
        let has_kernel = height == width && [3, 5].contains(&width);
        let rows = match window.stride[1..] {
            [1, 1] => MAX_ROWS,
            [2, 2] => 1,
            _ => return None,
        };
        if packed.passes > 1 || window.dilation[1..] != [1, 1] || !has_kernel {
            return None;
        }

        let sizes = &packed.sizes;
        let panels = packed.bytes().chunks_exact(sizes.panel_bytes(1));
        let mut lines = Vec::new();
        for panel in panels {
            // Runs are rows of the window, or there is one.
            let weight = |lane: usize, row: usize, column: usize| {
                let element = row * width + column;
                let (run, place) = (element / sizes.run_length, element % sizes.run_length);
                let line = run * sizes.run_lines() + place / QUAD;
                panel[line * LINE + lane * QUAD + place % QUAD]
            };
            for result_row in 0..rows {
                for column in 0..width {
                    for quad in 0..height.div_ceil(QUAD) {
                        for lane in 0..LANES {
                            lines.extend((0..QUAD).map(|element| {
                                match (quad * QUAD + element).checked_sub(result_row) {
                                    Some(row) if row < height => weight(lane, row, column),
                                    _ => 0,
                                }
                            }));
                        }
                    }
                }
            }
        }
        Some(Self { width, rows, lines })
    }
}

/// Rows of the image under a window: where each begins, and the bytes to its next pixel, which is 0 in the border.
type ImageRows = [(*const u8, usize); MAX_QUADS * QUAD];

impl Job<'_> {
    /// All lines.
    ///
    /// # Safety
    /// [`Job::check`] has found nothing, the weights are this convolution's, and the processor has the lanes' instructions.
    #[inline(always)]
    pub(super) unsafe fn run_columns<L: Lanes>(&self, weights: &ColumnWeights) {
        let stride = self.conv.image.window.stride[2];
        let mut row = self.lines.start;
        while row < self.lines.end {
            let rows = weights.rows.min(self.lines.end - row);
            // SAFETY: the caller's promise.
            unsafe {
                match (weights.width, rows, stride) {
                    (3, 2.., _) => self.strip::<L, 3, 1, 2, 1>(weights, row),
                    (3, _, 1) => self.strip::<L, 3, 1, 1, 1>(weights, row),
                    (3, _, _) => self.strip::<L, 3, 1, 1, 2>(weights, row),
                    (_, 2.., _) => self.strip::<L, 5, 2, 2, 1>(weights, row),
                    (_, _, 1) => self.strip::<L, 5, 2, 1, 1>(weights, row),
                    _ => self.strip::<L, 5, 2, 1, 2>(weights, row),
                }
            }
            row += rows;
        }
    }

    /// Where the rows of the image begin that windows of result row `row` and the one behind it see.
    fn image_rows(&self, row: usize) -> ImageRows {
        let window = &self.conv.image.window;
        let [_, height, width] = window.input;
        let channels = self.conv.image.channels;
        std::array::from_fn(|tap| {
            // Rows before the first have wrapped, and are beyond the last.
            let y = (row * window.stride[1] + tap).wrapping_sub(window.before[1]);
            match y < height {
                true => (self.input[y * width * channels..].as_ptr(), channels),
                false => (self.conv.border.as_ptr(), 0),
            }
        })
    }

    /// N rows of results from `row` on, whose windows are W columns of Q quads, S columns apart.
    ///
    /// # Safety
    /// See [`Job::run_columns`]; the rows exist.
    #[inline(always)]
    unsafe fn strip<L: Lanes, const W: usize, const Q: usize, const N: usize, const S: usize>(
        &self,
        weights: &ColumnWeights,
        row: usize,
    ) {
        let image_rows = self.image_rows(row);
        let blocks = self.conv.packed.sizes.panels();
        let mut block = 0;
        // SAFETY: the caller's promise; the blocks exist.
        unsafe {
            // Small windows leave registers for the columns of two blocks, which then are walked along together.
            if L::MANY && Q == 1 {
                while block + 2 <= blocks {
                    self.blocks::<L, W, Q, N, S, 2>(weights, &image_rows, row, block);
                    block += 2;
                }
            }
            while block < blocks {
                self.blocks::<L, W, Q, N, S, 1>(weights, &image_rows, row, block);
                block += 1;
            }
        }
    }

    /// The same of B blocks of channels from block `first` on.
    ///
    /// # Safety
    /// See [`Job::run_columns`]; the rows and the blocks exist.
    #[inline(always)]
    #[expect(
        clippy::needless_range_loop,
        reason = "the indices name registers, and are unrolled"
    )]
    unsafe fn blocks<
        L: Lanes,
        const W: usize,
        const Q: usize,
        const N: usize,
        const S: usize,
        const B: usize,
    >(
        &self,
        weights: &ColumnWeights,
        image_rows: &ImageRows,
        row: usize,
        first: usize,
    ) {
        let conv = self.conv;
        let window = &conv.image.window;
        let channels = conv.image.channels;
        let output_width = window.output[2];
        let block_bytes = weights.rows * W * Q * LINE;
        let first_channel = first * LANES;
        // SAFETY: the caller's promise; lines have weights for each block, and so have biases and multipliers.
        unsafe {
            let lines = weights.lines.as_ptr().add(first * block_bytes);
            let mut requantising = [self.requantising::<L>(first_channel); B];
            for b in 1..B {
                requantising[b] = self.requantising::<L>(first_channel + b * LANES);
            }
            // All blocks but the last are whole.
            let last_count = (channels - first_channel).min(B * LANES) - (B - 1) * LANES;

            // Columns before the first have wrapped, and are beyond the last.
            let mut first_column = 0_usize.wrapping_sub(window.before[2]);
            let mut columns = [self.column::<L, Q, B>(image_rows, first_column, first_channel); W];
            for w in 1..W {
                let x = first_column.wrapping_add(w);
                columns[w] = self.column::<L, Q, B>(image_rows, x, first_channel);
            }
            for output_column in 0..output_width {
                for b in 0..B {
                    for n in 0..N {
                        let mut sums = L::zero();
                        for w in 0..W {
                            for q in 0..Q {
                                let line = ((n * W + w) * Q + q) * LINE;
                                let quad_weights = L::weights(lines.add(b * block_bytes + line));
                                sums = L::add_quads(sums, columns[w][b][q], quad_weights);
                            }
                        }
                        let pixel = (row + n) * output_width + output_column;
                        let result = self
                            .output
                            .add(pixel * channels + first_channel + b * LANES);
                        let count = if b + 1 < B { LANES } else { last_count };
                        requantising[b].store(L::totals(sums), count, result);
                    }
                }

                // Columns that the next window sees as well move to its front.
                first_column = first_column.wrapping_add(S);
                for w in 0..W - S {
                    columns[w] = columns[w + S];
                }
                for w in W - S..W {
                    let x = first_column.wrapping_add(w);
                    columns[w] = self.column::<L, Q, B>(image_rows, x, first_channel);
                }
            }
        }
    }

    /// The taps of column `x` of the image, or of the border beside it, for B blocks of channels.
    ///
    /// # Safety
    /// The processor has the lanes' instructions, and the channels are the image's.
    #[inline(always)]
    #[expect(
        clippy::needless_range_loop,
        reason = "the indices name registers, and are unrolled"
    )]
    unsafe fn column<L: Lanes, const Q: usize, const B: usize>(
        &self,
        rows: &ImageRows,
        x: usize,
        first_channel: usize,
    ) -> [[L::Quads; Q]; B] {
        let mut taps = [self.conv.border.as_ptr(); MAX_QUADS * QUAD];
        if x < self.conv.image.window.input[2] {
            for (tap, &(start, step)) in taps.iter_mut().zip(rows) {
                // SAFETY: a row has that column, and one in the border has no others.
                *tap = unsafe { start.add(x * step) };
            }
        }

        // SAFETY: sixteen bytes from a channel of a pixel or of the border on can be read, as `check` has seen.
        unsafe {
            let quad = |b: usize, q: usize| {
                [0, 1, 2, 3].map(|element| taps[q * QUAD + element].add(first_channel + b * LANES))
            };
            let mut quads = [[L::quads(quad(0, 0)); Q]; B];
            for b in 0..B {
                for q in 0..Q {
                    if b + q > 0 {
                        quads[b][q] = L::quads(quad(b, q));
                    }
                }
            }
            quads
        }
    }
}
