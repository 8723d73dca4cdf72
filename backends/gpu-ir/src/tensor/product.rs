//! Products of matrices whose elements are loaded by rules: of matrices as they are stored, of windows of an image.
//!
//! Four kernels: tiles on tensor cores where factors may be rounded (see `super::cores`); tiles in shared memory with
//! a few elements in the registers of each thread; columns whose sums are shared out among a few threads, for products
//! of few rows; and one thread for each element. Every sum of a tile goes along the inner dimension in its order, as on
//! the CPU.

use super::{TensorKernelBuilder, Why, cores};
use crate::Math;
use crate::lang::{Builder, Place, Shared, Ty, Val, Var};
use crate::plan::{Amount, Grid};

/// Sizes of a product: `batches` matrices of `rows` by `columns` over `depth` elements; those that depend on the
/// firings of a call are given as so many for each.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Sizes {
    pub batches: usize,
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
    pub grows: Grows,
}

/// What there is of once for each firing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Grows {
    Batches,
    Rows,
    Columns,
}

/// Which kernel a product runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Variant {
    /// Tiles of `side · per` elements along each side, `side` squared threads.
    Tiles {
        side: u32,
        per: u32,
    },
    /// Tiles on tensor cores, warps having `16 · per` elements along each side.
    Cores {
        math: Math,
        per: u32,
    },
    /// `slices` threads to a sum, `wide` neighbouring columns to a group.
    Slices {
        wide: u32,
        slices: u32,
    },
    /// A group of so many threads to a sum: where the right matrix is stored column by column.
    Group(u32),
    Elements,
}

impl Variant {
    /// What plans call it. Those of one kind have the same bits, and tiles those of elements: sums in the order of the
    /// inner dimension. Sums that threads share are added in another order for each number of threads.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiles { side: 8, per: 2 } => "tiles-16",
            Self::Tiles { side: 8, per: 4 } => "tiles-32",
            Self::Tiles { side: 16, per: 4 } => "tiles-64",
            Self::Tiles { side: 16, per: 8 } => "tiles-128",
            Self::Cores { per: 1, .. } => "cores-32",
            Self::Cores { per: 2, .. } => "cores-64",
            Self::Slices {
                wide: 16,
                slices: 4,
            } => "slices-16x4",
            Self::Slices {
                wide: 16,
                slices: 16,
            } => "slices-16x16",
            Self::Slices {
                wide: 32,
                slices: 8,
            } => "slices-32x8",
            Self::Group(64) => "group-64",
            Self::Group(256) => "group-256",
            Self::Elements => "elements",
            other => unreachable!("{other:?} is not among the variants"),
        }
    }
}

/// Inner elements that a tile has.
const DEPTH: u32 = 16;
/// Rows below which a tile is not worth its barriers.
const FEW: usize = 4;
/// Tiles that keep a large GPU busy: where there are fewer, they are made smaller.
const BUSY: usize = 128;

impl Sizes {
    fn base_size(&self, by: Grows) -> usize {
        match by {
            Grows::Batches => self.batches,
            Grows::Rows => self.rows,
            Grows::Columns => self.columns,
        }
    }

