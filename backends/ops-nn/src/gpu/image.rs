//! Resizing: places and weights along each axis are tables.

use zbmd_ir::DType;

use super::super::cx::volume;
use super::indices::{coordinates, place_of};
use super::{Gpu, Lowered};
use crate::image::{Axis, Resized};
use zbmd_gpu_ir::lang::{Builder, Ty, Val};
use zbmd_gpu_ir::tensor::{Slot, Tensor, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// An axis that is resized, in a kernel: what each place of the result takes from where.
struct ResizedAxis<'k> {
    axis: usize,
    /// For each place of the result and each tap, a place of the input and its weight.
    places: Tensor<'k>,
    weights: Tensor<'k>,
    taps: Val<'k>,
}

/// A resized tensor bound to a kernel.
struct Resizing<'k> {
    k: &'k Builder,
    source: Tensor<'k>,
    axes: Vec<ResizedAxis<'k>>,
    input_sizes: Vec<Val<'k>>,
    /// Taps of all axes together.
    taps: Val<'k>,
    extrapolation: f64,
    ty: Ty,
}

impl<'k> Resizing<'k> {
    /// The element at some coordinates of the result.
    fn element(&self, firing: Val<'k>, output_place: &[Val<'k>]) -> Val<'k> {
        let k = self.k;
        let sum = k.var(k.number(self.ty, 0.0));
        let is_outside = k.var(k.u32(0));
        k.times(self.taps, |tap_number| {
            // Taps are numbered with those of the first resized axis first.
            let mut remaining_tap = tap_number;
            let mut input_place = output_place.to_vec();
            let mut weight = k.f32(1.0);
            for axis in &self.axes {
                let entry = output_place[axis.axis] * axis.taps + remaining_tap % axis.taps;
                remaining_tap = remaining_tap / axis.taps;
                input_place[axis.axis] = axis.places.index(firing, entry).cast(Ty::U32);
                weight = weight * axis.weights.get(firing, entry);
            }

            let place = place_of(&input_place, &self.input_sizes, k.u32(0));
            // A weight that is not a number says that there is no place.
            is_outside.set(is_outside.get() | weight.ne(weight).cast(Ty::U32));
            let so_far = sum.get();
            sum.set(so_far + self.source.get(firing, place) * weight.cast(self.ty));
        });

        let is_outside = is_outside.get().ne(k.u32(0));
        k.select(is_outside, k.number(self.ty, self.extrapolation), sum.get())
    }
}

impl Gpu<'_> {
    /// One thread for each element sums over the places of all axes that are resized.
    pub(in super::super) fn resize(&self, spec: &Resized) -> Lowered {
        let source_slot = self.slot(0)?;
        let target_slot = self.out(0);
        let ty = computed(source_slot.dtype)?;
        if !ty.is_float() {
            return Err("no GPU kernel for resized integers".to_owned());
        }

        let bench = TensorKernelBuilder::new("resize", 64);
        let k = &bench.k;
        let source = bench.reads(source_slot)?;
        let passes = spec.passes.iter();
        let axes = passes
            .map(|pass| self.bind_pass(&bench, pass))
            .collect::<Result<Vec<_>, Why>>()?;
        let target = bench.writes(target_slot)?;
        let bind_sizes = |sizes: &[usize]| {
            sizes
                .iter()
                .map(|size| bench.size(*size))
                .collect::<Result<Vec<_>, Why>>()
        };
        let input_sizes = bind_sizes(&self.dims(0)?)?;
        let output_sizes = bind_sizes(&spec.out)?;
        let taps = bench.size(spec.passes.iter().map(|pass| pass.taps).product())?;
        let elements_per_firing = bench.size(volume(&spec.out))?;
        let resizing = Resizing {
            k,
            source,
            axes,
            input_sizes,
            taps,
            extrapolation: spec.extrapolation,
            ty,
        };

        k.each(k.firings() * elements_per_firing, |i| {
            let firing = i / elements_per_firing;
            let output_place = coordinates(i % elements_per_firing, &output_sizes);
            target.store(i, resizing.element(firing, &output_place));
        });

        let grid = Grid::Threads(Amount::each(target_slot.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    fn bind_pass<'k>(
        &self,
        bench: &'k TensorKernelBuilder,
        pass: &Axis,
    ) -> Result<ResizedAxis<'k>, Why> {
        let place_slot = Slot {
            operand: self.words(pass.places.iter().copied()),
            dtype: DType::I32,
            elements: pass.places.len() as u64,
            constant: true,
        };
        // Outside there is no place at all: the weight says so.
        let weights = pass.weights.iter().enumerate().map(|(i, weight)| {
            if pass.outside[i / pass.taps] {
                f32::NAN
            } else {
                *weight as f32
            }
        });
        let weights = bench.reads(self.floats(weights))?;
        Ok(ResizedAxis {
            axis: pass.axis,
            places: bench.reads_index(place_slot)?,
            weights,
            taps: bench.size(pass.taps)?,
        })
    }
}
