//! Elements chosen by indices that are tokens.

use super::super::cx::{AxisSpec, volume};
use super::super::index::strides;
use super::super::movement::EyeSpec;
use super::super::places::{CacheWriteSpec, GatherBlocksSpec, Join, ReverseSpec, ScatterSpec};
use super::super::reduce::{TopKSpec, around};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::lang::Val;
use zbmd_gpu_ir::tensor::function::{greatest, least};
use zbmd_gpu_ir::tensor::moves::{Place, gather, wrapped};
use zbmd_gpu_ir::tensor::{TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// Coordinates of an element: `sizes` of a dense tensor, outermost first.
fn coordinates<'k>(n: Val<'k>, sizes: &[Val<'k>]) -> Vec<Val<'k>> {
    let mut rest = n;
    let mut out: Vec<Val<'k>> = sizes
        .iter()
        .rev()
        .map(|size| {
            let here = rest % *size;
            rest = rest / *size;
            here
        })
        .collect();
    out.reverse();
    out
}

/// Σ coordinate · step.
fn dot<'k>(coordinates: &[Val<'k>], steps: &[Val<'k>], zero: Val<'k>) -> Val<'k> {
    coordinates
        .iter()
        .zip(steps)
        .fold(zero, |sum, (&c, &s)| sum + c * s)
}

