//! Shapes, strides and walks over tensors. Knows no op and no element type.

use std::ops::Range;

use zbmd_op::simd::{self, Isa, Loop};
use zbmd_op::{OpError, team};

use super::cx::{Cx, volume};
use super::turn::{SIDE, turn};

/// Dimensions of a walk after merging: more than any token has.
const MAX_WALK: usize = 20;
/// Elements at whose multiples long runs are cut for several cores: whole lines of the cache of any type.
pub(crate) const CUT: usize = 64;

/// Strides of a dense tensor, in elements.
pub(crate) fn strides(dims: &[usize]) -> Vec<usize> {
    let mut out = vec![1_usize; dims.len()];
    for i in (1..dims.len()).rev() {
        out[i - 1] = out[i].saturating_mul(dims[i]);
    }
    out
}

/// A dense tensor seen along one axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AxisView {
    /// Elements of the dimensions before the axis, together.
    pub(crate) outer: usize,
    /// Elements along the axis.
    pub(crate) length: usize,
    /// Elements of the dimensions behind the axis, together: the distance of neighbours along the axis.
    pub(crate) inner: usize,
}

impl AxisView {
    /// The view along an axis; a scalar is one element along its only one.
    pub(crate) fn of(dims: &[usize], axis: usize) -> Self {
        let axis = axis.min(dims.len().saturating_sub(1));
        match dims.get(axis) {
            Some(&length) => Self {
                outer: volume(&dims[..axis]),
                length,
                inner: volume(&dims[axis + 1..]),
            },
            None => Self {
                outer: 1,
                length: 1,
                inner: 1,
            },
        }
    }

    /// The place of an element.
    #[inline(always)]
    pub(crate) fn at(&self, outer: usize, along: usize, inner: usize) -> usize {
        (outer * self.length + along) * self.inner + inner
    }
}

/// The shape that NumPy's broadcasting gives.
pub(crate) fn broadcast(shapes: &[&[usize]]) -> Result<Vec<usize>, OpError> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut out = vec![1; rank];
    for shape in shapes {
        // Shapes meet at their last dimensions; those that a shorter one lacks count as 1.
        for (o, &d) in out[rank - shape.len()..].iter_mut().zip(*shape) {
            if d != *o && d != 1 && *o != 1 {
                return Err(Cx::other(
                    format!("shapes {shapes:?} cannot be brought to one"),
                    "dimensions counted from the last must be equal, or 1",
                ));
            }
            if d != 1 {
                *o = d;
            }
        }
    }
    Ok(out)
}

/// An operand of which each run of a walk meets the same elements many times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cycle {
    pub(crate) operand: usize,
    /// Its elements.
    pub(crate) period: usize,
}

/// A walk over a dense result with K operands that advance by strides of their own.
#[derive(Clone, Debug)]
pub(crate) struct Walk<const K: usize> {
    /// Outer dimensions with the operands' strides, slowest first.
    outer: Vec<(usize, [isize; K])>,
    /// Elements of the innermost runs.
    pub(crate) inner: usize,
    /// Strides of the operands in the innermost runs.
    pub(crate) step: [isize; K],
    /// Element at which each operand begins.
    start: [isize; K],
    empty: bool,
}

impl<const K: usize> Walk<K> {
    /// A walk over `dims`, the operands having these strides (0 where they repeat).
    pub(crate) fn new(
        dims: &[usize],
        strides: [Vec<isize>; K],
        start: [isize; K],
    ) -> Result<Self, OpError> {
        let mut merged: Vec<(usize, [isize; K])> = Vec::new();
        for (i, &dim) in dims.iter().enumerate() {
            if dim == 1 {
                continue;
            }
            let step: [isize; K] = std::array::from_fn(|k| strides[k][i]);
            // Two dimensions are one where a step of the outer is a whole pass of the inner, for all operands.
            match merged.last_mut() {
                Some((n, before))
                    if (0..K).all(|k| before[k] == step[k].saturating_mul(dim as isize)) =>
                {
                    *n = n.saturating_mul(dim);
                    *before = step;
                }
                _ => merged.push((dim, step)),
            }
        }
        let empty = dims.contains(&0);
        // The fastest dimension becomes the run that callers loop over themselves; a scalar is a run of one.
        let (inner, step) = merged.pop().unwrap_or((1, [0; K]));
        if merged.len() > MAX_WALK {
            return Err(Cx::other(
                "too many dimensions",
                format!("at most {MAX_WALK}"),
            ));
        }
        Ok(Self {
            outer: merged,
            inner,
            step,
            start,
            empty,
        })
    }

