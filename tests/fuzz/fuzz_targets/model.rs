//! Models are untrusted text: whatever it says, checking it ends in diagnostics or a graph.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use zbmd_compiler::{CompileOptions, MachineChoice, check_str};

static OPTIONS: LazyLock<CompileOptions> = LazyLock::new(|| CompileOptions {
    machine: MachineChoice::Uniform(2),
    ..CompileOptions::default()
});

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match check_str("fuzz.ron", text, Path::new("/nonexistent"), &OPTIONS) {
        Ok(warnings) => drop(warnings.to_string()),
        Err(diagnostics) => drop(diagnostics.to_string()),
    }
});
