//! Matrix products: tiles in shared memory, a few elements in the registers of each thread. Every element is summed in
//! the order of the inner dimension, as on the CPU.

use super::lang::{Builder, Kernel, Mem, Place, Shared, Ty, Val, Var};
use super::plan::{Amount, Grid, KernelPlan, Operand, table};
use super::wide::Cx;

/// A product of x [m, k] and b [k, n] in each firing.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct MatMul {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub complex: bool,
    /// b, where it is the same in every firing.
    pub constant: Option<Vec<f32>>,
}

/// Threads of a group along each side of a tile.
const SIDE: u32 = 8;
/// Inner elements that a tile has.
const DEPTH: u32 = 16;
/// Rows below which a tile is not worth its barriers.
const FEW_ROWS: usize = 4;

/// The kernel; a constant b meets the rows of all firings at once.
pub fn matmul(product: &MatMul) -> Option<KernelPlan> {
    let MatMul {
        m,
        k,
        n,
        complex,
        ref constant,
    } = *product;

    let output_count = (m * n) as u64;
    let shared_rows = if constant.is_some() { usize::MAX } else { m };
    // Sizes are words of the kernel; larger matrices stay on the CPU.
    let checked_size = |v: usize| u32::try_from(v).ok();

    let shape = Shape {
        m: checked_size(m)?,
        k: checked_size(k)?,
        n: checked_size(n)?,
        shared_b: constant.is_some(),
    };

    let right_operand = if constant.is_some() {
        Operand::Const(0)
    } else {
        Operand::Input(1)
    };
    let port_operands = [Operand::Input(0), right_operand, Operand::Output(0)];
    let kernel_plan = if complex {
        KernelPlan::one(
            element_kernel(&shape, true),
            &port_operands,
            Grid::Threads(Amount::each(output_count)),
        )
    } else if shared_rows <= FEW_ROWS || n < SIDE as usize {
        KernelPlan::one(
            element_kernel(&shape, false),
            &port_operands,
            Grid::Threads(Amount::each(output_count)),
        )
    } else {
        let per_thread = if n >= 32 && (m >= 32 || constant.is_some()) {
            4
        } else {
            2
        };
        let tile_side = u64::from(SIDE * per_thread);
        // Firings' rows may share a tile: one more than whole tiles is the most there are.
        let tiles_across = (n as u64).div_ceil(tile_side);

        let group_count = match constant {
            Some(_) => Amount {
                per_firing: (m as u64).div_ceil(tile_side) * tiles_across,
                fixed: 0,
            },
            None => Amount::each((m as u64).div_ceil(tile_side) * tiles_across),
        };
        KernelPlan::one(
            tile_kernel(&shape, per_thread),
            &port_operands,
            Grid::Groups(group_count),
        )
    };

    let const_tables = constant
        .iter()
        .map(|right_operand| table(right_operand.iter().copied()))
        .collect();
    Some(kernel_plan.constants(const_tables))
}

struct Shape {
    m: u32,
    k: u32,
    n: u32,
    shared_b: bool,
}

/// A thread for each element.
fn element_kernel(shape: &Shape, complex: bool) -> Kernel {
    let g = Builder::new(
        if complex {
            "complex product"
        } else {
            "matrix by vector"
        },
        64,
    );

    let element_memory = if complex { Mem::Pair } else { Mem::F32 };
    let left_binding = g.reads(element_memory);
    let right_binding = g.reads(element_memory);
    let output_binding = g.writes(element_memory);
    let m = g.spec(shape.m);
    let k = g.spec(shape.k);
    let n = g.spec(shape.n);

    g.each(g.firings() * m * n, |i| {
        let row = i / n;
        let column = i % n;
        let row_start = row * k;
        let matrix_start = if shape.shared_b {
            g.u32(0)
        } else {
            (row / m) * k * n
        };
        let re_sum = g.var(g.f32(0.0));
        let im_sum = g.var(g.f32(0.0));

        // One thread for each element of the product.
        g.times(k, |c| {
            let at_x = row_start + c;
            let at_b = matrix_start + c * n + column;
            if complex {
                let complex_product =
                    Cx::load(&g, left_binding, at_x).times(Cx::load(&g, right_binding, at_b));
                re_sum.set(re_sum.get() + complex_product.re);
                im_sum.set(im_sum.get() + complex_product.im);
            } else {
                re_sum.set(g.fma(
                    g.load(left_binding, at_x),
                    g.load(right_binding, at_b),
                    re_sum.get(),
                ));
            }
        });

        match complex {
            true => g.store_pair(output_binding, i, [re_sum.get(), im_sum.get()]),
            false => g.store(output_binding, i, re_sum.get()),
        }
    });
    g.finish()
}

/// A matrix product by tiles, bound to a kernel: a group for each tile of `side` by `side` elements, `per_thread` by
/// `per_thread` of them to a thread, which are `SIDE` apart.
struct TileProduct<'k> {
    g: &'k Builder,
    left_binding: u32,
    right_binding: u32,
    output_binding: u32,
    /// Rows of a left matrix: those of all firings where one right matrix meets them all.
    rows: Val<'k>,
    columns: Val<'k>,
    depth: Val<'k>,
    per_thread: u32,
    side: u32,
    left_tile: Shared<'k>,
    right_tile: Shared<'k>,
    thread_row: Val<'k>,
    thread_column: Val<'k>,
}

/// Where a tile is.
struct TilePlace<'k> {
    matrix: Val<'k>,
    first_row: Val<'k>,
    first_column: Val<'k>,
    /// First elements of the two matrices.
    left_start: Val<'k>,
    right_start: Val<'k>,
}

