//! Runs over three hosts whose processes are started by something else than a person: a folder with a bundle, an input, and what a
//! run on one host gives for it.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use zbmd_compiler::CompileOptions;

use crate::child_run;
use crate::run_process::{Preparation, RunProcess, tokens_in};

/// Three hosts with a device each; runs are on the first.
const MACHINE: &str = r#"Machine(
    devices: [
        Device(name: "first:0", backend: cpu), Device(name: "second:0", backend: cpu), Device(name: "third:0", backend: cpu),
    ],
    hosts: { "first": ["first:0"], "second": ["second:0"], "third": ["third:0"] },
    links: [
        Link(from: "first", to: "second", both: true, bandwidth: "10GB/s", latency: "1us"),
        Link(from: "second", to: "third", both: true, bandwidth: "10GB/s", latency: "1us"),
        Link(from: "first", to: "third", both: true, bandwidth: "10GB/s", latency: "1us"),
    ],
)"#;

const MODEL: &str = r#"Model(
    name: "launched",
    sources: { "in": Stream(dtype: f32) },
    actors: {
        "a": Fir(design: { "kind": "lowpass", "cutoff": 0.2, "rate": 1, "taps": 400, "window": { "kaiser": 7.9 } }),
        "b": Fir(design: { "kind": "lowpass", "cutoff": 0.3, "rate": 1, "taps": 400, "window": { "kaiser": 7.9 } }),
    },
    channels: [(from: "in", to: ["a"]), (from: "a", to: ["b"]), (from: "b", to: ["out"])],
    sinks: { "out": Stream() },
    pins: { "in": "first:0", "a": "second:0", "b": "third:0", "out": "first:0" },
)"#;

/// Long enough for a crowded computer.
const HOST_LEASE: &str = "5s";

/// Options of every process of such a run but `zbmd-run up`, by names in the folder.
pub const STREAMS: [&str; 4] = ["-i", "in=in.f32", "-o", "out=out.f32"];

/// The folder.
pub struct LaunchedRuns {
    folder: PathBuf,
}

impl LaunchedRuns {
    /// Prepares a folder, with an input of so many tokens.
    ///
    /// # Panics
    /// The model cannot be compiled or run.
    pub fn prepare(folder: &Path, tokens: u64) -> Self {
        let preparation = Preparation {
            machine: MACHINE,
            model: MODEL,
            options: CompileOptions::default(),
            seed: 23,
            tokens,
        };
        preparation.write(folder);
        Self {
            folder: folder.to_owned(),
        }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// `zbmd-run` in the folder.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = child_run::command();
        command.args(words).current_dir(&self.folder);
        command
    }

    /// The options of a run whose agents join at a port of this computer.
    pub fn gathering_words(port: u16) -> Vec<String> {
        let gather = format!("127.0.0.1:{port}");
        let words = ["model.zbmd", "--gather", &gather, "--token-file", "token"];
        let lease = ["--host-lease", HOST_LEASE];
        let all = words.iter().chain(&lease).chain(&STREAMS);
        all.map(|word| (*word).to_owned()).collect()
    }

    /// An agent that joins a run at a port of this computer.
    pub fn agent(&self, port: u16, host: &str, more: &[&str]) -> RunProcess {
        let join = format!("127.0.0.1:{port}");
        let mut command = self.command(&["agent", "--token-file", "token", "--join", &join]);
        command.args(["--as", host]).args(more);
        RunProcess::start(command)
    }

    /// A file for `zbmd-run up` in the folder, whose hosts are reached under these names, with more lines.
    pub fn write_launch_file(&self, destinations: [&str; 2], program: &Path, more: &str) {
        let mut hosts = String::new();
        for (name, destination) in ["second", "third"].iter().zip(destinations) {
            let host = format!(r#""{name}": Host(address: "127.0.0.1:0", ssh: "{destination}"),"#);
            writeln!(hosts, "        {host}").expect("a text");
        }
        let token = self.folder.join("token");
        let text = format!(
            "Launch(\n    bundle: \"model.zbmd\",\n    token_file: {token:?},\n    program: {program:?},\n    \
             options: [\"--host-lease\", \"{HOST_LEASE}\"],\n    {more}\n    hosts: {{\n{hosts}    }},\n)\n"
        );
        std::fs::write(self.folder.join("launch.ron"), text).expect("written");
    }

    /// Tokens in the run's output.
    pub fn output_tokens(&self) -> u64 {
        tokens_in(&self.folder.join("out.f32"))
    }

    /// Whether the output is that of a run on one host, up to its end.
    ///
    /// # Panics
    /// It is not.
    #[track_caller]
    pub fn check_output(&self) {
        let expected = std::fs::read(self.folder.join("expected.f32")).expect("written");
        let found = std::fs::read(self.folder.join("out.f32")).expect("written");
        assert!(!expected.is_empty());
        assert_eq!(found.len(), expected.len());
        assert!(found == expected, "the output differs");
        std::fs::remove_file(self.folder.join("out.f32")).expect("it is ours");
    }
}
