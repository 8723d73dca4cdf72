//! Products of quantised matrices: by a constant right one, which is packed once, or by one that is packed in each firing.

use zbmd_ir::{DType, TokenType};

use super::super::cx::{Body, Cx, Plan, Tensors, index_at, token, volume};
use super::super::gemm::{ProductSize, Tile};
use super::super::matmul::BatchedShape;
use super::conv::{SLACK, copy_unsigned};
use super::lanes::{Bounds, LANES, LINE, QUAD};
use super::packed::PackedWeights;
use super::rows::{Multiplication, Rows, Target, matrix_rows, matrix_sizes};
use super::{
    ByteRange, ConstantWeights, SIGN, constant_ints, multiplier, scale, scales, zero_point,
};
use zbmd_op::OpError;

/// Operands of `QLinearMatMul`.
const RIGHT: usize = 3;
const RIGHT_SCALES: usize = 4;
const RIGHT_ZEROS: usize = 5;
const RESULT_SCALE: usize = 6;
const RESULT_ZERO: usize = 7;
const BIAS: usize = 8;

/// What becomes of sums.
#[derive(Clone)]
enum Finish {
    Ints,
    Bytes {
        /// One for all columns, or one for each.
        multipliers: Vec<f32>,
        bounds: Bounds,
    },
}

/// Operands that are found in each firing.
#[derive(Clone, Copy)]
struct Places {
    right: usize,
    left_zero: usize,
    right_zero: usize,
    left_type: DType,
    right_type: DType,
}

/// A zero point as the kernels read bytes: of i8, 128 more than the operand says.
fn zero_in(tensors: &Tensors<'_>, operand: usize, dtype: DType) -> i32 {
    let own_zero = match tensors.bytes(operand) {
        [] => 0,
        bytes => index_at(bytes, dtype, 0) as i32,
    };
    match dtype {
        DType::I8 => own_zero + i32::from(SIGN),
        _ => own_zero,
    }
}

/// Whether an operand is missing, or a constant.
fn is_fixed(cx: &Cx<'_>, operand: usize) -> bool {
    cx.opt(operand).is_none_or(|operand| operand.data.is_some())
}

/// Whether an operand is missing, or one number.
fn is_single(cx: &Cx<'_>, operand: usize) -> bool {
    cx.opt(operand)
        .is_none_or(|operand| operand.ty.elements() == 1)
}

/// `QLinearMatMul` by packed kernels: all scales are constant, and the left matrix has but one.
pub(in super::super) fn packed_matmul(
    cx: &Cx<'_>,
    shape: &BatchedShape,
    result: DType,
) -> Result<Option<Plan>, OpError> {
    let others = [1, RIGHT_SCALES, RESULT_SCALE, RESULT_ZERO, BIAS];
    let are_fixed = others.into_iter().all(|operand| is_fixed(cx, operand));
    // Scales of the rows would be factors of rows.
    if !are_fixed || !is_single(cx, 1) || !is_single(cx, 2) {
        return Ok(None);
    }

    let left_scale = scale(cx, 1)?;
    let result_scale = scale(cx, RESULT_SCALE)?;
    let multipliers = scales(cx, RIGHT_SCALES)?
        .into_iter()
        .map(|right_scale| multiplier(left_scale, right_scale, result_scale))
        .collect();
    let finish = Finish::Bytes {
        multipliers,
        bounds: ByteRange::of(cx, result)?.bounds(zero_point(cx, RESULT_ZERO)?),
    };
    let places = Places {
        right: RIGHT,
        left_zero: 2,
        right_zero: RIGHT_ZEROS,
        left_type: cx.dtype(0)?,
        right_type: cx.dtype(RIGHT)?,
    };
    let request = ProductRequest {
        places,
        bias: constant_ints(cx, BIAS)?,
        finish,
        out: token(result, &shape.out),
    };
    packed_plan(cx, shape, request)
}

/// `MatMulInteger` by packed kernels: the left matrix has but one zero point.
pub(in super::super) fn packed_matmul_integer(
    cx: &Cx<'_>,
    shape: &BatchedShape,
) -> Result<Option<Plan>, OpError> {
    if !is_single(cx, 2) {
        return Ok(None);
    }
    let places = Places {
        right: 1,
        left_zero: 2,
        right_zero: 3,
        left_type: cx.dtype(0)?,
        right_type: cx.dtype(1)?,
    };
    let request = ProductRequest {
        places,
        bias: None,
        finish: Finish::Ints,
        out: token(DType::I32, &shape.out),
    };
    packed_plan(cx, shape, request)
}

