//! Where pages lie, and which files there are pages of this user's runs.
//!
//! The folder is `$XDG_RUNTIME_DIR`, or else `zbmd-UID` in the temporary folder: the user's own, open to nobody else.
//! Other users can write to the temporary folder, so nothing in it is trusted: the folder's owner and mode are checked,
//! a link is never followed, and a page that is not a file of the user's own is none.
//!
//! A run holds a lock on its page as long as it lives. A page that can be locked was left behind by a run that was killed,
//! whatever became of the number of its process.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;

/// A page is made anew so many times if others take it for one that was left behind, before it was locked.
const ATTEMPTS: u32 = 10;

/// The folder of this user's pages. It may not be there yet.
///
/// # Errors
/// The one in the temporary folder is somebody else's, or open to others.
pub(super) fn folder() -> io::Result<PathBuf> {
    let runtime_folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    if let Some(path) = runtime_folder.filter(|path| path.is_absolute())
        && std::fs::metadata(&path).is_ok_and(|data| data.is_dir() && is_own(&data))
    {
        return Ok(path);
    }
    own_folder(&std::env::temp_dir())
}

/// The user's folder in one that others can write to.
fn own_folder(shared: &Path) -> io::Result<PathBuf> {
    let own_path = shared.join(format!("zbmd-{}", geteuid().as_raw()));
    match std::fs::symlink_metadata(&own_path) {
        Ok(data) if data.is_dir() && is_own(&data) && data.mode() & 0o077 == 0 => Ok(own_path),
        Ok(_) => Err(io::Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "{}: is not a folder of this user alone: remove it, or set XDG_RUNTIME_DIR",
                own_path.display()
            ),
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(own_path),
        Err(error) => Err(error),
    }
}

fn is_own(data: &std::fs::Metadata) -> bool {
    data.uid() == geteuid().as_raw()
}

fn path_in(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("zbmd-{pid}.live"))
}

/// The socket on which a run of this user takes commands, beside its page. It is there only while the run takes any.
///
/// # Errors
/// The folder of live pages is somebody else's, or open to others.
pub fn control_path_of(pid: u32) -> io::Result<PathBuf> {
    Ok(control_path_in(&folder()?, pid))
}

fn control_path_in(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("zbmd-{pid}.control"))
}

/// The page of a process.
///
/// # Errors
/// As [`folder`].
pub(super) fn path_of(pid: u32) -> io::Result<PathBuf> {
    Ok(path_in(&folder()?, pid))
}

/// The folder in which runs of this user leave word of themselves for each other; made if it is not there.
///
/// # Errors
/// What the system says; or the folder is somebody else's, or open to others.
pub fn runtime_folder() -> io::Result<PathBuf> {
    let path = folder()?;
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        // Whoever made it meanwhile is found out.
        _ => folder(),
    }
}

/// Makes the page of a process and locks it. Pages that were left behind are removed.
///
/// # Errors
/// What the system says.
pub(super) fn create(pid: u32) -> io::Result<(File, PathBuf)> {
    let folder = runtime_folder()?;
    remove_left_behind();

    let page_path = path_in(&folder, pid);
    let mut create_options = File::options();
    create_options.write(true).create_new(true).mode(0o600);
    create_options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    for _ in 0..ATTEMPTS {
        // Of a process of the same number that is gone: else it would be this one.
        let _ = std::fs::remove_file(&page_path);
        let file = match create_options.open(&page_path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            opened => opened?,
        };
        flock(&file, FlockOperation::LockExclusive)?;
        if file.metadata()?.nlink() > 0 {
            return Ok((file, page_path));
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Opens a page: a file of this user, and no link.
///
/// # Errors
/// What the system says, or that it is not such a file.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let mut open_options = File::options();
    // A pipe with a name would wait for a writer.
    let open_flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    open_options
        .read(true)
        .custom_flags(open_flags.bits().cast_signed());
    let file = open_options.open(path)?;
    let file_data = file.metadata()?;
    match file_data.is_file() && is_own(&file_data) {
        true => Ok(file),
        false => Err(io::Error::new(
            ErrorKind::PermissionDenied,
            "is not a file of this user",
        )),
    }
}

/// Whether the run of a page is gone.
pub(super) fn is_left_behind(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Removes the page of a run that is gone, and its control socket. The caller holds the page's lock by
/// [`is_left_behind`].
pub(super) fn remove(path: &Path) {
    // Somebody else may have been faster.
    let _ = std::fs::remove_file(path.with_extension("control"));
    let _ = std::fs::remove_file(path);
}

/// The process whose page has this name; `None` for files that are no pages.
fn page_process(file_name: &str) -> Option<u32> {
    let number = file_name.strip_prefix("zbmd-")?.strip_suffix(".live")?;
    number.parse().ok()
}

/// The processes that have a page in a folder.
pub(super) fn pids_in(folder: &Path) -> Vec<u32> {
    let folder_files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = folder_files.filter_map(|file| page_process(file.file_name().to_str()?));
    let mut pids: Vec<u32> = names.collect();
    pids.sort_unstable();
    pids
}

/// Removes the pages of runs that are gone, here and where earlier versions had them.
pub(super) fn remove_left_behind() {
    let folders = [folder().ok(), Some(std::env::temp_dir())];
    for folder in folders.into_iter().flatten() {
        for pid in pids_in(&folder) {
            let page_path = path_in(&folder, pid);
            if open(&page_path).is_ok_and(|file| is_left_behind(&file)) {
                remove(&page_path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_folder_that_others_could_have_made_is_refused() {
        let shared = tempfile::tempdir().expect("a folder");
        let own_path = own_folder(shared.path()).expect("not there yet");
        std::fs::create_dir(&own_path).expect("made");
        for (mode, is_accepted) in [(0o700, true), (0o755, false), (0o777, false)] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&own_path, permissions).expect("its owner may");
            assert_eq!(own_folder(shared.path()).is_ok(), is_accepted, "{mode:o}");
        }
        std::fs::remove_dir(&own_path).expect("empty");
        symlink(shared.path(), &own_path).expect("a link");
        own_folder(shared.path()).expect_err("a link leads anywhere");
        std::fs::remove_file(&own_path).expect("a link");
        std::fs::write(&own_path, "").expect("a file");
        own_folder(shared.path()).expect_err("a file");
    }

    #[test]
    fn only_files_are_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let file_path = folder.path().join("file");
        std::fs::write(&file_path, "page").expect("written");
        open(&file_path).expect("the user's own");
        let link_path = folder.path().join("link");
        symlink(&file_path, &link_path).expect("a link");
        open(&link_path).expect_err("a link");
        open(folder.path()).expect_err("a folder");
    }

    #[test]
    fn a_page_is_left_behind_when_its_lock_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let page_path = path_in(folder.path(), 7);
        let locked_page = File::create(&page_path).expect("made");
        flock(&locked_page, FlockOperation::LockExclusive).expect("locked");
        assert_eq!(pids_in(folder.path()), [7]);
        assert!(!is_left_behind(&open(&page_path).expect("there")));
        drop(locked_page);
        assert!(is_left_behind(&open(&page_path).expect("there")));
    }
}
