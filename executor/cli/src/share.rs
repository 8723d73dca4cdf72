//! `--share`: holds a run to what its plan takes of the machine, and says what the system gives of that.

use std::io;
use std::path::{Path, PathBuf};

use zbmd_executor::{Engine, WorkerShare, check_stream_priority};

use crate::args::Args;
use crate::share_register::{self, RegisteredShare, RunShare};
use crate::{CliError, say};

/// Where the system shows its control groups.
const GROUPS: &str = "/sys/fs/cgroup";
/// Of a core, for the threads that move tokens and look on.
const SIDE_SHARE: f64 = 0.05;
/// Time over which the limit is counted.
const LIMIT_PERIOD_US: u64 = 100_000;

/// Says what the run is held to, and sets what holds for all of its threads; workers see to themselves.
///
/// # Errors
/// No stream has a sample rate: nothing says what its share is. Or what else runs leaves no room for it.
pub(crate) fn hold(args: &Args, engine: &Engine) -> Result<Option<HeldShare>, CliError> {
    let Some(name) = &args.share else {
        return Ok(None);
    };
    let shares = engine.shares().ok_or_else(|| {
        let model = &engine.program().graph.name;
        let text = format!(
            "--share: no source and no sink of `{model}` has a sample rate, so nothing says what its share is: give one in the model"
        );
        CliError::Usage(text)
    })?;
    let note = |line: String| {
        if !args.quiet {
            say(format_args!("zbmd-run: share {name}: {line}"));
        }
    };
    let in_all: f64 = shares.iter().map(|share| share.reservation.share()).sum();
    let run = RunShare {
        name: name.clone(),
        cores: in_all,
    };
    let entry = match share_register::enter(run)? {
        Ok(entry) => Some(entry),
        Err(error) => {
            note(format!("no other run is told of it: {error}"));
            None
        }
    };

    for share in &shares {
        note(worker_line(share));
    }
    match check_stream_priority() {
        Ok(()) => note("threads that move tokens run before all ordinary ones".to_owned()),
        Err(error) => note(format!(
            "threads that move tokens are ordinary ones, as the system gives them no priority: {error}"
        )),
    }
    let group = HeldGroup::enter(Path::new(GROUPS), &own_group(), name, in_all + SIDE_SHARE);
    let group = match group {
        Ok(group) => {
            note(format!("all threads take at most {}", group.limit));
            Some(group)
        }
        Err(error) => {
            note(format!("nothing limits all threads together: {error}"));
            None
        }
    };
    Ok(Some(HeldShare {
        _group: group,
        _entry: entry,
    }))
}

/// What holds as long as the run lasts.
#[derive(Debug)]
pub(crate) struct HeldShare {
    _group: Option<HeldGroup>,
    _entry: Option<RegisteredShare>,
}

fn worker_line(share: &WorkerShare) -> String {
    let WorkerShare {
        device,
        reservation,
        promised,
    } = share;
    match promised {
        Ok(()) => format!("{device} has {reservation}, promised by the system"),
        Err(error) => {
            format!("{device} needs {reservation}, which the system does not promise: {error}")
        }
    }
}

/// The group of this process in version 2; the root where there is none.
fn own_group() -> String {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut lines = groups.lines();
    let own = lines.find_map(|line| line.strip_prefix("0::"));
    own.unwrap_or("/").to_owned()
}

/// A control group that this process is in; it goes back and removes the group when this is dropped.
#[derive(Debug)]
pub(crate) struct HeldGroup {
    group: PathBuf,
    before: PathBuf,
    limit: String,
}

