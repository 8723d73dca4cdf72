//! Attention and rotary embeddings.

mod spec;

use super::cx::{Cx, FloatBody, Plan, Planned, Tensors, index_at, token, volume};
use super::elementwise::number_at;
use super::num::Float;
use super::reduce::SoftRows;
use zbmd_op::simd;

pub(super) use spec::{AttentionSpec, Heads, MaskRule, RotarySpec, Sight};

/// Attention of queries over keys and values.
pub(super) fn attention(cx: &Cx<'_>, spec: &AttentionSpec) -> Planned {
    let total = spec.total();
    // The result has the layout of the queries and the size of the values.
    let result = Heads {
        size: spec.value.size,
        ..spec.query
    };
    let shape = |output: &usize| match output {
        0 => result.dims(spec.batch),
        1 => vec![spec.batch, spec.key.heads, total, spec.key.size],
        2 => vec![spec.batch, spec.key.heads, total, spec.value.size],
        _ => vec![spec.batch, spec.query.heads, spec.query.len, total],
    };
    let wanted = cx.wanted.iter();
    let outs = wanted
        .map(|output| token(spec.dtype, &shape(output)))
        .collect();

    let body = Attention {
        spec: spec.clone(),
        root_of_scale: spec.scale.sqrt(),
        wanted: cx.wanted.clone(),
    };
    // Queries times keys for the scores, and weights times values: 2 (d_k + d_v) for each pair, softmax beside it.
    let products = (spec.batch * spec.query.heads) as f64 * (spec.query.len * total) as f64;
    let flops = 4.0 * products * (spec.query.size + spec.value.size) as f64;
    Ok(Plan::float(spec.dtype, outs, body).flops(flops))
}

struct Attention {
    spec: AttentionSpec,
    /// Queries and keys are both scaled by it.
    root_of_scale: f64,
    wanted: Vec<usize>,
}

/// Where a score is: batch, head, query and key.
#[derive(Clone, Copy)]
struct ScorePlace {
    batch: usize,
    head: usize,
    query: usize,
    key: usize,
}

/// The operands of a run.
struct AttentionInputs<'a, F> {
    queries: &'a [F],
    keys: Rows<'a, F>,
    values: Rows<'a, F>,
    mask: &'a [u8],
    /// The mask, where its elements are added.
    added: &'a [F],
    lengths: &'a [u8],
}

/// Keys or values: the rows of the cache, and the new ones behind them.
struct Rows<'a, F> {
    past: &'a [F],
    new: &'a [F],
    heads: Heads,
    past_len: usize,
}

impl<F: Float> Rows<'_, F> {
    fn row(&self, batch: usize, head: usize, row: usize) -> &[F] {
        let size = self.heads.size;
        match row.checked_sub(self.past_len) {
            Some(new_row) => &self.new[self.heads.at(batch, head, new_row)..][..size],
            None => {
                let past_row = (batch * self.heads.heads + head) * self.past_len + row;
                &self.past[past_row * size..][..size]
            }
        }
    }

    /// Writes all rows, head by head.
    fn write_all(&self, to: &mut [F], total: usize) {
        let rows = to.chunks_exact_mut(self.heads.size.max(1));
        for (n, row) in rows.enumerate() {
            let batch = n / (self.heads.heads * total);
            let head = n / total % self.heads.heads;
            row.copy_from_slice(self.row(batch, head, n % total));
        }
    }
}

impl Attention {
    /// What is added to the product of a query with a key; −∞ hides it.
    fn bias<F: Float>(
        &self,
        inputs: &AttentionInputs<'_, F>,
        length: Option<i64>,
        place: ScorePlace,
    ) -> F {
        let hidden = F::LEAST;
        let mut bias = F::ZERO;
        if let Some(mask) = &self.spec.mask {
            // ONNX pads a mask that is shorter than the keys with −∞.
            if place.key >= mask.keys {
                return hidden;
            }
            let [batch_step, head_step, query_step, key_step] = mask.steps;
            let element = place.batch * batch_step
                + place.head * head_step
                + place.query * query_step
                + place.key * key_step;
            if !mask.truth {
                bias = inputs.added[element];
            } else if inputs.mask[element] == 0 {
                return hidden;
            }
        }

        // Without a cache, the last of the valid keys is that of the last query.
        let offset = match length {
            Some(valid) if !self.spec.is_cached => valid - self.spec.query.len as i64,
            _ => self.spec.past as i64,
        };
        let key = place.key as i64;
        // Places by which the key is ahead of the query in the whole sequence; negative for earlier keys.
        let ahead = key - (place.query as i64 + offset);
        let sight = self.spec.sight;
        let is_out_of_sight = (sight.causal && ahead > 0)
            || (sight.left >= 0 && -ahead > sight.left)
            || (sight.right >= 0 && ahead > sight.right)
            || length.is_some_and(|valid| key >= valid);
        if is_out_of_sight { hidden } else { bias }
    }

