//! Kernels that walk along rows of a tensor: reductions, softmax, running sums. A row belongs to one thread or to a
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

/// Rows of a tensor: dimensions that tell rows apart, and those along which a row extends.
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
        let own_steps = super::space::dense(dims);
        let sizes_and_steps = |is_along: bool| -> (Vec<usize>, Vec<isize>) {
            let chosen = (0..dims.len()).filter(|d| axes.contains(d) == is_along);
            chosen.map(|d| (dims[d], own_steps[d])).unzip()
        };
        let (kept_sizes, kept_steps) = sizes_and_steps(false);
        let (row_sizes, row_steps) = sizes_and_steps(true);

        Self {
            rows: kept_sizes.iter().product(),
            len: row_sizes.iter().product(),
            kept: Space::new(&kept_sizes, &[kept_steps]),
            over: Space::new(&row_sizes, &[row_steps]),
        }
    }

    /// Whether a group shares each row.
    pub(super) fn shared(&self) -> bool {
        self.len >= GROUP as usize
    }
}

/// Those who share a row: one thread, or a group.
pub struct Team<'k> {
    pub(super) bench: &'k TensorKernelBuilder,
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
        let row_count = Amount::each(rows as u64);
        match self.shared {
            Some(_) => Grid::Groups(row_count),
            None => Grid::Threads(row_count),
        }
    }

    /// The sum of f over a row.
    pub(super) fn sum_row(
        &self,
        len: Val<'k>,
        ty: Ty,
        f: impl FnOnce(Val<'k>) -> Val<'k>,
    ) -> Val<'k> {
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
pub(super) struct Row<'k> {
    x: Tensor<'k>,
    first: Val<'k>,
    over: Places<'k>,
}

impl<'k> Row<'k> {
    fn place(&self, i: Val<'k>) -> Val<'k> {
        self.first + self.over.at(i)[0]
    }

    pub(super) fn get(&self, i: Val<'k>) -> Val<'k> {
        self.x.load(self.place(i))
    }

    pub(super) fn set(&self, i: Val<'k>, value: Val<'k>) {
        self.x.store(self.place(i), value);
    }
}

/// Rows bound to a kernel.
pub(super) struct BoundRows<'k> {
    /// Rows of a firing.
    count: Val<'k>,
    pub(super) len: Val<'k>,
    kept: Places<'k>,
    over: Places<'k>,
}

/// Where a row is, in every tensor that has the shape.
pub(super) struct RowPlace<'k> {
    pub(super) firing: Val<'k>,
    /// Number of the row in its firing.
    pub(super) index: Val<'k>,
    /// Its first element in a token.
    start: Val<'k>,
}

impl<'k> BoundRows<'k> {
    pub(super) fn bind(bench: &'k TensorKernelBuilder, rows: &Rows) -> Result<Self, Why> {
        Ok(Self {
            count: bench.size(rows.rows)?,
            len: bench.size(rows.len)?,
            kept: rows.kept.on(bench)?,
            over: rows.over.on(bench)?,
        })
    }

