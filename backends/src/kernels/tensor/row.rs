//! Kernels that walk along rows of a tensor: reductions, softmax, normalisations. A row belongs to one thread or to a
//! group of them ([`Team`]); what is done with it is written once.

use zbmd_ir::DType;

use super::function::{greatest, least};
use super::space::{Places, Space};
use super::{Bench, Slot, Tensor, Why};
use crate::kernels::lang::{Place, Shared, Ty, Val};
use crate::kernels::math::{exp, ln};
use crate::kernels::plan::{Amount, Grid, KernelPlan};
use crate::kernels::reduce::Sum;

/// Threads of a group that shares a row.
const GROUP: u32 = 64;

/// Rows of a tensor: dimensions that tell rows apart, and those along which a row lies.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    kept: Space,
    over: Space,
    pub(crate) rows: usize,
    pub(crate) len: usize,
}

impl Rows {
    /// The rows of a dense tensor along `axes`.
    pub(crate) fn along(dims: &[usize], axes: &[usize]) -> Self {
        let own = super::space::dense(dims);
        let pick = |inside: bool| -> (Vec<usize>, Vec<isize>) {
            let chosen = (0..dims.len()).filter(|d| axes.contains(d) == inside);
            chosen.map(|d| (dims[d], own[d])).unzip()
        };
        let ((kept, ks), (over, os)) = (pick(false), pick(true));
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
pub(crate) struct Team<'k> {
    bench: &'k Bench,
    shared: Option<Shared<'k>>,
}

impl<'k> Team<'k> {
    pub(crate) fn bench(name: &'static str) -> Bench {
        Bench::new(name, GROUP)
    }

    /// Values that are joined have type `ty`.
    pub(crate) fn new(bench: &'k Bench, grouped: bool, ty: Ty) -> Self {
        Self {
            bench,
            shared: grouped.then(|| bench.k.shared(ty, GROUP)),
        }
    }

    /// Every row below `total`.
    pub(crate) fn rows(&self, total: Val<'k>, body: impl FnOnce(Val<'k>)) {
        match self.shared {
            Some(_) => self.bench.k.each_group(total, body),
            None => self.bench.k.each(total, body),
        }
    }

