//! Kernels that move elements without looking at them: by steps, by a table, by indices.

use super::space::Space;
use super::{Bench, Slot, Why};
use crate::kernels::lang::{Mem, Ty, Val};
use crate::kernels::plan::{Amount, Grid, KernelPlan, Operand};

/// A copy of elements of `size` bytes that lie `steps` apart on either side.
#[derive(Clone, Debug)]
pub(crate) struct Strided {
    pub(crate) size: usize,
    pub(crate) dims: Vec<usize>,
    /// Element at which it begins, and steps along the dimensions: of what is read, and of what is written.
    pub(crate) from: (usize, Vec<isize>),
    pub(crate) to: (usize, Vec<isize>),
}

/// Bytes of a token of either side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) from: (Operand, u64),
    /// Whether what is read is the same in every firing.
    pub(crate) constant: bool,
    pub(crate) to: (Operand, u64),
}

/// Adds a strided copy to a plan: words of four bytes where everything is a multiple of them.
pub(crate) fn copy(plan: KernelPlan, ends: Ends, copy: &Strided) -> Result<KernelPlan, Why> {
    if copy.dims.contains(&0) {
        return Ok(plan);
    }
    // In bytes, with the bytes of an element as the last dimension.
    let size = copy.size as isize;
    let bytes = |steps: &[isize]| -> Vec<isize> {
        steps
            .iter()
            .map(|s| s.saturating_mul(size))
            .chain([1])
            .collect()
    };
    let dims: Vec<usize> = copy.dims.iter().copied().chain([copy.size]).collect();
    let runs = Runs::new(&dims, &bytes(&copy.from.1), &bytes(&copy.to.1));
    let starts = (copy.from.0 * copy.size, copy.to.0 * copy.size);
    let unit = runs.unit([starts.0, starts.1, ends.from.1 as usize, ends.to.1 as usize]);
    let (dims, from, to) = runs.in_units(unit);
    let each: usize = dims.iter().product();
    let bench = Bench::new("strided copy", 64);
    let k = &bench.k;
    let mem = Mem::word(unit as u64);
    let (x, y) = (
        bench.binds(ends.from.0, mem, false),
        bench.binds(ends.to.0, mem, true),
    );
    let all = bench.size(each)?;
    let token_from = bench.size(if ends.constant {
        0
    } else {
        ends.from.1 as usize / unit
    })?;
    let token_to = bench.size(ends.to.1 as usize / unit)?;
    let starts = (bench.size(starts.0 / unit)?, bench.size(starts.1 / unit)?);
    let places = Space::new(&dims, &[from, to]).on(&bench)?;
    k.each(k.firings() * all, |i| {
        let (firing, at) = (i / all, places.at(i % all));
        let value = k.load(x, firing * token_from + starts.0 + at[0]);
        k.store(y, firing * token_to + starts.1 + at[1], value.cast(Ty::U32));
    });
    Ok(bench.finish(plan, Grid::Threads(Amount::each(each as u64))))
}

/// Dimensions of a copy in bytes.
struct Runs {
    dims: Vec<usize>,
    from: Vec<isize>,
    to: Vec<isize>,
}

impl Runs {
    /// Merges the innermost dimensions, so that the last one is as long a run of bytes as there is.
    fn new(dims: &[usize], from: &[isize], to: &[isize]) -> Self {
        let mut runs = Runs {
            dims: Vec::new(),
            from: Vec::new(),
            to: Vec::new(),
        };
        for i in 0..dims.len() {
            let dim = dims[i] as isize;
            if dim == 1 && i + 1 < dims.len() {
                continue;
            }
            let last = runs.dims.len().wrapping_sub(1);
            let joins = runs.dims.last().is_some()
                && runs.from[last] == from[i].saturating_mul(dim)
                && runs.to[last] == to[i].saturating_mul(dim);
            if joins {
                runs.dims[last] *= dims[i];
                (runs.from[last], runs.to[last]) = (from[i], to[i]);
            } else {
                runs.dims.push(dims[i]);
                runs.from.push(from[i]);
                runs.to.push(to[i]);
            }
        }
        runs
    }

    /// Bytes of the largest word that divides everything.
    fn unit(&self, others: [usize; 4]) -> usize {
        let last = self.dims.len() - 1;
        let steps = self.from[..last]
            .iter()
            .chain(&self.to[..last])
            .map(|s| s.unsigned_abs());
        let fits = |unit: usize| {
            self.dims[last].is_multiple_of(unit)
                && steps.clone().chain(others).all(|v| v.is_multiple_of(unit))
        };
        [4, 2].into_iter().find(|u| fits(*u)).unwrap_or(1)
    }

    fn in_units(mut self, unit: usize) -> (Vec<usize>, Vec<isize>, Vec<isize>) {
        let last = self.dims.len() - 1;
        self.dims[last] /= unit;
        let scale = |steps: &mut Vec<isize>| {
            steps[..last].iter_mut().for_each(|s| *s /= unit as isize);
        };
        scale(&mut self.from);
        scale(&mut self.to);
        (self.dims, self.from, self.to)
    }
}

