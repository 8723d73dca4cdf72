//! Attention without tensor cores: a group of threads for each query, scores and weights in shared memory.

use super::{
    AttentionBindings, AttentionSpec, CHUNK, LOCAL, Query, SHOWS_MASKED_SCORES, SHOWS_WEIGHTS,
};
use zbmd_gpu_ir::lang::{Builder, Place, Shared, Ty, Val, Var};
use zbmd_gpu_ir::math::exp;
use zbmd_gpu_ir::tensor::TensorKernelBuilder;

/// Attention without tensor cores, in the making: a group of threads for each query.
pub(super) struct QueryGroups<'r, 'k> {
    k: &'k Builder,
    bindings: &'r AttentionBindings<'k>,
    /// Queries and keys are both multiplied by it.
    root_of_scale: f32,
    shown_mode: i64,
    /// Elements of a value.
    value_size: usize,
    /// Queries of a firing.
    query_total: Val<'k>,
    /// The group's query, scaled.
    query_row: Shared<'k>,
    /// Scores of a chunk's keys, and then their weights.
    weights: Shared<'k>,
    /// One number of each thread, to be joined.
    thread_values: Shared<'k>,
    local: Val<'k>,
    /// −∞.
    hidden_score: Val<'k>,
}

/// The softmax of the keys so far: weights are relative to the largest score so far, and sums are scaled when a larger
/// one comes.
struct RunningSoftmax<'k> {
    largest_score: Var<'k>,
    weight_sum: Var<'k>,
    /// Sums of weighted values: element `local + LOCAL · n` of each thread.
    value_sums: Vec<Var<'k>>,
}

/// Keys that a group goes through at once.
#[derive(Clone, Copy)]
struct KeyChunk<'k> {
    /// The head of keys and values.
    head: Val<'k>,
    first_key: Val<'k>,
    count: Val<'k>,
}

impl<'r, 'k> QueryGroups<'r, 'k> {
    /// Adds the statements to a bench on which everything is bound.
    pub(super) fn add(
        bench: &'k TensorKernelBuilder,
        bindings: &'r AttentionBindings<'k>,
        spec: &AttentionSpec,
        query_total: Val<'k>,
    ) {
        let k = &bench.k;
        let groups = Self {
            k,
            bindings,
            root_of_scale: spec.scale.sqrt() as f32,
            shown_mode: spec.shown_mode,
            value_size: spec.value.size,
            query_total,
            query_row: k.shared(Ty::F32, spec.query.size as u32),
            weights: k.shared(Ty::F32, CHUNK),
            thread_values: k.shared(Ty::F32, LOCAL),
            local: k.place(Place::Local),
            hidden_score: k.f32(f32::NEG_INFINITY),
        };
        k.each_group(k.firings() * query_total, |row| groups.one_query(row));
    }

    /// All statements of query `row` of all firings.
    fn one_query(&self, row: Val<'k>) {
        let k = self.k;
        let bindings = self.bindings;
        let firing = row / self.query_total;
        // Queries are numbered by batch, head and row, rows first.
        let query_number = row % self.query_total;
        let query_row = query_number % bindings.query_count;
        let head_number = query_number / bindings.query_count;
        let head = head_number % bindings.heads;
        let batch = head_number / bindings.heads;
        let query = Query {
            firing,
            batch,
            head,
            row: query_row,
            valid_keys: bindings.lengths.map(|lengths| lengths.index(firing, batch)),
        };
        let key_head = head / bindings.heads_per_key_head;
        self.load_query(query);
        k.barrier();

        let softmax = RunningSoftmax {
            largest_score: k.var(self.hidden_score),
            weight_sum: k.var(k.f32(0.0)),
            value_sums: (0..self.value_size.div_ceil(LOCAL as usize))
                .map(|_| k.var(k.f32(0.0)))
                .collect(),
        };
        let key_count = bindings.key_count;
        k.range(k.u32(0), key_count, k.u32(CHUNK), |first_key| {
            let chunk = KeyChunk {
                head: key_head,
                first_key,
                count: (key_count - first_key).min(k.u32(CHUNK)),
            };
            let largest_score = self.score_chunk(row, query, chunk);
            let kept_share = self.weigh_chunk(chunk, largest_score, &softmax);
            self.add_values(query, chunk, kept_share, &softmax);
            // The next chunk's scores are written over these weights.
            k.barrier();
        });

        self.store_results(row, query, &softmax);
        // The next query is written over this one.
        k.barrier();
    }

    /// The query, scaled, goes to shared memory, because every key meets all of it.
    fn load_query(&self, query: Query<'k>) {
        let k = self.k;
        let queries = self.bindings.queries;
        let query_steps = self.bindings.query_steps;
        let row_start =
            queries.base(query.firing) + query_steps.row_start(query.batch, query.head, query.row);
        k.each_local(self.bindings.keys.size, |d| {
            self.query_row
                .set(d, queries.load(row_start + d) * k.f32(self.root_of_scale));
        });
    }

