//! Elements of tensors as JSON has them, and as bytes: lists to bytes exactly rounded, bytes to lists that read back as the
//! same bytes.

use half::{bf16, f16};

use super::json::Json;
use crate::tensor::Datatype;

/// Why a list is not the elements of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ElementError {
    #[error("element {index} is {found}; {datatype} is {expected}")]
    Kind {
        index: usize,
        found: &'static str,
        datatype: Datatype,
        expected: &'static str,
    },
    #[error("element {index} is {text}, which {datatype} does not hold")]
    Range {
        index: usize,
        text: String,
        datatype: Datatype,
    },
    #[cfg(feature = "grpc")]
    #[error("the protocol has no list for {datatype}: send it as bytes, in `raw_input_contents`")]
    OnlyBytes { datatype: Datatype },
    #[error("there are more than {expected} elements")]
    TooMany { expected: usize },
    #[error("there are {found} elements; the shape has {expected}")]
    TooFew { found: usize, expected: usize },
}

/// The bytes of so many elements of a list, nested or not, in row-major order.
pub(crate) fn bytes_of_json(
    list: &Json<'_>,
    datatype: Datatype,
    elements: usize,
) -> Result<Vec<u8>, ElementError> {
    let mut flat = FlatElements {
        bytes: Vec::with_capacity(elements * datatype.size_bytes()),
        found: 0,
        datatype,
        elements,
    };
    flat.add(list)?;
    if flat.found < elements {
        return Err(ElementError::TooFew {
            found: flat.found,
            expected: elements,
        });
    }
    Ok(flat.bytes)
}

struct FlatElements {
    bytes: Vec<u8>,
    found: usize,
    datatype: Datatype,
    elements: usize,
}

impl FlatElements {
    /// The reader has bounded how deep this goes.
    fn add(&mut self, value: &Json<'_>) -> Result<(), ElementError> {
        if let Json::Array(items) = value {
            return items.iter().try_for_each(|item| self.add(item));
        }
        if self.found == self.elements {
            return Err(ElementError::TooMany {
                expected: self.elements,
            });
        }
        self.add_element(value)?;
        self.found += 1;
        Ok(())
    }

    fn add_element(&mut self, value: &Json<'_>) -> Result<(), ElementError> {
        let datatype = self.datatype;
        let text = match (value, datatype) {
            (Json::Bool(truth), Datatype::Bool) => {
                self.bytes.push(u8::from(*truth));
                return Ok(());
            }
            (Json::Number(text), _) if datatype != Datatype::Bool => *text,
            (other, _) => return Err(self.wrong_kind(other)),
        };

        let is_added = match datatype {
            Datatype::Bool => false,
            Datatype::Uint8 => self.add_parsed(text.parse(), u8::to_le_bytes),
            Datatype::Int8 => self.add_parsed(text.parse(), i8::to_le_bytes),
            Datatype::Int16 => self.add_parsed(text.parse(), i16::to_le_bytes),
            Datatype::Int32 => self.add_parsed(text.parse(), i32::to_le_bytes),
            Datatype::Int64 => self.add_parsed(text.parse(), i64::to_le_bytes),
            Datatype::Fp16 => self.add_parsed(half_of(text), f16::to_le_bytes),
            Datatype::Bf16 => self.add_parsed(bfloat_of(text), bf16::to_le_bytes),
            Datatype::Fp32 => {
                self.add_parsed(finite(text.parse(), f32::is_finite), f32::to_le_bytes)
            }
            Datatype::Fp64 => {
                self.add_parsed(finite(text.parse(), f64::is_finite), f64::to_le_bytes)
            }
        };
        match is_added {
            true => Ok(()),
            false => Err(ElementError::Range {
                index: self.found,
                text: text.chars().take(40).collect(),
                datatype,
            }),
        }
    }

    fn add_parsed<T, E, const N: usize>(
        &mut self,
        parsed: Result<T, E>,
        to_bytes: impl Fn(T) -> [u8; N],
    ) -> bool {
        let Ok(value) = parsed else { return false };
        self.bytes.extend_from_slice(&to_bytes(value));
        true
    }

    fn wrong_kind(&self, found: &Json<'_>) -> ElementError {
        ElementError::Kind {
            index: self.found,
            found: found.kind(),
            datatype: self.datatype,
            expected: match self.datatype {
                Datatype::Bool => "true or false",
                _ => "a number",
            },
        }
    }
}

