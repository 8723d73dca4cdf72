//! Products of many pairs of matrices that come by ports: the right ones are packed in each firing.

use std::ops::Range;

use super::super::cx::Tensors;
use super::super::gemm::{Extra, Left, MatrixLayout, PANEL, ProductSize, gemm, pack_panel};
use super::super::index::{COPY_COST, Walk};
use super::{BatchedShape, OneRow, each_pair};
use zbmd_op::{simd, team};

/// Bytes of packed matrices that stay in the second cache until they are multiplied.
const RESIDENT: usize = 512 << 10;
/// Rows of the result that cores share at a time, so that tiles are large.
const SHARED_ROWS: usize = 4;
/// So many rows of a left matrix at most are multiplied with a right one that is read in place: packing it would cost more.
const ROWS_IN_PLACE: usize = 2;

/// Pairs of matrices, and where their products go.
pub(super) struct MatrixPairs {
    pub(super) size: ProductSize,
    /// Walk over the first elements of both matrices of each pair.
    pub(super) walk: Walk<2>,
    pub(super) count: usize,
    /// From one element of a left matrix to the one below, and to the one on its right.
    pub(super) left_steps: [usize; 2],
    pub(super) right_steps: [usize; 2],
    /// So many products lie side by side in the result: the first rows of all of them come before their second ones.
    pub(super) side_by_side: usize,
}

impl MatrixPairs {
    /// Dense matrices, and products one after the other.
    pub(super) fn dense(shape: &BatchedShape) -> Self {
        let ProductSize { depth, columns, .. } = shape.size;
        Self {
            size: shape.size,
            walk: shape.walk.clone(),
            count: shape.batches,
            left_steps: [depth, 1],
            right_steps: [columns, 1],
            side_by_side: 1,
        }
    }

    /// Right matrices are not packed.
    fn reads_in_place(&self) -> bool {
        let has_dense_rows = self.left_steps[1] == 1 && self.right_steps[1] == 1;
        self.size.rows <= ROWS_IN_PLACE && has_dense_rows
    }

    fn right_layout(&self) -> MatrixLayout {
        let [row_step, column_step] = self.right_steps;
        MatrixLayout {
            rows: self.size.depth,
            columns: self.size.columns,
            row_step,
            column_step,
        }
    }

    /// Right matrices that are packed at a time, at most: those of products that lie side by side are.
    fn group_matrices(&self) -> usize {
        let matrix_bytes = size_of::<f32>() * self.right_layout().packed_len();
        let resident = RESIDENT / matrix_bytes.max(1);
        resident
            .clamp(1, self.count.max(1))
            .next_multiple_of(self.side_by_side)
    }

    /// Floats of scratch memory that [`Batches::run`] needs.
    pub(super) fn packed_len(&self) -> usize {
        match self.reads_in_place() {
            true => 0,
            false => self.group_matrices() * self.right_layout().packed_len(),
        }
    }
}

/// A product of the batch.
struct Product {
    number: usize,
    left_start: usize,
    right_start: usize,
    /// Which of its group's packed matrices it takes.
    packed: usize,
}

/// All products of pairs, a group of right matrices at a time: cores pack some of its panels each, and then compute some of its
/// results' rows.
pub(super) struct Batches<'a> {
    pairs: &'a MatrixPairs,
    left: &'a [f32],
    right: &'a [f32],
    extra: Extra<'a>,
}

impl<'a> Batches<'a> {
    /// The operands with the numbers `left` and `right` are the matrices.
    pub(super) fn new(
        pairs: &'a MatrixPairs,
        tensors: &Tensors<'a>,
        [left, right]: [usize; 2],
        extra: Extra<'a>,
    ) -> Self {
        Self {
            pairs,
            left: tensors.get(left),
            right: tensors.get(right),
            extra,
        }
    }

    pub(super) fn run(&self, packed: &mut [f32], result: &mut [f32]) {
        let ProductSize { rows, columns, .. } = self.pairs.size;
        if self.pairs.reads_in_place() {
            return self.multiply(0..self.pairs.count, &[], result);
        }
        let mut run_group = |products: Range<usize>, matrices: usize| {
            self.pack(&products, matrices, packed);
            let elements = products.start * rows * columns..products.end * rows * columns;
            self.multiply(products, packed, &mut result[elements]);
        };

        let most = self.pairs.group_matrices();
        let side_by_side = self.pairs.side_by_side;
        let (mut first, mut matrices) = (0, 0);
        let mut last_right = None;
        each_pair(&self.pairs.walk, |product, _, right_start| {
            // Neighbouring products often share their right matrix.
            let is_another = last_right != Some(right_start);
            let may_be_cut =
                product.is_multiple_of(side_by_side) && (is_another || side_by_side > 1);
            if may_be_cut && matrices + side_by_side > most {
                run_group(first..product, matrices);
                (first, matrices, last_right) = (product, 0, None);
            }
            matrices += usize::from(last_right != Some(right_start));
            last_right = Some(right_start);
        });
        run_group(first..self.pairs.count, matrices);
    }

    /// Packs the right matrices of a group, which are so many.
    fn pack(&self, products: &Range<usize>, matrices: usize, packed: &mut [f32]) {
        let layout = self.pairs.right_layout();
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
        let MatrixPairs {
            size,
            left_steps: [left_row, left_column],
            side_by_side,
            ..
        } = *self.pairs;
        let ProductSize {
            rows,
            depth,
            columns,
        } = size;
        let packed_len = self.pairs.right_layout().packed_len();
        let left_from = |start: usize| Left {
            data: &self.left[start..],
            row_step: left_row,
            column_step: left_column,
        };

        // Of a single product cores may share columns too.
        if products.len() == 1 && !self.pairs.reads_in_place() {
            return self.each(&products, |product| {
                let left = left_from(product.left_start);
                gemm(size, left, packed, result, columns, self.extra);
            });
        }

        // A line of the result has a row of each product that lies beside another.
        let line_length = side_by_side * columns;
        let work = result.len().saturating_mul(depth);
        team::share_slice(
            work,
            result,
            SHARED_ROWS * line_length,
            &|first, stretch| {
                let first_line = first * SHARED_ROWS;
                let end_line = first_line + stretch.len() / line_length.max(1);

                self.each(&products, |product| {
                    let number = product.number - products.start;
                    let product_line = number / side_by_side * rows;
                    let start = first_line.max(product_line);
                    let end = end_line.min(product_line + rows);
                    if start >= end {
                        return;
                    }
                    let left_start = product.left_start + (start - product_line) * left_row;
                    let own_lines =
                        (start - first_line) * line_length..(end - first_line) * line_length;
                    let own_result = &mut stretch[own_lines][number % side_by_side * columns..];
                    if self.pairs.reads_in_place() {
                        for row in 0..end - start {
                            simd::dispatch(OneRow {
                                row: &self.left[left_start + row * left_row..][..depth],
                                matrix: &self.right[product.right_start..],
                                row_step: self.pairs.right_steps[0],
                                result: &mut own_result[row * line_length..][..columns],
                                extra: self.extra,
                            });
                        }
                        return;
                    }
                    let size = ProductSize {
                        rows: end - start,
                        ..size
                    };
                    let own_packed = &packed[product.packed * packed_len..][..packed_len];
                    let left = left_from(left_start);
                    gemm(size, left, own_packed, own_result, line_length, self.extra);
                });
            },
        );
    }

    /// Calls `f` with each product of a group.
    fn each(&self, products: &Range<usize>, mut f: impl FnMut(Product)) {
        let mut packed = 0;
        let mut last_right = None;
        each_pair(&self.pairs.walk, |number, left_start, right_start| {
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
