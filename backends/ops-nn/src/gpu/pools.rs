//! Pools: one thread for each window.

use super::super::cx::volume;
use super::super::pool::{PoolKind, PoolSpec};
use super::windows::SlidingWindow;
use super::{Gpu, Lowered};
use zbmd_gpu_ir::lang::{Builder, Ty, Val, Var};
use zbmd_gpu_ir::tensor::{Slot, Tensor, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// A pool bound to a kernel.
struct Pool<'k> {
    k: &'k Builder,
    kind: PoolKind,
    counts_padding: bool,
    source: Tensor<'k>,
    window: SlidingWindow<'k>,
    /// Places along each dimension, with the padding on both sides.
    padded_sizes: Vec<Val<'k>>,
    values: Option<Tensor<'k>>,
    /// Where the greatest elements are.
    places: Option<Tensor<'k>>,
    counts_by_columns: bool,
    /// Elements of a plane of the input and of the output, and of a kernel.
    input_plane: Val<'k>,
    output_plane: Val<'k>,
    taps: Val<'k>,
    /// Planes of a firing.
    plane_count: Val<'k>,
    ty: Ty,
}

/// What a thread knows of its window so far.
struct PoolState<'k> {
    /// The greatest element, or the sum.
    value: Var<'k>,
    /// Where the greatest element is; [`NO_PLACE`] at first.
    place: Var<'k>,
    /// Elements of a mean.
    count: Var<'k>,
}

/// Beyond every plane.
const NO_PLACE: u32 = u32::MAX;

impl<'k> Pool<'k> {
    fn take_element(&self, state: &PoolState<'k>, plane_start: Val<'k>, place: Val<'k>) {
        let k = self.k;
        let element = self.source.load(plane_start + place);
        if self.kind == PoolKind::Max {
            let is_first = state.place.get().eq(k.u32(NO_PLACE));
            let greatest = state.value.get();
            // The first of the elements that are not numbers is greater than all.
            let is_better =
                greatest.lt(element) | is_first | (element.ne(element) & greatest.eq(greatest));
            state
                .place
                .set(k.select(is_better, place, state.place.get()));
            return state.value.set(k.select(is_better, element, greatest));
        }

        let summand = match self.kind.exponent() {
            1 => element.abs(),
            2 => element * element,
            _ => element,
        };
        state.value.set(state.value.get() + summand);
        if !self.counts_padding {
            state.count.set(state.count.get() + 1);
        }
    }

    /// Counts a place of a window: padding counts, but nothing beyond it.
    fn count_place(&self, state: &PoolState<'k>, output_place: &[Val<'k>], tap: &[Val<'k>]) {
        let axes = self.window.0.iter().enumerate();
        let is_within = axes.map(|(d, axis)| {
            (output_place[d] * axis.stride + tap[d] * axis.dilation).lt(self.padded_sizes[d])
        });
        let one_if_within = match is_within.reduce(|a, b| a & b) {
            Some(is_within) => is_within.cast(Ty::U32),
            None => self.k.u32(1),
        };
        state.count.set(state.count.get() + one_if_within);
    }

    /// All statements of window `i` of all firings.
    fn pool_window(&self, i: Val<'k>, least_value: Val<'k>) {
        let k = self.k;
        // Planes of all firings, one after the other; constants are the same in every firing.
        let plane = i / self.output_plane;
        let output_place = self.window.output_place(i % self.output_plane);
        let own_start = plane * self.input_plane;
        let plane_start = match self.source.is_constant() {
            true => (plane % self.plane_count) * self.input_plane,
            false => own_start,
        };
        let first_value = match self.kind {
            PoolKind::Max => least_value,
            _ => k.number(self.ty, 0.0),
        };
        let state = PoolState {
            value: k.var(first_value),
            place: k.var(k.u32(NO_PLACE)),
            count: k.var(k.u32(0)),
        };

        k.times(self.taps, |n| {
            let tap = self.window.tap(n);
            let input = self.window.input_place(&output_place, &tap);
            let take = || self.take_element(&state, plane_start, input.place);
            match input.is_inside {
                Some(is_inside) => k.if_(is_inside, take),
                None => take(),
            }
            if self.counts_padding {
                self.count_place(&state, &output_place, &tap);
            }
        });

        if let Some(values) = self.values {
            values.store(i, self.result(&state));
        }
        if let Some(places) = self.places {
            // A window of nothing but padding has place 0.
            let has_none = state.place.get().eq(k.u32(NO_PLACE));
            let place = k.select(has_none, k.u32(0), state.place.get());
            let counted_place = match self.counts_by_columns {
                true => self.window.place_by_columns(place),
                false => place,
            };
            let first_place = (plane % self.plane_count) * self.input_plane;
            places.store(i, first_place + counted_place);
        }
    }

