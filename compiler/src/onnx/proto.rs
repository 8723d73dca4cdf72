//! From files to messages, and from messages to tensors and types.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Component, Path};

use bytes::Bytes;
use rten_onnx::onnx::{DataLocation, DataType, ModelProto, TensorProto};
use zbmd_backends::devices::memory_bytes;
use zbmd_ir::{DType, TokenType, limits};

use super::error::OnnxError;
use super::scan::scan;
use crate::files::{self, ReadError};

/// Reads a model from a file; weights in it are read once, into memory of their own.
pub(super) fn read_file(path: &Path) -> Result<ModelProto, OnnxError> {
    let shown = path.display().to_string();
    let refuse = |error: ReadError| OnnxError::File {
        path: shown.clone(),
        why: error.to_string(),
    };
    let (file, bytes) = files::open(path).map_err(refuse)?;
    let limit = memory_bytes();
    if bytes > limit {
        return Err(refuse(ReadError::Size { bytes, limit }));
    }
    let mut reader = BufReader::new(&file);
    scan(&mut reader, bytes)?;
    (&file)
        .seek(SeekFrom::Start(0))
        .map_err(|error| refuse(error.into()))?;
    ModelProto::parse_file(file).map_err(|e| OnnxError::Parse(e.to_string()))
}

/// Reads a model from memory.
pub(super) fn read_bytes(bytes: &[u8]) -> Result<ModelProto, OnnxError> {
    scan(&mut Cursor::new(bytes), bytes.len() as u64)?;
    ModelProto::parse_buf(bytes).map_err(|e| OnnxError::Parse(e.to_string()))
}

/// Files of external data, each opened once.
pub(super) struct External<'a> {
    dir: Option<&'a Path>,
    open: BTreeMap<String, (File, u64)>,
    /// Bytes that may still be read: weights go into memory.
    left_bytes: u64,
}

impl<'a> External<'a> {
    /// Files beside the model; none for a model from memory.
    pub(super) fn new(dir: Option<&'a Path>) -> Self {
        Self {
            dir,
            open: BTreeMap::new(),
            left_bytes: memory_bytes(),
        }
    }

    /// The data of a tensor that has to have `bytes` bytes.
    fn read(&mut self, tensor: &str, proto: &TensorProto, bytes: u64) -> Result<Bytes, OnnxError> {
        let entries = ExternalEntries { tensor, proto };
        let location = entries.location()?;
        let refuse = |why: String| entries.refused(why);

        let dir = self
            .dir
            .ok_or_else(|| refuse(format!("is in `{location}`, but the model has no folder")))?;
        let offset = entries.number("offset", location)?.unwrap_or(0);
        if let Some(length) = entries
            .number("length", location)?
            .filter(|&length| length != bytes)
        {
            return Err(refuse(format!(
                "has {length} bytes in `{location}`, its type {bytes}"
            )));
        }

        // Large models have thousands of tensors in one file.
        if !self.open.contains_key(location) {
            let opened = open_inside(dir, location, &entries)?;
            self.open.insert(location.to_owned(), opened);
        }
        // The length is that of when it was opened: reading past a file that shrank since is an error below.
        let Some((mut file, file_bytes)) = self.open.get(location).map(|(file, len)| (file, *len))
        else {
            return Err(refuse("is missing".to_owned()));
        };

        // Sizes are compared before memory is taken: the file's entries say what a stranger wrote.
        if offset.checked_add(bytes).is_none_or(|end| end > file_bytes) {
            return Err(refuse(format!(
                "needs {bytes} bytes from byte {offset} of `{location}`, which has {file_bytes}"
            )));
        }
        if bytes > self.left_bytes {
            return Err(refuse(format!(
                "has {bytes} bytes, more than the {} that the other tensors leave of this computer's memory",
                self.left_bytes
            )));
        }
        self.left_bytes -= bytes;

        let mut data = vec![0; bytes as usize];
        file.seek(SeekFrom::Start(offset))
            .and_then(|_| file.read_exact(&mut data))
            .map_err(|e| refuse(e.to_string()))?;
        Ok(Bytes::from(data))
    }
}

/// What a tensor says about the file that holds its data.
struct ExternalEntries<'a> {
    tensor: &'a str,
    proto: &'a TensorProto,
}

impl<'a> ExternalEntries<'a> {
    fn refused(&self, why: String) -> OnnxError {
        OnnxError::Data {
            tensor: self.tensor.to_owned(),
            why,
        }
    }

