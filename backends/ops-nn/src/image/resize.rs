//! Resizing.

use std::sync::Arc;

use super::super::attributes;
use super::super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, computed, token, volume};
use super::super::gpu::Moves;
use super::super::index::{AxisView, strides};
use super::super::num::Float;
use super::{cubic_weights, far_cubic_weight, near_cubic_weight};
use zbmd_op::OpError;

/// What a resized element is made of: places along the axis and their weights.
#[derive(Clone)]
pub(crate) struct Axis {
    pub(crate) axis: usize,
    /// For each output element, `taps` pairs.
    pub(crate) places: Vec<u32>,
    pub(crate) weights: Vec<f64>,
    pub(crate) taps: usize,
    /// Outputs that are outside and take the extrapolation value.
    pub(crate) outside: Vec<bool>,
}

/// How a tensor is resized: axis after axis.
#[derive(Clone)]
pub(crate) struct Resized {
    pub(crate) passes: Vec<Axis>,
    pub(crate) out: Vec<usize>,
    pub(crate) extrapolation: f64,
    takes_nearest: bool,
}

/// The part of an axis that is resized, both ends in [0, 1].
#[derive(Clone, Copy)]
struct Crop {
    start: f64,
    end: f64,
}

/// The sizes of one axis before and after.
#[derive(Clone, Copy)]
struct AxisSize {
    input: usize,
    output: usize,
    scale: f64,
    crop: Crop,
}

/// How one axis is resized.
struct Rule<'a> {
    mode: &'a str,
    coordinates: &'a str,
    nearest: &'a str,
    cubic_coefficient: f64,
    antialias: bool,
    excludes_outside: bool,
}

impl<'a> Rule<'a> {
    fn of(cx: &Cx<'a>) -> Result<Self, OpError> {
        let args = &cx.args;
        let coordinates = args.word_opt("coordinate_transformation_mode")?;
        let nearest = args.word_opt("nearest_mode")?;
        Ok(Self {
            mode: attributes::mode(cx)?.unwrap_or("nearest"),
            coordinates: coordinates.unwrap_or("half_pixel"),
            nearest: nearest.unwrap_or("round_prefer_floor"),
            cubic_coefficient: args.float_or("cubic_coeff_a", -0.75)?,
            antialias: cx.flag("antialias", false)?,
            excludes_outside: cx.flag("exclude_outside", false)?,
        })
    }

    /// Where output element `i` is in the input; none where it is outside of what is cropped. The formulas are those of
    /// ONNX `Resize`, by the value of `coordinate_transformation_mode`.
    fn source(&self, i: f64, size: AxisSize) -> Option<f64> {
        let scale = size.scale;
        let input_length = size.input as f64;
        // Not rounded to elements, as it is in the size of the result.
        let output_length = scale * input_length;
        Some(match self.coordinates {
            "align_corners" if output_length == 1.0 => 0.0,
            "align_corners" => i * (input_length - 1.0) / (output_length - 1.0),
            "asymmetric" => i / scale,
            "tf_crop_and_resize" => {
                let span = size.crop.end - size.crop.start;
                let within_crop = if output_length == 1.0 {
                    span * (input_length - 1.0) / 2.0
                } else {
                    i * span * (input_length - 1.0) / (output_length - 1.0)
                };
                let place = within_crop + size.crop.start * (input_length - 1.0);
                return (0.0..=input_length - 1.0).contains(&place).then_some(place);
            }
            "pytorch_half_pixel" if output_length == 1.0 => -0.5,
            "half_pixel_symmetric" => {
                // The rounding of the size is shared out to both ends.
                let adjustment = 1.0 - size.output as f64 / output_length;
                input_length / 2.0 * adjustment + (i + 0.5) / scale - 0.5
            }
            _ => (i + 0.5) / scale - 0.5,
        })
    }

