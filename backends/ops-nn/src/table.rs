//! The tensor ops: operands and outputs with their types, parameters, an example, and the function that plans each.
//!
//! `zbmd_op::types` says how operands, outputs and types are written.

use super::attention::{AttentionSpec, RotarySpec};
use super::conv::{CausalConvSpec, ConvShape, ConvSpec, TransposedConvSpec};
use super::cx::{AxisSpec, Cx, Plan};
use super::elementwise::{BinarySpec, InfinitySpec};
use super::image::GridSampleSpec;
use super::matmul::{EinsumSpec, GemmSpec, MatMulSpec};
use super::movement::{EyeSpec, PadSpec, SplitSpec};
use super::norm::{
    BatchNormSpec, GroupNormSpec, LayerNormSpec, LpNormSpec, LrnSpec, MeanVarianceSpec,
};
use super::places::{CacheWriteSpec, GatherBlocksSpec, ReverseSpec, ScatterSpec};
use super::pool::{PoolKind, PoolSpec};
use super::quant::ScaleSpec;
use super::recurrent::{Cell, RecurrentSpec};
use super::reduce::{ArgSpec, CumulativeSpec, ReduceSpec, SoftmaxSpec, TopKSpec};
use super::signal::{DftSpec, LossSpec, StftSpec};
use super::unary::UnarySpec;
use super::{
    attention, conv, elementwise, image, integer, last, matmul, movement, norm, places, pool,
    quant, recurrent, reduce, signal, unary,
};
use zbmd_gpu_ir::tensor::row::{Fold, Soft};
use zbmd_op::OpError;

type Make = fn(&Cx<'_>, &'static str) -> Result<Plan, OpError>;

/// A row of the table.
pub(super) struct Row {
    pub(super) operator: &'static str,
    /// Operands and outputs with their types: a [`super::TypeSchema`].
    pub(super) types: &'static str,
    pub(super) params: &'static str,
    /// Parameters of an example that stands in models as it is.
    pub(super) example: &'static str,
    /// Whether narrow operands are widened for it: half precision to f32, 8- and 16-bit integers to 32 bits.
    pub(super) wide: bool,
    pub(super) summary: &'static str,
    pub(super) make: Make,
}

/// What a parameter means.
pub(super) fn meaning(name: &str) -> &'static str {
    match name {
        "strides" => "steps of the window along each spatial dimension (default 1)",
        "dilations" => "distance of kernel elements along each spatial dimension (default 1)",
        "pads" => "padding before each spatial dimension, then behind each (default 0)",
        "auto_pad" => "NOTSET (default), VALID, SAME_UPPER or SAME_LOWER",
        "group" => "groups of channels that are convolved apart (default 1)",
        "kernel_shape" => "size of the window along each spatial dimension",
        "act" => {
            "activation of the result: none (default), relu, clip, sigmoid, tanh, silu, gelu, hardswish"
        }
        "act_min" => "lower bound of the activation `clip`",
        "act_max" => "upper bound of the activation `clip`",
        "axis" => "the dimension; negative ones count from the last",
        "axes" => "the dimensions; negative ones count from the last",
        "math" => {
            "what CUDA devices may round factors to: f32 (default: to nothing), tf32, f16, bf16; sums stay f32, and other devices round nothing"
        }
        "keepdims" => "whether reduced dimensions stay, 1 long (default 1)",
        "to" | "dtype" | "output_dtype" => "dtype of the result",
        "epsilon" => "added to the variance (default 1e-5)",
        "perm" => "the dimension of `x` that becomes each of the result (default: reversed)",
        "y_min" | "y_max" => {
            "bound of the result's bytes, as an activation leaves it (default that of its type)"
        }
        "winograd" => {
            "whether tiles of 6 x 6 pixels are transformed for fewer multiplications (default 0): windows of 3 x 3 or 5 x 5, stride 1; errors are about twice those of direct sums"
        }
        "channels_last" => "whether channels are the last dimension (default 0)",
        "equation" => "the sum in Einstein's notation",
        _ => "as the attribute of the ONNX operator of the same name",
    }
}

/// An operator's kernels for CPUs, and those for GPUs where the first do not bring their own along.
macro_rules! both {
    ($cpu:expr, $gpu:ident) => {
        |cx, operator| {
            let make: Make = $cpu;
            let plan = make(cx, operator)?;
            Ok(match plan.gpu {
                Some(_) => plan,
                None => plan.gpu(|gpu| gpu.$gpu()),
            })
        }
    };
}

/// The spec of an operator, parsed once, and its kernels for CPUs and for GPUs, which both take the spec.
macro_rules! parsed {
    ($parse:expr, $cpu:expr, $gpu:ident) => {
        |cx, _| {
            let spec = ($parse)(cx)?;
            let plan = ($cpu)(cx, &spec)?;
            Ok(match plan.gpu {
                Some(_) => plan,
                None => plan.gpu(move |gpu| gpu.$gpu(&spec)),
            })
        }
    };
}

/// The same for an operator whose name its spec needs.
macro_rules! named {
    ($parse:expr, $cpu:expr, $gpu:ident) => {
        |cx, operator| {
            let spec = ($parse)(cx, operator)?;
            let plan = ($cpu)(cx, &spec)?;
            Ok(plan.gpu(move |gpu| gpu.$gpu(&spec)))
        }
    };
}

