//! A request to infer: from its body to the bytes of every input, or to a refusal that says what to change.

use std::time::Duration;

use super::elements::{ElementError, bytes_of_json};
use super::json::{Json, JsonError, parse};
use crate::sequence::{MAX_ID_BYTES, SequenceId, SequenceStep};
use crate::shared_memory::{RegionError, RegionPart, Regions};
use crate::tensor::{Datatype, TensorSpec};

/// Values of a request beside the elements of its inputs: names, shapes, parameters.
const OTHER_VALUES: usize = 4096;

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
    #[error("input `{name}` has the shape {found:?}; the model takes {expected:?}")]
    Shape {
        name: String,
        found: Vec<u64>,
        expected: Vec<u64>,
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

/// A request that can be computed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InferRequest {
    /// To be echoed.
    pub(crate) id: Option<String>,
    /// The bytes of each input, in the model's order.
    pub(crate) inputs: Vec<Vec<u8>>,
    /// What is asked for, in this order.
    pub(crate) outputs: Vec<WantedOutput>,
    /// The client waits no longer than this.
    pub(crate) timeout: Option<Duration>,
    /// It is one of a sequence.
    pub(crate) step: Option<SequenceStep>,
}

/// An output that a client asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WantedOutput {
    /// Its place among the model's outputs.
    pub(crate) index: usize,
    pub(crate) form: OutputForm,
}

/// How an output is given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OutputForm {
    /// As a list in the JSON.
    List,
    /// As bytes after it.
    Binary,
    /// As bytes in shared memory.
    Region(RegionPart),
}

impl OutputForm {
    pub(super) const fn of(is_binary: bool) -> Self {
        match is_binary {
            true => Self::Binary,
            false => Self::List,
        }
    }
}

/// The tensors that a model takes and gives, and where they may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensors<'a> {
    pub(crate) inputs: &'a [TensorSpec],
    pub(crate) outputs: &'a [TensorSpec],
    pub(crate) regions: &'a Regions,
}

/// A part of a region as a request names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedPart<'a> {
    pub(super) region: &'a str,
    pub(super) offset: u64,
    pub(super) size: u64,
}

impl NamedPart<'_> {
    /// The part of the region, which has room for a tensor.
    pub(super) fn find(
        self,
        kind: &'static str,
        spec: &TensorSpec,
        regions: &Regions,
    ) -> Result<RegionPart, RequestError> {
        let part = regions.part(self.region, self.offset, self.size);
        let part = part.map_err(|source| RequestError::Region {
            kind,
            name: spec.name.clone(),
            source,
        })?;
        // An output may have more room than it needs.
        let needed = spec.bytes() as u64;
        let fits = self.size == needed || kind == "output" && self.size > needed;
        match fits {
            true => Ok(part),
            false => Err(RequestError::RegionSize {
                kind,
                name: spec.name.clone(),
                found: self.size,
                datatype: spec.datatype,
                shape: spec.shape.clone(),
                expected: spec.bytes(),
            }),
        }
    }

    /// The bytes of an input.
    pub(super) fn input(
        self,
        spec: &TensorSpec,
        regions: &Regions,
    ) -> Result<Vec<u8>, RequestError> {
        let part = self.find("input", spec, regions)?;
        let bytes = part.read().map_err(|source| RequestError::Region {
            kind: "input",
            name: spec.name.clone(),
            source,
        })?;
        check_truths(spec, &bytes)?;
        Ok(bytes)
    }
}

/// The longest body that a sensible request of a model has: every element in 32 characters, and 64 KiB of names. More is not read.
pub(crate) fn max_body_bytes(inputs: &[TensorSpec]) -> usize {
    let list_bytes: usize = inputs.iter().map(|spec| 32 * spec.elements()).sum();
    list_bytes + (64 << 10)
}

