//! Models of the folder are loaded anew and unloaded while clients ask: no request fails, and no request names a file.

#![cfg(target_os = "linux")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Models, SIMPLE, Server, compiled, simple_request, wait_until};
use serde_json::{Value, json};

const INFER: &str = "/v2/models/simple/infer";
const LOAD: &str = "/v2/repository/models/simple/load";
const UNLOAD: &str = "/v2/repository/models/simple/unload";

/// `simple` with the product where the sum was.
fn with_product() -> String {
    let product = SIMPLE.replace("NnAdd", "NnMul");
    assert_ne!(product, SIMPLE);
    product
}

fn write(server: &Server, model: &str) {
    let bundle = server.models.path().join("simple.zbmd");
    compiled(model, 1, 1).write(&bundle).expect("written");
}

#[test]
fn a_model_takes_the_place_of_another_while_clients_ask() {
    let server = Models::simple().serve(&["--isolation", "threads", "--model-control"]);
    let is_over = AtomicBool::new(false);
    // How often each of the two was heard: 3 + 5 and 3 * 5.
    let heard = [8, 15].map(|_| AtomicU64::new(0));
    let body = simple_request(&[3; 16], &[5; 16]).to_string();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut connection = server.connect();
                while !is_over.load(Ordering::Relaxed) {
                    let reply = connection.request("POST", INFER, &[], body.as_bytes());
                    assert_eq!(reply.status, 200, "{}", reply.text());
                    match reply.json()["outputs"][0]["data"][7].as_i64() {
                        Some(8) => heard[0].fetch_add(1, Ordering::Relaxed),
                        Some(15) => heard[1].fetch_add(1, Ordering::Relaxed),
                        other => panic!("{other:?}"),
                    };
                }
            });
        }
        for round in 0..6 {
            let (model, place) = match round % 2 {
                0 => (with_product(), 1),
                _ => (SIMPLE.to_owned(), 0),
            };
            write(&server, &model);
            let reply = server.post(LOAD, b"");
            assert_eq!(reply.status, 200, "{}", reply.text());
            assert_eq!(server.get("/v2/models/simple/ready").status, 200);
            // From then on the new one answers.
            let reply = server.post(INFER, body.as_bytes()).json();
            assert_eq!(reply["outputs"][0]["data"][7], [8, 15][place]);
            let before = heard[place].load(Ordering::Relaxed);
            wait_until("answers of the new one", || {
                heard[place].load(Ordering::Relaxed) > before + 50
            });
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_model_is_unloaded_and_loaded_again() {
    let server = Models::simple()
        .with("other", &compiled(SIMPLE, 1, 1))
        .serve(&["--isolation", "threads", "--model-control"]);
    let body = simple_request(&[3; 16], &[5; 16]).to_string();
    let unload_all = json!({"parameters": {"unload_dependents": false}}).to_string();
    assert_eq!(server.post(UNLOAD, unload_all.as_bytes()).status, 200);
    assert_eq!(server.post(INFER, body.as_bytes()).status, 404);
    assert_eq!(server.get("/v2/models/simple/ready").status, 404);
    assert!(server.is_ready(), "the other one is");
    let index = server.post("/v2/repository/index", b"").json();
    let entry =
        json!({"name": "simple", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"});
    assert!(
        index.as_array().expect("a list").contains(&entry),
        "{index}"
    );
    let reply = server.post(UNLOAD, b"");
    assert_eq!(reply.status, 404);
    assert_eq!(reply.error(), "failed to unload `simple`: it is not loaded");

    assert_eq!(server.post(LOAD, b"{}").status, 200);
    assert_eq!(server.post(INFER, body.as_bytes()).status, 200);
    for name in ["simple", "other"] {
        let path = format!("/v2/repository/models/{name}/unload");
        assert_eq!(server.post(&path, b"").status, 200);
    }
    // Without a model it goes on, until it is told to end.
    assert_eq!(server.post(LOAD, b"").status, 200);
    server.terminate();
    let (status, said) = server.wait();
    assert!(status.success(), "{said}");
}

/// A request to load a model with a configuration.
fn load_with(config: &str) -> Vec<u8> {
    json!({"parameters": {"config": config}})
        .to_string()
        .into_bytes()
}

/// A request of several rows to `simple`; of each the first input counts up from its number, the second is 1.
fn batch_request(rows: usize) -> Value {
    let counting: Vec<usize> = (0..rows).flat_map(|row| row..row + 16).collect();
    let input = |name: &str, data: Value| json!({"name": name, "datatype": "INT32", "shape": [rows, 16], "data": data});
    json!({"inputs": [
        input("INPUT0", json!(counting)),
        input("INPUT1", json!(vec![1; rows * 16])),
    ]})
}

#[test]
fn a_batch_is_as_many_iterations_as_it_has_rows() {
    let server = Models::simple().serve(&["--isolation", "threads", "--model-control"]);
    let ask = |request: &Value| server.post(INFER, request.to_string().as_bytes());
    let refused = ask(&batch_request(3));
    assert_eq!(refused.status, 400);
    assert!(refused.error().ends_with("the model takes [1, 16]"));

    let reply = server.post(LOAD, &load_with("{\"max_batch_size\": \"16\"}"));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let config = server.get("/v2/models/simple/config").json();
    assert_eq!(config["max_batch_size"], 16);
    assert_eq!(config["input"][0]["dims"], json!([16]));
    let metadata = server.get("/v2/models/simple").json();
    assert_eq!(metadata["outputs"][0]["shape"], json!([-1, 16]));

    for rows in [1, 3, 16] {
        let before = server.metric("zbmd_iterations_total{model=\"simple\"}");
        let reply = ask(&batch_request(rows));
        assert_eq!(reply.status, 200, "{}", reply.text());
        let after = server.metric("zbmd_iterations_total{model=\"simple\"}");
        assert_eq!(after - before, rows as f64);
        let sums = &reply.json()["outputs"][0];
        let expected: Vec<usize> = (0..rows).flat_map(|row| row + 1..row + 17).collect();
        assert_eq!(sums["shape"], json!([rows, 16]));
        assert_eq!(sums["data"], json!(expected));
    }

    let too_many = ask(&batch_request(17));
    assert_eq!(too_many.status, 400);
    assert!(
        too_many
            .error()
            .ends_with("the model takes [1, 16] with up to 16 rows"),
        "{}",
        too_many.text()
    );
    let mut uneven = batch_request(3);
    uneven["inputs"][1] = batch_request(2)["inputs"][1].clone();
    assert_eq!(
        ask(&uneven).error(),
        "input `INPUT0` has 3 rows and input `INPUT1` has 2: all need as many"
    );

    // Loaded again without a configuration it is as its file is.
    assert_eq!(server.post(LOAD, b"").status, 200);
    assert_eq!(ask(&batch_request(3)).status, 400);
}

#[test]
fn a_model_with_a_state_takes_no_batches() {
    let server = Models::simple_sequence().serve(&[
        "--isolation",
        "threads",
        "--devices",
        "1",
        "--model-control",
    ]);
    let load = "/v2/repository/models/simple_sequence/load";
    let reply = server.post(load, &load_with("{\"max_batch_size\": 2}"));
    assert_eq!(reply.status, 400);
    let expected = "says 2 for `max_batch_size`: it keeps a state for each sequence";
    assert!(reply.error().contains(expected), "{}", reply.text());
}

#[test]
fn what_cannot_be_loaded_leaves_all_as_it_is() {
    let server = Models::simple().serve(&["--isolation", "threads", "--model-control"]);
    let body = simple_request(&[3; 16], &[5; 16]).to_string();
    for (config, expected) in [
        ("{", "the parameter `config` is wrong: byte 1"),
        ("{\"input\": []}", "the parameter `config` changes `input`"),
        (
            "{\"max_batch_size\": 257}",
            "it must be a whole number up to 256",
        ),
    ] {
        let reply = server.post(LOAD, &load_with(config));
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert!(reply.error().contains(expected), "{}", reply.text());
    }
    let file = json!({"parameters": {"file:1/model.zbmd": "AAAA"}}).to_string();
    let reply = server.post(LOAD, file.as_bytes());
    assert_eq!(reply.status, 400);
    assert!(
        reply
            .error()
            .contains("failed to poll from model repository")
    );

    let deep = "[".repeat(1000);
    for (body, expected) in [
        ("{", "byte 1 of the JSON"),
        (deep.as_str(), "byte 64 of the JSON"),
        ("[]", "the body is a list; it must be an object"),
        (
            r#"{"parameters": 7}"#,
            "`parameters` is a number; it must be an object",
        ),
        (r#"{"parameters": {"x": 1}}"#, "the parameter `x`"),
    ] {
        let reply = server.post(LOAD, body.as_bytes());
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert!(reply.error().contains(expected), "{}", reply.text());
    }
    let long = vec![b' '; 70_000];
    assert_eq!(server.post(UNLOAD, &long).status, 413);

    // Names are those of the folder's files, and nothing else.
    for name in [
        "none",
        "simple.zbmd",
        "..",
        ".",
        "%2e%2e%2fsimple",
        "..%2Fsimple",
        "",
    ] {
        let reply = server.post(&format!("/v2/repository/models/{name}/load"), b"");
        assert_eq!(reply.status, 404, "{name}: {}", reply.text());
    }

    std::fs::write(server.models.path().join("simple.zbmd"), b"no bundle").expect("written");
    let reply = server.post(LOAD, b"");
    assert_eq!(reply.status, 400);
    assert!(
        reply.error().starts_with("failed to load `simple`: "),
        "{}",
        reply.text()
    );
    assert_eq!(server.post(INFER, body.as_bytes()).status, 200);

    let server = Models::simple().serve(&["--isolation", "threads"]);
    for path in [LOAD, UNLOAD] {
        let reply = server.post(path, b"");
        assert_eq!(reply.status, 403);
        assert!(
            reply.error().contains("--model-control"),
            "{}",
            reply.text()
        );
    }
}
