//! Products of matrices whose elements are loaded by rules: of matrices as they lie, of windows of an image.
//!
//! Four kernels: tiles on tensor cores where factors may be rounded (see [`super::cores`]); tiles in shared memory with
//! a few elements in the registers of each thread; columns whose sums are shared out among a few threads, for products
//! of few rows; and one thread for each element. Every sum of a tile goes along the inner dimension in its order, as on
//! the CPU.

use super::{Bench, Why, cores};
use crate::kernels::Math;
use crate::kernels::lang::{Place, Shared, Ty, Val};
use crate::kernels::plan::{Amount, Grid};

/// Sizes of a product: `batches` matrices of `rows` by `columns` over `depth` elements; those that depend on the
/// firings of a call are given as so many for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) batches: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) depth: usize,
    pub(crate) grows: Grows,
}

/// What there is of once for each firing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grows {
    Batches,
    Rows,
    Columns,
}

/// Which kernel a product runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
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
    /// A group of so many threads to a sum: where rows of the right matrix lie across its columns.
    Group(u32),
    Elements,
}

impl Variant {
    /// What plans call it. Those of one kind have the same bits, and tiles those of elements: sums in the order of the
    /// inner dimension. Sums that threads share are added in another order for each number of threads.
    pub(crate) fn name(self) -> &'static str {
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
    fn counted(&self, by: Grows) -> usize {
        match by {
            Grows::Batches => self.batches,
            Grows::Rows => self.rows,
            Grows::Columns => self.columns,
        }
    }

    /// The variants for elements of f32, the one to start from first; `across` says that the right matrix is read along
    /// its columns.
    pub(crate) fn variants(&self, across: bool, math: Math) -> Vec<Variant> {
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
            let large = cores::tile(2) as usize;
            let tiles = batches * rows.div_ceil(large) * columns.div_ceil(large);
            let all = [1, 2].map(|per| Variant::Cores { math, per });
            (all[usize::from(tiles >= BUSY)], all.to_vec())
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
        let others = all.into_iter().filter(|other| *other != default);
        std::iter::once(default).chain(others).collect()
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
                let tile = match variant {
                    Variant::Cores { per, .. } => cores::tile(per) as usize,
                    Variant::Tiles { side, per } => (side * per) as usize,
                    _ => 1,
                };
                Grid::Groups(Amount::each(
                    (batches * rows.div_ceil(tile) * columns.div_ceil(tile)) as u64,
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
    pub(crate) fn bench(name: &'static str, variant: Variant) -> Bench {
        Bench::new(name, Self::local(variant))
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
pub(crate) type Element<'r, 'k> = &'r dyn Fn(&[Val<'k>], Val<'k>, Val<'k>) -> Val<'k>;

/// Where an element of a matrix lies. As it is given: of closures that stand alone, types are not found out.
pub(crate) fn places<'k, F>(place: F) -> F
where
    F: Fn(&[Val<'k>], Val<'k>, Val<'k>) -> Val<'k>,
{
    place
}

/// How a product reads and writes; `b` is what was worked out for a batch.
pub(crate) struct Rules<'r, 'k> {
    /// What is the same for all elements of a batch.
    pub(crate) batch: &'r dyn Fn(Val<'k>) -> Vec<Val<'k>>,
    /// Element of the left matrix: row, inner.
    pub(crate) left: Element<'r, 'k>,
    /// Element of the right matrix: inner, column.
    pub(crate) right: Element<'r, 'k>,
    /// The same as the 16 bits of a factor, where it lies as one in memory.
    pub(crate) left_bits: Option<Element<'r, 'k>>,
    pub(crate) right_bits: Option<Element<'r, 'k>>,
    /// Takes a sum: row, column.
    #[expect(
        clippy::type_complexity,
        reason = "named parameters would not make it plainer"
    )]
    pub(crate) store: &'r dyn Fn(&[Val<'k>], Val<'k>, Val<'k>, Val<'k>),
    pub(crate) ty: Ty,
}

/// Adds the statements of a product to a bench on which everything is bound; the grid that it wants.
pub(crate) fn product<'k>(
    bench: &'k Bench,
    sizes: &Sizes,
    variant: Variant,
    rules: &Rules<'_, 'k>,
) -> Result<Grid, Why> {
    let k = &bench.k;
    let size = |by: Grows| -> Result<Val<'k>, Why> {
        let one = bench.size(sizes.counted(by))?;
        Ok(if sizes.grows == by {
            k.firings() * one
        } else {
            one
        })
    };
    let on = On {
        batches: size(Grows::Batches)?,
        rows: size(Grows::Rows)?,
        columns: size(Grows::Columns)?,
        depth: bench.size(sizes.depth)?,
    };
    match variant {
        Variant::Tiles { side, per } => tiles(bench, on, rules, side, per),
        Variant::Cores { math, per } => cores::cores(bench, on, rules, math, per)?,
        Variant::Slices { wide, slices } => self::slices(bench, on, rules, wide, slices),
        Variant::Group(threads) => groups(bench, on, rules, threads),
        Variant::Elements => elements(bench, on, rules),
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
fn elements<'k>(bench: &'k Bench, on: On<'k>, rules: &Rules<'_, 'k>) {
    let k = &bench.k;
    let each = on.rows * on.columns;
    k.each(on.batches * each, |i| {
        let (b, rest) = ((rules.batch)(i / each), i % each);
        let (row, column) = (rest / on.columns, rest % on.columns);
        let sum = k.var(k.number(rules.ty, 0.0));
        k.times(on.depth, |d| {
            let (x, y) = ((rules.left)(&b, row, d), (rules.right)(&b, d, column));
            sum.set(add_product(x, y, sum.get()));
        });
        (rules.store)(&b, row, column, sum.get());
    });
}

