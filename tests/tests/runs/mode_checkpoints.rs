//! Checkpoints of a run whose tokens decide about its mode: killed at any time, it goes on in the mode that it was in, and
//! decides at each border once.

use std::path::Path;
use std::time::Duration;

use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_tests::child_run::{self, ChildRun};
use zbmd_tests::harness::Test;
use zbmd_tests::modes::DECIDING;

pub(super) const TESTS: &[Test] = &[(
    "killed_runs_go_on_in_their_modes",
    killed_runs_go_on_in_their_modes,
)];

const EVERY: u64 = 48;
const BLOCK: u64 = 12;
const TOKENS: usize = 60_000;
const MOST_KILLS: usize = 60;

fn killed_runs_go_on_in_their_modes() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let mut rng = fastrand::Rng::with_seed(7);
    let input: Vec<u8> = (0..TOKENS).flat_map(|_| rng.f32().to_ne_bytes()).collect();
    std::fs::write(folder.join("in.f32"), input).expect("written");
    let options = CompileOptions {
        machine: MachineChoice::Uniform(2),
        block: Some(BLOCK),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", DECIDING, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    compiled
        .write(folder.join("deciding.zbmd"))
        .expect("written");

    let expected = undisturbed_outputs(folder);
    a_killed_run_goes_on_in_its_mode(folder, &expected);
    another_bundle_is_refused(folder);
}

fn read(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).expect("written")
}

fn undisturbed_outputs(folder: &Path) -> [Vec<u8>; 2] {
    let run = start(folder, "whole", &[]);
    let report = run.end();
    assert!(report["epochs"].as_u64() > Some(500), "it changes its mode");
    ["out.f32", "mode.bin"].map(|sink| read(folder, &format!("whole-{sink}")))
}

/// Writes to `OUTPUTS-out.f32` and `OUTPUTS-mode.bin`.
fn start(folder: &Path, outputs: &str, options: &[&str]) -> ChildRun {
    let out = format!("out={outputs}-out.f32");
    let mode = format!("mode={outputs}-mode.bin");
    let options = [&["-o", &mode, "--quiet"], options].concat();
    ChildRun::start(folder, "deciding", "in=in.f32", &out, &options)
}

/// The iteration of the newest checkpoint; 0 where there is none.
fn newest(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder.join("points")) else {
        return 0;
    };
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let iterations = names.filter_map(|name| name.to_str()?.strip_suffix(".zbcp")?.parse().ok());
    iterations.max().unwrap_or(0)
}

/// Until it has gone on at borders at which tokens decide, and been killed at others too.
fn a_killed_run_goes_on_in_its_mode(folder: &Path, expected: &[Vec<u8>; 2]) {
    let mut rng = fastrand::Rng::with_seed(8);
    let options = [
        "--checkpoint",
        "points",
        "--checkpoint-every",
        "3ms",
        "--resume",
    ];
    let mut kills = 0;
    let mut at_decisions = 0;
    while kills < MOST_KILLS && (kills < 12 || at_decisions < 3) {
        let begin = newest(folder);
        let mut run = start(folder, "killed", &options);
        run.wait_until("it keeps checkpoints", || newest(folder) > begin);
        std::thread::sleep(Duration::from_micros(rng.u64(..5000)));
        run.kill();
        kills += 1;
        at_decisions += usize::from(newest(folder).is_multiple_of(EVERY));
    }

    start(folder, "killed", &options).end();
    println!("{kills} kills, {at_decisions} at borders at which tokens decide");
    assert!(at_decisions > 0, "a weak sample");
    for (sink, expected) in ["out.f32", "mode.bin"].iter().zip(expected) {
        let found = read(folder, &format!("killed-{sink}"));
        let same = found.iter().zip(expected).take_while(|(a, b)| a == b);
        let same = same.count();
        assert!(
            found == *expected,
            "`{sink}` differs from byte {same} of {} on, has {}",
            expected.len(),
            found.len()
        );
    }
}

/// A mode that differs makes another run, whichever one the checkpoint is in.
fn another_bundle_is_refused(folder: &Path) {
    let text = DECIDING.replace("decimate: 2", "decimate: 4");
    let compiled = compile_str("model.ron", &text, "", &CompileOptions::default());
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    compiled.write(folder.join("quads.zbmd")).expect("written");

    let output = child_run::command()
        .args(["quads.zbmd", "-i", "in=in.f32", "-o", "out=killed-out.f32"])
        .args([
            "-o",
            "mode=killed-mode.bin",
            "--checkpoint",
            "points",
            "--resume",
        ])
        .current_dir(folder)
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(i32::from(zbmd_run::exit::REFUSED)),
        "{said}"
    );
    assert!(said.contains("with graph"), "{said}");
}
