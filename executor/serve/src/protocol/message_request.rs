//! A request to infer as a gRPC message: the same checks as of one as JSON, and the same refusals.

use std::time::Duration;

use super::elements::ElementError;
use super::messages::{
    InferInputTensor, InferTensorContents, ModelInferRequest, ParameterChoice, Parameters,
};
use super::parameters::{NamedPart, number_sequence, text_sequence};
use super::request::{
    InferRequest, OutputForm, Tensors, WantedOutput, check_named_datatype, check_truths,
    complete_inputs, find, of_batch, unsupported_classification,
};
use super::request_error::RequestError;
use crate::sequence::SequenceStep;
use crate::tensor::{Datatype, TensorSpec};

/// Reads a message. Outputs are sent as bytes, or written to shared memory.
pub(crate) fn read_message(
    message: ModelInferRequest,
    tensors: Tensors<'_>,
) -> Result<InferRequest, RequestError> {
    let inputs = inputs_of(&message, tensors)?;
    let rows = tensors.rows(&inputs)?;
    Ok(InferRequest {
        timeout: timeout_of(&message.parameters)?,
        step: step_of(&message.parameters)?,
        outputs: outputs_of(&message, rows, tensors)?,
        inputs,
        rows,
        // There is no telling an empty id from none.
        id: (!message.id.is_empty()).then_some(message.id),
    })
}

fn choice<'p>(parameters: &'p Parameters, name: &str) -> Option<&'p ParameterChoice> {
    parameters.get(name)?.choice.as_ref()
}

/// The parameters `sequence_id`, `sequence_start` and `sequence_end`; an id of 0, or an empty one, is none.
fn step_of(parameters: &Parameters) -> Result<Option<SequenceStep>, RequestError> {
    let wrong = |name: &str, found: String, expected| RequestError::Number {
        place: format!("the parameter `{name}`"),
        found,
        expected,
    };
    let expected = "a string or a whole number";
    let id = match choice(parameters, "sequence_id") {
        None => return Ok(None),
        Some(ParameterChoice::Uint64(number)) => number_sequence(*number),
        Some(ParameterChoice::Int64(number)) => {
            let unsigned = u64::try_from(*number);
            number_sequence(
                unsigned.map_err(|_| wrong("sequence_id", number.to_string(), expected))?,
            )
        }
        Some(ParameterChoice::String(text)) => text_sequence(text)?,
        Some(other) => return Err(wrong("sequence_id", kind_of(other).to_owned(), expected)),
    };
    let flag = |name| match choice(parameters, name) {
        None => Ok(false),
        Some(ParameterChoice::Bool(flag)) => Ok(*flag),
        Some(other) => Err(wrong(name, kind_of(other).to_owned(), "true or false")),
    };
    let (is_start, is_end) = (flag("sequence_start")?, flag("sequence_end")?);
    Ok(id.map(|id| SequenceStep {
        id,
        is_start,
        is_end,
    }))
}

/// The parameter `timeout`, in microseconds; 0 is none.
fn timeout_of(parameters: &Parameters) -> Result<Option<Duration>, RequestError> {
    let wrong = |found: String| RequestError::Number {
        place: "the parameter `timeout`".to_owned(),
        found,
        expected: "whole microseconds",
    };
    let micros = match choice(parameters, "timeout") {
        None => return Ok(None),
        Some(ParameterChoice::Uint64(micros)) => *micros,
        Some(ParameterChoice::Int64(micros)) => {
            u64::try_from(*micros).map_err(|_| wrong(micros.to_string()))?
        }
        Some(other) => return Err(wrong(kind_of(other).to_owned())),
    };
    Ok((micros > 0).then(|| Duration::from_micros(micros)))
}

fn kind_of(choice: &ParameterChoice) -> &'static str {
    match choice {
        ParameterChoice::Bool(_) => "a truth value",
        ParameterChoice::Int64(_) | ParameterChoice::Uint64(_) => "a whole number",
        ParameterChoice::String(_) => "a string",
        ParameterChoice::Double(_) => "a floating-point number",
    }
}

