//! Fourier transforms of tensors by their definition: for the short ones that models have.

use super::super::reduce::around;
use super::super::signal::{DftSpec, StftSpec};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::lang::{Ty, Val};
use zbmd_gpu_ir::tensor::{Slot, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// Most points: every output looks at all of them.
const MAX_POINTS: usize = 4096;

impl Gpu<'_> {
    /// Cosines and sines of all multiples of one n-th of a turn.
    fn circle(&self, n: usize) -> Result<Slot, Why> {
        if n > MAX_POINTS {
            return Err(format!("no GPU kernel for transforms of {n} points"));
        }
        let angle = |i: usize| std::f64::consts::TAU * i as f64 / n as f64;
        Ok(self.floats((0..n).flat_map(|i| [angle(i).cos() as f32, angle(i).sin() as f32])))
    }

    pub(in super::super) fn dft(&self, spec: &DftSpec) -> Lowered {
        let (from, out) = (self.dims(0)?, self.out_dims(0));
        let lead = &from[..from.len() - 1];
        let axis = spec.axis;
        let inverse = spec.inverse;
        let onesided = spec.onesided;
        let half = inverse && onesided;
        let natural = if half {
            2 * from[axis].saturating_sub(1)
        } else {
            from[axis]
        };
        let points = spec.points.map_or(natural, |n| n.max(1) as usize);
        let (_, n, inner) = around(lead, axis);
        let (parts, out_parts) = (from[from.len() - 1] as u32, out[out.len() - 1] as u32);
        let kept = out[axis];
        let y = self.out(0);
        if computed(y.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 transforms".to_owned());
        }
        let circle = self.circle(points)?;
        let bench = TensorKernelBuilder::new("transform", 64);
        let k = &bench.k;
        let (source, turns) = (bench.reads(self.slot(0)?)?, bench.reads(circle)?);
        let target = bench.writes(y)?;
        let (n_on, inner, kept) = (bench.size(n)?, bench.size(inner)?, bench.size(kept)?);
        let points_on = bench.size(points)?;
        let spots = bench.size((y.elements / u64::from(out_parts)) as usize)?;
        k.each(k.firings() * spots, |i| {
            let (firing, e) = (i / spots, i % spots);
            let (within, rest) = (e % inner, e / inner);
            let (bin, o) = (rest % kept, rest / kept);
            let (re, im) = (k.var(k.f32(0.0)), k.var(k.f32(0.0)));
            let place = k.var(k.u32(0));
            k.times(points_on, |j| {
                // The other half of a spectrum mirrors the given one.
                let mirrored = match half {
                    true => k.u32(points as u32 / 2).lt(j),
                    false => k.u32(1).lt(k.u32(0)),
                };
                let at = k.select(mirrored, points_on - j, j);
                k.if_(at.lt(n_on), || {
                    let first = ((o * n_on + at) * inner + within) * parts;
                    let x = source.get(firing, first);
                    let y = match parts {
                        2 => source.get(firing, first + 1),
                        _ => k.f32(0.0),
                    };
                    let y = k.select(mirrored, -y, y);
                    let (c, s) = (turns.load(place.get() * 2), turns.load(place.get() * 2 + 1));
                    let s = if inverse { s } else { -s };
                    re.set(re.get() + (x * c - y * s));
                    im.set(im.get() + (x * s + y * c));
                });
                // Multiples of the bin, round the circle.
                let next = place.get() + bin;
                place.set(k.select(points_on.le(next), next - points_on, next));
            });
            let scale = k.f32(if inverse { 1.0 / points as f32 } else { 1.0 });
            target.store(i * out_parts, re.get() * scale);
            if out_parts == 2 {
                target.store(i * 2 + 1, im.get() * scale);
            }
        });
        let grid = Grid::Threads(Amount::each(y.elements / u64::from(out_parts)));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    /// Transforms of overlapping frames under a window.
    pub(in super::super) fn stft(&self, spec: &StftSpec) -> Lowered {
        let (from, out) = (self.dims(0)?, self.out_dims(0));
        let parts = from.get(2).copied().unwrap_or(1) as u32;
        let step = spec.step.unwrap_or(1);
        let window = self.opt_slot(2)?;
        let default = window.map_or(from[1], |w| w.elements as usize);
        let n = spec.points.map_or(default, |n| n.max(1) as usize);
        let y = self.out(0);
        if computed(y.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 transforms".to_owned());
        }
        let circle = self.circle(n)?;
        let bench = TensorKernelBuilder::new("frames", 64);
        let k = &bench.k;
        let (source, turns) = (bench.reads(self.slot(0)?)?, bench.reads(circle)?);
        let window = window.map(|w| bench.reads(w)).transpose()?;
        let target = bench.writes(y)?;
        let (len, n_on) = (bench.size(from[1])?, bench.size(n)?);
        let (frames, kept) = (bench.size(out[1])?, bench.size(out[2])?);
        let step = bench.size(step.max(1) as usize)?;
        let spots = bench.size(y.elements as usize / 2)?;
        k.each(k.firings() * spots, |i| {
            let (firing, e) = (i / spots, i % spots);
            let (bin, rest) = (e % kept, e / kept);
            let first = (rest / frames) * len + (rest % frames) * step;
            let (re, im) = (k.var(k.f32(0.0)), k.var(k.f32(0.0)));
            let place = k.var(k.u32(0));
            k.times(n_on, |j| {
                let at = (first + j) * parts;
                let w = window.map_or_else(|| k.f32(1.0), |w| w.get(firing, j));
                let x: Val<'_> = source.get(firing, at) * w;
                let y = match parts {
                    2 => source.get(firing, at + 1) * w,
                    _ => k.f32(0.0),
                };
                let (c, s) = (
                    turns.load(place.get() * 2),
                    -turns.load(place.get() * 2 + 1),
                );
                re.set(re.get() + (x * c - y * s));
                im.set(im.get() + (x * s + y * c));
                let next = place.get() + bin;
                place.set(k.select(n_on.le(next), next - n_on, next));
            });
            target.store(i * 2, re.get());
            target.store(i * 2 + 1, im.get());
        });
        let grid = Grid::Threads(Amount::each(y.elements / 2));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}
