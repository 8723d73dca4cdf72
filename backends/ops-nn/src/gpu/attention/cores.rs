//! Attention on tensor cores, by the tiling of Dao (2023, FlashAttention-2): each warp has 16 queries, and goes with
//! the other warps of its group through the keys in chunks. Scores, weights and sums stay in its registers.
//!
//! Factors are rounded as they are: queries, keys, values, and the weights of a chunk, which are between 0 and 1,
//! relative to the largest score so far. The scale is applied to the sums, and everything besides products is f32.
//!
//! Every weight of a tile meets every value, and 0 times what is infinite or not a number is not a number, though a
//! hidden value must not count. Such values are therefore noted and multiplied as zeros, and the queries whose weights
//! for them are not 0 get results that are not numbers.
//!
//! Who has which element of a fragment: see [`Stmt::Multiply`](zbmd_gpu_ir::lang::Stmt::Multiply). Of a warp's 32
//! threads, thread 4 i + j is called member j of quad i here.

use super::{AttentionBindings, CachedRows, Heads, Query};
use zbmd_gpu_ir::lang::{Place, Shared, Ty, Val, Var};
use zbmd_gpu_ir::math::exp;
use zbmd_gpu_ir::tensor::{Tensor, TensorKernelBuilder};
use zbmd_gpu_ir::{Amount, Grid, Math};

/// Keys of a chunk.
const CHUNK: u32 = 32;
/// Words of one product along the inner dimension.
const STEP: u32 = 8;
/// Max words of a query: a quarter of them are registers of each thread.
const MAX_WORDS: usize = 128;
/// Max columns of values, half of which are sums in each thread; more are computed by further groups.
const MAX_COLUMNS: usize = 128;
/// Queries up to which a tile is not worth it.
const FEW: usize = 4;
/// Words that a thread loads before it writes the first one of them to shared memory.
const AHEAD: u32 = 8;

/// Which of a thread's two rows, and how many words further: the order of a left fragment.
const LEFT_FRAGMENT: [(usize, u32); 4] = [(0, 0), (1, 0), (0, 4), (1, 4)];

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
    pub(super) fn of(math: Math, queries: Heads, values: Heads) -> Option<Self> {
        let words = queries
            .size
            .div_ceil(factors_per_word(math) as usize)
            .next_multiple_of(STEP as usize);
        if math == Math::F32 || queries.len <= FEW || words > MAX_WORDS {
            return None;
        }

        Some(Self {
            math,
            warps: (queries.len.div_ceil(16).next_power_of_two() as u32).min(4),
            words: words as u32,
            columns: values.size.next_multiple_of(8).min(MAX_COLUMNS) as u32,
            blocks: values.size.div_ceil(MAX_COLUMNS) as u32,
        })
    }

    /// Queries of a tile.
    fn rows(&self) -> u32 {
        16 * self.warps
    }

    /// Threads of a group.
    pub(super) fn local(&self) -> u32 {
        32 * self.warps
    }

    pub(super) fn grid(&self, batch: usize, queries: Heads) -> Grid {
        let tiles = queries.len.div_ceil(self.rows() as usize) * self.blocks as usize;
        Grid::Groups(Amount::each((batch * queries.heads * tiles) as u64))
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

fn factors_per_word(math: Math) -> u32 {
    if math.is_half() { 2 } else { 1 }
}

/// What the kernel on tensor cores has beside what is bound for both kernels.
pub(super) struct TiledAttention<'r, 'k> {
    pub(super) bindings: &'r AttentionBindings<'k>,
    pub(super) result: Tensor<'k>,
    /// Whether scores are shown with their mask.
    pub(super) shows_mask: bool,
    pub(super) scale: f32,
    pub(super) batches: Val<'k>,
}

/// The arrays that a group shares.
#[derive(Clone, Copy)]
struct GroupMemory<'k> {
    /// A chunk's keys, word by word.
    keys: Shared<'k>,
    /// A chunk's values: words along the keys.
    values: Shared<'k>,
    /// Keys with values that are infinite or not numbers: the number of the chunk in which they were found.
    non_finite: Shared<'k>,
    /// Chunks so far, of all tiles of the group: so no flag of an earlier chunk needs to be cleared.
    chunk_number: Var<'k>,
}

