//! Runs of `zbmd-run --virtual-cluster`: programs of a cluster with what comes out of them, a model that its hosts can lose any one of
//! them at, and what is seen of a run from outside.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_str};

use crate::child_run;
use crate::cluster_models::Cluster;
use crate::run_process::{RunProcess, processes_with};

/// Long enough for a crowded computer.
pub const LONG_LEASE: &str = "5s";

/// A program of a cluster.
pub struct ClusterProgram {
    /// What its files are called.
    pub name: &'static str,
    /// The model.
    pub text: String,
    /// Its sources with the tokens that they give, and its sink.
    pub sources: Vec<(&'static str, Vec<i64>)>,
    /// Its sink.
    pub sink: &'static str,
    /// What comes out of that.
    pub expected: Vec<i64>,
}

/// The three programs, each for so many tokens of its sources.
pub fn programs(cluster: Cluster, tokens: i64) -> Vec<ClusterProgram> {
    let all = cluster.all_devices() as i64;
    let ticks: Vec<i64> = (0..tokens).collect();
    let first: Vec<i64> = (0..tokens).map(|token| 3 * token - 7).collect();
    let second: Vec<i64> = (0..tokens).map(|token| 11 - 2 * token).collect();

    let said = ticks
        .iter()
        .flat_map(|tick| (0..all).map(move |device| tick * all + device));
    let sums = first.iter().zip(&second).map(|(a, b)| a + b);
    let copies = cluster.dag_copies() as i64;
    let results = sums.flat_map(|sum| {
        let sums = (0..copies).map(move |copy| sum + copy);
        sums.map(|s| (s + 1) * (s + 2) + s)
    });
    vec![
        ClusterProgram {
            name: "topology",
            text: cluster.topology(),
            sources: vec![("tick", ticks.clone())],
            sink: "all",
            expected: said.collect(),
        },
        ClusterProgram {
            name: "dag",
            text: cluster.dag(),
            sources: vec![("a", first.clone()), ("b", second.clone())],
            sink: "f",
            expected: results.collect(),
        },
        ClusterProgram {
            name: "ring",
            text: cluster.ring(),
            expected: ticks.iter().map(|tick| tick * all).collect(),
            sources: vec![("tick", ticks.clone())],
            sink: "laps",
        },
    ]
}

/// A folder with bundles of a cluster, and inputs.
pub struct ClusterRuns<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// The cluster that bundles are for.
    pub cluster: Cluster,
}

impl ClusterRuns<'_> {
    /// Compiles a model to `NAME.zbmd`.
    ///
    /// # Panics
    /// It cannot be compiled or written.
    pub fn compile(&self, name: &str, text: &str, contingencies: Losses, block: Option<u64>) {
        let options = CompileOptions {
            machine: MachineChoice::UniformHosts {
                hosts: self.cluster.hosts,
                devices: self.cluster.devices,
            },
            contingencies,
            block,
            ..CompileOptions::default()
        };
        let compiled = compile_str(&format!("{name}.ron"), text, "", &options);
        let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{name}: {diagnostics}"));
        let path = self.folder.join(format!("{name}.zbmd"));
        zbmd_ir::bundle::write(&path, &compiled.program).expect("written");
    }

    /// Compiles a program, and writes its inputs.
    ///
    /// # Panics
    /// It cannot be compiled or written.
    pub fn prepare(&self, program: &ClusterProgram) {
        self.prepare_in_blocks(program, None);
    }

    /// The same with blocks of so many tokens.
    ///
    /// # Panics
    /// As [`Self::prepare`].
    pub fn prepare_in_blocks(&self, program: &ClusterProgram, block: Option<u64>) {
        self.compile(program.name, &program.text, Losses::None, block);
        for (source, tokens) in &program.sources {
            let bytes: Vec<u8> = tokens
                .iter()
                .flat_map(|token| token.to_le_bytes())
                .collect();
            std::fs::write(self.input(program, source), bytes).expect("written");
        }
    }

    fn input(&self, program: &ClusterProgram, source: &str) -> PathBuf {
        self.folder.join(format!("{}.{source}.bin", program.name))
    }

    /// A run of a program on a virtual cluster.
    pub fn run(&self, program: &ClusterProgram) -> Command {
        let mut command = self.command(program.name, LONG_LEASE);
        for (source, _) in &program.sources {
            let input = self.input(program, source);
            command
                .arg("-i")
                .arg(format!("{source}={}", input.display()));
        }
        command.args(["-o", &format!("{}=out.bin", program.sink)]);
        command
    }

    /// A run of `NAME.zbmd` on a virtual cluster, without its streams. Its agents have the folder's path in their command lines.
    pub fn command(&self, name: &str, lease: &str) -> Command {
        let mut command = child_run::command();
        command
            .args([&format!("{name}.zbmd"), "--virtual-cluster"])
            .args(["--host-lease", lease])
            .env("TMPDIR", self.folder)
            .current_dir(self.folder);
        command
    }

    /// The tokens of the last run's sink.
    ///
    /// # Panics
    /// There are none.
    pub fn output(&self) -> Vec<i64> {
        let bytes = std::fs::read(self.folder.join("out.bin")).expect("written");
        let tokens = bytes.as_chunks::<8>().0.iter();
        tokens.map(|token| i64::from_le_bytes(*token)).collect()
    }

    /// What `zbmd-run top` shows of a run; nothing before there is something.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn shown(&self, run: &RunProcess) -> Option<Value> {
        let mut top = child_run::command();
        top.args(["top", &run.pid().to_string(), "--once"])
            .args(["--format", "json"])
            .env("TMPDIR", self.folder);
        serde_json::from_slice(&top.output().expect("started").stdout).ok()
    }

    /// The agents of all runs in this folder.
    pub fn agents(&self) -> Vec<u32> {
        processes_with(&self.folder.display().to_string())
    }

    /// The epochs that the run with `--events events.jsonl` has begun: when each was decided, in nanoseconds on the monotonic
    /// clock, and how many devices it does without.
    pub fn epochs(&self) -> Vec<(u64, usize)> {
        let begun = self.events("begin").into_iter();
        let epochs = begun.filter_map(|event| {
            let lost = event["lost"].as_array()?.len();
            Some((event["at_ns"].as_u64()?, lost))
        });
        epochs.collect()
    }

    /// How many workers have begun to be ready, those that came in the place of others included.
    pub fn ready_workers(&self) -> usize {
        self.events("ready").len()
    }

    /// When each of them began to be, in nanoseconds on the monotonic clock.
    pub fn ready_at_ns(&self) -> Vec<u64> {
        let ready = self.events("ready").into_iter();
        ready.filter_map(|event| event["at_ns"].as_u64()).collect()
    }

    fn events(&self, kind: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.join("events.jsonl"));
        let text = text.unwrap_or_default();
        // The last line may be written just now.
        let events = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter(|event| event["event"] == kind).collect()
    }
}

