//! Convolutions with square windows and few operations: Winograd's minimal filtering.
//!
//! The image is cut into overlapping tiles of 6 × 6 pixels. Tiles and filters are brought to values of polynomials at six
//! points, where a convolution is one product for each of 36 places, of matrices with a row for each tile, summed over
//! channels (Lavin & Gray 2016, Fast Algorithms for Convolutional Neural Networks, arXiv 1509.09308). A tile gives
//! 4 × 4 results for windows of 3 × 3, with a quarter of the multiplications, and 2 × 2 for 5 × 5, with 36 for 100.
//!
//! The points are 0, ±√½, ±√2 and infinity. Reciprocal ones keep the numbers near each other (Alam et al. 2022, Winograd
//! Convolution for Deep Neural Networks: Efficient Point Selection, ACM TECS 21(6)): errors are half of those with 0, ±1, ±2,
//! and about twice those of direct sums.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use std::ops::Range;

use super::super::aligned::AlignedFloats;
use super::super::cx::{Body, Tensors};
use super::super::gemm::{Act, Batch, Extra, Left, PANEL, ProductSize, Tile, Weights, gemm_batch};
use super::super::vector::{Vector, Wide, run_wide};
use super::super::window::Window;
use super::rows::FilterLayout;
use super::{Addend, ConvOperands, Finish, Image, SumActivation};
use zbmd_op::simd::{self, Isa, Loop};
use zbmd_op::team::{self, Cut};

/// Points, and so pixels along a side of a tile.
const POINTS: usize = 6;
/// Pixels along a side of a window, at most.
const MAX_KERNEL: usize = 5;
/// Places of a tile.
const PLACES: usize = POINTS * POINTS;
/// The two positive finite points, and their squares, whose product is 1.
const NEAR: f64 = std::f64::consts::FRAC_1_SQRT_2;
const FAR: f64 = std::f64::consts::SQRT_2;
const NEAR_SQUARE: f64 = 0.5;
const FAR_SQUARE: f64 = 2.0;
/// Bytes of transformed tiles and of their products that are under way at a time: the second cache holds them.
const BLOCK_BYTES: usize = 384 << 10;
/// What a value of a tile takes on its way to or from the six points, and a transformed weight on its way from memory, in
/// operations of a product: measured.
const TRANSFORM_OPERATIONS: f64 = 24.0;
const WEIGHT_OPERATIONS: f64 = 24.0;
/// Rows of a product that are multiplied at a time in each of its variants, or a multiple of them.
const WHOLE_ROWS: usize = 12;
/// Tiles of a block, at least: fewer would not make up for the weights that come from memory for them.
const MIN_BLOCK: usize = 24;

/// Results along a side of a tile, for windows of so many pixels a side.
pub(super) fn tile_outputs(kernel: usize) -> usize {
    POINTS + 1 - kernel
}

/// Whether a convolution can be made this way: square windows of 3 or 5 that move by one pixel, in one group.
pub(super) fn is_possible(window: &Window, layout: &FilterLayout) -> bool {
    let [height, width] = layout.kernel;
    layout.groups == 1
        && height == width
        && (height == 3 || height == MAX_KERNEL)
        && window.stride[1..] == [1, 1]
        && window.dilation[1..] == [1, 1]
}

/// What the convolution of an image takes, as multiplications and additions of a direct one that take as long.
pub(super) fn operations(window: &Window, layout: &FilterLayout) -> f64 {
    let [_, height, width] = window.output;
    let side = tile_outputs(layout.kernel[0]);
    let tiles = (height.div_ceil(side) * width.div_ceil(side)) as f64;
    let channels = layout.group_channels as f64;
    let filters = layout.group_filters as f64;

    let products = 2.0 * tiles * channels * filters;
    let transforms = TRANSFORM_OPERATIONS * tiles * (channels + filters);
    let weights = WEIGHT_OPERATIONS * channels * filters;
    PLACES as f64 * (products + transforms + weights)
}

