//! Products of f32 matrices: one thread, no allocation, the same bits for any grouping of rows and columns.
//!
//! The right matrix is packed in panels of 16 columns (all of a panel's rows one after the other), the left one is
//! read in place. Every element of the result is one chain of fused multiply-adds in the order of k, so that
//! tiles, blocks and batches of firings cannot change it. Blocks follow Goto & van de Geijn 2008, ACM Trans. Math.
//! Softw. 34(3). A library is not used because those at hand start threads or allocate in each call.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use bytes::Bytes;

use super::aligned::{AlignedFloats, Packed};
use super::cx::Cx;
use super::fetch_ahead::FetchLater;
use super::num::Float;
use super::turn::{SIDE, turn};
use super::vector::{Vector, Wide, run_wide};
use zbmd_op::OpError;
use zbmd_op::math;
use zbmd_op::simd::{self, Isa, Loop};
use zbmd_op::team::{self, Cut};

/// Columns of a panel.
pub(crate) const PANEL: usize = 16;
/// Rows of the inner dimension that are multiplied at a time: a panel of them stays in the first cache.
const DEPTH: usize = 256;
/// Panels that are gone through for each block of rows.
const GROUP: usize = 8;
/// Floats between what is multiplied and what is prefetched, where one row goes through the right matrix.
const AHEAD: usize = 32 * PANEL;
/// Rows of a block: whole tiles of either kind.
const ROWS: usize = 96;

/// What is done to a result while it is still in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Act {
    #[default]
    None,
    Relu,
    Clip(f32, f32),
    Sigmoid,
    Tanh,
    Silu,
    Gelu,
    HardSwish,
}

impl Act {
    #[inline(always)]
    pub(crate) fn apply<const FMA: bool>(self, y: &mut [f32]) {
        match self {
            Act::None => {}
            Act::Relu => y
                .iter_mut()
                .for_each(|v| *v = if *v > 0.0 { *v } else { 0.0 }),
            Act::Clip(low, high) => y.iter_mut().for_each(|v| {
                let x = if *v < low { low } else { *v };
                *v = if x > high { high } else { x };
            }),
            Act::Sigmoid => y
                .iter_mut()
                .for_each(|v| *v = 1.0 / (1.0 + math::exp::<FMA>(-*v))),
            Act::Tanh => y.iter_mut().for_each(|v| *v = math::tanh::<FMA>(*v)),
            Act::Silu => y.iter_mut().for_each(|v| *v /= 1.0 + math::exp::<FMA>(-*v)),
            Act::Gelu => y.iter_mut().for_each(|v| {
                *v = 0.5 * *v * (1.0 + (*v * std::f32::consts::FRAC_1_SQRT_2).erf_fast::<FMA>());
            }),
            Act::HardSwish => y.iter_mut().for_each(|v| *v = hard_swish(*v)),
        }
    }
}

/// A sixth, the slope of hard sigmoids: ONNX multiplies with it.
pub(crate) const SIXTH: f32 = 1.0 / 6.0;

/// x · clamp(x / 6 + 1/2, 0, 1).
#[inline(always)]
pub(crate) fn hard_swish(x: f32) -> f32 {
    x * (x * SIXTH + 0.5).clamp(0.0, 1.0)
}

/// The left matrix: element (r, k) is at `r·row_step + k·column_step`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row_step: usize,
    pub(crate) column_step: usize,
}

impl<'a> Left<'a> {
    /// Dense rows of so many elements.
    pub(crate) fn dense(data: &'a [f32], row_length: usize) -> Self {
        Self {
            data,
            row_step: row_length,
            column_step: 1,
        }
    }
}

/// Where the elements of a right matrix are before it is packed: (r, c) at `r·row_step + c·column_step`.
#[derive(Clone, Copy)]
pub(crate) struct MatrixLayout {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) row_step: usize,
    pub(crate) column_step: usize,
}

impl MatrixLayout {
    /// Rows one after the other.
    pub(crate) fn row_major(rows: usize, columns: usize) -> Self {
        Self {
            rows,
            columns,
            row_step: columns,
            column_step: 1,
        }
    }

