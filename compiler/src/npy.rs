//! NumPy's `.npy` format, version 1 to 3: a header and little-endian elements in C order.

use bytes::Bytes;
use zbmd_ir::{DType, TokenType, limits};

/// An array out of an `.npy` file.
#[derive(Clone, Debug, PartialEq)]
pub struct Npy {
    /// Dtype and shape of the whole array.
    pub token: TokenType,
    /// The elements, little-endian, last dimension fastest.
    pub data: Bytes,
}

/// Why a file is not an array that zbmd reads.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NpyError {
    /// No magic, or a header cut short.
    #[error("it is not an .npy file: {0}")]
    Malformed(&'static str),
    /// The elements are of a type without an equal here.
    #[error("its elements are `{0}`, which has no equal among the dtypes")]
    DType(String),
    /// Stored column by column.
    #[error("it is stored in Fortran order")]
    Fortran,
    /// A shape beyond the limits.
    #[error("its shape {0:?} is beyond the limits of a token")]
    Shape(Vec<u64>),
    /// More or fewer bytes than the shape says.
    #[error("its header promises {expected} bytes of data, the file has {found}")]
    Length {
        /// By dtype and shape.
        expected: u64,
        /// In the file.
        found: u64,
    },
}

/// Reads an array from the bytes of a file; the data is not copied.
///
/// # Errors
/// See [`NpyError`].
pub fn read(file: &Bytes) -> Result<Npy, NpyError> {
    let rest = file
        .strip_prefix(b"\x93NUMPY".as_slice())
        .ok_or(NpyError::Malformed("the magic is missing"))?;

    // The version's two bytes, then the header's length: 16 bits in version 1, 32 in later ones.
    let too_short = NpyError::Malformed("the header is cut short");
    let (header_length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        [1..=3, _, ..] => return Err(too_short),
        _ => return Err(NpyError::Malformed("an unknown version")),
    };

    let header = rest.get(..header_length).ok_or(too_short)?;
    let header =
        std::str::from_utf8(header).map_err(|_| NpyError::Malformed("the header is not text"))?;

    // Everything after the header is data, of just the length that dtype and shape say.
    let data_length = rest.len() - header_length;
    let data = file.slice(file.len() - data_length..);
    let token = token(header)?;
    if token.bytes() != data.len() as u64 {
        return Err(NpyError::Length {
            expected: token.bytes(),
            found: data.len() as u64,
        });
    }

    Ok(Npy { token, data })
}

fn token(header: &str) -> Result<TokenType, NpyError> {
    // The dtype in quotes: a list, which has none here, is that of an array of records.
    let after_name = field(header, "descr")?;
    let descr = after_name
        .strip_prefix(['\'', '"'])
        .and_then(|quoted| quoted.split(['\'', '"']).next());
    let descr = descr.ok_or(NpyError::Malformed("`descr` is not a string"))?;
    let dtype = dtype(descr).ok_or_else(|| NpyError::DType(descr.to_owned()))?;

    // `()` is a single element, `(3,)` and `(3, 4)` are dimensions.
    let after_name = field(header, "shape")?;
    let shape = after_name
        .strip_prefix('(')
        .and_then(|tuple| tuple.split(')').next());
    let shape = shape.ok_or(NpyError::Malformed("`shape` is not a tuple"))?;
    let dims: Option<Vec<u64>> = shape
        .split(',')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(|s| s.parse().ok())
        .collect();
    let dims = dims.ok_or(NpyError::Malformed(
        "`shape` holds something else than integers",
    ))?;

    // In one dimension both orders are the same.
    if field(header, "fortran_order")?.starts_with("True") && dims.len() > 1 {
        return Err(NpyError::Fortran);
    }

    // Dimensions of tokens have 32 bits and are not zero.
    let token_dims: Option<Vec<u32>> = dims
        .iter()
        .map(|&d| u32::try_from(d).ok().filter(|&d| d > 0))
        .collect();
    let token = token_dims.map(|shape| TokenType::new(dtype, shape));
    token
        .filter(|t| t.shape.len() <= limits::MAX_RANK && t.bytes() <= limits::MAX_TOKEN_BYTES)
        .ok_or(NpyError::Shape(dims))
}

/// What follows `'name':` in the header, a Python dict that NumPy writes in one fixed form.
fn field<'a>(header: &'a str, name: &str) -> Result<&'a str, NpyError> {
    let quoted = [format!("'{name}'"), format!("\"{name}\"")];
    let after_name = quoted
        .iter()
        .find_map(|q| header.split_once(q.as_str()))
        .map(|(_, rest)| rest);
    let value = after_name.and_then(|rest| rest.trim_start().strip_prefix(':'));
    value
        .map(str::trim_start)
        .ok_or(NpyError::Malformed("a field of the header is missing"))
}

fn dtype(descr: &str) -> Option<DType> {
    Some(match descr {
        "<f4" => DType::F32,
        "<f8" => DType::F64,
        "<f2" => DType::F16,
        "|i1" | "<i1" => DType::I8,
        "|u1" | "<u1" => DType::U8,
        "<i2" => DType::I16,
        "<i4" => DType::I32,
        "<i8" => DType::I64,
        "|b1" | "<b1" => DType::Bool,
        "<c8" => DType::C32,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Bytes {
        let mut out = b"\x93NUMPY\x01\x00".to_vec();
        out.extend((header.len() as u16).to_le_bytes());
        out.extend(header.as_bytes());
        out.extend(data);
        out.into()
    }

    #[test]
    fn arrays() {
        let cases: &[(&str, usize, Result<&str, NpyError>)] = &[
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n",
                12,
                Ok("f32[3]"),
            ),
            (
                "{'descr': '<c8', 'fortran_order': True, 'shape': (2,), }",
                16,
                Ok("c32[2]"),
            ),
            (
                "{'descr': '|b1', 'fortran_order': False, 'shape': ()}",
                1,
                Ok("bool"),
            ),
            (
                "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3)}",
                11,
                Err(NpyError::Length {
                    expected: 12,
                    found: 11,
                }),
            ),
            (
                "{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3)}",
                12,
                Err(NpyError::Fortran),
            ),
            (
                "{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}",
                4,
                Err(NpyError::DType(">f4".into())),
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,)}",
                4,
                Err(NpyError::Shape(vec![99_999_999_999])),
            ),
            (
                "{'descr': '<f4', 'fortran_order': False}",
                4,
                Err(NpyError::Malformed("a field of the header is missing")),
            ),
        ];
        for (header, len, expect) in cases {
            let got = read(&file(header, &vec![0; *len])).map(|n| n.token.to_string());
            assert_eq!(got, expect.clone().map(str::to_owned), "{header}");
        }
    }

    #[test]
    fn truncation_is_refused_everywhere() {
        let whole = file(
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n",
            &[0; 12],
        );
        for len in 0..whole.len() {
            assert!(read(&whole.slice(..len)).is_err(), "{len}");
        }
    }
}
