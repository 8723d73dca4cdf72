//! Results whose elements come from places of the operand, or are a fill value: padding, triangles.

use std::sync::Arc;

use super::super::attributes;
use super::super::cx::{Body, Cx, Plan, Planned, Tensors, token, volume};
use super::super::gpu::Moves;
use super::super::index::{Walk, strides};
use super::{FLOPS_OF_COPY, FLOPS_OF_STEP, size_of_dtype};
use zbmd_op::OpError;

/// What stands for the fill value in a table of places.
const FILL: u32 = u32::MAX;

/// A tensor made of places of operand 0, or of a fill value, chosen when the kernel is made.
struct Chosen {
    /// Element of the operand for each element of the result, or [`FILL`].
    places: Vec<u32>,
    size: usize,
    /// Operand with the fill value, zeros if it is missing.
    fill: usize,
}

impl Body for Chosen {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.bytes(0);
        let output = tensors.out_bytes(0);
        let zeros = [0; 8];
        // A fill value that is not connected is zero bytes, which are 0 or false in every type.
        let given_fill = tensors.bytes(self.fill).get(..self.size);
        let fill = given_fill.unwrap_or(&zeros[..self.size]);
        match self.size {
            1 => choose::<1>(&self.places, input, fill, output),
            2 => choose::<2>(&self.places, input, fill, output),
            4 => choose::<4>(&self.places, input, fill, output),
            _ => choose::<8>(&self.places, input, fill, output),
        }
    }
}

/// Copies the elements at these places, of so many bytes each.
fn choose<const SIZE: usize>(places: &[u32], input: &[u8], fill: &[u8], output: &mut [u8]) {
    let (elements, _) = input.as_chunks::<SIZE>();
    let (chosen, _) = output.as_chunks_mut::<SIZE>();
    let fill = *fill.first_chunk().unwrap_or(&[0; SIZE]);
    for (element, &place) in chosen.iter_mut().zip(places) {
        // No operand has as many elements as FILL.
        *element = elements.get(place as usize).copied().unwrap_or(fill);
    }
}

/// A result of dimensions `out` by a rule from an element's index to its place; made only where the kernel is.
fn chosen_plan(
    cx: &Cx<'_>,
    out: Vec<usize>,
    fill: usize,
    rule: impl Fn(&[usize]) -> Option<usize> + Send + Sync + 'static,
) -> Planned {
    let size = size_of_dtype(cx, 0)?;
    let ty = token(cx.dtype(0)?, &out);
    let max_places = zbmd_ir::limits::MAX_TABLE_ELEMENTS;
    if ty.elements() > max_places {
        return Err(Cx::other(
            format!("the result would be {ty}, {} elements", ty.elements()),
            format!("the limit is {max_places}, a place for each"),
        ));
    }

    let flops = FLOPS_OF_STEP * volume(&out) as f64;
    let table = Arc::new(move || places_by_rule(&out, &rule));
    let moves = Moves::Chosen {
        table: table.clone(),
        fill,
    };
    let make = move || {
        Ok(Box::new(Chosen {
            places: table(),
            size,
            fill,
        }) as Box<dyn Body>)
    };
    Ok(Plan::lazy(vec![ty], make).moves(moves).flops(flops))
}

/// The place of each element of a result, in order.
fn places_by_rule(out: &[usize], rule: impl Fn(&[usize]) -> Option<usize>) -> Vec<u32> {
    let out_strides = strides(out);
    let mut index = vec![0; out.len()];
    let mut places = Vec::with_capacity(volume(out));
    for number in 0..volume(out) {
        let mut rest = number;

        // The number in mixed radix: i_d = ⌊rest / stride_d⌋, the slowest dimension first.
        for (coordinate, stride) in index.iter_mut().zip(&out_strides) {
            *coordinate = rest / stride;
            rest %= stride;
        }
        places.push(rule(&index).map_or(FILL, |place| place as u32));
    }
    places
}

/// Padding of each dimension.
pub(crate) struct PadSpec {
    mode: PadMode,
    /// Elements before the first one; fewer than none where it cuts off.
    pub(crate) before: Vec<i64>,
    /// Dimensions of the result.
    out: Vec<usize>,
}