    /// Columns one after the other: a matrix that is stored transposed.
    pub(crate) fn column_major(rows: usize, columns: usize) -> Self {
        Self {
            rows,
            columns,
            row_step: 1,
            column_step: rows,
        }
    }

    /// Floats of the matrix when it is packed.
    pub(crate) fn packed_len(&self) -> usize {
        packed_len(self.rows, self.columns)
    }
}

/// Sizes of a product: the left matrix is `rows` by `depth`, the right one `depth` by `columns`.
#[derive(Clone, Copy)]
pub(crate) struct ProductSize {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) columns: usize,
}

/// How many rows and panels of a result are summed up in registers at a time: the variants of whatever is a product of
/// matrices. Each element is the same chain in both.
///
/// Tall tiles read few weights for each product. Square ones keep to few rows: a first cache has eight places for rows
/// that lie a multiple of 4 KiB apart, as those of 1024 floats do. For single rows they leave it to the processor to
/// ask for weights ahead of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tile {
    #[default]
    Tall,
    Square,
}

impl Tile {
    /// Named by rows and columns where vectors are of sixteen floats; tiles of narrower ones have half of each.
    pub(crate) const ALL: [(&'static str, Self); 2] =
        [("12x32", Self::Tall), ("6x64", Self::Square)];

    /// Rows of the largest tile.
    pub(crate) fn rows(self) -> usize {
        match self {
            Self::Tall => 12,
            Self::Square => 6,
        }
    }

    /// How cores share so many rows, or pixels: those that are left over are summed up in smaller tiles, at hardly a higher cost.
    pub(crate) fn row_cut(self, rows: usize) -> Cut {
        const SMALL_TILE_ROWS: usize = 4;
        Cut::new(rows, self.rows()).with_step(SMALL_TILE_ROWS)
    }

    /// Panels of the largest tile.
    pub(crate) fn panels(self) -> usize {
        match self {
            Self::Tall => 2,
            Self::Square => 4,
        }
    }
}

/// What surrounds a product.
#[derive(Clone, Copy, Default)]
pub(crate) struct Extra<'a> {
    /// Adds to what the result holds instead of replacing it.
    pub(crate) accumulate: bool,
    /// Added to each row's elements at the end.
    pub(crate) row_bias: Option<&'a [f32]>,
    /// Added to each column's elements at the end.
    pub(crate) column_bias: Option<&'a [f32]>,
    pub(crate) act: Act,
    pub(crate) tile: Tile,
}

/// Floats of a packed matrix: its last panel is filled up with zeros.
pub(crate) fn packed_len(rows: usize, columns: usize) -> usize {
    rows * columns.next_multiple_of(PANEL)
}

/// Packs a matrix into panels of [`PANEL`] columns.
pub(crate) fn pack(matrix: &[f32], layout: MatrixLayout, packed: &mut [f32]) {
    let panel_length = (layout.rows * PANEL).max(1);
    let panels = packed[..layout.packed_len()].chunks_exact_mut(panel_length);
    for (number, panel) in panels.enumerate() {
        pack_panel(matrix, layout, number, panel);
    }
}

/// Packs one of a matrix's panels.
pub(crate) fn pack_panel(matrix: &[f32], layout: MatrixLayout, number: usize, panel: &mut [f32]) {
    let column_step = layout.column_step;
    let first_column = number * PANEL;
    // Only the last panel may be narrower.
    let width = (layout.columns - first_column).min(PANEL);
    let mut turned_rows = 0;
    if layout.row_step == 1 && column_step != 1 && width == PANEL {
        turned_rows = simd::dispatch(TurnedPanel {
            columns: matrix.get(first_column * column_step..).unwrap_or_default(),
            column_step,
            rows: layout.rows,
            panel,
        });
    }

    let panel_rows = panel.chunks_exact_mut(PANEL).enumerate();
    for (r, panel_row) in panel_rows.skip(turned_rows) {
        let source = &matrix[r * layout.row_step + first_column * column_step..];
        let (elements, padding) = panel_row.split_at_mut(width);

        if column_step == 1 {
            elements.copy_from_slice(&source[..width]);
        } else {
            for (c, element) in elements.iter_mut().enumerate() {
                *element = source[c * column_step];
            }
        }
        // Kernels read whole panels: columns that do not exist add nothing, and are not written back.
        padding.fill(0.0);
    }
}

/// A panel of a matrix whose columns are dense: whole squares of it are transposed.
struct TurnedPanel<'a> {
    columns: &'a [f32],
    column_step: usize,
    rows: usize,
    panel: &'a mut [f32],
}

