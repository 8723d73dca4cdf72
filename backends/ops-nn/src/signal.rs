//! Transforms and what belongs to them: DFT, STFT, windows, mel weights; ranges and losses.

mod fourier;
mod loss;
mod series;

use super::cx::Cx;
use zbmd_op::OpError;

pub(super) use fourier::{DftSpec, StftSpec, dft, stft};
pub(super) use loss::{LossSpec, Reduction, loss};
pub(super) use series::{mel, range, window};

/// Points of the longest transform or window, as of the op `Fft`: planning one takes a hundred bytes a point and more.
const MAX_POINTS: usize = 1 << 24;

/// A number of points, which operand `i` may give.
fn point_count(
    cx: &Cx<'_>,
    i: usize,
    given: Option<i64>,
    default: usize,
) -> Result<usize, OpError> {
    let points = given.map_or(Some(default), |n| usize::try_from(n).ok());
    points
        .filter(|n| (1..=MAX_POINTS).contains(n))
        .ok_or_else(|| {
            let message = format!("asks for {given:?} points");
            cx.refuse(i, message, format!("1 to {MAX_POINTS}"))
        })
}

/// The first integer of a constant operand, if it is there.
fn first_int(cx: &Cx<'_>, i: usize) -> Result<Option<i64>, OpError> {
    Ok(cx.ints(i)?.and_then(|ints| ints.first().copied()))
}

/// The first number of a constant operand; 0 where it is missing.
fn first_float(cx: &Cx<'_>, i: usize) -> Result<f64, OpError> {
    let floats = cx.floats(i)?.unwrap_or_default();
    Ok(floats.first().copied().unwrap_or(0.0))
}
