//! Convolutions: by products of matrices over gathered windows, depthwise ones directly.

mod causal;
mod depthwise;
mod few;
mod gathered;
mod integer;
mod transposed;

use zbmd_ir::{DType, TokenType};

use super::attributes;
use super::cx::{Body, Cx, FLOATS, FloatBody, Operand, Plan, Planned, Tensors, token, volume};
use super::gemm::{Act, Tile, Weights};
use super::matmul::{constant_weights, packed_right};
use super::num::Float;
use super::window::Window;
use depthwise::Depthwise;
use few::{FewOutputs, is_few};
use gathered::Gathered;
use zbmd_op::OpError;

pub(super) use causal::{CausalConvSpec, causal_conv};
pub(super) use gathered::padded_dims;
pub(super) use integer::{conv_integer, qlinear_conv};
pub(super) use transposed::{TransposedConvSpec, conv_transpose};

/// Sizes of a convolution.
#[derive(Clone)]
pub(super) struct ConvShape {
    pub(super) batch: usize,
    pub(super) channels: usize,
    pub(super) filters: usize,
    pub(super) groups: usize,
    pub(super) window: Window,
}

impl ConvShape {
    /// The sizes that two operands, the input and the weights, have.
    fn of(cx: &Cx<'_>, input_operand: usize, weights_operand: usize) -> Result<Self, OpError> {
        let input_dims = cx.dims(input_operand)?;
        let weight_dims = cx.dims(weights_operand)?;
        let groups = attributes::groups(cx)?;
        let fits = input_dims.len() >= 3
            && weight_dims.len() == input_dims.len()
            && weight_dims[1].checked_mul(groups) == Some(input_dims[1])
            && weight_dims[0].is_multiple_of(groups)
            && weight_dims[0] > 0
            && input_dims[0] > 0;
        if !fits {
            let input_type = &cx.operand(input_operand)?.ty;
            let weights_type = &cx.operand(weights_operand)?.ty;
            let message = format!("is {weights_type}, the input {input_type}");
            let help = format!("[filters, channels / {groups}, kernel…]");
            return Err(cx.refuse(weights_operand, message, help));
        }
        Ok(Self {
            batch: input_dims[0],
            channels: input_dims[1],
            filters: weight_dims[0],
            groups,
            window: Window::new(cx, &input_dims[2..], &weight_dims[2..])?,
        })
    }

    /// Channels that each filter sees.
    fn group_channels(&self) -> usize {
        self.channels / self.groups
    }

    /// Filters that see the same channels.
    fn group_filters(&self) -> usize {
        self.filters / self.groups
    }

    fn out(&self, dtype: DType) -> TokenType {
        let dims = [&[self.batch, self.filters], self.window.out_dims()].concat();
        token(dtype, &dims)
    }

    fn flops(&self) -> f64 {
        let output_plane = self.window.output_plane() as f64;
        let filter_weights = self.window.kernel_elements() as f64 * self.group_channels() as f64;
        2.0 * self.batch as f64 * self.filters as f64 * output_plane * filter_weights
    }
}

/// A convolution of floats, and an activation.
pub(super) struct ConvSpec {
    pub(super) shape: ConvShape,
    pub(super) act: Act,
}

impl ConvSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        cx.expect(0, &FLOATS)?;
        Ok(Self {
            shape: ConvShape::of(cx, 0, 1)?,
            act: attributes::activation(cx)?,
        })
    }
}

pub(super) fn conv(cx: &Cx<'_>, spec: &ConvSpec) -> Planned {
    let dtype = cx.dtype(0)?;
    let shape = spec.shape.clone();
    check_bias(cx, 2, shape.filters)?;
    let group_channels = shape.group_channels();
    let filter_weights = shape
        .window
        .kernel_elements()
        .saturating_mul(group_channels);
    check_tables(&shape.window, filter_weights, group_channels)?;

    let out = shape.out(dtype);
    if let Some(added) = cx.opt(3)
        && added.ty != out
    {
        return Err(cx.refuse_type(3, format!("the result is {out}")));
    }

    let flops = shape.flops();
    let outs = vec![out];
    let act = spec.act;
    // The packed kernels are for f32; f64 is rare enough for plain loops.
    if dtype == DType::F64 {
        return Ok(Plan::float(dtype, outs, Direct(shape)).flops(8.0 * flops));
    }

    // One filter for each channel has no product of matrices in it. Its kernel knows planes only, not volumes.
    let is_depthwise = shape.channels == shape.groups && shape.filters == shape.groups;
    if is_depthwise && shape.window.input[0] == 1 && shape.window.kernel[0] == 1 {
        let make = move || Ok(Box::new(Depthwise::new(shape, act)) as Box<dyn Body>);
        return Ok(Plan::lazy(outs, make).flops(3.0 * flops));
    }
    let weights = cx.operand(1)?;
    if weights.data.is_some() && is_few(&shape) {
        return Ok(few_outputs_plan(outs, shape, weights.clone(), act).products(flops));
    }
    let make = move |tile| Ok(Box::new(Gathered::new(shape, act, tile)) as Box<dyn Body>);
    // Gathering the image's elements takes as long as the product of small ones.
    Ok(Plan::in_variants(outs, &Tile::ALL, make).flops(flops))
}

