//! Conversion between dtypes and from and to the formats of sample files.

use half::{bf16, f16};
use num_complex::Complex32;
use zbmd_ir::{DType, TokenType};

use zbmd_gpu_ir as kernels;
use zbmd_op::args::{Args, input_error};
use zbmd_op::entry::Entry;
use zbmd_op::kernel::{Element, Io, Kernel, KernelFault};
use zbmd_op::simd;
use zbmd_op::{OpDoc, OpError, ResolvedOp, dtype_param};

pub(super) const OPS: [Entry; 1] = [Entry {
    name: "Convert",
    types: "x:any -> y:any",
    positional: &["to"],
    doc: OpDoc {
        summary: "converts elements: to integers by rounding (ties to even) and saturating, NaN to 0",
        params: &[
            (
                "to",
                "a dtype, or a sample format: cu8 (u8[2], 127.5 ± 127.5), cs8, cs16 (i8[2], i16[2], \
                 full scale 1.0) from c32; s8, s16, s32 from f32. Default with `from`: c32 or f32",
            ),
            (
                "from",
                "the sample format of the input, one of the same; left out: its dtype",
            ),
        ],
        ports: "`x` -> `y`, one token a firing; any shape, the last dimension 2 being a complex number \
                in the formats cu8, cs8 and cs16",
        example: "Convert(to: c32, from: \"cu8\")",
    },
    make: convert,
}];

/// A sample format: integer elements that stand for numbers in [−1, 1].
#[derive(Clone, Copy, Debug, PartialEq)]
struct Format {
    name: &'static str,
    /// Type of the integers.
    raw: DType,
    complex: bool,
    /// The number is (integer − bias) / scale.
    bias: f32,
    scale: f32,
}

const FORMATS: [Format; 6] = [
    Format {
        name: "cu8",
        raw: DType::U8,
        complex: true,
        bias: 127.5,
        scale: 127.5,
    },
    Format {
        name: "cs8",
        raw: DType::I8,
        complex: true,
        bias: 0.0,
        scale: 128.0,
    },
    Format {
        name: "cs16",
        raw: DType::I16,
        complex: true,
        bias: 0.0,
        scale: 32_768.0,
    },
    Format {
        name: "s8",
        raw: DType::I8,
        complex: false,
        bias: 0.0,
        scale: 128.0,
    },
    Format {
        name: "s16",
        raw: DType::I16,
        complex: false,
        bias: 0.0,
        scale: 32_768.0,
    },
    Format {
        name: "s32",
        raw: DType::I32,
        complex: false,
        bias: 0.0,
        scale: 2_147_483_648.0,
    },
];

impl Format {
    fn find(name: &str) -> Option<Format> {
        FORMATS.into_iter().find(|f| f.name == name)
    }

    fn float(self) -> DType {
        if self.complex { DType::C32 } else { DType::F32 }
    }

    /// The type of raw tokens for float tokens of that shape.
    fn raw_token(self, shape: &[u32]) -> TokenType {
        let mut shape = shape.to_vec();
        shape.extend(self.complex.then_some(2));
        TokenType::new(self.raw, shape)
    }
}

