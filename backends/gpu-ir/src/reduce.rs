//! Sums and means. Floats are added with what rounding leaves kept beside (Neumaier 1974), so that devices without f64
//! come as near as those with it.

use super::lang::{Builder, Mem, Place, Shared, Ty, Val, Var};
use super::math::two_sum;
use super::plan::{Amount, Grid, KernelPlan, Operand};

/// Elements that are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Reduction {
    /// This many interleaved `f32`: 2 for complex numbers.
    F32(u32),
    F64,
    I32,
    I64,
}

/// Threads that share a row.
const ROW: u32 = 64;

/// Sums (times `scale`) of `count` elements each, `inner` apart, of tokens of `outer · count · inner` elements.
pub fn reduce(
    what: Reduction,
    outer: u64,
    count: u64,
    inner: u64,
    scale: Option<f64>,
) -> Option<KernelPlan> {
    // The parts of complex numbers are summed like further columns.
    let part_count = if let Reduction::F32(part_count) = what {
        part_count
    } else {
        1
    };
    let inner = inner * u64::from(part_count);
    let sum_count = outer * inner;
    let sum_grid = Amount::each(sum_count);
    let sum_operands = [Operand::Input(0), Operand::Output(0)];

    let shape = Shape {
        count: u32::try_from(count).ok()?,
        inner: u32::try_from(inner).ok()?,
        sums: u32::try_from(sum_count).ok()?,
        mem: match what {
            Reduction::F32(_) => Mem::F32,
            Reduction::F64 => Mem::F64,
            Reduction::I32 => Mem::I32,
            Reduction::I64 => Mem::I64,
        },
        scale,
    };

    // Neighbouring threads read neighbouring elements where there are many columns; rows are shared by a group.
    Some(match inner <= 2 && count >= u64::from(ROW) {
        true => KernelPlan::one(sum_rows(&shape), &sum_operands, Grid::Groups(sum_grid)),
        false => KernelPlan::one(sum_columns(&shape), &sum_operands, Grid::Threads(sum_grid)),
    })
}

struct Shape {
    count: u32,
    inner: u32,
    /// Of one token.
    sums: u32,
    mem: Mem,
    scale: Option<f64>,
}

/// A sum and, for `f32`, what is left beside.
pub(super) struct Sum<'k> {
    pub(super) sum: Var<'k>,
    pub(super) rest: Var<'k>,
    compensated: bool,
}

impl<'k> Sum<'k> {
    pub(super) fn new(k: &'k Builder, ty: Ty) -> Self {
        let sum = k.var(k.number(ty, 0.0));
        let rest = k.var(k.number(ty, 0.0));
        Self {
            sum,
            rest,
            compensated: ty == Ty::F32,
        }
    }

    pub(super) fn add(&self, value: Val<'k>) {
        if !self.compensated {
            return self.sum.set(self.sum.get() + value);
        }
        let [sum, rounding_error] = two_sum(self.sum.get(), value);
        self.rest.set(self.rest.get() + rounding_error);
        self.sum.set(sum);
    }

    /// Where the sum is not finite, its rounding error is not a number, and is left out.
    pub(super) fn total(&self) -> Val<'k> {
        let sum = self.sum.get();
        let rounding_error = self.rest.get();
        let k = sum.builder();
        if !self.compensated {
            return sum;
        }
        k.select(rounding_error.eq(rounding_error), sum + rounding_error, sum)
    }

    fn finish(&self, scale: Option<f64>) -> Val<'k> {
        let total = self.total();
        scale.map_or(total, |s| total * total.like(s))
    }
}

fn sum_columns(shape: &Shape) -> super::lang::Kernel {
    let k = Builder::new("reduce columns", 64);
    let x = k.reads(shape.mem);
    let y = k.writes(shape.mem);
    let count = k.spec(shape.count);
    let inner = k.spec(shape.inner);

    k.each(k.firings() * k.spec(shape.sums), |i| {
        let first_index = (i / inner) * count * inner + i % inner;
        let column_sum = Sum::new(&k, shape.mem.ty());
        k.times(count, |c| {
            column_sum.add(k.load(x, first_index + c * inner))
        });
        k.store(y, i, column_sum.finish(shape.scale));
    });
    k.finish()
}

fn sum_rows(shape: &Shape) -> super::lang::Kernel {
    let k = Builder::new("reduce rows", ROW);
    let x = k.reads(shape.mem);
    let y = k.writes(shape.mem);
    let count = k.spec(shape.count);
    let inner = k.spec(shape.inner);
    let sum_type = shape.mem.ty();
    let shared_sums: [Shared<'_>; 2] = std::array::from_fn(|_| k.shared(sum_type, ROW));
    // A thread adds every `ROW`-th element; then the group adds the threads' sums.
    let local_index = k.place(Place::Local);

    k.each_group(k.firings() * k.spec(shape.sums), |i| {
        let first_index = (i / inner) * count * inner + i % inner;
        let row_sum = Sum::new(&k, sum_type);
        k.each_local(count, |c| row_sum.add(k.load(x, first_index + c * inner)));
        shared_sums[0].set(local_index, row_sum.sum.get());
        shared_sums[1].set(local_index, row_sum.rest.get());
        k.barrier();

        // Each half adds the other's: the same order whatever the device.
        let mut half_size = ROW / 2;
        while half_size > 0 {
            k.if_(local_index.lt(k.u32(half_size)), || {
                row_sum.add(shared_sums[0].get(local_index + half_size));
                row_sum
                    .rest
                    .set(row_sum.rest.get() + shared_sums[1].get(local_index + half_size));
                shared_sums[0].set(local_index, row_sum.sum.get());
                shared_sums[1].set(local_index, row_sum.rest.get());
            });
            k.barrier();
            half_size /= 2;
        }

        k.if_(local_index.eq(k.u32(0)), || {
            k.store(y, i, row_sum.finish(shape.scale))
        });
        k.barrier();
    });
    k.finish()
}
