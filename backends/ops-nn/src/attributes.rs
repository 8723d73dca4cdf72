//! Parameters that more than one family of operators has. Each is named and read here, once, so that no two operators
//! can disagree about it: a parameter that only one file reads is named in that file (`one_reader.rs` among the tests
//! checks both).

use zbmd_ir::{DType, Value};

use super::cx::Cx;
use super::gemm::Act;
use zbmd_op::OpError;
use zbmd_op::args::Args;

/// How many outputs an operator with any number of outputs has.
const NUM_OUTPUTS: &str = "num_outputs";
/// The size of a window.
const KERNEL_SHAPE: &str = "kernel_shape";
/// The exponent of a norm.
const NORM_EXPONENT: &str = "p";

/// The activation that a compiler pass has put into an op.
pub(crate) fn activation(cx: &Cx<'_>) -> Result<Act, OpError> {
    let word = cx.args.word_opt("act")?.unwrap_or("none");
    Ok(match word {
        "none" => Act::None,
        "relu" => Act::Relu,
        "clip" => Act::Clip(
            cx.args.float_or("act_min", f64::from(f32::MIN))? as f32,
            cx.args.float_or("act_max", f64::from(f32::MAX))? as f32,
        ),
        "sigmoid" => Act::Sigmoid,
        "tanh" => Act::Tanh,
        "silu" => Act::Silu,
        "gelu" => Act::Gelu,
        "hardswish" => Act::HardSwish,
        other => {
            let known_words = [
                "none",
                "relu",
                "clip",
                "sigmoid",
                "tanh",
                "silu",
                "gelu",
                "hardswish",
            ];
            return Err(cx.args.unknown_word("act", other, &known_words));
        }
    })
}

/// A factor or slope; what it scales is the operator's own.
pub(crate) fn alpha(cx: &Cx<'_>, default: f64) -> Result<f64, OpError> {
    cx.args.float_or("alpha", default)
}

/// A second factor or exponent.
pub(crate) fn beta(cx: &Cx<'_>, default: f64) -> Result<f64, OpError> {
    cx.args.float_or("beta", default)
}

/// The dimension that an operator works along, as it is given: counted from the last where negative.
pub(crate) fn axis(cx: &Cx<'_>, default: i64) -> Result<i64, OpError> {
    cx.args.int_or("axis", default)
}

/// A refusal of a dimension that does not exist.
pub(crate) fn refuse_axis(cx: &Cx<'_>, axis: i64, rank: usize) -> OpError {
    let help = format!("there are {rank} dimensions");
    cx.args.error("axis", format!("is {axis}"), help)
}

impl Cx<'_> {
    /// An axis in [−rank, rank), made positive.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Result<usize, OpError> {
        let positive = if axis < 0 { axis + rank as i64 } else { axis };
        if (0..rank as i64).contains(&positive) {
            return Ok(positive as usize);
        }
        Err(refuse_axis(self, axis, rank))
    }

    /// The parameter `axis`, made positive.
    pub(crate) fn axis_param(&self, default: i64, rank: usize) -> Result<usize, OpError> {
        self.axis(axis(self, default)?, rank)
    }
}

/// The dimensions that an operator works along, if they are given.
pub(crate) fn axes(cx: &Cx<'_>, rank: usize) -> Result<Option<Vec<usize>>, OpError> {
    let Some(axes) = cx.args.ints_opt("axes")? else {
        return Ok(None);
    };
    let positive = axes.iter().map(|&axis| cx.axis(axis, rank));
    positive.collect::<Result<_, _>>().map(Some)
}

/// Steps of a window along each spatial dimension.
pub(crate) fn strides(cx: &Cx<'_>, rank: usize) -> Result<Vec<usize>, OpError> {
    cx.sizes("strides", rank, 1)
}

/// Distances of kernel elements along each spatial dimension.
pub(crate) fn dilations(cx: &Cx<'_>, rank: usize) -> Result<Vec<usize>, OpError> {
    cx.sizes("dilations", rank, 1)
}

/// A refusal of strides or dilations that do not move.
pub(crate) fn refuse_zero_strides(cx: &Cx<'_>) -> OpError {
    cx.args
        .error("strides", "or `dilations` holds 0", "at least 1")
}

