//! Ops that move elements without computing: all dtypes, by the size of their elements.

use std::sync::Arc;

use zbmd_ir::{DType, TokenType};

use super::cx::{AxisSpec, Body, Cx, Plan, Planned, Tensors, dims, token, volume};
use super::gpu::Moves;
use super::index::{Strided, strides};
use super::reduce::around;
use zbmd_op::OpError;

pub(super) fn size_of_dtype(cx: &Cx<'_>, i: usize) -> Result<usize, OpError> {
    match cx.dtype(i)? {
        DType::C32 => Err(cx.refuse(i, "is complex", "split it into real and imaginary parts")),
        other => Ok(other.size_bytes() as usize),
    }
}

/// A strided copy of operand 0.
fn strided(
    cx: &Cx<'_>,
    shape: &[usize],
    out: &[usize],
    steps: Vec<isize>,
    start: isize,
) -> Planned {
    let dtype = cx.dtype(0)?;
    let size = size_of_dtype(cx, 0)?;
    let moves = Moves::Strided {
        dims: shape.to_vec(),
        steps: steps.clone(),
        start: start.unsigned_abs(),
        size,
    };
    let run = is_run(shape, &steps);
    let copy = Strided::new(shape, steps, start, size)?;
    let plan = Plan::new(vec![token(dtype, out)], move |t: &mut Tensors<'_>| {
        if !t.shares(0, 0) {
            let x = t.bytes(0);
            copy.run(x, t.out_bytes(0));
        }
    });
    let plan = plan.moves(moves).flops(0.25 * volume(out) as f64);
    Ok(if run {
        plan.part(0, 0, start.unsigned_abs() * size)
    } else {
        plan
    })
}

/// Whether elements at such steps lie one behind the other.
fn is_run(shape: &[usize], steps: &[isize]) -> bool {
    let dense = strides(shape);
    shape
        .iter()
        .zip(steps)
        .zip(dense)
        .all(|((&n, &step), dense)| n == 1 || step == dense as isize)
}

fn signed(v: Vec<usize>) -> Vec<isize> {
    v.into_iter().map(|s| s as isize).collect()
}

/// A copy under another shape.
fn copied(cx: &Cx<'_>, out: Vec<usize>) -> Planned {
    let ty = &cx.operand(0)?.ty;
    if volume(&out) as u64 != ty.elements() {
        return Err(cx.refuse(
            0,
            format!("is {ty}, which {out:?} cannot hold"),
            "shapes of equal size",
        ));
    }
    struct Copy;
    impl Body for Copy {
        fn run(&self, t: &mut Tensors<'_>) {
            // Over its operand it has nothing to do.
            if t.over().is_none() {
                let x = t.bytes(0);
                t.out_bytes(0).copy_from_slice(x);
            }
        }
        fn batches(&self) -> bool {
            true
        }
    }
    let plan = Plan::new(vec![token(ty.dtype, &out)], Copy);
    Ok(plan
        .moves(Moves::All)
        .flops(0.25 * ty.elements() as f64)
        .over([0]))
}

pub(super) fn identity(cx: &Cx<'_>) -> Planned {
    copied(cx, cx.dims(0)?)
}

pub(super) fn reshape(cx: &Cx<'_>) -> Planned {
    let from = cx.dims(0)?;
    let wish = cx.ints(1)?.ok_or_else(|| cx.not_constant(1))?;
    let zero = cx.flag("allowzero", false)?;
    let mut out = Vec::new();
    for (i, &d) in wish.iter().enumerate() {
        out.push(match d {
            0 if !zero => *from
                .get(i)
                .ok_or_else(|| cx.refuse(1, "takes a dimension that `x` lacks", "give its size"))?,
            -1 => usize::MAX,
            d => usize::try_from(d)
                .map_err(|_| cx.refuse(1, format!("has the dimension {d}"), "sizes, 0 or -1"))?,
        });
    }
    if let Some(open) = out.iter().position(|&d| d == usize::MAX) {
        out[open] = 1;
        if out.contains(&usize::MAX) {
            return Err(cx.refuse(1, "leaves two dimensions open", "at most one -1"));
        }
        let rest = volume(&out).max(1);
        out[open] = volume(&from) / rest;
    }
    copied(cx, out)
}

