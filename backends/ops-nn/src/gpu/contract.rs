//! Products of matrices.

use super::super::cx::volume;
use super::super::gemm::Act;
use super::super::index::broadcast;
use super::super::matmul::{EinsumSpec, GemmSpec, MatMulSpec};
use super::libraries::{Epilogue, MatrixSizes};
use super::{Choice, Gpu, Lowered, is_factor, refusal};
use zbmd_gpu_ir::lang::{Ty, Val};
use zbmd_gpu_ir::tensor::function::After;
use zbmd_gpu_ir::tensor::product::{Element, Grows, Rules, Sizes, Variant, product};
use zbmd_gpu_ir::tensor::space::{Places, Space, dense, spread};
use zbmd_gpu_ir::tensor::{Slot, Tensor, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// An activation, in a kernel.
pub(super) fn activation(act: Act) -> After {
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

/// The shape of batched products of matrices.
pub(super) struct BatchedShape {
    /// Of one of the matrices.
    pub(super) sizes: MatrixSizes,
    /// Dimensions along which the left and the right matrices are repeated, and those of the result.
    pub(super) left_batch: Vec<usize>,
    pub(super) right_batch: Vec<usize>,
    batch: Vec<usize>,
}

impl BatchedShape {
    /// A vector on the left is a row, and one on the right a column.
    fn of(mut left_dims: Vec<usize>, mut right_dims: Vec<usize>) -> Result<Self, Why> {
        if left_dims.len() == 1 {
            left_dims.insert(0, 1);
        }
        if right_dims.len() == 1 {
            right_dims.push(1);
        }

        let left_batch = left_dims[..left_dims.len() - 2].to_vec();
        let right_batch = right_dims[..right_dims.len() - 2].to_vec();
        let batch = broadcast(&[&left_batch, &right_batch]).map_err(refusal)?;
        Ok(Self {
            sizes: MatrixSizes {
                rows: left_dims[left_dims.len() - 2],
                columns: right_dims[right_dims.len() - 1],
                depth: left_dims[left_dims.len() - 1],
            },
            left_batch,
            right_batch,
            batch,
        })
    }

    /// What a kernel multiplies. `is_stacked`: one right matrix for all rows of all batches and firings, which are then
    /// the rows of one left matrix.
    fn product_sizes(&self, is_stacked: bool) -> Sizes {
        let MatrixSizes {
            rows,
            columns,
            depth,
        } = self.sizes;
        match is_stacked {
            true => Sizes {
                batches: 1,
                rows: volume(&self.left_batch) * rows,
                columns,
                depth,
                grows: Grows::Rows,
            },
            false => Sizes {
                batches: volume(&self.batch),
                rows,
                columns,
                depth,
                grows: Grows::Batches,
            },
        }
    }

    /// Where the left and the right matrix of a batch begin.
    fn batch_space(&self) -> Space {
        let MatrixSizes {
            rows,
            columns,
            depth,
        } = self.sizes;
        let matrix_steps = |own: &[usize], elements: usize| -> Vec<isize> {
            let matrices = spread(&self.batch, own).into_iter();
            matrices.map(|step| step * elements as isize).collect()
        };
        let left_steps = matrix_steps(&self.left_batch, rows * depth);
        let right_steps = matrix_steps(&self.right_batch, depth * columns);
        Space::new(&self.batch, &[left_steps, right_steps])
    }
}

/// A number that is subtracted from each element of a matrix.
#[derive(Clone, Copy)]
struct ZeroPoint<'k> {
    tensor: Tensor<'k>,
    /// One for each row of the left or each column of the right matrix, rather than one for all.
    is_vector: bool,
}

impl<'k> ZeroPoint<'k> {
    /// `index` is where it is if it is a vector.
    fn subtract(
        self,
        value: Val<'k>,
        firing: Option<Val<'k>>,
        index: impl FnOnce() -> Val<'k>,
    ) -> Val<'k> {
        let k = value.builder();
        // It is the same in every firing where none is known.
        let firing = firing.unwrap_or_else(|| k.u32(0));
        let index = if self.is_vector { index() } else { k.u32(0) };
        value - self.tensor.get(firing, index).cast(value.ty)
    }
}