fn convert(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let from = match args.word_opt("from")? {
        None => None,
        Some(word) => Some(
            Format::find(word)
                .ok_or_else(|| args.unknown_word("from", word, &FORMATS.map(|f| f.name)))?,
        ),
    };
    if let Some(format) = from {
        let to = args.dtype_or("to", format.float())?;
        if to != format.float() {
            let message = format!("is {to}, but `{}` holds {}", format.name, format.float());
            return Err(args.error("to", message, "convert twice"));
        }
        let x = args.x()?;
        let shape = &x.shape[..x.shape.len() - usize::from(format.complex && !x.shape.is_empty())];
        if format.raw_token(shape) != *x {
            let help = format!("`{}` is {}", format.name, format.raw_token(shape));
            return Err(input_error("x", format!("is {x}"), help));
        }
        let y = TokenType::new(to, shape);
        let made = ResolvedOp::map(x, y, move || Ok(Decode(format)));
        let raw = x.dtype;
        let elements = x.elements();
        return Ok(made.gpu(move || kernels::decode(raw, elements, format.bias, format.scale)));
    }
    let x = args.x()?;
    let word = args.word("to")?;
    if let Some(format) = Format::find(word) {
        if x.dtype != format.float() {
            let help = format!("`{}` is made from {}", format.name, format.float());
            return Err(input_error("x", format!("is {x}"), help));
        }
        let raw = format.raw_token(&x.shape);
        let elements = raw.elements();
        let made = ResolvedOp::map(x, raw, move || Ok(Encode(format)));
        let lower = move || kernels::encode(format.raw, elements, format.bias, format.scale);
        return Ok(made.gpu(lower));
    }
    let to = dtype_param("to", word)?;
    if x.dtype == DType::C32 && to != DType::C32 {
        let help = "take a part of it: `Expr(\"re(x)\")`, or `Magnitude()`";
        return Err(input_error(
            "x",
            format!("is {x}, which has no {to} value"),
            help,
        ));
    }
    let from = x.dtype;
    let each = match (from, to) {
        (DType::F16 | DType::Bf16, _) | (_, DType::F16 | DType::Bf16) => 60.0,
        (_, DType::I32 | DType::I64) => 36.0,
        _ => 12.0,
    };
    let flops = x.elements() as f64 * each;
    let y = TokenType::new(to, x.shape.clone());
    let elements = x.elements();
    let made = ResolvedOp::map(x, y, move || Ok(Cast { from, to })).flops(flops);
    Ok(made.gpu(move || kernels::cast(from, to, elements)))
}

struct Decode(Format);

impl Kernel for Decode {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let Format {
            raw,
            complex,
            bias,
            scale,
            ..
        } = self.0;
        let y: &mut [f32] = match complex {
            true => bytemuck::cast_slice_mut(io.output::<Complex32>(0)),
            false => io.output(0),
        };
        match raw {
            DType::U8 => simd::map(io.input::<u8>(0), y, |v| (f32::from(v) - bias) / scale),
            DType::I8 => simd::map(io.input::<i8>(0), y, |v| (f32::from(v) - bias) / scale),
            DType::I16 => simd::map(io.input::<i16>(0), y, |v| (f32::from(v) - bias) / scale),
            _ => simd::map(io.input::<i32>(0), y, |v| (v as f32 - bias) / scale),
        }
        Ok(())
    }
}

struct Encode(Format);

impl Kernel for Encode {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let Format {
            raw,
            complex,
            bias,
            scale,
            ..
        } = self.0;
        let x: &[f32] = match complex {
            true => bytemuck::cast_slice(io.input::<Complex32>(0)),
            false => io.input(0),
        };
        let level = move |v: f32, low: f32, high: f32| {
            let v = v * scale + bias;
            let v = if v.is_nan() { 0.0 } else { v };
            let v = if v < low { low } else { v };
            let v = if v > high { high } else { v };
            simd::round_i32(v)
        };
        match raw {
            DType::U8 => simd::map(x, io.output::<u8>(0), |v| level(v, 0.0, 255.0) as u8),
            DType::I8 => simd::map(x, io.output::<i8>(0), |v| level(v, -128.0, 127.0) as i8),
            DType::I16 => simd::map(x, io.output::<i16>(0), |v| {
                level(v, -32768.0, 32767.0) as i16
            }),
            // The cast itself saturates.
            _ => simd::map(x, io.output::<i32>(0), |v| {
                (v * scale + bias).round_ties_even() as i32
            }),
        }
        Ok(())
    }
}

/// Between dtypes. Integers go by i64, all else by f64, which holds every other dtype exactly.
struct Cast {
    from: DType,
    to: DType,
}

/// The nearest integer in `[low, high]`, bounds within ±2^30; 0 for a NaN.
#[inline(always)]
fn within(v: f64, low: f64, high: f64) -> i32 {
    let v = if v.is_nan() { 0.0 } else { v };
    let v = if v < low { low } else { v };
    let v = if v > high { high } else { v };
    simd::round_i32_wide(v)
}

/// A real element.
trait Real: Element {
    fn wide(self) -> f64;
    fn narrow(value: f64) -> Self;
}

