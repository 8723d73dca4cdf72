//! Makes the checksums of a damaged bundle fit again, so that tests and fuzzing reach what lies behind them.

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// Recomputes every checksum of a bundle in place; what does not look like a section is left as it is.
pub fn reseal(bundle: &mut [u8]) {
    const HEADER: usize = 32;
    const ENTRY: usize = 32;
    let number = |bytes: &[u8], at: usize, len: usize| {
        let mut word = [0; 8];
        word[..len].copy_from_slice(&bytes[at..at + len]);
        u64::from_le_bytes(word)
    };
    if bundle.len() < HEADER {
        return;
    }
    let sections = (number(bundle, 8, 4) as usize).min((bundle.len() - HEADER) / ENTRY);
    for i in 0..sections {
        let entry = HEADER + i * ENTRY;
        let (offset, bytes) = (number(bundle, entry + 8, 8), number(bundle, entry + 16, 8));
        let Some(end) = offset
            .checked_add(bytes)
            .filter(|&end| end <= bundle.len() as u64)
        else {
            continue;
        };
        let checksum = xxh3_64(&bundle[offset as usize..end as usize]);
        bundle[entry + 24..entry + 32].copy_from_slice(&checksum.to_le_bytes());
    }
    let mut hasher = Xxh3Default::new();
    hasher.update(&bundle[..24]);
    hasher.update(&bundle[HEADER..HEADER + sections * ENTRY]);
    let checksum = hasher.digest();
    bundle[24..32].copy_from_slice(&checksum.to_le_bytes());
}
