//! Where there are no runtime folders, owners and locks that are looked at: no pages.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

pub(super) fn folder() -> io::Result<PathBuf> {
    Err(ErrorKind::Unsupported.into())
}

/// Where a run takes commands: nowhere.
///
/// # Errors
/// Always.
pub fn control_path_of(_: u32) -> io::Result<PathBuf> {
    folder()
}

pub(super) fn path_of(_: u32) -> io::Result<PathBuf> {
    folder()
}

pub(super) fn create(_: u32) -> io::Result<(File, PathBuf)> {
    Err(ErrorKind::Unsupported.into())
}

pub(super) fn open(_: &Path) -> io::Result<File> {
    Err(ErrorKind::Unsupported.into())
}

pub(super) fn is_left_behind(_: &File) -> bool {
    false
}

pub(super) fn remove(_: &Path) {}

pub(super) fn pids_in(_: &Path) -> Vec<u32> {
    Vec::new()
}

pub(super) fn remove_left_behind() {}

/// Where runs leave word for each other: nowhere.
///
/// # Errors
/// Always.
pub fn runtime_folder() -> io::Result<PathBuf> {
    folder()
}
