//! Products of matrices on tensor cores: four warps share a tile, the next part of whose factors is loaded while the
//! present one is multiplied.
//!
//! Factors are rounded on their way to shared memory, and stored there as words along the inner dimension: one factor, or
//! two of 16 bits. Lines of words are so long that the threads of a warp never meet in a bank.

use super::product::{On, Rules, tiles_over};
use super::{TensorKernelBuilder, Why};
use crate::Math;
use crate::lang::{Builder, Place, Shared, Ty, Val, Var};

/// Threads of a group: two warps along each side of a tile.
pub(super) const LOCAL: u32 = 128;
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

/// A tile that is being computed.
struct Tile<'r, 'k> {
    k: &'k Builder,
    math: Math,
    per: u32,
    on: On<'k>,
    rules: &'r Rules<'r, 'k>,
    local: Val<'k>,
    /// Both matrices twice: what is multiplied, and what is loaded.
    xs: Shared<'k>,
    ys: Shared<'k>,
    /// Words that a thread has loaded of each.
    ahead: [Vec<Var<'k>>; 2],
}

/// A group for each tile.
pub(super) fn cores<'k>(
    bench: &'k TensorKernelBuilder,
    on: On<'k>,
    rules: &Rules<'_, 'k>,
    math: Math,
    per: u32,
) -> Result<(), Why> {
    let k = &bench.k;
    if rules.ty != Ty::F32 {
        return Err("tensor cores multiply floats".to_owned());
    }
    let tile_side = tile(per);
    // Words on their way from global to shared memory.
    let word_variables = || {
        (0..tile_side * DEPTH / LOCAL)
            .map(|_| k.var(k.u32(0)))
            .collect()
    };

    let tile_builder = Tile {
        k,
        math,
        per,
        on,
        rules,
        local: k.place(Place::Local),
        xs: k.shared(Ty::U32, 2 * tile_side * LINE),
        ys: k.shared(Ty::U32, 2 * DEPTH * (tile_side + 8)),
        ahead: [word_variables(), word_variables()],
    };

    let tiles_down = tiles_over(on.rows, tile_side);
    let tiles_across = tiles_over(on.columns, tile_side);
    k.each_group(on.batches * tiles_down * tiles_across, |t| {
        let batch_index = t / (tiles_down * tiles_across);
        let tile_index = t % (tiles_down * tiles_across);
        let b = (rules.batch)(batch_index);
        tile_builder.multiply_tile(
            &b,
            (tile_index / tiles_across) * tile_side,
            (tile_index % tiles_across) * tile_side,
        );
    });

    Ok(())
}

