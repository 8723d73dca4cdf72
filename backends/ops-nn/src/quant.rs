//! Quantisation: floats to bytes and back.

use zbmd_ir::{DType, TokenType};

use super::cx::{Cx, FLOATS, Plan, Planned, Tensors, by_element, expect_count, index_at, token};
use super::elementwise::number_at;
use super::index::AxisView;
use super::integer::{self, BYTES, Range};
use super::num::Num;
use zbmd_op::OpError;

/// The element type of the result.
const RESULT_TYPE: &str = "output_dtype";

/// Which scale belongs to which element.
#[derive(Clone)]
enum Scales {
    One,
    /// One for each place of an axis.
    Axis(AxisView),
    /// One for each block of so many places along an axis.
    Block {
        view: AxisView,
        places: usize,
    },
}

/// How scales belong to elements.
pub(super) struct ScaleSpec {
    /// Elements along the axis that share a scale; 0 where all of a place do.
    pub(super) block: usize,
    /// None where there is one scale for all.
    pub(super) axis: Option<usize>,
}

impl ScaleSpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let block = cx.args.uint_or("block_size", 0, 0, 1 << 30)? as usize;
        let axis = match cx.operand(1)?.ty.elements() {
            1 => None,
            _ => Some(cx.axis_param(1, cx.dims(0)?.len())?),
        };
        Ok(Self { block, axis })
    }
}

impl Scales {
    fn of(cx: &Cx<'_>, spec: &ScaleSpec) -> Result<Self, OpError> {
        let dims = cx.dims(0)?;
        let scale = cx.operand(1)?;
        let Some(axis) = spec.axis else {
            return Ok(Scales::One);
        };
        let view = AxisView::of(&dims, axis);
        if spec.block == 0 {
            if scale.ty.elements() as usize != view.length {
                let help = format!("one scale for each of {} places", view.length);
                return Err(cx.refuse_type(1, help));
            }
            return Ok(Scales::Axis(view));
        }

        // The last block may be shorter: ⌈length / block⌉ scales along the axis.
        let mut expected_dims = dims;
        expected_dims[axis] = view.length.div_ceil(spec.block);
        if scale.dims() != expected_dims {
            let help = format!("{expected_dims:?} for blocks of {}", spec.block);
            return Err(cx.refuse_type(1, help));
        }
        Ok(Scales::Block {
            view,
            places: spec.block,
        })
    }

    /// The scale of element `i`.
    fn at(&self, i: usize) -> usize {
        match *self {
            Scales::One => 0,
            Scales::Axis(view) => i / view.inner % view.length,
            Scales::Block { view, places } => {
                let blocks = view.length.div_ceil(places);
                let outer = i / (view.inner * view.length);
                let along = i / view.inner % view.length;
                (outer * blocks + along / places) * view.inner + i % view.inner
            }
        }
    }
}

/// Types that floats are quantised to.
const WHOLE: [DType; 4] = [DType::I8, DType::U8, DType::I16, DType::I32];

/// The types of what is quantised, of its scales and of the result or the zero points.
#[derive(Clone, Copy)]
struct QuantTypes {
    input: DType,
    scale: DType,
    zero: DType,
}

/// The zero point that belongs to a scale; 0 where there are none.
pub(super) fn zero_at(bytes: &[u8], dtype: DType, scale: usize) -> i64 {
    match bytes {
        [] => 0,
        _ => index_at(bytes, dtype, scale),
    }
}

/// Operands: the floats, the scales, the zero points.
pub(super) fn quantize(cx: &Cx<'_>, spec: &ScaleSpec) -> Planned {
    let input = cx.expect(0, &[DType::F32, DType::F16, DType::Bf16, DType::I32])?;
    let scale = cx.expect(1, &FLOATS)?;
    let result = quantized_type(cx)?;
    expect_count(cx, 2, &[cx.operand(1)?.ty.elements() as usize], result)?;
    let scales = Scales::of(cx, spec)?;

    let out = token(result, &cx.dims(0)?);
    let types = QuantTypes {
        input,
        scale,
        zero: result,
    };
    let is_simple = matches!(scales, Scales::One);
    if is_simple && input == DType::F32 && scale == DType::F32 && BYTES.contains(&result) {
        return Ok(whole_quantize_plan(out, types));
    }
    by_element!(result, quantize_plan(out, types, scales))
}

