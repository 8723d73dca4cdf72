//! A folder of checkpoints: of one run, and used by one process at a time. Knows files, not command lines.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use zbmd_ir::Graph;

use super::{Checkpoint, CheckpointError, IdentityError, RunIdentity};

const EXTENSION: &str = "zbcp";
/// What names the run that a folder is of.
const IDENTITY_FILE: &str = "run.zbrun";
/// An advisory lock on it says that a process uses the folder; the system frees it when that process is gone.
const LOCK_FILE: &str = ".lock";
/// Files that are still being written; after a SIGKILL they stay, until the next run on the folder removes them.
const TEMPORARY_PREFIX: &str = ".zbmd-checkpoint-";
/// No description of a run is longer.
const MAX_IDENTITY_BYTES: u64 = 64 << 20;

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum FolderError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{}: another run is using this folder: wait for its end, or give each run a folder of its own",
        path.display()
    )]
    InUse { path: PathBuf },
    #[error(
        "{}: holds `{file}`, which is not of a run: name an empty folder, or one that does not exist yet",
        path.display()
    )]
    Foreign { path: PathBuf, file: String },
    #[error("{}: {source}; --checkpoint-replace removes what is left of that run", path.display())]
    Identity {
        path: PathBuf,
        source: IdentityError,
    },
}

/// What a folder holds.
#[derive(Debug)]
pub enum Found {
    /// Nothing of any run.
    Empty,
    /// Checkpoints, or none yet, of this run.
    Run(Box<RunIdentity>),
}

/// The checkpoints in a folder, which is locked as long as this lives.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    keep: usize,
    _lock: File,
}

