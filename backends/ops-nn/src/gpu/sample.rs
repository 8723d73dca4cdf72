//! Elements of an image at places that a grid names.

use super::super::cx::volume;
use super::super::image::{Border, GridSampleSpec};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::lang::{Ty, Val};
use zbmd_gpu_ir::tensor::{TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// One dimension of an image.
struct Axis<'k> {
    n: Val<'k>,
    taps: u32,
    border: Border,
    corners: bool,
}

/// Where the taps along a dimension begin, and their weights.
struct Along<'k> {
    first: Val<'k>,
    weights: Vec<Val<'k>>,
}

/// A coordinate mirrored into [low, high].
fn reflect<'k>(v: Val<'k>, low: Val<'k>, high: Val<'k>) -> Val<'k> {
    let k = v.builder();
    let (span, zero) = (high - low, k.f32(0.0));
    let below = v.lt(low);
    let over = k.select(below, low - v, v - high);
    let turns = (over / span).floor();
    let rest = over - turns * span;
    let even = (turns * k.f32(0.5)).floor().eq(turns * k.f32(0.5));
    let mirrored = k.select(below.eq(even), low + rest, high - rest);
    let inside = low.le(v) & v.le(high);
    k.select(span.le(zero), low, k.select(inside, v, mirrored))
}

impl<'k> Axis<'k> {
    fn edges(&self) -> [Val<'k>; 2] {
        let k = self.n.builder();
        let n = self.n.cast(Ty::F32);
        match self.corners {
            true => [k.f32(0.0), n - k.f32(1.0)],
            false => [k.f32(-0.5), n - k.f32(0.5)],
        }
    }

    fn along(&self, v: Val<'k>) -> Along<'k> {
        let k = v.builder();
        let (n, one, half) = (self.n.cast(Ty::F32), k.f32(1.0), k.f32(0.5));
        let at = match self.corners {
            true => (v + one) * half * (n - one),
            false => ((v + one) * n - one) * half,
        };
        let at = if self.taps == 1 { at.round() } else { at };
        let [low, high] = self.edges();
        let outside = at.lt(low) | high.lt(at);
        let at = match self.border {
            Border::Zeros => at,
            Border::Clamp => k.select(outside, at.max(k.f32(0.0)).min(n - one), at),
            Border::Reflect => k.select(outside, reflect(at, low, high), at),
        };
        // What is no place, or far away, has no weight either.
        let near = at.abs().lt(k.f32(1e9));
        let at = k.select(near, at, k.f32(-16.0));
        let floor = at.floor();
        let r = at - floor;
        let a = -0.75;
        let far = |x: Val<'k>| {
            ((k.f32(a) * x - k.f32(5.0 * a)) * x + k.f32(8.0 * a)) * x - k.f32(4.0 * a)
        };
        let close = |x: Val<'k>| (k.f32(a + 2.0) * x - k.f32(a + 3.0)) * x * x + one;
        let zero = k.f32(0.0);
        let (first, weights) = match self.taps {
            1 => (floor, vec![one]),
            2 => (floor, vec![one - r, r]),
            _ => (
                floor - one,
                vec![far(r + one), close(r), close(one - r), far(k.f32(2.0) - r)],
            ),
        };
        let weights = weights
            .into_iter()
            .map(|w| k.select(near, w, zero))
            .collect();
        Along {
            first: first.cast(Ty::I32),
            weights,
        }
    }

    /// The element's place, and whether there is one.
    fn inside(&self, i: Val<'k>) -> (Val<'k>, Val<'k>) {
        let k = i.builder();
        let (zero, n) = (k.i32(0), self.n.cast(Ty::I32));
        let bounded = |i: Val<'k>| i.max(zero).min(n - 1);
        let at = match self.border {
            Border::Zeros => i,
            Border::Clamp => bounded(i),
            Border::Reflect => {
                let [low, high] = self.edges();
                bounded(reflect(i.cast(Ty::F32), low, high).cast(Ty::I32))
            }
        };
        let fits = zero.le(at) & at.lt(n);
        (k.select(fits, at, zero).cast(Ty::U32), fits)
    }
}

impl Gpu<'_> {
    /// One thread for each element of the result.
    pub(in super::super) fn grid_sample(&self, spec: &GridSampleSpec) -> Lowered {
        let (dims, grid) = (self.dims(0)?, self.dims(1)?);
        let rank = dims.len() - 2;
        let taps = spec.taps as u32;
        let border = spec.border;
        let corners = spec.aligns_corners;
        let y = self.out(0);
        if computed(y.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 images".to_owned());
        }
        let bench = TensorKernelBuilder::new("grid sample", 64);
        let k = &bench.k;
        let (image, places) = (bench.reads(self.slot(0)?)?, bench.reads(self.slot(1)?)?);
        let target = bench.writes(y)?;
        let sizes = dims[2..]
            .iter()
            .map(|n| bench.size(*n))
            .collect::<Result<Vec<_>, Why>>()?;
        let axes: Vec<Axis<'_>> = sizes
            .iter()
            .map(|&n| Axis {
                n,
                taps,
                border,
                corners,
            })
            .collect();
        let (plane, out) = (
            bench.size(volume(&dims[2..]))?,
            bench.size(volume(&grid[1..=rank]))?,
        );
        let (channels, all) = (bench.size(dims[1])?, bench.size(y.elements as usize)?);
        k.each(k.firings() * all, |i| {
            let (firing, e) = (i / all, i % all);
            let (o, rest) = (e % out, e / out);
            let first = (rest / channels * out + o) * rank as u32;
            let along: Vec<Along<'_>> = (0..rank)
                .map(|d| axes[d].along(places.get(firing, first + (rank - 1 - d) as u32)))
                .collect();
            let sum = k.var(k.f32(0.0));
            let total = (taps as usize).pow(rank as u32);
            for t in 0..total {
                let (mut left, mut at, mut weight) = (t, k.u32(0), k.f32(1.0));
                let mut fits: Option<Val<'_>> = None;
                let mut steps = Vec::new();
                for _ in 0..rank {
                    steps.push(left % taps as usize);
                    left /= taps as usize;
                }
                for d in 0..rank {
                    let step = steps[rank - 1 - d];
                    let (place, inside) = axes[d].inside(along[d].first + step as u32);
                    at = at * sizes[d] + place;
                    weight = weight * along[d].weights[step];
                    fits = Some(fits.map_or(inside, |f| f & inside));
                }
                let Some(fits) = fits else { continue };
                k.if_(fits, || {
                    let v = image.get(firing, rest * plane + at);
                    sum.set(sum.get() + weight * v);
                });
            }
            target.store(i, sum.get());
        });
        let grid = Grid::Threads(Amount::each(y.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}
