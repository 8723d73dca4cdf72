//! Models that are compiled for several sizes of batches: requests that wait are computed together, with the bits that each has alone.

#![cfg(target_os = "linux")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::exchange::{Exchange, softmax_exchanges, softmax_in_batches};
#[cfg(feature = "compile")]
use common::shared;
use common::{Models, Server, compiled, signal, wait_until};
use rustix::process::Signal;
use serde_json::json;

const CLIENTS: usize = 6;

/// A server of a model for batches of these sizes.
fn serve(sizes: &[u32], options: &[&str]) -> Server {
    let model = compiled(&softmax_in_batches(sizes), 1, 1);
    Models::new().with("wide", &model).serve(options)
}

/// Asks from several connections at once, until `is_over`; every answer has the right bits.
fn ask(server: &Server, exchanges: &[Exchange], is_over: &AtomicBool, answers: &AtomicU64) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut connection = server.connect();
                for exchange in exchanges.iter().cycle().skip(client) {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    exchange.ask(&mut connection).expect("the right answer");
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
}

#[test]
fn every_answer_has_the_bits_that_it_has_alone() {
    let (single, rows) = (softmax_exchanges(16, 1), softmax_exchanges(5, 3));
    // With one size only, each single request is in a batch with others or with zeros.
    for sizes in [&[1, 2, 4, 8][..], &[4], &[3, 1]] {
        let server = serve(sizes, &["--isolation", "threads"]);
        let mut connection = server.connect();
        for exchange in single.iter().chain(rows.iter().filter(|_| sizes.len() > 1)) {
            if let Err(why) = exchange.ask(&mut connection) {
                panic!("{sizes:?}: {why}");
            }
        }

        let is_over = AtomicBool::new(false);
        let answers = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| ask(&server, &single, &is_over, &answers));
            wait_until("many answers", || answers.load(Ordering::Relaxed) > 600);
            is_over.store(true, Ordering::Relaxed);
        });
        let answered = server.metric("zbmd_rows_total{model=\"wide\"}");
        let iterations = server.metric("zbmd_iterations_total{model=\"wide\"}");
        assert!(iterations <= answered, "{iterations} of {answered}");
    }
}

#[test]
fn batches_go_on_after_losses() {
    let exchanges = softmax_exchanges(16, 1);
    let server = serve(&[4, 1], &[]);
    let is_over = AtomicBool::new(false);
    let answers = AtomicU64::new(0);
    let more_answers = || {
        let before = answers.load(Ordering::Relaxed);
        wait_until("answers", || answers.load(Ordering::Relaxed) > before + 100);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| ask(&server, &exchanges, &is_over, &answers));
        for loss in 0..6 {
            more_answers();
            let workers = server.children();
            signal(workers[loss % workers.len()], Signal::KILL);
        }
        more_answers();
        is_over.store(true, Ordering::Relaxed);
    });
    let said = server.said();
    assert!(!said.contains("is begun anew"), "{said}");
}

#[test]
fn what_is_computed_together_is_told() {
    let server = serve(&[1, 4], &["--isolation", "threads", "--queue", "3"]);
    let config = server.get("/v2/models/wide/config").json();
    let sizes = json!({"preferred_batch_size": [1, 4]});
    assert_eq!(config["dynamic_batching"], sizes);
    // No request has more rows than the queue has places.
    assert_eq!(config["max_batch_size"], 3);
    let metadata = server.get("/v2/models/wide").json();
    assert_eq!(metadata["inputs"][0]["shape"], json!([-1, 4096]));
    wait_until("a model that is warm", || {
        server.said().contains("computes 1, 4 requests at once")
    });
    let metrics = server.get("/metrics").text();
    let of_four = "zbmd_batches_total{model=\"wide\",size=\"4\"} 0\n";
    assert!(metrics.contains(of_four), "{metrics}");
}

#[cfg(feature = "compile")]
#[test]
fn an_onnx_file_is_compiled_for_the_sizes_that_are_asked_for() {
    let Some(file) = shared("models/light_squeezenet.onnx") else {
        return;
    };
    let file = std::fs::read(file).expect("readable");
    let options = [
        "--devices",
        "1",
        "--isolation",
        "threads",
        "--buckets",
        "1,2",
    ];
    let server = Models::new()
        .with_file("images.onnx", &file)
        .serve(&options);
    let config = server.get("/v2/models/images/config").json();
    assert_eq!(config["max_batch_size"], 2);
    assert_eq!(config["input"][0]["dims"], json!([3, 224, 224]));
}

#[test]
fn modes_that_are_no_sizes_of_batches_are_refused() {
    const MODES: &str = r#"Model(
        sources: { "x": Stream(dtype: f32, shape: [1]) },
        modes: {
            "same": Mode(actors: { "f": NnTanh() }, channels: [(from: "x", to: ["f"]), (from: "f", to: ["y"])]),
            "loud": Mode(actors: { "f": NnExp() }, channels: [(from: "x", to: ["f"]), (from: "f", to: ["y"])]),
        },
        sinks: { "y": Stream() },
    )"#;
    let models = Models::new().with("modes", &compiled(MODES, 1, 1));
    let output = models.command(&[]).output().expect("started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(
        said.contains("it has the modes same, loud, which are not sizes of batches")
            && said.contains("--buckets"),
        "{said}"
    );
}