impl Folder {
    /// Makes the folder if it is not there, and locks it; `keep` (at least 1) checkpoints are kept. Nothing in it is
    /// changed.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open(path: &Path, keep: usize) -> Result<Self, FolderError> {
        let failed = |source| FolderError::Io {
            path: path.to_owned(),
            source,
        };
        fs::create_dir_all(path).map_err(failed)?;
        if let Some(file) = foreign_file(path).map_err(failed)? {
            return Err(FolderError::Foreign {
                path: path.to_owned(),
                file,
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
                return Err(FolderError::InUse {
                    path: path.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        Ok(Self {
            path: path.to_owned(),
            keep: keep.max(1),
            _lock: lock_file,
        })
    }

    /// Which run's checkpoints are here.
    ///
    /// # Errors
    /// What the file system says; checkpoints that no run is named for, and a damaged name.
    pub fn found(&self) -> Result<Found, FolderError> {
        let identity_bytes = match read_regular(&self.path.join(IDENTITY_FILE), MAX_IDENTITY_BYTES)
        {
            Ok(identity_bytes) => identity_bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let checkpoint_files = self.files().map_err(|source| self.failed(source))?;
                return match checkpoint_files.len() {
                    0 => Ok(Found::Empty),
                    checkpoints => Err(self.identity_error(IdentityError::Missing { checkpoints })),
                };
            }
            Err(error) => return Err(self.failed(error)),
        };

        let identity =
            RunIdentity::parse(&identity_bytes).map_err(|source| self.identity_error(source))?;
        Ok(Found::Run(Box::new(identity)))
    }

    fn identity_error(&self, source: IdentityError) -> FolderError {
        FolderError::Identity {
            path: self.path.join(IDENTITY_FILE),
            source,
        }
    }

    fn failed(&self, source: io::Error) -> FolderError {
        FolderError::Io {
            path: self.path.clone(),
            source,
        }
    }

    /// Names the run that the folder is of, in place of any other, whose checkpoints are removed.
    ///
    /// # Errors
    /// What the file system says.
    pub fn claim(&self, identity: &RunIdentity) -> io::Result<()> {
        self.remove_leftovers()?;
        // Checkpoints before the name: without them the folder belongs to nobody.
        for file in self.files()? {
            fs::remove_file(file)?;
        }
        self.write_whole(IDENTITY_FILE, &identity.encode())
    }

    /// Goes on with the run that the folder is of: checkpoints after `newest` are not of its future.
    ///
    /// # Errors
    /// What the file system says.
    pub fn go_on(&self, newest: Option<&Checkpoint>) -> io::Result<()> {
        self.remove_leftovers()?;
        let newest_file = newest.map(|checkpoint| self.path.join(file_name(checkpoint)));
        for file in self.files()? {
            if newest_file.as_ref().is_none_or(|newest| file > *newest) {
                fs::remove_file(file)?;
            }
        }
        Ok(())
    }

    /// Files that were being written when their process was killed. The lock says that it is gone.
    fn remove_leftovers(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if is_temporary(&entry.file_name().to_string_lossy()) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// The checkpoints' files, the newest first.
    ///
    /// # Errors
    /// What the file system says.
    pub fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut checkpoint_files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == EXTENSION)
            {
                checkpoint_files.push(path);
            }
        }
        // Names hold the number of iterations with leading zeros.
        checkpoint_files.sort_unstable_by(|a, b| b.cmp(a));
        Ok(checkpoint_files)
    }

    /// Writes a checkpoint and removes those that are too old. After a power failure too, each file in the folder is
    /// whole.
    ///
    /// # Errors
    /// What the file system says; then the older checkpoints are all still there.
    pub fn write(&self, checkpoint: &Checkpoint, graphs: &[&Graph]) -> io::Result<()> {
        let checkpoint_name = file_name(checkpoint);
        self.write_whole(&checkpoint_name, &checkpoint.encode(graphs))?;

        let written_file = self.path.join(checkpoint_name);
        let older_files = self
            .files()?
            .into_iter()
            .filter(|file| *file < written_file);
        for old in older_files.skip(self.keep - 1) {
            // One too many is no harm.
            let _ = fs::remove_file(old);
        }
        Ok(())
    }

    /// A file that is whole or not there: written under another name, which nobody can foresee.
    fn write_whole(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut temporary_file = tempfile::Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .tempfile_in(&self.path)?;
        temporary_file.write_all(bytes)?;
        temporary_file.as_file().sync_all()?;
        temporary_file
            .persist(self.path.join(name))
            .map_err(|failure| failure.error)?;
        // The new name is safe only once the folder is.
        File::open(&self.path)?.sync_all()
    }

    /// The newest checkpoint of a run that is sound and that `fits` lets pass; and what is wrong with newer ones.
    ///
    /// # Errors
    /// What the file system says of the folder.
    pub fn newest(
        &self,
        graphs: &[&Graph],
        run_id: &str,
        mut fits: impl FnMut(&Checkpoint) -> Result<(), String>,
    ) -> io::Result<(Option<Checkpoint>, Vec<String>)> {
        let mut passed_over = Vec::new();
        for path in self.files()? {
            let read_result = read_regular(&path, Checkpoint::max_file_bytes(graphs));
            let checkpoint_bytes = read_result.map_err(CheckpointError::from);
            let decoded_checkpoint =
                checkpoint_bytes.and_then(|bytes| Checkpoint::decode(&bytes, graphs));

            let accepted_checkpoint = match decoded_checkpoint {
                Ok(checkpoint) if checkpoint.run_id != run_id => Err(CheckpointError::Run {
                    found: checkpoint.run_id,
                    expected: run_id.to_owned(),
                }
                .to_string()),
                Ok(checkpoint) => fits(&checkpoint).map(|()| checkpoint),
                Err(error) => Err(error.to_string()),
            };

            match accepted_checkpoint {
                Ok(checkpoint) => return Ok((Some(checkpoint), passed_over)),
                Err(text) => passed_over.push(format!("{}: {text}", path.display())),
            }
        }
        Ok((None, passed_over))
    }
}

fn file_name(checkpoint: &Checkpoint) -> String {
    format!("{:020}.{EXTENSION}", checkpoint.state.iterations)
}

fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY_PREFIX)
}

