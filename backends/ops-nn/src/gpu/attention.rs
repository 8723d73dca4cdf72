//! Attention with the softmax on the way (Milakov & Gimelshein 2018; Dao et al. 2022): a group of threads for each
//! query goes through the keys in chunks, and no score ever leaves it. Rotary embeddings.

mod cores;
mod groups;

use self::cores::Tiling;
use self::groups::QueryGroups;
use super::super::attention::{AttentionSpec, Heads, MaskRule, RotarySpec, Sight};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::lang::{Ty, Val};
use zbmd_gpu_ir::math::tanh;
use zbmd_gpu_ir::tensor::moves::{Ends, Strided, copy};
use zbmd_gpu_ir::tensor::{Slot, Tensor, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// Threads of a group.
const LOCAL: u32 = 64;
/// Keys of a chunk.
const CHUNK: u32 = 256;
/// Largest query and value: a query is stored in shared memory, sums of values in registers.
const MAX_SIZE: usize = 512;

/// `shown_mode`: output 3 has the scores with their mask.
const SHOWS_MASKED_SCORES: i64 = 2;
/// `shown_mode`: output 3 has the weights.
const SHOWS_WEIGHTS: i64 = 3;

/// How kernels step through heads.
impl Heads {
    /// Steps along batch, head, row and element.
    fn element_steps(&self) -> Vec<isize> {
        let Heads {
            heads,
            len,
            size,
            rows,
        } = *self;
        let all_steps = match rows {
            true => [len * heads * size, size, heads * size, 1],
            false => [heads * len * size, len * size, size, 1],
        };
        all_steps.map(|step| step as isize).to_vec()
    }

    fn bind_steps<'k>(&self, bench: &'k TensorKernelBuilder) -> Result<HeadSteps<'k>, Why> {
        let all_steps = self.element_steps();
        let bind_step = |dimension: usize| bench.size(all_steps[dimension] as usize);
        Ok(HeadSteps {
            batch: bind_step(0)?,
            head: bind_step(1)?,
            row: bind_step(2)?,
        })
    }
}

/// Steps along batch, head and row, in a kernel.
#[derive(Clone, Copy)]
struct HeadSteps<'k> {
    batch: Val<'k>,
    head: Val<'k>,
    row: Val<'k>,
}

impl<'k> HeadSteps<'k> {
    fn row_start(self, batch: Val<'k>, head: Val<'k>, row: Val<'k>) -> Val<'k> {
        batch * self.batch + head * self.head + row * self.row
    }
}

/// What hides keys, or is added to their scores.
struct Mask<'k> {
    tensor: Tensor<'k>,
    truth: bool,
    /// Steps along batch, head, query and key.
    steps: [Val<'k>; 4],
    /// Keys that it covers; the others are hidden.
    keys: Val<'k>,
}

/// Where a query is.
#[derive(Clone, Copy)]
struct Query<'k> {
    firing: Val<'k>,
    batch: Val<'k>,
    head: Val<'k>,
    row: Val<'k>,
    /// Valid keys, where that is given.
    valid_keys: Option<Val<'k>>,
}

/// What decides whether a key is seen by its place.
struct KeySight {
    past: usize,
    queries: usize,
    is_cached: bool,
    sight: Sight,
}

impl KeySight {
    /// Whether a key is hidden from a query; `None` where every key is seen.
    fn hides<'k>(&self, query: Query<'k>, key: Val<'k>) -> Option<Val<'k>> {
        let k = key.builder();
        let key_index = key.cast(Ty::I32);
        // Without a cache, the last of the valid keys is that of the last query.
        let query_offset = match query.valid_keys {
            Some(valid_keys) if !self.is_cached => valid_keys - k.i32(self.queries as i32),
            _ => k.i32(self.past as i32),
        };
        let keys_ahead = key_index - (query.row.cast(Ty::I32) + query_offset);

        // Distances are below 2^30: a larger bound hides nothing.
        let window_bound = |keys: i64| k.i32(keys.min(1 << 30) as i32);
        let Sight {
            causal,
            left,
            right,
        } = self.sight;
        let reasons = [
            causal.then(|| k.i32(0).lt(keys_ahead)),
            (left >= 0).then(|| window_bound(left).lt(-keys_ahead)),
            (right >= 0).then(|| window_bound(right).lt(keys_ahead)),
            query.valid_keys.map(|valid_keys| valid_keys.le(key_index)),
        ];
        reasons.into_iter().flatten().reduce(|a, b| a | b)
    }
}

