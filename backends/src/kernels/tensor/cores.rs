//! Products of matrices on tensor cores: four warps share a tile, the next part of whose factors is loaded while the
//! present one is multiplied.
//!
//! Factors are rounded on their way to shared memory, and lie there as words along the inner dimension: one factor, or
//! two of 16 bits. Lines of words are so long that the threads of a warp never meet in a bank.

use super::product::{On, Rules, up};
use super::{Bench, Why};
use crate::kernels::Math;
use crate::kernels::lang::{Builder, Place, Shared, Ty, Val, Var};

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

/// A tile in the making.
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
    bench: &'k Bench,
    on: On<'k>,
    rules: &Rules<'_, 'k>,
    math: Math,
    per: u32,
) -> Result<(), Why> {
    let k = &bench.k;
    if rules.ty != Ty::F32 {
        return Err("tensor cores multiply floats".to_owned());
    }
    let tile = tile(per);
    let words = || (0..tile * DEPTH / LOCAL).map(|_| k.var(k.u32(0))).collect();
    let this = Tile {
        k,
        math,
        per,
        on,
        rules,
        local: k.place(Place::Local),
        xs: k.shared(Ty::U32, 2 * tile * LINE),
        ys: k.shared(Ty::U32, 2 * DEPTH * (tile + 8)),
        ahead: [words(), words()],
    };
    let (down, across) = (up(on.rows, tile), up(on.columns, tile));
    k.each_group(on.batches * down * across, |t| {
        let (batch, rest) = (t / (down * across), t % (down * across));
        let b = (rules.batch)(batch);
        this.whole(&b, (rest / across) * tile, (rest % across) * tile);
    });
    Ok(())
}

