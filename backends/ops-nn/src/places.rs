//! Ops that take elements from, or put them at, places that indices say: all dtypes, by the size of their elements.

use zbmd_ir::{DType, TokenType};

use super::attributes;
use super::cx::{
    AxisSpec, Cx, Plan, Planned, Tensors, by_num, computed, expect_count, index_at, token, volume,
};
use super::index::{AxisView, strides};
use super::movement::size_of_dtype;
use super::num::Num;
use zbmd_op::OpError;

/// An index that may count from the end; what is outside is brought to the nearest place, never read there.
fn wrapped(index: i64, length: usize) -> usize {
    let length = length as i64;
    let place = match index < 0 {
        true => index.saturating_add(length),
        false => index,
    };
    place.clamp(0, Ord::max(length - 1, 0)) as usize
}

/// Places along an axis of operand 0 that operand 1 names.
pub(super) fn gather(cx: &Cx<'_>, spec: &AxisSpec) -> Planned {
    let dims = cx.dims(0)?;
    let index_dims = cx.dims(1)?;
    let index_dtype = cx.dtype(1)?;
    let view = AxisView::of(&dims, spec.axis);
    let block_bytes = view.inner * size_of_dtype(cx, 0)?;
    let index_count = volume(&index_dims);
    // The dimensions of the indices take the place of the axis.
    let out_dims = [&dims[..spec.axis], &index_dims, &dims[spec.axis + 1..]].concat();

    let body = move |tensors: &mut Tensors<'_>| {
        let input = tensors.bytes(0);
        let indices = tensors.bytes(1);
        let output = tensors.out_bytes(0);
        for outer in 0..view.outer {
            for i in 0..index_count {
                let place = wrapped(index_at(indices, index_dtype, i), view.length);
                // Everything behind the axis is one block of bytes, whatever its elements are.
                let from = (outer * view.length + place) * block_bytes;
                let to = (outer * index_count + i) * block_bytes;
                output[to..][..block_bytes].copy_from_slice(&input[from..][..block_bytes]);
            }
        }
    };
    let outs = vec![token(cx.dtype(0)?, &out_dims)];
    Ok(Plan::new(outs, body).flops(0.25 * volume(&out_dims) as f64))
}

/// Single elements of a tensor that indices name along one axis, while their own places say the rest.
struct ElementPlaces {
    axis: usize,
    /// Elements along the axis.
    length: usize,
    strides: Vec<usize>,
    /// Strides of the tensor of indices.
    index_strides: Vec<usize>,
    index_dtype: DType,
}

impl ElementPlaces {
    fn new(dims: &[usize], index_dims: &[usize], axis: usize, index_dtype: DType) -> Self {
        Self {
            axis,
            length: dims[axis],
            strides: strides(dims),
            index_strides: strides(index_dims),
            index_dtype,
        }
    }

    /// The element that index number `i` names.
    fn place(&self, indices: &[u8], i: usize) -> usize {
        let index = index_at(indices, self.index_dtype, i);
        let mut place = wrapped(index, self.length) * self.strides[self.axis];
        let mut rest = i;
        for (d, index_stride) in self.index_strides.iter().enumerate() {
            if d != self.axis {
                place += rest / index_stride * self.strides[d];
            }
            rest %= index_stride;
        }
        place
    }
}

pub(super) fn gather_elements(cx: &Cx<'_>, spec: &AxisSpec) -> Planned {
    let dims = cx.dims(0)?;
    let out_dims = cx.dims(1)?;
    let axis = spec.axis;
    let fits = out_dims.len() == dims.len()
        && (0..dims.len()).all(|d| d == axis || out_dims[d] <= dims[d]);
    if !fits {
        return Err(cx.refuse_type(1, format!("`x` is {}", cx.operand(0)?.ty)));
    }

    let size = size_of_dtype(cx, 0)?;
    let places = ElementPlaces::new(&dims, &out_dims, axis, cx.dtype(1)?);
    let body = move |tensors: &mut Tensors<'_>| {
        let input = tensors.bytes(0);
        let indices = tensors.bytes(1);
        let output = tensors.out_bytes(0);
        for (i, element) in output.chunks_exact_mut(size).enumerate() {
            let from = places.place(indices, i) * size;
            element.copy_from_slice(&input[from..][..size]);
        }
    };
    Ok(Plan::new(vec![token(cx.dtype(0)?, &out_dims)], body))
}

/// Blocks of a tensor that lists of indices name: one index for each of some dimensions.
struct BlockPlaces {
    /// Sizes and strides of these dimensions.
    dims: Vec<usize>,
    strides: Vec<usize>,
    index_dtype: DType,
}

