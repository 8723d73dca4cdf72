//! Pools: the greatest element, the mean or the norm of each window.

use zbmd_ir::{DType, TokenType};

use super::attributes;
use super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, by_num, index_at, token, volume};
use super::index::strides;
use super::num::{Float, Num};
use super::window::Window;
use zbmd_op::OpError;

/// What becomes of the elements of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PoolKind {
    Max,
    Mean,
    /// The norm with that exponent.
    Norm(i64),
}

impl PoolKind {
    pub(super) fn norm(cx: &Cx<'_>) -> Result<Self, OpError> {
        attributes::any_norm_exponent(cx).map(Self::Norm)
    }

    /// The exponent of a norm; 0 for others.
    pub(super) fn exponent(self) -> i64 {
        match self {
            Self::Norm(exponent) => exponent,
            Self::Max | Self::Mean => 0,
        }
    }
}

/// A pool over windows.
pub(super) struct PoolSpec {
    pub(super) kind: PoolKind,
    pub(super) window: Window,
    /// Dimensions of the result.
    pub(super) out: Vec<usize>,
    /// Whether places are counted column by column.
    pub(super) by_columns: bool,
    /// Whether padding counts as elements of a mean.
    pub(super) counts_padding: bool,
}

impl PoolSpec {
    pub(super) fn of(cx: &Cx<'_>, kind: PoolKind) -> Result<Self, OpError> {
        let dims = cx.dims(0)?;
        if dims.len() < 3 {
            return Err(cx.refuse_type(0, "[n, channels, spatial…]"));
        }
        attributes::require_kernel_shape(cx)?;
        let kernel = attributes::kernel_shape(cx, dims.len() - 2)?;
        let window = Window::new(cx, &dims[2..], &kernel)?;
        Ok(Self {
            kind,
            out: [&dims[..2], window.out_dims()].concat(),
            window,
            by_columns: cx.args.int_or("storage_order", 0)? != 0,
            counts_padding: attributes::counts_padding(cx)?,
        })
    }

    pub(super) fn of_norm(cx: &Cx<'_>) -> Result<Self, OpError> {
        Self::of(cx, PoolKind::norm(cx)?)
    }

    fn flops(&self) -> f64 {
        3.0 * volume(&self.out) as f64 * self.window.kernel_elements() as f64
    }
}

/// Outputs: the greatest elements, and where they are in the input.
pub(super) fn max_pool(cx: &Cx<'_>, spec: &PoolSpec) -> Planned {
    let dtype = cx.dtype(0)?;
    let wanted = cx.wanted.iter();
    let outs: Vec<TokenType> = wanted
        .map(|&output| token(if output == 0 { dtype } else { DType::I64 }, &spec.out))
        .collect();
    let body = MaxPool {
        window: spec.window.clone(),
        by_columns: spec.by_columns,
        wants_values: cx.wants(0),
        wants_places: cx.wants(1),
    };
    Ok(by_num!(dtype, max_pool_plan(outs, body))?.flops(8.0 * spec.flops()))
}

fn max_pool_plan<T: Num>(outs: Vec<TokenType>, body: MaxPool) -> Planned {
    Ok(Plan::new(outs, move |tensors: &mut Tensors<'_>| {
        body.run::<T>(tensors);
    }))
}

struct MaxPool {
    window: Window,
    by_columns: bool,
    wants_values: bool,
    wants_places: bool,
}

impl MaxPool {
    fn run<T: Num>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<T>(0);
        let values = tensors.out_if::<T>(self.wants_values, 0);
        let places = tensors.out_if::<i64>(self.wants_places, usize::from(self.wants_values));
        if places.is_empty() {
            return max_of_rows(&self.window, input, values);
        }

        // Indices are of the whole tensor, so that each plane adds its own start.
        let input_plane = self.window.input_plane();
        let output_plane = self.window.output_plane();
        for (p, plane) in input.chunks_exact(input_plane).enumerate() {
            self.window.each(|n, output_place| {
                let best = self.place_of_max(plane, output_place);
                if let Some(value) = values.get_mut(p * output_plane + n) {
                    *value = plane[best];
                }
                let place = p * input_plane + self.counted_place(best);
                places[p * output_plane + n] = place as i64;
            });
        }
    }

    /// The first of the greatest elements of a window. A NaN is greater than all others.
    fn place_of_max<T: Num>(&self, plane: &[T], output_place: [usize; 3]) -> usize {
        let mut best: Option<usize> = None;
        self.window.cover(output_place, |_, i| {
            let is_better = best.is_none_or(|best| {
                plane[i] > plane[best] || (plane[i].is_nan() && !plane[best].is_nan())
            });
            if is_better {
                best = Some(i);
            }
        });
        best.unwrap_or(0)
    }

    /// The number of an element of a plane, in the order that is asked for.
    fn counted_place(&self, place: usize) -> usize {
        if !self.by_columns {
            return place;
        }
        let [_, height, width] = self.window.input;
        let z = place / (height * width);
        let y = place / width % height;
        let x = place % width;
        (z * width + x) * height + y
    }
}

