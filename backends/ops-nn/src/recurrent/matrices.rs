//! The matrices of a recurrent layer: floats, or bytes that meet rows quantised as they come.

use super::super::gemm::{Extra, Left, ProductSize, Tile, gemm};
use super::super::integer::{DynamicMatrix, Range};

/// Rows whose products with a matrix are asked for.
#[derive(Clone, Copy)]
pub(super) struct GateRows<'a> {
    pub(super) count: usize,
    /// Dense rows.
    pub(super) elements: &'a [f32],
    /// Elements of a row.
    pub(super) depth: usize,
    /// The range by which rows are quantised, if it is not that of these rows.
    pub(super) range: Option<Range>,
}

/// The weights of a matrix.
#[derive(Clone, Copy)]
pub(super) enum GateWeights<'a> {
    /// Packed.
    Floats(&'a [f32]),
    Bytes(&'a DynamicMatrix),
}

/// A matrix with a column for each gate of each unit.
#[derive(Clone, Copy)]
pub(super) struct GateMatrix<'a> {
    pub(super) weights: GateWeights<'a>,
    pub(super) columns: usize,
    /// Of products of floats.
    pub(super) tile: Tile,
    pub(super) bias: Option<&'a [f32]>,
}

impl GateMatrix<'_> {
    /// The products of rows with the bias added, into rows of `sums` that are `stride` apart.
    pub(super) fn multiply(
        self,
        rows: GateRows<'_>,
        sums: &mut [f32],
        stride: usize,
        scratch: &mut [u8],
    ) {
        let columns = self.columns;
        match self.weights {
            GateWeights::Floats(packed) => {
                let size = ProductSize {
                    rows: rows.count,
                    depth: rows.depth,
                    columns,
                };
                let left = Left::dense(rows.elements, rows.depth);
                let extra = Extra {
                    column_bias: self.bias,
                    tile: self.tile,
                    ..Extra::default()
                };
                gemm(size, left, packed, sums, stride, extra);
            }
            GateWeights::Bytes(matrix) => {
                // Layers of bytes have their batches side by side: sums are dense as well.
                let elements = &rows.elements[..rows.count * rows.depth];
                let range = rows.range.unwrap_or_else(|| Range::of(elements));
                let sums = &mut sums[..rows.count * columns];
                matrix.multiply(elements, range, self.bias, sums, scratch);
            }
        }
    }
}
