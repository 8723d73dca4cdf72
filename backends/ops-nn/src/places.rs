//! Ops that take elements from, or put them at, places that indices say: all dtypes, by the size of their elements.

use zbmd_ir::{DType, TokenType};

use super::cx::{AxisSpec, Cx, Plan, Planned, Tensors, index_at, token, volume};
use super::index::strides;
use super::movement::size_of_dtype;
use super::reduce::around;
use zbmd_op::OpError;

/// Places along an axis of operand 0 that operand 1 names.
pub(super) fn gather(cx: &Cx<'_>, spec: &AxisSpec) -> Planned {
    let (from, places) = (cx.dims(0)?, cx.dims(1)?);
    let axis = spec.axis;
    let size = size_of_dtype(cx, 0)?;
    let (outer, n, inner) = around(&from, axis);
    let out = [&from[..axis], &places, &from[axis + 1..]].concat();
    let (count, itype) = (volume(&places), cx.dtype(1)?);
    let bytes = inner * size;
    Ok(Plan::new(
        vec![token(cx.dtype(0)?, &out)],
        move |t: &mut Tensors<'_>| {
            let (x, at, y) = (t.bytes(0), t.bytes(1), t.out_bytes(0));
            for o in 0..outer {
                for i in 0..count {
                    let p = wrap(index_at(at, itype, i), n);
                    y[(o * count + i) * bytes..][..bytes]
                        .copy_from_slice(&x[(o * n + p) * bytes..][..bytes]);
                }
            }
        },
    )
    .flops(0.25 * volume(&out) as f64))
}

/// An index that may count from the end; what lies outside is brought to the nearest place, never read there.
fn wrap(i: i64, n: usize) -> usize {
    let n = n as i64;
    let i = if i < 0 { i.saturating_add(n) } else { i };
    i.clamp(0, (n - 1).max(0)) as usize
}

pub(super) fn gather_elements(cx: &Cx<'_>, spec: &AxisSpec) -> Planned {
    let (from, out) = (cx.dims(0)?, cx.dims(1)?);
    let axis = spec.axis;
    if out.len() != from.len() || (0..from.len()).any(|d| d != axis && out[d] > from[d]) {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            format!("`x` is {}", cx.operand(0)?.ty),
        ));
    }
    let (size, itype) = (size_of_dtype(cx, 0)?, cx.dtype(1)?);
    let (own, to, n) = (strides(&from), strides(&out), from[axis]);
    Ok(Plan::new(
        vec![token(cx.dtype(0)?, &out)],
        move |t: &mut Tensors<'_>| {
            let (x, at, y) = (t.bytes(0), t.bytes(1), t.out_bytes(0));
            for (i, y) in y.chunks_exact_mut(size).enumerate() {
                let mut rest = i;
                let mut from = wrap(index_at(at, itype, i), n) * own[axis];
                for d in 0..to.len() {
                    let k = rest / to[d];
                    rest %= to[d];
                    from += if d == axis { 0 } else { k * own[d] };
                }
                y.copy_from_slice(&x[from * size..][..size]);
            }
        },
    ))
}

/// Blocks at lists of indices.
pub(super) struct GatherBlocksSpec {
    /// Dimensions that indices and data share.
    pub(super) batch_dims: usize,
}

impl GatherBlocksSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let batch_dims = cx.args.uint_or("batch_dims", 0, 0, 8)? as usize;
        Ok(Self { batch_dims })
    }
}

