//! The Python package's own tests, run by the Python that is here on the library that cargo has just built. Skipped,
//! loudly, where there is no Python of a fitting version with NumPy and pytest, unless `ZBMD_REQUIRE` names `python`.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Python to test with: `ZBMD_PYTHON`, or the one on the path.
fn python() -> PathBuf {
    std::env::var_os("ZBMD_PYTHON").map_or_else(|| "python3".into(), PathBuf::from)
}

/// Whether it can run the tests; else why not.
fn fits() -> Result<(), String> {
    let code = "import sys; assert sys.version_info >= (3, 11), 'Python 3.11 or newer is needed'; \
                import numpy, pytest";
    let output = Command::new(python()).args(["-c", code]).output();
    match output {
        Err(error) => Err(format!("{}: {error}", python().display())),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(said.trim().lines().last().unwrap_or_default().to_owned())
        }
    }
}

/// The module as Python finds it: cargo builds it beside the tests that depend on this crate, under the crate's name.
fn module() -> TempDir {
    let place = TempDir::new().expect("a folder");
    let own = std::env::current_exe().expect("a test has a path");
    let built = own.parent().expect("a test lies in a folder");
    let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let library = built.join(format!("{prefix}zbmd_python{suffix}"));
    let to = place.path().join("zbmd.abi3.so");
    // Not copied: it is large, and nobody changes it.
    std::fs::hard_link(&library, &to)
        .or_else(|_| std::fs::copy(&library, &to).map(drop))
        .unwrap_or_else(|e| panic!("{}: {e}", library.display()));
    place
}

/// Runs Python with the module; what it prints is this test's.
fn run(args: &[&str]) -> bool {
    let place = module();
    let mut command = Command::new(python());
    command
        .args(args)
        .current_dir(folder().join("../.."))
        .env("PYTHONPATH", place.path());
    // Nothing is left in the source.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.status().expect("Python starts").success()
}

fn is_here() -> bool {
    let required = std::env::var("ZBMD_REQUIRE").is_ok_and(|r| r.split(',').any(|w| w == "python"));
    match fits() {
        Ok(()) => true,
        Err(why) if required => panic!("ZBMD_REQUIRE names python, but: {why}"),
        Err(why) => {
            eprintln!("SKIPPED: the Python package is not tested: {why}");
            false
        }
    }
}

#[test]
fn the_package_passes_its_tests() {
    if is_here() {
        let tests = folder().join("tests");
        let tests = tests.to_str().expect("UTF-8");
        assert!(
            run(&["-m", "pytest", "-q", "-p", "no:cacheprovider", tests]),
            "pytest failed"
        );
    }
}

#[test]
fn the_example_runs() {
    if is_here() {
        let example = folder().join("examples/agc.py");
        assert!(
            run(&[example.to_str().expect("UTF-8")]),
            "the example failed"
        );
    }
}