/// A group's work in the making.
struct TileGroup<'r, 'k> {
    bench: &'k TensorKernelBuilder,
    tiling: Tiling,
    attention: &'r TiledAttention<'r, 'k>,
    memory: GroupMemory<'k>,
    local: Val<'k>,
    /// Which row and which words of fragments a thread has.
    quad: Val<'k>,
    member: Val<'k>,
    /// Where the tile is; its row is the first one of the thread.
    place: Query<'k>,
    key_head: Val<'k>,
    block: Val<'k>,
    /// First column of the values.
    first_column: Val<'k>,
    /// Keys whose values count.
    valid_keys: Val<'k>,
    /// The two queries that a thread has scores of.
    rows: [Val<'k>; 2],
}

/// Four sums of a thread: see [`Stmt::Multiply`](zbmd_gpu_ir::lang::Stmt::Multiply).
type Sums<'k> = [Var<'k>; 4];

/// A word on its way to shared memory.
struct PlacedWord<'k> {
    place: Val<'k>,
    word: Val<'k>,
}

/// Adds the statements to a bench on which everything is bound.
pub(super) fn attention<'k>(
    bench: &'k TensorKernelBuilder,
    tiling: Tiling,
    attention: &TiledAttention<'_, 'k>,
) {
    let k = &bench.k;
    let bindings = attention.bindings;
    let local = k.place(Place::Local);
    let value_words = CHUNK / factors_per_word(tiling.math) * tiling.value_line();
    let memory = GroupMemory {
        keys: k.shared(Ty::U32, CHUNK * tiling.key_line()),
        values: k.shared(Ty::U32, value_words),
        non_finite: k.shared(Ty::U32, CHUNK),
        chunk_number: k.var(k.u32(0)),
    };
    k.each_local(k.u32(CHUNK), |key| memory.non_finite.set(key, k.u32(0)));
    k.barrier();

    let tiles = (bindings.query_count + (tiling.rows() - 1)) / tiling.rows();
    let group_count = k.firings() * attention.batches * bindings.heads * tiles * tiling.blocks;
    k.each_group(group_count, |group| {
        // Groups are numbered by firing, batch, head, tile and block, blocks first.
        let block = group % tiling.blocks;
        let tile_number = group / tiling.blocks;
        let tile = tile_number % tiles;
        let head_number = tile_number / tiles;
        let head = head_number % bindings.heads;
        let batch_number = head_number / bindings.heads;
        let batch = batch_number % attention.batches;
        let firing = batch_number / attention.batches;

        let given_length = bindings.lengths.map(|lengths| lengths.index(firing, batch));
        let valid_keys = given_length.map_or(bindings.key_count, |length| {
            let length = k
                .select(length.lt(k.i32(0)), k.i32(0), length)
                .cast(Ty::U32);
            length.min(bindings.key_count)
        });

        let warp = local / 32;
        let lane = local % 32;
        let quad = lane / 4;
        let member = lane % 4;
        let first_row = tile * tiling.rows() + warp * 16 + quad;
        let tile_group = TileGroup {
            bench,
            tiling,
            attention,
            memory,
            local,
            quad,
            member,
            place: Query {
                firing,
                batch,
                head,
                row: first_row,
                valid_keys: given_length,
            },
            key_head: head / bindings.heads_per_key_head,
            block,
            first_column: block * tiling.columns,
            valid_keys,
            rows: [first_row, first_row + 8],
        };
        tile_group.run();
    });
}

