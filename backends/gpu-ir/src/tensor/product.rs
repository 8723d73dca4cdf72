//! Products of matrices whose elements are loaded by rules: of matrices as they are stored, of windows of an image.
//!
//! Four kernels: tiles on tensor cores where factors may be rounded (see `super::cores`); tiles in shared memory with
//! a few elements in the registers of each thread, where several teams of threads may share out a long inner dimension;
//! columns whose sums are shared out among a few threads, for products of few rows; and one thread for each element. Every
//! sum of a tile that one team computes goes along the inner dimension in its order, as on the CPU.
//!
//! What takes the time of all but the largest products is waiting for memory (some 600 cycles an H200, measured): so loads
//! never hang on a branch or on each other, and those of the next part are under way while the present one is multiplied.

use super::tiles::{TileShape, tile_products};
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
    /// The same with `shares` times as many threads, which share out the inner dimension.
    Deep {
        side: u32,
        per: u32,
        shares: u32,
    },
    /// Tiles on tensor cores, warps having `16 · per` elements along each side, and `shares` teams of them sharing out the
    /// inner dimension.
    Cores {
        math: Math,
        per: u32,
        shares: u32,
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
    fn tile_shape(self) -> Option<TileShape> {
        let (side, per_thread, shares) = match self {
            Self::Tiles { side, per } => (side, per, 1),
            Self::Deep { side, per, shares } => (side, per, shares),
            _ => return None,
        };
        Some(TileShape {
            side,
            per_thread,
            shares,
        })
    }

    /// Elements along each side of a tile, of the variants that have tiles.
    fn tile_side(self) -> Option<u32> {
        match self {
            Self::Cores { per, .. } => Some(cores::tile(per)),
            _ => self.tile_shape().map(TileShape::tile_side),
        }
    }

    /// What plans call it. Those of one kind have the same bits, and tiles those of elements: sums in the order of the
    /// inner dimension. Sums that threads share are added in another order for each number of threads.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiles { side: 8, per: 2 } => "tiles-16",
            Self::Tiles { side: 8, per: 4 } => "tiles-32",
            Self::Tiles { side: 16, per: 4 } => "tiles-64",
            Self::Tiles { side: 16, per: 8 } => "tiles-128",
            Self::Deep {
                per: 2, shares: 4, ..
            } => "deep-16x4",
            Self::Deep {
                per: 4, shares: 2, ..
            } => "deep-32x2",
            Self::Cores {
                per: 1, shares: 1, ..
            } => "cores-32",
            Self::Cores {
                per: 2, shares: 1, ..
            } => "cores-64",
            Self::Cores { .. } => "deep-cores-32x4",
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
            Self::Slices {
                wide: 8,
                slices: 32,
            } => "slices-8x32",
            Self::Group(64) => "group-64",
            Self::Group(256) => "group-256",
            Self::Elements => "elements",
            other => unreachable!("{other:?} is not among the variants"),
        }
    }
}

/// Rows below which a tile is not worth its barriers.
const FEW: usize = 4;
/// Inner elements from which on it pays that several teams of threads share them out.
const MANY: usize = 128;
/// Tiles that keep a large GPU busy: where there are fewer, they are made smaller.
const BUSY: usize = 128;

