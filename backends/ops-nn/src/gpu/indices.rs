//! Elements chosen by indices that are tokens.

use super::super::cx::{AxisSpec, volume};
use super::super::index::strides;
use super::super::movement::EyeSpec;
use super::super::places::{CacheWriteSpec, GatherBlocksSpec, Join, ReverseSpec, ScatterSpec};
use super::super::reduce::{TopKSpec, around};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::lang::{Builder, Ty, Val, Var};
use zbmd_gpu_ir::tensor::function::{greatest, least};
use zbmd_gpu_ir::tensor::moves::{GatheredElement, SourcePlace, gather, wrapped};
use zbmd_gpu_ir::tensor::{Tensor, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// Max updates that each element looks through.
const MAX_UPDATES: usize = 4096;
/// Max elements of a row whose ranks are counted: each looks at all others.
const MAX_RANKED: usize = 8192;

/// Coordinates of element `n` of a dense tensor of `sizes`, outermost first.
pub(super) fn coordinates<'k>(n: Val<'k>, sizes: &[Val<'k>]) -> Vec<Val<'k>> {
    let mut remaining = n;
    let mut innermost_first = Vec::with_capacity(sizes.len());
    for size in sizes.iter().rev() {
        innermost_first.push(remaining % *size);
        remaining = remaining / *size;
    }
    innermost_first.reverse();
    innermost_first
}

/// The element of a dense tensor of `sizes` at some coordinates.
pub(super) fn place_of<'k>(coordinates: &[Val<'k>], sizes: &[Val<'k>], zero: Val<'k>) -> Val<'k> {
    coordinates
        .iter()
        .zip(sizes)
        .fold(zero, |place, (&coordinate, &size)| {
            place * size + coordinate
        })
}

/// Σ coordinate · step.
fn dot<'k>(coordinates: &[Val<'k>], steps: &[Val<'k>], zero: Val<'k>) -> Val<'k> {
    coordinates
        .iter()
        .zip(steps)
        .fold(zero, |sum, (&coordinate, &step)| sum + coordinate * step)
}

/// Sizes bound to a kernel.
fn bind_sizes<'k>(bench: &'k TensorKernelBuilder, sizes: &[usize]) -> Result<Vec<Val<'k>>, Why> {
    sizes.iter().map(|size| bench.size(*size)).collect()
}

/// Updates of a tensor, bound to a kernel.
struct Updates<'k> {
    k: &'k Builder,
    indices: Tensor<'k>,
    updates: Tensor<'k>,
    join: Join,
    /// Sizes and steps of the tensor that is updated.
    dims: Vec<Val<'k>>,
    steps: Vec<Val<'k>>,
    /// Sizes of the indices, and steps of the updates.
    index_dims: Vec<Val<'k>>,
    update_steps: Vec<Val<'k>>,
    /// Indices that each element looks through.
    count: Val<'k>,
    ty: Ty,
}

impl<'k> Updates<'k> {
    /// Joins an update with a value.
    fn put(&self, value: Var<'k>, firing: Val<'k>, update_place: Val<'k>) {
        let update = self.updates.get(firing, update_place).cast(self.ty);
        let old = value.get();
        value.set(match self.join {
            Join::Add => old + update,
            Join::Mul => old * update,
            Join::Max => greatest(old, update),
            Join::Min => least(old, update),
            Join::Set => update,
        });
    }

