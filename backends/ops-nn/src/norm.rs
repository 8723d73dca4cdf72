//! Normalisations.

mod axes;
mod determinant;
mod local_response;

use zbmd_ir::DType;

use super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token, volume};
use super::index::{Walk, broadcast};
use super::num::Float;
use zbmd_op::simd::{self, CHAINS, Isa, Loop, fold_chains};
use zbmd_op::{OpError, team};

pub(super) use axes::{LpNormSpec, MEAN_VARIANCE_EPSILON, MeanVarianceSpec, lp, mean_variance};
pub(super) use determinant::det;
pub(super) use local_response::{LrnSpec, lrn, lrn_channels_last};

/// Normalisation of batches.
pub(super) struct BatchNormSpec {
    /// Whether mean and variance are those of the input, and running ones are wanted.
    pub(super) is_training: bool,
    pub(super) epsilon: f64,
    momentum: f64,
}

impl BatchNormSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            is_training: cx.flag("training_mode", false)?,
            epsilon: epsilon(cx)?,
            momentum: cx.args.float_or("momentum", 0.9)?,
        })
    }
}

/// What is added to a variance.
fn epsilon(cx: &Cx<'_>) -> Result<f64, OpError> {
    cx.args.float_or("epsilon", 1e-5)
}

/// Refuses an operand that is not one number for each channel.
fn check_per_channel(cx: &Cx<'_>, i: usize, channels: usize) -> Result<(), OpError> {
    match cx.opt(i) {
        Some(operand) if operand.ty.elements() != channels as u64 => {
            Err(cx.refuse_type(i, format!("one number for each of {channels} channels")))
        }
        _ => Ok(()),
    }
}

/// Operands: the input, scale, bias, mean, variance.
pub(super) fn batch(cx: &Cx<'_>, spec: &BatchNormSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let channels = dims.get(1).copied().unwrap_or(1);
    for i in 1..5 {
        cx.operand(i)?;
        check_per_channel(cx, i, channels)?;
    }
    if !spec.is_training && cx.wanted.iter().any(|&output| output > 0) {
        return Err(Cx::other(
            "only the first output exists outside of training",
            "leave the others out",
        ));
    }

    let mut outs = Vec::new();
    for &output in &cx.wanted {
        outs.push(match output {
            0 => cx.operand(0)?.ty.clone(),
            _ => token(dtype, &[channels]),
        });
    }
    let body = BatchNorm {
        channels,
        plane: volume(dims.get(2..).unwrap_or_default()),
        batch: dims.first().copied().unwrap_or(1),
        epsilon: spec.epsilon,
        momentum: spec.momentum,
        is_training: spec.is_training,
        wants: [cx.wants(0), cx.wants(1), cx.wants(2)],
    };
    Ok(Plan::float(dtype, outs, body).flops(2.0 * volume(&dims) as f64))
}

struct BatchNorm {
    channels: usize,
    /// Elements of a channel of one batch.
    plane: usize,
    batch: usize,
    epsilon: f64,
    momentum: f64,
    is_training: bool,
    /// The result, the running mean, the running variance.
    wants: [bool; 3],
}

impl BatchNorm {
    /// First elements of the planes of a channel.
    fn plane_starts(&self, channel: usize) -> impl Iterator<Item = usize> {
        let plane = self.plane;
        let channels = self.channels;
        (0..self.batch).map(move |b| (b * channels + channel) * plane)
    }

    /// Mean and variance of a channel of the input, in f64: a batch may have millions of elements.
    fn statistics_of<F: Float>(&self, input: &[F], channel: usize) -> Statistics {
        // Two passes, E[(x − E x)²]: the one-pass E[x²] − (E x)² cancels where the mean is large.
        let count = (self.batch * self.plane) as f64;
        let elements = || {
            self.plane_starts(channel)
                .flat_map(|start| &input[start..start + self.plane])
                .map(|element| element.f64())
        };
        let mean = elements().sum::<f64>() / count;
        let squares = elements().map(|v| (v - mean) * (v - mean));
        Statistics {
            mean,
            variance: squares.sum::<f64>() / count,
        }
    }

    /// A running statistic after this batch.
    fn running<F: Float>(&self, before: F, now: f64) -> F {
        F::of(before.f64() * self.momentum + now * (1.0 - self.momentum))
    }
}

struct Statistics {
    mean: f64,
    variance: f64,
}