/// Variants for products of few rows or columns, the one to start from and all.
fn few_row_variants(across: bool, columns: usize, depth: usize) -> (Variant, Vec<Variant>) {
    const GROUPS: [Variant; 2] = [Variant::Group(64), Variant::Group(256)];
    const SLICES: [Variant; 4] = [
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
        Variant::Slices {
            wide: 8,
            slices: 32,
        },
    ];
    match depth {
        64.. if across || columns < 8 => (GROUPS[0], GROUPS.to_vec()),
        512.. if columns >= 16 => (SLICES[3], SLICES.to_vec()),
        64.. if columns >= 16 => (SLICES[0], SLICES[..3].to_vec()),
        _ => (Variant::Elements, vec![]),
    }
}

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
            rows,
            columns,
            depth,
            ..
        } = *self;
        let (default, all) = if rows <= FEW || columns < 8 {
            few_row_variants(across, columns, depth)
        } else if math != Math::F32 {
            self.core_variants(math)
        } else {
            self.tile_variants()
        };

        let other_variants = all.into_iter().filter(|other| *other != default);
        std::iter::once(default).chain(other_variants).collect()
    }

    /// Tiles of so many elements along each side.
    fn tile_count(&self, tile_side: u32) -> usize {
        let tiles_along = |elements: usize| elements.div_ceil(tile_side as usize);
        self.batches * tiles_along(self.rows) * tiles_along(self.columns)
    }

    fn core_variants(&self, math: Math) -> (Variant, Vec<Variant>) {
        let variants = [(1, 1), (2, 1), (1, 4)];
        let all = variants.map(|(per, shares)| Variant::Cores { math, per, shares });
        match self.tile_count(cores::tile(2)) {
            BUSY.. => (all[1], all[..2].to_vec()),
            _ if self.depth >= MANY => (all[2], all.to_vec()),
            _ => (all[0], all[..2].to_vec()),
        }
    }

    fn tile_variants(&self) -> (Variant, Vec<Variant>) {
        const TILES: [Variant; 4] = [
            Variant::Tiles { side: 8, per: 2 },
            Variant::Tiles { side: 8, per: 4 },
            Variant::Tiles { side: 16, per: 4 },
            Variant::Tiles { side: 16, per: 8 },
        ];
        const DEEP: [Variant; 2] = [
            Variant::Deep {
                side: 8,
                per: 2,
                shares: 4,
            },
            Variant::Deep {
                side: 8,
                per: 4,
                shares: 2,
            },
        ];
        let (tile, mut all) = match self.rows.min(self.columns) {
            256.. => (TILES[2], TILES.to_vec()),
            64.. => (TILES[1], TILES.to_vec()),
            32.. => (TILES[1], TILES[..3].to_vec()),
            _ => (TILES[0], TILES[..2].to_vec()),
        };
        if self.depth < MANY {
            return (tile, all);
        }
        all.extend(DEEP);
        let keeps_busy = self.tile_count(32) >= BUSY;
        (if keeps_busy { tile } else { DEEP[0] }, all)
    }

    fn grid(&self, variant: Variant) -> Grid {
        let Sizes {
            batches,
            rows,
            columns,
            ..
        } = *self;
        if let Some(tile_side) = variant.tile_side() {
            return Grid::Groups(Amount::each(self.tile_count(tile_side) as u64));
        }
        match variant {
            Variant::Group(_) => Grid::Groups(Amount::each((batches * rows * columns) as u64)),
            Variant::Slices { wide, .. } => Grid::Groups(Amount::each(
                (batches * rows * columns.div_ceil(wide as usize)) as u64,
            )),
            _ => Grid::Threads(Amount::each((batches * rows * columns) as u64)),
        }
    }

    fn local(variant: Variant) -> u32 {
        if let Some(shape) = variant.tile_shape() {
            return shape.local();
        }
        match variant {
            Variant::Cores { shares, .. } => cores::TEAM * shares,
            Variant::Slices { wide, slices } => wide * slices,
            Variant::Group(threads) => threads,
            _ => 64,
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
    /// `depth` as a number: no firing adds to it.
    pub(super) depth_count: u32,
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
    // What lies outside of an image is not loaded.
    k.guard_loads();
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
        // All sizes of a kernel are below 2^32.
        depth_count: sizes.depth as u32,
    };

    match variant {
        Variant::Cores { math, per, shares } => {
            let team = cores::Team { math, per, shares };
            cores::cores(bench, bound_sizes, rules, team)?;
        }
        Variant::Slices { wide, slices } => slice_products(bench, bound_sizes, rules, wide, slices),
        Variant::Group(threads) => group_products(bench, bound_sizes, rules, threads),
        Variant::Elements => element_products(bench, bound_sizes, rules),
        Variant::Tiles { .. } | Variant::Deep { .. } => {
            let shape = variant.tile_shape().expect("it has tiles");
            tile_products(bench, bound_sizes, rules, shape);
        }
    }
    Ok(sizes.grid(variant))
}

/// a · b + c.
pub(super) fn add_product<'k>(a: Val<'k>, b: Val<'k>, c: Val<'k>) -> Val<'k> {
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