    /// Every i below `total`, shared out.
    pub(crate) fn each(&self, total: Val<'k>, body: impl FnOnce(Val<'k>)) {
        match self.shared {
            Some(_) => self.bench.k.each_local(total, body),
            None => self.bench.k.times(total, body),
        }
    }

    /// What the team's values make together, the same for all of them.
    pub(crate) fn join(&self, value: Val<'k>, f: impl Fn(Val<'k>, Val<'k>) -> Val<'k>) -> Val<'k> {
        match self.shared {
            Some(shared) => shared.join(value, f),
            None => value,
        }
    }

    /// By one thread of the team.
    pub(crate) fn lead(&self, body: impl FnOnce()) {
        match self.shared {
            Some(_) => {
                let k = &self.bench.k;
                k.if_(k.place(Place::Local).eq(k.u32(0)), body);
            }
            None => body(),
        }
    }

    pub(crate) fn grid(&self, rows: usize) -> Grid {
        let rows = Amount::each(rows as u64);
        if self.shared.is_some() {
            Grid::Groups(rows)
        } else {
            Grid::Threads(rows)
        }
    }

    /// The sum of f over a row.
    fn sum(&self, len: Val<'k>, ty: Ty, f: impl FnOnce(Val<'k>) -> Val<'k>) -> Val<'k> {
        let sum = Sum::new(&self.bench.k, ty);
        self.each(len, |i| sum.add(f(i)));
        self.join(sum.total(), |a, b| a + b)
    }

    /// f chained over a row.
    fn chain(
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
pub(crate) enum Fold {
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
fn extreme<'k>(bench: &'k Bench, ty: Ty, greatest: bool) -> Val<'k> {
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
pub(crate) fn fold(
    plan: KernelPlan,
    rows: &Rows,
    (x, y): (Slot, Slot),
    kind: Fold,
) -> Result<KernelPlan, Why> {
    let ty = super::computed(x.dtype)?;
    let plain = matches!(
        kind,
        Fold::Max | Fold::Min | Fold::Prod | Fold::Sum | Fold::SumSquare
    );
    if !ty.is_float() && !plain {
        return Err("means and norms of integers are the CPU's".to_owned());
    }
    if ty == Ty::F64 && matches!(kind, Fold::LogSum | Fold::LogSumExp) {
        return Err("functions of f64 are the CPU's".to_owned());
    }
    let bench = Team::bench("reduce");
    let k = &bench.k;
    let (source, target) = (bench.reads(x)?, bench.writes(y)?);
    let (count, len) = (bench.size(rows.rows)?, bench.size(rows.len)?);
    let (kept, over) = (rows.kept.on(&bench)?, rows.over.on(&bench)?);
    let team = Team::new(&bench, rows.shared(), ty);
    team.rows(k.firings() * count, |r| {
        let first = source.base(r / count) + kept.at(r % count)[0];
        let row = Row {
            x: source,
            first,
            over: over.clone(),
        };
        let square = |i| row.get(i) * row.get(i);
        let value = match kind {
            Fold::Max | Fold::Min => {
                let max = kind == Fold::Max;
                let start = match x.dtype {
                    DType::Bool => k.u32(u32::from(!max)),
                    _ => extreme(&bench, ty, !max),
                };
                team.chain(
                    len,
                    start,
                    |i| row.get(i),
                    if max { greatest } else { least },
                )
            }
            Fold::Prod => team.chain(len, k.number(ty, 1.0), |i| row.get(i), |a, b| a * b),
            Fold::Sum => team.sum(len, ty, |i| row.get(i)),
            Fold::SumSquare => team.sum(len, ty, square),
            Fold::L1 => team.sum(len, ty, |i| row.get(i).abs()),
            Fold::L2 => team.sum(len, ty, square).sqrt(),
            Fold::Mean => team.sum(len, ty, |i| row.get(i)) / k.number(ty, rows.len as f64),
            Fold::LogSum => ln(team.sum(len, ty, |i| row.get(i))),
            Fold::LogSumExp => {
                let start = extreme(&bench, ty, false);
                let top = team.chain(len, start, |i| row.get(i), greatest);
                let finite = top.abs().lt(k.f32(f32::INFINITY));
                let top = k.select(finite, top, k.f32(0.0));
                ln(team.sum(len, ty, |i| exp(row.get(i) - top))) + top
            }
        };
        team.lead(|| target.store(r, value));
    });
    let grid = team.grid(rows.rows);
    Ok(bench.finish(plan, grid))
}

/// The place of the greatest or least element of each row, of equal ones the first or the last.
pub(crate) fn arg(
    plan: KernelPlan,
    rows: &Rows,
    (x, y): (Slot, Slot),
    is_greatest: bool,
    last: bool,
) -> Result<KernelPlan, Why> {
    let bench = Team::bench("arg");
    let k = &bench.k;
    let (source, target) = (bench.reads(x)?, bench.writes_index(y)?);
    let (count, len) = (bench.size(rows.rows)?, bench.size(rows.len)?);
    let (kept, over) = (rows.kept.on(&bench)?, rows.over.on(&bench)?);
    k.each(k.firings() * count, |r| {
        let first = source.base(r / count) + kept.at(r % count)[0];
        let row = Row {
            x: source,
            first,
            over: over.clone(),
        };
        let (best, place) = (k.var(row.get(k.u32(0))), k.var(k.u32(0)));
        k.range(k.u32(1), len, k.u32(1), |i| {
            let v = row.get(i);
            let better = if is_greatest {
                best.get().lt(v)
            } else {
                v.lt(best.get())
            };
            let better = if last {
                better | v.eq(best.get())
            } else {
                better
            };
            k.if_(better, || {
                best.set(v);
                place.set(i);
            });
        });
        target.store(r, place.get());
    });
    let grid = Grid::Threads(Amount::each(rows.rows as u64));
    Ok(bench.finish(plan, grid))
}

/// What a softmax makes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Soft {
    Plain,
    Log,
    /// 1 at the first greatest element.
    Hard,
}

