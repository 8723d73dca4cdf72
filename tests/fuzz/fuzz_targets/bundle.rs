//! Bundles and states are untrusted input: whatever the bytes, reading and verifying them ends in a value or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zbmd_ir::bundle;
use zbmd_ir::verify::verify;

fuzz_target!(|data: &[u8]| {
    // Checksums would keep the fuzzer from everything behind them: mend them first, then also try the bytes as given.
    let mut mended = data.to_vec();
    bundle::reseal(&mut mended);
    for bytes in [mended, data.to_vec()] {
        if let Ok(program) = bundle::decode(bytes.into()) {
            let _ = verify(program);
        }
    }
});