/// Larger numbers than the type has are read as infinity, which nobody meant.
fn finite<T, E>(parsed: Result<T, E>, is_finite: impl Fn(T) -> bool) -> Result<T, ()>
where
    T: Copy,
{
    let value = parsed.map_err(|_| ())?;
    if is_finite(value) { Ok(value) } else { Err(()) }
}

fn half_of(text: &str) -> Result<f16, ()> {
    let wide = finite(text.parse(), f64::is_finite)?;
    finite(Ok::<_, ()>(f16::from_f64(wide)), f16::is_finite)
}

fn bfloat_of(text: &str) -> Result<bf16, ()> {
    let wide = finite(text.parse(), f64::is_finite)?;
    finite(Ok::<_, ()>(bf16::from_f64(wide)), bf16::is_finite)
}

/// Writes the elements of a tensor as a flat list. The place of the first that JSON cannot hold, a NaN or an infinity, if
/// there is one.
pub(crate) fn write_json(bytes: &[u8], datatype: Datatype, out: &mut String) -> Result<(), usize> {
    out.push('[');
    let size = datatype.size_bytes();
    for (index, element) in bytes.chunks_exact(size).enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_element(element, datatype, out).ok_or(index)?;
    }
    out.push(']');
    Ok(())
}

/// One element; nothing if JSON cannot hold it.
fn write_element(bytes: &[u8], datatype: Datatype, out: &mut String) -> Option<()> {
    use std::fmt::Write;

    // Writing to a string does not fail.
    let _ = match datatype {
        Datatype::Bool => write!(out, "{}", bytes[0] != 0),
        Datatype::Uint8 => write!(out, "{}", bytes[0]),
        Datatype::Int8 => write!(out, "{}", bytes[0] as i8),
        Datatype::Int16 => write!(out, "{}", i16::from_le_bytes(bytes.try_into().ok()?)),
        Datatype::Int32 => write!(out, "{}", i32::from_le_bytes(bytes.try_into().ok()?)),
        Datatype::Int64 => write!(out, "{}", i64::from_le_bytes(bytes.try_into().ok()?)),
        Datatype::Fp16 => {
            let value = f16::from_le_bytes(bytes.try_into().ok()?);
            return write_float(
                f64::from(value),
                format_args!("{:?}", f32::from(value)),
                out,
            );
        }
        Datatype::Bf16 => {
            let value = bf16::from_le_bytes(bytes.try_into().ok()?);
            return write_float(
                f64::from(value),
                format_args!("{:?}", f32::from(value)),
                out,
            );
        }
        Datatype::Fp32 => {
            let value = f32::from_le_bytes(bytes.try_into().ok()?);
            return write_float(f64::from(value), format_args!("{value:?}"), out);
        }
        Datatype::Fp64 => {
            let value = f64::from_le_bytes(bytes.try_into().ok()?);
            return write_float(value, format_args!("{value:?}"), out);
        }
    };
    Some(())
}

