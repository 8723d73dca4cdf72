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
    let table: [(&str, &[&str]); 15] = [
        ("ir", &[]),
        ("scheduler", &["ir"]),
        ("backends/gpu-ir", &["ir"]),
        ("backends/hal", &["ir", "gpu-ir"]),
        ("backends/vulkan", &["ir", "gpu-ir", "hal"]),
        ("backends/cuda", &["ir", "gpu-ir", "hal"]),
        ("backends", &["ir", "gpu-ir", "hal", "vulkan", "cuda"]),
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

/// The packages that a crate of ours needs to run, as Cargo resolves them with only these features.
fn resolved_packages(package: &str, features: &str) -> BTreeSet<String> {
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--package", package, "--no-default-features"])
        .args(["--features", features, "--edges", "normal"])
        .args(["--prefix", "none", "--offline", "--locked"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "cargo tree of {package}: {errors}");

    let lines = String::from_utf8_lossy(&tree.stdout);
    let names = lines.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn programs_for_cpus_only_name_no_gpu_driver() {
    const DRIVERS: [&str; 4] = ["ash", "cudarc", "libloading", "rspirv"];
    for package in [
        "zbmd-backends",
        "zbmd-compiler",
        "zbmdc",
        "zbmd-executor",
        "zbmd-examples",
        "zbmd-c",
        "zbmd-python",
    ] {
        let packages = resolved_packages(package, "");
        assert!(packages.contains("zbmd-ir"), "{package}: {packages:?}");
        for driver in DRIVERS {
            assert!(
                !packages.contains(driver),
                "{package} without default features needs {driver}: keep it behind the features `cuda` and `vulkan`"
            );
        }
    }

    // Asked for, they are found by the same means.
    let cuda = resolved_packages("zbmd-executor", "cuda");
    assert!(cuda.contains("cudarc") && !cuda.contains("ash"), "{cuda:?}");
    let vulkan = resolved_packages("zbmd-executor", "vulkan");
    assert!(
        vulkan.contains("ash") && !vulkan.contains("cudarc"),
        "{vulkan:?}"
    );
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
