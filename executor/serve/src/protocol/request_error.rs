//! Why requests are refused, whatever form they have. The words say where the mistake is and what would be right.

use super::elements::ElementError;
use super::json::JsonError;
use crate::shared_memory::RegionError;
use crate::tensor::Datatype;

/// What is said of a batch's first dimension.
fn rows_help(max_rows: u32) -> String {
    match max_rows {
        0 | 1 => String::new(),
        _ => format!(" with up to {max_rows} rows"),
    }
}

/// Why a request is refused. It is the client's mistake.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error("the request is {found}; it must be an object with `inputs`")]
    NotObject { found: &'static str },
    #[error("{place} is {found}; it must be {expected}")]
    Kind {
        place: String,
        found: &'static str,
        expected: &'static str,
    },
    #[error("{place} is missing")]
    Missing { place: String },
    #[error("{place} is {found}; it must be {expected}")]
    Number {
        place: String,
        found: String,
        expected: &'static str,
    },
    #[error(
        "the header Inference-Header-Content-Length says {header} bytes of JSON; the body has {body} bytes"
    )]
    HeaderLength { header: usize, body: usize },
    #[error("the model has no {kind} `{name}`; it has {known}")]
    Unknown {
        kind: &'static str,
        name: String,
        known: String,
    },
    #[error("{kind} `{name}` is given twice")]
    Twice { kind: &'static str, name: String },
    #[error("input `{name}` is missing; the model takes {known}")]
    MissingInput { name: String, known: String },
    #[error("input `{name}` has the datatype {found}; the model takes {expected}{help}")]
    Datatype {
        name: String,
        found: String,
        expected: Datatype,
        help: &'static str,
    },
    #[error(
        "input `{name}` has the shape {found:?}; the model takes {expected:?}{}",
        rows_help(*max_rows)
    )]
    Shape {
        name: String,
        found: Vec<u64>,
        expected: Vec<u64>,
        max_rows: u32,
    },
    #[error(
        "input `{name}` has {rows} rows and input `{other}` has {other_rows}: all need as many"
    )]
    Rows {
        name: String,
        rows: usize,
        other: String,
        other_rows: usize,
    },
    #[error("input `{name}`: {source}")]
    Element { name: String, source: ElementError },
    #[error(
        "input `{name}` has more than one of `data` and the parameters `binary_data_size` and `shared_memory_region`; leave all but one out"
    )]
    TwoSources { name: String },
    #[error(
        "input `{name}` has neither `data` nor one of the parameters `binary_data_size` and `shared_memory_region`"
    )]
    NoData { name: String },
    #[error(
        "input `{name}` says binary_data_size {found}; {datatype} of shape {shape:?} has {expected} bytes"
    )]
    BinarySize {
        name: String,
        found: u64,
        datatype: Datatype,
        shape: Vec<u64>,
        expected: usize,
    },
    #[error(
        "the binary data of input `{name}` ends at byte {end} of the body, which has {body} bytes"
    )]
    Truncated {
        name: String,
        end: usize,
        body: usize,
    },
    #[error("the body has {extra} bytes after the binary data of the last input")]
    Extra { extra: usize },
    #[error("element {index} of input `{name}` is {found}; a BOOL is 0 or 1")]
    NotBool {
        name: String,
        index: usize,
        found: u8,
    },
    #[cfg(feature = "grpc")]
    #[error(
        "`raw_input_contents` has {found} tensors and `inputs` {inputs}: with bytes for one input there must be bytes for each, in the same order"
    )]
    RawCount { found: usize, inputs: usize },
    #[cfg(feature = "grpc")]
    #[error(
        "input `{name}` has {found} bytes in `raw_input_contents`; {datatype} of shape {shape:?} has {expected}"
    )]
    RawSize {
        name: String,
        found: usize,
        datatype: Datatype,
        shape: Vec<u64>,
        expected: usize,
    },
    #[cfg(feature = "grpc")]
    #[error(
        "input `{name}` has both `contents` and bytes in `raw_input_contents`; leave one of them out"
    )]
    RawAndContents { name: String },
    #[cfg(feature = "grpc")]
    #[error("input `{name}` has neither `contents` nor bytes in `raw_input_contents`")]
    NoContents { name: String },
    #[error("{kind} `{name}`: {source}")]
    Region {
        kind: &'static str,
        name: String,
        source: RegionError,
    },
    #[error(
        "{kind} `{name}` says shared_memory_byte_size {found}; {datatype} of shape {shape:?} has {expected} bytes"
    )]
    RegionSize {
        kind: &'static str,
        name: String,
        found: u64,
        datatype: Datatype,
        shape: Vec<u64>,
        expected: usize,
    },
    #[error("{what} is not supported: {help}")]
    Unsupported { what: String, help: &'static str },
}