pub(super) fn flatten(cx: &Cx<'_>) -> Planned {
    let from = cx.dims(0)?;
    let axis = cx.args.int_or("axis", 1)?;
    let at = if axis < 0 {
        axis + from.len() as i64
    } else {
        axis
    }
    .clamp(0, from.len() as i64) as usize;
    copied(cx, vec![volume(&from[..at]), volume(&from[at..])])
}

pub(super) fn squeeze(cx: &Cx<'_>) -> Planned {
    let from = cx.dims(0)?;
    let axes = match cx.ints(1)? {
        Some(axes) => axes
            .iter()
            .map(|&a| cx.axis(a, from.len()))
            .collect::<Result<Vec<_>, _>>()?,
        None => (0..from.len()).filter(|&i| from[i] == 1).collect(),
    };
    copied(
        cx,
        (0..from.len())
            .filter(|i| !axes.contains(i))
            .map(|i| from[i])
            .collect(),
    )
}

pub(super) fn unsqueeze(cx: &Cx<'_>) -> Planned {
    let from = cx.dims(0)?;
    let axes = cx.ints(1)?.unwrap_or_default();
    let rank = from.len() + axes.len();
    let axes = axes
        .iter()
        .map(|&a| cx.axis(a, rank))
        .collect::<Result<Vec<_>, _>>()?;
    let mut rest = from.into_iter();
    copied(
        cx,
        (0..rank)
            .map(|i| {
                if axes.contains(&i) {
                    1
                } else {
                    rest.next().unwrap_or(1)
                }
            })
            .collect(),
    )
}

pub(super) fn transpose(cx: &Cx<'_>) -> Planned {
    let from = cx.dims(0)?;
    let perm = match cx.args.ints_opt("perm")? {
        Some(perm) => perm
            .iter()
            .map(|&p| cx.axis(p, from.len()))
            .collect::<Result<Vec<_>, _>>()?,
        None => (0..from.len()).rev().collect(),
    };
    let mut sorted = perm.clone();
    sorted.sort_unstable();
    if sorted != (0..from.len()).collect::<Vec<_>>() {
        return Err(cx
            .args
            .error("perm", format!("is {perm:?}"), "name each dimension once"));
    }
    let own = strides(&from);
    let out: Vec<usize> = perm.iter().map(|&p| from[p]).collect();
    strided(
        cx,
        &out,
        &out,
        perm.iter().map(|&p| own[p] as isize).collect(),
        0,
    )
}

pub(super) fn expand(cx: &Cx<'_>) -> Planned {
    let from = cx.dims(0)?;
    let wish: Vec<usize> = cx
        .ints(1)?
        .unwrap_or_default()
        .iter()
        .map(|&d| d.max(0) as usize)
        .collect();
    let out = super::index::broadcast(&[&from, &wish])?;
    let own = strides(&from);
    let lead = out.len() - from.len();
    let step = |i: usize| match i.checked_sub(lead) {
        Some(j) if from[j] != 1 => own[j] as isize,
        _ => 0,
    };
    let steps = (0..out.len()).map(step).collect();
    strided(cx, &out, &out, steps, 0)
}

pub(super) fn tile(cx: &Cx<'_>) -> Planned {
    let from = cx.dims(0)?;
    let times: Vec<usize> = cx
        .ints(1)?
        .unwrap_or_default()
        .iter()
        .map(|&d| d.max(0) as usize)
        .collect();
    if times.len() != from.len() {
        return Err(cx.refuse(
            1,
            format!("has {} numbers", times.len()),
            format!("one for each of {} dimensions", from.len()),
        ));
    }
    let own = strides(&from);
    let shape: Vec<usize> = times
        .iter()
        .zip(&from)
        .flat_map(|(&t, &d)| [t, d])
        .collect();
    let steps: Vec<isize> = own.iter().flat_map(|&s| [0, s as isize]).collect();
    let out: Vec<usize> = times
        .iter()
        .zip(&from)
        .map(|(t, d)| t.saturating_mul(*d))
        .collect();
    strided(cx, &shape, &out, steps, 0)
}

