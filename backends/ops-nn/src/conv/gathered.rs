//! Convolutions as products of matrices.
//!
//! The input is padded once in scratch memory, so that every window is inside; tables of offsets then say where
//! its elements are, whatever strides and dilations. Columns of windows are gathered for a block of outputs and
//! multiplied with the weights in the order that ONNX stores them.

use super::super::cx::{Body, Tensors, volume};
use super::super::gemm::{Act, Extra, Left, PANEL, ProductSize, Tile, gemm};
use super::super::window::Window;
use super::ConvShape;
use zbmd_op::simd::{self, Isa, Loop};

/// Window elements that are multiplied at a time, at most.
const MAX_DEPTH: usize = 512;
/// Gathered floats of a block: 256 KiB, which the second cache holds beside weights and results.
const BLOCK_FLOATS: usize = 65_536;
/// Outputs of a block, at most.
const MAX_COLUMNS: usize = 4096;

/// A plane of the input with its padding: dimensions, and whether there is any.
#[derive(Clone)]
pub(super) struct Padded {
    pub(super) dims: [usize; 3],
    /// Elements of a padded plane.
    pub(super) plane: usize,
    /// Whether there is any padding: without it the input is read in place.
    pub(super) any: bool,
}

/// Dimensions of an input with its padding, and whether there is any.
pub(crate) fn padded_dims(window: &Window) -> ([usize; 3], bool) {
    // As far as the last window reaches, and at least the input itself.
    let dims: [usize; 3] = std::array::from_fn(|d| {
        let last_window = (window.output[d] - 1) * window.stride[d];
        let reach = last_window + (window.kernel[d] - 1) * window.dilation[d] + 1;
        reach.max(window.input[d] + window.before[d])
    });
    (dims, dims != window.input)
}

impl Padded {
    pub(super) fn new(window: &Window) -> Self {
        let (dims, any) = padded_dims(window);
        Self {
            dims,
            plane: volume(&dims),
            any,
        }
    }

    /// Copies planes of the input, zeros around them.
    pub(super) fn fill(&self, window: &Window, input: &[f32], padded: &mut [f32]) {
        let [depth, height, width] = window.input;
        let [before_z, before_y, before_x] = window.before;
        padded.fill(0.0);

        let planes = input.chunks_exact(window.input_plane());
        for (plane, padded_plane) in planes.zip(padded.chunks_exact_mut(self.plane)) {
            for z in 0..depth {
                for y in 0..height {
                    let row = &plane[(z * height + y) * width..][..width];
                    let start = self.offset(z + before_z, y + before_y, before_x);
                    padded_plane[start..start + width].copy_from_slice(row);
                }
            }
        }
    }

    /// Floats of scratch memory for so many channels.
    pub(super) fn scratch_len(&self, channels: usize) -> usize {
        match self.any {
            true => channels * self.plane,
            false => 0,
        }
    }

    /// Planes of the input with their padding: filled into `scratch`, or where they are if there is none.
    pub(super) fn planes<'a>(
        &self,
        window: &Window,
        input: &'a [f32],
        scratch: &'a mut [f32],
    ) -> &'a [f32] {
        if !self.any {
            return input;
        }
        self.fill(window, input, scratch);
        scratch
    }

    fn offset(&self, z: usize, y: usize, x: usize) -> usize {
        (z * self.dims[1] + y) * self.dims[2] + x
    }
}

/// Windows gathered into columns, then a product.
pub(super) struct Gathered {
    shape: ConvShape,
    padded: Padded,
    act: Act,
    tile: Tile,
    /// Offset of each output's window in a padded plane; rounded up to whole panels with repetitions of the last.
    spots: Vec<u32>,
    /// Offset of each element of a window, over all channels of a group.
    taps: Vec<u32>,
    /// Outputs of a block and window elements multiplied at a time.
    columns: usize,
    depth: usize,
}

impl Gathered {
    pub(super) fn new(shape: ConvShape, act: Act, tile: Tile) -> Self {
        let padded = Padded::new(&shape.window);
        let spots = window_spots(&shape.window, &padded);
        let taps = window_taps(&shape.window, &padded, shape.group_channels());

        // A block of depth × columns floats fits BLOCK_FLOATS: deeper windows get narrower blocks.
        let depth = taps.len().clamp(1, MAX_DEPTH);
        let whole_panels = BLOCK_FLOATS / depth / PANEL * PANEL;
        let columns = whole_panels.clamp(PANEL, MAX_COLUMNS).min(spots.len());
        Self {
            shape,
            padded,
            act,
            tile,
            spots,
            taps,
            columns,
            depth,
        }
    }

    /// Floats of the padded channels of a group.
    fn padded_len(&self) -> usize {
        self.padded.scratch_len(self.shape.group_channels())
    }

