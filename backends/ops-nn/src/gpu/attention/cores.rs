//! Attention on tensor cores, by the tiling of Dao (2023, FlashAttention-2): each warp has 16 queries, and goes with
//! the other warps of its group through the keys in chunks. Scores, weights and sums stay in its registers.
//!
//! Factors are rounded as they are: queries, keys, values, and the weights of a chunk, which lie between 0 and 1,
//! relative to the largest score so far. The scale is applied to the sums, and everything besides products is f32.
//!
//! Every weight of a tile meets every value, and 0 times what is infinite or no number is no number, though a hidden
//! value must not count. Such values are therefore noted and multiplied as zeros, and of the queries whose weights for
//! them are not 0 all results are no numbers.

use super::{Cached, Heads, KeySight, Mask, OnHeads, Query, seen};
use zbmd_gpu_ir::lang::{Place, Shared, Ty, Val, Var};
use zbmd_gpu_ir::math::{exp, tanh};
use zbmd_gpu_ir::tensor::{Tensor, TensorKernelBuilder};
use zbmd_gpu_ir::{Amount, Grid, Math};

/// Keys of a chunk.
const CHUNK: u32 = 32;
/// Words of one product along the inner dimension.
const STEP: u32 = 8;
/// Words of a query at most: a quarter of them are registers of each thread.
const MAX_WORDS: usize = 128;
/// Columns of values at most, half of which are sums in each thread; more are computed by further groups.
const MAX_COLUMNS: usize = 128;
/// Queries up to which a tile is not worth it.
const FEW: usize = 4;
/// Words that a thread loads before it writes the first one of them to shared memory.
const AHEAD: u32 = 8;

/// How a group shares out its work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiling {
    math: Math,
    warps: u32,
    /// Words of a query or a key, with zeros up to whole products.
    words: u32,
    /// Columns of values of a group, likewise.
    columns: u32,
    /// Groups side by side, each with some columns of the values.
    blocks: u32,
}

impl Tiling {
    /// For queries and values of these sizes; `None` where they are too few or too large.
    pub(super) fn of(math: Math, q: Heads, value: Heads) -> Option<Self> {
        let words = q
            .size
            .div_ceil(each(math) as usize)
            .next_multiple_of(STEP as usize);
        if math == Math::F32 || q.len <= FEW || words > MAX_WORDS {
            return None;
        }
        Some(Self {
            math,
            warps: (q.len.div_ceil(16).next_power_of_two() as u32).min(4),
            words: words as u32,
            columns: value.size.next_multiple_of(8).min(MAX_COLUMNS) as u32,
            blocks: value.size.div_ceil(MAX_COLUMNS) as u32,
        })
    }

    /// Queries of a tile.
    fn rows(&self) -> u32 {
        16 * self.warps
    }

    pub(super) fn local(&self) -> u32 {
        32 * self.warps
    }

    pub(super) fn grid(&self, batch: usize, q: Heads) -> Grid {
        let tiles = q.len.div_ceil(self.rows() as usize) * self.blocks as usize;
        Grid::Groups(Amount::each((batch * q.heads * tiles) as u64))
    }

    /// Words from key to key: 20 i + j differ in all banks for i below 8 and j below 4, and so do other odd multiples
    /// of 4 in the place of 20.
    fn key_line(&self) -> u32 {
        self.words + 4
    }

    /// Words from row to row of values: odd multiples of 8, for the same reason.
    fn value_line(&self) -> u32 {
        8 * ((self.columns / 8) | 1)
    }
}

/// Factors of a word.
fn each(math: Math) -> u32 {
    if math.is_half() { 2 } else { 1 }
}

