//! Kernels that walk along rows of a tensor: reductions, softmax, normalisations. A row belongs to one thread or to a
//! group of them ([`Team`]); what is done with it is written once.

use zbmd_ir::DType;

use super::function::{greatest, least};
use super::space::{Places, Space};
use super::{Slot, Tensor, TensorKernelBuilder, Why};
use crate::lang::{Place, Shared, Ty, Val};
use crate::math::{exp, ln};
use crate::plan::{Amount, Grid, KernelPlan};
use crate::reduce::Sum;

/// Threads of a group that shares a row.
const GROUP: u32 = 64;

/// Rows of a tensor: dimensions that tell rows apart, and those along which a row lies.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Rows {
    kept: Space,
    over: Space,
    pub rows: usize,
    pub len: usize,
}

impl Rows {
    /// The rows of a dense tensor along `axes`.
    pub fn along(dims: &[usize], axes: &[usize]) -> Self {
        let own = super::space::dense(dims);
        let pick = |inside: bool| -> (Vec<usize>, Vec<isize>) {
            let chosen = (0..dims.len()).filter(|d| axes.contains(d) == inside);
            chosen.map(|d| (dims[d], own[d])).unzip()
        };
        let (kept, ks) = pick(false);
        let (over, os) = pick(true);

        Self {
            rows: kept.iter().product(),
            len: over.iter().product(),
            kept: Space::new(&kept, &[ks]),
            over: Space::new(&over, &[os]),
        }
    }

    /// Whether a group shares each row.
    fn shared(&self) -> bool {
        self.len >= GROUP as usize
    }
}

/// Those who share a row: one thread, or a group.
pub struct Team<'k> {
    bench: &'k TensorKernelBuilder,
    shared: Option<Shared<'k>>,
}

impl<'k> Team<'k> {
    /// A builder of a kernel with groups of that many threads.
    pub fn bench(name: &'static str) -> TensorKernelBuilder {
        TensorKernelBuilder::new(name, GROUP)
    }

    /// Values that are joined have type `ty`.
    pub fn new(bench: &'k TensorKernelBuilder, grouped: bool, ty: Ty) -> Self {
        Self {
            bench,
            shared: grouped.then(|| bench.k.shared(ty, GROUP)),
        }
    }

    /// Every row below `total`.
    pub fn rows(&self, total: Val<'k>, body: impl FnOnce(Val<'k>)) {
        match self.shared {
            Some(_) => self.bench.k.each_group(total, body),
            None => self.bench.k.each(total, body),
        }
    }

    /// Every i below `total`, shared out.
    pub fn each(&self, total: Val<'k>, body: impl FnOnce(Val<'k>)) {
        match self.shared {
            Some(_) => self.bench.k.each_local(total, body),
            None => self.bench.k.times(total, body),
        }
    }

    /// What the team's values make together, the same for all of them.
    pub fn join(&self, value: Val<'k>, f: impl Fn(Val<'k>, Val<'k>) -> Val<'k>) -> Val<'k> {
        match self.shared {
            Some(shared) => shared.join(value, f),
            None => value,
        }
    }

    /// By one thread of the team.
    pub fn lead(&self, body: impl FnOnce()) {
        match self.shared {
            Some(_) => {
                let k = &self.bench.k;
                k.if_(k.place(Place::Local).eq(k.u32(0)), body);
            }
            None => body(),
        }
    }

    /// The grid for so many rows of a firing.
    pub fn grid(&self, rows: usize) -> Grid {
        let rows = Amount::each(rows as u64);
        if self.shared.is_some() {
            Grid::Groups(rows)
        } else {
            Grid::Threads(rows)
        }
    }

    /// The sum of f over a row.
    fn sum_row(&self, len: Val<'k>, ty: Ty, f: impl FnOnce(Val<'k>) -> Val<'k>) -> Val<'k> {
        let team_sum = Sum::new(&self.bench.k, ty);
        self.each(len, |i| team_sum.add(f(i)));
        self.join(team_sum.total(), |a, b| a + b)
    }

    /// f chained over a row.
    fn fold_row(
        &self,
        len: Val<'k>,
        start: Val<'k>,
        of: impl FnOnce(Val<'k>) -> Val<'k>,
        f: impl Fn(Val<'k>, Val<'k>) -> Val<'k>,
    ) -> Val<'k> {
        let so_far = self.bench.k.var(start);
        self.each(len, |i| so_far.set(f(so_far.get(), of(i))));
        self.join(so_far.get(), f)
    }
}