/// The parameters `shared_memory_region`, `shared_memory_byte_size` and `shared_memory_offset`.
fn named_part(parameters: &Parameters) -> Result<Option<NamedPart<'_>>, RequestError> {
    let wrong = |name: &str, found: String, expected| RequestError::Number {
        place: format!("the parameter `{name}`"),
        found,
        expected,
    };
    let region = match choice(parameters, "shared_memory_region") {
        None => return Ok(None),
        Some(ParameterChoice::String(region)) => region.as_str(),
        Some(other) => {
            let found = kind_of(other).to_owned();
            return Err(wrong("shared_memory_region", found, "a string"));
        }
    };
    let bytes = |name: &str| match choice(parameters, name) {
        None => Ok(None),
        Some(ParameterChoice::Uint64(bytes)) => Ok(Some(*bytes)),
        Some(ParameterChoice::Int64(bytes)) => {
            let unsigned = u64::try_from(*bytes);
            let wrong_number = |_| wrong(name, bytes.to_string(), "a number of bytes");
            unsigned.map(Some).map_err(wrong_number)
        }
        Some(other) => Err(wrong(name, kind_of(other).to_owned(), "a number of bytes")),
    };
    let missing = || RequestError::Missing {
        place: "the parameter `shared_memory_byte_size`".to_owned(),
    };
    Ok(Some(NamedPart {
        region,
        offset: bytes("shared_memory_offset")?.unwrap_or(0),
        size: bytes("shared_memory_byte_size")?.ok_or_else(missing)?,
    }))
}

/// What is asked for: without a list, all outputs.
fn outputs_of(
    message: &ModelInferRequest,
    rows: usize,
    tensors: Tensors<'_>,
) -> Result<Vec<WantedOutput>, RequestError> {
    let specs = tensors.outputs;
    let wanted = |index| WantedOutput {
        index,
        form: OutputForm::Binary,
    };
    if message.outputs.is_empty() {
        return Ok((0..specs.len()).map(wanted).collect());
    }

    let mut outputs: Vec<WantedOutput> = Vec::new();
    for output in &message.outputs {
        let index = find(specs, "output", &output.name)?;
        if outputs.iter().any(|other| other.index == index) {
            return Err(RequestError::Twice {
                kind: "output",
                name: output.name.clone(),
            });
        }
        match choice(&output.parameters, "classification") {
            None | Some(ParameterChoice::Int64(0) | ParameterChoice::Uint64(0)) => {}
            Some(_) => return Err(unsupported_classification(&output.name)),
        }
        let form = match named_part(&output.parameters)? {
            Some(part) => {
                let spec = of_batch(&specs[index], rows);
                OutputForm::Region(part.find("output", &spec, tensors.regions)?)
            }
            None => OutputForm::Binary,
        };
        outputs.push(WantedOutput { index, form });
    }
    Ok(outputs)
}

/// All inputs as bytes, or all as numbers: a message that has any bytes has those of every input, in the same order. Inputs in
/// shared memory have neither.
fn inputs_of(
    message: &ModelInferRequest,
    tensors: Tensors<'_>,
) -> Result<Vec<Vec<u8>>, RequestError> {
    let specs = tensors.inputs;
    let in_body = message.inputs.iter();
    let in_body = in_body.filter(|input| !input.parameters.contains_key("shared_memory_region"));
    let in_body = in_body.count();
    let raw = &message.raw_input_contents;
    if !raw.is_empty() && raw.len() != in_body {
        return Err(RequestError::RawCount {
            found: raw.len(),
            inputs: in_body,
        });
    }

    let mut inputs: Vec<Option<Vec<u8>>> = vec![None; specs.len()];
    let mut raw = raw.iter();
    for input in &message.inputs {
        let index = find(specs, "input", &input.name)?;
        if inputs[index].is_some() {
            return Err(RequestError::Twice {
                kind: "input",
                name: input.name.clone(),
            });
        }
        check_named_datatype(&input.datatype, &specs[index])?;
        let spec = &*tensors.input(index, shape_of(input)?)?;
        inputs[index] = Some(match named_part(&input.parameters)? {
            Some(part) if input.contents.is_none() => part.input(spec, tensors.regions)?,
            Some(_) => {
                let name = input.name.clone();
                return Err(RequestError::TwoSources { name });
            }
            None => input_bytes(input, raw.next().map(|bytes| bytes.as_ref()), spec)?,
        });
    }
    complete_inputs(inputs, specs)
}