/// Softmax and its kin of each row, f32 only but for [`Soft::Hard`].
pub(crate) fn softmax(
    plan: KernelPlan,
    rows: &Rows,
    (x, y): (Slot, Slot),
    kind: Soft,
) -> Result<KernelPlan, Why> {
    let ty = super::computed(x.dtype)?;
    if ty == Ty::F64 && kind != Soft::Hard {
        return Err("functions of f64 are the CPU's".to_owned());
    }
    let bench = Team::bench("softmax");
    let k = &bench.k;
    let (source, target) = (bench.reads(x)?, bench.writes(y)?);
    let (count, len) = (bench.size(rows.rows)?, bench.size(rows.len)?);
    let (kept, over) = (rows.kept.on(&bench)?, rows.over.on(&bench)?);
    let team = Team::new(&bench, rows.shared(), ty);
    let places = Team::new(&bench, rows.shared() && kind == Soft::Hard, Ty::U32);
    team.rows(k.firings() * count, |r| {
        let (firing, at) = (r / count, kept.at(r % count)[0]);
        let row = Row {
            x: source,
            first: source.base(firing) + at,
            over: over.clone(),
        };
        let to = Row {
            x: target,
            first: target.base(firing) + at,
            over: over.clone(),
        };
        let start = extreme(&bench, ty, false);
        let top = team.chain(len, start, |i| row.get(i), greatest);
        if kind == Soft::Hard {
            let none = k.u32(u32::MAX);
            let here = |i| k.select(row.get(i).eq(top), i, none);
            let first = places.chain(len, none, here, |a, b| a.min(b));
            let (one, zero) = (k.number(ty, 1.0), k.number(ty, 0.0));
            return team.each(len, |i| {
                target.store(to.place(i), k.select(i.eq(first), one, zero))
            });
        }
        let sum = team.sum(len, ty, |i| exp(row.get(i) - top));
        match kind {
            Soft::Log => {
                let log = ln(sum);
                team.each(len, |i| target.store(to.place(i), row.get(i) - top - log));
            }
            _ => {
                let scale = k.f32(1.0) / sum;
                team.each(len, |i| {
                    target.store(to.place(i), exp(row.get(i) - top) * scale)
                });
            }
        }
    });
    let grid = team.grid(rows.rows);
    Ok(bench.finish(plan, grid))
}

/// How a row is normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Norm {
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
pub(crate) struct Affine {
    pub(crate) slot: Slot,
    /// Row, element, its sizes.
    pub(crate) place: for<'k> fn(Val<'k>, Val<'k>, &[Val<'k>]) -> Val<'k>,
    pub(crate) sizes: Vec<usize>,
}

/// What is normalised, and where it goes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Normed {
    pub(crate) x: Option<Slot>,
    pub(crate) y: Option<Slot>,
    pub(crate) mean: Option<Slot>,
    pub(crate) deviation: Option<Slot>,
}