    /// Weights of the elements around a place that is `ratio` in (0, 1] behind the middle one.
    fn weights(&self, ratio: f64, scale: f64) -> Vec<f64> {
        let coefficient = self.cubic_coefficient;
        // Filters against aliasing widen as far as the image shrinks.
        let shrinking = scale.min(1.0);
        match self.mode {
            "nearest" => match self.takes_upper(ratio) {
                true => vec![0.0, 1.0],
                false => vec![1.0, 0.0],
            },
            "linear" if self.antialias => {
                // The triangle reaches 1 / scale input elements to both sides.
                let start = (-1.0 / shrinking).floor() as i64 + 1;
                let taps = 2 - 2 * start;
                let weight = |k: i64| {
                    let distance = ((k as f64 - ratio) * shrinking).abs();
                    (1.0 - distance).clamp(0.0, 1.0)
                };
                normalized((start..start + taps).map(weight).collect())
            }
            "cubic" if self.antialias => {
                // Keys' kernel reaches 2 / scale input elements to both sides.
                let start = (-2.0 / shrinking).floor() as i64 + 1;
                let weight = |k: i64| match (shrinking * (k as f64 - ratio)).abs() {
                    x if x <= 1.0 => near_cubic_weight(x, coefficient),
                    x if x < 2.0 => far_cubic_weight(x, coefficient),
                    _ => 0.0,
                };
                normalized((start..2 - start).map(weight).collect())
            }
            "linear" => vec![1.0 - ratio, ratio],
            _ => cubic_weights(ratio, coefficient).to_vec(),
        }
    }

    /// Which of the two elements around a place counts as the nearest.
    fn takes_upper(&self, ratio: f64) -> bool {
        match self.nearest {
            _ if ratio == 1.0 => true,
            "round_prefer_floor" => ratio > 0.5,
            "round_prefer_ceil" => ratio >= 0.5,
            other => other == "ceil",
        }
    }

    fn axis(&self, axis: usize, size: AxisSize) -> Axis {
        let mut built = Axis {
            axis,
            places: Vec::new(),
            weights: Vec::new(),
            taps: 0,
            outside: Vec::new(),
        };
        let input_length = size.input as i64;
        for i in 0..size.output {
            let source = self.source(i as f64, size);
            built.outside.push(source.is_none());
            let place = source.unwrap_or(0.0);
            // A place on an element is 1 behind the one before, so that the ratio is never 0.
            let ratio = match place.fract() {
                0.0 => 1.0,
                _ => place - place.floor(),
            };

            let mut weights = self.weights(ratio, size.scale);
            built.taps = weights.len();
            // Tap n / 2 − 1 is at ⌈place⌉ − 1: the element that the ratio counts from.
            let first = place.ceil() as i64 - weights.len() as i64 / 2;
            if self.excludes_outside {
                for (k, weight) in weights.iter_mut().enumerate() {
                    if !(0..input_length).contains(&(first + k as i64)) {
                        *weight = 0.0;
                    }
                }
                // What is left makes up the whole: the weights add up to 1 again.
                let sum: f64 = weights.iter().sum();
                weights.iter_mut().for_each(|weight| *weight /= sum);
            }

            // Elements beyond the ends are the outermost ones, repeated.
            let tap_places = first..first + weights.len() as i64;
            let inside = tap_places.map(|place| place.clamp(0, input_length - 1) as u32);
            built.places.extend(inside);
            built.weights.extend(weights);
        }
        built
    }
}