/// How a product of a query and a key becomes a score.
struct ScoreRules<'k> {
    sight: KeySight,
    mask: Option<Mask<'k>>,
    /// 0 where scores are not capped.
    softcap: f32,
}

impl<'k> ScoreRules<'k> {
    /// softcap · tanh(product / softcap): between −softcap and softcap.
    fn cap_score(&self, product: Val<'k>) -> Val<'k> {
        let k = product.builder();
        match self.softcap > 0.0 {
            true => tanh(product / k.f32(self.softcap)) * k.f32(self.softcap),
            false => product,
        }
    }

    /// A score with its mask; −∞ where the key is hidden.
    fn mask_score(&self, query: Query<'k>, key: Val<'k>, score: Val<'k>) -> Val<'k> {
        let k = key.builder();
        let hidden_score = k.f32(f32::NEG_INFINITY);
        let score = match self.sight.hides(query, key) {
            Some(is_hidden) => k.select(is_hidden, hidden_score, score),
            None => score,
        };
        let Some(mask) = &self.mask else { return score };

        let masked_score = k.var(hidden_score);
        k.if_(key.lt(mask.keys), || {
            let [batch_step, head_step, query_step, key_step] = mask.steps;
            let element = query.batch * batch_step
                + query.head * head_step
                + query.row * query_step
                + key * key_step;
            let mask_value = mask.tensor.get(query.firing, element);
            masked_score.set(match mask.truth {
                true => k.select(mask_value.ne(k.u32(0)), score, hidden_score),
                false => score + mask_value.cast(Ty::F32),
            });
        });
        masked_score.get()
    }
}

/// Keys or values: the rows of the cache, and the new ones behind them.
#[derive(Clone, Copy)]
struct CachedRows<'k> {
    past: Option<Tensor<'k>>,
    new: Tensor<'k>,
    /// Steps of the new rows; past ones are always stored head by head.
    new_steps: HeadSteps<'k>,
    heads: Val<'k>,
    past_len: Val<'k>,
    size: Val<'k>,
}

impl<'k> CachedRows<'k> {
    /// Calls `body` with the tensor that has a row of a head, and where the row begins: twice where there is a cache,
    /// for the two branches of the kernel.
    fn with_row(
        &self,
        query: Query<'k>,
        head: Val<'k>,
        row: Val<'k>,
        body: impl Fn(Tensor<'k>, Val<'k>),
    ) {
        let k = row.builder();
        let Some(past) = self.past else {
            let new_start = self.new.base(query.firing);
            return body(
                self.new,
                new_start + self.new_steps.row_start(query.batch, head, row),
            );
        };

        k.if_else(
            row.lt(self.past_len),
            || {
                let past_row = (query.batch * self.heads + head) * self.past_len + row;
                body(past, past.base(query.firing) + past_row * self.size);
            },
            || {
                let new_row = row - self.past_len;
                let row_start = self.new_steps.row_start(query.batch, head, new_row);
                body(self.new, self.new.base(query.firing) + row_start);
            },
        );
    }
}

/// The operands of attention, and the sizes by which they are indexed, bound to a kernel.
struct AttentionBindings<'k> {
    queries: Tensor<'k>,
    query_steps: HeadSteps<'k>,
    keys: CachedRows<'k>,
    values: CachedRows<'k>,
    rules: ScoreRules<'k>,
    /// Valid keys of each batch.
    lengths: Option<Tensor<'k>>,
    result: Option<Tensor<'k>>,
    result_steps: HeadSteps<'k>,
    /// Output 3: scores or weights.
    shown: Option<Tensor<'k>>,
    heads: Val<'k>,
    query_count: Val<'k>,
    /// Heads of queries that share a head of keys and values.
    heads_per_key_head: Val<'k>,
    /// Keys of the cache and new ones.
    key_count: Val<'k>,
}