impl InferRequest {
    /// Reads a body. `json_bytes` is how much of it is JSON, where its header says so; else all is.
    pub(crate) fn parse(
        body: &[u8],
        json_bytes: Option<usize>,
        tensors: Tensors<'_>,
    ) -> Result<Self, RequestError> {
        let json_length = json_bytes.unwrap_or(body.len());
        if json_length > body.len() {
            return Err(RequestError::HeaderLength {
                header: json_length,
                body: body.len(),
            });
        }

        let elements: usize = tensors.inputs.iter().map(TensorSpec::elements).sum();
        // Lists may be nested down to single elements.
        let max_values = 2 * elements + OTHER_VALUES;
        let json = parse(&body[..json_length], max_values)?;
        if !matches!(json, Json::Object(_)) {
            return Err(RequestError::NotObject { found: json.kind() });
        }

        let parameters = json.get("parameters");
        let binary = BinaryData {
            body,
            next: json_length,
        };
        Ok(Self {
            id: id_of(&json)?,
            inputs: inputs_of(&json, binary, tensors)?,
            outputs: outputs_of(&json, parameters, tensors)?,
            timeout: timeout_of(parameters)?,
            step: step_of(parameters)?,
        })
    }
}

fn names_of(specs: &[TensorSpec]) -> String {
    let names = specs.iter().map(|spec| format!("`{}`", spec.name));
    names.collect::<Vec<_>>().join(", ")
}

fn wrong_kind(place: String, found: &Json<'_>, expected: &'static str) -> RequestError {
    RequestError::Kind {
        place,
        found: found.kind(),
        expected,
    }
}

/// The id, which may be a number for clients that count.
fn id_of(json: &Json<'_>) -> Result<Option<String>, RequestError> {
    match json.get("id") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(id)) => Ok(Some(id.to_string())),
        Some(other) => Err(wrong_kind("`id`".to_owned(), other, "a string")),
    }
}

/// The parameters `sequence_id`, `sequence_start` and `sequence_end`; an id of 0, or an empty one, is none.
fn step_of(parameters: Option<&Json<'_>>) -> Result<Option<SequenceStep>, RequestError> {
    let parameter = |name| parameters.and_then(|parameters| parameters.get(name));
    let id = match parameter("sequence_id") {
        None | Some(Json::Null) => return Ok(None),
        Some(Json::String(text)) => text_sequence(text)?,
        Some(other) => {
            let place = "the parameter `sequence_id`";
            number_sequence(unsigned(place, other, "a string or a whole number")?)
        }
    };
    let flag = |name, place| parameter(name).map_or(Ok(false), |value| truth(place, value));
    let is_start = flag("sequence_start", "the parameter `sequence_start`")?;
    let is_end = flag("sequence_end", "the parameter `sequence_end`")?;
    Ok(id.map(|id| SequenceStep {
        id,
        is_start,
        is_end,
    }))
}

pub(super) fn number_sequence(number: u64) -> Option<SequenceId> {
    (number > 0).then_some(SequenceId::Number(number))
}

pub(super) fn text_sequence(text: &str) -> Result<Option<SequenceId>, RequestError> {
    if text.len() > MAX_ID_BYTES {
        return Err(RequestError::Number {
            place: "the parameter `sequence_id`".to_owned(),
            found: format!("a string of {} bytes", text.len()),
            expected: "at most 128 bytes long",
        });
    }
    Ok((!text.is_empty()).then(|| SequenceId::Text(text.to_owned())))
}

/// The parameter `timeout`, in microseconds; 0 is none.
fn timeout_of(parameters: Option<&Json<'_>>) -> Result<Option<Duration>, RequestError> {
    let Some(timeout) = parameters.and_then(|parameters| parameters.get("timeout")) else {
        return Ok(None);
    };
    let micros = unsigned("the parameter `timeout`", timeout, "whole microseconds")?;
    Ok((micros > 0).then(|| Duration::from_micros(micros)))
}

fn unsigned(place: &str, value: &Json<'_>, expected: &'static str) -> Result<u64, RequestError> {
    let Json::Number(text) = value else {
        return Err(wrong_kind(place.to_owned(), value, expected));
    };
    text.parse().map_err(|_| RequestError::Number {
        place: place.to_owned(),
        found: text.chars().take(40).collect(),
        expected,
    })
}