/// Weights whose sum is 1.
fn normalized(weights: Vec<f64>) -> Vec<f64> {
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// Scales and sizes of all dimensions, those that stay as they are too.
struct Target {
    scale: Vec<f64>,
    out: Vec<usize>,
}

impl Target {
    /// What `sizes` asks for. A policy about the ratio of sides makes one scale of them all.
    fn of_sizes(
        cx: &Cx<'_>,
        input_dims: &[usize],
        axes: &[usize],
        sizes: &[i64],
    ) -> Result<Self, OpError> {
        let mut target = Self::unchanged(input_dims);
        let wanted: Vec<usize> = sizes.iter().map(|&size| size.max(1) as usize).collect();
        let axis_scales: Vec<f64> = axes
            .iter()
            .zip(&wanted)
            .map(|(&axis, &size)| size as f64 / input_dims[axis] as f64)
            .collect();
        let all_scales = axis_scales.iter().copied();
        // `not_larger` fits the image into the sizes, `not_smaller` covers them; both keep its proportions.
        let common_scale = match cx.args.word_opt("keep_aspect_ratio_policy")? {
            Some("not_larger") => Some(all_scales.fold(f64::INFINITY, f64::min)),
            Some("not_smaller") => Some(all_scales.fold(0.0, f64::max)),
            _ => None,
        };
        for (i, &axis) in axes.iter().enumerate() {
            target.scale[axis] = common_scale.unwrap_or(axis_scales[i]);
            target.out[axis] = match common_scale {
                Some(scale) => (scale * input_dims[axis] as f64 + 0.5).floor() as usize,
                None => wanted[i],
            };
        }
        Ok(target)
    }

    /// What `scales` asks for.
    fn of_scales(input_dims: &[usize], axes: &[usize], scales: &[f64]) -> Self {
        let mut target = Self::unchanged(input_dims);
        for (&axis, &scale) in axes.iter().zip(scales) {
            // Scales are stored as f32; sizes follow from the number that was meant.
            let length = (input_dims[axis] as f64 * scale).floor();
            target.scale[axis] = scale;
            target.out[axis] = length.clamp(0.0, f64::from(u32::MAX)) as usize;
        }
        target
    }

    fn unchanged(input_dims: &[usize]) -> Self {
        Self {
            scale: vec![1.0; input_dims.len()],
            out: input_dims.to_vec(),
        }
    }

    /// Refuses what is empty, or too large for tables of places.
    fn check(&self, cx: &Cx<'_>, input_dims: &[usize], axes: &[usize]) -> Result<(), OpError> {
        let Self { scale, out } = self;
        if scale.iter().any(|s| *s <= 0.0 || !s.is_finite()) || out.contains(&0) {
            let message = format!("makes {out:?} of {input_dims:?}");
            let help = "scales above 0 that leave at least one element";
            return Err(cx.refuse(2, message, help));
        }
        if token(cx.dtype(0)?, out).bytes() > zbmd_ir::limits::MAX_TOKEN_BYTES {
            return Err(cx.refuse(2, format!("makes {out:?}"), "it would be too large"));
        }

        let is_too_long = |dims: &[usize]| {
            let mut resized_axes = axes.iter().filter(|&&axis| scale[axis] != 1.0);
            resized_axes.any(|&axis| dims[axis] > MAX_SIDE)
        };
        if is_too_long(input_dims) || is_too_long(out) {
            let message = format!("is {}, to be {out:?}", cx.operand(0)?.ty);
            return Err(cx.refuse(0, message, format!("sides of at most {MAX_SIDE}")));
        }
        Ok(())
    }
}

/// Elements along a resized side, at most.
const MAX_SIDE: usize = 1 << 22;

/// Operands: x, roi, scales, sizes.
pub(crate) fn resized(cx: &Cx<'_>) -> Result<Resized, OpError> {
    let input_dims = cx.dims(0)?;
    let rank = input_dims.len();
    let axes = attributes::axes(cx, rank)?.unwrap_or_else(|| (0..rank).collect());
    let sizes = cx.ints(3)?.filter(|sizes| !sizes.is_empty());
    let scales = cx.floats(2)?.filter(|scales| !scales.is_empty());
    let region = cx.floats(1)?.unwrap_or_default();

    let given_sizes = sizes.as_ref().map(Vec::len);
    let given_scales = scales.as_ref().map(Vec::len);
    let given = given_sizes.or(given_scales).unwrap_or(0);
    let has_region = region.is_empty() || region.len() >= 2 * axes.len();
    if given != axes.len() || input_dims.contains(&0) || !has_region {
        let axis_count = axes.len();
        let message = format!("has {axis_count} axes to resize, {given} sizes or scales are given");
        return Err(cx.refuse(0, message, "one for each axis"));
    }

    let target = match (&sizes, &scales) {
        (Some(sizes), _) => Target::of_sizes(cx, &input_dims, &axes, sizes)?,
        (None, Some(scales)) => Target::of_scales(&input_dims, &axes, scales),
        (None, None) => Target::unchanged(&input_dims),
    };
    target.check(cx, &input_dims, &axes)?;

    let rule = Rule::of(cx)?;
    let mut passes = Vec::new();
    for (i, &axis) in axes.iter().enumerate() {
        let size = AxisSize {
            input: input_dims[axis],
            output: target.out[axis],
            scale: target.scale[axis],
            crop: Crop {
                start: region.get(i).copied().unwrap_or(0.0),
                end: region.get(i + axes.len()).copied().unwrap_or(1.0),
            },
        };
        // A crop moves elements even where the size stays.
        let is_changed = size.output != size.input || size.scale != 1.0;
        if is_changed || rule.coordinates == "tf_crop_and_resize" {
            passes.push(rule.axis(axis, size));
        }
    }
    Ok(Resized {
        passes,
        out: target.out,
        takes_nearest: rule.mode == "nearest",
        extrapolation: cx.args.float_or("extrapolation_value", 0.0)?,
    })
}

pub(crate) fn resize(cx: &Cx<'_>, spec: &Resized) -> Planned {
    let dtype = cx.dtype(0)?;
    let input_dims = cx.dims(0)?;
    let passes = &spec.passes;
    if spec.takes_nearest || !FLOATS.contains(&dtype) {
        // Nearest elements are copies of any type; an extrapolation value or a weight needs floats.
        let has_outside = passes.iter().any(|pass| pass.outside.contains(&true));
        if has_outside || !spec.takes_nearest {
            return Err(cx.refuse_type(0, "cast to f32 to interpolate"));
        }
        return nearest_plan(cx, &input_dims, &spec.out, passes);
    }

    // Intermediate results: each pass resizes one axis.
    let mut shape = input_dims;
    let mut shapes = vec![shape.clone()];
    for pass in passes {
        shape[pass.axis] = spec.out[pass.axis];
        shapes.push(shape.clone());
    }
    let all_taps = passes.iter().map(|pass| pass.taps).sum::<usize>();
    let flops = 8.0 * volume(&spec.out) as f64 * all_taps as f64;
    let body = Resize {
        passes: passes.clone(),
        largest: shapes.iter().map(|dims| volume(dims)).max().unwrap_or(0),
        shapes,
        extrapolation: spec.extrapolation,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &spec.out)], body).flops(flops))
}

