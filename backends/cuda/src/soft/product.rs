//! Products of the vendor's library in software: sums of f64 in any order nearly always have the same bits, which is all
//! that is expected of the real one.

use super::super::driver::Address;
use super::super::error::Code;
use super::matrix::to_tf32;
use super::memory::SoftMemory;
use zbmd_gpu_ir::Math;
use zbmd_gpu_ir::library::{Product, Shape, WORKSPACE, WORKSPACE_ALIGN};

/// So many floats from an address on.
fn load_floats(memory: &mut SoftMemory, first: Address, count: u64) -> Result<Vec<f32>, Code> {
    let mut floats = Vec::with_capacity(count as usize);
    for index in 0..count {
        let mut bytes = [0; 4];
        memory.load(first + 4 * index, &mut bytes)?;
        floats.push(f32::from_le_bytes(bytes));
    }
    Ok(floats)
}

/// The matrices of all products.
struct Factors {
    left: Vec<f32>,
    right: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Factors {
    fn load(product: &Product<Address>, count: u64, memory: &mut SoftMemory) -> Result<Self, Code> {
        let shape = &product.shape;
        let [left_span, right_span, _] = shape.spans(count);
        let mut left = load_floats(memory, product.left, left_span)?;
        let mut right = load_floats(memory, product.right, right_span)?;

        if shape.math == Math::Tf32 {
            for factor in left.iter_mut().chain(&mut right) {
                *factor = f32::from_bits(to_tf32(factor.to_bits()));
            }
        }

        let bias = match product.bias {
            Some(first) => Some(load_floats(memory, first, shape.columns)?),
            None => None,
        };
        Ok(Self { left, right, bias })
    }

    /// One element of the result of product number `batch`.
    fn element(&self, shape: &Shape, batch: u64, row: u64, column: u64) -> f32 {
        let [left_stride, right_stride, _] = shape.strides();
        let [left_transposed, right_transposed] = shape.transposed;
        let terms = (0..shape.depth).map(|inner| {
            let left_index = match left_transposed {
                true => inner * shape.rows + row,
                false => row * shape.depth + inner,
            };
            let right_index = match right_transposed {
                true => column * shape.depth + inner,
                false => inner * shape.columns + column,
            };
            let left = self.left[(batch * left_stride + left_index) as usize];
            let right = self.right[(batch * right_stride + right_index) as usize];
            f64::from(left) * f64::from(right)
        });

        let sum: f64 = terms.sum();

        let bias = self.bias.as_ref();
        let bias = bias.map_or(0.0, |bias| f64::from(bias[column as usize]));
        let value = (f64::from(shape.alpha) * sum + bias) as f32;
        if shape.relu && value < 0.0 {
            return 0.0;
        }
        value
    }
}

pub(super) fn run_products(
    product: &Product<Address>,
    count: u64,
    memory: &mut SoftMemory,
) -> Result<(), Code> {
    let shape = &product.shape;
    let operands = [product.left, product.right, product.out, product.scratch];
    let aligns = shape.aligns().map(u64::from).into_iter();
    for (address, align) in operands.iter().zip(aligns.chain([WORKSPACE_ALIGN])) {
        assert!(
            address.is_multiple_of(align),
            "{address:#x} is not a multiple of {align}"
        );
    }

    let factors = Factors::load(product, count, memory)?;
    // The library leaves arbitrary bytes there.
    memory.fill(product.scratch, WORKSPACE, 0x5a)?;
    let [_, _, out_stride] = shape.strides();

    for batch in 0..count {
        for row in 0..shape.rows {
            for column in 0..shape.columns {
                let value = factors.element(shape, batch, row, column);
                let index = batch * out_stride + row * shape.columns + column;
                memory.store(product.out + 4 * index, &value.to_le_bytes())?;
            }
        }
    }
    Ok(())
}
