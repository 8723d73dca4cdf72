//! Transposed convolutions.

use super::super::attributes;
use super::super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token, volume};
use super::super::num::Float;
use super::super::window::{center_padding, in_three_dims};
use super::check_bias;
use zbmd_op::OpError;

/// A transposed convolution. Missing spatial dimensions in front are 1 wide.
#[derive(Clone)]
pub(crate) struct TransposedConvSpec {
    /// Spatial dimensions that the tensor really has.
    pub(crate) rank: usize,
    pub(crate) batch: usize,
    pub(crate) channels: usize,
    /// Filters of a group.
    pub(crate) per: usize,
    pub(crate) groups: usize,
    pub(crate) input: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) output: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) dilation: [usize; 3],
    /// Padding before each dimension.
    pub(crate) pads: [usize; 3],
}

impl TransposedConvSpec {
    pub(crate) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        cx.expect(0, &FLOATS)?;
        let input_dims = cx.dims(0)?;
        let weight_dims = cx.dims(1)?;
        let groups = attributes::groups(cx)?;
        let rank = input_dims.len().saturating_sub(2);
        let fits = (1..=3).contains(&rank)
            && weight_dims.len() == input_dims.len()
            && weight_dims[0] == input_dims[1]
            && input_dims[1].is_multiple_of(groups)
            && !weight_dims.contains(&0)
            && !input_dims.contains(&0);
        if !fits {
            let weights_type = &cx.operand(1)?.ty;
            let message = format!("is {weights_type}, the input {}", cx.operand(0)?.ty);
            return Err(cx.refuse(1, message, "[channels, filters / group, kernel…]"));
        }

        let sides = Sides::of(cx, &input_dims[2..], &weight_dims[2..])?;
        Ok(Self {
            batch: input_dims[0],
            channels: input_dims[1],
            per: weight_dims[1],
            groups,
            input: in_three_dims(&input_dims[2..], 1),
            kernel: in_three_dims(&weight_dims[2..], 1),
            output: in_three_dims(&sides.output, 1),
            stride: in_three_dims(&sides.stride, 1),
            dilation: in_three_dims(&sides.dilation, 1),
            pads: in_three_dims(&sides.pads[..rank], 0),
            rank,
        })
    }
}

/// What parameters say of each spatial dimension.
struct Sides {
    stride: Vec<usize>,
    dilation: Vec<usize>,
    /// Padding before each dimension, then behind each.
    pads: Vec<usize>,
    output: Vec<usize>,
}

impl Sides {
    fn of(cx: &Cx<'_>, input: &[usize], kernel: &[usize]) -> Result<Self, OpError> {
        let rank = input.len();
        let stride = attributes::strides(cx, rank)?;
        let dilation = attributes::dilations(cx, rank)?;
        let output_padding = cx.sizes("output_padding", rank, 0)?;
        let mut pads = attributes::pads(cx, rank)?;
        let auto_pad = attributes::auto_pad(cx)?;
        let output_shape = cx.args.ints_opt("output_shape")?;

        let mut output = Vec::new();
        for d in 0..rank {
            // What all kernels together cover: the result before padding is cut off.
            let full_size = stride[d]
                .saturating_mul(input[d] - 1)
                .saturating_add(output_padding[d])
                .saturating_add(dilation[d].saturating_mul(kernel[d] - 1))
                .saturating_add(1);

            // A result of a given size decides the padding; otherwise the padding decides the size.
            let asked_size = match (&output_shape, auto_pad) {
                (Some(shape), _) => Some(shape.get(d).copied().unwrap_or(0).max(0) as usize),
                (None, "SAME_UPPER" | "SAME_LOWER") => Some(input[d].saturating_mul(stride[d])),
                _ => None,
            };
            if let Some(size) = asked_size {
                // What the kernels cover beyond the asked size is cut off at both ends.
                let total = full_size.saturating_sub(size);
                let padding = center_padding(total, auto_pad == "SAME_UPPER");
                pads[d] = padding.before;
                pads[rank + d] = padding.after;
            }

            let padded_size = full_size.checked_sub(pads[d] + pads[rank + d]);
            let size = asked_size.or(padded_size);
            output.push(size.filter(|s| (1..1 << 31).contains(s)).ok_or_else(|| {
                let message = "leaves nothing, or the result is absurdly large";
                attributes::refuse_pads(cx, message, "pad less")
            })?);
        }
        Ok(Self {
            stride,
            dilation,
            pads,
            output,
        })
    }
}

