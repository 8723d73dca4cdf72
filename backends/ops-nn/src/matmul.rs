//! Matrix products: MatMul, Gemm, Einsum and their integer kin.

mod batches;
mod contraction;
mod einsum;
mod integer;

use std::borrow::Cow;

use zbmd_ir::{DType, TokenType};

use super::aligned::AlignedFloats;
use super::attributes;
use super::cx::{Body, Cx, Operand, Plan, Planned, Tensors, by_num, constant_f32, token, volume};
use super::gemm::{Act, Extra, Left, MatrixLayout, ProductSize, Tile, Weights, gemm, pack};
use super::index::{Walk, broadcast, strides};
use super::num::Num;
use zbmd_op::OpError;
use zbmd_op::simd::{Isa, Loop, fma};

use batches::{Batches, MatrixPairs};
pub(super) use einsum::{EinsumSpec, einsum};
pub(super) use integer::{matmul_integer, qlinear_matmul};

/// Sizes of a batched product.
#[derive(Clone)]
pub(super) struct BatchedShape {
    pub(super) size: ProductSize,
    /// Walk over pairs of matrices.
    walk: Walk<2>,
    batches: usize,
    /// Dimensions of the result.
    pub(super) out: Vec<usize>,
}

impl BatchedShape {
    pub(super) fn flops(&self) -> f64 {
        let ProductSize {
            rows,
            depth,
            columns,
        } = self.size;
        2.0 * self.batches as f64 * rows as f64 * depth as f64 * columns as f64
    }

    /// The shape of the product of two operands, as NumPy's `matmul` has it.
    fn of(cx: &Cx<'_>, left: usize, right: usize) -> Result<Self, OpError> {
        let mut left_dims = cx.dims(left)?;
        let mut right_dims = cx.dims(right)?;
        if left_dims.is_empty() || right_dims.is_empty() {
            let message = "is a scalar, or the other one is";
            return Err(cx.refuse(right, message, "multiply with NnMul"));
        }

        // A vector on the left is one row, one on the right one column; the result lacks that dimension.
        let left_is_vector = left_dims.len() == 1;
        let right_is_vector = right_dims.len() == 1;
        if left_is_vector {
            left_dims.insert(0, 1);
        }
        if right_is_vector {
            right_dims.push(1);
        }

        // The last two dimensions are matrices; those before them broadcast.
        let (left_batch, left_matrix) = left_dims.split_at(left_dims.len() - 2);
        let (right_batch, right_matrix) = right_dims.split_at(right_dims.len() - 2);
        let size = ProductSize {
            rows: left_matrix[0],
            depth: left_matrix[1],
            columns: right_matrix[1],
        };
        if right_matrix[0] != size.depth {
            let right_type = &cx.operand(right)?.ty;
            let message = format!("is {right_type}, the left matrix {}", cx.operand(left)?.ty);
            return Err(cx.refuse(right, message, format!("its rows are {}", size.depth)));
        }

        let batch_dims = broadcast(&[left_batch, right_batch])?;
        let left_steps = batch_steps(&batch_dims, left_batch, size.rows * size.depth);
        let right_steps = batch_steps(&batch_dims, right_batch, size.depth * size.columns);
        let walk = Walk::new(&batch_dims, [left_steps, right_steps], [0, 0])?;

        let batches = volume(&batch_dims);
        let mut out = batch_dims;
        if !left_is_vector {
            out.push(size.rows);
        }
        if !right_is_vector {
            out.push(size.columns);
        }
        Ok(Self {
            size,
            walk,
            batches,
            out,
        })
    }

    /// Calls `f` with the number of each product and the first elements of its two matrices.
    #[inline]
    pub(super) fn each_product(&self, f: impl FnMut(usize, usize, usize)) {
        each_pair(&self.walk, f);
    }
}

/// Calls `f` with the number of each pair of matrices and their first elements.
#[inline]
fn each_pair(walk: &Walk<2>, mut f: impl FnMut(usize, usize, usize)) {
    let [left_step, right_step] = walk.step;
    walk.each(|first_pair, [left_start, right_start]| {
        for i in 0..walk.inner {
            f(
                first_pair + i,
                left_start + i * left_step as usize,
                right_start + i * right_step as usize,
            );
        }
    });
}

