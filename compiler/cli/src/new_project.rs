//! `zbmdc new`: a project to start from.

use std::io;
use std::path::{Path, PathBuf};

use zbmd_compiler::Code;

use crate::args::MessageFormat;
use crate::output::{Exit, Voice, say, single_error};

/// Paths in the project, and texts in which `{{name}}` and the like are filled in.
const FILES: [(&str, &str); 10] = [
    ("Cargo.toml", include_str!("project/Cargo.toml.in")),
    ("README.md", include_str!("project/README.md.in")),
    ("model.ron", include_str!("project/model.ron")),
    ("machine.ron", include_str!("project/machine.ron")),
    ("src/lib.rs", include_str!("project/lib.rs")),
    ("src/main.rs", include_str!("project/main.rs")),
    ("tests/calendar.rs", include_str!("project/calendar.rs")),
    (
        "tests/snapshots/calendar__calendar.snap",
        include_str!("project/calendar.snap"),
    ),
    ("benches/run.rs", include_str!("project/bench.rs")),
    (".gitignore", "/target\n*.zbmd\n"),
];
const CRATES: [&str; 4] = ["backends", "compiler", "executor", "ir"];

/// A path that cannot be read, and why.
type UnreadablePath = (PathBuf, io::Error);

pub(crate) fn new_project(name: &str, zbmd: Option<&Path>, voice: Voice) -> Exit {
    if !is_crate_name(name) {
        say(&format!(
            "zbmdc: `{name}` is not a valid name: lower-case letters, digits, `-` and `_`, a letter first\n"
        ));
        return Exit::Usage;
    }

    let checkout = match find_checkout(zbmd) {
        Ok(checkout) => checkout,
        Err((path, error)) => {
            let message = format!("cannot read `{}`: {error}", path.display());
            let help = "give the folder of a checkout of zbmd";
            return voice.report(&single_error(Code::E0701, message, help));
        }
    };

    if let Err(error) = write_files(name, checkout.as_deref()) {
        let message = format!("cannot make `{name}`: {error}");
        let help = "check the folder, or take another name";
        return voice.report(&single_error(Code::E0704, message, help));
    }

    if voice.format == MessageFormat::Text {
        let repository = env!("CARGO_PKG_REPOSITORY").to_owned();
        let crate_source = checkout.map_or(repository, |folder| folder.display().to_string());
        say(&format!(
            "made {name}, with the crates of {crate_source}: see {name}/README.md\n"
        ));
    }

    Exit::Ok
}

/// Whether cargo takes the name for a package and Rust for a crate.
fn is_crate_name(name: &str) -> bool {
    // Of the words that no crate may be called, these could be typed.
    const RESERVED: [&str; 7] = ["test", "core", "std", "alloc", "crate", "self", "super"];

    let starts_with_letter = name.starts_with(|c: char| c.is_ascii_lowercase());
    let has_only_name_characters = name
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_'));
    starts_with_letter && has_only_name_characters && !RESERVED.contains(&name)
}

/// The checkout whose crates the project uses: the one asked for, or the one that this program was built from, if it is
/// still there. Without one they come from git.
fn find_checkout(wanted: Option<&Path>) -> Result<Option<PathBuf>, UnreadablePath> {
    if let Some(path) = wanted {
        return open_checkout(path).map(Some);
    }
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    Ok(built_from.and_then(|path| open_checkout(path).ok()))
}

/// The folder of the crates, absolute.
fn open_checkout(path: &Path) -> Result<PathBuf, UnreadablePath> {
    let manifest = path.join("ir").join("Cargo.toml");
    std::fs::metadata(&manifest).map_err(|error| (manifest, error))?;
    let absolute_path = path.canonicalize();
    absolute_path.map_err(|error| (path.to_owned(), error))
}

fn write_files(name: &str, checkout: Option<&Path>) -> io::Result<()> {
    // Fails where there is something of that name: nothing is written over.
    std::fs::create_dir(name)?;
    for (path, template) in FILES {
        let file_path = Path::new(name).join(path);
        if let Some(folder) = file_path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(file_path, fill_template(template, name, checkout))?;
    }
    Ok(())
}

fn fill_template(template: &str, name: &str, checkout: Option<&Path>) -> String {
    let mut text = template
        .replace("{{name}}", name)
        .replace("{{crate}}", &name.replace('-', "_"));
    for package in CRATES {
        let source = match checkout {
            Some(folder) => format!("path = {:?}", folder.join(package)),
            None => format!("git = {:?}", env!("CARGO_PKG_REPOSITORY")),
        };
        for (suffix, features) in [("", ""), ("-snapshot", ", features = [\"snapshot\"]")] {
            let placeholder = format!("{{{{zbmd-{package}{suffix}}}}}");
            let dependency = format!("zbmd-{package} = {{ {source}{features} }}");
            text = text.replace(&placeholder, &dependency);
        }
    }

    text
}