impl Loop for TurnedPanel<'_> {
    /// Rows of the panel that are there.
    type Out = usize;

    #[inline(always)]
    fn run<const FMA: bool>(self, isa: Isa<FMA>) -> usize {
        let whole_rows = self.rows / SIDE * SIDE;
        for first_row in (0..whole_rows).step_by(SIDE) {
            for first_column in (0..PANEL).step_by(SIDE) {
                let from = &self.columns[first_column * self.column_step + first_row..];
                let to = &mut self.panel[first_row * PANEL + first_column..];
                if !turn(isa, from, self.column_step, to, PANEL) {
                    return 0;
                }
            }
        }
        whole_rows
    }
}

/// The packed right matrix of a product.
pub(crate) type Weights = Packed<f32>;

impl Weights {
    /// `len` floats: those that were kept, if they are as many, or what `make` gives.
    pub(crate) fn new(
        kept: Option<Bytes>,
        len: usize,
        make: impl FnOnce() -> AlignedFloats,
    ) -> Result<Self, OpError> {
        let Some(kept) = kept else {
            return Ok(Self::Made(make()));
        };

        let expected_bytes = 4 * len;
        if kept.len() != expected_bytes {
            let message = format!("packed weights of {} bytes", kept.len());
            return Err(Cx::other(
                message,
                format!("there must be {expected_bytes}"),
            ));
        }
        Ok(Self::from(kept))
    }
}

/// Whether cores had better share panels of packed weights than rows or pixels: where weights do not stay in the cache each core
/// reads its own, and else where panels come out more even.
pub(crate) fn is_cut_by_panels(pixels: Cut, panels: Cut, is_resident: bool) -> bool {
    match is_resident {
        true => !team::is_better_cut(pixels, panels),
        false => panels.length() >= 4 * team::cores(),
    }
}

/// A single row takes as long as so many: it waits for the right matrix, which is read once for all of them.
const ROWS_OF_A_MATRIX: usize = 4;

/// The product of the left matrix with the packed right one, into rows of the result that are `stride` apart.
pub(crate) fn gemm(
    size: ProductSize,
    left: Left<'_>,
    packed: &[f32],
    result: &mut [f32],
    stride: usize,
    extra: Extra<'_>,
) {
    let ProductSize {
        rows,
        depth,
        columns,
    } = size;
    if rows == 0 || columns == 0 {
        return;
    }
    check_sizes(size, &left, packed, result, stride, &extra);

    let shared = Shared(Product {
        rows: Span::new(0, rows),
        depth,
        columns: Span::new(0, columns),
        left,
        packed,
        result: result.as_mut_ptr(),
        stride,
        extra,
    });

    // Cores share rows, or panels where those come out more even.
    let row_cut = extra.tile.row_cut(rows);
    let column_cut = Cut::new(columns, extra.tile.panels() * PANEL).with_step(PANEL);
    let by_rows = team::is_better_cut(row_cut, column_cut);
    let cut = if by_rows { row_cut } else { column_cut };
    // Multiply-adds, by which the team judges whether sharing pays; only an estimate, so that it may saturate.
    let work = rows
        .max(ROWS_OF_A_MATRIX)
        .saturating_mul(columns)
        .saturating_mul(depth);
    team::share(work, cut, &|part| {
        let mut product = shared.get();
        let part_span = Span::new(part.start, part.end);
        if by_rows {
            product.rows = part_span;
        } else {
            product.columns = part_span;
        }
        // SAFETY: the sizes fit, as was checked above; parts have no element of the result in common.
        unsafe { run_wide(product) }
    });
}