pub(super) fn slice(cx: &Cx<'_>) -> Planned {
    let from = cx.dims(0)?;
    let starts = cx.ints(1)?.unwrap_or_default();
    let ends = cx.ints(2)?.unwrap_or_default();
    let axes = cx
        .ints(3)?
        .unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = cx.ints(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()]
        .iter()
        .any(|&n| n != starts.len())
    {
        return Err(cx.refuse(
            1,
            "has another length than the ends, axes or steps",
            "one of each for each axis",
        ));
    }
    let own = strides(&from);
    let (mut out, mut by, mut start) = (from.clone(), signed(own.clone()), 0_isize);
    for i in 0..starts.len() {
        let axis = cx.axis(axes[i], from.len())?;
        let (n, step) = (from[axis] as i64, steps[i]);
        if step == 0 {
            return Err(cx.refuse(4, "is 0", "steps go forwards or backwards"));
        }
        let place = |v: i64| if v < 0 { v.saturating_add(n) } else { v };
        let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
        let first = place(starts[i]).clamp(if step > 0 { 0 } else { 0.min(n - 1) }, high);
        let end = if ends[i] < -n {
            low
        } else {
            place(ends[i]).clamp(low, high)
        };
        let end = if step < 0 && ends[i] < -n { -1 } else { end };
        let span = if step > 0 { end - first } else { first - end };
        let count = if span <= 0 {
            0
        } else {
            (span as u64).div_ceil(step.unsigned_abs())
        };
        out[axis] = count as usize;
        start += first.max(0) as isize * own[axis] as isize;
        by[axis] = (own[axis] as isize).saturating_mul(step as isize);
    }
    strided(cx, &out, &out, by, start)
}

pub(super) fn depth_to_space(cx: &Cx<'_>, back: bool) -> Planned {
    let from = cx.dims(0)?;
    let [n, c, h, w] = from[..] else {
        return Err(cx.refuse(
            0,
            format!("is {}", cx.operand(0)?.ty),
            "it takes [n, c, h, w]",
        ));
    };
    let b = cx.args.uint("blocksize", 1, 1 << 16)? as usize;
    let crd = cx.args.word_opt("mode")? == Some("CRD");
    let whole = if back {
        h.is_multiple_of(b) && w.is_multiple_of(b)
    } else {
        c.is_multiple_of(b * b)
    };
    if !whole {
        return Err(cx.refuse(
            0,
            format!("is no multiple of blocks of {b}"),
            "choose another `blocksize`",
        ));
    }
    let (inner, order, out) = if back {
        (
            vec![n, c, h / b, b, w / b, b],
            if crd {
                [0, 1, 3, 5, 2, 4]
            } else {
                [0, 3, 5, 1, 2, 4]
            },
            vec![n, c * b * b, h / b, w / b],
        )
    } else if crd {
        (
            vec![n, c / (b * b), b, b, h, w],
            [0, 1, 4, 2, 5, 3],
            vec![n, c / (b * b), h * b, w * b],
        )
    } else {
        (
            vec![n, b, b, c / (b * b), h, w],
            [0, 3, 4, 1, 5, 2],
            vec![n, c / (b * b), h * b, w * b],
        )
    };
    let own = strides(&inner);
    let shape: Vec<usize> = order.iter().map(|&o| inner[o]).collect();
    strided(
        cx,
        &shape,
        &out,
        order.iter().map(|&o| own[o] as isize).collect(),
        0,
    )
}

