//! Convolutions and pools of images whose channels come last: `[n, height, width, channels]`.
//!
//! Not ONNX operators: a pass of the compiler puts them in the place of those. Lanes run along channels, so that a
//! window's row is one run of memory: a convolution multiplies rows of pixels, in place, with packed weights
//! (Dukhan 2019, The Indirect Convolution Algorithm, arXiv 1907.02129, with offsets in place of pointers), no
//! columns are gathered, and sums leave the registers once, with bias, added tensor and bounds applied.

mod activation;
mod affine;
mod depthwise;
mod pool;
mod rows;
mod winograd;

use std::borrow::Cow;
use std::ops::Range;

use zbmd_ir::{DType, TokenType};

use super::aligned::AlignedFloats;
use super::attributes;
use super::conv::check_tables;
use super::cx::{Body, Cx, Operand, Plan, Planned, Tensors, constant_f32, token, volume};
use super::gemm::{Act, Tile, Weights};
use super::window::Window;
use activation::{Finish, SumActivation};
pub(super) use affine::affine;
use depthwise::Depthwise;
pub(super) use pool::{global, pool};
pub(super) use rows::{FilterLayout, grid_places};
use rows::{Rows, packed_filters};
use winograd::Winograd;
use zbmd_op::OpError;

/// Whether a convolution is made with few multiplications, by transformed tiles.
const WINOGRAD: &str = "winograd";

/// A batch of images.
#[derive(Clone)]
struct Image {
    batch: usize,
    channels: usize,
    window: Window,
}

/// The dimensions of operand 0, a batch of images: batch, height, width, channels.
fn image_dims(cx: &Cx<'_>) -> Result<[usize; 4], OpError> {
    cx.expect(0, &[DType::F32])?;
    match cx.dims(0)?[..] {
        [batch, height, width, channels] if batch > 0 && channels > 0 => {
            Ok([batch, height, width, channels])
        }
        _ => Err(cx.refuse_type(0, "[n, height, width, channels]")),
    }
}

/// Convolution with constant weights as ONNX has them: [filters, channels / groups, height, width].
pub(super) fn conv(cx: &Cx<'_>) -> Planned {
    let [batch, height, width, channels] = image_dims(cx)?;
    let layout = filter_layout(cx, 1, channels)?;
    let filters = layout.groups * layout.group_filters;
    let window = Window::new(cx, &[height, width], &layout.kernel)?;
    check_tables(&window, volume(&layout.kernel), channels)?;

    let out_dims = [batch, window.output[1], window.output[2], filters];
    let out = token(DType::F32, &out_dims);
    let bias = cx.opt(2).cloned();
    if let Some(bias) = &bias
        && bias.dims() != [filters]
    {
        return Err(cx.refuse_type(2, format!("it is [{filters}]")));
    }
    if let Some(added) = cx.opt(3)
        && added.ty != out
    {
        return Err(cx.refuse_type(3, format!("the result is {out_dims:?}")));
    }

    let filter_weights = layout.group_channels * volume(&layout.kernel);
    let flops = 2.0 * volume(&out_dims) as f64 * filter_weights as f64;
    let operands = ConvOperands {
        image: Image {
            batch,
            channels,
            window,
        },
        weights: cx.operand(1)?.clone(),
        bias,
        act: attributes::activation(cx)?,
    };
    // Each element meets one filter only: there is no product of matrices to make.
    let is_depthwise = layout.group_channels == 1 && layout.group_filters == 1;
    if is_depthwise {
        return Ok(depthwise_plan(out, operands).flops(3.0 * flops));
    }
    if cx.flag(WINOGRAD, false)? {
        let window = &operands.image.window;
        if !winograd::is_possible(window, &layout) {
            let message = "is 1, of windows that are not 3 × 3 or 5 × 5 pixels, step by more than one, or see groups of channels";
            return Err(cx.args.error(WINOGRAD, message, "leave it out"));
        }
        let operations = winograd::operations(window, &layout) * batch as f64;
        return Ok(winograd_plan(out, operands, layout).products(operations));
    }
    Ok(rows_plan(out, operands, layout).products(flops))
}

/// How the weights, operand `position`, are laid out, refused unless they fit so many channels.
pub(super) fn filter_layout(
    cx: &Cx<'_>,
    position: usize,
    channels: usize,
) -> Result<FilterLayout, OpError> {
    let weights = cx.operand(position)?;
    let groups = attributes::groups(cx)?;
    match weights.dims()[..] {
        [filters, group_channels, kernel_height, kernel_width]
            if group_channels.checked_mul(groups) == Some(channels)
                && filters > 0
                && filters.is_multiple_of(groups) =>
        {
            Ok(FilterLayout {
                groups,
                group_channels,
                group_filters: filters / groups,
                kernel: [kernel_height, kernel_width],
            })
        }
        _ => {
            let message = format!("is {}, the input {}", weights.ty, cx.operand(0)?.ty);
            let help = format!("[filters, channels / {groups}, kernel…]");
            Err(cx.refuse(position, message, help))
        }
    }
}

/// What the kernel of a convolution is made from.
#[derive(Clone)]
struct ConvOperands {
    image: Image,
    weights: Operand,
    bias: Option<Operand>,
    act: Act,
}

impl ConvOperands {
    fn bias_floats(&self) -> Option<Vec<f32>> {
        let bias = self.bias.as_ref()?;
        constant_f32(bias).map(Cow::into_owned)
    }
}

