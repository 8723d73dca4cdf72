//! Bundles on disk: written whole or not at all, mapped when opened.
#![expect(
    unsafe_code,
    reason = "maps the file, so that gigabytes of weights are not copied"
)]

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use bytes::Bytes;

use super::decode::{decode, decode_meta};
use super::encode::Layout;
use super::{BundleError, Meta};
use crate::Program;
use crate::verify::{Verified, VerifyError, verify};

/// Why a bundle could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file cannot be read.
    #[error("cannot read the bundle: {0}")]
    Io(#[from] io::Error),
    /// The file is no bundle, or damaged.
    #[error("not a bundle that can be used: {0}")]
    Bundle(#[from] BundleError),
    /// The program in it breaks rules that the executor relies on.
    #[error("the program is refused: {} ({} in all)", .0.first().map(VerifyError::to_string).unwrap_or_default(), .0.len())]
    Verify(Vec<VerifyError>),
}

/// Writes a bundle without meta strings; see [`write_with`].
///
/// # Errors
/// What the file system says.
pub fn write(path: &Path, program: &Verified<Program>) -> io::Result<()> {
    write_with(path, program, &Meta::new())
}

/// Writes a bundle. Whoever opens the path sees the old file or the whole new one, also after a power failure.
///
/// # Errors
/// What the file system says; then the old file is still there.
pub fn write_with(path: &Path, program: &Verified<Program>, meta: &Meta) -> io::Result<()> {
    let layout = Layout::new(program, meta);
    replace(path, |out| layout.write(out))
}

/// Writes the bytes of a bundle without meta strings to whatever takes bytes, never holding all of them at once.
///
/// # Errors
/// What `out` says.
pub fn write_to(out: &mut dyn Write, program: &Verified<Program>) -> io::Result<()> {
    Layout::new(program, &Meta::new()).write(out)
}

/// Replaces the file at `path` by what `write` gives, atomically.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".zbmd-");
    #[cfg(unix)]
    {
        // Files for one's own eyes only are the default of temporary files; a bundle is an ordinary file.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder)?;
    let mut out = BufWriter::new(file.as_file_mut());
    write(&mut out)?;
    out.flush()?;
    drop(out);
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    // The new name is safe only once the folder is.
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    Ok(())
}

/// Maps, checks and verifies a bundle. Blobs stay in the mapped file: it may be replaced (as [`write()`] does) but must
/// not be changed in place while the program lives.
///
/// # Errors
/// See [`OpenError`].
pub fn open(path: &Path) -> Result<Verified<Program>, OpenError> {
    verify(decode(map(path)?)?).map_err(OpenError::Verify)
}

/// The meta strings of a bundle.
///
/// # Errors
/// See [`OpenError`]; nothing is verified.
pub fn open_meta(path: &Path) -> Result<Meta, OpenError> {
    Ok(decode_meta(&map(path)?)?)
}

fn map(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    // An empty file cannot be mapped everywhere; it is no bundle either way.
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read-only. That no one changes or shortens the file in place is required of
    // callers by `open`; bundles are only ever replaced by renaming, which leaves the mapped file as it is.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    Ok(Bytes::from_owner(map))
}