/// The greatest of each window, a kernel element at a time over whole rows: rows are runs that vectors go through, while
/// windows are short and many.
fn max_of_rows<T: Num>(window: &Window, input: &[T], output: &mut [T]) {
    let [_, input_height, input_width] = window.input;
    let [output_depth, output_height, output_width] = window.output;
    // The neutral element of max: windows that lie in the padding alone keep it.
    output.fill(T::LEAST);

    let output_planes = output.chunks_exact_mut(window.output_plane());
    let planes = input.chunks_exact(window.input_plane()).zip(output_planes);
    for (plane, output_plane) in planes {
        let mut output_rows = output_plane.chunks_exact_mut(output_width);
        for output_z in 0..output_depth {
            for output_y in 0..output_height {
                let Some(output_row) = output_rows.next() else {
                    return;
                };
                for kz in 0..window.kernel[0] {
                    for ky in 0..window.kernel[1] {
                        let input_z = window.place(0, output_z, kz);
                        let input_y = window.place(1, output_y, ky);
                        // A kernel row that lies in the padding has nothing to compare with.
                        let (Some(z), Some(y)) = (input_z, input_y) else {
                            continue;
                        };
                        let row_start = (z * input_height + y) * input_width;
                        let input_row = &plane[row_start..][..input_width];
                        max_with_row(window, input_row, output_row);
                    }
                }
            }
        }
    }
}

/// All elements of a kernel row over one row of the input.
fn max_with_row<T: Num>(window: &Window, input_row: &[T], output_row: &mut [T]) {
    for kx in 0..window.kernel[2] {
        let shift = (kx * window.dilation[2]) as isize - window.before[2] as isize;
        max_with_shifted(input_row, output_row, window.stride[2], shift);
    }
}

/// Each output against the input element at `o·stride + shift`, where there is one.
#[inline]
fn max_with_shifted<T: Num>(input_row: &[T], output_row: &mut [T], stride: usize, shift: isize) {
    // Outputs whose element is in the row: from the first o with o·stride + shift ≥ 0.
    let first = if shift < 0 {
        shift.unsigned_abs().div_ceil(stride)
    } else {
        0
    };
    let start = usize::try_from((first * stride) as isize + shift).ok();
    let Some(elements) = start.and_then(|start| input_row.get(start..)) else {
        return;
    };
    let Some(outputs) = output_row.get_mut(first..) else {
        return;
    };

    if stride == 1 {
        outputs
            .iter_mut()
            .zip(elements)
            .for_each(|(y, &x)| *y = y.max(x));
    } else {
        outputs
            .iter_mut()
            .zip(elements.iter().step_by(stride))
            .for_each(|(y, &x)| *y = y.max(x));
    }
}

/// The mean or the norm of each window.
pub(super) fn mean_pool(cx: &Cx<'_>, spec: &PoolSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let body = MeanPool {
        window: spec.window.clone(),
        counts_padding: spec.counts_padding,
        exponent: spec.kind.exponent() as f64,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &spec.out)], body).flops(spec.flops()))
}

struct MeanPool {
    window: Window,
    /// Whether padding counts as elements.
    counts_padding: bool,
    /// Exponent of a norm; 0 for the mean.
    exponent: f64,
}

impl MeanPool {
    /// Elements that a window covers, padding included but nothing beyond it.
    fn padded_count(&self, output_place: [usize; 3]) -> usize {
        let sides = (0..3).map(|d| self.window.reached(d, output_place[d]));
        sides.product()
    }
}

impl FloatBody for MeanPool {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let output = tensors.out::<F>(0);
        let output_planes = output.chunks_exact_mut(self.window.output_plane());
        let planes = input.chunks_exact(self.window.input_plane());
        for (plane, output_plane) in planes.zip(output_planes) {
            self.window.each(|n, output_place| {
                let mut sum = F::ZERO;
                let mut covered_count = 0;
                self.window.cover(output_place, |_, i| {
                    covered_count += 1;
                    sum += match self.exponent {
                        0.0 => plane[i],
                        2.0 => plane[i] * plane[i],
                        exponent => plane[i].abs().powf(F::of(exponent)),
                    };
                });

                let count = match self.counts_padding {
                    true => self.padded_count(output_place),
                    false => covered_count,
                };
                output_plane[n] = match self.exponent {
                    0.0 => sum / F::of(count as f64),
                    exponent => sum.powf(F::of(1.0 / exponent)),
                };
            });
        }
    }
}

