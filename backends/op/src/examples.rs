//! Inputs for the examples of the catalogue: shapes for which they resolve. The reference page, and tests of all ops,
//! start from them.

use zbmd_ir::{DType, TokenType};

use crate::Op;
use crate::types::TypeSchema;

/// Op, and the types of its inputs, where one type of the shape [`COMMON_SHAPE`] on every input that must be there will
/// not do. `T` stands for the element type that is tried; a type without a shape is a scalar.
const INPUTS: &[(&str, &str)] = &[
    ("AllReduce", "x0:T[8] x1:T[8]"),
    ("Convert", "x:T[2,2]"),
    ("Expr", "g:T m:T"),
    ("Fft", "x:T[8]"),
    ("Gather", "x0:T x1:T"),
    ("Irfft", "x:T[257]"),
    ("MatMul", "x:T[2,2]"),
    ("Mean", "x:T[8]"),
    ("Merge", "x0:T x1:T"),
    ("NnAffineChannelsLast", "x:T[1,4,4,2]"),
    ("NnAffineGrid", "theta:T[1,2,3]"),
    ("NnAttention", "q:T[1,2,4,4] k:T[1,2,4,4] v:T[1,2,4,4]"),
    ("NnAveragePool", "x:T[1,2,4,4]"),
    ("NnAveragePoolChannelsLast", "x:T[1,4,4,2]"),
    (
        "NnBatchNormalization",
        "x:T[1,2,4,4] scale:T[2] bias:T[2] mean:T[2] var:T[2]",
    ),
    ("NnCausalConvWithState", "x:T[1,2,8] w:T[2,1,3]"),
    ("NnCenterCropPad", "x:T[4,4]"),
    ("NnCol2Im", "x:T[1,4,4]"),
    ("NnConcat", "x0:T[4,4] x1:T[2,4]"),
    ("NnConv", "x:T[1,2,4,4] w:T[3,2,2,2]"),
    ("NnConvChannelsLast", "x:T[1,4,4,1]"),
    ("NnConvInteger", "x:T[1,2,4,4] w:T[3,2,2,2]"),
    ("NnConvTranspose", "x:T[1,1,4,4] w:T[1,1,2,2]"),
    ("NnCumProd", "x:T[4,4]"),
    ("NnCumSum", "x:T[4,4]"),
    ("NnDFT", "x:T[1,8,2]"),
    ("NnDepthToSpace", "x:T[1,4,2,2]"),
    ("NnDequantizeLinear", "x:T[4] scale:f32"),
    ("NnEinsum", "x0:T[4,4] x1:T[4,4]"),
    ("NnExpand", "x:T[4]"),
    ("NnGRU", "x:T[2,1,3] w:T[1,6,3] r:T[1,6,2]"),
    ("NnGather", "x:T[8] indices:i64[2]"),
    ("NnGatherElements", "x:T[4,4] indices:i64[2,4]"),
    ("NnGatherND", "x:T[4,4] indices:i64[2,2]"),
    ("NnGemm", "a:T[4,4] b:T[4,4]"),
    ("NnGlobalAveragePool", "x:T[1,2,4,4]"),
    ("NnGlobalAveragePoolChannelsLast", "x:T[1,4,4,2]"),
    ("NnGlobalLpPool", "x:T[1,2,4,4]"),
    ("NnGlobalMaxPool", "x:T[1,2,4,4]"),
    ("NnGridSample", "x:T[1,1,4,4] grid:T[1,2,2,2]"),
    ("NnDynamicQuantizeLSTM", "x:T[2,1,1]"),
    ("NnGroupNormalization", "x:T[1,2,4,4] scale:T[2] bias:T[2]"),
    (
        "NnInstanceNormalization",
        "x:T[1,2,4,4] scale:T[2] bias:T[2]",
    ),
    ("NnLRN", "x:T[1,2,4,4]"),
    ("NnLRNChannelsLast", "x:T[1,4,4,4]"),
    ("NnLSTM", "x:T[2,1,3] w:T[1,8,3] r:T[1,8,2]"),
    ("NnLpPool", "x:T[1,2,4,4]"),
    ("NnMax", "x0:T[4,4] x1:T[4]"),
    ("NnMaxPool", "x:T[1,2,4,4]"),
    ("NnMaxPoolChannelsLast", "x:T[1,4,4,2]"),
    ("NnMaxUnpool", "x:T[1,1,2,2] indices:i64[1,1,2,2]"),
    ("NnMean", "x0:T[4,4] x1:T[4]"),
    ("NnMeanVarianceNormalization", "x:T[1,2,4,4]"),
    ("NnMin", "x0:T[4,4] x1:T[4]"),
    ("NnNegativeLogLikelihoodLoss", "x:T[2,3] target:i64[2]"),
    ("NnOneHot", "indices:i64[3] values:T[2]"),
    ("NnPad", "x:T[4,4]"),
    (
        "NnQLinearConv",
        "x:T[1,1,4,4] x_scale:f32 x_zero:T w:T[1,1,2,2] w_scale:f32 w_zero:T y_scale:f32 y_zero:T",
    ),
    ("NnQLinearConvChannelsLast", "x:T[1,4,4,1]"),
    ("NnQLinearGlobalAveragePool", "x:T[1,2,4,4]"),
    (
        "NnQLinearMatMul",
        "a:T[2,2] a_scale:f32 a_zero:T b:T[2,2] b_scale:f32 b_zero:T y_scale:f32 y_zero:T",
    ),
    ("NnQuantizeLinear", "x:T[4,4] scale:f32"),
    ("NnRNN", "x:T[2,1,3] w:T[1,2,3] r:T[1,2,2]"),
    ("NnReshape", "x:T[4,4]"),
    ("NnResize", "x:T[1,1,4,4]"),
    ("NnReverseSequence", "x:T[4,2] lengths:i64[2]"),
    (
        "NnRotaryEmbedding",
        "x:T[1,2,3,4] cos:T[1,3,2] sin:T[1,3,2]",
    ),
    ("NnSTFT", "x:T[1,16,1] window:T[8]"),
    (
        "NnScatterElements",
        "x:T[4,4] indices:i64[2,4] updates:T[2,4]",
    ),
    ("NnScatterND", "x:T[4,4] indices:i64[2,1] updates:T[2,4]"),
    ("NnSlice", "x:T[4,4]"),
    ("NnSoftmaxCrossEntropyLoss", "x:T[2,3] target:i64[2]"),
    ("NnSpaceToDepth", "x:T[1,1,4,4]"),
    ("NnSplit", "x:T[4,4]"),
    ("NnSqueeze", "x:T[1,4]"),
    ("NnSum", "x0:T[4,4] x1:T[4]"),
    ("NnSwiGLU", "a:T[4,4] b:T[4,4]"),
    ("NnTensorScatter", "x:T[1,4,2] update:T[1,2,2]"),
    ("NnTile", "x:T[4,4]"),
    ("NnTopK", "x:T[8]"),
    ("NnUnsqueeze", "x:T[4]"),
    ("NnWhere", "condition:bool[4] x:T[4] y:T[4]"),
    ("OverlapAdd", "x:T[512]"),
    ("Rfft", "x:T[8]"),
    ("Sum", "x:T[8]"),
    ("Transpose", "x:T[4,4]"),
    ("Window", "x:T[8]"),
];

