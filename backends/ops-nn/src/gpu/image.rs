//! Resizing: places and weights along each axis are tables.

use super::super::cx::volume;
use super::{Gpu, Lowered};
use crate::image::Resized;
use zbmd_gpu_ir::lang::Val;
use zbmd_gpu_ir::tensor::{Slot, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

impl Gpu<'_> {
    /// One thread for each element sums over the places of all axes that are resized.
    pub(in super::super) fn resize(&self, spec: &Resized) -> Lowered {
        let passes = &spec.passes;
        let out = &spec.out;
        let extrapolation = spec.extrapolation;
        let from = self.dims(0)?;
        let (x, y) = (self.slot(0)?, self.out(0));
        let ty = computed(x.dtype)?;
        if !ty.is_float() {
            return Err("no GPU kernel for resized integers".to_owned());
        }
        let bench = TensorKernelBuilder::new("resize", 64);
        let k = &bench.k;
        let source = bench.reads(x)?;
        let mut axes = Vec::new();
        for pass in passes {
            let places = self.words(pass.places.iter().copied());
            let elements = pass.places.len() as u64;
            let places = Slot {
                operand: places,
                dtype: zbmd_ir::DType::I32,
                elements,
                constant: true,
            };
            // Outside there is no place at all: the weight says so.
            let weights = pass.weights.iter().enumerate().map(|(i, w)| {
                if pass.outside[i / pass.taps] {
                    f32::NAN
                } else {
                    *w as f32
                }
            });
            let weights = bench.reads(self.floats(weights))?;
            axes.push((
                pass.axis,
                bench.reads_index(places)?,
                weights,
                bench.size(pass.taps)?,
            ));
        }
        let target = bench.writes(y)?;
        let sizes = |v: &[usize]| {
            v.iter()
                .map(|s| bench.size(*s))
                .collect::<Result<Vec<_>, Why>>()
        };
        let (ins, outs) = (sizes(&from)?, sizes(out)?);
        let taps = bench.size(passes.iter().map(|p| p.taps).product())?;
        let each = bench.size(volume(out))?;
        k.each(k.firings() * each, |i| {
            let (firing, mut rest) = (i / each, i % each);
            let mut spot: Vec<Val<'_>> = Vec::new();
            for size in outs.iter().rev() {
                spot.push(rest % *size);
                rest = rest / *size;
            }
            spot.reverse();
            let (sum, outside) = (k.var(k.number(ty, 0.0)), k.var(k.u32(0)));
            k.times(taps, |t| {
                let (mut rest, mut place) = (t, spot.clone());
                let mut weight = k.f32(1.0);
                for (axis, places, weights, count) in &axes {
                    let at = spot[*axis] * *count + rest % *count;
                    rest = rest / *count;
                    place[*axis] = places.index(firing, at).cast(rest.ty);
                    weight = weight * weights.get(firing, at);
                }
                let at = place
                    .iter()
                    .zip(&ins)
                    .fold(k.u32(0), |at, (p, n)| at * *n + *p);
                outside.set(outside.get() | weight.ne(weight).cast(at.ty));
                sum.set(sum.get() + source.get(firing, at) * weight.cast(ty));
            });
            let gone = outside.get().ne(k.u32(0));
            target.store(i, k.select(gone, k.number(ty, extrapolation), sum.get()));
        });
        let grid = Grid::Threads(Amount::each(y.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}
