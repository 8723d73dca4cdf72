//! Windows that slide over images, and convolutions.

use super::super::conv::{CausalConvSpec, ConvShape, ConvSpec, TransposedConvSpec};
use super::super::cx::volume;
use super::super::gemm::Act;
use super::super::window::Window;
use super::contract::activation;
use super::indices::coordinates;
use super::{Choice, Gpu, Lowered, is_factor};
use zbmd_gpu_ir::lang::{Builder, Ty, Val, Var};
use zbmd_gpu_ir::tensor::function::{After, sigmoid};
use zbmd_gpu_ir::tensor::product::{Element, Grows, Rules, Sizes, Variant, product};
use zbmd_gpu_ir::tensor::{Slot, Tensor, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// One spatial dimension of a window in a kernel.
#[derive(Clone, Copy)]
pub(super) struct Axis<'k> {
    input: Val<'k>,
    output: Val<'k>,
    kernel: Val<'k>,
    pub(super) stride: Val<'k>,
    pub(super) dilation: Val<'k>,
    /// Padding before the first element.
    before: Val<'k>,
    /// Whether a place may be outside of the input.
    is_padded: bool,
    /// Whether there is only one place along it.
    is_trivial: bool,
}

impl<'k> Axis<'k> {
    fn bind(bench: &'k TensorKernelBuilder, window: &Window, d: usize) -> Result<Self, Why> {
        let largest_place =
            (window.output[d] - 1) * window.stride[d] + (window.kernel[d] - 1) * window.dilation[d];
        Ok(Self {
            input: bench.size(window.input[d])?,
            output: bench.size(window.output[d])?,
            kernel: bench.size(window.kernel[d])?,
            stride: bench.size(window.stride[d])?,
            dilation: bench.size(window.dilation[d])?,
            before: bench.size(window.before[d])?,
            is_padded: window.before[d] > 0 || largest_place >= window.input[d],
            is_trivial: window.input[d] == 1
                && window.output[d] == 1
                && window.kernel[d] == 1
                && window.before[d] == 0,
        })
    }
}

/// A window in a kernel: its dimensions, outermost first.
pub(super) struct SlidingWindow<'k>(pub(super) Vec<Axis<'k>>);

/// An element of a plane of the input.
#[derive(Clone, Copy)]
pub(super) struct InputPlace<'k> {
    pub(super) place: Val<'k>,
    /// Whether it is inside of the input; `None` where it always is.
    pub(super) is_inside: Option<Val<'k>>,
}

impl<'k> SlidingWindow<'k> {
    pub(super) fn new(bench: &'k TensorKernelBuilder, window: &Window) -> Result<Self, Why> {
        let own_dimensions = 3 - window.rank..3;
        let axes = own_dimensions.map(|d| Axis::bind(bench, window, d));
        Ok(Self(axes.collect::<Result<Vec<_>, Why>>()?))
    }

    /// Coordinates of element `n` of a plane of the output.
    pub(super) fn output_place(&self, n: Val<'k>) -> Vec<Val<'k>> {
        let sizes: Vec<Val<'k>> = self.0.iter().map(|axis| axis.output).collect();
        coordinates(n, &sizes)
    }

    /// Coordinates of element `n` of a kernel.
    pub(super) fn tap(&self, n: Val<'k>) -> Vec<Val<'k>> {
        let sizes: Vec<Val<'k>> = self.0.iter().map(|axis| axis.kernel).collect();
        coordinates(n, &sizes)
    }

    /// The element of a plane of the input under a tap of the window of an output element.
    pub(super) fn input_place(&self, output_place: &[Val<'k>], tap: &[Val<'k>]) -> InputPlace<'k> {
        let k = self.0[0].input.builder();
        let mut place = k.u32(0);
        let mut is_inside: Option<Val<'k>> = None;
        for (d, axis) in self.0.iter().enumerate() {
            if axis.is_trivial {
                continue;
            }
            // Below 0 it wraps to more than any input has.
            let coordinate = output_place[d] * axis.stride + tap[d] * axis.dilation - axis.before;
            if axis.is_padded {
                let fits = coordinate.lt(axis.input);
                is_inside = Some(is_inside.map_or(fits, |all| all & fits));
            }
            place = place * axis.input + coordinate;
        }
        InputPlace { place, is_inside }
    }

    /// The place of an element when the last two dimensions are swapped.
    pub(super) fn place_by_columns(&self, place: Val<'k>) -> Val<'k> {
        let sizes: Vec<Val<'k>> = self.0.iter().map(|axis| axis.input).collect();
        let [.., height, width] = sizes[..] else {
            return place;
        };
        let column = place % width;
        let row_number = place / width;
        let row = row_number % height;
        let outer = row_number / height;
        (outer * width + column) * height + row
    }
}

/// What is loaded where there is something, else 0.
fn load_or_zero<'k>(is_inside: Option<Val<'k>>, ty: Ty, load: impl FnOnce() -> Val<'k>) -> Val<'k> {
    let Some(is_inside) = is_inside else {
        return load();
    };
    let k = is_inside.builder();
    let value = k.var(k.number(ty, 0.0));
    k.if_(is_inside, || value.set(load().cast(ty)));
    value.get()
}

/// What a sum of a filter begins with.
fn first_sum<'k>(
    k: &'k Builder,
    bias: Option<Tensor<'k>>,
    firing: Val<'k>,
    filter: Val<'k>,
    ty: Ty,
) -> Var<'k> {
    k.var(match bias {
        Some(bias) => bias.get(firing, filter),
        None => k.number(ty, 0.0),
    })
}