/// The type of the result: that of the zero points, or what a parameter says.
fn quantized_type(cx: &Cx<'_>) -> Result<DType, OpError> {
    let asked = cx.args.word_opt(RESULT_TYPE)?;
    let result = match cx.opt(2) {
        Some(zero) => {
            let zero_type = zero.ty.dtype;
            if let Some(asked) = asked.filter(|word| *word != zero_type.name()) {
                let message = format!("is {}, `{RESULT_TYPE}` {asked}", zero.ty);
                let help = "both are the type of the result: leave one of them out";
                return Err(cx.refuse(2, message, help));
            }
            zero_type
        }
        None => cx.args.dtype_or(RESULT_TYPE, DType::U8)?,
    };
    if !WHOLE.contains(&result) {
        let message = format!("cannot quantise to {result}");
        return Err(Cx::other(message, "to i8, u8 or i16"));
    }
    Ok(result)
}

/// Floats to bytes by one scale.
fn whole_quantize_plan(out: TokenType, types: QuantTypes) -> Plan {
    Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        let scale = tensors.get::<f32>(1)[0];
        let zero = zero_at(tensors.bytes(2), types.zero, 0) as i32;
        let input = tensors.get::<f32>(0);
        integer::quantise(input, scale, zero, types.zero, tensors.out_bytes(0));
    })
}

/// Bytes to floats by one scale.
fn whole_dequantize_plan(out: TokenType, types: QuantTypes) -> Plan {
    Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        let scale = tensors.get::<f32>(1)[0];
        let zero = zero_at(tensors.bytes(2), types.zero, 0) as i32;
        let input = tensors.bytes(0);
        integer::dequantise(input, types.input, scale, zero, tensors.out(0));
    })
}

fn quantize_plan<T: Num>(out: TokenType, types: QuantTypes, scales: Scales) -> Planned {
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        let input = tensors.bytes(0);
        let scale_bytes = tensors.bytes(1);
        let zero_bytes = tensors.bytes(2);
        for (i, result) in tensors.out::<T>(0).iter_mut().enumerate() {
            let scale_place = scales.at(i);
            let scale = number_at(scale_bytes, types.scale, scale_place) as f32;
            let zero = zero_at(zero_bytes, types.zero, scale_place);
            // In f32, as the operator is defined: a wider quotient would round some ties elsewhere.
            let quotient = number_at(input, types.input, i) as f32 / scale;
            let shifted = f64::from(quotient.round_ties_even()) + zero as f64;
            *result = T::of(shifted.clamp(T::LEAST.f64(), T::GREATEST.f64()));
        }
    }))
}

/// Operands: the integers, the scales, the zero points.
pub(super) fn dequantize(cx: &Cx<'_>, spec: &ScaleSpec) -> Planned {
    let input = cx.expect(0, &WHOLE)?;
    let scale = cx.expect(1, &FLOATS)?;
    expect_count(cx, 2, &[cx.operand(1)?.ty.elements() as usize], input)?;
    let scales = Scales::of(cx, spec)?;

    let result = cx.args.dtype_or(RESULT_TYPE, scale)?;
    let out = token(result, &cx.dims(0)?);
    let types = QuantTypes {
        input,
        scale,
        zero: input,
    };
    let is_simple = matches!(scales, Scales::One);
    if is_simple && result == DType::F32 && scale == DType::F32 && BYTES.contains(&input) {
        return Ok(whole_dequantize_plan(out, types));
    }
    by_element!(result, dequantize_plan(out, types, scales))
}

fn dequantize_plan<T: Num>(out: TokenType, types: QuantTypes, scales: Scales) -> Planned {
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        let input = tensors.bytes(0);
        let scale_bytes = tensors.bytes(1);
        let zero_bytes = tensors.bytes(2);
        for (i, result) in tensors.out::<T>(0).iter_mut().enumerate() {
            let scale_place = scales.at(i);
            let scale = number_at(scale_bytes, types.scale, scale_place);
            let zero = zero_at(zero_bytes, types.zero, scale_place);
            *result = T::of((index_at(input, types.input, i) - zero) as f64 * scale);
        }
    }))
}

/// Bytes with the scale and zero point that the range of the floats asks for.
pub(super) fn dynamic(cx: &Cx<'_>) -> Planned {
    cx.expect(0, &[DType::F32])?;
    let mut outs = Vec::new();
    for &output in &cx.wanted {
        outs.push(match output {
            0 => token(DType::U8, &cx.dims(0)?),
            1 => token(DType::F32, &[]),
            _ => token(DType::U8, &[]),
        });
    }

    let wanted = cx.wanted.clone();
    let body = move |tensors: &mut Tensors<'_>| {
        let input = tensors.get::<f32>(0);
        let (scale, zero) = Range::of(input).quantisation();
        for (i, &output) in wanted.iter().enumerate() {
            match output {
                0 => {
                    let output = tensors.out_bytes(i);
                    integer::quantise(input, scale, zero, DType::U8, output);
                }
                1 => tensors.out::<f32>(i).fill(scale),
                _ => tensors.out::<u8>(i).fill(zero as u8),
            }
        }
    };
    Ok(Plan::new(outs, body))
}
