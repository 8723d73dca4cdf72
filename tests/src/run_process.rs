//! Runs over several hosts in processes: a folder that they need, and a process that is watched until it ends.

use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};

use crate::{agents, child_run};

const SECRET: &str = "a token of the test";
/// Nothing takes as long.
const LIMIT: Duration = Duration::from_secs(60);

/// What a folder is prepared from: a model from source `in` to sink `out`, of floats.
pub(crate) struct Preparation<'a> {
    pub(crate) machine: &'a str,
    pub(crate) model: &'a str,
    pub(crate) options: CompileOptions,
    /// Of the input's noise, and its tokens.
    pub(crate) seed: u64,
    pub(crate) tokens: u64,
}

impl Preparation<'_> {
    /// Writes `machine.ron`, `model.zbmd`, `token`, `in.f32`, and into `expected.f32` what a run on one host gives.
    ///
    /// # Panics
    /// The model cannot be compiled or run.
    pub(crate) fn write(self, folder: &Path) {
        let machine = folder.join("machine.ron");
        std::fs::write(&machine, self.machine).expect("written");
        let options = CompileOptions {
            machine: MachineChoice::File(machine),
            ..self.options
        };
        let compiled = compile_str("model.ron", self.model, "", &options);
        let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        zbmd_ir::bundle::write(&folder.join("model.zbmd"), &compiled.program).expect("written");
        agents::token_file(folder, SECRET);

        let mut rng = fastrand::Rng::with_seed(self.seed);
        let input: Vec<u8> = (0..self.tokens)
            .flat_map(|_| (rng.f32() - 0.5).to_le_bytes())
            .collect();
        std::fs::write(folder.join("in.f32"), input).expect("written");

        let mut undisturbed = child_run::command();
        undisturbed
            .args(["model.zbmd", "-q", "-i", "in=in.f32"])
            .args(["-o", "out=expected.f32"])
            .current_dir(folder);
        let (status, said) = RunProcess::start(undisturbed).end();
        assert!(status.success(), "{said}");
    }
}

/// The processes that have a text in their command lines.
///
/// # Panics
/// The system does not list processes.
pub fn processes_with(text: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("processes");
    let processes = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let process = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let mut parts = line.windows(text.len());
        parts.any(|part| part == text.as_bytes()).then_some(process)
    });
    processes.collect()
}

/// Tokens in a file of floats; none where it is not there.
pub(crate) fn tokens_in(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |file| file.len() / 4)
}

/// A process that ends with this.
pub struct RunProcess {
    child: Child,
}

impl RunProcess {
    /// Starts it without an input; what it says is kept.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn start(command: Command) -> Self {
        Self::spawn(command, Stdio::null())
    }

    /// The same with an input that is written to it.
    pub(crate) fn start_fed(command: Command) -> (Self, ChildStdin) {
        let mut process = Self::spawn(command, Stdio::piped());
        let input = process.child.stdin.take().expect("piped");
        (process, input)
    }

    fn spawn(mut command: Command, input: Stdio) -> Self {
        let child = command.stdin(input).stderr(Stdio::piped()).spawn();
        Self {
            child: child.expect("started"),
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
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

impl Drop for RunProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
