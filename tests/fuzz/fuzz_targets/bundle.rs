//! Bundles are untrusted input: whatever the bytes, reading, verifying and loading them ends in a value or an error, and
//! what is accepted runs like the interpreter.
//!
//! The input is tried as it stands, and as a list of changes: to bytes of a valid bundle, and to values anywhere in it.
//! Checksums are made to fit, otherwise nothing behind them would ever be reached.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_ir::testing::mutate::Random;
use zbmd_ir::testing::parts::Parts;
use zbmd_ir::testing::{programs, reseal};
use zbmd_ir::{Program, bundle};
use zbmd_tests::bundles::examine;
use zbmd_tests::mix;

/// Models of standard ops, with feedback, history and several rates.
const MODELS: [&str; 2] = [
    include_str!("../../../graphs/agc/model.ron"),
    include_str!("../../../graphs/pll/model.ron"),
];

static PROGRAMS: LazyLock<Vec<Program>> = LazyLock::new(|| {
    let mut all = programs::all();
    for text in MODELS {
        for devices in [1, 2] {
            let options = CompileOptions {
                machine: MachineChoice::Uniform(devices),
                ..CompileOptions::default()
            };
            let compiled = compile_str("fuzz.ron", text, Path::new("/nonexistent"), &options);
            all.push(compiled.expect("a valid model").program.into_inner());
        }
    }
    all
});
static PARTS: LazyLock<Vec<Parts>> = LazyLock::new(|| PROGRAMS.iter().map(Parts::new).collect());
static BYTES: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| PROGRAMS.iter().map(bundle::encode).collect());
static REGISTRY: LazyLock<Registry> = LazyLock::new(mix::registry);

/// Bytes at certain places are replaced.
fn patched(which: usize, patches: &[u8]) -> Vec<u8> {
    let mut bytes = BYTES[which % BYTES.len()].clone();
    for patch in patches.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([patch[0], patch[1]])) % bytes.len();
        bytes[at] = patch[2];
    }
    reseal(&mut bytes);
    bytes
}

/// Values are changed, each pair of bytes one.
fn changed(which: usize, seeds: &[u8]) -> Vec<u8> {
    const MAX_CHANGES: usize = 8;
    let mut parts = PARTS[which % PARTS.len()].clone();
    for seed in seeds.chunks_exact(2).take(MAX_CHANGES) {
        let seed = u16::from_le_bytes([seed[0], seed[1]]);
        parts.change(&mut Random::new(seed.into()));
    }
    parts.bundle()
}

fuzz_target!(|data: &[u8]| {
    examine(data.to_vec(), &REGISTRY, 0);
    let Some((&which, rest)) = data.split_first() else {
        return;
    };
    let which = usize::from(which);
    examine(patched(which, rest), &REGISTRY, 1);
    examine(changed(which, rest), &REGISTRY, 2);
});