    /// The scores of a query with all keys; whether it sees any of them. `shown` gets what output 3 shows.
    fn score<F: Float>(
        &self,
        inputs: &AttentionInputs<'_, F>,
        first: ScorePlace,
        scores: &mut [F],
        shown: &mut [F],
    ) -> bool {
        let spec = &self.spec;
        let scale = F::of(self.root_of_scale);
        let key_head = self.key_head(first);
        let query_start = spec.query.at(first.batch, first.head, first.query);
        let query = &inputs.queries[query_start..][..spec.query.size];
        let length = spec
            .lengths
            .map(|dtype| number_at(inputs.lengths, dtype, first.batch) as i64);

        let mut sees_any = false;
        for (key, score) in scores.iter_mut().enumerate() {
            let row = inputs.keys.row(first.batch, key_head, key);
            // (√s · q) · (√s · k), as ONNX defines it, and not s · (q · k), which is rounded otherwise.
            let dot = query
                .iter()
                .zip(row)
                .fold(F::ZERO, |sum, (&q, &k)| sum + (q * scale) * (k * scale));
            let bias = self.bias(inputs, length, ScorePlace { key, ..first });
            sees_any |= bias != F::LEAST;

            // softcap · tanh(q · k / softcap) keeps scores within ± softcap; the mask comes behind it.
            let capped = if spec.softcap > 0.0 {
                (dot / F::of(spec.softcap)).tanh() * F::of(spec.softcap)
            } else {
                dot
            };
            *score = capped + bias;
            if let Some(shown) = shown.get_mut(key) {
                // Where nothing is capped, the capped product is the product itself.
                *shown = match spec.shown_mode {
                    0 | 1 => capped,
                    _ => *score,
                };
            }
        }
        sees_any
    }
}

impl Attention {
    /// The operands of a run.
    fn inputs<'a, F: Float>(&self, tensors: &Tensors<'a>) -> AttentionInputs<'a, F> {
        let spec = &self.spec;
        AttentionInputs {
            queries: tensors.get::<F>(0),
            keys: Rows {
                new: tensors.get::<F>(1),
                past: tensors.get::<F>(4),
                heads: spec.key,
                past_len: spec.past,
            },
            values: Rows {
                new: tensors.get::<F>(2),
                past: tensors.get::<F>(5),
                heads: spec.value,
                past_len: spec.past,
            },
            mask: tensors.bytes(3),
            added: match spec.mask {
                Some(mask) if !mask.truth => tensors.get::<F>(3),
                _ => &[],
            },
            lengths: tensors.bytes(6),
        }
    }

    /// The mean of the values by the weights of one query.
    fn weighted_values<F: Float>(
        &self,
        values: &Rows<'_, F>,
        place: ScorePlace,
        weights: &[F],
        result: &mut [F],
    ) {
        result.fill(F::ZERO);
        let key_head = self.key_head(place);
        for (key, &weight) in weights.iter().enumerate() {
            // Hidden values may be NaN; they do not count.
            if weight == F::ZERO {
                continue;
            }
            let value = values.row(place.batch, key_head, key);
            result
                .iter_mut()
                .zip(value)
                .for_each(|(sum, &v)| *sum += weight * v);
        }
    }

    /// The head of keys and values that a head of queries shares with others.
    fn key_head(&self, place: ScorePlace) -> usize {
        let queries_of_key = self.spec.query.heads / self.spec.key.heads;
        place.head / queries_of_key
    }
}