    /// Rows of all firings.
    pub(super) fn total(&self) -> Val<'k> {
        self.count.builder().firings() * self.count
    }

    /// Row `row` of all firings, of the only tensor with that shape.
    fn only_row(&self, tensor: Tensor<'k>, row: Val<'k>) -> Row<'k> {
        Row {
            x: tensor,
            first: tensor.base(row / self.count) + self.kept.at(row % self.count)[0],
            over: self.over.clone(),
        }
    }

    /// Where row `row` of all firings is.
    pub(super) fn place_of(&self, row: Val<'k>) -> RowPlace<'k> {
        let firing = row / self.count;
        let index = row % self.count;
        RowPlace {
            firing,
            index,
            start: self.kept.at(index)[0],
        }
    }

    pub(super) fn row_at(&self, tensor: Tensor<'k>, place: &RowPlace<'k>) -> Row<'k> {
        Row {
            x: tensor,
            first: tensor.base(place.firing) + place.start,
            over: self.over.clone(),
        }
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

/// Why a fold of elements of a type has no kernel.
fn check_fold(ty: Ty, kind: Fold) -> Result<(), Why> {
    let is_plain = matches!(
        kind,
        Fold::Max | Fold::Min | Fold::Prod | Fold::Sum | Fold::SumSquare
    );
    if !ty.is_float() && !is_plain {
        return Err("no GPU kernel for means and norms of integers".to_owned());
    }
    if ty == Ty::F64 && matches!(kind, Fold::LogSum | Fold::LogSumExp) {
        return Err("no GPU kernel for f64 functions".to_owned());
    }
    Ok(())
}

/// y = the fold of each row of x.
pub fn fold(
    plan: KernelPlan,
    rows: &Rows,
    (x, y): (Slot, Slot),
    kind: Fold,
) -> Result<KernelPlan, Why> {
    let ty = super::computed(x.dtype)?;
    check_fold(ty, kind)?;

    let bench = Team::bench("reduce");
    let source = bench.reads(x)?;
    let target = bench.writes(y)?;
    let bound_rows = BoundRows::bind(&bench, rows)?;
    let row_team = Team::new(&bench, rows.shared(), ty);
    row_team.rows(bound_rows.total(), |r| {
        let row_fold = RowFold {
            team: &row_team,
            row: bound_rows.only_row(source, r),
            len: bound_rows.len,
            element_count: rows.len as f64,
            dtype: x.dtype,
            ty,
        };
        let folded_value = row_fold.value(kind);
        row_team.lead(|| target.store(r, folded_value));
    });

    let row_grid = row_team.grid(rows.rows);
    Ok(bench.finish(plan, row_grid))
}

/// A row that is folded by a team.
struct RowFold<'r, 'k> {
    team: &'r Team<'k>,
    row: Row<'k>,
    len: Val<'k>,
    element_count: f64,
    dtype: DType,
    ty: Ty,
}

impl<'k> RowFold<'_, 'k> {
    fn value(&self, kind: Fold) -> Val<'k> {
        let k = &self.team.bench.k;
        match kind {
            Fold::Max => self.extreme(true),
            Fold::Min => self.extreme(false),
            Fold::Prod => {
                let one = k.number(self.ty, 1.0);
                let element = |i| self.row.get(i);
                self.team.fold_row(self.len, one, element, |a, b| a * b)
            }
            Fold::Sum => self.sum(|x| x),
            Fold::SumSquare => self.sum_of_squares(),
            Fold::L1 => self.sum(|x| x.abs()),
            Fold::L2 => self.sum_of_squares().sqrt(),
            Fold::Mean => self.sum(|x| x) / k.number(self.ty, self.element_count),
            Fold::LogSum => ln(self.sum(|x| x)),
            Fold::LogSumExp => self.log_sum_exp(),
        }
    }

    fn sum(&self, of: impl FnOnce(Val<'k>) -> Val<'k>) -> Val<'k> {
        self.team
            .sum_row(self.len, self.ty, |i| of(self.row.get(i)))
    }

    fn sum_of_squares(&self) -> Val<'k> {
        let square = |i| self.row.get(i) * self.row.get(i);
        self.team.sum_row(self.len, self.ty, square)
    }

    /// The greatest or least element.
    fn extreme(&self, is_max: bool) -> Val<'k> {
        let bench = self.team.bench;
        // Truth values are words: 0 and 1 bound them.
        let start_value = match self.dtype {
            DType::Bool => bench.k.u32(u32::from(!is_max)),
            _ => extreme_value(bench, self.ty, !is_max),
        };
        let better = if is_max { greatest } else { least };
        let element = |i| self.row.get(i);
        self.team.fold_row(self.len, start_value, element, better)
    }

    fn log_sum_exp(&self) -> Val<'k> {
        let bench = self.team.bench;
        let k = &bench.k;
        // Without the largest value, the exponentials would overflow.
        let start_value = extreme_value(bench, self.ty, false);
        let element = |i| self.row.get(i);
        let largest_value = self.team.fold_row(self.len, start_value, element, greatest);
        // Infinity less infinity is not a number.
        let is_finite = largest_value.abs().lt(k.f32(f32::INFINITY));
        let offset = k.select(is_finite, largest_value, k.f32(0.0));
        ln(self.sum(|x| exp(x - offset))) + offset
    }
}