pub(super) fn concat(cx: &Cx<'_>, spec: &AxisSpec) -> Planned {
    let first = cx.dims(0)?;
    let axis = spec.axis;
    let size = size_of_dtype(cx, 0)?;
    let mut out = first.clone();
    out[axis] = 0;
    let mut parts = Vec::new();
    for i in 0..cx.ins.len() {
        let dims = cx.dims(i)?;
        let fits =
            dims.len() == first.len() && (0..dims.len()).all(|d| d == axis || dims[d] == first[d]);
        if !fits || cx.dtype(i)? != cx.dtype(0)? {
            return Err(cx.refuse(
                i,
                format!("is {}", cx.operand(i)?.ty),
                format!("the first is {}", cx.operand(0)?.ty),
            ));
        }
        out[axis] += dims[axis];
        let (outer, n, inner) = around(&dims, axis);
        parts.push((outer, n * inner * size));
    }
    let row: usize = parts.iter().map(|p| p.1).sum();
    let sizes = parts.clone();
    let plan = Plan::new(
        vec![token(cx.dtype(0)?, &out)],
        move |t: &mut Tensors<'_>| {
            let y = t.out_bytes(0);
            let mut at = 0;
            for (i, &(outer, bytes)) in parts.iter().enumerate() {
                if !t.shares(i, 0) {
                    let x = t.bytes(i);
                    for o in 0..outer {
                        y[o * row + at..][..bytes].copy_from_slice(&x[o * bytes..][..bytes]);
                    }
                }
                at += bytes;
            }
        },
    );
    let plan = plan.flops(0.25 * volume(&out) as f64);
    let mut at = 0;
    Ok(sizes
        .iter()
        .enumerate()
        .fold(plan, |plan, (i, &(outer, bytes))| {
            at += bytes;
            if outer == 1 {
                plan.part(i, 0, at - bytes)
            } else {
                plan
            }
        }))
}

/// Parts of an axis.
pub(super) struct SplitSpec {
    pub(super) axis: usize,
    /// How long each part is.
    pub(super) parts: Vec<usize>,
}

impl SplitSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let from = cx.dims(0)?;
        let axis = cx.axis_param(0, from.len())?;
        let (_, n, _) = around(&from, axis);
        let parts = match cx.ints(1)? {
            Some(parts) => parts.iter().map(|&part| part.max(0) as usize).collect(),
            None => {
                let wanted = cx.wanted.len() as u64;
                let count = cx.args.uint_or("num_outputs", wanted, 1, 31)? as usize;
                let each = n.div_ceil(count);
                (0..count)
                    .map(|i| each.min(n.saturating_sub(i * each)))
                    .collect()
            }
        };
        Ok(Self { axis, parts })
    }
}

pub(super) fn split(cx: &Cx<'_>, spec: &SplitSpec) -> Planned {
    let from = cx.dims(0)?;
    let axis = spec.axis;
    let (outer, n, inner) = around(&from, axis);
    let size = size_of_dtype(cx, 0)?;
    let parts = &spec.parts;
    if parts.iter().fold(0_usize, |s, &p| s.saturating_add(p)) != n
        || cx.wanted.iter().any(|&w| w >= parts.len())
    {
        return Err(cx.refuse(
            1,
            format!("gives {parts:?} of {n} elements"),
            "the parts add up to the whole",
        ));
    }
    let mut places = Vec::new();
    let mut outs = Vec::new();
    for &w in &cx.wanted {
        let before: usize = parts[..w].iter().sum();
        let mut shape = from.clone();
        shape[axis] = parts[w];
        outs.push(token(cx.dtype(0)?, &shape));
        places.push((before * inner * size, parts[w] * inner * size));
    }
    let row = n * inner * size;
    let parts = places.clone();
    let plan = Plan::new(outs, move |t: &mut Tensors<'_>| {
        for (i, &(at, bytes)) in places.iter().enumerate() {
            if t.shares(0, i) {
                continue;
            }
            let y = t.out_bytes(i);
            for o in 0..outer {
                let x = t.part(0, o * row + at..o * row + at + bytes);
                y[o * bytes..][..bytes].copy_from_slice(x);
            }
        }
    });
    let plan = plan.flops(0.25 * volume(&from) as f64);
    let parts = parts.iter().filter(|_| outer == 1).enumerate();
    Ok(parts.fold(plan, |plan, (i, &(at, _))| plan.part(0, i, at)))
}

/// A tensor made of places of operand 0, or of a fill value, chosen when the kernel is made.
struct Chosen {
    /// Element of x for each element of y; `u32::MAX` for the fill value.
    from: Vec<u32>,
    size: usize,
    /// Operand with the fill value, zeros if it is missing.
    fill: usize,
}

impl Body for Chosen {
    fn run(&self, t: &mut Tensors<'_>) {
        let (x, y) = (t.bytes(0), t.out_bytes(0));
        let zero = [0; 8];
        let fill = t.bytes(self.fill);
        let fill = if fill.len() < self.size {
            &zero[..self.size]
        } else {
            &fill[..self.size]
        };
        for (y, &from) in y.chunks_exact_mut(self.size).zip(&self.from) {
            match from {
                u32::MAX => y.copy_from_slice(fill),
                at => y.copy_from_slice(&x[at as usize * self.size..][..self.size]),
            }
        }
    }
}

