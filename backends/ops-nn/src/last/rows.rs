//! Convolutions of many channels: rows of pixels, in place, times packed weights.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use std::ops::Range;

use super::super::aligned::AlignedFloats;
use super::super::conv::padded_dims;
use super::super::cx::{Body, Tensors};
use super::super::fetch_ahead::FetchAhead;
use super::super::gemm::{Act, PANEL, Tile, Weights, is_cut_by_panels};
use super::super::index::COPY_COST;
use super::super::vector::{Vector, Wide, run_wide};
use super::super::window::Window;
use super::{Addend, ConvOperands, Finish, Image, SumActivation};
use zbmd_op::simd;
use zbmd_op::team::{self, Cut};

/// Bytes of packed weights that stay in the second cache while blocks of pixels go by.
const RESIDENT: usize = 384 << 10;
/// Pixels of such a block.
const PIXELS: usize = 192;

/// The sizes of a convolution's weights: [groups · filters, channels, height, width] as ONNX has them.
#[derive(Clone, Copy)]
pub(in super::super) struct FilterLayout {
    pub(in super::super) groups: usize,
    /// Channels and filters of a group.
    pub(in super::super) group_channels: usize,
    pub(in super::super) group_filters: usize,
    /// Height and width.
    pub(in super::super) kernel: [usize; 2],
}

impl FilterLayout {
    /// Weights of a filter.
    fn filter_len(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.group_channels
    }

    /// Panels of sixteen filters of a group.
    fn group_panels(&self) -> usize {
        self.group_filters.div_ceil(PANEL)
    }

    /// Filters of all groups.
    fn filters(&self) -> usize {
        self.groups * self.group_filters
    }

    /// Floats of packed filters.
    pub(super) fn packed_len(&self) -> usize {
        self.groups * self.group_panels() * self.filter_len() * PANEL
    }
}

/// For each group, panels of sixteen filters; in a panel by tap, then channel.
pub(super) fn packed_filters(weights: &[f32], layout: FilterLayout) -> AlignedFloats {
    let filter_len = layout.filter_len();
    let kernel_elements = layout.kernel[0] * layout.kernel[1];
    let mut packed = AlignedFloats::zeroed(layout.packed_len());

    // Each group begins with a panel of its own, so that no panel mixes the channels of two.
    let group_weights = weights.chunks_exact((layout.group_filters * filter_len).max(1));
    let group_panels = packed.chunks_exact_mut((layout.group_panels() * filter_len * PANEL).max(1));
    for (group_weights, group_panels) in group_weights.zip(group_panels) {
        let panel_weights = group_weights.chunks((PANEL * filter_len).max(1));
        let panels = group_panels.chunks_exact_mut((PANEL * filter_len).max(1));
        for (filters, panel) in panel_weights.zip(panels) {
            for (i, row) in panel.chunks_exact_mut(PANEL).enumerate() {
                // ONNX has channels outside, taps inside: turned over, as pixels have channels inside.
                let tap = i / layout.group_channels;
                let channel = i % layout.group_channels;
                let own = filters.iter().skip(channel * kernel_elements + tap);
                for (to, weight) in row.iter_mut().zip(own.step_by(filter_len)) {
                    *to = *weight;
                }
            }
        }
    }
    packed
}

/// Copies an image into one with a border of zeros, `padded_width` pixels wide.
fn pad_image(
    window: &Window,
    channels: usize,
    padded_width: usize,
    image: &[f32],
    padded: &mut [f32],
) {
    let row_length = window.input[2] * channels;
    let left_border = window.before[2] * channels;
    let rows_before = window.before[1];
    let line_length = padded_width * channels;
    let work = COPY_COST * padded.len();

    team::share_slice(work, padded, line_length, &|first, lines| {
        for (n, line) in lines.chunks_exact_mut(line_length).enumerate() {
            let row = (first + n).checked_sub(rows_before);
            let Some(row) = row.filter(|row| *row < window.input[1]) else {
                line.fill(0.0);
                continue;
            };
            // Only the border is cleared: lines of the image are written once.
            line[..left_border].fill(0.0);
            let pixels = &image[row * row_length..][..row_length];
            line[left_border..left_border + row_length].copy_from_slice(pixels);
            line[left_border + row_length..].fill(0.0);
        }
    });
}

