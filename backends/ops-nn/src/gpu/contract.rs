//! Products of matrices.

use super::super::cx::volume;
use super::super::gemm::Act;
use super::super::index::broadcast;
use super::super::matmul::{EinsumSpec, GemmSpec, MatMulSpec};
use super::libraries::Epilogue;
use super::{Choice, Gpu, Lowered, is_factor, said};
use zbmd_gpu_ir::KernelPlan;
use zbmd_gpu_ir::lang::Ty;
use zbmd_gpu_ir::tensor::function::After;
use zbmd_gpu_ir::tensor::product::{Element, Grows, Rules, Sizes, Variant, places, product};
use zbmd_gpu_ir::tensor::space::{Space, dense, spread};
use zbmd_gpu_ir::tensor::{Tensor, Why, computed};

/// A number that is taken off each element of a matrix: one, or one for each of its rows or columns.
type Zero<'k> = Option<(Tensor<'k>, bool)>;

/// An activation, in a kernel.
pub(super) fn after(act: Act) -> After {
    match act {
        Act::None => After::Nothing,
        Act::Relu => After::Relu,
        Act::Clip(low, high) => After::Clip(low, high),
        Act::Sigmoid => After::Sigmoid,
        Act::Tanh => After::Tanh,
        Act::Silu => After::Silu,
        Act::Gelu => After::Gelu,
        Act::HardSwish => After::HardSwish,
    }
}

