//! Floats times a constant matrix of bytes: rows are quantised as they come, and the sums become floats again.

use bytes::Bytes;
use zbmd_ir::DType;

use super::super::cx::{Cx, index_at};
use super::super::gemm::{ProductSize, Tile};
use super::conv::SLACK;
use super::packed::PackedWeights;
use super::quantise::{Range, quantise};
use super::rows::{Multiplication, Rows, Target, matrix_rows, matrix_sizes};
use super::{BYTES, scales, zero_at};
use zbmd_op::OpError;
use zbmd_op::simd::{self, Isa, Loop};

/// Constant matrices of bytes of the same size, with their scales and zero points.
#[derive(Clone)]
pub(in super::super) struct DynamicWeights {
    bytes: Bytes,
    dtype: DType,
    count: usize,
    depth: usize,
    columns: usize,
    /// One for each matrix, or one for each column of each.
    scales: Vec<f32>,
    /// Likewise, of the weights' type; or none.
    zeros: Bytes,
}

impl DynamicWeights {
    /// Those of operand `matrix`, `[matrices, depth, columns]`, with operands of scales and of zero points.
    ///
    /// # Errors
    /// An operand of another shape or type, or that is no constant.
    pub(in super::super) fn of(
        cx: &Cx<'_>,
        [matrix, scale, zero]: [usize; 3],
    ) -> Result<Self, OpError> {
        let dtype = cx.expect(matrix, &BYTES)?;
        let operand = cx.operand(matrix)?;
        let Some(bytes) = operand.data.clone() else {
            let help = "weights of bytes are constants, so that they are packed once";
            return Err(cx.refuse(matrix, "is no constant", help));
        };
        let &[count, depth, columns] = operand.dims().as_slice() else {
            return Err(cx.refuse_type(matrix, "matrices, rows, columns"));
        };

        let scales = scales(cx, scale)?;
        let zeros = cx.opt(zero).and_then(|zeros| zeros.data.clone());
        let zeros = zeros.unwrap_or_default();
        let counts = [count, count * columns];
        if !counts.contains(&scales.len()) {
            let help =
                format!("one for each of {count} matrices, or for {columns} columns of each");
            return Err(cx.refuse_type(scale, help));
        }
        if !zeros.is_empty() && zeros.len() != scales.len() {
            let help = format!("as many zero points as scales: {}", scales.len());
            return Err(cx.refuse_type(zero, help));
        }
        Ok(Self {
            bytes,
            dtype,
            count,
            depth,
            columns,
            scales,
            zeros,
        })
    }

    /// The matrices in the order of the kernels. `row_counts` are those of the products that will be asked for.
    ///
    /// # Errors
    /// Rows of too many elements.
    pub(in super::super) fn matrices(
        &self,
        row_counts: &[usize],
    ) -> Result<Vec<DynamicMatrix>, OpError> {
        (0..self.count)
            .map(|number| self.matrix(number, row_counts))
            .collect()
    }

    fn matrix(&self, number: usize, row_counts: &[usize]) -> Result<DynamicMatrix, OpError> {
        let Self { depth, columns, .. } = *self;
        // The scale of a column, and its zero point, are the matrix's or its own.
        let place = |column| match self.scales.len() == self.count {
            true => number,
            false => number * columns + column,
        };
        let weights = &self.bytes[number * depth * columns..][..depth * columns];
        let size = ProductSize {
            rows: 0,
            depth,
            columns,
        };
        let packed = PackedWeights::new(matrix_sizes(size), |column, _, row| {
            let zero = zero_at(&self.zeros, self.dtype, place(column));
            (index_at(weights, self.dtype, row * columns + column) - zero) as i16
        });

        let products = row_counts.iter().filter(|rows| **rows > 0).map(|&rows| {
            let input_bytes = rows * depth + SLACK;
            let size = ProductSize { rows, ..size };
            matrix_rows(size, packed.passes, Tile::default(), input_bytes)
        });
        // For a zero point of −1 what is added to a column is the sum of its weights.
        let mut column_sums = packed.biases(None, -1);
        column_sums.truncate(columns);
        Ok(DynamicMatrix {
            biases: vec![0; packed.lanes()],
            column_sums,
            depth,
            columns,
            products: products.collect::<Result<_, _>>()?,
            scales: (0..columns)
                .map(|column| self.scales[place(column)])
                .collect(),
            packed,
        })
    }
}

/// A matrix of bytes with a scale for each column.
pub(in super::super) struct DynamicMatrix {
    depth: usize,
    columns: usize,
    packed: PackedWeights,
    /// Zeros, by panel and lane.
    biases: Vec<i32>,
    /// By column: scales, and sums of weights.
    scales: Vec<f32>,
    column_sums: Vec<i32>,
    /// The products of as many rows as are asked for.
    products: Vec<Rows>,
}

impl DynamicMatrix {
    /// Bytes of scratch memory for products of so many rows.
    pub(in super::super) fn scratch_bytes(&self, rows: usize) -> usize {
        rows * self.depth + SLACK
    }

    /// The products of dense rows, quantised by a range as `DynamicQuantizeLinear` does, with a bias if there is one.
    ///
    /// # Panics
    /// If it was not told of so many rows, or a slice has another length.
    pub(in super::super) fn multiply(
        &self,
        elements: &[f32],
        range: Range,
        bias: Option<&[f32]>,
        sums: &mut [f32],
        scratch: &mut [u8],
    ) {
        let is_asked = |rows: &&Rows| rows.spots.len() * self.depth == elements.len();
        let rows = self
            .products
            .iter()
            .find(is_asked)
            .expect("told of the rows");
        let (scale, zero) = range.quantisation();

        let (quantised, slack) = scratch.split_at_mut(elements.len());
        quantise(elements, scale, zero, DType::U8, quantised);
        slack[..SLACK].fill(0);

        // The sums take the place of the floats that they become.
        let ints = bytemuck::cast_slice_mut::<f32, i32>(sums);
        rows.multiply(Multiplication {
            input: &scratch[..elements.len() + SLACK],
            weights: self.packed.bytes(),
            biases: &self.biases,
            row_terms: None,
            target: Target::Ints(ints),
        });
        for row in sums.chunks_exact_mut(self.columns) {
            simd::dispatch(Dequantisation {
                matrix: self,
                scale,
                zero,
                bias,
                row,
            });
        }
    }
}

/// The sums of a row, which are integers, as floats: `Σ (x − zero) · w = Σ x·w − zero · Σw`.
struct Dequantisation<'a> {
    matrix: &'a DynamicMatrix,
    scale: f32,
    zero: i32,
    bias: Option<&'a [f32]>,
    row: &'a mut [f32],
}

impl Loop for Dequantisation<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let matrix = self.matrix;
        let columns = matrix.column_sums.iter().zip(&matrix.scales);
        for (sum, (column_sum, own_scale)) in self.row.iter_mut().zip(columns) {
            let shift = self.zero.wrapping_mul(*column_sum);
            let centred = (sum.to_bits() as i32).wrapping_sub(shift);
            *sum = centred as f32 * (self.scale * own_scale);
        }
        for (sum, own_bias) in self.row.iter_mut().zip(self.bias.unwrap_or_default()) {
            *sum += own_bias;
        }
    }
}
