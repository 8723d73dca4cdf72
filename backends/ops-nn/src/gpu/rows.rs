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
use zbmd_gpu_ir::tensor::normalise::{Affine, Norm, Normed, normalise};
use zbmd_gpu_ir::tensor::row::{Cumulation, Fold, Rows, arg, cumulative, fold, softmax};
use zbmd_gpu_ir::tensor::space::spread;
use zbmd_gpu_ir::tensor::{Slot, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

impl Gpu<'_> {
    /// What most kernels here read and write.
    fn first_ends(&self) -> Result<(Slot, Slot), Why> {
        Ok((self.slot(0)?, self.out(0)))
    }

    /// The rows of operand 0 along some axes.
    fn rows_along(&self, axes: &[usize]) -> Result<Rows, Why> {
        Ok(Rows::along(&self.dims(0)?, axes))
    }

    pub(in super::super) fn reduce(&self, spec: &ReduceSpec) -> Lowered {
        let rows = self.rows_along(&spec.axes)?;
        fold(KernelPlan::default(), &rows, self.first_ends()?, spec.kind)
    }

    pub(in super::super) fn global_pool(&self, kind: &PoolKind) -> Lowered {
        let fold_kind = match kind {
            PoolKind::Max => Fold::Max,
            PoolKind::Mean => Fold::Mean,
            PoolKind::Norm(1) => Fold::L1,
            PoolKind::Norm(2) => Fold::L2,
            PoolKind::Norm(exponent) => {
                return Err(format!(
                    "no GPU kernel for norms with the exponent {exponent}"
                ));
            }
        };

        let spatial_axes: Vec<usize> = (2..self.dims(0)?.len()).collect();
        let rows = self.rows_along(&spatial_axes)?;
        fold(KernelPlan::default(), &rows, self.first_ends()?, fold_kind)
    }

    pub(in super::super) fn arg(&self, spec: &ArgSpec) -> Lowered {
        let rows = self.rows_along(&[spec.axis])?;
        let ends = self.first_ends()?;
        let plan = KernelPlan::default();
        arg(plan, &rows, ends, spec.is_max, spec.takes_last)
    }

    pub(in super::super) fn softmax(&self, spec: &SoftmaxSpec) -> Lowered {
        let rows = self.rows_along(&[spec.axis])?;
        softmax(KernelPlan::default(), &rows, self.first_ends()?, spec.kind)
    }

    pub(in super::super) fn cumulative(&self, spec: &CumulativeSpec) -> Lowered {
        let rows = self.rows_along(&[spec.axis])?;
        let kind = Cumulation {
            is_product: spec.is_product,
            is_exclusive: spec.exclusive,
            is_reverse: spec.reverse,
        };
        cumulative(KernelPlan::default(), &rows, self.first_ends()?, kind)
    }

    pub(in super::super) fn layer_norm(&self, spec: &LayerNormSpec) -> Lowered {
        let dims = self.dims(0)?;
        let normalised_axes: Vec<usize> = (spec.axis..dims.len()).collect();
        let rows = Rows::along(&dims, &normalised_axes);
        let ends = Normed {
            x: Some(self.slot(0)?),
            y: self.wanted(0),
            mean: self.wanted(1),
            deviation: self.wanted(2),
        };
        let norm = match spec.is_rms {
            true => Norm::RootMean(spec.epsilon),
            false => Norm::Deviation(spec.epsilon),
        };
        let row_dims = &dims[spec.axis..];
        let scale = self.row_affine(1, row_dims)?;
        let bias = self.row_affine(2, row_dims)?;
        normalise(KernelPlan::default(), &rows, ends, norm, [scale, bias])
    }

    /// Operand `i`, by which rows of these dimensions are multiplied or to which it is added: as long as a row, or
    /// repeated along its first dimension.
    fn row_affine(&self, i: usize, row_dims: &[usize]) -> Result<Option<Affine>, Why> {
        let Some(slot) = self.opt_slot(i)? else {
            return Ok(None);
        };
        let elements = slot.elements as usize;
        if elements == volume(row_dims) {
            return Ok(Some(Affine {
                slot,
                place: |_, i, _| i,
                sizes: vec![],
            }));
        }

        let own_dims = self.dims(i)?;
        let inner = volume(&row_dims[1..]);
        let is_repeated = match &spread(row_dims, &own_dims)[..] {
            [0, rest @ ..] => spread(&row_dims[1..], &own_dims) == *rest && elements == inner,
            _ => false,
        };
        if !is_repeated {
            return Err("no GPU kernel for a scale that is broadcast within rows".to_owned());
        }
        Ok(Some(Affine {
            slot,
            place: |_, i, sizes| i % sizes[0],
            sizes: vec![inner],
        }))
    }

    pub(in super::super) fn group_norm(&self, spec: &GroupNormSpec) -> Lowered {
        let dims = self.dims(0)?;
        let plane = volume(&dims[2..]).max(1);
        let channels_per_group = dims[1] / spec.groups;
        // A row is a group of channels, with all of their planes.
        let row_dims = [dims[0] * spec.groups, channels_per_group * plane];
        let rows = Rows::along(&row_dims, &[1]);
        let ends = Normed {
            x: Some(self.slot(0)?),
            y: Some(self.out(0)),
            ..Normed::default()
        };
        let norm = Norm::Deviation(spec.epsilon);
        let affine = |i: usize| self.group_affine(i, spec.groups, channels_per_group, plane);
        let affines = [Some(affine(1)?), Some(affine(2)?)];
        normalise(KernelPlan::default(), &rows, ends, norm, affines)
    }

    /// Operand `i` with a number for each group or for each channel.
    fn group_affine(
        &self,
        i: usize,
        groups: usize,
        channels_per_group: usize,
        plane: usize,
    ) -> Result<Affine, Why> {
        let slot = self.slot(i)?;
        if slot.elements as usize == groups && channels_per_group != 1 {
            return Ok(Affine {
                slot,
                place: |row, _, sizes| row % sizes[0],
                sizes: vec![groups],
            });
        }
        Ok(Affine {
            slot,
            place: |row, i, sizes| {
                let &[groups, channels_per_group, plane] = sizes else {
                    unreachable!("three sizes")
                };
                (row % groups) * channels_per_group + i / plane
            },
            sizes: vec![groups, channels_per_group, plane],
        })
    }

    pub(in super::super) fn mean_variance(&self, spec: &MeanVarianceSpec) -> Lowered {
        self.plain_norm(&spec.axes, Norm::Plain(MEAN_VARIANCE_EPSILON))
    }

    pub(in super::super) fn lp_norm(&self, spec: &LpNormSpec) -> Lowered {
        let norm = match spec.exponent {
            1 => Norm::One,
            _ => Norm::Two,
        };
        self.plain_norm(&[spec.axis], norm)
    }

    /// A normalisation over axes without a scale.
    fn plain_norm(&self, axes: &[usize], norm: Norm) -> Lowered {
        let rows = self.rows_along(axes)?;
        let ends = Normed {
            x: Some(self.slot(0)?),
            y: Some(self.out(0)),
            ..Normed::default()
        };
        normalise(KernelPlan::default(), &rows, ends, norm, [None, None])
    }

    /// Local response normalisation: one thread for each element, which looks at its neighbours.
    pub(in super::super) fn lrn(&self, spec: &LrnSpec) -> Lowered {
        let LrnSpec {
            size,
            alpha,
            beta,
            bias,
        } = *spec;
        let (_, channels, plane) = around(&self.dims(0)?, 1);
        let source_slot = self.slot(0)?;
        if computed(source_slot.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 functions".to_owned());
        }

        let bench = TensorKernelBuilder::new("local response", 64);
        let k = &bench.k;
        let source = bench.reads(source_slot)?;
        let target = bench.writes(self.out(0))?;
        let channels = bench.size(channels)?;
        let plane = bench.size(plane)?;
        let channels_below = bench.size((size - 1) / 2)?;
        let channels_above = bench.size(size / 2)?;
        let elements_per_firing = bench.size(source_slot.elements as usize)?;

        k.each(k.firings() * elements_per_firing, |i| {
            let firing = i / elements_per_firing;
            let element = i % elements_per_firing;
            let channel = (element / plane) % channels;
            let first_channel = channel - channel.min(channels_below);
            let last_channel = (channel + channels_above).min(channels - 1);
            let square_sum = k.var(k.f32(0.0));
            // The same place of channel 0.
            let place = source.base(firing) + (element - channel * plane);
            k.range(first_channel, last_channel + 1, k.u32(1), |c| {
                let value = source.load(place + c * plane);
                square_sum.set(square_sum.get() + value * value);
            });

            // x / (bias + alpha / size · sum)^beta; 3/4, which is usual, is two roots.
            let share = (alpha / size as f64) as f32;
            let scale = k.f32(bias as f32) + k.f32(share) * square_sum.get();
            let divisor = match beta == 0.75 {
                true => scale.sqrt() * scale.sqrt().sqrt(),
                false => power(scale, k.f32(beta as f32)).unwrap_or(scale),
            };
            target.store(i, source.get(firing, element) / divisor);
        });

        let grid = Grid::Threads(Amount::each(source_slot.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}
