//! NumPy arrays, format versions 1 to 3, as streams: the first axis counts tokens.
//! Source: NEP 1, "A Simple File Format for NumPy Arrays".

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use zbmd_ir::{DType, TokenType};

use super::{FileError, Port, io_error};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// More than any header of an array of numbers needs.
const MAX_HEADER_BYTES: usize = 1 << 16;
/// Digits of the largest number of tokens: room for the final count in a header that is written first.
const COUNT_DIGITS: usize = 20;

/// NumPy's name of a dtype. NumPy knows no bfloat16; `ml_dtypes` saves it as two opaque bytes.
fn descr(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::F16 => "<f2",
        DType::Bf16 => "<V2",
        DType::I8 => "|i1",
        DType::U8 => "|u1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::Bool => "|b1",
        DType::C32 => "<c8",
    }
}

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
struct NpyHeader {
    descr: String,
    fortran: bool,
    shape: Vec<u64>,
}

/// What makes a failure of `path` out of what is wrong with its content.
fn content_error(path: &Path) -> impl Fn(String) -> FileError {
    |message| FileError::Content {
        path: path.to_owned(),
        message,
    }
}

/// Opens an array whose tokens follow its header.
pub(super) fn open(
    path: &Path,
    mut file: File,
    port: Port<'_>,
) -> Result<Box<dyn Read + Send>, FileError> {
    let header_text = read_header(&mut file)
        .map_err(io_error(path))?
        .map_err(content_error(path))?;
    let header = parse(&header_text).map_err(content_error(path))?;
    check(path, &header, port)?;

    let element_bytes = port.token.dtype.size_bytes();
    let mut shape_sizes = header.shape.iter();
    let data_bytes = shape_sizes.try_fold(element_bytes, |bytes, size| bytes.checked_mul(*size));
    let Some(data_bytes) = data_bytes else {
        let message = format!("its shape {:?} is too large", header.shape);
        return Err(content_error(path)(message));
    };

    let file_metadata = file.metadata().map_err(io_error(path))?;
    let position = file.stream_position().unwrap_or(0);
    let rest_bytes = file_metadata.len().saturating_sub(position);
    if file_metadata.is_file() && rest_bytes < data_bytes {
        return Err(content_error(path)(format!(
            "its header promises {data_bytes} bytes of data, there are {rest_bytes}: it is cut short"
        )));
    }
    Ok(Box::new(file.take(data_bytes)))
}

fn read_header(file: &mut File) -> io::Result<Result<String, String>> {
    let mut first_bytes = [0; 8];
    if let Err(error) = file.read_exact(&mut first_bytes) {
        return if error.kind() == io::ErrorKind::UnexpectedEof {
            Ok(Err("is shorter than a NumPy header".to_owned()))
        } else {
            Err(error)
        };
    }

    if &first_bytes[..6] != MAGIC {
        return Ok(Err(
            "is not a NumPy array: it does not begin with \\x93NUMPY".to_owned(),
        ));
    }

    // The length has two bytes in the first version, and four since.
    let header_length = match first_bytes[6] {
        1 => {
            let mut length_bytes = [0; 2];
            file.read_exact(&mut length_bytes)?;
            usize::from(u16::from_le_bytes(length_bytes))
        }
        2 | 3 => {
            let mut length_bytes = [0; 4];
            file.read_exact(&mut length_bytes)?;
            u32::from_le_bytes(length_bytes) as usize
        }
        version => {
            return Ok(Err(format!(
                "NumPy format version {version}, known are 1 to 3"
            )));
        }
    };

    // It is the file that says so: nothing is reserved for what cannot be a header.
    if header_length > MAX_HEADER_BYTES {
        return Ok(Err(format!(
            "a header of {header_length} bytes; at most {MAX_HEADER_BYTES} are read"
        )));
    }

    let mut header_bytes = vec![0; header_length];
    file.read_exact(&mut header_bytes)?;
    Ok(String::from_utf8(header_bytes).map_err(|_| "its header is not text".to_owned()))
}

/// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse(text: &str) -> Result<NpyHeader, String> {
    let descr_text = value_of(text, "descr")?;
    let first_char = descr_text.chars().next();
    let quote_char = first_char
        .filter(|quote| "'\"".contains(*quote))
        .ok_or("its elements are records; only plain numbers can be streamed")?;
    let dtype_text = descr_text[1..].split(quote_char).next().unwrap_or_default();

    let is_fortran = value_of(text, "fortran_order")?.starts_with("True");
    let shape_text = value_of(text, "shape")?;
    let shape_tuple = shape_text
        .strip_prefix('(')
        .and_then(|sizes| sizes.split_once(')'));
    let (size_list, _) = shape_tuple.ok_or("its shape is not a tuple")?;
    let size_texts = size_list
        .split(',')
        .map(str::trim)
        .filter(|size| !size.is_empty());
    let sizes = size_texts.map(|size| {
        // Python 2 marked long numbers so.
        let digits = size.trim_end_matches('L');
        digits
            .parse()
            .map_err(|_| format!("size `{size}` in its shape"))
    });

    Ok(NpyHeader {
        descr: dtype_text.to_owned(),
        fortran: is_fortran,
        shape: sizes.collect::<Result<_, String>>()?,
    })
}

