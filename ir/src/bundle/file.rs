//! Bundles on disk: written whole or not at all, copied when opened.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::decode::{decode_meta, decode_within};
use super::encode::Layout;
use super::image::{self, Image};
use super::{BundleError, Meta};
use crate::Program;
use crate::limits::MAX_STRUCTURE_BYTES;
use crate::verify::{ModesError, Verified, VerifyError, verify};

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
    /// Its copy would not fit the memory.
    #[error("the bundle takes {needed} bytes of memory, {available} bytes are available")]
    Memory {
        /// Bytes of the file.
        needed: u64,
        /// What the machine can give.
        available: u64,
    },
    /// The program in it breaks rules that the executor relies on.
    #[error("the program is refused: {} ({} in all)", .0.first().map(VerifyError::to_string).unwrap_or_default(), .0.len())]
    Verify(Vec<VerifyError>),
    /// Its modes do, or no run could go over from one to another.
    #[error("the modes are refused: {0}")]
    Modes(ModesError),
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
    let mut file_builder = tempfile::Builder::new();
    file_builder.prefix(".zbmd-");
    #[cfg(unix)]
    {
        // Files for one's own eyes only are the default of temporary files; a bundle is an ordinary file.
        use std::os::unix::fs::PermissionsExt;
        file_builder.permissions(std::fs::Permissions::from_mode(0o666));
    }

    let mut file = file_builder.tempfile_in(folder)?;
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

/// Copies, checks and verifies a bundle. Blobs share the copy's memory: what becomes of the file later is of no concern.
///
/// # Errors
/// See [`OpenError`].
pub fn open(path: &Path) -> Result<Verified<Program>, OpenError> {
    open_within(path, MAX_STRUCTURE_BYTES)
}

/// As [`open`], with another limit on the memory that the structure takes, in bytes: that is everything in the bundle
/// but the blobs.
///
/// # Errors
/// See [`OpenError`].
pub fn open_within(path: &Path, max_structure_bytes: u64) -> Result<Verified<Program>, OpenError> {
    let (bytes, image) = image::load(path)?;
    let program = decode_within(bytes, max_structure_bytes)?;
    let verified = verify(program).map_err(OpenError::Verify)?;
    Ok(verified.with_image(image))
}

/// As [`open_within`], with the meta strings: the file is copied once.
///
/// # Errors
/// See [`OpenError`].
pub fn open_with_meta(
    path: &Path,
    max_structure_bytes: u64,
) -> Result<(Verified<Program>, Meta), OpenError> {
    let (bytes, image) = image::load(path)?;
    let meta = decode_meta(&bytes)?;
    let program = decode_within(bytes, max_structure_bytes)?;
    let verified = verify(program).map_err(OpenError::Verify)?;
    Ok((verified.with_image(image), meta))
}

/// A bundle of a program, for processes that are to map it: the copy that it was opened from, or else a new one.
///
/// # Errors
/// What the system says; always where files cannot be sealed.
pub fn image_of(program: &Verified<Program>) -> io::Result<Image> {
    if let Some(image) = program.image() {
        return Ok(image.clone());
    }
    image::seal(|out| {
        let mut out = BufWriter::new(out);
        write_to(&mut out, program)?;
        out.flush()
    })
}

/// The meta strings of a bundle.
///
/// # Errors
/// See [`OpenError`]; nothing is verified.
pub fn open_meta(path: &Path) -> Result<Meta, OpenError> {
    let (bytes, _) = image::load(path)?;
    Ok(decode_meta(&bytes)?)
}
