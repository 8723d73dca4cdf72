//! What strangers send to `zbmd-serve`: any bytes of a connection, and any bodies of requests, end in answers that are whole.
//!
//! The input is tried as a body, as a message of gRPC and as all that comes on a connection of either protocol; and as changes to what
//! Triton's client sends.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_serve::testing::{
    Conversations, changed, check_answers, check_frames, examine_message, examine_request,
    grpc_call,
};

/// Requests as `tritonclient.http` sends them to the model `simple`.
const SEEDS: [&[u8]; 6] = [
    include_bytes!("../seeds/serve/binary.http"),
    include_bytes!("../seeds/serve/index.http"),
    include_bytes!("../seeds/serve/lists.http"),
    include_bytes!("../seeds/serve/metadata.http"),
    include_bytes!("../seeds/serve/mixed.http"),
    include_bytes!("../seeds/serve/ready.http"),
];

/// Methods of the service: with a message, with a stream of them, and two that other messages belong to.
const METHODS: [&str; 4] = [
    "ModelInfer",
    "ModelStreamInfer",
    "RepositoryModelLoad",
    "SystemSharedMemoryRegister",
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
    match choice % 7 {
        0 => body(rest),
        1 => conversation(rest),
        2 => conversation(&changed_seed(rest)),
        3 => message(rest),
        4 => calls(rest),
        5 => calls(&changed_call(rest)),
        _ => {
            let seed = changed_seed(rest);
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

/// One of the clients' requests, with stretches of it replaced.
fn changed_seed(bytes: &[u8]) -> Vec<u8> {
    let (which, changes) = bytes.split_first().unwrap_or((&0, &[]));
    changed(SEEDS[usize::from(*which) % SEEDS.len()], changes)
}

/// Whatever was sent, what comes back is one answer after the other, and whole.
fn conversation(bytes: &[u8]) {
    let answers = SERVER.converse(bytes);
    // Its answers say how long a body is that does not follow.
    if !bytes.windows(4).any(|word| word == b"HEAD") {
        check_answers(&answers);
    }
}

/// Calls of gRPC: whatever was sent, what comes back are frames. A panic of a call ends the program, by libFuzzer's hook.
fn calls(bytes: &[u8]) {
    check_frames(&SERVER.converse_grpc(bytes));
}

/// A call of one of the service's methods with any message, and any of its bytes replaced.
fn changed_call(bytes: &[u8]) -> Vec<u8> {
    let Some(([which, length], rest)) = bytes.split_first_chunk() else {
        return Vec::new();
    };
    let (message, changes) = rest.split_at(rest.len().min(usize::from(*length)));
    let method = METHODS[usize::from(*which) % METHODS.len()];
    changed(&grpc_call(method, message), changes)
}
