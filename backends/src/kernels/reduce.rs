//! Sums and means. Floats are added with what rounding leaves kept beside (Neumaier 1974), so that devices without f64
//! come as near as those with it.

use super::lang::{Builder, Mem, Place, Shared, Ty, Val, Var};
use super::math::two_sum;
use super::plan::{Amount, Grid, KernelPlan, Operand};

/// Elements that are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// This many interleaved `f32`: 2 for complex numbers.
    F32(u32),
    F64,
    I32,
    I64,
}

/// Threads that share a row.
const ROW: u32 = 64;

/// Sums (times `scale`) of `count` elements each, `inner` apart, of tokens of `outer · count · inner` elements.
pub(crate) fn reduce(
    what: Reduction,
    outer: u64,
    count: u64,
    inner: u64,
    scale: Option<f64>,
) -> Option<KernelPlan> {
    let parts = if let Reduction::F32(parts) = what {
        parts
    } else {
        1
    };
    let inner = inner * u64::from(parts);
    let sums = outer * inner;
    let grid = Amount::each(sums);
    let operands = [Operand::Input(0), Operand::Output(0)];
    let shape = Shape {
        count: u32::try_from(count).ok()?,
        inner: u32::try_from(inner).ok()?,
        sums: u32::try_from(sums).ok()?,
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
        true => KernelPlan::one(rows(&shape), &operands, Grid::Groups(grid)),
        false => KernelPlan::one(columns(&shape), &operands, Grid::Threads(grid)),
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
        let (sum, rest) = (k.var(k.number(ty, 0.0)), k.var(k.number(ty, 0.0)));
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
        let [sum, rest] = two_sum(self.sum.get(), value);
        self.rest.set(self.rest.get() + rest);
        self.sum.set(sum);
    }

    /// Where the sum is no finite number, what is left is none.
    pub(super) fn total(&self) -> Val<'k> {
        let (sum, rest) = (self.sum.get(), self.rest.get());
        let k = sum.builder();
        if !self.compensated {
            return sum;
        }
        k.select(rest.eq(rest), sum + rest, sum)
    }

    fn finish(&self, scale: Option<f64>) -> Val<'k> {
        let total = self.total();
        scale.map_or(total, |s| total * total.like(s))
    }
}

fn columns(shape: &Shape) -> super::lang::Kernel {
    let k = Builder::new("reduce columns", 64);
    let (x, y) = (k.reads(shape.mem), k.writes(shape.mem));
    let (count, inner) = (k.spec(shape.count), k.spec(shape.inner));
    k.each(k.firings() * k.spec(shape.sums), |i| {
        let first = (i / inner) * count * inner + i % inner;
        let sum = Sum::new(&k, shape.mem.ty());
        k.times(count, |c| sum.add(k.load(x, first + c * inner)));
        k.store(y, i, sum.finish(shape.scale));
    });
    k.finish()
}

fn rows(shape: &Shape) -> super::lang::Kernel {
    let k = Builder::new("reduce rows", ROW);
    let (x, y) = (k.reads(shape.mem), k.writes(shape.mem));
    let (count, inner) = (k.spec(shape.count), k.spec(shape.inner));
    let ty = shape.mem.ty();
    let shared: [Shared<'_>; 2] = std::array::from_fn(|_| k.shared(ty, ROW));
    let local = k.place(Place::Local);
    k.each_group(k.firings() * k.spec(shape.sums), |i| {
        let first = (i / inner) * count * inner + i % inner;
        let sum = Sum::new(&k, ty);
        k.each_local(count, |c| sum.add(k.load(x, first + c * inner)));
        shared[0].set(local, sum.sum.get());
        shared[1].set(local, sum.rest.get());
        k.barrier();
        // Each half adds the other's: the same order whatever the device.
        let mut half = ROW / 2;
        while half > 0 {
            k.if_(local.lt(k.u32(half)), || {
                sum.add(shared[0].get(local + half));
                sum.rest.set(sum.rest.get() + shared[1].get(local + half));
                shared[0].set(local, sum.sum.get());
                shared[1].set(local, sum.rest.get());
            });
            k.barrier();
            half /= 2;
        }
        k.if_(local.eq(k.u32(0)), || {
            k.store(y, i, sum.finish(shape.scale))
        });
        k.barrier();
    });
    k.finish()
}
