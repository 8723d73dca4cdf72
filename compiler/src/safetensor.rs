//! Weights in `.safetensors` files: tensors by name, read as slices of the file, written beside imported models.

use bytes::Bytes;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};
use zbmd_ir::{DType, TokenType, limits};

/// Why a tensor cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The file is damaged, or lacks the tensor.
    #[error("{0}")]
    File(#[from] SafeTensorError),
    /// The elements are of a type without an equal here, or the shape is too large.
    #[error("tensor `{0}` is of a type that no token can have")]
    Type(String),
}

fn dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        Dtype::I8 => DType::I8,
        Dtype::U8 => DType::U8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::BOOL => DType::Bool,
        _ => return None,
    })
}

/// The tensor of that name in the bytes of a file; the data is not copied.
pub(crate) fn find(file: &Bytes, name: &str) -> Result<(TokenType, Bytes), StoreError> {
    let store = SafeTensors::deserialize(file)?;
    let view = store.tensor(name)?;
    let shape: Option<Vec<u32>> = view
        .shape()
        .iter()
        .map(|&d| u32::try_from(d).ok())
        .collect();
    let token = dtype(view.dtype())
        .zip(shape)
        .map(|(d, s)| TokenType::new(d, s));
    let fits =
        |t: &TokenType| t.shape.len() <= limits::MAX_RANK && t.bytes() == view.data().len() as u64;
    let token = token
        .filter(fits)
        .ok_or_else(|| StoreError::Type(name.to_owned()))?;
    Ok((token, file.slice_ref(view.data())))
}

/// A file of these tensors.
pub(crate) fn write(tensors: &[(String, TokenType, Bytes)]) -> Result<Vec<u8>, StoreError> {
    let code = |d: DType| {
        let all = [
            Dtype::F32,
            Dtype::F64,
            Dtype::F16,
            Dtype::BF16,
            Dtype::I8,
            Dtype::U8,
            Dtype::I16,
            Dtype::I32,
            Dtype::I64,
            Dtype::BOOL,
        ];
        all.into_iter().find(|&c| dtype(c) == Some(d))
    };

    let mut views = Vec::new();
    for (name, token, data) in tensors {
        let code = code(token.dtype).ok_or_else(|| StoreError::Type(name.clone()))?;
        let shape = token.shape.iter().map(|&d| d as usize).collect();
        views.push((name.as_str(), TensorView::new(code, shape, data)?));
    }

    Ok(safetensors::serialize(views, None)?)
}