pub(super) fn gather_nd(cx: &Cx<'_>, spec: &GatherBlocksSpec) -> Planned {
    let (from, places) = (cx.dims(0)?, cx.dims(1)?);
    let batch = spec.batch_dims;
    let Some((&depth, lead)) = places.split_last() else {
        return Err(cx.refuse(1, "is a scalar", "it takes lists of indices"));
    };
    if batch > lead.len()
        || batch + depth > from.len()
        || from[..batch.min(from.len())] != lead[..batch]
    {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            format!("`x` is {}", cx.operand(0)?.ty),
        ));
    }
    let (size, itype) = (size_of_dtype(cx, 0)?, cx.dtype(1)?);
    let own = strides(&from);
    let block = volume(&from[batch + depth..]) * size;
    let out = [lead, &from[batch + depth..]].concat();
    let (per, batch_step) = (volume(&lead[batch..]), volume(&from[batch..]));
    let sizes: Vec<(usize, usize)> = (batch..batch + depth).map(|d| (from[d], own[d])).collect();
    Ok(Plan::new(
        vec![token(cx.dtype(0)?, &out)],
        move |t: &mut Tensors<'_>| {
            let (x, at, y) = (t.bytes(0), t.bytes(1), t.out_bytes(0));
            for (i, y) in y.chunks_exact_mut(block.max(1)).enumerate() {
                let start = i / per.max(1) * batch_step;
                let place = sizes
                    .iter()
                    .enumerate()
                    .map(|(j, &(n, s))| wrap(index_at(at, itype, i * depth + j), n) * s);
                let from = (start + place.sum::<usize>()) * size;
                y.copy_from_slice(&x[from..][..block]);
            }
        },
    ))
}

/// How an update joins what is there.
#[derive(Clone, Copy)]
pub(super) enum Join {
    Set,
    Add,
    Mul,
    Max,
    Min,
}

fn join_of(cx: &Cx<'_>) -> Result<Join, OpError> {
    Ok(match cx.args.word_opt("reduction")?.unwrap_or("none") {
        "none" => Join::Set,
        "add" => Join::Add,
        "mul" => Join::Mul,
        "max" => Join::Max,
        "min" => Join::Min,
        other => {
            return Err(cx.args.unknown_word(
                "reduction",
                other,
                &["none", "add", "mul", "max", "min"],
            ));
        }
    })
}

fn joined<T: super::num::Num>(join: Join, old: T, new: T) -> T {
    match join {
        Join::Set => new,
        Join::Add => old.add(new),
        Join::Mul => old.mul(new),
        Join::Max => old.max(new),
        Join::Min => old.min(new),
    }
}

/// Updates put where indices say.
pub(super) struct ScatterSpec {
    pub(super) join: Join,
    /// The axis of single elements; none where lists of indices name blocks.
    pub(super) axis: Option<usize>,
}

impl ScatterSpec {
    pub(super) fn of_elements(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            axis: Some(cx.axis_param(0, cx.dims(0)?.len())?),
            join: join_of(cx)?,
        })
    }

    pub(super) fn of_blocks(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            axis: None,
            join: join_of(cx)?,
        })
    }
}

pub(super) fn scatter_elements(cx: &Cx<'_>, spec: &ScatterSpec) -> Planned {
    let (from, places) = (cx.dims(0)?, cx.dims(1)?);
    let axis = spec.axis.unwrap_or(0);
    let fits =
        places.len() == from.len() && (0..from.len()).all(|d| d == axis || places[d] <= from[d]);
    if !fits || cx.dims(2)? != places || cx.dtype(2)? != cx.dtype(0)? {
        return Err(cx.refuse(
            2,
            format!("is {}", cx.operand(2)?.ty),
            "updates and indices have one shape within that of `x`",
        ));
    }
    let (join, itype) = (spec.join, super::cx::computed(cx.dtype(1)?));
    let (own, to, n) = (strides(&from), strides(&places), from[axis]);
    fn make<T: super::num::Num>(
        out: TokenType,
        join: Join,
        itype: DType,
        (own, to, n, axis): (Vec<usize>, Vec<usize>, usize, usize),
    ) -> Planned {
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            let (x, at, u, y) = (t.get::<T>(0), t.bytes(1), t.get::<T>(2), t.out::<T>(0));
            y.copy_from_slice(x);
            for (i, &u) in u.iter().enumerate() {
                let mut rest = i;
                let mut into = wrap(index_at(at, itype, i), n) * own[axis];
                for d in 0..to.len() {
                    let k = rest / to[d];
                    rest %= to[d];
                    into += if d == axis { 0 } else { k * own[d] };
                }
                y[into] = joined(join, y[into], u);
            }
        }))
    }
    super::cx::by_num!(
        cx.dtype(0)?,
        make(cx.operand(0)?.ty.clone(), join, itype, (own, to, n, axis))
    )
}

