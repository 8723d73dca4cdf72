//! Pipes with names: whoever opens one waits for its other end.

use std::path::Path;

/// Whether it is a pipe with a name.
pub fn is_named_pipe(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata(path).is_ok_and(|data| data.file_type().is_fifo())
    }

    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}