/// What attention reads and writes, and how scores become what they are.
pub(super) struct Attention<'r, 'k> {
    pub(super) queries: (Tensor<'k>, OnHeads<'k>),
    pub(super) keys: Cached<'k>,
    pub(super) values: Cached<'k>,
    pub(super) sight: &'r KeySight,
    pub(super) mask: Option<&'r Mask<'k>>,
    pub(super) lengths: Option<Tensor<'k>>,
    pub(super) y: (Tensor<'k>, OnHeads<'k>),
    /// Where scores are written, and whether with their mask.
    pub(super) shown: Option<(Tensor<'k>, bool)>,
    pub(super) scale: f32,
    pub(super) softcap: f32,
    /// Batches, heads, queries, heads that share keys, keys.
    pub(super) sizes: [Val<'k>; 5],
}

/// A group's work in the making.
struct Group<'r, 'k> {
    bench: &'k TensorKernelBuilder,
    tiling: Tiling,
    of: &'r Attention<'r, 'k>,
    local: Val<'k>,
    /// Which row and which words of fragments a thread has.
    group: Val<'k>,
    member: Val<'k>,
    ks: Shared<'k>,
    vs: Shared<'k>,
    /// Keys with values that are infinite or no numbers: the number of the chunk in which they were found.
    odd: Shared<'k>,
    /// Chunks so far.
    turn: Var<'k>,
    /// Where the tile is, its queries' rows aside.
    place: Query<'k>,
    kv_head: Val<'k>,
    /// First column of the values.
    column: Val<'k>,
    /// Keys whose values count.
    known: Val<'k>,
    /// The two queries that a thread has scores of.
    rows: [Val<'k>; 2],
}

/// Adds the statements to a bench on which everything is bound.
pub(super) fn attention<'k>(
    bench: &'k TensorKernelBuilder,
    tiling: Tiling,
    of: &Attention<'_, 'k>,
) {
    let k = &bench.k;
    let [batches, heads, len, share, total] = of.sizes;
    let local = k.place(Place::Local);
    let ks = k.shared(Ty::U32, CHUNK * tiling.key_line());
    let vs = k.shared(Ty::U32, CHUNK / each(tiling.math) * tiling.value_line());
    let (odd, turn) = (k.shared(Ty::U32, CHUNK), k.var(k.u32(0)));
    k.each_local(k.u32(CHUNK), |key| odd.set(key, k.u32(0)));
    k.barrier();
    let tiles = (len + (tiling.rows() - 1)) / tiling.rows();
    k.each_group(
        k.firings() * batches * heads * tiles * tiling.blocks,
        |at| {
            let (block, at) = (at % tiling.blocks, at / tiling.blocks);
            let (tile, at) = (at % tiles, at / tiles);
            let (h, at) = (at % heads, at / heads);
            let (b, firing) = (at % batches, at / batches);
            let length = of.lengths.map(|l| l.index(firing, b));
            let known = length.map_or(total, |n| {
                let n = k.select(n.lt(k.i32(0)), k.i32(0), n).cast(Ty::U32);
                n.min(total)
            });
            let (warp, lane) = (local / 32, local % 32);
            let (group, member) = (lane / 4, lane % 4);
            let first = tile * tiling.rows() + warp * 16 + group;
            Group {
                bench,
                tiling,
                of,
                local,
                group,
                member,
                ks,
                vs,
                odd,
                turn,
                place: Query {
                    firing,
                    b,
                    h,
                    i: first,
                    length,
                },
                kv_head: h / share,
                column: block * tiling.columns,
                known,
                rows: [first, first + 8],
            }
            .whole(block);
        },
    );
}

impl<'k> Group<'_, 'k> {
    fn whole(&self, block: Val<'k>) {
        let (k, tiling) = (&self.bench.k, self.tiling);
        let zeros = || -> [Var<'k>; 4] { std::array::from_fn(|_| k.var(k.f32(0.0))) };
        let queries = self.queries();
        let sums: Vec<_> = (0..tiling.columns / 8).map(|_| zeros()).collect();
        let tops = [(); 2].map(|()| k.var(k.f32(f32::NEG_INFINITY)));
        let totals = [(); 2].map(|()| k.var(k.f32(0.0)));
        k.range(k.u32(0), self.of.sizes[4], k.u32(CHUNK), |from| {
            self.turn.set(self.turn.get() + 1);
            self.put_keys(from);
            self.put_values(from);
            k.barrier();
            let scores: Vec<_> = (0..CHUNK / 8).map(|_| zeros()).collect();
            for (s, left) in queries.iter().enumerate() {
                for (n, score) in scores.iter().enumerate() {
                    let at = (self.group + 8 * n as u32) * tiling.key_line()
                        + (self.member + STEP * s as u32);
                    let right = [0, 4].map(|more| self.ks.get(at + more));
                    k.multiply(tiling.math, *score, *left, right);
                }
            }
            for (n, score) in scores.iter().enumerate() {
                for (c, score) in score.iter().enumerate() {
                    let j = from + (self.member * 2 + (8 * n + c % 2) as u32);
                    score.set(self.score(self.rows[c / 2], j, block, score.get()));
                }
            }
            for r in 0..2 {
                let keep = self.weigh(r, &scores, tops[r], totals[r]);
                for sum in sums.iter().flat_map(|s| &s[2 * r..2 * r + 2]) {
                    sum.set(sum.get() * keep);
                }
            }
            for (s, left) in self.weights(&scores).into_iter().enumerate() {
                for (n, sum) in sums.iter().enumerate() {
                    let at = (self.member + STEP * s as u32) * tiling.value_line()
                        + (self.group + 8 * n as u32);
                    let right = [0, 4 * tiling.value_line()].map(|more| self.vs.get(at + more));
                    k.multiply(tiling.math, *sum, left, right);
                }
            }
            // The next chunk is written over this one.
            k.barrier();
        });
        for (r, total) in totals.iter().enumerate() {
            let total = self.quad(total.get(), |a, b| a + b);
            let none = total.eq(k.f32(0.0));
            let scale = k.select(none, k.f32(0.0), k.f32(1.0) / total);
            self.store(r, &sums, scale);
        }
    }

    /// A word of factors that begins with inner element `first`, zeros where `load` is not to be asked.
    fn word(
        &self,
        first: Val<'k>,
        inside: &dyn Fn(Val<'k>) -> Val<'k>,
        load: &dyn Fn(Val<'k>, Var<'k>),
    ) -> Val<'k> {
        let k = &self.bench.k;
        let values: Vec<Val<'k>> = (0..each(self.tiling.math))
            .map(|e| {
                let (at, value) = (first + e, k.var(k.f32(0.0)));
                k.if_(inside(at), || load(at, value));
                value.get()
            })
            .collect();
        k.factors(self.tiling.math, &values)
    }

    /// The fragments of a warp's queries, which stay in registers.
    fn queries(&self) -> Vec<[Val<'k>; 4]> {
        let (tensor, on) = self.of.queries;
        let first = self
            .rows
            .map(|i| tensor.base(self.place.firing) + on.at(self.place.b, self.place.h, i));
        let words = (0..self.tiling.words / STEP).map(|s| {
            [(0, 0), (1, 0), (0, 4), (1, 4)].map(|(r, more): (usize, u32)| {
                let d = (self.member + (STEP * s + more)) * each(self.tiling.math);
                let there = self.rows[r].lt(self.of.sizes[2]);
                let load = |d: Val<'k>, to: Var<'k>| to.set(tensor.load(first[r] + d));
                self.word(d, &|d| there & d.lt(self.of.keys.size), &load)
            })
        });
        words.collect()
    }

    /// Loads `count` words by all threads, and writes each where `put` says.
    fn fill(&self, to: Shared<'k>, count: u32, word: &dyn Fn(Val<'k>) -> (Val<'k>, Val<'k>)) {
        let (k, local) = (&self.bench.k, self.tiling.local());
        // Whole batches, then what is left of the words one by one.
        let ahead = (count / local).min(AHEAD);
        let batch = ahead.max(1) * local;
        let whole = count / batch * batch;
        if whole > 0 {
            k.range(self.local, k.u32(whole), k.u32(batch), |at| {
                let words: Vec<_> = (0..ahead).map(|n| word(at + n * local)).collect();
                words
                    .into_iter()
                    .for_each(|(place, word)| to.set(place, word));
            });
        }
        if whole < count {
            k.range(self.local + whole, k.u32(count), k.u32(local), |at| {
                let (place, word) = word(at);
                to.set(place, word);
            });
        }
    }

    /// A chunk's keys, one behind the other.
    fn put_keys(&self, from: Val<'k>) {
        let (keys, words) = (self.of.keys, self.tiling.words);
        self.fill(self.ks, CHUNK * words, &|at| {
            let (key, w) = (at / words, at % words);
            let j = from + key;
            let load = |d: Val<'k>, to: Var<'k>| {
                keys.row(self.place, self.kv_head, j, |t, row| {
                    to.set(t.load(row + d))
                });
            };
            let first = w * each(self.tiling.math);
            let word = self.word(first, &|d| j.lt(self.of.sizes[4]) & d.lt(keys.size), &load);
            (key * self.tiling.key_line() + w, word)
        });
    }

    /// A chunk's values: words along the keys, as the scores of a thread lie.
    fn put_values(&self, from: Val<'k>) {
        let (values, columns, math) = (self.of.values, self.tiling.columns, self.tiling.math);
        self.fill(self.vs, CHUNK / each(math) * columns, &|at| {
            let (row, c) = (at / columns, at % columns);
            // A thread has scores of neighbours, which of one word each are factors j and j + 4: see `weights`.
            let first = match math.is_half() {
                true => row * 2,
                false => (row / 8) * 8 + ((row % 4) * 2 + (row % 8) / 4),
            };
            let d = self.column + c;
            let load = |j: Val<'k>, to: Var<'k>| {
                values.row(self.place, self.kv_head, j, |t, row| {
                    to.set(t.load(row + d))
                });
            };
            let word = self.word(
                from + first,
                &|j| j.lt(self.known) & d.lt(values.size),
                &load,
            );
            let k = word.builder();
            let whole = (0..each(math)).fold(word, |word, e| {
                let exponent = match math {
                    Math::F16 => 0x7c00 << (16 * e),
                    Math::Bf16 => 0x7f80 << (16 * e),
                    _ => 0x7f80_0000,
                };
                let factor = if math.is_half() {
                    0xffff << (16 * e)
                } else {
                    u32::MAX
                };
                let odd = (word & exponent).eq(k.u32(exponent));
                k.if_(odd, || self.odd.set(first + e, self.turn.get()));
                k.select(odd, word & !factor, word)
            });
            (row * self.tiling.value_line() + c, whole)
        });
    }

    /// What a product of query i and key j counts, −∞ where there is no such key.
    fn score(&self, i: Val<'k>, j: Val<'k>, block: Val<'k>, product: Val<'k>) -> Val<'k> {
        let (k, of) = (&self.bench.k, self.of);
        let [_, heads, len, _, total] = of.sizes;
        let scaled = product * k.f32(of.scale);
        let capped = match of.softcap > 0.0 {
            true => tanh(scaled / k.f32(of.softcap)) * k.f32(of.softcap),
            false => scaled,
        };
        // Rows behind the last query stand for it: what they make is not stored.
        let place = Query {
            i: i.min(len - 1),
            ..self.place
        };
        let score = seen(of.sight, of.mask, place, j, capped);
        if let Some((shown, masked)) = of.shown {
            let Query { firing, b, h, .. } = self.place;
            let row = ((firing * of.sizes[0] + b) * heads + h) * len + i;
            k.if_(i.lt(len) & j.lt(total) & block.eq(k.u32(0)), || {
                shown.store(row * total + j, if masked { score } else { capped });
            });
        }
        k.select(j.lt(total), score, k.f32(f32::NEG_INFINITY))
    }