impl FloatBody for Attention {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let spec = &self.spec;
        let total = spec.total();
        let inputs = self.inputs::<F>(tensors);
        let mut outputs: [&mut [F]; 4] = Default::default();
        for (i, &output) in self.wanted.iter().enumerate() {
            outputs[output] = tensors.out::<F>(i);
        }
        let [result, next_keys, next_values, shown] = outputs;
        inputs.keys.write_all(next_keys, total);
        inputs.values.write_all(next_values, total);

        let (scores, rest) = tensors.scratch::<F>().split_at_mut(total);
        let weights = &mut rest[..total];
        let result_heads = Heads {
            size: spec.value.size,
            ..spec.query
        };
        // Queries are numbered by batch, head and place, as the rows of output 3 are.
        let query_count = spec.batch * spec.query.heads * spec.query.len;
        for n in 0..query_count {
            let place = ScorePlace {
                batch: n / (spec.query.heads * spec.query.len),
                head: n / spec.query.len % spec.query.heads,
                query: n % spec.query.len,
                key: 0,
            };
            let shown_range = n * total..(n + 1) * total;
            // Output 3 may not be wanted: its rows are empty then.
            let own_shown = shown.get_mut(shown_range).unwrap_or_default();
            let sees_any = self.score(&inputs, place, scores, own_shown);
            if sees_any {
                simd::dispatch_widest(SoftRows {
                    row_length: scores.len(),
                    input: scores,
                    output: weights,
                });
            } else {
                // A softmax of scores that are all −∞ would be NaN.
                weights.fill(F::ZERO);
            }
            if spec.shown_mode == 3 && !own_shown.is_empty() {
                own_shown.copy_from_slice(weights);
            }

            let start = result_heads.at(place.batch, place.head, place.query);
            if let Some(row) = result.get_mut(start..start + spec.value.size) {
                self.weighted_values(&inputs.values, place, weights, row);
            }
        }
    }

    fn scratch_elements(&self) -> usize {
        2 * self.spec.total()
    }
}

/// Rotation of pairs of elements by angles of their position.
pub(super) fn rotary(_: &Cx<'_>, spec: &RotarySpec) -> Planned {
    let dims = spec.heads.dims(spec.batch);
    let outs = vec![token(spec.dtype, &dims)];
    let body = Rotary { spec: spec.clone() };
    Ok(Plan::float(spec.dtype, outs, body).flops(4.0 * volume(&dims) as f64))
}

struct Rotary {
    spec: RotarySpec,
}

impl Rotary {
    /// The row of cosines and sines for a row of a batch: by its position where that is given.
    fn angle_row(&self, positions: &[u8], place: usize) -> usize {
        match self.spec.positions {
            Some(dtype) => {
                let last_row = self.spec.angle_rows as i64 - 1;
                index_at(positions, dtype, place).clamp(0, last_row) as usize
            }
            None => place,
        }
    }
}

impl FloatBody for Rotary {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let cosines = tensors.get::<F>(1);
        let sines = tensors.get::<F>(2);
        let positions = tensors.bytes(3);
        let output = tensors.out::<F>(0);
        // Elements that are not rotated stay.
        output.copy_from_slice(input);

        let heads = self.spec.heads;
        let pairs = self.spec.rotated / 2;
        // Pairs are neighbours, or are half of what is rotated apart.
        let pair_step = if self.spec.interleaved { 2 } else { 1 };
        let partner_step = if self.spec.interleaved { 1 } else { pairs };
        for n in 0..self.spec.batch * heads.heads * heads.len {
            let batch = n / (heads.heads * heads.len);
            let head = n / heads.len % heads.heads;
            let row = n % heads.len;
            let angle_row = self.angle_row(positions, batch * heads.len + row);
            let first = heads.at(batch, head, row);
            for pair in 0..pairs {
                // (a + ib) · (cos φ + i sin φ): each pair is turned in its plane.
                let cosine = cosines[angle_row * pairs + pair];
                let sine = sines[angle_row * pairs + pair];
                let real_place = first + pair * pair_step;
                let imaginary_place = real_place + partner_step;
                let real = input[real_place];
                let imaginary = input[imaginary_place];
                output[real_place] = cosine * real - sine * imaginary;
                output[imaginary_place] = sine * real + cosine * imaginary;
            }
        }
    }
}
