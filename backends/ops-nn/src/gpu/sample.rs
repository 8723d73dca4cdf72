//! Elements of an image at places that a grid names.

use super::super::cx::volume;
use super::super::image::{Border, GridSampleSpec};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::lang::{Ty, Val};
use zbmd_gpu_ir::tensor::{TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// One dimension of an image.
struct Axis<'k> {
    size: Val<'k>,
    /// Elements along it that make a sample: 1, 2 or 4.
    taps: u32,
    border: Border,
    /// Whether −1 and 1 are the centres of the outermost elements, rather than their outer edges.
    aligns_corners: bool,
}

/// Where the taps along a dimension begin, and their weights.
struct WeightedTaps<'k> {
    first: Val<'k>,
    weights: Vec<Val<'k>>,
}

/// A tap within the image.
struct TapPlace<'k> {
    /// 0 where there is no such element.
    place: Val<'k>,
    is_inside: Val<'k>,
}

/// The constant of the cubic convolution (Keys 1981), as ONNX has it.
const CUBIC: f32 = -0.75;

/// The cubic's weight at a distance between 1 and 2.
fn outer_cubic(distance: Val<'_>) -> Val<'_> {
    let k = distance.builder();
    ((k.f32(CUBIC) * distance - k.f32(5.0 * CUBIC)) * distance + k.f32(8.0 * CUBIC)) * distance
        - k.f32(4.0 * CUBIC)
}

/// The cubic's weight at a distance below 1.
fn inner_cubic<'k>(distance: Val<'k>, one: Val<'k>) -> Val<'k> {
    let k = distance.builder();
    (k.f32(CUBIC + 2.0) * distance - k.f32(CUBIC + 3.0)) * distance * distance + one
}

/// A coordinate mirrored into [low, high].
fn reflect<'k>(coordinate: Val<'k>, low: Val<'k>, high: Val<'k>) -> Val<'k> {
    let k = coordinate.builder();
    let span = high - low;
    let zero = k.f32(0.0);
    let is_below = coordinate.lt(low);
    let distance = k.select(is_below, low - coordinate, coordinate - high);

    // Every span is a turn; odd turns come back from the other side.
    let turns = (distance / span).floor();
    let rest = distance - turns * span;
    let is_even = (turns * k.f32(0.5)).floor().eq(turns * k.f32(0.5));
    let mirrored = k.select(is_below.eq(is_even), low + rest, high - rest);
    let is_inside = low.le(coordinate) & coordinate.le(high);
    k.select(
        span.le(zero),
        low,
        k.select(is_inside, coordinate, mirrored),
    )
}

impl<'k> Axis<'k> {
    /// The coordinates that −1 and 1 stand for.
    fn edges(&self) -> [Val<'k>; 2] {
        let k = self.size.builder();
        let size = self.size.cast(Ty::F32);
        match self.aligns_corners {
            true => [k.f32(0.0), size - k.f32(1.0)],
            false => [k.f32(-0.5), size - k.f32(0.5)],
        }
    }