    /// The variants for elements of f32, the one to start from first; `across` says that the right matrix is read along
    /// its columns.
    pub fn variants(&self, across: bool, math: Math) -> Vec<Variant> {
        let Sizes {
            batches,
            rows,
            columns,
            depth,
            ..
        } = *self;

        let (default, all) = if rows <= FEW || columns < 8 {
            const SHARED: [Variant; 5] = [
                Variant::Slices {
                    wide: 16,
                    slices: 4,
                },
                Variant::Slices {
                    wide: 32,
                    slices: 8,
                },
                Variant::Slices {
                    wide: 16,
                    slices: 16,
                },
                Variant::Group(64),
                Variant::Group(256),
            ];
            match depth {
                64.. if across || columns < 8 => (SHARED[3], SHARED[3..].to_vec()),
                64.. if columns >= 16 => (SHARED[0], SHARED[..3].to_vec()),
                _ => (Variant::Elements, vec![]),
            }
        } else if math != Math::F32 {
            let large_tile = cores::tile(2) as usize;
            let tile_count = batches * rows.div_ceil(large_tile) * columns.div_ceil(large_tile);
            let all = [1, 2].map(|per| Variant::Cores { math, per });
            (all[usize::from(tile_count >= BUSY)], all.to_vec())
        } else {
            const TILES: [Variant; 4] = [
                Variant::Tiles { side: 8, per: 2 },
                Variant::Tiles { side: 8, per: 4 },
                Variant::Tiles { side: 16, per: 4 },
                Variant::Tiles { side: 16, per: 8 },
            ];
            match rows.min(columns) {
                256.. => (TILES[2], TILES.to_vec()),
                64.. => (TILES[1], TILES.to_vec()),
                32.. => (TILES[1], TILES[..3].to_vec()),
                _ => (TILES[0], TILES[..2].to_vec()),
            }
        };

        let other_variants = all.into_iter().filter(|other| *other != default);
        std::iter::once(default).chain(other_variants).collect()
    }

    fn grid(&self, variant: Variant) -> Grid {
        let Sizes {
            batches,
            rows,
            columns,
            ..
        } = *self;
        match variant {
            Variant::Tiles { .. } | Variant::Cores { .. } => {
                let tile_side = match variant {
                    Variant::Cores { per, .. } => cores::tile(per) as usize,
                    Variant::Tiles { side, per } => (side * per) as usize,
                    _ => 1,
                };
                Grid::Groups(Amount::each(
                    (batches * rows.div_ceil(tile_side) * columns.div_ceil(tile_side)) as u64,
                ))
            }
            Variant::Group(_) => Grid::Groups(Amount::each((batches * rows * columns) as u64)),
            Variant::Slices { wide, .. } => Grid::Groups(Amount::each(
                (batches * rows * columns.div_ceil(wide as usize)) as u64,
            )),
            Variant::Elements => Grid::Threads(Amount::each((batches * rows * columns) as u64)),
        }
    }

    fn local(variant: Variant) -> u32 {
        match variant {
            Variant::Tiles { side, .. } => side * side,
            Variant::Cores { .. } => cores::LOCAL,
            Variant::Slices { wide, slices } => wide * slices,
            Variant::Group(threads) => threads,
            Variant::Elements => 64,
        }
    }

    /// A bench for a kernel of the variant.
    pub fn bench(name: &'static str, variant: Variant) -> TensorKernelBuilder {
        TensorKernelBuilder::new(name, Self::local(variant))
    }
}

/// Sizes in a kernel.
#[derive(Clone, Copy)]
pub(super) struct On<'k> {
    pub(super) batches: Val<'k>,
    pub(super) rows: Val<'k>,
    pub(super) columns: Val<'k>,
    pub(super) depth: Val<'k>,
}

/// Loads an element of a matrix.
pub type Element<'r, 'k> = &'r dyn Fn(&[Val<'k>], Val<'k>, Val<'k>) -> Val<'k>;

/// How a product reads and writes; `b` is what was worked out for a batch.
pub struct Rules<'r, 'k> {
    /// What is the same for all elements of a batch.
    pub batch: &'r dyn Fn(Val<'k>) -> Vec<Val<'k>>,
    /// Element of the left matrix: row, inner.
    pub left: Element<'r, 'k>,
    /// Element of the right matrix: inner, column.
    pub right: Element<'r, 'k>,
    /// The same as the 16 bits of a factor, where memory has it in that form.
    pub left_bits: Option<Element<'r, 'k>>,
    /// The same of the right matrix.
    pub right_bits: Option<Element<'r, 'k>>,
    /// Takes a sum: row, column.
    #[expect(
        clippy::type_complexity,
        reason = "named parameters would not make it plainer"
    )]
    pub store: &'r dyn Fn(&[Val<'k>], Val<'k>, Val<'k>, Val<'k>),
    /// The type of factors and sums.
    pub ty: Ty,
}

