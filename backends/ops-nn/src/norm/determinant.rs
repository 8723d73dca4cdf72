//! Determinants.

use std::cmp::Ordering;

use super::super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token};
use super::super::num::Float;

/// The determinant of square matrices, by elimination.
pub(crate) fn det(cx: &Cx<'_>) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let [batch_dims @ .., rows, columns] = dims.as_slice() else {
        return Err(cx.refuse_type(0, "square matrices"));
    };
    if rows != columns || *rows == 0 {
        return Err(cx.refuse_type(0, "square matrices"));
    }
    let body = Determinant { side: *rows };
    Ok(Plan::float(dtype, vec![token(dtype, batch_dims)], body))
}

struct Determinant {
    side: usize,
}

impl FloatBody for Determinant {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let output = tensors.out::<F>(0);
        let scratch = tensors.scratch::<F>();
        let elements = self.side * self.side;
        for (matrix, result) in input.chunks_exact(elements).zip(output) {
            let work = &mut scratch[..elements];
            work.copy_from_slice(matrix);
            *result = eliminate(work, self.side);
        }
    }

    fn scratch_elements(&self) -> usize {
        self.side * self.side
    }
}

/// The determinant of a matrix, which is brought to upper triangular form: Gauss with the largest pivot of each column.
fn eliminate<F: Float>(matrix: &mut [F], side: usize) -> F {
    let mut determinant = F::ONE;
    for c in 0..side {
        // Partial pivoting keeps factors at most 1, so that rounding errors do not grow.
        let pivot = (c..side).max_by(|&a, &b| {
            let magnitude_a = matrix[a * side + c].abs();
            let magnitude_b = matrix[b * side + c].abs();
            magnitude_a
                .partial_cmp(&magnitude_b)
                .unwrap_or(Ordering::Equal)
        });
        let pivot_row = pivot.unwrap_or(c);
        // A column without a pivot: the matrix is singular.
        if matrix[pivot_row * side + c] == F::ZERO {
            return F::ZERO;
        }

        // Two rows that change places turn the sign.
        if pivot_row != c {
            (0..side).for_each(|j| matrix.swap(pivot_row * side + j, c * side + j));
            determinant = -determinant;
        }
        determinant = determinant * matrix[c * side + c];

        for r in c + 1..side {
            // Row r less a multiple of the pivot's row clears column c and leaves the determinant as it is.
            let factor = matrix[r * side + c] / matrix[c * side + c];
            for j in c..side {
                matrix[r * side + j] = matrix[r * side + j] - factor * matrix[c * side + j];
            }
        }
    }
    determinant
}
