//! Floats to bytes and back, a whole tensor by one scale.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use zbmd_ir::DType;

use super::ByteRange;
use super::lanes::{Bounds, LANES, Laned, Lanes, run_lanes};
use zbmd_op::simd::{self, Isa, Loop};

/// `round_ties_even(x / scale) + zero` for all elements, within the range of a type of bytes.
pub(in super::super) fn quantise(
    input: &[f32],
    scale: f32,
    zero: i32,
    dtype: DType,
    output: &mut [u8],
) {
    let bounds = ByteRange::all(dtype).bounds(zero);
    let length = input.len().min(output.len());
    let whole = length - length % LANES;
    let job = Quantiser {
        input: &input[..whole],
        scale,
        bounds,
        output: &mut output[..whole],
    };
    // SAFETY: both slices are whole vectors of the same length.
    unsafe { run_lanes(job) };
    for (byte, &number) in output[whole..].iter_mut().zip(&input[whole..]) {
        *byte = bounds.byte(number / scale);
    }
}

/// Whole vectors of as many floats as bytes.
struct Quantiser<'a> {
    input: &'a [f32],
    scale: f32,
    bounds: Bounds,
    output: &'a mut [u8],
}

impl Laned for Quantiser<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the processor has the instructions.
        let limits = unsafe { L::limits(self.bounds) };
        let vectors = self.input.chunks_exact(LANES);
        for (numbers, bytes) in vectors.zip(self.output.chunks_exact_mut(LANES)) {
            // SAFETY: both are sixteen elements, and the processor has the instructions.
            unsafe {
                let quotients = L::divide(L::floats(numbers.as_ptr()), L::same_floats(self.scale));
                L::store_bytes(quotients, limits, bytes.as_mut_ptr());
            }
        }
    }
}

/// `(q − zero) · scale` for all elements.
pub(in super::super) fn dequantise(
    input: &[u8],
    dtype: DType,
    scale: f32,
    zero: i32,
    output: &mut [f32],
) {
    let length = input.len().min(output.len());
    let whole = length - length % LANES;
    let job = Dequantiser {
        input: &input[..whole],
        is_signed: dtype == DType::I8,
        scale,
        zero,
        output: &mut output[..whole],
    };
    // SAFETY: both slices are whole vectors of the same length.
    unsafe { run_lanes(job) };
    for (number, &byte) in output[whole..].iter_mut().zip(&input[whole..]) {
        let wide = match dtype {
            DType::I8 => i32::from(byte as i8),
            _ => i32::from(byte),
        };
        *number = (wide - zero) as f32 * scale;
    }
}

/// Whole vectors of as many bytes as floats.
struct Dequantiser<'a> {
    input: &'a [u8],
    is_signed: bool,
    scale: f32,
    zero: i32,
    output: &'a mut [f32],
}

impl Laned for Dequantiser<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let vectors = self.input.chunks_exact(LANES);
        for (bytes, numbers) in vectors.zip(self.output.chunks_exact_mut(LANES)) {
            // SAFETY: both are sixteen elements, and the processor has the instructions.
            unsafe {
                let wide = match self.is_signed {
                    true => L::bytes::<true>(bytes.as_ptr()),
                    false => L::bytes::<false>(bytes.as_ptr()),
                };
                let centred = L::floats_of(L::add_ints(wide, L::same_ints(-self.zero)));
                let products = L::multiply(centred, L::same_floats(self.scale));
                L::store_floats(products, numbers.as_mut_ptr());
            }
        }
    }
}

/// The least and the greatest of some numbers and 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Range {
    low: f32,
    high: f32,
}

impl Range {
    /// Of all these numbers; a NaN is passed over.
    pub(in super::super) fn of(input: &[f32]) -> Self {
        simd::dispatch(RangeLoop(input))
    }

    /// The scale and the zero point by which bytes of u8 stand for the range; it includes 0, which is then exact.
    pub(in super::super) fn quantisation(self) -> (f32, i32) {
        let Self { low, high } = self;
        // All numbers are 0: any scale gives them back, and 0 would not divide.
        let scale = match high == low {
            true => 1.0,
            false => (high - low) / 255.0,
        };
        // low maps to 0 and high to 255: zero = −low / scale.
        let zero = (-low / scale).clamp(0.0, 255.0).round_ties_even();
        (scale, zero as i32)
    }

    fn include(&mut self, number: f32) {
        self.low = if number < self.low { number } else { self.low };
        self.high = if number > self.high {
            number
        } else {
            self.high
        };
    }
}

struct RangeLoop<'a>(&'a [f32]);

impl Loop for RangeLoop<'_> {
    type Out = Range;
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) -> Range {
        // A range for each lane: neither the least nor the greatest depends on the order.
        let mut low = [0.0_f32; LANES];
        let mut high = [0.0_f32; LANES];
        let vectors = self.0.chunks_exact(LANES);
        let rest = vectors.remainder();
        for vector in vectors {
            for lane in 0..LANES {
                let number = vector[lane];
                low[lane] = if number < low[lane] {
                    number
                } else {
                    low[lane]
                };
                high[lane] = if number > high[lane] {
                    number
                } else {
                    high[lane]
                };
            }
        }

        let mut range = Range {
            low: 0.0,
            high: 0.0,
        };
        for &number in low.iter().chain(&high).chain(rest) {
            range.include(number);
        }
        range
    }
}
