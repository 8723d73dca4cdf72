//! The tensor ops: operands, outputs, parameters, and the function that plans each.
//!
//! Operands end in `?` where they may be missing, in `!` where they must be constants, in `~` where both, in `*`
//! where any number may follow.

use super::cx::{Cx, Plan};
use super::{
    attention, conv, elementwise, image, last, matmul, movement, norm, places, pool, quant,
    recurrent, reduce, signal, unary,
};
use crate::op::OpError;

type Make = fn(&Cx<'_>, &str) -> Result<Plan, OpError>;

/// A row of the table.
pub(super) struct Row {
    pub(super) operator: &'static str,
    pub(super) inputs: &'static str,
    pub(super) outputs: &'static str,
    pub(super) params: &'static str,
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
        "equation" => "the sum in Einstein's notation",
        _ => "as the attribute of the ONNX operator of the same name",
    }
}

macro_rules! rows {
    ($($operator:literal $inputs:literal -> $outputs:literal [$params:literal] $wide:literal $summary:literal $make:expr;)*) => {
        &[$(Row {
            operator: $operator, inputs: $inputs, outputs: $outputs, params: $params, wide: $wide, summary: $summary,
            make: $make,
        }),*]
    };
}

pub(super) const ROWS: &[Row] = rows! {
    "Abs" "x" -> "y" [""] true "absolute value" elementwise::arithmetic;
    "Acos" "x" -> "y" [""] true "inverse cosine" unary::unary;
    "Acosh" "x" -> "y" [""] true "inverse hyperbolic cosine" unary::unary;
    "Add" "x y" -> "z" [""] true "sum of two tensors, broadcast" elementwise::binary;
    "AffineGrid" "theta size!" -> "y" ["align_corners"] true "places of an affine transformation of an image" |c, _| image::affine_grid(c);
    "And" "x y" -> "z" [""] true "both true" elementwise::bits;
    "ArgMax" "x" -> "y" ["axis keepdims select_last_index"] true "place of the greatest element along an axis" |c, _| reduce::arg(c, true);
    "ArgMin" "x" -> "y" ["axis keepdims select_last_index"] true "place of the least element along an axis" |c, _| reduce::arg(c, false);
    "Asin" "x" -> "y" [""] true "inverse sine" unary::unary;
    "Asinh" "x" -> "y" [""] true "inverse hyperbolic sine" unary::unary;
    "Atan" "x" -> "y" [""] true "inverse tangent" unary::unary;
    "Atanh" "x" -> "y" [""] true "inverse hyperbolic tangent" unary::unary;
    "Attention" "q k v mask? past_key? past_value? lengths?" -> "y present_key present_value qk" ["is_causal kv_num_heads left_window_size math q_num_heads qk_matmul_output_mode right_window_size scale softcap softmax_precision"] true "scaled dot-product attention with masks, caches and shared heads" |c, _| attention::attention(c);
    "AveragePoolChannelsLast" "x" -> "y" ["auto_pad ceil_mode count_include_pad dilations kernel_shape pads strides"] false "mean of each window of [n, h, w, c]; no ONNX operator" |c, _| last::pool(c, true);
    "AveragePool" "x" -> "y" ["auto_pad ceil_mode count_include_pad dilations kernel_shape pads strides"] true "mean of each window" |c, _| pool::mean_pool(c, false);
    "BatchNormalization" "x scale bias mean var" -> "y running_mean running_var" ["epsilon momentum training_mode"] true "normalisation by the statistics of each channel" |c, _| norm::batch(c);
    "BitCast" "x" -> "y" ["to"] false "the same bits as another dtype" |c, _| elementwise::bitcast(c);
    "BitShift" "x y" -> "z" ["direction"] true "bits shifted" elementwise::bits;
    "BitwiseAnd" "x y" -> "z" [""] true "bits of both" elementwise::bits;
    "BitwiseNot" "x" -> "y" [""] true "bits turned over" elementwise::test;
    "BitwiseOr" "x y" -> "z" [""] true "bits of either" elementwise::bits;
    "BitwiseXor" "x y" -> "z" [""] true "bits that differ" elementwise::bits;
    "BlackmanWindow" "size!" -> "y" ["periodic dtype"] false "a Blackman window" signal::window;
    "Cast" "x" -> "y" ["to"] false "conversion to another dtype, truncating" |c, _| elementwise::cast(c);
    "CausalConvWithState" "x w b? past?" -> "y present" ["activation"] true "causal depthwise convolution that carries its past along" |c, _| conv::causal_conv(c);
    "Ceil" "x" -> "y" [""] true "rounded up" unary::unary;
    "Celu" "x" -> "y" ["alpha"] true "continuously differentiable exponential linear unit" unary::unary;
    "CenterCropPad" "x shape!" -> "y" ["axes"] false "cut or padded to a shape around the middle" |c, _| movement::center_crop_pad(c);
    "Clip" "x min? max?" -> "y" [""] true "bounded by two numbers" |c, _| elementwise::clip(c);
    "Col2Im" "x image_shape! block_shape!" -> "y" ["dilations pads strides"] true "columns of windows summed into an image" |c, _| movement::col2im(c);
    "Concat" "x*" -> "y" ["axis"] false "tensors one behind the other along an axis" |c, _| movement::concat(c);
    "Conv" "x w b? added?" -> "y" ["act act_max act_min auto_pad dilations group kernel_shape math pads strides"] true "convolution; `added` is added before the activation" |c, _| conv::conv(c);
    "ConvChannelsLast" "x w! b~ added?" -> "y" ["act act_max act_min auto_pad dilations group kernel_shape pads strides"] false "convolution of [n, h, w, c]; no ONNX operator" |c, _| last::conv(c);
    "ConvInteger" "x w x_zero? w_zero?" -> "y" ["auto_pad dilations group kernel_shape pads strides"] false "convolution of bytes into 32-bit integers" |c, _| conv::conv_integer(c);
    "ConvTranspose" "x w b?" -> "y" ["auto_pad dilations group kernel_shape output_padding output_shape pads strides"] true "transposed convolution" |c, _| conv::conv_transpose(c);
    "Cos" "x" -> "y" [""] true "cosine" unary::unary;
    "Cosh" "x" -> "y" [""] true "hyperbolic cosine" unary::unary;
    "CumProd" "x axis!" -> "y" ["exclusive reverse"] true "running product along an axis" |c, _| reduce::cumulative(c, true);
    "CumSum" "x axis!" -> "y" ["exclusive reverse"] true "running sum along an axis" |c, _| reduce::cumulative(c, false);
    "DFT" "x length~ axis~" -> "y" ["inverse onesided"] true "discrete Fourier transform along an axis" |c, _| signal::dft(c);
    "DepthToSpace" "x" -> "y" ["blocksize mode"] false "channels laid out as blocks of an image" |c, _| movement::depth_to_space(c, false);
    "DequantizeLinear" "x scale zero?" -> "y" ["axis block_size output_dtype saturate"] false "floats of quantised integers" |c, _| quant::dequantize(c);
    "Det" "x" -> "y" [""] true "determinant of square matrices" |c, _| norm::det(c);
    "Div" "x y" -> "z" [""] true "quotient of two tensors, broadcast; of integers truncated" elementwise::binary;
    "DynamicQuantizeLinear" "x" -> "y scale zero" [""] false "bytes with the scale that the range asks for" |c, _| quant::dynamic(c);
    "Einsum" "x*" -> "y" ["equation"] true "sum of products in Einstein's notation" |c, _| matmul::einsum(c);
    "Elu" "x" -> "y" ["alpha"] true "exponential linear unit" unary::unary;
    "Equal" "x y" -> "z" [""] true "whether equal" elementwise::compare;
    "Erf" "x" -> "y" [""] true "error function" unary::unary;
    "Exp" "x" -> "y" [""] true "e to the power x" unary::unary;
    "Expand" "x shape!" -> "y" [""] false "repeated to a broadcast shape" |c, _| movement::expand(c);
    "EyeLike" "x" -> "y" ["dtype k"] false "ones on a diagonal, zeros elsewhere" |c, _| movement::eye_like(c);
    "Flatten" "x" -> "y" ["axis"] false "as a matrix" |c, _| movement::flatten(c);
    "Floor" "x" -> "y" [""] true "rounded down" unary::unary;
    "GRU" "x w r b? lengths? h? c? p?" -> "y last" ["activation_alpha activation_beta activations clip direction hidden_size layout linear_before_reset"] true "gated recurrent units over a sequence" |c, _| recurrent::recurrent(c, "NnGRU");
    "Gather" "x indices" -> "y" ["axis"] false "places along an axis" |c, _| places::gather(c);
    "GatherElements" "x indices" -> "y" ["axis"] false "an element for each index" |c, _| places::gather_elements(c);
    "GatherND" "x indices" -> "y" ["batch_dims"] false "blocks at lists of indices" |c, _| places::gather_nd(c);
    "Gelu" "x" -> "y" ["approximate"] true "Gaussian error linear unit" unary::unary;
    "Gemm" "a b c?" -> "y" ["act act_max act_min alpha beta math transA transB"] true "alpha · a · b + beta · c" |c, _| matmul::gemm_op(c);
    "GlobalAveragePoolChannelsLast" "x" -> "y" [""] false "mean of each channel of [n, h, w, c]; no ONNX operator" |c, _| last::global(c);
    "GlobalAveragePool" "x" -> "y" [""] true "mean of each channel" pool::global;
    "GlobalLpPool" "x" -> "y" ["p"] true "norm of each channel" pool::global;
    "GlobalMaxPool" "x" -> "y" [""] true "greatest of each channel" pool::global;
    "Greater" "x y" -> "z" [""] true "whether greater" elementwise::compare;
    "GreaterOrEqual" "x y" -> "z" [""] true "whether not less" elementwise::compare;
    "GridSample" "x grid" -> "y" ["align_corners mode padding_mode"] true "elements of an image at given places" |c, _| image::grid_sample(c);
    "GroupNormalization" "x scale bias" -> "y" ["epsilon num_groups stash_type"] true "normalisation over groups of channels" |c, _| norm::group(c, false);
    "HammingWindow" "size!" -> "y" ["periodic dtype"] false "a Hamming window" signal::window;
    "HannWindow" "size!" -> "y" ["periodic dtype"] false "a Hann window" signal::window;
    "HardSigmoid" "x" -> "y" ["alpha beta"] true "a line bounded by 0 and 1" unary::unary;
    "HardSwish" "x" -> "y" [""] true "x times a hard sigmoid" unary::unary;
    "Hardmax" "x" -> "y" ["axis"] true "1 at the greatest element along an axis" reduce::softmax;
    "Identity" "x" -> "y" [""] false "a copy" |c, _| movement::identity(c);
    "InstanceNormalization" "x scale bias" -> "y" ["epsilon"] true "normalisation of each channel" |c, _| norm::group(c, true);
    "IsInf" "x" -> "y" ["detect_negative detect_positive"] true "whether infinite" elementwise::test;
    "IsNaN" "x" -> "y" [""] true "whether not a number" elementwise::test;
    "LRN" "x" -> "y" ["alpha beta bias size"] true "normalisation over neighbouring channels" |c, _| norm::lrn(c);
    "LSTM" "x w r b? lengths? h? c? p?" -> "y last cell" ["activation_alpha activation_beta activations clip direction hidden_size input_forget layout"] true "long short-term memory over a sequence" |c, _| recurrent::recurrent(c, "NnLSTM");
    "LayerNormalization" "x scale? bias?" -> "y mean deviation" ["axis epsilon stash_type"] true "normalisation over the last dimensions" |c, _| norm::layer(c, false);
    "LeakyRelu" "x" -> "y" ["alpha"] true "x, scaled where it is negative" unary::unary;
    "Less" "x y" -> "z" [""] true "whether less" elementwise::compare;
    "LessOrEqual" "x y" -> "z" [""] true "whether not greater" elementwise::compare;
    "Log" "x" -> "y" [""] true "natural logarithm" unary::unary;
    "LogSoftmax" "x" -> "y" ["axis"] true "logarithm of the softmax along an axis" reduce::softmax;
    "LpNormalization" "x" -> "y" ["axis p"] true "divided by the norm along an axis" |c, _| norm::lp(c);
    "LpPool" "x" -> "y" ["auto_pad ceil_mode dilations kernel_shape p pads strides"] true "norm of each window" |c, _| pool::mean_pool(c, true);
    "MatMul" "x y bias~" -> "z" ["act act_max act_min math"] true "product of matrices, broadcast; `bias` is added to each row" |c, _| matmul::matmul(c);
    "MatMulInteger" "x y x_zero? y_zero?" -> "z" [""] false "product of bytes into 32-bit integers" |c, _| matmul::matmul_integer(c);
    "Max" "x*" -> "y" [""] true "greatest of tensors, broadcast" elementwise::variadic;
    "MaxPoolChannelsLast" "x" -> "y" ["auto_pad ceil_mode dilations kernel_shape pads strides"] false "greatest of each window of [n, h, w, c]; no ONNX operator" |c, _| last::pool(c, false);
    "MaxPool" "x" -> "y indices" ["auto_pad ceil_mode dilations kernel_shape pads storage_order strides"] true "greatest of each window" |c, _| pool::max_pool(c);
    "MaxUnpool" "x indices shape~" -> "y" ["kernel_shape pads strides"] true "greatest elements put back to where they came from" |c, _| pool::max_unpool(c);
    "Mean" "x*" -> "y" [""] true "mean of tensors, broadcast" elementwise::variadic;
    "MeanVarianceNormalization" "x" -> "y" ["axes"] true "mean taken off, deviation brought to 1" |c, _| norm::mean_variance(c);
    "MelWeightMatrix" "bands! length! rate! low! high!" -> "y" ["dtype"] false "triangles on the mel scale" |c, _| signal::mel(c);
    "Min" "x*" -> "y" [""] true "least of tensors, broadcast" elementwise::variadic;
    "Mish" "x" -> "y" [""] true "x times the hyperbolic tangent of its softplus" unary::unary;
    "Mod" "x y" -> "z" ["fmod"] true "remainder, with the sign of y or (`fmod`) of x" elementwise::binary;
    "Mul" "x y" -> "z" [""] true "product of two tensors, broadcast" elementwise::binary;
    "Neg" "x" -> "y" [""] true "negated" elementwise::arithmetic;
    "NegativeLogLikelihoodLoss" "x target weight?" -> "loss" ["ignore_index reduction"] true "loss of logarithms of probabilities" |c, _| signal::loss(c, false);
    "Not" "x" -> "y" [""] false "the other truth value" elementwise::test;
    "OneHot" "indices depth! values" -> "y" ["axis"] false "one value at an index, another elsewhere" |c, _| places::one_hot(c);
    "Or" "x y" -> "z" [""] false "either true" elementwise::bits;
    "PRelu" "x slope" -> "y" [""] true "x, scaled where it is negative" |c, _| elementwise::prelu(c);
    "Pad" "x pads! value? axes~" -> "y" ["mode"] false "padded" |c, _| movement::pad(c);
    "Pow" "x y" -> "z" [""] true "x to the power y, broadcast" |c, _| elementwise::pow(c);
    "QLinearConv" "x x_scale x_zero w w_scale w_zero y_scale y_zero b?" -> "y" ["auto_pad dilations group kernel_shape pads strides"] false "quantised convolution" |c, _| conv::qlinear_conv(c);
    "QLinearMatMul" "a a_scale a_zero b b_scale b_zero y_scale y_zero" -> "y" [""] false "quantised product of matrices" |c, _| matmul::qlinear_matmul(c);
    "QuantizeLinear" "x scale zero?" -> "y" ["axis block_size output_dtype precision saturate"] false "quantised integers of floats" |c, _| quant::quantize(c);
    "RMSNormalization" "x scale?" -> "y" ["axis epsilon stash_type"] true "divided by the root mean square of the last dimensions" |c, _| norm::layer(c, true);
    "RNN" "x w r b? lengths? h? c? p?" -> "y last" ["activation_alpha activation_beta activations clip direction hidden_size layout"] true "simple recurrent units over a sequence" |c, _| recurrent::recurrent(c, "NnRNN");
    "Range" "start! limit! delta!" -> "y" [""] false "numbers from a start to a limit" |c, _| signal::range(c);
    "Reciprocal" "x" -> "y" [""] true "1 / x" unary::unary;
    "ReduceL1" "x axes~" -> "y" ["keepdims noop_with_empty_axes"] true "sum of absolute values" reduce::reduce;
    "ReduceL2" "x axes~" -> "y" ["keepdims noop_with_empty_axes"] true "root of the sum of squares" reduce::reduce;
    "ReduceLogSum" "x axes~" -> "y" ["keepdims noop_with_empty_axes"] true "logarithm of the sum" reduce::reduce;
    "ReduceLogSumExp" "x axes~" -> "y" ["keepdims noop_with_empty_axes"] true "logarithm of the sum of exponentials" reduce::reduce;
    "ReduceMax" "x axes~" -> "y" ["keepdims noop_with_empty_axes"] true "greatest element" reduce::reduce;
    "ReduceMean" "x axes~" -> "y" ["keepdims noop_with_empty_axes"] true "mean" reduce::reduce;
    "ReduceMin" "x axes~" -> "y" ["keepdims noop_with_empty_axes"] true "least element" reduce::reduce;
    "ReduceProd" "x axes~" -> "y" ["keepdims noop_with_empty_axes"] true "product" reduce::reduce;
    "ReduceSum" "x axes~" -> "y" ["keepdims noop_with_empty_axes"] true "sum" reduce::reduce;
    "ReduceSumSquare" "x axes~" -> "y" ["keepdims noop_with_empty_axes"] true "sum of squares" reduce::reduce;
    "Relu" "x" -> "y" [""] true "x where it is positive, else 0" elementwise::arithmetic;
    "Reshape" "x shape!" -> "y" ["allowzero"] false "the same elements under another shape" |c, _| movement::reshape(c);
    "Resize" "x roi~ scales~ sizes~" -> "y" ["antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value keep_aspect_ratio_policy mode nearest_mode"] true "resized by nearest, linear or cubic interpolation" |c, _| image::resize(c);
    "ReverseSequence" "x lengths" -> "y" ["batch_axis time_axis"] false "the beginning of each sequence turned round" |c, _| places::reverse_sequence(c);
    "RotaryEmbedding" "x cos sin positions?" -> "y" ["interleaved num_heads rotary_embedding_dim"] true "pairs of elements turned by the angle of their position" |c, _| attention::rotary(c);
    "Round" "x" -> "y" [""] true "rounded, ties to even" unary::unary;
    "STFT" "x step! window? length~" -> "y" ["onesided"] true "Fourier transforms of overlapping frames" |c, _| signal::stft(c);
    "ScatterElements" "x indices updates" -> "y" ["axis reduction"] true "elements put where indices say" |c, _| places::scatter_elements(c);
    "ScatterND" "x indices updates" -> "y" ["reduction"] true "blocks put where lists of indices say" |c, _| places::scatter_nd(c);
    "Selu" "x" -> "y" ["alpha gamma"] true "scaled exponential linear unit" unary::unary;
    "Shrink" "x" -> "y" ["bias lambd"] true "drawn towards 0" unary::unary;
    "Sigmoid" "x" -> "y" [""] true "1 / (1 + e^−x)" unary::unary;
    "Sign" "x" -> "y" [""] true "−1, 0 or 1" elementwise::arithmetic;
    "Sin" "x" -> "y" [""] true "sine" unary::unary;
    "Sinh" "x" -> "y" [""] true "hyperbolic sine" unary::unary;
    "Slice" "x starts! ends! axes~ steps~" -> "y" [""] false "a part of each dimension" |c, _| movement::slice(c);
    "Softmax" "x" -> "y" ["axis"] true "softmax along an axis" reduce::softmax;
    "SoftmaxCrossEntropyLoss" "x target weight?" -> "loss log" ["ignore_index reduction"] true "loss of scores" |c, _| signal::loss(c, true);
    "Softplus" "x" -> "y" [""] true "ln(1 + e^x)" unary::unary;
    "Softsign" "x" -> "y" [""] true "x / (1 + |x|)" unary::unary;
    "SpaceToDepth" "x" -> "y" ["blocksize mode"] false "blocks of an image laid out as channels" |c, _| movement::depth_to_space(c, true);
    "Split" "x split~" -> "y*" ["axis num_outputs"] false "parts of an axis" |c, _| movement::split(c);
    "Sqrt" "x" -> "y" [""] true "square root" unary::unary;
    "Squeeze" "x axes~" -> "y" [""] false "without dimensions that are 1 long" |c, _| movement::squeeze(c);
    "Sub" "x y" -> "z" [""] true "difference of two tensors, broadcast" elementwise::binary;
    "Sum" "x*" -> "y" [""] true "sum of tensors, broadcast" elementwise::variadic;
    "SwiGLU" "a b" -> "y" ["alpha"] true "a · sigmoid(alpha · a) · b" |c, _| elementwise::swiglu(c);
    "Swish" "x" -> "y" ["alpha"] true "x · sigmoid(alpha · x)" unary::unary;
    "Tan" "x" -> "y" [""] true "tangent" unary::unary;
    "Tanh" "x" -> "y" [""] true "hyperbolic tangent" unary::unary;
    "TensorScatter" "x update indices?" -> "y" ["axis mode"] false "an update written into a cache" |c, _| places::tensor_scatter(c);
    "ThresholdedRelu" "x" -> "y" ["alpha"] true "x where it is above a threshold, else 0" unary::unary;
    "Tile" "x repeats!" -> "y" [""] false "repeated along each dimension" |c, _| movement::tile(c);
    "TopK" "x k!" -> "y indices" ["axis largest sorted"] true "the k greatest or least elements along an axis" |c, _| reduce::top_k(c);
    "Transpose" "x" -> "y" ["perm"] false "dimensions in another order" |c, _| movement::transpose(c);
    "Trilu" "x k~" -> "y" ["upper"] false "the upper or lower triangle" |c, _| movement::trilu(c);
    "Unsqueeze" "x axes!" -> "y" [""] false "with dimensions 1 long put in" |c, _| movement::unsqueeze(c);
    "Where" "condition x y" -> "z" [""] false "x where a condition holds, else y" |c, _| elementwise::select(c);
    "Xor" "x y" -> "z" [""] false "exactly one true" elementwise::bits;
};
