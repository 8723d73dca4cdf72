//! Ops that move elements without computing: all dtypes, by the size of their elements.

mod chosen;
mod columns;
mod parts;
mod slices;

use zbmd_ir::{DType, TokenType};

use super::attributes;
use super::cx::{Body, Cx, Plan, Planned, Tensors, by_element, dims, token, volume};
use super::gpu::Moves;
use super::index::{Strided, broadcast, strides};
use super::num::Num;
use zbmd_op::OpError;

pub(super) use chosen::{PadSpec, center_crop_pad, pad, trilu};
pub(super) use columns::col2im;
pub(super) use parts::{SplitSpec, concat, split};
pub(super) use slices::slice;

/// Bytes of an element of operand `i`, which must not be complex.
pub(super) fn size_of_dtype(cx: &Cx<'_>, i: usize) -> Result<usize, OpError> {
    match cx.dtype(i)? {
        DType::C32 => Err(cx.refuse(i, "is complex", "split it into real and imaginary parts")),
        other => Ok(other.size_bytes() as usize),
    }
}

/// Operations that a copied element counts as.
const FLOPS_OF_COPY: f64 = 0.25;

/// Operations of one element that is copied alone, as its neighbour in the result is none in the operand.
const FLOPS_OF_STEP: f64 = 12.0;

/// Where a strided copy takes its elements from: `out[i0, i1, …] = in[start + i0·steps[0] + …]`.
struct StridedSource {
    /// Dimensions that the result is walked through in: its own, or finer ones.
    dims: Vec<usize>,
    steps: Vec<isize>,
    start: isize,
}

/// A strided copy of operand 0 into a result of dimensions `out`.
fn strided_copy(cx: &Cx<'_>, out: &[usize], source: StridedSource) -> Planned {
    let dtype = cx.dtype(0)?;
    let size = size_of_dtype(cx, 0)?;
    let StridedSource { dims, steps, start } = source;
    let first = start.unsigned_abs();
    let is_run = is_one_run(&dims, &steps);
    let moves = Moves::Strided {
        dims: dims.clone(),
        steps: steps.clone(),
        start: first,
        size,
    };
    let copy = Strided::new(&dims, steps, start, size)?;
    let body = move |tensors: &mut Tensors<'_>| {
        // Where the result is a part of its operand already, there is nothing to do.
        if !tensors.shares(0, 0) {
            let input = tensors.bytes(0);
            copy.run(input, tensors.out_bytes(0));
        }
    };
    let flops_of_element = match is_run {
        true => FLOPS_OF_COPY,
        false => FLOPS_OF_STEP,
    };
    let plan = Plan::new(vec![token(dtype, out)], body)
        .moves(moves)
        .flops(flops_of_element * volume(out) as f64);
    Ok(match is_run {
        true => plan.part(0, 0, first * size),
        false => plan,
    })
}

/// Whether elements at such steps are one behind the other.
fn is_one_run(dims: &[usize], steps: &[isize]) -> bool {
    let dense_steps = strides(dims);
    (0..dims.len()).all(|d| dims[d] == 1 || steps[d] == dense_steps[d] as isize)
}

/// A copy under another shape.
fn copied(cx: &Cx<'_>, out: Vec<usize>) -> Planned {
    let ty = &cx.operand(0)?.ty;
    if volume(&out) as u64 != ty.elements() {
        let message = format!("is {ty}, which {out:?} cannot hold");
        return Err(cx.refuse(0, message, "shapes of equal size"));
    }
    let flops = FLOPS_OF_COPY * ty.elements() as f64;
    let plan = Plan::new(vec![token(ty.dtype, &out)], Copy);
    Ok(plan.moves(Moves::All).flops(flops).over([0]))
}

struct Copy;

impl Body for Copy {
    fn run(&self, tensors: &mut Tensors<'_>) {
        // Over its operand it has nothing to do.
        if tensors.over().is_none() {
            let input = tensors.bytes(0);
            tensors.out_bytes(0).copy_from_slice(input);
        }
    }

    fn batches(&self) -> bool {
        true
    }
}

pub(super) fn identity(cx: &Cx<'_>) -> Planned {
    copied(cx, cx.dims(0)?)
}