/// The name of a file in the folder that no run has written, if there is one.
fn foreign_file(folder: &Path) -> io::Result<Option<String>> {
    let mut foreign_name = None;
    for entry in fs::read_dir(folder)? {
        let file_name = entry?.file_name().to_string_lossy().into_owned();
        let is_checkpoint = Path::new(&file_name)
            .extension()
            .is_some_and(|extension| extension == EXTENSION);
        let is_ours = is_checkpoint
            || file_name == LOCK_FILE
            || file_name == IDENTITY_FILE
            || is_temporary(&file_name);
        if !is_ours && foreign_name.as_ref().is_none_or(|known| file_name < *known) {
            foreign_name = Some(file_name);
        }
    }
    Ok(foreign_name)
}

/// Reads a file of the folder. Nothing else than a regular file is opened for long: a pipe would be waited for, and a
/// device may never end.
fn read_regular(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let regular_file = File::options()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
        .open(path)?;

    let file_metadata = regular_file.metadata()?;
    if !file_metadata.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    if file_metadata.len() > max_bytes {
        return Err(io::Error::other(format!(
            "has {} bytes, the maximum here is {max_bytes}",
            file_metadata.len()
        )));
    }

    let mut bytes = Vec::new();
    regular_file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::Origin;
    use super::*;
    use zbmd_ir::testing::programs;
    use zbmd_ir::{PresentMode, State};

    const RUN: &str = "a run";

    fn checkpoint(iterations: u64) -> (Graph, Checkpoint) {
        let graph = programs::window().graph;
        let origin = Origin::of(&State::initial(&graph), &PresentMode::default());
        let mut state = State::initial(&graph);
        let repetition = zbmd_ir::verify::graph::repetition(&graph).expect("consistent");
        state.iterations = iterations;
        for (source, tokens) in &mut state.consumed {
            *tokens = iterations * repetition[*source] * graph.actors[*source].outputs[0].rate;
        }
        let run_id = RUN.to_owned();
        let per_iteration = graph
            .sinks()
            .map(|(id, sink)| repetition[id] * sink.inputs[0].rate);
        let checkpoint = Checkpoint {
            run_id,
            origin,
            sink_tokens: per_iteration.map(|tokens| iterations * tokens).collect(),
            state,
            present_mode: PresentMode::default(),
        };
        (graph, checkpoint)
    }

    fn newest(folder: &Folder, graph: &Graph) -> (Option<Checkpoint>, Vec<String>) {
        folder.newest(&[graph], RUN, |_| Ok(())).expect("there")
    }

    #[test]
    fn a_folder_keeps_the_last_few_and_passes_damaged_ones_over() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(&place.path().join("deep/er"), 3).expect("made");
        let (graph, _) = checkpoint(0);
        assert!(newest(&folder, &graph).0.is_none());
        for iterations in [5, 40, 300, 2000] {
            folder
                .write(&checkpoint(iterations).1, &[&graph])
                .expect("written");
        }
        let files = folder.files().expect("there");
        assert_eq!(files.len(), 3);

        fs::write(&files[0], b"ZBCP, but not really one of them").expect("damaged");
        let (found, damaged) = newest(&folder, &graph);
        assert_eq!(found.expect("an older one").state.iterations, 300);
        assert_eq!(damaged.len(), 1);

        let mut other_graph = graph.clone();
        other_graph.actors.raw[0].name.push('x');
        let (found, damaged) = newest(&folder, &other_graph);
        assert!(found.is_none() && damaged.len() == 3, "another graph");
        let (found, of_others) = folder
            .newest(&[&graph], "another run", |_| Ok(()))
            .expect("there");
        assert!(found.is_none(), "of another run");
        assert!(of_others[1].contains("is of run a run"), "{of_others:?}");
    }

    #[test]
    fn what_does_not_fit_the_files_is_passed_over_and_then_removed() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(place.path(), 3).expect("made");
        let (graph, _) = checkpoint(0);
        for iterations in [5, 40, 300] {
            folder
                .write(&checkpoint(iterations).1, &[&graph])
                .expect("written");
        }
        let fits = |checkpoint: &Checkpoint| match checkpoint.state.iterations {
            300 => Err("the output is shorter".to_owned()),
            _ => Ok(()),
        };
        let (found, passed_over) = folder.newest(&[&graph], RUN, fits).expect("there");
        let found = found.expect("an older one");
        assert_eq!((found.state.iterations, passed_over.len()), (40, 1));

        // A file that was written when its process was killed goes too.
        fs::write(place.path().join(".zbmd-checkpoint-k1ll3d"), "half").expect("written");
        folder.go_on(Some(&found)).expect("removed");
        assert_eq!(folder.files().expect("there").len(), 2);
        assert!(!place.path().join(".zbmd-checkpoint-k1ll3d").exists());

        // One that is younger than a file of a later border is not thrown away as too old.
        folder
            .write(&checkpoint(2000).1, &[&graph])
            .expect("written");
        folder.write(&checkpoint(50).1, &[&graph]).expect("written");
        let file_names = folder.files().expect("there");
        assert!(
            file_names
                .iter()
                .any(|name| name.ends_with("00000000000000000050.zbcp")),
            "{file_names:?}"
        );
    }

    #[test]
    fn one_process_at_a_time_and_nothing_of_others() {
        let place = tempfile::tempdir().expect("a folder");
        let locked_folder = Folder::open(place.path(), 2).expect("made");
        let error = Folder::open(place.path(), 2).expect_err("it is locked");
        assert!(matches!(error, FolderError::InUse { .. }), "{error}");
        drop(locked_folder);
        drop(Folder::open(place.path(), 2).expect("free again"));

        fs::write(place.path().join("letter.txt"), "dear").expect("written");
        let error = Folder::open(place.path(), 2).expect_err("somebody else's");
        assert!(error.to_string().contains("`letter.txt`"), "{error}");

        let foreign_folder = tempfile::tempdir().expect("a folder");
        fs::write(foreign_folder.path().join("letter.txt"), "dear").expect("written");
        Folder::open(foreign_folder.path(), 2).expect_err("somebody else's");
        assert!(!foreign_folder.path().join(LOCK_FILE).exists(), "untouched");
    }

    #[test]
    fn a_checkpoint_that_never_ends_is_not_waited_for() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(place.path(), 2).expect("made");
        let (graph, first) = checkpoint(5);
        folder.write(&first, &[&graph]).expect("written");
        let mknod_result = rustix::fs::mknodat(
            rustix::fs::CWD,
            place.path().join("00000000000000000009.zbcp"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        );
        mknod_result.expect("a pipe");
        std::os::unix::fs::symlink("/dev/zero", place.path().join("00000000000000000008.zbcp"))
            .expect("a link");
        let (found, passed_over) = newest(&folder, &graph);
        assert_eq!(found, Some(first));
        assert!(
            passed_over[0].contains("is not a regular file"),
            "{passed_over:?}"
        );
        assert_eq!(passed_over.len(), 2);
    }

    #[test]
    fn a_full_disk_leaves_the_older_ones() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(&place.path().join("points"), 2).expect("made");
        let (graph, first) = checkpoint(5);
        folder.write(&first, &[&graph]).expect("written");
        let missing_folder = Folder {
            path: place.path().join("not there"),
            keep: 2,
            _lock: File::open(place.path()).expect("a folder"),
        };
        missing_folder
            .write(&checkpoint(6).1, &[&graph])
            .expect_err("no folder to write to");
        assert_eq!(newest(&folder, &graph).0, Some(first));
    }
}