impl BlockPlaces {
    fn new(dims: &[usize], indexed: std::ops::Range<usize>, index_dtype: DType) -> Self {
        Self {
            dims: dims[indexed.clone()].to_vec(),
            strides: strides(dims)[indexed].to_vec(),
            index_dtype,
        }
    }

    /// The first element of the block that list number `i` names.
    fn place(&self, indices: &[u8], i: usize) -> usize {
        let depth = self.dims.len();
        let coordinates = (0..depth).map(|d| {
            let index = index_at(indices, self.index_dtype, i * depth + d);
            wrapped(index, self.dims[d]) * self.strides[d]
        });
        coordinates.sum()
    }
}

/// Blocks at lists of indices.
pub(super) struct GatherBlocksSpec {
    /// Dimensions that indices and data share.
    pub(super) batch_dims: usize,
}

impl GatherBlocksSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let batch_dims = cx.args.uint_or("batch_dims", 0, 0, 8)? as usize;
        Ok(Self { batch_dims })
    }
}

pub(super) fn gather_nd(cx: &Cx<'_>, spec: &GatherBlocksSpec) -> Planned {
    let dims = cx.dims(0)?;
    let index_dims = cx.dims(1)?;
    let batch_rank = spec.batch_dims;
    let Some((&depth, list_dims)) = index_dims.split_last() else {
        return Err(cx.refuse(1, "is a scalar", "it takes lists of indices"));
    };
    // The data's dimensions are those of the batch, those that a list names, and those of a block.
    let block_rank = batch_rank + depth;
    let fits = batch_rank <= list_dims.len()
        && block_rank <= dims.len()
        && dims[..batch_rank] == list_dims[..batch_rank];
    if !fits {
        return Err(cx.refuse_type(1, format!("`x` is {}", cx.operand(0)?.ty)));
    }

    let size = size_of_dtype(cx, 0)?;
    let block_bytes = volume(&dims[block_rank..]) * size;
    // Lists of a batch look only into that batch's part of the data.
    let batch_lists = volume(&list_dims[batch_rank..]).max(1);
    let batch_elements = volume(&dims[batch_rank..]);
    let places = BlockPlaces::new(&dims, batch_rank..block_rank, cx.dtype(1)?);
    let body = move |tensors: &mut Tensors<'_>| {
        let input = tensors.bytes(0);
        let indices = tensors.bytes(1);
        let output = tensors.out_bytes(0);
        for (i, block) in output.chunks_exact_mut(block_bytes.max(1)).enumerate() {
            let batch_start = i / batch_lists * batch_elements;
            let from = (batch_start + places.place(indices, i)) * size;
            block.copy_from_slice(&input[from..][..block_bytes]);
        }
    };
    let out_dims = [list_dims, &dims[block_rank..]].concat();
    Ok(Plan::new(vec![token(cx.dtype(0)?, &out_dims)], body))
}

/// How an update joins what is there.
#[derive(Clone, Copy)]
pub(super) enum Join {
    Set,
    Add,
    Mul,
    Max,
    Min,
}

impl Join {
    fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(match attributes::reduction(cx)?.unwrap_or("none") {
            "none" => Join::Set,
            "add" => Join::Add,
            "mul" => Join::Mul,
            "max" => Join::Max,
            "min" => Join::Min,
            other => {
                let known_words = ["none", "add", "mul", "max", "min"];
                return Err(attributes::refuse_reduction(cx, other, &known_words));
            }
        })
    }

    fn joined<T: Num>(self, old: T, new: T) -> T {
        match self {
            Join::Set => new,
            Join::Add => old.add(new),
            Join::Mul => old.mul(new),
            Join::Max => old.max(new),
            Join::Min => old.min(new),
        }
    }
}

/// Updates put where indices say.
pub(super) struct ScatterSpec {
    pub(super) join: Join,
    /// The axis of single elements; none where lists of indices name blocks.
    pub(super) axis: Option<usize>,
}

impl ScatterSpec {
    pub(super) fn of_elements(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            axis: Some(cx.axis_param(0, cx.dims(0)?.len())?),
            join: Join::of(cx)?,
        })
    }

    pub(super) fn of_blocks(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            axis: None,
            join: Join::of(cx)?,
        })
    }
}

/// Operands: the tensor, the indices, the updates.
pub(super) fn scatter_elements(cx: &Cx<'_>, spec: &ScatterSpec) -> Planned {
    let dims = cx.dims(0)?;
    let index_dims = cx.dims(1)?;
    let axis = spec.axis.unwrap_or(0);
    let fits = index_dims.len() == dims.len()
        && (0..dims.len()).all(|d| d == axis || index_dims[d] <= dims[d]);
    if !fits || cx.dims(2)? != index_dims || cx.dtype(2)? != cx.dtype(0)? {
        let help = "updates and indices have one shape within that of `x`";
        return Err(cx.refuse_type(2, help));
    }
    let places = ElementPlaces::new(&dims, &index_dims, axis, computed(cx.dtype(1)?));
    let out = cx.operand(0)?.ty.clone();
    by_num!(cx.dtype(0)?, scatter_elements_plan(out, spec.join, places))
}