    /// The taps of a coordinate of the grid, between −1 and 1.
    fn taps_at(&self, grid_coordinate: Val<'k>) -> WeightedTaps<'k> {
        let k = grid_coordinate.builder();
        let size = self.size.cast(Ty::F32);
        let one = k.f32(1.0);
        let half = k.f32(0.5);
        let exact = match self.aligns_corners {
            true => (grid_coordinate + one) * half * (size - one),
            false => ((grid_coordinate + one) * size - one) * half,
        };
        let coordinate = if self.taps == 1 { exact.round() } else { exact };

        let [low, high] = self.edges();
        let is_outside = coordinate.lt(low) | high.lt(coordinate);
        let bordered = match self.border {
            Border::Zeros => coordinate,
            Border::Clamp => {
                let clamped = coordinate.max(k.f32(0.0)).min(size - one);
                k.select(is_outside, clamped, coordinate)
            }
            Border::Reflect => {
                let reflected = reflect(coordinate, low, high);
                k.select(is_outside, reflected, coordinate)
            }
        };
        // What is not a number, or far away, has no weight either.
        let is_near = bordered.abs().lt(k.f32(1e9));
        let near_coordinate = k.select(is_near, bordered, k.f32(-16.0));

        let floor = near_coordinate.floor();
        let fraction = near_coordinate - floor;
        let zero = k.f32(0.0);
        let first = match self.taps {
            1 | 2 => floor,
            _ => floor - one,
        };
        let weights = match self.taps {
            1 => vec![one],
            2 => vec![one - fraction, fraction],
            _ => vec![
                outer_cubic(fraction + one),
                inner_cubic(fraction, one),
                inner_cubic(one - fraction, one),
                outer_cubic(k.f32(2.0) - fraction),
            ],
        };
        let near_weights = weights
            .into_iter()
            .map(|weight| k.select(is_near, weight, zero));
        let weights = near_weights.collect();
        WeightedTaps {
            first: first.cast(Ty::I32),
            weights,
        }
    }

    /// The element that a tap takes.
    fn tap_place(&self, tap: Val<'k>) -> TapPlace<'k> {
        let k = tap.builder();
        let zero = k.i32(0);
        let size = self.size.cast(Ty::I32);
        let clamped = |place: Val<'k>| place.max(zero).min(size - 1);
        let place = match self.border {
            Border::Zeros => tap,
            Border::Clamp => clamped(tap),
            Border::Reflect => {
                let [low, high] = self.edges();
                clamped(reflect(tap.cast(Ty::F32), low, high).cast(Ty::I32))
            }
        };
        let is_inside = zero.le(place) & place.lt(size);
        TapPlace {
            place: k.select(is_inside, place, zero).cast(Ty::U32),
            is_inside,
        }
    }
}

/// The tap along each dimension, outermost first, of tap number `n` of all dimensions: unrolled, because weights are
/// registers.
fn taps_of(n: usize, taps: usize, rank: usize) -> Vec<usize> {
    (0..rank as u32)
        .rev()
        .map(|d| n / taps.pow(d) % taps)
        .collect()
}

impl Gpu<'_> {
    /// One thread for each element of the result.
    pub(in super::super) fn grid_sample(&self, spec: &GridSampleSpec) -> Lowered {
        let image_dims = self.dims(0)?;
        let grid_dims = self.dims(1)?;
        let rank = image_dims.len() - 2;
        let target_slot = self.out(0);
        if computed(target_slot.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 images".to_owned());
        }

        let bench = TensorKernelBuilder::new("grid sample", 64);
        let k = &bench.k;
        let image = bench.reads(self.slot(0)?)?;
        let grid = bench.reads(self.slot(1)?)?;
        let target = bench.writes(target_slot)?;
        let bind_axis = |size: &usize| -> Result<Axis<'_>, Why> {
            Ok(Axis {
                size: bench.size(*size)?,
                taps: spec.taps as u32,
                border: spec.border,
                aligns_corners: spec.aligns_corners,
            })
        };
        let axes = image_dims[2..]
            .iter()
            .map(bind_axis)
            .collect::<Result<Vec<_>, Why>>()?;
        let input_plane = bench.size(volume(&image_dims[2..]))?;
        let output_plane = bench.size(volume(&grid_dims[1..=rank]))?;
        let channels = bench.size(image_dims[1])?;
        let elements_per_firing = bench.size(target_slot.elements as usize)?;

        k.each(k.firings() * elements_per_firing, |i| {
            let firing = i / elements_per_firing;
            let element = i % elements_per_firing;
            let output_element = element % output_plane;
            let plane = element / output_plane;
            // The grid has the coordinates of a place one behind the other, the innermost dimension first.
            let first_coordinate = (plane / channels * output_plane + output_element) * rank as u32;
            let taps_along: Vec<WeightedTaps<'_>> = (0..rank)
                .map(|d| {
                    let coordinate = first_coordinate + (rank - 1 - d) as u32;
                    axes[d].taps_at(grid.get(firing, coordinate))
                })
                .collect();

            let sum = k.var(k.f32(0.0));
            for n in 0..spec.taps.pow(rank as u32) {
                let mut place_in_plane = k.u32(0);
                let mut weight = k.f32(1.0);
                let mut is_inside: Option<Val<'_>> = None;
                for (d, tap) in taps_of(n, spec.taps, rank).into_iter().enumerate() {
                    let along = &taps_along[d];
                    let tap_place = axes[d].tap_place(along.first + tap as u32);
                    place_in_plane = place_in_plane * axes[d].size + tap_place.place;
                    weight = weight * along.weights[tap];
                    let fits = tap_place.is_inside;
                    is_inside = Some(is_inside.map_or(fits, |all| all & fits));
                }
                let Some(is_inside) = is_inside else { continue };
                k.if_(is_inside, || {
                    let value = image.get(firing, plane * input_plane + place_in_plane);
                    sum.set(sum.get() + weight * value);
                });
            }
            target.store(i, sum.get());
        });

        let grid = Grid::Threads(Amount::each(target_slot.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}
