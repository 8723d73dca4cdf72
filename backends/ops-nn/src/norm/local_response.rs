//! Local response normalisation.

use super::super::attributes;
use zbmd_ir::DType;

use super::super::cx::{Body, Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token, volume};
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

impl LrnSpec {
    /// Neighbours that count below and above a channel. An even size has one more above.
    fn neighbours(&self) -> (usize, usize) {
        ((self.size - 1) / 2, self.size / 2)
    }

    /// What a sum of squares is multiplied by.
    fn square_factor(&self) -> f64 {
        self.alpha / self.size as f64
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

/// The same over images whose channels come last: `[n, height, width, channels]`.
pub(crate) fn lrn_channels_last(cx: &Cx<'_>) -> Planned {
    cx.expect(0, &[DType::F32])?;
    let dims = cx.dims(0)?;
    let &[_, _, _, channels] = &dims[..] else {
        return Err(cx.refuse_type(0, "[n, height, width, channels]"));
    };
    let body = PixelResponse {
        channels,
        spec: LrnSpec::of(cx)?,
    };
    let out = token(DType::F32, &dims);
    Ok(Plan::new(vec![out], body).flops(50.0 * volume(&dims) as f64))
}

struct LocalResponse {
    batch: usize,
    channels: usize,
    /// Elements of a channel.
    plane: usize,
    spec: LrnSpec,
}

/// A row of elements, whose output holds the sums of squares.
struct NormalisedRow<'a, F> {
    input: &'a [F],
    output: &'a mut [F],
    alpha: F,
    bias: F,
    beta: F,
}

impl<F: Float> Loop for NormalisedRow<'_, F> {
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
        let (channels_below, channels_above) = spec.neighbours();
        let alpha = F::of(spec.square_factor());

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

                simd::dispatch(NormalisedRow {
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

/// Normalises pixel by pixel.
struct PixelResponse {
    channels: usize,
    spec: LrnSpec,
}

impl PixelResponse {
    /// Floats of a pixel's squares, with as many zeros around them as neighbours count.
    fn square_count(&self) -> usize {
        self.channels + self.spec.size - 1
    }
}

/// Pixels, and memory for the squares of one.
struct Pixels<'a> {
    body: &'a PixelResponse,
    input: &'a [f32],
    output: &'a mut [f32],
    squares: &'a mut [f32],
}

impl Loop for Pixels<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, isa: Isa<FMA>) {
        let channels = self.body.channels;
        let spec = &self.body.spec;
        let (below, _) = spec.neighbours();
        self.squares.fill(0.0);

        let results = self.output.chunks_exact_mut(channels);
        for (pixel, sums) in self.input.chunks_exact(channels).zip(results) {
            let squares = &mut self.squares[below..][..channels];
            squares
                .iter_mut()
                .zip(pixel)
                .for_each(|(square, x)| *square = x * x);

            // In the order of the channels, as planes are summed up.
            sums.fill(0.0);
            for neighbour in 0..spec.size {
                let squares = &self.squares[neighbour..][..channels];
                sums.iter_mut()
                    .zip(squares)
                    .for_each(|(sum, square)| *sum += square);
            }
            let row = NormalisedRow {
                input: pixel,
                output: sums,
                alpha: spec.square_factor() as f32,
                bias: spec.bias as f32,
                beta: spec.beta as f32,
            };
            row.run(isa);
        }
    }
}

impl Body for PixelResponse {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<f32>(0);
        let output = tensors.out::<f32>(0);
        let squares = &mut tensors.scratch::<f32>()[..self.square_count()];
        if self.channels > 0 {
            simd::dispatch(Pixels {
                body: self,
                input,
                output,
                squares,
            });
        }
    }

    fn scratch_bytes(&self) -> usize {
        4 * self.square_count()
    }
}