/// A shape that most ops take.
const COMMON_SHAPE: [u32; 2] = [4, 4];

/// Inputs of an op's example by name, with `tried` in the place of the type that may vary.
pub fn example_inputs(op: &dyn Op, tried: DType) -> Vec<(String, TokenType)> {
    let row = INPUTS.iter().find(|(name, _)| *name == op.name());
    if let Some((_, inputs)) = row {
        let inputs = inputs.split_whitespace();
        return inputs.filter_map(|text| parse_input(text, tried)).collect();
    }

    // Ops that look at single samples take scalars, tensor ops tensors.
    let is_tensor_op = op.name().starts_with("Nn");
    let shape: &[u32] = if is_tensor_op { &COMMON_SHAPE } else { &[] };
    let ports = op
        .types()
        .map_or(&[][..], |types: &TypeSchema| &types.inputs);
    let needed = ports
        .iter()
        .filter(|p| !p.optional && !p.constant && p.name != "_");
    needed
        .map(|port| {
            let name = if port.many {
                format!("{}0", port.name)
            } else {
                port.name.to_owned()
            };
            let token = match port.burst {
                true => TokenType::burst(tried, COMMON_SHAPE),
                false => TokenType::new(tried, shape),
            };
            (name, token)
        })
        .collect()
}

/// Reads `x:T[4,4]` or `i:i64[2]`.
fn parse_input(text: &str, tried: DType) -> Option<(String, TokenType)> {
    let (name, token) = text.split_once(':')?;
    let (word, dims) = token.split_once('[').unwrap_or((token, ""));
    let dims = dims
        .trim_end_matches(']')
        .split(',')
        .filter(|d| !d.is_empty());
    let shape = dims.map(|d| d.parse().ok()).collect::<Option<Vec<u32>>>()?;
    let dtype = match word {
        "T" => tried,
        word => DType::from_name(word)?,
    };
    Some((name.to_owned(), TokenType::new(dtype, shape)))
}