/// Products of one size, and the distances from one to the next, in elements.
#[derive(Clone, Copy)]
pub(crate) struct Batch {
    pub(crate) count: usize,
    pub(crate) left: usize,
    pub(crate) packed: usize,
    pub(crate) result: usize,
}

/// As many products as the batch has, each of dense rows with a packed matrix into dense rows: cores share the products.
pub(crate) fn gemm_batch(
    batch: Batch,
    size: ProductSize,
    left: Left<'_>,
    packed: &[f32],
    result: &mut [f32],
    extra: Extra<'_>,
) {
    let ProductSize {
        rows,
        depth,
        columns,
    } = size;
    if rows == 0 || columns == 0 || batch.count == 0 {
        return;
    }
    let result_len = rows * columns;
    assert!(
        batch.result >= result_len && extra.row_bias.is_none() && extra.column_bias.is_none(),
        "results lie apart, and have no bias"
    );
    // Each product begins as far behind the first as the last one does, at most.
    let last = batch.count - 1;
    let last_left = Left {
        data: &left.data[last * batch.left..],
        ..left
    };
    let last_result = &result[last * batch.result..];
    check_sizes(
        size,
        &last_left,
        &packed[last * batch.packed..],
        last_result,
        columns,
        &extra,
    );

    let first = Shared(Product {
        rows: Span::new(0, rows),
        depth,
        columns: Span::new(0, columns),
        left,
        packed,
        result: result.as_mut_ptr(),
        stride: columns,
        extra,
    });
    let work = batch
        .count
        .saturating_mul(rows * columns)
        .saturating_mul(depth);
    team::share(work, Cut::new(batch.count, 1), &|part| {
        let products = ProductBatch {
            first: first.get(),
            batch,
            part: Span::new(part.start, part.end),
        };
        // SAFETY: the last product fits, and those before it lie before it; results have no element in common.
        unsafe { run_wide(products) }
    });
}

/// Some products of a batch.
struct ProductBatch<'a> {
    first: Product<'a>,
    batch: Batch,
    part: Span,
}

impl Wide for ProductBatch<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const FMA: bool>(self) {
        for n in self.part.start..self.part.end {
            let mut product = self.first;
            product.left.data = &product.left.data[n * self.batch.left..];
            product.packed = &product.packed[n * self.batch.packed..];
            product.result = product.result.wrapping_add(n * self.batch.result);
            // SAFETY: the caller's promise.
            unsafe { nest::<V, FMA>(product) }
        }
    }
}

/// Panics unless every element that [`nest`] reads or writes is inside its slice. The kernels use pointers: this is what
/// makes [`gemm`] a safe function.
fn check_sizes(
    size: ProductSize,
    left: &Left<'_>,
    packed: &[f32],
    result: &[f32],
    stride: usize,
    extra: &Extra<'_>,
) {
    let ProductSize {
        rows,
        depth,
        columns,
    } = size;
    assert!(
        depth == 0 || (rows - 1) * left.row_step + (depth - 1) * left.column_step < left.data.len(),
        "the left matrix is too small"
    );
    assert!(
        packed.len() >= packed_len(depth, columns),
        "the packed matrix is too small"
    );
    assert!(
        stride >= columns && (rows - 1) * stride + columns <= result.len(),
        "the result is too small"
    );
    assert!(
        extra.row_bias.is_none_or(|bias| bias.len() >= rows)
            && extra.column_bias.is_none_or(|bias| bias.len() >= columns),
        "a bias is too short"
    );
}

/// A product of which each core does a part.
struct Shared<'a>(Product<'a>);

// SAFETY: all that a product leads to is read only, but for the result, of which each core has its own part.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    fn get(&self) -> Product<'a> {
        self.0
    }
}

impl Wide for Product<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const FMA: bool>(self) {
        // SAFETY: the caller's promise.
        unsafe { nest::<V, FMA>(self) }
    }
}