    /// A walk over the broadcast shape of K dense operands.
    pub(crate) fn broadcasting(out: &[usize], shapes: [&[usize]; K]) -> Result<Self, OpError> {
        let strides: [Vec<isize>; K] = std::array::from_fn(|k| {
            let own = strides(shapes[k]);
            let lead = out.len() - shapes[k].len();
            let step = |i: usize| match i.checked_sub(lead) {
                Some(j) if shapes[k][j] != 1 => own[j] as isize,
                _ => 0,
            };
            (0..out.len()).map(step).collect()
        });
        Self::new(out, strides, [0; K])
    }

    /// Makes one run of short ones, of at most `longest` elements, that all meet the same elements of one operand and, one
    /// behind the other, those of the rest. The operand is then gone over many times in a run, which callers must know.
    pub(crate) fn join_cycles(&mut self, longest: usize) -> Option<Cycle> {
        let &(runs, outer_steps) = self.outer.last()?;
        let period = self.inner;
        if period > longest || self.step != [1; K] {
            return None;
        }

        let is_cycle = |&k: &usize| outer_steps[k] == 0;
        let operand = (0..K).find(is_cycle)?;
        let others_go_on = (0..K).all(|k| k == operand || outer_steps[k] == period as isize);
        if !others_go_on {
            return None;
        }
        self.outer.pop();
        self.inner *= runs;
        Some(Cycle { operand, period })
    }

    /// Calls `f` with the place in the result and in each operand of every innermost run.
    #[inline]
    pub(crate) fn each(&self, mut f: impl FnMut(usize, [usize; K])) {
        if self.empty {
            return;
        }
        let runs: usize = self.outer.iter().map(|(steps, _)| steps).product();
        let whole = WalkPart {
            walk: self,
            first: 0,
            offset: 0,
            elements: runs * self.inner,
        };
        whole.each(|to, operands, _| f(to.start, operands));
    }

    /// Calls `f` with parts of the walk and what they write of the result, on all cores of this thread's team where that is
    /// worth it: `cost` is what an element takes, in multiplications in vectors. A walk that is one run is cut at multiples of
    /// `cut` elements.
    pub(crate) fn share<T: Send>(
        &self,
        cost: usize,
        cut: usize,
        result: &mut [T],
        f: &(dyn Fn(WalkPart<'_, K>, &mut [T]) + Sync),
    ) {
        if self.empty {
            return;
        }
        let chunk = match self.outer.first() {
            Some((steps, _)) => result.len() / steps,
            None => cut,
        };
        team::share_slice(cost * result.len(), result, chunk, &|first, stretch| {
            let part = WalkPart {
                walk: self,
                first,
                offset: first * chunk,
                elements: stretch.len(),
            };
            f(part, stretch);
        });
    }

    /// The first run of a step of the slowest outer dimension.
    #[inline(never)]
    fn first_run(&self, step: usize) -> WalkPosition<K> {
        let mut counts = [0; MAX_WALK];
        let mut operands = self.start.map(|start| start as usize);
        if let Some((_, steps)) = self.outer.first() {
            counts[0] = step;
            for (place, &stride) in operands.iter_mut().zip(steps) {
                *place = place.wrapping_add_signed(stride * step as isize);
            }
        }
        WalkPosition {
            counts,
            done: 0,
            operands,
        }
    }

    /// Goes on to the next run; behind the last one to the first. Counts up as an odometer does: the last dimension first, with a
    /// carry where it is through. Not inlined: there are hundreds of walks.
    #[inline(never)]
    fn advance(&self, position: &mut WalkPosition<K>) {
        position.done += self.inner;
        let counts = position.counts[..self.outer.len()].iter_mut();
        for (count, (dim, step)) in counts.zip(&self.outer).rev() {
            *count += 1;
            for (place, &step) in position.operands.iter_mut().zip(step) {
                *place = place.wrapping_add_signed(step);
            }
            if *count < *dim {
                return;
            }

            *count = 0;
            for (place, &step) in position.operands.iter_mut().zip(step) {
                *place = place.wrapping_sub((step * *dim as isize) as usize);
            }
        }
    }
}

/// Where a walk is.
struct WalkPosition<const K: usize> {
    /// Steps made in each outer dimension.
    counts: [usize; MAX_WALK],
    /// Elements of the result before the run.
    done: usize,
    /// Where the run begins in each operand.
    operands: [usize; K],
}

/// Some of the runs of a walk, or a piece of its only one.
pub(crate) struct WalkPart<'a, const K: usize> {
    walk: &'a Walk<K>,
    /// The first step of the slowest outer dimension, where there is one.
    first: usize,
    /// Elements of the result before the part, and in it.
    offset: usize,
    elements: usize,
}

impl<const K: usize> WalkPart<'_, K> {
    /// Calls `f` with where each run lies in the part's stretch of the result, with the place in each operand at which the run
    /// begins, and with how many of its elements were cut off before.
    #[inline]
    pub(crate) fn each(&self, mut f: impl FnMut(Range<usize>, [usize; K], usize)) {
        let walk = self.walk;
        let mut position = walk.first_run(self.first);
        if walk.outer.is_empty() {
            return f(0..self.elements, position.operands, self.offset);
        }
        while position.done < self.elements {
            f(
                position.done..position.done + walk.inner,
                position.operands,
                0,
            );
            walk.advance(&mut position);
        }
    }
}

