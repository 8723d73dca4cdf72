//! Messages that are requests, and what is said of those that are not.

use bytes::Bytes;

use super::*;
use crate::protocol::messages::{InferParameter, InferRequestedOutputTensor};
use crate::sequence::SequenceId;
use crate::shared_memory::Regions;

fn specs() -> Vec<TensorSpec> {
    let spec = |name: &str, datatype| TensorSpec {
        name: name.to_owned(),
        datatype,
        shape: vec![1, 2],
    };
    vec![spec("a", Datatype::Int16), spec("b", Datatype::Bool)]
}

fn read(message: ModelInferRequest) -> Result<InferRequest, String> {
    let specs = specs();
    let tensors = Tensors {
        inputs: &specs,
        outputs: &specs,
        regions: &Regions::new(false),
        max_rows: 1,
    };
    read_message(message, tensors).map_err(|error| error.to_string())
}

fn input(name: &str, datatype: &str) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![1, 2],
        ..Default::default()
    }
}

/// With bytes, and inputs in another order than the model's.
fn raw() -> ModelInferRequest {
    ModelInferRequest {
        id: "7".to_owned(),
        inputs: vec![input("b", "BOOL"), input("a", "INT16")],
        raw_input_contents: vec![
            Bytes::from_static(&[1, 0]),
            Bytes::from_static(&[1, 2, 3, 4]),
        ],
        ..Default::default()
    }
}

/// With numbers.
fn lists() -> ModelInferRequest {
    let mut message = raw();
    message.raw_input_contents.clear();
    message.inputs[0].contents = Some(InferTensorContents {
        bool_contents: vec![true, false],
        ..Default::default()
    });
    message.inputs[1].contents = Some(InferTensorContents {
        int_contents: vec![0x201, 0x403],
        ..Default::default()
    });
    message
}

fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter {
        choice: Some(choice),
    }
}

#[test]
fn bytes_and_numbers_are_the_same_request() {
    let request = read(raw()).expect("a request");
    assert_eq!(request.inputs, [vec![1, 2, 3, 4], vec![1, 0]]);
    assert_eq!(request.id.as_deref(), Some("7"));
    let outputs: Vec<_> = request.outputs.iter().map(|output| output.index).collect();
    assert_eq!(outputs, [0, 1]);
    assert_eq!(read(lists()), Ok(request));
}

#[test]
fn every_datatype_but_halves_has_a_list() {
    let contents = InferTensorContents {
        bool_contents: vec![true; 2],
        int_contents: vec![-1; 2],
        int64_contents: vec![-2; 2],
        uint_contents: vec![3; 2],
        uint64_contents: vec![],
        fp32_contents: vec![0.5; 2],
        fp64_contents: vec![0.25; 2],
    };
    for (datatype, expected) in [
        (Datatype::Bool, vec![1]),
        (Datatype::Uint8, vec![3]),
        (Datatype::Int8, vec![255]),
        (Datatype::Int16, (-1_i16).to_le_bytes().to_vec()),
        (Datatype::Int32, (-1_i32).to_le_bytes().to_vec()),
        (Datatype::Int64, (-2_i64).to_le_bytes().to_vec()),
        (Datatype::Fp32, 0.5_f32.to_le_bytes().to_vec()),
        (Datatype::Fp64, 0.25_f64.to_le_bytes().to_vec()),
    ] {
        let spec = TensorSpec {
            name: "x".to_owned(),
            datatype,
            shape: vec![2],
        };
        assert_eq!(bytes_of_contents(&contents, &spec), Ok(expected.repeat(2)));
    }
}

#[test]
fn parameters_are_those_of_json() {
    let with = |name: &str, choice| {
        let mut message = raw();
        let value = parameter(choice);
        message.parameters.insert(name.to_owned(), value);
        read(message)
    };
    let timeout = |choice| with("timeout", choice).map(|request| request.timeout);
    let ten_us = Some(Duration::from_micros(10));
    assert_eq!(timeout(ParameterChoice::Int64(10)), Ok(ten_us));
    assert_eq!(timeout(ParameterChoice::Uint64(10)), Ok(ten_us));
    assert_eq!(timeout(ParameterChoice::Int64(0)), Ok(None));
    assert_eq!(
        timeout(ParameterChoice::Int64(-1)),
        Err("the parameter `timeout` is -1; it must be whole microseconds".to_owned())
    );
    assert_eq!(
        timeout(ParameterChoice::Bool(true)),
        Err("the parameter `timeout` is a truth value; it must be whole microseconds".to_owned())
    );
    with("priority", ParameterChoice::Uint64(1)).expect("not looked at");
}