/// The shape that is asked for: 0 keeps the dimension of `x` unless `allowzero`, one -1 takes what is left.
pub(super) fn reshape(cx: &Cx<'_>) -> Planned {
    let input_dims = cx.dims(0)?;
    let asked_dims = cx.ints(1)?.ok_or_else(|| cx.not_constant(1))?;
    let zero_is_empty = cx.flag("allowzero", false)?;

    let mut out = Vec::new();
    let mut open_dim = None;
    for (i, &dim) in asked_dims.iter().enumerate() {
        out.push(match dim {
            0 if !zero_is_empty => *input_dims
                .get(i)
                .ok_or_else(|| cx.refuse(1, "takes a dimension that `x` lacks", "give its size"))?,
            -1 if open_dim.is_some() => {
                return Err(cx.refuse(1, "leaves two dimensions open", "at most one -1"));
            }
            -1 => {
                open_dim = Some(i);
                1
            }
            _ => usize::try_from(dim).map_err(|_| {
                let message = format!("has the dimension {dim}");
                cx.refuse(1, message, "sizes, 0 or -1")
            })?,
        });
    }
    if let Some(open_dim) = open_dim {
        // The open dimension takes what is left; `copied` refuses what does not divide.
        let known_elements = volume(&out).max(1);
        out[open_dim] = volume(&input_dims) / known_elements;
    }
    copied(cx, out)
}

pub(super) fn flatten(cx: &Cx<'_>) -> Planned {
    let input_dims = cx.dims(0)?;
    let rank = input_dims.len() as i64;
    let axis = attributes::axis(cx, 1)?;
    // Not as other axes: the rank itself is one too, and what is beyond is brought back.
    let positive_axis = if axis < 0 { axis + rank } else { axis };
    let (row_dims, column_dims) = input_dims.split_at(positive_axis.clamp(0, rank) as usize);
    copied(cx, vec![volume(row_dims), volume(column_dims)])
}

pub(super) fn squeeze(cx: &Cx<'_>) -> Planned {
    let mut out = cx.dims(0)?;
    match cx.operand_axes(1, out.len())? {
        Some(axes) => {
            let kept_dims = (0..out.len()).filter(|d| !axes.contains(d));
            out = kept_dims.map(|d| out[d]).collect();
        }
        None => out.retain(|&dim| dim != 1),
    }
    copied(cx, out)
}

pub(super) fn unsqueeze(cx: &Cx<'_>) -> Planned {
    let input_dims = cx.dims(0)?;
    let new_axes = cx.ints(1)?.unwrap_or_default().len();
    let rank = input_dims.len() + new_axes;
    let axes = cx.operand_axes(1, rank)?.unwrap_or_default();
    let mut own_dims = input_dims.into_iter();
    let out = (0..rank).map(|d| match axes.contains(&d) {
        true => 1,
        false => own_dims.next().unwrap_or(1),
    });
    copied(cx, out.collect())
}

pub(super) fn transpose(cx: &Cx<'_>) -> Planned {
    let input_dims = cx.dims(0)?;
    let rank = input_dims.len();
    let order: Vec<usize> = match cx.args.ints_opt("perm")? {
        Some(order) => order
            .iter()
            .map(|&axis| cx.axis(axis, rank))
            .collect::<Result<_, _>>()?,
        None => (0..rank).rev().collect(),
    };
    // Sorted, a permutation is 0, 1, 2, …; anything else repeats an axis or lacks one.
    let mut sorted_axes = order.clone();
    sorted_axes.sort_unstable();
    if sorted_axes != (0..rank).collect::<Vec<_>>() {
        let message = format!("is {order:?}");
        return Err(cx.args.error("perm", message, "name each dimension once"));
    }
    let out: Vec<usize> = order.iter().map(|&d| input_dims[d]).collect();
    permuted(cx, &input_dims, &order, &out)
}

/// Operand 0, seen under finer dimensions and with these in another order.
fn permuted(cx: &Cx<'_>, fine_dims: &[usize], order: &[usize], out: &[usize]) -> Planned {
    let fine_strides = strides(fine_dims);
    let source = StridedSource {
        dims: order.iter().map(|&d| fine_dims[d]).collect(),
        steps: order.iter().map(|&d| fine_strides[d] as isize).collect(),
        start: 0,
    };
    strided_copy(cx, out, source)
}