/// Floats of transformed filters.
pub(super) fn packed_len(layout: &FilterLayout) -> usize {
    PLACES * place_len(layout)
}

/// Floats of the transformed filters at one place: panels of sixteen filters, a row for each channel.
fn place_len(layout: &FilterLayout) -> usize {
    layout.group_channels * layout.group_filters.next_multiple_of(PANEL)
}

/// The filters, [filters, channels, height, width], at the 36 places, each a packed matrix of channels by filters.
pub(super) fn transformed_filters(weights: &[f32], layout: &FilterLayout) -> AlignedFloats {
    let mut packed = AlignedFloats::zeroed(packed_len(layout));
    simd::dispatch(FilterTransform {
        weights,
        layout,
        packed: &mut packed,
    });
    packed
}

/// A number for each filter of a panel: filters are transformed side by side, so that what is written lies side by side too.
type Lanes = [f64; PANEL];

struct FilterTransform<'a> {
    weights: &'a [f32],
    layout: &'a FilterLayout,
    packed: &'a mut [f32],
}

impl Loop for FilterTransform<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let channels = self.layout.group_channels;
        let kernel = self.layout.kernel[0];
        let taps = kernel * kernel;
        let powers = point_powers(kernel);
        let place_len = place_len(self.layout);

        for (panel, filters) in self.weights.chunks(PANEL * channels * taps).enumerate() {
            for channel in 0..channels {
                // Lanes behind the last filter stay 0.
                let mut planes = [[0.0; PANEL]; MAX_KERNEL * MAX_KERNEL];
                for (lane, filter) in filters.chunks_exact(channels * taps).enumerate() {
                    let own_taps = &filter[channel * taps..][..taps];
                    for (plane, tap) in planes.iter_mut().zip(own_taps) {
                        plane[lane] = f64::from(*tap);
                    }
                }

                let first = (panel * channels + channel) * PANEL;
                for (place, values) in filter_values(&planes, kernel, &powers).iter().enumerate() {
                    let to = &mut self.packed[place * place_len + first..][..PANEL];
                    for (to, value) in to.iter_mut().zip(values) {
                        *to = *value as f32;
                    }
                }
            }
        }
    }
}

/// Filters' polynomials at pairs of points, divided by what the tiles' polynomials are too large by.
#[inline(always)]
fn filter_values(
    planes: &[Lanes; MAX_KERNEL * MAX_KERNEL],
    kernel: usize,
    powers: &[[f64; MAX_KERNEL]; POINTS],
) -> [Lanes; PLACES] {
    let mut values = [[0.0; PANEL]; PLACES];
    for (row, weights) in planes.chunks_exact(kernel).take(kernel).enumerate() {
        // The row at the points, and then its part of each column.
        for (x, x_powers) in powers.iter().enumerate() {
            let mut at_point = [0.0; PANEL];
            for (weight, power) in weights.iter().zip(x_powers) {
                add_scaled(&mut at_point, weight, *power);
            }
            for (y, y_powers) in powers.iter().enumerate() {
                add_scaled(&mut values[y * POINTS + x], &at_point, y_powers[row]);
            }
        }
    }
    values
}

#[inline(always)]
fn add_scaled(sums: &mut Lanes, values: &Lanes, factor: f64) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

/// For each point its powers, over the product of its distances to the other finite points.
fn point_powers(count: usize) -> [[f64; MAX_KERNEL]; POINTS] {
    let finite = [0.0, NEAR, -NEAR, FAR, -FAR];
    std::array::from_fn(|p| {
        let Some(point) = finite.get(p) else {
            // At infinity only the highest power counts.
            return std::array::from_fn(|k| if k + 1 == count { 1.0 } else { 0.0 });
        };
        let others = finite.iter().enumerate().filter(|(other, _)| *other != p);
        let distances: f64 = others.map(|(_, other)| point - other).product();
        std::array::from_fn(|k| point.powi(k as i32) / distances)
    })
}

