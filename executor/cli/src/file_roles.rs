//! Files are compared before anything is written: each file of the command line has one use. By device and inode
//! where it exists, by its folder and name where it does not yet.
//!
//! - Several options may read one file.
//! - What is written belongs to one option alone; a run that loads a state may save it to the same file, which is
//!   replaced as a whole at the end.
//! - Nothing is in the folder of checkpoints but checkpoints.
//! - A character device (`/dev/null`, a terminal) and a socket keep nothing that could be lost, and may be shared: a
//!   remote shell gives its command one socket as input and output.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::CliError;
use super::args::Args;
use super::files::Files;
use super::live::LiveInput;
use crate::io::is_standard;
use zbmd_live::sigmf;

/// What an option does with its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    /// A folder that is written.
    Folder,
}

/// Every option that names files, as `--help` has it, and what it does with them. A test compares it with the options
/// that the command has: whoever adds one adds it here and in [`named_files`].
pub(super) const FILE_OPTIONS: &[(&str, Access)] = &[
    ("BUNDLE", Access::Read),
    ("--input", Access::Read),
    ("--output", Access::Write),
    ("--report-file", Access::Write),
    ("--load-state", Access::Read),
    ("--save-state", Access::Write),
    ("--trace", Access::Write),
    ("--supervise", Access::Read),
    ("--events", Access::Write),
    ("--checkpoint", Access::Folder),
    ("--record", Access::Folder),
    ("--inject", Access::Read),
    #[cfg(hosts)]
    ("--token-file", Access::Read),
    #[cfg(hosts)]
    ("--tls-certificate", Access::Read),
    #[cfg(hosts)]
    ("--tls-key", Access::Read),
    #[cfg(hosts)]
    ("--tls-ca", Access::Read),
];

/// A file of the command line.
#[derive(Debug)]
struct NamedFile {
    /// As people write it: `--output out=y.f32`.
    option: String,
    access: Access,
    place: FilePlace,
}

/// Where a file is.
#[derive(Debug)]
struct FilePlace {
    /// From the root, without links, as far as that exists.
    path: PathBuf,
    key: Key,
    may_be_shared: bool,
}

/// What two names of one file have in common.
#[derive(Debug, PartialEq, Eq)]
enum Key {
    /// Device and inode.
    Existing(u64, u64),
    /// Device and inode of the nearest folder that exists, and the names from there on.
    Missing(u64, u64, PathBuf),
}

/// Refuses a command line that gives one file two uses, if one of them writes it. Opens nothing.
pub(super) fn check(args: &Args, files: &Files) -> Result<(), CliError> {
    let all_files = named_files(args, files);
    for (index, first) in all_files.iter().enumerate() {
        for second in &all_files[index + 1..] {
            if let Some(text) = conflict(first, second) {
                return Err(CliError::Usage(text));
            }
        }
    }
    Ok(())
}

fn named_files(args: &Args, files: &Files) -> Vec<NamedFile> {
    let mut found_files = Vec::new();
    if let Some(path) = &args.bundle {
        found_files.extend(NamedFile::of("BUNDLE", "the bundle ", path));
    }
    for (stream, path) in &files.inputs {
        let path = match files.live.inputs.get(stream) {
            None => path,
            Some(LiveInput::FlagsOf(_)) => continue,
            // A file that is played is read.
            Some(LiveInput::Url(url)) => match url.path() {
                Some(path) => path,
                None => continue,
            },
        };
        if sigmf::is_recording(path) {
            let label = format!("--input {stream}=");
            let samples = sigmf::data_path(path);
            let description = sigmf::meta_path(path);
            found_files.extend(NamedFile::of("--input", &label, &samples));
            found_files.extend(NamedFile::of("--input", &label, &description));
            continue;
        }
        found_files.extend(NamedFile::of(
            "--input",
            &format!("--input {stream}="),
            path,
        ));
    }
    for (stream, path) in &files.outputs {
        if let Some(url) = files.live.outputs.get(stream) {
            let label = format!("{} of --output {stream}: ", url.text);
            let written = url.endpoint.written_file();
            found_files.extend(written.and_then(|path| NamedFile::of("--output", &label, path)));
            let read = url.endpoint.read_file();
            found_files.extend(read.and_then(|path| NamedFile::of("--input", &label, path)));
            continue;
        }
        found_files.extend(NamedFile::of(
            "--output",
            &format!("--output {stream}="),
            path,
        ));
    }

    for (stream, path) in &files.recordings.descriptions {
        let label = format!("--output {stream}=");
        found_files.extend(NamedFile::of("--output", &label, path));
    }

    let supervise_path = args.supervise.as_ref().and_then(Option::as_ref);
    let inject_path = args.inject.as_deref().and_then(inject_file);
    let single_files = [
        ("--report-file", args.report_file.as_ref()),
        ("--load-state", args.load_state.as_ref()),
        ("--save-state", args.save_state.as_ref()),
        ("--trace", args.trace.as_ref()),
        ("--supervise", supervise_path),
        ("--events", args.events.as_ref()),
        ("--checkpoint", args.checkpoint.as_ref()),
        ("--record", args.record.as_ref()),
        ("--inject", inject_path.as_ref()),
        #[cfg(hosts)]
        ("--token-file", args.token_file.as_ref()),
        #[cfg(hosts)]
        (
            "--tls-certificate",
            args.protection.tls_certificate.as_ref(),
        ),
        #[cfg(hosts)]
        ("--tls-key", args.protection.tls_key.as_ref()),
        #[cfg(hosts)]
        ("--tls-ca", args.protection.tls_ca.as_ref()),
    ];
    for (option, path) in single_files {
        let Some(path) = path else { continue };
        found_files.extend(NamedFile::of(option, &format!("{option} "), path));
    }
    found_files
}

