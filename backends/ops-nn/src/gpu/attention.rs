//! Attention with the softmax on the way (Milakov & Gimelshein 2018; Dao et al. 2022): a group of threads for each
//! query goes through the keys in chunks, and no score ever leaves it. Rotary embeddings.

mod cores;

use self::cores::Tiling;
use super::super::attention::{AttentionSpec, Heads, MaskRule, RotarySpec, Sight};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::lang::{Place, Ty, Val};
use zbmd_gpu_ir::math::{exp, tanh};
use zbmd_gpu_ir::tensor::moves::{Ends, Strided, copy};
use zbmd_gpu_ir::tensor::{Slot, Tensor, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// Threads of a group.
const LOCAL: u32 = 64;
/// Keys of a chunk.
const CHUNK: u32 = 256;
/// Largest query and value: a query lies in shared memory, sums of values in registers.
const MAX_SIZE: usize = 512;

/// How kernels step through heads.
impl Heads {
    /// Steps along batch, head, row and element.
    fn steps(&self) -> Vec<isize> {
        let Heads {
            heads,
            len,
            size,
            rows,
        } = *self;
        let all = match rows {
            true => [len * heads * size, size, heads * size, 1],
            false => [heads * len * size, len * size, size, 1],
        };
        all.map(|s| s as isize).to_vec()
    }

    fn on<'k>(&self, bench: &'k TensorKernelBuilder) -> Result<OnHeads<'k>, Why> {
        let steps = self.steps();
        let size = |d: usize| bench.size(steps[d] as usize);
        Ok(OnHeads([size(0)?, size(1)?, size(2)?]))
    }
}

/// Steps along batch, head and row, in a kernel.
#[derive(Clone, Copy)]
struct OnHeads<'k>([Val<'k>; 3]);

impl<'k> OnHeads<'k> {
    fn at(self, b: Val<'k>, h: Val<'k>, i: Val<'k>) -> Val<'k> {
        b * self.0[0] + h * self.0[1] + i * self.0[2]
    }
}

/// What hides keys, or is added to their scores.
struct Mask<'k> {
    tensor: Tensor<'k>,
    truth: bool,
    /// Steps along batch, head, query and key.
    steps: [Val<'k>; 4],
    /// Keys that it speaks of.
    keys: Val<'k>,
}

/// Where a query is.
#[derive(Clone, Copy)]
struct Query<'k> {
    firing: Val<'k>,
    b: Val<'k>,
    h: Val<'k>,
    i: Val<'k>,
    /// Valid keys, where that is given.
    length: Option<Val<'k>>,
}

/// What decides whether a key is seen by its place.
struct KeySight {
    past: usize,
    queries: usize,
    is_cached: bool,
    sight: Sight,
}

impl KeySight {
    /// Whether key j is hidden from a query.
    fn hides<'k>(&self, q: Query<'k>, j: Val<'k>) -> Option<Val<'k>> {
        let k = j.builder();
        let j = j.cast(Ty::I32);
        let offset = match q.length {
            Some(n) if !self.is_cached => n - k.i32(self.queries as i32),
            _ => k.i32(self.past as i32),
        };
        let ahead = j - (q.i.cast(Ty::I32) + offset);
        let bound = |v: i64| k.i32(v.min(1 << 30) as i32);
        let Sight {
            causal,
            left,
            right,
        } = self.sight;
        let all = [
            causal.then(|| k.i32(0).lt(ahead)),
            (left >= 0).then(|| bound(left).lt(-ahead)),
            (right >= 0).then(|| bound(right).lt(ahead)),
            q.length.map(|n| n.le(j)),
        ];
        all.into_iter().flatten().reduce(|a, b| a | b)
    }
}

/// Keys or values: what is there already, and what is new.
#[derive(Clone, Copy)]
struct Cached<'k> {
    past: Option<Tensor<'k>>,
    now: Tensor<'k>,
    on: OnHeads<'k>,
    heads: Val<'k>,
    past_len: Val<'k>,
    size: Val<'k>,
}