/// Steps of an operand's matrices over the batch dimensions: 0 where one matrix serves for all.
fn batch_steps(batch_dims: &[usize], own_dims: &[usize], matrix_elements: usize) -> Vec<isize> {
    let missing_dims = batch_dims.len() - own_dims.len();
    let own_strides = strides(own_dims);
    (0..batch_dims.len())
        .map(|i| match i.checked_sub(missing_dims) {
            Some(own) if own_dims[own] != 1 => (own_strides[own] * matrix_elements) as isize,
            _ => 0,
        })
        .collect()
}

/// Types that are multiplied by the packed kernels, the narrow ones widened before.
fn is_packed_type(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

/// What a product of matrices is asked to do beside the product.
pub(super) struct MatMulSpec {
    pub(super) act: Act,
}

impl MatMulSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            act: attributes::activation(cx)?,
        })
    }
}

pub(super) fn matmul(cx: &Cx<'_>, spec: &MatMulSpec) -> Planned {
    let dtype = cx.dtype(0)?;
    if cx.dtype(1)? != dtype {
        return Err(cx.refuse_type(1, format!("the left matrix is {dtype}")));
    }
    let shape = BatchedShape::of(cx, 0, 1)?;
    let flops = shape.flops();
    let outs = vec![token(dtype, &shape.out)];
    if !is_packed_type(dtype) {
        let plan = by_num!(dtype, plain_plan(outs, shape))?;
        return Ok(plan.flops(8.0 * flops));
    }

    let bias = cx.opt(2).cloned();
    // A fused bias is read when the kernel is made: it has to be a constant.
    if let Some(bias) = &bias
        && (bias.dims() != [shape.size.columns] || bias.data.is_none())
    {
        let help = format!("it is a constant of [{}]", shape.size.columns);
        return Err(cx.refuse_type(2, help));
    }
    matmul_plan(cx, shape, outs, bias, spec.act)
}

/// A product by the packed kernels. The right matrix is packed ahead where it is one constant for all batches.
fn matmul_plan(
    cx: &Cx<'_>,
    shape: BatchedShape,
    outs: Vec<TokenType>,
    bias: Option<Operand>,
    act: Act,
) -> Planned {
    let right = cx.operand(1)?.clone();
    let layout = MatrixLayout::row_major(shape.size.depth, shape.size.columns);
    let right_elements = right.ty.elements() as usize;
    // One constant matrix for all batches: a stack of them would need a packed copy of each.
    let is_fixed = right.data.is_some() && right_elements == layout.rows * layout.columns;
    // Constant operands of half precision are widened when the kernel is made.
    let is_stacked = is_fixed && cx.operand(0)?.data.is_none() && cx.dtype(0)? == DType::F32;

    let flops = shape.flops();
    let weights = right.clone();
    let plan = Plan::in_variants(outs, &Tile::ALL, move |tile| {
        let packed = packed_weights(is_fixed, &right, layout, 1.0)?;
        let bias_floats = bias.as_ref().and_then(constant_f32).map(Cow::into_owned);
        Ok(Box::new(MatMul {
            pairs: MatrixPairs::dense(&shape),
            packed,
            is_stacked,
            bias: bias_floats,
            act,
            tile,
        }))
    })
    .products(flops);
    if !is_fixed {
        return Ok(plan);
    }
    Ok(packs_right(plan, weights, layout, 1.0))
}

/// The right matrix in panels, where it is a constant.
fn packed_weights(
    is_fixed: bool,
    right: &Operand,
    layout: MatrixLayout,
    scale: f32,
) -> Result<Option<Weights>, OpError> {
    match is_fixed {
        true => constant_weights(right, layout, scale).map(Some),
        false => Ok(None),
    }
}

/// A constant right matrix in panels: as the compiler packed it, or packed now.
pub(super) fn constant_weights(
    right: &Operand,
    layout: MatrixLayout,
    scale: f32,
) -> Result<Weights, OpError> {
    let pack_now = || packed_right(right, layout, scale);
    Weights::new(right.packed.clone(), layout.packed_len(), pack_now)
}