impl HeldGroup {
    /// Makes a group beside the one of this process, or below it, with so many cores at most, and enters it.
    ///
    /// # Errors
    /// Why not: no version 2 of control groups, no right to them, or a group whose processor time nobody gives out.
    fn enter(mount: &Path, own: &str, name: &str, cores: f64) -> io::Result<Self> {
        let before = mount.join(own.trim_start_matches('/'));
        let parent = giving_group(mount, &before).ok_or_else(|| {
            io::Error::other(format!(
                "no group of cgroup v2 at {} gives out processor time (`cpu` in `cgroup.subtree_control`)",
                before.display()
            ))
        })?;
        let group = parent.join(format!("zbmd-{name}"));
        let in_group = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", group.display()))
        };
        match std::fs::create_dir(&group) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(in_group(error));
            }
            _ => {}
        }
        let held = Self {
            limit: format!("{cores:.2} cores in {LIMIT_PERIOD_US} us"),
            group: group.clone(),
            before,
        };
        let quota_us = (cores * LIMIT_PERIOD_US as f64).ceil() as u64;
        let limit = format!("{quota_us} {LIMIT_PERIOD_US}");
        std::fs::write(group.join("cpu.max"), limit).map_err(in_group)?;
        let process = std::process::id().to_string();
        std::fs::write(group.join("cgroup.procs"), process).map_err(in_group)?;
        Ok(held)
    }
}

impl Drop for HeldGroup {
    fn drop(&mut self) {
        // Another run of this name may be in it: then it stays.
        let process = std::process::id().to_string();
        let _ = std::fs::write(self.before.join("cgroup.procs"), process);
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// The nearest group, from the parent of a process's own one up, that gives processor time to those in it. A group that
/// has processes gives none, but for the root.
fn giving_group(mount: &Path, own: &Path) -> Option<PathBuf> {
    let mut group = match own == mount {
        true => own,
        false => own.parent()?,
    };
    loop {
        let given = std::fs::read_to_string(group.join("cgroup.subtree_control"));
        if given.is_ok_and(|given| given.split_whitespace().any(|word| word == "cpu")) {
            return Some(group.to_owned());
        }
        group = group.parent().filter(|parent| parent.starts_with(mount))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folders and files in the place of the system's.
    fn tree(folders: &[(&str, &str)]) -> tempfile::TempDir {
        let mount = tempfile::tempdir().expect("a folder");
        for (folder, given) in folders {
            let path = mount.path().join(folder);
            std::fs::create_dir_all(&path).expect("made");
            std::fs::write(path.join("cgroup.subtree_control"), given).expect("written");
            std::fs::write(path.join("cgroup.procs"), "").expect("written");
        }
        mount
    }

    #[test]
    fn a_group_is_made_where_processor_time_is_given_out() {
        let mount = tree(&[("", "cpu memory"), ("user", "memory"), ("user/session", "")]);
        let held =
            HeldGroup::enter(mount.path(), "/user/session", "radio", 0.425).expect("entered");
        let group = mount.path().join("zbmd-radio");
        let read = |file: &str| std::fs::read_to_string(group.join(file)).expect("written");
        assert_eq!(read("cpu.max"), "42500 100000");
        assert_eq!(read("cgroup.procs"), std::process::id().to_string());
        drop(held);
        let back = mount.path().join("user/session/cgroup.procs");
        let back = std::fs::read_to_string(back).expect("written");
        assert_eq!(back, std::process::id().to_string());
    }

    #[test]
    fn what_is_missing_is_named() {
        let without_cpu = tree(&[("", "memory"), ("user", "cpu")]);
        let error = HeldGroup::enter(without_cpu.path(), "/user", "radio", 0.5).expect_err("none");
        assert!(
            error
                .to_string()
                .contains("`cpu` in `cgroup.subtree_control`"),
            "{error}"
        );
        // A file where the group would be.
        let taken = tree(&[("", "cpu")]);
        std::fs::write(taken.path().join("zbmd-radio"), "").expect("written");
        let error = HeldGroup::enter(taken.path(), "/", "radio", 0.5).expect_err("taken");
        assert!(error.to_string().contains("zbmd-radio"), "{error}");
    }
}