/// What an element takes that is read and written once, in multiplications in vectors.
pub(crate) const COPY_COST: usize = 16;

/// A copy of a tensor whose elements lie elsewhere: transposition, slices, repetition.
#[derive(Clone, Debug)]
pub(crate) struct Strided {
    /// A run is a square of a transposition, if there is one.
    walk: Walk<1>,
    square: Option<SquareSize>,
    size: usize,
}

/// The last two dimensions of a transposition.
#[derive(Clone, Copy, Debug)]
struct SquareSize {
    columns: usize,
    /// From a column to the next in the operand, where rows lie side by side.
    step: usize,
}

impl Strided {
    /// `out[i0, i1, …] = in[start + i0·strides[0] + …]`, elements of `size` bytes.
    pub(crate) fn new(
        dims: &[usize],
        strides: Vec<isize>,
        start: isize,
        size: usize,
    ) -> Result<Self, OpError> {
        let mut walk = Walk::new(dims, [strides], [start])?;
        // Runs of a transposition are short or far apart: two dimensions at a time, in squares that fit the cache.
        let mut square = None;
        if let Some(&(rows, [1])) = walk.outer.last()
            && walk.step[0] > 1
            && walk.inner >= 2
        {
            square = Some(SquareSize {
                columns: walk.inner,
                step: walk.step[0] as usize,
            });
            walk.outer.pop();
            walk.inner *= rows;
        }
        Ok(Self { walk, square, size })
    }

    pub(crate) fn run(&self, x: &[u8], y: &mut [u8]) {
        match self.size {
            1 => self.typed::<u8>(x, y),
            2 => self.typed::<u16>(x, y),
            4 => self.typed::<u32>(x, y),
            _ => self.typed::<u64>(x, y),
        }
    }

    fn typed<T: bytemuck::Pod + Send + Sync>(&self, x: &[u8], y: &mut [u8]) {
        // Complex elements are aligned to 4 bytes only, so 8-byte ones may not be cast.
        let (Ok(x), Ok(y)) = (
            bytemuck::try_cast_slice::<u8, T>(x),
            bytemuck::try_cast_slice_mut::<u8, T>(y),
        ) else {
            return;
        };
        if let Some(SquareSize { columns, step }) = self.square {
            let cut = SIDE * columns;
            self.walk.share(COPY_COST, cut, y, &|part, y| {
                part.each(|to, [from], offset| {
                    let rows = to.len() / columns;
                    let x = &x[from + offset / columns..];
                    transpose(x, &mut y[to], rows, columns, step);
                });
            });
            return;
        }

        let [step] = self.walk.step;
        self.walk.share(COPY_COST, CUT, y, &|part, y| {
            part.each(|to, [from], offset| {
                let y = &mut y[to];
                let first = from.wrapping_add_signed(offset as isize * step);
                match step {
                    1 => y.copy_from_slice(&x[first..first + y.len()]),
                    0 => y.fill(x[first]),
                    _ => {
                        let mut at = first as isize;
                        for y in y {
                            *y = x[at as usize];
                            at += step;
                        }
                    }
                }
            });
        });
    }
}

/// y[r][c] = x[r + c·step], for so many rows and columns of y: rows that lie side by side in x.
pub(crate) fn transpose<T: bytemuck::Pod>(
    x: &[T],
    y: &mut [T],
    rows: usize,
    columns: usize,
    step: usize,
) {
    simd::dispatch(Square {
        x,
        y,
        rows,
        columns,
        step,
    });
}

/// What [`transpose`] does.
struct Square<'a, T> {
    x: &'a [T],
    y: &'a mut [T],
    rows: usize,
    columns: usize,
    step: usize,
}

