//! Cross-crate tests and benches.