/// A convolution by products of transformed tiles.
pub(super) struct Winograd {
    image: Image,
    filters: usize,
    act: Act,
    tile: Tile,
    /// Results along a side of a tile.
    side: usize,
    /// Tiles of an image: down and across.
    grid: [usize; 2],
    /// Tiles that are under way at a time.
    block: usize,
    /// Transformed filters, and biases filled up to whole panels.
    packed: Weights,
    bias: Vec<f32>,
    /// A pixel outside the image.
    outside: Vec<f32>,
}

impl Winograd {
    pub(super) fn new(
        operands: &ConvOperands,
        layout: FilterLayout,
        packed: Weights,
        tile: Tile,
    ) -> Self {
        let image = operands.image.clone();
        let side = tile_outputs(layout.kernel[0]);
        let [_, height, width] = image.window.output;
        let grid = [height.div_ceil(side), width.div_ceil(side)];

        let lanes =
            image.channels.next_multiple_of(PANEL) + layout.group_filters.next_multiple_of(PANEL);
        let fitting = BLOCK_BYTES / (4 * PLACES * lanes);
        let block = (fitting / WHOLE_ROWS * WHOLE_ROWS).max(MIN_BLOCK);
        let mut padded_bias = operands.bias_floats().unwrap_or_default();
        padded_bias.resize(layout.group_filters.next_multiple_of(PANEL), 0.0);
        Self {
            filters: layout.group_filters,
            act: operands.act,
            tile,
            side,
            grid,
            block: block.min(grid[0] * grid[1]),
            packed,
            bias: padded_bias,
            outside: vec![0.0; image.channels.next_multiple_of(PANEL)],
            image,
        }
    }

    fn tiles(&self) -> usize {
        self.grid[0] * self.grid[1]
    }

    /// Floats of a row of transformed tiles and of their products: whole vectors.
    fn value_lanes(&self) -> usize {
        self.image.channels.next_multiple_of(PANEL)
    }

    fn product_lanes(&self) -> usize {
        self.filters.next_multiple_of(PANEL)
    }

    /// From a place to the next, in rows of so many floats. A vector more than they take, lest all 36 places of a tile
    /// meet in one set of the first cache.
    fn place_stride(&self, lanes: usize) -> usize {
        self.block * lanes + PANEL
    }

    /// The transformed tiles times the transformed filters, place by place.
    fn multiply(&self, tiles: usize, values: &[f32], products: &mut [f32]) {
        let size = ProductSize {
            rows: tiles,
            depth: self.image.channels,
            columns: self.product_lanes(),
        };
        let batch = Batch {
            count: PLACES,
            left: self.place_stride(self.value_lanes()),
            packed: size.depth * size.columns,
            result: self.place_stride(self.product_lanes()),
        };
        let extra = Extra {
            tile: self.tile,
            ..Extra::default()
        };
        let left = Left::dense(values, self.value_lanes());
        gemm_batch(batch, size, left, &self.packed, products, extra);
    }
}

/// The first element of what cores write parts of.
struct Parts(*mut f32);

// SAFETY: each core writes a part of its own.
unsafe impl Sync for Parts {}

impl Parts {
    fn get(&self) -> *mut f32 {
        self.0
    }
}

impl Body for Winograd {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let addend = Addend::of(tensors);
        let input = tensors.get::<f32>(0);
        let output = tensors.out::<f32>(0);
        let value_count = PLACES * self.place_stride(self.value_lanes());
        let (values, products) = tensors.scratch::<f32>().split_at_mut(value_count);

        let window = &self.image.window;
        let input_length = window.input_plane() * self.image.channels;
        let output_length = window.output_plane() * self.filters;
        let activation = SumActivation::of(self.act);
        assert!(
            self.packed.len() == PLACES * self.image.channels * self.product_lanes(),
            "the weights have another size"
        );