/// The plan of a product whose right matrix is a constant. Only those that come by a port are packed in scratch memory.
fn packs_right(plan: Plan, right: Operand, layout: MatrixLayout, scale: f32) -> Plan {
    plan.needs_scratch(|| 0)
        .packs(1, move || packed_right(&right, layout, scale))
}

/// A constant right matrix in panels.
pub(super) fn packed_right(right: &Operand, layout: MatrixLayout, scale: f32) -> AlignedFloats {
    let matrix = constant_f32(right).unwrap_or_default();
    let mut packed = AlignedFloats::zeroed(layout.packed_len());
    pack(&matrix, layout, &mut packed);
    if scale != 1.0 {
        packed.iter_mut().for_each(|weight| *weight *= scale);
    }
    packed
}

struct MatMul {
    pairs: MatrixPairs,
    packed: Option<Weights>,
    /// All firings' rows meet the same matrix.
    is_stacked: bool,
    bias: Option<Vec<f32>>,
    act: Act,
    tile: Tile,
}

impl Body for MatMul {
    fn run(&self, t: &mut Tensors<'_>) {
        let ProductSize { depth, columns, .. } = self.pairs.size;
        let result = t.out::<f32>(0);
        let extra = Extra {
            column_bias: self.bias.as_deref(),
            act: self.act,
            tile: self.tile,
            ..Extra::default()
        };

        // One right matrix for all: the rows of all batches, and of all firings, are one tall matrix.
        if let Some(packed) = &self.packed {
            let all_rows = ProductSize {
                rows: result.len() / columns.max(1),
                ..self.pairs.size
            };
            let dense_left = Left::dense(t.get::<f32>(0), depth);
            return gemm(all_rows, dense_left, packed, result, columns, extra);
        }

        let packed = t.scratch::<f32>();
        Batches::new(&self.pairs, t, [0, 1], extra).run(packed, result);
    }

    fn scratch_bytes(&self) -> usize {
        match self.packed {
            Some(_) => 0,
            None => 4 * self.pairs.packed_len(),
        }
    }

    fn batches(&self) -> bool {
        self.is_stacked
    }
}

/// One row times a matrix that is met once, or few times: packing it would cost more than the product. The same chains as there.
struct OneRow<'a> {
    row: &'a [f32],
    /// Its rows are dense, and so far apart.
    matrix: &'a [f32],
    row_step: usize,
    result: &'a mut [f32],
    extra: Extra<'a>,
}

impl OneRow<'_> {
    /// The sums of as many columns as there are in `SUMS`, which stay in registers, in strips; the columns that are done.
    #[inline(always)]
    fn strips<const FMA: bool, const SUMS: usize>(&mut self, first_column: usize) -> usize {
        let strips = self.result[first_column..].chunks_exact_mut(SUMS);
        let mut column = first_column;
        for strip in strips {
            let mut sums = [0.0; SUMS];
            for (k, &factor) in self.row.iter().enumerate() {
                let weights = &self.matrix[k * self.row_step + column..][..SUMS];
                let weighted = sums.iter_mut().zip(weights);
                weighted.for_each(|(sum, &weight)| *sum = fma::<FMA>(factor, weight, *sum));
            }
            strip.copy_from_slice(&sums);
            column += SUMS;
        }
        column
    }
}

impl Loop for OneRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(mut self, _: Isa<FMA>) {
        // Columns are innermost, so that lanes run along a row of the matrix and each sum stays one chain.
        let wide = self.strips::<FMA, 64>(0);
        let half = self.strips::<FMA, 32>(wide);
        let middle = self.strips::<FMA, 16>(half);
        let Self { result, extra, .. } = self;
        let rest = &mut result[middle..];
        rest.fill(0.0);
        for (k, &factor) in self.row.iter().enumerate() {
            let weights = &self.matrix[k * self.row_step + middle..];
            let weighted = rest.iter_mut().zip(weights);
            weighted.for_each(|(sum, &weight)| *sum = fma::<FMA>(factor, weight, *sum));
        }

        if let Some(bias) = extra.column_bias {
            result.iter_mut().zip(bias).for_each(|(sum, b)| *sum += b);
        }
        extra.act.apply::<FMA>(result);
    }
}