/// Height and width of an image with its border.
#[derive(Clone, Copy)]
struct PaddedSize {
    height: usize,
    width: usize,
}

/// Rows of pixels times packed weights.
pub(super) struct Rows {
    image: Image,
    layout: FilterLayout,
    act: Act,
    tile: Tile,
    /// The size of the image with its border, where it needs one.
    padded: Option<PaddedSize>,
    /// Where each output's window begins.
    spots: Vec<u32>,
    /// Where the runs of a window begin, and their length.
    runs: Vec<u32>,
    run_length: usize,
    /// For each group, panels of sixteen filters, and their biases.
    packed: Weights,
    bias: Vec<f32>,
}

impl Rows {
    pub(super) fn new(
        operands: &ConvOperands,
        layout: FilterLayout,
        packed: Weights,
        tile: Tile,
    ) -> Self {
        let image = operands.image.clone();
        let window = &image.window;
        let (padded_dims, has_border) = padded_dims(window);
        let size = PaddedSize {
            height: padded_dims[1],
            width: padded_dims[2],
        };

        // One group without gaps between taps: a kernel row is one run over all channels. Otherwise each tap is a run.
        let is_row_one_run = layout.groups == 1 && window.dilation[2] == 1;
        let [_, kernel_height, kernel_width] = window.kernel;
        let runs_of_row = if is_row_one_run { 1 } else { kernel_width };
        let run_length = match is_row_one_run {
            true => kernel_width * image.channels,
            false => layout.group_channels,
        };
        let run_steps = [window.dilation[1], window.dilation[2]];
        let runs = grid_places(
            [kernel_height, runs_of_row],
            run_steps,
            size.width,
            image.channels,
        );

        let [_, output_height, output_width] = window.output;
        let spot_steps = [window.stride[1], window.stride[2]];
        let spots = grid_places(
            [output_height, output_width],
            spot_steps,
            size.width,
            image.channels,
        );
        Self {
            bias: panel_biases(&layout, &operands.bias_floats().unwrap_or_default()),
            layout,
            act: operands.act,
            tile,
            padded: has_border.then_some(size),
            spots,
            runs,
            run_length,
            packed,
            image,
        }
    }
}

/// First elements of pixels of an image that are on a grid, row by row.
pub(in super::super) fn grid_places(
    [rows, columns]: [usize; 2],
    [row_step, column_step]: [usize; 2],
    width: usize,
    channels: usize,
) -> Vec<u32> {
    let mut places = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        for column in 0..columns {
            let pixel = row * row_step * width + column * column_step;
            places.push((pixel * channels) as u32);
        }
    }
    places
}

/// The biases in the order of panels: each group's are filled up to whole panels.
fn panel_biases(layout: &FilterLayout, biases: &[f32]) -> Vec<f32> {
    let group_length = layout.group_panels() * PANEL;
    let mut padded_biases = vec![0.0; layout.groups * group_length];
    for (n, bias) in biases.iter().enumerate() {
        let group = n / layout.group_filters;
        padded_biases[group * group_length + n % layout.group_filters] = *bias;
    }
    padded_biases
}

impl Body for Rows {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let addend = Addend::of(tensors);
        let input = tensors.get::<f32>(0);
        let output = tensors.out::<f32>(0);
        let border = tensors.scratch::<f32>();

        let window = &self.image.window;
        let channels = self.image.channels;
        let input_length = window.input[1] * window.input[2] * channels;
        let output_length = self.spots.len() * self.layout.filters();
        let activation = SumActivation::of(self.act);