impl<T: bytemuck::Pod> Loop for Square<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, isa: Isa<FMA>) {
        let Self {
            x,
            y,
            rows,
            columns,
            step,
        } = self;
        // Planes of colours, and channels of a few groups: whole pixels at once.
        match columns {
            2 => return interleave::<T, 2>(x, y, rows, step),
            3 => return interleave::<T, 3>(x, y, rows, step),
            4 => return interleave::<T, 4>(x, y, rows, step),
            _ => {}
        }
        if columns < SIDE {
            for c in 0..columns {
                let y = y[c..].iter_mut().step_by(columns);
                y.zip(&x[c * step..c * step + rows])
                    .for_each(|(y, &x)| *y = x);
            }
            return;
        }
        for r0 in (0..rows).step_by(SIDE) {
            let high = SIDE.min(rows - r0);
            for c0 in (0..columns).step_by(SIDE) {
                let wide = SIDE.min(columns - c0);
                let own_x = &x[c0 * step + r0..];
                let own_y = &mut y[r0 * columns + c0..];
                if (high, wide) == (SIDE, SIDE) {
                    whole_square(isa, own_x, step, own_y, columns);
                    continue;
                }
                for r in 0..high {
                    let y = &mut own_y[r * columns..][..wide];
                    for (c, y) in y.iter_mut().enumerate() {
                        *y = own_x[r + c * step];
                    }
                }
            }
        }
    }
}

/// The transposition of few columns.
#[inline(always)]
fn interleave<T: bytemuck::Pod, const COLUMNS: usize>(
    x: &[T],
    y: &mut [T],
    rows: usize,
    step: usize,
) {
    let columns: [&[T]; COLUMNS] = std::array::from_fn(|c| &x[c * step..][..rows]);
    let y = &mut y.as_chunks_mut::<COLUMNS>().0[..rows];
    for (r, y) in y.iter_mut().enumerate() {
        *y = std::array::from_fn(|c| columns[c][r]);
    }
}

/// Whole lines of [`SIDE`] both ways, with registers between.
#[inline(always)]
fn whole_square<T: bytemuck::Pod, const FMA: bool>(
    isa: Isa<FMA>,
    x: &[T],
    step: usize,
    y: &mut [T],
    columns: usize,
) {
    // Which four bytes they are makes no difference to a copy.
    if size_of::<T>() == size_of::<f32>()
        && let Ok(x) = bytemuck::try_cast_slice(x)
        && let Ok(y) = bytemuck::try_cast_slice_mut(y)
        && turn(isa, x, step, y, columns)
    {
        return;
    }
    let mut lines = [[T::zeroed(); SIDE]; SIDE];
    for (c, line) in lines.iter_mut().enumerate() {
        line.copy_from_slice(&x[c * step..][..SIDE]);
    }
    for r in 0..SIDE {
        let y = &mut y[r * columns..][..SIDE];
        for (y, line) in y.iter_mut().zip(&lines) {
            *y = line[r];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_cover_every_element_once_in_order() {
        for (out, a, b) in [
            (vec![2, 3, 4], vec![2, 3, 4], vec![4]),
            (vec![2, 3, 4], vec![1, 3, 1], vec![2, 1, 4]),
            (vec![5], vec![1], vec![5]),
            (vec![], vec![], vec![]),
            (vec![2, 0], vec![2, 0], vec![1, 1]),
        ] {
            let walk = Walk::broadcasting(&out, [&a, &b]).unwrap();
            let mut seen = Vec::new();
            walk.each(|to, [x, y]| {
                for i in 0..walk.inner {
                    assert_eq!(seen.len(), to + i);
                    seen.push((
                        x as isize + walk.step[0] * i as isize,
                        y as isize + walk.step[1] * i as isize,
                    ));
                }
            });
            assert_eq!(seen.len(), out.iter().product::<usize>());
            let place = |shape: &[usize], index: &[usize]| -> isize {
                let own = strides(shape);
                let lead = index.len() - shape.len();
                (0..shape.len())
                    .map(|j| {
                        if shape[j] == 1 {
                            0
                        } else {
                            own[j] * index[lead + j]
                        }
                    })
                    .sum::<usize>() as isize
            };
            for (n, got) in seen.into_iter().enumerate() {
                let mut rest = n;
                let index: Vec<usize> = strides(&out)
                    .iter()
                    .map(|s| {
                        let i = rest / s;
                        rest %= s;
                        i
                    })
                    .collect();
                assert_eq!(got, (place(&a, &index), place(&b, &index)));
            }
        }
    }
}
