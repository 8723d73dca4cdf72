//! Convolutions of quantised images with their channels last.

use zbmd_ir::{DType, TokenType};

use super::super::conv::{check_tables, padded_dims};
use super::super::cx::{Body, Cx, Plan, Planned, Tensors, expect_count, token, volume};
use super::super::gemm::Tile;
use super::super::last::{FilterLayout, filter_layout, grid_places};
use super::super::window::Window;
use super::add::{Addition, AdditionOperands};
use super::depthwise::{Depthwise, MAX_TAPS, channel_sizes, tap_count};
use super::lanes::{Bounds, QUAD};
use super::packed::{FilterSizes, PackedWeights};
use super::rows::{Multiplication, Rows, Sum, Target};
use super::{
    BYTES, ByteRange, ConstantWeights, Quantisation, SIGN, constant_ints, multiplier, scale,
    scales, zero_point,
};
use zbmd_op::OpError;

/// Bytes that vectors may read behind the last element of what is copied for them.
pub(super) const SLACK: usize = 64;

/// The operands of a quantised convolution: those of `QLinearConv`.
const WEIGHTS: usize = 3;
const WEIGHT_SCALES: usize = 4;
const WEIGHT_ZEROS: usize = 5;
const RESULT_SCALE: usize = 6;
const RESULT_ZERO: usize = 7;
const BIAS: usize = 8;
/// A tensor that is added to the result, its scale and zero point, and those of the sum.
const ADDED: usize = 9;
const ADDED_SCALE: usize = 10;
const ADDED_ZERO: usize = 11;
const SUM_SCALE: usize = 12;
const SUM_ZERO: usize = 13;

/// Convolution of [n, height, width, channels] with constant weights as ONNX has them, all but the image constant.
pub(in super::super) fn conv_channels_last(cx: &Cx<'_>) -> Planned {
    let input = Quantisation::of(cx, 0, 1, 2)?;
    let [batch, height, width, channels] = match cx.dims(0)?[..] {
        [batch, height, width, channels] if batch > 0 && channels > 0 => {
            [batch, height, width, channels]
        }
        _ => return Err(cx.refuse_type(0, "[n, height, width, channels]")),
    };
    let layout = filter_layout(cx, WEIGHTS, channels)?;
    let filters = layout.groups * layout.group_filters;
    let window = Window::new(cx, &[height, width], &layout.kernel)?;
    check_tables(&window, volume(&layout.kernel), channels)?;

    let weight_type = cx.expect(WEIGHTS, &BYTES)?;
    let result_type = cx.expect(RESULT_ZERO, &BYTES)?;
    expect_count(cx, WEIGHT_SCALES, &[1, filters], DType::F32)?;
    expect_count(cx, WEIGHT_ZEROS, &[1, filters], weight_type)?;
    expect_count(cx, BIAS, &[filters], DType::I32)?;
    let result_scale = scale(cx, RESULT_SCALE)?;
    let result_zero = zero_point(cx, RESULT_ZERO)?;
    let multipliers: Vec<f32> = scales(cx, WEIGHT_SCALES)?
        .into_iter()
        .map(|weight_scale| multiplier(input.scale, weight_scale, result_scale))
        .collect();

    let out_dims = [batch, window.output[1], window.output[2], filters];
    let filter_weights = layout.group_channels * volume(&layout.kernel);
    let flops = 2.0 * volume(&out_dims) as f64 * filter_weights as f64;
    let request = ConvRequest {
        image: ByteImage::new(channels, window, input),
        weights: ConstantWeights {
            operand: cx.operand(WEIGHTS)?.clone(),
            zeros: cx.opt(WEIGHT_ZEROS).cloned(),
            filters,
            filter_step: filter_weights,
        },
        layout,
        bias: constant_ints(cx, BIAS)?,
        multipliers,
        bounds: ByteRange::of(cx, result_type)?.bounds(result_zero),
        addition: addition(cx, &token(result_type, &out_dims))?,
    };
    let outs = vec![token(result_type, &out_dims)];
    let kept = request.clone();
    let pack = move || {
        kept.packed()
            .map(|packed| packed.to_bytes())
            .unwrap_or_default()
    };

    if request.is_depthwise() {
        let plan = Plan::lazy(outs, move || {
            Ok(Box::new(Depthwise::new(request)?) as Box<dyn Body>)
        });
        return Ok(plan.flops(flops).packs_bytes(WEIGHTS, pack));
    }
    let plan = Plan::in_variants(outs, &Tile::ALL, move |tile| {
        Ok(Box::new(ByteConv::new(request, tile)?) as Box<dyn Body>)
    });
    // Four products of bytes take the time of one of floats.
    Ok(plan
        .over([ADDED])
        .products(flops / 4.0)
        .packs_bytes(WEIGHTS, pack))
}