/// A member of an object that is a string.
pub(crate) fn string_member(json: &Json<'_>, name: &str) -> Result<String, RequestError> {
    match json.get(name) {
        Some(Json::String(text)) => Ok(text.to_string()),
        Some(other) => Err(wrong_kind(format!("`{name}`"), other, "a string")),
        None => Err(RequestError::Missing {
            place: format!("`{name}`"),
        }),
    }
}

/// A member of an object that is a number of bytes, if it is there.
pub(crate) fn unsigned_member(json: &Json<'_>, name: &str) -> Result<Option<u64>, RequestError> {
    let value = json.get(name);
    let read = |value| unsigned(&format!("`{name}`"), value, "a number of bytes");
    value.map(read).transpose()
}

fn truth(place: &str, value: &Json<'_>) -> Result<bool, RequestError> {
    match value {
        Json::Bool(truth) => Ok(*truth),
        other => Err(wrong_kind(place.to_owned(), other, "true or false")),
    }
}

/// A list of objects with names, such as `inputs`; nothing if it is not there.
fn named_list<'j, 'a>(
    json: &'j Json<'a>,
    list: &'static str,
) -> Result<Option<Vec<(&'j str, &'j Json<'a>)>>, RequestError> {
    let items = match json.get(list) {
        None | Some(Json::Null) => return Ok(None),
        Some(Json::Array(items)) => items,
        Some(other) => return Err(wrong_kind(format!("`{list}`"), other, "a list")),
    };
    let named = items.iter().enumerate().map(|(index, item)| {
        let place = || format!("`name` of item {index} of `{list}`");
        match item.get("name") {
            Some(Json::String(name)) => Ok((name.as_ref(), item)),
            Some(other) => Err(wrong_kind(place(), other, "a string")),
            None => Err(RequestError::Missing { place: place() }),
        }
    });
    named.collect::<Result<_, _>>().map(Some)
}

pub(super) fn find(
    specs: &[TensorSpec],
    kind: &'static str,
    name: &str,
) -> Result<usize, RequestError> {
    let index = specs.iter().position(|spec| spec.name == name);
    index.ok_or_else(|| RequestError::Unknown {
        kind,
        name: name.chars().take(100).collect(),
        known: names_of(specs),
    })
}

/// The part of a body that follows the JSON, taken from input by input in their order.
struct BinaryData<'a> {
    body: &'a [u8],
    next: usize,
}

impl<'a> BinaryData<'a> {
    fn take(&mut self, spec: &TensorSpec, size: usize) -> Result<&'a [u8], RequestError> {
        let end = self.next + size;
        let bytes = self.body.get(self.next..end);
        let bytes = bytes.ok_or_else(|| RequestError::Truncated {
            name: spec.name.clone(),
            end,
            body: self.body.len(),
        })?;
        self.next = end;
        Ok(bytes)
    }
}

fn inputs_of(
    json: &Json<'_>,
    mut binary: BinaryData<'_>,
    tensors: Tensors<'_>,
) -> Result<Vec<Vec<u8>>, RequestError> {
    let specs = tensors.inputs;
    let missing = || RequestError::Missing {
        place: "`inputs`".to_owned(),
    };
    let given = named_list(json, "inputs")?.ok_or_else(missing)?;

    let mut inputs: Vec<Option<Vec<u8>>> = vec![None; specs.len()];
    for (name, input) in given {
        let index = find(specs, "input", name)?;
        if inputs[index].is_some() {
            return Err(RequestError::Twice {
                kind: "input",
                name: name.to_owned(),
            });
        }
        let bytes = input_bytes(input, &mut binary, &specs[index], tensors.regions)?;
        inputs[index] = Some(bytes);
    }
    let extra = binary.body.len() - binary.next;
    if extra > 0 {
        return Err(RequestError::Extra { extra });
    }

    complete_inputs(inputs, specs)
}

