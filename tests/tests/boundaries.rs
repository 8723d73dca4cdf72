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
    let table: [(&str, &[&str]); 32] = [
        ("ir", &[]),
        ("ir/stream-url", &[]),
        ("ir/ticks", &["ir"]),
        ("scheduler", &["ir"]),
        ("scheduler/ticks", &["ir", "ticks", "scheduler"]),
        ("backends/gpu-ir", &["ir"]),
        ("backends/hal", &["ir", "gpu-ir"]),
        ("backends/vulkan", &["ir", "gpu-ir", "hal"]),
        ("backends/cuda", &["ir", "gpu-ir", "hal"]),
        (
            "backends/devices",
            &["ir", "gpu-ir", "hal", "vulkan", "cuda"],
        ),
        ("backends/op", &["ir", "gpu-ir"]),
        ("backends/fft", &[]),
        ("backends/ops-dsp", &["ir", "fft", "gpu-ir", "op"]),
        ("backends/ops-nn", &["ir", "fft", "gpu-ir", "op"]),
        ("backends/ticks", &["ir", "ticks", "op"]),
        (
            "backends",
            &[
                "ir", "gpu-ir", "hal", "vulkan", "cuda", "devices", "op", "ops-dsp", "ops-nn",
            ],
        ),
        ("compiler/view", &["ir", "gpu-ir"]),
        (
            "compiler",
            &["ir", "stream-url", "scheduler", "backends", "view"],
        ),
        (
            "compiler/cli",
            &[
                "ir",
                "ticks",
                "scheduler",
                "tick-scheduler",
                "backends",
                "tick-sim",
                "compiler",
                "wire",
            ],
        ),
        (
            "executor",
            &["ir", "council", "devices", "hal", "op", "supervise", "wire"],
        ),
        (
            "executor/cli",
            &["ir", "backends", "fft", "executor", "live", "wire"],
        ),
        (
            "executor/live",
            &["ir", "stream-url", "supervise", "executor"],
        ),
        (
            "executor/c",
            &["ir", "backends", "compiler", "executor", "live"],
        ),
        ("executor/council", &["wire"]),
        ("executor/loom", &[]),
        // It compiles what is put into its folder, behind a feature; what runs a model still knows nothing of compiling.
        (
            "executor/serve",
            &["ir", "backends", "compiler", "executor", "pem"],
        ),
        ("executor/pem", &[]),
        ("executor/supervise", &["ir"]),
        ("executor/wire", &["pem"]),
        // A process of its own in a workspace of its own: pipes and files are all that it shares with runs.
        ("executor/zenoh-bridge", &[]),
        (
            "executor/python",
            &[
                "ir",
                "scheduler",
                "backends",
                "compiler",
                "executor",
                "live",
            ],
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
fn the_executor_needs_no_command_line() {
    let packages = resolved_packages("zbmd-executor", "");
    for tool in ["clap", "ctrlc", "hound", "indicatif"] {
        assert!(
            !packages.contains(tool),
            "zbmd-executor needs {tool}: what only commands need belongs into executor/cli"
        );
    }
    assert!(resolved_packages("zbmd-run", "").contains("clap"));
}

#[test]
fn only_the_server_needs_an_http_library() {
    for package in [
        "zbmdc",
        "zbmd-run",
        "zbmd-c",
        "zbmd-python",
        "zbmd-examples",
    ] {
        let packages = resolved_packages(package, "");
        for library in ["hyper", "tokio", "tonic", "zbmd-serve"] {
            assert!(
                !packages.contains(library),
                "{package} needs {library}: what serves belongs into executor/serve, which nothing imports"
            );
        }
    }
    assert!(resolved_packages("zbmd-serve", "").contains("hyper"));
}

#[test]
fn programs_for_cpus_only_name_no_gpu_driver() {
    const DRIVERS: [&str; 4] = ["ash", "cudarc", "libloading", "rspirv"];
    for package in [
        "zbmd-backends",
        "zbmd-compiler",
        "zbmdc",
        "zbmd-executor",
        "zbmd-run",
        "zbmd-examples",
        "zbmd-c",
        "zbmd-python",
        "zbmd-serve",
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
        root().join("scheduler/ticks/src"),
        root().join("executor/supervise/src"),
        root().join("executor/council/src/check.rs"),
        root().join("executor/council/src/decision.rs"),
        root().join("executor/council/src/message.rs"),
        root().join("executor/council/src/node.rs"),
        root().join("executor/council/src/output.rs"),
        root().join("executor/council/src/record.rs"),
        root().join("executor/council/src/settings.rs"),
        root().join("executor/council/src/storage.rs"),
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

/// The sources under some folders, without tests, as path and text.
fn sources(folders: &[&str]) -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut found = Vec::new();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("the crate has sources");
            paths.extend(entries.map(|e| e.expect("readable folder").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("readable source");
            // Test modules stand at the end of their files.
            let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
            found.push((path, text[..end].to_owned()));
        }
    }
    found
}

#[test]
fn devices_are_asked_for_their_kind_and_not_compared_by_name() {
    let folders = [
        "ir/src",
        "scheduler/src",
        "compiler/src",
        "compiler/cli/src",
        "compiler/view/src",
        "executor/src",
        "executor/cli/src",
    ];
    for (path, text) in sources(&folders) {
        let is_definition = path.ends_with("ir/src/device_kind.rs");
        let is_test =
            path.ends_with("tests.rs") || path.components().any(|c| c.as_os_str() == "tests");
        if is_definition || is_test {
            continue;
        }
        for line in text.lines() {
            let code = line.split("//").next().unwrap_or_default();
            for name in ["\"cpu\"", "\"vulkan\"", "\"cuda\""] {
                let is_comparison = [
                    format!("== {name}"),
                    format!("!= {name}"),
                    format!("{name} =>"),
                    format!("contains({name})"),
                ];
                assert!(
                    !is_comparison.iter().any(|pattern| code.contains(pattern)),
                    "{} compares a device with {name}: ask its `DeviceKind`\n{line}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn calendars_are_walked_in_one_place() {
    // Each with its reason: the walk itself, text and codec of loops as loops, the makers of loops, and the view, which
    // counts loops out up to a limit.
    let allowed = [
        "ir/src/walk.rs",
        "ir/src/text/calendar.rs",
        "ir/src/bundle/differences.rs",
        "scheduler/src/assemble.rs",
        "compiler/view/src/expand.rs",
    ];
    let folders = [
        "ir/src",
        "scheduler/src",
        "compiler/src",
        "compiler/cli/src",
        "compiler/view/src",
    ];
    for (path, text) in sources(&folders) {
        let shown = path.display().to_string();
        // The verifier shares no code with what it checks; test programs are made by hand.
        let is_apart = shown.contains("ir/src/verify/") || shown.contains("ir/src/testing/");
        let is_test = shown.ends_with("tests.rs");
        if is_apart || is_test || allowed.iter().any(|file| shown.ends_with(file)) {
            continue;
        }
        assert!(
            !text.contains("Entry::Loop"),
            "{shown} matches loops of calendars itself: use `zbmd_ir::walk`"
        );
    }
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