/// A convolution as a product, bound to a kernel: filters by gathered windows. A batch is a group of channels, a row a
/// filter of it, a column an output element of an image, of all images of all firings.
struct GatheredConv<'k> {
    source: Tensor<'k>,
    filters: Tensor<'k>,
    bias: Option<Tensor<'k>>,
    added: Option<Tensor<'k>>,
    /// What is subtracted from integers.
    source_zero: Option<Tensor<'k>>,
    filter_zero: Option<Tensor<'k>>,
    target: Tensor<'k>,
    window: SlidingWindow<'k>,
    /// Elements of a plane of the input and of the output, and of a kernel.
    input_plane: Val<'k>,
    output_plane: Val<'k>,
    taps: Val<'k>,
    channels_per_group: Val<'k>,
    filters_per_group: Val<'k>,
    channels: Val<'k>,
    filter_count: Val<'k>,
    /// Elements of a filter.
    depth: Val<'k>,
    /// Whether a kernel has one element.
    is_pointwise: bool,
    activation: After,
    ty: Ty,
}

/// What is worked out for a group, as [`Rules::batch`] gives it.
const FIRST_CHANNEL: usize = 0;
const FIRST_FILTER: usize = 1;

impl<'k> GatheredConv<'k> {
    fn filter_place(&self, group: &[Val<'k>], row: Val<'k>, d: Val<'k>) -> Val<'k> {
        (group[FIRST_FILTER] + row) * self.depth + d
    }

    fn filter_element(&self, group: &[Val<'k>], row: Val<'k>, d: Val<'k>) -> Val<'k> {
        let element = self.filters.load(self.filter_place(group, row, d));
        self.subtract_zero(element.cast(self.ty), self.filter_zero)
    }

    fn window_element(&self, group: &[Val<'k>], d: Val<'k>, column: Val<'k>) -> Val<'k> {
        let k = column.builder();
        let image = column / self.output_plane;
        let output_element = column % self.output_plane;
        let channel = if self.is_pointwise { d } else { d / self.taps };
        let tap = match self.is_pointwise {
            true => k.u32(0),
            false => d % self.taps,
        };

        let plane_start =
            (image * self.channels + group[FIRST_CHANNEL] + channel) * self.input_plane;
        let tap_place = self.window.tap(tap);
        let output_place = self.window.output_place(output_element);
        let InputPlace { place, is_inside } = self.window.input_place(&output_place, &tap_place);
        load_or_zero(is_inside, self.ty, || {
            let element = self.source.load(plane_start + place);
            self.subtract_zero(element.cast(self.ty), self.source_zero)
        })
    }

    fn subtract_zero(&self, value: Val<'k>, zero: Option<Tensor<'k>>) -> Val<'k> {
        let Some(zero) = zero else { return value };
        let k = value.builder();
        value - zero.load(k.u32(0)).cast(self.ty)
    }

    fn store(&self, group: &[Val<'k>], row: Val<'k>, column: Val<'k>, product: Val<'k>) {
        let image = column / self.output_plane;
        let output_element = column % self.output_plane;
        let filter = group[FIRST_FILTER] + row;
        let place = (image * self.filter_count + filter) * self.output_plane + output_element;

        let mut sum = product;
        if let Some(bias) = self.bias {
            sum = sum + bias.load(filter);
        }
        if let Some(added) = self.added {
            sum = sum + added.load(place);
        }
        self.target.store(place, self.activation.of(sum));
    }

    /// Columns go through all firings and do not know theirs, so that only what has the layout of the result may
    /// differ from firing to firing.
    fn check_operands(&self) -> Result<(), Why> {
        let is_bias_varying = self.bias.is_some_and(|bias| !bias.is_constant());
        if is_bias_varying || self.added.is_some_and(|added| added.is_constant()) {
            return Err("no GPU kernel for a bias that varies".to_owned());
        }
        Ok(())
    }
}

/// A transposed convolution bound to a kernel.
struct TransposedConv<'k> {
    source: Tensor<'k>,
    filters: Tensor<'k>,
    bias: Option<Tensor<'k>>,
    target: Tensor<'k>,
    /// Along each spatial dimension.
    input_sizes: Vec<Val<'k>>,
    output_sizes: Vec<Val<'k>>,
    kernel_sizes: Vec<Val<'k>>,
    strides: Vec<Val<'k>>,
    dilations: Vec<Val<'k>>,
    pads: Vec<Val<'k>>,
    /// Elements of a plane of the input and of the output, and of a kernel.
    input_plane: Val<'k>,
    output_plane: Val<'k>,
    taps: Val<'k>,
    filters_per_group: Val<'k>,
    channels_per_group: Val<'k>,
    filter_count: Val<'k>,
    channels: Val<'k>,
}

impl<'k> TransposedConv<'k> {
    /// The element of a plane of the input whose kernel has this tap at a place of the output, if there is one: the
    /// input is `stride` places of the output apart.
    fn source_place(&self, output_place: &[Val<'k>], tap: Val<'k>) -> InputPlace<'k> {
        let k = tap.builder();
        let tap_place = coordinates(tap, &self.kernel_sizes);
        let mut place = k.u32(0);
        let mut is_inside: Option<Val<'k>> = None;
        for d in 0..self.input_sizes.len() {
            // Below 0 it wraps to more than any input has.
            let distance = output_place[d] + self.pads[d] - tap_place[d] * self.dilations[d];
            let begins_there = (distance % self.strides[d]).eq(k.u32(0))
                & (distance / self.strides[d]).lt(self.input_sizes[d]);
            is_inside = Some(is_inside.map_or(begins_there, |all| all & begins_there));
            place = place * self.input_sizes[d] + distance / self.strides[d];
        }
        InputPlace { place, is_inside }
    }
}

/// A causal convolution bound to a kernel.
struct CausalConv<'k> {
    source: Tensor<'k>,
    /// The last elements of the call before; zeros where there is none.
    past: Option<Tensor<'k>>,
    /// Elements of a row of the input, and of the past.
    len: Val<'k>,
    past_len: Val<'k>,
}

impl<'k> CausalConv<'k> {
    /// Element `j` of the past followed by the input, of a row of a firing.
    fn element(&self, firing: Val<'k>, row: Val<'k>, j: Val<'k>) -> Val<'k> {
        let k = j.builder();
        let value = k.var(k.f32(0.0));
        k.if_else(
            self.past_len.le(j),
            || {
                let place = row * self.len + (j - self.past_len);
                value.set(self.source.get(firing, place));
            },
            || {
                if let Some(past) = self.past {
                    value.set(past.get(firing, row * self.past_len + j));
                }
            },
        );
        value.get()
    }
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
        let source = self.slot(0)?;
        if self.operand(1)?.data.is_none() || source.constant {
            let Some(act) = act else {
                return Err("no GPU kernel for integer filters that vary".to_owned());
            };
            return self.conv_of_ports(shape, act);
        }

        let ty = match act {
            Some(_) => computed(source.dtype)?,
            None => Ty::I32,
        };
        let math = self.math(ty);
        let filters = self.factor(1, math)?;
        let sizes = Sizes {
            batches: shape.groups,
            rows: shape.filters / shape.groups,
            columns: shape.batch * volume(&shape.window.output),
            depth: shape.channels / shape.groups * volume(&shape.window.kernel),
            grows: Grows::Columns,
        };
        // Neighbours along the inner dimension are neighbours in the image: windows are read along their columns.
        let kernels = match ty {
            Ty::F32 => sizes.variants(true, math),
            _ => vec![Variant::Elements],
        };
        let Choice::Kernel(variant) = self.choose(&kernels, None) else {
            return Err("the library has no convolutions".to_owned());
        };

        let bench = Sizes::bench("convolution", variant);
        let bound = self.bind_conv(&bench, shape, [source, filters], act)?;
        if act.is_none() {
            self.check_zero_points(&bound)?;
        }
        let left_bits: Element<'_, '_> =
            &|group, row, d| bound.filters.bits(bound.filter_place(group, row, d));
        let rules = Rules {
            batch: &|group| {
                vec![
                    group * bound.channels_per_group,
                    group * bound.filters_per_group,
                ]
            },
            left: &|group, row, d| bound.filter_element(group, row, d),
            right: &|group, d, column| bound.window_element(group, d, column),
            left_bits: is_factor(filters, math).then_some(left_bits),
            right_bits: None,
            store: &|group, row, column, sum| bound.store(group, row, column, sum),
            ty,
        };
        bound.check_operands()?;
        let grid = product(&bench, &sizes, variant, &rules)?;
        let plan = bench.finish(KernelPlan::default(), grid);
        self.rounded(plan, variant, [source, filters], math)
    }

    fn check_zero_points(&self, bound: &GatheredConv<'_>) -> Result<(), Why> {
        let is_vector = |i: usize| self.opt(i).is_some_and(|zero| zero.ty.elements() > 1);
        if is_vector(2) || is_vector(3) {
            return Err("no GPU kernel for zero points of each filter".to_owned());
        }
        let mut zero_points = [bound.source_zero, bound.filter_zero].into_iter().flatten();
        if zero_points.any(|zero| !zero.is_constant()) {
            return Err("no GPU kernel for zero points that vary".to_owned());
        }
        Ok(())
    }

    fn bind_conv<'k>(
        &self,
        bench: &'k TensorKernelBuilder,
        shape: &ConvShape,
        factors: [Slot; 2],
        act: Option<Act>,
    ) -> Result<GatheredConv<'k>, Why> {
        let source = bench.reads(factors[0])?;
        let filters = bench.reads(factors[1])?;
        let second = self.bind_optional(bench, 2)?;
        let third = self.bind_optional(bench, 3)?;
        // Of integers these are zero points.
        let is_integer = act.is_none();
        let if_float = |operand: Option<Tensor<'k>>| operand.filter(|_| !is_integer);
        let if_integer = |operand: Option<Tensor<'k>>| operand.filter(|_| is_integer);

        let channels_per_group = shape.channels / shape.groups;
        let filters_per_group = shape.filters / shape.groups;
        let (input_plane, output_plane, taps) = shape.window.sizes();
        Ok(GatheredConv {
            source,
            filters,
            bias: if_float(second),
            added: if_float(third),
            source_zero: if_integer(second),
            filter_zero: if_integer(third),
            target: bench.writes(self.out(0))?,
            window: SlidingWindow::new(bench, &shape.window)?,
            input_plane: bench.size(input_plane)?,
            output_plane: bench.size(output_plane)?,
            taps: bench.size(taps)?,
            channels_per_group: bench.size(channels_per_group)?,
            filters_per_group: bench.size(filters_per_group)?,
            channels: bench.size(shape.channels)?,
            filter_count: bench.size(shape.filters)?,
            depth: bench.size(channels_per_group * taps)?,
            is_pointwise: taps == 1,
            activation: act.map_or(After::Nothing, activation),
            ty: match act {
                Some(_) => computed(factors[0].dtype)?,
                None => Ty::I32,
            },
        })
    }

    /// The same with filters that differ in each firing: one thread for each element.
    fn conv_of_ports(&self, shape: &ConvShape, act: Act) -> Lowered {
        let source_slot = self.slot(0)?;
        let filter_slot = self.slot(1)?;
        let target_slot = self.out(0);
        let ty = computed(source_slot.dtype)?;
        let bench = TensorKernelBuilder::new("convolution with ports", 64);
        let k = &bench.k;
        let source = bench.reads(source_slot)?;
        let filters = bench.reads(filter_slot)?;
        let bias = self.bind_optional(&bench, 2)?;
        let added = self.bind_optional(&bench, 3)?;
        let target = bench.writes(target_slot)?;
        let window = SlidingWindow::new(&bench, &shape.window)?;
        let activation = activation(act);

        let (input_plane, output_plane, taps) = shape.window.sizes();
        let group_channels = shape.channels / shape.groups;
        let group_filters = shape.filters / shape.groups;
        // Elements of a filter.
        let depth = bench.size(group_channels * taps)?;
        let input_plane = bench.size(input_plane)?;
        let output_plane = bench.size(output_plane)?;
        let taps = bench.size(taps)?;
        let channels_per_group = bench.size(group_channels)?;
        let filters_per_group = bench.size(group_filters)?;
        let filter_count = bench.size(group_filters * shape.groups)?;
        let channels = channels_per_group * (filter_count / filters_per_group);
        let elements_per_firing = bench.size(shape.batch)? * filter_count * output_plane;

        k.each(k.firings() * elements_per_firing, |i| {
            let firing = i / elements_per_firing;
            let element = i % elements_per_firing;
            let output_element = element % output_plane;
            let plane = element / output_plane;
            let filter = plane % filter_count;
            let image = plane / filter_count;
            let output_place = window.output_place(output_element);
            let sum = first_sum(k, bias, firing, filter, ty);
            // The order of the sum is that of a filter's elements: channel by channel.
            k.times(depth, |d| {
                let group_start =
                    image * channels + (filter / filters_per_group) * channels_per_group;
                let plane_start = (group_start + d / taps) * input_plane;
                let input = window.input_place(&output_place, &window.tap(d % taps));
                let value = load_or_zero(input.is_inside, ty, || {
                    source.get(firing, plane_start + input.place)
                });
                let factor = filters.get(firing, filter * depth + d);
                sum.set(k.fma(value, factor, sum.get()));
            });

            let sum = match added {
                Some(added) => sum.get() + added.get(firing, element),
                None => sum.get(),
            };
            target.store(i, activation.of(sum));
        });

        let grid = Grid::Threads(Amount::each(target_slot.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    /// The transposed convolution as a sum over what each output element comes from.
    pub(in super::super) fn conv_transpose(&self, spec: &TransposedConvSpec) -> Lowered {
        let target_slot = self.out(0);
        let ty = computed(self.slot(0)?.dtype)?;
        let bench = TensorKernelBuilder::new("transposed convolution", 64);
        let k = &bench.k;
        let bound = self.bind_conv_transpose(&bench, spec)?;
        let total = bench.size(target_slot.elements as usize)?;

        k.each(k.firings() * total, |i| {
            let firing = i / total;
            let element = i % total;
            let output_element = element % bound.output_plane;
            let plane = element / bound.output_plane;
            let filter = plane % bound.filter_count;
            let image = plane / bound.filter_count;
            let group = filter / bound.filters_per_group;
            let filter_in_group = filter % bound.filters_per_group;
            let output_place = coordinates(output_element, &bound.output_sizes);
            let sum = first_sum(k, bound.bias, firing, filter, ty);

            // Many taps have no element: the branch is outside of the loop over channels.
            k.times(bound.taps, |tap| {
                let source = bound.source_place(&output_place, tap);
                let Some(is_inside) = source.is_inside else {
                    return;
                };
                k.if_(is_inside, || {
                    k.times(bound.channels_per_group, |c| {
                        let channel = group * bound.channels_per_group + c;
                        let source_plane = image * bound.channels + channel;
                        let value = bound
                            .source
                            .get(firing, source_plane * bound.input_plane + source.place);
                        let filter_plane = channel * bound.filters_per_group + filter_in_group;
                        let factor = bound.filters.get(firing, filter_plane * bound.taps + tap);
                        sum.set(k.fma(value, factor, sum.get()));
                    });
                });
            });
            bound.target.store(i, sum.get());
        });

        let grid = Grid::Threads(Amount::each(target_slot.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    fn bind_conv_transpose<'k>(
        &self,
        bench: &'k TensorKernelBuilder,
        spec: &TransposedConvSpec,
    ) -> Result<TransposedConv<'k>, Why> {
        let input_dims = self.dims(0)?;
        let filter_dims = self.dims(1)?;
        let output_dims = self.out_dims(0);
        let bind_sizes = |sizes: &[usize]| {
            sizes
                .iter()
                .map(|size| bench.size(*size))
                .collect::<Result<Vec<_>, Why>>()
        };
        let own_dimensions = 3 - spec.rank..3;
        Ok(TransposedConv {
            source: bench.reads(self.slot(0)?)?,
            filters: bench.reads(self.slot(1)?)?,
            bias: self.bind_optional(bench, 2)?,
            target: bench.writes(self.out(0))?,
            input_sizes: bind_sizes(&input_dims[2..])?,
            output_sizes: bind_sizes(&output_dims[2..])?,
            kernel_sizes: bind_sizes(&filter_dims[2..])?,
            strides: bind_sizes(&spec.stride[own_dimensions.clone()])?,
            dilations: bind_sizes(&spec.dilation[own_dimensions.clone()])?,
            pads: bind_sizes(&spec.pads[own_dimensions])?,
            input_plane: bench.size(volume(&input_dims[2..]))?,
            output_plane: bench.size(volume(&output_dims[2..]))?,
            taps: bench.size(volume(&filter_dims[2..]))?,
            filters_per_group: bench.size(filter_dims[1])?,
            channels_per_group: bench.size(input_dims[1] / spec.groups)?,
            filter_count: bench.size(output_dims[1])?,
            channels: bench.size(input_dims[1])?,
        })
    }

    /// A causal depthwise convolution, and the past that it carries along.
    pub(in super::super) fn causal_conv(&self, spec: &CausalConvSpec) -> Lowered {
        let mut plan = KernelPlan::default();
        for position in 0..2 {
            let Some(target) = self.wanted(position).filter(|y| y.elements > 0) else {
                continue;
            };
            plan = self.causal_conv_output(plan, spec, target, position == 1)?;
        }
        Ok(plan)
    }

    /// The kernel of the result, or of the past that the next call needs.
    fn causal_conv_output(
        &self,
        plan: KernelPlan,
        spec: &CausalConvSpec,
        target_slot: Slot,
        is_past: bool,
    ) -> Lowered {
        let input_dims = self.dims(0)?;
        let filter_dims = self.dims(1)?;
        let bench = TensorKernelBuilder::new("causal convolution", 64);
        let k = &bench.k;
        let source = bench.reads(self.slot(0)?)?;
        let past = match self.opt(3).filter(|past| past.ty.elements() > 0) {
            Some(_) => Some(bench.reads(self.slot(3)?)?),
            None => None,
        };
        if computed(target_slot.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 causal convolutions".to_owned());
        }

        let filters = bench.reads(self.slot(1)?)?;
        let bias = self.bind_optional(&bench, 2)?;
        let target = bench.writes(target_slot)?;
        let len = bench.size(input_dims[2])?;
        let taps = bench.size(filter_dims[2])?;
        let channels = bench.size(input_dims[1])?;
        let past_len = bench.size(filter_dims[2] - 1)?;
        let elements_per_firing = bench.size(target_slot.elements as usize)?;
        let input = CausalConv {
            source,
            past,
            len,
            past_len,
        };

        k.each(k.firings() * elements_per_firing, |i| {
            let firing = i / elements_per_firing;
            let element = i % elements_per_firing;
            // The second output is what the next call has as its past: the last elements of past and input together.
            if is_past {
                let row = element / past_len;
                let column = element % past_len;
                return target.store(i, input.element(firing, row, len + column));
            }

            let row = element / len;
            let column = element % len;
            let channel = row % channels;
            // The bias, where there is one, is the first summand.
            let sum = first_sum(k, bias, firing, channel, Ty::F32);
            k.times(taps, |tap| {
                let value = input.element(firing, row, column + tap);
                let so_far = sum.get();
                let factor = filters.get(firing, channel * taps + tap);
                sum.set(so_far + factor * value);
            });
            let sum = sum.get();
            let result = match spec.silu {
                true => sum * sigmoid(sum),
                false => sum,
            };
            target.store(i, result);
        });
        Ok(bench.finish(plan, Grid::Threads(Amount::each(target_slot.elements))))
    }
}
