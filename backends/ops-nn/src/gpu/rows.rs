//! Reductions, softmax and normalisations.

use super::super::cx::volume;
use super::super::norm::{
    GroupNormSpec, LayerNormSpec, LpNormSpec, LrnSpec, MEAN_VARIANCE_EPSILON, MeanVarianceSpec,
};
use super::super::pool::PoolKind;
use super::super::reduce::{ArgSpec, CumulativeSpec, ReduceSpec, SoftmaxSpec, around};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::lang::Ty;
use zbmd_gpu_ir::tensor::function::power;
use zbmd_gpu_ir::tensor::row::{
    Affine, Fold, Norm, Normed, Rows, arg, cumulative, fold, normalise, softmax,
};
use zbmd_gpu_ir::tensor::space::spread;
use zbmd_gpu_ir::tensor::{TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

impl Gpu<'_> {
    pub(in super::super) fn reduce(&self, spec: &ReduceSpec) -> Lowered {
        let rows = Rows::along(&self.dims(0)?, &spec.axes);
        let ends = (self.slot(0)?, self.out(0));
        fold(KernelPlan::default(), &rows, ends, spec.kind)
    }

    pub(in super::super) fn global_pool(&self, kind: &PoolKind) -> Lowered {
        let dims = self.dims(0)?;
        let kind = match kind {
            PoolKind::Max => Fold::Max,
            PoolKind::Mean => Fold::Mean,
            PoolKind::Norm(1) => Fold::L1,
            PoolKind::Norm(2) => Fold::L2,
            PoolKind::Norm(p) => {
                return Err(format!("no GPU kernel for norms with the exponent {p}"));
            }
        };
        let axes: Vec<usize> = (2..dims.len()).collect();
        let rows = Rows::along(&dims, &axes);
        fold(
            KernelPlan::default(),
            &rows,
            (self.slot(0)?, self.out(0)),
            kind,
        )
    }

    pub(in super::super) fn arg(&self, spec: &ArgSpec) -> Lowered {
        let rows = Rows::along(&self.dims(0)?, &[spec.axis]);
        let ends = (self.slot(0)?, self.out(0));
        arg(
            KernelPlan::default(),
            &rows,
            ends,
            spec.is_max,
            spec.takes_last,
        )
    }

    pub(in super::super) fn softmax(&self, spec: &SoftmaxSpec) -> Lowered {
        let rows = Rows::along(&self.dims(0)?, &[spec.axis]);
        softmax(
            KernelPlan::default(),
            &rows,
            (self.slot(0)?, self.out(0)),
            spec.kind,
        )
    }

    pub(in super::super) fn cumulative(&self, spec: &CumulativeSpec) -> Lowered {
        let flags = [spec.is_product, spec.exclusive, spec.reverse];
        let rows = Rows::along(&self.dims(0)?, &[spec.axis]);
        cumulative(
            KernelPlan::default(),
            &rows,
            (self.slot(0)?, self.out(0)),
            flags,
        )
    }

    pub(in super::super) fn layer_norm(&self, spec: &LayerNormSpec) -> Lowered {
        let dims = self.dims(0)?;
        let axis = spec.axis;
        let epsilon = spec.epsilon;
        let axes: Vec<usize> = (axis..dims.len()).collect();
        let rows = Rows::along(&dims, &axes);
        let what = Normed {
            x: Some(self.slot(0)?),
            y: self.wanted(0),
            mean: self.wanted(1),
            deviation: self.wanted(2),
        };
        let norm = if spec.is_rms {
            Norm::RootMean(epsilon)
        } else {
            Norm::Deviation(epsilon)
        };
        let affine = |i: usize| -> Result<Option<Affine>, Why> {
            let Some(slot) = self.opt_slot(i)? else {
                return Ok(None);
            };
            let own = self.dims(i)?;
            if slot.elements as usize == rows.len {
                return Ok(Some(Affine {
                    slot,
                    place: |_, i, _| i,
                    sizes: vec![],
                }));
            }
            // Other shapes: along the last dimensions they repeat.
            let steps = spread(&dims[axis..], &own);
            let inner = volume(&dims[axis + 1..]);
            match &steps[..] {
                [0, rest @ ..]
                    if spread(&dims[axis + 1..], &own) == *rest
                        && slot.elements as usize == inner =>
                {
                    Ok(Some(Affine {
                        slot,
                        place: |_, i, s| i % s[0],
                        sizes: vec![inner],
                    }))
                }
                _ => Err("no GPU kernel for a scale that is broadcast within rows".to_owned()),
            }
        };
        normalise(
            KernelPlan::default(),
            &rows,
            what,
            norm,
            [affine(1)?, affine(2)?],
        )
    }

    pub(in super::super) fn group_norm(&self, spec: &GroupNormSpec) -> Lowered {
        let dims = self.dims(0)?;
        let channels = dims[1];
        let groups = spec.groups;
        let plane = volume(&dims[2..]).max(1);
        let per = channels / groups;
        let rows = Rows::along(&[dims[0] * groups, per * plane], &[1]);
        let what = Normed {
            x: Some(self.slot(0)?),
            y: Some(self.out(0)),
            ..Normed::default()
        };
        let affine = |i: usize| -> Result<Option<Affine>, Why> {
            let slot = self.slot(i)?;
            if slot.elements as usize == groups && groups != channels {
                return Ok(Some(Affine {
                    slot,
                    place: |r, _, s| r % s[0],
                    sizes: vec![groups],
                }));
            }
            let sizes = vec![groups, per, plane];
            Ok(Some(Affine {
                slot,
                place: |r, i, s| (r % s[0]) * s[1] + i / s[2],
                sizes,
            }))
        };
        let norm = Norm::Deviation(spec.epsilon);
        normalise(
            KernelPlan::default(),
            &rows,
            what,
            norm,
            [affine(1)?, affine(2)?],
        )
    }

    pub(in super::super) fn mean_variance(&self, spec: &MeanVarianceSpec) -> Lowered {
        self.plain_norm(&spec.axes, Norm::Plain(MEAN_VARIANCE_EPSILON))
    }

    pub(in super::super) fn lp_norm(&self, spec: &LpNormSpec) -> Lowered {
        let norm = if spec.exponent == 1 {
            Norm::One
        } else {
            Norm::Two
        };
        self.plain_norm(&[spec.axis], norm)
    }

    /// A normalisation over axes without a scale.
    fn plain_norm(&self, axes: &[usize], norm: Norm) -> Lowered {
        let rows = Rows::along(&self.dims(0)?, axes);
        let what = Normed {
            x: Some(self.slot(0)?),
            y: Some(self.out(0)),
            ..Normed::default()
        };
        normalise(KernelPlan::default(), &rows, what, norm, [None, None])
    }

    /// Local response normalisation: one thread for each element, which looks at its neighbours.
    pub(in super::super) fn lrn(&self, spec: &LrnSpec) -> Lowered {
        let dims = self.dims(0)?;
        let (_, channels, plane) = around(&dims, 1);
        let LrnSpec {
            size,
            alpha,
            beta,
            bias,
        } = *spec;
        let x = self.slot(0)?;
        let y = self.out(0);
        if computed(x.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 functions".to_owned());
        }
        let bench = TensorKernelBuilder::new("local response", 64);
        let k = &bench.k;
        let (from, to) = (bench.reads(x)?, bench.writes(y)?);
        let (channels, plane) = (bench.size(channels)?, bench.size(plane)?);
        let (below, above) = (bench.size((size - 1) / 2)?, bench.size(size / 2)?);
        let each = bench.size(x.elements as usize)?;
        k.each(k.firings() * each, |i| {
            let (firing, at) = (i / each, i % each);
            let channel = (at / plane) % channels;
            let first = channel - channel.min(below);
            let last = (channel + above).min(channels - 1);
            let sum = k.var(k.f32(0.0));
            let start = from.base(firing) + (at - channel * plane);
            k.range(first, last + 1, k.u32(1), |c| {
                let v = from.load(start + c * plane);
                sum.set(sum.get() + v * v);
            });
            let scale = k.f32(bias as f32) + k.f32((alpha / size as f64) as f32) * sum.get();
            let by = match beta == 0.75 {
                true => scale.sqrt() * scale.sqrt().sqrt(),
                false => power(scale, k.f32(beta as f32)).unwrap_or(scale),
            };
            to.store(i, from.get(firing, at) / by);
        });
        let grid = Grid::Threads(Amount::each(x.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}
