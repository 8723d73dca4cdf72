//! Tensors as the protocol names them, and the streams of a model that they are. Must not know how they are sent.

use zbmd_executor::embed::StreamInfo;
use zbmd_ir::DType;

/// Element type of a tensor, as the Open Inference Protocol has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Datatype {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, 8 bits.
    Uint8,
    /// Signed, 8 bits.
    Int8,
    /// Signed, 16 bits.
    Int16,
    /// Signed, 32 bits.
    Int32,
    /// Signed, 64 bits.
    Int64,
    /// IEEE 754 binary16.
    Fp16,
    /// The upper half of a binary32.
    Bf16,
    /// IEEE 754 binary32.
    Fp32,
    /// IEEE 754 binary64.
    Fp64,
}

impl Datatype {
    /// Its name in requests, answers and metadata.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Bf16 => "BF16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
        }
    }

    /// Bytes of one element.
    pub(crate) const fn size_bytes(self) -> usize {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Int16 | Self::Fp16 | Self::Bf16 => 2,
            Self::Int32 | Self::Fp32 => 4,
            Self::Int64 | Self::Fp64 => 8,
        }
    }

    /// What carries the elements of a dtype. Complex numbers are pairs of FP32, in a last dimension of their own.
    const fn of(dtype: DType) -> Self {
        match dtype {
            DType::Bool => Self::Bool,
            DType::U8 => Self::Uint8,
            DType::I8 => Self::Int8,
            DType::I16 => Self::Int16,
            DType::I32 => Self::Int32,
            DType::I64 => Self::Int64,
            DType::F16 => Self::Fp16,
            DType::Bf16 => Self::Bf16,
            DType::F32 | DType::C32 => Self::Fp32,
            DType::F64 => Self::Fp64,
        }
    }
}

impl std::fmt::Display for Datatype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// An input or an output of a model: what one iteration takes from a source or gives to a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorSpec {
    /// Of the source or the sink.
    pub(crate) name: String,
    pub(crate) datatype: Datatype,
    /// Dimensions, slowest first; at least one. Several tokens in an iteration are a first dimension of their own.
    pub(crate) shape: Vec<u64>,
}

impl TensorSpec {
    /// The tensor of a stream whose tokens have one size.
    pub(crate) fn of(stream: &StreamInfo) -> Self {
        let token_shape = stream.token.shape.iter().map(|size| u64::from(*size));
        let mut shape: Vec<u64> = token_shape.collect();
        if stream.tokens_per_iteration > 1 || shape.is_empty() {
            shape.insert(0, stream.tokens_per_iteration);
        }
        if stream.token.dtype == DType::C32 {
            shape.push(2);
        }
        Self {
            name: stream.name.clone(),
            datatype: Datatype::of(stream.token.dtype),
            shape,
        }
    }

    /// The tensor of so many iterations: its first dimension, which is 1 in each of them, has a row for each.
    pub(crate) fn of_rows(&self, rows: u64) -> Self {
        let mut batch = self.clone();
        if let Some(first) = batch.shape.first_mut() {
            *first = rows;
        }
        batch
    }

    /// Elements of the tensor.
    pub(crate) fn elements(&self) -> usize {
        // Streams fit queues in memory, so the product fits too.
        self.shape.iter().product::<u64>() as usize
    }

    /// Bytes of the tensor.
    pub(crate) fn bytes(&self) -> usize {
        self.elements() * self.datatype.size_bytes()
    }
}

#[cfg(test)]
mod tests {
    use zbmd_ir::TokenType;

    use super::*;

    fn spec(token: TokenType, tokens_per_iteration: u64) -> TensorSpec {
        TensorSpec::of(&StreamInfo {
            name: "x".to_owned(),
            is_source: true,
            token,
            tokens_per_iteration,
            sample_rate: None,
        })
    }

    #[test]
    fn shapes_are_those_of_an_iteration() {
        let image = spec(TokenType::new(DType::U8, [1, 28, 28]), 1);
        assert_eq!(
            (image.shape.as_slice(), image.bytes()),
            (&[1, 28, 28][..], 784)
        );
        let scalar = spec(TokenType::scalar(DType::I64), 1);
        assert_eq!((scalar.shape.as_slice(), scalar.bytes()), (&[1][..], 8));
        let window = spec(TokenType::new(DType::F32, [4]), 3);
        assert_eq!((window.shape.as_slice(), window.bytes()), (&[3, 4][..], 48));
        let samples = spec(TokenType::scalar(DType::C32), 5);
        assert_eq!(samples.datatype, Datatype::Fp32);
        assert_eq!(
            (samples.shape.as_slice(), samples.bytes()),
            (&[5, 2][..], 40)
        );
    }

    #[test]
    fn every_dtype_has_a_name_and_keeps_its_bytes() {
        for dtype in DType::ALL {
            let tensor = spec(TokenType::scalar(dtype), 3);
            assert_eq!(tensor.bytes() as u64, 3 * dtype.size_bytes(), "{dtype}");
        }
    }
}
