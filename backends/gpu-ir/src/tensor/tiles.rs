//! Products of matrices by tiles in shared memory, a few elements of each in the registers of a thread; where there is room,
//! the next part of both matrices is loaded while the present one is multiplied.

use super::TensorKernelBuilder;
use super::product::{On, Rules, TeamPlace, add_product, add_shares, each_tile};
use crate::lang::{Builder, Place, Shared, Val, Var};

/// Inner elements of a part of a tile.
const DEPTH: u32 = 16;

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
pub(super) struct TileShape {
    /// Threads along each side.
    pub(super) side: u32,
    pub(super) per_thread: u32,
    /// Teams of `side` squared threads, each of which adds a share of the inner dimension.
    pub(super) shares: u32,
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

    /// Threads of a group.
    pub(super) fn local(self) -> u32 {
        self.team() * self.shares
    }

    /// Elements along each side of a tile.
    pub(super) fn tile_side(self) -> u32 {
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
pub(super) fn tile_products<'k>(
    bench: &'k TensorKernelBuilder,
    on: On<'k>,
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

    let rounds = on.depth_count.div_ceil(DEPTH * shape.shares);
    each_tile(k, on, shape.tile_side(), |batch_index, corner| {
        let [first_row, first_column] = corner;
        let place = TilePlace {
            first_row,
            first_column,
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

        if self.shape.shares == 1 {
            return self.store_sums(place, &element_sums);
        }
        let team_place = TeamPlace {
            share: self.share,
            shares: self.shape.shares,
            thread: self.thread,
            team: self.shape.team(),
        };
        add_shares(k, team_place, &element_sums, self.left_parts);
        k.if_(self.share.eq(k.u32(0)), || {
            self.store_sums(place, &element_sums);
        });
        k.barrier();
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
            let is_inside = row.lt(self.on.rows) & column.lt(self.on.columns);
            k.if_(is_inside, || {
                (self.rules.store)(&place.batch_values, row, column, sum.get());
            });
        }
    }
}
