//! The bytes of a bundle's file as they were when it was opened: a copy that nobody can change, so that a file that is
//! overwritten or cut off later neither changes a run nor kills it. What is checked is the copy.
//!
//! On Linux the copy is a file in memory, sealed against every change; other processes can map the same one. Elsewhere
//! it is ordinary memory. Either takes as much memory as the file is long. A bundle for devices with tiers is copied to a
//! file without a name in the folder of the bundle instead, where one can be made: then its weights are in memory only as
//! far as the system has room for them.
#![cfg_attr(
    all(target_os = "linux", not(miri)),
    expect(
        unsafe_code,
        reason = "maps a sealed file, so that processes share one copy"
    )
)]

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::decode::check_start;
use super::{HEADER_BYTES, OpenError};
use crate::memory::available_bytes;

/// Bytes that are copied at a time.
#[cfg(all(target_os = "linux", not(miri)))]
const COPY_BYTES: usize = 1 << 20;

/// A copy of a bundle that nobody changes, for processes that are to map the same memory.
#[derive(Clone, Debug)]
pub struct Image {
    file: Arc<File>,
    mapped: Bytes,
}

impl Image {
    /// The file. It has no name, and nobody changes it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file, to be held for longer than the image.
    pub fn share_file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Where bytes of the program are in the file that it was read from; `None` for bytes that come from elsewhere.
    pub fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let start = bytes
            .as_ptr()
            .addr()
            .checked_sub(self.mapped.as_ptr().addr())?;
        let end = start.checked_add(bytes.len())?;
        (end <= self.mapped.len()).then_some(start as u64)
    }

    /// The bytes of the file, mapped.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.mapped
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
    if is_copy(&file) {
        return map(file);
    }

    let mut first_bytes = Vec::with_capacity(HEADER_BYTES);
    (&mut file)
        .take(HEADER_BYTES as u64)
        .read_to_end(&mut first_bytes)?;
    // Many gigabytes that are not a bundle are not copied to find that out.
    check_start(&first_bytes, file_bytes)?;
    if let Some(on_disk) = disk_file(path, &mut file)? {
        let mut source = (&file).take(file_bytes);
        return copy_to_disk(on_disk, &mut source);
    }
    file.seek(SeekFrom::Start(first_bytes.len() as u64))?;
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
    image(file)
}

/// A file without a name for the copy of a bundle that has tiers; `None` for other bundles, and where there can be none.
#[cfg(all(target_os = "linux", not(miri)))]
fn disk_file(path: &Path, bundle: &mut File) -> Result<Option<File>, OpenError> {
    let table_bytes =
        super::ENTRY_BYTES * (super::Section::ALL.len() + super::Section::OPTIONAL.len());
    let mut start = Vec::new();
    bundle.seek(SeekFrom::Start(0))?;
    (&mut *bundle)
        .take((HEADER_BYTES + table_bytes) as u64)
        .read_to_end(&mut start)?;
    bundle.seek(SeekFrom::Start(0))?;
    if !super::decode::names_tiers(&start) {
        return Ok(None);
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    Ok(tempfile::tempfile_in(folder.unwrap_or(Path::new("."))).ok())
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn disk_file(_: &Path, _: &mut File) -> Result<Option<File>, OpenError> {
    Ok(None)
}

/// Copies a bundle to a file without a name, and maps it.
#[cfg(all(target_os = "linux", not(miri)))]
fn copy_to_disk(
    mut to: File,
    from: &mut io::Take<&File>,
) -> Result<(Bytes, Option<Image>), OpenError> {
    // The system copies from file to file, on some file systems without writing the bytes again.
    io::copy(from, &mut to)?;
    map(to)
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn copy_to_disk(_: File, from: &mut io::Take<&File>) -> Result<(Bytes, Option<Image>), OpenError> {
    copy(from)
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
    let image = seal(|to| {
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(bytes) => to.write_all(&buffer[..bytes])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    })?;
    Ok(with_bytes(image))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn copy(from: &mut dyn Read) -> Result<(Bytes, Option<Image>), OpenError> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    Ok((bytes.into(), None))
}

#[cfg(all(target_os = "linux", not(miri)))]
fn map(file: File) -> Result<(Bytes, Option<Image>), OpenError> {
    Ok(with_bytes(image(file)?))
}

/// An image with its bytes. An empty file is not a bundle, and no image either.
#[cfg(all(target_os = "linux", not(miri)))]
fn with_bytes(image: Image) -> (Bytes, Option<Image>) {
    let bytes = image.mapped.clone();
    let image = (!bytes.is_empty()).then_some(image);
    (bytes, image)
}

/// The image that a file is.
#[cfg(all(target_os = "linux", not(miri)))]
fn image(file: File) -> io::Result<Image> {
    // An empty file cannot be mapped.
    let mapped = if file.metadata()?.len() == 0 {
        Bytes::new()
    } else {
        // SAFETY: the mapping is private and read-only. The file is sealed, or it is a copy that never had a name and
        // that only processes of this run hold, which do not write to it: neither its bytes nor its length ever change.
        let map = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file) }?;
        Bytes::from_owner(map)
    };
    Ok(Image {
        file: Arc::new(file),
        mapped,
    })
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn map(mut file: File) -> Result<(Bytes, Option<Image>), OpenError> {
    copy(&mut file)
}

/// Whether a file is such a copy already: a supervising process made it. It is sealed, or on a disk and in no folder.
#[cfg(all(target_os = "linux", not(miri)))]
fn is_copy(file: &File) -> bool {
    use rustix::fs::{SealFlags, fcntl_get_seals};
    use std::os::unix::fs::MetadataExt;
    match fcntl_get_seals(file) {
        Ok(seals) => seals.contains(SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW),
        // Files on disks have no seals.
        Err(_) => file.metadata().is_ok_and(|data| data.nlink() == 0),
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn is_copy(_: &File) -> bool {
    false
}
