//! Attention and rotary embeddings.

use zbmd_ir::DType;

use super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token, volume};
use super::elementwise::number_at;
use super::index::strides;
use super::num::Float;
use super::reduce::SoftRow;
use crate::op::OpError;
use crate::simd;

/// Where heads lie in a tensor of queries, keys or values.
#[derive(Clone, Copy)]
struct Heads {
    heads: usize,
    len: usize,
    size: usize,
    /// Whether heads lie side by side in each row (rank 3) rather than one behind the other.
    rows: bool,
}

impl Heads {
    fn at(&self, b: usize, h: usize, i: usize) -> usize {
        if self.rows {
            ((b * self.len + i) * self.heads + h) * self.size
        } else {
            ((b * self.heads + h) * self.len + i) * self.size
        }
    }
}

/// Attention of queries over keys and values with masks, caches and shared heads, as ONNX 23 to 25 have it.
pub(super) fn attention(cx: &Cx<'_>) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let q_heads = cx.args.uint_or("q_num_heads", 0, 0, 1 << 20)? as usize;
    let kv_heads = cx.args.uint_or("kv_num_heads", 0, 0, 1 << 20)? as usize;
    let heads = |i: usize, heads: usize| -> Result<(usize, Heads), OpError> {
        match cx.dims(i)?[..] {
            [b, heads, len, size] => Ok((
                b,
                Heads {
                    heads,
                    len,
                    size,
                    rows: false,
                },
            )),
            [b, len, width] if heads > 0 && width.is_multiple_of(heads) => Ok((
                b,
                Heads {
                    heads,
                    len,
                    size: width / heads,
                    rows: true,
                },
            )),
            _ => Err(cx.refuse(
                i,
                format!("is {}", cx.operand(i)?.ty),
                "[n, heads, length, size], or [n, length, width] with the number of heads",
            )),
        }
    };
    let ((batch, q), (bk, k), (bv, v)) =
        (heads(0, q_heads)?, heads(1, kv_heads)?, heads(2, kv_heads)?);
    if bk != batch
        || bv != batch
        || k.size != q.size
        || k.heads != v.heads
        || k.len != v.len
        || k.heads == 0
        || !q.heads.is_multiple_of(k.heads)
    {
        let message = format!(
            "is {}, the queries {}",
            cx.operand(1)?.ty,
            cx.operand(0)?.ty
        );
        return Err(cx.refuse(
            1,
            message,
            "equal batches and sizes; heads of queries a multiple of those of keys",
        ));
    }
    let past = match (cx.opt(4), cx.opt(5)) {
        (Some(pk), Some(pv)) => {
            let (pk, pv) = (pk.dims(), pv.dims());
            let fits = pk.len() == 4
                && pv.len() == 4
                && pk[..2] == [batch, k.heads]
                && pv[..2] == [batch, k.heads]
                && pk[2] == pv[2]
                && pk[3] == k.size
                && pv[3] == v.size;
            if !fits {
                return Err(cx.refuse(
                    4,
                    format!("is {}", cx.operand(4)?.ty),
                    format!("[{batch}, {}, length, {}]", k.heads, k.size),
                ));
            }
            pk[2]
        }
        (None, None) => 0,
        _ => {
            return Err(cx.refuse(
                0,
                "has one half of a cache",
                "give past keys and past values together",
            ));
        }
    };
    let total = past + k.len;
    let mask = match cx.opt(3) {
        None => None,
        Some(mask) => {
            let dims = mask.dims();
            let kv = dims.last().copied().unwrap_or(1);
            let mut shape = vec![1; 4_usize.saturating_sub(dims.len())];
            shape.extend(&dims);
            let want = [batch, q.heads, q.len];
            if shape.len() != 4
                || kv > total
                || (0..3).any(|d| shape[d] != 1 && shape[d] != want[d])
            {
                return Err(cx.refuse(
                    3,
                    format!("is {}", mask.ty),
                    format!("it must fit [{batch}, {}, {}, {total}]", q.heads, q.len),
                ));
            }
            let own = strides(&shape);
            let steps: [usize; 4] = std::array::from_fn(|d| {
                if shape[d] == 1 && (d < 3 || total > 1) && !(d == 3 && kv == total) {
                    0
                } else {
                    own[d]
                }
            });
            let truth = mask.ty.dtype == DType::Bool;
            Some(Mask {
                steps,
                kv: if kv == 1 && total > 1 && dims.len() < 2 {
                    total
                } else {
                    kv
                },
                truth,
            })
        }
    };
    let scale = cx
        .args
        .float_or("scale", 1.0 / (q.size.max(1) as f64).sqrt())?;
    let body = Attention {
        batch,
        q,
        k,
        v,
        past,
        mask,
        scale: scale.sqrt(),
        softcap: cx.args.float_or("softcap", 0.0)?,
        causal: cx.flag("is_causal", false)?,
        left: cx.args.int_or("left_window_size", -1)?,
        right: cx.args.int_or("right_window_size", -1)?,
        lengths: cx.opt(6).map(|o| super::cx::computed(o.ty.dtype)),
        mode: cx.args.int_or("qk_matmul_output_mode", 0)?,
        wanted: cx.wanted.clone(),
        pair: (cx.opt(4).is_some(), total),
    };
    if let Some(lengths) = cx.opt(6)
        && lengths.dims() != [batch]
    {
        return Err(cx.refuse(
            6,
            format!("is {}", lengths.ty),
            format!("one length for each of {batch}"),
        ));
    }
    let y = if q.rows {
        vec![batch, q.len, q.heads * v.size]
    } else {
        vec![batch, q.heads, q.len, v.size]
    };
    let shape = |o: &usize| match o {
        0 => y.clone(),
        1 => vec![batch, k.heads, total, k.size],
        2 => vec![batch, k.heads, total, v.size],
        _ => vec![batch, q.heads, q.len, total],
    };
    let outs = cx.wanted.iter().map(|o| token(dtype, &shape(o))).collect();
    let flops = 4.0 * (batch * q.heads) as f64 * (q.len * total) as f64 * (q.size + v.size) as f64;
    Ok(Plan::float(dtype, outs, body).flops(flops))
}