/// For each dimension, where each output element comes from, in elements of the input.
#[derive(Clone)]
struct NearestPlaces {
    offsets: Vec<Vec<usize>>,
    out_strides: Vec<usize>,
}

impl NearestPlaces {
    fn of(input_dims: &[usize], out_dims: &[usize], passes: &[Axis]) -> Self {
        let input_strides = strides(input_dims);
        let mut offsets = Vec::new();
        for (d, &stride) in input_strides.iter().enumerate() {
            let pass = passes.iter().find(|pass| pass.axis == d);
            offsets.push(match pass {
                None => (0..out_dims[d]).map(|i| i * stride).collect(),
                Some(pass) => pass.nearest_places().map(|i| i * stride).collect(),
            });
        }
        Self {
            offsets,
            out_strides: strides(out_dims),
        }
    }

    /// The input element that output element `number` is a copy of.
    fn place(&self, number: usize) -> usize {
        let mut rest = number;
        let mut place = 0;
        for (offsets, stride) in self.offsets.iter().zip(&self.out_strides) {
            place += offsets[rest / stride];
            rest %= stride;
        }
        place
    }
}

impl Axis {
    /// The one of each two places whose weight is 1.
    fn nearest_places(&self) -> impl Iterator<Item = usize> {
        let pairs = self.places.chunks_exact(2);
        let weights = self.weights.chunks_exact(2);
        pairs
            .zip(weights)
            .map(|(places, weights)| places[usize::from(weights[1] == 1.0)] as usize)
    }
}