/// The text of a header from the value of a key on.
fn value_of<'t>(text: &'t str, key: &str) -> Result<&'t str, String> {
    let quoted_keys = [format!("'{key}'"), format!("\"{key}\"")];
    let after_key = quoted_keys
        .iter()
        .find_map(|quoted| Some(text.split_once(quoted.as_str())?.1));
    let value_text = after_key.and_then(|rest| rest.trim_start().strip_prefix(':'));
    value_text
        .map(str::trim_start)
        .ok_or_else(|| format!("its header has no `{key}`"))
}

fn check(path: &Path, header: &NpyHeader, port: Port<'_>) -> Result<(), FileError> {
    let expected_dtype = descr(port.token.dtype);
    if !is_same_dtype(&header.descr, expected_dtype) {
        let help = format!("save it with dtype `{expected_dtype}`");
        return Err(array_mismatch(path, header, port, &help));
    }

    let token_sizes = port.token.shape.iter();
    let token_shape: Vec<u64> = token_sizes.map(|size| u64::from(*size)).collect();
    let is_flat = header.shape.len() == 1;
    // As models' own tensors are: one array is one token.
    let is_single = header.shape == token_shape;
    let is_framed =
        header.shape.len() == token_shape.len() + 1 && header.shape[1..] == token_shape[..];
    if !is_flat && !is_single && !is_framed {
        let size_texts: Vec<String> = token_shape.iter().map(u64::to_string).collect();
        let shape_text = size_texts.join(", ");
        let help = format!(
            "save it with shape [tokens, {shape_text}], with [{shape_text}] for a single token, or flat"
        );
        return Err(array_mismatch(path, header, port, &help));
    }
    if header.fortran && !is_flat {
        return Err(array_mismatch(path, header, port, "save it in C order"));
    }
    Ok(())
}

/// The refusal of an array that does not hold a stream's tokens.
fn array_mismatch(path: &Path, header: &NpyHeader, port: Port<'_>, help: &str) -> FileError {
    let found = format!(
        "an array of `{}` with shape {:?}",
        header.descr, header.shape
    );
    super::mismatch(path, port, found, help)
}

/// Whether a dtype that was found means the same as the expected one.
fn is_same_dtype(found: &str, expected: &str) -> bool {
    // `=` and, for single bytes and opaque ones, `|` mean little-endian here too.
    let is_little_endian = matches!(found.chars().next(), Some('<' | '=' | '|'));
    is_little_endian && found.get(1..) == expected.get(1..)
}

/// A header of the same length for every number of tokens, a multiple of 64 bytes.
pub(super) fn header(token: &TokenType, tokens: u64) -> Vec<u8> {
    let mut size_list = format!("{tokens},");
    for size in &token.shape {
        size_list.push_str(&format!(" {size},"));
    }
    let header_text = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': ({size_list}), }}",
        descr(token.dtype)
    );

    // As long as with the largest count, whatever this one is.
    let digit_count = tokens.to_string().len();
    let max_bytes = MAGIC.len() + 4 + header_text.len() + COUNT_DIGITS - digit_count + 1;
    let total_bytes = max_bytes.next_multiple_of(64);

    let mut header_bytes = MAGIC.to_vec();
    header_bytes.extend_from_slice(&[1, 0]);
    // The length counts what follows these ten bytes: the magic, the version and itself.
    header_bytes.extend_from_slice(&((total_bytes - 10) as u16).to_le_bytes());
    header_bytes.extend_from_slice(header_text.as_bytes());
    header_bytes.resize(total_bytes - 1, b' ');
    header_bytes.push(b'\n');
    header_bytes
}

/// Whether a file begins with a header of ours for these tokens, with any number of them.
pub(super) fn owns_header(token: &TokenType, found: &[u8]) -> bool {
    let header_text = found.get(MAGIC.len() + 4..).map(String::from_utf8_lossy);

    let token_count = header_text
        .and_then(|header_text| parse(&header_text).ok())
        .and_then(|header| header.shape.first().copied());
    token_count.is_some_and(|count| header(token, count) == found)
}

#[cfg(test)]
mod tests {
    use super::super::{create_sink, port_of};
    use super::*;

