//! What strangers send to `zbmd-serve`: any bytes of a connection, and any bodies of requests, end in answers that are whole.
//!
//! The input is tried as a body, as a message of gRPC and as all that comes on a connection; and as changes to what Triton's client sends.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_serve::testing::{Conversations, examine_message, examine_request};

/// Requests as `tritonclient.http` sends them to the model `simple`.
const SEEDS: [&[u8]; 6] = [
    include_bytes!("../seeds/serve/binary.http"),
    include_bytes!("../seeds/serve/index.http"),
    include_bytes!("../seeds/serve/lists.http"),
    include_bytes!("../seeds/serve/metadata.http"),
    include_bytes!("../seeds/serve/mixed.http"),
    include_bytes!("../seeds/serve/ready.http"),
];

const MODEL: &str = include_str!("../../../graphs/simple/model.ron");

static SERVER: LazyLock<Conversations> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        block: Some(1),
        ..CompileOptions::default()
    };
    let compiled = compile_str("fuzz.ron", MODEL, "", &options).expect("a valid model");
    compiled
        .write(&folder.path().join("simple.zbmd"))
        .expect("written");
    let registry = zbmd_backends::standard_registry();
    Conversations::start(folder.path(), &registry).expect("it is served")
});

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, rest)) = bytes.split_first() else {
        return;
    };
    match choice % 5 {
        0 => body(rest),
        1 => conversation(rest),
        2 => conversation(&changed(rest)),
        3 => message(rest),
        _ => {
            let seed = changed(rest);
            let begin = seed.windows(4).position(|four| four == b"\r\n\r\n");
            body(&seed[begin.map_or(0, |at| at + 4)..]);
        }
    }
});

/// Types of the model's inputs, how much is JSON, and a body.
fn body(bytes: &[u8]) {
    let Some(([low, high, json_low, json_high], body)) = bytes.split_first_chunk() else {
        return;
    };
    let inputs = u16::from_le_bytes([*low, *high]);
    let json_bytes = u16::from_le_bytes([*json_low, *json_high]);
    let json_bytes = (json_bytes != u16::MAX).then_some(json_bytes.into());
    examine_request(inputs, json_bytes, body);
    examine_request(inputs, None, body);
}

/// Types of the model's inputs, and a message of gRPC.
fn message(bytes: &[u8]) {
    if let Some((inputs, message)) = bytes.split_first_chunk() {
        examine_message(u16::from_le_bytes(*inputs), message);
    }
}

/// A client's request, with stretches of it replaced: where one begins, how long it is, how much comes in its stead.
fn changed(bytes: &[u8]) -> Vec<u8> {
    let Some((&which, mut changes)) = bytes.split_first() else {
        return SEEDS[0].to_vec();
    };
    let mut request = SEEDS[usize::from(which) % SEEDS.len()].to_vec();
    while let Some(([low, high, removed, inserted], rest)) = changes.split_first_chunk() {
        let begin = usize::from(u16::from_le_bytes([*low, *high])) % (request.len() + 1);
        let end = (begin + usize::from(*removed)).min(request.len());
        let (inserted, rest) = rest.split_at(rest.len().min(usize::from(*inserted)));
        request.splice(begin..end, inserted.iter().copied());
        changes = rest;
    }
    request
}

/// Whatever was sent, what comes back is one answer after the other, and whole.
fn conversation(bytes: &[u8]) {
    let answers = SERVER.converse(bytes);
    // Its answers say how long a body is that does not follow.
    if bytes.windows(4).any(|word| word == b"HEAD") {
        return;
    }
    let mut rest = answers.as_slice();
    while !rest.is_empty() {
        rest = after_answer(rest);
    }
}

/// What follows the first answer.
fn after_answer(answers: &[u8]) -> &[u8] {
    let end = answers.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, rest) = answers.split_at(end.expect("a header that ends") + 4);
    let head = std::str::from_utf8(head).expect("headers are ASCII");
    let status: u16 = head[9..12].parse().expect(head);
    // What comes before the answer to a client that waits to be asked for its body.
    if status == 100 {
        return rest;
    }

    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |text| text.parse().expect("a length"));
    let (body, rest) = rest.split_at(length);
    if status >= 400 && !body.is_empty() {
        let error: serde_json::Value = serde_json::from_slice(body).expect("JSON");
        assert!(error["error"].is_string(), "{error}");
    }
    rest
}