/// A row of a tensor in a kernel.
struct Row<'k> {
    x: Tensor<'k>,
    first: Val<'k>,
    over: Places<'k>,
}

impl<'k> Row<'k> {
    fn place(&self, i: Val<'k>) -> Val<'k> {
        self.first + self.over.at(i)[0]
    }

    fn get(&self, i: Val<'k>) -> Val<'k> {
        self.x.load(self.place(i))
    }
}

/// What is done to the elements that meet in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Fold {
    L1,
    L2,
    LogSum,
    LogSumExp,
    Max,
    Mean,
    Min,
    Prod,
    Sum,
    SumSquare,
}

/// The least or greatest number of a type, infinite for floats.
fn extreme_value<'k>(bench: &'k TensorKernelBuilder, ty: Ty, greatest: bool) -> Val<'k> {
    let k = &bench.k;
    match (ty, greatest) {
        (Ty::F32 | Ty::F64, true) => k.number(ty, f64::INFINITY),
        (Ty::F32 | Ty::F64, false) => k.number(ty, f64::NEG_INFINITY),
        (Ty::I32, true) => k.i32(i32::MAX),
        (Ty::I32, false) => k.i32(i32::MIN),
        (Ty::I64, true) => k.bits(ty, i64::MAX as u64),
        (Ty::I64, false) => k.bits(ty, i64::MIN as u64),
        (_, true) => k.number(ty, 255.0),
        (_, false) => k.number(ty, 0.0),
    }
}

/// y = the fold of each row of x.
pub fn fold(
    plan: KernelPlan,
    rows: &Rows,
    (x, y): (Slot, Slot),
    kind: Fold,
) -> Result<KernelPlan, Why> {
    let sum_type = super::computed(x.dtype)?;
    let is_plain = matches!(
        kind,
        Fold::Max | Fold::Min | Fold::Prod | Fold::Sum | Fold::SumSquare
    );
    if !sum_type.is_float() && !is_plain {
        return Err("means and norms of integers are the CPU's".to_owned());
    }
    if sum_type == Ty::F64 && matches!(kind, Fold::LogSum | Fold::LogSumExp) {
        return Err("functions of f64 are the CPU's".to_owned());
    }
    let bench = Team::bench("reduce");
    let k = &bench.k;
    let source_tensor = bench.reads(x)?;
    let target_tensor = bench.writes(y)?;
    let row_count = bench.size(rows.rows)?;
    let row_len = bench.size(rows.len)?;
    let kept_places = rows.kept.on(&bench)?;
    let row_places = rows.over.on(&bench)?;
    let row_team = Team::new(&bench, rows.shared(), sum_type);

    row_team.rows(k.firings() * row_count, |r| {
        let first_index = source_tensor.base(r / row_count) + kept_places.at(r % row_count)[0];
        let row = Row {
            x: source_tensor,
            first: first_index,
            over: row_places.clone(),
        };
        let square_of = |i| row.get(i) * row.get(i);

        let folded_value = match kind {
            Fold::Max | Fold::Min => {
                let is_max = kind == Fold::Max;
                // Truth values are words: 0 and 1 bound them.
                let start_value = match x.dtype {
                    DType::Bool => k.u32(u32::from(!is_max)),
                    _ => extreme_value(&bench, sum_type, !is_max),
                };
                row_team.fold_row(
                    row_len,
                    start_value,
                    |i| row.get(i),
                    if is_max { greatest } else { least },
                )
            }
            Fold::Prod => row_team.fold_row(
                row_len,
                k.number(sum_type, 1.0),
                |i| row.get(i),
                |a, b| a * b,
            ),
            Fold::Sum => row_team.sum_row(row_len, sum_type, |i| row.get(i)),
            Fold::SumSquare => row_team.sum_row(row_len, sum_type, square_of),
            Fold::L1 => row_team.sum_row(row_len, sum_type, |i| row.get(i).abs()),
            Fold::L2 => row_team.sum_row(row_len, sum_type, square_of).sqrt(),
            Fold::Mean => {
                row_team.sum_row(row_len, sum_type, |i| row.get(i))
                    / k.number(sum_type, rows.len as f64)
            }
            Fold::LogSum => ln(row_team.sum_row(row_len, sum_type, |i| row.get(i))),
            Fold::LogSumExp => {
                // Without the largest value, the exponentials would overflow.
                let start_value = extreme_value(&bench, sum_type, false);
                let largest_value =
                    row_team.fold_row(row_len, start_value, |i| row.get(i), greatest);
                // Infinity less infinity is not a number.
                let is_finite = largest_value.abs().lt(k.f32(f32::INFINITY));
                let largest_value = k.select(is_finite, largest_value, k.f32(0.0));
                ln(row_team.sum_row(row_len, sum_type, |i| exp(row.get(i) - largest_value)))
                    + largest_value
            }
        };
        row_team.lead(|| target_tensor.store(r, folded_value));
    });

    let row_grid = row_team.grid(rows.rows);
    Ok(bench.finish(plan, row_grid))
}

