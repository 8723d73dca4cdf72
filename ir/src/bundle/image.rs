//! The bytes of a bundle's file as they were when it was opened: a copy that nobody can change, so that a file that is
//! overwritten or cut off later neither changes a run nor kills it. What is checked is the copy.
//!
//! On Linux the copy is a file in memory, sealed against every change; other processes can map the same one. Elsewhere
//! it is ordinary memory. Either takes as much memory as the file is long.
#![cfg_attr(
    all(target_os = "linux", not(miri)),
    expect(
        unsafe_code,
        reason = "maps a sealed file, so that processes share one copy"
    )
)]

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::decode::check_start;
use super::{HEADER_BYTES, OpenError};
use crate::memory::available_bytes;

/// Bytes that are copied at a time.
#[cfg(all(target_os = "linux", not(miri)))]
const COPY_BYTES: usize = 1 << 20;

/// A sealed copy of a bundle, for processes that are to map the same memory.
#[derive(Clone, Debug)]
pub struct Image(Arc<File>);

impl Image {
    /// The file. It has no name, and nobody can change it.
    pub fn file(&self) -> &File {
        &self.0
    }
}

/// The bytes of a file, and the image behind them where there is one.
pub(super) fn load(path: &Path) -> Result<(Bytes, Option<Image>), OpenError> {
    // Asked before it is opened: to open a pipe may wait for ever.
    if !std::fs::metadata(path)?.is_file() {
        let refusal_text = "it is not a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, refusal_text).into());
    }

    let mut file = File::open(path)?;
    let file_bytes = file.metadata()?.len();
    if is_sealed(&file) {
        return map(Image(Arc::new(file)));
    }

    let mut first_bytes = Vec::with_capacity(HEADER_BYTES);
    (&mut file)
        .take(HEADER_BYTES as u64)
        .read_to_end(&mut first_bytes)?;
    // Many gigabytes that are not a bundle are not copied to find that out.
    check_start(&first_bytes, file_bytes)?;
    if let Some(available) = available_bytes()
        && file_bytes > available
    {
        return Err(OpenError::Memory {
            needed: file_bytes,
            available,
        });
    }
    // A file that grows meanwhile is cut off, and refused for its length.
    copy(&mut first_bytes.chain(file.take(file_bytes)))
}

/// A sealed image of a program that has none, as `write` gives it.
///
/// # Errors
/// What the system says.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) fn seal(write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> io::Result<Image> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("zbmd bundle", flags)?);
    write(&mut file)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(Image(Arc::new(file)))
}

/// There are no sealed files here.
///
/// # Errors
/// Always.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) fn seal(_: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> io::Result<Image> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(target_os = "linux", not(miri)))]
fn copy(from: &mut dyn Read) -> Result<(Bytes, Option<Image>), OpenError> {
    map(seal(|to| {
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(bytes) => to.write_all(&buffer[..bytes])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    })?)
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn copy(from: &mut dyn Read) -> Result<(Bytes, Option<Image>), OpenError> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    Ok((bytes.into(), None))
}

#[cfg(all(target_os = "linux", not(miri)))]
fn map(image: Image) -> Result<(Bytes, Option<Image>), OpenError> {
    // An empty file cannot be mapped; it is not a bundle either way.
    if image.0.metadata()?.len() == 0 {
        return Ok((Bytes::new(), None));
    }
    // SAFETY: the mapping is private and read-only, and the file is sealed: neither its bytes nor its length ever change.
    let map = unsafe { memmap2::MmapOptions::new().map_copy_read_only(image.file()) }?;
    Ok((Bytes::from_owner(map), Some(image)))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn map(image: Image) -> Result<(Bytes, Option<Image>), OpenError> {
    copy(&mut image.file())
}

/// Whether a file is such a copy already: a supervising process made it.
#[cfg(all(target_os = "linux", not(miri)))]
fn is_sealed(file: &File) -> bool {
    use rustix::fs::{SealFlags, fcntl_get_seals};
    let needed_seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(needed_seals))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn is_sealed(_: &File) -> bool {
    false
}
