//! Convolutions with few outputs for each filter, as those of short signals: a product of windows with packed weights.
//!
//! [`Gathered`](super::gathered::Gathered) has a column for each output, in panels of sixteen: of few outputs it would
//! multiply mostly what nobody asked for, and pass over all weights for it. Here each output is a row and each filter a
//! column, so that one pass over the weights serves all outputs, as fast as they come from memory. The result is
//! transposed at the end. Sums are the same chains, so the bits are the same too.

use super::super::cx::{Body, Tensors};
use super::super::gemm::{Act, Extra, Left, MatrixLayout, PANEL, ProductSize, Tile, Weights, gemm};
use super::super::index::transpose;
use super::ConvShape;
use super::gathered::{Padded, window_spots, window_taps};

/// Outputs of a filter, at most: more fill the columns of whole panels well enough.
const MAX_OUTPUTS: usize = PANEL;

/// Whether a convolution with constant weights is made this way.
pub(super) fn is_few(shape: &ConvShape) -> bool {
    let has_windows = weights_layout(shape).rows > 0;
    let outputs = shape.window.output_plane();
    has_windows && shape.groups == 1 && outputs <= MAX_OUTPUTS && shape.filters >= PANEL
}

/// How the weights lie before they are packed: a row for each element of a window, a column for each filter.
pub(super) fn weights_layout(shape: &ConvShape) -> MatrixLayout {
    let window_length = shape.window.kernel_elements() * shape.channels;
    MatrixLayout::column_major(window_length, shape.filters)
}

/// Windows in rows, then a product.
pub(super) struct FewOutputs {
    shape: ConvShape,
    padded: Padded,
    act: Act,
    tile: Tile,
    weights: Weights,
    /// Offset of each output's window in a padded plane.
    spots: Vec<u32>,
    /// Offset of each element of a window, over all channels.
    taps: Vec<u32>,
    /// From a window to the next, where each is one run of memory and they follow in equal steps.
    row_step: Option<usize>,
}

impl FewOutputs {
    pub(super) fn new(shape: ConvShape, weights: Weights, act: Act, tile: Tile) -> Self {
        let padded = Padded::new(&shape.window);
        let mut spots = window_spots(&shape.window, &padded);
        spots.truncate(shape.window.output_plane());
        let taps = window_taps(&shape.window, &padded, shape.channels);
        let row_step = match equal_step(&taps) {
            Some(1) => equal_step(&spots),
            _ => None,
        };
        Self {
            shape,
            padded,
            act,
            tile,
            weights,
            spots,
            taps,
            row_step,
        }
    }

    fn padded_len(&self) -> usize {
        self.padded.scratch_len(self.shape.channels)
    }

    /// Floats of the windows in scratch memory.
    fn windows_len(&self) -> usize {
        match self.row_step {
            Some(_) => 0,
            None => self.spots.len() * self.taps.len(),
        }
    }

    /// The windows as rows of a matrix: in place, or gathered.
    fn windows<'a>(&self, channels: &'a [f32], gathered: &'a mut [f32]) -> Left<'a> {
        let window_length = self.taps.len();
        if let Some(row_step) = self.row_step {
            return Left {
                data: &channels[self.spots[0] as usize..],
                row_step,
                column_step: 1,
            };
        }
        for (row, &spot) in gathered.chunks_exact_mut(window_length).zip(&self.spots) {
            let reached = &channels[spot as usize..];
            for (element, &tap) in row.iter_mut().zip(&self.taps) {
                *element = reached[tap as usize];
            }
        }
        Left::dense(gathered, window_length)
    }

    /// Floats of the result for one element of the batch.
    fn output_len(&self) -> usize {
        self.spots.len() * self.shape.filters
    }
}

impl Body for FewOutputs {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<f32>(0);
        let bias = tensors.opt::<f32>(2);
        let added = tensors.opt::<f32>(3);
        let output = tensors.out::<f32>(0);
        let (padded, rest) = tensors.scratch::<f32>().split_at_mut(self.padded_len());
        let (windows, result) = rest.split_at_mut(self.windows_len());
        let result = &mut result[..self.output_len()];

        let size = ProductSize {
            rows: self.spots.len(),
            depth: self.taps.len(),
            columns: self.shape.filters,
        };
        let extra = Extra {
            accumulate: added.is_some(),
            column_bias: bias,
            act: self.act,
            tile: self.tile,
            ..Extra::default()
        };
        let input_length = self.shape.channels * self.shape.window.input_plane();
        for batch in 0..self.shape.batch {
            let image = &input[batch * input_length..][..input_length];
            let channels = self.padded.planes(&self.shape.window, image, padded);
            let rows = self.windows(channels, windows);

            let at = batch * self.output_len();
            // The product accumulates on what is added, which is the result's first value.
            if let Some(added) = added {
                let own_added = &added[at..][..self.output_len()];
                transpose(own_added, result, size.rows, size.columns, size.rows);
            }
            gemm(size, rows, &self.weights, result, size.columns, extra);
            let own_output = &mut output[at..][..self.output_len()];
            transpose(result, own_output, size.columns, size.rows, size.columns);
        }
    }

    fn scratch_bytes(&self) -> usize {
        4 * (self.padded_len() + self.windows_len() + self.output_len())
    }
}

/// The step from each offset to the next, if they are all equal. A single offset is a run of its own.
fn equal_step(offsets: &[u32]) -> Option<usize> {
    let steps = offsets.windows(2).map(|pair| pair[1].checked_sub(pair[0]));
    let mut steps = steps.peekable();
    let first = steps.peek().copied().unwrap_or(Some(1))?;
    steps
        .all(|step| step == Some(first))
        .then_some(first as usize)
}
