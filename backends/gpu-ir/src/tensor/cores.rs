//! Products of matrices on tensor cores: four warps share a tile, the next part of whose factors is loaded while the
//! present one is multiplied. Several teams of four warps may share out a long inner dimension.
//!
//! Factors are rounded on their way to shared memory, and stored there as words along the inner dimension: one factor, or
//! two of 16 bits. Lines of words are so long that the threads of a warp never meet in a bank.

use super::product::{On, Rules, TeamPlace, add_shares, each_tile};
use super::{TensorKernelBuilder, Why};
use crate::Math;
use crate::lang::{Builder, Place, Shared, Ty, Val, Var};

/// Threads of a team: two warps along each side of a tile.
pub(super) const TEAM: u32 = 128;
/// Words of a tile along the inner dimension.
const DEPTH: u32 = 16;
/// Words from row to row of the left matrix: 20 i + j differ in all banks for i below 8 and j below 4.
const LINE: u32 = DEPTH + 4;
/// Words of one product of a warp along the inner dimension.
const STEP: u32 = 8;

/// Rows and columns of a tile whose warps have `per · 16` by `per · 16` elements each.
pub(super) fn tile(per: u32) -> u32 {
    32 * per
}

/// How a tile is computed: see [`super::product::Variant::Cores`].
#[derive(Clone, Copy)]
pub(super) struct Team {
    pub(super) math: Math,
    pub(super) per: u32,
    pub(super) shares: u32,
}

/// A tile that is being computed.
struct Tile<'r, 'k> {
    k: &'k Builder,
    math: Math,
    per: u32,
    shares: u32,
    on: On<'k>,
    rules: &'r Rules<'r, 'k>,
    /// Which share of the inner dimension a thread's team adds, and its number in the team.
    share: Val<'k>,
    local: Val<'k>,
    /// Of each team, both matrices twice: what is multiplied, and what is loaded.
    xs: Shared<'k>,
    ys: Shared<'k>,
    /// Factors that a thread has loaded of each: as floats, or as their 16 bits where memory has them in that form.
    ahead: [Vec<Var<'k>>; 2],
}

/// A group for each tile.
pub(super) fn cores<'k>(
    bench: &'k TensorKernelBuilder,
    on: On<'k>,
    rules: &Rules<'_, 'k>,
    team: Team,
) -> Result<(), Why> {
    let k = &bench.k;
    let Team { math, per, shares } = team;
    if rules.ty != Ty::F32 {
        return Err("tensor cores multiply floats".to_owned());
    }
    let tile_side = tile(per);
    // Factors on their way from global to shared memory.
    let factors_per_thread = tile_side * DEPTH / TEAM * if math.is_half() { 2 } else { 1 };
    let factor_variables = |are_bits: bool| {
        let zero = k.number(if are_bits { Ty::U32 } else { Ty::F32 }, 0.0);
        (0..factors_per_thread).map(|_| k.var(zero)).collect()
    };

    let thread = k.place(Place::Local);
    let tile_builder = Tile {
        k,
        math,
        per,
        shares,
        on,
        rules,
        share: thread / TEAM,
        local: thread % TEAM,
        xs: k.shared(Ty::U32, shares * 2 * tile_side * LINE),
        ys: k.shared(Ty::U32, shares * 2 * DEPTH * (tile_side + 8)),
        ahead: [
            factor_variables(rules.left_bits.is_some()),
            factor_variables(rules.right_bits.is_some()),
        ],
    };

    each_tile(k, on, tile_side, |batch_index, corner| {
        tile_builder.multiply_tile(&(rules.batch)(batch_index), corner);
    });
    Ok(())
}

