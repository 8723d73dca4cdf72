//! The matrices of a recurrent layer: floats, or bytes that meet rows quantised as they come.

use super::super::gemm::{Extra, Left, ProductSize, gemm};
use super::super::integer::{DynamicMatrix, Range};

/// Rows whose products with a matrix are asked for.
#[derive(Clone, Copy)]
pub(super) struct GateRows<'a> {
    pub(super) count: usize,
    /// Elements of a row.
    pub(super) depth: usize,
    pub(super) elements: &'a [f32],
    /// From a row to the next.
    pub(super) row_step: usize,
    /// The range by which rows are quantised, if it is not that of these rows.
    pub(super) range: Option<Range>,
}

/// A matrix with a column for each gate of each unit.
#[derive(Clone, Copy)]
pub(super) enum GateMatrix<'a> {
    /// Packed.
    Floats(&'a [f32]),
    Bytes(&'a DynamicMatrix),
}

impl GateMatrix<'_> {
    /// The products of rows, into rows of `sums` that are `stride` apart; with a bias, if there is one.
    pub(super) fn multiply(
        self,
        rows: GateRows<'_>,
        columns: usize,
        bias: Option<&[f32]>,
        (sums, stride): (&mut [f32], usize),
        scratch: &mut [u8],
    ) {
        match self {
            Self::Floats(packed) => {
                let size = ProductSize {
                    rows: rows.count,
                    depth: rows.depth,
                    columns,
                };
                let left = Left {
                    data: rows.elements,
                    row_step: rows.row_step,
                    column_step: 1,
                };
                let extra = Extra {
                    column_bias: bias,
                    ..Extra::default()
                };
                gemm(size, left, packed, sums, stride, extra);
            }
            Self::Bytes(matrix) => {
                // Layers of bytes have their batches side by side: rows are dense, and so are sums.
                let elements = &rows.elements[..rows.count * rows.depth];
                let range = rows.range.unwrap_or_else(|| Range::of(elements));
                let sums = &mut sums[..rows.count * columns];
                matrix.multiply(elements, range, bias, sums, scratch);
            }
        }
    }
}