impl Bench {
    /// The next binding, as words.
    pub(crate) fn binds(&self, operand: Operand, mem: Mem, writes: bool) -> u32 {
        self.operands.borrow_mut().push(operand);
        if writes {
            self.k.writes(mem)
        } else {
            self.k.reads(mem)
        }
    }
}

/// Words of an element: their memory, bytes and number.
fn words(size: usize) -> (Mem, usize, usize) {
    match size {
        8 => (Mem::U32, 4, 2),
        size => (Mem::word(size as u64), size, 1),
    }
}

/// y[i] = x[place(i)] for every element, `place` being computed in the kernel; where it says that there is none, the
/// fill value or 0.
///
/// Elements have `x.dtype`'s size. `extra` are tensors of indices that `place` may read.
pub(crate) fn gather(
    plan: KernelPlan,
    name: &'static str,
    (x, y): (Slot, Slot),
    fill: Option<Slot>,
    extra: &[Slot],
    sizes: &[usize],
    place: impl for<'k> Fn(&At<'k, '_>) -> Place<'k>,
) -> Result<KernelPlan, Why> {
    if y.elements == 0 {
        return Ok(plan);
    }
    let (mem, _, parts) = words(y.dtype.size_bytes() as usize);
    let bench = Bench::new(name, 64);
    let k = &bench.k;
    let from = bench.binds(x.operand, mem, false);
    let indices = extra
        .iter()
        .map(|s| bench.reads_index(*s))
        .collect::<Result<Vec<_>, Why>>()?;
    let filler = fill.map(|f| bench.binds(f.operand, mem, false));
    let to = bench.binds(y.operand, mem, true);
    let each = bench.size(y.elements as usize)?;
    let token = bench.size(if x.constant { 0 } else { x.elements as usize })?;
    let token_fill = match fill {
        Some(f) if !f.constant => Some(bench.size(f.elements as usize)?),
        _ => None,
    };
    let sizes = sizes
        .iter()
        .map(|s| bench.size(*s))
        .collect::<Result<Vec<_>, Why>>()?;
    k.each(k.firings() * each, |i| {
        let (firing, element) = (i / each, i % each);
        let at = At {
            firing,
            element,
            indices: &indices,
            sizes: &sizes,
        };
        let Place { inside, at } = place(&at);
        let move_all = |from: u32, first: Val<'_>| {
            for part in 0..parts as u32 {
                let (p, q) = (first * parts as u32 + part, i * parts as u32 + part);
                k.store(to, q, k.load(from, p));
            }
        };
        let place = firing * token + at;
        let Some(inside) = inside else {
            return move_all(from, place);
        };
        k.if_else(
            inside,
            || move_all(from, place),
            || match filler {
                Some(filler) => {
                    let first = token_fill.map_or_else(|| k.u32(0), |t| firing * t);
                    move_all(filler, first);
                }
                None => {
                    for part in 0..parts as u32 {
                        k.store(to, i * parts as u32 + part, k.u32(0));
                    }
                }
            },
        );
    });
    Ok(bench.finish(plan, Grid::Threads(Amount::each(y.elements))))
}

/// What the place of an element follows from.
pub(crate) struct At<'k, 'a> {
    pub(crate) firing: Val<'k>,
    /// Number of the element in its token.
    pub(crate) element: Val<'k>,
    pub(crate) indices: &'a [super::Tensor<'k>],
    pub(crate) sizes: &'a [Val<'k>],
}

/// An element of what is read; where `inside` does not hold there is none.
pub(crate) struct Place<'k> {
    pub(crate) inside: Option<Val<'k>>,
    pub(crate) at: Val<'k>,
}

/// By a table with an element of x for each element of y, `u32::MAX` for the fill value; `table` is its operand.
pub(crate) fn by_table(
    plan: KernelPlan,
    (x, y): (Slot, Slot),
    fill: Option<Slot>,
    table: Operand,
) -> Result<KernelPlan, Why> {
    let elements = y.elements;
    let table = Slot {
        operand: table,
        dtype: zbmd_ir::DType::I32,
        elements,
        constant: true,
    };
    gather(plan, "copy by table", (x, y), fill, &[table], &[], |at| {
        let place = at.indices[0].index(at.firing, at.element);
        let inside = place.ne(place.builder().i32(-1));
        Place {
            inside: Some(inside),
            at: place.cast(Ty::U32),
        }
    })
}

/// An index that may count from the end, within `n`; the nearest one where it lies outside.
pub(crate) fn wrapped<'k>(index: Val<'k>, n: Val<'k>) -> Val<'k> {
    let k = index.builder();
    let (zero, n) = (k.i32(0), n.cast(Ty::I32));
    let place = k.select(index.lt(zero), index + n, index);
    place.max(zero).min(n - 1).cast(Ty::U32)
}