fn scatter_elements_plan<T: Num>(out: TokenType, join: Join, places: ElementPlaces) -> Planned {
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        let indices = tensors.bytes(1);
        let updates = tensors.get::<T>(2);
        let output = tensors.out::<T>(0);
        output.copy_from_slice(tensors.get::<T>(0));
        for (i, &update) in updates.iter().enumerate() {
            let element = &mut output[places.place(indices, i)];
            *element = join.joined(*element, update);
        }
    }))
}

/// Operands: the tensor, the lists of indices, the updates.
pub(super) fn scatter_nd(cx: &Cx<'_>, spec: &ScatterSpec) -> Planned {
    let dims = cx.dims(0)?;
    let index_dims = cx.dims(1)?;
    let Some((&depth, list_dims)) = index_dims.split_last() else {
        return Err(cx.refuse(1, "is a scalar", "it takes lists of indices"));
    };
    let fits = depth <= dims.len()
        && cx.dims(2)? == [list_dims, &dims[depth..]].concat()
        && cx.dtype(2)? == cx.dtype(0)?;
    if !fits {
        let help = "one block of `x` for each list of indices";
        return Err(cx.refuse_type(2, help));
    }
    let places = BlockPlaces::new(&dims, 0..depth, computed(cx.dtype(1)?));
    let block_length = volume(&dims[depth..]);
    let out = cx.operand(0)?.ty.clone();
    by_num!(
        cx.dtype(0)?,
        scatter_blocks_plan(out, spec.join, places, block_length)
    )
}

fn scatter_blocks_plan<T: Num>(
    out: TokenType,
    join: Join,
    places: BlockPlaces,
    block_length: usize,
) -> Planned {
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        let indices = tensors.bytes(1);
        let updates = tensors.get::<T>(2);
        let output = tensors.out::<T>(0);
        output.copy_from_slice(tensors.get::<T>(0));
        // Likewise in the order of the updates, since lists may repeat.
        for (i, block_updates) in updates.chunks_exact(block_length.max(1)).enumerate() {
            let block = &mut output[places.place(indices, i)..][..block_length];
            for (element, &update) in block.iter_mut().zip(block_updates) {
                *element = join.joined(*element, update);
            }
        }
    }))
}

/// Writes an update into a cache along an axis, for each batch where its index says.
#[derive(Clone, Copy)]
pub(super) struct CacheWriteSpec {
    pub(super) axis: usize,
    /// Whether what runs over the end goes on at the beginning.
    pub(super) circular: bool,
}

impl CacheWriteSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            axis: cx.axis_param(-2, cx.dims(0)?.len())?,
            circular: attributes::mode(cx)? == Some("circular"),
        })
    }

    /// Where along the axis a place of the update goes.
    fn place(&self, place: i64, length: usize) -> usize {
        match self.circular {
            true => place.rem_euclid(length as i64) as usize,
            false => wrapped(Ord::max(place, 0), length),
        }
    }
}

/// Operands: the cache, the update, the first place of each batch.
pub(super) fn tensor_scatter(cx: &Cx<'_>, spec: &CacheWriteSpec) -> Planned {
    let dims = cx.dims(0)?;
    let update_dims = cx.dims(1)?;
    let axis = spec.axis;
    let has_room = |d: usize| match d == axis {
        true => update_dims[d] <= dims[d],
        false => update_dims[d] == dims[d],
    };
    let fits = update_dims.len() == dims.len() && axis > 0 && (0..dims.len()).all(has_room);
    if !fits || cx.dtype(1)? != cx.dtype(0)? {
        return Err(cx.refuse_type(1, format!("the cache is {}", cx.operand(0)?.ty)));
    }
    let index_dtype = cx.opt(2).map_or(DType::I64, |indices| indices.ty.dtype);
    if cx.opt(2).is_some() {
        expect_count(cx, 2, &[dims[0]], index_dtype)?;
    }

    let view = AxisView::of(&dims, axis);
    let update_length = update_dims[axis];
    // Lines of a batch, each of which the axis goes along.
    let batch_lines = (view.outer / dims[0].max(1)).max(1);
    let block_bytes = view.inner * size_of_dtype(cx, 0)?;
    let rule = *spec;
    let body = move |tensors: &mut Tensors<'_>| {
        let update = tensors.bytes(1);
        let indices = tensors.bytes(2);
        let output = tensors.out_bytes(0);
        output.copy_from_slice(tensors.bytes(0));
        for outer in 0..view.outer {
            let start = match indices {
                [] => 0,
                _ => index_at(indices, index_dtype, outer / batch_lines),
            };
            for k in 0..update_length {
                let place = rule.place(start.saturating_add(k as i64), view.length);
                let to = (outer * view.length + place) * block_bytes;
                let from = (outer * update_length + k) * block_bytes;
                output[to..][..block_bytes].copy_from_slice(&update[from..][..block_bytes]);
            }
        }
    };
    Ok(Plan::new(vec![cx.operand(0)?.ty.clone()], body))
}