        let results = output.chunks_exact_mut(output_length);
        for (n, result) in results.enumerate().take(self.image.batch) {
            let image = &input[n * input_length..][..input_length];
            let padded_image = match self.padded {
                Some(PaddedSize { height, width }) => {
                    let border = &mut border[..height * width * channels];
                    pad_image(window, channels, width, image, border);
                    &*border
                }
                None => image,
            };

            let result_start = result.as_mut_ptr();
            let added_start = addend.start(n, result_start, output_length);
            let job = Job {
                rows: self,
                input: padded_image,
                added: added_start,
                output: result_start,
                output_length: result.len(),
                activation,
                pixels: 0..self.spots.len(),
                panels: 0..self.layout.group_panels(),
            };
            job.share();
            if activation.is_none() && self.act != Act::None {
                simd::dispatch(Finish(result, self.act));
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        let border_length = self
            .padded
            .map_or(0, |size| size.height * size.width * self.image.channels);
        4 * border_length
    }
}

/// The convolution of one image: some pixels, and some panels of each group's filters.
#[derive(Clone)]
struct Job<'a> {
    rows: &'a Rows,
    input: &'a [f32],
    /// First of as many elements as the result has, or null. It may be the result's own.
    added: *const f32,
    /// First element of the result, and its elements.
    output: *mut f32,
    output_length: usize,
    activation: Option<SumActivation>,
    pixels: Range<usize>,
    panels: Range<usize>,
}

// SAFETY: all is read only but for the result and what is added to it, of which each core has pixels or panels of its
// own.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    /// Weights that stay in the second cache go by once for each block of pixels.
    fn is_resident(&self) -> bool {
        4 * self.rows.packed.len() / self.rows.layout.groups.max(1) <= RESIDENT
    }

    /// Does the whole convolution, on all cores of the device: each has pixels of its own, or, where weights are many or
    /// pixels few, weights.
    fn share(&self) {
        self.check();
        let rows = self.rows;
        let window_elements = rows.runs.len() * rows.run_length;
        let work = self.pixels.len() * window_elements * rows.layout.filters();

        let pixels = rows.tile.row_cut(self.pixels.len());
        let panels = Cut::new(self.panels.len(), rows.tile.panels());
        let by_panels = is_cut_by_panels(pixels, panels, self.is_resident());
        let cut = if by_panels { panels } else { pixels };
        team::share(work, cut, &|part| {
            let mut job = self.clone();
            if by_panels {
                job.panels = part;
            } else {
                job.pixels = part;
            }
            // SAFETY: `check` has seen that all places are inside the slices; parts have no place in common.
            unsafe { run_wide(job) }
        });
    }

    /// Panics unless every place that a tile reads or writes is inside its slice.
    fn check(&self) {
        let rows = self.rows;
        let layout = &rows.layout;
        let last_window = rows.spots.last().zip(rows.runs.last());
        let last_run = last_window.map_or(0, |(spot, run)| *spot as usize + *run as usize);
        // A place is spot + run + group, each of them rising: the sum of the last ones is the farthest.
        let last_group = layout.groups.saturating_sub(1) * layout.group_channels;
        assert!(
            last_run + last_group + rows.run_length <= self.input.len(),
            "a window leaves the image"
        );

        let output_length = rows.spots.len() * layout.filters();
        assert!(
            self.output_length == output_length,
            "the result has another size"
        );
        let filter_len = rows.runs.len() * rows.run_length;
        let all_panels = layout.groups * layout.group_panels();
        assert!(
            rows.packed.len() == all_panels * filter_len * PANEL
                && rows.bias.len() == all_panels * PANEL,
            "the weights have another size"
        );
    }
}

/// What a tile works on.
struct TileStart {
    /// First element of the image's group.
    input: *const f32,
    /// Weights and bias of the first panel.
    weights: *const f32,
    bias: *const f32,
    /// Elements of a panel.
    panel_length: usize,
    added: *const f32,
    output: *mut f32,
    /// Columns to write of the tile.
    width: usize,
    /// The panels behind those at work.
    ahead: FetchAhead,
}

