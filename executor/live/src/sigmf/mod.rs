//! SigMF recordings: samples in `NAME.sigmf-data`, described by JSON in `NAME.sigmf-meta`. Must not open anything: bytes
//! of a description in, and what to read where out; and the other way round.
//! Source: the Signal Metadata Format Specification, version 1.2.
//!
//! # Gaps
//!
//! Where the `core:global_index` of a capture is beyond the end of the capture before it, samples are missing between
//! the two: they are lost. Our own recordings hold the tokens that were filled, so that a token's place in the data is
//! its index; an annotation with `zbmd:gap` covers each run of them and says why they were filled.

mod datatype;
mod datetime;
mod read;
mod write;

pub use datatype::Datatype;
pub use read::{MAX_META_BYTES, Recording, Segment, SigmfError};
pub use write::{Capture, RecordingSettings, describe, describe_captures};

use std::path::{Path, PathBuf};

/// Extension of a description.
const META_EXTENSION: &str = "sigmf-meta";
/// Extension of the samples.
const DATA_EXTENSION: &str = "sigmf-data";
/// The key of annotations that says why samples were filled: a [`crate::Cause`].
const GAP_KEY: &str = "zbmd:gap";

/// Whether the name is that of a recording: either of its two files stands for both.
pub fn is_recording(path: &Path) -> bool {
    let extension = path.extension();
    extension.is_some_and(|extension| extension == META_EXTENSION || extension == DATA_EXTENSION)
}

/// The description of a recording.
pub fn meta_path(path: &Path) -> PathBuf {
    path.with_extension(META_EXTENSION)
}

/// The samples of a recording.
pub fn data_path(path: &Path) -> PathBuf {
    path.with_extension(DATA_EXTENSION)
}