/// A paced run of [`filters`], which writes its output to `out.f32` and its events to `events.jsonl`.
#[derive(Clone, Copy, Debug)]
pub struct PacedFilters {
    /// How many filters.
    pub count: usize,
    /// Tokens of a block; as many as the compiler chooses, if `None`.
    pub block: Option<u64>,
    /// Tokens that come in a second, and seconds of them.
    pub rate_per_s: u64,
    /// See `rate_per_s`.
    pub seconds: u64,
}

impl ClusterRuns<'_> {
    /// Starts a paced run of filters, and waits for its first output. `one.f32` is what it must write, as one host does.
    ///
    /// # Panics
    /// It cannot be compiled or started.
    pub fn start_filters(
        &self,
        paced: PacedFilters,
        rng: &mut fastrand::Rng,
        lease: &str,
    ) -> RunProcess {
        let text = filters(paced.count);
        self.compile("filters", &text, Losses::Hosts, paced.block);
        let tokens = 0..paced.seconds * paced.rate_per_s;
        let input: Vec<u8> = tokens
            .flat_map(|_| (rng.f32() - 0.5).to_le_bytes())
            .collect();
        std::fs::write(self.folder.join("in.f32"), input).expect("written");
        let undisturbed = ["filters.zbmd", "-q", "-i", "in=in.f32", "-o", "out=one.f32"];
        let undisturbed = child_run::output_in(self.folder, &undisturbed);
        assert!(undisturbed.status.success(), "{undisturbed:?}");

        let mut command = self.command("filters", lease);
        command
            .args(["-i", &format!("in=paced:in.f32?rate={}", paced.rate_per_s)])
            .args(["-o", "out=out.f32", "--events", "events.jsonl"]);
        let mut run = RunProcess::start(command);
        let output = self.folder.join("out.f32");
        run.wait_until("output", || {
            std::fs::metadata(&output).is_ok_and(|file| file.len() > 0)
        });
        run
    }
}

/// So many filters in a row, from source `in` to sink `out` on the first device; all others are free to be lost.
pub fn filters(count: usize) -> String {
    let mut actors = String::new();
    let mut channels = r#"(from: "in", to: ["f0"]),"#.to_owned();
    for filter in 0..count {
        let cutoff = 0.1 + 0.05 * (filter % 7) as f64;
        let design = format!(
            r#"{{ "kind": "lowpass", "cutoff": {cutoff}, "rate": 1, "taps": 200, "window": {{ "kaiser": 7.9 }} }}"#
        );
        let reader = match filter + 1 {
            next if next < count => format!("f{next}"),
            _ => "out".to_owned(),
        };
        writeln!(actors, r#""f{filter}": Fir(design: {design}),"#).expect("a text");
        writeln!(channels, r#"(from: "f{filter}", to: ["{reader}"]),"#).expect("a text");
    }
    format!(
        r#"Model(name: "filters", sources: {{ "in": Stream(dtype: f32) }}, actors: {{ {actors} }}, channels: [ {channels} ],
            sinks: {{ "out": Stream() }}, pins: {{ "in": "h0:0", "out": "h0:0" }})"#
    )
}

/// The states of all hosts in what is shown, in order.
pub fn host_states(shown: &Value) -> Vec<String> {
    let hosts = shown["hosts"].as_array().into_iter().flatten();
    hosts
        .filter_map(|host| Some(host["state"].as_str()?.to_owned()))
        .collect()
}

/// Sends a signal to an agent.
///
/// # Panics
/// It is not there.
pub fn signal(process: u32, signal: Signal) {
    let pid = Pid::from_raw(process as i32).expect("a process");
    kill_process(pid, signal).expect("it is there");
}
