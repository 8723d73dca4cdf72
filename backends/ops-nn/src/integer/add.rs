//! Sums and products of quantised tensors, element by element.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use zbmd_ir::DType;

use super::super::cx::{Body, Cx, Plan, Planned, Tensors, token};
use super::super::index::{Walk, broadcast};
use super::lanes::{Bounds, LANES, Laned, Lanes, run_lanes};
use super::{BYTES, ByteRange, scale, zero_point};

/// The operands of both: two tensors, each with its scale and zero point, and those of the result.
const RIGHT: usize = 3;
const RESULT_SCALE: usize = 6;
const RESULT_ZERO: usize = 7;

/// What is made of two numbers less their zero points, in units of the result's scale.
#[derive(Clone, Copy)]
enum Formula {
    /// `a · left + b · right`, each product and the sum rounded.
    Sum { left: f32, right: f32 },
    /// `(a · b) · factor`, the product of integers exact.
    Product { factor: f32 },
}

/// Operands: two tensors of one type, each with scale and zero point, and scale and zero point of the result.
pub(in super::super) fn qlinear_add(cx: &Cx<'_>) -> Planned {
    let result_scale = scale(cx, RESULT_SCALE)?;
    let formula = Formula::Sum {
        left: scale(cx, 1)? / result_scale,
        right: scale(cx, RIGHT + 1)? / result_scale,
    };
    pairwise(cx, formula)
}

/// The same of the product.
pub(in super::super) fn qlinear_multiply(cx: &Cx<'_>) -> Planned {
    let factor = super::multiplier(
        scale(cx, 1)?,
        scale(cx, RIGHT + 1)?,
        scale(cx, RESULT_SCALE)?,
    );
    pairwise(cx, Formula::Product { factor })
}

fn pairwise(cx: &Cx<'_>, formula: Formula) -> Planned {
    let dtype = cx.expect(0, &BYTES)?;
    let zero = zero_point(cx, RESULT_ZERO)?;
    let left_dims = cx.dims(0)?;
    let right_dims = cx.dims(RIGHT)?;
    let out_dims = broadcast(&[&left_dims, &right_dims])?;
    let body = Pairwise {
        walk: Walk::broadcasting(&out_dims, [&left_dims, &right_dims])?,
        is_signed: dtype == DType::I8,
        zeros: [zero_point(cx, 2)?, zero_point(cx, RIGHT + 2)?],
        formula,
        bounds: ByteRange::of(cx, dtype)?.bounds(zero),
    };
    Ok(Plan::new(vec![token(dtype, &out_dims)], body))
}

struct Pairwise {
    walk: Walk<2>,
    is_signed: bool,
    zeros: [i32; 2],
    formula: Formula,
    bounds: Bounds,
}

impl Body for Pairwise {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let left = tensors.bytes(0);
        let right = tensors.bytes(RIGHT);
        let output = tensors.out_bytes(0);
        let inner = self.walk.inner;

        self.walk.each(|to, [left_start, right_start]| {
            let row = Row {
                pairwise: self,
                left: &left[left_start..],
                right: &right[right_start..],
                output: &mut output[to..to + inner],
            };
            row.check();
            // SAFETY: `check` has seen that the operands have as many elements as the row.
            unsafe { run_lanes(row) };
        });
    }
}

/// One innermost run.
struct Row<'a> {
    pairwise: &'a Pairwise,
    left: &'a [u8],
    right: &'a [u8],
    output: &'a mut [u8],
}

impl Row<'_> {
    /// Panics unless the operands have an element for each of the row.
    fn check(&self) {
        let [left_step, right_step] = self.pairwise.walk.step;
        let last = self.output.len().saturating_sub(1) as isize;
        assert!(
            last * left_step < self.left.len() as isize
                && last * right_step < self.right.len() as isize
                && left_step >= 0
                && right_step >= 0,
            "an operand is too short"
        );
    }
}

/// Sixteen elements from `first` on that are `step` apart, in place where they are neighbours.
#[inline(always)]
fn gather<'a>(from: &'a [u8], first: usize, step: isize, copy: &'a mut [u8; LANES]) -> *const u8 {
    let step = step as usize;
    if step == 1 && first + LANES <= from.len() {
        return from[first..].as_ptr();
    }
    for (i, element) in copy.iter_mut().enumerate() {
        // Lanes behind the last element are computed, and not stored.
        *element = from.get((first + i) * step).copied().unwrap_or_default();
    }
    copy.as_ptr()
}

impl Laned for Row<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.pairwise.is_signed {
                true => run_row::<L, true>(self),
                false => run_row::<L, false>(self),
            }
        }
    }
}

/// # Safety
/// The processor has the lanes' instructions.
#[inline(always)]
unsafe fn run_row<L: Lanes, const SIGNED: bool>(row: Row<'_>) {
    let Pairwise {
        walk,
        zeros,
        formula,
        bounds,
        ..
    } = row.pairwise;
    let [left_step, right_step] = walk.step;
    let length = row.output.len();
    // SAFETY: the caller's promise.
    let limits = unsafe { L::limits(*bounds) };

    let mut first = 0;
    while first < length {
        let mut copies = [[0_u8; LANES]; 2];
        let [left_copy, right_copy] = &mut copies;
        let left = gather(row.left, first, left_step, left_copy);
        let right = gather(row.right, first, right_step, right_copy);
        // SAFETY: `gather` leads to sixteen bytes; no more are stored than are left.
        unsafe {
            let a = L::add_ints(L::bytes::<SIGNED>(left), L::same_ints(-zeros[0]));
            let b = L::add_ints(L::bytes::<SIGNED>(right), L::same_ints(-zeros[1]));
            let numbers = match *formula {
                Formula::Sum { left, right } => {
                    let left_term = L::multiply(L::floats_of(a), L::same_floats(left));
                    let right_term = L::multiply(L::floats_of(b), L::same_floats(right));
                    L::add(left_term, right_term)
                }
                Formula::Product { factor } => {
                    let products = L::floats_of(L::multiply_ints(a, b));
                    L::multiply(products, L::same_floats(factor))
                }
            };
            if first + LANES <= length {
                L::store_bytes(numbers, limits, row.output.as_mut_ptr().add(first));
            } else {
                let mut edge = [0_u8; LANES];
                L::store_bytes(numbers, limits, edge.as_mut_ptr());
                row.output[first..].copy_from_slice(&edge[..length - first]);
            }
        }
        first += LANES;
    }
}
