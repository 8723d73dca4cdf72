//! Where the shared real data lies.

use std::path::PathBuf;

/// Path of a shared data file: `$ZBMD_DATA/relative`, by default `../shared/data` beside the checkout.
///
/// `None`, with a loud line on stderr, when it is not there.
///
/// # Panics
/// If it is missing although `CI` or `ZBMD_DATA` is set: there a skipped test would be a lie.
pub fn file(relative: &str) -> Option<PathBuf> {
    let set = std::env::var_os("ZBMD_DATA");
    let root = match &set {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
    };
    let path = root.join(relative);
    if path.exists() {
        return Some(path);
    }
    let required = set.is_some() || std::env::var_os("CI").is_some();
    assert!(
        !required,
        "shared data file {} is missing; set ZBMD_DATA to its folder",
        path.display()
    );
    eprintln!(
        "SKIPPED: {} is not here; set ZBMD_DATA to the shared data folder",
        path.display()
    );
    None
}