/// What a product is made from beside its matrices.
#[derive(Clone)]
struct ProductRequest {
    places: Places,
    bias: Option<Vec<i32>>,
    finish: Finish,
    out: TokenType,
}

/// The product, if one of the two kernels takes it.
fn packed_plan(
    cx: &Cx<'_>,
    shape: &BatchedShape,
    request: ProductRequest,
) -> Result<Option<Plan>, OpError> {
    let size = shape.size;
    if size.rows == 0 || size.depth == 0 || size.columns == 0 {
        return Ok(None);
    }
    let places = request.places;
    let outs = vec![request.out.clone()];
    // Four products of bytes take the time of one of floats.
    let flops = shape.flops() / 4.0;
    let weights = cx.operand(places.right)?.clone();
    let is_one = weights.ty.elements() as usize == size.depth * size.columns;
    if is_one && weights.data.is_some() && is_fixed(cx, places.right_zero) {
        let matrix = FixedMatrix {
            weights: ConstantWeights {
                operand: weights,
                zeros: cx.opt(places.right_zero).cloned(),
                filters: size.columns,
                filter_step: 1,
            },
            // The rows of all batches meet the same matrix.
            size: ProductSize {
                rows: volume(&shape.out) / size.columns,
                ..size
            },
        };
        let kept = matrix.clone();
        let pack = move || {
            kept.packed()
                .map(|packed| packed.to_bytes())
                .unwrap_or_default()
        };
        let plan = Plan::in_variants(outs, &Tile::ALL, move |tile| {
            let product = FixedProduct::new(&matrix, request, tile)?;
            Ok(Box::new(product) as Box<dyn Body>)
        });
        return Ok(Some(plan.products(flops).packs_bytes(places.right, pack)));
    }

    let is_plain = is_single(cx, places.right_zero) && request.bias.is_none();
    let has_one_multiplier = match &request.finish {
        Finish::Ints => true,
        Finish::Bytes { multipliers, .. } => multipliers.len() == 1,
    };
    if !is_plain || !has_one_multiplier {
        return Ok(None);
    }
    let own_shape = shape.clone();
    let plan = Plan::in_variants(outs, &Tile::ALL, move |tile| {
        let product = FreeProduct::new(own_shape, request, tile)?;
        Ok(Box::new(product) as Box<dyn Body>)
    });
    Ok(Some(plan.products(flops)))
}

/// A constant right matrix, the same for all batches.
#[derive(Clone)]
struct FixedMatrix {
    weights: ConstantWeights,
    size: ProductSize,
}

impl FixedMatrix {
    /// The matrix in the order of the kernels.
    fn packed(&self) -> Result<PackedWeights, OpError> {
        let columns = self.size.columns;
        self.weights
            .packed(matrix_sizes(self.size), |column, _, k| k * columns + column)
    }
}

/// The left matrix as kernels read it: in place, or as a copy.
#[derive(Clone, Copy)]
struct LeftMatrix {
    is_signed: bool,
    bytes: usize,
    /// Whether rows end with a whole quad.
    is_whole: bool,
}

impl LeftMatrix {
    fn of(size: ProductSize, dtype: DType) -> Self {
        Self {
            is_signed: dtype == DType::I8,
            bytes: size.rows * size.depth,
            is_whole: size.depth.is_multiple_of(QUAD),
        }
    }

    fn scratch_bytes(&self) -> usize {
        match self.is_signed || !self.is_whole {
            true => self.bytes + SLACK,
            false => 0,
        }
    }

    /// Bytes that the kernels can read.
    fn input_bytes(&self) -> usize {
        match self.scratch_bytes() {
            0 => self.bytes,
            copied => copied,
        }
    }

    /// The bytes as those of u8, in `scratch` where they cannot be read in place.
    fn unsigned<'a>(&self, left: &'a [u8], scratch: &'a mut [u8]) -> &'a [u8] {
        if self.scratch_bytes() == 0 {
            return left;
        }
        copy_unsigned(left, &mut scratch[..self.bytes], self.is_signed);
        &scratch[..self.bytes + SLACK]
    }
}

/// A product by a constant matrix.
struct FixedProduct {
    places: Places,
    left: LeftMatrix,
    rows: Rows,
    packed: PackedWeights,
    bias: Option<Vec<i32>>,
    /// By panel and lane.
    multipliers: Vec<f32>,
    finish: Finish,
}