    /// The filters of one group over the channels of one group, `channels`, which are padded.
    fn run_group(
        &self,
        channels: &[f32],
        weights: &[f32],
        bias: Option<&[f32]>,
        accumulates: bool,
        packed: &mut [f32],
        output: &mut [f32],
    ) {
        let outputs = self.shape.window.output_plane();
        let tap_count = self.taps.len();

        for first_output in (0..outputs).step_by(self.columns) {
            let columns = self.columns.min(outputs - first_output);
            let spots = &self.spots[first_output..first_output + columns.next_multiple_of(PANEL)];

            for first_tap in (0..tap_count).step_by(self.depth) {
                let depth = self.depth.min(tap_count - first_tap);
                let block = &mut packed[..depth * spots.len()];
                simd::dispatch(Gather {
                    input: channels,
                    spots,
                    taps: &self.taps[first_tap..first_tap + depth],
                    packed: block,
                });

                // Bias and activation come once, with the last of the products that make up a sum.
                let is_last = first_tap + depth == tap_count;
                let extra = Extra {
                    accumulate: first_tap > 0 || accumulates,
                    row_bias: bias.filter(|_| is_last),
                    act: if is_last { self.act } else { Act::None },
                    tile: self.tile,
                    ..Extra::default()
                };
                let size = ProductSize {
                    rows: self.shape.group_filters(),
                    depth,
                    columns,
                };
                // A filter is a row of `tap_count` weights, of which this block takes `depth`.
                let left = Left::dense(&weights[first_tap..], tap_count);
                let result = &mut output[first_output..];
                gemm(size, left, block, result, outputs, extra);
            }
        }
    }
}

/// Offset of each output's window in a padded plane.
pub(super) fn window_spots(window: &Window, padded: &Padded) -> Vec<u32> {
    let [stride_z, stride_y, stride_x] = window.stride;
    let rounded_length = window.output_plane().next_multiple_of(PANEL);
    let mut spots = Vec::with_capacity(rounded_length);
    window.each(|_, [z, y, x]| {
        spots.push(padded.offset(z * stride_z, y * stride_y, x * stride_x) as u32);
    });

    let last_spot = spots.last().copied().unwrap_or(0);
    spots.resize(rounded_length, last_spot);
    spots
}

/// Offset of each element of a window, over so many channels.
pub(super) fn window_taps(window: &Window, padded: &Padded, channels: usize) -> Vec<u32> {
    let [dilation_z, dilation_y, dilation_x] = window.dilation;
    let mut taps = Vec::with_capacity(channels * window.kernel_elements());
    for c in 0..channels {
        for z in 0..window.kernel[0] {
            for y in 0..window.kernel[1] {
                for x in 0..window.kernel[2] {
                    let offset = padded.offset(z * dilation_z, y * dilation_y, x * dilation_x);
                    // `check_tables` has refused planes whose places do not fit 32 bits.
                    taps.push((c * padded.plane + offset) as u32);
                }
            }
        }
    }
    taps
}

/// Gathers windows into the panels of a packed matrix: a row for each tap, a column for each output.
struct Gather<'a> {
    input: &'a [f32],
    spots: &'a [u32],
    taps: &'a [u32],
    packed: &'a mut [f32],
}

impl Loop for Gather<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let Self {
            input,
            spots,
            taps,
            packed,
        } = self;
        let panels = packed.chunks_exact_mut(taps.len() * PANEL);
        for (spots, panel) in spots.as_chunks::<PANEL>().0.iter().zip(panels) {
            let first_spot = spots[0] as usize;
            let (rows, _) = panel.as_chunks_mut::<PANEL>();
            let reach = spots.iter().map(|&s| s as usize).max().unwrap_or(0);

            // Sixteen windows side by side are sixteen elements side by side, under each tap.
            let is_one_run = spots
                .iter()
                .enumerate()
                .all(|(i, &s)| s as usize == first_spot + i);
            if is_one_run {
                for (row, &tap) in rows.iter_mut().zip(taps) {
                    let start = first_spot + tap as usize;
                    row.copy_from_slice(&input[start..start + PANEL]);
                }
            } else {
                for (row, &tap) in rows.iter_mut().zip(taps) {
                    // Cut to what the spots reach, which keeps the check of bounds out of the inner loop.
                    let reached = &input[tap as usize..tap as usize + reach + 1];
                    for (element, &spot) in row.iter_mut().zip(spots) {
                        *element = reached[spot as usize];
                    }
                }
            }
        }
    }
}

impl Body for Gathered {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<f32>(0);
        let weights = tensors.get::<f32>(1);
        let bias = tensors.opt::<f32>(2);
        let added = tensors.opt::<f32>(3);
        let output = tensors.out::<f32>(0);
        let (padded, packed) = tensors.scratch::<f32>().split_at_mut(self.padded_len());

        let shape = &self.shape;
        let group_channels = shape.group_channels();
        let group_filters = shape.group_filters();
        let input_length = group_channels * shape.window.input_plane();
        let output_length = group_filters * shape.window.output_plane();
        let weights_length = group_filters * self.taps.len();

        // Groups of a batch are one after the other, in the input as in the output.
        for n in 0..shape.batch * shape.groups {
            let group = n % shape.groups;
            let group_input = &input[n * input_length..][..input_length];
            let group_output = &mut output[n * output_length..][..output_length];
            let channels = self.padded.planes(&shape.window, group_input, padded);
            // The product accumulates on what is added, which is the result's first value.
            if let Some(added) = added {
                group_output.copy_from_slice(&added[n * output_length..][..output_length]);
            }

            let group_weights = &weights[group * weights_length..][..weights_length];
            let group_bias = bias.map(|b| &b[group * group_filters..]);
            self.run_group(
                channels,
                group_weights,
                group_bias,
                added.is_some(),
                packed,
                group_output,
            );
        }
    }

    fn scratch_bytes(&self) -> usize {
        let packed_len = self.depth * self.columns.next_multiple_of(PANEL);
        4 * (self.padded_len() + packed_len)
    }
}
