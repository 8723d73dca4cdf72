//! `core:datatype`: how samples stand in a recording. Must not know descriptions.

use std::fmt;
use std::str::FromStr;

use zbmd_ir::{DType, TokenType};

/// The type of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    F32,
    F64,
    I32,
    I16,
    I8,
    U32,
    U16,
    U8,
}

const NUMBERS: [(&str, Number, usize); 8] = [
    ("f32", Number::F32, 4),
    ("f64", Number::F64, 8),
    ("i32", Number::I32, 4),
    ("i16", Number::I16, 2),
    ("i8", Number::I8, 1),
    ("u32", Number::U32, 4),
    ("u16", Number::U16, 2),
    ("u8", Number::U8, 1),
];

/// A `core:datatype`, such as `cf32_le`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datatype {
    is_complex: bool,
    number: Number,
    is_big_endian: bool,
}

impl Datatype {
    /// How tokens are written: in this machine's byte order, pairs of numbers as complex samples. `None` for tokens that
    /// no SigMF type has.
    pub fn of_token(token: &TokenType) -> Option<Self> {
        let number = match token.dtype {
            DType::F32 | DType::C32 => Number::F32,
            DType::F64 => Number::F64,
            DType::I32 => Number::I32,
            DType::I16 => Number::I16,
            DType::I8 => Number::I8,
            DType::U8 => Number::U8,
            DType::F16 | DType::Bf16 | DType::I64 | DType::Bool => return None,
        };
        let is_pair = token.shape.as_slice() == [2];
        Some(Self {
            is_complex: token.dtype == DType::C32 || is_pair,
            number,
            is_big_endian: cfg!(target_endian = "big"),
        })
    }

    /// Whether its numbers are those of the tokens, whatever their byte order.
    pub fn fits(self, token: &TokenType) -> bool {
        // Complex tokens have complex samples; pairs of real numbers may stand for either.
        Self::of_token(token).is_some_and(|own| own.number == self.number)
            && (token.dtype != DType::C32 || self.is_complex)
    }

    /// Bytes of one of its numbers.
    pub fn number_bytes(self) -> usize {
        let mut known = NUMBERS.iter();
        let found = known.find(|(_, number, _)| *number == self.number);
        found.map_or(1, |(_, _, bytes)| *bytes)
    }

    /// Bytes of a sample of one channel.
    pub fn sample_bytes(self) -> usize {
        self.number_bytes() * if self.is_complex { 2 } else { 1 }
    }

    /// Brings samples into this machine's byte order.
    pub fn to_native(self, bytes: &mut [u8]) {
        if self.is_big_endian != cfg!(target_endian = "big") {
            for number in bytes.chunks_exact_mut(self.number_bytes()) {
                number.reverse();
            }
        }
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut known = NUMBERS.iter();
        let found = known.find(|(_, number, _)| *number == self.number);
        let name = found.map_or("", |(name, _, _)| *name);
        f.write_str(if self.is_complex { "c" } else { "r" })?;
        f.write_str(name)?;
        match (self.number_bytes(), self.is_big_endian) {
            (1, _) => Ok(()),
            (_, true) => f.write_str("_be"),
            (_, false) => f.write_str("_le"),
        }
    }
}

impl FromStr for Datatype {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_complex = match text.as_bytes().first() {
            Some(b'c') => true,
            Some(b'r') => false,
            _ => return Err(()),
        };
        let (name, order) = match text[1..].split_once('_') {
            Some((name, order)) => (name, Some(order)),
            None => (&text[1..], None),
        };
        let mut known = NUMBERS.iter();
        let (_, number, bytes) = known.find(|(known, ..)| *known == name).ok_or(())?;
        let is_big_endian = match order {
            Some("be") => true,
            Some("le") => false,
            None if *bytes == 1 => cfg!(target_endian = "big"),
            _ => return Err(()),
        };
        Ok(Self {
            is_complex,
            number: *number,
            is_big_endian,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_and_written() {
        for text in ["cf32_le", "ci16_be", "rf64_le", "ri8", "cu8", "ru32_be"] {
            let datatype: Datatype = text.parse().expect(text);
            assert_eq!(datatype.to_string(), text);
        }
        for text in [
            "", "f32_le", "cf32", "cf16_le", "cu8_me", "cf32_le_", "cé", "é",
        ] {
            assert!(text.parse::<Datatype>().is_err(), "{text}");
        }
    }

    #[test]
    fn tokens_have_types() {
        for (dtype, shape, expect) in [
            (DType::C32, vec![], Some("cf32_le")),
            (DType::U8, vec![2], Some("cu8")),
            (DType::I16, vec![], Some("ri16_le")),
            (DType::F32, vec![5], Some("rf32_le")),
            (DType::I64, vec![], None),
            (DType::Bf16, vec![2], None),
        ] {
            let datatype = Datatype::of_token(&TokenType::new(dtype, shape));
            let text = datatype.map(|datatype| datatype.to_string());
            let expect = expect.map(str::to_owned);
            assert!(cfg!(target_endian = "big") || text == expect, "{text:?}");
        }
    }

    #[test]
    fn the_byte_order_is_converted() {
        let datatype: Datatype = "ci16_be".parse().expect("right");
        let mut bytes = [1, 2, 3, 4];
        datatype.to_native(&mut bytes);
        let numbers: Vec<i16> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| i16::from_ne_bytes(*bytes))
            .collect();
        assert_eq!(numbers, [0x0102, 0x0304]);
    }
}