/// Elements of y by a rule from their index; made only where the kernel is.
fn chosen(
    cx: &Cx<'_>,
    out: Vec<usize>,
    fill: usize,
    rule: impl Fn(&[usize]) -> Option<usize> + Send + Sync + 'static,
) -> Planned {
    let (dtype, size) = (cx.dtype(0)?, size_of_dtype(cx, 0)?);
    let ty = token(dtype, &out);
    let places = zbmd_ir::limits::MAX_TABLE_ELEMENTS;
    if ty.elements() > places {
        return Err(Cx::other(
            format!("the result would be {ty}, {} elements", ty.elements()),
            format!("the limit is {places}, a place for each"),
        ));
    }
    let flops = volume(&out) as f64;
    let table = Arc::new(move || {
        let own = strides(&out);
        let mut index = vec![0; out.len()];
        let mut from = Vec::with_capacity(volume(&out));
        for n in 0..volume(&out) {
            let mut rest = n;
            for (i, s) in index.iter_mut().zip(&own) {
                (*i, rest) = (rest / s, rest % s);
            }
            from.push(rule(&index).map_or(u32::MAX, |p| p as u32));
        }
        from
    });
    let moves = Moves::Chosen {
        table: table.clone(),
        fill,
    };
    Ok(Plan::lazy(vec![ty], move || {
        Ok(Box::new(Chosen {
            from: table(),
            size,
            fill,
        }))
    })
    .moves(moves)
    .flops(flops))
}

/// Padding of each dimension.
pub(super) struct PadSpec {
    mode: String,
    /// Elements before the first one; fewer than none where it cuts off.
    pub(super) before: Vec<i64>,
    /// Dimensions of the result.
    out: Vec<usize>,
}

impl PadSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let from = cx.dims(0)?;
        let pads = cx.ints(1)?.unwrap_or_default();
        let axes = cx
            .ints(3)?
            .unwrap_or_else(|| (0..from.len() as i64).collect());
        if pads.len() != 2 * axes.len() {
            return Err(cx.refuse(
                1,
                format!("has {} numbers", pads.len()),
                format!("two for each of {} axes", axes.len()),
            ));
        }
        let mode = cx.args.word_opt("mode")?.unwrap_or("constant").to_owned();
        let mut before = vec![0_i64; from.len()];
        let mut out = from.clone();
        for (i, &axis) in axes.iter().enumerate() {
            let axis = cx.axis(axis, from.len())?;
            before[axis] = pads[i];
            let size = (from[axis] as i64)
                .saturating_add(pads[i])
                .saturating_add(pads[i + axes.len()]);
            out[axis] = usize::try_from(size)
                .ok()
                .filter(|s| *s <= u32::MAX as usize)
                .ok_or_else(|| {
                    cx.refuse(
                        1,
                        format!("makes dimension {axis} {size} long"),
                        "it removes or adds too much",
                    )
                })?;
            if from[axis] == 0 && mode != "constant" {
                return Err(cx.refuse(
                    0,
                    "is empty along a padded axis",
                    "use the mode `constant`",
                ));
            }
        }
        Ok(Self { mode, before, out })
    }
}

pub(super) fn pad(cx: &Cx<'_>, spec: &PadSpec) -> Planned {
    let from = cx.dims(0)?;
    let out = spec.out.clone();
    let before = spec.before.clone();
    let mode = spec.mode.clone();
    let own = strides(&from);
    let plain = mode == "constant"
        && before.iter().all(|&b| b >= 0)
        && out.iter().zip(&from).all(|(o, f)| o >= f);
    if plain {
        return pad_plain(cx, from, out, before);
    }
    chosen(cx, out, 2, move |index| {
        let mut at = 0;
        for (d, &i) in index.iter().enumerate() {
            let (n, place) = (from[d] as i64, i as i64 - before[d]);
            let place = match mode.as_str() {
                "edge" => place.clamp(0, n - 1),
                "reflect" if n == 1 => 0,
                "reflect" => {
                    let round = 2 * (n - 1);
                    let p = place.rem_euclid(round);
                    p.min(round - p)
                }
                "wrap" => place.rem_euclid(n),
                _ if !(0..n).contains(&place) => return None,
                _ => place,
            };
            at += place as usize * own[d];
        }
        Some(at)
    })
}