pub(super) fn scatter_nd(cx: &Cx<'_>, spec: &ScatterSpec) -> Planned {
    let (from, places) = (cx.dims(0)?, cx.dims(1)?);
    let Some((&depth, lead)) = places.split_last() else {
        return Err(cx.refuse(1, "is a scalar", "it takes lists of indices"));
    };
    if depth > from.len()
        || cx.dims(2)? != [lead, &from[depth..]].concat()
        || cx.dtype(2)? != cx.dtype(0)?
    {
        return Err(cx.refuse(
            2,
            format!("is {}", cx.operand(2)?.ty),
            "one block of `x` for each list of indices",
        ));
    }
    let (join, itype, own) = (spec.join, super::cx::computed(cx.dtype(1)?), strides(&from));
    let block = volume(&from[depth..]);
    let sizes: Vec<(usize, usize)> = (0..depth).map(|d| (from[d], own[d])).collect();
    fn make<T: super::num::Num>(
        out: TokenType,
        join: Join,
        itype: DType,
        sizes: Vec<(usize, usize)>,
        block: usize,
    ) -> Planned {
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            let (x, at, u, y) = (t.get::<T>(0), t.bytes(1), t.get::<T>(2), t.out::<T>(0));
            y.copy_from_slice(x);
            let depth = sizes.len();
            for (i, u) in u.chunks_exact(block.max(1)).enumerate() {
                let into: usize = sizes
                    .iter()
                    .enumerate()
                    .map(|(j, &(n, s))| wrap(index_at(at, itype, i * depth + j), n) * s)
                    .sum();
                y[into..into + block]
                    .iter_mut()
                    .zip(u)
                    .for_each(|(y, &u)| *y = joined(join, *y, u));
            }
        }))
    }
    super::cx::by_num!(
        cx.dtype(0)?,
        make(cx.operand(0)?.ty.clone(), join, itype, sizes, block)
    )
}

/// Writes an update into a cache along an axis, for each batch where its index says.
pub(super) struct CacheWriteSpec {
    pub(super) axis: usize,
    /// Whether what runs over the end goes on at the beginning.
    pub(super) circular: bool,
}

impl CacheWriteSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            axis: cx.axis_param(-2, cx.dims(0)?.len())?,
            circular: cx.args.word_opt("mode")? == Some("circular"),
        })
    }
}

pub(super) fn tensor_scatter(cx: &Cx<'_>, spec: &CacheWriteSpec) -> Planned {
    let (from, update) = (cx.dims(0)?, cx.dims(1)?);
    let axis = spec.axis;
    let fits = update.len() == from.len()
        && axis > 0
        && (0..from.len()).all(|d| {
            if d == axis {
                update[d] <= from[d]
            } else {
                update[d] == from[d]
            }
        });
    if !fits || cx.dtype(1)? != cx.dtype(0)? {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            format!("the cache is {}", cx.operand(0)?.ty),
        ));
    }
    let circular = spec.circular;
    let itype = cx.opt(2).map_or(DType::I64, |o| o.ty.dtype);
    if cx.opt(2).is_some() {
        super::cx::expect_count(cx, 2, &[from[0]], itype)?;
    }
    let (outer, n, inner) = around(&from, axis);
    let (count, per_batch) = (update[axis], outer / from[0].max(1));
    let bytes = inner * size_of_dtype(cx, 0)?;
    Ok(Plan::new(
        vec![cx.operand(0)?.ty.clone()],
        move |t: &mut Tensors<'_>| {
            let (x, u, at, y) = (t.bytes(0), t.bytes(1), t.bytes(2), t.out_bytes(0));
            y.copy_from_slice(x);
            for o in 0..outer {
                let start = if at.is_empty() {
                    0
                } else {
                    index_at(at, itype, o / per_batch.max(1))
                };
                for k in 0..count {
                    let place = start.saturating_add(k as i64);
                    let place = if circular {
                        place.rem_euclid(n as i64) as usize
                    } else {
                        wrap(place.max(0), n)
                    };
                    y[(o * n + place) * bytes..][..bytes]
                        .copy_from_slice(&u[(o * count + k) * bytes..][..bytes]);
                }
            }
        },
    ))
}