pub(super) fn expand(cx: &Cx<'_>) -> Planned {
    let input_dims = cx.dims(0)?;
    let asked_dims = cx.operand_sizes(1)?;
    let out = broadcast(&[&input_dims, &asked_dims])?;
    let input_strides = strides(&input_dims);
    let missing_dims = out.len() - input_dims.len();
    let step = |d: usize| match d.checked_sub(missing_dims) {
        Some(own) if input_dims[own] != 1 => input_strides[own] as isize,
        _ => 0,
    };
    let source = StridedSource {
        dims: out.clone(),
        steps: (0..out.len()).map(step).collect(),
        start: 0,
    };
    strided_copy(cx, &out, source)
}

pub(super) fn tile(cx: &Cx<'_>) -> Planned {
    let input_dims = cx.dims(0)?;
    let repeats = cx.operand_sizes(1)?;
    let rank = input_dims.len();
    if repeats.len() != rank {
        let message = format!("has {} numbers", repeats.len());
        let help = format!("one for each of {rank} dimensions");
        return Err(cx.refuse(1, message, help));
    }

    // Each dimension is two: how often, at step 0, and the dimension itself.
    let mut source = StridedSource {
        dims: Vec::new(),
        steps: Vec::new(),
        start: 0,
    };
    let mut out = Vec::new();
    for (d, stride) in strides(&input_dims).into_iter().enumerate() {
        source.dims.extend([repeats[d], input_dims[d]]);
        source.steps.extend([0, stride as isize]);
        // Repeats come from an operand, and may ask for more elements than usize counts.
        out.push(repeats[d].saturating_mul(input_dims[d]));
    }
    strided_copy(cx, &out, source)
}

/// Channels laid out as blocks of an image, or, where `reverse`, blocks as channels.
pub(super) fn depth_to_space(cx: &Cx<'_>, reverse: bool) -> Planned {
    let [batch, channels, height, width] = cx.dims(0)?[..] else {
        return Err(cx.refuse_type(0, "it takes [n, c, h, w]"));
    };
    let block = cx.args.uint("blocksize", 1, 1 << 16)? as usize;
    let block_elements = block * block;
    let channels_are_outside = attributes::mode(cx)? == Some("CRD");
    let is_whole = match reverse {
        true => height.is_multiple_of(block) && width.is_multiple_of(block),
        false => channels.is_multiple_of(block_elements),
    };
    if !is_whole {
        let message = format!("is no multiple of blocks of {block}");
        return Err(cx.refuse(0, message, "choose another `blocksize`"));
    }

    // Six dimensions: those of the result are pairs of them, in another order.
    if reverse {
        let block_rows = height / block;
        let block_columns = width / block;
        let fine_dims = [batch, channels, block_rows, block, block_columns, block];
        let order = match channels_are_outside {
            true => [0, 1, 3, 5, 2, 4],
            false => [0, 3, 5, 1, 2, 4],
        };
        let out = [batch, channels * block_elements, block_rows, block_columns];
        return permuted(cx, &fine_dims, &order, &out);
    }
    let out_channels = channels / block_elements;
    let out = [batch, out_channels, height * block, width * block];
    match channels_are_outside {
        true => {
            let fine_dims = [batch, out_channels, block, block, height, width];
            permuted(cx, &fine_dims, &[0, 1, 4, 2, 5, 3], &out)
        }
        false => {
            let fine_dims = [batch, block, block, out_channels, height, width];
            permuted(cx, &fine_dims, &[0, 3, 4, 1, 5, 2], &out)
        }
    }
}

/// Ones on a diagonal.
pub(super) struct EyeSpec {
    dtype: DType,
    /// How far to the right of the main diagonal.
    pub(super) diagonal: i64,
}

impl EyeSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            dtype: attributes::result_dtype(cx, cx.dtype(0)?)?,
            diagonal: cx.args.int_or("k", 0)?,
        })
    }
}

pub(super) fn eye_like(cx: &Cx<'_>, spec: &EyeSpec) -> Planned {
    let matrix_dims = dims(&cx.operand(0)?.ty);
    let [_, columns] = matrix_dims[..] else {
        return Err(cx.refuse_type(0, "it takes matrices"));
    };
    let out = token(spec.dtype, &matrix_dims);
    by_element!(spec.dtype, eye_plan(out, spec.diagonal, columns))
}

fn eye_plan<T: Num>(out: TokenType, diagonal: i64, columns: usize) -> Planned {
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        for (i, element) in tensors.out::<T>(0).iter_mut().enumerate() {
            let row = (i / columns) as i64;
            let column = (i % columns) as i64;
            let is_on_diagonal = column - row == diagonal;
            *element = if is_on_diagonal { T::ONE } else { T::ZERO };
        }
    }))
}