struct Mask {
    /// Strides over batch, heads, queries and keys.
    steps: [usize; 4],
    /// Keys that the mask speaks of; the rest is hidden.
    kv: usize,
    truth: bool,
}

struct Attention {
    batch: usize,
    q: Heads,
    k: Heads,
    v: Heads,
    past: usize,
    mask: Option<Mask>,
    /// Root of the scale: queries and keys are both scaled by it.
    scale: f64,
    softcap: f64,
    causal: bool,
    left: i64,
    right: i64,
    /// Type of the number of valid keys of each batch.
    lengths: Option<DType>,
    mode: i64,
    wanted: Vec<usize>,
    /// Whether there is a cache, and all keys.
    pair: (bool, usize),
}

impl Attention {
    /// What is added to the product of query i with key j; −∞ hides it.
    fn bias<F: Float>(
        &self,
        mask: &[u8],
        float: &[F],
        length: Option<i64>,
        (b, h, i, j): (usize, usize, usize, usize),
    ) -> F {
        let hidden = F::LEAST;
        let mut bias = F::ZERO;
        if let Some(m) = &self.mask {
            if j >= m.kv {
                return hidden;
            }
            let at = b * m.steps[0] + h * m.steps[1] + i * m.steps[2] + j * m.steps[3];
            if m.truth {
                if mask[at] == 0 {
                    return hidden;
                }
            } else {
                bias = float[at];
            }
        }
        let offset = match length {
            Some(n) if !self.pair.0 => n - self.q.len as i64,
            _ => self.past as i64,
        };
        let ahead = j as i64 - (i as i64 + offset);
        let out = (self.causal && ahead > 0)
            || (self.left >= 0 && -ahead > self.left)
            || (self.right >= 0 && ahead > self.right)
            || length.is_some_and(|n| j as i64 >= n);
        if out { hidden } else { bias }
    }
}

