//! For tests of this and other crates: hand-built valid programs, mutants of any program, and hostile ones.

pub mod hostile;
pub mod mutate;
pub mod parts;
pub mod programs;
mod reseal;
pub mod tree;

pub use reseal::reseal;

/// Counts at which arithmetic of 32 or 64 bits, or of floats, changes: for tests of every number that a file holds.
pub const EXTREME_COUNTS: [u64; 18] = [
    0,
    1,
    2,
    u32::MAX as u64 - 1,
    u32::MAX as u64,
    1 << 32,
    (1 << 53) - 1,
    1 << 53,
    (1 << 59) + 1,
    1 << 60,
    (1 << 61) - 1,
    1 << 61,
    (1 << 62) - 1,
    1 << 62,
    (1 << 62) + 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];
