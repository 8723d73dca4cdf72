//! Fourier transforms of tensors by their definition: for the short ones that models have.

use super::super::reduce::around;
use super::super::signal::{DftSpec, StftSpec};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::lang::{Builder, Ty, Val, Var};
use zbmd_gpu_ir::tensor::{Slot, Tensor, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// Max points: every output looks at all of them.
const MAX_POINTS: usize = 4096;

/// A bin of a spectrum in the making: the sum of x(j) · e^(± j · bin · 2π i / points).
struct BinSum<'k> {
    re: Var<'k>,
    im: Var<'k>,
    /// j · bin, round the circle: small numbers, so that angles stay exact.
    multiple: Var<'k>,
    /// Cosine and sine of each multiple of one n-th of a turn.
    circle: Tensor<'k>,
    bin: Val<'k>,
    points: Val<'k>,
    /// Whether angles are positive.
    is_inverse: bool,
}

impl<'k> BinSum<'k> {
    fn new(
        k: &'k Builder,
        circle: Tensor<'k>,
        bin: Val<'k>,
        points: Val<'k>,
        is_inverse: bool,
    ) -> Self {
        Self {
            re: k.var(k.f32(0.0)),
            im: k.var(k.f32(0.0)),
            multiple: k.var(k.u32(0)),
            circle,
            bin,
            points,
            is_inverse,
        }
    }

    /// Adds (x + i y) · (cosine + i sine).
    fn add(&self, x: Val<'k>, y: Val<'k>) {
        let cosine = self.circle.load(self.multiple.get() * 2);
        let own_sine = self.circle.load(self.multiple.get() * 2 + 1);
        let sine = if self.is_inverse { own_sine } else { -own_sine };
        self.re.set(self.re.get() + (x * cosine - y * sine));
        self.im.set(self.im.get() + (x * sine + y * cosine));
    }

    /// To the next element.
    fn advance(&self) {
        let next = self.multiple.get() + self.bin;
        let k = next.builder();
        let is_round = self.points.le(next);
        self.multiple
            .set(k.select(is_round, next - self.points, next));
    }
}

