//! The folder of models. Only what is in it when the server starts is served: no request names a file.

use std::io;
use std::path::{Path, PathBuf};

use zbmd_backends::op::Registry;
use zbmd_executor::exit;

use crate::engine::{LoadError, LoadedModel};

/// The ending of a bundle's name.
const EXTENSION: &str = "zbmd";
/// The longest name of a model.
const MAX_NAME_BYTES: usize = 128;

/// Why a folder is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RepositoryError {
    #[error("{}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("{}: it holds no bundle, a file that ends in .{EXTENSION}: make one with `zbmdc compile`", path.display())]
    Empty { path: PathBuf },
    #[error(
        "{}: a model's name has letters, digits, `_`, `-` and `.`, at most {MAX_NAME_BYTES}, and is not `stats`: rename the file",
        path.display()
    )]
    Name { path: PathBuf },
    #[error(transparent)]
    Model(#[from] LoadError),
}

impl RepositoryError {
    /// Its exit code, one of [`exit`].
    pub(crate) fn class(&self) -> u8 {
        match self {
            Self::Folder { .. } | Self::Empty { .. } | Self::Name { .. } => exit::FILE,
            Self::Model(error) => error.class(),
        }
    }
}

/// Loads every bundle of a folder, in the order of their names.
///
/// # Errors
/// The first bundle that cannot be served: a server without a model that somebody put there would surprise them.
pub(crate) fn load(
    folder: &Path,
    registry: &Registry,
) -> Result<Vec<LoadedModel>, RepositoryError> {
    let failed = |source| RepositoryError::Folder {
        path: folder.to_owned(),
        source,
    };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let entry_paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = entry_paths.collect::<Result<_, _>>().map_err(failed)?;
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == EXTENSION)
    });
    paths.sort();
    if paths.is_empty() {
        return Err(RepositoryError::Empty {
            path: folder.to_owned(),
        });
    }

    let models = paths.iter().map(|path| {
        let name = name_of(path).ok_or_else(|| RepositoryError::Name { path: path.clone() })?;
        Ok(LoadedModel::open(name, path, registry)?)
    });
    models.collect()
}

/// The name of the model of a file; nothing if no path or metric can hold it as it is.
fn name_of(path: &Path) -> Option<&str> {
    let name = path.file_stem()?.to_str()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let is_named = !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(is_plain);
    // `v2/models/stats` is the statistics of all models.
    (is_named && name != "stats" && !name.starts_with('.')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_paths_and_metrics() {
        for (file, expected) in [
            ("models/simple.zbmd", Some("simple")),
            ("a-b_c.v2.zbmd", Some("a-b_c.v2")),
            ("a b.zbmd", None),
            ("a\"b.zbmd", None),
            ("é.zbmd", None),
            ("stats.zbmd", None),
            ("..zbmd", None),
        ] {
            assert_eq!(name_of(Path::new(file)), expected, "{file}");
        }
    }
}