/// Adds the statements of a product to a bench on which everything is bound; the grid that it wants.
pub fn product<'k>(
    bench: &'k TensorKernelBuilder,
    sizes: &Sizes,
    variant: Variant,
    rules: &Rules<'_, 'k>,
) -> Result<Grid, Why> {
    let k = &bench.k;
    // One size depends on the firings of the call; all are constants of the kernel otherwise.
    let bind_size = |by: Grows| -> Result<Val<'k>, Why> {
        let base_size = bench.size(sizes.base_size(by))?;
        Ok(if sizes.grows == by {
            k.firings() * base_size
        } else {
            base_size
        })
    };

    let bound_sizes = On {
        batches: bind_size(Grows::Batches)?,
        rows: bind_size(Grows::Rows)?,
        columns: bind_size(Grows::Columns)?,
        depth: bench.size(sizes.depth)?,
    };

    match variant {
        Variant::Tiles { side, per } => tile_products(bench, bound_sizes, rules, side, per),
        Variant::Cores { math, per } => cores::cores(bench, bound_sizes, rules, math, per)?,
        Variant::Slices { wide, slices } => slice_products(bench, bound_sizes, rules, wide, slices),
        Variant::Group(threads) => group_products(bench, bound_sizes, rules, threads),
        Variant::Elements => element_products(bench, bound_sizes, rules),
    }
    Ok(sizes.grid(variant))
}

/// a · b + c.
fn add_product<'k>(a: Val<'k>, b: Val<'k>, c: Val<'k>) -> Val<'k> {
    if a.ty.is_float() {
        a.builder().fma(a, b, c)
    } else {
        c + a * b
    }
}

/// A thread for each element.
fn element_products<'k>(bench: &'k TensorKernelBuilder, on: On<'k>, rules: &Rules<'_, 'k>) {
    let k = &bench.k;
    let elements_per_batch = on.rows * on.columns;
    k.each(on.batches * elements_per_batch, |i| {
        let batch_values = (rules.batch)(i / elements_per_batch);
        let element_index = i % elements_per_batch;
        let row = element_index / on.columns;
        let column = element_index % on.columns;
        let element_sum = k.var(k.number(rules.ty, 0.0));
        k.times(on.depth, |d| {
            let x = (rules.left)(&batch_values, row, d);
            let y = (rules.right)(&batch_values, d, column);
            element_sum.set(add_product(x, y, element_sum.get()));
        });
        (rules.store)(&batch_values, row, column, element_sum.get());
    });
}

/// Groups of `wide` neighbouring columns, the inner dimension shared out among `slices` threads each.
fn slice_products<'k>(
    bench: &'k TensorKernelBuilder,
    on: On<'k>,
    rules: &Rules<'_, 'k>,
    wide: u32,
    slices: u32,
) {
    let k = &bench.k;
    // Neighbouring threads read neighbouring columns; each adds a share of the inner dimension.
    let slice_sums = k.shared(rules.ty, wide * slices);
    let local_index = k.place(Place::Local);
    let slice_index = local_index / wide;
    let lane_index = local_index % wide;
    let parts_across = tiles_over(on.columns, wide);

    k.each_group(on.batches * on.rows * parts_across, |g| {
        let row = g / parts_across;
        let part_index = g % parts_across;
        let batch_values = (rules.batch)(row / on.rows);
        let row = row % on.rows;
        let column = part_index * wide + lane_index;
        let slice_sum = k.var(k.number(rules.ty, 0.0));

        k.if_(column.lt(on.columns), || {
            k.range(slice_index, on.depth, k.u32(slices), |d| {
                let x = (rules.left)(&batch_values, row, d);
                let y = (rules.right)(&batch_values, d, column);
                slice_sum.set(add_product(x, y, slice_sum.get()));
            });
        });

        slice_sums.set(local_index, slice_sum.get());
        k.barrier();
        k.if_(slice_index.eq(k.u32(0)) & column.lt(on.columns), || {
            // One thread adds the shares in a fixed order: the same bits on every device.
            let total_sum = (1..slices).fold(slice_sum.get(), |t, s| {
                t + slice_sums.get(lane_index + s * wide)
            });
            (rules.store)(&batch_values, row, column, total_sum);
        });
        k.barrier();
    });
}