impl Gpu<'_> {
    /// Cosines and sines of all multiples of one n-th of a turn.
    fn circle(&self, points: usize) -> Result<Slot, Why> {
        if points > MAX_POINTS {
            return Err(format!("no GPU kernel for transforms of {points} points"));
        }
        let angle = |i: usize| std::f64::consts::TAU * i as f64 / points as f64;
        let pairs = (0..points).flat_map(|i| [angle(i).cos() as f32, angle(i).sin() as f32]);
        Ok(self.floats(pairs))
    }

    pub(in super::super) fn dft(&self, spec: &DftSpec) -> Lowered {
        let input_dims = self.dims(0)?;
        let output_dims = self.out_dims(0);
        let axis = spec.axis;
        let is_half_given = spec.inverse && spec.onesided;
        let point_count = transform_points(spec, input_dims[axis]);
        let (_, given_count, inner) = around(&input_dims[..input_dims.len() - 1], axis);
        // Real numbers have one part, complex ones two.
        let input_parts = input_dims[input_dims.len() - 1] as u32;
        let output_parts = output_dims[output_dims.len() - 1] as u32;
        let target_slot = self.out(0);
        if computed(target_slot.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 transforms".to_owned());
        }

        let circle_slot = self.circle(point_count)?;
        let bench = TensorKernelBuilder::new("transform", 64);
        let k = &bench.k;
        let source = bench.reads(self.slot(0)?)?;
        let circle = bench.reads(circle_slot)?;
        let target = bench.writes(target_slot)?;
        let given = bench.size(given_count)?;
        let inner = bench.size(inner)?;
        let bins = bench.size(output_dims[axis])?;
        let points = bench.size(point_count)?;
        let numbers_per_firing = target_slot.elements / u64::from(output_parts);
        let numbers = bench.size(numbers_per_firing as usize)?;

        k.each(k.firings() * numbers, |i| {
            let firing = i / numbers;
            let number = i % numbers;
            let within = number % inner;
            let row = number / inner;
            let bin = row % bins;
            let outer = row / bins;
            let sum = BinSum::new(k, circle, bin, points, spec.inverse);
            k.times(points, |j| {
                // The other half of a spectrum mirrors the given one.
                let is_mirrored = match is_half_given {
                    true => k.u32(point_count as u32 / 2).lt(j),
                    false => k.u32(1).lt(k.u32(0)),
                };
                let place = k.select(is_mirrored, points - j, j);
                // What is not given is 0.
                k.if_(place.lt(given), || {
                    let first = ((outer * given + place) * inner + within) * input_parts;
                    let re = source.get(firing, first);
                    let own_im = match input_parts {
                        2 => source.get(firing, first + 1),
                        _ => k.f32(0.0),
                    };
                    sum.add(re, k.select(is_mirrored, -own_im, own_im));
                });
                sum.advance();
            });

            let scale = match spec.inverse {
                true => k.f32(1.0 / point_count as f32),
                false => k.f32(1.0),
            };
            target.store(i * output_parts, sum.re.get() * scale);
            if output_parts == 2 {
                target.store(i * 2 + 1, sum.im.get() * scale);
            }
        });

        let grid = Grid::Threads(Amount::each(numbers_per_firing));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    /// Transforms of overlapping frames under a window.
    pub(in super::super) fn stft(&self, spec: &StftSpec) -> Lowered {
        let input_dims = self.dims(0)?;
        let output_dims = self.out_dims(0);
        let input_parts = input_dims.get(2).copied().unwrap_or(1) as u32;
        let window_slot = self.opt_slot(2)?;
        let natural_points = window_slot.map_or(input_dims[1], |window| window.elements as usize);
        let point_count = spec.points.map_or(natural_points, |n| n.max(1) as usize);
        let target_slot = self.out(0);
        if computed(target_slot.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 transforms".to_owned());
        }

        let circle_slot = self.circle(point_count)?;
        let bench = TensorKernelBuilder::new("frames", 64);
        let k = &bench.k;
        let source = bench.reads(self.slot(0)?)?;
        let circle = bench.reads(circle_slot)?;
        let window = self.bind_optional(&bench, 2)?;
        let target = bench.writes(target_slot)?;
        let signal_len = bench.size(input_dims[1])?;
        let points = bench.size(point_count)?;
        let frames = bench.size(output_dims[1])?;
        let bins = bench.size(output_dims[2])?;
        let frame_step = bench.size(spec.step.unwrap_or(1).max(1) as usize)?;
        let numbers = bench.size(target_slot.elements as usize / 2)?;

        k.each(k.firings() * numbers, |i| {
            let firing = i / numbers;
            let number = i % numbers;
            let bin = number % bins;
            let frame = number / bins;
            let frame_start = (frame / frames) * signal_len + (frame % frames) * frame_step;
            let sum = BinSum::new(k, circle, bin, points, false);
            k.times(points, |j| {
                let place = (frame_start + j) * input_parts;
                let weight = match window {
                    Some(window) => window.get(firing, j),
                    None => k.f32(1.0),
                };
                let re = source.get(firing, place) * weight;
                let im = match input_parts {
                    2 => source.get(firing, place + 1) * weight,
                    _ => k.f32(0.0),
                };
                sum.add(re, im);
                sum.advance();
            });
            target.store(i * 2, sum.re.get());
            target.store(i * 2 + 1, sum.im.get());
        });

        let grid = Grid::Threads(Amount::each(target_slot.elements / 2));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}

/// Points of a transform of which so many are given: the inverse of a onesided one is given the first half of a
/// spectrum.
fn transform_points(spec: &DftSpec, given_count: usize) -> usize {
    let natural_points = match spec.inverse && spec.onesided {
        true => 2 * given_count.saturating_sub(1),
        false => given_count,
    };
    spec.points.map_or(natural_points, |n| n.max(1) as usize)
}