fn plain_plan<T: Num>(outs: Vec<TokenType>, shape: BatchedShape) -> Planned {
    Ok(Plan::new(outs, move |t: &mut Tensors<'_>| {
        let left = t.get::<T>(0);
        let right = t.get::<T>(1);
        plain_products(&shape, left, right, t.out::<T>(0));
    }))
}

/// Rows times columns, one chain each.
fn plain_products<T: Num>(shape: &BatchedShape, left: &[T], right: &[T], result: &mut [T]) {
    let ProductSize {
        rows,
        depth,
        columns,
    } = shape.size;
    shape.each_product(|product, left_start, right_start| {
        let own_left = &left[left_start..];
        let own_right = &right[right_start..];
        for r in 0..rows {
            for c in 0..columns {
                let sum = (0..depth).fold(T::ZERO, |sum, k| {
                    sum.add(own_left[r * depth + k].mul(own_right[k * columns + c]))
                });
                result[(product * rows + r) * columns + c] = sum;
            }
        }
    });
}

/// alpha · a · b + beta · c, and an activation.
pub(super) struct GemmSpec {
    /// Whether each of the two matrices is read transposed.
    pub(super) transposes: [bool; 2],
    pub(super) alpha: f64,
    pub(super) beta: f64,
    pub(super) act: Act,
}

impl GemmSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            transposes: [cx.flag("transA", false)?, cx.flag("transB", false)?],
            alpha: attributes::alpha(cx, 1.0)?,
            beta: attributes::beta(cx, 1.0)?,
            act: attributes::activation(cx)?,
        })
    }
}

pub(super) fn gemm_op(cx: &Cx<'_>, spec: &GemmSpec) -> Planned {
    let dtype = cx.dtype(0)?;
    let gemm_shape = GemmShape::of(cx, spec)?;
    let ProductSize {
        rows,
        depth,
        columns,
    } = gemm_shape.size;
    let outs = vec![token(dtype, &[rows, columns])];
    let flops = 2.0 * rows as f64 * columns as f64 * depth as f64;
    if !is_packed_type(dtype) {
        let plan = by_num!(dtype, plain_gemm(outs, gemm_shape, spec.alpha, spec.beta))?;
        return Ok(plan.flops(8.0 * flops));
    }

    let act = spec.act;
    let alpha = spec.alpha as f32;
    let beta = spec.beta as f32;
    let layout = gemm_shape.right;
    let right = cx.operand(1)?.clone();
    let is_fixed = right.data.is_some();
    let weights = right.clone();
    let plan = Plan::in_variants(outs, &Tile::ALL, move |tile| {
        let packed = packed_weights(is_fixed, &right, layout, alpha)?;
        Ok(Box::new(Gemm {
            shape: gemm_shape,
            packed,
            alpha,
            beta,
            act,
            tile,
        }))
    })
    .products(flops);
    if !is_fixed {
        return Ok(plan);
    }
    Ok(packs_right(plan, weights, layout, alpha))
}

/// Sizes of a product of two matrices that may be stored transposed.
#[derive(Clone)]
struct GemmShape {
    size: ProductSize,
    /// Steps from a row and from a column of the left matrix to the next.
    left_row_step: usize,
    left_column_step: usize,
    right: MatrixLayout,
    /// Walk over what is added to the result.
    added: Option<Walk<1>>,
}

