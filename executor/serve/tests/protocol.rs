//! The protocol as clients speak it: every path, tensors as lists and as bytes, and the same bits as a run of the bundle.

#![cfg(target_os = "linux")]

mod common;

use common::{
    Models, SIMPLE, WIDE, binary_part, compiled, simple_request, wide_inputs, wide_request,
};
use zbmd_executor::{Engine, RunOptions};

const INFER: &str = "/v2/models/simple/infer";

fn ramp() -> ([i32; 16], [i32; 16]) {
    (std::array::from_fn(|k| k as i32 * 1000 - 7), [i32::MAX; 16])
}

#[test]
fn the_server_says_what_it_is_and_has() {
    let server = Models::simple().serve(&["--isolation", "threads"]);
    assert_eq!(server.get("/v2/health/live").status, 200);
    assert_eq!(server.get("/v2/health/ready").status, 200);
    assert_eq!(
        server.get("/v2/models/simple/ready?unknown=1&x").status,
        200
    );
    assert_eq!(server.get("/v2/models/simple/versions/1/ready").status, 200);
    let about = server.get("/v2").json();
    assert_eq!(about["name"], "zbmd");
    assert!(
        about["extensions"]
            .as_array()
            .expect("a list")
            .contains(&"binary_tensor_data".into())
    );

    let metadata = server.get("/v2/models/simple").json();
    assert_eq!(metadata["inputs"][1]["name"], "INPUT1");
    assert_eq!(metadata["inputs"][0]["datatype"], "INT32");
    assert_eq!(metadata["outputs"][0]["shape"], serde_json::json!([1, 16]));
    let config = server.get("/v2/models/simple/config").json();
    assert_eq!(config["input"][0]["data_type"], "TYPE_INT32");
    assert_eq!(
        config["parameters"]["block_iterations"]["string_value"],
        "1"
    );
    let index = server.post("/v2/repository/index", b"").json();
    assert_eq!(
        (&index[0]["name"], &index[0]["state"]),
        (&"simple".into(), &"READY".into())
    );
}

#[test]
fn lists_and_bytes_go_in_and_out_on_one_connection() {
    let server = Models::simple().serve(&["--isolation", "threads"]);
    let mut connection = server.connect();
    let (first, second) = ramp();
    let sums: Vec<i32> = first
        .iter()
        .map(|value| value.wrapping_add(i32::MAX))
        .collect();
    let rests: Vec<i32> = first
        .iter()
        .map(|value| value.wrapping_sub(i32::MAX))
        .collect();

    let mut request = simple_request(&first, &second);
    request["id"] = "née 7".into();
    let lists = connection.request("POST", INFER, &[], request.to_string().as_bytes());
    assert_eq!(lists.status, 200, "{}", lists.text());
    let lists = lists.json();
    assert_eq!(
        (&lists["id"], &lists["model_version"]),
        (&"née 7".into(), &"1".into())
    );
    assert_eq!(lists["outputs"][0]["data"], serde_json::json!(sums));
    assert_eq!(lists["outputs"][1]["data"], serde_json::json!(rests));

    // One input as bytes and one as a list, one output as a list and one as bytes.
    let mut request = simple_request(&first, &second);
    request["inputs"][0]["parameters"] = serde_json::json!({"binary_data_size": 64});
    request["inputs"][0]
        .as_object_mut()
        .expect("an object")
        .remove("data");
    request["outputs"] = serde_json::json!([
        {"name": "OUTPUT1", "parameters": {"binary_data": true}},
        {"name": "OUTPUT0", "parameters": {"binary_data": false}},
    ]);
    let json = request.to_string();
    let bytes: Vec<u8> = first.iter().flat_map(|value| value.to_le_bytes()).collect();
    let body = [json.as_bytes(), &bytes].concat();
    let header = [("inference-header-content-length", json.len().to_string())];
    let mixed = connection.request("POST", &format!("{INFER}?trace=1"), &header, &body);
    assert_eq!(mixed.status, 200, "{}", mixed.text());
    let expected: Vec<u8> = rests.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(binary_part(&mixed), expected);
    let json_bytes = mixed.body.len() - 64;
    let json: serde_json::Value = serde_json::from_slice(&mixed.body[..json_bytes]).expect("JSON");
    assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], 64);
    assert_eq!(json["outputs"][1]["data"], serde_json::json!(sums));

    let stats = connection
        .request("GET", "/v2/models/simple/stats", &[], &[])
        .json();
    assert_eq!(
        stats["model_stats"][0]["inference_stats"]["success"]["count"],
        2
    );
    assert_eq!(
        server.metric("nv_inference_request_success{model=\"simple\",version=\"1\"}"),
        2.0
    );
    assert_eq!(server.metric("zbmd_connections_refused_total"), 0.0);
}

