//! Products, convolutions and sums of quantised tensors, computed in integers.
//!
//! A quantised tensor holds bytes `q` that stand for `scale · (q − zero)`. Sums of products of bytes are exact in 32 bits
//! (they wrap beyond); what is done to a sum to make it a byte again is the same in every kernel and on every
//! processor, each step rounded to f32 on its own:
//!
//! ```text
//! multiplier = x_scale · w_scale / y_scale
//! number = f32(sum + bias) · multiplier
//! byte = round_ties_even(min(max(number, low − zero), high − zero)) + zero
//! ```
//!
//! `low` and `high` are the bounds of the byte's type, or narrower ones where an activation was put in. So results do not
//! depend on the order of sums, on tiles, on cores or on instruction sets, and the plain loops of
//! [`super::conv::qlinear_conv`] and [`super::matmul::qlinear_matmul`] give the same bytes.
//!
//! Kernels take u8 times i8: a tensor of i8 is read with its sign bit turned over and a zero point 128 higher, which stands
//! for the same numbers. Weights are stored less their zero points. Where these differences do not fit into i8, each is
//! split into parts that do, and windows are gone through once for each part.

mod add;
mod conv;
mod depthwise;
mod dynamic;
mod lanes;
mod lookup;
mod packed;
mod pool;
mod product;
mod quantise;
mod rows;
mod tiles;

use zbmd_ir::DType;

use super::cx::{Cx, Operand};
use super::quant::zero_at;
use lanes::Bounds;
use packed::{FilterSizes, PackedWeights};
use zbmd_op::OpError;

pub(super) use add::{qlinear_add, qlinear_multiply};
pub(super) use conv::conv_channels_last;
pub(super) use dynamic::{DynamicMatrix, DynamicWeights};
pub(super) use lookup::byte_lookup;
pub(super) use pool::{byte_max_pool, qlinear_global_mean};
pub(super) use product::{packed_matmul, packed_matmul_integer};
pub(super) use quantise::{Range, dequantise, quantise};

/// Types of bytes.
pub(super) const BYTES: [DType; 2] = [DType::I8, DType::U8];
/// Least byte that an activation leaves.
const LEAST: &str = "y_min";
/// Greatest byte that an activation leaves.
const GREATEST: &str = "y_max";

/// Turns the sign bit of bytes over: the bytes of i8 as those of u8 that are 128 more.
const SIGN: u8 = 0x80;

/// How quantised results are bounded: by their type, or by an activation that a compiler pass has put in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ByteRange {
    low: i32,
    high: i32,
}

impl ByteRange {
    /// All numbers of a type.
    pub(super) fn all(dtype: DType) -> Self {
        match dtype {
            DType::I8 => Self {
                low: -128,
                high: 127,
            },
            _ => Self { low: 0, high: 255 },
        }
    }

    /// What the parameters `y_min` and `y_max` leave of a type.
    pub(super) fn of(cx: &Cx<'_>, dtype: DType) -> Result<Self, OpError> {
        Self::named(cx, dtype, [LEAST, GREATEST])
    }

    /// What two parameters of these names leave of a type.
    fn named(cx: &Cx<'_>, dtype: DType, names: [&str; 2]) -> Result<Self, OpError> {
        let all = Self::all(dtype);
        let low = cx.args.int_or(names[0], i64::from(all.low))?;
        let high = cx.args.int_or(names[1], i64::from(all.high))?;
        let is_sound = i64::from(all.low) <= low && low <= high && high <= i64::from(all.high);
        if !is_sound {
            let message = format!("and `{}` are {low} and {high}", names[1]);
            let help = format!("rising bounds from {} to {}", all.low, all.high);
            return Err(cx.args.error(names[0], message, help));
        }
        Ok(Self {
            low: low as i32,
            high: high as i32,
        })
    }

    /// The range as bounds of numbers that are not rounded yet.
    fn bounds(self, zero: i32) -> Bounds {
        Bounds {
            low: (self.low - zero) as f32,
            high: (self.high - zero) as f32,
            zero,
        }
    }
}

/// A number in units of the result's scale as its byte: see the module.
#[inline(always)]
pub(super) fn byte_of(number: f32, range: ByteRange, zero: i32) -> u8 {
    range.bounds(zero).byte(number)
}