impl<'k> Tile<'_, 'k> {
    /// Factors of a word.
    fn each(&self) -> u32 {
        if self.math.is_half() { 2 } else { 1 }
    }

    fn whole(&self, b: &[Val<'k>], row: Val<'k>, column: Val<'k>) {
        let k = self.k;
        let sums: Vec<[Var<'k>; 4]> = (0..self.per * 2 * self.per)
            .map(|_| std::array::from_fn(|_| k.var(k.f32(0.0))))
            .collect();
        let (deep, turn) = (k.u32(DEPTH * self.each()), k.var(k.u32(0)));
        self.fetch(b, row, column, k.u32(0));
        self.put(k.u32(0));
        k.barrier();
        k.range(k.u32(0), self.on.depth, deep, |depth| {
            let (here, next) = (turn.get(), depth + deep);
            let there = here ^ 1;
            let more = next.lt(self.on.depth);
            k.if_(more, || self.fetch(b, row, column, next));
            self.multiply(here, &sums);
            // Nobody reads that half any more since the last barrier.
            k.if_(more, || self.put(there));
            k.barrier();
            turn.set(there);
        });
        self.store(b, row, column, &sums);
    }

    /// Where a thread's word `n` of each matrix lies in a tile: row and word, then word and column.
    fn spots(&self, n: u32) -> [(Val<'k>, Val<'k>); 2] {
        let (tile, local) = (tile(self.per), self.local);
        let left = (local / DEPTH + n * (LOCAL / DEPTH), local % DEPTH);
        let right = (local / tile + n * (LOCAL / tile), local % tile);
        [left, right]
    }

    /// Loads the words of a tile from inner element `depth` on.
    fn fetch(&self, b: &[Val<'k>], row: Val<'k>, column: Val<'k>, depth: Val<'k>) {
        let (rules, on, each) = (self.rules, self.on, self.each());
        for n in 0..self.ahead[0].len() {
            let [(i, d), (e, j)] = self.spots(n as u32);
            let (line, first) = (row + i, depth + d * each);
            let left = |d: Val<'k>, raw: bool| match rules.left_bits.filter(|_| raw) {
                Some(bits) => bits(b, line, d),
                None => (rules.left)(b, line, d),
            };
            let word = self.word(line.lt(on.rows), first, rules.left_bits.is_some(), &left);
            self.ahead[0][n].set(word);
            let (line, first) = (column + j, depth + e * each);
            let right = |d: Val<'k>, raw: bool| match rules.right_bits.filter(|_| raw) {
                Some(bits) => bits(b, d, line),
                None => (rules.right)(b, d, line),
            };
            let word = self.word(
                line.lt(on.columns),
                first,
                rules.right_bits.is_some(),
                &right,
            );
            self.ahead[1][n].set(word);
        }
    }

    /// The word that begins with inner element `first`, zeros outside. `raw` factors are loaded as their 16 bits.
    fn word(
        &self,
        inside: Val<'k>,
        first: Val<'k>,
        raw: bool,
        load: &dyn Fn(Val<'k>, bool) -> Val<'k>,
    ) -> Val<'k> {
        let k = self.k;
        let ty = if raw { Ty::U32 } else { Ty::F32 };
        let values: Vec<Val<'k>> = (0..self.each())
            .map(|e| {
                let (d, value) = (first + e, k.var(k.number(ty, 0.0)));
                k.if_(inside & d.lt(self.on.depth), || value.set(load(d, raw)));
                value.get()
            })
            .collect();
        match values[..] {
            [low, high] if raw => low | (high << 16),
            _ => k.factors(self.math, &values),
        }
    }

    /// Writes the words that were loaded to one half of shared memory.
    fn put(&self, half: Val<'k>) {
        let tile = tile(self.per);
        for n in 0..self.ahead[0].len() {
            let [(i, d), (e, j)] = self.spots(n as u32);
            self.xs
                .set(half * (tile * LINE) + i * LINE + d, self.ahead[0][n].get());
            self.ys.set(
                half * (DEPTH * (tile + 8)) + e * (tile + 8) + j,
                self.ahead[1][n].get(),
            );
        }
    }

    /// Row and column of a thread's first element in the tile, and the numbers that place it in its warp.
    fn corner(&self) -> [Val<'k>; 4] {
        let (warp, lane, wide) = (self.local / 32, self.local % 32, 16 * self.per);
        [(warp / 2) * wide, (warp % 2) * wide, lane / 4, lane % 4]
    }

    /// Adds the products of one half of shared memory.
    fn multiply(&self, half: Val<'k>, sums: &[[Var<'k>; 4]]) {
        let (k, per, tile) = (self.k, self.per, tile(self.per));
        let [down, across, group, member] = self.corner();
        let (xs, ys) = (half * (tile * LINE), half * (DEPTH * (tile + 8)));
        for d in (0..DEPTH).step_by(STEP as usize) {
            let left: Vec<[Val<'k>; 4]> = (0..per)
                .map(|i| {
                    let at = xs + (down + group + 16 * i) * LINE + member + d;
                    [0, 8 * LINE, 4, 8 * LINE + 4].map(|more| self.xs.get(at + more))
                })
                .collect();
            for j in 0..2 * per {
                let at = ys + (member + d) * (tile + 8) + across + group + 8 * j;
                let right = [0, 4 * (tile + 8)].map(|more| self.ys.get(at + more));
                for (i, left) in left.iter().enumerate() {
                    let sums = sums[i * (2 * per) as usize + j as usize];
                    k.multiply(self.math, sums, *left, right);
                }
            }
        }
    }

    fn store(&self, b: &[Val<'k>], row: Val<'k>, column: Val<'k>, sums: &[[Var<'k>; 4]]) {
        let k = self.k;
        let [down, across, group, member] = self.corner();
        let (first, left) = (row + down + group, column + across + member * 2);
        for (n, sums) in sums.iter().enumerate() {
            let (i, j) = (n as u32 / (2 * self.per), n as u32 % (2 * self.per));
            for (c, sum) in sums.iter().enumerate() {
                let (at_row, at_column) = (
                    first + (16 * i + 8 * (c as u32 / 2)),
                    left + (8 * j + c as u32 % 2),
                );
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
