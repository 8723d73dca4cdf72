//! Normalisation along an axis, and over several.

use super::super::attributes;
use super::super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token};
use super::super::index::{AxisView, strides};
use super::super::num::Float;
use zbmd_op::OpError;

/// Division by the norm along an axis.
pub(crate) struct LpNormSpec {
    pub(crate) axis: usize,
    /// 1 or 2.
    pub(crate) exponent: u64,
}

impl LpNormSpec {
    pub(crate) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            axis: cx.axis_param(-1, cx.dims(0)?.len())?,
            exponent: attributes::small_norm_exponent(cx)?,
        })
    }
}

pub(crate) fn lp(cx: &Cx<'_>, spec: &LpNormSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let body = LpNorm {
        view: AxisView::of(&dims, spec.axis),
        exponent: spec.exponent,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &dims)], body))
}

struct LpNorm {
    view: AxisView,
    exponent: u64,
}

impl LpNorm {
    fn norm<F: Float>(&self, input: &[F], outer: usize, inner: usize) -> f64 {
        let line = (0..self.view.length).map(|k| input[self.view.at(outer, k, inner)].f64().abs());
        match self.exponent {
            1 => line.sum::<f64>(),
            _ => line.map(|v| v * v).sum::<f64>().sqrt(),
        }
    }
}

impl FloatBody for LpNorm {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let output = tensors.out::<F>(0);
        for outer in 0..self.view.outer {
            for inner in 0..self.view.inner {
                let norm = self.norm(input, outer, inner);
                for k in 0..self.view.length {
                    let place = self.view.at(outer, k, inner);
                    // A line of zeros stays zeros, where a division would give NaN.
                    output[place] = match norm {
                        0.0 => F::ZERO,
                        _ => F::of(input[place].f64() / norm),
                    };
                }
            }
        }
    }
}

/// Mean taken off and deviation brought to 1 over axes, by default batch and space.
pub(crate) struct MeanVarianceSpec {
    pub(crate) axes: Vec<usize>,
}

/// What is added to the deviation.
pub(crate) const MEAN_VARIANCE_EPSILON: f64 = 1e-9;

impl MeanVarianceSpec {
    pub(crate) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let rank = cx.dims(0)?.len();
        let axes = match attributes::axes(cx, rank)? {
            Some(axes) => axes,
            None => [0, 2, 3]
                .into_iter()
                .map(|axis| cx.axis(axis, rank))
                .collect::<Result<_, _>>()?,
        };
        Ok(Self { axes })
    }
}

pub(crate) fn mean_variance(cx: &Cx<'_>, spec: &MeanVarianceSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let body = MeanVariance {
        kept: StridedDims::of(&dims, |d| !spec.axes.contains(&d)),
        reduced: StridedDims::of(&dims, |d| spec.axes.contains(&d)),
    };
    Ok(Plan::float(dtype, vec![token(dtype, &dims)], body))
}

/// Some dimensions of a dense tensor.
struct StridedDims {
    sizes: Vec<usize>,
    strides: Vec<usize>,
}

impl StridedDims {
    /// Those dimensions that a rule chooses.
    fn of(dims: &[usize], chosen: impl Fn(usize) -> bool) -> Self {
        let all_strides = strides(dims);
        let (sizes, strides) = (0..dims.len())
            .filter(|&d| chosen(d))
            .map(|d| (dims[d], all_strides[d]))
            .unzip();
        Self { sizes, strides }
    }

    fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Where element `number`, in the order of these dimensions, is in the tensor.
    fn place(&self, number: usize) -> usize {
        let mut rest = number;
        let mut place = 0;
        for (size, stride) in self.sizes.iter().zip(&self.strides).rev() {
            place += rest % size * stride;
            rest /= size;
        }
        place
    }
}

struct MeanVariance {
    kept: StridedDims,
    reduced: StridedDims,
}

impl FloatBody for MeanVariance {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let output = tensors.out::<F>(0);
        let count = self.reduced.count();
        for kept in 0..self.kept.count() {
            // A place is the sum of the strides of kept and of reduced dimensions, since no dimension is in both.
            let first = self.kept.place(kept);
            let places = || (0..count).map(|i| first + self.reduced.place(i));
            let mean = places().map(|i| input[i].f64()).sum::<f64>() / count as f64;
            let squares = places().map(|i| (input[i].f64() - mean).powi(2));
            let variance = squares.sum::<f64>() / count as f64;
            for i in places() {
                // ONNX adds epsilon to the deviation here, not to the variance as the other normalisations do.
                let deviation = variance.sqrt() + MEAN_VARIANCE_EPSILON;
                output[i] = F::of((input[i].f64() - mean) / deviation);
            }
        }
    }
}