    fn entry(&self, key: &str) -> Option<&'a str> {
        self.proto
            .external_data
            .iter()
            .find(|entry| entry.key.as_deref() == Some(key))
            .and_then(|entry| entry.value.as_deref())
    }

    /// The file's path, which may only go down from the model's folder.
    fn location(&self) -> Result<&'a str, OnnxError> {
        let location = self
            .entry("location")
            .ok_or_else(|| self.refused("is external, but no file is named".to_owned()))?;
        let goes_down = Path::new(location)
            .components()
            .all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if !goes_down || location.is_empty() || location.contains('\\') {
            return Err(self.leaves_folder(location));
        }

        Ok(location)
    }

    /// An offset or a length in bytes, where there is one.
    fn number(&self, key: &str, location: &str) -> Result<Option<u64>, OnnxError> {
        let Some(text) = self.entry(key) else {
            return Ok(None);
        };
        // Negative, too large for 64 bits, or not a number.
        text.trim().parse::<u64>().map(Some).map_err(|_| {
            self.refused(format!(
                "has the {key} `{text}` in `{location}`, which is not a number from 0 to 2^64 - 1"
            ))
        })
    }

    fn leaves_folder(&self, location: &str) -> OnnxError {
        self.refused(format!(
            "is said to be in `{location}`, which leaves the model's folder"
        ))
    }
}

/// Opens a file of the folder; a symbolic link must not lead outside it.
fn open_inside(
    dir: &Path,
    location: &str,
    entries: &ExternalEntries<'_>,
) -> Result<(File, u64), OnnxError> {
    let refuse = |e: &dyn std::fmt::Display| entries.refused(format!("is in `{location}`: {e}"));
    let folder = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };

    let real_path = std::fs::canonicalize(dir.join(location)).map_err(|e| refuse(&e))?;
    let real_folder = std::fs::canonicalize(folder).map_err(|e| refuse(&e))?;
    if !real_path.starts_with(&real_folder) {
        return Err(entries.leaves_folder(location));
    }

    files::open(&real_path).map_err(|e| refuse(&e))
}

/// The dtype of an ONNX element type, where there is one.
pub(super) fn dtype(code: i32) -> Option<DType> {
    Some(match DataType(code) {
        DataType::FLOAT => DType::F32,
        DataType::DOUBLE => DType::F64,
        DataType::FLOAT16 => DType::F16,
        DataType::BFLOAT16 => DType::Bf16,
        DataType::INT8 => DType::I8,
        DataType::UINT8 => DType::U8,
        DataType::INT16 => DType::I16,
        DataType::INT32 => DType::I32,
        DataType::INT64 => DType::I64,
        DataType::BOOL => DType::Bool,
        _ => return None,
    })
}

/// The dtype of a value, or a refusal that names the ONNX type.
pub(super) fn dtype_of(value: &str, code: Option<DataType>) -> Result<DType, OnnxError> {
    let code = code.unwrap_or(DataType(0));
    dtype(code.0).ok_or_else(|| OnnxError::Type {
        value: value.to_owned(),
        found: format!("tensor of {}", code.name().unwrap_or("no known type")),
    })
}

/// A type from ONNX dimensions, which may be 0 for constants.
pub(super) fn token(value: &str, dtype: DType, dims: &[i64]) -> Result<TokenType, OnnxError> {
    let shape: Option<Vec<u32>> = dims.iter().map(|&d| u32::try_from(d).ok()).collect();
    let token = shape.map(|s| TokenType::new(dtype, s));
    let fits =
        |t: &TokenType| t.shape.len() <= limits::MAX_RANK && t.bytes() <= limits::MAX_TOKEN_BYTES;
    token.filter(fits).ok_or_else(|| OnnxError::Type {
        value: value.to_owned(),
        found: format!(
            "{dtype} tensor of {dims:?}, beyond {} dimensions or {} bytes",
            limits::MAX_RANK,
            limits::MAX_TOKEN_BYTES
        ),
    })
}

/// The type and bytes of a tensor.
pub(super) fn tensor(
    name: &str,
    proto: &TensorProto,
    files: &mut External<'_>,
) -> Result<(TokenType, Bytes), OnnxError> {
    let dtype = dtype_of(name, proto.data_type)?;
    let token = token(name, dtype, &proto.dims)?;
    let data = if proto.data_location == Some(DataLocation::EXTERNAL) {
        files.read(name, proto, token.bytes())?
    } else if let Some(raw) = &proto.raw_data {
        Bytes::from(raw.take())
    } else {
        Bytes::from(typed(dtype, proto))
    };
    if data.len() as u64 != token.bytes() {
        let why = format!("has {} bytes, {token} needs {}", data.len(), token.bytes());
        return Err(OnnxError::Data {
            tensor: name.to_owned(),
            why,
        });
    }

    Ok((token, data))
}

/// Elements from the fields for each kind of number.
fn typed(dtype: DType, proto: &TensorProto) -> Vec<u8> {
    let ints = &proto.int32_data;
    match dtype {
        DType::F32 => proto
            .float_data
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect(),
        DType::F64 => proto
            .double_data
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect(),
        DType::I64 => proto
            .int64_data
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect(),
        DType::I32 => ints.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F16 | DType::Bf16 | DType::I16 => ints
            .iter()
            .flat_map(|v| (*v as u16).to_le_bytes())
            .collect(),
        _ => ints.iter().map(|v| *v as u8).collect(),
    }
}