/// Padding before each spatial dimension, then behind each.
pub(crate) fn pads(cx: &Cx<'_>, rank: usize) -> Result<Vec<usize>, OpError> {
    cx.sizes("pads", 2 * rank, 0)
}

/// A refusal of the padding, or of what follows from it.
pub(crate) fn refuse_pads(cx: &Cx<'_>, message: &str, help: &str) -> OpError {
    cx.args.error("pads", message, help)
}

/// How padding is chosen.
pub(crate) fn auto_pad<'a>(cx: &Cx<'a>) -> Result<&'a str, OpError> {
    Ok(cx.args.word_opt("auto_pad")?.unwrap_or("NOTSET"))
}

/// A refusal of a word that says how padding is chosen.
pub(crate) fn refuse_auto_pad(cx: &Cx<'_>, word: &str) -> OpError {
    let known_words = ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"];
    cx.args.unknown_word("auto_pad", word, &known_words)
}

/// Groups of channels that are convolved apart.
pub(crate) fn groups(cx: &Cx<'_>) -> Result<usize, OpError> {
    Ok(cx.args.uint_or("group", 1, 1, 1 << 30)? as usize)
}

/// The size of a window along each spatial dimension.
pub(crate) fn kernel_shape(cx: &Cx<'_>, rank: usize) -> Result<Vec<usize>, OpError> {
    cx.sizes(KERNEL_SHAPE, rank, 1)
}

/// Refuses an operator without the size of its window.
pub(crate) fn require_kernel_shape(cx: &Cx<'_>) -> Result<(), OpError> {
    match cx.args.get(KERNEL_SHAPE) {
        Some(_) => Ok(()),
        None => {
            let help = "one size for each spatial dimension";
            Err(cx.args.error(KERNEL_SHAPE, "is missing", help))
        }
    }
}

/// Whether padding counts as elements in the mean of a window.
pub(crate) fn counts_padding(cx: &Cx<'_>) -> Result<bool, OpError> {
    cx.flag("count_include_pad", false)
}

/// The exponent of a norm of any kind.
pub(crate) fn any_norm_exponent(cx: &Cx<'_>) -> Result<i64, OpError> {
    cx.args.int_or(NORM_EXPONENT, 2)
}

/// The exponent of a norm that is a sum of magnitudes (1) or Euclid's (2).
pub(crate) fn small_norm_exponent(cx: &Cx<'_>) -> Result<u64, OpError> {
    cx.args.uint_or(NORM_EXPONENT, 2, 1, 2)
}

/// A number that is added.
pub(crate) fn bias(cx: &Cx<'_>, default: f64) -> Result<f64, OpError> {
    cx.args.float_or("bias", default)
}

/// In which direction bits are shifted or a sequence is gone through.
pub(crate) fn direction<'a>(cx: &Cx<'a>) -> Result<Option<&'a str>, OpError> {
    cx.args.word_opt("direction")
}

/// A word for the operator's way of working.
pub(crate) fn mode<'a>(cx: &Cx<'a>) -> Result<Option<&'a str>, OpError> {
    cx.args.word_opt("mode")
}

/// A refusal of such a word.
pub(crate) fn refuse_mode(cx: &Cx<'_>, word: &str, known_words: &[&str]) -> OpError {
    cx.args.unknown_word("mode", word, known_words)
}

/// A word that says how elements that meet are joined.
pub(crate) fn reduction<'a>(cx: &Cx<'a>) -> Result<Option<&'a str>, OpError> {
    cx.args.word_opt("reduction")
}

/// A refusal of such a word.
pub(crate) fn refuse_reduction(cx: &Cx<'_>, word: &str, known_words: &[&str]) -> OpError {
    cx.args.unknown_word("reduction", word, known_words)
}

/// The element type of the result.
pub(crate) fn result_dtype(cx: &Cx<'_>, default: DType) -> Result<DType, OpError> {
    cx.args.dtype_or("dtype", default)
}

/// How many outputs there are, where that is given as an integer.
pub(crate) fn given_outputs(args: &Args<'_>) -> Option<i64> {
    args.get(NUM_OUTPUTS).and_then(Value::as_int)
}

/// How many outputs there are, 1 to 31.
pub(crate) fn num_outputs(cx: &Cx<'_>, default: u64) -> Result<usize, OpError> {
    Ok(cx.args.uint_or(NUM_OUTPUTS, default, 1, 31)? as usize)
}