/// Every input, in the model's order.
pub(super) fn complete_inputs(
    inputs: Vec<Option<Vec<u8>>>,
    specs: &[TensorSpec],
) -> Result<Vec<Vec<u8>>, RequestError> {
    let named = inputs.into_iter().zip(specs);
    let complete = named.map(|(input, spec)| {
        input.ok_or_else(|| RequestError::MissingInput {
            name: spec.name.clone(),
            known: names_of(specs),
        })
    });
    complete.collect()
}

fn input_bytes(
    input: &Json<'_>,
    binary: &mut BinaryData<'_>,
    spec: &TensorSpec,
    regions: &Regions,
) -> Result<Vec<u8>, RequestError> {
    check_datatype(input, spec)?;
    check_shape(input, spec)?;
    let parameters = input.get("parameters");
    let name = || spec.name.clone();
    let size = parameters.and_then(|parameters| parameters.get("binary_data_size"));
    if let Some(part) = named_part(parameters)? {
        if size.is_some() || input.get("data").is_some() {
            return Err(RequestError::TwoSources { name: name() });
        }
        return part.input(spec, regions);
    }

    match (size, input.get("data")) {
        (Some(_), Some(_)) => Err(RequestError::TwoSources { name: name() }),
        (None, None) => Err(RequestError::NoData { name: name() }),
        (None, Some(list @ Json::Array(_))) => {
            let bytes = bytes_of_json(list, spec.datatype, spec.elements());
            bytes.map_err(|source| RequestError::Element {
                name: name(),
                source,
            })
        }
        (None, Some(other)) => {
            let place = format!("`data` of input `{}`", spec.name);
            Err(wrong_kind(place, other, "a list"))
        }
        (Some(size), None) => {
            let found = unsigned(
                "the parameter `binary_data_size`",
                size,
                "a number of bytes",
            )?;
            if found != spec.bytes() as u64 {
                return Err(RequestError::BinarySize {
                    name: name(),
                    found,
                    datatype: spec.datatype,
                    shape: spec.shape.clone(),
                    expected: spec.bytes(),
                });
            }
            let bytes = binary.take(spec, spec.bytes())?;
            check_truths(spec, bytes)?;
            Ok(bytes.to_vec())
        }
    }
}

/// Kernels take a BOOL that is neither 0 nor 1 for what they like.
pub(super) fn check_truths(spec: &TensorSpec, bytes: &[u8]) -> Result<(), RequestError> {
    if spec.datatype != Datatype::Bool {
        return Ok(());
    }
    match bytes.iter().position(|byte| *byte > 1) {
        None => Ok(()),
        Some(index) => Err(RequestError::NotBool {
            name: spec.name.clone(),
            index,
            found: bytes[index],
        }),
    }
}

fn check_datatype(input: &Json<'_>, spec: &TensorSpec) -> Result<(), RequestError> {
    let place = || format!("`datatype` of input `{}`", spec.name);
    let found = match input.get("datatype") {
        Some(Json::String(found)) => found.as_ref(),
        Some(other) => return Err(wrong_kind(place(), other, "a string")),
        None => return Err(RequestError::Missing { place: place() }),
    };
    check_named_datatype(found, spec)
}

pub(super) fn check_named_datatype(found: &str, spec: &TensorSpec) -> Result<(), RequestError> {
    if found == spec.datatype.name() {
        return Ok(());
    }
    Err(RequestError::Datatype {
        name: spec.name.clone(),
        found: found.chars().take(40).collect(),
        expected: spec.datatype,
        help: match found {
            "BYTES" => ": zbmd has no strings; send the numbers that the model takes",
            _ => "",
        },
    })
}

fn check_shape(input: &Json<'_>, spec: &TensorSpec) -> Result<(), RequestError> {
    let place = format!("`shape` of input `{}`", spec.name);
    let items = match input.get("shape") {
        Some(Json::Array(items)) => items,
        Some(other) => return Err(wrong_kind(place, other, "a list of sizes")),
        None => return Err(RequestError::Missing { place }),
    };
    let sizes = items
        .iter()
        .map(|item| unsigned(&place, item, "a list of sizes"));
    check_sizes(sizes.collect::<Result<_, _>>()?, spec)
}