/// Normalises rows, times `scale`, plus `bias`; also the mean and the inverse deviation of each row.
pub(crate) fn normalise(
    plan: KernelPlan,
    rows: &Rows,
    what: Normed,
    norm: Norm,
    [scale, bias]: [Option<Affine>; 2],
) -> Result<KernelPlan, Why> {
    let Some(x) = what.x else { return Ok(plan) };
    let ty = super::computed(x.dtype)?;
    let bench = Team::bench("normalise");
    let k = &bench.k;
    let source = bench.reads(x)?;
    let bound = |a: &Option<Affine>| a.as_ref().map(|a| bench.reads(a.slot)).transpose();
    let tensors = [bound(&scale)?, bound(&bias)?];
    let written = |slot: Option<Slot>| slot.map(|s| bench.writes(s)).transpose();
    let (y, mean_to, deviation_to) = (
        written(what.y)?,
        written(what.mean)?,
        written(what.deviation)?,
    );
    let sizes = |a: &Option<Affine>| -> Result<Vec<Val<'_>>, Why> {
        a.iter()
            .flat_map(|a| &a.sizes)
            .map(|s| bench.size(*s))
            .collect()
    };
    let affine = [sizes(&scale)?, sizes(&bias)?];
    let (count, len) = (bench.size(rows.rows)?, bench.size(rows.len)?);
    let (kept, over) = (rows.kept.on(&bench)?, rows.over.on(&bench)?);
    let team = Team::new(&bench, rows.shared(), ty);
    let n = rows.len as f64;
    team.rows(k.firings() * count, |r| {
        let (firing, at) = (r / count, r % count);
        let place = kept.at(at)[0];
        let row = Row {
            x: source,
            first: source.base(firing) + place,
            over: over.clone(),
        };
        let centred = matches!(norm, Norm::Deviation(_) | Norm::Plain(_));
        let mean = match centred {
            true => team.sum(len, ty, |i| row.get(i)) / k.number(ty, n),
            false => k.number(ty, 0.0),
        };
        let spread = match norm {
            Norm::One => team.sum(len, ty, |i| row.get(i).abs()),
            _ => team.sum(len, ty, |i| {
                let d = row.get(i) - mean;
                d * d
            }),
        };
        let (one, zero) = (k.number(ty, 1.0), k.number(ty, 0.0));
        let by = match norm {
            Norm::Deviation(e) | Norm::RootMean(e) => {
                one / (spread / k.number(ty, n) + k.number(ty, e)).sqrt()
            }
            Norm::Plain(e) => one / ((spread / k.number(ty, n)).sqrt() + k.number(ty, e)),
            Norm::One => k.select(spread.eq(zero), zero, one / spread),
            Norm::Two => k.select(spread.eq(zero), zero, one / spread.sqrt()),
        };
        team.lead(|| {
            // Statistics are f32 whatever is normalised.
            mean_to.inspect(|t| t.store(r, mean.cast(Ty::F32)));
            deviation_to.inspect(|t| t.store(r, by.cast(Ty::F32)));
        });
        let Some(y) = y else { return };
        let to = Row {
            x: y,
            first: y.base(firing) + place,
            over: over.clone(),
        };
        team.each(len, |i| {
            let mut value = (row.get(i) - mean) * by;
            for (j, a) in [&scale, &bias].into_iter().enumerate() {
                let (Some(a), Some(t)) = (a, tensors[j]) else {
                    continue;
                };
                let more = t.get(firing, (a.place)(at, i, &affine[j])).cast(ty);
                value = if j == 0 { value * more } else { value + more };
            }
            y.store(to.place(i), value);
        });
    });
    let grid = team.grid(rows.rows);
    Ok(bench.finish(plan, grid))
}

/// Running sums or products along each row.
pub(crate) fn cumulative(
    plan: KernelPlan,
    rows: &Rows,
    (x, y): (Slot, Slot),
    [product, exclusive, reverse]: [bool; 3],
) -> Result<KernelPlan, Why> {
    let ty = super::computed(x.dtype)?;
    let bench = Team::bench("running sum");
    let k = &bench.k;
    let (source, target) = (bench.reads(x)?, bench.writes(y)?);
    let (count, len) = (bench.size(rows.rows)?, bench.size(rows.len)?);
    let (kept, over) = (rows.kept.on(&bench)?, rows.over.on(&bench)?);
    k.each(k.firings() * count, |r| {
        let (firing, at) = (r / count, kept.at(r % count)[0]);
        let row = Row {
            x: source,
            first: source.base(firing) + at,
            over: over.clone(),
        };
        let to = Row {
            x: target,
            first: target.base(firing) + at,
            over: over.clone(),
        };
        let sum = k.var(k.number(ty, if product { 1.0 } else { 0.0 }));
        k.times(len, |i| {
            let i = if reverse { len - 1 - i } else { i };
            let before = sum.get();
            let v = row.get(i);
            sum.set(if product { before * v } else { before + v });
            target.store(to.place(i), if exclusive { before } else { sum.get() });
        });
    });
    Ok(bench.finish(plan, Grid::Threads(Amount::each(rows.rows as u64))))
}
