//! Parameters of requests and of their tensors: sequences, timeouts, parts of shared memory.

use std::time::Duration;

use super::json::Json;
use super::request::check_truths;
use super::request_error::RequestError;
use crate::sequence::{MAX_ID_BYTES, SequenceId, SequenceStep};
use crate::shared_memory::{RegionPart, Regions};
use crate::tensor::TensorSpec;

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

pub(super) fn wrong_kind(place: String, found: &Json<'_>, expected: &'static str) -> RequestError {
    RequestError::Kind {
        place,
        found: found.kind(),
        expected,
    }
}

/// The parameters `sequence_id`, `sequence_start` and `sequence_end`; an id of 0, or an empty one, is none.
pub(super) fn step_of(parameters: Option<&Json<'_>>) -> Result<Option<SequenceStep>, RequestError> {
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
pub(super) fn timeout_of(parameters: Option<&Json<'_>>) -> Result<Option<Duration>, RequestError> {
    let Some(timeout) = parameters.and_then(|parameters| parameters.get("timeout")) else {
        return Ok(None);
    };
    let micros = unsigned("the parameter `timeout`", timeout, "whole microseconds")?;
    Ok((micros > 0).then(|| Duration::from_micros(micros)))
}

pub(super) fn unsigned(
    place: &str,
    value: &Json<'_>,
    expected: &'static str,
) -> Result<u64, RequestError> {
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

/// What is in a member of an object that is an object too, each with its text if it is one; nothing if it is not there.
pub(crate) fn texts_in_member(
    json: &Json<'_>,
    name: &str,
) -> Result<Vec<(String, Option<String>)>, RequestError> {
    if !matches!(json, Json::Object(_)) {
        return Err(wrong_kind("the body".to_owned(), json, "an object"));
    }
    match json.get(name) {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::Object(members)) => {
            let texts = members.iter().map(|(name, value)| {
                let text = match value {
                    Json::String(text) => Some(text.to_string()),
                    _ => None,
                };
                (name.to_string(), text)
            });
            Ok(texts.collect())
        }
        Some(other) => Err(wrong_kind(format!("`{name}`"), other, "an object")),
    }
}

pub(super) fn truth(place: &str, value: &Json<'_>) -> Result<bool, RequestError> {
    match value {
        Json::Bool(truth) => Ok(*truth),
        other => Err(wrong_kind(place.to_owned(), other, "true or false")),
    }
}

/// The parameters `shared_memory_region`, `shared_memory_byte_size` and `shared_memory_offset`.
pub(super) fn named_part<'j>(
    parameters: Option<&'j Json<'_>>,
) -> Result<Option<NamedPart<'j>>, RequestError> {
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
