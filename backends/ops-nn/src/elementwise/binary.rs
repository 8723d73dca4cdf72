//! Functions of two tensors, elementwise.

use std::marker::PhantomData;

use zbmd_ir::{DType, TokenType};

use super::super::attributes;
use super::super::cx::{
    Body, Cx, Plan, Planned, STRETCH, Tensors, by_num, computed, copy_bytes, token,
};
use super::super::index::{COPY_COST, CUT, Cycle, Walk, broadcast};
use super::super::num::Num;
use super::{INTS, by_integer, map_plan, number_at, same_dtypes};
use zbmd_op::OpError;
use zbmd_op::simd::{self, Isa, Loop};

/// Two operands into one result, each element by `f`.
struct Binary<A, B, F> {
    walk: Walk<2>,
    /// An operand that each run of the walk goes over many times, such as a factor for each channel.
    cycle: Option<Cycle>,
    f: F,
    types: PhantomData<fn(A) -> B>,
}

/// The operands of some of a run's elements.
struct Run<'a, A> {
    /// From where the run begins; that which the result is written over is empty.
    operands: [&'a [A]; 2],
    overwritten: Option<usize>,
    /// Elements of the run that were cut off before.
    offset: usize,
}

/// One innermost run.
struct BinaryRow<'a, A, B, F> {
    left: &'a [A],
    right: &'a [A],
    output: &'a mut [B],
    /// Steps of the two operands: 0 where one element serves for all.
    steps: [isize; 2],
    f: F,
}

impl<A: Copy, B, F: Fn(A, A) -> B> Loop for BinaryRow<'_, A, B, F> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let Self {
            left,
            right,
            output,
            steps,
            f,
        } = self;
        // A loop for each of the usual steps: only these become vector code.
        match steps {
            [1, 1] => {
                for ((z, &x), &y) in output.iter_mut().zip(left).zip(right) {
                    *z = f(x, y);
                }
            }
            [1, 0] => {
                let y = right[0];
                for (z, &x) in output.iter_mut().zip(left) {
                    *z = f(x, y);
                }
            }
            [0, 1] => {
                let x = left[0];
                for (z, &y) in output.iter_mut().zip(right) {
                    *z = f(x, y);
                }
            }
            [left_step, right_step] => {
                for (i, z) in output.iter_mut().enumerate() {
                    *z = f(left[i * left_step as usize], right[i * right_step as usize]);
                }
            }
        }
    }
}

impl<A, B, F> Body for Binary<A, B, F>
where
    A: Num,
    B: bytemuck::Pod + Send,
    F: Fn(A, A) -> B + Copy + Send + Sync,
{
    fn run(&self, tensors: &mut Tensors<'_>) {
        let output = tensors.out::<B>(0);
        let overwritten = tensors.over();
        let operands: [&[A]; 2] = std::array::from_fn(|k| match overwritten {
            Some(over) if over == k => &[],
            _ => tensors.get::<A>(k),
        });
        if overwritten.is_none() && self.cycle.is_none() {
            let steps = self.walk.step;
            self.walk.share(COPY_COST, CUT, output, &|part, output| {
                part.each(|to, starts, offset| {
                    let [left, right] =
                        [0, 1].map(|k| &operands[k][starts[k] + offset * steps[k] as usize..]);
                    self.row(left, right, &mut output[to], steps);
                });
            });
            return;
        }

        self.walk.share(COPY_COST, CUT, output, &|part, output| {
            let mut copies = [[A::zeroed(); STRETCH]; 2];
            part.each(|to, starts, offset| {
                let run = Run {
                    operands: [0, 1].map(|k| operands[k].get(starts[k]..).unwrap_or_default()),
                    overwritten,
                    offset,
                };
                self.run_of(run, &mut output[to], &mut copies);
            });
        });
    }
}