/// What padding is made of.
#[derive(Clone, Copy, PartialEq)]
enum PadMode {
    /// A fill value.
    Constant,
    /// The outermost element.
    Edge,
    /// The elements mirrored, the outermost of them once.
    Reflect,
    /// The elements from the other end on.
    Wrap,
}

impl PadMode {
    fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(match attributes::mode(cx)? {
            Some("edge") => Self::Edge,
            Some("reflect") => Self::Reflect,
            Some("wrap") => Self::Wrap,
            _ => Self::Constant,
        })
    }

    /// The element of so many that stands at a place, which may be before the first or behind the last.
    fn source(self, place: i64, length: i64) -> Option<i64> {
        match self {
            Self::Constant => (0..length).contains(&place).then_some(place),
            Self::Edge => Some(place.clamp(0, length - 1)),
            Self::Reflect if length == 1 => Some(0),
            Self::Reflect => {
                // A mirror image repeats after going there and back, with neither end repeated.
                let period = 2 * (length - 1);
                let within_period = place.rem_euclid(period);
                Some(within_period.min(period - within_period))
            }
            Self::Wrap => Some(place.rem_euclid(length)),
        }
    }
}

impl PadSpec {
    pub(crate) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let input_dims = cx.dims(0)?;
        let rank = input_dims.len();
        let pads = cx.ints(1)?.unwrap_or_default();
        let axes = cx.ints(3)?.unwrap_or_else(|| (0..rank as i64).collect());
        let axis_count = axes.len();
        if pads.len() != 2 * axis_count {
            let message = format!("has {} numbers", pads.len());
            return Err(cx.refuse(1, message, format!("two for each of {axis_count} axes")));
        }

        let mode = PadMode::of(cx)?;
        let mut before = vec![0_i64; rank];
        let mut out = input_dims.clone();
        for (i, &given_axis) in axes.iter().enumerate() {
            let axis = cx.axis(given_axis, rank)?;
            // ONNX has all begins first, then all ends. Sums saturate, as pads may be any i64.
            before[axis] = pads[i];
            let padded = (input_dims[axis] as i64)
                .saturating_add(pads[i])
                .saturating_add(pads[i + axis_count]);
            let size = usize::try_from(padded).ok();
            out[axis] = size.filter(|s| *s <= u32::MAX as usize).ok_or_else(|| {
                let message = format!("makes dimension {axis} {padded} long");
                cx.refuse(1, message, "it removes or adds too much")
            })?;
            if input_dims[axis] == 0 && mode != PadMode::Constant {
                let message = "is empty along a padded axis";
                return Err(cx.refuse(0, message, "use the mode `constant`"));
            }
        }
        Ok(Self { mode, before, out })
    }
}

pub(crate) fn pad(cx: &Cx<'_>, spec: &PadSpec) -> Planned {
    let input_dims = cx.dims(0)?;
    let before = spec.before.clone();
    let mode = spec.mode;

    // What only grows by a constant keeps its rows whole; anything else is looked up element by element.
    let only_adds = before.iter().all(|&b| b >= 0)
        && spec
            .out
            .iter()
            .zip(&input_dims)
            .all(|(out, own)| out >= own);
    if mode == PadMode::Constant && only_adds {
        return pad_rows(cx, &input_dims, spec);
    }

    let input_strides = strides(&input_dims);
    chosen_plan(cx, spec.out.clone(), 2, move |index| {
        let mut place = 0;
        for (d, &i) in index.iter().enumerate() {
            let source = mode.source(i as i64 - before[d], input_dims[d] as i64)?;
            place += source as usize * input_strides[d];
        }
        Some(place)
    })
}