/// The file of `--inject`, which is a seed or a file.
fn inject_file(text: &str) -> Option<PathBuf> {
    text.parse::<u64>().is_err().then(|| PathBuf::from(text))
}

impl NamedFile {
    /// The file of an option; `None` if it cannot even be looked at, of which opening it says why.
    fn of(option: &str, label: &str, path: &Path) -> Option<Self> {
        let known_option = FILE_OPTIONS.iter().find(|(name, _)| *name == option);
        let (_, access) = known_option.expect("every option with a file is in the list");
        let file_place = match is_standard(path) {
            true => FilePlace::of_standard(option)?,
            false => FilePlace::of(path)?,
        };
        Some(Self {
            option: format!("{label}{}", path.display()),
            access: *access,
            place: file_place,
        })
    }
}

impl FilePlace {
    /// The file that a standard stream leads to.
    fn of_standard(option: &str) -> Option<Self> {
        let standard_stream = match option {
            "--input" => io::stdin().as_fd().try_clone_to_owned(),
            "--output" => io::stdout().as_fd().try_clone_to_owned(),
            "--events" => io::stderr().as_fd().try_clone_to_owned(),
            // To other options it is a name like any other.
            _ => return Self::of(Path::new("-")),
        };
        let stream_metadata = File::from(standard_stream.ok()?).metadata().ok()?;
        Some(Self::existing(PathBuf::from("-"), &stream_metadata))
    }

    fn of(path: &Path) -> Option<Self> {
        /// As many as the system follows.
        const MAX_LINKS: usize = 40;
        let mut followed_path = path.to_owned();
        for _ in 0..MAX_LINKS {
            if let Ok(metadata) = fs::metadata(&followed_path) {
                let real_path = fs::canonicalize(&followed_path).ok()?;
                return Some(Self::existing(real_path, &metadata));
            }
            // A link to a file that is not there yet: writing makes that file.
            match fs::read_link(&followed_path) {
                Ok(target) => {
                    followed_path = followed_path.parent().unwrap_or(Path::new("")).join(target)
                }
                Err(_) => return Self::missing(&followed_path),
            }
        }
        None
    }

    fn existing(path: PathBuf, metadata: &fs::Metadata) -> Self {
        Self {
            path,
            key: Key::Existing(metadata.dev(), metadata.ino()),
            may_be_shared: keeps_nothing(metadata),
        }
    }

    fn missing(path: &Path) -> Option<Self> {
        let absolute_path = std::path::absolute(path).ok()?;
        let existing_folder = absolute_path.ancestors().find(|folder| folder.is_dir())?;
        let missing_part = absolute_path.strip_prefix(existing_folder).ok()?.to_owned();
        let real_folder = fs::canonicalize(existing_folder).ok()?;
        let metadata = fs::metadata(&real_folder).ok()?;
        Some(Self {
            path: real_folder.join(&missing_part),
            key: Key::Missing(metadata.dev(), metadata.ino(), missing_part),
            may_be_shared: false,
        })
    }

    /// Whether it lies in or below a folder, by whatever name.
    fn is_within(&self, folder: &FilePlace) -> bool {
        if self.path.starts_with(&folder.path) {
            return true;
        }
        let is_folder = |path: &Path| {
            fs::metadata(path)
                .is_ok_and(|metadata| folder.key == Key::Existing(metadata.dev(), metadata.ino()))
        };
        self.path.ancestors().skip(1).any(is_folder)
    }
}

