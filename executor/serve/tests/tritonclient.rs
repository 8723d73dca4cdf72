//! Triton's own clients, unmodified, against `simple`. `pip install tritonclient[http,grpc]` into any environment, and name its Python
//! as `ZBMD_TRITON_PYTHON` if it is not `python3`.

#![cfg(target_os = "linux")]

mod common;

use std::path::Path;
use std::process::Command;

use common::Models;

/// The Python that has a module of the client; nothing where none has.
fn python_with(module: &str) -> Option<String> {
    let python = std::env::var("ZBMD_TRITON_PYTHON").unwrap_or("python3".to_owned());
    let has_client = Command::new(&python)
        .args(["-c", &format!("import {module}")])
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_client {
        eprintln!(
            "SKIPPED: {python} has no {module}; install tritonclient[http,grpc] and set ZBMD_TRITON_PYTHON"
        );
    }
    has_client.then_some(python)
}

fn check(python: &str, script: &str, address: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(script);
    let output = Command::new(python)
        .arg(script)
        .arg(address)
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(output.stdout, b"all is well\n");
}

#[test]
fn tritons_http_client_is_served() {
    let Some(python) = python_with("tritonclient.http.aio") else {
        return;
    };
    let server = Models::simple().serve(&[]);
    check(&python, "client_checks.py", &server.address.to_string());
}

#[cfg(feature = "grpc")]
#[test]
fn tritons_grpc_client_is_served() {
    let Some(python) = python_with("tritonclient.grpc.aio") else {
        return;
    };
    let server = Models::simple().serve(&[]);
    let address = server.grpc_address().to_string();
    check(&python, "grpc_client_checks.py", &address);
}