        let results = output.chunks_exact_mut(output_length);
        for (n, result) in results.enumerate().take(self.image.batch) {
            let result_start = result.as_mut_ptr();
            let added_start = addend.start(n, result_start, output_length);
            let job = Job {
                body: self,
                image: &input[n * input_length..][..input_length],
                added: added_start,
                output: result_start,
                activation,
            };

            for first in (0..self.tiles()).step_by(self.block) {
                let tiles = first..(first + self.block).min(self.tiles());
                job.transform_tiles(tiles.clone(), values);
                self.multiply(tiles.len(), values, products);
                job.transform_products(tiles, products);
            }
            if activation.is_none() && self.act != Act::None {
                simd::dispatch(Finish(result, self.act));
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        let lanes = [self.value_lanes(), self.product_lanes()];
        let floats = lanes.map(|lanes| PLACES * self.place_stride(lanes));
        4 * floats.into_iter().sum::<usize>()
    }
}

/// The convolution of one image.
struct Job<'a> {
    body: &'a Winograd,
    image: &'a [f32],
    /// First of as many elements as the result has, or null. It may be the result's own.
    added: *const f32,
    /// First element of the result, which has the window's output pixels of as many elements as there are filters.
    output: *mut f32,
    activation: Option<SumActivation>,
}

// SAFETY: all is read only but for the result and what is added to it, of which each core has tiles of its own.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    /// Brings a block of tiles to their values at the 36 places, on all cores.
    fn transform_tiles(&self, block: Range<usize>, values: &mut [f32]) {
        let first = block.start;
        let lanes = self.body.value_lanes();
        assert!(
            values.len() >= PLACES * self.body.place_stride(lanes),
            "too few floats for the values"
        );

        let values = Parts(values.as_mut_ptr());
        let work = 4 * block.len() * PLACES * lanes;
        team::share(work, Cut::new(block.len(), 1), &|part| {
            let transform = TileTransform {
                job: self,
                tiles: first + part.start..first + part.end,
                values: values.get().wrapping_add(part.start * lanes),
            };
            // SAFETY: there is room for the values of the block's tiles; parts have no tile in common.
            unsafe { run_wide(transform) }
        });
    }

    /// Brings the products of a block of tiles to results, on all cores.
    fn transform_products(&self, block: Range<usize>, products: &mut [f32]) {
        let first = block.start;
        let lanes = self.body.product_lanes();
        assert!(
            products.len() >= PLACES * self.body.place_stride(lanes),
            "too few floats for the products"
        );

        let products = Parts(products.as_mut_ptr());
        let work = 4 * block.len() * PLACES * lanes;
        team::share(work, Cut::new(block.len(), 1), &|part| {
            let transform = ProductTransform {
                job: self,
                tiles: first + part.start..first + part.end,
                products: products.get().wrapping_add(part.start * lanes),
            };
            // SAFETY: the products of the block's tiles are there; parts have no tile in common.
            unsafe { run_wide(transform) }
        });
    }

    /// Where the pixels of a tile are: outside the image one pixel of zeros.
    #[inline(always)]
    fn tile_pixels(&self, tile: usize) -> [*const f32; PLACES] {
        let window = &self.body.image.window;
        let [_, height, width] = window.input;
        let [_, columns] = self.body.grid;
        // Numbers below zero are beyond the image too, as they wrap around.
        let first_row = (tile / columns * self.body.side).wrapping_sub(window.before[1]);
        let first_column = (tile % columns * self.body.side).wrapping_sub(window.before[2]);

        let mut pixels = [self.body.outside.as_ptr(); PLACES];
        for (i, line) in pixels.chunks_exact_mut(POINTS).enumerate() {
            let row = first_row.wrapping_add(i);
            if row >= height {
                continue;
            }
            for (j, pixel) in line.iter_mut().enumerate() {
                let column = first_column.wrapping_add(j);
                if column < width {
                    let place = (row * width + column) * self.body.image.channels;
                    *pixel = self.image.as_ptr().wrapping_add(place);
                }
            }
        }
        pixels
    }
}

