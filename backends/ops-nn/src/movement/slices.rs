//! Slices: from a start to an end along some axes, by a step.

use super::super::cx::{Cx, Planned};
use super::super::index::strides;
use super::{StridedSource, strided_copy};
use zbmd_op::OpError;

/// What is taken of one dimension.
#[derive(Clone, Copy)]
struct AxisSlice {
    axis: usize,
    start: i64,
    end: i64,
    step: i64,
}

impl AxisSlice {
    /// The first element that is taken of so many, and how many are.
    fn taken(self, length: usize) -> (i64, usize) {
        let length = length as i64;
        let positive = |place: i64| match place < 0 {
            true => place.saturating_add(length),
            false => place,
        };

        // As in NumPy: whatever is beyond an end is brought to it. Backwards, the end may be before the first element.
        if self.step > 0 {
            let first = positive(self.start).clamp(0, length);
            let end = match self.end < -length {
                true => 0,
                false => positive(self.end).clamp(0, length),
            };
            return (first, self.count(end - first));
        }
        let last = length - 1;
        let first = positive(self.start).clamp(last.min(0), last);
        let end = match self.end < -length {
            true => -1,
            false => positive(self.end).clamp(-1, last),
        };
        (first, self.count(first - end))
    }

    /// Elements within a span, a step apart.
    fn count(self, span: i64) -> usize {
        match span <= 0 {
            true => 0,
            false => (span as u64).div_ceil(self.step.unsigned_abs()) as usize,
        }
    }
}

/// Operands: the tensor, starts, ends, axes, steps.
pub(crate) fn slice(cx: &Cx<'_>) -> Planned {
    let input_dims = cx.dims(0)?;
    let input_strides = strides(&input_dims);
    let mut out = input_dims.clone();
    let mut source = StridedSource {
        dims: Vec::new(),
        steps: input_strides
            .iter()
            .map(|&stride| stride as isize)
            .collect(),
        start: 0,
    };
    for part in axis_slices(cx, input_dims.len())? {
        let axis = part.axis;
        let stride = input_strides[axis] as isize;
        let (first, count) = part.taken(input_dims[axis]);
        out[axis] = count;
        source.start += first.max(0) as isize * stride;
        // A negative step walks the operand backwards from the first element that is taken.
        source.steps[axis] = stride.saturating_mul(part.step as isize);
    }
    source.dims = out.clone();
    strided_copy(cx, &out, source)
}

fn axis_slices(cx: &Cx<'_>, rank: usize) -> Result<Vec<AxisSlice>, OpError> {
    let starts = cx.ints(1)?.unwrap_or_default();
    let ends = cx.ints(2)?.unwrap_or_default();
    let count = starts.len();
    // Without axes the slices are those of the first dimensions, each by a step of 1.
    let axes = cx.ints(3)?.unwrap_or_else(|| (0..count as i64).collect());
    let steps = cx.ints(4)?.unwrap_or_else(|| vec![1; count]);
    if [ends.len(), axes.len(), steps.len()] != [count; 3] {
        let message = "has another length than the ends, axes or steps";
        return Err(cx.refuse(1, message, "one of each for each axis"));
    }

    let mut slices = Vec::new();
    for i in 0..count {
        let axis = cx.axis(axes[i], rank)?;
        if steps[i] == 0 {
            return Err(cx.refuse(4, "is 0", "steps go forwards or backwards"));
        }
        slices.push(AxisSlice {
            axis,
            start: starts[i],
            end: ends[i],
            step: steps[i],
        });
    }
    Ok(slices)
}
