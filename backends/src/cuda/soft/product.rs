//! Products of the vendor's library in software: sums of f64 in any order have the same bits nearly always, which is
//! all that is promised of the real one.

use super::super::driver::Address;
use super::super::error::Code;
use super::matrix::to_tf32;
use super::memory::Memory;
use crate::kernels::Math;
use crate::kernels::library::{Product, WORKSPACE};

/// So many floats from an address on.
fn floats(memory: &mut Memory, at: Address, count: u64) -> Result<Vec<f32>, Code> {
    let mut bytes = [0; 4];
    let mut load = |i| {
        memory
            .load(at + 4 * i, &mut bytes)
            .map(|()| f32::from_le_bytes(bytes))
    };
    (0..count).map(&mut load).collect()
}

pub(super) fn run(product: &Product<Address>, count: u64, memory: &mut Memory) -> Result<(), Code> {
    let shape = &product.shape;
    let places = [product.left, product.right, product.out];
    for (place, align) in places.iter().zip(shape.aligns()) {
        assert!(
            place.is_multiple_of(align.into()),
            "{place:#x} is no multiple of {align}"
        );
    }
    let [left_span, right_span, _] = shape.spans(count);
    let mut factors = [
        floats(memory, product.left, left_span)?,
        floats(memory, product.right, right_span)?,
    ];
    if shape.math == Math::Tf32 {
        let all = factors.iter_mut().flatten();
        all.for_each(|v| *v = f32::from_bits(to_tf32(v.to_bits())));
    }
    let bias = product
        .bias
        .map(|at| floats(memory, at, shape.columns))
        .transpose()?;
    // What it leaves there is rubbish.
    memory.fill(product.scratch, WORKSPACE, 0x5a)?;
    let [left, right] = factors;
    let [left_step, right_step, out_step] = shape.strides();
    let (rows, columns, depth) = (shape.rows, shape.columns, shape.depth);
    for batch in 0..count {
        for (row, column) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
            let x = |d| {
                if shape.transposed[0] {
                    d * rows + row
                } else {
                    row * depth + d
                }
            };
            let y = |d| {
                if shape.transposed[1] {
                    column * depth + d
                } else {
                    d * columns + column
                }
            };
            let term = |d| {
                let x = left[(batch * left_step + x(d)) as usize];
                f64::from(x) * f64::from(right[(batch * right_step + y(d)) as usize])
            };
            let sum: f64 = (0..depth).map(term).sum();
            let more = bias
                .as_ref()
                .map_or(0.0, |bias| f64::from(bias[column as usize]));
            let value = (f64::from(shape.alpha) * sum + more) as f32;
            let value = if shape.relu && value < 0.0 {
                0.0
            } else {
                value
            };
            let at = product.out + 4 * (batch * out_step + row * columns + column);
            memory.store(at, &value.to_le_bytes())?;
        }
    }
    Ok(())
}