#[test]
fn errors_are_the_clients_and_say_so() {
    let server = Models::simple().serve(&["--isolation", "threads"]);
    let mut connection = server.connect();
    let mut check = |method: &str, path: &str, body: &str, status: u16, expected: &str| {
        let reply = connection.request(method, path, &[], body.as_bytes());
        assert_eq!(reply.status, status, "{path}: {}", reply.text());
        assert_eq!(reply.error(), expected, "{path}");
    };
    check("GET", "/v3", "", 404, "there is nothing at /v3");
    check("GET", INFER, "", 405, "this path takes POST and not GET");
    let unknown = "Request for unknown model: there is no `other`; there are: simple";
    check("POST", "/v2/models/other/infer", "{}", 404, unknown);
    let nothing = "there is nothing at /v2/models/simple/versions/2/infer";
    check(
        "POST",
        "/v2/models/simple/versions/2/infer",
        "{}",
        404,
        nothing,
    );
    check("POST", INFER, "{}", 400, "`inputs` is missing");
    let (first, second) = ramp();
    let bytes = simple_request(&first, &second)
        .to_string()
        .replacen("INT32", "BYTES", 1);
    let help = "input `INPUT0` has the datatype BYTES; the model takes INT32: zbmd has no strings; send the numbers that the model takes";
    check("POST", INFER, &bytes, 400, help);
    // The connection goes on after all of these.
    let reply = connection.request(
        "POST",
        INFER,
        &[],
        simple_request(&first, &second).to_string().as_bytes(),
    );
    assert_eq!(reply.status, 200);
    let refused = "zbmd_refused_requests_total{model=\"simple\",why=\"request\"}";
    assert_eq!(server.metric(refused), 2.0);
}

/// What a run of the bundle gives for one input.
fn run_of_bundle(engine: &Engine, x: &[u8]) -> Vec<u8> {
    let mut session = engine.start(RunOptions::default()).expect("started");
    let (mut source, mut y, mut t) = (
        session.source("x").expect("there"),
        session.sink("y").expect("there"),
        session.sink("t").expect("there"),
    );
    source.push_bytes(x).expect("taken");
    drop(source);
    let mut given = vec![0; 2 * x.len()];
    let (first, second) = given.split_at_mut(x.len());
    y.pull_bytes(first).expect("given");
    t.pull_bytes(second).expect("given");
    session.join().expect("finished");
    given
}

#[test]
fn answers_have_the_bits_of_a_run_whatever_the_plan() {
    // One device; a pipeline; blocks of several requests, which are filled up where there are fewer.
    for (devices, block) in [(1, 1), (2, 1), (2, 3)] {
        let program = compiled(WIDE, devices, block);
        let server = Models::new()
            .with("wide", &program)
            .serve(&["--isolation", "threads"]);
        let engine =
            Engine::new(program.program, &zbmd_backends::standard_registry()).expect("made");
        let inputs = wide_inputs(4);
        let expected: Vec<Vec<u8>> = inputs.iter().map(|x| run_of_bundle(&engine, x)).collect();

        // Alone: none waits for company.
        let mut connection = server.connect();
        for (x, expected) in inputs.iter().zip(&expected) {
            let (body, headers) = wide_request(x);
            let reply = connection.request("POST", "/v2/models/wide/infer", &headers, &body);
            assert!(
                binary_part(&reply) == expected,
                "{devices} devices, blocks of {block}"
            );
        }
        // All at once.
        std::thread::scope(|scope| {
            for (x, expected) in inputs.iter().zip(&expected) {
                let mut connection = server.connect();
                scope.spawn(move || {
                    let (body, headers) = wide_request(x);
                    for _ in 0..50 {
                        let reply =
                            connection.request("POST", "/v2/models/wide/infer", &headers, &body);
                        assert!(
                            binary_part(&reply) == expected,
                            "{devices} devices, blocks of {block}"
                        );
                    }
                });
            }
        });
        assert_eq!(
            server.metric("zbmd_iterations_total{model=\"wide\"}"),
            204.0
        );
    }
}

