//! A project of `zbmdc new` is built, tested, run and benched, offline and against the crates of this workspace.
//!
//! It compiles them once more, as those of another workspace: minutes. So it runs where `ZBMD_REQUIRE` names
//! `project`, as it does in `.ci/run`.

use std::path::Path;
use std::process::Command;

use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
use zbmd_ir::snapshot::{self, Times};

/// The template ships its snapshot, so that the first `cargo test` of a new project passes without a tool to accept
/// one. It is compared here because building a project takes minutes, and schedules change more often than that.
#[test]
fn the_template_ships_the_calendar_that_its_model_has() {
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/project");
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("model.ron");
    let text = std::fs::read_to_string(template.join("model.ron")).expect("the template's model");
    std::fs::write(&model, text.replace("{{name}}", "meter")).expect("written");

    let options = CompileOptions {
        machine: MachineChoice::File(template.join("machine.ron")),
        ..CompileOptions::default()
    };
    let program = compile_file(&model, &options).expect("it compiles").program;
    let calendars = snapshot::text(&program, Times::Redacted).replace("meter", "{{name}}");

    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(&template);
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("calendar", calendars));
}

#[test]
fn a_new_project_builds_and_passes_its_tests() {
    let required = std::env::var("ZBMD_REQUIRE").unwrap_or_default();
    if !required.split(',').any(|word| word == "project") {
        eprintln!("SKIPPED: compiles for minutes; set ZBMD_REQUIRE=project to run it");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("a folder");
    // Always in one place, so that what was compiled is found again.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).expect("a folder of ours");
    }
    std::fs::create_dir_all(&dir).expect("a folder");
    let made = Command::new(env!("CARGO_BIN_EXE_zbmdc"))
        .args(["new", "meter", "--zbmd"])
        .arg(&root)
        .current_dir(&dir)
        .status();
    assert!(made.expect("zbmdc starts").success());
    let project = dir.join("meter");
    // The versions that are here already.
    std::fs::copy(root.join("Cargo.lock"), project.join("Cargo.lock")).expect("a lock file");
    let cargo = |args: &[&str], accept: &str| {
        let output = Command::new(env!("CARGO"))
            .args(args)
            .arg("--offline")
            .current_dir(&project)
            .env("CARGO_TARGET_DIR", dir.join("../project-target"))
            .env("INSTA_UPDATE", accept)
            .env_remove("INSTA_FORCE_PASS")
            .output()
            .expect("cargo starts");
        let (out, said) = (
            output.stdout,
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        let out = String::from_utf8_lossy(&out).into_owned();
        (
            output.status.success(),
            format!("cargo {}: {said}\n{out}", args.join(" ")),
        )
    };
    // As a user would: the calendar is pinned from the first test on.
    let (passed, told) = cargo(&["test"], "no");
    assert!(passed, "{told}");
    let model = std::fs::read_to_string(project.join("model.ron")).expect("the model");
    let changed = model.replace("[0.25, 0.25, 0.25, 0.25]", "[0.5, 0.25, 0.25]");
    assert_ne!(model, changed);
    std::fs::write(project.join("model.ron"), changed).expect("the model");
    let (passed, told) = cargo(&["test", "--test", "calendar", "the_calendar_stays"], "no");
    let differs = "snapshot assertion for 'calendar' failed";
    assert!(!passed && told.contains(differs), "{told}");
    std::fs::write(project.join("model.ron"), model).expect("the model");
    let (passed, told) = cargo(&["run"], "no");
    assert!(passed && told.contains("-90.0 dB"), "{told}");
    // Benches once each, unoptimised.
    let (passed, told) = cargo(&["test", "--benches"], "no");
    assert!(passed, "{told}");
}
