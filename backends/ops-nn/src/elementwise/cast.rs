//! Conversions of element types.

use zbmd_ir::{DType, TokenType};

use super::super::cx::{Cx, Plan, Planned, Tensors, by_element, dims, token};
use super::super::num::Num;
use super::INTS;
use zbmd_op::OpError;
use zbmd_op::simd::{self, Read, Write};

/// How elements of a type are read into a wider one, and written from it.
struct Conversion<M> {
    read: Read<M>,
    write: Write<M>,
}

impl Conversion<f64> {
    fn through_f64<T: Num>() -> Self {
        Self {
            read: |elements, to| simd::read::<T, _>(elements, to, T::f64),
            write: |elements, to| simd::write::<T, _>(elements, to, T::of),
        }
    }
}

impl Conversion<i64> {
    fn through_i64<T: Num>() -> Self {
        Self {
            read: |elements, to| simd::read::<T, _>(elements, to, T::i64),
            write: |elements, to| simd::write::<T, _>(elements, to, T::of_i64),
        }
    }
}

fn float_conversion<T: Num>() -> Conversion<f64> {
    Conversion::through_f64::<T>()
}

/// The conversion of a type by way of f64.
fn conversion_of_any(dtype: DType) -> Result<Conversion<f64>, OpError> {
    Ok(by_element!(dtype, float_conversion()))
}

/// The conversion of a type of whole numbers by way of i64, which f64 could not hold.
fn conversion_of_whole(dtype: DType) -> Conversion<i64> {
    match dtype {
        DType::I8 => Conversion::through_i64::<i8>(),
        DType::U8 | DType::Bool => Conversion::through_i64::<u8>(),
        DType::I16 => Conversion::through_i64::<i16>(),
        DType::I32 => Conversion::through_i64::<i32>(),
        _ => Conversion::through_i64::<i64>(),
    }
}

fn is_whole(dtype: DType) -> bool {
    dtype == DType::Bool || INTS.contains(&dtype)
}

/// The type that elements are converted to.
fn target_dtype(cx: &Cx<'_>) -> Result<DType, OpError> {
    cx.args.dtype_or("to", DType::F32)
}

/// Conversion: floats are truncated towards 0 and wrap nowhere; anything but 0 is true.
pub(crate) fn cast(cx: &Cx<'_>) -> Planned {
    let to = target_dtype(cx)?;
    let from = cx.dtype(0)?;
    if to == DType::C32 {
        return Err(Cx::other("nothing is cast to c32", "use `Convert`"));
    }
    let out = token(to, &cx.dims(0)?);
    let from_any = conversion_of_any(from)?;
    if to == DType::Bool {
        let to_truth: Write<f64> =
            |elements, to| simd::write::<u8, _>(elements, to, |v| (v != 0.0).into());
        return Ok(staged_plan(out, from, from_any.read, to_truth));
    }
    // f64 has 53 bits: large i64 would be rounded on the way.
    if is_whole(from) && is_whole(to) {
        let read = conversion_of_whole(from).read;
        return Ok(staged_plan(out, from, read, conversion_of_whole(to).write));
    }
    Ok(staged_plan(
        out,
        from,
        from_any.read,
        conversion_of_any(to)?.write,
    ))
}

/// A conversion by way of a type that holds the elements of both.
fn staged_plan<M: bytemuck::Pod + Send + Sync>(
    out: TokenType,
    from: DType,
    read: Read<M>,
    write: Write<M>,
) -> Plan {
    let input_size = from.size_bytes() as usize;
    let output_size = out.dtype.size_bytes() as usize;
    Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        let input = tensors.bytes(0);
        let output = tensors.out_bytes(0);
        simd::staged((input, input_size), (output, output_size), read, write);
    })
}

/// The same bits as another type of the same size.
pub(crate) fn bitcast(cx: &Cx<'_>) -> Planned {
    let to = target_dtype(cx)?;
    let ty = &cx.operand(0)?.ty;
    if to.size_bytes() != ty.dtype.size_bytes() {
        let message = format!("is {ty}, `{to}` has another size");
        return Err(cx.refuse(0, message, "use NnCast"));
    }
    let body = |tensors: &mut Tensors<'_>| {
        if tensors.over().is_none() {
            let input = tensors.bytes(0);
            tensors.out_bytes(0).copy_from_slice(input);
        }
    };
    Ok(Plan::new(vec![token(to, &dims(ty))], body).over([0]))
}