impl GemmShape {
    fn of(cx: &Cx<'_>, spec: &GemmSpec) -> Result<Self, OpError> {
        let left_dims = cx.dims(0)?;
        let right_dims = cx.dims(1)?;
        let (&[left_rows, left_columns], &[right_rows, right_columns]) =
            (left_dims.as_slice(), right_dims.as_slice())
        else {
            return Err(cx.refuse_type(1, "it takes matrices"));
        };

        let [left_is_transposed, right_is_transposed] = spec.transposes;
        // A transposed operand is stored with its dimensions in the other order.
        let (rows, depth) = match left_is_transposed {
            true => (left_columns, left_rows),
            false => (left_rows, left_columns),
        };
        let (right_depth, columns) = match right_is_transposed {
            true => (right_columns, right_rows),
            false => (right_rows, right_columns),
        };
        if depth != right_depth {
            return Err(cx.refuse_type(1, format!("the first is {}", cx.operand(0)?.ty)));
        }

        let added = match cx.opt(2) {
            None => None,
            Some(added) => {
                // C is broadcast one way only: it must not enlarge the result.
                if broadcast(&[&added.dims(), &[rows, columns]])? != [rows, columns] {
                    return Err(cx.refuse_type(2, format!("it must fit [{rows}, {columns}]")));
                }
                Some(Walk::broadcasting(&[rows, columns], [&added.dims()])?)
            }
        };
        Ok(Self {
            size: ProductSize {
                rows,
                depth,
                columns,
            },
            // Nothing is moved for a transposition: its steps change places.
            left_row_step: if left_is_transposed { 1 } else { depth },
            left_column_step: if left_is_transposed { rows } else { 1 },
            right: match right_is_transposed {
                true => MatrixLayout::column_major(depth, columns),
                false => MatrixLayout::row_major(depth, columns),
            },
            added,
        })
    }
}

/// A number times a factor, which 1 leaves as it is, also where f64 could not hold it.
fn scaled<T: Num>(number: T, factor: f64) -> T {
    match factor {
        1.0 => number,
        _ => T::of(number.f64() * factor),
    }
}

/// The product for types without packed kernels.
fn plain_gemm<T: Num>(outs: Vec<TokenType>, shape: GemmShape, alpha: f64, beta: f64) -> Planned {
    Ok(Plan::new(outs, move |t: &mut Tensors<'_>| {
        let left = t.get::<T>(0);
        let right = t.get::<T>(1);
        let added = t.get::<T>(2);
        let result = t.out::<T>(0);

        let columns = shape.size.columns;
        for r in 0..shape.size.rows {
            for c in 0..columns {
                let sum = (0..shape.size.depth).fold(T::ZERO, |sum, k| {
                    let factor = left[r * shape.left_row_step + k * shape.left_column_step];
                    let weight = right[k * shape.right.row_step + c * shape.right.column_step];
                    sum.add(factor.mul(weight))
                });
                result[r * columns + c] = scaled(sum, alpha);
            }
        }

        if let Some(walk) = &shape.added {
            walk.each(|to, [from]| {
                for i in 0..walk.inner {
                    let term = scaled(added[from + i * walk.step[0] as usize], beta);
                    result[to + i] = result[to + i].add(term);
                }
            });
        }
    }))
}

struct Gemm {
    shape: GemmShape,
    packed: Option<Weights>,
    alpha: f32,
    beta: f32,
    act: Act,
    tile: Tile,
}

impl Body for Gemm {
    fn run(&self, t: &mut Tensors<'_>) {
        let left = t.get::<f32>(0);
        let added = t.get::<f32>(2);
        let result = t.out::<f32>(0);

        // What is added is written first, and the product accumulates on it.
        if let Some(walk) = &self.shape.added {
            walk.each(|to, [from]| {
                for (i, sum) in result[to..to + walk.inner].iter_mut().enumerate() {
                    *sum = self.beta * added[from + i * walk.step[0] as usize];
                }
            });
        }

        // A right matrix that comes by a port is packed in each firing, and α goes into it there.
        let own_packed;
        let packed: &[f32] = match &self.packed {
            Some(packed) => packed,
            None => {
                let scratch = t.scratch::<f32>();
                pack(t.get::<f32>(1), self.shape.right, scratch);
                scratch.iter_mut().for_each(|weight| *weight *= self.alpha);
                own_packed = scratch;
                own_packed
            }
        };
        let extra = Extra {
            accumulate: self.shape.added.is_some(),
            act: self.act,
            tile: self.tile,
            ..Extra::default()
        };
        let left_matrix = Left {
            data: left,
            row_step: self.shape.left_row_step,
            column_step: self.shape.left_column_step,
        };
        let stride = self.shape.size.columns;
        gemm(self.shape.size, left_matrix, packed, result, stride, extra);
    }

    fn scratch_bytes(&self) -> usize {
        match self.packed {
            Some(_) => 0,
            None => 4 * self.shape.right.packed_len(),
        }
    }
}
