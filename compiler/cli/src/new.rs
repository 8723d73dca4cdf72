//! `zbmdc new`: a project to start from.

use std::io;
use std::path::{Path, PathBuf};

use zbmd_compiler::Code;

use crate::args::MessageFormat;
use crate::commands::lone;
use crate::output::{Exit, Voice, say};

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

pub(crate) fn new(name: &str, zbmd: Option<&Path>, voice: Voice) -> Exit {
    if !is_name(name) {
        say(&format!(
            "zbmdc: `{name}` is no name: lower-case letters, digits, `-` and `_`, a letter first\n"
        ));
        return Exit::Usage;
    }
    let wrong = |code, message: String, help: &str| voice.report(&lone(code, message, help));
    let root = match zbmd.map(checkout).or_else(built_from).transpose() {
        Ok(root) => root,
        Err((path, error)) => {
            let message = format!("cannot read `{}`: {error}", path.display());
            return wrong(
                Code::E0701,
                message,
                "give the folder of a checkout of zbmd",
            );
        }
    };
    match make(name, root.as_deref()) {
        Ok(()) => {
            if voice.format == MessageFormat::Text {
                let from = root.map_or(env!("CARGO_PKG_REPOSITORY").to_owned(), |r| {
                    r.display().to_string()
                });
                say(&format!(
                    "made {name}, with the crates of {from}: see {name}/README.md\n"
                ));
            }
            Exit::Ok
        }
        Err(error) => {
            let message = format!("cannot make `{name}`: {error}");
            wrong(
                Code::E0704,
                message,
                "check the folder, or take another name",
            )
        }
    }
}

/// What cargo takes for a package and Rust for a crate.
fn is_name(name: &str) -> bool {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    // Of the words that no crate may be called, these could be typed.
    let taken = ["test", "core", "std", "alloc", "crate", "self", "super"].contains(&name);
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(inside) && !taken
}

/// The folder of the crates, absolute.
fn checkout(path: &Path) -> Result<PathBuf, (PathBuf, io::Error)> {
    let manifest = path.join("ir").join("Cargo.toml");
    std::fs::metadata(&manifest).map_err(|error| (manifest, error))?;
    path.canonicalize()
        .map_err(|error| (path.to_owned(), error))
}

/// The checkout that this program was built from, if it is still there.
fn built_from() -> Option<Result<PathBuf, (PathBuf, io::Error)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    checkout(root).ok().map(Ok)
}

fn make(name: &str, root: Option<&Path>) -> io::Result<()> {
    // Fails where there is something of that name: nothing is written over.
    std::fs::create_dir(name)?;
    for (path, text) in FILES {
        let path = Path::new(name).join(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, filled(text, name, root))?;
    }
    Ok(())
}

fn filled(text: &str, name: &str, root: Option<&Path>) -> String {
    let mut text = text
        .replace("{{name}}", name)
        .replace("{{crate}}", &name.replace('-', "_"));
    for package in CRATES {
        for (suffix, features) in [("", ""), ("-snapshot", ", features = [\"snapshot\"]")] {
            let source = match root {
                Some(root) => format!("path = {:?}", root.join(package)),
                None => format!("git = {:?}", env!("CARGO_PKG_REPOSITORY")),
            };
            let line = format!("zbmd-{package} = {{ {source}{features} }}");
            text = text.replace(&format!("{{{{zbmd-{package}{suffix}}}}}"), &line);
        }
    }
    text
}
