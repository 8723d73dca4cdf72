//! Windows that slide over images: convolutions and pools.

use super::super::conv::{CausalConvSpec, ConvShape, ConvSpec, TransposedConvSpec};
use super::super::cx::volume;
use super::super::gemm::Act;
use super::super::pool::{PoolKind, PoolSpec};
use super::super::window::Window;
use super::contract::after;
use super::{Choice, Gpu, Lowered, is_factor};
use zbmd_gpu_ir::lang::{Builder, Ty, Val};
use zbmd_gpu_ir::tensor::function::{After, sigmoid};
use zbmd_gpu_ir::tensor::product::{Element, Grows, Rules, Sizes, Variant, places, product};
use zbmd_gpu_ir::tensor::{Tensor, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// One spatial dimension of a window in a kernel.
#[derive(Clone, Copy)]
struct Axis<'k> {
    input: Val<'k>,
    output: Val<'k>,
    kernel: Val<'k>,
    stride: Val<'k>,
    dilation: Val<'k>,
    before: Val<'k>,
    /// Whether a place may lie outside of the input.
    padded: bool,
    /// Whether there is anything to walk along.
    trivial: bool,
}

/// A window in a kernel: its dimensions, outermost first.
struct Slide<'k>(Vec<Axis<'k>>);

impl<'k> Slide<'k> {
    fn new(bench: &'k TensorKernelBuilder, w: &Window) -> Result<Self, Why> {
        let axis = |d: usize| -> Result<Axis<'k>, Why> {
            let reach = (w.output[d] - 1) * w.stride[d] + (w.kernel[d] - 1) * w.dilation[d];
            Ok(Axis {
                input: bench.size(w.input[d])?,
                output: bench.size(w.output[d])?,
                kernel: bench.size(w.kernel[d])?,
                stride: bench.size(w.stride[d])?,
                dilation: bench.size(w.dilation[d])?,
                before: bench.size(w.before[d])?,
                padded: w.before[d] > 0 || reach >= w.input[d],
                trivial: w.input[d] == 1
                    && w.output[d] == 1
                    && w.kernel[d] == 1
                    && w.before[d] == 0,
            })
        };
        let rank = 3 - w.rank..3;
        Ok(Slide(rank.map(axis).collect::<Result<Vec<_>, Why>>()?))
    }

    /// Coordinates of element `n` of a plane of the output.
    fn spot(&self, n: Val<'k>) -> Vec<Val<'k>> {
        split(n, self.0.iter().map(|a| a.output))
    }

    /// Coordinates of element `n` of a kernel.
    fn tap(&self, n: Val<'k>) -> Vec<Val<'k>> {
        split(n, self.0.iter().map(|a| a.kernel))
    }

    /// The element of a plane of the input under a tap, and whether there is one.
    fn place(&self, spot: &[Val<'k>], tap: &[Val<'k>]) -> (Val<'k>, Option<Val<'k>>) {
        let k = self.0[0].input.builder();
        let (mut at, mut inside): (Val<'k>, Option<Val<'k>>) = (k.u32(0), None);
        for (d, axis) in self.0.iter().enumerate() {
            if axis.trivial {
                continue;
            }
            // Below 0 it wraps to more than any input has.
            let here = spot[d] * axis.stride + tap[d] * axis.dilation - axis.before;
            if axis.padded {
                let fits = here.lt(axis.input);
                inside = Some(inside.map_or(fits, |all| all & fits));
            }
            at = at * axis.input + here;
        }
        (at, inside)
    }
}

/// Coordinates of an element of a dense tensor.
fn split<'k>(n: Val<'k>, sizes: impl DoubleEndedIterator<Item = Val<'k>>) -> Vec<Val<'k>> {
    let mut rest = n;
    let mut out: Vec<Val<'k>> = sizes
        .rev()
        .map(|size| {
            let here = rest % size;
            rest = rest / size;
            here
        })
        .collect();
    out.reverse();
    out
}

/// What is loaded where there is something, else 0.
fn guarded<'k>(inside: Option<Val<'k>>, ty: Ty, load: impl FnOnce() -> Val<'k>) -> Val<'k> {
    let Some(inside) = inside else { return load() };
    let k = inside.builder();
    let value = k.var(k.number(ty, 0.0));
    k.if_(inside, || value.set(load().cast(ty)));
    value.get()
}

impl Gpu<'_> {
    /// The same of bytes.
    pub(in super::super) fn conv_integer(&self, shape: &ConvShape) -> Lowered {
        self.gathered_conv(shape, None)
    }

    /// A product of filters with gathered windows for each group of channels; the outputs of all batches and firings
    /// are columns of one matrix.
    pub(in super::super) fn conv(&self, spec: &ConvSpec) -> Lowered {
        self.gathered_conv(&spec.shape, Some(spec.act))
    }

    /// `act` is that of convolutions of floats; there is none for bytes.
    fn gathered_conv(&self, shape: &ConvShape, act: Option<Act>) -> Lowered {
        let integers = act.is_none();
        let groups = shape.groups;
        let w = &shape.window;
        let (batch, channels, filters) = (shape.batch, shape.channels, shape.filters);
        let (per, each) = (channels / groups, filters / groups);
        let (plane, out, kernel) = w.sizes();
        let (x, y) = (self.slot(0)?, self.out(0));
        if self.operand(1)?.data.is_none() || x.constant {
            let Some(act) = act else {
                return Err("no GPU kernel for integer filters that vary".to_owned());
            };
            return self.conv_of_ports(shape, act);
        }
        let ty = if integers {
            Ty::I32
        } else {
            computed(x.dtype)?
        };
        let math = self.math(ty);
        let weights = self.factor(1, math)?;
        let sizes = Sizes {
            batches: groups,
            rows: each,
            columns: batch * out,
            depth: per * kernel,
            grows: Grows::Columns,
        };
        let kernels = match ty {
            Ty::F32 => sizes.variants(true, math),
            _ => vec![Variant::Elements],
        };
        let Choice::Kernel(variant) = self.choose(&kernels, None) else {
            return Err("the library has no convolutions".to_owned());
        };
        let bench = Sizes::bench("convolution", variant);
        let (source, filter) = (bench.reads(x)?, bench.reads(weights)?);
        let bound = |i: usize| -> Result<Option<Tensor<'_>>, Why> {
            self.opt_slot(i)?.map(|s| bench.reads(s)).transpose()
        };
        let (second, third) = (bound(2)?, bound(3)?);
        // Of integers these are zero points.
        let none = (None, None);
        let (bias, added) = if integers { none } else { (second, third) };
        let (zero_x, zero_w) = if integers { (second, third) } else { none };
        let target = bench.writes(y)?;
        let slide = Slide::new(&bench, w)?;
        let after = act.map_or(After::Nothing, after);
        let (plane, out, kernel) = (bench.size(plane)?, bench.size(out)?, bench.size(kernel)?);
        let (per_on, each_on) = (bench.size(per)?, bench.size(each)?);
        let (channels, filters) = (bench.size(channels)?, bench.size(filters)?);
        let depth = bench.size(sizes.depth)?;
        let k = &bench.k;
        let pointwise = volume(&w.kernel) == 1;
        if integers
            && [2, 3]
                .iter()
                .any(|i| self.opt(*i).is_some_and(|o| o.ty.elements() > 1))
        {
            return Err("no GPU kernel for zero points of each filter".to_owned());
        }
        if [zero_x, zero_w].iter().flatten().any(|z| !z.is_constant()) {
            return Err("no GPU kernel for zero points that vary".to_owned());
        }
        let filter_at = places(|b, row, d| (b[1] + row) * depth + d);
        let left_bits: Element<'_, '_> = &|b, row, d| filter.bits(filter_at(b, row, d));
        let rules = Rules {
            batch: &|g| vec![g * per_on, g * each_on],
            left: &|b, row, d| {
                let v = filter.load(filter_at(b, row, d)).cast(ty);
                zero_w.map_or(v, |z| v - z.load(k.u32(0)).cast(ty))
            },
            right: &|b, d, column| {
                let (image, n) = (column / out, column % out);
                let (channel, tap) = if pointwise {
                    (d, k.u32(0))
                } else {
                    (d / kernel, d % kernel)
                };
                let first = (image * channels + b[0] + channel) * plane;
                let taps = slide.tap(tap);
                let (at, inside) = slide.place(&slide.spot(n), &taps);
                guarded(inside, ty, || {
                    let v = source.load(first + at).cast(ty);
                    zero_x.map_or(v, |z| v - z.load(k.u32(0)).cast(ty))
                })
            },
            left_bits: is_factor(weights, math).then_some(left_bits),
            right_bits: None,
            store: &|b, row, column, sum| {
                let (image, n) = (column / out, column % out);
                let filter = b[1] + row;
                let at = (image * filters + filter) * out + n;
                let mut sum = sum;
                if let Some(bias) = bias {
                    sum = sum + bias.load(filter);
                }
                if let Some(added) = added {
                    sum = sum + added.load(at);
                }
                target.store(at, after.of(sum));
            },
            ty,
        };
        if bias.is_some_and(|b| !b.is_constant()) || added.is_some_and(|a| a.is_constant()) {
            return Err("no GPU kernel for a bias that varies".to_owned());
        }
        let grid = product(&bench, &sizes, variant, &rules)?;
        self.rounded(
            bench.finish(KernelPlan::default(), grid),
            variant,
            [x, weights],
            math,
        )
    }

    /// The same with filters that differ in each firing: one thread for each element.
    fn conv_of_ports(&self, shape: &ConvShape, act: Act) -> Lowered {
        let w = &shape.window;
        let batch = shape.batch;
        let groups = shape.groups;
        let per = shape.channels / groups;
        let each = shape.filters / groups;
        let (x, weights, y) = (self.slot(0)?, self.slot(1)?, self.out(0));
        let ty = computed(x.dtype)?;
        let bench = TensorKernelBuilder::new("convolution with ports", 64);
        let k = &bench.k;
        let (source, filter) = (bench.reads(x)?, bench.reads(weights)?);
        let bias = self.opt_slot(2)?.map(|s| bench.reads(s)).transpose()?;
        let added = self.opt_slot(3)?.map(|s| bench.reads(s)).transpose()?;
        let target = bench.writes(y)?;
        let slide = Slide::new(&bench, w)?;
        let after = after(act);
        let (plane, out, kernel) = w.sizes();
        let depth = bench.size(per * kernel)?;
        let (plane, out, kernel) = (bench.size(plane)?, bench.size(out)?, bench.size(kernel)?);
        let (per, each, filters) = (
            bench.size(per)?,
            bench.size(each)?,
            bench.size(each * groups)?,
        );
        let channels = per * (filters / each);
        let all = bench.size(batch)? * filters * out;
        k.each(k.firings() * all, |i| {
            let (firing, at) = (i / all, i % all);
            let (n, rest) = (at % out, at / out);
            let (f, image) = (rest % filters, rest / filters);
            let spot = slide.spot(n);
            let sum = k.var(match bias {
                Some(bias) => bias.get(firing, f),
                None => k.number(ty, 0.0),
            });
            k.times(depth, |d| {
                let first = (image * channels + (f / each) * per + d / kernel) * plane;
                let (at, inside) = slide.place(&spot, &slide.tap(d % kernel));
                let v = guarded(inside, ty, || source.get(firing, first + at));
                sum.set(k.fma(v, filter.get(firing, f * depth + d), sum.get()));
            });
            let sum = match added {
                Some(added) => sum.get() + added.get(firing, at),
                None => sum.get(),
            };
            target.store(i, after.of(sum));
        });
        let grid = Grid::Threads(Amount::each(y.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    /// The transposed convolution as a sum over what each output element comes from.
    pub(in super::super) fn conv_transpose(&self, spec: &TransposedConvSpec) -> Lowered {
        let (input, weights, out) = (self.dims(0)?, self.dims(1)?, self.out_dims(0));
        let groups = spec.groups;
        let rank = spec.rank;
        let own = |all: &[usize; 3]| all[3 - rank..].to_vec();
        let stride = own(&spec.stride);
        let dilation = own(&spec.dilation);
        let before = own(&spec.pads);
        let (x, w, y) = (self.slot(0)?, self.slot(1)?, self.out(0));
        let ty = computed(x.dtype)?;
        let bench = TensorKernelBuilder::new("transposed convolution", 64);
        let k = &bench.k;
        let (source, filter) = (bench.reads(x)?, bench.reads(w)?);
        let bias = self.opt_slot(2)?.map(|s| bench.reads(s)).transpose()?;
        let target = bench.writes(y)?;
        let each = |v: &[usize]| {
            v.iter()
                .map(|s| bench.size(*s))
                .collect::<Result<Vec<_>, Why>>()
        };
        let (ins, outs, kernels) = (each(&input[2..])?, each(&out[2..])?, each(&weights[2..])?);
        let (strides, dilations, pads) = (each(&stride)?, each(&dilation)?, each(&before)?);
        let (plane, spots) = (
            bench.size(volume(&input[2..]))?,
            bench.size(volume(&out[2..]))?,
        );
        let kernel = bench.size(volume(&weights[2..]))?;
        let (per, channels) = (bench.size(weights[1])?, bench.size(input[1] / groups)?);
        let (filters, all_channels) = (bench.size(out[1])?, bench.size(input[1])?);
        let total = bench.size(y.elements as usize)?;
        k.each(k.firings() * total, |i| {
            let (firing, at) = (i / total, i % total);
            let (n, rest) = (at % spots, at / spots);
            let (f, image) = (rest % filters, rest / filters);
            let (group, f_in) = (f / per, f % per);
            let spot = split(n, outs.iter().copied());
            let sum = k.var(match bias {
                Some(bias) => bias.get(firing, f),
                None => k.number(ty, 0.0),
            });
            k.times(kernel, |tap| {
                let taps = split(tap, kernels.iter().copied());
                let mut place = k.u32(0);
                let mut inside: Option<Val<'_>> = None;
                for d in 0..rank {
                    // From where along this dimension, if a window of the input begins there.
                    let reach = spot[d] + pads[d] - taps[d] * dilations[d];
                    let begins =
                        (reach % strides[d]).eq(k.u32(0)) & (reach / strides[d]).lt(ins[d]);
                    inside = Some(inside.map_or(begins, |all| all & begins));
                    place = place * ins[d] + reach / strides[d];
                }
                let Some(inside) = inside else { return };
                k.if_(inside, || {
                    k.times(channels, |c| {
                        let channel = group * channels + c;
                        let v =
                            source.get(firing, (image * all_channels + channel) * plane + place);
                        let w = filter.get(firing, (channel * per + f_in) * kernel + tap);
                        sum.set(k.fma(v, w, sum.get()));
                    });
                });
            });
            target.store(i, sum.get());
        });
        let grid = Grid::Threads(Amount::each(y.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    /// A causal depthwise convolution, and the past that it carries along.
    pub(in super::super) fn causal_conv(&self, spec: &CausalConvSpec) -> Lowered {
        let (input, weights) = (self.dims(0)?, self.dims(1)?);
        let (n, taps, channels) = (input[2], weights[2], input[1]);
        let mut plan = KernelPlan::default();
        for position in 0..2 {
            let Some(y) = self.wanted(position).filter(|y| y.elements > 0) else {
                continue;
            };
            let bench = TensorKernelBuilder::new("causal convolution", 64);
            let k = &bench.k;
            let x = bench.reads(self.slot(0)?)?;
            let past = match self.opt(3).filter(|o| o.ty.elements() > 0) {
                Some(_) => Some(bench.reads(self.slot(3)?)?),
                None => None,
            };
            let ty = computed(y.dtype)?;
            if ty != Ty::F32 {
                return Err("no GPU kernel for f64 causal convolutions".to_owned());
            }
            let w = bench.reads(self.slot(1)?)?;
            let bias = self.opt_slot(2)?.map(|s| bench.reads(s)).transpose()?;
            let target = bench.writes(y)?;
            let (len, kernel, channels) =
                (bench.size(n)?, bench.size(taps)?, bench.size(channels)?);
            let before = bench.size(taps - 1)?;
            let each = bench.size(y.elements as usize)?;
            k.each(k.firings() * each, |i| {
                let (firing, e) = (i / each, i % each);
                if position == 1 {
                    let (row, j) = (e / before, e % before);
                    return target.store(
                        i,
                        element(k, (x, past), [firing, row, len + j], [len, before]),
                    );
                }
                let (row, o) = (e / len, e % len);
                let channel = row % channels;
                let sum = k.var(match bias {
                    Some(bias) => bias.get(firing, channel),
                    None => k.f32(0.0),
                });
                k.times(kernel, |j| {
                    let v = element(k, (x, past), [firing, row, o + j], [len, before]);
                    sum.set(sum.get() + w.get(firing, channel * kernel + j) * v);
                });
                let sum = sum.get();
                let value = match spec.silu {
                    true => sum * sigmoid(sum),
                    false => sum,
                };
                target.store(i, value);
            });
            plan = bench.finish(plan, Grid::Threads(Amount::each(y.elements)));
        }
        Ok(plan)
    }

    /// Pools: one thread for each window.
    pub(in super::super) fn pool(&self, spec: &PoolSpec) -> Lowered {
        let dims = self.dims(0)?;
        let w = &spec.window;
        let max = spec.kind == PoolKind::Max;
        let p = spec.kind.exponent();
        if p > 2 {
            return Err(format!("no GPU kernel for norms with the exponent {p}"));
        }
        let x = self.slot(0)?;
        let ty = computed(x.dtype)?;
        let columns = spec.by_columns;
        let counted = spec.counts_padding;
        let bench = TensorKernelBuilder::new("pool", 64);
        let k = &bench.k;
        let source = bench.reads(x)?;
        let (y, places) = match max {
            true => (self.wanted(0), self.wanted(1)),
            false => (Some(self.out(0)), None),
        };
        let elements = y.or(places).map_or(0, |s| s.elements);
        let y = y.map(|s| bench.writes(s)).transpose()?;
        let places = places.map(|s| bench.writes_index(s)).transpose()?;
        let slide = Slide::new(&bench, w)?;
        let (plane, out, taps) = w.sizes();
        let (plane, out, taps) = (bench.size(plane)?, bench.size(out)?, bench.size(taps)?);
        let planes = bench.size(volume(&dims[..2]))?;
        let ends = (3 - w.rank..3)
            .map(|d| bench.size(w.before[d] + w.input[d] + w.after[d]))
            .collect::<Result<Vec<_>, Why>>()?;
        let least = match ty {
            Ty::F32 | Ty::F64 => k.number(ty, f64::NEG_INFINITY),
            Ty::I32 => k.i32(i32::MIN),
            Ty::I64 => k.bits(ty, i64::MIN as u64),
            _ => k.number(ty, 0.0),
        };
        k.each(k.firings() * planes * out, |i| {
            let (p_all, spot) = (i / out, slide.spot(i % out));
            let first = p_all * plane;
            // Constants are the same in every firing.
            let first = if x.constant {
                (p_all % planes) * plane
            } else {
                first
            };
            let sum = k.var(if max { least } else { k.number(ty, 0.0) });
            let (best, count) = (k.var(k.u32(u32::MAX)), k.var(k.u32(0)));
            k.times(taps, |t| {
                let tap = slide.tap(t);
                let (at, inside) = slide.place(&spot, &tap);
                let cover = || {
                    let v = source.load(first + at);
                    if max {
                        let none = best.get().eq(k.u32(u32::MAX));
                        let so_far = sum.get();
                        let better = so_far.lt(v) | none | (v.ne(v) & so_far.eq(so_far));
                        best.set(k.select(better, at, best.get()));
                        return sum.set(k.select(better, v, so_far));
                    }
                    let more = match p {
                        1 => v.abs(),
                        2 => v * v,
                        _ => v,
                    };
                    sum.set(sum.get() + more);
                    if !counted {
                        count.set(count.get() + 1);
                    }
                };
                match inside {
                    Some(inside) => k.if_(inside, cover),
                    None => cover(),
                }
                if counted {
                    // Padding counts, but nothing beyond it.
                    let within = slide
                        .0
                        .iter()
                        .enumerate()
                        .map(|(d, a)| (spot[d] * a.stride + tap[d] * a.dilation).lt(ends[d]));
                    let all = within.reduce(|a, b| a & b);
                    let one = all.map_or_else(|| k.u32(1), |a| a.cast(Ty::U32));
                    count.set(count.get() + one);
                }
            });
            if let Some(y) = y {
                let value = match (max, p) {
                    (true, _) | (_, 1) => sum.get(),
                    (_, 2) => sum.get().sqrt(),
                    _ => sum.get() / count.get().cast(ty),
                };
                y.store(i, value);
            }
            if let Some(places) = places {
                let best = k.select(best.get().eq(k.u32(u32::MAX)), k.u32(0), best.get());
                let place = if columns {
                    self::by_columns(&slide, best)
                } else {
                    best
                };
                places.store(i, (p_all % planes) * plane + place);
            }
        });
        let grid = Grid::Threads(Amount::each(elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}

/// The place of an element when the last two dimensions change places.
fn by_columns<'k>(slide: &Slide<'k>, at: Val<'k>) -> Val<'k> {
    let sizes: Vec<Val<'k>> = slide.0.iter().map(|a| a.input).collect();
    let [.., height, width] = sizes[..] else {
        return at;
    };
    let (column, rest) = (at % width, at / width);
    let (row, outer) = (rest % height, rest / height);
    (outer * width + column) * height + row
}

/// Element j of the past followed by the input, of a row of a firing.
fn element<'k>(
    k: &'k Builder,
    (x, past): (Tensor<'k>, Option<Tensor<'k>>),
    [firing, row, j]: [Val<'k>; 3],
    [len, before]: [Val<'k>; 2],
) -> Val<'k> {
    let value = k.var(k.f32(0.0));
    k.if_else(
        before.le(j),
        || value.set(x.get(firing, row * len + (j - before))),
        || {
            if let Some(past) = past {
                value.set(past.get(firing, row * before + j));
            }
        },
    );
    value.get()
}
