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

/// One operand of a row, whose elements are `step` apart.
#[derive(Clone, Copy)]
struct Elements<'a, L: Lanes> {
    from: &'a [u8],
    step: usize,
    /// What is added for numbers less the zero point.
    shift: L::Ints,
    /// The one number of all lanes, where there is no step.
    same: L::Ints,
}

impl<'a, L: Lanes> Elements<'a, L> {
    /// # Safety
    /// The processor has the lanes' instructions, and there is at least one element.
    #[inline(always)]
    unsafe fn new<const SIGNED: bool>(from: &'a [u8], step: isize, zero: i32) -> Self {
        let first = match SIGNED {
            true => i32::from(from[0] as i8),
            false => i32::from(from[0]),
        };
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                from,
                step: step as usize,
                shift: L::same_ints(-zero),
                same: L::same_ints(first - zero),
            }
        }
    }

    /// Sixteen numbers less the zero point from element `first` on; those behind the last are any.
    ///
    /// # Safety
    /// The processor has the lanes' instructions.
    #[inline(always)]
    unsafe fn sixteen<const SIGNED: bool>(&self, first: usize) -> L::Ints {
        if self.step == 0 {
            return self.same;
        }
        if self.step == 1 && first + LANES <= self.from.len() {
            // SAFETY: the caller's promise; so many bytes are left.
            return unsafe {
                let bytes = L::bytes::<SIGNED>(self.from.as_ptr().add(first));
                L::add_ints(bytes, self.shift)
            };
        }

        let mut copy = [0_u8; LANES];
        for (i, element) in copy.iter_mut().enumerate() {
            let place = (first + i) * self.step;
            *element = self.from.get(place).copied().unwrap_or_default();
        }
        // SAFETY: the caller's promise; the copy is sixteen bytes.
        unsafe { L::add_ints(L::bytes::<SIGNED>(copy.as_ptr()), self.shift) }
    }
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
    if length == 0 {
        return;
    }

    // SAFETY: the caller's promise; no more bytes are stored than are left.
    unsafe {
        let left = Elements::<L>::new::<SIGNED>(row.left, left_step, zeros[0]);
        let right = Elements::<L>::new::<SIGNED>(row.right, right_step, zeros[1]);
        let limits = L::limits(*bounds);
        for first in (0..length).step_by(LANES) {
            let a = left.sixteen::<SIGNED>(first);
            let b = right.sixteen::<SIGNED>(first);
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
            let count = (length - first).min(LANES);
            L::store_first_bytes(numbers, limits, count, row.output.as_mut_ptr().add(first));
        }
    }
}
