//! Sums and products of quantised tensors, element by element.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use zbmd_ir::DType;

use super::super::cx::{Body, Cx, Plan, Planned, Tensors, token};
use super::super::index::{Cycle, Walk, broadcast};
use super::lanes::{Bounds, LANES, Laned, Lanes, run_lanes};
use super::{BYTES, ByteRange, scale, zero_point};
use zbmd_op::OpError;

/// The operands of both: two tensors, each with its scale and zero point, and those of the result.
const RIGHT: usize = 3;
const RESULT_SCALE: usize = 6;
const RESULT_ZERO: usize = 7;

/// A tensor of bytes that is added to bytes of another quantisation, as [`qlinear_add`] does it, to give those of a third.
#[derive(Clone, Copy)]
pub(super) struct Addition {
    is_signed: bool,
    /// Its zero point.
    zero: i32,
    /// The scales of what it is added to, and its own, in units of the result's.
    factors: [f32; 2],
    bounds: Bounds,
}

/// Positions of the operands that say how a tensor is added.
pub(super) struct AdditionOperands {
    /// Scale of what it is added to; scale and zero point of the tensor, and of the result.
    pub(super) left_scale: usize,
    pub(super) right: [usize; 2],
    pub(super) result: [usize; 2],
    /// Parameters that bound the result.
    pub(super) range: [&'static str; 2],
}

impl Addition {
    pub(super) fn of(cx: &Cx<'_>, operands: &AdditionOperands) -> Result<Self, OpError> {
        let AdditionOperands {
            left_scale,
            right,
            result,
            range,
        } = operands;
        let dtype = cx.expect(result[1], &BYTES)?;
        let result_scale = scale(cx, result[0])?;
        Ok(Self {
            is_signed: dtype == DType::I8,
            zero: zero_point(cx, right[1])?,
            factors: [
                scale(cx, *left_scale)? / result_scale,
                scale(cx, right[0])? / result_scale,
            ],
            bounds: ByteRange::named(cx, dtype, *range)?.bounds(zero_point(cx, result[1])?),
        })
    }

    /// The same in registers.
    ///
    /// # Safety
    /// The processor has the lanes' instructions.
    #[inline(always)]
    pub(super) unsafe fn in_lanes<L: Lanes>(self) -> LaneAddition<L> {
        // SAFETY: the caller's promise.
        unsafe {
            LaneAddition {
                is_signed: self.is_signed,
                less_zero: L::same_ints(-self.zero),
                factors: [
                    L::same_floats(self.factors[0]),
                    L::same_floats(self.factors[1]),
                ],
                limits: L::limits(self.bounds),
            }
        }
    }
}

/// An [`Addition`] in registers.
#[derive(Clone, Copy)]
pub(super) struct LaneAddition<L: Lanes> {
    is_signed: bool,
    /// The zero point less than nothing: it is added.
    less_zero: L::Ints,
    factors: [L::Floats; 2],
    limits: L::Limits,
}

impl<L: Lanes> LaneAddition<L> {
    /// Writes the first `count` of sixteen sums, of which so many right ones can be read. Left ones are less their zero point. The
    /// place of the result may be that of the right ones.
    ///
    /// # Safety
    /// The processor has the lanes' instructions, and the bytes can be read and written.
    #[inline(always)]
    pub(super) unsafe fn store(self, left: L::Ints, right: *const u8, count: usize, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let right = match self.is_signed {
                true => L::first_bytes::<true>(right, count),
                false => L::first_bytes::<false>(right, count),
            };
            let right = L::add_ints(right, self.less_zero);
            let sums = sum_of::<L>(left, right, self.factors);
            L::store_first_bytes(sums, self.limits, count, to);
        }
    }
}

/// The sum of two numbers times their factors, each product and the sum rounded.
///
/// # Safety
/// The processor has the lanes' instructions.
#[inline(always)]
unsafe fn sum_of<L: Lanes>(left: L::Ints, right: L::Ints, factors: [L::Floats; 2]) -> L::Floats {
    // SAFETY: the caller's promise.
    unsafe {
        let left_term = L::multiply(L::floats_of(left), factors[0]);
        let right_term = L::multiply(L::floats_of(right), factors[1]);
        L::add(left_term, right_term)
    }
}

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
    let mut walk = Walk::broadcasting(&out_dims, [&left_dims, &right_dims])?;
    let cycle = if walk.inner.is_multiple_of(LANES) {
        walk.join_cycles(usize::MAX)
    } else {
        None
    };
    let body = Pairwise {
        walk,
        cycle,
        is_signed: dtype == DType::I8,
        zeros: [zero_point(cx, 2)?, zero_point(cx, RIGHT + 2)?],
        formula,
        bounds: ByteRange::of(cx, dtype)?.bounds(zero),
    };
    Ok(Plan::new(vec![token(dtype, &out_dims)], body))
}

struct Pairwise {
    walk: Walk<2>,
    /// An operand of whole vectors that each run goes over many times.
    cycle: Option<Cycle>,
    is_signed: bool,
    zeros: [i32; 2],
    formula: Formula,
    bounds: Bounds,
}

impl Pairwise {
    /// After how many elements of a run an operand begins again.
    fn period(&self, operand: usize) -> usize {
        match self.cycle {
            Some(cycle) if cycle.operand == operand => cycle.period,
            _ => usize::MAX,
        }
    }
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
        let steps = self.pairwise.walk.step;
        let operands = [self.left, self.right];
        for k in 0..2 {
            let count = self.pairwise.period(k).min(self.output.len());
            let last = count.saturating_sub(1) as isize;
            assert!(
                steps[k] >= 0 && last * steps[k] < operands[k].len() as isize,
                "an operand is too short"
            );
        }
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
        let periods = [0, 1].map(|k| row.pairwise.period(k));
        let mut places = [0; 2];
        for first in (0..length).step_by(LANES) {
            let a = left.sixteen::<SIGNED>(places[0]);
            let b = right.sixteen::<SIGNED>(places[1]);
            for k in 0..2 {
                places[k] += LANES;
                if places[k] == periods[k] {
                    places[k] = 0;
                }
            }
            let numbers = match *formula {
                Formula::Sum { left, right } => {
                    sum_of::<L>(a, b, [L::same_floats(left), L::same_floats(right)])
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