impl FloatBody for BatchNorm {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let scale = tensors.get::<F>(1);
        let bias = tensors.get::<F>(2);
        let given_mean = tensors.get::<F>(3);
        let given_variance = tensors.get::<F>(4);
        let [output, running_mean, running_variance] = tensors.outs_if::<F, 3>(self.wants);

        for c in 0..self.channels {
            let mut statistics = Statistics {
                mean: given_mean[c].f64(),
                variance: given_variance[c].f64(),
            };
            if self.is_training {
                // running = running · momentum + current · (1 − momentum), and the result uses the current ones.
                statistics = self.statistics_of(input, c);
                if let Some(mean) = running_mean.get_mut(c) {
                    *mean = self.running(given_mean[c], statistics.mean);
                }
                if let Some(variance) = running_variance.get_mut(c) {
                    *variance = self.running(given_variance[c], statistics.variance);
                }
            }
            // The result itself may not be wanted, only the running statistics.
            if output.is_empty() {
                continue;
            }

            // scale · (x − mean) / deviation + bias as one product and one sum for each element.
            let deviation = F::of((statistics.variance + self.epsilon).sqrt());
            let factor = scale[c] / deviation;
            let term = bias[c] - factor * F::of(statistics.mean);
            for start in self.plane_starts(c) {
                let plane_output = &mut output[start..start + self.plane];
                for (result, &x) in plane_output.iter_mut().zip(&input[start..]) {
                    *result = x * factor + term;
                }
            }
        }
    }
}

/// What an element of a layer normalisation takes, in multiplications in vectors.
const LAYER_NORM_COST: usize = 64;

/// Layer and RMS normalisation: over all dimensions from an axis on.
pub(super) struct LayerNormSpec {
    /// Whether the mean stays.
    pub(super) is_rms: bool,
    pub(super) axis: usize,
    pub(super) epsilon: f64,
}

impl LayerNormSpec {
    pub(super) fn of(cx: &Cx<'_>, is_rms: bool) -> Result<Self, OpError> {
        Ok(Self {
            is_rms,
            axis: cx.axis_param(-1, cx.dims(0)?.len())?,
            epsilon: epsilon(cx)?,
        })
    }
}

/// Operands: the input, scale, bias. Outputs: the result, means, inverse deviations.
pub(super) fn layer(cx: &Cx<'_>, spec: &LayerNormSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    // Statistics keep the rank: 1 for each dimension that they were taken over.
    let (outer_dims, row_dims) = dims.split_at(spec.axis);

    let mut statistics_dims = outer_dims.to_vec();
    statistics_dims.resize(dims.len(), 1);
    let wanted = cx.wanted.iter();
    let outs = wanted
        .map(|&output| match output {
            0 => token(dtype, &dims),
            _ => token(DType::F32, &statistics_dims),
        })
        .collect();
    let body = LayerNorm {
        row_length: volume(row_dims),
        epsilon: spec.epsilon,
        is_rms: spec.is_rms,
        scale_walk: row_walk(cx, 1, row_dims)?,
        bias_walk: row_walk(cx, 2, row_dims)?,
        wants: [cx.wants(0), cx.wants(1), cx.wants(2)],
    };
    Ok(Plan::float(dtype, outs, body).flops(30.0 * volume(&dims) as f64))
}

/// How an operand is broadcast over a row, if it is there.
fn row_walk(cx: &Cx<'_>, i: usize, row_dims: &[usize]) -> Result<Option<Walk<1>>, OpError> {
    let Some(operand) = cx.opt(i) else {
        return Ok(None);
    };
    let own_dims = operand.dims();
    if broadcast(&[&own_dims, row_dims])? != row_dims {
        return Err(cx.refuse_type(i, format!("it must fit {row_dims:?}")));
    }
    Walk::broadcasting(row_dims, [&own_dims]).map(Some)
}

struct LayerNorm {
    row_length: usize,
    epsilon: f64,
    is_rms: bool,
    scale_walk: Option<Walk<1>>,
    bias_walk: Option<Walk<1>>,
    wants: [bool; 3],
}

/// Mean and inverse deviation of a row, in sixteen chains.
struct Moments<'a, F> {
    row: &'a [F],
    is_rms: bool,
    epsilon: f64,
}

/// What a row is normalised by.
struct RowScale {
    mean: f64,
    inverse_deviation: f64,
}