#[test]
fn sequences_have_numbers_or_names() {
    let step = |id: ParameterChoice, start: ParameterChoice| {
        let message = ModelInferRequest {
            parameters: [("sequence_id", id), ("sequence_start", start)]
                .map(|(name, choice)| (name.to_owned(), parameter(choice)))
                .into(),
            ..raw()
        };
        read(message).map(|request| request.step)
    };
    let started = |id| {
        Ok(Some(SequenceStep {
            id,
            is_start: true,
            is_end: false,
        }))
    };
    let yes = || ParameterChoice::Bool(true);

    let number = SequenceId::Number(5);
    assert_eq!(
        step(ParameterChoice::Int64(5), yes()),
        started(number.clone())
    );
    assert_eq!(step(ParameterChoice::Uint64(5), yes()), started(number));
    let text = SequenceId::Text("5".to_owned());
    assert_eq!(
        step(ParameterChoice::String("5".to_owned()), yes()),
        started(text)
    );

    for none in [
        ParameterChoice::Int64(0),
        ParameterChoice::String(String::new()),
    ] {
        assert_eq!(step(none, yes()), Ok(None));
    }

    assert_eq!(
        step(ParameterChoice::Int64(-5), yes()).expect_err("negative"),
        "the parameter `sequence_id` is -5; it must be a string or a whole number"
    );
    assert_eq!(
        step(ParameterChoice::Int64(5), ParameterChoice::Int64(1)).expect_err("a number"),
        "the parameter `sequence_start` is a whole number; it must be true or false"
    );
}

#[test]
fn what_is_wrong_is_named() {
    type Change = fn(&mut ModelInferRequest);
    let cases: [(Change, &str); 12] = [
        (
            |m| m.inputs[1].name = "c".into(),
            "the model has no input `c`; it has `a`, `b`",
        ),
        (
            |m| m.inputs[1] = m.inputs[0].clone(),
            "input `b` is given twice",
        ),
        (
            |m| m.inputs[1].datatype = "BYTES".into(),
            "input `a` has the datatype BYTES; the model takes INT16: zbmd has no strings; send the numbers that the model takes",
        ),
        (
            |m| m.inputs[1].shape = vec![2],
            "input `a` has the shape [2]; the model takes [1, 2]",
        ),
        (
            |m| m.inputs[1].shape = vec![1, -2],
            "`shape` of input `a` is [1, -2]; it must be a list of sizes",
        ),
        (
            |m| m.raw_input_contents[1] = Bytes::from_static(&[1, 2, 3]),
            "input `a` has 3 bytes in `raw_input_contents`; INT16 of shape [1, 2] has 4",
        ),
        (
            |m| m.raw_input_contents[0] = Bytes::from_static(&[1, 2]),
            "element 1 of input `b` is 2; a BOOL is 0 or 1",
        ),
        (
            |m| m.raw_input_contents.truncate(1),
            "`raw_input_contents` has 1 tensors and `inputs` 2: with bytes for one input there must be bytes for each, in the same order",
        ),
        (
            |m| m.inputs[0].contents = Some(InferTensorContents::default()),
            "input `b` has both `contents` and bytes in `raw_input_contents`; leave one of them out",
        ),
        (
            |m| m.raw_input_contents.clear(),
            "input `b` has neither `contents` nor bytes in `raw_input_contents`",
        ),
        (
            |m| {
                m.inputs.truncate(1);
                m.raw_input_contents.truncate(1);
            },
            "input `a` is missing; the model takes `a`, `b`",
        ),
        (
            |m| {
                let region = parameter(ParameterChoice::String("r".into()));
                m.outputs = vec![InferRequestedOutputTensor {
                    name: "b".into(),
                    parameters: [("shared_memory_region".into(), region)].into(),
                }];
            },
            "the parameter `shared_memory_byte_size` is missing",
        ),
    ];
    for (change, expected) in cases {
        let mut message = raw();
        change(&mut message);
        assert_eq!(read(message), Err(expected.to_owned()));
    }

    let numbers: [(Change, &str); 3] = [
        (
            |m| m.inputs[1].contents.as_mut().expect("numbers").int_contents[1] = 40_000,
            "input `a`: element 1 is 40000, which INT16 does not hold",
        ),
        (
            |m| {
                let numbers = m.inputs[1].contents.as_mut().expect("numbers");
                numbers.int_contents.push(0);
            },
            "input `a`: there are more than 2 elements",
        ),
        (
            |m| m.inputs[1].contents = Some(InferTensorContents::default()),
            "input `a`: there are 0 elements; the shape has 2",
        ),
    ];
    for (change, expected) in numbers {
        let mut message = lists();
        change(&mut message);
        assert_eq!(read(message), Err(expected.to_owned()));
    }
}
