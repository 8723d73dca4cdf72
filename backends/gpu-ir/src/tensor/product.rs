//! Products of matrices whose elements are loaded by rules: of matrices as they are stored, of windows of an image.
//!
//! Four kernels: tiles on tensor cores where factors may be rounded (see `super::cores`); tiles in shared memory with
//! a few elements in the registers of each thread, where several teams of threads may share out a long inner dimension;
//! columns whose sums are shared out among a few threads, for products of few rows; and one thread for each element. Every
//! sum of a tile that one team computes goes along the inner dimension in its order, as on the CPU.
//!
//! What takes the time of all but the largest products is waiting for memory (some 600 cycles an H200, measured): so loads
//! never hang on a branch or on each other, and those of the next part are under way while the present one is multiplied.

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
    fn tile_side(self) -> Option<usize> {
        let side = match self {
            Self::Cores { per, .. } => cores::tile(per),
            _ => self.tile_shape()?.tile_side(),
        };
        Some(side as usize)
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

/// Inner elements that a tile has.
const DEPTH: u32 = 16;
/// Rows below which a tile is not worth its barriers.
const FEW: usize = 4;
/// Inner elements from which on it pays that several teams of threads share them out.
const MANY: usize = 128;
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
            const SHARED: [Variant; 6] = [
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
                Variant::Group(64),
                Variant::Group(256),
            ];
            match depth {
                64.. if across || columns < 8 => (SHARED[4], SHARED[4..].to_vec()),
                512.. if columns >= 16 => (SHARED[3], SHARED[..4].to_vec()),
                64.. if columns >= 16 => (SHARED[0], SHARED[..3].to_vec()),
                _ => (Variant::Elements, vec![]),
            }
        } else if math != Math::F32 {
            let large_tile = cores::tile(2) as usize;
            let tile_count = batches * rows.div_ceil(large_tile) * columns.div_ceil(large_tile);
            let variants = [(1, 1), (2, 1), (1, 4)];
            let all = variants.map(|(per, shares)| Variant::Cores { math, per, shares });
            match tile_count {
                BUSY.. => (all[1], all[..2].to_vec()),
                _ if depth >= MANY => (all[2], all.to_vec()),
                _ => (all[0], all[..2].to_vec()),
            }
        } else {
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
            let (tile, mut all) = match rows.min(columns) {
                256.. => (TILES[2], TILES.to_vec()),
                64.. => (TILES[1], TILES.to_vec()),
                32.. => (TILES[1], TILES[..3].to_vec()),
                _ => (TILES[0], TILES[..2].to_vec()),
            };
            let tile_count = batches * rows.div_ceil(32) * columns.div_ceil(32);
            let is_deep = depth >= MANY;
            if is_deep {
                all.extend(DEEP);
            }
            let default = if is_deep && tile_count < BUSY {
                DEEP[0]
            } else {
                tile
            };
            (default, all)
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
        if let Some(tile_side) = variant.tile_side() {
            let tiles = batches * rows.div_ceil(tile_side) * columns.div_ceil(tile_side);
            return Grid::Groups(Amount::each(tiles as u64));
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
    };

    match variant {
        Variant::Cores { math, per, shares } => {
            let team = cores::Team { math, per, shares };
            cores::cores(bench, bound_sizes, sizes.depth, rules, team)?;
        }
        Variant::Slices { wide, slices } => {
            slice_products(bench, bound_sizes, sizes.depth, rules, wide, slices);
        }
        Variant::Group(threads) => group_products(bench, bound_sizes, sizes.depth, rules, threads),
        Variant::Elements => element_products(bench, bound_sizes, rules),
        Variant::Tiles { .. } | Variant::Deep { .. } => {
            let shape = variant.tile_shape().expect("it has tiles");
            tile_products(bench, bound_sizes, sizes.depth, rules, shape);
        }
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

/// Elements of each factor that a thread asks memory for before it uses the first: as many loads are under way at once.
const LOADS_AHEAD: u32 = 8;

/// The share of a sum over `depth` elements that the thread `share` of `shares` adds: every `shares`th, in their order.
/// `load` gives the two factors.
fn add_share<'k>(
    k: &'k Builder,
    sum: Var<'k>,
    (share, shares): (Val<'k>, u32),
    depth: usize,
    load: impl Fn(Val<'k>) -> [Val<'k>; 2],
) {
    let elements_per_round = shares * LOADS_AHEAD;
    // All sizes of a kernel are below 2^32.
    let in_rounds = depth as u32 / elements_per_round * elements_per_round;
    if in_rounds > 0 {
        let step = k.u32(elements_per_round);
        k.range(share, k.u32(in_rounds), step, |first| {
            let factors = (0..LOADS_AHEAD).map(|ahead| load(first + ahead * shares));
            for [x, y] in factors.collect::<Vec<_>>() {
                sum.set(add_product(x, y, sum.get()));
            }
        });
    }
    if in_rounds < depth as u32 {
        k.range(share + in_rounds, k.u32(depth as u32), k.u32(shares), |d| {
            let [x, y] = load(d);
            sum.set(add_product(x, y, sum.get()));
        });
    }
}

/// Groups of `wide` neighbouring columns, the inner dimension shared out among `slices` threads each.
fn slice_products<'k>(
    bench: &'k TensorKernelBuilder,
    on: On<'k>,
    depth: usize,
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
            add_share(k, slice_sum, (slice_index, slices), depth, |d| {
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
    depth: usize,
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
        add_share(k, thread_sum, (local_index, threads), depth, |d| {
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

/// A product by tiles in the making: a group for each tile, `per_thread` by `per_thread` elements to a thread, which are
/// `side` apart.
struct TileProduct<'r, 'k> {
    k: &'k Builder,
    on: On<'k>,
    rules: &'r Rules<'r, 'k>,
    shape: TileShape,
    /// Parts of both matrices: of each share, once or twice.
    left_parts: Shared<'k>,
    right_parts: Shared<'k>,
    /// Which share of the inner dimension a thread adds, and its number among those that add it.
    share: Val<'k>,
    thread: Val<'k>,
    /// Elements of the next part that a thread has loaded.
    ahead: [Vec<Var<'k>>; 2],
}

/// How a group does a tile.
#[derive(Clone, Copy)]
struct TileShape {
    /// Threads along each side.
    side: u32,
    per_thread: u32,
    /// Teams of `side` squared threads, each of which adds a share of the inner dimension.
    shares: u32,
}

/// Where a tile is.
struct TilePlace<'k> {
    first_row: Val<'k>,
    first_column: Val<'k>,
    /// See [`Rules::batch`].
    batch_values: Vec<Val<'k>>,
}

impl TileShape {
    /// Threads of a team.
    fn team(self) -> u32 {
        self.side * self.side
    }

    fn local(self) -> u32 {
        self.team() * self.shares
    }

    /// Elements along each side of a tile.
    fn tile_side(self) -> u32 {
        self.side * self.per_thread
    }

    /// Elements of one part of a matrix.
    fn part(self) -> u32 {
        self.tile_side() * DEPTH
    }

    /// Parts of each matrix in shared memory for each share: two where there is room for what is multiplied and for what
    /// comes next.
    fn parts(self) -> u32 {
        const ROOM_BYTES: u32 = 16 << 10;
        let doubled_bytes = 2 * 2 * self.part() * self.shares * 4;
        if doubled_bytes <= ROOM_BYTES { 2 } else { 1 }
    }
}

/// A group for each tile.
fn tile_products<'k>(
    bench: &'k TensorKernelBuilder,
    on: On<'k>,
    depth: usize,
    rules: &Rules<'_, 'k>,
    shape: TileShape,
) {
    let k = &bench.k;
    let shared_len = shape.parts() * shape.part() * shape.shares;
    let local_index = k.place(Place::Local);
    let loaded_elements = || {
        let count = shape.part() / shape.team();
        let variables = (0..count).map(|_| k.var(k.number(rules.ty, 0.0)));
        variables.collect()
    };
    let product = TileProduct {
        k,
        on,
        rules,
        shape,
        left_parts: k.shared(rules.ty, shared_len),
        right_parts: k.shared(rules.ty, shared_len),
        share: local_index / shape.team(),
        thread: local_index % shape.team(),
        ahead: [loaded_elements(), loaded_elements()],
    };

    let tile_side = shape.tile_side();
    // All sizes of a kernel are below 2^32.
    let depth_of_round = DEPTH * shape.shares;
    let rounds = (depth as u32).div_ceil(depth_of_round);
    let tiles_down = tiles_over(on.rows, tile_side);
    let tiles_across = tiles_over(on.columns, tile_side);
    k.each_group(on.batches * tiles_down * tiles_across, |t| {
        let batch_index = t / (tiles_down * tiles_across);
        let tile_index = t % (tiles_down * tiles_across);
        let place = TilePlace {
            first_row: (tile_index / tiles_across) * tile_side,
            first_column: (tile_index % tiles_across) * tile_side,
            batch_values: (rules.batch)(batch_index),
        };
        product.run_tile(&place, rounds);
    });
}

impl<'k> TileProduct<'_, 'k> {
    fn run_tile(&self, place: &TilePlace<'k>, rounds: u32) {
        let k = self.k;
        let sum_count = self.shape.per_thread * self.shape.per_thread;
        let element_sums: Vec<_> = (0..sum_count)
            .map(|_| k.var(k.number(self.rules.ty, 0.0)))
            .collect();

        // Of each part, loads are under way while the part before is multiplied.
        let is_doubled = self.shape.parts() == 2;
        let current_part = k.var(k.u32(0));
        self.fetch_part(place, k.u32(0));
        self.store_part(place, k.u32(0), k.u32(0));
        k.barrier();
        k.times(k.u32(rounds), |round| {
            let next_round = round + 1;
            let has_more = next_round.lt(k.u32(rounds));
            k.if_(has_more, || self.fetch_part(place, next_round));
            self.add_products(&element_sums, current_part.get());
            let next_part = if is_doubled {
                current_part.get() ^ 1
            } else {
                // Nobody may still read what is written over.
                k.barrier();
                k.u32(0)
            };
            k.if_(has_more, || self.store_part(place, next_round, next_part));
            k.barrier();
            current_part.set(next_part);
        });

        self.add_shares(&element_sums);
        self.store_sums(place, &element_sums);
        if self.shape.shares > 1 {
            k.barrier();
        }
    }

    /// Where a part has a thread's element `n` of each matrix: line and inner element.
    fn element_spots(&self, n: u32) -> [[Val<'k>; 2]; 2] {
        let element = self.thread + n * self.shape.team();
        let tile_side = self.shape.tile_side();
        // Neighbouring threads load neighbours of a row of the left matrix, and of a row of the right one.
        [
            [element / DEPTH, element % DEPTH],
            [element % tile_side, element / tile_side],
        ]
    }

    /// The spots of a thread's element `n` of a round's part in both matrices: row or column, and inner element.
    fn matrix_spots(&self, place: &TilePlace<'k>, round: Val<'k>, n: u32) -> [[Val<'k>; 2]; 2] {
        let first_inner = (round * self.shape.shares + self.share) * DEPTH;
        let [[i, left_inner], [j, right_inner]] = self.element_spots(n);
        [
            [place.first_row + i, first_inner + left_inner],
            [place.first_column + j, first_inner + right_inner],
        ]
    }

    /// Loads elements of a round's part of both matrices: of what is outside of them the nearest, so that no load waits for
    /// a comparison. Nothing looks at them before [`Self::store_part`], so that nobody waits for them earlier.
    fn fetch_part(&self, place: &TilePlace<'k>, round: Val<'k>) {
        let (on, rules) = (self.on, self.rules);
        let last_inner = on.depth - 1;
        for n in 0..self.ahead[0].len() {
            let [[row, left_inner], [column, right_inner]] =
                self.matrix_spots(place, round, n as u32);
            let row = row.min(on.rows - 1);
            let left = (rules.left)(&place.batch_values, row, left_inner.min(last_inner));
            self.ahead[0][n].set(left);
            let column = column.min(on.columns - 1);
            let right = (rules.right)(&place.batch_values, right_inner.min(last_inner), column);
            self.ahead[1][n].set(right);
        }
    }

    /// Where the lines of a part begin.
    fn part_start(&self, part: Val<'k>) -> Val<'k> {
        (part * self.shape.shares + self.share) * self.shape.part()
    }

    /// Writes what was loaded for a round to a part of shared memory, zeros for what is outside of the matrices: they add
    /// nothing.
    fn store_part(&self, place: &TilePlace<'k>, round: Val<'k>, part: Val<'k>) {
        let (k, on) = (self.k, self.on);
        let tile_side = self.shape.tile_side();
        let start = self.part_start(part);
        let zero = k.number(self.rules.ty, 0.0);
        for n in 0..self.ahead[0].len() {
            let spots = self.element_spots(n as u32);
            let places = self.matrix_spots(place, round, n as u32);
            let matrices = [(self.left_parts, on.rows), (self.right_parts, on.columns)];
            for (matrix, (parts, lines)) in matrices.into_iter().enumerate() {
                let [line_in_tile, inner_in_tile] = spots[matrix];
                let [line, inner] = places[matrix];
                let is_inside = line.lt(lines) & inner.lt(on.depth);
                let element = k.select(is_inside, self.ahead[matrix][n].get(), zero);
                parts.set(start + inner_in_tile * tile_side + line_in_tile, element);
            }
        }
    }

    /// Row and column of a thread's first element in the tile.
    fn thread_corner(&self) -> [Val<'k>; 2] {
        let side = self.shape.side;
        [self.thread / side, self.thread % side]
    }

    /// Each thread adds its products of every inner element of a part, in their order.
    fn add_products(&self, element_sums: &[Var<'k>], part: Val<'k>) {
        /// Inner elements whose factors are loaded one behind the other, without a jump.
        const AT_ONCE: u32 = 4;
        let k = self.k;
        let TileShape {
            side, per_thread, ..
        } = self.shape;
        let start = self.part_start(part);
        let [row, column] = self.thread_corner();
        k.range(k.u32(0), k.u32(DEPTH), k.u32(AT_ONCE), |first_inner| {
            for ahead in 0..AT_ONCE {
                let line_start = start + (first_inner + ahead) * self.shape.tile_side();
                let factors = |parts: Shared<'k>, first: Val<'k>| -> Vec<Val<'k>> {
                    let places = (0..per_thread).map(|i| line_start + first + side * i);
                    places.map(|place| parts.get(place)).collect()
                };
                let left_factors = factors(self.left_parts, row);
                let right_factors = factors(self.right_parts, column);
                for (i, x) in left_factors.iter().enumerate() {
                    for (j, y) in right_factors.iter().enumerate() {
                        let sum = element_sums[i * per_thread as usize + j];
                        sum.set(add_product(*x, *y, sum.get()));
                    }
                }
            }
        });
    }

    /// Adds the sums of all shares, in their order: the first team has them then.
    fn add_shares(&self, element_sums: &[Var<'k>]) {
        let (k, shares, team) = (self.k, self.shape.shares, self.shape.team());
        if shares == 1 {
            return;
        }
        // The parts are not needed any more: everybody is past the last barrier.
        for (n, sum) in element_sums.iter().enumerate() {
            let place = (self.share * element_sums.len() as u32 + n as u32) * team + self.thread;
            self.left_parts.set(place, sum.get());
        }
        k.barrier();
        k.if_(self.share.eq(k.u32(0)), || {
            for (n, sum) in element_sums.iter().enumerate() {
                let other_sums = (1..shares).map(|share| {
                    let first = (share * element_sums.len() as u32 + n as u32) * team;
                    self.left_parts.get(self.thread + first)
                });
                sum.set(other_sums.fold(sum.get(), |total, other| total + other));
            }
        });
    }

    fn store_sums(&self, place: &TilePlace<'k>, element_sums: &[Var<'k>]) {
        let k = self.k;
        let TileShape {
            side, per_thread, ..
        } = self.shape;
        let [row, column] = self.thread_corner();
        for (number, sum) in element_sums.iter().enumerate() {
            let i = number as u32 / per_thread;
            let j = number as u32 % per_thread;
            let row = place.first_row + row + side * i;
            let column = place.first_column + column + side * j;
            let mut is_stored = row.lt(self.on.rows) & column.lt(self.on.columns);
            if self.shape.shares > 1 {
                is_stored = is_stored & self.share.eq(k.u32(0));
            }
            k.if_(is_stored, || {
                (self.rules.store)(&place.batch_values, row, column, sum.get());
            });
        }
    }
}

pub(super) fn tiles_over<'k>(v: Val<'k>, tile: u32) -> Val<'k> {
    (v + (tile - 1)) / tile
}