/// Few outputs for each filter, whose constant weights are packed ahead.
fn few_outputs_plan(outs: Vec<TokenType>, shape: ConvShape, weights: Operand, act: Act) -> Plan {
    let layout = few::weights_layout(&shape);
    let unpacked = weights.clone();
    let own_shape = shape.clone();
    let plan = Plan::in_variants(outs, &Tile::ALL, move |tile| {
        let packed = constant_weights(&weights, layout, 1.0)?;
        Ok(Box::new(FewOutputs::new(shape, packed, act, tile)))
    });

    let bytes = move || {
        FewOutputs::new(own_shape.clone(), Weights::default(), act, Tile::default()).scratch_bytes()
    };
    plan.needs_scratch(bytes)
        .packs(1, move || packed_right(&unpacked, layout, 1.0))
}

/// Refuses a convolution whose tables of places would be too large, one entry for each output and each of `weights`
/// weights of a filter, and one whose padded input, of so many channels at a time, has places beyond 32 bits.
pub(super) fn check_tables(
    window: &Window,
    weights: usize,
    channels: usize,
) -> Result<(), OpError> {
    let outputs = window.output_plane();
    // Sums saturate: sizes come from the model, and a wrapped one would pass as small.
    let entries = outputs.saturating_add(weights) as u64;
    if entries > zbmd_ir::limits::MAX_TABLE_ELEMENTS {
        return Err(Cx::other(
            format!(
                "{outputs} outputs and {weights} weights of a filter make tables of {entries} places"
            ),
            format!("the limit is {}", zbmd_ir::limits::MAX_TABLE_ELEMENTS),
        ));
    }

    let (padded, _) = padded_dims(window);
    let elements = volume(&padded).saturating_mul(channels);
    if elements > u32::MAX as usize {
        return Err(Cx::other(
            format!("the padded input has {elements} elements"),
            format!("the limit is {}: pad less, or split the input", u32::MAX),
        ));
    }
    Ok(())
}

/// Refuses a bias, operand `i`, that is not one number for each filter.
fn check_bias(cx: &Cx<'_>, i: usize, filters: usize) -> Result<(), OpError> {
    match cx.opt(i) {
        Some(bias) if bias.dims() != [filters] => {
            Err(cx.refuse_type(i, format!("it is [{filters}]")))
        }
        _ => Ok(()),
    }
}

/// Plain loops: f64.
struct Direct(ConvShape);

impl FloatBody for Direct {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let weights = tensors.get::<F>(1);
        let bias = tensors.opt::<F>(2);
        let output = tensors.out::<F>(0);

        let shape = &self.0;
        let window = &shape.window;
        let input_plane = window.input_plane();
        let output_plane = window.output_plane();
        let kernel_elements = window.kernel_elements();
        let group_channels = shape.group_channels();

        for batch in 0..shape.batch {
            for filter in 0..shape.filters {
                let first_channel = filter / shape.group_filters() * group_channels;
                let first = (batch * shape.channels + first_channel) * input_plane;
                window.each(|n, place| {
                    let mut sum = bias.map_or(F::ZERO, |b| b[filter]);
                    for c in 0..group_channels {
                        let filter_plane = (filter * group_channels + c) * kernel_elements;
                        let channel_start = first + c * input_plane;
                        window.cover(place, |k, i| {
                            sum += weights[filter_plane + k] * input[channel_start + i]
                        });
                    }
                    output[(batch * shape.filters + filter) * output_plane + n] = sum;
                });
            }
        }
    }
}
