//! Bundles are untrusted input: whatever the bytes, reading and verifying them ends in a value or an error.
//!
//! The input is tried as it stands, and as a list of patches to a valid bundle whose checksums are then made to fit:
//! otherwise nothing behind the checksums would ever be reached.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use zbmd_ir::bundle;
use zbmd_ir::testing::{programs, reseal};
use zbmd_ir::verify::verify;

static VALID: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| programs::all().iter().map(bundle::encode).collect());

fn read(bytes: Vec<u8>) {
    if let Ok(program) = bundle::decode(bytes.into()) {
        let _ = verify(program);
    }
}

fuzz_target!(|data: &[u8]| {
    read(data.to_vec());
    let Some((&which, patches)) = data.split_first() else {
        return;
    };
    let mut bytes = VALID[usize::from(which) % VALID.len()].clone();
    for patch in patches.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([patch[0], patch[1]])) % bytes.len();
        bytes[at] = patch[2];
    }
    reseal(&mut bytes);
    read(bytes);
});