/// The shortest digits that read back as the same value, with an exponent where there would be many.
fn write_float(value: f64, digits: std::fmt::Arguments<'_>, out: &mut String) -> Option<()> {
    use std::fmt::Write;

    if !value.is_finite() {
        return None;
    }
    let _ = write!(out, "{digits}");
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;

    fn bytes(text: &str, datatype: Datatype, elements: usize) -> Result<Vec<u8>, ElementError> {
        bytes_of_json(
            &parse(text.as_bytes(), 1000).expect("JSON"),
            datatype,
            elements,
        )
    }

    #[test]
    fn lists_are_flat_or_nested() {
        let flat = bytes("[1, 2, 3, 4]", Datatype::Int16, 4);
        assert_eq!(flat, Ok(vec![1, 0, 2, 0, 3, 0, 4, 0]));
        assert_eq!(bytes("[[1, 2], [3, 4]]", Datatype::Int16, 4), flat);
        assert_eq!(bytes("[true, false]", Datatype::Bool, 2), Ok(vec![1, 0]));
    }

    #[test]
    fn elements_that_do_not_fit_are_named() {
        for (text, datatype, expected) in [
            (
                "[1, 300]",
                Datatype::Uint8,
                "element 1 is 300, which UINT8 does not hold",
            ),
            (
                "[-129, 0]",
                Datatype::Int8,
                "element 0 is -129, which INT8 does not hold",
            ),
            (
                "[1.0, 0]",
                Datatype::Int32,
                "element 0 is 1.0, which INT32 does not hold",
            ),
            (
                "[1e39, 0]",
                Datatype::Fp32,
                "element 0 is 1e39, which FP32 does not hold",
            ),
            (
                "[65520, 0]",
                Datatype::Fp16,
                "element 0 is 65520, which FP16 does not hold",
            ),
            (
                "[1, 0]",
                Datatype::Bool,
                "element 0 is a number; BOOL is true or false",
            ),
            (
                "[\"1\", 0]",
                Datatype::Fp32,
                "element 0 is a string; FP32 is a number",
            ),
            (
                "[0, null]",
                Datatype::Fp32,
                "element 1 is null; FP32 is a number",
            ),
            (
                "[0, 1, 2]",
                Datatype::Fp32,
                "there are more than 2 elements",
            ),
            (
                "[0]",
                Datatype::Fp32,
                "there are 1 elements; the shape has 2",
            ),
            (
                "{}",
                Datatype::Fp32,
                "element 0 is an object; FP32 is a number",
            ),
        ] {
            let error = bytes(text, datatype, 2).expect_err(text);
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn numbers_are_rounded_once() {
        // Halfway between two f32, but for its last digit: by way of f64 it would be rounded twice.
        let text = "[1.00000005960464477539062500001]";
        let expected = 1.000_000_1_f32.to_le_bytes();
        assert_eq!(bytes(text, Datatype::Fp32, 1), Ok(expected.to_vec()));
        let text = "[9007199254740993]";
        let expected = 9_007_199_254_740_993_i64.to_le_bytes();
        assert_eq!(bytes(text, Datatype::Int64, 1), Ok(expected.to_vec()));
    }

    #[test]
    fn what_is_written_reads_back_as_the_same_bytes() {
        let floats = [
            0.0,
            -0.0,
            1.0,
            0.1,
            f32::MAX,
            f32::MIN_POSITIVE,
            1e-45,
            -3.5e20,
        ];
        let f32_bytes: Vec<u8> = floats.iter().flat_map(|f| f.to_le_bytes()).collect();
        let doubles = floats.iter().map(|f| f64::from(*f) * 1.1);
        let f64_bytes: Vec<u8> = doubles.flat_map(f64::to_le_bytes).collect();
        let halves = floats.iter().map(|f| f16::from_f32(f.clamp(-6e4, 6e4)));
        let f16_bytes: Vec<u8> = halves.flat_map(f16::to_le_bytes).collect();
        let bfloats = floats.iter().map(|f| bf16::from_f32(f.clamp(-1e38, 1e38)));
        let bf16_bytes: Vec<u8> = bfloats.flat_map(bf16::to_le_bytes).collect();
        let integers: Vec<u8> = (0..32_u8).map(|i| i.wrapping_mul(37)).collect();
        for (bytes_in, datatype) in [
            (f32_bytes, Datatype::Fp32),
            (f64_bytes, Datatype::Fp64),
            (f16_bytes, Datatype::Fp16),
            (bf16_bytes, Datatype::Bf16),
            (integers.clone(), Datatype::Uint8),
            (integers.clone(), Datatype::Int8),
            (integers.clone(), Datatype::Int16),
            (integers.clone(), Datatype::Int32),
            (integers, Datatype::Int64),
            (vec![0, 1, 1], Datatype::Bool),
        ] {
            let mut text = String::new();
            write_json(&bytes_in, datatype, &mut text).expect("finite");
            let elements = bytes_in.len() / datatype.size_bytes();
            assert_eq!(bytes(&text, datatype, elements), Ok(bytes_in), "{text}");
            serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
        }
    }

    #[test]
    fn json_has_no_infinity() {
        let bytes_in: Vec<u8> = [1.0, f32::INFINITY]
            .iter()
            .flat_map(|f| f.to_le_bytes())
            .collect();
        assert_eq!(
            write_json(&bytes_in, Datatype::Fp32, &mut String::new()),
            Err(1)
        );
    }
}
