//! Memory of Python's arrays, read and written in place. The only place that follows their pointers.
#![expect(unsafe_code, reason = "a buffer of Python is a pointer and a length")]

use pyo3::buffer::PyUntypedBuffer;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use zbmd_executor::embed::StreamInfo;
use zbmd_ir::burst::HEADER_BYTES;
use zbmd_ir::{DType, TokenType};

use crate::errors::usage_error;

/// NumPy's name of a dtype. NumPy has no bfloat16: its bits stand in `uint16`.
pub(crate) fn numpy_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::F16 => "float16",
        DType::Bf16 => "uint16",
        DType::I8 => "int8",
        DType::U8 => "uint8",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::Bool => "bool",
        DType::C32 => "complex64",
    }
}

/// NumPy's dtype of a stream's arrays: a token's elements have dimensions of their own, and a burst is a record of
/// `first`, the index of its first item's sample, `length`, the number of items, and `items`, all there may be.
pub(crate) fn array_dtype<'py>(py: Python<'py>, token: &TokenType) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import(intern!(py, "numpy"))?;
    let make_dtype = |of: Bound<'py, PyAny>| numpy.call_method1(intern!(py, "dtype"), (of,));
    let element_name = numpy_name(token.dtype);
    if !token.burst {
        return make_dtype(element_name.into_pyobject(py)?.into_any());
    }

    let item_format = (element_name, PyTuple::new(py, &token.shape)?);
    let fields = PyDict::new(py);
    fields.set_item("names", ["first", "length", "items"])?;
    fields.set_item("formats", ("int64", "uint32", item_format))?;
    fields.set_item("offsets", [0, 8, HEADER_BYTES])?;
    fields.set_item("itemsize", token.bytes())?;
    make_dtype(fields.into_any())
}

/// Dimensions of an array behind the first, which counts tokens: none for bursts, which are records.
fn token_dimensions(token: &TokenType) -> &[u32] {
    match token.burst {
        true => &[],
        false => &token.shape,
    }
}

/// The bytes of an array, borrowed from Python: the buffer keeps them where they are, and the array from being resized.
pub(crate) struct Borrowed {
    buffer: PyUntypedBuffer,
}

impl Borrowed {
    fn new(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(array)?;
        if !buffer.is_c_contiguous() {
            return Err(usage_error(
                "the array does not lie in one piece, row by row",
            ));
        }
        Ok(Self { buffer })
    }

    /// The bytes, to read. Whoever calls from Python must not write the array meanwhile, as the documentation of each
    /// function says.
    pub(crate) fn bytes(&self) -> &[u8] {
        let first_byte = self.buffer.buf_ptr();
        let byte_count = self.buffer.len_bytes();
        if byte_count == 0 {
            return &[];
        }
        // SAFETY: Python promises that a contiguous buffer has `len_bytes` bytes at `buf_ptr` until it is released,
        // which it is when this is dropped; nobody writes them meanwhile, as callers are told.
        unsafe { std::slice::from_raw_parts(first_byte.cast(), byte_count) }
    }
}

/// A new array of tokens that is being filled.
pub(crate) struct Filled {
    array: Py<PyAny>,
    borrowed: Borrowed,
    token_bytes: usize,
}

impl Filled {
    /// An array of so many tokens, not initialised.
    pub(crate) fn new(py: Python<'_>, info: &StreamInfo, tokens: usize) -> PyResult<Self> {
        let dimensions = token_dimensions(&info.token)
            .iter()
            .map(|size| *size as usize);
        let array_shape: Vec<usize> = std::iter::once(tokens).chain(dimensions).collect();
        let shape_tuple = PyTuple::new(py, array_shape)?;
        let numpy = py.import(intern!(py, "numpy"))?;
        let array = numpy.call_method1(
            intern!(py, "empty"),
            (shape_tuple, array_dtype(py, &info.token)?),
        )?;
        let borrowed = Borrowed::new(&array)?;
        let token_bytes = info.token.bytes() as usize;
        Ok(Self {
            array: array.unbind(),
            borrowed,
            token_bytes,
        })
    }

    /// The bytes, to write.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let first_byte = self.borrowed.buffer.buf_ptr();
        let byte_count = self.borrowed.buffer.len_bytes();
        if byte_count == 0 {
            return &mut [];
        }
        // SAFETY: as in `Borrowed::bytes`; NumPy made the array for this value alone, which has given it to nobody yet,
        // and it is only ever written here before it is given out. Any byte is a `u8`, and this side reads none.
        unsafe { std::slice::from_raw_parts_mut(first_byte.cast(), byte_count) }
    }

    /// The array, cut off after so many tokens: a view then.
    pub(crate) fn into_array<'py>(
        self,
        py: Python<'py>,
        tokens: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let all_tokens = self.borrowed.buffer.len_bytes() / self.token_bytes;
        // Before the array is given out: its owner may resize it.
        self.borrowed.buffer.release(py);
        let array = self.array.into_bound(py);
        if tokens == all_tokens {
            return Ok(array);
        }
        array.get_item(pyo3::types::PySlice::new(py, 0, tokens as isize, 1))
    }
}

/// The tokens that an object holds: an array of NumPy, anything with DLPack on a CPU, or what NumPy makes an array of.
/// Borrowed where it lies in one piece, copied by NumPy where not.
pub(crate) fn borrow_tokens(value: &Bound<'_, PyAny>, info: &StreamInfo) -> PyResult<Borrowed> {
    let py = value.py();
    let numpy = py.import(intern!(py, "numpy"))?;
    let expected_dtype = array_dtype(py, &info.token)?;

    let array = if value.is_instance(&numpy.getattr(intern!(py, "ndarray"))?)? {
        value.clone()
    } else if value.hasattr(intern!(py, "__dlpack__"))? {
        numpy.call_method1(intern!(py, "from_dlpack"), (value,))?
    } else {
        // A list of numbers has no dtype of its own.
        numpy.call_method1(intern!(py, "asarray"), (value, &expected_dtype))?
    };

    let bit_array = bfloat_bits(array, info.token.dtype)?;
    let found_dtype = bit_array.getattr(intern!(py, "dtype"))?;
    if !found_dtype.eq(&expected_dtype)? {
        return Err(usage_error(format!(
            "`{}` carries {}: use an array of {expected_dtype}, not of {found_dtype}",
            info.name, info.token
        )));
    }

    let array_shape: Vec<u64> = bit_array.getattr(intern!(py, "shape"))?.extract()?;
    let token_shape = token_dimensions(&info.token)
        .iter()
        .map(|size| u64::from(*size));
    if !array_shape.iter().skip(1).copied().eq(token_shape) || array_shape.is_empty() {
        return Err(usage_error(format!(
            "`{}` carries {}: the first dimension of an array counts tokens, the others are the token's; this one \
             has the shape {array_shape:?}",
            info.name, info.token
        )));
    }
    Borrowed::new(&numpy.call_method1(intern!(py, "ascontiguousarray"), (bit_array,))?)
}

/// Arrays with the dtype `bfloat16` of the package `ml_dtypes` as their bits.
fn bfloat_bits<'py>(array: Bound<'py, PyAny>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    if dtype != DType::Bf16 {
        return Ok(array);
    }
    let dtype_name: String = array
        .getattr(intern!(py, "dtype"))?
        .getattr(intern!(py, "name"))?
        .extract()?;
    if dtype_name == "bfloat16" {
        return array.call_method1(intern!(py, "view"), (numpy_name(dtype),));
    }
    Ok(array)
}