/// Two elements of a head that are rotated together.
struct RotatedPair<'k> {
    /// Its number in the head, and in a row of angles.
    pair: Val<'k>,
    /// Whether the column is the second one of it.
    is_second: Val<'k>,
    columns: [Val<'k>; 2],
}

impl<'k> RotatedPair<'k> {
    /// The pair of a column: neighbours where they are interleaved, else elements of the two halves.
    fn of_column(column: Val<'k>, half_size: Val<'k>, is_interleaved: bool) -> Self {
        let k = column.builder();
        if is_interleaved {
            let pair = column >> 1;
            return Self {
                pair,
                is_second: (column & 1).ne(k.u32(0)),
                columns: [pair * 2, pair * 2 + 1],
            };
        }

        let pair = column % half_size;
        Self {
            pair,
            is_second: half_size.le(column),
            columns: [pair, pair + half_size],
        }
    }
}

/// A part of a cache that is written: rows of an operand.
struct CachePart {
    position: usize,
    rows: usize,
    /// Where its first row is written.
    first_row: usize,
    /// See [`Heads::rows`].
    heads_in_rows: bool,
}

impl Gpu<'_> {
    pub(in super::super) fn attention(&self, spec: &AttentionSpec) -> Lowered {
        let query_size = spec.query.size;
        let value_size = spec.value.size;
        if query_size > MAX_SIZE || value_size > MAX_SIZE || query_size == 0 || value_size == 0 {
            return Err(format!(
                "heads of {} elements are too large",
                query_size.max(value_size)
            ));
        }
        if computed(spec.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 attention".to_owned());
        }

        let mut plan = KernelPlan::default();
        if let Some(next_keys) = self.wanted(1) {
            plan = self.write_cache(plan, next_keys, [1, 4], spec.key, spec)?;
        }
        if let Some(next_values) = self.wanted(2) {
            plan = self.write_cache(plan, next_values, [2, 5], spec.value, spec)?;
        }
        if self.wanted(0).is_none() && self.wanted(3).is_none() {
            return Ok(plan);
        }
        self.scores(plan, spec)
    }

    /// Past rows and the new ones behind them, of keys or of values: the operands at `positions` are the new and the
    /// past rows.
    fn write_cache(
        &self,
        mut plan: KernelPlan,
        to: Slot,
        positions: [usize; 2],
        heads: Heads,
        spec: &AttentionSpec,
    ) -> Lowered {
        let [new_position, past_position] = positions;
        let cache = Heads {
            len: spec.total(),
            rows: false,
            ..heads
        };
        // The past comes first, as it was; what is new follows, with its heads beside each other.
        let past_part = CachePart {
            position: past_position,
            rows: spec.past,
            first_row: 0,
            heads_in_rows: false,
        };
        let new_part = CachePart {
            position: new_position,
            rows: heads.len,
            first_row: spec.past,
            heads_in_rows: heads.rows,
        };

        let token_bytes = |slot: Slot| slot.elements * slot.dtype.size_bytes();
        for part in [past_part, new_part] {
            // An empty past has no operand.
            if part.rows == 0 {
                continue;
            }

            let from = self.slot(part.position)?;
            let own = Heads {
                len: part.rows,
                rows: part.heads_in_rows,
                ..heads
            };
            let ends = Ends {
                from: (from.operand, token_bytes(from)),
                constant: from.constant,
                to: (to.operand, token_bytes(to)),
            };
            let elements = Strided {
                size: to.dtype.size_bytes() as usize,
                dims: vec![spec.batch, heads.heads, part.rows, heads.size],
                from: (0, own.element_steps()),
                to: (part.first_row * heads.size, cache.element_steps()),
            };
            plan = copy(plan, ends, &elements)?;
        }
        Ok(plan)
    }

    fn bind_mask<'k>(
        &self,
        bench: &'k TensorKernelBuilder,
        rule: &MaskRule,
    ) -> Result<Mask<'k>, Why> {
        let tensor = bench.reads(self.slot(3)?)?;
        let step = |dimension: usize| bench.size(rule.steps[dimension]);
        Ok(Mask {
            tensor,
            truth: rule.truth,
            steps: [step(0)?, step(1)?, step(2)?, step(3)?],
            keys: bench.size(rule.keys)?,
        })
    }

    /// Keys or values; `past_position` is that of the operand with the cache, if it has rows.
    fn bind_rows<'k>(
        &self,
        bench: &'k TensorKernelBuilder,
        new_position: usize,
        past_position: Option<usize>,
        heads: Heads,
        past_len: Val<'k>,
    ) -> Result<CachedRows<'k>, Why> {
        let new = bench.reads(self.slot(new_position)?)?;
        let past = match past_position.filter(|position| self.opt(*position).is_some()) {
            Some(position) => Some(bench.reads(self.slot(position)?)?),
            None => None,
        };
        Ok(CachedRows {
            past,
            new,
            new_steps: heads.bind_steps(bench)?,
            heads: bench.size(heads.heads)?,
            past_len,
            size: bench.size(heads.size)?,
        })
    }

    fn bind_attention<'k>(
        &self,
        bench: &'k TensorKernelBuilder,
        spec: &AttentionSpec,
    ) -> Result<AttentionBindings<'k>, Why> {
        let queries = bench.reads(self.slot(0)?)?;
        let past_len = bench.size(spec.past)?;
        let past_position = |position: usize| (spec.past > 0).then_some(position);
        let keys = self.bind_rows(bench, 1, past_position(4), spec.key, past_len)?;
        let values = self.bind_rows(bench, 2, past_position(5), spec.value, past_len)?;

        let mask_rule = spec.mask.as_ref();
        let mask = mask_rule
            .map(|rule| self.bind_mask(bench, rule))
            .transpose()?;
        let lengths = self.bind_index(bench, 6)?;
        let result = self.wanted(0).map(|slot| bench.writes(slot)).transpose()?;
        let shown = self.wanted(3).map(|slot| bench.writes(slot)).transpose()?;

        let result_heads = Heads {
            size: spec.value.size,
            ..spec.query
        };
        let sight = KeySight {
            past: spec.past,
            queries: spec.query.len,
            is_cached: spec.is_cached,
            sight: spec.sight,
        };
        Ok(AttentionBindings {
            queries,
            keys,
            values,
            rules: ScoreRules {
                sight,
                mask,
                softcap: spec.softcap as f32,
            },
            lengths,
            result,
            shown,
            query_steps: spec.query.bind_steps(bench)?,
            result_steps: result_heads.bind_steps(bench)?,
            heads: bench.size(spec.query.heads)?,
            query_count: bench.size(spec.query.len)?,
            heads_per_key_head: bench.size(spec.query.heads / spec.key.heads)?,
            key_count: bench.size(spec.total())?,
        })
    }

    /// The kernel of outputs 0 and 3: on tensor cores where factors may be rounded and there are enough queries.
    fn scores(&self, plan: KernelPlan, spec: &AttentionSpec) -> Lowered {
        let shows_weights = spec.shown_mode == SHOWS_WEIGHTS && self.wanted(3).is_some();
        let key_count = spec.total();
        if shows_weights && key_count > CHUNK as usize {
            return Err(format!("weights of {key_count} keys are not kept"));
        }

        let math = self.math(Ty::F32);
        // Weights that are to be shown stay in shared memory as f32, which only the other kernel has.
        let may_tile = self.wanted(0).is_some() && !shows_weights;
        let tiling = Tiling::of(math, spec.query, spec.value).filter(|_| may_tile);
        let threads = tiling.map_or(LOCAL, |tiling| tiling.local());
        let bench = TensorKernelBuilder::new("attention", threads);
        let bindings = self.bind_attention(&bench, spec)?;

        if let (Some(tiling), Some(result)) = (tiling, bindings.result) {
            let tiled = cores::TiledAttention {
                bindings: &bindings,
                result,
                shows_mask: spec.shown_mode == SHOWS_MASKED_SCORES,
                scale: spec.scale as f32,
                batches: bench.size(spec.batch)?,
            };
            cores::attention(&bench, tiling, &tiled);
            let grid = tiling.grid(spec.batch, spec.query);
            return Ok(bench.finish(plan, grid).in_math(math));
        }

        let query_total = spec.batch * spec.query.heads * spec.query.len;
        QueryGroups::add(&bench, &bindings, spec, bench.size(query_total)?);
        let grid = Grid::Groups(Amount::each(query_total as u64));
        Ok(bench.finish(plan, grid))
    }

    /// Rotation of pairs of elements by angles of their position.
    pub(in super::super) fn rotary(&self, spec: &RotarySpec) -> Lowered {
        let heads = spec.heads;
        let slot = self.slot(0)?;
        if computed(slot.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 rotations".to_owned());
        }

        let bench = TensorKernelBuilder::new("rotary embedding", 64);
        let k = &bench.k;
        let source = bench.reads(slot)?;
        let cosines = bench.reads(self.slot(1)?)?;
        let sines = bench.reads(self.slot(2)?)?;
        let positions = self.bind_index(&bench, 3)?;
        let target = bench.writes(self.out(0))?;
        let angle_rows = bench.size(spec.angle_rows)?;
        let head_count = bench.size(heads.heads)?;
        let head_len = bench.size(heads.len)?;
        let head_size = bench.size(heads.size)?;
        let rotated_size = bench.size(spec.rotated)?;
        let half_size = bench.size(spec.rotated / 2)?;
        let elements_per_firing = bench.size(slot.elements as usize)?;

        k.each(k.firings() * elements_per_firing, |n| {
            let firing = n / elements_per_firing;
            let element = n % elements_per_firing;
            let column = element % head_size;
            let row = element / head_size;
            // Position of the row in its sequence, counted through the batches.
            let row_position = match heads.rows {
                true => row / head_count,
                false => (row / (head_len * head_count)) * head_len + row % head_len,
            };
            let row_start = source.base(firing) + (element - column);
            let value = k.var(source.load(row_start + column));

            k.if_(column.lt(rotated_size), || {
                let angle_row = match positions {
                    Some(positions) => {
                        let given = positions.index(firing, row_position);
                        given.max(k.i32(0)).cast(Ty::U32).min(angle_rows - 1)
                    }
                    None => row_position,
                };
                let RotatedPair {
                    pair,
                    is_second,
                    columns: [first_column, second_column],
                } = RotatedPair::of_column(column, half_size, spec.interleaved);

                // (re, im) is turned by the angle: re cos − im sin, re sin + im cos.
                let cosine = cosines.get(firing, angle_row * half_size + pair);
                let sine = sines.get(firing, angle_row * half_size + pair);
                let re = source.load(row_start + first_column);
                let im = source.load(row_start + second_column);
                let turned_im = sine * re + cosine * im;
                let turned_re = cosine * re - sine * im;
                value.set(k.select(is_second, turned_im, turned_re));
            });
            target.store(n, value.get());
        });

        let grid = Grid::Threads(Amount::each(slot.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}