impl Wide for Job<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const FMA: bool>(self) {
        for group in 0..self.rows.layout.groups {
            // SAFETY: the caller's promise.
            unsafe { self.run_group::<V>(group) };
        }
    }
}

impl Job<'_> {
    /// As many pixels from `first` on as a tile of so many panels takes of those that are left; returns their number.
    ///
    /// # Safety
    /// See [`tile`].
    #[inline(always)]
    unsafe fn pixel_tile<V: Vector>(
        &self,
        panels: usize,
        start: &mut TileStart,
        first: usize,
        pixels_left: usize,
    ) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            match (V::MANY, panels, pixels_left) {
                (true, 4, 6..) => tile::<V, 6, 4>(self, start, first),
                (true, 4, 2..) => tile::<V, 2, 4>(self, start, first),
                (true, 4, _) => tile::<V, 1, 4>(self, start, first),
                // A pixel that is left over alone takes as long as four of a larger tile: sums wait for each other.
                (true, 2, 13..) if pixels_left % 12 == 1 => tile::<V, 13, 2>(self, start, first),
                (true, 2, 12..) => tile::<V, 12, 2>(self, start, first),
                (true, 2, 4..) => tile::<V, 4, 2>(self, start, first),
                (true, 2, _) => tile::<V, 1, 2>(self, start, first),
                (true, _, 12..) => tile::<V, 12, 1>(self, start, first),
                (false, 2, 3..) => tile::<V, 3, 2>(self, start, first),
                (false, 2, _) => tile::<V, 1, 2>(self, start, first),
                (false, _, 6..) => tile::<V, 6, 1>(self, start, first),
                (_, _, 4..) => tile::<V, 4, 1>(self, start, first),
                _ => tile::<V, 1, 1>(self, start, first),
            }
        }
    }

    /// # Safety
    /// [`Self::check`] has found nothing, and the processor has the vector's instructions.
    #[inline(always)]
    unsafe fn run_group<V: Vector>(&self, group: usize) {
        let rows = self.rows;
        let layout = &rows.layout;
        let filter_len = rows.runs.len() * rows.run_length;
        // Weights that do not stay in the cache are gone through once, for all pixels.
        let block_pixels = match self.is_resident() {
            true => PIXELS,
            false => rows.spots.len(),
        };

        // SAFETY: `check` has seen that pixels, panels and windows are inside the slices.
        unsafe {
            for first in self.pixels.clone().step_by(block_pixels.max(1)) {
                let end = (first + block_pixels).min(self.pixels.end);
                let mut panel = self.panels.start;
                while panel < self.panels.end {
                    let tile_panels = panels_of_tile::<V>(rows.tile, self.panels.end - panel);
                    // Results have the filters of all groups side by side; panels are filled up group by group.
                    let column = group * layout.group_filters + panel * PANEL;
                    let panel_number = group * layout.group_panels() + panel;
                    let weights_start = panel_number * filter_len * PANEL;
                    let weights = rows.packed.as_ptr().add(weights_start);
                    let mut start = TileStart {
                        input: self.input.as_ptr().add(group * layout.group_channels),
                        weights,
                        bias: rows.bias.as_ptr().add(panel_number * PANEL),
                        panel_length: filter_len * PANEL,
                        added: match self.added.is_null() {
                            true => self.added,
                            false => self.added.wrapping_add(column),
                        },
                        output: self.output.add(column),
                        // Padding of the last panel is computed, and not stored.
                        width: (tile_panels * PANEL).min(layout.group_filters - panel * PANEL),
                        ahead: FetchAhead::new(
                            weights.wrapping_add(tile_panels * filter_len * PANEL),
                            [tile_panels, rows.tile.rows()],
                            end - first,
                        ),
                    };

                    let mut pixel = first;
                    while pixel < end {
                        pixel += self.pixel_tile::<V>(tile_panels, &mut start, pixel, end - pixel);
                    }
                    panel += tile_panels;
                }
            }
        }
    }
}