macro_rules! rows {
    ($($operator:literal $types:literal [$params:literal] $example:literal $wide:literal $summary:literal $make:expr;)*) => {
        &[$(Row {
            operator: $operator, types: $types, params: $params, example: $example, wide: $wide, summary: $summary,
            make: $make,
        }),*]
    };
}

pub(super) const ROWS: &[Row] = rows! {
    "Abs" "x:T -> y:T; T: number" [""] "" true "absolute value" both!(elementwise::arithmetic, arithmetic);
    "Acos" "x:T -> y:T; T: float" [""] "" true "inverse cosine" named!(UnarySpec::of, unary::unary, unary);
    "Acosh" "x:T -> y:T; T: float" [""] "" true "inverse hyperbolic cosine" named!(UnarySpec::of, unary::unary, unary);
    "Add" "x:T y:T -> z:T; T: number" [""] "" true "sum of two tensors, broadcast" both!(elementwise::binary, plain_binary);
    "AffineChannelsLast" "x:f32 scale!:f32 shift!:f32 -> y:f32" ["act act_max act_min"] "scale: [1.0, 0.5], shift: [0.0, 1.0]" false "channels of [n, h, w, c] scaled and shifted; no ONNX operator" |c, _| last::affine(c);
    "AffineGrid" "theta:T size!:int -> y:T; T: float" ["align_corners"] "size: [1, 1, 4, 4]" true "places of an affine transformation of an image" |c, _| image::affine_grid(c);
    "And" "x:bool y:bool -> z:bool" [""] "" true "both true" both!(elementwise::bits, plain_binary);
    "ArgMax" "x:T -> y:i64; T: number" ["axis keepdims select_last_index"] "" true "place of the greatest element along an axis" parsed!(|c| ArgSpec::of(c, true), reduce::arg, arg);
    "ArgMin" "x:T -> y:i64; T: number" ["axis keepdims select_last_index"] "" true "place of the least element along an axis" parsed!(|c| ArgSpec::of(c, false), reduce::arg, arg);
    "Asin" "x:T -> y:T; T: float" [""] "" true "inverse sine" named!(UnarySpec::of, unary::unary, unary);
    "Asinh" "x:T -> y:T; T: float" [""] "" true "inverse hyperbolic sine" named!(UnarySpec::of, unary::unary, unary);
    "Atan" "x:T -> y:T; T: float" [""] "" true "inverse tangent" named!(UnarySpec::of, unary::unary, unary);
    "Atanh" "x:T -> y:T; T: float" [""] "" true "inverse hyperbolic tangent" named!(UnarySpec::of, unary::unary, unary);
    "Attention" "q:T k:^T v:^T mask?:^T|bool past_key?:^T past_value?:^T lengths?:int -> y:T present_key:T present_value:T qk:T; T: float" ["is_causal kv_num_heads left_window_size math q_num_heads qk_matmul_output_mode right_window_size scale softcap softmax_precision"] "" true "scaled dot-product attention with masks, caches and shared heads" parsed!(AttentionSpec::of, attention::attention, attention);
    "AveragePoolChannelsLast" "x:f32 -> y:f32" ["auto_pad ceil_mode count_include_pad dilations kernel_shape pads strides"] "kernel_shape: [2, 2]" false "mean of each window of [n, h, w, c]; no ONNX operator" |c, _| last::pool(c, true);
    "AveragePool" "x:T -> y:T; T: float" ["auto_pad ceil_mode count_include_pad dilations kernel_shape pads strides"] "kernel_shape: [2, 2]" true "mean of each window" parsed!(|c| PoolSpec::of(c, PoolKind::Mean), pool::mean_pool, pool);
    "BatchNormalization" "x:T scale:^T bias:^T mean:^T var:^T -> y:T running_mean:T running_var:T; T: float" ["epsilon momentum training_mode"] "" true "normalisation by the statistics of each channel" parsed!(BatchNormSpec::of, norm::batch, batch_norm);
    "BitCast" "x:real -> y:real" ["to"] "" false "the same bits as another dtype" both!(|c, _| elementwise::bitcast(c), same_bytes);
    "BitShift" "x:T y:T -> z:T; T: int" ["direction"] "" true "bits shifted" named!(BinarySpec::named, elementwise::shift, binary);
    "BitwiseAnd" "x:T y:T -> z:T; T: int" [""] "" true "bits of both" both!(elementwise::bits, plain_binary);
    "BitwiseNot" "x:T -> y:T; T: int" [""] "" true "bits turned over" both!(elementwise::test, arithmetic);
    "BitwiseOr" "x:T y:T -> z:T; T: int" [""] "" true "bits of either" both!(elementwise::bits, plain_binary);
    "BitwiseXor" "x:T y:T -> z:T; T: int" [""] "" true "bits that differ" both!(elementwise::bits, plain_binary);
    "BlackmanWindow" "size!:int -> y:number" ["periodic dtype"] "size: 8" false "a Blackman window" signal::window;
    "ByteLookup" "x:X table!:Y -> y:Y; X: i8|u8, Y: i8|u8" [""] "table: [0, 1, 4, 9]" false "the entry of a table for each byte, the last one for those behind its end; no ONNX operator" |c, _| integer::byte_lookup(c);
    "Cast" "x:real[] -> y:real" ["to"] "" false "conversion to another dtype, truncating" both!(|c, _| elementwise::cast(c), cast);
    "CausalConvWithState" "x:T w:^T b?:^T past?:^T -> y:T present:T; T: float" ["activation"] "" true "causal depthwise convolution that carries its past along" parsed!(CausalConvSpec::of, conv::causal_conv, causal_conv);
    "Ceil" "x:T -> y:T; T: float" [""] "" true "rounded up" named!(UnarySpec::of, unary::unary, unary);
    "Celu" "x:T -> y:T; T: float" ["alpha"] "" true "continuously differentiable exponential linear unit" named!(UnarySpec::of, unary::unary, unary);
    "CenterCropPad" "x:T[] shape!:int -> y:T; T: real" ["axes"] "shape: [2, 2]" false "cut or padded to a shape around the middle" |c, _| movement::center_crop_pad(c);
    "Clip" "x:T min?:T max?:T -> y:T; T: number" [""] "" true "bounded by two numbers" both!(|c, _| elementwise::clip(c), clip);
    "Col2Im" "x:T image_shape!:int block_shape!:int -> y:T; T: float" ["dilations pads strides"] "image_shape: [4, 4], block_shape: [2, 2], strides: [2, 2]" true "columns of windows summed into an image" |c, _| movement::col2im(c);
    "Concat" "x*:T[] -> y:T; T: real" ["axis"] "" false "tensors one behind the other along an axis" parsed!(|c| AxisSpec::of(c, 0, c.dims(0)?.len()), movement::concat, concat);
    "Conv" "x:T w:^T b?:^T added?:T -> y:T; T: float" ["act act_max act_min auto_pad dilations group kernel_shape math pads strides"] "" true "convolution; `added` is added before the activation" parsed!(ConvSpec::of, conv::conv, conv);
    "ConvChannelsLast" "x:f32 w!:float b~:float added?:f32 -> y:f32" ["act act_max act_min auto_pad dilations group kernel_shape pads strides winograd"] "w: [[[[1.0, 0.5], [0.5, 1.0]]]]" false "convolution of [n, h, w, c]; no ONNX operator" |c, _| last::conv(c);
    "ConvInteger" "x:X w:W x_zero?:X w_zero?:W -> y:i32; X: i8|u8, W: i8|u8" ["auto_pad dilations group kernel_shape pads strides"] "" false "convolution of bytes into 32-bit integers" parsed!(ConvShape::of_bytes, conv::conv_integer, conv_integer);
    "ConvTranspose" "x:T w:^T b?:^T -> y:T; T: float" ["auto_pad dilations group kernel_shape output_padding output_shape pads strides"] "" true "transposed convolution" parsed!(TransposedConvSpec::of, conv::conv_transpose, conv_transpose);
    "Cos" "x:T -> y:T; T: float" [""] "" true "cosine" named!(UnarySpec::of, unary::unary, unary);
    "Cosh" "x:T -> y:T; T: float" [""] "" true "hyperbolic cosine" named!(UnarySpec::of, unary::unary, unary);
    "CumProd" "x:T axis!:int -> y:T; T: number" ["exclusive reverse"] "axis: 0" true "running product along an axis" parsed!(|c| CumulativeSpec::of(c, true), reduce::cumulative, cumulative);
    "CumSum" "x:T axis!:int -> y:T; T: number" ["exclusive reverse"] "axis: 0" true "running sum along an axis" parsed!(|c| CumulativeSpec::of(c, false), reduce::cumulative, cumulative);
    "DFT" "x:T length~:int axis~:int -> y:T; T: f32|f16|bf16" ["inverse onesided"] "" true "discrete Fourier transform along an axis" parsed!(DftSpec::of, signal::dft, dft);
    "DepthToSpace" "x:T -> y:T; T: real" ["blocksize mode"] "blocksize: 2" false "channels laid out as blocks of an image" |c, _| movement::depth_to_space(c, false);
    "DequantizeLinear" "x:Q scale:float zero?:Q -> y:float; Q: i8|u8|i16|i32" ["axis block_size output_dtype saturate"] "" false "floats of quantised integers" parsed!(ScaleSpec::of, quant::dequantize, quantised);
    "Det" "x:T -> y:T; T: float" [""] "" true "determinant of square matrices" |c, _| norm::det(c);
    "Div" "x:T y:T -> z:T; T: number" [""] "" true "quotient of two tensors, broadcast; of integers truncated" both!(elementwise::binary, plain_binary);
    "DynamicQuantizeLSTM" "x:f32 w!:W r!:W b?:f32 lengths?:i32 h?:f32 c?:f32 p?:f32 w_scale!:f32 w_zero~:W r_scale!:f32 r_zero~:W -> y:f32 last:f32 cell:f32; W: i8|u8" ["activation_alpha activation_beta activations clip direction hidden_size input_forget"] "w: [[[1, -2, 3, -4, 5, -6, 7, -8]]], r: [[[1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1]]], w_scale: 0.125, r_scale: 0.0625" false "LSTM whose matrices are bytes, by rows quantised as they come; of the domain com.microsoft" |c, _| recurrent::quantised_lstm(c);
    "DynamicQuantizeLinear" "x:f32 -> y:u8 scale:f32 zero:u8" [""] "" false "bytes with the scale that the range asks for" |c, _| quant::dynamic(c);
    "Einsum" "x*:^T -> y:T; T: number" ["equation"] "equation: \"ij,jk->ik\"" true "sum of products in Einstein's notation" parsed!(EinsumSpec::of, matmul::einsum, einsum);
    "Elu" "x:T -> y:T; T: float" ["alpha"] "" true "exponential linear unit" named!(UnarySpec::of, unary::unary, unary);
    "Equal" "x:T[] y:T[] -> z:bool; T: real" [""] "" true "whether equal" both!(elementwise::compare, plain_binary);
    "Erf" "x:T -> y:T; T: float" [""] "" true "error function" named!(UnarySpec::of, unary::unary, unary);
    "Exp" "x:T -> y:T; T: float" [""] "" true "e to the power x" named!(UnarySpec::of, unary::unary, unary);
    "Expand" "x:T[] shape!:int -> y:T; T: real" [""] "shape: [2, 4]" false "repeated to a broadcast shape" |c, _| movement::expand(c);
    "EyeLike" "x:real -> y:real" ["dtype k"] "" false "ones on a diagonal, zeros elsewhere" parsed!(EyeSpec::of, movement::eye_like, eye_like);
    "Flatten" "x:T[] -> y:T; T: real" ["axis"] "" false "as a matrix" |c, _| movement::flatten(c);
    "Floor" "x:T -> y:T; T: float" [""] "" true "rounded down" named!(UnarySpec::of, unary::unary, unary);
    "GRU" "x:T w:^T r:^T b?:^T lengths?:int h?:^T -> y:T last:T; T: f32|f16|bf16" ["activation_alpha activation_beta activations clip direction hidden_size layout linear_before_reset"] "hidden_size: 2" true "gated recurrent units over a sequence" parsed!(|c| RecurrentSpec::of(c, Cell::Gru), recurrent::recurrent, recurrent);
    "Gather" "x:T indices:int -> y:T; T: real" ["axis"] "" false "places along an axis" parsed!(|c| AxisSpec::of(c, 0, c.dims(0)?.len()), places::gather, gather);
    "GatherElements" "x:T indices:int -> y:T; T: real" ["axis"] "" false "an element for each index" parsed!(|c| AxisSpec::of(c, 0, c.dims(0)?.len()), places::gather_elements, gather_elements);
    "GatherND" "x:T indices:int -> y:T; T: real" ["batch_dims"] "" false "blocks at lists of indices" parsed!(GatherBlocksSpec::of, places::gather_nd, gather_blocks);
    "Gelu" "x:T -> y:T; T: float" ["approximate"] "" true "Gaussian error linear unit" named!(UnarySpec::of, unary::unary, unary);
    "Gemm" "a:T b:^T c?:^T -> y:T; T: number" ["act act_max act_min alpha beta math transA transB"] "" true "alpha · a · b + beta · c" parsed!(GemmSpec::of, matmul::gemm_op, gemm);
    "GlobalAveragePoolChannelsLast" "x:f32 -> y:f32" [""] "" false "mean of each channel of [n, h, w, c]; no ONNX operator" |c, _| last::global(c);
    "GlobalAveragePool" "x:T -> y:T; T: float" [""] "" true "mean of each channel" parsed!(|_| Ok(PoolKind::Mean), pool::global, global_pool);
    "GlobalLpPool" "x:T -> y:T; T: float" ["p"] "" true "norm of each channel" parsed!(PoolKind::norm, pool::global, global_pool);
    "GlobalMaxPool" "x:T -> y:T; T: float" [""] "" true "greatest of each channel" parsed!(|_| Ok(PoolKind::Max), pool::global, global_pool);
    "Greater" "x:T y:T -> z:bool; T: number" [""] "" true "whether greater" both!(elementwise::compare, plain_binary);
    "GreaterOrEqual" "x:T y:T -> z:bool; T: number" [""] "" true "whether not less" both!(elementwise::compare, plain_binary);
    "GridSample" "x:T grid:T -> y:T; T: float" ["align_corners mode padding_mode"] "" true "elements of an image at given places" parsed!(GridSampleSpec::of, image::grid_sample, grid_sample);
    "GroupNormalization" "x:T scale:^T bias:^T -> y:T; T: float" ["epsilon num_groups stash_type"] "num_groups: 2" true "normalisation over groups of channels" parsed!(GroupNormSpec::of, norm::group, group_norm);
    "HammingWindow" "size!:int -> y:number" ["periodic dtype"] "size: 8" false "a Hamming window" signal::window;
    "HannWindow" "size!:int -> y:number" ["periodic dtype"] "size: 8" false "a Hann window" signal::window;
    "HardSigmoid" "x:T -> y:T; T: float" ["alpha beta"] "" true "a line bounded by 0 and 1" named!(UnarySpec::of, unary::unary, unary);
    "HardSwish" "x:T -> y:T; T: float" [""] "" true "x times a hard sigmoid" named!(UnarySpec::of, unary::unary, unary);
    "Hardmax" "x:T -> y:T; T: float" ["axis"] "" true "1 at the greatest element along an axis" parsed!(|c| SoftmaxSpec::of(c, Soft::Hard), reduce::softmax, softmax);
    "Identity" "x:T[] -> y:T; T: real" [""] "" false "a copy" |c, _| movement::identity(c);
    "InstanceNormalization" "x:T scale:^T bias:^T -> y:T; T: float" ["epsilon"] "" true "normalisation of each channel" parsed!(GroupNormSpec::of_instance, norm::group, group_norm);
    "IsInf" "x:float -> y:bool" ["detect_negative detect_positive"] "" true "whether infinite" parsed!(InfinitySpec::of, elementwise::is_infinite, is_infinite);
    "IsNaN" "x:float -> y:bool" [""] "" true "whether not a number" both!(elementwise::test, arithmetic);
    "LRN" "x:T -> y:T; T: float" ["alpha beta bias size"] "size: 3" true "normalisation over neighbouring channels" parsed!(LrnSpec::of, norm::lrn, lrn);
    "LRNChannelsLast" "x:f32 -> y:f32" ["alpha beta bias size"] "size: 3" false "normalisation over neighbouring channels of [n, h, w, c]; no ONNX operator" |c, _| norm::lrn_channels_last(c);
    "LSTM" "x:T w:^T r:^T b?:^T lengths?:int h?:^T c?:^T p?:^T -> y:T last:T cell:T; T: f32|f16|bf16" ["activation_alpha activation_beta activations clip direction hidden_size input_forget layout"] "hidden_size: 2" true "long short-term memory over a sequence" parsed!(|c| RecurrentSpec::of(c, Cell::Lstm), recurrent::recurrent, recurrent);
    "LayerNormalization" "x:T scale?:^T bias?:^T -> y:T mean:f32 deviation:f32; T: float" ["axis epsilon stash_type"] "" true "normalisation over the last dimensions" parsed!(|c| LayerNormSpec::of(c, false), norm::layer, layer_norm);
    "LeakyRelu" "x:T -> y:T; T: float" ["alpha"] "" true "x, scaled where it is negative" named!(UnarySpec::of, unary::unary, unary);
    "Less" "x:T y:T -> z:bool; T: number" [""] "" true "whether less" both!(elementwise::compare, plain_binary);
    "LessOrEqual" "x:T y:T -> z:bool; T: number" [""] "" true "whether not greater" both!(elementwise::compare, plain_binary);
    "Log" "x:T -> y:T; T: float" [""] "" true "natural logarithm" named!(UnarySpec::of, unary::unary, unary);
    "LogSoftmax" "x:T -> y:T; T: float" ["axis"] "" true "logarithm of the softmax along an axis" parsed!(|c| SoftmaxSpec::of(c, Soft::Log), reduce::softmax, softmax);
    "LpNormalization" "x:T -> y:T; T: float" ["axis p"] "" true "divided by the norm along an axis" parsed!(LpNormSpec::of, norm::lp, lp_norm);
    "LpPool" "x:T -> y:T; T: float" ["auto_pad ceil_mode dilations kernel_shape p pads strides"] "kernel_shape: [2, 2]" true "norm of each window" parsed!(PoolSpec::of_norm, pool::mean_pool, pool);
    "MatMul" "x:T y:T bias~:^T -> z:T; T: number" ["act act_max act_min math"] "" true "product of matrices, broadcast; `bias` is added to each row" parsed!(MatMulSpec::of, matmul::matmul, matmul);
    "MatMulInteger" "x:X y:Y x_zero?:X y_zero?:Y -> z:i32; X: i8|u8, Y: i8|u8" [""] "" false "product of bytes into 32-bit integers" both!(|c, _| matmul::matmul_integer(c), matmul_integer);
    "Max" "x*:T -> y:T; T: number" [""] "" true "greatest of tensors, broadcast" both!(elementwise::variadic, variadic);
    "MaxPoolChannelsLast" "x:T -> y:T; T: f32|i8|u8" ["auto_pad ceil_mode dilations kernel_shape pads strides"] "kernel_shape: [2, 2]" false "greatest of each window of [n, h, w, c]; no ONNX operator" |c, _| last::pool(c, false);
    "MaxPool" "x:T -> y:T indices:i64; T: number" ["auto_pad ceil_mode dilations kernel_shape pads storage_order strides"] "kernel_shape: [2, 2]" true "greatest of each window" parsed!(|c| PoolSpec::of(c, PoolKind::Max), pool::max_pool, pool);
    "MaxUnpool" "x:T indices:i64 shape~:int -> y:T; T: float" ["kernel_shape pads strides"] "kernel_shape: [2, 2], strides: [2, 2]" true "greatest elements put back to where they came from" |c, _| pool::max_unpool(c);
    "Mean" "x*:T -> y:T; T: number" [""] "" true "mean of tensors, broadcast" both!(elementwise::variadic, variadic);
    "MeanVarianceNormalization" "x:T -> y:T; T: float" ["axes"] "" true "mean taken off, deviation brought to 1" parsed!(MeanVarianceSpec::of, norm::mean_variance, mean_variance);
    "MelWeightMatrix" "bands!:int length!:int rate!:int low!:float high!:float -> y:number" ["dtype"] "bands: 4, length: 16, rate: 8000, low: 0.0, high: 4000.0" false "triangles on the mel scale" |c, _| signal::mel(c);
    "Min" "x*:T -> y:T; T: number" [""] "" true "least of tensors, broadcast" both!(elementwise::variadic, variadic);
    "Mish" "x:T -> y:T; T: float" [""] "" true "x times the hyperbolic tangent of its softplus" named!(UnarySpec::of, unary::unary, unary);
    "Mod" "x:T y:T -> z:T; T: number" ["fmod"] "" true "remainder, with the sign of y or (`fmod`) of x" named!(BinarySpec::named, elementwise::modulo, binary);
    "Mul" "x:T y:T -> z:T; T: number" [""] "" true "product of two tensors, broadcast" both!(elementwise::binary, plain_binary);
    "Neg" "x:T -> y:T; T: number" [""] "" true "negated" both!(elementwise::arithmetic, arithmetic);
    "NegativeLogLikelihoodLoss" "x:T target:int weight?:T -> loss:T; T: float" ["ignore_index reduction"] "" true "loss of logarithms of probabilities" parsed!(|c| LossSpec::of(c, false), signal::loss, loss);
    "Not" "x:bool -> y:bool" [""] "" false "the other truth value" both!(elementwise::test, arithmetic);
    "OneHot" "indices:int|f32|f64 depth!:number values:V -> y:V; V: real" ["axis"] "depth: 4" false "one value at an index, another elsewhere" parsed!(|c| AxisSpec::of(c, -1, c.dims(0)?.len() + 1), places::one_hot, one_hot);
    "Or" "x:bool y:bool -> z:bool" [""] "" false "either true" both!(elementwise::bits, plain_binary);
    "PRelu" "x:T slope:T -> y:T; T: number" [""] "" true "x, scaled where it is negative" both!(|c, _| elementwise::prelu(c), plain_binary);
    "Pad" "x:T pads!:int value?:T axes~:int -> y:T; T: real" ["mode"] "pads: [1, 1, 1, 1]" false "padded" parsed!(PadSpec::of, movement::pad, pad);
    "Pow" "x:T y:number -> z:T; T: number" [""] "" true "x to the power y, broadcast" both!(|c, _| elementwise::pow(c), plain_binary);
    "QLinearAdd" "a:X a_scale!:f32 a_zero~:X b:X b_scale!:f32 b_zero~:X y_scale!:f32 y_zero~:X -> y:X; X: i8|u8" ["y_max y_min"] "a_scale: 0.5, b_scale: 0.25, y_scale: 0.5" false "quantised sum, broadcast; of the domain com.microsoft" |c, _| integer::qlinear_add(c);
    "QLinearConv" "x:X x_scale:f32 x_zero:X w:W w_scale:f32 w_zero:W y_scale:f32 y_zero:Y b?:i32 -> y:Y; X: i8|u8, W: i8|u8, Y: i8|u8" ["auto_pad dilations group kernel_shape pads strides y_max y_min"] "" false "quantised convolution" |c, _| conv::qlinear_conv(c);
    "QLinearConvChannelsLast" "x:X x_scale!:f32 x_zero!:X w!:W w_scale!:f32 w_zero!:W y_scale!:f32 y_zero!:Y b~:i32 added?:Y added_scale~:f32 added_zero~:Y sum_scale~:f32 sum_zero~:Y -> y:Y; X: i8|u8, W: i8|u8, Y: i8|u8" ["auto_pad dilations group kernel_shape pads strides sum_max sum_min y_max y_min"] "x_scale: 0.5, x_zero: 1, w: [[[[1, -2], [3, 4]]]], w_scale: 0.25, w_zero: 0, y_scale: 0.5, y_zero: 0" false "quantised convolution of [n, h, w, c], and its sum with another tensor as QLinearAdd makes it; no ONNX operator" |c, _| integer::conv_channels_last(c);
    "QLinearGlobalAveragePool" "x:X x_scale!:f32 x_zero~:X y_scale!:f32 y_zero~:X -> y:X; X: i8|u8" ["channels_last"] "x_scale: 0.5, y_scale: 0.25" false "quantised mean of each channel; of the domain com.microsoft" |c, _| integer::qlinear_global_mean(c);
    "QLinearMatMul" "a:A a_scale:float a_zero:A b:B b_scale:float b_zero:B y_scale:float y_zero:Y bias?:i32 -> y:Y; A: i8|u8, B: i8|u8, Y: i8|u8" ["y_max y_min"] "" false "quantised product of matrices; `bias` is added to each row of sums" |c, _| matmul::qlinear_matmul(c);
    "QLinearMul" "a:X a_scale!:f32 a_zero~:X b:X b_scale!:f32 b_zero~:X y_scale!:f32 y_zero~:X -> y:X; X: i8|u8" ["y_max y_min"] "a_scale: 0.5, b_scale: 0.25, y_scale: 0.5" false "quantised product of elements, broadcast; of the domain com.microsoft" |c, _| integer::qlinear_multiply(c);
    "QuantizeLinear" "x:f32|f16|bf16|i32 scale:float zero?:Q -> y:Q; Q: i8|u8|i16|i32" ["axis block_size output_dtype precision saturate"] "" false "quantised integers of floats" parsed!(ScaleSpec::of, quant::quantize, quantised);
    "RMSNormalization" "x:T scale?:^T -> y:T; T: float" ["axis epsilon stash_type"] "" true "divided by the root mean square of the last dimensions" parsed!(|c| LayerNormSpec::of(c, true), norm::layer, layer_norm);
    "RNN" "x:T w:^T r:^T b?:^T lengths?:int h?:^T -> y:T last:T; T: f32|f16|bf16" ["activation_alpha activation_beta activations clip direction hidden_size layout"] "hidden_size: 2" true "simple recurrent units over a sequence" parsed!(|c| RecurrentSpec::of(c, Cell::Rnn), recurrent::recurrent, recurrent);
    "Range" "start!:T limit!:T delta!:T -> y:T; T: number" [""] "start: 0, limit: 8, delta: 1" false "numbers from a start to a limit" |c, _| signal::range(c);
    "Reciprocal" "x:T -> y:T; T: float" [""] "" true "1 / x" named!(UnarySpec::of, unary::unary, unary);
    "ReduceL1" "x:T[] axes~:int[] -> y:T; T: number" ["keepdims noop_with_empty_axes"] "" true "sum of absolute values" parsed!(|c| ReduceSpec::of(c, Fold::L1), reduce::reduce, reduce);
    "ReduceL2" "x:T[] axes~:int[] -> y:T; T: number" ["keepdims noop_with_empty_axes"] "" true "root of the sum of squares" parsed!(|c| ReduceSpec::of(c, Fold::L2), reduce::reduce, reduce);
    "ReduceLogSum" "x:T[] axes~:int[] -> y:T; T: number" ["keepdims noop_with_empty_axes"] "" true "logarithm of the sum" parsed!(|c| ReduceSpec::of(c, Fold::LogSum), reduce::reduce, reduce);
    "ReduceLogSumExp" "x:T[] axes~:int[] -> y:T; T: number" ["keepdims noop_with_empty_axes"] "" true "logarithm of the sum of exponentials" parsed!(|c| ReduceSpec::of(c, Fold::LogSumExp), reduce::reduce, reduce);
    "ReduceMax" "x:T[] axes~:int[] -> y:T; T: real" ["keepdims noop_with_empty_axes"] "" true "greatest element" parsed!(|c| ReduceSpec::of(c, Fold::Max), reduce::reduce, reduce);
    "ReduceMean" "x:T[] axes~:int[] -> y:T; T: number" ["keepdims noop_with_empty_axes"] "" true "mean" parsed!(|c| ReduceSpec::of(c, Fold::Mean), reduce::reduce, reduce);
    "ReduceMin" "x:T[] axes~:int[] -> y:T; T: real" ["keepdims noop_with_empty_axes"] "" true "least element" parsed!(|c| ReduceSpec::of(c, Fold::Min), reduce::reduce, reduce);
    "ReduceProd" "x:T[] axes~:int[] -> y:T; T: number" ["keepdims noop_with_empty_axes"] "" true "product" parsed!(|c| ReduceSpec::of(c, Fold::Prod), reduce::reduce, reduce);
    "ReduceSum" "x:T[] axes~:int[] -> y:T; T: number" ["keepdims noop_with_empty_axes"] "" true "sum" parsed!(|c| ReduceSpec::of(c, Fold::Sum), reduce::reduce, reduce);
    "ReduceSumSquare" "x:T[] axes~:int[] -> y:T; T: number" ["keepdims noop_with_empty_axes"] "" true "sum of squares" parsed!(|c| ReduceSpec::of(c, Fold::SumSquare), reduce::reduce, reduce);
    "Relu" "x:T -> y:T; T: number" [""] "" true "x where it is positive, else 0" both!(elementwise::arithmetic, arithmetic);
    "Reshape" "x:T[] shape!:int[] -> y:T; T: real" ["allowzero"] "shape: [2, 8]" false "the same elements under another shape" |c, _| movement::reshape(c);
    "Resize" "x:T roi~:float scales~:float sizes~:int -> y:T; T: real" ["antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value keep_aspect_ratio_policy mode nearest_mode"] "sizes: [1, 1, 8, 8]" true "resized by nearest, linear or cubic interpolation" parsed!(image::resized, image::resize, resize);
    "ReverseSequence" "x:T lengths:int -> y:T; T: real" ["batch_axis time_axis"] "" false "the beginning of each sequence turned round" parsed!(ReverseSpec::of, places::reverse_sequence, reverse_sequence);
    "RotaryEmbedding" "x:T cos:^T sin:^T positions?:int -> y:T; T: float" ["interleaved num_heads rotary_embedding_dim"] "" true "pairs of elements turned by the angle of their position" parsed!(RotarySpec::of, attention::rotary, rotary);
    "Round" "x:T -> y:T; T: float" [""] "" true "rounded, ties to even" named!(UnarySpec::of, unary::unary, unary);
    "STFT" "x:T step!:int window?:^T length~:int -> y:T; T: f32|f16|bf16" ["onesided"] "step: 4" true "Fourier transforms of overlapping frames" parsed!(StftSpec::of, signal::stft, stft);
    "ScatterElements" "x:T indices:int updates:T -> y:T; T: real" ["axis reduction"] "" true "elements put where indices say" parsed!(ScatterSpec::of_elements, places::scatter_elements, scatter);
    "ScatterND" "x:T indices:int updates:T -> y:T; T: real" ["reduction"] "" true "blocks put where lists of indices say" parsed!(ScatterSpec::of_blocks, places::scatter_nd, scatter);
    "Selu" "x:T -> y:T; T: float" ["alpha gamma"] "" true "scaled exponential linear unit" named!(UnarySpec::of, unary::unary, unary);
    "Shrink" "x:T -> y:T; T: float" ["bias lambd"] "" true "drawn towards 0" named!(UnarySpec::of, unary::unary, unary);
    "Sigmoid" "x:T -> y:T; T: float" [""] "" true "1 / (1 + e^−x)" named!(UnarySpec::of, unary::unary, unary);
    "Sign" "x:T -> y:T; T: number" [""] "" true "−1, 0 or 1" both!(elementwise::arithmetic, arithmetic);
    "Sin" "x:T -> y:T; T: float" [""] "" true "sine" named!(UnarySpec::of, unary::unary, unary);
    "Sinh" "x:T -> y:T; T: float" [""] "" true "hyperbolic sine" named!(UnarySpec::of, unary::unary, unary);
    "Slice" "x:T[] starts!:int ends!:int axes~:int steps~:int -> y:T; T: real" [""] "starts: [0], ends: [2]" false "a part of each dimension" |c, _| movement::slice(c);
    "Softmax" "x:T -> y:T; T: float" ["axis"] "" true "softmax along an axis" parsed!(|c| SoftmaxSpec::of(c, Soft::Plain), reduce::softmax, softmax);
    "SoftmaxCrossEntropyLoss" "x:T target:int weight?:T -> loss:T log:T; T: float" ["ignore_index reduction"] "" true "loss of scores" parsed!(|c| LossSpec::of(c, true), signal::loss, loss);
    "Softplus" "x:T -> y:T; T: float" [""] "" true "ln(1 + e^x)" named!(UnarySpec::of, unary::unary, unary);
    "Softsign" "x:T -> y:T; T: float" [""] "" true "x / (1 + |x|)" named!(UnarySpec::of, unary::unary, unary);
    "SpaceToDepth" "x:T -> y:T; T: real" ["blocksize mode"] "blocksize: 2" false "blocks of an image laid out as channels" |c, _| movement::depth_to_space(c, true);
    "Split" "x:T[] split~:int -> y*:T; T: real" ["axis num_outputs"] "" false "parts of an axis" parsed!(SplitSpec::of, movement::split, split);
    "Sqrt" "x:T -> y:T; T: float" [""] "" true "square root" named!(UnarySpec::of, unary::unary, unary);
    "Squeeze" "x:T[] axes~:int -> y:T; T: real" [""] "" false "without dimensions that are 1 long" |c, _| movement::squeeze(c);
    "Sub" "x:T y:T -> z:T; T: number" [""] "" true "difference of two tensors, broadcast" both!(elementwise::binary, plain_binary);
    "Sum" "x*:T -> y:T; T: number" [""] "" true "sum of tensors, broadcast" both!(elementwise::variadic, variadic);
    "SwiGLU" "a:T b:T -> y:T; T: float" ["alpha"] "" true "a · sigmoid(alpha · a) · b" named!(BinarySpec::named, elementwise::swiglu, binary);
    "Swish" "x:T -> y:T; T: float" ["alpha"] "" true "x · sigmoid(alpha · x)" named!(UnarySpec::of, unary::unary, unary);
    "Tan" "x:T -> y:T; T: float" [""] "" true "tangent" named!(UnarySpec::of, unary::unary, unary);
    "Tanh" "x:T -> y:T; T: float" [""] "" true "hyperbolic tangent" named!(UnarySpec::of, unary::unary, unary);
    "TensorScatter" "x:T update:T indices?:int -> y:T; T: real" ["axis mode"] "" false "an update written into a cache" parsed!(CacheWriteSpec::of, places::tensor_scatter, tensor_scatter);
    "ThresholdedRelu" "x:T -> y:T; T: float" ["alpha"] "" true "x where it is above a threshold, else 0" named!(UnarySpec::of, unary::unary, unary);
    "Tile" "x:T repeats!:int -> y:T; T: real" [""] "repeats: [1, 2]" false "repeated along each dimension" |c, _| movement::tile(c);
    "TopK" "x:T k!:int -> y:T indices:i64; T: number" ["axis largest sorted"] "k: 2" true "the k greatest or least elements along an axis" parsed!(TopKSpec::of, reduce::top_k, top_k);
    "Transpose" "x:T[] -> y:T; T: real" ["perm"] "" false "dimensions in another order" |c, _| movement::transpose(c);
    "Trilu" "x:T[] k~:int -> y:T; T: real" ["upper"] "" false "the upper or lower triangle" |c, _| movement::trilu(c);
    "Unsqueeze" "x:T[] axes!:int -> y:T; T: real" [""] "axes: [0]" false "with dimensions 1 long put in" |c, _| movement::unsqueeze(c);
    "Where" "condition:bool[] x:T[] y:T[] -> z:T; T: real" [""] "" false "x where a condition holds, else y" both!(|c, _| elementwise::select(c), select);
    "Xor" "x:bool y:bool -> z:bool" [""] "" false "exactly one true" both!(elementwise::bits, plain_binary);
};