    /// Makes weights of the scores of a thread's query `r`; what is left of the sums before.
    fn weigh(&self, r: usize, scores: &[[Var<'k>; 4]], top: Var<'k>, total: Var<'k>) -> Val<'k> {
        let (k, low) = (&self.bench.k, self.bench.k.f32(f32::NEG_INFINITY));
        let own = || scores.iter().flat_map(|s| &s[2 * r..2 * r + 2]);
        let most = own().fold(low, |most, score| most.max(score.get()));
        let next = top.get().max(self.quad(most, |a, b| a.max(b)));
        let none = next.eq(low);
        let keep = k.select(none | top.get().eq(low), k.f32(0.0), exp(top.get() - next));
        top.set(next);
        let mut sum = total.get() * keep;
        for (n, score) in own().enumerate() {
            let hidden = none | score.get().eq(low);
            let weight = k.select(hidden, k.f32(0.0), exp(score.get() - next));
            score.set(weight);
            // As the scores of a thread lie: pairs of neighbours, 8 keys apart.
            let odd = self.odd.get(self.member * 2 + (8 * (n / 2) + n % 2) as u32);
            let spoilt = odd.eq(self.turn.get()) & weight.ne(k.f32(0.0));
            sum = sum + k.select(spoilt, k.f32(f32::NAN), weight);
        }
        total.set(sum);
        keep
    }

    /// What the four threads that share a row make of their values.
    fn quad(&self, value: Val<'k>, f: impl Fn(Val<'k>, Val<'k>) -> Val<'k>) -> Val<'k> {
        let value = f(value, value.swapped(1));
        f(value, value.swapped(2))
    }

    /// The weights as fragments of a left matrix. Two neighbours of 16 bits are a word of it; a word of 32 bits is one
    /// of them, and the order of keys is that in which the values lie.
    fn weights(&self, scores: &[[Var<'k>; 4]]) -> Vec<[Val<'k>; 4]> {
        let (k, math) = (&self.bench.k, self.tiling.math);
        let word = |all: &[Var<'k>]| {
            let all: Vec<Val<'k>> = all.iter().map(|v| v.get()).collect();
            k.factors(math, &all)
        };
        match math.is_half() {
            true => scores
                .chunks_exact(2)
                .map(|s| {
                    [
                        word(&s[0][..2]),
                        word(&s[0][2..]),
                        word(&s[1][..2]),
                        word(&s[1][2..]),
                    ]
                })
                .collect(),
            false => scores
                .iter()
                .map(|s| [0, 2, 1, 3].map(|c| word(&s[c..=c])))
                .collect(),
        }
    }

    fn store(&self, r: usize, sums: &[[Var<'k>; 4]], scale: Val<'k>) {
        let (k, (y, on)) = (&self.bench.k, self.of.y);
        let Query { firing, b, h, .. } = self.place;
        let i = self.rows[r];
        let first = y.base(firing) + on.at(b, h, i);
        for (n, sums) in sums.iter().enumerate() {
            for (c, sum) in sums[2 * r..2 * r + 2].iter().enumerate() {
                let d = self.column + (self.member * 2 + (8 * n + c) as u32);
                let there = i.lt(self.of.sizes[2]) & d.lt(self.of.values.size);
                k.if_(there, || y.store(first + d, sum.get() * scale));
            }
        }
    }
}
