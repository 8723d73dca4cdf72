//! Token types: a dtype and a fixed shape.

use serde::{Deserialize, Serialize};

/// Element type of a token. Names in models and dumps are the lower-case variant names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// Signed 8-bit.
    I8,
    /// Unsigned 8-bit.
    U8,
    /// Signed 16-bit.
    I16,
    /// Signed 32-bit.
    I32,
    /// Signed 64-bit.
    I64,
    /// One byte, 0 or 1.
    Bool,
    /// Complex of two binary32, real part first.
    C32,
}

impl DType {
    /// Every dtype, in the order of the enum.
    pub const ALL: [DType; 11] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::Bf16,
        DType::I8,
        DType::U8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::Bool,
        DType::C32,
    ];

    /// Bytes of one element.
    pub const fn size_bytes(self) -> u64 {
        match self {
            DType::I8 | DType::U8 | DType::Bool => 1,
            DType::F16 | DType::Bf16 | DType::I16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 | DType::C32 => 8,
        }
    }

    /// Alignment of one element in bytes; [`DType::C32`] is a pair of `f32`.
    pub const fn align_bytes(self) -> u64 {
        match self {
            DType::C32 => 4,
            other => other.size_bytes(),
        }
    }

    /// Name as models write it.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::Bool => "bool",
            DType::C32 => "c32",
        }
    }

    /// The dtype of that name.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Dtype and shape of every token of a channel. A scalar has the empty shape.
///
/// Prints as `f32` or `f32[2,3]`; a burst of up to 14 bytes as `burst u8[14]`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TokenType {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, slowest first, each at least 1.
    pub shape: Vec<u32>,
    /// Whether a token is a [burst](crate::burst): it has between 0 and `shape[0]` items of the shape `shape[1..]`, and
    /// the index of the sample that it begins with.
    pub burst: bool,
}

impl TokenType {
    /// A scalar token.
    pub const fn scalar(dtype: DType) -> Self {
        Self {
            dtype,
            shape: Vec::new(),
            burst: false,
        }
    }

    /// A token of that dtype and shape.
    pub fn new(dtype: DType, shape: impl Into<Vec<u32>>) -> Self {
        Self {
            dtype,
            shape: shape.into(),
            burst: false,
        }
    }

    /// A burst of up to `shape[0]` items of that dtype and of the shape `shape[1..]`.
    pub fn burst(dtype: DType, shape: impl Into<Vec<u32>>) -> Self {
        Self {
            dtype,
            shape: shape.into(),
            burst: true,
        }
    }

    /// Elements in one token, in a burst the most that it can have. Saturates, so that absurd shapes exceed every limit instead of wrapping.
    pub fn elements(&self) -> u64 {
        self.shape
            .iter()
            .fold(1u64, |n, &d| n.saturating_mul(u64::from(d)))
    }

    /// Bytes of one token. Saturates like [`Self::elements`].
    pub fn bytes(&self) -> u64 {
        let element_bytes = self.elements().saturating_mul(self.dtype.size_bytes());
        if self.burst {
            crate::burst::token_bytes(element_bytes)
        } else {
            element_bytes
        }
    }
}

impl std::fmt::Display for TokenType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.burst {
            f.write_str("burst ")?;
        }
        write!(f, "{}", self.dtype)?;
        if !self.shape.is_empty() {
            let dims: Vec<String> = self.shape.iter().map(u32::to_string).collect();
            write!(f, "[{}]", dims.join(","))?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for TokenType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