    /// Writes the scores of a chunk, a key to a thread; the largest one of this thread.
    fn score_chunk(&self, row: Val<'k>, query: Query<'k>, chunk: KeyChunk<'k>) -> Var<'k> {
        let k = self.k;
        let keys = self.bindings.keys;
        let rules = &self.bindings.rules;
        let largest_score = k.var(self.hidden_score);
        k.each_local(chunk.count, |key_in_chunk| {
            let key = chunk.first_key + key_in_chunk;
            let product_sum = k.var(k.f32(0.0));
            keys.with_row(query, chunk.head, key, |tensor, row_start| {
                k.times(keys.size, |d| {
                    let scaled_key = tensor.load(row_start + d) * k.f32(self.root_of_scale);
                    product_sum.set(product_sum.get() + self.query_row.get(d) * scaled_key);
                });
            });

            let capped_score = rules.cap_score(product_sum.get());
            let score = rules.mask_score(query, key, capped_score);
            let shows_scores = self.shown_mode < SHOWS_WEIGHTS;
            if let Some(shown) = self.bindings.shown.filter(|_| shows_scores) {
                let shown_score = match self.shown_mode {
                    SHOWS_MASKED_SCORES => score,
                    _ => capped_score,
                };
                shown.store(row * self.bindings.key_count + key, shown_score);
            }
            self.weights.set(key_in_chunk, score);
            largest_score.set(largest_score.get().max(score));
        });
        largest_score
    }

    /// Makes weights of a chunk's scores, exp(score − largest so far); what the sums before are multiplied by.
    fn weigh_chunk(
        &self,
        chunk: KeyChunk<'k>,
        thread_largest: Var<'k>,
        softmax: &RunningSoftmax<'k>,
    ) -> Val<'k> {
        let k = self.k;
        let largest_before = softmax.largest_score;
        let chunk_largest = self
            .thread_values
            .join(thread_largest.get(), |a, b| a.max(b));
        let largest_score = largest_before.get().max(chunk_largest);
        // −∞ less −∞ is not a number: weights of hidden keys are set to 0 instead.
        let all_hidden = largest_score.eq(self.hidden_score);

        let thread_sum = k.var(k.f32(0.0));
        k.each_local(chunk.count, |key_in_chunk| {
            let score = self.weights.get(key_in_chunk);
            let is_hidden = all_hidden | score.eq(self.hidden_score);
            let weight = k.select(is_hidden, k.f32(0.0), exp(score - largest_score));
            self.weights.set(key_in_chunk, weight);
            thread_sum.set(thread_sum.get() + weight);
        });
        let chunk_sum = self.thread_values.join(thread_sum.get(), |a, b| a + b);

        let none_before = all_hidden | largest_before.get().eq(self.hidden_score);
        let kept_share = k.select(
            none_before,
            k.f32(0.0),
            exp(largest_before.get() - largest_score),
        );
        softmax
            .weight_sum
            .set(softmax.weight_sum.get() * kept_share + chunk_sum);
        largest_before.set(largest_score);
        kept_share
    }

    /// Adds a chunk's weighted values to the sums: each thread has some of the elements, and goes through all keys.
    fn add_values(
        &self,
        query: Query<'k>,
        chunk: KeyChunk<'k>,
        kept_share: Val<'k>,
        softmax: &RunningSoftmax<'k>,
    ) {
        let k = self.k;
        let values = self.bindings.values;
        for (n, value_sum) in softmax.value_sums.iter().enumerate() {
            let d = self.local + n as u32 * LOCAL;
            k.if_(d.lt(values.size), || {
                value_sum.set(value_sum.get() * kept_share);
                k.times(chunk.count, |key_in_chunk| {
                    let weight = self.weights.get(key_in_chunk);
                    // Hidden values may be infinite or not numbers; they do not count.
                    k.if_(weight.ne(k.f32(0.0)), || {
                        let key = chunk.first_key + key_in_chunk;
                        values.with_row(query, chunk.head, key, |tensor, row_start| {
                            let weighted_value = weight * tensor.load(row_start + d);
                            value_sum.set(value_sum.get() + weighted_value);
                        });
                    });
                });
            });
        }
    }

    /// Divides by the sum of the weights; a query that sees no key gets zeros.
    fn store_results(&self, row: Val<'k>, query: Query<'k>, softmax: &RunningSoftmax<'k>) {
        let k = self.k;
        let bindings = self.bindings;
        let sees_none = softmax.weight_sum.get().eq(k.f32(0.0));
        let inverse_sum = k.select(sees_none, k.f32(0.0), k.f32(1.0) / softmax.weight_sum.get());

        let shows_weights = self.shown_mode == SHOWS_WEIGHTS;
        if let Some(shown) = bindings.shown.filter(|_| shows_weights) {
            // All keys are in one chunk: its weights are still there.
            let key_count = bindings.key_count;
            k.each_local(key_count, |key| {
                shown.store(row * key_count + key, self.weights.get(key) * inverse_sum);
            });
        }

        let Some(result) = bindings.result else {
            return;
        };
        let row_start = result.base(query.firing)
            + bindings
                .result_steps
                .row_start(query.batch, query.head, query.row);
        for (n, value_sum) in softmax.value_sums.iter().enumerate() {
            let d = self.local + n as u32 * LOCAL;
            k.if_(d.lt(bindings.values.size), || {
                result.store(row_start + d, value_sum.get() * inverse_sum)
            });
        }
    }
}