    /// Updates by element: the indices have the rank of the tensor, and name places along one axis. Index `n` along the
    /// axis, at an element's other coordinates, is the only one of its number that may name the element.
    fn put_by_element(
        &self,
        value: Var<'k>,
        firing: Val<'k>,
        coordinates: &[Val<'k>],
        axis: usize,
        n: Val<'k>,
    ) {
        let k = self.k;
        let mut index_coordinates = coordinates.to_vec();
        index_coordinates[axis] = n;
        let index_place = dot(&index_coordinates, &self.update_steps, k.u32(0));
        let other_axes = (0..coordinates.len()).filter(|d| *d != axis);
        let has_index = other_axes
            .map(|d| coordinates[d].lt(self.index_dims[d]))
            .fold(k.u32(0).eq(k.u32(0)), |all, fits| all & fits);
        k.if_(has_index, || {
            let index = self.indices.index(firing, index_place);
            let named = wrapped(index, self.dims[axis]);
            k.if_(named.eq(coordinates[axis]), || {
                self.put(value, firing, index_place)
            });
        });
    }

    /// Updates by block: list `n` of `depth` indices names a block of elements.
    fn put_by_block(
        &self,
        value: Var<'k>,
        firing: Val<'k>,
        element: Val<'k>,
        lists: IndexLists<'k>,
        n: Val<'k>,
    ) {
        let k = self.k;
        let depth = lists.depth;
        let block_start = (0..depth).fold(k.u32(0), |sum, j| {
            let place = n * depth as u32 + j as u32;
            let index = self.indices.index(firing, place);
            sum + wrapped(index, self.dims[j]) * self.steps[j]
        });
        let is_within = block_start.le(element) & element.lt(block_start + lists.block);
        k.if_(is_within, || {
            let update_place = n * lists.block + (element - block_start);
            self.put(value, firing, update_place);
        });
    }
}

/// Lists of indices, each of which names a block.
#[derive(Clone, Copy)]
struct IndexLists<'k> {
    /// Indices of a list.
    depth: usize,
    /// Elements of a block.
    block: Val<'k>,
}