impl<F: Float> Loop for Moments<'_, F> {
    type Out = RowScale;
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) -> RowScale {
        let count = self.row.len() as f64;
        let (whole, rest) = self.row.as_chunks::<CHAINS>();

        let mut mean = 0.0;
        if !self.is_rms {
            let mut sums = [0.0_f64; CHAINS];
            for chunk in whole {
                for l in 0..CHAINS {
                    sums[l] += chunk[l].f64();
                }
            }
            sums.iter_mut().zip(rest).for_each(|(s, v)| *s += v.f64());
            mean = fold_chains(sums, |a, b| a + b) / count;
        }

        // A second pass: squares of what is left cannot cancel, as sums of squares less squares of sums would.
        let mut squares = [0.0_f64; CHAINS];
        for chunk in whole {
            for l in 0..CHAINS {
                let difference = chunk[l].f64() - mean;
                squares[l] += difference * difference;
            }
        }
        squares
            .iter_mut()
            .zip(rest)
            .for_each(|(s, v)| *s += (v.f64() - mean) * (v.f64() - mean));
        let variance = fold_chains(squares, |a, b| a + b) / count;
        RowScale {
            mean,
            inverse_deviation: 1.0 / (variance + self.epsilon).sqrt(),
        }
    }
}

/// Rows normalised, then scaled and shifted. All of them in one loop, so that a processor begins with the next one's sums while
/// it waits for this one's.
struct NormalisedRows<'a, F> {
    norm: &'a LayerNorm,
    input: &'a [F],
    output: &'a mut [F],
    scale: Option<RowParameter<'a, F>>,
    bias: Option<RowParameter<'a, F>>,
}

impl<F: Float> Loop for NormalisedRows<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, isa: Isa<FMA>) {
        let row_length = self.norm.row_length.max(1);
        let rows = self.input.chunks_exact(row_length);
        for (row, output) in rows.zip(self.output.chunks_exact_mut(row_length)) {
            let RowScale {
                mean,
                inverse_deviation,
            } = self.norm.moments(row).run(isa);
            let (mean, inverse_deviation) = (F::of(mean), F::of(inverse_deviation));
            let normalised = |x: F| (x - mean) * inverse_deviation;

            if let (Some(RowParameter::Whole(scale)), Some(RowParameter::Whole(bias))) =
                (self.scale, self.bias)
            {
                let parameters = scale.iter().zip(bias);
                for ((y, &x), (&s, &b)) in output.iter_mut().zip(row).zip(parameters) {
                    *y = normalised(x) * s + b;
                }
                continue;
            }
            for (y, &x) in output.iter_mut().zip(row) {
                *y = normalised(x);
            }
            join_parameter(output, self.scale, |y, s| y * s);
            join_parameter(output, self.bias, |y, b| y + b);
        }
    }
}

/// Joins each element of a row with a parameter, if there is one.
#[inline(always)]
fn join_parameter<F: Float>(
    row: &mut [F],
    parameter: Option<RowParameter<'_, F>>,
    join: impl Fn(F, F) -> F,
) {
    match parameter {
        Some(RowParameter::Whole(elements)) => row
            .iter_mut()
            .zip(elements)
            .for_each(|(y, &p)| *y = join(*y, p)),
        Some(RowParameter::Spread(walk, elements)) => walk.each(|to, [from]| {
            for i in 0..walk.inner {
                let parameter = elements[from + i * walk.step[0] as usize];
                row[to + i] = join(row[to + i], parameter);
            }
        }),
        None => {}
    }
}

impl FloatBody for LayerNorm {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let walks = [&self.scale_walk, &self.bias_walk].map(Option::as_ref);
        let [scale, bias] =
            [0, 1].map(|k| RowParameter::of(walks[k], tensors.opt::<F>(1 + k), self.row_length));
        let [wants_result, wants_means, wants_deviations] = self.wants;
        // Only outputs that are wanted have a number.
        let means_output = usize::from(wants_result);
        let deviations_output = means_output + usize::from(wants_means);
        let output = tensors.out_if::<F>(wants_result, 0);
        let means = tensors.out_if::<f32>(wants_means, means_output);
        let deviations = tensors.out_if::<f32>(wants_deviations, deviations_output);

        let row_length = self.row_length.max(1);
        for r in 0..means.len().max(deviations.len()) {
            let row = &input[r * self.row_length..][..self.row_length];
            let row_scale = simd::dispatch_widest(self.moments(row));
            if let Some(mean) = means.get_mut(r) {
                *mean = row_scale.mean as f32;
            }
            if let Some(deviation) = deviations.get_mut(r) {
                *deviation = row_scale.inverse_deviation as f32;
            }
        }