impl<'k> TileGroup<'_, 'k> {
    /// All statements of a tile.
    fn run(&self) {
        let k = &self.bench.k;
        let queries = self.load_queries();
        let value_sums = self.zero_sums(self.tiling.columns / 8);
        // Of the two queries of a thread: the largest score so far, and the sum of the weights relative to it.
        let largest_scores = [(); 2].map(|()| k.var(k.f32(f32::NEG_INFINITY)));
        let weight_sums = [(); 2].map(|()| k.var(k.f32(0.0)));

        let key_count = self.attention.bindings.key_count;
        k.range(k.u32(0), key_count, k.u32(CHUNK), |first_key| {
            let chunk_number = self.memory.chunk_number;
            chunk_number.set(chunk_number.get() + 1);
            self.store_keys(first_key);
            self.store_values(first_key);
            k.barrier();

            let scores = self.zero_sums(CHUNK / 8);
            self.multiply_keys(&queries, &scores);
            self.score_products(first_key, &scores);
            for r in 0..2 {
                let kept_share = self.weigh_scores(r, &scores, largest_scores[r], weight_sums[r]);
                for sum in value_sums.iter().flat_map(|sums| &sums[2 * r..2 * r + 2]) {
                    sum.set(sum.get() * kept_share);
                }
            }
            self.multiply_values(&scores, &value_sums);
            // The next chunk is written over this one.
            k.barrier();
        });

        for (r, weight_sum) in weight_sums.iter().enumerate() {
            let total_weight = self.join_quad(weight_sum.get(), |a, b| a + b);
            let sees_none = total_weight.eq(k.f32(0.0));
            let inverse_sum = k.select(sees_none, k.f32(0.0), k.f32(1.0) / total_weight);
            self.store_row(r, &value_sums, inverse_sum);
        }
    }

    fn zero_sums(&self, count: u32) -> Vec<Sums<'k>> {
        let k = &self.bench.k;
        (0..count)
            .map(|_| std::array::from_fn(|_| k.var(k.f32(0.0))))
            .collect()
    }

    /// Queries by keys: scores before their scale.
    fn multiply_keys(&self, queries: &[[Val<'k>; 4]], scores: &[Sums<'k>]) {
        for (step, left) in queries.iter().enumerate() {
            for (n, score) in scores.iter().enumerate() {
                let word = (self.quad + 8 * n as u32) * self.tiling.key_line()
                    + (self.member + STEP * step as u32);
                let right = [0, 4].map(|more| self.memory.keys.get(word + more));
                self.bench
                    .k
                    .multiply(self.tiling.math, *score, *left, right);
            }
        }
    }

    /// Makes scores of the products of a thread: those of its two queries with two neighbouring keys of each eight.
    fn score_products(&self, first_key: Val<'k>, scores: &[Sums<'k>]) {
        for (n, products) in scores.iter().enumerate() {
            for (c, product) in products.iter().enumerate() {
                let key = first_key + (self.member * 2 + (8 * n + c % 2) as u32);
                product.set(self.score(self.rows[c / 2], key, product.get()));
            }
        }
    }

    /// Weights by values, added to the sums.
    fn multiply_values(&self, scores: &[Sums<'k>], value_sums: &[Sums<'k>]) {
        let line = self.tiling.value_line();
        for (step, left) in self.weight_fragments(scores).into_iter().enumerate() {
            for (n, sums) in value_sums.iter().enumerate() {
                let word = (self.member + STEP * step as u32) * line + (self.quad + 8 * n as u32);
                let right = [0, 4 * line].map(|more| self.memory.values.get(word + more));
                self.bench.k.multiply(self.tiling.math, *sums, left, right);
            }
        }
    }

    /// A word of factors that begins with inner element `first`; `load` sets a factor, which is 0 where it is not
    /// `inside`.
    fn load_word(
        &self,
        first: Val<'k>,
        inside: &dyn Fn(Val<'k>) -> Val<'k>,
        load: &dyn Fn(Val<'k>, Var<'k>),
    ) -> Val<'k> {
        let k = &self.bench.k;
        let factors: Vec<Val<'k>> = (0..factors_per_word(self.tiling.math))
            .map(|n| {
                let element = first + n;
                let factor = k.var(k.f32(0.0));
                k.if_(inside(element), || load(element, factor));
                factor.get()
            })
            .collect();
        k.factors(self.tiling.math, &factors)
    }

    /// The fragments of a warp's queries, which stay in registers.
    fn load_queries(&self) -> Vec<[Val<'k>; 4]> {
        let bindings = self.attention.bindings;
        let queries = bindings.queries;
        let Query {
            firing,
            batch,
            head,
            ..
        } = self.place;
        let row_starts = self
            .rows
            .map(|row| queries.base(firing) + bindings.query_steps.row_start(batch, head, row));

        let fragments = (0..self.tiling.words / STEP).map(|step| {
            LEFT_FRAGMENT.map(|(r, more)| {
                let first =
                    (self.member + (STEP * step + more)) * factors_per_word(self.tiling.math);
                let has_query = self.rows[r].lt(bindings.query_count);
                let load = |d: Val<'k>, to: Var<'k>| to.set(queries.load(row_starts[r] + d));
                self.load_word(first, &|d| has_query & d.lt(bindings.keys.size), &load)
            })
        });
        fragments.collect()
    }

    /// Writes `count` words to shared memory, shared out among all threads.
    fn fill_shared(&self, to: Shared<'k>, count: u32, load: &dyn Fn(Val<'k>) -> PlacedWord<'k>) {
        let k = &self.bench.k;
        let threads = self.tiling.local();
        // Whole batches, whose loads are all under way at once, then what is left of the words one by one.
        let words_ahead = (count / threads).min(AHEAD);
        let batch = words_ahead.max(1) * threads;
        let batched_count = count / batch * batch;
        if batched_count > 0 {
            k.range(self.local, k.u32(batched_count), k.u32(batch), |first| {
                let loaded: Vec<PlacedWord<'k>> = (0..words_ahead)
                    .map(|n| load(first + n * threads))
                    .collect();
                for PlacedWord { place, word } in loaded {
                    to.set(place, word);
                }
            });
        }

        if batched_count < count {
            let first_left = self.local + batched_count;
            k.range(first_left, k.u32(count), k.u32(threads), |n| {
                let PlacedWord { place, word } = load(n);
                to.set(place, word);
            });
        }
    }

    /// Loads element `d` of a row of keys or values.
    fn load_element(&self, rows: &CachedRows<'k>, row: Val<'k>, d: Val<'k>, to: Var<'k>) {
        rows.with_row(self.place, self.key_head, row, |tensor, row_start| {
            to.set(tensor.load(row_start + d));
        });
    }

    /// A chunk's keys, one behind the other.
    fn store_keys(&self, first_key: Val<'k>) {
        let bindings = self.attention.bindings;
        let keys = bindings.keys;
        let words = self.tiling.words;
        self.fill_shared(self.memory.keys, CHUNK * words, &|n| {
            let key_in_chunk = n / words;
            let word_of_key = n % words;
            let key = first_key + key_in_chunk;
            let first = word_of_key * factors_per_word(self.tiling.math);
            let word = self.load_word(
                first,
                &|d| key.lt(bindings.key_count) & d.lt(keys.size),
                &|d, to| self.load_element(&keys, key, d, to),
            );
            PlacedWord {
                place: key_in_chunk * self.tiling.key_line() + word_of_key,
                word,
            }
        });
    }

    /// A chunk's values: words along the keys, in the order in which a thread has scores.
    fn store_values(&self, first_key: Val<'k>) {
        let values = self.attention.bindings.values;
        let math = self.tiling.math;
        let columns = self.tiling.columns;
        let count = CHUNK / factors_per_word(math) * columns;
        self.fill_shared(self.memory.values, count, &|n| {
            let word_row = n / columns;
            let column = n % columns;
            // A thread has scores of neighbours, which of one word each are factors j and j + 4: see
            // `weight_fragments`.
            let key_in_chunk = match math.is_half() {
                true => word_row * 2,
                false => (word_row / 8) * 8 + ((word_row % 4) * 2 + (word_row % 8) / 4),
            };
            let d = self.first_column + column;
            let word = self.load_word(
                first_key + key_in_chunk,
                &|key| key.lt(self.valid_keys) & d.lt(values.size),
                &|key, to| self.load_element(&values, key, d, to),
            );
            let finite_word = self.note_non_finite(word, key_in_chunk);
            PlacedWord {
                place: word_row * self.tiling.value_line() + column,
                word: finite_word,
            }
        });
    }

    /// A word of values with zeros for those that are infinite or not numbers, whose keys are noted.
    fn note_non_finite(&self, word: Val<'k>, key_in_chunk: Val<'k>) -> Val<'k> {
        let k = word.builder();
        let math = self.tiling.math;
        (0..factors_per_word(math)).fold(word, |word, n| {
            // All bits of the exponent are set.
            let exponent = match math {
                Math::F16 => 0x7c00 << (16 * n),
                Math::Bf16 => 0x7f80 << (16 * n),
                _ => 0x7f80_0000,
            };
            let factor_bits = match math.is_half() {
                true => 0xffff << (16 * n),
                false => u32::MAX,
            };
            let is_non_finite = (word & exponent).eq(k.u32(exponent));
            k.if_(is_non_finite, || {
                self.memory
                    .non_finite
                    .set(key_in_chunk + n, self.memory.chunk_number.get());
            });
            k.select(is_non_finite, word & !factor_bits, word)
        })
    }

    /// The score that a product of a query and a key makes, −∞ where there is no such key.
    fn score(&self, row: Val<'k>, key: Val<'k>, product: Val<'k>) -> Val<'k> {
        let k = &self.bench.k;
        let bindings = self.attention.bindings;
        let query_count = bindings.query_count;
        let key_count = bindings.key_count;
        let scaled = product * k.f32(self.attention.scale);
        let capped_score = bindings.rules.cap_score(scaled);
        // Rows behind the last query stand for it: what they make is not stored.
        let query = Query {
            row: row.min(query_count - 1),
            ..self.place
        };
        let score = bindings.rules.mask_score(query, key, capped_score);

        if let Some(shown) = bindings.shown {
            let Query {
                firing,
                batch,
                head,
                ..
            } = self.place;
            let batch_number = firing * self.attention.batches + batch;
            let shown_row = (batch_number * bindings.heads + head) * query_count + row;
            // All blocks of columns have the same scores: the first one stores them.
            let is_shown = row.lt(query_count) & key.lt(key_count) & self.block.eq(k.u32(0));
            k.if_(is_shown, || {
                let shown_score = match self.attention.shows_mask {
                    true => score,
                    false => capped_score,
                };
                shown.store(shown_row * key_count + key, shown_score);
            });
        }
        k.select(key.lt(key_count), score, k.f32(f32::NEG_INFINITY))
    }

    /// Makes weights of the scores of a thread's query `r`; what its sums before are multiplied by.
    fn weigh_scores(
        &self,
        r: usize,
        scores: &[Sums<'k>],
        largest_so_far: Var<'k>,
        weight_sum: Var<'k>,
    ) -> Val<'k> {
        let k = &self.bench.k;
        let hidden_score = k.f32(f32::NEG_INFINITY);
        let own_scores = || scores.iter().flat_map(|sums| &sums[2 * r..2 * r + 2]);
        let thread_largest =
            own_scores().fold(hidden_score, |largest, score| largest.max(score.get()));
        let largest_before = largest_so_far.get();
        let largest_score = largest_before.max(self.join_quad(thread_largest, |a, b| a.max(b)));

        // −∞ less −∞ is not a number: weights of hidden keys are set to 0 instead.
        let all_hidden = largest_score.eq(hidden_score);
        let none_before = all_hidden | largest_so_far.get().eq(hidden_score);
        let kept_share = k.select(
            none_before,
            k.f32(0.0),
            exp(largest_so_far.get() - largest_score),
        );
        largest_so_far.set(largest_score);

        let mut sum = weight_sum.get() * kept_share;
        for (n, score) in own_scores().enumerate() {
            let is_hidden = all_hidden | score.get().eq(hidden_score);
            let weight = k.select(is_hidden, k.f32(0.0), exp(score.get() - largest_score));
            score.set(weight);
            // A thread's scores are pairs of neighbours, 8 keys apart.
            let key_in_chunk = self.member * 2 + (8 * (n / 2) + n % 2) as u32;
            let noted_chunk = self.memory.non_finite.get(key_in_chunk);
            let is_spoilt = noted_chunk.eq(self.memory.chunk_number.get()) & weight.ne(k.f32(0.0));
            sum = sum + k.select(is_spoilt, k.f32(f32::NAN), weight);
        }
        weight_sum.set(sum);
        kept_share
    }

    /// What the four threads that share a row make of their values.
    fn join_quad(&self, value: Val<'k>, f: impl Fn(Val<'k>, Val<'k>) -> Val<'k>) -> Val<'k> {
        let pair_value = f(value, value.swapped(1));
        f(pair_value, pair_value.swapped(2))
    }

    /// A word of the weights that a thread has in these variables.
    fn weight_word(&self, weights: &[Var<'k>]) -> Val<'k> {
        let factors: Vec<Val<'k>> = weights.iter().map(|weight| weight.get()).collect();
        self.bench.k.factors(self.tiling.math, &factors)
    }

    /// The weights as fragments of a left matrix. Two neighbours of 16 bits are a word of it; a word of 32 bits is one
    /// of them, and the order of keys is that in which the values are stored.
    fn weight_fragments(&self, scores: &[Sums<'k>]) -> Vec<[Val<'k>; 4]> {
        if !self.tiling.math.is_half() {
            let fragment_of =
                |sums: &Sums<'k>| [0, 2, 1, 3].map(|c| self.weight_word(&sums[c..=c]));
            return scores.iter().map(fragment_of).collect();
        }

        let fragments = scores.chunks_exact(2).map(|pair| {
            [
                self.weight_word(&pair[0][..2]),
                self.weight_word(&pair[0][2..]),
                self.weight_word(&pair[1][..2]),
                self.weight_word(&pair[1][2..]),
            ]
        });
        fragments.collect()
    }

    /// Stores the results of a thread's query `r`: its sums divided by that of the weights.
    fn store_row(&self, r: usize, value_sums: &[Sums<'k>], inverse_sum: Val<'k>) {
        let k = &self.bench.k;
        let bindings = self.attention.bindings;
        let result = self.attention.result;
        let Query {
            firing,
            batch,
            head,
            ..
        } = self.place;
        let row = self.rows[r];
        let row_start = result.base(firing) + bindings.result_steps.row_start(batch, head, row);

        for (n, sums) in value_sums.iter().enumerate() {
            for (c, sum) in sums[2 * r..2 * r + 2].iter().enumerate() {
                let d = self.first_column + (self.member * 2 + (8 * n + c) as u32);
                let is_inside = row.lt(bindings.query_count) & d.lt(bindings.values.size);
                k.if_(is_inside, || {
                    result.store(row_start + d, sum.get() * inverse_sum)
                });
            }
        }
    }
}