/// One filter for each channel.
fn depthwise_plan(out: TokenType, operands: ConvOperands) -> Plan {
    Plan::lazy(vec![out], move || {
        let bias = operands.bias_floats();
        let weights = constant_f32(&operands.weights).unwrap_or_default();
        let body = Depthwise::new(operands.image, &weights, bias, operands.act);
        Ok(Box::new(body) as Box<dyn Body>)
    })
}

/// Rows of pixels times packed weights.
fn rows_plan(out: TokenType, operands: ConvOperands, layout: FilterLayout) -> Plan {
    packed_plan(
        out,
        operands,
        layout.packed_len(),
        move |weights| packed_filters(weights, layout),
        move |operands, packed, tile| Rows::new(operands, layout, packed, tile),
    )
}

/// Transformed tiles of pixels times transformed weights.
fn winograd_plan(out: TokenType, operands: ConvOperands, layout: FilterLayout) -> Plan {
    packed_plan(
        out,
        operands,
        winograd::packed_len(&layout),
        move |weights| winograd::transformed_filters(weights, &layout),
        move |operands, packed, tile| Winograd::new(operands, layout, packed, tile),
    )
}

/// A convolution whose body reads its weights as `len` floats that `pack` makes of them.
fn packed_plan<B: Body + 'static>(
    out: TokenType,
    operands: ConvOperands,
    len: usize,
    pack: impl Fn(&[f32]) -> AlignedFloats + Copy + Send + Sync + 'static,
    body: impl Fn(&ConvOperands, Weights, Tile) -> B + Copy + Send + Sync + 'static,
) -> Plan {
    let packed = move |weights: &Operand| pack(&constant_f32(weights).unwrap_or_default());
    let own = operands.clone();
    let weights = operands.weights.clone();

    let plan = Plan::in_variants(vec![out], &Tile::ALL, move |tile| {
        let kept = operands.weights.packed.clone();
        let weights = Weights::new(kept, len, || packed(&operands.weights))?;
        Ok(Box::new(body(&operands, weights, tile)) as Box<dyn Body>)
    });
    plan.over([3])
        .needs_scratch(move || body(&own, Weights::default(), Tile::default()).scratch_bytes())
        .packs(1, move || packed(&weights))
}

/// What is added to sums: a tensor of the result's size, if there is one.
#[derive(Clone, Copy)]
enum Addend<'a> {
    None,
    Operand(&'a [f32]),
    /// The result is written over it: each element is read before it is written, and only for itself.
    Result,
}

impl<'a> Addend<'a> {
    /// Operand 3 of a convolution.
    fn of(tensors: &Tensors<'a>) -> Self {
        match tensors.over() {
            Some(_) => Self::Result,
            None => tensors.opt::<f32>(3).map_or(Self::None, Self::Operand),
        }
    }

    /// The first of `length` elements that are added to the result number `n` of a batch, which begins at `result`; or null.
    fn start(self, n: usize, result: *mut f32, length: usize) -> *const f32 {
        match self {
            Self::None => std::ptr::null(),
            Self::Operand(added) => added[n * length..][..length].as_ptr(),
            Self::Result => result.cast_const(),
        }
    }
}

/// Kernel rows (dimension 1) or columns (2) that are inside the image, for an output place.
fn kernel_within(window: &Window, d: usize, place: usize) -> Range<usize> {
    // Kernel element k is over image element first + k·dilation − before.
    let first = place * window.stride[d];
    let dilation = window.dilation[d];
    let image_start = window.before[d];
    let image_end = window.input[d] + image_start;
    let low = image_start.saturating_sub(first).div_ceil(dilation);
    let high = image_end.saturating_sub(first).div_ceil(dilation);
    low.min(window.kernel[d])..high.min(window.kernel[d])
}

/// An output pixel: its number in the image, row and column.
#[derive(Clone, Copy)]
pub(super) struct OutputPixel {
    pub(super) number: usize,
    row: usize,
    column: usize,
}

impl OutputPixel {
    #[inline(always)]
    fn new(window: &Window, row: usize, column: usize) -> Self {
        Self {
            number: row * window.output[2] + column,
            row,
            column,
        }
    }

    /// The pixel so many columns further.
    #[inline(always)]
    fn right_by(self, columns: usize) -> Self {
        Self {
            number: self.number + columns,
            row: self.row,
            column: self.column + columns,
        }
    }

    /// The number of the input pixel under a kernel element that is inside the image.
    #[inline(always)]
    pub(super) fn input_under(
        self,
        window: &Window,
        kernel_row: usize,
        kernel_column: usize,
    ) -> usize {
        let input_row = self.row * window.stride[1] + kernel_row * window.dilation[1];
        let input_column = self.column * window.stride[2] + kernel_column * window.dilation[2];
        (input_row - window.before[1]) * window.input[2] + (input_column - window.before[2])
    }
}

/// Kernel rows and columns that are inside the image.
#[derive(Clone, Copy)]
pub(super) struct Near<'a> {
    pub(super) rows: &'a Range<usize>,
    pub(super) columns: &'a Range<usize>,
}

/// Calls `f` with every output pixel of some lines, and the kernel rows and columns within the image.
#[inline(always)]
pub(super) fn each_pixel(
    window: &Window,
    lines: Range<usize>,
    mut f: impl FnMut(OutputPixel, Near<'_>),
) {
    let [_, _, output_width] = window.output;
    for row in lines {
        let kernel_rows = kernel_within(window, 1, row);
        for column in 0..output_width {
            let pixel = OutputPixel::new(window, row, column);
            let near = Near {
                rows: &kernel_rows,
                columns: &kernel_within(window, 2, column),
            };
            f(pixel, near);
        }
    }
}
