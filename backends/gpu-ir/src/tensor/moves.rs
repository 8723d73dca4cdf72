//! Kernels that move elements without looking at them: by steps, by a table, by indices.

use super::space::Space;
use super::{Slot, TensorKernelBuilder, Why};
use crate::lang::{Builder, Mem, Ty, Val};
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

/// How elements are moved: as one word or two.
#[derive(Clone, Copy)]
struct ElementWords {
    memory: Mem,
    count: u32,
}

impl ElementWords {
    /// Elements of eight bytes are two words, because not every device has one of that size.
    fn of_bytes(bytes: u64) -> Self {
        match bytes {
            8 => Self {
                memory: Mem::U32,
                count: 2,
            },
            bytes => Self {
                memory: Mem::word(bytes),
                count: 1,
            },
        }
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
    place: impl for<'k> Fn(&GatheredElement<'k, '_>) -> SourcePlace<'k>,
) -> Result<KernelPlan, Why> {
    if y.elements == 0 {
        return Ok(plan);
    }

    let words = ElementWords::of_bytes(y.dtype.size_bytes());
    let bench = TensorKernelBuilder::new(name, 64);
    let k = &bench.k;
    let source = bench.binds(x.operand, words.memory, false);
    let indices = extra
        .iter()
        .map(|slot| bench.reads_index(*slot))
        .collect::<Result<Vec<_>, Why>>()?;
    let fill_binding = fill.map(|fill| bench.binds(fill.operand, words.memory, false));
    let target = bench.binds(y.operand, words.memory, true);
    let elements_per_firing = bench.size(y.elements as usize)?;
    // A constant is the same in every firing: its firings are no elements apart.
    let source_elements = bench.size(if x.constant { 0 } else { x.elements as usize })?;
    let fill_elements = match fill {
        Some(fill) if !fill.constant => Some(bench.size(fill.elements as usize)?),
        _ => None,
    };
    let bound_sizes = sizes
        .iter()
        .map(|size| bench.size(*size))
        .collect::<Result<Vec<_>, Why>>()?;
    let mover = WordMover { k, words, target };

    k.each(k.firings() * elements_per_firing, |i| {
        let firing = i / elements_per_firing;
        let SourcePlace { inside, place } = place(&GatheredElement {
            firing,
            element: i % elements_per_firing,
            indices: &indices,
            sizes: &bound_sizes,
        });

        let source_place = firing * source_elements + place;
        // Every element has a source: no branch is made.
        let Some(inside) = inside else {
            return mover.copy_element(source, source_place, i);
        };
        k.if_else(
            inside,
            || mover.copy_element(source, source_place, i),
            || match fill_binding {
                Some(fill_binding) => {
                    let fill_place = match fill_elements {
                        Some(fill_elements) => firing * fill_elements,
                        None => k.u32(0),
                    };
                    mover.copy_element(fill_binding, fill_place, i);
                }
                None => mover.clear_element(i),
            },
        );
    });
    Ok(bench.finish(plan, Grid::Threads(Amount::each(y.elements))))
}

/// Writes elements of a target word by word.
struct WordMover<'k> {
    k: &'k Builder,
    words: ElementWords,
    target: u32,
}

impl<'k> WordMover<'k> {
    fn copy_element(&self, source: u32, source_place: Val<'k>, target_place: Val<'k>) {
        let count = self.words.count;
        for part in 0..count {
            let from = source_place * count + part;
            let to = target_place * count + part;
            self.k.store(self.target, to, self.k.load(source, from));
        }
    }

    fn clear_element(&self, target_place: Val<'k>) {
        let count = self.words.count;
        for part in 0..count {
            self.k
                .store(self.target, target_place * count + part, self.k.u32(0));
        }
    }
}

/// An element of the result of a [`gather`]: what its place follows from.
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct GatheredElement<'k, 'a> {
    pub firing: Val<'k>,
    /// Number of the element in its token.
    pub element: Val<'k>,
    pub indices: &'a [super::Tensor<'k>],
    pub sizes: &'a [Val<'k>],
}

/// An element of what is read; where `inside` does not hold there is none.
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct SourcePlace<'k> {
    pub inside: Option<Val<'k>>,
    pub place: Val<'k>,
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
        SourcePlace {
            inside: Some(inside),
            place: place.cast(Ty::U32),
        }
    })
}

/// An index that may count from the end, below `len`; the nearest one where it is outside.
pub fn wrapped<'k>(index: Val<'k>, len: Val<'k>) -> Val<'k> {
    let k = index.builder();
    let zero = k.i32(0);
    let signed_len = len.cast(Ty::I32);
    let place = k.select(index.lt(zero), index + signed_len, index);
    place.max(zero).min(signed_len - 1).cast(Ty::U32)
}
