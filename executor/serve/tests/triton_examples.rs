//! The example programs of Triton's client repository, unmodified, against `simple` and `simple_sequence`. They are fetched and not kept
//! here: clone github.com/triton-inference-server/client, and name its folder `src/python/examples` as `ZBMD_TRITON_EXAMPLES`, and a
//! Python with `tritonclient[all]` as `ZBMD_TRITON_PYTHON`.

#![cfg(all(target_os = "linux", feature = "compile", feature = "grpc"))]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Models, SIMPLE, compiled};

/// Programs that ask over HTTP.
const HTTP: [&str; 7] = [
    "simple_http_infer_client",
    "simple_http_async_infer_client",
    "simple_http_aio_infer_client",
    "simple_http_health_metadata",
    "simple_http_shm_client",
    "simple_http_sequence_sync_infer_client",
    "reuse_infer_objects_client",
];

/// Programs that ask over gRPC.
const GRPC: [&str; 11] = [
    "simple_grpc_infer_client",
    "simple_grpc_async_infer_client",
    "simple_grpc_aio_infer_client",
    "simple_grpc_custom_args_client",
    "simple_grpc_keepalive_client",
    "simple_grpc_health_metadata",
    "simple_grpc_shm_client",
    "simple_grpc_sequence_sync_infer_client",
    "simple_grpc_sequence_stream_infer_client",
    "simple_grpc_aio_sequence_stream_infer_client",
    "grpc_explicit_int_content_client",
];

/// Programs that load and unload models, and how many models they want to find.
const MODEL_CONTROL: [(&str, usize); 2] = [
    ("simple_http_model_control", 7),
    ("simple_grpc_model_control", 8),
];

/// Programs that cannot pass, and why.
const EXCLUDED: [(&str, &str); 14] = [
    (
        "simple_http_string_infer_client",
        "BYTES: zbmd has no strings",
    ),
    ("simple_grpc_string_infer_client", "BYTES"),
    ("simple_http_shm_string_client", "BYTES"),
    ("simple_grpc_shm_string_client", "BYTES"),
    ("grpc_explicit_byte_content_client", "BYTES"),
    ("image_client", "BYTES: classification"),
    ("grpc_image_client", "BYTES: classification"),
    ("ensemble_image_client", "BYTES, and a model of its own"),
    ("grpc_client", "a model of its own, densenet_onnx"),
    (
        "grpc_explicit_int8_content_client",
        "a model of its own, simple_int8",
    ),
    (
        "simple_grpc_custom_repeat",
        "a model of its own, repeat_int32: several answers to a request",
    ),
    (
        "memory_growth_test",
        "a model of its own, custom_identity_int32, with a size of its own for each request",
    ),
    ("simple_http_cudashm_client", "memory of a GPU"),
    ("simple_grpc_cudashm_client", "memory of a GPU"),
];

fn python() -> Option<String> {
    let python = std::env::var("ZBMD_TRITON_PYTHON").unwrap_or("python3".to_owned());
    let modules =
        "import tritonclient.http.aio, tritonclient.grpc.aio, tritonclient.utils.shared_memory";
    let output = Command::new(&python).args(["-c", modules]).output();
    let has_client = output.is_ok_and(|output| output.status.success());
    if !has_client {
        eprintln!(
            "SKIPPED: {python} has no tritonclient[all]; install it and set ZBMD_TRITON_PYTHON"
        );
    }
    has_client.then_some(python)
}

fn examples() -> Option<PathBuf> {
    let folder = std::env::var("ZBMD_TRITON_EXAMPLES")
        .ok()
        .map(PathBuf::from);
    let found = folder.filter(|folder| folder.join("simple_http_infer_client.py").exists());
    if found.is_none() {
        eprintln!(
            "SKIPPED: set ZBMD_TRITON_EXAMPLES to src/python/examples of Triton's client repository"
        );
    }
    found
}

/// Runs a program; what it said if it failed.
fn run(python: &str, folder: &Path, program: &str, address: &str) -> Option<String> {
    let output = Command::new(python)
        .arg(folder.join(format!("{program}.py")))
        .args(["-u", address])
        .output()
        .expect("started");
    if output.status.success() {
        return None;
    }
    let said = [output.stdout, output.stderr].concat();
    Some(format!("{program}: {}", String::from_utf8_lossy(&said)))
}

#[test]
fn the_example_programs_pass() {
    let (Some(python), Some(folder)) = (python(), examples()) else {
        return;
    };
    let server = Models::new()
        .with_file("simple.ron", SIMPLE.as_bytes())
        .with_simple_sequence()
        .serve(&[
            "--isolation",
            "threads",
            "--devices",
            "1",
            "--shared-memory",
            // The programs that look at health want to hear it.
            "--server-name",
            "triton",
        ]);
    let http = server.address.to_string();
    let grpc = server.grpc_address().to_string();
    let asked = HTTP.map(|program| (program, &http)).into_iter();
    let asked = asked.chain(GRPC.map(|program| (program, &grpc)));
    let failures: Vec<String> = asked
        .filter_map(|(program, address)| run(&python, &folder, program, address))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for (program, why) in EXCLUDED {
        println!("not run: {program}: {why}");
    }
}

#[test]
fn the_example_programs_of_model_control_pass() {
    let (Some(python), Some(folder)) = (python(), examples()) else {
        return;
    };
    for (program, models) in MODEL_CONTROL {
        let others = (1..models).fold(Models::simple(), |all, number| {
            all.with(&format!("other_{number}"), &compiled(SIMPLE, 1, 1))
        });
        let server = others.serve(&["--isolation", "threads", "--model-control"]);
        let address = match program.contains("grpc") {
            true => server.grpc_address(),
            false => server.address,
        };
        let failure = run(&python, &folder, program, &address.to_string());
        assert!(failure.is_none(), "{}", failure.unwrap_or_default());
    }
}
