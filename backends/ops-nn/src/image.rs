//! Images: resizing, sampling at given places, grids of places.

mod affine;
mod resize;
mod sample;

use super::cx::Cx;
use zbmd_op::OpError;

pub(super) use affine::affine_grid;
pub(super) use resize::{Axis, Resized, resize, resized};
pub(super) use sample::{Border, GridSampleSpec, grid_sample};

/// Whether −1 and 1 are the centres of the outermost elements.
fn aligns_corners(cx: &Cx<'_>) -> Result<bool, OpError> {
    cx.flag("align_corners", false)
}

/// Weights of the four elements around a place, by cubic convolution (Keys 1981): `ratio` is how far behind the second
/// of them it is, `coefficient` Keys' a.
fn cubic_weights(ratio: f64, coefficient: f64) -> [f64; 4] {
    [
        far_cubic_weight(ratio + 1.0, coefficient),
        near_cubic_weight(ratio, coefficient),
        near_cubic_weight(1.0 - ratio, coefficient),
        far_cubic_weight(2.0 - ratio, coefficient),
    ]
}

/// Weight of an element at most 1 away.
fn near_cubic_weight(x: f64, a: f64) -> f64 {
    ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
}

/// Weight of an element 1 to 2 away.
fn far_cubic_weight(x: f64, a: f64) -> f64 {
    ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
}