/// Some tiles on their way to values.
struct TileTransform<'a> {
    job: &'a Job<'a>,
    tiles: Range<usize>,
    /// The first tile's value at the first place.
    values: *mut f32,
}

impl Wide for TileTransform<'_> {
    #[inline(always)]
    #[expect(
        clippy::needless_range_loop,
        reason = "the indices name registers, and are unrolled"
    )]
    unsafe fn run<V: Vector, const FMA: bool>(self) {
        let body = self.job.body;
        let channels = body.image.channels;
        let lanes = body.value_lanes();
        let place_stride = body.place_stride(lanes);

        for (n, tile) in self.tiles.enumerate() {
            let pixels = self.job.tile_pixels(tile);
            let tile_values = self.values.wrapping_add(n * lanes);
            for channel in (0..channels).step_by(PANEL) {
                let width = (channels - channel).min(PANEL);

                // SAFETY: pixels have so many channels, and the values of a place rows of whole vectors.
                unsafe {
                    let mut lines = [[V::zero(); POINTS]; POINTS];
                    for i in 0..POINTS {
                        for j in 0..POINTS {
                            lines[i][j] = V::load_first(pixels[i * POINTS + j].add(channel), width);
                        }
                        lines[i] = at_points(lines[i]);
                    }
                    for j in 0..POINTS {
                        let mut column = [V::zero(); POINTS];
                        for i in 0..POINTS {
                            column[i] = lines[i][j];
                        }
                        let column = at_points(column);
                        for i in 0..POINTS {
                            let place = (i * POINTS + j) * place_stride;
                            column[i].store(tile_values.add(place + channel));
                        }
                    }
                }
            }
        }
    }
}

/// Six pixels in a line, as products of polynomials that are 0 at all points but one.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn at_points<V: Vector>(pixels: [V; POINTS]) -> [V; POINTS] {
    const SQUARES: f32 = (NEAR_SQUARE + FAR_SQUARE) as f32;
    let [x0, x1, x2, x3, x4, x5] = pixels;
    // SAFETY: the caller's promise.
    unsafe {
        // Points with the same square share even and odd powers.
        let near_even = x4.add_product(-(FAR_SQUARE as f32), x2);
        let near_odd = x3.add_product(-(FAR_SQUARE as f32), x1);
        let far_even = x4.add_product(-(NEAR_SQUARE as f32), x2);
        let far_odd = x3.add_product(-(NEAR_SQUARE as f32), x1);
        [
            x4.add(x0).add_product(-SQUARES, x2),
            near_even.add_product(NEAR as f32, near_odd),
            near_even.add_product(-NEAR as f32, near_odd),
            far_even.add_product(FAR as f32, far_odd),
            far_even.add_product(-FAR as f32, far_odd),
            x5.add(x1).add_product(-SQUARES, x3),
        ]
    }
}

/// Some tiles of products on their way to results.
struct ProductTransform<'a> {
    job: &'a Job<'a>,
    tiles: Range<usize>,
    /// The first tile's products at the first place.
    products: *const f32,
}

impl Wide for ProductTransform<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const FMA: bool>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.job.body.side {
                4 => self.run_tiles::<V, 4>(),
                _ => self.run_tiles::<V, 2>(),
            }
        }
    }
}

