//! Convolutions of bytes.

use zbmd_ir::DType;

use super::super::cx::{Cx, Plan, Planned, Tensors, expect_count, index_at};
use super::super::integer::{ByteRange, byte_of, multiplier};
use super::ConvShape;
use zbmd_op::OpError;

const BYTES: [DType; 2] = [DType::I8, DType::U8];

impl ConvShape {
    /// The sizes of a convolution of bytes.
    pub(crate) fn of_bytes(cx: &Cx<'_>) -> Result<Self, OpError> {
        cx.expect(0, &BYTES)?;
        cx.expect(1, &BYTES)?;
        Self::of(cx, 0, 1)
    }
}

/// Where a quantised tensor and its zero points are found.
#[derive(Clone, Copy)]
struct QuantisedTensor {
    operand: usize,
    dtype: DType,
    /// Operand of the zero points: one, or one for each filter; 0 where it is missing.
    zero_points: usize,
}

impl QuantisedTensor {
    /// An element, widened.
    fn element(self, byte: u8) -> i32 {
        match self.dtype {
            DType::I8 => i32::from(byte as i8),
            _ => i32::from(byte),
        }
    }

    fn zero_point(self, tensors: &Tensors<'_>, filter: usize) -> i32 {
        let bytes = tensors.bytes(self.zero_points);
        match bytes.len() {
            0 => 0,
            1 => index_at(bytes, self.dtype, 0) as i32,
            _ => index_at(bytes, self.dtype, filter) as i32,
        }
    }
}

/// Calls `put` with the place, the filter and the value of each sum of products of bytes less their zero points.
fn integer_sums(
    tensors: &Tensors<'_>,
    shape: &ConvShape,
    input: QuantisedTensor,
    weights: QuantisedTensor,
    mut put: impl FnMut(usize, usize, i32),
) {
    let input_bytes = tensors.bytes(input.operand);
    let weight_bytes = tensors.bytes(weights.operand);
    let window = &shape.window;
    let input_plane = window.input_plane();
    let output_plane = window.output_plane();
    let kernel_elements = window.kernel_elements();
    let group_channels = shape.group_channels();

    for batch in 0..shape.batch {
        for filter in 0..shape.filters {
            let input_zero = input.zero_point(tensors, 0);
            let weight_zero = weights.zero_point(tensors, filter);
            // A filter sees the channels of its own group only.
            let first_channel = filter / shape.group_filters() * group_channels;
            let first = (batch * shape.channels + first_channel) * input_plane;
            window.each(|n, place| {
                let mut sum = 0_i32;
                for c in 0..group_channels {
                    let filter_plane = (filter * group_channels + c) * kernel_elements;
                    let channel_start = first + c * input_plane;
                    window.cover(place, |k, i| {
                        let element = input.element(input_bytes[channel_start + i]);
                        let weight = weights.element(weight_bytes[filter_plane + k]);
                        let product = (element - input_zero).wrapping_mul(weight - weight_zero);
                        sum = sum.wrapping_add(product);
                    });
                }
                put(
                    (batch * shape.filters + filter) * output_plane + n,
                    filter,
                    sum,
                );
            });
        }
    }
}

pub(crate) fn conv_integer(cx: &Cx<'_>, shape: &ConvShape) -> Planned {
    let input = QuantisedTensor {
        operand: 0,
        dtype: cx.dtype(0)?,
        zero_points: 2,
    };
    let weights = QuantisedTensor {
        operand: 1,
        dtype: cx.dtype(1)?,
        zero_points: 3,
    };
    expect_count(cx, 2, &[1], input.dtype)?;
    expect_count(cx, 3, &[1, shape.filters], weights.dtype)?;

    let own_shape = shape.clone();
    let body = move |tensors: &mut Tensors<'_>| {
        let output = tensors.out::<i32>(0);
        integer_sums(tensors, &own_shape, input, weights, |place, _, sum| {
            output[place] = sum
        });
    };
    let outs = vec![shape.out(DType::I32)];
    Ok(Plan::new(outs, body).flops(8.0 * shape.flops()))
}

/// Operands: the input with scale and zero point, the weights with them, scale and zero point of the result, the bias.
pub(crate) fn qlinear_conv(cx: &Cx<'_>) -> Planned {
    let input = QuantisedTensor {
        operand: 0,
        dtype: cx.expect(0, &BYTES)?,
        zero_points: 2,
    };
    let weights = QuantisedTensor {
        operand: 3,
        dtype: cx.expect(3, &BYTES)?,
        zero_points: 5,
    };
    let result_dtype = cx.expect(7, &BYTES)?;
    for scale in [1, 4, 6] {
        cx.expect(scale, &[DType::F32])?;
    }

    let shape = ConvShape::of(cx, 0, 3)?;
    let filters = shape.filters;
    for (operand, counts, dtype) in [
        (1, [1, 1], DType::F32),
        (2, [1, 1], input.dtype),
        (4, [1, filters], DType::F32),
        (5, [1, filters], weights.dtype),
        (6, [1, 1], DType::F32),
        (7, [1, 1], result_dtype),
        (8, [filters, filters], DType::I32),
    ] {
        expect_count(cx, operand, &counts, dtype)?;
    }

    let range = ByteRange::of(cx, result_dtype)?;
    let flops = 8.0 * shape.flops();
    let outs = vec![shape.out(result_dtype)];
    let body = move |tensors: &mut Tensors<'_>| {
        let output = tensors.out_bytes(0);
        let input_scale = tensors.get::<f32>(1)[0];
        let weight_scales = tensors.get::<f32>(4);
        let result_scale = tensors.get::<f32>(6)[0];
        let zero = index_at(tensors.bytes(7), result_dtype, 0) as i32;
        let bias = tensors.opt::<i32>(8);
        integer_sums(tensors, &shape, input, weights, |place, filter, sum| {
            // ONNX quantises the bias by s_x · s_w with zero point 0: it adds to the sum as it is.
            let biased = sum.wrapping_add(bias.map_or(0, |b| b[filter]));
            let is_one_scale = weight_scales.len() == 1;
            let weight_scale = weight_scales[if is_one_scale { 0 } else { filter }];
            let factor = multiplier(input_scale, weight_scale, result_scale);
            output[place] = byte_of(biased as f32 * factor, range, zero);
        });
    };
    Ok(Plan::new(outs, body).flops(flops))
}