/// Some rows or columns, from `start` to before `end`. A `Range` that can be copied.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
}

impl Span {
    fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    #[inline(always)]
    fn len(self) -> usize {
        self.end - self.start
    }
}

/// Some rows and some whole panels of columns of a product.
#[derive(Clone, Copy)]
struct Product<'a> {
    rows: Span,
    /// Rows of the whole right matrix.
    depth: usize,
    columns: Span,
    left: Left<'a>,
    packed: &'a [f32],
    /// The whole result's first element.
    result: *mut f32,
    stride: usize,
    extra: Extra<'a>,
}

/// Where a tile begins.
struct TileStart {
    left: *const f32,
    right: *const f32,
    result: *mut f32,
    /// Rows of the inner dimension in this block.
    depth: usize,
    /// Whether sums begin with 0 rather than with what the result holds.
    is_first: bool,
    ahead: FetchLater,
}

/// Distances, in elements, that are the same for all tiles of a product.
#[derive(Clone, Copy)]
struct Steps {
    left_row: usize,
    left_column: usize,
    /// From a panel of the right matrix to the next.
    panel: usize,
    /// From a row of the result to the next.
    result_row: usize,
}

/// All tiles of a product.
///
/// The loops from the outside in, as Goto & van de Geijn have them: a block of rows, a group of panels, a block of the
/// inner dimension, and then tiles of rows. What a tile reads of the group's panels is in the second cache while the
/// block's rows pass over it.
///
/// # Safety
/// The sizes fit the slices, as `gemm` checks, and the processor has the vector's instructions.
#[inline(always)]
unsafe fn nest<V: Vector, const FMA: bool>(product: Product<'_>) {
    let Product {
        rows,
        depth,
        columns,
        left,
        packed,
        result,
        stride,
        extra,
    } = product;
    let panels_end = columns.end.div_ceil(PANEL);
    let steps = Steps {
        left_row: left.row_step,
        left_column: left.column_step,
        // A panel has all rows of the right matrix one after the other, PANEL floats each.
        panel: depth * PANEL,
        result_row: stride,
    };

    // Without an inner dimension no tile would run, and all sums are 0.
    if depth == 0 {
        for r in (rows.start..rows.end).filter(|_| !extra.accumulate) {
            let first = r * stride + columns.start;
            // SAFETY: the result has these columns in each of its rows.
            unsafe { std::slice::from_raw_parts_mut(result.add(first), columns.len()) }.fill(0.0);
        }
        // SAFETY: likewise.
        return unsafe { finish::<FMA>(rows, columns, result, stride, &extra) };
    }

    for block_start in (rows.start..rows.end).step_by(ROWS) {
        // A block of rows of the left matrix is small enough to be read again for each group of panels.
        let block = Span::new(block_start, (block_start + ROWS).min(rows.end));
        for first_panel in (columns.start / PANEL..panels_end).step_by(GROUP) {
            // The last group ends with the columns, which need not fill its last panel.
            let last_panel = (first_panel + GROUP).min(panels_end);
            let group = Span::new(first_panel * PANEL, (last_panel * PANEL).min(columns.end));

            for first_depth in (0..depth).step_by(DEPTH) {
                let block_depth = DEPTH.min(depth - first_depth);
                let left_offset = first_depth * left.column_step;
                // The left matrix moves on by columns, the packed one by rows of a panel.
                let right_offset = first_panel * steps.panel + first_depth * PANEL;

                // The same panels further down, or those of the next group: each tile of rows fetches some lines of them.
                let is_last_depth = first_depth + block_depth == depth;
                let distance = match is_last_depth {
                    true => (last_panel - first_panel) * steps.panel - first_depth * PANEL,
                    false => block_depth * PANEL,
                };
                let has_more = right_offset + distance < packed.len();
                let mut ahead = match has_more {
                    true => FetchLater::new(distance, block.len() / extra.tile.rows()),
                    false => FetchLater::nothing(),
                };

                let mut row = block.start;
                while row < block.end {
                    let start = TileStart {
                        left: (left.data.as_ptr()).wrapping_add(row * left.row_step + left_offset),
                        right: packed.as_ptr().wrapping_add(right_offset),
                        result: result.wrapping_add(row * stride + group.start),
                        depth: block_depth,
                        // Later depth blocks go on from stored sums: f32 in memory as in registers.
                        is_first: first_depth == 0 && !extra.accumulate,
                        ahead,
                    };
                    let rows_left = block.end - row;
                    // SAFETY: the rows that it does and the group's columns are inside the matrices.
                    row +=
                        unsafe { row_tile::<V>(extra.tile, rows_left, &start, group.len(), steps) };
                    ahead.next_tile();
                }
            }

            // Bias and activation while the block is still in the cache.
            // SAFETY: the result has these rows and columns.
            unsafe { finish::<FMA>(block, group, result, stride, &extra) };
        }
    }
}