/// The place of the greatest or least element of each row, of equal ones the first or the last.
pub fn arg(
    plan: KernelPlan,
    rows: &Rows,
    (x, y): (Slot, Slot),
    is_greatest: bool,
    last: bool,
) -> Result<KernelPlan, Why> {
    let bench = Team::bench("arg");
    let k = &bench.k;
    let source_tensor = bench.reads(x)?;
    let target_tensor = bench.writes_index(y)?;
    let row_count = bench.size(rows.rows)?;
    let row_len = bench.size(rows.len)?;
    let kept_places = rows.kept.on(&bench)?;
    let row_places = rows.over.on(&bench)?;

    k.each(k.firings() * row_count, |r| {
        let first_index = source_tensor.base(r / row_count) + kept_places.at(r % row_count)[0];
        let row = Row {
            x: source_tensor,
            first: first_index,
            over: row_places.clone(),
        };
        let best_value = k.var(row.get(k.u32(0)));
        let best_index = k.var(k.u32(0));

        k.range(k.u32(1), row_len, k.u32(1), |i| {
            let row_value = row.get(i);
            let is_better = if is_greatest {
                best_value.get().lt(row_value)
            } else {
                row_value.lt(best_value.get())
            };
            let is_better = if last {
                is_better | row_value.eq(best_value.get())
            } else {
                is_better
            };
            k.if_(is_better, || {
                best_value.set(row_value);
                best_index.set(i);
            });
        });
        target_tensor.store(r, best_index.get());
    });

    let row_grid = Grid::Threads(Amount::each(rows.rows as u64));
    Ok(bench.finish(plan, row_grid))
}

/// What a softmax makes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Soft {
    Plain,
    Log,
    /// 1 at the first greatest element.
    Hard,
}