/// The place of the greatest or least element of each row, of equal ones the first or the last.
pub fn arg(
    plan: KernelPlan,
    rows: &Rows,
    (x, y): (Slot, Slot),
    is_greatest: bool,
    takes_last: bool,
) -> Result<KernelPlan, Why> {
    let bench = Team::bench("arg");
    let k = &bench.k;
    let source = bench.reads(x)?;
    let target = bench.writes_index(y)?;
    let bound_rows = BoundRows::bind(&bench, rows)?;

    k.each(bound_rows.total(), |r| {
        let row = bound_rows.only_row(source, r);
        let best_value = k.var(row.get(k.u32(0)));
        let best_index = k.var(k.u32(0));

        k.range(k.u32(1), bound_rows.len, k.u32(1), |i| {
            let row_value = row.get(i);
            let is_better = match is_greatest {
                true => best_value.get().lt(row_value),
                false => row_value.lt(best_value.get()),
            };
            let is_taken = match takes_last {
                true => is_better | row_value.eq(best_value.get()),
                false => is_better,
            };
            k.if_(is_taken, || {
                best_value.set(row_value);
                best_index.set(i);
            });
        });
        target.store(r, best_index.get());
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
    let ty = super::computed(x.dtype)?;
    if ty == Ty::F64 && kind != Soft::Hard {
        return Err("no GPU kernel for f64 functions".to_owned());
    }

    let bench = Team::bench("softmax");
    let source = bench.reads(x)?;
    let target = bench.writes(y)?;
    let bound_rows = BoundRows::bind(&bench, rows)?;
    let row_team = Team::new(&bench, rows.shared(), ty);
    let index_team = Team::new(&bench, rows.shared() && kind == Soft::Hard, Ty::U32);
    row_team.rows(bound_rows.total(), |r| {
        let place = bound_rows.place_of(r);
        let row_softmax = RowSoftmax {
            team: &row_team,
            row: bound_rows.row_at(source, &place),
            target: bound_rows.row_at(target, &place),
            len: bound_rows.len,
            ty,
        };

        let start_value = extreme_value(&bench, ty, false);
        let element = |i| row_softmax.row.get(i);
        let largest_value = row_team.fold_row(bound_rows.len, start_value, element, greatest);
        match kind {
            Soft::Hard => row_softmax.mark_first(&index_team, largest_value),
            Soft::Log => row_softmax.store_logarithms(largest_value),
            Soft::Plain => row_softmax.store_shares(largest_value),
        }
    });

    let row_grid = row_team.grid(rows.rows);
    Ok(bench.finish(plan, row_grid))
}

/// A row whose softmax a team computes.
struct RowSoftmax<'r, 'k> {
    team: &'r Team<'k>,
    row: Row<'k>,
    target: Row<'k>,
    len: Val<'k>,
    ty: Ty,
}

impl<'k> RowSoftmax<'_, 'k> {
    /// Without the largest value, the exponentials would overflow.
    fn exp_sum(&self, largest_value: Val<'k>) -> Val<'k> {
        self.team
            .sum_row(self.len, self.ty, |i| exp(self.row.get(i) - largest_value))
    }

    /// exp(x − largest) / sum.
    fn store_shares(&self, largest_value: Val<'k>) {
        let exp_sum = self.exp_sum(largest_value);
        let inverse_sum = self.team.bench.k.f32(1.0) / exp_sum;
        self.team.each(self.len, |i| {
            let place = self.target.place(i);
            let share = exp(self.row.get(i) - largest_value) * inverse_sum;
            self.target.x.store(place, share);
        });
    }

    /// x − largest − ln(sum).
    fn store_logarithms(&self, largest_value: Val<'k>) {
        let log_sum = ln(self.exp_sum(largest_value));
        self.team.each(self.len, |i| {
            let place = self.target.place(i);
            let logarithm = self.row.get(i) - largest_value - log_sum;
            self.target.x.store(place, logarithm);
        });
    }

    /// 1 at the first element that is the largest, 0 elsewhere.
    fn mark_first(&self, index_team: &Team<'k>, largest_value: Val<'k>) {
        let k = &self.team.bench.k;
        let no_index = k.u32(u32::MAX);
        let index_if_largest = |i| k.select(self.row.get(i).eq(largest_value), i, no_index);
        let first_index =
            index_team.fold_row(self.len, no_index, index_if_largest, |a, b| a.min(b));
        let one = k.number(self.ty, 1.0);
        let zero = k.number(self.ty, 0.0);
        self.team.each(self.len, |i| {
            let place = self.target.place(i);
            self.target
                .x
                .store(place, k.select(i.eq(first_index), one, zero));
        });
    }
}

/// What a row is cumulated to.
#[derive(Clone, Copy, Debug)]
pub struct Cumulation {
    /// Products rather than sums.
    pub is_product: bool,
    /// Whether an element itself is left out of its sum.
    pub is_exclusive: bool,
    /// From the last element to the first.
    pub is_reverse: bool,
}

/// Running sums or products along each row.
pub fn cumulative(
    plan: KernelPlan,
    rows: &Rows,
    (x, y): (Slot, Slot),
    kind: Cumulation,
) -> Result<KernelPlan, Why> {
    let ty = super::computed(x.dtype)?;
    let bench = Team::bench("running sum");
    let k = &bench.k;
    let source = bench.reads(x)?;
    let target = bench.writes(y)?;
    let bound_rows = BoundRows::bind(&bench, rows)?;

    k.each(bound_rows.total(), |r| {
        let place = bound_rows.place_of(r);
        let row = bound_rows.row_at(source, &place);
        let target_row = bound_rows.row_at(target, &place);
        let neutral_number = if kind.is_product { 1.0 } else { 0.0 };
        let running_total = k.var(k.number(ty, neutral_number));

        k.times(bound_rows.len, |step| {
            let i = match kind.is_reverse {
                true => bound_rows.len - 1 - step,
                false => step,
            };
            let total_before = running_total.get();
            let row_value = row.get(i);
            running_total.set(match kind.is_product {
                true => total_before * row_value,
                false => total_before + row_value,
            });

            let target_place = target_row.place(i);
            let shown_total = match kind.is_exclusive {
                true => total_before,
                false => running_total.get(),
            };
            target.store(target_place, shown_total);
        });
    });
    Ok(bench.finish(plan, Grid::Threads(Amount::each(rows.rows as u64))))
}
