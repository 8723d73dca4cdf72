//! Shares of the runs that are on: a file for each in the runtime folder, so that a run for which there is no room does not begin.
//!
//! A run holds a lock on its file as long as it lives: a file that can be locked was left behind. What a file says is read
//! only from files of this user ([`zbmd_executor::live::runtime_folder`]), and other users' runs are not known here; the
//! system's own books, which know all threads, are asked besides.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use zbmd_executor::live::runtime_folder;

/// One run at a time looks and enters itself.
const LOCK_NAME: &str = "zbmd-shares.lock";
const PREFIX: &str = "zbmd-";
const EXTENSION: &str = "share";
/// No file of ours is longer.
const MAX_BYTES: u64 = 4096;

/// What a run is held to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunShare {
    /// As given by `--share`.
    pub(crate) name: String,
    /// Cores, of all its threads together.
    pub(crate) cores: f64,
}

/// There is no room for another run.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "--share {}: processor time: {:.2} cores are needed, and {:.2} of the {:.2} that are given out are left: {}; stop one of them, or compile for a slower rate or fewer iterations a second",
    needed.name,
    needed.cores,
    (capacity - taken.iter().map(|run| run.cores).sum::<f64>()).max(0.0),
    capacity,
    listed(taken)
)]
pub(crate) struct ShareRefused {
    needed: RunShare,
    capacity: f64,
    taken: Vec<RunShare>,
}

fn listed(taken: &[RunShare]) -> String {
    let runs = taken
        .iter()
        .map(|run| format!("{} has {:.2}", run.name, run.cores));
    match taken.is_empty() {
        true => "nothing else runs".to_owned(),
        false => runs.collect::<Vec<_>>().join(", "),
    }
}

/// The entry of a run, which goes with it.
#[derive(Debug)]
pub(crate) struct RegisteredShare {
    path: PathBuf,
    _file: File,
}

impl Drop for RegisteredShare {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Enters this run, if there is room for it beside the others. Without a folder to enter it in, it goes on without an
/// entry, and why is given.
///
/// # Errors
/// There is no room.
pub(crate) fn enter(run: RunShare) -> Result<io::Result<RegisteredShare>, ShareRefused> {
    match runtime_folder() {
        Ok(folder) => enter_in(&folder, std::process::id(), run, capacity()),
        Err(error) => Ok(Err(error)),
    }
}

/// Of each core, what the system keeps for ordinary threads besides: those that it promises nothing (Linux 6.12 and newer).
const ORDINARY_SHARE: f64 = 0.05;

/// Cores whose time the system gives to threads that it promises some.
fn capacity() -> f64 {
    let read = |name: &str| -> Option<f64> {
        let text = std::fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).ok()?;
        text.trim().parse().ok()
    };
    // Without a limit the first is -1.
    let part = match (read("sched_rt_runtime_us"), read("sched_rt_period_us")) {
        (Some(runtime_us), Some(period_us)) if runtime_us >= 0.0 => runtime_us / period_us,
        _ => 1.0,
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (part - ORDINARY_SHARE) * cores as f64
}

fn enter_in(
    folder: &Path,
    pid: u32,
    run: RunShare,
    capacity: f64,
) -> Result<io::Result<RegisteredShare>, ShareRefused> {
    let lock = match locked(&folder.join(LOCK_NAME)) {
        Ok(lock) => lock,
        Err(error) => return Ok(Err(error)),
    };
    let own_path = folder.join(format!("{PREFIX}{pid}.{EXTENSION}"));
    // Of a process of the same number that is gone.
    let _ = std::fs::remove_file(&own_path);
    let taken = runs_in(folder);
    let in_use: f64 = taken.iter().map(|run| run.cores).sum();
    if in_use + run.cores > capacity {
        return Err(ShareRefused {
            needed: run,
            capacity,
            taken,
        });
    }
    let entered = write_entry(&own_path, &run);
    drop(lock);
    Ok(entered)
}

fn write_entry(path: &Path, run: &RunShare) -> io::Result<RegisteredShare> {
    let mut file = locked(path)?;
    let text = serde_json::to_string(run).map_err(io::Error::other)?;
    file.write_all(text.as_bytes())?;
    Ok(RegisteredShare {
        path: path.to_owned(),
        _file: file,
    })
}

/// A file that is made if it is not there, and locked.
fn locked(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let file = options.open(path)?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// The shares of the runs that are on, by name. What runs left behind that are gone is removed.
fn runs_in(folder: &Path) -> Vec<RunShare> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = files.map(|file| file.path());
    let mut runs: Vec<RunShare> = paths.filter_map(|path| run_of(&path)).collect();
    runs.sort_by(|a, b| a.name.cmp(&b.name));
    runs
}

fn run_of(path: &Path) -> Option<RunShare> {
    let name = path.file_name()?.to_str()?;
    let is_entry = name.starts_with(PREFIX) && path.extension().is_some_and(|e| e == EXTENSION);
    if !is_entry {
        return None;
    }
    let mut options = File::options();
    // A pipe with a name would wait for a writer.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.read(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(path).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        let _ = std::fs::remove_file(path);
        return None;
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    let run: RunShare = serde_json::from_str(&text).ok()?;
    (run.cores.is_finite() && run.cores >= 0.0).then_some(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, cores: f64) -> RunShare {
        RunShare {
            name: name.to_owned(),
            cores,
        }
    }

    #[test]
    fn a_run_without_room_is_refused_until_another_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let enter = |pid, name, cores| enter_in(folder.path(), pid, run(name, cores), 1.9);
        let first = enter(1, "first", 0.6).expect("room").expect("entered");
        let second = enter(2, "second", 0.6).expect("room").expect("entered");
        let third = enter(3, "third", 0.6).expect("room").expect("entered");
        let refused = enter(4, "fourth", 0.6).expect_err("no room");
        assert_eq!(
            refused.to_string(),
            "--share fourth: processor time: 0.60 cores are needed, and 0.10 of the 1.90 that are given out are left: \
             first has 0.60, second has 0.60, third has 0.60; stop one of them, or compile for a slower rate or fewer iterations a second"
        );
        let small = enter(5, "small", 0.1)
            .expect("room for less")
            .expect("entered");
        drop((second, small));
        enter(4, "fourth", 0.6).expect("room").expect("entered");
        drop((first, third));
        assert_eq!(runs_in(folder.path()), []);
    }

    #[test]
    fn what_dead_runs_left_behind_counts_for_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let left_behind = folder.path().join("zbmd-7.share");
        let text = serde_json::to_string(&run("dead", 1.5)).expect("it is text");
        std::fs::write(&left_behind, text).expect("written");
        std::fs::write(folder.path().join("zbmd-8.live"), "a page").expect("written");
        enter_in(folder.path(), 9, run("new", 1.0), 1.9)
            .expect("room")
            .expect("entered");
        assert!(!left_behind.exists());
        assert!(folder.path().join("zbmd-8.live").exists());
    }
}
