//! Deadlines of a run that changes its mode: blocks are those of each mode, and a block that is late may ask for another.

use std::path::Path;

use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_tests::child_run::{self, ChildRun};
use zbmd_tests::harness::Test;

pub(super) const TESTS: &[Test] = &[(
    "late_blocks_and_changes_of_mode",
    late_blocks_and_changes_of_mode,
)];

/// An iteration is one token, in `pairs` two, of which the second is given out. What is allowed is far more than a busy
/// machine takes.
const MODEL: &str = r#"Model(
    name: "loads",
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    modes: {
        "full": Mode(
            actors: { "gain": Gain(2.0) },
            channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
        ),
        "light": Mode(channels: [(from: "in", to: ["out"])]),
        "pairs": Mode(
            actors: { "thin": Fir([3.0], decimate: 2) },
            channels: [(from: "in", to: ["thin"]), (from: "thin", to: ["out"])],
        ),
    },
    sinks: { "out": Stream(deadline: "500ms", on_miss: Mode("light")) },
)"#;
/// Three seconds.
const TOKENS: usize = 144_000;
const BLOCK: usize = 48;
/// One piece is a millisecond: after a second one is 900 ms late.
const INPUT: &str = "in=paced:ones.f32?rate=48000&piece=48";
const LATE_WAKE: &str = r#"Inject(late: [(source: "in", piece: 1000, by: "900ms")])"#;

fn late_blocks_and_changes_of_mode() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let ones = 1.0f32.to_le_bytes().repeat(TOKENS);
    std::fs::write(folder.join("ones.f32"), ones).expect("written");
    std::fs::write(folder.join("late.ron"), LATE_WAKE).expect("written");
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        block: Some(BLOCK as u64),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", MODEL, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    compiled.write(folder.join("loads.zbmd")).expect("written");

    a_late_block_asks_for_a_mode(folder);
    for policy in ["wait", "hold", "drop"] {
        blocks_are_counted_through_changes(folder, policy);
    }
    unknown_modes_are_refused(folder);
}

/// Recorded, and replayed without any clock.
fn a_late_block_asks_for_a_mode(folder: &Path) {
    let options = ["--inject", "late.ron", "--record", "box"];
    let run = ChildRun::start(folder, "loads", INPUT, "out=out.f32", &options);
    let report = run.end();
    let deadline = &report["deadlines"][0];
    assert_eq!(deadline["on_miss"], "mode", "{deadline}");
    assert!(deadline["missed"].as_u64() >= Some(1), "{deadline}");
    assert_eq!(deadline["response"]["count"], TOKENS / BLOCK, "{deadline}");

    let values = values(folder, "out.f32");
    assert_eq!(values.len(), TOKENS);
    let light_from = values
        .iter()
        .position(|value| *value == 1.0)
        .expect("a change");
    assert!(light_from >= BLOCK, "it begins with the full load");
    assert!(values[..light_from].iter().all(|value| *value == 2.0));
    assert!(
        values[light_from..].iter().all(|value| *value == 1.0),
        "it stays there"
    );

    let output = child_run::output_in(folder, &["replay", "box", "-o", "out=again.f32"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 of the mode"), "{said}");
    let again = std::fs::read(folder.join("again.f32")).expect("written");
    assert!(again == std::fs::read(folder.join("out.f32")).expect("written"));
}

/// The tokens are all there, and each block is counted once.
fn blocks_are_counted_through_changes(folder: &Path, policy: &str) {
    let policy_text = format!("out={policy}");
    let options = ["--on-miss", &policy_text, "--deadline", "out=60s"];
    let mut run = ChildRun::start(folder, "loads", INPUT, "out=out.f32", &options);
    let pid = run.pid().to_string();
    run.wait_until("it takes commands", || {
        let listed = child_run::output(&["mode", &pid]);
        listed.status.success()
    });
    let mut entries = vec![("full".to_owned(), 0)];
    for name in ["pairs", "light", "pairs", "full", "light", "pairs", "full"] {
        let output = child_run::output(&["mode", &pid, name]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let iteration = said.split_whitespace().nth(3).and_then(|n| n.parse().ok());
        entries.push((
            name.to_owned(),
            iteration.unwrap_or_else(|| panic!("{said}")),
        ));
    }
    let report = run.end();

    let iterations = report["iterations"].as_u64().expect("a number") as usize;
    let ends = entries
        .iter()
        .skip(1)
        .map(|(_, from)| *from)
        .chain([iterations]);
    let mut expected = Vec::new();
    let mut blocks = 0;
    for ((name, from), end) in entries.iter().zip(ends) {
        let value = [("full", 2.0f32), ("light", 1.0), ("pairs", 3.0)];
        let (_, value) = value
            .into_iter()
            .find(|(known, _)| known == name)
            .expect("a mode");
        expected.resize(expected.len() + end - from, value);
        blocks += (end - from).div_ceil(BLOCK);
    }
    assert_eq!(expected.len(), iterations);
    assert!(
        values(folder, "out.f32") == expected,
        "{policy}: {entries:?}"
    );
    let deadline = &report["deadlines"][0];
    assert_eq!(deadline["missed"], 0, "{deadline}");
    // The last block may not be whole.
    let counted = deadline["response"]["count"].as_u64().expect("a number") as usize;
    assert!(
        counted == blocks || counted + 1 == blocks,
        "{blocks} blocks: {deadline}"
    );
}

fn unknown_modes_are_refused(folder: &Path) {
    let output = child_run::output_in(
        folder,
        &[
            "loads.zbmd",
            "-i",
            INPUT,
            "-o",
            "out=out.f32",
            "--on-miss",
            "out=mode:dark",
        ],
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("ask for mode `dark`; the bundle has full, light, pairs"),
        "{said}"
    );
}

fn values(folder: &Path, name: &str) -> Vec<f32> {
    let bytes = std::fs::read(folder.join(name)).expect("written");
    let (values, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    values
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect()
}