/// The transposed convolution: every input element adds its weighted kernel to the output.
pub(crate) fn conv_transpose(cx: &Cx<'_>, spec: &TransposedConvSpec) -> Planned {
    let dtype = cx.dtype(0)?;
    let filters = spec.per * spec.groups;
    check_bias(cx, 2, filters)?;
    let out_dims = &spec.output[3 - spec.rank..];
    let shape = [&[spec.batch, filters], out_dims].concat();

    let inputs = spec.batch * spec.channels * volume(&spec.input);
    let flops = 8.0 * (inputs * spec.per * volume(&spec.kernel)) as f64;
    let body = spec.clone();
    Ok(Plan::float(dtype, vec![token(dtype, &shape)], body).flops(flops))
}

impl FloatBody for TransposedConvSpec {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let weights = tensors.get::<F>(1);
        let bias = tensors.opt::<F>(2);
        let output = tensors.out::<F>(0);

        let input_plane = volume(&self.input);
        let output_plane = volume(&self.output);
        let kernel_elements = volume(&self.kernel);
        let filters = self.per * self.groups;
        for (i, plane) in output.chunks_exact_mut(output_plane).enumerate() {
            // The sums of an output come one input element at a time: they begin with the bias.
            plane.fill(bias.map_or(F::ZERO, |b| b[i % filters]));
        }

        let group_channels = self.channels / self.groups;
        for batch in 0..self.batch {
            for channel in 0..self.channels {
                let channel_start = (batch * self.channels + channel) * input_plane;
                let channel_input = &input[channel_start..][..input_plane];
                // Weights are [channels, filters of a group, kernel]: filters count within a group.
                let first_filter = channel / group_channels * self.per;
                for f in 0..self.per {
                    let kernel_start = (channel * self.per + f) * kernel_elements;
                    let output_start = (batch * filters + first_filter + f) * output_plane;
                    self.spread(
                        channel_input,
                        &weights[kernel_start..][..kernel_elements],
                        &mut output[output_start..][..output_plane],
                    );
                }
            }
        }
    }
}

impl TransposedConvSpec {
    /// The place along dimension d to which kernel element `k` carries input element `i`, if the result has it.
    #[inline(always)]
    fn place(&self, d: usize, i: usize, k: usize) -> Option<usize> {
        let unpadded = i * self.stride[d] + k * self.dilation[d];
        unpadded
            .checked_sub(self.pads[d])
            .filter(|place| *place < self.output[d])
    }

    /// Adds the kernel times each element of a plane to a plane of the result.
    fn spread<F: Float>(&self, input: &[F], kernel: &[F], output: &mut [F]) {
        let [_, input_height, input_width] = self.input;
        let [kernel_depth, kernel_height, kernel_width] = self.kernel;
        let [_, output_height, output_width] = self.output;

        for (i, &element) in input.iter().enumerate() {
            let input_z = i / (input_height * input_width);
            let input_y = i / input_width % input_height;
            let input_x = i % input_width;
            for kz in 0..kernel_depth {
                // What falls into the padding is cut off.
                let Some(z) = self.place(0, input_z, kz) else {
                    continue;
                };
                for ky in 0..kernel_height {
                    let Some(y) = self.place(1, input_y, ky) else {
                        continue;
                    };
                    for kx in 0..kernel_width {
                        let Some(x) = self.place(2, input_x, kx) else {
                            continue;
                        };
                        output[(z * output_height + y) * output_width + x] +=
                            element * kernel[(kz * kernel_height + ky) * kernel_width + kx];
                    }
                }
            }
        }
    }
}