#[test]
fn what_cannot_be_in_time_is_refused_and_the_rest_is_not() {
    let server = Models::simple().serve(&["--isolation", "threads"]);
    let (first, second) = ramp();
    let mut request = simple_request(&first, &second);
    request["parameters"] = serde_json::json!({"timeout": 60_000_000});
    let reply = server.post(INFER, request.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());

    // Slow enough that two periods are more than a microsecond.
    let program = compiled(WIDE, 1, 1);
    let server = Models::new()
        .with("wide", &program)
        .serve(&["--isolation", "threads"]);
    let lists = serde_json::json!({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4096], "data": vec![0; 4096]}],
        "parameters": {"timeout": 1},
    });
    let reply = server.post("/v2/models/wide/infer", lists.to_string().as_bytes());
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.header("retry-after").is_some());
    assert!(
        reply.error().contains("the request's timeout is 1µs"),
        "{}",
        reply.error()
    );
    assert_eq!(
        server.metric("zbmd_refused_requests_total{model=\"wide\",why=\"timeout\"}"),
        1.0
    );
}

#[test]
fn a_long_request_that_is_too_late_is_refused_before_its_tensors_are_there() {
    let program = compiled(&WIDE.replace("4096", "40960"), 1, 1);
    let server = Models::new()
        .with("wide", &program)
        .serve(&["--isolation", "threads"]);
    let bytes = vec![0; 4 * 40_960];
    let input = |parameters| {
        let input = serde_json::json!({
            "name": "x", "datatype": "FP32", "shape": [1, 40_960], "parameters": {"binary_data_size": bytes.len()},
        });
        let request = serde_json::json!({"inputs": [input], "parameters": parameters});
        request.to_string().into_bytes()
    };
    let head = |json: &[u8]| {
        format!(
            "POST /v2/models/wide/infer HTTP/1.1\r\nHost: zbmd\r\nInference-Header-Content-Length: {}\r\nContent-Length: {}\r\n\r\n",
            json.len(),
            json.len() + bytes.len()
        )
    };
    let refused = || server.metric("zbmd_refused_requests_total{model=\"wide\",why=\"timeout\"}");

    let mut connection = server.connect();
    let late = input(serde_json::json!({"timeout": 1}));
    connection.write(head(&late).as_bytes());
    connection.write(&late);
    let reply = connection.reply().expect("an answer");
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.header("retry-after").is_some());
    assert_eq!(refused(), 1.0);

    // The connection goes on behind the tensors that nobody wants.
    connection.write(&bytes);
    let prompt = input(serde_json::json!({"timeout": 60_000_000, "binary_data_output": true}));
    connection.write(head(&prompt).as_bytes());
    connection.write(&[prompt, bytes.clone()].concat());
    let reply = connection.reply().expect("an answer");
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(refused(), 1.0);
}

#[test]
fn a_drain_answers_what_was_admitted_and_refuses_the_rest() {
    // Blocks so large that a request takes long: every one is followed by the empty iterations of its block.
    let program = compiled(WIDE, 1, 2000);
    let server = Models::new()
        .with("wide", &program)
        .serve(&["--isolation", "threads"]);
    let (body, headers) = wide_request(&wide_inputs(1)[0]);
    let mut admitted = server.connect();
    admitted.begin("POST", "/v2/models/wide/infer", &headers, &body);
    common::wait_until("admission", || {
        server.metric("zbmd_pending_requests{model=\"wide\"}") > 0.0
    });
    let mut late = server.connect();
    assert_eq!(
        late.request("GET", "/v2/health/ready", &[], &[]).status,
        200
    );

    server.terminate();
    common::wait_until("the drain", || {
        late.request("GET", "/v2/health/ready", &[], &[]).status == 503
    });
    let refused = late.request("POST", "/v2/models/wide/infer", &headers, &body);
    assert_eq!(
        (refused.status, refused.error().as_str()),
        (503, "the server is shutting down")
    );
    assert_eq!(refused.header("connection"), Some("close"));
    assert_eq!(admitted.reply().expect("an answer").status, 200);
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(0), "{said}");
}

#[test]
fn bundles_and_options_that_cannot_be_served_are_refused() {
    let code = |models: &Models, options: &[&str]| {
        let output = models.command(options).output().expect("started");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().expect("ended"), said)
    };
    let (status, said) = code(&Models::new(), &[]);
    assert_eq!(status, 4, "{said}");
    assert!(said.contains("it holds no model"), "{said}");

    let agc = include_str!("../../../graphs/agc/model.ron");
    let (status, said) = code(&Models::new().with("agc", &compiled(agc, 1, 1)), &[]);
    assert_eq!(status, 5, "{said}");
    assert!(
        said.contains("requests would change each other's answers"),
        "{said}"
    );

    let damaged = Models::new();
    std::fs::write(damaged.path().join("x.zbmd"), SIMPLE).expect("written");
    assert_eq!(code(&damaged, &[]).0, 5);
}

#[test]
fn an_address_that_others_reach_needs_a_word_of_consent() {
    let models = Models::simple();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_zbmd-serve"))
        .arg(models.path())
        .args(["--listen", "0.0.0.0:0"])
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--allow-remote"), "{said}");
}