impl FloatBody for Attention {
    fn run<F: Float>(&self, t: &mut Tensors<'_>) {
        let (q, k, v) = (t.get::<F>(0), t.get::<F>(1), t.get::<F>(2));
        let (mask, pk, pv, lengths) = (t.bytes(3), t.get::<F>(4), t.get::<F>(5), t.bytes(6));
        let float: &[F] = if self.mask.as_ref().is_some_and(|m| !m.truth) {
            t.get::<F>(3)
        } else {
            &[]
        };
        let total = self.pair.1;
        let mut outs: [&mut [F]; 4] = Default::default();
        for (i, &o) in self.wanted.iter().enumerate() {
            outs[o] = t.out::<F>(i);
        }
        let [y, next_k, next_v, shown] = outs;
        // Whether key j is a new one, and where it is.
        let row = |s: Heads, b: usize, h: usize, j: usize| -> (bool, usize) {
            match j.checked_sub(self.past) {
                Some(j) => (true, s.at(b, h, j)),
                None => (false, ((b * s.heads + h) * self.past + j) * s.size),
            }
        };
        for (to, past, now, s) in [(next_k, pk, k, self.k), (next_v, pv, v, self.v)] {
            for (n, to) in to.chunks_exact_mut(s.size.max(1)).enumerate() {
                let (b, h, j) = (n / (s.heads * total), n / total % s.heads, n % total);
                let (new, at) = row(s, b, h, j);
                to.copy_from_slice(&if new { now } else { past }[at..][..s.size]);
            }
        }
        let (scores, weights) = t.scratch::<F>().split_at_mut(total);
        let weights = &mut weights[..total];
        let scale = F::of(self.scale);
        for (b, h, i) in (0..self.batch).flat_map(|b| {
            (0..self.q.heads).flat_map(move |h| (0..self.q.len).map(move |i| (b, h, i)))
        }) {
            let kh = h / (self.q.heads / self.k.heads);
            let length = self.lengths.map(|d| number_at(lengths, d, b) as i64);
            let query = &q[self.q.at(b, h, i)..][..self.q.size];
            let place = ((b * self.q.heads + h) * self.q.len + i) * total;
            let mut seen = false;
            for (j, score) in scores.iter_mut().enumerate() {
                let (new, at) = row(self.k, b, kh, j);
                let key = &if new { k } else { pk }[at..][..self.k.size];
                let dot = query
                    .iter()
                    .zip(key)
                    .fold(F::ZERO, |s, (&q, &k)| s + (q * scale) * (k * scale));
                let bias = self.bias(mask, float, length, (b, h, i, j));
                seen |= bias != F::LEAST;
                let capped = if self.softcap > 0.0 {
                    (dot / F::of(self.softcap)).tanh() * F::of(self.softcap)
                } else {
                    dot
                };
                *score = capped + bias;
                if let Some(s) = shown.get_mut(place + j) {
                    *s = match self.mode {
                        0 => dot,
                        1 => capped,
                        _ => *score,
                    };
                    if self.mode == 0 && self.softcap > 0.0 {
                        *s = capped
                    }
                }
            }
            if seen {
                simd::dispatch(SoftRow {
                    x: scores,
                    y: weights,
                });
            } else {
                weights.fill(F::ZERO);
            }
            if self.mode == 3 && !shown.is_empty() {
                shown[place..place + total].copy_from_slice(weights);
            }
            let at = if self.q.rows {
                ((b * self.q.len + i) * self.q.heads + h) * self.v.size
            } else {
                ((b * self.q.heads + h) * self.q.len + i) * self.v.size
            };
            let Some(y) = y.get_mut(at..at + self.v.size) else {
                continue;
            };
            y.fill(F::ZERO);
            for (j, &w) in weights.iter().enumerate() {
                // Hidden values may be NaN; they do not count.
                if w == F::ZERO {
                    continue;
                }
                let (new, at) = row(self.v, b, kh, j);
                let value = &if new { v } else { pv }[at..][..self.v.size];
                y.iter_mut().zip(value).for_each(|(y, &v)| *y += w * v);
            }
        }
    }