impl<A: Num, B: bytemuck::Pod, F: Fn(A, A) -> B + Copy> Binary<A, B, F> {
    /// A run of elements in stretches. The copies are of what the result is written over, and of an operand that is gone over
    /// many times.
    fn run_of(&self, run: Run<'_, A>, output: &mut [B], copies: &mut [[A; STRETCH]; 2]) {
        let Run {
            operands,
            overwritten,
            offset,
        } = run;
        let [copy, often] = copies;
        let mut stretch_length = STRETCH;
        // Rows as short as a period would not fill vectors: the operand is laid out as often as a stretch has room for it.
        if let Some(Cycle { operand, period }) = self.cycle {
            stretch_length = STRETCH / period * period;
            let later_elements = operands[operand][..period].iter().cycle();
            let later_elements = later_elements.skip(offset % period);
            for (element, &later) in often[..stretch_length].iter_mut().zip(later_elements) {
                *element = later;
            }
        }

        let cycling = self.cycle.map(|cycle| cycle.operand);
        for (i, stretch) in output.chunks_mut(stretch_length).enumerate() {
            // What the result is written over is copied out of the way.
            if overwritten.is_some() {
                copy_bytes(stretch, &mut copy[..stretch.len()]);
            }

            let done = offset + i * stretch_length;
            let [left, right] = [0, 1].map(|k| match k {
                _ if overwritten == Some(k) => (&copy[..], 1),
                _ if cycling == Some(k) => (&often[..], 1),
                _ => {
                    // A repeated operand has a step of 0 and stays where it is.
                    let step = self.walk.step[k];
                    (&operands[k][done * step as usize..], step)
                }
            });
            self.row(left.0, right.0, stretch, [left.1, right.1]);
        }
    }

    /// One row, its operands advancing by these steps. Compiled once for all of its callers: there are a hundred functions.
    #[inline(never)]
    fn row(&self, left: &[A], right: &[A], output: &mut [B], steps: [isize; 2]) {
        let f = self.f;
        if A::WIDE {
            simd::dispatch(BinaryRow {
                left,
                right,
                output,
                steps,
                f,
            });
        } else {
            let [left_step, right_step] = steps;
            for (i, z) in output.iter_mut().enumerate() {
                *z = f(left[i * left_step as usize], right[i * right_step as usize]);
            }
        }
    }
}

fn binary_plan<A: Num, B: bytemuck::Pod + Send>(
    cx: &Cx<'_>,
    dtype: DType,
    f: impl Fn(A, A) -> B + Copy + Send + Sync + 'static,
) -> Planned {
    let operands = BroadcastOperands::of(cx)?;
    let body = Binary {
        walk: operands.walk,
        cycle: operands.cycle,
        f,
        types: PhantomData,
    };
    let output = token(dtype, &operands.out_dims);
    Ok(Plan::new(vec![output], body).over([0, 1]))
}

/// The two operands, brought to one shape. Apart from the plans, of which there is one for each function and type.
struct BroadcastOperands {
    out_dims: Vec<usize>,
    walk: Walk<2>,
    cycle: Option<Cycle>,
}

impl BroadcastOperands {
    fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let left_dims = cx.dims(0)?;
        let right_dims = cx.dims(1)?;
        let out_dims = broadcast(&[&left_dims, &right_dims])?;
        let mut walk = Walk::broadcasting(&out_dims, [&left_dims, &right_dims])?;
        // A stretch holds a few periods at least.
        let cycle = walk.join_cycles(STRETCH / 4);
        Ok(Self {
            out_dims,
            walk,
            cycle,
        })
    }
}

/// What some functions of two tensors take beside them.
#[derive(Clone, Copy)]
pub(crate) struct BinarySpec {
    /// Mod: whether the remainder has the sign of the first operand.
    pub(crate) fmod: bool,
    /// BitShift: whether bits move to lower places.
    pub(crate) shifts_right: bool,
    /// SwiGLU: the factor within the sigmoid.
    pub(crate) alpha: f64,
}

impl BinarySpec {
    /// Of functions that take nothing else.
    pub(crate) const PLAIN: Self = Self {
        fmod: false,
        shifts_right: false,
        alpha: 1.0,
    };

    pub(crate) fn named(cx: &Cx<'_>, operator: &str) -> Result<Self, OpError> {
        let mut spec = Self::PLAIN;
        match operator {
            "Mod" => spec.fmod = cx.flag("fmod", false)?,
            "BitShift" => spec.shifts_right = attributes::direction(cx)? == Some("RIGHT"),
            _ => spec.alpha = attributes::alpha(cx, 1.0)?,
        }
        Ok(spec)
    }
}

/// Mod.
pub(crate) fn modulo(cx: &Cx<'_>, spec: &BinarySpec) -> Planned {
    binary_with(cx, "Mod", spec.fmod)
}

/// Add, Sub, Mul, Div, and the greatest and least of two.
pub(crate) fn binary(cx: &Cx<'_>, name: &str) -> Planned {
    binary_with(cx, name, BinarySpec::PLAIN.fmod)
}

