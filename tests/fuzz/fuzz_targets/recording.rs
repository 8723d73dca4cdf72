//! Recordings of the flight recorder are a stranger's: whatever their bytes, they are opened, replayed as far as they say and
//! exported, or refused.
//!
//! The input is tried as it stands, as a head and as a segment, and as steps of a recorder, with checksums that fit.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use zbmd_compiler::{CompileOptions, compile_str};
use zbmd_ir::Program;
use zbmd_run::testing::recordings::{examine, forge, write_raw};

/// Two sources of different rates, and parameters that recordings change.
const MODEL: &str = r#"Model(
    name: "recorded",
    params: { "level": Live(1.0, min: 0.0, max: 2.0), "offset": Live(0.0, min: -1.0, max: 4.0) },
    sources: { "a": Stream(dtype: f32), "b": Stream(dtype: f32) },
    actors: {
        "level": Gain($level),
        "third": Decimate(3),
        "sum": Expr("x + y + o", inputs: { "x": f32, "y": f32 }, params: { "o": $offset }),
    },
    channels: [
        (from: "a", to: ["third"]),
        (from: "third", to: ["level"]),
        (from: "level", to: ["sum.x"]),
        (from: "b", to: ["sum.y"]),
        (from: "sum", to: ["out"]),
    ],
    sinks: { "out": Stream() },
)"#;

static PROGRAM: LazyLock<Program> = LazyLock::new(|| {
    let options = CompileOptions::default();
    let compiled = compile_str("fuzz.ron", MODEL, Path::new("/nonexistent"), &options);
    compiled.expect("a valid model").program.into_inner()
});
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));

fuzz_target!(|bytes: &[u8]| {
    let folder = FOLDER.path();
    for is_head in [true, false] {
        write_raw(bytes, is_head, &PROGRAM, folder).expect("written");
        examine(folder, &PROGRAM);
    }
    forge(bytes, &PROGRAM, folder).expect("written");
    examine(folder, &PROGRAM);
});