/// A group of `threads` for each element.
fn group_products<'k>(
    bench: &'k TensorKernelBuilder,
    on: On<'k>,
    rules: &Rules<'_, 'k>,
    threads: u32,
) {
    let k = &bench.k;
    // Each thread adds a share of the inner dimension; then the group adds the shares in pairs.
    let thread_sums = k.shared(rules.ty, threads);
    let local_index = k.place(Place::Local);
    let elements_per_batch = on.rows * on.columns;

    k.each_group(on.batches * elements_per_batch, |g| {
        let batch_values = (rules.batch)(g / elements_per_batch);
        let element_index = g % elements_per_batch;
        let row = element_index / on.columns;
        let column = element_index % on.columns;
        let thread_sum = k.var(k.number(rules.ty, 0.0));
        k.each_local(on.depth, |d| {
            let x = (rules.left)(&batch_values, row, d);
            let y = (rules.right)(&batch_values, d, column);
            thread_sum.set(add_product(x, y, thread_sum.get()));
        });
        thread_sums.set(local_index, thread_sum.get());
        k.barrier();
        let mut half_size = threads / 2;

        while half_size > 0 {
            k.if_(local_index.lt(k.u32(half_size)), || {
                thread_sums.set(
                    local_index,
                    thread_sums.get(local_index) + thread_sums.get(local_index + half_size),
                );
            });
            k.barrier();
            half_size /= 2;
        }

        k.if_(local_index.eq(k.u32(0)), || {
            (rules.store)(&batch_values, row, column, thread_sums.get(k.u32(0)));
        });
        k.barrier();
    });
}

/// A product by tiles in the making: a group for each tile, `per_thread` by `per_thread` elements to a thread, which are
/// `side` apart.
struct TileProduct<'r, 'k> {
    k: &'k Builder,
    on: On<'k>,
    rules: &'r Rules<'r, 'k>,
    /// Threads along each side of a tile.
    side: u32,
    per_thread: u32,
    /// Elements along each side of a tile.
    tile_side: u32,
    left_tile: Shared<'k>,
    right_tile: Shared<'k>,
    thread_row: Val<'k>,
    thread_column: Val<'k>,
}

/// Where a tile is.
struct TilePlace<'k> {
    first_row: Val<'k>,
    first_column: Val<'k>,
    /// See [`Rules::batch`].
    batch_values: Vec<Val<'k>>,
}

/// A group for each tile of `side · r` by `side · r` elements, r by r of them to a thread.
fn tile_products<'k>(
    bench: &'k TensorKernelBuilder,
    on: On<'k>,
    rules: &Rules<'_, 'k>,
    side: u32,
    r: u32,
) {
    let k = &bench.k;
    let tile_side = side * r;
    let left_tile = k.shared(rules.ty, tile_side * DEPTH);
    let right_tile = k.shared(rules.ty, tile_side * DEPTH);
    let local_index = k.place(Place::Local);
    let product = TileProduct {
        k,
        on,
        rules,
        side,
        per_thread: r,
        tile_side,
        left_tile,
        right_tile,
        thread_row: local_index / side,
        thread_column: local_index % side,
    };

    let tiles_down = tiles_over(on.rows, tile_side);
    let tiles_across = tiles_over(on.columns, tile_side);
    k.each_group(on.batches * tiles_down * tiles_across, |t| {
        let batch_index = t / (tiles_down * tiles_across);
        let tile_index = t % (tiles_down * tiles_across);
        product.run_tile(TilePlace {
            first_row: (tile_index / tiles_across) * tile_side,
            first_column: (tile_index % tiles_across) * tile_side,
            batch_values: (rules.batch)(batch_index),
        });
    });
}

