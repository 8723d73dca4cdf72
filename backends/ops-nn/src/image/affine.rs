//! Grids of places.

use super::super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token, volume};
use super::super::num::Float;
use super::aligns_corners;

/// Places of an affine transformation, for [`super::grid_sample`].
pub(crate) fn affine_grid(cx: &Cx<'_>) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let size = cx.operand_sizes(1)?;
    let rank = size.len().saturating_sub(2);
    let fits =
        (2..=3).contains(&rank) && cx.dims(0)? == [size[0], rank, rank + 1] && !size.contains(&0);
    if !fits {
        let help = "[n, 2, 3] for four sizes, [n, 3, 4] for five";
        return Err(cx.refuse_type(0, help));
    }

    let out_dims = [&size[..1], &size[2..], &[rank]].concat();
    let body = AffineGrid {
        dims: size[2..].to_vec(),
        aligns_corners: aligns_corners(cx)?,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &out_dims)], body))
}

struct AffineGrid {
    /// Two or three spatial dimensions.
    dims: Vec<usize>,
    aligns_corners: bool,
}

impl AffineGrid {
    /// Where element `i` of so many is in [−1, 1].
    fn coordinate(&self, i: usize, size: usize) -> f64 {
        let element = i as f64;
        match self.aligns_corners {
            true if size > 1 => -1.0 + 2.0 * element / (size - 1) as f64,
            true => 0.0,
            false => (2.0 * element + 1.0) / size as f64 - 1.0,
        }
    }
}

impl FloatBody for AffineGrid {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let matrices = tensors.get::<F>(0);
        let output = tensors.out::<F>(0);
        let rank = self.dims.len();
        let plane = volume(&self.dims);

        for (n, place) in output.chunks_exact_mut(rank).enumerate() {
            let batch = n / plane;
            let mut rest = n % plane;
            // Homogeneous coordinates; the first one belongs to the last dimension.
            let mut coordinates = [1.0; 4];
            for (i, &dim) in self.dims.iter().rev().enumerate() {
                coordinates[i] = self.coordinate(rest % dim, dim);
                rest /= dim;
            }

            for (row, result) in place.iter_mut().enumerate() {
                // Matrices are [batch, rank, rank + 1]; the last column is the translation.
                let row_start = (batch * rank + row) * (rank + 1);
                let matrix_row = &matrices[row_start..][..rank + 1];
                let terms = matrix_row.iter().zip(coordinates);
                *result = F::of(terms.map(|(factor, c)| factor.f64() * c).sum());
            }
        }
    }
}
