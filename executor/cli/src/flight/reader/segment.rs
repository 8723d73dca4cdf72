//! Files of a recording: where payloads lie in them, and how one is read and compared with its checksum.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::flight::folder::{RecordingError, segments};
use crate::flight::record::RecordHeader;

/// A file of a recording.
#[derive(Debug)]
pub(super) struct SegmentFile {
    pub(super) path: PathBuf,
    file: File,
    pub(super) bytes: u64,
}

/// Where a payload is.
#[derive(Clone, Copy, Debug)]
pub(super) struct PayloadPlace {
    pub(super) segment: usize,
    /// Of the payload's first byte.
    pub(super) offset: u64,
    pub(super) header: RecordHeader,
}

/// Why a segment is read no further.
pub(super) enum Stop {
    /// It ends within a record.
    Torn,
    /// It is not what it should be.
    Damaged(String),
    /// The system does not let us.
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Stop {
    pub(super) fn error(self, file: &SegmentFile, offset: u64) -> RecordingError {
        let path = file.path.clone();
        match self {
            Stop::Io(source) => RecordingError::Io { path, source },
            Stop::Torn => RecordingError::Content {
                path,
                offset,
                why: "ends within a record".to_owned(),
            },
            Stop::Damaged(why) => RecordingError::Content { path, offset, why },
        }
    }
}

impl PayloadPlace {
    /// Reads a payload and compares its checksum.
    pub(super) fn read(self, file: &SegmentFile) -> Result<Vec<u8>, Stop> {
        let mut payload = Vec::new();
        self.read_into(file, &mut payload)?;
        Ok(payload)
    }

    pub(super) fn read_into(self, file: &SegmentFile, payload: &mut Vec<u8>) -> Result<(), Stop> {
        // Its length was compared with that of the file.
        payload.resize(self.header.length as usize, 0);
        read_at(file, payload, self.offset)?;
        match self.header.is_of(&[payload]) {
            true => Ok(()),
            false => Err(Stop::Damaged(
                "the record's checksum is another: it is damaged".to_owned(),
            )),
        }
    }
}

/// Fills a buffer from a place of a file.
pub(super) fn read_at(file: &SegmentFile, buffer: &mut [u8], offset: u64) -> Result<(), Stop> {
    match file.file.read_exact_at(buffer, offset) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Stop::Torn),
        Err(error) => Err(Stop::Io(error)),
    }
}

/// The segments in a folder.
pub(super) fn open_segments(folder: &Path) -> Result<Vec<(u64, PathBuf)>, RecordingError> {
    segments(folder).map_err(|source| RecordingError::Io {
        path: folder.to_owned(),
        source,
    })
}

/// Opens a segment, unless it has just been removed.
pub(super) fn open_segment(path: PathBuf) -> Result<Option<SegmentFile>, RecordingError> {
    let opened = File::open(&path).and_then(|file| Ok((file.metadata()?, file)));
    match opened {
        Ok((metadata, _)) if !metadata.is_file() => Err(RecordingError::Unusable {
            path,
            why: "is not a regular file".to_owned(),
        }),
        Ok((metadata, file)) => Ok(Some(SegmentFile {
            path,
            file,
            bytes: metadata.len(),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RecordingError::Io { path, source }),
    }
}