/// Softmax and related functions of each row, f32 only except for [`Soft::Hard`].
pub fn softmax(
    plan: KernelPlan,
    rows: &Rows,
    (x, y): (Slot, Slot),
    kind: Soft,
) -> Result<KernelPlan, Why> {
    let sum_type = super::computed(x.dtype)?;
    if sum_type == Ty::F64 && kind != Soft::Hard {
        return Err("functions of f64 are the CPU's".to_owned());
    }
    let bench = Team::bench("softmax");
    let k = &bench.k;
    let source_tensor = bench.reads(x)?;
    let target_tensor = bench.writes(y)?;
    let row_count = bench.size(rows.rows)?;
    let row_len = bench.size(rows.len)?;
    let kept_places = rows.kept.on(&bench)?;
    let row_places = rows.over.on(&bench)?;
    let row_team = Team::new(&bench, rows.shared(), sum_type);
    let index_team = Team::new(&bench, rows.shared() && kind == Soft::Hard, Ty::U32);

    row_team.rows(k.firings() * row_count, |r| {
        let firing_index = r / row_count;
        let row_start = kept_places.at(r % row_count)[0];
        let row = Row {
            x: source_tensor,
            first: source_tensor.base(firing_index) + row_start,
            over: row_places.clone(),
        };
        let target_row = Row {
            x: target_tensor,
            first: target_tensor.base(firing_index) + row_start,
            over: row_places.clone(),
        };
        let start_value = extreme_value(&bench, sum_type, false);
        let largest_value = row_team.fold_row(row_len, start_value, |i| row.get(i), greatest);

        if kind == Soft::Hard {
            let no_index = k.u32(u32::MAX);
            let index_if_largest = |i| k.select(row.get(i).eq(largest_value), i, no_index);
            let first_index =
                index_team.fold_row(row_len, no_index, index_if_largest, |a, b| a.min(b));
            let one_value = k.number(sum_type, 1.0);
            let zero_value = k.number(sum_type, 0.0);
            return row_team.each(row_len, |i| {
                target_tensor.store(
                    target_row.place(i),
                    k.select(i.eq(first_index), one_value, zero_value),
                )
            });
        }

        let exp_sum = row_team.sum_row(row_len, sum_type, |i| exp(row.get(i) - largest_value));
        match kind {
            Soft::Log => {
                let log_sum = ln(exp_sum);
                row_team.each(row_len, |i| {
                    target_tensor.store(target_row.place(i), row.get(i) - largest_value - log_sum)
                });
            }
            _ => {
                let inverse_sum = k.f32(1.0) / exp_sum;
                row_team.each(row_len, |i| {
                    target_tensor.store(
                        target_row.place(i),
                        exp(row.get(i) - largest_value) * inverse_sum,
                    )
                });
            }
        }
    });

    let row_grid = row_team.grid(rows.rows);
    Ok(bench.finish(plan, row_grid))
}

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