impl<'k> Tile<'_, 'k> {
    /// Factors of a word.
    fn factors_per_word(&self) -> u32 {
        if self.math.is_half() { 2 } else { 1 }
    }

    fn multiply_tile(&self, b: &[Val<'k>], row: Val<'k>, column: Val<'k>) {
        let k = self.k;
        let warp_sums: Vec<[Var<'k>; 4]> = (0..self.per * 2 * self.per)
            .map(|_| std::array::from_fn(|_| k.var(k.f32(0.0))))
            .collect();
        let depth_step = k.u32(DEPTH * self.factors_per_word());
        let buffer_half = k.var(k.u32(0));
        // The first part is loaded before the loop, and each further one while the part before is multiplied.
        self.fetch_words(b, row, column, k.u32(0));
        self.store_words(k.u32(0));
        k.barrier();

        k.range(k.u32(0), self.on.depth, depth_step, |depth| {
            let current_half = buffer_half.get();
            let next_depth = depth + depth_step;
            let other_half = current_half ^ 1;
            let has_more = next_depth.lt(self.on.depth);
            k.if_(has_more, || self.fetch_words(b, row, column, next_depth));
            self.multiply_half(current_half, &warp_sums);

            // Nobody reads that half any more since the last barrier.
            k.if_(has_more, || self.store_words(other_half));
            k.barrier();
            buffer_half.set(other_half);
        });
        self.store_sums(b, row, column, &warp_sums);
    }

    /// Where a tile has a thread's word `n` of each matrix: row and word, then word and column.
    fn word_spots(&self, n: u32) -> [(Val<'k>, Val<'k>); 2] {
        let tile_side = tile(self.per);
        let local = self.local;
        let left_spot = (local / DEPTH + n * (LOCAL / DEPTH), local % DEPTH);
        // Rows of the left tile and columns of the right one are read by neighbouring threads.
        let right_spot = (
            local / tile_side + n * (LOCAL / tile_side),
            local % tile_side,
        );
        [left_spot, right_spot]
    }

    /// Loads the words of a tile from inner element `depth` on.
    fn fetch_words(&self, b: &[Val<'k>], row: Val<'k>, column: Val<'k>, depth: Val<'k>) {
        let rules = self.rules;
        let on = self.on;
        let factors_per_word = self.factors_per_word();

        for n in 0..self.ahead[0].len() {
            let [(i, d), (e, j)] = self.word_spots(n as u32);
            let line_index = row + i;
            let first_inner = depth + d * factors_per_word;
            let load_left = |d: Val<'k>, raw: bool| match rules.left_bits.filter(|_| raw) {
                Some(bits) => bits(b, line_index, d),
                None => (rules.left)(b, line_index, d),
            };
            let factor_word = self.factor_word(
                line_index.lt(on.rows),
                first_inner,
                rules.left_bits.is_some(),
                &load_left,
            );
            self.ahead[0][n].set(factor_word);
            let line_index = column + j;
            let first_inner = depth + e * factors_per_word;
            let load_right = |d: Val<'k>, raw: bool| match rules.right_bits.filter(|_| raw) {
                Some(bits) => bits(b, d, line_index),
                None => (rules.right)(b, d, line_index),
            };

            let factor_word = self.factor_word(
                line_index.lt(on.columns),
                first_inner,
                rules.right_bits.is_some(),
                &load_right,
            );
            self.ahead[1][n].set(factor_word);
        }
    }

    /// The word that begins with inner element `first`, zeros outside. `raw` factors are loaded as their 16 bits.
    fn factor_word(
        &self,
        inside: Val<'k>,
        first: Val<'k>,
        raw: bool,
        load: &dyn Fn(Val<'k>, bool) -> Val<'k>,
    ) -> Val<'k> {
        let k = self.k;
        let factor_type = if raw { Ty::U32 } else { Ty::F32 };
        // Zeros outside of the matrices add nothing.
        let factor_values: Vec<Val<'k>> = (0..self.factors_per_word())
            .map(|e| {
                let d = first + e;
                let factor_value = k.var(k.number(factor_type, 0.0));
                k.if_(inside & d.lt(self.on.depth), || {
                    factor_value.set(load(d, raw))
                });
                factor_value.get()
            })
            .collect();

        match factor_values[..] {
            [low, high] if raw => low | (high << 16),
            _ => k.factors(self.math, &factor_values),
        }
    }

    /// Writes the words that were loaded to one half of shared memory.
    fn store_words(&self, half: Val<'k>) {
        let tile_side = tile(self.per);
        for n in 0..self.ahead[0].len() {
            let [(i, d), (e, j)] = self.word_spots(n as u32);
            self.xs.set(
                half * (tile_side * LINE) + i * LINE + d,
                self.ahead[0][n].get(),
            );
            self.ys.set(
                half * (DEPTH * (tile_side + 8)) + e * (tile_side + 8) + j,
                self.ahead[1][n].get(),
            );
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
        let left_base = half * (tile_side * LINE);
        let right_base = half * (DEPTH * (tile_side + 8));

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

    fn store_sums(&self, b: &[Val<'k>], row: Val<'k>, column: Val<'k>, sums: &[[Var<'k>; 4]]) {
        let k = self.k;
        let [down, across, group, member] = self.warp_corner();
        // The instruction fixes which elements a thread has: see `Stmt::Multiply`.
        let first_row = row + down + group;
        let first_column = column + across + member * 2;

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
