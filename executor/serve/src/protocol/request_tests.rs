//! Bodies in, bytes or refusals out.

use super::*;
use crate::sequence::SequenceId;

fn specs() -> (Vec<TensorSpec>, Vec<TensorSpec>) {
    let spec = |name: &str, datatype| TensorSpec {
        name: name.to_owned(),
        datatype,
        shape: vec![1, 2],
    };
    let inputs = vec![spec("a", Datatype::Int32), spec("b", Datatype::Bool)];
    let outputs = vec![spec("sum", Datatype::Int32), spec("rest", Datatype::Fp32)];
    (inputs, outputs)
}

fn parsed(json: &str, binary: &[u8]) -> Result<InferRequest, RequestError> {
    let (inputs, outputs) = specs();
    let body = [json.as_bytes(), binary].concat();
    let tensors = Tensors {
        inputs: &inputs,
        outputs: &outputs,
        regions: &Regions::new(false),
        max_rows: 1,
    };
    InferRequest::parse(&body, Some(json.len()), tensors)
}

const A: &str = r#"{"name": "a", "datatype": "INT32", "shape": [1, 2], "data": [[5, -6]]}"#;
const B: &str = r#"{"name": "b", "datatype": "BOOL", "shape": [1, 2], "data": [true, false]}"#;
const A_BINARY: &str = r#"{"name": "a", "datatype": "INT32", "shape": [1, 2],
    "parameters": {"binary_data_size": 8}}"#;
const B_BINARY: &str = r#"{"name": "b", "datatype": "BOOL", "shape": [1, 2],
    "parameters": {"binary_data_size": 2}}"#;

