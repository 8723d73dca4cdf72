//! Files that appear whole or not at all.

use std::path::{Path, PathBuf};

/// Why a bundle or a machine file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write `{}`: {error}", path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    #[source]
    pub error: std::io::Error,
}

impl WriteError {
    pub(crate) fn new(path: &Path, error: std::io::Error) -> Self {
        Self {
            path: path.to_owned(),
            error,
        }
    }
}

/// Writes a temporary file in the same folder and renames it: readers see the old text or the new one.
pub(crate) fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let mut temporary_name = path.file_name().unwrap_or_default().to_owned();
    temporary_name.push(format!(".{}.tmp", std::process::id()));
    let temporary_path = path.with_file_name(temporary_name);

    let written =
        std::fs::write(&temporary_path, text).and_then(|()| std::fs::rename(&temporary_path, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&temporary_path);
    }
    written
}