/// Rows of x copied into a result that is filled first.
fn pad_plain(cx: &Cx<'_>, from: Vec<usize>, out: Vec<usize>, before: Vec<i64>) -> Planned {
    let size = size_of_dtype(cx, 0)?;
    let to = strides(&out);
    let start: usize = before.iter().zip(&to).fold(0, |at, (&b, s)| {
        at.saturating_add(s.saturating_mul(b as usize))
    });
    let row = from.last().copied().unwrap_or(1);
    let lines = &from[..from.len().saturating_sub(1)];
    let walk = super::index::Walk::new(
        lines,
        [signed(to[..lines.len()].to_vec())],
        [start as isize],
    )?;
    Ok(Plan::new(
        vec![token(cx.dtype(0)?, &out)],
        move |t: &mut Tensors<'_>| {
            let (x, y) = (t.bytes(0), t.out_bytes(0));
            let fill = t.bytes(2);
            if fill.iter().take(size).any(|&b| b != 0) {
                y.chunks_exact_mut(size)
                    .for_each(|y| y.copy_from_slice(&fill[..size]));
            } else {
                y.fill(0);
            }
            walk.each(|n, [at]| {
                for i in 0..walk.inner {
                    let to = (at + i * walk.step[0] as usize) * size;
                    y[to..to + row * size]
                        .copy_from_slice(&x[(n + i) * row * size..][..row * size]);
                }
            });
        },
    )
    .flops(0.25 * volume(&out) as f64))
}

pub(super) fn center_crop_pad(cx: &Cx<'_>) -> Planned {
    let from = cx.dims(0)?;
    let shape = cx.ints(1)?.unwrap_or_default();
    let axes = cx
        .args
        .ints_opt("axes")?
        .unwrap_or_else(|| (0..from.len() as i64).collect());
    if axes.len() != shape.len() {
        return Err(cx.refuse(
            1,
            format!("has {} numbers", shape.len()),
            format!("one for each of {} axes", axes.len()),
        ));
    }
    let mut out = from.clone();
    for (&a, &s) in axes.iter().zip(&shape) {
        out[cx.axis(a, from.len())?] = s.max(0) as usize;
    }
    let own = strides(&from);
    let shift: Vec<i64> = out
        .iter()
        .zip(&from)
        .map(|(&o, &f)| {
            if o >= f {
                -((o - f) as i64 / 2)
            } else {
                (f - o) as i64 / 2
            }
        })
        .collect();
    chosen(cx, out, usize::MAX, move |index| {
        let mut at = 0;
        for (d, &i) in index.iter().enumerate() {
            let place = i as i64 + shift[d];
            if !(0..from[d] as i64).contains(&place) {
                return None;
            }
            at += place as usize * own[d];
        }
        Some(at)
    })
}

