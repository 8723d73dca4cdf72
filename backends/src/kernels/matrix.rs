//! Matrix products: tiles in shared memory, a few elements in the registers of each thread. Every element is summed in
//! the order of the inner dimension, as on the CPU.

use super::lang::{Builder, Kernel, Mem, Place, Shared, Ty, Val};
use super::plan::{Amount, Grid, KernelPlan, Operand, table};
use super::wide::Cx;

/// A product of x [m, k] and b [k, n] in each firing.
#[derive(Clone, Debug)]
pub(crate) struct MatMul {
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) complex: bool,
    /// b, where it is the same in every firing.
    pub(crate) constant: Option<Vec<f32>>,
}

/// Threads of a group along each side of a tile.
const SIDE: u32 = 8;
/// Inner elements that a tile has.
const DEPTH: u32 = 16;
/// Rows below which a tile is not worth its barriers.
const FEW_ROWS: usize = 4;

/// The kernel; a constant b meets the rows of all firings at once.
pub(crate) fn matmul(product: &MatMul) -> Option<KernelPlan> {
    let MatMul {
        m,
        k,
        n,
        complex,
        ref constant,
    } = *product;
    let outputs = (m * n) as u64;
    let rows = if constant.is_some() { usize::MAX } else { m };
    let size = |v: usize| u32::try_from(v).ok();
    let shape = Shape {
        m: size(m)?,
        k: size(k)?,
        n: size(n)?,
        shared_b: constant.is_some(),
    };
    let b = if constant.is_some() {
        Operand::Const(0)
    } else {
        Operand::Input(1)
    };
    let operands = [Operand::Input(0), b, Operand::Output(0)];
    let plan = if complex {
        KernelPlan::one(
            elements(&shape, true),
            &operands,
            Grid::Threads(Amount::each(outputs)),
        )
    } else if rows <= FEW_ROWS || n < SIDE as usize {
        KernelPlan::one(
            elements(&shape, false),
            &operands,
            Grid::Threads(Amount::each(outputs)),
        )
    } else {
        let per_thread = if n >= 32 && (m >= 32 || constant.is_some()) {
            4
        } else {
            2
        };
        let tile = u64::from(SIDE * per_thread);
        // Firings' rows may share a tile: one more than whole tiles is the most there are.
        let across = (n as u64).div_ceil(tile);
        let groups = match constant {
            Some(_) => Amount {
                per_firing: (m as u64).div_ceil(tile) * across,
                fixed: 0,
            },
            None => Amount::each((m as u64).div_ceil(tile) * across),
        };
        KernelPlan::one(tiles(&shape, per_thread), &operands, Grid::Groups(groups))
    };
    let consts = constant.iter().map(|b| table(b.iter().copied())).collect();
    Some(plan.constants(consts))
}

struct Shape {
    m: u32,
    k: u32,
    n: u32,
    shared_b: bool,
}

/// A thread for each element.
fn elements(shape: &Shape, complex: bool) -> Kernel {
    let g = Builder::new(
        if complex {
            "complex product"
        } else {
            "matrix by vector"
        },
        64,
    );
    let mem = if complex { Mem::Pair } else { Mem::F32 };
    let (x, b, y) = (g.reads(mem), g.reads(mem), g.writes(mem));
    let (m, k, n) = (g.spec(shape.m), g.spec(shape.k), g.spec(shape.n));
    g.each(g.firings() * m * n, |i| {
        let (row, column) = (i / n, i % n);
        let first = row * k;
        let matrix = if shape.shared_b {
            g.u32(0)
        } else {
            (row / m) * k * n
        };
        let [re, im] = [g.var(g.f32(0.0)), g.var(g.f32(0.0))];
        g.times(k, |c| {
            let (at_x, at_b) = (first + c, matrix + c * n + column);
            if complex {
                let product = Cx::load(&g, x, at_x).times(Cx::load(&g, b, at_b));
                re.set(re.get() + product.re);
                im.set(im.get() + product.im);
            } else {
                re.set(g.fma(g.load(x, at_x), g.load(b, at_b), re.get()));
            }
        });
        match complex {
            true => g.store_pair(y, i, [re.get(), im.get()]),
            false => g.store(y, i, re.get()),
        }
    });
    g.finish()
}

