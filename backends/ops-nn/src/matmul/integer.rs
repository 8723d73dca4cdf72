//! Products of quantised matrices.

use zbmd_ir::DType;

use super::super::cx::{Cx, FLOATS, Plan, Planned, Tensors, expect_count, index_at, token};
use super::super::elementwise::number_at;
use super::super::gemm::ProductSize;
use super::super::integer::{ByteRange, byte_of, multiplier, packed_matmul, packed_matmul_integer};
use super::BatchedShape;

/// Types of quantised matrices.
const BYTES: [DType; 2] = [DType::I8, DType::U8];

/// Where a quantised matrix and its zero points are found.
#[derive(Clone, Copy)]
struct QuantisedMatrix {
    operand: usize,
    dtype: DType,
    /// Operand of the zero points: one, or one for each row or column.
    zero_points: usize,
}

impl QuantisedMatrix {
    /// An element, widened.
    fn element(self, bytes: &[u8], place: usize) -> i32 {
        match self.dtype {
            DType::I8 => i32::from(bytes[place] as i8),
            _ => i32::from(bytes[place]),
        }
    }

    /// The zero point of a row or column.
    fn zero_point(self, t: &Tensors<'_>, line: usize) -> i32 {
        zero_point(t, self.zero_points, self.dtype, line)
    }
}

/// Element `line` of an operand that has one for each row or column, or one for all.
fn place_of_line(bytes: &[u8], dtype: DType, line: usize) -> usize {
    let elements = bytes.len() / dtype.size_bytes() as usize;
    if elements == 1 { 0 } else { line }
}

/// A zero point as i32; 0 where there is none.
fn zero_point(t: &Tensors<'_>, operand: usize, dtype: DType, line: usize) -> i32 {
    let bytes = t.bytes(operand);
    if bytes.is_empty() {
        return 0;
    }
    index_at(bytes, dtype, place_of_line(bytes, dtype, line)) as i32
}

/// The product of quantised matrices as 32-bit integers.
pub(in super::super) fn matmul_integer(cx: &Cx<'_>) -> Planned {
    let left = QuantisedMatrix {
        operand: 0,
        dtype: cx.expect(0, &BYTES)?,
        zero_points: 2,
    };
    let right = QuantisedMatrix {
        operand: 1,
        dtype: cx.expect(1, &BYTES)?,
        zero_points: 3,
    };
    let shape = BatchedShape::of(cx, 0, 1)?;
    expect_count(cx, 2, &[1, shape.size.rows], left.dtype)?;
    expect_count(cx, 3, &[1, shape.size.columns], right.dtype)?;
    if let Some(plan) = packed_matmul_integer(cx, &shape)? {
        return Ok(plan);
    }

    let flops = 2.0 * shape.flops();
    let outs = vec![token(DType::I32, &shape.out)];
    let body = move |t: &mut Tensors<'_>| {
        let result = t.out::<i32>(0);
        integer_products(t, &shape, left, right, |place, sum| result[place] = sum);
    };
    Ok(Plan::new(outs, body).flops(flops))
}

/// Calls `put` with the place and the value of each sum of products of elements less their zero points.
fn integer_products(
    t: &Tensors<'_>,
    shape: &BatchedShape,
    left: QuantisedMatrix,
    right: QuantisedMatrix,
    mut put: impl FnMut(usize, i32),
) {
    let ProductSize {
        rows,
        depth,
        columns,
    } = shape.size;
    let left_bytes = t.bytes(left.operand);
    let right_bytes = t.bytes(right.operand);

    shape.each_product(|product, left_start, right_start| {
        for r in 0..rows {
            for c in 0..columns {
                let left_zero = left.zero_point(t, r);
                let right_zero = right.zero_point(t, c);
                // ONNX does not say what a sum beyond 32 bits is: it wraps, as in the reference.
                let sum = (0..depth).fold(0_i32, |sum, k| {
                    let factor = left.element(left_bytes, left_start + r * depth + k);
                    let weight = right.element(right_bytes, right_start + k * columns + c);
                    sum.wrapping_add((factor - left_zero).wrapping_mul(weight - right_zero))
                });
                put((product * rows + r) * columns + c, sum);
            }
        }
    });
}

/// The product of quantised matrices, quantised. Operands: the left matrix with scale and zero point, the right one with
/// them, scale and zero point of the result; one 32-bit integer for each column that is added to its sums.
pub(in super::super) fn qlinear_matmul(cx: &Cx<'_>) -> Planned {
    let left = QuantisedMatrix {
        operand: 0,
        dtype: cx.expect(0, &BYTES)?,
        zero_points: 2,
    };
    let right = QuantisedMatrix {
        operand: 3,
        dtype: cx.expect(3, &BYTES)?,
        zero_points: 5,
    };
    let result_dtype = cx.expect(7, &BYTES)?;
    let shape = BatchedShape::of(cx, 0, 3)?;
    let rows = shape.size.rows;
    let columns = shape.size.columns;
    let left_scale = cx.expect(1, &FLOATS)?;
    let right_scale = cx.expect(4, &FLOATS)?;
    let result_scale = cx.expect(6, &FLOATS)?;
    for (operand, counts, dtype) in [
        (1, [1, rows], left_scale),
        (2, [1, rows], left.dtype),
        (4, [1, columns], right_scale),
        (5, [1, columns], right.dtype),
        (6, [1, 1], result_scale),
        (7, [1, 1], result_dtype),
        (8, [columns, columns], DType::I32),
    ] {
        expect_count(cx, operand, &counts, dtype)?;
    }
    let has_f32_scales = [left_scale, right_scale, result_scale] == [DType::F32; 3];
    if has_f32_scales && let Some(plan) = packed_matmul(cx, &shape, result_dtype)? {
        return Ok(plan);
    }

    let range = ByteRange::of(cx, result_dtype)?;
    let flops = 2.0 * shape.flops();
    let outs = vec![token(result_dtype, &shape.out)];
    let body = move |t: &mut Tensors<'_>| {
        let result = t.out_bytes(0);
        let zero = zero_point(t, 7, result_dtype, 0);
        let bias = t.opt::<i32>(8);
        integer_products(t, &shape, left, right, |place, sum| {
            // Σ · s_left · s_right / s_result, s_left by rows and s_right by columns.
            let factor = multiplier(
                scale_at(t, 1, left_scale, place / columns % rows) as f32,
                scale_at(t, 4, right_scale, place % columns) as f32,
                scale_at(t, 6, result_scale, 0) as f32,
            );
            let biased = sum.wrapping_add(bias.map_or(0, |bias| bias[place % columns]));
            result[place] = byte_of(biased as f32 * factor, range, zero);
        });
    };
    Ok(Plan::new(outs, body).flops(flops))
}

/// The scale of a row or column.
fn scale_at(t: &Tensors<'_>, operand: usize, dtype: DType, line: usize) -> f64 {
    let bytes = t.bytes(operand);
    number_at(bytes, dtype, place_of_line(bytes, dtype, line))
}
