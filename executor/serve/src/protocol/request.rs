//! A request to infer: from its body to the bytes of every input, or to a refusal that says what to change.

use std::borrow::Cow;
use std::time::Duration;

use super::elements::bytes_of_json;
use super::json::{Json, parse};
use super::parameters::{named_part, step_of, timeout_of, truth, unsigned, wrong_kind};
use super::request_error::RequestError;
use crate::sequence::SequenceStep;
use crate::shared_memory::{RegionPart, Regions};
use crate::tensor::{Datatype, TensorSpec};

/// Values of a request beside the elements of its inputs: names, shapes, parameters.
const OTHER_VALUES: usize = 4096;

/// A request that can be computed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InferRequest {
    /// To be echoed.
    pub(crate) id: Option<String>,
    /// The bytes of each input, in the model's order.
    pub(crate) inputs: Vec<Vec<u8>>,
    /// Iterations that it asks for: rows of each input and of each output.
    pub(crate) rows: usize,
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
    /// Rows of a request, at most, whose tensors have a row for each iteration; 1 of models that take no batches.
    pub(crate) max_rows: u32,
}

impl Tensors<'_> {
    /// An input of the shape that a request says, which has as many rows as that.
    pub(super) fn input(
        &self,
        index: usize,
        found: Vec<u64>,
    ) -> Result<Cow<'_, TensorSpec>, RequestError> {
        let spec = &self.inputs[index];
        if found == spec.shape {
            return Ok(Cow::Borrowed(spec));
        }
        if self.max_rows > 1
            && let [rows, row_shape @ ..] = found.as_slice()
            && (1..=u64::from(self.max_rows)).contains(rows)
            && *row_shape == spec.shape[1..]
        {
            return Ok(Cow::Owned(spec.of_rows(*rows)));
        }
        Err(RequestError::Shape {
            name: spec.name.clone(),
            found,
            expected: spec.shape.clone(),
            max_rows: self.max_rows,
        })
    }

    /// Rows of a request's inputs, of which all have as many.
    pub(super) fn rows(&self, inputs: &[Vec<u8>]) -> Result<usize, RequestError> {
        let rows = |index: usize| match self.inputs[index].bytes() {
            0 => 1,
            row_bytes => inputs[index].len() / row_bytes,
        };
        let first_rows = if inputs.is_empty() { 1 } else { rows(0) };
        match (1..inputs.len()).find(|index| rows(*index) != first_rows) {
            None => Ok(first_rows),
            Some(other) => Err(RequestError::Rows {
                name: self.inputs[0].name.clone(),
                rows: first_rows,
                other: self.inputs[other].name.clone(),
                other_rows: rows(other),
            }),
        }
    }
}

/// The longest body that a sensible request of so many rows has: every element in 32 characters, and 64 KiB of names. More is not
/// read.
pub(crate) fn max_body_bytes(inputs: &[TensorSpec], max_rows: u32) -> usize {
    let row_bytes: usize = inputs.iter().map(|spec| 32 * spec.elements()).sum();
    row_bytes * max_rows as usize + (64 << 10)
}

/// A tensor of so many iterations.
pub(crate) fn of_batch(spec: &TensorSpec, rows: usize) -> Cow<'_, TensorSpec> {
    match rows {
        1 => Cow::Borrowed(spec),
        _ => Cow::Owned(spec.of_rows(rows as u64)),
    }
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

        let row_elements: usize = tensors.inputs.iter().map(TensorSpec::elements).sum();
        // Lists may be nested down to single elements.
        let max_values = 2 * row_elements * tensors.max_rows as usize + OTHER_VALUES;
        let json = parse(&body[..json_length], max_values)?;
        if !matches!(json, Json::Object(_)) {
            return Err(RequestError::NotObject { found: json.kind() });
        }

        let parameters = json.get("parameters");
        let binary = BinaryData {
            body,
            next: json_length,
        };
        let inputs = inputs_of(&json, binary, tensors)?;
        let rows = tensors.rows(&inputs)?;
        Ok(Self {
            id: id_of(&json)?,
            inputs,
            rows,
            outputs: outputs_of(&json, parameters, rows, tensors)?,
            timeout: timeout_of(parameters)?,
            step: step_of(parameters)?,
        })
    }
}

/// The timeout of a request whose JSON this is, without its tensors.
pub(crate) fn timeout_in(json: &[u8]) -> Result<Option<Duration>, RequestError> {
    let json = parse(json, OTHER_VALUES)?;
    timeout_of(json.get("parameters"))
}

fn names_of(specs: &[TensorSpec]) -> String {
    let names = specs.iter().map(|spec| format!("`{}`", spec.name));
    names.collect::<Vec<_>>().join(", ")
}

/// The id, which may be a number for clients that count.
fn id_of(json: &Json<'_>) -> Result<Option<String>, RequestError> {
    match json.get("id") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(id)) => Ok(Some(id.to_string())),
        Some(other) => Err(wrong_kind("`id`".to_owned(), other, "a string")),
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
        let bytes = input_bytes(input, &mut binary, index, tensors)?;
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
    index: usize,
    tensors: Tensors<'_>,
) -> Result<Vec<u8>, RequestError> {
    let single = &tensors.inputs[index];
    check_datatype(input, single)?;
    let spec = &*tensors.input(index, shape_of(input, single)?)?;
    let parameters = input.get("parameters");
    let name = || spec.name.clone();
    let size = parameters.and_then(|parameters| parameters.get("binary_data_size"));
    if let Some(part) = named_part(parameters)? {
        if size.is_some() || input.get("data").is_some() {
            return Err(RequestError::TwoSources { name: name() });
        }
        return part.input(spec, tensors.regions);
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

fn shape_of(input: &Json<'_>, spec: &TensorSpec) -> Result<Vec<u64>, RequestError> {
    let place = format!("`shape` of input `{}`", spec.name);
    let items = match input.get("shape") {
        Some(Json::Array(items)) => items,
        Some(other) => return Err(wrong_kind(place, other, "a list of sizes")),
        None => return Err(RequestError::Missing { place }),
    };
    let sizes = items
        .iter()
        .map(|item| unsigned(&place, item, "a list of sizes"));
    sizes.collect()
}

/// What is asked for: without a list, all outputs.
fn outputs_of(
    json: &Json<'_>,
    parameters: Option<&Json<'_>>,
    rows: usize,
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
                let spec = of_batch(&specs[index], rows);
                OutputForm::Region(part.find("output", &spec, tensors.regions)?)
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