/// Operands: the indices, the depth, the values for off and on.
pub(super) fn one_hot(cx: &Cx<'_>, spec: &AxisSpec) -> Planned {
    let index_dims = cx.dims(0)?;
    let index_dtype = cx.dtype(0)?;
    let floats = cx.floats(1)?.unwrap_or_default();
    let given_depth = floats.first().copied().unwrap_or(0.0);
    if !(1.0..=1e9).contains(&given_depth) {
        return Err(cx.refuse(1, format!("is {given_depth}"), "a depth of at least 1"));
    }
    let depth = given_depth as usize;
    let size = size_of_dtype(cx, 2)?;
    expect_count(cx, 2, &[2], cx.dtype(2)?)?;

    let outer_count = volume(&index_dims[..spec.axis]);
    let inner_count = volume(&index_dims[spec.axis..]);
    let mut out_dims = index_dims;
    out_dims.insert(spec.axis, depth);
    let body = move |tensors: &mut Tensors<'_>| {
        let indices = tensors.bytes(0);
        let output = tensors.out_bytes(0);
        // The operand holds both values: off, then on.
        let (off, on) = tensors.bytes(2)[..2 * size].split_at(size);
        let elements = output.chunks_exact_mut(size);
        elements.for_each(|element| element.copy_from_slice(off));

        for outer in 0..outer_count {
            for inner in 0..inner_count {
                let index = index_at(indices, index_dtype, outer * inner_count + inner);
                let place = match index < 0 {
                    true => index.saturating_add(depth as i64),
                    false => index,
                };
                // An index that does not exist leaves all of its elements off.
                if (0..depth as i64).contains(&place) {
                    let to = (outer * depth + place as usize) * inner_count + inner;
                    output[to * size..][..size].copy_from_slice(on);
                }
            }
        }
    };
    Ok(Plan::new(vec![token(cx.dtype(2)?, &out_dims)], body))
}

/// The beginnings of sequences reversed.
pub(super) struct ReverseSpec {
    /// 0 or 1.
    pub(super) batch_axis: usize,
    time_axis: usize,
}

impl ReverseSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            batch_axis: cx.args.uint_or("batch_axis", 1, 0, 1)? as usize,
            time_axis: cx.args.uint_or("time_axis", 0, 0, 1)? as usize,
        })
    }
}

/// Operands: the sequences, and how many steps of each are reversed.
pub(super) fn reverse_sequence(cx: &Cx<'_>, spec: &ReverseSpec) -> Planned {
    let dims = cx.dims(0)?;
    let batch_axis = spec.batch_axis;
    let time_axis = spec.time_axis;
    if dims.len() < 2 || batch_axis == time_axis || cx.dims(1)? != [dims[batch_axis]] {
        let help = "one length for each batch; different axes";
        return Err(cx.refuse_type(1, help));
    }

    let length_dtype = cx.dtype(1)?;
    let block_bytes = volume(&dims[2..]) * size_of_dtype(cx, 0)?;
    let rows = dims[0];
    let columns = dims[1];
    let steps = dims[time_axis];
    let body = move |tensors: &mut Tensors<'_>| {
        let input = tensors.bytes(0);
        let lengths = tensors.bytes(1);
        let output = tensors.out_bytes(0);
        for row in 0..rows {
            for column in 0..columns {
                // Rows are batches and columns steps, or the other way round.
                let batch = if batch_axis == 0 { row } else { column };
                let step = if batch_axis == 0 { column } else { row };
                let length = index_at(lengths, length_dtype, batch).clamp(0, steps as i64);
                let length = length as usize;
                // Only the first `length` steps are turned round; those behind them stay.
                let source_step = match step < length {
                    true => length - 1 - step,
                    false => step,
                };

                let from_block = match batch_axis {
                    0 => row * columns + source_step,
                    _ => source_step * columns + column,
                };
                let to_block = row * columns + column;
                let from = &input[from_block * block_bytes..][..block_bytes];
                output[to_block * block_bytes..][..block_bytes].copy_from_slice(from);
            }
        }
    };
    Ok(Plan::new(vec![cx.operand(0)?.ty.clone()], body))
}
