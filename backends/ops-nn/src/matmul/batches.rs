//! Products of many pairs of matrices that come by ports: the right ones are packed in each firing.

use std::ops::Range;

use super::super::cx::Tensors;
use super::super::gemm::{Extra, Left, MatrixLayout, PANEL, ProductSize, gemm, pack_panel};
use super::super::index::COPY_COST;
use super::{BatchedShape, OneRow};
use zbmd_op::{simd, team};

/// Bytes of packed matrices that stay in the second cache until they are multiplied.
const RESIDENT: usize = 512 << 10;
/// Rows of the result that cores share at a time, so that tiles are large.
const SHARED_ROWS: usize = 4;

/// A product of the batch.
struct Product {
    number: usize,
    left_start: usize,
    right_start: usize,
    /// Which of its group's packed matrices it takes.
    packed: usize,
}

/// All products of a batch, a group of right matrices at a time: cores pack some of its panels each, and then compute some of its
/// results' rows.
pub(super) struct Batches<'a> {
    shape: &'a BatchedShape,
    left: &'a [f32],
    right: &'a [f32],
    extra: Extra<'a>,
}

impl<'a> Batches<'a> {
    pub(super) fn new(shape: &'a BatchedShape, tensors: &Tensors<'a>, extra: Extra<'a>) -> Self {
        Self {
            shape,
            left: tensors.get(0),
            right: tensors.get(1),
            extra,
        }
    }

    /// Floats of `packed` that [`Self::run`] needs.
    pub(super) fn packed_len(shape: &BatchedShape) -> usize {
        match shape.size.rows {
            1 => 0,
            _ => group_matrices(shape) * layout(shape).packed_len(),
        }
    }

    pub(super) fn run(&self, packed: &mut [f32], result: &mut [f32]) {
        let ProductSize { rows, columns, .. } = self.shape.size;
        if rows == 1 {
            return self.multiply(0..self.shape.batches, &[], result);
        }
        let mut run_group = |products: Range<usize>, matrices: usize| {
            self.pack(&products, matrices, packed);
            let elements = products.start * rows * columns..products.end * rows * columns;
            self.multiply(products, packed, &mut result[elements]);
        };

        let most = group_matrices(self.shape);
        let (mut first, mut matrices) = (0, 0);
        let mut last_right = None;
        self.shape.each_product(|product, _, right_start| {
            // Neighbouring products often share their right matrix.
            if last_right == Some(right_start) {
                return;
            }
            last_right = Some(right_start);
            if matrices == most {
                run_group(first..product, matrices);
                (first, matrices) = (product, 0);
            }
            matrices += 1;
        });
        run_group(first..self.shape.batches, matrices);
    }

    /// Packs the right matrices of a group, which are so many.
    fn pack(&self, products: &Range<usize>, matrices: usize, packed: &mut [f32]) {
        let layout = layout(self.shape);
        let panel_length = (layout.rows * PANEL).max(1);
        let panels = layout.columns.div_ceil(PANEL);
        let packed = &mut packed[..matrices * layout.packed_len()];
        let work = COPY_COST * packed.len();

        team::share_slice(work, packed, panel_length, &|first, stretch| {
            let mut next = first;
            let end = first + stretch.len() / panel_length;
            self.each(products, |product| {
                let own_panels = product.packed * panels..(product.packed + 1) * panels;
                while next < end && own_panels.contains(&next) {
                    let panel = &mut stretch[(next - first) * panel_length..][..panel_length];
                    let matrix = &self.right[product.right_start..];
                    pack_panel(matrix, layout, next - own_panels.start, panel);
                    next += 1;
                }
            });
        });
    }

    /// Computes the results of a group, of which `result` has all.
    fn multiply(&self, products: Range<usize>, packed: &[f32], result: &mut [f32]) {
        let ProductSize {
            rows,
            depth,
            columns,
        } = self.shape.size;
        let packed_len = layout(self.shape).packed_len();
        // Of a single product cores may share columns too.
        if products.len() == 1 && rows > 1 {
            return self.each(&products, |product| {
                let left = Left::dense(&self.left[product.left_start..], depth);
                gemm(self.shape.size, left, packed, result, columns, self.extra);
            });
        }
        let work = result.len().saturating_mul(depth);
        team::share_slice(work, result, SHARED_ROWS * columns, &|first, stretch| {
            // Counted over the group's results, one after the other.
            let first_row = first * SHARED_ROWS;
            let end_row = first_row + stretch.len() / columns.max(1);

            self.each(&products, |product| {
                let product_row = (product.number - products.start) * rows;
                let start = first_row.max(product_row);
                let end = end_row.min(product_row + rows);
                if start >= end {
                    return;
                }
                let left_start = product.left_start + (start - product_row) * depth;
                let left = &self.left[left_start..][..(end - start) * depth];
                let own_rows = (start - first_row) * columns..(end - first_row) * columns;
                let own_result = &mut stretch[own_rows];
                if rows == 1 {
                    return simd::dispatch(OneRow {
                        row: left,
                        matrix: &self.right[product.right_start..][..depth * columns],
                        result: own_result,
                        extra: self.extra,
                    });
                }
                let size = ProductSize {
                    rows: end - start,
                    ..self.shape.size
                };
                let own_packed = &packed[product.packed * packed_len..][..packed_len];
                let left = Left::dense(left, depth);
                gemm(size, left, own_packed, own_result, columns, self.extra);
            });
        });
    }

    /// Calls `f` with each product of a group.
    fn each(&self, products: &Range<usize>, mut f: impl FnMut(Product)) {
        let mut packed = 0;
        let mut last_right = None;
        self.shape.each_product(|number, left_start, right_start| {
            if !products.contains(&number) {
                return;
            }
            if last_right.is_some_and(|last| last != right_start) {
                packed += 1;
            }
            last_right = Some(right_start);
            f(Product {
                number,
                left_start,
                right_start,
                packed,
            });
        });
    }
}

fn layout(shape: &BatchedShape) -> MatrixLayout {
    MatrixLayout::row_major(shape.size.depth, shape.size.columns)
}

/// Right matrices that are packed at a time.
fn group_matrices(shape: &BatchedShape) -> usize {
    let matrix_bytes = size_of::<f32>() * layout(shape).packed_len();
    (RESIDENT / matrix_bytes.max(1)).clamp(1, shape.batches.max(1))
}
