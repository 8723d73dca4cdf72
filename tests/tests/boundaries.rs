//! Holds the house's walls: who may import whom, what lies at the top level, and that the README names real paths.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(relative: &str) -> String {
    let path = root().join(relative);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The crates of ours that a manifest imports, in a section such as `dependencies`.
fn imports(folder: &str, section: &str) -> BTreeSet<String> {
    let manifest: toml::Table = read(&format!("{folder}/Cargo.toml"))
        .parse()
        .expect("a manifest is TOML");
    let table = manifest.get(section).and_then(|s| s.as_table());
    table
        .into_iter()
        .flatten()
        .filter_map(|(name, _)| name.strip_prefix("zbmd-").map(str::to_owned))
        .collect()
}

#[test]
fn crates_import_only_what_the_design_allows() {
    let table: [(&str, &[&str]); 11] = [
        ("ir", &[]),
        ("scheduler", &["ir"]),
        ("backends", &["ir"]),
        ("compiler", &["ir", "scheduler", "backends"]),
        ("compiler/cli", &["ir", "scheduler", "backends", "compiler"]),
        ("executor", &["ir", "backends", "supervise"]),
        ("executor/c", &["ir", "backends", "compiler", "executor"]),
        ("executor/loom", &[]),
        ("executor/supervise", &["ir"]),
        (
            "executor/python",
            &["ir", "scheduler", "backends", "compiler", "executor"],
        ),
        ("graphs", &["ir", "backends", "compiler", "executor"]),
    ];
    for (folder, allowed) in table {
        let allowed: BTreeSet<String> = allowed.iter().map(|s| (*s).to_owned()).collect();
        let found = imports(folder, "dependencies");
        assert!(
            found.is_subset(&allowed),
            "{folder} imports {found:?}, the design allows {allowed:?}"
        );
    }
}

#[test]
fn the_scheduler_and_the_supervisor_are_pure() {
    let mut paths = vec![
        root().join("scheduler/src"),
        root().join("executor/supervise/src"),
    ];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("the crate has sources");
            paths.extend(entries.map(|e| e.expect("readable folder").path()));
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable source");
        for word in [
            "std::fs",
            "std::io",
            "std::net",
            "std::thread",
            "std::time",
            "std::process",
            "Instant",
        ] {
            assert!(
                !text.contains(word),
                "{} uses {word}: scheduler and supervisor have no I/O, clock or threads",
                path.display()
            );
        }
    }
}

#[test]
fn the_top_level_stays() {
    let expected: BTreeSet<&str> = [
        "Cargo.toml",
        "Cargo.lock",
        "compiler",
        "ir",
        "scheduler",
        "executor",
        "backends",
        "graphs",
        "tests",
        "README.md",
        "CHANGELOG.md",
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "clippy.toml",
        "rustfmt.toml",
    ]
    .into();
    let listed = std::process::Command::new("git")
        .args(["ls-files"])
        .current_dir(root())
        .output();
    let Ok(listed) = listed.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()) else {
        eprintln!("SKIPPED: git is not here to list the tracked files");
        return;
    };
    let top: BTreeSet<&str> = listed
        .lines()
        .filter_map(|l| l.split('/').next())
        .filter(|n| !n.starts_with('.'))
        .collect();
    assert_eq!(top, expected);
}

#[test]
fn the_readme_names_real_paths() {
    let readme = read("README.md");
    let mut checked = 0;
    for word in readme.split('`').skip(1).step_by(2) {
        let top = word.split('/').next().unwrap_or_default();
        let ours = [
            "compiler",
            "ir",
            "scheduler",
            "executor",
            "backends",
            "graphs",
            "tests",
            ".ci",
        ]
        .contains(&top);
        if ours && word.contains('/') && !word.contains([' ', '*', '<', 'N']) {
            assert!(
                root().join(word).exists(),
                "the README names `{word}`, which does not exist"
            );
            checked += 1;
        }
    }
    assert!(
        checked > 10,
        "the README's code map names only {checked} paths"
    );
}

/// The Rust files below a path.
fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = std::fs::read_dir(path).expect("the crate has sources");
    let paths = entries.map(|entry| entry.expect("readable folder").path());
    let files = paths.flat_map(|path| rust_files(&path));
    files
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .collect()
}

#[test]
fn the_executors_folders_import_only_from_those_below_them() {
    // Each may import from the ones before it. So no circle of imports goes through two of them.
    let layers: [&[&str]; 5] = [
        &["transport"],
        &[
            "error.rs",
            "exit.rs",
            "fault.rs",
            "inject.rs",
            "kernels.rs",
            "options.rs",
            "program.rs",
            "unsupported.rs",
        ],
        &["observe"],
        &["worker"],
        &["run"],
    ];
    let source = root().join("executor/src");
    let above_of = |layer: usize| {
        let above = layers[layer + 1..].iter().flat_map(|names| names.iter());
        let modules = above.map(|name| name.trim_end_matches(".rs"));
        modules
            .map(|module| format!("crate::{module}::"))
            .collect::<Vec<_>>()
    };

    let mut wrong = Vec::new();
    for (layer, names) in layers.iter().enumerate() {
        for file in names.iter().flat_map(|name| rust_files(&source.join(name))) {
            let text = std::fs::read_to_string(&file).expect("readable source");
            let found = above_of(layer);
            for module in found.iter().filter(|module| text.contains(*module)) {
                wrong.push(format!("{} imports {module}", file.display()));
            }
        }
    }
    // A finished run is an outcome with its report; an error may carry it.
    wrong.retain(|line| !line.ends_with("error.rs imports crate::observe::"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
