//! The folder of a recording: its names, and whose it is. Knows files, not records.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Names the run and its sources.
pub(super) const HEAD_FILE: &str = "recording.zbfr";
/// A copy of the bundle that was run.
pub(super) const BUNDLE_FILE: &str = "model.zbmd";
/// An advisory lock on it says that a run is being recorded here.
const LOCK_FILE: &str = ".lock";
const SEGMENT_EXTENSION: &str = "zbseg";
/// Digits of a segment's number in its name: names sort as numbers do.
const SEGMENT_DIGITS: usize = 12;
/// Ends the names of files that are still being written.
const PART_EXTENSION: &str = "part";

/// Why a folder cannot be recorded to, or replayed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum RecordingError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{}: another run is being recorded here: give each run a folder of its own",
        path.display()
    )]
    InUse { path: PathBuf },
    #[error(
        "{}: holds `{file}`, which is not of a recording: name an empty folder, or one that does not exist yet",
        path.display()
    )]
    Foreign { path: PathBuf, file: String },
    #[error(
        "{}: holds a recording: replay it, name another folder, or say --record-replace to remove it",
        path.display()
    )]
    Occupied { path: PathBuf },
    #[error("{}: there is no recording here: {HEAD_FILE} is missing", path.display())]
    Missing { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Head {
        path: PathBuf,
        source: super::HeadError,
    },
    #[error("{}: at byte {offset}: {why}", path.display())]
    Content {
        path: PathBuf,
        offset: u64,
        why: String,
    },
    #[error("{}: {why}", path.display())]
    Unusable { path: PathBuf, why: String },
}

/// A folder that is locked as long as this lives.
#[derive(Debug)]
pub(super) struct LockedFolder {
    pub(super) path: PathBuf,
    _lock: File,
}

/// The name of a segment's file.
pub(super) fn segment_name(number: u64) -> String {
    format!("{number:0SEGMENT_DIGITS$}.{SEGMENT_EXTENSION}")
}

/// The number of a segment, from the name of its file.
fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SEGMENT_EXTENSION)?.strip_suffix('.')?;
    let is_number = digits.len() >= SEGMENT_DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// The segments in a folder, in order.
pub(super) fn segments(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if let Some(number) = segment_number(&entry.file_name().to_string_lossy()) {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn is_ours(name: &str) -> bool {
    let whole_name = name.strip_suffix(PART_EXTENSION);
    let name = whole_name
        .and_then(|name| name.strip_suffix('.'))
        .unwrap_or(name);
    [HEAD_FILE, BUNDLE_FILE, LOCK_FILE].contains(&name) || segment_number(name).is_some()
}

impl LockedFolder {
    /// Makes the folder if it is not there, and locks it. A recording that it holds is removed if that is asked for.
    ///
    /// # Errors
    /// See [`RecordingError`].
    pub(super) fn open(path: &Path, replaces: bool) -> Result<Self, RecordingError> {
        let failed = |source| RecordingError::Io {
            path: path.to_owned(),
            source,
        };
        fs::create_dir_all(path).map_err(failed)?;
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            names.push(
                entry
                    .map_err(failed)?
                    .file_name()
                    .to_string_lossy()
                    .into_owned(),
            );
        }
        names.sort_unstable();
        if let Some(file) = names.iter().find(|name| !is_ours(name)) {
            return Err(RecordingError::Foreign {
                path: path.to_owned(),
                file: file.clone(),
            });
        }

        let lock_file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(path.join(LOCK_FILE))
            .map_err(failed)?;
        match lock_file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(RecordingError::InUse {
                    path: path.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }

        let is_occupied = names.iter().any(|name| name == HEAD_FILE);
        if is_occupied && !replaces {
            return Err(RecordingError::Occupied {
                path: path.to_owned(),
            });
        }
        // The head first: without it, what is left is of no recording.
        names.retain(|name| name != LOCK_FILE);
        names.sort_by_key(|name| name != HEAD_FILE);
        for name in names {
            fs::remove_file(path.join(name)).map_err(failed)?;
        }
        Ok(Self {
            path: path.to_owned(),
            _lock: lock_file,
        })
    }

    /// Copies the bundle, then names the run: a folder with a head has all that a replay needs. Both are on the disk then,
    /// also after a loss of power.
    pub(super) fn begin(&self, bundle: &Path, head: &[u8]) -> io::Result<()> {
        fs::copy(bundle, self.part(BUNDLE_FILE))?;
        self.put(BUNDLE_FILE)?;
        fs::write(self.part(HEAD_FILE), head)?;
        self.put(HEAD_FILE)
    }

    fn part(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.{PART_EXTENSION}"))
    }

    /// Gives a file that is written its name.
    fn put(&self, name: &str) -> io::Result<()> {
        let part = self.part(name);
        File::open(&part)?.sync_all()?;
        fs::rename(&part, self.path.join(name))?;
        File::open(&self.path)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_one_recordings_alone() {
        let scratch = tempfile::tempdir().expect("a folder");
        let path = scratch.path().join("black-box");
        let bundle = scratch.path().join("bundle");
        fs::write(&bundle, b"a model").expect("written");

        let folder = LockedFolder::open(&path, false).expect("new");
        folder.begin(&bundle, b"head").expect("written");
        fs::write(path.join(segment_name(7)), b"").expect("written");
        let in_use = LockedFolder::open(&path, true).expect_err("locked");
        assert!(matches!(in_use, RecordingError::InUse { .. }), "{in_use}");
        drop(folder);

        let occupied = LockedFolder::open(&path, false).expect_err("there is one");
        assert!(
            matches!(occupied, RecordingError::Occupied { .. }),
            "{occupied}"
        );
        drop(LockedFolder::open(&path, true).expect("replaced"));
        assert!(segments(&path).expect("readable").is_empty());
        assert!(!path.join(HEAD_FILE).exists() && !path.join(BUNDLE_FILE).exists());

        fs::write(path.join("notes.txt"), b"mine").expect("written");
        let foreign = LockedFolder::open(&path, true).expect_err("not ours");
        assert!(foreign.to_string().contains("notes.txt"), "{foreign}");
    }

    #[test]
    fn segments_are_known_by_their_names() {
        assert_eq!(segment_number(&segment_name(42)), Some(42));
        for name in [
            "42.zbseg",
            "00000000004x.zbseg",
            "000000000042.zbsegx",
            ".zbseg",
        ] {
            assert_eq!(segment_number(name), None, "{name}");
        }
    }
}