/// Bias and activation of a block.
///
/// # Safety
/// The block is one of the result's, and nobody else looks at it.
#[inline(always)]
unsafe fn finish<const FMA: bool>(
    rows: Span,
    columns: Span,
    result: *mut f32,
    stride: usize,
    extra: &Extra<'_>,
) {
    if extra.row_bias.is_none() && extra.column_bias.is_none() && extra.act == Act::None {
        return;
    }

    for r in rows.start..rows.end {
        let first = r * stride + columns.start;
        // SAFETY: the caller's promise.
        let block_row = unsafe { std::slice::from_raw_parts_mut(result.add(first), columns.len()) };

        if let Some(row_bias) = extra.row_bias {
            // Biases are those of whole rows, wherever this block's columns begin.
            let bias = row_bias[r];
            block_row.iter_mut().for_each(|sum| *sum += bias);
        }
        if let Some(column_bias) = extra.column_bias {
            let biases = &column_bias[columns.start..columns.end];
            block_row
                .iter_mut()
                .zip(biases)
                .for_each(|(sum, b)| *sum += b);
        }
        extra.act.apply::<FMA>(block_row);
    }
}

/// As many rows as fit, over all panels of a group; returns their number.
///
/// # Safety
/// See [`nest`].
#[inline(always)]
unsafe fn row_tile<V: Vector>(
    tile: Tile,
    rows_left: usize,
    start: &TileStart,
    width: usize,
    steps: Steps,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        // The largest tile for the rows that are left, whose sums fit the registers: 24 of 32, or 12 of 16.
        match (V::MANY, tile, rows_left) {
            (true, Tile::Tall, 12..) => panel_tiles::<V, 12, 2, false>(start, width, steps),
            (true, Tile::Tall, 8..) => panel_tiles::<V, 8, 2, false>(start, width, steps),
            (true, Tile::Square, 6..) => panel_tiles::<V, 6, 4, false>(start, width, steps),
            (true, _, 4..) => panel_tiles::<V, 4, 4, false>(start, width, steps),
            (true, _, 2..) => panel_tiles::<V, 2, 4, false>(start, width, steps),
            (true, Tile::Tall, _) => panel_tiles::<V, 1, 8, true>(start, width, steps),
            (true, Tile::Square, _) => panel_tiles::<V, 1, 8, false>(start, width, steps),
            (false, Tile::Tall, 6..) => panel_tiles::<V, 6, 1, false>(start, width, steps),
            (false, Tile::Tall, 4..) => panel_tiles::<V, 4, 1, false>(start, width, steps),
            (false, Tile::Square, 3..) => panel_tiles::<V, 3, 2, false>(start, width, steps),
            (false, _, 2..) => panel_tiles::<V, 2, 2, false>(start, width, steps),
            (false, Tile::Tall, _) => panel_tiles::<V, 1, 4, true>(start, width, steps),
            (false, Tile::Square, _) => panel_tiles::<V, 1, 4, false>(start, width, steps),
        }
    }
}