    fn round_trip(token: &TokenType, bytes: &[u8]) -> Vec<u8> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.npy");
        let port = port_of(token);
        let mut sink = create_sink(&path, port).expect("created");
        for piece in bytes.chunks(token.bytes() as usize) {
            sink.write_tokens(piece).expect("written");
        }
        let mut read_bytes = Vec::new();
        let file = File::open(&path).expect("there");
        open(&path, file, port)
            .expect("ours")
            .read_to_end(&mut read_bytes)
            .expect("read");
        read_bytes
    }

    #[test]
    fn every_dtype_and_shape_comes_back() {
        for dtype in DType::ALL {
            for shape in [vec![], vec![3], vec![2, 5]] {
                let token = TokenType::new(dtype, shape);
                let bytes: Vec<u8> = (0..token.bytes() * 7).map(|i| i as u8).collect();
                assert_eq!(round_trip(&token, &bytes), bytes, "{token}");
                assert!(round_trip(&token, &[]).is_empty(), "{token}");
            }
        }
    }

    #[test]
    fn headers_of_other_programs_are_read() {
        let header = |descr: &str, fortran, shape: &[u64]| NpyHeader {
            descr: descr.into(),
            fortran,
            shape: shape.into(),
        };
        for (text, expect) in [
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
                header("<f4", false, &[3, 4]),
            ),
            (
                "{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }",
                header("|u1", false, &[7]),
            ),
            (
                "{\"shape\": (), \"descr\": \"<i8\", \"fortran_order\": True}",
                header("<i8", true, &[]),
            ),
        ] {
            assert_eq!(parse(text), Ok(expect), "{text}");
        }
        for (text, reason) in [
            (
                "{'fortran_order': False, 'shape': (3,)}",
                "its header has no `descr`",
            ),
            (
                "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}",
                "its elements are records; only plain numbers can be streamed",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (x,)}",
                "size `x` in its shape",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': 3}",
                "its shape is not a tuple",
            ),
        ] {
            assert_eq!(parse(text), Err(reason.to_owned()), "{text}");
        }
    }

    #[test]
    fn arrays_of_other_tokens_are_refused() {
        for (token, descr, shape, fortran, expect) in [
            (TokenType::scalar(DType::F32), "<f4", vec![9], false, ""),
            (TokenType::new(DType::F32, [3]), "<f4", vec![9], false, ""),
            (
                TokenType::new(DType::F32, [3]),
                "<f4",
                vec![9, 3],
                false,
                "",
            ),
            (
                TokenType::new(DType::F32, [2, 3]),
                "<f4",
                vec![2, 3],
                false,
                "",
            ),
            (
                TokenType::new(DType::F32, [2, 3]),
                "<f4",
                vec![2, 3],
                true,
                "save it in C order",
            ),
            (
                TokenType::new(DType::F32, [3]),
                "<f4",
                vec![9, 3],
                true,
                "save it in C order",
            ),
            (
                TokenType::new(DType::F32, [3]),
                "<f4",
                vec![9, 4],
                false,
                "save it with shape [tokens, 3], with [3] for a single token, or flat",
            ),
            (
                TokenType::scalar(DType::F32),
                "<f8",
                vec![9],
                false,
                "save it with dtype `<f4`",
            ),
            (
                TokenType::scalar(DType::F32),
                ">f4",
                vec![9],
                false,
                "save it with dtype `<f4`",
            ),
        ] {
            let header = NpyHeader {
                descr: descr.into(),
                fortran,
                shape,
            };
            let message = check(Path::new("a.npy"), &header, port_of(&token))
                .map_or_else(|error| error.to_string(), |()| String::new());
            assert!(
                message.ends_with(expect) && message.is_empty() == expect.is_empty(),
                "{message}"
            );
        }
    }

    #[test]
    fn a_truncated_array_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.npy");
        let token = TokenType::scalar(DType::F32);
        let port = port_of(&token);
        for (bytes, expect) in [
            (
                header(&token, 5),
                "its header promises 20 bytes of data, there are 0: it is cut short",
            ),
            (b"\x93NUM".to_vec(), "is shorter than a NumPy header"),
            (
                b"RIFF12345678".to_vec(),
                "is not a NumPy array: it does not begin with \\x93NUMPY",
            ),
            (
                b"\x93NUMPY\x09\0\0\0".to_vec(),
                "NumPy format version 9, known are 1 to 3",
            ),
        ] {
            std::fs::write(&path, bytes).expect("written");
            let refusal = open(&path, File::open(&path).expect("there"), port)
                .err()
                .expect("refused");
            assert!(refusal.to_string().ends_with(expect), "{refusal}");
        }
    }
}