/// Nearest elements: every output element is a copy.
fn nearest_plan(cx: &Cx<'_>, input_dims: &[usize], out_dims: &[usize], passes: &[Axis]) -> Planned {
    let dtype = cx.dtype(0)?;
    // Narrow types come to the body widened: the op is one of those that `Halves` wraps.
    let size = computed(dtype).size_bytes() as usize;
    let places = NearestPlaces::of(input_dims, out_dims, passes);

    let count = volume(out_dims);
    let own_places = places.clone();
    let table = move || (0..count).map(|n| own_places.place(n) as u32).collect();
    // No operand has the number of the fill value, which no element takes.
    let moves = Moves::Chosen {
        table: Arc::new(table),
        fill: usize::MAX,
    };
    let body = move |tensors: &mut Tensors<'_>| {
        let input = tensors.bytes(0);
        let output = tensors.out_bytes(0);
        for (n, element) in output.chunks_exact_mut(size).enumerate() {
            element.copy_from_slice(&input[places.place(n) * size..][..size]);
        }
    };
    Ok(Plan::new(vec![token(dtype, out_dims)], body).moves(moves))
}

struct Resize {
    passes: Vec<Axis>,
    /// Dimensions before the first pass and after each.
    shapes: Vec<Vec<usize>>,
    /// Elements of the largest of these.
    largest: usize,
    extrapolation: f64,
}

impl Axis {
    /// Resizes one axis; `view` is the input along it.
    fn run<F: Float>(&self, view: AxisView, input: &[F], output: &mut [F]) {
        let output_length = self.outside.len();
        for outer in 0..view.outer {
            for k in 0..output_length {
                let tap_places = &self.places[k * self.taps..][..self.taps];
                let tap_weights = &self.weights[k * self.taps..][..self.taps];
                for inner in 0..view.inner {
                    let taps = tap_places.iter().zip(tap_weights);
                    let sum = taps.fold(F::ZERO, |sum, (&place, &weight)| {
                        sum + F::of(weight) * input[view.at(outer, place as usize, inner)]
                    });
                    output[(outer * output_length + k) * view.inner + inner] = sum;
                }
            }
        }
    }

    /// Overwrites what is outside along this axis; `view` is the result along it.
    fn fill_outside<F: Float>(&self, view: AxisView, output: &mut [F], value: F) {
        for outer in 0..view.outer {
            for k in (0..view.length).filter(|&k| self.outside[k]) {
                output[view.at(outer, k, 0)..][..view.inner].fill(value);
            }
        }
    }
}

impl FloatBody for Resize {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let output = tensors.out::<F>(0);

        // Passes go to and fro between two buffers.
        let (mut from, rest) = tensors.scratch::<F>().split_at_mut(self.largest);
        let mut to = &mut rest[..self.largest];
        from[..input.len()].copy_from_slice(input);
        for (pass, shape) in self.passes.iter().zip(&self.shapes) {
            pass.run(AxisView::of(shape, pass.axis), from, to);
            std::mem::swap(&mut from, &mut to);
        }
        // After the last swap the result is in `from`.
        output.copy_from_slice(&from[..output.len()]);

        // What is outside along any axis is not an image any more.
        let Some(out_dims) = self.shapes.last() else {
            return;
        };
        for pass in &self.passes {
            let view = AxisView::of(out_dims, pass.axis);
            pass.fill_outside(view, output, F::of(self.extrapolation));
        }
    }

    fn scratch_elements(&self) -> usize {
        2 * self.largest
    }
}
