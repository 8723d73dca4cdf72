//! `zbmd-run mode` beside a run: the mode changes at the token that the command names, and nowhere else.
//!
//! No test harness: this program is its own `zbmd-run`.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: runs take commands on Linux");
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    if zbmd_tests::child_run::is_runner() {
        return zbmd_run::main_with(zbmd_backends::standard_registry());
    }
    linux::main();
    std::process::ExitCode::SUCCESS
}

#[cfg(target_os = "linux")]
mod linux {
    use std::process::{Command, Output};

    use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
    use zbmd_tests::child_run::{ChildRun, RUNNER};

    /// An iteration is one token in every mode.
    const MODEL: &str = r#"Model(
    name: "volume",
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    modes: {
        "one": Mode(channels: [(from: "in", to: ["out"])]),
        "two": Mode(
            actors: { "gain": Gain(2.0) },
            channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
        ),
        "four": Mode(
            actors: { "gain": Gain(4.0) },
            channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
        ),
    },
    initial_mode: "one",
    changes: [("one", "two"), ("two", "four"), ("four", "one"), ("two", "one")],
    sinks: { "out": Stream() },
)"#;
    /// Four seconds.
    const TOKENS: usize = 192_000;
    const ROUNDS: usize = 12;

    pub(super) fn main() {
        let folder = tempfile::tempdir().expect("a folder");
        let ones = 1.0f32.to_le_bytes().repeat(TOKENS);
        std::fs::write(folder.path().join("ones.f32"), ones).expect("written");
        let options = CompileOptions {
            machine: MachineChoice::Uniform(1),
            block: Some(48),
            ..CompileOptions::default()
        };
        let compiled = compile_str("model.ron", MODEL, "", &options);
        let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        let path = folder.path().join("volume.zbmd");
        compiled.write(&path).expect("written");

        let input = "in=paced:ones.f32?rate=48000";
        let mut run = ChildRun::start(folder.path(), "volume", input, "out=out.f32", &[]);
        let pid = run.pid().to_string();
        let mut listed = String::new();
        run.wait_until("it takes commands", || {
            let output = mode(&[&pid]);
            listed = text(&output.stdout);
            output.status.success()
        });
        assert_eq!(listed, "one   since iteration 0\ntwo\nfour\n");
        for (name, code, part) in [
            (
                "three",
                2,
                "there is no mode `three`: it has one, two, four",
            ),
            ("four", 5, "no change from mode `one` to `four`"),
        ] {
            let output = mode(&[&pid, name]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{said}");
            assert!(said.contains(part), "{said}");
        }

        let mut changes = vec![(1.0f32, 0usize)];
        for round in 0..ROUNDS {
            let (name, gain) = [("two", 2.0), ("four", 4.0), ("one", 1.0)][round % 3];
            let output = mode(&[&pid, name]);
            let said = text(&output.stdout);
            assert!(output.status.success(), "{}", text(&output.stderr));
            let iteration = said.split_whitespace().nth(3).and_then(|n| n.parse().ok());
            changes.push((gain, iteration.unwrap_or_else(|| panic!("{said}"))));
        }
        run.end();
        let output = mode(&[&pid, "two"]);
        assert_eq!(output.status.code(), Some(8), "{}", text(&output.stderr));

        let bytes = std::fs::read(folder.path().join("out.f32")).expect("written");
        let values: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        assert_eq!(values.len(), TOKENS);
        let mut changes_left = changes.iter().peekable();
        let mut gain = 0.0;
        for (index, value) in values.iter().enumerate() {
            while let Some((next, _)) = changes_left.next_if(|(_, from)| *from == index) {
                gain = *next;
            }
            assert_eq!(*value, gain, "token {index}: {changes:?}");
        }
        assert_eq!(changes_left.count(), 0, "{changes:?}");
    }

    fn mode(words: &[&str]) -> Output {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.arg("mode").args(words).env(RUNNER, "1");
        command.output().expect("started")
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }
}