    fn scratch_elements(&self) -> usize {
        2 * self.pair.1
    }
}

/// Rotation of pairs of elements by angles of their position.
pub(super) fn rotary(cx: &Cx<'_>) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    let heads = cx.args.uint_or("num_heads", 0, 0, 1 << 20)? as usize;
    let x = match dims[..] {
        [_, heads, len, size] => Heads {
            heads,
            len,
            size,
            rows: false,
        },
        [_, len, width] if heads > 0 && width.is_multiple_of(heads) => Heads {
            heads,
            len,
            size: width / heads,
            rows: true,
        },
        _ => {
            return Err(cx.refuse(
                0,
                format!("is {}", cx.operand(0)?.ty),
                "[n, heads, length, size], or [n, length, width] with `num_heads`",
            ));
        }
    };
    let turned = match cx.args.uint_or("rotary_embedding_dim", 0, 0, 1 << 30)? as usize {
        0 => x.size,
        n => n,
    };
    let cache = cx.dims(1)?;
    let positions = cx.opt(3).is_some();
    let want = if positions { 2 } else { 3 };
    if turned > x.size
        || !turned.is_multiple_of(2)
        || cache.len() != want
        || cache.last() != Some(&(turned / 2))
        || cx.dims(2)? != cache
    {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            format!("its last dimension is {}", turned / 2),
        ));
    }
    if !positions && cache[..2] != [dims[0], x.len] {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            format!("[{}, {}, {}]", dims[0], x.len, turned / 2),
        ));
    }
    if let Some(at) = cx.opt(3)
        && at.dims() != [dims[0], x.len]
    {
        return Err(cx.refuse(
            3,
            format!("is {}", at.ty),
            format!("[{}, {}]", dims[0], x.len),
        ));
    }
    struct Rotary {
        batch: usize,
        x: Heads,
        half: usize,
        interleaved: bool,
        positions: Option<(DType, usize)>,
    }
    impl FloatBody for Rotary {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (x, cos, sin, at, y) = (
                t.get::<F>(0),
                t.get::<F>(1),
                t.get::<F>(2),
                t.bytes(3),
                t.out::<F>(0),
            );
            y.copy_from_slice(x);
            for (b, h, i) in (0..self.batch).flat_map(|b| {
                (0..self.x.heads).flat_map(move |h| (0..self.x.len).map(move |i| (b, h, i)))
            }) {
                let place = b * self.x.len + i;
                let row = match self.positions {
                    Some((dtype, rows)) => {
                        super::cx::index_at(at, dtype, place).clamp(0, rows as i64 - 1) as usize
                    }
                    None => place,
                };
                let first = self.x.at(b, h, i);
                for j in 0..self.half {
                    let (c, s) = (cos[row * self.half + j], sin[row * self.half + j]);
                    let (p, q) = if self.interleaved {
                        (2 * j, 2 * j + 1)
                    } else {
                        (j, j + self.half)
                    };
                    let (re, im) = (x[first + p], x[first + q]);
                    y[first + p] = c * re - s * im;
                    y[first + q] = s * re + c * im;
                }
            }
        }
    }
    let body = Rotary {
        batch: dims[0],
        x,
        half: turned / 2,
        interleaved: cx.flag("interleaved", false)?,
        positions: cx
            .opt(3)
            .map(|o| (super::cx::computed(o.ty.dtype), cache[0])),
    };
    Ok(Plan::float(dtype, vec![token(dtype, &dims)], body).flops(4.0 * volume(&dims) as f64))
}