pub(super) fn check_sizes(found: Vec<u64>, spec: &TensorSpec) -> Result<(), RequestError> {
    if found == spec.shape {
        return Ok(());
    }
    Err(RequestError::Shape {
        name: spec.name.clone(),
        found,
        expected: spec.shape.clone(),
    })
}

/// The parameters `shared_memory_region`, `shared_memory_byte_size` and `shared_memory_offset`.
fn named_part<'j>(parameters: Option<&'j Json<'_>>) -> Result<Option<NamedPart<'j>>, RequestError> {
    let parameter = |name| parameters.and_then(|parameters| parameters.get(name));
    let region = match parameter("shared_memory_region") {
        None | Some(Json::Null) => return Ok(None),
        Some(Json::String(region)) => region.as_ref(),
        Some(other) => {
            let place = "the parameter `shared_memory_region`".to_owned();
            return Err(wrong_kind(place, other, "a string"));
        }
    };
    let size_place = "the parameter `shared_memory_byte_size`";
    let size = parameter("shared_memory_byte_size").ok_or_else(|| RequestError::Missing {
        place: size_place.to_owned(),
    })?;
    let size = unsigned(size_place, size, "a number of bytes")?;
    let offset = parameter("shared_memory_offset").map_or(Ok(0), |value| {
        unsigned(
            "the parameter `shared_memory_offset`",
            value,
            "a number of bytes",
        )
    })?;
    Ok(Some(NamedPart {
        region,
        offset,
        size,
    }))
}

/// What is asked for: without a list, all outputs.
fn outputs_of(
    json: &Json<'_>,
    parameters: Option<&Json<'_>>,
    tensors: Tensors<'_>,
) -> Result<Vec<WantedOutput>, RequestError> {
    let specs = tensors.outputs;
    let all_binary = parameters.and_then(|parameters| parameters.get("binary_data_output"));
    let all_binary = all_binary.map_or(Ok(false), |value| {
        truth("the parameter `binary_data_output`", value)
    })?;

    let given = named_list(json, "outputs")?.unwrap_or_default();
    if given.is_empty() {
        let every_output = 0..specs.len();
        let wanted = every_output.map(|index| WantedOutput {
            index,
            form: OutputForm::of(all_binary),
        });
        return Ok(wanted.collect());
    }

    let mut wanted: Vec<WantedOutput> = Vec::new();
    for (name, output) in given {
        let index = find(specs, "output", name)?;
        if wanted.iter().any(|other| other.index == index) {
            return Err(RequestError::Twice {
                kind: "output",
                name: name.to_owned(),
            });
        }
        let parameters = output.get("parameters");
        refuse_classification(name, parameters)?;
        let binary = parameters.and_then(|parameters| parameters.get("binary_data"));
        let is_binary = binary.map_or(Ok(all_binary), |value| {
            truth("the parameter `binary_data`", value)
        })?;
        let form = match named_part(parameters)? {
            Some(part) => {
                OutputForm::Region(part.find("output", &specs[index], tensors.regions)?)
            }
            None => OutputForm::of(is_binary),
        };
        wanted.push(WantedOutput { index, form });
    }
    Ok(wanted)
}

fn refuse_classification(name: &str, parameters: Option<&Json<'_>>) -> Result<(), RequestError> {
    let classes = parameters.and_then(|parameters| parameters.get("classification"));
    match classes {
        None | Some(Json::Number("0")) => Ok(()),
        Some(_) => Err(unsupported_classification(name)),
    }
}

pub(super) fn unsupported_classification(name: &str) -> RequestError {
    RequestError::Unsupported {
        what: format!("`classification` of output `{name}`"),
        help: "its answer would be BYTES; ask for the numbers",
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