    fn result(&self, state: &PoolState<'k>) -> Val<'k> {
        match (self.kind, self.kind.exponent()) {
            (PoolKind::Max, _) | (_, 1) => state.value.get(),
            (_, 2) => state.value.get().sqrt(),
            _ => state.value.get() / state.count.get().cast(self.ty),
        }
    }
}

impl Gpu<'_> {
    /// Pools: one thread for each window.
    pub(in super::super) fn pool(&self, spec: &PoolSpec) -> Lowered {
        let exponent = spec.kind.exponent();
        if exponent > 2 {
            return Err(format!(
                "no GPU kernel for norms with the exponent {exponent}"
            ));
        }

        let is_max = spec.kind == PoolKind::Max;
        let value_slot = match is_max {
            true => self.wanted(0),
            false => Some(self.out(0)),
        };
        let place_slot = if is_max { self.wanted(1) } else { None };
        let elements = value_slot.or(place_slot).map_or(0, |slot| slot.elements);

        let bench = TensorKernelBuilder::new("pool", 64);
        let k = &bench.k;
        let pool = self.bind_pool(&bench, spec, value_slot, place_slot)?;
        let least_value = least_number(k, pool.ty);
        k.each(
            k.firings() * pool.plane_count * pool.output_plane,
            |window| pool.pool_window(window, least_value),
        );

        let grid = Grid::Threads(Amount::each(elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    fn bind_pool<'k>(
        &self,
        bench: &'k TensorKernelBuilder,
        spec: &PoolSpec,
        value_slot: Option<Slot>,
        place_slot: Option<Slot>,
    ) -> Result<Pool<'k>, Why> {
        let source_slot = self.slot(0)?;
        let source = bench.reads(source_slot)?;
        let values = value_slot.map(|slot| bench.writes(slot)).transpose()?;
        let places = place_slot
            .map(|slot| bench.writes_index(slot))
            .transpose()?;
        let window = SlidingWindow::new(bench, &spec.window)?;
        let (input_plane, output_plane, taps) = spec.window.sizes();
        let padded_size =
            |d: usize| spec.window.before[d] + spec.window.input[d] + spec.window.after[d];
        Ok(Pool {
            k: &bench.k,
            kind: spec.kind,
            counts_padding: spec.counts_padding,
            source,
            window,
            values,
            places,
            counts_by_columns: spec.by_columns,
            input_plane: bench.size(input_plane)?,
            output_plane: bench.size(output_plane)?,
            taps: bench.size(taps)?,
            plane_count: bench.size(volume(&self.dims(0)?[..2]))?,
            padded_sizes: (3 - spec.window.rank..3)
                .map(|d| bench.size(padded_size(d)))
                .collect::<Result<Vec<_>, Why>>()?,
            ty: computed(source_slot.dtype)?,
        })
    }
}

/// What no element is less than.
fn least_number(k: &Builder, ty: Ty) -> Val<'_> {
    match ty {
        Ty::F32 | Ty::F64 => k.number(ty, f64::NEG_INFINITY),
        Ty::I32 => k.i32(i32::MIN),
        Ty::I64 => k.bits(ty, i64::MIN as u64),
        _ => k.number(ty, 0.0),
    }
}
