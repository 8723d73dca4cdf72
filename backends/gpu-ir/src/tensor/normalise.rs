//! Normalisations of rows: by their mean, their deviation, their size.

use super::row::{BoundRows, Row, RowPlace, Rows, Team};
use super::{Slot, Tensor, TensorKernelBuilder, Why};
use crate::lang::{Ty, Val};
use crate::plan::KernelPlan;

/// How a row is normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// (x − mean) / √(variance + epsilon).
    Deviation(f64),
    /// x / √(mean of squares + epsilon).
    RootMean(f64),
    /// (x − mean) / (√variance + epsilon).
    Plain(f64),
    /// x / sum of absolute values, 0 where that is 0.
    One,
    /// x / root of the sum of squares, 0 where that is 0.
    Two,
}

/// A factor or a summand of normalised elements: which of its elements meets element `i` of row `r`.
pub struct Affine {
    /// The tensor.
    pub slot: Slot,
    /// Row, element, its sizes.
    pub place: for<'k> fn(Val<'k>, Val<'k>, &[Val<'k>]) -> Val<'k>,
    /// Its sizes.
    pub sizes: Vec<usize>,
}

/// What is normalised, and where it goes.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Normed {
    pub x: Option<Slot>,
    pub y: Option<Slot>,
    pub mean: Option<Slot>,
    pub deviation: Option<Slot>,
}

impl Norm {
    /// What a row's elements are multiplied by: `deviation_sum` adds up the squares, or for [`Norm::One`] the absolute
    /// values, of its elements without their mean.
    fn inverse_deviation<'k>(self, deviation_sum: Val<'k>, element_count: f64) -> Val<'k> {
        let k = deviation_sum.builder();
        let one = deviation_sum.like(1.0);
        let zero = deviation_sum.like(0.0);
        match self {
            Norm::Deviation(epsilon) | Norm::RootMean(epsilon) => {
                let variance = deviation_sum / deviation_sum.like(element_count);
                one / (variance + deviation_sum.like(epsilon)).sqrt()
            }
            Norm::Plain(epsilon) => {
                let variance = deviation_sum / deviation_sum.like(element_count);
                one / (variance.sqrt() + deviation_sum.like(epsilon))
            }
            // Nothing to divide by: the row is zero, and stays zero.
            Norm::One => k.select(deviation_sum.eq(zero), zero, one / deviation_sum),
            Norm::Two => k.select(deviation_sum.eq(zero), zero, one / deviation_sum.sqrt()),
        }
    }
}

/// A factor or a summand bound to a kernel.
struct BoundAffine<'k> {
    tensor: Tensor<'k>,
    place: for<'v> fn(Val<'v>, Val<'v>, &[Val<'v>]) -> Val<'v>,
    sizes: Vec<Val<'k>>,
}

impl<'k> BoundAffine<'k> {
    fn bind_sizes(
        bench: &'k TensorKernelBuilder,
        affine: Option<Affine>,
        tensor: Option<Tensor<'k>>,
    ) -> Result<Option<Self>, Why> {
        let (Some(affine), Some(tensor)) = (affine, tensor) else {
            return Ok(None);
        };
        let sizes = affine.sizes.iter().map(|size| bench.size(*size));
        Ok(Some(Self {
            tensor,
            place: affine.place,
            sizes: sizes.collect::<Result<Vec<_>, Why>>()?,
        }))
    }

    fn value(&self, place: &RowPlace<'k>, i: Val<'k>, ty: Ty) -> Val<'k> {
        let element = (self.place)(place.index, i, &self.sizes);
        self.tensor.get(place.firing, element).cast(ty)
    }
}

/// A normalisation bound to a kernel.
struct Normalisation<'r, 'k> {
    norm: Norm,
    rows: BoundRows<'k>,
    team: &'r Team<'k>,
    element_count: f64,
    source: Tensor<'k>,
    target: Option<Tensor<'k>>,
    means: Option<Tensor<'k>>,
    deviations: Option<Tensor<'k>>,
    scale: Option<BoundAffine<'k>>,
    bias: Option<BoundAffine<'k>>,
    ty: Ty,
}

