//! Tensors in POSIX shared memory: read and written there, and only there.

#![cfg(target_os = "linux")]

mod common;

use std::path::PathBuf;

use common::{Models, Reply, Server, simple_request};
use serde_json::{Value, json};

/// Bytes of a tensor of `simple`.
const TENSOR: usize = 64;

/// An object in shared memory that is gone in the end.
struct Object {
    name: String,
}

impl Object {
    fn new(test: &str, bytes: &[u8]) -> Self {
        let name = format!("zbmd-serve-{}-{test}", std::process::id());
        let object = Self { name };
        std::fs::write(object.path(), bytes).expect("written");
        object
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/dev/shm").join(&self.name)
    }

    fn register(&self, server: &Server, region: &str, size: usize) -> Reply {
        let body = json!({"key": format!("/{}", self.name), "offset": 0, "byte_size": size});
        let path = format!("/v2/systemsharedmemory/region/{region}/register");
        server.post(&path, body.to_string().as_bytes())
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path());
    }
}

/// A request whose second input and first output are in the region `r`.
fn request(first: &[i32; 16]) -> Value {
    let mut request = simple_request(first, &[0; 16]);
    request["inputs"][1] = json!({
        "name": "INPUT1", "datatype": "INT32", "shape": [1, 16],
        "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": TENSOR},
    });
    request["outputs"] = json!([
        {"name": "OUTPUT0", "parameters": {
            "shared_memory_region": "r", "shared_memory_byte_size": TENSOR, "shared_memory_offset": TENSOR,
        }},
        {"name": "OUTPUT1"},
    ]);
    request
}

const INFER: &str = "/v2/models/simple/infer";

#[test]
fn tensors_are_read_and_written_where_they_are() {
    let server = Models::simple().serve(&["--isolation", "threads", "--shared-memory"]);
    let second: Vec<u8> = (0..16_i32).flat_map(i32::to_le_bytes).collect();
    let object = Object::new("there", &[second, vec![0; TENSOR]].concat());
    let reply = object.register(&server, "r", 2 * TENSOR);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let status = server.get("/v2/systemsharedmemory/status").json();
    let expected = json!([{
        "name": "r", "key": format!("/{}", object.name), "offset": 0, "byte_size": 2 * TENSOR,
    }]);
    assert_eq!(status, expected);

    let reply = server.post(INFER, request(&[100; 16]).to_string().as_bytes());
    let answer = reply.json();
    let parameters = &answer["outputs"][0]["parameters"];
    let expected = json!({"shared_memory_region": "r", "shared_memory_byte_size": TENSOR});
    assert_eq!(parameters, &expected, "{answer}");
    assert_eq!(answer["outputs"][0]["data"], Value::Null);
    assert_eq!(answer["outputs"][1]["data"][15], 85);
    let memory = std::fs::read(object.path()).expect("there");
    let sums: Vec<u8> = (100..116_i32).flat_map(i32::to_le_bytes).collect();
    assert_eq!(memory[TENSOR..], sums);

    let mut beyond = request(&[1; 16]);
    beyond["outputs"][0]["parameters"]["shared_memory_offset"] = json!(TENSOR + 1);
    let reply = server.post(INFER, beyond.to_string().as_bytes());
    assert_eq!(
        reply.error(),
        "output `OUTPUT0`: bytes 65 to 129 are not within region `r`, which has 128"
    );
    let reply = server.post("/v2/systemsharedmemory/unregister", b"");
    assert_eq!(reply.status, 200);
    let reply = server.post(INFER, request(&[1; 16]).to_string().as_bytes());
    assert_eq!(
        reply.error(),
        "input `INPUT1`: there is no region `r`: register it first"
    );
}

/// A mapping that is cut short kills whoever reads it; the server does not map.
#[test]
fn a_client_that_cuts_its_memory_short_is_told_so() {
    let server = Models::simple().serve(&["--isolation", "threads", "--shared-memory"]);
    let object = Object::new("cut", &[0; 2 * TENSOR]);
    assert_eq!(object.register(&server, "r", 2 * TENSOR).status, 200);
    let file = std::fs::OpenOptions::new().write(true).open(object.path());
    let file = file.expect("there");
    for (length, expected) in [
        (
            TENSOR as u64,
            "output `OUTPUT0`: region `r`: its memory was cut short",
        ),
        (0, "input `INPUT1`: region `r`: its memory was cut short"),
    ] {
        file.set_len(length).expect("cut");
        let reply = server.post(INFER, request(&[1; 16]).to_string().as_bytes());
        assert_eq!((reply.status, reply.error().as_str()), (400, expected));
    }
    let plain = simple_request(&[1; 16], &[2; 16]).to_string();
    assert_eq!(server.post(INFER, plain.as_bytes()).status, 200);
}

