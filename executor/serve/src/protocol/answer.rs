//! The answer to a request to infer: JSON, and after it the bytes of the outputs that were asked for as bytes.

use std::fmt::Write;

use super::elements::write_json;
use super::request::{OutputForm, WantedOutput, of_batch};
use crate::shared_memory::RegionError;
use crate::tensor::TensorSpec;

/// The only version that a model has.
pub(crate) const VERSION: &str = "1";

/// A body, and how much of it is JSON where it is not all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnswerBody {
    pub(crate) bytes: Vec<u8>,
    pub(crate) json_bytes: Option<usize>,
}

/// An output that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error(
        "element {index} of output `{name}` is a NaN or an infinity, which JSON does not have: ask for it with `binary_data`"
    )]
    NotFinite { name: String, index: usize },
    #[error("output `{name}`: {source}")]
    Region { name: String, source: RegionError },
}

/// What an answer is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) model: &'a str,
    pub(crate) id: Option<&'a str>,
    /// What was asked for.
    pub(crate) wanted: &'a [WantedOutput],
    /// The model's outputs.
    pub(crate) outputs: &'a [TensorSpec],
    /// The bytes of each of them.
    pub(crate) tensors: &'a [Vec<u8>],
    /// Iterations that they are of.
    pub(crate) rows: usize,
}

impl Answer<'_> {
    /// Writes the answer, and outputs into shared memory.
    pub(crate) fn body(&self) -> Result<AnswerBody, AnswerError> {
        let mut json = String::with_capacity(256);
        json.push_str("{\"model_name\":");
        push_string(&mut json, self.model);
        json.push_str(",\"model_version\":\"");
        json.push_str(VERSION);
        json.push('"');
        if let Some(id) = self.id {
            json.push_str(",\"id\":");
            push_string(&mut json, id);
        }
        json.push_str(",\"outputs\":[");
        for (place, wanted) in self.wanted.iter().enumerate() {
            if place > 0 {
                json.push(',');
            }
            self.push_output(&mut json, wanted)?;
        }
        json.push_str("]}");

        let mut bytes = json.into_bytes();
        let json_bytes = bytes.len();
        let is_binary = |wanted: &&WantedOutput| wanted.form == OutputForm::Binary;
        let binary = self.wanted.iter().filter(is_binary);
        let binary_count = binary.clone().count();
        for wanted in binary {
            bytes.extend_from_slice(&self.tensors[wanted.index]);
        }
        Ok(AnswerBody {
            bytes,
            json_bytes: (binary_count > 0).then_some(json_bytes),
        })
    }

    fn push_output(&self, json: &mut String, wanted: &WantedOutput) -> Result<(), AnswerError> {
        let TensorSpec {
            name,
            datatype,
            shape,
        } = &*of_batch(&self.outputs[wanted.index], self.rows);
        let tensor = &self.tensors[wanted.index];
        json.push_str("{\"name\":");
        push_string(json, name);
        json.push_str(",\"datatype\":\"");
        json.push_str(datatype.name());
        json.push_str("\",\"shape\":[");
        for (dimension, size) in shape.iter().enumerate() {
            let comma = if dimension > 0 { "," } else { "" };
            let _ = write!(json, "{comma}{size}");
        }
        json.push(']');

        let size = tensor.len();
        match &wanted.form {
            OutputForm::Binary => {
                let _ = write!(json, ",\"parameters\":{{\"binary_data_size\":{size}}}");
            }
            OutputForm::Region(part) => {
                part.write(tensor).map_err(|source| AnswerError::Region {
                    name: name.clone(),
                    source,
                })?;
                json.push_str(",\"parameters\":{\"shared_memory_region\":");
                push_string(json, part.name());
                let _ = write!(json, ",\"shared_memory_byte_size\":{size}}}");
            }
            OutputForm::List => {
                json.push_str(",\"data\":");
                let written = write_json(tensor, *datatype, json);
                written.map_err(|index| AnswerError::NotFinite {
                    name: name.clone(),
                    index,
                })?;
            }
        }
        json.push('}');
        Ok(())
    }
}

/// A string in quotes, escaped.
pub(crate) fn push_string(json: &mut String, text: &str) {
    json.push('"');
    for character in text.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            control if control < ' ' => {
                let _ = write!(json, "\\u{:04x}", u32::from(control));
            }
            other => json.push(other),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Datatype;

    fn outputs() -> Vec<TensorSpec> {
        let spec = |name: &str, datatype| TensorSpec {
            name: name.to_owned(),
            datatype,
            shape: vec![1, 2],
        };
        vec![spec("sum", Datatype::Int16), spec("re\"st", Datatype::Fp32)]
    }

    fn body(wanted: &[(usize, bool)], floats: [f32; 2]) -> Result<AnswerBody, AnswerError> {
        let wanted: Vec<WantedOutput> = wanted
            .iter()
            .map(|&(index, is_binary)| WantedOutput {
                index,
                form: OutputForm::of(is_binary),
            })
            .collect();
        let floats = floats.iter().flat_map(|float| float.to_le_bytes());
        let answer = Answer {
            model: "m",
            id: Some("a\n\"b"),
            wanted: &wanted,
            outputs: &outputs(),
            tensors: &[vec![1, 0, 255, 255], floats.collect()],
            rows: 1,
        };
        answer.body()
    }

    #[test]
    fn lists_stand_in_the_json_and_bytes_after_it() {
        let lists = body(&[(0, false), (1, false)], [0.5, -2.0]).expect("finite");
        assert_eq!(lists.json_bytes, None);
        let value: serde_json::Value = serde_json::from_slice(&lists.bytes).expect("JSON");
        let expected = serde_json::json!({
            "model_name": "m", "model_version": "1", "id": "a\n\"b",
            "outputs": [
                {"name": "sum", "datatype": "INT16", "shape": [1, 2], "data": [1, -1]},
                {"name": "re\"st", "datatype": "FP32", "shape": [1, 2], "data": [0.5, -2.0]},
            ],
        });
        assert_eq!(value, expected);

        let mixed = body(&[(1, true), (0, false)], [f32::NAN, 1.0]).expect("bytes hold all");
        let json_bytes = mixed.json_bytes.expect("not all is JSON");
        let value: serde_json::Value =
            serde_json::from_slice(&mixed.bytes[..json_bytes]).expect("JSON");
        assert_eq!(value["outputs"][0]["parameters"]["binary_data_size"], 8);
        assert_eq!(value["outputs"][1]["data"], serde_json::json!([1, -1]));
        assert_eq!(mixed.bytes[json_bytes..][4..], 1.0_f32.to_le_bytes());
    }

    #[test]
    fn what_json_does_not_have_is_an_error_that_says_so() {
        let error = body(&[(1, false)], [1.0, f32::NAN]).expect_err("a NaN");
        assert_eq!(
            error.to_string(),
            "element 1 of output `re\"st` is a NaN or an infinity, which JSON does not have: ask for it with `binary_data`"
        );
    }
}
