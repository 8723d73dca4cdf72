//! Causal convolutions that carry their past along.

use super::super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token};
use super::super::num::Float;
use super::check_bias;
use zbmd_op::OpError;

/// What a causal convolution is asked to do beside it.
pub(crate) struct CausalConvSpec {
    /// Whether the results are multiplied by their sigmoids.
    pub(crate) silu: bool,
}

impl CausalConvSpec {
    pub(crate) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let activation = cx.args.word_opt("activation")?;
        Ok(Self {
            silu: matches!(activation, Some("silu" | "swish")),
        })
    }
}

/// A causal depthwise convolution along the last dimension, which carries its past along. Operands: the input, the
/// weights, the bias, the past.
pub(crate) fn causal_conv(cx: &Cx<'_>, spec: &CausalConvSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    // Other ranks become shapes that no check below lets pass.
    let [batch, channels, length] = cx.dims(0)?[..].try_into().unwrap_or([0; 3]);
    let [filters, 1, taps] = cx.dims(1)?[..].try_into().unwrap_or([0; 3]) else {
        return Err(cx.refuse_type(1, "[channels, 1, k]"));
    };
    if filters != channels || taps == 0 || length == 0 {
        return Err(cx.refuse_type(1, format!("the input is {}", cx.operand(0)?.ty)));
    }
    check_bias(cx, 2, channels)?;
    let past_length = taps - 1;
    if let Some(past) = cx.opt(3)
        && past.dims() != [batch, channels, past_length]
    {
        return Err(cx.refuse_type(3, format!("[{batch}, {channels}, {past_length}]")));
    }

    let wanted = cx.wanted.iter();
    let outs = wanted
        .map(|&output| {
            let out_length = if output == 0 { length } else { past_length };
            token(dtype, &[batch, channels, out_length])
        })
        .collect();
    let body = CausalConv {
        channels,
        length,
        taps,
        has_silu: spec.silu,
        wants_result: cx.wants(0),
        wants_state: cx.wants(1),
    };
    Ok(Plan::float(dtype, outs, body))
}

struct CausalConv {
    channels: usize,
    length: usize,
    taps: usize,
    has_silu: bool,
    wants_result: bool,
    wants_state: bool,
}

impl FloatBody for CausalConv {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let weights = tensors.get::<F>(1);
        let bias = tensors.opt::<F>(2);
        let past = tensors.opt::<F>(3);
        let output = tensors.out_if::<F>(self.wants_result, 0);
        let state = tensors.out_if::<F>(self.wants_state, usize::from(self.wants_result));

        let length = self.length;
        let past_length = self.taps - 1;
        for (line, line_input) in input.chunks_exact(length).enumerate() {
            let channel = line % self.channels;
            let line_taps = &weights[channel * self.taps..][..self.taps];
            let line_past = past.map(|p| &p[line * past_length..][..past_length]);
            let line_bias = bias.map_or(F::ZERO, |b| b[channel]);

            if let Some(line_output) = output.get_mut(line * length..(line + 1) * length) {
                for (first, result) in line_output.iter_mut().enumerate() {
                    // y(t) = b + Σ_k w_k · s(t + k), s being the past followed by the input.
                    let sum = (0..self.taps).fold(line_bias, |sum, k| {
                        sum + line_taps[k]
                            * with_past(line_input, line_past, past_length, first + k)
                    });
                    *result = if self.has_silu {
                        sum * sum.sigmoid()
                    } else {
                        sum
                    };
                }
            }

            // The next past is the end of this one followed by the input, however short the input is.
            let state_range = line * past_length..(line + 1) * past_length;
            if let Some(line_state) = state.get_mut(state_range) {
                for (j, element) in line_state.iter_mut().enumerate() {
                    *element = with_past(line_input, line_past, past_length, length + j);
                }
            }
        }
    }
}

/// Element `place` of the past followed by the input; a missing past is zeros.
#[inline(always)]
fn with_past<F: Float>(
    line_input: &[F],
    line_past: Option<&[F]>,
    past_length: usize,
    place: usize,
) -> F {
    match place.checked_sub(past_length) {
        Some(i) => line_input[i],
        None => line_past.map_or(F::ZERO, |past| past[place]),
    }
}