pub(super) fn one_hot(cx: &Cx<'_>, spec: &AxisSpec) -> Planned {
    let at = cx.dims(0)?;
    let depth = cx
        .floats(1)?
        .and_then(|d| d.first().copied())
        .unwrap_or(0.0);
    if !(1.0..=1e9).contains(&depth) {
        return Err(cx.refuse(1, format!("is {depth}"), "a depth of at least 1"));
    }
    let axis = spec.axis;
    let (depth, itype) = (depth as usize, cx.dtype(0)?);
    let mut out = at.clone();
    out.insert(axis, depth);
    let (outer, inner) = (volume(&at[..axis]), volume(&at[axis..]));
    let size = size_of_dtype(cx, 2)?;
    super::cx::expect_count(cx, 2, &[2], cx.dtype(2)?)?;
    Ok(Plan::new(
        vec![token(cx.dtype(2)?, &out)],
        move |t: &mut Tensors<'_>| {
            let (at, values, y) = (t.bytes(0), t.bytes(2), t.out_bytes(0));
            y.chunks_exact_mut(size)
                .for_each(|y| y.copy_from_slice(&values[..size]));
            for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
                let place = index_at(at, itype, o * inner + i);
                let place = if place < 0 {
                    place.saturating_add(depth as i64)
                } else {
                    place
                };
                if (0..depth as i64).contains(&place) {
                    let to = (o * depth + place as usize) * inner + i;
                    y[to * size..][..size].copy_from_slice(&values[size..2 * size]);
                }
            }
        },
    ))
}

/// The beginnings of sequences reversed.
pub(super) struct ReverseSpec {
    /// 0 or 1.
    pub(super) batch_axis: usize,
    time_axis: usize,
}

impl ReverseSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            batch_axis: cx.args.uint_or("batch_axis", 1, 0, 1)? as usize,
            time_axis: cx.args.uint_or("time_axis", 0, 0, 1)? as usize,
        })
    }
}

pub(super) fn reverse_sequence(cx: &Cx<'_>, spec: &ReverseSpec) -> Planned {
    let from = cx.dims(0)?;
    let batch = spec.batch_axis;
    let time = spec.time_axis;
    if from.len() < 2 || batch == time || cx.dims(1)? != [from[batch]] {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            "one length for each batch; different axes",
        ));
    }
    let (size, itype) = (size_of_dtype(cx, 0)?, cx.dtype(1)?);
    let block = volume(&from[2..]) * size;
    let (rows, columns, steps) = (from[0], from[1], from[time]);
    Ok(Plan::new(
        vec![cx.operand(0)?.ty.clone()],
        move |t: &mut Tensors<'_>| {
            let (x, at, y) = (t.bytes(0), t.bytes(1), t.out_bytes(0));
            for (r, c) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
                let (b, k) = if batch == 0 { (r, c) } else { (c, r) };
                let len = index_at(at, itype, b).clamp(0, steps as i64) as usize;
                let k = if k < len { len - 1 - k } else { k };
                let (fr, fc) = if batch == 0 { (b, k) } else { (k, b) };
                y[(r * columns + c) * block..][..block]
                    .copy_from_slice(&x[(fr * columns + fc) * block..][..block]);
            }
        },
    ))
}