        let work = LAYER_NORM_COST * output.len();
        team::share_slice(work, output, row_length, &|first, output_rows| {
            simd::dispatch_widest(NormalisedRows {
                norm: self,
                input: &input[first * row_length..],
                output: output_rows,
                scale,
                bias,
            });
        });
    }
}

/// What rows are multiplied by, or what is added to them.
#[derive(Clone, Copy)]
enum RowParameter<'a, F> {
    /// One for each element of a row.
    Whole(&'a [F]),
    /// Broadcast over a row.
    Spread(&'a Walk<1>, &'a [F]),
}

impl<'a, F> RowParameter<'a, F> {
    fn of(walk: Option<&'a Walk<1>>, parameters: Option<&'a [F]>, length: usize) -> Option<Self> {
        let (walk, parameters) = walk.zip(parameters)?;
        Some(match parameters.len() == length {
            true => Self::Whole(parameters),
            false => Self::Spread(walk, parameters),
        })
    }
}

impl LayerNorm {
    fn moments<'a, F>(&self, row: &'a [F]) -> Moments<'a, F> {
        Moments {
            row,
            is_rms: self.is_rms,
            epsilon: self.epsilon,
        }
    }
}

/// Instance and group normalisation; also over the first dimensions alone.
pub(super) struct GroupNormSpec {
    pub(super) groups: usize,
    pub(super) epsilon: f64,
}

impl GroupNormSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            groups: cx.args.uint("num_groups", 1, 1 << 30)? as usize,
            epsilon: epsilon(cx)?,
        })
    }

    /// Each channel is a group.
    pub(super) fn of_instance(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            groups: cx.dims(0)?.get(1).copied().unwrap_or(0),
            epsilon: epsilon(cx)?,
        })
    }
}

pub(super) fn group(cx: &Cx<'_>, spec: &GroupNormSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let channels = dims.get(1).copied().unwrap_or(0);
    let groups = spec.groups;
    if channels == 0 || groups == 0 || !channels.is_multiple_of(groups) {
        let help = format!("a multiple of {groups} groups");
        return Err(cx.refuse(0, format!("has {channels} channels"), help));
    }

    // Up to opset 20 there is one scale for each group.
    let scales_groups = cx
        .opt(1)
        .is_some_and(|s| s.ty.elements() as usize == groups);
    let parameters = if scales_groups { groups } else { channels };
    check_per_channel(cx, 1, parameters)?;
    check_per_channel(cx, 2, parameters)?;
    let body = GroupNorm {
        channels,
        groups,
        plane: volume(&dims[2..]).max(1),
        parameters,
        epsilon: spec.epsilon,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &dims)], body).flops(30.0 * volume(&dims) as f64))
}

struct GroupNorm {
    channels: usize,
    groups: usize,
    /// Elements of a channel.
    plane: usize,
    /// Numbers of scale and of bias: one for each channel or for each group.
    parameters: usize,
    epsilon: f64,
}

impl FloatBody for GroupNorm {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let scale = tensors.get::<F>(1);
        let bias = tensors.get::<F>(2);
        let output = tensors.out::<F>(0);
        let group_channels = self.channels / self.groups;
        let group_length = group_channels * self.plane;

        let group_outputs = output.chunks_exact_mut(group_length);
        let groups = input.chunks_exact(group_length).zip(group_outputs);
        for (n, (group_input, group_output)) in groups.enumerate() {
            let row_scale = simd::dispatch_widest(Moments {
                row: group_input,
                is_rms: false,
                epsilon: self.epsilon,
            });

            // Groups of all batches are counted through; the remainder is the group within its batch.
            let first_channel = n % self.groups * group_channels;
            let plane_outputs = group_output.chunks_exact_mut(self.plane);
            let planes = group_input.chunks_exact(self.plane).zip(plane_outputs);
            for (c, (plane_input, plane_output)) in planes.enumerate() {
                // The channel itself, or its group where there is one parameter for each group.
                let parameter = (first_channel + c) * self.parameters / self.channels;
                let factor = F::of(row_scale.inverse_deviation) * scale[parameter];
                for (y, &x) in plane_output.iter_mut().zip(plane_input) {
                    *y = (x - F::of(row_scale.mean)) * factor + bias[parameter];
                }
            }
        }
    }
}