impl Gpu<'_> {
    /// Elements of operand 0 at places by operand 1; `sizes` are bound to the kernel.
    fn gathered(
        &self,
        name: &'static str,
        sizes: &[usize],
        place: impl for<'k> Fn(&GatheredElement<'k, '_>) -> Val<'k>,
    ) -> Lowered {
        let ends = (self.slot(0)?, self.out(0));
        let indices = [self.slot(1)?];
        let plan = KernelPlan::default();
        gather(plan, name, ends, None, &indices, sizes, |at| SourcePlace {
            inside: None,
            place: place(at),
        })
    }

    pub(in super::super) fn gather(&self, spec: &AxisSpec) -> Lowered {
        let (_, axis_len, inner) = around(&self.dims(0)?, spec.axis);
        let sizes = [axis_len, inner, volume(&self.dims(1)?)];
        self.gathered("gather", &sizes, |at| {
            let &[axis_len, inner, index_count] = at.sizes else {
                unreachable!("three sizes")
            };
            let within = at.element % inner;
            let row = at.element / inner;
            let index = at.indices[0].index(at.firing, row % index_count);
            let source_row = (row / index_count) * axis_len + wrapped(index, axis_len);
            source_row * inner + within
        })
    }

    pub(in super::super) fn gather_elements(&self, spec: &AxisSpec) -> Lowered {
        let source_dims = self.dims(0)?;
        let axis = spec.axis;
        let rank = source_dims.len();
        // The sizes of the indices, the steps of what is read, and its length along the axis.
        let mut sizes = self.dims(1)?;
        sizes.extend(strides(&source_dims));
        sizes.push(source_dims[axis]);
        self.gathered("gather elements", &sizes, |at| {
            let k = at.element.builder();
            let mut source_coordinates = coordinates(at.element, &at.sizes[..rank]);
            let index = at.indices[0].index(at.firing, at.element);
            source_coordinates[axis] = wrapped(index, at.sizes[2 * rank]);
            dot(&source_coordinates, &at.sizes[rank..2 * rank], k.u32(0))
        })
    }

    /// Blocks at lists of indices.
    pub(in super::super) fn gather_blocks(&self, spec: &GatherBlocksSpec) -> Lowered {
        let source_dims = self.dims(0)?;
        let index_dims = self.dims(1)?;
        let batch_dims = spec.batch_dims;
        let Some((&depth, list_dims)) = index_dims.split_last() else {
            return Err("its indices are a scalar".to_owned());
        };

        // A block, the lists and the elements of a batch, then size and step of each dimension that is indexed.
        let block = volume(&source_dims[batch_dims + depth..]);
        let lists_per_batch = volume(&list_dims[batch_dims..]);
        let elements_per_batch = volume(&source_dims[batch_dims..]);
        let mut sizes = vec![block, lists_per_batch, elements_per_batch];
        let source_steps = strides(&source_dims);
        for d in batch_dims..batch_dims + depth {
            sizes.extend([source_dims[d], source_steps[d]]);
        }
        self.gathered("gather blocks", &sizes, |at| {
            let [block, lists_per_batch, elements_per_batch, ref indexed @ ..] = *at.sizes else {
                unreachable!("three sizes at least")
            };
            let list = at.element / block;
            let within = at.element % block;
            let batch_start = (list / lists_per_batch) * elements_per_batch;
            let block_start = (0..depth).fold(batch_start, |start, j| {
                let which = list * depth as u32 + j as u32;
                let index = at.indices[0].index(at.firing, which);
                start + wrapped(index, indexed[2 * j]) * indexed[2 * j + 1]
            });
            block_start + within
        })
    }

    pub(in super::super) fn one_hot(&self, spec: &AxisSpec) -> Lowered {
        let depth = self.out_dims(0)[spec.axis];
        let inner = volume(&self.dims(0)?[spec.axis..]);
        // Operand 2 has the two values, for all other places and for the named one.
        let ends = (self.slot(2)?, self.out(0));
        let indices = [self.slot(0)?];
        let sizes = [depth, inner];
        let plan = KernelPlan::default();
        gather(plan, "one hot", ends, None, &indices, &sizes, |at| {
            let k = at.element.builder();
            let depth = at.sizes[0];
            let inner = at.sizes[1];
            let within = at.element % inner;
            let row = at.element / inner;
            let index = at.indices[0].index(at.firing, (row / depth) * inner + within);
            let is_negative = index.lt(k.i32(0));
            let named = k.select(is_negative, index + depth.cast(index.ty), index);
            let is_named = named.eq((row % depth).cast(index.ty));
            SourcePlace {
                inside: None,
                place: k.select(is_named, k.u32(1), k.u32(0)),
            }
        })
    }

    pub(in super::super) fn reverse_sequence(&self, spec: &ReverseSpec) -> Lowered {
        let source_dims = self.dims(0)?;
        let is_batch_first = spec.batch_axis == 0;
        let block = volume(&source_dims[2..]);
        let max_len = source_dims[1 - spec.batch_axis];
        let sizes = [block, source_dims[1], max_len];
        self.gathered("reverse", &sizes, |at| {
            let &[block, columns, max_len] = at.sizes else {
                unreachable!("three sizes")
            };
            let k = at.element.builder();
            let within = at.element % block;
            let block_number = at.element / block;
            let row = block_number / columns;
            let column = block_number % columns;
            let batch = if is_batch_first { row } else { column };
            let time = if is_batch_first { column } else { row };

            let given_len = at.indices[0].index(at.firing, batch);
            let len = given_len.max(k.i32(0)).cast(time.ty).min(max_len);
            let source_time = k.select(time.lt(len), len - 1 - time, time);
            let source_row = if is_batch_first { batch } else { source_time };
            let source_column = if is_batch_first { source_time } else { batch };
            (source_row * columns + source_column) * block + within
        })
    }

    /// Updates put where indices say: one thread for each element of the result looks for its updates in their order,
    /// so that it does not matter which comes first.
    pub(in super::super) fn scatter(&self, spec: &ScatterSpec) -> Lowered {
        let source_dims = self.dims(0)?;
        let index_dims = self.dims(1)?;
        // Indices of elements name places along an axis; those of blocks are lists along the last dimension.
        let depth = index_dims.last().copied().unwrap_or(1);
        let count = match spec.axis {
            Some(axis) => index_dims[axis],
            None => volume(&index_dims) / depth.max(1),
        };
        if count > MAX_UPDATES {
            return Err(format!(
                "{count} updates are too many to look for one by one"
            ));
        }

        let source_slot = self.slot(0)?;
        let bench = TensorKernelBuilder::new("scatter", 64);
        let k = &bench.k;
        let source = bench.reads(source_slot)?;
        let indices = bench.reads_index(self.slot(1)?)?;
        let updates = bench.reads(self.slot(2)?)?;
        let target = bench.writes(self.out(0))?;
        let elements_per_firing = bench.size(source_slot.elements as usize)?;
        let kernel = Updates {
            k,
            indices,
            updates,
            join: spec.join,
            dims: bind_sizes(&bench, &source_dims)?,
            steps: bind_sizes(&bench, &strides(&source_dims))?,
            index_dims: bind_sizes(&bench, &index_dims)?,
            update_steps: bind_sizes(&bench, &strides(&self.dims(2)?))?,
            count: bench.size(count)?,
            ty: computed(source_slot.dtype)?,
        };
        let lists = IndexLists {
            depth,
            block: bench.size(match spec.axis {
                Some(_) => 1,
                None => volume(&source_dims[depth..]),
            })?,
        };

        k.each(k.firings() * elements_per_firing, |i| {
            let firing = i / elements_per_firing;
            let element = i % elements_per_firing;
            let value = k.var(source.get(firing, element));
            let own_coordinates = coordinates(element, &kernel.dims);
            k.times(kernel.count, |n| match spec.axis {
                Some(axis) => kernel.put_by_element(value, firing, &own_coordinates, axis, n),
                None => kernel.put_by_block(value, firing, element, lists, n),
            });
            target.store(i, value.get());
        });

        let grid = Grid::Threads(Amount::each(source_slot.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    /// A cache with an update written into it: each element is of one or the other.
    pub(in super::super) fn tensor_scatter(&self, spec: &CacheWriteSpec) -> Lowered {
        let cache_dims = self.dims(0)?;
        let (outer, axis_len, inner) = around(&cache_dims, spec.axis);
        let update_len = self.dims(1)?[spec.axis];
        if !spec.circular && update_len > 1 {
            return Err(
                "no GPU kernel for updates that may run over the end of the cache".to_owned(),
            );
        }

        let cache_slot = self.slot(0)?;
        let ty = computed(cache_slot.dtype)?;
        let bench = TensorKernelBuilder::new("write into a cache", 64);
        let k = &bench.k;
        let cache = bench.reads(cache_slot)?;
        let update = bench.reads(self.slot(1)?)?;
        let starts = self.bind_index(&bench, 2)?;
        let target = bench.writes(self.out(0))?;
        let axis_len = bench.size(axis_len)?;
        let inner = bench.size(inner)?;
        let update_len = bench.size(update_len)?;
        let rows_per_batch = bench.size((outer / cache_dims[0].max(1)).max(1))?;
        let elements_per_firing = bench.size(cache_slot.elements as usize)?;

        k.each(k.firings() * elements_per_firing, |i| {
            let firing = i / elements_per_firing;
            let element = i % elements_per_firing;
            let within = element % inner;
            let place_number = element / inner;
            let place = place_number % axis_len;
            let row = place_number / axis_len;
            let given_start = match starts {
                Some(starts) => starts.index(firing, row / rows_per_batch),
                None => k.i32(0),
            };
            let start = match spec.circular {
                true => round_circle(given_start, axis_len),
                false => wrapped(given_start.max(k.i32(0)), axis_len),
            };

            // How far behind the start, round the end where the cache is a circle.
            let distance = place - start;
            let distance = k.select(place.lt(start), distance + axis_len, distance);
            let value = k.var(k.number(ty, 0.0));
            k.if_else(
                distance.lt(update_len),
                || {
                    let update_place = (row * update_len + distance) * inner + within;
                    value.set(update.get(firing, update_place));
                },
                || value.set(cache.get(firing, element)),
            );
            target.store(i, value.get());
        });

        let grid = Grid::Threads(Amount::each(cache_slot.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    pub(in super::super) fn eye_like(&self, spec: &EyeSpec) -> Lowered {
        let [_, columns] = self.out_dims(0)[..] else {
            return Err("it is not a matrix".to_owned());
        };
        let target_slot = self.out(0);
        let ty = computed(target_slot.dtype)?;
        let bench = TensorKernelBuilder::new("diagonal", 64);
        let k = &bench.k;
        let target = bench.writes(target_slot)?;
        let columns = bench.size(columns)?;
        let elements_per_firing = bench.size(target_slot.elements as usize)?;
        let diagonal = bench.step(spec.diagonal as isize)?;

        k.each(k.firings() * elements_per_firing, |i| {
            let element = i % elements_per_firing;
            let is_on_diagonal = (element % columns).eq(element / columns + diagonal);
            let one = k.number(ty, 1.0);
            let zero = k.number(ty, 0.0);
            target.store(i, k.select(is_on_diagonal, one, zero));
        });

        let grid = Grid::Threads(Amount::each(target_slot.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    /// The greatest or least elements of each row: each element counts those that come before it.
    pub(in super::super) fn top_k(&self, spec: &TopKSpec) -> Lowered {
        let (_, row_len, inner) = around(&self.dims(0)?, spec.axis);
        let taken_count = self.out_dims(0)[spec.axis];
        let source_slot = self.slot(0)?;
        if row_len > MAX_RANKED || self.outs[0].elements() == 0 {
            return Err(format!(
                "{row_len} elements are too many to be ranked by counting"
            ));
        }

        let bench = TensorKernelBuilder::new("rank", 64);
        let k = &bench.k;
        let source = bench.reads(source_slot)?;
        let values = self.wanted(0).map(|slot| bench.writes(slot)).transpose()?;
        let places = self
            .wanted(1)
            .map(|slot| bench.writes_index(slot))
            .transpose()?;
        let row_len = bench.size(row_len)?;
        let inner = bench.size(inner)?;
        let taken_count = bench.size(taken_count)?;
        let elements_per_firing = bench.size(source_slot.elements as usize)?;

        k.each(k.firings() * elements_per_firing, |i| {
            let firing = i / elements_per_firing;
            let element = i % elements_per_firing;
            let within = element % inner;
            let place_number = element / inner;
            let own_place = place_number % row_len;
            let outer = place_number / row_len;
            let row_start = source.base(firing) + outer * row_len * inner + within;
            let own_value = source.load(row_start + own_place * inner);

            let rank = k.var(k.u32(0));
            k.times(row_len, |other_place| {
                let other_value = source.load(row_start + other_place * inner);
                let is_better = match spec.takes_largest {
                    true => own_value.lt(other_value),
                    false => other_value.lt(own_value),
                };
                // Of equal elements, the first one comes first.
                let is_before = is_better | (other_value.eq(own_value) & other_place.lt(own_place));
                rank.set(rank.get() + is_before.cast(rank.get().ty));
            });

            k.if_(rank.get().lt(taken_count), || {
                // The results of all firings follow each other too.
                let row = i / (row_len * inner);
                let result_place = (row * taken_count + rank.get()) * inner + within;
                if let Some(values) = values {
                    values.store(result_place, own_value);
                }
                if let Some(places) = places {
                    places.store(result_place, own_place);
                }
            });
        });

        let grid = Grid::Threads(Amount::each(source_slot.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}

/// A place that may count from the end, round a circle of `len` places.
fn round_circle<'k>(place: Val<'k>, len: Val<'k>) -> Val<'k> {
    let k = place.builder();
    let signed_len = len.cast(place.ty);
    // The remainder has the sign of the place.
    let remainder = place - (place / signed_len) * signed_len;
    let is_negative = remainder.lt(k.i32(0));
    k.select(is_negative, remainder + signed_len, remainder)
        .cast(len.ty)
}
