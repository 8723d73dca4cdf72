//! The folder of models. Only what is in it is served: no request names a file.

#[cfg(feature = "compile")]
mod compile;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use zbmd_backends::op::Registry;
use zbmd_executor::exit;

use crate::engine::{LoadError, LoadedModel};
use crate::say;

/// The ending of a bundle's name.
const BUNDLE: &str = "zbmd";
/// Endings of models that are compiled.
const SOURCES: [&str; 2] = ["onnx", "ron"];
/// The longest name of a model.
const MAX_NAME_BYTES: usize = 128;

/// Why a folder is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RepositoryError {
    #[error("{}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error(
        "{}: it holds no model, a file that ends in .{BUNDLE}, .{} or .{}: bundles are made with `zbmdc compile`",
        path.display(), SOURCES[0], SOURCES[1]
    )]
    Empty { path: PathBuf },
    #[error(
        "{}: a model's name has letters, digits, `_`, `-` and `.`, at most {MAX_NAME_BYTES}, and is not `stats`: rename the file",
        path.display()
    )]
    Name { path: PathBuf },
    #[error(
        "{} are both the model `{name}`: rename one, or move what only another model uses into a folder below",
        shown(sources)
    )]
    Twice { name: String, sources: Vec<PathBuf> },
    #[cfg(feature = "compile")]
    #[error("{}: the model does not compile\n{}", path.display(), diagnostics.to_string().trim_end())]
    Compile {
        path: PathBuf,
        diagnostics: Box<zbmd_compiler::Diagnostics>,
    },
    #[cfg(not(feature = "compile"))]
    #[error(
        "{}: this server was built without the compiler, the feature `compile`: make a bundle with `zbmdc compile`",
        path.display()
    )]
    NoCompiler { path: PathBuf },
    #[error(transparent)]
    Model(#[from] LoadError),
}

impl RepositoryError {
    /// Its exit code, one of [`exit`].
    pub(crate) fn class(&self) -> u8 {
        match self {
            Self::Folder { .. } | Self::Empty { .. } | Self::Name { .. } | Self::Twice { .. } => {
                exit::FILE
            }
            #[cfg(feature = "compile")]
            Self::Compile { diagnostics, .. } if diagnostics.only_files() => exit::FILE,
            #[cfg(feature = "compile")]
            Self::Compile { .. } => exit::MODEL,
            #[cfg(not(feature = "compile"))]
            Self::NoCompiler { .. } => exit::FILE,
            Self::Model(error) => error.class(),
        }
    }
}

fn shown(paths: &[PathBuf]) -> String {
    let shown = paths.iter().map(|path| path.display().to_string());
    shown.collect::<Vec<_>>().join(" and ")
}

/// How the models of a folder become programs.
#[derive(Clone, Debug)]
pub(crate) struct LoadChoices {
    /// Ops and custom actors that models may use.
    pub(crate) registry: Registry,
    /// What models that are no bundles are compiled for.
    #[cfg(feature = "compile")]
    pub(crate) machine: zbmd_compiler::MachineChoice,
    /// Sizes of batches that ONNX models are compiled for; none for requests one by one.
    #[cfg(feature = "compile")]
    pub(crate) buckets: Vec<u32>,
    /// Notes and warnings are not printed.
    pub(crate) is_quiet: bool,
}

/// Loads every bundle of a folder, and compiles every model without one, in the order of their names.
///
/// # Errors
/// The first model that cannot be served: a server without a model that somebody put there would surprise them.
pub(crate) fn load(
    folder: &Path,
    choices: &LoadChoices,
) -> Result<Vec<LoadedModel>, RepositoryError> {
    let paths = entry_paths(folder).map_err(|source| RepositoryError::Folder {
        path: folder.to_owned(),
        source,
    })?;
    let chosen = chosen_files(paths)?;
    if chosen.is_empty() {
        return Err(RepositoryError::Empty {
            path: folder.to_owned(),
        });
    }

    for (name, chosen) in &chosen {
        for passed_over in chosen.passed_over.iter().filter(|_| !choices.is_quiet) {
            say(format_args!(
                "zbmd-serve: note: {name}: the bundle {} is served, and {} is not compiled",
                chosen.path.display(),
                passed_over.display(),
            ));
        }
    }
    let models = chosen
        .iter()
        .map(|(name, chosen)| load_file(name, &chosen.path, choices));
    models.collect()
}