impl<'k> TileProduct<'_, 'k> {
    fn run_tile(&self, place: TilePlace<'k>) {
        let k = self.k;
        let sum_count = self.per_thread * self.per_thread;
        let element_sums: Vec<_> = (0..sum_count)
            .map(|_| k.var(k.number(self.rules.ty, 0.0)))
            .collect();
        k.range(k.u32(0), self.on.depth, k.u32(DEPTH), |depth| {
            self.fill_tiles(&place, depth);
            k.barrier();
            self.add_products(&element_sums, depth);
            k.barrier();
        });
        self.store_sums(&place, &element_sums);
    }

    /// All threads of the group load both tiles, zeros outside of the matrices.
    fn fill_tiles(&self, place: &TilePlace<'k>, depth: Val<'k>) {
        let k = self.k;
        let on = self.on;
        let TilePlace {
            first_row,
            first_column,
            ref batch_values,
        } = *place;
        k.each_local(k.u32(self.tile_side * DEPTH), |e| {
            let i = e / DEPTH;
            let d = e % DEPTH;
            let is_inside = (first_row + i).lt(on.rows) & (depth + d).lt(on.depth);
            fill_shared(self.left_tile, d * self.tile_side + i, is_inside, || {
                (self.rules.left)(batch_values, first_row + i, depth + d)
            });

            let d = e / self.tile_side;
            let j = e % self.tile_side;
            let is_inside = (first_column + j).lt(on.columns) & (depth + d).lt(on.depth);
            fill_shared(self.right_tile, d * self.tile_side + j, is_inside, || {
                (self.rules.right)(batch_values, depth + d, first_column + j)
            });
        });
    }

    /// Each thread adds its products of every inner element, in their order.
    fn add_products(&self, element_sums: &[Var<'k>], depth: Val<'k>) {
        let k = self.k;
        let r = self.per_thread;
        // The last part of the inner dimension may be shorter.
        let inner_count = (self.on.depth - depth).min(k.u32(DEPTH));
        k.times(inner_count, |d| {
            let line_start = d * self.tile_side;
            let left_values: Vec<_> = (0..r)
                .map(|i| {
                    let place = line_start + self.thread_row + self.side * i;
                    self.left_tile.get(place)
                })
                .collect();
            let right_values: Vec<_> = (0..r)
                .map(|j| {
                    let place = line_start + self.thread_column + self.side * j;
                    self.right_tile.get(place)
                })
                .collect();

            for (i, x) in left_values.iter().enumerate() {
                for (j, y) in right_values.iter().enumerate() {
                    let sum = element_sums[i * r as usize + j];
                    sum.set(add_product(*x, *y, sum.get()));
                }
            }
        });
    }

    fn store_sums(&self, place: &TilePlace<'k>, element_sums: &[Var<'k>]) {
        for (number, sum) in element_sums.iter().enumerate() {
            let i = number as u32 / self.per_thread;
            let j = number as u32 % self.per_thread;
            let row = place.first_row + self.thread_row + self.side * i;
            let column = place.first_column + self.thread_column + self.side * j;
            let is_inside = row.lt(self.on.rows) & column.lt(self.on.columns);
            self.k.if_(is_inside, || {
                (self.rules.store)(&place.batch_values, row, column, sum.get());
            });
        }
    }
}

pub(super) fn tiles_over<'k>(v: Val<'k>, tile: u32) -> Val<'k> {
    (v + (tile - 1)) / tile
}

/// An element of shared memory: what is loaded, or 0 outside.
fn fill_shared<'k>(to: Shared<'k>, at: Val<'k>, inside: Val<'k>, load: impl FnOnce() -> Val<'k>) {
    let k = at.builder();
    k.if_else(
        inside,
        || to.set(at, load()),
        || to.set(at, k.number(to.ty(), 0.0)),
    );
}