impl<'k> Tile<'_, 'k> {
    /// Factors of a word.
    fn factors_per_word(&self) -> u32 {
        if self.math.is_half() { 2 } else { 1 }
    }

    /// Words of a part of each matrix that a thread brings to shared memory.
    fn words_per_thread(&self) -> u32 {
        tile(self.per) * DEPTH / TEAM
    }

    fn multiply_tile(&self, b: &[Val<'k>], corner: [Val<'k>; 2]) {
        let k = self.k;
        let warp_sums: Vec<[Var<'k>; 4]> = (0..self.per * 2 * self.per)
            .map(|_| std::array::from_fn(|_| k.var(k.f32(0.0))))
            .collect();
        let part_depth = DEPTH * self.factors_per_word();
        let rounds = self.on.depth_count.div_ceil(part_depth * self.shares);
        let first_inner = |round: Val<'k>| (round * self.shares + self.share) * part_depth;
        let buffer_half = k.var(k.u32(0));
        // The first part is loaded before the loop, and each further one while the part before is multiplied.
        let first = first_inner(k.u32(0));
        self.fetch_factors(b, corner, first);
        self.store_words(corner, first, k.u32(0));
        k.barrier();

        k.times(k.u32(rounds), |round| {
            let current_half = buffer_half.get();
            let next_round = round + 1;
            let other_half = current_half ^ 1;
            let has_more = next_round.lt(k.u32(rounds));
            k.if_(has_more, || {
                self.fetch_factors(b, corner, first_inner(next_round));
            });
            self.multiply_half(current_half, &warp_sums);

            // Nobody reads that half any more since the last barrier.
            k.if_(has_more, || {
                self.store_words(corner, first_inner(next_round), other_half);
            });
            k.barrier();
            buffer_half.set(other_half);
        });
        if self.shares == 1 {
            return self.store_sums(b, corner, &warp_sums);
        }
        let place = TeamPlace {
            share: self.share,
            shares: self.shares,
            thread: self.local,
            team: TEAM,
        };
        // The matrices are not needed any more: everybody is past the last barrier.
        add_shares(k, place, warp_sums.as_flattened(), self.xs);
        k.if_(self.share.eq(k.u32(0)), || {
            self.store_sums(b, corner, &warp_sums);
        });
        k.barrier();
    }

    /// Where a tile has a thread's word `n` of each matrix: row and word, then word and column.
    fn word_spots(&self, n: u32) -> [(Val<'k>, Val<'k>); 2] {
        let tile_side = tile(self.per);
        let local = self.local;
        let left_spot = (local / DEPTH + n * (TEAM / DEPTH), local % DEPTH);
        // Rows of the left tile and columns of the right one are read by neighbouring threads.
        let right_spot = (
            local / tile_side + n * (TEAM / tile_side),
            local % tile_side,
        );
        [left_spot, right_spot]
    }

    /// Where a thread's word `n` of each matrix is, of those that begin with inner element `depth` of a tile: row or column,
    /// and first inner element.
    fn matrix_spots(&self, corner: [Val<'k>; 2], depth: Val<'k>, n: u32) -> [[Val<'k>; 2]; 2] {
        let factors_per_word = self.factors_per_word();
        let [(i, d), (e, j)] = self.word_spots(n);
        [
            [corner[0] + i, depth + d * factors_per_word],
            [corner[1] + j, depth + e * factors_per_word],
        ]
    }

    /// Loads the factors of a tile from inner element `depth` on: of what is outside of the matrices the nearest, so that no
    /// load waits for a comparison. Nothing looks at them before [`Self::store_words`], so that nobody waits for them
    /// earlier.
    fn fetch_factors(&self, b: &[Val<'k>], corner: [Val<'k>; 2], depth: Val<'k>) {
        let rules = self.rules;
        let on = self.on;
        let factors_per_word = self.factors_per_word();
        for n in 0..self.words_per_thread() {
            let [[row, left_inner], [column, right_inner]] = self.matrix_spots(corner, depth, n);
            let row = row.min(on.rows - 1);
            let column = column.min(on.columns - 1);
            for e in 0..factors_per_word {
                let number = (n * factors_per_word + e) as usize;
                let inner = (left_inner + e).min(on.depth - 1);
                let left = rules.left_bits.unwrap_or(rules.left)(b, row, inner);
                self.ahead[0][number].set(left);
                let inner = (right_inner + e).min(on.depth - 1);
                let right = rules.right_bits.unwrap_or(rules.right)(b, inner, column);
                self.ahead[1][number].set(right);
            }
        }
    }

    /// The word of factors that were loaded of a matrix, zeros outside of it, which add nothing: number `n`, whose first
    /// factor is at a spot.
    fn factor_word(&self, matrix: usize, n: u32, [line, first_inner]: [Val<'k>; 2]) -> Val<'k> {
        let k = self.k;
        let lines = [self.on.rows, self.on.columns][matrix];
        let factors_per_word = self.factors_per_word();
        let factors: Vec<Val<'k>> = (0..factors_per_word)
            .map(|e| {
                let factor = self.ahead[matrix][(n * factors_per_word + e) as usize].get();
                let is_inside = line.lt(lines) & (first_inner + e).lt(self.on.depth);
                k.select(is_inside, factor, k.number(factor.ty, 0.0))
            })
            .collect();
        match factors[..] {
            [low, high] if low.ty == Ty::U32 => low | (high << 16),
            _ => k.factors(self.math, &factors),
        }
    }

    /// Where one half of the team's part of each matrix begins.
    fn half_starts(&self, half: Val<'k>) -> [Val<'k>; 2] {
        let number = self.share * 2 + half;
        let tile_side = tile(self.per);
        [
            number * (tile_side * LINE),
            number * (DEPTH * (tile_side + 8)),
        ]
    }

    /// Writes the words whose factors were loaded to one half of shared memory.
    fn store_words(&self, corner: [Val<'k>; 2], depth: Val<'k>, half: Val<'k>) {
        let tile_side = tile(self.per);
        let [left_start, right_start] = self.half_starts(half);
        for n in 0..self.words_per_thread() {
            let [(i, d), (e, j)] = self.word_spots(n);
            let [left_spot, right_spot] = self.matrix_spots(corner, depth, n);
            let left_word = self.factor_word(0, n, left_spot);
            self.xs.set(left_start + i * LINE + d, left_word);
            let right_word = self.factor_word(1, n, right_spot);
            self.ys
                .set(right_start + e * (tile_side + 8) + j, right_word);
        }
    }

    /// Row and column of a thread's first element in the tile, and the numbers that place it in its warp.
    fn warp_corner(&self) -> [Val<'k>; 4] {
        // Two warps side by side, and two below them.
        let warp_index = self.local / 32;
        let lane_index = self.local % 32;
        let warp_side = 16 * self.per;
        [
            (warp_index / 2) * warp_side,
            (warp_index % 2) * warp_side,
            lane_index / 4,
            lane_index % 4,
        ]
    }

    /// Adds the products of one half of shared memory.
    fn multiply_half(&self, half: Val<'k>, sums: &[[Var<'k>; 4]]) {
        let k = self.k;
        let per = self.per;
        let tile_side = tile(self.per);
        let [down, across, group, member] = self.warp_corner();
        let [left_base, right_base] = self.half_starts(half);

        for d in (0..DEPTH).step_by(STEP as usize) {
            // Fragments of the left matrix are used again for all columns.
            let left_fragments: Vec<[Val<'k>; 4]> = (0..per)
                .map(|i| {
                    let fragment_start = left_base + (down + group + 16 * i) * LINE + member + d;
                    [0, 8 * LINE, 4, 8 * LINE + 4].map(|more| self.xs.get(fragment_start + more))
                })
                .collect();
            for j in 0..2 * per {
                let fragment_start =
                    right_base + (member + d) * (tile_side + 8) + across + group + 8 * j;
                let right_fragment =
                    [0, 4 * (tile_side + 8)].map(|more| self.ys.get(fragment_start + more));
                for (i, left_fragments) in left_fragments.iter().enumerate() {
                    let sums = sums[i * (2 * per) as usize + j as usize];
                    k.multiply(self.math, sums, *left_fragments, right_fragment);
                }
            }
        }
    }

    fn store_sums(&self, b: &[Val<'k>], corner: [Val<'k>; 2], sums: &[[Var<'k>; 4]]) {
        let k = self.k;
        let [down, across, group, member] = self.warp_corner();
        // The instruction fixes which elements a thread has: see `Stmt::Multiply`.
        let first_row = corner[0] + down + group;
        let first_column = corner[1] + across + member * 2;

        for (n, sums) in sums.iter().enumerate() {
            let i = n as u32 / (2 * self.per);
            let j = n as u32 % (2 * self.per);
            for (c, sum) in sums.iter().enumerate() {
                let at_row = first_row + (16 * i + 8 * (c as u32 / 2));
                let at_column = first_column + (8 * j + c as u32 % 2);
                k.if_(
                    at_row.lt(self.on.rows) & at_column.lt(self.on.columns),
                    || {
                        (self.rules.store)(b, at_row, at_column, sum.get());
                    },
                );
            }
        }
    }
}