/// How the tensor is added that is added to a result of this type, if there is one.
fn addition(cx: &Cx<'_>, result: &TokenType) -> Result<Option<Addition>, OpError> {
    let Some(added) = cx.opt(ADDED) else {
        return Ok(None);
    };
    if added.ty != *result {
        return Err(cx.refuse_type(ADDED, format!("the result is {result}")));
    }
    let operands = AdditionOperands {
        left_scale: RESULT_SCALE,
        right: [ADDED_SCALE, ADDED_ZERO],
        result: [SUM_SCALE, SUM_ZERO],
        range: ["sum_min", "sum_max"],
    };
    Addition::of(cx, &operands).map(Some)
}

/// What the kernel of a convolution is made from.
#[derive(Clone)]
pub(super) struct ConvRequest {
    pub(super) image: ByteImage,
    pub(super) layout: FilterLayout,
    weights: ConstantWeights,
    pub(super) bias: Option<Vec<i32>>,
    /// One for all filters, or one for each.
    pub(super) multipliers: Vec<f32>,
    pub(super) bounds: Bounds,
    addition: Option<Addition>,
}

impl ConvRequest {
    /// Whether each channel has one filter, and few enough taps for the kernel of those, which adds nothing.
    fn is_depthwise(&self) -> bool {
        let has_one_filter = self.layout.group_channels == 1 && self.layout.group_filters == 1;
        has_one_filter && tap_count(self.layout.kernel) <= MAX_TAPS && self.addition.is_none()
    }

    /// Taps of a kernel row that are one stretch of memory: all, where there is one group without gaps between taps.
    fn taps_of_run(&self) -> usize {
        let is_row_one_run = self.layout.groups == 1 && self.image.window.dilation[2] == 1;
        if is_row_one_run {
            self.layout.kernel[1]
        } else {
            1
        }
    }

    /// The weights in the order of the kernel.
    pub(super) fn packed(&self) -> Result<PackedWeights, OpError> {
        let layout = self.layout;
        let kernel_elements = layout.kernel[0] * layout.kernel[1];
        if self.is_depthwise() {
            // Every channel is a filter: panels are blocks of channels.
            let sizes = channel_sizes(layout.groups, layout.kernel);
            let run_length = sizes.run_length;
            return self.weights.packed(sizes, |channel, run, element| {
                channel * kernel_elements + run * run_length + element
            });
        }

        let taps_of_run = self.taps_of_run();
        let sizes = FilterSizes {
            groups: layout.groups,
            group_filters: layout.group_filters,
            runs: kernel_elements / taps_of_run,
            run_length: taps_of_run * layout.group_channels,
            has_tiles: layout.groups == 1,
        };
        self.weights.packed(sizes, |filter, run, element| {
            // ONNX has channels outside, taps inside: turned over, as pixels have channels inside.
            let tap = run * taps_of_run + element / layout.group_channels;
            let channel = element % layout.group_channels;
            (filter * layout.group_channels + channel) * kernel_elements + tap
        })
    }
}

/// Images of bytes, and how each is read: in place, or as a copy with a border.
#[derive(Clone)]
pub(super) struct ByteImage {
    pub(super) channels: usize,
    pub(super) window: Window,
    pub(super) input: Quantisation,
    /// Height and width with the border.
    pub(super) padded: [usize; 2],
    has_border: bool,
}

impl ByteImage {
    fn new(channels: usize, window: Window, input: Quantisation) -> Self {
        let (dims, has_border) = padded_dims(&window);
        Self {
            channels,
            window,
            input,
            padded: [dims[1], dims[2]],
            has_border,
        }
    }

    /// Whether it must be copied for kernels that read whole vectors, of which `is_whole` says whether they end with the
    /// image.
    pub(super) fn needs_copy(&self, is_whole: bool) -> bool {
        self.has_border || self.input.is_signed || !is_whole
    }

    /// Bytes of an image as it comes.
    pub(super) fn bytes(&self) -> usize {
        self.window.input[1] * self.window.input[2] * self.channels
    }

    /// Bytes of a copy.
    pub(super) fn copy_bytes(&self) -> usize {
        self.padded[0] * self.padded[1] * self.channels + SLACK
    }