#[test]
fn wrong_places_and_sizes_are_told_so() {
    let server = Models::simple().serve(&["--isolation", "threads", "--shared-memory"]);
    let object = Object::new("wrong", &[0; 2 * TENSOR]);
    let key = format!("/{}", object.name);
    let all = u64::MAX;
    for (offset, size, expected) in [
        (
            json!(all),
            json!(all),
            "would end at byte 36893488147419103230",
        ),
        (json!(2 * TENSOR), json!(1), "would end at byte 129"),
        (json!(-1), json!(1), "`offset`"),
        (json!(0), json!(-1), "`byte_size`"),
        (json!(0), json!(1.5), "`byte_size`"),
        (json!(0), json!("64"), "`byte_size` is a string"),
        (json!([]), json!(1), "`offset` is a list"),
    ] {
        let body = json!({"key": key, "offset": offset, "byte_size": size});
        let path = "/v2/systemsharedmemory/region/r/register";
        let reply = server.post(path, body.to_string().as_bytes());
        assert_eq!(reply.status, 400, "{body}");
        assert!(reply.error().contains(expected), "{}", reply.text());
    }
    for key in ["", "/", "/.hidden", "a/b", "/a\0b", &"k".repeat(256)] {
        let body = json!({"key": key, "byte_size": 1}).to_string();
        let path = "/v2/systemsharedmemory/region/r/register";
        let reply = server.post(path, body.as_bytes());
        assert_eq!(reply.status, 400, "{key:?}");
        assert!(reply.error().contains("is not the name of"), "{key:?}");
    }
    let name = "r".repeat(129);
    assert_eq!(object.register(&server, &name, TENSOR).status, 400);

    assert_eq!(object.register(&server, "r", 2 * TENSOR).status, 200);
    for (name, value) in [
        ("shared_memory_offset", json!(all)),
        ("shared_memory_byte_size", json!(all)),
        ("shared_memory_offset", json!(-1)),
        ("shared_memory_byte_size", json!(TENSOR - 1)),
        ("shared_memory_region", json!(7)),
    ] {
        for list in ["inputs", "outputs"] {
            let mut wrong = request(&[1; 16]);
            let place = usize::from(list == "inputs");
            wrong[list][place]["parameters"][name] = value.clone();
            let reply = server.post(INFER, wrong.to_string().as_bytes());
            assert_eq!(reply.status, 400, "{list}: {name}: {value}");
        }
    }
    let memory = std::fs::read(object.path()).expect("there");
    assert_eq!(memory, [0; 2 * TENSOR]);
    let right = request(&[1; 16]).to_string();
    assert_eq!(server.post(INFER, right.as_bytes()).status, 200);
}

#[test]
fn there_are_so_many_regions_and_no_more() {
    let server = Models::simple().serve(&["--isolation", "threads", "--shared-memory"]);
    let object = Object::new("many", &[0; TENSOR]);
    for number in 0..256 {
        let reply = object.register(&server, &format!("r{number}"), TENSOR);
        assert_eq!(reply.status, 200, "{number}: {}", reply.text());
    }
    assert_eq!(object.register(&server, "r0", TENSOR).status, 400);
    assert_eq!(object.register(&server, "more", TENSOR).status, 503);
    let reply = server.post("/v2/systemsharedmemory/region/r7/unregister", b"");
    assert_eq!(reply.status, 200);
    assert_eq!(object.register(&server, "more", TENSOR).status, 200);
}

#[test]
fn regions_are_names_and_only_where_they_are_allowed() {
    let server = Models::simple().serve(&["--isolation", "threads", "--shared-memory"]);
    for (body, expected) in [
        (
            r#"{"key": "/../../etc/hostname", "byte_size": 1}"#,
            "is not the name of an object in shared memory",
        ),
        (
            r#"{"key": "/zbmd-there-is-no-such-object", "byte_size": 1}"#,
            "there is no shared memory `/zbmd-there-is-no-such-object`",
        ),
        (r#"{"key": "/x"}"#, "`byte_size` is missing"),
        (
            r#"{"key": 1, "byte_size": 1}"#,
            "`key` is a number; it must be a string",
        ),
        (r#"{"key""#, "byte 6 of the JSON"),
    ] {
        let reply = server.post("/v2/systemsharedmemory/region/r/register", body.as_bytes());
        assert_eq!(reply.status, 400, "{body}");
        assert!(reply.error().contains(expected), "{}", reply.text());
    }

    let object = Object::new("off", &[0; TENSOR]);
    let reply = object.register(&server, "r", TENSOR + 1);
    assert!(reply.error().contains("byte 65 of"), "{}", reply.text());
    let server = Models::simple().serve(&["--isolation", "threads"]);
    let reply = object.register(&server, "r", TENSOR);
    assert_eq!(reply.status, 403, "{}", reply.text());

    let models = Models::simple();
    let remote = ["--listen", "0.0.0.0:0", "--allow-remote", "--shared-memory"];
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_zbmd-serve"));
    let output = command.arg(models.path()).args(remote).output();
    let output = output.expect("started");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("clients on this computer"), "{said}");
}