/// How many panels a tile takes of those that are left.
#[inline(always)]
fn panels_of_tile<V: Vector>(tile: Tile, panels_left: usize) -> usize {
    match (V::MANY, tile, panels_left) {
        (true, Tile::Square, 4..) => 4,
        (true, _, 2..) | (false, Tile::Square, 2..) => 2,
        _ => 1,
    }
}

/// R pixels from `first` on, P panels of filters; returns R.
///
/// # Safety
/// The pixels and panels exist, and the processor has the vector's instructions.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn tile<V: Vector, const R: usize, const P: usize>(
    job: &Job<'_>,
    start: &mut TileStart,
    first: usize,
) -> usize {
    let rows = job.rows;
    // SAFETY: the caller's promise; `Job::check` holds for all pixels and runs, the last being the farthest.
    unsafe {
        let mut sums = [[V::zero(); P]; R];
        for v in 0..P {
            let bias = V::load(start.bias.add(v * PANEL));
            for r in 0..R {
                sums[r][v] = bias;
            }
        }

        let mut windows = [start.input; R];
        for r in 0..R {
            windows[r] = (start.input).add(*rows.spots.get_unchecked(first + r) as usize);
        }
        let mut ahead = start.ahead;
        let mut weights = start.weights;
        for &run in &rows.runs {
            // A run is contiguous in the image and in the packed weights alike.
            let mut elements = windows;
            for r in 0..R {
                elements[r] = windows[r].add(run as usize);
            }
            for j in 0..rows.run_length {
                ahead.at_line(j);
                let mut right = [V::zero(); P];
                for v in 0..P {
                    right[v] = V::load(weights.add(v * start.panel_length));
                }
                for r in 0..R {
                    // One element of each pixel meets sixteen filters in each vector.
                    let left = *elements[r].add(j);
                    for v in 0..P {
                        sums[r][v] = sums[r][v].add_product(left, right[v]);
                    }
                }
                weights = weights.wrapping_add(PANEL);
            }
        }
        start.ahead = ahead;
        store_tile(job, start, first, &mut sums);
    }
    R
}

/// Adds what is added, applies the activation and stores the sums of a tile.
///
/// # Safety
/// The pixels from `first` on and the tile's columns exist in the result, and in what is added.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn store_tile<V: Vector, const R: usize, const P: usize>(
    job: &Job<'_>,
    start: &TileStart,
    first: usize,
    sums: &mut [[V; P]; R],
) {
    let stride = job.rows.layout.filters();
    // SAFETY: the caller's promise.
    unsafe {
        let output = start.output.add(first * stride);
        // Fewer filters are left than lanes: whole stores would run into the next group.
        if start.width < P * PANEL {
            // Each step is a loop of its own: one loop with all of them would not be unrolled, and sums would be in memory.
            let lanes = start.width - (P - 1) * PANEL;
            if !start.added.is_null() {
                let added = start.added.add(first * stride);
                for r in 0..R {
                    for v in 0..P {
                        let terms = added.add(r * stride + v * PANEL);
                        sums[r][v] = sums[r][v].add(match v + 1 < P {
                            true => V::load(terms),
                            false => V::load_first(terms, lanes),
                        });
                    }
                }
            }
            if let Some(activation) = job.activation {
                activation.of_tile(sums);
            }
            for r in 0..R {
                for v in 0..P {
                    let result = output.add(r * stride + v * PANEL);
                    match v + 1 < P {
                        true => sums[r][v].store(result),
                        false => sums[r][v].store_first(result, lanes),
                    }
                }
            }
            return;
        }

        if !start.added.is_null() {
            let added = start.added.add(first * stride);
            for r in 0..R {
                for v in 0..P {
                    sums[r][v] = sums[r][v].add(V::load(added.add(r * stride + v * PANEL)));
                }
            }
        }
        if let Some(activation) = job.activation {
            activation.of_tile(sums);
        }
        for r in 0..R {
            for v in 0..P {
                sums[r][v].store(output.add(r * stride + v * PANEL));
            }
        }
    }
}