/// How a whole tensor is quantised.
#[derive(Clone, Copy, Debug)]
struct Quantisation {
    scale: f32,
    /// As the kernels read the bytes: of i8, 128 more than the operand says.
    zero: i32,
    /// Whether bytes are of i8, and their sign bits are turned over.
    is_signed: bool,
}

impl Quantisation {
    /// The quantisation of the tensor that is operand `tensor`, by two more operands, which must be constants.
    fn of(
        cx: &Cx<'_>,
        tensor: usize,
        scale_operand: usize,
        zero_operand: usize,
    ) -> Result<Self, OpError> {
        let dtype = cx.expect(tensor, &BYTES)?;
        let is_signed = dtype == DType::I8;
        let zero = zero_point(cx, zero_operand)?;
        Ok(Self {
            scale: scale(cx, scale_operand)?,
            zero: if is_signed { zero + 128 } else { zero },
            is_signed,
        })
    }
}

/// The only scale that a constant operand holds.
fn scale(cx: &Cx<'_>, operand: usize) -> Result<f32, OpError> {
    match scales(cx, operand)?[..] {
        [scale] => Ok(scale),
        _ => Err(cx.refuse_type(operand, "one scale for the whole tensor")),
    }
}

/// The scales that a constant operand holds.
fn scales(cx: &Cx<'_>, operand: usize) -> Result<Vec<f32>, OpError> {
    let numbers = cx.floats(operand)?.unwrap_or_default();
    Ok(numbers.into_iter().map(|number| number as f32).collect())
}

/// The only zero point that a constant operand holds; 0 where it is missing.
fn zero_point(cx: &Cx<'_>, operand: usize) -> Result<i32, OpError> {
    match cx.ints(operand)?.as_deref() {
        None => Ok(0),
        Some([zero]) => Ok(*zero as i32),
        Some(_) => Err(cx.refuse_type(operand, "one zero point for the whole tensor")),
    }
}

/// Constant weights, and their zero points: one for all, or one for each filter.
#[derive(Clone)]
struct ConstantWeights {
    operand: Operand,
    zeros: Option<Operand>,
    filters: usize,
    /// From a weight to the same of the next filter.
    filter_step: usize,
}

impl ConstantWeights {
    /// The weights in the order of the kernels. `place` is where the operand has that of a filter, a run and an element.
    fn packed(
        &self,
        sizes: FilterSizes,
        place: impl Fn(usize, usize, usize) -> usize,
    ) -> Result<PackedWeights, OpError> {
        if let Some(kept) = &self.operand.packed {
            return PackedWeights::kept(sizes, kept.clone());
        }
        let centred = self.centred();
        Ok(PackedWeights::new(sizes, |filter, run, element| {
            centred[place(filter, run, element)]
        }))
    }

    /// The weights less their zero points, in the operand's order.
    fn centred(&self) -> Vec<i16> {
        let bytes = self.operand.data.as_deref().unwrap_or_default();
        let dtype = self.operand.ty.dtype;
        let zeros = self.zeros.as_ref().and_then(|zeros| zeros.data.as_deref());
        let zero_bytes = zeros.unwrap_or_default();
        let has_many_zeros = zero_bytes.len() > 1;

        let mut centred = Vec::with_capacity(bytes.len());
        for (i, &byte) in bytes.iter().enumerate() {
            let filter = i / self.filter_step % self.filters;
            let zero = zero_at(zero_bytes, dtype, if has_many_zeros { filter } else { 0 }) as i16;
            let weight = match dtype {
                DType::I8 => i16::from(byte as i8),
                _ => i16::from(byte),
            };
            centred.push(weight - zero);
        }
        centred
    }
}

/// What a sum is multiplied by, in units of the result's scale.
pub(super) fn multiplier(x_scale: f32, w_scale: f32, y_scale: f32) -> f32 {
    x_scale * w_scale / y_scale
}

/// The 32-bit integers of a constant operand; none where it is missing.
fn constant_ints(cx: &Cx<'_>, operand: usize) -> Result<Option<Vec<i32>>, OpError> {
    let ints = cx.ints(operand)?;
    Ok(ints.map(|ints| ints.into_iter().map(|int| int as i32).collect()))
}