    /// Copies an image into one with a border of its zero point, bytes of i8 as those of u8.
    pub(super) fn copy(&self, image: &[u8], copy: &mut [u8]) {
        let window = &self.window;
        let row_bytes = window.input[2] * self.channels;
        let left_border = window.before[2] * self.channels;
        let border = self.input.zero as u8;
        let mut lines = copy.chunks_mut(self.padded[1] * self.channels);

        let lines_before = lines.by_ref().take(window.before[1]);
        lines_before.for_each(|line| line.fill(border));
        for (row, line) in image.chunks_exact(row_bytes).zip(lines.by_ref()) {
            line[..left_border].fill(border);
            let inside = &mut line[left_border..left_border + row_bytes];
            copy_unsigned(row, inside, self.input.is_signed);
            line[left_border + row_bytes..].fill(border);
        }
        // What is left are the lines behind, and the slack.
        lines.for_each(|line| line.fill(border));
    }
}

/// Copies bytes, those of i8 as those of u8 that are 128 more.
pub(super) fn copy_unsigned(from: &[u8], to: &mut [u8], is_signed: bool) {
    to.copy_from_slice(from);
    if is_signed {
        to.iter_mut().for_each(|byte| *byte ^= SIGN);
    }
}

/// A convolution of many channels.
struct ByteConv {
    image: ByteImage,
    rows: Rows,
    packed: PackedWeights,
    biases: Vec<i32>,
    multipliers: Vec<f32>,
    bounds: Bounds,
    addition: Option<Addition>,
    needs_copy: bool,
}

impl ByteConv {
    fn new(request: ConvRequest, tile: Tile) -> Result<Self, OpError> {
        let packed = request.packed()?;
        let taps_of_run = request.taps_of_run();
        let ConvRequest {
            image,
            layout,
            bias,
            multipliers,
            bounds,
            addition,
            ..
        } = request;
        let channels = image.channels;
        let width = image.padded[1];

        let [kernel_height, kernel_width] = layout.kernel;
        let run_steps = [image.window.dilation[1], image.window.dilation[2]];
        let run_grid = [kernel_height, kernel_width / taps_of_run];
        let runs = grid_places(run_grid, run_steps, width, channels);
        let [_, output_height, output_width] = image.window.output;
        let spot_steps = [image.window.stride[1], image.window.stride[2]];
        let spots = grid_places([output_height, output_width], spot_steps, width, channels);

        let sizes = packed.sizes;
        let needs_copy = image.needs_copy(sizes.run_length.is_multiple_of(QUAD));
        let input_bytes = match needs_copy {
            true => image.copy_bytes(),
            false => image.bytes(),
        };
        let rows = Rows {
            spots,
            runs,
            group_channels: layout.group_channels,
            sizes,
            passes: packed.passes,
            tile,
            tiles: None,
        };
        Ok(Self {
            needs_copy,
            biases: packed.biases(bias.as_deref(), image.input.zero),
            multipliers: packed.by_lane(&multipliers),
            bounds,
            addition,
            rows: rows.in_tiles(image.window.stride[2] * channels, input_bytes),
            packed,
            image,
        })
    }
}

impl Body for ByteConv {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.bytes(0);
        let output = tensors.out_bytes(0);
        let scratch = tensors.scratch::<u8>();
        let is_over = tensors.over().is_some();
        let added = match is_over {
            true => &[],
            false => tensors.opt::<u8>(ADDED).unwrap_or_default(),
        };
        let result_bytes = self.rows.result_elements();
        let results = output.chunks_exact_mut(result_bytes);

        let images = input.chunks_exact(self.image.bytes());
        for (n, (image, result)) in images.zip(results).enumerate() {
            let source = match self.needs_copy {
                true => {
                    self.image.copy(image, scratch);
                    &*scratch
                }
                false => image,
            };
            self.rows.multiply(Multiplication {
                input: source,
                weights: self.packed.bytes(),
                biases: &self.biases,
                row_terms: None,
                target: Target::Bytes {
                    sum: self.addition.map(|addition| Sum {
                        addition,
                        added: match is_over {
                            true => None,
                            false => Some(&added[n * result_bytes..][..result_bytes]),
                        },
                    }),
                    to: result,
                    multipliers: &self.multipliers,
                    bounds: self.bounds,
                },
            });
        }
    }

    fn scratch_bytes(&self) -> usize {
        match self.needs_copy {
            true => self.image.copy_bytes(),
            false => 0,
        }
    }
}