fn with_inputs(inputs: &[&str]) -> String {
    format!(r#"{{"inputs": [{}]}}"#, inputs.join(","))
}

#[test]
fn lists_and_bytes_may_be_mixed_in_any_order() {
    let expected = vec![
        [5_i32.to_le_bytes(), (-6_i32).to_le_bytes()].concat(),
        vec![1, 0],
    ];
    let lists = parsed(&with_inputs(&[A, B]), &[]).expect("good");
    assert_eq!(lists.inputs, expected);
    assert_eq!((lists.id.as_deref(), lists.timeout), (None, None));

    let mixed = parsed(&with_inputs(&[B_BINARY, A]), &[1, 0]).expect("good");
    assert_eq!(mixed.inputs, expected);
    // The bytes stand in the order of the request.
    let bytes = [&[1, 0], expected[0].as_slice()].concat();
    let binary = parsed(&with_inputs(&[B_BINARY, A_BINARY]), &bytes).expect("good");
    assert_eq!(binary.inputs, expected);
}

#[test]
fn outputs_are_those_asked_for() {
    let request = |rest: &str| {
        let body = format!(r#"{{"inputs": [{A}, {B}] {rest}}}"#);
        let request = parsed(&body, &[]).expect("good");
        let outputs = request.outputs.iter();
        outputs
            .map(|o| (o.index, o.form == OutputForm::Binary))
            .collect::<Vec<_>>()
    };
    assert_eq!(request(""), [(0, false), (1, false)]);
    assert_eq!(request(r#", "outputs": []"#), [(0, false), (1, false)]);
    let all_binary = r#", "parameters": {"binary_data_output": true, "unknown": {"x": []}}"#;
    assert_eq!(request(all_binary), [(0, true), (1, true)]);
    let one =
        r#", "outputs": [{"name": "rest", "parameters": {"binary_data": true}}, {"name": "sum"}]"#;
    assert_eq!(request(one), [(1, true), (0, false)]);
}

#[test]
fn ids_and_timeouts_are_read() {
    let body =
        format!(r#"{{"id": "é7", "parameters": {{"timeout": 1500}}, "inputs": [{A}, {B}]}}"#);
    let request = parsed(&body, &[]).expect("good");
    assert_eq!(request.id.as_deref(), Some("é7"));
    assert_eq!(request.timeout, Some(Duration::from_micros(1500)));
}

/// Refuses a request without bytes.
#[track_caller]
fn assert_refused(json: &str, expected: &str) {
    assert_refused_with(json, &[], expected);
}

/// Refuses a request whose JSON is followed by these bytes.
#[track_caller]
fn assert_refused_with(json: &str, binary: &[u8], expected: &str) {
    let error = parsed(json, binary).expect_err(json);
    assert_eq!(error.to_string(), expected, "{json}");
}

/// A request whose input `a` says something else.
fn a_with(from: &str, to: &str) -> String {
    with_inputs(&[&A.replace(from, to), B])
}

/// A good request with something more in it.
fn with(rest: &str) -> String {
    format!(r#"{{"inputs": [{A}, {B}], {rest}}}"#)
}

/// A request whose input `a` comes as so many bytes.
fn binary(size: &str) -> String {
    with_inputs(&[&A_BINARY.replace('8', size), B])
}

#[test]
fn a_request_is_an_object_with_a_list_of_named_inputs() {
    assert_refused(
        "[]",
        "the request is a list; it must be an object with `inputs`",
    );
    assert_refused("{", "byte 1 of the JSON: a name in quotes is expected");
    assert_refused("{}", "`inputs` is missing");

    assert_refused(
        r#"{"inputs": 3}"#,
        "`inputs` is a number; it must be a list",
    );
    assert_refused(
        r#"{"inputs": [3]}"#,
        "`name` of item 0 of `inputs` is missing",
    );
    assert_refused(&with(r#""id": 7"#), "`id` is a number; it must be a string");
}

#[test]
fn every_input_of_the_model_is_given_once() {
    assert_refused(
        &with_inputs(&[A]),
        "input `b` is missing; the model takes `a`, `b`",
    );
    assert_refused(&with_inputs(&[A, A, B]), "input `a` is given twice");
    assert_refused(
        &a_with("\"a\"", "\"c\""),
        "the model has no input `c`; it has `a`, `b`",
    );
}

#[test]
fn an_input_has_the_datatype_and_the_shape_of_the_model() {
    assert_refused(
        &a_with("INT32", "FP32"),
        "input `a` has the datatype FP32; the model takes INT32",
    );
    assert_refused(
        &a_with("INT32", "BYTES"),
        "input `a` has the datatype BYTES; the model takes INT32: zbmd has no strings; send the numbers that the model takes",
    );

    assert_refused(
        &a_with("[1, 2]", "[2, 1]"),
        "input `a` has the shape [2, 1]; the model takes [1, 2]",
    );
    assert_refused(
        &a_with("[1, 2]", "[1, -2]"),
        "`shape` of input `a` is -2; it must be a list of sizes",
    );
}

#[test]
fn a_list_has_as_many_elements_as_the_shape() {
    assert_refused(
        &a_with("[[5, -6]]", "[5]"),
        "input `a`: there are 1 elements; the shape has 2",
    );
    assert_refused(
        &a_with("[[5, -6]]", "5"),
        "`data` of input `a` is a number; it must be a list",
    );
    assert_refused(
        &a_with(", \"data\": [[5, -6]]", ""),
        "input `a` has neither `data` nor one of the parameters `binary_data_size` and `shared_memory_region`",
    );
}

#[test]
fn a_body_has_as_many_bytes_as_its_inputs() {
    assert_refused_with(
        &binary("8"),
        &[0; 7],
        "the binary data of input `a` ends at byte 190 of the body, which has 189 bytes",
    );
    assert_refused_with(
        &binary("8"),
        &[0; 9],
        "the body has 1 bytes after the binary data of the last input",
    );
    assert_refused_with(
        &with_inputs(&[A, B_BINARY]),
        &[0, 2],
        "element 1 of input `b` is 2; a BOOL is 0 or 1",
    );
}

#[test]
fn the_size_of_an_inputs_bytes_is_that_of_its_shape() {
    assert_refused_with(
        &binary("4"),
        &[0; 4],
        "input `a` says binary_data_size 4; INT32 of shape [1, 2] has 8 bytes",
    );
    assert_refused_with(
        &binary("18446744073709551615"),
        &[0; 8],
        "input `a` says binary_data_size 18446744073709551615; INT32 of shape [1, 2] has 8 bytes",
    );
    assert_refused_with(
        &binary("-8"),
        &[0; 8],
        "the parameter `binary_data_size` is -8; it must be a number of bytes",
    );
}

#[test]
fn outputs_are_the_models_and_come_in_the_body() {
    assert_refused(
        &with(r#""outputs": [{"name": "product"}]"#),
        "the model has no output `product`; it has `sum`, `rest`",
    );
    assert_refused(
        &with(r#""outputs": [{"name": "sum", "parameters": {"classification": 3}}]"#),
        "`classification` of output `sum` is not supported: its answer would be BYTES; ask for the numbers",
    );
    assert_refused(
        &with(r#""outputs": [{"name": "sum", "parameters": {"shared_memory_region": "x"}}]"#),
        "the parameter `shared_memory_byte_size` is missing",
    );
}

#[test]
fn tensors_may_be_in_shared_memory_where_it_is_allowed() {
    let in_region = r#"{"name": "a", "datatype": "INT32", "shape": [1, 2],
        "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 4}}"#;
    assert_refused(
        &with_inputs(&[in_region, B]),
        "input `a`: shared memory is not allowed: start the server with --shared-memory, or send tensors in the body",
    );
    let two = in_region.replace(r#""shape""#, r#""data": [1, 2], "shape""#);
    assert_refused(
        &with_inputs(&[&two, B]),
        "input `a` has more than one of `data` and the parameters `binary_data_size` and `shared_memory_region`; leave all but one out",
    );
    let negative = in_region.replace(": 4}", ": -4}");
    assert_refused(
        &with_inputs(&[&negative, B]),
        "the parameter `shared_memory_offset` is -4; it must be a number of bytes",
    );
}

#[test]
fn parameters_that_cannot_be_kept_are_refused() {
    assert_refused(
        &with(r#""parameters": {"timeout": 1.5}"#),
        "the parameter `timeout` is 1.5; it must be whole microseconds",
    );
}

#[test]
fn sequences_have_numbers_or_names() {
    let step = |parameters: &str| {
        let body = with(&format!(r#""parameters": {{{parameters}}}"#));
        parsed(&body, &[]).map(|request| request.step)
    };
    let expected = |id, is_start, is_end| {
        Ok(Some(SequenceStep {
            id,
            is_start,
            is_end,
        }))
    };

    let largest = SequenceId::Number(u64::MAX);
    assert_eq!(
        step(
            r#""sequence_id": 18446744073709551615, "sequence_start": true, "sequence_end": false"#
        ),
        expected(largest, true, false)
    );
    let text = SequenceId::Text("5".to_owned());
    assert_eq!(
        step(r#""sequence_id": "5", "sequence_end": true"#),
        expected(text, false, true)
    );

    for none in [
        r#""sequence_id": 0"#,
        r#""sequence_id": """#,
        r#""sequence_start": true"#,
    ] {
        assert_eq!(step(none), Ok(None), "{none}");
    }

    let long = "x".repeat(129);
    for (wrong, expected) in [
        (
            r#""sequence_id": -1"#.to_owned(),
            "is -1; it must be a string or a whole number",
        ),
        (
            r#""sequence_id": [1]"#.to_owned(),
            "is a list; it must be a string or a whole number",
        ),
        (
            format!(r#""sequence_id": "{long}""#),
            "is a string of 129 bytes; it must be at most 128 bytes long",
        ),
    ] {
        let refusal = step(&wrong).expect_err("it is refused").to_string();
        assert_eq!(refusal, format!("the parameter `sequence_id` {expected}"));
    }
    assert_refused(
        &with(r#""parameters": {"sequence_id": 1, "sequence_start": 1}"#),
        "the parameter `sequence_start` is a number; it must be true or false",
    );
}

#[test]
fn the_header_is_not_longer_than_the_body() {
    let (inputs, outputs) = specs();
    let tensors = Tensors {
        inputs: &inputs,
        outputs: &outputs,
        regions: &Regions::new(false),
        max_rows: 1,
    };
    let error = InferRequest::parse(b"{}", Some(3), tensors).expect_err("too long");
    let expected = RequestError::HeaderLength { header: 3, body: 2 };
    assert_eq!(error, expected);
}
