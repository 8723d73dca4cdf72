//! The files of `--load-state` and `--save-state`.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{Graph, PresentMode, State, state};

use super::args::Args;
use super::{CliError, say};
use crate::checkpoint::hash_of_file;
use crate::flight::ReplayStart;
use crate::io::{FileError, read_whole};

/// A state, and the mode that it is of.
#[derive(Clone, Debug)]
pub(super) struct LoadedState {
    pub(super) state: State,
    pub(super) present_mode: PresentMode,
}

impl From<LoadedState> for ReplayStart {
    fn from(loaded: LoadedState) -> Self {
        Self {
            present_mode: loaded.present_mode,
            ..Self::from(loaded.state)
        }
    }
}

/// Reads a state of a run of these modes.
pub(super) fn load(
    args: &Args,
    path: &Path,
    bundle: &Path,
    modes: &VerifiedModes,
) -> Result<LoadedState, CliError> {
    let graphs: Vec<&Graph> = modes.graphs().collect();
    let bytes = match read_whole(path, state::max_file_bytes_with_mode(&graphs)) {
        Ok(bytes) => bytes,
        Err(FileError::Content { path, message }) => {
            return Err(CliError::Refused {
                path,
                text: format!("{message}: it is not a state of this model"),
            });
        }
        Err(error) => return Err(error.into()),
    };
    let decoded = state::decode_with_mode(&bytes, &graphs);
    let (saved, present_mode) = decoded.map_err(|source| CliError::State {
        path: path.to_owned(),
        source,
    })?;

    let this_bundle = bundle_hash(bundle)?;
    if let Some(saved_by) = saved.bundle_hash.filter(|hash| *hash != this_bundle)
        && !args.quiet
    {
        say(format_args!(
            "zbmd-run: note: {} was saved by a run of bundle {saved_by:016x}, this one is {this_bundle:016x} with the same graph",
            path.display()
        ));
    }
    Ok(LoadedState {
        state: saved.state,
        present_mode,
    })
}

/// Writes the state that a run ended at.
pub(super) fn save(
    path: &Path,
    bundle: &Path,
    left: &LoadedState,
    modes: &VerifiedModes,
) -> Result<(), CliError> {
    let hash = bundle_hash(bundle)?;
    let LoadedState {
        state,
        present_mode,
    } = left;
    let graphs: Vec<&Graph> = modes.graphs().collect();
    let bytes = match graphs.as_slice() {
        [graph] => state::encode(state, graph, Some(hash)),
        graphs => state::encode_with_mode(state, present_mode, graphs, Some(hash)),
    };
    let failed = |source| FileError::Io {
        path: path.to_owned(),
        source,
    };
    Ok(replace(path, &bytes).map_err(failed)?)
}

fn bundle_hash(bundle: &Path) -> Result<u64, FileError> {
    hash_of_file(bundle).map_err(|source| FileError::Io {
        path: bundle.to_owned(),
        source,
    })
}

/// Replaces a file as a whole: it has the old content or the new, also after the loss of this process. A link stays
/// one. What is not a regular file is written as it is.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let existing = fs::metadata(path);
    let target = match &existing {
        Ok(metadata) if !metadata.is_file() => return fs::write(path, bytes),
        Ok(_) => fs::canonicalize(path)?,
        // A link to nothing: writing makes what it leads to.
        Err(_) if fs::symlink_metadata(path).is_ok() => return fs::write(path, bytes),
        Err(_) => path.to_owned(),
    };
    let folder = target.parent().filter(|folder| *folder != Path::new(""));
    // As for any new file: what the user's mask leaves of this.
    let mode = existing.map_or(0o666, |metadata| metadata.permissions().mode() & 0o777);
    let temporary = tempfile::Builder::new()
        .prefix(".zbmd-state-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder.unwrap_or(Path::new(".")));
    let mut temporary = match temporary {
        // A folder in which no file can be made may hold one that can be written.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return fs::write(path, bytes);
        }
        other => other?,
    };
    temporary.write_all(bytes)?;
    temporary.as_file().sync_all()?;
    temporary.persist(&target).map_err(|error| error.error)?;
    Ok(())
}