/// Elements of each factor that a thread asks memory for before it uses the first: as many loads are under way at once.
const LOADS_AHEAD: u32 = 8;

/// The share of a sum over `depth` elements that the thread `share` of `shares` adds: every `shares`th, in their order.
/// `load` gives the two factors.
fn add_share<'k>(
    k: &'k Builder,
    sum: Var<'k>,
    (share, shares): (Val<'k>, u32),
    depth: u32,
    load: impl Fn(Val<'k>) -> [Val<'k>; 2],
) {
    let elements_per_round = shares * LOADS_AHEAD;
    let in_rounds = depth / elements_per_round * elements_per_round;
    if in_rounds > 0 {
        let step = k.u32(elements_per_round);
        k.range(share, k.u32(in_rounds), step, |first| {
            let factors = (0..LOADS_AHEAD).map(|ahead| load(first + ahead * shares));
            for [x, y] in factors.collect::<Vec<_>>() {
                sum.set(add_product(x, y, sum.get()));
            }
        });
    }
    if in_rounds < depth {
        k.range(share + in_rounds, k.u32(depth), k.u32(shares), |d| {
            let [x, y] = load(d);
            sum.set(add_product(x, y, sum.get()));
        });
    }
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
            add_share(k, slice_sum, (slice_index, slices), on.depth_count, |d| {
                let x = (rules.left)(&batch_values, row, d);
                let y = (rules.right)(&batch_values, d, column);
                [x, y]
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
        add_share(k, thread_sum, (local_index, threads), on.depth_count, |d| {
            let x = (rules.left)(&batch_values, row, d);
            let y = (rules.right)(&batch_values, d, column);
            [x, y]
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

/// Every tile of all batches, one group at a time: `body` is given the number of the batch, and the tile's first row and
/// column.
pub(super) fn each_tile<'k>(
    k: &'k Builder,
    on: On<'k>,
    tile_side: u32,
    body: impl FnOnce(Val<'k>, [Val<'k>; 2]),
) {
    let tiles_down = tiles_over(on.rows, tile_side);
    let tiles_across = tiles_over(on.columns, tile_side);
    k.each_group(on.batches * tiles_down * tiles_across, |t| {
        let batch_index = t / (tiles_down * tiles_across);
        let tile_index = t % (tiles_down * tiles_across);
        let row = (tile_index / tiles_across) * tile_side;
        let column = (tile_index % tiles_across) * tile_side;
        body(batch_index, [row, column]);
    });
}

/// A thread among the teams of a group that share out an inner dimension.
#[derive(Clone, Copy)]
pub(super) struct TeamPlace<'k> {
    /// The share that the thread's team adds, of so many.
    pub(super) share: Val<'k>,
    pub(super) shares: u32,
    /// Its number among the threads of the team, of so many.
    pub(super) thread: Val<'k>,
    pub(super) team: u32,
}

/// Adds the sums of all shares, in their order: the first team has them then. `shared` is memory that nobody needs any more,
/// a word for each sum of each thread, whatever its type.
pub(super) fn add_shares<'k>(
    k: &'k Builder,
    place: TeamPlace<'k>,
    sums: &[Var<'k>],
    shared: Shared<'k>,
) {
    let TeamPlace {
        share,
        shares,
        thread,
        team,
    } = place;
    let sum_count = sums.len() as u32;
    for (n, sum) in sums.iter().enumerate() {
        let at = (share * sum_count + n as u32) * team + thread;
        let sum = sum.get();
        let word = if sum.ty == shared.ty() {
            sum
        } else {
            sum.as_bits(shared.ty())
        };
        shared.set(at, word);
    }
    k.barrier();

    k.if_(share.eq(k.u32(0)), || {
        for (n, sum) in sums.iter().enumerate() {
            let own = sum.get();
            let other_sums = (1..shares).map(|share| {
                let word = shared.get(thread + (share * sum_count + n as u32) * team);
                if word.ty == own.ty {
                    word
                } else {
                    word.as_bits(own.ty)
                }
            });
            sum.set(other_sums.fold(own, |total, other| total + other));
        }
    });
}

fn tiles_over<'k>(v: Val<'k>, tile: u32) -> Val<'k> {
    (v + (tile - 1)) / tile
}