impl Gpu<'_> {
    /// Batched products of bytes with their zero points taken off.
    pub(in super::super) fn matmul_integer(&self) -> Lowered {
        self.batched_product(None)
    }

    /// Batched products with a bias for each column.
    pub(in super::super) fn matmul(&self, spec: &MatMulSpec) -> Lowered {
        self.batched_product(Some(spec))
    }

    /// `spec` is that of products of numbers; there is none for bytes.
    fn batched_product(&self, spec: Option<&MatMulSpec>) -> Lowered {
        let (mut a, mut b) = (self.dims(0)?, self.dims(1)?);
        if a.len() == 1 {
            a.insert(0, 1);
        }
        if b.len() == 1 {
            b.push(1);
        }
        let (m, depth, n) = (a[a.len() - 2], a[a.len() - 1], b[b.len() - 1]);
        let (ba, bb) = (&a[..a.len() - 2], &b[..b.len() - 2]);
        let batch = broadcast(&[ba, bb]).map_err(said)?;
        let z = self.out(0);
        let integers = spec.is_none();
        let ty = if integers {
            Ty::I32
        } else {
            computed(z.dtype)?
        };
        let math = self.math(ty);
        let (x, y) = (self.factor(0, math)?, self.factor(1, math)?);
        // One matrix for all rows of all batches and firings.
        let stacked = y.constant && !x.constant && volume(bb) == 1;
        let sizes = match stacked {
            true => Sizes {
                batches: 1,
                rows: volume(&a) / depth.max(1),
                columns: n,
                depth,
                grows: Grows::Rows,
            },
            false => Sizes {
                batches: volume(&batch),
                rows: m,
                columns: n,
                depth,
                grows: Grows::Batches,
            },
        };
        let small = ty != Ty::F32 && ty != Ty::I32;
        let kernels = if small {
            vec![Variant::Elements]
        } else {
            sizes.variants(false, math)
        };
        let bias = if integers { None } else { self.opt_slot(2)? };
        let act = spec.map_or(Act::None, |spec| spec.act);
        let epilogue = Epilogue { bias, act };
        let library =
            self.matmul_by_library([x, y], [ba, bb], [m, n, depth], epilogue, kernels[0])?;
        let variant = match self.choose(&kernels, library) {
            Choice::Kernel(variant) => variant,
            Choice::Library(product) => return Ok(KernelPlan::by_library(product)),
        };
        let bench = Sizes::bench("matrix product", variant);
        let (left, right) = (bench.reads(x)?, bench.reads(y)?);
        let after = after(act);
        let bias = bias.map(|slot| bench.reads(slot)).transpose()?;
        let zero = |i: usize| -> Result<Zero<'_>, Why> {
            let Some(slot) = self.opt_slot(i)?.filter(|_| integers) else {
                return Ok(None);
            };
            Ok(Some((bench.reads(slot)?, slot.elements > 1)))
        };
        let zeros = [zero(2)?, zero(3)?];
        let target = bench.writes(z)?;
        let (depth_on, columns, rows) = (
            bench.size(depth)?,
            bench.size(n)?,
            bench.size(if stacked { sizes.rows } else { m })?,
        );
        let count = bench.size(volume(&batch))?;
        let steps = |own: &[usize], size: usize| -> Vec<isize> {
            spread(&batch, own)
                .iter()
                .map(|s| s * size as isize)
                .collect()
        };
        let space = Space::new(&batch, &[steps(ba, m * depth), steps(bb, depth * n)]);
        let spots = space.on(&bench)?;
        let left_at = places(|b, row, d| {
            let at = row * depth_on + d;
            b.first().map_or(at, |first| *first + at)
        });
        let right_at = places(|b, d, column| {
            let at = d * columns + column;
            b.get(1).map_or(at, |first| *first + at)
        });
        let left_bits: Element<'_, '_> = &|b, row, d| left.bits(left_at(b, row, d));
        let right_bits: Element<'_, '_> = &|b, d, column| right.bits(right_at(b, d, column));
        let rules = Rules {
            batch: &|b| {
                if stacked {
                    return vec![];
                }
                let (firing, at) = (b / count, spots.at(b % count));
                vec![
                    left.base(firing) + at[0],
                    right.base(firing) + at[1],
                    b * rows,
                    firing,
                ]
            },
            left: &|b, row, d| {
                let v = left.load(left_at(b, row, d)).cast(ty);
                match zeros[0] {
                    Some((zero, many)) => {
                        let k = v.builder();
                        let firing = b.get(3).copied().unwrap_or_else(|| k.u32(0));
                        let place = if many { row % rows } else { k.u32(0) };
                        v - zero.get(firing, place).cast(ty)
                    }
                    None => v,
                }
            },
            right: &|b, d, column| {
                let v = right.load(right_at(b, d, column)).cast(ty);
                match zeros[1] {
                    Some((zero, many)) => {
                        let k = v.builder();
                        let firing = b.get(3).copied().unwrap_or_else(|| k.u32(0));
                        let place = if many { column } else { k.u32(0) };
                        v - zero.get(firing, place).cast(ty)
                    }
                    None => v,
                }
            },
            left_bits: is_factor(x, math).then_some(left_bits),
            right_bits: is_factor(y, math).then_some(right_bits),
            store: &|b, row, column, sum| {
                let sum = match bias {
                    Some(bias) => sum + bias.load(column),
                    None => sum,
                };
                let row = b.get(2).map_or(row, |first| *first + row);
                target.store(row * columns + column, after.of(sum));
            },
            ty,
        };
        // A zero point that is a port or one for each row belongs to a firing of its own.
        if stacked && integers && zeros[0].is_some_and(|z| z.1 || !z.0.is_constant()) {
            return Err("no GPU kernel for zero points of many rows".to_owned());
        }
        if stacked && zeros[1].is_some_and(|z| !z.0.is_constant()) {
            return Err("no GPU kernel for zero points that vary".to_owned());
        }
        let grid = product(&bench, &sizes, variant, &rules)?;
        self.rounded(
            bench.finish(KernelPlan::default(), grid),
            variant,
            [x, y],
            math,
        )
    }

    /// alpha · a · b + beta · c.
    pub(in super::super) fn gemm(&self, spec: &GemmSpec) -> Lowered {
        let (a, b) = (self.dims(0)?, self.dims(1)?);
        let [ta, tb] = spec.transposes;
        let (m, depth) = if ta { (a[1], a[0]) } else { (a[0], a[1]) };
        let n = if tb { b[0] } else { b[1] };
        let alpha = spec.alpha;
        let beta = spec.beta;
        let z = self.out(0);
        let ty = computed(z.dtype)?;
        let math = self.math(ty);
        let (x, y) = (self.factor(0, math)?, self.factor(1, math)?);
        if !ty.is_float() && (alpha, beta) != (1.0, 1.0) {
            return Err("no GPU kernel for scaled products of integers".to_owned());
        }
        let added = self.opt_slot(2)?;
        let stacked = y.constant && !x.constant && !ta && added.is_none_or(|c| c.constant);
        let grows = if stacked { Grows::Rows } else { Grows::Batches };
        let sizes = Sizes {
            batches: 1,
            rows: m,
            columns: n,
            depth,
            grows,
        };
        let exact = ty != Ty::F32;
        let kernels = if exact {
            vec![Variant::Elements]
        } else {
            sizes.variants(tb, math)
        };
        let scales = [alpha, beta];
        let library = self.gemm_by_library(
            [x, y],
            [ta, tb],
            [m, n, depth],
            scales,
            spec.act,
            kernels[0],
        )?;
        let variant = match self.choose(&kernels, library) {
            Choice::Kernel(variant) => variant,
            Choice::Library(product) => return Ok(KernelPlan::by_library(product)),
        };
        let bench = Sizes::bench("product and sum", variant);
        let (left, right) = (bench.reads(x)?, bench.reads(y)?);
        let c = added.map(|slot| bench.reads(slot)).transpose()?;
        let target = bench.writes(z)?;
        let after = after(spec.act);
        let (rows, columns, inner) = (bench.size(m)?, bench.size(n)?, bench.size(depth)?);
        let own = if added.is_some() {
            self.dims(2)?
        } else {
            vec![]
        };
        let spots = Space::new(&[m, n], &[spread(&[m, n], &own)]).on(&bench)?;
        let left_at = places(|b, row, d| {
            let at = if ta { d * rows + row } else { row * inner + d };
            // Stacked rows count through all firings.
            if stacked { at } else { left.base(b[0]) + at }
        });
        let right_at = places(|b, d, column| {
            let at = if tb {
                column * inner + d
            } else {
                d * columns + column
            };
            if y.constant {
                at
            } else {
                right.base(b[0]) + at
            }
        });
        let left_bits: Element<'_, '_> = &|b, row, d| left.bits(left_at(b, row, d));
        let right_bits: Element<'_, '_> = &|b, d, column| right.bits(right_at(b, d, column));
        let rules = Rules {
            batch: &|b| vec![b],
            left: &|b, row, d| left.load(left_at(b, row, d)),
            right: &|b, d, column| right.load(right_at(b, d, column)),
            left_bits: is_factor(x, math).then_some(left_bits),
            right_bits: is_factor(y, math).then_some(right_bits),
            store: &|b, row, column, sum| {
                let scaled = if alpha == 1.0 {
                    sum
                } else {
                    sum * sum.like(alpha)
                };
                let value = match c {
                    Some(c) => {
                        let at = spots.at((row % rows) * columns + column)[0];
                        let more = c.get(b[0], at);
                        scaled
                            + if beta == 1.0 {
                                more
                            } else {
                                more * more.like(beta)
                            }
                    }
                    None => scaled,
                };
                let row = if stacked { row } else { b[0] * rows + row };
                target.store(row * columns + column, after.of(value));
            },
            ty,
        };
        let grid = product(&bench, &sizes, variant, &rules)?;
        self.rounded(
            bench.finish(KernelPlan::default(), grid),
            variant,
            [x, y],
            math,
        )
    }

    /// Einstein's sums of two operands at most: one thread for each element of the result.
    pub(in super::super) fn einsum(&self, spec: &EinsumSpec) -> Lowered {
        let terms = &spec.terms;
        if !spec.is_explicit || terms.len() > 4 {
            return Err("no GPU kernel for sums with `...` or without `->`".to_owned());
        }
        let sizes = &spec.sizes;
        let out = &spec.out;
        let rest: Vec<char> = sizes.keys().copied().filter(|c| !out.contains(c)).collect();
        let steps = |i: usize, over: &[char]| -> Result<Vec<isize>, Why> {
            let (shape, own) = (self.dims(i)?, dense(&self.dims(i)?));
            let of = |c: &char| {
                let here = terms[i].iter().enumerate().filter(|(_, l)| *l == c);
                here.map(|(j, _)| if shape[j] == 1 { 0 } else { own[j] })
                    .sum()
            };
            Ok(over.iter().map(of).collect())
        };
        let lens = |over: &[char]| -> Vec<usize> { over.iter().map(|c| sizes[c]).collect() };
        let space = |over: &[char]| -> Result<Space, Why> {
            let steps = (0..terms.len())
                .map(|i| steps(i, over))
                .collect::<Result<Vec<_>, Why>>()?;
            Ok(Space::new(&lens(over), &steps))
        };
        let y = self.out(0);
        let ty = computed(y.dtype)?;
        let bench = zbmd_gpu_ir::tensor::TensorKernelBuilder::new("sum of products", 64);
        let k = &bench.k;
        let inputs = (0..terms.len())
            .map(|i| bench.reads(self.slot(i)?))
            .collect::<Result<Vec<_>, Why>>()?;
        let target = bench.writes(y)?;
        let (kept, over) = (space(out)?.on(&bench)?, space(&rest)?.on(&bench)?);
        let each = bench.size(y.elements as usize)?;
        let len = bench.size(volume(&lens(&rest)))?;
        k.each(k.firings() * each, |i| {
            let (firing, first) = (i / each, kept.at(i % each));
            let sum = k.var(k.number(ty, 0.0));
            k.times(len, |e| {
                let more = over.at(e);
                let product = inputs
                    .iter()
                    .enumerate()
                    .map(|(n, t)| t.get(firing, first[n] + more[n]))
                    .reduce(|a, b| a * b);
                sum.set(sum.get() + product.unwrap_or_else(|| k.number(ty, 0.0)));
            });
            target.store(i, sum.get());
        });
        let grid = zbmd_gpu_ir::Grid::Threads(zbmd_gpu_ir::Amount::each(y.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}