/// A group for each tile of `8 r` by `8 r` elements, r by r of them to a thread.
fn tiles(shape: &Shape, r: u32) -> Kernel {
    let g = Builder::new("matrix product", SIDE * SIDE);
    let (x, b, y) = (g.reads(Mem::F32), g.reads(Mem::F32), g.writes(Mem::F32));
    let (m, k, n) = (g.spec(shape.m), g.spec(shape.k), g.spec(shape.n));
    let tile = SIDE * r;
    let (xs, bs) = (
        g.shared(Ty::F32, tile * DEPTH),
        g.shared(Ty::F32, tile * DEPTH),
    );
    let local = g.place(Place::Local);
    let (ty, tx) = (local / SIDE, local % SIDE);
    // With one b for all, the rows of all firings make one tall matrix.
    let rows = if shape.shared_b { g.firings() * m } else { m };
    let (down, across) = (up_of(rows, tile), up_of(n, tile));
    let matrices = if shape.shared_b {
        g.u32(1)
    } else {
        g.firings()
    };
    g.each_group(matrices * down * across, |t| {
        let (matrix, rest) = (t / (down * across), t % (down * across));
        let (row, column) = ((rest / across) * tile, (rest % across) * tile);
        let (base_x, base_b) = (matrix * rows * k, matrix * k * n);
        let sums: Vec<_> = (0..r * r).map(|_| g.var(g.f32(0.0))).collect();
        g.range(g.u32(0), k, g.u32(DEPTH), |depth| {
            g.each_local(g.u32(tile * DEPTH), |e| {
                let (i, d) = (e / DEPTH, e % DEPTH);
                let inside = (row + i).lt(rows) & (depth + d).lt(k);
                let at = base_x + (row + i) * k + depth + d;
                fill(xs, d * tile + i, inside, x, at);
                let (d, j) = (e / tile, e % tile);
                let inside = (column + j).lt(n) & (depth + d).lt(k);
                let at = base_b + (depth + d) * n + column + j;
                fill(bs, d * tile + j, inside, b, at);
            });
            g.barrier();
            let most = (k - depth).min(g.u32(DEPTH));
            g.times(most, |d| {
                let line = d * tile;
                let left: Vec<_> = (0..r).map(|i| xs.get(line + ty + SIDE * i)).collect();
                let right: Vec<_> = (0..r).map(|j| bs.get(line + tx + SIDE * j)).collect();
                for (i, a) in left.iter().enumerate() {
                    for (j, b) in right.iter().enumerate() {
                        let sum = sums[i * r as usize + j];
                        sum.set(g.fma(*a, *b, sum.get()));
                    }
                }
            });
            g.barrier();
        });
        for i in 0..r {
            for j in 0..r {
                let (at_row, at_column) = (row + ty + SIDE * i, column + tx + SIDE * j);
                g.if_(at_row.lt(rows) & at_column.lt(n), || {
                    let at = (matrix * rows + at_row) * n + at_column;
                    g.store(y, at, sums[(i * r + j) as usize].get());
                });
            }
        }
    });
    g.finish()
}

fn up_of<'k>(v: Val<'k>, tile: u32) -> Val<'k> {
    (v + (tile - 1)) / tile
}

/// An element of shared memory: that of a binding, or 0 outside.
fn fill<'k>(to: Shared<'k>, at: Val<'k>, inside: Val<'k>, from: u32, index: Val<'k>) {
    let g = at.builder();
    g.if_else(
        inside,
        || to.set(at, g.load(from, index)),
        || to.set(at, g.f32(0.0)),
    );
}
