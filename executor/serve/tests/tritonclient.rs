//! Triton's own client, unmodified, against `simple`. `pip install tritonclient[http]` into any environment, and name its Python as
//! `ZBMD_TRITON_PYTHON` if it is not `python3`.

#![cfg(target_os = "linux")]

mod common;

use std::path::Path;
use std::process::Command;

use common::Models;

#[test]
fn tritons_client_is_served() {
    let python = std::env::var("ZBMD_TRITON_PYTHON").unwrap_or("python3".to_owned());
    let has_client = Command::new(&python)
        .args(["-c", "import tritonclient.http.aio"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_client {
        eprintln!(
            "SKIPPED: {python} has no tritonclient[http]; install it and set ZBMD_TRITON_PYTHON"
        );
        return;
    }

    let server = Models::simple().serve(&[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client_checks.py");
    let output = Command::new(&python)
        .arg(script)
        .arg(server.address.to_string())
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(output.stdout, b"all is well\n");
}