/// R rows over `width` columns, P panels at a time; asks for weights [`AHEAD`] of time where `EARLY`.
///
/// # Safety
/// See [`nest`].
#[inline(always)]
unsafe fn panel_tiles<V: Vector, const R: usize, const P: usize, const EARLY: bool>(
    start: &TileStart,
    width: usize,
    steps: Steps,
) -> usize {
    let mut column = 0;
    while column < width {
        let right = start.right.wrapping_add(column / PANEL * steps.panel);
        let result = start.result.wrapping_add(column);

        // SAFETY: whole panels are written in place; the last, partial one through memory of its own.
        unsafe {
            if column + P * PANEL <= width {
                tile::<V, R, P, EARLY>(start, right, result, steps.result_row, steps);
                column += P * PANEL;
            } else if column + PANEL <= width {
                tile::<V, R, 1, EARLY>(start, right, result, steps.result_row, steps);
                column += PANEL;
            } else {
                edge_tile::<V, R, EARLY>(start, right, result, width - column, steps);
                column = width;
            }
        }
    }
    R
}

/// R rows of the last panel, of which the result has only `width` columns.
///
/// # Safety
/// See [`nest`]; R rows of `width` floats can be read and written at `result`.
#[inline(always)]
unsafe fn edge_tile<V: Vector, const R: usize, const EARLY: bool>(
    start: &TileStart,
    right: *const f32,
    result: *mut f32,
    width: usize,
    steps: Steps,
) {
    let mut edge = [[0.0_f32; PANEL]; R];
    // SAFETY: the caller's promise; `edge` has R rows of a whole panel.
    unsafe {
        // Only real columns are read, as other rows may follow. The rest goes on from 0 and is dropped.
        if !start.is_first {
            for (r, row) in edge.iter_mut().enumerate() {
                let result_row = result.add(r * steps.result_row);
                std::ptr::copy_nonoverlapping(result_row, row.as_mut_ptr(), width);
            }
        }

        tile::<V, R, 1, EARLY>(start, right, edge.as_mut_ptr().cast(), PANEL, steps);

        for (r, row) in edge.iter().enumerate() {
            let result_row = result.add(r * steps.result_row);
            std::ptr::copy_nonoverlapping(row.as_ptr(), result_row, width);
        }
    }
}