pub(super) fn trilu(cx: &Cx<'_>) -> Planned {
    let from = cx.dims(0)?;
    let k = cx.ints(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
    let upper = cx.flag("upper", true)?;
    if from.len() < 2 {
        return Err(cx.refuse(0, format!("is {}", cx.operand(0)?.ty), "it takes matrices"));
    }
    let own = strides(&from);
    chosen(cx, from, usize::MAX, move |index| {
        let n = index.len();
        let off = index[n - 1] as i64 - index[n - 2] as i64;
        let inside = if upper { off >= k } else { off <= k };
        inside.then(|| index.iter().zip(&own).map(|(i, s)| i * s).sum())
    })
}

/// Sums of columns laid back onto an image: the inverse walk of a convolution's windows.
pub(super) fn col2im(cx: &Cx<'_>) -> Planned {
    let dtype = cx.expect(0, &super::cx::FLOATS)?;
    let from = cx.dims(0)?;
    let usizes = |v: Option<Vec<i64>>| -> Vec<usize> {
        v.unwrap_or_default()
            .iter()
            .map(|&d| d.max(0) as usize)
            .collect()
    };
    let (image, block) = (usizes(cx.ints(1)?), usizes(cx.ints(2)?));
    let n = image.len();
    if image.iter().chain(&block).any(|&d| d > 1 << 24) || n > 3 {
        return Err(cx.refuse(
            1,
            format!("is {image:?}"),
            "up to three dimensions of a sane size",
        ));
    }
    let (steps, dilations) = (cx.sizes("strides", n, 1)?, cx.sizes("dilations", n, 1)?);
    let pads = cx.sizes("pads", 2 * n, 0)?;
    let cells = volume(&block).max(1);
    let spots: Vec<usize> = (0..n)
        .map(|d| {
            let reach = dilations[d] * (block.get(d).copied().unwrap_or(1).max(1) - 1) + 1;
            ((image[d] + pads[d] + pads[n + d]).saturating_sub(reach)) / steps[d].max(1) + 1
        })
        .collect();
    if from.len() != 3
        || block.len() != n
        || volume(&spots) != from[2]
        || !from[1].is_multiple_of(cells)
    {
        return Err(cx.refuse(
            0,
            format!("is {}", cx.operand(0)?.ty),
            format!("[n, channels · {cells}, {}]", volume(&spots)),
        ));
    }
    let out = [&[from[0], from[1] / cells], image.as_slice()].concat();
    struct Col2Im {
        image: Vec<usize>,
        block: Vec<usize>,
        spots: Vec<usize>,
        steps: Vec<usize>,
        dilations: Vec<usize>,
        pads: Vec<usize>,
        planes: usize,
    }
    impl super::cx::FloatBody for Col2Im {
        fn run<F: super::num::Float>(&self, t: &mut Tensors<'_>) {
            let (x, y) = (t.get::<F>(0), t.out::<F>(0));
            y.fill(F::ZERO);
            let (cells, spots, pixels) = (
                volume(&self.block),
                volume(&self.spots),
                volume(&self.image),
            );
            for (plane, cell, spot) in (0..self.planes)
                .flat_map(|p| (0..cells).flat_map(move |c| (0..spots).map(move |s| (p, c, s))))
            {
                let (mut c, mut s, mut at, mut scale, mut inside) = (cell, spot, 0, 1, true);
                for d in (0..self.image.len()).rev() {
                    let (kc, ks) = (c % self.block[d], s % self.spots[d]);
                    (c, s) = (c / self.block[d], s / self.spots[d]);
                    let place =
                        (ks * self.steps[d] + kc * self.dilations[d]).checked_sub(self.pads[d]);
                    match place.filter(|p| *p < self.image[d]) {
                        Some(p) => at += p * scale,
                        None => inside = false,
                    }
                    scale *= self.image[d];
                }
                if inside {
                    y[plane * pixels + at] += x[(plane * cells + cell) * spots + spot];
                }
            }
        }
    }
    let planes = volume(&out[..2]);
    Ok(Plan::float(
        dtype,
        vec![token(dtype, &out)],
        Col2Im {
            image,
            block,
            spots,
            steps,
            dilations,
            pads,
            planes,
        },
    ))
}

/// Ones on a diagonal.
pub(super) struct EyeSpec {
    dtype: DType,
    /// How far to the right of the main diagonal.
    pub(super) diagonal: i64,
}

impl EyeSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            dtype: cx.args.dtype_or("dtype", cx.dtype(0)?)?,
            diagonal: cx.args.int_or("k", 0)?,
        })
    }
}

pub(super) fn eye_like(cx: &Cx<'_>, spec: &EyeSpec) -> Planned {
    let ty = &cx.operand(0)?.ty;
    let [_, columns] = dims(ty)[..] else {
        return Err(cx.refuse(0, format!("is {ty}"), "it takes matrices"));
    };
    let dtype = spec.dtype;
    let k = spec.diagonal;
    fn make<T: super::num::Num>(out: TokenType, k: i64, columns: usize) -> Planned {
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            for (i, y) in t.out::<T>(0).iter_mut().enumerate() {
                let on = (i % columns) as i64 - (i / columns) as i64 == k;
                *y = if on { T::ONE } else { T::ZERO };
            }
        }))
    }
    super::cx::by_element!(dtype, make(token(dtype, &dims(ty)), k, columns))
}
