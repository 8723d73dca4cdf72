//! Tensors put together along an axis, and taken apart.

use super::super::attributes;
use super::super::cx::{AxisSpec, Cx, Plan, Planned, Tensors, token, volume};
use super::super::index::{AxisView, COPY_COST};
use super::{FLOPS_OF_COPY, size_of_dtype};
use zbmd_op::{OpError, team};

/// The bytes of a part in each row of the whole: a row is everything from the axis on.
#[derive(Clone, Copy)]
struct RowPart {
    start: usize,
    bytes: usize,
}

pub(crate) fn concat(cx: &Cx<'_>, spec: &AxisSpec) -> Planned {
    let first_dims = cx.dims(0)?;
    let dtype = cx.dtype(0)?;
    let axis = spec.axis;
    let size = size_of_dtype(cx, 0)?;

    let mut out_dims = first_dims.clone();
    out_dims[axis] = 0;
    let mut parts = Vec::new();
    let mut row_bytes = 0;
    for i in 0..cx.ins.len() {
        let dims = cx.dims(i)?;
        let fits = dims.len() == first_dims.len()
            && (0..dims.len()).all(|d| d == axis || dims[d] == first_dims[d]);
        if !fits || cx.dtype(i)? != dtype {
            return Err(cx.refuse_type(i, format!("the first is {}", cx.operand(0)?.ty)));
        }
        out_dims[axis] += dims[axis];
        let view = AxisView::of(&dims, axis);
        // A row of the result is a row of each part, one behind the other.
        let bytes = view.length * view.inner * size;
        parts.push(RowPart {
            start: row_bytes,
            bytes,
        });
        row_bytes += bytes;
    }

    let rows = AxisView::of(&first_dims, axis).outer;
    let own_parts = parts.clone();
    let body = move |tensors: &mut Tensors<'_>| {
        let output = tensors.out_bytes(0);
        for (i, part) in own_parts.iter().enumerate() {
            // Written in place already, by whoever made it.
            if tensors.shares(i, 0) {
                continue;
            }
            let input = tensors.bytes(i);
            let work = COPY_COST * rows * part.bytes / size_of::<f32>();
            team::share_slice(work, output, row_bytes, &|first, output_rows| {
                for (n, row) in output_rows.chunks_exact_mut(row_bytes.max(1)).enumerate() {
                    let input_row = &input[(first + n) * part.bytes..][..part.bytes];
                    row[part.start..][..part.bytes].copy_from_slice(input_row);
                }
            });
        }
    };
    let flops = FLOPS_OF_COPY * volume(&out_dims) as f64;
    let mut plan = Plan::new(vec![token(dtype, &out_dims)], body).flops(flops);
    if rows == 1 {
        for (i, part) in parts.iter().enumerate() {
            plan = plan.part(i, 0, part.start);
        }
    }
    Ok(plan)
}

/// Parts of an axis.
pub(crate) struct SplitSpec {
    pub(crate) axis: usize,
    /// How long each part is.
    pub(crate) parts: Vec<usize>,
}

impl SplitSpec {
    pub(crate) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let dims = cx.dims(0)?;
        let axis = cx.axis_param(0, dims.len())?;
        let length = AxisView::of(&dims, axis).length;
        let parts = match cx.ints(1)? {
            Some(parts) => parts.iter().map(|&part| part.max(0) as usize).collect(),
            None => {
                let count = attributes::num_outputs(cx, cx.wanted.len() as u64)?;
                // ONNX has equal parts of ⌈length / count⌉, of which the last may be shorter.
                let part_length = length.div_ceil(count);
                (0..count)
                    .map(|i| part_length.min(length.saturating_sub(i * part_length)))
                    .collect()
            }
        };
        Ok(Self { axis, parts })
    }
}

pub(crate) fn split(cx: &Cx<'_>, spec: &SplitSpec) -> Planned {
    let dims = cx.dims(0)?;
    let dtype = cx.dtype(0)?;
    let view = AxisView::of(&dims, spec.axis);
    let place_bytes = view.inner * size_of_dtype(cx, 0)?;
    let part_lengths = &spec.parts;
    // Lengths come from an operand: a sum that wrapped could look right.
    let whole_length = part_lengths
        .iter()
        .fold(0_usize, |sum, &part| sum.saturating_add(part));
    let is_missing = cx.wanted.iter().any(|&output| output >= part_lengths.len());
    if whole_length != view.length || is_missing {
        let message = format!("gives {part_lengths:?} of {} elements", view.length);
        return Err(cx.refuse(1, message, "the parts add up to the whole"));
    }

    let mut parts = Vec::new();
    let mut outs = Vec::new();
    for &output in &cx.wanted {
        let places_before: usize = part_lengths[..output].iter().sum();
        parts.push(RowPart {
            start: places_before * place_bytes,
            bytes: part_lengths[output] * place_bytes,
        });
        let mut out_dims = dims.clone();
        out_dims[spec.axis] = part_lengths[output];
        outs.push(token(dtype, &out_dims));
    }

    let rows = view.outer;
    let row_bytes = view.length * place_bytes;
    let own_parts = parts.clone();
    let body = move |tensors: &mut Tensors<'_>| {
        for (i, part) in own_parts.iter().enumerate() {
            // Where the part is read in place, nothing is written.
            if tensors.shares(0, i) {
                continue;
            }
            let output = tensors.out_bytes(i);
            for row in 0..rows {
                let start = row * row_bytes + part.start;
                let input_row = tensors.part(0, start..start + part.bytes);
                output[row * part.bytes..][..part.bytes].copy_from_slice(input_row);
            }
        }
    };
    let mut plan = Plan::new(outs, body).flops(FLOPS_OF_COPY * volume(&dims) as f64);
    if rows == 1 {
        for (i, part) in parts.iter().enumerate() {
            plan = plan.part(0, i, part.start);
        }
    }
    Ok(plan)
}