fn binary_with(cx: &Cx<'_>, name: &str, fmod: bool) -> Planned {
    let dtype = same_dtypes(cx, 2)?;
    by_num!(dtype, arithmetic_plan(cx, dtype, name, fmod))
}

fn arithmetic_plan<T: Num>(cx: &Cx<'_>, dtype: DType, name: &str, fmod: bool) -> Planned {
    match name {
        "Add" => binary_plan(cx, dtype, T::add),
        "Sub" => binary_plan(cx, dtype, T::sub),
        "Mul" => binary_plan(cx, dtype, T::mul),
        "Div" => binary_plan(cx, dtype, T::div),
        "Max" => binary_plan(cx, dtype, T::max),
        "Min" => binary_plan(cx, dtype, T::min),
        _ if T::FLOAT => binary_plan(cx, dtype, move |x: T, y: T| {
            T::of(float_mod(x.f64(), y.f64(), fmod))
        }),
        _ => binary_plan(cx, dtype, move |x: T, y: T| {
            T::of_i64(int_mod(x.i64(), y.i64(), fmod))
        }),
    }
}

/// The remainder, with the sign of the dividend where `fmod`, and of the divisor otherwise; 0 of a division by 0.
fn int_mod(x: i64, y: i64, fmod: bool) -> i64 {
    if y == 0 {
        return 0;
    }
    let remainder = x.wrapping_rem(y);
    let has_wrong_sign = remainder != 0 && (remainder < 0) != (y < 0);
    if has_wrong_sign && !fmod {
        remainder.wrapping_add(y)
    } else {
        remainder
    }
}

/// Likewise for floats; a remainder of 0 has a sign too.
fn float_mod(x: f64, y: f64, fmod: bool) -> f64 {
    let remainder = x % y;
    if fmod || remainder.is_nan() {
        return remainder;
    }
    // A zero has the sign of the divisor, as NumPy's `mod` gives it.
    if remainder == 0.0 {
        return 0f64.copysign(y);
    }
    let has_wrong_sign = (remainder < 0.0) != (y < 0.0);
    match (has_wrong_sign, y.is_infinite()) {
        (false, _) => remainder,
        (true, true) => y,
        (true, false) => remainder + y,
    }
}

/// Comparisons into truth values.
pub(crate) fn compare(cx: &Cx<'_>, name: &str) -> Planned {
    let dtype = same_dtypes(cx, 2)?;
    by_num!(dtype, compare_plan(cx, name))
}

fn compare_plan<T: Num>(cx: &Cx<'_>, name: &str) -> Planned {
    match name {
        "Equal" => binary_plan(cx, DType::Bool, |x: T, y: T| u8::from(x == y)),
        "Greater" => binary_plan(cx, DType::Bool, |x: T, y: T| u8::from(x > y)),
        "GreaterOrEqual" => binary_plan(cx, DType::Bool, |x: T, y: T| u8::from(x >= y)),
        "Less" => binary_plan(cx, DType::Bool, |x: T, y: T| u8::from(x < y)),
        _ => binary_plan(cx, DType::Bool, |x: T, y: T| u8::from(x <= y)),
    }
}

/// And, Or, Xor; bitwise ones and shifts.
pub(crate) fn bits(cx: &Cx<'_>, name: &str) -> Planned {
    bits_with(cx, name, BinarySpec::PLAIN.shifts_right)
}

/// BitShift.
pub(crate) fn shift(cx: &Cx<'_>, spec: &BinarySpec) -> Planned {
    bits_with(cx, "BitShift", spec.shifts_right)
}

fn bits_with(cx: &Cx<'_>, name: &str, shifts_right: bool) -> Planned {
    let dtype = same_dtypes(cx, 2)?;
    if let "And" | "Or" | "Xor" = name {
        cx.expect(0, &[DType::Bool])?;
        return match name {
            "And" => binary_plan(cx, dtype, |x: u8, y: u8| x & y),
            "Or" => binary_plan(cx, dtype, |x: u8, y: u8| x | y),
            _ => binary_plan(cx, dtype, |x: u8, y: u8| x ^ y),
        };
    }
    cx.expect(0, &INTS)?;
    by_integer!(dtype, bits_plan(cx, dtype, name, shifts_right))
}