fn keeps_nothing(metadata: &fs::Metadata) -> bool {
    let file_type = metadata.file_type();
    file_type.is_char_device() || file_type.is_socket()
}

/// What is wrong with two uses of files, if anything.
fn conflict(first: &NamedFile, second: &NamedFile) -> Option<String> {
    for (folder, other) in [(first, second), (second, first)] {
        if folder.access == Access::Folder && other.place.is_within(&folder.place) {
            return Some(format!(
                "{} is in the folder of {}, which holds nothing but checkpoints: name another place",
                other.option, folder.option
            ));
        }
    }

    let is_written = first.access != Access::Read || second.access != Access::Read;
    let is_same = first.place.key == second.place.key;
    if !is_same || !is_written || first.place.may_be_shared {
        return None;
    }
    let both_options = [&first.option, &second.option];
    if both_options.iter().all(|option| is_state_option(option)) {
        return None;
    }
    Some(format!(
        "{} and {} are the same file, and what one writes the other would lose: name two files",
        first.option, second.option
    ))
}

fn is_state_option(option: &str) -> bool {
    option.starts_with("--load-state ") || option.starts_with("--save-state ")
}

/// Refuses files that are the same now that they are open, whatever their names led to before.
pub(super) fn check_open(written: &[(&str, &File)], bundle: &Path) -> Result<(), CliError> {
    let mut seen: Vec<(String, u64, u64)> = Vec::new();
    if let Ok(metadata) = fs::metadata(bundle) {
        let bundle_label = format!("the bundle {}", bundle.display());
        seen.push((bundle_label, metadata.dev(), metadata.ino()));
    }

    for (stream, file) in written {
        let Ok(metadata) = file.metadata() else {
            continue;
        };
        if keeps_nothing(&metadata) {
            continue;
        }
        let same = seen
            .iter()
            .find(|(_, device, inode)| (*device, *inode) == (metadata.dev(), metadata.ino()));
        if let Some((other, ..)) = same {
            return Err(CliError::Usage(format!(
                "--output {stream}=… and {other} are the same file: name two files"
            )));
        }
        let option = format!("--output {stream}=…");
        seen.push((option, metadata.dev(), metadata.ino()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Options whose value is a file or a folder, by the word that stands for it in `--help`.
    #[test]
    fn every_option_with_a_file_is_in_the_list() {
        let command = Args::command();
        let names_file = |argument: &&clap::Arg| {
            if !argument.get_action().takes_values() {
                return false;
            }
            let values = argument.get_value_names().unwrap_or_default();
            let words = ["FILE", "DIR", "BUNDLE"];
            values
                .iter()
                .any(|value| words.iter().any(|word| value.contains(word)))
        };
        let mut found: Vec<String> = command
            .get_arguments()
            .filter(names_file)
            .map(|argument| match argument.get_long() {
                Some(long) => format!("--{long}"),
                None => argument.get_id().to_string().to_uppercase(),
            })
            .collect();
        let mut listed: Vec<String> = FILE_OPTIONS.iter().map(|(o, _)| (*o).to_owned()).collect();
        found.sort_unstable();
        listed.sort_unstable();
        assert_eq!(found, listed);
    }

    #[test]
    fn a_file_has_one_place_by_any_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "").expect("written");
        fs::create_dir(path("sub")).expect("a folder");
        fs::hard_link(path("file"), path("hard")).expect("a link");
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, path(name)).expect("a link");
        };
        link("file", "soft");
        link("new", "dangling");
        link("sub", "way");
        link("loop", "loop");
        let key = |name: &str| FilePlace::of(&path(name)).expect("a place").key;
        for (first, second, is_same) in [
            ("file", "hard", true),
            ("file", "soft", true),
            ("file", "sub/../file", true),
            ("new", "dangling", true),
            ("sub/new", "way/new", true),
            ("new", "file", false),
            ("new", "newer", false),
            ("sub/new", "new", false),
        ] {
            assert_eq!(key(first) == key(second), is_same, "{first} {second}");
        }
        assert!(FilePlace::of(&path("loop")).is_none());
        let within = |name: &str, folder: &str| {
            let (file, folder) = (FilePlace::of(&path(name)), FilePlace::of(&path(folder)));
            file.expect("a place").is_within(&folder.expect("a place"))
        };
        assert!(within("way/deep/new", "sub"));
        assert!(within("points/new", "points"));
        assert!(!within("file", "sub"));
        assert!(!within("points2/new", "points"));
    }
}
