//! Connections on which a client's bytes come with changes at random: what comes back is whole, nothing panics, and the
//! server answers on. The fuzz target `serve` does the same for as long as anybody wants, and learns from what it sees.
//!
//! ```sh
//! ZBMD_ANY_BYTES_S=600 cargo test -p zbmd-serve --test any_bytes -- --nocapture
//! ```

#![cfg(feature = "grpc")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Models, wait_until};
use prost::Message;
use zbmd_serve::testing::messages::{
    InferInputTensor, ModelControlRequest, ModelInferRequest, ModelRequest, RepositoryIndexRequest,
};
use zbmd_serve::testing::{Conversations, changed, check_answers, check_frames, grpc_call};

/// Requests as `tritonclient.http` sends them.
const HTTP: [&[u8]; 6] = [
    include_bytes!("../../../tests/fuzz/seeds/serve/binary.http"),
    include_bytes!("../../../tests/fuzz/seeds/serve/index.http"),
    include_bytes!("../../../tests/fuzz/seeds/serve/lists.http"),
    include_bytes!("../../../tests/fuzz/seeds/serve/metadata.http"),
    include_bytes!("../../../tests/fuzz/seeds/serve/mixed.http"),
    include_bytes!("../../../tests/fuzz/seeds/serve/ready.http"),
];

/// Without the variable `ZBMD_ANY_BYTES_S`.
const TIME: Duration = Duration::from_millis(1500);
const SEED: u64 = 24;
/// Bytes of a tensor of `simple`.
const TENSOR_BYTES: usize = 64;

static PANICS: AtomicUsize = AtomicUsize::new(0);

fn calls() -> Vec<Vec<u8>> {
    let input = |name: &str| InferInputTensor {
        name: name.to_owned(),
        datatype: "INT32".to_owned(),
        shape: vec![1, 16],
        ..Default::default()
    };
    let infer = ModelInferRequest {
        model_name: "simple".to_owned(),
        inputs: vec![input("INPUT0"), input("INPUT1")],
        raw_input_contents: vec![vec![1; TENSOR_BYTES].into(); 2],
        ..Default::default()
    };
    let model = ModelRequest {
        name: "simple".to_owned(),
        version: String::new(),
    };
    let load = ModelControlRequest {
        model_name: "simple".to_owned(),
        ..Default::default()
    };
    let infer = infer.encode_to_vec();
    vec![
        grpc_call("ModelInfer", &infer),
        grpc_call("ModelStreamInfer", &infer),
        grpc_call("ModelConfig", &model.encode_to_vec()),
        grpc_call("RepositoryModelLoad", &load.encode_to_vec()),
        grpc_call(
            "RepositoryIndex",
            &RepositoryIndexRequest::default().encode_to_vec(),
        ),
    ]
}

/// One to four stretches replaced by a few bytes, as [`changed`] takes them.
fn changes(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut changes = Vec::new();
    for _ in 0..=random.usize(..4) {
        let begin = random.u16(..).to_le_bytes();
        let [removed, inserted] = [random.u8(..6), random.u8(..6)];
        changes.extend([begin[0], begin[1], removed, inserted]);
        changes.extend((0..inserted).map(|_| match random.usize(..3) {
            0 => [0, 0x7f, 0x80, 0xff][random.usize(..4)],
            _ => random.u8(..),
        }));
    }
    changes
}

fn wanted_time() -> Duration {
    let seconds = std::env::var("ZBMD_ANY_BYTES_S").ok();
    seconds.map_or(TIME, |text| {
        Duration::from_secs(text.parse().expect("whole seconds"))
    })
}

#[test]
fn whatever_comes_on_a_connection_what_goes_back_is_whole() {
    let usual = std::panic::take_hook();
    // Calls are tasks of their own: a panic of one ends nothing.
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        usual(panic);
    }));
    let models = Models::simple();
    let registry = zbmd_backends::standard_registry();
    let server = Conversations::start(&models.path(), &registry).expect("served");
    let calls = calls();
    let check_service = || {
        // On a busy machine an answer may take longer than it is waited for.
        wait_until("an answer over gRPC", || {
            check_frames(&server.converse_grpc(&calls[0])) > 2 * TENSOR_BYTES
        });
        wait_until("an answer over HTTP", || {
            let answers = server.converse(HTTP[2]);
            check_answers(&answers);
            answers.starts_with(b"HTTP/1.1 200 OK\r\n")
        });
    };
    check_service();

    let time = wanted_time();
    let begun = Instant::now();
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut tried = 0_u64;
    while begun.elapsed() < time {
        for _ in 0..2 {
            let request = changed(HTTP[random.usize(..HTTP.len())], &changes(&mut random));
            let answers = server.converse(&request);
            if !request.windows(4).any(|word| word == b"HEAD") {
                check_answers(&answers);
            }
        }
        let call = changed(&calls[random.usize(..calls.len())], &changes(&mut random));
        check_frames(&server.converse_grpc(&call));
        tried += 3;
        assert_eq!(
            PANICS.load(Ordering::Relaxed),
            0,
            "after {tried} connections"
        );
    }
    check_service();
    assert!(tried > 3, "only {tried} connections");
    println!("{tried} connections in {:.1?}", begun.elapsed());
}