fn bits_plan<T: Num>(cx: &Cx<'_>, dtype: DType, name: &str, shifts_right: bool) -> Planned {
    let bit_count = 8 * dtype.size_bytes() as i64;
    match name {
        "BitwiseAnd" => binary_plan(cx, dtype, |x: T, y: T| T::of_i64(x.i64() & y.i64())),
        "BitwiseOr" => binary_plan(cx, dtype, |x: T, y: T| T::of_i64(x.i64() | y.i64())),
        "BitwiseXor" => binary_plan(cx, dtype, |x: T, y: T| T::of_i64(x.i64() ^ y.i64())),
        _ => binary_plan(cx, dtype, move |x: T, y: T| {
            T::of_i64(shifted(x.i64(), y.i64(), bit_count, shifts_right))
        }),
    }
}

/// Bits shifted. A shift by as many places as there are bits, or more, leaves those that come in: copies of the sign
/// from the left, zeros from the right.
fn shifted(x: i64, places: i64, bit_count: i64, shifts_right: bool) -> i64 {
    let is_within = (0..bit_count).contains(&places);
    match (shifts_right, is_within) {
        (true, true) => x >> places,
        (true, false) if x < 0 => -1,
        (false, true) => x << places,
        (_, false) => 0,
    }
}

/// x to the power y; y may have a type of its own.
pub(crate) fn pow(cx: &Cx<'_>) -> Planned {
    let dtype = cx.dtype(0)?;
    let base = &cx.operand(0)?.ty;
    let exponent = cx.operand(1)?;
    // Squares are what normalisations ask for: exact, and in vector code.
    if let Some([constant]) = exponent.floats().as_deref()
        && dtype == DType::F32
        && exponent.ty.shape.len() <= base.shape.len()
    {
        match *constant {
            2.0 => return Ok(map_plan(base.clone(), |x: f32| x * x)),
            0.5 => return Ok(map_plan(base.clone(), f32::sqrt)),
            1.0 => return Ok(map_plan(base.clone(), |x: f32| x)),
            _ => {}
        }
    }

    let base_dims = cx.dims(0)?;
    let exponent_dims = exponent.dims();
    let out_dims = broadcast(&[&base_dims, &exponent_dims])?;
    let walk = Walk::broadcasting(&out_dims, [&base_dims, &exponent_dims])?;
    let exponent_dtype = computed(exponent.ty.dtype);
    by_num!(
        dtype,
        pow_plan(walk, token(dtype, &out_dims), exponent_dtype)
    )
}

fn pow_plan<T: Num>(walk: Walk<2>, out: TokenType, exponent_dtype: DType) -> Planned {
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        let bases = tensors.get::<T>(0);
        let exponents = tensors.bytes(1);
        let output = tensors.out::<T>(0);
        let [base_step, exponent_step] = walk.step.map(|step| step as usize);
        walk.each(|to, [base_start, exponent_start]| {
            for (i, result) in output[to..to + walk.inner].iter_mut().enumerate() {
                let exponent_place = exponent_start + i * exponent_step;
                let exponent = number_at(exponents, exponent_dtype, exponent_place);
                *result = power(bases[base_start + i * base_step], exponent);
            }
        });
    }))
}

/// Integers to whole powers by squares, wrapping as products do; everything else in f64.
fn power<T: Num>(base: T, exponent: f64) -> T {
    if T::FLOAT || exponent < 0.0 || exponent.fract() != 0.0 {
        return T::of(base.f64().powf(exponent));
    }
    // base^e = Π base^(2^i) over the bits i of e.
    let mut square = base;
    let mut bits_left = exponent as u64;
    let mut product = T::ONE;
    while bits_left > 0 {
        if bits_left & 1 == 1 {
            product = product.mul(square);
        }
        square = square.mul(square);
        bits_left >>= 1;
    }
    product
}

/// x where it is positive, slope · x elsewhere.
pub(crate) fn prelu(cx: &Cx<'_>) -> Planned {
    let dtype = same_dtypes(cx, 2)?;
    if broadcast(&[&cx.dims(0)?, &cx.dims(1)?])? != cx.dims(0)? {
        return Err(cx.refuse_type(1, "its shape must fit that of `x`"));
    }
    by_num!(dtype, prelu_plan(cx, dtype))
}

fn prelu_plan<T: Num>(cx: &Cx<'_>, dtype: DType) -> Planned {
    binary_plan(
        cx,
        dtype,
        |x: T, slope: T| {
            if x < T::ZERO { x.mul(slope) } else { x }
        },
    )
}