impl<'k> Cached<'k> {
    /// Calls `f` with the tensor that has row j, and where the row begins.
    fn row(&self, q: Query<'k>, h: Val<'k>, j: Val<'k>, f: impl Fn(Tensor<'k>, Val<'k>)) {
        let k = j.builder();
        let Some(past) = self.past else {
            return f(self.now, self.now.base(q.firing) + self.on.at(q.b, h, j));
        };
        k.if_else(
            j.lt(self.past_len),
            || {
                let row = (q.b * self.heads + h) * self.past_len + j;
                f(past, past.base(q.firing) + row * self.size);
            },
            || {
                let at = self.on.at(q.b, h, j - self.past_len);
                f(self.now, self.now.base(q.firing) + at);
            },
        );
    }
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
            plan = self.present(plan, next_keys, (1, 4), spec.key, spec)?;
        }
        if let Some(next_values) = self.wanted(2) {
            plan = self.present(plan, next_values, (2, 5), spec.value, spec)?;
        }
        if self.wanted(0).is_none() && self.wanted(3).is_none() {
            return Ok(plan);
        }
        self.scores(plan, spec)
    }

    /// Past and new rows one behind the other.
    fn present(
        &self,
        mut plan: KernelPlan,
        to: Slot,
        (now, before): (usize, usize),
        heads: Heads,
        spec: &AttentionSpec,
    ) -> Lowered {
        let batch = spec.batch;
        let past = spec.past;
        let total = spec.total();
        let whole = Heads {
            len: total,
            rows: false,
            ..heads
        }
        .steps();
        let parts = [(before, past, 0, false), (now, heads.len, past, heads.rows)];
        for (i, len, at, rows) in parts.into_iter().filter(|p| p.1 > 0) {
            let from = self.slot(i)?;
            let own = Heads { len, rows, ..heads }.steps();
            let bytes = |s: Slot| s.elements * s.dtype.size_bytes();
            let ends = Ends {
                from: (from.operand, bytes(from)),
                constant: from.constant,
                to: (to.operand, bytes(to)),
            };
            let what = Strided {
                size: to.dtype.size_bytes() as usize,
                dims: vec![batch, heads.heads, len, heads.size],
                from: (0, own),
                to: (at * heads.size, whole.clone()),
            };
            plan = copy(plan, ends, &what)?;
        }
        Ok(plan)
    }

    fn mask<'k>(&self, bench: &'k TensorKernelBuilder, rule: &MaskRule) -> Result<Mask<'k>, Why> {
        let tensor = bench.reads(self.slot(3)?)?;
        let step = |dimension: usize| bench.size(rule.steps[dimension]);
        Ok(Mask {
            tensor,
            truth: rule.truth,
            steps: [step(0)?, step(1)?, step(2)?, step(3)?],
            keys: bench.size(rule.keys)?,
        })
    }

    fn scores(&self, plan: KernelPlan, spec: &AttentionSpec) -> Lowered {
        let q = spec.query;
        let key = spec.key;
        let value = spec.value;
        let batch = spec.batch;
        let past = spec.past;
        let total = spec.total();
        let root = spec.scale.sqrt() as f32;
        let softcap = spec.softcap as f32;
        let mode = spec.shown_mode;
        if mode == 3 && self.wanted(3).is_some() && total > CHUNK as usize {
            return Err(format!("weights of {total} keys are not kept"));
        }
        let math = self.math(Ty::F32);
        // Weights that are to be shown are kept in f32 there.
        let fits = self.wanted(0).is_some() && !(mode == 3 && self.wanted(3).is_some());
        let tiling = Tiling::of(math, q, value).filter(|_| fits);
        let sight = KeySight {
            past,
            queries: q.len,
            is_cached: spec.is_cached,
            sight: spec.sight,
        };
        let bench = TensorKernelBuilder::new("attention", tiling.map_or(LOCAL, |t| t.local()));
        let k = &bench.k;
        let queries = bench.reads(self.slot(0)?)?;
        let past_len = bench.size(past)?;
        let cached = |now: usize, before: usize, h: Heads| -> Result<Cached<'_>, Why> {
            Ok(Cached {
                now: bench.reads(self.slot(now)?)?,
                past: match self.opt(before).filter(|_| past > 0) {
                    Some(_) => Some(bench.reads(self.slot(before)?)?),
                    None => None,
                },
                on: h.on(&bench)?,
                heads: bench.size(h.heads)?,
                past_len,
                size: bench.size(h.size)?,
            })
        };
        let (keys, values) = (cached(1, 4, key)?, cached(2, 5, value)?);
        let mask = spec.mask.as_ref();
        let mask = mask.map(|rule| self.mask(&bench, rule)).transpose()?;
        let lengths = self
            .opt_slot(6)?
            .map(|s| bench.reads_index(s))
            .transpose()?;
        let y = self.wanted(0).map(|s| bench.writes(s)).transpose()?;
        let shown = self.wanted(3).map(|s| bench.writes(s)).transpose()?;
        let (on_q, on_y) = (
            q.on(&bench)?,
            Heads {
                size: value.size,
                ..q
            }
            .on(&bench)?,
        );
        let (heads_on, len_on) = (bench.size(q.heads)?, bench.size(q.len)?);
        let (share, total_on) = (bench.size(q.heads / key.heads)?, bench.size(total)?);
        if let (Some(tiling), Some(y)) = (tiling, y) {
            let of = cores::Attention {
                queries: (queries, on_q),
                keys,
                values,
                sight: &sight,
                mask: mask.as_ref(),
                lengths,
                y: (y, on_y),
                shown: shown.map(|shown| (shown, mode == 2)),
                scale: spec.scale as f32,
                softcap,
                sizes: [bench.size(batch)?, heads_on, len_on, share, total_on],
            };
            cores::attention(&bench, tiling, &of);
            return Ok(bench.finish(plan, tiling.grid(batch, q)).in_math(math));
        }
        let rows = bench.size(batch * q.heads * q.len)?;
        let query = k.shared(Ty::F32, q.size as u32);
        let weights = k.shared(Ty::F32, CHUNK);
        let meet = k.shared(Ty::F32, LOCAL);
        let local = k.place(Place::Local);
        let low = k.f32(f32::NEG_INFINITY);
        k.each_group(k.firings() * rows, |r| {
            let (firing, at) = (r / rows, r % rows);
            let (i, rest) = (at % len_on, at / len_on);
            let (h, b) = (rest % heads_on, rest / heads_on);
            let length = lengths.map(|l| l.index(firing, b));
            let place = Query {
                firing,
                b,
                h,
                i,
                length,
            };
            let kv_head = h / share;
            let first = queries.base(firing) + on_q.at(b, h, i);
            k.each_local(keys.size, |d| {
                query.set(d, queries.load(first + d) * k.f32(root));
            });
            k.barrier();
            let (top, sum) = (k.var(low), k.var(k.f32(0.0)));
            let per = value.size.div_ceil(LOCAL as usize);
            let sums: Vec<_> = (0..per).map(|_| k.var(k.f32(0.0))).collect();
            k.range(k.u32(0), total_on, k.u32(CHUNK), |from| {
                let count = (total_on - from).min(k.u32(CHUNK));
                let most = k.var(low);
                k.each_local(count, |jj| {
                    let j = from + jj;
                    let dot = k.var(k.f32(0.0));
                    keys.row(place, kv_head, j, |t, row| {
                        k.times(keys.size, |d| {
                            let key = t.load(row + d) * k.f32(root);
                            dot.set(dot.get() + query.get(d) * key);
                        });
                    });
                    let dot = dot.get();
                    let capped = match softcap > 0.0 {
                        true => tanh(dot / k.f32(softcap)) * k.f32(softcap),
                        false => dot,
                    };
                    let score = self::seen(&sight, mask.as_ref(), place, j, capped);
                    if let Some(shown) = shown.filter(|_| mode < 3) {
                        let value = if mode == 2 { score } else { capped };
                        shown.store(r * total_on + j, value);
                    }
                    weights.set(jj, score);
                    most.set(most.get().max(score));
                });
                let here = meet.join(most.get(), |a, b| a.max(b));
                let next = top.get().max(here);
                let none = next.eq(low);
                let part = k.var(k.f32(0.0));
                k.each_local(count, |jj| {
                    let score = weights.get(jj);
                    let hidden = none | score.eq(low);
                    let weight = k.select(hidden, k.f32(0.0), exp(score - next));
                    weights.set(jj, weight);
                    part.set(part.get() + weight);
                });
                let part = meet.join(part.get(), |a, b| a + b);
                let keep = k.select(none | top.get().eq(low), k.f32(0.0), exp(top.get() - next));
                sum.set(sum.get() * keep + part);
                top.set(next);
                for (n, total) in sums.iter().enumerate() {
                    let d = local + n as u32 * LOCAL;
                    k.if_(d.lt(values.size), || {
                        total.set(total.get() * keep);
                        k.times(count, |jj| {
                            let weight = weights.get(jj);
                            // Hidden values may be no numbers; they do not count.
                            k.if_(weight.ne(k.f32(0.0)), || {
                                values.row(place, kv_head, from + jj, |t, row| {
                                    let more = weight * t.load(row + d);
                                    total.set(total.get() + more);
                                });
                            });
                        });
                    });
                }
                k.barrier();
            });
            let none = sum.get().eq(k.f32(0.0));
            let scale = k.select(none, k.f32(0.0), k.f32(1.0) / sum.get());
            if let Some(shown) = shown.filter(|_| mode == 3) {
                k.each_local(total_on, |j| {
                    shown.store(r * total_on + j, weights.get(j) * scale);
                });
            }
            if let Some(y) = y {
                let first = y.base(firing) + on_y.at(b, h, i);
                for (n, total) in sums.iter().enumerate() {
                    let d = local + n as u32 * LOCAL;
                    k.if_(d.lt(values.size), || {
                        y.store(first + d, total.get() * scale)
                    });
                }
            }
            k.barrier();
        });
        let grid = Grid::Groups(Amount::each((batch * q.heads * q.len) as u64));
        Ok(bench.finish(plan, grid))
    }

    /// Rotation of pairs of elements by angles of their position.
    pub(in super::super) fn rotary(&self, spec: &RotarySpec) -> Lowered {
        let x = spec.heads;
        let interleaved = spec.interleaved;
        let slot = self.slot(0)?;
        if computed(slot.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 rotations".to_owned());
        }
        let bench = TensorKernelBuilder::new("rotary embedding", 64);
        let k = &bench.k;
        let source = bench.reads(slot)?;
        let (cos, sin) = (bench.reads(self.slot(1)?)?, bench.reads(self.slot(2)?)?);
        let positions = self
            .opt_slot(3)?
            .map(|s| bench.reads_index(s))
            .transpose()?;
        let target = bench.writes(self.out(0))?;
        let known = bench.size(spec.angle_rows)?;
        let (heads, len, width) = (
            bench.size(x.heads)?,
            bench.size(x.len)?,
            bench.size(x.size)?,
        );
        let (turned, half) = (bench.size(spec.rotated)?, bench.size(spec.rotated / 2)?);
        let each = bench.size(slot.elements as usize)?;
        k.each(k.firings() * each, |n| {
            let (firing, e) = (n / each, n % each);
            let (j, rest) = (e % width, e / width);
            let place = match x.rows {
                true => rest / heads,
                false => (rest / (len * heads)) * len + rest % len,
            };
            let first = source.base(firing) + (e - j);
            let value = k.var(source.load(first + j));
            k.if_(j.lt(turned), || {
                let row = match positions {
                    Some(p) => {
                        let at = p.index(firing, place).max(k.i32(0)).cast(Ty::U32);
                        at.min(known - 1)
                    }
                    None => place,
                };
                let (pair, odd) = match interleaved {
                    true => (j >> 1, (j & 1).ne(k.u32(0))),
                    false => (j % half, half.le(j)),
                };
                let (p, q) = match interleaved {
                    true => (pair * 2, pair * 2 + 1),
                    false => (pair, pair + half),
                };
                let (c, s) = (
                    cos.get(firing, row * half + pair),
                    sin.get(firing, row * half + pair),
                );
                let (re, im) = (source.load(first + p), source.load(first + q));
                value.set(k.select(odd, s * re + c * im, c * re - s * im));
            });
            target.store(n, value.get());
        });
        let grid = Grid::Threads(Amount::each(slot.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}

/// A score with its mask; −∞ where the key is hidden.
fn seen<'k>(
    sight: &KeySight,
    mask: Option<&Mask<'k>>,
    q: Query<'k>,
    j: Val<'k>,
    score: Val<'k>,
) -> Val<'k> {
    let k = j.builder();
    let low = k.f32(f32::NEG_INFINITY);
    let score = match sight.hides(q, j) {
        Some(hidden) => k.select(hidden, low, score),
        None => score,
    };
    let Some(mask) = mask else { return score };
    let value = k.var(low);
    k.if_(j.lt(mask.keys), || {
        let [sb, sh, si, sj] = mask.steps;
        let m = mask
            .tensor
            .get(q.firing, q.b * sb + q.h * sh + q.i * si + j * sj);
        value.set(match mask.truth {
            true => k.select(m.ne(k.u32(0)), score, low),
            false => score + m.cast(Ty::F32),
        });
    });
    value.get()
}
