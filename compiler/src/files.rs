//! Files that a model or a command line names: only regular ones are read, none larger than asked for.
//!
//! A device never ends, and opening a FIFO waits for a writer: both are refused by their type, before anything is
//! read. What a file holds goes into memory, so its size is compared with a limit first; a sparse file is as large as
//! it says.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// What the system says.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A directory, device, FIFO or socket.
    #[error("it is {0}, not a regular file")]
    Kind(&'static str),
    /// Larger than what is read at most.
    #[error("it has {bytes} bytes, more than the limit of {limit}")]
    Size {
        /// Of the file.
        bytes: u64,
        /// What is read at most.
        limit: u64,
    },
}

impl ReadError {
    /// What to do about it.
    pub fn help(&self) -> &'static str {
        match self {
            ReadError::Io(_) => "check the path",
            ReadError::Kind("a directory") => "name the file in it",
            ReadError::Kind(_) => "name a regular file; a model is read from stdin with `-`",
            ReadError::Size { .. } => "put less into one file",
        }
    }
}

/// Opens a regular file for reading, and gives its size.
///
/// # Errors
/// See [`ReadError`].
pub fn open(path: impl AsRef<Path>) -> Result<(File, u64), ReadError> {
    let path = path.as_ref();
    // Before it is opened, since that alone waits for ever at a FIFO; and after, since it may be another one by then.
    check(&std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    check(&metadata)?;
    Ok((file, metadata.len()))
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// See [`ReadError`].
pub fn read(path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>, ReadError> {
    let (file, bytes) = open(path)?;
    if bytes > limit {
        return Err(ReadError::Size { bytes, limit });
    }

    // Memory is asked for, not taken for granted: a sparse file may be larger than it.
    let mut content = Vec::new();
    let expected =
        usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    content
        .try_reserve_exact(expected)
        .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;

    // It may grow meanwhile.
    file.take(limit.saturating_add(1))
        .read_to_end(&mut content)?;
    let bytes = content.len() as u64;
    if bytes > limit {
        return Err(ReadError::Size { bytes, limit });
    }
    Ok(content)
}

fn check(metadata: &Metadata) -> Result<(), ReadError> {
    if metadata.is_file() {
        Ok(())
    } else {
        Err(ReadError::Kind(kind(metadata)))
    }
}

#[cfg(unix)]
fn kind(metadata: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let file_type = metadata.file_type();
    if file_type.is_dir() {
        "a directory"
    } else if file_type.is_fifo() {
        "a FIFO"
    } else if file_type.is_char_device() || file_type.is_block_device() {
        "a device"
    } else if file_type.is_socket() {
        "a socket"
    } else {
        "something else"
    }
}

#[cfg(not(unix))]
fn kind(metadata: &Metadata) -> &'static str {
    if metadata.is_dir() {
        "a directory"
    } else {
        "something else"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_compared_before_memory_is_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sparse");
        let file = File::create(&path).expect("a file");
        file.set_len(1 << 40).expect("a sparse file");
        let error = read(&path, 1 << 30).expect_err("too large");
        assert!(
            matches!(error, ReadError::Size { bytes, limit } if bytes == 1 << 40 && limit == 1 << 30),
            "{error}"
        );

        file.set_len(10).expect("a smaller file");
        assert_eq!(read(&path, 10).expect("it fits"), [0; 10]);
        assert!(read(&path, 9).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let cases = [
            (Path::new("/dev/zero"), "it is a device, not a regular file"),
            (folder.path(), "it is a directory, not a regular file"),
            (socket.as_path(), "it is a socket, not a regular file"),
        ];
        for (path, expect) in cases {
            let error = read(path, 1 << 20).expect_err("refused");
            assert_eq!(error.to_string(), expect);
        }
    }
}