impl Gpu<'_> {
    pub(in super::super) fn gather(&self, spec: &AxisSpec) -> Lowered {
        let (from, places) = (self.dims(0)?, self.dims(1)?);
        let ends = (self.slot(0)?, self.out(0));
        let extra = [self.slot(1)?];
        let plan = KernelPlan::default();
        let axis = spec.axis;
        let (_, n, inner) = around(&from, axis);
        let sizes = [n, inner, volume(&places)];
        gather(plan, "gather", ends, None, &extra, &sizes, |at| {
            let &[n, inner, count] = at.sizes else {
                unreachable!("three sizes")
            };
            let (i, rest) = (at.element % inner, at.element / inner);
            let index = at.indices[0].index(at.firing, rest % count);
            let row = (rest / count) * n + wrapped(index, n);
            Place {
                inside: None,
                at: row * inner + i,
            }
        })
    }

    pub(in super::super) fn gather_elements(&self, spec: &AxisSpec) -> Lowered {
        let (from, places) = (self.dims(0)?, self.dims(1)?);
        let ends = (self.slot(0)?, self.out(0));
        let extra = [self.slot(1)?];
        let plan = KernelPlan::default();
        let axis = spec.axis;
        let rank = from.len();
        let own = strides(&from);
        let sizes: Vec<usize> = places
            .iter()
            .chain(&own)
            .copied()
            .chain([from[axis]])
            .collect();
        gather(
            plan,
            "gather elements",
            ends,
            None,
            &extra,
            &sizes,
            move |at| {
                let k = at.element.builder();
                let mut here = coordinates(at.element, &at.sizes[..rank]);
                let index = at.indices[0].index(at.firing, at.element);
                here[axis] = wrapped(index, at.sizes[2 * rank]);
                Place {
                    inside: None,
                    at: dot(&here, &at.sizes[rank..2 * rank], k.u32(0)),
                }
            },
        )
    }

    /// Blocks at lists of indices.
    pub(in super::super) fn gather_blocks(&self, spec: &GatherBlocksSpec) -> Lowered {
        let (from, places) = (self.dims(0)?, self.dims(1)?);
        let batch = spec.batch_dims;
        let Some((&depth, lead)) = places.split_last() else {
            return Err("its indices are a scalar".to_owned());
        };
        let own = strides(&from);
        let block = volume(&from[batch + depth..]);
        let (per, step) = (volume(&lead[batch..]), volume(&from[batch..]));
        let mut sizes = vec![block, per, step];
        sizes.extend((batch..batch + depth).flat_map(|d| [from[d], own[d]]));
        let ends = (self.slot(0)?, self.out(0));
        let extra = [self.slot(1)?];
        gather(
            KernelPlan::default(),
            "gather blocks",
            ends,
            None,
            &extra,
            &sizes,
            move |at| {
                let (list, within) = (at.element / at.sizes[0], at.element % at.sizes[0]);
                let first = (list / at.sizes[1]) * at.sizes[2];
                let place = (0..depth).fold(first, |place, j| {
                    let which = list * depth as u32 + j as u32;
                    let index = at.indices[0].index(at.firing, which);
                    place + wrapped(index, at.sizes[3 + 2 * j]) * at.sizes[4 + 2 * j]
                });
                Place {
                    inside: None,
                    at: place + within,
                }
            },
        )
    }

    pub(in super::super) fn one_hot(&self, spec: &AxisSpec) -> Lowered {
        let at = self.dims(0)?;
        let axis = spec.axis;
        let depth = self.out_dims(0)[axis];
        let inner = volume(&at[axis..]);
        let (values, y) = (self.slot(2)?, self.out(0));
        let (indices, sizes) = ([self.slot(0)?], [depth, inner]);
        gather(
            KernelPlan::default(),
            "one hot",
            (values, y),
            None,
            &indices,
            &sizes,
            |at| {
                let k = at.element.builder();
                let (depth, inner) = (at.sizes[0], at.sizes[1]);
                let (i, rest) = (at.element % inner, at.element / inner);
                let index = at.indices[0].index(at.firing, (rest / depth) * inner + i);
                let place = k.select(index.lt(k.i32(0)), index + depth.cast(index.ty), index);
                let on = place.eq((rest % depth).cast(index.ty));
                Place {
                    inside: None,
                    at: k.select(on, k.u32(1), k.u32(0)),
                }
            },
        )
    }

    pub(in super::super) fn reverse_sequence(&self, spec: &ReverseSpec) -> Lowered {
        let from = self.dims(0)?;
        let batch = spec.batch_axis;
        let block = volume(&from[2..]);
        let sizes = [block, from[1], from[1 - batch]];
        let ends = (self.slot(0)?, self.out(0));
        let lengths = [self.slot(1)?];
        gather(
            KernelPlan::default(),
            "reverse",
            ends,
            None,
            &lengths,
            &sizes,
            move |at| {
                let k = at.element.builder();
                let (within, rest) = (at.element % at.sizes[0], at.element / at.sizes[0]);
                let (row, column) = (rest / at.sizes[1], rest % at.sizes[1]);
                let (b, t) = if batch == 0 {
                    (row, column)
                } else {
                    (column, row)
                };
                let len = at.indices[0].index(at.firing, b);
                let len = len.max(k.i32(0)).cast(t.ty).min(at.sizes[2]);
                let t = k.select(t.lt(len), len - 1 - t, t);
                let (row, column) = if batch == 0 { (b, t) } else { (t, b) };
                Place {
                    inside: None,
                    at: (row * at.sizes[1] + column) * at.sizes[0] + within,
                }
            },
        )
    }

    /// Updates put where indices say: one thread for each element of the result looks for its updates in their order,
    /// so that it does not matter which comes first.
    pub(in super::super) fn scatter(&self, spec: &ScatterSpec) -> Lowered {
        let (from, places, updates) = (self.dims(0)?, self.dims(1)?, self.dims(2)?);
        let by_element = spec.axis.is_some();
        let axis = spec.axis.unwrap_or(0);
        let depth = places.last().copied().unwrap_or(1);
        let lists = if by_element {
            places[axis]
        } else {
            volume(&places) / depth.max(1)
        };
        if lists > 4096 {
            return Err(format!(
                "{lists} updates are too many to look for one by one"
            ));
        }
        let (x, y) = (self.slot(0)?, self.out(0));
        let ty = computed(x.dtype)?;
        let bench = TensorKernelBuilder::new("scatter", 64);
        let k = &bench.k;
        let source = bench.reads(x)?;
        let index = bench.reads_index(self.slot(1)?)?;
        let update = bench.reads(self.slot(2)?)?;
        let target = bench.writes(y)?;
        let each = bench.size(x.elements as usize)?;
        let sizes = |v: &[usize]| {
            v.iter()
                .map(|s| bench.size(*s))
                .collect::<Result<Vec<_>, Why>>()
        };
        let (dims, own) = (sizes(&from)?, sizes(&strides(&from))?);
        let (spots, steps) = (sizes(&places)?, sizes(&strides(&updates))?);
        let count = bench.size(lists)?;
        let block = bench.size(if by_element {
            1
        } else {
            volume(&from[depth..])
        })?;
        k.each(k.firings() * each, |i| {
            let (firing, e) = (i / each, i % each);
            let value = k.var(source.get(firing, e));
            let here = coordinates(e, &dims);
            let put = |at: Val<'_>| {
                let new = update.get(firing, at).cast(ty);
                let old = value.get();
                value.set(match spec.join {
                    Join::Add => old + new,
                    Join::Mul => old * new,
                    Join::Max => greatest(old, new),
                    Join::Min => least(old, new),
                    Join::Set => new,
                });
            };
            k.times(count, |l| {
                if by_element {
                    let mut spot = here.clone();
                    spot[axis] = l;
                    let at = dot(&spot, &steps, k.u32(0));
                    let other = (0..from.len()).filter(|d| *d != axis);
                    let fits = other
                        .map(|d| here[d].lt(spots[d]))
                        .fold(k.u32(0).eq(k.u32(0)), |all, f| all & f);
                    k.if_(fits, || {
                        let to = wrapped(index.index(firing, at), dims[axis]);
                        k.if_(to.eq(here[axis]), || put(at));
                    });
                    return;
                }
                let first = (0..depth).fold(k.u32(0), |sum, j| {
                    let at = index.index(firing, l * depth as u32 + j as u32);
                    sum + wrapped(at, dims[j]) * own[j]
                });
                k.if_(first.le(e) & e.lt(first + block), || {
                    put(l * block + (e - first))
                });
            });
            target.store(i, value.get());
        });
        let grid = Grid::Threads(Amount::each(x.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    /// A cache with an update written into it: each element is of one or the other.
    pub(in super::super) fn tensor_scatter(&self, spec: &CacheWriteSpec) -> Lowered {
        let (from, update) = (self.dims(0)?, self.dims(1)?);
        let axis = spec.axis;
        let circular = spec.circular;
        let (outer, n, inner) = around(&from, axis);
        let count = update[axis];
        if !circular && count > 1 {
            return Err(
                "no GPU kernel for updates that may run over the end of the cache".to_owned(),
            );
        }
        let x = self.slot(0)?;
        let ty = computed(x.dtype)?;
        let bench = TensorKernelBuilder::new("write into a cache", 64);
        let k = &bench.k;
        let (old, new) = (bench.reads(x)?, bench.reads(self.slot(1)?)?);
        let starts = self
            .opt_slot(2)?
            .map(|s| bench.reads_index(s))
            .transpose()?;
        let target = bench.writes(self.out(0))?;
        let (n_on, inner, count) = (bench.size(n)?, bench.size(inner)?, bench.size(count)?);
        let per = bench.size((outer / from[0].max(1)).max(1))?;
        let each = bench.size(x.elements as usize)?;
        k.each(k.firings() * each, |i| {
            let (firing, e) = (i / each, i % each);
            let (within, rest) = (e % inner, e / inner);
            let (place, o) = (rest % n_on, rest / n_on);
            let start = match starts {
                Some(starts) => starts.index(firing, o / per),
                None => k.i32(0),
            };
            // How far behind the start, round the end where the cache is a circle.
            let start = if circular {
                let n = n_on.cast(start.ty);
                let rest = start - (start / n) * n;
                k.select(rest.lt(k.i32(0)), rest + n, rest).cast(place.ty)
            } else {
                wrapped(start.max(k.i32(0)), n_on)
            };
            let behind = place - start;
            let behind = k.select(place.lt(start), behind + n_on, behind);
            let value = k.var(k.number(ty, 0.0));
            k.if_else(
                behind.lt(count),
                || value.set(new.get(firing, (o * count + behind) * inner + within)),
                || value.set(old.get(firing, e)),
            );
            target.store(i, value.get());
        });
        let grid = Grid::Threads(Amount::each(x.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    pub(in super::super) fn eye_like(&self, spec: &EyeSpec) -> Lowered {
        let [_, columns] = self.out_dims(0)[..] else {
            return Err("it is no matrix".to_owned());
        };
        let y = self.out(0);
        let ty = computed(y.dtype)?;
        let bench = TensorKernelBuilder::new("diagonal", 64);
        let k = &bench.k;
        let target = bench.writes(y)?;
        let (columns, each) = (bench.size(columns)?, bench.size(y.elements as usize)?);
        let shift = bench.step(spec.diagonal as isize)?;
        k.each(k.firings() * each, |i| {
            let e = i % each;
            let on = (e % columns).eq(e / columns + shift);
            target.store(i, k.select(on, k.number(ty, 1.0), k.number(ty, 0.0)));
        });
        let grid = Grid::Threads(Amount::each(y.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    /// The k greatest or least: each element counts those that come before it.
    pub(in super::super) fn top_k(&self, spec: &TopKSpec) -> Lowered {
        let dims = self.dims(0)?;
        let axis = spec.axis;
        let largest = spec.takes_largest;
        let (_, n, inner) = around(&dims, axis);
        let most = self.out_dims(0)[axis];
        let x = self.slot(0)?;
        if n > 8192 || self.outs[0].elements() == 0 {
            return Err(format!(
                "{n} elements are too many to be ranked by counting"
            ));
        }
        let bench = TensorKernelBuilder::new("rank", 64);
        let k = &bench.k;
        let source = bench.reads(x)?;
        let values = self.wanted(0).map(|s| bench.writes(s)).transpose()?;
        let places = self.wanted(1).map(|s| bench.writes_index(s)).transpose()?;
        let (n_on, inner, most) = (bench.size(n)?, bench.size(inner)?, bench.size(most)?);
        let each = bench.size(x.elements as usize)?;
        k.each(k.firings() * each, |i| {
            let (firing, e) = (i / each, i % each);
            let (within, rest) = (e % inner, e / inner);
            let (own, o) = (rest % n_on, rest / n_on);
            let first = source.base(firing) + o * n_on * inner + within;
            let v = source.load(first + own * inner);
            let rank = k.var(k.u32(0));
            k.times(n_on, |j| {
                let other = source.load(first + j * inner);
                let before = if largest { v.lt(other) } else { other.lt(v) };
                let before = before | (other.eq(v) & j.lt(own));
                rank.set(rank.get() + before.cast(rank.get().ty));
            });
            k.if_(rank.get().lt(most), || {
                let rows = n_on * inner;
                // The results of all firings lie one behind the other too.
                let o_all = i / rows;
                let to = (o_all * most + rank.get()) * inner + within;
                if let Some(values) = values {
                    values.store(to, v);
                }
                if let Some(places) = places {
                    places.store(to, own);
                }
            });
        });
        let grid = Grid::Threads(Amount::each(x.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}
