//! Local response normalisation.

use super::super::attributes;
use super::super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token, volume};
use super::super::num::Float;
use zbmd_op::OpError;
use zbmd_op::simd::{self, Isa, Loop};

/// Local response normalisation over neighbouring channels.
#[derive(Clone, Copy)]
pub(crate) struct LrnSpec {
    /// Channels that count.
    pub(crate) size: usize,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    pub(crate) bias: f64,
}

impl LrnSpec {
    pub(crate) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            size: cx.args.uint("size", 1, 1 << 20)? as usize,
            alpha: attributes::alpha(cx, 1e-4)?,
            beta: attributes::beta(cx, 0.75)?,
            bias: attributes::bias(cx, 1.0)?,
        })
    }
}

/// `x / (bias + alpha / size · Σ x²)^beta`, the sum over neighbouring channels.
pub(crate) fn lrn(cx: &Cx<'_>, spec: &LrnSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let [batch, channels, ..] = dims[..] else {
        return Err(cx.refuse_type(0, "[n, channels, spatial…]"));
    };
    let body = LocalResponse {
        batch,
        channels,
        plane: volume(&dims[2..]),
        spec: *spec,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &dims)], body).flops(50.0 * volume(&dims) as f64))
}

struct LocalResponse {
    batch: usize,
    channels: usize,
    /// Elements of a channel.
    plane: usize,
    spec: LrnSpec,
}

/// One channel, whose output holds the sums of squares.
struct ChannelRow<'a, F> {
    input: &'a [F],
    output: &'a mut [F],
    alpha: F,
    bias: F,
    beta: F,
}

impl<F: Float> Loop for ChannelRow<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        // The usual exponent of 3/4 is two square roots: many times as fast as a power.
        if self.beta == F::of(0.75) {
            for (y, &x) in self.output.iter_mut().zip(self.input) {
                let root = (self.bias + self.alpha * *y).sqrt();
                *y = x / (root * root.sqrt());
            }
            return;
        }
        for (y, &x) in self.output.iter_mut().zip(self.input) {
            *y = x / (self.bias + self.alpha * *y).powf(self.beta);
        }
    }
}

impl FloatBody for LocalResponse {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let output = tensors.out::<F>(0);
        let spec = &self.spec;
        // An even size has one more channel above: [c − ⌊(n − 1) / 2⌋, c + ⌈(n − 1) / 2⌉].
        let channels_below = (spec.size - 1) / 2;
        let channels_above = spec.size / 2;
        let alpha = F::of(spec.alpha / spec.size as f64);

        for batch in 0..self.batch {
            for channel in 0..self.channels {
                let row_start = |c: usize| (batch * self.channels + c) * self.plane;
                // The output holds the sums of squares until they are replaced by the results.
                let sums = &mut output[row_start(channel)..][..self.plane];
                sums.fill(F::ZERO);
                let first = channel.saturating_sub(channels_below);
                let last = (channel + channels_above).min(self.channels - 1);
                for neighbour in first..=last {
                    let row = &input[row_start(neighbour)..][..self.plane];
                    sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += x * x);
                }

                simd::dispatch(ChannelRow {
                    input: &input[row_start(channel)..][..self.plane],
                    output: sums,
                    alpha,
                    bias: F::of(spec.bias),
                    beta: F::of(spec.beta),
                });
            }
        }
    }
}