/// A batched product bound to a kernel.
struct BatchedProduct<'k> {
    left: Tensor<'k>,
    right: Tensor<'k>,
    bias: Option<Tensor<'k>>,
    left_zero: Option<ZeroPoint<'k>>,
    right_zero: Option<ZeroPoint<'k>>,
    target: Tensor<'k>,
    depth: Val<'k>,
    columns: Val<'k>,
    /// Of one matrix; of all of a firing where they are stacked.
    rows: Val<'k>,
    /// Batches of a firing.
    batches: Val<'k>,
    batch_places: Places<'k>,
    is_stacked: bool,
    activation: After,
    ty: Ty,
}

/// What is worked out once for all elements of a batch, as [`Rules::batch`] gives it; nothing of it where rows are
/// stacked.
const LEFT_START: usize = 0;
const RIGHT_START: usize = 1;
const FIRST_ROW: usize = 2;
const FIRING: usize = 3;

impl<'k> BatchedProduct<'k> {
    fn batch_values(&self, batch: Val<'k>) -> Vec<Val<'k>> {
        if self.is_stacked {
            return vec![];
        }
        let firing = batch / self.batches;
        let matrix_places = self.batch_places.at(batch % self.batches);
        vec![
            self.left.base(firing) + matrix_places[0],
            self.right.base(firing) + matrix_places[1],
            batch * self.rows,
            firing,
        ]
    }

    fn left_place(&self, batch: &[Val<'k>], row: Val<'k>, d: Val<'k>) -> Val<'k> {
        let element = row * self.depth + d;
        batch
            .get(LEFT_START)
            .map_or(element, |start| *start + element)
    }

    fn right_place(&self, batch: &[Val<'k>], d: Val<'k>, column: Val<'k>) -> Val<'k> {
        let element = d * self.columns + column;
        batch
            .get(RIGHT_START)
            .map_or(element, |start| *start + element)
    }

    fn left_element(&self, batch: &[Val<'k>], row: Val<'k>, d: Val<'k>) -> Val<'k> {
        let element = self.left.load(self.left_place(batch, row, d));
        let value = element.cast(self.ty);
        match self.left_zero {
            Some(zero) => zero.subtract(value, batch.get(FIRING).copied(), || row % self.rows),
            None => value,
        }
    }

    fn right_element(&self, batch: &[Val<'k>], d: Val<'k>, column: Val<'k>) -> Val<'k> {
        let element = self.right.load(self.right_place(batch, d, column));
        let value = element.cast(self.ty);
        match self.right_zero {
            Some(zero) => zero.subtract(value, batch.get(FIRING).copied(), || column),
            None => value,
        }
    }

    fn store(&self, batch: &[Val<'k>], row: Val<'k>, column: Val<'k>, sum: Val<'k>) {
        let sum = match self.bias {
            Some(bias) => sum + bias.load(column),
            None => sum,
        };
        // Stacked rows are numbered through all firings already.
        let result_row = batch.get(FIRST_ROW).map_or(row, |first| *first + row);
        self.target
            .store(result_row * self.columns + column, self.activation.of(sum));
    }

    /// A zero point that is a port or one for each row belongs to a firing of its own, and stacked rows do not know
    /// theirs.
    fn check_zero_points(&self) -> Result<(), Why> {
        if !self.is_stacked {
            return Ok(());
        }
        if self
            .left_zero
            .is_some_and(|zero| zero.is_vector || !zero.tensor.is_constant())
        {
            return Err("no GPU kernel for zero points of many rows".to_owned());
        }
        if self
            .right_zero
            .is_some_and(|zero| !zero.tensor.is_constant())
        {
            return Err("no GPU kernel for zero points that vary".to_owned());
        }
        Ok(())
    }
}

/// alpha · a · b + beta · c, bound to a kernel. A batch is a firing, unless rows of all firings are stacked.
struct ScaledProduct<'k> {
    left: Tensor<'k>,
    right: Tensor<'k>,
    added: Option<Tensor<'k>>,
    target: Tensor<'k>,
    rows: Val<'k>,
    columns: Val<'k>,
    depth: Val<'k>,
    /// Where an element of the result has its element of `added`.
    added_places: Places<'k>,
    /// Whether each of the two matrices is read transposed.
    transposes: [bool; 2],
    alpha: f64,
    beta: f64,
    is_stacked: bool,
    activation: After,
}

impl<'k> ScaledProduct<'k> {
    fn left_place(&self, batch: &[Val<'k>], row: Val<'k>, d: Val<'k>) -> Val<'k> {
        let element = match self.transposes[0] {
            true => d * self.rows + row,
            false => row * self.depth + d,
        };
        // Stacked rows count through all firings.
        match self.is_stacked {
            true => element,
            false => self.left.base(batch[0]) + element,
        }
    }

    fn right_place(&self, batch: &[Val<'k>], d: Val<'k>, column: Val<'k>) -> Val<'k> {
        let element = match self.transposes[1] {
            true => column * self.depth + d,
            false => d * self.columns + column,
        };
        match self.right.is_constant() {
            true => element,
            false => self.right.base(batch[0]) + element,
        }
    }

    fn store(&self, batch: &[Val<'k>], row: Val<'k>, column: Val<'k>, sum: Val<'k>) {
        // A factor of 1 is left out.
        let scaled = |value: Val<'k>, factor: f64| match factor == 1.0 {
            true => value,
            false => value * value.like(factor),
        };
        let scaled_sum = scaled(sum, self.alpha);
        let value = match self.added {
            Some(added) => {
                let element = (row % self.rows) * self.columns + column;
                let place = self.added_places.at(element)[0];
                scaled_sum + scaled(added.get(batch[0], place), self.beta)
            }
            None => scaled_sum,
        };

        let result_row = match self.is_stacked {
            true => row,
            false => batch[0] * self.rows + row,
        };
        self.target.store(
            result_row * self.columns + column,
            self.activation.of(value),
        );
    }
}

impl Gpu<'_> {
    /// Batched products of bytes with their zero points subtracted.
    pub(in super::super) fn matmul_integer(&self) -> Lowered {
        self.batched_product(None)
    }

    /// Batched products with a bias for each column.
    pub(in super::super) fn matmul(&self, spec: &MatMulSpec) -> Lowered {
        self.batched_product(Some(spec))
    }

    /// `spec` is that of products of numbers; there is none for bytes.
    fn batched_product(&self, spec: Option<&MatMulSpec>) -> Lowered {
        let shape = BatchedShape::of(self.dims(0)?, self.dims(1)?)?;
        let ty = match spec {
            Some(_) => computed(self.out(0).dtype)?,
            None => Ty::I32,
        };
        let math = self.math(ty);
        let factors = [self.factor(0, math)?, self.factor(1, math)?];
        let [left, right] = factors;
        let is_stacked = right.constant && !left.constant && volume(&shape.right_batch) == 1;
        let sizes = shape.product_sizes(is_stacked);

        // Tiles are made for the types that every GPU computes fast.
        let kernels = match ty {
            Ty::F32 | Ty::I32 => sizes.variants(false, math),
            _ => vec![Variant::Elements],
        };
        let bias = match spec {
            Some(_) => self.opt_slot(2)?,
            None => None,
        };
        let act = spec.map_or(Act::None, |spec| spec.act);
        let library =
            self.matmul_by_library(factors, &shape, Epilogue { bias, act }, kernels[0])?;
        let variant = match self.choose(&kernels, library) {
            Choice::Kernel(variant) => variant,
            Choice::Library(product) => return Ok(KernelPlan::by_library(product)),
        };

        let bench = Sizes::bench("matrix product", variant);
        let bound = self.bind_batched(&bench, &shape, factors, is_stacked, spec)?;
        let left_bits: Element<'_, '_> =
            &|batch, row, d| bound.left.bits(bound.left_place(batch, row, d));
        let right_bits: Element<'_, '_> =
            &|batch, d, column| bound.right.bits(bound.right_place(batch, d, column));
        let rules = Rules {
            batch: &|batch| bound.batch_values(batch),
            left: &|batch, row, d| bound.left_element(batch, row, d),
            right: &|batch, d, column| bound.right_element(batch, d, column),
            left_bits: is_factor(left, math).then_some(left_bits),
            right_bits: is_factor(right, math).then_some(right_bits),
            store: &|batch, row, column, sum| bound.store(batch, row, column, sum),
            ty,
        };
        bound.check_zero_points()?;

        let grid = product(&bench, &sizes, variant, &rules)?;
        let plan = bench.finish(KernelPlan::default(), grid);
        self.rounded(plan, variant, factors, math)
    }

    /// Operand `i`, the zero point of a matrix of bytes.
    fn bind_zero_point<'k>(
        &self,
        bench: &'k TensorKernelBuilder,
        i: usize,
    ) -> Result<Option<ZeroPoint<'k>>, Why> {
        let Some(slot) = self.opt_slot(i)? else {
            return Ok(None);
        };
        Ok(Some(ZeroPoint {
            tensor: bench.reads(slot)?,
            is_vector: slot.elements > 1,
        }))
    }

    fn bind_batched<'k>(
        &self,
        bench: &'k TensorKernelBuilder,
        shape: &BatchedShape,
        factors: [Slot; 2],
        is_stacked: bool,
        spec: Option<&MatMulSpec>,
    ) -> Result<BatchedProduct<'k>, Why> {
        let left = bench.reads(factors[0])?;
        let right = bench.reads(factors[1])?;
        let target_slot = self.out(0);

        // Operands 2 and 3 of bytes are zero points; operand 2 of numbers is a bias.
        let bias = match spec {
            Some(_) => self.bind_optional(bench, 2)?,
            None => None,
        };
        let left_zero = match spec {
            Some(_) => None,
            None => self.bind_zero_point(bench, 2)?,
        };
        let right_zero = match spec {
            Some(_) => None,
            None => self.bind_zero_point(bench, 3)?,
        };

        Ok(BatchedProduct {
            left,
            right,
            bias,
            left_zero,
            right_zero,
            target: bench.writes(target_slot)?,
            depth: bench.size(shape.sizes.depth)?,
            columns: bench.size(shape.sizes.columns)?,
            rows: bench.size(match is_stacked {
                true => shape.product_sizes(true).rows,
                false => shape.sizes.rows,
            })?,
            batches: bench.size(volume(&shape.batch))?,
            batch_places: shape.batch_space().on(bench)?,
            is_stacked,
            activation: activation(spec.map_or(Act::None, |spec| spec.act)),
            ty: match spec {
                Some(_) => computed(target_slot.dtype)?,
                None => Ty::I32,
            },
        })
    }

    /// alpha · a · b + beta · c.
    pub(in super::super) fn gemm(&self, spec: &GemmSpec) -> Lowered {
        let left_dims = self.dims(0)?;
        let right_dims = self.dims(1)?;
        let [is_left_transposed, is_right_transposed] = spec.transposes;
        let MatrixSizes {
            rows,
            columns,
            depth,
        } = gemm_sizes(&left_dims, &right_dims, spec.transposes);
        let ty = computed(self.out(0).dtype)?;
        let math = self.math(ty);
        let factors = [self.factor(0, math)?, self.factor(1, math)?];
        let [left, right] = factors;
        if !ty.is_float() && (spec.alpha, spec.beta) != (1.0, 1.0) {
            return Err("no GPU kernel for scaled products of integers".to_owned());
        }

        // Rows of all firings are those of one matrix, where all else is the same in every firing.
        let is_stacked = right.constant
            && !left.constant
            && !is_left_transposed
            && self.opt_slot(2)?.is_none_or(|added| added.constant);
        let sizes = Sizes {
            batches: 1,
            rows,
            columns,
            depth,
            grows: if is_stacked {
                Grows::Rows
            } else {
                Grows::Batches
            },
        };
        let kernels = match ty {
            Ty::F32 => sizes.variants(is_right_transposed, math),
            _ => vec![Variant::Elements],
        };
        let matrix_sizes = MatrixSizes {
            rows,
            columns,
            depth,
        };
        let library = self.gemm_by_library(factors, matrix_sizes, spec, kernels[0])?;
        let variant = match self.choose(&kernels, library) {
            Choice::Kernel(variant) => variant,
            Choice::Library(product) => return Ok(KernelPlan::by_library(product)),
        };

        let bench = Sizes::bench("product and sum", variant);
        let bound = self.bind_gemm(&bench, matrix_sizes, factors, is_stacked, spec)?;
        let left_bits: Element<'_, '_> =
            &|batch, row, d| bound.left.bits(bound.left_place(batch, row, d));
        let right_bits: Element<'_, '_> =
            &|batch, d, column| bound.right.bits(bound.right_place(batch, d, column));
        let rules = Rules {
            batch: &|firing| vec![firing],
            left: &|batch, row, d| bound.left.load(bound.left_place(batch, row, d)),
            right: &|batch, d, column| bound.right.load(bound.right_place(batch, d, column)),
            left_bits: is_factor(left, math).then_some(left_bits),
            right_bits: is_factor(right, math).then_some(right_bits),
            store: &|batch, row, column, sum| bound.store(batch, row, column, sum),
            ty,
        };
        let grid = product(&bench, &sizes, variant, &rules)?;
        let plan = bench.finish(KernelPlan::default(), grid);
        self.rounded(plan, variant, factors, math)
    }

    fn bind_gemm<'k>(
        &self,
        bench: &'k TensorKernelBuilder,
        sizes: MatrixSizes,
        factors: [Slot; 2],
        is_stacked: bool,
        spec: &GemmSpec,
    ) -> Result<ScaledProduct<'k>, Why> {
        let added_dims = match self.opt(2) {
            Some(added) => added.dims(),
            None => vec![],
        };
        let result_dims = [sizes.rows, sizes.columns];
        let added_space = Space::new(&result_dims, &[spread(&result_dims, &added_dims)]);
        Ok(ScaledProduct {
            left: bench.reads(factors[0])?,
            right: bench.reads(factors[1])?,
            added: self.bind_optional(bench, 2)?,
            target: bench.writes(self.out(0))?,
            rows: bench.size(sizes.rows)?,
            columns: bench.size(sizes.columns)?,
            depth: bench.size(sizes.depth)?,
            added_places: added_space.on(bench)?,
            transposes: spec.transposes,
            alpha: spec.alpha,
            beta: spec.beta,
            is_stacked,
            activation: activation(spec.act),
        })
    }

    /// Einstein's sums of a few operands: one thread for each element of the result.
    pub(in super::super) fn einsum(&self, spec: &EinsumSpec) -> Lowered {
        let operand_count = spec.terms.len();
        if !spec.is_explicit || operand_count > 4 {
            return Err("no GPU kernel for sums with `...` or without `->`".to_owned());
        }

        let summed_labels: Vec<char> = spec
            .sizes
            .keys()
            .copied()
            .filter(|label| !spec.out.contains(label))
            .collect();
        let target_slot = self.out(0);
        let ty = computed(target_slot.dtype)?;
        let bench = TensorKernelBuilder::new("sum of products", 64);
        let k = &bench.k;
        let inputs = (0..operand_count)
            .map(|i| bench.reads(self.slot(i)?))
            .collect::<Result<Vec<_>, Why>>()?;
        let target = bench.writes(target_slot)?;
        let result_places = self.label_space(spec, &spec.out)?.on(&bench)?;
        let summed_places = self.label_space(spec, &summed_labels)?.on(&bench)?;
        let elements_per_firing = bench.size(target_slot.elements as usize)?;
        let summed_count = bench.size(volume(&label_sizes(spec, &summed_labels)))?;

        k.each(k.firings() * elements_per_firing, |i| {
            let firing = i / elements_per_firing;
            let first_places = result_places.at(i % elements_per_firing);
            let sum = k.var(k.number(ty, 0.0));
            // Places are sums over the labels: those of the result first, then those that are summed over.
            k.times(summed_count, |n| {
                let more_places = summed_places.at(n);
                let product = inputs
                    .iter()
                    .zip(first_places.iter().zip(more_places))
                    .map(|(input, (first, more))| input.get(firing, *first + more))
                    .reduce(|a, b| a * b);
                sum.set(sum.get() + product.unwrap_or_else(|| k.number(ty, 0.0)));
            });
            target.store(i, sum.get());
        });

        let grid = Grid::Threads(Amount::each(target_slot.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }

    /// The dimensions of some labels, with the steps of each operand along them.
    fn label_space(&self, spec: &EinsumSpec, labels: &[char]) -> Result<Space, Why> {
        let operand_steps = (0..spec.terms.len())
            .map(|i| Ok(label_steps(&spec.terms[i], &self.dims(i)?, labels)))
            .collect::<Result<Vec<_>, Why>>()?;
        Ok(Space::new(&label_sizes(spec, labels), &operand_steps))
    }
}

fn label_sizes(spec: &EinsumSpec, labels: &[char]) -> Vec<usize> {
    labels.iter().map(|label| spec.sizes[label]).collect()
}

/// Steps of an operand along labels. A label that it has twice steps along its diagonal, and dimensions of one element
/// are repeated.
fn label_steps(term: &[char], dims: &[usize], labels: &[char]) -> Vec<isize> {
    let own_steps = dense(dims);
    let step_along = |label: &char| {
        let positions = (0..term.len()).filter(|i| term[*i] == *label);
        positions
            .map(|i| if dims[i] == 1 { 0 } else { own_steps[i] })
            .sum()
    };
    labels.iter().map(step_along).collect()
}

/// The sizes of a product of matrices that may be stored transposed.
fn gemm_sizes(left: &[usize], right: &[usize], [left_t, right_t]: [bool; 2]) -> MatrixSizes {
    MatrixSizes {
        rows: left[usize::from(left_t)],
        columns: right[usize::from(!right_t)],
        depth: left[usize::from(!left_t)],
    }
}