/// R rows of P whole panels, all sums in registers.
///
/// # Safety
/// See [`nest`]; R rows of P · 16 floats, `stride` apart, can be read and written at `result`.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn tile<V: Vector, const R: usize, const P: usize, const EARLY: bool>(
    start: &TileStart,
    right: *const f32,
    result: *mut f32,
    stride: usize,
    steps: Steps,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::zero(); P]; R];
        if !start.is_first {
            for r in 0..R {
                for v in 0..P {
                    sums[r][v] = V::load(result.add(r * stride + v * PANEL));
                }
            }
        }

        // One row of the right matrix a turn: each of its vectors meets each of the R left elements.
        let mut left_column = start.left;
        let mut right_row = right;
        for k in 0..start.depth {
            let mut weights = [V::zero(); P];
            for v in 0..P {
                if !EARLY {
                    start
                        .ahead
                        .at_line(k, right_row.wrapping_add(v * steps.panel));
                }
                weights[v] = V::load(right_row.add(v * steps.panel));
                if EARLY {
                    // One row meets each weight once: all is waiting for memory, over many pages at a time.
                    V::prefetch(right_row.wrapping_add(v * steps.panel + AHEAD));
                }
            }

            for r in 0..R {
                let factor = *left_column.add(r * steps.left_row);
                for v in 0..P {
                    sums[r][v] = sums[r][v].add_product(factor, weights[v]);
                }
            }
            left_column = left_column.wrapping_add(steps.left_column);
            right_row = right_row.wrapping_add(PANEL);
        }

        for r in 0..R {
            for v in 0..P {
                sums[r][v].store(result.add(r * stride + v * PANEL));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, columns: usize, seed: usize) -> Vec<f32> {
        (0..rows * columns)
            .map(|i| ((i * 37 + seed * 11) % 23) as f32 - 11.0)
            .collect()
    }

    #[test]
    fn products_of_small_integers_are_exact_for_any_size() {
        for (m, k, n) in [
            (1, 1, 1),
            (1, 300, 130),
            (2, 7, 17),
            (5, 3, 16),
            (13, 20, 33),
            (25, 513, 48),
            (100, 9, 5),
            (3, 0, 4),
        ] {
            let (a, b) = (matrix(m, k, 1), matrix(k, n, 2));
            let mut packed = vec![f32::NAN; packed_len(k, n)];
            pack(&b, MatrixLayout::row_major(k, n), &mut packed);
            let bias: Vec<f32> = (0..m).map(|r| r as f32).collect();
            let mut c = vec![f32::NAN; m * (n + 3)];
            let extra = Extra {
                row_bias: Some(&bias),
                act: Act::Relu,
                ..Extra::default()
            };
            let size = ProductSize {
                rows: m,
                depth: k,
                columns: n,
            };
            gemm(size, Left::dense(&a, k), &packed, &mut c, n + 3, extra);
            for (r, j) in (0..m).flat_map(|r| (0..n).map(move |j| (r, j))) {
                let want: f32 = (0..k).map(|i| a[r * k + i] * b[i * n + j]).sum::<f32>() + bias[r];
                assert_eq!(c[r * (n + 3) + j], want.max(0.0), "{m}x{k}x{n} at {r}, {j}");
            }
            assert!(m == 1 || c[n].is_nan(), "nothing is written between rows");
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_cores() {
        for (m, k, n) in [(1, 700, 500), (3, 900, 301), (77, 130, 77), (500, 40, 20)] {
            let a: Vec<f32> = matrix(m, k, 3).iter().map(|v| v * 0.1).collect();
            let b: Vec<f32> = matrix(k, n, 4).iter().map(|v| v * 0.1).collect();
            let mut packed = vec![0.0; packed_len(k, n)];
            pack(&b, MatrixLayout::row_major(k, n), &mut packed);
            let (rows, columns) = (matrix(1, m, 5), matrix(1, n, 6));
            let extra = Extra {
                row_bias: Some(&rows),
                column_bias: Some(&columns),
                act: Act::Silu,
                ..Extra::default()
            };
            let run = |cores: usize| {
                let _team = team::Team::lead(cores, |_| ()).expect("threads");
                let mut c = vec![f32::NAN; m * n];
                let size = ProductSize {
                    rows: m,
                    depth: k,
                    columns: n,
                };
                gemm(size, Left::dense(&a, k), &packed, &mut c, n, extra);
                c
            };
            let want = run(1);
            assert!(want.iter().all(|v| v.is_finite()));
            for cores in [2, 3] {
                assert_eq!(run(cores), want, "{m} x {k} x {n} on {cores} cores");
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_how_rows_and_columns_are_grouped() {
        let (m, k, n) = (29, 700, 77);
        let a: Vec<f32> = matrix(m, k, 3).iter().map(|v| v * 0.1).collect();
        let b: Vec<f32> = matrix(k, n, 4).iter().map(|v| v * 0.1).collect();
        let run = |rows: std::ops::Range<usize>, columns: std::ops::Range<usize>| {
            let width = columns.len();
            let mut packed = vec![0.0; packed_len(k, width)];
            let layout = MatrixLayout {
                row_step: n,
                ..MatrixLayout::row_major(k, width)
            };
            pack(&b[columns.start..], layout, &mut packed);
            let mut c = vec![0.0; rows.len() * width];
            let size = ProductSize {
                rows: rows.len(),
                depth: k,
                columns: width,
            };
            gemm(
                size,
                Left::dense(&a[rows.start * k..], k),
                &packed,
                &mut c,
                width,
                Extra::default(),
            );
            c
        };
        let whole = run(0..m, 0..n);
        for r in 0..m {
            for columns in [0..1, 3..40, 60..77] {
                let part = run(r..r + 1, columns.clone());
                assert_eq!(
                    part,
                    whole[r * n..][columns.clone()],
                    "row {r}, {columns:?}"
                );
            }
        }
    }
}
