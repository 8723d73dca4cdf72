//! Operands: their types, and their values where they are constants.

use std::borrow::Cow;

use bytes::Bytes;
use zbmd_ir::{DType, TokenType, Value};

use zbmd_op::OpError;
use zbmd_op::args::{Args, encode};

/// An operand: its type as the op sees it, and its value where it is a constant.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) name: String,
    pub(crate) ty: TokenType,
    /// Type of the port's tokens, of which `ty` is a view.
    pub(crate) port: TokenType,
    /// Its bytes, if it is a constant: none where it is packed.
    pub(crate) data: Option<Bytes>,
    /// What [`Plan::packs`] made of a constant when the model was compiled.
    pub(crate) packed: Option<Bytes>,
}

impl Operand {
    /// Dimensions as indices.
    pub(crate) fn dims(&self) -> Vec<usize> {
        dims(&self.ty)
    }

    /// The constant as floats; a scalar of an integer type too.
    pub(crate) fn floats(&self) -> Option<Vec<f64>> {
        self.data.as_ref().map(|b| to_f64(b, self.ty.dtype))
    }
}

/// Dimensions as indices.
pub(crate) fn dims(ty: &TokenType) -> Vec<usize> {
    ty.shape.iter().map(|&d| d as usize).collect()
}

/// Elements of a shape.
pub(crate) fn volume(dims: &[usize]) -> usize {
    dims.iter().fold(1, |n, &d| n.saturating_mul(d))
}

/// A type from dimensions as indices.
pub(crate) fn token(dtype: DType, dims: &[usize]) -> TokenType {
    TokenType::new(
        dtype,
        dims.iter()
            .map(|&d| u32::try_from(d).unwrap_or(u32::MAX))
            .collect::<Vec<_>>(),
    )
}

/// Little-endian elements as f64.
fn to_f64(bytes: &[u8], dtype: DType) -> Vec<f64> {
    zbmd_op::args::bytes_to_f64(bytes, dtype)
}

/// Little-endian integers of any integer type.
pub(super) fn to_i64(bytes: &[u8], dtype: DType) -> Vec<i64> {
    match dtype {
        DType::I64 => bytes
            .chunks_exact(8)
            .map(|c| i64::from_le_bytes(c.try_into().unwrap_or_default()))
            .collect(),
        other => to_f64(bytes, other).into_iter().map(|v| v as i64).collect(),
    }
}

/// The elements of a constant as f32: in place if they are that, for a model's weights are large.
pub(crate) fn constant_f32(operand: &Operand) -> Option<Cow<'_, [f32]>> {
    let data = operand.data.as_ref()?;
    if operand.ty.dtype != DType::F32 {
        return Some(
            to_f64(data, operand.ty.dtype)
                .into_iter()
                .map(|v| v as f32)
                .collect(),
        );
    }
    Some(match bytemuck::try_cast_slice(data) {
        Ok(floats) => Cow::Borrowed(floats),
        Err(_) => floats_of(data).into(),
    })
}

/// Copies little-endian floats from any address.
pub(crate) fn floats_of(bytes: &[u8]) -> Vec<f32> {
    let floats = bytes.chunks_exact(4);
    floats
        .map(|c| f32::from_le_bytes(c.try_into().unwrap_or_default()))
        .collect()
}

/// The bytes of a parameter that stands for an operand: a tensor, a number or lists of numbers in `dtype`.
pub(crate) fn operand_of(
    args: &Args<'_>,
    name: &str,
    value: &Value,
    dtype: DType,
) -> Result<(TokenType, Bytes), OpError> {
    if let Value::Tensor(blob, token) = value {
        let bytes = args.cx.blobs.get(*blob).ok_or_else(|| {
            let message = format!("refers to {blob}");
            args.error(name, message, "the program holds no such tensor")
        })?;
        let byte_count = bytes.len();
        // Later code takes elements by the type's shape: bytes that are too few must not come through.
        if byte_count as u64 != token.bytes() {
            let message = format!("{blob} has {byte_count} bytes, {token} {}", token.bytes());
            return Err(args.error(name, message, "the program's tensor is damaged"));
        }
        return Ok((token.clone(), bytes.clone()));
    }

    // An empty list has no numbers that could be read, but a shape.
    let mut outer_shape = Vec::new();
    let mut probe = value;
    while let Value::List(list) = probe {
        outer_shape.push(u32::try_from(list.len()).unwrap_or(u32::MAX));
        match list.first() {
            Some(first) => probe = first,
            None => return Ok((TokenType::new(dtype, outer_shape), Bytes::new())),
        }
    }

    let numbers = args.numbers(name)?;
    if let Some(number) = numbers.data.iter().find(|v| !fits(dtype, **v)) {
        let message = format!("holds {number}, and is read as {dtype}");
        let help = format!("give numbers that {dtype} has, or a tensor of another type");
        return Err(args.error(name, message, help));
    }
    let token = TokenType::new(dtype, numbers.shape);
    Ok((token, Bytes::from(encode(dtype, &numbers.data))))
}

/// Whether a number that is written out has an exact value in an integer type; float types round.
fn fits(dtype: DType, number: f64) -> bool {
    let is_whole = number.fract() == 0.0;
    let whole = |low: f64, high: f64| is_whole && (low..=high).contains(&number);
    match dtype {
        DType::Bool => whole(0.0, 1.0),
        DType::I8 => whole(f64::from(i8::MIN), f64::from(i8::MAX)),
        DType::U8 => whole(0.0, f64::from(u8::MAX)),
        DType::I16 => whole(f64::from(i16::MIN), f64::from(i16::MAX)),
        DType::I32 => whole(f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::I64 => whole(i64::MIN as f64, i64::MAX as f64),
        DType::F32 | DType::F64 | DType::F16 | DType::Bf16 | DType::C32 => true,
    }
}

/// An index tensor's element, whatever integer type it has.
pub(crate) fn index_at(bytes: &[u8], dtype: DType, i: usize) -> i64 {
    match dtype {
        DType::I32 => i64::from(bytemuck::cast_slice::<u8, i32>(bytes)[i]),
        DType::I64 => bytemuck::cast_slice::<u8, i64>(bytes)[i],
        DType::I8 => i64::from(bytes[i] as i8),
        DType::U8 | DType::Bool => i64::from(bytes[i]),
        DType::I16 => i64::from(bytemuck::cast_slice::<u8, i16>(bytes)[i]),
        DType::F32 => bytemuck::cast_slice::<u8, f32>(bytes)[i] as i64,
        DType::F64 => bytemuck::cast_slice::<u8, f64>(bytes)[i] as i64,
        _ => 0,
    }
}