/// One window that covers everything.
pub(super) fn global(cx: &Cx<'_>, kind: &PoolKind) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    if dims.len() < 2 {
        return Err(cx.refuse_type(0, "[n, channels, spatial…]"));
    }
    // Spatial dimensions stay, each 1 long.
    let mut out_dims = dims[..2].to_vec();
    out_dims.resize(dims.len(), 1);
    let body = GlobalPool {
        plane: volume(&dims[2..]),
        is_max: *kind == PoolKind::Max,
        exponent: kind.exponent() as f64,
    };
    let outs = vec![token(dtype, &out_dims)];
    Ok(Plan::float(dtype, outs, body).flops(volume(&dims) as f64))
}

struct GlobalPool {
    /// Elements of a channel.
    plane: usize,
    is_max: bool,
    /// Exponent of a norm; 0 for the mean.
    exponent: f64,
}

impl GlobalPool {
    /// The mean or the norm of a channel, in f64 and eight chains.
    fn joined<F: Float>(&self, channel: &[F]) -> f64 {
        // Eight chains hide the latency of the additions, and fix their order whatever the vectors are.
        let mut sums = [0.0; 8];
        for (i, element) in channel.iter().enumerate() {
            sums[i % 8] += match self.exponent {
                0.0 => element.f64(),
                exponent => element.f64().abs().powf(exponent),
            };
        }
        let sum: f64 = sums.iter().sum();
        match self.exponent {
            0.0 => sum / channel.len() as f64,
            exponent => sum.powf(1.0 / exponent),
        }
    }
}

impl FloatBody for GlobalPool {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let output = tensors.out::<F>(0);
        for (channel, result) in input.chunks_exact(self.plane.max(1)).zip(output) {
            *result = match self.is_max {
                true => channel.iter().fold(F::LEAST, |max, &v| max.max(v)),
                false => F::of(self.joined(channel)),
            };
        }
    }
}

/// Puts the greatest elements back to where they came from.
pub(super) fn max_unpool(cx: &Cx<'_>) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let rank = dims.len().saturating_sub(2);
    let kernel = attributes::kernel_shape(cx, rank)?;
    let stride = attributes::strides(cx, rank)?;
    let pads = attributes::pads(cx, rank)?;
    if rank == 0 || cx.dims(1)? != dims || dims.contains(&0) {
        return Err(cx.refuse_type(1, format!("`x` is {}", cx.operand(0)?.ty)));
    }

    // What the pool must have come from: each window as far as its stride, the last one whole.
    let mut inferred_dims = dims[..2].to_vec();
    for d in 0..rank {
        let windows_reach = (dims[2 + d] - 1)
            .saturating_mul(stride[d])
            .saturating_add(kernel[d]);
        inferred_dims.push(windows_reach.saturating_sub(pads[d] + pads[rank + d]));
    }
    let out_dims: Vec<usize> = match cx.ints(2)? {
        Some(shape) => shape.iter().map(|&d| Ord::max(d, 0) as usize).collect(),
        None => inferred_dims.clone(),
    };

    // A larger result is allowed: `output_shape` tells apart inputs that pool to the same shape.
    let has_room = out_dims.len() == dims.len()
        && out_dims
            .iter()
            .zip(&inferred_dims)
            .all(|(own, least)| own >= least);
    if !has_room {
        let help = format!("at least {inferred_dims:?}");
        return Err(cx.refuse(2, format!("is {out_dims:?}"), help));
    }
    let body = Unpool {
        index_dtype: cx.expect(1, &[DType::I64])?,
        out_strides: strides(&out_dims),
        inferred_dims,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &out_dims)], body))
}

struct Unpool {
    /// Dimensions of the tensor that the indices count through.
    inferred_dims: Vec<usize>,
    out_strides: Vec<usize>,
    index_dtype: DType,
}

impl FloatBody for Unpool {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let indices = tensors.bytes(1);
        let output = tensors.out::<F>(0);
        output.fill(F::ZERO);

        for (i, &element) in input.iter().enumerate() {
            // Indices come from data: one that is negative or too large writes nothing.
            let Ok(index) = usize::try_from(index_at(indices, self.index_dtype, i)) else {
                continue;
            };
            // The index's coordinates, the last dimension first, times the strides of the result.
            let mut rest = index;
            let mut place = 0;
            for (dim, stride) in self.inferred_dims.iter().zip(&self.out_strides).rev() {
                place += rest % dim * stride;
                rest /= dim;
            }
            // What is left beyond the slowest dimension means that the index was behind the end.
            let is_inside = rest == 0;
            if is_inside {
                output[place] = element;
            }
        }
    }
}
