//! ONNX files are untrusted input: whatever the bytes, importing them ends in a graph or an error.
//!
//! The input is tried as it stands, and as a list of patches to small valid models: otherwise few bytes would get
//! past the first message.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use zbmd_backends::op::Registry;
use zbmd_compiler::onnx::{ImportOptions, check_onnx_bytes};

static REGISTRY: LazyLock<Registry> = LazyLock::new(zbmd_backends::standard_registry);
const VALID: [&[u8]; 4] = [
    include_bytes!("../../../compiler/src/explain/onnx/relu.onnx"),
    include_bytes!("../../../compiler/src/explain/onnx/sizes.onnx"),
    include_bytes!("../../../compiler/src/explain/onnx/outside.onnx"),
    include_bytes!("../../../compiler/src/explain/onnx/nonzero.onnx"),
];

fn import(bytes: &[u8]) {
    let _ = check_onnx_bytes(bytes, &REGISTRY, &ImportOptions::default());
}

fuzz_target!(|data: &[u8]| {
    import(data);
    let Some((&which, patches)) = data.split_first() else {
        return;
    };
    let mut bytes = VALID[usize::from(which) % VALID.len()].to_vec();
    for patch in patches.chunks_exact(2) {
        let at = usize::from(patch[0]) % bytes.len();
        bytes[at] = patch[1];
    }
    import(&bytes);
});