/// Groups of `wide` neighbouring columns, the inner dimension shared out among `slices` threads each.
fn slices<'k>(bench: &'k Bench, on: On<'k>, rules: &Rules<'_, 'k>, wide: u32, slices: u32) {
    let k = &bench.k;
    let sums = k.shared(rules.ty, wide * slices);
    let local = k.place(Place::Local);
    let (slice, lane) = (local / wide, local % wide);
    let across = up(on.columns, wide);
    k.each_group(on.batches * on.rows * across, |g| {
        let (row, part) = (g / across, g % across);
        let (b, row) = ((rules.batch)(row / on.rows), row % on.rows);
        let column = part * wide + lane;
        let sum = k.var(k.number(rules.ty, 0.0));
        k.if_(column.lt(on.columns), || {
            k.range(slice, on.depth, k.u32(slices), |d| {
                let (x, y) = ((rules.left)(&b, row, d), (rules.right)(&b, d, column));
                sum.set(add_product(x, y, sum.get()));
            });
        });
        sums.set(local, sum.get());
        k.barrier();
        k.if_(slice.eq(k.u32(0)) & column.lt(on.columns), || {
            let total = (1..slices).fold(sum.get(), |t, s| t + sums.get(lane + s * wide));
            (rules.store)(&b, row, column, total);
        });
        k.barrier();
    });
}

/// A group of `threads` for each element.
fn groups<'k>(bench: &'k Bench, on: On<'k>, rules: &Rules<'_, 'k>, threads: u32) {
    let k = &bench.k;
    let sums = k.shared(rules.ty, threads);
    let local = k.place(Place::Local);
    let each = on.rows * on.columns;
    k.each_group(on.batches * each, |g| {
        let (b, rest) = ((rules.batch)(g / each), g % each);
        let (row, column) = (rest / on.columns, rest % on.columns);
        let sum = k.var(k.number(rules.ty, 0.0));
        k.each_local(on.depth, |d| {
            let (x, y) = ((rules.left)(&b, row, d), (rules.right)(&b, d, column));
            sum.set(add_product(x, y, sum.get()));
        });
        sums.set(local, sum.get());
        k.barrier();
        let mut half = threads / 2;
        while half > 0 {
            k.if_(local.lt(k.u32(half)), || {
                sums.set(local, sums.get(local) + sums.get(local + half));
            });
            k.barrier();
            half /= 2;
        }
        k.if_(local.eq(k.u32(0)), || {
            (rules.store)(&b, row, column, sums.get(k.u32(0)));
        });
        k.barrier();
    });
}

/// A group for each tile of `side · r` by `side · r` elements, r by r of them to a thread.
fn tiles<'k>(bench: &'k Bench, on: On<'k>, rules: &Rules<'_, 'k>, side: u32, r: u32) {
    let k = &bench.k;
    let tile = side * r;
    let (xs, ys) = (
        k.shared(rules.ty, tile * DEPTH),
        k.shared(rules.ty, tile * DEPTH),
    );
    let local = k.place(Place::Local);
    let (down_at, across_at) = (local / side, local % side);
    let (down, across) = (up(on.rows, tile), up(on.columns, tile));
    k.each_group(on.batches * down * across, |t| {
        let (batch, rest) = (t / (down * across), t % (down * across));
        let (row, column) = ((rest / across) * tile, (rest % across) * tile);
        let b = (rules.batch)(batch);
        let sums: Vec<_> = (0..r * r).map(|_| k.var(k.number(rules.ty, 0.0))).collect();
        k.range(k.u32(0), on.depth, k.u32(DEPTH), |depth| {
            k.each_local(k.u32(tile * DEPTH), |e| {
                let (i, d) = (e / DEPTH, e % DEPTH);
                let inside = (row + i).lt(on.rows) & (depth + d).lt(on.depth);
                fill(xs, d * tile + i, inside, || {
                    (rules.left)(&b, row + i, depth + d)
                });
                let (d, j) = (e / tile, e % tile);
                let inside = (column + j).lt(on.columns) & (depth + d).lt(on.depth);
                fill(ys, d * tile + j, inside, || {
                    (rules.right)(&b, depth + d, column + j)
                });
            });
            k.barrier();
            let most = (on.depth - depth).min(k.u32(DEPTH));
            k.times(most, |d| {
                let line = d * tile;
                let left: Vec<_> = (0..r).map(|i| xs.get(line + down_at + side * i)).collect();
                let right: Vec<_> = (0..r)
                    .map(|j| ys.get(line + across_at + side * j))
                    .collect();
                for (i, x) in left.iter().enumerate() {
                    for (j, y) in right.iter().enumerate() {
                        let sum = sums[i * r as usize + j];
                        sum.set(add_product(*x, *y, sum.get()));
                    }
                }
            });
            k.barrier();
        });
        for (i, j) in (0..r).flat_map(|i| (0..r).map(move |j| (i, j))) {
            let (at_row, at_column) = (row + down_at + side * i, column + across_at + side * j);
            k.if_(at_row.lt(on.rows) & at_column.lt(on.columns), || {
                (rules.store)(&b, at_row, at_column, sums[(i * r + j) as usize].get());
            });
        }
    });
}

pub(super) fn up<'k>(v: Val<'k>, tile: u32) -> Val<'k> {
    (v + (tile - 1)) / tile
}

/// An element of shared memory: what is loaded, or 0 outside.
fn fill<'k>(to: Shared<'k>, at: Val<'k>, inside: Val<'k>, load: impl FnOnce() -> Val<'k>) {
    let k = at.builder();
    k.if_else(
        inside,
        || to.set(at, load()),
        || to.set(at, k.number(to.ty(), 0.0)),
    );
}
