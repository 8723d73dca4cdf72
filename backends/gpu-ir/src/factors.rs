//! How products of matrices are computed: the form in which their factors meet.

use std::fmt;
use std::str::FromStr;

/// What the factors of a product are rounded to; products of factors are exact, and sums are of `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Math {
    /// Nothing: products as everywhere else.
    #[default]
    F32,
    /// The range of `f32` with 10 bits behind the point, ties away from zero.
    Tf32,
    /// `f16`, ties to even: what is beyond 65,504 becomes infinite.
    F16,
    /// `bf16`, ties to even.
    Bf16,
}

/// A word that names no [`Math`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of f32, tf32, f16, bf16")]
pub struct UnknownMath(String);

impl Math {
    /// All of them, the exact one first.
    pub const ALL: [Math; 4] = [Math::F32, Math::Tf32, Math::F16, Math::Bf16];

    /// The parameter of an actor that says it, and where it is said in words.
    pub const PARAM: &'static str = "math";

    /// The oldest compute capability whose tensor cores multiply all of these.
    pub const CAPABILITY: (u32, u32) = (8, 0);

    /// As models and the command line write it.
    pub fn name(self) -> &'static str {
        match self {
            Math::F32 => "f32",
            Math::Tf32 => "tf32",
            Math::F16 => "f16",
            Math::Bf16 => "bf16",
        }
    }

    /// Whether a factor has 16 bits.
    pub fn is_half(self) -> bool {
        matches!(self, Math::F16 | Math::Bf16)
    }
}

impl fmt::Display for Math {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Math {
    type Err = UnknownMath;

    fn from_str(word: &str) -> Result<Self, UnknownMath> {
        let known = Self::ALL.into_iter().find(|m| m.name() == word);
        known.ok_or_else(|| UnknownMath(word.to_owned()))
    }
}