impl FixedProduct {
    fn new(matrix: &FixedMatrix, request: ProductRequest, tile: Tile) -> Result<Self, OpError> {
        let ProductRequest {
            places,
            bias,
            finish,
            ..
        } = request;
        let size = matrix.size;
        let packed = matrix.packed()?;
        let left = LeftMatrix::of(size, places.left_type);
        let multipliers = match &finish {
            Finish::Ints => Vec::new(),
            Finish::Bytes { multipliers, .. } => packed.by_lane(multipliers),
        };
        Ok(Self {
            places,
            left,
            rows: matrix_rows(size, packed.passes, tile, left.input_bytes())?,
            packed,
            bias,
            multipliers,
            finish,
        })
    }
}

impl Body for FixedProduct {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let zero = zero_in(tensors, self.places.left_zero, self.places.left_type);
        let input = tensors.bytes(0);
        let scratch = tensors.scratch::<u8>();
        // The zero point may be another in each firing, and with it what is added to the columns' sums.
        let (bias_bytes, scratch) = scratch.split_at_mut(4 * self.packed.lanes());
        let biases = bytemuck::cast_slice_mut::<u8, i32>(bias_bytes);
        self.packed.put_biases(self.bias.as_deref(), zero, biases);

        let target = match &self.finish {
            Finish::Ints => Target::Ints(tensors.out(0)),
            Finish::Bytes { bounds, .. } => Target::Bytes {
                to: tensors.out_bytes(0),
                multipliers: &self.multipliers,
                bounds: *bounds,
                sum: None,
            },
        };
        self.rows.multiply(Multiplication {
            input: self.left.unsigned(input, scratch),
            weights: self.packed.bytes(),
            biases,
            row_terms: None,
            target,
        });
    }

    fn scratch_bytes(&self) -> usize {
        4 * self.packed.lanes() + self.left.scratch_bytes()
    }
}

/// A product by a matrix that comes by a port, or of which there is one for each batch.
struct FreeProduct {
    shape: BatchedShape,
    places: Places,
    left: LeftMatrix,
    rows: Rows,
    /// By panel and lane.
    multipliers: Vec<f32>,
    finish: Finish,
}

impl FreeProduct {
    fn new(shape: BatchedShape, request: ProductRequest, tile: Tile) -> Result<Self, OpError> {
        let ProductRequest { places, finish, .. } = request;
        let left = LeftMatrix::of(shape.size, places.left_type);
        let rows = matrix_rows(shape.size, 1, tile, left.input_bytes())?;
        let multipliers = match &finish {
            Finish::Ints => Vec::new(),
            Finish::Bytes { multipliers, .. } => {
                vec![multipliers[0]; rows.sizes.panels() * LANES]
            }
        };
        Ok(Self {
            left,
            shape,
            places,
            rows,
            multipliers,
            finish,
        })
    }

    fn lanes(&self) -> usize {
        self.rows.sizes.panels() * LANES
    }

    fn weight_bytes(&self) -> usize {
        self.rows.sizes.panels() * self.rows.panel_bytes()
    }

    /// What the zero points of both matrices, as the kernels read them, add to the sums: of columns and of rows.
    ///
    /// `Σ (x − zx)(w − zw) = Σ x·w − zx·Σw − zw·Σx + depth·zx·zw`
    fn put_terms(&self, zeros: [i32; 2], left: &[u8], biases: &mut [i32], terms: &mut [i32]) {
        let [left_zero, right_zero] = zeros;
        let depth = self.shape.size.depth;
        let both = (depth as i32)
            .wrapping_mul(left_zero)
            .wrapping_mul(right_zero);
        for bias in biases.iter_mut() {
            // It holds the sum of the column's weights.
            *bias = both.wrapping_sub(left_zero.wrapping_mul(*bias));
        }
        for (term, row) in terms.iter_mut().zip(left.chunks_exact(depth)) {
            let sum = row
                .iter()
                .fold(0_i32, |sum, &byte| sum.wrapping_add(i32::from(byte)));
            *term = right_zero.wrapping_mul(sum).wrapping_neg();
        }
    }
}