impl<'k> Normalisation<'_, 'k> {
    /// All statements of row `r` of all firings.
    fn normalise_row(&self, r: Val<'k>) {
        let place = self.rows.place_of(r);
        let row = self.rows.row_at(self.source, &place);

        // Two passes: the mean first, then what deviates from it, so that large means cost no precision.
        let mean = self.mean(&row);
        let deviation_sum = self.team.sum_row(self.rows.len, self.ty, |i| {
            if self.norm == Norm::One {
                return row.get(i).abs();
            }
            let deviation = row.get(i) - mean;
            deviation * deviation
        });
        let inverse_deviation = self
            .norm
            .inverse_deviation(deviation_sum, self.element_count);
        self.team.lead(|| {
            // Statistics are f32 whatever is normalised.
            if let Some(means) = self.means {
                means.store(r, mean.cast(Ty::F32));
            }
            if let Some(deviations) = self.deviations {
                deviations.store(r, inverse_deviation.cast(Ty::F32));
            }
        });

        let Some(target) = self.target else { return };
        let target_row = self.rows.row_at(target, &place);
        self.team.each(self.rows.len, |i| {
            let mut value = (row.get(i) - mean) * inverse_deviation;
            if let Some(scale) = &self.scale {
                value = value * scale.value(&place, i, self.ty);
            }
            if let Some(bias) = &self.bias {
                value = value + bias.value(&place, i, self.ty);
            }
            target_row.set(i, value);
        });
    }

    /// What is subtracted from a row's elements: 0 where only their size is normalised.
    fn mean(&self, row: &Row<'k>) -> Val<'k> {
        let k = &self.team.bench.k;
        match self.norm {
            Norm::Deviation(_) | Norm::Plain(_) => {
                let sum = self.team.sum_row(self.rows.len, self.ty, |i| row.get(i));
                sum / k.number(self.ty, self.element_count)
            }
            Norm::RootMean(_) | Norm::One | Norm::Two => k.number(self.ty, 0.0),
        }
    }
}

/// Normalises rows, times `scale`, plus `bias`; also the mean and the inverse deviation of each row.
pub fn normalise(
    plan: KernelPlan,
    rows: &Rows,
    what: Normed,
    norm: Norm,
    [scale, bias]: [Option<Affine>; 2],
) -> Result<KernelPlan, Why> {
    let Some(x) = what.x else { return Ok(plan) };
    let ty = super::computed(x.dtype)?;
    let bench = Team::bench("normalise");
    let source = bench.reads(x)?;
    let bind_affine = |affine: &Option<Affine>| {
        let slot = affine.as_ref().map(|affine| affine.slot);
        slot.map(|slot| bench.reads(slot)).transpose()
    };
    let scale_tensor = bind_affine(&scale)?;
    let bias_tensor = bind_affine(&bias)?;
    let bind_output = |slot: Option<Slot>| slot.map(|slot| bench.writes(slot)).transpose();
    let target = bind_output(what.y)?;
    let means = bind_output(what.mean)?;
    let deviations = bind_output(what.deviation)?;

    let scale = BoundAffine::bind_sizes(&bench, scale, scale_tensor)?;
    let bias = BoundAffine::bind_sizes(&bench, bias, bias_tensor)?;
    let bound_rows = BoundRows::bind(&bench, rows)?;
    let row_team = Team::new(&bench, rows.shared(), ty);
    let row_total = bound_rows.total();
    let normalisation = Normalisation {
        norm,
        rows: bound_rows,
        team: &row_team,
        element_count: rows.len as f64,
        source,
        target,
        means,
        deviations,
        scale,
        bias,
        ty,
    };
    row_team.rows(row_total, |r| normalisation.normalise_row(r));

    let row_grid = row_team.grid(rows.rows);
    Ok(bench.finish(plan, row_grid))
}
