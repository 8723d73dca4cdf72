//! Kernels that move elements without looking at them: by steps, by a table, by indices.

use super::space::Space;
use super::{Slot, TensorKernelBuilder, Why};
use crate::lang::{Mem, Ty, Val};
use crate::plan::{Amount, Grid, KernelPlan, Operand};

/// A copy of elements of `size` bytes that lie `steps` apart on either side.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Strided {
    pub size: usize,
    pub dims: Vec<usize>,
    /// Element at which it begins, and steps along the dimensions: of what is read, and of what is written.
    pub from: (usize, Vec<isize>),
    pub to: (usize, Vec<isize>),
}

/// Bytes of a token of either side.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Ends {
    pub from: (Operand, u64),
    /// Whether what is read is the same in every firing.
    pub constant: bool,
    pub to: (Operand, u64),
}

/// Adds a strided copy to a plan: words of four bytes where everything is a multiple of them.
pub fn copy(plan: KernelPlan, ends: Ends, copy: &Strided) -> Result<KernelPlan, Why> {
    if copy.dims.contains(&0) {
        return Ok(plan);
    }
    // In bytes, with the bytes of an element as the last dimension.
    let element_bytes = copy.size as isize;
    let to_bytes = |steps: &[isize]| -> Vec<isize> {
        steps
            .iter()
            .map(|s| s.saturating_mul(element_bytes))
            .chain([1])
            .collect()
    };

    let copy_dims: Vec<usize> = copy.dims.iter().copied().chain([copy.size]).collect();
    // Merged first, because the longest run of bytes decides the word.
    let byte_runs = Runs::new(&copy_dims, &to_bytes(&copy.from.1), &to_bytes(&copy.to.1));
    let start_offsets = (copy.from.0 * copy.size, copy.to.0 * copy.size);
    let word_bytes = byte_runs.unit([
        start_offsets.0,
        start_offsets.1,
        ends.from.1 as usize,
        ends.to.1 as usize,
    ]);
    let (copy_dims, from, to) = byte_runs.in_units(word_bytes);
    let words_per_firing: usize = copy_dims.iter().product();
    let bench = TensorKernelBuilder::new("strided copy", 64);
    let k = &bench.k;
    let word_memory = Mem::word(word_bytes as u64);
    let input_binding = bench.binds(ends.from.0, word_memory, false);
    let output_binding = bench.binds(ends.to.0, word_memory, true);
    let word_total = bench.size(words_per_firing)?;
    let token_from = bench.size(if ends.constant {
        0
    } else {
        ends.from.1 as usize / word_bytes
    })?;
    let token_to = bench.size(ends.to.1 as usize / word_bytes)?;
    let start_offsets = (
        bench.size(start_offsets.0 / word_bytes)?,
        bench.size(start_offsets.1 / word_bytes)?,
    );
    let tensor_places = Space::new(&copy_dims, &[from, to]).on(&bench)?;

    k.each(k.firings() * word_total, |i| {
        let firing_index = i / word_total;
        let word_places = tensor_places.at(i % word_total);
        let copied_word = k.load(
            input_binding,
            firing_index * token_from + start_offsets.0 + word_places[0],
        );
        k.store(
            output_binding,
            firing_index * token_to + start_offsets.1 + word_places[1],
            copied_word.cast(Ty::U32),
        );
    });
    Ok(bench.finish(plan, Grid::Threads(Amount::each(words_per_firing as u64))))
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
        let mut merged_runs = Runs {
            dims: Vec::new(),
            from: Vec::new(),
            to: Vec::new(),
        };
        for i in 0..dims.len() {
            let dim_size = dims[i] as isize;
            if dim_size == 1 && i + 1 < dims.len() {
                continue;
            }
            let last_dim = merged_runs.dims.len().wrapping_sub(1);
            let continues_last = merged_runs.dims.last().is_some()
                && merged_runs.from[last_dim] == from[i].saturating_mul(dim_size)
                && merged_runs.to[last_dim] == to[i].saturating_mul(dim_size);

            if continues_last {
                merged_runs.dims[last_dim] *= dims[i];
                (merged_runs.from[last_dim], merged_runs.to[last_dim]) = (from[i], to[i]);
            } else {
                merged_runs.dims.push(dims[i]);
                merged_runs.from.push(from[i]);
                merged_runs.to.push(to[i]);
            }
        }

        merged_runs
    }

    /// Bytes of the largest word that divides everything.
    fn unit(&self, others: [usize; 4]) -> usize {
        let last_dim = self.dims.len() - 1;
        let outer_steps = self.from[..last_dim]
            .iter()
            .chain(&self.to[..last_dim])
            .map(|s| s.unsigned_abs());
        let divides_all = |unit: usize| {
            self.dims[last_dim].is_multiple_of(unit)
                && outer_steps
                    .clone()
                    .chain(others)
                    .all(|v| v.is_multiple_of(unit))
        };
        [4, 2].into_iter().find(|u| divides_all(*u)).unwrap_or(1)
    }

    fn in_units(mut self, unit: usize) -> (Vec<usize>, Vec<isize>, Vec<isize>) {
        let last_dim = self.dims.len() - 1;
        self.dims[last_dim] /= unit;
        let scale_steps = |steps: &mut Vec<isize>| {
            steps[..last_dim]
                .iter_mut()
                .for_each(|s| *s /= unit as isize);
        };
        scale_steps(&mut self.from);
        scale_steps(&mut self.to);
        (self.dims, self.from, self.to)
    }
}

impl TensorKernelBuilder {
    /// The next binding, as words.
    pub fn binds(&self, operand: Operand, mem: Mem, writes: bool) -> u32 {
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

/// `y[i] = x[place(i)]` for every element, `place` being computed in the kernel; where it says that there is none, the
/// fill value or 0.
///
/// Elements have `x.dtype`'s size. `extra` are tensors of indices that `place` may read.
pub fn gather(
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
    let bench = TensorKernelBuilder::new(name, 64);
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
        let firing = i / each;
        let element = i % each;
        let at = At {
            firing,
            element,
            indices: &indices,
            sizes: &sizes,
        };

        let Place { inside, at } = place(&at);
        // Elements of eight bytes are moved as two words.
        let move_all = |from: u32, first: Val<'_>| {
            for part in 0..parts as u32 {
                let p = first * parts as u32 + part;
                let q = i * parts as u32 + part;
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
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct At<'k, 'a> {
    pub firing: Val<'k>,
    /// Number of the element in its token.
    pub element: Val<'k>,
    pub indices: &'a [super::Tensor<'k>],
    pub sizes: &'a [Val<'k>],
}

/// An element of what is read; where `inside` does not hold there is none.
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Place<'k> {
    pub inside: Option<Val<'k>>,
    pub at: Val<'k>,
}

/// By a table with an element of x for each element of y, `u32::MAX` for the fill value; `table` is its operand.
pub fn by_table(
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
pub fn wrapped<'k>(index: Val<'k>, n: Val<'k>) -> Val<'k> {
    let k = index.builder();
    let zero = k.i32(0);
    let n = n.cast(Ty::I32);
    let place = k.select(index.lt(zero), index + n, index);
    place.max(zero).min(n - 1).cast(Ty::U32)
}