/// Rows of the operand copied into a result that is filled first.
fn pad_rows(cx: &Cx<'_>, input_dims: &[usize], spec: &PadSpec) -> Planned {
    let size = size_of_dtype(cx, 0)?;
    let out_strides = strides(&spec.out);

    // Where the operand's first element comes to lie: Σ before_d · stride_d.
    let first_element = spec
        .before
        .iter()
        .zip(&out_strides)
        .fold(0_usize, |place, (&before, stride)| {
            place.saturating_add(stride.saturating_mul(before as usize))
        });

    let row_bytes = input_dims.last().copied().unwrap_or(1) * size;
    let line_dims = &input_dims[..input_dims.len().saturating_sub(1)];
    let line_strides = out_strides[..line_dims.len()].iter();
    let line_steps: Vec<isize> = line_strides.map(|&stride| stride as isize).collect();
    let walk = Walk::new(line_dims, [line_steps], [first_element as isize])?;
    let body = move |tensors: &mut Tensors<'_>| {
        let input = tensors.bytes(0);
        let output = tensors.out_bytes(0);
        let fill = tensors.bytes(2);
        // A fill of zero bytes is the usual case, and one memset.
        if fill.iter().take(size).any(|&byte| byte != 0) {
            let elements = output.chunks_exact_mut(size);
            elements.for_each(|element| element.copy_from_slice(&fill[..size]));
        } else {
            output.fill(0);
        }

        walk.each(|first_row, [first_place]| {
            for i in 0..walk.inner {
                let start = (first_place + i * walk.step[0] as usize) * size;
                let row = &input[(first_row + i) * row_bytes..][..row_bytes];
                output[start..start + row_bytes].copy_from_slice(row);
            }
        });
    };
    let outs = vec![token(cx.dtype(0)?, &spec.out)];
    Ok(Plan::new(outs, body).flops(FLOPS_OF_COPY * volume(&spec.out) as f64))
}

pub(crate) fn center_crop_pad(cx: &Cx<'_>) -> Planned {
    let input_dims = cx.dims(0)?;
    let rank = input_dims.len();
    let sizes = cx.operand_sizes(1)?;
    let axes = attributes::axes(cx, rank)?.unwrap_or_else(|| (0..rank).collect());
    if axes.len() != sizes.len() {
        let message = format!("has {} numbers", sizes.len());
        let help = format!("one for each of {} axes", axes.len());
        return Err(cx.refuse(1, message, help));
    }
    let mut out = input_dims.clone();
    for (&axis, &size) in axes.iter().zip(&sizes) {
        out[axis] = size;
    }

    // An odd element more is padded, or cut off, behind.
    let shifts: Vec<i64> = out
        .iter()
        .zip(&input_dims)
        .map(|(&size, &own)| match size >= own {
            true => -((size - own) as i64 / 2),
            false => (own - size) as i64 / 2,
        })
        .collect();
    let input_strides = strides(&input_dims);
    chosen_plan(cx, out, usize::MAX, move |index| {
        let mut place = 0;
        for (d, &i) in index.iter().enumerate() {
            let source = i as i64 + shifts[d];
            // A place beside the operand is padding.
            if !(0..input_dims[d] as i64).contains(&source) {
                return None;
            }
            place += source as usize * input_strides[d];
        }
        Some(place)
    })
}

/// The upper or lower triangle of matrices, zeros elsewhere.
pub(crate) fn trilu(cx: &Cx<'_>) -> Planned {
    let input_dims = cx.dims(0)?;
    let first_diagonal = cx.ints(1)?.and_then(|k| k.first().copied());
    let diagonal = first_diagonal.unwrap_or(0);
    let keeps_upper = cx.flag("upper", true)?;
    if input_dims.len() < 2 {
        return Err(cx.refuse_type(0, "it takes matrices"));
    }
    let input_strides = strides(&input_dims);
    chosen_plan(cx, input_dims, usize::MAX, move |index| {
        let rank = index.len();
        // Column − row: 0 on the main diagonal, positive above it.
        let off_diagonal = index[rank - 1] as i64 - index[rank - 2] as i64;
        let is_kept = match keeps_upper {
            true => off_diagonal >= diagonal,
            false => off_diagonal <= diagonal,
        };
        let coordinates = index.iter().zip(&input_strides);
        is_kept.then(|| coordinates.map(|(i, stride)| i * stride).sum())
    })
}