/// Packs a matrix of bytes as it comes, `flip` making those of i8 of them; `sums` get the sums of its columns.
fn pack_matrix(matrix: &[u8], size: ProductSize, flip: u8, packed: &mut [i8], sums: &mut [i32]) {
    let panel_bytes = matrix_sizes(size).panel_bytes(1);
    let panels = packed
        .chunks_exact_mut(panel_bytes)
        .zip(sums.chunks_exact_mut(LANES));
    for (p, (panel, sums)) in panels.enumerate() {
        sums.fill(0);
        let first = p * LANES;
        let width = (size.columns - first).min(LANES);
        let (lines, filling) = panel.split_at_mut(size.depth.div_ceil(QUAD) * LINE);
        filling.fill(0);
        for (q, line) in lines.chunks_exact_mut(LINE).enumerate() {
            // Four rows side by side; those behind the last, and lanes behind the last column, have weights of 0.
            let mut rows = [[0_i8; LANES]; QUAD];
            for (k, row) in (q * QUAD..size.depth).zip(&mut rows) {
                let own = &matrix[k * size.columns + first..][..width];
                match <&[u8; LANES]>::try_from(own) {
                    Ok(own) => *row = own.map(|byte| (byte ^ flip) as i8),
                    Err(_) => row
                        .iter_mut()
                        .zip(own)
                        .for_each(|(weight, &byte)| *weight = (byte ^ flip) as i8),
                }
            }
            for (lane, quad) in line.as_chunks_mut::<QUAD>().0.iter_mut().enumerate() {
                *quad = rows.map(|row| row[lane]);
            }
            for (lane, sum) in sums.iter_mut().enumerate() {
                for row in &rows {
                    *sum = sum.wrapping_add(i32::from(row[lane]));
                }
            }
        }
    }
}

impl Body for FreeProduct {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let size = self.shape.size;
        let left_zero = zero_in(tensors, self.places.left_zero, self.places.left_type);
        // The kernels take a right matrix of i8: one of u8 is read as 128 less, and so is its zero point.
        let right_is_signed = self.places.right_type == DType::I8;
        let flip = if right_is_signed { 0 } else { SIGN };
        let right_zero = zero_in(tensors, self.places.right_zero, self.places.right_type);
        let zeros = [left_zero, right_zero - i32::from(SIGN)];

        let left = tensors.bytes(0);
        let right = tensors.bytes(self.places.right);
        let (mut bytes_out, mut ints_out): (&mut [u8], &mut [i32]) = match self.finish {
            Finish::Ints => (&mut [], tensors.out(0)),
            Finish::Bytes { .. } => (tensors.out_bytes(0), &mut []),
        };
        let scratch = tensors.scratch::<u8>();
        let (bias_bytes, scratch) = scratch.split_at_mut(4 * self.lanes());
        let biases = bytemuck::cast_slice_mut::<u8, i32>(bias_bytes);
        let (term_bytes, scratch) = scratch.split_at_mut(4 * size.rows);
        let terms = bytemuck::cast_slice_mut::<u8, i32>(term_bytes);
        let (packed_bytes, left_copy) = scratch.split_at_mut(self.weight_bytes());
        let packed = bytemuck::cast_slice_mut::<u8, i8>(packed_bytes);

        // Products come one after the other, as their results do.
        self.shape.each_product(|_, left_start, right_start| {
            let own_left = &left[left_start..][..size.rows * size.depth];
            let own_right = &right[right_start..][..size.depth * size.columns];
            let input = self.left.unsigned(own_left, left_copy);
            pack_matrix(own_right, size, flip, packed, biases);
            self.put_terms(zeros, input, biases, terms);

            let result_length = size.rows * size.columns;
            let target = match &self.finish {
                Finish::Ints => Target::Ints(take_front(&mut ints_out, result_length)),
                Finish::Bytes { bounds, .. } => Target::Bytes {
                    to: take_front(&mut bytes_out, result_length),
                    multipliers: &self.multipliers,
                    bounds: *bounds,
                    sum: None,
                },
            };
            self.rows.multiply(Multiplication {
                input,
                weights: packed,
                biases,
                row_terms: Some(terms),
                target,
            });
        });
    }

    fn scratch_bytes(&self) -> usize {
        let integers = self.lanes() + self.shape.size.rows;
        4 * integers + self.weight_bytes() + self.left.scratch_bytes()
    }
}

/// The first elements of a slice, which then begins behind them.
fn take_front<'a, T>(slice: &mut &'a mut [T], length: usize) -> &'a mut [T] {
    let (front, rest) = std::mem::take(slice).split_at_mut(length);
    *slice = rest;
    front
}