/// An integer element.
trait Whole: Element {
    fn wide(self) -> i64;
    fn narrow(value: i64) -> Self;
}

macro_rules! real {
    ($($ty:ty: $wide:expr, $narrow:expr;)*) => { $(impl Real for $ty {
        #[inline(always)]
        fn wide(self) -> f64 { $wide(self) }
        #[inline(always)]
        fn narrow(value: f64) -> Self { $narrow(value) }
    })* };
}
real! {
    f32: f64::from, |v| v as f32;
    f64: |v| v, |v| v;
    f16: f16::to_f64, |v: f64| f16::from_f64(v);
    bf16: bf16::to_f64, |v: f64| bf16::from_f64(v);
    i8: f64::from, |v: f64| within(v, i8::MIN.into(), i8::MAX.into()) as i8;
    u8: f64::from, |v: f64| within(v, u8::MIN.into(), u8::MAX.into()) as u8;
    i16: f64::from, |v: f64| within(v, i16::MIN.into(), i16::MAX.into()) as i16;
    i32: f64::from, |v: f64| v.round_ties_even() as i32;
    i64: |v| v as f64, |v: f64| v.round_ties_even() as i64;
}

macro_rules! whole {
    ($($ty:ty)*) => { $(impl Whole for $ty {
        #[inline(always)]
        fn wide(self) -> i64 { self as i64 }
        #[inline(always)]
        fn narrow(value: i64) -> Self { value.clamp(<$ty>::MIN as i64, <$ty>::MAX as i64) as $ty }
    })* };
}
whole!(i8 u8 i16 i32 i64);

impl Kernel for Cast {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        const WHOLE: [DType; 6] = [
            DType::Bool,
            DType::I8,
            DType::U8,
            DType::I16,
            DType::I32,
            DType::I64,
        ];
        let Cast { from, to } = *self;
        let from_bytes = from.size_bytes() as usize;
        let to_bytes = to.size_bytes() as usize;
        let x = io.input_bytes(0);
        let y = io.output_bytes(0);

        if from == to {
            y.copy_from_slice(x);
        } else if WHOLE.contains(&from) && WHOLE.contains(&to) && to != DType::Bool {
            simd::staged((x, from_bytes), (y, to_bytes), wholes(from).0, wholes(to).1);
        } else {
            simd::staged((x, from_bytes), (y, to_bytes), reals(from).0, reals(to).1);
        }
        Ok(())
    }
}

fn reals(dtype: DType) -> (simd::Read<f64>, simd::Write<f64>) {
    fn of<T: Real>() -> (simd::Read<f64>, simd::Write<f64>) {
        (
            |x, to| simd::read(x, to, T::wide),
            |x, to| simd::write(x, to, T::narrow),
        )
    }
    match dtype {
        DType::F32 => of::<f32>(),
        DType::F64 => of::<f64>(),
        DType::F16 => of::<f16>(),
        DType::Bf16 => of::<bf16>(),
        DType::I8 => of::<i8>(),
        DType::U8 => of::<u8>(),
        DType::I16 => of::<i16>(),
        DType::I32 => of::<i32>(),
        DType::I64 => of::<i64>(),
        DType::Bool => (of::<u8>().0, |x, to| {
            simd::write(x, to, |v| u8::from(v != 0.0))
        }),
        DType::C32 => (
            |x, to| simd::read(x, to, |v: Complex32| f64::from(v.re)),
            |x, to| simd::write(x, to, |v| Complex32::new(v as f32, 0.0)),
        ),
    }
}

fn wholes(dtype: DType) -> (simd::Read<i64>, simd::Write<i64>) {
    fn of<T: Whole>() -> (simd::Read<i64>, simd::Write<i64>) {
        (
            |x, to| simd::read(x, to, T::wide),
            |x, to| simd::write(x, to, T::narrow),
        )
    }
    match dtype {
        DType::I8 => of::<i8>(),
        DType::U8 | DType::Bool => of::<u8>(),
        DType::I16 => of::<i16>(),
        DType::I32 => of::<i32>(),
        _ => of::<i64>(),
    }
}