/// Loads one model of a folder, if there is one of this name. The name is compared with those of the folder's files.
///
/// # Errors
/// It cannot be served, or the folder cannot be read.
pub(crate) fn load_one(
    folder: &Path,
    name: &str,
    choices: &LoadChoices,
) -> Result<Option<LoadedModel>, RepositoryError> {
    let mut paths = entry_paths(folder).map_err(|source| RepositoryError::Folder {
        path: folder.to_owned(),
        source,
    })?;
    // What others are called does not matter here.
    paths.retain(|path| name_of(path) == Some(name));
    let mut chosen = chosen_files(paths)?;
    let file = chosen.remove(name);
    file.map(|file| load_file(name, &file.path, choices))
        .transpose()
}

/// The files of a folder in the order of their names, so that the same error is reported each time.
fn entry_paths(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?;
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// The file that a model is made of.
#[derive(Debug, PartialEq, Eq)]
struct ChosenFile {
    path: PathBuf,
    /// Sources of the same name, beside a bundle.
    passed_over: Vec<PathBuf>,
}

/// The file of each model, by name. A bundle comes before sources of its name, as `zbmdc compile` writes it beside them;
/// which of two sources is meant cannot be known.
fn chosen_files(paths: Vec<PathBuf>) -> Result<BTreeMap<String, ChosenFile>, RepositoryError> {
    let mut by_name: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in paths {
        if !has_extension(&path, &[BUNDLE]) && !has_extension(&path, &SOURCES) {
            continue;
        }
        let Some(name) = name_of(&path) else {
            return Err(RepositoryError::Name { path });
        };
        by_name.entry(name.to_owned()).or_default().push(path);
    }

    let chosen = by_name.into_iter().map(|(name, files)| {
        let (bundles, sources): (Vec<_>, Vec<_>) = files
            .into_iter()
            .partition(|file| has_extension(file, &[BUNDLE]));
        let file = match (bundles.into_iter().next(), sources) {
            (Some(path), passed_over) => ChosenFile { path, passed_over },
            (None, mut sources) if sources.len() == 1 => ChosenFile {
                path: sources.remove(0),
                passed_over: Vec::new(),
            },
            (None, sources) => return Err(RepositoryError::Twice { name, sources }),
        };
        Ok((name, file))
    });
    chosen.collect()
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| extensions.contains(&extension))
}

fn load_file(
    name: &str,
    path: &Path,
    choices: &LoadChoices,
) -> Result<LoadedModel, RepositoryError> {
    if has_extension(path, &[BUNDLE]) {
        return Ok(LoadedModel::open(name, path, &choices.registry)?);
    }
    #[cfg(feature = "compile")]
    {
        let modes = compile::compile(name, path, choices)?;
        Ok(LoadedModel::of_modes(name, path, modes, &choices.registry)?)
    }
    #[cfg(not(feature = "compile"))]
    Err(RepositoryError::NoCompiler {
        path: path.to_owned(),
    })
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

    #[test]
    fn a_bundle_comes_before_its_source() {
        let paths = |files: &[&str]| files.iter().map(PathBuf::from).collect::<Vec<_>>();
        let chosen = chosen_files(paths(&["b.onnx", "a.onnx", "a.ron", "a.zbmd", "notes.txt"]));
        let chosen = chosen.expect("a bundle of a");
        let files: Vec<_> = chosen.into_iter().collect();
        let file = |path: &str, passed_over: &[&str]| ChosenFile {
            path: path.into(),
            passed_over: paths(passed_over),
        };
        assert_eq!(
            files,
            [
                ("a".to_owned(), file("a.zbmd", &["a.onnx", "a.ron"])),
                ("b".to_owned(), file("b.onnx", &[])),
            ]
        );

        let error = chosen_files(paths(&["m/a.onnx", "m/a.ron"])).expect_err("two sources");
        let text = error.to_string();
        assert!(text.starts_with("m/a.onnx and m/a.ron are both"), "{text}");
    }
}