impl ProductTransform<'_> {
    /// # Safety
    /// The tiles have products at all places, and tiles of `SIDE` results a side.
    #[inline(always)]
    #[expect(
        clippy::needless_range_loop,
        reason = "the indices name registers, and are unrolled"
    )]
    unsafe fn run_tiles<V: Vector, const SIDE: usize>(&self) {
        let body = self.job.body;
        let lanes = body.product_lanes();
        let place_stride = body.place_stride(lanes);

        for (n, tile) in self.tiles.clone().enumerate() {
            for filter in (0..body.filters).step_by(PANEL) {
                let tile_products = self.products.wrapping_add(n * lanes + filter);
                // SAFETY: rows of products are whole vectors, and this tile and panel exist.
                unsafe {
                    let mut sums = [[V::zero(); SIDE]; POINTS];
                    for i in 0..POINTS {
                        let mut line = [V::zero(); POINTS];
                        for j in 0..POINTS {
                            let place = (i * POINTS + j) * place_stride;
                            line[j] = V::load(tile_products.add(place));
                        }
                        sums[i] = from_points(line);
                    }

                    let mut results = [[V::zero(); SIDE]; SIDE];
                    for j in 0..SIDE {
                        let mut column = [V::zero(); POINTS];
                        for i in 0..POINTS {
                            column[i] = sums[i][j];
                        }
                        let column: [V; SIDE] = from_points(column);
                        for i in 0..SIDE {
                            results[i][j] = column[i];
                        }
                    }
                    self.store(tile, filter, &results);
                }
            }
        }
    }

    /// Adds bias and what is added, applies the activation and stores those results of a tile that are inside the image.
    ///
    /// # Safety
    /// The tile and the panel of filters exist, and the processor has the vector's instructions.
    #[inline(always)]
    #[expect(
        clippy::needless_range_loop,
        reason = "the indices name registers, and are unrolled"
    )]
    unsafe fn store<V: Vector, const SIDE: usize>(
        &self,
        tile: usize,
        filter: usize,
        results: &[[V; SIDE]; SIDE],
    ) {
        let body = self.job.body;
        let [_, height, width] = body.image.window.output;
        let [_, columns] = body.grid;
        let first_row = tile / columns * SIDE;
        let first_column = tile % columns * SIDE;
        let panel_width = (body.filters - filter).min(PANEL);

        // SAFETY: biases are whole panels; pixels inside the image have `filters` elements in the result.
        unsafe {
            let bias = V::load(body.bias.as_ptr().add(filter));
            for i in 0..SIDE.min(height - first_row) {
                for j in 0..SIDE.min(width - first_column) {
                    let pixel = (first_row + i) * width + first_column + j;
                    let place = pixel * body.filters + filter;
                    let mut sum = results[i][j].add(bias);
                    if !self.job.added.is_null() {
                        sum = sum.add(V::load_first(self.job.added.add(place), panel_width));
                    }
                    if let Some(activation) = self.job.activation {
                        sum = activation.of_vector(sum);
                    }
                    sum.store_first(self.job.output.add(place), panel_width);
                }
            }
        }
    }
}

/// Coefficients of a line's results from its products at six points.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn from_points<V: Vector, const SIDE: usize>(products: [V; POINTS]) -> [V; SIDE] {
    let [at_zero, near, minus_near, far, minus_far, at_infinity] = products;
    // SAFETY: the caller's promise.
    unsafe {
        let near_even = near.add(minus_near);
        let near_odd = near.add_product(-1.0, minus_near);
        let far_even = far.add(minus_far);
        let far_odd = far.add_product(-1.0, minus_far);

        let mut results = [V::zero(); SIDE];
        for k in 0..SIDE {
            // The highest coefficient has what is at infinity.
            let start = match k {
                0 => at_zero,
                _ if k + 1 == SIDE => at_infinity,
                _ => V::zero(),
            };
            let (near_part, far_part) = match k % 2 {
                0 => (near_even, far_even),
                _ => (near_odd, far_odd),
            };
            let near_sum = start.add_product(POWERS[k][0], near_part);
            results[k] = near_sum.add_product(POWERS[k][1], far_part);
        }
        results
    }
}

/// Powers of the two positive points, from 0 on.
const POWERS: [[f32; 2]; 4] = [
    [1.0, 1.0],
    [NEAR as f32, FAR as f32],
    [NEAR_SQUARE as f32, FAR_SQUARE as f32],
    [(NEAR * NEAR_SQUARE) as f32, (FAR * FAR_SQUARE) as f32],
];