/// Normalises rows, times `scale`, plus `bias`; also the mean and the inverse deviation of each row.
pub fn normalise(
    plan: KernelPlan,
    rows: &Rows,
    what: Normed,
    norm: Norm,
    [scale, bias]: [Option<Affine>; 2],
) -> Result<KernelPlan, Why> {
    let Some(x) = what.x else { return Ok(plan) };
    let sum_type = super::computed(x.dtype)?;
    let bench = Team::bench("normalise");
    let k = &bench.k;
    let source_tensor = bench.reads(x)?;
    let bind_affine = |a: &Option<Affine>| a.as_ref().map(|a| bench.reads(a.slot)).transpose();
    let affine_tensors = [bind_affine(&scale)?, bind_affine(&bias)?];
    let bind_output = |slot: Option<Slot>| slot.map(|s| bench.writes(s)).transpose();
    let y = bind_output(what.y)?;
    let mean_to = bind_output(what.mean)?;
    let deviation_to = bind_output(what.deviation)?;

    let bind_sizes = |a: &Option<Affine>| -> Result<Vec<Val<'_>>, Why> {
        a.iter()
            .flat_map(|a| &a.sizes)
            .map(|s| bench.size(*s))
            .collect()
    };

    let affine_sizes = [bind_sizes(&scale)?, bind_sizes(&bias)?];
    let row_count = bench.size(rows.rows)?;
    let row_len = bench.size(rows.len)?;
    let kept_places = rows.kept.on(&bench)?;
    let row_places = rows.over.on(&bench)?;
    let row_team = Team::new(&bench, rows.shared(), sum_type);
    let element_count = rows.len as f64;

    row_team.rows(k.firings() * row_count, |r| {
        let firing_index = r / row_count;
        let row_index = r % row_count;
        let row_start = kept_places.at(row_index)[0];
        let row = Row {
            x: source_tensor,
            first: source_tensor.base(firing_index) + row_start,
            over: row_places.clone(),
        };

        // Two passes: the mean first, then what deviates from it, so that large means cost no precision.
        let is_centred = matches!(norm, Norm::Deviation(_) | Norm::Plain(_));
        let row_mean = match is_centred {
            true => {
                row_team.sum_row(row_len, sum_type, |i| row.get(i))
                    / k.number(sum_type, element_count)
            }
            false => k.number(sum_type, 0.0),
        };

        let deviation_sum = match norm {
            Norm::One => row_team.sum_row(row_len, sum_type, |i| row.get(i).abs()),
            _ => row_team.sum_row(row_len, sum_type, |i| {
                let d = row.get(i) - row_mean;
                d * d
            }),
        };

        let inverse_deviation = norm.inverse_deviation(deviation_sum, element_count);
        row_team.lead(|| {
            // Statistics are f32 whatever is normalised.
            mean_to.inspect(|t| t.store(r, row_mean.cast(Ty::F32)));
            deviation_to.inspect(|t| t.store(r, inverse_deviation.cast(Ty::F32)));
        });
        let Some(y) = y else { return };
        let target_row = Row {
            x: y,
            first: y.base(firing_index) + row_start,
            over: row_places.clone(),
        };

        row_team.each(row_len, |i| {
            let mut normalised_value = (row.get(i) - row_mean) * inverse_deviation;
            for (j, a) in [&scale, &bias].into_iter().enumerate() {
                let (Some(a), Some(t)) = (a, affine_tensors[j]) else {
                    continue;
                };
                let affine_value = t
                    .get(firing_index, (a.place)(row_index, i, &affine_sizes[j]))
                    .cast(sum_type);
                normalised_value = if j == 0 {
                    normalised_value * affine_value
                } else {
                    normalised_value + affine_value
                };
            }

            y.store(target_row.place(i), normalised_value);
        });
    });

    let row_grid = row_team.grid(rows.rows);
    Ok(bench.finish(plan, row_grid))
}

/// Running sums or products along each row.
pub fn cumulative(
    plan: KernelPlan,
    rows: &Rows,
    (x, y): (Slot, Slot),
    [product, exclusive, reverse]: [bool; 3],
) -> Result<KernelPlan, Why> {
    let sum_type = super::computed(x.dtype)?;
    let bench = Team::bench("running sum");
    let k = &bench.k;
    let source_tensor = bench.reads(x)?;
    let target_tensor = bench.writes(y)?;
    let row_count = bench.size(rows.rows)?;
    let row_len = bench.size(rows.len)?;
    let kept_places = rows.kept.on(&bench)?;
    let row_places = rows.over.on(&bench)?;

    k.each(k.firings() * row_count, |r| {
        let firing_index = r / row_count;
        let row_start = kept_places.at(r % row_count)[0];
        let row = Row {
            x: source_tensor,
            first: source_tensor.base(firing_index) + row_start,
            over: row_places.clone(),
        };
        let target_row = Row {
            x: target_tensor,
            first: target_tensor.base(firing_index) + row_start,
            over: row_places.clone(),
        };
        let running_total = k.var(k.number(sum_type, if product { 1.0 } else { 0.0 }));

        k.times(row_len, |i| {
            let i = if reverse { row_len - 1 - i } else { i };
            let total_before = running_total.get();
            let row_value = row.get(i);
            running_total.set(if product {
                total_before * row_value
            } else {
                total_before + row_value
            });
            target_tensor.store(
                target_row.place(i),
                if exclusive {
                    total_before
                } else {
                    running_total.get()
                },
            );
        });
    });
    Ok(bench.finish(plan, Grid::Threads(Amount::each(rows.rows as u64))))
}
