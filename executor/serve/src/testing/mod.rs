//! The server's parsers, for those that try them with any bytes.

mod conversations;
#[cfg(feature = "grpc")]
mod http2;

#[cfg(feature = "grpc")]
use bytes::Bytes;

pub use self::conversations::{Conversations, changed, check_answers};
#[cfg(feature = "grpc")]
pub use self::http2::{check_frames, grpc_call};
use crate::protocol::answer::Answer;
use crate::protocol::request::{InferRequest, OutputForm, Tensors, WantedOutput};
use crate::shared_memory::Regions;
use crate::tensor::{Datatype, TensorSpec};

/// The messages of gRPC, for clients.
#[cfg(feature = "grpc")]
pub mod messages {
    pub use crate::protocol::messages::*;
}

/// The messages of traces, for collectors.
pub mod traces {
    pub use crate::otlp::messages::*;
}

/// A tensor of each type; those of one byte come last, so that others begin at odd bytes too.
fn specs() -> Vec<TensorSpec> {
    let datatypes = [
        Datatype::Fp32,
        Datatype::Fp64,
        Datatype::Fp16,
        Datatype::Bf16,
        Datatype::Int64,
        Datatype::Int32,
        Datatype::Int16,
        Datatype::Int8,
        Datatype::Uint8,
        Datatype::Bool,
    ];
    let spec = |datatype: Datatype| TensorSpec {
        name: datatype.name().to_lowercase(),
        datatype,
        shape: vec![1, 2],
    };
    datatypes.map(spec).to_vec()
}

/// Those whose bit is set.
fn chosen_specs(bits: u16) -> Vec<TensorSpec> {
    let all_specs = specs().into_iter().enumerate();
    let chosen = all_specs.filter(|(index, _)| bits >> index & 1 == 1);
    chosen.map(|(_, spec)| spec).collect()
}

/// Reads a body as a request to a model that takes and gives two elements of some types: those whose bit is set in `inputs`.
///
/// What is read has the bytes that its types need. Written as an answer, which is the same text but for one name, it is
/// read again as it was, as lists and as bytes.
pub fn examine_request(inputs: u16, json_bytes: Option<usize>, body: &[u8]) {
    let specs = chosen_specs(inputs);
    let tensors = Tensors {
        inputs: &specs,
        outputs: &specs,
        regions: &Regions::new(false),
        max_rows: 1,
    };
    let Ok(request) = InferRequest::parse(body, json_bytes, tensors) else {
        return;
    };

    let json = &body[..json_bytes.unwrap_or(body.len())];
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(json).is_ok();
    assert!(is_json, "what is no JSON is taken");
    assert_eq!(request.inputs.len(), specs.len());
    for (bytes, spec) in request.inputs.iter().zip(&specs) {
        assert_eq!(bytes.len(), spec.bytes(), "{}", spec.name);
    }
    for is_binary in [false, true] {
        check_round_trip(&request, tensors, is_binary);
    }
}

/// Reads bytes as a gRPC request to such a model. What is read has the bytes that its types need.
#[cfg(feature = "grpc")]
pub fn examine_message(inputs: u16, bytes: &[u8]) {
    use crate::protocol::message_request::read_message;

    let specs = chosen_specs(inputs);
    let tensors = Tensors {
        inputs: &specs,
        outputs: &specs,
        regions: &Regions::new(false),
        max_rows: 1,
    };
    let message = crate::grpc::read_whole(Bytes::copy_from_slice(bytes));
    let request = message.ok().and_then(|m| read_message(m, tensors).ok());
    let inputs = request.map_or(Vec::new(), |request| request.inputs);
    for (bytes, spec) in inputs.iter().zip(&specs) {
        assert_eq!(bytes.len(), spec.bytes(), "{}", spec.name);
    }
}

/// An answer with a request's inputs is that request.
fn check_round_trip(request: &InferRequest, tensors: Tensors<'_>, is_binary: bool) {
    let every_output = 0..tensors.outputs.len();
    let wanted: Vec<WantedOutput> = every_output
        .map(|index| WantedOutput {
            index,
            form: match is_binary {
                true => OutputForm::Binary,
                false => OutputForm::List,
            },
        })
        .collect();
    let answer = Answer {
        model: "m",
        id: request.id.as_deref(),
        wanted: &wanted,
        outputs: tensors.outputs,
        tensors: &request.inputs,
        rows: request.rows,
    };
    // Lists hold no NaN.
    let Ok(body) = answer.body() else {
        assert!(!is_binary, "bytes hold everything");
        return;
    };

    let json_bytes = body.json_bytes.unwrap_or(body.bytes.len());
    let (json, binary) = body.bytes.split_at(json_bytes);
    let json = std::str::from_utf8(json).expect("our own");
    // Quotes in strings are escaped: it is the name.
    let json = json.replacen(",\"outputs\":[", ",\"inputs\":[", 1);
    let again = [json.as_bytes(), binary].concat();
    let again = InferRequest::parse(&again, Some(json.len()), tensors).expect("our own");
    assert_eq!(again.inputs, request.inputs, "binary: {is_binary}");
    assert_eq!(again.id, request.id);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_examined() {
        let bool_alone = 1 << 9;
        let list = br#"{"inputs": [{"name": "bool", "datatype": "BOOL", "shape": [1, 2], "data": [true, 0]}]}"#;
        examine_request(bool_alone, None, list);
        examine_request(bool_alone, Some(3), list);
        #[cfg(feature = "grpc")]
        examine_message(bool_alone, list);
        let json =
            br#"{"id": "\u0007\"", "inputs": [{"name": "fp32", "datatype": "FP32", "shape": [1, 2],
            "parameters": {"binary_data_size": 8}}]}"#;
        for bits in [f32::NAN, -0.0, f32::MIN_POSITIVE / 3.0] {
            let body = [json.as_slice(), &bits.to_le_bytes(), &bits.to_le_bytes()].concat();
            examine_request(1, Some(json.len()), &body);
        }
    }
}