/// A group for each tile of `8 r` by `8 r` elements, r by r of them to a thread.
fn tile_kernel(shape: &Shape, r: u32) -> Kernel {
    let g = Builder::new("matrix product", SIDE * SIDE);
    let left_binding = g.reads(Mem::F32);
    let right_binding = g.reads(Mem::F32);
    let output_binding = g.writes(Mem::F32);
    let m = g.spec(shape.m);
    let k = g.spec(shape.k);
    let n = g.spec(shape.n);
    let side = SIDE * r;
    let left_tile = g.shared(Ty::F32, side * DEPTH);
    let right_tile = g.shared(Ty::F32, side * DEPTH);
    let local_index = g.place(Place::Local);
    let thread_row = local_index / SIDE;
    let thread_column = local_index % SIDE;

    // With one b for all, the rows of all firings make one tall matrix.
    let rows = if shape.shared_b { g.firings() * m } else { m };
    let tiles_down = tiles_over(rows, side);
    let tiles_across = tiles_over(n, side);
    let matrix_count = match shape.shared_b {
        true => g.u32(1),
        false => g.firings(),
    };
    let product = TileProduct {
        g: &g,
        left_binding,
        right_binding,
        output_binding,
        rows,
        columns: n,
        depth: k,
        per_thread: r,
        side,
        left_tile,
        right_tile,
        thread_row,
        thread_column,
    };

    g.each_group(matrix_count * tiles_down * tiles_across, |t| {
        let matrix = t / (tiles_down * tiles_across);
        let tile_index = t % (tiles_down * tiles_across);
        product.run_tile(TilePlace {
            matrix,
            first_row: (tile_index / tiles_across) * side,
            first_column: (tile_index % tiles_across) * side,
            left_start: matrix * rows * k,
            right_start: matrix * k * n,
        });
    });
    g.finish()
}

impl<'k> TileProduct<'k> {
    fn run_tile(&self, place: TilePlace<'k>) {
        let g = self.g;
        let sum_count = self.per_thread * self.per_thread;
        let element_sums: Vec<_> = (0..sum_count).map(|_| g.var(g.f32(0.0))).collect();
        g.range(g.u32(0), self.depth, g.u32(DEPTH), |depth| {
            self.fill_tiles(&place, depth);
            g.barrier();
            self.add_products(&element_sums, depth);
            g.barrier();
        });
        self.store_sums(&place, &element_sums);
    }

    /// All threads of the group load both tiles, zeros outside of the matrices.
    fn fill_tiles(&self, place: &TilePlace<'k>, depth: Val<'k>) {
        let g = self.g;
        let side = self.side;
        g.each_local(g.u32(side * DEPTH), |e| {
            let i = e / DEPTH;
            let d = e % DEPTH;
            let row = place.first_row + i;
            let is_inside = row.lt(self.rows) & (depth + d).lt(self.depth);
            let left_index = place.left_start + (place.first_row + i) * self.depth + depth + d;
            let left_place = d * side + i;
            fill_shared(
                self.left_tile,
                left_place,
                is_inside,
                self.left_binding,
                left_index,
            );

            let d = e / side;
            let j = e % side;
            let column = place.first_column + j;
            let is_inside = column.lt(self.columns) & (depth + d).lt(self.depth);
            let right_row = place.right_start + (depth + d) * self.columns;
            let right_index = right_row + place.first_column + j;
            let right_place = d * side + j;
            fill_shared(
                self.right_tile,
                right_place,
                is_inside,
                self.right_binding,
                right_index,
            );
        });
    }

    /// Each thread adds its products of every inner element, in their order.
    fn add_products(&self, element_sums: &[Var<'k>], depth: Val<'k>) {
        let g = self.g;
        let r = self.per_thread;
        // The last part of the inner dimension may be shorter.
        let inner_count = (self.depth - depth).min(g.u32(DEPTH));
        g.times(inner_count, |d| {
            let line_start = d * self.side;
            let left_values: Vec<_> = (0..r)
                .map(|i| self.left_tile.get(line_start + self.thread_row + SIDE * i))
                .collect();
            let right_values: Vec<_> = (0..r)
                .map(|j| {
                    self.right_tile
                        .get(line_start + self.thread_column + SIDE * j)
                })
                .collect();
            for (i, left) in left_values.iter().enumerate() {
                for (j, right) in right_values.iter().enumerate() {
                    let sum = element_sums[i * r as usize + j];
                    sum.set(g.fma(*left, *right, sum.get()));
                }
            }
        });
    }

    fn store_sums(&self, place: &TilePlace<'k>, element_sums: &[Var<'k>]) {
        let g = self.g;
        for (number, sum) in element_sums.iter().enumerate() {
            let i = number as u32 / self.per_thread;
            let j = number as u32 % self.per_thread;
            let row = place.first_row + self.thread_row + SIDE * i;
            let column = place.first_column + self.thread_column + SIDE * j;
            g.if_(row.lt(self.rows) & column.lt(self.columns), || {
                let output_index = (place.matrix * self.rows + row) * self.columns + column;
                g.store(self.output_binding, output_index, sum.get());
            });
        }
    }
}

fn tiles_over<'k>(v: Val<'k>, tile: u32) -> Val<'k> {
    (v + (tile - 1)) / tile
}

/// An element of shared memory: that of a binding, or 0 outside.
fn fill_shared<'k>(to: Shared<'k>, at: Val<'k>, inside: Val<'k>, from: u32, index: Val<'k>) {
    let g = at.builder();
    g.if_else(
        inside,
        || to.set(at, g.load(from, index)),
        || to.set(at, g.f32(0.0)),
    );
}