fn shape_of(input: &InferInputTensor) -> Result<Vec<u64>, RequestError> {
    let sizes = input.shape.iter().map(|size| u64::try_from(*size));
    sizes.collect::<Result<_, _>>().map_err(|_| {
        let place = format!("`shape` of input `{}`", input.name);
        RequestError::Number {
            place,
            found: format!("{:?}", input.shape),
            expected: "a list of sizes",
        }
    })
}

fn input_bytes(
    input: &InferInputTensor,
    raw: Option<&[u8]>,
    spec: &TensorSpec,
) -> Result<Vec<u8>, RequestError> {
    let name = || spec.name.clone();
    match (raw, &input.contents) {
        (Some(_), Some(_)) => Err(RequestError::RawAndContents { name: name() }),
        (None, None) => Err(RequestError::NoContents { name: name() }),
        (Some(bytes), None) if bytes.len() == spec.bytes() => {
            check_truths(spec, bytes)?;
            Ok(bytes.to_vec())
        }
        (Some(bytes), None) => Err(RequestError::RawSize {
            name: name(),
            found: bytes.len(),
            datatype: spec.datatype,
            shape: spec.shape.clone(),
            expected: spec.bytes(),
        }),
        (None, Some(contents)) => {
            let bytes = bytes_of_contents(contents, spec);
            bytes.map_err(|source| RequestError::Element {
                name: name(),
                source,
            })
        }
    }
}

/// The bytes of the list that the protocol has for a tensor's type.
fn bytes_of_contents(
    contents: &InferTensorContents,
    spec: &TensorSpec,
) -> Result<Vec<u8>, ElementError> {
    let datatype = spec.datatype;
    let integers = &contents.int_contents;
    let unsigned = &contents.uint_contents;
    match datatype {
        Datatype::Bool => converted(&contents.bool_contents, spec, |v| Some([u8::from(*v)])),
        Datatype::Uint8 => converted(unsigned, spec, |v| {
            Some(u8::try_from(*v).ok()?.to_le_bytes())
        }),
        Datatype::Int8 => converted(integers, spec, |v| {
            Some(i8::try_from(*v).ok()?.to_le_bytes())
        }),
        Datatype::Int16 => converted(integers, spec, |v| {
            Some(i16::try_from(*v).ok()?.to_le_bytes())
        }),
        Datatype::Int32 => converted(integers, spec, |v| Some(v.to_le_bytes())),
        Datatype::Int64 => converted(&contents.int64_contents, spec, |v| Some(v.to_le_bytes())),
        Datatype::Fp32 => converted(&contents.fp32_contents, spec, |v| Some(v.to_le_bytes())),
        Datatype::Fp64 => converted(&contents.fp64_contents, spec, |v| Some(v.to_le_bytes())),
        Datatype::Fp16 | Datatype::Bf16 => Err(ElementError::OnlyBytes { datatype }),
    }
}

/// Every element as its bytes; `to_bytes` has none for one that the type does not hold.
fn converted<T: std::fmt::Display, const N: usize>(
    list: &[T],
    spec: &TensorSpec,
    to_bytes: impl Fn(&T) -> Option<[u8; N]>,
) -> Result<Vec<u8>, ElementError> {
    let expected = spec.elements();
    if list.len() > expected {
        return Err(ElementError::TooMany { expected });
    }
    if list.len() < expected {
        let found = list.len();
        return Err(ElementError::TooFew { found, expected });
    }

    let mut bytes = Vec::with_capacity(spec.bytes());
    for (index, element) in list.iter().enumerate() {
        let element_bytes = to_bytes(element).ok_or_else(|| ElementError::Range {
            index,
            text: element.to_string(),
            datatype: spec.datatype,
        })?;
        bytes.extend_from_slice(&element_bytes);
    }
    Ok(bytes)
}

#[cfg(test)]
#[path = "message_request_tests.rs"]
mod tests;
