//! Runs over three hosts whose processes are started by something else than a person: a folder with a bundle, an input, and what a
//! run on one host gives for it.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};

use crate::{agents, child_run};

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

const SECRET: &str = "a token of the test";
/// Long enough for a crowded computer.
const HOST_LEASE: &str = "5s";
/// Nothing takes as long.
const LIMIT: Duration = Duration::from_secs(60);

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
        std::fs::write(folder.join("machine.ron"), MACHINE).expect("written");
        let options = CompileOptions {
            machine: MachineChoice::File(folder.join("machine.ron")),
            ..CompileOptions::default()
        };
        let compiled = compile_str("launched.ron", MODEL, "", &options);
        let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        zbmd_ir::bundle::write(&folder.join("model.zbmd"), &compiled.program).expect("written");
        agents::token_file(folder, SECRET);

        let mut rng = fastrand::Rng::with_seed(23);
        let input: Vec<u8> = (0..tokens)
            .flat_map(|_| (rng.f32() - 0.5).to_le_bytes())
            .collect();
        std::fs::write(folder.join("in.f32"), input).expect("written");
        let runs = Self {
            folder: folder.to_owned(),
        };
        let undisturbed = runs.command(&[
            "model.zbmd",
            "-q",
            "-i",
            "in=in.f32",
            "-o",
            "out=expected.f32",
        ]);
        let (status, said) = Launched::start(undisturbed).end();
        assert!(status.success(), "{said}");
        runs
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
    pub fn agent(&self, port: u16, host: &str, more: &[&str]) -> Launched {
        let join = format!("127.0.0.1:{port}");
        let mut command = self.command(&["agent", "--token-file", "token", "--join", &join]);
        command.args(["--as", host]).args(more);
        Launched::start(command)
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
        let file = std::fs::metadata(self.folder.join("out.f32"));
        file.map_or(0, |file| file.len() / 4)
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

/// A process that ends with this.
pub struct Launched {
    child: Child,
}

impl Launched {
    /// Starts it; what it says is kept.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn start(mut command: Command) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        Self { child }
    }

    /// Sends a signal to it.
    ///
    /// # Panics
    /// It has been waited for already.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    /// Waits until something is so, while it goes on.
    ///
    /// # Panics
    /// It ends before, or it takes too long.
    pub fn wait_until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            if let Some(status) = self.child.try_wait().expect("a child") {
                panic!("{status} before {what}: {}", self.said());
            }
            assert!(begun.elapsed() < LIMIT, "not {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for its end: how it ended, and what it said.
    ///
    /// # Panics
    /// It takes too long.
    pub fn end(mut self) -> (ExitStatus, String) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return (status, self.said());
            }
            assert!(begun.elapsed() < LIMIT, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn said(&mut self) -> String {
        let mut text = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_string(&mut text);
        }
        text
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
